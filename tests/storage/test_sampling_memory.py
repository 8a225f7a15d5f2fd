"""Data sets larger than the memory allowed are drawn from with flat memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from episodes import EpisodePack
from episodes.storage import EpisodeWriter

SCRIPT = """
import sys
from pathlib import Path
from episodes.storage import EpisodeDataset

def anonymous():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous")) * 1024

dataset = EpisodeDataset(sys.argv[1])
small = dataset[:2]
for order in ("shuffled", "drawn"):  # what is imported and made once is there
    for what in ({"steps": 64}, {"windows": (16, 8)}):
        small.sampler(**what, order=order, seed=0, pool_bytes=1 << 21).draw()
before = anonymous()
for what, order in (({"steps": 512}, None), ({"windows": (16, 8)}, "drawn"), ({"steps": 512}, "shuffled")):
    sampler = dataset.sampler(**what, order=order, seed=0, pool_bytes=1 << 21)
    total = sum(float(sampler.draw().rewards.sum()) for _ in range(int(sys.argv[2])))
print(anonymous() - before, dataset.nbytes)
"""


def grown(path: Path, num_batches: int) -> tuple[int, int]:
    """Return the memory growth in bytes of a process that samples, and the size of the data."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), str(num_batches)], capture_output=True, text=True, check=True
    )
    result, size = map(int, ran.stdout.split())
    return result, size


def test_sampling_vectors_needs_little_memory(tmp_path: Path) -> None:
    steps, num = 400, 500
    pack = EpisodePack(
        observations=np.zeros(((steps + 1) * num, 40), np.float32),
        actions=np.zeros(steps * num, np.int64),
        rewards=np.ones(steps * num, np.float32),
        lengths=np.full(num, steps),
    )
    with EpisodeWriter(tmp_path) as writer:
        for start in range(0, num, 100):
            writer.add(pack[start : start + 100])
    result, size = grown(tmp_path, 400)
    assert size > 32 << 20
    assert result < 8 << 20


def test_sampling_frames_needs_the_pools_memory(tmp_path: Path) -> None:
    ground = np.random.default_rng(0).integers(0, 256, (84, 84), np.uint8)
    steps = 150
    frames = np.broadcast_to(ground, (steps + 1, 84, 84)).copy()
    with EpisodeWriter(tmp_path, shard_bytes=1 << 20) as writer:
        for _ in range(40):
            frames += 1
            pack = EpisodePack(
                observations=frames, actions=np.zeros(steps, np.int64), rewards=np.ones(steps), lengths=[steps]
            )
            writer.add(pack)
    decoded = 40 * frames.nbytes
    result, _ = grown(tmp_path, 12)
    assert decoded > 40 << 20
    assert result < 20 << 20  # the pool, a batch of frames before and after, and what is computed ahead
