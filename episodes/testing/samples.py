"""Random items and episodes of given spaces, for use in checks. Equal seeds give equal results."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def _cropped(array: np.ndarray) -> np.ndarray:
    """Return the array as a view of a larger one, so that it is not contiguous."""
    around = np.zeros([n + 2 for n in array.shape], array.dtype)
    inside = around[(slice(1, -1),) * array.ndim]
    inside[...] = array
    return inside


def _read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only copy of the array."""
    twin = array.copy()
    twin.setflags(write=False)
    return twin


# An array in another arrangement of memory; each is equal to the array in shape, values and, but for its byte order,
# dtype.
_ARRANGED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as it is": lambda array: array,
    "transposed": lambda array: array.T.copy().T,
    "cropped": _cropped,
    "reversed": lambda array: np.flip(array).copy()[(slice(None, None, -1),) * array.ndim],
    "every other": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "read-only": _read_only,
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
}


def _as_python(value: ArrayLike) -> Any:
    """Return a scalar as a Python number, if numpy would give it the same dtype. Any other scalar is returned
    unchanged.
    """
    number = np.asarray(value).item()
    return number if np.asarray(number).dtype == np.asarray(value).dtype else value


_ARRANGED_SCALARS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda value: value,
    "array": np.array,
    "Python": _as_python,
}


def arranged(item: object, rng: np.random.Generator) -> Any:
    """Return an equal nested item whose arrays have random memory layouts, such as transposed or strided."""

    def of_leaf(leaf: Any) -> Any:
        """Return the value in a random form: another memory layout, read-only, or a Python number."""
        if isinstance(leaf, str):
            return leaf
        kinds = _ARRANGED if np.ndim(leaf) else _ARRANGED_SCALARS
        return list(kinds.values())[rng.integers(len(kinds))](leaf)

    return nested.map_leaves(of_leaf, item)


class ItemSource:
    """Generator of random items of a space that depend only on the seed. The space itself is not changed."""

    def __init__(self, space: gym.Space, seed: int, arrange: bool = True) -> None:
        self._space = copy.deepcopy(space)
        self._space.seed(seed)
        self._rng = np.random.default_rng(seed)
        self._arrange = arrange

    def next(self) -> Any:
        """Return the next random item of the space."""
        item = self._space.sample()
        return arranged(item, self._rng) if self._arrange else item

    def take(self, count: int) -> list[Any]:
        """Return a list of the next `count` random items of the space."""
        return [self.next() for _ in range(count)]


# (steps, steps of lookback, terminated, truncated) of episodes that have shown most mistakes.
_SAMPLES = ((5, 0, True, False), (1, 0, False, True), (0, 0, False, False), (4, 3, False, False), (3, 2, True, True))


def sample_episodes(
    observation_space: gym.Space,
    action_space: gym.Space,
    *,
    extra_outputs: Mapping[str, gym.Space] | None = None,
    lookback: int = 0,
    seed: int = 0,
) -> list[SingleAgentEpisode]:
    """Return random growing episodes: some with several steps, one or none, and with each kind of ending.

    Args:
        extra_outputs: space of each extra model output.
        lookback: minimal lookback of chunks that continue an episode.
    """
    observations, actions = ItemSource(observation_space, seed), ItemSource(action_space, seed + 1)
    outputs = {key: ItemSource(space, seed + 2, arrange=False) for key, space in (extra_outputs or {}).items()}
    rng, episodes = np.random.default_rng(seed), []
    for number, (steps, before, terminated, truncated) in enumerate(_SAMPLES):
        before = max(before, lookback) if before else 0
        total = steps + before
        episodes.append(
            SingleAgentEpisode(
                f"sample{number}",
                observations=observations.take(total + 1),
                actions=actions.take(total),
                rewards=[float(reward) / 4 for reward in rng.integers(-8, 9, total)],
                infos=[{"number": i} if i % 2 else {} for i in range(total + 1)],
                extra_model_outputs={key: source.take(total) for key, source in outputs.items()},
                observation_space=observation_space,
                action_space=action_space,
                t_started=before,
                len_lookback_buffer=before,
                terminated=terminated,
                truncated=truncated,
                agent_id=f"agent{number % 2}",
                module_id="default_policy",
            )
        )
    return episodes
