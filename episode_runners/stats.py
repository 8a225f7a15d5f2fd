"""`CollectStats`: steps, time and episode returns of one call of `sample`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from gymnasium.vector import AutoresetMode

from episodes.pack import EpisodePack
from episodes.recorder.boundaries import Boundaries

__all__ = ["CollectStats", "spread_of"]

_NO_RETURNS, _NO_LENGTHS = np.zeros(0), np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class CollectStats:
    """Statistics of one call of `sample`: number of steps, duration,
    and returns and lengths of the episodes that ended.

    Episodes count as a whole, also if earlier calls returned their first chunks.

    Attributes:
        num_steps: environment steps sampled.
        seconds: duration of the call.
        returns: undiscounted returns of the whole episodes, float [k].
        lengths: lengths of the whole episodes in steps, int [k].
    """

    num_steps: int = 0
    seconds: float = 0.0
    returns: np.ndarray = field(default_factory=lambda: _NO_RETURNS)
    lengths: np.ndarray = field(default_factory=lambda: _NO_LENGTHS)

    @property
    def num_episodes(self) -> int:
        """Number of whole episodes that ended in the call."""
        return len(self.returns)

    @property
    def steps_per_second(self) -> float:
        """Sampled environment steps per second. NaN before the first call."""
        return self.num_steps / self.seconds if self.seconds else float("nan")

    @property
    def mean_return(self) -> float:
        """Mean return of the episodes that ended. NaN if no episode ended."""
        return float(self.returns.mean()) if len(self.returns) else float("nan")

    @property
    def mean_length(self) -> float:
        """Mean length, in steps, of the episodes that ended. NaN if no episode ended."""
        return float(self.lengths.mean()) if len(self.lengths) else float("nan")

    def as_dict(self) -> dict[str, float]:
        """Return the statistics as a dict of numbers for a logger."""
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
    """Return the mean, standard deviation (over n), minimum and maximum of values [k] by name, or NaNs if k is 0.

    Args:
        kind: the second part of the names in the result.
        values: the values, [k].

    >>> spread_of("return", np.array([1.0, 3.0]))
    {'mean_return': 2.0, 'std_return': 1.0, 'min_return': 1.0, 'max_return': 3.0}
    """
    names = [f"{name}_{kind}" for name in ("mean", "std", "min", "max")]
    if not len(values):
        return dict.fromkeys(names, float("nan"))
    return dict(zip(names, map(float, (values.mean(), values.std(), values.min(), values.max())), strict=True))


class RunningReturns:
    """Counter of the returns and lengths of episodes in N environments, while the episodes are sampled.

    It counts rows as they come (`add_row`), or chunks of packs (`add_pack`).

    Args:
        num_envs: number of environments, N.
        mode: autoreset mode of the environments.
    """

    def __init__(self, num_envs: int, mode: AutoresetMode) -> None:
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        self._ended: list[tuple[np.ndarray, np.ndarray]] = []
        self._boundaries = Boundaries(num_envs, mode)

    def reset(self, mask: np.ndarray) -> None:
        """Set return and length of ongoing episodes to 0 in the environments flagged in `mask`, bool [N]."""
        self._boundaries.reset(mask)
        self._begin(mask)

    def cut(self, envs: np.ndarray) -> None:
        """Cut the ongoing episodes of the environments `envs`, int [k]: their next row is a reset and no step."""
        self._boundaries.cut(envs)

    def _begin(self, envs: np.ndarray) -> None:
        """Start new episodes in the environments `envs`: set their returns and lengths to 0."""
        self._returns[envs] = 0.0
        self._lengths[envs] = 0

    def add_row(self, rewards: np.ndarray, terminateds: np.ndarray, truncateds: np.ndarray) -> None:
        """Add the rewards [N] and end flags [N] of a vector step."""
        done = np.logical_or(terminateds, truncateds)
        row = self._boundaries.classify(done, done)
        self._boundaries.commit(row)
        self._returns += rewards
        self._lengths += 1
        if len(row.reset):
            self._begin(row.reset)
        if len(row.ended):
            self._ended.append((self._returns[row.ended], self._lengths[row.ended]))
            self._begin(row.ended)

    def count_steps(self) -> int:
        """Return the number of environment steps that were added by `add_row`, without reset rows."""
        return self._boundaries.num_steps

    def add_pack(self, pack: EpisodePack, envs: np.ndarray) -> None:
        """Add the episode chunks of a pack. `envs`, int [n], has the environment of each of the n chunks.

        Args:
            pack: the pack of n chunks.
            envs: index of the environment of each chunk, int [n]; an environment's chunks are in order of time.
        """
        returns = pack.returns()
        returns += np.where(pack.t_started > 0, self._returns[envs], 0.0)
        lengths, done = pack.t_started + pack.lengths, pack.terminated | pack.truncated
        self._returns[envs] = returns  # an environment's last chunk counts
        if done.any():
            self._ended.append((returns[done], lengths[done]))

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the returns [k] and lengths [k] of the k episodes that ended since the last call of `take`."""
        if not self._ended:
            return _NO_RETURNS, _NO_LENGTHS
        ended, self._ended = self._ended, []
        if len(ended) == 1:
            return ended[0]
        returns, lengths = (np.concatenate(parts) for parts in zip(*ended, strict=True))
        return returns, lengths
