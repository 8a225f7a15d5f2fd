"""Import of episodes from data sets in LeRobot's layout, versions 2 and 3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from episodes.converters import lerobot_features as features
from episodes.converters.accounting import SOURCE, UNKNOWN_MEANING, Account, check_numbers, plain
from episodes.converters.columns import array_of
from episodes.converters.contents import Contents
from episodes.converters.format import OTHER_KIND, YES, Format, Recognition
from episodes.converters.images import pixels_of
from episodes.converters.lerobot import to_lerobot
from episodes.converters.lerobot_features import BASE, FLAGS, OURS, Feature
from episodes.converters.loss_report import LossReport
from episodes.converters.parquet_files import files_of, groups_of, schema_of
from episodes.converters.source_ids import prefix_of_files, prefixed
from episodes.converters.transitions import without_next
from episodes.converters.videos import FrameReader, frame_number
from episodes.errors import UnreadableData
from episodes.facts import VersionRuns
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import space_json
from episodes.storage.arrow import as_unreadable_data, pyarrow
from episodes.storage.files import local_path
from episodes.tracks.infos import msgpack_codec

_LAYOUT = ("codebase_version", "total_episodes", "total_frames", "total_tasks", "total_videos", "total_chunks")
_LAYOUT += ("chunks_size", "data_files_size_in_mb", "video_files_size_in_mb", "data_path", "video_path", OURS)


def from_lerobot(
    path: str | Path, *, prefix: str | None = None, strict: bool = False
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Return the episodes of a directory in LeRobot's layout v2 or v3, and a report of what was lost.

    Episodes that `to_lerobot` wrote are restored exactly, except the images of lossy videos. In other data sets
    "observation.state" (or all features that start with "observation.", as a dict) are the observations, "action" the
    actions, "next.reward" the rewards (0 without), and features with other names are extra model outputs. The
    observation after an episode's last step is unknown there, so that step is lost, unless it terminates.

    The ids of such episodes are "lerobot-DIGEST/INDEX", with a digest of tables, metadata and videos.
    `custom_data["task"]` is the first task of an episode. If it has several, `custom_data["tasks"]` has all of them,
    and the info "task" the task of each step. The info "timestamp" has LeRobot's times. `custom_data["source"]` has
    values of the whole data set: "fps", "robot_type", and "names" of the parts of each feature.

    Args:
        path: the directory.
        prefix: first part of the ids: "PREFIX/ID".
        strict: raise if something would be lost.

    Raises:
        MissingExtra: pyarrow is not installed, or PyAV for videos.
        UnreadableData: there is no such data set, it has another version, it is damaged, or frames are missing.
        LostInConversion: with `strict`, something would be lost.
    """
    report = LossReport()
    return list(lerobot_episodes(path, report, prefix)), report.check(strict)


