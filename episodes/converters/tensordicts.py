"""Episodes to and from a TensorDict, by the names of TorchRL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from episodes.converters.action_mapping import exported, imported_space
from episodes.converters.loss_report import LossReport, report_dropped_facts
from episodes.converters.transitions import Transitions, numbers_of
from episodes.errors import InvalidArgument, needing
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

_FLAGS = ("done", "terminated", "truncated")
_RESERVED = {"observation", "action", "next", "collector", *_FLAGS, "is_init"}


def _tensordict() -> Any:
    with needing("tensordict", "a TensorDict needs tensordict"):
        import tensordict
    return tensordict.TensorDict


def to_tensordict(
    episodes: Sequence[SingleAgentEpisode], *, action_mapping: str | None = None, strict: bool = False
) -> tuple[Any, LossReport]:
    """The steps of the episodes one after another, a TensorDict [N], and what was lost.

    "observation", "action", extra model outputs by their keys, ("next", "observation" | "reward" [N, 1] | "done" |
    "terminated" | "truncated" [N, 1]), ("collector", "traj_ids") [N]: the episode's number.

    Args:
        action_mapping: None writes the actions that were sent to the environment. "normalize" writes actions in
            [-1, 1], log-probabilities belong to these.
        strict: raise if something would be lost.

    Raises:
        MissingExtra: without tensordict.
        InvalidArgument: no episodes with a step, or items that are not dicts of numbers.
        LostInConversion: with `strict`, when something would be lost.
    """
    made, report = _tensordict(), LossReport()
    parts = []
    for number, episode in enumerate(episodes):
        if not len(episode):
            report.add("the episode", "a TensorDict has no episodes without a step", episode.id_)
            continue
        episode = exported(episode, report, action_mapping)
        report_dropped_facts(report, episode, "a TensorDict", keeps=("extra_model_outputs", "both_endings"))
        parts.append(_rows_of(episode, number, report))
    if not parts:
        raise InvalidArgument("to_tensordict: no episodes with a step were given")
    rows = nested.concatenate(parts)
    return made(_without_tuples(rows), batch_size=[len(rows["next"]["reward"])]), report.check(strict)


def _rows_of(episode: SingleAgentEpisode, number: int, report: LossReport) -> dict[str, Any]:
    seen, after, acted, paid = numbers_of(episode, "a TensorDict")
    flags = np.zeros((3, len(paid), 1), bool)
    flags[:, -1, 0] = episode.is_done, episode.is_terminated, episode.is_truncated
    extra = {key: track.get() for key, track in episode.finalized_tracks().extra.items()}
    for key in [
        key for key, data in extra.items() if any(leaf.dtype.kind not in "biufc" for leaf in nested.leaves(data))
    ]:
        report.add(f"extra_model_outputs[{key!r}]", "a TensorDict holds numbers", episode.id_)
        del extra[key]
    if taken := extra.keys() & _RESERVED:
        raise InvalidArgument(f"episode {episode.id_}: extra model outputs {sorted(taken)} have names of TorchRL's own")
    following = {"observation": after, "reward": paid[:, None], **dict(zip(_FLAGS, flags, strict=True))}
    ids = {"traj_ids": np.full(len(paid), number)}
    return {"observation": seen, "action": acted, **extra, "next": following, "collector": ids}


def _without_tuples(data: Any) -> Any:
    """Dicts of tensors, copied; `InvalidArgument` for a tuple, which a TensorDict has not."""
    import torch

    if isinstance(data, tuple):
        raise InvalidArgument("a TensorDict holds dicts, no tuples; make the Tuple space a Dict first")
    if isinstance(data, dict):
        if odd := [key for key in data if not isinstance(key, str)]:
            raise InvalidArgument(f"a TensorDict has keys that are text, and {odd[0]!r} is none; rename it")
        return {key: _without_tuples(part) for key, part in data.items()}
    return torch.tensor(data.astype(data.dtype.newbyteorder("=")))


def from_tensordict(
    data: Any,
    *,
    observation_space: spaces.Space | None = None,
    action_space: spaces.Space | None = None,
    action_mapping: str | None = None,
    strict: bool = False,
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """The episodes "tensordict/0", ... in a TensorDict [N] or [B, T] of TorchRL's names, and what was lost.

    Entries of other names are extra model outputs; other entries of "next" and "collector" are lost.

    Args:
        observation_space, action_space: of the environment; a TensorDict does not store them.
        action_mapping: None for actions of the environment. "normalize" for actions in [-1, 1] of a policy,
            log-probabilities belong to these.
        strict: raise if something would be lost.

    Raises:
        InvalidArgument: an entry is missing.
        LostInConversion: with `strict`, when something would be lost.
    """
    report, shape = LossReport(), tuple(data.batch_size)
    rows = _arrays(data.reshape(-1), ())
    try:
        following, seen, acted = rows["next"], rows["observation"], rows["action"]
        after, paid = following["observation"], following["reward"].reshape(len(data.reshape(-1)))
        terminated = following.get("terminated", following.get("done"))
        terminated = terminated.reshape(len(paid))
    except (KeyError, AttributeError) as error:
        raise InvalidArgument(f"from_tensordict: no {error} among {sorted(map(str, data.keys(True, True)))}") from None
    truncated = following.get("truncated", np.zeros_like(terminated)).reshape(len(paid))
    groups = np.arange(len(paid)) // (shape[-1] if len(shape) > 1 else max(len(paid), 1))
    ids = rows.get("collector", {}).get("traj_ids")
    if ids is not None:
        groups = np.unique(np.stack([groups, ids.reshape(-1)]), axis=1, return_inverse=True)[1].reshape(-1)
    for key in sorted(following.keys() - {"observation", "reward", *_FLAGS}):
        report.add(f"('next', {key!r})", "an episode has no place for it", "row 0")
    for key in sorted(rows.get("collector", {}).keys() - {"traj_ids"}):
        report.add(f"('collector', {key!r})", "an episode has no place for it", "row 0")
    extra = {key: rows[key] for key in rows.keys() - _RESERVED}
    steps = Transitions(seen, after, acted, paid, terminated, truncated, groups, extra=extra)
    known_spaces = {
        "observation_space": observation_space,
        "action_space": imported_space(action_space, action_mapping),
    }
    return steps.episodes("tensordict", report, **known_spaces), report.check(strict)


def _arrays(data: Any, path: tuple[str, ...]) -> dict[str, Any]:
    """Nested arrays of the tensors."""
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
