"""Widths of text columns on disk: the dtype of an output after texts of any lengths."""

from __future__ import annotations

import tempfile

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import SingleAgentEpisode
from episodes.storage import EpisodeDataset, EpisodeWriter

TEXTS = st.sampled_from([1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33]).map("x".__mul__)


def with_texts(texts: list[str]) -> SingleAgentEpisode:
    count = len(texts)
    return SingleAgentEpisode.from_arrays(
        np.zeros(count + 1), np.zeros(count), np.zeros(count), extra_model_outputs={"said": np.array(texts)}
    )


@settings(max_examples=25)
@given(st.lists(st.lists(TEXTS, min_size=1, max_size=3), min_size=1, max_size=5))
def test_text_columns_widen_to_the_next_power_of_two(episodes: list[list[str]]) -> None:
    width = 0
    with tempfile.TemporaryDirectory() as path:
        with EpisodeWriter(path) as writer:
            for texts in episodes:
                writer.add(with_texts(texts))
                longest = max(map(len, texts))
                if longest > width:
                    width = longest if not width else 1 << (longest - 1).bit_length()
        stored = [episode.get_extra_model_outputs("said") for episode in EpisodeDataset(path)]
        assert [list(texts) for texts in stored] == episodes
        assert stored[-1].dtype == np.dtype(f"U{width}")
