"""`Trainer`: base class of trainers, which sample, update the policy, test it, log metrics and write checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch

from connectors.actor import Actor
from episode_learners.algorithms.algorithm import Algorithm
from episode_learners.loggers import Logger
from episode_learners.multi_agent import MultiAgentAlgorithm, learners_of
from episode_learners.policies.policy import Policy
from episode_learners.trainers.checkpoint import load_checkpoint, newest_checkpoint
from episode_learners.trainers.config import TrainerConfig, TrainResult
from episode_learners.trainers.modules import (
    fingerprints_of,
    flat_metrics,
    match_modules,
    modules_of,
    policies_of,
    restore_fingerprints,
)
from episode_learners.trainers.policy_tests import PolicyTests
from episode_learners.trainers.progress import Progress
from episode_learners.trainers.rllib_callbacks import as_trainer_hook
from episode_learners.trainers.run_counts import RunCounts
from episode_learners.trainers.run_folder import RunFolder
from episode_learners.trainers.run_settings import SettingsHashes, changed_settings, settings_of
from episode_runners import MultiAgentEnvRunner
from episode_runners.evaluation import Evaluation
from episode_runners.multi_agent_stats import MultiAgentCollectStats
from episode_runners.seeds import independent_seed
from episode_runners.stats import CollectStats
from episodes.data_types import ModuleID
from episodes.errors import InvalidArgument, StateMismatch
from episodes.storage.files import local_path
from episodes.storage.ledger import Ledger
from episodes.storage.runs import write_status

if TYPE_CHECKING:
    pass

__all__ = ["Trainer", "bytes_of", "check_acts"]

WINDOW = 100  # episodes of the mean return that is logged as "mean_return_100"

Config = TypeVar("Config", bound=TrainerConfig)


class Trainer(ABC, Generic[Config]):
    """Base class of trainers. `run()` repeats epochs of sampling, policy updates and tests, and writes logs and
    checkpoints.

    An epoch ends with a test, a call of `save_best_fn` if the test was the best so far, and a checkpoint. Environments
    cannot be saved. Therefore new episodes begin after each checkpoint, in a run that continues as in one that is
    resumed, and both are equal, number for number.

    With a `MultiAgentAlgorithm`, the runner is a `MultiAgentEnvRunner`. Metrics of a module are logged as
    "<metric>/module/<module>". Modules may be added, removed, frozen and unfrozen during the run.

    Args:
        algorithm: the algorithm that learns, of one policy or of several modules.
        config: settings.
        stop_fn: called with the mean return of each test; the run ends if it returns True.
        save_best_fn: called with the algorithm after each test that was better than all before.
        logger: the logger of all metrics.
        hooks: objects with any of `on_start(trainer)`, `on_collect(trainer, episodes)`, `on_update(trainer, metrics)`,
            `on_test_start(trainer)`, `on_test(trainer, evaluation)` and `on_epoch(trainer)`, or callbacks
            (`RLlibCallback`). Each may call `trainer.stop()`. The state of a hook with `get_state` and `set_state` is
            part of checkpoints. An `OffPolicyTrainer` calls `on_collect` only for a `MultiAgentAlgorithm`.
        folder: the folder of checkpoints.
        ledger: the ledger (`episodes.storage.ledger`) that records what each update learned from; or its path.
        test_env: an environment for tests, as `evaluate` takes it, instead of the runner's.
        evaluate_fn: function of the number of episodes and a seed that returns the `Evaluation` of a test, instead of
            episodes of the runner's policy.
        module_fn: function of a module id that returns the module's algorithm, or a policy or actor that only acts. A
            resumed run calls it for modules that were added during the run.

    Raises:
        InvalidArgument: arguments contradict each other, for example checkpoints without a folder, or `stop_fn` without
            tests.
    """

    runner: Any = None  # the runner whose policy is tested

    def __init__(
        self,
        algorithm: Algorithm | MultiAgentAlgorithm,
        config: Config,
        *,
        stop_fn: Callable[[float], bool] | None = None,
        save_best_fn: Callable[[Any], object] | None = None,
        logger: Logger | None = None,
        hooks: Sequence[Any] = (),
        folder: str | Path | None = None,
        ledger: Ledger | str | Path | None = None,
        test_env: object = None,
        evaluate_fn: Callable[[int, int], Evaluation] | None = None,
        module_fn: Callable[[Any], Algorithm | Policy | Actor] | None = None,
    ) -> None:
        if config.checkpoint_every is not None and folder is None:
            raise InvalidArgument("checkpoint_every is given, but no folder to write checkpoints to")
        if not config.num_test_episodes and (stop_fn is not None or save_best_fn is not None):
            raise InvalidArgument("stop_fn and save_best_fn are asked after tests, and num_test_episodes is 0")
        self.tests = PolicyTests(test_env, evaluate_fn)
        self.algorithm, self.config = algorithm, config
        self.stop_fn, self.save_best_fn = stop_fn, save_best_fn
        self.module_fn = module_fn
        self.logger = logger or Logger()
        self.hooks = [as_trainer_hook(hook) for hook in hooks]
        self.ledger = Ledger(ledger) if isinstance(ledger, (str, Path)) else ledger
        self.counts = RunCounts()
        self._folder = RunFolder(folder)
        self._newest_returns: deque[float] = deque(maxlen=WINDOW)
        self._has_started = False
        self._settings_hashes = SettingsHashes()
        self._acting = policies_of(algorithm)  # the policies that the runner acts with
        self._progress = Progress(0, 0, is_shown=False)

    @property
    def num_epochs(self) -> int:
        """Epochs of the whole run so far."""
        return self.counts.num_epochs

    @property
    def num_steps(self) -> int:
        """Environment steps of the whole run so far. Offline: gradient steps, or steps of data."""
        return self.counts.num_steps

    @property
    def num_updates(self) -> int:
        """Updates of the whole run so far."""
        return self.counts.num_updates

    @property
    def num_tests(self) -> int:
        """Tests of the whole run so far."""
        return self.counts.num_tests

    @property
    def best_score(self) -> float:
        """Highest mean return of a test; -inf without tests."""
        return self.counts.best_score

    @property
    def best_epoch(self) -> int:
        """Epoch of the best test."""
        return self.counts.best_epoch

    @property
    def last_score(self) -> float | None:
        """Mean return of the last test of the whole run; None without tests."""
        return self.counts.last_score

    @property
    def last_test(self) -> Evaluation | None:
        """Last test of this process, or None."""
        return self.tests.last

    @property
    def seconds(self) -> float:
        """Duration of the whole run in seconds, without pauses before it was resumed."""
        return self.counts.seconds

    @property
    def is_stopped(self) -> bool:
        """Whether the run ends after the current update."""
        return self.counts.is_stopped

    @is_stopped.setter
    def is_stopped(self, is_stopped: bool) -> None:
        self.counts.is_stopped = is_stopped

    @property
    def folder(self) -> Path | None:
        """The folder of checkpoints, or None."""
        return self._folder.path

    @abstractmethod
    def _collect_and_update(self) -> None:
        """Sample or load data once, add their steps to `counts.num_steps`, and update the policy."""

    def test(self, seed: int) -> Evaluation | None:
        """Evaluate the policy on `num_test_episodes` complete episodes, and return their statistics. Return None if
        there is no environment.
        """
        return self.tests.evaluate(self.runner, self.config.num_test_episodes, seed)

    @abstractmethod
    def _stateful_parts(self) -> dict[str, Any]:
        """Return, by name, the objects such as runners and buffers whose states checkpoints store in addition to the
        algorithm.
        """

    # --- running ---------------------------------------------------------------------------------------------------

    def run(self) -> TrainResult:
        """Train until `max_epochs` is reached, `stop_fn` returns True or Ctrl-C is pressed, and return the result.
        Another call continues the run.

        Raises:
            InvalidArgument: a new run has a folder with checkpoints of another run, or another trainer, of this or
                another process, trains in the folder now.
        """
        with self._folder.owned():
            return self._run()

    def _run(self) -> TrainResult:
        """Train until the run ends, and return the result. The folder belongs to this trainer."""
        if self.config.checkpoint_every is not None and not self.num_epochs and self._folder.checkpoints():
            raise InvalidArgument(
                f"{self.folder} has checkpoints of an earlier run: call resume(), or give this trainer another folder"
            )
        self.counts.begin()
        stopped_by = "max_epochs"
        self._write_status(None)
        total = self.config.max_epochs * self.config.steps_per_epoch
        try:
            with Progress(total, self.num_steps, self.config.shows_progress) as self._progress:
                while self.num_epochs < self.config.max_epochs and not self.is_stopped:
                    self._run_epoch()
                    self.counts.read_clock()
                    self._write_status(None)
            if self.is_stopped:
                stopped_by = "stop_fn"
        except KeyboardInterrupt:
            stopped_by = "interrupt"
        except BaseException as error:
            stopped_by = f"{type(error).__name__}: {error}"
            raise
        finally:  # also where a hook raises
            self.counts.read_clock()
            self.logger.flush()
            self.logger.release()
            if self.ledger is not None:
                self.ledger.close()
            self._write_status(stopped_by)
        counts = (self.num_epochs, self.num_steps, self.num_updates)
        return TrainResult(*counts, self.best_score, self.best_epoch, self.last_test, self.seconds, stopped_by)

    def _write_status(self, stopped_by: str | None) -> None:
        """Write the settings and results so far into the folder, for `episodes runs`."""
        if self.folder is not None:
            names = ("num_epochs", "num_steps", "num_updates", "best_score", "best_epoch", "last_score", "seconds")
            numbers = {name: getattr(self.counts, name) for name in names}
            write_status(self.folder, settings=self._run_signature(), stopped_by=stopped_by, **numbers)

    def stop(self) -> None:
        """End the run after the current update. Hooks call this method."""
        self.counts.is_stopped = True

    def step(self) -> int:
        """Collect data and update the policy once (no update during warmup), test the policy if a test is due, and
        return the number of steps added.
        """
        before = self.num_steps
        if not self._has_started:
            self._has_started = True
            self._call_hooks("on_start")
        self._match_runner()
        if self.ledger is not None:
            for module_id, learner in learners_of(self.algorithm).items():
                learner.witness = partial(self._write_ledger, module_id, learner)
                learner.measures_rows = self.ledger.measures_rows
        self._collect_and_update()
        every = self.config.test_every
        if every is not None and before // every < self.num_steps // every:
            self._test()
        return self.num_steps - before

    def _match_runner(self) -> None:
        """Make the runner act with the algorithm's current modules, after modules were added, replaced or removed."""
        if not isinstance(self.runner, MultiAgentEnvRunner):
            return
        policies = policies_of(self.algorithm)
        for module_id in self._acting.keys() - policies.keys():
            self.runner.remove_module(module_id)
        for module_id, learner in learners_of(self.algorithm).items():
            if policies[module_id] is not self._acting.get(module_id):
                self.runner.set_module(module_id, learner.actor or learner.policy)
        self._acting = policies

    def begin_new_episodes(self) -> None:
        """Make the runner begin new episodes with its next sample, with seeds that follow from its state."""
        if self.runner is not None:
            self.runner.set_state(self.runner.get_state())

    def _run_epoch(self) -> None:
        """Run one epoch: collect and update until enough steps are done, then test, call the `on_epoch` hooks, and
        write a checkpoint if one is due.
        """
        goal = self.num_steps + self.config.steps_per_epoch
        self._settings_hashes.clear()
        self._progress.begin(self.num_epochs + 1, self.config.max_epochs)
        while self.num_steps < goal and not self.is_stopped:
            self._progress.add(self.step())
        self.counts.num_epochs += 1
        if self.config.test_every is None:
            self._test()
        self._call_hooks("on_epoch")
        self.counts.read_clock()  # of the checkpoint, so that a resumed run continues the time
        if self.config.checkpoint_every is not None and self.num_epochs % self.config.checkpoint_every == 0:
            self.save()

    def _update(self, metrics: dict[Any, Any], num_updates: int = 1) -> None:
        """Count `num_updates` completed updates, log their metrics, and call the `on_update` hooks."""
        metrics = flat_metrics(metrics)
        self.counts.num_updates += num_updates
        counts = {"num_updates": self.num_updates, "run_seconds": self.counts.read_clock()}
        self.logger.log("update", {**counts, **metrics}, self.num_steps)
        self._progress.note(metrics)
        self._call_hooks("on_update", metrics)

    def _write_ledger(self, module_id: ModuleID, learner: Algorithm, batch: Mapping[str, Any]) -> None:
        """Record in the run's ledger, if there is one, which steps an update learned from, with the resulting weights
        and the settings of the run.
        """
        if self.ledger is not None:
            learners = learners_of(self.algorithm).values()
            configs = [part for each in learners for part in (each.policy, getattr(each, "config", None))]
            parts = [self.config, self.algorithm, self.runner, *configs]
            settings = self._settings_hashes.of(module_id, learner, parts, self._run_signature)
            weights = map(bytes_of, learner.policy.state_dict().values())
            module = "" if self.algorithm is learner else str(module_id)
            measured = learner.row_measurements if self.ledger.measures_rows else None
            facts = {"settings": settings, "module": module, "measured": measured}
            workers = getattr(self.runner, "workers", None)  # of groups
            self.ledger.note(learner.num_updates, batch, weights=weights, workers=workers, **facts)

    def _log_sample(self, stats: CollectStats | MultiAgentCollectStats) -> None:
        """Log the statistics of sampled episodes in the scope "train", and display them with the progress.

        "mean_return_100" is the mean return of the newest 100 episodes of the run, as far as they were logged.
        """
        self._newest_returns.extend(stats.returns.tolist())
        newest = float(np.mean(self._newest_returns)) if self._newest_returns else float("nan")
        metrics = {**stats.as_dict(), "mean_return_100": newest}
        self.logger.log("train", metrics, self.num_steps)
        self._progress.note(metrics)

    def _test(self) -> None:
        """Test the policy, log the result, call the hooks (and `save_best_fn` for a new best score), and stop the run
        if `stop_fn` returns True.
        """
        if not self.config.num_test_episodes:
            return
        self._call_hooks("on_test_start")
        evaluation = self.test(independent_seed(self.config.test_seed, self.num_tests))
        if evaluation is None:
            return
        counts, score = self.counts, evaluation.mean_return
        counts.num_tests += 1
        self.tests.last, counts.last_score = evaluation, score
        self.logger.log("test", evaluation.as_dict(), self.num_steps)
        self._progress.note(evaluation.as_dict(), "test")
        self._call_hooks("on_test", evaluation)
        if score > counts.best_score:
            self.tests.best = self._acting_state()
            counts.best_score, counts.best_epoch = score, self.num_epochs
            if self.save_best_fn is not None:
                self.save_best_fn(self.algorithm)
        if self.stop_fn is not None and self.stop_fn(score):
            self.stop()

    def _call_hooks(self, name: str, *arguments: object) -> None:
        """Call the method `name` of all hooks that have it, with the trainer and `arguments`. Hooks may change modules,
        so the runner is updated afterwards.
        """
        for hook in self.hooks:
            method = getattr(hook, name, None)
            if method is not None:
                method(self, *arguments)
                self._settings_hashes.clear()  # the hook may have changed them
        self._match_runner()

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def save(self) -> Path:
        """Write a checkpoint of the whole run, and return its path. New episodes begin afterwards, as in a run that is
        resumed from it.

        After a checkpoint in the middle of an epoch a new epoch begins, so the run differs from a run without
        this checkpoint.

        Raises:
            InvalidArgument: the trainer has no folder, or another trainer writes to it now.
        """
        if self.folder is None:
            raise InvalidArgument("save: this trainer has no folder; create it with folder=")
        with self._folder.owned():
            return self._save()

    def _save(self) -> Path:
        """Write a checkpoint into the folder, which belongs to this trainer, and remove old ones."""
        self.logger.flush()  # before the checkpoint: rows that come after it are written again
        if self.ledger is not None:
            self.ledger.flush(fsync=True)  # as what comes after it is learned again
        state = self._state()
        path = self._folder.write_checkpoint(self.num_epochs, state)
        self._set_states(state)
        return path

    def save_epoch(self) -> None:
        """Write a checkpoint of the current epoch, unless there is one already."""
        if not self._folder.checkpoint_of(self.num_epochs).exists():
            self.save()

    def resume(self, allow: Iterable[str] = ()) -> bool:
        """Continue a run from the newest readable checkpoint in the trainer's folder. Return False if the folder has no
        checkpoints.

        Rows of tables after the checkpoint are removed. If a trainer that writes checkpoints was interrupted before its
        first one, all rows are removed, because the run begins again.

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

        If resuming fails, make a new trainer: modules or weights of this one may have changed.

        Raises:
            StateMismatch: a setting differs that may not; the error names it.
            UnknownKey: `allow` has a name that is not a setting, or may not change.
            UnreadableData: there are checkpoints, and all of them are damaged.
            InvalidArgument: another trainer writes to the folder now.
        """
        with self._folder.owned():
            newest = newest_checkpoint(self._folder.checkpoints())
            if newest is not None:
                self._continue_from(*newest, allow)
            elif self.config.checkpoint_every is not None:
                self.logger.resume(self.num_steps)
        return newest is not None

    def load(self, path: str | Path, allow: Iterable[str] = ()) -> None:
        """Continue a run from the checkpoint file `path`. See `resume` for `allow` and which settings must be the same.

        Raises:
            FileNotFoundError: the file does not exist.
            UnreadableData: the file is damaged, or not a checkpoint.
            StateMismatch: a setting differs that may not, or the file has another format.
            UnknownKey: `allow` has a name that is not a setting, or may not change.
        """
        path = local_path(path)
        self._continue_from(path, load_checkpoint(path), allow)

    def _continue_from(self, path: Path, state: Mapping[str, Any], allow: Iterable[str]) -> None:
        """Restore the whole run (modules, weights, counts, runner, buffer, logger) from the state of a checkpoint,
        after a check of its settings.

        Args:
            allow: names of settings that may differ from the checkpoint's.

        Raises:
            StateMismatch: the settings or networks differ from the checkpoint's.
        """
        match_modules(self.algorithm, state.get("modules", []), self.module_fn, path)
        self._match_runner()
        restore_fingerprints(self.algorithm, state["fingerprint"], self.runner)
        changed = changed_settings(path, state["identity"], self._run_signature(), set(allow))
        rates = {name: optimizer.base_learning_rate for name, optimizer in self.algorithm.optimizers.items()}
        try:
            self.algorithm.load_state_dict(state["algorithm"])
        except RuntimeError as error:
            raise StateMismatch(f"{path} belongs to other networks: {error}") from error
        if any("learning_rate" in name for name in changed):
            self.algorithm.set_learning_rates(rates)
        self._set_states(state)
        self.counts.set_state(state["counts"])
        self.tests.best = state.get("best")
        self._newest_returns = deque(state.get("newest_returns", ()), WINDOW)
        self.logger.resume(self.num_steps)
        self.logger.set_state(state.get("logger", {}))

    def restore_best(self) -> None:
        """Give the policies the weights, and the runner's pipelines the statistics, of the best test so far.

        Checkpoints store them, so that a resumed run has them too. Optimizers, buffers and counts stay as they are: the
        policies are for evaluation and export.

        Raises:
            InvalidArgument: there was no test yet, or the checkpoint is of a version that did not store them.
            StateMismatch: a module was removed since the test, and there is no `module_fn`.
        """
        if self.tests.best is None:
            reason = "no test yet" if self.best_score == float("-inf") else "a checkpoint without the best policy"
            raise InvalidArgument(f"restore_best: this run has {reason}; train for at least one epoch with a test")
        best = self.tests.best
        match_modules(self.algorithm, best["modules"], self.module_fn, self.folder or Path("the best test"))
        self._match_runner()
        policies = policies_of(self.algorithm)
        for module_id, weights in best["policies"]:
            policies[module_id].load_state_dict(weights)
        if self.runner is not None:
            self.runner.set_state(deepcopy(best["runner"]))

    def _acting_state(self) -> dict[str, Any]:
        """Return a copy, in host memory, of everything that determines how the policies act."""
        policies = [
            [module_id, {name: _copied(part) for name, part in policy.state_dict().items()}]
            for module_id, policy in policies_of(self.algorithm).items()
        ]
        runner = None if self.runner is None else deepcopy(self.runner.get_state())
        return {"modules": modules_of(self.algorithm), "policies": policies, "runner": runner}

    def _run_signature(self) -> dict[str, Any]:
        """Return the settings of the run by name, as plain values. A resumed run must have the same."""
        return {"trainer": type(self).__name__, **settings_of(self.config, self.algorithm, self.runner)}

    def _state(self) -> dict[str, Any]:
        """Return everything that a checkpoint stores: settings, weights, modules, counts, and the states of runner,
        buffer, hooks and logger.
        """
        return {
            "identity": self._run_signature(),
            "algorithm": dict(self.algorithm.state_dict()),
            "modules": modules_of(self.algorithm),
            "fingerprint": fingerprints_of(self.algorithm),
            "counts": self.counts.get_state(),
            "best": self.tests.best,
            "newest_returns": list(self._newest_returns),
            "parts": {name: part.get_state() for name, part in self._all_parts().items()},
            "torch": torch.get_rng_state(),
            "logger": self.logger.get_state(),
        }

    def _all_parts(self) -> dict[str, Any]:
        """Return, by name, all objects whose states checkpoints store in addition to the algorithm: runners, buffers
        and hooks.
        """
        stateful = [hook for hook in self.hooks if hasattr(hook, "get_state") and hasattr(hook, "set_state")]
        return self._stateful_parts() | {f"{type(hook).__name__} {i}": hook for i, hook in enumerate(stateful)}

    def _set_states(self, state: Mapping[str, Any]) -> None:
        """Restore the states of runner, buffer and hooks from a checkpoint. The run that wrote the checkpoint also does
        this, so that it continues like a resumed run.
        """
        for name, part in self._all_parts().items():
            if name in self._stateful_parts() or name in state["parts"]:
                part.set_state(state["parts"][name])
        torch.set_rng_state(state["torch"])


