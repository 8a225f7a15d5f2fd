"""Import of episodes from HDF5 files of Tianshou's replay buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.converters.accounting import SOURCE, Account, StoredArray, StoredArrays, check_numbers, check_rows
from episodes.converters.format import Format, needs
from episodes.converters.hdf5_files import attributes_of, infos_of, opened, tree_of
from episodes.converters.loss_report import LossReport
from episodes.converters.source_ids import prefix_of_files
from episodes.converters.transitions import Transitions, blocks_of
from episodes.errors import UnreadableData
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.files import local_path
from episodes.tracks import nested

if TYPE_CHECKING:
    import h5py

_NEEDED = ("_meta/obs", "_meta/act", "_meta/rew")
_STEPS = ("obs", "obs_next", "act", "rew")
_OF_RINGS = ("_indices", "_offset", "_extend_offset", "_lengths", "last_index", "buffers", "options")
_RINGS = ("_size", "_index", "_insertion_idx", "maxsize", "buffer_num", "_maxsize", "_save_obs_next")
_RINGS += ("_ep_len", "_ep_idx", "_ep_start_idx", "_ep_rew", "_ep_return")
_KIND = "__data_type__"  # attribute of Tianshou: type of the value, such as "pickled_ndarray"


def tianshou_file_episodes(
    path: str | Path, report: LossReport, prefix: str | None = None
) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of an HDF5 file that `ReplayBuffer.save_hdf5` of Tianshou wrote, the oldest first.

    Ids are "tianshou-DIGEST/0" and so on. A `VectorReplayBuffer` has one ring per environment, and they are read one
    after the other. The oldest episode of a full ring may lack its first steps. Infos are those of the next
    observation. Pickled values are not opened.

    Args:
        path: the file.
        report: gets what is lost.
        prefix: first part of the ids, instead of the digest.

    Raises:
        MissingExtra: h5py is not installed.
        UnreadableData: the file does not have this layout, has no next observations (`ignore_obs_next=True`), or arrays
            have different numbers of rows, or are pickled or no numbers.
    """
    path = local_path(path)
    with opened(path, "a file of Tianshou's layout") as file:
        made = prefix_of_files("tianshou", [path], prefix)
        stored = Account(file)
        steps = stored.inside("_meta")
        columns = {name: _read(steps, name, path) for name in _STEPS}
        num = columns["rew"].shape[0]
        flags = _flags(steps, report, path, num)
        stored.skip(*_OF_RINGS)
        _skip_pickles(stored, file, "", report, path.name)
        has_infos = isinstance(file["_meta"].get("info"), Mapping)
        infos = infos_of(steps.inside("info"), file["_meta/info"], num) if has_infos else {}
        check_numbers(str(path), columns)
        check_rows(str(path), columns, num, "rew")
        if len(columns["rew"].shape) > 1:
            raise UnreadableData(f"{path}: 'rew' has shape {columns['rew'].shape}; it has one number per step")
        rings = _rings_of(file, num)
        kept = _shared_values(file, stored, report, path.name)
        first = 0
        for rows, is_full in rings:
            if is_full:
                reason = "the ring is full, and those of its oldest episode may be overwritten"
                report.add("the first steps", reason, f"{made}/{first}")
            for episode in _episodes_of(rows, columns, flags, infos, made, first, report, kept):
                yield episode
                first += 1


def _read(steps: Account, name: str, path: Path) -> Any:
    """Return nested arrays of the buffer. Raise `UnreadableData` if they are not there or pickled."""
    if name not in steps:
        reason = "; with ignore_obs_next=True there are no next observations" if name == "obs_next" else ""
        raise UnreadableData(f"{path}: no '_meta/{name}'{reason}; save a buffer that has them")
    tree = tree_of(steps[name])
    for leaf in nested.leaves(tree):
        if str(leaf.attrs.get(_KIND, "")).startswith("pickled"):
            raise UnreadableData(f"{path}: '_meta/{name}' holds pickled objects, which are not opened; save numbers")
    return tree


