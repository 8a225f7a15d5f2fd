"""From each module's rows back to the agents of each environment."""

from __future__ import annotations

from typing import Any

from connectors.agent_to_module_mapping import SEATS
from connectors.connector import ColumnDict, Connector
from episodes.columns import Columns
from episodes.errors import TrackMismatch
from episodes.tracks import nested

__all__ = ["ModuleToAgentUnmapping"]

_ACTIONS = (Columns.ACTIONS, Columns.ACTIONS_FOR_ENV)


class ModuleToAgentUnmapping(Connector):
    """The last piece of a multi-agent module-to-env pipeline: `{module_id: {column: [n, ...]}}` by episode and agent.

    It gives "actions" and "actions_for_env", lists with one `{agent_id: action}` for each episode, and
    "extra_model_outputs", a list with one `{agent_id: {key: row}}` for each episode of all other columns.

    Raises:
        TrackMismatch: a module has another number of rows than there are agents that it acts for.
    """

    writes = _ACTIONS

    def __call__(
        self, *, batch: ColumnDict, episodes: Any = (), shared_data: dict[str, Any] | None = None, **kwargs: Any
    ) -> ColumnDict:
        unmapped: dict[str, list[dict[Any, Any]]] = {name: [{} for _ in episodes] for name in (*_ACTIONS, _EXTRA)}
        for module_id, seats in (shared_data or {}).get(SEATS, {}).items():
            columns = {name: _rows(column) for name, column in batch[module_id].items()}
            for name, rows in columns.items():
                if len(rows) != len(seats):
                    raise TrackMismatch(
                        f"module {module_id!r}: its output {name!r} has {len(rows)} rows for {len(seats)} agents; it "
                        "must keep the rows of its input"
                    )
            actions = columns.pop(Columns.ACTIONS)
            for_env = columns.pop(Columns.ACTIONS_FOR_ENV, actions)
            for row, (place, agent_id, _) in enumerate(seats):
                unmapped[Columns.ACTIONS][place][agent_id] = actions[row]
                unmapped[Columns.ACTIONS_FOR_ENV][place][agent_id] = for_env[row]
                if columns:
                    unmapped[_EXTRA][place][agent_id] = {name: rows[row] for name, rows in columns.items()}
        return unmapped


_EXTRA = "extra_model_outputs"


def _rows(column: Any) -> Any:
    """A column as a sequence of rows."""
    if isinstance(column, list) or nested.is_leaf(column):
        return list(column)
    return [nested.take(column, row) for row in range(len(nested.first_leaf(column)))]
