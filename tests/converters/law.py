"""Property of all converters: converted and restored episodes are equal, or the report names each difference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from episodes import SingleAgentEpisode
from episodes.converters.loss_report import LossReport
from episodes.facts import VersionRuns
from episodes.facts.facts import FACTS, FactKind
from episodes.testing.strategies import episodes
from episodes.tracks import nested
from episodes.tracks.infos.infos import same_info

NAMES = (*(fact for fact in FACTS if fact not in ("ending", "policy_versions")), "observation_space", "action_space")


@st.composite
def episode_lists(draw: st.DrawFn, observations: Any, actions: Any, **options: Any) -> list[SingleAgentEpisode]:
    """Draw up to four episodes with ids of every type, policy versions and unusual custom data."""
    extra = draw(st.sampled_from([[], ["action_logp"], ["state_out", "a/b~c"]]))
    shared = {"extra_outputs": extra, "with_spaces": draw(st.booleans()), **options}
    reward = draw(st.sampled_from([float, np.float32]))
    drawn = draw(st.lists(episodes(observations, actions, reward_type=reward, **shared), max_size=4))
    for number, episode in enumerate(drawn):
        ids = {
            name: draw(st.sampled_from([None, "p", 3, ("p", 1)]))
            for name, kind in FACTS.items()
            if kind is FactKind.OPTIONAL_ID
        }
        ids["acting_pipeline"] = draw(st.sampled_from([None, "{}", '{"views": [["Frames", {}]]}']))
        versions = draw(st.sampled_from([None, 4, np.arange(len(episode)) // 2]))
        episode.facts = episode.facts._replace(
            id_=f"e{number}", policy_versions=VersionRuns.of(versions, len(episode)), **ids
        )
        episode.custom_data |= draw(st.sampled_from([{}, {"seed": 3}, {"kept": 1, "lost": {1, 2}}, {"d": {2: "x"}}]))
    return drawn


def convertible_episodes(episodes: list[SingleAgentEpisode], report: LossReport) -> list[SingleAgentEpisode]:
    """Return all episodes, or only episodes with a step if the report names lost episodes."""
    names = {loss.what for loss in report}
    return [episode for episode in episodes if len(episode) or "the episode" not in names]


def check_round_trip(
    originals: list[SingleAgentEpisode], back: list[SingleAgentEpisode], lost: LossReport, given: Iterable[str] = ()
) -> None:
    """Check that the report names all differences and nothing else. The names in `given` may differ."""
    for original, restored in zip(convertible_episodes(originals, lost), back, strict=True):
        assert unreported_differences(original, restored, lost) <= {*given}, (original, restored, str(lost))
    assert reported_without_loss(originals, back, lost) == set()


def unreported_differences(original: SingleAgentEpisode, restored: SingleAgentEpisode, report: LossReport) -> set[str]:
    """Return the differences between two episodes that the report does not name."""
    return set(_differences(original, restored)) - {name for loss in report for name in _names_of(loss.what)}


def reported_without_loss(
    original: list[SingleAgentEpisode], restored: list[SingleAgentEpisode], report: LossReport
) -> set[str]:
    """Return the losses of the report that did not happen to any episode."""
    pairs = zip(convertible_episodes(original, report), restored, strict=True)
    lost = {name for pair in pairs for name in _differences(*pair)}
    lost |= {"the episode"} if len(original) > len(restored) else set()
    return {loss.what for loss in report if not lost & {*_names_of(loss.what)}}


def _names_of(loss: str) -> tuple[str, str]:
    """Return the path of a loss, such as `infos['t']` or `infos/t`, and the name at its start, such as `infos`."""
    path = loss.removeprefix("the dtype of ")
    return path, re.split(r"[\[/]", path)[0]


def _differences(original: SingleAgentEpisode, restored: SingleAgentEpisode) -> Iterator[str]:
    if original.lookback != restored.lookback:
        yield "lookback"
        original, restored = (
            episode.slice(slice(0, len(episode)), len_lookback_buffer=0) for episode in (original, restored)
        )
    tracks, restored_tracks = original.finalized_tracks(), restored.finalized_tracks()
    for name in NAMES:
        values = getattr(original, name), getattr(restored, name)
        if values[0] != values[1] and values != ("{}", None):  # a pipeline without rewriters and views
            yield name
    if original.facts.policy_versions != restored.facts.policy_versions:
        yield "policy_versions"
    if (original.is_terminated, original.is_truncated) != (restored.is_terminated, restored.is_truncated):
        yield "that the chunk goes on" if not original.is_done else "both_endings"
    for name in ("observations", "actions", "rewards"):
        if not _same(getattr(tracks, name).data, getattr(restored_tracks, name).data):
            yield name
    for key in tracks.extra.keys() | restored_tracks.extra.keys():
        both = key in tracks.extra and key in restored_tracks.extra
        if not both or not _same(tracks.extra[key].data, restored_tracks.extra[key].data):
            yield f"extra_model_outputs[{key!r}]"
    for name, x, y in (
        ("infos", [*original.infos], [*restored.infos]),
        ("custom_data", original.custom_data, restored.custom_data),
    ):
        if not same_info(x, y):
            yield name
        if _retyped(x, y):
            yield f"the type of {name}"
    for name in ("observation_space", "action_space"):
        if getattr(original, name) is not None and getattr(original, name) != getattr(restored, name):
            yield name


def _retyped(original: Any, restored: Any) -> bool:
    """Return True if a tuple became a list or a list a tuple, or numpy text became Python text."""
    if isinstance(original, dict) and isinstance(restored, dict):
        return any(_retyped(original[key], restored[key]) for key in original.keys() & restored.keys())
    if isinstance(original, (list, tuple)) and isinstance(restored, (list, tuple)):
        return type(original) is not type(restored) or any(map(_retyped, original, restored))
    return isinstance(original, str) and type(original) is not type(restored)


def _same(original: Any, restored: Any) -> bool:
    """Return True if structures, values and dtypes are equal, except for the width of text and the byte order."""
    pairs = zip(nested.leaves(original), nested.leaves(restored), strict=False)
    kinds = [(x.dtype.newbyteorder("="), y.dtype.newbyteorder("=")) for x, y in pairs]
    return all(a == b or a.kind == b.kind == "U" for a, b in kinds) and nested.equal(original, restored)
