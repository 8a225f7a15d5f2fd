"""Reading and writing of the file `episodes.json`, which has a data set's spaces, array schemas and metadata."""

from __future__ import annotations

import base64
import json
import os
import uuid
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from episodes.errors import InvalidArgument, TrackMismatch, UnreadableData, WrongType
from episodes.format_versions import DATA_SET, check_version
from episodes.storage import space_json
from episodes.storage.arrow import as_unreadable_data
from episodes.storage.checksums import algorithm, checksum_of_text, sorted_json, verify_value
from episodes.storage.files import put, read_file
from episodes.storage.track_schema import Fields, TrackField, check_same, observation_fields
from episodes.tracks.infos import msgpack_codec
from episodes.tracks.infos.infos import same_info
from episodes.tracks.levels import check_levels

NAME = "episodes.json"
KINDS = "kinds"  # folder of the data sets of the kinds of agents
FORMAT = "rl-episodes"


class TrackKnowledge(IntEnum):
    """Known part of the schema of a data set's arrays, which depends on the episodes written so far."""

    NOTHING = 0  # no episode was written
    OBSERVATIONS = 1  # no episode has a step
    ALL = 2


@dataclass(frozen=True, slots=True)
class Header:
    """Contents of the file `episodes.json`: spaces, array schemas and metadata of a data set.

    Attributes:
        observation_space, action_space: of all episodes, or None.
        env_spec: an `EnvSpec`, the id of an environment, or None.
        metadata: the user's.
        tracks: fields by path; only those of observations while no episode has a step.
        structure: how tracks are nested, see `structure_of`; None while no episode has a step.
        id: random id of the data set, also in shards and manifests; None in data sets of earlier versions.
        has_kinds: whether the agents are of several kinds, each of which has a data set in the folder `kinds`. Then the
            header has no spaces and tracks.
    """

    observation_space: spaces.Space | None = None
    action_space: spaces.Space | None = None
    env_spec: EnvSpec | str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    tracks: Fields = field(default_factory=dict)
    structure: Any = None
    id: str | None = None
    has_kinds: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the header as a JSON value. Raise `WrongType` if JSON cannot represent an attribute."""
        return {
            "format": FORMAT,
            "version": 3 if self.has_kinds else 2 if any(known.is_ragged for known in self.tracks.values()) else 1,
            "observation_space": space_json.to_json(self.observation_space, "observation_space"),
            "action_space": space_json.to_json(self.action_space, "action_space"),
            "env_spec": _spec_to_json(self.env_spec),
            "tracks": {path: known.to_json() for path, known in self.tracks.items()},
            "structure": self.structure,
            "metadata": _metadata_to_json(self.metadata),
            **({} if self.id is None else {"id": self.id}),
            **({"kinds": True} if self.has_kinds else {}),
        }

    def check_given(self, header: Header) -> None:
        """Raise `InvalidArgument` if the spaces, `env_spec` or metadata that a user gave (`header`)
        differ from the stored values."""
        for name in ("observation_space", "action_space", "env_spec"):
            stored, value = getattr(self, name), getattr(header, name)
            if value is not None and stored != value and not (name == "env_spec" and _have_equal_json(stored, value)):
                raise InvalidArgument(
                    f"{name}: the data set has {stored}, not {value}; leave it out, or write elsewhere"
                )
        if header.metadata and not same_info(self.metadata, header.metadata):
            raise InvalidArgument(f"metadata: the data set has {self.metadata}, not {header.metadata}; leave it out")

    def check_tracks(self, tracks: Fields, has_steps: bool) -> None:
        """Raise `TrackMismatch` unless new arrays with the schema `tracks` have the dtypes and shapes that are known
        from the data set's arrays.

        If there are no steps, only observations are compared. A writer without episodes has no tracks.
        """
        stored, new = self.tracks, tracks
        if not has_steps or not self.knows_steps:
            stored, new = observation_fields(stored), observation_fields(new)
        if stored and new:
            check_same(stored, new, "data set")

    @property
    def known(self) -> TrackKnowledge:
        """Part of the schema of the data set's arrays that is known so far:
        nothing, the observations, or everything."""
        return (
            TrackKnowledge.ALL
            if self.knows_steps
            else TrackKnowledge.OBSERVATIONS
            if self.tracks
            else TrackKnowledge.NOTHING
        )

    def completed_by(self, header: Header) -> Header:
        """Return a copy with the array schemas of `header`, and with its spaces if these are unknown and no episode was
        written yet."""
        learned = replace(self, tracks=header.tracks, structure=header.structure)
        if self.known > TrackKnowledge.NOTHING:
            return learned
        return replace(
            learned,
            observation_space=header.observation_space if self.observation_space is None else self.observation_space,
            action_space=header.action_space if self.action_space is None else self.action_space,
        )

    @property
    def knows_steps(self) -> bool:
        """Whether the dtypes and shapes of actions, rewards and extra model outputs are known."""
        return self.structure is not None


def is_data_set(directory: Path) -> bool:
    """Return True if the directory holds a data set, without reading it."""
    return os.path.exists(directory / NAME)  # unlike Path.exists it raises nothing in folders that may not be read


def read_header(directory: Path, *, kinds: bool = False) -> Header | None:
    """Read the file `episodes.json` in `directory`. Return None if there is no such file.

    Args:
        directory: the data set.
        kinds: whether the caller reads data sets of several kinds of agents.

    Raises:
        UnreadableData: the header is damaged, or of a newer format version, or without `kinds` of several kinds of
            agents.
    """
    try:
        text = read_file(directory / NAME)
    except (FileNotFoundError, NotADirectoryError):
        return None
    header = header_of(text, str(directory / NAME))
    if header.has_kinds and not kinds:
        raise UnreadableData(
            f"{directory} has games whose agents are of several kinds; GameDataset(path) reads the games, and its "
            f"attribute `kinds` has one data set for each kind, stored in {directory / KINDS}"
        )
    return header


def header_of(text: bytes, file: str) -> Header:
    """Parse the bytes of the file `episodes.json`, and return them as a `Header`.

    Raises:
        UnreadableData: the header is damaged, or of a newer format version; the message names the file.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableData(f"{file} is not JSON: {error}") from None
    with as_unreadable_data(file):
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise UnreadableData(f"it is not the header of a data set: it has no 'format': {FORMAT!r}")
        check_version(value["version"], DATA_SET, "the header", "write the data set again")
        return _from_json(verify_value(value, "it"))


