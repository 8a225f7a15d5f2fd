"""Hypothesis strategies: spaces, items, episodes, packs, histories of several agents, rows of vector environments.

They draw what a part of a reinforcement learning program may meet and seldom does: episodes without a step, arrays
that are transposed, cropped, reversed or read-only, agents that rest, endings one row after another.

>>> from hypothesis import given
>>> @given(episode=episodes(max_steps=3))
... def test_a_return_is_the_sum_of_the_rewards(episode):
...     assert episode.get_return() == sum(map(float, episode.get_rewards()))
"""

from __future__ import annotations

from episodes.errors import MissingExtra

try:
    import hypothesis as _hypothesis  # noqa: F401
except ImportError as _error:
    raise MissingExtra("episodes.testing.strategies needs hypothesis: pip install 'rl-episodes[testing]'") from _error

from episodes.testing.strategies.items import arrangements, items, spaces
from episodes.testing.strategies.multi_agent import MultiAgentHistory, multi_agent_histories
from episodes.testing.strategies.single_agent import (
    episode_arguments,
    episodes,
    infos,
    lists_of_episodes,
    packs,
)
from episodes.testing.strategies.vector_rows import EnvEpisode, VectorRow, VectorRows, vector_rows

__all__ = [
    "spaces",
    "items",
    "arrangements",
    "infos",
    "episode_arguments",
    "episodes",
    "lists_of_episodes",
    "packs",
    "MultiAgentHistory",
    "multi_agent_histories",
    "EnvEpisode",
    "VectorRow",
    "VectorRows",
    "vector_rows",
]
