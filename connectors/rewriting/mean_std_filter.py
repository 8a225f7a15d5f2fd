"""`MeanStdFilter`: normalization of observations by their running mean and standard deviation."""

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
    """Count, mean and sum of squared deviations of arrays of one shape, for means and standard deviations.

    Two sets of moments are combined exactly (parallel variance, Chan et al. 1979).
    """

    count: int
    mean: np.ndarray  # [...] float64
    squares: np.ndarray  # [...] float64, sums of squared deviations from the mean

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> Moments:
        """Return the moments of an empty set of items."""
        return cls(0, np.zeros(shape), np.zeros(shape))

    @classmethod
    def of(cls, items: np.ndarray) -> Moments:
        """Return the moments, over the first axis, of items [n, ...]."""
        if not len(items):
            return cls.empty(items.shape[1:])
        mean = items.mean(0, dtype=np.float64)
        deviations = items - mean
        return cls(len(items), mean, np.einsum("n...,n...->...", deviations, deviations))

    def joined(self, second: Moments) -> Moments:
        """Return the moments of two sets of items together."""
        if not self.count or not second.count:
            return second if second.count else self
        count = self.count + second.count
        difference = second.mean - self.mean
        share = second.count / count
        squares = self.squares + second.squares + difference * difference * (self.count * share)
        return Moments(count, self.mean + difference * share, squares)

    def deviation(self) -> np.ndarray:
        """Return the sample standard deviation [...] (n - 1), or ones for fewer than two items."""
        return np.sqrt(self.squares / (self.count - 1)) if self.count > 1 else np.ones_like(self.mean)

    def get_state(self) -> dict[str, Any]:
        """Return the moments as a dict that shares no memory with this object."""
        return {"count": self.count, "mean": self.mean.copy(), "squares": self.squares.copy()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Moments:
        """Return the moments that `get_state` stored in `state`, as a copy."""
        return cls(int(state["count"]), np.array(state["mean"], np.float64), np.array(state["squares"], np.float64))

    def equals(self, second: Moments) -> bool:
        """Return True if counts, means and deviations are equal."""
        same_mean = np.array_equal(self.mean, second.mean)
        return self.count == second.count and same_mean and np.array_equal(self.squares, second.squares)


Statistics = dict[str, Moments]  # by path of the leaf


class MeanStdFilter(ObservationRewriter):
    """Connector that subtracts from each Box observation its running mean, and divides by the standard deviation.

    Statistics are kept per element, in float64. A row of observations first updates the statistics and is then
    normalized. With one observation seen it is only centered. Normalized parts are float32, and parts in other spaces
    stay unchanged.

    `merge_states` of copies that were last synchronized to one state is exact: the result equals one filter that has
    seen all observations.

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        de_mean_to_zero: subtract the mean.
        de_std_to_one: divide by the standard deviation.
        clip_by_value: limit of the normalized values; None for no limit.
        update_stats: learn statistics from the observations.
        multi_agent: use statistics per agent. Only for `joint=` of multi-agent pipelines.
        name: name of the connector in its pipeline.
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
        self._synced: Statistics = {}  # statistics of the last merged state
        self._own: Statistics = {}  # statistics of later observations
        self._total: Statistics = {}  # both together
        self._affine: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # (mean, 1 / deviation) by path, made when needed
        super().__init__(input_observation_space, input_action_space, name=name)

    @property
    def settings(self) -> dict[str, Any]:
        """All arguments except `update_stats`, which evaluation switches off, and `multi_agent`."""
        return {name: value for name, value in super().settings.items() if name not in ("update_stats", "multi_agent")}

    @property
    def is_empty_filter(self) -> bool:  # type: ignore[override]
        """Whether the filter has not seen any observation, so that it has no statistics yet."""
        return not any(known.count for known in self._total.values())

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Return the observation space with Boxes as float32, bounded by the clip limits."""
        return _normalised_space(input_observation_space, np.inf if self.clip_by_value is None else self.clip_by_value)

    def check_place(self) -> None:
        if self.multi_agent:
            raise InvalidArgument(
                f"{self.name}(multi_agent=True) has statistics for each agent: give it as joint=[...]; in the pieces "
                "of a module's pipeline that is ForEachAgent(MeanStdFilter)"
            )

    def rewrite(self, observations: Any, episodes: Any = None, update: bool = True) -> Any:
        """Return the normalized observations, nested arrays [N, ...]. See `ObservationRewriter.rewrite`."""
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
            moments = Moments.of(leaf)
            self._own[path] = self._own[path].joined(moments) if path in self._own else moments
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
        """Return two statistics: up to the last synchronization of all copies, and since then."""
        return {"synced": _state_of(self._synced), "own": _state_of(self._own)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` or `merge_states` returned.

        Raises:
            StateMismatch: the shapes are not those of the space.
        """
        synced, unsynced = _from_state(state["synced"]), _from_state(state["own"])
        if self.input_observation_space is not None:
            boxes = _boxes(self.input_observation_space)
            for path, known in (*synced.items(), *unsynced.items()):
                if boxes.get(path) != known.mean.shape:
                    raise StateMismatch(
                        f"{self.name}: the state has {path or 'observations'} of shape {known.mean.shape}, "
                        f"the space {boxes.get(path)}; give the state of a filter of the same space"
                    )
        self._synced, self._own, self._total = synced, unsynced, _joined([synced, unsynced])
        self._affine.clear()

    def reset_state(self) -> None:
        """Forget all statistics."""
        self._synced, self._own, self._total = {}, {}, {}
        self._affine.clear()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Return one state for the statistics of all copies. Statistics that all copies share count once."""
        distinct: list[Statistics] = []
        for state in states:
            synced = _from_state(state["synced"])
            if not any(_equal(synced, known) for known in distinct):
                distinct.append(synced)
        merged = _joined([*distinct, *(_from_state(state["own"]) for state in states)])
        return {"synced": _state_of(merged), "own": {}}


def _boxes(space: gym.Space) -> dict[str, tuple[int, ...]]:
    """Return the shape of each Box in a nested space, by its path."""
    parts = nested.flatten(_structure(space))
    return {path: part.shape for path, part in parts.items() if isinstance(part, spaces.Box)}


def _structure(space: gym.Space) -> Any:
    """Return a Dict or Tuple space as nested dicts and tuples of its spaces."""
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
