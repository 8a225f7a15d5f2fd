"""Sampling benchmarks from the files of a data set, against sampling from memory and other libraries.

A batch of ours has what the default draw of a replay buffer has: of 256 single steps or [64, 32] windows the
observations, those after, actions, rewards, both endings, where they came from, weights, and masks of windows. All
sides draw with replacement, in one process and one thread, and what they draw from is in the pages of the machine.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from benchmarks.figure import Figure, Side, Size, Timed, at_least, at_most, limit
from benchmarks.peers import LEROBOT, MINARI, TORCHRL
from benchmarks.peers.datasets import minari_dataset
from benchmarks.peers.lerobot_way import FramesByNumber, batches
from benchmarks.peers.replays import torchrl_entries
from benchmarks.storage import Prepare, Scratch, cartpoles, our_dataset, our_episodes, our_pack, sprites

EPISODES = 20_000  # of which 1000 are distinct
FRAME_EPISODES, FRAME_STEPS = 30, 500
STEPS = 256
WINDOWS = (64, 32)
FRAME_SECONDS = 0.010
WARM = 300  # draws
LEROBOT_EPISODES = 300
AROUND = {key: [*range(WINDOWS[1])] for key in ("observation.state", "action", "next.reward")}


@cache
def vectors(num: int) -> tuple[Scratch, Any]:
    """Return a data set of `num` CartPole-like episodes (20,000 have 2.2 million steps), and its directory."""
    scratch, pack = Scratch(), our_pack(cartpoles(min(num, 1000)))
    return scratch, our_dataset(scratch.root / "data", pack.select(np.arange(num) % len(pack)))


@cache
def images(num: int, length: int) -> tuple[Scratch, Any]:
    scratch = Scratch()
    return scratch, our_dataset(scratch.root / "data", our_pack(sprites(num, length)))


def stored(size: Size, *, frames: bool = False) -> tuple[Scratch, Any]:
    return images(size(FRAME_EPISODES), size(FRAME_STEPS)) if frames else vectors(size(EPISODES))


def steps_from_disk(size: Size) -> Timed:
    _, dataset = stored(size)
    sampler = dataset.sampler(steps=STEPS, order="drawn", seed=0)
    for _ in range(WARM):  # the pages of the files
        sampler.sample(STEPS)
    return Timed(lambda: sampler.sample(STEPS))


def steps_from_memory(size: Size) -> Timed:
    buffer = in_memory(stored(size)[1])
    return Timed(lambda: buffer.sample(STEPS))


def windows_from_disk(*, frames: bool = False) -> Prepare:
    def prepare(size: Size) -> Timed:
        scratch, dataset = stored(size, frames=frames)
        options = {"cache": scratch.root / "cache"} if frames else {}
        sampler = dataset.sampler(windows=WINDOWS, order="drawn", seed=0, **options)
        return Timed(lambda: sampler.sample_sequences(*WINDOWS))

    return prepare


def windows_from_memory(*, frames: bool = False) -> Prepare:
    def prepare(size: Size) -> Timed:
        buffer = in_memory(stored(size, frames=frames)[1])
        return Timed(lambda: buffer.sample_sequences(*WINDOWS))

    return prepare


def in_memory(dataset: Any) -> Any:
    from episodes.replay import EpisodeReplayBuffer

    return EpisodeReplayBuffer.from_dataset(dataset, seed=0)


def shuffled_frames(size: Size) -> Timed:
    """Time the batches of one shuffled epoch over compressed frames, on average."""
    from episodes.storage.sampling import StepBatches

    _, dataset = stored(size, frames=True)
    sampler = dataset.sampler(steps=StepBatches(STEPS, keys=["obs", "actions"]), seed=0)

    def epoch() -> None:
        for _ in sampler:
            pass

    return Timed(epoch, len(sampler))


def torchrl(*, windows: bool) -> Prepare:
    """Time TorchRL's sampler over a memory-mapped storage of the same transitions.

    Its batch has the same columns (observations and those after, which it stores twice, actions, rewards, three
    endings) as tensors, and their numbers.
    """

    def prepare(size: Size) -> Timed:
        from torchrl.data import LazyMemmapStorage, RandomSampler, ReplayBuffer, SliceSampler

        scratch, dataset = stored(size)
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

    return prepare


def minari(num: int, length: int) -> Prepare:
    """Time Minari's sampler of whole episodes, from each of which one step or window is cut."""

    def prepare(size: Size) -> Timed:
        scratch, data = Scratch(), cartpoles(size(1000))
        dataset, rng = minari_dataset(data, scratch.root), np.random.default_rng(0)

        def run() -> Any:
            windows = []
            for episode in dataset.sample_episodes(min(num, len(data))):
                t = int(rng.integers(len(episode.rewards)))
                parts = (episode.observations, episode.actions, episode.rewards)
                windows.append([column[t : t + length] for column in parts])
            return scratch, windows

        return Timed(run)

    return prepare


def lerobot(num: int, deltas: dict[str, list[int]]) -> Prepare:
    """Time batches in LeRobot's manner (`FramesByNumber`) from 300 episodes in LeRobot's layout.

    Single steps come without `delta_timestamps`, which is the cheapest there is, and so without the observations after
    them, which ours have.
    """

    def prepare(size: Size) -> Timed:
        from episodes.converters import to_lerobot

        scratch = Scratch()
        to_lerobot(our_episodes(cartpoles(size(LEROBOT_EPISODES))), scratch.root / "data")
        drawn = batches(FramesByNumber(scratch.root / "data", scratch.root / "cache", deltas), num)
        return Timed(lambda: (scratch, next(drawn)))

    return prepare


FIGURES = (
    Figure(
        "data sets/drawn windows",
        Side("ours, disk", windows_from_disk()),
        Side("ours, memory", windows_from_memory()),
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
        Side("ours, disk", windows_from_disk()),
        Side("TorchRL, memory-mapped", torchrl(windows=True), TORCHRL),
        at_least(5),
        "us",
    ),
    Figure(
        "data sets/drawn steps TorchRL",
        Side("ours, disk", steps_from_disk),
        Side("TorchRL, memory-mapped", torchrl(windows=False), TORCHRL),
        at_least(5),
        "us",
    ),
    Figure(
        "data sets/drawn windows Minari",
        Side("ours, disk", windows_from_disk()),
        Side("Minari", minari(*WINDOWS), MINARI),
        at_least(50),
        "us",
    ),
    Figure(
        "data sets/drawn steps Minari",
        Side("ours, disk", steps_from_disk),
        Side("Minari", minari(STEPS, 1), MINARI),
        at_least(50),
        "us",
    ),
    Figure(
        "data sets/drawn windows LeRobot",
        Side("ours, disk", windows_from_disk()),
        Side("LeRobot's way", lerobot(WINDOWS[0], AROUND), LEROBOT),
        at_least(100),
        "us",
    ),
    Figure(
        "data sets/drawn steps LeRobot",
        Side("ours, disk", steps_from_disk),
        Side("LeRobot's way", lerobot(STEPS, {}), LEROBOT),
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
        Side("ours, decoded cache", windows_from_disk(frames=True)),
        Side("ours, memory", windows_from_memory(frames=True)),
        at_most(2),
        "ms",
    ),
)
