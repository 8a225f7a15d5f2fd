"""Hypothesis strategies for tests: they generate spaces, items, episodes, packs and vector environment results.

They cover rare cases: episodes without a step, arrays that are transposed, cropped, reversed or read-only, agents that
skip env steps, and endings in consecutive rows.

>>> from hypothesis import given
>>> @given(episode=episodes(max_steps=3))
... def test_a_return_is_the_sum_of_the_rewards(episode):
...     assert episode.get_return() == sum(map(float, episode.get_rewards()))
"""

from __future__ import annotations

from episodes.errors import MissingExtra, install_advice

try:
    import hypothesis as _hypothesis  # noqa: F401
except ImportError as _error:
    raise MissingExtra(f"episodes.testing.strategies needs hypothesis; {install_advice('testing')}") from _error

from episodes.testing.strategies.items import arrangements as arrangements
from episodes.testing.strategies.items import items, spaces
from episodes.testing.strategies.multi_agent import MultiAgentHistory as MultiAgentHistory
from episodes.testing.strategies.multi_agent import multi_agent_histories
from episodes.testing.strategies.single_agent import episode_arguments as episode_arguments
from episodes.testing.strategies.single_agent import episodes, infos, lists_of_episodes, packs
from episodes.testing.strategies.vector_rows import EnvEpisode as EnvEpisode
from episodes.testing.strategies.vector_rows import VectorRow as VectorRow
from episodes.testing.strategies.vector_rows import VectorRows as VectorRows
from episodes.testing.strategies.vector_rows import vector_rows

__all__ = ["spaces", "items", "infos", "episodes", "lists_of_episodes", "packs", "multi_agent_histories", "vector_rows"]
