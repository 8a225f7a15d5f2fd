"""Adapter by which a trainer calls callbacks written for RLlib, such as self-play that adds modules during a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from numbers import Number
from typing import TYPE_CHECKING, Any

from connectors.actor import Actor
from episode_learners.multi_agent import MultiAgentAlgorithm
from episode_learners.policies.policy import Policy
from episode_runners import MultiAgentEnvRunner, RLlibCallback
from episode_runners.callbacks import CallbackRunner
from episodes.columns import DEFAULT_MODULE_ID
from episodes.data_types import ModuleID
from episodes.errors import InvalidArgument, UnknownKey, WrongType

if TYPE_CHECKING:
    from episode_learners.trainers.trainer import Trainer
    from episode_runners.evaluation import Evaluation

__all__ = ["CallbackAlgorithm", "RLModuleSpec", "as_trainer_hook"]


class RLModuleSpec:
    """Specification of a new module as a copy of an existing policy. Callbacks pass it to `algorithm.add_module`, as in
    RLlib.

    Args:
        module: the policy that is copied.
    """

    def __init__(self, module: Policy) -> None:
        self.module = module

    @classmethod
    def from_module(cls, module: Policy) -> RLModuleSpec:
        """Return the specification of a module that is a copy of the policy `module`."""
        return cls(module)


class CallbackAlgorithm:
    """Adapter that gives a trainer the methods and attributes of RLlib's `Algorithm`. Callbacks get it as `algorithm`.

    Args:
        trainer: the trainer.
        callback: the callback; its `config` becomes `algorithm.config`.
        iteration: number of updates of the trainer so far.
    """

    def __init__(self, trainer: Trainer[Any], callback: RLlibCallback, iteration: int) -> None:
        self.trainer, self.config, self.iteration = trainer, callback.config, iteration
        self.training_iteration = iteration
        self.env_runner = None if trainer.runner is None else CallbackRunner(trainer.runner, callback)
        self.env_runner_group = self  # it has `foreach_env_runner`
        self.metrics = getattr(trainer.runner, "metrics_logger", None)

    def get_module(self, module_id: ModuleID = DEFAULT_MODULE_ID) -> Policy:
        """Return the policy of the module `module_id`, or of a single-agent trainer."""
        algorithm = self.trainer.algorithm
        return algorithm[module_id].policy if isinstance(algorithm, MultiAgentAlgorithm) else algorithm.policy

    def add_module(
        self,
        module_id: ModuleID,
        module_spec: RLModuleSpec | Policy,
        *,
        new_agent_to_module_mapping_fn: Callable[..., Any] | None = None,
        new_should_module_be_updated: Callable[..., bool] | Collection[Any] | None = None,
    ) -> Policy:
        """Add a module with a copy of an existing policy, and return the new policy. Callbacks use it for self-play.

        The copy has the module's weights and pipelines. It acts and cannot learn, unless the trainer's `module_fn`
        returns an algorithm for it.

        Args:
            module_id: id of the new module.
            module_spec: the module that is copied, or `RLModuleSpec.from_module` of it.
            new_agent_to_module_mapping_fn: mapping function of episodes that start afterwards; None: as before.
            new_should_module_be_updated: ids of the modules that learn from now on, or a function
                `(module_id, batch)` that returns whether a module learns; None: as before.

        Raises:
            InvalidArgument: the trainer has only one policy, there is a module with this id, or a module that cannot
                learn should.
            WrongType: `module_spec` is not a policy.
        """
        algorithm, module = self._modules(), getattr(module_spec, "module", module_spec)
        if not isinstance(module, Policy):
            raise WrongType(
                f"add_module({module_id!r}): module_spec is a {type(module_spec).__name__}; give a module of "
                "get_module, or RLModuleSpec.from_module(module)"
            )
        make = self.trainer.module_fn
        added = _copy_policy(algorithm, module) if make is None else make(module_id)
        algorithm.add(module_id, added, train=False)
        algorithm[module_id].policy.load_state_dict(module.state_dict())
        self._change(new_agent_to_module_mapping_fn, new_should_module_be_updated)
        return self.get_module(module_id)

    def remove_module(
        self,
        module_id: ModuleID,
        *,
        new_agent_to_module_mapping_fn: Callable[..., Any] | None = None,
        new_should_module_be_updated: Callable[..., bool] | Collection[Any] | None = None,
    ) -> None:
        """Remove the module `module_id`.

        New episodes begin if agents have acted with it. See `add_module` for the other arguments.

        Raises:
            InvalidArgument: the trainer has only one policy.
            UnknownKey: there is no such module.
        """
        self._modules().remove(module_id)
        self._change(new_agent_to_module_mapping_fn, new_should_module_be_updated)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Load weights into modules, given as `{"learner_group": {"learner": {"rl_module": {module_id: weights}}}}`.

        Raises:
            UnknownKey: the state has other parts.
        """
        try:
            ((_, group),) = state.items()
            ((_, learner),) = group.items()
            ((name, modules),) = learner.items()
        except (AttributeError, ValueError):
            name, modules = "", {}
        if name != "rl_module":
            raise UnknownKey(
                'algorithm.set_state sets weights of modules only: {"learner_group": {"learner": {"rl_module": '
                "{module_id: weights}}}}; use the trainer's checkpoints for other states"
            )
        for module_id, weights in modules.items():
            self.get_module(module_id).load_state_dict(weights)

    def foreach_env_runner(self, func: Callable[[Any], Any], **options: object) -> list[Any]:
        """Call `func` with the trainer's runner, and return a list with its result. The list is empty if the trainer
        has no runner.
        """
        return [] if self.env_runner is None else [func(self.env_runner)]

    def _modules(self) -> MultiAgentAlgorithm:
        """Return the trainer's multi-agent algorithm.

        Raises:
            InvalidArgument: the trainer has only one policy.
        """
        if not isinstance(self.trainer.algorithm, MultiAgentAlgorithm):
            raise InvalidArgument("modules can be added to a MultiAgentAlgorithm only; this trainer has one policy")
        return self.trainer.algorithm

    def _change(
        self, mapping_fn: Callable[..., Any] | None, should_learn: Callable[..., bool] | Collection[Any] | None
    ) -> None:
        """Replace the runner's mapping from agents to modules, and the selection of modules that learn.

        An argument of None changes nothing.
        """
        algorithm = self._modules()
        if mapping_fn is not None and isinstance(self.trainer.runner, MultiAgentEnvRunner):
            self.trainer.runner.agent_to_module_mapping_fn = mapping_fn
        if should_learn is not None:
            learns = (lambda name, _: name in should_learn) if isinstance(should_learn, Collection) else should_learn
            learning = [module_id for module_id in algorithm.module_ids if learns(module_id, None)]
            algorithm.unfreeze(*learning)
            algorithm.freeze(*set(algorithm.module_ids).difference(learning))


