"""The `episodes` command with data sets of games whose agents are of several kinds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from running import assert_fails, output, printed

from episodes.storage import EpisodeWriter
from tests.storage.test_games import game

GAMES = [game(seed) for seed in range(6)]


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("games") / "data"
    with EpisodeWriter(path, env_spec="Streets-v0") as writer:
        writer.add(GAMES)
    return path


def test_info_lists_the_kinds_of_agents(games: Path) -> None:
    facts = printed("info", games, "--stats")
    assert (facts["games"], facts["env steps"], facts["environment"]) == (6, sum(map(len, GAMES)), "Streets-v0")
    assert {agent for kind in facts["kinds"] for agent in kind["agents"]} == {"car", "bus", "light", "map"}
    assert sum(kind["episodes"] for kind in facts["kinds"]) == sum(len(each.agent_ids) for each in GAMES)
    assert {row["kind"] for row in facts["tracks"]} == {0, 1, 2}
    text = output("info", games)
    for kind in facts["kinds"]:
        assert f"{', '.join(kind['agents'])}: {kind['episodes']} episodes" in text


def test_ls_has_a_row_per_game_with_its_agents(games: Path) -> None:
    rows = printed("ls", games)
    assert [row["id"] for row in rows] == [each.id_ for each in GAMES]
    assert [row["agents"] for row in rows] == [[*each.agent_episodes] for each in GAMES]
    assert [row["length"] for row in rows] == [*map(len, GAMES)]
    assert ", ".join(GAMES[0].agent_episodes) in output("ls", games)
    long = printed("ls", games, "--where", "length > 3 and num_agents > 3", "--sort", "custom_data/seed")
    assert [row["id"] for row in long] == [each.id_ for each in GAMES if len(each) > 3 and len(each.agent_ids) > 3]


@pytest.mark.parametrize("number", range(len(GAMES)))
def test_show_opens_each_game(number: int, games: Path, tmp_path: Path) -> None:
    shown = printed("show", games, "--episode", f"game {number}")
    expected = GAMES[number]
    assert (shown["id"], shown["length"]) == (expected.id_, len(expected))
    assert shown["return"] == expected.get_return(include_pending=False)
    lengths = {agent: part["length"] for agent, part in shown["agents"].items()}
    assert lengths == {agent: len(part) for agent, part in expected.agent_episodes.items()}
    text = output("show", games, "--episode", number)
    assert len(re.findall("^track", text, re.MULTILINE)) == len(expected.agent_ids)
    output("show", games, "--episode", number, "--html", tmp_path / "game.html")
    assert all(agent in (tmp_path / "game.html").read_text() for agent in expected.agent_ids)


def test_report_shows_all_games(games: Path, tmp_path: Path) -> None:
    output("report", games, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("MultiAgentEpisode") == len(GAMES)
    assert "http" not in re.sub(r"http://www.w3.org/\S+", "", page)
    assert_fails("kinds/0", "report", games, "--html", tmp_path / "other.html", "--doctor")
    assert not (tmp_path / "other.html").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "{}"),
        ("sql", "{}", "select * from episodes"),
        ("split", "{}", "a=0.5", "b=0.5"),
        ("diff", "{}", "{}"),
        ("upload", "{}", "file:///tmp/unused"),
    ],
    ids=lambda words: words[0],
)
def test_commands_of_one_kind_name_the_kinds(words: tuple[str, ...], games: Path) -> None:
    assert_fails("several kinds", *(word.format(games) for word in words))


def test_watch_serves_each_game(games: Path) -> None:
    from episodes.inspect.page_server import PageServer

    server = PageServer(games)
    try:
        for expected in GAMES:
            status, _, body = server.source.answer("episode", {"id": expected.id_, "t": str(expected.env_t_started)})
            assert status == 200
            assert all(f"{agent}/".encode() in body for agent, part in expected.agent_episodes.items() if len(part))
        assert server.source.answer("findings", {})[0] == 200
    finally:
        server.server_close()
