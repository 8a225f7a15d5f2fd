"""Callbacks written for RLlib as hooks of a trainer, such as self-play that adds modules during a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from numbers import Number
from typing import Any

from connectors.actor import Actor
from episode_learners.multi_agent import MultiAgentAlgorithm
from episode_learners.policies.policy import Policy
from episode_runners import MultiAgentEnvRunner, RLlibCallback
from episode_runners.callbacks import CallbackRunner
from episodes.columns import DEFAULT_MODULE_ID
from episodes.errors import InvalidArgument, UnknownKey, WrongType

__all__ = ["CallbackAlgorithm", "RLModuleSpec", "as_trainer_hook"]


class RLModuleSpec:
    """Description of a module that is a copy of another module's policy, for `algorithm.add_module` in callbacks."""

    def __init__(self, module: Policy) -> None:
        self.module = module

    @classmethod
    def from_module(cls, module: Policy) -> RLModuleSpec:
        """Return the description of a copy of `module`."""
        return cls(module)


class CallbackAlgorithm:
    """A trainer under the names of RLlib's `Algorithm`, which callbacks get as `algorithm`.

    Args:
        trainer: the trainer.
        callback: the callback; its `config` is `algorithm.config`.
        iteration: number of updates of the trainer so far.
    """

    def __init__(self, trainer: Any, callback: RLlibCallback, iteration: int) -> None:
        self.trainer, self.config, self.iteration = trainer, callback.config, iteration
        self.training_iteration = iteration
        self.env_runner = None if trainer.runner is None else CallbackRunner(trainer.runner, callback)
        self.env_runner_group = self  # it has `foreach_env_runner`
        self.metrics = getattr(trainer.runner, "metrics_logger", None)

    def get_module(self, module_id: Any = DEFAULT_MODULE_ID) -> Policy:
        """Return the policy of a module."""
        algorithm = self.trainer.algorithm
        return algorithm[module_id].policy if isinstance(algorithm, MultiAgentAlgorithm) else algorithm.policy

    def add_module(
        self,
        module_id: Any,
        module_spec: RLModuleSpec | Policy,
        *,
        new_agent_to_module_mapping_fn: Callable[..., Any] | None = None,
        new_should_module_be_updated: Callable[..., bool] | Collection[Any] | None = None,
    ) -> Policy:
        """Add a copy of a module, and return its policy.

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
        """
        algorithm, module = self._modules(), getattr(module_spec, "module", module_spec)
        if not isinstance(module, Policy):
            raise WrongType(
                f"add_module({module_id!r}): module_spec is a {type(module_spec).__name__}; give a module of "
                "get_module, or RLModuleSpec.from_module(module)"
            )
        make = self.trainer.module_fn
        added = _copied(algorithm, module) if make is None else make(module_id)
        algorithm.add(module_id, added, train=False)
        algorithm[module_id].policy.load_state_dict(module.state_dict())
        self._change(new_agent_to_module_mapping_fn, new_should_module_be_updated)
        return self.get_module(module_id)

    def remove_module(
        self,
        module_id: Any,
        *,
        new_agent_to_module_mapping_fn: Callable[..., Any] | None = None,
        new_should_module_be_updated: Callable[..., bool] | Collection[Any] | None = None,
    ) -> None:
        """Remove a module. New episodes begin if agents have acted with it. Arguments: see `add_module`."""
        self._modules().remove(module_id)
        self._change(new_agent_to_module_mapping_fn, new_should_module_be_updated)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Set weights of modules: `{"learner_group": {"learner": {"rl_module": {module_id: state}}}}`.

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
                "{module_id: weights}}}}; checkpoints are those of the trainer"
            )
        for module_id, weights in modules.items():
            self.get_module(module_id).load_state_dict(weights)

    def foreach_env_runner(self, func: Callable[[Any], Any], **options: Any) -> list[Any]:
        """Call a function with the runner, and return a list of its result."""
        return [] if self.env_runner is None else [func(self.env_runner)]

    def _modules(self) -> MultiAgentAlgorithm:
        if not isinstance(self.trainer.algorithm, MultiAgentAlgorithm):
            raise InvalidArgument("modules can be added to a MultiAgentAlgorithm only; this trainer has one policy")
        return self.trainer.algorithm

    def _change(self, mapping_fn: Any, should_learn: Any) -> None:
        """Change the mapping function and the modules that learn. None keeps the current value."""
        algorithm = self._modules()
        if mapping_fn is not None and isinstance(self.trainer.runner, MultiAgentEnvRunner):
            self.trainer.runner.agent_to_module_mapping_fn = mapping_fn
        if should_learn is not None:
            learns = (lambda name, _: name in should_learn) if isinstance(should_learn, Collection) else should_learn
            learning = [module_id for module_id in algorithm.module_ids if learns(module_id, None)]
            algorithm.unfreeze(*learning)
            algorithm.freeze(*set(algorithm.module_ids).difference(learning))


