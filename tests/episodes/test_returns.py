"""Returns and advantages, compared with a scalar reference for every layout and ending."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes.errors import InvalidArgument, ShapeMismatch, WrongType
from episodes.returns import discounted_returns, gae, n_step_returns, vtrace
from episodes.returns.formulas import WIDE
from tests.reference_returns import (
    assert_contained,
    columns,
    fractions,
    packed,
    plain_discounted_returns,
    plain_episodes,
    plain_gae,
    plain_n_step_returns,
    plain_vtrace,
    poisons,
)

packs_of_episodes = st.lists(plain_episodes(min_length=0), min_size=1, max_size=4)
EXACT = {"rtol": 0, "atol": 1e-6}


Clips = tuple[float, float]


shapes = st.one_of(
    st.tuples(st.integers(1, 40), st.integers(1, 5)),
    st.tuples(st.integers(1, 12), st.just(WIDE)),  # these columns are swept row by row
)


def results(arguments: Any, ratios: Any, gamma: float, lambda_: float, n_step: int, clips: Clips = (1.0, 1.0)) -> Any:
    """Return the results of each function, which are tuples of arrays."""
    no_values = {name: value for name, value in arguments.items() if name not in ("values", "final_values")}
    options = {"lambda_": lambda_, "clip_rho": clips[0], "clip_pg_rho": clips[1]}
    return {
        "gae": gae(**arguments, gamma=gamma, lambda_=lambda_),
        "n_step": n_step_returns(**arguments, gamma=gamma, n_step=n_step),
        "vtrace": vtrace(**arguments, ratios=ratios, gamma=gamma, **options),
        "discounted": (discounted_returns(**arguments, gamma=gamma),),
        "discounted without values": (discounted_returns(**no_values, gamma=gamma),),
    }


def reference(gamma: float, lambda_: float, n_step: int, clips: Clips = (1.0, 1.0)) -> Any:
    """Return the reference's functions of an episode, each with a tuple of results."""
    return {
        "gae": lambda e: plain_gae(e, gamma, lambda_),
        "n_step": lambda e: plain_n_step_returns(e, gamma, n_step),
        "vtrace": lambda e: plain_vtrace(e, gamma, lambda_, *clips),
        "discounted": lambda e: (plain_discounted_returns(e, gamma, True),),
        "discounted without values": lambda e: (plain_discounted_returns(e, gamma, False),),
    }


def pairs(calculated: Any, plain: Any, arrange: Any) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield (name, result, expected) of all results. `arrange` concatenates the reference's results of the episodes."""
    for name, arrays in calculated.items():
        for i, result in enumerate(arrays):
            yield name, result, arrange(lambda episode, name=name, i=i: plain[name](episode)[i])


def concatenated(episodes: Any) -> Any:
    return lambda function: np.array([x for episode in episodes for x in function(episode)])


@given(
    packs_of_episodes, fractions, fractions, st.integers(1, 320), st.tuples(st.floats(0.1, 5.0), st.floats(0.1, 5.0))
)
def test_packed_results_agree_with_the_scalar_reference(episodes, gamma, lambda_, n_step, clips):
    ratios = np.array([x for e in episodes for x in e.ratios])
    calculated = results(packed(episodes), ratios, gamma, lambda_, n_step, clips)
    for name, result, expected in pairs(calculated, reference(gamma, lambda_, n_step, clips), concatenated(episodes)):
        np.testing.assert_allclose(result, expected, **EXACT, err_msg=name)


@given(st.lists(plain_episodes(max_length=40), min_size=2, max_size=4), poisons, st.floats(0.5, 1), st.integers(1, 40))
def test_packed_nan_stays_in_its_episode(episodes, poison, gamma, n):
    poison.packed(episodes)
    ratios = np.array([x for e in episodes for x in e.ratios])
    calculated = results(packed(episodes), ratios, gamma, 0.9, n)
    for name, result, expected in pairs(calculated, reference(gamma, 0.9, n), concatenated(episodes)):
        assert_contained(result, expected, name)


