"""`FlatSteps`: the steps of many episodes in arrays of a file, one episode after another, read in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from episodes.converters.accounting import StoredArrays, check_numbers, check_rows
from episodes.converters.loss_report import LossReport
from episodes.converters.transitions import Transitions, blocks_of, without_next
from episodes.errors import UnreadableData
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested


@dataclass
class FlatSteps:
    """Arrays with a row per step, in which one episode follows another.

    The arrays may be of any kind with `shape`, `dtype` and slices, such as arrays in an HDF5 file. Each of them is read
    once, in order. The last row ends an episode even without a flag.

    Attributes:
        where: name of the source, for errors.
        columns: nested arrays [N, ...] by role: "actions" and "observations", and if the source has them "rewards",
            "terminated", "truncated", "done" and "next_observations". Without next observations, "observations" may
            have N + 1 rows, of which the last one is the observation after the last step of the file.
        names: the names that the source has for the roles, for errors.
        infos: nested arrays [N, ...] of infos of the observation of their row.
        report: gets what is lost.
        custom_data: custom data of each episode.
    """

    where: str
    columns: Mapping[str, Any]
    names: Mapping[str, str]
    infos: dict[str, Any]
    report: LossReport
    custom_data: dict[str, Any]

    def __post_init__(self) -> None:
        known = next((role for role in ("terminated", "rewards") if role in self.columns), "actions")
        leaf = nested.first_leaf(self.columns[known])
        self.num_rows = int(leaf.shape[0]) if leaf.shape else 0
        observations = nested.first_leaf(self.columns["observations"])
        self._has_last = "next_observations" not in self.columns and observations.shape[:1] == (self.num_rows + 1,)
        self._check(known)

    def _check(self, known: str) -> None:
        """Raise `UnreadableData` unless all arrays are numbers, and have a row per step."""
        columns = {self.names.get(role, role): array for role, array in self.columns.items()}
        check_numbers(self.where, columns)
        observed = self.names.get("observations", "observations")
        last = {observed: columns[observed]} if self._has_last else {}
        check_rows(self.where, last, self.num_rows + 1, observed)
        steps = {name: array for name, array in columns.items() if name not in last}
        check_rows(self.where, steps, self.num_rows, self.names.get(known, known))
        infos = nested.flatten(self.infos, "infos") if self.infos else {}
        if infos:
            has_last = self._has_last and next(iter(infos.values())).shape[0] == self.num_rows + 1
            name = observed if has_last else self.names.get(known, known)
            check_rows(self.where, infos, self.num_rows + has_last, name)
        for role in ("rewards", "terminated", "truncated", "done"):
            array = self.columns.get(role)
            if array is not None and int(np.prod(array.shape)) != self.num_rows:
                raise UnreadableData(
                    f"{self.where}: {self.names.get(role, role)!r} has shape {tuple(array.shape)}; "
                    "it has one number per step"
                )

    def flags(self, role: str) -> np.ndarray:
        """Return a column of flags, bool [N]. Without it, all are False."""
        if role not in self.columns:
            return np.zeros(self.num_rows, bool)
        return np.asarray(self.columns[role][:]).reshape(-1).astype(bool)

    def episodes(
        self, prefix: str, terminated: np.ndarray, truncated: np.ndarray, ends: np.ndarray | None = None
    ) -> Iterator[SingleAgentEpisode]:
        """Yield the episodes. Their ids are "PREFIX/0", "PREFIX/1" and so on.

        Args:
            prefix: first part of the ids.
            terminated: whether the step terminated the episode, bool [N].
            truncated: whether the step was truncated, bool [N].
            ends: whether the row is the last one of its episode, bool [N]. Rows with a flag are, too.
        """
        if not self.num_rows:
            return
        if "rewards" not in self.columns:
            self.report.add("rewards", "the data have none; zeros stand there", self.where)
        ends = terminated | truncated if ends is None else ends | terminated | truncated
        ends[-1] = True
        number = 0
        for rows in blocks_of(ends, (dict(self.columns), self.infos)):
            for episode in self._of_rows(rows, terminated[rows], truncated[rows], ends[rows], prefix, number):
                yield episode
                number += 1

    def _of_rows(
        self,
        rows: slice,
        terminated: np.ndarray,
        truncated: np.ndarray,
        ends: np.ndarray,
        prefix: str,
        number: int,
    ) -> Iterator[SingleAgentEpisode]:
        """Yield the episodes stored in the rows `rows` of the file, of which the last row ends an episode.

        Their ids begin with `prefix` and are numbered from `number` on.
        """
        until = rows.stop + (self._has_last and rows.stop == self.num_rows)

        def part(data: StoredArrays, stop: int = rows.stop) -> Any:
            return nested.map_leaves(lambda array: array[rows.start : stop], data)

        actions = part(self.columns["actions"])
        rewards = np.zeros(len(ends))
        if "rewards" in self.columns:
            rewards = self.columns["rewards"][rows].reshape(-1)
        observations, infos = part(self.columns["observations"], until), part(self.infos, until)
        if "next_observations" in self.columns:
            after, groups = part(self.columns["next_observations"]), np.cumsum(ends) - ends
            steps = Transitions(
                observations, after, actions, rewards, terminated, truncated, groups, first_row=rows.start
            )
            steps.own_infos, steps.custom_data = infos, self.custom_data
            yield from steps.episodes(prefix, self.report, number)
            return
        stops = np.flatnonzero(ends) + 1
        for a, b in zip([0, *stops[:-1].tolist()], stops.tolist(), strict=True):
            observed = slice(a, b + (self._has_last and rows.start + b == self.num_rows))
            made = without_next(
                nested.map_leaves(lambda array, observed=observed: array[observed], observations),
                nested.map_leaves(lambda array, a=a, b=b: array[a:b], actions),
                rewards[a:b],
                bool(terminated[b - 1]),
                bool(truncated[b - 1]),
                {},
                self.report,
                f"row {rows.start + b - 1}",
                nested.map_leaves(lambda array, observed=observed: array[observed], infos),
            )
            if made is not None:
                custom_data = deepcopy(self.custom_data)
                yield SingleAgentEpisode.from_arrays(**made, id_=f"{prefix}/{number}", custom_data=custom_data)
                number += 1
