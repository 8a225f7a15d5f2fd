"""Tables of what the memory of replay buffers is used for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from episodes.inspect import formatting
from episodes.inspect.cards.card import Card, Table
from episodes.replay.ring.linked_ring import COPIES, FLAGS, LINKS, OBSERVATIONS, UNUSED

if TYPE_CHECKING:
    from episodes.replay.buffer import EpisodeReplayBuffer
    from episodes.replay.multi_agent_buffer import MultiAgentEpisodeReplayBuffer

_ENDINGS, _PRIORITIES = "/endings", "/priorities"
_NAMES = {
    OBSERVATIONS: "obs",
    COPIES: "copies of obs",
    LINKS: "step links",
    _ENDINGS: "endings",
    UNUSED: "filling",
    _PRIORITIES: "priorities",
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
    reserved |= {_ENDINGS: endings, UNUSED: filling, _PRIORITIES: buffer.nbytes - ring.nbytes}
    parts = []
    for key, nbytes in reserved.items():
        name = _NAMES.get(key, key)
        if key == _PRIORITIES:
            taken = 8 * len(ring)
        elif key in (COPIES, LINKS, _ENDINGS):
            taken = nbytes // (ring.capacity + 1) * len(ring)  # one more item is for padding
        else:
            taken = 0 if key == UNUSED else used.get(name, 0)
        if nbytes:
            parts.append((name, taken, nbytes))
    note = (
        f"bytes; used: by the {formatting.counted(len(ring), 'stored step')}, of a track as in its row; reserved: for "
        f"{formatting.counted(buffer.capacity, 'step')}, of obs also for the last one of each episode; {_NOT_COUNTED}"
    )
    return _card(parts, note)


def multi_agent_memory_card(buffer: MultiAgentEpisodeReplayBuffer) -> Card:
    """Return a closed card with a table of the memory of each module's buffer and of the env steps, which sum to the
    `nbytes` of the multi-agent buffer.
    """
    sizes = {formatting.clipped(name): part.nbytes for name, part in buffer.modules.items()}
    rest = buffer.nbytes - sum(sizes.values())
    parts = [(name, None, nbytes) for name, nbytes in [*sizes.items(), *([("env steps", rest)] if rest else [])]]
    return _card(parts, f"bytes that are reserved by the steps of each module; {_NOT_COUNTED}")


def _card(parts: Sequence[tuple[str, int | None, int]], note: str) -> Card:
    """Return a closed card with the table of the parts (name, used and reserved bytes) and their sum.

    Args:
        parts: the parts; the used bytes of all or of none are known.
    """
    used = [taken for _, taken, _ in parts if taken is not None]
    total = sum(nbytes for _, _, nbytes in parts)
    rows = [
        (f"{100 * nbytes / max(total, 1):.1f} %", name, f"{nbytes:,}", *([] if taken is None else [f"{taken:,}"]))
        for name, taken, nbytes in [*parts, ("all", sum(used) if used else None, total)]
    ]
    headline = [f"{formatting.size(total)} reserved", *([f"{formatting.size(sum(used))} used"] if used else [])]
    columns = ("share", "part", "reserved", *(["used"] if used else []))
    return Card("Memory", "", headline, table=Table(columns, rows, note, has_names=True), is_open=False)
