"""Episodes from the replay buffers of Stable-Baselines3 and Tianshou, and from D4RL's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from episodes.converters.losses import LossReport
from episodes.converters.transitions import Transitions
from episodes.errors import InvalidArgument, MissingExtra, UnreadableData
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested


def from_sb3(buffer: Any, *, strict: bool = False) -> tuple[list[SingleAgentEpisode], LossReport]:
    """The episodes "sb3-ENV/0", ... in a `ReplayBuffer` or `DictReplayBuffer` of Stable-Baselines3, and what was lost.

    The oldest episode of a buffer that is full begins in its midst.

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
    spaces = {"observation_space": buffer.observation_space, "action_space": buffer.action_space}
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


def from_tianshou(buffer: Any, *, strict: bool = False) -> tuple[list[SingleAgentEpisode], LossReport]:
    """The episodes "tianshou/0", ... in a `ReplayBuffer` or `VectorReplayBuffer` of Tianshou, and what was lost.

    Raises:
        InvalidArgument: a buffer with `ignore_obs_next`, which has no next observations.
        LostInConversion: with `strict`, when something would be lost.
    """
    report, rows = LossReport(), np.asarray(buffer.sample_indices(0))
    data = _dicts(buffer)
    if "obs_next" not in data:
        raise InvalidArgument("from_tianshou: with ignore_obs_next=True there are no next observations to read")
    taken = nested.map_leaves(lambda leaf: leaf[rows], data)
    known = {"obs", "obs_next", "act", "rew", "terminated", "truncated", "done", "info"}
    edges = getattr(buffer, "subbuffer_edges", None)
    steps = Transitions(
        taken["obs"],
        taken["obs_next"],
        taken["act"],
        taken["rew"],
        taken["terminated"],
        taken["truncated"],
        None if edges is None else np.searchsorted(edges, rows, side="right"),
        taken.get("info", {}),
    )
    for key in taken.keys() - known:
        report.add(repr(key), "it is not known what it is", "row 0")
    return steps.episodes("tianshou", report), report.check(strict)


def _dicts(data: Any) -> dict[str, Any]:
    """Nested arrays of Tianshou's batches; empty ones left out."""
    names = ("obs", "obs_next", "act", "rew", "terminated", "truncated", "info", "policy")
    items = data.items() if isinstance(data, Mapping) or hasattr(data, "items") else ()
    pairs = list(items) or [(name, getattr(data, name)) for name in names if hasattr(data, name)]
    nest = {key: value if isinstance(value, np.ndarray) else _dicts(value) for key, value in pairs}
    return {key: value for key, value in nest.items() if isinstance(value, np.ndarray) or value}


def from_d4rl(path: str | Path, *, strict: bool = False) -> tuple[list[SingleAgentEpisode], LossReport]:
    """The episodes "FILE/0", ... in an HDF5 file of D4RL's layout, and what was lost.

    Where the file has no "next_observations", the observation after an episode's last step is not known: a terminated
    episode ends with the one before it once more, and any other loses its last step.

    Raises:
        MissingExtra: without h5py.
        UnreadableData: the file is no HDF5 file, or has not the arrays of D4RL.
        LostInConversion: with `strict`, when something would be lost.
    """
    try:
        import h5py
    except ImportError as error:
        raise MissingExtra("D4RL's files need h5py; install the extra: pip install 'rl-episodes[minari]'") from error
    report, name = LossReport(), Path(path).stem
    try:
        with h5py.File(path, "r") as file:
            data = _read(h5py, file)
        seen, acted, paid = data["observations"], data["actions"], data["rewards"].reshape(-1)
        terminated = data["terminals"].reshape(-1).astype(bool)
    except FileNotFoundError:
        raise
    except (OSError, KeyError) as error:
        raise UnreadableData(f"{path}: not a file of D4RL's layout: {error}") from error
    truncated = data.get("timeouts", np.zeros_like(terminated)).reshape(-1).astype(bool)
    for key in data.keys() - {"observations", "actions", "rewards", "terminals", "timeouts", "next_observations"}:
        report.add(repr(key), "an episode has no place for it", name)
    steps = Transitions(seen, data.get("next_observations"), acted, paid, terminated, truncated)
    if steps.next_observations is None:
        steps = _with_next(steps, report, name)
    return steps.episodes(name, report), report.check(strict)


def _read(h5py: Any, group: Any) -> dict[str, Any]:
    return {key: item[()] for key, item in group.items() if isinstance(item, h5py.Dataset)} | {
        key: None for key, item in group.items() if not isinstance(item, h5py.Dataset)
    }


def _with_next(steps: Transitions, report: LossReport, name: str) -> Transitions:
    """The transitions with next observations, less the steps of which that is not known."""
    after = np.concatenate([steps.observations[1:], steps.observations[-1:]])
    ends = steps.terminated | steps.truncated
    unknown = steps.truncated & ~steps.terminated
    if len(ends):
        unknown[-1] |= not ends[-1]
    after[steps.terminated] = steps.observations[steps.terminated]
    for row in np.flatnonzero(steps.terminated):
        report.add("the last observation", "the file has none after a step that terminates", f"row {row}")
    truncated = steps.truncated.copy()
    for row in np.flatnonzero(unknown):
        report.add("the last step", "the file has no observation after it", f"row {row}")
        if row and not ends[row - 1]:
            truncated[row - 1] = truncated[row]
    groups = np.concatenate([[0], np.cumsum(ends)[:-1]])
    kept = ~unknown
    return Transitions(
        steps.observations[kept],
        after[kept],
        steps.actions[kept],
        steps.rewards[kept],
        steps.terminated[kept],
        truncated[kept],
        groups[kept],
    )
