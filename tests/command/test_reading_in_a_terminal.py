"""What a reader needs of printed tables: positions, what is left out, one style of numbers in a column, and colours."""

from __future__ import annotations

import math
import re
import shlex
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from running import episode, output, printed, run, write

from episodes import SingleAgentEpisode
from episodes.command.printing import alike, print_table
from episodes.inspect import examine
from episodes.inspect.doctor.finding import KINDS, Finding, Findings
from episodes.inspect.formatting import number
from episodes.storage import EpisodeDataset
from episodes.tokens import Conversation

IDS = st.sampled_from(["a b", "0", "1", "日本 語", "it's", "e", "-1"])
RETURNS = st.sampled_from([0.0, 1.0, -2.5, 225.94, math.nan, math.inf])


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(IDS, RETURNS), min_size=1, max_size=5, unique_by=lambda each: each[0]), st.data())
def test_ls_prints_positions_and_what_it_leaves_out(given_: list[tuple[str, float]], data: st.DataObject) -> None:
    """`show` of a printed position, or of the command below, prints the episode of that row."""
    where = data.draw(st.sampled_from(["", "return > 0.5", "length > 99"]))
    sort = data.draw(st.sampled_from(["", "return", "id", "position"]))
    descending, limit = data.draw(st.booleans()), data.draw(st.integers(0, 5))
    words = [*(["--where", where] if where else []), *(["--sort", sort] if sort else [])]
    words += [*(["--descending"] if descending else []), "--limit", str(limit)]
    found = [n for n, (_, value) in enumerate(given_) if not where or (value > 0.5 and where == "return > 0.5")]
    if sort:
        keys = {"return": lambda n: given_[n][1], "id": lambda n: given_[n][0], "position": lambda n: n}
        odd = [n for n in found if sort == "return" and math.isnan(given_[n][1])]
        found = sorted((n for n in found if n not in odd), key=keys[sort], reverse=descending) + odd
    shown = found[:limit] if limit else found
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a b", [episode([value], id_) for id_, value in given_])
        assert [row["position"] for row in printed("ls", path, *words)] == shown
        table, _, below = output("ls", path, *words).partition("\n\n")
        if not shown:
            assert "satisfies the condition" in table
            return
        lines = [line.split() for line in table.splitlines()[1:]]
        assert [int(line[0]) for line in lines] == shown
        assert ("sorted by" in below) == bool(sort)
        if len(shown) < len(given_):
            assert f"{len(shown)} of {len(given_)} episode" in below
        assert len(shown) < len(given_) or sort or not below
        commands = [shlex.split(line) for line in below.splitlines() if line.startswith("episodes show")]
        assert bool(commands) == (len(shown) < len(found))
        for _, *call in commands:
            first = EpisodeDataset(path)[shown[0]]
            assert printed(*call)["return"] in (first.get_return(), None)
            assert printed(*call)["id"] == first.id_


FLOATS = st.one_of(
    st.floats(),
    st.floats(-1000, 1000),
    st.sampled_from([0.0, -0.0, 1.0, 60.0, 225.94, 0.5, 3e-5, 999.96, 1e6]),
)


@given(st.lists(st.one_of(FLOATS, st.none(), st.sampled_from(["a", "", 3])), max_size=5))
def test_numbers_of_a_column_are_near_and_alike(values: list[object]) -> None:
    texts = alike(values)
    numbers = [(value, text) for value, text in zip(values, texts, strict=True) if isinstance(value, float)]
    finite = [(value, text) for value, text in numbers if math.isfinite(value)]
    largest = max((abs(value) for value, _ in finite), default=0)
    for value, text in finite:
        near = max(abs(value) * 0.051, 0)  # two digits at least, and a number of its own four or, if small, two
        assert abs(float(text) - value) <= near
        if abs(value) == largest and 1e-3 <= largest < 1e6:
            assert abs(float(text) - value) <= largest * 5.01e-4
    decimals = {len(text.partition(".")[2]) for _, text in finite}
    assert len(decimals) <= 1 or all(text == number(value) for value, text in finite)
    assert "-0" not in texts
    assert [text for value, text in zip(values, texts, strict=True) if value is None] == [""] * values.count(None)


@given(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 2000)), max_size=14))
def test_findings_of_a_kind_have_one_harm_and_at_most_five_places(given_: list[tuple[str, int]]) -> None:
    all_ = [Finding.of(kind, f"what {n}.", f"e{n}", n, times) for n, (kind, times) in enumerate(given_)]
    texts = Findings(all_, 10, 10, 1).by_kind()
    assert list(texts) == list(dict.fromkeys(finding.kind for finding in all_))
    for kind, text in texts.items():
        group = [finding for finding in all_ if finding.kind == kind]
        assert text.startswith(f"{kind}: ")
        assert (text.count("\n  harm: "), text.count("\n  do: ")) == (1, 1)
        assert re.findall(r"what \d+\.", text) == [finding.evidence for finding in group[:5]]
        assert (f"and {len(group) - 5} more" in text) == (len(group) > 5)
        counts = [finding.times for finding in group[:5] if finding.times > 1]
        assert re.findall(r"\(([\d,]+) times\)", text) == [f"{count:,}" for count in counts]
        assert len(group) > 1 or text == str(group[0])


