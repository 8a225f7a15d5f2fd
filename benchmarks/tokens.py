"""Benchmarks of token episodes: recording a turn, and batches of token sequences compared with plain concatenations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.figure import Counted, Figure, Side, Size, Timed, at_most, cpu_seconds, limit

TOKENS = 200_000  # of a batch
TURNS = 5
SAMPLED, REPLY = 100, 60  # tokens of a recorded turn
RECORDED_TURNS = 20
_DTYPES = (np.int32, np.int32, bool, np.int32, np.float32, np.float32)  # of the six columns


def conversations(size: Size, length: int) -> Any:
    """Return a pack of conversations with five turns, in which prompts, sampled answers and replies have `length`
    tokens on average.
    """
    from episodes import EpisodePack
    from episodes.tokens import Conversation

    rng, episodes = np.random.default_rng(0), []
    for k in range(size(max(TOKENS // (2 * TURNS * length), 1))):
        talk = Conversation(f"e{k}")
        talk.begin(pieces_of(rng, length))
        for t in range(TURNS):
            ids, is_last = pieces_of(rng, length), t == TURNS - 1
            reply = () if is_last else pieces_of(rng, length)
            talk.turn(ids, reply, 1.0, terminated=is_last, logp=np.zeros(len(ids), np.float32))
        episodes.append(talk.episode)
    return EpisodePack.from_episodes(episodes)


def pieces_of(rng: np.random.Generator, length: int) -> np.ndarray:
    """Return a random array of token ids, of `length` tokens on average."""
    return rng.integers(0, 1000, rng.poisson(length) + 1).astype(np.int32)


def ready_pieces(pack: Any) -> list[np.ndarray]:
    """Return copies of the observations and actions (arrays of token ids) of a pack, alternating."""
    return [
        piece.copy()
        for episode in pack
        for t in range(len(episode))
        for piece in (episode.get_observations(t), episode.get_actions(t))
    ]


def batching(size: Size, length: int, **options: Any) -> Timed:
    """Time `token_batch` of a pack of conversations."""
    from episodes.tokens import token_batch

    pack = conversations(size, length)
    advantages = np.linspace(-1, 1, len(pack))
    return Timed(lambda: token_batch(pack, episode_advantages=advantages, **options), clock=cpu_seconds)


def six_concatenations(size: Size, length: int) -> Timed:
    """Time one `np.concatenate` for each of the six columns of a token batch, which is the least work for the batch."""
    pieces = ready_pieces(conversations(size, length))
    columns = [[np.zeros(len(piece), dtype) for piece in pieces] for dtype in _DTYPES]
    return Timed(lambda: [np.concatenate(column) for column in columns], clock=cpu_seconds)


def token_ids(size: Size, length: int) -> Timed:
    """Time the concatenation of all token ids of a pack by `TokenSequences.tokens`."""
    from episodes.tokens.sequences import TokenSequences

    pack = conversations(size, length)
    return Timed(lambda: TokenSequences(pack).tokens(), clock=cpu_seconds)


def one_concatenation(size: Size, length: int) -> Timed:
    """Time one `np.concatenate` of all arrays of token ids."""
    pieces = ready_pieces(conversations(size, length))
    return Timed(lambda: np.concatenate(pieces), clock=cpu_seconds)


def sample_per_turn(size: Size, length: int) -> Timed:
    """Time token ids and mask of a format with one sample per turn, which repeats all tokens before the turn."""
    samples = samples_per_turn(conversations(size, length))

    def run() -> None:
        np.concatenate([piece for sample in samples for piece in sample])
        lengths = np.array([[sum(map(len, sample[:-1])), len(sample[-1])] for sample in samples]).reshape(-1)
        np.repeat(np.tile([False, True], len(samples)), lengths)

    return Timed(run, clock=cpu_seconds)


def samples_per_turn(pack: Any) -> list[list[np.ndarray]]:
    """Return a list of token arrays for each turn: all tokens before the turn, and the turn."""
    pieces, samples = ready_pieces(pack), []
    for start in range(0, len(pieces), 2 * TURNS):
        samples += [pieces[start : start + 2 * (t + 1)] for t in range(TURNS)]
    return samples


def num_tokens(size: Size, length: int) -> Counted:
    """Count the bytes of the token ids of a pack as sequences of this library."""
    from episodes.tokens.sequences import TokenSequences

    return Counted(4 * len(TokenSequences(conversations(size, length)).tokens()))


def num_tokens_per_turn(size: Size, length: int) -> Counted:
    """Count the bytes of the token ids in a format with one sample per turn."""
    samples = samples_per_turn(conversations(size, length))
    return Counted(4 * sum(len(piece) for sample in samples for piece in sample))


def recording_arrays(size: Size) -> Timed:
    """Time recording turns of 100 sampled tokens and a reply of 60 tokens, per turn."""
    ids, reply, logp = np.arange(SAMPLED, dtype=np.int32), np.arange(REPLY, dtype=np.int32), np.zeros(SAMPLED, "f4")
    return _recording(size, lambda talk, t: talk.turn(ids, reply, 1.0, logp=logp))


def recording_prompts(size: Size) -> Timed:
    """Time recording the same turns from complete prompts, which repeat all earlier tokens (up to 3,260), per turn."""
    ids, reply, logp = np.arange(SAMPLED, dtype=np.int32), np.arange(REPLY, dtype=np.int32), np.zeros(SAMPLED, "f4")
    tokens = np.concatenate([reply, *[ids, reply] * RECORDED_TURNS])
    prompts = [tokens[: REPLY + (SAMPLED + REPLY) * (t + 1)].copy() for t in range(RECORDED_TURNS)]
    return _recording(size, lambda talk, t: talk.turn(ids, prompt=prompts[t], reward=1.0, logp=logp))


def _recording(size: Size, turn: Callable[[Any, int], None]) -> Timed:
    """Time recording 20 turns of a new conversation with the function `turn`, per turn."""
    from episodes.tokens import Conversation

    num_turns, prompt = size(RECORDED_TURNS), np.arange(REPLY, dtype=np.int32)

    def begun() -> Any:
        talk = Conversation("a")
        talk.begin(prompt)
        return talk

    def run(talk: Any) -> None:
        for t in range(num_turns):
            turn(talk, t)

    return Timed(run, num_turns, begun, cpu_seconds)


FIGURES = (
    Figure("tokens/turn of arrays", Side("ours", recording_arrays), limit("5 us", 5e-6), at_most(1), "us"),
    Figure("tokens/turn of whole prompts", Side("ours", recording_prompts), limit("15 us", 15e-6), at_most(1), "us"),
    *(
        Figure(
            f"tokens/six columns, pieces of {length}",
            Side("token_batch", partial(batching, length=length)),
            Side("np.concatenate", partial(six_concatenations, length=length)),
            at_most(1),
            "ms",
        )
        for length in (25, 75, 300)
    ),
    *(
        Figure(
            f"tokens/ids, pieces of {length}",
            Side("ours", partial(token_ids, length=length)),
            Side("np.concatenate", partial(one_concatenation, length=length)),
            at_most(1.5),
            "us",
        )
        for length in (25, 75, 300)
    ),
    Figure(
        "tokens/padded",
        Side("padded", partial(batching, length=75, layout="padded")),
        Side("packed", partial(batching, length=75)),
        at_most(2),
        "ms",
    ),
    Figure(
        "tokens/bytes of ids",
        Side("ours", partial(num_tokens, length=75)),
        Side("a sample per turn", partial(num_tokens_per_turn, length=75)),
        at_most(0.5),
        "bytes",
    ),
    Figure(
        "tokens/ids and a sample per turn",
        Side("ours", partial(token_ids, length=75)),
        Side("a sample per turn", partial(sample_per_turn, length=75)),
        at_most(1),
        "us",
    ),
)
