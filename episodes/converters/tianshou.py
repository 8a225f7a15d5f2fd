"""Conversion of episodes to and from replay buffers of Tianshou."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

from episodes.converters.action_mapping import imported_space
from episodes.converters.bounded_packs import refuse_ragged
from episodes.converters.loss_report import LossReport
from episodes.converters.transitions import Transitions, transitions_of
from episodes.errors import InvalidArgument, MissingExtra
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested


def to_tianshou(
    episodes: Iterable[SingleAgentEpisode], *, action_mapping: str | None = None, strict: bool = False
) -> tuple[Any, LossReport]:
    """Convert episodes to a full `ReplayBuffer` of Tianshou. Return it with a report of what was lost.

    The last step of a cut chunk is truncated there, so that no transition leads from one episode to the next.

    Args:
        episodes: the episodes.
        action_mapping: None writes the actions that were sent to the environment. "normalize" writes actions in
            [-1, 1], as Tianshou's collectors store them by default.
        strict: raise if something would be lost.

    Raises:
        MissingExtra: tianshou is not installed.
        InvalidArgument: no episode has a step, or items are not numbers or are tuples.
        LostInConversion: with `strict`, something would be lost.
        TrackMismatch: an episode has ragged tracks.
    """
    episodes = refuse_ragged(episodes)
    try:
        from tianshou.data import Batch, ReplayBuffer  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingExtra("a buffer of Tianshou needs it: pip install tianshou") from error
    report = LossReport()
    steps = transitions_of(episodes, "a buffer of Tianshou", report, action_mapping)

    def held(data: Any) -> Any:
        """Return nested dicts as Tianshou's `Batch`. Raise `InvalidArgument` for tuples, which its buffers cannot
        store.
        """
        if isinstance(data, tuple):
            raise InvalidArgument(
                "a buffer of Tianshou can contain dicts, but no tuples; convert the Tuple space to a Dict first"
            )
        return Batch({key: held(part) for key, part in data.items()}) if isinstance(data, dict) else data

    done = steps.terminated | steps.truncated
    arrays = held(steps.observations), held(steps.actions), steps.rewards, steps.terminated, steps.truncated, done
    return ReplayBuffer.from_data(*arrays, held(steps.next_observations)), report.check(strict)


def from_tianshou(
    buffer: Any,
    *,
    observation_space: spaces.Space | None = None,
    action_space: spaces.Space | None = None,
    action_mapping: str | None = None,
    strict: bool = False,
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Convert Tianshou's `ReplayBuffer` or `VectorReplayBuffer` to episodes. Return these with a report of losses.

    The ids are "tianshou/0", "tianshou/1" and so on.

    Args:
        buffer: a replay buffer of Tianshou.
        observation_space: the environment's observation space, which buffers do not store.
        action_space: the environment's action space, which buffers do not store.
        action_mapping: None for actions of the environment. "normalize" for actions in [-1, 1] of a policy,
            as Tianshou's collectors store them by default.
        strict: raise if something would be lost.

    Raises:
        InvalidArgument: a buffer with `ignore_obs_next`, which has no next observations.
        LostInConversion: with `strict`, something would be lost.
    """
    report, rows = LossReport(), np.asarray(buffer.sample_indices(0))
    data = _dicts(buffer)
    if "obs_next" not in data:
        raise InvalidArgument("from_tianshou: with ignore_obs_next=True there are no next observations to read")
    rows_of_data = nested.map_leaves(lambda leaf: leaf[rows], data)
    known = {"obs", "obs_next", "act", "rew", "terminated", "truncated", "done", "info"}
    edges = getattr(buffer, "subbuffer_edges", None)
    steps = Transitions(
        rows_of_data["obs"],
        rows_of_data["obs_next"],
        rows_of_data["act"],
        rows_of_data["rew"],
        rows_of_data["terminated"],
        rows_of_data["truncated"],
        None if edges is None else np.searchsorted(edges, rows, side="right"),
        rows_of_data.get("info", {}),
    )
    for key in rows_of_data.keys() - known:
        report.add(repr(key), "it is not known what it is", "row 0")
    known_spaces = {
        "observation_space": observation_space,
        "action_space": imported_space(action_space, action_mapping),
    }
    return steps.episodes("tianshou", report, **known_spaces), report.check(strict)


def _dicts(data: Any) -> dict[str, Any]:
    """Convert Tianshou's batches to nested dicts of arrays, and leave out empty dicts."""
    names = ("obs", "obs_next", "act", "rew", "terminated", "truncated", "info", "policy")
    items = data.items() if hasattr(data, "items") else ()
    pairs = list(items) or [(name, getattr(data, name)) for name in names if hasattr(data, name)]
    nest = {key: value if isinstance(value, np.ndarray) else _dicts(value) for key, value in pairs}
    return {key: value for key, value in nest.items() if isinstance(value, np.ndarray) or value}
