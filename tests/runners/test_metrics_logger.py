"""What callbacks log: how many values become one number, and when they begin anew."""

from __future__ import annotations

import numpy as np
import pytest

from episode_runners import MetricsLogger
from episodes.errors import InvalidArgument


@pytest.mark.parametrize(
    ("options", "once", "then"),
    [
        ({}, 3.0, 5.0),
        ({"reduce": None}, 3.0, 5.0),
        ({"window": 2}, 4.0, 8.0),
        ({"window": 2, "clear_on_reduce": True}, 4.0, 11.0),
        ({"reduce": "ema", "ema_coeff": 0.5}, 3.5, 7.25),
        ({"reduce": "min"}, 1, 11),
        ({"reduce": "max"}, 5, 11),
        ({"reduce": "max", "window": 2}, 5, 11),
        ({"reduce": "sum"}, 9, 11),
        ({"reduce": "lifetime_sum"}, 9, 20),
        ({"reduce": "item"}, 5, 11),
        ({"reduce": "item_series"}, [1, 3, 5], [11]),
    ],
    ids=str,
)
def test_values_become_one_number_and_some_begin_anew_when_they_are_reduced(options, once, then):
    logger = MetricsLogger()
    for value in (1, 3, 5):
        logger.log_value("seen", value, **options)
    assert logger.peek("seen") == logger.reduce()["seen"] == once
    logger.log_value("seen", 11)  # the first call has said how
    assert logger.peek("seen") == then


def test_a_number_that_began_anew_is_not_there():
    logger = MetricsLogger()
    logger.log_value("seen", 1, reduce="sum")
    logger.reduce()
    assert logger.peek() == {}
    assert logger.peek("seen", default=0) == 0
    assert logger.peek("never") is None


def test_a_mean_is_of_the_last_hundred_and_all_else_keeps_one_number():
    logger = MetricsLogger()
    for value in range(1000):
        logger.log_value("mean", value)
        logger.log_value("sum", value, reduce="sum")
    assert logger.peek() == {"mean": np.mean(range(900, 1000)), "sum": sum(range(1000))}


def test_nested_dicts_are_logged_by_path():
    logger = MetricsLogger()
    for _ in range(2):
        logger.log_dict({"won": 1, "by": {"left": 2}}, key="games", reduce="sum")
    assert logger.peek() == {"games": {"won": 2, "by": {"left": 4}}}
    assert logger.peek(("games", "by", "left")) == 4


@pytest.mark.parametrize("other", ["games", ("games", "won", "twice")])
def test_a_key_cannot_be_a_number_and_a_dict(other):
    logger = MetricsLogger()
    logger.log_value(("games", "won"), 1)
    with pytest.raises(InvalidArgument, match="a key is a number or a dict"):
        logger.log_value(other, 1)
    assert logger.peek() == {"games": {"won": 1}}


def test_an_unknown_way_to_reduce_names_those_there_are():
    with pytest.raises(InvalidArgument, match="give one of mean, ema, min"):
        MetricsLogger().log_value("seen", 1, reduce="median")
