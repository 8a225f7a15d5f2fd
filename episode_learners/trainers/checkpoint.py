"""Checkpoints: one file that is there whole or not at all, and holds nothing but plain values and tensors.

A file is read with torch's `weights_only=True`: nothing in it can run code. Arrays go in as bytes with their dtype.
"""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from episodes.errors import InvalidArgument, StateMismatch, UnreadableData

__all__ = ["load_checkpoint", "newest_checkpoint", "save_checkpoint"]

FORMAT = 1
_ARRAY = "__array__"
_UNREADABLE = (  # what torch and zipfile raise, depending on which bytes are wrong
    *(RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError),
    *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, struct.error),
)


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a state of nested dicts, lists, tuples, plain values, arrays and tensors; a file appears once it is whole.

    Raises:
        InvalidArgument: something in it is neither; the error names where.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    plain, unfinished = _plain(state, ""), path.with_suffix(".unfinished")
    try:
        with unfinished.open("wb") as file:
            torch.save({"format": FORMAT, "state": plain}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:  # a full disk, say
        unfinished.unlink(missing_ok=True)
        raise


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state that `save_checkpoint` wrote.

    Raises:
        UnreadableData: the file is damaged, or no checkpoint.
        StateMismatch: it is of a version that is not known here.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch itself compares no sums
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except _UNREADABLE as error:
        raise UnreadableData(f"{path} is no readable checkpoint ({type(error).__name__})") from error
    if damaged is not None:
        raise UnreadableData(f"{path} is damaged: the checksum of its part {damaged} is wrong")
    if not isinstance(found, dict) or "format" not in found:
        raise UnreadableData(f"{path} is no checkpoint of a trainer: it has no format number")
    if found["format"] != FORMAT:
        raise StateMismatch(f"{path} has format {found['format']}; this version reads format {FORMAT}")
    return _restored(found["state"])


def newest_checkpoint(paths: Sequence[Path]) -> tuple[Path, dict[str, Any]] | None:
    """The last readable one of these, and its state; damaged ones are passed over. None where there are no paths.

    Raises:
        UnreadableData: all are damaged.
        StateMismatch: the last one that is not is of a version that is not known here.
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


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, bytes, torch.Tensor)):
        return value.clone() if isinstance(value, torch.Tensor) else value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _plain(part, f"{where}/{key}") for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(part, f"{where}/{i}") for i, part in enumerate(value))
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        data = torch.frombuffer(bytearray(np.ascontiguousarray(value).tobytes() or b"\0"), dtype=torch.uint8)
        return {_ARRAY: data, "dtype": np.lib.format.dtype_to_descr(value.dtype), "shape": tuple(value.shape)}
    raise InvalidArgument(f"a checkpoint cannot hold the {type(value).__name__} at {where or 'its root'}")


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        if _ARRAY in value:
            dtype = np.lib.format.descr_to_dtype(value["dtype"])
            count = int(np.prod(value["shape"], dtype=np.int64))
            array = np.frombuffer(value[_ARRAY].numpy().tobytes(), dtype, count)
            return array.reshape(value["shape"]).copy()
        return {key: _restored(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_restored(part) for part in value)
    return value
