"""`independent_seed`: seeds for random generators that are unrelated to each other."""

from __future__ import annotations

import numpy as np

__all__ = ["independent_seed"]


def independent_seed(*numbers: int) -> int:
    """Return a 31-bit int seed derived from all `numbers`. Similar numbers give unrelated seeds.

    Gymnasium seeds the environments of a vector with `seed`, `seed + 1` and so on, so that vectors with seeds close to
    each other share episodes. Seeds of this function are far apart, also for successive numbers.

    >>> independent_seed(5, 0), independent_seed(5, 1)
    (8411699, 1898245334)
    """
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)
