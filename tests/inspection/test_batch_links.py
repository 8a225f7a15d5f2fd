"""Links from rows of batches to their steps on the page of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors import learner_pipeline
from episode_learners import PPO, MLPPolicy, PPOConfig
from episodes import Batch, SingleAgentEpisode
from episodes.errors import EpisodeStateError
from episodes.inspect import explain_batch, link_batch
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset
from tests.inspection.data import write
from tests.inspection.test_page import WITH_BROWSER, Tab, browser, report, served, tab

__all__ = ["browser", "tab"]  # fixtures
SPACE = spaces.Box(-1e6, 1e6, (1,), np.float32)
HOSTILE_IDS = ["plain", "a&b=c#d?e", "</script>\"'<b>", "Zoë \U0001f642 %20+", " "]


def counting(n: int, steps: int, **facts: Any) -> SingleAgentEpisode:
    """Return an episode whose observations are 1000 n + the time."""
    observations = (1000.0 * n + facts.get("t_started", 0) + np.arange(steps + 1))[:, None].astype(np.float32)
    outputs = {"action_logp": np.full(steps, -0.7, np.float32)}
    return SingleAgentEpisode.from_arrays(
        observations,
        np.zeros(steps, int),
        np.ones(steps),
        extra_model_outputs=outputs,
        observation_space=SPACE,
        action_space=spaces.Discrete(2),
        **facts,
    )


@WITH_BROWSER
@pytest.mark.parametrize("is_served", [False, True])
def test_links_of_a_minibatch_open_their_steps(tmp_path: Path, tab: Tab, is_served: bool) -> None:
    episodes = [counting(n, 4 + n, id_=id_, terminated=True) for n, id_ in enumerate(HOSTILE_IDS)]
    ppo = PPO(MLPPolicy(SPACE, spaces.Discrete(2), hidden_sizes=(4,)), PPOConfig(minibatch_size=8))
    data = write(tmp_path / "data", episodes)
    minibatch = next(iter(ppo.minibatches(ppo.preprocess(list(EpisodeDataset(data))))))

    def check(page: str | Path) -> None:
        links = link_batch(minibatch, page)
        assert len(links) == 8
        for row in range(len(links)):
            link = links[row]
            assert link is not None
            tab.page.goto("about:blank")
            tab.open(link)
            n, t = divmod(int(minibatch["obs"][row, 0]), 1000)
            assert tab.texts("#now") == [f"step {t}"]
            assert tab.value("observations") == str(1000 * n + t)
            assert tab.texts("tr[aria-selected=true] td[data-column=length]") == [str(4 + n)]

    if is_served:
        with served(data) as server:
            check(server.url)
    else:
        report(data)
        check(tmp_path / "page.html")


@WITH_BROWSER
def test_links_of_chunks_choose_the_chunk_with_the_step(tmp_path: Path, tab: Tab) -> None:
    chunks = [counting(0, 5, id_="e"), counting(0, 5, id_="e", t_started=5), counting(0, 5, id_="f")]
    url = report(write(tmp_path / "data", chunks))
    for t in (0, 4, 5, 10):
        tab.page.goto("about:blank")
        tab.open(f"{url}#id=e&t={t}")
        assert tab.value("observations") == str(t)
    tab.page.goto("about:blank")
    tab.open(f"{url}#id=gone&t=3")
    assert "does not have this episode" in tab.texts("#episode p")[0]


@WITH_BROWSER
def test_card_of_linked_batch_opens_the_step_on_click(tmp_path: Path, tab: Tab) -> None:
    data = write(tmp_path / "data", [counting(3, 9, id_="e")])
    page = report(data)
    batch = Batch(learner_pipeline()(episodes=[EpisodeDataset(data)[0]]))
    html = link_batch(batch[2:], page)._repr_html_()
    (tmp_path / "card.html").write_text(f'<!doctype html><meta charset="utf-8">{html}')
    tab.page.goto((tmp_path / "card.html").as_uri())
    tab.page.locator("td a").nth(4).click()
    tab.page.locator("body[data-ready=yes]").wait_for()
    assert tab.value("observations") == "3006"


@settings(max_examples=40)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 4), st.data())
def test_links_of_any_rows_have_the_ids_and_times_of_the_origin(
    lengths: list[int], width: int, data: st.DataObject
) -> None:
    episodes = [counting(n, steps, id_=f"e{n}", terminated=True) for n, steps in enumerate(lengths)]
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add(episodes)
    rows = np.array(data.draw(st.lists(st.integers(0, sum(lengths) - 1), min_size=1, max_size=9)))
    batch = buffer.at(rows)
    links = link_batch(batch, "http://127.0.0.1:1/#old")
    for row in range(len(rows)):
        step = batch.origin[row]
        assert links[row] == f"http://127.0.0.1:1/#id={step.id_}&t={step.t}"
        assert f"  step: t={step.t}" in str(explain_batch(batch, row))
    sequences = buffer.sample_sequences(len(rows), width)
    links = link_batch(sequences, "page.html")
    for row, numbers in enumerate(sequences.origin.numbers):
        first = sequences.origin[row, int(np.flatnonzero(numbers >= 0)[0])]
        assert str(links[row]).endswith(f"/page.html#id={first.id_}&t={first.t}")


def test_links_without_origin_are_rejected() -> None:
    with pytest.raises(EpisodeStateError, match="is unknown"):
        link_batch({"x": np.zeros(3)}, "page.html")


def test_links_of_a_batch_without_rows_are_empty() -> None:
    batch = Batch(learner_pipeline()(episodes=[counting(0, 3)]))[:0]
    assert len(link_batch(batch, "page.html")) == 0
    assert "0 rows" in batch._repr_html_()
