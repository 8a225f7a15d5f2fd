"""Ids of converted episodes: the same for each conversion of a source, and different for two sources."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from episodes.converters.loss_report import LossReport
from episodes.errors import InvalidArgument, WrongType
from episodes.multi_agent import MultiAgentEpisode
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

Episode = TypeVar("Episode", SingleAgentEpisode, MultiAgentEpisode)
_SIZE = 6  # bytes of a digest


def checked_prefix(prefix: str | None) -> str | None:
    """Return `prefix`. Raise an error if it is neither None nor text of at least one character."""
    if prefix is not None and not isinstance(prefix, str):
        raise WrongType(f"prefix={prefix!r}; give text, which ids of the episodes begin with")
    if prefix == "":
        raise InvalidArgument("prefix='' separates no sources; give text, or None for a digest of the source")
    return prefix


def prefix_of_files(kind: str, files: Iterable[Path], prefix: str | None) -> str:
    """Return `prefix`, or if it is None, "KIND-DIGEST" with a digest of the contents of the files.

    The paths of the files have no effect, so a copied or renamed file has the same digest.
    """
    if checked_prefix(prefix) is not None:
        return str(prefix)
    whole = _new()
    for file in files:
        with file.open("rb") as opened:
            whole.update(hashlib.file_digest(opened, _new).digest())
    return f"{kind}-{whole.hexdigest()}"


def prefix_of_arrays(kind: str, data: object, prefix: str | None) -> str:
    """Return `prefix`, or if it is None, "KIND-DIGEST" with a digest of nested arrays and other values."""
    if checked_prefix(prefix) is not None:
        return str(prefix)
    whole = _new()
    for path, leaf in nested.flatten(data).items():
        array = np.asarray(leaf)
        whole.update(f"{path}|{array.dtype.str}|{array.shape}|".encode())
        if array.dtype.hasobject:
            whole.update(repr(array.tolist()).encode(errors="backslashreplace"))
        else:
            whole.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return f"{kind}-{whole.hexdigest()}"


def prefix_of_values(kind: str, values: object, prefix: str | None) -> str:
    """Return `prefix`, or if it is None, "KIND-DIGEST" with a digest of lists, dicts, arrays and plain values."""
    if checked_prefix(prefix) is not None:
        return str(prefix)
    whole = _new()

    def add(value: Any) -> None:
        if isinstance(value, Mapping):
            value = [part for pair in value.items() for part in pair]
        if isinstance(value, (list, tuple)):
            whole.update(f"[{len(value)}".encode())
            for part in value:
                add(part)
        elif hasattr(value, "tolist"):
            add(value.tolist())
        else:
            whole.update(f"|{value!r}".encode(errors="backslashreplace"))

    add(values)
    return f"{kind}-{whole.hexdigest()}"


def _new() -> Any:
    return hashlib.blake2b(digest_size=_SIZE)


def with_prefix(id_: object, prefix: str | None) -> Any:
    """Return the id that a source has for an episode, as "PREFIX/ID" if `prefix` is given."""
    return id_ if checked_prefix(prefix) is None else f"{prefix}/{id_}"


def own_or_made_ids(
    kind: str, ids: Sequence[Any], content: object, prefix: str | None, report: LossReport
) -> list[Any]:
    """Return an id for each episode of a source that may store ids: all of them differ.

    Args:
        kind: name of the format.
        ids: the stored ids, None for episodes without one. These get "KIND-DIGEST/INDEX".
        content: the source's values, for the digest.
        prefix: None, or the first part of all ids.
        report: gets ids that are stored for several episodes. Their second episode has the id "ID/1".
    """
    made = "" if all(id_ is not None for id_ in ids) else prefix_of_values(kind, content, prefix)
    result, known = [], {id_ for id_ in ids if id_ is not None}
    counts: Counter[Any] = Counter()
    for number, id_ in enumerate(ids):
        if id_ is None:
            result.append(f"{made}/{number}")
            continue
        unique, counts[id_] = id_, counts[id_] + 1
        if counts[id_] > 1:
            while (unique := f"{id_}/{counts[id_] - 1}") in known:
                counts[id_] += 1
            report.add("id_", "several rows have it; those after the first one get a number", id_)
        known.add(unique)
        result.append(with_prefix(unique, prefix))
    return result


def prefixed(episode: Episode, prefix: str | None) -> Episode:
    """Return an episode with its own ids, or with `prefix` one with the ids "PREFIX/ID". Tracks are shared."""
    if checked_prefix(prefix) is None:
        return episode
    if isinstance(episode, MultiAgentEpisode):
        episode.facts = episode.facts._replace(id_=with_prefix(episode.id_, prefix))
        for agent_episode in episode.agent_episodes.values():
            agent_episode.facts = _prefixed_facts(agent_episode.facts, prefix)
        return episode
    return type(episode).of(_prefixed_facts(episode.facts, prefix), episode.tracks, episode.custom_data)


def _prefixed_facts(facts: Any, prefix: str | None) -> Any:
    whole = facts.multi_agent_episode_id
    return facts._replace(
        id_=with_prefix(facts.id_, prefix),
        multi_agent_episode_id=None if whole is None else with_prefix(whole, prefix),
    )
