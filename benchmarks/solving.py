"""Training runs that must reach a goal: `python -m benchmarks.solving [ROW ...] [--seeds N] [--write FILE]`.

A seed has solved its task if the mean return of 20 greedy test episodes at the end of an epoch reaches the goal, and
the mean return of 20 other episodes as well. The runs are those of `episodes train` with its built-in settings.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from episode_learners import IMPALA
from episode_learners.run import Run
from episode_learners.trainers import OnPolicyTrainer
from episode_learners.trainers.trainer import Trainer
from episode_runners import evaluate
from episodes.pack import EpisodePack
from episodes.storage import EpisodeDataset, EpisodeWriter

NUM_TESTED = 20
OTHER_TESTS = 5_000_000  # added to an epoch's number: the seed of the second 20 episodes
CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
MEMORY_TASK = "episode_learners.environments:CartPoleWithoutVelocities-v1"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one training run (seed): whether it solved the task, its length, and both means of test returns."""

    row: str
    seed: int
    goal: float
    is_solved: bool
    num_steps: int  # of environments; offline, gradient steps or steps of the data
    seconds: float  # of learning and testing
    first: float
    second: float


@dataclass(frozen=True, slots=True)
class Row:
    """Definition of a task: algorithm, environment, goal, and maximal number of steps."""

    algo: str
    env: str
    goal: float
    most_steps: int
    prepare: Callable[[Path, int], tuple[str, float]] | None = None  # (folder, seed) to (data set, goal)
    late: int = 0  # updates that lie between a policy that sampled and the one that learns


def expert_episodes(folder: Path, seed: int) -> tuple[str, float]:
    """Write 50 greedy episodes of a trained PPO policy to a data set. Return the directory, and 0.95 times their mean
    return as the goal.
    """
    evaluation = evaluate(train_expert("ppo", CARTPOLE, 450.0, seed).runner, num_episodes=50, seed=seed)
    return write_data_set(folder, CARTPOLE, evaluation.episodes), 0.95 * evaluation.mean_return


@dataclass(frozen=True, slots=True)
class Mixed:
    """Function that writes a data set of mixed quality: random episodes, episodes of a half-trained policy, and
    episodes of an expert.
    """

    algo: str
    env: str
    halfway: int  # environment steps that the policy on its way has learned from
    goal: float  # of the expert
    counts: tuple[int, int, int]  # episodes of each

    def __call__(self, folder: Path, seed: int) -> tuple[str, float]:
        """Write the data set, and return its directory and the mean return of its episodes, which is the goal."""
        halfway = make_trainer(self.algo, self.env, seed, num_test_episodes=0)
        chance = halfway.runner.sample(num_episodes=self.counts[0], random_actions=True)
        while halfway.num_steps < self.halfway:
            halfway.step()
        middling = halfway.runner.sample(num_episodes=self.counts[1])
        good = train_expert(self.algo, self.env, self.goal, seed).runner.sample(num_episodes=self.counts[2])
        episodes = EpisodePack.concat([pack.replace(extra_model_outputs={}) for pack in (chance, middling, good)])
        return write_data_set(folder, self.env, episodes), float(episodes.returns().mean())


def train_expert(algo: str, env: str, goal: float, seed: int) -> Any:
    """Train a policy until its test return reaches the goal, and return the trainer."""
    trainer = make_trainer(algo, env, seed, stop_fn=lambda score: score >= goal)
    trainer.run()
    return trainer


def make_trainer(algo: str, env: str, seed: int, stop_fn: Any = None, **numbers: Any) -> Any:
    """Return the trainer with the tested settings of an algorithm and environment, without progress display."""
    run = Run.of_preset(algo, env)
    run.seed, run.trainer = seed, {**run.trainer, "shows_progress": False, **numbers}
    return run.make(stop_fn=stop_fn)


def write_data_set(folder: Path, env: str, episodes: Any) -> str:
    """Write episodes to a new data set, and return its directory."""
    with EpisodeWriter(folder / "data", env_spec=env) as writer:
        writer.add(episodes)
    return str(EpisodeDataset(folder / "data").path)


ROWS = {
    "PPO CartPole-v1": Row("ppo", CARTPOLE, 475, 60_000),
    "GRPO CartPole-v1": Row("grpo", CARTPOLE, 400, 250_000),
    "DQN CartPole-v1": Row("dqn", CARTPOLE, 195, 20_000),
    "IMPALA CartPole-v1, two updates late": Row("impala", CARTPOLE, 450, 250_000, late=2),
    "BC CartPole-v1, 50 expert episodes": Row("bc", CARTPOLE, 0, 2_000_000, expert_episodes),
    "CQL CartPole-v1, mixed episodes": Row(
        "cql", CARTPOLE, 0, 20_000, Mixed("ppo", CARTPOLE, 8 * 1024, 450.0, (60, 60, 30))
    ),
    "CQL Pendulum-v1, mixed episodes": Row(
        "continuous-cql", PENDULUM, 0, 10_000, Mixed("sac", PENDULUM, 1_200, -250.0, (20, 20, 10))
    ),
    "PPO Pendulum-v1": Row("ppo", PENDULUM, -300, 300_000),
    "SAC Pendulum-v1": Row("sac", PENDULUM, -250, 10_000),
    "recurrent PPO CartPole without velocities": Row("recurrent-ppo", MEMORY_TASK, 400, 200_000),
    "R2D2 CartPole without velocities": Row("r2d2", MEMORY_TASK, 300, 150_000),
}


