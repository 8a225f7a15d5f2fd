"""`RecordSamples`: what a runner samples goes to disk, too."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from episode_runners.runner import Hook
from episodes.errors import WrongType
from episodes.storage import EpisodeWriter

__all__ = ["RecordSamples"]


class RecordSamples(Hook):
    """A hook that writes the episodes of every `sample` to a data set, and flushes it.

    Args:
        path: of the data set, or an `EpisodeWriter`.
        options: those of `EpisodeWriter`.

    Close it when the runner is done; it is a context manager.
    """

    def __init__(self, path: str | Path | EpisodeWriter, **options: Any) -> None:
        self.writer = path if isinstance(path, EpisodeWriter) else EpisodeWriter(path, **options)

    def on_sample_end(self, runner: Any, sampled: Any) -> None:
        """Write what was sampled. `WrongType` for what `sample_into` gives, which are no episodes."""
        if isinstance(sampled, dict):
            raise WrongType("sample_into puts steps into a buffer: write that to disk, or call sample")
        self.writer.add(sampled)
        self.writer.flush()

    def close(self) -> None:
        """Finish the data set."""
        self.writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