def _copied(value: object) -> Any:
    """Return a copy of a value of a state, in host memory."""
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else deepcopy(value)


def bytes_of(values: object) -> np.ndarray:
    """Return the bytes of a tensor, or of the `repr` of another value, as an array uint8 [n], for a hash of weights."""
    if not isinstance(values, torch.Tensor):
        return np.frombuffer(repr(values).encode(), np.uint8)
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def check_acts(runner: Any, algorithm: Algorithm | MultiAgentAlgorithm) -> None:
    """Raise `InvalidArgument` if a runner does not act with the policies that an algorithm trains."""
    if isinstance(algorithm, MultiAgentAlgorithm) != isinstance(runner, MultiAgentEnvRunner):
        raise InvalidArgument(
            f"{type(algorithm).__name__} with a {type(runner).__name__}: a MultiAgentAlgorithm needs a "
            "MultiAgentEnvRunner, other algorithms a SingleAgentEnvRunner or a GroupRunner"
        )
    if isinstance(algorithm, MultiAgentAlgorithm):
        policies = runner.policies or {}
        wrong = [m for m, policy in algorithm.policies.items() if m in policies and policies[m] is not policy]
        missing = [m for m in algorithm.train_ids if m not in policies]
        if wrong or missing:
            raise InvalidArgument(
                f"the runner acts with other policies than the algorithm's for modules {[*wrong, *missing]}: give it "
                "algorithm.policies"
            )
        return
    acting = runner.policy
    if acting is None or (isinstance(acting, Policy) and acting is not algorithm.policy):
        description = "no policy" if acting is None else f"another {type(acting).__name__}"
        raise InvalidArgument(f"the runner acts with {description}, not with the algorithm's: give it algorithm.policy")
