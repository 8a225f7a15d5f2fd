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
from connectors.rollout.fragments import BlockEdge, Fragments, find_fragments, place_chunks
from episodes.columns import Columns
from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.casting import try_cast
from episodes.tracks.ragged import Ragged

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["BlockEdge", "episodes_to_rollout", "rollout_to_episodes"]

# extra model outputs that a rollout has a column for
_EXTRAS = {Columns.ACTION_LOGP: "sample_log_prob", Columns.VF_PREDS: "value"}


def episodes_to_rollout(
    episodes: Sequence[SingleAgentEpisode], rollout: TensorDict, edge: BlockEdge, values: np.ndarray | None = None
) -> TensorDict:
    """Write recorded episodes into a rollout [N, T + 1], and return the rollout. `rollout_to_episodes` is the inverse.

    Each part of an episode gets consecutive rows of one environment. Floating-point tracks become float32. Data without
    a column in the rollout (ids, infos, lookbacks, other extra outputs) stay in the pack, which the rollout references.

    Args:
        episodes: chunks whose observations and actions are single arrays. A pack of a `VectorRecorder` gets the rows
            from which it came. Remaining rows are not valid.
        rollout: the result of `RolloutBuffer.start_rollout`.
        edge: state of the environments after the previous rollout. It is updated.
        values: values of all observations [S + n], T + 1 per episode. By default `value` is the episodes' `vf_preds`,
            if they have it, and zero after the last steps.

    Raises:
        ShapeMismatch: items have another size than those of the rollout, or there are too many chunks.
        ChunkMismatch: a chunk does not continue its episode where the previous rollout stopped.
        TrackMismatch: observations or actions are nested or ragged. Flatten or pad them first.
        InvalidArgument: float32 cannot represent the numbers, or `edge` has another number of environments.
    """
    pack = EpisodePack.from_episodes(episodes)
    num_envs, num_slots = rollout.shape
    if num_envs != edge.num_envs:
        raise InvalidArgument(f"a rollout of {num_envs} environments with a BlockEdge of {edge.num_envs}")
    fragments = place_chunks(pack, num_slots - 1, edge)
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
    """Return the columns of a rollout made of recorded episodes, [N * (T + 1), ...], and each chunk's last observation
    with its value.
    """
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
    """Return the row indices and values of the flags "valid", "done", "terminated" and "truncated" of a rollout made of
    episodes.
    """
    steps, some = fragments.step_rows(), pack.lengths > 0
    ends = fragments.ends()[some]
    flags = {"terminated": pack.terminated, "truncated": pack.truncated}
    flags["done"] = pack.terminated | pack.truncated | fragments.shares_last_slot()
    return {"valid": (steps, np.ones(len(steps), bool)), **{name: (ends, flag[some]) for name, flag in flags.items()}}


def _finals_of(
    rollout: TensorDict, fragments: Fragments, observations: np.ndarray, values: np.ndarray
) -> FinalObservations:
    """Return the last observations for which the rollout has no row, because the next row has the next episode's first
    observation.
    """
    num_envs, num_slots = rollout.shape
    obs = cast(Tensor, rollout["obs"])
    final = FinalObservations(num_envs, num_slots, obs.shape[-1], obs.device)
    is_separate = fragments.shares_last_slot()
    rows = torch.from_numpy(fragments.ends()[is_separate])
    final.append_rows(rows, torch.from_numpy(observations[is_separate]), torch.from_numpy(values[is_separate]))
    return final


def _flat_items(name: str, track: Any, column: Tensor) -> np.ndarray:
    """Return observations or actions [n, ...] as float32 vectors [n, D].

    Raises:
        TrackMismatch: the items are nested or ragged.
        ShapeMismatch: D is not the size of `column`.
    """
    if not nested.is_leaf(track):
        raise TrackMismatch(f"{name} are {nested.describe(track)}; a rollout stores one array: flatten them first")
    if isinstance(track, Ragged):
        raise TrackMismatch(f"{name} are ragged (their lengths differ); a rollout holds items of one shape: pad them")
    flat = track.reshape(len(track), math.prod(track.shape[1:]))
    if flat.shape[1] != column.shape[-1]:
        raise ShapeMismatch(
            f"{name} have {flat.shape[1]} numbers {list(track.shape[1:])}, the rollout {column.shape[-1]}"
        )
    return _as_float32(name, flat)