def lerobot_episodes(path: str | Path, report: LossReport, prefix: str | None = None) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of a LeRobot data set, and add losses to `report`.

    Raises:
        InvalidArgument: the path is a URL.
        UnreadableData: there is no data set of version 2 or 3, or it has no observations or actions.
    """
    root = local_path(path)
    info = _info_of(root)
    source, foreign = _Source(root, info), None
    about = info.get(OURS)
    known = {p: Feature.from_json(p, fields) for p, fields in about["tracks"].items()} if about else None
    for meta in _metas_of(root):
        with as_unreadable_data(str(root)):
            if known is not None and about is not None and meta.get(OURS) is not None:
                episode: Any = prefixed(_own_episode(source, meta, about, known), prefix)
            else:
                foreign = foreign or _Foreign(root, info, source, report, prefix)
                episode = foreign.episode(meta)
        if episode is not None:
            yield episode
    if rows := source.num_left():
        report.add("rows of the data", f"{rows} rows are of no episode in meta/episodes", str(root))


def _info_of(root: Path) -> dict[str, Any]:
    """Return the content of the data set's meta/info.json.

    Raises:
        UnreadableData: the file is missing or damaged, or the version is neither 2 nor 3.
    """
    file = root / "meta/info.json"
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
        version = info["codebase_version"]
    except FileNotFoundError:
        raise UnreadableData(f"{root} is not a data set of LeRobot: it has no meta/info.json") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableData(f"{file}: {error!r}") from None
    if not str(version).startswith(("v2.", "v3.")):
        raise UnreadableData(
            f"{root} has version {version} of LeRobot's layout; v2 and v3 are read: convert it by LeRobot's script"
        )
    return info


def _tasks_of(root: Path) -> dict[int, str]:
    """Return the texts of the tasks by task index. The dict is empty if the data set has no tasks."""
    file = root / "meta/tasks.parquet"
    if (lines := root / "meta/tasks.jsonl").exists():
        return {row["task_index"]: row["task"] for row in _rows_of(lines)}
    if not file.exists():
        return {}
    table = next(groups_of(file), None)
    names = [] if table is None else [name for name in table.column_names if name != "task_index"]
    if table is None or not names:
        return {}
    return dict(zip(table["task_index"].to_pylist(), table[names[0]].to_pylist(), strict=True))


def _metas_of(root: Path) -> Iterator[dict[str, Any]]:
    """Yield the metadata of each episode in a LeRobot data set as a dict, without statistics."""
    if (lines := root / "meta/episodes.jsonl").exists():
        yield from _rows_of(lines)
        return
    for file in files_of(root / "meta/episodes"):
        names = [name for name in schema_of(file).names if not name.startswith("stats/")]
        for table in groups_of(file, names):
            yield from table.to_pylist()


def _rows_of(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the documents of a file with one JSON document per line.

    Raises:
        UnreadableData: a line is no JSON document, or lacks a key of all rows.
    """
    needed = ("task_index", "task") if file.name == "tasks.jsonl" else ("episode_index", "length")
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    row = json.loads(line)
                    yield {key: row[key] for key in needed} | row
            except (ValueError, KeyError, TypeError) as error:
                raise UnreadableData(f"{file}: line {number}: {error!r}; write or download it again") from None


