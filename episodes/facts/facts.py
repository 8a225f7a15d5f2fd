"""Metadata of episodes: `EpisodeFacts` for one episode or chunk, `PackFacts` with arrays for many."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces

from episodes.errors import InvalidArgument, TrackMismatch, WrongType
from episodes.facts.ending import ENDINGS, Ending
from episodes.facts.policy_versions import VersionColumn, VersionRuns, checked_version, join_runs
from episodes.tracks.infos.info_column import copy_mutable
from episodes.tracks.levels import check_levels
from episodes.tracks.read_only import read_only
from episodes.tracks.seeds import unseeded
from episodes.tracks.stacking import object_array
from episodes.tracks.validation import checked_count

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

OPEN = Ending.OPEN
_LARGEST = np.iinfo(np.int64).max
_new: Any = tuple.__new__  # takes half the time of calling the class
_CODE = attrgetter("code")


class FactKind(Enum):
    """Type of a metadata field, such as integer or optional id. It determines array dtypes and file columns."""

    ID = "id"  # a string, or any other hashable value
    OPTIONAL_ID = "optional id"  # an ID or None
    INTEGER = "integer"
    ENDING = "ending"
    VERSIONS = "versions"  # policy version of each step (`VersionRuns`), or None
    TEXT = "text"  # a string, often the same for all episodes of a pack, or None


OPTIONAL = (FactKind.OPTIONAL_ID, FactKind.VERSIONS, FactKind.TEXT)
"""Kinds of metadata fields whose values may be None. Their arrays may be None, too, and may be missing in files."""


FACTS = {
    "id_": FactKind.ID,
    "t_started": FactKind.INTEGER,
    "ending": FactKind.ENDING,
    "agent_id": FactKind.OPTIONAL_ID,
    "module_id": FactKind.OPTIONAL_ID,
    "multi_agent_episode_id": FactKind.OPTIONAL_ID,
    "policy_versions": FactKind.VERSIONS,
    "acting_pipeline": FactKind.TEXT,
}
"""Metadata fields that may differ between episodes of a pack, in the order of `EpisodeFacts` and `PackFacts`.

Packs, replay, files, messages, pickles and loss reports carry all facts in this table. A new fact goes to the end:
here, and with a default in `EpisodeFacts` (before the spaces) and in `PackFacts`, so that what was written without it
can be read. If joined chunks may differ in it, it needs a rule in `EpisodeFacts.followed_by`. Then it needs a property
in `single_agent/episode.py` and in `pack/pack.py`, there also an argument of the constructor if it is an id, and a line
in docs/format.md.

A new kind of facts needs a form of its column in `_MAKE` below, in files (`storage/episode_rows.py`) and in messages
(`transport/facts_codec.py`). These raise an error for a kind without one.

Where runners set the fact, recorders need it: `recorder/vector_recorder.py`, and for steps that go right into replay
`replay/ring/episode_table.py`. The record of a multi-agent episode has only its id, time and ending
(`multi_agent/packing.py`); other facts are of its agents' episodes.

