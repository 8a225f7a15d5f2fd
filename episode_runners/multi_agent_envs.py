"""Adapters that give PettingZoo's parallel and turn-based environments and dict environments one common interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import gymnasium as gym

from episode_runners.dropped_envs import makes_envs
from episodes.errors import EpisodeStateError, UnknownKey, WrongType
from episodes.tracks.copies import copied
from episodes.tracks.space_kinds import is_dict

__all__ = ["DictEnv", "EnvStep", "MultiAgentEnv", "TurnBasedEnv", "as_multi_agent_env"]


class EnvStep(NamedTuple):
    """Result of one env step of a multi-agent environment: observations, rewards, infos and end flags by agent id."""

    observations: dict[Any, Any]
    rewards: dict[Any, Any]
    infos: dict[Any, Any]
    terminateds: Mapping[Any, bool]
    truncateds: Mapping[Any, bool]
    is_over: bool  # whether no agent is left


class MultiAgentEnv:
    """Base class of adapters through which a `MultiAgentEnvRunner` resets and steps an environment.

    Args:
        env: the environment.
    """

    def __init__(self, env: object) -> None:
        self.env: Any = env

    def reset(self, seed: int | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Reset the environment, and return the observations and infos, by agent id, of the agents that act first."""
        raise NotImplementedError

    def begin_step(self, actions: Mapping[Any, Any]) -> None:
        """Begin an env step, whose result `finish_step` returns. An environment in another process works meanwhile."""
        self._actions = actions

    def finish_step(self) -> EnvStep:
        """Return the result of the env step that `begin_step` has begun."""
        return self.step(self._actions)

    def step(self, actions: Mapping[Any, Any]) -> EnvStep:
        """Take one env step with the actions, by agent id, of the agents that must act, and return its result."""
        raise NotImplementedError

    def space(self, kind: str, agent_id: Any) -> gym.Space:
        """Return an agent's observation or action space, read from the environment's `observation_space`,
        `observation_spaces` or `get_observation_space` (or the same names with `action`).

        Args:
            kind: "observation_space" or "action_space".
            agent_id: id of the agent.

        Raises:
            UnknownKey: the environment has no such space for the agent.
        """
        env = self.env
        member: Any = getattr(env, kind, None)
        if not isinstance(member, gym.Space) and callable(member):  # first: PettingZoo warns when its dict is read
            return cast(gym.Space, member(agent_id))
        by_agent = getattr(env, f"{kind}s", None)
        if isinstance(by_agent, Mapping) and agent_id in by_agent:
            return by_agent[agent_id]
        if is_dict(member) and agent_id in member.spaces:
            return member.spaces[agent_id]
        if isinstance(member, gym.Space):
            return member
        getter: Callable[[Any], gym.Space] | None = getattr(env, f"get_{kind}", None)
        if getter is not None:
            return getter(agent_id)
        raise UnknownKey(f"{env!r} has no {kind} for agent {agent_id!r}; define {kind}s, a dict by agent id")

    def render(self) -> Any:
        """Return what the environment's `render` returns."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment, if it has a method for that."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()


def as_multi_agent_env(env: object) -> MultiAgentEnv:
    """Return an adapter with the interface `MultiAgentEnv` for an environment. A callable is called to create the
    environment.

    Args:
        env: a PettingZoo environment of either kind, an environment with `reset` and `step` that take and return dicts
            by agent, or a callable that makes one.

    Raises:
        WrongType: `env` is, or returns, another object.
    """
    if makes_envs(env):
        env = env()
    if isinstance(env, MultiAgentEnv):
        return env
    if hasattr(env, "last") and hasattr(env, "agent_iter"):
        return TurnBasedEnv(env)
    if hasattr(env, "step") and hasattr(env, "reset"):
        return DictEnv(env)
    raise WrongType(
        f"{env!r} is not a multi-agent environment; give a PettingZoo environment, or an environment with reset and "
        "step for dicts by agent"
    )


class DictEnv(MultiAgentEnv):
    """Adapter for environments whose agents act at the same time, such as PettingZoo's parallel environments.

    Observations and infos are copied, because many environments reuse their arrays and dicts.
    """

    def reset(self, seed: int | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Reset the environment, and return observations and infos by agent id. Raise an error if there are no
        agents.

        Raises:
            WrongType: the environment's `reset` does not return two dicts.
        """
        observations, infos = checked_parts(self.env, "reset", self.env.reset(seed=seed), ("observations", "infos"))
        agents = getattr(self.env, "agents", None)
        if not observations and agents is not None and not agents:
            raise _has_nobody(self.env)
        return copied(observations), copied(infos)

    def step(self, actions: Mapping[Any, Any]) -> EnvStep:
        """Step the environment with the agents' actions, and return the results by agent id.

        `is_over` is True if the environment's list `agents` is empty and the flags lack "__all__", which otherwise
        ends the episode.

        Raises:
            WrongType: the environment's `step` does not return five dicts.
        """
        result = self.env.step(copied(dict(actions)))
        observations, rewards, terminateds, truncateds, infos = checked_parts(self.env, "step", result, _STEP)
        agents = getattr(self.env, "agents", None)  # PettingZoo's list of living agents
        has_all = "__all__" in terminateds or "__all__" in truncateds
        is_over = agents is not None and not agents and not has_all
        return EnvStep(copied(observations), rewards, copied(infos), terminateds, truncateds, is_over)


