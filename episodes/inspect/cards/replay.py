"""Notebook views of replay buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from episodes.errors import EpisodeStateError
from episodes.facts.ending import Ending
from episodes.facts.policy_versions import UNKNOWN
from episodes.inspect import charts, formatting
from episodes.inspect.cards.card import HISTOGRAMS, Card, Row, Table, known
from episodes.inspect.cards.replay_memory import memory_card, multi_agent_memory_card
from episodes.inspect.cards.rows import COLUMN_HUES, rows_of
from episodes.inspect.cards.tables import (
    MOST_EPISODES,
    MOST_OF_ID,
    best_and_worst,
    first_and_last,
    left_out,
    marked,
    note_on_rows,
    shown_ending,
    shown_id,
    with_gap,
    without_columns,
)
from episodes.inspect.ring_chart import ring_chart
from episodes.inspect.series import Series
from episodes.tracks import nested
from episodes.tracks.ragged import Ragged

if TYPE_CHECKING:
    from episodes.replay.buffer import EpisodeReplayBuffer
    from episodes.replay.multi_agent_buffer import MultiAgentEpisodeReplayBuffer
    from episodes.replay.ring.linked_ring import LinkedRing
    from episodes.replay.samples_per_insert import SampleCounts

MOST_STORED_NUMBERS = 1 << 24  # of a column of a replay buffer that is read in full
MOST_STEPS = 200  # that are read of a larger column
MOST_MODULES = 4
MOST_OF_SEGMENT = 24  # characters of an id
FLAGS = ("terminateds", "truncateds")


def replay_card(buffer: EpisodeReplayBuffer, name: object = "", share: int = 1) -> Card:
    """Return the notebook card of an `EpisodeReplayBuffer`: a chart of the steps by age, a chart and a table of the
    stored episodes, and a histogram of each column.

    A buffer of more than 2**24 steps is not read in full: its card has no segments of episodes, returns, policy
    versions and priorities.

    Args:
        share: number of cards of this kind in one view.
    """
    with buffer.lock:
        try:
            ring = buffer.flush_ring()
        except EpisodeStateError:
            return Card(type(buffer).__name__, formatting.clipped(name), ["closed"])
        return _replay_card(buffer, ring, name, share)


def _replay_card(buffer: EpisodeReplayBuffer, ring: LinkedRing, name: object, share: int) -> Card:
    rows: list[Row] = []
    notes: list[str] = []
    chart, table, stored, used = ring_chart(buffer.capacity, len(ring)), None, {}, {}
    headline = [f"{len(ring):,} of {formatting.counted(buffer.capacity, 'step')}"]
    headline.append(formatting.counted(buffer.num_episodes, "episode"))
    if len(ring):
        contents, first = StoredEpisodes(buffer), buffer.num_added - len(ring)
        tracks = stored_tracks(contents)
        series = [*chain(*tracks.values()), *_policy_ages(contents), *_priorities(contents)]
        used = {key: sum(leaf.nbytes or 0 for leaf in leaves) for key, leaves in tracks.items()}
        rows, notes = rows_of(series, None, where=lambda _, index: f"added step {first + index:,}")
        rows.append(_endings(contents))
        if contents.returns is not None:
            facts = *contents.flags, "stored episode", contents.ids, contents.lengths
            chart = contents.segments(share)
            chart += charts.returns(contents.returns, *facts, ("oldest", "newest")) or Markup("")
        table = contents.table()
        stored = contents.facts()
        headline += contents.mean_return()
    files = ring.allocator.files
    return Card(
        type(buffer).__name__,
        formatting.clipped(name),
        [*headline, _sampled(buffer), formatting.size(buffer.nbytes)],
        facts=known(
            **_counts(buffer, "step"),
            **stored,
            files=None if files is None else files.folder,
            alpha=getattr(buffer, "alpha", None),
            beta=getattr(buffer, "beta", None),
            period=buffer.period,
            ignored_priorities=f"{stale:,}, of evicted steps" if (stale := getattr(buffer, "num_stale", 0)) else None,
        ),
        caption=HISTOGRAMS if rows else "",
        rows=rows,
        chart=chart,
        table=table,
        parts=[memory_card(buffer, used)],
        notes=notes,
    )


def _sampled(buffer: SampleCounts) -> str:
    """Return how often an added step was sampled on average, as text."""
    if not buffer.num_sampled:
        return "never sampled"
    return f"{formatting.number(buffer.samples_per_insert, 3)} sampled per added"


def _counts(buffer: SampleCounts, noun: str) -> dict[str, str | None]:
    """Return facts about how many steps were added, evicted and sampled, and the limit on samples per added step."""
    added, sampled = formatting.counted(buffer.num_added, noun), "never"
    if buffer.num_evicted:
        added += f", {buffer.num_evicted:,} of them evicted"
    if buffer.num_sampled:
        sampled = formatting.counted(buffer.num_sampled, noun)
    limit = None
    if buffer.limit is not None:
        ratio, size = formatting.number(buffer.limit.ratio), formatting.counted(buffer.limit.min_size, "step")
        limit = f"{ratio} samples per added step, once {size} are stored"
    return {"added": added, "sampled": sampled, "limit": limit}


@dataclass(frozen=True)
class StoredEpisodes:
    """Episodes of which a replay buffer stores at least one step, from the one with the oldest step on.

    An episode that lost its first steps, or that goes on, is described by its stored steps.
    """

    buffer: EpisodeReplayBuffer

    @cached_property
    def ring(self) -> LinkedRing:
        """Ring of the steps."""
        return self.buffer.flush_ring()

    @cached_property
    def entries(self) -> np.ndarray:
        """Rows of the episodes in the ring's table of episodes, int64 [n]."""
        order = self.ring.table.order.copy()
        return order[np.argsort(self.ring.slot_numbers(self.ring.table.first[order]))]

    @cached_property
    def ids(self) -> list[str]:
        """Id of each episode."""
        return [self.ring.table.id_of(entry) for entry in self.entries.tolist()]

    @cached_property
    def ages(self) -> np.ndarray:
        """Number of steps added since the oldest stored step of each episode, itself included, int64 [n]."""
        return self.ring.head - self.ring.slot_numbers(self.ring.table.first[self.entries])

    @cached_property
    def starts(self) -> np.ndarray:
        """Time of the oldest stored step of each episode, int64 [n]."""
        return self.ring.links.t[self.ring.table.first[self.entries]]

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of stored steps of each episode, int64 [n]."""
        return self.ring.t_next(self.entries) - self.starts

    @cached_property
    def flags(self) -> tuple[np.ndarray, np.ndarray]:
        """Whether each episode has terminated, and whether it was truncated, bool [n] each."""
        last = self.ring.table.last.take(self.entries)
        terminated, truncated = (np.asarray(self.ring.columns[key](last), bool) for key in FLAGS)
        return terminated, truncated

    @cached_property
    def slots(self) -> np.ndarray | None:
        """Ring positions of all steps from the oldest on, int64 [k], or None if they are too many to be read."""
        if len(self.ring) > MOST_STORED_NUMBERS:
            return None
        return (self.ring.tail + np.arange(len(self.ring))) % self.ring.capacity

    @cached_property
    def owners(self) -> np.ndarray:
        """Index of the episode of each step, int64 [k]."""
        places = np.zeros(self.entries.max() + 1, np.int64)
        places[self.entries] = np.arange(len(self.entries))
        return places[self.ring.links.entry[self.slots]]

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of the numbers [k] of the steps of each episode, float64 [n]."""
        with np.errstate(invalid="ignore", over="ignore"):
            return np.bincount(self.owners, np.asarray(values, np.float64), len(self.entries))

    @cached_property
    def returns(self) -> np.ndarray | None:
        """Sum of the stored rewards of each episode, float64 [n]."""
        return None if self.slots is None else self.sums(self.ring.columns["rewards"](self.slots))

    @cached_property
    def versions(self) -> np.ndarray | None:
        """Version of the policy that took each step, int64 [k], -1 if it is unknown. None if all are unknown."""
        if self.slots is None or self.ring.versions.newest == UNKNOWN:
            return None
        versions = self.ring.versions.at(self.slots)
        return None if (versions == UNKNOWN).all() else versions

    @cached_property
    def shares(self) -> np.ndarray | None:
        """Priority of each step to the power of alpha, float64 [k], 0 where no sample begins. None if the buffer has no
        priorities.
        """
        read = getattr(self.buffer, "priorities", None)
        return None if read is None or self.slots is None else read(self.ring.slot_numbers(self.slots))

    @cached_property
    def mean_shares(self) -> np.ndarray | None:
        """Mean of the priorities to the power of alpha of each episode's steps where samples begin, float64 [n], NaN
        for an episode without such a step. None if the buffer has no priorities.
        """
        if self.shares is None:
            return None
        with np.errstate(invalid="ignore"):
            return self.sums(self.shares) / self.sums(self.shares > 0)

    @cached_property
    def are_complete(self) -> np.ndarray:
        """Whether each episode is stored from its first step to its ending, bool [n]."""
        terminated, truncated = self.flags
        return (self.starts == 0) & (terminated | truncated)

    def mean_return(self) -> list[str]:
        """Return a list with the mean return of complete episodes as text, empty if it is unknown."""
        if self.returns is None or not self.are_complete.any():
            return []
        with np.errstate(invalid="ignore", over="ignore"):
            mean = self.returns[self.are_complete].mean()
        return [f"mean return {formatting.number(mean)} ({int(self.are_complete.sum()):,} complete)"]

    def _kinds(self) -> str:
        """Return how many episodes are complete, unfinished or without their first steps, as text."""
        has_ended, has_first = self.flags[0] | self.flags[1], self.starts == 0
        kinds = {
            "complete": self.are_complete,
            "unfinished": ~has_ended & has_first,
            "without the first steps": has_ended & ~has_first,
            "unfinished and without the first steps": ~has_ended & ~has_first,
        }
        return ", ".join(f"{int(mask.sum()):,} {words}" for words, mask in kinds.items() if mask.any())

    def facts(self) -> dict[str, str | None]:
        """Return facts about the oldest step, parts of episodes, policy versions and importance weights."""
        id_ = formatting.without_random_digits(formatting.clipped(self.ids[0], MOST_OF_ID))
        oldest = f"added {formatting.counted(len(self.ring), 'step')} ago, t={self.starts[0]} of episode {id_}"
        facts: dict[str, str | None] = {"oldest_stored_step": oldest, "episodes": self._kinds()}
        if self.versions is not None:
            found, newest = self.versions[self.versions != UNKNOWN], self.ring.versions.newest
            facts["policy_versions"] = f"{_span(found.min(), found.max())}, on average " + (
                f"{formatting.number((newest - found).mean())} older than the newest, {newest:,}"
            )
            if len(found) < len(self.versions):
                steps = formatting.counted(len(self.versions) - len(found), "step")
                facts["policy_versions"] += f"; unknown of {steps}"
        if self.shares is not None and (drawn := self.shares[self.shares > 0]).size:
            low = (drawn.max() / drawn.min()) ** -self.buffer.beta  # type: ignore[attr-defined]
            facts["importance_weights"] = "all 1" if low == 1 else f"{formatting.number(low)} … 1"
        return facts

    def table(self) -> Table:
        """Return a table of the first and last episodes, of the complete ones with the highest and the lowest return,
        and of the one with the highest mean priority.
        """
        num, returns, means = len(self.entries), self.returns, self.mean_shares
        marks = {} if returns is None else best_and_worst(np.where(self.are_complete, returns, np.nan))
        tops = (
            {} if means is None else {i: "highest" for i, word in best_and_worst(means).items() if word[:4] == "best"}
        )
        words = {**marks, **{i: ", ".join([*filter(None, [marks.get(i)]), "highest priority"]) for i in tops}}
        chosen = first_and_last(num, MOST_EPISODES, words)
        rows = [
            (
                str(i),
                shown_id(self.ids[i]),
                formatting.clipped(self._agent(i), MOST_OF_ID),
                self._steps_text(i),
                "" if returns is None else marked(marks.get(i, ""), returns[i]),
                shown_ending(Ending.of(*(flags[i] for flags in self.flags))),
                f"{self.ages[i]:,}",
                self._version_text(i),
                "" if means is None else marked(tops.get(i, ""), means[i]) if means[i] == means[i] else "none",
            )
            for i in chosen
        ]
        columns = ("", "id", "agent", "steps", "return", "ending", "age", "policy", "priority")
        what = (
            "steps" if returns is None else "steps and return" if means is None else "steps, return and mean priority"
        )
        notes = (
            note_on_rows(num, MOST_EPISODES, "episode", words),
            f"{what}: of the stored steps",
            "age: steps added since the oldest of them was",
            "" if self.versions is None else "policy: version",
        )
        note = "; ".join(filter(None, notes))
        empty = dict.fromkeys(("agent", "return", "policy", "priority"), "")
        return without_columns(Table(columns, with_gap(rows, chosen), note, has_names=True), **empty)

    def segments(self, share: int = 1) -> Markup:
        """Return the chart of the steps by age, with a row of colours of the priorities and, if there are several, of
        the policy versions. The steps must be few enough to be read.

        Args:
            share: number of charts of this kind in one view.
        """
        strips = {}
        if self.shares is not None:
            strips["priority"] = np.where(self.shares > 0, self.shares, np.nan)
        if self.versions is not None and len(np.unique(self.versions[self.versions != UNKNOWN])) > 1:
            strips["policy"] = np.where(self.versions == UNKNOWN, np.nan, self.versions)
        return ring_chart(
            self.buffer.capacity, len(self.ring), self.owners, self.flags, self._segment_text, strips, share
        )

    def _segment_text(self, index: int) -> str:
        """Return what is known of an episode as text: id, steps, return, ending, age and policy versions."""
        texts = [
            formatting.clipped(formatting.brief_id(self.ids[index]), MOST_OF_SEGMENT),
            f"{self._steps_text(index)} steps",
            "" if self.returns is None else f"return {formatting.number(self.returns[index])}",
            formatting.ended(Ending.of(*(flags[index] for flags in self.flags))),
            f"age {self.ages[index]:,}",
            f"policy {version}" if (version := self._version_text(index)) else "",
        ]
        return ", ".join(filter(None, texts))

    def _steps_text(self, index: int) -> str:
        """Return the number of stored steps of an episode, and of all with the evicted ones, such as "5 of 9"."""
        start, length = self.starts[index], self.lengths[index]
        return f"{length:,}" + (f" of {start + length:,}" if start else "")

    def _agent(self, index: int) -> object:
        """Return the agent of an episode, or "" if it has none."""
        agent_id = self.ring.table.facts[int(self.entries[index])].agent_id
        return "" if agent_id is None else agent_id

    @cached_property
    def version_ranges(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Lowest and highest known policy version of each episode, int64 [n] each, -1 for none, and the number of its
        steps whose version is unknown, float64 [n]. None if all are unknown.
        """
        if self.versions is None:
            return None
        is_known, largest = self.versions != UNKNOWN, np.iinfo(np.int64).max
        lows, highs = np.full(len(self.entries), largest), np.full(len(self.entries), UNKNOWN)
        np.minimum.at(lows, self.owners[is_known], self.versions[is_known])
        np.maximum.at(highs, self.owners, self.versions)
        return np.where(highs == UNKNOWN, UNKNOWN, lows), highs, self.sums(~is_known)

    def _version_text(self, index: int) -> str:
        """Return the policy versions of an episode as text, such as "3 … 5", or "" if all of the buffer are unknown."""
        if self.version_ranges is None:
            return ""
        low, high, unknown = (each[index] for each in self.version_ranges)
        return "unknown" if high == UNKNOWN else _span(low, high) + (" and unknown" if unknown else "")


def _span(low: int, high: int) -> str:
    """Return a range of whole numbers as text."""
    return f"{low:,}" if low == high else f"{low:,} … {high:,}"


def _endings(stored: StoredEpisodes) -> Row:
    """Return the row of the tracks of endings: the number of episodes with each of them."""
    terminated, truncated = stored.flags
    note = "" if (terminated | truncated).all() else "cut: without an ending so far"
    meta = f"of episodes · {' and '.join(FLAGS)} · {formatting.size(2 * len(stored.ring))}"
    return Row("endings", "infos", meta, (), note, charts.endings(terminated, truncated))


def stored_tracks(stored: StoredEpisodes) -> dict[str, list[Series]]:
    """Return columns of the stored steps for display, by track: all steps, or evenly spaced ones of a large buffer.

    Endings are left out.
    """
    ring, total = stored.ring, len(stored.ring)

    def column(key: str, places: np.ndarray) -> dict[str, np.ndarray | Ragged]:
        """Return the arrays of one column of the steps at `places`, by path."""
        slots = (ring.tail + places) % ring.capacity
        items = ring.observations.take(ring.links.row[slots]) if key == "obs" else ring.columns[key](slots)
        return nested.flatten({key: items})

    series: dict[str, list[Series]] = {}
    for key in ("obs", "actions", "rewards", *stored.buffer.extra_model_outputs):
        one = column(key, np.zeros(1, np.int64)).values()
        numbers = sum(1 if type(leaf) is Ragged else leaf.size for leaf in one)
        is_whole = numbers * total <= MOST_STORED_NUMBERS
        places = np.arange(total) if is_whole else np.unique(np.linspace(0, total - 1, MOST_STEPS).astype(np.int64))
        for path, leaf in column(key, places).items():
            nbytes, shown = leaf.nbytes * total // len(places), leaf.lengths if isinstance(leaf, Ragged) else leaf
            hue, found = COLUMN_HUES.get(key, "extra"), None if is_whole else places
            series.setdefault(key, []).append(Series(path, hue, shown, total, found, 1, nbytes))
    return series


def _policy_ages(stored: StoredEpisodes) -> Iterator[Series]:
    """Yield how many versions the policies of the stored steps are older than the newest policy, for display."""
    if stored.versions is not None:
        ages = stored.ring.versions.newest - stored.versions[stored.versions != UNKNOWN]
        yield Series("policy age", "extra", ages, len(ages), None, 1, ages.nbytes, "versions older than the newest")


def _priorities(stored: StoredEpisodes) -> Iterator[Series]:
    """Yield the priorities by which a prioritized buffer samples its steps, for display."""
    if stored.shares is not None:
        shares = stored.shares[stored.shares > 0]
        yield Series("priority", "extra", shares, len(shares), None, 1, shares.nbytes, "to the power of alpha")


def multi_agent_replay_card(buffer: MultiAgentEpisodeReplayBuffer) -> Card:
    """Return the notebook card of a multi-agent replay buffer, with a card for each of the first modules."""
    with buffer.lock:
        modules = list(buffer.modules.items())
        shown = modules[:MOST_MODULES]
        parts = [replay_card(part, module_id, len(shown)) for module_id, part in shown]
    return Card(
        type(buffer).__name__,
        "",
        [
            f"{len(buffer):,} of {formatting.counted(buffer.capacity, 'env step')}",
            formatting.counted(len(modules), "module"),
            _sampled(buffer),
            formatting.size(buffer.nbytes),
        ],
        facts=known(**_counts(buffer, "env step")),
        parts=[*parts, multi_agent_memory_card(buffer)],
        notes=left_out([str(module_id) for module_id, _ in modules[MOST_MODULES:]], " modules"),
    )
