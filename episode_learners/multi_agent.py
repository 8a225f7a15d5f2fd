"""Several policies that learn side by side: one algorithm for each module."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import nn

from connectors.agent_to_module_mapping import AgentToModuleMapping
from episode_learners.algorithms.algorithm import Algorithm
from episode_learners.policies.policy import Policy
from episodes.errors import InvalidArgument, UnknownKey
from episodes.multi_agent import MultiAgentEpisode
from episodes.single_agent import SingleAgentEpisode

__all__ = ["MultiAgentAlgorithm"]


class MultiAgentAlgorithm(nn.Module):
    """An algorithm for each module; agents of one module share its policy, and what they saw is one train batch.

    Args:
        algorithms: an algorithm for each module id; with one entry all agents share one policy.
        train: the ids of the modules that learn; all by default. The others stay as they are, and modules that have no
            algorithm here may act too, such as the opponents of a league.

    >>> from gymnasium.spaces import Box, Discrete
    >>> from episode_learners import MLPPolicy, PPO
    >>> policies = {module_id: MLPPolicy(Box(-1, 1, (3,)), Discrete(2)) for module_id in ("runner", "chaser")}
    >>> algorithm = MultiAgentAlgorithm({module_id: PPO(policy) for module_id, policy in policies.items()})
    >>> list(algorithm.policies)
    ['runner', 'chaser']
    """

    def __init__(self, algorithms: Mapping[Any, Algorithm], *, train: Sequence[Hashable] | None = None) -> None:
        super().__init__()
        self._names = {module_id: _name_of(module_id) for module_id in algorithms}
        self.algorithms = nn.ModuleDict({self._names[module_id]: one for module_id, one in algorithms.items()})
        self.train_ids = tuple(algorithms) if train is None else tuple(train)
        self._knows_all = train is None  # every module that acts has an algorithm
        unknown = [module_id for module_id in self.train_ids if module_id not in self._names]
        if unknown:
            raise UnknownKey(f"train={unknown}: the modules are {', '.join(map(str, self._names))}")

    def __getitem__(self, module_id: Hashable) -> Any:
        """A module's algorithm."""
        return self.algorithms[self._names[module_id]]

    @property
    def policies(self) -> dict[Any, Policy]:
        """Each module's policy: what a runner acts with."""
        return {module_id: self[module_id].policy for module_id in self._names}

    def update(
        self, episodes: Sequence[MultiAgentEpisode] | Sequence[SingleAgentEpisode]
    ) -> dict[Any, dict[str, float]]:
        """Learn from multi-agent episodes, or from their agents' episodes or pack; each learning module's metrics.

        A module without a step has nothing to learn from, and is left out.

        Raises:
            UnknownKey: a module acted that has no algorithm here, and nothing was said of who learns.
            InvalidArgument: there are no episodes; or what an algorithm raises, with a note that names its module. All
                modules are then as they were before.
        """
        if not len(episodes):
            raise InvalidArgument("there are no episodes: sample some first")
        packs = AgentToModuleMapping.packs(episodes)
        unknown = [module_id for module_id in packs if module_id not in self._names]
        if unknown and self._knows_all:
            raise UnknownKey(
                f"update: module {unknown[0]!r} acted; there are algorithms for {', '.join(map(str, self._names))}; "
                "make one for it, or name those that learn as train="
            )
        learning = [one for one in self.train_ids if one in packs and packs[one].num_steps]
        metrics: dict[Any, dict[str, float]] = {}
        undo = []
        try:
            for module_id in learning:
                undo.append(self[module_id].undo())
                metrics[module_id] = self[module_id].update(packs[module_id])
        except BaseException as error:
            error.add_note(f"module {learning[len(metrics)]!r}")
            for take_back in undo:
                take_back()
            raise
        return metrics


def _name_of(module_id: Hashable) -> str:
    """A name that torch takes for a module: ids may have dots, be numbers, or be called as a method of a dict is."""
    name = str(module_id).replace("%", "%25").replace(".", "%2E") or "%"
    return f"%{name}" if hasattr(nn.ModuleDict, name) or not isinstance(module_id, str) else name
