"""Pages of data sets in which an id belongs to several episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from episodes import SingleAgentEpisode
from episodes.inspect.html_report import overview
from episodes.storage import EpisodeDataset, EpisodeWriter


def test_columns_that_are_left_out_are_named(tmp_path: Path) -> None:
    writers = [EpisodeWriter(tmp_path) for _ in range(2)]  # none knows the episodes of the other
    for writer in writers:
        whole = SingleAgentEpisode.from_arrays(np.arange(4.0), np.zeros(3, int), np.ones(3), id_="e", truncated=True)
        writer.add([whole])
    for writer in writers:
        writer.close()
    table = overview(EpisodeDataset(tmp_path))
    assert table["num"] == 2
    assert "length" in table["columns"]
    assert table["missing"].endswith(", since an id belongs to several episodes")
    for name in table["missing"].removeprefix("no ").split(", since")[0].split(", "):
        assert name not in table["columns"]


def test_nothing_is_missing_without_equal_ids(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        writer.add([SingleAgentEpisode.from_arrays(np.arange(4.0), np.zeros(3, int), np.ones(3))])
    assert overview(EpisodeDataset(tmp_path))["missing"] == ""
