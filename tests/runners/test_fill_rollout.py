"""`fill_rollout` with nested observations, wrong shapes, simulators that reuse memory, and the waits of the host."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import torch_robot
from benchmarks.operations import count_operations
from benchmarks.torch_cartpole import ACTION_SPACE, OBSERVATION_SPACE, TorchCartPole
from connectors import RolloutBuffer, rollout_to_episodes
from connectors.rollout.fragments import BlockEdge
from episode_learners import LSTMPolicy, MLPPolicy
from episode_runners.environments import TorchVectorEnv, fill_rollout
from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch, WrongType
from episodes.tracks import nested

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ROWS = 24


def box(*shape: int) -> gym.spaces.Box:
    return gym.spaces.Box(-np.inf, np.inf, shape, np.float32)


def count_waits(run: Callable[[], Any], device: str) -> int:
    """Count how often the host waits: as the GPU's driver sees it, or by operations that would wait."""
    if device == "cpu":
        return count_operations(run).num_waits
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in seen)


def cart_pole(device: str, **options: Any) -> tuple[TorchVectorEnv, Any]:
    """Return an environment whose episodes have at most five steps, and its policy."""
    env = TorchVectorEnv(TorchCartPole(8, device, limit=5, **options), OBSERVATION_SPACE, ACTION_SPACE)
    return env, MLPPolicy(OBSERVATION_SPACE, ACTION_SPACE).to(device)


def repeating(device: str) -> tuple[TorchVectorEnv, Any]:
    env, policy = cart_pole(device, gives_final=False)
    env.missing_final_observation = "repeat"
    return env, policy


def robot(device: str) -> tuple[TorchVectorEnv, Any]:
    simulator = torch_robot.TorchRobot(8, device, limit=5)
    env = TorchVectorEnv(simulator, torch_robot.OBSERVATION_SPACE, torch_robot.ACTION_SPACE)
    return env, torch_robot.RobotPolicy().to(device)


MADE = {"one array": cart_pole, "repeated last observations": repeating, "policy and critic": robot}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_host_waits_at_most_once_in_a_rollout(make: Any, device: str) -> None:
    env, policy = make(device)
    sizes = (policy.observation_space.shape[0], int(np.prod(env.single_action_space.shape)))
    buffer = RolloutBuffer(8, ROWS, *sizes, device)

    def run() -> None:
        rollout = fill_rollout(env, policy, buffer.start_rollout())
        buffer.discard()
        assert len(rollout.get_non_tensor("final")) >= 8

    run()
    assert count_waits(run, device) <= 1


# --- nested observations --------------------------------------------------------------------------------------------

part_spaces = st.sampled_from([box(2), box(), box(2, 3), gym.spaces.Box(0, 255, (3,), np.uint8)])
some_spaces = st.recursive(
    part_spaces,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(gym.spaces.Tuple),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(gym.spaces.Dict),
    ),
    max_leaves=4,
)


class Numbered:
    """Simulator of any observation space, which keeps what it showed. It overwrites its tensors if `reuses`."""

    def __init__(self, space: gym.Space, num_envs: int, reuses: bool, seed: int) -> None:
        self.space, self.num_envs, self.reuses = space, num_envs, reuses
        space.seed(seed)
        self.rng = np.random.default_rng(seed)
        self.shown: list[Any] = []  # of each row: observations, ended, observations before the reset
        self.tensors: Any = None

    def observe(self) -> Any:
        rows = nested.stack([self.space.sample() for _ in range(self.num_envs)])
        if self.reuses and self.tensors is not None:
            nested.map_leaves(lambda tensor, new: tensor.copy_(torch.from_numpy(new)), self.tensors, rows)
        else:
            self.tensors = nested.map_leaves(lambda leaf: torch.from_numpy(leaf.copy()), rows)
        return rows

    def reset(self) -> Any:
        self.newest = self.observe()
        return self.tensors, {}

    def step(self, actions: torch.Tensor) -> Any:
        before, last = self.newest, nested.stack([self.space.sample() for _ in range(self.num_envs)])
        self.newest = self.observe()
        ended = self.rng.random(self.num_envs) < 0.3
        late = ended & (self.rng.random(self.num_envs) < 0.5)
        self.shown.append((before, ended, last, actions.clone()))
        actions.fill_(99.0)  # as simulators do that clip in place
        extras = {"final_obs": nested.map_leaves(torch.from_numpy, last), "time_outs": torch.from_numpy(late)}
        return self.tensors, torch.zeros(self.num_envs), torch.from_numpy(ended), extras


