"""The spaces of agents, which are learned as the agents come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import gymnasium as gym

from connectors.pipeline import ConnectorPipeline

ByAgent = Mapping[Any, Any]  # agent -> space


class AgentSpaces:
    """The spaces of all agents so far: as the environments give them, and as joint preprocessors make them.

    Nobody says beforehand who will come: acting learns it from environments, learning from the episodes.

    Args:
        joint: the preprocessors; their spaces are `Dict` spaces of the agents that came.

    Attributes:
        observations: by agent, before the preprocessors.
        actions: likewise.
    """

    def __init__(self, joint: ConnectorPipeline) -> None:
        self.joint = joint
        self.observations, self.actions = map(_by_agent, (joint.input_observation_space, joint.input_action_space))

    def welcome(self, observations: ByAgent | None, actions: ByAgent | None) -> None:
        """Add the spaces of these agents; where one is new or another than before, the preprocessors get all anew."""
        news = [_changed_spaces(*pair) for pair in ((self.observations, observations), (self.actions, actions))]
        if any(news):
            self.observations, self.actions = self.observations | news[0], self.actions | news[1]
            if len(self.joint):
                self.joint.set_input_spaces(gym.spaces.Dict(self.observations), gym.spaces.Dict(self.actions))

    @property
    def rewritten(self) -> dict[Any, Any]:
        """The observation spaces by agent, behind the preprocessors."""
        return _by_agent(cast(gym.Space, self.joint.observation_space)) if len(self.joint) else self.observations


def _by_agent(space: gym.Space | None) -> dict[Any, Any]:
    return dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {}


def _changed_spaces(known: ByAgent, given: ByAgent | None) -> dict[Any, Any]:
    """Those of the given spaces that are not among the known ones: of new agents, or other ones than before."""
    return {
        agent_id: space
        for agent_id, space in (given or {}).items()
        if space is not None and known.get(agent_id) is not space and known.get(agent_id) != space
    }
