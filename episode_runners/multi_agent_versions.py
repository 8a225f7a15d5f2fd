"""Policy versions of multi-agent episodes: which version of its policy acted for each agent in each step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from episodes.data_types import ModuleID
from episodes.facts.policy_versions import UNKNOWN, UNKNOWN_RUNS, VersionRuns, checked_version
from episodes.multi_agent import MultiAgentEpisode
from episodes.multi_agent.timeline import WAITS, Timeline

Versions: TypeAlias = "int | Mapping[ModuleID, int] | None"  # of the policies: one for all, or by module


def checked_versions(versions: Versions) -> Any:
    """Return policy versions after a check: one int for all modules, or a copied dict by module id.

    Raises:
        InvalidArgument: a version is not an int of at least 0.
    """
    numbers = versions.values() if isinstance(versions, Mapping) else [versions]
    for version in numbers:
        checked_version(version)
    return dict(versions) if isinstance(versions, Mapping) else versions


def switch_versions(episode: MultiAgentEpisode, before: Versions, versions: Versions) -> None:
    """Change the policy version that an ongoing episode records from its agents' next actions on.

    Args:
        episode: the ongoing episode. Actions that were taken already keep their versions.
        before: the policy versions so far: an int, a dict by module id, or None.
        versions: the policy versions from now on, in the same form.
    """
    for line in episode.agents.timelines.values():
        facts, made = line.episode.facts, len(line.episode) + (line.phase == WAITS)
        old, new = (VersionRuns((_version_of(source, line),)) for source in (before, versions))
        runs = (facts.policy_versions or old).extended_by(new, made)
        line.episode.facts = facts._replace(policy_versions=None if runs == UNKNOWN_RUNS else runs)


def write_versions(chunk: MultiAgentEpisode, versions: Versions) -> None:
    """Record the policy version of each step of each agent in a chunk.

    Agents without recorded versions get `versions`: an int, a dict by module id, or None.
    """
    for line in chunk.agents.timelines.values():
        facts, runs = line.episode.facts, line.episode.facts.policy_versions
        if runs is None and _version_of(versions, line) != UNKNOWN:
            runs = VersionRuns((_version_of(versions, line),))
        if runs is not None:
            line.episode.facts = facts._replace(policy_versions=runs.window(0, len(line.episode)))


def carry_versions(chunk: MultiAgentEpisode, successor: MultiAgentEpisode) -> None:
    """Copy the policy versions of pending actions, whose results are not known yet, from a chunk to its successor."""
    for agent_id, line in successor.agents.timelines.items():
        before = chunk.agents.timelines[agent_id].episode
        runs = before.facts.policy_versions
        if line.phase == WAITS and runs is not None:
            line.episode.facts = line.episode.facts._replace(policy_versions=runs.window(len(before), 2))


def _version_of(versions: Versions, line: Timeline) -> int:
    """Return the policy version of an agent, or `UNKNOWN`. `versions` is one version for all, or a dict by module
    id.
    """
    version = versions.get(line.episode.module_id) if isinstance(versions, Mapping) else versions
    return UNKNOWN if version is None else int(version)
