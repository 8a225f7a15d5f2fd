"""Tests of the benchmark functions, and a short run of this library's side of each benchmark."""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import all_figures, gpu, table
from benchmarks import measure as measuring
from benchmarks.abilities import questions
from benchmarks.compare_commit import ROOT, Compared, Pace, compare, format_row
from benchmarks.figure import Bar, Counted, Figure, NotHere, Side, Size, Timed, at_least, at_most, limit
from benchmarks.measure import Effort, Row, measure, measure_in_turns, try_once
from benchmarks.soak import SLACK, Use, grown, soak

ONCE = Effort(rounds=3, seconds=0.0)
TINY = Size(most=12)


@pytest.fixture(autouse=True)
def _others_objects_are_not_looked_through() -> Iterator[None]:
    """Freeze existing objects, so that garbage collection before each measurement is fast."""
    gc.freeze()
    yield
    gc.unfreeze()


def counted(name: str, amount: float) -> Side:
    return Side(name, lambda size: Counted(amount))


def figure(ours: Side, reference: Side, bar: Bar, name: str = "group/figure") -> Figure:
    return Figure(name, ours, reference, bar, "us")


def no_gpu(size: Size) -> Timed:
    raise NotHere("no GPU here")


def broken(size: Size) -> Timed:
    raise ValueError("does not work")


def test_both_sides_are_measured_in_turns() -> None:
    calls: list[str] = []
    works: list[Timed | Counted] = [Timed(lambda: calls.append("a")), Timed(lambda: calls.append("b"))]
    costs = measure_in_turns(works, Effort(rounds=4, seconds=0.0))
    assert "".join(calls) == "aabb" + "abbaabba"  # once to warm each, once to find the number of calls, then rounds
    assert [len(rounds) for rounds in costs] == [4, 4]
    assert all(cost > 0 for rounds in costs for cost in rounds)


def test_round_repeats_work_until_it_lasts_long_enough() -> None:
    calls: list[int] = []
    clock = lambda: len(calls) / 100_000  # noqa: E731  # ten microseconds each
    (costs,) = measure_in_turns([Timed(lambda: calls.append(1), clock=clock)], Effort(rounds=1, seconds=0.002))
    assert costs == pytest.approx([1e-5])
    assert len(calls) > 2 * 200  # found out, then measured


def test_cost_of_first_call_does_not_count() -> None:
    calls: list[int] = []
    clock = lambda: len(calls) / 1000 + 10 * bool(calls)  # noqa: E731  # ten seconds, then a millisecond each
    (costs,) = measure_in_turns([Timed(lambda: calls.append(1), clock=clock)], Effort(rounds=1, seconds=0.01))
    assert costs == pytest.approx([0.001])
    assert len(calls) > 10  # as many a round as last long enough


def test_costs_are_per_item() -> None:
    ticks = itertools.count()
    clock = lambda: float(next(ticks))  # noqa: E731  # whatever is done takes a second
    (whole,) = measure_in_turns([Timed(lambda: None, clock=clock)], ONCE)
    (per_item,) = measure_in_turns([Timed(lambda: None, items=1000, clock=clock)], ONCE)
    assert whole == [1.0] * 3
    assert per_item == pytest.approx([0.001] * 3)


def test_consuming_work_gets_new_input_each_time() -> None:
    made: list[list[int]] = []

    def fresh() -> list[int]:
        made.append([1])
        return made[-1]

    measure_in_turns([Timed(lambda value: value.pop(), fresh=fresh)], ONCE)
    assert made
    assert not any(made)


@pytest.mark.parametrize(
    ("bar", "ours", "reference", "ratio", "holds"),
    [
        (at_least(2), 1.0, 2.0, 2.0, True),
        (at_least(2), 1.0, 1.9, 1.9, False),
        (at_most(1.3), 1.3, 1.0, 1.3, True),
        (at_most(1.3), 1.4, 1.0, 1.4, False),
    ],
)
def test_ratio_is_compared_with_its_bar(bar: Bar, ours: float, reference: float, ratio: float, holds: bool) -> None:
    row = measure(figure(counted("ours", ours), counted("other", reference), bar), ONCE)
    assert row.ratio == pytest.approx(ratio)
    assert row.holds is holds


def test_ratio_is_the_median_of_round_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other_counted = Counted(0.0), Counted(0.0)
    rounds = {id(ours): iter([1.0, 20.0, 3.0]), id(other_counted): iter([2.0, 40.0, 3.0])}  # busy in the second one
    monkeypatch.setattr(measuring, "cost", lambda work, calls: next(rounds[id(work)]))
    sides = [Side("ours", lambda size: ours), Side("other", lambda size: other_counted)]
    row = measure(figure(sides[0], sides[1], at_least(2)), ONCE)
    assert (row.ours, row.other, row.ratio) == (3.0, 3.0, 2.0)


