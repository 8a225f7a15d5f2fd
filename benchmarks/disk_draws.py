"""Benchmarks of sampling from the files of a data set, compared with sampling from memory and with other libraries.

A batch of this library has the default columns of a replay buffer: for 256 single steps or [64, 32] windows it has
observations, next observations, actions, rewards, both endings, origins, weights, and masks of windows. All sides
sample with replacement, in one process and one thread, from files that the operating system has cached.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.figure import Figure, Side, Size, Timed, at_least, at_most, limit
from benchmarks.peers import LEROBOT, MINARI, TORCHRL
from benchmarks.peers.datasets import minari_dataset
from benchmarks.peers.lerobot_way import FramesByNumber, batches
from benchmarks.peers.replays import torchrl_entries
from benchmarks.storage import Scratch, cartpoles, our_dataset, our_episodes, our_pack, sprites

EPISODES = 20_000  # of which 1000 are distinct
FRAME_EPISODES, FRAME_STEPS = 30, 500
STEPS = 256
WINDOWS = (64, 32)
FRAME_SECONDS = 0.010
WARM = 300  # draws
LEROBOT_EPISODES = 300
AROUND = {key: [*range(WINDOWS[1])] for key in ("observation.state", "action", "next.reward")}


@cache
def vector_dataset(num: int) -> tuple[Scratch, Any]:
    """Return a data set of `num` CartPole-like episodes (20,000 episodes have 2.2 million steps), and its directory."""
    scratch, data = Scratch(), cartpoles(min(num, 1000))
    return scratch, our_dataset(scratch.root / "data", our_pack([data[i % len(data)] for i in range(num)]))


@cache
def image_dataset(num: int, length: int) -> tuple[Scratch, Any]:
    """Return a data set of `num` episodes with frames, of `length` steps each, and its directory."""
    scratch = Scratch()
    return scratch, our_dataset(scratch.root / "data", our_pack(sprites(num, length)))


def dataset_of(size: Size, *, frames: bool = False) -> tuple[Scratch, Any]:
    """Return the data set of frames or of vectors for a workload size, and its directory."""
    return image_dataset(size(FRAME_EPISODES), size(FRAME_STEPS)) if frames else vector_dataset(size(EPISODES))


def steps_from_disk(size: Size) -> Timed:
    """Time sampling of 256 single steps from files."""
    _, dataset = dataset_of(size)
    sampler = dataset.sampler(steps=STEPS, order="drawn", seed=0)
    for _ in range(WARM):  # the pages of the files
        sampler.sample(STEPS)
    return Timed(lambda: sampler.sample(STEPS))


def steps_from_memory(size: Size) -> Timed:
    """Time sampling of 256 single steps from a replay buffer with the same data."""
    buffer = load_into_buffer(dataset_of(size)[1])
    return Timed(lambda: buffer.sample(STEPS))


def windows_from_disk(size: Size, *, frames: bool = False) -> Timed:
    """Time sampling of [64, 32] windows of steps from files, of vectors or of compressed frames."""
    scratch, dataset = dataset_of(size, frames=frames)
    options = {"cache": scratch.root / "cache"} if frames else {}
    sampler = dataset.sampler(windows=WINDOWS, order="drawn", seed=0, **options)
    return Timed(lambda: sampler.sample_sequences(*WINDOWS))


def windows_from_memory(size: Size, *, frames: bool = False) -> Timed:
    """Time sampling of [64, 32] windows of steps from a replay buffer with the same data."""
    buffer = load_into_buffer(dataset_of(size, frames=frames)[1])
    return Timed(lambda: buffer.sample_sequences(*WINDOWS))


def load_into_buffer(dataset: Any) -> Any:
    """Return a replay buffer with all episodes of a data set."""
    from episodes.replay import EpisodeReplayBuffer

    return EpisodeReplayBuffer.from_dataset(dataset, seed=0)


def shuffled_frames(size: Size) -> Timed:
    """Time the batches of one shuffled epoch over compressed frames, per batch."""
    from episodes.storage.sampling import StepBatches

    _, dataset = dataset_of(size, frames=True)
    sampler = dataset.sampler(steps=StepBatches(STEPS, keys=["obs", "actions"]), seed=0)

    def epoch() -> None:
        for _ in sampler:
            pass

    return Timed(epoch, len(sampler))


def torchrl(size: Size, *, windows: bool) -> Timed:
    """Time TorchRL's sampling of single steps or windows from a memory-mapped storage of the same transitions.

    Its batch has the columns observations and next observations (which it stores twice), actions, rewards and three
    endings, as tensors.
    """
    from torchrl.data import LazyMemmapStorage, RandomSampler, ReplayBuffer, SliceSampler

    scratch, dataset = dataset_of(size)
    batch = dataset.sampler(steps=10**9, order="stored").draw()
    entries = torchrl_entries(
        *(batch[name] for name in ("obs", "new_obs", "actions", "rewards")), batch.terminateds, batch.truncateds
    )
    sampler: Any = RandomSampler()
    if windows:
        options = {"end_key": ("next", "done"), "strict_length": False, "cache_values": True}
        sampler = SliceSampler(slice_len=WINDOWS[1], **options)
    num = WINDOWS[0] * WINDOWS[1] if windows else STEPS
    storage = LazyMemmapStorage(len(batch), scratch_dir=str(scratch.root / f"torchrl-{windows}"))
    buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=num)
    buffer.extend(entries)
    return Timed(lambda: (scratch, buffer.sample()))


def minari(size: Size, num: int, length: int) -> Timed:
    """Time Minari's sampling of whole episodes, from each of which one step or window of `length` steps is cut."""
    scratch, data = Scratch(), cartpoles(size(1000))
    dataset, rng = minari_dataset(data, scratch.root), np.random.default_rng(0)

    def run() -> Any:
        """Sample episodes, and cut a random window from each."""
        windows = []
        for episode in dataset.sample_episodes(min(num, len(data))):
            t = int(rng.integers(len(episode.rewards)))
            parts = (episode.observations, episode.actions, episode.rewards)
            windows.append([column[t : t + length] for column in parts])
        return scratch, windows

    return Timed(run)


