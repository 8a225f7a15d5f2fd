"""Import of episodes from HDF5 files in D4RL's layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from episodes.converters.accounting import SOURCE, Account, check_numbers, check_rows
from episodes.converters.format import Format, needs
from episodes.converters.hdf5_files import attributes_of, infos_of, opened
from episodes.converters.loss_report import LossReport
from episodes.converters.source_ids import prefix_of_files
from episodes.converters.transitions import Transitions, blocks_of, without_next
from episodes.errors import UnreadableData
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.files import local_path
from episodes.tracks import nested

_NEEDED = ("observations", "actions", "rewards", "terminals")
_OPTIONAL = ("timeouts", "next_observations", "episode_terminals")


def from_d4rl(
    path: str | Path,
    *,
    observation_space: spaces.Space | None = None,
    action_space: spaces.Space | None = None,
    prefix: str | None = None,
    strict: bool = False,
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Return the episodes of an HDF5 file in D4RL's layout, and a report of what was lost.

    Their ids are "d4rl-DIGEST/0", "d4rl-DIGEST/1" and so on, with a digest of the file's content.

    If the file has no "next_observations", the observation after an episode's last step is unknown: a terminated
    episode repeats its last observation, and any other episode loses its last step. If there is one observation more
    than steps, it is the one after the last step of the file. Arrays below "infos" are the infos of the observation of
    their row. Rows with "episode_terminals", which d3rlpy 1 writes, end episodes as "timeouts" do, unless they are
    terminal. Attributes and other values of the whole file are `custom_data["source"]`.

    Args:
        path: the file.
        observation_space: the environment's observation space, which files do not store.
        action_space: the environment's action space. Actions of D4RL are the environment's.
        prefix: first part of the ids, instead of the digest.
        strict: raise if something would be lost.

    Raises:
        MissingExtra: h5py is not installed.
        UnreadableData: the file is not HDF5, or lacks arrays of D4RL, or they have different numbers of rows, or are
            not numbers.
        LostInConversion: with `strict`, something would be lost.
    """
    report = LossReport()
    episodes = list(d4rl_episodes(path, report, prefix))
    for episode in episodes:
        episode.observation_space, episode.action_space = observation_space, action_space
    return episodes, report.check(strict)


def d4rl_episodes(path: str | Path, report: LossReport, prefix: str | None = None) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of an HDF5 file in D4RL's layout, and add losses to `report`.

    Raises:
        UnreadableData: the file is not HDF5, or does not have D4RL's layout.
        FileNotFoundError: the file does not exist.
    """
    path = local_path(path)
    with opened(path, "a file of D4RL's layout") as file:
        reader = _Reader(file, path, report)
        yield from reader.episodes(prefix_of_files("d4rl", [path], prefix))


class _Reader:
    """Reader of an open HDF5 file in D4RL's layout, which is read in blocks.

    The last row of the file ends an episode even without a flag. Values that are not read are noted in `report`.
    """

    def __init__(self, file: Any, path: Path, report: LossReport) -> None:
        self._report, self._path = report, path
        stored = Account(file)
        self._columns = {key: stored[key] for key in _NEEDED}
        self._columns |= {key: stored[key] for key in _OPTIONAL if key in stored}
        self._num = self._columns["terminals"].shape[0]
        self._infos = infos_of(stored.inside("infos"), stored["infos"]) if "infos" in stored else {}
        self._check()
        if "timeouts" not in stored and "episode_terminals" not in stored:
            reason = "the file has no 'timeouts', so steps before and after a time limit may be in one episode"
            report.add("truncations", reason, path.name)
        attributes = Account(attributes_of(file))
        kept = attributes.kept() | stored.kept()
        self._custom_data = {SOURCE: kept} if kept else {}
        for account in (stored, attributes):
            account.report_rest(report, path.name)

    def _check(self) -> None:
        """Raise `UnreadableData` unless all arrays are numbers, and have a row per step.

        Observations and infos may have one row more, if there are no next observations.
        """
        name, columns, num = str(self._path), self._columns, self._num
        check_numbers(name, columns)
        self._has_last = "next_observations" not in columns and columns["observations"].shape[0] == num + 1
        exempt = ["observations"] if self._has_last else []
        check_rows(name, {key: array for key, array in columns.items() if key not in exempt}, num, "terminals")
        infos = nested.flatten(self._infos, "infos")
        if infos:
            has_last = self._has_last and next(iter(infos.values())).shape[0] == num + 1
            check_rows(name, infos, num + has_last, "observations" if has_last else "terminals")
        for key in ("rewards", "terminals", "timeouts", "episode_terminals"):
            if key in columns and columns[key].size != self._num:
                raise UnreadableData(f"{name}: {key!r} has shape {columns[key].shape}; it has one number per step")

    def _flags(self, key: str) -> np.ndarray:
        """Return an array of flags, bool [N]. Without it, all are False."""
        return self._columns[key][()].reshape(-1).astype(bool) if key in self._columns else np.zeros(self._num, bool)

    def episodes(self, prefix: str) -> Iterator[SingleAgentEpisode]:
        """Yield the episodes. Their ids are "PREFIX/0", "PREFIX/1" and so on."""
        if not self._num:
            return
        terminated, truncated = self._flags("terminals"), self._flags("timeouts")
        truncated |= self._flags("episode_terminals") & ~terminated
        ends = terminated | truncated
        ends[-1] = True
        number = 0
        for rows in blocks_of(ends, (self._columns, self._infos)):
            for episode in self._of_rows(rows, terminated[rows], truncated[rows], prefix, number):
                yield episode
                number += 1

    def _of_rows(
        self, rows: slice, terminated: np.ndarray, truncated: np.ndarray, prefix: str, number: int
    ) -> Iterator[SingleAgentEpisode]:
        """Yield the episodes stored in the rows `rows` of the file, of which the last row ends an episode.

        Their ids begin with `prefix` and are numbered from `number` on.
        """
        columns, until = self._columns, rows.stop + (self._has_last and rows.stop == self._num)
        actions, rewards = columns["actions"][rows], columns["rewards"][rows].reshape(-1)
        observations = columns["observations"][rows.start : until]
        infos = nested.map_leaves(lambda array: array[rows.start : until], self._infos)
        if "next_observations" in columns:
            after, first = columns["next_observations"][rows], rows.start
            steps = Transitions(observations, after, actions, rewards, terminated, truncated, first_row=first)
            steps.own_infos, steps.custom_data = infos, self._custom_data
            yield from steps.episodes(prefix, self._report, number)
            return
        ends = terminated | truncated
        ends[-1] = True
        stops = np.flatnonzero(ends) + 1
        for a, b in zip([0, *stops[:-1].tolist()], stops.tolist(), strict=True):
            flags = bool(terminated[b - 1]), bool(truncated[b - 1])
            observed = slice(a, b + (self._has_last and rows.start + b == self._num))
            made = without_next(
                observations[observed],
                actions[a:b],
                rewards[a:b],
                *flags,
                {},
                self._report,
                f"row {rows.start + b - 1}",
                nested.map_leaves(lambda array, observed=observed: array[observed], infos),
            )
            if made is not None:
                custom_data = {key: dict(value) for key, value in self._custom_data.items()}
                yield SingleAgentEpisode.from_arrays(**made, id_=f"{prefix}/{number}", custom_data=custom_data)
                number += 1


FORMAT = Format("d4rl", "HDF5 of D4RL", lambda contents: needs(contents, "hdf5", _NEEDED), d4rl_episodes)
