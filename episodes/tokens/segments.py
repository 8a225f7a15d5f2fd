"""Index arithmetic that builds token sequences from a conversation's segments, each of which is one
observation or one action.

The tokens of a pack are a stream of segments: observations and actions in turn, episode after episode.

    episode        a                        b
    segment        o0  a0  o1  a1  o2       o0  a0  o1
    stream index   0   1   2   3   4        5   6   7

A sequence is a list of segments of one episode. Usually an episode is one sequence: all its segments. If observation t
follows only the first k tokens of the sequence, a new sequence begins with these k tokens, as context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np


class Stream(NamedTuple):
    """Token segments of all episodes of a pack, in order. Each segment is the tokens of one observation or one action.

    Attributes:
        lengths: number of tokens of each segment, int64 [M].
        is_action: whether the segment is an action, bool [M].
        is_learned: whether the segment is the action of a step that is not in a lookback, bool [M].
        first: index of the first segment of each episode, int64 [n + 1].
    """

    lengths: np.ndarray
    is_action: np.ndarray
    is_learned: np.ndarray
    first: np.ndarray


class Segments(NamedTuple):
    """List of the segments (observations or actions) that make up each of S token sequences.

    Attributes:
        indices: index of each segment in the stream, int64 [K], or None for all segments of the stream in order.
        lengths: number of tokens, int64 [K]. A prefix may end within a segment of the stream.
        is_learned: whether its tokens are learned from, bool [K]: each sampled token once, in the order of the stream.
            Steps without tokens may be left out.
        counts: number of segments of each sequence, int64 [S].
        episodes: index of the episode of each sequence, int64 [S].
    """

    indices: np.ndarray | None
    lengths: np.ndarray
    is_learned: np.ndarray
    counts: np.ndarray
    episodes: np.ndarray


def stream_of(
    step_offsets: np.ndarray, lookbacks: np.ndarray, observation_lengths: np.ndarray, action_lengths: np.ndarray
) -> Stream:
    """Return the token segments of a pack: alternating observations and actions, each with its number of tokens.

    Args:
        step_offsets: index of each episode's first step, lookbacks included, int64 [n + 1].
        lookbacks: number of steps of each episode's lookback, int64 [n].
        observation_lengths: number of tokens of each observation, int64 [steps + n].
        action_lengths: number of tokens of each action, int64 [steps].
    """
    first = 2 * step_offsets + np.arange(len(step_offsets))
    is_action = np.zeros(int(first[-1]), bool)
    steps = np.arange(len(action_lengths))
    steps *= 2
    steps += np.arange(1, len(lookbacks) + 1).repeat(np.diff(step_offsets))  # index of each action in the stream
    is_action[steps] = True
    lengths = np.empty(len(is_action), np.int64)
    lengths[is_action] = action_lengths
    lengths[~is_action] = observation_lengths
    if not lookbacks.any():
        return Stream(lengths, is_action, is_action, first)
    depths = np.arange(len(is_action)) - first[:-1].repeat(np.diff(first))
    return Stream(lengths, is_action, is_action & (depths >= (2 * lookbacks).repeat(np.diff(first))), first)


def whole_episodes(stream: Stream, num_steps: np.ndarray, with_last: bool) -> Segments:
    """Return one token sequence for each episode that has steps. Use it if no prompt changed earlier
    tokens of its conversation.

    Args:
        stream: the stream.
        num_steps: number of steps of each episode without its lookback, int64 [n].
        with_last: include the observation after the last step.
    """
    counts, last = np.diff(stream.first), stream.first[1:] - 1
    has_steps = num_steps > 0
    if has_steps.all() and (with_last or not stream.lengths[last].any()):
        return Segments(None, stream.lengths, stream.is_learned, counts, np.arange(len(counts)))
    is_used = has_steps.repeat(counts)
    if not with_last:
        is_used[last] = False
        counts = counts - 1
    indices, episodes = np.flatnonzero(is_used), np.flatnonzero(has_steps)
    return Segments(indices, stream.lengths[indices], stream.is_learned[indices], counts[episodes], episodes)


def with_branches(
    stream: Stream, kept: np.ndarray, with_last: bool, error: Callable[[int, int], Exception]
) -> Segments:
    """Return the token sequences of conversations whose later prompts may change earlier tokens. Each such change
    begins a new sequence (a branch).

    Sequences without a learned token are left out, unless an episode with steps has no other one.

    Args:
        stream: the stream.
        kept: for each segment of the stream, the number of earlier tokens of the sequence that it keeps as its
            context, or -1 for all, int64 [M].
        with_last: include the observation after the last step.
        error: function that returns the exception if `kept` is too large, for the index of a segment and the number of
            tokens before it.
    """
    indices: list[int] = []
    lengths: list[int] = []
    is_learned: list[bool] = []
    counts: list[int] = []
    episodes: list[int] = []
    first, sizes, kept_tokens, learned = (a.tolist() for a in (stream.first, stream.lengths, kept, stream.is_learned))
    for i, (start, stop) in enumerate(pairwise(first)):
        branches = list(_branches(start, stop - (not with_last), sizes, kept_tokens, error))
        new = [[learned[index] for index in branch.indices[branch.num_context :]] for branch in branches]
        has_step = [k for k, flags in enumerate(new) if any(flags)]
        has_token = [k for k in has_step if _num_learned(branches[k], new[k])]
        for k in has_token or has_step[:1]:
            branch = branches[k]
            indices += branch.indices
            lengths += branch.lengths
            is_learned += [False] * branch.num_context + new[k]
            counts.append(len(branch.indices))
            episodes.append(i)
    return Segments(
        np.array(indices, np.int64),
        np.array(lengths, np.int64),
        np.array(is_learned, bool),
        np.array(counts, np.int64),
        np.array(episodes, np.int64),
    )


class _Branch(NamedTuple):
    """Token sequence under construction: segment indices, segment lengths, and the number of first segments that
    repeat an earlier sequence."""

    indices: list[int]
    lengths: list[int]
    num_context: int


def _num_learned(branch: _Branch, is_learned: list[bool]) -> int:
    """Return the number of learned tokens of a branch, given whether each of its new segments is learned from."""
    return sum(num for num, learned in zip(branch.lengths[branch.num_context :], is_learned, strict=True) if learned)


def _branches(
    start: int, stop: int, lengths: list[int], kept: list[int], error: Callable[[int, int], Exception]
) -> Iterator[_Branch]:
    """Yield the token sequences of one episode, whose segments are `start` to `stop`. A segment that keeps fewer than
    all earlier tokens begins a new sequence. If it is to keep more tokens than precede it, raise `error`.
    """
    branch, num_tokens = _Branch([], [], 0), 0
    for index in range(start, stop):
        keep = kept[index]
        if keep > num_tokens:
            raise error(index, num_tokens)
        if 0 <= keep < num_tokens:
            yield branch
            branch, num_tokens = _prefix(branch, keep), keep
        branch.indices.append(index)
        branch.lengths.append(lengths[index])
        num_tokens += lengths[index]
    yield branch


def _prefix(branch: _Branch, num_tokens: int) -> _Branch:
    """Return a new token sequence of the first `num_tokens` tokens of `branch`, all of which count as context."""
    lengths = []
    for length in branch.lengths:
        if not num_tokens:
            break
        lengths.append(min(length, num_tokens))
        num_tokens -= lengths[-1]
    return _Branch(branch.indices[: len(lengths)], lengths, len(lengths))
