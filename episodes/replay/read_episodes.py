"""Reading of single episodes from a replay ring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.facts import Ending
from episodes.facts.facts import own_data
from episodes.replay.ring.linked_ring import ACTIONS, REWARDS, STEP_TRACKS, TERMINATEDS, TRUNCATEDS, LinkedRing
from episodes.replay.ring.track_ring import TrackRing
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import Tracks, nested
from episodes.tracks.infos.infos import Infos

if TYPE_CHECKING:
    from episodes.data_types import Space


def episode_at(
    ring: LinkedRing, entry: int, observation_space: Space | None, action_space: Space | None, *, copy: bool = True
) -> SingleAgentEpisode:
    """Return the stored steps of the episode in row `entry` of the ring's episode table, with its lookback.

    Args:
        ring: ring of the steps.
        entry: row of the episode table.
        observation_space: space of the observations, or None.
        action_space: space of the actions, or None.
        copy: False for arrays that may be views of the ring, which later writes change.
    """
    table = ring.table
    slots = step_slots(ring, entry)
    rows = observation_rows(ring, slots)
    last = int(table.last[entry])
    infos = ring.infos_at(np.r_[rows]) if ring.infos else None
    observations = _read(ring.observations, rows)
    tracks = Tracks.finished(
        observations,
        Infos({}, len(nested.first_leaf(observations))) if infos is None else infos,
        _read(ring.tracks[ACTIONS], slots),
        _read(ring.tracks[REWARDS], slots),
        {key: _read(track, slots) for key, track in ring.tracks.items() if key not in STEP_TRACKS},
    )
    facts = table.facts[entry]._replace(
        id_=table.id_of(entry),
        t_started=int(ring.links.t[table.first[entry]]),
        policy_versions=ring.versions.runs(slots, len(tracks.rewards)),
        ending=Ending.of(ring.track(TERMINATEDS)[last], ring.track(TRUNCATEDS)[last]),
        observation_space=observation_space,
        action_space=action_space,
    )
    if copy:
        tracks = tracks.map_tracks(lambda track: track.copied())
    before = table.lookbacks.get(entry)
    if before is not None:
        tracks = with_lookback(tracks, before)
    return SingleAgentEpisode.of(facts, tracks, own_data(table.custom_data.get(entry)))


def with_lookback(tracks: Tracks, before: SingleAgentEpisode) -> Tracks:
    """Return time series to which the steps of the episode part `before` are added as lookback. Arrays are copied."""
    count, num_steps = len(before), len(tracks.rewards)
    return before.finalized_tracks().joined(tracks).window(0, count + num_steps, count)


def step_slots(ring: LinkedRing, entry: int) -> slice | np.ndarray:
    """Return the ring positions of an episode's steps: a slice if they are adjacent, otherwise an array."""
    start, stop = int(ring.table.first[entry]), int(ring.table.last[entry]) + 1
    count = int(ring.links.t[stop - 1]) + 1 - int(ring.links.t[start])
    if stop - start == count:
        return slice(start, stop)
    return _follow(ring.links.next, start, count)


def _follow(following: np.ndarray, slot: int, count: int) -> np.ndarray:
    """Return `count` ring positions: `slot`, then for each position p its successor `following[p]`."""
    slots = np.empty(count, np.int64)
    for k in range(count):
        slots[k] = slot
        slot = following.item(slot)
    return slots


def observation_rows(ring: LinkedRing, slots: slice | np.ndarray) -> slice | np.ndarray:
    """Return the positions of T + 1 observations of an episode, whose steps lie at `slots`, in the observation ring."""
    next_rows = ring.links.next_row[slots]
    first = int(ring.links.row[slots][0])
    stop = int(next_rows[-1]) + 1
    if stop - first == len(next_rows) + 1:
        return slice(first, stop)
    return np.concatenate([[first], next_rows])


def _read(track: TrackRing, rows: slice | np.ndarray) -> Any:
    return nested.take(track.data, rows) if isinstance(rows, slice) else track.take(rows)
