"""`MultiAgentObservationPreprocessor`: base class of connectors that change the observations of all agents together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from connectors.connector import ColumnDict, Connector
from connectors.rewriting.agent_spaces import spaces_by_agent
from episodes.errors import InvalidArgument, rejected_type
from episodes.multi_agent import MultiAgentEpisode
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import ArrayTrack, nested

__all__ = ["MultiAgentObservationPreprocessor", "rewritten_agents"]


class MultiAgentObservationPreprocessor(Connector):
    """Base class of connectors that change the observations of all agents in an env step together. Override
    `preprocess`.

    Pass it to `MultiAgentEnvToModule(..., joint=[...])`. A runner then applies it to the observations of each env step
    before they are stored and passed to the modules' pipelines. A `MultiAgentLearner` with it applies it to stored
    episodes. Its spaces are `Dict` spaces by agent. Also override `recompute_output_observation_space` if shapes,
    dtypes or bounds change.

    >>> class Relative(MultiAgentObservationPreprocessor):
    ...     def preprocess(self, observations, episode):
    ...         center = sum(observations.values()) / len(observations)
    ...         return {agent_id: position - center for agent_id, position in observations.items()}
    >>> Relative().rewrite({"a": 1.0, "b": 3.0})
    {'a': -1.0, 'b': 1.0}
    """

    _rewritten: frozenset[tuple[Any, int]] = frozenset()  # (episode id, env step) of what the last call rewrote

    def preprocess(self, observations: dict[Any, Any], episode: MultiAgentEpisode | None) -> Mapping[Any, Any]:
        """Return the changed observations of all agents in one env step, by agent id. Override this method.

        Args:
            observations: observations by agent, of the agents with an observation in this env step.
            episode: the `MultiAgentEpisode` with this env step as its newest; None in a learner pipeline.
        """
        raise NotImplementedError(f"{type(self).__name__} has no preprocess(observations, episode)")

    def rewrite(
        self, observations: Mapping[Any, Any], episode: MultiAgentEpisode | None = None, update: bool = True
    ) -> dict[Any, Any]:
        """Return the observations of all agents in one env step, by agent id, changed by `preprocess`.

        Args:
            observations: observations by agent.
            episode: see `preprocess`.
            update: whether the preprocessor learns statistics from the observations.

        Raises:
            InvalidArgument: `preprocess` returned observations of other agents.
        """
        changed = self.preprocess(dict(observations), episode)
        if not isinstance(changed, Mapping) or changed.keys() != observations.keys():
            gave = list(changed) if isinstance(changed, Mapping) else f"a {type(changed).__name__}"
            raise InvalidArgument(
                f"{self.name}.preprocess got observations of {list(observations)} and returned {gave}; return a dict "
                "with an observation for each of these agents"
            )
        return dict(changed)

    def __call__(
        self, *, batch: ColumnDict, episodes: Sequence[MultiAgentEpisode] = (), **kwargs: object
    ) -> ColumnDict:
        """Change the newest observations of ongoing episodes in place, once per env step. Return the batch
        unchanged.
        """
        for episode in episodes:
            if (episode.id_, episode.env_t) not in self._rewritten:
                rewrite_newest([self], episode, episode.get_observations(-1))
        self._rewritten = frozenset((episode.id_, episode.env_t) for episode in episodes)
        return batch


def rewrite_newest(
    pieces: Sequence[Any], episode: MultiAgentEpisode, observations: Mapping[Any, Any], update: bool = True
) -> None:
    """Apply preprocessors to the newest observations of an ongoing multi-agent episode, and store the results in the
    episode. With `update=False`, their statistics do not change.
    """
    for piece in pieces:
        observations = piece.rewrite(observations, episode, update)
    for agent_id, observation in observations.items():
        episode.agents.timeline(agent_id).episode.set_observations(new_data=observation, at_indices=-1)


def rewritten_agents(pieces: Sequence[Any], episode: MultiAgentEpisode) -> list[SingleAgentEpisode]:
    """Return the agents' single-agent episodes of a multi-agent episode, with preprocessors applied to the observations
    of each env step.

    The episodes are finalized copies. Lookbacks are changed too.

    Raises:
        InvalidArgument: the episode is not a `MultiAgentEpisode`.
    """
    if not isinstance(episode, MultiAgentEpisode):
        raise InvalidArgument(
            f"{pieces[0].name} reads the observations of all agents at once, a "
            f"{rejected_type(episode, MultiAgentEpisode)} has one agent: give the learner pipeline multi-agent episodes"
        )
    at: dict[int, dict[Any, Any]] = {}
    for agent_id, line in episode.agents.timelines.items():
        track = line.episode.observations
        for env_t, observation in zip(line.env_times()[0].tolist(), track.item_list(0, track.total), strict=True):
            at.setdefault(env_t, {})[agent_id] = observation
    observations_of: dict[Any, list[Any]] = {}
    for env_t in sorted(at):
        observations = at[env_t]
        for piece in pieces:
            observations = piece.rewrite(observations, None, False)
        for agent_id, observation in observations.items():
            observations_of.setdefault(agent_id, []).append(observation)
    return [
        _with_observations(line.episode, observations_of[a], pieces) for a, line in episode.agents.timelines.items()
    ]


def _with_observations(
    episode: SingleAgentEpisode, observations: list[Any], pieces: Sequence[Any]
) -> SingleAgentEpisode:
    """Return a finalized copy of an agent's episode with other observations [L + T + 1], for the lookback and all
    steps.
    """
    part = episode.slice(slice(None), len_lookback_buffer=episode.lookback).to_numpy()
    part.tracks = part.tracks.replaced(
        ArrayTrack.of(nested.stack(observations), episode.lookback, part.observations.field)
    )
    part.observation_space = spaces_by_agent(pieces[-1].observation_space).get(episode.agent_id)
    return part
