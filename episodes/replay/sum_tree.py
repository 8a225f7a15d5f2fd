"""`SumTree`: numbers that are drawn in proportion to their size, and changed, many at a time.

A wide tree: each node has 16 children, and the root as many as are left when they are at most 512, so a million
leaves are four levels. What is done at a level is a few numpy calls for all draws at once: one small matrix product
adds up what lies before each child, and the child that a draw falls into is found by counting, eight comparisons in
one machine word.
"""

from __future__ import annotations

import numpy as np

_WIDTH = 16
_SHIFT = 4
_ROOT_WIDTH = 512
_BEFORE = np.triu(np.ones((_WIDTH, _WIDTH)), 1)  # children @ _BEFORE: the sum of those before each
_ONES = np.ones(_WIDTH)
_EACH_BYTE = np.uint64(0x0101010101010101)
_TOP_BYTE = np.uint64(56)


class SumTree:
    """`size` numbers >= 0, all 0 at first.

    >>> tree = SumTree(5)
    >>> tree.set(np.array([1, 3]), np.array([1.0, 2.0]))
    >>> tree.total, tree.find(np.array([0.0, 0.9, 1.0, 2.9])).tolist()
    (3.0, [1, 1, 3, 3])
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._levels = [_zeros(size)]  # the leaves first; each level holds the sums of 16 of the level before
        while len(self._levels[-1]) > _ROOT_WIDTH:
            self._levels.append(_zeros(len(self._levels[-1]) // _WIDTH))
        self._begins = np.zeros(len(self._levels[-1]) + 1)  # of the root's children, laid end to end; then the total

    @property
    def total(self) -> float:
        """The sum of all."""
        return float(self._begins[-1])

    @property
    def nbytes(self) -> int:
        return sum(level.nbytes for level in self._levels)

    def set(self, leaves: np.ndarray, values: np.ndarray | float) -> None:
        """Change the leaves [n]; of leaves that occur twice, the last value counts."""
        self._levels[0][leaves] = values
        for level, above in zip(self._levels, self._levels[1:], strict=False):
            leaves = leaves >> _SHIFT
            above[leaves] = level.reshape(-1, _WIDTH).take(leaves, 0) @ _ONES
        self._levels[-1].cumsum(out=self._begins[1:])

    def fill(self, start: int, stop: int, value: float) -> None:
        """Set the leaves [start, stop) to one value."""
        self._levels[0][start:stop] = value
        for level, above in zip(self._levels, self._levels[1:], strict=False):
            start, stop = start >> _SHIFT, ((stop - 1) >> _SHIFT) + 1
            above[start:stop] = level.reshape(-1, _WIDTH)[start:stop] @ _ONES
        self._levels[-1].cumsum(out=self._begins[1:])

    def get(self, leaves: np.ndarray) -> np.ndarray:
        """The values [n] of the leaves."""
        return self._levels[0].take(leaves)

    def leaves(self) -> np.ndarray:
        """A copy [size] of all values."""
        return self._levels[0][: self.size].copy()

    def get_state(self) -> list[np.ndarray]:
        """Copies of all levels, the leaves first."""
        return [level.copy() for level in self._levels]

    def set_state(self, state: list[np.ndarray]) -> None:
        """Be as a tree of the same size was."""
        self._levels = [level.copy() for level in state]
        self._levels[-1].cumsum(out=self._begins[1:])

    def find(self, amounts: np.ndarray) -> np.ndarray:
        """The leaf [n] in which each amount [n] falls when all leaves are laid end to end, 0 <= amount < total."""
        nodes = self._begins.searchsorted(amounts, "right") - 1
        amounts = amounts - self._begins.take(nodes)
        firsts = np.arange(0, len(amounts) * _WIDTH, _WIDTH)
        for level in reversed(self._levels[:-1]):
            before = level.reshape(-1, _WIDTH).take(nodes, 0) @ _BEFORE
            children = _count(before <= amounts[:, None]) - 1
            amounts -= before.take(firsts + children)
            nodes = (nodes << _SHIFT) + children
        return nodes

    def draw(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """`n` leaves, each drawn in proportion to its value; the total must not be 0."""
        leaves = self.find(generator.random(n) * self.total)
        # Sums are rounded, so that once in a very long while a draw falls just past the last leaf of a node.
        while len(missed := (self.get(leaves) == 0).nonzero()[0]):
            leaves[missed] = self.find(generator.random(len(missed)) * self.total)
        return leaves


def _zeros(size: int) -> np.ndarray:
    return np.zeros(-(-size // _WIDTH) * _WIDTH)


def _count(flags: np.ndarray) -> np.ndarray:
    """How many of each row's 16 flags are True, [n]; at least one is, the first."""
    words = flags.view(np.uint64)
    return (((words[:, 0] + words[:, 1]) * _EACH_BYTE) >> _TOP_BYTE).view(np.int64)
