"""What is known of an episode beside its tracks: one record for one episode, arrays of the same fields for many."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from episodes.errors import InvalidArgument, TrackMismatch, WrongType
from episodes.facts.ending import ENDINGS, Ending
from episodes.facts.policy_versions import VersionColumn, VersionRuns, checked_version, followed
from episodes.tracks.infos.info_columns import copy_mutable
from episodes.tracks.nested import frozen
from episodes.tracks.seeds import unseeded

OPEN = Ending.OPEN
_new: Any = tuple.__new__  # half the price of the class call
_CODE = attrgetter("code")


class Kind(Enum):
    """What the values of a fact are, and so how arrays and files hold them."""

    ID = "id"  # a string, or any other value that is hashable
    OPTIONAL_ID = "optional id"  # likewise, or None
    INTEGER = "integer"
    ENDING = "ending"
    VERSIONS = "versions"  # which version of the policy acted at each step (`VersionRuns`), or None


OPTIONAL = (Kind.OPTIONAL_ID, Kind.VERSIONS)
"""What may be None; a column of it may be, too, and in a file it may be missing."""


FACTS = {
    "id_": Kind.ID,
    "t_started": Kind.INTEGER,
    "ending": Kind.ENDING,
    "agent_id": Kind.OPTIONAL_ID,
    "module_id": Kind.OPTIONAL_ID,
    "multi_agent_episode_id": Kind.OPTIONAL_ID,
    "policy_versions": Kind.VERSIONS,
}
"""The facts that may differ from episode to episode of a pack, in the order of `EpisodeFacts` and `PackFacts`.

Packs, replay, files and pickles carry what is here. A new one goes to the end: here, and with a default in
`EpisodeFacts` (before the spaces) and in `PackFacts`, so that what was written without it can be read. Then give it a
property in `SingleAgentEpisode` and in `EpisodePack`, constructor arguments where users set it, and its column a line
in docs/format.md.
"""
_T_STARTED, _ENDING, _VERSIONS = map(list(FACTS).index, ("t_started", "ending", "policy_versions"))


class EpisodeFacts(NamedTuple):
    """Whose chunk it is, where it begins and how it stops. Never changed: `_replace` makes another.

    A named tuple, not a frozen dataclass: one is made for every `pack[i]` and every slice, in 0.3 us instead of 1.5.
    """

    id_: Any
    t_started: int = 0  # the environment step of the chunk's first observation
    ending: Ending = OPEN
    agent_id: Any = None
    module_id: Any = None
    multi_agent_episode_id: Any = None
    policy_versions: VersionRuns | None = None  # of its steps, those of the lookback not counted
    observation_space: spaces.Space | None = None
    action_space: spaces.Space | None = None

    @classmethod
    def of_all(cls, values: tuple[Any, ...]) -> EpisodeFacts:
        """The facts of a value for each field, in order."""
        return _new(cls, values)

    def window(self, t_started: int, num_steps: int, reaches_end: bool) -> EpisodeFacts:
        """The facts of a part of the chunk that has so many steps from `t_started` on."""
        part: list[Any] = list(self)
        part[_T_STARTED] = t_started
        if not reaches_end:  # `Ending.in_window`, without the call: many are sliced
            part[_ENDING] = OPEN
        versions = part[_VERSIONS]
        if versions is not None:
            part[_VERSIONS] = versions.window(t_started - self.t_started, num_steps)
        return _new(EpisodeFacts, part)

    def ended(self, ending: Ending) -> EpisodeFacts:
        """These facts with another ending."""
        facts = list(self)
        facts[_ENDING] = ending
        return _new(EpisodeFacts, facts)

    def with_version(self, version: int, step: int) -> EpisodeFacts:
        """These facts once the chunk's step `step` was of this policy version."""
        known = self.policy_versions
        if known is not None and known.versions[-1] == version:
            return self
        try:
            return self._replace(policy_versions=followed(known, VersionRuns((checked_version(version),)), step))
        except InvalidArgument as error:
            raise InvalidArgument(f"episode {self.id_}: {error}") from None

    def followed_by(self, other: EpisodeFacts) -> EpisodeFacts:
        """The facts of this chunk joined with the one that follows it."""
        versions = followed(self.policy_versions, other.policy_versions, other.t_started - self.t_started)
        return self._replace(ending=other.ending, policy_versions=versions)

    def __reduce__(self) -> Any:
        """Facts apart from spaces, so that a pickle of fewer facts can be read; nothing of spaces' random numbers."""
        return _restored, (self[: len(FACTS)], tuple(map(unseeded, self[len(FACTS) :])))


