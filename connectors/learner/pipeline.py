"""`LearnerPipeline`: computes a train batch from recorded episodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch

from connectors.batch_items import BatchItems
from connectors.connector import ColumnDict, Connector
from connectors.editable_episodes import EditableEpisodes
from connectors.fingerprint import check_views
from connectors.learner.add_columns import AddColumns
from connectors.learner.add_next_observations import AddNextObservations
from connectors.learner.add_observations import AddObservations
from connectors.learner.add_states import AddStates
from connectors.learner.add_time_dimension_and_zero_pad import AddTimeDimensionAndZeroPad
from connectors.learner.draw_views import DrawViews
from connectors.pipeline import checked_batch
from connectors.policy import module_of
from connectors.sections import SectionedPipeline
from connectors.sequences import num_padded_rows, padded_step_indices
from connectors.tensors import NumpyToTensor
from connectors.trace import Trace
from connectors.views.pack_views import PackViews
from connectors.views.policy_check import check_reads_views
from connectors.views.view import View, Views
from episodes.batch.origin import LazyOrigin
from episodes.batch.train_batch import TrainBatch
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.history import HistorySpaces
from episodes.pack import EpisodePack
from episodes.pack.steps import PackSteps
from episodes.tracks import nested
from episodes.tracks.validation import checked_flag, checked_items

if TYPE_CHECKING:
    from connectors.policy import Policy
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["LearnerPipeline", "learner_pipeline"]

DEFAULT_MAX_SEQ_LEN = 20
PACK_VIEWS = "pack_views"  # the argument of pieces


class LearnerPipeline(SectionedPipeline):
    """Pipeline that computes a train batch from recorded episodes, with one row per step.

    Connectors that read tracks get the pack. Others get single episodes. Later connectors see what they write to them,
    but the caller's episodes and the views do not change. Every connector gets `pack_views`, which returns what the
    policy sees at any observation of the pack.
    """

    def _make_view_connector(self) -> Connector:
        return _SeeSteps()

    def _run(
        self,
        batch: ColumnDict,
        episodes: Sequence[SingleAgentEpisode],
        trace: Trace | None,
        context: dict[str, Any],
    ) -> ColumnDict:
        """Call the rewriters, the views and the other connectors on the episodes, and return the train batch."""
        check_views(context.get("rl_module"), self.view_settings)
        first = pack = EpisodePack.from_episodes(episodes)
        rewriters = self._sections.rewriters
        for name, piece in self._stages.items():
            if name in rewriters:
                pack = rewriters[name].rewritten_pack(pack)
            elif PACK_VIEWS not in context:
                views = self.bound_views
                if views is None:  # unknown observation space: bind the views to that of `pack`, for this call only
                    views = self.views_of(lambda pack=pack: PackViews(pack).history(slice(None)))
                context[PACK_VIEWS] = PackViews(pack, views)
            edited = None if piece.reads_tracks else EditableEpisodes(pack)
            call = piece if trace is None else trace.watcher(name, piece)
            batch = call(batch=batch, episodes=pack if edited is None else edited, **context)
            if type(batch) is not dict:
                batch = checked_batch(batch, name)
            if edited is not None:
                before, pack = pack, edited.packed()
                _check_in_time(name, batch, before, pack)
        return TrainBatch(batch, _origin(batch, pack, first, episodes))

    def draw_views(self) -> DrawViews:
        """Return a function that computes the policy's inputs for samples from replay as this pipeline does for
        episodes.

        Raises:
            InvalidArgument: the pipeline has other connectors of yours, which need episodes; or the spaces are not
                known.
        """
        unused = [name for name, piece in self._sections.pieces.items() if type(piece) not in _OF_DRAWS]
        if unused:
            raise InvalidArgument(
                f"{self.name}: {', '.join(unused)} would not be called for draws from replay, which are no episodes: "
                "let rewriters and views change what the module sees, and the environment or the runner the rest"
            )
        spaces = HistorySpaces(self.input_observation_space, self.input_action_space)
        return DrawViews(spaces, tuple(self._sections.rewriters.values()), self.views)


# Batches from replay do not need these connectors.
_OF_DRAWS = (
    AddObservations,
    AddNextObservations,
    AddColumns,
    AddTimeDimensionAndZeroPad,
    AddStates,
    BatchItems,
    NumpyToTensor,
)


class _SeeSteps(Connector):
    """Connector that adds the columns that all views compute for each step. Columns that the batch has already are
    kept.
    """

    reads_tracks = True

    def __call__(
        self, *, batch: ColumnDict, episodes: EpisodePack, pack_views: PackViews, **kwargs: object
    ) -> ColumnDict:  # type: ignore[override]
        return {**pack_views(episodes.observation_rows()), **batch}


def _origin(
    batch: ColumnDict, pack: EpisodePack, first: EpisodePack, episodes: Sequence[SingleAgentEpisode]
) -> LazyOrigin | None:
    """Return the origin of each row of a train batch: its episode and step.

    `first` is the pack before any connector, and `pack` the last one.

    Returns:
        None if the rows are not the steps of the pack. Values per row are computed when they are read.
    """
    same = pack is first or (np.array_equal(pack.lengths, first.lengths) and np.array_equal(pack.ids, first.ids))
    source = PackSteps(first, episodes) if same else PackSteps(pack)
    if isinstance(batch, TrainBatch) and batch.lazy_origin is not None:  # of a connector whose rows are no steps
        return source, batch.lazy_origin[1]
    mask = batch.get(Columns.LOSS_MASK)
    first_column: Any = next(iter(batch.values()), None)
    shape = getattr(first_column, "shape", None)
    num_rows = _num_rows(batch) if shape is None else shape[0]
    if mask is not None and mask.ndim == 2:
        width = mask.shape[1]
        return (
            (source, partial(padded_step_indices, pack.lengths, width))
            if num_rows == num_padded_rows(pack.lengths, width)
            else None
        )
    return (source, partial(np.arange, num_rows)) if num_rows == pack.num_steps else None


def _num_rows(batch: ColumnDict) -> int:
    """Return the number of rows of the batch's first column, which may be nested."""
    columns = nested.leaves(batch)
    return len(columns[0]) if columns else 0


