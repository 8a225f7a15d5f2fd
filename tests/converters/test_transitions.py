"""TensorDicts, replay buffers of others and D4RL's files: cut into the episodes that they are of."""

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


def same(one: SingleAgentEpisode, other: SingleAgentEpisode) -> None:
    """Raise unless tracks and endings are equal."""
    a, b = one.finalized_tracks(), other.finalized_tracks()
    for name in ("observations", "actions", "rewards"):
        assert nested.equal(getattr(a, name).get(), getattr(b, name).get()), name
    assert a.extra.keys() == b.extra.keys()
    assert all(nested.equal(a.extra[key].get(), b.extra[key].get()) for key in a.extra)
    assert (one.is_terminated, one.is_truncated) == (other.is_terminated, other.is_truncated)


def of_numbers(space: Any) -> bool:
    return not any(word in str(space) for word in ("Tuple", "Text"))


@settings(max_examples=20, phases=[Phase.generate])
@given(st.data())
def test_what_a_tensordict_can_hold_comes_back_equal(data: st.DataObject) -> None:
    pytest.importorskip("tensordict")
    observed, acted = data.draw(drawn_spaces().filter(of_numbers)), data.draw(drawn_spaces().filter(of_numbers))
    options: dict[str, Any] = {"extra_outputs": data.draw(st.sampled_from([[], ["action_logp", "state_out"]]))}
    given_ = data.draw(
        st.lists(drawn(observed, acted, min_steps=1, reward_type=np.float32, **options), min_size=1, max_size=4)
    )
    rows, _ = to_tensordict(given_)
    assert rows.batch_size == (sum(map(len, given_)),)
    back, lost = from_tensordict(rows, strict=True)
    assert not lost
    for one, other in zip(given_, back, strict=True):
        same(one, other)


@settings(max_examples=15, phases=[Phase.generate])
@given(data=st.data())
def test_whatever_comes_back_from_a_tensordict_is_equal_or_its_loss_was_named(data: st.DataObject) -> None:
    observed, acted = data.draw(drawn_spaces().filter(of_numbers)), data.draw(drawn_spaces().filter(of_numbers))
    given_ = data.draw(law.lists(observed, acted).filter(lambda found: any(map(len, found))))
    rows, lost = to_tensordict(given_)
    back, _ = from_tensordict(rows, strict=True)
    for one, other in zip(law.kept(given_, lost), back, strict=True):
        assert law.unnamed(one, other, lost) == set(), (one, other, str(lost))
    assert law.told_for_nothing(given_, back, lost) == set()


def some(steps: int = 3, **more: Any) -> SingleAgentEpisode:
    arrays = np.arange(2.0 * steps + 2, dtype=np.float32).reshape(-1, 2), np.arange(steps), np.arange(steps) / 4
    return SingleAgentEpisode.from_arrays(*arrays, **{"id_": "a", "terminated": True, **more})


def test_what_a_tensordict_cannot_hold_is_told() -> None:
    pytest.importorskip("tensordict")
    odd = some(5, infos=[{"a": 1}] * 6, custom_data={"x": 1}, agent_id="p", t_started=3)
    _, report = to_tensordict([odd.slice(slice(2, 5), len_lookback_buffer=1), some(0)])
    told = {loss.what for loss in report}
    assert told == {"infos", "custom_data", "agent_id", "t_started", "lookback", "id_", "the episode"}
    with pytest.raises(LostInConversion, match="custom_data"):
        to_tensordict([odd], strict=True)
    with pytest.raises(InvalidArgument, match="no episodes with a step"):
        to_tensordict([])
    with pytest.raises(InvalidArgument, match="names of TorchRL's own"):
        to_tensordict([some(extra_model_outputs={"done": np.zeros(3)})])


def test_outputs_that_are_no_numbers_are_left_out_of_a_tensordict_by_name() -> None:
    extra = {"word": np.array(["a", "b"]), "when": np.array([1, 2], "M8[s]"), "logp": np.array([0.5, 0.25])}
    episode = SingleAgentEpisode.from_arrays(
        np.zeros(3), [0, 1], [0.0, 1.0], extra_model_outputs=extra, terminated=True
    )
    made, lost = to_tensordict([episode])
    assert {loss.what for loss in lost} == {"id_", "extra_model_outputs['word']", "extra_model_outputs['when']"}
    assert made["logp"].tolist() == [0.5, 0.25]
    numbered = SingleAgentEpisode.from_arrays({0: np.zeros(2), 1: np.ones(2)}, [0], [0.0])
    with pytest.raises(InvalidArgument, match="keys that are text, and 0 is none"):
        to_tensordict([numbered])


def test_a_tensordict_of_rows_and_columns_is_cut_at_its_rows_and_says_what_it_drops() -> None:
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
    """What a `ReplayBuffer` of 2 environments and 4 rows has, after 3 steps or 5."""
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


def test_the_buffer_of_sb3_is_read_from_its_oldest_row_environment_by_environment() -> None:
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


def test_rows_that_do_not_lead_to_the_next_are_told() -> None:
    buffer = sb3(full=False)
    buffer.observations[1, 1] = 7
    back, report = from_sb3(buffer)
    assert [len(e) for e in back] == [3, 1, 2]
    assert [(loss.what, loss.first) for loss in report] == [("what lies between two steps", "row 0")]


def test_the_buffer_of_tianshou_is_cut_at_its_parts_too() -> None:
    seen = np.arange(6, dtype=np.float32)[:, None]
    flags = np.zeros(6, bool)
    buffer = SimpleNamespace(
        obs=seen, obs_next=seen + 1, act=np.zeros(6, int), rew=np.ones(6), terminated=flags, truncated=flags.copy(),
        info={"a": np.arange(6)}, subbuffer_edges=np.array([0, 3, 6]), sample_indices=lambda size: np.arange(6),
    )  # fmt: skip
    back, _ = from_tianshou(buffer, strict=True)
    assert [len(e) for e in back] == [3, 3]
    assert back[1].get_infos() == [{}, {"a": 3}, {"a": 4}, {"a": 5}]
    del buffer.obs_next
    with pytest.raises(InvalidArgument, match="ignore_obs_next"):
        from_tianshou(buffer)


def test_a_file_of_d4rl_without_next_observations_says_which_steps_it_cannot_end(tmp_path: Path) -> None:
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
    told = {(loss.what, loss.num_episodes, loss.first) for loss in report}
    assert told == {("'infos'", 1, "hopper"), ("the last observation", 1, "row 2"), ("the last step", 2, "row 5")}
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
