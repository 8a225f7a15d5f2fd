"""Conversion of an episode to a state dict and back, and to a dict of columns with one row per step."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from episodes.columns import Columns, check_extra_output_names
from episodes.facts import Ending, EpisodeFacts, VersionRuns
from episodes.tracks import Tracks


def state_of(facts: EpisodeFacts, tracks: Tracks, custom_data: dict[str, Any]) -> dict[str, Any]:
    """Return a state dict: an episode's metadata, time series and custom data as plain values and copied arrays."""
    state = facts._asdict() | {"ending": facts.ending.code, "custom_data": custom_data}
    state |= tracks.state() | {"lookback": tracks.lookback, "is_numpy": tracks.is_finished}
    return deepcopy(state)


def parts_of(state: Mapping[str, Any]) -> tuple[EpisodeFacts, Tracks, dict[str, Any]]:
    """Return the metadata, time series and custom data from a dict that `state_of` made, all copied.

    A metadata field that an older state lacks gets its default.
    """
    state = deepcopy(dict(state))
    # A state that is older than a fact does not have it.
    known: dict[str, Any] = {name: state[name] for name in EpisodeFacts._fields if name in state}
    known["ending"] = Ending(state["ending"])
    if known.get("policy_versions") is not None:
        known["policy_versions"] = VersionRuns(*map(tuple, known["policy_versions"]))
    facts = EpisodeFacts(**known)
    tracks = Tracks.of_state(state, state["lookback"], state["is_numpy"])
    return facts, tracks, state["custom_data"]


def state_columns(facts: EpisodeFacts, tracks: Tracks) -> dict[str, Any]:
    """Return the T steps as a dict of columns (`obs`, `actions`, `rewards`, flags), as lists or arrays."""
    steps = len(tracks.rewards)
    flags = np.zeros((2, steps), bool)
    flags[:, -1:] = [[facts.ending.is_terminated], [facts.ending.is_truncated]]
    columns = {
        Columns.OBS: tracks.observations.get(slice(0, steps)),
        Columns.ACTIONS: tracks.actions.get(),
        Columns.REWARDS: tracks.rewards.get(),
        Columns.TERMINATEDS: flags[0],
        Columns.TRUNCATEDS: flags[1],
        Columns.T: np.arange(facts.t_started, facts.t_started + steps),
        Columns.EPS_ID: np.full(steps, facts.id_),
        Columns.INFOS: tracks.infos.get(slice(0, steps)),
    }
    if not tracks.is_finished:
        columns = {
            key: column.tolist() if isinstance(column, np.ndarray) else column for key, column in columns.items()
        }
    check_extra_output_names(tracks.extra, f"episode {facts.id_}")
    return columns | {key: track.get() for key, track in tracks.extra.items()}
