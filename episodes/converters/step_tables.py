"""Conversion of packs to tables with one row per step and back, for `to_parquet` and `to_pandas`.

    episode_id  t  is_last  terminated  truncated  observations  actions  rewards  last_observations
    a           0  False    False       False      o_0           a_0      r_0      null
    a           1  True     True        False      o_1           a_1      r_1      o_2
    b           0  False    ...

The observation after the last step of a chunk is on the row of that step. Infos belong to the observation on their
row: `infos/KEY` and `last_infos/KEY`. The schema's metadata has the description of all columns, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.converters.action_mapping import export_actions
from episodes.converters.columns import array_of, column_of, has_column, rare_column, spread
from episodes.converters.loss_report import LossReport, dropped_facts, keep_supported
from episodes.converters.step_order import codes_of
from episodes.converters.table_infos import info_columns, kind_of_infos, read_infos, storable_infos
from episodes.errors import UnreadableData, WrongType
from episodes.facts.policy_versions import UNKNOWN, VersionColumn
from episodes.pack import EpisodePack
from episodes.storage import space_json
from episodes.storage.arrow import pyarrow
from episodes.storage.track_schema import assemble, is_observed, pack_columns, structure_of
from episodes.tracks.infos import msgpack_codec

if TYPE_CHECKING:
    import pyarrow as pa

KEY = b"rl-episodes-steps"  # key in the schema's metadata
OTHER = "other"  # msgpack column, on the first row of a chunk: ids that are not text, custom data; a description
DESCRIPTION, TYPES = "description", "types"  # keys of the first document in `OTHER`
_NEEDED = {"episode_id", "t", "is_last", "terminated", "truncated", OTHER}
_IDS = {"id_": "episode_id", **{name: name for name in ("agent_id", "module_id", "multi_agent_episode_id")}}
_FACTS = (*_IDS, "t_started", "policy_versions", "acting_pipeline")


def table_of(pack: EpisodePack, report: LossReport) -> Any | None:
    """Convert a pack to an Arrow table with one row per step, or to None if it has no steps. Losses go to `report`.

    Raises:
        WrongType: a track of complex numbers, objects or another unsupported dtype.
    """
    pack = export_pack(pack, report)
    if not len(pack):
        return None
    steps, observed = pack.step_rows(), pack.observation_rows()
    last, ends = pack.observation_offsets[1:] - 1, np.cumsum(pack.lengths) - 1
    columns = fact_columns(pack, report)
    track_kinds = {}
    for path, array in checked_columns(pack):
        track_kinds[path] = [array.dtype.str, list(array.shape[1:])]
        columns[path] = column_of(array[observed if is_observed(path) else steps])
        if is_observed(path):
            columns[f"last_{path}"] = rare_column(array[last], ends, pack.num_steps)
    infos = storable_infos(pack, report)
    columns |= info_columns(infos, "infos/", observed)
    columns |= info_columns(infos, "last_infos/", last, (ends, pack.num_steps))
    info_kinds = {path: kind_of_infos(column) for path, column in infos.items()}
    about = {"structure": structure_of(pack_columns(pack)), "tracks": track_kinds, "infos": info_kinds}
    about |= _spaces(pack, report)
    columns[OTHER] = _with_description(columns, json.dumps(about))
    table = pyarrow().table(columns)
    return table.replace_schema_metadata({KEY: json.dumps(about)})


def _with_description(columns: dict[str, Any], about: str) -> Any:
    """Return the column `OTHER`, with the description of all columns and their Arrow types on its first row.

    Other libraries drop the metadata of a schema, and change types, when they write a table again.
    """
    pa = pyarrow()
    num = len(columns["t"])
    other = columns.pop(OTHER, pa.nulls(num, pa.binary()))
    types = pa.schema([(name, column.type) for name, column in columns.items()])
    document = msgpack_codec.decode(other[0].as_py()) if other[0].is_valid else {}
    document |= {DESCRIPTION: about, TYPES: types.serialize().to_pybytes()}
    return pa.concat_arrays([pa.array([msgpack_codec.encode(document, "")], pa.binary()), other.slice(1)])


def has_description(schema: pa.Schema) -> bool:
    """Return True if a schema is of a table that `table_of` made, or of one that another library wrote again."""
    return KEY in (schema.metadata or {}) or set(schema.names) >= _NEEDED


def restored(table: pa.Table, tables: Iterable[Any]) -> Any:
    """Return a table that `table_of` made as it was before another library changed its types and dropped its metadata.

    Args:
        table: the table. If it has its metadata, it is returned as it is.
        tables: tables with the column `OTHER`, one of which has the description.

    Raises:
        UnreadableData: none of them has the description.
    """
    if KEY in (table.schema.metadata or {}):
        return table
    pa = pyarrow()
    compute: Any = import_module("pyarrow.compute")
    documents = (value for part in tables for value in part[OTHER].drop_null().to_pylist())
    decoded = map(msgpack_codec.decode, documents)
    document = next((document for document in decoded if DESCRIPTION in document), None)
    if document is None:
        raise UnreadableData(
            f"the column {OTHER!r} has no description of the table, which is on its first row; keep all rows, or name "
            "the columns (format='table')"
        )
    about = json.loads(document[DESCRIPTION])
    is_last = table["is_last"].cast(pa.bool_())
    for field in pa.ipc.read_schema(pa.py_buffer(document[TYPES])):
        if field.name not in table.column_names:
            raise UnreadableData(
                f"the column {field.name!r} is missing; keep all columns, or name them (format='table')"
            )
        column = table[field.name]
        if not pa.types.is_nested(field.type) and column.type != field.type:
            if pa.types.is_floating(column.type) and not pa.types.is_floating(field.type):
                column = compute.if_else(compute.is_nan(column), None, column)
            column = column.cast(field.type)
        if pa.types.is_floating(field.type) and column.null_count:  # pandas has one value for NaN and null
            if field.name in about["tracks"]:
                column = column.fill_null(float("nan"))
            elif field.name.removeprefix("last_") in about["tracks"]:
                missing = compute.and_(is_last, column.is_null())
                column = compute.if_else(missing, pa.scalar(float("nan"), field.type), column)
        table = table.set_column(table.column_names.index(field.name), field.name, column)
    return table.replace_schema_metadata({KEY: document[DESCRIPTION]})


def export_pack(pack: EpisodePack, report: LossReport) -> EpisodePack:
    """Return the episodes of a pack that have steps, with the environment's actions. Losses go to `report`."""
    pack = export_actions(pack, report)
    report_chunk_losses(pack.lengths, pack.lookbacks, pack.ids.tolist(), report)
    return pack if pack.lengths.all() else pack.select(pack.lengths > 0)


