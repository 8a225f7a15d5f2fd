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

from episodes import SingleAgentEpisode
from episodes.converters import from_d4rl, from_sb3, from_tensordict, from_tianshou, to_tensordict
from episodes.errors import InvalidArgument, LostInConversion, UnreadableData
from episodes.testing.strategies import episodes as drawn
from episodes.testing.strategies import spaces as drawn_spaces
from episodes.tracks import nested

BOX = spaces.Box(-9, 9, (2,))


def same(original: SingleAgentEpisode, restored: SingleAgentEpisode) -> None:
    """Raise unless tracks and endings are equal."""
    a, b = original.finalized_tracks(), restored.finalized_tracks()
    for name in ("observations", "actions", "rewards"):
        assert nested.equal(getattr(a, name).get(), getattr(b, name).get()), name
    assert a.extra.keys() == b.extra.keys()
    assert all(nested.equal(a.extra[key].get(), b.extra[key].get()) for key in a.extra)
    assert (original.is_terminated, original.is_truncated) == (restored.is_terminated, restored.is_truncated)


def of_numbers(space: Any) -> bool:
    return not any(word in str(space) for word in ("Tuple", "Text"))


@settings(max_examples=20, phases=[Phase.generate])
@given(st.data())
def test_tensordict_round_trip_of_supported_episodes_is_equal(data: st.DataObject) -> None:
    pytest.importorskip("tensordict")
    observations, actions = data.draw(drawn_spaces().filter(of_numbers)), data.draw(drawn_spaces().filter(of_numbers))
    options: dict[str, Any] = {"extra_outputs": data.draw(st.sampled_from([[], ["action_logp", "state_out"]]))}
    original_episodes = data.draw(
        st.lists(drawn(observations, actions, min_steps=1, reward_type=np.float32, **options), min_size=1, max_size=4)
    )
    rows, _ = to_tensordict(original_episodes)
    assert rows.batch_size == (sum(map(len, original_episodes)),)
    back, lost = from_tensordict(rows, strict=True)
    assert not lost
    for original, restored in zip(original_episodes, back, strict=True):
        same(original, restored)


@settings(max_examples=15, phases=[Phase.generate])
@given(data=st.data())
def test_tensordict_round_trip_of_random_episodes_reports_every_difference(data: st.DataObject) -> None:
    observations, actions = data.draw(drawn_spaces().filter(of_numbers)), data.draw(drawn_spaces().filter(of_numbers))
    original_episodes = data.draw(
        law.episode_lists(observations, actions).filter(lambda episodes: any(map(len, episodes)))
    )
    rows, lost = to_tensordict(original_episodes)
    back, _ = from_tensordict(rows, strict=True)
    for original, restored in zip(law.convertible_episodes(original_episodes, lost), back, strict=True):
        assert law.unreported_differences(original, restored, lost) == set(), (original, restored, str(lost))
    assert law.reported_without_loss(original_episodes, back, lost) == set()


def some(steps: int = 3, **options: Any) -> SingleAgentEpisode:
    arrays = np.arange(2.0 * steps + 2, dtype=np.float32).reshape(-1, 2), np.arange(steps), np.arange(steps) / 4
    return SingleAgentEpisode.from_arrays(*arrays, **{"id_": "a", "terminated": True, **options})


def test_to_tensordict_reports_every_loss() -> None:
    pytest.importorskip("tensordict")
    lossy = some(5, infos=[{"a": 1}] * 6, custom_data={"x": 1}, agent_id="p", t_started=3)
    _, report = to_tensordict([lossy.slice(slice(2, 5), len_lookback_buffer=1), some(0)])
    losses = {loss.what for loss in report}
    assert losses == {"infos", "custom_data", "agent_id", "t_started", "lookback", "id_", "the episode"}
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
    with pytest.raises(InvalidArgument, match="no 'action' among"):
        from_tensordict(rows.exclude("action"))


def sb3(full: bool) -> SimpleNamespace:
    """Return the attributes of a `ReplayBuffer` of 2 environments and 4 rows after 3 steps, or 5 if full."""
    steps = [(i, i == 2, False) for i in range(5 if full else 3)]
    held = SimpleNamespace(
        observations=np.zeros((4, 2, 2), np.float32),
        next_observations=np.zeros((4, 2, 2), np.float32),
        actions=np.zeros((4, 2, 1), np.int64),
        rewards=np.zeros((4, 2), np.float32),
        dones=np.zeros((4, 2), np.float32),
        timeouts=np.zeros((4, 2), np.float32),
    )
    for i, done, late in steps:
        held.observations[i % 4], held.next_observations[i % 4] = i, i + 1
        held.actions[i % 4], held.rewards[i % 4], held.dones[i % 4] = 1, i, [[done], [0]][0] + [0]
        held.timeouts[i % 4] = late
    about = {"pos": len(steps) % 4, "full": full, "buffer_size": 4, "n_envs": 2, "optimize_memory_usage": False}
    return SimpleNamespace(**vars(held), **about, observation_space=BOX, action_space=spaces.Discrete(3))


def test_from_sb3_reads_each_environment_from_oldest_row() -> None:
    back, lost = from_sb3(sb3(full=True), strict=True)
    assert not lost
    assert [(e.id_, len(e), e.is_terminated) for e in back] == [
        ("sb3-0/0", 2, True), ("sb3-0/1", 2, False), ("sb3-1/0", 4, False)
    ]  # fmt: skip
    assert back[0].get_observations()[:, 0].tolist() == [1, 2, 3]
    assert back[0].get_actions().shape == (2,)
    assert [len(e) for e in from_sb3(sb3(full=False))[0]] == [3, 3]
    with pytest.raises(InvalidArgument, match="optimize_memory_usage"):
        from_sb3(SimpleNamespace(optimize_memory_usage=True))


def test_from_sb3_reports_gap_between_steps() -> None:
    buffer = sb3(full=False)
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
        info={"a": np.arange(6)}, subbuffer_edges=np.array([0, 3, 6]), sample_indices=lambda size: np.arange(6),
    )  # fmt: skip
    back, _ = from_tianshou(buffer, strict=True)
    assert [len(e) for e in back] == [3, 3]
    assert back[1].get_infos() == [{}, {"a": 3}, {"a": 4}, {"a": 5}]
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
        file["infos/qpos"] = np.zeros(8)
    back, report = from_d4rl(path)
    losses = {(loss.what, loss.num_episodes, loss.first) for loss in report}
    assert losses == {("'infos'", 1, "hopper"), ("the last observation", 1, "row 2"), ("the last step", 2, "row 5")}
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