@given(some_spaces, st.booleans(), st.integers(0, 9))
def test_rows_are_flat_observations_of_the_simulator(space: gym.Space, reuses: bool, seed: int) -> None:
    simulator = Numbered(space, 3, reuses, seed)
    env = TorchVectorEnv(simulator, space, box(1))
    width = gym.spaces.flatdim(space)
    policy = MLPPolicy(box(width), box(1), hidden_sizes=())
    rollout = fill_rollout(env, policy, RolloutBuffer(3, 4, width, 1, "cpu").start_rollout())

    def flat(rows: Any, env: int) -> np.ndarray:
        item = nested.map_leaves(lambda leaf: leaf[env], rows)
        return gym.spaces.flatten(space, item).astype(np.float32)

    expected_last = {}
    for t, (before, ended, last, actions) in enumerate(simulator.shown):
        assert np.array_equal(rollout["obs"][:, t].numpy(), [flat(before, env) for env in range(3)])
        assert torch.equal(rollout["action"][:, t], actions)
        expected_last |= {env * 5 + t: flat(last, env) for env in np.flatnonzero(ended).tolist()}
    assert np.array_equal(rollout["obs"][:, 4].numpy(), [flat(simulator.newest, env) for env in range(3)])
    final = rollout.get_non_tensor("final")
    assert sorted(final.rows.tolist()) == sorted(expected_last)
    for row, obs, value in zip(final.rows.tolist(), final.obs, final.value, strict=True):
        assert np.array_equal(obs.numpy(), expected_last[row])
        assert torch.allclose(value, policy.compute_values({"obs": obs[None]})[0].detach(), atol=1e-3)
    ends = [episode for episode in rollout_to_episodes(rollout, BlockEdge(3, "SameStep")) if episode.is_done]
    assert len(ends) == len(expected_last)


# --- wrong shapes ---------------------------------------------------------------------------------------------------


class Odd(TorchCartPole):
    """Simulator whose step returns a column of another shape."""

    def __init__(self, place: int, change: Any) -> None:
        super().__init__(4)
        self.place, self.change = place, change

    def step(self, actions: torch.Tensor) -> Any:
        row = list(super().step(actions.reshape(4)))
        row[self.place] = self.change(row[self.place])
        return tuple(row)


def fill(simulator: Any, *, sizes: tuple[int, int] = (4, 1), change: Any = None, width: int = 4) -> Any:
    policy: Any = MLPPolicy(box(width), ACTION_SPACE)
    if change is not None:
        forward = policy.forward
        policy.forward = lambda *given, **options: change(forward(*given, **options))
    env = TorchVectorEnv(simulator, OBSERVATION_SPACE, ACTION_SPACE)
    return fill_rollout(env, policy, RolloutBuffer(4, 3, *sizes, "cpu").start_rollout())


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "observations for a wider column": (lambda: fill(TorchCartPole(4), sizes=(5, 1), width=5), "obs of a row"),
    "observations of one number": (lambda: fill(Odd(0, lambda obs: obs[:, :1])), "obs of a row"),
    "actions for a wider column": (lambda: fill(TorchCartPole(4), sizes=(4, 2)), "action of a row"),
    "rewards [N, 1]": (lambda: fill(Odd(1, lambda rewards: rewards[:, None])), "reward of a row"),
    "one reward": (lambda: fill(Odd(1, lambda rewards: rewards[0])), "reward of a row"),
    "flags [1]": (lambda: fill(Odd(2, lambda dones: dones.any()[None])), r"dones are \[1\]"),
    "values [N, 1]": (
        lambda: fill(TorchCartPole(4), change=lambda outputs: {**outputs, "vf_preds": outputs["vf_preds"][:, None]}),
        "value of a row",
    ),
    "one value": (
        lambda: fill(TorchCartPole(4), change=lambda outputs: {**outputs, "vf_preds": outputs["vf_preds"].mean()}),
        "value of a row",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_shape_is_not_broadcast(name: str) -> None:
    run, text = WRONG[name]
    with pytest.raises(ShapeMismatch, match=text):
        run()


def test_parts_other_than_boxes_are_rejected() -> None:
    space = gym.spaces.Dict(a=box(2), b=gym.spaces.Discrete(3))
    env = TorchVectorEnv(Numbered(space, 2, False, 0), space, box(1))
    with pytest.raises(InvalidArgument, match=r"the space Discrete\(3\) is given, a Box is allowed"):
        fill_rollout(env, MLPPolicy(box(5), box(1)), RolloutBuffer(2, 3, 5, 1, "cpu").start_rollout())


def test_recurrent_policy_and_rollout_elsewhere_are_rejected() -> None:
    env, policy = cart_pole("cpu")
    rollout = RolloutBuffer(8, 3, 4, 1, "cpu").start_rollout()
    with pytest.raises(InvalidArgument, match="LSTMPolicy is recurrent"):
        fill_rollout(env, LSTMPolicy(OBSERVATION_SPACE, ACTION_SPACE), rollout)
    elsewhere = RolloutBuffer(8, 3, 4, 1, "meta").start_rollout()
    with pytest.raises(InvalidArgument, match=r"the rollout is on meta, .* on cpu"):
        fill_rollout(env, policy, elsewhere)


def test_tuple_without_extras_is_not_taken_apart() -> None:
    space = gym.spaces.Tuple([box(2), box(2)])
    simulator = Numbered(space, 2, False, 0)
    env = TorchVectorEnv(simulator, space, box(1))
    env.reset()
    simulator.reset = simulator.observe  # type: ignore[method-assign]
    with pytest.raises(WrongType, match=r"returned 2 items; with observations of a Tuple space return"):
        env.reset()


def test_lost_last_observations_raise_with_their_key() -> None:
    env, policy = cart_pole("cpu", gives_final=False)
    with pytest.raises(TrackMismatch, match=r"has no 'final_obs' \(it has \['time_outs', 'log'\]\)"):
        fill_rollout(env, policy, RolloutBuffer(8, ROWS, 4, 1, "cpu").start_rollout())
