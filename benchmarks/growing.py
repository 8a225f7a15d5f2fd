"""Growing an episode step by step, and finalizing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.data import ACTION_SPACE, OBSERVATION_SPACE, Steps, steps
from benchmarks.figure import Figure, Side, Size, Timed, at_least, at_most
from benchmarks.peers import RLLIB

EXTRAS = ("action_logp", "vf_preds")


def grower(episode_class: Callable[..., Any], data: Steps) -> Callable[[], Any]:
    """A function that grows one episode of the data, item by item, as a loop around an environment does."""
    observations, actions, rewards = list(data.observations), data.actions.tolist(), data.rewards.tolist()
    outputs = [{key: values[t] for key, values in data.extras.items()} for t in range(len(data))]
    infos: list[dict[str, Any]] = [{} for _ in observations]

    def grow() -> Any:
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
    from episodes import SingleAgentEpisode

    return SingleAgentEpisode


def rllib_class() -> Callable[..., Any]:
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    return SingleAgentEpisode


def growing(episode_class: Callable[[], Callable[..., Any]]) -> Callable[[Size], Timed]:
    def prepare(size: Size) -> Timed:
        data = steps(size(500), extras=EXTRAS)
        return Timed(grower(episode_class(), data), len(data))

    return prepare


def finalizing(episode_class: Callable[[], Callable[..., Any]]) -> Callable[[Size], Timed]:
    def prepare(size: Size) -> Timed:
        data = steps(size(500), extras=EXTRAS)
        return Timed(lambda episode: episode.to_numpy(), len(data), fresh=grower(episode_class(), data))

    return prepare


def bare_arrays(size: Size) -> Timed:
    """`np.array` of each of the five tracks."""
    data = steps(size(500), extras=EXTRAS)
    tracks = [list(data.observations), data.actions.tolist(), data.rewards.tolist()]
    tracks += [list(values) for values in data.extras.values()]

    def convert() -> None:
        for track in tracks:
            np.array(track)

    return Timed(convert, len(data))


GROWING = Side("ours", growing(our_class))
FINALIZING = Side("ours", finalizing(our_class))

FIGURES = (
    Figure("growing/step", GROWING, Side("RLlib", growing(rllib_class), RLLIB), at_least(2), "us"),
    Figure("growing/finalize", FINALIZING, Side("RLlib", finalizing(rllib_class), RLLIB), at_least(1.5), "us"),
    Figure("growing/finalize floor", FINALIZING, Side("np.array", bare_arrays), at_most(2), "us"),
)
