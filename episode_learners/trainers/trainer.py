"""`Trainer`: collects, updates, tests, logs and keeps checkpoints until it is time to stop."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from connectors.acting import fingerprint_of
from connectors.fingerprint import check_fingerprint, stamp, stamped
from episode_learners.algorithms.algorithm import Algorithm
from episode_learners.algorithms.config_checks import check_numbers
from episode_learners.loggers import Logger
from episode_learners.policies.policy import Policy
from episode_learners.trainers.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from episode_learners.trainers.progress import Progress
from episode_runners import CollectStats, Evaluation, GroupRunner, SingleAgentEnvRunner
from episodes.errors import InvalidArgument, StateMismatch
from episodes.storage.ledger import Ledger

__all__ = ["TrainResult", "Trainer", "TrainerConfig"]

_MAY_DIFFER = ("max_epochs", "shows_progress")  # from the run that is resumed: they change nothing of what was
_KEPT = 2  # checkpoints: the newest, and the one before it


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """How long a run is, and how often it is tested and kept."""

    max_epochs: int = 100
    steps_per_epoch: int = 10_000  # at least so many environment steps (offline: gradient steps)
    num_test_episodes: int = 20  # after each epoch; 0: no tests
    test_seed: int = 1_000_000  # of the tests; each epoch's differ
    checkpoint_every: int | None = None  # epochs; None: no checkpoints
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
    """What came of a run."""

    num_epochs: int
    num_steps: int  # of the environments; offline, gradient steps
    num_updates: int
    best_score: float  # the best mean return of a test; -inf without tests
    best_epoch: int
    last_test: Evaluation | None
    seconds: float
    stopped_by: str  # "max_epochs", "stop_fn" (or a call of `stop`) or "interrupt"


class Trainer(ABC, Generic[Config]):
    """An algorithm and where it learns from; `run()` goes through epochs of collecting, updating and testing.

    An epoch ends with a test, then the best policy so far is told of, then a checkpoint is written. Environments cannot
    be saved: after each checkpoint new episodes begin, with seeds that depend on the steps so far, in the run that goes
    on as in one that is resumed. So both go on alike, number for number.

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
            config = asdict(self.config)
            settings = self._identity() | {name: config[name] for name in config if name not in _MAY_DIFFER}
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
        evaluation = self.test(self.config.test_seed + self.num_epochs)
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
        """Write a checkpoint of everything, and begin new episodes, as a run does that is resumed from it.

        Raises:
            InvalidArgument: there is no folder to write it to.
        """
        if self.folder is None:
            raise InvalidArgument("save: this trainer was made without a folder")
        self.logger.flush()  # before the checkpoint: rows that come after it are written again
        if self.ledger is not None:
            self.ledger.flush(fsync=True)  # as what comes after it is learned again
        state = self._state()
        path = self.folder / f"checkpoint-{self.num_epochs:06d}.pt"
        save_checkpoint(path, state)
        for old in [one for one in self._checkpoints() if one.name <= path.name][:-_KEPT]:
            old.unlink()
        self._set_states(state)
        return path

    def _checkpoints(self) -> list[Path]:
        return [] if self.folder is None else sorted(self.folder.glob("checkpoint-*.pt"))

    def resume(self) -> bool:
        """Go on from the newest readable checkpoint of the folder; False where there are no checkpoints.

        Raises:
            StateMismatch: it is of another version, another algorithm, other numbers, or other networks.
            UnreadableData: there are checkpoints, and all of them are damaged.
        """
        found = newest_checkpoint(self._checkpoints())
        if found is not None:
            self._go_on_from(*found)
        return found is not None

    def load(self, path: str | Path) -> None:
        """Go on from a checkpoint. Errors: those of `load_checkpoint`, and StateMismatch as `resume` says."""
        self._go_on_from(Path(path), load_checkpoint(Path(path)))

    def _go_on_from(self, path: Path, state: Mapping[str, Any]) -> None:
        self._check_pipelines(state.get("fingerprint"))
        mine = self._identity()
        for name, value in mine.items():
            if state["identity"].get(name) != value:
                raise StateMismatch(
                    f"{path} has {name} {state['identity'].get(name)!r}, this trainer has {value!r}: resume with the "
                    "trainer, algorithm and numbers that the run was begun with"
                )
        try:
            self.algorithm.load_state_dict(state["algorithm"])
        except RuntimeError as error:
            raise StateMismatch(f"{path} is of other networks: {error}") from error
        self._set_states(state)
        for name, value in state["counts"].items():
            setattr(self, name, value)
        self.logger.resume(self.num_steps)

    def _check_pipelines(self, fingerprint: dict[str, Any] | None) -> None:
        """Raise StateMismatch where a policy of these pipelines' fingerprint may not act in this trainer's."""
        policy = self.algorithm.policy
        for part in self._parts().values():
            if isinstance(part, (SingleAgentEnvRunner, GroupRunner)):
                check_fingerprint(policy, fingerprint_of(part.env_to_module, part.module_to_env), fingerprint)
        stamp(policy, fingerprint)

    def _identity(self) -> dict[str, Any]:
        """What must be the same in a run that is resumed."""
        numbers = getattr(self.algorithm, "config", None)
        return {
            "trainer": type(self).__name__,
            "algorithm": type(self.algorithm).__name__,
            "numbers": {} if numbers is None else {name: str(value) for name, value in asdict(numbers).items()},
        }

    def _state(self) -> dict[str, Any]:
        names = ("num_epochs", "num_steps", "num_updates", "best_score", "best_epoch", "seconds", "is_stopped")
        return {
            "identity": self._identity(),
            "algorithm": dict(self.algorithm.state_dict()),
            "fingerprint": stamped(self.algorithm.policy),
            "counts": {name: getattr(self, name) for name in names},
            "parts": {name: part.get_state() for name, part in self._parts().items()},
            "torch": torch.get_rng_state(),
        }

    def _set_states(self, state: Mapping[str, Any]) -> None:
        """Let runners and buffers go on from a state; the run that wrote it does so too."""
        for name, part in self._parts().items():
            part.set_state(state["parts"][name])
        torch.set_rng_state(state["torch"])


def bytes_of(values: Any) -> np.ndarray:
    """The bytes of a tensor, of any dtype, on any device; of what is none, of its text."""
    if not isinstance(values, torch.Tensor):
        return np.frombuffer(repr(values).encode(), np.uint8)
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def check_acts(runner: SingleAgentEnvRunner | GroupRunner, algorithm: Algorithm) -> None:
    """Raise InvalidArgument where what is sampled is not of the policy that learns."""
    acting = runner.policy
    if acting is None or (isinstance(acting, Policy) and acting is not algorithm.policy):
        who = "no policy" if acting is None else f"another {type(acting).__name__}"
        raise InvalidArgument(f"the runner acts with {who}, not with the algorithm's: give it algorithm.policy")
