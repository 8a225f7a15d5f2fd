"""Files of every version and format are read, or refused by name; numbers in them are checked.

tests/make_format_files.py writes the files.
"""

from __future__ import annotations

import json
import pickle
import pickletools
import re
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

from connectors import Actor
from connectors.actor_file import read_actor, write_actor
from episode_learners import MLPPolicy
from episode_learners.loggers import CSVLogger
from episode_learners.trainers.checkpoint import load_checkpoint
from episodes import __version__, format_versions
from episodes.errors import EpisodeError, StateMismatch, UnreadableData
from episodes.replay import EpisodeReplayBuffer
from episodes.replay.ring.resume_point import read_document, write_document
from episodes.storage import EpisodeDataset, space_json
from episodes.storage.checksums import with_checksum
from episodes.storage.info_schema import InfoField
from episodes.storage.ledger import LedgerReader
from episodes.storage.search.splits import read_splits
from episodes.storage.search.statistics import TrackStatistics
from episodes.storage.track_schema import TrackField
from episodes.tracks.infos import msgpack_codec
from tests import make_format_files as files

ROOT = Path(__file__).parents[1]
VERSIONS = ("development-1", "development-2", __version__)
NO_NUMBER = "a format without a number; this version of rl-episodes reads format 1"


def unpacked(version: str, folder: Path) -> Path:
    with tarfile.open(files.FORMATS / f"{version}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {version: unpacked(version, tmp_path_factory.mktemp(version)) for version in VERSIONS}


def resumed(kind: str) -> Callable[[Path], bool]:
    def check(folder: Path) -> bool:
        trainer = files.trainer(kind, folder / kind)
        trainer.load(folder / kind / "checkpoint-000001.pt")
        return trainer.num_steps == 16 and trainer.num_epochs == 1

    return check


def message(folder: Path) -> bool:
    from episodes.transport.messages import SIZE, read_head
    from episodes.transport.wire import decoded, layouts_of

    schema, parts = msgpack.unpackb((folder / "message.msgpack").read_bytes())
    head: Any = read_head(parts[0])
    return head.number == 3 and decoded(layouts_of(schema), parts, SIZE) == [files.pack()]


def journal(folder: Path) -> bool:
    from episodes.transport.journal import Journal

    opened = Journal(folder / "journal")
    progress = opened.progress_of(b"sender01")
    opened.close()
    return progress is not None and progress.num_taken == 7


def stored(buffer: EpisodeReplayBuffer) -> list[Any]:
    return [(e.id_, e.get_observations().tolist(), e.get_rewards().tolist()) for e in buffer.iter_episodes()]


def replay(folder: Path) -> bool:
    with EpisodeReplayBuffer(files.CAPACITY, path=folder / "replay", resume=True) as buffer:
        return stored(buffer) == stored(files.buffer()) and buffer.num_sampled == 4


def tables(folder: Path) -> bool:
    rows = CSVLogger(folder / "ppo").rows("update")
    return [row["step"] for row in rows] == ["8", "16"] and json.loads((folder / "ppo" / "run.json").read_text())[
        "configuration"
    ] == {"kind": "ppo"}


def actor(folder: Path) -> bool:
    made = Actor.load(folder / "policy.actor", MLPPolicy(*files.SPACES, hidden_sizes=(4,)))
    return [made.act(row)[0] for row in files.pack().observations] == json.loads((folder / "acted.json").read_text())


def model(folder: Path) -> bool:
    from connectors.export.serve import ServedPolicy

    policy = ServedPolicy(folder / "policy.onnx")
    actions = [int(policy.act(row, first=True)) for row in files.pack().observations]
    return actions == json.loads((folder / "acted.json").read_text())


def unpickled(name: str) -> Callable[[Path], bool]:
    def check(folder: Path) -> bool:
        value, like = pickle.loads((folder / f"{name}.pickle").read_bytes()), files.PICKLED[name]()
        if isinstance(value, EpisodeReplayBuffer):
            return stored(value) == stored(like)
        if name == "batch":
            return all(np.array_equal(getattr(value, column), getattr(like, column)) for column in ("obs", "rewards"))
        if name == "multi_agent_episode":
            return value.get_observations() == like.get_observations() and value.get_return() == like.get_return()
        return value == like if name == "pack" else value.equals(like)

    return check


NOT_YET = "not yet"
CHECKPOINT = "format 1; this version of rl-episodes reads format 2; resume the run with the version that wrote it"
READS: dict[str, tuple[Callable[[Path], bool], dict[str, str]]] = {
    # What reads the files, and why files of earlier versions are refused.
    "data set": (lambda folder: EpisodeDataset(folder / "data_set", verify=True).pack() == files.pack(), {}),
    "ragged data set": (
        lambda folder: EpisodeDataset(folder / "data_set_ragged", verify=True).pack()[0].equals(files.talk()),
        {"development-1": NOT_YET},
    ),
    "checkpoint": (resumed("ppo"), dict.fromkeys(VERSIONS[:2], CHECKPOINT)),
    "checkpoint with replay": (resumed("dqn"), dict.fromkeys(VERSIONS[:2], CHECKPOINT)),
    "ledger": (lambda folder: [update.update for update in LedgerReader(folder / "ppo")] == [1, 2], {}),
    "tables": (tables, {}),
    "actor": (actor, {"development-1": NOT_YET}),
    "exported model": (model, {"development-1": NOT_YET}),
    "replay files": (
        replay,
        {"development-1": "state.msgpack is not the state of a replay buffer of a released version"},
    ),
    "journal": (
        journal,
        {"development-1": "format 1; this version of rl-episodes reads format 2; finish its messages"},
    ),
    "message": (message, {}),
    "pickled episode": (unpickled("growing_episode"), dict.fromkeys(VERSIONS[:2], NO_NUMBER)),
    "pickled pack": (unpickled("pack"), dict.fromkeys(VERSIONS[:2], NO_NUMBER)),
    "pickled game": (unpickled("multi_agent_episode"), dict.fromkeys(VERSIONS[:2], NO_NUMBER)),
    "pickled replay buffer": (unpickled("replay_buffer"), dict.fromkeys(VERSIONS[:2], NO_NUMBER)),
    "pickled batch": (unpickled("batch"), {}),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", READS)
def test_files_of_each_version_are_read_or_refused_by_name(kind: str, version: str, folders: dict[str, Path]) -> None:
    read, refused = READS[kind]
    if refused.get(version) == NOT_YET:
        return
    if version in refused:
        with pytest.raises(EpisodeError, match=re.escape(refused[version])):
            read(folders[version])
        return
    assert read(folders[version])


def keys_of(value: Any) -> Any:
    """Return the keys of nested dicts with string keys, and the types of their values."""
    if isinstance(value, dict) and all(type(key) is str for key in value):
        names = {key: "id" if re.fullmatch("[0-9a-f]{32}", key) else key for key in value}
        return {names[key]: keys_of(part) for key, part in sorted(value.items())}
    if isinstance(value, (list, tuple)) and value:
        return [type(value).__name__, *{json.dumps(keys_of(part)): None for part in value}]
    return type(value).__name__


def contents_of(folder: Path) -> dict[str, Any]:
    """Return what the files of each format consist of: names and types, without values."""
    from connectors.export.serve import ServedPolicy

    (shard,) = (folder / "data_set").glob("*.arrow")
    arrow = pytest.importorskip("pyarrow")
    metadata = arrow.ipc.open_file(shard).schema
    (ledger,) = (folder / "ppo" / "ledger").glob("*.arrow")
    used = ("GLOBAL", "STACK_GLOBAL")
    pickles = {}
    for name in files.PICKLED:
        operations = list(pickletools.genops((folder / f"{name}.pickle").read_bytes()))
        texts = {arg for code, arg, _ in operations if code.name in ("SHORT_BINUNICODE", "BINUNICODE", *used)}
        pickles[name] = sorted(text for text in texts if isinstance(text, str) and text.startswith("episodes"))
    return {
        "data set": keys_of(json.loads((folder / "data_set" / "episodes.json").read_text())),
        "shards": sorted((field.name, str(field.type)) for field in metadata),
        "ledger": sorted((field.name, str(field.type)) for field in arrow.ipc.open_file(ledger).schema),
        "ppo": keys_of(load_checkpoint(folder / "ppo" / "checkpoint-000001.pt")),
        "dqn": keys_of(load_checkpoint(folder / "dqn" / "checkpoint-000001.pt")),
        "actor": keys_of(read_actor(folder / "policy.actor")),
        "model": keys_of(ServedPolicy(folder / "policy.onnx").about),
        "replay": keys_of(read_document(folder / "replay" / "state.msgpack")[1]),
        "replay files": sorted(file.name for file in (folder / "replay").iterdir() if file.name != "lock"),
        "message": len(msgpack.unpackb((folder / "message.msgpack").read_bytes())[1][0]),
        "journal": (folder / "journal").stat().st_size,
        "pickles": pickles,
    }


def test_content_of_files_changes_with_a_version_only(folders: dict[str, Path], tmp_path: Path) -> None:
    for write in files.WRITERS:
        write(tmp_path)
    now, kept = contents_of(tmp_path), contents_of(folders[__version__])
    for name, content in now.items():
        assert content == kept[name], (
            f"{name}: raise its number in episodes/format_versions.py if {__version__} was released, and write the "
            "files of this version: python -m tests.make_format_files"
        )


def test_page_lists_the_version_of_each_format() -> None:
    table = dict(re.findall(r"^\| ([^|]+?) \| `(\w+)` \| \d+ ", (ROOT / "docs" / "stability.md").read_text(), re.M))
    numbers = re.findall(r"^\| [^|]+ \| `(\w+)` \| (\d+) ", (ROOT / "docs" / "stability.md").read_text(), re.M)
    constants = {name: value for name, value in vars(format_versions).items() if name.isupper() and type(value) is int}
    assert {name: int(number) for name, number in numbers} == constants
    assert len(table) == len(constants)
    serve = (ROOT / "connectors" / "export" / "serve.py").read_text()
    assert f"_FORMAT = {format_versions.EXPORTED_MODEL} " in serve


# --- numbers that are read ------------------------------------------------------------------------------------------

NO_INTEGERS: list[Any] = [True, False, 1.0, -1, -(2**40), "1", None, [1], float("nan"), float("inf")]
NO_VERSIONS = [*NO_INTEGERS, 0, 99, 2**70]


def data_set_with_version(folder: Path, version: Any) -> None:
    file = unpacked(__version__, folder) / "data_set" / "episodes.json"
    value = json.loads(file.read_text())
    value.pop("sum")
    file.write_text(json.dumps(with_checksum({**value, "version": version})))
    EpisodeDataset(folder / "data_set")


def checkpoint_with_version(folder: Path, version: Any) -> None:
    torch.save({"format": version, "state": {}}, folder / "x.pt")
    load_checkpoint(folder / "x.pt")


def model_with_version(folder: Path, version: Any) -> None:
    import onnx

    from connectors.export.serve import ServedPolicy

    model = onnx.load(unpacked(__version__, folder) / "policy.onnx")
    (entry,) = (entry for entry in model.metadata_props if entry.key == "rl_episodes")
    entry.value = json.dumps({**json.loads(entry.value), "format": version, "sha256": "0" * 64})
    from connectors.export.onnx_file import to_bytes

    (folder / "policy.onnx").write_bytes(to_bytes(model))
    ServedPolicy(folder / "policy.onnx")


def buffer_with_version(folder: Path, version: Any) -> None:
    files.buffer().set_state({**files.buffer().get_state(), "format": version})


def file_with_version(name: str, kind: bytes, read: Callable[[Path], Any]) -> Callable[[Path, Any], None]:
    def check(folder: Path, version: Any) -> None:
        file = unpacked(__version__, folder) / name
        data = file.read_bytes()
        text = str(version).encode()
        file.write_bytes(kind + text[:20] + data[len(kind) + len(text[:20]) :])
        read(folder)

    return check


def pickle_with_version(folder: Path, version: Any) -> None:
    make, arguments = files.pack().__reduce_ex__(5)
    make(version, *arguments[1:])


VERSIONED: dict[str, Callable[[Path, Any], None]] = {
    "data set": data_set_with_version,
    "checkpoint": checkpoint_with_version,
    "exported model": model_with_version,
    "state of a replay buffer": buffer_with_version,
    "replay files": file_with_version("replay/state.msgpack", b"rl-episodes replay ", replay),
    "journal": file_with_version("journal", b"REjournal", journal),
    "actor": file_with_version("policy.actor", b"RLACTOR", actor),
    "pickle": pickle_with_version,
}


@pytest.mark.parametrize("kind", VERSIONED)
def test_other_versions_are_refused(kind: str, tmp_path: Path) -> None:
    for number, version in enumerate(NO_VERSIONS):
        if isinstance(version, (list, str)) and kind in ("replay files", "journal", "actor"):
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(ValueError, match=r"format|protocol|is not a|damaged"):
            VERSIONED[kind](folder, version)


def discrete(n: Any = 2, start: Any = 0) -> Any:
    return space_json.from_json({"type": "Discrete", "n": n, "start": start, "dtype": "<i8"})


def array(size: Any, key: str = "nvec") -> Any:
    value = {"dtype": "<i8", "shape": [size], "data": "AQAAAAAAAAA="}
    space = {"type": "MultiDiscrete", "nvec": value, "start": value, "dtype": "<i8"}
    return space_json.from_json(space)


def info_array(size: Any) -> Any:
    return msgpack_codec.decode(msgpack.packb(msgpack.ExtType(1, msgpack.packb(["<i8", [size], bytes(8)]))) or b"")


def checkpoint_array(size: Any, folder: Path) -> Any:
    value = {"__array__": torch.zeros(8, dtype=torch.uint8), "dtype": "<i8", "shape": [size]}
    torch.save({"format": format_versions.CHECKPOINT, "state": {"a": value}}, folder / "x.pt")
    return load_checkpoint(folder / "x.pt")


def changed_actor(change: Callable[[Any], Any], folder: Path) -> Any:
    """Write an actor's file with an array whose header is changed, and a right checksum."""
    import hashlib

    write_actor(folder / "x", {"a": np.arange(1)})
    data = (folder / "x").read_bytes()
    size = int.from_bytes(data[40:48], "little")
    header = json.dumps(change(json.loads(data[48 : 48 + size]))).encode()
    body = len(header).to_bytes(8, "little") + header + data[48 + size :]
    (folder / "x").write_bytes(data[:8] + hashlib.sha256(body).digest() + body)
    return read_actor(folder / "x")


def schema(shape: Any) -> Any:
    from episodes.transport.wire import layouts_of

    tracks = [[name, "<f4", shape] for name in ("observations", "actions", "rewards")]
    tracks[2][2] = []
    structure = {"dict": [*([name, name] for name, _, _ in tracks), ["extra_model_outputs", {"dict": []}]]}
    return layouts_of(msgpack.packb([[tracks, structure, None, None]]) or b"")


def split(folder: Path, **parts: Any) -> Any:
    value = {"train": {"from": 0.0, "to": 0.5, "seed": 0, **parts}}
    (folder / "splits.json").write_text(json.dumps(with_checksum(value)))
    return read_splits(folder)


def ring_number(name: str, value: Any, folder: Path) -> None:
    unpacked(__version__, folder)
    file = folder / "replay" / "state.msgpack"
    content = read_document(file)[1]
    write_document(file, {**content, "numbers": {**content["numbers"], name: value}})
    replay(folder)


def statistics(size: Any) -> Any:
    value = TrackStatistics.of(np.arange(3.0)[:, None]).to_json()
    return TrackStatistics.from_json({**value, "shape": [size]})


INTEGERS: dict[str, Callable[[Any, Path], Any]] = {
    # Each reads 1 in the place of its argument.
    "shape of a track": lambda x, _: TrackField.from_json({"dtype": "<f4", "shape": [4, x], "compression": "none"}),
    "shape of an info": lambda x, _: InfoField.from_json({"dtype": "<f4", "shape": [x], "plain": False}),
    "shape of an array of a space": lambda x, _: array(x),
    "n of Discrete": lambda x, _: discrete(x),
    "n of MultiBinary": lambda x, _: space_json.from_json({"type": "MultiBinary", "n": x}),
    "shape of MultiBinary": lambda x, _: space_json.from_json({"type": "MultiBinary", "n": [2, x]}),
    "max_length of Text": lambda x, _: space_json.from_json(
        {"type": "Text", "min_length": 0, "max_length": x, "characters": "ab"}
    ),
    "min_length of Text": lambda x, _: space_json.from_json(
        {"type": "Text", "min_length": x, "max_length": 3, "characters": "ab"}
    ),
    "shape of an array in msgpack": lambda x, _: info_array(x),
    "shape of an array in a checkpoint": checkpoint_array,
    "shape of an array of an actor": lambda x, folder: changed_actor(
        lambda header: {**header, "arrays": [["<i8", [x]]]}, folder
    ),
    "shape of a message": lambda x, _: schema([2, x]),
    "shape of statistics": lambda x, _: statistics(x),
    **{
        f"{name} of replay files": lambda x, folder, name=name: ring_number(name, x, folder)
        for name in ("num_rows", "tail", "head", "rows_head", "window")
    },
}


@pytest.mark.parametrize("place", INTEGERS)
def test_what_is_no_integer_of_its_range_is_refused(place: str, tmp_path: Path) -> None:
    read = INTEGERS[place]
    if "replay files" not in place:
        read(1, tmp_path)
    for value in NO_INTEGERS:
        if "MultiBinary" in place and isinstance(value, list):
            continue  # a shape
        with pytest.raises(UnreadableData):
            read(value, tmp_path)


def test_other_numbers_of_headers_are_checked(tmp_path: Path) -> None:
    for value in [True, 1.0, "1", None]:
        with pytest.raises(UnreadableData):
            discrete(start=value)
        with pytest.raises(UnreadableData):
            split(tmp_path, seed=value)
    assert discrete(start=-(2**40)).start == -(2**40)
    for parts in ({"from": True}, {"to": 2}, {"to": 0.0}, {"from": float("nan")}, {"to": "1"}):
        with pytest.raises(UnreadableData, match=r"splits\.json"):
            split(tmp_path, **parts)
    with pytest.raises(UnreadableData):  # -1 stands for items of different lengths at the beginning alone
        TrackField.from_json({"dtype": "<f4", "shape": [4, -1], "compression": "none"})
    for value in (True, -1, 1.0):
        with pytest.raises(UnreadableData):
            changed_actor(lambda header, value=value: {**header, "tree": {"array": value}}, tmp_path)
        with pytest.raises(UnreadableData):  # as -1, but a float or a bool
            schema([float(-1), 2])


def test_head_of_a_message_of_another_protocol_names_both() -> None:
    from episodes.transport.messages import SIZE, read_head

    data = bytearray(SIZE)
    struct.pack_into("<4sB", data, 0, b"REps", 7)
    assert read_head(bytes(data)) == "protocol 7, not 1"


def test_state_without_a_version_is_refused_and_changes_nothing() -> None:
    buffer = files.buffer()
    before = stored(buffer)
    state = {name: part for name, part in buffer.get_state().items() if name != "format"}
    with pytest.raises(StateMismatch, match=r"EpisodeReplayBuffer: a format without a number.*to_dataset"):
        buffer.set_state(state)
    assert stored(buffer) == before
