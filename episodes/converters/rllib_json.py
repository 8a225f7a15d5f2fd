"""Import of episodes from RLlib's old offline data: lines of JSON with one batch of steps (`SampleBatch`) each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.converters.accounting import check_numbers, check_rows
from episodes.converters.columns import array_of
from episodes.converters.contents import Contents, open_text
from episodes.converters.format import OTHER_KIND, YES, Format, Recognition
from episodes.converters.loss_report import LossReport
from episodes.converters.source_ids import prefix_of_files
from episodes.converters.step_order import codes_of, groups_in_order, times_of
from episodes.converters.transitions import Transitions
from episodes.errors import EpisodeError, UnreadableData
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.arrow import as_unreadable_data, pyarrow
from episodes.storage.files import local_path

if TYPE_CHECKING:
    import pyarrow as pa

_NEEDED = ("obs", "new_obs", "actions", "rewards", "eps_id")
_FLAGS = ("dones", "terminateds", "truncateds")
_ID, _TIME = "episode", "t"
_NO_STEPS = ("type", "count", "infos", "unroll_id", "agent_index", "state_in", "state_out")
_PACKED = (
    "RLlib packed it as a pickle, which may run code and is never opened here: record with "
    "config.offline_data(output_compress_columns=[]), or unpack it with RLlib and write the batches again"
)


def rllib_json_episodes(
    path: str | Path, report: LossReport, prefix: str | None = None
) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes in a file, or in the files of a folder, with lines of RLlib's batches.

    The steps of an episode may be in several lines. They are sorted by `t`, if all batches have it. Other columns of
    numbers, such as `action_logp`, are extra model outputs. With `dones` alone, all ends are terminations, which is
    reported. In a `MultiAgentBatch`, each agent has its own episode. The ids are "rllib-DIGEST/EPS_ID", and
    "rllib-DIGEST/EPS_ID/POLICY/AGENT_INDEX" with several agents.

    Raises:
        MissingExtra: pyarrow is not installed.
        UnreadableData: a line is no batch, a column is missing or packed as a pickle, or two rows are of one step.
    """
    files = _files_of(local_path(path))
    first = next(_batches(files, None))
    time = _TIME if all(_TIME in batch for batch in _batches(files, None)) else None
    columns = [name for name in first if _is_of_numbers(first[name]) and name not in (*_NO_STEPS, "eps_id")]
    if not any(name in first for name in _FLAGS):
        report.add("endings", "the data mark none; the episodes count as cut", files[0].name)
    elif "terminateds" not in first and "truncateds" not in first:
        reason = "'dones' does not tell a time limit from a termination; all are terminations"
        report.add("truncations", reason, files[0].name)
    prefix = prefix_of_files("rllib", files, prefix)
    named = partial(_tables, files, report)
    row = 0
    for table in groups_in_order(named, [*dict.fromkeys([*columns, _ID])], _ID, time, files[0]):
        yield from _transitions(table, time, row, str(files[0])).episodes(prefix, report)
        row += len(table)


def _files_of(path: Path) -> list[Path]:
    """Return the file itself, or the files of a folder that end in .json or .jsonl."""
    if not path.is_dir():
        return [path]
    files = sorted([*path.glob("*.json"), *path.glob("*.jsonl")])
    if not files:
        raise UnreadableData(f"{path}: a folder without .json files; give the folder of RLlib's output")
    return files


def _batches(files: list[Path], report: LossReport | None) -> Iterator[dict[str, Any]]:
    """Yield the batches of steps as dicts of lists, with the column `_ID`. Columns that are not read are reported.

    Raises:
        UnreadableData: a line is no batch, a column is missing or packed, or lists have unequal lengths.
    """
    for file in files:
        with open_text(file) as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                where = f"{file}: line {number}"
                try:
                    document = json.loads(line)
                except ValueError as error:
                    raise UnreadableData(f"{where} is not JSON, or truncated: {error}; record it again") from None
                document = document.get("value", document) if isinstance(document, dict) else {}
                batches = document.get("policy_batches", {None: document})
                for policy, batch in batches.items():
                    yield _checked(batch, policy, where, report)