class TurnBasedEnv(MultiAgentEnv):
    """Adapter for PettingZoo's turn-based (AEC) environments, in which one env step is the turn of one agent.

    The agent whose turn it is gets an observation, and the reward that `last()` has accumulated since its last action.
    In PettingZoo, an agent that is dead has one more turn with the action None. The adapter takes that turn within the
    env step in which the agent died, so that its last observation and reward belong to this step.
    """

    def reset(self, seed: int | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Reset the environment, and return the first agent's observation and info.

        Raises:
            EpisodeStateError: all agents have ended, or one ends before its first step.
        """
        self.env.reset(seed=seed)
        self._acted: set[Any] = set()
        first = self._next_turn()
        if first.is_over:
            raise _has_nobody(self.env)
        if first.terminateds:
            raise EpisodeStateError(f"{self.env}.reset: the agents {list(first.terminateds)} have ended before a step")
        return first.observations, first.infos

    def step(self, actions: Mapping[Any, Any]) -> EnvStep:
        """Execute the action of the agent whose turn it is, and continue to the next turn.

        Raises:
            UnknownKey: `actions` are not of this agent alone.
        """
        selected = self.env.agent_selection
        if set(actions) != {selected}:
            raise UnknownKey(f"agent {selected!r} must act, but the actions are of {list(actions)}; pass its action")
        self._acted.add(selected)
        self.env.step(copied(actions[selected]))
        return self._next_turn()

    def _next_turn(self) -> EnvStep:
        """Advance to the next turn of a living agent, and return the results since the last turn.

        For agents that have ended, the environment is stepped with the action None, as PettingZoo requires.
        """
        step = EnvStep({}, {}, {}, {}, {}, False)
        terminateds, truncateds = {}, {}
        env = self.env
        while env.agents:
            agent_id = env.agent_selection
            observation, reward, terminated, truncated, info = env.last()
            step.observations[agent_id] = copied(observation)
            step.infos[agent_id] = copied(info)
            if agent_id in self._acted or reward:
                step.rewards[agent_id] = reward
            if not (terminated or truncated):
                break
            terminateds[agent_id], truncateds[agent_id] = terminated, truncated
            env.step(None)
        return step._replace(terminateds=terminateds, truncateds=truncateds, is_over=not env.agents)


def _has_nobody(env: object) -> EpisodeStateError:
    """Return the error for an environment without agents after its reset."""
    return EpisodeStateError(f"{env}.reset: env.agents is empty, so the episode is over before its first step")


_STEP = ("observations", "rewards", "terminateds", "truncateds", "infos")


def checked_parts(env: object, call: str, result: object, names: tuple[str, ...]) -> Any:
    """Check that an environment's `reset` or `step` returned dicts by agent id, and return its result.

    Args:
        env: the environment, for error messages.
        call: "reset" or "step".
        result: the result of the call.
        names: the names of the parts that the result must have, such as ("observations", "infos").

    Raises:
        WrongType: a part is missing or is not a dict.
    """
    if not isinstance(result, (tuple, list)) or len(result) != len(names):
        returned = f"{len(result)} items" if isinstance(result, (tuple, list)) else f"a {type(result).__name__}"
        raise WrongType(f"{env}.{call} returned {returned}; return ({', '.join(names)}), each a dict by agent")
    for name, part in zip(names, result, strict=True):
        if not (type(part) is dict or isinstance(part, Mapping) or (part is None and name == "infos")):
            raise WrongType(f"{env}.{call}: {name} are a {type(part).__name__}; give a dict by agent")
    return result