def report_chunk_losses(
    lengths: np.ndarray, lookbacks: np.ndarray, ids: Sequence[Any] | np.ndarray, report: LossReport
) -> None:
    """Report that episodes without a step and lookbacks are lost, because tables store one row per step."""
    for i in np.flatnonzero(lengths == 0).tolist():
        report.add("the episode", "a table has no rows of an episode without a step", ids[i])
    for i in np.flatnonzero((lookbacks > 0) & (lengths > 0)).tolist():
        report.add("lookback", "a table has a row for each step of a chunk alone", ids[i])


def checked_columns(pack: EpisodePack) -> Iterator[tuple[str, np.ndarray]]:
    """Yield path and array of each time series of a pack. Raise an error if a table cannot store its dtype.

    Raises:
        WrongType: a track of complex numbers, objects or another unsupported dtype.
    """
    for path, array in pack.tracks.items():
        if not has_column(array):
            raise WrongType(f"track {path!r} has dtype {array.dtype}: tables hold numbers, bools, times and text")
        yield path, array


def _spaces(pack: EpisodePack, report: LossReport) -> dict[str, Any]:
    """Return the pack's spaces as JSON values, by name. A space that JSON cannot represent is left out, and noted in
    `report`.
    """
    documents_by_name = {}
    for name in ("observation_space", "action_space"):
        try:
            documents_by_name[name] = space_json.to_json(getattr(pack, name), name)
        except WrongType as error:
            report.add(name, str(error), pack.facts.at(0).id_)
    return documents_by_name


