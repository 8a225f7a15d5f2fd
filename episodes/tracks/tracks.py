"""`Tracks`: all the time series of an episode, or of all episodes of a pack, as one immutable record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from episodes.errors import ShapeMismatch, TrackMismatch
from episodes.tracks import nested
from episodes.tracks.casting import REAL_TYPES, check_kinds, check_reward
from episodes.tracks.field import ACTIONS, EXTRA, INFOS, OBSERVATIONS, REWARDS, extra_field
from episodes.tracks.infos.dicts import infos_of
from episodes.tracks.infos.infos import EmptyInfos, Infos
from episodes.tracks.infos.joining import joined_infos
from episodes.tracks.track import ArrayChange, ArrayTrack, InfoTrack, ListTrack, Track, same_extra

_new: Any = tuple.__new__  # half the price of the class call
_NO_EXTRA: Mapping[str, Any] = {}
_REWARDS, _DATA, _LOOKBACK = attrgetter("rewards"), attrgetter("data"), attrgetter("lookback")


class Tracks(NamedTuple):
    """The tracks of an episode: four that every episode has, and its extra model outputs by key.

    The record never changes; what grows is the lists of growing tracks. Observed tracks have L + T + 1 items, stepped
    ones L + T; each track knows which it is (`track.field`), and all have the same lookback L:

        position       0 ... L-1 |  L    L+1  ...  L+T-1   L+T
        observations    lookback | o_0   o_1  ...  o_T-1   o_T     observed; infos likewise
        rewards         lookback | r_0   r_1  ...  r_T-1           stepped; actions and extra outputs likewise

    In a pack's columns the episodes lie one after another, each with its lookback, and the columns' own lookback is 0.
    A record of many tracks is read by `all()`: iterating over it gives four tracks and a mapping.
    """

    observations: Track  # observed
    infos: Track  # observed
    actions: Track  # stepped
    rewards: Track  # stepped; one number each
    extra: Mapping[str, Track]  # extra model outputs by key: stepped

    @classmethod
    def growing(
        cls,
        observations: Iterable[Any] = (),
        infos: Iterable[Any] = (),
        actions: Iterable[Any] = (),
        rewards: Iterable[Any] = (),
        extra: Mapping[str, Iterable[Any]] | None = None,
        lookback: int = 0,
    ) -> Tracks:
        """Growing tracks of copies of the lists of items."""
        tracks = (
            ListTrack([*observations], lookback, False, OBSERVATIONS),
            ListTrack([*infos], lookback, False, INFOS),
            ListTrack([*actions], lookback, False, ACTIONS),
            ListTrack([*rewards], lookback, False, REWARDS),
            {key: ListTrack([*own], lookback, False, extra_field(key)) for key, own in extra.items()} if extra else {},
        )
        return _new(cls, tracks)

    @classmethod
    def finished(
        cls, observations: Any, infos: Infos, actions: Any, rewards: Any, extra: Mapping[str, Any], lookback: int = 0
    ) -> Tracks:
        """Finished tracks of nested arrays, which are viewed."""
        return cls(
            ArrayTrack.of(observations, lookback, OBSERVATIONS),
            _empty_infos(infos.num, lookback) if type(infos) is EmptyInfos else InfoTrack(infos, lookback),
            ArrayTrack.of(actions, lookback, ACTIONS),
            ArrayTrack.of(rewards, lookback, REWARDS),
            {key: ArrayTrack.of(data, lookback, extra_field(key)) for key, data in extra.items()}
            if extra
            else _NO_EXTRA,
        )

    # --- what there is -----------------------------------------------------------------------------------------

    @property
    def lookback(self) -> int:
        """L, the same for all."""
        return self.rewards.lookback

    @property
    def is_finished(self) -> bool:
        """True when they are arrays, False while they grow."""
        return type(self.rewards) is not ListTrack

    def all(self) -> list[Track]:
        """Every track."""
        return [*self[:4], *self.extra.values()]

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array of finished tracks by path, such as `observations/camera` or `extra_model_outputs/vf_preds`."""
        return {path: array for track in self.all() for path, array in track.arrays().items()}

    def check(self, whose: str) -> None:
        """Raise unless stepped tracks have as many items as there are rewards, observed ones one more.

        Args:
            whose: the first words of the message.

        Raises:
            TrackMismatch: names the track of another length.
            ShapeMismatch: finished rewards that are not one number a step.
            WrongType: arrays of objects.
        """
        steps = self.rewards.total
        if self.is_finished and self.rewards.whole().ndim != 1:
            raise ShapeMismatch(
                f"{whose}: rewards have shape {self.rewards.whole().shape}; give one number for each step, [T]"
            )
        for track in self.all():
            wanted = steps + track.field.more
            if track.total != wanted:
                raise TrackMismatch(
                    f"{whose}: {track.total} {track.field.label} beside {steps} rewards; there must be {wanted} (one "
                    "more observation and info than rewards, as many of all else)"
                )
            check_kinds(track.field, track.arrays())
        if not self.is_finished and not REAL_TYPES.issuperset(map(type, self.rewards.whole())):
            for i, reward in enumerate(self.rewards.whole(), -self.lookback):
                check_reward(reward, lambda i=i: f"{whose}: rewards[{i}]")

    def growth(self) -> tuple[Any, ...]:
        """The lists of observations, actions, rewards and infos, and the (key, list) pairs of extra outputs.

        A list's own method is 12 ns a call cheaper than a kept `append`, and one step has six of them in 1 us.
        """
        tracks: Any = self
        observations, infos, actions, rewards, extra = tracks
        others = tuple([(key, track.items) for key, track in extra.items()])
        return observations.items, actions.items, rewards.items, infos.items, others

    def drop_after(self, num_observed: int) -> None:
        """Drop what growing tracks have beyond so many observations, such as half a step."""
        for track in self.all():
            del track.whole()[num_observed - 1 + track.field.more :]

    # --- other tracks made of these ------------------------------------------------------------------------------

    def each(self, change: Callable[[Track], Track]) -> Tracks:
        """Each track changed."""
        observations, infos, actions, rewards, extra = self
        others = {key: change(track) for key, track in extra.items()} if extra else {}
        return _new(Tracks, (change(observations), change(infos), change(actions), change(rewards), others))

    def with_extra(self, extra: Mapping[str, Track]) -> Tracks:
        """These tracks with other extra model outputs."""
        return _new(Tracks, (*self[:4], extra))

    def window(self, first: int, last: int, lookback: int = 0, episode: int = 0) -> Tracks:
        """The steps at positions [first, last), and one observation more: views where finished.

        Args:
            lookback: how many of these steps are the lookback of the new tracks.
            episode: in a pack's columns, the number of the episode: so many observations more than steps lie before.
        """
        observations, infos, actions, rewards, extra = self
        observed, stepped = slice(first + episode, last + episode + 1), slice(first, last)
        others = {}
        for key, track in extra.items():
            others[key] = track.view(observed if track.field.more else stepped, lookback)
        tracks = (
            observations.view(observed, lookback),
            infos.view(observed, lookback),
            actions.view(stepped, lookback),
            rewards.view(stepped, lookback),
            others,
        )
        return _new(Tracks, tracks)

    def take(self, steps: Any, observed: Any) -> Tracks:
        """The rows `steps` of stepped and `observed` of observed tracks; slices (views) or integers (copies)."""
        return self.each(lambda track: track.take(observed if track.field.more else steps))

    def with_arrays(self, change: ArrayChange) -> Tracks:
        """These tracks with `change(path, array)` in the place of each array of the finished ones."""
        return self.each(lambda track: track.with_arrays(change))

    def replaced(self, *tracks: Track) -> Tracks:
        """These tracks with others in the places that their fields name."""
        changed: list[Any] = list(self)
        for track in tracks:
            field = track.field
            if field.is_extra:
                changed[-1] = {**changed[-1], field.name: track}
            else:
                changed[_PLACES[field.name]] = track
        return _new(Tracks, changed)

    def finalized(self, observation_space: Any, action_space: Any, whose: str) -> Tracks:
        """Each of these growing tracks finished, with its space's dtypes where it has a space.

        Args:
            whose: the first words of error messages.
        """
        observations, infos, actions, rewards, extra = self
        paid = rewards.finalize()
        if paid.data.ndim != 1:
            raise ShapeMismatch(
                f"{whose}: rewards have shape {paid.data.shape[1:]}; a reward is one number, not an array"
            )
        observed, acted = observations.finalize(observation_space), actions.finalize(action_space)
        others = {key: track.finalize() for key, track in extra.items()}
        return _new(Tracks, (observed, infos.finalize(), acted, paid, others))

    def as_growing(self) -> Tracks:
        """Each track able to grow; those that are, are these very ones."""
        return self.each(lambda track: track.as_growing()) if self.is_finished else self

    def joined(self, other: Tracks) -> Tracks:
        """These tracks and what comes after the other's lookback and first observation. Growing ones grow in place.

        The other must have passed `check_follows`.
        """
        base = self
        if not self.rewards.total:  # without a step it had no way to know the extra outputs
            news = [track.view(slice(0, 0)) for key, track in other.extra.items() if key not in self.extra]
            base = self.replaced(*(track.finalize() if self.is_finished else track.as_growing() for track in news))
        mine, theirs = base.extra, other.extra
        return Tracks(
            base.observations.joined(other.observations, 1),
            base.infos.joined(other.infos, 1),
            base.actions.joined(other.actions),
            base.rewards.joined(other.rewards),
            {key: t.joined(theirs[key], t.field.more) if key in theirs else t for key, t in mine.items()},
        )

    def check_follows(self, other: Tracks, whose: str, t: int) -> None:
        """Raise `TrackMismatch` where both have steps, and not the same extra outputs.

        Args:
            whose, t: the first words of the message, and where the other begins.
        """
        if self.extra.keys() != other.extra.keys() and self.rewards.total and len(other.rewards):
            raise TrackMismatch(
                f"{whose}: extra model outputs {list(other.extra)} of the chunk from t={t} beside "
                f"{list(self.extra)} before it; all chunks of an episode have the same keys"
            )

    # --- state -------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        """Return True if all tracks are equal. Without a step, extra model outputs without items do not count."""
        return isinstance(other, Tracks) and self[:4] == other[:4] and same_extra(self.extra, other.extra)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        """The lists or arrays by place: names and kinds of the tracks need not travel, and are half of the bytes."""
        own = {key: track.data for key, track in self.extra.items()}
        make = Tracks.finished if self.is_finished else Tracks.growing
        return make, (*(track.data for track in self[:4]), own, self.lookback)

    def state(self) -> dict[str, Any]:
        """Lists of items, or arrays, by name; infos as dicts. They are not copied."""
        states = {track.field.name: track.state() for track in self[:4]}
        return states | {EXTRA: {key: track.state() for key, track in self.extra.items()}}

    @classmethod
    def of_state(cls, state: Mapping[str, Any], lookback: int, is_finished: bool) -> Tracks:
        """The tracks of a `state`, whose lists are copied and whose arrays are viewed."""
        infos, actions, rewards, extra = (state[name] for name in ("infos", "actions", "rewards", EXTRA))
        if is_finished:
            return cls.finished(state["observations"], infos_of(infos), actions, rewards, extra, lookback)
        return cls.growing(state["observations"], infos, actions, rewards, extra, lookback)

    # --- columns of many episodes ------------------------------------------------------------------------------

    @staticmethod
    def all_finished(parts: Sequence[Tracks]) -> bool:
        """True when the tracks of all parts are arrays."""
        return ListTrack not in set(map(type, map(_REWARDS, parts)))

    @staticmethod
    def sizes(parts: Sequence[Tracks]) -> tuple[list[int], list[int]]:
        """How many steps finished parts have, lookbacks included, and how many of them are lookback, [n] each."""
        rewards = list(map(_REWARDS, parts))
        return list(map(len, map(_DATA, rewards))), list(map(_LOOKBACK, rewards))

    @classmethod
    def concatenated(cls, parts: Sequence[Tracks], whose: Sequence[Any], steps: Sequence[int]) -> Tracks:
        """The items of all parts one after another, lookbacks included, one concatenate a track.

        Args:
            whose: ids [n], for errors.
            steps: how many each has, lookbacks included, [n].

        Raises:
            TrackMismatch: names the part whose extra outputs, structure or item shape differ.
        """
        observations, infos, actions, rewards, extras = zip(*parts, strict=True)
        all_have = all(steps)
        own = {key: _column(there, all_have, whose) for key, there in _extra_tracks(extras, steps, whose).items()}
        return cls(
            _column(observations, True, whose),
            InfoTrack(joined_infos(list(map(_DATA, infos)))),
            _column(actions, all_have, whose),
            _column(rewards, all_have, whose),
            own,
        )


