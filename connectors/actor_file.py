"""File format of actors: weights, statistics and settings. The files contain no pickles, and no code is run when they
are read.

"RLACTOR1" | SHA-256 of all that follows, 32 bytes | length of the header, 8 bytes | header, JSON | arrays
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from connectors import env_to_module as to_module
from connectors import module_to_env as to_env
from connectors.batch_items import BatchItems
from connectors.connector import Connector
from connectors.env_to_module.pipeline import DEFAULT_CONNECTORS
from connectors.fingerprint import settings_of
from connectors.module_to_env import ModuleToEnvPipeline
from connectors.tensors import NumpyToTensor
from connectors.views.piece import ViewPiece
from episodes.errors import EpisodeError, InvalidArgument, UnreadableData
from episodes.format_versions import ACTOR, check_magic, checked_integer, checked_shape
from episodes.storage import space_json
from episodes.storage.files import local_path

if TYPE_CHECKING:
    from types import ModuleType

    from connectors.actor import Actor

__all__ = ["as_unreadable", "read_actor", "build_pieces", "build_module_to_env", "state_of", "write_actor"]

_KIND = b"RLACTOR"  # and the version of the format, one digit
_MAGIC = b"%s%d" % (_KIND, ACTOR)
_HEAD = len(_MAGIC) + 32 + 8
_KINDS = "biufc"  # dtypes of arrays in a file


def _of_library(module: ModuleType) -> dict[str, Any]:
    return {name: getattr(module, name) for name in module.__all__}


_PARTS = {"ViewPiece": ViewPiece, **_of_library(to_module), **_of_library(to_env)}
_PARTS |= {"BatchItems": BatchItems, "NumpyToTensor": NumpyToTensor}
"""The connectors and views that a file can name."""


def state_of(actor: Actor) -> dict[str, Any]:
    """Return what the file of an actor contains, as a dict: weights, spaces, statistics, and the settings of all
    connectors.

    Raises:
        InvalidArgument: the policy is not a module, or the spaces are not known.
    """
    if not isinstance(actor.policy, nn.Module):
        raise InvalidArgument(
            f"Actor.save: {type(actor.policy).__name__} is not a torch.nn.Module, so it has no weights"
        )
    if actor.observation_space is None or actor.action_space is None:
        raise InvalidArgument("Actor.save: the actor's spaces are not known; give them to Actor")
    given = [piece for piece in actor.env_to_module.connectors if type(piece) not in DEFAULT_CONNECTORS]
    return {
        "policy": type(actor.policy).__name__,
        "weights": dict(actor.policy.state_dict()),
        "observation_space": space_json.to_json(actor.observation_space, "observation_space"),
        "action_space": space_json.to_json(actor.action_space, "action_space"),
        "pieces": [_settings_of_piece(piece) for piece in given],
        "module_to_env": [_settings_of_piece(piece) for piece in actor.module_to_env.connectors],
        "states": {"env_to_module": actor.env_to_module.get_state(), "module_to_env": actor.module_to_env.get_state()},
        "fingerprint": actor.fingerprint,
    }


def _settings_of_piece(piece: Connector) -> Any:
    """Return the class name and the constructor arguments of a connector or view, as a list [name, arguments].

    Returns:
        The arguments are None for classes of the user, and if a file cannot store them.
    """
    made: Any = getattr(piece, "view", None) if type(piece) is ViewPiece else piece
    name = getattr(made, "__name__", None) or type(made).__name__
    known = _PARTS.get(name)
    if known is made:
        return [name, {}]
    if known is not type(made):
        return [name, None]
    arguments = settings_of(made) if made is not piece else piece.settings
    values = vars(made)
    if not all(_is_plain(values.get(key, values.get(f"_{key}"))) for key in arguments):
        return [name, None]
    is_named = made is piece and piece.name != name
    return [name, {**arguments, "name": piece.name} if is_named else arguments]


def _is_plain(value: object) -> bool:
    """Return True if JSON and the reader of actor files restore `value` exactly. Tuples and numpy dtypes count as
    restorable.
    """
    if isinstance(value, type):
        return issubclass(value, np.generic)  # its name makes the same dtype
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(type(key) is str and _is_plain(part) for key, part in value.items())
    return value is None or type(value) in (bool, int, str) or (type(value) is float and value == value)


def build_pieces(settings: Iterable[Any], argument: str) -> list[Any]:
    """Create the connectors and views whose class names and constructor arguments are in an actor's file, and return
    them in order.

    Raises:
        InvalidArgument: a connector is not of this library, or was created with arguments that a file cannot store.
    """
    made = []
    for name, arguments in settings:
        if arguments is None or name not in _PARTS:
            raise InvalidArgument(
                f"Actor.load: the actor has {name}, which is defined outside of this library, or has settings that "
                f"cannot be stored: give {argument}"
            )
        part = _PARTS[name]
        try:
            made.append(part(**arguments) if isinstance(part, type) else part)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"Actor.load: {name} cannot be created from {arguments}: {error}; give {argument}"
            ) from error
    return made


def build_module_to_env(settings: Iterable[Any], spaces: tuple[Any, Any]) -> ModuleToEnvPipeline:
    """Return a module-to-env pipeline with the connectors described by `settings` of an actor's file."""
    connectors = build_pieces(settings, "module_to_env=")
    for piece in connectors:
        if isinstance(piece, to_env.GetActions):
            piece.adds_log_probs = False  # runners add them to whole samples
    return ModuleToEnvPipeline(*spaces, connectors=connectors)


