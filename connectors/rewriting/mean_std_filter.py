"""Observations with mean 0 and deviation 1, as far as is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from connectors.rewriting.rewriter import ObservationRewriter
from episodes.errors import InvalidArgument, ShapeMismatch, StateMismatch
from episodes.tracks import nested
from episodes.tracks.nested import as_any_array
from episodes.tracks.validation import checked_flag, checked_number

__all__ = ["MeanStdFilter"]

_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class Moments:
    """What is known of `count` items of one shape. Joining is exact (Chan et al. 1979, parallel variance)."""

    count: int
    mean: np.ndarray  # [...] float64
    squares: np.ndarray  # [...] float64, sums of squared deviations from the mean

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> Moments:
        """Nothing is known yet."""
        return cls(0, np.zeros(shape), np.zeros(shape))

    @classmethod
    def of(cls, items: np.ndarray) -> Moments:
        """The moments of items [n, ...]."""
        if not len(items):
            return cls.empty(items.shape[1:])
        mean = items.mean(0, dtype=np.float64)
        deviations = items - mean
        return cls(len(items), mean, np.einsum("n...,n...->...", deviations, deviations))

    def joined(self, other: Moments) -> Moments:
        """The moments of both streams together."""
        if not self.count or not other.count:
            return other if other.count else self
        count = self.count + other.count
        difference = other.mean - self.mean
        share = other.count / count
        squares = self.squares + other.squares + difference * difference * (self.count * share)
        return Moments(count, self.mean + difference * share, squares)

    def deviation(self) -> np.ndarray:
        """The standard deviation [...], with n - 1; 1 where fewer than two items are known."""
        return np.sqrt(self.squares / (self.count - 1)) if self.count > 1 else np.ones_like(self.mean)

    def get_state(self) -> dict[str, Any]:
        """A dict that shares no memory with this."""
        return {"count": self.count, "mean": self.mean.copy(), "squares": self.squares.copy()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Moments:
        """What `get_state` gave, copied."""
        return cls(int(state["count"]), np.array(state["mean"], np.float64), np.array(state["squares"], np.float64))

    def equals(self, other: Moments) -> bool:
        """True when both know the same."""
        same_mean = np.array_equal(self.mean, other.mean)
        return self.count == other.count and same_mean and np.array_equal(self.squares, other.squares)


Statistics = dict[str, Moments]  # by path of the leaf


class MeanStdFilter(ObservationRewriter):
    """Takes the running mean off each Box part of the observations and divides by the running deviation.

    Statistics are kept per leaf and element, in float64. A row of observations is learned from first, then normalised;
    with a single observation known it is only centered. Parts that are no Box pass as they are; normalised ones are
    float32.

    `merge_states` of copies that were last synchronised to one state gives what one filter would know that had seen
    everything each copy has seen, exactly.

    Args:
        de_mean_to_zero: take the mean off.
        de_std_to_one: divide by the deviation.
        clip_by_value: bound of the normalised values; None for none.
        update_stats: learn from the observations.
        multi_agent: for `joint=` of pipelines of several agents: each agent has statistics of its own.
    """

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        de_mean_to_zero: bool = True,
        de_std_to_one: bool = True,
        clip_by_value: float | None = 10.0,
        update_stats: bool = True,
        multi_agent: bool = False,
        name: str | None = None,
    ) -> None:
        self.multi_agent = checked_flag("multi_agent", multi_agent)
        self.de_mean_to_zero = checked_flag("de_mean_to_zero", de_mean_to_zero)
        self.de_std_to_one = checked_flag("de_std_to_one", de_std_to_one)
        self.clip_by_value = None if clip_by_value is None else checked_number("clip_by_value", clip_by_value, 0.0)
        self.update_stats = checked_flag("update_stats", update_stats)
        self._synced: Statistics = {}  # what a merged state gave
        self._own: Statistics = {}  # what was seen since
        self._total: Statistics = {}  # both
        self._affine: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # (mean, 1 / deviation) by path, made when needed
        super().__init__(input_observation_space, input_action_space, name=name)

    @property
    def settings(self) -> dict[str, Any]:
        """All arguments but `update_stats`, which is off where it is evaluated, and the place (`multi_agent`)."""
        return {name: value for name, value in super().settings.items() if name not in ("update_stats", "multi_agent")}

    @property
    def is_empty_filter(self) -> bool:  # type: ignore[override]
        """Whether no observation has been seen."""
        return not any(known.count for known in self._total.values())

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Box parts become float32 within the clip bounds."""
        return _normalised_space(input_observation_space, np.inf if self.clip_by_value is None else self.clip_by_value)

    def check_place(self) -> None:
        """See `ObservationRewriter.check_place`."""
        if self.multi_agent:
            raise InvalidArgument(
                f"{self.name}(multi_agent=True) has statistics for each agent: give it as joint=[...]; in the pieces "
                "of a module's pipeline that is ForEachAgent(MeanStdFilter)"
            )

    def rewrite(self, observations: Any, episodes: Any = None, update: bool = True) -> Any:
        """The normalised observations, nested arrays [N, ...]; see `ObservationRewriter`."""
        self.check_place()
        rows = nested.flatten(observations)
        filtered = self._filtered_paths(rows)
        if update and self.update_stats:
            self._learn({path: np.asarray(rows[path]) for path in filtered})
        for path in filtered:
            rows[path] = self._normalised(path, as_any_array(rows[path]))
        return nested.unflatten_like(observations, list(rows.values()))

    def _filtered_paths(self, rows: dict[str, Any]) -> list[str]:
        space = self.input_observation_space
        if space is None:
            return [path for path, leaf in rows.items() if np.asarray(leaf).dtype.kind == "f"]
        boxes = _boxes(space)
        return [path for path in rows if path in boxes]

    def _learn(self, rows: dict[str, np.ndarray]) -> None:
        for path, leaf in rows.items():
            known = self._total.get(path)
            if known is not None and known.mean.shape != leaf.shape[1:]:
                raise ShapeMismatch(
                    f"{self.name}: observations {path or 'that'} have shape {leaf.shape[1:]}, those before had "
                    f"{known.mean.shape}; use a filter of its own for them"
                )
        for path, leaf in rows.items():
            seen = Moments.of(leaf)
            self._own[path] = self._own[path].joined(seen) if path in self._own else seen
            synced = self._synced.get(path)
            self._total[path] = self._own[path] if synced is None else synced.joined(self._own[path])
        self._affine.clear()

    def _normalised(self, path: str, rows: np.ndarray) -> np.ndarray:
        if path not in self._affine:
            known = self._total.get(path) or Moments.empty(rows.shape[1:])
            self._affine[path] = (known.mean, 1 / (known.deviation() + _EPSILON))
        mean, scale = self._affine[path]
        values = rows - mean if self.de_mean_to_zero else rows.astype(np.float64)
        if self.de_std_to_one:
            values *= scale
        if self.clip_by_value is not None:
            np.clip(values, -self.clip_by_value, self.clip_by_value, out=values)
        return values.astype(np.float32)

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """What was learned, apart: up to the last synchronisation, and since."""
        return {"synced": _state_of(self._synced), "own": _state_of(self._own)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` or `merge_states` gave; StateMismatch when its shapes are not the space's."""
        synced, own = _from_state(state["synced"]), _from_state(state["own"])
        if self.input_observation_space is not None:
            boxes = _boxes(self.input_observation_space)
            for path, known in (*synced.items(), *own.items()):
                if boxes.get(path) != known.mean.shape:
                    raise StateMismatch(
                        f"{self.name}: the state has {path or 'observations'} of shape {known.mean.shape}, "
                        f"the space {boxes.get(path)}; give the state of a filter of the same space"
                    )
        self._synced, self._own, self._total = synced, own, _joined([synced, own])
        self._affine.clear()

    def reset_state(self) -> None:
        """Forget everything."""
        self._synced, self._own, self._total = {}, {}, {}
        self._affine.clear()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """One state that has seen what all have seen; what they were synchronised to counts once."""
        distinct: list[Statistics] = []
        for state in states:
            synced = _from_state(state["synced"])
            if not any(_equal(synced, other) for other in distinct):
                distinct.append(synced)
        merged = _joined([*distinct, *(_from_state(state["own"]) for state in states)])
        return {"synced": _state_of(merged), "own": {}}


def _boxes(space: gym.Space) -> dict[str, tuple[int, ...]]:
    """The shapes of the Box parts of a space by path."""
    parts = nested.flatten(_structure(space))
    return {path: part.shape for path, part in parts.items() if isinstance(part, spaces.Box)}


def _structure(space: gym.Space) -> Any:
    """The space as a nested value whose leaves are spaces."""
    if isinstance(space, spaces.Dict):
        return {key: _structure(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_structure(part) for part in space.spaces)
    return space


def _normalised_space(space: gym.Space, bound: float) -> gym.Space:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _normalised_space(part, bound) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_normalised_space(part, bound) for part in space.spaces])
    return spaces.Box(-bound, bound, space.shape, np.float32) if isinstance(space, spaces.Box) else space


def _joined(parts: Sequence[Statistics]) -> Statistics:
    paths = dict.fromkeys(path for part in parts for path in part)
    return {path: reduce(Moments.joined, (part[path] for part in parts if path in part)) for path in paths}


def _equal(a: Statistics, b: Statistics) -> bool:
    return a.keys() == b.keys() and all(a[path].equals(b[path]) for path in a)


def _state_of(statistics: Statistics) -> dict[str, Any]:
    return {path: known.get_state() for path, known in statistics.items()}


def _from_state(state: dict[str, Any]) -> Statistics:
    return {path: Moments.from_state(known) for path, known in state.items()}
