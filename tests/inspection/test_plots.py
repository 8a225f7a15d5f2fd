"""Plots draw any episode into given or new axes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import InvalidArgument, WrongType
from episodes.inspect import frames, plot_episode, plot_episodes, plot_returns, video


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
    images = np.random.default_rng(0).integers(0, 255, (steps + 1, *shape), np.uint8)
    return SingleAgentEpisode.from_arrays({"camera": images, "x": np.zeros(steps + 1)}, np.zeros(steps), np.ones(steps))


BROKEN = SingleAgentEpisode.from_arrays(
    np.array([[np.nan, 1.7e308], [np.inf, -1.7e308], [np.nan, 0.0]]), [0, 1], [np.nan, np.inf], id_="$<b>"
)


@pytest.mark.parametrize(
    "episode",
    [walk(50, truncated=True), walk(1), walk(0), walk(5, 60), filmed(), BROKEN, SingleAgentEpisode("nothing")],
    ids=["ordinary", "one step", "no step", "wide", "images", "broken", "empty"],
)
def test_plot_episode_draws_any_episode_into_given_axes(episode, tmp_path: Path):
    ax = Figure(layout="constrained").subplots()
    assert plot_episode(episode, ax) is ax
    ax.figure.savefig(tmp_path / "episode.png")
    assert ax.get_xlabel().startswith("env step")
    assert plot_episode(episode).get_figure() is not ax.figure


def test_plot_episode_of_a_chunk_has_its_env_steps():
    chunk = walk(40)[10:30]
    low, high = plot_episode(chunk).get_xlim()
    assert low >= 8
    assert 30 <= high <= 32


def test_plot_returns_marks_best_and_worst_whole_episode():
    pack = EpisodePack.from_episodes([walk(n, id_=f"e{n}", terminated=n != 7) for n in range(5, 12)])
    for episodes in (pack, list(pack), iter(pack)):
        ax = plot_returns(episodes, window=3, goal=1.0)
        words = [text.get_text() for text in ax.texts]
        assert words[0].startswith("best")
        assert words[1].startswith("worst")
        assert len(ax.collections[0].get_offsets()) == 6  # the cut chunk has no return
    assert plot_returns(pack[:0]).get_ylabel() == "return"
    with pytest.raises(InvalidArgument, match="window=0"):
        plot_returns(pack, window=0)


def test_plot_episodes_draws_sums_of_rewards_and_tracks():
    chosen = [walk(n, id_=f"e{n}") for n in (5, 9)]
    ax = plot_episodes(chosen)
    assert ax.lines[0].get_ydata()[-1] == pytest.approx(chosen[0].get_return())
    assert plot_episodes(chosen, ax, track="observations", index=3) is ax
    with pytest.raises(InvalidArgument, match="there are observations"):
        plot_episodes(chosen, track="speed")


def test_plot_returns_mean_skips_non_finite_returns():
    returns = [1.0, np.nan, 3.0, np.inf, -np.inf, 5.0]
    pack = [SingleAgentEpisode.from_arrays([0.0, 1.0], [0], [value], terminated=True) for value in returns]
    ax = plot_returns(pack, window=3)
    (mean,) = (line.get_ydata() for line in ax.lines if line.get_label() == "mean of 3")
    assert mean.tolist() == [1.0, 1.0, 2.0, 3.0, 3.0, 5.0]
    assert [text.get_text().split(" (")[0] for text in ax.texts] == ["best 5", "worst 1"]


def test_plots_wrong_arguments_are_named(tmp_path: Path):
    with pytest.raises(WrongType, match="give a SingleAgentEpisode"):
        plot_episodes([MultiAgentEpisode("game")])
    with pytest.raises(WrongType, match="give a SingleAgentEpisode"):
        plot_episode(3)
    with pytest.raises(InvalidArgument, match="no track 'speed'"):
        plot_episode(walk(2), tracks=["speed"])
    with pytest.raises(InvalidArgument, match="fps=0"):
        video(filmed(), tmp_path / "e.mp4", fps=0)
    with pytest.raises(InvalidArgument, match="no numbers"):
        plot_episodes([walk(2)], track="observations", index=-5)


def test_plot_episodes_without_steps_is_empty():
    ax = plot_episodes([walk(0), walk(3)])
    assert [len(line.get_xdata()) for line in ax.lines] == [0, 0, 3, 1]


def test_plot_episode_of_agents_shows_pending_actions():
    game = MultiAgentEpisode("game")
    game.add_env_reset(observations={"white": 0})
    game.add_env_step({"black": 1}, {"white": 10}, {})
    ax = plot_episode(game)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["white", "black"]
    assert "pending" in [text.get_text() for text in ax.texts]
    plot_episode(MultiAgentEpisode("empty"))


def test_frames_and_videos_have_the_images(tmp_path: Path):
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


def test_import_of_inspect_loads_no_heavy_package():
    script = "import sys, episodes.inspect; assert not {'matplotlib', 'jinja2', 'imageio'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
