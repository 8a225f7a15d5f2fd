"""Connectors that build the policy's input from ongoing episodes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from connectors import env_to_module_pipeline, learner_pipeline
from connectors.env_to_module import (
    AddObservations,
    AddStates,
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    ObservationPreprocessor,
    PrevActionsPrevRewards,
)
from episodes import SingleAgentEpisode, VectorRecorder
from episodes.errors import InvalidArgument, ShapeMismatch, StateMismatch

NEXT_STEP = gym.vector.AutoresetMode.NEXT_STEP
BOX, ACTIONS = spaces.Box(-100, 100, (2,), np.float32), spaces.Discrete(3, start=1)


def play(num_steps: int, *, done_at: int) -> tuple[Any, list[Any]]:
    """Return a recorder of two environments after some steps, and equal growing episodes, with a recurrent state of t
    in step t. Environment 0 ends at `done_at`.
    """
    num_envs = 2
    recorder = VectorRecorder(num_envs, BOX, ACTIONS, autoreset_mode=NEXT_STEP)
    row = lambda t: np.array([[t + 1, 10 * env] for env in range(num_envs)], np.float32)  # noqa: E731
    episodes = [SingleAgentEpisode() for _ in range(num_envs)]
    recorder.reset(row(0), {})
    recorder.episodes.recent("observations", 9)
    recorder.episodes.recent("actions", 9)
    for env, episode in enumerate(episodes):
        episode.add_env_reset(row(0)[env])
    for t in range(1, num_steps + 1):
        actions, rewards = np.full(num_envs, 1 + t % 3), np.full(num_envs, float(t))
        ends = np.zeros(num_envs, bool)
        ends[0] = t == done_at
        extra = {"state_out": {"h": np.full((num_envs, 1), t, np.float32)}}
        recorder.step(row(t), actions, rewards, ends, np.zeros(num_envs, bool), {}, extra)
        for env, episode in enumerate(episodes):
            if env == 0 and t == done_at + 1:
                episodes[0] = SingleAgentEpisode()
                episodes[0].add_env_reset(row(t)[0])
                continue
            outputs = {"state_out": {"h": np.full(1, t, np.float32)}}
            end = bool(ends[env])
            episode.add_env_step(row(t)[env], actions[env], float(t), terminated=end, extra_model_outputs=outputs)
    return recorder, episodes


@pytest.mark.parametrize(
    ("shape", "axis", "stacked"),
    [((4, 4, 1), -1, (4, 4, 3)), ((4, 4, 3), -1, (4, 4, 9)), ((3, 4, 4), 0, (9, 4, 4)), ((5,), -1, (15,))],
)
def test_frames_are_joined_along_the_axis_that_is_asked_for(
    shape: tuple[int, ...], axis: int, stacked: tuple[int, ...]
) -> None:
    frames = [np.full(shape, i, np.uint8) for i in range(3)]
    episode = SingleAgentEpisode(observations=frames, actions=[0, 0], rewards=[0, 0], len_lookback_buffer=0)
    piece = FrameStacking(spaces.Box(0, 255, shape, np.uint8), num_frames=3, axis=axis)
    stack = piece(batch={}, episodes=[episode])["obs"]
    assert np.array_equal(stack[0], np.concatenate(frames, axis))
    assert piece.observation_space.shape == stacked


def test_stacks_of_single_channel_images_are_views_of_frames() -> None:
    space = spaces.Box(0, 255, (8, 8, 1), np.uint8)
    recorder = VectorRecorder(2, space, ACTIONS, autoreset_mode=NEXT_STEP)
    recorder.reset(np.zeros((2, 8, 8, 1), np.uint8), {})
    recorder.episodes.recent("observations", 2)
    zeros = np.zeros(2)
    recorder.step(np.ones((2, 8, 8, 1), np.uint8), np.ones(2, int), zeros, zeros > 0, zeros > 0, {})
    frames, _ = recorder.episodes.recent("observations", 2)
    stack = FrameStacking(space, num_frames=2)(batch={}, episodes=recorder.episodes)["obs"]
    assert stack.shape == (2, 8, 8, 2)
    assert np.shares_memory(stack, frames)


@pytest.mark.parametrize(
    "action_space",
    [
        spaces.Discrete(4, start=-1),
        spaces.MultiDiscrete([2, 3]),
        spaces.Box(-1, 1, (2, 2), np.float32),
        spaces.MultiBinary(3),
        spaces.Dict({"move": spaces.Box(-1, 1, (2,), np.float32), "jump": spaces.Discrete(2)}),
    ],
    ids=str,
)
def test_previous_actions_are_flattened_like_gymnasium(action_space: spaces.Space) -> None:
    action_space.seed(1)
    actions = [action_space.sample() for _ in range(3)]
    episode = SingleAgentEpisode(
        observations=[np.zeros(2, np.float32)] * 4,
        actions=actions,
        rewards=[1.0, 2.0, 3.0],
        len_lookback_buffer=0,
        action_space=action_space,
    )
    flat = [spaces.flatten(action_space, action) for action in actions]
    acting = PrevActionsPrevRewards(BOX, action_space, n_prev_actions=2)
    observed = acting(batch={}, episodes=[episode])["obs"]
    assert np.array_equal(observed["prev_n_actions"][0], np.concatenate(flat[1:]).astype(np.float32))
    assert acting.observation_space.contains({name: part[0] for name, part in observed.items()})
    learning = learner_pipeline(BOX, action_space, pieces=[PrevActionsPrevRewards(n_prev_actions=2)])
    batch = learning(episodes=[episode])["obs"]["prev_n_actions"]
    none = np.zeros_like(flat[0])
    expected = [np.concatenate(pair) for pair in ((none, none), (none, flat[0]), (flat[0], flat[1]))]
    assert np.array_equal(batch, np.array(expected, np.float32))


def test_frames_that_cannot_be_joined_raise() -> None:
    for space, axis in ((spaces.Discrete(3), -1), (spaces.Box(0, 1, (2,)), 1)):
        with pytest.raises(InvalidArgument, match="cannot be joined along axis"):
            FrameStacking(space, num_frames=2, axis=axis)
    with pytest.raises(InvalidArgument, match="num_frames=0"):
        FrameStacking(num_frames=0)
    with pytest.raises(InvalidArgument, match="give at least one"):
        PrevActionsPrevRewards(n_prev_actions=0, n_prev_rewards=0)


class Stateful:
    def get_initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.full(1, -7, np.float32)}


@pytest.mark.parametrize("as_list", [False, True])
def test_states_continue_within_episode_and_reset_after_it(as_list: bool) -> None:
    module = Stateful()
    pipeline = env_to_module_pipeline(BOX, ACTIONS, policy=module)

    def states(num_steps: int) -> list[float]:
        recorder, episodes = play(num_steps, done_at=2)
        batch = pipeline(rl_module=module, episodes=episodes if as_list else recorder.episodes)
        assert batch["obs"].shape == (2, 1, 2)
        return batch["state_in"]["h"][:, 0].tolist()

    assert states(0) == [-7, -7]
    assert states(1) == [1, 1]
    assert states(3) == [-7, 3]
    assert states(4) == [4, 4]


def test_module_without_state_gets_none() -> None:
    assert "state_in" not in AddStates()(rl_module=object(), batch={}, episodes=[])


def test_runner_row_is_the_batch() -> None:
    row = np.zeros((2, 2), np.float32)
    batch = env_to_module_pipeline(BOX, ACTIONS)(batch={"obs": row}, episodes=None)
    assert np.shares_memory(batch["obs"].numpy(), row)
    assert AddObservations()(batch={"obs": row})["obs"] is row


# Flattening

SPACES = [
    spaces.Box(-1, 1, (2, 3), np.float32),
    spaces.Box(0, 255, (2, 2, 1), np.uint8),
    spaces.Discrete(4),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([2, 3, 4]),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, -1], [0, 7]]),
    spaces.MultiBinary(3),
    spaces.MultiBinary([2, 3]),
    spaces.Text(5),
    spaces.Dict({"b": spaces.Discrete(3, start=1), "a": spaces.Box(-5, 5, (2,), np.float64)}),
    spaces.Tuple([spaces.MultiBinary(2), spaces.Dict({"x": spaces.MultiDiscrete([3, 2]), "t": spaces.Text(3)})]),
    spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,), np.float32)]),
]
IRREGULAR = [
    spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)),
    spaces.Sequence(spaces.Discrete(3)),
    spaces.Sequence(spaces.Box(0, 1, (2, 2)), stack=True),
    spaces.Dict({"s": spaces.Sequence(spaces.Discrete(2)), "d": spaces.MultiDiscrete([2, 2])}),
    spaces.Tuple([spaces.Graph(spaces.Discrete(3), None), spaces.Discrete(2)]),
]


def vector_row(space: spaces.Space, items: list[Any]) -> Any:
    """Return the items as one batch, as a vector environment returns observations."""
    batched = gym.vector.utils.batch_space(space, len(items))
    out = gym.vector.utils.create_empty_array(space, len(items))
    row = gym.vector.utils.concatenate(space, items, out)
    assert batched.contains(row)
    return row


def item_of(space: spaces.Space, rows: Any, i: int) -> Any:
    """Return item i of flattened rows."""
    if isinstance(space, spaces.Dict):
        return {key: part[i] for key, part in rows.items()}
    return tuple(part[i] for part in rows) if isinstance(space, spaces.Tuple) else rows[i]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, None])
def test_flattened_row_equals_gymnasium_flattened_items(space: spaces.Space, dtype: Any) -> None:
    space.seed(3)
    items = [space.sample() for _ in range(7)]
    piece = FlattenObservations(space, dtype=dtype)
    flat = piece.rewrite(vector_row(space, items))
    expected = np.stack([spaces.flatten(space, item) for item in items])
    assert flat.dtype == piece.observation_space.dtype
    assert np.array_equal(flat, expected.astype(flat.dtype))
    assert all(map(piece.observation_space.contains, flat))


@pytest.mark.parametrize("space", IRREGULAR, ids=str)
def test_items_without_fixed_size_are_flattened_singly(space: spaces.Space) -> None:
    space.seed(3)
    items = [space.sample() for _ in range(3)]
    piece = FlattenObservations(space)
    rows = piece.rewrite(vector_row(space, items))
    flat_space = piece.observation_space
    for i, item in enumerate(items):
        row, expected = item_of(space, rows, i), spaces.flatten(space, item)
        assert flat_space.contains(row)
        assert str(row) == str(expected)


def test_flattening_without_a_space_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match="needs the observation space"):
        FlattenObservations().rewrite(np.zeros((2, 3)))


# Filtering


def rows(seed: int, num: int, shape: tuple[int, ...] = (3,)) -> np.ndarray:
    return np.random.default_rng(seed).normal(5, [1, 10, 100], (num, *shape))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_filter_has_mean_and_deviation_of_all_rows(sizes: list[int]) -> None:
    piece = MeanStdFilter(clip_by_value=None)
    all_rows = np.concatenate([rows(i, size) for i, size in enumerate(sizes)])
    for i, size in enumerate(sizes):
        piece.rewrite(rows(i, size))
    if len(all_rows) < 2:
        return
    probe = rows(99, 4)
    expected = (probe - all_rows.mean(0)) / all_rows.std(0, ddof=1)
    np.testing.assert_allclose(piece.rewrite(probe, update=False), expected, rtol=1e-5, atol=1e-5)


@given(st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=4), st.booleans())
def test_merged_filters_equal_one_filter_of_all_rows(sizes: list[list[int]], synced: bool) -> None:
    alone, runners = MeanStdFilter(), [MeanStdFilter() for _ in sizes]
    if synced:
        alone.rewrite(rows(1000, 5))
        for runner in runners:
            runner.set_state(runner.merge_states([alone.get_state()]))
    for i, runner in enumerate(runners):
        for j, size in enumerate(sizes[i]):
            runner.rewrite(rows(10 * i + j, size))
            alone.rewrite(rows(10 * i + j, size))
    merged = MeanStdFilter()
    merged.set_state(merged.merge_states([runner.get_state() for runner in runners]))
    probe = rows(99, 4)
    if alone.is_empty_filter:
        for piece in (merged, alone):
            with pytest.raises(StateMismatch, match="MeanStdFilter has seen no observation"):
                piece.rewrite(probe, update=False)
        return
    ours, expected = (piece.rewrite(probe, update=False) for piece in (merged, alone))
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_merging_again_counts_nothing_twice() -> None:
    runners = [MeanStdFilter(), MeanStdFilter()]
    for _ in range(3):
        for i, runner in enumerate(runners):
            runner.rewrite(rows(i, 4))
        merged = runners[0].merge_states([runner.get_state() for runner in runners])
        for runner in runners:
            runner.set_state(merged)
    assert merged["synced"][""]["count"] == 24


def test_statistics_are_per_leaf_and_other_parts_pass() -> None:
    space = spaces.Dict(
        {"a": spaces.Box(-9, 9, (1,)), "b": spaces.Discrete(3), "c": spaces.Box(0, 255, (2,), np.uint8)}
    )
    piece = MeanStdFilter(space, clip_by_value=1.0)
    row = {
        "a": np.array([[1.0], [3.0]], np.float32),
        "b": np.array([0, 2]),
        "c": np.array([[0, 9], [200, 9]], np.uint8),
    }
    out = piece.rewrite(row)
    np.testing.assert_allclose(out["a"], [[-(0.5**0.5)], [0.5**0.5]], rtol=1e-6)
    assert out["b"] is row["b"]
    np.testing.assert_allclose(out["c"][:, 1], [0, 0])
    assert out["c"].dtype == np.float32
    assert all(piece.observation_space[key].contains(out[key][0]) for key in out)


def test_restored_filter_continues_and_shares_no_memory() -> None:
    first_filter, two = MeanStdFilter(), MeanStdFilter()
    first_filter.rewrite(rows(0, 5))
    state = first_filter.get_state()
    two.set_state(state)
    state["own"][""]["mean"][:] = 0
    assert np.array_equal(first_filter.rewrite(rows(1, 3)), two.rewrite(rows(1, 3)))
    first_filter.reset_state()
    assert first_filter.get_state() == {"synced": {}, "own": {}}


def test_filter_state_of_other_space_raises_and_changes_nothing() -> None:
    first_filter, two = MeanStdFilter(spaces.Box(-1, 1, (2,))), MeanStdFilter(spaces.Box(-1, 1, (3,)))
    first_filter.rewrite(np.ones((2, 2)))
    two.rewrite(np.ones((4, 3)))
    with pytest.raises(StateMismatch, match=r"state has observations of shape \(2,\), the space \(3,\)"):
        two.set_state(first_filter.get_state())
    assert two.get_state()["own"][""]["count"] == 4
    with pytest.raises(ShapeMismatch, match="earlier observations had"):
        two.rewrite(np.ones((4, 5)))


def test_filter_with_update_false_does_not_learn() -> None:
    piece = MeanStdFilter(update_stats=False)
    with pytest.raises(StateMismatch, match="MeanStdFilter has seen no observation"):
        piece.rewrite(rows(0, 5))
    assert piece.get_state() == {"synced": {}, "own": {}}


def test_rewriting_finalized_episodes_by_hand_is_an_error() -> None:
    episode = SingleAgentEpisode.from_arrays(np.zeros((3, 2)), [0, 0], [0.0, 0.0], id_="done")
    with pytest.raises(InvalidArgument, match="episode done is finalized"):
        env_to_module_pipeline(BOX, ACTIONS, pieces=[MeanStdFilter()])(episodes=[episode])


def test_rewriters_run_in_order() -> None:
    class Plus(ObservationPreprocessor):
        def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
            return observations + 1

    class Times(ObservationPreprocessor):
        def preprocess(self, observation: Any, episode: Any) -> Any:
            return observation * 10

    pipeline = env_to_module_pipeline(BOX, ACTIONS, pieces=[Plus(), Times()])
    assert pipeline.rewrite(np.array([[1.0, 2.0]])).tolist() == [[20.0, 30.0]]
    assert pipeline(batch={"obs": np.ones((1, 2), np.float32)})["obs"].dtype == torch.float32
