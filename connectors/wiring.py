"""Unique names for the connectors of a pipeline, and a check that each connector finds the columns that it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from connectors.connector import Connector
from episodes.errors import InvalidArgument, UnwiredPipeline, WrongType, rejected_type
from episodes.tracks.validation import checked_items


def name_connectors(
    connectors: Iterable[Connector], beside: Mapping[str, Connector] | None = None
) -> dict[str, Connector]:
    """Return connectors as a dict by unique name, for a pipeline.

    A connector without a name gets the name of its class, with a number appended if this name is taken. `beside` are
    connectors that the pipeline has already, by name.

    Raises:
        InvalidArgument: a connector occurs twice, or a given name is taken.
        WrongType: an item is not a connector.
    """
    by_name = dict(beside or {})
    new: dict[str, Connector] = {}
    for piece in checked_items("connectors", connectors, "pieces"):
        if not isinstance(piece, Connector):
            kind = rejected_type(piece, Connector)
            raise WrongType(
                f"a pipeline's pieces are connectors, not {piece!r}, a {kind}; derive the class from Connector"
            )
        if any(piece is known_piece for known_piece in by_name.values()):
            raise InvalidArgument(
                f"the piece {piece.name} is in the pipeline already; make another object of its class"
            )
        name = _free_name(piece, by_name)
        by_name[name] = new[name] = piece
    return new


def _free_name(piece: Connector, by_name: Mapping[str, Connector]) -> str:
    """Return a unique name for connector `piece`, such as "AddStates" or "AddStates_2". Raise `InvalidArgument` if the
    name that the connector was given is taken.
    """
    name = piece.name
    if name not in by_name:
        return name
    if name != type(piece).__name__:
        raise InvalidArgument(f"two pieces have the name {name!r}; names in a pipeline are unique: give another one")
    number = 2
    while f"{name}_{number}" in by_name:
        number += 1
    return f"{name}_{number}"


def check_wiring(pieces: Mapping[str, Connector], input_columns: Iterable[str]) -> None:
    """Check that each connector's input columns are in the pipeline's input batch or written by an earlier connector.

    Raises:
        UnwiredPipeline: a connector reads a column that is not available.
    """
    available = dict.fromkeys(input_columns)
    for name, piece in pieces.items():
        missing = [column for column in piece.reads if column not in available]
        if missing:
            raise UnwiredPipeline(_unwired_message(name, missing[0], list(available), pieces))
        available |= dict.fromkeys(piece.writes)


def _unwired_message(name: str, column: str, available: list[str], pieces: Mapping[str, Connector]) -> str:
    """Return the error message for a connector that reads a missing column, with advice on how to provide the
    column.
    """
    writers = [writer for writer, piece in pieces.items() if column in piece.writes and writer != name]
    advice = f"put it after {writers[0]}" if writers else f"add a piece that writes {column!r} before it"
    columns = ", ".join(available) or "no columns"
    return f"{name} reads {column!r}, which no piece before it writes (there are: {columns}); {advice}"
