"""No text of a data set, a run or a path reaches the terminal as a control sequence, whatever a command prints."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import unicodedata
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from running import printed, run, write
from typer.testing import CliRunner

from episodes import SingleAgentEpisode
from episodes.command.app import app
from episodes.command.printing import laid_out, print_table
from episodes.command.terminal import visible, wrapped
from episodes.storage import EpisodeDataset
from episodes.storage.ledger import Ledger
from episodes.storage.runs import write_status
from episodes.tokens import Conversation

EVIL = "\x1b]0;owned\x07\x9b2J\x7f\u202e"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def evil_episode(id_: str = EVIL, **options: Any) -> SingleAgentEpisode:
    """Return an episode that has the sequence in each place that takes a text."""
    return SingleAgentEpisode.from_arrays(
        {EVIL: np.arange(3.0), "text": np.array([EVIL] * 3)},
        np.zeros(2, np.int64),
        np.array([1.0, np.nan]),
        infos=[{EVIL: EVIL}] * 3,
        extra_model_outputs={EVIL: np.zeros(2)},
        custom_data={EVIL: EVIL, "level": EVIL},
        id_=id_,
        agent_id=EVIL,
        module_id=EVIL,
        **options,
    )


COMMANDS = {
    "info": ("info", "DATA", "--stats"),
    "info of a missing folder": ("info", EVIL),
    "ls": ("ls", "DATA"),
    "ls by a wrong column": ("ls", "DATA", "--sort", EVIL),
    "ls by a wrong condition": ("ls", "DATA", "--where", f"{EVIL} > 1"),
    "show": ("show", "DATA"),
    "show HTML": ("show", "DATA", "--html", "NEW"),
    "show a wrong episode": ("show", "DATA", "--episode", "nothing" + EVIL),
    "show with a wrong function": ("show", "DATA", "--decode", EVIL),
    "report": ("report", "DATA", "--html", "NEW"),
    "check": ("check", "DATA"),
    "check damage": ("check", "DAMAGED"),
    "info of damage": ("info", "DAMAGED"),
    "doctor": ("doctor", "DATA"),
    "doctor of a missing environment": ("doctor", EVIL),
    "diff": ("diff", "DATA", "OTHER"),
    "diff of an episode": ("diff", "DATA", "OTHER", "--episode", "0"),
    "diff of nothing": ("diff", "DATA", EVIL),
    "diff of runs": ("diff", "RUN", "RUN2"),
    "runs": ("runs", "RUNS"),
    "runs of a missing folder": ("runs", EVIL),
    "split": ("split", "DATA"),
    "split into a wrong share": ("split", "DATA", f"a={EVIL}"),
    "split by names": ("split", "OTHER", f"{EVIL}=0.5", "b=0.5"),
    "sql": ("sql", "DATA", f'select *, 1 as "[red]{EVIL}" from episodes'),
    "sql with a wrong column": ("sql", "DATA", f'select "{EVIL}" from steps'),
    "convert": ("convert", "DATA", "NEW", "--to", "parquet"),
    "convert from another format": ("convert", "DATA", "NEW", "--from", EVIL),
    "compact": ("compact", "DATA"),
    "seal": ("seal", "DATA"),
    "merge": ("merge", "NEW", "DATA", "OTHER"),
    "copy": ("copy", "DATA", "NEW"),
    "copy with a wrong condition": ("copy", "DATA", "NEW", "--where", f"'{EVIL}'"),
    "capture without a key": ("capture", "--upstream", "http://localhost", "--out", "NEW", "--key-variable", EVIL),
    "card": ("card", "DATA", "--name", EVIL),
    "card with a wrong license": ("card", "DATA", "--license", EVIL),
    "upload": ("upload", "DATA", "memory://terminal"),
    "upload to another place": ("upload", "DATA", f"{EVIL}://x"),
    "watch of a missing folder": ("watch", EVIL),
    "ledger diff": ("ledger", "diff", "LEDGER", "LEDGER2"),
    "ledger diff of data": ("ledger", "diff", "DATA", "OTHER"),
    "explain": ("explain", "LEDGER", "0"),
    "explain a missing module": ("explain", "LEDGER", "0", "--module", f"{EVIL}2"),
    "explain by agent": ("explain", "LEDGER", "--by", "agent"),
    "keys": ("keys", "NEW", "--sender", EVIL),
    "record": ("record", "NEW", "--env", EVIL),
    "another command": (EVIL,),
    "another option": ("ls", f"--{EVIL}"),
    "an argument too much": ("ls", "DATA", EVIL),
    "evaluate of no run": ("evaluate", "RUN"),
    "train of a wrong run": ("train", "--resume", "RUN"),
    "play of another option": ("play", f"--{EVIL}"),
    "export of no run": ("export", EVIL),
}
WITH_JSON = ("info", "ls", "show", "check", "doctor", "diff", "diff of runs", "runs", "sql", "convert", "ledger diff")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the paths that stand for words of `COMMANDS`, except NEW. Each name has the sequence."""
    folder = tmp_path_factory.mktemp("terminal")
    paths = {name: folder / f"{name} {EVIL}" for name in ("DATA", "OTHER", "DAMAGED", "RUN", "LEDGER", "LEDGER2")}
    write(paths["DATA"], [evil_episode(), evil_episode(f"{EVIL}2")], env_spec=EVIL, metadata={EVIL: EVIL})
    EpisodeDataset(paths["DATA"]).add_splits({"train": 0.5, "test": 0.5}, seed=0)
    write(paths["OTHER"], [evil_episode(terminated=True)], env_spec=EVIL)
    write(paths["DAMAGED"], [evil_episode()])
    (shard,) = paths["DAMAGED"].glob("*.arrow")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2 :: 7] = b"\x1b" * len(content[len(content) // 2 :: 7])
    shard.write_bytes(bytes(content))
    paths["RUN"].mkdir()
    description = {"configuration": {"algo": EVIL, "env": EVIL, EVIL: EVIL, "policy": {EVIL: 1}}}
    (paths["RUN"] / "run.json").write_text(json.dumps(description))
    paths["RUNS"], paths["RUN2"] = folder, folder / f"failed {EVIL}"
    paths["RUN2"].mkdir()
    write_status(paths["RUN2"], settings={EVIL: EVIL, f"{EVIL}2": 1}, stopped_by=EVIL, num_steps=3)
    for n, name in enumerate(("LEDGER", "LEDGER2")):
        with Ledger(paths[name]) as ledger:
            ledger.note(0, {EVIL: np.full((2, 1), n)}, module=EVIL, measured={"loss": np.ones(2), EVIL: np.ones(2)})
    return paths


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "words",
    [pytest.param(words, id=name) for name, words in COMMANDS.items()]
    + [pytest.param((*COMMANDS[name], "--json"), id=f"{name} as JSON") for name in WITH_JSON],
)
def test_no_command_prints_a_control_character(
    words: tuple[str, ...], paths: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    where = {**paths, "NEW": tmp_path / f"new {EVIL}"}
    result = CliRunner().invoke(app, [str(where.get(word, word)) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    text = result.output + "".join(capfd.readouterr())
    assert text
    assert not (found := CONTROLS.findall(text)), (found, text)


def test_commands_of_all_kinds_are_in_the_table() -> None:
    listed = {words[0] for words in COMMANDS.values()}
    names = {*app.registered_commands, *app.registered_groups}
    assert {info.name or info.typer_instance.info.name for info in names} <= listed  # type: ignore[union-attr]
    assert {entry.name for entry in entry_points(group="episodes.commands")} <= listed


def as_text(tokens: list[int]) -> str:
    return "".join(map(chr, tokens))


def test_words_of_language_agents_are_shown_without_control_characters(tmp_path: Path) -> None:
    talk = Conversation(EVIL, outputs={})
    talk.begin([ord(letter) for letter in EVIL])
    talk.turn([3], [4], 0.5, terminated=True)
    write(tmp_path / "data", [talk.episode])
    status, text = run("show", tmp_path / "data", "--decode", "test_terminal:as_text")
    assert status == 0
    assert "owned" in text
    assert not CONTROLS.search(text)


def test_traceback_of_an_unexpected_error_has_no_control_characters() -> None:
    program = (
        "import sys; from episodes.command import checking, main, app\n"
        f"def broken(*args, **more): raise RuntimeError({EVIL!r})\n"
        "import episodes.storage; episodes.storage.check = broken\n"
        "sys.argv = ['episodes', 'check', 'x']; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "RuntimeError" in done.stderr
    assert not CONTROLS.search(done.stdout + done.stderr)


@given(st.text())
def test_visible_changes_control_characters_only(text: str) -> None:
    shown = visible(text)
    assert not CONTROLS.search(shown)
    assert visible(shown) == shown
    if not any(unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp") for character in text):
        assert shown == text


def test_json_stays_json(paths: dict[str, Path]) -> None:
    assert printed("info", paths["DATA"])["environment"] == EVIL


@given(st.text(st.sampled_from("ab -\u00e9日"), max_size=60), st.integers(4, 30))
def test_wrapped_lines_keep_all_words_in_order(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert " ".join(lines).split() == text.split()
    assert all(cell_len(line.rstrip()) <= width or len(line.split()) <= 1 for line in lines)
    assert len(lines) <= 1 or all(line.startswith("  ") for line in lines[1:])


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "DATA"),
        ("diff", "DATA", "OTHER"),
        ("diff", "DATA", "ROBOTS"),
        ("ls", "ROBOTS"),
    ],
    ids=" ".join,
)
def test_terminal_of_80_columns_breaks_no_word(words: tuple[str, ...], tmp_path: Path) -> None:
    rewards = np.array([1.6192458868026733, np.nan, np.inf, 0.5])
    for name, shift in (("DATA", 0.0), ("OTHER", 1e-7)):
        observations = np.arange(10.0).reshape(5, 2) + shift
        wide = SingleAgentEpisode.from_arrays(
            observations,
            [0, 1, 0, 1],
            rewards,
            id_="e" * 32,
            observation_space=spaces.Box(-1, 1.6192458868026733, (2,)),
        )
        write(tmp_path / name, [wide])
    joints = {side: np.arange(20.0).reshape(5, 4) / 7 for side in ("of_the_left_hand", "of_the_right_hand")}
    robots = [
        SingleAgentEpisode.from_arrays({"joints": joints}, np.zeros((4, 7)), rewards, id_=f"{n}" * 36, truncated=True)
        for n in range(3)
    ]
    write(tmp_path / "ROBOTS", robots)
    lines = in_terminal(*(str(tmp_path / word) if word.isupper() else word for word in words))
    plain = run(*(tmp_path / word if word.isupper() else word for word in words))[1].splitlines()
    assert all(len(line.rstrip()) <= 80 or len(line.split()) <= 2 for line in lines)
    parts = {part for line in plain for word in line.split() for part in word.replace("/", "/ ").split()}
    shown = {part for line in lines for word in line.split() for part in word.replace("/", "/ ").split()}
    assert parts - {"_", "size"} <= shown  # "size" is the title of a column whose texts are below the rows
    assert not re.search(r"\d\.\d{9,}", "\n".join(lines))


CELLS = st.one_of(
    st.text(st.sampled_from("abc/[], "), max_size=30),
    st.text(st.sampled_from("a日本\uac00 "), max_size=40),
    st.text(st.sampled_from("ab"), min_size=20, max_size=90),
    st.text(st.sampled_from("12.,-e"), max_size=9),
)


@given(
    st.integers(2, 5).flatmap(lambda num: st.lists(st.tuples(*[CELLS] * num), min_size=2, max_size=5)),
    st.integers(24, 100),
)
def test_tables_fit_and_keep_all_words_in_order_and_ids_whole(rows: list[tuple[str, ...]], width: int) -> None:
    names, *rows = rows
    parts = laid_out(names, rows, width)
    other: list[list[str]] = []
    for part in parts:
        assert sum(part.widths) + 2 * (len(part.widths) - 1) <= width or max(part.widths[1:]) == 1
        for row in (part.titles, *part.rows):
            assert all(
                cell_len(line) <= max(most, 2)
                for cell, most in zip(row, part.widths, strict=True)
                for line in cell.split("\n")
            )
        other += [list(column) for column in list(zip(part.titles, *part.rows, strict=True))[1:]]
        firsts = ["".join(row[0].split()) for row in (part.titles, *part.rows)]
        assert set(firsts) <= {"".join(row[0].split()) for row in (names, *rows)}  # ids are never cut
    assert ["".join(row[0].split()) for row in parts[0].rows] == ["".join(row[0].split()) for row in rows]
    joined = ["".join("".join(column).split()) for column in other]
    assert [text for text in joined if text] == [
        text
        for text in ("".join("".join(column).split()) for column in list(zip(names, *rows, strict=True))[1:])
        if text
    ]


@pytest.mark.parametrize(("width", "is_below"), [(30, True), (60, False), (120, False)])
def test_notes_are_a_column_where_they_fit_and_else_below_their_rows(
    width: int, is_below: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [["日本語", "1", "some words about this", ""], ["b", "-12.5", "", "first at episode"]]
    print_table(["id", "mean", "space", "notes"], rows, folded=2)
    lines = capsys.readouterr().out.splitlines()
    below = ["id       mean", "日本語      1", "    some words about this", "b       -12.5", "    first at episode"]
    beside = [
        "id       mean  space                  notes",
        "日本語      1  some words about this",
        "b       -12.5                         first at episode",
    ]
    assert lines == (below if is_below else beside)


def test_words_of_the_first_column_stay_whole_and_numbers_are_at_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    id_ = "robot-000-of-the-long-run-2026-07-03T12:33:11"
    [part] = laid_out(["id", "return", "note"], [[id_, "-0.5", "some words that are too long"], ["b", "12", ""]], 80)
    assert part.rows[0] == [id_, "-0.5", "some words that are too\nlong"]
    assert part.are_numeric == [False, True, False]
    print_table(["id", "return"], [["a", "1"], ["b", "-12.5"]])
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "id  return",
        "a        1",
        "b    -12.5",
    ]


def test_report_shows_progress_at_once_and_ctrl_c_writes_no_file(tmp_path: Path) -> None:
    steps = np.zeros(200)
    episodes = [SingleAgentEpisode.from_arrays(np.zeros((201, 300)), steps, steps, id_=str(n)) for n in range(40)]
    write(tmp_path / "data", episodes)
    script = (
        "import signal, episodes.inspect.html_report as page\n"
        "page.episode_data = lambda *arguments, **options: signal.raise_signal(signal.SIGINT)\n"
        "from episodes.command import main\n"
        "raise SystemExit(main())"
    )
    words = [sys.executable, "-c", script, "report", str(tmp_path / "data"), "--html", str(tmp_path / "page.html")]
    master, end = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=end, env=environment, text=True) as process:
        os.close(end)
        shown = b""
        while part := _read(master):
            shown += part
        output = process.communicate()[0]
    os.close(master)
    assert "0/40" in shown.decode()
    assert (process.returncode, output) == (130, f"interrupted: {tmp_path / 'page.html'} is not written\n")
    assert not (tmp_path / "page.html").exists()


def in_terminal(*words: str) -> list[str]:
    """Return the lines that a command prints to a terminal of 80 columns."""
    master, end = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "dumb"}
    with subprocess.Popen([sys.executable, "-m", "episodes", *words], stdout=end, env=environment) as process:
        os.close(end)
        data = b""
        while part := _read(master):
            data += part
        process.wait()
    os.close(master)
    return data.decode().replace("\r\n", "\n").splitlines()


def _read(master: int) -> bytes:
    """Return the next bytes of a terminal, or none at its end, where Linux raises an error."""
    try:
        return os.read(master, 4096)
    except OSError:
        return b""
