"""Reading a finalized episode: slices, fills, sub-episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.data import Steps, our_episode, rllib_episode, steps
from benchmarks.figure import Figure, Side, Size, Timed, at_least
from benchmarks.peers import RLLIB

LOOKBACK = 10


def reading(make: Callable[[Steps, int], Any], read: Callable[[Any], object]) -> Callable[[Size], Timed]:
    """Reads one thing of an episode of 200 steps after 10 of lookback."""

    def prepare(size: Size) -> Timed:
        episode = make(steps(200 + LOOKBACK, extras=("action_logp", "vf_preds")), LOOKBACK)
        return Timed(lambda: read(episode))

    return prepare


def a_slice(episode: Any) -> object:
    return episode.get_observations(slice(0, 50))


def a_fill(episode: Any) -> object:
    return episode.get_observations(slice(-20, 50), neg_index_as_lookback=True, fill=0.0)


def a_sub_episode(episode: Any) -> object:
    return episode[10:60]


def against_rllib(name: str, read: Callable[[Any], object], times: float) -> Figure:
    ours = Side("ours", reading(our_episode, read))
    return Figure(f"getters/{name}", ours, Side("RLlib", reading(rllib_episode, read), RLLIB), at_least(times), "us")


FIGURES = (
    against_rllib("slice", a_slice, 2),
    against_rllib("fill with lookback", a_fill, 4),
    against_rllib("sub-episode", a_sub_episode, 5),
)
