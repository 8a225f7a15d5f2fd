"""Conversion between episodes and the transitions in replay buffers of other libraries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from episodes.converters.action_mapping import export_actions
from episodes.converters.info_arrays import infos_from
from episodes.converters.loss_report import LossReport, having_steps, report_dropped_facts
from episodes.errors import InvalidArgument
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested


@dataclass(slots=True)
class Transitions:
    """N transitions in temporal order: arrays [N, ...] of observations, actions, rewards, next observations, flags."""

    observations: Any  # [N, ...], nested
    next_observations: Any  # [N, ...]
    actions: Any  # [N, ...]
    rewards: np.ndarray  # [N]
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    groups: np.ndarray | None = None  # [N]: all rows of an episode are in one group
    infos: dict[str, Any] = field(default_factory=dict)  # [N, ...] by key, infos of the next observation
    extra: dict[str, Any] = field(default_factory=dict)  # [N, ...] extra model outputs
    first_row: int = 0  # row number of the first transition in the source

    def episodes(self, name: str, report: LossReport, first: int = 0, **spaces: Any) -> list[SingleAgentEpisode]:
        """Join the transitions to episodes with the ids "NAME/FIRST", "NAME/FIRST+1" and so on.

        An episode is cut where a row's next observation is not the next row's observation; the report gets these rows.

        Args:
            name: first part of the ids.
            report: gets what is lost.
            first: number of the first episode.
            spaces: spaces of the episodes.
        """
        count = len(self.rewards)
        if not count:
            return []
        ends = np.logical_or(self.terminated, self.truncated)
        if self.groups is not None:
            ends[:-1] |= self.groups[1:] != self.groups[:-1]
        loose = np.flatnonzero(~ends[:-1] & ~self._find_links())
        for row in loose:
            report.add(
                "what lies between two steps",
                "the next observation is another one; cut here",
                f"row {self.first_row + row}",
            )
        ends[loose] = ends[-1] = True
        stops = np.flatnonzero(ends) + 1
        starts = np.concatenate([[0], stops[:-1]])
        return [
            self._episode(int(a), int(b), f"{name}/{i}", spaces)
            for i, (a, b) in enumerate(zip(starts, stops, strict=True), first)
        ]

    def _find_links(self) -> np.ndarray:
        """Return which next observations equal the observation of the following transition, bool [N - 1]."""
        linked = np.ones(len(self.rewards) - 1, bool)
        for after, observations in zip(
            nested.leaves(self.next_observations), nested.leaves(self.observations), strict=True
        ):
            x, y = after[:-1], observations[1:]
            same = (x == y) | ((x != x) & (y != y))
            linked &= same.all(axis=tuple(range(1, same.ndim)))
        return linked

    def _episode(self, start: int, stop: int, id_: str, spaces: dict[str, Any]) -> SingleAgentEpisode:
        """Return the transitions `start` to `stop` as one episode. Its last observation is the last transition's next
        one.

        Args:
            spaces: `observation_space` and `action_space`, as keyword arguments.
        """

        def part(data: Any) -> Any:
            return nested.map_leaves(lambda leaf: leaf[start:stop], data)

        return SingleAgentEpisode.from_arrays(
            nested.map_leaves(
                lambda observations, after: np.concatenate([observations[start:stop], after[stop - 1 : stop]]),
                self.observations,
                self.next_observations,
            ),
            part(self.actions),
            self.rewards[start:stop],
            infos=infos_from(part(self.infos), stop - start + 1) if self.infos else None,
            terminated=bool(self.terminated[stop - 1]),
            truncated=bool(self.truncated[stop - 1]),
            extra_model_outputs=part(self.extra),
            id_=id_,
            **spaces,
        )


def without_next(
    observations: Any,
    actions: Any,
    rewards: np.ndarray,
    terminated: bool,
    truncated: bool,
    extra: dict[str, Any],
    report: LossReport,
    episode_id: Any,
) -> dict[str, Any] | None:
    """Return arguments of `SingleAgentEpisode.from_arrays` for T steps whose final observation is unknown.

    A terminated episode repeats its last observation, and any other episode loses its last step; both are reported.
    None is returned if no step is left.

    Args:
        observations: nested arrays [T, ...].
        actions: nested arrays [T, ...].
        rewards: float [T].
        terminated: whether the last step terminated the episode.
        truncated: whether the last step was truncated.
        extra: extra model outputs, nested arrays [T, ...] by name.
        report: gets what is lost.
        episode_id: id or position of the episode for the report.
    """
    if terminated:
        report.add("the last observation", "there is none after a step that terminates", episode_id)
        observations = nested.map_leaves(lambda leaf: np.concatenate([leaf, leaf[-1:]]), observations)
    else:
        report.add("the last step", "there is no observation after it", episode_id)
        actions, rewards, extra = nested.map_leaves(lambda leaf: leaf[:-1], (actions, rewards, extra))
    if not len(rewards):
        return None
    arrays = {"observations": observations, "actions": actions, "rewards": rewards, "extra_model_outputs": extra}
    return arrays | {"terminated": terminated, "truncated": truncated}


def transitions_of(
    episodes: Iterable[SingleAgentEpisode], name: str, report: LossReport, mapping: str | None = None, **keeps: Any
) -> Transitions:
    """Convert the steps of the episodes to `Transitions`, and add losses to `report`.

    The last step of a cut chunk is truncated: its target bootstraps from the next observation, and the next row belongs
    to another episode.

    Args:
        episodes: the episodes.
        name: name of the buffer for messages.
        report: gets what is lost.
        mapping: mapping of the exported actions, None for the environment's.
        keeps: `keeps=` of `report_dropped_facts`, the names of the metadata that the buffer stores.

    Raises:
        InvalidArgument: no episode has a step, or items are not numbers.
    """
    parts = []
    for episode in having_steps(episodes, name, report):
        episode = export_actions(episode, report, mapping)
        report_dropped_facts(report, episode, name, **keeps)
        if not episode.is_done:
            report.add(
                "that the chunk goes on", f"{name} is told that it was truncated, which bootstraps too", episode.id_
            )
        flags = np.zeros((2, len(episode)), bool)
        flags[:, -1] = episode.is_terminated, episode.is_truncated or not episode.is_done
        parts.append((*numbers_of(episode, name), *flags))
    if not parts:
        raise InvalidArgument(f"{name}: no episodes with a step were given")
    return Transitions(*nested.concatenate(parts))


def numbers_of(episode: SingleAgentEpisode, name: str) -> tuple[Any, Any, Any, np.ndarray]:
    """Return observations, next observations, actions and rewards of an episode as arrays of numbers [T, ...].

    Raises:
        InvalidArgument: items that are not numbers.
    """
    tracks = episode.finalized_tracks()
    observations, actions, rewards = tracks.observations.get(), tracks.actions.get(), tracks.rewards.get()
    for leaf in nested.leaves((observations, actions)):
        if leaf.dtype.kind not in "biuf":
            raise InvalidArgument(f"episode {episode.id_}: {name} holds numbers, not items of {leaf.dtype}")
    return (
        nested.map_leaves(lambda leaf: leaf[:-1], observations),
        nested.map_leaves(lambda leaf: leaf[1:], observations),
        actions,
        rewards,
    )
