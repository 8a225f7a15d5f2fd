"""Benchmarks of growing an episode step by step, and of finalizing it (converting its lists to arrays)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.data import ACTION_SPACE, OBSERVATION_SPACE, Steps, steps
from benchmarks.figure import Figure, Side, Size, Timed, at_least, at_most
from benchmarks.peers import RLLIB

EXTRAS = ("action_logp", "vf_preds")
LONG, SHORT = 500, 20  # steps of an episode


def grower(episode_class: Callable[..., Any], data: Steps) -> Callable[[], Any]:
    """Return a function that creates a new episode of `episode_class` and adds all steps of `data` in a loop."""
    observations, actions, rewards = list(data.observations), data.actions.tolist(), data.rewards.tolist()
    outputs = [{key: values[t] for key, values in data.extras.items()} for t in range(len(data))]
    infos: list[dict[str, Any]] = [{} for _ in observations]

    def grow() -> Any:
        """Create an episode, add all steps, and return the episode."""
        episode = episode_class(observation_space=OBSERVATION_SPACE, action_space=ACTION_SPACE)
        episode.add_env_reset(observations[0], infos[0])
        add = episode.add_env_step
        last = len(actions) - 1
        for t, (action, reward) in enumerate(zip(actions, rewards, strict=True)):
            t1 = t + 1
            add(observations[t1], action, reward, infos[t1], terminated=t == last, extra_model_outputs=outputs[t])
        return episode

    return grow


def our_class() -> Callable[..., Any]:
    """Return this library's `SingleAgentEpisode`."""
    from episodes import SingleAgentEpisode

    return SingleAgentEpisode


def rllib_class() -> Callable[..., Any]:
    """Return RLlib's `SingleAgentEpisode`."""
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    return SingleAgentEpisode


def growing(size: Size, episode_class: Callable[[], Callable[..., Any]], length: int) -> Timed:
    """Time growing an episode of `length` steps, per step."""
    data = steps(size(length), extras=EXTRAS)
    return Timed(grower(episode_class(), data), len(data))


def finalizing(size: Size, episode_class: Callable[[], Callable[..., Any]], length: int) -> Timed:
    """Time finalizing (`to_numpy`) a grown episode of `length` steps, per step."""
    data = steps(size(length), extras=EXTRAS)
    return Timed(lambda episode: episode.to_numpy(), len(data), fresh=grower(episode_class(), data))


def growing_and_finalizing(size: Size, episode_class: Callable[[], Callable[..., Any]], length: int) -> Timed:
    """Time growing and then finalizing an episode of `length` steps, per step."""
    data = steps(size(length), extras=EXTRAS)
    grow = grower(episode_class(), data)
    return Timed(lambda: grow().to_numpy(), len(data))


def bare_arrays(size: Size) -> Timed:
    """Time `np.array` of the five lists of an episode, which is the least work of finalizing, per step."""
    data = steps(size(LONG), extras=EXTRAS)
    tracks = [list(data.observations), data.actions.tolist(), data.rewards.tolist()]
    tracks += [list(values) for values in data.extras.values()]

    def convert() -> None:
        for track in tracks:
            np.array(track)

    return Timed(convert, len(data))


def against_rllib(name: str, work: Callable[..., Timed], length: int, times: float) -> Figure:
    """Return a benchmark that compares this kind of work with RLlib, at least `times` times as fast."""
    ours = Side("ours", partial(work, episode_class=our_class, length=length))
    rllib = Side("RLlib", partial(work, episode_class=rllib_class, length=length), RLLIB)
    return Figure(f"growing/{name}", ours, rllib, at_least(times), "us")


FIGURES = (
    against_rllib("step", growing, LONG, 1.1),
    against_rllib("finalize", finalizing, LONG, 1.3),
    Figure(
        "growing/finalize floor",
        Side("ours", partial(finalizing, episode_class=our_class, length=LONG)),
        Side("np.array", bare_arrays),
        at_most(2),
        "us",
    ),
    against_rllib("20 steps, step", growing, SHORT, 0.9),
    against_rllib("20 steps, grown and finalized", growing_and_finalizing, SHORT, 0.75),
)
