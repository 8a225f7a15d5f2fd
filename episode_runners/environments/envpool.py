"""`EnvPoolVectorEnv`: an EnvPool task as a Gymnasium vector environment with exact flags, shapes and seeds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike

from episodes.errors import EpisodeStateError, InvalidArgument, MissingExtra, ShapeMismatch, UnknownKey, needing
from episodes.tracks import nested
from episodes.tracks.space_kinds import SpaceKind, is_box, is_nested, kind_of, map_space
from episodes.tracks.validation import checked_count, checked_items, checked_mapping, checked_seed

__all__ = ["EnvPoolVectorEnv"]

_LARGEST = 2**31 - 1  # EnvPool's largest integer; tasks without a time limit have this limit or 0
_ITS_OWN = ("num_envs", "batch_size", "max_num_players", "seed", "env_seed", "max_episode_steps")


class EnvPoolVectorEnv(VectorEnv):
    """Gymnasium vector environment of an EnvPool task, with next-step autoreset.

    EnvPool sets `terminated = done and not truncated`: an episode that terminates in the step of its time limit is only
    truncated there, and its value would be bootstrapped. So the limit is applied here, one step before EnvPool's. Such
    an episode is both terminated and truncated, as in Gymnasium. The row after a time limit costs one more call of
    EnvPool.

    EnvPool is seeded when it is created, so `reset(seed=...)` creates it again.

    Args:
        task: EnvPool's name of the task, "CartPole-v1" or "Pong-v5".
        num_envs: number of environments, N.
        max_episode_steps: the time limit in steps; by default the task's limit.
        seed: seed of the first reset without a seed; random by default.
        info_keys: names of EnvPool's infos to return, such as "lives"; no infos by default, because some are large.
        pool_kwargs: further arguments of `envpool.make_gymnasium`, such as num_threads and frame_skip.

    Raises:
        MissingExtra: envpool is not installed.
        InvalidArgument: EnvPool does not know the task or its arguments, or the task has several players.
        UnknownKey: raised by `reset` if the task has no info of a name in `info_keys`.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}
    _pool: Any = None  # created by the first reset

    def __init__(
        self,
        task: str,
        num_envs: int,
        *,
        max_episode_steps: int | None = None,
        seed: int | None = None,
        info_keys: Sequence[str] = (),
        pool_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        num_envs = checked_count("num_envs", num_envs)
        if max_episode_steps is not None:
            max_episode_steps = checked_count("max_episode_steps", max_episode_steps)
        self.task, self.num_envs, self._seed = task, num_envs, checked_seed(seed)
        pool_kwargs = (
            {} if pool_kwargs is None else checked_mapping("pool_kwargs", pool_kwargs, "of EnvPool's arguments")
        )
        self._kwargs = _checked_kwargs(task, num_envs, pool_kwargs)
        spec = _call_envpool("make_spec", task, self._kwargs)
        limit = spec.config.max_episode_steps if max_episode_steps is None else max_episode_steps
        self._limit = limit if 0 < limit < _LARGEST else None
        if self._limit is not None:
            self._kwargs["max_episode_steps"] = self._limit + 1
        if spec.config.max_num_players != 1:
            raise InvalidArgument(
                f"{task} has {spec.config.max_num_players} players; only tasks with one player are supported"
            )
        self.spec = EnvSpec(task, max_episode_steps=self._limit)
        with _quiet():
            self.single_observation_space = _with_true_bounds(spec.gymnasium_observation_space)
            self.single_action_space = _with_true_bounds(spec.gymnasium_action_space)
            self.observation_space = batch_space(self.single_observation_space, num_envs)
            self.action_space = batch_space(self.single_action_space, num_envs)
        self._is_discrete = kind_of(self.single_observation_space) is SpaceKind.DISCRETE
        self._action_shape = (num_envs, *(self.single_action_space.shape or ()))
        self._info_keys = tuple(checked_items("info_keys", info_keys, "names of EnvPool's infos"))
        self._late: np.ndarray | None = None  # bool [N]: stopped only by the time limit in the newest row

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, and return the first observations [N, ...] and infos.

        Raises:
            InvalidArgument: the seed is not one int.
            UnknownKey: the task has no info of a name in `info_keys`.
        """
        self._late = None
        if seed is not None or self._pool is None:
            self._pool = self._new_pool(self._seed if seed is None else seed)
        observations, infos = self._pool.reset()
        return self._in_space_dtype(observations), self._chosen(infos)

    def _new_pool(self, seed: object) -> Any:
        """Close the pool, and make another one with this seed, or a random one for None.

        Raises:
            InvalidArgument: the seed is not one int.
        """
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
        if not isinstance(seed, (int, np.integer)):
            raise InvalidArgument(f"reset(seed={seed!r}): EnvPool takes one int for all environments")
        self.close_extras()
        return _call_envpool("make_gymnasium", self.task, self._kwargs | {"seed": int(seed)})

    def step(self, actions: ArrayLike) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step the environments with actions [N, ...]. Environments whose episode ended in the last call are reset
        instead.

        Returns:
            Observations [N, ...], rewards [N], terminateds [N], truncateds [N] and infos.

        Raises:
            EpisodeStateError: the environments were never reset.
            ShapeMismatch: the actions have another shape.
        """
        if self._pool is None:
            raise EpisodeStateError("step before the reset; call reset() first")
        actions = np.asarray(actions)
        if actions.shape != self._action_shape:
            raise ShapeMismatch(f"{self.task}: actions have shape {actions.shape}; give {self._action_shape}")
        row = self._pool.step(actions) if self._late is None else self._step_and_reset(actions, self._late)
        observations, rewards, terminateds, truncateds, infos = row
        if self._limit is not None:
            late = infos["elapsed_step"] >= self._limit
            self._late = None
            if np.count_nonzero(late):
                truncateds, late = truncateds | late, late & ~terminateds
                self._late = late if np.count_nonzero(late) else None
        return self._in_space_dtype(observations), rewards, terminateds, truncateds, self._chosen(infos)

    def _step_and_reset(self, actions: np.ndarray, late: np.ndarray) -> tuple[Any, ...]:
        """Reset the environments flagged in `late`, bool [N], whose time limit ended the episode, and step the others.

        Returns:
            The step result of all environments, in order. Environments that were reset have a reward of 0.
        """
        envs, stepping = (np.flatnonzero(env_ids).astype(np.int32) for env_ids in (late, ~late))
        observations, infos = self._pool.reset(envs)
        zeros = np.zeros(len(envs), np.float32)
        first = (observations, zeros, zeros.astype(bool), zeros.astype(bool), infos)
        if not len(stepping):
            return first
        then = self._pool.step(actions[stepping], stepping)
        order = np.argsort(np.concatenate([infos["env_id"], then[-1]["env_id"]]))
        return nested.map_leaves(lambda *parts: np.concatenate(parts)[order], first, then)

    def _in_space_dtype(self, observations: Any) -> Any:
        """Return discrete observations cast from EnvPool's int32 to the space's int64.
        Other observations stay unchanged.
        """
        return observations.astype(np.int64) if self._is_discrete else observations

    def _chosen(self, infos: dict[str, Any]) -> dict[str, Any]:
        missing = [key for key in self._info_keys if key not in infos]
        if missing:
            raise UnknownKey(f"{self.task} has no info {missing[0]!r}; it has {list(infos)}")
        return {key: infos[key] for key in self._info_keys}

    def with_num_envs(self, num_envs: int) -> EnvPoolVectorEnv:
        """Return a new vector environment of the same task and settings with `num_envs`
        environments, for example for an evaluation.
        """
        options = {key: value for key, value in self._kwargs.items() if key not in _ITS_OWN}
        arguments: dict[str, Any] = {"max_episode_steps": self._limit, "info_keys": self._info_keys}
        return EnvPoolVectorEnv(self.task, num_envs, pool_kwargs=options, **arguments)

    def close_extras(self, **kwargs: object) -> None:
        """End the threads of EnvPool."""
        if self._pool is not None:
            self._pool.close()


def _checked_kwargs(task: str, num_envs: int, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for EnvPool. Raise `InvalidArgument` if `kwargs` has one that `EnvPoolVectorEnv` sets
    itself.
    """
    reserved = [key for key in kwargs if key in _ITS_OWN]
    if reserved:
        raise InvalidArgument(
            f"pool_kwargs of {task} has {reserved[0]!r}: all environments step together; number, seed and time limit "
            "are arguments of EnvPoolVectorEnv"
        )
    return {"num_envs": num_envs, **kwargs}


def _with_true_bounds(space: spaces.Space) -> spaces.Space:
    """Return the space with infinite bounds for unbounded numbers,
    which EnvPool marks by the smallest and largest positive float.
    """
    if is_nested(space):
        return map_space(_with_true_bounds, space)
    if not is_box(space) or not issubclass(space.dtype.type, np.floating):
        return space
    numbers = np.finfo(space.dtype.type)
    unbounded = (space.low > 0) & (space.low < 1.01 * numbers.tiny) & (space.high > 0.99 * numbers.max)
    low, high = np.where(unbounded, -np.inf, space.low), np.where(unbounded, np.inf, space.high)
    return spaces.Box(low, high, space.shape, space.dtype.type)


@contextmanager
def _quiet() -> Iterator[None]:
    """Context manager that suppresses Gymnasium's warnings that bounds lose precision in float32."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered")
        yield


def _call_envpool(function: str, task: str, kwargs: Mapping[str, Any]) -> Any:
    """Call the function `envpool.<function>` for a task, and return its result.

    Raises:
        MissingExtra: envpool is not installed.
        InvalidArgument: EnvPool rejects the task or its arguments.
    """
    try:
        with _quiet():
            made = getattr(_envpool(), function)(task, **kwargs)
            _ = made.action_space, made.observation_space  # a pool creates them, and warns, at the first access
            return made
    except MissingExtra:
        raise
    except Exception as error:
        raise InvalidArgument(f"EnvPool cannot make {task!r} with {dict(kwargs)}: {error}") from error


def _envpool() -> ModuleType:
    """Import envpool. Raise `MissingExtra` if it is not installed."""
    with needing("envpool", "EnvPool is needed"):
        import envpool
    return envpool
