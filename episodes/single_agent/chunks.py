"""How an episode becomes arrays, is cut into chunks, sliced and joined again."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any, Self

import numpy as np

from episodes.errors import ChunkMismatch, EpisodeStateError, InvalidArgument, ShapeMismatch, TrackMismatch, WrongType
from episodes.single_agent.state import EpisodeState
from episodes.tracks import ArrayTrack, ListTrack, indexing, nested
from episodes.tracks import spaces as space_items
from episodes.tracks.infos import Infos
from episodes.tracks.infos.kinds import ListInfos
from episodes.tracks.track import Track


class EpisodeChunks(EpisodeState):
    """An episode that can be finalized, sliced, cut and joined."""

    __slots__ = ()

    def to_numpy(self) -> Self:
        """Finalize in place: each track becomes one read-only array (nested where its items are); returns itself.

        A track takes its space's dtype when it has one, else numpy's promotion over all items. Idempotent.
        Errors: `ShapeMismatch` names the first item that differs; `EpisodeStateError` before the reset.
        """
        if not self.is_numpy:
            columns = self.arrays()
            self.observations, self.actions, self.rewards = columns[:3]
            self.extra_model_outputs = dict(columns[3])
            self.infos = ListInfos.of(self.infos)
            self._grow = None
            self._stop_clock()
        return self

    finalize = to_numpy

    def arrays(self) -> tuple[ArrayTrack, ArrayTrack, ArrayTrack, dict[str, ArrayTrack]]:
        """The observations, actions, rewards and extra outputs as finished tracks; the episode stays as it is."""
        if not self.is_reset:
            raise EpisodeStateError(
                f"episode {self.id_}: it has no observation yet; call add_env_reset(observation) first"
            )
        if self.actions.total:
            actions = self.actions.finalize("actions", space_items.dtypes_of(self.action_space))
        else:
            actions = ArrayTrack.of(space_items.empty_items(self.action_space))
        rewards = self.rewards.finalize("rewards")
        if rewards.data.ndim != 1:
            raise ShapeMismatch(
                f"episode {self.id_}: rewards have shape {rewards.data.shape[1:]}; a reward is one number, not an array"
            )
        return (
            self.observations.finalize("observations", space_items.dtypes_of(self.observation_space)),
            actions,
            rewards,
            {key: track.finalize(f"extra_model_outputs[{key!r}]") for key, track in self.extra_model_outputs.items()},
        )

    def __getitem__(self, slice_: slice) -> Self:
        """The sub-episode of the steps `[a:b]`; as `slice`."""
        return self.slice(slice_)

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> Self:
        """The sub-episode of the steps of a slice, clipped as Python clips; views, not copies, once finalized.

        Ids, spaces, `custom_data` and infos stay, and so does the ending when the slice reaches the last step.

        Args:
            len_lookback_buffer: how many items before the slice to keep, as far as they are there; this episode's
                own lookback when None.
        """
        num_steps = len(self.rewards)
        start, stop = indexing.chunk_bounds(slice_, num_steps)
        wanted = self.lookback if len_lookback_buffer is None else checked_lookback(len_lookback_buffer)
        first, last = self.lookback + start, self.lookback + stop
        lookback = min(wanted, first)
        first -= lookback
        ends = stop == num_steps
        infos = self.infos
        return self._derived(
            observations=self.observations.view(first, last + 1, lookback),
            actions=self.actions.view(first, last, lookback),
            rewards=self.rewards.view(first, last, lookback),
            infos=infos.view(first, last + 1) if isinstance(infos, Infos) else infos[first : last + 1],
            extra_model_outputs={k: track.view(first, last, lookback) for k, track in self.extra_model_outputs.items()},
            lookback=lookback,
            t_started=self.t_started + start,
            terminated=ends and self.is_terminated,
            truncated=ends and self.is_truncated,
        )

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """The successor chunk, which goes on growing where this one stops.

        It has the same ids, `t_started = self.t`, this chunk's last observation as its first, and the last
        `len_lookback_buffer` steps (as far as they are there) as its lookback.

        Errors: `EpisodeStateError` when there is nothing to go on with: ended, or not reset.
        """
        if self.is_done or not self.is_reset:
            raise self._refusal("cut")
        lookback = min(checked_lookback(len_lookback_buffer), self.lookback + len(self))
        total = self.lookback + len(self)
        carried = lambda track: ListTrack(track.item_list(total - lookback, total), lookback)  # noqa: E731
        successor = self._derived(
            observations=ListTrack(self.observations.item_list(total - lookback, total + 1), lookback),
            actions=carried(self.actions),
            rewards=carried(self.rewards),
            infos=list(self.infos[total - lookback : total + 1]),
            extra_model_outputs={key: carried(track) for key, track in self.extra_model_outputs.items()},
            lookback=lookback,
            t_started=self.t,
        )
        successor._item_shape = self._item_shape
        self._stop_clock()
        successor._began = perf_counter()
        return successor

    def concat_episode(self, other: EpisodeChunks) -> None:
        """Append the chunk that follows this one, in place: the inverse of `cut`. The other's lookback is dropped.

        Errors: `ChunkMismatch` unless `other` has the same id and begins where this one stops, with its last
        observation; `EpisodeStateError` when this one has ended; `TrackMismatch` for an extra model output that only
        one of them has. Each leaves the episode as it was.
        """
        self._check_follows(other)
        theirs = (
            other.arrays()
            if self.is_numpy
            else (other.observations, other.actions, other.rewards, other.extra_model_outputs)
        )
        extra = self._joined_extra(theirs[3], len(other))
        pairs = zip((self.observations, self.actions, self.rewards), theirs[:3], (1, 0, 0), strict=True)
        joined = [mine.joined(other_track, skip) for mine, other_track, skip in pairs]
        joined_extra = {key: mine.joined(other_track) for key, (mine, other_track) in extra.items()}
        self.observations, self.actions, self.rewards = joined
        self.extra_model_outputs = joined_extra
        others_infos = other.infos[other.lookback + 1 :]
        if isinstance(self.infos, list):
            self.infos.extend(others_infos)
        else:
            self.infos = Infos.concat(
                [self.infos, others_infos if isinstance(others_infos, Infos) else ListInfos.of(others_infos)]
            )
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self._grow = None
        self.custom_data.update(other.custom_data)
        self._duration, self._began = self.get_duration_s() + other.get_duration_s(), None

    def _check_follows(self, other: EpisodeChunks) -> None:
        if self.is_done or not self.is_reset:
            raise self._refusal("concat_episode")
        if not isinstance(other, EpisodeChunks):
            raise WrongType(f"episode {self.id_}: concat_episode takes an episode, not a {type(other).__name__}")
        if other.id_ != self.id_:
            raise ChunkMismatch(
                f"episode {self.id_}: a chunk of episode {other.id_} does not follow it; join chunks of one id"
            )
        if other.t_started != self.t:
            raise ChunkMismatch(
                f"episode {self.id_}: a chunk that begins at t={other.t_started} does not follow one that stops at "
                f"t={self.t}; join chunks in order, none left out"
            )
        if not nested.equal(self.get_observations(-1), other.get_observations(0)):
            raise ChunkMismatch(
                f"episode {self.id_}: the chunk's first observation is not the one at which this one stops (t={self.t})"
            )

    def _joined_extra(self, theirs: Mapping[str, Track], num_steps: int) -> dict[str, tuple[Track, Track]]:
        """The pairs of tracks to join, by key."""
        mine = self.extra_model_outputs
        if not self.rewards.total:
            blank = ArrayTrack(np.zeros(0)) if self.is_numpy else None
            return {key: (blank or ListTrack([], 0), track) for key, track in theirs.items()}
        if mine.keys() != theirs.keys() and num_steps:
            raise TrackMismatch(
                f"episode {self.id_}: extra model outputs {list(theirs)} of the chunk from t={self.t} beside "
                f"{list(mine)} before it; all chunks of an episode have the same keys"
            )
        return {key: (track, theirs.get(key, track.view(0, 0))) for key, track in mine.items()}

    def _refusal(self, call: str) -> EpisodeStateError:
        if self.is_done:
            ending = "terminated" if self.is_terminated else "truncated"
            return EpisodeStateError(
                f"episode {self.id_}: {call} after the end ({ending} at t={self.t}); make a new episode"
            )
        if self.is_numpy:
            return EpisodeStateError(
                f"episode {self.id_}: {call} on a finalized episode; go on with its successor: cut()"
            )
        return EpisodeStateError(f"episode {self.id_}: {call} before the reset; call add_env_reset(observation) first")


def checked_lookback(length: Any) -> int:
    """The length of a lookback as an int; `InvalidArgument` unless it is one, 0 or more."""
    if not isinstance(length, (int, np.integer)) or length < 0:
        raise InvalidArgument(f"len_lookback_buffer={length!r}: give the number of items, 0 or more")
    return int(length)
