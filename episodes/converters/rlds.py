"""Import of episodes in RLDS: data sets of TensorFlow Datasets with a nested data set of steps, without TensorFlow."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from episodes.converters.accounting import SOURCE, Account, check_numbers
from episodes.converters.contents import Contents
from episodes.converters.format import OTHER_KIND, YES, Format, Recognition
from episodes.converters.images import pixels_of
from episodes.converters.info_arrays import infos_from
from episodes.converters.loss_report import LossReport
from episodes.converters.source_ids import prefix_of_files
from episodes.converters.tf_examples import features_of, records_of
from episodes.errors import EpisodeError, UnreadableData, needing
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.files import local_path

_FILE = re.compile(r"(?:(?P<name>.*)-)?(?P<split>[^-]+)\.(?P<kind>\w+)-(?P<part>\d{5})-of-(?P<parts>\d{5})$")
_KINDS = ("tfrecord", "array_record")
_STEPS = "steps"
_FLAGS = ("is_first", "is_last", "is_terminal")
_OF_STEPS = ("observation", "action", "reward")


class _Kind(NamedTuple):
    """Type of a feature: its dtype, or "text" or "image", the shape of an item, and how a tensor is encoded."""

    dtype: str
    shape: tuple[int, ...]
    encoding: str = "none"


def rlds_episodes(path: str | Path, report: LossReport, prefix: str | None = None) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of a folder with features.json and files of records, and add losses to `report`.

    RLDS stores a step for each observation. The last one has the observation after the last action, so an episode of
    N stored steps has N - 1 steps, and the last action and reward have no meaning: the report names them unless they
    are 0. A last step without `is_terminal` truncates, and an episode whose last step is not `is_last` is cut. Other
    features of the steps, such as the instruction, and text in the observation are infos of the observation of their
    step. Features of the episode and its split are custom data. The ids are "rlds-DIGEST/0", "rlds-DIGEST/1" and so on,
    in the order of the files.

    Raises:
        MissingExtra: pillow is not installed and there are images, or array_record and there are such files.
        UnreadableData: the folder has no such data set, a file is missing, truncated or of another kind.
    """
    root = local_path(path)
    kinds, skipped = _kinds_of(root)
    for name, reason in skipped.items():
        report.add(name, reason, root.name)
    if missing := [name for name in _OF_STEPS[:2] if not any(_is_below(key, f"{_STEPS}/{name}") for key in kinds)]:
        raise UnreadableData(f"{root}: features.json has no feature 'steps/{missing[0]}' that can be read")
    files = _files_of(root)
    prefix, number = prefix_of_files("rlds", files, prefix), 0
    known = {*files, root / "features.json", root / "dataset_info.json"}
    for file in sorted(root.rglob("*")):
        if file.is_file() and file not in known:
            report.add(file.relative_to(root).as_posix(), "the file is not read", root.name)
    shared = Account(_info_of(root))
    shared.skip("splits", "fileFormat", "moduleName", "downloadSize", "configName")
    about = shared.kept()
    shared.report_rest(report, root.name)
    for file in files:
        match = _FILE.match(file.name)
        custom = {"split": match["split"] if match else ""} | ({SOURCE: about} if about else {})
        for record in records_of(file) if ".tfrecord-" in file.name else _array_records(file):
            made = _episode(record, kinds, f"{prefix}/{number}", dict(custom), report)
            if made is not None:
                yield made
            number += 1


def _info_of(root: Path) -> dict[str, Any]:
    """Return the content of dataset_info.json, {} without it."""
    file = root / "dataset_info.json"
    try:
        info = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, ValueError) as error:
        raise UnreadableData(f"{file}: {error!r}; write or download it again") from None
    return info if isinstance(info, dict) else {}


def _files_of(root: Path) -> list[Path]:
    """Return the files of records in order.

    Raises:
        UnreadableData: there are none, one is missing, or they are of a kind that cannot be read.
    """
    found = [(match, file) for file in sorted(root.iterdir()) if (match := _FILE.match(file.name))]
    if not found:
        raise UnreadableData(f"{root}: no files of records, such as x-train.tfrecord-00000-of-00001; give their folder")
    parts: dict[tuple[str, str], set[int]] = {}
    for match, file in found:
        if match["kind"] not in _KINDS:
            raise UnreadableData(f"{file}: records of {match['kind']}; {' and '.join(_KINDS)} are read: convert it")
        parts.setdefault((match["split"], match["parts"]), set()).add(int(match["part"]))
    for (split, count), present in parts.items():
        if missing := set(range(int(count))) - present:
            raise UnreadableData(
                f"{root}: of the {int(count)} files of the split {split!r}, {len(missing)} are missing, the first is "
                f"{min(missing):05d}-of-{count}; download them"
            )
    return [file for _, file in found]


def _kinds_of(root: Path) -> tuple[dict[str, _Kind], dict[str, str]]:
    """Return the types of the features by path, such as "steps/observation/image", and why others are not read."""
    file = root / "features.json"
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        kinds: dict[str, _Kind] = {}
        skipped: dict[str, str] = {}
        _add_kinds(document, "", kinds, skipped)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableData(f"{file}: not the features of a data set: {error!r}") from None
    return kinds, skipped


