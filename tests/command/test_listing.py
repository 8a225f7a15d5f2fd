"""`episodes ls` and `show`: columns by name, positions, games of one kind of agents, and errors in a terminal."""

from __future__ import annotations

import io
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from running import assert_fails, episode, output, printed, run, write

from episodes import MultiAgentEpisode, SingleAgentEpisode
from episodes.command import main
from episodes.command.app import app
from episodes.errors import InvalidArgument
from episodes.storage import EpisodeDataset, EpisodeWriter, copy
from episodes.storage.copying import column_name, condition
from episodes.storage.games import open_dataset
from episodes.tokens import Conversation
from tests.storage.test_games import game


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def in_terminal(monkeypatch: pytest.MonkeyPatch, width: int, *words: object) -> tuple[int, str, str]:
    """Run a command in a terminal, and return its exit status and what it prints to stdout and stderr."""
    with monkeypatch.context() as patch:
        for name, value in {"COLUMNS": str(width), "TERM": "dumb"}.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["episodes", *map(str, words)])
        patch.setattr(sys, "stdout", Terminal())
        patch.setattr(sys, "stderr", Terminal())
        with pytest.raises(SystemExit) as end:
            main()
        code: Any = end.value.code
        return code or 0, sys.stdout.getvalue(), sys.stderr.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a data set of episodes in two shards, and one of games whose agents are of several kinds."""
    folder = tmp_path_factory.mktemp("listing")
    keys = ("my key", "a,b", "it's", "nth", "'q'")
    for n in (0, 3):
        episodes = []
        for k in range(n, n + 3):
            values = {key: float((7 * k + i) % 5) for i, key in enumerate(keys)}
            one = episode([1.0] * (k % 4 + 1), f"e{5 - k}", terminated=k % 2 == 0)
            one.custom_data |= {"seed": (k * 3) % 7, **values}
            episodes.append(one[1:] if k == 2 else one)
        write(folder / "episodes", episodes)
    with EpisodeWriter(folder / "games") as writer:
        writer.add([game(seed) for seed in range(4)])
    return {"episodes": folder / "episodes", "games": folder / "games"}


def key_of(value: object) -> tuple[int, Any]:
    """Return the order of a value of a column: numbers, texts, None."""
    return (2, "") if value is None else (0, value) if isinstance(value, (int, float)) else (1, str(value))


def spelled(name: str) -> str:
    """Return the name of a column as conditions have it."""
    if not name.startswith("custom_data/"):
        return name
    key = name.removeprefix("custom_data/")
    return f'custom_data/"{key}"' if "'" in key else f"custom_data/'{key}'"


@pytest.mark.parametrize("kind", ["episodes", "games"])
def test_each_column_of_the_metadata_can_be_named_in_each_place(kind: str, data: dict[str, Path]) -> None:
    """The places are --columns, --sort and --where, for the table and for JSON."""
    dataset = open_dataset(data[kind])
    columns = {"nth": np.arange(len(dataset)), **dataset.metadata}
    assert {"id", "length", "terminated"} < set(columns)
    assert kind == "games" or {"is_complete", "seed", "writer", "shard", "acting_pipeline"} < set(columns)
    for number, (name, column) in enumerate(columns.items()):
        descending = number % 2 == 1
        more = ["--descending"] * descending
        word, values = spelled(name), column.tolist()
        title = "position" if name == "nth" else name
        rows = printed("ls", data[kind], "--columns", f"id, {word}", "--sort", word, *more)
        some = [n for n in range(len(values)) if values[n] is not None]
        none = [n for n in range(len(values)) if values[n] is None]
        order = [*sorted(some, key=lambda n: key_of(values[n]), reverse=descending), *none]
        as_json = [list(value) if isinstance(value, tuple) else value for value in values]
        assert [row["id"] for row in rows] == [dataset.metadata["id"][n] for n in order], name
        assert [row[title] for row in rows] == [as_json[n] for n in order], name
        heads = output("ls", data[kind], "--columns", f"{word},id").splitlines()[0].split("  ")
        assert [head.strip() for head in heads if head.strip()] == list(dict.fromkeys([name, "id"]))
        assert run("ls", data[kind], "--where", f"{word} == {word}")[0] == (2 if name == "agents" else 0)
        assert column_name(word) == name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--columns", "id,retrun"), "--columns retrun: no such column; there are nth, id"),
        (("--sort", "retrun"), "--sort retrun: no such column; there are nth, id"),
        (("--where", "retrun > 1"), "unknown column 'retrun'; did you mean return; the columns are nth, id"),
        (("--sort", "id,return"), "--sort id,return: give one column"),
        (("--columns", ","), "--columns ,: no column"),
        (("--columns", "custom_data/it's"), "no such column"),
    ],
    ids=str,
)
def test_name_of_no_column_is_an_error(words: tuple[str, str], message: str, tmp_path: Path) -> None:
    assert_fails(message, "ls", write(tmp_path / "data", [episode([1.0])]), *words)


def test_keys_without_quotes_and_the_name_of_json_are_read_too(data: dict[str, Path]) -> None:
    for name in ("my key", "it's", "nth"):
        rows = printed("ls", data["episodes"], "--columns", f"position,custom_data/{name}")
        expected = EpisodeDataset(data["episodes"]).metadata[f"custom_data/{name}"].tolist()
        assert [row[f"custom_data/{name}"] for row in rows] == expected
        assert [row["position"] for row in rows] == list(range(6))
    assert "sorted by nth, lowest first" in output("ls", data["episodes"], "--sort", "position")


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_nth_is_the_position_in_what_is_read(data: dict[str, Path], drawn: st.DataObject) -> None:
    """In a condition, `dataset[nth]` is the episode, also in a part of a data set."""
    kind = drawn.draw(st.sampled_from(["episodes", "games"]))
    dataset: Any = open_dataset(data[kind])
    part = dataset.select(drawn.draw(st.lists(st.integers(0, len(dataset) - 1), min_size=1, unique=True)))
    low, step = drawn.draw(st.integers(-1, 6)), drawn.draw(st.integers(1, 3))
    text = f"nth >= {low} and nth % {step} == 0"
    ids = part.metadata["id"].tolist()
    expected = [ids[n] for n in range(len(part)) if n >= low and n % step == 0]
    assert part.select(condition(text)).metadata["id"].tolist() == expected
    with tempfile.TemporaryDirectory() as folder:
        assert copy(part, Path(folder) / "new", text) == len(expected)
        if expected:
            assert open_dataset(Path(folder) / "new").metadata["id"].tolist() == expected


def test_where_of_the_terminal_and_copy_know_nth(data: dict[str, Path], tmp_path: Path) -> None:
    for kind in data:
        assert [row["position"] for row in printed("ls", data[kind], "--where", "nth < 2")] == [0, 1]
        assert output("copy", data[kind], tmp_path / kind, "--where", "nth < 2").startswith("2 episodes")
    with pytest.raises(InvalidArgument, match="the columns are nth, id"):
        condition("n < 2")({"id": np.array(["a"])})


# --- games of agents of one kind ------------------------------------------------------------------------------------


def cards(id_: str, agents: str = "ab") -> MultiAgentEpisode:
    """Return a game whose agents are alike."""
    one = MultiAgentEpisode(id_, observation_space=dict.fromkeys(agents, spaces.Discrete(9)))
    one.add_env_reset(observations=dict.fromkeys(agents, 1))
    one.add_env_step(dict.fromkeys(agents, 2), dict.fromkeys(agents, 0), dict.fromkeys(agents, 1.5))
    return one.to_numpy()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(["cards-00", "cards-01", "0", "1", "x y", "cards-0"]), unique=True, min_size=1),
    st.sampled_from(["cards-00", "cards-01", "0", "1", "x", "cards", "cards-00_a", "nobody", "-1", "7"]),
    st.sampled_from(["a", "ab"]),
)
def test_show_takes_the_ids_of_games_where_no_episode_has_the_name(ids: list[str], name: str, agents: str) -> None:
    episodes = [f"{id_}_{agent}" for id_ in ids for agent in agents]
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "x y", [cards(id_, agents) for id_ in ids])  # type: ignore[list-item]
        below = output("ls", path).split("\n\n")[1]
        assert below.startswith(f"{len(episodes)} episode{'s' * (len(episodes) > 1)} of agents of {len(ids)} game")
        status, text = run("show", path, "--episode", name)
        begun = [id_ for id_ in episodes if id_.startswith(name)]
        games = [id_ for id_ in ids if id_.startswith(name)]
        expected: tuple[str, str] | None = None
        if name in episodes:
            expected = ("SingleAgentEpisode", name)
        elif name.lstrip("-").isdigit() and -len(episodes) <= int(name) < len(episodes):
            expected = ("SingleAgentEpisode", episodes[int(name)])
        elif name in ids or (len(games) == 1 and len(begun) > 1):
            expected = ("MultiAgentEpisode", name if name in ids else games[0])
        elif len(begun) == 1:
            expected = ("SingleAgentEpisode", begun[0])
        assert status == (0 if expected else 2), text
        if expected:
            assert text.startswith(f"{expected[0]}({expected[1]}: 1 ")
        if expected and expected[0] == "MultiAgentEpisode":
            assert f"{len(agents)} agent" in text.splitlines()[0]
            assert [line[0] for line in text.splitlines() if re.match(r"\w: S", line)] == list(agents)
            shown = printed("show", path, "--episode", name)
            assert (shown["return"], list(shown["agents"])) == (1.5 * len(agents), list(agents))
        if match := re.search(r"show --episode (.*): the whole game", below):
            assert run("show", path, "--episode", match[1].strip("'"))[1].startswith("MultiAgentEpisode")


def test_show_tells_why_a_game_is_not_shown(tmp_path: Path) -> None:
    whole = cards("g")
    parts = [agent for _, agent in sorted(whole.agent_episodes.items())]
    alone = SingleAgentEpisode.from_arrays([1, 2], [0], [1.5], id_="alone")
    for name, episodes in (("mixed", [alone, *parts]), ("part", parts[:1])):
        path = write(tmp_path / name, episodes)
        assert ": the whole game" not in output("ls", path) or name == "part"
        place = "1" if name == "mixed" else "0"
        status, text = run("show", path, "--episode", "g")
        words = " ".join(text.split())
        assert status == 2
        assert "--episode g: the game cannot be shown as a whole: " in words
        assert re.search(rf"give one of its agents' episodes: {place}", words)


# --- in a terminal ----------------------------------------------------------------------------------------------------

MISSING = "a folder that does not exist and whose name is much longer than the terminal is wide"
OTHERS = {  # what a command needs besides the path of a data set
    "convert": ("NEW",),
    "merge": ("DATA",),
    "copy": ("NEW", "--where", "retrun > 1 and length > 2"),
    "diff": ("DATA",),
    "explain": ("0",),
    "upload": ("ftp://somewhere/that/is/no/known/kind/of/place",),
    "sql": ("select a_column_that_is_not_there from steps",),
    "split": ("a=much",),
    "report": ("--html", "NEW"),
    "record": ("--env", "NoSuchEnvironment-v9"),
    "export": (),
}
ERRORS = [
    ("ls", "DATA", "--where", "retrun > 1"),
    ("ls", "DATA", "--sort", "retrun"),
    ("ls", "DATA", "--columns", "retrun"),
    ("ls", "DATA", "--limit", "-1"),
    ("show", "DATA", "--episode", "7"),
    ("show", "DATA", "--decode", "no_such_module_at_all:decode"),
    ("watch", "DATA", "--port", "65536"),
    ("capture", "--upstream", "http://localhost", "--out", "NEW", "--key-variable", "NO_SUCH_VARIABLE_IS_SET"),
    ("doctor", "DATA", "--steps", "many"),
    ("diff", "DATA", "DATA", "--tolerance", "-1"),
    ("ledger", "diff", "DATA", "DATA"),
    ("ledger", "diff", "--no-such-option-at-all-in-this-program"),
    ("train", "--resume", MISSING),
    ("evaluate", MISSING),
    ("play", MISSING),
    ("no-such-command-in-this-program-of-commands", "DATA"),
    ("--no-such-option-at-all-in-this-program", "ls"),
]
NAMES = sorted(info.name or "" for info in app.registered_commands)
ERRORS += [(name, "--no-such-option-at-all-in-this-program") for name in NAMES]
ERRORS += [
    (name, MISSING, *OTHERS.get(name, ()))
    for name in NAMES
    if name not in ("capture", "keys", "merge", "record", "seal", "compact", "card", "watch")
]


@pytest.mark.parametrize("words", ERRORS, ids=lambda words: " ".join(words)[:60])
def test_errors_wrap_between_words(
    words: tuple[str, ...], data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = {"DATA": data["episodes"], "NEW": tmp_path / "new"}
    call = [str(paths.get(word, word)) for word in words]
    status, _, wide = in_terminal(monkeypatch, 5000, *call)
    assert (status, bool(wide)) == (2, True)
    for width in (40, 80):
        status, _, narrow = in_terminal(monkeypatch, width, *call)
        assert status == 2
        assert narrow.split() == wide.split()
        assert all(len(line) <= width or len(line.split()) == 1 for line in narrow.splitlines()), narrow


@pytest.mark.parametrize(
    ("words", "num", "says"),
    [
        ((), 50, "50 of 60 episodes, --limit 0 prints all"),
        (("--limit", "0"), 60, ""),
        (("--limit", "55"), 55, "55 of 60 episodes"),
        (("--where", "nth < 20"), 20, "20 of 60 episodes satisfy the condition"),
        (("--where", "nth < 55"), 50, "50 of 60 episodes, 55 satisfy the condition, --limit 0 prints all"),
        (("--json",), 60, ""),
    ],
    ids=str,
)
def test_terminal_has_at_most_50_rows_by_default(
    words: tuple[str, ...], num: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "data", [episode([1.0], f"e{n}") for n in range(60)])
    status, text, _ = in_terminal(monkeypatch, 100, "ls", path, *words)
    assert (status, text.count(" cut") if "--json" not in words else text.count('"cut"')) == (0, num)
    assert says in ["", *text.splitlines()]
    assert ("--limit 0" in text) == ("--limit 0" in says)
    if not words:
        assert output("ls", path).count(" cut") == 60


# --- what show prints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reward", "text"), [(np.inf, "∞"), (-np.inf, "-∞"), (np.nan, "NaN"), (12345.678, "12350")])
def test_numbers_are_the_same_in_ls_and_in_the_head_of_show(reward: float, text: str, tmp_path: Path) -> None:
    path = write(tmp_path / "data", [episode([reward, 0.0], "e", truncated=True)])
    assert output("show", path).splitlines()[0] == f"SingleAgentEpisode(e: 2 steps, return {text}, truncated)"
    if not np.isfinite(reward):
        assert text in output("ls", path).splitlines()[1].split()
    games = MultiAgentEpisode("g", observation_space={"a": spaces.Discrete(9)})
    games.add_env_reset(observations={"a": 1})
    games.add_env_step({"a": 1}, {"a": 0}, {"a": reward}, truncateds={"__all__": True})
    write(tmp_path / "games", [games.to_numpy()])  # type: ignore[list-item]
    head = output("show", tmp_path / "games", "--episode", "g").splitlines()[0]
    assert head == f"MultiAgentEpisode(g: 1 env step, 1 agent, return {text}, truncated)"


@pytest.mark.parametrize("num", [1, 3])
def test_index_behind_the_end_is_an_error_with_the_range(num: int, tmp_path: Path) -> None:
    path = write(tmp_path / "data", [episode([1.0], f"e{n}") for n in range(num)])
    counted = "1 episode" if num == 1 else f"{num} episodes"
    for index in (num, 9, -num - 1):
        assert_fails(f"{counted}, 0 to {num - 1}, and no id begins with {index}", "show", path, f"--episode={index}")


@given(st.lists(st.sampled_from(["go", "stop", "", "a b"]), min_size=2, max_size=6))
def test_text_tracks_have_the_number_of_texts_and_the_first(texts: list[str]) -> None:
    steps = np.zeros(len(texts) - 1)
    one = SingleAgentEpisode.from_arrays({"said": np.array(texts), "x": np.arange(len(texts))}, steps, steps, id_="e")
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "data", [one])
        num = len(set(texts))
        counted = "1 text" if num == 1 else f"{num} different texts"
        for command in ("show", "info"):
            (line,) = [line for line in output(command, path).splitlines() if line.startswith("observations/said")]
            assert line.endswith(f"{counted}, first '{texts[0]}'")


def test_show_of_tokens_names_the_option_that_prints_text(tmp_path: Path) -> None:
    talk = Conversation("a", outputs={})
    talk.begin([1, 2])
    talk.turn([3], reward=1.0, terminated=True)
    path = write(tmp_path / "data", [talk.episode])
    assert output("show", path).count("--decode MODULE:NAME") == 1
    assert "--decode" not in output("show", path, "--decode", "json:dumps")
    assert "--decode" not in output("show", write(tmp_path / "other", [episode([1.0])]))
