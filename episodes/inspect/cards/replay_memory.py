"""Tables of what the memory of replay buffers is used for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from episodes.inspect import formatting
from episodes.inspect.cards.card import Card, Table
from episodes.replay.ring.linked_ring import COPIES, FLAGS, LINKS, OBSERVATIONS, UNUSED

if TYPE_CHECKING:
    from episodes.replay.buffer import EpisodeReplayBuffer
    from episodes.replay.multi_agent_buffer import MultiAgentEpisodeReplayBuffer

_NAMES = {OBSERVATIONS: "obs", COPIES: "copies of obs", LINKS: "links", UNUSED: "filling"}
_NAMES |= {"/endings": "endings", "/priorities": "priorities"}
_WORDS = {
    OBSERVATIONS: "of each step, and the last one of each episode",
    COPIES: "before and after each step, beside its numbers",
    LINKS: "episode, time, neighbours and observations of each step",
    UNUSED: "up to the next size that is fast to read",
    "endings": " and ".join(FLAGS),
    "/priorities": "and their sums, from which steps are drawn",
}
_NOT_COUNTED = "infos and policy versions are not counted"


def memory_card(buffer: EpisodeReplayBuffer, used: Mapping[str, int]) -> Card:
    """Return a closed card with a table of the parts of a buffer's memory, which sum to its `nbytes`.

    Args:
        used: bytes of the stored steps' items by track, "obs" for observations.
    """
    ring = buffer.flush_ring()
    reserved = ring.bytes_by_part
    endings = sum(reserved.pop(key, 0) for key in FLAGS)
    filling = reserved.pop(UNUSED)
    reserved |= {"/endings": endings, UNUSED: filling, "/priorities": buffer.nbytes - ring.nbytes}
    parts = []
    for key, nbytes in reserved.items():
        name = _NAMES.get(key, key)
        if key == "/priorities":
            taken = 8 * len(ring)
        elif key in (COPIES, LINKS, "/endings"):
            taken = nbytes // (ring.capacity + 1) * len(ring)  # one more item is for padding
        else:
            taken = 0 if key == UNUSED else used.get(name, 0)
        if nbytes:
            parts.append((name, _WORDS.get(key, "of each step"), taken, nbytes))
    note = (
        f"bytes; reserved: for the {formatting.counted(buffer.capacity, 'step')} that it can hold; used: by the "
        f"{len(ring):,} that it holds, of a track as in its row above; {_NOT_COUNTED}"
    )
    return _card(parts, note)


def multi_agent_memory_card(buffer: MultiAgentEpisodeReplayBuffer) -> Card:
    """Return a closed card with a table of the memory of each module's buffer and of the env steps, which sum to the
    `nbytes` of the multi-agent buffer.
    """
    sizes = {formatting.clipped(name): part.nbytes for name, part in buffer.modules.items()}
    parts = [(name, "steps of this module", None, nbytes) for name, nbytes in sizes.items()]
    rest = buffer.nbytes - sum(sizes.values())
    if rest:
        parts.append(("env steps", "the env step of each agent step", None, rest))
    return _card(parts, f"bytes that are reserved; {_NOT_COUNTED}")


def _card(parts: Iterable[tuple[str, str, int | None, int]], note: str) -> Card:
    """Return a closed card with the table of the parts (name, words, used and reserved bytes) and their sum."""
    parts = [*parts]
    used, reserved = sum(part[2] or 0 for part in parts), sum(part[3] for part in parts)
    is_known = all(part[2] is not None for part in parts)
    parts.append(("all", "", used if is_known else None, reserved))
    rows = [(name, words, *([f"{taken:,}"] if is_known else []), f"{nbytes:,}") for name, words, taken, nbytes in parts]
    columns = ("part", "", *(["used"] if is_known else []), "reserved")
    headline = [f"{formatting.size(reserved)} reserved", *([f"{formatting.size(used)} used"] if is_known else [])]
    table = Table(columns, rows, note, has_names=True)
    return Card("Memory", "", headline, table=table, is_open=False)
