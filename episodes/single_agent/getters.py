"""Getters and setters of `SingleAgentEpisode` for observations, actions, rewards, infos and extra model outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.columns import Columns, check_extra_output_names
from episodes.errors import StepOutOfRange, UnknownKey
from episodes.facts import EpisodeFacts
from episodes.facts.policy_versions import UNKNOWN, VersionRuns
from episodes.single_agent.state import state_columns
from episodes.tracks import Track, Tracks, track_access
from episodes.tracks.field import extra_field
from episodes.tracks.indexing import INTEGERS, Indices
from episodes.tracks.policy_box import env_space_of, to_env_actions, to_env_items
from episodes.tracks.spaces import as_item, as_items
from episodes.tracks.validation import checked_key

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from episodes.data_types import Item, Items, Space


class TrackGetters:
    """Base class of `SingleAgentEpisode` with the getters and setters of observations, actions and other items.

    All getters accept the same indices. An int gives one item. A slice, list, tuple, range or integer array gives a
    batch: a list if the episode grows, arrays if it is finalized. `i >= 0` counts from step 0 of the chunk. `i < 0`
    counts from the end and may reach into the lookback. With `neg_index_as_lookback`, -1 is the item just before step
    0. An index past either end raises `StepOutOfRange`, or gives `fill` in the item's shape and dtype. Slices are
    clipped as Python clips a list's.

    Setters replace items and never change the length. They take O(track) for a finalized episode, since its arrays are
    read-only.
    """

    __slots__ = ()

    _tracks: Tracks
    _facts: EpisodeFacts

    @property
    def infos(self: Any) -> Any:
        """Info dicts of the L + T + 1 observations: a list while the episode grows, `Infos` once it is finalized."""
        return self._tracks.infos.data

    @property
    def lookback(self: Any) -> int:
        """Number L of steps before step 0 that the episode keeps as context, for example for frame stacking."""
        return self._tracks.rewards.lookback

    @property
    def env_action_space(self) -> Any:
        """Action space of the environment. `action_space` differs if the stored actions are rescaled for the policy."""
        return env_space_of(self._facts.action_space)

    def env_steps(self: Any) -> int:
        """Return the number of environment steps, without the lookback: `len(self)`."""
        return len(self)

    def agent_steps(self: Any) -> int:
        """Return the number of the agent's steps, without the lookback: `len(self)`."""
        return len(self)

    def get_data_dict(self) -> dict[str, Any]:
        """Return the T steps as a dict of columns: `obs` (without the last one), `actions`, `rewards`, flags etc.

        The other columns are `t`, ids, infos and the extra model outputs.

        Raises:
            TrackMismatch: an extra model output has the name of another column.
        """
        return state_columns(self._facts, self._tracks)

    def get_return(self: Any) -> float:
        """Return the undiscounted sum of the rewards, without the lookback."""
        rewards = self._tracks.rewards.get()
        return _array_sum(rewards) if isinstance(rewards, np.ndarray) else float(sum(map(float, rewards)))

    @property
    def policy_versions(self) -> tuple[int, int] | None:
        """Lowest and highest version of the policy that took the steps, or None if no version is known.

        Set one number for all steps, or [T], one for each step (-1: unknown).
        """
        runs = self._facts.policy_versions
        return runs and runs.bounds

    @policy_versions.setter
    def policy_versions(self: Any, versions: ArrayLike | VersionRuns | None) -> None:
        self.facts = self._facts._replace(policy_versions=VersionRuns.of(versions, len(self)))

    def get_policy_versions(self) -> np.ndarray:
        """Return the version of the policy that took each step, int64 [T], or -1 if it is unknown."""
        runs, num_steps = self._facts.policy_versions, len(self._tracks.rewards)
        return np.full(num_steps, UNKNOWN) if runs is None else runs.steps(num_steps)

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Item | None = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Return one observation or a batch of observations, by default all T + 1 from step 0 on.

        Args:
            indices: see `TrackGetters`.
            neg_index_as_lookback: True if -1 is the item just before step 0.
            fill: value for missing items.
            one_hot_discrete: return discrete parts as one-hot vectors; the episode needs its space.
        """
        track = self._tracks.observations
        try:
            if fill is None and not one_hot_discrete:
                return track.get(indices, neg_index_as_lookback)
            options = indices, neg_index_as_lookback, fill
            return _read(track, self._facts.observation_space, options, one_hot_discrete)
        except StepOutOfRange as error:
            raise self._named(error) from None

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Item | None = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Return one action or a batch of actions, by default all T from step 0 on.

        The arguments are those of `get_observations`.
        """
        track = self._tracks.actions
        try:
            if fill is None and not one_hot_discrete:
                return track.get(indices, neg_index_as_lookback)
            options = indices, neg_index_as_lookback, fill
            return _read(track, self._facts.action_space, options, one_hot_discrete)
        except StepOutOfRange as error:
            raise self._named(error) from None

    def get_env_actions(self, indices: Indices = None, *, neg_index_as_lookback: bool = False) -> Any:
        """Return the actions as sent to the environment, even if the episode stores the policy's rescaled actions.

        The environment's actions follow from the stored ones by the mapping in `action_space` (see `PolicyBox`), or are
        the extra model output "actions_for_env" if there is one. Without a `PolicyBox` both are the same.

        Args:
            indices: an int gives one action. A slice, list, tuple, range or integer array gives a batch [k, ...]. None
                gives all T actions from step 0 on.
            neg_index_as_lookback: -1 is the step just before step 0.

        Raises:
            StepOutOfRange: there is no step at an index.
            EpisodeStateError: a connector computed the environment's actions, and they were not recorded.
        """
        options: Any = {"indices": indices, "neg_index_as_lookback": neg_index_as_lookback}
        if Columns.ACTIONS_FOR_ENV in self._tracks.extra:
            return self.get_extra_model_outputs(Columns.ACTIONS_FOR_ENV, **options)
        change = to_env_actions if isinstance(indices, INTEGERS) else to_env_items
        return change(self._facts.action_space, self.get_actions(**options))

    def get_rewards(
        self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Item | None = None
    ) -> Any:
        """Return one reward or a batch of rewards, by default all T from step 0 on.

        The arguments are those of `get_observations`.
        """
        try:
            return self._tracks.rewards.get(indices, neg_index_as_lookback, fill)
        except StepOutOfRange as error:
            raise self._named(error) from None

    def get_infos(
        self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Item | None = None
    ) -> Any:
        """Return one info dict or a list of info dicts, by default all T + 1 from step 0 on.

        `fill` is a dict. The other arguments are those of `get_observations`.
        """
        try:
            return self._tracks.infos.get(indices, neg_index_as_lookback, fill)
        except StepOutOfRange as error:
            raise self._named(error) from None

    def get_extra_model_outputs(
        self, key: str, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Item | None = None
    ) -> Any:
        """Return one item of the extra model output `key` or a batch, by default all T from step 0 on.

        Raises:
            UnknownKey: there is no such output.
            WrongType: `key` is not a str.
        """
        try:
            return self._extra(key).get(indices, neg_index_as_lookback, fill)
        except StepOutOfRange as error:
            raise self._named(error) from None

    def _extra(self, key: str) -> Track:
        """Return the time series of the extra model output `key`.

        Raises:
            WrongType: `key` is not a str.
            UnknownKey: there is no such output.
        """
        track = self._tracks.extra.get(checked_key("key", key))
        if track is None:
            raise UnknownKey(
                f"episode {self._facts.id_}: no extra model output {key!r}; there are {list(self._tracks.extra)}"
            )
        return track

    def _named(self, error: StepOutOfRange) -> StepOutOfRange:
        """Return the error with the episode's id in front of its message."""
        return StepOutOfRange(f"episode {self._facts.id_}: {error}")

    def set_observations(
        self, *, new_data: Item | Items, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace observations of the episode: all from step 0 on, or those at `at_indices`."""
        new_data = _nested_as(self._facts.observation_space, new_data, at_indices)
        self._write(self._tracks.observations, new_data, at_indices, neg_index_as_lookback)

    def set_actions(
        self, *, new_data: Item | Items, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace actions of the episode: all from step 0 on, or those at `at_indices`."""
        new_data = _nested_as(self._facts.action_space, new_data, at_indices)
        self._write(self._tracks.actions, new_data, at_indices, neg_index_as_lookback)

    def set_rewards(
        self, *, new_data: Item | Items, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace rewards of the episode: all from step 0 on, or those at `at_indices`."""
        self._write(self._tracks.rewards, new_data, at_indices, neg_index_as_lookback)

    def _write(self, track: Track, new_data: Item | Items, at_indices: Indices, neg_index_as_lookback: bool) -> None:
        """Set items of a time series. An error names the episode."""
        try:
            track = track_access.with_items_set(track, new_data, at_indices, neg_index_as_lookback)
        except StepOutOfRange as error:
            raise self._named(error) from None
        self._replace(track)

    def _replace(self: Any, track: Track) -> None:
        """Replace the time series of the same name. Ragged outputs must still have the lengths of the actions."""
        tracks = self._tracks.replaced(track)
        if track.ragged is not None:
            tracks.check_lengths_of_outputs(f"episode {self._facts.id_}")
        self.tracks = tracks

    def set_extra_model_outputs(
        self, *, key: str, new_data: Item | Items, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace items of an extra model output. A new key needs an item for each step, lookback included.

        Raises:
            TrackMismatch: the new key is the name of a column that batches get anyway.
            UnknownKey: a new key was given with `at_indices`.
            ShapeMismatch: there is another number of items than of indices or, for a new key, of steps; or items at
                `at_indices` of a finalized episode have another shape or kind.
            StepOutOfRange: an index has no item.
            WrongType: `key` is not a str.
        """
        if checked_key("key", key) in self._tracks.extra:
            self._write(self._tracks.extra[key], new_data, at_indices, neg_index_as_lookback)
            return
        field = extra_field(key)
        check_extra_output_names([key], f"episode {self._facts.id_}")
        if at_indices is not None:
            raise UnknownKey(
                f"episode {self._facts.id_}: no {field.label} to change; add the new key whole, without at_indices"
            )
        self._replace(track_access.new_track(field, new_data, self._tracks.rewards))


def _read(track: Track, space: Space | None, options: tuple[Indices, bool, Any], one_hot_discrete: bool) -> Any:
    """Return filled or one-hot encoded items of a time series. `options` are those of `Track.get`."""
    if one_hot_discrete:
        return track_access.read_one_hot(track, *options, space)
    return track.get(*options) if track.total else track_access.read_empty(track, *options, space)


def _nested_as(space: Space | None, new_data: Item | Items, at_indices: Indices) -> Any:
    """Return `new_data` with lists converted to tuples if the space is or contains a `Tuple`."""
    return as_item(new_data, space) if isinstance(at_indices, INTEGERS) else as_items(new_data, space)


@np.errstate(over="ignore", invalid="ignore")  # infinite rewards give no warning, as in Python's sum
def _array_sum(rewards: np.ndarray) -> float:
    return float(np.add.reduce(rewards, dtype=np.float64))  # `rewards.sum` without its Python wrapper
