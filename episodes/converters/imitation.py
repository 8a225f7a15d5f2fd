"""Import of trajectories that the library imitation saved: a folder of Hugging Face `datasets`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.converters.accounting import Account, check_numbers
from episodes.converters.columns import array_of
from episodes.converters.contents import Contents
from episodes.converters.format import OTHER_KIND, YES, Format, Recognition
from episodes.converters.loss_report import LossReport
from episodes.converters.source_ids import prefix_of_files
from episodes.errors import EpisodeError, UnreadableData
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.arrow import as_unreadable_data, pyarrow
from episodes.storage.files import local_path

if TYPE_CHECKING:
    import pyarrow as pa

_NEEDED = ("obs", "acts", "terminal")
_LIMIT = "TimeLimit.truncated"  # key of an info, which Stable-Baselines3 sets at the end of an episode


def imitation_episodes(path: str | Path, report: LossReport, prefix: str | None = None) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of a folder that imitation wrote, one stored batch at a time, and add losses to `report`.

    The ids are "imitation-DIGEST/0", "imitation-DIGEST/1" and so on, with a digest of the stored trajectories. The info
    of a step belongs to the observation after it. The infos are JSON. Values in it that jsonpickle has to restore, such
    as arrays, are reported: restoring them may run code. A trajectory with `terminal` that has no info
    "TimeLimit.truncated" is taken as terminated, which is reported. One without `terminal` is a cut chunk.

    Raises:
        MissingExtra: pyarrow is not installed.
        UnreadableData: the folder has no such trajectories, a file is damaged, or arrays have unequal lengths.
    """
    root = local_path(path)
    files = _files_of(root)
    prefix, number = prefix_of_files("imitation", files, prefix), 0
    _report_other_files(root, files, report)
    for file in files:
        for batch in _batches(file):
            for row in range(len(batch)):
                values = {name: batch.column(i)[row] for i, name in enumerate(batch.schema.names)}
                made = _episode(Account(values), f"{prefix}/{number}", report)
                if made is not None:
                    yield made
                number += 1


