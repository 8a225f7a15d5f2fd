"""Functions that create vector environments and determine their autoreset mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from episode_runners.async_envs import check_is_not_cast, close_async_env
from episode_runners.environment_errors import check_distinct
from episode_runners.process_envs import ProcessVectorEnv
from episode_runners.serial_envs import SerialVectorEnv
from episodes.errors import InvalidArgument, WrongType
from episodes.recorder.boundaries import checked_mode
from episodes.tracks.validation import checked_count, checked_flag, checked_number

__all__ = ["EnvLike", "autoreset_mode_of", "close_vector_env", "env_like", "envs_of", "make_vector_env"]

EnvLike = str | VectorEnv | gym.Env | Callable[[], gym.Env | VectorEnv]

_KINDS = ("sync", "async")


def make_vector_env(
    env: EnvLike,
    num_envs: int | None = None,
    *,
    vectorization: str = "sync",
    autoreset_mode: AutoresetMode | str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    restart_failed: bool = False,
    env_timeout_s: float | None = None,
) -> VectorEnv:
    """Return a vector environment, made from a Gymnasium id, a function that makes environments, or one environment.

    Args:
        env: a Gymnasium id; a callable that makes an environment (called `num_envs` times) or a vector environment; a
            vector environment, which is returned itself; or one environment.
        num_envs: number of environments, 1 by default. A given vector environment must have this number.
        vectorization: "sync" steps the environments one after another, "async" runs a process for each. For an id,
            "vector_entry_point" makes the environment's own vector environment.
        autoreset_mode: autoreset mode of the environments made here, next-step by default.
        env_kwargs: keyword arguments for `gymnasium.make`, if `env` is an id.
        restart_failed: replace an environment that raises an error, or whose process dies or does not reply in time.
            It must be made here, with next-step autoreset. Values that do not fit the spaces stay errors.
        env_timeout_s: seconds within which an environment must be made, be reset, or step. None: no limit. It needs
            "async", since an environment can only be stopped in a process of its own.

    Raises:
        InvalidArgument: an id, vectorization or mode is unknown, a given vector environment has another number of
            environments, one environment is given for several or for "async", or a callable returns one object twice.
            Or `restart_failed` or `env_timeout_s` is not possible with these environments.
        WrongType: `env` is not an id, callable, vector environment or environment, a callable returns no environment,
            or `env_kwargs` is not a dict.
        ShapeMismatch: a given `AsyncVectorEnv` casts observations with loss: its environments return floats in a space
            of whole numbers, for example. One more environment is made, reset and stepped once to find this out.
    """
    _check_needs_no_adapter(env)
    care = _checked_care(env, vectorization, autoreset_mode, restart_failed, env_timeout_s)
    if env_kwargs is not None and not isinstance(env_kwargs, Mapping):
        raise WrongType(f"env_kwargs={env_kwargs!r}: give a dict of arguments for `gymnasium.make`")
    if isinstance(env, VectorEnv):
        return _checked_vector_env(env, num_envs)
    if isinstance(env, str):
        _check_registered(env)
        if vectorization == "vector_entry_point":
            return _make_own_vector_env(env, 1 if num_envs is None else num_envs, env_kwargs or {})
        maker: Callable[[], Any] = lambda: gym.make(env, **(env_kwargs or {}))  # noqa: E731
    elif isinstance(env, gym.Env):
        if num_envs not in (None, 1) or vectorization == "async":
            raise InvalidArgument(
                f"num_envs={num_envs}, vectorization={vectorization!r} with a single environment: give a callable that "
                "makes an environment"
            )
        maker = _single_use_maker(env)
    elif callable(env):
        maker = env
    else:
        raise WrongType(
            f"env is a {type(env).__name__}; give an id, a callable that makes an environment, or a vector environment"
        )
    mode = AutoresetMode.NEXT_STEP if autoreset_mode is None else autoreset_mode
    return _vectorize(maker, num_envs, vectorization, mode, care)


class _Care(NamedTuple):
    """What happens to environments that fail. See `make_vector_env`."""

    restart_failed: bool
    env_timeout_s: float | None

    def check_possible_with(self, envs: str) -> None:
        """Raise `InvalidArgument` if any of this is wanted, with the reason: the environments are `envs`."""
        wanted = [name for name, value in self._asdict().items() if value not in (False, None)]
        if wanted:
            raise InvalidArgument(
                f"{wanted[0]}= with {envs}: give an id, or a callable that makes one environment, so that it can be "
                "made again"
            )


def _checked_care(
    env: EnvLike, vectorization: str, mode: AutoresetMode | str | None, restart_failed: bool, timeout_s: float | None
) -> _Care:
    """Return what is to happen to failed environments, after a check that it is possible.

    Raises:
        InvalidArgument: it is not.
    """
    restart_failed = checked_flag("restart_failed", restart_failed)
    if timeout_s is not None:
        timeout_s = checked_number("env_timeout_s", timeout_s, low=0)
    care = _Care(restart_failed, timeout_s)
    if isinstance(env, (VectorEnv, gym.Env)):
        care.check_possible_with("environments that were made before")
    if vectorization == "vector_entry_point":
        care.check_possible_with("the environment's own vector environment")
    if restart_failed and mode is not None and checked_mode(mode) is not AutoresetMode.NEXT_STEP:
        raise InvalidArgument(
            f"restart_failed=True with autoreset_mode={mode!r}: only next-step autoreset has rows that are no steps, "
            "as the first row of a new environment is; leave autoreset_mode out"
        )
    if timeout_s is not None and vectorization != "async":
        raise InvalidArgument(
            f"env_timeout_s={timeout_s:g} with vectorization={vectorization!r}: an environment can only be stopped in "
            "a process of its own; give vectorization='async'"
        )
    return care


def _check_needs_no_adapter(env: Any) -> None:
    """Raise an error with advice if `env` is not a Gymnasium environment, but of a known other kind.

    Raises:
        InvalidArgument: it is a bare EnvPool.
        WrongType: it is a batched simulator or a multi-agent environment.
    """
    if hasattr(env, "async_reset") and hasattr(env, "recv"):
        raise InvalidArgument(
            f"{type(env).__name__} is a bare EnvPool, which reports a termination in the last step before the time "
            "limit as a truncation, and takes no seed: give EnvPoolVectorEnv(task, num_envs) of "
            "episode_runners.environments"
        )
    if isinstance(env, (VectorEnv, gym.Env)) or not (hasattr(env, "step") and hasattr(env, "reset")):
        return
    if hasattr(env, "num_envs"):
        raise WrongType(
            f"{type(env).__name__} steps {env.num_envs} environments and is not a gymnasium.vector.VectorEnv, so its "
            "spaces and autoreset mode are not known: for a simulator with torch tensors give "
            "TorchVectorEnv(simulator, observation_space, action_space) of episode_runners.environments; or derive "
            "from VectorEnv and declare its metadata['autoreset_mode']"
        )
    if hasattr(env, "possible_agents"):
        raise WrongType(f"{type(env).__name__} is an environment of several agents: give it to a MultiAgentEnvRunner")


def _single_use_maker(env: gym.Env) -> Callable[[], gym.Env]:
    """Return a function that returns the environment `env` when it is first called,
    and raises `InvalidArgument` later.
    """
    unused = [env]

    def maker() -> gym.Env:
        """Return the environment at the first call. Raise `InvalidArgument` at later ones."""
        if not unused:
            raise InvalidArgument(f"{env} is a single environment; give a callable that creates environments")
        return unused.pop()

    return maker


def _check_registered(env_id: str) -> None:
    """Raise `InvalidArgument` unless an environment is registered in Gymnasium under the id `env_id`."""
    module, _, name = env_id.rpartition(":")  # "module:Name-v0" is registered by importing the module
    try:
        if module:
            import_module(module)
        gym.spec(name)
    except (gym.error.Error, ImportError) as error:
        raise InvalidArgument(f"no environment {env_id!r}: {error}") from error


def _make_own_vector_env(env_id: str, num_envs: int, env_kwargs: Mapping[str, Any]) -> VectorEnv:
    """Create the vector environment that an id has itself. Raise `InvalidArgument` if it has none."""
    try:
        return gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **env_kwargs)
    except gym.error.Error as error:
        raise InvalidArgument(f"{env_id} has no vector entry point: {error}; leave vectorization out") from error


def _vectorize(
    maker: Callable[[], Any], num_envs: int | None, vectorization: str, mode: AutoresetMode | str, care: _Care
) -> VectorEnv:
    """Return a vector environment of `num_envs` environments created by `maker`. A vector environment that `maker`
    returns is returned itself.

    Raises:
        InvalidArgument: `vectorization` or `mode` is unknown, or `num_envs` is not a count.
        WrongType: `maker` returns no environment.
    """
    if not isinstance(vectorization, str) or vectorization not in _KINDS:
        known = "'sync', 'async', and for ids 'vector_entry_point'"
        raise InvalidArgument(f"vectorization={vectorization!r}; give one of {known}")
    count = checked_count("num_envs", 1 if num_envs is None else num_envs)
    mode = checked_mode(mode)
    first = maker()
    if isinstance(first, VectorEnv):
        care.check_possible_with("a callable that makes a vector environment")
        return _checked_vector_env(first, num_envs)
    if not isinstance(first, gym.Env):
        raise WrongType(f"the callable returned a {type(first).__name__}; it must return a Gymnasium environment")
    if vectorization == "async":
        first.close()
        restarts, timeout_s = care
        return ProcessVectorEnv(maker, count, first, autoreset_mode=mode, timeout_s=timeout_s, restart_failed=restarts)
    made = [first]
    makers = [lambda: made.pop() if made else maker()] * count
    serial = SerialVectorEnv(makers, autoreset_mode=mode, restart_failed=care.restart_failed)
    check_distinct(serial.envs)
    return serial


def _checked_vector_env(env: VectorEnv, num_envs: int | None) -> VectorEnv:
    """Return a vector environment of the user after checks.

    Args:
        env: the vector environment.
        num_envs: number of environments that it must have. None: any.

    Raises:
        InvalidArgument: it has another number of environments, or two of them are one object.
        ShapeMismatch: it casts observations with loss.
    """
    check_distinct(envs_of(env))
    if num_envs not in (None, env.num_envs):
        raise InvalidArgument(f"the vector environment has {env.num_envs} environments, not num_envs={num_envs}")
    check_is_not_cast(env)
    return env


def env_like(env: EnvLike, num_envs: int) -> EnvLike:
    """Return an argument for `make_vector_env` that creates `num_envs` new environments like `env`.

    Args:
        env: an id, a callable, or an environment.
        num_envs: the number of environments needed.

    Raises:
        InvalidArgument: `env` is an object from which no other environments can be created, for example without a spec.
    """
    if isinstance(env, gym.Env):
        if env.spec is not None:
            return partial(gym.make, env.spec)
    elif not isinstance(env, VectorEnv):
        return env
    elif (make_others := getattr(env, "with_num_envs", None)) is not None:
        return make_others(num_envs)
    elif isinstance(env, (SyncVectorEnv, AsyncVectorEnv)) and isinstance(env.env_fns, Sequence):
        return type(env)(env.env_fns[:num_envs], autoreset_mode=autoreset_mode_of(env))
    elif not isinstance(env, VectorWrapper) and env.spec is not None and "num_envs" in env.spec.kwargs:
        options = dict(env.spec.kwargs)
        del options["num_envs"]
        return gym.make_vec(replace(env.spec, kwargs=options), num_envs, options.pop("vectorization_mode", None))
    raise InvalidArgument(
        f"it is unknown how to make environments like {env}: give the runner an id, or a callable; or call "
        "evaluate(env, runner.actor) with environments for evaluation"
    )


def envs_of(env: VectorEnv) -> list[Any]:
    """Return the environments of a `SyncVectorEnv`, or the vector environment itself if it is of another kind."""
    unwrapped = env.unwrapped
    return list(unwrapped.envs) if isinstance(unwrapped, SyncVectorEnv) else [unwrapped]


def close_vector_env(env: VectorEnv) -> None:
    """Close a vector environment. Processes of environments that do not close within seconds are killed."""
    if isinstance(env.unwrapped, AsyncVectorEnv):
        close_async_env(env)
    else:
        env.close()


def autoreset_mode_of(env: VectorEnv, default: AutoresetMode | str | None = None) -> AutoresetMode:
    """Return the autoreset mode that a vector environment declares, or `default` if it declares none.

    Raises:
        InvalidArgument: the mode is unknown, there is neither a declared mode nor a `default`, or `default` differs
            from the declared mode.
    """
    unwrapped = env.unwrapped
    env_mode = getattr(unwrapped, "autoreset_mode", None)  # first: several environments may share one metadata dict
    if env_mode is None:
        env_mode = (unwrapped.metadata or {}).get("autoreset_mode")
    stated = default if env_mode is None else env_mode
    if stated is None:
        raise InvalidArgument(
            f"{unwrapped} does not declare its autoreset mode (metadata['autoreset_mode']); pass autoreset_mode"
        )
    mode = checked_mode(stated)
    if default is not None and checked_mode(default) is not mode:
        raise InvalidArgument(f"autoreset_mode={default!r}, but {unwrapped} has {mode}")
    return mode