# --- the file --------------------------------------------------------------------------------------------------------


def write_actor(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write the dict of `state_of` to the file `path` atomically: to a temporary file, which is renamed when it is
    complete.

    Raises:
        InvalidArgument: the state contains values other than numbers, strings, bytes, arrays and containers of
            these.
    """
    arrays: list[np.ndarray] = []
    tree = _encode(state, arrays)
    specs = [[array.dtype.str, list(array.shape)] for array in arrays]
    header = json.dumps({"tree": tree, "arrays": specs}).encode()
    parts = [len(header).to_bytes(8, "little"), header, *(np.ascontiguousarray(array).tobytes() for array in arrays)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    target = local_path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with open(partial, "wb") as file:
            file.writelines([_MAGIC, digest.digest(), *parts])
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def read_actor(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read an actor's file, check its size and checksum, and return the dict that was given to `write_actor`.

    Raises:
        UnreadableData: the file is damaged, or is not an actor's.
    """
    data = local_path(path).read_bytes()
    check_magic(data[: len(_MAGIC)], _KIND, ACTOR, str(path), "save the actor again with Actor.save")
    if data[: len(_MAGIC)] != _MAGIC or len(data) < _HEAD:
        raise UnreadableData(f"{path} is not a file of Actor.save: it does not begin with {_MAGIC.decode()}")
    if hashlib.sha256(data[len(_MAGIC) + 32 :]).digest() != data[len(_MAGIC) : len(_MAGIC) + 32]:
        raise UnreadableData(f"{path} is damaged: its checksum is wrong; copy or save it again")
    length = int.from_bytes(data[_HEAD - 8 : _HEAD], "little")
    with as_unreadable(path):
        header = json.loads(data[_HEAD : _HEAD + length])
        arrays, place = [], _HEAD + length
        for dtype, shape in header["arrays"]:
            array, place = _read_array(data, place, np.dtype(dtype), tuple(shape))
            arrays.append(array)
        if place != len(data):
            raise ValueError(f"{len(data) - place} bytes are left over")
        return _decode(header["tree"], arrays)


@contextmanager
def as_unreadable(path: str | os.PathLike[str]) -> Iterator[None]:
    """Context manager that converts errors of other libraries to `UnreadableData`, while values of an actor's
    file are used.
    """
    try:
        yield
    except EpisodeError:
        raise
    except Exception as error:  # spaces of gymnasium raise AssertionError, for example
        raise UnreadableData(f"{path} is not a file of Actor.save: {type(error).__name__} {error}") from error


def _read_array(data: bytes, place: int, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """Return a copy of the array stored at byte `place` of `data`, and the offset of the byte after the array.

    Raises:
        ValueError: dtype or shape is not allowed, or the data end before the array.
    """
    if dtype.kind not in _KINDS:
        raise ValueError(f"an array of dtype {dtype}")
    count = math.prod(checked_shape(shape, "the shape of an array"))
    end = place + count * dtype.itemsize
    if end > len(data):
        raise ValueError("an array is longer than the file")
    return np.frombuffer(data, dtype, count, place).reshape(shape).copy(), end


def _encode(value: object, arrays: list[np.ndarray]) -> Any:
    """Return a nested value in JSON form. Its arrays are appended to `arrays`, and the JSON form refers to them by
    index.

    Raises:
        InvalidArgument: a value or a dtype has no JSON form.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
        if tensor.dtype is torch.bfloat16:
            return {"bfloat16": _encode(tensor.view(torch.int16).numpy(), arrays)["array"]}
        return {"tensor": _encode(tensor.numpy(), arrays)["array"]}
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.kind not in _KINDS:
            raise InvalidArgument(f"Actor.save: an array of {array.dtype} in a state cannot be written; use numbers")
        arrays.append(array)
        return {"array" if isinstance(value, np.ndarray) else "scalar": len(arrays) - 1}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {"dict": [[_encode(key, arrays), _encode(part, arrays)] for key, part in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(part, arrays) for part in value]}
    raise InvalidArgument(f"Actor.save: a {type(value).__name__} in a state cannot be written; use numbers and arrays")


def _decode(value: object, arrays: list[np.ndarray]) -> Any:
    """Return the nested value for a JSON form made by `_encode`. Raise `ValueError` for an unknown kind of value."""
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise ValueError("a list without a kind")
        return value
    ((kind, content),) = value.items()
    match kind:
        case "array":
            return arrays[checked_integer(content, "the number of an array")]
        case "scalar":
            return arrays[checked_integer(content, "the number of an array")][()]
        case "tensor":
            return torch.from_numpy(arrays[checked_integer(content, "the number of an array")])
        case "bfloat16":
            return torch.from_numpy(arrays[checked_integer(content, "the number of an array")]).view(torch.bfloat16)
        case "bytes":
            return base64.b64decode(content, validate=True)
        case "dict":
            return {_key(_decode(key, arrays)): _decode(part, arrays) for key, part in content}
        case "list":
            return [_decode(part, arrays) for part in content]
        case "tuple":
            return tuple(_decode(part, arrays) for part in content)
    raise ValueError(f"a value of kind {kind!r}")


def _key(key: object) -> Any:
    """Return a decoded dict key, after a check that it is hashable. Raise `TypeError` otherwise."""
    hash(key)
    return key
