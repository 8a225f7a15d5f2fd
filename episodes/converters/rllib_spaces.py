"""Conversion of Gymnasium spaces to the dicts that RLlib stores, and back. Nothing is unpickled."""

from __future__ import annotations

import base64
import io
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from episodes.errors import UnreadableData
from episodes.tracks.space_kinds import SpaceKind, kind_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def to_dict(space: spaces.Space | None) -> dict[str, Any] | None:
    """Convert a space to RLlib's dict form, or to None if there is no space or no exact dict form."""
    made = None if space is None else _to_dict(space)
    try:
        return made if made is not None and from_dict(made) == space else None
    except (UnreadableData, TypeError):
        return None


def _to_dict(space: Any) -> dict[str, Any] | None:
    """Return a space as RLlib's dict, or None if RLlib has no form for the space or a part of it."""
    match kind_of(space):
        case SpaceKind.BOX:
            bounds = {"low": _packed(space.low), "high": _packed(space.high)}
            return {"space": "box", **bounds, "shape": space.shape, "dtype": space.dtype.str}
        case SpaceKind.DISCRETE:
            return {"space": "discrete", "n": int(space.n), "start": int(space.start)}
        case SpaceKind.MULTI_DISCRETE:
            return {"space": "multi-discrete", "nvec": _packed(space.nvec), "dtype": space.dtype.str}
        case SpaceKind.MULTI_BINARY:
            return {"space": "multi-binary", "n": space.n if isinstance(space.n, int) else tuple(space.shape)}
        case SpaceKind.TEXT:
            fields = {
                "min_length": space.min_length,
                "max_length": space.max_length,
                "charset": "".join(sorted(space.character_set)),
            }
            return {"space": "text", **fields}
        case SpaceKind.TUPLE:
            parts = [_to_dict(part) for part in space.spaces]
            return None if None in parts else {"space": "tuple", "spaces": parts}
        case SpaceKind.DICT:
            named = {key: _to_dict(part) for key, part in space.spaces.items()}
            return None if None in named.values() else {"space": "dict", "spaces": named}
    return None


def from_dict(fields: Any) -> Any:
    """Convert RLlib's dict to a Gymnasium space.

    Raises:
        UnreadableData: an unknown kind of space.
    """
    if fields is None or isinstance(fields, spaces.Space):
        return fields
    match fields:
        case {"space": "box"}:
            low, high, dtype = _unpacked(fields["low"]), _unpacked(fields["high"]), np.dtype(fields["dtype"])
            return spaces.Box(low, high, tuple(fields["shape"]), dtype.type)
        case {"space": "discrete"}:
            return spaces.Discrete(int(fields["n"]), start=int(fields.get("start") or 0))
        case {"space": "multi-discrete"}:
            return spaces.MultiDiscrete(_unpacked(fields["nvec"]), dtype=np.dtype(fields["dtype"]).type)
        case {"space": "multi-binary", "n": n}:
            return spaces.MultiBinary(n if isinstance(n, int) else list(n))
        case {"space": "text"}:
            charset = "".join(sorted(fields["charset"])) if "charset" in fields else None
            parts: dict[str, Any] = {} if charset is None else {"charset": charset}
            return spaces.Text(fields["max_length"], min_length=fields["min_length"], **parts)
        case {"space": "tuple"}:
            return spaces.Tuple([from_dict(part) for part in fields["spaces"]])
        case {"space": "dict"}:
            return spaces.Dict([(key, from_dict(part)) for key, part in fields["spaces"].items()])  # type: ignore[misc]
    kind = fields.get("space") if isinstance(fields, dict) else type(fields).__name__
    raise UnreadableData(f"a space of RLlib's of the kind {kind!r} is not known here")


def _packed(array: ArrayLike) -> str:
    """Return an array as RLlib stores the bounds of spaces: as compressed `.npy` bytes in base64."""
    body = io.BytesIO()
    np.save(body, np.asarray(array), allow_pickle=False)
    return base64.b64encode(zlib.compress(body.getvalue())).decode("ascii")


def _unpacked(text: str | bytes) -> np.ndarray:
    return np.load(io.BytesIO(zlib.decompress(base64.b64decode(text))), allow_pickle=False)
