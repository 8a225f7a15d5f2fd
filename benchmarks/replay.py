"""Replay benchmarks: sampling of transitions, sequences and frame stacks, priorities, and adding of steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np

from benchmarks.calls import count_calls
from benchmarks.data import ACTION_SPACE, OBSERVATION_SPACE, frame_episode, random_frames
from benchmarks.figure import Counted, Figure, Side, Size, Timed, at_least, at_most, limit
from benchmarks.peers import CPPRB, RLLIB, SB3, TIANSHOU, TORCHRL, replays
from benchmarks.recording import ROWS, rollout, vector_steps
from benchmarks.transitions import BATCH, LENGTH, PRIORITY_ALPHA, PRIORITY_BETA, STORED, transitions

FRAMES = 20_000
STACK = 4
SHAPES = ((8, 32), (16, 64))
ADDING_ENVS = 64
LEARNER_STEPS = 500
LEARNING_SECONDS = 0.002
LONGEST_WAIT = 0.0002
# A step's episode, its time there, the steps before and after it, and where its two observations are.
LINKS = (np.int64, np.int64, np.int64, np.int64, np.int32, np.int32)


def stored_pack(num_steps: int) -> Any:
    """Return terminated episodes with `num_steps` steps in total, as one pack."""
    from episodes import EpisodePack

    length = min(LENGTH, num_steps)
    count = num_steps // length
    rng = np.random.default_rng(0)
    return EpisodePack(
        observations=rng.standard_normal((count * (length + 1), 4), np.float32),
        actions=rng.integers(0, 2, count * length),
        rewards=np.ones(count * length, np.float32),
        lengths=np.full(count, length),
        terminated=np.ones(count, bool),
        observation_space=OBSERVATION_SPACE,
        action_space=ACTION_SPACE,
    )


def filled_buffer(num_steps: int) -> Any:
    """Return this library's uniform replay buffer, filled with `num_steps` steps."""
    from episodes.replay import EpisodeReplayBuffer

    pack = stored_pack(num_steps)
    buffer = EpisodeReplayBuffer(pack.num_steps, seed=0)
    buffer.add(pack)
    return buffer


def uniform(size: Size, stored: int = STORED, n_step: int = 1) -> Timed:
    """Time uniform sampling of 256 transitions from this library's replay buffer."""
    buffer = filled_buffer(size(stored))
    return Timed(lambda: buffer.sample(BATCH, n_step=n_step))


def bare_gather(size: Size, gather: Callable[[np.ndarray, np.ndarray], np.ndarray], stored: int = STORED) -> Timed:
    """Time the least work of sampling: random indices, and one numpy indexing operation (`gather`) per column."""
    data = transitions(size(stored))
    rng = np.random.default_rng(0)
    columns = (data.obs, data.new_obs, data.actions, data.rewards, data.terminateds, data.truncateds)

    def run() -> list[np.ndarray]:
        rows = rng.integers(0, len(data.obs), BATCH)
        return [gather(column, rows) for column in columns]

    return Timed(run)


