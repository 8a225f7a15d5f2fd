"""Benchmarks of conversations, whose turns have different numbers of tokens: memory per conversation, and sampling from
disk.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.figure import Counted, Figure, Side, Size, Timed, at_most
from episodes import EpisodePack, Ragged

NUM = 2_000  # conversations
PROMPT, ANSWER = 100, 60  # mean tokens of a turn
COLUMNS = 4 + 4 + 1 + 4  # bytes of a sampled token: id, log-probability, mask, version


def conversations(size: Size, tokens: int) -> tuple[EpisodePack, int]:
    """Return a pack of conversations with about `tokens` tokens each, and the bytes of their tokens, token columns and
    rewards.
    """
    num, turns = size(NUM), max(round(tokens / (PROMPT + ANSWER)), 1)
    rng = np.random.default_rng(0)
    prompts = rng.multinomial(PROMPT * turns, [1 / turns] * turns, num)
    prompts = np.append(prompts, np.zeros((num, 1), np.int64), 1).reshape(-1)  # nothing after the last answer
    answers = rng.multinomial(ANSWER * turns, [1 / turns] * turns, num).reshape(-1)
    actions = Ragged.from_lengths(rng.integers(0, 50_000, answers.sum(), np.int32), answers)
    pack = EpisodePack(
        observations=Ragged.from_lengths(rng.integers(0, 50_000, prompts.sum(), np.int32), prompts),
        actions=actions,
        rewards=np.zeros(num * turns),
        lengths=np.full(num, turns),
        terminated=np.ones(num, bool),
        ids=[f"c{i:06}" for i in range(num)],
        extra_model_outputs={
            "logp": Ragged.of(rng.random(answers.sum(), np.float32), actions.offsets),
            "learned": Ragged.of(np.ones(answers.sum(), bool), actions.offsets),
            "version": Ragged.of(np.zeros(answers.sum(), np.int32), actions.offsets),
        },
    )
    return pack, int(4 * prompts.sum() + COLUMNS * answers.sum() + pack.rewards.nbytes)


def in_memory(tokens: int, size: Size) -> Counted:
    """Count the bytes of a conversation in memory, as part of a pack."""
    pack, _ = conversations(size, tokens)
    facts = pack.lengths.nbytes + pack.lookbacks.nbytes + pack.ids.nbytes + pack.facts.endings.nbytes
    return Counted((pack.retained_nbytes + facts) / len(pack))


def in_a_message(tokens: int, size: Size) -> Counted:
    """Count the bytes of a conversation in a message between processes."""
    from episodes.transport.wire import Schemas, encoded

    pack, _ = conversations(size, tokens)
    return Counted(encoded([pack], Schemas()).nbytes / len(pack))


def on_disk(tokens: int, size: Size) -> Counted:
    """Count the bytes of a conversation in the files of a data set."""
    from episodes.storage import EpisodeWriter

    pack, _ = conversations(size, tokens)
    with tempfile.TemporaryDirectory() as folder:
        with EpisodeWriter(folder) as writer:
            writer.add(pack)
        return Counted(sum(file.stat().st_size for file in Path(folder).glob("*.arrow")) / len(pack))


def tokens_alone(tokens: int, size: Size) -> Counted:
    """Count the bytes of a conversation's tokens, token columns and rewards, without any other data."""
    pack, nbytes = conversations(size, tokens)
    return Counted(nbytes / len(pack))


def from_disk(size: Size) -> Timed:
    """Time reading 64 random conversations from the memory-mapped files of a data set, per conversation."""
    from episodes.storage import EpisodeDataset, EpisodeWriter

    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with EpisodeWriter(folder) as writer:
        writer.add(conversations(size, 5_000)[0])
    return Timed(EpisodeDataset(folder).sampler(episodes=64, order="drawn", seed=0).draw, 64)


def from_memory(size: Size) -> Timed:
    """Time selecting 64 random conversations from a pack in memory, per conversation."""
    pack, rng = conversations(size, 5_000)[0], np.random.default_rng(0)
    return Timed(lambda: pack.select(rng.integers(0, len(pack), 64)), 64)


def _size(name: str, tokens: int, measure: Callable[[int, Size], Counted], limit: float) -> Figure:
    """Return a benchmark of the bytes of a conversation in one kind of storage, compared with its tokens alone."""
    return Figure(
        f"ragged/{name}, {tokens} tokens",
        Side("ours", partial(measure, tokens)),
        Side("tokens alone", partial(tokens_alone, tokens)),
        at_most(limit),
        "bytes",
    )


FIGURES = (
    *(
        _size(name, tokens, measure, limit)
        for tokens, limit in ((650, 1.05), (5_000, 1.02))
        for name, measure in (("memory", in_memory), ("message", in_a_message), ("disk", on_disk))
    ),
    Figure("ragged/64 conversations from disk", Side("disk", from_disk), Side("memory", from_memory), at_most(2), "us"),
)
