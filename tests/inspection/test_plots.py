"""Plots take axes and give them back, whatever the episode is like."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from connectors import learner_pipeline
from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import InvalidArgument, WrongType
from episodes.inspect import compare, frames, plot_episode, plot_returns, plot_timeline, plot_trace, video


@pytest.fixture(autouse=True)
def closed_figures():
    pyplot.switch_backend("Agg")
    yield
    pyplot.close("all")


def walk(steps: int, width: int = 4, **facts) -> SingleAgentEpisode:
    rng = np.random.default_rng(steps)
    observations = rng.normal(size=(steps + 1, width)).cumsum(0)
    return SingleAgentEpisode.from_arrays(observations, rng.integers(0, 2, steps), rng.normal(size=steps), **facts)


def filmed(steps: int = 12, shape=(33, 35, 3)) -> SingleAgentEpisode:
    images = np.random.default_rng(0).integers(0, 255, (steps + 1, *shape)).astype(np.uint8)
    return SingleAgentEpisode.from_arrays({"camera": images, "x": np.zeros(steps + 1)}, np.zeros(steps), np.ones(steps))


BROKEN = SingleAgentEpisode.from_arrays(
    np.array([[np.nan, 1.7e308], [np.inf, -1.7e308], [np.nan, 0.0]]), [0, 1], [np.nan, np.inf], id_="$<b>"
)


@pytest.mark.parametrize(
    "episode",
    [walk(50, truncated=True), walk(1), walk(0), walk(5, 60), filmed(), BROKEN, SingleAgentEpisode("nothing")],
    ids=["ordinary", "one step", "no step", "wide", "images", "broken", "empty"],
)
def test_any_episode_is_drawn_into_the_axes_that_are_given(episode, tmp_path: Path):
    ax = Figure(layout="constrained").subplots()
    assert plot_episode(episode, ax) is ax
    ax.figure.savefig(tmp_path / "episode.png")
    assert ax.get_xlabel().startswith("env step")
    assert plot_episode(episode).get_figure() is not ax.figure


def test_a_chunk_is_drawn_at_its_own_env_steps():
    chunk = walk(40)[10:30]
    low, high = plot_episode(chunk).get_xlim()
    assert low >= 8
    assert 30 <= high <= 32


def test_returns_are_those_of_whole_episodes_with_best_and_worst_marked():
    pack = EpisodePack.from_episodes([walk(n, id_=f"e{n}", terminated=n != 7) for n in range(5, 12)])
    for episodes in (pack, list(pack)):
        ax = plot_returns(episodes, window=3, goal=1.0)
        words = [text.get_text() for text in ax.texts]
        assert words[0].startswith("best")
        assert words[1].startswith("worst")
        assert len(ax.collections[0].get_offsets()) == 6  # the cut chunk has no return
    assert plot_returns(pack[:0]).get_ylabel() == "return"
    with pytest.raises(InvalidArgument, match="window=0"):
        plot_returns(pack, window=0)


def test_episodes_are_compared_over_each_other():
    chosen = [walk(n, id_=f"e{n}") for n in (5, 9)]
    ax = compare(chosen)
    assert ax.lines[0].get_ydata()[-1] == pytest.approx(chosen[0].get_return())
    assert compare(chosen, ax, track="observations", index=3) is ax
    with pytest.raises(InvalidArgument, match="there are observations"):
        compare(chosen, track="speed")


def test_returns_that_are_not_finite_leave_the_others_their_mean_and_their_best():
    returns = [1.0, np.nan, 3.0, np.inf, -np.inf, 5.0]
    pack = [SingleAgentEpisode.from_arrays([0.0, 1.0], [0], [value], terminated=True) for value in returns]
    ax = plot_returns(pack, window=3)
    (mean,) = (line.get_ydata() for line in ax.lines if line.get_label() == "mean of 3")
    assert mean.tolist() == [1.0, 1.0, 2.0, 3.0, 3.0, 5.0]
    assert [text.get_text().split(" (")[0] for text in ax.texts] == ["best 5", "worst 1"]


def test_what_a_plot_cannot_draw_is_told_in_words(tmp_path: Path):
    for draw in (plot_episode, lambda game: compare([game])):
        with pytest.raises(WrongType, match="plot_timeline draws several agents"):
            draw(MultiAgentEpisode("game"))
    with pytest.raises(WrongType, match="give a MultiAgentEpisode"):
        plot_timeline(walk(2))
    with pytest.raises(InvalidArgument, match="trace=True"):
        plot_trace(learner_pipeline().trace)
    with pytest.raises(InvalidArgument, match="fps=0"):
        video(filmed(), tmp_path / "e.mp4", fps=0)
    with pytest.raises(InvalidArgument, match="no numbers"):
        compare([walk(2)], track="observations", index=-5)


def test_an_episode_of_no_steps_is_compared_too():
    ax = compare([walk(0), walk(3)])
    assert [len(line.get_xdata()) for line in ax.lines] == [0, 0, 3, 1]


def test_clocks_show_who_observed_acted_and_waits():
    game = MultiAgentEpisode("game")
    game.add_env_reset(observations={"white": 0})
    game.add_env_step({"black": 1}, {"white": 10}, {})
    ax = plot_timeline(game)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["white", "black"]
    assert "pending" in [text.get_text() for text in ax.texts]
    plot_timeline(MultiAgentEpisode("nobody"))


def test_a_trace_is_drawn_piece_by_piece():
    pipeline = learner_pipeline()
    pipeline(batch={}, episodes=EpisodePack.from_episodes([walk(5)]), trace=True)
    ax = plot_trace(pipeline.trace)
    assert len(ax.patches) == len(pipeline.trace)
    assert ax.get_xlabel() == "time in ms"


def test_frames_and_videos_hold_the_images(tmp_path: Path):
    episode = filmed()
    assert frames(episode).tolist() == episode.get_observations()["camera"].tolist()
    assert frames(filmed(shape=(4, 32, 32))).shape == (13, 32, 32, 1)
    gif = imageio.imread(video(episode, tmp_path / "e.gif"), index=None)
    assert gif.shape[:3] == (13, 33, 35)
    film = imageio.imread(video(episode, tmp_path / "e.mp4"), plugin="pyav")
    assert film.shape == (13, 34, 36, 3)
    with pytest.raises(InvalidArgument, match=r"\.mp4 or \.gif"):
        video(episode, tmp_path / "e.avi")
    with pytest.raises(InvalidArgument, match="images: none"):
        frames(walk(3))


def test_matplotlib_is_imported_only_when_something_is_drawn():
    script = "import sys, episodes.inspect; assert not {'matplotlib', 'jinja2', 'imageio'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