def _check_in_time(name: str, batch: ColumnDict, before: EpisodePack, after: EpisodePack) -> None:
    """Raise `InvalidArgument` if a connector changed rewards or actions that were already copied to the batch.

    `before` and `after` are the packs before and after the connector `name`.
    """
    if after is before:
        return
    written = {Columns.REWARDS: (before.rewards, after.rewards), Columns.ACTIONS: (before.actions, after.actions)}
    for track, (old, new) in written.items():
        if track in batch and not nested.equal(old, new):
            raise InvalidArgument(
                f"{name} wrote {track} to the episodes, but the batch has the column {track!r} already: put {name} "
                "before AddColumns, or let it change the column"
            )


def learner_pipeline(
    observation_space: gym.Space | None = None,
    action_space: gym.Space | None = None,
    *,
    pieces: Iterable[Connector | View] = (),
    views: Views | None = None,
    returns: Connector | None = None,
    next_observations: bool = False,
    policy: Policy | None = None,
    max_seq_len: int | None = None,
    device: str | torch.device | None = None,
) -> LearnerPipeline:
    """Return the default pipeline that computes a train batch from recorded episodes, with your connectors and views in
    front.

    Args:
        observation_space: space of the stored observations.
        action_space: space of the stored actions.
        pieces: rewriters, views and other connectors, which run before the default ones.
        views: bound views of the pipeline that acted, `runner.env_to_module.views`.
        returns: connector that computes advantages or targets, such as `GeneralizedAdvantageEstimation`.
        next_observations: add "new_obs", and "new_<column>" for the other columns of the views.
        policy: a recurrent policy gets padded rows of `max_seq_len` steps (20 by default) and its states.
        max_seq_len: the length of padded rows. If given, all policies get padded rows.
        device: the device of the batch.

    Raises:
        InvalidArgument: `returns` is given, and the policy cannot read what the views compute.
        UnwiredPipeline: a connector reads a column that no earlier connector provides.
    """
    if max_seq_len is None and module_of(policy).is_recurrent:
        max_seq_len = DEFAULT_MAX_SEQ_LEN
    connectors = [
        *checked_items("pieces", pieces, "your pieces"),
        AddObservations(),
        *([AddNextObservations()] if checked_flag("next_observations", next_observations) else []),
        AddColumns(),
        *([AddTimeDimensionAndZeroPad(max_seq_len=max_seq_len), AddStates()] if max_seq_len is not None else []),
        *([returns] if returns is not None else []),
        BatchItems(),
        NumpyToTensor(device=device),
    ]
    pipeline = LearnerPipeline(observation_space, action_space, connectors=connectors, views=views)
    if returns is not None and pipeline.has_views and pipeline.is_bound:
        check_reads_views(policy, pipeline.views, acts=False)
    return pipeline
