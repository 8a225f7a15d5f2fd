"""Which versions of their policies the agents of an episode acted by: told now, written down when a chunk is taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from episodes.facts.policy_versions import UNKNOWN, UNKNOWN_RUNS, VersionRuns, checked_version
from episodes.multi_agent import MultiAgentEpisode
from episodes.multi_agent.timeline import WAITS, Timeline


def checked_versions(versions: Any) -> Any:
    """One version of all modules, or one of each by module id; `InvalidArgument` for what is no number, 0 or more."""
    numbers = versions.values() if isinstance(versions, Mapping) else [versions]
    for version in numbers:
        checked_version(version)
    return dict(versions) if isinstance(versions, Mapping) else versions


def switch_versions(episode: MultiAgentEpisode, before: Any, versions: Any) -> None:
    """Let the agents of an ongoing episode act by other versions; a step that waits was made by the one before."""
    for line in episode.agents.timelines.values():
        own, made = line.episode.facts, len(line.episode) + (line.phase == WAITS)
        old, new = (VersionRuns((_of(told, line),)) for told in (before, versions))
        runs = (own.policy_versions or old).extended_by(new, made)
        line.episode.facts = own._replace(policy_versions=None if runs == UNKNOWN_RUNS else runs)


def write_versions(chunk: MultiAgentEpisode, versions: Any) -> None:
    """Write the versions down in a chunk that is taken, of the steps that it has."""
    for line in chunk.agents.timelines.values():
        own, runs = line.episode.facts, line.episode.facts.policy_versions
        if runs is None and _of(versions, line) != UNKNOWN:
            runs = VersionRuns((_of(versions, line),))
        if runs is not None:
            line.episode.facts = own._replace(policy_versions=runs.window(0, len(line.episode)))


def carry_versions(chunk: MultiAgentEpisode, successor: MultiAgentEpisode) -> None:
    """Let the steps that wait at a cut stay of the versions that they were made by."""
    for agent_id, line in successor.agents.timelines.items():
        before = chunk.agents.timelines[agent_id].episode
        runs = before.facts.policy_versions
        if line.phase == WAITS and runs is not None:
            line.episode.facts = line.episode.facts._replace(policy_versions=runs.window(len(before), 2))


def _of(versions: Any, line: Timeline) -> int:
    version = versions.get(line.episode.module_id) if isinstance(versions, Mapping) else versions
    return UNKNOWN if version is None else int(version)
