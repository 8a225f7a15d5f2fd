"""Public reports of users of other libraries about files and converted data, each with the right value here."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from episodes import EpisodePack
from episodes.converters import (
    from_d4rl,
    from_messages,
    from_minari,
    from_rllib_parquet,
    from_sb3,
    from_tensordict,
    from_tianshou,
    read,
    to_minari,
    to_sb3,
)
from episodes.errors import InvalidArgument, UnreadableData
from episodes.storage import EpisodeDataset, EpisodeWriter

BOX = spaces.Box(-99, 99, (1,))


def d4rl(path: Path, num: int = 6, **arrays: Any) -> Path:
    """Write a file in D4RL's layout, with observations 0, 1, 2, ..."""
    import h5py

    rows = np.arange(num)
    columns = {"observations": rows[:, None] * np.float32(1), "actions": np.zeros((num, 1)), "rewards": rows * 1.0}
    with h5py.File(path, "w") as file:
        for key, array in {**columns, "terminals": np.zeros(num, bool), **arrays}.items():
            file[key] = array
    return path


def observations_of(episodes: list[Any]) -> list[list[float]]:
    return [np.ravel(episode.get_observations()).tolist() for episode in episodes]


def test_d4rl_file_without_terminals_is_split_by_timeouts(tmp_path: Path) -> None:
    """D4RL: a user asked how to segment HalfCheetah, which has no terminal states, and guessed 1,000 rows each."""
    path = d4rl(tmp_path / "x.hdf5", timeouts=np.arange(6) % 3 == 2)
    episodes, _ = from_d4rl(path)
    assert observations_of(episodes) == [[0, 1, 2], [3, 4, 5]]
    assert [(e.is_terminated, e.is_truncated) for e in episodes] == [(False, True)] * 2


def test_d4rl_file_without_timeouts_is_reported(tmp_path: Path) -> None:
    """D4RL: timeouts of the first MuJoCo files are not marked, so users trained across time limits."""
    _, report = from_d4rl(d4rl(tmp_path / "x.hdf5"))
    assert "truncations" in {loss.what for loss in report}


def test_d4rl_last_next_observation_is_not_of_the_next_trajectory(tmp_path: Path) -> None:
    """D4RL: `qlearning_dataset` gave the first observation of the next trajectory as the last next observation."""
    following = np.arange(1, 7, dtype=np.float32)[:, None]
    following[2] = 77
    path = d4rl(
        tmp_path / "x.hdf5", next_observations=following, terminals=np.arange(6) == 2, timeouts=np.arange(6) == 5
    )
    episodes, report = from_d4rl(path, strict=True)
    assert observations_of(episodes) == [[0, 1, 2, 77], [3, 4, 5, 6]]
    assert not report


def test_d4rl_last_row_of_the_file_is_not_dropped(tmp_path: Path) -> None:
    """D4RL: the loop over N - 1 rows always dropped the last transition."""
    path = d4rl(tmp_path / "x.hdf5", terminals=np.arange(6) == 5, timeouts=np.zeros(6, bool))
    (episode,), report = from_d4rl(path)
    assert episode.get_rewards().tolist() == [0, 1, 2, 3, 4, 5]
    assert [loss.what for loss in report] == ["the last observation"]


def test_final_observation_in_the_file_is_kept(tmp_path: Path) -> None:
    """d3rlpy: the final observation of an episode was not stored, and the last one was repeated instead."""
    path = d4rl(tmp_path / "x.hdf5", observations=np.arange(7.0)[:, None], timeouts=np.arange(6) == 5)
    (episode,), report = from_d4rl(path, strict=True)
    assert len(episode.get_observations()) == len(episode) + 1 == 7
    assert episode.is_truncated
    assert not report


def test_steps_of_a_goal_task_keep_the_infos_of_their_row(tmp_path: Path) -> None:
    """D4RL: users of maze2d needed `infos/goal` to label rewards, and other loaders left it out."""
    path = d4rl(tmp_path / "x.hdf5", timeouts=np.arange(6) == 5, **{"infos/goal": np.arange(12.0).reshape(6, 2)})
    (episode,), _ = from_d4rl(path)
    assert [info["goal"].tolist() for info in episode.get_infos()] == np.arange(12.0).reshape(6, 2).tolist()


def rllib_steps(path: Path, **columns: Any) -> Path:
    rows = np.arange(4.0)
    data = {"obs": rows[:, None], "new_obs": rows[:, None] + 1, "actions": rows, "rewards": rows}
    data |= {"terminateds": rows == 3, "truncateds": np.zeros(4, bool), "eps_id": [7] * 4, "t": np.arange(4)} | columns
    table = {key: list(value) if getattr(value, "ndim", 1) > 1 else value for key, value in data.items()}
    pq.write_table(pa.table(table), path)
    return path


