"""`EnvPoolVectorEnv`: an EnvPool task as a vector environment whose flags, shapes and seeds can be relied on."""

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

from episodes.errors import EpisodeStateError, InvalidArgument, MissingExtra, ShapeMismatch, UnknownKey, needing
from episodes.tracks import nested
from episodes.tracks.validation import checked_count, checked_items, checked_mapping, checked_seed

__all__ = ["EnvPoolVectorEnv"]

_LARGEST = 2**31 - 1  # of EnvPool's integers; tasks without a time limit have this or 0
_ITS_OWN = ("num_envs", "batch_size", "max_num_players", "seed", "env_seed", "max_episode_steps")


class EnvPoolVectorEnv(VectorEnv):
    """`num_envs` environments of an EnvPool task, stepped together; next-step autoreset.

    Args:
        task: what EnvPool calls it, "CartPole-v1" or "Pong-v5".
        max_episode_steps: the time limit; the task's own by default.
        seed: of the first reset that gets none; drawn anew by default.
        info_keys: which of EnvPool's infos to keep, "lives" for example; none by default, since some are large.
        pool_kwargs: further arguments of `envpool.make_gymnasium`: num_threads, frame_skip and the like.

    EnvPool itself says `terminated = done and not truncated`: who falls in the very step of its time limit is truncated
    only, and a value would be bootstrapped from there. So the limit is kept here, one step before EnvPool's: such an
    episode is both, as with Gymnasium. The row after a time limit costs one call of EnvPool more.

    EnvPool is seeded when it is made: `reset(seed=...)` makes it anew.

    Raises:
        MissingExtra: envpool is not installed.
        InvalidArgument: EnvPool does not know the task or its arguments, or the task has several players.
        UnknownKey: from `reset`, info keys that the task does not have.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}
    _pool: Any = None  # made by the first reset

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
        spec = _made("make_spec", task, self._kwargs)
        limit = spec.config.max_episode_steps if max_episode_steps is None else max_episode_steps
        self._limit = limit if 0 < limit < _LARGEST else None
        if self._limit is not None:
            self._kwargs["max_episode_steps"] = self._limit + 1
        if spec.config.max_num_players != 1:
            raise InvalidArgument(f"{task} has {spec.config.max_num_players} players: only tasks of one are taken")
        self.spec = EnvSpec(task, max_episode_steps=self._limit)
        with _quiet():
            self.single_observation_space = _with_true_bounds(spec.gymnasium_observation_space)
            self.single_action_space = _with_true_bounds(spec.gymnasium_action_space)
            self.observation_space = batch_space(self.single_observation_space, num_envs)
            self.action_space = batch_space(self.single_action_space, num_envs)
        self._is_discrete = isinstance(self.single_observation_space, spaces.Discrete)
        self._action_shape = (num_envs, *(self.single_action_space.shape or ()))
        self._info_keys = tuple(checked_items("info_keys", info_keys, "names of EnvPool's infos"))
        self._late: np.ndarray | None = None  # bool [N]: stopped by the limit in the newest row, and by nothing else

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The first observations [N, ...] of new episodes, and infos; the same for the same seed."""
        self._late = None
        if seed is not None or self._pool is None:
            self._pool = self._new_pool(self._seed if seed is None else seed)
        observations, infos = self._pool.reset()
        return self._of_space(observations), self._chosen(infos)

    def _new_pool(self, seed: Any) -> Any:
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
        if not isinstance(seed, (int, np.integer)):
            raise InvalidArgument(f"reset(seed={seed!r}): EnvPool takes one int for all environments")
        self.close_extras()
        return _made("make_gymnasium", self.task, self._kwargs | {"seed": int(seed)})

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """The row [N, ...] after the actions [N, ...]; the reset row where an episode ended in the row before."""
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
        return self._of_space(observations), rewards, terminateds, truncateds, self._chosen(infos)

    def _step_and_reset(self, actions: np.ndarray, late: np.ndarray) -> tuple[Any, ...]:
        """The row where those that the limit stopped, which EnvPool left running, are reset, and the others step."""
        envs, others = (np.flatnonzero(which).astype(np.int32) for which in (late, ~late))
        observations, infos = self._pool.reset(envs)
        zeros = np.zeros(len(envs), np.float32)
        first = (observations, zeros, zeros.astype(bool), zeros.astype(bool), infos)
        if not len(others):
            return first
        then = self._pool.step(actions[others], others)
        order = np.argsort(np.concatenate([infos["env_id"], then[-1]["env_id"]]))
        return nested.map_leaves(lambda *parts: np.concatenate(parts)[order], first, then)

    def _of_space(self, observations: Any) -> Any:
        """Discrete observations as the int64 that their space says, not EnvPool's int32."""
        return observations.astype(np.int64) if self._is_discrete else observations

    def _chosen(self, infos: dict[str, Any]) -> dict[str, Any]:
        missing = [key for key in self._info_keys if key not in infos]
        if missing:
            raise UnknownKey(f"{self.task} has no info {missing[0]!r}; it has {list(infos)}")
        return {key: infos[key] for key in self._info_keys}

    def with_num_envs(self, num_envs: int) -> EnvPoolVectorEnv:
        """So many environments of the same task with the same arguments, as `evaluate(runner)` asks for."""
        options = {key: value for key, value in self._kwargs.items() if key not in _ITS_OWN}
        arguments: dict[str, Any] = {"max_episode_steps": self._limit, "info_keys": self._info_keys}
        return EnvPoolVectorEnv(self.task, num_envs, pool_kwargs=options, **arguments)

    def close_extras(self, **kwargs: Any) -> None:
        """End EnvPool's threads."""
        if self._pool is not None:
            self._pool.close()


def _checked_kwargs(task: str, num_envs: int, given: Mapping[str, Any]) -> dict[str, Any]:
    taken = [key for key in given if key in _ITS_OWN]
    if taken:
        raise InvalidArgument(
            f"pool_kwargs of {task} has {taken[0]!r}: all environments step together, and number, seed and time limit "
            "are arguments of EnvPoolVectorEnv"
        )
    return {"num_envs": num_envs, **given}


def _with_true_bounds(space: spaces.Space) -> spaces.Space:
    """The space without EnvPool's bounds of what has none: from the smallest positive number to the largest one."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _with_true_bounds(part) for key, part in space.items()})
    if not isinstance(space, spaces.Box) or not issubclass(space.dtype.type, np.floating):
        return space
    numbers = np.finfo(space.dtype.type)
    unbounded = (space.low > 0) & (space.low < 1.01 * numbers.tiny) & (space.high > 0.99 * numbers.max)
    low, high = np.where(unbounded, -np.inf, space.low), np.where(unbounded, np.inf, space.high)
    return spaces.Box(low, high, space.shape, space.dtype.type)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Gymnasium's warnings that EnvPool's bounds lose precision in float32."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered")
        yield


def _made(kind: str, task: str, kwargs: Mapping[str, Any]) -> Any:
    """What `envpool.<kind>` makes of a task."""
    try:
        with _quiet():
            made = getattr(_envpool(), kind)(task, **kwargs)
            _ = made.action_space, made.observation_space  # a pool makes them, and warns, when first asked
            return made
    except MissingExtra:
        raise
    except Exception as error:
        raise InvalidArgument(f"EnvPool cannot make {task!r} with {dict(kwargs)}: {error}") from error


def _envpool() -> ModuleType:
    with needing("envpool", "EnvPool is needed"):
        import envpool
    return envpool