A converter stores the facts that its file names, and reports all others as lost. Those that can store the new fact are
`step_tables.py`, `minari.py`, `lerobot.py` and `lerobot_reading.py` in `converters`.
"""
_T_STARTED, _ENDING, _VERSIONS = map(list(FACTS).index, ("t_started", "ending", "policy_versions"))


class EpisodeFacts(NamedTuple):
    """Immutable metadata of an episode or chunk: ids, start time, ending, policy versions and spaces.

    A named tuple, since each `pack[i]` and each slice creates one: that takes 0.3 us, a frozen dataclass 1.5 us.
    """

    id_: Any
    t_started: int = 0  # env step of the chunk's first observation
    ending: Ending = OPEN
    agent_id: Any = None
    module_id: Any = None
    multi_agent_episode_id: Any = None
    policy_versions: VersionRuns | None = None  # of the chunk's steps without the lookback
    acting_pipeline: str | None = None  # rewriters and views with which the policy acted, see `connectors.fingerprint`
    observation_space: spaces.Space | None = None
    action_space: spaces.Space | None = None

    def window(self, t_started: int, num_steps: int, reaches_end: bool) -> EpisodeFacts:
        """Return the metadata of the part of the episode with `num_steps` steps from time `t_started` on.

        The ending is `OPEN` unless `reaches_end` is True.
        """
        part: list[Any] = list(self)
        part[_T_STARTED] = t_started
        if not reaches_end:  # `Ending.in_window` without a call, since slices are frequent
            part[_ENDING] = OPEN
        versions = part[_VERSIONS]
        if versions is not None:
            part[_VERSIONS] = versions.window(t_started - self.t_started, num_steps)
        return _new(EpisodeFacts, part)

    def ended(self, ending: Ending) -> EpisodeFacts:
        """Return a copy of the metadata with the given ending."""
        facts = list(self)
        facts[_ENDING] = ending
        return _new(EpisodeFacts, facts)

    def with_version(self, version: int, step: int) -> EpisodeFacts:
        """Return metadata that record `version` as the policy version of the newest step, whose index is `step`.

        Returns this object if the previous step has the same version.

        Raises:
            InvalidArgument: `version` is neither an int from 0 to 2**63 - 1 nor None (unknown).
        """
        known = self.policy_versions
        if type(version) is int and known is not None and known.versions[-1] == version:
            return self
        try:
            return self._replace(policy_versions=join_runs(known, VersionRuns((checked_version(version),)), step))
        except InvalidArgument as error:
            raise InvalidArgument(f"episode {self.id_}: {error}") from None

    def followed_by(self, later: EpisodeFacts) -> EpisodeFacts:
        """Return the metadata of this chunk joined with the next chunk of the episode, `later`."""
        versions = join_runs(self.policy_versions, later.policy_versions, later.t_started - self.t_started)
        pipeline = join_pipelines(self.acting_pipeline, later.acting_pipeline)
        return self._replace(ending=later.ending, policy_versions=versions, acting_pipeline=pipeline)

    def __reduce__(self) -> Any:
        """Return the pickled form, with the spaces separate, so that pickles of older versions stay readable."""
        return _restored, (self[: len(FACTS)], tuple(map(unseeded, self[len(FACTS) :])))


def _restored(facts: tuple[Any, ...], own_spaces: tuple[Any, ...]) -> EpisodeFacts:
    """Return an episode's metadata from pickled values. Fields that an older pickle lacks get their defaults."""
    names = EpisodeFacts._fields
    return EpisodeFacts(**dict(zip((*names[: len(facts)], *names[len(FACTS) :]), (*facts, *own_spaces), strict=True)))


def join_pipelines(first: str | None, second: str | None) -> str | None:
    """Join two texts that describe the preprocessing of two chunks, so that each line occurs once.

    If one text is `None` (unknown), return the other.
    """
    if first == second or second is None:
        return first
    return second if first is None else "\n".join(dict.fromkeys([*first.splitlines(), *second.splitlines()]))


def new_id() -> str:
    """Return a random episode id of 32 hexadecimal digits."""
    return os.urandom(16).hex()


class HasEnding:
    """Base class of episodes with the properties `is_terminated`, `is_truncated` and `is_done`."""

    __slots__ = ()

    _facts: EpisodeFacts

    @property
    def is_terminated(self) -> bool:
        """True if the episode ended in a terminal state."""
        return self._facts.ending.is_terminated

    @is_terminated.setter
    def is_terminated(self: Any, flag: bool) -> None:
        self.facts = self._facts.ended(Ending.of(flag, self.is_truncated))

    @property
    def is_truncated(self) -> bool:
        """True if the episode was ended from outside, for example by a time limit."""
        return self._facts.ending.is_truncated

    @is_truncated.setter
    def is_truncated(self: Any, flag: bool) -> None:
        self.facts = self._facts.ended(Ending.of(self.is_terminated, flag))

    @property
    def is_done(self) -> bool:
        """True if the episode terminated or was truncated. An ongoing or cut episode has False."""
        return self._facts.ending.is_done


