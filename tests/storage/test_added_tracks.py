"""Tracks that come later: old episodes read as if they had had them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episodes import SingleAgentEpisode
from episodes.errors import InvalidArgument, TrackMismatch, WrongType
from episodes.storage import EpisodeDataset, EpisodeWriter, add_track, compact, copy
from episodes.storage.sampling import StepBatches


def episode(i: int, **extra: Any) -> SingleAgentEpisode:
    return SingleAgentEpisode.from_arrays(
        np.arange(4.0) + i, np.arange(3), np.ones(3), id_=f"e{i}", extra_model_outputs=extra
    )


@pytest.mark.parametrize("before", [{}, {"value": np.arange(3.0)}])
def test_add_track_fills_old_episodes_with_the_item(tmp_path: Path, before: dict[str, Any]) -> None:
    path, scores = tmp_path / "data", np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    with EpisodeWriter(path) as at_work:
        at_work.add([episode(0, **before)])
        at_work.flush()
        add_track(path, "a/b", np.float32([np.nan, -1]))
        at_work.add([episode(1, **before)])
    with EpisodeWriter(path) as writer:
        writer.add([episode(2, **before, **{"a/b": scores})])
        with pytest.raises(TrackMismatch, match=r"the given episodes have no track '.*a~1b'"):
            writer.add([episode(3, **before)])
    compact(path)
    for result in (
        EpisodeDataset(path, verify=True),
        EpisodeDataset(tmp_path / "copy") if copy(path, tmp_path / "copy") else [],
    ):
        pack = result.pack()
        read = pack.extra_model_outputs["a/b"]
        assert read.dtype == np.float32
        assert np.isnan(read[:6, 0]).all()
        assert (read[:6, 1] == -1).all()
        assert (read[6:] == scores).all()
        assert [e.id_ for e in result] == ["e0", "e1", "e2"]
        assert result[1].get_extra_model_outputs("a/b").shape == (3, 2)
        assert set(result[2].extra_model_outputs) == {"a/b", *before}
    with pytest.raises(InvalidArgument, match="already"):
        add_track(path, "a/b", 0.0)


def test_add_track_without_steps_raises(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path):
        pass
    with pytest.raises(InvalidArgument, match="no episode with a step yet"):
        add_track(tmp_path, "logp", 0.0)


def test_statistics_after_add_track_count_filled_items(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        writer.add([episode(0)])
    assert "extra_model_outputs/value" not in EpisodeDataset(tmp_path).statistics()
    add_track(tmp_path, "value", np.nan)
    with EpisodeWriter(tmp_path) as writer:
        writer.add([episode(1, value=np.arange(3.0))])
    for _ in range(2):
        result = EpisodeDataset(tmp_path).statistics()["extra_model_outputs/value"]
        assert (int(result.count), int(result.num_nan), float(result.mean)) == (3, 3, 1.0)


def test_added_text_track_takes_longer_text(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        writer.add([episode(0)])
    add_track(tmp_path, "said", "no")
    with EpisodeWriter(tmp_path) as writer:
        writer.add([episode(1, said=np.array(["something longer", "", "x"]))])
    dataset, words = EpisodeDataset(tmp_path, verify=True), ["no", "no", "no", "something longer", "", "x"]
    assert dataset.pack().extra_model_outputs["said"].tolist() == words
    batch = dataset.sampler(steps=StepBatches(6, keys=["said"]), order="stored").draw()
    assert batch["said"].tolist() == words
    with pytest.raises(WrongType, match="key 3"):
        add_track(tmp_path, 3, 0.0)  # type: ignore[reportArgumentType]
    with pytest.raises(TrackMismatch, match=r"\['obs'\] have names of columns"):
        add_track(tmp_path, "obs", 0.0)
