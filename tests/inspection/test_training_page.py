"""The live page of training runs in a real browser, and the files that it reads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episode_learners.__main__ import main
from episode_learners.loggers import CSVLogger
from episodes.errors import InvalidArgument, UnreadableData
from episodes.inspect.page_server import PageServer
from episodes.inspect.training_page import CSVFile
from tests.inspection.data import write
from tests.inspection.test_looking_page import SHORT
from tests.inspection.test_page import WITH_BROWSER, Tab, browser, plain, served, tab

__all__ = ["browser", "tab"]  # fixtures


def run_folder(path: Path, seed: int, num_rows: int = 5) -> CSVLogger:
    """Return the logger of a run with some rows."""
    logger = CSVLogger(path)
    logger.describe({"configuration": {"algo": "ppo", "env": "CartPole-v1", "seed": seed}})
    for k in range(num_rows):
        logger.log("train", {"mean_return": float(k + seed), "steps_per_second": 100.0}, 10 * k)
        logger.log("update", {"loss": 1.0 / (k + 1), "own_metric": k}, 10 * k)
    return logger


@settings(max_examples=30)
@given(st.lists(st.lists(st.floats(allow_infinity=False) | st.none(), min_size=2, max_size=2), max_size=8), st.data())
def test_csv_file_read_in_parts_equals_the_whole(tmp_path_factory: Any, rows: list[Any], data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("csv") / "train.csv"
    lines = ["a,b", *(",".join("" if x is None else repr(x) for x in row) for row in rows)]
    text = "".join(line + "\r\n" for line in lines)
    cut = data.draw(st.integers(0, len(text)))
    file = CSVFile(path)
    assert not file.read()
    path.write_text(text[:cut], newline="")
    file.read()
    with path.open("a", newline="") as end:
        end.write(text[cut:])
    file.read()
    assert not file.read()
    expected = np.array([[np.nan if x is None else x for x in row] for row in rows]).reshape(-1, 2)
    assert np.array_equal(np.transpose(list(file.columns.values())).reshape(-1, 2), expected, equal_nan=True)


def test_csv_file_with_a_new_column_is_read_again(tmp_path: Path) -> None:
    with CSVLogger(tmp_path) as logger:
        logger.log("train", {"a": 1.0}, 1)
        file = CSVFile(tmp_path / "train.csv")
        assert file.read()
        logger.log("train", {"a": 2.0, "b": 5.0}, 2)
        assert file.read()
    assert np.array_equal(file.columns["b"], [np.nan, 5.0], equal_nan=True)
    assert file.columns["a"] == [1.0, 2.0]


@WITH_BROWSER
def test_training_page_follows_runs_and_links_to_episodes(tmp_path: Path, tab: Tab) -> None:
    with run_folder(tmp_path / "a", 0) as first, run_folder(tmp_path / "b", 7):
        write(tmp_path / "a" / "episodes", [plain([float(n)], id_=f"e{n}") for n in range(9)])
        with served(tmp_path / "a", tmp_path / "b") as server:
            page = tab.open(server.url)
            assert [text.strip() for text in tab.texts("#runs label")] == ["a", "b"]
            figure = page.locator("figure[data-metric='train/mean_return']")
            assert figure.locator("path.curve").count() == 2
            assert figure.locator("h2 span").inner_text() == "0 … 11"
            first.log("train", {"mean_return": 500.0, "steps_per_second": 100.0}, 50)
            page.locator("h2 span", has_text="0 … 500").wait_for()
            page.get_by_role("checkbox", name="b").uncheck()
            assert figure.locator("path.curve").count() == 1
            assert "hidden=b" in page.url
            page.locator("#more summary").click()
            page.locator("figure[data-metric='update/own_metric']").wait_for()
            assert tab.texts("#episodes h2 >> nth=1")[0].startswith("best episodes")
            page.get_by_role("link", name="e8").nth(1).click()
            page.locator("#episode h2", has_text="e8").wait_for()


@WITH_BROWSER
def test_training_page_of_a_ppo_run_has_the_main_curves(tmp_path: Path, tab: Tab) -> None:
    (tmp_path / "short.toml").write_text(SHORT)
    run = tmp_path / "run"
    assert main(["train", "--config", str(tmp_path / "short.toml"), "--quiet", "--logdir", str(run)]) == 0
    with served(run) as server:
        page = tab.open(server.url)
        names = {f"update/{name}" for name in ("loss", "policy_loss", "value_loss", "kl", "explained_variance")}
        names |= {"train/mean_return", "test/mean_return", "train/steps_per_second"}
        drawn = page.evaluate("[...document.querySelectorAll('#curves > figure')].map((one) => one.dataset.metric)")
        assert names <= set(drawn)
        assert page.locator("figure[data-metric='update/explained_variance'] path.curve").get_attribute("d")


@WITH_BROWSER
def test_training_page_without_rows_states_it(tmp_path: Path, tab: Tab) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"configuration": {}}))
    with served(tmp_path) as server:
        tab.open(server.url)
        assert tab.texts("#empty") == ["no rows yet: waiting for the first epoch"]


def test_page_server_rejects_wrong_paths(tmp_path: Path) -> None:
    data = write(tmp_path / "data", [plain([1.0])])
    run_folder(tmp_path / "run", 0).close()
    with pytest.raises(InvalidArgument, match="one data set"):
        PageServer(data, tmp_path / "run")
    with pytest.raises(InvalidArgument, match="no such folder"):
        PageServer(tmp_path / "run", tmp_path / "nowhere")
    os.makedirs(tmp_path / "empty")
    with pytest.raises(UnreadableData, match="is not a data set"):
        PageServer(tmp_path / "empty")
