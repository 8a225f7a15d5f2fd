"""`TrainerConfig`: settings of a training run, and `TrainResult`: its result."""

from __future__ import annotations

from dataclasses import dataclass

from episode_learners.algorithms.config import Settings
from episode_learners.algorithms.config_checks import count, flag, whole
from episode_runners.evaluation import Evaluation

__all__ = ["TrainResult", "TrainerConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig(Settings):
    """Settings common to all training runs: length, tests and checkpoints.

    Attributes:
        max_epochs: Epochs after which the run ends.
        steps_per_epoch: Lower bound of the environment steps in an epoch. Offline: gradient steps, or steps of data.
        num_test_episodes: Episodes of a test, in new environments that are created as the runner's were. Changes of the
            runner's environments, such as `runner.env.set_attr`, do not reach them. 0: no tests.
        test_every: Environment steps between two tests. None: a test after each epoch.
        test_seed: Seed of the test episodes. Each test has other episodes.
        checkpoint_every: Epochs between two checkpoints. None: no checkpoints.
        shows_progress: Whether a progress bar is shown.
    """

    max_epochs: int = count(100)
    steps_per_epoch: int = count(10_000)
    num_test_episodes: int = whole(20)
    test_every: int | None = count(None)
    test_seed: int = whole(1_000_000)
    checkpoint_every: int | None = count(None)
    shows_progress: bool = flag(True)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Result of a training run: its length, its best test, its duration, and why it ended.

    Attributes:
        num_epochs, num_steps, num_updates: Counts over the whole run, including the part before a resume. Offline,
            `num_steps` counts gradient steps or steps of data.
        best_score: Highest mean return of a test; -inf without tests.
        best_epoch: Epoch of that test.
        last_test: Last test of this process; None if this process has run no test. Checkpoints do not store it.
        seconds: Duration of the whole run.
        stopped_by: "max_epochs", "stop_fn" (also a call of `stop`) or "interrupt".
    """

    num_epochs: int
    num_steps: int
    num_updates: int
    best_score: float
    best_epoch: int
    last_test: Evaluation | None
    seconds: float
    stopped_by: str
