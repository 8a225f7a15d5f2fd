"""Preparations of the process before a measurement: silent libraries and a settled memory allocator."""

from __future__ import annotations

import logging
import warnings

import numpy as np


def hush() -> None:
    """Switch off warnings and logs of other libraries."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def settle_allocator() -> None:
    """Bring malloc into the state of a program that has run for a while.

    glibc maps large blocks anew each time, page faults and all, until one that large has been freed.
    """
    np.zeros(31 << 20, np.uint8).fill(1)