def _restored(facts: tuple[Any, ...], own_spaces: tuple[Any, ...]) -> EpisodeFacts:
    names = EpisodeFacts._fields
    return EpisodeFacts(**dict(zip((*names[: len(facts)], *names[len(FACTS) :]), (*facts, *own_spaces), strict=True)))


def new_id() -> str:
    """A random episode id, 32 hexadecimal digits."""
    try:
        return _next_ids.pop()
    except IndexError:  # many at a time: a question to the system takes ten times as long as a new id
        digits = os.urandom(16 * 64).hex()
        _next_ids.extend([digits[i : i + 32] for i in range(32, len(digits), 32)])
        return digits[:32]


_next_ids: list[str] = []  # nobody else's: a process that is forked draws its own
os.register_at_fork(after_in_child=_next_ids.clear)


class HasEnding:
    """The flags of an episode's ending, written through `facts`, the one way to change what is known of it."""

    __slots__ = ()

    _facts: EpisodeFacts

    @property
    def is_terminated(self) -> bool:
        """True when the episode ended in a terminal state."""
        return self._facts.ending.is_terminated

    @is_terminated.setter
    def is_terminated(self: Any, flag: bool) -> None:
        self.facts = self._facts.ended(Ending.of(flag, self.is_truncated))

    @property
    def is_truncated(self) -> bool:
        """True when the episode was ended from outside."""
        return self._facts.ending.is_truncated

    @is_truncated.setter
    def is_truncated(self: Any, flag: bool) -> None:
        self.facts = self._facts.ended(Ending.of(self.is_terminated, flag))

    @property
    def is_done(self) -> bool:
        """True when the episode terminated or was truncated; False for an ongoing or cut chunk."""
        return self._facts.ending.is_done


