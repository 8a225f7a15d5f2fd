"""`RecordSamples`: runner hook that writes all sampled episodes to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from episode_runners.runner import Hook
from episode_runners.stats import CollectStats
from episodes.closeable import Closeable
from episodes.errors import WrongType
from episodes.storage import EpisodeWriter

if TYPE_CHECKING:
    from episode_runners.runner import Sampled

__all__ = ["RecordSamples"]


class RecordSamples(Closeable, Hook):
    """Runner hook that writes the episodes of every call of `sample` to a data set on disk.

    Close it when the runner is done. It is a context manager.

    Args:
        path: path of the data set, or an `EpisodeWriter`.
        options: options of `EpisodeWriter`.
    """

    def __init__(self, path: str | Path | EpisodeWriter, **options: Any) -> None:
        self.writer = path if isinstance(path, EpisodeWriter) else EpisodeWriter(path, **options)

    def on_sample_end(self, runner: object, sampled: Sampled) -> None:
        """Write the episodes of a call of `sample` to the data set.

        Raises:
            WrongType: after `sample_into`, which returns no episodes.
        """
        if isinstance(sampled, CollectStats):
            raise WrongType("RecordSamples: sample_into returns no episodes; write the buffer to disk, or call sample")
        self.writer.add(sampled)
        self.writer.flush()

    def close(self) -> None:
        """Write all buffered episodes, and close the data set."""
        self.writer.close()
