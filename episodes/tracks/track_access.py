"""Checks of items that are added to an episode, and reads of time series that need one-hot vectors or have no items."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from episodes.columns import check_extra_output_names
from episodes.errors import ShapeMismatch, TrackMismatch
from episodes.tracks import indexing, nested
from episodes.tracks.casting import REAL_TYPES, check_kinds, checked_rewards, widened_dtype
from episodes.tracks.copies import copied
from episodes.tracks.field import REWARDS, Field, extra_field
from episodes.tracks.fitting import check_fits
from episodes.tracks.indexing import Indices
from episodes.tracks.levels import DEEPEST, check_levels, too_deep
from episodes.tracks.ragged import RaggedKind
from episodes.tracks.ragged_items import as_ragged_item, fixed_shapes, kinds_of
from episodes.tracks.spaces import as_item, dtypes_of, empty_items, irregular_part, one_hot, varying_shapes_error
from episodes.tracks.stacking import stack_items
from episodes.tracks.track import ArrayTrack, ListTrack, Track
from episodes.tracks.tracks import Tracks, wrong_length

if TYPE_CHECKING:
    from episodes.data_types import Item, Items

_PLAIN = (np.ndarray, np.generic, str, int, float)


def shape_of(item: Any, label: Callable[[], str] = lambda: "an item") -> Any:
    """Return the shape of an item. For a nested item, return the shapes of its arrays, nested in the same way.

    Args:
        label: function that returns the first words of an error message.

    Raises:
        ShapeMismatch: the item is ragged, or nested too deeply.
    """
    if type(item) is np.ndarray:
        return item.shape
    if type(item) in REAL_TYPES:
        return ()
    try:
        if nested.is_leaf(item):
            return shape_of(dict(item), label) if isinstance(item, Mapping) else np.shape(item)
        return nested.map_leaves(lambda leaf: list(np.shape(leaf)), item)  # lists, since a tuple would be nested
    except ValueError:
        raise ShapeMismatch(f"{label()}: the item is ragged; give an array of numbers") from None
    except RecursionError:
        raise too_deep(f"{label()}: the item") from None


def checked_observation(observation: Any, shape: object, space: spaces.Space | None, label: Callable[[], str]) -> Any:
    """Validate the shape of an observation that is added to an episode, and return the observation with
    lists converted to tuples.

    Args:
        shape: `shape_of` the earlier observations.
        label: function that returns the first words of an error message.

    Raises:
        ShapeMismatch: the shape differs, and the space does not allow items of several shapes.
    """
    try:
        if shape_of(observation) == shape:
            return observation
    except ShapeMismatch:
        pass
    tupled = as_item(observation, space)
    new_shape = shape_of(tupled, label)
    if new_shape != shape and irregular_part(space) is None:
        raise ShapeMismatch(
            f"{label()}: the observation has shape {new_shape}, earlier observations have shape {shape}; all have "
            "one shape"
        )
    return tupled


def check_kind(item: object, earlier: object, name: str, label: Callable[[], str]) -> None:
    """Raise `ShapeMismatch` if one of two items is text and the other one a number. Only arrays and scalars are
    compared.

    Args:
        item: the item that is added.
        earlier: an item of the same track.
        name: name of the item in the message, such as "action".
        label: function that returns the first words of an error message.
    """
    if isinstance(item, _PLAIN) and isinstance(earlier, _PLAIN):
        new, old = np.asarray(item).dtype, np.asarray(earlier).dtype
        if new != old and widened_dtype(old, np.zeros(0, new)) is None:
            raise ShapeMismatch(
                f"{label()}: the {name} has dtype {new}, earlier {name}s have dtype {old}; give items of one kind"
            )


def checked_action_shape(action: Any, track: Track, space: spaces.Space | None, label: Callable[[], str]) -> Any:
    """Validate the shape of an action that is added to an episode, and return its shape or type,
    by which later actions are checked quickly.

    A later action that equals the result needs no validation. The result is None for other kinds of actions.

    Raises:
        ShapeMismatch: earlier actions in the track have another shape, or the first action does not fit its space.
    """
    if track.ragged is not None:
        return None  # `with_ragged_conversion` checks each item
    kind = type(action)
    if kind not in REAL_TYPES or track.total or space is not None:
        if not track.total:
            check_levels(action, what=f"{label()}: the action")
        tupled = as_item(action, space)
        shape = shape_of(tupled, label)
        if not track.total:
            check_fits(tupled, space, label, "actions")
        newest = track.get(-1) if track.total else tupled
        known_shape = shape_of(newest)
        if shape != known_shape and irregular_part(space) is None:
            raise ShapeMismatch(
                f"{label()}: the action has shape {shape}, earlier actions have shape {known_shape}; give that shape"
            )
        check_kind(tupled, newest, "action", label)
    return action.shape if kind is np.ndarray else kind if kind in REAL_TYPES else None


class _Appends:
    """Replacement for a list to which items are appended: its `append` is a function that first
    checks or converts the item."""

    __slots__ = ("append", "items")

    def __init__(self, append: Callable[[Any], None], items: Sequence[Any] = ()) -> None:
        self.append, self.items = append, items

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def new_growing_outputs(outputs: Mapping[str, Any]) -> tuple[dict[str, Track], tuple[tuple[str, Any], ...]]:
    """Create an empty growing time series for each extra model output, such as log-probabilities,
    of an episode's first step.

    Outputs given as arrays must keep their shape.

    Returns:
        The tracks by key, and pairs of a key and an object whose `append` adds an item to the track.

    Raises:
        TrackMismatch: an output has the name of a column that this library writes.
    """
    check_extra_output_names(outputs, "add_env_step")
    tracks: dict[str, Track] = {}
    pairs = []
    for key, first in outputs.items():
        tracks[key] = track = ListTrack([], 0, False, extra_field(key))
        pairs.append((key, _checked(track, first.shape) if type(first) is np.ndarray else track.items))
    return tracks, tuple(pairs)


def _checked(track: Any, shape: tuple[int, ...]) -> _Appends:
    """Return the `append` of a time series that raises `ShapeMismatch` for an item of another shape than `shape`."""
    append = track.items.append

    def add(item: Any) -> None:
        """Append an item. Raise `ShapeMismatch` if it has another shape than the first item."""
        if getattr(item, "shape", None) != shape and np.shape(item) != shape:
            raise ShapeMismatch(
                f"{track.field.label} has shape {np.shape(item)}, earlier items have shape {shape}; give that shape"
            )
        append(item)

    return _Appends(add)


def with_nested_actions(targets: tuple[Any, ...], space: spaces.Space) -> tuple[Any, ...]:
    """Wrap the lists to which an episode's steps are appended, such that lists in a nested
    action are converted to tuples."""
    append = targets[1].append
    return (targets[0], _Appends(lambda action: append(as_item(action, space))), *targets[2:])


def with_ragged_conversion(targets: tuple[Any, ...], tracks: Tracks) -> tuple[Any, ...]:
    """Wrap the lists to which an episode's steps are appended, such that items of ragged time series are
    checked and converted to arrays.

    An item of a ragged extra output must be as long as the action. Outputs are appended before the action.
    """
    observations, actions, rewards, infos, pairs = targets
    pairs = tuple([(key, _ragged_appends(tracks.extra[key], items)) for key, items in pairs])
    observations = _ragged_appends(tracks.observations, observations)
    if not isinstance(tracks.actions.ragged, RaggedKind):
        return observations, _ragged_appends(tracks.actions, actions), rewards, infos, pairs
    append = _ragged_appends(tracks.actions, actions).append
    items: list[Any] = tracks.actions.data
    outputs = [
        (track.data, track.field.label) for track in tracks.extra.values() if isinstance(track.ragged, RaggedKind)
    ]

    def append_action(action: Item) -> None:
        """Append an action. Raise `ShapeMismatch` if an output, which was appended before, has another length."""
        append(action)
        stored = items[-1]
        for values, label in outputs:
            if len(values[-1]) != len(stored):
                raise ShapeMismatch(wrong_length(label, values[-1], stored))

    return observations, _Appends(append_action), rewards, infos, pairs


def _ragged_appends(track: Any, items: list[Any]) -> Any:
    """Return an object that appends to `items`, and if `track` is ragged first checks each item
    and converts it to an array."""
    kind = track.ragged
    if kind is None:
        return items
    append, label = items.append, track.field.label
    if isinstance(kind, dict):
        return _Appends(partial(_append_nested, track, append), track.items)
    dtype, shape, ndim = kind.dtype, kind.value_shape, len(kind.value_shape) + 1

    def add(item: Any) -> None:
        """Append an item, which is converted to an array of the declared dtype if necessary."""
        if type(item) is np.ndarray and item.dtype is dtype and item.ndim == ndim and item.shape[1:] == shape:
            append(item)
        else:
            append(as_ragged_item(item, kind, lambda: label))

    return _Appends(add, track.items)


def as_ragged_step(tracks: Tracks, action: Any, outputs: Mapping[str, Any] | None, label: str) -> tuple[Any, Any]:
    """Return a step's action and extra model outputs, with items of ragged time series checked and converted to arrays.
    Nothing is stored.

    Raises:
        ShapeMismatch: an item does not have the kind of its track, or an output is not as long as the action.
    """
    kind: Any = tracks.actions.ragged
    if kind is not None:
        action = as_ragged_item(action, kind, lambda: f"{label}: the action")
    converted = dict(outputs or {})
    for key, track in tracks.extra.items():
        if track.ragged is None or key not in converted:
            continue
        name = track.field.label
        converted[key] = as_ragged_item(converted[key], track.ragged, lambda name=name: f"{label}: {name}")
        if isinstance(kind, RaggedKind) and len(converted[key]) != len(action):
            raise ShapeMismatch(f"{label}: {wrong_length(name, converted[key], action)}")
    return action, converted if outputs is not None else outputs


def _append_nested(track: Any, append: Callable[[Any], None], item: Item) -> None:
    """Check a nested item with ragged parts, convert these parts to arrays, and append the item to the time series.

    Raises:
        ShapeMismatch: a part that is not ragged has another shape than in earlier items.
    """
    kind, label = track.ragged, track.field.label
    item = as_ragged_item(item, kind, lambda: label)
    if track.items and fixed_shapes(item, kind) != fixed_shapes(track.items[-1], kind):
        raise ShapeMismatch(
            f"{label}: parts have shapes {fixed_shapes(item, kind)}, in earlier items "
            f"{fixed_shapes(track.items[-1], kind)} (None: ragged); parts that are not ragged have one shape"
        )
    append(item)


def check_regular(track: Track, space: spaces.Space | None) -> None:
    """Raise `ShapeMismatch` if the items of a time series vary in shape, so that they cannot be stacked to arrays. Only
    a space with an irregular part (Sequence, Graph, OneOf) is checked.
    """
    part = irregular_part(space)
    try:
        if part is not None:
            track.finalize(space)
    except (ShapeMismatch, TrackMismatch):
        raise varying_shapes_error(track.field.label, part) from None  # type: ignore[arg-type]


def read_one_hot(
    track: Track, indices: Indices, neg_index_as_lookback: bool, fill: Item | None, space: spaces.Space | None
) -> Any:
    """Return the items at a user's indices, with the values of discrete subspaces encoded as one-hot vectors.

    Raises:
        ShapeMismatch: the time series is ragged.
        StepOutOfRange: `fill` is None, and there is no such item.
    """
    if track.ragged is not None:
        raise ShapeMismatch(f"{track.field.label} are ragged: one_hot_discrete needs items of one shape")
    if fill is None:
        positions = indexing.existing_positions(
            indices, track.lookback, len(track), neg_index_as_lookback, track.field.label
        )
    else:
        positions = indexing.positions(indices, track.lookback, len(track), neg_index_as_lookback)
    rows = np.atleast_1d(np.asarray(positions, np.int64))
    inside = (rows >= 0) & (rows < track.total)
    hot = one_hot(_gathered(track, rows[inside], space), space)
    compact = np.where(inside, np.cumsum(inside) - 1, -1)
    answer = hot if fill is None else ArrayTrack(hot).get_at(compact, fill)
    if isinstance(positions, int):
        return nested.take(answer, 0)
    return answer if isinstance(track, ArrayTrack) else unstacked(answer, len(rows))


def read_empty(
    track: Track, indices: Indices, neg_index_as_lookback: bool, fill: Item | None, space: spaces.Space | None
) -> Any:
    """Return what a getter returns for a time series without items: `fill` in the shape and
    dtype of the space's items."""
    if not isinstance(track, ListTrack) or dtypes_of(space) is None:
        return track.get(indices, neg_index_as_lookback, fill)
    positions = indexing.positions(indices, track.lookback, len(track), neg_index_as_lookback)
    answer = track.finalize(space).get(indices, neg_index_as_lookback, fill)
    return answer if isinstance(positions, int) else unstacked(answer, len(positions))


