"""Sampling of replay steps that satisfy conditions: a recent policy, and known steps before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from episodes.batch.sampling_checks import unknown_steps
from episodes.errors import EpisodeStateError
from episodes.replay.context_steps import ADVICE, are_complete
from episodes.replay.ring.linked_ring import LinkedRing

_ROUNDS = 4  # if most steps satisfy the conditions, few are sampled again
_NONE = np.zeros(0, np.int64)

Drawn = tuple[np.ndarray, np.ndarray]


class Condition(NamedTuple):
    """Condition that sampled steps satisfy.

    Attributes:
        holds: returns for steps at ring positions [n] whether the condition holds, bool [n].
        message: returns the words of the error if it holds for no step.
    """

    holds: Callable[[np.ndarray], np.ndarray]
    message: Callable[[], str]


def conditions(ring: LinkedRing, reach: int | None, max_age: int | None) -> list[Condition]:
    """Return the conditions of a sampled step.

    Args:
        ring: ring of the steps.
        reach: number of steps before a step that must be known (see `are_complete`). None for all.
        max_age: the policy of a step is at most `max_age` versions older than the newest. None for any policy. Steps of
            unknown version count as old.
    """
    result = []
    if max_age is not None:
        versions = ring.versions
        oldest = max(versions.newest - max_age, 0)
        result.append(
            Condition(
                lambda slots: versions.at(slots) >= oldest,
                lambda: (
                    f"no stored step is of version {oldest} or newer, as max_age={max_age} asks of the newest, "
                    f"{versions.newest}; add newer ones, or allow older ones"
                ),
            )
        )
    if reach != 0:
        result.append(
            Condition(
                lambda slots: are_complete(ring, slots, reach),
                lambda: f"no stored step can be sampled: none has {unknown_steps(reach, ADVICE)}",
            )
        )
    return result


def draw_steps(
    draw: Callable[[int], Drawn],
    candidates: Callable[[], Drawn],
    n: int,
    required: Sequence[Condition],
    rng: np.random.Generator,
) -> Drawn:
    """Sample `n` steps that satisfy all conditions. Return their ring positions [n] and shares [n].

    Other steps are replaced by new samples, so the probabilities of the rest keep their ratios. If some are left after
    several rounds, they are replaced by samples of all steps that satisfy the conditions.

    Args:
        draw: samples steps, and returns their positions and their shares, to which their probability is proportional.
        candidates: returns the positions and shares of all steps that `draw` may return.
        n: number of steps.
        required: conditions.
        rng: random generator, which `draw` uses too.

    Raises:
        EpisodeStateError: no step satisfies the conditions. The generator stays as it was.
    """
    before = rng.bit_generator.state
    slots, shares = draw(n)
    wrong = _violating(slots, required)
    for _ in range(_ROUNDS):
        if not len(wrong):
            return slots, shares
        slots[wrong], shares[wrong] = draw(len(wrong))
        wrong = wrong[_violating(slots[wrong], required)]
    if not len(wrong):
        return slots, shares
    stored, stored_shares = candidates()
    for condition in required:
        holds = condition.holds(stored)
        stored, stored_shares = stored[holds], stored_shares[holds]
        if not len(stored):
            rng.bit_generator.state = before
            raise EpisodeStateError(condition.message())
    bounds = np.cumsum(stored_shares, dtype=np.float64)
    picked = np.minimum(bounds.searchsorted(rng.random(len(wrong)) * bounds[-1], "right"), len(stored) - 1)
    slots[wrong], shares[wrong] = stored[picked], stored_shares[picked]
    return slots, shares


def _violating(slots: np.ndarray, required: Sequence[Condition]) -> np.ndarray:
    """Return the indices of the steps at `slots` [n] that do not satisfy all conditions."""
    if not required:
        return _NONE
    holds = required[0].holds(slots)
    for condition in required[1:]:
        holds &= condition.holds(slots)
    if np.count_nonzero(holds) == len(holds):
        return _NONE
    return (~holds).nonzero()[0]
