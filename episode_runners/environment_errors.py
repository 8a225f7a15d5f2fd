"""Which environment, leaf and step an error is about. Asked when somebody has complained: a good step costs nothing.

Gymnasium's vector environments copy what each environment gives into arrays for all, so what does not fit comes as
numpy's error without saying from where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from episodes.errors import TrackMismatch, WrongType

_ARRAYS = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
_RESULTS = ("observations", "rewards", "terminateds", "truncateds", "infos")


def raise_or_annotate(
    error: BaseException, env: VectorEnv, row: Any, get_ages: Callable[[], np.ndarray], runner: Any, sink: Any
) -> None:
    """Raise `TrackMismatch` where the environment's row is what is wrong; else note whose error it is.

    Args:
        error: what somebody complained about.
        row: the newest that `step` gave, or (observations, infos) of a reset.
        get_ages: steps [N] of the ongoing episodes before the one that failed.
        runner, sink: who takes rows apart, and who keeps them; what others complain about is no matter of the row.
    """
    if not isinstance(error, Exception):
        return
    vector_env: Any = env.unwrapped
    frames = list(_frames(error))
    index = next((_index_in(frame) for frame in reversed(frames) if _owner(frame) is vector_env), None)
    if index is not None:
        _name_environment(error, env, index, get_ages(), raised_itself=_owner(frames[-1]) is vector_env)
    elif _owner(frames[-1]) is runner or any(_owner(frame) is sink for frame in frames):
        where = f"{env}, the vector step after steps {get_ages().tolist()[:8]} of its episodes"
        for misfit in _misfits_of_row(env, row):
            raise TrackMismatch(f"{where}: {misfit}") from error
        error.add_note(where)


def _name_environment(error: Exception, env: VectorEnv, index: int, ages: np.ndarray, raised_itself: bool) -> None:
    vector_env: Any = env.unwrapped
    if not isinstance(vector_env, SyncVectorEnv):
        error.add_note(f"{_where(env, index, ages)}; vectorization='sync' names the leaf, too")
        return
    for culprit, item in enumerate(vars(vector_env).get("_env_obs") or ()):
        for misfit in _misfits(env.single_observation_space, item, "observations"):
            raise TrackMismatch(f"{_where(env, culprit, ages)}: {misfit}") from error
    if raised_itself and isinstance(error, WrongType):
        raise WrongType(f"{_where(env, index, ages)}: {error}") from error
    if raised_itself:
        wanted = "step must give (observation, a number, bool, bool, dict), reset (observation, dict)"
        raise TrackMismatch(f"{_where(env, index, ages)}: {error}; its {wanted}") from error
    error.add_note(_where(env, index, ages))


def _where(env: VectorEnv, index: int, ages: np.ndarray) -> str:
    return f"{env}, environment {index}, step {ages[index] + 1} of its episode"


def _frames(error: BaseException) -> Iterator[FrameType]:
    """What was busy when the error was raised, from the outside in."""
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _owner(frame: FrameType) -> Any:
    return frame.f_locals.get("self")


def _index_in(frame: FrameType) -> int | None:
    """Which environment a method of Gymnasium's vector environments was busy with."""
    return frame.f_locals.get("index", frame.f_locals.get("i"))


def _misfits_of_row(env: VectorEnv, row: Any) -> Iterator[str]:
    if not isinstance(row, tuple) or len(row) not in (2, 5):
        yield f"step must give ({', '.join(_RESULTS)}), and gave {_brief(row)}"
        return
    yield from _misfits(env.single_observation_space, row[0], "observations", (env.num_envs,))
    for name, column in zip(_RESULTS[1:4], row[1:4] if len(row) == 5 else (), strict=False):
        found = _array(column)
        if found is None or found.shape != (env.num_envs,):
            yield f"{name} {_told(found, column)}; give [{env.num_envs}], one for each environment"


def _misfits(space: gym.Space, value: Any, name: str, leading: tuple[int, ...] = ()) -> Iterator[str]:
    """What does not fit, leaf by leaf: keys, shapes and kinds of dtypes. Bounds are not looked at."""
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(value, Mapping):
            yield f"{name} are {_brief(value)}; the space is a Dict with {list(space.spaces)}"
            return
        for key, part in space.spaces.items():
            if key not in value:
                yield f"{name} have no {key!r}: there are {list(value)}, the space has {list(space.spaces)}"
            else:
                yield from _misfits(part, value[key], f"{name}[{key!r}]", leading)
    elif isinstance(space, gym.spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            yield f"{name} are {_brief(value)}; the space is a Tuple of {len(space.spaces)}"
            return
        for at, part in enumerate(space.spaces):
            yield from _misfits(part, value[at], f"{name}[{at}]", leading)
    elif isinstance(space, _ARRAYS):
        found, wanted = _array(value), (*leading, *space.shape)  # type: ignore[misc]
        if found is None or found.shape != wanted:
            yield f"{name} {_told(found, value)}; the space says {list(wanted)}"
        elif not np.can_cast(found.dtype, space.dtype, "same_kind"):  # type: ignore[arg-type]
            yield f"{name} are {found.dtype}; the space says {space.dtype}"


def _array(value: Any) -> np.ndarray | None:
    """The value as numbers; None where it is none."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError):
        return None
    return array if array.dtype.kind in "biufc" else None


def _told(found: np.ndarray | None, value: Any) -> str:
    return f"are {_brief(value)}" if found is None else f"have shape {list(found.shape)}"


def _brief(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"{len(value)} items"
    return "None" if value is None else f"a {type(value).__name__}"