def test_compressed_observations_are_refused_with_the_setting(tmp_path: Path) -> None:
    """RLlib: a user found an alphanumeric sequence in place of the recorded observations, which were compressed."""
    path = rllib_steps(tmp_path / "x.parquet", obs=["BCJNGGhAgAA="] * 4, new_obs=["BCJNGGhAgAA="] * 4)
    with pytest.raises(UnreadableData, match="output_compress_columns"):
        from_rllib_parquet(path)


def test_duplicated_recorded_steps_are_refused(tmp_path: Path) -> None:
    """RLlib: recorded episodes were read twice in a batch, and joining them failed in the buffer."""
    path = rllib_steps(tmp_path / "x.parquet", t=[0, 1, 1, 2])
    with pytest.raises(UnreadableData, match="episode 7 has two rows with 't' 1"):
        from_rllib_parquet(path)


def test_fragments_in_wrong_order_are_sorted(tmp_path: Path) -> None:
    """RLlib: a chunk with time steps 11 to 21 was sampled before steps 0 to 11 of its episode."""
    table = pq.read_table(rllib_steps(tmp_path / "x.parquet")).take([2, 3, 0, 1])
    pq.write_table(table, tmp_path / "x.parquet")
    (episode,), report = from_rllib_parquet(tmp_path / "x.parquet", strict=True)
    assert (observations_of([episode]), episode.is_terminated, len(report)) == ([[0, 1, 2, 3, 4]], True, 0)


def sb3_buffer(**options: Any) -> Any:
    from stable_baselines3.common.buffers import ReplayBuffer

    buffer = ReplayBuffer(8, BOX, spaces.Discrete(2), "cpu", **options)
    for i in range(4):
        row = np.full((1, 1), i, np.float32), np.full((1, 1), i + 1, np.float32), np.zeros((1, 1))
        buffer.add(*row, np.ones(1), np.array([i == 3]), [{"TimeLimit.truncated": i == 3}])
    return buffer


def test_time_limit_in_a_buffer_is_a_truncation() -> None:
    """SB3: with timeouts as terminal states, values of time-limited tasks were wrong until `timeouts` were stored."""
    (episode,), report = from_sb3(sb3_buffer(), strict=True)
    assert (episode.is_terminated, episode.is_truncated, len(report)) == (False, True, 0)


def test_buffer_that_cannot_mark_time_limits_is_reported() -> None:
    """SB3 and RL Zoo: `handle_timeout_termination=False` is what users set to be allowed to optimize memory."""
    (episode,), report = from_sb3(sb3_buffer(handle_timeout_termination=False))
    assert episode.is_terminated
    assert [loss.what for loss in report] == ["truncations"]


def test_buffer_without_next_observations_is_refused() -> None:
    """SB3 and CleanRL: with `optimize_memory_usage` a time limit is followed by the observation of the next reset."""
    with pytest.raises(InvalidArgument, match="optimize_memory_usage"):
        from_sb3(sb3_buffer(handle_timeout_termination=False, optimize_memory_usage=True))


def test_two_calls_of_learn_are_not_one_episode() -> None:
    """SB3: after a second `learn()`, the environment was reset, and the buffer continued without an ending."""
    buffer = sb3_buffer()
    for start in (20, 40):
        row = np.full((1, 1), start, np.float32), np.full((1, 1), start + 1, np.float32), np.zeros((1, 1))
        buffer.add(*row, np.ones(1), np.zeros(1), [{}])
    episodes, report = from_sb3(buffer)
    assert observations_of(episodes) == [[0, 1, 2, 3, 4], [20, 21], [40, 41]]
    assert [loss.what for loss in report] == ["what lies between two steps"]


def test_buffer_of_episodes_of_several_environments_keeps_their_ends() -> None:
    """Tianshou: a user asked which index is the end of an episode after the buffer was updated."""
    flags = np.array([False, True, False, False, False, True])
    rows = np.array([0.0, 1, 2, 10, 11, 12])[:, None]
    buffer = SimpleNamespace(
        obs=rows, obs_next=rows + 1, act=np.zeros(6), rew=np.ones(6), terminated=flags, truncated=np.zeros(6, bool),
        maxsize=6, subbuffer_edges=np.array([0, 3, 6]), sample_indices=lambda size: np.arange(6),
    )  # fmt: skip
    episodes, _ = from_tianshou(buffer, strict=True)
    assert observations_of(episodes) == [[0, 1, 2], [2, 3], [10, 11, 12, 13]]
    assert [e.is_terminated for e in episodes] == [True, False, True]


def torchrl_rows(num: int, **entries: Any) -> Any:
    import torch
    from tensordict import TensorDict

    rows = torch.arange(float(num))[:, None]
    flags = torch.zeros(num, 1, dtype=torch.bool)
    following = {"observation": rows + 1, "reward": rows, "done": flags, "terminated": flags}
    return TensorDict({"observation": rows, "action": rows, "next": following, **entries}, [num])


