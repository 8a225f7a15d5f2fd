"""`FlattenObservations`: connector that flattens observations of any space to one vector each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike

from connectors.connector import ColumnDict
from connectors.rewriting.rewriter import ObservationRewriter
from connectors.views.piece import ViewPiece
from episodes.columns import Columns
from episodes.data_types import NestedArrays
from episodes.errors import InvalidArgument
from episodes.history import History, HistorySpaces
from episodes.tracks.flattening import Flattener, flat_space_of
from episodes.tracks.space_kinds import is_box
from episodes.tracks.validation import checked_flag, checked_items, checked_number_dtype

if TYPE_CHECKING:
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["FlattenObservations"]


class FlattenObservations(ViewPiece, ObservationRewriter):
    """Connector that flattens each observation, of any space, to one vector [D], like `gymnasium.spaces.flatten`.

    Box and MultiBinary parts are raveled. Discrete and MultiDiscrete parts become one-hot. Dict and Tuple parts are
    concatenated. Graph and Sequence parts have no fixed size: each item is flattened, in Gymnasium's structure.

    Before all views of a pipeline it is a rewriter, so episodes store vectors. After a view it is a view, so the policy
    sees the output of that view as a vector.

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        dtype: dtype of the vectors; by default that of Gymnasium.
        multi_agent: accepted for compatibility with RLlib, without effect: a module's pipeline sees its agents one by
            one.
        agent_ids: for `joint=` of multi-agent pipelines: the agents whose observations are flattened; by default all.
        name: name of the connector in its pipeline.

    Raises:
        WrongType: `dtype` is not a dtype of numbers, `multi_agent` is not a bool, or `agent_ids` is not a list.
    """

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        dtype: DTypeLike | None = np.float32,
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
        """Set the input spaces, and prepare the flattening of observations of the new space."""
        super().set_input_spaces(observation_space, action_space)
        self._flatten = None if observation_space is None else Flattener(observation_space, self.dtype)

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Return the Box space of the flat vectors [D]. Spaces without a fixed size become Gymnasium's
        flattened space.
        """
        flat = flat_space_of(input_observation_space)
        if not is_box(flat) or self.dtype is None:
            return flat
        return spaces.Box(flat.low.astype(self.dtype), flat.high.astype(self.dtype), dtype=self.dtype)

    def rewrite(
        self, observations: NestedArrays, episodes: Sequence[SingleAgentEpisode] | None = None, update: bool = True
    ) -> Any:
        """Return observations [N, ...] as flat vectors [N, D], in the form that episodes store.

        Raises:
            InvalidArgument: the observation space is unknown, or the connector has `agent_ids`.
        """
        self.check_place()
        if self._flatten is None:
            raise InvalidArgument(f"{self.name} needs the observation space; give it to the pipeline")
        return self._flatten(observations)

    def __call__(  # type: ignore[override]
        self,
        history: History | None = None,
        *,
        batch: ColumnDict | None = None,
        episodes: Sequence[SingleAgentEpisode] = (),
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the column "obs" of flat vectors for a history (as a view), or flatten the newest observations of
        episodes in place.
        """
        if history is not None:
            return self.see(history)
        return ObservationRewriter.__call__(self, batch=batch or {}, episodes=episodes, **kwargs)

    def see(self, history: History) -> dict[str, Any]:
        """Return the column "obs" [B, D] of the policy's inputs: the newest observations of a history as flat vectors.

        Raises:
            InvalidArgument: the connector has `agent_ids`, or the observation space is unknown.
        """
        self.check_place()
        if self.dtype == np.float32:
            return {Columns.OBS: history.flat_observations()}
        return {Columns.OBS: Flattener(history.spaces.known_observation_space, self.dtype)(history.observations())}

    def spaces(self, input_spaces: HistorySpaces) -> dict[str, gym.Space]:
        """Return the space of the output column "obs": a Box of flat vectors [D].

        Raises:
            InvalidArgument: the observation space is unknown.
        """
        return {Columns.OBS: self.recompute_output_observation_space(input_spaces.known_observation_space, None)}  # type: ignore[arg-type]

    def check_place(self) -> None:
        """Raise `InvalidArgument` if the connector has `agent_ids`, which are for `joint=` of multi-agent pipelines
        only.
        """
        if self.agent_ids is not None:
            raise InvalidArgument(
                f"{self.name}(agent_ids={list(self.agent_ids)}): the agents of one module have one space; give it as "
                "joint=[...], or without agent_ids to the pipelines of these agents' modules"
            )
