"""Views: functions that compute the policy's inputs from an observation and the steps before it.

A view is a function `view(history) -> {column: nested arrays [B, ...]}` of a `History`, the B observations and
everything before them. It needs no base class and has no state. One bound `Views` object serves acting, learning, the
value function at all T + 1 observations, every `new_<column>`, padded sequences, and batches from replay.

>>> import numpy as np
>>> from gymnasium import spaces
>>> def speed(history):
...     now, before = history.observations(2)[:, 1], history.observations(2)[:, 0]
...     return {"speed": (now - before) * history.observed(2)[:, :1]}
>>> views = Views([speed], spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2))
>>> views.lookback, views.spaces["speed"].shape
(1, (3,))

Five rules make the policy learn from what it saw while acting:

1. Views read episodes as they were recorded, before any connector wrote to rewards or observations.
2. While acting, a history goes back as far as the lookback of the next chunk, and no further.
3. Steps before the start of an episode are zeros.
4. Rows are independent of each other, and nothing is written: a view returns new arrays.
5. Learning rejects a chunk whose lookback is shorter than that of the views.

The library keeps rules 1, 2, 3 and 5. `Views` checks rule 4 on samples when it is created, and
`connectors.testing.check_view` checks all rules in environments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np

from connectors.fingerprint import settings_of
from connectors.views.samples import SampleHistory, fits, space_of
from episodes.columns import Columns
from episodes.errors import EpisodeError, InvalidArgument, ShapeMismatch, WrongType
from episodes.history import History, HistorySpaces, OtherObservations, zeroed
from episodes.tracks import nested
from episodes.tracks.validation import checked_items

__all__ = ["View", "Views"]


class View(Protocol):
    """Interface of views: functions that compute the policy's input columns [B, ...] from a history of B
    observations.
    """

    def __call__(self, history: History, /) -> Mapping[str, Any]: ...


_NUM_SAMPLES = 3  # rows of the run on samples


@runtime_checkable
class ViewWithSpaces(Protocol):
    """View that also declares the spaces of its output columns, with bounds, for given input spaces."""

    def spaces(self, input_spaces: HistorySpaces) -> Mapping[str, gym.Space]: ...


class Views:
    """Sequence of views (functions that compute policy inputs) bound to observation and action spaces, and called as
    one function.

    It is immutable. The first view reads the stored observations. Each later view reads the "obs" of the view before
    it. Actions, rewards and times are always those of the episode. A view without "obs" leaves it unchanged, and
    columns of earlier views are kept.

    The views are run once on samples of the spaces. This determines their columns, spaces and lookback, and finds
    errors.

    Args:
        views: the views in order. If there are none, the stored observations are returned.
        observation_space: space of the stored observations.
        action_space: space of the stored actions.

    Attributes:
        given: the spaces of the stored observations and actions.
        spaces: the spaces of the columns by name.
        lookback: the number of steps back that the views read. A chunk to learn from needs at least this lookback.

    Raises:
        WrongType: a view returns no columns, or fails on samples.
        ShapeMismatch: a column has another number of rows than the history, or is not in its declared space.
        InvalidArgument: the rows of a view depend on each other or on earlier calls; or a space is missing.
    """

    def __init__(
        self,
        views: Iterable[View] = (),
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
    ) -> None:
        self.views = tuple(checked_items("views", views, "views"))
        self.given = HistorySpaces(observation_space, action_space)
        self.spaces: dict[str, gym.Space | None] = {Columns.OBS: observation_space}
        self.lookback = 0
        self._input_spaces = [self.given]  # the spaces that each view is given
        for count, view in enumerate(self.views, 1):
            self._bind(count, view)

    def __call__(self, history: History) -> dict[str, Any]:
        """Compute all input columns of the policy, nested arrays [B, ...], for a history of B observations."""
        return self.apply_first(len(self.views), history)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the policy's input columns."""
        return tuple(self.spaces)

    @property
    def observation_space(self) -> gym.Space | None:
        """Space of the column "obs" after all views. None if it is unknown."""
        return self.spaces[Columns.OBS]

    def __len__(self) -> int:
        return len(self.views)

    def __repr__(self) -> str:
        return f"Views({' > '.join(map(name_of, self.views))})"

    def apply_first(self, count: int, history: History) -> dict[str, Any]:
        """Return the policy's input columns for a history, computed by only the first `count` views."""
        if not count:
            return {Columns.OBS: history.observations()}
        if count == 1:
            columns = dict(self.views[0](history))
            return columns if Columns.OBS in columns else {Columns.OBS: history.observations(), **columns}
        later_history = _HistoryAfterViews(self, count - 1, history)
        return {**later_history.columns, **self.views[count - 1](later_history)}

    def input_spaces_of(self, count: int) -> HistorySpaces:
        """Return the observation and action space that the view at index `count` reads."""
        return self._input_spaces[count]

    def _bind(self, count: int, view: View) -> None:
        """Run view number `count` on samples, check its columns, and store their spaces and its lookback.

        Raises:
            WrongType: the view raises an error on samples.
            ShapeMismatch: a column has not one row per observation, or not the space that the view declares.
        """
        name, input_spaces = name_of(view), self._input_spaces[-1]
        declared = dict(view.spaces(input_spaces)) if isinstance(view, ViewWithSpaces) else {}
        samples = SampleHistory(self.given, np.arange(_NUM_SAMPLES))
        columns = self._run_on_samples(count, name, samples)
        self.lookback = max(self.lookback, samples.reach)
        self._check_rows(count, name, columns)
        for column, space in declared.items():
            if column not in columns or not fits(space, columns[column]):
                description = nested.describe(columns.get(column))
                raise ShapeMismatch(
                    f"view {name}: column {column!r} is {description}, but the view declares the space {space}"
                )
        self.spaces = {**self.spaces, **{column: space_of(value) for column, value in columns.items()}, **declared}
        self._input_spaces.append(HistorySpaces(self.spaces[Columns.OBS], input_spaces.action_space))

    def _run_on_samples(self, count: int, name: str, samples: SampleHistory) -> dict[str, Any]:
        """Call a view on histories that are sampled from the spaces, and return its columns.

        Args:
            count: position of the view, where 1 is the first. It reads the outputs of the `count - 1` views before it.
            name: the view's name, for error messages.
            samples: the histories of B observations.

        Raises:
            WrongType: the view fails.
            ShapeMismatch: a column does not have B rows.
        """
        try:
            columns = dict(
                self.views[count - 1](samples if count == 1 else _HistoryAfterViews(self, count - 1, samples))
            )
        except EpisodeError:
            raise
        except Exception as error:
            raise WrongType(f"view {name} fails on samples of the spaces: {type(error).__name__}: {error}") from error
        for column, value in columns.items():
            sizes = {np.shape(leaf)[:1] for leaf in nested.leaves(value)}
            if sizes != {(len(samples),)}:
                raise ShapeMismatch(
                    f"view {name}: column {column!r} has {sorted(size[0] if size else 1 for size in sizes)} rows for "
                    f"{len(samples)} observations; give each observation a row"
                )
        return columns

    def _check_rows(self, count: int, name: str, columns: dict[str, Any]) -> None:
        """Raise `InvalidArgument` if a view's result for one observation depends on other observations of the batch or
        on earlier calls.
        """
        few = self._run_on_samples(count, name, SampleHistory(self.given, np.arange(1, _NUM_SAMPLES)))
        for column, value in columns.items():
            if not nested.equal(nested.take(value, slice(1, None)), few[column]):
                raise InvalidArgument(
                    f"view {name}: rows of column {column!r} depend on other rows or on earlier calls; compute each "
                    "row from the history of this row alone, without a state"
                )


