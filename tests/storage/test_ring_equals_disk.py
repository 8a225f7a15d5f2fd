"""The law ring == disk: a replay buffer and a data set with the same chunks return equal batches for the same steps.

The buffer is exactly full of these chunks. Earlier steps, which they have evicted, shift its step indices and let the
chunks wrap around in its arrays.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import SingleAgentEpisode
from episodes.batch import Batch
from episodes.errors import EpisodeError, EpisodeStateError, StepOutOfRange
from episodes.history import History, HistorySpaces
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage.sampling.order_cursor import OrderCursor
from episodes.storage.sampling.sampler import Sampler
from episodes.tracks import nested

KEYS = [
    "obs",
    "new_obs",
    "actions",
    "rewards",
    "terminateds",
    "truncateds",
    "t",
    "policy_version",
    "is_first",
    "eps_id",
    "agent_id",
    "module_id",
    "infos",
]
MIXED = [1, "one", 2.5, None, [3]]


class LastTwo:
    """Views: the last two observations, the last action, the time, and the facts of the observation."""

    given = HistorySpaces(None, None)
    lookback = 2

    def __call__(self, history: History) -> dict[str, Any]:
        return {
            "last_two": history.last_observations(2),
            "before": nested.map_leaves(
                lambda leaf: leaf.reshape(len(history), 2, *leaf.shape[1:]), history.window(2).last_observations(2)
            ),
            "now": history.observations(),
            "action": history.last_steps("actions", 1),
            "reward": history.rewards(1),
            "extra": history.extra("observations", 1, np.zeros(())),
            "length": np.array([len(history.episode(i)) for i in range(len(history))]),
            "t": history.t,
            "observed": history.observed(3),
            "agent": history.agent_ids,
            "info": np.array([info.get("n", 0.0) for info in history.infos]),
        }


def make_episode(
    i: int, num_steps: int, kind: dict[str, Any], rng: np.random.Generator, id_: str | None = None
) -> SingleAgentEpisode:
    """Return an episode of random numbers that all differ, so that a wrong row is noticed."""
    observations: Any = rng.random((num_steps + 1, 3)).astype(kind["obs"])
    if kind["nested"]:
        observations = {"a": observations, "b": {"frame": rng.integers(0, 255, (num_steps + 1, 40, 40), np.uint8)}}
    extra: dict[str, Any] = {}
    if kind["extra"]:
        words = np.array([f"w{10**k}" for k in rng.integers(0, 5, num_steps)], "U6")
        extra = {"state_out": {"h": rng.random((num_steps, 2))}, "observations": rng.random(num_steps), "word": words}
    infos = None
    if kind["infos"]:
        infos = [
            {
                "n": float(rng.random()),
                "text": f"t{10 ** rng.integers(0, i + 2)}",
                "log": {"k": t},
                "mixed": MIXED[(i if t < 6 else t) % 5],
            }
            if t % 3
            else {}
            for t in range(num_steps + 1)
        ]
        infos[-1] |= {"text": f"t{10 ** (i + 1)}"}  # in replay, a chunk keeps the width of all texts of its episode
    rewards = rng.random(num_steps).astype(kind["rewards"])
    if kind["infinite"] and rewards.dtype.kind == "f":
        rewards[rng.integers(0, num_steps)] = np.inf
    ending: dict[str, Any] = {"terminated": kind["ends"][i] in (1, 3), "truncated": kind["ends"][i] in (2, 3)}
    versions = rng.integers(0, 3, num_steps).cumsum() if kind["versions"] else None
    return SingleAgentEpisode.from_arrays(
        observations,
        rng.integers(0, 9, num_steps),
        rewards,
        infos=infos,
        extra_model_outputs=extra,
        id_=id_ or f"e{i}",
        agent_id=kind["agent"],
        policy_versions=versions,
        **ending,
    )


@st.composite
def programs(draw: Any) -> tuple[list[SingleAgentEpisode], SingleAgentEpisode | None, dict[str, Any]]:
    """Draw chunks of a few episodes in an order of adding, an earlier episode, and options of the writer."""
    num = draw(st.integers(1, 4))
    kind = {
        "obs": draw(st.sampled_from([np.float32, np.uint8])),
        "rewards": draw(st.sampled_from([np.float32, np.float64, np.float16, np.int64, bool])),
        "nested": draw(st.booleans()),
        "extra": draw(st.booleans()),
        "infos": draw(st.booleans()),
        "versions": draw(st.booleans()),
        "infinite": draw(st.booleans()),
        "agent": draw(st.sampled_from([None, "left"])),
        "ends": draw(st.lists(st.integers(0, 3), min_size=num, max_size=num)),
    }
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    queues = []
    for i in range(num):
        length = draw(st.integers(1, 9) | st.integers(10, 40))
        whole = make_episode(i, length, kind, rng)
        stops = sorted({*draw(st.lists(st.integers(1, length), max_size=3)), length})
        starts = [0, *stops][draw(st.integers(0, len(stops) - 1)) :]  # the earlier chunks of the episode are lost
        queues.append([cut(whole, start, stop, draw(st.integers(0, 3))) for start, stop in pairwise(starts)])
    chunks = []
    while any(queues):
        queue = queues[draw(st.integers(0, num - 1))]
        if queue:
            chunks.append(queue.pop(0))
    num_evicted = draw(st.integers(0, 9))
    evicted = make_episode(0, num_evicted, kind | {"infos": False}, rng, "evicted") if num_evicted else None
    options = {
        "shard_bytes": draw(st.sampled_from([1, 1 << 28])),
        "compressions": draw(st.lists(st.sampled_from(["auto", "zstd", "none"]), min_size=2, max_size=2)),
        "flush": draw(st.booleans()),
        "order": draw(st.permutations(range(len(chunks)))),
        "pool_bytes": draw(st.sampled_from([1, 1 << 28])),
    }
    return chunks, evicted, options


def cut(whole: SingleAgentEpisode, start: int, stop: int, lookback: int) -> SingleAgentEpisode:
    """Return a chunk of an episode, with a lookback of the previous steps."""
    return whole.slice(slice(start, stop), len_lookback_buffer=min(lookback, start))


def filled(
    chunks: list[SingleAgentEpisode], evicted: SingleAgentEpisode | None, options: dict[str, Any], path: Path
) -> tuple[EpisodeReplayBuffer, Sampler]:
    buffer = EpisodeReplayBuffer(sum(map(len, chunks)), seed=0)
    if evicted is not None:
        buffer.add(evicted)
    for part in [[chunk] for chunk in chunks] if options["flush"] else [chunks]:
        buffer.add(part)
    others = [] if evicted is None else [evicted]
    written = [*others, *(chunks[i] for i in options["order"])]
    middle = len(written) // 2
    for part, compression in zip((written[:middle], written[middle:]), options["compressions"], strict=True):
        with EpisodeWriter(path, compression=compression, shard_bytes=options["shard_bytes"]) as writer:
            for chunk in part:
                writer.add([chunk])
                if options["flush"]:
                    writer.flush()
    dataset = EpisodeDataset(path).select(len(others) + np.argsort(options["order"]))
    return buffer, dataset.sampler(steps=4, order="drawn", seed=1, pool_bytes=options["pool_bytes"])


def assert_same_batch(disk: Batch, ring: Batch, shift: int, label: str) -> None:
    """Compare all columns of two batches. The step indices of the ring are larger by `shift`."""
    indices = np.where(ring.indices < 0, ring.indices, ring.indices - shift)
    assert_equal(disk, ring.with_columns(ring.to_dict() | {"indices": indices}), label)


def assert_equal(disk: Any, ring: Any, label: str) -> None:
    if isinstance(ring, (Batch, dict)):
        assert sorted(disk.keys()) == sorted(ring.keys()), label
        for key in sorted(ring.keys()):
            assert_equal(disk[key], ring[key], f"{label}/{key}")
        return
    assert disk.dtype == ring.dtype, (label, disk.dtype, ring.dtype)
    assert disk.shape == ring.shape, (label, disk.shape, ring.shape)
    if ring.dtype == object:
        assert disk.tolist() == ring.tolist(), label
    elif ring.dtype.kind == "f":
        np.testing.assert_allclose(disk, ring, rtol=1e-5 if ring.dtype == np.float32 else 1e-12, err_msg=label)
    else:
        np.testing.assert_array_equal(disk, ring, err_msg=label)


INFOS = st.sampled_from([False, True, "columns"])
STEP_OPTIONS = st.fixed_dictionaries(
    {"include_infos": INFOS},
    optional={
        "n_step": st.integers(1, 6) | st.integers(17, 40) | st.just(np.int64(3)),
        "gamma": st.sampled_from([0.0, 0.9, 1.0, np.float32(0.5)]),
        "views": st.just(LastTwo()),
        "keys": st.one_of(st.none(), st.lists(st.sampled_from(KEYS), unique=True, min_size=1)),
    },
)
WINDOW_OPTIONS = st.fixed_dictionaries(
    {
        "length": st.integers(1, 6) | st.integers(7, 40) | st.just(np.int64(3)),
        "burn_in": st.just(0) | st.integers(1, 3) | st.just(np.int64(2)),
        "lookback": st.just(0) | st.integers(1, 3),
        "include_infos": INFOS,
    },
    optional={
        "boundary": st.sampled_from(["pad", "stop"]),
        "views": st.just(LastTwo()),
        "keys": st.one_of(st.none(), st.lists(st.sampled_from(KEYS), unique=True, min_size=1)),
    },
)


def are_complete(chunks: list[SingleAgentEpisode], reach: int) -> np.ndarray:
    """Return for each step of the chunks whether `reach` steps before it, or all of its episode, are stored."""
    begins: dict[str, int] = {}
    for chunk in chunks:
        begins.setdefault(chunk.id_, chunk.t_started - chunk.lookback)
    times = [(chunk.t_started + i, begins[chunk.id_]) for chunk in chunks for i in range(len(chunk))]
    return np.array([begin == 0 or t - begin >= reach for t, begin in times])


def reach_of(options: dict[str, Any]) -> int:
    """Return how many steps before a sampled step its batch reads."""
    keys = options.get("keys") or KEYS
    reach = int(options.get("burn_in", 0)) + options.get("lookback", 0)
    return reach + (2 if "views" in options and {"obs", "new_obs"} & {*keys} else 0)


class Fixed:
    """An order of given steps, over and over."""

    def __init__(self, steps: np.ndarray) -> None:
        self.num, self._steps = len(steps), steps

    def at(self, start: int, stop: int) -> np.ndarray:
        return self._steps[start % self.num : start % self.num + stop - start]


@settings(max_examples=100, deadline=None)
@given(
    programs(),
    STEP_OPTIONS,
    st.lists(st.just(-1) | st.integers(0, 100), max_size=6),
    st.sampled_from([np.int64, np.int32, list]),
)
def test_steps_from_ring_and_disk_are_equal(
    program: Any, options: dict[str, Any], indices: list[int], kind: Any
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        buffer, sampler = filled(*program, Path(folder) / "data")
        shift = buffer.num_added - len(buffer)
        complete = are_complete(program[0], reach_of(options))
        on_disk = [*range(len(buffer)), *(i if i < 0 else i % len(buffer) for i in indices)]
        for i in np.flatnonzero(~complete)[:2].tolist():
            for part, step in ((sampler, i), (buffer, i + shift)):
                with pytest.raises(StepOutOfRange, match=rf"step {step}[ :].* before it"):
                    part.at([step], **options)
        on_disk = [i for i in on_disk if i < 0 or complete[i]]
        in_ring = [i if i < 0 else i + shift for i in on_disk]
        if options.get("keys") is None:
            options = options | ({"keys": KEYS} if len(indices) % 2 else {})
        disk, ring = (
            part.at(steps if kind is list else np.array(steps, kind), **options)
            for part, steps in ((sampler, on_disk), (buffer, in_ring))
        )
        assert_same_batch(disk, ring, shift, "at")
        if not complete.any():
            with pytest.raises(EpisodeStateError, match="before it"):
                buffer.sample(5, **options)
        if not complete.all():
            return
        disk = sampler.sample(5, **options)
        ring = buffer.at(disk.indices + shift, **options)
        assert_same_batch(disk, ring, shift, "sample")
        assert sampler.num_sampled == 5
        for row in range(5):
            assert disk.origin[row][:6] == ring.origin[row][:6]


@settings(max_examples=40, deadline=None)
@given(programs(), STEP_OPTIONS, st.integers(1, 20), st.integers(0, 20))
def test_random_n_steps_of_ring_and_disk_equal_fixed_ones(
    program: Any, options: dict[str, Any], least: int, extra: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        buffer, sampler = filled(*program, Path(folder) / "data")
        shift = buffer.num_added - len(buffer)
        options = options | {"n_step": (least, least + extra)}
        complete = are_complete(program[0], reach_of(options))
        disk = sampler.at(np.flatnonzero(complete), **options)
        numbers = disk.indices + shift
        longest = buffer.at(numbers, n_step=least + extra).n_step
        for batch, offset in ((disk, shift), (buffer.at(numbers, **options), 0)):
            assert (batch.n_step >= np.minimum(longest, least)).all()
            assert (batch.n_step <= longest).all()
            for count in set(batch.n_step.tolist()):
                rows = batch.n_step == count
                fixed = buffer.at(numbers[rows], **options | {"n_step": count})
                assert_same_batch(batch[rows], fixed, offset, f"{count} steps")


def test_random_n_steps_reach_both_bounds(tmp_path: Path) -> None:
    kind = dict.fromkeys(("nested", "extra", "infos", "infinite", "versions"), False)
    kind |= {"obs": np.float32, "rewards": np.float32, "agent": None, "ends": [1]}
    episode = make_episode(0, 200, kind, np.random.default_rng(0))
    writer = {"shard_bytes": 1 << 28, "compressions": ["none"] * 2, "flush": False, "order": [0], "pool_bytes": 1}
    for store in filled([episode], None, writer, tmp_path):
        steps = store.at(np.arange(190), n_step=(2, 4)).n_step
        assert set(steps.tolist()) == {2, 3, 4}


@settings(max_examples=100, deadline=None)
@given(programs(), WINDOW_OPTIONS, st.integers(1, 5))
def test_sequences_from_ring_and_disk_are_equal(program: Any, options: dict[str, Any], num: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        buffer, sampler = filled(*program, Path(folder) / "data")
        shift = buffer.num_added - len(buffer)
        if options.get("keys") is None and num % 2:
            options = options | {"keys": KEYS}
        reach = reach_of(options)
        if program[0][0].extra_model_outputs:
            reach = max(reach, int(options["burn_in"]) + 1)
        complete = np.flatnonzero(are_complete(program[0], reach))
        if not len(complete):
            with pytest.raises(EpisodeStateError, match="before it"):
                buffer.sample_sequences(num, **options)
            with pytest.raises(StepOutOfRange, match="before it"):
                sampler.sample_sequences(num, **options)
            return
        starts = np.random.default_rng(num).choice(complete, num)
        slots = (starts + shift) % buffer.capacity
        buffer._draw = lambda n, period=None: (slots, np.ones(n, np.float32))  # type: ignore[method-assign]
        sampler._ahead = OrderCursor(Fixed(starts), sampler._tracks.table.located)
        disk, ring = sampler.sample_sequences(num, **options), buffer.sample_sequences(num, **options)
        assert_same_batch(disk, ring, shift, "sequences")
        assert sampler.num_sampled == buffer.num_sampled


NOT_INTS = st.sampled_from([0, -1, True, 1.5, "2", None, np.float32(2.0), 1 << 70])
WRONG: dict[str, Any] = {
    "n_step": st.sampled_from([0, -1, True, 1.5, "2", None, (3, 1), (1, 2, 3), (0, 2), (1.0, 2), [1, 2]]),
    "gamma": st.sampled_from([-0.1, 1.5, float("nan"), True, "x", None, [0.5]]),
    "keys": st.sampled_from(["obs", ["nothing"], ["weights"], ["obs", 3], 5, [None]]),
    "include_infos": st.sampled_from(["x", 2, None, []]),
}
METHODS: dict[str, dict[str, Any]] = {
    "at": {
        "indices": st.sampled_from([[0.5], [True], [[0]], [10**6], [-2], "ab", None, [None], 3, [1 << 63], [1, [2]]]),
        **WRONG,
    },
    "sample": {"n": NOT_INTS, **WRONG},
    "sample_sequences": {
        **dict.fromkeys(("batch_size", "length"), NOT_INTS),
        **{name: st.sampled_from([-1, True, 1.5, "2", None]) for name in ("burn_in", "lookback")},
        "boundary": st.sampled_from(["x", None, 3, True, ["pad"]]),
        **{name: WRONG[name] for name in ("keys", "include_infos")},
    },
}
GOOD: dict[str, Any] = {"indices": [0], "n": 2, "batch_size": 2, "length": 3}


def error_of(call: Callable[[], Any]) -> tuple[type, str]:
    with pytest.raises(EpisodeError) as caught:
        call()
    return type(caught.value), str(caught.value).partition("; there are")[0]


@pytest.mark.parametrize("method", METHODS)
def test_wrong_arguments_have_equal_errors_in_ring_and_disk(tmp_path: Path, method: str) -> None:
    rng = np.random.default_rng(0)
    kind = {"obs": np.float32, "nested": False, "extra": True, "infos": True, "ends": [1], "versions": True}
    kind |= {"infinite": False}
    chunks = [make_episode(0, 6, kind | {"rewards": np.float32, "agent": None}, rng)]
    options = {"shard_bytes": 1, "compressions": ["none"] * 2, "flush": True, "order": [0], "pool_bytes": 1}
    buffer, sampler = filled(chunks, None, options, tmp_path / "data")

    @settings(max_examples=80, deadline=None)
    @given(st.data())
    def check(data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(METHODS[method])))
        wrong = data.draw(METHODS[method][name])
        options = {key: GOOD[key] for key in METHODS[method] if key in GOOD} | {name: wrong}
        before = sampler.state_dict(), sampler.num_sampled
        disk = error_of(lambda: getattr(sampler, method)(**options))
        words = [name, *np.ravel(np.array(wrong, object)).tolist()]
        assert any(str(word) in disk[1] for word in words), disk
        assert disk == error_of(lambda: getattr(buffer, method)(**options))
        assert (sampler.state_dict(), sampler.num_sampled) == before

    check()