def fact_columns(pack: EpisodePack, report: LossReport) -> dict[str, Any]:
    """Return Arrow columns [steps] of metadata: ids, times, endings, policy versions and custom data."""
    pa, lengths, episodes_facts = pyarrow(), pack.lengths, [pack.facts.at(i) for i in range(len(pack))]
    each = np.arange(len(pack)).repeat(lengths)
    within = np.arange(len(each)) - (np.cumsum(lengths) - lengths).repeat(lengths)
    ends = np.zeros(len(each), bool)
    ends[np.cumsum(lengths) - 1] = True
    columns, extra_facts = {}, [dict[str, Any]() for _ in range(len(pack))]
    for fact, name in _IDS.items():
        values = [getattr(facts, fact) for facts in episodes_facts]
        for i, value in enumerate(values):
            if value is not None and type(value) is not str:
                extra_facts[i].setdefault("ids", {})[fact] = value
                values[i] = str(value)
        if fact == "id_" or any(value is not None for value in values):
            columns[name] = pa.array(values, pa.string()).take(pa.array(each))
    columns["t"] = pa.array(pack.t_started.repeat(lengths) + within)
    columns["is_last"] = pa.array(ends)
    columns["terminated"] = pa.array(pack.terminated.repeat(lengths) & ends)
    columns["truncated"] = pa.array(pack.truncated.repeat(lengths) & ends)
    if pack.facts.policy_versions is not None:
        versions = pack.get_policy_versions()
        columns["policy_version"] = pa.array(versions, mask=versions == UNKNOWN)
    for i, custom in enumerate(pack.facts.custom_data or ()):
        if custom:
            extra_facts[i]["custom_data"] = custom
    for i, facts in enumerate(episodes_facts):
        if facts.acting_pipeline is not None:
            extra_facts[i]["acting_pipeline"] = facts.acting_pipeline
        for name in dropped_facts(facts, _FACTS):
            report.add(name, "a table has no place for it", facts.id_)
    if any(extra_facts):
        encoded = [_document(*pair, report) for pair in zip(extra_facts, pack.ids.tolist(), strict=True)]
        columns[OTHER] = spread(pa.array(encoded, pa.binary()), np.flatnonzero(within == 0), len(each))
    return columns


def _document(value: dict[str, Any], id_: object, report: LossReport) -> bytes | None:
    """Encode ids, custom data and acting pipeline as msgpack bytes, or None if empty. Losses go to `report`."""
    if not value:
        return None
    named = {"ids": "", "custom_data": "custom_data"}
    stored = {key: keep_documents(value[key], name, id_, report) for key, name in named.items() if key in value}
    return msgpack_codec.encode(value | stored, "")


def keep_documents(value: dict[Any, Any], name: str, id_: object, report: LossReport) -> Any:
    """Return nested dicts without the values that msgpack cannot store. `report` gets each, such as "NAME['a']['b']".

    Args:
        value: the dicts.
        name: name of the dicts for the report, or "" for a flat dict whose keys are the names.
        id_: id of the episode.
        report: gets what is lost.
    """

    def lost(path: str) -> None:
        report.add(f"{name}{path}" if name else path[2:-2], "msgpack cannot hold it", id_)

    return keep_supported(value, lost, is_document)


def is_document(value: object) -> bool:
    """Return True if the value can be stored as msgpack."""
    try:
        msgpack_codec.encode(value, "")
        return True
    except WrongType:
        return False


# --- back -------------------------------------------------------------------------------------------------------------


def pack_of(table: pa.Table, source: str) -> EpisodePack:
    """Convert an Arrow table of `table_of`, or several joined ones, back to a pack.

    Raises:
        UnreadableData: another table, or one that starts or stops in the middle of a chunk.
    """
    about = read_description(table.schema, source)
    is_last = table["is_last"].to_numpy()
    if not len(is_last) or not is_last[-1]:
        raise UnreadableData(
            f"{source}: its rows stop in the midst of an episode; row groups are to be left as written"
        )
    ends = np.flatnonzero(is_last)
    lengths = np.diff(np.concatenate([[-1], ends]))
    firsts = ends - lengths + 1
    rows = np.arange(len(is_last)) + np.arange(len(ends)).repeat(lengths)  # of the steps among observations
    leaves = {}
    for path, (dtype, shape) in about["tracks"].items():
        kind = np.dtype(dtype), tuple(shape)
        array = array_of(table[path], *kind)
        if is_observed(path):
            last = array_of(table[f"last_{path}"], *kind)
            last = np.zeros((len(ends), *shape), kind[0]) if 0 in shape else last
            array = _interleaved(array, last, rows, ends + np.arange(len(ends)) + 1)
        leaves[path] = array
    infos = read_infos(about["infos"], table, rows, ends + np.arange(len(ends)) + 1)
    tracks = assemble(about["structure"], leaves)
    spaces = {name: space_json.from_json(about.get(name)) for name in ("observation_space", "action_space")}
    facts = _read_facts(table, firsts, ends)
    acting_pipelines = facts.pop("acting_pipelines")
    pack = EpisodePack(**tracks, lengths=lengths, infos=infos, **spaces, **facts)
    return pack.replace(acting_pipelines=acting_pipelines) if any(acting_pipelines) else pack


