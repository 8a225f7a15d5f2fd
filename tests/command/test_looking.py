"""The `episodes` command: `info`, `ls`, `show`, `record`, `report`, `sql` and `split`."""

from __future__ import annotations

import io
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from running import assert_fails, episode, output, printed, run, write

from episodes import MultiAgentEpisode, SingleAgentEpisode
from episodes.command import main
from episodes.command.track_tables import NO_MEAN
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.tokens import Conversation


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rewards = {"bb1": [1.0] * 3, "bb2": [np.nan] * 5, "[bold]a": [1.0] * 2}
    episodes = [episode(values, id_, terminated=id_ == "bb1") for id_, values in rewards.items()]
    return write(tmp_path / "data", episodes, env_spec="Walk-v0", metadata={"author": "[red]me[/red]"})


def test_info_prints_facts_and_statistics(data: Path) -> None:
    facts = printed("info", data, "--stats")
    assert (facts["episodes"], facts["steps"], facts["environment"]) == (3, 10, "Walk-v0")
    assert facts["endings"] == {"terminated": 1, "cut": 2}
    tracks = {row["track"]: row for row in facts["tracks"]}
    assert list(tracks) == ["observations/0", "observations/1", "actions", "rewards"]
    assert (tracks["rewards"]["count"], tracks["rewards"]["nan"], tracks["rewards"]["highest"]) == (5, 5, 1)
    assert tracks["actions"]["mean"] == pytest.approx(0.4)
    assert "[red]me[/red]" in output("info", data)
    assert "observations/1" in output("info", data, "--stats")


@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 0)])
def test_info_and_its_statistics_of_a_track_without_items(shape: tuple[int, ...], tmp_path: Path) -> None:
    only_reset = SingleAgentEpisode.from_arrays(np.zeros((1, *shape)), np.zeros((0, *shape)), np.zeros(0), id_="a")
    data = write(tmp_path / "data", [only_reset])
    counts = {row["track"]: row["count"] for row in printed("info", data, "--stats")["tracks"]}
    own = [count for track, count in counts.items() if track.split("/")[0] == "actions"]
    assert own == [0] * int(np.prod(shape))
    for command in ("info", "show"):
        assert "actions" in output(command, data)
    assert "actions" in (EpisodeDataset(data)._repr_html_() or "")


