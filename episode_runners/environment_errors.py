"""Explanations of environment errors: they name the environment, the step, and the wrong part of the observation.

Gymnasium's vector environments copy the results of all environments into arrays, so a result of a wrong shape raises
numpy's error, which does not say where it came from. These functions run only after an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from traceback import walk_tb
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from episode_runners.async_envs import raise_if_died
from episode_runners.process_envs import ProcessVectorEnv
from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch, WrongType
from episodes.tracks.fitting import brief, describe_shape, numeric_array, space_mismatches

_BELOW_VECTOR_ENVS = ("gymnasium", "numpy", "functools", "copy", "episodes", "episode_runners")
_RESULTS = ("observations", "rewards", "terminateds", "truncateds", "infos")


def check_distinct(envs: Sequence[Any], others: Sequence[Any] = ()) -> None:
    """Raise `InvalidArgument` if two environments are one object, so that each would step and reset the other.

    Args:
        envs: environments of a runner. Wrappers are ignored.
        others: environments of another runner, from which they must differ, too.
    """
    objects = [getattr(env, "unwrapped", env) for env in (*others, *envs)]
    if len({id(env) for env in objects}) < len(objects):
        raise InvalidArgument(
            f"two environments are one object, a {type(objects[-1]).__name__}, and each would step the other; give a "
            "callable that makes a new environment in each call"
        )


def raise_or_annotate(
    error: BaseException,
    env: VectorEnv,
    row: object,
    get_ages: Callable[[], np.ndarray],
    readers: Sequence[object],
    sink: object,
) -> None:
    """Explain an error of a vector step: raise `TrackMismatch` if an environment returned invalid data,
    else note the failed environment on `error`.

    Args:
        error: the error that stopped the vector step.
        env: the vector environment.
        row: the newest result of `step`, or (observations, infos) of a reset.
        get_ages: returns the number of steps [N] of the ongoing episodes before the failed step.
        readers: the objects that read the row: the runner and its parts.
        sink: the recorder of the row. Only errors of the readers and the recorder are checked against the row.

    Raises:
        TrackMismatch: an environment returned a value that does not match its space.
        WrongType, ShapeMismatch: an environment returned a reward that is not a number, or a flag that is not a bool.
        EnvironmentLost: a process of an `AsyncVectorEnv` has died.
    """
    if not isinstance(error, Exception):
        return
    vector_env: Any = env.unwrapped
    if isinstance(vector_env, AsyncVectorEnv):
        raise_if_died(vector_env, error)
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    of_vector_env = [number for number, frame in enumerate(frames) if _owner(frame) is vector_env]
    index = _index_in(frames[of_vector_env[-1]]) if of_vector_env else None
    if index is not None and any(map(_is_of_environment, frames[of_vector_env[-1] + 1 :])):
        error.add_note(_where(env, index, get_ages()))
    elif index is not None:
        _name_environment(error, env, index, get_ages(), raised_itself=_owner(frames[-1]) is vector_env)
    elif any(_owner(frames[-1]) is reader for reader in readers) or any(_owner(frame) is sink for frame in frames):
        location = f"{env}, the vector step after steps {get_ages().tolist()[:8]} of its episodes"
        for mismatch in _row_mismatches(env, row):
            raise TrackMismatch(f"{location}: {mismatch}") from error
        error.add_note(location)


def _name_environment(error: Exception, env: VectorEnv, index: int, ages: np.ndarray, raised_itself: bool) -> None:
    """Add a note that names environment `index` to the error, or raise an error that describes its invalid result.

    Args:
        ages: step of each environment's episode.
        raised_itself: whether the code of the vector environment raised the error, as it does for an invalid result.

    Raises:
        TrackMismatch: an observation does not fit its space, or a result has another form.
        WrongType, ShapeMismatch: the vector environment raised such an error.
    """
    vector_env: Any = env.unwrapped
    if isinstance(vector_env, ProcessVectorEnv):
        if isinstance(error, (WrongType, ShapeMismatch, TrackMismatch)):
            raise type(error)(f"{_where(env, index, ages)}: {error}") from error
        error.add_note(_where(env, index, ages))
        return
    if not isinstance(vector_env, SyncVectorEnv):
        error.add_note(f"{_where(env, index, ages)}; vectorization='sync' names the leaf, too")
        return
    for culprit, item in enumerate(vars(vector_env).get("_env_obs") or ()):
        for mismatch in space_mismatches(env.single_observation_space, item, "observations"):
            raise TrackMismatch(f"{_where(env, culprit, ages)}: {mismatch}") from error
    if isinstance(error, (WrongType, ShapeMismatch)):
        raise type(error)(f"{_where(env, index, ages)}: {error}") from error
    if raised_itself:
        expected = "step must return (observation, a number, bool, bool, dict), reset (observation, dict)"
        raise TrackMismatch(f"{_where(env, index, ages)}: {error}; its {expected}") from error
    error.add_note(_where(env, index, ages))


def _where(env: VectorEnv, index: int, ages: np.ndarray) -> str:
    return f"{env}, environment {index}, step {ages[index] + 1} of its episode"


def _owner(frame: FrameType) -> Any:
    """Return the object whose method a stack frame runs, or None for a function."""
    return frame.f_locals.get("self")


def _is_of_environment(frame: FrameType) -> bool:
    """Return True for a stack frame below a vector environment's that runs code of one of its environments."""
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    return isinstance(_owner(frame), gym.Env) or package not in _BELOW_VECTOR_ENVS


def _index_in(frame: FrameType) -> int | None:
    """Return the index of the environment that Gymnasium was processing in a stack frame, or None."""
    return frame.f_locals.get("index", frame.f_locals.get("i"))


def _row_mismatches(env: VectorEnv, row: object) -> Iterator[str]:
    """Yield a description of each part of a vector environment's result that has a
    wrong type, shape or kind of dtype.
    """
    if not isinstance(row, tuple) or len(row) not in (2, 5):
        yield f"step must return ({', '.join(_RESULTS)}), and returned {brief(row)}"
        return
    yield from space_mismatches(env.single_observation_space, row[0], "observations", (env.num_envs,))
    for name, column in zip(_RESULTS[1:4], row[1:4] if len(row) == 5 else (), strict=False):
        array = numeric_array(column)
        if array is None or array.shape != (env.num_envs,):
            yield f"{name} {describe_shape(array, column)}; give [{env.num_envs}], one for each environment"
