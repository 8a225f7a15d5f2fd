"""`Connector`: base class of the steps of a pipeline, which converts episodes to policy inputs, or policy outputs to
actions.

A connector written for RLlib runs if its base class is imported from here. The call signature, the spaces, the state
methods and the batch methods are those that RLlib documents.

>>> import numpy as np
>>> class ClipRewards(Connector):
...     '''Clip rewards to [-1, 1].'''
...
...     def __call__(self, *, rl_module=None, batch, episodes, **kwargs):
...         for episode in self.single_agent_episode_iterator(episodes):
...             episode.set_rewards(new_data=np.clip(episode.get_rewards(), -1, 1))
...         return batch
>>> ClipRewards().name
'ClipRewards'
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from connectors.column_parts import ColumnParts, RowOwner, as_rows, as_single_row, changed_items, joined, rows_of
from connectors.fingerprint import settings_of
from episodes.data_types import NestedArrays
from episodes.errors import UnknownKey
from episodes.multi_agent import MultiAgentEpisode
from episodes.tracks.validation import checked_space

if TYPE_CHECKING:
    from connectors.policy import Policy
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["Connector"]

ColumnDict = dict[str, Any]  # a batch within a pipeline: values by column


class Connector:
    """Base class of pipeline steps: a callable that adds columns to a batch, or changes its columns.

    Args:
        input_observation_space: space of the observations before this connector. A pipeline sets it.
        input_action_space: space of the actions before this connector. A pipeline sets it.
        name: name of the connector in its pipeline; by default the name of its class.
    """

    reads: tuple[str, ...] = ()  # columns that the batch must have
    writes: tuple[str, ...] = ()  # columns that the connector may add
    reads_tracks: bool = False  # True: reads whole tracks of a pack or recorder; False: single, editable episodes
    changes_rows: bool = True  # False: a runner skips the connector, because it leaves complete vector rows unchanged
    is_empty_filter: bool = False  # learns statistics of observations, and has not seen any observation
    lookback: int = 0  # items before a chunk's first step that the learner needs to see what the policy saw

    _input_observation_space: gym.Space | None = None
    _input_action_space: gym.Space | None = None
    _observation_space: gym.Space | None = None
    _action_space: gym.Space | None = None
    _name: str | None = None

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        name: str | None = None,
        **kwargs: object,
    ) -> None:
        self._name = name
        self.set_input_spaces(input_observation_space, input_action_space)

    def __call__(
        self,
        *,
        rl_module: Policy | None = None,
        batch: ColumnDict,
        episodes: Any,
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        **kwargs: Any,
    ) -> ColumnDict:
        """Return the batch with the columns that this connector adds or changes. The batch may be changed in place.

        Args:
            rl_module: the policy.
            batch: columns by name.
            episodes: the episodes that the batch is made from.
            explore: whether actions are sampled; None while learning.
            shared_data: a dict that all connectors of a call share.
            metrics: a metrics logger, or None.
        """
        raise NotImplementedError(f"{type(self).__name__} has no __call__; override it, and return the batch")

    @property
    def name(self) -> str:
        """Name under which a pipeline stores the connector."""
        return self._name or type(self).__name__

    @property
    def settings(self) -> dict[str, Any]:
        """Settings by name, as plain values, that must be equal while a policy trains and while it acts.

        By default they are the constructor's arguments that are stored under their names.
        """
        return settings_of(self)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(self.reads)} -> {', '.join(self.writes)})"

    # Spaces

    @property
    def input_observation_space(self) -> gym.Space | None:
        """Space of the observations that this connector receives. None if it is unknown."""
        return self._input_observation_space

    @input_observation_space.setter
    def input_observation_space(self, space: gym.Space | None) -> None:
        self.set_input_spaces(space, self._input_action_space)

    @property
    def input_action_space(self) -> gym.Space | None:
        """Space of the actions that this connector receives. None if it is unknown."""
        return self._input_action_space

    @input_action_space.setter
    def input_action_space(self, space: gym.Space | None) -> None:
        self.set_input_spaces(self._input_observation_space, space)

    @property
    def observation_space(self) -> gym.Space | None:
        """Space of the observations that this connector returns. None if it is unknown."""
        return self._observation_space

    @property
    def action_space(self) -> gym.Space | None:
        """Space of the actions that this connector returns. None if it is unknown."""
        return self._action_space

    def set_input_spaces(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Set the spaces that this connector receives, and recompute the spaces that it returns.

        Raises:
            WrongType: an argument is neither a Gymnasium space nor None.
        """
        self._input_observation_space = checked_space("input_observation_space", observation_space)
        self._input_action_space = checked_space("input_action_space", action_space)
        if observation_space is None:
            self._observation_space = None
        else:
            self._observation_space = self.recompute_output_observation_space(observation_space, action_space)  # type: ignore[arg-type]
        if action_space is None:
            self._action_space = None
        else:
            self._action_space = self.recompute_output_action_space(observation_space, action_space)  # type: ignore[arg-type]

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Return the space of the observations that this connector returns, by default its input space.

        Override it in connectors that change observations. `set_input_spaces` calls it.
        """
        return input_observation_space

    def recompute_output_action_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Return the space of the actions that this connector returns, by default its input space.

        Override it in connectors that change actions. `set_input_spaces` calls it.
        """
        return input_action_space

    # State

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: object,
    ) -> dict[str, Any]:
        """Return a copy of what the connector has learned from data, such as running statistics, as a dict.

        The dict is empty for a connector that learns nothing. `components` and `not_components`, which RLlib passes,
        have no effect.
        """
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned. By default a connector has no state."""

    def reset_state(self) -> None:
        """Discard what the connector has learned from data, such as running statistics."""

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Return one state that combines the states of several copies of this connector, by default the first state."""
        return states[0] if states else {}

    # Batches

    @staticmethod
    def single_agent_episode_iterator(
        episodes: Sequence[Any],
        agents_that_stepped_only: bool = True,
        zip_with_batch_column: NestedArrays | ColumnParts | list[Any] | None = None,
    ) -> Iterator[Any]:
        """Iterate over the single-agent episodes in `episodes`. A multi-agent episode contributes the episodes of its
        agents.

        Args:
            episodes: single-agent and multi-agent episodes.
            agents_that_stepped_only: leave out agents without an observation at the newest env step.
            zip_with_batch_column: a column [B, ...] with one row per episode. If given, pairs (episode, row) are
                yielded.
        """
        singles = _single_agent_episodes(episodes, agents_that_stepped_only)
        if zip_with_batch_column is None:
            return singles
        column = joined(zip_with_batch_column)
        return zip(singles, column if isinstance(column, list) else rows_of(column), strict=True)

    @staticmethod
    def add_batch_item(
        batch: ColumnDict, column: str, item_to_add: object, single_agent_episode: SingleAgentEpisode | None = None
    ) -> None:
        """Append one item to a column of the batch.

        The column is created if it is missing. `single_agent_episode` is the episode to which the item belongs, if
        it is known.
        """
        _parts(batch, column).append(as_single_row(item_to_add), RowOwner.of(single_agent_episode))

    @staticmethod
    def add_n_batch_items(
        batch: ColumnDict,
        column: str,
        items_to_add: NestedArrays | list[Any],
        num_items: int,
        single_agent_episode: SingleAgentEpisode | None = None,
    ) -> None:
        """Append `num_items` items, a list or nested arrays [num_items, ...], to a column of the batch.
        `single_agent_episode` is the episode to which they belong, if it is known.

        Raises:
            ShapeMismatch: there are not `num_items` items.
        """
        _parts(batch, column).append(as_rows(items_to_add, num_items, column), RowOwner.of(single_agent_episode))

    @staticmethod
    def foreach_batch_item_change_in_place(
        batch: ColumnDict, column: str | Sequence[str], func: Callable[..., Any]
    ) -> None:
        """Replace each item of a batch column by the result of `func(item, eps_id, agent_id, module_id)`.

        With several columns, `func` takes a tuple of items and returns one. The ids are None if the column is an array
        already, because its rows have no recorded owners.

        Raises:
            UnknownKey: the batch has no such column.
        """
        names = [column] if isinstance(column, str) else list(column)
        each = (lambda items, *ids: (func(items[0], *ids),)) if isinstance(column, str) else func
        if not all(name in batch for name in names):
            raise UnknownKey(
                f"no column {' and '.join(map(repr, names))} in the batch, which has {', '.join(batch) or 'none'}"
            )
        changed = changed_items([batch[name] for name in names], each)
        batch |= dict(zip(names, changed, strict=True))

    @staticmethod
    def switch_batch_from_column_to_module_ids(batch: dict[str, dict[Any, Any]]) -> dict[Any, ColumnDict]:
        """Return the batch `{column: {module_id: values}}` with its two levels of keys exchanged, as `{module_id:
        {column: values}}`.
        """
        modules: dict[Any, ColumnDict] = {}
        for column, by_module in batch.items():
            for module_id, values in by_module.items():
                modules.setdefault(module_id, {})[column] = values
        return modules


def _single_agent_episodes(episodes: Sequence[Any], stepped_only: bool) -> Iterator[Any]:
    """Yield the single-agent episodes, and the agents' episodes of multi-agent episodes, optionally only of agents that
    stepped.
    """
    for episode in episodes:
        if not isinstance(episode, MultiAgentEpisode):
            yield episode
        elif stepped_only:
            yield from (episode.agent_episodes[agent_id] for agent_id in episode.get_agents_that_stepped())
        else:
            yield from episode.agent_episodes.values()


def _parts(batch: ColumnDict, column: str) -> ColumnParts:
    """Return the batch column as `ColumnParts`, to which rows can be appended. A missing column is created, and arrays
    are converted.
    """
    parts = batch.get(column)
    if isinstance(parts, ColumnParts):
        return parts
    batch[column] = new = ColumnParts()
    if parts is not None:
        new.append(parts, RowOwner())
    return new
