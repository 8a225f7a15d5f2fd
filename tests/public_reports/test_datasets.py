"""Public reports about data sets: one sentence on what the person did, and the right result here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from episodes import MultiAgentEpisode, SingleAgentEpisode, pack_agents, unpack_agents
from episodes.errors import ChunkMismatch
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter, check, compact, copy, merge


def episode(id_: str, num: int = 4, value: float = 0.0, t: int = 0, *, ended: bool = True) -> SingleAgentEpisode:
    times = np.arange(t, t + num + 1)
    arrays = times + value, times[:-1], np.full(num, value)
    return SingleAgentEpisode.from_arrays(*arrays, id_=id_, t_started=t, terminated=ended)


def data(path: Path, *episodes: SingleAgentEpisode) -> Path:
    with EpisodeWriter(path) as writer:
        writer.add([*episodes])
    return path


def test_combined_data_sets_that_both_number_their_episodes_from_zero(tmp_path: Path) -> None:
    """Minari: a user combined two data sets, and episodes of the second had the ids of the first."""
    first, second = (data(tmp_path / name, episode("0"), episode("1", 6)) for name in "ab")
    with pytest.raises(ChunkMismatch, match="episode 0: two chunks"):
        merge(tmp_path / "c", first, second)
    assert merge(tmp_path / "d", first, second, prefix=["a/", "b/"]) == 2
    assert EpisodeDataset(tmp_path / "d").metadata["episode_length"].tolist() == [4, 6, 4, 6]


def test_episode_index_starts_again_in_a_second_recording_session(tmp_path: Path) -> None:
    """LeRobot: a user resumed a recording, whose episode index began at 0 again and overwrote the first session."""
    path = data(tmp_path / "data", episode("0", value=1.0))
    with EpisodeWriter(path) as writer, pytest.raises(ChunkMismatch, match="episode 0"):
        writer.add([episode("0", value=2.0)])
    with EpisodeWriter(path) as writer:
        writer.add([episode("session-2/0", value=2.0)])
    assert [each.get_return() for each in EpisodeDataset(path)] == [4.0, 8.0]


def test_same_data_set_is_concatenated_twice(tmp_path: Path) -> None:
    """Hugging Face datasets: a user concatenated a data set with itself by mistake, and each row counted twice."""
    path = data(tmp_path / "data", episode("a"))
    assert merge(tmp_path / "all", path, path) == 1  # a repeated source is skipped
    assert EpisodeDataset(tmp_path / "all").num_steps == 4
    copy(path, tmp_path / "copied")
    with pytest.raises(ChunkMismatch, match="episode a: two chunks have the steps"):
        merge(tmp_path / "all", tmp_path / "copied")
    assert EpisodeDataset(tmp_path / "all").num_steps == 4


def test_merge_after_the_source_was_compacted(tmp_path: Path) -> None:
    """LeRobot: a user aggregated data sets again after a rewrite of their files, and all episodes were there twice."""
    path = tmp_path / "data"
    for number in range(3):
        data(path, episode(str(number)))
    merge(tmp_path / "all", path)
    assert compact(path) == 3
    with pytest.raises(ChunkMismatch, match="prefix"):
        merge(tmp_path / "all", path)
    assert EpisodeDataset(tmp_path / "all").num_steps == 12


def test_fragments_of_one_episode_are_read_out_of_order(tmp_path: Path) -> None:
    """RLlib: offline data of several workers had the later fragment of an episode first, and steps were lost."""
    path = data(tmp_path / "data", episode("a", 5, t=5), episode("b", 3), episode("a", 5, ended=False))
    buffer = EpisodeReplayBuffer.from_dataset(path, seed=0)
    assert {each.id_: len(each) for each in buffer.iter_episodes()} == {"a": 10, "b": 3}
    drawn = buffer.sample(200, n_step=3, gamma=1.0)
    assert np.array_equal(drawn.new_obs, drawn.obs + drawn.n_step)


def test_rows_of_two_episodes_with_one_id_are_joined(tmp_path: Path) -> None:
    """RLlib: rows of two workers had one `eps_id`, and their episodes were joined to one with jumps in it."""
    path = tmp_path / "data"
    writers = [EpisodeWriter(path) for _ in range(2)]  # neither sees the other's episodes
    writers[0].add([episode("7", 5, ended=False)])
    writers[1].add([episode("7", 5, 100.0, t=5)])
    for writer in writers:
        writer.close()
    assert "observations at t=5" in check(path).problems[0]
    with pytest.raises(ChunkMismatch, match="episode 7"):
        EpisodeReplayBuffer.from_dataset(path)


def test_trajectory_goes_on_after_its_end(tmp_path: Path) -> None:
    """TorchRL: a trajectory id was used again after the end of its trajectory, and slices crossed the border."""
    buffer = EpisodeReplayBuffer(100)
    buffer.add([episode("0")])
    with pytest.raises(ChunkMismatch, match="ended at t=4"):
        buffer.add([episode("0", t=4)])
    assert len(buffer) == 4


def test_length_of_an_episode_with_missing_fragments(tmp_path: Path) -> None:
    """D4RL: a user split the arrays at `terminals` and counted a trajectory with a missing part as complete."""
    path = data(tmp_path / "data", episode("a", 3, ended=False), episode("a", 4, t=5))
    rows = EpisodeDataset(path).metadata
    assert (rows["episode_length"].tolist(), rows["is_complete"].tolist()) == ([7, 7], [False, False])
    buffer = EpisodeReplayBuffer.from_dataset(path, seed=0)
    assert [(each.t_started, len(each)) for each in buffer.iter_episodes()] == [(0, 3), (5, 4)]
    drawn = buffer.sample(100, n_step=9, gamma=1.0)
    assert set(drawn.n_step[drawn.actions < 3].tolist()) == {1, 2, 3}  # no sample crosses the gap


def test_prefix_keeps_the_agents_of_a_game_together(tmp_path: Path) -> None:
    """PettingZoo users of RLlib: after episode ids were renamed, agents could not be matched to their games."""
    for name in "ab":
        game = MultiAgentEpisode(id_="game")
        game.add_env_reset(observations={"x": 0.0, "y": 1.0})
        game.add_env_step({"x": 1.0, "y": 2.0}, {"x": 0, "y": 1}, {"x": 1.0, "y": 2.0}, terminateds={"__all__": True})
        with EpisodeWriter(tmp_path / name) as writer:
            for pack in pack_agents([game]):
                writer.add(pack)
    with pytest.raises(ChunkMismatch, match="agent x"):
        merge(tmp_path / "none", tmp_path / "a", tmp_path / "b")
    merge(tmp_path / "both", tmp_path / "a", tmp_path / "b", prefix=["a/", "b/"])
    games = unpack_agents(list(EpisodeDataset(tmp_path / "both").packs()))
    assert [each.id_ for each in games] == ["a/game", "b/game"]
    assert [sorted(each.agent_ids) for each in games] == [["x", "y"]] * 2
