"""All time series of one episode as an immutable record: observations, infos, actions, rewards, extra model outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from episodes.errors import ShapeMismatch, TrackMismatch
from episodes.tracks import nested
from episodes.tracks.casting import check_kinds, checked_rewards
from episodes.tracks.field import ACTIONS, EXTRA, INFOS, OBSERVATIONS, REWARDS, extra_field
from episodes.tracks.fitting import space_mismatches
from episodes.tracks.infos.dicts import infos_of
from episodes.tracks.infos.infos import Infos
from episodes.tracks.infos.joining import joined_infos
from episodes.tracks.ragged import Ragged, RaggedKind
from episodes.tracks.ragged_items import Kinds, as_plain_kinds, as_ragged_items, from_plain_kinds
from episodes.tracks.track import ArrayChange, ArrayTrack, InfoTrack, ListTrack, Track, same_extra

if TYPE_CHECKING:
    from episodes.data_types import Space

_new: Any = tuple.__new__  # takes half the time of calling the class
_RAGGED = "ragged"  # key of the kinds of growing ragged tracks in a state
_REWARDS, _DATA, _LOOKBACK = attrgetter("rewards"), attrgetter("data"), attrgetter("lookback")


class Tracks(NamedTuple):
    """Immutable record of all time series of an episode: observations, infos, actions, rewards,
    and extra model outputs by key.

    The record never changes; growing appends to the lists of growing tracks. Observation tracks have L + T + 1 items,
    step tracks L + T (`track.field.more` is 1 or 0). All tracks have the same lookback L:

        position       0 ... L-1 |  L    L+1  ...  L+T-1   L+T
        observations    lookback | o_0   o_1  ...  o_T-1   o_T     and infos
        rewards         lookback | r_0   r_1  ...  r_T-1           and actions, extra outputs

    In the columns of a pack the episodes are concatenated, each with its lookback, and the columns' own lookback is 0.
    Read a record of many tracks by `all()`: iterating over it gives four tracks and a mapping.
    """

    observations: Track  # L + T + 1 items
    infos: Track  # L + T + 1 items
    actions: Track  # L + T items
    rewards: Track  # L + T numbers
    extra: Mapping[str, Track]  # extra model outputs by key, L + T items each

    @classmethod
    def growing(
        cls,
        observations: Iterable[Any] = (),
        infos: Iterable[Any] = (),
        actions: Iterable[Any] = (),
        rewards: Iterable[Any] = (),
        extra: Mapping[str, Iterable[Any]] | None = None,
        lookback: int = 0,
        ragged: Mapping[str, Kinds] | None = None,
    ) -> Tracks:
        """Create the time series of an episode that can still grow. The given lists are copied.

        Args:
            observations: L + T + 1 items.
            infos: L + T + 1 dicts.
            actions: L + T items.
            rewards: L + T numbers.
            extra: L + T items by key.
            lookback: lookback L.
            ragged: item shapes and dtypes of ragged time series, by name or key. A key that is not in `extra` is
                    created without items.

        Raises:
            ShapeMismatch: an item of a ragged track does not have the track's kind.
        """
        tracks = (
            ListTrack([*observations], lookback, False, OBSERVATIONS),
            ListTrack([*infos], lookback, False, INFOS),
            ListTrack([*actions], lookback, False, ACTIONS),
            ListTrack([*rewards], lookback, False, REWARDS),
            {key: ListTrack([*items], lookback, False, extra_field(key)) for key, items in (extra or {}).items()},
        )
        if ragged:
            for name, kind in ragged.items():
                place = _PLACES.get(name)
                if place is None:
                    track: Any = tracks[-1].setdefault(name, ListTrack([], lookback, False, extra_field(name)))
                else:
                    track = tracks[place]
                track.stored, track.ragged = as_ragged_items(track.items, kind, track.field.label), kind
        return _new(cls, tracks)

    @classmethod
    def finished(
        cls,
        observations: object,
        infos: Infos,
        actions: object,
        rewards: object,
        extra: Mapping[str, Any],
        lookback: int = 0,
    ) -> Tracks:
        """Create the time series of a finished episode from nested arrays, which are not copied."""
        return cls(
            ArrayTrack.of(observations, lookback, OBSERVATIONS),
            InfoTrack(infos, lookback),
            ArrayTrack.of(actions, lookback, ACTIONS),
            ArrayTrack.of(rewards, lookback, REWARDS),
            {key: ArrayTrack.of(data, lookback, extra_field(key)) for key, data in extra.items()},
        )

    # --- what there is -----------------------------------------------------------------------------------------

    @property
    def lookback(self) -> int:
        """Number L of lookback steps: steps of the previous chunk, stored before step 0 as context."""
        return self.rewards.lookback

    @property
    def is_finished(self) -> bool:
        """Whether the time series are read-only arrays. False if they are lists that can grow."""
        return type(self.rewards) is not ListTrack

    def all(self) -> list[Track]:
        """Return a list of all time series of the episode, including each extra model output."""
        return [*self[:4], *self.extra.values()]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return a dict of all arrays except the infos, by paths such as "observations/camera" or
        "extra_model_outputs/vf_preds"."""
        return {path: array for track in self.all() for path, array in track.arrays().items()}

    def check(self, label: str) -> None:
        """Raise an error unless the time series fit together: for T rewards, T actions and extra outputs,
        and T + 1 observations and infos.

        Args:
            label: first words of the error message.

        Raises:
            TrackMismatch: names the track of another length.
            ShapeMismatch: finished rewards are not one number per step.
            WrongType: a track holds arrays of objects.
        """
        steps = self.rewards.total
        if self.is_finished and self.rewards.data.ndim != 1:
            raise ShapeMismatch(
                f"{label}: rewards have shape {self.rewards.data.shape}; give one number for each step, [T]"
            )
        for track in self.all():
            expected = steps + track.field.more
            if track.total != expected:
                raise TrackMismatch(
                    f"{label}: {track.total} {track.field.label} for {steps} rewards; there must be {expected} (one "
                    "more observation and info than rewards, as many of all else)"
                )
            check_kinds(track.field, track.arrays())
        self.check_lengths_of_outputs(label)
        if not self.is_finished:
            self.rewards.data[:] = checked_rewards(self.rewards.data, label, -self.lookback)

    def check_shapes(self, observation_space: Space | None, action_space: Space | None, label: str) -> None:
        """Raise `ShapeMismatch` unless finished observations and actions have the structures, shapes and dtypes of
        their spaces, as in `check_fits`.

        Args:
            label: first words of the error message.
        """
        for track, space in ((self.observations, observation_space), (self.actions, action_space)):
            data, total = track.data, track.total
            if (
                space is None
                or not total
                or (type(data) is np.ndarray and data.shape[1:] == space.shape and data.dtype == space.dtype)
            ):
                continue
            for mismatch in space_mismatches(space, data, track.field.label, (total,)):
                raise ShapeMismatch(
                    f"{label}: {mismatch}; give items of the space, or declare the space of these items"
                )

    def check_lengths_of_outputs(self, label: str) -> None:
        """Raise `ShapeMismatch` if at some step a ragged extra output, such as log-probabilities,
        has another length than the ragged action.

        Args:
            label: first words of the error message.
        """
        actions: Any = self.actions
        outputs: Any = self.extra.values()
        if not isinstance(actions.ragged, RaggedKind):
            return
        for track in outputs:
            if not isinstance(track.ragged, RaggedKind):
                continue
            if self.is_finished and track.data.has_lengths_of(actions.data):
                continue
            for i, (item, action) in enumerate(zip(track.data, actions.data, strict=False), -self.lookback):
                if len(item) != len(action):
                    raise ShapeMismatch(f"{label}: step {i}: {wrong_length(track.field.label, item, action)}")

    def ragged_kinds(self) -> dict[str, Kinds]:
        """Return a dict from the name of each ragged time series to the dtype and value shape of its items,
        which have different lengths."""
        return {track.field.name: track.ragged for track in self.all() if track.ragged is not None}

    def growing_lists(self) -> tuple[Any, ...]:
        """Return the lists of a growing episode to which each new step is appended:
        observations, actions, rewards, infos and extra outputs."""
        tracks: Any = self
        observations, infos, actions, rewards, extra = tracks
        extra_tracks = tuple([(key, track.items) for key, track in extra.items()])
        return observations.items, actions.items, rewards.items, infos.items, extra_tracks

    def drop_after(self, num_observed: int) -> None:
        """Remove items from a growing episode in place, except its first `num_observed` observations and the steps
        between these observations."""
        tracks: list[Any] = self.all()
        for track in tracks:
            track.drop_after(num_observed - 1 + track.field.more)

    # --- other tracks made of these ------------------------------------------------------------------------------

    def map_tracks(self, change: Callable[[Track], Track]) -> Tracks:
        """Return a copy of the record in which each time series is replaced by `change(track)`."""
        observations, infos, actions, rewards, extra = self
        extra_tracks = {key: change(track) for key, track in extra.items()}
        return _new(Tracks, (change(observations), change(infos), change(actions), change(rewards), extra_tracks))

    def with_extra(self, extra: Mapping[str, Track]) -> Tracks:
        """Return a copy of the record whose extra model outputs are replaced by `extra`."""
        return _new(Tracks, (*self[:4], extra))

    def window(self, first: int, last: int, lookback: int = 0, episode: int = 0) -> Tracks:
        """Return the steps at the stored positions [first, last), with one observation more than steps.
        Arrays are not copied.

        Args:
            lookback: number of these steps that are the lookback of the new tracks.
            episode: index of the episode in a pack, 0 for a single episode. In the columns of a pack, each earlier
                episode has one observation more than steps.
        """
        observations, infos, actions, rewards, extra = self
        observed, stepped = slice(first + episode, last + episode + 1), slice(first, last)
        extra_tracks = {}
        for key, track in extra.items():
            extra_tracks[key] = track.view(observed if track.field.more else stepped, lookback)
        tracks = (
            observations.view(observed, lookback),
            infos.view(observed, lookback),
            actions.view(stepped, lookback),
            rewards.view(stepped, lookback),
            extra_tracks,
        )
        return _new(Tracks, tracks)

    def take(self, steps: slice | np.ndarray, observed: slice | np.ndarray) -> Tracks:
        """Return selected items: actions, rewards and extra outputs at the indices `steps`,
        observations and infos at the indices `observed`.

        Slices give views, integers copies.
        """
        return _with_shared_offsets(self.map_tracks(lambda track: track.take(observed if track.field.more else steps)))

    def map_arrays(self, change: ArrayChange) -> Tracks:
        """Return a copy of the record in which each array is replaced by `change(path, array)`."""
        return self.map_tracks(lambda track: track.map_arrays(change))

    def replaced(self, *tracks: Track) -> Tracks:
        """Return a copy of the record in which each of the given time series replaces the one of the same name."""
        changed: list[Any] = list(self)
        for track in tracks:
            field = track.field
            if field.is_extra:
                changed[-1] = {**changed[-1], field.name: track}
            else:
                changed[_PLACES[field.name]] = track
        return _new(Tracks, changed)

    def finalized(self, observation_space: Space | None, action_space: Space | None, label: str) -> Tracks:
        """Return a finished copy of the record: all time series as read-only arrays, with the
        dtypes of the given spaces.

        Args:
            label: first words of error messages.

        Raises:
            ShapeMismatch: items of a track differ in shape, or cannot become an array.
        """
        observations, infos, actions, rewards, extra = self
        finished_rewards = rewards.finalize()
        if finished_rewards.data.ndim != 1:
            raise ShapeMismatch(
                f"{label}: rewards have shape {finished_rewards.data.shape[1:]}; a reward is one number, not an array"
            )
        finished_observations = observations.finalize(observation_space)
        finished_actions = actions.finalize(action_space)
        extra_tracks = {key: track.finalize() for key, track in extra.items()}
        tracks = (finished_observations, infos.finalize(), finished_actions, finished_rewards, extra_tracks)
        finished = _new(Tracks, tracks)
        finished.check_shapes(observation_space, action_space, label)
        return _with_shared_offsets(finished)

    def as_growing(self) -> Tracks:
        """Return a copy of the record to which steps can be added, or the record itself if steps
        can be added to it already."""
        return self.map_tracks(lambda track: track.as_growing()) if self.is_finished else self

    def joined(self, later: Tracks) -> Tracks:
        """Join two successive chunks of an episode: these time series, followed by the steps of `later`.

        The lookback and the first observation of `later` are left out. Growing lists are extended in place.

        Args:
            later: tracks that passed `check_follows`.
        """
        base = self
        if not self.rewards.total:  # without a step the extra outputs are unknown
            new_tracks = [track.view(slice(0, 0)) for key, track in later.extra.items() if key not in self.extra]
            base = self.replaced(
                *(track.finalize() if self.is_finished else track.as_growing() for track in new_tracks)
            )
        extra, following = base.extra, later.extra
        return Tracks(
            base.observations.joined(later.observations, 1),
            base.infos.joined(later.infos, 1),
            base.actions.joined(later.actions),
            base.rewards.joined(later.rewards),
            {key: t.joined(following[key], t.field.more) if key in following else t for key, t in extra.items()},
        )

    def check_follows(self, later: Tracks, label: str, t: int) -> None:
        """Raise `TrackMismatch` if `later`, the next chunk of the episode, has other extra model outputs or
        other ragged time series.

        Args:
            label: first words of the error message.
            t: env step at which `later` begins, for the error message.
        """
        if self.extra.keys() != later.extra.keys() and self.rewards.total and len(later.rewards):
            raise TrackMismatch(
                f"{label}: the chunk at t={t} has extra model outputs {list(later.extra)}, the chunk before it "
                f"{list(self.extra)}; all chunks of an episode need the same keys"
            )
        kinds, later_kinds = self.ragged_kinds(), later.ragged_kinds()
        if kinds != later_kinds and any(
            kinds.get(track.field.name) != later_kinds.get(track.field.name)
            for track in later.all()
            if not track.field.is_extra or (track.total and track.field.name in self.extra)
        ):
            raise TrackMismatch(
                f"{label}: the chunk at t={t} has the ragged tracks {_described(later_kinds)}, the chunk before it "
                f"{_described(kinds)}; all chunks of an episode need the same ones"
            )

    # --- state -------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        """Return True if all time series are equal. Extra model outputs without items are ignored."""
        return isinstance(other, Tracks) and self[:4] == other[:4] and same_extra(self.extra, other.extra)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        """Return a compact form for pickling: a constructor and its arguments, which are the lists or
        arrays without their names."""
        extra = {key: track.data for key, track in self.extra.items()}
        lists = (*(track.data for track in self[:4]), extra, self.lookback)
        if self.is_finished:
            return Tracks.finished, lists
        kinds = self.ragged_kinds()
        return Tracks.growing, (*lists, kinds) if kinds else lists

    def state(self) -> dict[str, Any]:
        """Return the contents as a dict from name to list or nested arrays, for the episode's `get_state`.
        Nothing is copied."""
        states = {track.field.name: track.state() for track in self[:4]}
        states[EXTRA] = {key: track.state() for key, track in self.extra.items()}
        kinds = {} if self.is_finished else self.ragged_kinds()
        return states | ({_RAGGED: as_plain_kinds(kinds)} if kinds else {})

    @classmethod
    def of_state(cls, state: Mapping[str, Any], lookback: int, is_finished: bool) -> Tracks:
        """Create the time series from a dict that `state` has returned. Lists are copied, arrays are not."""
        infos, actions, rewards, extra = (state[name] for name in ("infos", "actions", "rewards", EXTRA))
        if is_finished:
            return cls.finished(state["observations"], infos_of(infos), actions, rewards, extra, lookback)
        return cls.growing(
            state["observations"], infos, actions, rewards, extra, lookback, from_plain_kinds(state.get(_RAGGED, {}))
        )

    # --- columns of many episodes ------------------------------------------------------------------------------

    @staticmethod
    def all_finished(parts: Sequence[Tracks]) -> bool:
        """Return True if all given episodes are finished, that is, their time series are arrays."""
        return ListTrack not in set(map(type, map(_REWARDS, parts)))

    @staticmethod
    def sizes(parts: Sequence[Tracks]) -> tuple[list[int], list[int]]:
        """Return two lists with an int per episode: its number of stored steps (lookback included),
        and its number of lookback steps."""
        rewards = list(map(_REWARDS, parts))
        return list(map(len, map(_DATA, rewards))), list(map(_LOOKBACK, rewards))

    @classmethod
    def concatenated(cls, parts: Sequence[Tracks], ids: Sequence[Any], steps: Sequence[int]) -> Tracks:
        """Concatenate the time series of several finished episodes, lookbacks included, to one array per time series.

        Args:
            ids: ids [n] of the episodes, for errors.
            steps: number of steps [n] of the parts, lookbacks included.

        Raises:
            TrackMismatch: names the part whose extra outputs, structure or item shape differ.
        """
        observations, infos, actions, rewards, extras = zip(*parts, strict=True)
        all_have = all(steps)
        tracks_by_key = _extra_tracks(extras, steps, ids)
        extra = {key: _column(tracks, all_have, ids) for key, tracks in tracks_by_key.items()}
        columns = cls(
            _column(observations, True, ids),
            InfoTrack(joined_infos(list(map(_DATA, infos)))),
            _column(actions, all_have, ids),
            _column(rewards, all_have, ids),
            extra,
        )
        return _with_shared_offsets(columns)


