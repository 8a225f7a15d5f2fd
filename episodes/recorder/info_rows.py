"""Recorded infos of a vector environment, stored as one array per key instead of one dict per environment.

Every vector info that is not empty has a slot. Slot 0 is the empty info, so that rows without infos cost nothing. Each
key (nested ones by path) is a block:

    path         values [slots, N, ...]     present [slots, N]
    "speed"      slot 0: unused             slot 0: all False
                 slot 1: [0.5, 0.7]         slot 1: [T, T]
                 slot 2: [0.9, 0.0]         slot 2: [T, F]       a vector info with "_speed": [T, F]

A value without an axis of environments (a number, string or dict) belongs to all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from episodes.errors import TrackMismatch, WrongType
from episodes.recorder.row_blocks import longer
from episodes.tracks import nested
from episodes.tracks.copies import copied
from episodes.tracks.infos import Infos
from episodes.tracks.infos.dicts import as_object_array
from episodes.tracks.infos.info_column import Column, TypedColumn
from episodes.tracks.levels import DEEPEST, too_deep

_FIRST_CAPACITY = 32
_FINAL = frozenset(("final_obs", "final_info", "_final_obs", "_final_info"))  # keys that a recorder reads itself
_NUMBERS = (bool, int, float)


class InfoRows:
    """Recorded infos of a vector environment: one array [slots, N] per key, with a slot per vector step."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.num_slots = 1
        self._capacity = _FIRST_CAPACITY
        self._blocks: dict[str, _InfoBlock] = {}
        self._last_keys: list[tuple[str, str, _InfoBlock]] = []  # (key, mask's key, block) of the last info's arrays

    def add(self, info: dict[str, Any]) -> int:
        """Copy the info of a vector step, and return the index (slot) at which it is stored. Slot 0 is an empty info.

        Raises:
            WrongType: a key is no string. The message names it.
            TrackMismatch: an array is not [N, ...]. The message names its key.
        """
        if not info:
            return 0
        at = self.num_slots
        if at == self._capacity:
            self._resize(2 * self._capacity)
        try:
            result = self._put_like_last(at, info) or self._put_all(at, info)
        except BaseException:
            self._clear_presence(slice(at, at + 1))
            raise
        self.num_slots += result
        return at if result else 0

    def _put_like_last(self, at: int, info: dict[str, Any]) -> bool:
        """Copy an info into slot `at` and return True, if it has the keys, shapes and dtypes of the previous info.

        Otherwise return False. The slot may be partly written then, and `_put_all` must copy the info.
        """
        num_keys = 0
        for key, mask_key, block in self._last_keys:
            value, mask = info.get(key), info.get(mask_key)
            if type(value) is not np.ndarray or value.dtype is not block.dtype or value.shape != block.shape:
                return False
            block.values[at] = copied(value) if value.dtype.hasobject else value
            block.present[at] = True if mask is None else mask
            num_keys += 1 if mask is None else 2
        return num_keys == len(info)

    def _put_all(self, at: int, info: dict[str, Any]) -> bool:
        """Copy an info with any keys and dtypes into slot `at`. Return False if it is empty."""
        result = False
        for path, value, mask in _leaves(info):
            row, plain = _row_of(path, value, self.num_envs)
            block = self._blocks.get(path)
            if block is None:
                block = self._blocks[path] = _InfoBlock(row, plain, self._capacity)
            block.put(at, copied(row) if row.dtype.hasobject else row, plain)
            block.present[at] = True if mask is None else mask
            result = True
        arrays = {key: self._blocks.get(nested.escape(key)) for key, value in info.items() if type(value) is np.ndarray}
        self._last_keys = [(key, "_" + key, block) for key, block in arrays.items() if block is not None]
        return result

    def gather(self, index: np.ndarray) -> Infos:
        """Return the infos of single environments at the flat indices (slot * N + env) `index` [k]."""
        columns: dict[str, Column] = {}
        presence = mask = None
        missing = index[:0]
        for path, block in self._blocks.items():
            if presence is None or not (block.present == presence).all():  # keys that came together share a mask
                result = block.present.reshape(-1).take(index)
                presence, missing = block.present, (~result).nonzero()[0]
                if not len(missing):
                    mask = None
                elif mask is None or not np.array_equal(result, mask):
                    mask = nested.frozen(result)
            if len(missing) < len(index):
                columns[path] = block.column(index, mask, missing)
        return Infos(columns, len(index))

    def keep(self, slots: np.ndarray) -> np.ndarray:
        """Drop all stored infos except `slots` [k], and return the new number of each of these slots, [k]."""
        move, moved = self.prepare_trim(slots)
        move()
        return moved

    def prepare_trim(self, slots: np.ndarray) -> tuple[Callable[[], None], np.ndarray]:
        """Return a function that drops all infos except `slots` [k], and the new numbers of these slots, [k]."""
        if self.num_slots == 1:
            return lambda: None, slots
        asked_slots = slots.tolist()
        kept_slots = sorted({0, *asked_slots})
        moved = dict(zip(kept_slots, range(len(kept_slots)), strict=True))
        presence = [(block, block.values[kept_slots], block.present[kept_slots]) for block in self._blocks.values()]
        return partial(self._put_first, presence, len(kept_slots), self.num_slots), np.array(
            [moved[slot] for slot in asked_slots]
        )

    def _put_first(
        self, presence: list[tuple[_InfoBlock, np.ndarray, np.ndarray]], num_kept: int, num_slots: int
    ) -> None:
        """Move the infos to keep to the first slots, and clear all other slots.

        Keys without any value left are dropped.

        Args:
            presence: for each key: its block, the values to keep, and which environments have them.
            num_kept: number of slots that are kept.
            num_slots: number of slots so far.
        """
        for block, values, present in presence:
            block.values[:num_kept], block.present[:num_kept] = values, present
        self._clear_presence(slice(num_kept, num_slots))
        self.num_slots = num_kept
        if num_kept > 1:  # drop keys that no slot has
            self._blocks = {path: block for path, block in self._blocks.items() if block.present.any()}
            self._last_keys = [usual for usual in self._last_keys if usual[-1].present.any()]

    def _clear_presence(self, slots: slice) -> None:
        """Mark the infos in the given slots as empty: no environment has a value of any key."""
        for block in self._blocks.values():
            block.present[slots] = False

    def _resize(self, capacity: int) -> None:
        """Copy all blocks to arrays with space for `capacity` rows."""
        for block in self._blocks.values():
            block.set_arrays(longer(block.values, capacity), longer(block.present, capacity))
        self._capacity = capacity


