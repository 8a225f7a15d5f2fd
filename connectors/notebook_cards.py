"""HTML cards for notebooks that show pipelines, and recorded calls of pipelines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from episodes.inspect import formatting
from episodes.inspect.cards.card import Card, Table, known
from episodes.inspect.charts import bar
from episodes.inspect.html import rendered

if TYPE_CHECKING:
    from connectors.multi_agent_pipelines import MultiAgentPipeline
    from connectors.pipeline import ConnectorPipeline
    from connectors.trace import Trace

MOST_PIECES = 40
MOST_MODULES = 12


def pipeline(pieces: ConnectorPipeline) -> str:
    """Return an HTML card that shows a pipeline in a notebook: its connectors in order, the columns that they read and
    write, and the last traced call.
    """
    return rendered(_pipeline_card(pieces))


def multi_agent_pipeline(pipelines: MultiAgentPipeline) -> str:
    """Return HTML that shows a multi-agent pipeline in a notebook: a card with the pipeline of each module (policy)."""
    modules = list(pipelines.modules.items())
    parts = [
        _pipeline_card(pipeline, formatting.clipped(module_id, 40)) for module_id, pipeline in modules[:MOST_MODULES]
    ]
    return rendered(Card(pipelines.name, "", [formatting.counted(len(modules), "module")], parts=parts))


def trace(calls: Trace) -> str:
    """Return an HTML card that shows a recorded pipeline call in a notebook: the time and the changed columns of each
    connector.
    """
    return rendered(_trace_card(calls))


def _pipeline_card(pieces: ConnectorPipeline, name: str = "") -> Card:
    """Return the notebook card of one pipeline: a table of its connectors, its spaces, and its last traced call."""
    named = list(zip(pieces.names, pieces.connectors, strict=True))
    rows = [
        (str(i), formatting.clipped(piece_name), type(piece).__name__, _columns(piece.reads), _columns(piece.writes))
        for i, (piece_name, piece) in enumerate(named[:MOST_PIECES])
    ]
    return Card(
        pieces.name,
        name,
        [formatting.counted(len(named), "piece")],
        facts=known(observation_space=_observation_space(pieces), action_space=pieces.action_space),
        table=Table(("", "piece", "class", "reads", "writes"), rows, is_words=True),
        parts=[_trace_card(pieces.trace, is_open=False)] if pieces.trace else [],
    )


def _observation_space(pieces: ConnectorPipeline) -> Any:
    """Return the observation space after all connectors of a pipeline, or None if its input space is not known."""
    return None if getattr(pieces, "input_observation_space", None) is None else pieces.observation_space


def _trace_card(calls: Trace, is_open: bool = True) -> Card:
    """Return the notebook card of one recorded pipeline call: a table with the time and the changed columns of each
    connector.
    """
    total = sum(call.milliseconds for call in calls)
    slowest = max((call.milliseconds for call in calls), default=0.0) or 1.0
    rows = [
        (
            formatting.clipped(call.piece),
            f"{call.milliseconds:.3f}",
            bar(call.milliseconds / slowest),
            formatting.clipped(call, 300),
        )
        for call in calls.pieces[:MOST_PIECES]
    ]
    return Card(
        "Trace",
        "",
        [formatting.counted(len(calls), "piece"), f"{total:.3f} ms"],
        table=Table(("piece", "ms", "", "changed"), rows, is_words=True),
        is_open=is_open,
    )


def _columns(names: Iterable[str]) -> str:
    return formatting.clipped(", ".join(map(str, names)) or "-", 120)