def _from_json(value: dict[str, Any]) -> Header:
    """Return the header that a JSON object describes. Older files have no id. Their header's id is `None`."""
    return Header(
        observation_space=space_json.from_json(value["observation_space"]),
        action_space=space_json.from_json(value["action_space"]),
        env_spec=_spec_from_json(value["env_spec"]),
        metadata=_metadata_from_json(value["metadata"]),
        tracks={path: TrackField.from_json(known) for path, known in value["tracks"].items()},
        structure=value["structure"],
        id=_checked_id(value.get("id")),
        has_kinds=value.get("kinds") is True,
    )


def _checked_id(id_: object) -> str | None:
    """Return the id of a data set. Raise `UnreadableData` if it is neither a str nor None."""
    if id_ is not None and not isinstance(id_, str):
        raise UnreadableData(f"the id {id_!r} is no text")
    return id_


def create_or_load_header(directory: Path, header: Header) -> Header:
    """Write `episodes.json` unless the directory has this file already. Return the header that is on disk afterwards.

    An existing header is only completed: with the tracks of steps, and before the first episode with the spaces.

    Raises:
        InvalidArgument, TrackMismatch: the existing header differs, see `check_given` and `check_tracks`.
        UnreadableData: the header was removed meanwhile.
    """
    directory.mkdir(parents=True, exist_ok=True)
    new = replace(header, id=header.id or uuid.uuid4().hex)
    if put_header(directory, new, new=True):
        return new
    existing = read_header(directory, kinds=header.has_kinds)
    if existing is not None and header.has_kinds and not existing.has_kinds:
        raise TrackMismatch(begun_with_one_kind(directory))
    if existing is not None and header.known > existing.known:
        completed = existing.completed_by(header)
        completed.check_given(header)
        existing.check_tracks(header.tracks, header.knows_steps)
        put_header(directory, completed, new=False)
        existing = read_header(directory)
    if existing is None:
        raise UnreadableData(f"{directory / NAME} was removed while it was written")
    existing.check_given(header)
    existing.check_tracks(header.tracks, header.knows_steps)
    return existing