def checked_infos(infos: object) -> dict[str, Any]:
    """Return the infos of a vector step as a dict, {} for None. Raise `WrongType` unless it is a dict."""
    if infos is None:
        return {}
    if not isinstance(infos, dict):
        raise WrongType(f"infos is a {type(infos).__name__}; give the vector environment's dict of arrays [N, ...]")
    return infos


def checked_outputs(extra_model_outputs: object) -> Mapping[str, Any]:
    """Return extra model outputs as a mapping, empty for None. Raise `WrongType` unless it is a mapping."""
    if extra_model_outputs is None:
        return {}
    if not isinstance(extra_model_outputs, Mapping):
        raise WrongType(
            f"extra_model_outputs is a {type(extra_model_outputs).__name__}; give a dict of arrays [N, ...] by name"
        )
    return extra_model_outputs


class _InfoBlock:
    """Recorded values of one info key, [slots, N, ...], with a mask of the environments that have the key.

    Args:
        row: the first values, [N, ...].
        plain: whether the values are Python numbers.
        capacity: number of slots.
    """

    __slots__ = ("dtype", "plain", "present", "shape", "values")

    def __init__(self, row: np.ndarray, plain: bool, capacity: int) -> None:
        self.plain = plain  # whether values are Python's own numbers
        self.set_arrays(np.zeros((capacity, *row.shape), row.dtype), np.zeros((capacity, len(row)), bool))

    def set_arrays(self, values: np.ndarray, present: np.ndarray) -> None:
        """Replace the array of values and the mask of environments that have the key."""
        self.values, self.present = values, present
        self.dtype, self.shape = values.dtype, values.shape[1:]

    def put(self, at: int, row: np.ndarray, plain: bool) -> None:
        """Write the values [N, ...] that one vector step has for the key into slot `at`.

        If their kind or shape differs from earlier ones, all values become Python objects.
        """
        if self.dtype != object:
            if row.shape != self.shape or row.dtype.kind != self.dtype.kind or plain != self.plain:
                self._convert_to_objects()
            elif row.dtype != self.dtype:
                self.set_arrays(self.values.astype(np.promote_types(row.dtype, self.dtype)), self.present)
        if self.dtype == object and row.dtype != object:
            row = as_object_array(row.tolist() if plain else list(row))
        self.values[at] = row

    def _convert_to_objects(self) -> None:
        """Convert the values to Python objects, because a later value does not fit the dtype."""
        values = np.empty(self.present.shape, object)
        for at in np.flatnonzero(self.present.any(axis=1)).tolist():
            values[at] = as_object_array(self.values[at].tolist() if self.plain else list(self.values[at]))
        self.set_arrays(values, self.present)
        self.plain = False

    def column(self, index: np.ndarray, mask: np.ndarray | None, missing: np.ndarray) -> TypedColumn:
        """Return the values of the key at the flat indices (slot * N + env) `index`, [k, ...].

        Args:
            index: slot * N + env of each value, int [k].
            mask: whether each value exists, bool [k], or None for all.
            missing: indices of the values that do not exist, int [m].
        """
        values = self.values.reshape(self.present.size, *self.values.shape[2:]).take(index, axis=0)
        if len(missing):
            values[missing] = None if values.dtype == object else 0
        return TypedColumn(nested.frozen(values), mask, self.plain)


