"""Export and import of RLlib's offline data: Parquet files with one episode or one step per row."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from episodes.converters import packed_numpy, rllib_states
from episodes.converters.action_mapping import export_actions
from episodes.converters.bounded_packs import Given, bounded_lists
from episodes.converters.columns import array_of
from episodes.converters.loss_report import LossReport, keep_supported
from episodes.converters.parquet_files import files_of, groups_of, new_parts, schema_of
from episodes.converters.transitions import Transitions
from episodes.errors import UnreadableData
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.arrow import as_unreadable_data, pyarrow

_ITEM = "item"  # the column of episodes
_STEPS = ("obs", "new_obs", "actions", "rewards", "terminateds", "truncateds", "eps_id")
_WHY = "RLlib's files hold text, numbers, and what msgpack can, by keys that are text"


def to_rllib_parquet(episodes: Given, path: str | Path, *, strict: bool = False) -> LossReport:
    """Write episodes to a new directory of Parquet files for RLlib, and return a report of what was lost.

    RLlib reads them with `input_read_episodes=True`. The episodes are finalized there. Actions are those that were sent
    to the environment. An iterator of episodes is not collected in memory. Episodes of several agents become one
    episode per agent.

    Args:
        episodes: the episodes.
        path: the new directory.
        strict: raise if something would be lost.

    Raises:
        MissingExtra: pyarrow is not installed.
        InvalidArgument: the path exists.
        LostInConversion: with `strict`, something would be lost. Nothing is left behind.
        TrackMismatch: an episode has ragged tracks.
        WrongType: a value is not an episode.
    """
    report, pa = LossReport(), pyarrow()
    with new_parts(path) as parts:
        for some in bounded_lists(episodes, alike=False):
            items = [packed_numpy.encode(_packable(export_actions(episode, report), report)) for episode in some]
            report.check(strict)
            parts.write(pa.table({_ITEM: pa.array(items, pa.binary())}))
    return report


def _packable(episode: SingleAgentEpisode, report: LossReport) -> dict[str, Any]:
    """Return an episode as a state dict for RLlib, without the values that RLlib's files cannot store."""
    finished = SingleAgentEpisode.of(episode.facts, episode.finalized_tracks(), episode.custom_data)
    state = rllib_states.state_of(finished, report)

    def lost(item: str, reason: str = _WHY) -> None:
        report.add(item, reason, episode.id_)

    for name in ("observation_space", "action_space"):
        if getattr(episode, name) is not None and state[f"_{name}"] is None:
            lost(name, "RLlib has no form for it")
    for name in ("id_", "agent_id", "module_id", "multi_agent_episode_id"):
        if not isinstance(state[name], (str, int, type(None))):
            lost(name)
            state[name] = str(state[name])
    holds = packed_numpy.holds
    infos = [keep_supported(info, lambda path: lost(f"infos{path}"), holds) for info in state["infos"]["data"]]
    custom = keep_supported(state["custom_data"], lambda path: lost(f"custom_data{path}"), holds)
    for name, values in (("infos", infos), ("custom_data", [custom])):
        for path in {path for value in values for path in _changed_paths(value)}:
            lost(f"the type of {name}{path}", "tuples are lists in RLlib's files, and numpy's text is Python's")
    return state | {"infos": state["infos"] | {"data": infos}, "custom_data": custom}


def _changed_paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of values that change their type in RLlib's files, such as tuples and numpy strings."""
    if isinstance(value, (tuple, np.str_)):
        yield path
    elif type(value) in (dict, list):
        for key, part in value.items() if type(value) is dict else enumerate(value):
            yield from _changed_paths(part, f"{path}[{key!r}]")


def from_rllib_parquet(path: str | Path, *, strict: bool = False) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Return the episodes in RLlib's Parquet files, and a report of what was lost.

    Both kinds can be read: episodes (`output_write_episodes=True`), and steps with the columns obs, new_obs, actions,
    rewards, terminateds, truncateds, eps_id. Arrays of Python objects are rejected, because they would be pickles.

    Args:
        path: a file or a directory.
        strict: raise if something would be lost.

    Raises:
        MissingExtra: pyarrow is not installed.
        UnreadableData: the files are not RLlib's.
        LostInConversion: with `strict`, something would be lost.
    """
    report = LossReport()
    return list(rllib_file_episodes(path, report)), report.check(strict)


def rllib_file_episodes(path: str | Path, report: LossReport) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes in RLlib's Parquet files, and add losses to `report`.

    Raises:
        UnreadableData: a Parquet file does not have the columns that RLlib writes.
    """
    for file in files_of(path):
        names = schema_of(file).names
        if _ITEM in names:
            yield from _of_items(file)
        elif is_rllib(names):
            for key in sorted(set(names) - set(_STEPS) - {"t"}):
                report.add(repr(key), "of RLlib's columns of steps, it is not read", file.name)
            yield from _of_steps(file, report)
        else:
            raise UnreadableData(
                f"{file}: not a Parquet file of RLlib: it has neither a column 'item' nor all of {_STEPS}"
            )


def is_rllib(names: Collection[str]) -> bool:
    """Return True if a Parquet file with columns of these names has RLlib's offline data."""
    return _ITEM in names or set(_STEPS) <= set(names)


def _of_items(file: Path) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of a Parquet file with one encoded episode state per row."""
    for table in groups_of(file, [_ITEM]):
        for item in table[_ITEM]:
            with as_unreadable_data(str(file)):
                episode = rllib_states.episode_of(packed_numpy.decode(item.as_py()))
            yield episode


def _of_steps(file: Path, report: LossReport) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of a Parquet file with one step per row, in which an episode may span several row groups.

    One row group is read at a time. Only the rows of its last, possibly incomplete, episode are kept.
    """
    pa, remainder = pyarrow(), None
    first = 0
    for group in chain(groups_of(file, list(_STEPS)), [None]):
        table = group if remainder is None else remainder if group is None else pa.concat_tables([remainder, group])
        if table is None or not len(table):
            continue
        same = _numbers_of(table) == _numbers_of(table)[-1]
        begins = 0 if same.all() else int(np.flatnonzero(~same)[-1]) + 1
        stop = len(table) if group is None else begins
        remainder = table.slice(stop)
        if stop:
            with as_unreadable_data(str(file)):
                steps = _transitions(table.slice(0, stop))
            step_parts = steps.episodes(file.stem, report, first)
            yield from step_parts
            first += len(step_parts)


def _transitions(table: Any) -> Transitions:
    """Return the transitions of a table of steps, grouped by episode."""
    observations, after, actions, rewards = (array_of(table[name]) for name in _STEPS[:4])
    flags = [array_of(table[name]).astype(bool) for name in ("terminateds", "truncateds")]
    return Transitions(observations, after, actions, rewards, *flags, groups=_numbers_of(table))


def _numbers_of(table: Any) -> np.ndarray:
    """Return a number for the episode of each table row, int [rows]. Rows of the same episode have equal numbers."""
    return table["eps_id"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
