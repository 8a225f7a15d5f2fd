"""Command `episodes ls`: lists the episodes of a data set."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from episodes.command.choosing import (
    counted_episodes,
    is_of_games,
    named_game,
    no_episodes,
    opened,
    position_of_episode,
)
from episodes.command.printing import Directory, Json, alike, finite, print_json, print_table
from episodes.command.terminal import say, say_wrapped
from episodes.errors import InvalidArgument

if TYPE_CHECKING:
    from episodes.storage import EpisodeDataset, GameDataset

COLUMNS = (
    *("id", "length", "return", "ending", "t_started", "episode_length", "episode_return", "is_complete"),
    *("agent_id", "module_id"),
)
COLUMNS_OF_GAMES = ("id", "length", "return", "ending", "t_started", "agents")
MOST_ROWS = 50  # in a terminal, without --limit
NTH = "nth"
POSITION = "position"  # the name of `nth` in JSON
_NAME = re.compile(r"(?:'[^']*'|\"[^\"]*\"|[^,])+")  # in a list with commas


def ls(
    directory: Directory,
    where: Annotated[str, typer.Option(help="A condition, such as 'return > 100 and nth < 50'.")] = "",
    sort: Annotated[
        str, typer.Option(help="A column, lowest first: nth, return, seed, custom_data/KEY, or another of --where.")
    ] = "",
    descending: Annotated[bool, typer.Option("--descending", help="Sort from the highest to the lowest.")] = False,
    columns: Annotated[str, typer.Option(help="The columns to print, such as 'nth,id,seed,custom_data/KEY'.")] = "",
    limit: Annotated[
        int | None,
        typer.Option(help=f"Most rows to print; 0 for all. By default {MOST_ROWS} in terminals, else all.", min=0),
    ] = None,
    json: Json = False,
) -> None:
    """Print a table with one row for each episode of a data set, or for each game whose agents are of several kinds.

    The first column, nth, is the position in the data set, which `episodes show --episode` takes. A line below tells
    the order, and how many rows are left out.
    """
    import numpy as np

    from episodes.storage.copying import condition

    dataset = opened(directory)
    table = {NTH: np.arange(len(dataset))}
    by_default = [NTH, *default_columns(dataset)]
    chosen = named_columns(columns, "--columns", dataset) if columns else by_default
    keys = named_columns(sort, "--sort", dataset) if sort else []
    if len(keys) > 1:
        raise InvalidArgument(f"--sort {sort}: give one column")
    names = list(dict.fromkeys([*chosen, *keys]))
    table |= {name: dataset.metadata[name] for name in {*by_default, *names} - {NTH}}
    found = np.arange(len(dataset))
    if where and len(dataset):
        found = np.flatnonzero(condition(where)(dataset.metadata))
    lists = {name: column[found].tolist() for name, column in table.items()}
    order = list(range(len(found)))
    for key in keys:
        order.sort(key=lambda k: _order(lists[key][k]), reverse=descending)
        order.sort(key=lambda k: _order(lists[key][k])[0])  # numbers before NaN, texts and None in both orders
    is_limit_default = limit is None
    if limit is None:
        limit = MOST_ROWS if sys.stdout.isatty() and not json else 0
    order = order[: limit or len(order)]
    if json:
        titles = {name: POSITION if name == NTH else name for name in names}
        print_json(finite([{titles[name]: lists[name][k] for name in names} for k in order]))
        return
    if not order:
        words = f"none of {counted_episodes(dataset)} satisfies the condition {where!r}; "
        words += "episodes info lists what they have"
        say_wrapped(words if len(dataset) else no_episodes(directory))
        return
    rows = [{name: lists[name][k] for name in lists} for k in order]
    shown = names if columns else [name for name in names if name in keys or name in _useful(by_default, rows)]
    cells = [alike([_plain(row[name]) for row in rows]) for name in shown]
    print_table(shown, list(zip(*cells, strict=True)))
    listing = _Listing(len(dataset), len(found), len(rows), "".join(keys), descending, is_limit_default)
    below = [line for line in (listing.in_words(counted_episodes(dataset)), _games_in_words(dataset)) if line]
    if below:
        say_wrapped("\n" + "\n".join(below))
    if len(rows) < len(found):
        say(f"episodes show {shlex.quote(directory)} --episode {_name_of(rows[0], dataset)}")


class _Listing(NamedTuple):
    """Numbers of all episodes, of those that satisfy the condition and of those that are printed, and their order."""

    total: int
    found: int
    printed: int
    sort: str
    descending: bool
    is_limit_default: bool

    def in_words(self, counted: str) -> str:
        """Return the line below the table, "" if it has all rows in their order.

        Args:
            counted: the number of all episodes with its noun.
        """
        words = [counted if self.printed == self.total else f"{self.printed:,} of {counted}"]
        if self.found < self.total:
            is_all = self.printed == self.found
            words = (
                [f"{words[0]} satisfy the condition"] if is_all else [*words, f"{self.found:,} satisfy the condition"]
            )
        if self.sort:
            words.append(f"sorted by {self.sort}, " + ("highest first" if self.descending else "lowest first"))
            words[-1] += "" if self.descending else " (--descending: highest first)"
        if self.printed < self.found and self.is_limit_default:
            words.append("--limit 0 prints all")
        return "" if words == [counted] else ", ".join(words)


def _games_in_words(dataset: EpisodeDataset | GameDataset) -> str:
    """Return a line with the number of games that the episodes belong to, "" if there are none."""
    from episodes.inspect.formatting import counted

    if is_of_games(dataset):
        return ""
    ids = dataset.metadata["multi_agent_episode_id"].tolist()
    games = list(dict.fromkeys(id_ for id_ in ids if id_ is not None))
    if not games:
        return ""
    num = len(ids) - ids.count(None)
    if num < len(ids):
        return f"{num:,} of {counted(len(ids), 'episode')} are of agents of {counted(len(games), 'game')}"
    words = f"{counted(num, 'episode')} of agents of {counted(len(games), 'game')}"
    is_shown = named_game(dataset, str(games[0])) is not None
    return f"{words}; episodes show --episode {shlex.quote(str(games[0]))}: the whole game" if is_shown else words


def named_columns(text: str, option: str, dataset: EpisodeDataset | GameDataset) -> list[str]:
    """Return the names of columns in a text with commas between them. They are written as in conditions:
    `nth, return, custom_data/'my key'`.

    Raises:
        InvalidArgument: the data set has no such column.
    """
    from episodes.storage.copying import column_name

    known = [NTH, *dataset.metadata]
    names = []
    for word in _NAME.findall(text):
        name = NTH if word.strip() == POSITION else column_name(word)
        if name not in known:
            name = word  # a key that has no quotes
        if name not in known:
            raise InvalidArgument(f"{option} {word.strip()}: no such column; there are {', '.join(known)}")
        names.append(name)
    if not names:
        raise InvalidArgument(f"{option} {text}: no column; there are {', '.join(known)}")
    return list(dict.fromkeys(names))


def default_columns(dataset: EpisodeDataset | GameDataset) -> list[str]:
    """Return the names of those metadata columns of a data set that commands print by default."""
    columns = COLUMNS_OF_GAMES if is_of_games(dataset) else COLUMNS
    return [*columns, *(name for name in dataset.metadata if name.startswith("custom_data/"))]


def _useful(names: list[str], rows: list[dict[str, Any]]) -> list[str]:
    """Return the columns that are not empty, with those of chunks only if a row is not a whole episode."""
    is_whole = all(row.get("is_complete") and row["length"] == row["episode_length"] for row in rows)
    left_out = {"episode_length", "episode_return", "is_complete"} if is_whole else {"episode_length"}
    left_out |= {"t_started"} if not any(row["t_started"] for row in rows) else set()
    return [name for name in names if name not in left_out and any(row[name] is not None for row in rows)]


def _plain(value: object) -> object:
    """Return a value of the metadata, with a tuple of ids as a text with commas."""
    return ", ".join(map(str, value)) if isinstance(value, tuple) else value


def _name_of(row: dict[str, Any], dataset: EpisodeDataset | GameDataset) -> str:
    """Return the shell word for `--episode` that names the episode of a row: its position, or else its id."""
    position = row[NTH]
    name = str(position) if position_of_episode(dataset, str(position)) == position else str(row["id"])
    return shlex.quote(name)


def _order(value: object) -> tuple[int, Any]:
    """Return the sort key of a value in a column of mixed types: numbers first, then NaN, texts and None."""
    if value is None:
        return 3, ""
    if isinstance(value, (int, float)):
        return (1, 0) if value != value else (0, value)
    return 2, str(value)
