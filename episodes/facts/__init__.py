"""What is known of an episode beside its tracks, for one episode and for many."""

from __future__ import annotations

from episodes.facts.ending import Ending
from episodes.facts.facts import EpisodeFacts, PackFacts

__all__ = ["Ending", "EpisodeFacts", "PackFacts"]
