"""Export of episodes to LeRobot's layout, version 3 (Parquet and mp4), without the package LeRobot."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from episodes.converters import lerobot_features as features
from episodes.converters.action_mapping import export_actions
from episodes.converters.bounded_packs import Given, each_of
from episodes.converters.columns import nested_column
from episodes.converters.feature_stats import RunningStats, Stats, frame_stats_of, stats_of
from episodes.converters.lerobot_features import BASE, FLAGS, OURS, Feature
from episodes.converters.loss_report import LossReport, dropped_facts, having_steps, report_other_spaces
from episodes.converters.parquet_files import Parts, parquet
from episodes.converters.step_tables import keep_documents
from episodes.converters.videos import VideoWriter, pyav
from episodes.errors import InvalidArgument, WrongType
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import space_json
from episodes.storage.arrow import pyarrow
from episodes.storage.files import local_path, whole_directory
from episodes.tracks.infos import msgpack_codec

_IDS = ("id_", "agent_id", "module_id", "multi_agent_episode_id")
_FACTS = (*_IDS, "t_started", "policy_versions", "acting_pipeline")
_FOLDER = 1000  # files per folder
_DATA_MB, _VIDEO_MB = 100, 200  # size at which a new file is started
_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"


def to_lerobot(
    episodes: Given,
    path: str | Path,
    *,
    fps: int = 30,
    task: str = "act",
    videos: bool = True,
    lossless: bool = False,
    strict: bool = False,
) -> LossReport:
    """Write episodes to a new directory in LeRobot's layout v3, and return a report of what was lost.

    Observations become "observation.state", or "observation.KEY". Images uint8 [H, W, C] or [C, H, W] with one or three
    channels and at least 16 pixels a side become videos, "observation.image" or "observation.images.KEY". The actions
    that were sent to the environment become "action", rewards "next.reward", endings "next.done", "next.terminated" and
    "next.truncated". LeRobot has no place for last observations, ids, infos, custom data and spaces: they are stored
    next to its own data, for `from_lerobot`. An iterator of episodes is not collected in memory. Episodes of several
    agents become one episode per agent.

    Args:
        episodes: the episodes.
        path: the new directory.
        fps: steps per second, which episodes do not store.
        task: description of the task. An episode with `custom_data["task"]` has its own.
        videos: write images as videos. False: write them as numbers.
        lossless: write videos without loss, at about ten times the size. Otherwise H.264 with crf 23 is used, and the
            errors of some frames are reported.
        strict: raise if something would be lost.

    Raises:
        MissingExtra: pyarrow is not installed, or PyAV for videos.
        InvalidArgument: the path exists, `fps` is less than 1, or no episode has a step.
        TrackMismatch: episodes of several schemas.
        WrongType: a track of complex numbers, times or another unsupported dtype.
        LostInConversion: with `strict`, something would be lost. Nothing is left behind.
    """
    if fps < 1:
        raise InvalidArgument(f"fps={fps}: give the steps a second, at least 1")
    report = LossReport()
    with whole_directory(local_path(path)) as draft, ExitStack() as stack:
        writer = _Writer(draft, fps, videos, lossless, report)
        stack.callback(writer.abandon)
        for episode in having_steps(each_of(episodes), "LeRobot", report):
            writer.write(export_actions(episode, report), task)
            report.check(strict)
        writer.close()
        report.check(strict)
    return report


class _Writer:
    """Writer of a LeRobot data set that takes one episode after another.

    Args:
        root: directory of the data set.
        fps: steps per second.
        videos: whether images are written as videos.
        lossless: whether videos are compressed without loss.
        report: gets what is lost.
    """

    def __init__(self, root: Path, fps: int, videos: bool, lossless: bool, report: LossReport) -> None:
        self._root, self._fps, self._are_videos, self._lossless = root, fps, videos, lossless
        self._report = report
        self._data = Parts(lambda n: root / f"data/{_file(n)}.parquet", _DATA_MB << 20)
        self._metas = Parts(lambda n: root / f"meta/episodes/{_file(n)}.parquet", _DATA_MB << 20)
        self._features: dict[str, Feature] = {}
        self._videos: dict[str, VideoWriter] = {}
        self._num_videos: dict[str, int] = {}
        self._tasks: dict[str, int] = {}
        self._stats: dict[str, RunningStats] = {}
        self._num_episodes = self._num_frames = 0
        self._about: dict[str, Any] = {}
        self._spaces: dict[str, Any] = {}
        self._described: dict[str, Any] = {}

    def write(self, episode: SingleAgentEpisode, task: str) -> None:
        """Write one episode: its table rows, videos, statistics and metadata.

        `task` is the task of an episode whose custom data have none.
        """
        if episode.lookback:
            self._report.add("lookback", "LeRobot has no place for it", episode.id_)
            episode = episode.slice(slice(None), len_lookback_buffer=0)
        tracks = episode.finalized_tracks()
        known = features.features_of(tracks, self._are_videos)
        if not self._features:
            self._begin(episode, known)
        features.check_alike(self._features, known, episode.id_)
        report_other_spaces(self._report, episode, "LeRobot", **self._spaces)
        arrays, num = tracks.arrays(), len(episode)
        own_task = episode.custom_data.get("task")
        index = self._tasks.setdefault(own_task if isinstance(own_task, str) else task, len(self._tasks))
        columns = {feature.name: arrays[path][:num] for path, feature in known.items() if feature.order is None}
        columns |= _flags(episode) | self._base(num, index)
        stats = {name: stats_of(array) for name, array in columns.items() if array.dtype.kind != "U"}
        files = {}
        for feature in (feature for feature in known.values() if feature.order is not None):
            frames = feature.frames(arrays[feature.path])
            stats[feature.name] = frame_stats_of(frames[:num])
            files |= self._write_video(feature, frames)
        number = self._data.write(pyarrow().table({name: nested_column(array) for name, array in columns.items()}))
        for name, part in stats.items():
            self._stats.setdefault(name, RunningStats()).add(part)
        self._write_meta(episode, list(self._tasks)[index], num, number, files, stats)

    def _begin(self, episode: SingleAgentEpisode, known: dict[str, Feature]) -> None:
        """Set up the schema of the data set from its first episode, whose features by array path are `known`.

        A space that cannot be stored as JSON is left out, and noted in the report.
        """
        self._features = known
        spaces = {name: getattr(episode, name) for name in ("observation_space", "action_space")}
        for name, space in spaces.items():
            try:
                space_json.to_json(space, name)
            except WrongType as error:
                self._report.add(name, str(error), episode.id_)
                spaces[name] = None
        self._spaces = {name: space for name, space in spaces.items() if space is not None}
        self._about = features.about_of(episode.finalized_tracks(), known, spaces)
        self._described = {feature.name: feature.describe(self._fps, self._lossless) for feature in known.values()}
        self._described |= {name: features.describe(np.dtype(bool), ()) for name in FLAGS}
        self._described |= {name: features.describe(np.dtype(dtype), ()) for name, dtype in BASE.items()}
        if any(feature.order for feature in known.values()):
            pyav()

    def _base(self, num: int, task: int) -> dict[str, np.ndarray]:
        """Return the columns that every LeRobot data set has, such as "timestamp", for an episode of `num` steps."""
        frame = np.arange(num)
        return {
            "timestamp": (frame / self._fps).astype(np.float32),
            "frame_index": frame,
            "episode_index": np.full(num, self._num_episodes),
            "index": frame + self._num_frames,
            "task_index": np.full(num, task),
        }

    def _write_video(self, feature: Feature, frames: np.ndarray) -> dict[str, Any]:
        """Append frames [T + 1, H, W, 3] to a video file. Return metadata with the file and the frames' time range.

        The location covers the first T frames, since LeRobot stores no last observation.
        """
        key = feature.name
        writer = self._videos.get(key)
        if writer is not None and writer.nbytes >= _VIDEO_MB << 20:
            self._finish(key)
            writer = None
        if writer is None:
            number = self._num_videos[key] = self._num_videos.get(key, -1) + 1
            path = self._root / f"videos/{key}/{_file(number)}.mp4"
            writer = self._videos[key] = VideoWriter(path, self._fps, feature.frame_shape, lossless=self._lossless)
        begin, number = writer.num_frames, self._num_videos[key]
        writer.write(frames)
        stop = begin + len(frames) - 1
        times = {"from_timestamp": begin / self._fps, "to_timestamp": stop / self._fps}
        return _location(f"videos/{key}", number) | {f"videos/{key}/{name}": time for name, time in times.items()}

    def _finish(self, key: str) -> None:
        """Close the open video file of the feature `key`. If it is compressed with loss, its errors are noted in the
        report.
        """
        largest, mean = self._videos[key].close()
        del self._videos[key]
        if not self._lossless:
            reason = (
                f"H.264 of crf 23 keeps it roughly: errors of some frames to {largest} of 255, {mean:.1f} in the mean"
            )
            self._report.add(key, f"{reason}; lossless=True keeps it", f"file {self._num_videos[key]}")

    def _write_meta(
        self,
        episode: SingleAgentEpisode,
        task: str,
        num: int,
        number: int,
        files: dict[str, Any],
        stats: dict[str, Stats],
    ) -> None:
        """Write the row of one episode to the tables of metadata below meta/episodes."""
        row = {"episode_index": self._num_episodes, "tasks": [task], "length": num}
        row |= _location("data", number)
        row |= {"dataset_from_index": self._num_frames, "dataset_to_index": self._num_frames + num} | files
        row |= {f"stats/{key}/{name}": value.tolist() for key, part in stats.items() for name, value in part.items()}
        row |= _location("meta/episodes", max(self._metas.number, 0))
        self._metas.write(pyarrow().Table.from_pylist([row | {OURS: self._rest(episode)}]))
        self._num_episodes += 1
        self._num_frames += num

    def _rest(self, episode: SingleAgentEpisode) -> bytes:
        """Encode the parts of an episode for which LeRobot has no columns, such as ids and infos, as msgpack bytes."""
        for name in dropped_facts(episode.facts, _FACTS):
            self._report.add(name, "LeRobot has no place for it", episode.id_)
        ids = {name: getattr(episode, name) for name in _IDS}
        arrays = episode.finalized_tracks().observations.arrays()
        facts = {
            "ids": keep_documents(ids, "", episode.id_, self._report),
            "t_started": episode.t_started,
            "custom_data": keep_documents(episode.custom_data, "custom_data", episode.id_, self._report),
            "acting_pipeline": episode.acting_pipeline,
            "policy_versions": episode.get_policy_versions() if episode.policy_versions is not None else None,
            "infos": {
                str(t): keep_documents(info, "infos", episode.id_, self._report)
                for t, info in enumerate(episode.get_infos())
                if info
            },
            "last": {path: array[-1] for path, array in arrays.items() if self._features[path].order is None},
        }
        return msgpack_codec.encode(facts, OURS)

    def close(self) -> None:
        """Finish all files, and write statistics, tasks and the description of the data set (info.json).

        Raises:
            InvalidArgument: no episode with a step was written.
        """
        if not self._num_episodes:
            raise InvalidArgument("to_lerobot: no episodes with a step were given")
        for key in list(self._videos):
            self._finish(key)
        self._data.close()
        self._metas.close()
        meta, stats = self._root / "meta", {key: part.to_json() for key, part in self._stats.items()}
        parquet().write_table(_tasks_table(self._tasks), meta / "tasks.parquet")
        (meta / "stats.json").write_text(json.dumps(stats, indent=4), encoding="utf-8")
        (meta / "info.json").write_text(json.dumps(self._info(), indent=4), encoding="utf-8")

    def _info(self) -> dict[str, Any]:
        """Return the content of the data set's info.json."""
        has_videos = bool(self._num_videos)
        return {
            "codebase_version": features.VERSION,
            "robot_type": None,
            "total_episodes": self._num_episodes,
            "total_frames": self._num_frames,
            "total_tasks": len(self._tasks),
            "chunks_size": _FOLDER,
            "data_files_size_in_mb": _DATA_MB,
            "video_files_size_in_mb": _VIDEO_MB,
            "fps": self._fps,
            "splits": {"train": f"0:{self._num_episodes}"},
            "data_path": f"data/{_FILE}.parquet",
            "video_path": f"videos/{{video_key}}/{_FILE}.mp4" if has_videos else None,
            "features": self._described,
            OURS: self._about,
        }

    def abandon(self) -> None:
        """Close all open files without finishing the data set, after an error."""
        for writer in self._videos.values():
            writer.abandon()


