"""Acting by hand, one observation at a time, is what a runner with one environment does."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from connectors import compute_action, env_to_module_pipeline, module_to_env_pipeline
from connectors.env_to_module import FlattenObservations, FrameStacking, MeanStdFilter, PrevActionsPrevRewards
from connectors.rewriting import ObservationPreprocessor
from connectors.views import TransformerContext, time_steps
from episode_learners import LSTMPolicy, MLPPolicy
from episode_runners import SingleAgentEnvRunner
from episodes.errors import EpisodeError, InvalidArgument, StateMismatch
from episodes.tracks import nested

SEED, NUM_STEPS = 3, 12
NUMBERS = spaces.Box(-5.0, 5.0, (3,), np.float32)
NESTED = spaces.Dict(
    {"go": spaces.Discrete(3, start=-1), "how": spaces.Tuple([spaces.Box(0.0, 4.0, (2,), np.float32)])}
)


class Drift(gym.Env):
    """Observations that depend on all actions before."""

    observation_space = NUMBERS

    def __init__(self, action_space: gym.Space) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.place = 0, self.np_random.normal(size=3).astype(np.float32)
        return self.place.copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        moved = np.resize(np.asarray(spaces.flatten(self.action_space, action)), 3)
        self.place = np.tanh(self.place[::-1] + moved + self.np_random.normal(size=3)).astype(np.float32)
        self.t += 1
        return self.place.copy(), float(self.place.sum()), False, self.t == NUM_STEPS, {}


class Doubled(ObservationPreprocessor):
    """Another shape is stored than is observed."""

    def preprocess(self, observation: Any, episode: Any) -> Any:
        return np.concatenate([observation, observation * (0 if episode is None else episode.t)])

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> gym.Space:
        return spaces.Box(-np.inf, np.inf, (6,), np.float32)


class Reader(MLPPolicy):
    """Reads all columns of a context side by side."""

    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        parts = (
            batch["obs"].flatten(1),
            batch["past_actions"].flatten(1),
            batch["attention_mask"],
            batch["t"][:, None],
        )
        return {"action_dist_inputs": torch.cat(parts, 1)[:, : self.distribution.num_inputs]}


DISCRETE, BOX = spaces.Discrete(3), spaces.Box(-2.0, 6.0, (2,), np.float32)
KINDS = {
    "a perceptron": (MLPPolicy, [], DISCRETE),
    "a perceptron, continuous": (MLPPolicy, [], BOX),
    "a perceptron, nested actions": (MLPPolicy, [], NESTED),
    "a memory": (LSTMPolicy, [], DISCRETE),
    "a memory, nested actions": (LSTMPolicy, [], NESTED),
    "stacked frames": (MLPPolicy, [FrameStacking(num_frames=3)], BOX),
    "stacks of stacks": (MLPPolicy, [FrameStacking(num_frames=2), FrameStacking(num_frames=3)], DISCRETE),
    "previous steps": (MLPPolicy, [PrevActionsPrevRewards(n_prev_actions=2), FlattenObservations()], NESTED),
    "a memory of previous steps": (LSTMPolicy, [PrevActionsPrevRewards(), FlattenObservations()], BOX),
    "a context and the time": (Reader, [TransformerContext(k=4), time_steps], BOX),
    "a filter": (MLPPolicy, [MeanStdFilter()], BOX),
    "a preprocessor of another shape": (MLPPolicy, [Doubled()], DISCRETE),
    "a preprocessor behind stacks": (LSTMPolicy, [Doubled(), FrameStacking(num_frames=2)], BOX),
}


def made(kind: Any, observation_space: Any, action_space: gym.Space) -> Any:
    """A policy whose actions depend on what it sees."""
    policy = kind(observation_space, action_space)
    generator = torch.Generator().manual_seed(1)
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5, generator=generator)
    return policy


def acted_by_hand(policy: Any, env: gym.Env, **pipelines: Any) -> tuple[list[Any], np.ndarray]:
    actions, rewards = [], [0.0]
    (observation, _), state, ended = env.reset(seed=SEED), None, False
    while not ended:
        action, state = compute_action(policy, observation, state, reward=rewards[-1], **({} if state else pipelines))
        observation, reward, terminated, truncated, _ = env.step(action)
        actions.append(action)
        rewards.append(float(reward))
        ended = terminated or truncated
    return actions, np.array(rewards[1:], np.float32)


@pytest.mark.parametrize(("kind", "pieces", "action_space"), KINDS.values(), ids=KINDS)
def test_acting_step_by_step_is_what_the_runner_does_greedily(kind: Any, pieces: Any, action_space: gym.Space) -> None:
    views = env_to_module_pipeline(NUMBERS, action_space, pieces=pieces)
    policy = made(kind, views.observation_space, action_space)
    pipeline = env_to_module_pipeline(NUMBERS, action_space, pieces=pieces, policy=policy)
    runner = SingleAgentEnvRunner(lambda: Drift(action_space), policy, env_to_module=pipeline, seed=SEED)
    if "MeanStdFilter" in pipeline:
        pipeline.rewrite(np.random.default_rng(0).normal(2, 3, (20, 3)).astype(np.float32))
    learned = pipeline.get_state()
    episode = runner.sample(num_episodes=1, explore=False)[0]
    of_runner = {"env_to_module": pipeline, "module_to_env": runner.module_to_env}
    actions, rewards = acted_by_hand(policy, Drift(action_space), **of_runner)
    assert np.array_equal(rewards, episode.get_rewards())
    for_env = runner.module_to_env.from_env(nested.stack(actions))
    for found, expected in zip(nested.leaves(for_env), nested.leaves(episode.get_actions()), strict=True):
        np.testing.assert_allclose(found, np.clip(expected, -1, 1) if found.dtype.kind == "f" else expected, atol=1e-6)
    assert nested.equal(pipeline.get_state(), learned)


def test_without_pipelines_it_acts_as_a_runner_without_any() -> None:
    policy = made(LSTMPolicy, NUMBERS, BOX)
    episode = SingleAgentEnvRunner(lambda: Drift(BOX), policy, seed=SEED).sample(num_episodes=1, explore=False)[0]
    assert np.array_equal(acted_by_hand(policy, Drift(BOX))[1], episode.get_rewards())


def test_an_episode_may_branch_off_from_any_state() -> None:
    policy, observations = made(LSTMPolicy, NUMBERS, BOX), np.random.default_rng(0).normal(size=(4, 3))
    _, state = compute_action(policy, observations[0])
    later, other, again = (compute_action(policy, observations[i], state)[1].action for i in (1, 2, 1))
    assert np.array_equal(later, again)
    assert not np.array_equal(later, other)
    assert state.episode.t == 0


def test_exploring_draws_by_torchs_random_numbers() -> None:
    policy = made(MLPPolicy, NUMBERS, NESTED)
    torch.manual_seed(0)
    draws = [compute_action(policy, np.zeros(3), explore=True)[0] for _ in range(20)]
    assert len({draw["go"] for draw in draws}) > 1
    assert all(NESTED.contains(draw) for draw in draws)
    torch.manual_seed(0)
    assert nested.equal(compute_action(policy, np.zeros(3), explore=True)[0], draws[0])


def test_a_policy_that_was_trained_in_other_pipelines_is_refused() -> None:
    pieces = [FrameStacking(num_frames=2)]
    policy = made(MLPPolicy, spaces.Box(-5.0, 5.0, (6,), np.float32), DISCRETE)
    pipeline = env_to_module_pipeline(NUMBERS, DISCRETE, pieces=pieces, policy=policy)
    SingleAgentEnvRunner(lambda: Drift(DISCRETE), policy, env_to_module=pipeline).sample(num_timesteps=1)
    with pytest.raises(StateMismatch, match="FrameStacking"):
        compute_action(policy, np.zeros(3))
    _, state = compute_action(policy, np.zeros(3), env_to_module=pipeline)
    with pytest.raises(InvalidArgument, match="has its pipelines"):
        compute_action(policy, np.zeros(3), state, env_to_module=pipeline)


def test_a_policy_that_is_only_called_needs_its_pipelines() -> None:
    def always_one(batch: Any, explore: bool | None = None) -> dict[str, Any]:
        return {"actions": torch.ones(len(batch["obs"]), dtype=torch.int64)}

    with pytest.raises(InvalidArgument, match="observation_space"):
        compute_action(always_one, np.zeros(3))
    pipelines = (env_to_module_pipeline(NUMBERS, DISCRETE), module_to_env_pipeline(NUMBERS, DISCRETE))
    assert compute_action(always_one, np.zeros(3), env_to_module=pipelines[0], module_to_env=pipelines[1])[0] == 1


def test_an_observation_of_another_shape_is_refused() -> None:
    with pytest.raises((EpisodeError, ValueError)):
        compute_action(made(MLPPolicy, NUMBERS, DISCRETE), np.zeros(4))
