"""Samplers of data sets, compared with whole episodes and with a replay buffer."""

from __future__ import annotations

import json
import pickle
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference_replay import chi_square_deviation
from reference_sampling import ReferenceSteps, same
from strategies import lists_of_episodes

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import (
    EpisodeStateError,
    InvalidArgument,
    StateMismatch,
    StepOutOfRange,
    UnknownKey,
    UnreadableData,
    WrongType,
)
from episodes.storage import EpisodeDataset, EpisodeWriter, add_track, compact
from episodes.storage.sampling import StepBatches, WindowBatches
from episodes.storage.sampling.orders import ShuffledOrder

KEYS = ("obs", "new_obs", "actions", "rewards", "terminateds", "truncateds", "t")


@contextmanager
def stored(
    episodes: Any,
    cuts: Sequence[int] = (),
    compression: str = "none",
    mmap: bool = True,
) -> Iterator[EpisodeDataset]:
    """Write a data set of the episodes, with a new shard at each cut."""
    bounds = [0, *sorted(min(cut, len(episodes)) for cut in cuts), len(episodes)]
    with tempfile.TemporaryDirectory() as path:
        for start, stop in pairwise(bounds):
            with EpisodeWriter(path, compression=compression) as writer:
                writer.add(episodes[start:stop])
        yield EpisodeDataset(path, mmap=mmap)


def chunks(num: int = 6, **options: Any) -> EpisodePack:
    """Return chunks of 1, 2, ... steps with distinct numbers, lookbacks of up to 2, and endings in turns."""
    lengths, lookbacks = np.arange(1, num + 1), np.arange(num) % 3
    steps = int((lengths + lookbacks).sum())
    return EpisodePack(
        observations=np.arange(3.0 * (steps + num), dtype=np.float32).reshape(-1, 3),
        actions=np.arange(steps) % 7,
        rewards=np.random.default_rng(0).random(steps),
        lengths=lengths,
        lookbacks=lookbacks,
        t_started=lookbacks,
        terminated=np.arange(num) % 3 == 0,
        truncated=np.arange(num) % 3 == 1,
        **options,
    )


datasets = st.fixed_dictionaries(
    {
        "episodes": lists_of_episodes(),
        "cuts": st.lists(st.integers(0, 5), max_size=3),
        "compression": st.sampled_from(["none", "zstd"]),
        "mmap": st.booleans(),
    }
)

orders = st.sampled_from(["shuffled", "drawn", "stored"])


@settings(max_examples=40)
@given(drawn=datasets, n=st.integers(1, 12), seed=st.integers(0, 3), order=orders)
def test_sampled_steps_equal_the_episodes(drawn: dict[str, Any], n: int, seed: int, order: str) -> None:
    assume(any(map(len, drawn["episodes"])))
    with stored(**drawn) as dataset:
        reference = ReferenceSteps(dataset)
        extras = tuple(reference.episodes[0].extra_model_outputs)
        sampler = dataset.sampler(steps=StepBatches(n, keys=(*KEYS, *extras)), order=order, seed=seed)
        for batch in sampler:
            rows = [reference.steps[i] for i in batch.indices]
            for key in (*KEYS, *extras):
                expected = reference.column(key, rows)
                result = batch.to_dict()[key]
                assert same(result, expected), key


