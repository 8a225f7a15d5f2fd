"""`MetricsLogger`: reductions of logged values, compared with RLlib's logger."""

from __future__ import annotations

import time

import numpy as np
import pytest

from episode_runners import MetricsLogger
from episodes.errors import InvalidArgument

OPTIONS = [
    {},
    {"reduce": None},
    {"reduce": "mean"},
    {"reduce": "mean", "window": 2},
    {"reduce": "ema", "ema_coeff": 0.5},
    {"reduce": "min"},
    {"reduce": "max"},
    {"reduce": "max", "window": 2},
    {"reduce": "sum"},
    {"reduce": "sum", "window": 2},
    {"reduce": "lifetime_sum"},
    {"reduce": "item"},
    {"reduce": "item_series"},
    {"reduce": "percentiles", "window": 10},
    {"reduce": "percentiles", "window": 10, "percentiles": [50, 90]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_log_value_reduces_as_rllibs_logger(options):
    rllib = pytest.importorskip("ray.rllib.utils.metrics.metrics_logger")
    loggers = rllib.MetricsLogger(root=True), MetricsLogger()
    for value in (1.0, 3.0, 5.0):
        for logger in loggers:
            logger.log_value(("a", "b"), value, **options)
    expected, number = (logger.peek(("a", "b")) for logger in loggers)
    assert number == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "number", "after_reduce"),
    [
        ({}, 1.0598, 1.159202),
        ({"window": 2}, 4.0, 8.0),
        ({"window": 2, "clear_on_reduce": True}, 4.0, 11.0),
        ({"reduce": "sum"}, 9, 11),
        ({"reduce": "lifetime_sum"}, 9, 20),
        ({"reduce": "item_series"}, [1, 3, 5], [11]),
    ],
    ids=str,
)
def test_reduce_drops_the_values_of_some_reductions(options, number, after_reduce):
    logger = MetricsLogger()
    for value in (1, 3, 5):
        logger.log_value("seen", value, **options)
    assert logger.peek("seen") == logger.reduce()["seen"] == pytest.approx(number)
    logger.log_value("seen", 11)  # the options are those of the first call
    assert logger.peek("seen") == pytest.approx(after_reduce)


def test_log_time_and_throughput_measure_seconds():
    logger = MetricsLogger()
    with logger.log_time("seconds", reduce="sum"):
        time.sleep(0.01)
    assert logger.peek("seconds") >= 0.01
    logger.log_value("steps", 100, reduce="sum", with_throughput=True)
    assert 0 < logger.peek("steps", throughput=True) < 1e12


WRONG = [
    ("won", {"percentiles": True}, "cannot be combined with this reduction"),
    ("won", {"ema_coeff": 0.5, "reduce": "max"}, "cannot be combined with this reduction"),
    ("won", {"with_throughput": True}, "cannot be combined with this reduction"),
    ("won", {"reduce": "median"}, "give one of mean, ema, min"),
    ("games", {}, "a key has either a number or further keys"),
    (("games", "won", "twice"), {}, "a key has either a number or further keys"),
]


@pytest.mark.parametrize(("key", "options", "message"), WRONG, ids=str)
def test_wrong_key_or_option_raises(key, options, message):
    logger = MetricsLogger()
    logger.log_value(("games", "won"), 1)
    with pytest.raises(InvalidArgument, match=message):
        logger.log_value(key, 1, **options)
    assert logger.peek() == {"games": {"won": 1}}


def test_cleared_key_is_absent():
    logger = MetricsLogger()
    logger.log_value("seen", 1, reduce="sum")
    logger.reduce()
    assert logger.peek() == {}
    assert logger.peek("seen", default=0) == 0
    assert logger.peek("never") is None


def test_mean_has_a_window_of_one_hundred():
    logger = MetricsLogger()
    for value in range(1000):
        logger.log_value("mean", value, reduce="mean")
        logger.log_value("sum", value, reduce="sum")
    assert logger.peek() == {"mean": np.mean(range(900, 1000)), "sum": sum(range(1000))}


def test_nested_dicts_are_logged_by_path():
    logger = MetricsLogger()
    for _ in range(2):
        logger.log_dict({"won": 1, "by": {"left": 2}}, key="games", reduce="sum")
    assert logger.peek() == {"games": {"won": 2, "by": {"left": 4}}}
    assert logger.peek(("games", "by", "left")) == 4
