"""Copies of a multi-agent environment: made, reset with seeds, replaced if they fail, and closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym

from episode_runners.dropped_envs import makes_envs
from episode_runners.env_process import EnvProcess, close_processes
from episode_runners.environment_errors import check_distinct
from episode_runners.multi_agent_envs import DictEnv, EnvStep, MultiAgentEnv, TurnBasedEnv, as_multi_agent_env
from episode_runners.restarts import EnvPlace, EnvReplacement, advised
from episodes.data_types import AgentID
from episodes.errors import InvalidArgument
from episodes.tracks.validation import checked_choice, checked_flag, checked_number

__all__ = ["EnvCopies", "ProcessMultiAgentEnv"]


class ProcessMultiAgentEnv(MultiAgentEnv):
    """Adapter of an environment in a process of its own. Its errors are those of `EnvProcess`.

    Args:
        make: makes the environment, in the process.
        label: name of the environment in errors.
        timeout_s: seconds within which the environment must be made, be reset, or step. None: no limit.
    """

    def __init__(self, make: Callable[[], Any], label: str, timeout_s: float | None) -> None:
        process = EnvProcess(partial(as_multi_agent_env, make), label, timeout_s)
        super().__init__(process)
        try:
            process.receive()
        except BaseException:
            process.kill()
            raise

    def reset(self, seed: int | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Reset the environment, and return the observations and infos of the agents that act first."""
        return self.env.call("reset", seed)

    def step(self, actions: Mapping[Any, Any]) -> EnvStep:
        """Take one env step."""
        self.begin_step(actions)
        return self.finish_step()

    def begin_step(self, actions: Mapping[Any, Any]) -> None:
        """Send the actions to the process."""
        self.env.send("step", dict(actions))

    def finish_step(self) -> EnvStep:
        """Wait for the result of the step."""
        return self.env.receive()

    def space(self, kind: str, agent_id: AgentID) -> gym.Space:
        """Return an agent's space."""
        return self.env.call("space", kind, agent_id)

    def render(self) -> Any:
        """Return what the environment's `render` returns."""
        return self.env.call("render")

    def close(self) -> None:
        """Close the environment and end its process within seconds."""
        self.env.close()


class EnvCopies:
    """Copies of a multi-agent environment, in which failed copies are replaced if `restart_failed` is True.

    Args:
        env: an environment, or a callable that makes one.
        num_envs: number of copies.
        vectorization: "sync", or "async" for a process for each copy.
        restart_failed: replace a copy that raises an error, or whose process dies or does not reply in time.
        timeout_s: seconds within which a copy must be made, be reset, or step. None: no limit.

    Attributes:
        envs: the copies. A replaced one is replaced in this list.
        seeds: the seed of the next reset of each copy, or None.
        restarted: first observations and infos of new copies that no episode has yet, by index.
        replacements: all replacements.

    Raises:
        InvalidArgument: an argument is unknown or not possible with these environments, or a callable returns one
            object twice.
    """

    def __init__(
        self, env: object, num_envs: int, vectorization: str, restart_failed: bool, timeout_s: float | None
    ) -> None:
        self.restart_failed = checked_flag("restart_failed", restart_failed)
        self._is_async = checked_choice("vectorization", vectorization, ("sync", "async")) == "async"
        self._timeout_s = None if timeout_s is None else checked_number("env_timeout_s", timeout_s, low=0)
        if (restart_failed or self._is_async) and not makes_envs(env):
            raise InvalidArgument(
                f"restart_failed={restart_failed}, vectorization={vectorization!r} with one environment: give a "
                "callable that makes it"
            )
        if timeout_s is not None and not self._is_async:
            raise InvalidArgument(
                f"env_timeout_s={timeout_s:g} with vectorization='sync': an environment can only be stopped in a "
                "process of its own; give vectorization='async'"
            )
        self._env: Any = env
        self.replacements: list[EnvReplacement] = []
        self._places = [EnvPlace(i, partial(self._make, i), self.replacements) for i in range(num_envs)]
        self.envs: list[MultiAgentEnv] = []
        self.seeds: list[int | None] = [None] * num_envs
        self.restarted: dict[int, tuple[dict[Any, Any], dict[Any, Any]]] = {}
        try:
            for i in range(num_envs):
                self.envs.append(self._make(i))
            check_distinct(self.unadapted())
        except BaseException:
            for made in self.envs:
                made.close()
            raise
        self._open = self.envs  # copies that were not closed yet

    def like(self) -> tuple[Any, dict[str, Any]]:
        """Return the arguments of a runner for copies that are made like these: `env`, and the others by name.

        Raises:
            InvalidArgument: there is one environment, and no callable that makes it.
        """
        if not makes_envs(self._env):
            raise InvalidArgument(
                f"{self._env} is one environment: give the runner a callable that makes it, or call "
                "evaluate(env, runner.actors, ...) with one for evaluation"
            )
        vectorization = "async" if self._is_async else "sync"
        options = {"vectorization": vectorization, "restart_failed": self.restart_failed}
        return self._env, options | {"env_timeout_s": self._timeout_s}

    def unadapted(self) -> list[Any]:
        """Return the environments without the adapters that were made for them here."""
        return [copy.env if type(copy) in (DictEnv, TurnBasedEnv) else copy for copy in self.envs]

    def _make(self, i: int) -> MultiAgentEnv:
        """Make copy `i`."""
        if self._is_async:
            return ProcessMultiAgentEnv(self._env, f"environment {i}", self._timeout_s)
        return as_multi_agent_env(self._env)

    def reset(self, i: int, *, keep_seed: bool = False) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Reset copy `i`, or a new one in its place, and return its first observations and infos.

        Its seed is used once, unless `keep_seed` is True.
        """
        seed = self.seeds[i]
        if not keep_seed:
            self.seeds[i] = None
        self._places[i].note_reset(seed)
        env = self.envs[i]
        if isinstance(env, ProcessMultiAgentEnv) and env.env.is_torn:  # by a second Ctrl-C
            env.env.kill()
            self.envs[i] = self._make(i)
        try:
            try:
                return self.envs[i].reset(seed)
            except Exception as error:
                if not self.restart_failed:
                    raise advised(error) from error.__cause__
                return self.replace(i, error)
        except Exception as error:
            error.add_note(f"environment {i}, its reset")
            raise

    def replace(self, i: int, error: Exception) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Replace copy `i`, which failed with `error`, and return the first observations and infos of the new one."""
        self.envs[i], first = self._places[i].replace(error, self.envs[i].close, lambda env, seed: env.reset(seed))
        return first

    def close(self) -> list[Exception]:
        """Close all copies, also if one fails, and return the errors."""
        errors = []
        close_processes([env.env for env in self.envs if isinstance(env, ProcessMultiAgentEnv)])
        while self._open:
            try:
                self._open[0].close()
            except Exception as error:
                errors.append(error)
            self._open = self._open[1:]
        return errors

    def note_end(self, i: int) -> None:
        """Note that an episode of copy `i` has ended."""
        self._places[i].note_end()
