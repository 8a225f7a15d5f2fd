"""Numbers of the rows of training updates: distances of ratios, correlations, histograms, times, names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from episodes.inspect import formatting

TOKEN = "token"  # measurement of algorithms whose rows are tokens
WORKER = "worker"  # measurement of a ledger of a group of runners
LIMITS = np.finfo(np.float32)  # of ratios
_FEWEST_ENDS = 5
NAMES = {
    "share": "share of loss",
    "steps": "rows",
    "ratio_distance": "mean |log ratio|",
    "logp_distance": "mean |logp difference|",
    "advantage_agreement": "correlation of advantages",
    "first_value": "value",
    "first_ratio": "first ratio",
    "first_logp_difference": "logp difference",
    "token": "place in turn",
    "token_id": "token",
    "group": "siblings",
    "kl": "KL",
}
"""Names of columns on a page, if they are not those of `UpdateExplanation` with spaces."""


def histogram(values: np.ndarray, num_bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return counts and edges, as `UpdateExplanation.histogram`, of finite values [k]."""
    if not len(values):
        return np.zeros(0, np.int64), np.zeros(0)
    low, high = float(values.min()), float(values.max())
    near, far = np.quantile(values, [0.005, 0.995])
    if far > near and high - low > 3 * (far - near):
        edges = np.concatenate([[low], np.linspace(near, far, num_bins - 1), [high]])
    elif high > low:
        edges = np.linspace(low, high, num_bins + 1)
    else:
        half = max(abs(low), 1.0) / 2
        edges = np.array([low - half, low + half])
    return np.histogram(values, edges)[0], edges


def log_ratios(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return log(first_ratio) of each step, or NaN if earlier gradient steps of the update had changed the policy.

    A ratio that float32 rounds to 0 or infinity counts as the nearest number, whose logarithm is about -87 or 89.
    """
    logarithms = np.log(np.clip(columns["first_ratio"], LIMITS.tiny, LIMITS.max))
    steps = columns.get("first_gradient_step")
    return logarithms if steps is None else np.where(steps == 0, logarithms, np.nan)


def ratio_distances(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return |log(first_ratio)| of each step, as `log_ratios`."""
    return np.abs(log_ratios(columns))


def time_ranges(times: np.ndarray, has_last: bool = False) -> list[str]:
    """Return the range of each time, whose beginnings are 0 and the powers of 2.

    Args:
        times: times of steps, int [n].
        has_last: whether the last time is a range of its own, if at least five steps have it.

    >>> time_ranges(np.array([0, 1, 3, 4, 100]))
    ['0', '1', '2-3', '4-7', '64-127']
    """
    last = int(times.max()) if has_last and len(times) and (times == times.max()).sum() >= _FEWEST_ENDS else -1
    names = {}
    for t in np.unique(times).tolist():
        n = t.bit_length()
        begin, end = (n, n) if n < 2 else (1 << n - 1, (1 << n) - 1)
        end = last - 1 if begin < last <= end else end
        names[t] = str(t) if t == last or begin == end else f"{begin}-{end}"
    return [names[t] for t in times.tolist()]


FAR = 0.003  # mean |log ratio| of another policy; rounding of float32 gives 1e-6, of TF32 up to 1e-3
FAR_OF_TOKENS = 0.1  # of a language model, whose sampler rounds otherwise than its trainer
AGREES = -0.3  # lowest correlation of advantages with value target minus value that is no sign of a defect


def stands_out(name: str, value: Any, is_of_tokens: bool = False) -> bool:
    """Return True for a summary of a group, such as "ratio_distance", that runs without defects do not have.

    Args:
        name: name of the column.
        value: the number.
        is_of_tokens: whether the rows are tokens, for which samplers and trainers round otherwise.
    """
    if name == "advantage_agreement":
        return bool(value < AGREES)
    return name in ("ratio_distance", "logp_distance") and bool(value > (FAR_OF_TOKENS if is_of_tokens else FAR))


def mean(column: np.ndarray) -> float:
    """Return the mean of the numbers that are finite, or NaN."""
    finite = column[np.isfinite(column)]
    return float(finite.mean()) if len(finite) else float("nan")


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of two columns, or NaN if one is constant."""
    known = np.isfinite(a) & np.isfinite(b)
    a, b = a[known], b[known]
    if len(a) < 2 or not a.std() or not b.std():
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def text_of(name: str, value: Any) -> str:
    """Return a value of the column `name` as text."""
    if name in ("share", "clipped") and value == value:
        return f"{100 * value:.2f} %"
    if isinstance(value, (float, np.floating)):
        return formatting.number(float(value))
    return "" if value is None else formatting.clipped(value, 32)


def name_of(column: str, is_of_tokens: bool = False) -> str:
    """Return the name of a column on a page, of steps or of tokens."""
    return "turn" if column == "t" and is_of_tokens else NAMES.get(column, column.replace("_", " "))
