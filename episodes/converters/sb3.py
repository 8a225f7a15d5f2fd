"""Episodes to and from the replay buffers of Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from episodes.converters.action_mapping import imported_space
from episodes.converters.loss_report import LossReport, tell_other_spaces
from episodes.converters.transitions import Transitions, transitions_of
from episodes.errors import InvalidArgument, MissingExtra
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested


def to_sb3(
    episodes: Sequence[SingleAgentEpisode],
    *,
    buffer_size: int | None = None,
    device: Any = "cpu",
    action_mapping: str | None = None,
    strict: bool = False,
    observation_space: spaces.Space | None = None,
    action_space: spaces.Space | None = None,
) -> tuple[Any, LossReport]:
    """A `ReplayBuffer` of the steps (a `DictReplayBuffer` for a Dict space), and what was lost.

    A step that was truncated, or at which a chunk was cut, is done there by a time limit, so its value is bootstrapped.

    Args:
        buffer_size: rows, more of which may be added later; as many as there are steps when None.
        action_mapping: None writes the actions that were sent to the environment. "normalize" writes actions in
            [-1, 1], as SB3's off-policy algorithms store them.
        observation_space, action_space: of all episodes; the first episode's when None.

    Raises:
        MissingExtra: without stable_baselines3.
        InvalidArgument: no episodes with a step, no spaces or nested ones that SB3 does not know, too small a buffer.
        LostInConversion: with `strict`, when something would be lost.
    """
    try:
        from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
    except ImportError as error:
        raise MissingExtra("a buffer of SB3 needs it: pip install stable-baselines3") from error
    report, episodes = LossReport(), list(episodes)
    steps = transitions_of(
        episodes, "a buffer of SB3", report, action_mapping, keeps=("observation_space", "action_space")
    )
    seen_space = episodes[0].observation_space if observation_space is None else observation_space
    act_space = episodes[0].env_action_space if action_space is None else action_space
    _check_spaces(seen_space, act_space)
    for episode in episodes:
        tell_other_spaces(report, episode, "SB3", observation_space=seen_space, env_action_space=act_space)
    num = len(steps.rewards)
    if buffer_size is not None and buffer_size < num:
        raise InvalidArgument(f"buffer_size={buffer_size}: there are {num} steps; give at least so many")
    kind: Any = DictReplayBuffer if isinstance(seen_space, spaces.Dict) else ReplayBuffer
    buffer = kind(buffer_size or num, seen_space, act_space, device, n_envs=1)
    for name, (there, given) in {
        "observations": (buffer.observations, steps.observations),
        "next observations": (buffer.next_observations, steps.next_observations),
        "actions": (buffer.actions, steps.actions),
        "rewards": (buffer.rewards, steps.rewards),
    }.items():
        _write(there, given, name, report)
    buffer.dones[:num, 0] = steps.terminated | steps.truncated
    buffer.timeouts[:num, 0] = steps.truncated & ~steps.terminated
    buffer.pos, buffer.full = num % buffer.buffer_size, num == buffer.buffer_size
    return buffer, report.check(strict)


def _check_spaces(seen: Any, acted: Any) -> None:
    for name, space in (("observation_space", seen), ("action_space", acted)):
        if space is None:
            raise InvalidArgument(f"to_sb3: the first episode has no {name}; give {name}=")
    parts = list(seen.spaces.values()) if isinstance(seen, spaces.Dict) else [seen]
    for part in (*parts, acted):
        has_axes = isinstance(part, spaces.MultiDiscrete) and len(part.shape) > 1
        if has_axes or isinstance(part, (spaces.Dict, spaces.Tuple, spaces.Text)):
            raise InvalidArgument(
                f"SB3 has no buffer for {part} in there; its observations are arrays, or a Dict of them"
            )


def _write(there: Any, given: Any, name: str, report: LossReport) -> None:
    """Write items [n, ...] into rows of a buffer [size, 1, ...], and tell of numbers that its dtype cannot hold."""
    for row, items in zip(nested.leaves(there), nested.leaves(given), strict=True):
        row[: len(items), 0] = items.reshape(len(items), *row.shape[2:])
        kept = row[: len(items), 0].reshape(items.shape)
        if not np.array_equal(kept, items, equal_nan=items.dtype.kind == "f"):
            report.add(name, f"SB3 holds them as {row.dtype}, some are other numbers there", "row 0")
        elif row.dtype != items.dtype:
            report.add(f"the dtype of {name}", f"SB3 holds them as {row.dtype}", "row 0")


def from_sb3(
    buffer: Any, *, action_mapping: str | None = None, strict: bool = False
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """The episodes "sb3-ENV/0", ... in a `ReplayBuffer` or `DictReplayBuffer` of Stable-Baselines3, and what was lost.

    The oldest episode of a buffer that is full begins in its midst.

    Args:
        action_mapping: None for actions of the environment. "normalize" for actions in [-1, 1] of a policy,
            as SB3's off-policy algorithms store them.
        strict: raise if something would be lost.

    Raises:
        InvalidArgument: a buffer with `optimize_memory_usage`, which has no next observations.
        LostInConversion: with `strict`, when something would be lost.
    """
    if getattr(buffer, "optimize_memory_usage", False):
        raise InvalidArgument("from_sb3: with optimize_memory_usage=True there are no next observations to read")
    report, found = LossReport(), []
    rows = np.arange(buffer.pos)
    if buffer.full:
        rows = np.concatenate([np.arange(buffer.pos, buffer.buffer_size), rows])
    spaces = {
        "observation_space": buffer.observation_space,
        "action_space": imported_space(buffer.action_space, action_mapping),
    }
    for env in range(buffer.n_envs):
        seen, after, done, late = (
            nested.map_leaves(lambda leaf, env=env: leaf[rows, env], data)
            for data in (buffer.observations, buffer.next_observations, buffer.dones > 0, buffer.timeouts > 0)
        )
        seen, after = (_shaped(data, buffer.observation_space) for data in (seen, after))
        acted = buffer.actions[rows, env].reshape(len(rows), *buffer.action_space.shape)
        steps = Transitions(seen, after, acted, buffer.rewards[rows, env], done & ~late, done & late)
        found += steps.episodes(f"sb3-{env}", report, **spaces)
    return found, report.check(strict)


def _shaped(data: Any, space: Any) -> Any:
    """Items [N, ...] of their space's shape; the buffer holds numbers as arrays of one."""
    if isinstance(data, dict):
        return {key: _shaped(part, space[key]) for key, part in data.items()}
    return data.reshape(len(data), *space.shape)