def _as_float32(name: str, array: np.ndarray) -> np.ndarray:
    """Return an array as float32. Raise `InvalidArgument` if it is not numeric, float32 cannot represent its integers,
    or its floats are too large.
    """
    converted = try_cast(array, np.dtype(np.float32)) if array.dtype.kind in "biuf" else None
    if converted is None or (array.dtype.kind in "iu" and (converted.astype(array.dtype) != array).any()):
        raise InvalidArgument(f"{name} are {array.dtype} with values that float32, the dtype of rollouts, cannot hold")
    return converted


def _scalars(pack: EpisodePack, key: str) -> np.ndarray:
    """Return a recorded extra model output with one number per step, such as values, as float32 [n]. Return zeros if it
    was not recorded.

    Raises:
        ShapeMismatch: the output has not one number per step, or a rollout has no column for it.
    """
    track = pack.extra_model_outputs.get(key)
    if track is None:
        return np.zeros(len(pack.rewards), np.float32)
    if not _has_column(key, track):
        raise ShapeMismatch(
            f"extra model output {key!r} is {nested.describe(track)}; a rollout stores one number per step"
        )
    return _as_float32(key, track)


def _has_column(key: str, track: Any) -> bool:
    """Return True if a rollout has a column for this extra model output, and it has one number per step."""
    return key in _EXTRAS and nested.is_leaf(track) and track.ndim == 1


def _checked_values(values: np.ndarray | None, num_observations: int, pack: EpisodePack) -> np.ndarray:
    """Return the value estimate of each observation, float32: the given `values`, or else the recorded extra model
    output `vf_preds` (0 if it was not recorded), with 0 for the last observation of each chunk.

    Raises:
        ShapeMismatch: `values` are not one per observation, or `vf_preds` are not one number per step.
    """
    if values is not None:
        if np.shape(values) != (num_observations,):
            raise ShapeMismatch(
                f"values {list(np.shape(values))} of {num_observations} observations: give one for each"
            )
        return _as_float32("values", np.asarray(values))
    padded = np.zeros(num_observations, np.float32)
    stays = np.ones(num_observations, bool)
    stays[np.cumsum(pack.lengths + 1) - 1] = False
    padded[stays] = _scalars(pack, Columns.VF_PREDS)[pack.step_rows()]
    return padded


def rollout_to_episodes(
    rollout: TensorDict,
    edge: BlockEdge,
    *,
    observation_space: spaces.Space | None = None,
    action_space: spaces.Space | None = None,
) -> EpisodePack:
    """Return the episodes in a rollout [N, T + 1] as a pack, ordered by environment. It is the inverse of
    `episodes_to_rollout`.

    Unfinished episodes continue in the next rollout. A rollout that was filled from episodes returns these with the
    current values of its columns. In a rollout of a simulator, chunks are found by `valid` and `done`. An episode that
    starts with the last observation of the block is a chunk without steps. A terminated episode without a stored last
    observation repeats the one before.

    Args:
        rollout: [N, T + 1].
        edge: state of the environments after the previous rollout. It is updated.
        observation_space: space of the observations; by default flat float32, or that of the source episodes.
        action_space: space of the actions; by default flat float32, or that of the source episodes.

    Raises:
        TrackMismatch: the last observation of a truncated episode is missing.
        InvalidArgument: a row is valid but is a reset in the autoreset mode, or `edge` has another number of
            environments.
    """
    names = ("obs", "action", "reward", "sample_log_prob", "value", "done", "terminated", "truncated", "valid")
    columns = {name: cast(Tensor, rollout[name]).cpu().numpy() for name in names}
    ended = columns["terminated"] | columns["truncated"]
    fragments = rollout.get_non_tensor(FRAGMENTS, None)
    if not isinstance(fragments, Fragments):
        fragments = find_fragments(columns["valid"][:, :-1], (ended | columns["done"])[:, :-1], edge)
    columns = {name: column.reshape(-1, *column.shape[2:]) for name, column in columns.items()}
    observations = _observations_of(columns, fragments, final_observations(rollout))
    if fragments.source is None:
        pack = _make_pack(fragments, observations, columns, (observation_space, action_space))
    else:
        pack = _update_pack(fragments.source, fragments, observations, columns)
    edge.advance(fragments, pack.terminated | pack.truncated)
    return pack


