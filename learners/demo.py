"""The library at work: `python -m learners.demo` solves CartPole from nothing, and keeps what it saw.

A runner samples episodes from eight environments, PPO learns from them, and this goes on until the mean return of the
last 50 whole episodes reaches the environment's own threshold. What is left is a table, a picture, and the episodes.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import gymnasium as gym
import torch
from tqdm import tqdm

from connectors import env_to_module_pipeline
from episodes.errors import EpisodeError, InvalidArgument
from episodes.storage import EpisodeWriter
from learners.algorithms.algorithm import linear_decay
from learners.algorithms.ppo import PPO, PPOConfig
from learners.history import EpisodeHistory
from learners.policies import MLPPolicy
from learners.report import draw_run, episode_table
from learners.run import flattening
from runners import SingleAgentEnvRunner, make_vector_env

__all__ = ["Demo", "main"]

NUM_ENVS = 8
STEPS_PER_UPDATE = 128 * NUM_ENVS
LAST_EPISODES = 50  # over which the return is averaged
EPISODES = "episodes"  # the data set in a run's folder
DEFAULT_CONFIG = PPOConfig(learning_rate=2e-3, gamma=0.98, lambda_=0.9, num_epochs=6, minibatch_size=128)
CONFIGS = {"Pendulum-v1": replace(DEFAULT_CONFIG, gamma=0.9, num_epochs=10)}


@dataclass
class Demo:
    """One run: an environment, a policy that learns in it, and what was sampled.

    Args:
        env_id: of a Gymnasium environment.
        seed: of the environments, the weights, the actions and the shuffling.
        num_steps: when to stop at the latest; the learning rate comes down to 0 by then.
        device: of the policy.
    """

    env_id: str = "CartPole-v1"
    seed: int = 0
    num_steps: int = 100_000
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise InvalidArgument(f"a run needs at least one step, not {self.num_steps}")
        if torch.device(self.device).type == "cuda" and not torch.cuda.is_available():
            raise InvalidArgument(
                f"torch finds no CUDA device here for {self.device!r}; leave --device out for the CPU"
            )
        self.goal = gym.spec(self.env_id).reward_threshold
        self.history = EpisodeHistory(keep=LAST_EPISODES)
        self.seconds = 0.0
        self.was_interrupted = False
        env = make_vector_env(self.env_id, NUM_ENVS)
        spaces = (env.single_observation_space, env.single_action_space)
        pipeline = env_to_module_pipeline(*spaces, pieces=flattening(spaces[0]), device=self.device)
        generator = torch.Generator().manual_seed(self.seed)
        flat_space = cast(gym.Space, pipeline.observation_space)
        self.policy = MLPPolicy(flat_space, spaces[1], generator=generator).to(self.device)
        self.runner = SingleAgentEnvRunner(env, self.policy, env_to_module=pipeline, seed=self.seed)
        scheduler = linear_decay(math.ceil(self.num_steps / STEPS_PER_UPDATE))
        config = CONFIGS.get(self.env_id, DEFAULT_CONFIG)
        self.ppo = PPO(self.policy, config, scheduler=scheduler, seed=self.seed)

    @property
    def mean_return(self) -> float:
        """Of the last whole episodes."""
        return self.history.mean_return(LAST_EPISODES)

    @property
    def is_solved(self) -> bool:
        """True once as many episodes as are averaged over reach the goal; never without a goal."""
        return self.goal is not None and len(self.history.returns) >= LAST_EPISODES and self.mean_return >= self.goal

    def train(self) -> None:
        """Sample and learn until it is solved, the steps are used up, or Ctrl-C is pressed."""
        began = time.perf_counter()
        try:
            with tqdm(total=self.num_steps, desc=self.env_id, unit=" steps", unit_scale=True) as bar:
                while self.history.num_steps < self.num_steps and not self.is_solved:
                    pack = self.runner.sample(num_timesteps=STEPS_PER_UPDATE)
                    self.history.add(pack)
                    self.ppo.update(pack)
                    bar.set_postfix_str(self._progress(), refresh=False)
                    bar.update(pack.num_steps)
        except KeyboardInterrupt:
            self.was_interrupted = True
            print("Interrupted: what follows is what there is.")
        self.seconds = time.perf_counter() - began

    def _progress(self) -> str:
        return f"return {self.mean_return:.1f}" if self.history.returns else "no episode has ended yet"

    def writer(self, folder: Path) -> EpisodeWriter:
        """What writes episodes to the data set in the folder; one that is there already gets more of them.

        Raises:
            InvalidArgument: it is there, and of another environment.
        """
        return EpisodeWriter(folder / EPISODES, env_spec=self.env_id)

    def report(self, folder: Path) -> None:
        """Print the last episodes and the speed; leave the episodes, the weights and a picture in the folder."""
        episodes = self.history.episodes()
        if not episodes:
            print("No episode has ended yet: there is nothing to show or to keep.")
            return
        folder.mkdir(parents=True, exist_ok=True)
        with self.writer(folder) as writer:
            writer.add(episodes)
        torch.save(self.policy.state_dict(), folder / "policy.pt")
        best = max(reversed(episodes), key=lambda episode: episode.get_return())
        title = f"PPO on {self.env_id}, seed {self.seed}"
        figure = draw_run(self.history.returns, self.history.lengths, best, title=title, goal=self.goal)
        figure.savefig(folder / "run.png")
        print(episode_table(episodes[-10:]))
        print(self._summary(len(episodes), folder))

    def _summary(self, num_kept: int, folder: Path) -> str:
        steps, speed = self.history.num_steps, self.history.num_steps / self.seconds
        goal = "" if self.goal is None else f" (goal {self.goal:g}: {'reached' if self.is_solved else 'not reached'})"
        return (
            f"\nmean return of the last {LAST_EPISODES} episodes: {self.mean_return:.1f}{goal}\n"
            f"{steps:,} environment steps in {self.seconds:.1f} s, learning included: {speed:,.0f} steps/s\n"
            f"the last {num_kept} episodes, the policy and a picture are in {folder}; to look at the episodes:\n"
            f"  from episodes.storage import EpisodeDataset\n"
            f"  episode = EpisodeDataset({str(folder / EPISODES)!r})[-1]  # the newest\n"
            f"  episode.get_observations(slice(0, 3)), episode.get_return()"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 1 when there is a goal that was not reached, unless Ctrl-C ended the run."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the networks are so small that a second thread only waits for the first
    folder = chosen.folder or Path("runs") / f"{chosen.env.lower().replace('/', '-')}-seed{chosen.seed}"
    try:
        demo = Demo(chosen.env, chosen.seed, chosen.steps, chosen.device)
        demo.writer(folder)  # what could not be kept at the end is an error now; nothing is written yet
    except (gym.error.Error, EpisodeError) as error:
        parser.error(str(error))
    with demo.runner:
        demo.train()
    demo.report(folder)
    return int(demo.goal is not None and not demo.is_solved and not demo.was_interrupted)


def _device(name: str) -> str:
    """The name of a device that is there."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise argparse.ArgumentTypeError(f"{name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return name


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m learners.demo", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--env", default="CartPole-v1", help="a Gymnasium environment id (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps at most (default: %(default)s)")
    parser.add_argument("--device", type=_device, default="cpu", help="the policy's device (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where to leave the results (default: runs/ENV-seedSEED)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
