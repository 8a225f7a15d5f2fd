"""Conversions of TensorDicts, replay buffers of other libraries and D4RL files to episodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import law
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from samples import BOX, some
from stable_baselines3.common.buffers import ReplayBuffer

from episodes import SingleAgentEpisode
from episodes.converters import from_d4rl, from_sb3, from_tensordict, from_tianshou, read, to_sb3, to_tensordict
from episodes.errors import InvalidArgument, LostInConversion, UnreadableData
from episodes.testing.strategies import spaces as drawn_spaces

SPACES = {"observation_space", "action_space"}


def of_numbers(space: Any) -> bool:
    return not any(word in str(space) for word in ("Tuple", "Text"))


@settings(max_examples=15, phases=[Phase.generate])
@given(data=st.data())
def test_tensordict_round_trip_of_random_episodes_reports_every_difference(data: st.DataObject) -> None:
    observations, actions = data.draw(drawn_spaces().filter(of_numbers)), data.draw(drawn_spaces().filter(of_numbers))
    original_episodes = data.draw(
        law.episode_lists(observations, actions).filter(lambda episodes: any(map(len, episodes)))
    )
    rows, lost = to_tensordict(original_episodes)
    back, _ = from_tensordict(rows, strict=True)
    assert rows.batch_size == (sum(map(len, original_episodes)),)
    law.check_round_trip(original_episodes, back, lost)


def test_to_tensordict_reports_every_loss() -> None:
    pytest.importorskip("tensordict")
    lossy = some(5, infos=[{"a": 1}] * 6, custom_data={"x": 1}, agent_id="p", t_started=3)
    _, report = to_tensordict([lossy.slice(slice(2, 5), len_lookback_buffer=1), some(0)])
    losses = {loss.what for loss in report}
    assert losses == {"infos", "custom_data", "agent_id", "t_started", "lookback", "id_", "the episode"} | SPACES
    with pytest.raises(LostInConversion, match="custom_data"):
        to_tensordict([lossy], strict=True)
    with pytest.raises(InvalidArgument, match="no episodes with a step"):
        to_tensordict([])
    with pytest.raises(InvalidArgument, match="names that TorchRL reserves"):
        to_tensordict([some(extra_model_outputs={"done": np.zeros(3)})])


def test_to_tensordict_reports_outputs_that_are_no_numbers() -> None:
    extra = {"word": np.array(["a", "b"]), "when": np.array([1, 2], "M8[s]"), "logp": np.array([0.5, 0.25])}
    episode = SingleAgentEpisode.from_arrays(
        np.zeros(3), [0, 1], [0.0, 1.0], extra_model_outputs=extra, terminated=True
    )
    made, lost = to_tensordict([episode])
    assert {loss.what for loss in lost} == {"id_", "extra_model_outputs['word']", "extra_model_outputs['when']"}
    assert made["logp"].tolist() == [0.5, 0.25]
    numbered = SingleAgentEpisode.from_arrays({0: np.zeros(2), 1: np.ones(2)}, [0], [0.0])
    with pytest.raises(InvalidArgument, match="keys that are strings, and 0 is not"):
        to_tensordict([numbered])


def test_from_tensordict_of_two_axes_splits_rows_and_reports_dropped_keys() -> None:
    pytest.importorskip("tensordict")
    rows, _ = to_tensordict([some(4, terminated=False), some(4, terminated=False)])
    del rows["collector"]
    rows["next", "steps"] = rows["action"]
    back, report = from_tensordict(rows.reshape(2, 4))
    assert [len(e) for e in back] == [4, 4]
    assert [loss.what for loss in report] == ["('next', 'steps')"]
    assert [len(e) for e in read(rows)[0]] == [4, 4]
    with pytest.raises(InvalidArgument, match="no 'action' among"):
        from_tensordict(rows.exclude("action"))


def fits(space: Any) -> bool:
    """Return True if Stable-Baselines3 has a buffer for the space: arrays of numbers, or a Dict of such arrays."""
    return all(map(is_array, space.spaces.values() if isinstance(space, spaces.Dict) else [space]))


def is_array(space: Any) -> bool:
    one_axis = not isinstance(space, spaces.MultiDiscrete) or len(space.shape) == 1
    return one_axis and type(space) in (spaces.Box, spaces.Discrete, spaces.MultiDiscrete) and 0 not in space.shape


@settings(max_examples=15, phases=[Phase.generate])
@given(data=st.data())
def test_sb3_round_trip_of_random_episodes_reports_every_difference(data: st.DataObject) -> None:
    known = {"observation_space": data.draw(drawn_spaces().filter(fits))}
    known["action_space"] = data.draw(drawn_spaces().filter(is_array))
    original_episodes = data.draw(law.episode_lists(*known.values()).filter(lambda drawn: any(map(len, drawn))))
    buffer, lost = to_sb3(original_episodes, **known)
    back, _ = from_sb3(buffer, strict=True)
    law.check_round_trip(original_episodes, back, lost, given=known)


def test_sb3_sampler_bootstraps_after_time_limit_and_cut_only() -> None:
    endings = ({"terminated": True}, {"truncated": True}, {})
    chains = [some(steps, **{"terminated": False, **ending}) for steps, ending in zip((3, 2, 4), endings, strict=True)]
    buffer, report = to_sb3(chains, buffer_size=20)
    assert isinstance(buffer, ReplayBuffer)
    assert (buffer.pos, buffer.full, buffer.size()) == (9, False, 9)
    drawn = buffer.sample(500)
    columns = drawn.observations[:, 0] / 2, drawn.next_observations[:, 0] / 2, drawn.dones[:, 0]
    assert {*zip(*(column.tolist() for column in columns), strict=True)} == {
        (0, 1, 0), (1, 2, 0), (2, 3, 0), (2, 3, 1), (3, 4, 0)
    }  # fmt: skip
    assert {loss.what for loss in report} == {"id_", "that the chunk goes on", "the dtype of rewards"}
    buffer.add(np.zeros((1, 2)), np.ones((1, 1)), np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    episodes, _ = read(buffer)
    assert [(len(e), e.is_terminated, e.is_truncated) for e in episodes] == [
        (3, True, False), (2, False, True), (4, False, True), (1, False, False)
    ]  # fmt: skip


def test_to_sb3_rejects_wrong_arguments_and_reports_rounded_rewards() -> None:
    rounded = some()
    rounded.set_rewards(new_data=np.array([0.1, 0.2, 0.3]))
    for episode, options, error, text in (
        (some(observation_space=None), {}, InvalidArgument, "give observation_space="),
        (some(), {"buffer_size": 2}, InvalidArgument, "there are 3 steps"),
        (some(), {"observation_space": spaces.Tuple([BOX])}, InvalidArgument, "no buffer for"),
        (some(0), {}, InvalidArgument, "no episodes with a step"),
        (rounded, {"strict": True}, LostInConversion, "rewards: SB3 holds them as float32, some are other"),
    ):
        with pytest.raises(error, match=text):
            to_sb3([episode], **options)


def sb3(steps: int) -> ReplayBuffer:
    """Return a buffer of 2 environments and 4 rows after these steps. The third step of the first one terminates."""
    buffer = ReplayBuffer(8, BOX, spaces.Discrete(3), "cpu", n_envs=2)
    for i in range(steps):
        rows = np.full((2, 2), i), np.full((2, 2), i + 1), np.ones((2, 1))
        buffer.add(*rows, np.full(2, i), np.array([i == 2, False]), [{}, {}])
    return buffer


def test_from_sb3_reads_each_environment_from_oldest_row() -> None:
    back, _ = from_sb3(sb3(5), prefix="sb3", strict=True)
    assert [(e.id_, len(e), e.is_terminated) for e in back] == [
        ("sb3/0/0", 2, True), ("sb3/0/1", 2, False), ("sb3/1/0", 4, False)
    ]  # fmt: skip
    assert back[0].get_observations()[:, 0].tolist() == [1, 2, 3]
    assert back[0].get_actions().shape == (2,)
    assert [len(e) for e in from_sb3(sb3(3))[0]] == [3, 3]
    with pytest.raises(InvalidArgument, match="optimize_memory_usage"):
        from_sb3(SimpleNamespace(optimize_memory_usage=True))


def test_from_sb3_reports_gap_between_steps() -> None:
    buffer = sb3(3)
    buffer.observations[1, 1] = 7
    back, report = from_sb3(buffer)
    assert [len(e) for e in back] == [3, 1, 2]
    assert [(loss.what, loss.first) for loss in report] == [("what lies between two steps", "row 0")]


def test_from_tianshou_splits_at_sub_buffers() -> None:
    observations = np.arange(6, dtype=np.float32)[:, None]
    flags = np.zeros(6, bool)
    buffer = SimpleNamespace(
        obs=observations, obs_next=observations + 1, act=np.zeros(6, int), rew=np.ones(6),
        terminated=flags, truncated=flags.copy(),
        info={"a": np.arange(6)}, subbuffer_edges=np.array([0, 3, 6]), maxsize=6,
        sample_indices=lambda size: np.arange(6),
    )  # fmt: skip
    back, _ = from_tianshou(buffer, strict=True)
    assert [len(e) for e in back] == [3, 3]
    assert back[1].get_infos() == [{}, {"a": 3}, {"a": 4}, {"a": 5}]
    assert [len(e) for e in read(buffer)[0]] == [3, 3]
    del buffer.obs_next
    with pytest.raises(InvalidArgument, match="ignore_obs_next"):
        from_tianshou(buffer)


def test_from_d4rl_without_next_observations_reports_lost_steps(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "hopper.hdf5"
    arrays = {
        "observations": np.arange(8, dtype=np.float32)[:, None],
        "actions": np.zeros((8, 1), np.float32),
        "rewards": np.arange(8.0),
        "terminals": np.arange(8) == 2,
        "timeouts": np.arange(8) == 5,
    }
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file[key] = array
        file["infos/qpos"] = np.arange(8)
    back, report = from_d4rl(path)
    losses = {(loss.what, loss.num_episodes, loss.first) for loss in report}
    assert losses == {("the last observation", 1, "row 2"), ("the last step", 2, "row 5")}
    assert [info["qpos"] for e in back for info in e.get_infos() if info] == list(range(8))
    assert [(len(e), e.is_terminated, e.is_truncated) for e in back] == [
        (3, True, False), (2, False, True), (1, False, False)
    ]  # fmt: skip
    assert [e.get_observations().ravel().tolist() for e in back] == [[0, 1, 2, 2], [3, 4, 5], [6, 7]]
    with h5py.File(path, "a") as file:
        file["next_observations"] = arrays["observations"] + 1
        del file["infos"]
    back, _ = from_d4rl(path, strict=True)
    assert [len(e) for e in back] == [3, 3, 2]
    path.write_bytes(b"no file of this kind")
    with pytest.raises(UnreadableData, match="hopper"):
        from_d4rl(path)
