"""Import of episodes from HDF5 files and replay buffers of d3rlpy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.converters.accounting import SOURCE, Account, check_numbers, plain
from episodes.converters.contents import Contents
from episodes.converters.d4rl import d4rl_episodes
from episodes.converters.format import YES, Format, Recognition, needs
from episodes.converters.hdf5_files import attributes_of, episodes_of_rows, opened
from episodes.converters.loss_report import LossReport
from episodes.converters.source_ids import prefix_of_arrays, prefix_of_files
from episodes.errors import UnreadableData
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.files import local_path

if TYPE_CHECKING:
    import h5py

_NEEDED = ("num_episodes", "columns", "actions_0", "rewards_0", "terminated_0")
_FIRST_VERSION = ("observations", "actions", "rewards", "terminals", "episode_terminals")
_NO_TRUNCATIONS = "the source marks none; an episode that does not terminate is cut"
_COLUMNS = ("observations", "actions", "rewards", "terminated")


def d3rlpy_episodes(path: str | Path, report: LossReport, prefix: str | None = None) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of an HDF5 file of d3rlpy, which `ReplayBuffer.dump` writes.

    Ids are "d3rlpy-DIGEST/0" and so on. Several observation arrays become a tuple. Discrete actions, which d3rlpy
    stores as integers [T, 1], become integers [T]. d3rlpy does not store the observation after the last step: a
    terminated episode repeats its last observation, and any other episode is cut and loses its last step. Other columns
    with a row per step are infos of the observation of their row. Files of d3rlpy 1 are read as D4RL's, and their
    "episode_terminals" end episodes.

    Args:
        path: the file.
        report: gets what is lost.
        prefix: first part of the ids, instead of the digest.

    Raises:
        MissingExtra: h5py is not installed.
        UnreadableData: the file does not have this layout, or arrays have different numbers of rows or no numbers.
    """
    path = local_path(path)
    with opened(path, "a file of d3rlpy's layout") as file:
        if "num_episodes" not in file and "episode_terminals" in file:
            yield from d4rl_episodes(path, report, prefix)
            return
        made = prefix_of_files("d3rlpy", [path], prefix)
        stored, attributes = Account(file), Account(attributes_of(file))
        num, columns = int(stored["num_episodes"][()]), plain(stored["columns"][()])
        stored.skip("version")
        more = [column for column in columns if column not in _COLUMNS]
        names = [[f"{column}_{number}" for column in (*_COLUMNS[1:], *more)] for number in range(num)]
        parts = [_observations_of(file, number) for number in range(num)]
        stored.skip(*(name for some in (*names, *parts) for name in some))
        kept = attributes.kept() | stored.kept()
        for account in (stored, attributes):
            account.report_rest(report, path.name)
        for number in range(num):
            where = f"{path}: episode {number}"
            missing = next((name for name in names[number][:3] if name not in file), None)
            if missing or not parts[number]:
                missing = missing or f"observations_{number}"
                raise UnreadableData(f"{where}: no {missing!r}, but 'num_episodes' is {num}; write the file again")
            observations = tuple(file[name] for name in parts[number])
            actions, rewards, ending, *others = (file.get(name) for name in names[number])
            check_numbers(where, {f"terminated_{number}": ending})
            terminated = bool(np.ravel(ending[()])[-1])
            if not terminated:
                report.add("truncations", _NO_TRUNCATIONS, f"{made}/{number}")
            infos, custom_data = {}, {SOURCE: kept} if kept else {}
            for column, value in zip(more, others, strict=True):
                if value is not None and value.shape[:1] == actions.shape[:1]:
                    infos[column] = value
                elif value is not None:
                    own = Account({column: value})
                    custom_data |= own.kept()
                    own.report_rest(report, f"{made}/{number}", "it has no row per step")
            arrays = {
                f"observations_{number}": observations[0] if parts[number][0].count("_") == 1 else observations,
                f"actions_{number}": _flat(actions),
                f"rewards_{number}": rewards,
            }
            yield from episodes_of_rows(where, arrays, (made, str(number)), report, terminated, infos, custom_data)


def buffer_episodes(buffer: Any, report: LossReport, prefix: str | None = None) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of a d3rlpy `ReplayBuffer`, as `d3rlpy_episodes` does those of its file.

    Raises:
        UnreadableData: arrays have different numbers of rows or no numbers.
    """
    columns = [{name: getattr(episode, name) for name in _COLUMNS} for episode in buffer.episodes]
    made = prefix_of_arrays("d3rlpy", dict(enumerate(columns)), prefix)
    for number, arrays in enumerate(columns):
        terminated = bool(arrays.pop("terminated"))
        if not terminated:
            report.add("truncations", _NO_TRUNCATIONS, f"{made}/{number}")
        if isinstance(arrays["observations"], list):
            arrays["observations"] = tuple(arrays["observations"])
        arrays["actions"] = _flat(arrays["actions"])
        where = f"{type(buffer).__name__}: episode {number}"
        yield from episodes_of_rows(where, arrays, (made, str(number)), report, terminated)


def _observations_of(file: h5py.Group, number: int) -> list[str]:
    """Return the names of the observation arrays of an episode."""
    if f"observations_{number}" in file:
        return [f"observations_{number}"]
    names = []
    while (name := f"observations_{number}_{len(names)}") in file:
        names.append(name)
    return names


def _flat(actions: np.ndarray) -> Any:
    """Return integers [T, 1] as [T], and other arrays unchanged."""
    return actions[:, 0] if actions.dtype.kind in "iu" and actions.shape[1:] == (1,) else actions


def _recognize(contents: Contents) -> Recognition:
    first = needs(contents, "hdf5", _FIRST_VERSION)
    return YES if first.is_ours else needs(contents, "hdf5", _NEEDED)


def _count(contents: Contents) -> int | None:
    with opened(contents.path, "a file of d3rlpy's layout") as file:
        return int(file["num_episodes"][()]) if "num_episodes" in file else None


FORMAT = Format("d3rlpy", "HDF5 of d3rlpy", _recognize, d3rlpy_episodes, count=_count)
