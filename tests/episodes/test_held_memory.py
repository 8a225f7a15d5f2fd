"""`retained_nbytes` of packs, and copied packs."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from episodes import EpisodePack
from episodes.tracks.ragged import Ragged
from episodes.tracks.retained_memory import retained_nbytes
from tests.strategies import episodes


def large(num: int = 20, **options: Any) -> EpisodePack:
    rows = 50 * num
    return EpisodePack(
        observations={"x": np.arange(3.0 * (rows + num)).reshape(-1, 3), "y": np.zeros(rows + num, np.uint8)},
        actions=np.arange(rows),
        rewards=np.zeros(rows, np.float32),
        lengths=[50] * num,
        **options,
    )


def sent_all(packs: list[EpisodePack]) -> list[EpisodePack]:
    """Return the packs of a message, decoded from copies of its parts."""
    from episodes.transport.wire import Schemas, decoded, encoded, layouts_of

    message = encoded(packs, Schemas())
    return decoded(layouts_of(message.schema), [bytes(part) for part in message.parts()])


def sent(pack: EpisodePack) -> EpisodePack:
    return sent_all([pack])[0]


def pickled_apart(pack: EpisodePack) -> EpisodePack:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(pack, 5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer) for buffer in buffers])


def all_arrays(pack: EpisodePack) -> list[np.ndarray]:
    tracks: list[Any] = [*pack.tracks.values()]
    tracks = [part for track in tracks for part in ([track.flat, track.bounds] if type(track) is Ragged else [track])]
    return [*tracks, *pack.infos.arrays(), pack.lengths, pack.lookbacks, pack.ids, pack.t_started]


def test_retained_nbytes_counts_shared_buffer_once() -> None:
    memory, words = np.zeros(1000), bytes(800)
    assert retained_nbytes([memory[3:5], memory[10:].reshape(10, -1), memory.view(np.uint8)]) == 8000
    assert retained_nbytes([np.frombuffer(words, np.int64, 2), np.frombuffer(memoryview(words)[16:], np.uint8)]) == 800
    assert retained_nbytes([]) == 0


def test_retained_nbytes_of_foreign_buffer_counts_view() -> None:
    class Shown:
        def __init__(self, array: np.ndarray) -> None:
            self.array, self.__array_interface__ = array, array.__array_interface__

    tensor = torch.zeros(5, 2)
    for array in (tensor.numpy(), np.from_dlpack(tensor), np.asarray(Shown(np.zeros(5)))):
        assert retained_nbytes([array, array[1:]]) == 40
    pack = EpisodePack(observations=tensor.numpy(), actions=np.zeros(4), rewards=np.zeros(4), lengths=[4])
    assert pack.retained_nbytes == 40 + 32 + 32


@pytest.mark.parametrize("brought", [sent, pickled_apart, lambda pack: pack])
def test_part_of_pack_retains_whole_pack_until_copied(brought: Any) -> None:
    infos = [{"n": i, "words": ["a", i]} for i in range(1020)]
    pack = brought(large(infos=infos))
    part = pack[3:5]
    assert pack.retained_nbytes >= pack.nbytes
    assert part.nbytes == pack.nbytes // 10
    assert part.retained_nbytes == pack.retained_nbytes
    stored = part.copied()
    assert stored == part
    assert stored.nbytes <= stored.retained_nbytes < pack.nbytes
    assert not any(np.shares_memory(a, b) for a in all_arrays(stored) for b in all_arrays(pack))


@given(drawn=episodes(), num=st.integers(1, 3), apart=st.booleans())
def test_copied_pack_is_equal_and_independent(drawn: Any, num: int, apart: bool) -> None:
    pack = EpisodePack.from_episodes([drawn[1]] * num)
    pack = pickled_apart(pack) if apart else pack
    copied = pack.copied()
    assert copied == pack
    assert not any(track.flags.writeable for track in copied.tracks.values())
    assert not any(map(np.shares_memory, all_arrays(copied), all_arrays(pack)))
