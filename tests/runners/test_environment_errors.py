"""Errors for wrong values of an environment name the environment, the leaf and the step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from episode_learners import MLPPolicy
from episode_runners import Hook, SingleAgentEnvRunner
from episodes.errors import EpisodeError, ShapeMismatch, TrackMismatch, WrongType
from episodes.replay import EpisodeReplayBuffer

SPACE = gym.spaces.Dict(
    image=gym.spaces.Box(0, 255, (4, 4), np.uint8),
    arm=gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,), np.float32)]),
)


def good() -> dict[str, Any]:
    return {"image": np.zeros((4, 4), np.uint8), "arm": (np.int64(0), np.zeros(2, np.float32))}


class Spoilt(gym.Env):
    """Environment that returns `spoil(good row)` at step `at`. Step 0 is the reset."""

    observation_space, action_space = SPACE, gym.spaces.Discrete(2)

    def __init__(self, spoil: Callable[..., Any], at: int) -> None:
        self.spoil, self.at = spoil, at

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self.spoil(good())[0] if self.at == 0 else good(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.spoil(good()) if self.t == self.at else (good(), 1.0, False, False, {})


def runner_of(spoil: Callable[..., Any], at: int = 3, kind: Any = SyncVectorEnv) -> SingleAgentEnvRunner:
    makers = [lambda at=at: Spoilt(spoil, at) for at in (-1, at, -1)]
    return SingleAgentEnvRunner(kind(makers), seed=0)


def replaced(**leaves: Any) -> Callable[..., Any]:
    return lambda row: ({**row, **leaves}, 1.0, False, False, {})


SPOILT = {
    "shape": (replaced(image=np.zeros((4, 5), np.uint8)), r"observations\['image'\] have shape \[4, 5\]; .* \[4, 4\]"),
    "dtype": (replaced(image=np.full((4, 4), 0.5)), r"observations\['image'\] are float64; the space has uint8"),
    "None": (replaced(image=None), r"observations\['image'\] are None"),
    "leaf of a tuple": (replaced(arm=(np.int64(0), np.zeros(3))), r"observations\['arm'\]\[1\] have shape \[3\]"),
    "length of a tuple": (replaced(arm=(np.int64(0),)), r"observations\['arm'\] are 1 items; .* a Tuple of 2"),
    "key": (
        lambda row: ({"arm": row["arm"]}, 1.0, False, False, {}),
        r"observations have no 'image': there are \['arm'\]",
    ),
    "no dict": (lambda row: (row["image"], 1.0, False, False, {}), r"observations are a ndarray; the space is a Dict"),
}


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("name", SPOILT)
def test_invalid_observation_names_environment_step_and_leaf(name: str, at: int) -> None:
    spoil, message = SPOILT[name]
    with pytest.raises(TrackMismatch, match=rf"environment 1, step {at} of its episode: {message}"):
        runner_of(spoil, at).sample(num_timesteps=30, random_actions=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda row: (row, 1.0, False, {}), "not enough values to unpack.*; its step must return"),
        (lambda row: (row, np.ones(2), False, False, {}), "its step must return .observation, a number"),
        (lambda row: (row, "much", False, False, {}), "could not convert string to float.*; its step must return"),
    ],
)
def test_malformed_step_names_environment_and_step(spoil: Callable[..., Any], message: str) -> None:
    with pytest.raises(TrackMismatch, match=f"environment 1, step 3 of its episode: .*{message}"):
        runner_of(spoil).sample(num_timesteps=30, random_actions=True)


def burning(row: Any) -> Any:
    raise ZeroDivisionError("motor on fire")


@pytest.mark.parametrize(("kind", "at"), [(SyncVectorEnv, 0), (SyncVectorEnv, 3), (AsyncVectorEnv, 3)])
@pytest.mark.filterwarnings("ignore")  # Gymnasium tells what its processes raised
def test_environment_error_gets_a_note_of_its_place(kind: Any, at: int) -> None:
    with runner_of(burning, at, kind=kind) as runner, pytest.raises(ZeroDivisionError, match="on fire") as caught:
        runner.sample(num_timesteps=30, random_actions=True)
    assert f"environment 1, step {at} of its episode" in caught.value.__notes__[0]


class Foreign:
    """Environment whose methods are functions of a module, as those of a compiled simulator are."""

    metadata: dict[str, Any] = {}
    observation_space, action_space = Spoilt.observation_space, Spoilt.action_space
    render_mode = spec = None

    def __init__(self, at: int) -> None:
        steps = iter(range(99))
        self.reset = lambda **_: (burning(None) if next(steps) == at else good(), {})
        self.step = lambda _: (burning(None) if next(steps) == at else good(), 1.0, False, False, {})
        self.unwrapped = self

    def close(self) -> None:
        pass


@pytest.mark.parametrize("at", [0, 3])
def test_error_of_functions_is_not_replaced_by_another(at: int) -> None:
    runner = SingleAgentEnvRunner(SyncVectorEnv([partial(Foreign, number) for number in (-1, at, -1)]), seed=0)
    with pytest.raises(ZeroDivisionError, match="on fire") as caught:
        runner.sample(num_timesteps=30, random_actions=True)
    assert f"environment 1, step {at} of its episode" in caught.value.__notes__[0]


def test_error_note_counts_steps_within_the_episode() -> None:
    runner = runner_of(SPOILT["shape"][0], at=40)
    runner.sample(num_timesteps=90, random_actions=True)
    with pytest.raises(TrackMismatch, match="environment 1, step 40 of its episode"):
        runner.sample(num_timesteps=90, random_actions=True)
    assert runner.take().num_steps == 27


class Rows(VectorEnv):
    """Vector environment of two, with wrong values at vector step 3."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    num_envs = 2
    single_observation_space, single_action_space = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)
    observation_space, action_space = batch_space(single_observation_space, 2), batch_space(single_action_space, 2)

    def __init__(self, spoil: Callable[..., Any]) -> None:
        self.spoil = spoil

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros((2, 3), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        row = (np.zeros((2, 3), np.float32), np.ones(2), np.zeros(2, bool), np.zeros(2, bool), {})
        return self.spoil(*row) if self.t == 3 else row


ROWS = {
    "shape": (lambda obs, *rest: (obs[:, :2], *rest), r"observations have shape \[2, 2\]; the space has \[2, 3\]"),
    "number of rows": (lambda obs, *rest: (obs[:1], *rest), r"observations have shape \[1, 3\]"),
    "rewards": (lambda obs, _, *rest: (obs, np.ones(3), *rest), r"rewards have shape \[3\]; give \[2\], one for each"),
    "no rewards": (lambda obs, _, *rest: (obs, None, *rest), r"rewards are None"),
    "flags": (lambda *row: (*row[:2], np.zeros(1, bool), *row[3:]), r"terminateds have shape \[1\]"),
    "four": (lambda *row: row[:4], "step must return .* and returned 4 items"),
}


@pytest.mark.parametrize("into_replay", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_invalid_row_names_step_and_leaf(name: str, into_replay: bool) -> None:
    spoil, message = ROWS[name]
    runner = SingleAgentEnvRunner(Rows(spoil), seed=0)
    buffer = EpisodeReplayBuffer(100)
    run = partial(runner.sample_into, buffer) if into_replay else runner.sample
    with pytest.raises(EpisodeError, match=rf"the vector step after steps \[2, 2\] of its episodes: {message}"):
        run(num_timesteps=30, random_actions=True)


def test_error_of_infos_gets_a_note_of_the_step() -> None:
    runner = SingleAgentEnvRunner(Rows(lambda *row: (*row[:4], [{}, {}])), seed=0)
    with pytest.raises(WrongType, match="infos is a list") as caught:
        runner.sample(num_timesteps=30, random_actions=True)
    assert "the vector step after steps [2, 2] of its episodes" in caught.value.__notes__[0]


class Clumsy(Hook):
    def on_step(self, runner: Any) -> None:
        raise KeyError("mine")


class Blind(MLPPolicy):
    def forward(self, batch: Any, explore: bool | None = None) -> Any:
        if explore and len(batch["obs"]) == 2:
            raise ValueError("mine")
        return super().forward(batch, explore)


def test_errors_of_hooks_and_policies_get_no_note() -> None:
    env = Rows(lambda *row: row)
    with pytest.raises(KeyError, match="mine") as caught:
        SingleAgentEnvRunner(env, hooks=[Clumsy()]).sample(num_timesteps=2, random_actions=True)
    assert not hasattr(caught.value, "__notes__")
    runner = SingleAgentEnvRunner(env, MLPPolicy(env.single_observation_space, env.single_action_space))
    runner.policy = Blind(env.single_observation_space, env.single_action_space)
    with pytest.raises(ValueError, match="mine") as caught_too:
        runner.sample(num_timesteps=2)
    assert not hasattr(caught_too.value, "__notes__")


# --- casts of Gymnasium's shared memory ----------------------------------------------------------------------


class Shows(gym.Env):
    """Environment that shows `first` after a reset, and `later` after steps."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, space: gym.Space, first: Any, later: Any) -> None:
        self.observation_space, self.first, self.later = space, first, later

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if isinstance(self.first, Exception):
            raise self.first
        return self.first, {}

    def step(self, action: Any) -> Any:
        return self.later, 0.0, False, False, {}


IMAGE = gym.spaces.Box(0, 255, (2, 2), np.uint8)
BYTES, HALVES = np.full((2, 2), 7, np.uint8), np.full((2, 2), 0.5, np.float32)
INSIDE = gym.spaces.Dict({"a": gym.spaces.Box(-1, 1), "b": gym.spaces.Tuple([gym.spaces.Discrete(3)])})
CAST: dict[str, tuple[gym.Space, Any, Any]] = {  # space, first and later observation
    "after a reset": (IMAGE, HALVES, BYTES),
    "after a step": (IMAGE, BYTES, HALVES),
    "negative": (IMAGE, BYTES.astype(int), np.full((2, 2), -1)),
    "too large": (IMAGE, np.full((2, 2), 300), BYTES),
    "a number": (gym.spaces.Discrete(3), 1, 1.5),
    "nested": (INSIDE, {"a": np.zeros(1, np.float32), "b": (1,)}, {"a": np.zeros(1, np.float32), "b": (1.5,)}),
}


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("kind", CAST)
def test_an_async_vector_env_that_casts_with_loss_is_refused(kind: str, wrapped: bool) -> None:
    env: Any = AsyncVectorEnv([lambda: Shows(*CAST[kind])] * 2)
    try:
        env = gym.wrappers.vector.RecordEpisodeStatistics(env) if wrapped else env
        with pytest.raises(ShapeMismatch, match="shared memory would cast them with loss"):
            SingleAgentEnvRunner(env)
    finally:
        env.close()


@pytest.mark.parametrize(("first", "shared_memory"), [(BYTES, False), (BYTES, True), (BYTES.astype(int), True)])
def test_an_async_vector_env_that_casts_without_loss_is_accepted(first: np.ndarray, shared_memory: bool) -> None:
    env = AsyncVectorEnv([lambda: Shows(IMAGE, first, BYTES)], shared_memory=shared_memory)
    try:
        pack = SingleAgentEnvRunner(env).sample(num_timesteps=2, random_actions=True)
        assert np.all(pack[0].get_observations() == 7)
    finally:
        env.close()


def test_a_vector_env_whose_environments_cannot_be_tried_is_named() -> None:
    env = AsyncVectorEnv([lambda: Shows(IMAGE, OSError("the port is in use"), BYTES)])
    try:
        with pytest.warns(UserWarning, match=r"casts observations with loss.*the port is in use"):
            SingleAgentEnvRunner(env)
    finally:
        env.close()
