"""Episodes added one by one wait, copied, to be packed together: in their order, and refused when they do not fit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from episodes import EpisodePack, SingleAgentEpisode
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage import writer as writing

SPACE = spaces.Discrete(5)


def one(number: int, **options: Any) -> SingleAgentEpisode:
    """Return a flat, finalized episode of one to three steps."""
    steps = number % 3 + 1
    arguments = {
        "observations": np.full((steps + 1, 2), number, np.float32),
        "actions": np.arange(steps),
        "rewards": np.full(steps, number / 2),
        "extra_model_outputs": {"logp": np.full(steps, -1.0)},
        "action_space": SPACE,
        "id_": f"e{number}",
        "terminated": number % 2 == 0,
    }
    return SingleAgentEpisode.from_arrays(**(arguments | options))


def growing(number: int) -> SingleAgentEpisode:
    return SingleAgentEpisode(
        f"e{number}",
        observations=[np.full(2, number, np.float32)] * 2,
        actions=[number % 5],
        rewards=[float(number)],
        extra_model_outputs={"logp": [np.float64(-1.0)]},
        action_space=SPACE,
        len_lookback_buffer=0,
    )


KINDS: dict[str, Callable[[int], Any]] = {
    "plain": lambda n: [one(n)],
    "another plain": lambda n: [one(n)],
    "several": lambda n: [one(n), one(n + 1)],
    "a pack": lambda n: EpisodePack.from_episodes([one(n), one(n + 1)]),
    "with infos": lambda n: [one(n, infos=[{"n": n}] + [{}] * (n % 3 + 1))],
    "with empty infos": lambda n: [one(n, infos=[{}] * (n % 3 + 2))],
    "with custom data": lambda n: [one(n, custom_data={"n": n})],
    "of an agent": lambda n: [one(n, agent_id=f"a{n}", module_id="m", multi_agent_episode_id="g")],
    "with a number for an id": lambda n: [one(n, id_=n)],
    "growing": lambda n: [growing(n)],
    "a chunk with lookback": lambda n: [one(n + 2 - n % 3, id_=f"e{n}")[1:]],
    "no step": lambda n: [SingleAgentEpisode(str(n), observations=[np.zeros(2, np.float32)], len_lookback_buffer=0)],
    "large": lambda n: [
        one(
            n,
            observations=np.zeros((201, 2), np.float32),
            actions=np.zeros(200, np.int64),
            rewards=np.zeros(200),
            extra_model_outputs={"logp": np.zeros(200)},
        )
    ],
}


@given(names=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=12))
def test_episodes_added_one_by_one_keep_their_order(names: list[str]) -> None:
    added = [KINDS[name](5 * number + 10) for number, name in enumerate(names)]
    with tempfile.TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "SMALL_BYTES", 2000)
        with EpisodeWriter(path) as writer:
            writer.add([one(0)])
            for episodes in added:
                writer.add(episodes)
        dataset = EpisodeDataset(path)
        expected = [one(0), *(SingleAgentEpisode.from_state(e.get_state()).to_numpy() for part in added for e in part)]
        assert len(dataset) == len(expected)
        for result, episode in zip(dataset, expected, strict=True):
            if not len(episode):
                episode.action_space = SPACE  # it had none, and gets the data set's
                result.extra_model_outputs = {}
            assert result.equals(episode)


def test_small_episodes_share_record_batches(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        for number in range(1000):
            writer.add([one(number)])
    dataset = EpisodeDataset(tmp_path)
    assert len(list(dataset.packs())) == 1
    assert dataset.metadata["id"].tolist() == [f"e{number}" for number in range(1000)]
