"""The lowest and the highest policy version of an episode's steps: a fact, carried wherever the episode goes."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode, pack_agents, unpack_agents
from episodes.errors import InvalidArgument
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter, episode_rows


def grown(*versions: int | None, **arguments: Any) -> SingleAgentEpisode:
    """An episode with a step of each version; None for a step of which nothing is told."""
    episode = SingleAgentEpisode(**arguments)
    episode.add_env_reset(np.zeros(2))
    for version in versions:
        episode.add_env_step(np.ones(2), 0, 1.0, policy_version=version)
    return episode


def test_an_episode_keeps_the_lowest_and_the_highest_version_that_was_told() -> None:
    assert grown().policy_versions is None
    assert grown(None, None).policy_versions is None
    assert grown(3, None, 5, 4).policy_versions == (3, 5)
    assert grown(np.int64(3), 1).policy_versions == (1, 3)


@pytest.mark.parametrize("version", [-1, 1.5, "7"])
def test_a_version_that_is_no_number_is_refused_and_no_step_is_added(version: Any) -> None:
    episode = grown(2)
    before = copy.deepcopy(episode)
    with pytest.raises(InvalidArgument, match="policy_version="):
        episode.add_env_step(np.ones(2), 0, 1.0, policy_version=version)
    assert episode.equals(before)


def test_versions_of_arrays_are_given_to_their_constructors() -> None:
    arrays = {"observations": np.zeros((3, 2)), "actions": np.zeros(2), "rewards": np.zeros(2)}
    episode = SingleAgentEpisode.from_arrays(**arrays, policy_versions=(2, 4), observation_space=None, id_="a")
    pack = EpisodePack(**arrays, lengths=[2], policy_versions=[(2, 4)], ids=["a"])
    assert episode.policy_versions == pack[0].policy_versions == (2, 4)
    assert EpisodePack(**arrays, lengths=[2], policy_versions=[None]).policy_versions is None
    assert pack[0].equals(episode)


def test_a_data_set_written_before_there_were_versions_is_read_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = EpisodePack.from_episodes([grown(3, 5, id_="a").to_numpy(), grown(4, id_="b").to_numpy()])
    names = ("policy_version_min", "policy_version_max")
    with monkeypatch.context() as older:
        fields, columns = episode_rows.row_fields(), episode_rows.row_columns
        kept = [i for i, field in enumerate(fields) if field.name not in names]
        older.setattr(episode_rows, "row_fields", lambda: [fields[i] for i in kept])
        older.setattr(episode_rows, "row_columns", lambda pack: [columns(pack)[i] for i in kept])
        older.setattr(episode_rows, "optional_names", set)
        with EpisodeWriter(tmp_path) as writer:
            writer.add(pack)
    with EpisodeWriter(tmp_path) as writer:
        writer.add(pack)
    read = EpisodeDataset(tmp_path)
    assert [episode.policy_versions for episode in read[:]] == [None, None, (3, 5), (4, 4)]
    assert list(read.metadata["policy_version_min"]) == [-1, -1, 3, 4]
    assert all(episode.equals(own) for episode, own in zip(read[2:], pack, strict=True))


def test_a_successor_has_no_version_until_it_has_a_step_and_joining_joins_them() -> None:
    head = grown(7, 3)
    tail = head.cut(1)
    assert tail.policy_versions is None
    tail.add_env_step(np.ones(2), 0, 1.0, policy_version=9)
    assert tail.policy_versions == (9, 9)
    head.concat_episode(tail)
    assert head.policy_versions == (3, 9)
    assert grown(1).cut().policy_versions is None


def test_a_part_with_steps_has_the_versions_of_the_whole() -> None:
    for episode in (grown(3, 4, 5), grown(3, 4, 5).to_numpy()):
        assert episode[1:].policy_versions == (3, 5)
        assert episode[2:2].policy_versions is None


def test_versions_go_through_packs_pickles_copies_and_states() -> None:
    episodes = [grown(1, 2).to_numpy(), grown(None).to_numpy(), grown(5)]
    told = [(1, 2), None, (5, 5)]
    pack = EpisodePack.from_episodes(episodes)
    assert [episode.policy_versions for episode in pack] == told
    assert list(pack.policy_versions) == told
    assert EpisodePack.from_episodes([grown(None)]).policy_versions is None
    assert list(EpisodePack.concat([pack[1:2], pack[2:]]).policy_versions) == told[1:]
    assert list(pack.select([2, 0]).policy_versions) == [told[2], told[0]]
    assert list(pack.replace(policy_versions=[None, (0, 1), None]).policy_versions) == [None, (0, 1), None]
    assert list(pickle.loads(pickle.dumps(pack, 5)).policy_versions) == told
    for episode, versions in zip(episodes, told, strict=True):
        for other in (
            pickle.loads(pickle.dumps(episode)),
            copy.deepcopy(episode),
            SingleAgentEpisode.from_state(episode.get_state()),
        ):
            assert other.policy_versions == versions
            assert other.equals(episode)


def test_versions_of_chunks_are_joined_in_a_buffer_and_come_back() -> None:
    buffer = EpisodeReplayBuffer(100, seed=0)
    head = grown(4, 5)
    tail = head.cut()
    tail.add_env_step(np.ones(2), 0, 1.0, terminated=True, policy_version=2)
    untold = grown(None)
    buffer.add([head, untold])
    buffer.add([tail])
    restored = EpisodeReplayBuffer(100, seed=0)
    restored.set_state(buffer.get_state())
    for kept in (buffer, restored):
        found = {episode.id_: episode.policy_versions for episode in kept.iter_episodes()}
        assert found == {head.id_: (2, 5), untold.id_: None}
        (pack,) = kept.iter_packs()
        assert sorted(map(str, pack.policy_versions)) == ["(2, 5)", "None"]


def test_versions_are_on_disk_and_in_the_table(tmp_path: Path) -> None:
    episodes = [grown(1, 2).to_numpy(), grown(None).to_numpy(), grown(5).to_numpy()]
    with EpisodeWriter(tmp_path) as writer:
        writer.add(episodes)
        for episode in episodes:
            writer.add([episode])
    dataset = EpisodeDataset(tmp_path)
    assert [episode.policy_versions for episode in dataset] == [(1, 2), None, (5, 5)] * 2
    assert dataset.metadata["policy_version_min"].tolist() == [1, -1, 5] * 2
    assert dataset.metadata["policy_version_max"].tolist() == [2, -1, 5] * 2
    assert len(dataset.select(lambda rows: rows["policy_version_min"] >= 2)) == 2


def test_versions_of_agents_go_through_a_multi_agent_episode() -> None:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": np.zeros(2), "b": np.zeros(2)})
    both = {"a": np.ones(2), "b": np.ones(2)}
    for _ in range(3):
        episode.add_env_step(observations=both, actions={"a": 0, "b": 1}, rewards={"a": 1.0, "b": 0.0})
    episode.agent_episodes["a"].policy_versions = (2, 6)
    (unpacked,) = unpack_agents(pack_agents([episode]))
    for whole in (episode, episode[1:], unpacked):
        assert whole.agent_episodes["a"].policy_versions == (2, 6)
        assert whole.agent_episodes["b"].policy_versions is None
    assert episode[3:].agent_episodes["a"].policy_versions is None
