"""Hypothesis strategies that generate single-agent episodes, growing or finalized, and packs of episodes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.testing.strategies.items import ItemSource, spaces
from episodes.tracks.ragged import RaggedKind

if TYPE_CHECKING:
    from episodes.tracks.ragged_items import Kinds

ENDINGS = ((False, False), (True, False), (False, True), (True, True))  # (terminated, truncated)

_VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=4),
    st.none(),
    st.builds(lambda n: np.arange(n, dtype=np.int16), st.integers(0, 3)),
    st.builds(np.float32, st.integers(0, 5)),
    st.tuples(st.integers(0, 3), st.text(max_size=2)),
    st.lists(st.integers(0, 3), max_size=2),
)
_EXTRAS: dict[str, gym.Space] = {
    "action_logp": gym.spaces.Box(-10, 0, (), np.float32),
    "action_dist_inputs": gym.spaces.Box(-5, 5, (4,), np.float32),
    "state_out": gym.spaces.Dict({"h": gym.spaces.Box(-1, 1, (2,), np.float32)}),
    "a/b~c": gym.spaces.Box(-1, 1, (1,), np.float64),
}
_RAGGED = {  # kinds of ragged observations and actions, and of extra outputs if the actions are ragged
    "observations": ("i4", "f4", RaggedKind(np.dtype("u1"), (2,)), {"tokens": "i4"}),
    "actions": ("i4", "i8", {"tokens": "i4"}),
    "token_logp": ("f4",),
    "learned": ("?", RaggedKind(np.dtype("i2"), (3,))),
}
_REWARDS = (float, np.float32, np.float64, int, np.asarray)


@cache
def infos() -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy that generates info dicts with numbers, strings, arrays, nested dicts and unusual keys."""
    inner = st.dictionaries(st.sampled_from(["x", "y"]), _VALUES, max_size=2)
    return st.dictionaries(st.sampled_from(["a", "b/c", "d~"]), _VALUES | inner, max_size=3)


@st.composite
def _tracks_of_infos(draw: st.DrawFn, count: int, rng: np.random.Generator) -> list[dict[str, Any]] | None:
    """Generate None, or `count` info dicts whose keys are the same at all steps or differ."""
    kind = draw(st.sampled_from(["none", "numbers", "any"]))
    if kind == "none":
        return None
    if kind == "numbers":
        return [{"step": i, "speed": float(rng.normal())} for i in range(count)]
    choices = [{}, draw(infos()), draw(infos())]
    return [copy.deepcopy(choices[rng.integers(len(choices))]) for _ in range(count)]


@st.composite
def _ragged_kinds(draw: st.DrawFn) -> dict[str, Any]:
    """Generate the argument `ragged` of an episode: dtypes of time series whose items vary in length."""
    names = draw(st.lists(st.sampled_from(["observations", "actions"]), min_size=1, max_size=2, unique=True))
    if "actions" in names:
        names += draw(st.lists(st.sampled_from(["token_logp", "learned"]), max_size=2, unique=True))
    return {name: draw(st.sampled_from(_RAGGED[name])) for name in names}


def _ragged_items(kind: Kinds, lengths: np.ndarray, rng: np.random.Generator) -> list[Any]:
    """Return random items with the given lengths, as arrays or lists."""
    if isinstance(kind, dict):
        parts = {key: _ragged_items(part, lengths, rng) for key, part in kind.items()}
        return [
            {**{key: items[i] for key, items in parts.items()}, "image": rng.integers(0, 255, (2, 2)).astype(np.uint8)}
            for i in range(len(lengths))
        ]
    kind = kind if isinstance(kind, RaggedKind) else RaggedKind(np.dtype(kind))
    items = [rng.integers(0, 2, (length, *kind.value_shape)).astype(kind.dtype) for length in lengths.tolist()]
    return [item.tolist() if rng.random() < 0.2 and len(item) else item for item in items]