def test_info_prints_facts_before_tracks_and_marks_what_is_outside_of_its_space(tmp_path: Path) -> None:
    low, high = np.array([-1, -np.inf, -1], np.float32), np.array([1, np.inf, 1.5], np.float32)
    space = spaces.Dict({"a": spaces.Box(low, high), "b": spaces.Box(0, 1, (40,)), "c": spaces.Discrete(2)})
    observations = {
        "a": np.array([[0, 90, 1.5]] * 3, np.float32),
        "b": np.full((3, 40), 1.25, np.float32),
        "c": np.array([0, 1, 2]),
    }
    walk = SingleAgentEpisode.from_arrays(
        observations, [0, 1], [1.0, 2.0], observation_space=space, action_space=spaces.Discrete(2), terminated=True
    )
    data = write(tmp_path / "data", [walk])
    facts, measures, table = output("info", data).split("\n\n")
    assert [line.split("  ")[0] for line in facts.splitlines()] == [
        *("path", "episodes", "steps", "bytes", "complete episodes", "endings"),
    ]
    assert [line.split() for line in measures.splitlines()] == [
        ["min", "mean", "max", "std"],
        ["return", "3", "3", "3", "0"],
        ["length", "2", "2", "2", "0"],
    ]
    assert re.search(r"bytes +[\d.]+ k?B *\n", facts)
    lines = {line.split()[0]: line for line in table.splitlines()}
    assert "Box [-1 … 1, -∞ … ∞, -1 … 1.5]" in lines["observations/a"]
    assert {name for name, line in lines.items() if "outside of its space" in line} == {
        "observations/b",
        "observations/c",
    }
    assert "mean" in lines["track"]


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([0.0, 1.0, -2.5, np.nan, np.inf]), min_size=1, max_size=4),
            st.sampled_from([None, "g0", "g1"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_info_measures_returns_and_lengths_of_episodes_and_games(given_: list[tuple[list[float], str | None]]) -> None:
    """A game's return is the sum of its agents' returns. Numbers that are not finite are left out and counted."""
    episodes = [
        episode(rewards, f"e{n}", terminated=True, agent_id=f"a{n}" if game else None, multi_agent_episode_id=game)
        for n, (rewards, game) in enumerate(given_)
    ]
    returns = [each.get_return() for each in episodes]
    with tempfile.TemporaryDirectory() as folder:
        shown = printed("info", write(Path(folder) / "data", episodes))["statistics"]
    games: dict[str, float] = {}
    for (_, game), value in zip(given_, returns, strict=True):
        if game is not None:
            games[game] = games.get(game, 0.0) + value
    end = " of an agent's episode" if games else ""
    expected = {"return of a game": [*games.values()]} if games else {}
    expected |= {f"return{end}": returns, f"length{end}": [float(len(each)) for each in episodes]}
    assert list(shown) == list(expected)
    for name, values in expected.items():
        kept = [value for value in values if np.isfinite(value)]
        found = shown[name]
        assert (found["count"], found["finite"]) == (len(values), len(kept))
        if not kept:
            assert found["mean"] is found["min"] is found["max"] is found["std"] is None
            continue
        mean = sum(kept) / len(kept)
        std = (sum((value - mean) ** 2 for value in kept) / len(kept)) ** 0.5
        assert [found[each] for each in ("min", "mean", "max", "std")] == pytest.approx(
            [min(kept), mean, max(kept), std], abs=1e-9
        )


def test_tracks_have_a_mean_or_a_row_for_each_component(tmp_path: Path) -> None:
    observations = {"few": np.arange(24.0).reshape(3, 8), "many": np.arange(27.0).reshape(3, 9)}
    data = write(tmp_path / "data", [SingleAgentEpisode.from_arrays(observations, [0, 1], [1.0, 2.0])])
    for command in ("info", "show"):
        lines = output(command, data).splitlines()
        rows = {line.split("  ")[0]: line.split() for line in lines if line.startswith("observations")}
        assert rows["observations/many"][-3:] == ["0", "13", "26"]
        begin = next(k for k, line in enumerate(lines) if line.startswith("observations/few"))
        assert lines[begin].split()[-3:] == ["0", NO_MEAN, "23"]
        assert lines[-1] == f"{NO_MEAN} as mean: each component has its own, below"
        parts = [line.split() for line in lines[begin + 1 : begin + 9]]
        assert parts == [[f"[{k}]", str(k), str(8 + k), str(16 + k)] for k in range(8)]


@pytest.mark.parametrize("space", [spaces.Discrete(2), spaces.Discrete(3), spaces.Discrete(52)])
def test_choices_of_more_than_two_values_have_no_mean_as_in_cards(space: spaces.Discrete, tmp_path: Path) -> None:
    shown = ["0", "0.6667" if space.n == 2 else NO_MEAN, "1"]
    actions = np.array([0, 1, 1])
    one = SingleAgentEpisode.from_arrays(np.zeros(4), actions, np.zeros(3), action_space=space)
    data = write(tmp_path / "data", [one])
    for command in ("info", "show"):
        printed_ = output(command, data)
        row = next(line for line in printed_.splitlines() if line.startswith("actions"))
        assert row.replace(str(space), "").split()[-len(shown) - 1 :] == ["int64", *shown]
        assert (f"{NO_MEAN} as mean: choices have none" in printed_) == (NO_MEAN in shown)
    in_card = ">0.6667</span>" in (EpisodeDataset(data)._repr_html_() or "").split("actions", 1)[1]
    assert in_card == (NO_MEAN not in shown)


def test_ls_leaves_out_the_begin_if_all_episodes_have_theirs(tmp_path: Path) -> None:
    whole = episode([1.0, 2.0], "whole", terminated=True)
    assert "t_started" not in output("ls", write(tmp_path / "whole", [whole]))
    assert "t_started" in output("ls", write(tmp_path / "part", [whole[1:]]))
    assert printed("ls", tmp_path / "whole")[0]["t_started"] == 0


def test_ls_sorts_by_any_column_with_nan_last(data: Path) -> None:
    assert [row["id"] for row in printed("ls", data)] == ["bb1", "bb2", "[bold]a"]
    assert [row["id"] for row in printed("ls", data, "--sort", "return")] == ["[bold]a", "bb1", "bb2"]
    assert [row["length"] for row in printed("ls", data, "--sort", "length", "--descending", "--limit", 2)] == [5, 3]
    assert "[bold]a" in output("ls", data)
    for words in (("ls", data, "--sort", "colour"), ("ls", data, "--limit", "-1"), ("watch", data, "--port", "65536")):
        assert run(*words)[0] == 2


def test_ls_filters_and_shows_custom_data_and_whole_episodes(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        for n in range(4):
            whole = episode([1.0, n], f"e{n}", terminated=True, custom_data={"score": n / 2})
            writer.add([whole] if n else [whole[:1], whole[1:]])
    lines = output("ls", tmp_path, "--where", "custom_data/score > 0.5", "--sort", "custom_data/score").splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["3", "e2"], ["4", "e3"]]  # e0 has two chunks
    assert "episode_return" not in lines[0]
    assert "episode_return" in output("ls", tmp_path)
    assert run("ls", tmp_path, "--where", "score >")[0] == 2
    facts = printed("info", tmp_path)
    assert (facts["complete episodes"], facts["mean return of complete episodes"]) == (4, 2.5)


def test_print_table_without_unicode_shows_other_letters(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    write(data, [episode([1.0], "\U0001f642")])
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="latin-1"))
    monkeypatch.setattr("sys.argv", ["episodes", "show", str(data), "--episode", "-1"])
    with pytest.raises(SystemExit) as ended:
        main()
    sys.stdout.flush()
    assert not ended.value.code
    assert written.getvalue().startswith(b"SingleAgentEpisode(?: 1 step,")


def test_show_finds_an_episode_by_id_prefix_and_index(data: Path, tmp_path: Path) -> None:
    for name, length in (("bb2", 5), ("[b", 2), ("-1", 2)):
        assert printed("show", data, "--episode", name)["length"] == length
    assert run("show", data, "--episode", "bb")[0] == 2
    assert "observations" in output("show", data)
    output("show", data, "--episode", "0", "--html", tmp_path / "episode.html")
    assert "<!doctype html>" in (tmp_path / "episode.html").read_text()


def test_show_states_missing_and_non_finite_numbers(tmp_path: Path) -> None:
    infos = [{}, {"success": True}, {}, {}]
    write(tmp_path, [episode([1.0, np.nan, np.inf], infos=infos), episode([np.inf], "f", infos=[{"word": "x"}] * 2)])
    text = output("show", tmp_path)
    assert "1 NaN: t=1; 1 infinite: t=2" in text
    assert "in 1 of 4 infos" in text
    tracks = {track["track"]: track for track in printed("show", tmp_path, "--episode", "f")["tracks"]}
    assert (tracks["observations"]["lowest"], tracks["observations"]["shape"]) == (0, [2, 2])
    assert (tracks["rewards"]["lowest"], tracks["rewards"]["above"]) == (None, 1)
    assert "lowest" not in tracks["infos/word"]


@pytest.mark.parametrize("begin", [0, 3])
@pytest.mark.parametrize("is_of_a_game", [False, True])
def test_show_and_info_tell_where_numbers_are_wrong(tmp_path: Path, begin: int, is_of_a_game: bool) -> None:
    """The places are component and step, and the env step in a game whose agents do not act at all steps."""
    box = spaces.Box(-1.0, 1.0, (2,), np.float64)
    observations = np.zeros((7, 2))
    observations[4, 1], observations[5, 0] = np.nan, 7
    broken = SingleAgentEpisode.from_arrays(observations, np.zeros(6), np.ones(6), observation_space=box)[begin:]
    places = ["t=4", "t=5"]
    if is_of_a_game:
        game = MultiAgentEpisode(observation_space={"a": box, "b": spaces.Discrete(2)}, action_space={})
        game.add_env_reset(observations={"b": 0})
        game.add_env_step({"a": observations[0]}, {"b": 1}, {"b": 1.0})
        for item in observations[1:]:
            game.add_env_step({"b": 0}, {"a": 0}, {"a": 1.0})
            game.add_env_step({"a": item}, {"b": 0}, {"b": 1.0})
        places = ["t=4, env step 9", "t=5, env step 11"]
        write(tmp_path / "data", [game])  # type: ignore[list-item]
    else:
        write(tmp_path / "data", [broken])
    nan, outside = places
    assert f"1 NaN: [1] at {nan}; 1 outside of its space: [0] at {outside} (7)" in output("show", tmp_path / "data")
    assert ("game 0, " if is_of_a_game else "episode 0, ") + "t=4;" in output("info", tmp_path / "data")


def test_info_prints_whole_numbers_with_separators(tmp_path: Path) -> None:
    write(tmp_path, [episode([0.0] * 1200, f"e{n}", terminated=True) for n in range(10)], metadata={"seed": 20260})
    text = output("info", tmp_path)
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    assert (lines["steps"].strip(), lines["metadata"].strip()) == ("12,000", "seed: 20260")
    assert "ranges of all 10 episodes" in text
    assert printed("info", tmp_path)["steps"] == 12000


def test_show_prints_the_turns_of_a_conversation(tmp_path: Path) -> None:
    talk = Conversation("a", outputs={})
    talk.begin([1, 2])
    talk.turn([3], [4], 0.5)
    talk.turn([5], reward=1.0, terminated=True)
    data = write(tmp_path / "data", [talk.episode])
    assert output("show", data, "--decode", "json:dumps").splitlines()[-8:] == [
        *("prompt, turn 0:", "  [1][2]"),
        *("model, turn 0 (reward 0.5):", "  [3]"),
        *("reply, turn 1:", "  [4]"),
        *("model, turn 1 (reward 1):", "  [5]"),
    ]
    output("show", data, "--html", tmp_path / "show.html", "--decode", "json:dumps")
    assert ">[3]</span>" in (tmp_path / "show.html").read_text()
    assert_fails("give MODULE:NAME", "show", data, "--decode", "json:nothing")
    assert_fails("module is not a function", "show", data, "--decode", "json:decoder")
    page = tmp_path / "page.html"
    assert_fails("decode([1]) raised TypeError", "report", data, "--html", page, "--decode", "json:loads")


def test_record_with_equal_seeds_writes_equal_episodes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        output("record", tmp_path / name, "--env", "CartPole-v1", "--episodes", 3, "--seed", 7)
    a, b = (EpisodeDataset(tmp_path / name) for name in ("a", "b"))
    assert [len(episode) for episode in a] == [len(episode) for episode in b]
    assert a.env_spec == "CartPole-v1"
    assert run("record", tmp_path / "c", "--env", "NoSuchPole-v9")[0] == 2


def test_report_writes_one_page(data: Path, tmp_path: Path) -> None:
    assert "3 episodes" in output("report", data, "--html", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_sql_prints_and_saves_the_result(tmp_path: Path) -> None:
    data = write(tmp_path / "data", (episode([1.0, np.nan, i], f"e{i}") for i in range(20)))
    query = 'select step, rewards, "observations/1" as y from steps where rewards > 17.5 and not isnan(rewards)'
    rows = printed("sql", data, query, "--save", tmp_path / "found")
    assert rows == [{"step": 56, "rewards": 18.0, "y": 5.0}, {"step": 59, "rewards": 19.0, "y": 5.0}]
    assert EpisodeDataset(data).load_selection(tmp_path / "found").steps.tolist() == [56, 59]
    assert printed("sql", data, "select rewards from steps where step = 1") == [{"rewards": None}]
    assert "18" in output("sql", data, query)
    assert run("sql", data, "select")[0] == 2


def test_split_defines_and_lists_splits(tmp_path: Path) -> None:
    data = write(tmp_path, (episode([1.0], f"e{i}") for i in range(20)))
    assert output("split", data).strip() == ""
    assert_fails("a name occurs twice", "split", data, "a=0.5", "a=0.5")
    assert EpisodeDataset(data).splits == []
    first = output("split", data, "train=0.8", "test=0.2", "--seed", 3)
    assert first == output("split", data)
    assert first.split()[0::5] == ["train", "test"]
    assert sum(printed("info", data)["splits"].values()) == 20
    assert run("split", data, "train")[0] == 2


@pytest.mark.parametrize("of_games", [False, True])
@pytest.mark.parametrize("rewards", [[np.nan, 3.0, -1.0], [3.0, np.nan, -1.0], [3.0, -1.0, np.nan], [np.nan, np.nan]])
def test_info_as_json_skips_returns_that_are_nan(rewards: list[float], of_games: bool, tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path / "data", several_kinds=of_games) as writer:
        for n, reward in enumerate(rewards):
            if of_games:
                game = MultiAgentEpisode(id_=str(n))
                game.add_env_reset(observations={"a": 0.0})
                game.add_env_step(observations={"a": 0.0}, actions={"a": 0}, rewards={"a": reward})
                writer.add([game.to_numpy()])
            else:
                writer.add([episode([reward], id_=str(n))])
    facts, known = printed("info", tmp_path / "data"), [reward for reward in rewards if reward == reward]
    found = [facts[f"{name} return"] for name in ("lowest", "mean", "highest")]
    assert found == ([min(known), sum(known) / len(known), max(known)] if known else [None] * 3)
