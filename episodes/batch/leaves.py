"""Operations on one array of a batch, called a leaf, which is a numpy array or a torch tensor.

torch is not imported here: if there is a tensor, it has been imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import InvalidFill, ShapeMismatch, TrackMismatch, WrongType
from episodes.tracks.filling import check_fill

if TYPE_CHECKING:
    from episodes.data_types import Index


def torch_of(leaf: object) -> Any:
    """Return the torch module if the leaf is a tensor, otherwise None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(leaf, torch.Tensor) else None


def as_leaf(value: object, path: str) -> Any:
    """Convert a value to an array by `np.asarray`, unless it is an array, a numpy scalar or a tensor already.

    Raises:
        ShapeMismatch: numpy cannot convert the value to an array; the message names the column `path`.
    """
    if isinstance(value, (np.ndarray, np.generic)) or torch_of(value):
        return value
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ShapeMismatch(f"{path!r} cannot be an array: {error}") from error


def describe(leaf: Any) -> str:
    """Return the dtype and shape of an array or tensor as text, such as "float32 [4, 2]"."""
    return f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)}"


def numpy_dtype(leaf: Any) -> np.dtype:
    """Return the numpy dtype of an array, or the corresponding numpy dtype of a tensor."""
    name = str(leaf.dtype).removeprefix("torch.")
    return np.dtype("float32" if name == "bfloat16" else name) if torch_of(leaf) else leaf.dtype


def take(leaf: Any, rows: Index) -> Any:
    """Return `leaf[rows]`. For tensors too, a slice may have a negative step."""
    is_tensor = torch_of(leaf) is not None
    if is_tensor and isinstance(rows, slice) and (rows.step or 1) < 0:
        rows = np.arange(len(leaf))[rows].copy()
    return leaf[rows if is_tensor else as_numpy(rows)]


def join(parts: Sequence[Any], path: str, mode: str) -> Any:
    """Stack arrays or tensors along a new first axis (mode "stack"), or concatenate them (mode "cat").

    Raises:
        TrackMismatch: some are arrays and others are tensors.
        ShapeMismatch: the shapes differ.
    """
    first = parts[0]
    torch = torch_of(first)
    if any(torch_of(part) is not torch for part in parts):
        raise TrackMismatch(f"{path!r} is an array in one batch and a tensor in another; call to_numpy or to_torch")
    cut = 1 if mode == "cat" else 0
    for part in parts:
        if not part.ndim >= cut or part.shape[cut:] != first.shape[cut:]:
            raise ShapeMismatch(f"{mode}: {path!r} is {describe(first)} in one batch and {describe(part)} in another")
    if torch:
        return (torch.cat if cut else torch.stack)(list(parts))
    return (np.concatenate if cut else np.stack)(parts)


def filled(like: Any, shape: tuple[int, ...], fill: float | str | bool | np.generic, path: str) -> Any:
    """Return an array of the given shape filled with `fill`, in the dtype (and on the device) of `like`.

    Raises:
        InvalidFill: the dtype cannot represent `fill`.
    """
    torch = torch_of(like)
    try:
        check_fill(fill, np.empty(0, numpy_dtype(like)))
    except InvalidFill as error:
        raise InvalidFill(f"{path!r}: {error}") from error
    return like.new_full(shape, fill) if torch else np.full(shape, fill, like.dtype)


def nulls(leaf: object) -> Any:
    """Return a bool mask of the shape of the leaf, True where a value is NaN or None."""
    if torch := torch_of(leaf):
        return torch.isnan(leaf)
    leaf = np.asarray(leaf)
    if leaf.dtype.kind in "fc":
        return np.isnan(leaf)
    if leaf.dtype.kind in "mM":
        return np.isnat(leaf)
    if leaf.dtype.kind == "O":
        return np.array([item is None or item != item for item in leaf.ravel()], bool).reshape(leaf.shape)
    return np.zeros(leaf.shape, bool)


def as_numpy(leaf: Any) -> Any:
    """Convert a tensor to a numpy array, which shares CPU memory. Arrays are returned unchanged."""
    return leaf.detach().cpu().numpy() if torch_of(leaf) else leaf


def check_assignable(target: Any, rows: Any, value: Any, path: str) -> None:
    """Raise an error unless `value` can be assigned to `rows` of `target` without loss, such as float to int.

    Raises:
        WrongType: the dtype does not fit, a tensor is given for an array, or the target is read-only.
        ShapeMismatch: the shape of `value` does not fit.
    """
    torch = torch_of(target)
    if torch:
        fits = torch.can_cast(value.dtype if torch_of(value) else torch.as_tensor(value).dtype, target.dtype)
    elif torch_of(value):
        raise WrongType(f"{path!r} is an array; a tensor cannot be put into it, call to_numpy")
    elif not target.flags.writeable:
        raise WrongType(f"{path!r} is read-only, as finished episodes are; copy it first")
    else:
        fits = np.can_cast(value.dtype, target.dtype, "same_kind")
    if not fits:
        raise WrongType(f"{path!r} holds {target.dtype}; {value.dtype} cannot be put into it without loss")
    expected, shape = tuple(rows.shape), tuple(value.shape)
    try:
        fits = np.broadcast_shapes(expected, shape) == expected
    except ValueError:
        fits = False
    if not fits:
        raise ShapeMismatch(f"{path!r}: {list(shape)} cannot be put into rows of shape {list(expected)}")


def put(target: Any, rows: Index, value: Any) -> None:
    """Set `target[rows] = value` for an array or a tensor."""
    torch = torch_of(target)
    target[rows] = torch.as_tensor(value, dtype=target.dtype, device=target.device) if torch else value
