"""Copy the episodes that satisfy a condition, such as "length > 10", to a new data set."""

from __future__ import annotations

import ast
import operator
import re
import tempfile
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from episodes.errors import InvalidArgument
from episodes.storage.dataset import EpisodeDataset, Table
from episodes.storage.files import local_path, whole_directory
from episodes.storage.games import GameDataset, open_dataset
from episodes.storage.header import NAME, create_or_load_header
from episodes.storage.remote.remote_directory import RemoteDirectory, is_remote
from episodes.storage.remote.upload import upload
from episodes.storage.search.episode_table import CUSTOM
from episodes.storage.writer import EpisodeWriter

GAMES = 100  # that are written at a time
POSITION = "nth"  # column with the position of an episode in the data set
OF_PAGES = ("findings", "update", "worker", "log_ratio", "advantage")  # columns that only pages have
OF_STEPS = ("observations", "actions", "rewards", "infos", "extra_model_outputs")  # names that are no columns


def copy(source: str | Path | EpisodeDataset | GameDataset, target: str | Path, where: str | None = None) -> int:
    """Copy all episodes that satisfy the condition `where`, such as "length > 10", to a new data set.

    The target appears when everything is written. A copy that was killed can be repeated. Both may be remote
    (`s3://bucket/data`).

    Args:
        source: a data set or its path. Of games with agents of several kinds, a path or a `GameDataset`.
        target: path of the new data set.
        where: a condition on columns of `EpisodeDataset.metadata`: `"is_complete and custom_data/prompt == 3"`. A key
            that is no Python name is quoted: `custom_data/'my key'`. `nth` is the position in the source, from 0:
            `"nth < 100"`. None copies all episodes.

    Returns:
        The number of copied episodes or games.

    Raises:
        InvalidArgument: the target exists, or the condition is invalid.
    """
    if is_remote(target):
        return _copy_to_remote(source, str(target), where)
    target = local_path(target)
    dataset = source if isinstance(source, (EpisodeDataset, GameDataset)) else open_dataset(source)
    if where is not None:
        dataset = dataset.select(condition(where))
    if isinstance(dataset, GameDataset):
        _copy_games(dataset, target)
        return len(dataset)
    with whole_directory(target) as draft:
        create_or_load_header(draft, replace(dataset.stored_header, id=None))
        with EpisodeWriter(draft) as writer:
            for pack in dataset.packs():
                writer.add(pack)
    return len(dataset)


def _copy_games(games: GameDataset, target: Path) -> None:
    """Copy games to a new data set of the same form."""
    facts: dict[str, Any] = {"env_spec": games.env_spec, "metadata": games.user_metadata}
    with whole_directory(target) as draft, EpisodeWriter(draft, **facts, several_kinds=games.has_kinds) as writer:
        for start in range(0, len(games), GAMES):
            writer.add(list(games[start : start + GAMES]))


def _copy_to_remote(source: str | Path | EpisodeDataset | GameDataset, target: str, where: str | None) -> int:
    """Copy episodes to a remote data set with the URL `target`, by way of a temporary local one,
    and return the number of episodes.

    Raises:
        InvalidArgument: there is a data set already.
    """
    if NAME in RemoteDirectory(target).sizes():
        raise InvalidArgument(f"{target} exists already; give another path, or use upload to add the missing shards")
    with tempfile.TemporaryDirectory() as folder:
        num = copy(source, Path(folder) / "data", where)
        upload(Path(folder) / "data", target)
    return num