def put_header(directory: Path, header: Header, *, new: bool) -> bool:
    """Write `episodes.json`. If `new` is True and the file exists already, leave it unchanged and return False."""
    value = header.to_json()
    parts = {name: sorted_json(part) for name, part in value.items()}
    whole = ", ".join(f'"{name}": {parts[name]}' for name in sorted(parts))  # as `sorted_json` writes the value
    parts["metadata"] = json.dumps(value["metadata"])  # keeps the order of the user's keys
    lines = ",\n".join(f'"{name}": {part}' for name, part in parts.items())
    try:
        put(directory / NAME, f'{{\n{lines},\n"sum": "{checksum_of_text(f"{{{whole}}}", algorithm())}"\n}}\n', new=new)
        return True
    except FileExistsError:
        return False


def begun_with_one_kind(directory: Path) -> str:
    """Return the message of the error for agents of several kinds in a data set of one kind."""
    return (
        f"the agents are of several kinds of tracks or spaces, and {directory} began with one kind; write these games "
        "to another data set, created with EpisodeWriter(path, several_kinds=True)"
    )


def _spec_to_json(spec: EnvSpec | str | None) -> Any:
    """Return an environment's spec as a JSON value. None and an id are returned as is.

    Raises:
        WrongType: `spec` is something else, or contains a value that JSON cannot represent.
    """
    if spec is None or isinstance(spec, str):
        return spec
    if not isinstance(spec, EnvSpec):
        raise WrongType(f"env_spec is a {type(spec).__name__}; give an EnvSpec (env.spec), an id, or None")
    try:
        return json.loads(spec.to_json())
    except (TypeError, ValueError) as error:
        raise WrongType(
            f"env_spec: the spec of {spec.id} contains a value that JSON cannot represent ({error}); give its id, "
            f"{spec.id!r}"
        ) from None


def _have_equal_json(spec: EnvSpec | str | None, second_spec: EnvSpec | str | None) -> bool:
    """Return True if two environment specs are stored as equal JSON values."""
    return _spec_to_json(spec) == _spec_to_json(second_spec)


def to_storable_spec(spec: EnvSpec | None) -> EnvSpec | str | None:
    """Return an environment spec, or only its id if JSON cannot represent the spec, or None for None."""
    try:
        _spec_to_json(spec)
    except WrongType:
        return None if spec is None else spec.id
    return spec


def _spec_from_json(value: dict[str, Any] | str | None) -> EnvSpec | str | None:
    """Return the `EnvSpec` that a JSON object describes. An id (a str) and None are returned unchanged."""
    return EnvSpec.from_json(json.dumps(value)) if isinstance(value, dict) else value


def _metadata_to_json(metadata: dict[str, Any]) -> Any:
    """Return the user's metadata as a JSON value. Metadata that JSON would change are encoded as msgpack in base64."""
    if not metadata:
        return {"json": {}}
    check_levels(metadata, what="metadata")
    document = msgpack_codec.encode(metadata, "metadata")
    try:
        if msgpack_codec.is_json(metadata):
            json.dumps(metadata, allow_nan=False)
            return {"json": metadata}
    except ValueError:
        pass
    return {"msgpack": base64.b64encode(document).decode()}


def _metadata_from_json(value: dict[str, Any]) -> dict[str, Any]:
    return value["json"] if "json" in value else msgpack_codec.decode(base64.b64decode(value["msgpack"]))
