"""`ProcessVectorEnv`: a vector environment with a process for each environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import CustomSpaceError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import (
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)

from episode_runners.env_process import EnvProcess, close_processes, kill_processes
from episode_runners.restarts import EnvPlace, EnvReplacement, advised
from episode_runners.serial_envs import checked_reset, checked_step
from episodes.data_types import NestedArrays
from episodes.errors import EpisodeStateError, InvalidArgument
from episodes.tracks.copies import copied

__all__ = ["ProcessVectorEnv"]


class ProcessVectorEnv(VectorEnv):
    """Vector environment with a process for each environment, and the results of Gymnasium's `AsyncVectorEnv`.

    An error of an environment is raised here, and its process goes on. The processes leave Ctrl-C to this one. `close`
    returns within seconds, whatever the environments do.

    Args:
        make: makes an environment, in its process.
        num_envs: number of environments, N.
        like: an environment of the same kind, from which the spaces are read.
        autoreset_mode: how the environments are reset.
        timeout_s: seconds within which an environment must be made, be reset, or step. None: no limit.
        restart_failed: replace an environment that raises an error, dies, or does not reply in time.

    Attributes:
        replaced: indices of the environments that failed in the newest `step`. Their row is no step: its observation is
            the first one of a new environment.
        replacements: all replacements.

    Raises:
        EnvironmentLost: a process has died.
    """

    def __init__(
        self,
        make: Callable[[], gym.Env],
        num_envs: int,
        like: gym.Env,
        *,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        timeout_s: float | None = None,
        restart_failed: bool = False,
    ) -> None:
        self.num_envs, self.autoreset_mode, self.restart_failed = num_envs, autoreset_mode, restart_failed
        self.metadata = {**like.metadata, "autoreset_mode": autoreset_mode}
        self.render_mode = like.render_mode
        self.single_observation_space, self.single_action_space = like.observation_space, like.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.spec = None
        self.replaced: list[int] = []
        self.replacements: list[EnvReplacement] = []
        self._make, self._timeout_s, self._like = make, timeout_s, like
        self._newest = _NewestObservations(self.single_observation_space, num_envs)
        self._places = [EnvPlace(i, self._maker(i), self.replacements) for i in range(num_envs)]
        self._workers: list[EnvProcess] = []
        try:
            self._workers += [self._start(i) for i in range(num_envs)]
            for i, process in enumerate(self._workers):
                self._received(i, process, None)
        except BaseException:
            kill_processes(self._workers)
            raise

    def _start(self, index: int) -> EnvProcess:
        make = partial(_Served, self._make)
        label = f"environment {index} ({_kind_of(self._like)})"
        return EnvProcess(make, label, self._timeout_s, (index, self.autoreset_mode, self._newest.memory))

    def _maker(self, index: int) -> Callable[[], EnvProcess]:
        """Return a function that starts the process of an environment."""

        def make() -> EnvProcess:
            """Start the process, and wait until the environment was made."""
            self._workers[index] = process = self._start(index)
            process.receive()
            return process

        return make

    @property
    def processes(self) -> list[BaseProcess]:
        """Processes of the environments, by index."""
        return [worker.process for worker in self._workers]

    # --- stepping ------------------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int | None] | np.ndarray | None = None, options: dict[str, Any] | None = None
    ) -> Any:
        """Reset all environments, or those of `options["reset_mask"]`, bool [N].

        An environment whose message was interrupted gets a new process.
        """
        self._check_open()
        seeds = list(seed) if isinstance(seed, (list, tuple, np.ndarray)) else [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            seeds = [int(seed) + i for i in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise InvalidArgument(f"reset: {len(seeds)} seeds for {self.num_envs} environments; give one for each")
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        envs = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        for i in envs:
            self._places[i].note_reset(seeds[i])
            if self._workers[i].is_torn:
                self._workers[i].kill()
                self._maker(i)()
            self._workers[i].send("reset", seeds[i], options or None)
        results = [(i, self._received(i, self._workers[i], options or None)) for i in envs]
        infos: dict[str, Any] = {}
        for i, (_, info) in results:
            infos = self._add_info(infos, info, i)
        self.replaced = []
        return self._newest.after([(i, observation) for i, (observation, _) in results]), infos

    def step(self, actions: NestedArrays) -> Any:
        """Step all environments at the same time.

        Raises:
            EnvironmentLost: a process has died or does not reply, or an environment has failed too often.
            WrongType, ShapeMismatch: an environment returned values that do not fit.
            Exception: an error of an environment.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: NestedArrays) -> None:
        """Send the actions to the environments."""
        self._check_open()
        for process, action in zip(self._workers, iterate(self.action_space, actions), strict=True):
            process.send("step", action)

    def step_wait(self) -> Any:
        """Return the results of the step that `step_async` has started. Errors are those of `step`."""
        num_envs, infos, observed = self.num_envs, {}, []
        rewards, flags = np.zeros(num_envs, np.float64), np.zeros((2, num_envs), bool)
        self.replaced = []
        for i in range(num_envs):
            num_replacements = len(self.replacements)
            result = self._received(i, self._workers[i], None)
            if len(self.replacements) > num_replacements:
                observation, info = result
                self.replaced.append(i)
            else:
                observation, rewards[i], flags[0, i], flags[1, i], info = result
                if flags[:, i].any():
                    self._places[i].note_end()
            observed.append((i, observation))
            if info:
                infos = self._add_info(infos, info, i)
        return self._newest.after(observed), rewards, flags[0], flags[1], infos

    def _received(self, i: int, process: EnvProcess, options: dict[str, Any] | None) -> Any:
        """Return the result of a call of environment `i`. If it has failed, return the reset of a new environment."""
        try:
            return process.receive()
        except Exception as error:
            if not self.restart_failed:
                raise advised(error) from error.__cause__
            failure = error
        reset = lambda new, seed: new.call("reset", seed, options)  # noqa: E731
        return self._places[i].replace(failure, process.kill, reset)[1]

    def _check_open(self) -> None:
        if self.closed:
            raise EpisodeStateError("the vector environment is closed; make a new one")

    # --- other calls ---------------------------------------------------------------------------------------------

    def call(self, name: str, *args: object, **kwargs: object) -> tuple[Any, ...]:
        """Return an attribute of each environment, or the results of a method."""
        self._check_open()
        for process in self._workers:
            process.send("attribute", name, args, kwargs)
        return tuple(process.receive() for process in self._workers)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment."""
        return self.call(name)

    def set_attr(self, name: str, values: object) -> None:
        """Set an attribute of each environment, to one value for all or a list of N values."""
        self._check_open()
        values = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(values) != self.num_envs:
            raise InvalidArgument(f"set_attr: {len(values)} values for {self.num_envs} environments; give one for each")
        for process, value in zip(self._workers, values, strict=True):
            process.send("set_attribute", name, value)
        for process in self._workers:
            process.receive()

    def render(self) -> tuple[Any, ...]:
        """Return what the environments' `render` returns."""
        return self.call("render")

    def with_num_envs(self, num_envs: int) -> ProcessVectorEnv:
        """Return a vector environment of other environments of the same kind."""
        return ProcessVectorEnv(
            self._make,
            num_envs,
            self._like,
            autoreset_mode=self.autoreset_mode,
            timeout_s=self._timeout_s,
            restart_failed=self.restart_failed,
        )

    def terminate(self) -> None:
        """Kill all processes at once."""
        self.closed = True
        kill_processes(self._workers)

    def close_extras(self, **kwargs: object) -> None:
        """Close the environments and end their processes within seconds. Those that do not close are killed."""
        close_processes(self._workers)

    def __repr__(self) -> str:
        return f"ProcessVectorEnv({_kind_of(self._like)}, num_envs={self.num_envs})"


