"""What users of other libraries reported about actions, probabilities, targets and samples."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from connectors import module_to_env_pipeline
from episode_learners import PPO, MLPPolicy, QPolicy, SACPolicy
from episode_runners import SingleAgentEnvRunner, evaluate
from episodes import SingleAgentEpisode, gae
from episodes.errors import InvalidArgument
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter, RecordEpisodes
from episodes.storage.sampling import TimeWindows

CARTPOLE = gym.make("CartPole-v1")
SPACES: Any = (CARTPOLE.observation_space, CARTPOLE.action_space)


class Lever(gym.Env):
    """Environment with bounded continuous actions that keeps each action. Episodes have `length` steps."""

    observation_space = spaces.Box(-100, 100, (1,))
    action_space = spaces.Box(np.array([0, -5], np.float32), np.array([10, 5], np.float32))

    def __init__(self, length: int = 5) -> None:
        self.length, self.received = length, []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.received.append(np.array(action))
        return np.full(1, self.t, np.float32), 1.0, False, self.t == self.length, {}


def counted(num_steps: int, **facts: Any) -> SingleAgentEpisode:
    """Return an episode whose observations, actions and rewards count its steps."""
    steps = np.arange(num_steps + 1, dtype=np.float32)
    return SingleAgentEpisode.from_arrays(steps[:, None], np.arange(num_steps), np.ones(num_steps), **facts)


def test_sb3_user_gave_one_environment_object_to_all_workers() -> None:
    """A user of DummyVecEnv wrote `[lambda: env] * 4`, and the workers stepped and reset each other's environment."""
    env = Lever()
    with pytest.raises(InvalidArgument, match="two environments are one object, a Lever"):
        SingleAgentEnvRunner(lambda: env, num_envs=4)


def test_tf_agents_user_got_probabilities_of_the_greedy_policy() -> None:
    """EpsilonGreedyPolicy of TF-Agents returned log-probabilities that left out its random actions."""
    policy = QPolicy(*SPACES, epsilon=0.3)
    pack = SingleAgentEnvRunner("CartPole-v1", policy, num_envs=2, seed=0).sample(num_timesteps=200)
    values = policy.q_values({"obs": torch.from_numpy(np.concatenate([e.get_observations()[:-1] for e in pack]))})
    is_best = values.argmax(-1).numpy() == np.concatenate([e.get_actions() for e in pack])
    log_probs = np.concatenate([e.get_extra_model_outputs("action_logp") for e in pack])
    np.testing.assert_allclose(np.exp(log_probs), np.where(is_best, 0.85, 0.15), rtol=1e-5)


def test_user_mixed_random_actions_into_a_policy_gradient() -> None:
    """A user took a random action with probability epsilon, and stored the log-probability of the policy for it."""

    class Mixed(MLPPolicy):
        def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
            outputs = super().forward(batch, explore)
            return outputs if explore is None else {**outputs, "actions": torch.randint(0, 2, (len(batch["obs"]),))}

    policy = Mixed(*SPACES)
    pack = SingleAgentEnvRunner("CartPole-v1", policy, num_envs=2, seed=0).sample(num_timesteps=20)
    with pytest.raises(InvalidArgument, match="the policy chose 'actions' itself"):
        PPO(policy).update(pack)


def test_sb3_user_suspected_that_actions_of_sac_are_scaled_twice() -> None:
    """A user of SB3's SAC saw the squashed action scaled to the bounds, and asked whether it is scaled again."""
    env = Lever()
    pack = SingleAgentEnvRunner(env, SACPolicy(env.observation_space, env.action_space), seed=0).sample(
        num_timesteps=200
    )
    low, high = env.action_space.low, env.action_space.high
    received = np.array(env.received[: pack.num_steps])
    np.testing.assert_allclose((pack.actions + 1) / 2 * (high - low) + low, received, atol=1e-5)
    assert (received.min(0) < low + 1).all()
    assert (received.max(0) > high - 1).all()


@pytest.mark.parametrize("clip", [False, True])
def test_tianshou_user_stored_the_remapped_action(clip: bool) -> None:
    """PPO of Tianshou stored clipped actions, whose log-probability is not that of the sampled ones."""
    policy = MLPPolicy(Lever.observation_space, Lever.action_space)
    pipeline = module_to_env_pipeline(
        Lever.observation_space, Lever.action_space, policy=policy, normalize_actions=not clip, clip_actions=clip
    )
    pack = SingleAgentEnvRunner(Lever, policy, num_envs=2, module_to_env=pipeline, seed=0).sample(num_timesteps=40)
    outputs = pack.extra_model_outputs
    inputs, actions = torch.tensor(outputs["action_dist_inputs"]), torch.tensor(np.array(pack.actions))
    log_probs = policy.distribution.log_prob(inputs, actions)
    np.testing.assert_allclose(outputs["action_logp"], log_probs.detach().numpy(), rtol=1e-6)


def test_rllib_user_discounted_shortened_returns_by_all_n_steps() -> None:
    """DQN of RLlib multiplied the Q-value after a shortened n-step return by gamma**n."""
    buffer = EpisodeReplayBuffer(10, seed=0)
    buffer.add(counted(6, truncated=True))
    batch = buffer.sample(200, n_step=3, gamma=0.5)
    assert np.array_equal(batch.n_step, np.minimum(3, 6 - batch.actions))
    assert np.array_equal(batch.new_obs[:, 0], batch.actions + batch.n_step)
    np.testing.assert_allclose(batch.rewards, 2 - 0.5 ** (batch.n_step - 1.0))


