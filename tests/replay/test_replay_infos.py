"""Infos of samples, as dicts and as columns, equal the infos of the observations after the steps."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes.batch import Batch
from episodes.errors import InvalidArgument
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.infos.infos import same_info

VALUES = st.sampled_from(
    [
        1,
        2.5,
        True,
        "short",
        "rather longer",
        np.float32(0.5),
        np.int64(3),
        np.arange(2.0),
        np.arange(200.0),
        ["a", 1],
        None,
    ]
)
INFOS = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"energy": st.floats(0, 1), "log": st.fixed_dictionaries({"loss": st.integers(0, 9)})}),
    st.dictionaries(st.sampled_from(["energy", "a", "b/c"]), VALUES, max_size=3),
)


def episode(infos: list[dict[str, Any]], id_: str = "a") -> SingleAgentEpisode:
    length = len(infos) - 1
    return SingleAgentEpisode.from_arrays(
        np.arange(length + 1.0), np.arange(length), np.zeros(length), infos=infos, id_=id_, terminated=True
    )


def value_at(info: dict[str, Any], path: str) -> Any:
    """Return the value at a path, and True if it exists."""
    for key in path.split("/"):
        key = key.replace("~1", "/").replace("~0", "~")
        if not isinstance(info, dict) or key not in info:
            return None, False
        info = info[key]
    return info, True


@settings(max_examples=60)
@given(chunks=st.lists(st.lists(INFOS, min_size=2, max_size=6), min_size=1, max_size=6), capacity=st.integers(3, 20))
def test_info_columns_equal_info_dicts(chunks: list[list[dict[str, Any]]], capacity: int) -> None:
    buffer = EpisodeReplayBuffer(capacity, seed=0)
    expected: list[dict[str, Any]] = []
    for number, infos in enumerate(chunks):
        buffer.add([episode(infos, str(number))])
        expected += infos[1:]
        for draw in (
            buffer.sample(8, include_infos="columns"),
            buffer.sample_sequences(3, 4, burn_in=1, include_infos="columns"),
        ):
            columns, numbers = draw.infos, draw.indices.ravel().tolist()
            for path in [name for name, _ in columns.items() if not name.startswith("_")]:
                values, exists = columns[path].reshape(len(numbers), -1), columns["_" + path].ravel()
                for i, step in enumerate(numbers):
                    value, is_there = value_at(expected[step] if step >= 0 else {}, path)
                    assert exists[i] == is_there
                    if is_there and columns[path].dtype != object:
                        assert np.array_equal(values[i], np.ravel(value))
                    elif is_there:
                        assert same_info(columns[path].ravel()[i], value)
        drawn = buffer.sample(8, include_infos=True)
        for info, step in zip(drawn.infos, drawn.indices.tolist(), strict=True):
            assert same_info(info, expected[step])
            assert all(type(info[key]) is type(expected[step][key]) for key in info)
        if number % 2:
            buffer.set_state(buffer.get_state())
        for stored in buffer.iter_episodes():
            whole, first = chunks[int(stored.id_)], stored.t_started - stored.lookback
            assert stored.infos == whole[first : first + len(stored.observations)]


@pytest.mark.parametrize(("value", "num_segments"), [(1.0, 1), (np.zeros(900, np.uint8), 20)], ids=["number", "image"])
def test_saved_infos_of_last_steps_have_few_segments_and_no_long_gaps(value: Any, num_segments: int) -> None:
    buffer = EpisodeReplayBuffer(200)
    buffer.add([episode([*[{}] * 10, {"value": value}], str(number)) for number in range(20)])
    starts, parts = buffer.get_state()["ring"]["infos"]
    assert len(starts) == num_segments
    assert sum(info != {} for part in parts for info in part) == 20


def test_sampled_infos_are_copies() -> None:
    buffer = EpisodeReplayBuffer(10, seed=0)
    buffer.add([episode([{}, {"tokens": [1, 2], "image": np.zeros(2)}])])
    for include_infos in (True, "columns"):
        drawn = buffer.sample(2, include_infos=include_infos).infos
        first = drawn["tokens"][0] if isinstance(drawn, Batch) else drawn[0]["tokens"]
        first.append(99)
    assert buffer.sample(1, include_infos=True).infos[0]["tokens"] == [1, 2]
    assert buffer.sample(1, include_infos="columns").infos["tokens"][0] == [1, 2]


def test_recorder_rows_without_infos_have_none() -> None:
    buffer, rng = EpisodeReplayBuffer(20, seed=0), np.random.default_rng(0)
    recorder, no = buffer.recorder(2, autoreset_mode="NextStep"), np.zeros(2, bool)
    recorder.reset(np.zeros(2))
    for t in range(60):
        infos = {"speed": np.full(2, float(t)), "_speed": rng.random(2) < 0.5} if t % 3 else {}
        recorder.step(np.full(2, t + 1.0), np.full(2, t), np.zeros(2), no, rng.random(2) < 0.1, infos)
        drawn = buffer.sample(16, include_infos="columns")
        dicts = buffer.at(drawn.indices, include_infos=True).infos
        if "speed" in drawn.infos:
            assert drawn.infos["_speed"].tolist() == ["speed" in info for info in dicts]
            assert np.array_equal(drawn.infos["speed"], np.where(drawn.infos["_speed"], drawn.actions, 0))
    buffer.set_state(buffer.get_state())
    assert "speed" in buffer.sample(4, include_infos="columns").infos
    buffer.clear()
    buffer.add([episode([{}, {}])])
    with pytest.raises(InvalidArgument, match="give True for dicts, or 'columns'"):
        buffer.sample(1, include_infos="dicts")  # type: ignore[arg-type]


class Thing:
    """A value of infos that can tell whether it is still in memory."""


@pytest.mark.parametrize("reads", ["never", "before growing", "after growing", "always"])
@pytest.mark.parametrize("keep_things", [False, True], ids=["other keys follow", "the same key follows"])
def test_infos_of_evicted_steps_are_freed(reads: str, keep_things: bool) -> None:
    buffer, alive = EpisodeReplayBuffer(40, seed=0), weakref.WeakSet[Thing]()
    num_observations = 2 * (40 + 2)  # of 40 episodes of one step, and the room to spare

    def add(count: int, length: int, with_things: bool) -> None:
        for _ in range(count):
            things = [Thing() for _ in range(length + 1)] if with_things else []
            alive.update(things)
            number = buffer.num_added
            buffer.add(
                [episode([{"thing": thing} for thing in things] or [{"speed": 1.0}] * (length + 1), str(number))]
            )
            if reads == "always":
                buffer.sample(4, include_infos=True)

    add(2, 20, True)
    if reads == "before growing":
        buffer.sample(4, include_infos="columns")
    add(40, 1, True)  # twice as many observations as steps
    if reads == "after growing":
        buffer.sample(4, include_infos="columns")
    gc.collect()
    assert len(alive) <= num_observations
    add(120, 1, keep_things)
    if reads != "never":
        buffer.sample(4, include_infos=True)
    gc.collect()
    assert len(alive) <= (num_observations if keep_things else 0)


@pytest.mark.parametrize(
    ("length", "capacity"), [(1, 200), (50, 4_000)], ids=["the ring of observations grows", "it does not grow"]
)
def test_infos_that_were_sampled_take_the_memory_of_their_values(length: int, capacity: int) -> None:
    def memory_of(infos: list[dict[str, Any]]) -> int:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        buffer = EpisodeReplayBuffer(capacity, seed=0)
        for number in range(2 * capacity // length):
            buffer.add([episode(infos, str(number))])
            if number % 40 == 0:
                buffer.sample(4, include_infos="columns")
        buffer.sample(4, include_infos="columns")
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        values = {"a": 1.0, "b": 2.0, "c": 3.0, "image": np.ones(100)}
        num_bytes = memory_of([values] * (length + 1)) - memory_of([{}] * (length + 1))
    finally:
        tracemalloc.stop()
    num_rows = capacity * (length + 1) // length
    assert num_bytes < 1.2 * num_rows * (3 * (8 + 1) + 800 + 1)
