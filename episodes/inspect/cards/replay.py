"""Notebook views of replay buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from episodes.inspect import charts, formatting
from episodes.inspect.cards.card import HISTOGRAMS, Card, Row, known
from episodes.inspect.cards.rows import COLUMN_HUES, rows_of
from episodes.inspect.cards.tables import MOST_OF_ID, best_and_worst
from episodes.inspect.series import Series
from episodes.tracks import nested
from episodes.tracks.ragged import Ragged

if TYPE_CHECKING:
    from episodes.replay.buffer import EpisodeReplayBuffer
    from episodes.replay.multi_agent_buffer import MultiAgentEpisodeReplayBuffer

MOST_STORED_NUMBERS = 1 << 24  # of a column of a replay buffer that is read in full
MOST_STEPS = 200  # that are read of a larger column
MOST_MODULES = 4


def replay_card(buffer: EpisodeReplayBuffer, name: object = "") -> Card:
    """Return the notebook card of an `EpisodeReplayBuffer`: fill level, returns of the stored episodes, and a histogram
    of each column.
    """
    rows: Sequence[Row] = ()
    notes: list[str] = []
    stored: dict[str, str] = {}
    chart = charts.filled(len(buffer), buffer.capacity)
    if len(buffer):
        first = buffer.num_added - len(buffer)
        rows, notes = rows_of(_stored_steps(buffer), None, where=lambda _, index: f"added step {first + index:,}")
        returns, stored = _stored_returns(buffer)
        chart += returns
    ratio = f", {formatting.number(buffer.num_sampled / max(buffer.num_added, 1))} for each added step"
    return Card(
        type(buffer).__name__,
        formatting.clipped(name),
        [
            formatting.counted(buffer.num_episodes, "episode"),
            formatting.size(buffer.nbytes),
        ],
        facts=known(
            ever_added=formatting.counted(buffer.num_added, "step"),
            ever_sampled=formatting.counted(buffer.num_sampled, "step") + (ratio if buffer.num_added else ""),
            **stored,
            alpha=getattr(buffer, "alpha", None),
            beta=getattr(buffer, "beta", None),
        ),
        caption=HISTOGRAMS,
        rows=rows,
        chart=chart,
        notes=notes,
    )


def _stored_returns(buffer: EpisodeReplayBuffer) -> tuple[Markup, dict[str, str]]:
    """Return a chart of the stored episodes from the oldest to the newest (the sums of their stored rewards, and their
    endings), and facts about the oldest stored step and the best and the worst stored episode.

    The chart, the best and the worst are left out for a buffer that is too large to be read in full.
    """
    ring = buffer.flush_ring()
    oldest = ring.tail % buffer.capacity
    t, id_ = int(ring.links.t[oldest]), _short_id(ring.table.id_of(int(ring.links.entry[oldest])))
    words = f"added {formatting.counted(len(ring), 'step')} ago, t={t} of episode {id_}"
    facts = {"oldest_stored_step": words + (", whose earlier steps are not stored" if t else "")}
    if len(ring) > MOST_STORED_NUMBERS:
        return Markup(""), facts
    slots = (ring.tail + np.arange(len(ring))) % buffer.capacity
    entries, firsts, owners = np.unique(ring.links.entry[slots], return_index=True, return_inverse=True)
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.bincount(owners, np.asarray(ring.columns["rewards"](slots), np.float64))
    order = np.argsort(firsts)
    last = ring.table.last.take(entries[order])
    flags = (np.asarray(ring.columns[key](last), bool) for key in ("terminateds", "truncateds"))
    for place, word in best_and_worst(sums[order]).items():
        id_ = _short_id(ring.table.id_of(int(entries[order][place])))
        facts[f"{word}_stored_episode"] = f"{id_}, return {formatting.number(sums[order][place])}"
    return charts.returns(sums[order], *flags, noun="stored episode") or Markup(""), facts


def _short_id(id_: str) -> str:
    """Return an id for a fact, of 32 random digits the first 8."""
    return formatting.without_random_digits(formatting.clipped(id_, MOST_OF_ID))


def _stored_steps(buffer: EpisodeReplayBuffer) -> list[Series]:
    """Return columns of a replay buffer's steps for display: all steps, or evenly spaced ones of a large buffer."""
    ring, total = buffer.flush_ring(), len(buffer)

    def column(key: str, places: np.ndarray) -> dict[str, np.ndarray]:
        """Return the arrays of one column of the steps at `places`, by path. A ragged array is represented by its
        lengths.
        """
        slots = (ring.tail + places) % buffer.capacity
        items = ring.observations.take(ring.links.row[slots]) if key == "obs" else ring.columns[key](slots)
        columns = nested.flatten({key: items})
        return {path: leaf.lengths if type(leaf) is Ragged else leaf for path, leaf in columns.items()}

    series = []
    for key in ("obs", "actions", "rewards", "terminateds", "truncateds"):
        numbers = sum(leaf.size for leaf in column(key, np.zeros(1, np.int64)).values())
        is_whole = numbers * total <= MOST_STORED_NUMBERS
        places = np.arange(total) if is_whole else np.unique(np.linspace(0, total - 1, MOST_STEPS).astype(np.int64))
        for path, leaf in column(key, places).items():
            nbytes = leaf.nbytes * total // len(places)
            series.append(Series(path, COLUMN_HUES[key], leaf, total, None if is_whole else places, 1, nbytes))
    return [*series, *_priorities(buffer)]


def _priorities(buffer: EpisodeReplayBuffer) -> Iterator[Series]:
    """Yield the priorities by which a prioritized buffer samples its steps, for display."""
    read = getattr(buffer, "priorities", None)
    if read is None or len(buffer) > MOST_STORED_NUMBERS:
        return
    ring = buffer.flush_ring()
    slots = (ring.tail + np.arange(len(ring))) % buffer.capacity
    shares = read(ring.slot_numbers(slots))
    yield Series("priority", "extra", shares, len(shares), None, 1, shares.nbytes, "to the power of alpha")


def multi_agent_replay_card(buffer: MultiAgentEpisodeReplayBuffer) -> Card:
    """Return the notebook card of a multi-agent replay buffer: fill level, and a card for each module."""
    modules = list(buffer.modules.items())
    return Card(
        type(buffer).__name__,
        "",
        [formatting.counted(len(modules), "module"), formatting.size(buffer.nbytes)],
        chart=charts.filled(len(buffer), buffer.capacity, "env step"),
        parts=[replay_card(part, module_id) for module_id, part in modules[:MOST_MODULES]],
    )
