"""Connector that distributes the outputs of each module (policy) to its agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from connectors.agent_to_module_mapping import SEATS
from connectors.column_parts import joined
from connectors.connector import ColumnDict, Connector
from connectors.module_to_env.unbatch_items import check_rows
from episodes.columns import Columns
from episodes.data_types import NestedArrays
from episodes.tracks import nested

if TYPE_CHECKING:
    from episodes.multi_agent import MultiAgentEpisode

__all__ = ["ModuleToAgentUnmapping"]


class ModuleToAgentUnmapping(Connector):
    """Last multi-agent connector before the environment, which distributes each module's outputs to its agents.

    It returns "actions" and "actions_for_env", lists with `{agent_id: action}` per episode, and "extra_model_outputs",
    a list with `{agent_id: {key: row}}` per episode.

    Raises:
        TrackMismatch: the number of rows of a module is not the number of its agents that must act.
    """

    writes = (Columns.ACTIONS, Columns.ACTIONS_FOR_ENV)

    def __call__(
        self,
        *,
        batch: ColumnDict,
        episodes: Sequence[MultiAgentEpisode] = (),
        shared_data: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> ColumnDict:
        policy_actions, sent, outputs = ([{} for _ in episodes] for _ in range(3))
        for module_id, seats in (shared_data or {}).get(SEATS, {}).items():
            outputs_of_module = {name: joined(column) for name, column in batch[module_id].items()}
            check_rows(outputs_of_module, len(seats), f"module {module_id!r}: its", "agents")
            columns = {name: _rows(column) for name, column in outputs_of_module.items()}
            actions = columns.pop(Columns.ACTIONS)
            for_env = columns.pop(Columns.ACTIONS_FOR_ENV, actions)
            for (place, agent_id, _), action, env_action in zip(seats, actions, for_env, strict=True):
                policy_actions[place][agent_id], sent[place][agent_id] = action, env_action
            for (place, agent_id, _), *rows in zip(seats, *columns.values(), strict=True) if columns else ():
                outputs[place][agent_id] = dict(zip(columns, rows, strict=True))
        return {Columns.ACTIONS: policy_actions, Columns.ACTIONS_FOR_ENV: sent, EXTRA: outputs}


EXTRA = "extra_model_outputs"


def _rows(column: NestedArrays | list[Any]) -> Any:
    """Return the rows of a batch column as a list, one item per row."""
    if isinstance(column, list) or nested.is_leaf(column):
        return list(column)
    return [nested.take(column, row) for row in range(len(nested.first_leaf(column)))]
