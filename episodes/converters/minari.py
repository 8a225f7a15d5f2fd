"""Export of episodes to Minari data sets, and import of episodes from Minari data sets."""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from episodes.converters.accounting import SOURCE, Account, check_numbers
from episodes.converters.action_mapping import export_actions
from episodes.converters.bounded_packs import Given, bounded_lists
from episodes.converters.contents import Contents
from episodes.converters.format import OTHER_KIND, YES, Format, Recognition
from episodes.converters.info_arrays import info_arrays, infos_from
from episodes.converters.loss_report import LossReport, having_steps, report_dropped_facts, report_other_spaces
from episodes.converters.source_ids import checked_prefix, prefix_of_files, prefixed
from episodes.data_types import NestedArrays
from episodes.errors import InvalidArgument, UnreadableData, needing
from episodes.facts import VersionRuns
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.files import draft_beside, local_path
from episodes.tracks import nested
from episodes.tracks.infos.msgpack_codec import is_json
from episodes.tracks.spaces import has_text, keys_of

if TYPE_CHECKING:
    from minari import MinariDataset
    from minari.dataset.episode_data import EpisodeData

_FACTS = ("id_", "t_started", "agent_id", "module_id", "multi_agent_episode_id", "policy_versions", "acting_pipeline")
_OURS = "episodes"  # attribute of a Minari episode with our facts, as JSON
_MOST_BYTES = 60_000  # limit of an HDF5 attribute, with some margin
_LAYOUT = ("total_episodes", "total_steps", "data_format", "jpeg_encoding", "observation_space", "action_space")
_LAYOUT += ("dataset_id", "minari_version", "dataset_size")
_ARRAYS = ("observations", "actions", "rewards", "terminations", "truncations")
_KEPT = (*_FACTS, "infos", "custom_data", "both_endings", "observation_space", "action_space")


def _minari() -> Any:
    """Import minari. Raise `MissingExtra` if it is not installed."""
    with needing("minari", "Minari data needs minari"):
        import minari
        import minari.data_collector
    return minari