def _add_kinds(document: dict[str, Any], path: str, kinds: dict[str, _Kind], skipped: dict[str, str]) -> None:
    """Add the features of a part of features.json, or the reasons why they are not read."""
    if "featuresDict" in document:
        for name, inner in document["featuresDict"]["features"].items():
            _add_kinds(inner, f"{path}/{name}" if path else name, kinds, skipped)
        return
    if path == _STEPS and "sequence" in document:
        _add_kinds(document["sequence"]["feature"], path, kinds, skipped)
        return
    if "text" in document:
        kinds[path] = _Kind("text", ())
    elif "classLabel" in document:
        kinds[path] = _Kind("int64", ())
    elif "image" in document or "tensor" in document:
        tensor = document.get("image") or document["tensor"]
        shape = tuple(int(size) for size in tensor.get("shape", {}).get("dimensions", ()))
        dtype = "image" if "image" in document else str(tensor["dtype"]).replace("string", "text")
        if dtype not in ("text", "image") and (min(shape, default=0) < 0 or not hasattr(np, dtype)):
            skipped[path] = f"its items have the shape {list(shape)} and the dtype {dtype}"
        else:
            kinds[path] = _Kind(dtype, shape, tensor.get("encoding", "none"))
    else:
        skipped[path] = f"features of {document.get('pythonClassName', 'an unknown class').rpartition('.')[2]}"


def _array_records(file: Path) -> Iterator[bytes]:
    """Yield the records of an array_record file."""
    with needing("rlds", f"{file.name} needs array_record"):
        from array_record.python.array_record_module import ArrayRecordReader
    try:
        reader = ArrayRecordReader(str(file))
        for index in range(reader.num_records()):
            yield reader.read([index])[0]
    except (RuntimeError, ValueError) as error:
        raise UnreadableData(f"{file}: not a complete array_record file: {error}; download it again") from None


def _episode(
    record: bytes, kinds: dict[str, _Kind], id_: str, custom_data: dict[str, Any], report: LossReport
) -> SingleAgentEpisode | None:
    """Return the episode of a record, or None if it has no step."""
    stored, arrays = Account(features_of(record)), {}
    for path, kind in kinds.items():
        if path in stored:
            arrays[path] = _items(stored[path], kind, f"{id_}: {path!r}")
    stored.report_rest(report, id_, "features.json does not describe it so")
    of_steps = {path.removeprefix(f"{_STEPS}/"): array for path, array in arrays.items() if _is_below(path, _STEPS)}
    lengths = {path: len(array) for path, array in of_steps.items()}
    num = max(lengths.values(), default=0)
    if uneven := [path for path, length in lengths.items() if length != num]:
        raise UnreadableData(f"{id_}: {uneven[0]!r} has {lengths[uneven[0]]} items, others have {num}; one per step")
    if num < 2:
        report.add("the episode", "it has no step" if not num else "it has an observation and no step", id_)
        return None
    for name in (*_FLAGS, "reward"):
        if name in of_steps and of_steps[name].size != num:
            shape = list(of_steps[name].shape)
            raise UnreadableData(f"{id_}: 'steps/{name}' has shape {shape}; it has one value per step")
    of_steps |= {name: of_steps[name].reshape(num) for name in (*_FLAGS, "reward") if name in of_steps}
    tracks = {role: _below(of_steps, role) for role in _OF_STEPS}
    flags = {name: of_steps.pop(name, None) for name in _FLAGS}
    rest = {path: array for path, array in of_steps.items() if not any(_is_below(path, role) for role in _OF_STEPS)}
    observations, texts = _without_text(tracks["observation"])
    actions, rewards = tracks["action"], tracks["reward"]
    for role, data in (("observation", observations), ("action", actions)):
        if isinstance(data, dict) and not data:
            raise UnreadableData(f"{id_}: the record has no numbers for 'steps/{role}'")
    check_numbers(id_, {"action": actions, "reward": rewards if isinstance(rewards, np.ndarray) else np.zeros(0)})
    _report_last_step(tracks, id_, report)
    if not isinstance(rewards, np.ndarray):
        report.add("rewards", "the data have none; zeros stand there", id_)
        rewards = np.zeros(num)
    for path, array in arrays.items():
        if not _is_below(path, _STEPS):
            _put(custom_data, path, array[0].item() if array[0].ndim == 0 else array[0].tolist())
    is_last = flags["is_last"] is not None and bool(flags["is_last"][-1])
    terminated = flags["is_terminal"] is not None and bool(flags["is_terminal"][-1])
    _report_flags(flags, id_, report)
    infos = infos_from(rest | {f"observation/{path}": array for path, array in texts.items()}, num)
    return SingleAgentEpisode.from_arrays(
        observations,
        _map(actions, lambda array: array[:-1]),
        rewards[:-1],
        infos=infos if any(infos) else None,
        terminated=terminated,
        truncated=is_last and not terminated,
        id_=id_,
        custom_data=custom_data,
    )