def test_limit_is_a_side_without_work() -> None:
    row = measure(figure(counted("ours", 2e-7), limit("bar", 1e-7), at_most(1)), ONCE)
    assert row.ratio == pytest.approx(2.0)
    assert row.holds is False


def test_side_that_cannot_run_is_a_row_with_the_reason() -> None:
    peer = Side("Peer", broken, ("no_such_library.inside",))
    row = measure(figure(counted("ours", 1e-6), peer, at_least(2)), ONCE)
    assert (row.ours, row.other, row.ratio, row.holds) == (1e-6, None, None, None)
    assert "not installed: no_such_library.inside" in table.format_row(row, width=20)
    row = measure(figure(Side("ours", no_gpu), counted("other", 1.0), at_least(0.8)), ONCE)
    assert row.holds is None
    assert table.format_row(row, width=20).endswith("no GPU here")


def test_table_shows_costs_in_their_unit() -> None:
    assert table.format_cost(3.12e-7, "us") == "0.312 us"
    assert table.format_cost(1 / 12_800, "steps/s") == "12,800 steps/s"
    assert table.format_cost(2.5e-10, "GB/s") == "4.00 GB/s"
    assert table.format_cost(1064.0, "bytes") == "1,064 bytes"
    assert table.format_cost(None, "us") == "-"


def test_rows_line_up() -> None:
    rows = [
        Row(figure(counted("ours", 1), counted("numpy", 1), at_most(1)), ours=1e-6, other=123.4),
        Row(figure(counted("ours", 1), counted("Tianshou", 1), at_least(2.5), "group/longer name"), note="no GPU here"),
    ]
    width = table.name_width([row.figure for row in rows])
    lines = [table.format_row(row, width) for row in rows]
    assert len({line.index("at ") for line in lines}) == 1
    assert table.header(width).splitlines()[0].index("bar") == lines[0].index("at most")