def condition(text: str) -> Callable[[Table], np.ndarray]:
    """Compile a condition such as "length > 10" to a function that takes a table of n episodes and
    returns a mask, bool [n].

    Conditions have column names, numbers, strings, comparisons, arithmetic, `and`, `or` and `not`. The column `nth` is
    the position in the table, from 0: that of `dataset[nth]`. Arithmetic is that of IEEE 754 with float64: a column's
    number divided by a column's 0 is infinite or NaN, with the opposite sign for -0. A division by 0 that reads no
    column is an error.

    >>> condition("1 < length <= 3 and id != 'b'")({"length": np.array([1, 2, 3]), "id": np.array(["a", "b", "c"])})
    array([False, False,  True])
    >>> condition("nth < 1")({"length": np.array([1, 2, 3])})
    array([ True, False, False])

    Raises:
        InvalidArgument: the text is no such condition. The function raises it for an unknown column.
    """
    try:
        source, columns = _as_python(text)
        body = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        raise InvalidArgument(f"{text!r} is no condition: {error.args[0]}{_hint(text)}") from None
    except (MemoryError, RecursionError):
        raise InvalidArgument(f"{text[:60]!r} ... is no condition: {_TOO_DEEP}") from None

    def picks(table: Table) -> np.ndarray:
        """Return which episodes satisfy the condition, bool [n]. Raise `InvalidArgument` if its types do not fit the
        columns.
        """
        num = len(next(iter(table.values())))
        try:
            named = _NamedColumns(ChainMap(table, {POSITION: np.arange(num)}), columns, source)  # type: ignore[arg-type]
            with np.errstate(all="ignore"):  # numbers of a column divided by 0 are infinite or NaN
                return np.broadcast_to(np.asarray(_flags(body, named), bool), num).copy()
        except RecursionError:
            raise InvalidArgument(f"{text[:60]!r} ... is no condition: {_TOO_DEEP}") from None
        except InvalidArgument as error:
            raise InvalidArgument(f"{error}{'' if 'in quotes' in str(error) else _hint(text)}") from None
        except (TypeError, ArithmeticError) as error:  # of words and numbers, of None
            raise InvalidArgument(f"the condition {text!r} cannot be applied to these episodes: {error}") from None

    return picks


class _Part(NamedTuple):
    """Side of a comparison: its node, the words that it is written with, its value, and the type of that."""

    node: ast.expr
    words: str
    value: Any
    type: str
    is_unknown: bool = False  # the name of no column, whose value is not known


class _NamedColumns(NamedTuple):
    """Table of episodes, with the dict that maps names in a condition to the table's column names."""

    table: Mapping[str, np.ndarray]
    columns: dict[str, str]
    source: str

    def words(self, node: ast.expr) -> str:
        """Return a part of the condition as it is written."""
        text = ast.get_source_segment(self.source, node) or ast.unparse(node)
        return re.sub(r"\w+", lambda word: self.columns.get(word[0], word[0]), text)

    def part(self, node: ast.expr) -> _Part:
        """Evaluate a side of a comparison. The name of a column that the table does not have gets no value."""
        words = self.words(node)
        if isinstance(node, ast.Name) and self.columns.get(node.id, node.id) not in self.table:
            return _Part(node, words, None, "", is_unknown=True)
        value = _evaluate(node, self)
        return _Part(node, words, value, _type_of(value))

    def column(self, name: str) -> np.ndarray:
        """Return the table column for a name in the condition. Raise `InvalidArgument` if the table has no such column,
        or one with other values than numbers, flags, texts and None, such as the agents of games.
        """
        column = self.columns.get(name, name)
        if column not in self.table:
            raise InvalidArgument(self.unknown(column))
        values = self.table[column]
        for value in values if values.dtype.kind == "O" else values[:1]:
            if not isinstance(value, _COMPARABLE) or isinstance(value, np.timedelta64):
                raise InvalidArgument(
                    f"{column} has a {type(value).__name__}; conditions know numbers, flags and texts"
                )
        return values

    def unknown(self, column: str) -> str:
        """Return the error of a name that the table does not have."""
        if column in OF_PAGES:
            hint = f"{column!r} is a column of pages alone; "
        elif column in OF_STEPS:
            hint = f"{column} have a value for each step, columns one for each episode, such as custom_data/key; "
        else:
            hint = _suggestion(column, list(self.table))
        return f"unknown column {column!r}; {hint}the columns are {', '.join(self.table)}"


_TOO_DEEP = "it is nested too deeply"
_TOKEN = re.compile(
    r"[ \t\n\r\f\v]*(?:"
    r"custom_data[ \t\n\r\f\v]*/[ \t\n\r\f\v]*(?P<custom>[A-Za-z_]\w*|'[^']*'|\"[^\"]*\")"
    r"|(?P<number>\.?\d(?:[eE][-+](?=\d)|[\w.])*)|(?P<text>'[^']*'|\"[^\"]*\")|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign><=|>=|==?|!=|[-+*/%<>()])|(?P<end>$))",
    re.ASCII,
)
"""Tokens of conditions, the same as those of the pages' `condition.js`."""
_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_PADDED = re.compile(r"0\d*[1-9][\deE+-]*", re.ASCII)  # such as 007
_UNQUOTED = re.compile(
    r"'[^']*'|\"[^\"]*\"|\b([A-Za-z_]\w*) *(==?|!=) *(\w+(?:[-.:/]\w+)+)(?= *(?:$|\)|and\b|or\b))", re.ASCII
)
_COMPARABLE = (str, int, float, np.bool_, np.integer, np.floating, type(None))
_MOST_EXACT = 2.0**53  # from which on not every integer is a float64


