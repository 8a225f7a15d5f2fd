"""Conversion of episodes to rollouts [N, T + 1] and back, without loss.

>>> from connectors import RolloutBuffer
>>> from episodes import SingleAgentEpisode
>>> episode = SingleAgentEpisode.from_arrays(
...     observations=np.ones((4, 2), np.float32), actions=np.ones((3, 1), np.float32), rewards=np.ones(3, np.float32)
... )
>>> buffer = RolloutBuffer(num_envs=1, rollout_len=3, obs_dim=2, action_dim=1, device="cpu")
>>> rollout = episodes_to_rollout([episode], buffer.start_rollout(), BlockEdge(1, "SameStep"))
>>> rollout["reward"]
tensor([[1., 1., 1., 0.]])
>>> rollout_to_episodes(rollout, BlockEdge(1, "SameStep"))[0].equals(episode)
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from connectors.rollout.buffer import FINAL, FRAGMENTS, FinalObservations, final_observations
from connectors.rollout.fragments import BlockEdge, Fragments, find, place
from episodes.columns import Columns
from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["BlockEdge", "episodes_to_rollout", "rollout_to_episodes"]

# extra model outputs that a rollout has a column for
_EXTRAS = {Columns.ACTION_LOGP: "sample_log_prob", Columns.VF_PREDS: "value"}


def episodes_to_rollout(
    episodes: Sequence[SingleAgentEpisode], rollout: TensorDict, edge: BlockEdge, values: np.ndarray | None = None
) -> TensorDict:
    """Write the steps of episodes into a rollout [N, T + 1]. Each part of an episode gets consecutive rows.

    Floating-point tracks become float32. Data without a column in the rollout (ids, infos, lookbacks, other extra
    outputs) stay in the pack, which the rollout references.

    Args:
        episodes: chunks whose observations and actions are single arrays. A pack of a `VectorRecorder` gets the rows
            from which it came. Remaining rows are not valid.
        rollout: the result of `RolloutBuffer.start_rollout`.
        edge: the end of the block before. It is advanced.
        values: values of all observations [S + n], T + 1 per episode. By default `value` is the episodes' `vf_preds`,
            if they have it, and zero after the last steps.

    Raises:
        ShapeMismatch: items have another size than those of the rollout, or there are too many chunks.
        TrackMismatch: observations or actions are nested; flatten them first.
        InvalidArgument: float32 cannot represent the integers.
    """
    pack = EpisodePack.from_episodes(episodes)
    num_envs, num_slots = rollout.shape
    if num_envs != edge.num_envs:
        raise InvalidArgument(f"a rollout of {num_envs} environments with a BlockEdge of {edge.num_envs}")
    fragments = place(pack, num_slots - 1, edge)
    columns, last = _columns_of(pack, fragments, rollout, values)
    for name, column in columns.items():
        rollout[name].copy_(torch.from_numpy(column.reshape(rollout[name].shape)))
    rollout.set_non_tensor(FINAL, _finals_of(rollout, fragments, *last))
    rollout.set_non_tensor(FRAGMENTS, fragments)
    edge.advance(fragments, pack.terminated | pack.truncated)
    return rollout


def _columns_of(
    pack: EpisodePack, fragments: Fragments, rollout: TensorDict, values: np.ndarray | None
) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return a rollout's columns [N * (T + 1), ...], and the last observations [F, D] of F parts with values [F]."""
    size = rollout.numel()
    steps, chosen = fragments.step_rows(), pack.step_rows()
    observations = _flat_items("observations", pack.observations, rollout["obs"])[pack.all_observation_rows()]
    values = _checked_values(values, len(observations), pack)
    last, slots = fragments.last_observations(), fragments.observation_rows()
    tracks: dict[str, tuple[np.ndarray, np.ndarray]] = {
        "obs": (slots, observations),
        "value": (slots, values),
        "action": (steps, _flat_items("actions", pack.actions, rollout["action"])[chosen]),
        "reward": (steps, _as_float32("rewards", pack.rewards)[chosen]),
        "sample_log_prob": (steps, _scalars(pack, Columns.ACTION_LOGP)[chosen]),
        **_flags_of(pack, fragments),
    }
    columns = {}
    for name, (rows, items) in tracks.items():
        columns[name] = np.zeros((size, *items.shape[1:]), items.dtype)
        columns[name][rows] = items  # of two items for one row the later stays: the next fragment's first observation
    return columns, (observations[last], values[last])