def _files_of(root: Path) -> list[Path]:
    """Return the Arrow files of a folder of `datasets`, in order.

    Raises:
        UnreadableData: the folder has no valid state.json, or a file that it lists is missing.
    """
    try:
        state = json.loads((root / "state.json").read_text(encoding="utf-8"))
        files = [root / Path(file["filename"]).name for file in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableData(f"{root}: not a folder of datasets with a valid state.json: {error!r}") from None
    for file in files:
        if not file.exists():
            raise UnreadableData(f"{root}: {file.name} is missing, which state.json lists; copy the whole folder")
    return files


def _report_other_files(root: Path, files: list[Path], report: LossReport) -> None:
    """Report files that are not of the layout, and what dataset_info.json has besides the types of the columns."""
    try:
        info = json.loads((root / "dataset_info.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        info = {}
    for key in ("citation", "description", "homepage", "license"):
        if info.get(key):
            report.add(f"dataset_info.json: {key}", "an episode has no place for it", root.name)
    known = {*files, root / "state.json", root / "dataset_info.json"}
    for file in sorted(root.rglob("*")):
        if file.is_file() and file not in known:
            report.add(file.relative_to(root).as_posix(), "the file is not read", root.name)


def _batches(file: Path) -> Iterator[Any]:
    """Yield the record batches of an Arrow file, in the stream format, which is mapped and not loaded."""
    pa = pyarrow()
    with as_unreadable_data(str(file)), pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as reader:
        for batch in reader:
            batch.validate(full=True)  # a damaged file has offsets beyond its values, which end the process when read
            yield batch


def _episode(stored: Account, id_: str, report: LossReport) -> SingleAgentEpisode | None:
    """Return the episode of a row, or None if it has no step.

    Raises:
        UnreadableData: a value is missing, no numbers, or of another length.
    """
    try:
        observations, actions = _array(stored["obs"]), _array(stored["acts"])
        rewards = _array(stored["rews"]) if "rews" in stored else np.zeros(len(actions))
        is_over = bool(stored["terminal"].as_py())
    except (KeyError, AttributeError, ValueError, NotImplementedError) as error:
        raise UnreadableData(f"{id_}: 'obs', 'acts' or 'terminal' is missing or of another type: {error!r}") from None
    check_numbers(id_, {"obs": observations, "acts": actions, "rews": rewards})
    num = len(actions)
    if len(observations) != num + 1 or rewards.shape != (num,):
        raise UnreadableData(
            f"{id_}: {len(observations)} 'obs', {num} 'acts' and 'rews' of shape {rewards.shape}; "
            "a trajectory of T actions has T + 1 observations and T rewards"
        )
    texts = stored["infos"].as_py() if "infos" in stored else None
    if texts is not None and len(texts) != num:
        raise UnreadableData(f"{id_}: {len(texts)} 'infos' and {num} 'acts'; each step has one")
    if "rews" not in stored:
        report.add("rewards", "the data have none; zeros stand there", id_)
    stored.report_rest(report, id_)
    if not num:
        report.add("the episode", "it has an observation and no step", id_)
        return None
    infos = [{}, *(_info(text, id_, report) for text in texts or [None] * num)]
    is_truncated = bool(is_over and infos[-1].get(_LIMIT, False))
    if is_over and _LIMIT not in infos[-1]:
        report.add("truncations", f"'terminal' without the info {_LIMIT!r} is taken as a termination", id_)
    return SingleAgentEpisode.from_arrays(
        observations,
        actions,
        rewards,
        infos=infos if any(infos) else None,
        terminated=is_over and not is_truncated,
        truncated=is_truncated,
        id_=id_,
    )


def _array(value: pa.Scalar) -> np.ndarray:
    """Return the list of an Arrow scalar as an array."""
    return array_of(value.values if hasattr(value, "values") else value.value)


def _info(text: str | None, id_: str, report: LossReport) -> dict[str, Any]:
    """Return the info of a step from its JSON, without values that jsonpickle would have to restore."""
    try:
        info = json.loads(text) if text else {}
    except ValueError as error:
        raise UnreadableData(f"{id_}: an info is not JSON: {error}") from None
    if not isinstance(info, dict):
        report.add("infos", "one that is no dict", id_)
        return {}
    return _without_objects(info, "infos", id_, report)


def _without_objects(info: dict[str, Any], path: str, id_: str, report: LossReport) -> dict[str, Any]:
    """Return nested dicts without the values that jsonpickle would have to restore, which are reported."""
    kept = {}
    for key, value in info.items():
        name = f"{path}[{key!r}]"
        if _has_objects(value) and isinstance(value, dict) and not any(part.startswith("py/") for part in value):
            kept[key] = _without_objects(value, name, id_, report)
        elif _has_objects(value):
            report.add(name, "an object in jsonpickle's form, which may run code; it is never restored", id_)
        else:
            kept[key] = value
    return kept


def _has_objects(value: object) -> bool:
    """Return True if a JSON document has a part in jsonpickle's form: a dict with keys such as "py/reduce"."""
    if isinstance(value, dict):
        return any(key.startswith("py/") or _has_objects(part) for key, part in value.items())
    return isinstance(value, list) and any(map(_has_objects, value))


def _recognize(contents: Contents) -> Recognition:
    if contents.kind != "directory" or not contents.has("state.json"):
        return OTHER_KIND
    try:
        batch = next(_batches(_files_of(contents.path)[0]), None)
    except (EpisodeError, IndexError) as error:
        return Recognition(False, str(error))
    names = [] if batch is None else batch.schema.names
    missing = [name for name in _NEEDED if name not in names]
    return Recognition(False, f"a folder of datasets without {', '.join(map(repr, missing))}") if missing else YES


FORMAT = Format("imitation", "folders of imitation's trajectories", _recognize, imitation_episodes)
