"""`TokenColumns`: connector that adds the tokens, labels and masks needed for a language model's loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from connectors.connector import ColumnDict, Connector
from episodes.batch.train_batch import TrainBatch
from episodes.columns import Columns
from episodes.pack import EpisodePack
from episodes.tokens import token_batch
from episodes.tokens.batch import Layout

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
        with_last_observation: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(input_observation_space, input_action_space, name=name)
        self.layout: Layout = layout
        self.advantages, self.episode_advantages = advantages, episode_advantages
        self.with_last_observation = with_last_observation

    def __call__(self, *, batch: ColumnDict, episodes: Any, **kwargs: Any) -> ColumnDict:
        pack = EpisodePack.from_episodes(episodes)
        columns = token_batch(
            pack,
            layout=self.layout,
            advantages=None if self.advantages is None else self.advantages(pack),
            episode_advantages=None if self.episode_advantages is None else self.episode_advantages(pack),
            with_last_observation=self.with_last_observation,
        )
        return TrainBatch({**batch, **dict(columns.items())})
