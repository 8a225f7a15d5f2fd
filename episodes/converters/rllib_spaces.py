"""Gymnasium spaces as RLlib writes them into the state of an episode, and back. Nothing is unpickled."""

from __future__ import annotations

import base64
import io
import zlib
from typing import Any

import numpy as np
from gymnasium import spaces

from episodes.errors import UnreadableData


def to_dict(space: spaces.Space | None) -> dict[str, Any] | None:
    """RLlib's dict of a space; None for none, and for a space that it has no dict for, or not for all of it."""
    made = None if space is None else _to_dict(space)
    try:
        return made if made is not None and from_dict(made) == space else None
    except (UnreadableData, TypeError):
        return None


def _to_dict(space: Any) -> dict[str, Any] | None:
    match space:
        case spaces.Box():
            bounds = {"low": _packed(space.low), "high": _packed(space.high)}
            return {"space": "box", **bounds, "shape": space.shape, "dtype": space.dtype.str}
        case spaces.Discrete():
            return {"space": "discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            return {"space": "multi-discrete", "nvec": _packed(space.nvec), "dtype": space.dtype.str}
        case spaces.MultiBinary():
            return {"space": "multi-binary", "n": space.n if isinstance(space.n, int) else tuple(space.shape)}
        case spaces.Text():
            told = {
                "min_length": space.min_length,
                "max_length": space.max_length,
                "charset": "".join(sorted(space.character_set)),
            }
            return {"space": "text", **told}
        case spaces.Tuple():
            parts = [_to_dict(part) for part in space.spaces]
            return None if None in parts else {"space": "tuple", "spaces": parts}
        case spaces.Dict():
            named = {key: _to_dict(part) for key, part in space.spaces.items()}
            return None if None in named.values() else {"space": "dict", "spaces": named}
    return None


def from_dict(told: Any) -> Any:
    """The space of RLlib's dict. `UnreadableData` for a kind that is not known here."""
    if told is None or isinstance(told, spaces.Space):
        return told
    match told:
        case {"space": "box"}:
            low, high, dtype = _unpacked(told["low"]), _unpacked(told["high"]), np.dtype(told["dtype"])
            return spaces.Box(low, high, tuple(told["shape"]), dtype.type)
        case {"space": "discrete"}:
            return spaces.Discrete(int(told["n"]), start=int(told.get("start") or 0))
        case {"space": "multi-discrete"}:
            return spaces.MultiDiscrete(_unpacked(told["nvec"]), dtype=np.dtype(told["dtype"]).type)
        case {"space": "multi-binary", "n": n}:
            return spaces.MultiBinary(n if isinstance(n, int) else list(n))
        case {"space": "text"}:
            charset = "".join(sorted(told["charset"])) if "charset" in told else None
            own: dict[str, Any] = {} if charset is None else {"charset": charset}
            return spaces.Text(told["max_length"], min_length=told["min_length"], **own)
        case {"space": "tuple"}:
            return spaces.Tuple([from_dict(part) for part in told["spaces"]])
        case {"space": "dict"}:
            return spaces.Dict([(key, from_dict(part)) for key, part in told["spaces"].items()])  # type: ignore[misc]
    kind = told.get("space") if isinstance(told, dict) else type(told).__name__
    raise UnreadableData(f"a space of RLlib's of the kind {kind!r} is not known here")


def _packed(array: Any) -> str:
    body = io.BytesIO()
    np.save(body, np.asarray(array), allow_pickle=False)
    return base64.b64encode(zlib.compress(body.getvalue())).decode("ascii")


def _unpacked(text: str | bytes) -> np.ndarray:
    return np.load(io.BytesIO(zlib.decompress(base64.b64decode(text))), allow_pickle=False)
