"""Policy versions of steps, in all kinds of storage."""

from __future__ import annotations

import copy
import pickle
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode, VectorRecorder, pack_agents, unpack_agents
from episodes.errors import InvalidArgument
from episodes.facts import VersionColumn, VersionRuns
from episodes.facts.policy_versions import join_runs
from episodes.storage import EpisodeDataset, EpisodeWriter, episode_rows


def grown(*versions: int | None, **arguments: Any) -> SingleAgentEpisode:
    """Return an episode with a step of each version. None means an unknown version."""
    episode = SingleAgentEpisode(**arguments)
    episode.add_env_reset(np.zeros(2))
    for version in versions:
        episode.add_env_step(np.ones(2), 0, 1.0, policy_version=version)
    return episode


def test_policy_versions_are_lowest_and_highest() -> None:
    assert grown().policy_versions is None
    assert grown(None, None).policy_versions is None
    assert grown(3, None, 5, 4).policy_versions == (3, 5)
    assert grown(np.int64(3), 1).policy_versions == (1, 3)


@pytest.mark.parametrize("version", [-1, 1.5, "7", True, 2**63, np.uint64(2**63), 2.0])
def test_invalid_policy_version_raises_and_adds_no_step(version: Any) -> None:
    for previous in (5, 1, 2):  # True == 1 and 2.0 == 2
        episode = grown(previous)
        before = copy.deepcopy(episode)
        with pytest.raises(InvalidArgument, match="polic"):
            episode.add_env_step(np.ones(2), 0, 1.0, policy_version=version)
        assert episode.equals(before)
    if version == -1:  # means unknown for constructors
        return
    arrays: Any = {"observations": np.zeros(2), "actions": np.zeros(1), "rewards": np.zeros(1)}
    with pytest.raises(InvalidArgument, match="polic"):
        SingleAgentEpisode.from_arrays(**arrays, policy_versions=version)
    with pytest.raises(InvalidArgument, match="polic"):
        EpisodePack(**arrays, lengths=[1], policy_versions=np.array([version]))


def test_constructors_accept_policy_versions() -> None:
    arrays = {"observations": np.zeros((3, 2)), "actions": np.zeros(2), "rewards": np.zeros(2)}
    episode = SingleAgentEpisode.from_arrays(**arrays, policy_versions=[2, 4], observation_space=None, id_="a")
    pack = EpisodePack(**arrays, lengths=[2], policy_versions=[VersionRuns((2, 4), (1,))], ids=["a"])
    assert episode.policy_versions == pack[0].policy_versions == (2, 4)
    assert SingleAgentEpisode.from_arrays(**arrays, policy_versions=3).get_policy_versions().tolist() == [3, 3]
    assert EpisodePack(**arrays, lengths=[2], policy_versions=[None]).policy_versions is None
    assert pack[0].equals(episode)


def test_data_set_without_versions_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = EpisodePack.from_episodes([grown(3, 5, id_="a").to_numpy(), grown(4, id_="b").to_numpy()])
    names = ("policy_versions", "policy_version_begins")
    with monkeypatch.context() as older:
        fields, columns = episode_rows.row_fields(), episode_rows.row_columns
        stored = [i for i, field in enumerate(fields) if field.name not in names]
        older.setattr(episode_rows, "row_fields", lambda: [fields[i] for i in stored])
        older.setattr(episode_rows, "row_columns", lambda pack: [columns(pack)[i] for i in stored])
        older.setattr(episode_rows, "optional_names", set)
        older.setattr(episode_rows, "_known_names", lambda: {fields[i].name for i in stored})  # which is remembered
        with EpisodeWriter(tmp_path) as writer:
            writer.add(pack)
    later = pack.replace(ids=["c", "d"])
    with EpisodeWriter(tmp_path) as writer:
        writer.add(later)
    read = EpisodeDataset(tmp_path)
    assert [episode.policy_versions for episode in read[:]] == [None, None, (3, 5), (4, 4)]
    assert list(read.metadata["policy_version_min"]) == [-1, -1, 3, 4]
    assert list(read.metadata["policy_version_max"]) == [-1, -1, 5, 4]
    assert all(episode.equals(current) for episode, current in zip(read[2:], later, strict=True))


def test_multi_agent_episode_keeps_versions() -> None:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": np.zeros(2), "b": np.zeros(2)})
    both = {"a": np.ones(2), "b": np.ones(2)}
    for _ in range(3):
        episode.add_env_step(observations=both, actions={"a": 0, "b": 1}, rewards={"a": 1.0, "b": 0.0})
    episode.agent_episodes["a"].policy_versions = [2, 6, 6]
    (unpacked,) = unpack_agents(pack_agents([episode]))
    for whole, versions in ((episode, [2, 6, 6]), (episode[1:], [6, 6]), (unpacked, [2, 6, 6])):
        assert whole.agent_episodes["a"].get_policy_versions().tolist() == versions
        assert whole.agent_episodes["b"].policy_versions is None
    assert episode[3:].agent_episodes["a"].policy_versions is None


# --- runs against the version of every step ------------------------------------------------------------------------

CHUNKS = st.lists(st.lists(st.integers(-1, 3), max_size=6), min_size=1, max_size=6)


def column(chunks: list[list[int]]) -> VersionColumn | None:
    return VersionColumn.of([VersionRuns.of(chunk, len(chunk)) if chunk else None for chunk in chunks])


