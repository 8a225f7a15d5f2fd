"""Malicious bytes are rejected and counted, and the receiver continues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq

from episodes import EpisodePack, MultiAgentEpisode
from episodes.errors import UnreadableData, WrongType
from episodes.multi_agent import pack_agents
from episodes.tracks.infos import msgpack_codec
from episodes.transport import EpisodeReceiver, EpisodeSender, known_schemas
from episodes.transport.messages import Head, MessageKind
from episodes.transport.parts import PartsReader
from episodes.transport.wire import Schemas, decoded, encoded, id_of, layouts_of
from tests.episodes.transport.traffic import SECONDS, drained, pack_of, until

STRANGER = b"stranger"


def packb(value: Any) -> bytes:
    return bytes(msgpack.packb(value) or b"")


def body_with(packs: list[EpisodePack], change: Callable[[list[Any]], object]) -> bytes:
    """Return the body of small packs after a change of the first pack's metadata."""
    (body,) = encoded(packs, Schemas()).parts()
    size, metadata = int.from_bytes(body[:4], "little"), PartsReader([body]).facts
    arrays = body[4 + size + (-4 - size) % 8 :]
    change(metadata[0])
    facts = packb(metadata)
    return len(facts).to_bytes(4, "little") + facts + bytes((-4 - len(facts)) % 8) + arrays


def schema_with(change: Callable[[list[Any]], object]) -> bytes:
    metadata = msgpack.unpackb(encoded([pack_of(0)], Schemas()).schema)
    change(metadata[0])
    return packb(metadata)


def box(*shape: int) -> dict[str, Any]:
    """Return a space with bounds that one number describes."""
    bound = {"dtype": "<f4", "shape": [*shape], "data": "AAAAAA=="}
    return {"type": "Box", "low": bound, "high": bound, "dtype": "<f4"}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, [2, "e0"]),
        (0, None),
        (1, None),
        (2, None),
        (2, {0: 0}),
        (slice(1, None), []),
        (0, packb([msgpack.ExtType(1, packb(["(,)f4", [1], b"abcd"]))])),
    ],
    ids=["text", "no ids", "no steps", "no endings", "endings by number", "ids alone", "a dtype that is no Python"],
)
def test_decode_invalid_metadata_raises(place: Any, value: Any) -> None:
    layouts = layouts_of(encoded([pack_of(0)], Schemas()).schema)
    with pytest.raises(UnreadableData):
        decoded(layouts, [body_with([pack_of(0)], lambda facts: facts[3].__setitem__(place, value))])


@pytest.mark.parametrize("custom_data", [[7], [[1, 2]], ["text"], {0: {}}])
def test_decode_custom_data_that_are_not_dicts_raises(custom_data: Any) -> None:
    body = body_with([pack_of(0)], lambda facts: facts.__setitem__(5, packb(custom_data)))
    with pytest.raises(UnreadableData):
        decoded(layouts_of(encoded([pack_of(0)], Schemas()).schema), [body])


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata: metadata.__setitem__(2, {"type": "Discrete", "n": -1, "start": 0, "dtype": "<i8"}),
        lambda metadata: metadata.__setitem__(2, {"type": "Text", "max_length": 1, "min_length": 2, "characters": "a"}),
        lambda metadata: metadata.__setitem__(2, box(1 << 14, 1 << 30)),
        lambda metadata: metadata.__setitem__(3, {"type": "Tuple", "spaces": [box(1 << 24)] * 100}),
        lambda metadata: metadata[0][0].__setitem__(0, 7),
        lambda metadata: metadata[0][0].__setitem__(1, "(,)f4"),
        lambda metadata: metadata[1]["dict"][3].__setitem__(1, {"tuple": []}),
        lambda metadata: metadata[0][2].__setitem__(2, [-1]),
        lambda metadata: metadata[0][0].__setitem__(2, [-1, 0]),
        lambda metadata: metadata[0][0].__setitem__(2, [2, -1]),
    ],
    ids=[
        "no choice",
        "no text",
        "a large box",
        "many boxes",
        "no path",
        "no dtype",
        "a tuple of outputs",
        "ragged rewards",
        "ragged items of no bytes",
        "ragged inside",
    ],
)
def test_layouts_of_impossible_schemas_raises_early(change: Callable[[list[Any]], object]) -> None:
    with pytest.raises(UnreadableData):
        layouts_of(schema_with(change))


