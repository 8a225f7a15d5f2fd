"""Benchmarks of reading a finalized episode: slices, fill values, sub-episodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.data import Steps, our_episode, rllib_episode, steps
from benchmarks.figure import Figure, Side, Size, Timed, at_least, at_most
from benchmarks.peers import RLLIB

Read = Callable[[Any], Callable[[], object]]  # from an episode to the call that is timed


def reading(make: Callable[[Steps, int], Any], read: Read, lookback: int) -> Callable[[Size], Timed]:
    """Time one kind of read from an episode of 200 steps, after `lookback` steps of lookback."""

    def prepare(size: Size) -> Timed:
        episode = make(steps(200 + lookback, extras=("action_logp", "vf_preds")), lookback)
        return Timed(read(episode))

    return prepare


def a_slice(episode: Any) -> Callable[[], object]:
    return partial(episode.get_observations, slice(0, 50))


def a_fill(episode: Any) -> Callable[[], object]:
    return partial(episode.get_observations, slice(-20, 50), neg_index_as_lookback=True, fill=0.0)


def filling_while_growing(length: int) -> Callable[[Size], Timed]:
    """Time reads past both ends of a growing episode of `length` steps."""

    def prepare(size: Size) -> Timed:
        from episodes import SingleAgentEpisode

        episode = SingleAgentEpisode()
        episode.add_env_reset(np.zeros(4, np.float32))
        for _ in range(size(length)):
            episode.add_env_step(np.zeros(4, np.float32), 0, 1.0)
        read = partial(episode.get_observations, slice(-20, 50), neg_index_as_lookback=True, fill=0.0)
        read()
        return Timed(read)

    return prepare


def a_sub_episode(episode: Any) -> Callable[[], object]:
    return partial(episode.__getitem__, slice(10, 60))


def against_rllib(name: str, read: Read, lookback: int, times: float) -> Figure:
    ours = Side("ours", reading(our_episode, read, lookback))
    rllib = Side("RLlib", reading(rllib_episode, read, lookback), RLLIB)
    return Figure(f"getters/{name}", ours, rllib, at_least(times), "us")


FIGURES = (
    against_rllib("slice", a_slice, 0, 2),
    against_rllib("fill with lookback", a_fill, 10, 4),
    Figure(
        "getters/fill growing",
        Side("ours", filling_while_growing(100_000)),
        Side("100 steps", filling_while_growing(100)),
        at_most(1.5),
        "us",
    ),
    against_rllib("sub-episode", a_sub_episode, 0, 5),
)