class PackFacts(NamedTuple):
    """The facts of n episodes: what `EpisodeFacts` lists, in its order, as columns; and of each its custom data.

    All episodes of a pack share their spaces. A column of values that may be missing is None where all are.
    """

    ids: Any  # [n] str, or objects where some is no str
    t_started: Any  # [n] int64
    endings: Any  # [n] uint8, `Ending.code`
    agent_ids: Any = None  # [n] objects, or None
    module_ids: Any = None  # [n] objects, or None
    multi_agent_episode_ids: Any = None  # [n] objects, or None
    policy_versions: VersionColumn | None = None  # of n chunks, or None
    observation_space: spaces.Space | None = None
    action_space: spaces.Space | None = None
    custom_data: Sequence[dict[str, Any] | None] | None = None  # n of them, nobody else's; None where all are empty

    @classmethod
    def of(cls, facts: Sequence[EpisodeFacts], custom_data: Sequence[dict[str, Any]]) -> PackFacts:
        """The facts of so many episodes. `TrackMismatch` names one whose spaces are not those of the others."""
        *values, observed, acted = zip(*facts, strict=True)
        made = [make(list(own)) for make, own in zip(_COLUMNS.values(), values, strict=True)]
        return cls._make([*made, *_common_spaces(observed, acted, values[0]), own_custom_data(custom_data)])

    @property
    def columns(self) -> tuple[Any, ...]:
        """The columns alone, without spaces and custom data."""
        return self[: len(_COLUMNS)]

    @property
    def spaces(self) -> tuple[Any, ...]:
        """The observation and the action space."""
        return self[len(_COLUMNS) : -1]

    @property
    def optional(self) -> tuple[Any, ...]:
        """The columns that are None where no episode has a value."""
        return tuple(column for column, kind in zip(self, FACTS.values(), strict=False) if kind in OPTIONAL)

    def at(self, i: int) -> EpisodeFacts:
        """The facts of episode i."""
        own: list[Any] = [None if column is None else column.item(i) for column in self.columns]
        own[_ENDING] = ENDINGS[own[_ENDING]]
        return _new(EpisodeFacts, (*own, *self.spaces))

    def take(self, which: Any) -> PackFacts:
        """The facts of the episodes that a slice or an integer array picks."""
        own = (None if column is None else column[which] for column in self.columns)
        custom = self.custom_data
        if custom is not None:
            custom = custom[which] if isinstance(which, slice) else [custom[i] for i in which.tolist()]
        return PackFacts._make([*own, *self.spaces, custom])

    def window(self, starts: np.ndarray, lengths: np.ndarray) -> PackFacts:
        """Return the facts of the last `lengths` [n] steps of each chunk, which begin `starts` [n] steps later.

        The counterpart of `EpisodeFacts.window` for many chunks: each part reaches the end of its chunk.
        """
        versions = self.policy_versions
        return self._replace(
            t_started=frozen(self.t_started + starts),
            policy_versions=None if versions is None else versions.window(starts, lengths),
        )

    def changed(self, **facts: Any) -> PackFacts:
        """Other facts under the names of these fields; `TypeError` for a name that there is not."""
        made = {name: _COLUMNS[name](values) for name, values in facts.items() if name in _COLUMNS}
        return self._replace(**facts | made)

    def check(self, num: int) -> None:
        """Raise `TrackMismatch` unless each column is of so many episodes."""
        columns = (*self.columns, self.custom_data)
        if {len(column) for column in columns if column is not None} == {num}:
            return
        for name, column in zip((*_COLUMNS, "custom_data"), columns, strict=True):
            if column is not None and len(column) != num:
                raise TrackMismatch(f"pack: {len(column)} {name} for {num} episodes; give one for each")

    @staticmethod
    def concat(parts: Sequence[PackFacts]) -> PackFacts:
        """The parts one after another. `TrackMismatch` names one whose spaces are not those of the others."""
        sizes = [len(part.ids) for part in parts]
        *columns, observed, acted, customs = zip(*parts, strict=True)
        own = [_joined(column, sizes) for column in columns]
        custom: list[Any] = []
        if any(customs):
            custom = [data for n, datas in zip(sizes, customs, strict=True) for data in datas or [None] * n]
        if observed.count(observed[0]) == acted.count(acted[0]) == len(parts):
            return PackFacts._make([*own, observed[0], acted[0], custom if any(custom) else None])
        whose = [part.ids[0] if len(part.ids) else "-" for part in parts]
        return PackFacts._make([*own, *_common_spaces(observed, acted, whose), custom if any(custom) else None])

    def __reduce__(self) -> Any:
        """Columns as bytes or lists: they are small, and an array of its own costs more than its numbers."""
        return _unpickled, ([in_band(column) for column in self.columns], *self.spaces, self.custom_data)


def own_custom_data(custom_data: Sequence[dict[str, Any] | None] | None) -> list[dict[str, Any]] | None:
    """Custom data that is nobody else's; None where all are empty."""
    if custom_data is None or not any(custom_data):
        return None
    return list(map(own_data, custom_data))


def own_data(data: Mapping[str, Any] | None) -> dict[str, Any]:
    """Custom data of one episode that is nobody else's: its lists, dicts and arrays are copied."""
    return {key: copy_mutable(value) for key, value in data.items()} if data else {}


def _common_spaces(observed: Sequence[Any], acted: Sequence[Any], whose: Sequence[Any]) -> tuple[Any, Any]:
    """The observation and the action space that all parts have; one without a space goes with any."""
    return _common_space("observation_space", observed, whose), _common_space("action_space", acted, whose)


def _common_space(name: str, own: Sequence[Any], whose: Sequence[Any]) -> Any:
    if own.count(own[0]) == len(own):
        return own[0]
    known, owner = None, None
    for space, id_ in zip(own, whose, strict=True):
        if space is known or space is None:
            continue
        if known is not None and space != known:
            raise TrackMismatch(
                f"episode {id_} has the {name} {space}, episode {owner} has {known}; episodes of one pack share "
                "their spaces: make a pack for each"
            )
        known, owner = space, id_
    return known