def _checked(batch: dict[str, Any], policy: str | None, where: str, report: LossReport | None) -> dict[str, Any]:
    """Return a batch with the column `_ID`, of which all columns that are read are lists of one length."""
    if missing := [name for name in _NEEDED if name not in batch]:
        raise UnreadableData(f"{where}: the batch has no {missing[0]!r}; it needs {', '.join(map(repr, _NEEDED))}")
    for name in (*_NEEDED, *_FLAGS):
        values = batch.get(name)
        if isinstance(values, str) or (isinstance(values, list) and any(isinstance(value, str) for value in values)):
            raise UnreadableData(f"{where}: {name!r} holds text. {_PACKED}")
    num = len(batch["eps_id"])
    for name, values in batch.items():
        if name in _NO_STEPS or not _is_of_numbers(values):
            if report is not None and name not in ("type", "count"):
                packed = isinstance(values, str) or (isinstance(values, list) and isinstance(values[0], str))
                report.add(repr(name), _PACKED if packed else "of RLlib's columns of steps, it is not read", where)
        elif len(values) != num:
            raise UnreadableData(f"{where}: {name!r} has {len(values)} rows, 'eps_id' has {num}; each step has one")
    ids: list[Any] = [str(id_) for id_ in batch["eps_id"]]
    if policy is not None:
        agents = batch.get("agent_index", [0] * num)
        ids = [f"{id_}/{policy}/{agent}" for id_, agent in zip(ids, agents, strict=True)]
        if report is not None:
            report.add("that agents act in one environment", "each agent has its own episode", where)
    return batch | {_ID: ids}


def _is_of_numbers(values: object) -> bool:
    """Return True if a column is a list of numbers, or of nested lists of them."""
    while isinstance(values, list) and values:
        values = values[0]
    return isinstance(values, (bool, int, float))


def _tables(files: list[Path], report: LossReport, names: list[str]) -> Iterator[Any]:
    """Yield an Arrow table with these columns for each batch."""
    pa = pyarrow()
    reads_all = len(names) > 2  # and not the ids and times alone
    for batch in _batches(files, report if reads_all else None):
        missing = [name for name in names if name not in batch]
        if missing:
            raise UnreadableData(f"{files[0]}: a batch has no {missing[0]!r}, which the first one has; give all one")
        if extra := [name for name in batch if reads_all and _is_of_numbers(batch[name]) and name not in names]:
            for name in set(extra) - {*_NO_STEPS, "eps_id"}:
                report.add(repr(name), "the first batch does not have it", files[0].name)
        with as_unreadable_data(str(files[0])):
            yield pa.table({name: pa.array(batch[name]) for name in names})


def _transitions(table: pa.Table, time: str | None, first_row: int, where: str) -> Transitions:
    """Return the transitions of a table of steps, grouped by episode."""
    with as_unreadable_data(where):
        columns = {name: array_of(table[name]) for name in table.column_names if name not in (_ID, time)}
    check_numbers(where, columns, _PACKED)
    check_rows(where, columns, len(table), "eps_id")
    done, terminated, truncated = (columns.pop(name, np.zeros(len(table))).astype(bool) for name in _FLAGS)
    if "terminateds" not in table.column_names:
        terminated = done & ~truncated
    return Transitions(
        columns.pop("obs"),
        columns.pop("new_obs"),
        columns.pop("actions"),
        columns.pop("rewards"),
        terminated,
        truncated | (done & ~terminated),
        groups=codes_of(table[_ID]),
        extra=columns,
        first_row=first_row,
        names=table[_ID].to_pylist(),
        times=None if time is None else times_of(table[time], time, where),
    )


def _recognize(contents: Contents) -> Recognition:
    if contents.kind == "directory":
        files = sorted(contents.path.glob("*.json"))
        try:
            return _recognize(Contents(files[0])) if files else OTHER_KIND
        except EpisodeError:
            return OTHER_KIND
    names = contents.names if contents.kind in ("json", "jsonl") else ()
    if names == ("value",) or ("type" in names and ("policy_batches" in names or "eps_id" in names)):
        return YES
    return Recognition(False, "no 'type' and 'eps_id'") if contents.kind in ("json", "jsonl") else OTHER_KIND


FORMAT = Format("rllib-json", "lines of JSON with batches of RLlib", _recognize, rllib_json_episodes)
