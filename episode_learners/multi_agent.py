"""`MultiAgentAlgorithm`: trains several policies (modules) of a multi-agent environment, each by a separate
algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from connectors.actor import Actor
from connectors.agent_to_module_mapping import AgentToModuleMapping
from episode_learners.algorithms.algorithm import Algorithm, Measured, split_actor
from episode_learners.algorithms.flat_optimizer import FlatOptimizer
from episode_learners.algorithms.learning_processes import LearningProcesses
from episode_learners.algorithms.replay_algorithm import ReplayAlgorithm
from episode_learners.policies.policy import Policy
from episodes.columns import DEFAULT_MODULE_ID
from episodes.errors import InvalidArgument, UnknownKey
from episodes.multi_agent import MultiAgentEpisode
from episodes.replay import MultiAgentEpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode

__all__ = ["MultiAgentAlgorithm", "learners_of"]


class MultiAgentAlgorithm(nn.Module):
    """Algorithm for several agents: it trains each module (a policy shared by some agents) by a separate algorithm.

    Agents of one module share its policy and train batch. Modules can be added, removed, frozen and unfrozen at any
    time. `policies` always has the policies of the current modules, so a runner that was made with `algorithm.policies`
    acts with a new module from its next episodes on.

    Args:
        algorithms: an algorithm for each module id. With one entry, all agents share one policy. A module with a policy
            (or an actor) instead of an algorithm acts, and cannot learn.
        train: the ids of the modules that learn; by default all with an algorithm. The others are frozen. With `train`,
            further modules may act too, for example opponents of a league.

    Attributes:
        processes: the processes with which the modules learn, set by `data_parallel`; None at first.

    Raises:
        UnknownKey: `train` has an id that is not a module's.
        InvalidArgument: a module of `train` has no algorithm.

    >>> from gymnasium.spaces import Box, Discrete
    >>> from episode_learners import MLPPolicy, PPO
    >>> policies = {module_id: MLPPolicy(Box(-1, 1, (3,)), Discrete(2)) for module_id in ("runner", "chaser")}
    >>> algorithm = MultiAgentAlgorithm({module_id: PPO(policy) for module_id, policy in policies.items()})
    >>> list(algorithm.policies)
    ['runner', 'chaser']
    >>> algorithm.freeze("chaser")
    >>> algorithm.train_ids
    ('runner',)
    """

    processes: LearningProcesses | None = None

    def __init__(
        self, algorithms: Mapping[Any, Algorithm | Policy | Actor], *, train: Sequence[Hashable] | None = None
    ) -> None:
        super().__init__()
        self._names: dict[Hashable, str] = {}
        self.algorithms = nn.ModuleDict()
        self.policies: dict[Any, Policy] = {}  # the mapping that runners act with
        self.train_ids: tuple[Hashable, ...] = ()
        self._knows_all = train is None  # every module that acts has an algorithm
        for module_id, algorithm in algorithms.items():
            self.add(module_id, algorithm, train=None if train is None else module_id in train)
        unknown = [module_id for module_id in train or () if module_id not in self._names]
        if unknown:
            raise UnknownKey(f"train={unknown}: the modules are {', '.join(map(str, self._names))}")

    def __getitem__(self, module_id: Hashable) -> Any:
        """Return the algorithm of the module `module_id`.

        Raises:
            UnknownKey: there is no such module.
        """
        if module_id not in self._names:
            raise UnknownKey(f"no module {module_id!r}; the modules are {', '.join(map(str, self._names))}")
        return self.algorithms[self._names[module_id]]

    @property
    def module_ids(self) -> tuple[Hashable, ...]:
        """Ids of all modules, trained and frozen, in the order in which they were added."""
        return tuple(self._names)

    # --- modules -----------------------------------------------------------------------------------------------------

    def add(self, module_id: Hashable, algorithm: Algorithm | Policy | Actor, *, train: bool | None = None) -> None:
        """Add a module: a policy with the algorithm that trains it, or a policy that only acts.

        Args:
            module_id: the id of the module.
            algorithm: its algorithm; or only a policy or an actor, which acts and cannot learn.
            train: whether the module learns. None: if it has an algorithm.

        Raises:
            InvalidArgument: there is a module with this id, or a module without an algorithm should learn.
            StateMismatch: other processes of `data_parallel` do not add this module too.
        """
        if module_id in self._names:
            raise InvalidArgument(f"module {module_id!r} exists already; remove it first")
        if not isinstance(algorithm, Algorithm):
            algorithm = ActingOnly(algorithm)
        train = not isinstance(algorithm, ActingOnly) if train is None else train
        if train:
            _check_learns(module_id, algorithm)
        if self.processes is not None:
            self.processes.join(f"add module {module_id!r}", [algorithm])
        self._names[module_id] = _name_of(module_id)
        self.algorithms[self._names[module_id]] = algorithm
        self.policies[module_id] = algorithm.policy
        if train:
            self.train_ids = (*self.train_ids, module_id)

    def remove(self, module_id: Hashable) -> Algorithm:
        """Remove a module, and return its algorithm. From then on, no agent may be mapped to the module.

        Raises:
            UnknownKey: there is no such module.
        """
        algorithm = self[module_id]
        self.freeze(module_id)
        del self.algorithms[self._names.pop(module_id)], self.policies[module_id]
        return algorithm

    def freeze(self, *module_ids: Hashable) -> None:
        """Stop training the modules `module_ids`. Their policies still act.

        Raises:
            UnknownKey: there is no such module.
        """
        for module_id in module_ids:
            self[module_id]
        self.train_ids = tuple(train_id for train_id in self.train_ids if train_id not in module_ids)

    def unfreeze(self, *module_ids: Hashable) -> None:
        """Resume the training of the modules `module_ids`, which were frozen.

        Raises:
            InvalidArgument: a module has no algorithm.
            UnknownKey: there is no such module.
        """
        for module_id in module_ids:
            _check_learns(module_id, self[module_id])
        self.train_ids = tuple(name for name in self._names if name in self.train_ids or name in module_ids)

    @property
    def optimizers(self) -> dict[str, FlatOptimizer]:
        """Optimizers of all modules, by the name "<module>/<optimizer>"."""
        return {f"{m}/{name}": optimizer for m in self._names for name, optimizer in self[m].optimizers.items()}

    def set_learning_rates(self, rates: Mapping[str, float]) -> None:
        """Set base learning rates, given by the names of `optimizers`. Learning rate schedules keep their position."""
        for module_id in self._names:
            keys = {name: f"{module_id}/{name}" for name in self[module_id].optimizers}
            self[module_id].set_learning_rates({name: rates[key] for name, key in keys.items() if key in rates})

    # --- learning ----------------------------------------------------------------------------------------------------

    def update(
        self,
        episodes: Sequence[MultiAgentEpisode] | Sequence[SingleAgentEpisode],
        *,
        module_ids: Iterable[Hashable] | None = None,
    ) -> dict[Any, dict[str, float]]:
        """Update the policies of all trained modules from multi-agent or single-agent episodes, and return a dict of
        metrics for each module.

        Args:
            episodes: the episodes, which are not changed.
            module_ids: the modules to train; by default `train_ids`. A module without any step in the episodes is
                skipped.

        Raises:
            UnknownKey: a module acted that has no algorithm, and the algorithm was made without `train`.
            InvalidArgument: there are no episodes, or an error of an algorithm, with a note that names its module. All
                modules are then as before the update.
        """
        if not len(episodes):
            raise InvalidArgument("there are no episodes: sample some first")
        packs = AgentToModuleMapping.packs(episodes)
        unknown = [module_id for module_id in packs if module_id not in self._names]
        if unknown and self._knows_all:
            raise UnknownKey(
                f"update: module {unknown[0]!r} acted; there are algorithms for {', '.join(map(str, self._names))}; "
                "add an algorithm for it, or name the modules that learn with train="
            )
        chosen = self.train_ids if module_ids is None else tuple(module_ids)
        learning = [name for name in chosen if name in packs and packs[name].num_steps]
        return self._all_or_nothing({name: lambda name=name: self[name].update(packs[name]) for name in learning})

    def update_from(self, buffer: MultiAgentEpisodeReplayBuffer, num_steps: int = 1) -> dict[Any, dict[str, float]]:
        """Take `num_steps` gradient steps of each trained module that learns from replay, and return a dict of metrics
        for each module.

        Each module learns from its own steps in the buffer. A module without any step is skipped.

        Raises:
            InvalidArgument: gradients are not finite. All weights are then as before; priorities may have changed.
        """
        buffers = buffer.modules
        learning = [m for m in self.train_ids if len(buffers.get(m, ())) and hasattr(self[m], "update_from")]
        return self._all_or_nothing({m: lambda m=m: self[m].update_from(buffers[m], num_steps) for m in learning})

    @property
    def replay_ids(self) -> list[Hashable]:
        """Ids of the trained modules whose algorithms learn from a replay buffer."""
        return [module_id for module_id in self.train_ids if isinstance(self[module_id], ReplayAlgorithm)]

    def explore_after(self, num_env_steps: int) -> None:
        """Set the exploration of all modules, such as epsilon, as scheduled after `num_env_steps` environment steps."""
        for module_id in self._names:
            if isinstance(self[module_id], ReplayAlgorithm):
                self[module_id].explore_after(num_env_steps)

    def _all_or_nothing(self, updates: Mapping[Hashable, Callable[[], dict[str, float]]]) -> dict[Any, Any]:
        """Run one update per module, and return the metrics by module. Undo all updates if one fails."""
        if self.processes is not None:
            self.processes.check_action(f"update modules {list(updates)}", self)
        metrics: dict[Any, dict[str, float]] = {}
        undo = []
        try:
            for module_id, update in updates.items():
                undo.append(self[module_id].undo())
                metrics[module_id] = update()
        except BaseException as error:
            error.add_note(f"module {list(updates)[len(metrics)]!r}")
            for restore in undo:
                restore()
            raise
        return metrics


class ActingOnly(Algorithm):
    """Placeholder algorithm of a module that has only a policy. The policy acts and is never trained."""

    def __init__(self, policy: Policy | Actor) -> None:
        policy, actor = split_actor(policy)
        super().__init__(policy, {}, actor=actor)

    def preprocess(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
        raise InvalidArgument("this module has a policy and no algorithm: it cannot learn")

    def minibatches(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        return iter(())

    def loss(self, minibatch: Mapping[str, Any], optimizer: str) -> tuple[Tensor, Measured]:
        raise InvalidArgument("this module has a policy and no algorithm: it cannot learn")


def learners_of(algorithm: Algorithm | MultiAgentAlgorithm) -> dict[Hashable, Algorithm]:
    """Return a dict with the algorithm of each module (policy of some agents). A single algorithm has the key
    `DEFAULT_MODULE_ID`.
    """
    if isinstance(algorithm, MultiAgentAlgorithm):
        return {module_id: algorithm[module_id] for module_id in algorithm.module_ids}
    return {DEFAULT_MODULE_ID: algorithm}


def _check_learns(module_id: Hashable, algorithm: Algorithm) -> None:
    """Raise `InvalidArgument` if a module cannot learn, because it has only a policy and no algorithm."""
    if isinstance(algorithm, ActingOnly):
        raise InvalidArgument(
            f"module {module_id!r} has a policy and no algorithm, so it cannot learn: add it with an algorithm"
        )


def _name_of(module_id: Hashable) -> str:
    """Return the name of a module in torch's `ModuleDict`. Ids that torch does not allow (with dots, not strings, or
    names of methods) are escaped.
    """
    name = str(module_id).replace("%", "%25").replace(".", "%2E") or "%"
    return f"%{name}" if hasattr(nn.ModuleDict, name) or not isinstance(module_id, str) else name
