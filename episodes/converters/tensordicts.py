"""Conversion of episodes to a TensorDict with the entry names of TorchRL, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from episodes.converters.accounting import Account
from episodes.converters.action_mapping import export_actions, imported_space
from episodes.converters.bounded_packs import refuse_ragged
from episodes.converters.loss_report import LossReport, report_dropped_facts
from episodes.converters.source_ids import prefix_of_arrays
from episodes.converters.transitions import Transitions, numbers_of
from episodes.data_types import NestedArrays
from episodes.errors import InvalidArgument, UnreadableData, needing
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

_FLAGS = ("done", "terminated", "truncated")
_RESERVED = {"observation", "action", "next", "collector", *_FLAGS, "is_init"}


def _tensordict() -> Any:
    """Import tensordict, and return the class `TensorDict`. Raise `MissingExtra` if it is not installed."""
    with needing("tensordict", "a TensorDict needs tensordict"):
        import tensordict
    return tensordict.TensorDict


def to_tensordict(
    episodes: Sequence[SingleAgentEpisode], *, action_mapping: str | None = None, strict: bool = False
) -> tuple[Any, LossReport]:
    """Convert episodes to a TensorDict [N] of their concatenated steps. Return it with a report of what was lost.

    Entries: "observation", "action", extra model outputs by their keys, ("next", "observation" | "reward" [N, 1] |
    "done" | "terminated" | "truncated" [N, 1]), and ("collector", "traj_ids") [N], the episode's index.

    Args:
        episodes: the episodes.
        action_mapping: None writes the actions that were sent to the environment. "normalize" writes actions in
            [-1, 1], to which log-probabilities belong.
        strict: raise if something would be lost.

    Raises:
        MissingExtra: tensordict is not installed.
        InvalidArgument: no episode has a step, items are not numbers or are tuples, an extra model output has a
            name that TorchRL uses, or `action_mapping` is unknown or given for an episode without an action space.
        LostInConversion: with `strict`, something would be lost.
        TrackMismatch: an episode has ragged tracks.
    """
    episodes = refuse_ragged(episodes)
    made, report = _tensordict(), LossReport()
    parts = []
    for number, episode in enumerate(episodes):
        if not len(episode):
            report.add("the episode", "a TensorDict has no episodes without a step", episode.id_)
            continue
        episode = export_actions(episode, report, action_mapping)
        report_dropped_facts(report, episode, "a TensorDict", keeps=("extra_model_outputs", "both_endings"))
        parts.append(_rows_of(episode, number, report))
    if not parts:
        raise InvalidArgument("to_tensordict: no episodes with a step were given")
    rows = nested.concatenate(parts)
    return made(_without_tuples(rows), batch_size=[len(rows["next"]["reward"])]), report.check(strict)


def _rows_of(episode: SingleAgentEpisode, number: int, report: LossReport) -> dict[str, Any]:
    """Return the steps of an episode as nested columns with TorchRL's names. Extra model outputs that are not numeric
    are left out, and noted in `report`.

    Args:
        number: index of the episode, for the column of trajectory ids.

    Raises:
        InvalidArgument: an extra model output has a name that TorchRL reserves.
    """
    observations, after, actions, rewards = numbers_of(episode, "a TensorDict")
    flags = np.zeros((3, len(rewards), 1), bool)
    flags[:, -1, 0] = episode.is_done, episode.is_terminated, episode.is_truncated
    extra = {key: track.get() for key, track in episode.finalized_tracks().extra.items()}
    for key in [
        key for key, data in extra.items() if any(leaf.dtype.kind not in "biufc" for leaf in nested.leaves(data))
    ]:
        report.add(f"extra_model_outputs[{key!r}]", "a TensorDict holds numbers", episode.id_)
        del extra[key]
    if reserved := extra.keys() & _RESERVED:
        raise InvalidArgument(
            f"episode {episode.id_}: extra model outputs {sorted(reserved)} have names that TorchRL reserves; "
            "rename them"
        )
    following = {"observation": after, "reward": rewards[:, None], **dict(zip(_FLAGS, flags, strict=True))}
    ids = {"traj_ids": np.full(len(rewards), number)}
    return {"observation": observations, "action": actions, **extra, "next": following, "collector": ids}


def _without_tuples(data: NestedArrays) -> Any:
    """Convert nested dicts of arrays to dicts of copied tensors. Raise an error for tuples.

    Raises:
        InvalidArgument: a tuple or a key that is not text, which a TensorDict cannot hold.
    """
    import torch

    if isinstance(data, tuple):
        raise InvalidArgument("a TensorDict can contain dicts, but no tuples; convert the Tuple space to a Dict first")
    if isinstance(data, Mapping):
        if other_keys := [key for key in data if not isinstance(key, str)]:
            raise InvalidArgument(f"a TensorDict needs keys that are strings, and {other_keys[0]!r} is not; rename it")
        return {key: _without_tuples(part) for key, part in data.items()}
    return torch.tensor(data.astype(data.dtype.newbyteorder("=")), device="cpu")


def from_tensordict(
    data: Any,
    *,
    observation_space: spaces.Space | None = None,
    action_space: spaces.Space | None = None,
    action_mapping: str | None = None,
    prefix: str | None = None,
    strict: bool = False,
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Convert a TensorDict with TorchRL's entry names to episodes. Return these with a report of what was lost.

    The ids are "tensordict-DIGEST/0", "tensordict-DIGEST/1" and so on, with a digest of the data.

    Rows with the same ("collector", "traj_ids") are an episode, in the order of "step_count" if there is one, and
    "is_init" begins an episode. Rows that ("collector", "mask") marks as padding are left out. Entries with other names
    are extra model outputs. Other entries of "next" and "collector" are lost. Without "terminated", "done" counts as a
    termination, which the report names.

    Args:
        data: a TensorDict [N] or [B, T].
        observation_space: the environment's observation space, which a TensorDict does not store.
        action_space: the environment's action space, which a TensorDict does not store.
        action_mapping: None for actions of the environment. "normalize" for actions in [-1, 1] of a policy, to which
            log-probabilities belong.
        prefix: first part of the ids, instead of "tensordict-DIGEST".
        strict: raise if something would be lost.

    Raises:
        InvalidArgument: an entry is missing, or is not a tensor.
        UnreadableData: a trajectory has two rows with one "step_count".
        LostInConversion: with `strict`, something would be lost.
    """
    report, shape = LossReport(), tuple(data.batch_size)
    data = data.reshape(-1)
    groups = np.arange(len(data)) // (shape[-1] if len(shape) > 1 else max(len(data), 1))
    if ("collector", "mask") in data.keys(True, True):
        is_step = data["collector", "mask"].reshape(-1).cpu()  # other rows are padding
        data, groups = data[is_step].exclude(("collector", "mask")), groups[is_step.numpy()]
    rows, num = _arrays(data, ()), len(data)
    prefix = prefix_of_arrays("tensordict", (rows, groups), prefix)
    stored = Account(rows)
    try:
        following, observations, actions = (
            stored.inside("next", "('next', {!r})"),
            stored["observation"],
            stored["action"],
        )
        after, rewards = following["observation"], following["reward"].reshape(num)
        has_terminated = "terminated" in following
        terminated = following["terminated" if has_terminated else "done"].reshape(num)
    except (KeyError, ValueError) as error:
        raise InvalidArgument(f"from_tensordict: no {error} among {sorted(map(str, data.keys(True, True)))}") from None
    truncated = following["truncated"].reshape(num) if "truncated" in following else np.zeros(num, bool)
    if not has_terminated:
        terminated = terminated & ~truncated
        if terminated.any():
            report.add("whether it terminated", "the data have 'done' alone; taken as terminated", prefix)
    elif "done" in following and (following["done"].reshape(num) != (terminated | truncated)).any():
        report.add("('next', 'done')", "it differs from terminated and truncated, which are read", prefix)
    for name in _FLAGS:  # of the observation before the step
        if name in rows and not rows[name].any():
            stored.skip(name)
    collector = stored.inside("collector", "('collector', {!r})") if "collector" in stored else Account({})
    if "traj_ids" in collector:
        ids = collector["traj_ids"].reshape(num)
        groups = np.unique(np.stack([groups, ids]), axis=1, return_inverse=True)[1].reshape(-1)
    extra = {key: stored[key] for key in rows if key not in _RESERVED}
    times = rows.get("step_count") if "traj_ids" in collector else None
    if times is not None and (times.dtype.kind not in "iu" or times.size != num):
        times = None
    order = _order_of(groups, None if times is None else times.reshape(num))
    if "is_init" in stored:
        groups = groups * (num + 1) + np.cumsum(stored["is_init"].reshape(num)[order])[np.argsort(order)]
    columns = observations, after, actions, rewards, terminated, truncated, groups, {}, extra
    steps = Transitions(*nested.map_leaves(lambda leaf: leaf[order], columns))
    steps.times = None if times is None else times.reshape(num)[order].astype(np.int64)
    stored.report_rest(report, prefix, "an episode has no place for it")
    known_spaces = {
        "observation_space": observation_space,
        "action_space": imported_space(action_space, action_mapping),
    }
    return steps.episodes(prefix, report, **known_spaces), report.check(strict)


