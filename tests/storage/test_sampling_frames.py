"""Compressed tracks are drawn as if they were not, decoded once an epoch or once and for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_sampling import ReferenceSteps, same

from episodes import EpisodePack
from episodes.errors import InvalidArgument, UnreadableData
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage.sampling import StepBatches, WindowBatches
from episodes.storage.sampling.decoded_columns import DecodedColumn
from episodes.storage.sampling.orders import Blocks, runs_of

BLOCK = 8 * 64 * 64  # bytes of 8 frames


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("episodes.storage.compressed_tracks.BLOCK_BYTES", BLOCK)


def frames(path: Path, num: int = 6, length: int = 50, compression: str = "auto", **options: Any) -> EpisodeDataset:
    """Write chunks of frames [64, 64] with a few blocks each, in two shards."""
    lengths, lookbacks = length - np.arange(num), np.arange(num) % 3
    steps = int((lengths + lookbacks).sum())
    pack = EpisodePack(
        observations={
            "camera": np.random.default_rng(0).integers(0, 256, (steps + num, 64, 64), np.uint8),
            "joints": np.arange(2.0 * (steps + num)).reshape(-1, 2),
        },
        actions=np.arange(steps),
        rewards=np.arange(steps) / 2,
        lengths=lengths,
        lookbacks=lookbacks,
    )
    for part in (pack[: num // 2], pack[num // 2 :]):
        with EpisodeWriter(path, compression=compression, **options) as writer:
            writer.add(part)
    return EpisodeDataset(path)


def decoded_by(sampler: Any) -> int:
    return sum(c.num_decoded for c in sampler._tracks.columns if isinstance(c, DecodedColumn))


@pytest.mark.parametrize("options", [{}, {"pool_bytes": 1}, {"pool_bytes": 3 * BLOCK}, {"cache": "c"}], ids=str)
def test_sampled_frames_equal_the_episodes(options: dict[str, Any], tmp_path: Path, small_blocks: None) -> None:
    dataset = frames(tmp_path / "data")
    reference = ReferenceSteps(dataset)
    if "cache" in options:
        options = {"cache": tmp_path / "cache"}
    for batch in dataset.sampler(steps=StepBatches(32, keys=["obs", "new_obs", "actions"]), seed=0, **options):
        rows = [reference.steps[i] for i in batch.indices]
        for key in ("obs", "new_obs", "actions"):
            assert same(batch.to_dict()[key], reference.column(key, rows))
    kind = WindowBatches(8, 6, lookback=2, keys=["obs", "new_obs"])
    sampler = dataset.sampler(windows=kind, seed=0, **options)
    for _ in range(4):
        batch = sampler.draw()
        rows = [reference.steps[i] for i in batch.indices[:, 2]]
        for key in ("obs", "new_obs"):
            assert same(batch.to_dict()[key], reference.windows(key, rows, 2, 6))


def test_blocks_order_decodes_each_block_once(tmp_path: Path, small_blocks: None) -> None:
    dataset = frames(tmp_path, 20, 60)
    num_blocks = sum(-(-(len(e) + 1 + e.tracks.lookback) // 8) for e in dataset)
    sampler = dataset.sampler(steps=StepBatches(32, keys=["obs"]), seed=0, pool_bytes=40 * BLOCK)
    assert sampler.order == "blocks"
    for epoch in range(1, 4):
        assert sorted(int(i) for batch in sampler for i in batch.indices) == list(range(sampler.num_steps))
        assert decoded_by(sampler) <= epoch * num_blocks
    both = dataset.sampler(steps=StepBatches(32, keys=["obs", "new_obs"]), seed=0, pool_bytes=40 * BLOCK)
    for _ in both:
        pass
    assert decoded_by(both) < 1.3 * num_blocks
    at_random = dataset.sampler(steps=StepBatches(32, keys=["obs"]), order="shuffled", seed=0, pool_bytes=40 * BLOCK)
    for _ in at_random:
        pass
    assert decoded_by(at_random) > 2 * num_blocks


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any),
    lookbacks=st.lists(st.integers(0, 12), min_size=8, max_size=8),
    size=st.integers(1, 9),
    at_once=st.integers(1, 5),
    seed=st.integers(0, 5),
)
def test_runs_of_covers_each_step_once(
    lengths: list[int], lookbacks: list[int], size: int, at_once: int, seed: int
) -> None:
    part, back = np.array(lengths), np.array(lookbacks[: len(lengths)])
    ends = part.cumsum()
    starts, stops = runs_of(ends - part, part, back, size)
    assert (stops > starts).all()
    assert np.concatenate([np.arange(a, b) for a, b in zip(starts, stops, strict=True)]).tolist() == list(
        range(ends[-1])
    )
    for a, b in zip(starts, stops, strict=True):
        e = int(ends.searchsorted(a, side="right"))
        first, last = a - (ends - part)[e] + back[e], b - 1 - (ends - part)[e] + back[e]
        assert b <= ends[e]
        assert first // size == last // size
    order, num = Blocks(starts, stops, at_once, seed), int(ends[-1])
    for epoch in (1, 0):
        whole = order.at(epoch * num, (epoch + 1) * num)
        assert sorted(whole.tolist()) == list(range(num))
        parts = [order.at(k, k + 1)[0] for k in range(epoch * num, (epoch + 1) * num)]
        assert parts == whole.tolist()


def test_decoded_cache_is_rewritten_only_if_truncated(tmp_path: Path, small_blocks: None) -> None:
    dataset, cache = frames(tmp_path / "data"), tmp_path / "cache"
    expected = dataset.sampler(steps=16, seed=0, order="shuffled", cache=cache).draw()
    files = sorted(cache.iterdir())
    times = [file.stat().st_mtime_ns for file in files]
    assert sum(file.stat().st_size for file in files) == sum(len(e) + 1 + e.tracks.lookback for e in dataset) * 64 * 64
    assert dataset.sampler(steps=16, seed=0, cache=cache).draw() == expected
    assert [file.stat().st_mtime_ns for file in files] == times
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-1])
    assert dataset.sampler(steps=16, seed=0, cache=cache).draw() == expected
    assert sorted(cache.iterdir()) == files


def test_damaged_block_names_its_file(tmp_path: Path, small_blocks: None) -> None:
    dataset = frames(tmp_path)
    (first, _) = sorted(tmp_path.glob("*.arrow"))
    data = bytearray(first.read_bytes())
    at = data.index(b"\x28\xb5\x2f\xfd")  # a zstd frame
    data[at : at + 4] = b"nope"
    first.write_bytes(data)
    damaged = EpisodeDataset(tmp_path)
    with pytest.raises(UnreadableData, match=first.name):
        for _ in damaged.sampler(steps=64, order="stored"):
            pass
    with pytest.raises(UnreadableData, match=first.name):
        damaged.sampler(steps=64, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())
    assert len(list(dataset[3:].sampler(steps=64, order="stored")))
    with pytest.raises(InvalidArgument, match="whole episodes"):
        dataset.sampler(episodes=2, order="blocks")
