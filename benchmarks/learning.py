"""Training benchmarks: sampling and learning with trainers, compared with plain loops and other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from typing import Any

from benchmarks.figure import Counted, Figure, Side, Size, Timed, at_least, at_most, cpu_seconds, limit
from benchmarks.loops import dqn as bare_dqn
from benchmarks.loops import ppo as bare_ppo
from benchmarks.loops import sac as bare_sac
from benchmarks.operations import count_operations
from benchmarks.peers import RLLIB, SB3, TIANSHOU, multi_agent_cartpole, samplers, trainers
from benchmarks.sampling import new_policy, our_runner

NUM_ENVS = 8
ROWS = 128  # vector steps between two updates
EPOCHS = 6
MINIBATCH = 128
HIDDEN = 256
UPDATES = 50  # in one measurement, of algorithms that learn from replay
MOST_SECONDS = 30.0  # a newcomer's patience with `make demo`


def ppo(size: Size, num_envs: int = NUM_ENVS) -> Timed:
    """Time a training step of PPO with its trainer (sampling and one update), per environment step."""
    from episode_learners import PPO, PPOConfig
    from episode_learners.trainers import OnPolicyConfig, OnPolicyTrainer

    policy = new_policy()
    runner, count = our_runner(num_envs, policy), size(ROWS) * num_envs
    algorithm = PPO(policy, PPOConfig(num_epochs=EPOCHS, minibatch_size=MINIBATCH))
    trainer = OnPolicyTrainer(algorithm, runner, OnPolicyConfig(steps_per_collect=count))
    return Timed(trainer.step, count, clock=cpu_seconds)


def multi_agent_ppo(size: Size) -> Counted:
    """Measure the CPU seconds of multi-agent PPO per agent step, with four agents that share a policy."""
    from benchmarks.peers.multi_agent_cartpole import MultiAgentCartPole
    from episode_learners import PPO, MultiAgentAlgorithm, PPOConfig
    from episode_learners.trainers import OnPolicyConfig, OnPolicyTrainer
    from episode_runners import MultiAgentEnvRunner

    algorithm = MultiAgentAlgorithm(
        {"shared": PPO(new_policy(), PPOConfig(num_epochs=EPOCHS, minibatch_size=MINIBATCH))}
    )
    mapping: Any = {"agent_to_module_mapping_fn": lambda agent, episode: "shared"}
    runner = MultiAgentEnvRunner(MultiAgentCartPole, algorithm.policies, num_envs=NUM_ENVS // 4, seed=0, **mapping)
    trainer = OnPolicyTrainer(algorithm, runner, OnPolicyConfig(steps_per_collect=size(ROWS) * NUM_ENVS // 4))
    return per_agent_step(trainer.step, lambda: runner.stats.num_agent_steps)


def as_many_single_steps(size: Size) -> Counted:
    """Measure the CPU seconds of single-agent PPO per step, with as many steps and policy calls as
    `multi_agent_ppo`.
    """
    timed = ppo(size, num_envs=5)
    return per_agent_step(timed.run, lambda: int(timed.items))


def per_agent_step(learn: Callable[[], object], num_steps: Callable[[], int]) -> Counted:
    """Run the training step `learn` once to warm up and four times for measurement, and return the CPU seconds per
    agent step.
    """
    learn()
    began, steps = cpu_seconds(), 0
    for _ in range(4):
        learn()
        steps += num_steps()
    return Counted((cpu_seconds() - began) / steps)


def dqn(size: Size, every: int, batch: int, **numbers: Any) -> Timed:
    """Time a training step of DQN with its trainer: `every` steps of one environment, and one gradient step."""
    from episode_learners import DQN, DQNConfig, QPolicy
    from episode_learners.trainers import OffPolicyConfig, OffPolicyTrainer
    from episode_runners import SingleAgentEnvRunner, make_vector_env
    from episodes.replay import EpisodeReplayBuffer

    env = make_vector_env("CartPole-v1", 1)
    policy = QPolicy(env.single_observation_space, env.single_action_space)
    runner = SingleAgentEnvRunner(env, policy, seed=0)
    algorithm = DQN(policy, DQNConfig(batch_size=batch, **numbers))
    config = OffPolicyConfig(steps_per_collect=every, warmup_steps=size(500))
    return several_updates(OffPolicyTrainer(algorithm, runner, EpisodeReplayBuffer(50_000, seed=0), config), size)


def sac(size: Size) -> Timed:
    """Time a training step of SAC with its trainer: one environment step, and one gradient step."""
    from episode_learners import SAC, SACConfig, SACPolicy
    from episode_learners.trainers import OffPolicyConfig, OffPolicyTrainer
    from episode_runners import SingleAgentEnvRunner, make_vector_env
    from episodes.replay import EpisodeReplayBuffer

    env = make_vector_env("Pendulum-v1", 1)
    policy = SACPolicy(env.single_observation_space, env.single_action_space, hidden_sizes=(HIDDEN, HIDDEN))
    algorithm = SAC(policy, SACConfig(gamma=0.98, batch_size=256, tau=0.01))
    config = OffPolicyConfig(steps_per_collect=1, warmup_steps=size(500))
    runner = SingleAgentEnvRunner(env, policy, seed=0)
    return several_updates(OffPolicyTrainer(algorithm, runner, EpisodeReplayBuffer(50_000, seed=0), config), size)


def several_updates(trainer: Any, size: Size) -> Timed:
    """Time training steps of a trainer after its warmup, per update."""
    trainer.step()
    count = size(UPDATES)
    return Timed(lambda: [trainer.step() for _ in range(count)], count, clock=cpu_seconds)


def plain_loop(size: Size, make: Callable[[], Iterator[int]], updates: int = 1, items: int = 1) -> Timed:
    """Time updates of a plain training loop, which is a generator that `make` creates."""
    loop, count = make(), size(updates)
    next(loop)
    return Timed(lambda: [next(loop) for _ in range(count)], count * items, clock=cpu_seconds)


def demo(size: Size) -> Counted:
    """Measure the seconds of the demo, which trains until CartPole is solved."""
    from episode_learners.demo import Demo

    run = Demo(num_steps=size(100_000))
    with redirect_stderr(StringIO()):  # its progress bar
        run.train()
    return Counted(run.seconds)


def ppo_operations(size: Size) -> Counted:
    """Count the torch operations of one minibatch of PPO, computed from the difference between 3 and 2 epochs."""
    from episode_learners import PPO, PPOConfig

    def of(epochs: int) -> int:
        policy = new_policy()
        algorithm = PPO(policy, PPOConfig(num_epochs=epochs, minibatch_size=MINIBATCH))
        batch = algorithm.preprocess(our_runner(2, policy).sample(num_timesteps=2 * MINIBATCH))
        algorithm.learn(batch)
        return count_operations(lambda: algorithm.learn(batch)).total

    return Counted((of(3) - of(2)) / 2)


def bare_ppo_operations(size: Size) -> Counted:
    """Count the torch operations of one minibatch of the plain PPO loop."""

    def of(epochs: int) -> int:
        loop = bare_ppo.learning(2, MINIBATCH, epochs, MINIBATCH)
        next(loop)
        return count_operations(lambda: next(loop)).total

    return Counted((of(3) - of(2)) / 2)


OF_PPO = {"num_envs": NUM_ENVS, "rows": ROWS, "epochs": EPOCHS, "minibatch": MINIBATCH}
OF_SAC = {"hidden": HIDDEN, "batch": 256, "updates": UPDATES}
PPO_SB3 = Side("SB3", partial(samplers.sb3_learning, **OF_PPO), SB3)
PPO_TIANSHOU = Side("Tianshou", partial(trainers.tianshou_ppo, **OF_PPO), TIANSHOU)
SAC_SB3 = Side("SB3", partial(trainers.sb3_sac, **OF_SAC), SB3)
SAC_TIANSHOU = Side("Tianshou", partial(trainers.tianshou_sac, **OF_SAC), TIANSHOU)


def dqn_beside_peers(every: int, batch: int, sb3: float, tianshou: float) -> tuple[Figure, Figure]:
    """Return benchmarks of DQN compared with Stable-Baselines3 and Tianshou, with the same probability of random
    actions.
    """
    name = "learning/DQN every step" if every == 1 else f"learning/DQN every {every}"
    chance = {"epsilon_start": trainers.CHANCE, "epsilon_end": trainers.CHANCE}
    options = {"every": every, "batch": batch}
    ours = Side("ours", partial(dqn, **options, double=False, **chance))
    sb3_side = Side("SB3", partial(trainers.sb3_dqn, **options, updates=UPDATES), SB3)
    tianshou_side = Side("Tianshou", partial(trainers.tianshou_dqn, **options, updates=UPDATES), TIANSHOU)
    return (
        Figure(f"{name} SB3", ours, sb3_side, at_least(sb3), "us"),
        Figure(f"{name} Tianshou", ours, tianshou_side, at_least(tianshou), "us"),
    )


PPO_LOOP = partial(plain_loop, make=partial(bare_ppo.learning, **OF_PPO), items=ROWS * NUM_ENVS)
EVERY_STEP = partial(plain_loop, make=lambda: bare_dqn.learning(every=1, batch=64), updates=UPDATES)
EVERY_FOURTH = partial(plain_loop, make=lambda: bare_dqn.learning(every=4, batch=128), updates=UPDATES)
SAC_LOOP = partial(plain_loop, make=lambda: bare_sac.learning(HIDDEN, 256), updates=UPDATES)

FIGURES = (
    Figure("learning/PPO bare loop", Side("ours", ppo), Side("bare loop", PPO_LOOP), at_least(0.85), "us"),
    Figure("learning/PPO SB3", Side("ours", ppo), PPO_SB3, at_least(2), "us"),
    Figure("learning/PPO Tianshou", Side("ours", ppo), PPO_TIANSHOU, at_least(3), "us"),
    Figure(
        "learning/PPO operations a minibatch",
        Side("ours", ppo_operations),
        Side("bare loop", bare_ppo_operations),
        at_most(1.2),
        "operations",
    ),
    Figure(
        "learning/multi-agent PPO RLlib",
        Side("ours", multi_agent_ppo),
        Side(
            "RLlib",
            partial(
                multi_agent_cartpole.rllib_learning, steps=ROWS * NUM_ENVS // 4, epochs=EPOCHS, minibatch=MINIBATCH
            ),
            RLLIB,
        ),
        at_most(0.35),
        "us",
    ),
    Figure(
        "learning/multi-agent PPO single agent",
        Side("ours", multi_agent_ppo),
        Side("one agent", as_many_single_steps),
        at_most(1.4),
        "us",
    ),
    Figure(
        "learning/DQN every step",
        Side("ours", partial(dqn, every=1, batch=64)),
        Side("bare loop", EVERY_STEP),
        at_least(0.6),
        "us",
    ),
    Figure(
        "learning/DQN every 4",
        Side("ours", partial(dqn, every=4, batch=128)),
        Side("bare loop", EVERY_FOURTH),
        at_least(0.6),
        "us",
    ),
    *dqn_beside_peers(1, 64, sb3=1.5, tianshou=3),
    *dqn_beside_peers(4, 128, sb3=1.3, tianshou=2.5),
    Figure("learning/SAC bare loop", Side("ours", sac), Side("bare loop", SAC_LOOP), at_least(0.75), "us"),
    Figure("learning/SAC SB3", Side("ours", sac), SAC_SB3, at_least(1.2), "us"),
    Figure("learning/SAC Tianshou", Side("ours", sac), SAC_TIANSHOU, at_least(1.6), "us"),
    Figure("learning/demo to its goal", Side("ours", demo), limit("patience", MOST_SECONDS), at_most(1), "s"),
)
