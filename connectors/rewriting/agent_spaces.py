"""`AgentSpaces`: observation and action spaces of all agents seen so far, including agents that appear during a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import gymnasium as gym

from connectors.pipeline import ConnectorPipeline
from episodes.tracks.space_kinds import is_dict, parts_of

ByAgent = Mapping[Any, Any]  # agent -> space


class AgentSpaces:
    """Observation and action spaces of all agents seen so far, before and after the joint preprocessors of a
    multi-agent pipeline.

    The agents are not known beforehand. While acting, their spaces come from the environments, while learning from the
    episodes.

    Args:
        joint: the preprocessors. Their spaces are `Dict` spaces by agent.

    Attributes:
        observations: observation space by agent, before the preprocessors.
        actions: action space by agent.
    """

    def __init__(self, joint: ConnectorPipeline) -> None:
        self.joint = joint
        self.observations, self.actions = map(
            spaces_by_agent, (joint.input_observation_space, joint.input_action_space)
        )

    def add_spaces(self, observations: ByAgent | None, actions: ByAgent | None) -> None:
        """Add the spaces of agents, by agent id. If some are new or have changed, recompute the output spaces of the
        joint preprocessors.
        """
        changed = [_changed_spaces(*pair) for pair in ((self.observations, observations), (self.actions, actions))]
        if any(changed):
            self.observations, self.actions = self.observations | changed[0], self.actions | changed[1]
            if len(self.joint):
                self.joint.set_input_spaces(gym.spaces.Dict(self.observations), gym.spaces.Dict(self.actions))

    @property
    def rewritten(self) -> dict[Any, Any]:
        """Observation space of each agent after the joint preprocessors, by agent id."""
        return spaces_by_agent(cast(gym.Space, self.joint.observation_space)) if len(self.joint) else self.observations


def spaces_by_agent(space: gym.Space | None) -> dict[Any, Any]:
    """Return the spaces in a Dict space by agent, empty for any other space."""
    return parts_of(space) if is_dict(space) else {}


def _changed_spaces(known: ByAgent, new: ByAgent | None) -> dict[Any, Any]:
    """Return the spaces in `new` that are missing in `known` or differ from it, by agent id."""
    return {
        agent_id: space
        for agent_id, space in (new or {}).items()
        if space is not None and known.get(agent_id) is not space and known.get(agent_id) != space
    }
