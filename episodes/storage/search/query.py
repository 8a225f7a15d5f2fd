"""SQL by DuckDB over the tables `steps` and `episodes` of a data set.

DuckDB reads the Arrow columns where they lie. Only the columns that a query names are made. It sees these two tables
and nothing else: no files, no network, no variables of the program.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from episodes.errors import InvalidArgument, MissingExtra
from episodes.storage.arrow import pyarrow
from episodes.storage.search.episode_table import CUSTOM, EpisodeTable
from episodes.storage.search.step_table import StepTable

STEPS, EPISODES = "steps", "episodes"


def run(query: str, steps: Callable[[], StepTable], episodes: Callable[[], EpisodeTable]) -> Any:
    """What a query over the two tables gives, as a `pyarrow.Table`.

    Raises:
        MissingExtra: without duckdb.
        InvalidArgument: the query is none, or names what is not there; the message lists what there is.
    """
    connection = database(os.getpid()).cursor()
    tree = _parsed(connection, query)
    named = {word.lower() for word in _strings(tree)}
    known: list[str] = []
    try:
        if STEPS in named:
            table = steps()
            wanted = _columns(table.resolve, table.plain, named, _has_star(tree))
            known += table.names
            connection.register(STEPS, table.table(wanted))
        if EPISODES in named:
            table = episodes()
            facts = table.custom_names if _has_star(tree) or any(word.startswith(CUSTOM) for word in named) else []
            known += [*table, *facts]
            connection.register(EPISODES, table.to_arrow([*table, *facts]))
        return connection.sql(query).to_arrow_table()
    except duckdb().Error as error:
        told = f"; columns: {', '.join(known)}" if known else f"; tables: {STEPS}, {EPISODES}"
        raise InvalidArgument(f"{query!r}: {str(error).partition(chr(10))[0]}{told}") from None
    finally:
        connection.close()


@cache
def duckdb() -> Any:
    """The module `duckdb`; `MissingExtra` where it is not installed."""
    try:
        import duckdb as module
    except ImportError as error:
        raise MissingExtra(
            "SQL over episodes needs duckdb; install the extra: pip install 'rl-episodes[sql]'"
        ) from error
    pyarrow()
    return module


@cache
def database(process: int) -> Any:
    """An empty database in memory, that reads nothing else and cannot be told to; one for each process."""
    return duckdb().connect(
        config={"enable_external_access": "false", "python_enable_replacements": "false", "lock_configuration": "true"}
    )


def _parsed(connection: Any, query: str) -> Any:
    """The tree of a query of one SELECT."""
    ((told,),) = connection.execute("select json_serialize_sql(?)", [query]).fetchall()
    found = json.loads(told)
    if found["error"]:
        raise InvalidArgument(f"{query!r}: {found['error_message']}; give a SELECT over {STEPS} and {EPISODES}")
    if len(found["statements"]) != 1:
        raise InvalidArgument(f"{query!r}: {len(found['statements'])} statements; give one SELECT")
    return found["statements"][0]


def _nodes(tree: Any) -> Iterator[Any]:
    """All values in a tree of JSON."""
    yield tree
    for part in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(part)


def _strings(tree: Any) -> Iterator[str]:
    """Every name and word of a query. There is no harm in a column that is made for nothing."""
    return (node for node in _nodes(tree) if isinstance(node, str))


def _has_star(tree: Any) -> bool:
    return any(isinstance(node, dict) and node.get("class") == "STAR" for node in _nodes(tree))


def _columns(resolve: Callable[[str], Any], plain: list[str], named: set[str], star: bool) -> list[str]:
    """The columns of steps that a query needs, at least the number of the step."""
    by_lower = {name.lower(): name for name in plain}
    found = {by_lower.get(word, word): None for word in sorted(named) if word in by_lower or resolve(word) is not None}
    return [*dict.fromkeys((*(plain if star else ("step",) if not found else ()), *found))]