@st.composite
def episode_arguments(
    draw: st.DrawFn,
    observation_space: gym.Space | None = None,
    action_space: gym.Space | None = None,
    *,
    extra_outputs: Sequence[str] | None = None,
    with_spaces: bool | None = None,
    reward_type: Callable[[float], Any] | None = None,
    ended: bool | None = None,
    min_steps: int = 0,
    max_steps: int = 8,
    max_lookback: int = 4,
    arrange: bool = True,
    ragged: bool | Mapping[str, Any] | None = False,
) -> dict[str, Any]:
    """Generate keyword arguments of `SingleAgentEpisode`, with which tests compare the created episode.

    See `episodes` for the arguments.
    """
    observed = draw(spaces()) if observation_space is None else observation_space
    action_space_ = draw(spaces()) if action_space is None else action_space
    steps, lookback = draw(st.integers(min_steps, max_steps)), draw(st.integers(0, max_lookback))
    terminated, truncated = draw(st.sampled_from(ENDINGS if ended is None else ENDINGS[1:] if ended else ENDINGS[:1]))
    seed = draw(st.integers(0, 2**16))
    rng, total = np.random.default_rng(seed), steps + lookback
    reward = reward_type or draw(st.sampled_from(_REWARDS))
    if extra_outputs is None:
        extra_outputs = draw(st.lists(st.sampled_from(sorted(_EXTRAS)), unique=True, max_size=2))
    has_spaces = draw(st.booleans()) if with_spaces is None else with_spaces
    kinds = _drawn_kinds(draw, ragged)
    items = {
        "observations": ItemSource(observed, seed, arrange).take(total + 1),
        "actions": ItemSource(action_space_, seed + 1, arrange).take(total),
    }
    lengths = rng.integers(0, 4, total)
    for name, kind in kinds.items():
        items[name] = _ragged_items(kind, rng.integers(0, 4, total + 1) if name == "observations" else lengths, rng)
    outputs = {name: values for name, values in items.items() if name not in ("observations", "actions")}
    outputs |= {key: ItemSource(_EXTRAS[key], seed + 2, arrange).take(total) for key in extra_outputs}
    return {
        "observations": items["observations"],
        "actions": items["actions"],
        "rewards": [reward(rng.integers(-8, 9) / (1 if reward is int else 4)) for _ in range(total)],
        "infos": draw(_tracks_of_infos(total + 1, rng)),
        "extra_model_outputs": outputs,
        "observation_space": observed if has_spaces and "observations" not in kinds else None,
        "action_space": action_space_ if has_spaces and "actions" not in kinds else None,
        "len_lookback_buffer": lookback,
        "t_started": draw(st.integers(0, 50)),
        "terminated": terminated,
        "truncated": truncated,
        **({"ragged": kinds} if kinds else {}),
    }


def _drawn_kinds(draw: st.DrawFn, ragged: bool | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the dtypes of the ragged time series (items of varying length) of an episode, given or generated.

    They are generated for `ragged=True`, and sometimes for None.
    """
    if isinstance(ragged, Mapping):
        return ragged
    return draw(_ragged_kinds()) if ragged or (ragged is None and draw(st.booleans())) else {}


@st.composite
def episodes(draw: st.DrawFn, *args: Any, finalized: bool | None = None, **options: Any) -> SingleAgentEpisode:
    """Generate a single-agent episode, growing or finalized, of any length, lookback, ending and item type.

    Args:
        observation_space: space of the observations, by default any (see `spaces`).
        action_space: space of the actions, by default any.
        extra_outputs: names of extra model outputs out of "action_logp", "action_dist_inputs", "state_out" and
            "a/b~c", by default up to two of them.
        with_spaces: True for an episode with its spaces, by default either.
        reward_type: function from a number to a reward, for example `np.float32`, by default numpy's and Python's
            types.
        finalized: True for a finalized episode, by default either.
        ended: True for an episode that has ended, by default either.
        min_steps: minimal number of steps.
        max_steps: maximal number of steps.
        max_lookback: maximal lookback.
        arrange: True for items in all memory layouts (see `arrangements`).
        ragged: True for an episode with ragged tracks, None for either, or the argument `ragged` of the episode. Ragged
            observations and actions have no spaces.
    """
    episode = SingleAgentEpisode(**draw(episode_arguments(*args, **options)))
    if draw(st.booleans()):
        episode.custom_data |= {"weather": "rain", "of": (1, [2.5, None]), "array": np.arange(3)}
    is_finalized = draw(st.booleans()) if finalized is None else finalized
    return episode.to_numpy() if is_finalized else episode


@st.composite
def lists_of_episodes(
    draw: st.DrawFn,
    observation_space: gym.Space | None = None,
    action_space: gym.Space | None = None,
    *,
    min_size: int = 1,
    max_size: int = 5,
    max_steps: int = 5,
    **options: Any,
) -> list[SingleAgentEpisode]:
    """Generate a list of episodes that fit into one pack, since their spaces and extra outputs are equal.

    Args:
        options: as for `episodes`.
    """
    observed = draw(spaces()) if observation_space is None else observation_space
    action_space_ = draw(spaces()) if action_space is None else action_space
    options.setdefault("with_spaces", draw(st.booleans()))
    options.setdefault("reward_type", draw(st.sampled_from(_REWARDS)))
    if options.get("extra_outputs") is None:
        options["extra_outputs"] = draw(st.lists(st.sampled_from(sorted(_EXTRAS)), unique=True, max_size=2))
    options["ragged"] = _drawn_kinds(draw, options.get("ragged", False))
    drawn: list[SingleAgentEpisode] = []
    for number in range(draw(st.integers(min_size, max_size))):
        episode = draw(episodes(observed, action_space_, max_steps=max_steps, **options))
        episode.id_ = f"episode{number}"
        drawn.append(episode)
    return drawn


def packs(*args: Any, **options: Any) -> st.SearchStrategy[EpisodePack]:
    """Return a strategy that generates packs of episodes, with the arguments of `lists_of_episodes`."""
    return lists_of_episodes(*args, **options).map(EpisodePack.from_episodes)
