"""`ForEachAgent`: connector with a separate observation rewriter per agent, for a module (policy) that acts for several
agents.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from connectors.rewriting.rewriter import ObservationRewriter
from episodes.data_types import AgentID, NestedArrays
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack
from episodes.tracks import nested
from episodes.tracks.validation import reading_state

if TYPE_CHECKING:
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["ForEachAgent"]


class ForEachAgent(ObservationRewriter):
    """Connector that rewrites each agent's observations by the agent's own rewriter, for example a `MeanStdFilter` per
    agent.

    Args:
        make: function that returns the rewriter of a new agent.
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        name: name of the connector in its pipeline.
    """

    def __init__(
        self,
        make: Callable[[], ObservationRewriter],
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self._make = make
        self.rewriters: dict[Any, ObservationRewriter] = {}
        super().__init__(input_observation_space, input_action_space, name=name)

    @property
    def is_empty_filter(self) -> bool:  # type: ignore[override]
        """Whether the agents' rewriters learn statistics, but have not seen any observation."""
        return all(rewriter.is_empty_filter for rewriter in self.rewriters.values() or [self._make()])

    def rewriter_of(self, agent_id: AgentID) -> ObservationRewriter:
        """Return this agent's own rewriter. The first call creates it."""
        if agent_id not in self.rewriters:
            self.rewriters[agent_id] = rewriter = self._make()
            rewriter.set_input_spaces(self.input_observation_space, self.input_action_space)
        return self.rewriters[agent_id]

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Return the space of the rewritten observations, which is the same for all agents."""
        rewriter = self._make()
        rewriter.set_input_spaces(input_observation_space, input_action_space)
        return rewriter.observation_space or input_observation_space

    def rewrite(
        self, observations: NestedArrays, episodes: Sequence[SingleAgentEpisode] | None = None, update: bool = True
    ) -> Any:
        """Return the observations [N, ...] of several agents, each row rewritten by its agent's rewriter.

        Args:
            observations: nested arrays [N, ...].
            episodes: the episodes [N] of the observations, which have the ids of the agents.
            update: whether the rewriters learn statistics from the observations.

        Raises:
            InvalidArgument: `episodes` is missing.
        """
        if episodes is None:
            raise InvalidArgument(f"{self.name}: the agents of the rows are read from their episodes; give episodes=")
        return self._rewrite_by_agent(observations, [episode.agent_id for episode in episodes], episodes, update)

    def rewritten_pack(self, pack: EpisodePack) -> EpisodePack:
        """Return recorded episodes (a pack) with the observations of each agent rewritten by the agent's rewriter. No
        statistics are learned.
        """
        agents = [None] * len(pack) if pack.agent_ids is None else list(pack.agent_ids)
        rows = np.diff(pack.observation_offsets)
        owners = [agent for agent, num in zip(agents, rows.tolist(), strict=True) for _ in range(num)]
        observations = self._rewrite_by_agent(pack.observations, owners, None, False)
        return pack.replace(observations=observations, observation_space=self.observation_space)

    def _rewrite_by_agent(
        self, observations: NestedArrays, owners: list[Any], episodes: Sequence[SingleAgentEpisode] | None, update: bool
    ) -> Any:
        """Return the observations [N, ...], each rewritten by the rewriter of its agent.

        `owners` has the agent id of each row. With `update=False`, the rewriters' statistics do not change.
        """
        rows_of: dict[Any, list[int]] = {}
        for row, agent_id in enumerate(owners):
            rows_of.setdefault(agent_id, []).append(row)
        parts = []
        for agent_id, rows in rows_of.items():
            agent_episodes = None if episodes is None else [episodes[row] for row in rows]
            part = nested.take(observations, np.array(rows, np.int64))
            parts.append(self.rewriter_of(agent_id).rewrite(part, agent_episodes, update))
        order = np.argsort(np.concatenate([np.array(rows, np.int64) for rows in rows_of.values()]), kind="stable")
        return nested.take(nested.concatenate(parts), order)

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: object,
    ) -> dict[str, Any]:
        """Return the state (learned statistics) of each agent's rewriter, by agent id."""
        return {"agents": {agent_id: rewriter.get_state() for agent_id, rewriter in self.rewriters.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the states of the agents' rewriters that `get_state` returned.

        Raises:
            StateMismatch: the state is malformed. Nothing is changed.
        """
        before, self.rewriters = self.rewriters, {}
        try:
            with reading_state(type(self)):
                for agent_id, agent_state in state["agents"].items():
                    self.rewriter_of(agent_id).set_state(agent_state)
        except BaseException:
            self.rewriters = before
            raise

    def reset_state(self) -> None:
        """Discard the learned statistics of all agents' rewriters."""
        self.rewriters = {}

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Return one state that combines the statistics of several copies of this connector, agent by agent."""
        agents = dict.fromkeys(agent_id for state in states for agent_id in state["agents"])
        return {
            "agents": {
                agent_id: self.rewriter_of(agent_id).merge_states(
                    [state["agents"][agent_id] for state in states if agent_id in state["agents"]]
                )
                for agent_id in agents
            }
        }