def _joined(columns: Sequence[Any], sizes: Sequence[int]) -> Any:
    there = [column for column in columns if column is not None]
    if not there:
        return None
    if isinstance(there[0], VersionColumn):
        return VersionColumn.concat(columns, sizes)
    if len(there) == len(columns):
        if len({column.dtype.kind for column in there}) == 1:
            return frozen(np.concatenate(there))
        columns = [column.tolist() for column in there]  # ids of several types: numpy would make texts of them all
    whole = [[None] * n if column is None else column for n, column in zip(sizes, columns, strict=True)]
    return objects([value for column in whole for value in column])


def in_band(column: Any) -> Any:
    """A column as a pickle carries it: bytes, or a list of objects."""
    if column is None:
        return None
    if isinstance(column, VersionColumn):
        return column.in_band()
    dtype = column.dtype
    return column.tolist() if dtype.hasobject else (dtype.str, column.tobytes())


def from_band(band: Any) -> Any:
    """The column that `in_band` was given."""
    if band is None:
        return None
    if type(band) is list:
        return _object_array(band)
    return np.frombuffer(band[1], band[0]) if len(band) == 2 else VersionColumn.from_band(*band)


def _unpickled(bands: Sequence[Any], *rest: Any) -> PackFacts:
    later = [None] * (len(_COLUMNS) - len(bands))  # facts that came after the pickle was made
    return PackFacts._make([*map(from_band, bands), *later, *rest])


# --- columns of values -------------------------------------------------------------------------------------------


def ids_of(ids: Any) -> np.ndarray:
    """A column of ids: strings, or objects where some is none or ends in a NUL, which numpy's strings lose."""
    if type(ids) is not list and (isinstance(ids, (str, bytes)) or not isinstance(ids, (Sequence, np.ndarray))):
        raise WrongType(f"pack: ids={ids!r}; give a list of ids, one for each episode")
    if isinstance(ids, list) and not (set(map(type, ids)) <= {str} and "\0" not in "".join(ids)):
        return _object_array(ids)
    return frozen(np.asarray(ids))


def integers(values: Any) -> np.ndarray:
    """A column of integers; `InvalidArgument` for other numbers."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InvalidArgument(f"pack: {values!r}; give a list of integers, one for each episode")
    return frozen(array.astype(np.int64, copy=False))


def counts(values: Any, name: str) -> np.ndarray:
    """A column of integers, none of which is negative."""
    column = integers(values)
    if len(column) and column.min() < 0:
        i = int(column.argmin())
        raise InvalidArgument(f"pack: {name}[{i}] is {column[i]}; give the numbers of steps, 0 or more")
    return column


def codes(endings: Any) -> np.ndarray:
    """A column of `Ending.code`, of endings or of codes."""
    if isinstance(endings, list):
        return np.frombuffer(bytes(map(_CODE, endings)), np.uint8)
    return frozen(np.array(endings, np.uint8))


def objects(values: Any) -> np.ndarray | None:
    """A column of any values; None when all are None."""
    return None if values is None or list(values).count(None) == len(values) else _object_array(values)


_MAKE = {Kind.ID: ids_of, Kind.INTEGER: integers, Kind.ENDING: codes, Kind.OPTIONAL_ID: objects}
_MAKE[Kind.VERSIONS] = VersionColumn.of
_COLUMNS: dict[str, Callable[[Any], Any]] = {
    column: _MAKE[kind] for column, kind in zip(PackFacts._fields, FACTS.values(), strict=False)
}
"""The columns of `PackFacts`, in order, and what makes each of the episodes' values."""


def _object_array(values: Any) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    array.flags.writeable = False
    return array


def random_ids(num: int, generator: np.random.Generator | None = None) -> np.ndarray:
    """Random episode ids [num], 32 hexadecimal digits each; the same ones again of a generator of the same seed."""
    drawn = os.urandom(16 * num) if generator is None else generator.bytes(16 * num)
    return _DIGITS.take(np.frombuffer(drawn, np.uint8)).view("U32")


_DIGITS = np.array([f"{byte:02x}" for byte in range(256)], "U2").view(np.uint64)  # of each byte, as numpy keeps strings
