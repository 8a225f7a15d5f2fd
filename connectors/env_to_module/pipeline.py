"""Episodes -> the policy's input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import torch

from connectors.batch_items import BatchItems
from connectors.connector import Batch, Connector
from connectors.editable import EditableEpisodes
from connectors.env_to_module.add_observations import AddObservations
from connectors.env_to_module.add_states import AddStates
from connectors.env_to_module.add_time_dimension import AddTimeDimension
from connectors.env_to_module.frame_stacking import FrameStacking
from connectors.pipeline import ConnectorPipeline, call_piece
from connectors.policy import module_of
from connectors.rewriting import ObservationRewriter
from connectors.tensors import NumpyToTensor
from connectors.trace import Trace
from episodes.columns import Columns
from episodes.errors import InvalidArgument, UnwiredPipeline
from episodes.recorder import OngoingEpisodes

__all__ = ["EnvToModulePipeline", "env_to_module_pipeline"]


class EnvToModulePipeline(ConnectorPipeline):
    """Makes the policy's input batch out of ongoing episodes, or out of the vector row that the runner has.

    `rewrite` sends observations through the pieces that rewrite them, which come first: what it gives is what an
    episode stores. `recorded_observation_space` is the space of that, `observation_space` of what the policy sees, and
    `lookback` the least `len_lookback_buffer` with which the learner pipeline can see the same.
    """

    given = (Columns.OBS,)
    _rewriters: tuple[ObservationRewriter, ...] = ()

    def rewrite(self, observations: Any, episodes: Any = None, update: bool = True) -> Any:
        """The observations, nested arrays [N, ...], after all rewriters; for each new observation called once.

        Args:
            episodes: the ongoing episodes [N], as they were before these observations.
            update: pieces that learn from observations learn from these.
        """
        for rewriter in self._rewriters:
            observations = rewriter.rewrite(observations, episodes, update)
        return observations

    @property
    def rewrites(self) -> bool:
        """Whether there are rewriters."""
        return bool(self._rewriters)

    @property
    def recorded_observation_space(self) -> gym.Space | None:
        """The space of the observations that `rewrite` gives."""
        return self._rewriters[-1].observation_space if self._rewriters else self.input_observation_space

    def _rewire(self, pieces: dict[str, Connector]) -> None:
        viewer = None
        for name, piece in pieces.items():
            if viewer is not None and isinstance(piece, (ObservationRewriter, FrameStacking)):
                raise UnwiredPipeline(
                    f"{name} works on what episodes store, {viewer} changes what the policy sees of it: "
                    f"put {name} before {viewer}"
                )
            if viewer is None and not isinstance(piece, ObservationRewriter) and Columns.OBS in piece.writes:
                viewer = name
        super()._rewire(pieces)
        self._rewriters = tuple(piece for piece in pieces.values() if isinstance(piece, ObservationRewriter))
        self._straight = all(piece.reads_tracks for piece in pieces.values())

    def _run(self, batch: Batch, episodes: Any, trace: Trace | None, context: dict[str, Any]) -> Batch:
        for name, piece in self._pieces.items():
            kept = (
                None if piece.reads_tracks or not isinstance(episodes, OngoingEpisodes) else EditableEpisodes(episodes)
            )
            given = episodes if kept is None else kept
            batch = call_piece(piece, name, trace, {"batch": batch, "episodes": given, **context})
            if kept is not None and kept.changed:
                raise InvalidArgument(
                    f"{name} wrote to an episode that is being recorded, where it would be lost: to change what is "
                    "stored, derive it from ObservationPreprocessor; to shape rewards, put it into the learner pipeline"
                )
        return batch


def env_to_module_pipeline(
    observation_space: gym.Space | None = None,
    action_space: gym.Space | None = None,
    *,
    pieces: Iterable[Connector] = (),
    policy: Any = None,
    device: str | torch.device | None = None,
) -> EnvToModulePipeline:
    """The default pipeline from episodes to the policy's input, on a device.

    Args:
        observation_space: the space of one environment's observations.
        action_space: the space of one environment's actions.
        pieces: your own, which come first.
        policy: for one with a memory, the batch gets its states and a time axis.
    """
    recurrent = [AddTimeDimension(), AddStates()] if module_of(policy).has_memory else []
    return EnvToModulePipeline(
        observation_space,
        action_space,
        connectors=[*pieces, AddObservations(), BatchItems(), *recurrent, NumpyToTensor(device=device)],
    )
