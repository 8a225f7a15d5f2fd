"""`TokenColumns`: connector that adds the tokens, labels and masks needed for a language model's loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from connectors.connector import ColumnDict, Connector
from episodes.batch.train_batch import TrainBatch
from episodes.columns import Columns
from episodes.pack import EpisodePack
from episodes.pack.steps import PackSteps
from episodes.tokens import token_batch
from episodes.tokens.batch import Layout
from episodes.tracks.validation import checked_items

if TYPE_CHECKING:
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["TokenColumns"]

MakeAdvantages = Callable[[EpisodePack], np.ndarray]


class TokenColumns(Connector):
    """Connector that adds the columns of `episodes.token_batch`, such as tokens and labels, for training language
    agents.

    Rows are tokens, not steps, so use it in a `ConnectorPipeline`, followed by `NumpyToTensor`.

    Args:
        layout: "packed" or "padded".
        advantages: function that returns the advantage of each turn of a pack, [num_steps].
        episode_advantages: function that returns the advantage of each episode of a pack, [n].
        token_advantages: function that returns the advantage of each sampled token of a pack, [A] or ragged.
        episode_weights: function that returns the weight of each episode of a pack, [n].
        infos: keys of infos that become columns, such as "images". None: no column, and infos must not have "images".
        with_last_observation: include the tokens after the last turn.
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        name: name of the connector in its pipeline.
    """

    reads_tracks = True
    writes = ("input_ids", "labels", Columns.LOSS_MASK, "position_ids")

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        layout: Layout = "packed",
        advantages: MakeAdvantages | None = None,
        episode_advantages: MakeAdvantages | None = None,
        token_advantages: Callable[[EpisodePack], Any] | None = None,
        episode_weights: MakeAdvantages | None = None,
        infos: Sequence[str] | None = None,
        with_last_observation: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(input_observation_space, input_action_space, name=name)
        self.layout: Layout = layout
        self.advantages, self.episode_advantages = advantages, episode_advantages
        self.token_advantages, self.episode_weights = token_advantages, episode_weights
        self.infos = None if infos is None else tuple(checked_items("TokenColumns: infos", infos, "keys of infos"))
        self.with_last_observation = with_last_observation

    def __call__(self, *, batch: ColumnDict, episodes: Sequence[SingleAgentEpisode], **kwargs: object) -> ColumnDict:
        pack = EpisodePack.from_episodes(episodes)
        functions = {
            name: getattr(self, name)
            for name in ("advantages", "episode_advantages", "token_advantages", "episode_weights")
        }
        columns = token_batch(
            pack,
            layout=self.layout,
            **{name: function(pack) for name, function in functions.items() if function is not None},
            infos=self.infos,
            with_last_observation=self.with_last_observation,
        )
        origin = PackSteps(pack, episodes), columns.origin.numbers
        return TrainBatch({**batch, **dict(columns.items())}, origin)