def name_of(view: object) -> str:
    """Return the name of a view: its attribute `name`, its function name, or the name of its class."""
    name = getattr(view, "name", None) or getattr(view, "__name__", None)
    return name if isinstance(name, str) else type(view).__name__


def settings_of_views(views: Iterable[Any]) -> list[Any]:
    """Return the name and the settings of each view as plain values, to compare views."""
    return [[name_of(view), view.settings if hasattr(view, "settings") else settings_of(view)] for view in views]


class _HistoryAfterViews(OtherObservations):
    """History whose observations are the outputs of the first `count` views, as input of the next view."""

    def __init__(self, views: Views, count: int, source: History) -> None:
        super().__init__(source, views.input_spaces_of(count))
        self._views, self._count = views, count

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Columns that the first `count` views compute."""
        return self._views.apply_first(self._count, self._source)

    def newest(self) -> Any:
        return self.columns[Columns.OBS]

    def last_observations(self, k: int) -> Any:
        flat = self._views.apply_first(self._count, self._source.window(k))[Columns.OBS]
        items = nested.map_leaves(lambda leaf: leaf.reshape(-1, k, *leaf.shape[1:]), flat)
        return items if self._reaches(k - 1) else zeroed(items, ~self.observed(k))

    def window(self, k: int) -> History:
        return _HistoryAfterViews(self._views, self._count, self._source.window(k))