class _Source:
    """Reader of the table rows and video frames of a LeRobot data set, one episode at a time."""

    def __init__(self, root: Path, info: dict[str, Any]) -> None:
        self._root, self._info = root, info
        self._file: Path | None = None
        self._left = 0  # rows of the files before this one that were not returned
        self._groups: Iterator[Any] = iter(())
        self._rows: Any = None
        self._videos: dict[str, FrameReader] = {}

    def rows(self, meta: dict[str, Any]) -> Any:
        """Return the table rows of one episode as an Arrow table.

        Raises:
            UnreadableData: the rows are missing.
        """
        file = self._root / self._info["data_path"].format(**self._location(meta, "data"))
        number, length = meta["episode_index"], meta["length"]
        if file != self._file:
            self._left = self.num_left()
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
        if "frame_index" in table.column_names:
            order = np.argsort(frames := table["frame_index"].to_numpy(), kind="stable")
            if not np.array_equal(frames[order], np.arange(len(table))):
                raise UnreadableData(
                    f"{file}: episode {number} has {len(table)} rows, and 'frame_index' is not 0 to {len(table) - 1}; "
                    "frames are missing or repeated"
                )
            table = table.take(pa.array(order))
        return table

    def _location(self, meta: dict[str, Any], of: str) -> dict[str, int]:
        """Return the numbers in the path of an episode's file: of its chunk and file, or in v2 of the episode."""
        if f"{of}/chunk_index" in meta:
            return {name: meta[f"{of}/{name}"] for name in ("chunk_index", "file_index")}
        number = meta["episode_index"]
        return {"episode_chunk": number // self._info["chunks_size"], "episode_index": number}

    def num_left(self) -> int:
        """Return the number of rows in the files opened so far that no call of `rows` has returned."""
        return self._left + (0 if self._rows is None else len(self._rows)) + sum(map(len, self._groups))

    def frames(self, key: str, meta: dict[str, Any], count: int) -> np.ndarray:
        """Return `count` video frames of one episode, [count, H, W, 3]."""
        location = self._location(meta, f"videos/{key}")
        file = self._root / self._info["video_path"].format(video_key=key, **location)
        start = frame_number(meta.get(f"videos/{key}/from_timestamp", 0.0), self._info["fps"])
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


class _Foreign:
    """Reader of the episodes of a data set that LeRobot wrote, with their tasks and metadata.

    Args:
        root: directory of the data set.
        info: the content of meta/info.json.
        source: reader of rows and frames.
        report: gets what is lost.
        prefix: first part of the ids, or None for a digest.
    """

    def __init__(
        self, root: Path, info: dict[str, Any], source: _Source, report: LossReport, prefix: str | None
    ) -> None:
        self._source, self._report = source, report
        self._tasks = _tasks_of(root)
        parts = ("meta", "*.*"), ("data", "*.parquet"), ("videos", "*.*")
        files = [file for folder, names in parts for file in sorted((root / folder).rglob(names)) if file.is_file()]
        self._prefix = prefix_of_files("lerobot", files, prefix)
        stored = Account(info)
        is_whole = info.get("splits") == {"train": f"0:{info.get('total_episodes')}"}
        stored.skip(*_LAYOUT, *(["splits"] if is_whole else []))
        self._features = {}
        every = stored.inside("features")
        for name in info["features"]:
            feature = every.inside(name)
            feature.skip("info")
            self._features[name] = feature["dtype"], tuple(feature["shape"])
        names = {name: every.inside(name).get("names") for name in self._features}
        names = {name: plain(value) for name, value in names.items() if value and name not in BASE}
        self._shared = stored.kept() | ({"names": names} if names else {})
        stored.report_rest(report, root.name)
        self._report_other_files(root)

    def _report_other_files(self, root: Path) -> None:
        """Report statistics, and files that do not belong to LeRobot's layout."""
        known = ("meta/info.json", "meta/tasks.parquet", "meta/tasks.jsonl", "meta/episodes.jsonl")
        for file in sorted(root.rglob("*")):
            name = file.relative_to(root).as_posix()
            if file.is_file() and name not in known and not name.startswith(("data/", "videos/", "meta/episodes/")):
                is_statistics = name in ("meta/stats.json", "meta/episodes_stats.jsonl")
                reason = "statistics follow from the data" if is_statistics else "the file is not read"
                self._report.add(name, reason, root.name)

    def episode(self, meta: dict[str, Any]) -> SingleAgentEpisode | None:
        """Return the episode of a row of meta/episodes, or None if no step remains.

        Arrays that cannot be read are noted in the report. Missing rewards become 0.

        Raises:
            UnreadableData: there is no feature of observations or of actions.
        """
        report, table, number = self._report, self._source.rows(meta), meta["episode_index"]
        stored = Account({name: table[name] for name in table.column_names})
        stored.skip("frame_index", "episode_index", "index")
        observations, actions, extra = {}, {}, {}
        for name, (dtype, shape) in self._features.items():
            if name in BASE or name in (*FLAGS, "next.reward"):
                continue
            array = self._items(name, dtype, stored, meta, len(table))
            if dtype != "string":
                check_numbers(f"episode {number}", {name: array}, f"info.json says that it is {dtype}")
            is_image = dtype in ("video", "image")
            array = array if is_image or shape == (1,) else array.reshape(len(table), *shape)
            if name.startswith("observation."):
                observations[name.removeprefix("observation.")] = array
            elif name == "action" or name.startswith("action."):
                actions[name.removeprefix("action").removeprefix(".")] = array
            elif name.startswith("next."):
                report.add(name, UNKNOWN_MEANING, number)
            else:
                extra[name] = array
        if not observations or not actions:
            raise UnreadableData(f"episode {number}: there are no features 'observation...' and 'action'")
        rewards = _flag(stored, "next.reward", np.zeros(len(table)))
        check_numbers(f"episode {number}", {"next.reward": rewards})
        if "next.reward" not in stored:
            report.add("rewards", "the data have none; zeros stand there", number)
        steps = _end_flags(stored, len(table), number, report)
        infos, custom = self._infos_and_custom(stored, meta)
        stored.report_rest(report, number, "info.json does not list it")
        made = without_next(
            _single_or_all(observations), _single_or_all(actions), rewards, *steps, extra, report, number, infos
        )
        if made is None:
            return None
        return SingleAgentEpisode.from_arrays(**made, id_=f"{self._prefix}/{number}", custom_data=custom)

    def _items(self, name: str, dtype: str, stored: Account, meta: dict[str, Any], count: int) -> np.ndarray:
        """Return the items of a feature, which are in a video, encoded images in the table, or a column."""
        if dtype == "video" and name not in stored:
            return self._source.frames(name, meta, count)
        if dtype in ("video", "image"):
            rows = stored[name].to_pylist()
            images = [row.get("bytes") if isinstance(row, dict) else None for row in rows]
            return pixels_of(images, f"episode {meta['episode_index']}: {name!r}")
        return array_of(stored[name])

    def _infos_and_custom(self, stored: Account, meta: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the infos of an episode as arrays [T] by key, and its custom data."""
        infos: dict[str, Any] = {"timestamp": array_of(stored["timestamp"])} if "timestamp" in stored else {}
        custom: dict[str, Any] = {}
        if "task_index" in stored:
            each = stored["task_index"].to_pylist()
            texts = [self._tasks[task] for task in dict.fromkeys(each) if task in self._tasks]
            if texts:
                custom["task"] = texts[0]
            if len(texts) > 1:
                custom["tasks"] = texts
                infos["task"] = np.array([self._tasks.get(task, "") for task in each])
        about = Account(meta)
        about.skip("episode_index", "length", "dataset_from_index", "dataset_to_index", OURS)
        about.skip(*(name for name in meta if name.startswith(("data/", "videos/", "meta/episodes/"))))
        tasks = about.get("tasks")
        if tasks is not None and set(tasks) - {*custom.get("tasks", ()), custom.get("task")}:
            custom["tasks"] = list(dict.fromkeys([*tasks, *custom.get("tasks", ())]))
            custom.setdefault("task", custom["tasks"][0])
        shared = deepcopy(self._shared) | about.kept()
        about.report_rest(self._report, meta["episode_index"])
        return infos, custom | ({SOURCE: shared} if shared else {})


def _single_or_all(parts: dict[str, np.ndarray]) -> Any:
    """Return the value of a dict with one key, or the whole dict if it has several keys."""
    return next(iter(parts.values())) if len(parts) == 1 else parts


def _flag(stored: Account, name: str, default: np.ndarray) -> np.ndarray:
    """Return a column of one value per step, or `default` if the table has no such column."""
    return array_of(stored[name]).reshape(len(default)) if name in stored else default


def _end_flags(stored: Account, num: int, number: int, report: LossReport) -> tuple[bool, bool]:
    """Return whether an episode terminated and whether it was truncated, by the flags of its last step.

    An episode whose table has only the column "next.done" counts as truncated if done. That, missing flags, and flags
    before the last step are added to `report`.
    """
    flags = [_flag(stored, name, np.zeros(num, bool)).astype(bool) for name in FLAGS]
    done, terminated, truncated = (bool(flag[-1]) for flag in flags)
    if any(flag[:-1].any() for flag in flags):
        report.add("endings", "it ends before its last step, and an episode ends once", number)
    if "next.terminated" not in stored and "next.truncated" not in stored:
        if "next.done" not in stored:
            report.add("endings", "the data mark none; the episode counts as cut", number)
        elif done:
            report.add("whether it terminated", "the data have 'next.done' alone; taken as truncated", number)
            truncated = True
    elif done and not (terminated or truncated):
        report.add("next.done", "it differs from next.terminated and next.truncated, which are read", number)
    return terminated, truncated


def _recognize(contents: Contents) -> Recognition:
    if contents.kind != "directory":
        return OTHER_KIND
    return YES if contents.has("meta/info.json") else Recognition(False, "no 'meta/info.json'")


def _count(contents: Contents) -> int | None:
    return _info_of(contents.path).get("total_episodes")


FORMAT = Format(
    "lerobot", "data sets of LeRobot, versions 2 and 3", _recognize, lerobot_episodes, to_lerobot, count=_count
)
