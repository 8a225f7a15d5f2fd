"""Transitions in rows, as replay buffers have them, cut into episodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from episodes.converters.action_mapping import exported
from episodes.converters.info_arrays import infos_from
from episodes.converters.loss_report import LossReport, report_dropped_facts
from episodes.errors import InvalidArgument
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested


@dataclass(slots=True)
class Transitions:
    """N transitions, one after another in time."""

    observations: Any  # [N, ...], nested
    next_observations: Any  # [N, ...]
    actions: Any  # [N, ...]
    rewards: np.ndarray  # [N]
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    groups: np.ndarray | None = None  # [N]: no episode has rows of two of them
    infos: dict[str, Any] = field(default_factory=dict)  # [N, ...] by key, of the next observation
    extra: dict[str, Any] = field(default_factory=dict)  # [N, ...] extra model outputs
    first_row: int = 0  # the number of the first one, where these are a part

    def episodes(self, name: str, report: LossReport, first: int = 0, **spaces: Any) -> list[SingleAgentEpisode]:
        """The episodes "NAME/FIRST", ...; one is cut, and the report told, where a row does not lead to the next."""
        count = len(self.rewards)
        if not count:
            return []
        ends = np.logical_or(self.terminated, self.truncated)
        if self.groups is not None:
            ends[:-1] |= self.groups[1:] != self.groups[:-1]
        loose = np.flatnonzero(~ends[:-1] & ~self._linked())
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

    def _linked(self) -> np.ndarray:
        """[N - 1]: True where a row's next observation is the observation of the row after it; NaN is NaN."""
        linked = np.ones(len(self.rewards) - 1, bool)
        for after, seen in zip(nested.leaves(self.next_observations), nested.leaves(self.observations), strict=True):
            x, y = after[:-1], seen[1:]
            same = (x == y) | ((x != x) & (y != y))
            linked &= same.all(axis=tuple(range(1, same.ndim)))
        return linked

    def _episode(self, start: int, stop: int, id_: str, spaces: dict[str, Any]) -> SingleAgentEpisode:
        def part(data: Any) -> Any:
            return nested.map_leaves(lambda leaf: leaf[start:stop], data)

        return SingleAgentEpisode.from_arrays(
            nested.map_leaves(
                lambda seen, after: np.concatenate([seen[start:stop], after[stop - 1 : stop]]),
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
    seen: Any,
    acted: Any,
    paid: np.ndarray,
    terminated: bool,
    truncated: bool,
    extra: dict[str, Any],
    report: LossReport,
    where: Any,
) -> dict[str, Any] | None:
    """Arguments of `from_arrays` for T steps of which the observation after the last is not known.

    A terminated episode ends with the last observation once more, and any other loses its last step; both are told.
    None where no step is left.
    """
    if terminated:
        report.add("the last observation", "there is none after a step that terminates", where)
        seen = nested.map_leaves(lambda leaf: np.concatenate([leaf, leaf[-1:]]), seen)
    else:
        report.add("the last step", "there is no observation after it", where)
        acted, paid, extra = nested.map_leaves(lambda leaf: leaf[:-1], (acted, paid, extra))
    if not len(paid):
        return None
    arrays = {"observations": seen, "actions": acted, "rewards": paid, "extra_model_outputs": extra}
    return arrays | {"terminated": terminated, "truncated": truncated}


def transitions_of(
    episodes: Iterable[SingleAgentEpisode], name: str, report: LossReport, mapping: str | None = None, **keeps: Any
) -> Transitions:
    """The steps of the episodes, one after another, for a buffer of transitions; `report` is told what is lost.

    Where a chunk was cut its last step is truncated: its value is that of the next observation, and what comes after it
    in the buffer is of another episode.

    Raises:
        InvalidArgument: no episodes with a step, or items that are no numbers.
    """
    parts = []
    for episode in episodes:
        if not len(episode):
            report.add("the episode", f"{name} has no episodes without a step", episode.id_)
            continue
        episode = exported(episode, report, mapping)
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
    """Observations, next observations, actions, rewards [T, ...]; `InvalidArgument` where they are no numbers."""
    tracks = episode.finalized_tracks()
    seen, acted, paid = tracks.observations.get(), tracks.actions.get(), tracks.rewards.get()
    for leaf in nested.leaves((seen, acted)):
        if leaf.dtype.kind not in "biuf":
            raise InvalidArgument(f"episode {episode.id_}: {name} holds numbers, not items of {leaf.dtype}")
    return (
        nested.map_leaves(lambda leaf: leaf[:-1], seen),
        nested.map_leaves(lambda leaf: leaf[1:], seen),
        acted,
        paid,
    )
