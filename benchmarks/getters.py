"""Benchmarks of reading from a finalized episode: slices, slices with fill values, and sub-episodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.data import Steps, our_episode, rllib_episode, steps
from benchmarks.figure import Figure, Side, Size, Timed, at_least, at_most
from benchmarks.peers import RLLIB

Read = Callable[[Any], Callable[[], object]]  # from an episode to the call that is timed


def reading(size: Size, make: Callable[[Steps, int], Any], read: Read, lookback: int) -> Timed:
    """Time reads from an episode of 200 steps with `lookback` lookback steps. `make` creates the episode, and `read`
    returns the timed call.
    """
    episode = make(steps(200 + lookback, extras=("action_logp", "vf_preds")), lookback)
    return Timed(read(episode))


def slice_reader(episode: Any) -> Callable[[], object]:
    """Return a function that reads 50 observations of an episode."""
    return partial(episode.get_observations, slice(0, 50))


def fill_reader(episode: Any) -> Callable[[], object]:
    """Return a function that reads observations from 20 steps before an episode's start, with zeros where data are
    missing.
    """
    return partial(episode.get_observations, slice(-20, 50), neg_index_as_lookback=True, fill=0.0)


def filling_while_growing(size: Size, length: int) -> Timed:
    """Time reads with fill values from a growing episode of `length` steps."""
    from episodes import SingleAgentEpisode

    episode = SingleAgentEpisode()
    episode.add_env_reset(np.zeros(4, np.float32))
    for _ in range(size(length)):
        episode.add_env_step(np.zeros(4, np.float32), 0, 1.0)
    read = partial(episode.get_observations, slice(-20, 50), neg_index_as_lookback=True, fill=0.0)
    read()
    return Timed(read)


def sub_episode_reader(episode: Any) -> Callable[[], object]:
    """Return a function that takes a sub-episode of 50 steps from an episode."""
    return partial(episode.__getitem__, slice(10, 60))


def against_rllib(name: str, read: Read, lookback: int, times: float) -> Figure:
    """Return a benchmark that compares one kind of read with RLlib, at least `times` times as fast."""
    ours = Side("ours", partial(reading, make=our_episode, read=read, lookback=lookback))
    rllib = Side("RLlib", partial(reading, make=rllib_episode, read=read, lookback=lookback), RLLIB)
    return Figure(f"getters/{name}", ours, rllib, at_least(times), "us")


FIGURES = (
    against_rllib("slice", slice_reader, 0, 2),
    against_rllib("fill with lookback", fill_reader, 10, 4),
    Figure(
        "getters/fill growing",
        Side("ours", partial(filling_while_growing, length=100_000)),
        Side("100 steps", partial(filling_while_growing, length=100)),
        at_most(1.5),
        "us",
    ),
    against_rllib("sub-episode", sub_episode_reader, 0, 5),
)
