"""64-bit hashes of batch rows, network weights and settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.batch import Batch
from episodes.batch.leaves import torch_of
from episodes.columns import Columns
from episodes.errors import InvalidArgument, WrongType
from episodes.storage.checksums import digest_of
from episodes.tracks import nested

if TYPE_CHECKING:
    from episodes.storage.checksums import Digest

_NOT_CONTENT = ("indices",)  # where a row lies in its buffer
_SMALL = 256  # bytes of a row's column; what is larger is hashed before it is hashed with the others


def row_hashes(batch: Batch | Mapping[str, Any]) -> np.ndarray:
    """Return a hash of the content of each batch row, uint64 [B]. Columns of objects and the
    column `indices` are ignored."""
    digest = digest_of("xxh3")
    columns = batch.to_dict() if isinstance(batch, Batch) else batch
    leaves = [leaf for name in sorted(columns) if name not in _NOT_CONTENT for leaf in nested.leaves(columns[name])]
    of_rows = [columns[Columns.LOSS_MASK], *leaves] if Columns.LOSS_MASK in columns else leaves
    num_rows = next((len(leaf) for leaf in of_rows if getattr(leaf, "ndim", 0)), 0)
    parts = [part for leaf in leaves if (part := _row_bytes(leaf, num_rows)) is not None]
    if not parts or not num_rows:
        return np.zeros(num_rows, np.uint64)
    small = [part if part.shape[1] <= _SMALL else _hash_rows(part, digest).view(np.uint8) for part in parts]
    return _hash_rows(np.concatenate(small, axis=1), digest)[:, 0]


def _row_bytes(leaf: Any, num_rows: int) -> np.ndarray | None:
    """Return the bytes of each row of a batch column, uint8 [B, k], or None if the column has objects
    or another number of rows."""
    torch = torch_of(leaf)
    if not (torch or isinstance(leaf, np.ndarray)) or leaf.shape[:1] != (num_rows,) or 0 in leaf.shape:
        return None
    rows: Any = leaf.reshape(num_rows, -1)
    if torch:
        return rows.contiguous().view(torch.uint8).numpy(force=True)
    return None if rows.dtype.hasobject else np.ascontiguousarray(rows).view(np.uint8)


def _hash_rows(rows: np.ndarray, digest: Digest) -> np.ndarray:
    """Return the hash of each row of a byte array [B, k], uint64 [B, 1], computed by `digest`."""
    return np.fromiter(map(digest, rows), np.uint64, len(rows))[:, None]


def hash_of_arrays(arrays: Iterable[np.ndarray]) -> int:
    """Return a single hash of several arrays, such as all network weights. The order of the arrays matters."""
    digest = digest_of("xxh3")
    each = [digest(np.ascontiguousarray(array)) for array in arrays]
    return digest(np.array(each, np.uint64))


def hash_of_values(values: Mapping[str, Any] | int | None) -> int:
    """Return a hash of settings, given as a dict, by way of JSON. Other values than JSON's are converted by `str`.

    Args:
        values: the settings, or their hash, which is returned.

    Raises:
        WrongType: `values` is neither a dict nor an int.
        InvalidArgument: `values` is an int, and no hash of 64 bits.
    """
    if isinstance(values, (int, np.integer)) and not isinstance(values, bool):
        if not 0 <= values < 2**64:
            raise InvalidArgument(f"settings: {values} is no hash; give 0 to 2**64 - 1, or a dict")
        return int(values)
    if not isinstance(values, (Mapping, type(None))):
        raise WrongType(f"settings: a {type(values).__name__} is given; give a dict, or its hash by hash_of_values")
    return digest_of("xxh3")(json.dumps(values or {}, sort_keys=True, default=str).encode())