def wrong_length(label: str, item: Any, action: Any) -> str:
    """Return the error message for a ragged extra output whose length differs from the length of the step's action."""
    return f"{label} has a length of {len(item)}, the action has {len(action)}; give one value for each of its values"


def _described(kinds: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _described(kind) if isinstance(kind, dict) else str(kind) for name, kind in kinds.items()}


def _with_shared_offsets(tracks: Tracks) -> Tracks:
    """Return the time series with one offsets array shared by the ragged actions and the ragged
    extra outputs, to save memory."""
    actions: Any = tracks.actions
    if type(actions) is not ArrayTrack or type(actions.data) is not Ragged or not tracks.extra:
        return tracks
    extra = {}
    for key, track in tracks.extra.items():
        data: Any = track.data
        if type(data) is Ragged and data.offsets is not actions.data.offsets and len(data) == len(actions.data):
            track = ArrayTrack(data.with_bounds_of(actions.data), track.lookback, track.field)
        extra[key] = track
    return tracks._replace(extra=extra)


_PLACES = {name: place for place, name in enumerate(Tracks._fields)}


def _extra_tracks(
    extras: Sequence[Mapping[str, Track]], has_steps: Sequence[int], ids: Sequence[Any]
) -> dict[str, list[Track]]:
    """Return a dict from each extra model output to a list of its time series, one per episode.

    Raise `TrackMismatch` if episodes with steps have different keys. `ids` of the episodes are for the error.
    """
    if sum(map(len, extras)) == len(extras) * len(extras[0]):
        try:
            return {key: list(map(itemgetter(key), extras)) for key in extras[0]}
        except KeyError:
            pass
    common = _common_extra(extras, has_steps, ids).items()
    return {key: [extra[key] if key in extra else track.view(slice(0, 0)) for extra in extras] for key, track in common}