def _copy_policy(algorithm: MultiAgentAlgorithm, module: Policy) -> Policy | Actor:
    """Return a copy of a policy, or of the actor (policy with pipelines) of the module that the policy belongs to."""
    actors = [learner.actor for learner in map(algorithm.__getitem__, algorithm.module_ids) if learner.policy is module]
    return deepcopy(actors[0] if actors and actors[0] is not None else module)


class CallbackTrainerHook:
    """Trainer hook that calls an RLlib callback (`RLlibCallback`) at the matching events of the trainer."""

    def __init__(self, callback: RLlibCallback) -> None:
        self.callback = callback
        self.num_updates = 0

    def on_start(self, trainer: Trainer[Any]) -> None:
        """Call the callback's `on_algorithm_init` when the trainer starts."""
        self.callback.on_algorithm_init(**self._arguments(trainer))

    def on_update(self, trainer: Trainer[Any], metrics: Mapping[str, float]) -> None:
        """Call the callback's `on_train_result` after an update, and log the values that the callback has added."""
        self.num_updates += 1
        arguments = self._arguments(trainer)
        result = self._result(trainer, metrics)
        names = set(result)
        self.callback.on_train_result(result=result, **arguments)
        logged = _flatten_numbers(trainer.runner.metrics_logger.peek()) if trainer.runner is not None else {}
        logged |= _flatten_numbers({name: value for name, value in result.items() if name not in names})
        if logged:
            trainer.logger.log("info", logged, trainer.num_steps)

    def _result(self, trainer: Trainer[Any], metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return the metrics of an update as the nested dict that RLlib passes to `on_train_result`."""
        learners: dict[str, dict[str, float]] = {}
        for key, value in metrics.items():
            name, _, module_id = key.partition("/module/")
            learners.setdefault(module_id or DEFAULT_MODULE_ID, {})[name] = value
        return {
            "training_iteration": self.num_updates,
            "num_env_steps_sampled_lifetime": trainer.num_steps,
            "env_runners": {} if trainer.runner is None else trainer.runner.metrics(),
            "learners": learners,
        }

    def on_test_start(self, trainer: Trainer[Any]) -> None:
        """Call the callback's `on_evaluate_start` before a test."""
        self.callback.on_evaluate_start(**self._arguments(trainer))

    def on_test(self, trainer: Trainer[Any], evaluation: Evaluation) -> None:
        """Call the callback's `on_evaluate_end` with the results of a test."""
        metrics = {"env_runners": evaluation.as_dict()}
        self.callback.on_evaluate_end(evaluation_metrics=metrics, **self._arguments(trainer))

    def _arguments(self, trainer: Trainer[Any]) -> dict[str, Any]:
        """Return the keyword arguments that all calls of the callback get: the algorithm and the metrics logger."""
        algorithm = CallbackAlgorithm(trainer, self.callback, self.num_updates)
        return {"algorithm": algorithm, "metrics_logger": algorithm.metrics}

    def get_state(self) -> dict[str, Any]:
        """Return the number of updates, and the state of the callback if it has the method `get_state`, for
        checkpoints.
        """
        get_state = getattr(self.callback, "get_state", dict)
        return {"num_updates": self.num_updates, "callback": get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the number of updates and the callback's state that `get_state` returned."""
        self.num_updates = state["num_updates"]
        set_state = getattr(self.callback, "set_state", None)
        if set_state is not None:
            set_state(state["callback"])


def as_trainer_hook(hook: object) -> Any:
    """Return a hook that trainers can call: an RLlib callback is wrapped, and any other hook is returned unchanged.

    Raises:
        WrongType: the hook is a class. The trainer and the runner need the same object.
    """
    if isinstance(hook, type):
        raise WrongType(f"hooks are objects, and {hook.__name__} is a class: give {hook.__name__}()")
    return CallbackTrainerHook(hook) if isinstance(hook, RLlibCallback) else hook


def _flatten_numbers(values: Mapping[Any, Any], prefix: str = "") -> dict[str, float]:
    """Return all numbers in nested dicts as one dict with the names "<key>/<key>". Other values are left out."""
    numbers: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            numbers |= _flatten_numbers(value, f"{prefix}{key}/")
        elif isinstance(value, Number):
            numbers[f"{prefix}{key}"] = float(value)  # type: ignore[arg-type]
    return numbers