def _copied(algorithm: MultiAgentAlgorithm, module: Policy) -> Policy | Actor:
    """Return a copy of a policy, or of its actor if it belongs to a module with an actor."""
    actors = [learner.actor for learner in map(algorithm.__getitem__, algorithm.module_ids) if learner.policy is module]
    return deepcopy(actors[0] if actors and actors[0] is not None else module)


class CallbackTrainerHook:
    """Adapter that calls an `RLlibCallback` as a trainer calls hooks."""

    def __init__(self, callback: RLlibCallback) -> None:
        self.callback = callback
        self.num_updates = 0

    def on_start(self, trainer: Any) -> None:
        self.callback.on_algorithm_init(**self._arguments(trainer))

    def on_update(self, trainer: Any, metrics: Mapping[str, float]) -> None:
        """Call `on_train_result`, and log the values that callbacks logged or added to the result."""
        self.num_updates += 1
        arguments = self._arguments(trainer)
        result = self._result(trainer, metrics)
        names = set(result)
        self.callback.on_train_result(result=result, **arguments)
        logged = _flat(trainer.runner.metrics_logger.peek()) if trainer.runner is not None else {}
        logged |= _flat({name: value for name, value in result.items() if name not in names})
        if logged:
            trainer.logger.log("info", logged, trainer.num_steps)

    def _result(self, trainer: Any, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return the result of an iteration in RLlib's structure."""
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

    def on_test_start(self, trainer: Any) -> None:
        self.callback.on_evaluate_start(**self._arguments(trainer))

    def on_test(self, trainer: Any, evaluation: Any) -> None:
        metrics = {"env_runners": evaluation.as_dict()}
        self.callback.on_evaluate_end(evaluation_metrics=metrics, **self._arguments(trainer))

    def _arguments(self, trainer: Any) -> dict[str, Any]:
        algorithm = CallbackAlgorithm(trainer, self.callback, self.num_updates)
        return {"algorithm": algorithm, "metrics_logger": algorithm.metrics}

    def get_state(self) -> dict[str, Any]:
        """Return the count of updates, and the state of the callback if it has a state."""
        get_state = getattr(self.callback, "get_state", dict)
        return {"num_updates": self.num_updates, "callback": get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.num_updates = state["num_updates"]
        set_state = getattr(self.callback, "set_state", None)
        if set_state is not None:
            set_state(state["callback"])


def as_trainer_hook(hook: Any) -> Any:
    """Return the hook, or a `CallbackTrainerHook` for a callback.

    Raises:
        WrongType: the hook is a class. The trainer and the runner need the same object.
    """
    if isinstance(hook, type):
        raise WrongType(f"hooks are objects, and {hook.__name__} is a class: give {hook.__name__}()")
    return CallbackTrainerHook(hook) if isinstance(hook, RLlibCallback) else hook


def _flat(values: Mapping[Any, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers in nested dicts by "<key>/<key>". Other values are left out."""
    numbers: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            numbers |= _flat(value, f"{prefix}{key}/")
        elif isinstance(value, Number):
            numbers[f"{prefix}{key}"] = float(value)  # type: ignore[arg-type]
    return numbers
