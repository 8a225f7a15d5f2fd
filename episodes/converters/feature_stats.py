"""Statistics of each feature (column or video) that LeRobot data sets store, per episode and in total."""

from __future__ import annotations

from typing import Any

import numpy as np

_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_MOST_FRAMES = 100  # frames of an episode that its statistics use

Stats = dict[str, np.ndarray]


def stats_of(items: np.ndarray) -> Stats:
    """Return a dict of min, max, mean, std, quantiles [...] and count [1] of items [n, ...]."""
    wide = items.reshape(len(items), -1).astype(np.float64)
    stats = {"min": wide.min(0), "max": wide.max(0), "mean": wide.mean(0), "std": wide.std(0)}
    stats |= dict(zip(_QUANTILES, np.quantile(wide, list(_QUANTILES.values()), axis=0), strict=True))
    shape = items.shape[1:] or (1,)
    return {name: value.reshape(shape) for name, value in stats.items()} | {"count": np.array([len(items)])}


def frame_stats_of(frames: np.ndarray) -> Stats:
    """Return statistics [C, 1, 1] of video frames [n, H, W, C] scaled to 0..1, computed from at most 100 frames."""
    some = frames[:: max(1, len(frames) // _MOST_FRAMES)]
    stats = stats_of(some.reshape(-1, some.shape[-1]) / 255.0)
    return {name: value.reshape(-1, 1, 1) for name, value in stats.items()} | {"count": np.array([len(some)])}


class RunningStats:
    """Statistics of a whole data set, accumulated from the statistics of its episodes.

    Quantiles are approximate: means of the parts' quantiles, weighted by count.
    """

    def __init__(self) -> None:
        self._known: Stats = {}

    def add(self, part: Stats) -> None:
        """Add the statistics of one more episode."""
        known = self._known
        if not known:
            self._known = part
            return
        a, b = float(known["count"][0]), float(part["count"][0])
        weight = b / (a + b)
        away = part["mean"] - known["mean"]
        variance = (1 - weight) * known["std"] ** 2 + weight * part["std"] ** 2 + weight * (1 - weight) * away**2
        mixed = {name: known[name] + weight * (part[name] - known[name]) for name in ("mean", *_QUANTILES)}
        ends = {"min": np.minimum(known["min"], part["min"]), "max": np.maximum(known["max"], part["max"])}
        self._known = mixed | ends | {"std": np.sqrt(variance), "count": known["count"] + part["count"]}

    def to_json(self) -> dict[str, Any]:
        """Return the accumulated statistics as a dict of lists."""
        return {name: value.tolist() for name, value in self._known.items()}
