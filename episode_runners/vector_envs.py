"""Vector environments out of ids, makers and environments, and how they go on after an ending."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from episode_runners.serial_envs import SerialVectorEnv
from episodes.errors import InvalidArgument, WrongType
from episodes.recorder.boundaries import checked_mode
from episodes.tracks.validation import checked_count

__all__ = ["EnvLike", "autoreset_mode_of", "close_vector_env", "env_like", "make_vector_env"]

EnvLike = str | VectorEnv | gym.Env | Callable[[], gym.Env | VectorEnv]

_KINDS = {"sync": SerialVectorEnv, "async": AsyncVectorEnv}


def make_vector_env(
    env: EnvLike,
    num_envs: int | None = None,
    *,
    vectorization: str = "sync",
    autoreset_mode: AutoresetMode | str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> VectorEnv:
    """A vector environment of an environment's id, of a maker of environments, or the one that is given.

    Args:
        env: a Gymnasium id; a callable that makes an environment (it is called `num_envs` times) or a vector
            environment; a vector environment; or, with one environment only, an environment.
        num_envs: how many; 1 by default, and what a vector environment has.
        vectorization: "sync" (one after another), "async" (a process each), or for an id "vector_entry_point" (the
            environment's own vector environment), where environments are made here.
        autoreset_mode: likewise; next-step by default.
        env_kwargs: arguments for `gymnasium.make` of an id.
    """
    _check_needs_no_adapter(env)
    if env_kwargs is not None and not isinstance(env_kwargs, Mapping):
        raise WrongType(f"env_kwargs={env_kwargs!r}: give a dict of what `gymnasium.make` takes")
    if isinstance(env, VectorEnv):
        return _checked_count(env, num_envs)
    if isinstance(env, str):
        _check_registered(env)
        if vectorization == "vector_entry_point":
            return _own_vector_env(env, 1 if num_envs is None else num_envs, env_kwargs or {})
        maker: Callable[[], Any] = lambda: gym.make(env, **(env_kwargs or {}))  # noqa: E731
    elif isinstance(env, gym.Env):
        if num_envs not in (None, 1):
            raise InvalidArgument(f"one environment cannot be {num_envs}: give a callable that makes one")
        maker = _only(env)
    elif callable(env):
        maker = env
    else:
        raise WrongType(
            f"env is a {type(env).__name__}; give an id, a callable that makes one, or a vector environment"
        )
    return _vector_of(
        maker, num_envs, vectorization, AutoresetMode.NEXT_STEP if autoreset_mode is None else autoreset_mode
    )


def _check_needs_no_adapter(env: Any) -> None:
    """Raise for what steps many environments but is none of Gymnasium's vector environments, naming its adapter."""
    if hasattr(env, "async_reset") and hasattr(env, "recv"):
        raise InvalidArgument(
            f"{type(env).__name__} is a bare EnvPool, which calls a fall at its time limit truncated only and takes no "
            "seed: give EnvPoolVectorEnv(task, num_envs) of episode_runners.environments"
        )
    if isinstance(env, (VectorEnv, gym.Env)) or not (hasattr(env, "step") and hasattr(env, "reset")):
        return
    if hasattr(env, "num_envs"):
        raise WrongType(
            f"{type(env).__name__} steps {env.num_envs} environments and is no gymnasium.vector.VectorEnv, so its "
            "spaces and autoreset mode are not known: for one that lives in torch give TorchVectorEnv(simulator, "
            "observation_space, action_space) of episode_runners.environments; or derive from VectorEnv and state its "
            "metadata['autoreset_mode']"
        )
    if hasattr(env, "possible_agents"):
        raise WrongType(f"{type(env).__name__} is an environment of several agents: give it to a MultiAgentEnvRunner")


def _only(env: gym.Env) -> Callable[[], gym.Env]:
    """What gives the environment once."""
    given = [env]

    def maker() -> gym.Env:
        if not given:
            raise InvalidArgument(f"there is one {env} only: give a callable that makes others like it")
        return given.pop()

    return maker


def _check_registered(env_id: str) -> None:
    module, _, name = env_id.rpartition(":")  # "module:Name-v0" is registered by importing the module
    try:
        if module:
            import_module(module)
        gym.spec(name)
    except (gym.error.Error, ImportError) as error:
        raise InvalidArgument(f"no environment {env_id!r}: {error}") from error


def _own_vector_env(env_id: str, num_envs: int, env_kwargs: Mapping[str, Any]) -> VectorEnv:
    try:
        return gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **env_kwargs)
    except gym.error.Error as error:
        raise InvalidArgument(f"{env_id} has no vector environment of its own: {error}") from error