def index_rows(column: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Select rows of a column by indexing."""
    return column[rows]


def take_rows(column: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Select rows of a column with `np.take`."""
    return column.take(rows, axis=0)


def prioritized(size: Size, *, update: bool) -> Timed:
    """Time prioritized sampling of 256 transitions from this library's replay buffer, optionally with an update of
    their priorities.
    """
    from episodes.replay import PrioritizedEpisodeReplayBuffer

    data = transitions(size(STORED))
    pack = stored_pack(size(STORED))
    buffer = PrioritizedEpisodeReplayBuffer(pack.num_steps, alpha=PRIORITY_ALPHA, beta=PRIORITY_BETA, seed=0)
    buffer.add(pack)
    buffer.update_priorities(np.arange(pack.num_steps), data.priorities)

    def run() -> None:
        drawn = buffer.sample(BATCH)
        if update:
            buffer.update_priorities(drawn.indices, data.new_priorities)

    return Timed(run)


def sequences(size: Size, batch_size: int, length: int, stored: int = STORED) -> Timed:
    """Time sampling of sequences of `length` steps from this library's replay buffer."""
    buffer = filled_buffer(size(stored))
    return Timed(lambda: buffer.sample_sequences(batch_size, length))


def uniform_of_recorded(size: Size, num_envs: int) -> Timed:
    """Time uniform sampling from a buffer that `num_envs` environments have filled step by step."""
    stored = size(STORED)
    buffer, step = recorded_buffer(min(num_envs, stored // 2), stored)
    while len(buffer) < stored:
        step()
    return Timed(lambda: buffer.sample(BATCH))


def recorded_buffer(num_envs: int, capacity: int) -> tuple[Any, Callable[[], None]]:
    """Return an empty replay buffer, and a function that records the next vector step of CartPole into the buffer."""
    from episodes.replay import EpisodeReplayBuffer

    envs, (observations, infos), rows = rollout(num_envs, ROWS)
    buffer = EpisodeReplayBuffer(capacity, seed=0)
    recorder = buffer.recorder(num_envs, autoreset_mode=envs.metadata["autoreset_mode"])
    recorder.reset(observations, infos)
    endless_rows = cycle(rows)

    def step() -> None:
        recorder.step(*next(endless_rows))

    return buffer, step


def adding(size: Size) -> Timed:
    """Time recording one vector step of 64 environments into a full buffer, per environment step."""
    count = size(ADDING_ENVS)
    buffer, step = recorded_buffer(count, 2 * size(STORED))
    while len(buffer) < buffer.capacity:
        step()
    return Timed(step, count)


class _NoLock:
    """Context manager without any effect, which replaces a lock. Entering and leaving take one C call each."""

    __enter__ = int
    __exit__ = slice


def unlocked(size: Size) -> Timed:
    """Time uniform sampling without the lock that every call of a buffer acquires."""
    buffer: Any = filled_buffer(size(STORED))
    buffer.lock = _NoLock()
    return Timed(lambda: buffer.sample(BATCH))


def prefetched(size: Size) -> Counted:
    """Measure the median seconds that a learner with `Prefetch` waits for its next batch, after 2 ms of learning."""
    from connectors.prefetch import Prefetch

    buffer = filled_buffer(size(STORED))
    waits = []
    with Prefetch(lambda: buffer.sample(BATCH), device="cpu") as batches:
        for _ in range(size(LEARNER_STEPS)):
            sleep(LEARNING_SECONDS)
            start = perf_counter()
            next(batches)
            waits.append(perf_counter() - start)
    return Counted(median(waits))


def library_calls(size: Size, act: Callable[[Any, Callable[[], None]], None]) -> Counted:
    """Count the functions of this library that `act(buffer, step)` calls, with a buffer that 8 environments fill."""
    buffer, step = recorded_buffer(8, 2 * size(STORED))
    for _ in range(3):
        step()
        act(buffer, step)
    return Counted(count_calls(lambda: act(buffer, step)))


def draw_only(buffer: Any, step: Callable[[], None]) -> None:
    """Sample a batch from a buffer."""
    buffer.sample(BATCH)


def step_and_draw(buffer: Any, step: Callable[[], None]) -> None:
    """Record a vector step into a buffer, and sample a batch."""
    step()
    buffer.sample(BATCH)


def bare_adding(size: Size) -> Timed:
    """Time the least work of adding, per environment step: one numpy assignment per column for a vector step, with the
    link columns of this library's buffer.
    """
    count = size(ADDING_ENVS)
    capacity = 2 * size(STORED)
    rows = vector_steps(count)
    columns = [np.zeros((capacity, *part.shape[1:]), part.dtype) for part in rows[0]]
    links = [np.zeros(capacity, dtype) for dtype in LINKS]
    envs, endless_rows, head = np.arange(count), cycle(rows), 0

    def step() -> None:
        """Write the next vector step into the columns."""
        nonlocal head
        slots = (envs + head) % capacity
        for column, values in zip(columns, next(endless_rows), strict=True):
            column[slots] = values
        for column in links:
            column[slots] = slots
        head = (head + count) % capacity

    return Timed(step, count)


def drawn_stacks(size: Size) -> Timed:
    """Time sampling of 32 transitions whose observations and next observations are stacks of 4 frames."""
    from connectors.env_to_module import FrameStacking
    from connectors.views.view import Views
    from episodes import EpisodePack
    from episodes.replay import EpisodeReplayBuffer

    episode = frame_episode(size(FRAMES))
    views = Views([FrameStacking(num_frames=STACK)], episode.observation_space, ACTION_SPACE)
    buffer = EpisodeReplayBuffer(len(episode), seed=0)
    buffer.add(EpisodePack.from_episodes([episode]))
    return Timed(lambda: buffer.sample(32, views=views))


def gathered_stacks(size: Size) -> Timed:
    """Time sampling of the same stacks [32, 84, 84, 4] with numpy only, by one indexing operation for each
    observation.
    """
    steps = size(FRAMES)
    rows = random_frames(steps + 1)
    rng = np.random.default_rng(0)
    before = np.arange(STACK - 1, -1, -1)

    def run() -> tuple[np.ndarray, np.ndarray]:
        index = np.maximum(rng.integers(0, steps, 32)[:, None] - before, 0)
        ends = rows[index], rows[np.minimum(index + 1, steps)]
        return np.moveaxis(ends[0][..., 0], 1, -1), np.moveaxis(ends[1][..., 0], 1, -1)

    return Timed(run)


UNIFORM = Side("ours", uniform)
OF_A_MILLION = Side("ours", partial(uniform, stored=1_000_000))
DRAW = Side("ours", partial(prioritized, update=False))
DRAW_AND_UPDATE = Side("ours", partial(prioritized, update=True))


def against_peers() -> tuple[Figure, ...]:
    """Return benchmarks that compare uniform sampling with numpy and with every other library."""
    peers = (
        (Side("numpy", partial(bare_gather, gather=index_rows)), at_most(1.6)),
        (Side("take", partial(bare_gather, gather=take_rows)), at_most(1.6)),
        (Side("cpprb", replays.cpprb_uniform, CPPRB), at_least(1)),
        (Side("SB3", replays.sb3_uniform, SB3), at_least(1)),
        (Side("Tianshou", replays.tianshou_uniform, TIANSHOU), at_least(1)),
        (Side("TorchRL", replays.torchrl_uniform, TORCHRL), at_least(1)),
        (Side("RLlib", replays.rllib_uniform, RLLIB), at_least(100)),
    )
    return tuple(Figure(f"replay/uniform {peer.name}", UNIFORM, peer, bar, "us") for peer, bar in peers)


def prioritized_figures() -> tuple[Figure, ...]:
    """Return benchmarks that compare prioritized sampling with other libraries, with and without an update of the
    priorities.
    """
    figures = []
    for name, ours, update in (("draw", DRAW, False), ("draw and update", DRAW_AND_UPDATE, True)):
        cpprb = Side("cpprb", partial(replays.cpprb_prioritized, update=update), CPPRB)
        tianshou = Side("Tianshou", partial(replays.tianshou_prioritized, update=update), TIANSHOU)
        figures += [
            Figure(f"replay/prioritized {name} cpprb", ours, cpprb, at_least(1), "us"),
            Figure(f"replay/prioritized {name} Tianshou", ours, tianshou, at_most(1.3), "us"),
        ]
    return tuple(figures)


def sequence_figures() -> tuple[Figure, ...]:
    """Return benchmarks that compare sampling of sequences with TorchRL and RLlib, and sampling from a large buffer
    with a small buffer.
    """
    figures = []
    for batch_size, length in SHAPES:
        ours = Side("ours", partial(sequences, batch_size=batch_size, length=length))
        name = f"replay/sequences {batch_size} x {length}"
        small = Side("ours, 10k", partial(sequences, batch_size=batch_size, length=length, stored=10_000))
        large = Side("ours", partial(sequences, batch_size=batch_size, length=length, stored=1_000_000))
        torchrl = Side("TorchRL", partial(replays.torchrl_sequences, batch_size=batch_size, length=length), TORCHRL)
        rllib = Side("RLlib", partial(replays.rllib_sequences, batch_size=batch_size, length=length), RLLIB)
        figures += [
            Figure(f"{name} TorchRL", ours, torchrl, at_least(10), "us"),
            Figure(f"{name} RLlib", ours, rllib, at_least(10), "us"),
            Figure(f"{name} of 1M stored", large, small, at_most(1.5), "us"),
        ]
    return tuple(figures)


def adding_figures() -> tuple[Figure, ...]:
    """Return benchmarks that compare adding a vector step of 64 environments with numpy and with every other library.

    SB3 and cpprb copy the rows as they are: they do not store which episode a step belongs to, and store both of
    its observations.
    """
    ours = Side("ours", adding)
    peers = (
        (Side("numpy", bare_adding), at_most(4)),
        (Side("cpprb", partial(replays.cpprb_adding, num_envs=ADDING_ENVS), CPPRB), at_least(2)),
        (Side("SB3", partial(replays.sb3_adding, num_envs=ADDING_ENVS), SB3), at_least(2)),
        (Side("Tianshou", partial(replays.tianshou_adding, num_envs=ADDING_ENVS), TIANSHOU), at_least(2)),
        (Side("TorchRL", partial(replays.torchrl_adding, num_envs=ADDING_ENVS), TORCHRL), at_least(2)),
    )
    return tuple(Figure(f"replay/add, 64 envs {peer.name}", ours, peer, bar, "us") for peer, bar in peers)


FIGURES = (
    *against_peers(),
    Figure(
        "replay/uniform of 1M stored",
        OF_A_MILLION,
        Side("ours, 10k", partial(uniform, stored=10_000)),
        at_most(1.5),
        "us",
    ),
    Figure(
        "replay/uniform of 1M numpy",
        OF_A_MILLION,
        Side("numpy, 1M", partial(bare_gather, gather=index_rows, stored=1_000_000)),
        at_most(1.6),
        "us",
    ),
    Figure(
        "replay/uniform from 1,000 envs",
        Side("ours", partial(uniform_of_recorded, num_envs=1000)),
        Side("ours, 1 env", partial(uniform_of_recorded, num_envs=1)),
        at_most(1.5),
        "us",
    ),
    Figure(
        "replay/uniform n_step=3",
        Side("ours", partial(uniform, n_step=3)),
        Side("ours, 1", UNIFORM.prepare),
        at_most(2),
        "us",
    ),
    *prioritized_figures(),
    *sequence_figures(),
    Figure("replay/frame stacks", Side("ours", drawn_stacks), Side("numpy", gathered_stacks), at_most(1.4), "us"),
    *adding_figures(),
    Figure("replay/uniform, its lock", UNIFORM, Side("without", unlocked), at_most(1.05), "us"),
    Figure("replay/prefetch, wait", Side("ours", prefetched), limit("0.2 ms", LONGEST_WAIT), at_most(1), "us"),
    Figure(
        "replay/calls, draw",
        Side("ours", partial(library_calls, act=draw_only)),
        limit("20", 20),
        at_most(1),
        "operations",
    ),
    Figure(
        "replay/calls, step and draw",
        Side("ours", partial(library_calls, act=step_and_draw)),
        limit("90", 90),
        at_most(1),
        "operations",
    ),
)
