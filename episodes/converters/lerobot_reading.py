"""Import of episodes from data sets in LeRobot's layout, version 3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from episodes.converters import lerobot_features as features
from episodes.converters.columns import array_of
from episodes.converters.lerobot_features import BASE, FLAGS, OURS, Feature
from episodes.converters.loss_report import LossReport
from episodes.converters.parquet_files import files_of, groups_of, schema_of
from episodes.converters.transitions import without_next
from episodes.converters.videos import FrameReader, frame_number
from episodes.errors import UnreadableData
from episodes.facts import VersionRuns
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import space_json
from episodes.storage.arrow import as_unreadable_data, pyarrow
from episodes.storage.files import local_path
from episodes.tracks.infos import msgpack_codec

_NO_PLACE = "it is not known what it is"


def from_lerobot(path: str | Path, *, strict: bool = False) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Return the episodes of a directory in LeRobot's layout v3, and a report of what was lost.

    Episodes that `to_lerobot` wrote are restored exactly, except the images of lossy videos. In other data sets
    "observation.state" (or all features that start with "observation.", as a dict) are the observations, "action" the
    actions, "next.reward" the rewards (0 without), and features with other names are extra model outputs. The
    observation after an episode's last step is unknown there, so that step is lost, unless it terminates.
    `custom_data["task"]` is the task.

    Args:
        path: the directory.
        strict: raise if something would be lost.

    Raises:
        MissingExtra: pyarrow is not installed, or PyAV for videos.
        UnreadableData: there is no such data set, it has another version, or it is damaged.
        LostInConversion: with `strict`, something would be lost.
    """
    report = LossReport()
    return list(lerobot_episodes(path, report)), report.check(strict)