def _gathered(track: Track, positions: np.ndarray, space: spaces.Space | None) -> Any:
    """Return the items at positions that exist, stacked to arrays. Without positions the arrays have no rows."""
    selected = track.take(positions)
    if isinstance(selected, ArrayTrack):
        return selected.data
    items = selected.data or track.item_list(0, 1)
    if not items:
        return empty_items(space)
    stacked = stack_items(items, "track", 0, None)
    return stacked if len(positions) else nested.take(stacked, slice(0, 0))


def unstacked(batch: Items, num_items: int) -> list[Any]:
    """Return nested arrays [num_items, ...] as a list of `num_items` nested items: the inverse of stacking."""
    return [nested.take(batch, i) for i in range(num_items)]


def with_items_set(track: Track, new_data: Any, at_indices: Indices, neg_index_as_lookback: bool) -> Track:
    """Return a copy of a time series in which the items at a user's indices (default:
    all from step 0 on) are replaced by `new_data`.

    Raises:
        StepOutOfRange: an index has no item.
        ShapeMismatch: the number of items differs from the number of indices, or items do not fit the others.
        WrongType: items are not numbers, strings or arrays of them, or rewards are not numbers.
    """
    name = track.field.label
    check_levels(new_data, _levels_of(new_data), what=f"{name}: new_data")
    positions = indexing.existing_positions(at_indices, track.lookback, len(track), neg_index_as_lookback, name)
    if isinstance(positions, int):
        positions = range(positions, positions + 1)
        is_list = isinstance(track, ListTrack) or track.ragged is not None
        new_data = [new_data] if is_list else nested.map_leaves(lambda x: nested.as_array(x)[None], new_data)
    num_new = len(new_data) if isinstance(new_data, list) else _num_rows(name, new_data)
    if num_new != len(positions):
        raise ShapeMismatch(
            f"{name}: {num_new} new items for {len(positions)} places; writing never changes the length"
            + _artificial_step(track.field, num_new, len(positions))
        )
    if not num_new:
        return track
    if track.field is REWARDS:
        _check_rewards(new_data)
    if isinstance(track, ListTrack):  # arrays are copied anyway
        new_data = copied(new_data)
    if track.ragged is not None:
        return track.replaced(positions, new_data if isinstance(new_data, list) else unstacked(new_data, num_new))
    if isinstance(track, ListTrack):
        items = new_data if nested.is_leaf(new_data) else unstacked(new_data, num_new)
        return track.replaced(positions, checked_rewards(list(items), name) if track.field is REWARDS else items)
    if isinstance(new_data, list):
        new_data = stack_items(new_data, name)
    if at_indices is None and not track.lookback:
        whole = ArrayTrack.of(nested.map_leaves(np.array, new_data), 0, track.field)
        if track.field is not REWARDS:  # rewards were checked above
            check_kinds(whole.field, whole.arrays())
        return whole
    return track.replaced(positions, new_data)