def told(result: VersionColumn | None, chunks: list[list[int]]) -> list[list[int]]:
    """Return the version of every step of the chunks, by each method of `VersionColumn`."""
    lengths = np.array([len(chunk) for chunk in chunks], np.int64)
    if result is None:
        return [[-1] * n for n in lengths]
    steps = np.split(result.steps(lengths), lengths.cumsum()[:-1])[: len(chunks)]
    for i, current in enumerate(steps):
        runs = result.item(i)
        assert (runs.steps(len(current)) if runs else np.full(len(current), -1)).tolist() == current.tolist()
        assert (runs.bounds if runs else None) == bounds_of(current.tolist())
    known = [bounds_of(current.tolist()) or (-1, -1) for current in steps]
    assert result.lowest_and_highest().tolist() == [list(pair) for pair in known]
    assert result == pickle.loads(pickle.dumps(result))
    return [current.tolist() for current in steps]


def versions_of(runs: VersionRuns | None, num_steps: int) -> list[int]:
    return [-1] * num_steps if runs is None else runs.steps(num_steps).tolist()


def bounds_of(versions: list[int]) -> tuple[int, int] | None:
    known = [version for version in versions if version >= 0]
    return (min(known), max(known)) if known else None


@given(CHUNKS, st.data())
def test_version_column_gives_version_of_every_step(chunks: list[list[int]], data: st.DataObject) -> None:
    result = column(chunks)
    assert told(result, chunks) == chunks
    flat, lengths = np.array(list(chain(*chunks)), np.int64), np.array([len(chunk) for chunk in chunks])
    assert told(VersionColumn.of_steps(flat, lengths), chunks) == chunks
    other_parts = data.draw(CHUNKS)
    joined = VersionColumn.concat([result, column(other_parts)], [len(chunks), len(other_parts)])
    assert told(joined, chunks + other_parts) == chunks + other_parts
    if result is not None:
        index = data.draw(st.lists(st.integers(0, len(chunks) - 1), max_size=8))
        assert told(result[np.array(index, int)], [chunks[i] for i in index]) == [chunks[i] for i in index]
        part = slice(*sorted(data.draw(st.tuples(st.integers(0, 6), st.integers(0, 6)))))
        assert told(result[part], chunks[part]) == chunks[part]


@given(st.lists(st.integers(-1, 3), max_size=8), st.lists(st.integers(-1, 3), max_size=8), st.data())
def test_version_runs_window_and_join_equal_lists(a: list[int], b: list[int], data: st.DataObject) -> None:
    joined = join_runs(VersionRuns.of(a, len(a)), VersionRuns.of(b, len(b)), len(a))
    whole = a + b
    assert versions_of(joined, len(whole)) == whole
    first, last = sorted(data.draw(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole)))))
    part = joined and joined.window(first, last - first)
    assert versions_of(part, last - first) == whole[first:last]


@pytest.mark.parametrize("mode", list(AutoresetMode))
@given(data=st.data())
def test_recorder_take_has_version_of_each_step(mode: AutoresetMode, data: st.DataObject) -> None:
    num_envs, version = 3, -1
    recorder = VectorRecorder(num_envs, autoreset_mode=mode, len_lookback_buffer=2)
    recorder.reset(np.zeros((num_envs, 1)))
    done = np.zeros(num_envs, bool)
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            version = data.draw(st.integers(0, 4))
            recorder.policy_version = version
        if mode is AutoresetMode.DISABLED and done.any():
            recorder.reset(np.zeros((num_envs, 1)), reset_mask=done)
        done = np.array(data.draw(st.lists(st.booleans(), min_size=num_envs, max_size=num_envs)))
        infos = {"final_obs": np.zeros((num_envs, 1)), "_final_obs": done} if done.any() else {}
        row = (np.zeros((num_envs, 1)), np.zeros(num_envs, int), np.zeros(num_envs), done, np.zeros(num_envs, bool))
        outputs = {"version": np.full(num_envs, version)}
        recorder.step(*row, infos if mode is AutoresetMode.SAME_STEP else {}, outputs)
        if data.draw(st.integers(0, 3)) == 0:
            check_versions(recorder.take())
    assert recorder.policy_version == (None if version < 0 else version)
    check_versions(recorder.take())


def check_versions(pack: EpisodePack) -> None:
    """Assert that the pack and each episode have the versions with which the steps were recorded."""
    made = pack.extra_model_outputs["version"][pack.step_rows()]
    assert pack.get_policy_versions().tolist() == made.tolist()
    for episode in pack:
        assert episode.get_policy_versions().tolist() == episode.get_extra_model_outputs("version").tolist()


def test_unknown_versions_equal_no_versions() -> None:
    runs = EpisodePack.from_episodes([grown(None, id_="a"), grown(3, 4, id_="b"), grown(None, 2, id_="c")])
    for pack in (runs, runs.select([0, 1])):
        assert pack[:1].policy_versions is None
        assert pack.select([0, 0]).facts.policy_versions is None
        assert pack[1:2].policy_versions is not None


@given(st.lists(st.lists(st.integers(-1, 2), max_size=6), min_size=1, max_size=4), st.data())
def test_pack_move_starts_equals_episode_windows(versions: list[list[int]], data: st.DataObject) -> None:
    sized = [(np.arange(len(v) + 1.0), np.arange(len(v)), np.zeros(len(v)), v) for v in versions]
    parts = [SingleAgentEpisode.from_arrays(*arrays, policy_versions=v, t_started=3) for *arrays, v in sized]
    skipped = np.array([data.draw(st.integers(0, len(current))) for current in versions])
    moved = EpisodePack.from_episodes(parts).move_starts(skipped)
    for part, skip, episode in zip(parts, skipped.tolist(), moved, strict=True):
        assert episode.equals(part.slice(slice(skip, None), len_lookback_buffer=skip))