def _as_python(text: str) -> tuple[str, dict[str, str]]:
    """Convert a condition to a Python expression, in which identifiers replace column names such as `custom_data/x`.
    Return it and the names of columns by identifier.

    Raises:
        InvalidArgument: a part of the text is no token of conditions.
    """
    columns: dict[str, str] = {}
    words: list[str] = []
    stem, at, was_text = "column_", 0, False
    while stem in text:  # a name of the condition
        stem += "_"
    while (match := _TOKEN.match(text, at)) and match.lastgroup != "end":
        kind, at = match.lastgroup or "end", match.end()
        word = match[kind]
        if kind == "number":
            _check_number(word, text)
        elif kind == "text" and was_text:  # which Python would join
            raise InvalidArgument(f"{text!r} is no condition: {word} is out of place")
        elif kind == "name" and word not in ("and", "or", "not") and word.lower() in ("and", "or", "not"):
            raise InvalidArgument(f"{text!r} is no condition: {word} is out of place; did you mean {word.lower()}")
        elif kind == "custom" or (kind == "name" and word not in ("and", "or", "not", "True", "False")):
            column = column_name(match[0])
            word = f"{stem}{len(columns)}"
            columns[word] = column
        words.append(repr(word[1:-1]) if kind == "text" else "==" if word == "=" else word)
        was_text = kind == "text"
    if match is None:
        raise InvalidArgument(f"{text!r} is no condition: cannot read {text[at:].strip()!r}{_hint(text)}")
    return " ".join(words), columns


def column_name(word: str) -> str:
    """Return the name of the column that a word of a condition means. Other texts stay as they are.

    >>> column_name("length"), column_name("custom_data/'my key'")
    ('length', 'custom_data/my key')
    """
    match = _TOKEN.fullmatch(word)
    key = match and match["custom"]
    if not key:
        return word.strip()
    return CUSTOM + (key[1:-1] if key[0] in "'\"" else key)


def _suggestion(word: str, names: list[str]) -> str:
    """Return the most similar name as a question, or "" if more than a third of its characters differ, in any case.
    Pages have the same rule.
    """

    def share(name: str) -> float:
        """Return the share of a name's characters that differ."""
        return _edits(word.lower(), name.lower()) / max(len(name), 1)

    name = min([*names, "True", "False"], key=share)
    return f"did you mean {name}; " if share(name) <= 1 / 3 else ""


