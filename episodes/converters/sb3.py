"""Conversion of episodes to and from replay buffers of Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from episodes.converters.accounting import Account, check_numbers
from episodes.converters.action_mapping import imported_space
from episodes.converters.bounded_packs import refuse_ragged
from episodes.converters.loss_report import LossReport, report_other_spaces
from episodes.converters.source_ids import prefix_of_arrays
from episodes.converters.transitions import Transitions, transitions_of
from episodes.data_types import NestedArrays, Space
from episodes.errors import InvalidArgument, MissingExtra
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.space_kinds import SpaceKind, is_dict, kind_of, rejected_space

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer

_COLUMNS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
_SETTINGS = ("buffer_size", "observation_space", "action_space", "obs_shape", "action_dim", "pos", "full", "device")
_SETTINGS += ("n_envs", "optimize_memory_usage", "handle_timeout_termination")


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
    """Convert episodes to a `ReplayBuffer` of Stable-Baselines3. Return it with a report of what was lost.

    For a Dict space it is a `DictReplayBuffer`.

    A truncated step, and the last step of a cut chunk, is done by a time limit there, so that its value is
    bootstrapped.

    Args:
        episodes: the episodes.
        buffer_size: rows of the buffer. None: as many as there are steps.
        device: torch device of the buffer's samples.
        action_mapping: None writes the actions that were sent to the environment. "normalize" writes actions in
            [-1, 1], as SB3's off-policy algorithms store them.
        strict: raise if something would be lost.
        observation_space: space of all episodes. None: the first episode's.
        action_space: the environment's action space. None: the first episode's.

    Raises:
        MissingExtra: stable_baselines3 is not installed.
        InvalidArgument: no episode has a step, spaces are missing or not supported by SB3, or the buffer is too small.
        LostInConversion: with `strict`, something would be lost.
        TrackMismatch: an episode has ragged tracks.
    """
    episodes = refuse_ragged(episodes)
    try:
        from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
    except ImportError as error:
        raise MissingExtra("a buffer of SB3 needs it: pip install stable-baselines3") from error
    report = LossReport()
    steps = transitions_of(
        episodes, "a buffer of SB3", report, action_mapping, keeps=("observation_space", "action_space")
    )
    seen_space = episodes[0].observation_space if observation_space is None else observation_space
    act_space = episodes[0].env_action_space if action_space is None else action_space
    _check_spaces(seen_space, act_space)
    for episode in episodes:
        report_other_spaces(report, episode, "SB3", observation_space=seen_space, env_action_space=act_space)
    num = len(steps.rewards)
    if buffer_size is not None and buffer_size < num:
        raise InvalidArgument(f"buffer_size={buffer_size}: there are {num} steps; give at least {num}")
    kind: Any = DictReplayBuffer if is_dict(seen_space) else ReplayBuffer
    buffer = kind(buffer_size or num, seen_space, act_space, device, n_envs=1)
    for name, (rows, values) in {
        "observations": (buffer.observations, steps.observations),
        "next observations": (buffer.next_observations, steps.next_observations),
        "actions": (buffer.actions, steps.actions),
        "rewards": (buffer.rewards, steps.rewards),
    }.items():
        _write(rows, values, name, report)
    buffer.dones[:num, 0] = steps.terminated | steps.truncated
    buffer.timeouts[:num, 0] = steps.truncated & ~steps.terminated
    buffer.pos, buffer.full = num % buffer.buffer_size, num == buffer.buffer_size
    return buffer, report.check(strict)


def _check_spaces(observation_space: Space | None, action_space: Space | None) -> None:
    """Raise `InvalidArgument` if a space is `None`, or is of a kind that SB3's buffers do not store."""
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        if space is None:
            raise InvalidArgument(f"to_sb3: the first episode has no {name}; give {name}=")
    observed = observation_space.spaces.values() if is_dict(observation_space) else [observation_space]
    for part in (*observed, action_space):
        kind = kind_of(part)
        shape = getattr(part, "shape", None) or ()
        if kind.is_nested or kind is SpaceKind.TEXT or (kind is SpaceKind.MULTI_DISCRETE and len(shape) > 1):
            raise rejected_space("to_sb3", part, "an array, or Dict of arrays,", "SB3 has no buffer for it: flatten it")