def _report_flags(flags: dict[str, Any], id_: str, report: LossReport) -> None:
    """Report endings that are not marked, and flags at other places than an episode has them."""
    if flags["is_terminal"] is None:
        report.add("whether it terminated", "there is no 'is_terminal'; taken as truncated", id_)
    if flags["is_last"] is None and flags["is_terminal"] is None:
        report.add("endings", "the data mark none; the episodes count as cut", id_)
    for name, flag in flags.items():
        inner = flag is not None and (flag[1:] if name == "is_first" else flag[:-1])
        if np.any(inner):
            report.add(f"{name!r} within the episode", "an episode begins and ends once", id_)
    if flags["is_first"] is not None and not flags["is_first"][0]:
        report.add("the first steps", "the first stored step is not 'is_first'", id_)


def _report_last_step(tracks: dict[str, Any], id_: str, report: LossReport) -> None:
    """Report an action and a reward of the last stored step that are not 0."""
    for role in ("action", "reward"):
        leaves: list[np.ndarray] = []
        _map(tracks[role], leaves.append)
        if any(np.any(leaf[-1]) for leaf in leaves):
            report.add(f"the {role} of the last row", "RLDS's last row of an episode is an observation only", id_)


def _is_below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(f"{parent}/")


def _below(arrays: dict[str, np.ndarray], parent: str) -> Any:
    """Return the array at a path, or a nested dict of the arrays below it."""
    if parent in arrays:
        return arrays[parent]
    nested: dict[str, Any] = {}
    for path, array in arrays.items():
        if _is_below(path, parent):
            _put(nested, path.removeprefix(f"{parent}/"), array)
    return nested


def _put(nested: dict[str, Any], path: str, value: object) -> None:
    """Store a value in nested dicts at a path with slashes."""
    first, _, rest = path.partition("/")
    if rest:
        _put(nested.setdefault(first, {}), rest, value)
    else:
        nested[first] = value


def _map(data: dict[str, Any] | np.ndarray, function: Callable[[np.ndarray], object]) -> Any:
    """Apply a function to each array in nested dicts."""
    return {key: _map(part, function) for key, part in data.items()} if isinstance(data, dict) else function(data)


def _without_text(data: dict[str, Any] | np.ndarray, path: str = "") -> tuple[Any, dict[str, np.ndarray]]:
    """Return nested arrays without those of text, and the arrays of text by path."""
    if not isinstance(data, dict):
        return ({}, {path or "text": data}) if data.dtype.kind == "U" else (data, {})
    kept, texts = {}, {}
    for key, part in data.items():
        inner, of_part = _without_text(part, f"{path}/{key}" if path else key)
        texts |= of_part
        if not isinstance(inner, dict) or inner:
            kept[key] = inner
    return kept, texts


def _items(values: Any, kind: _Kind, where: str) -> np.ndarray:
    """Return the items of a feature [n, ...] from a list of an Example.

    Raises:
        UnreadableData: the values do not fit the feature's type.
    """
    try:
        if kind.dtype == "text":
            return np.array([value.decode(errors="replace") for value in values], np.str_).reshape(-1, *kind.shape)
        if kind.dtype == "image":
            return pixels_of(values, where, len(kind.shape))
        dtype, size = np.dtype(kind.dtype), math.prod(kind.shape)
        if isinstance(values, list):  # encoded by bytes, such as zlib
            most = size * dtype.itemsize
            data = [_decompressed(value, most) if kind.encoding == "zlib" else value for value in values]
            return np.stack([np.frombuffer(part, dtype.newbyteorder("<")) for part in data]).reshape(-1, *kind.shape)
        return values.reshape(-1, *kind.shape).astype(dtype) if size else np.zeros((0, *kind.shape), dtype)
    except EpisodeError:
        raise
    except (ValueError, TypeError, AttributeError, zlib.error) as error:
        shape = list(kind.shape)
        raise UnreadableData(f"{where}: not of dtype {kind.dtype} and shape {shape}: {error}") from None


def _decompressed(data: bytes, most: int) -> bytes:
    """Return the content of compressed bytes, at most one byte more than `most`."""
    return zlib.decompressobj().decompress(data, most + 1)


def _recognize(contents: Contents) -> Recognition:
    if contents.kind != "directory" or not contents.has("features.json"):
        return OTHER_KIND
    try:
        kinds, _ = _kinds_of(contents.path)
    except UnreadableData as error:
        return Recognition(False, str(error))
    has_steps = any(_is_below(path, f"{_STEPS}/observation") for path in kinds)
    return YES if has_steps else Recognition(False, "features.json has no 'steps/observation'")


def _count(contents: Contents) -> int | None:
    splits = _info_of(contents.path).get("splits", [])
    return sum(int(length) for split in splits for length in split.get("shardLengths", [])) or None


FORMAT = Format("rlds", "RLDS data sets of TensorFlow Datasets", _recognize, rlds_episodes, count=_count)