class PackFacts(NamedTuple):
    """Immutable metadata of n episodes: an array [n] for each field of `EpisodeFacts`, and the custom data.

    All episodes of a pack share their spaces. A column of optional values is None if all values are.
    """

    ids: Any  # [n] str, or objects if some id is not a str
    t_started: Any  # [n] int64
    endings: Any  # [n] uint8, `Ending.code`
    agent_ids: Any = None  # [n] objects, or None
    module_ids: Any = None  # [n] objects, or None
    multi_agent_episode_ids: Any = None  # [n] objects, or None
    policy_versions: VersionColumn | None = None  # of n chunks, or None
    acting_pipelines: Any = None  # [n] objects, or None
    observation_space: spaces.Space | None = None
    action_space: spaces.Space | None = None
    custom_data: Sequence[dict[str, Any] | None] | None = None  # [n] dicts, not shared; None if all are empty

    @classmethod
    def of(cls, facts: Sequence[EpisodeFacts], custom_data: Sequence[dict[str, Any]]) -> PackFacts:
        """Create the metadata of a pack from the metadata of its n episodes. Raise `TrackMismatch` if spaces differ."""
        *values, observation_spaces, action_spaces = zip(*facts, strict=True)
        columns = [make(list(column)) for make, column in zip(_COLUMNS.values(), values, strict=True)]
        return cls._make(
            [*columns, *_common_spaces(observation_spaces, action_spaces, values[0]), own_custom_data(custom_data)]
        )

    @property
    def columns(self) -> tuple[Any, ...]:
        """All metadata arrays as a tuple, without spaces and custom data."""
        return self[: len(_COLUMNS)]

    @property
    def spaces(self) -> tuple[Any, ...]:
        """The observation space and the action space that all episodes share."""
        return self[len(_COLUMNS) : -1]

    @property
    def optional(self) -> tuple[Any, ...]:
        """Metadata arrays of the fields that may be None, such as agent ids."""
        return tuple(column for column, kind in zip(self, FACTS.values(), strict=False) if kind in OPTIONAL)

    def at(self, i: int) -> EpisodeFacts:
        """Return the metadata of episode i."""
        values: list[Any] = [None if column is None else column.item(i) for column in self.columns]
        values[_ENDING] = ENDINGS[values[_ENDING]]
        return _new(EpisodeFacts, (*values, *self.spaces))

    def take(self, index: slice | np.ndarray) -> PackFacts:
        """Return the metadata of the episodes that a slice or an integer array selects."""
        values = (None if column is None else column[index] for column in self.columns)
        custom = self.custom_data
        if custom is not None:
            custom = custom[index] if isinstance(index, slice) else [custom[i] for i in index.tolist()]
        return PackFacts._make([*values, *self.spaces, custom])

    def window(self, starts: np.ndarray, lengths: np.ndarray) -> PackFacts:
        """Return the metadata of the last `lengths` [n] steps of each episode, which begin at the steps `starts`
        [n].

        The counterpart of `EpisodeFacts.window` for many chunks: each part reaches the end of its chunk.
        """
        versions = self.policy_versions
        return self._replace(
            t_started=read_only(self.t_started + starts),
            policy_versions=None if versions is None else versions.window(starts, lengths),
        )

    def changed(self, **facts: object) -> PackFacts:
        """Return a copy with the named fields replaced. Raise `ValueError` (`TypeError` since Python 3.13) for an
        unknown name.
        """
        made = {name: _COLUMNS[name](values) for name, values in facts.items() if name in _COLUMNS}
        return self._replace(**facts | made)

    def check(self, num: int) -> None:
        """Raise `TrackMismatch` unless each metadata array has `num` values."""
        columns = (*self.columns, self.custom_data)
        if {len(column) for column in columns if column is not None} == {num}:
            return
        for name, column in zip((*_COLUMNS, "custom_data"), columns, strict=True):
            if column is not None and len(column) != num:
                raise TrackMismatch(f"pack: {len(column)} {name} for {num} episodes; give one for each")

    @staticmethod
    def concat(parts: Sequence[PackFacts]) -> PackFacts:
        """Concatenate the metadata of several packs. Raise `TrackMismatch` if two known spaces differ."""
        sizes = [len(part.ids) for part in parts]
        *columns, observation_spaces, action_spaces, customs = zip(*parts, strict=True)
        values = [_joined(column, sizes) for column in columns]
        custom: list[Any] = []
        if any(customs):
            custom = [data for n, datas in zip(sizes, customs, strict=True) for data in datas or [None] * n]
        if observation_spaces.count(observation_spaces[0]) == action_spaces.count(action_spaces[0]) == len(parts):
            return PackFacts._make([*values, observation_spaces[0], action_spaces[0], custom if any(custom) else None])
        ids = [part.ids[0] if len(part.ids) else "-" for part in parts]
        return PackFacts._make(
            [*values, *_common_spaces(observation_spaces, action_spaces, ids), custom if any(custom) else None]
        )

    def __reduce__(self) -> Any:
        """Return the pickled form, in which arrays are bytes or lists, because small arrays pickle slowly."""
        return _unpickled, ([in_band(column) for column in self.columns], *self.spaces, self.custom_data)


