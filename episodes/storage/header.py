"""`episodes.json`: what all episodes of a data set share. It is made once, by whichever writer comes first."""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from episodes.errors import InvalidArgument, UnreadableData, WrongType
from episodes.storage import space_json
from episodes.storage.arrow import reading
from episodes.storage.checksums import algorithm, sorted_json, sum_of_text, unsigned
from episodes.storage.files import put, read_file
from episodes.storage.track_schema import Fields, TrackField, check_same, observed
from episodes.tracks.infos import msgpack_codec
from episodes.tracks.infos.infos import same_info

NAME = "episodes.json"
FORMAT, VERSION = "rl-episodes", 1


class TrackKnowledge(IntEnum):
    """How much a header knows of the episodes' tracks; it only ever learns."""

    NOTHING = 0  # there are no episodes
    OBSERVATIONS = 1  # no episode has a step
    ALL = 2


@dataclass(frozen=True, slots=True)
class Header:
    """What is in `episodes.json`."""

    observation_space: spaces.Space | None = None
    action_space: spaces.Space | None = None
    env_spec: EnvSpec | str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    tracks: Fields = field(default_factory=dict)  # only those of observations while no episode has a step
    structure: Any = None  # how tracks are nested, see `structure_of`; None while no episode has a step
    id: str | None = None  # random; shards and manifests contain it too. Data sets of earlier versions have none

    def to_json(self) -> dict[str, Any]:
        """The value that is written; `WrongType` names what cannot be."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "observation_space": space_json.to_json(self.observation_space, "observation_space"),
            "action_space": space_json.to_json(self.action_space, "action_space"),
            "env_spec": _spec_to_json(self.env_spec),
            "tracks": {path: known.to_json() for path, known in self.tracks.items()},
            "structure": self.structure,
            "metadata": _metadata_to_json(self.metadata),
            **({} if self.id is None else {"id": self.id}),
        }

    def check_given(self, given: Header) -> None:
        """Raise `InvalidArgument` where what a further writer says of the data set is not what is there."""
        for name in ("observation_space", "action_space", "env_spec"):
            mine, other = getattr(self, name), getattr(given, name)
            if other is not None and mine != other and not (name == "env_spec" and _are_alike(mine, other)):
                raise InvalidArgument(f"{name}: the data set has {mine}, not {other}; leave it out, or write elsewhere")
        if given.metadata and not same_info(self.metadata, given.metadata):
            raise InvalidArgument(f"metadata: the data set has {self.metadata}, not {given.metadata}; leave it out")

    def check_tracks(self, tracks: Fields, has_steps: bool) -> None:
        """Raise `TrackMismatch` unless episodes of these tracks belong here; without steps, their observations."""
        there, given = self.tracks, tracks
        if not has_steps or not self.knows_steps:
            there, given = observed(there), observed(given)
        if there:
            check_same(there, given, "data set")

    @property
    def known(self) -> TrackKnowledge:
        """How much is known of the episodes."""
        return (
            TrackKnowledge.ALL
            if self.knows_steps
            else TrackKnowledge.OBSERVATIONS
            if self.tracks
            else TrackKnowledge.NOTHING
        )

    def learning(self, other: Header) -> Header:
        """This header, with what the other one knows and this one does not."""
        learned = replace(self, tracks=other.tracks, structure=other.structure)
        if self.known > TrackKnowledge.NOTHING:
            return learned
        return replace(
            learned,
            observation_space=other.observation_space if self.observation_space is None else self.observation_space,
            action_space=other.action_space if self.action_space is None else self.action_space,
        )

    @property
    def knows_steps(self) -> bool:
        """Whether it is known what actions, rewards and extra model outputs are like."""
        return self.structure is not None


def read_header(directory: Path) -> Header | None:
    """The header of a data set; None where there is none. `UnreadableData` for something else or a newer version."""
    try:
        text = read_file(directory / NAME)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return header_of(text, str(directory / NAME))


def header_of(text: bytes, file: str) -> Header:
    """The header of a file's bytes. `UnreadableData` names the file of something else, or of a newer version."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableData(f"{file} is not JSON: {error}") from None
    with reading(file):
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise UnreadableData(f"it is not the header of a data set: it has no 'format': {FORMAT!r}")
        if found["version"] > VERSION:
            raise UnreadableData(
                f"it has version {found['version']} of the format; this library reads up to {VERSION}: update it"
            )
        return _from_json(unsigned(found, "it"))