def _flags(steps: Account, report: LossReport, path: Path, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows terminated and which were truncated, bool [N] each."""
    found = {name: steps[name] for name in ("terminated", "truncated", "done") if name in steps}
    check_numbers(str(path), found)
    check_rows(str(path), found, num, "rew")
    flags = {name: array[()].reshape(num).astype(bool) for name, array in found.items()}
    if not flags:
        raise UnreadableData(f"{path}: no '_meta/terminated' and no '_meta/done'; save a buffer that has them")
    if "terminated" in flags:
        truncated = flags.get("truncated", np.zeros(num, bool))
        if "done" in flags and (flags["done"] != (flags["terminated"] | truncated)).any():
            report.add("done", "it differs from terminated and truncated, which are read", path.name)
        return flags["terminated"], truncated
    report.add("truncations", "the source has 'done' alone, so time limits are read as terminations", path.name)
    return flags["done"], np.zeros(num, bool)


def _rings_of(file: Any, num: int) -> list[tuple[np.ndarray, bool]]:
    """Return the rows of each ring, the oldest first, and whether the ring is full."""
    if "_lengths" not in file or "_offset" not in file:
        size = int(file.attrs["_size"])
        start = int(file.attrs.get("_insertion_idx", file.attrs.get("_index", 0))) if size == num else 0
        return [((start + np.arange(size)) % num, size == num)] if size else []
    starts = file["_offset"][()].tolist()
    rings = []
    for start, stop, length, last in zip(
        starts, [*starts[1:], num], file["_lengths"][()].tolist(), file["last_index"][()].tolist(), strict=True
    ):
        size = stop - start
        oldest = last - start + 1 if length == size else 0
        rings.append((start + (oldest + np.arange(length)) % size, length == size))
    return rings


def _skip_pickles(account: Account, group: Mapping[str, Any], place: str, report: LossReport, where: str) -> None:
    """Report the pickled values in a group that were not read, and mark them as read."""
    for key, item in group.items():
        if account.has_read(key):
            continue
        if isinstance(item, Mapping):
            _skip_pickles(account.inside(key), item, f"{place}{key}/", report, where)
        elif str(item.attrs.get(_KIND, "ndarray")) not in ("ndarray", "Tensor"):
            report.add(f"{place}{key}", "it is a pickle, which is not opened", where)
            account.skip(key)


def _shared_values(file: h5py.Group, stored: Account, report: LossReport, where: str) -> dict[str, Any]:
    """Return the custom data of all episodes: small values that do not describe the rings."""
    attributes = {
        name: value
        for name, value in attributes_of(file).items()
        if name.rpartition("/")[2] != _KIND and name.partition("/")[0] != "options.attrs"
    }
    account = Account(attributes)
    account.skip(*(f"attrs/{name}" for name in _RINGS))
    kept = account.kept() | stored.kept()
    for one in (account, stored):
        one.report_rest(report, where)
    return {SOURCE: kept} if kept else {}


def _episodes_of(
    rows: np.ndarray,
    columns: dict[str, Any],
    flags: tuple[np.ndarray, np.ndarray],
    infos: dict[str, Any],
    prefix: str,
    first: int,
    report: LossReport,
    custom_data: dict[str, Any],
) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of one ring, whose rows are read in blocks."""
    if not len(rows):
        return
    terminated, truncated = (flag[rows] for flag in flags)
    ends = terminated | truncated
    ends[-1] = True
    for block in blocks_of(ends, (columns, infos)):
        wanted = rows[block]

        def part(data: StoredArrays, wanted: np.ndarray = wanted) -> Any:
            return nested.map_leaves(lambda array: _rows_of(array, wanted), data)

        read = {name: part(data) for name, data in columns.items()}
        steps = Transitions(
            read["obs"], read["obs_next"], read["act"], read["rew"], terminated[block], truncated[block],
            infos=part(infos), first_row=int(wanted[0]), custom_data=custom_data,
        )  # fmt: skip
        for episode in steps.episodes(prefix, report, first):
            yield episode
            first += 1


def _rows_of(array: StoredArray, rows: np.ndarray) -> np.ndarray:
    """Return rows of an array in a file. They are consecutive, except that the first one may follow the last one."""
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    parts = [array[int(part[0]) : int(part[-1]) + 1] for part in np.split(rows, cuts)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


FORMAT = Format(
    "tianshou", "HDF5 of Tianshou", lambda contents: needs(contents, "hdf5", _NEEDED), tianshou_file_episodes
)
