"""Demo: `python -m episode_learners.demo` trains PPO on CartPole and stores the sampled episodes.

It is a run of `episodes train` with a hook: PPO learns from episodes of eight environments until the mean return of the
last 50 complete episodes reaches the environment's threshold. It leaves a table, a picture and the episodes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

from episode_learners.episode_history import EpisodeHistory
from episode_learners.run import Run, presets
from episode_learners.trainers.trainer import Trainer
from episodes.errors import EpisodeError, InvalidArgument
from episodes.pack import EpisodePack
from episodes.storage import EpisodeWriter
from episodes.storage.files import local_path

__all__ = ["Demo", "main"]

STEPS_PER_UPDATE = 1024
LAST_EPISODES = 50  # over which the return is averaged
EPISODES = "episodes"  # the data set in a run's folder
KNOWN = "CartPole-v1"  # whose numbers other environments get that have none of their own


@dataclass
class Demo:
    """Training run of the demo: trains PPO on an environment, and keeps the last sampled episodes for a report.

    Args:
        env_id: id of a Gymnasium environment.
        seed: seed of the environments, weights, actions and minibatches.
        num_steps: largest number of steps. The learning rate reaches 0 then.
        device: device of the policy.
    """

    env_id: str = "CartPole-v1"
    seed: int = 0
    num_steps: int = 100_000
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise InvalidArgument(f"a run needs at least one step, not {self.num_steps}")
        self.goal = gym.spec(self.env_id).reward_threshold
        self.history = EpisodeHistory(keep=LAST_EPISODES)
        self.was_interrupted = False
        run = Run.of_preset("ppo", self.env_id if ("ppo", self.env_id) in presets() else KNOWN)
        run.env, run.seed, run.device = self.env_id, self.seed, self.device
        run.decay_over = math.ceil(self.num_steps / STEPS_PER_UPDATE)
        steps = {"steps_per_collect": STEPS_PER_UPDATE, "steps_per_epoch": STEPS_PER_UPDATE}
        run.trainer = {"max_epochs": run.decay_over, "num_test_episodes": 0, **steps}
        self.trainer: Any = run.make(hooks=[self])
        self.policy = self.trainer.algorithm.policy

    def on_collect(self, trainer: Trainer[Any], pack: EpisodePack) -> None:
        """Add newly sampled episodes to the history. The trainer calls this hook after each collection."""
        self.history.add(pack)

    def on_update(self, trainer: Trainer[Any], metrics: dict[str, float]) -> None:
        """Stop the run if the mean return has reached the goal. The trainer calls this hook after each update."""
        if self.is_solved:
            trainer.stop()

    @property
    def seconds(self) -> float:
        """Duration of the training run so far, in seconds."""
        return self.trainer.seconds

    @property
    def mean_return(self) -> float:
        """Mean return of the last 50 complete episodes. It is NaN before the first episode has ended."""
        return self.history.mean_return(LAST_EPISODES)

    @property
    def is_solved(self) -> bool:
        """Whether the mean return of the last 50 complete episodes reaches the environment's reward threshold. It is
        False if there is no threshold.
        """
        return self.goal is not None and len(self.history.returns) >= LAST_EPISODES and self.mean_return >= self.goal

    def train(self) -> None:
        """Train until the goal is reached, the environment steps are used up, or Ctrl-C is pressed."""
        self.was_interrupted = self.trainer.run().stopped_by == "interrupt"
        if self.was_interrupted:
            print("Interrupted: what follows is what there is.")

    def writer(self, folder: Path) -> EpisodeWriter:
        """Return the writer of the data set in `folder`. It extends an existing data set.

        Raises:
            InvalidArgument: the existing data set is of another environment.
        """
        return EpisodeWriter(folder / EPISODES, env_spec=self.env_id)

    def report(self, folder: Path) -> None:
        """Print a table of the last episodes and the speed of training, and write the episodes, the policy's weights
        and a picture to `folder`.
        """
        episodes = self.history.episodes()
        if not episodes:
            print("No episode has ended yet: there is nothing to show or to keep.")
            return
        from episode_learners.run_summary import draw_run, episode_table

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
        """Return the text printed at the end of the demo: mean return, speed, and how to load the stored episodes."""
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
    """Run the demo with the command-line arguments `arguments`. Return exit status 1 if the goal was not reached,
    unless Ctrl-C ended the run, and otherwise 0.
    """
    parser = _make_parser()
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the networks are so small that a second thread only waits for the first
    folder = chosen.folder or Path("runs") / f"{chosen.env.lower().replace('/', '-')}-seed{chosen.seed}"
    try:
        demo = Demo(chosen.env, chosen.seed, chosen.steps, chosen.device)
        demo.writer(folder)  # what could not be kept at the end is an error now; nothing is written yet
    except (gym.error.Error, EpisodeError) as error:
        parser.error(str(error))
    with demo.trainer.runner:
        demo.train()
    demo.report(folder)
    return int(demo.goal is not None and not demo.is_solved and not demo.was_interrupted)


def _make_parser() -> argparse.ArgumentParser:
    """Return the parser of the demo's command-line arguments."""
    parser = argparse.ArgumentParser(prog="python -m episode_learners.demo", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--env", default="CartPole-v1", help="a Gymnasium environment id (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps at most (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="the policy's device (default: %(default)s)")
    parser.add_argument("--folder", type=local_path, help="where to leave the results (default: runs/ENV-seedSEED)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
