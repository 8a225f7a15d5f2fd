"""Calls of a model as a tree, and the lineages of calls that it consists of."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from episodes.tokens.token_tree import Node, Position

SAME_PROMPT = "same prompt"
SAME_HISTORY = "same history"
NEW_PROMPT = "new prompt"
ENCODED_AGAIN = "encoded again"
SHORTENED = "shortened sample"
REWRITTEN = "rewritten history"
_END = 8  # a difference in as many last tokens of a sample is one of encoding


class Call:
    """One call of a model in a session: a prompt and a sample.

    Attributes:
        number: number of the call in its session, from 0, in the order of arrival.
        prompt_end: end of the prompt in the session's token tree.
        end: end of prompt and sample in the tree.
        outputs: arrays [K, ...] by name, with a value per sampled token.
        version: version of the policy, or None.
        infos: info of the observation after the turn.
        divergence: why the prompt differs from all earlier calls, or None.
        reward: sum of the rewards of the call.
        is_delivered: whether the agent is known to have received the whole sample.
        is_cancelled: whether the agent left before the end of the sample.
        parent: the call that this one continues, or None. `Lineages` sets it.
    """

    __slots__ = (
        "divergence",
        "end",
        "infos",
        "is_cancelled",
        "is_delivered",
        "number",
        "outputs",
        "parent",
        "prompt_end",
        "reward",
        "version",
    )

    def __init__(
        self,
        number: int,
        prompt_end: Position,
        end: Position,
        outputs: dict[str, np.ndarray],
        version: int | None,
        infos: dict[str, Any],
        divergence: str | None,
        reward: float,
    ) -> None:
        self.number, self.prompt_end, self.end, self.outputs, self.version = number, prompt_end, end, outputs, version
        self.infos, self.divergence, self.reward = infos, divergence, reward
        self.is_delivered = self.is_cancelled = False
        self.parent: Call | None = None

    @property
    def prompt_ids(self) -> np.ndarray:
        """Token ids of the whole prompt, [L], as a copy."""
        return self.prompt_end.tokens()

    @property
    def ids(self) -> np.ndarray:
        """Sampled token ids, [K], as a copy."""
        return self.end.tokens(self.prompt_end.length)

    @property
    def num_sampled(self) -> int:
        """Number K of sampled tokens."""
        return self.end.length - self.prompt_end.length

    def __repr__(self) -> str:
        state = "cancelled" if self.is_cancelled else "delivered" if self.is_delivered else "undelivered"
        return f"Call({self.number}: {self.prompt_end.length} prompt tokens, {self.num_sampled} sampled, {state})"


class Lineages:
    """Chains of the calls of a session. Each call of a chain continues the tokens of the call before it.

    The parent of a call is the call whose prompt and sample together are the longest beginning of its prompt. If
    several calls have these tokens, it is a delivered one, then one that arrived before, then the newest. A sample that
    the agent did not receive, and with which a delivered sample of the same prompt begins, is continued by no call: it
    is the beginning of the delivered one that the prompt contains.

    Attributes:
        delivered: the calls whose samples the agent has: delivered ones, and those that a prompt contains.
        chains: these calls, each in one chain, sorted by the number of a chain's newest call. A call with several
            continuations is followed by the one with the longest chain.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        children: dict[Call, list[Call]] = defaultdict(list)
        find_parents(calls)
        for call in calls:
            if call.parent is not None:
                children[call.parent].append(call)
        self.delivered = {call for call in calls if call.is_delivered or call in children}
        depths: dict[Call, int] = {}
        # A child is not shorter than its parent. Of calls with equal tokens, the parent has the lower number.
        for call in sorted(self.delivered, key=lambda call: (call.end.length, call.number), reverse=True):
            depths[call] = 1 + max((depths[child] for child in children[call] if child in depths), default=0)
        self.chains: list[list[Call]] = []
        followers: dict[Call, Call] = {}
        for call in depths:
            kept = [child for child in children[call] if child in depths]
            if kept:
                followers[call] = max(kept, key=lambda child: (depths[child], child.number))
        has_predecessor = set(followers.values())
        for call in depths:
            if call not in has_predecessor:
                chain = [call]
                while chain[-1] in followers:
                    chain.append(followers[chain[-1]])
                self.chains.append(chain)
        self.chains.sort(key=lambda chain: max(call.number for call in chain))

    def causes(self) -> dict[str, int]:
        """Return how many chains began for which reason, without the chain of the earliest call."""
        counts: Counter[str] = Counter()
        earliest = min(self.delivered, key=lambda call: call.number, default=None)
        firsts = {chain[0] for chain in self.chains if earliest not in chain}
        prompts: set[Position] = set()
        for call in self._calls:
            if call in firsts:
                is_repeated = call.prompt_end in prompts
                counts[SAME_PROMPT if is_repeated else SAME_HISTORY if call.parent else call.divergence or ""] += 1
            prompts.add(call.prompt_end)
        return dict(counts)


