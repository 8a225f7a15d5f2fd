"""Packs as bytes: what is read is what was written, and bytes of anything else are refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import EpisodePack, Ragged
from episodes.errors import UnreadableData, WrongType
from episodes.facts import VersionRuns
from episodes.facts.facts import FACTS
from episodes.testing import strategies
from episodes.transport.facts_codec import READERS, decode_lengths
from episodes.transport.messages import Head, MessageKind, read_head
from episodes.transport.parts import SMALL, PartsWriter
from episodes.transport.weights import decoded_weights, encoded_weights
from episodes.transport.wire import Message, Schemas, decoded, encoded, encoded_as_one, layouts_of
from tests.code_rules import ROOT


def pack_of(num: int, steps: int, item: tuple[int, ...] = (4,), **options: Any) -> EpisodePack:
    rows = np.arange(num * (steps + 1) * int(np.prod(item))).reshape(-1, *item)
    return EpisodePack(
        observations={"camera": rows.astype(np.float32), "pair": (rows, rows[:, :1] > 3)},
        actions=np.arange(num * steps),
        rewards=np.linspace(0, 1, num * steps, dtype=np.float32),
        lengths=np.full(num, steps),
        terminated=np.arange(num) % 2 == 0,
        **options,
    )


def travelled(message: Message) -> list[EpisodePack]:
    parts = [bytes(part) for part in message.parts()]
    assert message.nbytes == sum(map(len, parts))
    return decoded(layouts_of(message.schema), parts)


def check_same(result: EpisodePack, expected: EpisodePack) -> None:
    assert result == expected
    assert {path: a.dtype for path, a in result.tracks.items()} == {
        path: a.dtype for path, a in expected.tracks.items()
    }
    assert result.facts.spaces == expected.facts.spaces
    assert (result.policy_versions is None) == (expected.policy_versions is None)
    assert not any(array.flags.writeable for array in result.tracks.values())


IDS = st.lists(st.text(st.characters(codec=None), max_size=3), min_size=5, max_size=5) | st.sampled_from(
    [[1, ("b", 2), "c", "d", "e"], ["a\0", "b", "c", "d", "e"], [1, 2, 3, 4, 5], ["name"] * 5]
)
VERSIONS = st.none() | st.sampled_from([7, 0, None]).map(lambda version: [version] * 5) | st.just([0, None, 9, 5, 9])


@settings(max_examples=60)
@given(strategies.packs(ragged=None), IDS, VERSIONS, st.booleans())
def test_decoded_packs_equal_encoded_ones(pack: EpisodePack, ids: Any, versions: Any, has_agents: bool) -> None:
    num = len(pack)
    pack = pack.replace(ids=ids[:num])
    if versions is not None:
        pack = pack.replace(policy_versions=versions[:num])
    if has_agents:
        pack = pack.replace(agent_ids=["a", None, 7, "b", "c"][:num])
    reversed_pack, schemas = pack.select(list(range(num))[::-1]), Schemas()
    for given_pack in (pack, pack, pack[1:], pack[:0], reversed_pack):
        message = encoded([given_pack], schemas)
        (result,) = travelled(message)
        check_same(result, given_pack)
        if given_pack.lengths.all():  # versions of chunks without steps count too
            check_versions(message, given_pack)
    for result, given_pack in zip(
        travelled(encoded([pack, reversed_pack], schemas)), (pack, reversed_pack), strict=True
    ):
        check_same(result, given_pack)
    message = encoded_as_one([pack[1:], pack, reversed_pack], schemas)
    (part,) = message.parts(bytes(64))
    assert len(part) == 64 + message.nbytes
    (result,) = travelled(message)
    check_same(result, EpisodePack.concat([pack[1:], pack, reversed_pack]))


def check_versions(message: Message, pack: EpisodePack) -> None:
    """Check the lowest and highest policy version of all steps that a message states."""
    versions = pack.get_policy_versions()
    known = versions.max(initial=-1) >= 0
    assert message.versions == ((versions.min(), versions.max()) if known else None)


@pytest.mark.parametrize("dtype", ["f2", ">f8", "?", "U3", "S2", "M8[s]", "c8", "u8"])
@pytest.mark.parametrize("steps", [3, 40, 9000])
@pytest.mark.parametrize("encode", [encoded, encoded_as_one])
def test_strided_arrays_of_every_dtype_arrive(encode: Callable[..., Message], steps: int, dtype: str) -> None:
    wide = np.arange(6 * (steps + 1)).reshape(steps + 1, 6).astype("M8[s]" if "M" in dtype else "i8").astype(dtype)
    pack = EpisodePack(
        observations={"gaps": wide[:, ::2], "turned": np.asfortranarray(wide)},
        actions=wide[:0:-1, 0],
        rewards=np.arange(2 * steps)[::-2],
        lengths=[steps],
        infos=[{"large": wide[0]}] * (steps + 1) if dtype == "f2" else None,
    )
    (result,) = travelled(encode([pack], Schemas()))
    check_same(result, pack)


@pytest.mark.parametrize("num", [3, 100])
@pytest.mark.parametrize(("length", "missing"), [(-1, 0), (1 << 62, 0), (1, 1)])
def test_decode_impossible_lengths_raises(num: int, length: int, missing: int) -> None:
    metadata = np.full(num - missing, length, np.int64).tobytes()
    with pytest.raises((UnreadableData, TypeError)):  # which `decoded` makes one of
        decode_lengths(metadata, num)


def test_versions_that_change_within_an_episode_arrive() -> None:
    pack = pack_of(3, 2, policy_versions=[VersionRuns((1, 2), (1,)), None, 9])
    for num in (1, 2):
        for encode in (encoded, encoded_as_one):
            message = encode([pack] * num, Schemas())
            assert message.versions == (-1, 9)
            assert travelled(message)[0].facts.policy_versions[:3] == pack.facts.policy_versions


@pytest.mark.parametrize("place", [0, 50, 99])
def test_decode_invalid_ending_raises(place: int) -> None:
    codes = np.arange(100, dtype=np.uint8) % 4
    read = READERS[[*FACTS].index("ending")]
    assert read(codes.tobytes(), 100).tolist() == codes.tolist()
    codes[place] = 4
    with pytest.raises(UnreadableData):
        read(codes.tobytes(), 100)


def test_encoded_does_not_copy_large_arrays() -> None:
    pack = EpisodePack(
        observations=np.zeros((65, 84, 84), np.uint8),
        actions=np.zeros(64, np.int64),
        rewards=np.zeros(64),
        lengths=[64],
    )
    message = encoded([pack], Schemas())
    assert len(message.parts()) == 2
    assert np.shares_memory(np.frombuffer(message.parts()[1], np.uint8), pack.observations)
    assert len(message.parts()[0]) < SMALL
    (result,) = decoded(layouts_of(message.schema), message.parts())
    assert np.shares_memory(result.observations, pack.observations)


def test_packs_of_one_schema_share_its_id() -> None:
    schemas = Schemas()
    first, second = (encoded([pack_of(num, 5)], schemas) for num in (1, 7))
    third = encoded([pack_of(1, 5, item=(3,))], schemas)
    assert first.schema_id == second.schema_id == Schemas().of([pack_of(2, 1)])[1]
    assert first.schema_id != third.schema_id
    camera, pair = spaces.Box(-1, 1, (4,)), spaces.Tuple((spaces.Box(-1, 1, (4,)), spaces.MultiBinary(1)))
    spaced = pack_of(1, 5, observation_space=spaces.Dict({"camera": camera, "pair": pair}))
    assert encoded([spaced], schemas).schema_id != first.schema_id


def test_encode_invalid_value_names_it() -> None:
    with pytest.raises(WrongType, match=r"custom_data\[0\]\['f'\]"):
        encoded([pack_of(1, 2, custom_data=[{"f": object()}])], Schemas())
    with pytest.raises(WrongType, match=r"infos\['f'\]"):
        encoded([pack_of(1, 2, infos=[{"f": object()}] * 3)], Schemas())
    with pytest.raises(WrongType, match="action_space: a Graph space"):
        encoded([pack_of(1, 2, action_space=spaces.Graph(spaces.Box(0, 1), None))], Schemas())


def ragged_pack() -> EpisodePack:
    """Return a pack with ragged observations, actions and outputs. One output has other lengths than the actions."""
    lengths = np.array([3, 0, 2, 1])
    actions = Ragged.from_lengths(np.arange(6, dtype=np.int32), lengths)
    return EpisodePack(
        observations={"tokens": Ragged.from_lengths(np.arange(9), [1, 2, 3, 0, 1, 2]), "flag": np.arange(6) > 2},
        actions=actions,
        rewards=np.zeros(4),
        lengths=[1, 3],
        extra_model_outputs={
            "token_logp": actions.astype(np.float32),
            "parts": {"words": Ragged.from_lengths(np.arange(4, dtype=np.uint8), [4, 0, 0, 0])},
        },
    )


@pytest.mark.parametrize("encode", [encoded, encoded_as_one])
def test_ragged_packs_arrive_with_shared_offsets(encode: Callable[..., Message]) -> None:
    pack = ragged_pack()
    for packs in ([pack], [pack[1:]]):
        (result,) = travelled(encode(packs, Schemas()))
        check_same(result, packs[0])
        assert result.extra_model_outputs["token_logp"].offsets is result.actions.offsets
    (result,) = travelled(encoded_as_one([pack, pack[:1], pack.select([1, 0])], Schemas()))
    check_same(result, EpisodePack.concat([pack, pack[:1], pack.select([1, 0])]))


def test_decode_impossible_lengths_of_ragged_items_raises() -> None:
    pack = ragged_pack()
    layouts, body = layouts_of(encoded([pack], Schemas()).schema), bytes(encoded([pack], Schemas()).parts()[0])
    lengths = pack.actions.lengths.astype(np.uint32).tobytes()
    assert body.count(lengths) == 1
    for wrong in ([2**32 - 1] * 4, [3, 0, 2, 2], [0, 0, 0, 0], [2**31, 2**31, 0, 0]):
        with pytest.raises(UnreadableData):
            decoded(layouts, [body.replace(lengths, np.array(wrong, np.uint32).tobytes())])


@settings(max_examples=100)
@given(data=st.data())
@pytest.mark.parametrize("is_ragged", [False, True])
def test_decode_damaged_message_raises_or_returns_a_pack(is_ragged: bool, data: st.DataObject) -> None:
    """Check random damage of messages. Damage inside numbers cannot be detected."""
    pack = ragged_pack() if is_ragged else pack_of(2, 3, infos=[{"a": 1.5, "b": [i]} for i in range(8)])
    message = encoded([pack], Schemas())
    body = bytearray(bytes(message.parts()[0]))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))]) if data.draw(st.booleans()) else bytes(body)
    try:
        (result,) = decoded(layouts_of(message.schema), [cut])
    except UnreadableData:
        return
    result.check()
    assert len(list(result)) == len(result)


@pytest.mark.parametrize(
    "schema",
    [
        b"",
        b"random",
        msgpack.packb([]),
        msgpack.packb(7),
        msgpack.packb([[[["observations", "|O", []]], "observations", None, None]]),
        msgpack.packb([[[["observations", "f4,f4", []]], "observations", None, None]]),
        msgpack.packb([[[["observations", "<f4", [-1]]], "observations", None, None]]),
        msgpack.packb([[[["observations", "<f4", [-1, 0]]], "observations", None, None]]),
        msgpack.packb([[[["observations", "<f4", [-2]]], "observations", None, None]]),
        msgpack.packb([[[["observations", "<f4", [2]]], "elsewhere", None, None]]),
        msgpack.packb([[[], {"dict": []}, {"type": "Pickle"}, None]]),
    ],
)
def test_layouts_of_random_bytes_raises(schema: bytes) -> None:
    with pytest.raises(UnreadableData):
        layouts_of(schema)


@settings(max_examples=50)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_rejected_by_every_decoder(data: bytes) -> None:
    assert isinstance(read_head(data), str)
    with pytest.raises(UnreadableData):
        layouts_of(data)
    with pytest.raises(UnreadableData):
        decoded(layouts_of(encoded([pack_of(1, 2)], Schemas()).schema), [data])
    with pytest.raises(UnreadableData):
        decoded_weights(0, [data])


def test_decode_wrong_sizes_allocates_nothing() -> None:
    message = encoded([pack_of(1, 2)], Schemas())
    for lengths in ([2**62], [-1], [2**39]):
        facts = [[1, np.array(lengths).tobytes(), None, [], None, None]]
        with pytest.raises(UnreadableData):
            decoded(layouts_of(message.schema), [b"".join(PartsWriter().body(facts))])


def test_read_head_returns_the_packed_head() -> None:
    head = Head(MessageKind.DATA, 2, b"12345678", 5, 2**63, 1.5, -3, 7)
    assert read_head(head.packed()) == head
    assert read_head(b"REps" + bytes([99]) + head.packed()[5:]) == "protocol 99, not 1"


def test_decoded_weights_equal_encoded_ones() -> None:
    layer = {"w": np.ones((200, 30), np.float32), "b": np.zeros(3)}
    weights = {"layer": layer, "pair": (np.float64(2), np.ones((), int))}
    version, result = decoded_weights(7, [bytes(part) for part in encoded_weights(weights)])
    assert version == 7
    assert result["layer"]["w"].dtype == np.float32
    np.testing.assert_array_equal(result["layer"]["w"], layer["w"])
    assert [value.shape for value in result["pair"]] == [(), ()]
    with pytest.raises(WrongType, match="'f'"):
        encoded_weights({"f": object()})


def test_transport_imports_without_pyarrow_and_pyzmq() -> None:
    script = "import sys, episodes.transport; print('pyarrow' in sys.modules, 'zmq' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.split() == ["False", "False"]
