"""Content of a notebook view: headline, facts, rows with pictures, tables, and parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from episodes.inspect import formatting
from episodes.inspect.schema import described
from episodes.tracks.space_kinds import is_nested, parts_of

if TYPE_CHECKING:
    from episodes.inspect.conversation import ConversationView

MOST_OF_FACT = 1000  # characters of a fact that is opened
HISTOGRAMS = "histograms, min to max; heights: roots of counts"
MOST_DEFECTS = 2  # kinds of defects that a head names


@dataclass(frozen=True)
class Row:
    """Row of a notebook view that shows one array: name, shape, statistics and a small picture."""

    label: str
    hue: str
    meta: str
    stats: Sequence[tuple[str, str, str, str]]  # name, min, mean and max of each line of the picture
    note: str  # what the picture shows
    picture: Markup
    table: Table | None = None
    owner: str = ""  # the agent whose track it is
    defects: str = ""  # how many numbers are not finite or outside of their space, and where the first ones are
    defect_counts: Sequence[str] = ()  # of each kind, such as "3 of 470 numbers are NaN"
    index: int = 0  # of the array among those of the view
    lane: int = 22  # height of a line of the picture in pixels


@dataclass(frozen=True)
class Fact:
    """Name and value of a fact in a notebook view."""

    name: str
    value: str
    whole: str = ""  # the value in full, if `value` is clipped

    @classmethod
    def of(cls, name: str, value: object) -> Fact:
        """Return a fact whose long value is clipped, and can be opened."""
        short, whole = formatting.clipped(value), formatting.clipped(value, MOST_OF_FACT)
        return cls(name, short, "" if short == whole else whole)


@dataclass(frozen=True)
class Table:
    """Table of texts in a notebook view, with column titles."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    is_words: bool = False  # and no numbers: cells begin at the left
    has_names: bool = False  # in the second column, which begins at the left
    is_folded: bool = False  # shown when opened, with the note as its title


@dataclass(frozen=True)
class Card:
    """Content of the notebook view of one object: headline, metadata, arrays, and cards of the object's parts."""

    kind: str
    name: str
    headline: Sequence[str]
    endings: Sequence[str] = ()  # "terminated", ..., as pills
    facts: Sequence[Fact] = ()
    span: str = ""  # of time, beside the rail
    rail: Markup | None = None
    caption: str = ""  # of the pictures of the rows, if there is no rail
    extent: str = ""  # of what the statistics of the rows are, if not of all items
    sample: str = ""  # which episodes were read for them, if not all
    rows: Sequence[Row] = ()
    folded: Sequence[Row] = ()  # after the others, shown when opened
    chart: Markup | None = None
    tracks: Sequence[Card] = ()  # rows of each agent, before the table
    table: Table | None = None
    talk: ConversationView | None = None  # the beginning of a conversation, shown when opened
    parts: Sequence[Card] = ()
    notes: Sequence[str] = ()
    is_open: bool = True

    @property
    def all_defects(self) -> list[str]:
        """The number of defects of each kind of each track that has some, such as "obs: 3 of 470 numbers are NaN"."""
        rows = [*self.rows, *self.folded, *(row for card in self.tracks for row in card.rows)]
        where = f" in {self.sample}" if self.sample else ""
        return [f"{row.label}: {words}{where}" for row in rows for words in row.defect_counts]

    @property
    def defects(self) -> list[str]:
        """The first two defects of the tracks as texts, and the number of the others, for the head."""
        texts = self.all_defects
        more = [f"and {len(texts) - MOST_DEFECTS:,} more below"] if len(texts) > MOST_DEFECTS else []
        return [*texts[:MOST_DEFECTS], *more]

    @property
    def has_deviations(self) -> bool:
        """Whether a row has a standard deviation beside its mean."""
        return any("±" in mean for row in (*self.rows, *self.folded) for _, _, mean, _ in row.stats)


def known(**facts: object) -> list[Fact]:
    """Return a fact for each of those keyword arguments that are not None."""
    return [Fact.of(name.replace("_", " "), value) for name, value in facts.items() if value is not None]


def space_facts(observation_space: Any, action_space: Any) -> list[Fact]:
    """Return a fact for each space that is not None. A long one shows the names of its parts, and opens."""
    facts = []
    for name, space in (("observation space", observation_space), ("action space", action_space)):
        text = described(space)
        if text is not None:
            is_long = len(text) > formatting.MOST_CHARACTERS and is_nested(space)
            names = f"{type(space).__name__}({', '.join(map(str, parts_of(space)))})"
            facts.append(
                replace(Fact.of(name, text), value=formatting.clipped(names)) if is_long else Fact.of(name, text)
            )
    return facts


def excerpt(items: Mapping[Any, Any]) -> str | None:
    """Return the first items of a dict that a user gave as short text, or None if it is empty."""
    first = [f"{formatting.clipped(key, 20)}: {formatting.clipped(value, 40)}" for key, value in [*items.items()][:8]]
    return ", ".join(first) or None
