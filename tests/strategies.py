"""Hypothesis strategies for pairs of an episode and a plain reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st
from reference import PlainEpisode

from episodes import SingleAgentEpisode
from episodes.testing.strategies import episode_arguments, lists_of_episodes

__all__ = ["KINDS", "Kind", "built", "episodes", "indices", "lists_of_episodes", "plain"]


@dataclass(frozen=True)
class Kind:
    """A kind of item: a function from a number to an item, and its space."""

    name: str
    space: spaces.Space

    def item(self, number: int) -> Any:
        return _ITEMS[self.name](number)


_ITEMS = {
    "vector": lambda n: np.array([n, n + 0.5, -n], np.float32),
    "image": lambda n: np.full((2, 3, 1), n % 256, np.uint8),
    "number": lambda n: n % 7 + 2,
    "multi": lambda n: np.array([n % 3, n % 4]),
    "dict": lambda n: {"camera": np.full((2, 2), n % 256, np.uint8), "joints": np.array([n, 1.0], np.float32)},
    "tuple": lambda n: (n % 7 + 2, np.array([0.25 * n], np.float32)),
}
_BOX = spaces.Box(-1000, 1000, (1,), np.float32)
KINDS = {
    "vector": Kind("vector", spaces.Box(-1000, 1000, (3,), np.float32)),
    "image": Kind("image", spaces.Box(0, 255, (2, 3, 1), np.uint8)),
    "number": Kind("number", spaces.Discrete(7, start=2)),
    "multi": Kind("multi", spaces.MultiDiscrete([3, 4])),
    "dict": Kind(
        "dict",
        spaces.Dict(
            {"camera": spaces.Box(0, 255, (2, 2), np.uint8), "joints": spaces.Box(-1000, 1000, (2,), np.float32)}
        ),
    ),
    "tuple": Kind("tuple", spaces.Tuple((spaces.Discrete(7, start=2), _BOX))),
}


def plain(
    observation: str = "vector",
    action: str = "number",
    *,
    num_steps: int = 5,
    lookback: int = 0,
    extras: tuple[str, ...] = (),
    infos: bool = True,
    **state: Any,
) -> PlainEpisode:
    """Return a reference episode in which every item encodes its step."""
    obs, act = KINDS[observation], KINDS[action]
    steps, observed = range(-lookback, num_steps), range(-lookback, num_steps + 1)
    return PlainEpisode(
        id_="abc",
        observations={s: obs.item(s + 100) for s in observed},
        actions={s: act.item(s + 200) for s in steps},
        rewards={s: s + 0.5 for s in steps},
        infos={s: {"step": s} if infos and s % 2 else {} for s in observed},
        extra={key: {s: np.array([s, i], np.float32) for s in steps} for i, key in enumerate(extras)},
        **state,
    )


def built(reference: PlainEpisode, observation: str, action: str, with_spaces: bool = True) -> SingleAgentEpisode:
    """Return the growing episode of a reference."""
    return SingleAgentEpisode(
        reference.id_,
        observations=list(reference.observations.values()),
        actions=list(reference.actions.values()),
        rewards=list(reference.rewards.values()),
        infos=list(reference.infos.values()),
        extra_model_outputs={key: list(track.values()) for key, track in reference.extra.items()},
        observation_space=KINDS[observation].space if with_spaces else None,
        action_space=KINDS[action].space if with_spaces else None,
        len_lookback_buffer=reference.lookback,
        t_started=reference.t_started,
        terminated=reference.terminated,
        truncated=reference.truncated,
        agent_id="agent",
        module_id="module",
        multi_agent_episode_id="multi",
    )


@st.composite
def episodes(draw: st.DrawFn, ended: bool | None = None, max_steps: int = 8) -> tuple[PlainEpisode, SingleAgentEpisode]:
    """Draw a reference and its episode of any kind of item, length, lookback and ending.

    The episode is given to the constructor or grown step by step, and growing or finalized.
    """
    arguments = draw(episode_arguments(ended=ended, max_steps=max_steps, ragged=None))
    ids = {"agent_id": "agent", "module_id": "module", "multi_agent_episode_id": "multi"}
    reference = of_arguments(arguments)
    if reference.num_steps and not reference.lookback and draw(st.booleans()):
        episode = grown(reference, arguments, ids)
    else:
        episode = SingleAgentEpisode("abc", **arguments, **ids)
    episode.custom_data["weather"] = "rain"
    return reference, episode.to_numpy() if draw(st.booleans()) else episode


def grown(reference: PlainEpisode, arguments: dict[str, Any], ids: dict[str, str]) -> SingleAgentEpisode:
    """Return the episode of a reference without lookback, grown by single steps."""
    facts = {name: arguments.get(name) for name in ("observation_space", "action_space", "ragged")}
    episode = SingleAgentEpisode("abc", t_started=reference.t_started, **facts, **ids)
    episode.add_env_reset(reference.observations[0], reference.infos[0])
    for t in range(reference.num_steps):
        is_last = t == reference.num_steps - 1
        episode.add_env_step(
            reference.observations[t + 1],
            reference.actions[t],
            reference.rewards[t],
            reference.infos[t + 1],
            terminated=is_last and reference.terminated,
            truncated=is_last and reference.truncated,
            extra_model_outputs={key: track[t] for key, track in reference.extra.items()},
        )
    return episode


def of_arguments(arguments: dict[str, Any]) -> PlainEpisode:
    """Return the reference of an episode with these arguments."""
    lookback = arguments["len_lookback_buffer"]
    keyed = lambda items: dict(enumerate(items, -lookback))  # noqa: E731
    return PlainEpisode(
        id_="abc",
        observations=keyed(arguments["observations"]),
        actions=keyed(arguments["actions"]),
        rewards=keyed(arguments["rewards"]),
        infos=keyed(arguments["infos"] or [{} for _ in arguments["observations"]]),
        extra={key: keyed(items) for key, items in arguments["extra_model_outputs"].items()},
        t_started=arguments["t_started"],
        terminated=arguments["terminated"],
        truncated=arguments["truncated"],
    )


indices = st.one_of(
    st.none(),
    st.integers(-14, 14),
    st.builds(lambda index, kind: kind(index), st.integers(-14, 14), st.sampled_from([np.int64, np.int32, np.int8])),
    st.integers(0, 14).map(np.uint8),
    st.builds(
        slice,
        st.none() | st.integers(-14, 14),
        st.none() | st.integers(-14, 14),
        st.none() | st.integers(-3, 3).filter(bool),
    ),
    st.lists(st.integers(-14, 14), max_size=4),
    st.lists(st.integers(-14, 14), max_size=4).map(tuple),
    st.lists(st.integers(-14, 14), max_size=4).map(lambda x: np.array(x, int)),
    st.builds(range, st.integers(-5, 5), st.integers(-5, 5)),
)