@settings(max_examples=40)
@given(
    drawn=datasets,
    n=st.integers(1, 6),
    length=st.integers(1, 7),
    lookback=st.integers(0, 3),
    burn_in=st.integers(0, 3),
)
def test_sampled_windows_equal_the_episodes(
    drawn: dict[str, Any], n: int, length: int, lookback: int, burn_in: int
) -> None:
    assume(any(map(len, drawn["episodes"])))
    is_whole = all(episode.t_started == episode.lookback for episode in drawn["episodes"])
    refusal = nullcontext() if is_whole else suppress(StepOutOfRange)  # steps before the data set's first are not read
    with stored(**drawn) as dataset, refusal:
        reference, left = ReferenceSteps(dataset), lookback + burn_in
        kind = WindowBatches(n, length, lookback=lookback, burn_in=burn_in, keys=KEYS)
        at = 0
        for batch in dataset.sampler(windows=kind, order="stored"):
            rows = reference.steps[at : at + len(batch)]
            at += len(rows)
            for key in (*KEYS, "is_first", "indices"):
                expected, result = reference.windows(key, rows, left, length), batch.to_dict()[key]
                assert same(result, expected), key
            has_step = np.array([[reference.is_there(e, p) for p in range(t - left, t + length)] for e, t in rows])
            assert (batch.loss_mask == (has_step & (np.arange(left + length) >= left))).all()
            assert (batch.seq_lens == burn_in + batch.loss_mask.sum(1)).all()
        assert at == len(reference.steps)


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "c16", "f4"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_sampled_items_of_one_number_keep_their_shape(dtype: str, shape: tuple[int, ...]) -> None:
    observations = np.arange(10).astype(dtype).reshape(10, *shape)
    rows = SingleAgentEpisode.from_arrays(observations, np.zeros(9, int), np.zeros(9), id_="a", terminated=True)
    with stored([rows], [], "none", False) as dataset:
        steps = next(iter(dataset.sampler(steps=StepBatches(4, keys=("obs",)), order="stored")))
        windows = next(iter(dataset.sampler(windows=WindowBatches(2, 8, keys=("obs",)), order="stored")))
    assert same(steps.obs, observations[:4])
    assert windows.obs.shape[1:] == (8, *shape)
    assert same(windows.obs[0], observations[:8])


def test_infos_of_mixed_kinds_are_objects() -> None:
    parts = [[{"a": 1, "b": 2.0}] * 4, [{"a": "one"}] * 4, [{}] * 4]
    packs = [
        chunks(1).replace(
            lengths=[3],
            lookbacks=[0],
            rewards=np.zeros(3),
            actions=np.zeros(3, int),
            observations=np.zeros((4, 2)),
            infos=infos,
        )
        for infos in parts
    ]
    with stored(EpisodePack.concat(packs), [1, 2]) as dataset:
        infos = dataset.sampler(steps=StepBatches(9, include_infos="columns"), order="stored").draw().infos
        assert infos["a"].tolist() == [1, 1, 1, "one", "one", "one", None, None, None]
        assert infos["b"].tolist() == [2.0] * 3 + [0.0] * 6
        assert infos["_b"].tolist() == [True] * 3 + [False] * 6


# --- orders -----------------------------------------------------------------------------------------------------------


@given(num=st.integers(1, 400), seed=st.integers(0, 9), epoch=st.integers(0, 3))
def test_permute_returns_each_number_once(num: int, seed: int, epoch: int) -> None:
    for small in (0, 1 << 16):
        order = ShuffledOrder(num, seed, small)
        result = order.at(epoch * num, (epoch + 1) * num)
        assert sorted(result.tolist()) == list(range(num))
        middle = num // 2
        parts = [order.at(epoch * num, epoch * num + middle), order.at(epoch * num + middle, (epoch + 1) * num)]
        assert np.concatenate(parts).tolist() == result.tolist()


def test_permute_looks_random() -> None:
    num = 20_000
    orders = [ShuffledOrder(num, seed, small=0).at(0, num) for seed in range(3)]
    later = ShuffledOrder(num, 0, small=0).at(num, 2 * num)
    for order in (*orders, later):
        steps = np.diff(order)
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.03
        assert (np.abs(steps) < 10).sum() < 60  # 20 are expected
        for part in np.split(order, 10):
            assert np.abs(np.histogram(part, 8, (0, num))[0] - 250).max() < 80
    assert (orders[0] == later).sum() < 20