def train_seed(name: str, row: Row, seed: int, folder: Path) -> Outcome:
    """Train one seed of a task until its goal or its maximal number of steps, and return the result."""
    run, goal = Run.of_preset(row.algo, row.env), row.goal
    run.seed = seed
    run.trainer = {**run.trainer, "num_test_episodes": NUM_TESTED, "shows_progress": False}
    if row.prepare is not None:
        run.data, goal = row.prepare(folder, seed)
    began, means, made = time.perf_counter(), [float("nan")], []

    def is_enough(score: float) -> bool:
        """Return True to stop training: two tests reach the goal, or the maximal number of steps is exceeded."""
        means.clear()
        if score >= goal and trainer.num_steps <= row.most_steps:
            made.append(trainer.test(OTHER_TESTS + trainer.num_epochs))
            means.append(made[-1].mean_return)
            return means[-1] >= goal
        return trainer.num_steps > row.most_steps

    trainer: Trainer[Any] = run.make(stop_fn=is_enough)
    if row.late:
        delay(trainer, row.late)
    result = trainer.run()
    second = means[-1] if means else float("nan")
    first = float("nan") if result.last_test is None else result.last_test.mean_return
    seconds = time.perf_counter() - began
    is_solved = first >= goal and second >= goal  # a second that was not needed is NaN
    return Outcome(name, seed, goal, is_solved, result.num_steps, seconds, first, second)


def delay(trainer: Trainer[Any], late: int) -> None:
    """Change the trainer's IMPALA so that it learns from episodes of policies that are `late` updates older.

    Raises:
        TypeError: the trainer is not an on-policy trainer of IMPALA.
    """
    algorithm, waiting = trainer.algorithm, deque[Any]()
    if not isinstance(algorithm, IMPALA) or not isinstance(trainer, OnPolicyTrainer):
        raise TypeError(f"{type(algorithm).__name__} cannot learn from older policies")
    update = algorithm.update

    def updated_late(episodes: Any) -> dict[str, float]:
        waiting.append(episodes)
        return update(waiting.popleft()) if len(waiting) > late else {}

    algorithm.update = updated_late  # type: ignore[method-assign]


def table_line(name: str, row: Row, outcomes: Sequence[Outcome]) -> str:
    """Return the row of the Markdown table for a task, with the results of all seeds."""
    count = sum(outcome.is_solved for outcome in outcomes)
    steps = [outcome.num_steps for outcome in outcomes]
    seconds = statistics.median(outcome.seconds for outcome in outcomes)
    goals = sorted({round(outcome.goal) for outcome in outcomes})
    goal = f"{goals[0]:,}" if len(goals) == 1 else f"{goals[0]:,} to {goals[-1]:,}"
    means = ", ".join(f"{outcome.first:.0f}/{outcome.second:.0f}" for outcome in outcomes)
    return (
        f"| {name} | {goal} | {count} of {len(outcomes)} | {statistics.median(steps):,.0f} "
        f"(at most {max(steps):,} of {row.most_steps:,}) | {seconds:.0f} s | {means} |"
    )


HEAD = (
    "| task | goal | seeds that solve it | steps, median | time, median | means of 20 and of 20 others |\n"
    + "|---" * 6
    + "|"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tasks named on the command line, and print a table of results. Return 1 if a seed did not reach its goal,
    else 0.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.solving", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="a beginning of a task's name; all by default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="the table there too, and beside it all runs as JSON"
    )
    chosen = parser.parse_args(arguments)
    rows = {name: row for name, row in ROWS.items() if not chosen.rows or name.startswith(tuple(chosen.rows))}
    if not rows:
        parser.error(f"there are {', '.join(ROWS)}")
    torch.set_num_threads(1)
    np.seterr(all="raise", under="ignore")
    print(HEAD, flush=True)
    lines, everything = [HEAD], []
    for name, row in rows.items():
        outcomes = []
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
            with tempfile.TemporaryDirectory() as folder:
                outcomes.append(train_seed(name, row, seed, Path(folder)))
            print(f"  {outcomes[-1]}", file=sys.stderr, flush=True)
        lines.append(table_line(name, row, outcomes))
        everything += map(asdict, outcomes)
        print(lines[-1], flush=True)
        if chosen.write is not None:
            chosen.write.write_text("\n".join(lines) + "\n")
            chosen.write.with_suffix(".json").write_text(json.dumps(everything, indent=2) + "\n")
    return int(not all(outcome["is_solved"] for outcome in everything))


if __name__ == "__main__":
    raise SystemExit(main())
