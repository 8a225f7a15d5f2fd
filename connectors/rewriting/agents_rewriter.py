"""`AgentsRewriter`: applies a single-agent observation rewriter, such as `MeanStdFilter`, to each of many agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium as gym

from connectors.rewriting.for_each_agent import ForEachAgent
from connectors.rewriting.multi_agent_preprocessor import MultiAgentObservationPreprocessor
from connectors.rewriting.rewriter import ObservationRewriter
from episodes.errors import WrongType
from episodes.tracks import nested
from episodes.tracks.validation import checked_items

__all__ = ["AgentsRewriter", "as_joint"]


class AgentsRewriter(MultiAgentObservationPreprocessor):
    """Multi-agent preprocessor with one copy of a single-agent rewriter, such as `MeanStdFilter`, for each agent.

    Args:
        rewriter: the rewriter. If it has `agent_ids`, observations of other agents stay unchanged.
    """

    def __init__(self, rewriter: ObservationRewriter) -> None:
        agent_ids = getattr(rewriter, "agent_ids", None)
        self.agent_ids = None if agent_ids is None else frozenset(agent_ids)
        self.rewriter = rewriter
        self._each = ForEachAgent(partial(_own_copy, rewriter))
        super().__init__(name=rewriter.name)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the wrapped single-agent rewriter."""
        return self.rewriter.settings

    def takes(self, agent_id: Any) -> bool:
        """Return True if this agent's observations are rewritten."""
        return self.agent_ids is None or agent_id in self.agent_ids

    def rewriter_of(self, agent_id: Any) -> ObservationRewriter:
        """Return this agent's own copy of the rewriter."""
        return self._each.rewriter_of(agent_id)

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Set the spaces of each agent's rewriter, and return the Dict of rewritten spaces by agent."""
        output_spaces = dict(_by_agent(input_observation_space))
        actions = _by_agent(input_action_space)
        for agent_id, space in output_spaces.items():
            if self.takes(agent_id):
                rewriter = self.rewriter_of(agent_id)
                rewriter.set_input_spaces(space, actions.get(agent_id))
                output_spaces[agent_id] = rewriter.observation_space or space
        return gym.spaces.Dict(output_spaces)

    def rewrite(self, observations: Mapping[Any, Any], episode: Any = None, update: bool = True) -> dict[Any, Any]:
        """Return the observations by agent id. The selected agents' observations are rewritten."""
        changed = dict(observations)
        for agent_id, observation in observations.items():
            if self.takes(agent_id):
                owners = None if episode is None else [episode.agent_episodes[agent_id]]
                rows = self.rewriter_of(agent_id).rewrite(nested.stack([observation]), owners, update)
                changed[agent_id] = nested.take(rows, 0)
        return changed

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return the statistics of each agent's rewriter, by agent id."""
        return self._each.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the statistics that `get_state` returned."""
        self._each.set_state(state)
        self._give_spaces()

    def reset_state(self) -> None:
        """Reset the statistics of all agents' rewriters."""
        self._each.reset_state()
        self._give_spaces()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the merged statistics of several copies of this connector, by agent id."""
        return self._each.merge_states(states)

    def _give_spaces(self) -> None:
        self.set_input_spaces(self.input_observation_space, self.input_action_space)


def as_joint(pieces: Iterable[Any]) -> list[MultiAgentObservationPreprocessor]:
    """Return `pieces` as multi-agent preprocessors: single-agent rewriters are wrapped in an `AgentsRewriter`.

    Raises:
        WrongType: a connector is neither a joint preprocessor nor a rewriter.
    """
    return [_as_joint(piece) for piece in checked_items("joint", pieces, "joint preprocessors")]


def _as_joint(piece: Any) -> MultiAgentObservationPreprocessor:
    if isinstance(piece, MultiAgentObservationPreprocessor):
        return piece
    if isinstance(piece, ObservationRewriter):
        return AgentsRewriter(piece)
    raise WrongType(
        f"joint={piece!r}: a joint piece is a MultiAgentObservationPreprocessor, or rewrites each agent's observations "
        "as MeanStdFilter and FlattenObservations do; put others into the modules' pipelines: pieces="
    )


def _own_copy(rewriter: ObservationRewriter) -> Any:
    """Return an independent copy of a rewriter, for one agent."""
    copy: Any = deepcopy(rewriter)
    copy.multi_agent, copy.agent_ids = False, None
    return copy


def _by_agent(space: gym.Space | None) -> Mapping[Any, gym.Space]:
    return space.spaces if isinstance(space, gym.spaces.Dict) else {}
