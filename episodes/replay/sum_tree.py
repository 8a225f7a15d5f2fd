"""`SumTree`: samples indices in proportion to their values, for prioritized replay.

Each node of the tree has 16 children. The root has up to 512, so a tree of a million leaves has four levels:

    root            sum of 16 | sum of 16 | ...            at most 512 nodes
    ...
    leaves          v0 v1 ... v15 | v16 ... v31 | ...

Each level takes a few numpy calls for all samples at once. A small matrix product sums the values before each child.
The child of a sample is found by counting: eight comparisons per machine word.
"""

from __future__ import annotations

import numpy as np

_WIDTH = 16
_SHIFT = 4
_ROOT_WIDTH = 512
_BEFORE = np.triu(np.ones((_WIDTH, _WIDTH)), 1)  # children @ _BEFORE: sum of the children before each
_ONES = np.ones(_WIDTH)
_EACH_BYTE = np.uint64(0x0101010101010101)
_TOP_BYTE = np.uint64(56)


class SumTree:
    """Sum tree over `size` non-negative values (leaves), from which indices are sampled in proportion to their values.

    Attributes:
        total: sum of all values.

    >>> tree = SumTree(5)
    >>> tree.set(np.array([1, 3]), np.array([1.0, 2.0]))
    >>> tree.total, tree.find(np.array([0.0, 0.9, 1.0, 2.9])).tolist()
    (3.0, [1, 1, 3, 3])
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._levels = [_zeros(size)]  # the leaves first; each level has the sums of 16 nodes of the level before
        while len(self._levels[-1]) > _ROOT_WIDTH:
            self._levels.append(_zeros(len(self._levels[-1]) // _WIDTH))
        self._begins = np.zeros(len(self._levels[-1]) + 1)  # cumulative sums of the root's children
        self.total = 0.0

    @property
    def nbytes(self) -> int:
        return sum(level.nbytes for level in self._levels)

    def set(self, leaves: np.ndarray, values: np.ndarray | float) -> None:
        """Set the values of the leaves with the given indices [n]. Of duplicate indices the last value counts."""
        self._levels[0][leaves] = values
        for level, above in zip(self._levels, self._levels[1:], strict=False):
            leaves = leaves >> _SHIFT
            above[leaves] = level.reshape(-1, _WIDTH).take(leaves, 0) @ _ONES
        self._sum_root()

    def fill(self, start: int, stop: int, value: float) -> None:
        """Set the values of the leaves with indices [start, stop) to `value`."""
        self._levels[0][start:stop] = value
        for level, above in zip(self._levels, self._levels[1:], strict=False):
            start, stop = start >> _SHIFT, ((stop - 1) >> _SHIFT) + 1
            above[start:stop] = level.reshape(-1, _WIDTH)[start:stop] @ _ONES
        self._sum_root()

    def _sum_root(self) -> None:
        """Update the total, and the cumulative sums of the topmost level."""
        self._levels[-1].cumsum(out=self._begins[1:])
        self.total = float(self._begins[-1])

    def get(self, leaves: np.ndarray) -> np.ndarray:
        """Return the values of the leaves with the given indices [n], float64 [n]."""
        return self._levels[0].take(leaves)

    def leaves(self) -> np.ndarray:
        """Return a copy of the values of all leaves, float64 [size]."""
        return self._levels[0][: self.size].copy()

    def get_state(self) -> list[np.ndarray]:
        """Return copies of all levels of the tree, leaf values first, for a checkpoint."""
        return [level.copy() for level in self._levels]

    def set_state(self, state: list[np.ndarray]) -> None:
        """Restore the tree from the levels that `get_state` of a tree of the same size returned.

        Raises:
            ValueError: the state is of a tree of another size.
        """
        if [level.shape for level in state] != [level.shape for level in self._levels]:
            raise ValueError("a sum tree of another size")
        self._levels = [level.copy() for level in state]
        self._sum_root()

    def find(self, amounts: np.ndarray) -> np.ndarray:
        """Return for each of `amounts` [n] the first leaf at which the cumulative sum of values exceeds the amount."""
        nodes = self._begins.searchsorted(amounts, "right") - 1
        amounts = amounts - self._begins.take(nodes)
        firsts = np.arange(0, len(amounts) * _WIDTH, _WIDTH)
        for level in reversed(self._levels[:-1]):
            before = level.reshape(-1, _WIDTH).take(nodes, 0) @ _BEFORE
            words = (before <= amounts[:, None]).view(np.uint64)  # two words of 8 bools per sample; the first is True
            children = (((words[:, 0] + words[:, 1]) * _EACH_BYTE) >> _TOP_BYTE).view(np.int64) - 1
            amounts -= before.take(firsts + children)
            nodes = (nodes << _SHIFT) + children
        return nodes

    def draw(self, n: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Sample `n` leaves in proportion to their values, and return their indices and values.

        The values must not all be 0.
        """
        values_of = self._levels[0].take
        leaves = self.find(generator.random(n) * self.total)
        values = values_of(leaves)
        # Sums are rounded, so a sample can fall just past the last leaf of a node, though very rarely.
        while len(missed := (values == 0).nonzero()[0]):
            leaves[missed] = self.find(generator.random(len(missed)) * self.total)
            values = values_of(leaves)
        return leaves, values


def _zeros(size: int) -> np.ndarray:
    """Return zeros for one level of the tree, whose size is rounded up to a multiple of `_WIDTH`."""
    return np.zeros(-(-size // _WIDTH) * _WIDTH)