def test_decode_deeply_nested_tuples_raises() -> None:
    nested: Any = 0
    for _ in range(64):
        nested = (nested,)
    assert msgpack_codec.decode(msgpack_codec.encode(nested, "custom_data")) == nested
    with pytest.raises(WrongType, match="64 tuples"):
        msgpack_codec.encode((nested,), "custom_data")
    data = packb([0])
    for _ in range(5000):
        data = packb([msgpack.ExtType(3, data)])
    with pytest.raises(UnreadableData, match="64 tuples"):
        msgpack_codec.decode(data)


# --- receivers ---


def agents() -> list[EpisodePack]:
    episode = MultiAgentEpisode(id_="both")
    episode.add_env_reset(observations={"a": np.zeros(2), "b": np.ones(2)})
    episode.add_env_step({"a": np.ones(2)}, {"a": 1, "b": 0}, {"a": 0.5})
    return pack_agents([episode])


def unfit(custom: bytes) -> bytes:
    """Return custom data of agents with an invalid index."""
    metadata = msgpack_codec.decode(custom)
    (record,) = metadata[0].values()
    record["place"] = []
    return msgpack_codec.encode(metadata, "custom_data")


def test_receiver_rejects_malicious_messages(tmp_path: Path) -> None:
    packs, context = agents(), zmq.Context()
    schema = encoded(packs, Schemas()).schema
    body = body_with(packs, lambda facts: facts.__setitem__(5, unfit(facts[5])))
    head = Head(MessageKind.MULTI_AGENT, 1, STRANGER, 0, id_of(schema))
    bad = schema_with(
        lambda metadata: metadata.__setitem__(2, {"type": "Discrete", "n": -1, "start": 0, "dtype": "<i8"})
    )
    with EpisodeReceiver(journal=tmp_path / "journal") as receiver, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(receiver.address)
        socket.send(Head(MessageKind.SCHEMA, 1, STRANGER, 0, id_of(bad)).packed() + bad)
        socket.send(Head(MessageKind.HELLO, 1, STRANGER, (1 << 64) - 1).packed())
        socket.send(Head(MessageKind.HELLO, 1, STRANGER).packed())
        socket.send(Head(MessageKind.SCHEMA, 1, STRANGER, 0, id_of(schema)).packed() + schema)
        socket.send(head.packed() + body)
        with EpisodeSender(receiver.address) as sender:
            sender.send(pack_of(0))
            assert receiver.recv(SECONDS) == pack_of(0)
            until(lambda: sum(receiver.stats.refused.values()) >= 3, lambda: drained(receiver, 0.01))
            assert receiver.stats.refused == {"broken schema": 1, "no header": 1, "broken message": 1}
            assert receiver.stats.lost == 0
    context.term()


def test_receiver_limits_space_items_of_all_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_schemas, "_MOST_ITEMS", 100_000)
    with EpisodeReceiver() as receiver, zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(receiver.address)
        for size in range(40_000, 40_010):
            schema = schema_with(lambda metadata, size=size: metadata.__setitem__(2, box(size)))
            socket.send(Head(MessageKind.SCHEMA, 1, STRANGER, 0, id_of(schema)).packed() + schema)
        with EpisodeSender(receiver.address) as sender:
            sender.send(pack_of(0))
            receiver.recv(SECONDS)
            assert 1 <= len(receiver._schemas) <= 3
