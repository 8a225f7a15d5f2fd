"""Preparation of the process before measurements: no warnings and logs of other libraries, and a warm memory
allocator.
"""

from __future__ import annotations

import logging
import warnings

import numpy as np


def hush() -> None:
    """Switch off the warnings and logs of all libraries."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def settle_allocator() -> None:
    """Bring the memory allocator into the state of a program that has run for a while.

    glibc requests large memory blocks from the operating system each time, with page faults, until a block of this
    size has been freed.
    """
    np.zeros(31 << 20, np.uint8).fill(1)
