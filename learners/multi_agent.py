"""Several policies that learn side by side: one algorithm for each module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from episodes.columns import DEFAULT_MODULE_ID
from episodes.errors import InvalidArgument, UnknownKey
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from learners.algorithm import Algorithm
from learners.policy import Policy

__all__ = ["MultiAgentAlgorithm", "episodes_by_module"]


class MultiAgentAlgorithm(nn.Module):
    """An algorithm for each module; agents of one module share its policy, and what they saw is one train batch.

    Args:
        algorithms: an algorithm for each module id; with one entry all agents share one policy.
        train: the ids of the modules that learn; all by default. The others stay as they are.

    >>> from gymnasium.spaces import Box, Discrete
    >>> from learners import MLPPolicy, PPO
    >>> policies = {module_id: MLPPolicy(Box(-1, 1, (3,)), Discrete(2)) for module_id in ("runner", "chaser")}
    >>> algorithm = MultiAgentAlgorithm({module_id: PPO(policy) for module_id, policy in policies.items()})
    >>> list(algorithm.policies)
    ['runner', 'chaser']
    """

    def __init__(self, algorithms: Mapping[str, Algorithm], *, train: Sequence[str] | None = None) -> None:
        super().__init__()
        self.algorithms = nn.ModuleDict(algorithms)
        self.train_ids = tuple(algorithms) if train is None else tuple(train)
        unknown = [module_id for module_id in self.train_ids if module_id not in self.algorithms]
        if unknown:
            raise UnknownKey(f"train={unknown}: the modules are {', '.join(self.algorithms)}")

    def __getitem__(self, module_id: str) -> Any:
        """A module's algorithm."""
        return self.algorithms[module_id]

    @property
    def policies(self) -> dict[str, Policy]:
        """Each module's policy: what a runner acts with."""
        return {module_id: self[module_id].policy for module_id in self.algorithms}

    def update(
        self, episodes: Sequence[MultiAgentEpisode] | Sequence[SingleAgentEpisode]
    ) -> dict[str, dict[str, float]]:
        """Learn from multi-agent episodes, or from their agents' episodes or pack; each learning module's metrics.

        A module without a step has nothing to learn from, and is left out.

        Raises:
            UnknownKey: a module acted that has no algorithm here.
        """
        packs = episodes_by_module(episodes)
        unknown = [module_id for module_id in packs if module_id not in self.algorithms]
        if unknown:
            raise UnknownKey(
                f"update: module {unknown[0]!r} acted; there are algorithms for {', '.join(self.algorithms)}"
            )
        return {
            module_id: self[module_id].update(packs[module_id])
            for module_id in self.train_ids
            if module_id in packs and packs[module_id].num_steps
        }


def episodes_by_module(
    episodes: Sequence[MultiAgentEpisode] | Sequence[SingleAgentEpisode],
) -> dict[Any, EpisodePack]:
    """A pack of agents' episodes for each module, whose agents see and do things of one kind.

    Episodes without a module id belong to the default module.
    """
    if isinstance(episodes, EpisodePack):
        return _pack_by_module(episodes)
    groups: dict[Any, list[SingleAgentEpisode]] = {}
    for episode in episodes:
        for module_id, agent_episode in _agents_of(episode):
            groups.setdefault(module_id, []).append(agent_episode)
    if not groups:
        raise InvalidArgument("there are no episodes: sample some first")
    return {module_id: EpisodePack.from_episodes(group) for module_id, group in groups.items()}


def _pack_by_module(pack: EpisodePack) -> dict[Any, EpisodePack]:
    if pack.module_ids is None:
        return {DEFAULT_MODULE_ID: pack}
    distinct = dict.fromkeys(pack.module_ids)
    if len(distinct) == 1:
        return {_or_default(next(iter(distinct))): pack}
    return {_or_default(module_id): pack.select(pack.module_ids == module_id) for module_id in distinct}


def _agents_of(episode: MultiAgentEpisode | SingleAgentEpisode) -> list[tuple[Any, SingleAgentEpisode]]:
    if isinstance(episode, SingleAgentEpisode):
        return [(_or_default(episode.module_id), episode)]
    return [(episode.module_for(agent_id), agent) for agent_id, agent in episode.agent_episodes.items() if len(agent)]


def _or_default(module_id: Any) -> Any:
    return DEFAULT_MODULE_ID if module_id is None else module_id
