"""Statistics of tracks equal numpy's, merge, and are computed once per shard."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from episodes import SingleAgentEpisode
from episodes.errors import InvalidArgument
from episodes.storage import EpisodeDataset, EpisodeWriter, compact
from episodes.storage.search import statistics
from episodes.storage.search.sketch import Sketch
from episodes.storage.search.statistics import TrackStatistics


def alike(statistics: TrackStatistics, items: np.ndarray) -> None:
    """Check the statistics of items [n, ...] against numpy."""
    is_number = ~np.isnan(items)
    assert statistics.count.tolist() == is_number.sum(0).tolist()
    assert statistics.num_nan.tolist() == (~is_number).sum(0).tolist()
    for place in np.ndindex(items.shape[1:]):
        values = items[(slice(None), *place)]
        values = values[~np.isnan(values)]
        if len(values):
            assert (statistics.min[place], statistics.max[place]) == (values.min(), values.max())
            scale = np.abs(values).max()
            np.testing.assert_allclose(statistics.mean[place], values.mean(), atol=1e-12 * scale)
            np.testing.assert_allclose(statistics.std[place], values.std(), atol=1e-7 * scale)
            for share in (0.0, 0.25, 0.5, 0.99, 1.0):
                near = np.quantile(values, share, method="lower"), np.quantile(values, share, method="higher")
                low, high = (sorted((value * (1 - 1 / 128), value * (1 + 1 / 128))) for value in near)
                assert low[0] <= statistics.quantile(share)[place] <= high[1]


NUMBERS = st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-6) | st.just(np.nan)


@given(
    items=arrays.arrays(np.float64, st.tuples(st.integers(0, 40), st.integers(1, 3)), elements=NUMBERS),
    cuts=st.lists(st.integers(0, 40), max_size=3),
)
def test_merged_statistics_equal_those_of_all(items: np.ndarray, cuts: list[int]) -> None:
    first, *further = (
        TrackStatistics.of(part) for part in np.split(items, sorted(min(cut, len(items)) for cut in cuts))
    )
    for second in further:
        first = first.merged(TrackStatistics.from_json(second.to_json()))
    alike(first, items)
    whole = TrackStatistics.of(items)
    assert all(a.bins.tolist() == b.bins.tolist() for a, b in zip(first.sketches, whole.sketches, strict=True))
    assert all(a.counts.tolist() == b.counts.tolist() for a, b in zip(first.sketches, whole.sketches, strict=True))


def test_statistics_of_infinite_and_huge_values() -> None:
    items = np.array(
        [[1.0, np.inf, -np.inf, np.inf, 1e308], [2.0, 3.0, 4.0, -np.inf, 1e308], [3.0, np.nan, 5.0, 6.0, 1.0]]
    )
    whole, first = TrackStatistics.of(items), TrackStatistics.of(items[:1])
    for part in (items[1:2], np.full((1, 5), np.nan), items[2:]):
        first = first.merged(TrackStatistics.of(part))
    for result in (whole, first):
        np.testing.assert_array_equal(result.mean[:4], [2.0, np.inf, -np.inf, np.nan])
        np.testing.assert_array_equal(result.std[:4], [np.std([1, 2, 3]), np.nan, np.nan, np.nan])
        assert result.max.tolist() == [3.0, np.inf, 5.0, np.inf, 1e308]
    for wrong in (-0.1, 1.1, np.nan):
        with pytest.raises(InvalidArgument, match="share"):
            whole.quantile(wrong)


def test_quantiles_are_whole_or_near() -> None:
    assert TrackStatistics.of(np.array([[1], [2], [2], [200]])).quantile(0.5) == 2
    assert TrackStatistics.of(np.array([1.0, 0.0, 1.0])).quantile(0.5) == 1.0
    many = np.random.default_rng(0).normal(size=200_000)
    for share in (0.01, 0.3, 0.9):
        np.testing.assert_allclose(Sketch.of(many).quantile(share), np.quantile(many, share), rtol=1 / 128)
    text = TrackStatistics.of(np.array([np.inf, 1.0, -np.inf]))
    assert (text.min, text.max, text.count) == (-np.inf, np.inf, 3)
    assert np.isnan(text.std)


def episode(i: int, num: int) -> SingleAgentEpisode:
    return SingleAgentEpisode.from_arrays(
        {"at": np.random.default_rng(i).normal(size=(num + 1, 3)), "frame": np.full((num + 1, 40, 40), i, np.uint8)},
        np.arange(num),
        np.where(np.arange(num) % 3 == 0, np.nan, i / 8),
        id_=f"e{i}",
    )


def written(path: Path, numbers: range) -> EpisodeDataset:
    with EpisodeWriter(path, shard_bytes=20_000) as writer:
        for i in numbers:
            writer.add([episode(i, i % 6)])
            writer.flush()
    return EpisodeDataset(path)


def test_data_set_statistics_equal_numpy_and_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    counted = statistics.of_batch

    def of_batch(stored, rows=None):
        read.append(len(stored))
        return counted(stored, rows)

    monkeypatch.setattr("episodes.storage.dataset.of_batch", of_batch)
    dataset = written(tmp_path, range(12))
    for num_read in (12, 0):
        read.clear()
        result, pack = EpisodeDataset(tmp_path).statistics(), dataset.pack()
        assert sum(read) == num_read
        alike(result["observations/at"], pack.observations["at"])
        alike(result["rewards"], pack.rewards)
        alike(result["observations/frame"], pack.observations["frame"].ravel())
    dataset = written(tmp_path, range(12, 16))
    read.clear()
    alike(dataset.statistics()["rewards"], dataset.pack().rewards)
    assert sum(read) == 4
    alike(dataset[2:9:3].statistics()["observations/at"], dataset[2:9:3].pack().observations["at"])
    compact(tmp_path)
    alike(EpisodeDataset(tmp_path).statistics()["rewards"], dataset.pack().rewards)
    (tmp_path / "statistics.json").write_text("nonsense")
    alike(EpisodeDataset(tmp_path).statistics()["rewards"], dataset.pack().rewards)


def test_statistics_leave_out_lookbacks(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        whole = episode(0, 9)
        chunk = SingleAgentEpisode(
            observations=[whole.get_observations(t) for t in range(10)],
            actions=[*range(9)],
            rewards=[float(t) for t in range(9)],
            len_lookback_buffer=3,
        ).to_numpy()
        writer.add([chunk])
    result = EpisodeDataset(tmp_path).statistics()
    assert result["rewards"].count == 6
    assert result["observations/at"].count.tolist() == [7, 7, 7]


def test_statistics_of_data_set_without_steps(tmp_path: Path) -> None:
    dataset = written(tmp_path, range(1))
    assert dataset.statistics()["observations/at"].count.tolist() == [1, 1, 1]
    assert dataset[:0].statistics() == {}


def test_statistics_on_read_only_disk_are_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(statistics, "put", full)
    dataset = written(tmp_path, range(4))
    assert dataset.statistics()["actions"].count == dataset.num_steps


@given(st.floats(-1e300, 1e300), st.integers(1, 4000), st.integers(1, 9))
@example(0.1, 20_000, 3)
def test_equal_numbers_have_no_standard_deviation(value: float, count: int, num_parts: int) -> None:
    """Wherever one is computed, whatever the mean is rounded to."""
    from episodes.command.track_tables import summarized
    from episodes.inspect.cards.rows import parts_table, rows_of
    from episodes.inspect.series import Series
    from episodes.inspect.update_measures import correlation

    values = np.full(count, value)
    merged = reduce(TrackStatistics.merged, [TrackStatistics.of(part) for part in np.array_split(values, num_parts)])
    with np.errstate(over="ignore", invalid="ignore"):
        std = float(values.std())
    if np.isfinite(std):
        assert summarized({"x": values})["x"]["std"] == 0
        assert np.isnan(correlation(values, np.arange(count, dtype=np.float64)))
        series = Series("x", "extra", np.stack([values, values], 1), count)
        assert not any("±" in mean for row in rows_of([series], None)[0] for _, _, mean, _ in row.stats)
        table = parts_table(series, False)
        if table is not None and "std" in table.columns:
            assert all(row[table.columns.index("std")] == "0" for row in table.rows)
    if np.isfinite(merged.std):
        assert merged.std == 0


@given(st.integers(-(2**50), 2**50))
def test_standard_deviations_of_near_numbers_remain(value: int) -> None:
    from episodes.command.track_tables import summarized

    values = np.array([value, value + 1])
    assert TrackStatistics.of(values).std == summarized({"x": values})["x"]["std"] == 0.5