def lerobot_episodes(path: str | Path, report: LossReport) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of a LeRobot data set, and add losses to `report`.

    Raises:
        InvalidArgument: the path is a URL.
        UnreadableData: there is no data set of version 3, or it has no observations or actions.
    """
    root = local_path(path)
    info = _info_of(root)
    tasks = _tasks_of(root)
    source = _Source(root, info)
    about = info.get(OURS)
    known = {p: Feature.from_json(p, fields) for p, fields in about["tracks"].items()} if about else None
    for meta in _metas_of(root):
        with as_unreadable_data(str(root)):
            if known is not None and about is not None and meta.get(OURS) is not None:
                episode = _own_episode(source, meta, about, known)
            else:
                episode = _foreign_episode(source, meta, info, tasks, report)
        if episode is not None:
            yield episode


def _info_of(root: Path) -> dict[str, Any]:
    """Return the content of the data set's meta/info.json.

    Raises:
        UnreadableData: the file is missing or damaged, or the version is not 3.
    """
    file = root / "meta/info.json"
    try:
        info = json.loads(file.read_text())
        version = info["codebase_version"]
    except FileNotFoundError:
        raise UnreadableData(f"{root} is not a data set of LeRobot: it has no meta/info.json") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableData(f"{file}: {error!r}") from None
    if not str(version).startswith("v3."):
        raise UnreadableData(
            f"{root} has version {version} of LeRobot's layout; v3 is read: convert it by LeRobot's script"
        )
    return info


def _tasks_of(root: Path) -> dict[int, str]:
    """Return the texts of the tasks by task index. The dict is empty if the data set has no tasks."""
    file = root / "meta/tasks.parquet"
    if not file.exists():
        return {}
    table = next(groups_of(file), None)
    names = [] if table is None else [name for name in table.column_names if name != "task_index"]
    if table is None or not names:
        return {}
    return dict(zip(table["task_index"].to_pylist(), table[names[0]].to_pylist(), strict=True))


def _metas_of(root: Path) -> Iterator[dict[str, Any]]:
    """Yield the metadata of each episode in a LeRobot data set as a dict, without statistics."""
    for file in files_of(root / "meta/episodes"):
        names = [name for name in schema_of(file).names if not name.startswith("stats/")]
        for table in groups_of(file, names):
            yield from table.to_pylist()


class _Source:
    """Reader of the table rows and video frames of a LeRobot data set, one episode at a time."""

    def __init__(self, root: Path, info: dict[str, Any]) -> None:
        self._root, self._info = root, info
        self._file: Path | None = None
        self._groups: Iterator[Any] = iter(())
        self._rows: Any = None
        self._videos: dict[str, FrameReader] = {}

    def rows(self, meta: dict[str, Any]) -> Any:
        """Return the table rows of one episode as an Arrow table.

        Raises:
            UnreadableData: the rows are missing.
        """
        location = {name: meta[f"data/{name}"] for name in ("chunk_index", "file_index")}
        file = self._root / self._info["data_path"].format(**location)
        number, length = meta["episode_index"], meta["length"]
        if file != self._file:
            self._file, self._groups, self._rows = file, groups_of(file), None
        pa, parts = pyarrow(), []
        while length:
            if self._rows is None or not len(self._rows):
                self._rows = next(self._groups, None)
                if self._rows is None:
                    raise UnreadableData(f"{file}: the rows of episode {number} are not there")
            part = self._rows.slice(0, length)
            parts.append(part)
            self._rows, length = self._rows.slice(len(part)), length - len(part)
        table = pa.concat_tables(parts)
        if set(table["episode_index"].unique().to_pylist()) != {number}:
            raise UnreadableData(f"{file}: the rows of episode {number} belong to other episodes")
        return table

    def frames(self, key: str, meta: dict[str, Any], count: int) -> np.ndarray:
        """Return `count` video frames of one episode, [count, H, W, 3]."""
        location = {name: meta[f"videos/{key}/{name}"] for name in ("chunk_index", "file_index")}
        file = self._root / self._info["video_path"].format(video_key=key, **location)
        start = frame_number(meta[f"videos/{key}/from_timestamp"], self._info["fps"])
        return self._videos.setdefault(key, FrameReader()).read(file, start, count)


def _own_episode(
    source: _Source, meta: dict[str, Any], about: dict[str, Any], known: dict[str, Feature]
) -> SingleAgentEpisode:
    """Return an episode of a data set that `to_lerobot` wrote, with everything that was stored.

    Args:
        meta: row of the episode in the table of episodes.
        about: description of the tracks and spaces in info.json.
        known: the features of the tracks, by path.
    """
    table, document = source.rows(meta), msgpack_codec.decode(meta[OURS])
    num, leaves = len(table), {}
    for path, feature in known.items():
        if feature.order is not None:
            leaves[path] = feature.items(source.frames(feature.name, meta, num + 1))
            continue
        array = array_of(table[feature.name], np.dtype(feature.dtype), feature.shape)
        if path in document["last"]:
            last = np.asarray(document["last"][path])[None]
            array = np.concatenate([array, last], dtype=None if array.dtype.kind == "U" else array.dtype)
        leaves[path] = array
    tracks = features.assembled_tracks(about, leaves)
    infos = [document["infos"].get(str(t), {}) for t in range(num + 1)] if document.get("infos") else None
    flags = {name: bool(table[f"next.{name}"][-1].as_py()) for name in ("terminated", "truncated")}
    spaces = {name: space_json.from_json(about[name]) for name in ("observation_space", "action_space")}
    versions = VersionRuns.of(document["policy_versions"], num)
    facts = {
        "t_started": document["t_started"],
        "policy_versions": versions,
        "custom_data": document.get("custom_data"),
    }
    episode = SingleAgentEpisode.from_arrays(**tracks, **document["ids"], **flags, **spaces, **facts, infos=infos)
    episode.acting_pipeline = document.get("acting_pipeline")
    return episode


def _foreign_episode(
    source: _Source, meta: dict[str, Any], info: dict[str, Any], tasks: dict[int, str], report: LossReport
) -> SingleAgentEpisode | None:
    """Return an episode of a data set that LeRobot wrote, with its index as id and its task as custom data, or None if
    no step remains.

    Arrays that cannot be read are noted in `report`. Missing rewards become 0.

    Raises:
        UnreadableData: there is no feature of observations or of actions.
    """
    table, number = source.rows(meta), meta["episode_index"]
    observations, actions, extra = {}, {}, {}
    for name, arguments in info["features"].items():
        if name in BASE or name in (*FLAGS, "next.reward"):
            continue
        if arguments["dtype"] in ("video", "image") and name in table.column_names:
            report.add(name, "images that are not in videos are not read", number)
            continue
        shape = None if arguments["shape"] == [1] else tuple(arguments["shape"])
        is_video = arguments["dtype"] == "video"
        array = source.frames(name, meta, len(table)) if is_video else array_of(table[name], None, shape)
        if name.startswith("observation."):
            observations[name.removeprefix("observation.")] = array
        elif name == "action" or name.startswith("action."):
            actions[name.removeprefix("action").removeprefix(".")] = array
        elif name.startswith("next."):
            report.add(name, _NO_PLACE, number)
        else:
            extra[name] = array
    if not observations or not actions:
        raise UnreadableData(f"episode {number}: there are no features 'observation...' and 'action'")
    rewards = _flag(table, "next.reward", np.zeros(len(table)))
    if "next.reward" not in table.column_names:
        report.add("rewards", "the data have none; zeros stand there", number)
    steps = _end_flags(table, number, report)
    custom = {"task": tasks[task]} if (task := table["task_index"][0].as_py()) in tasks else {}
    made = without_next(_single_or_all(observations), _single_or_all(actions), rewards, *steps, extra, report, number)
    if made is None:
        return None
    return SingleAgentEpisode.from_arrays(**made, id_=str(number), custom_data=custom)


def _single_or_all(parts: dict[str, np.ndarray]) -> Any:
    """Return the value of a dict with one key, or the whole dict if it has several keys."""
    return next(iter(parts.values())) if len(parts) == 1 else parts


def _flag(table: Any, name: str, default: np.ndarray) -> np.ndarray:
    """Return a column of one value per step, or `default` if the table has no such column."""
    return array_of(table[name]).reshape(len(table)) if name in table.column_names else default


def _end_flags(table: Any, number: int, report: LossReport) -> tuple[bool, bool]:
    """Return whether an episode terminated and whether it was truncated, by the flags of its last step.

    An episode whose table has only the column "next.done" counts as truncated if done. That is added to `report`.
    """
    none = np.zeros(len(table), bool)
    done, terminated, truncated = (bool(_flag(table, name, none)[-1]) for name in FLAGS)
    if "next.terminated" not in table.column_names and "next.truncated" not in table.column_names and done:
        report.add("whether it terminated", "the data have 'next.done' alone; taken as truncated", number)
        truncated = True
    return terminated, truncated
