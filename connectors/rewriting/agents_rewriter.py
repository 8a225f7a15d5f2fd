"""`AgentsRewriter`: connector that gives each of several agents its own copy of an observation rewriter, such as
`MeanStdFilter`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from connectors.rewriting.agent_spaces import spaces_by_agent
from connectors.rewriting.for_each_agent import ForEachAgent
from connectors.rewriting.multi_agent_preprocessor import MultiAgentObservationPreprocessor
from connectors.rewriting.rewriter import ObservationRewriter
from episodes.data_types import AgentID
from episodes.errors import WrongType
from episodes.tracks import nested
from episodes.tracks.validation import checked_items

if TYPE_CHECKING:
    from episodes.multi_agent import MultiAgentEpisode

__all__ = ["AgentsRewriter", "as_joint"]


class AgentsRewriter(MultiAgentObservationPreprocessor):
    """Multi-agent preprocessor that rewrites each agent's observations by the agent's own copy of a rewriter, such as
    `MeanStdFilter`.

    Args:
        rewriter: the rewriter. If it has `agent_ids`, observations of other agents stay unchanged.
    """

    def __init__(self, rewriter: ObservationRewriter) -> None:
        agent_ids = getattr(rewriter, "agent_ids", None)
        self.agent_ids = None if agent_ids is None else frozenset(agent_ids)
        self.rewriter = rewriter
        self._agent_rewriters = ForEachAgent(partial(_copy_for_agent, rewriter))
        super().__init__(name=rewriter.name)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the wrapped single-agent rewriter, by name."""
        return self.rewriter.settings

    @property
    def is_empty_filter(self) -> bool:  # type: ignore[override]
        """Whether the agents' rewriters learn statistics, but have not seen any observation."""
        return self._agent_rewriters.is_empty_filter

    def takes(self, agent_id: AgentID) -> bool:
        """Return True if this connector rewrites the observations of this agent."""
        return self.agent_ids is None or agent_id in self.agent_ids

    def rewriter_of(self, agent_id: AgentID) -> ObservationRewriter:
        """Return this agent's own copy of the rewriter. The first call creates it."""
        return self._agent_rewriters.rewriter_of(agent_id)

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Set the spaces of each agent's rewriter, and return the `Dict` space of the rewritten observations by
        agent.
        """
        output_spaces = spaces_by_agent(input_observation_space)
        actions = spaces_by_agent(input_action_space)
        for agent_id, space in output_spaces.items():
            if self.takes(agent_id):
                rewriter = self.rewriter_of(agent_id)
                rewriter.set_input_spaces(space, actions.get(agent_id))
                output_spaces[agent_id] = rewriter.observation_space or space
        return gym.spaces.Dict(output_spaces)

    def rewrite(
        self, observations: Mapping[Any, Any], episode: MultiAgentEpisode | None = None, update: bool = True
    ) -> dict[Any, Any]:
        """Return the observations of one env step by agent id, each rewritten by its agent's copy of the rewriter.

        Observations of agents that are not selected stay unchanged.

        Args:
            observations: observations by agent.
            episode: the `MultiAgentEpisode` with this env step as its newest, or None.
            update: whether the rewriters learn statistics from the observations.
        """
        changed = dict(observations)
        for agent_id, observation in observations.items():
            if self.takes(agent_id):
                owners = None if episode is None else [episode.agent_episodes[agent_id]]
                rows = self.rewriter_of(agent_id).rewrite(nested.stack([observation]), owners, update)
                changed[agent_id] = nested.take(rows, 0)
        return changed

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: object,
    ) -> dict[str, Any]:
        """Return the state (learned statistics) of each agent's rewriter, by agent id."""
        return self._agent_rewriters.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the states of the agents' rewriters that `get_state` returned."""
        self._agent_rewriters.set_state(state)
        self._reset_spaces()

    def reset_state(self) -> None:
        """Discard the learned statistics of all agents' rewriters."""
        self._agent_rewriters.reset_state()
        self._reset_spaces()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Return one state that combines the statistics of several copies of this connector, agent by agent."""
        return self._agent_rewriters.merge_states(states)

    def _reset_spaces(self) -> None:
        """Set the input spaces of newly created rewriters of agents."""
        self.set_input_spaces(self.input_observation_space, self.input_action_space)


def as_joint(pieces: Iterable[Any]) -> list[MultiAgentObservationPreprocessor]:
    """Return connectors as multi-agent preprocessors. Single-agent rewriters, such as `MeanStdFilter`, are wrapped in
    `AgentsRewriter`.

    Raises:
        WrongType: a connector is neither a joint preprocessor nor a rewriter.
    """
    return [_as_joint(piece) for piece in checked_items("joint", pieces, "joint preprocessors")]


def _as_joint(piece: object) -> MultiAgentObservationPreprocessor:
    """Return one connector as a multi-agent preprocessor. Raise `WrongType` if the connector does not rewrite
    observations.
    """
    if isinstance(piece, MultiAgentObservationPreprocessor):
        return piece
    if isinstance(piece, ObservationRewriter):
        return AgentsRewriter(piece)
    raise WrongType(
        f"joint={piece!r}: a joint piece is a MultiAgentObservationPreprocessor, or rewrites each agent's observations "
        "as MeanStdFilter and FlattenObservations do; put others into the modules' pipelines: pieces="
    )


def _copy_for_agent(rewriter: ObservationRewriter) -> Any:
    """Return an independent copy of a rewriter for one agent, without its multi-agent options."""
    copy: Any = deepcopy(rewriter)
    copy.multi_agent, copy.agent_ids = False, None
    return copy
