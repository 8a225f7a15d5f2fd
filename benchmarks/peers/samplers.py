"""Workloads of other libraries that sample CartPole with a tanh perceptron of two layers of 64."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from benchmarks.figure import Size, Timed, cpu_seconds

ENVIRONMENT = "CartPole-v1"


def rllib(size: Size, num_envs: int, rows: int) -> Timed:
    """Time sampling by RLlib's `SingleAgentEnvRunner`, per environment step."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    config = (
        PPOConfig()
        .environment(ENVIRONMENT)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs, rollout_fragment_length=rows)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
    )
    runner = SingleAgentEnvRunner(config=config)
    count = size(rows) * num_envs
    return Timed(lambda: runner.sample(num_timesteps=count), count)


def tianshou(size: Size, num_envs: int, rows: int) -> Timed:
    """Time sampling by Tianshou's `Collector` into a `VectorReplayBuffer`, which is emptied after each call, per
    environment step.
    """
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv

    envs = DummyVectorEnv([lambda: gym.make(ENVIRONMENT) for _ in range(num_envs)])
    count = size(rows) * num_envs
    collector = Collector(tianshou_policy(), envs, VectorReplayBuffer(2 * count, num_envs))
    collector.reset()

    def run() -> None:
        collector.collect(n_step=count)
        collector.reset_buffer(keep_statistics=True)

    return Timed(run, count)


def tianshou_policy() -> Any:
    """Return Tianshou's policy for discrete actions with a tanh perceptron of two layers of 64."""
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor
    from torch import nn
    from torch.distributions import Categorical

    env = gym.make(ENVIRONMENT)
    network = Net(state_shape=(4,), hidden_sizes=(64, 64), activation=nn.Tanh)
    actor = DiscreteActor(preprocess_net=network, action_shape=2, softmax_output=False)
    return ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda logits: Categorical(logits=logits),
        action_space=env.action_space,
        observation_space=env.observation_space,
        action_scaling=False,
    )


def sb3(size: Size, num_envs: int, rows: int) -> Timed:
    """Time sampling by Stable-Baselines3's `PPO.collect_rollouts`, which also evaluates the value network, per
    environment step.
    """
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    steps = max(size(rows), 2)
    model: Any = PPO("MlpPolicy", make_vec_env(ENVIRONMENT, num_envs), n_steps=steps, device="cpu")
    _, callback = model._setup_learn(total_timesteps=1)

    def run() -> None:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=steps)

    return Timed(run, steps * num_envs)


def sb3_learning(size: Size, num_envs: int, rows: int, epochs: int, minibatch: int) -> Timed:
    """Time Stable-Baselines3's PPO, with one rollout and one update per call, per environment step."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    steps = max(size(rows), 2)
    envs = make_vec_env(ENVIRONMENT, num_envs)
    model: Any = PPO("MlpPolicy", envs, n_steps=steps, n_epochs=epochs, batch_size=minibatch, device="cpu")
    count = steps * num_envs
    return Timed(lambda: model.learn(count, reset_num_timesteps=False), count, clock=cpu_seconds)