def _order_of(groups: np.ndarray, times: np.ndarray | None) -> np.ndarray:
    """Return the order of rows, int [N], in which the rows of each group are together and in the order of time.

    Args:
        groups: group of each row, int [N].
        times: time of each row in its group, or None if the rows of a group are in order.

    Raises:
        UnreadableData: a group has two rows of one time.
    """
    _, firsts, codes = np.unique(groups, return_index=True, return_inverse=True)
    ranks = np.argsort(np.argsort(firsts))[codes]  # groups in the order of their first rows
    if times is None:
        return np.argsort(ranks, kind="stable")
    order = np.lexsort((times, ranks))
    if ((np.diff(ranks[order]) == 0) & (np.diff(times[order]) == 0)).any():
        raise UnreadableData(
            "from_tensordict: a trajectory has two rows with one step_count; give each its own traj_ids"
        )
    return order


def _arrays(data: Any, path: tuple[str, ...]) -> dict[str, Any]:
    """Convert the tensors of a TensorDict to nested dicts of numpy arrays.

    Raises:
        InvalidArgument: a value is neither a tensor nor a TensorDict.
    """
    arrays = {}
    for key, value in data.items():
        if hasattr(value, "batch_size"):
            arrays[key] = _arrays(value, (*path, key))
        elif hasattr(value, "numpy"):
            arrays[key] = value.detach().cpu().numpy()
        else:
            raise InvalidArgument(
                f"from_tensordict: {(*path, key)} holds {type(value).__name__}, no tensor; leave it out"
            )
    return arrays
