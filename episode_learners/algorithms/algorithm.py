"""`Algorithm`, the base class of all learning algorithms, and functions that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from math import isfinite
from typing import Any, Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR, LRScheduler
from torch.optim.optimizer import Optimizer

from connectors.actor import Actor
from connectors.pipeline import ConnectorPipeline
from connectors.tensors import NumpyToTensor
from episode_learners.algorithms.action_checks import check_actions
from episode_learners.algorithms.flat_optimizer import FlatOptimizer, Snapshot
from episode_learners.algorithms.learning_processes import LearningProcesses
from episode_learners.algorithms.minibatches import shuffled
from episode_learners.algorithms.row_measurements import RowMeasurements
from episode_learners.algorithms.target_network import TargetNetwork
from episode_learners.policies.policy import Policy
from episodes.batch.origin import Origin
from episodes.batch.train_batch import TrainBatch
from episodes.columns import Columns
from episodes.errors import EpisodeStateError, InvalidArgument, StateMismatch
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.nested import leaves
from episodes.tracks.policy_box import env_space_of

__all__ = ["Algorithm", "Measured", "linear_decay"]

MakeScheduler = Callable[[Optimizer], LRScheduler]
Measured = dict[str, Tensor]  # scalars by name, on the device, outside autograd


class Algorithm(nn.Module, ABC):
    """Base class of learning algorithms. An algorithm consists of a policy and its optimizers, and improves the policy
    by updates from episodes or replay.

    `update(episodes)` learns from episodes, and `update_from(replay)` of some algorithms from replay. Both call
    `learn(batch)`, which takes gradient steps on minibatches. A gradient step of one optimizer is `backward`, which
    adds the gradient of its loss, and then `step`. Between the two, gradients can be accumulated over minibatches,
    scaled, or averaged over processes: `algorithm.optimizers[name].gradient` is one tensor.

    Measurements stay on the device until the update ends. If losses or gradients are not finite, the update is rolled
    back: weights and optimizers are as before.

    `state_dict()` has everything that a resumed run needs: weights, optimizers, schedulers, random state, counts.

    A subclass implements `preprocess`, `minibatches` and `loss`. If its loss reads columns of the train batch that its
    base class does not read, it lists them in the class attribute `extra_columns`.

    Args:
        policy: the policy, on its device.
        optimizers: optimizers by name, in the order of their steps.
        targets: networks by name, of which `algorithm.targets[name]` is a slow copy.
        scheduler: function that returns the learning rate schedule of an optimizer. A schedule advances once per
            update.
        seed: seed of the algorithm's random numbers.
        actor: the actor of the policy, if one was given in its place.

    Attributes:
        processes: the processes with which the algorithm learns, set by `data_parallel`; None at first.
        measures_rows: whether updates measure each row of their train batch, for `explain_update`. False at first.
    """

    stored_outputs: tuple[str, ...] = ()  # extra model outputs that a replay buffer must store
    extra_columns: tuple[str, ...] = ()  # further columns of the train batch that reach `loss`
    processes: LearningProcesses | None = None

    def __init__(
        self,
        policy: Policy,
        optimizers: Mapping[str, FlatOptimizer],
        *,
        targets: Mapping[str, nn.Module] | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int = 0,
        actor: Actor | None = None,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.actor = actor
        self.optimizers = dict(optimizers)
        self.schedulers: dict[str, LRScheduler] = {}
        if scheduler is not None:
            self.schedulers = {name: scheduler(flat.optimizer) for name, flat in self.optimizers.items()}
        self.targets = nn.ModuleDict({name: TargetNetwork(module) for name, module in (targets or {}).items()})
        self.generator = torch.Generator().manual_seed(seed)
        self.num_updates = 0
        self._to_tensors = NumpyToTensor()  # of samples; for CUDA it keeps a page-locked buffer
        self.witness: Callable[[Mapping[str, Any]], object] | None = None  # is called with what was learned from
        self.measures_rows = False
        self._rows = RowMeasurements()

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        """Move or convert the parameters, as `to(device)` of torch does, and make the algorithm create its later
        batches on the same device.
        """
        moved = super()._apply(*args, **kwargs)
        pipeline = getattr(self, "pipeline", None)
        if isinstance(pipeline, ConnectorPipeline) and NumpyToTensor in pipeline:
            pipeline[NumpyToTensor].to(self.policy.device)
        if self.actor is not None:
            self.actor.to(self.policy.device)
        return moved

    @abstractmethod
    def preprocess(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
        """Return a train batch made of `episodes`: a dict of tensors [B, ...], such as "obs" and "actions", on the
        policy's device.
        """

    @abstractmethod
    def minibatches(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the minibatches of a train batch. The algorithm takes one gradient step on each of them."""

    def shuffled(self, batch: Mapping[str, Any], size: int) -> Iterator[dict[str, Any]]:
        """Yield minibatches of `size` rows that together contain each row of a train batch once, in random order.

        If at most half of `size` rows are left over, they join the last minibatch. Columns that are not tensors are
        left out.
        """
        return shuffled(tensors_of(batch), size, self.generator)

    @abstractmethod
    def loss(self, minibatch: Mapping[str, Any], optimizer: str) -> tuple[Tensor, Measured]:
        """Return the scalar loss of a minibatch that the optimizer named `optimizer` minimizes, and a dict of scalars
        to log.
        """

    def _batch_of_samples(self, columns: Mapping[str, Any]) -> TrainBatch:
        """Convert columns sampled from replay to a train batch of tensors on the device of the parameters. The origin
        (episode and step) of the rows is kept.

        Raises:
            InvalidArgument: a sampled action is not in the policy's action space.
        """
        self._check_actions(columns)
        device = next(iter(self.optimizers.values())).parameters[0].device
        if self._to_tensors.device != device:
            self._to_tensors.to(device)
        return TrainBatch(self._to_tensors(batch=dict(columns)), getattr(columns, "lazy_origin", None))

    def _check_actions(self, batch: Mapping[str, Any]) -> None:
        """Raise `InvalidArgument` if an action of a batch is not in the policy's action space."""
        space = getattr(self.policy, "action_space", None)
        check_actions(batch, space, type(self).__name__, lambda place: _describe_row(place, _origin(batch)))

    def measure_rows(
        self, minibatch: Mapping[str, Any], columns: Mapping[str, Tensor], mask: Tensor | None = None
    ) -> None:
        """Store columns of the rows of a minibatch for `row_measurements_of`, if this update measures rows.

        `loss` calls this method. It keeps references to the tensors, which must not be changed in place.

        Args:
            minibatch: the rows.
            columns: a tensor of n values for each name, the same names in each gradient step.
            mask: bool [B, T], the n steps of sequences that are measured; None: the n rows themselves.
        """
        self._rows.add(minibatch, mask, columns)

    @property
    def row_measurements(self) -> dict[str, np.ndarray]:
        """Measurements of the newest update that measured rows, by name: float32 [B], or [B, T] if rows are sequences,
        in the shape of "loss_mask" for tokens. For example, "loss" is the row's part of the loss, summed over the
        gradient steps.
        """
        return self._rows.newest

    def row_measurements_of(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the measurements [N] of the rows of all gradient steps, given the columns [N] that `measure_rows`
        stored. By default, the columns are the measurements.

        "loss" is not negative, and is summed over the gradient steps of a row. Of a name that begins with "first_", the
        row's first value is taken, and of others the mean.
        """
        return columns

    def _row_facts(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return further facts [B] of the rows of the train batch of this update, which are no measurements."""
        return {}

    def learn(self, batch: Mapping[str, Any]) -> dict[str, float]:
        """Take a gradient step on each minibatch of a train batch, and return the mean of each logged scalar, such as
        the loss.
        """
        return means([self._gradient_step(minibatch) for minibatch in self.minibatches(batch)])

    def _gradient_step(self, minibatch: Mapping[str, Any]) -> Measured:
        """Take one step of every optimizer on a minibatch, and return scalars to log. Raise `_NotFinite` if a loss or
        gradient is NaN or infinite.
        """
        measured: Measured = {}
        for name, optimizer in self.optimizers.items():
            measurements = self.backward(minibatch, name)
            # the gradient of an infinite loss may be bounded
            if optimizer.knows_norm_before_step and not _are_finite(measurements):
                if self.processes is None:
                    optimizer.zero_grad()
                    raise _NotFinite
                optimizer.collect_gradient().fill_(torch.nan)  # so that all processes see it
            measured |= measurements
            measured |= self.step(name)
            if not optimizer.has_moved:
                raise _NotFinite
        self.after_step()
        return measured

    def backward(self, minibatch: Mapping[str, Any], optimizer: str, scale: float = 1.0) -> Measured:
        """Compute the loss of a minibatch, and add the gradient of the loss, times `scale`, to the gradients of the
        parameters.

        Returns:
            The measurements of `loss`, and the loss itself as "loss", or with several optimizers "<optimizer>_loss".
        """
        loss, measured = self.loss(minibatch, optimizer)
        (loss if scale == 1.0 else loss * scale).backward()
        return {"loss" if len(self.optimizers) == 1 else f"{optimizer}_loss": loss.detach(), **measured}

    def step(self, optimizer: str) -> Measured:
        """Take a step of the optimizer named `optimizer` with the accumulated gradients, set these gradients to zero,
        and return their norm in a dict to log.
        """
        norm = self.optimizers[optimizer].step(None if self.processes is None else self.processes.average)
        self._rows.count_step()
        return {"gradient_norm" if len(self.optimizers) == 1 else f"{optimizer}_gradient_norm": norm}

    def after_step(self) -> None:
        """Hook that runs after each gradient step.

        Subclasses override it, for example to update target networks. By default it does nothing.
        """

    def postprocess(self, batch: Mapping[str, Any], metrics: dict[str, float]) -> None:
        """Hook that runs after each update, before it is counted.

        Subclasses override it, for example to adapt a coefficient. By default it does nothing.
        """

    def update(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, float]:
        """Improve the policy by an update from `episodes`, and return metrics such as the loss. The episodes are not
        changed.

        If an update fails, weights, optimizers, counts and random states are as before the update.

        Raises:
            InvalidArgument: a loss or its gradient is not finite, or an action is not in the policy's action space (the
                error names the steps with such values), or the episodes have other spaces than the policy.
        """
        try:
            batch = self.preprocess(episodes)
            self._check_actions(batch)
            return self._updated(batch)
        except RuntimeError as error:  # of torch
            differ = _describe_differing_spaces(episodes, self.policy)
            if not differ:
                raise
            raise InvalidArgument(f"{type(self).__name__}: the episodes have {differ}: {error}") from error

    def _updated(self, batch: dict[str, Any], num_steps: int = 0) -> dict[str, float]:
        """Learn from a train batch, and return metrics such as the loss. If the update fails, the previous weights are
        restored.

        A single step of a single optimizer that checks the gradient norm first needs no snapshot.

        Args:
            batch: the train batch.
            num_steps: the number of gradient steps, if it is known.

        Raises:
            EpisodeStateError: gradients are switched off.
            InvalidArgument: a metric, such as the loss, is NaN or infinite.
            StateMismatch: the copies of the algorithm in other processes differ.
        """
        if not torch.is_grad_enabled():
            raise EpisodeStateError(
                f"{type(self).__name__}: an update inside torch.no_grad() or torch.inference_mode() has no gradients; "
                "update outside of it"
            )
        if self.processes is not None:
            self.processes.check(self)
        checks_gradient_first = (
            num_steps == len(self.optimizers) == 1 and next(iter(self.optimizers.values())).knows_norm_before_step
        )
        before = None if checks_gradient_first else self._snapshot()
        progress, measures = self.get_progress(), self.measures_rows
        try:
            metrics = self.learn(self._rows.begin(batch) if measures else batch)
            if self.processes is not None:
                self.processes.check_action("end an update", self)
            if not _are_finite(metrics):
                raise _NotFinite
            for name, optimizer in self.optimizers.items():
                rate = optimizer.learning_rate
                metrics["learning_rate" if len(self.optimizers) == 1 else f"{name}_learning_rate"] = rate
            self.postprocess(batch, metrics)
            measured = {**self._rows.collect(self.row_measurements_of), **self._row_facts(batch)} if measures else {}
        except BaseException as error:  # also Ctrl-C and a lack of memory
            for optimizer in self.optimizers.values():
                optimizer.zero_grad()
            if before is not None:
                self._restore(*before)
            self.set_progress(progress)
            if isinstance(error, _NotFinite):
                raise InvalidArgument(_describe_not_finite(type(self).__name__, batch)) from None
            raise
        finally:
            self._rows.end()
        for scheduler in self.schedulers.values():
            scheduler.step()
        self.num_updates += 1
        if measures:
            self._rows.newest = measured
        if self.witness is not None:
            self.witness(batch)
        return metrics

    def _snapshot(self) -> tuple[dict[str, Snapshot], dict[str, Tensor]]:
        """Return a copy of the parameters, optimizer states and target networks, from which `_restore` undoes an
        update.
        """
        optimizers = {name: optimizer.snapshot() for name, optimizer in self.optimizers.items()}
        return optimizers, {name: self._target(name).vector.clone() for name in self.targets}

    def _restore(self, optimizers: Mapping[str, Snapshot], targets: Mapping[str, Tensor]) -> None:
        """Set parameters, optimizer states and target networks back to a copy that `_snapshot` made."""
        for name, snapshot in optimizers.items():
            self.optimizers[name].restore(snapshot)
        for name, values in targets.items():
            self._target(name).set_vector(values)

    def undo(self) -> Callable[[], None]:
        """Return a function that restores the current weights, optimizer states, random state and learning rates. The
        caller uses it to undo the next update.
        """
        snapshot, progress = self._snapshot(), self.get_progress()
        schedules = {name: deepcopy(scheduler.state_dict()) for name, scheduler in self.schedulers.items()}
        groups = [group for optimizer in self.optimizers.values() for group in optimizer.optimizer.param_groups]
        rates = [group["lr"] for group in groups]

        def restore_all() -> None:
            """Restore the weights, optimizer states, random state and learning rates that were current when `undo` was
            called.
            """
            self._restore(*snapshot)
            self.set_progress(progress)
            for name, scheduler in self.schedulers.items():
                scheduler.load_state_dict(schedules[name])
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

        return restore_all

    def set_learning_rates(self, rates: Mapping[str, float]) -> None:
        """Set the base learning rate of each optimizer that `rates` names. Learning rate schedules continue, relative
        to the new rates.
        """
        for name, rate in rates.items():
            self.optimizers[name].set_base_learning_rate(rate)
            if name in self.schedulers:
                self.schedulers[name].base_lrs = [rate]

    def _target(self, name: str) -> TargetNetwork:
        """Return the target network (slowly updated copy of a network) with this name."""
        return cast(TargetNetwork, self.targets[name])

    @property
    def optimizer(self) -> Optimizer:
        """First torch optimizer of the algorithm. Most algorithms have only one."""
        return next(iter(self.optimizers.values())).optimizer

    def get_extra_state(self) -> dict[str, Any]:
        """Return what `state_dict()` contains in addition to weights: states of optimizers, schedules, random
        generators, counts and the learner pipeline.
        """
        pipeline = getattr(self, "pipeline", None)
        return {
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "schedulers": {name: scheduler.state_dict() for name, scheduler in self.schedulers.items()},
            "progress": self.get_progress(),
            "pipeline": pipeline.get_state() if isinstance(pipeline, ConnectorPipeline) else {},
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_extra_state` returned. torch calls this method in `load_state_dict()`.

        Raises:
            StateMismatch: the state has other optimizers or schedules than this algorithm.
        """
        for kind, ours in (("optimizers", self.optimizers), ("schedulers", self.schedulers)):
            if set(state[kind]) != set(ours):
                raise StateMismatch(
                    f"the state has {kind} {sorted(state[kind])}, this {type(self).__name__} has {sorted(ours)}: "
                    "create it like the algorithm that the state belongs to"
                )
            for name, part in ours.items():
                part.load_state_dict(state[kind][name])
        self.set_progress(state["progress"])
        if state.get("pipeline"):
            self.pipeline.set_state(state["pipeline"])  # type: ignore[operator]

    def get_progress(self) -> dict[str, Any]:
        """Return the random state and counts, such as `num_updates`, for checkpoints and to undo an update.

        Algorithms with further state that an update changes add it. Weights, optimizers, learning rate schedules and
        the learner pipeline are stored separately.
        """
        return {"generator": self.generator.get_state(), "num_updates": self.num_updates}

    def set_progress(self, progress: dict[str, Any]) -> None:
        """Restore the random state and counts that `get_progress` returned, to continue a run or undo an update."""
        self.generator.set_state(progress["generator"].cpu())
        self.num_updates = progress["num_updates"]


P = TypeVar("P", bound=Policy)


def split_actor(policy: P | Actor) -> tuple[P, Actor | None]:
    """Return a tuple of a policy and its actor (the policy with its pipelines), given either a policy or an actor. For
    a policy, the second item is `None`.
    """
    return (cast(P, policy.policy), policy) if isinstance(policy, Actor) else (policy, None)


def stored_inputs(policy: Policy, actor: Actor | None) -> dict[str, Any]:
    """Return keyword arguments for `learner_pipeline`, so that the pipeline reads stored episodes as the policy does:
    the spaces of the episodes, and the actor's views.
    """
    if actor is None:
        return {"observation_space": policy.observation_space, "action_space": policy.action_space}
    spaces = {"observation_space": actor.recorded_observation_space, "action_space": policy.action_space}
    return {**spaces, "views": actor.views}


def linear_decay(num_updates: int) -> MakeScheduler:
    """Return a schedule for the argument `scheduler` of algorithms, which lowers the learning rate linearly to 0 over
    `num_updates` updates.
    """
    return partial(LinearLR, start_factor=1.0, end_factor=0.0, total_iters=num_updates)


def tensors_of(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a train batch with only the columns that consist of tensors. Other columns, such as infos, are left
    out.
    """
    tensors = {
        name: column
        for name, column in batch.items()
        if type(column) is Tensor or all(isinstance(leaf, Tensor) for leaf in leaves(column))
    }
    return TrainBatch(tensors, getattr(batch, "lazy_origin", None))


def means(measured: list[Measured]) -> dict[str, float]:
    """Return the mean of each logged scalar over all gradient steps, as floats. All scalars are copied from the device
    at once.
    """
    if len(measured) == 1 and all(value.is_cpu for value in measured[0].values()):
        return {name: value.item() for name, value in measured[0].items()}  # nothing to wait for
    rows = [torch.stack(list(row.values())) for row in measured]
    mean = rows[0] if len(rows) == 1 else torch.stack(rows).mean(0)
    return dict(zip(measured[0], mean.tolist(), strict=True))


def _describe_differing_spaces(episodes: Sequence[SingleAgentEpisode], policy: Policy) -> str:
    """Return text for an error message that names the spaces in which episodes differ from the policy, or "" if they do
    not differ.
    """
    names = ("observation_space", "action_space")
    pairs = [(name, env_space_of(getattr(episodes[0], name)), getattr(policy, name)) for name in names]
    differ = [(name, space, known) for name, space, known in pairs if space is not None and space != known]
    return ", ".join(f"{name} {space}, the policy {known}" for name, space, known in differ)


class _NotFinite(Exception):
    """Error inside of an update: a loss or gradient norm is NaN or infinite, so the update is undone."""


def _are_finite(measured: Mapping[str, Any]) -> bool:
    """Return True if all values in a dict of logged scalars that are losses or gradient norms are finite."""
    return all(isfinite(value) for name, value in measured.items() if name.endswith(("gradient_norm", "loss")))


def _describe_not_finite(algorithm: str, batch: Mapping[str, Any]) -> str:
    """Return the message of the error for a NaN or infinite loss or gradient. It lists the batch rows that have such
    values, with episode and step if known.
    """
    message = f"{algorithm}: the loss or its gradient is not finite; the weights are as before the update. "
    origin, places = _origin(batch), []
    axes = () if origin is None else origin.numbers.shape
    for name, column in tensors_of(batch).items():
        for leaf in leaves(column):
            if leaf.is_floating_point() and leaf.ndim and name not in _MAY_BE_INFINITE:
                num_axes = len(axes) if leaf.shape[: len(axes)] == axes else 1
                bad = ~torch.isfinite(leaf).reshape(*leaf.shape[:num_axes], -1).all(-1)
                places += [(name, tuple(place)) for place in bad.nonzero()[:3].tolist()]
    if not places:
        return message + "All columns of the batch are finite: look at the learning rate, and at the policy's outputs"
    rows = ", ".join(f"{name}{list(place)}{_describe_row(place, origin)}" for name, place in places[:6])
    return message + f"The batch has NaN or infinite values: {rows}"


_MAY_BE_INFINITE = frozenset({Columns.ACTION_DIST_INPUTS})  # logits of masked actions


def _origin(batch: Mapping[str, Any]) -> Origin | None:
    """Return the origin of a batch, by which each row's episode and step can be looked up, or None if it is unknown."""
    try:
        return getattr(batch, "origin", None)
    except EpisodeStateError:
        return None


def _describe_row(place: tuple[int, ...], origin: Origin | None) -> str:
    """Return text with the episode and step that the batch row `place` comes from, such as " (episode a, step 3)", or
    "" if that is unknown.
    """
    if origin is None or len(place) < origin.numbers.ndim:
        return ""
    try:
        step = origin[place]
    except EpisodeStateError:  # it was evicted
        return ""
    return "" if step is None else f" (episode {step.id_}, step {step.t})"
