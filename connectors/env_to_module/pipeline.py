"""`EnvToModulePipeline`: computes the policy's input batch from ongoing episodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import torch

from connectors.batch_items import BatchItems
from connectors.connector import ColumnDict, Connector
from connectors.editable_episodes import EditableEpisodes
from connectors.env_to_module.add_observations import AddObservations
from connectors.env_to_module.add_states import AddStates
from connectors.env_to_module.add_time_dimension import AddTimeDimension
from connectors.pipeline import ConnectorPipeline
from connectors.policy import module_of
from connectors.rewriting.rewriter import check_rewritten
from connectors.sections import SectionedPipeline, as_piece
from connectors.tensors import NumpyToTensor
from connectors.views.piece import newest_history
from connectors.views.policy_check import check_reads_views
from connectors.views.view import View
from episodes.columns import Columns
from episodes.data_types import NestedArrays
from episodes.errors import InvalidArgument, ShapeMismatch
from episodes.history import HistorySpaces
from episodes.recorder.ongoing import OngoingEpisodes
from episodes.tracks.validation import checked_items

if TYPE_CHECKING:
    from connectors.policy import Policy
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["EnvToModulePipeline", "env_to_module_pipeline"]


class EnvToModulePipeline(SectionedPipeline):
    """Pipeline that computes the policy's input batch from ongoing episodes or from a vector environment's
    observations.

    `rewrite` applies the rewriters; episodes store its result. `recorded_observation_space` is the space of the stored
    observations, and `observation_space` the space of the policy's observations. A learner computes the same policy
    inputs if it gets `views`, and chunks with a lookback of at least `lookback` steps.
    """

    input_columns = (Columns.OBS,)
    rewrites: bool  # whether `rewrite` does anything
    see = ConnectorPipeline.on_rows  # called by runners

    def rewrite(
        self, observations: NestedArrays, episodes: Sequence[SingleAgentEpisode] | None = None, update: bool = True
    ) -> Any:
        """Return new observations [N, ...] in the form that episodes store, for example normalized. Call it once per
        observation. `NormalizeObservations` learns from the result.

        Args:
            observations: nested arrays [N, ...].
            episodes: the episodes [N] of the observations, each with its observation as the last one.
            update: whether rewriters learn statistics from the observations.

        Raises:
            ShapeMismatch: the first row after a rewriter is not in the space that the rewriter declares.
        """
        for name, rewriter in self._sections.rewriters.items():
            original, observations = observations, rewriter.rewrite(observations, episodes, update)
            if name not in self._in_their_spaces:
                check_rewritten(rewriter, name, observations, original)
                self._in_their_spaces.add(name)
        if update:
            for view in self._sections.learning_views:
                view.learn(observations)
        return observations

    def bind_policy(self, policy: Policy | None) -> None:
        """Add the connectors that a recurrent policy needs, and check that the policy can read the pipeline's batch.

        A recurrent policy gets a time axis and its states, unless a connector adds "state_in" already. A policy that is
        a `torch.nn.Module` is run once on samples, unless connectors of the user add columns.

        Raises:
            InvalidArgument: the policy reads a column that the batch lacks, or expects another shape.
        """
        pieces = self._sections.pieces.values()
        if module_of(policy).is_recurrent and not any(Columns.STATE_IN in piece.writes for piece in pieces):
            last = next((name for name, piece in self._pieces.items() if type(piece) is NumpyToTensor), None)
            if last is not None:
                self.insert_before(last, AddTimeDimension())
                self.insert_before(last, AddStates())
        pieces = self._sections.pieces.values()
        if not self.is_bound or any(type(piece) not in DEFAULT_CONNECTORS for piece in pieces):
            return
        if any(type(piece) is NumpyToTensor for piece in pieces):
            check_reads_views(policy, self.views, values=False)

    def _make_view_connector(self) -> Connector:
        return _SeeNewest(self)

    def set_input_spaces(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Set the spaces of the environment, and check the next output of each `ObservationRewriter` against its space
        again.
        """
        super().set_input_spaces(observation_space, action_space)
        self._in_their_spaces: set[str] = set()  # names of rewriters whose first rows were checked

    def _set_pieces(self, pieces: dict[str, Connector]) -> None:
        super()._set_pieces(pieces)
        self.rewrites = bool(self._sections.rewriters or self._sections.learning_views)

    def _set_stages(self, stages: dict[str, Connector]) -> None:
        super()._set_stages(
            {name: stage if stage.reads_tracks else _ReadSingleEpisodes(name, stage) for name, stage in stages.items()}
        )


class _ReadSingleEpisodes(Connector):
    """Connector that calls `piece`, which reads single episodes, with copies of a recorder's ongoing episodes.

    Raises:
        InvalidArgument: `piece` wrote to an episode being recorded.
    """

    def __init__(self, name: str, piece: Connector) -> None:
        super().__init__(name=name)
        self._piece = piece
        self.changes_rows = piece.changes_rows

    def __call__(self, *, episodes: Sequence[SingleAgentEpisode] = (), **context: Any) -> ColumnDict:  # type: ignore[override]
        if not isinstance(episodes, OngoingEpisodes):
            return self._piece(episodes=episodes, **context)
        copies = EditableEpisodes(episodes)
        try:
            batch = self._piece(episodes=copies, **context)
        except ShapeMismatch as error:
            raise InvalidArgument(f"{self.name}: {error}. {_NOT_HERE}") from error
        if copies.changed:
            raise InvalidArgument(
                f"{self.name} wrote to an episode that is being recorded, where it would be lost. {_NOT_HERE}"
            )
        return batch


_NOT_HERE = (
    "To change what is stored, derive the piece from ObservationPreprocessor; to shape rewards, put it into the "
    "learner pipeline"
)


class _SeeNewest(Connector):
    """Connector that adds the columns that all views compute for the newest observation of each episode."""

    reads_tracks = True

    def __init__(self, pipeline: EnvToModulePipeline) -> None:
        super().__init__()
        self._pipeline = pipeline

    def __call__(
        self, *, batch: ColumnDict, episodes: Sequence[SingleAgentEpisode] = (), **kwargs: object
    ) -> ColumnDict:
        views = self._pipeline.views_of(lambda: newest_history(episodes, HistorySpaces()))
        batch.update(views(newest_history(episodes, views.given, views.lookback)))
        return batch


def env_to_module_pipeline(
    observation_space: gym.Space | None = None,
    action_space: gym.Space | None = None,
    *,
    pieces: Iterable[Connector | View] = (),
    policy: Policy | None = None,
    device: str | torch.device | None = None,
) -> EnvToModulePipeline:
    """Return the default pipeline that computes a policy's input batch from ongoing episodes, with your connectors in
    front.

    Args:
        observation_space: space of one environment's observations.
        action_space: space of one environment's actions.
        pieces: rewriters, views and other connectors, which run before the default ones.
        policy: see `EnvToModulePipeline.bind_policy`. Runners and `Actor` bind their policy themselves.
        device: the device of the batch.

    Raises:
        InvalidArgument: the policy cannot read the pipeline's batch.
        UnwiredPipeline: a connector reads a column that no earlier connector provides.
    """
    pieces = [as_piece(piece) for piece in checked_items("pieces", pieces, "your pieces")]
    pipeline = EnvToModulePipeline(
        observation_space,
        action_space,
        connectors=[*pieces, AddObservations(), BatchItems(), NumpyToTensor(device=device)],
    )
    if policy is not None:
        pipeline.bind_policy(policy)
    return pipeline


DEFAULT_CONNECTORS = (AddObservations, BatchItems, AddTimeDimension, AddStates, NumpyToTensor)
