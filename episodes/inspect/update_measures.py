"""Numbers of the rows of training updates: distances of ratios, correlations, histograms, times, names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

import numpy as np

from episodes.inspect import formatting
from episodes.inspect.scales import MOST_EXACT, are_whole, width_of_whole_bins

TOKEN = "token"  # measurement of algorithms whose rows are tokens
WORKER = "worker"  # measurement of a ledger of a group of runners
LIMITS = np.finfo(np.float32)  # of ratios
_FEWEST_ENDS = 5
NAMES = {
    "share": "share of loss",
    "steps": "rows",
    "ratio_distance": "mean |log ratio|",
    "ratio_distance_rows": "first-step rows",
    "logp_distance": "mean |logp difference|",
    "advantage_agreement": "correlation of advantages",
    "first_value": "value",
    "first_ratio": "first ratio",
    "first_logp_difference": "logp difference",
    "token": "place in turn",
    "token_id": "token",
    "group": "siblings",
    "kl": "KL",
    "log_ratio": "|log ratio|",
    "logp_gap": "|logp difference|",
    "value_error": "value minus value target",
    "advantage_error": "advantage times error",
}
"""Names of columns on a page, if they are not those of `UpdateExplanation` with spaces."""


def histogram(values: np.ndarray, num_bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return counts and edges, as `UpdateExplanation.histogram`, of finite values [k]."""
    if not len(values):
        return np.zeros(0, np.int64), np.zeros(0)
    low, high = float(values.min()), float(values.max())
    near, far = np.quantile(values, [0.005, 0.995])
    is_far = far > near and high - low > 3 * (far - near)
    if are_whole(values) and max(-low, high) < MOST_EXACT / 2:  # where the halves between them are exact
        if not is_far or width_of_whole_bins(low, high) == 1:
            near, far = low, high
        near, far = floor(near), ceil(far)
        width = width_of_whole_bins(near, far)
        inner = near - 0.5 + width * np.arange(-(-(far - near + 1) // width) + 1)
        edges = np.concatenate([[low - 0.5] * int(low < near), inner, [high + 0.5] * int(high > inner[-1])])
        return np.histogram(values, edges)[0], edges
    if is_far:
        edges = np.concatenate([[low], np.linspace(near, far, num_bins - 1), [high]])
    elif high > low:
        edges = np.linspace(low, high, num_bins + 1)
    else:
        half = max(abs(low), 1.0) / 2
        edges = np.array([low - half, low + half])
    edges = with_few_digits(edges)
    return np.histogram(values, edges)[0], edges


def with_few_digits(edges: np.ndarray) -> np.ndarray:
    """Return edges of bins [n + 1], of which the inner ones are rounded to a hundredth of the narrowest bin."""
    width = float(np.diff(edges).min())
    if not 1e-100 < width < 1e100:
        return edges
    rounded = np.array([edges[0], *(round(edge, 2 - floor(log10(width))) for edge in edges[1:-1].tolist()), edges[-1]])
    return rounded if (np.diff(rounded) > 0).all() else edges


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


STEP_MEASURES = {
    "ratio_distance": "log_ratio",
    "logp_distance": "logp_gap",
    "first_value - value_target": "value_error",
    "advantage_agreement": "advantage_error",
}
"""Columns of steps that tell which steps have a number of a group, by that number."""


def step_measures(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return those columns of `STEP_MEASURES` that can be computed from the columns of steps, [n] each: |log ratio| of
    rows of the first gradient step, |logp difference|, value minus value target, and advantage times (value target
    minus value), which is negative if the advantage has the wrong sign.
    """
    result = {}
    if "first_ratio" in columns:
        result["log_ratio"] = ratio_distances(columns)
    if "first_logp_difference" in columns:
        result["logp_gap"] = np.abs(columns["first_logp_difference"])
    if {"first_value", "value_target"} <= columns.keys():
        with np.errstate(all="ignore"):  # of infinities
            result["value_error"] = columns["first_value"] - columns["value_target"]
            if "advantage" in columns:
                result["advantage_error"] = -columns["advantage"] * result["value_error"]
    return result


def words_of_step(measure: str, columns: Mapping[str, np.ndarray], row: int) -> str:
    """Return the numbers of one step that show a number of a group, as text, such as "|log ratio| 0.55".

    Args:
        measure: number of the group: a key of `STEP_MEASURES`, or "share".
        columns: columns of steps.
        row: index of the step.
    """
    if measure == "advantage_agreement":
        gain = -step_measures({name: columns[name][row : row + 1] for name in _OF_VALUES})["value_error"][0]
        return f"advantage {text_of('', columns['advantage'][row])}, value target minus value {text_of('', gain)}"
    if measure == "share" or " - " in measure:
        names = ["share"] * (measure == "share") + [name for name in _OF_VALUES if name in columns]
        return ", ".join(f"{name_of(name)} {text_of(name, float(columns[name][row]))}" for name in names)
    name = STEP_MEASURES[measure]
    one = {column: columns[column][row : row + 1] for column in _OF_DISTANCES if column in columns}
    return f"{name_of(name)} {text_of(name, step_measures(one)[name][0])}"


_OF_VALUES = ("first_value", "value_target")
_OF_DISTANCES = ("first_ratio", "first_gradient_step", "first_logp_difference")


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit of a number of groups, beyond which a group shows a finding.

    Attributes:
        measure: the number, or the difference of two, such as "first_value - value_target".
        value: the limit.
        is_least: whether numbers below the limit show it, and not those above.
        meaning: where the limit comes from, as text.
        tables: names of the tables whose rows are compared, such as "by-time"; all of them if empty.
    """

    measure: str
    value: float
    is_least: bool = False
    meaning: str = ""
    tables: Sequence[str] = ()

    def passed_by(self, number: float) -> bool:
        """Return True if a number is beyond the limit."""
        return bool(number < self.value if self.is_least else number > self.value)

    def number_of(self, row: Mapping[str, Any]) -> float:
        """Return the number of a row of `UpdateExplanation.by`, NaN if it has none."""
        first, *others = (float(row.get(name, np.nan)) for name in self.columns)
        return first - sum(others)

    @property
    def columns(self) -> list[str]:
        """Columns of a table with the number."""
        return self.measure.split(" - ")

    @property
    def words(self) -> str:
        """The limit as text, such as "mean |log ratio| above 0.003"."""
        names = " minus ".join(map(name_of, self.columns))
        return f"{names} {'below' if self.is_least else 'above'} {text_of(self.measure, self.value)}{self.meaning}"


def usual_limits(is_of_tokens: bool) -> list[Limit]:
    """Return the limits that groups of runs without defects keep, of steps or of tokens, for which samplers and
    trainers round otherwise.
    """
    distance = Limit("logp_distance", FAR_OF_TOKENS) if is_of_tokens else Limit("ratio_distance", FAR)
    return [distance, Limit("advantage_agreement", AGREES, True)]


def mean(column: np.ndarray) -> float:
    """Return the mean of the numbers that are finite, or NaN."""
    finite = column[np.isfinite(column)]
    return float(finite.mean()) if len(finite) else float("nan")


def is_constant(values: np.ndarray) -> bool:
    """Return whether finite numbers [n] differ by no more than rounding errors, or there are none."""
    rounding = 8 * np.finfo(np.float64).eps * np.abs(values).max(initial=0)
    return not len(values) or bool(values.max() - values.min() <= rounding)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of two columns, or NaN if one is constant."""
    known = np.isfinite(a) & np.isfinite(b)
    a, b = a[known], b[known]
    if len(a) < 2 or is_constant(a) or is_constant(b):
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def text_of(name: str, value: Any) -> str:
    """Return a value of the column `name` as text."""
    if name in ("share", "clipped") and value == value:
        return f"{100 * value:.2f} %"
    if isinstance(value, (float, np.floating)):
        return formatting.number(float(value))
    return "" if value is None else formatting.clipped(value, 32)


ROWS = "_rows"  # end of the name of the number of rows that a mean is of


def row_measures(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return for each number of groups and updates the values of the rows that it is computed from, [n] each. Rows that
    do not count are NaN or infinite.

    The numbers are means of the measurements, "kl", and those that `UpdateExplanation.by` describes. Those of values
    against their targets are not means: what is finite tells which rows they have.
    """
    result = {name: column for name, column in columns.items() if column.dtype.kind == "f"}
    if "ratio" in columns:
        ratios = np.clip(columns["ratio"], LIMITS.tiny, LIMITS.max)
        result["kl"] = ratios - 1 - np.log(ratios)
    steps, names = step_measures(columns), STEP_MEASURES | {"explained_variance": "value_error"}
    return result | {name: steps[of_step] for name, of_step in names.items() if of_step in steps}


def name_of(column: str, is_of_tokens: bool = False) -> str:
    """Return the name of a column on a page, of steps or of tokens."""
    if column.endswith(ROWS) and column not in NAMES:
        return f"rows of {name_of(column.removesuffix(ROWS), is_of_tokens)}"
    return "turn" if column in ("t", "time") and is_of_tokens else NAMES.get(column, column.replace("_", " "))
