"""Reading and writing of checkpoints: single files of plain values, arrays, tensors, spaces and endings, written
completely or not at all.

A file is read with `weights_only=True`: nothing in it can run code. Arrays are stored as bytes with their dtype.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from episodes import __version__
from episodes.errors import InvalidArgument, StateMismatch, UnreadableData
from episodes.facts import Ending
from episodes.format_versions import CHECKPOINT, check_version, checked_integer, checked_shape
from episodes.storage import space_json
from episodes.storage.files import put

__all__ = ["load_checkpoint", "newest_checkpoint", "save_checkpoint"]

_ARRAY = "__array__"  # key of a dict that stands for an array
_ENDING = "__ending__"  # of an `Ending`
_SPACE = "__space__"  # of a space
_DICT = "__dict__"  # key of a dict that stands for a dict with one of these keys
_MARKS = frozenset((_ARRAY, _ENDING, _SPACE, _DICT))
_PLAIN = (type(None), bool, int, float, str, bytes)
_UNREADABLE = (  # what torch and zipfile raise, depending on which bytes are wrong
    *(RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError),
    *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, struct.error, AssertionError, MemoryError),
)


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write the nested dict `state` to a checkpoint file. An existing file is replaced only after all data have been
    written.

    Args:
        path: the file; its folder is created if it does not exist.
        state: nested dicts, lists and tuples of plain values, arrays, tensors, spaces and `Ending`s.

    Raises:
        InvalidArgument: `state` has a value of a type that checkpoints do not allow; the error names its place.
        OSError: the file cannot be written. An existing file at `path` is unchanged.
    """
    buffer = io.BytesIO()  # torch turns a KeyboardInterrupt that arrives while it writes to a file into a RuntimeError
    torch.save({"format": CHECKPOINT, "library": __version__, "state": _to_plain(state, "")}, buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, buffer.getbuffer(), fsync=True)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint file, and return the nested dict that was given to `save_checkpoint`.

    Raises:
        FileNotFoundError: the file does not exist.
        UnreadableData: the file is damaged, or not a checkpoint.
        StateMismatch: the file has a format of another version of this library.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch itself does not compare checksums
        if damaged is not None:
            raise UnreadableData(f"{path} is damaged: the checksum of its part {damaged} is wrong")
        content = torch.load(path, map_location="cpu", weights_only=True)
        format_number = content.get("format") if isinstance(content, dict) else None
        if format_number is None:
            raise UnreadableData(f"{path} is not a checkpoint of a trainer: it has no format number")
        if type(format_number) is not int:
            raise UnreadableData(f"{path} is not a checkpoint of a trainer: its format is {format_number!r}")
        remedy = "resume the run with the version that wrote it, or train again"
        check_version(format_number, CHECKPOINT, str(path), remedy, oldest=CHECKPOINT, error=StateMismatch)
        try:
            state = _from_plain(content["state"])
        except UnreadableData as error:  # of a space or a shape, without the path
            raise ValueError(str(error)) from None
        if not isinstance(state, dict):
            raise UnreadableData(f"{path} is not a checkpoint of a trainer: its state is a {type(state).__name__}")
        return state
    except (FileNotFoundError, UnreadableData, StateMismatch):
        raise
    except (*_UNREADABLE, RecursionError) as error:
        raise UnreadableData(f"{path} is not a readable checkpoint ({type(error).__name__}: {error})") from error


def newest_checkpoint(paths: Sequence[Path]) -> tuple[Path, dict[str, Any]] | None:
    """Return the path and state of the newest checkpoint that can be read. Damaged files are skipped.

    Args:
        paths: the files, oldest first.

    Returns:
        None if `paths` is empty.

    Raises:
        UnreadableData: all files are damaged.
        StateMismatch: the last file that is not damaged has a format of another version of this library.
    """
    damaged = None
    for path in reversed(paths):
        try:
            return path, load_checkpoint(path)
        except UnreadableData as error:
            damaged = damaged or error
    if damaged is not None:
        raise damaged
    return None


def _to_plain(value: Any, path: str) -> Any:
    """Convert a nested value to types that torch can load safely (with `weights_only=True`). `path` names the value's
    place in errors.

    Raises:
        InvalidArgument: the value has a type that checkpoints do not allow.
    """
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in _PLAIN:
        return value
    if isinstance(value, dict):
        items = [(_to_plain(key, f"{path}/{key}"), _to_plain(part, f"{path}/{key}")) for key, part in value.items()]
        return dict(items) if _MARKS.isdisjoint(value) else {_DICT: items}
    if type(value) is torch.Size:
        value = tuple(value)
    if type(value) in (list, tuple):
        return type(value)(_to_plain(part, f"{path}/{i}") for i, part in enumerate(value))
    if type(value) in (np.ndarray, np.memmap) and not value.dtype.hasobject:
        data = torch.frombuffer(bytearray(np.ascontiguousarray(value).tobytes() or b"\0"), dtype=torch.uint8)
        return {_ARRAY: data, "dtype": np.lib.format.dtype_to_descr(value.dtype), "shape": tuple(value.shape)}
    if isinstance(value, Ending):
        return {_ENDING: value.code}
    if isinstance(value, gym.Space):
        return {_SPACE: space_json.to_json(value, f"the space at {path}")}
    raise InvalidArgument(f"a checkpoint cannot hold the {type(value).__name__} at {path or 'its root'}")


def _from_plain(value: object) -> Any:
    """Return the nested value that `_to_plain` converted, for example with arrays restored. Damaged values raise errors
    of various types.
    """
    if isinstance(value, dict):
        if _ARRAY in value:
            dtype = np.lib.format.descr_to_dtype(value["dtype"])
            shape = checked_shape(value["shape"], "the shape of an array")
            array = np.frombuffer(value[_ARRAY].numpy().tobytes(), dtype, math.prod(shape))
            return array.reshape(shape).copy()
        if _ENDING in value:
            return Ending(checked_integer(value[_ENDING], "the code of an ending"))
        if _SPACE in value:
            return space_json.from_json(value[_SPACE])
        items = value[_DICT] if _DICT in value else value.items()
        return {_from_plain(key): _from_plain(part) for key, part in items}
    if isinstance(value, (list, tuple)):
        return type(value)(_from_plain(part) for part in value)
    return value
