"""The live page of training runs in a real browser, and the files that it reads."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episode_learners.__main__ import main
from episode_learners.loggers import CSVLogger
from episodes.errors import InvalidArgument, UnreadableData
from episodes.inspect.formatting import clipped
from episodes.inspect.page_server import PageServer
from episodes.inspect.text_difference import AROUND, MOST_COMPARED, differing_parts, shortened_parts
from episodes.inspect.training_page import CSVFile, RunFiles
from episodes.storage.ledger import Ledger
from episodes.storage.ownership import Owner
from episodes.storage.runs import LOCK, read_run, write_status
from tests.inspection.data import write
from tests.inspection.test_looking_page import SHORT
from tests.inspection.test_page import WITH_BROWSER, Tab, browser, plain, served, tab
from tests.inspection.test_page_trouble import TABLES

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
            assert tab.texts("#episodes h2 >> nth=0")[0].startswith("Episodes: newest")
            page.get_by_role("link", name="e8").click()
            page.locator("#episode h2", has_text="e8").wait_for()
            assert page.title() == "Run a: episodes"
            page.locator("#back").click()
            page.locator("figure[data-metric='train/mean_return']").wait_for()


@WITH_BROWSER
def test_training_page_of_a_ppo_run_has_the_main_curves(tmp_path: Path, tab: Tab) -> None:
    (tmp_path / "short.toml").write_text(SHORT)
    run = tmp_path / "run"
    assert main(["train", "--config", str(tmp_path / "short.toml"), "--quiet", "--logdir", str(run)]) == 0
    with served(run) as server:
        page = tab.open(server.url)
        names = {f"update/{name}" for name in ("loss", "policy_loss", "value_loss", "kl", "explained_variance")}
        names |= {"train/mean_return_100", "test/mean_return", "train/steps_per_second"}
        drawn = page.evaluate("[...document.querySelectorAll('#curves figure')].map((one) => one.dataset.metric)")
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


# --- what the page shows is what the files have -----------------------------------------------------------------------


ENDS = {
    "finished": "max_epochs",
    "stopped by stop_fn": "stop_fn",
    "interrupted": "interrupt",
    "failed: ValueError: no": "ValueError: no",
    "killed": None,
}


@WITH_BROWSER
def test_training_page_shows_the_state_of_each_run(tmp_path: Path, tab: Tab) -> None:
    folders = []
    for n, end in enumerate(ENDS.values()):
        folders.append(tmp_path / str(n))
        run_folder(folders[-1], n).close()
        write_status(folders[-1], settings={}, stopped_by=end, num_steps=5)
    with served(*folders) as server:
        page = tab.open(server.url)
        assert tab.texts("#runs .status") == list(ENDS)
        assert tab.texts("#runs .status") == [read_run(folder).status for folder in folders]
        assert tab.texts("#runs .status.bad") == ["failed: ValueError: no", "killed"]
        assert page.locator("#live").inner_text() == "ended"
        lock = Owner("a trainer", folders[-1] / LOCK, refusal="", remedy="")
        lock.claim()
        page.locator("#runs .status.running").wait_for()  # no file of metrics has changed
        assert page.locator("#live").inner_text() == "1 running"
        lock.release()


@WITH_BROWSER
def test_training_page_table_has_the_newest_number_and_no_reading_after_the_end(tmp_path: Path, tab: Tab) -> None:
    for name, steps, returns in (("a", (0, 50, 100), (1.0, 412.5, np.nan)), ("b", (0, 20, 40), (3.0, 5.0, 500.0))):
        with CSVLogger(tmp_path / name) as logger:
            for step, number in zip(steps, returns, strict=True):
                logger.log("train", {"mean_return": number}, step)
    with served(tmp_path / "a", tmp_path / "b") as server:
        page = tab.open(server.url)
        assert tab.texts("#runs td:nth-child(3)") == ["412.5", "500"]
        figure = page.locator("figure[data-metric='train/mean_return']")
        assert figure.locator(".values").inner_text().split() == ["a", "412.5", "b", "500", "newest"]
        box = figure.locator("svg").bounding_box()
        for share, expected in (  # of the row next to the cursor, and what the other run has next to it
            (0.47, "a 412.5 b \u2013 step 50"),
            (0.28, "a 1 (at 0) b 5 step 20"),
            (0.36, "a 412.5 (at 50) b 500 step 40"),
            (0.99, "a 412.5 b \u2013 step 50"),
        ):
            page.mouse.move(box["x"] + share * box["width"], box["y"] + 40)
            assert figure.locator(".values").inner_text().split() == expected.split()


def drawn(page: Any, metric: str, is_log: bool = False) -> list[list[float]]:
    """Return the points of the first curve of a chart in the units of its axes, as its labels have them. With `is_log`,
    heights are exponents.
    """
    script = """(metric) => {
      const figure = document.querySelector(`figure[data-metric='${metric}']`);
      const labels = (name, side) => [...figure.querySelectorAll(`.${name} span`)].map(
        (span) => [parseFloat(span.style[side]) / 100, Number(span.textContent.replace("k", "e3"))]);
      const path = figure.querySelector("path.curve").getAttribute("d");
      const points = [...path.matchAll(/[ML]([-0-9.]+) ([-0-9.]+)/g)].map((part) => [part[1] / 600, part[2] / 150]);
      return [labels("places", "left"), labels("heights", "top"), points];
    }"""
    places, heights, points = page.evaluate(script, metric)
    heights = [[at, np.log10(number) if is_log else number] for at, number in heights]

    def in_units(labels: list[list[float]], at: float) -> float:
        (at_first, first), (at_last, last) = labels[0], labels[-1]
        return first + (last - first) * (at - at_first) / (at_last - at_first)

    return [[in_units(places, x), in_units(heights, y)] for x, y in points]


CURVES = st.lists(
    st.tuples(st.integers(1, 400), st.one_of(st.integers(-900, 900).map(float), st.just(np.nan))),
    min_size=3,
    max_size=30,
)


@WITH_BROWSER
def test_hidden_runs_return_and_no_page_is_blank_without_a_word(tmp_path: Path, tab: Tab) -> None:
    folders = [tmp_path / name for name in "ab"]
    for n, folder in enumerate(folders):
        run_folder(folder, n).close()
    with served(*folders) as server:
        page = tab.open(server.url)
        paths = "[...document.querySelectorAll('path.curve')].map((path) => path.getAttribute('d'))"
        before = page.evaluate(paths)
        for name in "ab":
            page.locator("#runs label", has_text=name).click()
        assert page.locator("#curves figure").count() == 0
        assert tab.texts("#empty") == ["All runs are hidden: check one in the table above."]
        page.reload()
        page.locator("#empty", has_text="All runs are hidden").wait_for()
        for name in "ab":
            page.get_by_role("checkbox", name=name, exact=True).press("Space")
        assert tab.texts("#empty") == [""]
        assert page.evaluate(paths) == before
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "update.csv").write_text("step,return\n1,2.5\n")
    with served(folders[0], tmp_path / "bare") as server:  # without a status and settings
        tab.open(server.url)
        assert tab.texts("#settings summary") == ["3 settings; of bare none is recorded"]
        assert tab.texts("#runs td:nth-child(2)") == ["not begun", "not recorded"]
        assert tab.texts("#runs td:nth-child(3)") == ["4", "2.5"]
        assert tab.texts("#runs th:nth-child(4)") == ["logged steps"]  # no run was tested
    with served(folders[0]) as server:
        page = tab.open(server.url)
        page.locator("#runs td", has_text="a").first.click()  # one run alone has no switch
        assert page.locator("#runs input").count() == 0
        assert page.locator("figure[data-metric='train/mean_return'] path.curve").count() == 1
        assert tab.texts("#runs .status") == ["not begun"]


@WITH_BROWSER
def test_smoothed_curve_has_the_raw_one_and_a_zoom_labels_its_newest_number(tmp_path: Path, tab: Tab) -> None:
    run_folder(tmp_path / "a", 0, num_rows=11).close()
    with served(tmp_path / "a") as server:
        page = tab.open(server.url)
        figure = page.locator("figure[data-metric='train/mean_return']")
        raw = figure.locator("path.curve").get_attribute("d")
        page.evaluate("() => { state.smooth = 0.9; draw(); }")
        assert figure.locator("path.raw").get_attribute("d") == raw
        assert figure.locator("path.curve").get_attribute("d") != raw
        assert figure.locator(".values").inner_text().endswith("newest, smoothed")
        page.evaluate("() => { state.smooth = 0; zoom([0, 55]); }")
        assert figure.locator(".values").inner_text().split() == ["5", "last", "one", "shown"]
        page.locator("#whole").click()
        assert figure.locator(".values").inner_text().split() == ["10", "newest"]


@WITH_BROWSER
def test_large_chart_with_a_logarithmic_scale_read_with_its_axis_is_the_table(tmp_path: Path, tab: Tab) -> None:
    with CSVLogger(tmp_path / "a") as logger:
        for step, number in enumerate((1.0, 10.0, 0.0, 1000.0, 100.0)):
            logger.log("train", {"mean_return": number}, step)
    with served(tmp_path / "a") as server:
        page = tab.open(server.url)
        figure = page.locator("figure[data-metric='train/mean_return']")
        width = figure.bounding_box()["width"]
        figure.locator("button.large").press("Enter")
        assert figure.bounding_box()["width"] > width
        assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
        assert figure.locator(".meaning").inner_text() == "mean return of the episodes that ended in each sample."
        figure.get_by_role("checkbox", name="logarithmic").check()
        points = drawn(page, "train/mean_return", is_log=True)
        assert np.allclose(points, [[0, 0], [1, 1], [3, 3], [4, 2]], atol=0.02)
        assert "Numbers that are not above 0" in figure.inner_text()
        page.reload()
        figure.wait_for()
        assert np.allclose(drawn(page, "train/mean_return", is_log=True), points)
        page.keyboard.press("Escape")
        assert figure.bounding_box()["width"] == width
        assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "false"


@settings(max_examples=20)
@given(st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=24))
def test_episode_lists_have_the_best_and_worst_and_no_episode_twice(returns: list[float]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "episodes", [plain([number], id_=f"e{n}") for n, number in enumerate(returns)])
        run = RunFiles(Path(folder))
        run.read()
    lists = run.episodes["episodes"]
    shown = [row["id"] for rows in lists.values() for row in rows]
    assert len(shown) == len(set(shown)) == min(len(returns), 15)
    for kind, order in (("best", sorted(returns, reverse=True)), ("worst", sorted(returns))):
        assert [row["return"] for row in lists.get(kind, ())] == order[:5] * (len(returns) > 15)


def test_lists_of_kept_episodes_are_sorted_by_return_and_tell_their_step(tmp_path: Path) -> None:
    """An episode that was the best and the worst one of its interval is in a list of its own."""
    episodes = []
    for n, reasons in enumerate(["best", "worst", "best, random", "worst, random", "random", "worst, best"] * 2):
        episode = plain([float(n)], id_=f"e{n}")
        episode.custom_data |= {"kept_as": reasons, "num_steps": 100 * n}
        episodes.append(episode)
    write(tmp_path / "training", episodes)
    run = RunFiles(tmp_path)
    run.read()
    lists = {title: [(row["id"], row["at"]) for row in rows] for title, rows in run.episodes["training"].items()}
    numbers = {
        "best of their interval": (8, 6, 2, 0),
        "kept": (11, 5),
        "random": (10, 4),
        "worst of their interval": (1, 3, 7, 9),
    }
    assert lists == {title: [(f"e{n}", 100 * n) for n in rows] for title, rows in numbers.items()}


@pytest.mark.parametrize(("num_rows", "has_updates"), [(3, True), (4, False)])
def test_rows_without_numbers_of_updates_have_those_of_the_ledger_if_they_are_as_many(
    num_rows: int, has_updates: bool, tmp_path: Path
) -> None:
    with Ledger(tmp_path / "ledger") as ledger:
        for update in (2, 4, 6):
            ledger.note(update, {"obs": np.zeros(3)})
    (tmp_path / "update.csv").write_text("step,loss\n" + "".join(f"{10 * n},1.0\n" for n in range(num_rows)))
    run = RunFiles(tmp_path)
    run.read()
    assert run.message()["clock"].get("update", np.zeros(0)).tolist() == [2, 4, 6] * has_updates


@WITH_BROWSER
@pytest.mark.parametrize("x", ["step", "update"])
def test_training_page_curve_read_with_its_axes_is_the_table(tmp_path: Path, tab: Tab, x: str) -> None:
    (tmp_path / "run.json").write_text("{}")
    with served(tmp_path) as server:
        page = tab.open(server.url)
        page.evaluate("() => { window.fetch = () => new Promise(() => {}); }")  # only what is drawn below

        @settings(max_examples=25)
        @given(CURVES, st.integers(1, 50))
        def check(rows: list[tuple[int, float]], steps_per_update: int) -> None:
            steps = np.cumsum([step for step, _ in rows]) * steps_per_update
            numbers = np.array([number for _, number in rows])
            if len(set(numbers[~np.isnan(numbers)])) < 2:
                return
            for scope, values in (("train", numbers), ("update", steps // steps_per_update)):
                name = {"train": "mean_return", "update": "num_updates"}[scope]
                lines = [f"{step},{value}" for step, value in zip(steps.tolist(), values.tolist(), strict=True)]
                (tmp_path / f"{scope}.csv").write_text("\n".join([f"step,{name}", *lines, ""]))
            files = RunFiles(tmp_path)
            files.read()
            page.evaluate(
                """([run, x]) => { [runs, groups, settings, state.x] = [[run], [0], {}, x]; draw(); }""",
                [plain_values(files.message()), x],
            )
            points = drawn(page, "train/mean_return")
            is_known = ~np.isnan(numbers)
            expected = steps if x == "step" else steps // steps_per_update
            assert len(points) == is_known.sum()
            at, values = np.transpose(points)
            assert np.allclose(at, expected[is_known], atol=expected[-1] / 1000)
            assert np.allclose(values, numbers[is_known], atol=np.ptp(numbers[is_known]) / 500)

        check()


@WITH_BROWSER
def test_agents_of_one_run_share_a_chart(tmp_path: Path, tab: Tab) -> None:
    for name in "ab":
        with CSVLogger(tmp_path / name) as logger:
            for n in range(3):
                agents = {f"mean_return/agent/{agent}": n * size for agent, size in (("left", 1.0), ("right", 20000.5))}
                logger.log("train", agents, n)
    with served(tmp_path / "a") as server:
        page = tab.open(server.url)
        (figure,) = page.locator("#curves figure").all()
        assert figure.get_attribute("data-metric") == "train/mean_return/agent"
        assert figure.locator(".values").inner_text().split() == ["left", "2", "right", "40,001", "newest"]
        assert figure.locator("h2 span").inner_text() == "0 … 40,001"
        colours = figure.locator("path.curve").evaluate_all("paths => paths.map((path) => path.style.stroke)")
        assert len(set(colours)) == 2
        assert figure.locator("path.points").first.get_attribute("d").count("M") == 3
    with served(tmp_path / "a", tmp_path / "b") as server:
        tab.open(server.url)
        names = [f"train/mean_return/agent/{agent}" for agent in ("left", "right")]
        assert page.locator("#curves figure").evaluate_all("all => all.map((one) => one.dataset.metric)") == names


def plain_values(value: Any) -> Any:
    """Return data of the page with lists in place of arrays, which a script takes as arguments."""
    if isinstance(value, dict):
        return {name: plain_values(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


@WITH_BROWSER
def test_mean_over_seeds_equals_numpy(tmp_path: Path, tab: Tab) -> None:
    (tmp_path / "run.json").write_text("{}")
    with served(tmp_path) as server:
        page = tab.open(server.url)

        @settings(max_examples=40)
        @given(st.lists(CURVES, min_size=2, max_size=4))
        def check(curves: list[list[tuple[int, float]]]) -> None:
            seeds = [
                (np.cumsum([step for step, _ in rows]), np.array([number for _, number in rows])) for rows in curves
            ]
            known = [(steps[~np.isnan(numbers)], numbers[~np.isnan(numbers)]) for steps, numbers in seeds]
            arguments = [{"xs": steps.tolist(), "values": numbers.tolist()} for steps, numbers in seeds]
            mean = page.evaluate("meanCurve", arguments) if all(len(steps) for steps, _ in known) else {"xs": []}
            begin = max((steps[0] for steps, _ in known if len(steps)), default=0)
            end = min((steps[-1] for steps, _ in known if len(steps)), default=0)
            if all(len(steps) for steps, _ in known):
                grid = np.unique(np.concatenate([steps for steps, _ in known]))
                grid = grid[(grid >= begin) & (grid <= end)]
                assert mean["xs"] == grid.tolist()
                table = np.array([np.interp(grid, steps, numbers) for steps, numbers in known])
                for name, expected in (("values", table.mean(0)), ("low", table.min(0)), ("high", table.max(0))):
                    assert np.allclose(mean[name], expected)

        check()


@WITH_BROWSER
def test_training_page_finds_metrics_zooms_and_compares_settings(tmp_path: Path, tab: Tab) -> None:
    folders = []
    for n, (seed, rate) in enumerate(((0, 0.1), (1, 0.1), (0, 0.2))):
        folders.append(tmp_path / str(n))
        with run_folder(folders[-1], seed, num_rows=11) as logger:
            logger.describe({"configuration": {"algo": "ppo", "env": "CartPole-v1", "seed": seed, "rate": rate}})
    with served(*folders) as server:
        page = tab.open(server.url)
        assert page.locator("#settings summary").inner_text() == "2 settings differ, of 4"
        page.locator("#settings summary").click()
        rows = [row.split("\t") for row in tab.texts("#settings tbody tr")]
        assert rows[:2] == [["seed", "0", "1", "0"], ["rate", "0.1", "0.1", "0.2"]]
        assert sorted(row[0] for row in rows) == ["algo", "env", "rate", "seed"]
        page.fill("#settings input", "cart")
        assert [row.split("\t")[0] for row in tab.texts("#settings tbody tr")] == ["env"]
        assert page.locator("#settings tr.differs").count() == 0
        page.fill("#search", "LOSS")
        shown = "[...document.querySelectorAll('#curves figure')].map((one) => one.dataset.metric)"
        assert page.evaluate(shown) == ["update/loss"]
        page.fill("#search", "nothing")
        assert tab.texts("#empty") == ["no metric has these words"]
        page.fill("#search", "own")
        figure = page.locator("figure[data-metric='update/own_metric']")
        assert figure.locator("path.curve").count() == 3
        assert page.evaluate("[...find('x').options].map((option) => option.disabled)") == [False, True, True]
        page.locator("#seeds").check()
        assert figure.locator("path.curve").count() == 2
        box = figure.locator("svg").bounding_box()
        page.mouse.move(box["x"] + 0.19 * box["width"], box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.61 * box["width"], box["y"] + 50, steps=3)
        page.mouse.up()
        assert figure.locator("h2 span").inner_text() == "2 … 6"
        begin, end = page.evaluate("state.zoom")
        assert (begin, end) == (pytest.approx(19, abs=0.5), pytest.approx(61, abs=0.5))
        address = page.url
        page.goto("about:blank")
        tab.open(address)
        assert page.evaluate("[state.find, state.seeds, state.zoom]") == ["own", True, [begin, end]]
        page.keyboard.press("Escape")
        assert figure.locator("h2 span").inner_text() == "0 … 10"


@WITH_BROWSER
@pytest.mark.parametrize("x", ["step", "update", "time"])
def test_training_page_of_wrong_tables_has_no_error_and_finite_drawings(tmp_path: Path, tab: Tab, x: str) -> None:
    folders = []
    for n, (content, _, _) in enumerate(TABLES.values()):
        folders.append(tmp_path / str(n))
        folders[-1].mkdir()
        (folders[-1] / "run.json").write_text(json.dumps({"configuration": {"seed": n}}))
        for scope in ("train", "update") if content is not None else ():
            (folders[-1] / f"{scope}.csv").write_bytes(content.replace(b"a", b"num_updates,run_seconds"))
    lines = [
        "step,mean_return,num_updates,run_seconds",
        "5,1,1,0.5",
        "3,inf,nan,0.2",
        "3,-inf,7,",
        "nan,2,2,2",
        "9,1e308,9,9",
    ]
    (folders[0] / "update.csv").write_text("\n".join([*lines, ""]))
    with served(*folders) as server:
        page = tab.open(f"{server.url}#x={x}&seeds=yes")
        page.evaluate("() => { find('more').open = true; draw(); }")
        paths = page.evaluate("[...document.querySelectorAll('figure path')].map((path) => path.getAttribute('d'))")
        assert len(paths) > 2
        assert not [path for path in paths if "NaN" in path or "Infinity" in path]
        assert page.evaluate("document.querySelectorAll('.places span').length") > 0
        assert len(tab.texts("#runs tbody tr")) == len(folders)


@settings(max_examples=20)
@given(st.integers(1, 2500), st.integers(0, 2**32 - 1), st.sampled_from([1.0, 1e-300, 1e308]))
def test_points_of_a_long_curve_have_mean_and_extremes_of_their_rows(
    tmp_path_factory: pytest.TempPathFactory, num_rows: int, seed: int, scale: float
) -> None:
    folder, generator = tmp_path_factory.mktemp("curve"), np.random.default_rng(seed)
    steps = generator.permutation(num_rows) + 1
    numbers = np.where(generator.random(num_rows) < 0.2, np.nan, generator.uniform(-1, 1, num_rows)) * scale
    rows = [f"{step},{number!r}" for step, number in zip(steps.tolist(), numbers.tolist(), strict=True)]
    (folder / "train.csv").write_text("\n".join(["step,a", *rows, ""]))
    run = RunFiles(folder)
    run.read()
    curve = run.message()["metrics"]["train/a"]
    numbers, begin = numbers[np.argsort(steps)], 0
    assert len(curve["step"]) <= 400
    for end, mean, low, high in zip(*(curve[name] for name in ("step", "mean", "low", "high")), strict=True):
        known = numbers[begin : int(end)]
        known, begin = known[~np.isnan(known)], int(end)
        expected = [np.mean(known / scale) * scale, known.min(), known.max()] if len(known) else [np.nan] * 3
        assert np.allclose(np.array([mean, low, high]) / scale, np.array(expected) / scale, equal_nan=True)
    assert begin == num_rows


@pytest.mark.parametrize(("status", "best"), [(21.5, 21.5), (None, 9.0)])
def test_best_test_is_that_of_the_status_or_else_of_the_csv_file(
    tmp_path: Path, status: float | None, best: float
) -> None:
    (tmp_path / "test.csv").write_text("step,mean_return\n1,nan\n2,9.0\n3,4.0\n")
    run = RunFiles(tmp_path)
    run.read()
    assert run.message()["best"] == 9.0
    write_status(tmp_path, settings={}, stopped_by=None, best_score=status)
    run.read()
    assert run.message()["best"] == best


WORDS = st.lists(st.sampled_from(["in", "out", "=", "3", "4", " ", "\n", "(", "<b>", "é"]), max_size=30).map("".join)


@given(st.lists(WORDS, min_size=1, max_size=4), WORDS, WORDS, st.integers(1, 9))
def test_texts_without_the_parts_that_differ_are_equal(texts: list[str], begin: str, end: str, most: int) -> None:
    texts = [f"{begin} {text} {end}" for text in texts]
    parts = differing_parts(tuple(texts))
    assert ["".join(part.text for part in row) for row in parts] == texts
    assert len({"".join(part.text for part in row if not part.differs) for row in parts}) == 1
    assert len({*texts}) > 1 or not any(part.differs for row in parts for part in row)
    for row in parts:
        for whole, shown in zip(row, shortened_parts(row, most), strict=True):
            assert shown.differs == whole.differs
            assert len(shown.text) <= (most if whole.differs else 2 * AROUND) + 1
            start, _, stop = shown.text.partition("…")
            assert whole.text == shown.text or (whole.text.startswith(start) and whole.text.endswith(stop))


def test_texts_that_are_long_differ_after_the_words_that_are_compared() -> None:
    """And take no longer, though all their words are frequent."""
    a, b = (f"{'x ' * 5 * MOST_COMPARED}{n} {f'{n} y ' * MOST_COMPARED}{'z ' * MOST_COMPARED}" for n in (1, 2))
    for text, row in zip((a, b), differing_parts((a, b)), strict=True):
        rest = "".join(part.text for part in row[-2:])
        assert [part.differs for part in row[-2:]] == [True, False]
        assert rest == text[-len(rest) :]
        assert row[0] == ("x " * 5 * MOST_COMPARED, False)


@WITH_BROWSER
def test_runs_of_other_environments_say_so_and_settings_mark_what_differs(tmp_path: Path, tab: Tab) -> None:
    layers = "Linear(in_features={}, out_features=64, bias=True) " + "Tanh() " * 40 + "<b>"
    long = {"env_kwargs.length": 2, "env_kwargs.map": "m" * 120}
    given_ = {"a": ("Line-v0", 3, {}), "b": ("CartPole-v1", 4, {}), "c": ("CartPole-v1", 4, long)}
    given_ |= {"d": ("CartPole-v1", 4, dict(reversed(long.items()))), "e": ("CartPole-v1", 4, long | {"seed": 1})}
    given_ |= {"f": ("CartPole-v1", 4, long | {"env_kwargs.zoom": 2})}
    for name, (env, size, more) in given_.items():
        with run_folder(tmp_path / name, 0) as logger:
            logger.describe({"configuration": {"algo": "ppo", "env": env, "policy": layers.format(size), **more}})
    with served(*(tmp_path / name for name in given_)) as server:
        page = tab.open(server.url)
        told = page.locator("#unlike")
        cut = clipped(f"CartPole-v1 with length=2, map={'m' * 120}", 100)
        names = f"Line-v0; CartPole-v1; {cut}; {cut}"  # that of f differs in the part that is cut
        assert told.inner_text() == f"4 environments: {names}: returns are not comparable"
        page.locator("#settings summary").click()
        row = page.locator("#settings tr.differs", has_text="policy")
        assert row.locator("mark").all_inner_texts() == ["3", *["4"] * 5]
        assert all("in_features=" in text and "…" in text for text in row.locator("td").all_inner_texts())
        page.get_by_role("checkbox", name="a", exact=True).uncheck()
        assert told.inner_text().startswith("3 environments: ")
        for name in "bf":
            page.get_by_role("checkbox", name=name, exact=True).uncheck()
        assert told.inner_text() == ""


@WITH_BROWSER
@pytest.mark.parametrize("width", [400, 1400])
def test_reading_a_chart_moves_nothing(width: int, tmp_path: Path, tab: Tab) -> None:
    for n, name in enumerate(("first", "second")):
        with CSVLogger(tmp_path / name) as logger, Ledger(tmp_path / name / "ledger", every=1) as ledger:
            for k in range(12):
                logger.log("update", {"num_updates": k + 1, "loss": 1 / (k + 1)}, 1000 * k * (n + 1))
                ledger.note(k + 1, {"obs": np.arange(4.0)}, measured={"loss": np.arange(4)})
    tab.page.set_viewport_size({"width": width, "height": 900})
    with served(tmp_path / "first", tmp_path / "second") as server:
        page = tab.open(server.url)
        page.locator("#findings [data-updates]").first.wait_for()
        figure = page.locator("figure[data-metric='update/loss']")
        svg = figure.locator("svg")
        height = "(one) => [one.offsetHeight, document.documentElement.scrollHeight]"
        before, texts = figure.evaluate(height), set()
        for _ in range(12):
            svg.press("ArrowRight")
            assert figure.evaluate(height) == before
            texts.add(figure.locator(".values").inner_text().split("click opens update ")[1].split(" of ")[1])
        assert texts & {"first", "second"}
