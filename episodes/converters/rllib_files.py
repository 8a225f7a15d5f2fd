"""Export and import of RLlib's offline data: Parquet files with one episode or one step per row."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.converters import packed_numpy, rllib_states
from episodes.converters.accounting import check_numbers
from episodes.converters.action_mapping import export_actions
from episodes.converters.bounded_packs import Given, bounded_lists
from episodes.converters.columns import array_of
from episodes.converters.contents import Contents
from episodes.converters.format import OTHER_KIND, YES, Format, Recognition
from episodes.converters.loss_report import LossReport, keep_supported
from episodes.converters.parquet_files import files_of, groups_of, new_parts, schema_of
from episodes.converters.source_ids import prefix_of_files, prefixed
from episodes.converters.step_order import codes_of, tables_in_order, times_of
from episodes.converters.transitions import Transitions
from episodes.errors import UnreadableData
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.arrow import as_unreadable_data, pyarrow
from episodes.tracks import nested
from episodes.tracks.spaces import has_text

if TYPE_CHECKING:
    import pyarrow as pa

_ITEM = "item"  # the column of episodes
_TIME = "t"
_STEPS = ("obs", "new_obs", "actions", "rewards", "terminateds", "truncateds", "eps_id")
_COMPRESSED = (
    "RLlib compressed it: record with config.offline_data(output_compress_columns=[]), "
    "in older versions compress_columns=[]"
)
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
    for name in rllib_states.IDS:
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


def from_rllib_parquet(
    path: str | Path, *, prefix: str | None = None, strict: bool = False
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Return the episodes in RLlib's Parquet files, and a report of what was lost.

    Both kinds can be read: episodes (`output_write_episodes=True`), and steps with the columns obs, new_obs, actions,
    rewards, terminateds, truncateds, eps_id. Steps may have any order if there is a column t. Their episodes have the
    ids "rllib-DIGEST/EPS_ID". Arrays of Python objects are rejected, because they would be pickles, and so are
    observations that RLlib compressed to text.

    Args:
        path: a file or a directory.
        prefix: first part of the ids: "PREFIX/ID".
        strict: raise if something would be lost.

    Raises:
        MissingExtra: pyarrow is not installed.
        UnreadableData: the files are not RLlib's, hold text in place of numbers, or two rows of one step.
        LostInConversion: with `strict`, something would be lost.
    """
    report = LossReport()
    return list(rllib_file_episodes(path, report, prefix)), report.check(strict)


def rllib_file_episodes(
    path: str | Path, report: LossReport, prefix: str | None = None
) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes in RLlib's Parquet files, and add losses to `report`.

    Raises:
        UnreadableData: a Parquet file does not have the columns that RLlib writes.
    """
    files = files_of(path)
    names = {file: schema_of(file).names for file in files}
    for file in files:
        if not is_rllib(names[file]):
            raise UnreadableData(
                f"{file}: not a Parquet file of RLlib: it has neither a column 'item' nor all of {_STEPS}"
            )
        read = [_ITEM] if _ITEM in names[file] else [*_STEPS, _TIME]
        for key in sorted(set(names[file]) - set(read)):
            report.add(repr(key), "of RLlib's columns of steps, it is not read", file.name)
    items = [file for file in files if _ITEM in names[file]]
    for file in items:
        for episode in _of_items(file):
            yield prefixed(episode, prefix)
    steps = [file for file in files if file not in items]
    if steps:
        has_times = all(_TIME in names[file] for file in steps)
        yield from _of_steps(steps, _TIME if has_times else None, prefix_of_files("rllib", steps, prefix), report)


def is_rllib(names: Collection[str]) -> bool:
    """Return True if a Parquet file with columns of these names has RLlib's offline data."""
    return _ITEM in names or set(_STEPS) <= set(names)


def _of_items(file: Path) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of a Parquet file with one encoded episode state per row."""
    for table in groups_of(file, [_ITEM]):
        for item in table[_ITEM]:
            with as_unreadable_data(str(file)):
                episode = rllib_states.episode_of(packed_numpy.decode(item.as_py()))
            for name, track in (("observations", episode.observations), ("actions", episode.actions)):
                if not has_text(getattr(episode, f"{name[:-1]}_space")):
                    check_numbers(f"{file}: episode {episode.id_}", {name: nested.as_arrays(track.get())}, _COMPRESSED)
            yield episode


def _of_steps(files: list[Path], time: str | None, prefix: str, report: LossReport) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of Parquet files with one step per row, in which an episode may span several row groups."""
    first = 0
    for table in tables_in_order(files, [*_STEPS, time] if time else _STEPS, "eps_id", time):
        yield from _transitions(table, time, first, files[0].parent).episodes(prefix, report)
        first += len(table)


def _transitions(table: pa.Table, time: str | None, first_row: int, where: Path) -> Transitions:
    """Return the transitions of a table of steps, grouped by episode.

    Raises:
        UnreadableData: a column is not numbers.
    """
    with as_unreadable_data(str(where)):
        columns = {name: array_of(table[name]) for name in _STEPS if name != "eps_id"}
    check_numbers(str(where), columns, _COMPRESSED)
    observations, after, actions, rewards, terminated, truncated = columns.values()
    flags = terminated.astype(bool), truncated.astype(bool)
    return Transitions(
        observations,
        after,
        actions,
        rewards,
        *flags,
        groups=codes_of(table["eps_id"]),
        first_row=first_row,
        names=table["eps_id"].to_pylist(),
        times=None if time is None else times_of(table[time], time, where),
    )


def _recognize(contents: Contents) -> Recognition:
    if contents.schema is None:
        return OTHER_KIND
    missing = ", ".join(repr(name) for name in _STEPS if name not in contents.schema.names)
    return YES if is_rllib(contents.schema.names) else Recognition(False, f"neither {_ITEM!r} nor {missing}")


FORMAT = Format("rllib", "Parquet files of RLlib", _recognize, rllib_file_episodes, to_rllib_parquet)
