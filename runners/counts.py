"""How much to sample: so many steps, or so many episodes."""

from __future__ import annotations

import numpy as np

from episodes.errors import InvalidArgument


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
