"""SQL queries over the tables `steps` and `episodes` of a data set, executed by DuckDB.

DuckDB reads the Arrow columns without copying. Only the columns that a query names are computed. A query can read these
two tables and nothing else: no files, no network, no variables of the program, no settings of the database.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from episodes.errors import InvalidArgument, needing
from episodes.storage.arrow import pyarrow
from episodes.storage.search.episode_table import CUSTOM, EpisodeTable
from episodes.storage.search.sql_columns import StepTable

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

STEPS, EPISODES = "steps", "episodes"
_TABLE_FUNCTIONS = {"generate_series", "json_each", "json_tree", "range", "repeat", "unnest"}  # of their arguments only
_OF_SYSTEM = {"current_setting", "getenv", "getvariable", "pg_sleep", "sleep_ms", "write_log"}


def run(query: str, steps: Callable[[], StepTable], episodes: Callable[[], EpisodeTable]) -> Any:
    """Execute a SQL query over the tables `steps` and `episodes`, and return its result as a `pyarrow.Table`.

    Raises:
        MissingExtra: duckdb is not installed.
        InvalidArgument: the query is invalid, reads other tables or the state of the database, or names an unknown
            column; the message lists the tables or columns.
    """
    connection = database(os.getpid()).cursor()
    tree = _parse(connection, query)
    _check_sources(connection, query, tree)
    words = {*_strings(tree)}
    named = {word.lower() for word in words}
    known: list[Iterable[str]] = []  # columns, read only for an error
    try:
        if STEPS in named:
            table = steps()
            column_names = _needed_columns(table, words, _has_star(tree))
            known.append(table.names)
            connection.register(STEPS, table.table(column_names))
        if EPISODES in named:
            table = episodes()
            reads_custom_data = _has_star(tree) or any(word.startswith(CUSTOM) for word in named)
            names = [*table] if reads_custom_data else table.plain_names
            known.append(table)
            connection.register(EPISODES, table.to_arrow(_without_ambiguous(names, words)))
        return connection.sql(query).to_arrow_table()
    except duckdb().Error as error:
        hint = f"; columns: {', '.join(chain(*known))}" if known else f"; tables: {STEPS}, {EPISODES}"
        raise InvalidArgument(f"{query!r}: {str(error).partition(chr(10))[0]}{hint}") from None
    finally:
        connection.close()


@cache
def duckdb() -> Any:
    """Return the module `duckdb`. Raise `MissingExtra` if it is not installed."""
    with needing("sql", "SQL over episodes needs duckdb"):
        import duckdb as module
    pyarrow()
    return module


@cache
def database(process: int) -> Any:
    """Return the in-memory DuckDB database of this process. It cannot access files, and its
    settings cannot be changed."""
    return duckdb().connect(
        config={"enable_external_access": "false", "python_enable_replacements": "false", "lock_configuration": "true"}
    )


def _parse(connection: DuckDBPyConnection, query: str) -> Any:
    """Return the syntax tree of a SQL query. Raise `InvalidArgument` unless it is one SELECT."""
    ((text,),) = connection.execute("select json_serialize_sql(?)", [query]).fetchall()
    tree = json.loads(text)
    if tree["error"]:
        raise InvalidArgument(f"{query!r}: {tree['error_message']}; give a SELECT over {STEPS} and {EPISODES}")
    if len(tree["statements"]) != 1:
        raise InvalidArgument(f"{query!r}: {len(tree['statements'])} statements; give one SELECT")
    return tree["statements"][0]


def _check_sources(connection: DuckDBPyConnection, query: str, tree: object) -> None:
    """Raise `InvalidArgument` if a query reads what the database knows about itself, its process or the machine.

    Other tables need no check: DuckDB finds none, since it may not read files and variables.
    """
    for node in _nodes(tree):
        if not isinstance(node, dict):
            continue
        kind, name, source = node.get("type"), node.get("function_name"), None
        if kind == "TABLE_FUNCTION":
            function = node["function"]["function_name"]
            source = f"table function {function!r}" if function.lower() not in _TABLE_FUNCTIONS else None
        elif kind == "BASE_TABLE":
            path = [node["catalog_name"], node["schema_name"], node["table_name"]]
            is_of_system = any(path[:-1]) or path[-1].lower() in _system_views(connection)
            source = f"table {'.'.join(filter(None, path))!r}" if is_of_system else None
        elif kind == "SHOW_REF" and node["table_name"].startswith('"'):  # `show databases`, also in DuckDB 1.2
            name_of_list = node["table_name"].strip('"')
            source = f"list of {name_of_list}"
        elif isinstance(name, str) and name.lower() in _OF_SYSTEM:
            source = f"function {name!r}"
        if source is not None:
            raise InvalidArgument(f"{query!r}: the {source} is of the database system; tables: {STEPS}, {EPISODES}")


def _system_views(connection: DuckDBPyConnection) -> set[str]:
    """Return the names of views on the state of the database that a query can read without the name of a schema."""
    rows = connection.execute("select view_name from duckdb_views() where schema_name != 'information_schema'")
    return {name.lower() for (name,) in rows.fetchall()}


def _nodes(tree: object) -> Iterator[Any]:
    """Yield all values nested in a JSON value, and the value itself."""
    yield tree
    for part in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(part)


def _strings(tree: object) -> Iterator[str]:
    """Yield all strings in the syntax tree of a query. They include the names of all columns and tables."""
    return (node for node in _nodes(tree) if isinstance(node, str))


def _has_star(tree: object) -> bool:
    return any(isinstance(node, dict) and node.get("class") == "STAR" for node in _nodes(tree))


def _needed_columns(table: StepTable, words: set[str], star: bool) -> list[str]:
    """Return the names of the columns of the table `steps` that a query needs, given all `words` in the query, and
    whether it has a `*` (`star`)."""
    by_lower: dict[str, list[str]] = {}
    for name in table.names:
        by_lower.setdefault(name.lower(), []).append(name)
    columns = dict.fromkeys(table.plain if star else ())
    for word in sorted(words):
        columns |= dict.fromkeys([word] if table.resolve(word) is not None else _in_any_case(word, by_lower))
    return _without_ambiguous(columns, words) or ["step"]


def _without_ambiguous(names: Iterable[str], words: set[str]) -> list[str]:
    """Return column names, except names that differ only in case from a name in the query, because SQL ignores case.

    Raises:
        InvalidArgument: the query matches several of these names, or none of them exactly.
    """
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(name.lower(), []).append(name)
    lowered, result = {word.lower() for word in words}, list[str]()
    for lower, group in alike.items():
        written = [name for name in group if name in words]
        if len(group) > 1 and lower in lowered and len(written) != 1:
            raise InvalidArgument(f"{' and '.join(map(repr, group))} are one name to SQL: ask for one at a time")
        result += written if len(group) > 1 and written else group
    return result


def _in_any_case(word: str, by_lower: dict[str, list[str]]) -> list[str]:
    """Return the columns whose names equal `word` if case is ignored. An index at the end, such as "/2", is kept. The
    list is empty if there is no such column.
    """
    name, numbers = word.lower(), ""
    while name not in by_lower:
        name, slash, number = name.rpartition("/")
        if not slash or not number.isdecimal():
            return []
        numbers = f"/{number}{numbers}"
    return [known + numbers for known in by_lower[name]]
