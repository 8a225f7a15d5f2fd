"""`Trial`: recorded episode of one agent, exactly as the environment returned it, valid or not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from episodes.errors import InvalidArgument
from episodes.multi_agent import MultiAgentEpisode
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.ragged_items import kinds_of

if TYPE_CHECKING:
    from episodes.data_types import Items

MOST_NUMBERS = 256  # of an observation, for distances


@dataclass(slots=True)
class Trial:
    """Recorded episode of one agent, not validated: T steps, and T + 1 observations if the environment is correct."""

    id_: Any
    agent: Any = None
    observation_space: spaces.Space | None = None
    ragged: Any = None  # `RaggedKind` of observations of different lengths, or of the ragged parts of nested ones
    observations: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    infos: list[Any] = field(default_factory=list)
    terminated: Any = False
    truncated: Any = False
    ended_at: int | None = None  # the first step with a flag, if each step has flags
    t_started: int = 0
    seen: list[bytes] = field(default_factory=list)  # digest of each observation
    numbers: list[np.ndarray] = field(default_factory=list)  # some numbers of each observation

    @property
    def is_done(self) -> bool:
        return bool(self.terminated) or bool(self.truncated)

    def __len__(self) -> int:
        return len(self.rewards)

    def end(self, terminated: object, truncated: object) -> None:
        """Set the flags terminated and truncated. An array of flags counts as True if any element is True."""
        self.terminated, self.truncated = (bool(np.any(array_of(flag))) for flag in (terminated, truncated))

    def observe(self, observation: object, info: object) -> None:
        """Append an observation (without a copy) and its info."""
        self.observations.append(observation)
        self.infos.append(info)
        self.seen.append(digest(observation))
        self.numbers.append(numbers_of(observation))


def array_of(leaf: object) -> np.ndarray:
    """Return the value as an array. A ragged list becomes an array that holds the list as one object."""
    try:
        return np.asarray(leaf)
    except ValueError:
        whole = np.empty((), object)
        whole[()] = leaf
        return whole


def exceeds_bounds(array: np.ndarray, low: np.ndarray | float, high: np.ndarray | float) -> np.ndarray:
    """Return which numbers lie outside of bounds by more than a rounding error, bool of the shape of `array`."""
    slack = 1e-6 * np.maximum(1.0, np.abs(np.nan_to_num(array.astype(np.float64))))
    return (array < low - slack) | (array > high + slack)


def digest(item: object) -> bytes:
    """Return a 16-byte hash of a nested item. Items that are equal have equal hashes."""
    sums = hashlib.blake2b(digest_size=16)
    for leaf in nested.leaves(item):
        array = array_of(leaf)
        array = array + array.dtype.type(0) if array.dtype.kind == "f" else array  # -0.0 is 0.0
        sums.update(repr(leaf).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes())
    return sums.digest()


def numbers_of(item: object) -> np.ndarray:
    """Return a sample of at most `MOST_NUMBERS` numbers in a nested item, float64 [m]."""
    leaves = [array_of(leaf) for leaf in nested.leaves(item)]
    numeric = [leaf.reshape(-1) for leaf in leaves if leaf.dtype.kind in "biuf"]
    if not numeric:
        return np.empty(0)
    whole = np.concatenate([leaf[:: -(-leaf.size // MOST_NUMBERS) or 1].astype(np.float64) for leaf in numeric])
    return whole[:: -(-whole.size // MOST_NUMBERS) or 1]


def trials_of(episode: SingleAgentEpisode | MultiAgentEpisode | Mapping[str, Any], number: int) -> list[Trial]:
    """Convert an episode, or a mapping of columns, to a list with a `Trial` for each agent."""
    if isinstance(episode, MultiAgentEpisode):
        return [
            trial for agent_episode in episode.agent_episodes.values() for trial in trials_of(agent_episode, number)
        ]
    if isinstance(episode, Mapping):
        return _of_columns(episode, number)
    trial = Trial(episode.id_, episode.agent_id, episode.observation_space, t_started=episode.t_started)
    trial.ragged = episode.tracks.observations.ragged
    trial.terminated, trial.truncated = episode.is_terminated, episode.is_truncated
    if not episode.is_reset:
        return [trial]
    for observation, info in zip(_items(episode.get_observations()), episode.get_infos(), strict=True):
        trial.observe(observation, info)
    if len(episode):
        trial.actions, trial.rewards = _items(episode.get_actions()), list(episode.get_rewards())
    return [trial]


def _of_columns(columns: Mapping[str, Any], number: int) -> list[Trial]:
    """Convert columns (observations [T + 1, ...]; actions, rewards, flags [T]) to a `Trial`."""
    trial = Trial(columns.get("id", number), observation_space=columns.get("observation_space"))
    observations = columns["observations"]
    trial.ragged = kinds_of(observations)
    infos = columns.get("infos")
    for i in range(_num_items(columns)):
        info = infos[i] if isinstance(infos, Sequence) and i < len(infos) else {}
        trial.observe(nested.take(observations, i), info)
    trial.actions = list(range(len(columns["rewards"]))) if "actions" not in columns else _items(columns["actions"])
    trial.rewards = list(columns["rewards"])
    trial.terminated = _flags(columns, "terminations", "terminated")
    trial.truncated = _flags(columns, "truncations", "truncated")
    flags = [array_of(columns[name]) for name in ("terminations", "truncations") if name in columns]
    ends = [np.flatnonzero(flag) + 1 for flag in flags if flag.shape == (len(trial),)]
    trial.ended_at = min((int(steps[0]) for steps in ends if len(steps)), default=None)
    return [trial]


def check_columns(columns: Mapping[str, Any]) -> None:
    """Raise `InvalidArgument` if observations or rewards are missing, or if lengths do not agree."""
    if not {"observations", "rewards"} <= set(columns):
        raise InvalidArgument(f"columns {list(columns)}: observations and rewards must be among them")
    _num_items(columns)


def _num_items(columns: Mapping[str, Any]) -> int:
    """Return the number of observations in columns.

    Raises:
        InvalidArgument: the arrays of observations, or the actions and rewards, differ in length.
    """
    try:
        lengths = {len(leaf) for leaf in nested.leaves(columns["observations"])}
        steps = {len(columns["rewards"])}
        if "actions" in columns:
            steps |= {len(leaf) for leaf in nested.leaves(columns["actions"])}
    except TypeError:
        raise InvalidArgument(f"columns {list(columns)}: one has no items; give an array or a list of each") from None
    if len(lengths) != 1 or len(steps) > 1:
        raise InvalidArgument(
            f"columns of {sorted(lengths)} observations, and {sorted(steps)} actions and rewards: give one length each"
        )
    return lengths.pop()


def _items(column: Items) -> list[Any]:
    """Return the items of a list or of nested arrays [n, ...] as a list."""
    return (
        column if isinstance(column, list) else [nested.take(column, i) for i in range(len(nested.first_leaf(column)))]
    )


def _flags(columns: Mapping[str, Any], *names: str) -> bool:
    return any(bool(np.any(columns[name])) for name in names if name in columns)
