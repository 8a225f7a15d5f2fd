"""Tree of the token sequences of one session or conversation, in which common beginnings are stored once."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

_MORE = 1.25  # a buffer that is full grows by this factor


class Node:
    """Run of tokens in a `TokenTree`, which follows the first `start` tokens of a sequence.

    Attributes:
        parent: the node that the run continues from position `start` on, or None for the root.
        start: position of the first token in its sequence.
        stop: position after the last token.
        children: the runs that leave this one, by (position, first token). Each differs from this run there.
        sources: for each part of the run, its end, and the number that its `TokenTree.insert` was given.
    """

    __slots__ = ("_buffer", "children", "parent", "sources", "start", "stop")

    def __init__(self, parent: Node | None, start: int, dtype: np.dtype) -> None:
        self.parent, self.start, self.stop = parent, start, start
        self._buffer = np.empty(0, dtype)
        self.children: dict[tuple[int, int], Node] = {}
        self.sources: list[tuple[int, int]] = []

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Return the tokens at positions `start` to `stop` of this run, as a view."""
        return self._buffer[start - self.start : stop - self.start]

    def append(self, tokens: np.ndarray, source: int) -> None:
        """Add tokens at the end of the run."""
        num, total = self.stop - self.start, self.stop - self.start + len(tokens)
        if total > len(self._buffer):
            buffer = np.empty(max(total, int(_MORE * num)), self._buffer.dtype)
            buffer[:num] = self._buffer[:num]
            self._buffer = buffer
        self._buffer[num:total] = tokens
        self.stop += len(tokens)
        self.sources.append((self.stop, source))

    def next_source(self, length: int) -> int | None:
        """Return the source of the tokens that follow the first `length` tokens here, the earliest if they differ, or
        None if there are none."""
        if length < self.stop:
            return self.sources[bisect_right(self.sources, length, key=lambda part: part[0])][1]
        return min((child.sources[0][1] for (at, _), child in self.children.items() if at == length), default=None)


class Position:
    """End of a token sequence in a `TokenTree`: the first `length` tokens on the path from the root to `node`."""

    __slots__ = ("length", "node")

    def __init__(self, node: Node, length: int) -> None:
        self.node, self.length = node, length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and self.node is other.node and self.length == other.length

    def __hash__(self) -> int:
        return hash((id(self.node), self.length))

    def tokens(self, start: int = 0) -> np.ndarray:
        """Return a copy of the sequence's tokens from position `start` on, [length - start]."""
        node, stop, parts = self.node, self.length, []
        while True:
            parts.append(node.tokens(max(start, node.start), stop))
            if node.start <= start or node.parent is None:
                return np.concatenate(parts[::-1])
            node, stop = node.parent, node.start


class TokenTree:
    """Tree of token sequences. Sequences with a common beginning share its tokens.

    The first token of each run differs from the tokens of the other runs at its position. So one walk from the root
    finds the longest common beginning of a new sequence with all sequences of the tree.

    Args:
        dtype: integer dtype of the tokens.

    >>> tree = TokenTree(np.dtype("i4"))
    >>> end = tree.insert(tree.root, np.array([1, 2, 3, 4], "i4"))
    >>> other = tree.insert(tree.root, np.array([1, 2, 7], "i4"))
    >>> other.tokens().tolist(), tree.find(np.array([1, 2, 3, 9], "i4")).length, tree.num_tokens
    ([1, 2, 7], 3, 5)
    """

    __slots__ = ("_dtype", "num_tokens", "root")

    def __init__(self, dtype: np.dtype) -> None:
        self.root = Position(Node(None, 0, dtype), 0)
        self._dtype = dtype
        self.num_tokens = 0  # tokens that are stored

    def find(self, tokens: np.ndarray, after: Position | None = None) -> Position:
        """Return the end of the longest beginning of `tokens` that the tree has after the position `after`, by default
        the root."""
        node, first = (after or self.root).node, (after or self.root).length
        at, length = 0, first
        while True:
            at += common_prefix(node.tokens(length, node.stop), tokens[at:])
            length = first + at
            child = node.children.get((length, tokens.item(at))) if at < len(tokens) else None
            if child is None:
                return Position(node, length)
            node = child

    def insert(self, after: Position, tokens: np.ndarray, source: int = 0) -> Position:
        """Add the sequence that continues the position `after` with `tokens`, and return its end.

        Args:
            after: position in this tree.
            tokens: token ids [L], which are copied.
            source: number that `Node.sources` stores for new tokens.
        """
        end = self.find(tokens, after)
        added = tokens[end.length - after.length :]
        if not len(added):
            return end
        node, length = end.node, end.length
        if length < node.stop or node is self.root.node:
            node = Node(node, length, self._dtype)
            end.node.children[length, added.item(0)] = node
        node.append(added, source)
        self.num_tokens += len(added)
        return Position(node, node.stop)


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Return the number of items at the start of two arrays that are equal.

    >>> common_prefix(np.array([1, 2, 3]), np.array([1, 2, 4, 5]))
    2
    """
    num = min(len(a), len(b))
    differs = a[:num] != b[:num]
    first = int(differs.argmax()) if num else 0
    return first if num and differs[first] else num