def _levels_of(new_data: object) -> int:
    """Return the number of levels that new data may have: one more if it is a list of items."""
    return DEEPEST + isinstance(new_data, list)


def _artificial_step(field: Field, num_given: int, num_allowed: int) -> str:
    """Return a hint for an error message if a user gave one item too many, as for RLlib's
    artificial last step, else ""."""
    if field.more or num_given != num_allowed + 1:
        return ""
    return ". If the last item is for RLlib's artificial extra step, leave it out: episodes have only real steps"


def _check_rewards(new_data: object) -> None:
    """Raise `ShapeMismatch` or `WrongType` unless `new_data` contains one number per reward."""
    try:
        rewards = np.asarray(new_data)
    except ValueError:
        raise ShapeMismatch("rewards: new items of several shapes; a reward is one number, not an array") from None
    if rewards.ndim != 1:
        raise ShapeMismatch(f"rewards: new items of shape {rewards.shape[1:]}; a reward is one number, not an array")
    check_kinds(REWARDS, {REWARDS.path: rewards})


def _num_rows(name: str, new_data: object) -> int:
    """Return the number of rows of new data. Raise `ShapeMismatch` if it has no row axis, as a single item has none.

    Args:
        name: name of the time series, for the error.
    """
    leaves = nested.leaves(new_data)
    first: Any = leaves[0] if leaves else None
    if not np.ndim(first):
        raise ShapeMismatch(
            f"{name}: new_data={new_data!r} is one item or a tuple of them; give a list of items, or arrays [k, ...] "
            "nested as the items are, for k places; at_indices=i takes one item"
        )
    return len(first)


def new_track(field: Field, new_data: Any, like: Track) -> Track:
    """Create a time series named `field` from a user's items. It has the length and lookback of `like`,
    and is a list or arrays as `like` is.

    Args:
        new_data: one item for each step of `like`, lookback included: a list, or nested arrays [L + T, ...].

    Raises:
        ShapeMismatch: the number of items differs, or an item is nested too deeply.
    """
    name, total = field.label, like.total
    check_levels(new_data, _levels_of(new_data), what=f"{name}: new_data")
    items: Sequence[Any] = new_data if isinstance(new_data, list) else unstacked(new_data, _num_rows(name, new_data))
    if len(items) != total:
        raise ShapeMismatch(
            f"{name}: {len(items)} items for a new track; give {total}, one for each step, lookback included"
            + _artificial_step(field, len(items), total)
        )
    kind = None if isinstance(new_data, list) else kinds_of(new_data)
    track = ListTrack(list(map(copied, items)), like.lookback, False, field, None, kind)
    return track.finalize() if isinstance(like, ArrayTrack) else track
