"""What is known of an episode beside its tracks, for one episode and for many."""

from __future__ import annotations

from episodes.facts.ending import Ending
from episodes.facts.facts import EpisodeFacts, PackFacts
from episodes.facts.policy_versions import VersionColumn, VersionRuns

__all__ = ["Ending", "EpisodeFacts", "PackFacts", "VersionColumn", "VersionRuns"]
