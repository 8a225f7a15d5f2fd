"""`CollectStats`: what a call of `sample` collected."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from episodes.pack import EpisodePack

__all__ = ["CollectStats"]


@dataclass(frozen=True, slots=True)
class CollectStats:
    """Steps and time of one call of `sample`, and the whole episodes that ended in it, however they were cut."""

    num_steps: int = 0
    seconds: float = 0.0
    returns: np.ndarray = field(default_factory=lambda: np.zeros(0))  # [k] undiscounted, of whole episodes
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # [k] steps, of whole episodes

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
            "mean_return": self.mean_return,
            "mean_length": self.mean_length,
        }

    def __repr__(self) -> str:
        whole = f"{self.num_episodes} episodes ended, mean return {self.mean_return:g}, length {self.mean_length:g}"
        return f"CollectStats({self.num_steps} steps, {whole}, {self.steps_per_second:,.0f} steps/s)"


class RunningReturns:
    """The returns so far [N] of the episodes that the last pack left unfinished."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs)

    def finished(self, pack: EpisodePack, envs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns [k] and lengths [k] of the whole episodes that end in the pack.

        Args:
            envs: the environment [n] of each of the pack's chunks, in order of time for each environment.
        """
        returns = pack.returns()
        returns += np.where(pack.t_started > 0, self._returns[envs], 0.0)
        done = pack.terminated | pack.truncated
        self._returns[envs] = returns
        return returns[done], (pack.t_started + pack.lengths)[done]
