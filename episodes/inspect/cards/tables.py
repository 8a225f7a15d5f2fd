"""Tables of a notebook view: some of many episodes, and what is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from markupsafe import Markup

from episodes.facts.ending import Ending
from episodes.inspect import formatting
from episodes.inspect.cards.card import Table

MOST_EPISODES = 8  # of which a table lists all
FEW_EPISODES = 6  # that a table lists of more episodes
MOST_OF_ID = 60  # characters in a table of agents
MOST_WITH_DEFECTS = 3  # episodes with defects that a table lists in any case


def episodes_table(
    ids: Sequence[object] | np.ndarray,
    lengths: np.ndarray,
    returns: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    started: np.ndarray,
    agents: Sequence[Iterable[object]] | np.ndarray | None = None,
    most: int = 0,
    defects: Mapping[int, str] | None = None,
) -> Table:
    """Return a table of the first and last episodes, of those with the highest and lowest return, and of the first 3
    with defects, with id, length, return, ending and start; of games also agents.

    All of at most 8 episodes are listed. Of a page, `most` are listed if there are more.

    Args:
        defects: the kinds of wrong numbers of episodes by index, such as "NaN". They follow the id.
    """
    extremes = best_and_worst(returns)
    defects = defects or {}
    marks = extremes | dict.fromkeys([*defects][:MOST_WITH_DEFECTS], "first with defects")
    marks |= {i: f"{extremes[i]}, {marks[i]}" for i in extremes if marks[i] != extremes[i]}
    listed = max(most, MOST_EPISODES)
    if len(lengths) > listed and most <= MOST_EPISODES:
        listed = FEW_EPISODES
    chosen = first_and_last(len(lengths), listed, marks)
    rows = [
        (
            str(i),
            shown_id(ids[i], defects.get(i, "")),
            str(lengths[i]),
            marked(extremes.get(i, ""), returns[i]),
            shown_ending(Ending.of(terminated[i], truncated[i])),
            str(started[i]),
            *(() if agents is None else (formatting.clipped(", ".join(map(str, agents[i])), 60),)),
        )
        for i in chosen
    ]
    rows = with_gap(rows, chosen)
    note = note_on_rows(len(lengths), listed, "episode" if agents is None else "game", marks)
    columns = ("", "id", "length", "return", "ending", "from t", *(() if agents is None else ("agents",)))
    return without_columns(Table(columns, rows, note, has_names=True), from_t="0")


def best_and_worst(returns: np.ndarray) -> dict[int, str]:
    """Return the indices of the first episodes with the highest and the lowest finite return, with "best" and "worst".

    A mark says how many episodes share the return, such as "best (1 of 2)". The result is empty if there are no two
    different returns.
    """
    values = np.asarray(returns, np.float64)
    places = np.flatnonzero(np.isfinite(values))
    if not len(places) or (values[places] == values[places[0]]).all():
        return {}
    marks = {}
    for word, value in (("best", values[places].max()), ("worst", values[places].min())):
        equal = np.flatnonzero(values == value)
        marks[int(equal[0])] = word if len(equal) == 1 else f"{word} (1 of {len(equal):,})"
    return marks


def marked(mark: str, value: float) -> str:
    """Return a number for a table with a mark such as "best" in front of it, so that the numbers of a column end below
    each other. Without a mark, it is the number alone.
    """
    shown = formatting.number(value)
    return Markup('<span class="ep-mark">{}</span> {}').format(mark, shown) if mark else shown


def shown_ending(ending: Ending) -> str:
    """Return an ending for a table, in its colour."""
    kind = formatting.ending_word(ending)
    return Markup('<span class="ep-{}">{}</span>').format(kind, formatting.ended(ending))


def shown_id(value: object, defects: str = "") -> str:
    """Return an id for a table, with the kinds of wrong numbers of the episode in red.

    A long id is cut in the middle to 24 characters, and one of 32 random digits to the first 8. The whole id is the
    tooltip then.
    """
    text, short = formatting.page_id(value), formatting.brief_id(value)
    shown = text if short == text else Markup('<span title="{}">{}</span>').format(text, short)
    return Markup('{} <span class="ep-defect">{}</span>').format(shown, defects) if defects else shown


def left_out(names: Sequence[str], noun: str = "") -> list[str]:
    """Return a list with a note that names what a card leaves out, or an empty list if it leaves nothing out."""
    noun = noun if len(names) > 1 else noun.removesuffix("s")
    return [formatting.clipped(f"and {len(names)} more{noun}: {', '.join(names[:20])}", 300)] if names else []


def first_and_last(num: int, most: int, marked: Iterable[int] = ()) -> list[int]:
    """Return the indices of `num` rows, or of the first, the last and the `marked` ones if there are more than `most`.

    A single row between two of these is one of them: a row in its place, which says "1 more", would be as long.
    """
    if num <= most:
        return [*range(num)]
    half = most // 2
    chosen = {*range(half), *range(num - half, num), *marked}
    return sorted(chosen | {i + 1 for i in chosen if i + 2 in chosen})


def with_gap(rows: Sequence[Sequence[str]], chosen: Sequence[int]) -> list[Sequence[str]]:
    """Return the rows with one more wherever the indices `chosen` of the rows leave rows out, which says how many."""
    result: list[Sequence[str]] = []
    for row, index, before in zip(rows, chosen, [-1, *chosen], strict=False):
        if index > before + 1:
            result.append(("⋮", f"{index - before - 1:,} more", *[""] * (len(row) - 2)))
        result.append(row)
    return result


def note_on_rows(num: int, most: int, noun: str, marks: Mapping[int, str] | None = None) -> str:
    """Return a note on the rows that `first_and_last` leaves out, or "" if it leaves none out.

    Args:
        marks: words of rows that are listed too, such as "best (1 of 2)" or "worst, highest priority".
    """
    if len(first_and_last(num, most, marks or ())) == num:
        return ""
    words = {word.split(" (")[0] for mark in (marks or {}).values() for word in mark.split(", ")}
    *others, last = f"the first and the last {most // 2}", *(f"the {word}" for word in sorted(words))
    listed = f"{', '.join(others)} and {last}" if others else last
    return f"{formatting.counted(num, noun)}; {listed} are listed"


def without_columns(table: Table, **defaults: str) -> Table:
    """Return the table without those columns whose cells are all equal to the text given for the column."""
    kept = [
        i
        for i, name in enumerate(table.columns)
        if (default := defaults.get(name.replace(" ", "_"))) is None
        or any(row[i] != default for row in table.rows if row[0] != "⋮")
    ]
    rows = [[row[i] for i in kept] for row in table.rows]
    return replace(table, columns=[table.columns[i] for i in kept], rows=rows)
