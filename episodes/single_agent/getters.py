"""Reading and writing an episode's tracks: the getters and setters of `SingleAgentEpisode`."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from episodes.errors import StepOutOfRange, UnknownKey
from episodes.tracks import reading
from episodes.tracks.indexing import Indices
from episodes.tracks.infos import Infos
from episodes.tracks.track import Track


class TrackGetters:
    """Getters and setters over the tracks of an episode.

    They share their indices. An int gives one item; a slice, list, tuple, range or integer array gives a batch: a list
    while the episode grows, arrays once it is finalized. `i >= 0` counts from step 0 of the chunk, `i < 0` from the
    end and on into the lookback; with `neg_index_as_lookback`, -1 is the item just before step 0. Past either end:
    `StepOutOfRange`, or `fill` in the item's shape and dtype. Slices are clipped as Python clips a list's.

    Setters replace items and never change the length; O(track) for a finalized episode, whose arrays are read-only.
    """

    __slots__ = (
        "_grow",
        "action_space",
        "actions",
        "extra_model_outputs",
        "id_",
        "infos",
        "lookback",
        "observation_space",
        "observations",
        "rewards",
    )

    id_: str
    observations: Track  # L + T + 1 items
    actions: Track  # L + T items
    rewards: Track  # L + T items
    infos: list[dict[str, Any]] | Infos  # L + T + 1 items, a list while the episode grows
    extra_model_outputs: dict[str, Track]  # L + T items each
    lookback: int  # L
    _grow: Any  # the lists' own `append`s while the episode grows; None after any change of tracks
    observation_space: spaces.Space | None
    action_space: spaces.Space | None

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """One observation, or a batch of them; all T + 1 from step 0 on when nothing is asked."""
        try:
            if one_hot_discrete:
                space = self.observation_space
                return reading.read_one_hot(self.observations, indices, neg_index_as_lookback, fill, space)
            return self.observations.get(indices, neg_index_as_lookback, fill)
        except StepOutOfRange as error:
            raise self._named(error, "observations") from None

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """One action, or a batch of them; all T from step 0 on when nothing is asked."""
        try:
            if one_hot_discrete:
                return reading.read_one_hot(self.actions, indices, neg_index_as_lookback, fill, self.action_space)
            return self.actions.get(indices, neg_index_as_lookback, fill)
        except StepOutOfRange as error:
            raise self._named(error, "actions") from None

    def get_rewards(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """One reward, or a batch of them; all T from step 0 on when nothing is asked."""
        try:
            return self.rewards.get(indices, neg_index_as_lookback, fill)
        except StepOutOfRange as error:
            raise self._named(error, "rewards") from None

    def get_infos(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """One info dict, or a list of them; all T + 1 from step 0 on when nothing is asked. `fill` is a dict."""
        try:
            return reading.read_infos(self.infos, self.lookback, indices, neg_index_as_lookback, fill)
        except StepOutOfRange as error:
            raise self._named(error, "infos") from None

    def get_extra_model_outputs(
        self, key: str, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None
    ) -> Any:
        """One extra model output of that key, or a batch of them; all T from step 0 on when nothing is asked."""
        try:
            return self._extra(key).get(indices, neg_index_as_lookback, fill)
        except StepOutOfRange as error:
            raise self._named(error, f"extra_model_outputs[{key!r}]") from None

    def _extra(self, key: str) -> Track:
        track = self.extra_model_outputs.get(key)
        if track is None:
            raise UnknownKey(
                f"episode {self.id_}: no extra model output {key!r}; there are {list(self.extra_model_outputs)}"
            )
        return track

    def _named(self, error: StepOutOfRange, name: str) -> StepOutOfRange:
        return StepOutOfRange(f"episode {self.id_}: {name}{str(error).removeprefix('track')}")

    def set_observations(
        self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace observations, all from step 0 on or those at the indices; O(track) once finalized."""
        self._write("observations", new_data, at_indices, neg_index_as_lookback)

    def set_actions(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Replace actions, all from step 0 on or those at the indices; O(track) once finalized."""
        self._write("actions", new_data, at_indices, neg_index_as_lookback)

    def set_rewards(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Replace rewards, all from step 0 on or those at the indices; O(track) once finalized."""
        self._write("rewards", new_data, at_indices, neg_index_as_lookback)

    def _write(self, name: str, new_data: Any, at_indices: Indices, neg_index_as_lookback: bool) -> None:
        try:
            track = reading.written(getattr(self, name), name, new_data, at_indices, neg_index_as_lookback)
        except StepOutOfRange as error:
            raise self._named(error, name) from None
        setattr(self, name, track)
        self._grow = None

    def set_extra_model_outputs(
        self, *, key: str, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace items of an extra model output; a new key is added whole (one item a step, lookback included)."""
        name = f"extra_model_outputs[{key!r}]"
        track = self.extra_model_outputs.get(key)
        if track is not None:
            try:
                track = reading.written(track, name, new_data, at_indices, neg_index_as_lookback)
            except StepOutOfRange as error:
                raise self._named(error, name) from None
        elif at_indices is not None:
            raise UnknownKey(f"episode {self.id_}: no {name} to change; add the new key whole, without at_indices")
        else:
            track = reading.new_track(name, new_data, self.rewards)
        self.extra_model_outputs = {**self.extra_model_outputs, key: track}
        self._grow = None
