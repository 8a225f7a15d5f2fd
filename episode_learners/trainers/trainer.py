"""`Trainer`: collects, updates, tests, logs and keeps checkpoints until it is time to stop."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from connectors.acting import fingerprint_of
from connectors.fingerprint import check_fingerprint, stamp, stamped
from episode_learners.algorithms.algorithm import Algorithm
from episode_learners.algorithms.config import Settings
from episode_learners.algorithms.config_checks import check_numbers
from episode_learners.loggers import Logger
from episode_learners.policies.policy import Policy
from episode_learners.trainers.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from episode_learners.trainers.progress import Progress
from episode_learners.trainers.run_settings import changed_settings, settings_of
from episode_runners import CollectStats, Evaluation, GroupRunner, MultiAgentEnvRunner, SingleAgentEnvRunner
from episode_runners.seeds import independent_seed
from episodes.errors import InvalidArgument, StateMismatch
from episodes.storage.ledger import Ledger

__all__ = ["TrainResult", "Trainer", "TrainerConfig"]

_KEPT = 2  # checkpoints: the newest, and the one before it


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig(Settings):
    """Settings for the length, tests and checkpoints of a run.

    Attributes:
        max_epochs: Epochs after which the run ends.
        steps_per_epoch: Lower bound of the environment steps in an epoch. Offline: gradient steps, or steps of data.
        num_test_episodes: Test episodes after each epoch. 0: no tests.
        test_seed: Seed of the test episodes. Each epoch has other test episodes.
        checkpoint_every: Epochs between two checkpoints. None: no checkpoints.
        shows_progress: Whether a progress bar is shown.
    """

    max_epochs: int = 100
    steps_per_epoch: int = 10_000
    num_test_episodes: int = 20
    test_seed: int = 1_000_000
    checkpoint_every: int | None = None
    shows_progress: bool = True

    def __post_init__(self) -> None:
        check_numbers(
            self,
            counts=("max_epochs", "steps_per_epoch", "checkpoint_every"),
            whole=("num_test_episodes", "test_seed"),
            flags=("shows_progress",),
        )


Config = TypeVar("Config", bound=TrainerConfig)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Summary of a run.

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


class Trainer(ABC, Generic[Config]):
    """An algorithm and where it learns from; `run()` goes through epochs of collecting, updating and testing.

    An epoch ends with a test, a call of `save_best_fn` if the test was the best so far, and a checkpoint. Environments
    cannot be saved. Therefore new episodes begin after each checkpoint, in a run that continues as in one that is
    resumed, and both are equal, number for number.

    Args:
        algorithm: what learns.
        config: how long, how often.
        stop_fn: is asked with the mean return of each test whether that is enough.
        save_best_fn: is called with the algorithm whenever a test was better than all before it.
        logger: where metrics go.
        hooks: objects with any of `on_collect(trainer, pack)` (on-policy), `on_update(trainer, metrics)`,
            `on_test(trainer, evaluation)` and `on_epoch(trainer)`; each may call `trainer.stop()`.
        folder: of the checkpoints.
        ledger: where each update's origins and hashes are noted (`episodes.storage.ledger`); a path makes one.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        config: Config,
        *,
        stop_fn: Callable[[float], bool] | None = None,
        save_best_fn: Callable[[Any], object] | None = None,
        logger: Logger | None = None,
        hooks: Sequence[Any] = (),
        folder: str | Path | None = None,
        ledger: Ledger | str | Path | None = None,
    ) -> None:
        if config.checkpoint_every is not None and folder is None:
            raise InvalidArgument("checkpoint_every is given, but no folder to write checkpoints to")
        if not config.num_test_episodes and (stop_fn is not None or save_best_fn is not None):
            raise InvalidArgument("stop_fn and save_best_fn are asked after tests, and num_test_episodes is 0")
        self.algorithm, self.config = algorithm, config
        self.stop_fn, self.save_best_fn = stop_fn, save_best_fn
        self.logger = logger or Logger()
        self.hooks = list(hooks)
        self.folder = None if folder is None else Path(folder)
        self.ledger = Ledger(ledger) if isinstance(ledger, (str, Path)) else ledger
        if self.ledger is not None:
            algorithm.witness = self._note
        self.num_epochs = self.num_steps = self.num_updates = 0
        self.best_score, self.best_epoch = float("-inf"), 0
        self.last_test: Evaluation | None = None
        self.seconds = 0.0
        self.is_stopped = False
        self._progress = Progress(0, 0, is_shown=False)

    @abstractmethod
    def _collect_and_update(self) -> None:
        """One collection, which counts in `num_steps` before anything is told of it, and the updates it pays for."""

    @abstractmethod
    def test(self, seed: int) -> Evaluation | None:
        """Whole episodes of the policy as it is; None where there is nothing to test in."""

    @abstractmethod
    def _parts(self) -> Mapping[str, Any]:
        """What has a state beside the algorithm: runners, buffers."""

    # --- running ---------------------------------------------------------------------------------------------------

    def run(self) -> TrainResult:
        """Go on until `max_epochs`, `stop_fn`, or Ctrl-C, after which everything is there as it was left.

        Raises:
            InvalidArgument: a run that begins is to write its checkpoints where those of another are.
        """
        if self.config.checkpoint_every is not None and not self.num_epochs and self._checkpoints():
            raise InvalidArgument(
                f"{self.folder} has checkpoints of an earlier run: resume() it, or give this one another folder"
            )
        began, before = time.perf_counter(), self.seconds
        stopped_by = "max_epochs"
        total = self.config.max_epochs * self.config.steps_per_epoch
        try:
            with Progress(total, self.num_steps, self.config.shows_progress) as self._progress:
                while self.num_epochs < self.config.max_epochs and not self.is_stopped:
                    self._epoch()
                    self.seconds = before + time.perf_counter() - began
            if self.is_stopped:
                stopped_by = "stop_fn"
        except KeyboardInterrupt:
            stopped_by = "interrupt"
        finally:  # also where a hook raises
            self.seconds = before + time.perf_counter() - began
            self.logger.flush()
            if self.ledger is not None:
                self.ledger.close()
        counts = (self.num_epochs, self.num_steps, self.num_updates)
        return TrainResult(*counts, self.best_score, self.best_epoch, self.last_test, self.seconds, stopped_by)

    def stop(self) -> None:
        """End the run with the epoch that this update is of, which ends now."""
        self.is_stopped = True

    def step(self) -> int:
        """One collection and the updates that it pays for, of which an epoch has many; how many steps that was."""
        before = self.num_steps
        self._collect_and_update()
        return self.num_steps - before

    def _epoch(self) -> None:
        goal = self.num_steps + self.config.steps_per_epoch
        self._progress.begin(self.num_epochs + 1, self.config.max_epochs)
        while self.num_steps < goal and not self.is_stopped:
            self._progress.add(self.step())
        self.num_epochs += 1
        self._test()
        self._tell("on_epoch")
        if self.config.checkpoint_every is not None and self.num_epochs % self.config.checkpoint_every == 0:
            self.save()

    def _update(self, metrics: dict[str, float], num_updates: int = 1) -> None:
        """Count and tell of updates."""
        self.num_updates += num_updates
        self.logger.log("update", {"num_updates": self.num_updates, **metrics}, self.num_steps)
        self._progress.note(metrics)
        self._tell("on_update", metrics)

    def _note(self, batch: Mapping[str, Any]) -> None:
        """Note in the ledger what an update has learned from."""
        if self.ledger is not None:
            algorithm = self.algorithm
            rates = {name: optimizer.learning_rate for name, optimizer in algorithm.optimizers.items()}
            settings = self._identity()
            weights = map(bytes_of, algorithm.policy.state_dict().values())
            self.ledger.note(algorithm.num_updates, batch, weights=weights, settings=settings | {"rates": rates})

    def _sampled(self, stats: CollectStats) -> None:
        """Tell of what was sampled."""
        metrics = stats.as_dict()
        self.logger.log("train", metrics, self.num_steps)
        self._progress.note(metrics)

    def _test(self) -> None:
        if not self.config.num_test_episodes:
            return
        evaluation = self.test(independent_seed(self.config.test_seed, self.num_epochs))
        if evaluation is None:
            return
        self.last_test = evaluation
        self.logger.log("test", evaluation.as_dict(), self.num_steps)
        self._progress.note(evaluation.as_dict(), "test")
        self._tell("on_test", evaluation)
        if evaluation.mean_return > self.best_score:
            self.best_score, self.best_epoch = evaluation.mean_return, self.num_epochs
            if self.save_best_fn is not None:
                self.save_best_fn(self.algorithm)
        if self.stop_fn is not None and self.stop_fn(evaluation.mean_return):
            self.stop()

    def _tell(self, name: str, *told: Any) -> None:
        for hook in self.hooks:
            method = getattr(hook, name, None)
            if method is not None:
                method(self, *told)

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def save(self) -> Path:
        """Write a checkpoint, and begin new episodes, as a resumed run does.

        A checkpoint in the middle of an epoch begins a new epoch, so that the run differs from one without it.

        Raises:
            InvalidArgument: the trainer has no folder.
        """
        if self.folder is None:
            raise InvalidArgument("save: this trainer was made without a folder")
        self.logger.flush()  # before the checkpoint: rows that come after it are written again
        if self.ledger is not None:
            self.ledger.flush(fsync=True)  # as what comes after it is learned again
        state = self._state()
        path = self._checkpoint_path()
        save_checkpoint(path, state)
        for old in [one for one in self._checkpoints() if one.name <= path.name][:-_KEPT]:
            old.unlink()
        self._set_states(state)
        return path

    def _checkpoint_path(self) -> Path:
        """Return the path of this epoch's checkpoint."""
        return Path(self.folder or "") / f"checkpoint-{self.num_epochs:06d}.pt"

    def save_epoch(self) -> None:
        """Write a checkpoint if the last epoch has none."""
        if not self._checkpoint_path().exists():
            self.save()

    def _checkpoints(self) -> list[Path]:
        return [] if self.folder is None else sorted(self.folder.glob("checkpoint-*.pt"))

    def resume(self, allow: Iterable[str] = ()) -> bool:
        """Continue from the newest readable checkpoint of the folder; return False if there are no checkpoints.

        A resumed run must have the settings of the run that wrote the checkpoint:

        | setting | may change |
        |---|---|
        | `trainer.max_epochs`, `trainer.shows_progress` | always |
        | other settings of the trainer's and the algorithm's configuration (such as `trainer.steps_per_collect`,
          `algorithm.learning_rate`), `environment`, `num_envs` | if named in `allow` |
        | kind of trainer, algorithm and policy; the policy's networks and pipelines | never |

        A learning rate that may change becomes the new base rate, and a schedule of it keeps its position.

        Args:
            allow: names of settings that may differ from the checkpoint's.

        Raises:
            StateMismatch: a setting differs that may not; the error names it.
            UnknownKey: `allow` has a name that is not a setting, or may not change.
            UnreadableData: there are checkpoints, and all of them are damaged.
        """
        found = newest_checkpoint(self._checkpoints())
        if found is not None:
            self._go_on_from(*found, allow)
        return found is not None

    def load(self, path: str | Path, allow: Iterable[str] = ()) -> None:
        """Continue from the checkpoint at `path`. Arguments and errors are those of `resume` and `load_checkpoint`."""
        self._go_on_from(Path(path), load_checkpoint(Path(path)), allow)

    def _go_on_from(self, path: Path, state: Mapping[str, Any], allow: Iterable[str] = ()) -> None:
        self._check_pipelines(state.get("fingerprint"))
        changed = changed_settings(path, state["identity"], self._identity(), set(allow))
        rates = {name: optimizer.base_learning_rate for name, optimizer in self.algorithm.optimizers.items()}
        try:
            self.algorithm.load_state_dict(state["algorithm"])
        except RuntimeError as error:
            raise StateMismatch(f"{path} is of other networks: {error}") from error
        if any(name.endswith("learning_rate") for name in changed):
            self.algorithm.set_learning_rates(rates)
        self._set_states(state)
        for name, value in state["counts"].items():
            setattr(self, name, value)
        self.logger.resume(self.num_steps)
        self.logger.set_state(state.get("logger", {}))

    def _check_pipelines(self, fingerprint: dict[str, Any] | None) -> None:
        """Raise StateMismatch where a policy of these pipelines' fingerprint may not act in this trainer's."""
        policy = self.algorithm.policy
        for part in self._parts().values():
            if isinstance(part, (SingleAgentEnvRunner, GroupRunner)):
                check_fingerprint(policy, fingerprint_of(part.env_to_module, part.module_to_env), fingerprint)
        stamp(policy, fingerprint)

    def _identity(self) -> dict[str, Any]:
        """Return the settings of the run by name, as plain values."""
        settings = settings_of(self.config, self.algorithm, getattr(self, "runner", None))
        return {"trainer": type(self).__name__, **settings}

    def _state(self) -> dict[str, Any]:
        names = ("num_epochs", "num_steps", "num_updates", "best_score", "best_epoch", "seconds", "is_stopped")
        return {
            "identity": self._identity(),
            "algorithm": dict(self.algorithm.state_dict()),
            "fingerprint": stamped(self.algorithm.policy),
            "counts": {name: getattr(self, name) for name in names},
            "parts": {name: part.get_state() for name, part in self._parts().items()},
            "torch": torch.get_rng_state(),
            "logger": self.logger.get_state(),
        }

    def _set_states(self, state: Mapping[str, Any]) -> None:
        """Let runners and buffers go on from a state; the run that wrote it does so too."""
        for name, part in self._parts().items():
            part.set_state(state["parts"][name])
        torch.set_rng_state(state["torch"])


def bytes_of(values: Any) -> np.ndarray:
    """Return the bytes of a tensor, uint8 [n]; of another value, of its text."""
    if not isinstance(values, torch.Tensor):
        return np.frombuffer(repr(values).encode(), np.uint8)
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def check_acts(runner: SingleAgentEnvRunner | GroupRunner, algorithm: Algorithm) -> None:
    """Raise InvalidArgument if the runner does not act with the algorithm's policy."""
    if isinstance(runner, MultiAgentEnvRunner):
        raise InvalidArgument("trainers take a SingleAgentEnvRunner; train a MultiAgentAlgorithm with its update()")
    acting = runner.policy
    if acting is None or (isinstance(acting, Policy) and acting is not algorithm.policy):
        who = "no policy" if acting is None else f"another {type(acting).__name__}"
        raise InvalidArgument(f"the runner acts with {who}, not with the algorithm's: give it algorithm.policy")
