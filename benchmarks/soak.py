"""Soak test: a load that runs for an hour, and must not need more memory, file descriptors or threads with time.

One cycle of the load samples episodes, writes them to a data set and reads them again, stores them in replay buffers
in memory and in mapped files, sends them to a receiver in this process, and asks the page server of `episodes watch`
for its page. After a warm-up of a quarter of the time, the last quarter is compared with the second one.

    python -m benchmarks.soak --minutes 60
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from statistics import median
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple
from urllib.request import urlopen

import psutil

from benchmarks.idle_process import hush

if TYPE_CHECKING:
    from episodes import EpisodePack
    from episodes.transport import EpisodeReceiver, EpisodeSender

FACTOR = 1.05  # growth of a median that counts as none, beside the constant below
SAMPLES_EACH_S = 5.0
FEWEST_SAMPLES = 40  # of a short run, which looks more often
CYCLES_OF_DATASET = 20  # after which a new data set replaces the old one


class Use(NamedTuple):
    """What the process holds at one moment."""

    memory_mib: float  # resident
    descriptors: int
    threads: int


SLACK = Use(memory_mib=8.0, descriptors=2, threads=1)


def used() -> Use:
    """Return what this process holds now."""
    process = psutil.Process()
    return Use(process.memory_info().rss / (1 << 20), process.num_fds(), process.num_threads())


def quarters(samples: list[Use]) -> list[Use]:
    """Return the medians of each quarter of the samples. Fewer than four samples raise `ValueError`."""
    if len(samples) < 4:
        raise ValueError(f"{len(samples)} samples: at least 4 are needed; give more --minutes")
    bounds = [len(samples) * i // 4 for i in range(5)]
    parts = [samples[begin:end] for begin, end in pairwise(bounds)]
    return [Use(*(median(values) for values in zip(*part, strict=True))) for part in parts]


def grown(samples: list[Use]) -> list[str]:
    """Return the names of what grew: the median of the last quarter is above that of the second one by more than 5 %
    and the slack of `SLACK`.
    """
    _, second, _, last = quarters(samples)
    return [
        name
        for name, before, after, slack in zip(Use._fields, second, last, SLACK, strict=True)
        if after > before * FACTOR + slack
    ]


@contextmanager
def load(folder: Path) -> Iterator[Callable[[], None]]:
    """Context manager that gives a function for one cycle of the load, with files in an empty folder."""
    import gymnasium as gym

    from episode_learners import MLPPolicy
    from episode_runners import SingleAgentEnvRunner
    from episodes.inspect.page_server import PageServer
    from episodes.replay import EpisodeReplayBuffer
    from episodes.storage import EpisodeDataset, EpisodeWriter
    from episodes.transport import EpisodeReceiver, EpisodeSender

    env = gym.make_vec("CartPole-v1", num_envs=8, vectorization_mode="sync")
    policy = MLPPolicy(env.single_observation_space, env.single_action_space)
    runner = SingleAgentEnvRunner(env, policy, seed=0)
    data, num_cycles = folder / "0", 0
    with ExitStack() as stack:
        buffers = [
            EpisodeReplayBuffer(5_000, seed=0),
            stack.enter_context(EpisodeReplayBuffer(5_000, seed=0, path=folder / "mapped")),
        ]
        receiver = stack.enter_context(EpisodeReceiver())
        sender = stack.enter_context(EpisodeSender(receiver.address))

        def cycle() -> None:
            """Run each part of the load once."""
            nonlocal data, num_cycles
            if num_cycles % CYCLES_OF_DATASET == 0:
                rmtree(data, ignore_errors=True)
                data = folder / str(num_cycles)
            num_cycles += 1
            episodes = runner.sample(num_timesteps=500)
            with EpisodeWriter(data) as writer:
                writer.add([episode.to_numpy() for episode in episodes])
            dataset = EpisodeDataset(data)
            len(dataset[0])
            dataset.sampler(steps=64, seed=0).sample(64)
            for buffer in buffers:
                buffer.add(episodes)
                buffer.sample(64)
                buffer.sample_sequences(4, 8)
            move(sender, receiver, episodes)
            look(PageServer, data)

        yield cycle


def move(sender: EpisodeSender, receiver: EpisodeReceiver, episodes: EpisodePack) -> None:
    """Send episodes in a thread, and wait until all are received."""

    def send() -> None:
        for episode in episodes:
            sender.send(episode)
        sender.flush()

    thread = Thread(target=send)
    thread.start()
    num_received = 0
    while num_received < len(episodes):
        num_received += len(receiver.recv())
    while thread.is_alive():  # each call of the receiver acknowledges messages
        with suppress(TimeoutError):
            receiver.recv(0.01)


def look(server_class: type, data: Path) -> None:
    """Serve the page of a data set, and request the page and its rows."""
    with server_class(data, port=0) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            for path in ("", "rows"):
                with urlopen(server.url + path) as response:
                    response.read()
        finally:
            server.shutdown()
            thread.join()


def soak(minutes: float) -> tuple[list[Use], int]:
    """Run the load for some minutes. Return what the process held at regular times, and the number of cycles."""
    seconds = minutes * 60
    interval = min(SAMPLES_EACH_S, seconds / FEWEST_SAMPLES)
    samples, num_cycles = [], 0
    with TemporaryDirectory() as folder, load(Path(folder)) as cycle:
        begin = time.monotonic()
        while (elapsed := time.monotonic() - begin) < seconds or len(samples) < 4:
            cycle()
            num_cycles += 1
            if elapsed >= len(samples) * interval:
                samples.append(used())
    return samples, num_cycles


def table(samples: list[Use]) -> str:
    """Return a Markdown table of the medians of each quarter of the time."""
    rows = zip(Use._fields, *quarters(samples), strict=True)
    lines = [f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |" for name, *values in rows]
    return "\n".join(["| median of quarter | 1 (warm-up) | 2 | 3 | 4 |", "|---|---|---|---|---|", *lines])


def main(arguments: list[str] | None = None) -> int:
    """Run the load, print a table, and return exit status 1 if the process held more and more, 0 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="duration of the load")
    options = parser.parse_args(arguments)
    hush()
    samples, num_cycles = soak(options.minutes)
    print(f"{num_cycles} cycles, {len(samples)} samples\n\n{table(samples)}")
    growing = grown(samples)
    if growing:
        print(f"\ngrew by more than {FACTOR - 1:.0%} and the slack {SLACK._asdict()}: {', '.join(growing)}")
    return 1 if growing else 0


if __name__ == "__main__":
    raise SystemExit(main())
