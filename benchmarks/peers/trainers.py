"""Workloads of other libraries that sample and learn, with the same networks and settings as this library."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from benchmarks.figure import Size, Timed, cpu_seconds
from benchmarks.peers.samplers import ENVIRONMENT, tianshou_policy

CAPACITY, WARMUP, CHANCE = 50_000, 500, 0.5  # of actions that are drawn, which cost less than those of a network


def sb3_dqn(size: Size, every: int, batch: int, updates: int) -> Timed:
    """Time training of Stable-Baselines3's DQN, per gradient step."""
    from stable_baselines3 import DQN

    model: Any = DQN(
        "MlpPolicy",
        ENVIRONMENT,
        learning_rate=1e-3,
        buffer_size=CAPACITY,
        learning_starts=size(WARMUP),
        batch_size=batch,
        train_freq=every,
        gradient_steps=1,
        target_update_interval=500 * every,
        exploration_initial_eps=CHANCE,
        exploration_final_eps=CHANCE,
        policy_kwargs={"net_arch": [64, 64]},
        device="cpu",
    )
    return learning(model, size(WARMUP), size(updates), every)


def sb3_sac(size: Size, hidden: int, batch: int, updates: int) -> Timed:
    """Time training of Stable-Baselines3's SAC, per gradient step."""
    from stable_baselines3 import SAC

    model: Any = SAC(
        "MlpPolicy",
        "Pendulum-v1",
        learning_rate=1e-3,
        buffer_size=CAPACITY,
        learning_starts=size(WARMUP),
        batch_size=batch,
        gamma=0.98,
        tau=0.01,
        policy_kwargs={"net_arch": [hidden, hidden]},
        device="cpu",
    )
    return learning(model, size(WARMUP), size(updates), 1)


def learning(model: Any, warmup: int, updates: int, every: int) -> Timed:
    """Time training of a Stable-Baselines3 model after `warmup` steps, per gradient step."""
    model.learn(warmup + every)
    run = lambda: model.learn(updates * every, reset_num_timesteps=False)  # noqa: E731
    return Timed(run, updates, clock=cpu_seconds)


def tianshou_ppo(size: Size, num_envs: int, rows: int, epochs: int, minibatch: int) -> Timed:
    """Time training of Tianshou's PPO (one collection and one update), per environment step."""
    num_steps = size(rows) * num_envs
    algorithm, params = tianshou_ppo_run(num_envs, num_steps, epochs, minibatch)
    return Timed(lambda: algorithm.run_training(params), num_steps, clock=cpu_seconds)


def tianshou_ppo_run(num_envs: int, num_steps: int, epochs: int, minibatch: int, seed: int = 0) -> tuple[Any, Any]:
    """Return Tianshou's PPO, and the parameters of a training with one collection of `num_steps` steps and one
    update.
    """
    from tianshou.algorithm import PPO
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OnPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteCritic
    from torch import nn

    critic = DiscreteCritic(preprocess_net=Net(state_shape=4, hidden_sizes=(64, 64), activation=nn.Tanh))
    algorithm = PPO(
        policy=tianshou_policy(),
        critic=critic,
        optim=AdamOptimizerFactory(lr=3e-4, eps=1e-5),
        ent_coef=0.0,
        max_grad_norm=0.5,
    )
    envs = DummyVectorEnv([lambda: gym.make(ENVIRONMENT) for _ in range(num_envs)])
    envs.seed(seed)
    params = OnPolicyTrainerParams(
        training_collector=Collector(algorithm, envs, VectorReplayBuffer(2 * num_steps, num_envs)),
        max_epochs=1,
        epoch_num_steps=num_steps,
        collection_step_num_env_steps=num_steps,
        batch_size=minibatch,
        update_step_num_repetitions=epochs,
        **QUIET,
    )
    return algorithm, params


def tianshou_dqn(size: Size, every: int, batch: int, updates: int) -> Timed:
    """Time training of Tianshou's DQN, per gradient step."""
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net

    env = gym.make(ENVIRONMENT)
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=4, action_shape=2, hidden_sizes=(64, 64)),
        action_space=env.action_space,  # type: ignore[arg-type]
        observation_space=env.observation_space,
        eps_training=CHANCE,
    )
    optim = AdamOptimizerFactory(lr=1e-3)
    algorithm = DQN(policy=policy, optim=optim, target_update_freq=500, is_double=False)
    return off_policy(algorithm, ENVIRONMENT, size(WARMUP), size(updates), every, batch)


def tianshou_sac(size: Size, hidden: int, batch: int, updates: int) -> Timed:
    """Time training of Tianshou's SAC with a learned temperature, per gradient step."""
    from tianshou.algorithm import SAC
    from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

    env, sizes, adam = gym.make("Pendulum-v1"), (hidden, hidden), AdamOptimizerFactory(lr=1e-3)
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=3, hidden_sizes=sizes),
        action_shape=1,
        unbounded=True,
        conditioned_sigma=True,
    )
    critics = [
        ContinuousCritic(preprocess_net=Net(state_shape=3, action_shape=1, hidden_sizes=sizes, concat=True))
        for _ in range(2)
    ]
    algorithm = SAC(
        policy=SACPolicy(actor=actor, action_space=env.action_space, observation_space=env.observation_space),
        policy_optim=adam,
        critic=critics[0],
        critic_optim=adam,
        critic2=critics[1],
        critic2_optim=adam,
        tau=0.01,
        gamma=0.98,
        alpha=AutoAlpha(-1.0, 0.0, adam),
    )
    return off_policy(algorithm, "Pendulum-v1", size(WARMUP), size(updates), 1, batch)


QUIET: dict[str, Any] = {"test_collector": None, "verbose": False, "show_progress": False}


def off_policy(algorithm: Any, env_id: str, warmup: int, updates: int, every: int, batch: int) -> Timed:
    """Time training of a Tianshou algorithm after `warmup` random steps, per gradient step."""
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OffPolicyTrainerParams

    envs = DummyVectorEnv([lambda: gym.make(env_id)])
    collector = Collector(algorithm, envs, VectorReplayBuffer(CAPACITY, 1), exploration_noise=True)
    collector.reset()
    collector.collect(n_step=warmup, random=True)
    params = OffPolicyTrainerParams(
        training_collector=collector,
        max_epochs=1,
        epoch_num_steps=updates * every,
        collection_step_num_env_steps=every,
        update_step_num_gradient_steps_per_sample=1 / every,
        batch_size=batch,
        **QUIET,
    )
    return Timed(lambda: algorithm.run_training(params), updates, clock=cpu_seconds)