def _observations_of(columns: dict[str, np.ndarray], fragments: Fragments, final: FinalObservations) -> np.ndarray:
    """Return all observations of the episodes in a rollout, [S + F, D], including last observations that have no row.

    Raises:
        TrackMismatch: the last observation of a truncated episode is missing.
    """
    observations = columns["obs"][fragments.observation_rows()]
    separate = np.flatnonzero(fragments.shares_last_slot())
    if not len(separate):
        return observations
    ends, last = fragments.ends()[separate], fragments.last_observations()[separate]
    final_of_row = np.full(len(columns["obs"]), -1)
    final_of_row[final.rows.cpu().numpy()] = np.arange(len(final))
    at = final_of_row[ends]
    lost = np.flatnonzero((at < 0) & ~columns["terminated"][ends])
    if len(lost):
        env, step = divmod(int(ends[lost[0]]), fragments.num_rows + 1)
        raise TrackMismatch(
            f"environment {env} stopped at step {step} without a termination, and its last observation is missing; "
            "append it to rollout['final']"
        )
    is_stored = at >= 0
    observations[last[is_stored]] = final.obs.cpu().numpy()[at[is_stored]]
    observations[last[~is_stored]] = observations[last[~is_stored] - 1]
    return observations


def _flag(column: np.ndarray, fragments: Fragments, otherwise: np.ndarray | bool = False) -> np.ndarray:
    """Return the value of a flag at the last step of each of F parts of episodes, [F]. A part without steps gets
    `otherwise`.
    """
    return np.where(fragments.lengths > 0, column[fragments.ends()], otherwise)


def _make_pack(
    fragments: Fragments,
    observations: np.ndarray,
    columns: dict[str, np.ndarray],
    spaces_: tuple[spaces.Space | None, spaces.Space | None],
) -> EpisodePack:
    """Return the episodes in a rollout that a simulator filled, as a pack (many episodes as arrays)."""
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
    """Return flat vectors [n, D] with the item shape and dtype of a space. Raise `InvalidArgument` if the space is not
    one array.
    """
    if space is None:
        return flat
    if space.shape is None or space.dtype is None:
        raise InvalidArgument(f"{space}: a rollout stores one array per step; give the space of the flattened items")
    return flat.reshape(len(flat), *space.shape).astype(space.dtype)


def _update_pack(
    source: EpisodePack, fragments: Fragments, observations: np.ndarray, columns: dict[str, np.ndarray]
) -> EpisodePack:
    """Return the episodes from which a rollout was filled, with the current values of the rollout's columns."""
    steps, chosen = fragments.step_rows(), source.step_rows()
    extras = {
        key: _replace_items(track, chosen, columns[_EXTRAS[key]][steps]) if _has_column(key, track) else track
        for key, track in source.extra_model_outputs.items()
    }
    return source.replace(
        observations=_replace_items(source.observations, source.all_observation_rows(), observations),
        actions=_replace_items(source.actions, chosen, columns["action"][steps]),
        rewards=_replace_items(source.rewards, chosen, columns["reward"][steps]),
        extra_model_outputs=extras,
        terminated=_flag(columns["terminated"], fragments, source.terminated),
        truncated=_flag(columns["truncated"], fragments, source.truncated),
    )


def _replace_items(track: np.ndarray, rows: slice | np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return an array of episode data with `items` at the indices `rows`. Other rows, such as lookbacks, stay
    unchanged.
    """
    items = items.reshape(len(items), *track.shape[1:]).astype(track.dtype)
    if isinstance(rows, slice):
        return items
    changed = track.copy()
    changed[rows] = items
    return changed