def _write(rows: NestedArrays, values: NestedArrays, name: str, report: LossReport) -> None:
    """Copy items [n, ...] into a buffer array [size, 1, ...], and report numbers that change in its dtype."""
    for row, items in zip(nested.leaves(rows), nested.leaves(values), strict=True):
        row[: len(items), 0] = items.reshape(len(items), *row.shape[2:])
        written = row[: len(items), 0].reshape(items.shape)
        if not np.array_equal(written, items, equal_nan=items.dtype.kind == "f"):
            report.add(name, f"SB3 holds them as {row.dtype}, some are other numbers there", "row 0")
        elif row.dtype != items.dtype:
            report.add(f"the dtype of {name}", f"SB3 holds them as {row.dtype}", "row 0")


def from_sb3(
    buffer: ReplayBuffer, *, action_mapping: str | None = None, prefix: str | None = None, strict: bool = False
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Convert a `ReplayBuffer` or `DictReplayBuffer` to episodes. Return these with a report of what was lost.

    The ids are "sb3-DIGEST/ENV/0", "sb3-DIGEST/ENV/1" and so on, with a digest of the stored steps.

    The oldest episode of a full buffer may lack its first steps, which were overwritten. A buffer with
    `handle_timeout_termination=False` does not mark time limits: all its endings are terminations, and the report names
    them.

    Args:
        buffer: a replay buffer of Stable-Baselines3.
        action_mapping: None for actions of the environment. "normalize" for actions in [-1, 1] of a policy,
            as SB3's off-policy algorithms store them.
        prefix: first part of the ids, instead of "sb3-DIGEST".
        strict: raise if something would be lost.

    Raises:
        InvalidArgument: a buffer with `optimize_memory_usage`, which has no next observations.
        LostInConversion: with `strict`, something would be lost.
    """
    if getattr(buffer, "optimize_memory_usage", False):
        raise InvalidArgument("from_sb3: with optimize_memory_usage=True there are no next observations to read")
    report, episodes = LossReport(), []
    rows = np.arange(buffer.pos)
    if buffer.full:
        rows = np.concatenate([np.arange(buffer.pos, buffer.buffer_size), rows])
    known_spaces = {
        "observation_space": buffer.observation_space,
        "action_space": imported_space(buffer.action_space, action_mapping),
    }
    stored = Account(vars(buffer))
    stored.skip(*_SETTINGS)
    columns = {name: nested.map_leaves(lambda leaf: leaf[rows], stored[name]) for name in _COLUMNS}
    check_numbers("from_sb3", columns)
    prefix = prefix_of_arrays("sb3", columns, prefix)
    done, late = columns["dones"] > 0, columns["timeouts"] > 0
    if not getattr(buffer, "handle_timeout_termination", True) and done.any():
        reason = "the buffer has handle_timeout_termination=False; all endings count as terminations"
        report.add("truncations", reason, prefix)
    for env in range(buffer.n_envs):
        observations, after, ended, stopped = (
            nested.map_leaves(lambda leaf, env=env: leaf[:, env], data)
            for data in (columns["observations"], columns["next_observations"], done, late)
        )
        observations, after = (_reshape_items(data, buffer.observation_space) for data in (observations, after))
        actions = _reshape_items(columns["actions"][:, env], buffer.action_space)
        rewards = columns["rewards"][:, env]
        steps = Transitions(observations, after, actions, rewards, ended & ~stopped, ended & stopped)
        if (stopped & ~ended).any():
            report.add("timeouts", "steps with a timeout that are not done count as steps in an episode", prefix)
        episodes += steps.episodes(f"{prefix}/{env}", report, **known_spaces)
    stored.report_rest(report, prefix)
    return episodes, report.check(strict)


def _reshape_items(data: Any, space: Any) -> Any:
    """Reshape items [N, ...] to the shape of their space, because the buffer stores scalars with shape (1,)."""
    if isinstance(data, dict):
        return {key: _reshape_items(part, space[key]) for key, part in data.items()}
    return data.reshape(len(data), *space.shape)