_PLACES = {name: place for place, name in enumerate(Tracks._fields)}


def _extra_tracks(
    extras: Sequence[Mapping[str, Track]], has_steps: Sequence[int], whose: Sequence[Any]
) -> dict[str, list[Track]]:
    """The track of each part, by key: all parts with a step have the same keys, one without need not have them."""
    if sum(map(len, extras)) == len(extras) * len(extras[0]):
        try:
            return {key: list(map(itemgetter(key), extras)) for key in extras[0]}
        except KeyError:
            pass
    common = _common_extra(extras, has_steps, whose).items()
    return {key: [extra[key] if key in extra else track.view(slice(0, 0)) for extra in extras] for key, track in common}


@lru_cache(maxsize=64)
def _empty_infos(num: int, lookback: int) -> InfoTrack:
    """A track of so many empty infos: the same one for all episodes of a length."""
    return InfoTrack(EmptyInfos(num), lookback)


def _common_extra(
    extras: Sequence[Mapping[str, Track]], has_steps: Sequence[int], whose: Sequence[Any]
) -> Mapping[str, Track]:
    """The extra model outputs of one part, whose keys all parts with a step have."""
    first = next((extra for extra, there in zip(extras, has_steps, strict=True) if there), extras[0])
    for id_, extra, there in zip(whose, extras, has_steps, strict=True):
        if there and extra.keys() != first.keys():
            raise TrackMismatch(f"episode {id_} has the extra model outputs {list(extra)}, others have {list(first)}")
    return first


def _column(tracks: Sequence[Any], have_items: bool, whose: Sequence[Any]) -> ArrayTrack:
    """The tracks' items as one track; those without items have no shape, and do not count."""
    data, field = list(map(_DATA, tracks)), tracks[0].field
    if have_items:
        try:
            if type(data[0]) is not np.ndarray:
                return ArrayTrack.of(nested.concatenate(data), 0, field)
            joined = nested.one_after_another(data)
            joined.flags.writeable = False  # nobody else has it: no view is needed
            return ArrayTrack(joined, 0, field)
        except ValueError:
            pass
    filled = [(id_, track.data) for id_, track in zip(whose, tracks, strict=True) if track.total]
    if not filled:
        return ArrayTrack.of(data[0], 0, field)
    shapes = [nested.map_leaves(lambda leaf: list(leaf.shape[1:]), data) for _, data in filled]
    for (id_, _), shape in zip(filled, shapes, strict=True):
        if shape != shapes[0]:
            raise TrackMismatch(
                f"{field.name}: items of episode {id_} have shape {shape}, those of {filled[0][0]} have {shapes[0]}; "
                "only episodes of one shape go into one pack"
            )
    return ArrayTrack.of(nested.concatenate([data for _, data in filled]), 0, field)
