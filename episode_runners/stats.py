"""`CollectStats`: what a call of `sample` collected."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from gymnasium.vector import AutoresetMode

from episodes.pack import EpisodePack
from episodes.recorder.boundaries import Boundaries

__all__ = ["CollectStats", "spread_of"]

_MOST_WAITING = 256  # rows
_NO_RETURNS, _NO_LENGTHS = np.zeros(0), np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class CollectStats:
    """Steps and time of one call of `sample`, and the whole episodes that ended in it, however they were cut."""

    num_steps: int = 0
    seconds: float = 0.0
    returns: np.ndarray = field(default_factory=lambda: _NO_RETURNS)  # [k] undiscounted, of whole episodes
    lengths: np.ndarray = field(default_factory=lambda: _NO_LENGTHS)  # [k] steps, of whole episodes

    @property
    def num_episodes(self) -> int:
        """How many episodes ended."""
        return len(self.returns)

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second; NaN before the first call."""
        return self.num_steps / self.seconds if self.seconds else float("nan")

    @property
    def mean_return(self) -> float:
        """The mean return of the whole episodes; NaN when none ended."""
        return float(self.returns.mean()) if len(self.returns) else float("nan")

    @property
    def mean_length(self) -> float:
        """The mean length of the whole episodes; NaN when none ended."""
        return float(self.lengths.mean()) if len(self.lengths) else float("nan")

    def as_dict(self) -> dict[str, float]:
        """The numbers that a logger takes."""
        return {
            "num_steps": self.num_steps,
            "num_episodes": self.num_episodes,
            "seconds": self.seconds,
            "steps_per_second": self.steps_per_second,
            **spread_of("return", self.returns),
            **spread_of("length", self.lengths),
        }

    def __repr__(self) -> str:
        whole = f"{self.num_episodes} episodes ended, mean return {self.mean_return:g}, length {self.mean_length:g}"
        return f"CollectStats({self.num_steps} steps, {whole}, {self.steps_per_second:,.0f} steps/s)"


def spread_of(kind: str, values: np.ndarray) -> dict[str, float]:
    """The mean, deviation (over n), least and greatest of values [k] of a kind; NaN of none.

    >>> spread_of("return", np.array([1.0, 3.0]))
    {'mean_return': 2.0, 'std_return': 1.0, 'min_return': 1.0, 'max_return': 3.0}
    """
    names = [f"{name}_{kind}" for name in ("mean", "std", "min", "max")]
    if not len(values):
        return dict.fromkeys(names, float("nan"))
    return dict(zip(names, map(float, (values.mean(), values.std(), values.min(), values.max())), strict=True))


class RunningReturns:
    """The returns and lengths so far [N] of ongoing episodes, and those of the whole ones that ended since `take`.

    They are told by rows as they come (`add_row`), or by the chunks that were made of them (`add_pack`). Rows wait
    until somebody asks: counting many in a row takes half the time.
    """

    def __init__(self, num_envs: int, mode: AutoresetMode) -> None:
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        self._ended: list[tuple[np.ndarray, np.ndarray]] = []
        self._boundaries = Boundaries(num_envs, mode)  # of the rows
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []  # rewards [N] and whether episodes ended, bool [N]
        self._has_flags = False  # in a row that waits an episode may have ended

    def reset(self, mask: np.ndarray) -> None:
        """New episodes begin in the environments of the mask, bool [N]."""
        self._settle()
        self._boundaries.reset(mask)
        self._begin(mask)

    def _begin(self, envs: np.ndarray) -> None:
        self._returns[envs] = 0.0
        self._lengths[envs] = 0

    def add_row(self, rewards: np.ndarray, terminateds: np.ndarray, truncateds: np.ndarray) -> None:
        """Count a vector step's rewards [N], of which nobody else has the array."""
        done, waiting = np.logical_or(terminateds, truncateds), self._waiting
        waiting.append((rewards, done))
        if 1 in done.tobytes():  # a third of the time of numpy's count
            self._has_flags = True
        if len(waiting) == _MOST_WAITING:
            self._settle()

    def count_steps(self) -> int:
        """Return the number of steps, over all environments."""
        boundaries = self._boundaries
        if self._has_flags or len(boundaries.waiting):
            self._settle()
        return boundaries.num_steps + len(self._waiting) * boundaries.num_envs

    def _settle(self) -> None:
        rows = self._waiting
        if not rows:
            return
        self._waiting, self._has_flags = [], False
        boundaries, flagged = self._boundaries, [k for k, (_, done) in enumerate(rows) if np.count_nonzero(done)]
        start = 0
        for k in [*flagged, len(rows)]:
            if len(boundaries.waiting) and start < k:
                self._count(*rows[start])  # some environments spend it on a reset
                start += 1
            if start < k:
                boundaries.commit_steps(k - start)
                self._returns += np.add.reduce([rewards for rewards, _ in rows[start:k]])
                self._lengths += k - start
            if k < len(rows):
                self._count(*rows[k])
            start = k + 1

    def _count(self, rewards: np.ndarray, done: np.ndarray) -> None:
        """Count a row in which episodes may end, or in which environments are reset."""
        row = self._boundaries.classify(done, done)
        self._boundaries.commit(row)
        self._returns += rewards
        self._lengths += 1
        if len(row.reset):
            self._begin(row.reset)
        if len(row.ended):
            self._ended.append((self._returns[row.ended], self._lengths[row.ended]))
            self._begin(row.ended)

    def add_pack(self, pack: EpisodePack, envs: np.ndarray) -> None:
        """Count chunks.

        Args:
            envs: the environment [n] of each of the chunks, in order of time for each environment.
        """
        self._settle()
        returns = pack.returns()
        returns += np.where(pack.t_started > 0, self._returns[envs], 0.0)
        lengths, done = pack.t_started + pack.lengths, pack.terminated | pack.truncated
        self._returns[envs] = returns  # of several chunks the last one stays
        if done.any():
            self._ended.append((returns[done], lengths[done]))

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns [k] and lengths [k] of the whole episodes that ended since the last take."""
        if self._has_flags:
            self._settle()
        if not self._ended:
            return _NO_RETURNS, _NO_LENGTHS
        ended, self._ended = self._ended, []
        if len(ended) == 1:
            return ended[0]
        returns, lengths = (np.concatenate(parts) for parts in zip(*ended, strict=True))
        return returns, lengths
