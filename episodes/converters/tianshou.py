"""Conversion of episodes to and from replay buffers of Tianshou."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

from episodes.converters.accounting import Account, check_numbers, check_rows
from episodes.converters.action_mapping import imported_space
from episodes.converters.bounded_packs import refuse_ragged
from episodes.converters.loss_report import LossReport
from episodes.converters.source_ids import prefix_of_arrays
from episodes.converters.transitions import Transitions, transitions_of
from episodes.data_types import NestedArrays
from episodes.errors import InvalidArgument, MissingExtra
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

_COLUMNS = ("obs", "obs_next", "act", "rew", "terminated", "truncated")
_INDICES = ("last_index", "subbuffer_edges")  # arrays of a buffer that are indices of its rows


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

    def held(data: NestedArrays) -> Any:
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
    prefix: str | None = None,
    strict: bool = False,
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Convert Tianshou's `ReplayBuffer` or `VectorReplayBuffer` to episodes. Return these with a report of losses.

    The ids are "tianshou-DIGEST/0", "tianshou-DIGEST/1" and so on, with a digest of the stored steps.

    Args:
        buffer: a replay buffer of Tianshou.
        observation_space: the environment's observation space, which buffers do not store.
        action_space: the environment's action space, which buffers do not store.
        action_mapping: None for actions of the environment. "normalize" for actions in [-1, 1] of a policy,
            as Tianshou's collectors store them by default.
        prefix: first part of the ids, instead of "tianshou-DIGEST".
        strict: raise if something would be lost.

    Raises:
        InvalidArgument: a buffer with `ignore_obs_next`, which has no next observations, or one without a needed array.
        UnreadableData: an array has another number of rows than the others, or holds no numbers.
        LostInConversion: with `strict`, something would be lost.
    """
    report, rows = LossReport(), np.asarray(buffer.sample_indices(0))
    stored = Account(_dicts(buffer))
    if "obs_next" not in stored:
        raise InvalidArgument("from_tianshou: with ignore_obs_next=True there are no next observations to read")
    if missing := [name for name in _COLUMNS if name not in stored]:
        raise InvalidArgument(f"from_tianshou: the buffer has no {missing[0]!r}; it needs {', '.join(_COLUMNS)}")
    whole = {name: stored[name] for name in _COLUMNS}
    infos = stored.get("info", {})
    size = len(whole["rew"])
    check_numbers("from_tianshou", whole)
    check_rows("from_tianshou", whole | ({"info": infos} if infos else {}), size, "rew")
    columns, infos = (nested.map_leaves(lambda leaf: leaf[rows], data) for data in (whole, infos))
    prefix = prefix_of_arrays("tianshou", columns, prefix)
    if "done" in stored and (stored["done"][rows] != (columns["terminated"] | columns["truncated"])).any():
        report.add("done", "it differs from terminated and truncated, which are read", prefix)
    edges = getattr(buffer, "subbuffer_edges", None)
    groups = None if edges is None else np.searchsorted(edges, rows, side="right")
    steps = Transitions(*columns.values(), groups=groups, infos=infos)
    known_spaces = {
        "observation_space": observation_space,
        "action_space": imported_space(action_space, action_mapping),
    }
    stored.report_rest(report, prefix)
    return steps.episodes(prefix, report, **known_spaces), report.check(strict)


def _dicts(data: Any) -> dict[str, Any]:
    """Convert Tianshou's batches, or the arrays of a buffer, to nested dicts of arrays, and leave out empty dicts."""
    pairs = dict(data.items()) if hasattr(data, "items") else {}
    if not pairs:
        pairs = {name: value for name, value in getattr(data, "__dict__", {}).items() if not name.startswith("_")}
        pairs |= {name: getattr(data, name) for name in (*_COLUMNS, "done", "info", "policy") if hasattr(data, name)}
    parts = {name: value if isinstance(value, np.ndarray) else _dicts(value) for name, value in pairs.items()}
    return {
        name: value
        for name, value in parts.items()
        if name not in _INDICES and (isinstance(value, np.ndarray) or value)
    }