def test_doctor_names_the_steps_read_in_detail_and_the_option_that_reads_all(tmp_path: Path) -> None:
    steps = np.ones(30)
    path = write(tmp_path, [SingleAgentEpisode.from_arrays(np.arange(31.0), steps, steps, terminated=True)])
    part, whole = (" ".join(run("doctor", path, "--steps", num)[1].split()) for num in (10, 30))
    assert "30 steps, the first 10 of them in detail; --steps 30 checks all" in part
    assert "detail" not in whole
    assert "detail" in examine(EpisodeDataset(path), num_steps=10).extent


EMPTY = {
    "info": 0,
    "info --stats": 0,
    "ls": 0,
    "ls --sort return": 0,
    "ls --where length>1": 0,
    "show": 2,
    "diff DATA": 0,
    "diff OTHER": 1,
    "doctor": 0,
}


@pytest.mark.parametrize("command", EMPTY)
def test_commands_tell_that_a_data_set_is_empty(command: str, tmp_path: Path) -> None:
    data, other = write(tmp_path / "data", []), write(tmp_path / "other", [episode([1.0])])
    first, *rest = command.split()
    paths = {"DATA": data, "OTHER": other}
    status, text = run(first, data, *(paths.get(word, word) for word in rest))
    assert (status, "no episodes" in " ".join(text.split())) == (EMPTY[command], True), text


def test_ragged_tracks_have_rows_that_name_their_numbers(tmp_path: Path) -> None:
    talk = Conversation("a")
    talk.begin([1, 2])
    talk.turn([3, 4, 5], [4], 0.5, logp=np.array([-1.0, -2.0, -3.0]))
    talk.turn([5], reward=1.0, terminated=True, logp=np.array([-4.0]))
    path = write(tmp_path / "data", [talk.episode])
    for command in ("info", "show"):
        lines = [line.split() for line in output(command, path).splitlines()]
        after = {a[0]: b for a, b in pairwise(lines) if a}
        assert after["actions"] == ["length", "1", "2", "3"]
        assert after["logp"] == ["min", "of", "each", "-4", "-3.5", "-3"]
        assert not any("lengths" in line for line in lines)


def test_show_tells_the_space_of_tracks_and_the_other_agents_of_a_game(tmp_path: Path) -> None:
    box = spaces.Box(-1.0, 1.0, (2,), np.float64)
    facts = {"observation_space": box, "multi_agent_episode_id": "g"}
    agents = [
        SingleAgentEpisode.from_arrays(np.zeros((2, 2)), [0], [1.0], id_=f"g_{name}", agent_id=name, **facts)
        for name in "abcdefgh"
    ]
    path = write(tmp_path / "data", [episode([1.0], "alone"), *agents])
    text = output("show", path, "--episode", 2)
    others = "a (--episode 1), c (--episode 3), d (--episode 4), e (--episode 5), f (--episode 6), 2 more"
    assert f"agent b of game g; the other episodes of the game are those of {others}\n" in text
    assert re.search(r"observations .* Box -1 … 1", text)
    assert printed("show", path, "--episode", 3)["multi_agent_episode_id"] == "g"
    assert "game" not in output("show", path, "--episode", 0)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    ("settings_", "is_styled"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_titles_are_bold_and_defects_red_in_terminals_with_colours(
    settings_: dict[str, str],
    is_styled: bool,
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"COLUMNS": str(width), "TERM": "xterm", **settings_}.items():
        monkeypatch.setenv(name, value)
    rows = [["日本語", "1.5", "terminated", "2 NaN: first in the middle of this episode"], ["b", "12.0", "cut", ""]]
    print_table(["id", "return", "ending", "defects"], rows, folded=1, defects="defects")
    shown = capsys.readouterr().out
    plain = re.sub("\x1b\\[[0-9;]*m", "", shown)
    assert all(word in plain for row in rows for word in row)
    assert (plain != shown) == is_styled
    assert not is_styled or {"\x1b[1m", "\x1b[31m", "\x1b[32m"} <= set(re.findall("\x1b\\[[0-9;]*m", shown))
    red = "".join(re.findall("\x1b\\[31m(.*?)\x1b\\[0m", shown))
    assert red.strip() == (rows[0][3] if is_styled else "")