def find_parents(calls: Sequence[Call]) -> None:
    """Set the parent of each call."""
    at_end: dict[Position, list[Call]] = defaultdict(list)
    for call in calls:
        at_end[call.end].append(call)
    ends = _Ends(at_end)
    covered = {
        other
        for call in calls
        if call.is_delivered
        for position in ends.before(call.end, call.prompt_end.length)
        for other in at_end[position]
        if not other.is_delivered and other.prompt_end == call.prompt_end
    }
    for call in calls:
        call.parent = None
        for position in ends.before(call.prompt_end):
            candidates = [
                other
                for other in at_end[position]
                if other not in covered
                # no call continues itself
                and (position.length < call.end.length or other.number < call.number)
            ]
            if candidates:
                call.parent = max(
                    candidates, key=lambda other: (other.is_delivered, other.number < call.number, other.number)
                )
                break


class _Ends:
    """Positions of a token tree, and which of them are on the path to another position."""

    def __init__(self, positions: Iterable[Position]) -> None:
        self._lengths: dict[Node, list[int]] = defaultdict(list)
        for position in sorted(positions, key=lambda position: position.length):
            self._lengths[position.node].append(position.length)
        self._above: dict[Node, Position | None] = {}

    def before(self, position: Position | None, least: int = 0) -> Iterator[Position]:
        """Yield the positions with at least `least` tokens on the path to `position`, which is included, from the
        longest to the shortest."""
        while position is not None and position.length >= least:
            lengths = self._lengths.get(position.node, [])
            for length in reversed(lengths[bisect_left(lengths, least) : bisect_right(lengths, position.length)]):
                yield Position(position.node, length)
            position = self._last_above(position.node)

    def _last_above(self, node: Node) -> Position | None:
        """Return the last position on the path to the first token of a node, or None."""
        nodes = []
        while node not in self._above:
            nodes.append(node)
            parent = node.parent
            lengths = self._lengths.get(parent, []) if parent is not None else []
            num = bisect_right(lengths, node.start)
            if parent is None or num:
                self._above[node] = Position(parent, lengths[num - 1]) if parent is not None else None
            else:
                node = parent
        last = self._above[node]
        self._above.update(dict.fromkeys(nodes, last))
        return last


def divergence(calls: Sequence[Call], known: Position, prompt: np.ndarray) -> str | None:
    """Return why a prompt differs from the earlier calls of its session, or None for the first one.

    Args:
        calls: the earlier calls. The tree's source of a call's prompt is twice its number, and of its sample one more.
        known: end of the longest beginning of the prompt that their tokens have.
        prompt: the whole prompt, token ids [L].
    """
    source = known.node.next_source(known.length)
    if source is None:
        return SAME_HISTORY if calls else None
    call, is_sample = calls[source // 2], source % 2
    if not known.length or (not is_sample and call.divergence in (None, NEW_PROMPT)):
        return NEW_PROMPT
    if not is_sample:
        return REWRITTEN
    rest = call.end.tokens(known.length)
    return _difference(rest, prompt[known.length : known.length + len(rest) + _END])


def _difference(rest: np.ndarray, prompt: np.ndarray) -> str:
    """Return the reason of a difference in a sample, given the tokens of sample and prompt from there on."""
    ending = rest[-min(3, len(rest)) :]
    for start in range(len(prompt) - len(ending) + 1):
        if (prompt[start : start + len(ending)] == ending).all():
            removed = len(rest) - (start + len(ending))
            return SHORTENED if removed >= 2 and 4 * removed >= len(rest) else ENCODED_AGAIN
    return ENCODED_AGAIN if len(rest) <= _END else REWRITTEN