def _flags_of(pack: EpisodePack, fragments: Fragments) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return row indices and values of the flags "valid", "done", "terminated" and "truncated" of a rollout."""
    steps, some = fragments.step_rows(), pack.lengths > 0
    ends = fragments.ends()[some]
    flags = {"terminated": pack.terminated, "truncated": pack.truncated}
    flags["done"] = pack.terminated | pack.truncated | fragments.shares_last_slot()
    return {"valid": (steps, np.ones(len(steps), bool)), **{name: (ends, flag[some]) for name, flag in flags.items()}}


def _finals_of(
    rollout: TensorDict, fragments: Fragments, observations: np.ndarray, values: np.ndarray
) -> FinalObservations:
    """Return the last observations that have no row in the rollout, because the next episode begins in that row."""
    num_envs, num_slots = rollout.shape
    obs = cast(Tensor, rollout["obs"])
    final = FinalObservations(num_envs, num_slots, obs.shape[-1], obs.device)
    aside = fragments.shares_last_slot()
    rows = torch.from_numpy(fragments.ends()[aside])
    final.append_rows(rows, torch.from_numpy(observations[aside]), torch.from_numpy(values[aside]))
    return final


def _flat_items(name: str, track: Any, column: Tensor) -> np.ndarray:
    """Return observations or actions [n, ...] of episodes as float32 [n, D]."""
    if not nested.is_leaf(track):
        raise TrackMismatch(f"{name} are {nested.describe(track)}; a rollout holds one array: flatten them first")
    flat = track.reshape(len(track), math.prod(track.shape[1:]))
    if flat.shape[1] != column.shape[-1]:
        raise ShapeMismatch(
            f"{name} have {flat.shape[1]} numbers {list(track.shape[1:])}, the rollout {column.shape[-1]}"
        )
    return _as_float32(name, flat)


def _as_float32(name: str, array: np.ndarray) -> np.ndarray:
    converted = array.astype(np.float32)
    if array.dtype.kind not in "biuf" or (array.dtype.kind in "iu" and (converted.astype(array.dtype) != array).any()):
        raise InvalidArgument(f"{name} are {array.dtype} with values that float32 cannot hold, as a rollout does")
    return converted


def _scalars(pack: EpisodePack, key: str) -> np.ndarray:
    """Return an extra model output [n], such as values, as float32, or zeros if it was not recorded."""
    track = pack.extra_model_outputs.get(key)
    if track is None:
        return np.zeros(len(pack.rewards), np.float32)
    if not _has_column(key, track):
        raise ShapeMismatch(
            f"extra model output {key!r} is {nested.describe(track)}; a rollout holds one number a step"
        )
    return _as_float32(key, track)


def _has_column(key: str, track: Any) -> bool:
    return key in _EXTRAS and nested.is_leaf(track) and track.ndim == 1


def _checked_values(values: np.ndarray | None, num_observations: int, pack: EpisodePack) -> np.ndarray:
    if values is not None:
        if np.shape(values) != (num_observations,):
            raise ShapeMismatch(
                f"values {list(np.shape(values))} of {num_observations} observations: give one for each"
            )
        return np.asarray(values, np.float32)
    spread = np.zeros(num_observations, np.float32)
    stays = np.ones(num_observations, bool)
    stays[np.cumsum(pack.lengths + 1) - 1] = False
    spread[stays] = _scalars(pack, Columns.VF_PREDS)[pack.step_rows()]
    return spread


def rollout_to_episodes(
    rollout: TensorDict,
    edge: BlockEdge,
    *,
    observation_space: spaces.Space | None = None,
    action_space: spaces.Space | None = None,
) -> EpisodePack:
    """Return the episodes in a rollout, ordered by environment. Unfinished ones continue in the next rollout.

    A rollout that was filled from episodes returns these with the current values of its columns. In a rollout of a
    simulator, chunks are found by `valid` and `done`. An episode that starts with the last observation of the block is
    a chunk without steps. A terminated episode without a stored last observation repeats the one before.

    Args:
        rollout: [N, T + 1].
        edge: the end of the block before. It is advanced.
        observation_space: space of the observations; by default flat float32, or that of the source episodes.
        action_space: space of the actions; by default flat float32, or that of the source episodes.

    Raises:
        TrackMismatch: the last observation of a truncated episode is missing.
        InvalidArgument: a row is valid but is a reset in the autoreset mode.
    """
    names = ("obs", "action", "reward", "sample_log_prob", "value", "done", "terminated", "truncated", "valid")
    columns = {name: cast(Tensor, rollout[name]).cpu().numpy() for name in names}
    ended = columns["terminated"] | columns["truncated"]
    fragments = rollout.get_non_tensor(FRAGMENTS, None)
    if not isinstance(fragments, Fragments):
        fragments = find(columns["valid"][:, :-1], (ended | columns["done"])[:, :-1], edge)
    columns = {name: column.reshape(-1, *column.shape[2:]) for name, column in columns.items()}
    observations = _observations_of(columns, fragments, final_observations(rollout))
    if fragments.source is None:
        pack = _new_pack(fragments, observations, columns, (observation_space, action_space))
    else:
        pack = _changed_pack(fragments.source, fragments, observations, columns)
    edge.advance(fragments, pack.terminated | pack.truncated)
    return pack


def _observations_of(columns: dict[str, np.ndarray], fragments: Fragments, final: FinalObservations) -> np.ndarray:
    """Return all observations [S + F, D] of F parts of episodes with S steps, their last observations included."""
    observations = columns["obs"][fragments.observation_rows()]
    aside = np.flatnonzero(fragments.shares_last_slot())
    if not len(aside):
        return observations
    ends, last = fragments.ends()[aside], fragments.last_observations()[aside]
    final_of_row = np.full(len(columns["obs"]), -1)
    final_of_row[final.rows.cpu().numpy()] = np.arange(len(final))
    at = final_of_row[ends]
    lost = np.flatnonzero((at < 0) & ~columns["terminated"][ends])
    if len(lost):
        env, step = divmod(int(ends[lost[0]]), fragments.num_rows + 1)
        raise TrackMismatch(
            f"environment {env} stopped at step {step} without a termination, and its last observation was not kept; "
            "append it to rollout['final']"
        )
    is_stored = at >= 0
    observations[last[is_stored]] = final.obs.cpu().numpy()[at[is_stored]]
    observations[last[~is_stored]] = observations[last[~is_stored] - 1]
    return observations


def _flag(column: np.ndarray, fragments: Fragments, otherwise: np.ndarray | bool = False) -> np.ndarray:
    """Return a flag at the last step of each of F parts of episodes, [F]; `otherwise` for parts without steps."""
    return np.where(fragments.lengths > 0, column[fragments.ends()], otherwise)


def _new_pack(
    fragments: Fragments,
    observations: np.ndarray,
    columns: dict[str, np.ndarray],
    spaces_: tuple[spaces.Space | None, spaces.Space | None],
) -> EpisodePack:
    """Return the episodes in a rollout that a simulator wrote, as one pack of arrays."""
    steps = fragments.step_rows()
    return EpisodePack(
        observations=_as_items_of(spaces_[0], observations),
        actions=_as_items_of(spaces_[1], columns["action"][steps]),
        rewards=columns["reward"][steps],
        extra_model_outputs={key: columns[name][steps] for key, name in _EXTRAS.items()},
        lengths=fragments.lengths,
        ids=fragments.ids,
        t_started=fragments.t_started,
        terminated=_flag(columns["terminated"], fragments),
        truncated=_flag(columns["truncated"], fragments),
        observation_space=spaces_[0],
        action_space=spaces_[1],
    )


def _as_items_of(space: spaces.Space | None, flat: np.ndarray) -> np.ndarray:
    if space is None:
        return flat
    if space.shape is None or space.dtype is None:
        raise InvalidArgument(f"{space}: a rollout holds one array a step; give the space of the flattened items")
    return flat.reshape(len(flat), *space.shape).astype(space.dtype)


def _changed_pack(
    source: EpisodePack, fragments: Fragments, observations: np.ndarray, columns: dict[str, np.ndarray]
) -> EpisodePack:
    """Return the episodes that were written into a rollout, with the current values of the rollout's columns."""
    steps, chosen = fragments.step_rows(), source.step_rows()
    extras = {
        key: _put_back(track, chosen, columns[_EXTRAS[key]][steps]) if _has_column(key, track) else track
        for key, track in source.extra_model_outputs.items()
    }
    return source.replace(
        observations=_put_back(source.observations, source.all_observation_rows(), observations),
        actions=_put_back(source.actions, chosen, columns["action"][steps]),
        rewards=_put_back(source.rewards, chosen, columns["reward"][steps]),
        extra_model_outputs=extras,
        terminated=_flag(columns["terminated"], fragments, source.terminated),
        truncated=_flag(columns["truncated"], fragments, source.truncated),
    )


def _put_back(track: np.ndarray, rows: slice | np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return an array of episode data with `items` at the indices `rows`. Lookback rows stay unchanged."""
    items = items.reshape(len(items), *track.shape[1:]).astype(track.dtype)
    if isinstance(rows, slice):
        return items
    changed = track.copy()
    changed[rows] = items
    return changed
