"""Returns and lengths of all complete episodes of a run, and the last episodes."""

from __future__ import annotations

from collections import deque

import numpy as np

from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode

__all__ = ["EpisodeHistory"]


class EpisodeHistory:
    """Collector that joins the parts of episodes in samples to complete episodes, with returns and lengths.

    Args:
        keep: number of the last complete episodes that are stored. Of others, returns and lengths are stored.
    """

    def __init__(self, keep: int = 50) -> None:
        self.returns: list[float] = []  # of whole episodes, in the order in which they ended
        self.lengths: list[int] = []
        self.num_steps = 0  # sampled, those of unfinished episodes too
        self._unfinished: dict[str, list[SingleAgentEpisode]] = {}
        self._kept: deque[list[SingleAgentEpisode]] = deque(maxlen=keep)

    def add(self, pack: EpisodePack) -> None:
        """Add sampled episodes, and parts of episodes that continue earlier parts. Nothing is copied."""
        self.num_steps += pack.num_steps
        ended = pack.terminated | pack.truncated
        for chunk, has_ended in zip(pack, ended, strict=True):
            chunks = self._unfinished.setdefault(chunk.id_, [])
            chunks.append(chunk)
            if has_ended:
                self._finish(self._unfinished.pop(chunk.id_))

    def _finish(self, chunks: list[SingleAgentEpisode]) -> None:
        self.returns.append(float(sum(chunk.get_return() for chunk in chunks)))
        self.lengths.append(sum(len(chunk) for chunk in chunks))
        self._kept.append(chunks)

    def mean_return(self, last: int = 50) -> float:
        """Return the mean return of the last `last` complete episodes, NaN without complete episodes."""
        return float(np.mean(self.returns[-last:])) if self.returns else float("nan")

    def episodes(self) -> list[SingleAgentEpisode]:
        """Return the last complete episodes, the newest last."""
        return [_joined(chunks) for chunks in self._kept]


def _joined(chunks: list[SingleAgentEpisode]) -> SingleAgentEpisode:
    whole = chunks[0].slice(slice(None))
    for chunk in chunks[1:]:
        whole.concat_episode(chunk)
    return whole.to_numpy()