def test_names_select_groups_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert {figure.name.split("/")[0] for figure in all_figures.select_figures(["getters"])} == {"getters"}
    assert [figure.name for figure in all_figures.select_figures(["growing/step"])] == ["growing/step"]
    assert len(all_figures.select_figures([])) == len(all_figures.FIGURES)
    assert command.main(["nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err
    assert command.main(["--list"]) == 0
    names = capsys.readouterr().out.split("\n")[:-1]
    assert names == [figure.name for figure in all_figures.FIGURES]
    assert len(set(names)) == len(names)


def test_failed_figure_is_a_row_and_others_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    good = figure(counted("ours", float(np.float32(1))), counted("other", np.float64(2)), at_least(2), "group/good")
    bad = figure(Side("ours", broken), counted("other", 2.0), at_least(2), "group/bad")
    monkeypatch.setattr(all_figures, "FIGURES", (bad, good))
    monkeypatch.setattr(command, "hush", lambda: None)
    file = tmp_path / "rows.json"
    assert command.main(["--quick", "--json", str(file)]) == 1
    printed = capsys.readouterr()
    assert "ValueError: does not work" in printed.out
    assert "1 of 2 hold, 1 not compared" in printed.out
    assert "Traceback" in printed.err
    rows = json.loads(file.read_text())["rows"]
    assert [(row["name"], row["holds"]) for row in rows] == [("group/bad", None), ("group/good", True)]


ELSEWHERE = ("ray/", "rllib/", "data parallel/")  # tested where Ray runs anyway; started processes, see the slow test
HERE = [figure for figure in all_figures.FIGURES if not figure.name.startswith(ELSEWHERE)]
OURS = {figure.ours.prepare: (f"{figure.name} ours", figure.ours) for figure in reversed(HERE)}
FLOORS = {
    figure.other.prepare: (f"{figure.name} floor", figure.other)
    for figure in HERE
    if not figure.other.needs and figure.other.name != "limit"
}
SIDES = dict([*OURS.values(), *FLOORS.values()])


@pytest.mark.parametrize("name", SIDES)
def test_each_side_of_figures_works(name: str) -> None:
    if name.startswith("gpu/") and not torch.cuda.is_available():
        with pytest.raises(NotHere, match="no GPU here"):
            try_once(SIDES[name], TINY)
        return
    assert try_once(SIDES[name], TINY) > 0


GPU_SIDES = {side.prepare: side for figure in gpu.figures("cpu") for side in (figure.ours, figure.other)}
ON_CPU = {f"{i} {side.name}": side for i, side in enumerate(GPU_SIDES.values()) if not side.needs}


@pytest.mark.parametrize("name", ON_CPU)
def test_each_side_of_gpu_figures_works_on_cpu(name: str) -> None:
    assert try_once(ON_CPU[name], TINY) > 0


def test_gpu_script_writes_rows_and_reasons(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    chosen = (
        figure(counted("ours", 1.0), counted("other", 2.0), at_most(1), "gpu/good"),
        figure(Side("ours", broken), counted("other", 2.0), at_most(1), "gpu/bad"),
    )
    monkeypatch.setattr(gpu, "figures", lambda device: chosen)
    monkeypatch.setattr(gpu, "hush", lambda: None)
    file = tmp_path / "new" / "gpu.json"
    assert gpu.main(["--device", "cpu", "--small", "--json", str(file)]) == 1
    document = json.loads(file.read_text())
    assert (document["device"], document["tests"]) == ("CPU", "tests marked gpu need a GPU")
    notes = [(row["holds"], row["note"]) for row in document["rows"]]
    assert notes == [(True, ""), (None, "ValueError: does not work")]
    assert gpu.main(["--device", "cpu", "--minutes", "0", "--json", str(file)]) == 0
    assert [row["note"] for row in json.loads(file.read_text())["rows"]] == ["no time left"] * 2
    if not torch.cuda.is_available():
        assert gpu.main([]) == 2
        assert "no GPU here: --device cpu checks the script" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("side", ["ours", "other"])
def test_data_parallel_figures_work(side: str) -> None:
    figure = next(figure for figure in all_figures.FIGURES if figure.name.startswith("data parallel/"))
    assert try_once(getattr(figure, side), TINY) > 0


@pytest.mark.parametrize("question", questions.QUESTIONS)
def test_replay_of_this_library_has_all_abilities(question: str) -> None:
    assert questions.answer("rl-episodes", question) == questions.YES


def test_table_of_abilities_marks_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    own, cpprb, broken_checks = (
        questions.LIBRARIES["rl-episodes"],
        questions.LIBRARIES["cpprb"][0],
        ModuleType("library"),
    )
    vars(broken_checks)["sequences_stay_in_their_episode"] = lambda: no_gpu(TINY)
    libraries = {"gone": (cpprb, "no_such_library"), "here": (cpprb, "json"), "broken": (broken_checks, "json")}
    monkeypatch.setattr(questions, "LIBRARIES", libraries)
    answers = [questions.answer(name, "sequences_stay_in_their_episode") for name in libraries]
    assert answers == [questions.NOT_INSTALLED, questions.NO_SUCH_MODE, questions.NOT_RUN]
    monkeypatch.setattr(questions, "LIBRARIES", {"rl-episodes": own})
    lines = questions.markdown().splitlines()
    assert len(lines) == 2 + len(questions.QUESTIONS)
    assert {line.count("|") for line in lines} == {3}


def test_two_trees_are_measured_in_turns_by_a_process_each() -> None:
    (row,) = compare(ROOT, ROOT, ["getters/slice"], Pace(rounds=4, pairs=1, seconds=0.0, most=12))
    assert row.names == ["getters/slice"]
    assert (len(row.before), len(row.now), row.note) == (4, 4, "")


def test_compare_commit_ratio_is_the_median_of_rounds() -> None:
    row = Compared(["a/b", "a/c"], before=[1e-6, 2e-6, 4e-6], now=[2e-6, 2e-6, 6e-6])
    assert (row.ratio, row.ratio_of_minima) == (1.5, 2.0)
    assert format_row(row) == "| a/b (and 1 more) | 2.000 | 2.000 | 1.50 | 2.00 |  |"
    assert format_row(Compared(["a/b"], note="no GPU here")) == "| a/b | - | - | - | - | no GPU here |"


@pytest.mark.parametrize("name", Use._fields)
def test_soak_reports_what_grows(name: str) -> None:
    base = Use(memory_mib=300.0, descriptors=30, threads=9)
    first_quarter = [base._replace(memory_mib=100.0)] * 10  # the warm-up does not count
    much = getattr(base, name) * 0.05 + getattr(SLACK, name) + 1
    for growth, found in ((0.0, []), (much - 2, []), (much, [name])):
        rest = [base._replace(**{name: getattr(base, name) + growth * (i >= 20)}) for i in range(30)]
        assert grown(first_quarter + rest) == found


def test_soak_loads_every_part() -> None:
    samples, num_cycles = soak(minutes=1 / 60)
    assert num_cycles >= len(samples) >= 4
    assert all(min(sample) > 0 for sample in samples)
