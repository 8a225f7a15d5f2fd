"""Growing episodes store small observations as bytes, which no reader can tell from a list of copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from episodes import SingleAgentEpisode
from episodes.errors import EpisodeError
from episodes.tracks.track import MOST_BYTES

DTYPES = ("f4", "f8", "f2", "i8", "u1", "?", "c8", ">f4", "U3", "m8[s]")
SHAPES = ((), (0,), (1,), (3,), (2, 2), (MOST_BYTES,))


def _observation(dtype: str, shape: tuple[int, ...], number: int) -> np.ndarray:
    return (np.arange(np.prod(shape, dtype=int)) + number).astype("i8").astype(dtype).reshape(shape)


def _assert_same(given_items: Any, expected: list[np.ndarray]) -> None:
    assert len(given_items) == len(expected)
    for item, right in zip(given_items, expected, strict=True):
        assert type(item) is np.ndarray or not right.shape
        assert (item.dtype, item.shape, item.tobytes()) == (right.dtype, right.shape, right.tobytes())


class _Pair:
    """A growing episode and the list of copies that it should equal."""

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape, self.number = dtype, shape, 0
        self.buffer = _observation(dtype, shape, 0)
        self.episode = SingleAgentEpisode()
        self.episode.add_env_reset(self.buffer)
        self.expected = [self.buffer.copy()]

    def next(self, dtype: str | None = None) -> np.ndarray:
        self.number += 1
        return _observation(dtype or self.dtype, self.shape, self.number)

    def add(self) -> None:
        """Add a step with a buffer that the environment overwrites later."""
        self.buffer[...] = self.next()
        self.episode.add_env_step(self.buffer, 0, 1.0)
        self.expected.append(self.buffer.copy())

    def add_without_copy(self) -> None:
        item = self.next()
        self.episode.add_env_step(item, 0, 1.0, copy=False)
        self.expected.append(item)

    def add_strided(self) -> None:
        item = np.asfortranarray(np.repeat(self.next()[None], 2, 0))[0]
        self.episode.add_env_step(item, 0, 1.0)
        self.expected.append(item.copy())

    def add_other_dtype(self) -> None:
        if self.dtype not in ("U3", "m8[s]"):
            item = self.next("i4")
            self.episode.add_env_step(item, 0, 1.0)
            self.expected.append(item)

    def add_rejected(self) -> None:
        with pytest.raises(EpisodeError):
            self.episode.add_env_step(self.next(), 0, 1.0, extra_model_outputs={"late": 0.0, "obs": 1})

    def read_newest(self) -> None:
        _assert_same([self.episode.get_observations(-1)], self.expected[-1:])

    def read_all(self) -> None:
        _assert_same(self.episode.get_observations(), self.expected[self.episode.lookback :])

    def read_twice_is_same_object(self) -> None:
        assert self.episode.observations.items[-1] is self.episode.observations.items[-1]

    def write_into_read(self) -> None:
        """Change the array that a read returned, which is the stored one."""
        if self.shape:
            self.episode.get_observations(-1)[...] = self.expected[-1] = self.next(self.expected[-1].dtype.str)

    def set_newest(self) -> None:
        item = self.next()
        self.episode.set_observations(new_data=item, at_indices=-1)
        self.expected[-1] = item

    def set_fact(self) -> None:
        self.episode.module_id = "policy"

    def pickle(self) -> None:
        self.episode = pickle.loads(pickle.dumps(self.episode))

    def deepcopy(self) -> None:
        self.episode = copy.deepcopy(self.episode)

    def state(self) -> None:
        self.episode = SingleAgentEpisode.from_state(self.episode.get_state())

    def cut(self) -> None:
        self.episode = self.episode.cut(2)
        self.expected = self.expected[-1 - self.episode.lookback :]

    def join(self) -> None:
        """Cut, add a step, and join both parts."""
        head, self.episode = self.episode, self.episode.cut()
        self.add()
        head.concat_episode(self.episode)
        self.episode = head


OPERATIONS = sorted(name for name in vars(_Pair) if not name.startswith("_") and name != "next")
WEIGHTED = st.sampled_from([*["add"] * len(OPERATIONS), *OPERATIONS])


@given(st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.lists(WEIGHTED, max_size=12))
def test_growing_episode_equals_list_of_copies(dtype: str, shape: tuple[int, ...], operations: list[str]) -> None:
    pair = _Pair(dtype, shape)
    for operation in operations:
        getattr(pair, operation)()
    finished = copy.deepcopy(pair.episode).to_numpy() if len(pair.episode) % 2 else None  # before and after a read
    _assert_same(pair.episode.observations.items, pair.expected)
    stacked = np.array(pair.expected)
    for episode in (finished, pair.episode.to_numpy()):
        if episode is not None:
            data = episode.observations.data
            assert (data.dtype, data.shape) == (stacked.dtype.newbyteorder("="), stacked.shape)
            assert (data == stacked).all()
            assert not data.flags.writeable


@pytest.mark.parametrize("read", ["len", "total", "equality", "array", "take", "view", "iteration", "fill"])
def test_reader_sees_no_bytes(read: str) -> None:
    pair = _Pair("f4", (3,))
    for _ in range(4):
        pair.add()
    track: Any = pair.episode.observations
    other = SingleAgentEpisode(
        observations=pair.expected, actions=[0] * 4, rewards=[1.0] * 4, len_lookback_buffer=0
    ).observations
    readers = {
        "len": len,
        "total": lambda track: track.total,
        "equality": lambda track: track == other,
        "array": np.asarray,
        "take": lambda track: track.take([1, 3]).state(),
        "view": lambda track: track.view(slice(1, 4), 1).state(),
        "iteration": list,
        "fill": lambda track: track.get([-9, 3, 9], fill=0.0),
    }
    np.testing.assert_equal(readers[read](track), readers[read](other))


def test_shapes_of_irregular_space_are_kept() -> None:
    episode = SingleAgentEpisode(observation_space=spaces.Sequence(spaces.Box(-1, 1, (2,)), stack=True))
    episode.add_env_reset(np.zeros((1, 2), "f4"))
    for length in (1, 3, 1):
        episode.add_env_step(np.zeros((length, 2), "f4"), 0, 1.0)
    assert [len(item) for item in episode.get_observations()] == [1, 1, 3, 1]


def test_interrupted_read_decodes_the_rest_later() -> None:
    pair = _Pair("f4", (3,))
    for _ in range(3):
        pair.add()
    track: Any = pair.episode.observations
    encoding, track.encoding = track.encoding, (np.dtype("f4"), "no shape")
    with pytest.raises(TypeError):
        track.get()
    track.encoding = encoding
    _assert_same(track.get(), pair.expected)
