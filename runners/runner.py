"""What both runners have: how much to sample, hooks, counts, state, and closing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from episodes.errors import EpisodeStateError, InvalidArgument
from episodes.single_agent import SingleAgentEpisode

__all__ = ["Hook"]


class Hook:
    """Called by a runner while it samples. Override what you need; the rest costs nothing."""

    def on_step(self, runner: Any) -> None:
        """After each recorded vector step. The ongoing episodes are `runner.episodes`."""

    def on_episode_end(self, runner: Any, episode: SingleAgentEpisode) -> None:
        """After the step that ended an episode: its chunk since the last `sample`, its true last observation in it."""


def calls_of(hooks: Any, name: str) -> tuple[Any, ...]:
    """The hooks' methods of that name that do something."""
    methods = [getattr(hook, name, None) for hook in hooks]
    empty = getattr(Hook, name)
    return tuple(method for method in methods if method and getattr(method, "__func__", method) is not empty)


class EnvRunner:
    """What a runner of any kind has beside its environments: counts of all calls, hooks, state, closing.

    Attributes:
        stats: of the last call of `sample`.
        num_episodes: that ended in all calls.
    """

    steps_counted: ClassVar[str] = "num_steps"  # how the steps of all calls are named in metrics and states
    env_to_module: Any
    module_to_env: Any
    stats: Any

    def __init__(self, hooks: Sequence[Any], seed: int | None) -> None:
        self.seed = seed
        self.num_episodes = 0
        self._num_steps = 0
        self._on_step = calls_of(hooks, "on_step")
        self._on_episode_end = calls_of(hooks, "on_episode_end")
        self._needs_reset = True
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise EpisodeStateError("sample after close(); make a new runner")

    def metrics(self) -> dict[str, float]:
        """The numbers of the last call of `sample`, and the steps and episodes of all calls."""
        total = {f"{self.steps_counted}_total": self._num_steps, "num_episodes_total": self.num_episodes}
        return self.stats.as_dict() | total

    # --- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """The pipelines' states and the counts. Environments cannot be saved: see `set_state`."""
        return {
            "env_to_module": self.env_to_module.get_state(),
            "module_to_env": self.module_to_env.get_state(),
            self.steps_counted: self._num_steps,
            "num_episodes": self.num_episodes,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` gave. The next `sample` begins new episodes, seeded by the seed and the steps."""
        self.env_to_module.set_state(state["env_to_module"])
        self.module_to_env.set_state(state["module_to_env"])
        self._num_steps, self.num_episodes = state[self.steps_counted], state["num_episodes"]
        if self.seed is not None:
            self._reseed(np.random.SeedSequence((self.seed, self._num_steps)))
        self._needs_reset = True

    def _reseed(self, sequence: np.random.SeedSequence) -> None:
        """Seed the next resets."""
        raise NotImplementedError

    # --- closing ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the environments; may be called again."""
        if not self._closed:
            self._closed = True
            self._close()

    def _close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def quotas(num_episodes: int, num_envs: int, turn: int) -> tuple[np.ndarray, int]:
    """How many episodes [N] each environment contributes, and whose turn it is then to give one more.

    >>> quotas(5, 3, turn=2)
    (array([2, 1, 2]), 1)
    """
    each, more = divmod(num_episodes, num_envs)
    found = np.full(num_envs, each)
    found[(turn + np.arange(more)) % num_envs] += 1
    return found, (turn + more) % num_envs


def check_counts(num_timesteps: int | None, num_episodes: int | None) -> None:
    """Raise `InvalidArgument` unless exactly one of the two is given, and is an int of at least 1."""
    if (num_timesteps is None) == (num_episodes is None):
        raise InvalidArgument(
            f"sample(num_timesteps={num_timesteps}, num_episodes={num_episodes}): give exactly one of the two"
        )
    count = num_episodes if num_timesteps is None else num_timesteps
    if not isinstance(count, (int, np.integer)) or count < 1:
        raise InvalidArgument(f"sample: {count!r} is no count; give an int of at least 1")