def _kind_of(env: gym.Env) -> str:
    """Return the id of an environment, or the name of its class."""
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


class _NewestObservations:
    """Newest observations of all environments, in memory that their processes share if the space allows it.

    Args:
        space: space of one environment's observations.
        num_envs: number of environments N.

    Attributes:
        memory: the shared memory, or None: the processes send observations with their results.
    """

    def __init__(self, space: gym.Space, num_envs: int) -> None:
        self._space = space
        self._items: list[Any] = [None] * num_envs  # the newest observations, if no memory is shared
        try:
            self.memory: Any = create_shared_memory(space, n=num_envs)
            self._batch = read_from_shared_memory(space, self.memory, n=num_envs)
        except CustomSpaceError:
            self.memory = None
            self._batch = create_empty_array(space, n=num_envs)

    def after(self, observed: list[tuple[int, Any]]) -> Any:
        """Return a copy [N, ...] of the newest observations, after those outside of the shared memory, given with the
        index of their environment, were put in.
        """
        if self.memory is None:
            for i, observation in observed:
                self._items[i] = observation
            self._batch = concatenate(self._space, self._items, self._batch)
        return deepcopy(self._batch)


class _Served:
    """An environment in its process: it resets itself, checks its results and writes observations to shared memory.

    Args:
        make: makes the environment.
        index: index of the environment.
        mode: the autoreset mode.
        memory: shared memory of the observations of all environments. None: observations are part of the results.
    """

    def __init__(self, make: Callable[[], gym.Env], index: int, mode: AutoresetMode, memory: object) -> None:
        self._env, self._index, self._mode, self._memory = make(), index, mode, memory
        self._has_ended = False

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        observation, info = checked_reset(self._env.reset(seed=seed, options=options), self._env.observation_space)
        self._has_ended = False
        return self._shared(observation), info

    def step(self, action: object) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, or reset it if the autoreset mode says so."""
        if self._has_ended:
            if self._mode is AutoresetMode.DISABLED:
                raise EpisodeStateError("the environment has ended; reset it before the next step")
            observation, info = self.reset(None, None)
            return observation, 0.0, False, False, info
        row = checked_step(self._env.step(action), self._env.observation_space)
        observation, reward, terminated, truncated, info = row
        if (terminated or truncated) and self._mode is AutoresetMode.SAME_STEP:
            last = copied({"final_info": info, "final_obs": observation})  # `reset` may reuse its arrays
            observation, reset_info = self.reset(None, None)
            return observation, reward, terminated, truncated, {**last, **reset_info}
        self._has_ended = terminated or truncated
        return self._shared(observation), reward, terminated, truncated, info

    def _shared(self, observation: object) -> Any:
        """Write the observation to the shared memory and return None, or return it if there is no such memory."""
        if self._memory is None:
            return observation
        write_to_shared_memory(self._env.observation_space, self._index, observation, self._memory)
        return None

    def attribute(self, name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
        """Return an attribute of the environment, or the result of a method."""
        attribute = self._env.get_wrapper_attr(name)
        return attribute(*args, **kwargs) if callable(attribute) else attribute

    def set_attribute(self, name: str, value: object) -> None:
        """Set an attribute of the environment."""
        self._env.set_wrapper_attr(name, value)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
