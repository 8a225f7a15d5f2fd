"""Files that hold one table, read in parts: Parquet, Arrow, CSV and lines of JSON, the last two also with gzip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

from episodes.converters.contents import Contents, open_text
from episodes.converters.parquet_files import groups_of, schema_of
from episodes.errors import UnreadableData
from episodes.storage.arrow import as_unreadable_data, pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

Groups = Callable[[list[str]], Iterator[Any]]
"""Function from names of columns to the parts of a table with these columns, as Arrow tables."""
_BLOCK = 1 << 20  # bytes of a file of text, or of an Arrow table, that are one part


def table_of_file(contents: Contents) -> tuple[list[str], Groups]:
    """Return the names of all columns of a file with a table, and a function that reads it in parts.

    The types of a column of text files are those that fit all rows. They are found by reading the file once.

    Args:
        contents: the file, whose kind is one of `TABLES`.

    Raises:
        UnreadableData: the file is damaged, or two columns have one name.
    """
    openers = {"parquet": _open_parquet, "arrow": _open_arrow, "csv": _open_csv, "jsonl": _open_lines}
    with as_unreadable_data(str(contents.path)):
        names, groups = openers[contents.kind](contents)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UnreadableData(
            f"{contents.path}: several columns are named {', '.join(map(repr, twice))}; give each a name of its own"
        )
    return names, groups


def _open_parquet(contents: Contents) -> tuple[list[str], Groups]:
    return schema_of(contents.path).names, lambda names: groups_of(contents.path, names)


def _open_arrow(contents: Contents) -> tuple[list[str], Groups]:
    """Open Arrow's format of files or of streams. The file is mapped, not loaded."""
    pa = pyarrow()

    def groups(names: Sequence[str] | None) -> Iterator[Any]:
        with as_unreadable_data(str(contents.path)), pa.memory_map(str(contents.path)) as file:
            if contents.is_stream:
                reader = pa.ipc.open_stream(file)
                batches = iter(reader)
            else:
                reader = pa.ipc.open_file(file)
                batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
            if names is None:
                yield reader.schema
                return
            for batch in batches:
                batch = batch.select(names)
                batch.validate(full=True)  # damaged offsets would end the process when values are read
                table = without_views(pa.Table.from_batches([batch]))
                rows = max(1, len(table) * _BLOCK // max(1, table.nbytes))
                for start in range(0, len(table), rows):
                    yield table.slice(start, rows)

    return next(groups(None)).names, groups


def without_views(table: pa.Table) -> Any:
    """Return a table with text and bytes in Arrow's older layout, which all functions of pyarrow read."""
    pa = pyarrow()
    for number, field in enumerate(table.schema):
        for is_view, kind in ((pa.types.is_string_view, pa.string()), (pa.types.is_binary_view, pa.binary())):
            if is_view(field.type):
                table = table.set_column(number, field.name, table[number].cast(kind))
    return table


def _open_csv(contents: Contents) -> tuple[list[str], Groups]:
    """Open a table of text. Spaces around the names of columns are removed."""
    from pyarrow import csv

    pa = pyarrow()

    @contextmanager
    def read(types: dict[str, Any], wanted: list[str] | None = None) -> Iterator[Any]:
        options = csv.ConvertOptions(strings_can_be_null=True, column_types=types, include_columns=wanted or [])
        with (
            open_text(contents.path) as file,
            csv.open_csv(
                file,
                read_options=csv.ReadOptions(block_size=_BLOCK, use_threads=False),
                parse_options=csv.ParseOptions(delimiter=contents.delimiter, newlines_in_values=True),
                convert_options=options,
            ) as reader,
        ):
            yield reader

    with read({}) as reader:
        stored = reader.schema.names
    types = {}
    if len(set(stored)) == len(stored):
        with read(dict.fromkeys(stored, pa.string())) as reader:
            types = dict(zip(stored, _types_of_texts(reader, len(stored)), strict=True))
    names = [name.strip() for name in stored]

    def groups(wanted: list[str]) -> Iterator[Any]:
        own = [stored[names.index(name)] for name in wanted]
        with as_unreadable_data(str(contents.path)), read(types, own) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch]).rename_columns(wanted)

    return names, groups


def _types_of_texts(batches: Sequence[pa.RecordBatch], num_columns: int) -> list[Any]:
    """Return the first type to which all texts of a column can be converted, for each column.

    Args:
        batches: Arrow batches with columns of texts.
        num_columns: number of columns.
    """
    pa = pyarrow()
    from pyarrow import compute

    ladder = [pa.int64(), pa.bool_(), pa.date32(), pa.timestamp("s"), pa.timestamp("ns")]
    ladder += [pa.timestamp("s", "UTC"), pa.timestamp("ns", "UTC"), pa.float64()]
    left = [[pa.null(), *ladder, pa.string()] for _ in range(num_columns)]

    def fits(texts: Any, kind: Any) -> bool:
        if pa.types.is_string(kind):
            return True
        if pa.types.is_null(kind):
            return texts.null_count == len(texts)
        try:
            texts.slice(0, 50).cast(kind)  # a cast of many texts that fails is slow
            texts.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return False
        return True

    for batch in batches:
        for number in range(num_columns):
            texts = compute.utf8_trim(batch.column(number), " \t")  # type: ignore[attr-defined]
            left[number] = [kind for kind in left[number] if fits(texts, kind)]
    return [kinds[0] for kinds in left]


def _open_lines(contents: Contents) -> tuple[list[str], Groups]:
    """Open lines of JSON. A key that a line lacks is missing there."""
    from pyarrow import json

    pa = pyarrow()

    def read(block: bytes, schema: Any = None) -> Any:
        options = json.ReadOptions(block_size=len(block) + 1, use_threads=False)
        ignore = "infer" if schema is None else "ignore"
        parsing = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=ignore)
        return json.read_json(BytesIO(block), read_options=options, parse_options=parsing)

    types: dict[str, Any] = {}
    for block in _blocks_of_lines(contents):
        for field in read(block).schema:
            types[field.name] = _wider(types.get(field.name, field.type), field.type, field.name)

    def groups(wanted: list[str]) -> Iterator[Any]:
        schema = pa.schema([(name, types[name]) for name in wanted])
        with as_unreadable_data(str(contents.path)):
            for block in _blocks_of_lines(contents):
                yield read(block, schema)

    return list(types), groups


def _blocks_of_lines(contents: Contents) -> Iterator[bytes]:
    """Yield blocks of whole lines, without blank ones."""
    with open_text(contents.path) as file:
        waiting: list[bytes] = []
        while data := file.read(_BLOCK):
            head, line_end, tail = data.rpartition(b"\n")
            if line_end and (block := b"".join((*waiting, head, line_end))).strip():
                yield block
            waiting = [tail] if line_end else [*waiting, data]
        if (block := b"".join(waiting)).strip():
            yield block


def _wider(first: pa.DataType, second: pa.DataType, name: str) -> Any:
    """Return the type that holds the values of two types of JSON."""
    pa = pyarrow()
    if first.equals(second):
        return first
    kinds = {first, second}
    if pa.string() in kinds and any(map(pa.types.is_temporal, kinds)):
        return pa.string()
    return pa.unify_schemas(
        [pa.schema([(name, kind)]) for kind in (first, second)], promote_options="permissive"
    ).field(0).type  # fmt: skip