def _file(number: int) -> str:
    """Return the path of the file with this number, without its suffix."""
    return _FILE.format(chunk_index=number // _FOLDER, file_index=number % _FOLDER)


def _location(kind: str, number: int) -> dict[str, Any]:
    """Return the indices of the folder and of the file with this number, as columns of the episodes' metadata."""
    return {f"{kind}/chunk_index": number // _FOLDER, f"{kind}/file_index": number % _FOLDER}


def _flags(episode: SingleAgentEpisode) -> dict[str, np.ndarray]:
    """Return the columns of end flags of an episode. Only the last step can have True."""
    flags = np.zeros((3, len(episode)), bool)
    flags[:, -1] = episode.is_done, episode.is_terminated, episode.is_truncated
    return dict(zip(FLAGS, flags, strict=True))


def _tasks_table(tasks: dict[str, int]) -> Any:
    """Return an Arrow table of task names in the form that LeRobot reads: with the task as pandas index."""
    pa, index = pyarrow(), "__index_level_0__"
    column = {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"}
    label = {"name": None, "field_name": index, "pandas_type": "unicode", "numpy_type": "object"}
    metadata = {
        "index_columns": [index],
        "column_indexes": [],
        "columns": [column | {"metadata": None}, label | {"metadata": None}],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.0.0",
    }
    table = pa.table({"task_index": pa.array(list(tasks.values())), index: pa.array(list(tasks), pa.string())})
    return table.replace_schema_metadata({b"pandas": json.dumps(metadata)})
