"""Conversion between episodes and the transitions in replay buffers of other libraries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from episodes.converters.accounting import StoredArrays
from episodes.converters.action_mapping import export_actions
from episodes.converters.info_arrays import infos_from
from episodes.converters.loss_report import LossReport, having_steps, report_dropped_facts
from episodes.data_types import NestedArrays, Space
from episodes.errors import InvalidArgument
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

_BLOCK = 16 << 20  # bytes of rows that are read together


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
    names: Sequence[Any] | None = None  # [N]: the source's id of each row's episode; None: episodes have numbers
    times: np.ndarray | None = None  # int [N]: time of each step in its episode
    own_infos: dict[str, Any] = field(default_factory=dict)  # [N, ...] by key, infos of the observation itself
    custom_data: dict[str, Any] = field(default_factory=dict)  # of all episodes

    def episodes(
        self, prefix: str, report: LossReport, first: int = 0, **spaces: Space | None
    ) -> list[SingleAgentEpisode]:
        """Join the transitions to episodes with the ids "PREFIX/FIRST", "PREFIX/FIRST+1" and so on, or "PREFIX/NAME".

        An episode is cut where a row's next observation is not the next row's observation, or a time is missing. The
        report gets these rows. With `names`, further parts of an episode have the ids "PREFIX/NAME/1" and so on.

        Args:
            prefix: first part of the ids.
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
        if self.times is not None:
            missing = np.flatnonzero(~ends[:-1] & (np.diff(self.times) != 1))
            for row in missing.tolist():
                span = f"times {self.times[row] + 1} to {self.times[row + 1] - 1} are missing"
                report.add("what lies between two steps", f"{span}; cut here", f"row {self.first_row + row}")
            ends[missing] = True
        loose = np.flatnonzero(~ends[:-1] & ~find_links(self.observations, self.next_observations))
        for row in loose.tolist():
            report.add(
                "what lies between two steps",
                "the next observation is another one; cut here",
                f"row {self.first_row + row}",
            )
        ends[loose] = ends[-1] = True
        stops = np.flatnonzero(ends) + 1
        starts = np.concatenate([[0], stops[:-1]])
        parts: Counter[Any] = Counter()
        episodes = []
        for number, (a, b) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True), first):
            name = number if self.names is None else self.names[a]
            part = parts[name]
            parts[name] += 1
            episodes.append(self._episode(a, b, f"{prefix}/{name}" + (f"/{part}" if part else ""), spaces))
            if part == 0 and episodes[-1].t_started:
                report.add("the first steps", "the times of its rows begin later than 0", episodes[-1].id_)
        return episodes

    def _episode(self, start: int, stop: int, id_: str, spaces: dict[str, Any]) -> SingleAgentEpisode:
        """Return the transitions `start` to `stop` as one episode. Its last observation is the last transition's next
        one.

        Args:
            spaces: `observation_space` and `action_space`, as keyword arguments.
        """

        def part(data: NestedArrays) -> Any:
            return nested.map_leaves(lambda leaf: leaf[start:stop], data)

        return SingleAgentEpisode.from_arrays(
            nested.map_leaves(
                lambda observations, after: np.concatenate([observations[start:stop], after[stop - 1 : stop]]),
                self.observations,
                self.next_observations,
            ),
            part(self.actions),
            self.rewards[start:stop],
            infos=self._infos_of(part, stop - start) if self.infos or self.own_infos else None,
            t_started=0 if self.times is None else int(self.times[start]),
            terminated=bool(self.terminated[stop - 1]),
            truncated=bool(self.truncated[stop - 1]),
            extra_model_outputs=part(self.extra),
            id_=id_,
            custom_data=deepcopy(self.custom_data),
            **spaces,
        )

    def _infos_of(self, part: Callable[[Any], Any], num: int) -> list[dict[str, Any]]:
        """Return the num + 1 info dicts of an episode. `part` takes the rows of the episode from nested arrays."""
        infos = infos_from(part(self.infos), num + 1)
        for info, own in zip(infos, infos_from(part(self.own_infos), num), strict=False):
            info |= own
        return infos


def blocks_of(ends: np.ndarray, arrays: StoredArrays) -> Iterator[slice]:
    """Yield slices of rows that can be read one by one: each has about `_BLOCK` bytes, and stops where an episode ends.

    Args:
        ends: bool [N], rows that end an episode. The last row does.
        arrays: the nested arrays [N, ...] that are read.
    """
    row = sum(array.dtype.itemsize * int(np.prod(array.shape[1:])) for array in nested.leaves(arrays))
    size, stops, start = max(1, _BLOCK // max(1, row)), np.flatnonzero(ends) + 1, 0
    while start < len(ends):
        stop = int(stops[min(np.searchsorted(stops, start + size), len(stops) - 1)])
        yield slice(start, stop)
        start = stop


def find_links(observations: NestedArrays, next_observations: NestedArrays) -> np.ndarray:
    """Return which next observations equal the observation of the following row, bool [N - 1].

    Args:
        observations, next_observations: nested arrays [N, ...].
    """
    linked = np.ones(len(nested.first_leaf(observations)) - 1, bool)
    for after, seen in zip(nested.leaves(next_observations), nested.leaves(observations), strict=True):
        x, y = after[:-1], seen[1:]
        same = (x == y) | ((x != x) & (y != y))
        linked &= same.all(axis=tuple(range(1, same.ndim)))
    return linked


def without_next(
    observations: NestedArrays,
    actions: NestedArrays,
    rewards: np.ndarray,
    terminated: bool,
    truncated: bool,
    extra: dict[str, Any],
    report: LossReport,
    episode_id: object,
    infos: dict[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Return arguments of `SingleAgentEpisode.from_arrays` for T steps, of which the final observation may be unknown.

    Without it, a terminated episode repeats its last observation, and any other episode loses its last step. Both are
    reported. None is returned if no step is left.

    Args:
        observations: nested arrays [T, ...], or [T + 1, ...] if the final observation is known.
        actions: nested arrays [T, ...].
        rewards: float [T].
        terminated: whether the last step terminated the episode.
        truncated: whether the last step was truncated.
        extra: extra model outputs, nested arrays [T, ...] by name.
        report: gets what is lost.
        episode_id: id or position of the episode for the report.
        infos: nested arrays by key, [T, ...] or [T + 1, ...], infos of the observations from the first one on.
    """
    is_last_known = len(nested.first_leaf(observations)) > len(rewards)
    if terminated and not is_last_known:
        report.add("the last observation", "there is none after a step that terminates", episode_id)
        observations = nested.map_leaves(lambda leaf: np.concatenate([leaf, leaf[-1:]]), observations)
    elif not is_last_known:
        report.add("the last step", "there is no observation after it", episode_id)
        actions, rewards, extra = nested.map_leaves(lambda leaf: leaf[:-1], (actions, rewards, extra))
    if not len(rewards):
        return None
    dicts = None
    if infos:
        dicts = infos_from(infos, len(nested.first_leaf(infos)))
        dicts = (dicts + [{}] * (len(rewards) + 1))[: len(rewards) + 1]
    arrays = {"observations": observations, "actions": actions, "rewards": rewards, "extra_model_outputs": extra}
    return arrays | {"terminated": terminated, "truncated": truncated, "infos": dicts}


def transitions_of(
    episodes: Iterable[SingleAgentEpisode],
    name: str,
    report: LossReport,
    mapping: str | None = None,
    **keeps: Collection[str],
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
