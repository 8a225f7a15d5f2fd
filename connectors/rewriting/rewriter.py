"""`ObservationRewriter`: base class of connectors that change observations before episodes store them.

A runner applies the rewriters to each vector row before it is recorded. When called with growing episodes, a rewriter
replaces each episode's last observation once. In a learner pipeline it rewrites all observations of the pack.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from connectors.connector import ColumnDict, Connector
from connectors.space_checks import describe_mismatch
from episodes.columns import Columns
from episodes.data_types import NestedArrays
from episodes.errors import InvalidArgument, ShapeMismatch
from episodes.pack import EpisodePack
from episodes.single_agent.episodes_history import check_single_shape
from episodes.tracks import nested

if TYPE_CHECKING:
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["ObservationRewriter"]


class ObservationRewriter(Connector):
    """Base class of connectors that change observations before episodes store them, such as normalization filters."""

    reads_tracks = True
    changes_rows = False  # `rewrite` has changed complete rows already
    _rewritten: frozenset[tuple[str, int]] = frozenset()  # (episode id, t) of what the last call by hand rewrote

    @abstractmethod
    def rewrite(
        self, observations: NestedArrays, episodes: Sequence[SingleAgentEpisode] | None = None, update: bool = True
    ) -> Any:
        """Return new observations [N, ...] in the form that episodes store, for example normalized.

        Args:
            observations: nested arrays [N, ...].
            episodes: the episodes [N] of the observations, each with its observation as the last one, created when
                read; None if there are none.
            update: whether the rewriter learns statistics from the observations.
        """

    def check_place(self) -> None:
        """Raise `InvalidArgument` if this connector can only be used in `joint=` of a multi-agent pipeline, not in a
        single-agent pipeline.
        """

    def __call__(
        self, *, batch: ColumnDict, episodes: Sequence[SingleAgentEpisode] = (), **kwargs: object
    ) -> ColumnDict:
        """Rewrite the last observation of each growing episode in place, once per step. Return the batch unchanged.

        Given a pack, or a batch that has observations, nothing is rewritten.

        Raises:
            InvalidArgument: an episode is finalized.
        """
        if Columns.OBS not in batch and not isinstance(episodes, EpisodePack):
            self._rewrite_last(list(self.single_agent_episode_iterator(episodes)))
        return batch

    def _rewrite_last(self, episodes: list[Any]) -> None:
        """Rewrite the last observation of each episode in place, once per time step. Raise `InvalidArgument` for
        finalized episodes.
        """
        finalized = [episode.id_ for episode in episodes if episode.is_numpy]
        if finalized:
            raise InvalidArgument(
                f"{self.name}: episode {finalized[0]} is finalized; observations are rewritten while an episode grows, "
                "or all at once in a learner pipeline"
            )
        new = [episode for episode in episodes if (episode.id_, episode.t) not in self._rewritten]
        for episode in new:
            check_single_shape(episode, "observations")
        if new:
            rewritten = self.rewrite(nested.stack([episode.get_observations(-1) for episode in new]), new)
            for row, episode in enumerate(new):
                episode.set_observations(new_data=nested.take(rewritten, row), at_indices=-1)
        self._rewritten = frozenset((episode.id_, episode.t) for episode in episodes)

    def rewritten_pack(self, pack: EpisodePack) -> EpisodePack:
        """Return recorded episodes (a pack) with all observations rewritten, lookbacks included. No statistics are
        learned.

        Raises:
            ShapeMismatch: the rewritten observations do not fit the declared space.
        """
        observations = self.rewrite(pack.observations, None, False)
        check_rewritten(self, self.name, observations, pack.observations)
        return pack.replace(observations=observations, observation_space=self.observation_space)


def check_rewritten(piece: ObservationRewriter, name: str, rows: NestedArrays, original: NestedArrays) -> None:
    """Check that rewritten observations fit the space that their rewriter declares, in structure, shape and dtype.

    Raises:
        ShapeMismatch: they do not fit.
    """
    misfit = describe_mismatch(rows, piece.observation_space, len(nested.first_leaf(original)))
    if misfit:
        raise ShapeMismatch(
            f"{name}: the rewritten observations {misfit}; it declares {piece.observation_space}, for "
            f"{len(nested.first_leaf(original))} rows: return the right space in recompute_output_observation_space"
        )
