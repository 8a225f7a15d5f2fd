"""What is drawn comes back from the drawing: places, extremes, counts, shares and order, for episodes of all kinds."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.batch import Batch
from episodes.inspect import charts, compare_episodes, sparklines
from episodes.inspect.cards.rows import rows_of
from episodes.inspect.colours import DEFECT
from episodes.inspect.downsampling import stacked_items
from episodes.inspect.formatting import number
from episodes.inspect.html_report import _lanes, episode_data, of_games
from episodes.inspect.page_messages import encode
from episodes.inspect.scales import MOST_EXACT, MOST_WHOLE_BINS
from episodes.inspect.schema import read_schema
from episodes.inspect.series import Series, of_tracks
from episodes.inspect.sparklines import UNITS, WIDTH, Axis
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset
from episodes.storage.games import GameDataset
from episodes.testing.strategies import episodes as single_agent_episodes
from episodes.testing.strategies import multi_agent_histories
from episodes.tokens import Conversation
from tests.command.running import output
from tests.inspection.data import write
from tests.inspection.test_extremes import pixels

LOGP = [[-0.5, -2.0, -0.25], [-1.5]]


def conversation(tokens: tuple[int, ...] = (3, 4, 5)) -> SingleAgentEpisode:
    """Return a conversation of two turns with log-probabilities."""
    talk = Conversation("talk", outputs={"logp": np.float32})
    talk.begin([1, 2])
    talk.turn(list(tokens), [6], 0.0, logp=LOGP[0])
    talk.turn([7], [8], 1.0, logp=LOGP[1])
    return talk.episode.to_numpy()


def walk(lengths: list[int], **facts: Any) -> list[SingleAgentEpisode]:
    """Return episodes whose rewards and observations are all different."""
    random = np.random.default_rng(sum(lengths))
    return [
        SingleAgentEpisode.from_arrays(
            random.normal(size=n + 1), random.integers(0, 3, n), random.normal(size=n), id_=f"e{i}", **facts
        )
        for i, n in enumerate(lengths)
    ]


def strokes(svg: str) -> list[np.ndarray]:
    """Return the points [k, 2] of each line of an SVG picture."""
    lines = []
    for x, y, rest in re.findall(r"M(-?\d+) (-?\d+)(?:l([-\d ]*)|h8)", svg.split("<g ")[-1]):
        steps = np.array(rest.split(), int).reshape(-1, 2)
        start = [int(x) + (0 if rest else 4), int(y)]  # a single point is a dash around it
        lines.append(np.array([start, *(start + steps.cumsum(0))]))
    return lines


def by_label(episode: Any) -> dict[str, Series]:
    return {series.label: series for series in of_tracks(episode.tracks)}


# --- items of different lengths ---------------------------------------------------------------------------------------


def test_series_of_ragged_tracks_have_the_dtype_of_the_values() -> None:
    series = by_label(conversation())
    assert [(series[name].shape_text, series[name].dtype) for name in ("actions", "logp")] == [
        ("[2, ragged]", "int32"),
        ("[2, ragged]", "float32"),
    ]
    assert series["actions"].range == (1, 2, 3)
    assert series["actions"].remarks == ["lengths of ragged items"]
    assert series["logp"].ranges[:, [0, 2]].tolist() == [[-2.0, -1.5], [-1.75, -0.875], [-1.5, -0.25]]
    assert series["logp"].ranges[1, 1] == pytest.approx(np.mean([np.mean(item) for item in LOGP]))
    assert "logp · length" not in series  # those of the actions


def test_lengths_that_are_not_those_of_the_actions_are_a_series() -> None:
    episode = SingleAgentEpisode(ragged={"notes": np.float32})
    episode.add_env_reset(0.0)
    for num in (2, 4):
        episode.add_env_step(0.0, 1, 0.0, extra_model_outputs={"notes": np.ones(num, np.float32)})
    assert by_label(episode.to_numpy())["notes · length"].range == (2, 3, 4)


@pytest.mark.parametrize("view", ["card", "show", "page", "compare", "json"])
def test_views_of_ragged_tracks_name_lengths_as_lengths(view: str, tmp_path: Path) -> None:
    talk = conversation()
    if view == "card":
        html = talk._repr_html_() or ""
        assert "[2, ragged] int32" in html
        assert "[2, ragged] float32" in html
        assert "[2] int64" not in html
    elif view == "page":
        lanes = {lane["label"]: lane for lane in episode_data(talk)["lanes"]}
        assert lanes["actions · length"]["note"] == "lengths of ragged items"
        assert lanes["logp · highest"]["values"].tolist() == [-0.25, -1.5]
    elif view == "compare":
        assert not compare_episodes(talk, conversation())
        [difference] = compare_episodes(talk, conversation((3, 9, 5))).tracks
        assert (difference.track, difference.step, difference.num_steps) == ("actions", 0, 1)
    else:
        path = write(tmp_path / "data", [talk])
        text = output("show", path, *["--json"][: view == "json"])
        expected = '"shape": [2, null], "dtype": "int32"' if view == "json" else "[2, ragged]  int32"
        assert expected in text


@given(st.lists(st.lists(st.floats(-5, 5) | st.sampled_from([np.nan, np.inf]), max_size=4), min_size=1, max_size=5))
def test_ragged_values_have_their_extremes_and_no_invented_nan(items: list[list[float]]) -> None:
    episode = SingleAgentEpisode(ragged={"actions": np.float64})
    episode.add_env_reset(0.0)
    for item in items:
        episode.add_env_step(0.0, np.array(item), 0.0)
    series = by_label(episode.to_numpy())["actions"]
    values = np.array([value for item in items for value in item])
    finite = values[np.isfinite(values)]
    assert np.array_equal([series.range[0], series.range[2]], [finite.min(), finite.max()]) if len(finite) else True
    assert np.isclose(series.range[1], finite.mean() if len(finite) else np.nan, equal_nan=True)
    assert bool(series.counts.nan or series.counts.infinite) == bool(len(finite) < len(values))
    assert series.counts.missing == sum(not item for item in items)


@given(
    st.lists(st.tuples(*[st.floats(-5, 5) | st.sampled_from([np.nan, np.inf, -np.inf])] * 3), min_size=1),
    st.sampled_from(["float16", "float32", "float64"]),
    st.data(),
)
def test_mean_of_a_track_is_that_of_its_finite_numbers(
    items: list[tuple[float, ...]], dtype: str, data: st.DataObject
) -> None:
    array = np.array(items, dtype)
    present = np.array([data.draw(st.booleans()) for _ in items])
    series = Series("x", "infos", array, len(array), present=present)
    finite = array[present].astype(float)
    finite = finite[np.isfinite(finite)]
    expected = (finite.min(), finite.mean(), finite.max()) if len(finite) else (np.nan,) * 3
    assert np.allclose(series.range, expected, rtol=1e-6, atol=1e-6, equal_nan=True)


# --- packs ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8))
def test_pack_tracks_share_one_axis_and_no_line_joins_episodes(lengths: list[int]) -> None:
    """The first step of an episode is half a step after its first observation, in all episodes."""
    pack = EpisodePack.from_episodes(walk(lengths, terminated=True))
    axis = Axis(int(pack.observation_offsets[-1]), 0, np.cumsum(np.array(lengths) + 1)[:-1])
    tracks = {series.label: series for series in of_tracks(pack.columns)}
    width = UNITS * WIDTH / axis.span
    for name, more in (("rewards", 0), ("observations", 1)):
        lines = strokes(sparklines.picture(tracks[name], axis, 1000))
        starts = (np.cumsum([0, *(n + 1 for n in lengths)])[:-1] + (0 if more else 0.5)) * width
        assert [len(np.unique(line[:, 0])) for line in lines] == [n + more for n in lengths]
        assert [line[:, 0].min() for line in lines] == pytest.approx(starts.tolist(), abs=1)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(5, 60))
def test_no_line_of_a_reduced_pack_joins_episodes(lengths: list[int], points: int) -> None:
    """A line is within one episode, or a vertical line of a cell that has steps of several."""
    pack = EpisodePack.from_episodes(walk(lengths, terminated=True))
    starts = np.cumsum([0, *(n + 1 for n in lengths)])
    axis = Axis(int(starts[-1]), 0, starts[1:-1])
    tracks = {series.label: series for series in of_tracks(pack.columns)}
    for name in ("rewards", "observations"):
        lines = strokes(sparklines.lines(tracks[name], axis, points))
        for line in lines:
            begin, end = line[:, 0].min(), line[:, 0].max()
            borders = starts[1:-1] * UNITS * WIDTH / axis.span
            assert begin == end or not ((begin + 1 < borders) & (borders < end - 1)).any()
        heights = np.concatenate([line[:, 1] for line in lines])
        if pack.num_steps > 1 or name == "observations":
            assert (heights.min(), heights.max()) == (2 * UNITS, 2 * UNITS * sparklines.LANE - 2 * UNITS)


def test_lines_of_a_long_episode_of_a_pack_are_lines() -> None:
    pack = EpisodePack.from_episodes(walk([300, 300, 300], terminated=True))
    axis = Axis(int(pack.observation_offsets[-1]), 0, np.array([301, 602]))
    rewards = {series.label: series for series in of_tracks(pack.columns)}["rewards"]
    lines = strokes(sparklines.lines(rewards, axis, 100))
    assert sum(len(np.unique(line[:, 0])) > 10 for line in lines) == 6  # a band and the means of each


def boxes(svg: str, kind: str) -> np.ndarray:
    """Return left, top, right and bottom of each box of a path, [k, 4]."""
    path = re.findall(rf'class="[^"]*{kind}"[^>]* d="([^"]*)"', svg)[0]
    return np.array(re.findall(r"M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)H", path), float)


@given(st.lists(st.tuples(st.integers(0, 9) | st.just(np.nan), st.integers(0, 2)), min_size=101, max_size=400))
def test_chart_of_many_returns_has_their_quartiles_and_endings(episodes: list[tuple[float, int]]) -> None:
    returns = np.array([each for each, _ in episodes], float)
    ending = np.array([each for _, each in episodes])
    svg = str(charts.returns(returns, ending == 0, ending == 1) or "")
    finite = returns[np.isfinite(returns)]
    if not len(finite):
        assert not svg
        return
    if finite.min() == finite.max():
        assert "<svg" not in svg
        return
    every = -(-len(returns) // charts.MOST_CELLS)
    cells = [returns[i : i + every] for i in range(0, len(returns), every)]
    cells = [cell[np.isfinite(cell)] for cell in cells]
    middle = boxes(svg.replace('class="ep-band"', 'class="ep-range"', 1), "ep-band")
    found = [(top + 0.5, bottom - 0.5) for _, top, _, bottom in middle.tolist()]
    expected = [
        charts._heights(np.quantile(cell, [0.75, 0.25]), finite.min(), finite.max()).tolist()
        for cell in cells
        if len(cell)
    ]
    assert np.array(found) == pytest.approx(np.array(expected), abs=0.11)
    texts = re.findall(r'<path d="M(\d+) 0H(\d+)V98H\d+"><title>episodes? ([\d, to]+): (.*?)</title>', svg)
    for i, (left, right, span, words) in enumerate(texts):
        low, mid, high = np.quantile(cells[i], [0, 0.5, 1]) if len(cells[i]) else [np.nan] * 3
        expected_words = f"{number(low)} … {number(high)}, median {number(mid)}"
        assert words == (expected_words if len(cells[i]) else "no finite number")
        first, last = i * every, min((i + 1) * every, len(returns)) - 1
        assert span == (f"{first} to {last}" if last > first else f"{first}")
        edges = [charts.WIDTH * at / len(returns) for at in (first, last + 1)]
        assert [float(left), float(right)] == pytest.approx(edges, abs=0.51)
    assert len(texts) == len(cells)
    assert svg.count(">endings</div>") == 1
    for k, name in enumerate(("terminated", "truncated", "cut")):
        if (ending == k).any():
            share = boxes(svg, f"ep-{name}")
            drawn = ((share[:, 2] - share[:, 0]) * (share[:, 3] - share[:, 1])).sum()
            area = charts.WIDTH * charts.ENDINGS_HEIGHT
            assert drawn / area == pytest.approx((ending == k).mean(), abs=0.06)


# --- whole numbers, and rows without an order -------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3), min_size=1, max_size=200), st.integers(1, 20))
def test_stacked_items_have_the_shares_and_extremes_of_their_cells(numbers: list[int], every: int) -> None:
    rows = 400
    stacked = stacked_items(np.array(numbers, float), every, rows)
    for k, column in enumerate(stacked.T):
        cell = np.array(numbers[k * every : (k + 1) * every])
        assert (column[-1], column[0]) == (cell.min(), cell.max())
        assert (np.diff(column) <= 0).all()
        for value in range(4):
            assert (column == value).mean() == pytest.approx((cell == value).mean(), abs=3 / rows)


def test_band_of_a_long_episode_is_no_solid_block() -> None:
    """One action is much more frequent than the others, which a picture of lowest and highest would hide."""
    actions = np.zeros(4000, int)
    actions[::10] = 3
    picture = pixels(sparklines.band(Series("actions", "actions", actions, 4000), Axis(4000), 100))
    assert (picture == picture.min()).mean() > 0.8
    assert (picture[0] == picture.max()).all()  # the highest number of each cell is visible


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=100) | st.lists(st.integers(-3, 8), min_size=1, max_size=100))
def test_histogram_bars_have_the_counts(values: list[float]) -> None:
    array = np.array(values)
    svg = sparklines.picture(Series("x", "rewards", array, len(array)), None)
    if array.min() == array.max():
        assert svg.startswith('<span class="ep-constant">constant ')
        return
    bars = {float(x): float(tall) for x, tall in re.findall(r"M([\d.]+) [\d.]+v-([\d.]+)h", svg)}
    most = int(re.findall(r"at most ([\d,]+) in", svg)[0])
    counts = [round((tall / max(bars.values())) ** 2 * most) for _, tall in sorted(bars.items())]
    bins = sparklines.histogram_bins(Series("x", "rewards", array, len(array)), 0)
    assert counts == bins.counts[bins.counts > 0].tolist()
    texts = re.findall(r"<title>([^<:]*): ([\d,]+)</title>", svg)
    is_told = len(bins.counts) <= sparklines.MOST_BIN_TEXTS
    assert [int(n) for _, n in texts] == counts * is_told
    if bins.width == 1:
        assert [name for name, _ in texts] == [number(value) for value in np.unique(array)] * is_told
    assert bins.counts.sum() == len(values)
    assert (bins.low, bins.high) == (array.min(), array.max())


WHOLE = st.one_of(
    *(st.lists(st.integers(-top, top), min_size=1, max_size=80) for top in (3, 40, 5000, 2**52 - 1)),
    st.lists(st.sampled_from([-(2**62), 0, 2**62]), min_size=1, max_size=9),
)


@given(WHOLE, st.sampled_from([np.int64, np.float64]))
def test_histogram_of_whole_numbers_has_bins_of_equally_many_numbers(values: list[int], dtype: type) -> None:
    """Up to 64 numbers have a bin each. More share bins of one whole width, of which the last may be narrower."""
    array = np.array(values, dtype)
    bins = sparklines.histogram_bins(Series("x", "rewards", array, len(array)), 0)
    assert (bins.low, bins.high, bins.counts.sum()) == (array.min(), array.max(), len(values))
    if max(map(abs, values)) >= MOST_EXACT or max(values) - min(values) >= MOST_EXACT:
        assert bins.width == 0
        return
    span = max(values) - min(values) + 1
    assert bins.width == -(-span // MOST_WHOLE_BINS)
    expected = [0] * -(-span // bins.width)
    for value, count in zip(*np.unique(values, return_counts=True), strict=True):
        expected[(int(value) - min(values)) // bins.width] += int(count)
    assert bins.counts.tolist() == expected
    widths = np.diff(bins.edges) * span
    assert widths[:-1] == pytest.approx(np.full(len(widths) - 1, bins.width), rel=1e-6)
    assert 0 < widths[-1] <= bins.width * (1 + 1e-6)
    html = str(sparklines.histogram(Series("x", "rewards", array, len(array))))
    if len(set(values)) > 1 and span > sparklines.MOST_BIN_LABELS:
        ends = f"<span>{number(bins.low)}</span><span>{number(bins.high)}</span>"
        assert ends in html
        assert f"in {len(expected)} bins of {bins.width:,} number" in html


@given(st.lists(st.lists(st.integers(0, 90), min_size=12, max_size=12), min_size=1, max_size=20))
def test_rows_of_colours_of_components_with_any_ranges_have_their_counts(items: list[list[int]]) -> None:
    """Rows have as many bins as their ranges need, and the empty ones are transparent."""
    array = np.array(items)
    series = Series("x", "observations", array, len(array))
    picture = pixels(sparklines.histogram(series))
    assert len(picture) == 12
    for row, column in zip(picture, array.T, strict=True):
        assert row[0] > 0
        assert row[-1] > 0  # the lowest and the highest number
        counts = sparklines.histogram_bins(replace(series, array=column, total=len(column)), 0).counts
        assert len(np.unique(row[row > 0])) == len(np.unique(counts[counts > 0]))


@given(st.lists(st.lists(st.integers(0, 3), min_size=12, max_size=12), max_size=30))
def test_rows_of_colours_with_equal_bins_have_one_scale_of_counts(items: list[list[int]]) -> None:
    """Columns have their numbers as labels. The scale has the lowest and the highest count."""
    array = np.array([[0] * 12, [3] * 12, *items])
    html = sparklines.histogram(Series("x", "observations", array, len(array)))
    assert re.findall(r"<span><b>(\d)</b></span>", html) == list("0123")
    counts = np.array([[(column == value).sum() for value in range(4)] for column in array.T])
    found = counts[counts > 0]
    [(least, most)] = re.findall(r"<span>(\d+)<i .*?</i>(\d+)</span>", html)
    assert (int(least), int(most)) == (found.min(), found.max())
    shades: dict[int, set[int]] = {}
    for count, shade in zip(counts.ravel().tolist(), pixels(html).ravel().tolist(), strict=True):
        shades.setdefault(count, set()).add(shade)
    assert all(len(each) == 1 for each in shades.values())  # a colour for each count, in all rows
    ordered = [shades[count].pop() for count in sorted(shades)]
    assert ordered == sorted(ordered)
    assert (0 in shades) == (ordered[0] == 0)


@pytest.mark.parametrize(
    ("hue", "space", "values", "is_id"),
    [
        ("actions", None, range(3), True),
        ("actions", None, range(2), False),
        ("actions", spaces.Discrete(3), range(2), True),
        ("actions", spaces.Discrete(2), range(2), False),
        ("observations", spaces.Discrete(52), range(3), True),
        ("observations", spaces.Discrete(3, start=-1), range(2), True),
        ("observations", spaces.Discrete(2, start=5), range(5, 7), False),
        ("observations", spaces.MultiDiscrete([2, 52]), range(2), True),
        ("observations", spaces.MultiDiscrete([2, 2]), range(2), False),
        ("observations", spaces.MultiBinary(2), range(2), False),
        ("actions", spaces.Box(0, 99, (), np.int64), range(40), None),
        ("observations", None, range(40), None),
        ("observations", None, [False, True], False),
        ("infos", None, [False, True], False),
        ("rewards", None, range(40), None),
    ],
)
def test_choices_have_no_deviation_and_no_mean_of_more_than_two_values(
    hue: str, space: Any, values: Any, is_id: bool | None
) -> None:
    """Flags are choices between two values. `is_id` is None for amounts."""
    is_amount, is_id = is_id is None, bool(is_id)
    array = np.array(values)
    array = np.stack([array] * 2, 1) if space is not None and space.shape == (2,) else array
    series = Series("x", hue, array, len(array), space=space)
    assert series.is_id == is_id
    for axis in (None, Axis(len(array))):
        [row] = rows_of([series], axis)[0]
        assert all((mean == "") == is_id for _, _, mean, _ in row.stats)
        assert ("mean " in row.picture) <= (not is_id)
        if row.table:
            assert ("mean" in row.table.columns, "std" in row.table.columns) == (not is_id, is_amount and axis is None)
        assert any("±" in mean for _, _, mean, _ in row.stats) == (is_amount and axis is None)


# --- charts of episodes -----------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(-3, 3) | st.just(np.nan), st.integers(1, 9)), min_size=1, max_size=101),
    st.booleans(),
)
def test_dots_of_charts_name_their_episodes(episodes: list[tuple[float, int]], has_ids: bool) -> None:
    """Tooltips have id, return and length. Equal returns are one line."""
    sums, steps = np.array(episodes, float).T
    no = np.zeros(len(sums), bool)
    ids = [f"<{i}>" for i in range(len(sums))] if has_ids else None
    above = str(charts.returns(sums, no, no, ids=ids, lengths=steps) or "")
    below = str(charts.lengths(steps, sums, no, no, ids=ids))
    finite = sums[np.isfinite(sums)]
    if len(np.unique(finite)) == 1:
        assert "<svg" not in above
        if len(finite) == len(sums) > 1:
            assert f"all {len(sums)} returns are {number(finite[0])} " in above
    for svg, own, texts in ((above, sums, ("return", "length")), (below, steps, ("length", "return"))):
        found = re.findall(r'<path d="M(\d+) \d+h0"><title>([^<]*)</title>', svg)
        if "<svg" not in svg or len(sums) > charts.MOST_DOTS:
            assert not found
            continue
        expected = []
        for i in np.flatnonzero(np.isfinite(own)).tolist():
            both = {"return": sums[i], "length": steps[i]}
            name = f"&lt;{i}&gt;" if has_ids else f"episode {i}"
            place = f"{4 + (charts.WIDTH - 8) * i / max(len(sums) - 1, 1):.0f}"
            expected.append((place, ", ".join([name, *(f"{text} {number(both[text])}" for text in texts)])))
        assert found == expected


def batch_of_rows() -> Any:
    return Batch({"obs": np.arange(12.0).reshape(6, 2), "rewards": np.arange(6.0), "actions": np.arange(6) % 2})


def replay_of_steps() -> Any:
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add(walk([10], terminated=True))
    return buffer


@pytest.mark.parametrize("make", [batch_of_rows, replay_of_steps])
def test_rows_without_an_order_are_histograms(make: Any) -> None:
    html = make()._repr_html_()
    assert html.count("<title>histogram") >= 3
    assert 'stroke-width="1.5"' not in html  # no line


# --- schema -----------------------------------------------------------------------------------------------------------


def test_schema_lists_tracks_with_spaces_and_ranges(tmp_path: Path) -> None:
    space = spaces.Dict({"x": spaces.Box(-1, 1, (2,), np.float32), "mode": spaces.Discrete(4)})
    observations = {"x": np.zeros((4, 2), np.float32), "mode": np.arange(4)}
    episode = SingleAgentEpisode.from_arrays(
        observations, [0, 1, 2], [0.0, 5.0, -1.0], observation_space=space, action_space=spaces.Discrete(3)
    )
    dataset = EpisodeDataset(write(tmp_path / "data", [episode]))
    schema = read_schema(dataset)
    rows = {track.path: (track.item_shape, track.series.dtype, track.space) for track in schema.tracks}
    assert rows == {
        "rewards": ("[]", "float64", ""),
        "actions": ("[]", "int64", "Discrete(3)"),
        "observations/x": ("[2]", "float32", "Box -1 … 1"),
        "observations/mode": ("[]", "int64", "Discrete(4)"),
    }
    assert schema.extent == "of 1 episode"
    for text in (dataset._repr_html_() or "", output("info", dataset.path)):
        assert all(path in text for path in rows)
        assert "Box -1 … 1" in text


def test_schema_of_games_has_the_tracks_of_each_agent(tmp_path: Path) -> None:
    game = MultiAgentEpisode("g")
    game.add_env_reset(observations={"a": np.zeros(2), "b": np.zeros(3)})
    game.add_env_step({"a": np.ones(2), "b": np.ones(3)}, {"a": 1, "b": 0.5}, {"a": 1.0, "b": 2.0})
    dataset = GameDataset(write(tmp_path / "data", [game]))  # type: ignore[list-item]
    paths = {track.path: track.item_shape for track in read_schema(dataset).tracks}
    assert (paths["a/observations"], paths["b/observations"]) == ("[2]", "[3]")
    assert "b/observations" in (dataset._repr_html_() or "")


def test_data_set_of_agents_without_games_keeps_its_rows(tmp_path: Path) -> None:
    """Rows of agents whose games are unknown or incomplete are not left out."""
    plain = EpisodeDataset(write(tmp_path / "plain", walk([2, 3])))
    assert of_games(plain) is plain
    agents = EpisodeDataset(write(tmp_path / "agents", walk([2, 3], multi_agent_episode_id="g", agent_id="a")))
    assert of_games(agents) is agents


@pytest.mark.parametrize("is_final", [False, True])
def test_card_of_a_game_has_its_env_steps_a_legend_and_its_state(is_final: bool) -> None:
    game = MultiAgentEpisode("g")
    game.add_env_reset(observations={"a": np.zeros(2)})
    for agent, other in (("a", "b"), ("b", "a"), ("a", "b")):
        game.add_env_step({other: np.zeros(2)}, {agent: 0}, {agent: 1.0})
    if is_final:
        game.to_numpy()
    html = game._repr_html_() or ""
    assert re.findall(r'text-anchor="middle">(\d+)</text>', html) == ["0", "1", "2", "3"]
    [legend] = re.findall(r'class="ep-legend ep-kinds">(.*?)</div>', html)
    words = ("observes (above)", "gets a reward (bar from 0)", "acts (below)", "waits for an observation")
    assert all(each in legend for each in words)
    assert "terminated" not in legend
    head = html.split("ep-lanes")[-2]
    assert ("growing (lists)" in head) is not is_final


# --- statistics and colours -------------------------------------------------------------------------------------------


def test_rows_of_several_numbers_have_no_common_mean() -> None:
    values = np.stack([np.arange(5.0), np.arange(5.0) + 100], 1)
    [row] = rows_of([Series("obs", "observations", values, 5, more=1)], Axis(4))[0]
    assert row.stats == [("[0]", "0", "2", "4"), ("[1]", "100", "102", "104")]
    [wide] = rows_of([Series("obs", "observations", np.tile(values, 5), 5, more=1)], Axis(4))[0]
    assert wide.stats == [("", "0", "", "104")]


def test_red_is_the_colour_of_defects_only() -> None:
    folder = Path(sparklines.__file__).parent
    for file in [*folder.glob("*.py"), *folder.glob("templates/*")]:
        for line in file.read_text().splitlines():
            rest = re.sub(r"--(?:ep-)?defect: #\w+;|DEFECT = \"#\w+\"", "", line)
            if not rest.startswith("COMPARED"):
                assert DEFECT not in rest, (file.name, line)
                assert "#f87171" not in rest, (file.name, line)
    html = walk([5], terminated=True)[0]._repr_html_() or ""
    assert DEFECT not in html.split("</style>")[1]


def test_show_in_a_narrow_terminal_prints_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    names = ["camera_of_the_left_hand", "camera_of_the_right_hand", "gripper_of_the_left_hand"]
    observations = {name: np.zeros((4, 48, 64, 3), np.uint8) for name in names}
    data = write(tmp_path / "data", [SingleAgentEpisode.from_arrays(observations, np.zeros(3), np.zeros(3))])
    monkeypatch.setattr("rich.console.Console", lambda: Console(force_terminal=True, width=80, no_color=True))
    for command in ("show", "info"):
        text = output(command, data)
        assert all(name in text for name in names)
        lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in text.splitlines()]
        assert max(len(line) for line in lines if "/work" not in line and str(tmp_path) not in line) <= 80


# --- pages of any episode ---------------------------------------------------------------------------------------------


def lanes_of(episode: Any) -> dict[str, dict[str, Any]]:
    return {lane["label"]: lane for lane in episode_data(episode)["lanes"]}


@settings(max_examples=25)
@given(history=multi_agent_histories())
def test_page_data_of_any_game_has_the_items_of_each_agent_at_their_env_steps(history: Any) -> None:
    for game in history.chunks(3):
        data, lanes = episode_data(game), lanes_of(game)
        encode(data)
        lines = game.agents.timelines
        assert [turn["agent"] for turn in data["turns"]] == list(map(str, lines))
        for turn, (agent, line) in zip(data["turns"], lines.items(), strict=True):
            begin = game.env_t_started
            assert (turn["observed"] + begin).tolist() == list(line.observation_times)
            assert (turn["acted"] + begin).tolist() == list(line.action_times)
            for label, lane in lanes_of(line.episode).items():
                found, times = lanes[f"{agent}/{label}"], line.observation_times if lane["more"] else line.action_times
                assert np.array_equal(found["values"], lane["values"], equal_nan=True)
                assert (found["at"] + begin).tolist() == list(times)[: len(lane["values"])]
                assert found["at"].max(initial=0) < found["until"]


@settings(max_examples=25)
@given(episode=single_agent_episodes(), cells=st.integers(1, 6))
def test_page_lanes_of_any_episode_have_extremes_and_shares(episode: SingleAgentEpisode, cells: int) -> None:
    for series in of_tracks(episode.tracks):
        if not series.is_numeric or series.is_image:
            continue
        count = series.sampled_values.shape[1]
        for k, lane in enumerate(_lanes(series, episode.tracks.lookback, count, cells, None, {})):
            low, high = (lane.get(name, lane.get("values")) for name in ("low", "high"))
            numbers = series.finite[:, k][~np.isnan(series.finite[:, k].astype(float))]
            if len(numbers):
                assert (np.nanmin(low), np.nanmax(high)) == (numbers.min(), numbers.max())
            if "shares" in lane:
                counts = {int(value): int(shares.sum()) for value, shares in lane["shares"].items()}
                assert counts == {int(n): int((numbers == n).sum()) for n in np.unique(numbers)}
