"""Observations of any space as one vector."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from connectors.connector import ColumnDict
from connectors.rewriting import ObservationRewriter
from connectors.views.piece import ViewPiece
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.history import History, HistorySpaces
from episodes.tracks.flattening import Flattener
from episodes.tracks.validation import checked_flag, checked_items, checked_number_dtype

__all__ = ["FlattenObservations"]


class FlattenObservations(ViewPiece, ObservationRewriter):
    """Makes one vector [D] of each observation, as `gymnasium.spaces.flatten` does, for all rows at once.

    Box and MultiBinary parts are raveled, Discrete and MultiDiscrete ones become one-hot, Dict and Tuple parts follow
    one another. Text and OneOf parts go item by item. Graph and Sequence have no fixed size: their items are flattened
    one by one, and what comes out has Gymnasium's structure.

    Its place says what it works on. Before all views of a pipeline it rewrites observations: episodes store vectors.
    Behind a view it is a view: the module sees what that one made as a vector.

    Args:
        dtype: of the vectors; Gymnasium's own when None.
        multi_agent: accepted as RLlib has it, and says nothing: a module's pipeline sees its agents one by one.
        agent_ids: for `joint=` of pipelines of several agents: those whose observations are flattened; all by default.
    """

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        dtype: Any = np.float32,
        multi_agent: bool = False,
        agent_ids: Collection[Any] | None = None,
        name: str | None = None,
    ) -> None:
        self.dtype = None if dtype is None else checked_number_dtype("dtype", dtype).type
        checked_flag("multi_agent", multi_agent)
        self.agent_ids = None if agent_ids is None else checked_items("agent_ids", agent_ids, "agents")
        self._flatten: Flattener | None = None
        super().__init__(input_observation_space, input_action_space, name=name)

    def set_input_spaces(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Take new input spaces, and work out where each part goes."""
        super().set_input_spaces(observation_space, action_space)
        self._flatten = None if observation_space is None else Flattener(observation_space, self.dtype)

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """The flat Box, in this piece's dtype."""
        flat = spaces.flatten_space(input_observation_space)
        if not isinstance(flat, spaces.Box) or self.dtype is None:
            return flat
        return spaces.Box(flat.low.astype(self.dtype), flat.high.astype(self.dtype), dtype=self.dtype)

    def rewrite(self, observations: Any, episodes: Any = None, update: bool = True) -> Any:
        """The vectors [N, D]; see `ObservationRewriter`."""
        self.check_place()
        if self._flatten is None:
            raise InvalidArgument(f"{self.name} needs the observation space; give it to the pipeline")
        return self._flatten(observations)

    def __call__(  # type: ignore[override]
        self, history: History | None = None, *, batch: ColumnDict | None = None, episodes: Any = (), **kwargs: Any
    ) -> dict[str, Any]:
        """As a view, the columns of a history; by a pipeline's call, see `ObservationRewriter`."""
        if history is not None:
            return self.see(history)
        return ObservationRewriter.__call__(self, batch=batch or {}, episodes=episodes, **kwargs)

    def see(self, history: History) -> dict[str, Any]:
        """As a view: "obs" [B, D] of the history's observations."""
        self.check_place()
        if self.dtype == np.float32:
            return {Columns.OBS: history.flat_observations()}
        return {Columns.OBS: Flattener(history.spaces.known_observation_space, self.dtype)(history.observations())}

    def spaces(self, given: HistorySpaces) -> dict[str, gym.Space]:
        """As a view: the flat Box."""
        return {Columns.OBS: self.recompute_output_observation_space(given.known_observation_space, None)}  # type: ignore[arg-type]

    def check_place(self) -> None:
        """See `ObservationRewriter.check_place`."""
        if self.agent_ids is not None:
            raise InvalidArgument(
                f"{self.name}(agent_ids={list(self.agent_ids)}): the agents of one module have one space; give it as "
                "joint=[...], or without agent_ids to the pipelines of these agents' modules"
            )
