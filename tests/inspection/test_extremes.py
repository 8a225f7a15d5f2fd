"""No view loses an outlier, a NaN or an infinity, wherever it is in a series of 1 to 200,000 steps."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from typer.testing import CliRunner

from episodes import Batch, EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.command.app import app
from episodes.inspect import charts, plot_episode, plot_episodes, sparklines
from episodes.inspect.downsampling import downsample
from episodes.inspect.html_report import episode_data
from episodes.inspect.series import Series
from episodes.inspect.sparklines import LEVELS, Axis
from episodes.inspect.training_page import _curve
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeWriter

MOST_STEPS = 200_000
COMMON, OUTLIER = 3.0, 50.0


@dataclass(frozen=True)
class Sample:
    """A constant series with one outlier, and at most one number that is not finite."""

    num_steps: int
    outlier_at: int
    is_low: bool
    odd_at: int
    odd: float

    @property
    def values(self) -> np.ndarray:
        """The series, float64 [num_steps]."""
        values = np.full(self.num_steps, COMMON)
        values[self.odd_at] = self.odd
        values[self.outlier_at] = self.outlier
        return values

    @property
    def outlier(self) -> float:
        return -OUTLIER if self.is_low else OUTLIER


@st.composite
def samples(draw: st.DrawFn, max_steps: int = MOST_STEPS) -> Sample:
    num_steps = draw(st.integers(1, 300) | st.integers(1, max_steps))
    steps = st.integers(0, num_steps - 1)
    special = draw(st.sampled_from((COMMON, np.nan, np.inf, -np.inf)))
    return Sample(num_steps, draw(steps), draw(st.booleans()), draw(steps), special)


def points(html: str) -> list[tuple[int, int]]:
    """Return the points of all lines in an SVG."""
    result: list[tuple[int, int]] = []
    for x, y, rest in re.findall(r"M(-?\d+) (-?\d+)(?:l([-\d ]*)|h8)", html):
        steps = np.array(rest.split() or [0, 0], int).reshape(-1, 2)
        result += [(int(x), int(y)), *(np.array([int(x), int(y)]) + steps.cumsum(0)).tolist()]
    return result


def pixels(html: str) -> np.ndarray:
    """Return the palette indices of the picture in an SVG."""
    file = base64.b64decode(re.findall(r"base64,([^\"]+)", html)[0])
    height = int.from_bytes(file[20:24])
    start = file.index(b"IDAT") + 4
    lines = zlib.decompress(file[start : file.index(b"IEND") - 8])
    return np.frombuffer(lines, np.uint8).reshape(height, -1)[:, 1:]


def stated(html: str) -> list[list[str]]:
    """Return the texts min, mean and max of each line of statistics of a notebook view."""
    line = r"<small>[^<]*</small> <span>([^<]*)</span> <span>([^<]*)</span> <span>([^<]*)</span>"
    return [list(texts) for texts in re.findall(line, html)]


def series(values: np.ndarray, present: np.ndarray | None = None) -> Series:
    return Series("x", "rewards", values, len(values), present=present)


def sequence_series(values: np.ndarray) -> Series:
    return Series("x", "rewards", values, len(values), num_steps=values.shape[1])


def episode(sample: Sample, **facts: Any) -> SingleAgentEpisode:
    """Return an episode with the series as rewards, and as the third of four observations."""
    observations = np.zeros((sample.num_steps + 1, 4))
    observations[1:, 2] = sample.values
    return SingleAgentEpisode.from_arrays(observations, np.zeros(sample.num_steps), sample.values, **facts)


@settings(max_examples=60)
@given(samples(), st.integers(1, 3000))
def test_cells_any_series_equal_a_slow_reference(sample: Sample, max_cells: int) -> None:
    values = sample.values
    cells = downsample(values[:, None], max_cells)
    assert len(cells) <= max_cells
    assert len(cells) == -(-len(values) // cells.every)
    for k in {0, len(cells) - 1, sample.outlier_at // cells.every, sample.odd_at // cells.every}:
        part = values[k * cells.every : (k + 1) * cells.every]
        finite = part[np.isfinite(part)]
        assert cells.num_nan[k, 0] == np.isnan(part).sum()
        assert (cells.num_above[k, 0], cells.num_below[k, 0]) == ((part == np.inf).sum(), (part == -np.inf).sum())
        if len(finite):
            expected = finite.min(), finite.max()
            assert (cells.low[k, 0], cells.high[k, 0]) == expected
        else:
            assert np.isnan(cells.low[k, 0])


@settings(max_examples=40)
@given(samples())
def test_line_any_outlier_is_in_the_path(sample: Sample) -> None:
    picture = str(sparklines.lines(series(sample.values), Axis(sample.num_steps), 120))
    drawn = points(picture.split("ep-odd")[0])
    assert drawn
    finite = np.isfinite(sample.values)
    if len(set(sample.values[finite])) > 1:
        edge = max(drawn, key=lambda point: point[1]) if sample.is_low else min(drawn, key=lambda point: point[1])
        step = edge[0] / (sparklines.UNITS * sparklines.WIDTH / sample.num_steps)
        assert abs(step - sample.outlier_at) <= 1 + sample.num_steps / sparklines.WIDTH
    assert ("ep-odd" in picture) != finite.all()


@settings(max_examples=40)
@given(samples(), st.sampled_from(("band", "heat")))
def test_colours_any_outlier_is_in_the_cells(sample: Sample, kind: str) -> None:
    if kind == "band":
        values = np.full(sample.num_steps, 3)
        values[sample.outlier_at] = -9 if sample.is_low else 9
        levels = pixels(str(sparklines.band(series(values), Axis(sample.num_steps), 120)))
    else:
        values = np.zeros((sample.num_steps, 40))
        values[:, 17] = sample.values
        levels = pixels(str(sparklines.heat(series(values), Axis(sample.num_steps), 120)))
    if sample.num_steps > 1 and len(set(values[np.isfinite(values)].tolist())) > (1 if kind == "band" else 2):
        assert levels.max() == LEVELS - 1
        assert levels.min() < levels.max()


@settings(max_examples=40)
@given(samples(), st.integers(1, 400), st.integers(1, 5), st.data())
def test_sequences_any_outlier_is_in_the_cells(sample: Sample, num_steps: int, width: int, data: st.DataObject) -> None:
    """Draw the series as one of the numbers of sequences [B, T, d]."""
    count = -(-sample.num_steps // num_steps)
    values = np.full((count * num_steps, width), COMMON)
    column = data.draw(st.integers(0, width - 1))
    values[: sample.num_steps, column] = sample.values
    html = Batch(x=values.reshape(count, num_steps, width), rewards=np.zeros((count, num_steps)))._repr_html_()
    assert f"{sample.outlier:g}" in [texts[0 if sample.is_low else 2] for texts in stated(html)]
    picture = str(sparklines.sequences(sequence_series(values.reshape(count, num_steps, width)), 120))
    assert ("ep-odd" in picture) != np.isfinite(values).all()
    levels = pixels(picture)
    if (values[:, column] == COMMON).any():
        assert levels.max() == LEVELS - 1  # the outlier, or all other numbers of its column if it is low
        assert levels[levels > 0].min() < LEVELS - 1
    step = sample.outlier_at % num_steps * levels.shape[1] // num_steps
    place = levels[:, max(step - 1, 0) : step + 2]
    if (values[:, column] == COMMON).any() and not sample.is_low:
        assert place.max() == LEVELS - 1


@settings(max_examples=30)
@given(samples(), st.booleans())
def test_series_of_info_without_a_value_is_missing_not_nan(sample: Sample, is_flag: bool) -> None:
    present = np.zeros(sample.num_steps, bool)
    present[sample.outlier_at] = True
    values = np.ones(sample.num_steps, bool) if is_flag else sample.values
    shown = series(values, present)
    assert shown.counts == (sample.num_steps - 1, 0, 0, 0)
    assert shown.range[0] == shown.range[2] == (1 if is_flag else sample.outlier)
    picture = str(sparklines.picture(shown, Axis(sample.num_steps)))
    assert "ep-odd" not in picture
    assert pixels(picture).max() > 0 if is_flag else points(picture)


@settings(max_examples=25)
@given(samples())
def test_page_any_outlier_is_in_the_lanes(sample: Sample) -> None:
    data = episode_data(episode(sample))
    assert data["lanes"][0]["label"] == "rewards"
    for lane in (lane for lane in data["lanes"] if lane["label"] in ("rewards", "observations[2]")):
        cell = (lane["more"] + sample.outlier_at) // lane["every"]
        extremes = [lane["values"][cell]] * 2 if "values" in lane else [lane["low"][cell], lane["high"][cell]]
        assert sample.outlier == extremes[0 if sample.is_low else 1]
        outliers = dict(lane["odd"])
        if not np.isfinite(sample.values).all():
            place = (lane["more"] + sample.odd_at) // lane["every"]
            assert ("NaN" if np.isnan(sample.odd) else "∞") in outliers.pop(place)
        assert not outliers


@settings(max_examples=25)
@given(samples(20_000))
def test_plots_any_outlier_is_in_the_lines(sample: Sample) -> None:
    ax = plot_episode(episode(sample), Figure().subplots(), tracks=["rewards"])
    heights = ax.lines[0].get_ydata()
    if len(set(sample.values[np.isfinite(sample.values)])) > 1:
        assert np.nanmax(heights) - np.nanmin(heights) == pytest.approx(0.8)
    ax = plot_episodes([episode(sample)], Figure().subplots(), track="observations", index=2)
    assert sample.outlier in ax.lines[0].get_ydata()


@settings(max_examples=25)
@given(
    samples(20_000), st.lists(st.sampled_from([(True, False), (False, True), (False, False)]), min_size=1, max_size=7)
)
def test_returns_any_outlier_and_ending_is_drawn(sample: Sample, endings: list[tuple[bool, bool]]) -> None:
    flags = np.array([endings[i % len(endings)] for i in range(sample.num_steps)])
    html = str(charts.returns(sample.values, flags[:, 0], flags[:, 1]))
    finite = sample.values[np.isfinite(sample.values)]
    if finite.min() == finite.max():
        assert "<svg" not in html
        return
    assert f"from {finite.min():g} to {finite.max():g}" in html
    is_dense = sample.num_steps > charts.MOST_DOTS  # then boxes from the highest to the lowest
    for k, ending in enumerate(("terminated", "truncated")):
        is_drawn = re.search(rf'<(?:path|g) class="[^"]*ep-{ending}"', html) is not None
        assert is_drawn == (flags[:, k] & (is_dense | np.isfinite(sample.values))).any()
    ranges = re.findall(r'class="ep-band"[^>]*d="([^"]*)"', html)[0] if is_dense else html
    found = re.findall(r"M\d+ ([\d.]+)H\d+V([\d.]+)H", ranges) if is_dense else re.findall(r"M\d+ ((\d+))h0", html)
    tops, bottoms = np.array(found, float).T
    assert (tops.min() + is_dense, bottoms.max() - is_dense) == (6, charts.HEIGHT - charts.ENDINGS_HEIGHT - 6)


@settings(max_examples=40)
@given(samples())
def test_training_curve_any_outlier_is_in_a_cell(sample: Sample) -> None:
    curve = _curve(np.arange(sample.num_steps, dtype=float), sample.values)
    assert len(curve["step"]) <= 400
    assert curve["step"][-1] == sample.num_steps - 1
    cell = int(np.searchsorted(curve["step"], sample.outlier_at))
    assert curve["low" if sample.is_low else "high"][cell] == sample.outlier


@settings(max_examples=15)
@given(samples(300))
def test_multi_agent_card_any_outlier_is_stated(sample: Sample) -> None:
    game = MultiAgentEpisode("game")
    game.add_env_reset(observations={"a": 0.0, "b": 0.0})
    for reward in sample.values.tolist():
        game.add_env_step({"a": 0.0, "b": 0.0}, {"a": 0, "b": 0}, {"a": reward, "b": 0.0})
    for shown in (game, game.to_numpy()):
        html = shown._repr_html_()
        assert f"{sample.outlier:g}" in [texts[0 if sample.is_low else 2] for texts in stated(html)]
        assert ("1 NaN" in html) == np.isnan(sample.values).any()
        assert ("1 infinite" in html) == np.isinf(sample.values).any()


@settings(max_examples=15)
@given(samples())
def test_terminal_any_outlier_is_printed(tmp_path_factory: Any, sample: Sample) -> None:
    path = tmp_path_factory.mktemp("data") / "one"
    with EpisodeWriter(path) as writer:
        writer.add([episode(sample)])
    text = CliRunner().invoke(app, ["show", str(path)]).output
    row = next(line for line in text.splitlines() if line.startswith("rewards"))
    assert f"{sample.outlier:g}" in row.split()
    assert ("1 NaN" in row) == np.isnan(sample.values).any()
    assert ("1 infinite" in row) == np.isinf(sample.values).any()
    facts = json.loads(CliRunner().invoke(app, ["show", str(path), "--json"]).output)
    track = next(track for track in facts["tracks"] if track["track"] == "rewards")
    assert track["lowest" if sample.is_low else "highest"] == sample.outlier
    assert track["nan"] == np.isnan(sample.values).sum()


@pytest.mark.parametrize("num_steps", [1, 2, 300, 70_000])
def test_views_of_objects_with_one_outlier_state_it(num_steps: int) -> None:
    sample = Sample(num_steps, num_steps * 7 // 10, False, 0, COMMON)
    recorded = episode(sample, terminated=True)
    grown = SingleAgentEpisode("grown")
    grown.add_env_reset(np.zeros(4))
    for reward in sample.values[:70_000]:
        grown.add_env_step(np.zeros(4), 0, float(reward))
    buffer = EpisodeReplayBuffer(num_steps)
    buffer.add(recorded)
    for value in (recorded, grown, EpisodePack.from_episodes([recorded]), Batch(x=sample.values), buffer):
        html = value._repr_html_()
        assert "50" in [high for *_, high in stated(html)]
        assert "≈" not in html


def test_rewards_and_actions_have_lanes_before_wide_observations() -> None:
    wide = SingleAgentEpisode.from_arrays(np.zeros((6, 348)), np.zeros((5, 17)), np.zeros(5))
    data = episode_data(wide)
    assert [lane["label"] for lane in data["lanes"][:2]] == ["rewards", "actions[0]"]
    assert (len(data["lanes"]), data["left"]) == (366, 0)
    wider = SingleAgentEpisode.from_arrays(
        np.zeros((6, 5000)), np.zeros(5), np.zeros(5), extra_model_outputs={"value": np.ones(5)}
    )
    for window in (None, (1, 3)):
        data = episode_data(wider, window=window)
        assert (len(data["lanes"]), data["left"]) == (1000, 4003)
    labels = [label.get_text() for label in plot_episode(wide, Figure().subplots()).get_yticklabels()]
    assert len(labels) == 12
    assert "rewards" in labels
    assert "actions[0]" in labels
    images = np.zeros((6, 16, 16, 3), np.uint8)
    cameras = SingleAgentEpisode.from_arrays({"left": images, "right": images}, np.zeros(5), np.zeros(5))
    names = [camera["label"] for camera in episode_data(cameras)["cameras"]]
    assert names == ["observations/left", "observations/right"]
