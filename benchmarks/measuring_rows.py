"""Benchmarks of measuring the rows of an update, for `explain_update`, beside the same update without it, and of
training runs with a ledger beside the same runs without one.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.figure import Figure, Side, Size, Timed, at_most, cpu_seconds

HIDDEN = 256
VOCABULARY = 512


def ppo(size: Size) -> tuple[Any, Callable[[], object]]:
    """Return PPO, and a function that updates it from 2,048 steps in 10 epochs."""
    import gymnasium as gym

    from episode_learners import PPO, MLPPolicy, PPOConfig
    from episode_runners import SingleAgentEnvRunner

    env = gym.make_vec("CartPole-v1", 8)
    policy = MLPPolicy(env.single_observation_space, env.single_action_space)
    pack = SingleAgentEnvRunner(env, policy, seed=0).sample(num_timesteps=size(2048))
    algorithm = PPO(policy, PPOConfig(num_epochs=10, minibatch_size=128))
    return algorithm, lambda: algorithm.update(pack)


def from_replay(size: Size, kind: str) -> tuple[Any, Callable[[], object]]:
    """Return DQN or SAC, and a function that takes one gradient step on a sample from replay."""
    import gymnasium as gym

    from episode_learners import DQN, SAC, DQNConfig, QPolicy, SACConfig, SACPolicy
    from episode_runners import SingleAgentEnvRunner
    from episodes.replay import EpisodeReplayBuffer

    env = gym.make_vec("CartPole-v1" if kind == "DQN" else "Pendulum-v1", 8)
    spaces = env.single_observation_space, env.single_action_space
    algorithm: Any
    if kind == "DQN":
        algorithm = DQN(QPolicy(*spaces), DQNConfig(batch_size=64))
    else:
        algorithm = SAC(SACPolicy(*spaces, hidden_sizes=(HIDDEN, HIDDEN)), SACConfig(batch_size=256))
    buffer = EpisodeReplayBuffer(5000, seed=0)
    SingleAgentEnvRunner(env, algorithm.policy, seed=0).sample_into(buffer, num_timesteps=size(2048))
    return algorithm, lambda: algorithm.update_from(buffer)


def token_grpo(size: Size) -> tuple[Any, Callable[[], object]]:
    """Return GRPO for tokens, and a function that updates a small model from 8 conversations of 400 tokens."""
    from torch import nn

    from episode_learners import TokenGRPO, TokenGRPOConfig
    from episodes import EpisodePack
    from episodes.tokens import Conversation

    rng = np.random.default_rng(0)
    talks = []
    for k in range(8):
        talk = Conversation(f"e{k}", outputs={"logp": "f4"}, group=0)
        talk.begin(rng.integers(0, VOCABULARY, 80))
        for t in range(4):
            ids = rng.integers(0, VOCABULARY, size(40))
            logp = np.full(len(ids), -np.log(VOCABULARY), np.float32)
            reply = rng.integers(0, VOCABULARY, 40)
            talk.turn(ids, reply_ids=reply, reward=float(rng.normal()), terminated=t == 3, logp=logp)
        talks.append(talk.episode)
    pack = EpisodePack.from_episodes(talks)
    model = nn.Sequential(nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, VOCABULARY))
    algorithm = TokenGRPO(model, TokenGRPOConfig(), forward=lambda model, batch: model(batch["input_ids"]))
    return algorithm, lambda: algorithm.update(pack)


def updating(size: Size, make: Callable[[Size], Any], measures: bool) -> Timed:
    """Time an update."""
    algorithm, update = make(size)
    algorithm.measures_rows = measures
    return Timed(update, clock=cpu_seconds)


def recording(size: Size, make: Callable[[Size], Any], measures: bool) -> Timed:
    """Time an update that a ledger records."""
    from episodes.storage.ledger import Ledger

    algorithm, update = make(size)
    algorithm.measures_rows = measures
    folder = tempfile.mkdtemp()
    ledger = Ledger(folder)
    weakref.finalize(algorithm, lambda: (ledger.close(), shutil.rmtree(folder)))  # of the ledger alone

    def note(batch: Any) -> None:
        ledger.note(algorithm.num_updates, batch, measured=algorithm.row_measurements if measures else None)

    algorithm.witness = note
    return Timed(update, clock=cpu_seconds)


def training(size: Size, kind: str, has_ledger: bool) -> Timed:
    """Time a step of a run on CartPole: 2,048 environment steps and an update of PPO, or 32 and 32 updates of DQN."""
    import gymnasium as gym

    from episode_learners import DQN, PPO, DQNConfig, MLPPolicy, PPOConfig, QPolicy
    from episode_learners.trainers import OffPolicyConfig, OffPolicyTrainer, OnPolicyConfig, OnPolicyTrainer
    from episode_runners import SingleAgentEnvRunner
    from episodes.replay import EpisodeReplayBuffer

    env = gym.make_vec("CartPole-v1", 8, vectorization_mode="sync")
    spaces, folder = (env.single_observation_space, env.single_action_space), tempfile.mkdtemp()
    options: dict[str, Any] = {"ledger": f"{folder}/ledger" if has_ledger else None}
    numbers: dict[str, Any] = {"num_test_episodes": 0, "shows_progress": False}
    trainer: Any
    if kind == "PPO":
        ppo = PPO(MLPPolicy(*spaces), PPOConfig(num_epochs=10, minibatch_size=128))
        config = OnPolicyConfig(steps_per_collect=size(2048), **numbers)
        trainer = OnPolicyTrainer(ppo, SingleAgentEnvRunner(env, ppo.policy, seed=0), config, **options)
    else:
        dqn, buffer = DQN(QPolicy(*spaces), DQNConfig(batch_size=64)), EpisodeReplayBuffer(5000, seed=0)
        runner, warmup = SingleAgentEnvRunner(env, dqn.policy, seed=0), size(2048)
        off_policy = OffPolicyConfig(
            warmup_steps=warmup, steps_per_collect=32, gradient_steps_per_collect=32, **numbers
        )
        trainer = OffPolicyTrainer(dqn, runner, buffer, off_policy, **options)
        while trainer.num_steps < warmup:
            trainer.step()

    def close() -> None:
        """Close the ledger, and remove its folder."""
        if trainer_ledger is not None:
            trainer_ledger.close()
        shutil.rmtree(folder)

    trainer_ledger = trainer.ledger
    weakref.finalize(trainer, close)
    return Timed(trainer.step, clock=cpu_seconds)


def with_ledger(kind: str, most: float) -> Figure:
    """Return the benchmark of a run with a ledger beside the same run without one."""
    sides = [partial(training, kind=kind, has_ledger=has_ledger) for has_ledger in (True, False)]
    name = f"measuring rows/{kind} run with a ledger"
    return Figure(name, Side("ours", sides[0]), Side("without", sides[1]), at_most(most), "us")


def both(name: str, make: Callable[[Size], Any], most: float, work: Callable[..., Timed] = updating) -> Figure:
    """Return the benchmark of an update with measurements and of the same update without them."""
    sides = [partial(work, make=make, measures=measures) for measures in (True, False)]
    return Figure(f"measuring rows/{name}", Side("ours", sides[0]), Side("without", sides[1]), at_most(most), "us")


ALGORITHMS: dict[str, Callable[[Size], Any]] = {
    "PPO": ppo,
    "DQN": partial(from_replay, kind="DQN"),
    "SAC": partial(from_replay, kind="SAC"),
    "TokenGRPO": token_grpo,
}
FIGURES = (
    *(both(name, make, 1.2 if name == "DQN" else 1.03) for name, make in ALGORITHMS.items()),
    *(both(f"{name} recorded", make, 1.15 if name == "DQN" else 1.03, recording) for name, make in ALGORITHMS.items()),
    with_ledger("PPO", 1.05),
    with_ledger("DQN", 1.25),
)