@pytest.mark.parametrize("order", ["shuffled", "stored", "drawn", "blocks"])
@pytest.mark.parametrize("shapes", [{"steps": 7}, {"windows": (5, 4)}, {"episodes": 2}], ids=str)
def test_resumed_sampler_continues_exactly(order: str, shapes: Any) -> None:
    if shapes == {"episodes": 2} and order == "blocks":
        order = "shuffled"
    with stored(chunks(9), [4]) as dataset:
        for at in (0, 1, 2, 9):
            first = dataset.sampler(**shapes, order=order, seed=3)
            for _ in range(at):
                first.draw()
            state = json.loads(json.dumps(first.state_dict()))
            second = dataset.sampler(**shapes, order=order, seed=8)
            second.load_state_dict(state)
            copied = pickle.loads(pickle.dumps(first))
            for _ in range(12):
                batch = first.draw()
                assert second.draw() == batch
                assert copied.draw() == batch


@pytest.mark.parametrize("order", ["shuffled", "stored"])
@pytest.mark.parametrize("size", [1, 4, 45, 60])
def test_each_epoch_has_every_step_once(order: str, size: int) -> None:
    with stored(chunks(9), [4]) as dataset:
        sampler = dataset.sampler(steps=size, order=order, seed=0)
        epochs = [[int(i) for batch in sampler for i in batch.indices] for _ in range(2)]
        assert [sorted(epoch) for epoch in epochs] == [list(range(45))] * 2
        assert (epochs[0] == epochs[1]) == (order == "stored")
        assert len(list(sampler)) == len(sampler)


def test_interrupted_loop_continues() -> None:
    with stored(chunks(9)) as dataset:
        sampler = dataset.sampler(steps=10, seed=0)
        first = [next(iter(sampler)) for _ in range(2)]
        remaining = list(sampler)
        assert len(first) + len(remaining) == 5
        assert sorted(np.concatenate([b.indices for b in (*first, *remaining)]).tolist()) == list(range(45))


def test_skip_skips_whole_batches() -> None:
    with stored(chunks(9)) as dataset:
        first, second = (dataset.sampler(steps=10, seed=0) for _ in range(2))
        drawn = [first.draw() for _ in range(12)]
        for k in range(0, 12, 3):
            second.skip(k and 2)
            assert second.draw() == drawn[k]


def test_drawn_order_follows_the_weights() -> None:
    pack = chunks(9, extra_model_outputs={"priority": np.arange(54.0) ** 2})
    rng = np.random.default_rng(0)
    with stored(pack, [4]) as dataset:
        by_episode, by_step = rng.random(9) * (np.arange(9) != 4), rng.random(45) * (np.arange(45) % 5 > 0)
        lengths = dataset.metadata["length"]
        offsets = np.cumsum(lengths + pack.lookbacks) - lengths
        rows = np.concatenate([np.arange(o, o + n) for o, n in zip(offsets, lengths, strict=True)])
        expected: list[tuple[Any, np.ndarray]] = [
            (None, np.ones(45)),
            (by_episode, np.repeat(by_episode, lengths)),
            (by_step, by_step),
            ("priority", rows.astype(float) ** 2),
        ]
        for weights, likely in expected:
            sampler = dataset.sampler(steps=1000, order="drawn", weights=weights, seed=1)
            drawn = np.concatenate([sampler.sample(1000).indices for _ in range(40)])
            counts = np.bincount(drawn, minlength=45)
            assert not counts[likely == 0].any()
            assert chi_square_deviation(counts[likely > 0], likely[likely > 0]) < 3
        whole = dataset.sampler(episodes=500, weights=by_episode, seed=0)
        ids = np.concatenate([whole.draw().ids for _ in range(9)])
        places = {id_: i for i, id_ in enumerate(dataset.metadata["id"])}
        counts = np.bincount([places[id_] for id_ in ids], minlength=9)
        assert chi_square_deviation(np.delete(counts, 4), np.delete(by_episode, 4)) < 3
        assert not counts[4]


def test_episode_batches_are_packs() -> None:
    with stored(chunks(9), [4]) as dataset:
        sampler = dataset.sampler(episodes=4, seed=0)
        packs = list(sampler)
        assert [len(pack) for pack in packs] == [4, 4, 1]
        assert sorted(id_ for pack in packs for id_ in pack.ids) == sorted(dataset.metadata["id"])
        whole = {episode.id_: episode for episode in dataset}
        assert all(episode.equals(whole[episode.id_]) for pack in packs for episode in pack)


