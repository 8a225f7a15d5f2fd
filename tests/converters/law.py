"""The law of every converter: what comes back is equal, or its loss was named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from episodes import SingleAgentEpisode
from episodes.converters import LossReport
from episodes.facts import VersionRuns
from episodes.testing.strategies import episodes
from episodes.tracks import nested
from episodes.tracks.infos.infos import same_info

FACTS = ("id_", "t_started", "agent_id", "module_id", "multi_agent_episode_id", "observation_space", "action_space")


@st.composite
def lists(draw: st.DrawFn, observed: Any, acted: Any, **options: Any) -> list[SingleAgentEpisode]:
    """Episodes of one kind with all that an episode may have: ids of every type, versions, odd custom data."""
    extra = draw(st.sampled_from([[], ["action_logp"], ["state_out", "a/b~c"]]))
    shared = {"extra_outputs": extra, "with_spaces": draw(st.booleans()), **options}
    reward = draw(st.sampled_from([float, np.float32]))
    found = draw(st.lists(episodes(observed, acted, reward_type=reward, **shared), max_size=4))
    for number, episode in enumerate(found):
        ids = {name: draw(st.sampled_from([None, "p", 3, ("p", 1)])) for name in FACTS[2:5]}
        versions = draw(st.sampled_from([None, 4, np.arange(len(episode)) // 2]))
        episode.facts = episode.facts._replace(
            id_=f"e{number}", policy_versions=VersionRuns.of(versions, len(episode)), **ids
        )
        episode.custom_data |= draw(st.sampled_from([{}, {"seed": 3}, {"kept": 1, "lost": {1, 2}}, {"d": {2: "x"}}]))
    return found


def kept(episodes: list[SingleAgentEpisode], report: LossReport) -> list[SingleAgentEpisode]:
    """The episodes that are there still: all, or where it is named those with a step."""
    names = {loss.what for loss in report}
    return [episode for episode in episodes if len(episode) or "the episode" not in names]


def unnamed(one: SingleAgentEpisode, other: SingleAgentEpisode, report: LossReport) -> set[str]:
    """What differs although no loss tells of it, or of a part of it."""
    return set(_differences(one, other)) - {what for loss in report for what in _named(loss.what)}


def told_for_nothing(given: list[SingleAgentEpisode], back: list[SingleAgentEpisode], report: LossReport) -> set[str]:
    """What losses tell of although no episode lost it."""
    pairs = zip(kept(given, report), back, strict=True)
    lost = {what for one, other in pairs for what in _differences(one, other)}
    lost |= {"the episode"} if len(given) > len(back) else set()
    return {loss.what for loss in report if not lost & {*_named(loss.what)}}


def _named(what: str) -> tuple[str, str]:
    """What a loss is of, and the whole of which it is a part: `infos['t']` and `infos/t` are of the infos."""
    what = what.removeprefix("the dtype of ")
    return what, re.split(r"[\[/]", what)[0]


def _differences(one: SingleAgentEpisode, other: SingleAgentEpisode) -> Iterator[str]:
    if one.lookback != other.lookback:
        yield "lookback"
        one, other = (episode.slice(slice(0, len(episode)), len_lookback_buffer=0) for episode in (one, other))
    mine, theirs = one.finalized_tracks(), other.finalized_tracks()
    for name in FACTS:
        if getattr(one, name) != getattr(other, name):
            yield name
    if one.facts.policy_versions != other.facts.policy_versions:
        yield "policy_versions"
    if (one.is_terminated, one.is_truncated) != (other.is_terminated, other.is_truncated):
        yield "that the chunk goes on" if not one.is_done else "both_endings"
    for name in ("observations", "actions", "rewards"):
        if not _same(getattr(mine, name).whole(), getattr(theirs, name).whole()):
            yield name
    for key in mine.extra.keys() | theirs.extra.keys():
        both = key in mine.extra and key in theirs.extra
        if not both or not _same(mine.extra[key].whole(), theirs.extra[key].whole()):
            yield f"extra_model_outputs[{key!r}]"
    for name, x, y in (("infos", [*one.infos], [*other.infos]), ("custom_data", one.custom_data, other.custom_data)):
        if not same_info(x, y):
            yield name
        if _retyped(x, y):
            yield f"the type of {name}"
    for name in ("observation_space", "action_space"):
        if getattr(one, name) is not None and getattr(one, name) != getattr(other, name):
            yield name


def _retyped(one: Any, other: Any) -> bool:
    """Whether somewhere a tuple is a list, or numpy's text is Python's."""
    if isinstance(one, dict) and isinstance(other, dict):
        return any(_retyped(one[key], other[key]) for key in one.keys() & other.keys())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return type(one) is not type(other) or any(map(_retyped, one, other))
    return isinstance(one, str) and type(one) is not type(other)


def _same(one: Any, other: Any) -> bool:
    """Equal in structure, values and dtypes, but for the width of text and the order of bytes."""
    pairs = zip(nested.leaves(one), nested.leaves(other), strict=False)
    kinds = [(x.dtype.newbyteorder("="), y.dtype.newbyteorder("=")) for x, y in pairs]
    return all(a == b or a.kind == b.kind == "U" for a, b in kinds) and nested.equal(one, other)