def _common_extra(
    extras: Sequence[Mapping[str, Track]], has_steps: Sequence[int], ids: Sequence[Any]
) -> Mapping[str, Track]:
    """Return the extra model outputs of the first episode with steps. Raise `TrackMismatch` if another episode
    with steps has other keys."""
    first = next((extra for extra, has_step in zip(extras, has_steps, strict=True) if has_step), extras[0])
    for id_, extra, has_step in zip(ids, extras, has_steps, strict=True):
        if has_step and extra.keys() != first.keys():
            raise TrackMismatch(f"episode {id_} has the extra model outputs {list(extra)}, others have {list(first)}")
    return first


def _column(tracks: Sequence[Any], have_items: bool, ids: Sequence[Any]) -> ArrayTrack:
    """Concatenate one time series, such as the rewards, of several finished episodes.

    Args:
        have_items: whether every episode has items of this time series.
        ids: ids of the episodes, for errors.

    Raises:
        TrackMismatch: items of two episodes differ in shape.
    """
    data, field = list(map(_DATA, tracks)), tracks[0].field
    if have_items:
        try:
            if type(data[0]) is not np.ndarray:
                return ArrayTrack.of(nested.concatenate(data), 0, field)
            joined = nested.concatenate_arrays(data)
            joined.flags.writeable = False  # the array is new, so no view is needed
            return ArrayTrack(joined, 0, field)
        except ValueError:
            pass
    filled = [(id_, track.data) for id_, track in zip(ids, tracks, strict=True) if track.total]
    if not filled:
        return ArrayTrack.of(data[0], 0, field)
    shapes = [nested.map_leaves(lambda leaf: list(leaf.shape[1:]), data) for _, data in filled]
    for (id_, _), shape in zip(filled, shapes, strict=True):
        if shape != shapes[0]:
            raise TrackMismatch(
                f"{field.name}: items of episode {id_} have shape {shape}, items of {filled[0][0]} have {shapes[0]}; "
                "the episodes of a pack need the same shapes"
            )
    return ArrayTrack.of(nested.concatenate([data for _, data in filled]), 0, field)
