"""Conversion of Gymnasium spaces to JSON values and back."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from gymnasium import spaces

from episodes.errors import UnreadableData, WrongType
from episodes.format_versions import checked_integer, checked_shape
from episodes.tracks.policy_box import PolicyBox
from episodes.tracks.space_kinds import SpaceKind, exact_kind_of, parts_of

Json = dict[str, Any]


def to_json(space: spaces.Space | None, name: str) -> Json | None:
    """Convert a Gymnasium space (or None) to a JSON value. Raise `WrongType`, naming `name`,
    if JSON cannot represent it.

    >>> to_json(spaces.Discrete(2), "action_space")
    {'type': 'Discrete', 'n': 2, 'start': 0, 'dtype': '<i8'}
    """
    if space is None:
        return None
    kind = exact_kind_of(space)
    if kind.is_nested:
        parts = [[key, to_json(part, f"{name}[{key!r}]")] for key, part in parts_of(space).items()]
        if kind is SpaceKind.TUPLE:
            return {"type": "Tuple", "spaces": [part for _, part in parts]}
        if not all(isinstance(key, (str, int)) for key, _ in parts):
            raise WrongType(f"{name}: keys of a Dict space are strings or ints on disk; there are {list(parts)}")
        return {"type": "Dict", "spaces": parts}
    if kind is SpaceKind.SEQUENCE:
        item: Any = space
        return {"type": "Sequence", "space": to_json(item.feature_space, f"{name}[...]"), "stack": bool(item.stack)}
    label = "PolicyBox" if type(space) is PolicyBox else kind.label
    if label not in _WRITERS:
        known = ", ".join(sorted((*_WRITERS, "Dict", "Tuple", "Sequence")))
        raise WrongType(f"{name}: a {type(space).__name__} space cannot be written to disk; these can: {known}")
    return {"type": label, **_WRITERS[label](space)}


def from_json(value: Json | None) -> spaces.Space | None:
    """Create the Gymnasium space (or None) from a JSON value that `to_json` returned.

    Raises:
        UnreadableData: the type of the space is unknown.
    """
    if value is None:
        return None
    kind = value["type"]
    if kind == "Dict":
        return spaces.Dict([(key, from_json(sub)) for key, sub in value["spaces"]])  # type: ignore[misc]
    if kind == "Tuple":
        return spaces.Tuple([from_json(sub) for sub in value["spaces"]])  # type: ignore[misc]
    if kind == "Sequence":
        return spaces.Sequence(from_json(value["space"]), stack=value["stack"])  # type: ignore[arg-type]
    if kind not in _READERS:
        raise UnreadableData(f"a space of type {kind!r} is not known here; known: {', '.join(sorted(_READERS))}")
    return _READERS[kind](value)


def _array_to_json(array: np.ndarray) -> Json:
    """Convert an array to JSON: dtype, shape, and data in base64 (a single element if all are equal)."""
    array = np.asarray(array, order="C")
    body = array.reshape(-1)[:1] if array.size and (array == array.reshape(-1)[0]).all() else array
    data = base64.b64encode(body.tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def _array_of(value: Json) -> np.ndarray:
    """Return the array that a JSON object describes. Data of one number fill the whole array."""
    dtype, shape = np.dtype(value["dtype"]), checked_shape(value["shape"], "the shape of an array of a space")
    array = np.frombuffer(base64.b64decode(value["data"]), dtype)
    return np.full(shape, array[0]) if len(array) == 1 else array.reshape(shape).copy()


def _box(space: spaces.Box) -> Json:
    return {"low": _array_to_json(space.low), "high": _array_to_json(space.high), "dtype": space.dtype.str}


def _policy_box(space: PolicyBox) -> Json:
    return {"env_space": {"type": "Box", **_box(space.env_space)}, "mapping": space.mapping}


def _multi_discrete(space: spaces.MultiDiscrete) -> Json:
    return {"nvec": _array_to_json(space.nvec), "start": _array_to_json(space.start), "dtype": space.dtype.str}


def _text(space: spaces.Text) -> Json:
    return {"min_length": space.min_length, "max_length": space.max_length, "characters": space.characters}


def _read_discrete(value: Json) -> spaces.Discrete:
    """Return a Discrete space. Gymnasium before 1.2.2 has such spaces of int64 alone, and no argument `dtype`."""
    dtype, n = np.dtype(value["dtype"]), checked_integer(value["n"], "n of a Discrete space", 1)
    start = checked_integer(value["start"], "the start of a Discrete space", None)
    if dtype == np.int64:
        return spaces.Discrete(n, start=start)
    try:
        return spaces.Discrete(n, start=start, dtype=dtype.type)
    except TypeError as error:
        raise UnreadableData(f"a Discrete space of dtype {dtype} needs gymnasium>=1.2.2: {error}") from None


def _read_multi_binary(value: Json) -> spaces.MultiBinary:
    n = value["n"]
    if isinstance(n, list):
        return spaces.MultiBinary(list(checked_shape(n, "the shape of a MultiBinary space")))
    return spaces.MultiBinary(checked_integer(n, "n of a MultiBinary space", 1))


def _read_text(value: Json) -> spaces.Text:
    least, most = (checked_integer(value[name], f"{name} of a Text space") for name in ("min_length", "max_length"))
    return spaces.Text(most, min_length=least, charset=value["characters"])


_WRITERS = {
    "Box": _box,
    "PolicyBox": _policy_box,
    "Discrete": lambda s: {"n": int(s.n), "start": int(s.start), "dtype": s.dtype.str},
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": lambda s: {"n": list(s.shape) if isinstance(s.n, (tuple, list, np.ndarray)) else int(s.n)},
    "Text": _text,
}
_READERS = {
    "Box": lambda v: spaces.Box(_array_of(v["low"]), _array_of(v["high"]), dtype=np.dtype(v["dtype"]).type),
    "PolicyBox": lambda v: PolicyBox(_READERS["Box"](v["env_space"]), v["mapping"]),
    "Discrete": _read_discrete,
    "MultiDiscrete": lambda v: spaces.MultiDiscrete(
        _array_of(v["nvec"]), dtype=np.dtype(v["dtype"]).type, start=_array_of(v["start"])
    ),
    "MultiBinary": _read_multi_binary,
    "Text": _read_text,
}
