"""A connector: one step on the way from episodes to tensors, or from a policy's outputs to actions.

A piece written for RLlib works when its base class is imported from here: the call signature, the spaces, the state
methods and the batch methods are the ones RLlib documents.

>>> import numpy as np
>>> class ClipRewards(Connector):
...     '''Rewards between -1 and 1.'''
...
...     def __call__(self, *, rl_module=None, batch, episodes, **kwargs):
...         for episode in self.single_agent_episode_iterator(episodes):
...             episode.set_rewards(new_data=np.clip(episode.get_rewards(), -1, 1))
...         return batch
>>> ClipRewards().name
'ClipRewards'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import gymnasium as gym

from connectors.column_parts import ColumnParts, RowOwner, as_rows, as_single_row, changed_items, joined, rows_of
from connectors.fingerprint import settings_of
from episodes.errors import UnknownKey
from episodes.multi_agent import MultiAgentEpisode
from episodes.tracks.validation import checked_space

__all__ = ["Connector"]

ColumnDict = dict[str, Any]  # a batch on its way through a pipeline: values by column


class Connector:
    """A callable object in a pipeline.

    Args:
        input_observation_space: the space of the observations that come in; a pipeline sets it.
        input_action_space: likewise for actions.
        name: what the pipeline calls the piece; the class's name by default.
    """

    reads: tuple[str, ...] = ()  # columns that must be in the batch
    writes: tuple[str, ...] = ()  # columns that it may put there
    reads_tracks: ClassVar[bool] = False  # it works on whole tracks of a pack or a recorder, not episode by episode
    changes_rows: bool = True  # False: a runner skips the connector, because it leaves complete vector rows unchanged
    is_empty_filter: bool = False  # it learns statistics of observations, and has not seen any
    lookback: int = 0  # items before a chunk's first step that must be kept for learning from it as it was acted

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
        **kwargs: Any,
    ) -> None:
        self._name = name
        self.set_input_spaces(input_observation_space, input_action_space)

    def __call__(
        self,
        *,
        rl_module: Any = None,
        batch: ColumnDict,
        episodes: Any,
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        **kwargs: Any,
    ) -> ColumnDict:
        """The batch with this piece's work done; it may be the same dict."""
        raise NotImplementedError(f"{type(self).__name__} has no __call__")

    @property
    def name(self) -> str:
        """What the piece is called unless its pipeline has another of that name."""
        return self._name or type(self).__name__

    @property
    def settings(self) -> dict[str, Any]:
        """What a policy that was trained behind the piece relies on: plain values by name.

        By default the constructor's arguments, those that are kept as attributes of their names.
        """
        return settings_of(self)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(self.reads)} -> {', '.join(self.writes)})"

    # Spaces

    @property
    def input_observation_space(self) -> gym.Space | None:
        """The space of the observations that come in."""
        return self._input_observation_space

    @input_observation_space.setter
    def input_observation_space(self, space: gym.Space | None) -> None:
        self.set_input_spaces(space, self._input_action_space)

    @property
    def input_action_space(self) -> gym.Space | None:
        """The space of the actions that come in."""
        return self._input_action_space

    @input_action_space.setter
    def input_action_space(self, space: gym.Space | None) -> None:
        self.set_input_spaces(self._input_observation_space, space)

    @property
    def observation_space(self) -> gym.Space | None:
        """The space of the observations that go out."""
        return self._observation_space

    @property
    def action_space(self) -> gym.Space | None:
        """The space of the actions that go out."""
        return self._action_space

    def set_input_spaces(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Take new input spaces and recompute the output spaces from them."""
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
        """The space of the observations that go out, given what comes in; override where the piece changes them."""
        return input_observation_space

    def recompute_output_action_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """The space of the actions that go out, given what comes in; override where the piece changes them."""
        return input_action_space

    # State

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """What the piece has learned from data: a dict that shares no memory with it."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` gave."""

    def reset_state(self) -> None:
        """Forget what was learned from data."""

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """One state out of those of several copies of this piece; the first, unless a piece knows better."""
        return states[0] if states else {}

    # Batches

    @staticmethod
    def single_agent_episode_iterator(
        episodes: Sequence[Any], agents_that_stepped_only: bool = True, zip_with_batch_column: Any = None
    ) -> Iterator[Any]:
        """The single-agent episodes among and inside the episodes; with a column, pairs (episode, its item).

        Args:
            agents_that_stepped_only: of a multi-agent episode, only agents that observed something at its last step.
            zip_with_batch_column: a column, arrays [B, ...], with one row an episode.
        """
        singles = _single_agent_episodes(episodes, agents_that_stepped_only)
        if zip_with_batch_column is None:
            return singles
        column = joined(zip_with_batch_column)
        return zip(singles, column if isinstance(column, list) else rows_of(column), strict=True)

    @staticmethod
    def add_batch_item(batch: ColumnDict, column: str, item_to_add: Any, single_agent_episode: Any = None) -> None:
        """Add one item to a column, which is made when missing."""
        _parts(batch, column).append(as_single_row(item_to_add), RowOwner.of(single_agent_episode))

    @staticmethod
    def add_n_batch_items(
        batch: ColumnDict, column: str, items_to_add: Any, num_items: int, single_agent_episode: Any = None
    ) -> None:
        """Add several items, a list of them or nested arrays [num_items, ...] (kept whole), to a column.

        Raises:
            ShapeMismatch: there are not `num_items` items.
        """
        _parts(batch, column).append(as_rows(items_to_add, num_items, column), RowOwner.of(single_agent_episode))

    @staticmethod
    def foreach_batch_item_change_in_place(
        batch: ColumnDict, column: str | Sequence[str], func: Callable[..., Any]
    ) -> None:
        """Put `func(item, eps_id, agent_id, module_id)` in the place of each item of a column.

        With several columns, `func` gets a tuple of items and gives one. Ids are None where the column is an array
        already, whose rows no longer say whose they are.

        Raises:
            UnknownKey: there is no such column.
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
        """{column: {module_id: values}} as {module_id: {column: values}}."""
        modules: dict[Any, ColumnDict] = {}
        for column, by_module in batch.items():
            for module_id, values in by_module.items():
                modules.setdefault(module_id, {})[column] = values
        return modules


def _single_agent_episodes(episodes: Sequence[Any], stepped_only: bool) -> Iterator[Any]:
    for episode in episodes:
        if not isinstance(episode, MultiAgentEpisode):
            yield episode
        elif stepped_only:
            yield from (episode.agent_episodes[agent_id] for agent_id in episode.get_agents_that_stepped())
        else:
            yield from episode.agent_episodes.values()


def _parts(batch: ColumnDict, column: str) -> ColumnParts:
    """The column as parts: made when missing, and of the array when it is one already."""
    parts = batch.get(column)
    if isinstance(parts, ColumnParts):
        return parts
    batch[column] = new = ColumnParts()
    if parts is not None:
        new.append(parts, RowOwner())
    return new