def lerobot(size: Size, num: int, deltas: dict[str, list[int]]) -> Timed:
    """Time batches of random frames read in LeRobot's way (`FramesByNumber`), from 300 episodes in LeRobot's file
    layout.

    Single steps are read without `delta_timestamps`, which is the fastest way, and therefore without next
    observations, which the batches of this library have.
    """
    from episodes.converters import to_lerobot

    scratch = Scratch()
    to_lerobot(our_episodes(cartpoles(size(LEROBOT_EPISODES))), scratch.root / "data")
    drawn = batches(FramesByNumber(scratch.root / "data", scratch.root / "cache", deltas), num)
    return Timed(lambda: (scratch, next(drawn)))


FIGURES = (
    Figure(
        "data sets/drawn windows",
        Side("ours, disk", windows_from_disk),
        Side("ours, memory", windows_from_memory),
        at_most(2),
        "us",
    ),
    Figure(
        "data sets/drawn steps",
        Side("ours, disk", steps_from_disk),
        Side("ours, memory", steps_from_memory),
        at_most(5),
        "us",
    ),
    Figure(
        "data sets/drawn windows TorchRL",
        Side("ours, disk", windows_from_disk),
        Side("TorchRL, memory-mapped", partial(torchrl, windows=True), TORCHRL),
        at_least(5),
        "us",
    ),
    Figure(
        "data sets/drawn steps TorchRL",
        Side("ours, disk", steps_from_disk),
        Side("TorchRL, memory-mapped", partial(torchrl, windows=False), TORCHRL),
        at_least(5),
        "us",
    ),
    Figure(
        "data sets/drawn windows Minari",
        Side("ours, disk", windows_from_disk),
        Side("Minari", partial(minari, num=WINDOWS[0], length=WINDOWS[1]), MINARI),
        at_least(50),
        "us",
    ),
    Figure(
        "data sets/drawn steps Minari",
        Side("ours, disk", steps_from_disk),
        Side("Minari", partial(minari, num=STEPS, length=1), MINARI),
        at_least(50),
        "us",
    ),
    Figure(
        "data sets/drawn windows LeRobot",
        Side("ours, disk", windows_from_disk),
        Side("LeRobot's way", partial(lerobot, num=WINDOWS[0], deltas=AROUND), LEROBOT),
        at_least(100),
        "us",
    ),
    Figure(
        "data sets/drawn steps LeRobot",
        Side("ours, disk", steps_from_disk),
        Side("LeRobot's way", partial(lerobot, num=STEPS, deltas={}), LEROBOT),
        at_least(100),
        "us",
    ),
    Figure(
        "data sets/drawn shuffled frames",
        Side("ours, blocks", shuffled_frames),
        limit("10 ms", FRAME_SECONDS),
        at_most(1),
        "ms",
    ),
    Figure(
        "data sets/drawn windows of frames",
        Side("ours, decoded cache", partial(windows_from_disk, frames=True)),
        Side("ours, memory", partial(windows_from_memory, frames=True)),
        at_most(2),
        "ms",
    ),
)