def own_custom_data(custom_data: Sequence[dict[str, Any] | None] | None) -> list[dict[str, Any]] | None:
    """Return deep copies of the custom data dicts of several episodes, or None if all are empty."""
    if custom_data is None or not any(custom_data):
        return None
    return list(map(own_data, custom_data))


def own_data(data: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a deep copy of the custom data of one episode.

    Raises:
        ShapeMismatch: a value is nested too deeply.
    """
    check_levels(data, what="custom_data")
    return {key: copy_mutable(value) for key, value in data.items()} if data else {}


def _common_spaces(
    observation_spaces: Sequence[Any], action_spaces: Sequence[Any], ids: Sequence[Any]
) -> tuple[Any, Any]:
    """Return the observation space and the action space that all episodes share. None fits any space."""
    return _common_space("observation_space", observation_spaces, ids), _common_space(
        "action_space", action_spaces, ids
    )


def _common_space(name: str, values: Sequence[Any], ids: Sequence[Any]) -> Any:
    """Return the space that all episodes share.

    An episode whose space is `None` has no influence. The result is `None` if all are.

    Raises:
        TrackMismatch: two spaces differ.
    """
    if values.count(values[0]) == len(values):
        return values[0]
    known, owner = None, None
    for space, id_ in zip(values, ids, strict=True):
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
    """Concatenate the same metadata column of several packs, some of which may lack it (None).

    The result is `None` if all packs lack it. Otherwise, the episodes of a pack without the column have None.

    Args:
        sizes: number of episodes of each pack.
    """
    present = [column for column in columns if column is not None]
    if not present:
        return None
    if isinstance(present[0], VersionColumn):
        return VersionColumn.concat(columns, sizes)
    if len(present) == len(columns):
        if len({column.dtype.kind for column in present}) == 1:
            return read_only(np.concatenate(present))
        columns = [column.tolist() for column in present]  # ids of several types, which numpy would turn into strings
    whole = [[None] * n if column is None else column for n, column in zip(sizes, columns, strict=True)]
    return objects([value for column in whole for value in column])


def in_band(column: np.ndarray | VersionColumn | None) -> Any:
    """Convert a metadata array to plain values for pickling: (dtype, bytes), or a list of objects. None stays None."""
    if column is None:
        return None
    if isinstance(column, VersionColumn):
        return column.in_band()
    dtype = column.dtype
    return column.tolist() if dtype.hasobject else (dtype.str, column.tobytes())


def from_band(band: Any) -> Any:
    """Convert the result of `in_band` back to a metadata array, or None."""
    if band is None:
        return None
    if type(band) is list:
        return read_only(object_array(band))
    return np.frombuffer(band[1], band[0]) if len(band) == 2 else VersionColumn.from_band(*band)


def _unpickled(bands: Sequence[Any], *values: object) -> PackFacts:
    """Return a pack's metadata from pickled values. Fields that an older pickle lacks are `None`."""
    later = [None] * (len(_COLUMNS) - len(bands))  # facts that are newer than the pickle
    return PackFacts._make([*map(from_band, bands), *later, *values])


# --- columns of values -------------------------------------------------------------------------------------------


def ids_of(ids: object) -> np.ndarray:
    """Return episode ids as a numpy string array, or as an object array if some id is not a plain string.

    Raises:
        WrongType: `ids` is neither a sequence nor an array, or is a single text.
    """
    if type(ids) is not list and (isinstance(ids, (str, bytes)) or not isinstance(ids, (Sequence, np.ndarray))):
        raise WrongType(f"pack: ids={ids!r}; give a list of ids, one for each episode")
    if isinstance(ids, list) and not (set(map(type, ids)) <= {str} and "\0" not in "".join(ids)):
        return read_only(object_array(ids))
    return read_only(np.asarray(ids))


def integers(values: ArrayLike) -> np.ndarray:
    """Convert values to a read-only int64 array [n]. Raise `InvalidArgument` unless all are integers."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InvalidArgument(f"pack: {values!r}; give a list of integers, one for each episode")
    if array.dtype.kind == "u" and array.size and array.max() > _LARGEST:
        raise InvalidArgument(f"pack: {values!r}; give integers below 2**63")
    return read_only(array.astype(np.int64, copy=False))


def checked_start(name: str, value: object, num_steps: int) -> int:
    """Return the env step at which a chunk of `num_steps` steps begins as an int.

    Raises:
        InvalidArgument: it is not an int from 0 to `2**63 - 1 - num_steps`, so that all env steps are int64.
    """
    start = checked_count(name, value, 0)
    if start > _LARGEST - num_steps:
        raise InvalidArgument(f"{name}={value!r}: give an int of at least 0, below 2**63 - {num_steps}")
    return start


def check_starts(starts: np.ndarray, lengths: np.ndarray) -> None:
    """Raise `InvalidArgument` unless the env steps of all chunks, from `starts` [n] on, are int64 of at least 0."""
    invalid = (starts < 0) | (starts > _LARGEST - lengths)
    if np.count_nonzero(invalid):
        i = int(invalid.argmax())
        checked_start(f"pack: t_started[{i}]", int(starts[i]), int(lengths[i]))


def counts(values: ArrayLike, name: str) -> np.ndarray:
    """Convert values to a read-only int64 array [n]. Raise `InvalidArgument` unless all are integers of at least 0."""
    column = integers(values)
    if len(column) and column.min() < 0:
        i = int(column.argmin())
        raise InvalidArgument(f"pack: {name}[{i}] is {column[i]}; give the numbers of steps, 0 or more")
    return column


def codes(endings: Sequence[Ending] | np.ndarray) -> np.ndarray:
    """Convert `Ending` values or ending codes to a uint8 array (bit 0: terminated, bit 1: truncated)."""
    if isinstance(endings, list):
        return np.frombuffer(bytes(map(_CODE, endings)), np.uint8)
    return read_only(np.array(endings, np.uint8))


def objects(values: Sequence[Any] | np.ndarray | None) -> np.ndarray | None:
    """Convert values of any type to a read-only object array, or to None if there is no value other than None."""
    if values is None or list(values).count(None) == len(values):
        return None
    return read_only(object_array(values.tolist() if isinstance(values, np.ndarray) else values))


def texts(values: Sequence[Any] | np.ndarray | None) -> np.ndarray | None:
    """Convert texts (or None) to a read-only object array, or to None if there is no text.

    Raises:
        WrongType: a value is not a str that UTF-8 can encode.
    """
    column = objects(values)
    for value in () if column is None else column.tolist():
        if value is not None and not is_utf8(value):
            raise WrongType(f"acting_pipeline={value!r}; give a text of Unicode characters, or None")
    return column


def is_utf8(value: object) -> bool:
    """Return True if the value is a str that can be encoded as UTF-8, as files and messages require."""
    if type(value) is not str:
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


_MAKE = {FactKind.ID: ids_of, FactKind.INTEGER: integers, FactKind.ENDING: codes, FactKind.OPTIONAL_ID: objects}
_MAKE |= {FactKind.VERSIONS: VersionColumn.of, FactKind.TEXT: texts}
_COLUMNS: dict[str, Callable[[Any], Any]] = {
    column: _MAKE[kind] for column, kind in zip(PackFacts._fields, FACTS.values(), strict=False)
}
"""The columns of `PackFacts`, in order, and the functions that create them from values of the episodes."""


def random_ids(num: int) -> np.ndarray:
    """Return `num` random episode ids of 32 hexadecimal digits. No seed affects them."""
    return _DIGITS.take(np.frombuffer(os.urandom(16 * num), np.uint8)).view("U32")


_DIGITS = np.array([f"{byte:02x}" for byte in range(256)], "U2").view(
    np.uint64
)  # two digits per byte, as numpy strings
