"""`MeanStdFilter`: connector that normalizes observations by their running mean and standard deviation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from connectors.moments import Moments
from connectors.rewriting.rewriter import ObservationRewriter
from episodes.data_types import NestedArrays
from episodes.errors import InvalidArgument, ShapeMismatch, StateMismatch
from episodes.tracks import nested
from episodes.tracks.nested import as_any_array
from episodes.tracks.space_kinds import is_box, is_nested, joined_parts, map_space, parts_of
from episodes.tracks.validation import checked_flag, checked_number, reading_state

if TYPE_CHECKING:
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["MeanStdFilter"]

_EPSILON = 1e-8
K = TypeVar("K")


Statistics = dict[str, Moments]  # by path of the leaf


class MeanStdFilter(ObservationRewriter):
    """Connector that normalizes Box observations: it subtracts their running mean and divides by their standard
    deviation.

    Statistics are kept per element, in float64. A row of observations first updates the statistics and is then
    normalized. With one observation seen it is only centered. A filter without statistics normalizes nothing: it raises
    `StateMismatch` unless it learns from the row. Normalized parts are float32, and parts in other spaces stay
    unchanged.

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

    Raises:
        InvalidArgument: `clip_by_value` is not a number of at least 0.
        WrongType: a flag is not a bool.
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
        """Settings of the filter by name, to compare pipelines.

        `multi_agent` and `update_stats`, which evaluation may change, are left out.
        """
        return {name: value for name, value in super().settings.items() if name not in ("update_stats", "multi_agent")}

    @property
    def is_empty_filter(self) -> bool:  # type: ignore[override]
        """Whether the filter has no statistics yet, because it has not seen any observation it could normalize."""
        space = self.input_observation_space
        return (space is None or bool(_boxes(space))) and not any(known.count for known in self._total.values())

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Return the space of the normalized observations: each Box becomes a float32 Box that is bounded by the clip
        limits.
        """
        return _normalize_space(input_observation_space, np.inf if self.clip_by_value is None else self.clip_by_value)

    def check_place(self) -> None:
        """Raise `InvalidArgument` if the filter has `multi_agent=True`, which is for `joint=` of multi-agent pipelines
        only.
        """
        if self.multi_agent:
            raise InvalidArgument(
                f"{self.name}(multi_agent=True) has statistics for each agent: give it as joint=[...]; in the pieces "
                "of a module's pipeline that is ForEachAgent(MeanStdFilter)"
            )

    def rewrite(
        self, observations: NestedArrays, episodes: Sequence[SingleAgentEpisode] | None = None, update: bool = True
    ) -> Any:
        """Return the observations [N, ...] normalized by the running statistics, which first learn from them if
        `update` is true.

        Args:
            observations: nested arrays [N, ...].
            episodes: not used.
            update: whether the statistics learn from the observations, if `update_stats` is true too.

        Raises:
            InvalidArgument: the filter has `multi_agent=True`.
            ShapeMismatch: the observations have another shape than earlier ones.
            StateMismatch: the filter has no statistics, and does not learn from these observations.
        """
        self.check_place()
        rows = nested.flatten(observations)
        filtered = self._filtered_paths(rows)
        if update and self.update_stats:
            self._update_statistics({path: np.asarray(rows[path]) for path in filtered})
        if any(self._lacks(path) and len(rows[path]) for path in filtered):
            raise StateMismatch(
                f"{self.name} has seen no observation, and does not learn from these: restore its state "
                "(Actor.load, or set_state of its pipeline), or sample with explore=True first"
            )
        return self.normalized(observations)

    def normalized(self, observations: NestedArrays) -> Any:
        """Return the observations [N, ...] normalized by the running statistics, or as float32 if there are none."""
        rows = nested.flatten(observations)
        for path in self._filtered_paths(rows):
            rows[path] = self._normalize(path, as_any_array(rows[path]))
        return nested.unflatten_like(observations, list(rows.values()))

    def _filtered_paths(self, rows: dict[str, Any]) -> list[str]:
        """Return the paths of the parts of observations to normalize: Boxes of the space, or floats if no space is
        known.
        """
        space = self.input_observation_space
        if space is None:
            return [path for path, leaf in rows.items() if np.asarray(leaf).dtype.kind == "f"]
        boxes = _boxes(space)
        return [path for path in rows if path in boxes]

    def _update_statistics(self, rows: dict[str, np.ndarray]) -> None:
        """Add observations to the statistics. Raise `ShapeMismatch` before any change if their shape differs from that
        of earlier ones.
        """
        for path, leaf in rows.items():
            known = self._total.get(path)
            if known is not None and known.mean.shape != leaf.shape[1:]:
                raise ShapeMismatch(
                    f"{self.name}: {path or 'observations'} have shape {leaf.shape[1:]}, earlier observations had "
                    "shape "
                    f"{known.mean.shape}; use a separate filter for each shape"
                )
        for path, leaf in rows.items():
            moments = Moments.of(leaf)
            self._own[path] = self._own[path].merge(moments) if path in self._own else moments
            synced = self._synced.get(path)
            self._total[path] = self._own[path] if synced is None else synced.merge(self._own[path])
        self._affine = {}

    def _lacks(self, path: str) -> bool:
        """Return True if there are no statistics of the part of observations at `path`."""
        known = self._total.get(path)
        return known is None or not known.count

    def _normalize(self, path: str, rows: np.ndarray) -> np.ndarray:
        """Return rows of one part of the observations, the part at `path`, normalized and clipped as float32."""
        affine = self._affine  # another thread that samples from replay may normalize, too
        if path not in affine:
            if self._lacks(path):
                return rows.astype(np.float32)
            known = self._total[path]
            affine[path] = (known.mean, 1 / (known.deviation() + _EPSILON))
        mean, scale = affine[path]
        values = rows - mean if self.de_mean_to_zero else rows.astype(np.float64)
        if self.de_std_to_one:
            values *= scale
        if self.clip_by_value is not None:
            np.clip(values, -self.clip_by_value, self.clip_by_value, out=values)
        return values.astype(np.float32)

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: object,
    ) -> dict[str, Any]:
        """Return two sets of statistics: "synced" of the observations before the last synchronization of all copies,
        and "own" of the later observations.
        """
        return {"synced": _state_of(self._synced), "own": _state_of(self._own)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the statistics that `get_state` or `merge_states` returned.

        Raises:
            StateMismatch: the state is malformed, or the shapes are not those of the space. Nothing is changed.
        """
        with reading_state(type(self)):
            synced, unsynced = _from_state(state["synced"]), _from_state(state["own"])
        if self.input_observation_space is not None:
            boxes = _boxes(self.input_observation_space)
            for path, known in (*synced.items(), *unsynced.items()):
                if boxes.get(path) != known.mean.shape:
                    raise StateMismatch(
                        f"{self.name}: the state has {path or 'observations'} of shape {known.mean.shape}, "
                        f"the space {boxes.get(path)}; give the state of a filter of the same space"
                    )
        self._synced, self._own, self._total = synced, unsynced, merge_statistics([synced, unsynced])
        self._affine = {}

    def reset_state(self) -> None:
        """Discard all learned statistics."""
        self._synced, self._own, self._total = {}, {}, {}
        self._affine = {}

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Return one state that combines the statistics of several copies of this filter.

        Observations before the last synchronization, which all copies have counted, count once.
        """
        distinct: list[Statistics] = []
        for state in states:
            synced = _from_state(state["synced"])
            if not any(_equal(synced, known) for known in distinct):
                distinct.append(synced)
        merged = merge_statistics([*distinct, *(_from_state(state["own"]) for state in states)])
        return {"synced": _state_of(merged), "own": {}}


def _boxes(space: gym.Space) -> dict[str, tuple[int, ...]]:
    """Return the shape of each Box in a nested space, by its path."""
    parts = nested.flatten(_structure(space))
    return {path: part.shape for path, part in parts.items() if is_box(part)}


def _structure(space: gym.Space) -> Any:
    """Return a space as nested dicts and tuples of its parts, like the structure of its items."""
    return joined_parts(space, map(_structure, parts_of(space).values())) if is_nested(space) else space


def _normalize_space(space: gym.Space, bound: float) -> gym.Space:
    """Return a space in which each Box is replaced by a float32 Box with the bounds -`bound` and `bound`."""

    def normalized(part: gym.Space) -> gym.Space:
        return spaces.Box(-bound, bound, part.shape, np.float32) if is_box(part) else part

    return map_space(normalized, space)


def merge_statistics(parts: Sequence[Mapping[K, Moments]]) -> dict[K, Moments]:
    """Return the statistics, by path, of the observations of several filters together."""
    paths = dict.fromkeys(path for part in parts for path in part)
    return {path: reduce(Moments.merge, (part[path] for part in parts if path in part)) for path in paths}


def _equal(a: Statistics, b: Statistics) -> bool:
    return a.keys() == b.keys() and all(a[path].equals(b[path]) for path in a)


def _state_of(statistics: Statistics) -> dict[str, Any]:
    return {path: known.get_state() for path, known in statistics.items()}


def _from_state(state: dict[str, Any]) -> Statistics:
    return {path: Moments.from_state(known) for path, known in state.items()}