@given(shapes, st.integers(0, 2**32 - 1), poisons, st.integers(1, 9))
def test_column_nan_stays_in_its_episode(shape, seed, poison, n):
    made = columns(np.random.default_rng(seed), *shape, 0.1)
    poison.columns(made)
    calculated = results(made.arguments(), made.ratios, 0.9, 0.8, n)
    for name, result, expected in pairs(calculated, reference(0.9, 0.8, n), partial(lay_out, made)):
        assert_contained(result, expected, name)


def test_overflow_stays_in_its_episode() -> None:
    rewards = np.array([1.0, 1.0, 3e38, 3e38], np.float32)
    returns = discounted_returns(rewards, [True, True], [False, False], gamma=1.0, offsets=[0, 2, 4])
    np.testing.assert_array_equal(returns, np.array([2.0, 1.0, np.inf, 3e38], np.float32))


def test_n_step_ignores_values_inside_window() -> None:
    rewards = np.array([0.001, 0.001, 0.001], np.float32)
    values = np.array([1e5, -1e5, 1e5, 0.0], np.float32)
    ending = {"terminateds": [True], "truncateds": [False], "offsets": [0, 3]}
    targets, _ = n_step_returns(rewards, values, **ending, gamma=1.0, n_step=3)
    np.testing.assert_allclose(targets, [0.003, 0.002, 0.001], rtol=1e-6)
    targets, _ = n_step_returns(rewards, np.full(4, np.nan), **ending, gamma=1.0, n_step=3)
    np.testing.assert_allclose(targets, [0.003, 0.002, 0.001], rtol=1e-6)


def test_returns_ignore_unused_values() -> None:
    ending = {"terminateds": [True], "truncateds": [False], "offsets": [0, 2], "gamma": 0.5}
    values = [np.nan, np.nan, np.inf]
    np.testing.assert_array_equal(discounted_returns([1.0, 1.0], values=values, **ending), [1.5, 1.0])
    advantages, targets = gae([1.0, 1.0], [0.0, 0.0, np.nan], **ending, lambda_=1.0)
    np.testing.assert_array_equal(advantages, [1.5, 1.0])
    np.testing.assert_array_equal(targets, [1.5, 1.0])


def lay_out(found_columns, per_piece):
    """Return the reference's results for each part of an episode, at its place in [T, N]."""
    laid_out = np.full(found_columns.rewards.shape, np.nan)
    for start, column, piece in found_columns.pieces:
        laid_out[start : start + len(piece.rewards), column] = per_piece(piece)
    return laid_out


@given(shapes, st.sampled_from([0.0, 0.05, 0.5]), st.integers(0, 2**32 - 1), fractions, fractions, st.integers(1, 50))
def test_column_results_agree_with_the_scalar_reference(shape, ending_rate, seed, gamma, lambda_, n_step):
    made = columns(np.random.default_rng(seed), *shape, ending_rate)
    calculated = results(made.arguments(), made.ratios, gamma, lambda_, n_step)
    for name, result, expected in pairs(calculated, reference(gamma, lambda_, n_step), partial(lay_out, made)):
        np.testing.assert_allclose(result, expected, **EXACT, err_msg=name)


@pytest.mark.parametrize("layout", ["packed", "columns"])
@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        (True, False, [3.439, 2.71, 1.9, 1.0]),
        (False, True, [10.0] * 4),
        (False, False, [10.0] * 4),
        (True, True, [3.439, 2.71, 1.9, 1.0]),
    ],
)
def test_gae_of_four_steps(layout, terminated, truncated, expected):
    rewards, values = np.ones(4), np.full(5, 10.0)
    if layout == "packed":
        ending = {"terminateds": [terminated], "truncateds": [truncated], "offsets": [0, 4]}
    else:
        last = np.arange(4)[:, None] == 3
        ending = {"terminateds": last & terminated, "truncateds": last & truncated}
        rewards, values = rewards[:, None], values[:, None]
    targets = gae(rewards, values, **ending, gamma=0.9, lambda_=1.0)[1]
    np.testing.assert_allclose(targets.ravel(), expected)
    np.testing.assert_allclose(discounted_returns(rewards, values=values, **ending, gamma=0.9).ravel(), expected)
    np.testing.assert_allclose(n_step_returns(rewards, values, **ending, gamma=0.9, n_step=9)[0].ravel(), expected)