def from_minari(
    dataset: MinariDataset | str | Path, *, prefix: str | None = None, strict: bool = False
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Return the episodes of a Minari data set, and a report of what was lost.

    Ids and other metadata are those that `to_minari` stored, else ids are "minari-DIGEST/NUMBER", with a digest of the
    files. Seeds, options and other metadata of an episode are in its `custom_data`, and metadata of the data set, such
    as the author, in `custom_data["source"]`. Actions are the environment's.

    Args:
        dataset: a `MinariDataset`, the id of a local data set, or the path of its directory.
        prefix: first part of the ids: "PREFIX/ID".
        strict: raise if something would be lost.

    Raises:
        MissingExtra: minari is not installed.
        UnreadableData: observations or actions are text and their space is not, or infos have another number of rows.
        LostInConversion: with `strict`, something would be lost.
    """
    report = LossReport()
    return list(minari_episodes(dataset, report, prefix)), report.check(strict)


def minari_episodes(
    dataset: MinariDataset | str | Path, report: LossReport, prefix: str | None = None
) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of a Minari data set, and add losses to `report`."""
    dataset = _opened(dataset)
    place = Path(dataset.storage.data_path)
    shared = _shared_metadata(dataset, report)
    _report_other_files(place, dataset.id, report)
    made, numbers = checked_prefix(prefix), [int(number) for number in dataset.episode_indices]
    for number in numbers:  # one by one: an open file keeps what was read of it
        try:
            (about,), (data,) = dataset.storage.get_episode_metadata([number]), dataset.iterate_episodes([number])
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise UnreadableData(f"{place}: Minari cannot read episode {number}: {error!r}") from error
        if made is None and _OURS not in about:
            made = prefix_of_files("minari", sorted(file for file in place.rglob("*") if file.is_file()), None)
        yield _episode_of(data, about, dataset, shared, report, prefix, made)


def _opened(dataset: MinariDataset | str | Path) -> MinariDataset:
    """Return a data set, which is opened if it is given as an id or a path."""
    minari = _minari()
    if not isinstance(dataset, (str, Path)):
        return dataset
    place = local_path(dataset) / "data"
    return minari.MinariDataset(place) if place.is_dir() else minari.load_dataset(str(dataset))


def _shared_metadata(dataset: MinariDataset, report: LossReport) -> dict[str, Any]:
    """Return the metadata that a Minari data set has for all its episodes, except what follows from the episodes."""
    metadata = {key: getattr(value, "to_json", lambda v=value: v)() for key, value in dataset.storage.metadata.items()}
    stored = Account(metadata, "metadata[{!r}]")
    stored.skip(*_LAYOUT)
    kept = {key: value for name, value in stored.kept().items() for key in metadata if name == f"metadata[{key!r}]"}
    stored.report_rest(report, dataset.id, "it is too large for custom data of each episode")
    return kept


def _report_other_files(place: Path, id_: str, report: LossReport) -> None:
    """Report files, and arrays in Minari's HDF5 file, that Minari does not read."""
    known = {"metadata.json", "main_data.hdf5"}
    for file in sorted(place.iterdir()) if place.is_dir() else ():
        if file.name not in known and not (file.is_dir() and file.name.isdigit()):
            report.add(file.name, "it is not read", id_)
    if not (place / "main_data.hdf5").exists():
        return
    with needing("minari", "Minari data needs h5py"):
        import h5py
    with h5py.File(place / "main_data.hdf5", "r") as file:
        groups = [group for name, group in file.items() if name.startswith("episode_")]
        for key in sorted(name for name in map(str, file) if not name.startswith("episode_")):
            report.add(key, "Minari does not read it", id_)
        for group in groups:
            for key in sorted(set(group) - {*_ARRAYS, "infos"}):
                report.add(key, "Minari does not read it", group.name.removeprefix("/"))


def _episode_of(
    data: EpisodeData,
    about: dict[str, Any],
    dataset: MinariDataset,
    shared: dict[str, Any],
    report: LossReport,
    prefix: str | None,
    made_prefix: str | None,
) -> SingleAgentEpisode:
    """Convert an episode of a Minari data set to an episode of this library.

    Metadata that `to_minari` stored is restored. For any other data set, the metadata of the episode becomes its custom
    data.

    Args:
        about: the episode's metadata in the data set.
        shared: metadata of the data set.
        prefix: first part of the ids that `to_minari` stored, or None.
        made_prefix: first part of other ids.
    """
    facts: dict[str, Any] = json.loads(about[_OURS]) if _OURS in about else {"id_": f"{made_prefix}/{data.id}"}
    if facts.get("policy_versions"):
        facts["policy_versions"] = VersionRuns(*map(tuple, facts["policy_versions"]))
    facts.setdefault("custom_data", {k: _plain(v) for k, v in about.items() if k not in ("id", "total_steps", _OURS)})
    if shared:
        facts["custom_data"][SOURCE] = deepcopy(shared) | facts["custom_data"].get(SOURCE, {})
    ends = np.logical_or(data.terminations, data.truncations)
    if ends[:-1].any():
        report.add("endings", "it ends before its last step, and an episode ends once", data.id)
    acting_pipeline, where = facts.pop("acting_pipeline", None), f"{dataset.id}: episode {data.id}"
    observations, actions = _as_arrays(data.observations), _as_arrays(data.actions)
    columns = {"observations": observations, "actions": actions}
    spaces = {"observations": dataset.observation_space, "actions": dataset.action_space}
    numbers = {name: column for name, column in columns.items() if not has_text(spaces[name])}
    check_numbers(where, numbers | {"rewards": np.asarray(data.rewards)})
    num = len(data.rewards)
    infos = nested.flatten(_lengths_of(data.infos or {}), "infos") if data.infos else {}
    for name, length in infos.items():
        if length not in (num, num + 1):
            raise UnreadableData(f"{where}: {name!r} has {length} rows; give one for each of {num} steps or one more")
    episode = SingleAgentEpisode.from_arrays(
        observations,
        actions,
        data.rewards,
        infos=infos_from(data.infos or {}, num + 1),
        terminated=bool(len(ends) and data.terminations[-1]),
        truncated=bool(len(ends) and data.truncations[-1]),
        observation_space=dataset.observation_space,
        action_space=dataset.action_space,
        **facts,
    )
    episode.acting_pipeline = acting_pipeline
    return prefixed(episode, prefix) if _OURS in about else episode


def _lengths_of(data: dict[str, Any] | np.ndarray) -> Any:
    """Return nested dicts of arrays with the number of rows in place of each array."""
    return {key: _lengths_of(part) for key, part in data.items()} if isinstance(data, dict) else len(data)


def _plain(value: object) -> Any:
    """Convert numpy scalars and arrays in values from Minari's HDF5 files to Python values, also inside dicts."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def _as_arrays(data: object) -> Any:
    """Return Minari's nested data with lists of strings converted to arrays."""
    if isinstance(data, dict):
        return {key: _as_arrays(part) for key, part in data.items()}
    return tuple(map(_as_arrays, data)) if isinstance(data, tuple) else np.asarray(data)


def to_minari(
    episodes: Given,
    dataset_id: str,
    *,
    strict: bool = False,
    observation_space: spaces.Space | None = None,
    action_space: spaces.Space | None = None,
    about: Mapping[str, Any] | None = None,
) -> tuple[Any, LossReport]:
    """Write episodes to a new local Minari data set, and return it with a report of what was lost.

    Images are stored without JPEG compression. `custom_data["seed"]` and `custom_data["options"]` become Minari's own.
    Ids, `t_started`, policy versions, acting pipelines and JSON values of custom data are stored with each episode, for
    `from_minari`. Actions are those that were sent to the environment. An iterator of episodes is not collected in
    memory.

    Args:
        episodes: the episodes.
        dataset_id: a Minari id such as "cartpole/mine-v0".
        strict: raise if something would be lost.
        observation_space: space of all episodes; the first episode's if None.
        action_space: the environment's action space; the first episode's if None.
        about: more arguments of `minari.create_dataset_from_buffers`, such as `algorithm_name`.

    Raises:
        MissingExtra: minari is not installed.
        InvalidArgument: no episode has a step, there are no spaces or they have keys with a slash, the id is invalid,
            or the data set exists.
        LostInConversion: with `strict`, something would be lost. Nothing is left behind.
    """
    minari, report = _minari(), LossReport()
    try:
        minari.dataset.minari_dataset.parse_dataset_id(dataset_id)
    except ValueError as error:
        raise InvalidArgument(f"to_minari({dataset_id!r}): {error}") from None
    target = minari.storage.get_dataset_path(dataset_id)
    if target.exists():
        raise InvalidArgument(f"to_minari({dataset_id!r}): {target} exists already; give another id, or delete it")
    root = minari.storage.get_dataset_path("")
    with draft_beside(root) as draft:
        known = {"observation_space": observation_space, "action_space": action_space}
        _write(minari, episodes, dataset_id, draft, report, strict, known, about or {})
        with _root(draft):
            made = minari.storage.get_dataset_path(dataset_id)
        target.parent.mkdir(parents=True, exist_ok=True)
        for file in made.parent.iterdir():  # what Minari knows of the namespace
            if file.is_file() and made.parent != draft and not (target.parent / file.name).exists():
                os.replace(file, target.parent / file.name)
        os.rename(made, target)
    return minari.load_dataset(dataset_id), report


_root_lock = threading.Lock()


@contextmanager
def _root(path: Path) -> Iterator[None]:
    """Return a context manager in which Minari stores its data sets in the directory `path`."""
    name = "MINARI_DATASETS_PATH"
    with _root_lock:
        before = os.environ.get(name)
        os.environ[name] = str(path)
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


def _write(
    minari: ModuleType,
    episodes: Given,
    dataset_id: str,
    draft: Path,
    report: LossReport,
    strict: bool,
    known: dict[str, Any],
    about: Mapping[str, Any],
) -> None:
    """Write episodes to a new Minari data set in the temporary directory `draft`, a few at a time.

    Args:
        known: `observation_space` and `action_space`; each None is replaced by the first episode's space.
        about: further arguments of Minari's function, such as the author.

    Raises:
        InvalidArgument: there is no episode with a step, or a space is unknown or has keys that Minari does not take.
    """
    made, num = None, 0
    for some in bounded_lists(episodes, alike=False):
        some = [export_actions(episode, report) for episode in some]
        for name, space in known.items():
            known[name] = getattr(some[0], name) if space is None else space
        _check_spaces(known, dataset_id)
        some = list(having_steps(some, "Minari", report))
        for episode in some:
            report_other_spaces(report, episode, "Minari", **known)
        buffers = [_buffer_of(minari, episode, report) for episode in some]
        report.check(strict)
        if not some:
            continue
        if made is None:
            arguments = {**known, "jpeg_encoding": False, **about}
            with _root(draft), warnings.catch_warnings(action="ignore", category=UserWarning):  # of no author, ...
                made = minari.create_dataset_from_buffers(dataset_id, buffers, **arguments)
        else:
            made.update_dataset_from_buffer(buffers)
        made.storage.update_episode_metadata([{_OURS: _facts_of(e, report)} for e in some], range(num, num + len(some)))
        report.check(strict)
        num += len(some)
    if made is None:
        raise InvalidArgument(
            f"to_minari({dataset_id!r}): no episodes with a step were given; a Minari data set needs at least one"
        )


def _check_spaces(known: dict[str, Any], dataset_id: str) -> None:
    """Raise `InvalidArgument` if a space is `None`, or has a key with a slash, which Minari does not take."""
    for name, space in known.items():
        if space is None:
            raise InvalidArgument(f"to_minari({dataset_id!r}): the first episode has no {name}; give {name}=")
        for key in keys_of(space):
            if "/" in str(key):
                raise InvalidArgument(f"to_minari: {name} has a key {key!r}; Minari takes none with a slash, rename it")


def _buffer_of(minari: ModuleType, episode: SingleAgentEpisode, report: LossReport) -> Any:
    """Convert an episode to a Minari `EpisodeBuffer`, and report metadata and infos that Minari cannot store."""
    report_dropped_facts(report, episode, "Minari", keeps=_KEPT)
    tracks, count = episode.finalized_tracks(), len(episode)
    flags = np.zeros((2, count), bool)
    flags[:, -1] = episode.is_terminated, episode.is_truncated

    def lost(path: str) -> None:
        report.add(f"infos{path}", "Minari keeps what each step has, of one type and shape", episode.id_)

    return minari.data_collector.EpisodeBuffer(
        seed=_json_custom_data(episode, "seed", int),
        options=_json_custom_data(episode, "options", dict),
        observations=_as_minari(tracks.observations.get()),
        actions=_as_minari(tracks.actions.get()),
        rewards=tracks.rewards.get(),
        terminations=flags[0],
        truncations=flags[1],
        infos=info_arrays(episode.get_infos(), lost) or None,
    )


def _json_custom_data(episode: SingleAgentEpisode, key: str, kind: type) -> Any:
    """Return `custom_data[key]` of the episode if it has the type `kind` and can be written as JSON, otherwise None."""
    value = episode.custom_data.get(key)
    return value if isinstance(value, kind) and is_json(value) else None


def _as_minari(data: NestedArrays) -> Any:
    return nested.map_leaves(lambda leaf: leaf.tolist() if leaf.dtype.kind in "UT" else leaf, data)


def _facts_of(episode: SingleAgentEpisode, report: LossReport) -> str:
    """Return facts and custom data of an episode as JSON text, and report values that JSON cannot store."""
    facts = {name: getattr(episode.facts, name) for name in _FACTS}
    unsupported = [n for n in _FACTS if n != "policy_versions" and not isinstance(facts[n], (str, int, type(None)))]
    for name in unsupported:
        report.add(name, "Minari keeps ids that are numbers or text", episode.id_)
        del facts[name]
    custom = {key: value for key, value in episode.custom_data.items() if is_json({key: value})}
    if len(json.dumps(facts | {"custom_data": custom})) > _MOST_BYTES:
        custom = {}
    for key in episode.custom_data.keys() - custom.keys():
        report.add(f"custom_data[{key!r}]", "Minari keeps what is JSON, to 60 kB an episode", episode.id_)
    return json.dumps(facts | {"custom_data": custom})


def _recognize(contents: Contents) -> Recognition:
    if contents.kind != "directory":
        return OTHER_KIND
    missing = [name for name in ("data/metadata.json", "data/main_data.hdf5") if not contents.has(name)]
    return YES if len(missing) < 2 else Recognition(False, f"neither {missing[0]!r} nor {missing[1]!r}")


def _count(contents: Contents) -> int | None:
    file = contents.path / "data" / "metadata.json"
    return json.loads(file.read_text(encoding="utf-8")).get("total_episodes") if file.exists() else None


FORMAT = Format("minari", "data sets of Minari", _recognize, minari_episodes, to_minari, count=_count, has_ids=True)
