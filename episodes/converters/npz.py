"""Import of episodes from NPZ archives of numpy, by the names of their arrays, such as OGBench's."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from episodes.converters.accounting import SOURCE, Account
from episodes.converters.array_roles import OF_STEPS, ROLES, endings, missing_role, names_of_roles
from episodes.converters.contents import Contents
from episodes.converters.flat_steps import FlatSteps
from episodes.converters.format import OTHER_KIND, YES, Format, Recognition
from episodes.converters.loss_report import LossReport
from episodes.converters.npy_arrays import StreamedArray
from episodes.converters.source_ids import prefix_of_files
from episodes.errors import EpisodeError, UnreadableData
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.files import local_path

_INFOS = "biufcSU"  # numpy kinds of arrays that become infos: numbers and text


def npz_episodes(path: str | Path, report: LossReport, prefix: str | None = None) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of an NPZ archive with a row per step, and add losses to `report`.

    Arrays are recognized by the names in `array_roles.ROLES`. All other arrays with a row per step are infos of the
    observation of their row. Other values are `custom_data["source"]` if they are small. The ids are "npz-DIGEST/0",
    "npz-DIGEST/1" and so on, with a digest of the file's content.

    Raises:
        UnreadableData: the file is not an NPZ archive with observations and actions, an array has another number of
            rows, holds no numbers, or holds Python objects, which are a pickle.
    """
    path = local_path(path)
    try:
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(path))
            arrays: dict[str, Any] = {}
            for member in archive.namelist():
                name = member.removesuffix(".npy")
                opened = stack.enter_context(archive.open(member))
                try:
                    arrays[name] = StreamedArray(f"{path}: {name!r}", opened)
                except UnreadableData:
                    if any(name in names for names in ROLES.values()):
                        raise
                    report.add(name, "Python objects, which are a pickle; such are never opened", path.name)
            ids = prefix_of_files("npz", [path], prefix)
            yield from _episodes_of(arrays, path, ids, report)
    except EpisodeError:
        raise
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, RuntimeError) as error:
        raise UnreadableData(f"{path}: a damaged archive: {error}; write or download it again") from error


def _episodes_of(arrays: dict[str, Any], path: Path, prefix: str, report: LossReport) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of an archive's arrays by name. Values that are not read are noted in `report`."""
    names, stored = names_of_roles(tuple(arrays)), Account(arrays)
    if missing := [role for role in ("observations", "actions") if role not in names]:
        raise UnreadableData(f"{path}: {missing_role(missing[0])}; it has {', '.join(map(repr, arrays))}")
    columns = {role: stored[names[role]] for role in OF_STEPS if role in names}
    infos = _infos_of(stored, names, columns)
    custom_data: dict[str, Any] = {}
    steps = FlatSteps(str(path), columns, names, infos, report, custom_data)
    terminated, truncated, ends = endings(steps, stored, names, report, path.name)
    if kept := stored.kept():
        custom_data[SOURCE] = kept
    stored.report_rest(report, path.name)
    yield from steps.episodes(prefix, terminated, truncated, ends)


def _infos_of(stored: Account, names: dict[str, str], columns: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays without a role that have a row per observation, or else those that have a row per step."""
    rest = {name: array for name, array in stored.values.items() if name not in names.values()}
    for known in (columns["observations"], columns["actions"]):
        alike = [
            name
            for name, array in rest.items()
            if array.shape and array.shape[:1] == known.shape[:1] and array.dtype.kind in _INFOS
        ]
        if alike:
            return {name: stored[name] for name in alike}
    return {}


def _recognize(contents: Contents) -> Recognition:
    if contents.kind != "npz":
        return OTHER_KIND
    names = names_of_roles(contents.names)
    missing = [missing_role(role) for role in ("observations", "actions") if role not in names]
    return Recognition(False, "; ".join(missing)) if missing else YES


FORMAT = Format("npz", "NPZ with a row per step, such as OGBench's", _recognize, npz_episodes)
