"""`EpisodeHistory`: returns and lengths of all complete episodes of a run, and the last complete episodes."""

from __future__ import annotations

from collections import deque

import numpy as np

from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode

__all__ = ["EpisodeHistory"]


class EpisodeHistory:
    """Record of a training run's complete episodes: the return and length of each, and the last episodes themselves.
    Chunks of an episode from several samples are joined.

    Args:
        keep: number of the last complete episodes that are stored. For older episodes, only returns and lengths are
            stored.
    """

    def __init__(self, keep: int = 50) -> None:
        self.returns: list[float] = []  # of whole episodes, in the order in which they ended
        self.lengths: list[int] = []
        self.num_steps = 0  # sampled, those of unfinished episodes too
        self._unfinished: dict[str, list[SingleAgentEpisode]] = {}
        self._last_chunks: deque[list[SingleAgentEpisode]] = deque(maxlen=keep)

    def add(self, pack: EpisodePack) -> None:
        """Add a pack of sampled episodes.

        A chunk continues the earlier chunk with the same id. No data are copied.
        """
        self.num_steps += pack.num_steps
        ended = pack.terminated | pack.truncated
        for chunk, has_ended in zip(pack, ended, strict=True):
            chunks = self._unfinished.setdefault(chunk.id_, [])
            chunks.append(chunk)
            if has_ended:
                self._add_complete(self._unfinished.pop(chunk.id_))

    def _add_complete(self, chunks: list[SingleAgentEpisode]) -> None:
        """Record the return and length of a complete episode, given its chunks in order, and store the chunks."""
        self.returns.append(float(sum(chunk.get_return() for chunk in chunks)))
        self.lengths.append(sum(len(chunk) for chunk in chunks))
        self._last_chunks.append(chunks)

    def mean_return(self, last: int = 50) -> float:
        """Return the mean return of the last `last` complete episodes, or NaN if no episode is complete yet."""
        return float(np.mean(self.returns[-last:])) if self.returns else float("nan")

    def episodes(self) -> list[SingleAgentEpisode]:
        """Return the last complete episodes (at most `keep`), each joined from its chunks, the newest last."""
        return [join_chunks(chunks) for chunks in self._last_chunks]


def join_chunks(chunks: list[SingleAgentEpisode]) -> SingleAgentEpisode:
    """Return a complete episode with numpy arrays, made of its chunks (of one agent or several) in order. The chunks
    are not changed.
    """
    whole = chunks[0].slice(slice(None))
    for chunk in chunks[1:]:
        whole.concat_episode(chunk)
    return whole.to_numpy()