def test_gae_with_lambda_1_is_the_return_minus_the_value() -> None:
    """A user found the bootstrap value of a window counted twice in GAE and V-trace."""
    rewards, values = np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.6, 0.7, 0.8])
    advantages, _ = gae(rewards, values, [False], [True], gamma=0.9, lambda_=1.0, offsets=[0, 3])
    returns = [sum(0.9**k * r for k, r in enumerate(rewards[t:])) + 0.9 ** (3 - t) * 0.8 for t in range(3)]
    np.testing.assert_allclose(advantages, np.array(returns) - values[:3])


def test_baselines_user_doubted_the_largest_importance_weight() -> None:
    """A user of OpenAI Baselines asked whether weights are divided by the largest one of all stored steps."""
    buffer = PrioritizedEpisodeReplayBuffer(50, alpha=0.7, beta=0.4, seed=0)
    buffer.add(counted(20, truncated=True))
    indices = np.unique(buffer.sample(500).indices)
    assert len(indices) == 20
    priorities = np.linspace(0.1, 2, 20)
    buffer.update_priorities(indices, priorities)
    probabilities = priorities**0.7 / (priorities**0.7).sum()
    expected = (20 * probabilities) ** -0.4
    batch = buffer.sample(300)
    np.testing.assert_allclose(batch.weights, (expected / expected.max())[np.searchsorted(indices, batch.indices)])


def test_lerobot_user_selected_episodes_and_read_other_times(tmp_path: Path) -> None:
    """LeRobotDataset(episodes=[1], delta_timestamps=...) read frames of another episode, or marked all as padding."""
    with EpisodeWriter(tmp_path) as writer:
        for i in range(4):
            times = np.arange(7, dtype=np.float32) + 100 * i
            writer.add(SingleAgentEpisode.from_arrays(times[:, None], np.arange(6), np.ones(6), truncated=True))
    dataset = EpisodeDataset(tmp_path).select(np.array([1, 3]))
    rows = 0
    for batch in dataset.sampler(windows=TimeWindows(4, {"observation": [-0.1, 0.0, 0.1]}, fps=10), seed=0):
        first, t = np.divmod(batch.obs[:, 1, 0], 100)
        wanted = t[:, None] + [-1, 0, 1]
        assert np.isin(first, [1, 3]).all()
        assert np.array_equal(batch.obs[:, :, 0], 100 * first[:, None] + np.clip(wanted, 0, 6))
        assert np.array_equal(batch.obs_is_pad, (wanted < 0) | (wanted > 6))
        rows += len(t)
    assert rows == 12


def test_d3rlpy_user_had_episodes_of_one_step() -> None:
    """Random terminal flags, some of them in a row, gave d3rlpy episodes without a transition."""
    rng = np.random.default_rng(0)
    ends, observations = rng.integers(0, 2, 100) == 1, rng.random((101, 2))
    ends[-1], starts = True, np.flatnonzero(np.append(True, ends))
    buffer = EpisodeReplayBuffer(100, seed=0)
    for begin, end in pairwise(starts):
        steps = np.arange(begin, end)
        buffer.add(SingleAgentEpisode.from_arrays(observations[begin : end + 1], steps, steps / 7, terminated=True))
    batch = buffer.sample(2000)
    assert len(np.unique(batch.actions)) == 100
    assert np.array_equal(batch.obs, observations[batch.actions])
    assert np.array_equal(batch.new_obs, observations[batch.actions + 1])
    assert np.array_equal(batch.terminateds, ends[batch.actions])


def test_minari_user_recorded_stacked_frames(tmp_path: Path) -> None:
    """Minari took a stack of two frames, [2, 64, 64] and uint8, for an image that it can compress."""

    class Frames(Lever):
        observation_space = spaces.Box(0, 255, (64, 64), np.uint8)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return np.full((64, 64), 7, np.uint8), {}

        def step(self, action: Any) -> Any:
            _, *others = super().step(action)
            return np.full((64, 64), self.t, np.uint8), *others

    env = gym.wrappers.FrameStackObservation(Frames(), 2)
    with RecordEpisodes(env, tmp_path) as recorded:
        recorded.reset()
        for _ in range(5):
            recorded.step(env.action_space.sample())
    frames = EpisodeDataset(tmp_path, verify=True)[0].get_observations()
    assert frames.shape == (6, 2, 64, 64)
    assert frames[:, :, 0, 0].tolist() == [[7, 7], [7, 1], [1, 2], [2, 3], [3, 4], [4, 5]]


def test_chainerrl_user_evaluated_short_episodes_more_often() -> None:
    """Batch evaluation of ChainerRL took the episodes that finished first, which are short ones."""

    class Fork(Lever):
        action_space = spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            result = super().reset(seed=seed)
            self.length = 2 if self.np_random.random() < 0.5 else 40
            return result

    result = evaluate(Fork, MLPPolicy(Fork.observation_space, Fork.action_space), num_episodes=200, num_envs=8, seed=0)
    assert len(result.returns) == 200
    assert 0.4 < np.mean(np.array(result.returns) > 2) < 0.6  # 0.5 with a standard error of 0.035
