"""Data sets that tests write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from episodes import EpisodePack, SingleAgentEpisode
from episodes.storage import EpisodeWriter


def write(path: Path, episodes: list[SingleAgentEpisode] | EpisodePack, **facts: Any) -> Path:
    """Write a data set of these episodes, and return its path."""
    with EpisodeWriter(path, **facts) as writer:
        writer.add(episodes)
    return path