# --- what a data set may be ------------------------------------------------------------------------------------------


def test_sampler_skips_episodes_without_steps() -> None:
    lengths = np.array([0, 0, 3, 0, 1, 0])
    pack = EpisodePack(
        observations=np.arange(10.0), actions=np.arange(4), rewards=np.arange(4.0), lengths=lengths, ids=list("abcdef")
    )
    with stored(pack, [2, 4]) as dataset:
        batch = dataset.sampler(steps=StepBatches(4, keys=["obs", "new_obs", "eps_id"]), order="stored").draw()
        assert batch.eps_id.tolist() == ["c", "c", "c", "e"]
        assert batch.obs.tolist() == [2, 3, 4, 7]
        assert batch.new_obs.tolist() == [3, 4, 5, 8]
    with stored(pack[:2]) as dataset, pytest.raises(EpisodeStateError, match="2 episodes without steps"):
        dataset.sampler(steps=4)


def test_sampler_fills_added_track_in_old_episodes(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        writer.add(chunks(4))
    add_track(tmp_path, "hint", np.array([0.5, 1.5]))
    with EpisodeWriter(tmp_path) as writer:
        newer = chunks(4)
        writer.add(newer.replace(extra_model_outputs={"hint": np.arange(2.0 * newer.offsets[-1]).reshape(-1, 2)}))
    dataset = EpisodeDataset(tmp_path)
    reference = ReferenceSteps(dataset)
    steps = dataset.sampler(steps=StepBatches(20, keys=["hint", "obs"]), order="stored").draw()
    assert same(steps["hint"], reference.column("hint", reference.steps))
    windows = dataset.sampler(windows=WindowBatches(20, 3, lookback=2, keys=["hint"]), order="stored").draw()
    assert same(windows["hint"], reference.windows("hint", reference.steps, 2, 3))
    old = dataset[:4].sampler(steps=StepBatches(10, keys=["hint"]), order="stored").draw()
    assert (old["hint"] == [0.5, 1.5]).all()


def test_sampler_samples_agents_of_multi_agent_episodes(tmp_path: Path) -> None:
    episode = MultiAgentEpisode(agent_module_ids={"a": "m", "b": "n"})
    episode.add_env_reset(observations={"a": np.zeros(2), "b": np.ones(2)})
    for t in range(1, 7):
        observed = ["a", "b"] if t % 2 == 0 else ["a"]
        episode.add_env_step(
            actions={"a": t} | ({"b": -t} if t % 2 else {}),
            observations={agent: np.full(2, t + (agent == "b") / 2) for agent in observed},
            rewards=dict.fromkeys(observed, t / 4),
            terminateds={"__all__": t == 6},
        )
    with EpisodeWriter(tmp_path) as writer:
        writer.add([episode])
    dataset = EpisodeDataset(tmp_path)
    reference = ReferenceSteps(dataset)
    batch = dataset.sampler(steps=StepBatches(99, keys=[*KEYS, "agent_id", "module_id"]), order="stored").draw()
    assert len(batch) == len(reference.steps) > 4
    for key in KEYS:
        assert same(batch.to_dict()[key], reference.column(key, reference.steps)), key
    assert batch.agent_id.tolist() == [reference.episodes[e].agent_id for e, _ in reference.steps]
    assert set(batch.module_id) == {"m", "n"}


def test_sampler_sees_new_episodes_after_refresh(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        writer.add(chunks(4))
        writer.flush()
        dataset = EpisodeDataset(tmp_path)
        sampler = dataset.sampler(steps=3, seed=0)
        sampler.draw()
        state = sampler.state_dict()
        writer.add(chunks(9))
    remaining = [batch.indices.tolist() for batch in sampler]
    assert max(map(max, remaining)) < 10
    later = EpisodeDataset(tmp_path).sampler(steps=3, seed=5)
    assert later.num_steps == 55
    later.load_state_dict(state)
    assert [batch.indices.tolist() for batch in later] == remaining
    assert later.refresh() == 9
    assert sorted(int(i) for batch in later for i in batch.indices) == list(range(55))
    assert later.refresh() == 0


def test_pickled_sampler_of_growing_data_set_is_equal(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        writer.add(chunks(4))
        writer.flush()
        sampler = EpisodeDataset(tmp_path).sampler(steps=3, seed=0)
        pickled = pickle.dumps(sampler)
        writer.add(chunks(9))
    repeated = pickle.loads(pickled)
    assert repeated.state_dict() == sampler.state_dict()
    resumed = EpisodeDataset(tmp_path).sampler(steps=3)
    resumed.load_state_dict(pickle.loads(pickle.dumps(repeated)).state_dict())
    assert [resumed.draw() for _ in range(5)] == [sampler.draw() for _ in range(5)]
    assert repeated.refresh() == 9


def test_refresh_after_compaction_returns_zero(tmp_path: Path) -> None:
    for _ in range(2):
        with EpisodeWriter(tmp_path) as writer:
            writer.add(chunks(4))
    first, second = (EpisodeDataset(tmp_path).sampler(steps=3, seed=0) for _ in range(2))
    assert first.draw() == second.draw()
    compact(tmp_path)
    assert second.refresh() == 0
    assert [first.draw() for _ in range(9)] == [second.draw() for _ in range(9)]


def test_load_state_dict_rejects_wrong_states() -> None:
    with stored(chunks(4)) as dataset:
        sampler, untouched = (dataset.sampler(steps=3, seed=0) for _ in range(2))
        state = sampler.state_dict()
        extra = {"position": -1, "seed": "x", "num": 9, "shards": 7, "kind": "WindowBatches", "order": None}
        for wrong in (None, {}, *({**state, name: value} for name, value in extra.items())):
            with pytest.raises(StateMismatch):
                sampler.load_state_dict(wrong)  # type: ignore[reportArgumentType]
        assert sampler.draw() == untouched.draw()


def test_sampler_reads_removed_files(tmp_path: Path) -> None:
    for _ in range(3):
        with EpisodeWriter(tmp_path) as writer:
            writer.add(chunks(5))
    dataset = EpisodeDataset(tmp_path)
    first, second = (dataset.sampler(steps=7, seed=0) for _ in range(2))
    first.draw(), second.draw()
    state = first.state_dict()
    compact(tmp_path)
    assert len(list(tmp_path.glob("*.arrow"))) == 1
    resumed = EpisodeDataset(tmp_path).sampler(steps=7)
    resumed.load_state_dict(state)
    expected = [first.draw() for _ in range(9)]
    assert [resumed.draw() for _ in range(9)] == expected
    for file in tmp_path.iterdir():
        file.unlink()
    assert [second.draw() for _ in range(9)] == expected
    with pytest.raises(UnreadableData, match="is not a data set"):
        pickle.loads(pickle.dumps(second))


def test_batches_have_origins() -> None:
    with stored(chunks(9, ids=[f"e{i}" for i in range(9)]), [4]) as dataset:
        whole = {episode.id_: episode for episode in dataset}
        batch = dataset.sampler(steps=5, seed=0).draw()
        for i, t in enumerate(batch.origin.t):
            step = batch.origin[i]
            episode = batch.origin.episode(i)
            assert step.id_ == episode.id_
            assert episode.equals(whole[step.id_])
            assert (episode.get_observations(int(t) - episode.t_started) == batch.obs[i]).all()
        windows = dataset.sampler(windows=WindowBatches(5, 4, lookback=2), seed=0).draw()
        assert (windows.origin.numbers == windows.indices).all()
        with pytest.raises(EpisodeStateError, match="another process"):
            pickle.loads(pickle.dumps(batch)).origin.episode(0)


ITEMS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "3 bytes": (np.int8, (3,)),
    "12 bytes": (np.float32, (3,)),
    "no bytes": (np.float64, (0,)),
    "bools": (bool, (2, 3)),
    "halves": (np.float16, ()),
    "complex": (complex, (2,)),
    "another byte order": (">f8", (2,)),
    "text": ("<U5", ()),
    "times": ("<M8[s]", ()),
    "much": (np.int64, (100,)),
}


@pytest.mark.parametrize("kind", ITEMS)
@pytest.mark.parametrize("mmap", [True, False])
def test_mapped_column_reads_items_of_every_size(kind: str, mmap: bool) -> None:
    dtype, shape = ITEMS[kind]
    pack = chunks(9)
    rows = int(pack.observation_offsets[-1])
    values = np.arange(rows * int(np.prod(shape))).reshape(rows, *shape)
    items = values.astype(np.int64).astype(dtype) if np.dtype(dtype).kind == "M" else (values % 100).astype(dtype)
    pack = pack.replace(observations=items, actions=items[: len(pack.actions)])
    with stored(pack, range(1, 9), mmap=mmap) as dataset:
        reference = ReferenceSteps(dataset)
        for batch in dataset.sampler(steps=StepBatches(7, keys=["obs", "new_obs", "actions"]), seed=0):
            steps = [reference.steps[i] for i in batch.indices]
            for key in ("obs", "new_obs", "actions"):
                assert batch[key].dtype == items.dtype
                assert np.array_equal(batch[key], reference.column(key, steps))
        batches = WindowBatches(45, 5, lookback=3, keys=["obs", "new_obs", "actions"])
        windows = dataset.sampler(windows=batches, order="stored").draw()
        for key in ("obs", "new_obs", "actions"):
            assert np.array_equal(windows[key], reference.windows(key, reference.steps, 3, 5))


def test_sampler_is_thread_safe() -> None:
    with stored(chunks(30), [4]) as dataset:
        sampler = dataset.sampler(steps=5, seed=0)
        batches: list[Any] = []

        def draw() -> None:
            batches.extend(sampler.draw() for _ in range(31))

        threads = [threading.Thread(target=draw) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(int(i) for batch in batches for i in batch.indices) == list(range(465))
        for batch in batches:
            assert sampler.at(batch.indices) == batch


# --- errors ----------------------------------------------------------------------------------------------------------


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "give one of them"),
    ({"steps": 3, "episodes": 3}, "give one of them"),
    ({"steps": 0}, "at least 1"),
    ({"steps": 2.0}, "give an int"),
    ({"windows": 4}, "how many and how long"),
    ({"windows": (4, 0)}, "at least 1"),
    ({"steps": 4, "order": "random"}, "give one of 'shuffled'"),
    ({"steps": 4, "order": "shuffled", "weights": np.ones(6)}, "give 'drawn'"),
    ({"steps": 4, "weights": np.ones(5)}, "one for each of 6 episodes or of 21 steps"),
    ({"steps": 4, "weights": -np.ones(6)}, "negative, infinite or NaN"),
    ({"steps": 4, "weights": np.full(21, np.nan)}, "negative, infinite or NaN"),
    ({"steps": 4, "weights": np.zeros(6)}, "all are 0"),
    ({"steps": 4, "weights": "observations"}, "no column of one number a step"),
    ({"steps": 4, "weights": np.full(6, 1e308)}, "more than a number can be"),
    ({"steps": 4, "weights": np.full(21, 1e308)}, "more than a number can be"),
    ({"steps": 4, "weights": ["a"] * 6}, "no numbers"),
    ({"steps": 4, "seed": -1}, "at least 0"),
    ({"episodes": 4, "weights": "rewards"}, "one number for each of 6 episodes"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=str)
def test_sampler_rejects_wrong_options(options: dict[str, Any], message: str) -> None:
    with stored(chunks(6)) as dataset, pytest.raises((InvalidArgument, UnknownKey, WrongType), match=message):
        dataset.sampler(**options)


def test_refresh_of_a_part_raises() -> None:
    with stored(chunks(6)) as dataset, pytest.raises(InvalidArgument, match="a part of a data set"):
        dataset.select([0, 2]).sampler(steps=1).refresh()