def read_description(schema: pa.Schema, source: str) -> dict[str, Any]:
    """Return the description of columns that `table_of` stored in the metadata of the Arrow schema.

    Raises:
        UnreadableData: the table was not written by this library.
    """
    description = (schema.metadata or {}).get(KEY)
    if description is None:
        raise UnreadableData(f"{source}: Parquet of something else; only what to_parquet wrote can be read back")
    return json.loads(description)


def unknown_columns(schema: pa.Schema, source: str) -> list[str]:
    """Return the names of columns that `table_of` did not write, by the description in the schema's metadata.

    Raises:
        UnreadableData: the table was not written by this library.
    """
    about = read_description(schema, source)
    known = {*_IDS.values(), "t", "is_last", "terminated", "truncated", "policy_version", OTHER}
    known |= {*about["tracks"], *(f"last_{path}" for path in about["tracks"] if is_observed(path))}
    known |= {f"{prefix}/{path}" for path in about["infos"] for prefix in ("infos", "last_infos")}
    return [name for name in schema.names if name not in known]


def are_whole_chunks(table: pa.Table) -> bool:
    """Return True if the rows of each chunk, up to one with `is_last`, have one episode id and consecutive times."""
    is_last = np.asarray(table["is_last"].to_numpy())
    if not len(is_last) or not is_last[-1] or table["t"].null_count or table["episode_id"].null_count:
        return not len(is_last)
    codes = codes_of(table["episode_id"])
    return bool((is_last[:-1] | ((np.diff(codes) == 0) & (np.diff(table["t"].to_numpy()) == 1))).all())


def _interleaved(array: np.ndarray, last: np.ndarray, rows: np.ndarray, last_rows: np.ndarray) -> np.ndarray:
    """Return an array with rows of `array` at the positions `rows`, and rows of `last` at `last_rows`."""
    dtype = np.promote_types(array.dtype, last.dtype) if array.dtype.kind == "U" else array.dtype
    whole = np.empty((len(rows) + len(last_rows), *array.shape[1:]), dtype)
    whole[rows], whole[last_rows] = array, last
    return whole


def _read_facts(table: pa.Table, firsts: np.ndarray, ends: np.ndarray) -> dict[str, Any]:
    """Return the metadata of the episodes in a table, as keyword arguments for a pack. A column that is missing, as in
    foreign tables, becomes None for each episode.

    Args:
        firsts: first row of each episode.
        ends: last row of each episode.
    """
    pa = pyarrow()

    def at(name: str, rows: np.ndarray) -> list[Any]:
        """Return the values of a column at `rows`. All are `None` if the table has no such column."""
        exists = name in table.column_names
        return table[name].take(pa.array(rows)).to_pylist() if exists else [None] * len(rows)

    ids = {fact: at(name, firsts) for fact, name in _IDS.items()}
    custom: list[Any] = [None] * len(firsts)
    acting_pipelines: list[str | None] = [None] * len(firsts)
    for i, document in enumerate(at(OTHER, firsts)):
        extra_facts = {} if document is None else msgpack_codec.decode(document)
        custom[i] = extra_facts.get("custom_data")
        acting_pipelines[i] = extra_facts.get("acting_pipeline")
        for fact, value in extra_facts.get("ids", {}).items():
            ids[fact][i] = value
    versions = None
    if "policy_version" in table.column_names:
        each = table["policy_version"].fill_null(UNKNOWN).to_numpy(zero_copy_only=False)
        versions = VersionColumn.of_steps(each, ends - firsts + 1)
    named = {f"{fact.rstrip('_')}s": values for fact, values in ids.items()}
    flags = {name: np.array(at(name, ends), bool) for name in ("terminated", "truncated")}
    named |= {"custom_data": custom, "acting_pipelines": acting_pipelines, "policy_versions": versions}
    return {**named, **flags, "t_started": at("t", firsts)}