def _leaves(
    info: dict[str, Any], prefix: str = "", outer: np.ndarray | None = None, levels: int = DEEPEST
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the key path, value and mask of each value in the (possibly nested) info of a vector environment.

    The mask [N] is True for environments that have the value, or `None` if all have it. The masks in `info` and
    final observations are not yielded themselves.

    Raises:
        WrongType: a key is not a str.
        ShapeMismatch: more than `levels` dicts are nested in each other.
    """
    if not levels:
        raise too_deep("an info")
    for key, value in info.items():
        if not isinstance(key, str):
            place = f"infos[{prefix[:-1]!r}]" if prefix else "infos"
            raise WrongType(
                f"{place} has the key {key!r}, a {type(key).__name__}; keys of infos are strings: give {str(key)!r}"
            )
        if (key in _FINAL and not prefix) or (key[:1] == "_" and key[1:] in info):
            continue
        mask = info.get("_" + key)
        mask = outer if mask is None else mask if outer is None else mask & outer
        path = prefix + nested.escape(key)
        if isinstance(value, dict):
            yield from _leaves(value, path + "/", mask, levels - 1)
        else:
            yield path, value, mask


def _row_of(path: str, value: Any, num_envs: int) -> tuple[np.ndarray, bool]:
    """Convert an info value to an array [N, ...], and return it and whether its items are Python numbers.

    A value that is not one per environment is shared by all environments.

    Raises:
        TrackMismatch: an array has another number of rows than `num_envs`.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()  # from a simulator in torch
    if isinstance(value, np.ndarray) and value.ndim:
        if len(value) != num_envs:
            raise TrackMismatch(
                f"infos[{path!r}] is an array {list(value.shape)} of {num_envs} environments: give "
                f"[{num_envs}, ...], or one value that all of them share"
            )
        return (as_object_array(value.tolist()) if value.dtype.kind in "USO" else value), False
    if type(value) in _NUMBERS or isinstance(value, (np.number, np.bool_, np.ndarray)):
        row = np.broadcast_to(np.asarray(value), (num_envs,))
        return (
            (row, type(value) in _NUMBERS)
            if row.dtype.kind in "biufc"
            else (as_object_array([value] * num_envs), False)
        )
    dealt = value if isinstance(value, (list, tuple)) and len(value) == num_envs else [value] * num_envs
    return as_object_array(dealt), False