def _from_json(found: dict[str, Any]) -> Header:
    return Header(
        observation_space=space_json.from_json(found["observation_space"]),
        action_space=space_json.from_json(found["action_space"]),
        env_spec=_spec_from_json(found["env_spec"]),
        metadata=_metadata_from_json(found["metadata"]),
        tracks={path: TrackField.from_json(known) for path, known in found["tracks"].items()},
        structure=found["structure"],
        id=_checked_id(found.get("id")),
    )


def _checked_id(id_: Any) -> str | None:
    if id_ is not None and not isinstance(id_, str):
        raise UnreadableData(f"the id {id_!r} is no text")
    return id_


def create_or_load_header(directory: Path, header: Header) -> Header:
    """Put the header there, whole or not at all, and return the one that is there then.

    The one that another writer has put there stays, but for what it did not know: what steps are like, and before there
    are any episodes the spaces.

    Raises:
        InvalidArgument, TrackMismatch: it is not like this one, see `check_given` and `check_tracks`.
        UnreadableData: it was removed meanwhile.
    """
    directory.mkdir(parents=True, exist_ok=True)
    new = replace(header, id=header.id or uuid.uuid4().hex)
    if put_header(directory, new, new=True):
        return new
    there = read_header(directory)
    if there is not None and header.known > there.known:
        put_header(directory, there.learning(header), new=False)
        there = read_header(directory)
    if there is None:
        raise UnreadableData(f"{directory / NAME} was removed while it was written")
    there.check_given(header)
    there.check_tracks(header.tracks, header.knows_steps)
    return there


def put_header(directory: Path, header: Header, *, new: bool) -> bool:
    """Put the header there; False where it is to be `new` and another writer's is there already."""
    value = header.to_json()
    parts = {name: sorted_json(part) for name, part in value.items()}
    whole = ", ".join(f'"{name}": {parts[name]}' for name in sorted(parts))  # as `sorted_json` writes the value
    parts["metadata"] = json.dumps(value["metadata"])  # a user's keys stay in their order
    lines = ",\n".join(f'"{name}": {part}' for name, part in parts.items())
    try:
        put(directory / NAME, f'{{\n{lines},\n"sum": "{sum_of_text(f"{{{whole}}}", algorithm())}"\n}}\n', new=new)
        return True
    except FileExistsError:
        return False


def _spec_to_json(spec: EnvSpec | str | None) -> Any:
    if spec is None or isinstance(spec, str):
        return spec
    if not isinstance(spec, EnvSpec):
        raise WrongType(f"env_spec is a {type(spec).__name__}; give an EnvSpec (env.spec), an id, or None")
    try:
        return json.loads(spec.to_json())
    except (TypeError, ValueError) as error:
        raise WrongType(f"env_spec: {spec.id} has what is no JSON ({error}); give its id, {spec.id!r}") from None


def _are_alike(spec: EnvSpec | str | None, other: EnvSpec | str | None) -> bool:
    """Whether two specs are written alike, and so are one when they are read."""
    return _spec_to_json(spec) == _spec_to_json(other)


def storable(spec: EnvSpec | None) -> EnvSpec | str | None:
    """The spec; its id where it has what JSON has not, such as a class as its entry point."""
    try:
        _spec_to_json(spec)
    except WrongType:
        return None if spec is None else spec.id
    return spec


def _spec_from_json(value: Any) -> EnvSpec | str | None:
    return EnvSpec.from_json(json.dumps(value)) if isinstance(value, dict) else value


def _metadata_to_json(metadata: dict[str, Any]) -> Any:
    """As JSON where that gives the same back, else msgpack in base64."""
    if not metadata:
        return {"json": {}}
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
