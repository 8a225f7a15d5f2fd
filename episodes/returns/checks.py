"""Checks of shapes, flags and discount factors for `gae` and similar functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from episodes.errors import ShapeMismatch, WrongType
from episodes.tracks.validation import checked_number

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

FINAL_VALUES_OF_PACKED = (
    "final_values with offsets: packed values already hold each episode's last one; give final_values for [T, N] only"
)


def shape_of_values(rewards: tuple[int, ...], num_episodes: int | None) -> tuple[int, ...]:
    """Return the shape that `values` must have for rewards of the shape `rewards`.

    `num_episodes` is the number of concatenated episodes, or None for the layout [T, N].

    Raises:
        ShapeMismatch: `rewards` is the shape of a single number.
    """
    if not rewards:
        raise ShapeMismatch("rewards are a single number; give one per step, [S] with offsets or [T, N]")
    return (rewards[0] + (1 if num_episodes is None else num_episodes), *rewards[1:])


def check_columns(
    rewards: tuple[int, ...],
    values: tuple[int, ...],
    terminateds: tuple[int, ...],
    truncateds: tuple[int, ...],
    final_values: tuple[int, ...] | None,
) -> None:
    """Raise `ShapeMismatch` unless all arrays fit the layout [T, N] (T steps of N parallel environments)."""
    expected = shape_of_values(rewards, None)
    if values != expected:
        raise ShapeMismatch(
            f"values {list(values)} with rewards {list(rewards)}: they must be {list(expected)}, one more row for "
            "the observation after the last step; pass offsets when the arrays hold packed episodes"
        )
    check_like_rewards("terminateds", terminateds, rewards)
    check_like_rewards("truncateds", truncateds, rewards)
    if final_values is not None:
        check_like_rewards("final_values", final_values, rewards)


def check_packed(
    rewards: tuple[int, ...],
    values: tuple[int, ...],
    terminateds: tuple[int, ...],
    truncateds: tuple[int, ...],
    offsets: tuple[int, ...],
) -> None:
    """Raise `ShapeMismatch` unless all arrays fit the packed layout (episodes concatenated, with offsets)."""
    if len(offsets) != 1 or not offsets[0] or len(rewards) != 1:
        raise ShapeMismatch(f"rewards {list(rewards)} with offsets {list(offsets)}: packed they are [S] and [n + 1]")
    num_episodes = offsets[0] - 1
    expected = shape_of_values(rewards, num_episodes)
    if values != expected:
        raise ShapeMismatch(
            f"values {list(values)} of {num_episodes} packed episodes with {rewards[0]} steps: they must be "
            f"{list(expected)}, one per observation, T + 1 of each episode"
        )
    for name, shape in (("terminateds", terminateds), ("truncateds", truncateds)):
        if shape != (num_episodes,):
            raise ShapeMismatch(
                f"{name} {list(shape)} of {num_episodes} packed episodes: one flag per episode is needed"
            )


def check_offsets(first: int, last: int, shortest: int, num_steps: int) -> None:
    """Raise `ShapeMismatch` unless the episodes' offsets ascend from 0 to the number of steps."""
    if first != 0 or last != num_steps or shortest < 0:
        raise ShapeMismatch(
            f"offsets from {first} to {last} of {num_steps} packed steps: they must rise from 0 to {num_steps}"
        )


def check_like_rewards(name: str, shape: tuple[int, ...], rewards: tuple[int, ...]) -> None:
    """Raise `ShapeMismatch` unless the array called `name` has the shape of the rewards."""
    if tuple(shape) != tuple(rewards):
        raise ShapeMismatch(f"{name} {list(shape)} with rewards {list(rewards)}: they must have one entry per step")


def check_fraction(name: str, value: float) -> float:
    """Return a factor such as gamma as a Python float. Raise an error unless it is in [0, 1].

    Raises:
        InvalidArgument: the value is not in [0, 1].
    """
    return value if type(value) is float and 0 <= value <= 1 else checked_number(name, value, 0.0, 1.0)


def check_flags(terminateds: ArrayLike | None, truncateds: ArrayLike | None) -> None:
    """Raise `WrongType` if one of the two arrays of flags is missing (None)."""
    for name, flags in (("terminateds", terminateds), ("truncateds", truncateds)):
        if flags is None:
            raise WrongType(f"{name} is None: give a flag per step, [T, N], or with offsets one per episode, [n]")
