"""Metadata ("facts") of episodes and chunks: ids, start times, endings, policy versions and spaces."""

from __future__ import annotations

from episodes.facts.ending import Ending
from episodes.facts.facts import EpisodeFacts as EpisodeFacts
from episodes.facts.facts import PackFacts as PackFacts
from episodes.facts.policy_versions import VersionColumn as VersionColumn
from episodes.facts.policy_versions import VersionRuns as VersionRuns

__all__ = ["Ending"]