def _vector_of(
    maker: Callable[[], Any], num_envs: int | None, vectorization: str, mode: AutoresetMode | str
) -> VectorEnv:
    if not isinstance(vectorization, str) or vectorization not in _KINDS:
        known = "'sync', 'async', and for ids 'vector_entry_point'"
        raise InvalidArgument(f"vectorization={vectorization!r}; there are {known}")
    count = 1 if num_envs is None else num_envs
    count = checked_count("num_envs", count)
    mode = checked_mode(mode)
    first = maker()
    if isinstance(first, VectorEnv):
        return _checked_count(first, num_envs)
    if not isinstance(first, gym.Env):
        raise WrongType(f"the maker gave a {type(first).__name__}; it must make a Gymnasium environment")
    if vectorization == "async":
        first.close()
        return AsyncVectorEnv([maker] * count, autoreset_mode=mode)
    made = [first]
    return SerialVectorEnv([lambda: made.pop() if made else maker()] * count, autoreset_mode=mode)


def _checked_count(env: VectorEnv, num_envs: int | None) -> VectorEnv:
    if num_envs not in (None, env.num_envs):
        raise InvalidArgument(f"the vector environment has {env.num_envs} environments, not num_envs={num_envs}")
    return env


def env_like(env: EnvLike, num_envs: int) -> EnvLike:
    """What makes other environments as these are made: an id or a maker itself, new ones [num_envs] of an object.

    Raises:
        InvalidArgument: the object does not say how it was made.
    """
    if isinstance(env, gym.Env):
        if env.spec is not None:
            return partial(gym.make, env.spec)
    elif not isinstance(env, VectorEnv):
        return env
    elif isinstance(env, (SyncVectorEnv, AsyncVectorEnv)) and isinstance(env.env_fns, Sequence):
        return type(env)(env.env_fns[:num_envs], autoreset_mode=autoreset_mode_of(env))
    elif (make_others := getattr(env, "with_num_envs", None)) is not None:
        return make_others(num_envs)
    elif not isinstance(env, VectorWrapper) and env.spec is not None and "num_envs" in env.spec.kwargs:
        options = dict(env.spec.kwargs)
        del options["num_envs"]
        return gym.make_vec(replace(env.spec, kwargs=options), num_envs, options.pop("vectorization_mode", None))
    raise InvalidArgument(
        f"{env} does not say how others like it are made: give the runner an id, or a callable that makes it; or call "
        "evaluate(env, runner.actor) with environments for evaluation"
    )


def close_vector_env(env: VectorEnv) -> None:
    """Close the environments, also where a process of them was killed: then the others are terminated."""
    try:
        env.close()
    except (BrokenPipeError, ConnectionResetError, EOFError):
        unwrapped = env.unwrapped
        if not isinstance(unwrapped, AsyncVectorEnv):
            raise
        for process, pipe in zip(unwrapped.processes, unwrapped.parent_pipes, strict=True):
            process.terminate()
            process.join()
            pipe.close()
        unwrapped.closed = True


def autoreset_mode_of(env: VectorEnv, given: AutoresetMode | str | None = None) -> AutoresetMode:
    """How the vector environment goes on after an ending: what it says itself, else what is given.

    Raises:
        InvalidArgument: an unknown mode, none at all, or one that the environment contradicts.
    """
    unwrapped = env.unwrapped
    own = getattr(unwrapped, "autoreset_mode", None)  # first: several environments may share one metadata dict
    if own is None:
        own = (unwrapped.metadata or {}).get("autoreset_mode")
    stated = given if own is None else own
    if stated is None:
        raise InvalidArgument(
            f"{unwrapped} does not say its autoreset mode (metadata['autoreset_mode']); pass autoreset_mode"
        )
    mode = checked_mode(stated)
    if given is not None and checked_mode(given) is not mode:
        raise InvalidArgument(f"autoreset_mode={given!r}, but {unwrapped} says {mode}")
    return mode
