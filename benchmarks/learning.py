"""PPO on CartPole: sampling and learning together, and the demo from nothing to its goal."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO

from benchmarks.figure import Counted, Figure, Side, Size, Timed, at_least, at_most, limit
from benchmarks.peers import SB3, samplers
from benchmarks.sampling import new_policy, our_runner

NUM_ENVS = 8
ROWS = 128  # vector steps between two updates
EPOCHS = 6
MINIBATCH = 128
MOST_SECONDS = 30.0  # a newcomer's patience with `make demo`


def ours(size: Size) -> Timed:
    """A sample and an update of PPO; per step of an environment."""
    from learners import PPO, PPOConfig

    policy = new_policy()
    runner, count = our_runner(NUM_ENVS, policy), size(ROWS) * NUM_ENVS
    ppo = PPO(policy, PPOConfig(num_epochs=EPOCHS, minibatch_size=MINIBATCH))
    return Timed(lambda: ppo.update(runner.sample(num_timesteps=count)), count)


def demo(size: Size) -> Counted:
    """Seconds of the demo, which ends when CartPole is solved."""
    from learners.demo import Demo

    run = Demo(num_steps=size(100_000))
    with redirect_stderr(StringIO()):  # its progress bar
        run.train()
    return Counted(run.seconds)


PEER = Side("SB3", samplers.sb3_learning(NUM_ENVS, ROWS, EPOCHS, MINIBATCH), SB3)

FIGURES = (
    Figure("learning/PPO SB3", Side("ours", ours), PEER, at_least(1.2), "us"),
    Figure("learning/demo to its goal", Side("ours", demo), limit("patience", MOST_SECONDS), at_most(1), "s"),
)