def _edits(a: str, b: str) -> int:
    """Return the fewest insertions, removals and replacements of characters from one text to the other."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        after = [i + 1]
        for j, y in enumerate(b):
            after.append(min(after[j] + 1, row[j + 1] + 1, row[j] + (x != y)))
        row = after
    return row[-1]


def _check_number(word: str, text: str) -> None:
    """Raise `InvalidArgument` if a word of a condition that begins with a digit is no number, or no exact one."""
    if not _NUMBER.fullmatch(word) or _PADDED.fullmatch(word):
        raise InvalidArgument(f"{word} is no number{_hint(text) or f'; a text is in quotes: {word!r}'}")
    if word.isdigit() and float(word) >= _MOST_EXACT:
        raise InvalidArgument(
            f"{word[:40]} is above 2**53, where conditions do not tell each integer from the next one; for a limit "
            f"that is not exact write {word[:40]}.0"
        )


def _hint(text: str) -> str:
    """Return what to write if a condition compares a column with a text that has no quotes, else ""."""
    for match in _UNQUOTED.finditer(text):
        name, sign, word = match.groups()
        if name and not _NUMBER.fullmatch(word):
            return f"; a text is in quotes: {name} {sign} {word!r}"
    return ""


def _type_of(value: Any) -> str:
    """Return "text", "number" or "flag", or "" for values of several types or without any but None."""
    array = np.asarray(value)
    types = {type(one) for one in array.ravel().tolist() if one is not None} if array.dtype.kind == "O" else set()
    names = {"text" if issubclass(one, str) else "flag" if one is bool else "number" for one in types}
    names = names or {"b": {"flag"}, "U": {"text"}, "O": {""}}.get(array.dtype.kind, {"number"})
    return names.pop() if len(names) == 1 else ""


def _flags(node: ast.expr, table: _NamedColumns) -> Any:
    """Evaluate a part of a condition that is true or false. Raise `InvalidArgument` for a text."""
    value = _evaluate(node, table)
    if _type_of(value) == "text":
        raise InvalidArgument(f"{table.words(node)} is a text, no condition; compare it, such as: ending == 'cut'")
    values = np.asarray(value)
    return np.fromiter(map(bool, values.ravel().tolist()), bool, values.size).reshape(values.shape)


def _numbers(node: ast.expr, table: _NamedColumns) -> Any:
    """Evaluate an operand of arithmetic as float64, in which a flag is 0 or 1. Raise `InvalidArgument` for a text.

    Pages compute with float64, too, and no result wraps around.
    """
    value = _evaluate(node, table)
    if _type_of(value) == "text":
        raise InvalidArgument(f"{table.words(node)} is a text or None, no number")
    return np.asarray(np.asarray(value) * 1.0, np.float64)  # + 0.0 would make 0 of -0


def _compared(left: _Part, op: ast.cmpop, right: _Part, table: _NamedColumns) -> Any:
    """Compare two parts of a condition.

    Raises:
        InvalidArgument: one of them is a text and the other one is not, or is no column. The message says what to
            write.
    """
    sign, compare = _COMPARE[type(op)]
    for one, other in ((left, right), (right, left)):
        if one.type != "text" or not (other.is_unknown or other.type in ("number", "flag")):
            continue
        if other.is_unknown:
            known = table.unknown(other.words)
        else:
            known = f"{sign} compares numbers with numbers, and texts with texts, but {one.words} is a text and "
            known += f"{other.words} a {other.type}"
        sides = (one.words, repr(other.words)) if other is right else (repr(other.words), one.words)
        is_word = re.fullmatch(r"[\w.]+", other.words) and not isinstance(one.node, ast.Constant)
        raise InvalidArgument(f"{known}; a text is in quotes: {f' {sign} '.join(sides)}" if is_word else known)
    return compare(*(_evaluate(part.node, table) if part.is_unknown else _as_floats(part) for part in (left, right)))


def _as_floats(part: _Part) -> Any:
    """Return the value of a part of a comparison, in which numbers are float64, as on pages. Texts and None stay as
    they are.
    """
    values = np.asarray(part.value)
    if values.dtype.kind != "O":
        return values if part.type == "text" else values.astype(np.float64)
    kinds = (int, float, np.number, np.bool_)
    same = [float(value) if isinstance(value, kinds) else value for value in values.ravel().tolist()]
    return np.fromiter(same, object, len(same)).reshape(values.shape)


_COMPARE = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}
_COMBINE = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.And: np.logical_and,
    ast.Or: np.logical_or,
    ast.Not: np.logical_not,
    ast.USub: operator.neg,
}


def _evaluate(node: ast.expr, table: _NamedColumns) -> Any:
    """Evaluate one node of a condition's syntax tree on a table of n episodes. Return an array [n] or a scalar.

    Raises:
        InvalidArgument: the node is of a kind that conditions do not have, such as a call.
    """
    of = _COMBINE.get(type(getattr(node, "op", None)))
    match node:
        case ast.Constant(value=value) if isinstance(value, (int, float, str, bool)):
            return value
        case ast.Name(id=name):
            return table.column(name)
        case ast.BoolOp(values=values) if of:
            return reduce(of, (_flags(value, table) for value in values))
        case ast.UnaryOp(operand=operand) if of:
            return of((_flags if of is np.logical_not else _numbers)(operand, table))
        case ast.BinOp(left=left, op=op, right=right) if of:
            a, b = _numbers(left, table), _numbers(right, table)
            if isinstance(op, ast.Div | ast.Mod) and b.ndim == 0 and b == 0:  # it reads no column
                raise InvalidArgument(f"{table.words(node)}: a division by 0")
            return of(a, b)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARE for op in ops):
            parts = [table.part(part) for part in (left, *others)]
            pairs = zip(parts, ops, parts[1:], strict=False)
            return reduce(np.logical_and, [_compared(a, op, b, table) for a, op, b in pairs])
    raise InvalidArgument(f"{ast.unparse(node)!r}: conditions have names, numbers, strings, comparisons, and, or, not")