@pytest.mark.parametrize("number", [float, np.float64])
def test_returns_keep_float32_and_convert_integers(number):
    ending = {"terminateds": [True], "truncateds": [False], "offsets": [0, 2], "gamma": number(0.9)}
    rewards, values = np.ones(2, np.float32), np.ones(3, np.float32)
    results = [
        *gae(rewards, values, **ending, lambda_=number(0.9)),
        n_step_returns(rewards, values, **ending, n_step=2)[0],
        discounted_returns(rewards, **ending),
        *vtrace(rewards, values, ratios=rewards, **ending, clip_rho=number(1.0)),
    ]
    assert {result.dtype for result in results} == {np.dtype(np.float32)}
    np.testing.assert_allclose(discounted_returns([1, 1], **ending), [1.9, 1.0])


def test_returns_do_not_change_arguments():
    made = columns(np.random.default_rng(1), 6, 2, 0.3)
    before = {name: array.copy() for name, array in made.arguments().items()}
    results(made.arguments(), made.ratios, 0.9, 0.9, 3)
    for name, array in made.arguments().items():
        np.testing.assert_array_equal(array, before[name])


def test_returns_of_no_episodes_are_empty():
    nothing = {"rewards": [], "values": [], "terminateds": [], "truncateds": [], "offsets": [0]}
    calculated = results(nothing, [], 0.9, 0.9, 3)
    assert {array.shape for arrays in calculated.values() for array in arrays} == {(0,)}


PACKED = {"rewards": np.ones(3), "values": np.ones(5), "terminateds": [False] * 2, "truncateds": [False] * 2}
COLUMNS = columns(np.random.default_rng(2), 4, 2, 0.1).arguments()


@pytest.mark.parametrize(
    ("call", "wrong", "error", "message"),
    [
        (gae, {"values": np.ones(4)}, ShapeMismatch, r"values \[4\] of 2 packed episodes with 3 steps"),
        (gae, {"terminateds": [False]}, ShapeMismatch, r"terminateds \[1\] of 2 packed episodes"),
        (gae, {"truncateds": [False] * 3}, ShapeMismatch, r"truncateds \[3\] of 2 packed episodes"),
        (gae, {"offsets": [0, 1, 4]}, ShapeMismatch, "offsets from 0 to 4 of 3 packed steps"),
        (gae, {"offsets": [0, 4, 3]}, ShapeMismatch, "must rise"),
        (gae, {"offsets": None}, ShapeMismatch, r"values \[5\] with rewards \[3\]"),
        (gae, {"rewards": np.ones((3, 1))}, ShapeMismatch, r"rewards \[3, 1\] with offsets \[3\]"),
        (gae, {"rewards": 1.0, "offsets": None}, ShapeMismatch, "a single number"),
        (gae, {"terminateds": None, "truncateds": None}, WrongType, "terminateds is None"),
        (discounted_returns, {"truncateds": None}, WrongType, "truncateds is None"),
        (gae, {"gamma": 1.1}, InvalidArgument, r"gamma=1\.1"),
        (gae, {"lambda_": -0.1}, InvalidArgument, r"lambda_=-0\.1"),
        (n_step_returns, {"n_step": 0}, InvalidArgument, "n_step=0"),
        (n_step_returns, {"n_step": 1.5}, InvalidArgument, "n_step=1.5"),
        (gae, {"final_values": np.ones(3)}, InvalidArgument, "final_values with offsets"),
        (gae, COLUMNS | {"offsets": None, "final_values": np.ones(2)}, ShapeMismatch, "final_values"),
        (
            vtrace,
            COLUMNS | {"offsets": None, "ratios": np.ones((3, 2))},
            ShapeMismatch,
            r"ratios \[3, 2\] with rewards",
        ),
    ],
)
def test_returns_with_wrong_arguments_raise(call, wrong, error, message):
    arguments = PACKED | {"offsets": [0, 2, 3], "gamma": 0.9} | ({"lambda_": 0.9} if call in (gae, vtrace) else {})
    with pytest.raises(error, match=message):
        call(**arguments | wrong)
