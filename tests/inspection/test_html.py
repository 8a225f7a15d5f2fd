"""Notebook views: complete, small and escaped HTML, with marks at the right positions."""

from __future__ import annotations

import re
import zlib
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from connectors import learner_pipeline
from episodes import Batch, EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.inspect import explain_batch
from episodes.inspect.png import png
from episodes.replay import EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.testing.strategies import episodes as single_agent_episodes
from episodes.testing.strategies import multi_agent_histories
from episodes.tracks import notebook_repr

MOST_BYTES = 50_000
HOSTILE = '<script>alert("x")</script>\'&\U0001f642'
VOID = {"img", "br", "meta", "link"}


class Checked(HTMLParser):
    """Parser that checks that all elements are closed in order, and collects tags, sources and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(self.text)


def shown(value: Any) -> Checked:
    """Return the parsed HTML of an object, which must be complete, small, without scripts and outside sources."""
    text = value._repr_html_()
    assert len(text.encode()) <= MOST_BYTES
    page = Checked(text)
    assert "script" not in page.tags
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    return page


def shown_html(value: Any) -> str:
    """Return the HTML of an object, which passes the checks of `shown`."""
    shown(value)
    return value._repr_html_()


def cartpole(steps: int, **facts: Any) -> SingleAgentEpisode:
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(steps + 1, 4)).cumsum(0).astype(np.float32)
    extra = {"vf_preds": rng.normal(size=steps)}
    return SingleAgentEpisode.from_arrays(
        observations, rng.integers(0, 2, steps), np.ones(steps), extra_model_outputs=extra, **facts
    )


def grown(steps: int, lookback: int | None = None) -> SingleAgentEpisode:
    """Return a growing episode, or with a lookback the chunk after a cut in its middle."""
    episode = SingleAgentEpisode("grown")
    episode.add_env_reset(np.zeros(3), infos={"life": 3})
    for t in range(steps):
        if lookback is not None and t == steps // 2:
            episode = episode.cut(len_lookback_buffer=lookback)
        episode.add_env_step(np.full(3, t), t % 3, 0.5, infos={"life": 3 - t % 2})
    return episode


def party(agents: int, steps: int) -> MultiAgentEpisode:
    episode, ids = MultiAgentEpisode("party"), [f"agent_{i}" for i in range(agents)]
    episode.add_env_reset(observations={agent: np.zeros(3) for agent in ids})
    for t in range(steps):
        observations = {agent: np.full(3, t) for agent in ids}
        episode.add_env_step(observations, dict.fromkeys(ids, 1), dict.fromkeys(ids, 0.1))
    return episode


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_episode_view_has_tracks_and_ending(ending: str) -> None:
    page = shown(cartpole(200, id_="pole", **{ending: True}))
    for words in ("pole", "200 steps", "return 200", "observations", "[201, 4] float32", "vf_preds", "t = 0 … 200"):
        assert words in page.words
    assert ending in page.words
    assert "ep-reset" in cartpole(3)._repr_html_()


def test_episode_view_marks_lookback_and_reset() -> None:
    chunk = grown(60, lookback=10)
    html = chunk._repr_html_()
    assert 'class="ep-before" width="25.00%"' in html
    assert "ep-reset" not in html.split("</style>")[1]
    assert "from t=30" in Checked(html).words
    assert "infos/life" in Checked(html).words
    assert "ep-reset" in grown(60, lookback=30)._repr_html_().split("</style>")[1]  # it reaches back to the reset


def test_first_and_last_number_of_infos_are_those_of_infos_with_the_key() -> None:
    infos = [{}, {"score": 7.5}, {"score": 2.25}, {}]
    episode = SingleAgentEpisode.from_arrays(np.zeros(4), np.zeros(3), np.zeros(3), infos=infos)
    words = shown(episode).words.partition("infos/score")[2]
    assert words.split()[-5:] == ["2.25", "4.875", "7.5", "7.5", "2.25"]


def test_episode_view_of_long_episodes_is_small() -> None:
    assert "100,000 steps" in shown(cartpole(100_000)).words
    shown(grown(3000))
    many = {f"output_{i}": np.arange(5.0) for i in range(300)}
    wide = SingleAgentEpisode.from_arrays(np.zeros((6, 5000)), np.zeros((5, 40)), np.zeros(5), extra_model_outputs=many)
    assert "and 279 more" in shown(wide).words


def test_episode_view_has_frames_in_any_order_of_axes() -> None:
    rng = np.random.default_rng(0)
    for shape in ((84, 84), (84, 84, 3), (3, 64, 64), (4, 84, 84), (84, 84, 1)):
        frames = rng.integers(0, 255, (201, *shape), np.uint8)
        page = shown(SingleAgentEpisode.from_arrays(frames, np.zeros(200), np.zeros(200)))
        assert page.tags.count("img") == 8
    bright = SingleAgentEpisode.from_arrays(rng.random((5, 32, 32, 3)), np.zeros(4), np.zeros(4))
    assert shown(bright).tags.count("img") == 5


def test_png_decoded_has_equal_pixels() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    file = png(pixels)
    start = file.index(b"IDAT") + 4
    lines = zlib.decompress(file[start : file.index(b"IEND") - 8])
    assert np.frombuffer(lines, np.uint8).reshape(2, 13)[:, 1:].tolist() == pixels.reshape(2, 12).tolist()


def test_episode_view_counts_and_marks_non_finite_numbers() -> None:
    observations = np.zeros((10, 2))
    observations[3], observations[5, 0] = np.nan, np.inf
    rewards = np.full(9, np.nan)
    episode = SingleAgentEpisode.from_arrays(observations, np.zeros(9), rewards)
    page = shown(episode)
    assert "2 NaN: first [0] at t=3; 1 infinite: [0] at t=5" in page.words
    assert "9 NaN" in page.words
    assert "ep-odd" in episode._repr_html_()
    huge = np.array([[1.7e308], [-1.7e308], [1.7e308]])
    shown(SingleAgentEpisode.from_arrays(huge, np.zeros(2), np.zeros(2)))
    alike = np.full((3, 1), 1.7e308)
    assert "1.7e+308" in shown(SingleAgentEpisode.from_arrays(alike, np.zeros(2), np.zeros(2))).words
    alike[0] = np.nan
    assert "1.7e+308" in shown(SingleAgentEpisode.from_arrays(alike, np.zeros(2), np.zeros(2))).words


@pytest.mark.parametrize("reward", [np.inf, 1.7e308])
def test_episode_view_of_infinite_returns_warns_nothing(reward: float) -> None:
    rewards = np.array([reward, reward, -reward, -reward])
    episode = SingleAgentEpisode.from_arrays(rewards.repeat(2)[:5, None], rewards, rewards, terminated=True)
    for shown in (episode, EpisodePack.from_episodes([episode, episode])):
        assert not re.search(r'd="[^"]*nan', shown._repr_html_())
        assert "return" in repr(shown)


def test_views_escape_texts_of_users() -> None:
    episode = SingleAgentEpisode(HOSTILE, agent_id=HOSTILE, module_id=HOSTILE)
    episode.custom_data[HOSTILE] = HOSTILE
    episode.add_env_reset({HOSTILE: np.zeros(2)}, infos={HOSTILE: HOSTILE})
    for t in range(5):
        step = {HOSTILE: np.ones(2)}, t, 1.0
        episode.add_env_step(*step, infos={HOSTILE: HOSTILE}, extra_model_outputs={HOSTILE: 1.0})
    for value in (episode, episode.to_numpy(), EpisodePack.from_episodes([episode]), Batch({HOSTILE: np.zeros(3)})):
        assert HOSTILE in shown(value).words
    game = MultiAgentEpisode(HOSTILE)
    game.add_env_reset(observations={HOSTILE: 0})
    assert HOSTILE in shown(game).words
    endless = SingleAgentEpisode("x" * 100_000, agent_id="y" * 100_000)
    shown(endless)


def test_episode_view_of_a_failing_str_names_the_type() -> None:
    class Silent:
        def __str__(self) -> str:
            raise RuntimeError("no words")

    episode = grown(3)
    episode.custom_data["note"] = Silent()
    assert "Silent" in shown(episode).words


def test_view_of_ten_agents_has_a_timeline_each() -> None:
    page = shown(party(10, 200))
    assert "10 agents" in page.words
    assert all(f"agent_{i}" in page.words for i in range(10))
    assert "and 18 more agents" in shown(party(20, 3)).words
    lanes = re.findall(r'class="ep-observations" [^>]*?d="([^"]*)"', party(10, 200)._repr_html_())
    assert [lane.count("M") for lane in lanes] == [1] * 10  # a run each, of all lanes alike


def test_views_of_packs_batches_buffers_and_data_sets(tmp_path: Any) -> None:
    pack = EpisodePack.from_episodes([cartpole(n, id_=f"e{n}", terminated=n % 2 > 0) for n in range(1, 40)])
    assert "39 episodes" in shown(pack).words
    with EpisodeWriter(tmp_path, env_spec=HOSTILE, metadata={"who": HOSTILE}) as writer:
        writer.add(pack)
    assert HOSTILE in shown(EpisodeDataset(tmp_path)).words
    buffer = EpisodeReplayBuffer(1000, seed=0)
    assert "0 of 1,000 steps" in shown(buffer).words
    buffer.add(pack)
    before = buffer.generator.bit_generator.state
    assert "780 of 1,000 steps" in shown(buffer).words
    assert buffer.generator.bit_generator.state == before
    assert buffer.num_sampled == 0
    games = MultiAgentEpisodeReplayBuffer(1000)
    games.add([party(3, 5)])
    assert "default_policy" in shown(games).words
    shown(pack[:0])
    shown(Batch())
    uneven = Batch(a=np.zeros((3, 2)), b=np.zeros(4), c={"d": np.array(["x"] * 5)}, e=np.float32(3))
    assert "no common length" in shown(uneven).words
    train_batch = learner_pipeline()(episodes=pack)
    assert "TrainBatch" in shown(train_batch).words
    assert "780 rows" in shown(train_batch).words


@pytest.mark.parametrize("num", [1, 5, 200])
def test_pack_view_marks_borders_of_few_episodes(num: int) -> None:
    pack = EpisodePack.from_episodes([cartpole(n % 7 + 1) for n in range(num)])
    lines = re.findall(r'class="ep-border"[^>]* d="([^"]*)"', shown_html(pack))
    assert {line.count("M") for line in lines} == ({num - 1} if 0 < num - 1 <= 40 else {0} if num == 1 else set())


def test_batch_view_has_statistics_of_tensors() -> None:
    torch = pytest.importorskip("torch")
    batch = Batch(x=torch.arange(6.0), half=torch.ones(3, dtype=torch.bfloat16), meta=torch.empty(4, 2, device="meta"))
    page_words = shown(batch).words
    assert "tensor on meta" in page_words
    assert "2.5" in page_words


def test_views_of_pipelines_and_traces() -> None:
    pipeline = learner_pipeline()
    pipeline(batch={}, episodes=EpisodePack.from_episodes([cartpole(5)]), trace=True)
    assert pipeline.trace is not None
    assert "AddColumns" in shown(pipeline).words
    assert "ms" in shown(pipeline.trace).words


def test_views_without_jinja2_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name, name="jinja2")

    monkeypatch.setattr(notebook_repr, "import_module", missing)
    assert cartpole(3)._repr_html_() is None
    explained = explain_batch(learner_pipeline()(episodes=[cartpole(1)]), 0)
    assert explained._repr_html_() is None
    assert "source: 1 episode with 1 step\n" in str(explained)


@settings(max_examples=25)
@given(episode=single_agent_episodes())
def test_episode_view_of_any_episode(episode: SingleAgentEpisode) -> None:
    names = ["terminated"] * episode.is_terminated + ["truncated"] * episode.is_truncated
    words = shown(episode).words
    assert all(name in words for name in names or ["cut" if episode.is_numpy else "ongoing"])
    assert "ongoing" in shown(SingleAgentEpisode("without a reset")).words


@settings(max_examples=20)
@given(history=multi_agent_histories())
def test_view_of_any_multi_agent_episode(history: Any) -> None:
    for chunk in history.chunks(3):
        shown(chunk)
