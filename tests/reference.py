"""A slow reference of episodes: plain dicts from step to item."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from episodes import EpisodePack

MISSING = object()


def numbered(pack: Any) -> Any:
    """Return a pack whose ids are numbers, to compare the episodes of two runs. Ids differ in each run."""
    return pack.replace(ids=[str(i) for i in range(len(pack))], multi_agent_episode_ids=None)


def numbered_agents(episodes: Any) -> Any:
    """Return a pack of the agents' episodes in multi-agent episodes, whose ids are numbers."""
    agents = [agent for episode in episodes for agent in episode.agent_episodes.values()]
    return numbered(EpisodePack.from_episodes(agents))


@dataclass
class PlainEpisode:
    """Items by step: -L .. T - 1 for step tracks, -L .. T for observations and infos."""

    id_: str
    observations: dict[int, Any]
    actions: dict[int, Any]
    rewards: dict[int, Any]
    infos: dict[int, Any]
    extra: dict[str, dict[int, Any]] = field(default_factory=dict)
    t_started: int = 0
    terminated: bool = False
    truncated: bool = False

    @property
    def num_steps(self) -> int:
        return sum(step >= 0 for step in self.rewards)

    @property
    def lookback(self) -> int:
        return sum(step < 0 for step in self.rewards)

    def track(self, name: str) -> dict[int, Any]:
        return self.extra[name] if name in self.extra else getattr(self, name)

    def sub(self, start: int, stop: int, lookback: int) -> PlainEpisode:
        """Return the steps [start, stop) with up to `lookback` items before."""
        begin = max(start - lookback, -self.lookback)
        steps = lambda track: {s - start: track[s] for s in range(begin, stop)}  # noqa: E731
        observed = lambda track: {s - start: track[s] for s in range(begin, stop + 1)}  # noqa: E731
        ends = stop == self.num_steps
        return replace(
            self,
            observations=observed(self.observations),
            actions=steps(self.actions),
            rewards=steps(self.rewards),
            infos=observed(self.infos),
            extra={key: steps(track) for key, track in self.extra.items()},
            t_started=self.t_started + start,
            terminated=ends and self.terminated,
            truncated=ends and self.truncated,
        )


def step_of(index: int, size: int, neg_index_as_lookback: bool) -> int:
    """Return the step of an index in a track of `size` items from step 0 on."""
    return index if index >= 0 or neg_index_as_lookback else size + index


def read(track: dict[int, Any], indices: Any, neg: bool = False, fill: Any = MISSING) -> Any:
    """Return one item for an int, else a list of items. Missing items raise IndexError, or give `fill`."""
    size = sum(step >= 0 for step in track)
    if isinstance(indices, int | np.integer):
        return _item(track, step_of(int(indices), size, neg), fill)
    if indices is None:
        indices = slice(None)
    if not isinstance(indices, slice):
        return [_item(track, step_of(int(i), size, neg), fill) for i in indices]
    steps = _steps_of_slice(track, indices, size, neg)
    if fill is not MISSING:
        return [_item(track, step, fill) for step in steps]
    return [track[step] for step in _clipped(steps, track)]


def _item(track: dict[int, Any], step: int, fill: Any) -> Any:
    if step in track:
        return track[step]
    if fill is MISSING:
        raise IndexError(step)
    return fill


def _steps_of_slice(track: dict[int, Any], s: slice, size: int, neg: bool) -> range:
    step = 1 if s.step is None else s.step
    first, last = (0, size) if step > 0 else (size - 1, -1)
    first = first if s.start is None else step_of(s.start, size, neg)
    last = last if s.stop is None else step_of(s.stop, size, neg)
    return range(first, last, step)


def _clipped(steps: range, track: dict[int, Any]) -> Iterable[int]:
    """Return the steps with bounds clipped as Python clips a list's: a start past an end moves to that end."""
    low, high = min(track, default=0), max(track, default=-1)
    if steps.step > 0:
        return range(max(steps.start, low), min(steps.stop, high + 1), steps.step)
    return range(min(steps.start, high), max(steps.stop, low - 1), steps.step)