def test_padding_of_split_trajectories_is_no_step() -> None:
    """TorchRL: trajectories that were split and padded with zeros were read with their padding."""
    import torch

    mask = torch.tensor([[True, True, True], [True, False, False]])
    data = torchrl_rows(6, collector={"mask": mask.reshape(-1), "traj_ids": torch.tensor([0, 0, 0, 1, 1, 1])})
    episodes, report = from_tensordict(data.reshape(2, 3), strict=True)
    assert observations_of(episodes) == [[0, 1, 2, 3], [3, 4]]
    assert not report


def test_slices_of_one_trajectory_next_to_each_other_are_not_joined() -> None:
    """TorchRL: slices sampled from one trajectory had one id, and became one trajectory when they were split again."""
    import torch

    rows = torchrl_rows(6, step_count=torch.arange(6), collector={"traj_ids": torch.zeros(6, dtype=torch.int64)})
    episodes, report = from_tensordict(rows[torch.tensor([0, 1, 4, 5])])
    assert observations_of(episodes) == [[0, 1, 2], [4, 5, 6]]
    assert [episode.t_started for episode in episodes] == [0, 4]
    assert "what lies between two steps" in {loss.what for loss in report}


def minari_data(name: str, scale: float) -> Any:
    import minari

    ends = {"terminations": np.array([False, False]), "truncations": np.array([False, True])}
    arrays = {"observations": np.full((3, 1), scale, np.float32), "actions": np.zeros(2, int), "rewards": np.ones(2)}
    buffer = minari.data_collector.EpisodeBuffer(seed=3, options={"level": 4}, **arrays, **ends)
    known = {"observation_space": BOX, "action_space": spaces.Discrete(2), "author": "A. User"}
    with warnings.catch_warnings(action="ignore"):
        return minari.create_dataset_from_buffers(name, [buffer], **known)


@pytest.fixture
def _minari_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


@pytest.mark.usefixtures("_minari_root")
def test_combined_data_sets_keep_all_steps(tmp_path: Path) -> None:
    """Minari and LeRobot: merging data sets that both number their episodes from 0 mixed the episodes up."""
    with EpisodeWriter(tmp_path / "all") as writer:
        for k in (1, 2):
            writer.add(list(read(minari_data(f"some/part-v{k}", k))[0]))
    dataset = EpisodeDataset(tmp_path / "all")
    assert len({*dataset.metadata["id"]}) == len(dataset) == 2
    assert sorted(e.get_observations()[0, 0] for e in dataset) == [1, 2]


@pytest.mark.usefixtures("_minari_root")
def test_seed_options_and_author_of_a_data_set_are_kept() -> None:
    """Minari: attributes such as the author were lost when data sets were combined."""
    (episode,), report = from_minari(minari_data("some/authored-v0", 1), strict=True)
    assert (episode.custom_data["seed"], episode.custom_data["options"]) == (3, {"level": 4})
    assert episode.custom_data["source"] == {"author": ["A. User"]}
    assert not report


@pytest.mark.usefixtures("_minari_root")
def test_incomplete_episode_in_a_data_set_is_not_truncated() -> None:
    """Minari: trajectories from buffers that stop in the middle of an episode were refused or marked as truncated."""
    data = minari_data("some/whole-v0", 1)
    (episode,), _ = from_minari(data)
    part = episode[:1]
    made, _ = to_minari([part], "some/parts-v0")
    (back,), _ = from_minari(made)
    assert (len(back), back.is_terminated, back.is_truncated) == (1, False, False)


def test_tools_are_kept_and_tool_calls_reported() -> None:
    """TRL: the `tools` of a conversation and messages with `tool_calls` were dropped without a word."""
    turn = {"role": "assistant", "token_ids": [3], "logprobs": [-1.0], "tool_calls": [{"name": "add"}]}
    messages = [{"role": "user", "token_ids": [1, 2]}, turn, {"role": "tool", "token_ids": [4], "name": "add"}]
    (episode,), report = from_messages([{"messages": messages, "tools": [{"name": "add"}]}])
    assert episode.custom_data == {"tools": [{"name": "add"}]}
    assert {loss.what for loss in report} == {"messages['tool_calls']", "messages['name']"}


def test_reward_of_a_step_is_of_its_own_action() -> None:
    """RLDS: a converter gave each action with the following observation's step, one row late."""
    rows = np.arange(3.0)[:, None]
    buffer = SimpleNamespace(
        obs=rows, obs_next=rows + 1, act=np.array([5, 6, 7]), rew=np.array([0.5, 0.6, 0.7]), maxsize=3,
        terminated=np.array([False, False, True]), truncated=np.zeros(3, bool),
        sample_indices=lambda size: np.arange(3),
    )  # fmt: skip
    (episode,), _ = from_tianshou(buffer, observation_space=BOX)
    pack = EpisodePack.from_episodes([episode])
    assert list(zip(pack.actions.tolist(), pack.rewards.tolist(), strict=True)) == [(5, 0.5), (6, 0.6), (7, 0.7)]
    made, _ = to_sb3([episode], action_space=spaces.Discrete(9))
    assert made.actions.ravel().tolist() == [5, 6, 7]
