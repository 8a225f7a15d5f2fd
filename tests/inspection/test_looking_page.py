"""The commands on the page about inspection run and have the stated exit statuses."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from episodes.command import plugins
from episodes.command.app import app
from episodes.storage import EpisodeDataset

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "looking.md"
SHORT = """
algo = "ppo"
env = "CartPole-v1"
num_envs = 2
[policy]
hidden_sizes = [8]
[trainer]
max_epochs = 2
steps_per_epoch = 256
steps_per_collect = 128
num_test_episodes = 2
"""


def test_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [EntryPoint(name, "episode_learners.__main__:main", plugins.GROUP) for name in plugins.HELP]
    monkeypatch.setattr(plugins, "entry_points", lambda group: entries)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.toml").write_text(SHORT)
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) >= 14
    for line in commands:
        command, _, comment = line.removeprefix("$ ").partition("  # ")
        name, *words = shlex.split(command)
        assert name == "episodes"
        result = CliRunner().invoke(app, words)
        expected = int(comment.removeprefix("exit status ")) if comment else 0
        assert result.exit_code == expected, (line, result.output, result.exception)
    assert (tmp_path / "data.html").exists()
    a, b = (EpisodeDataset(tmp_path / "played" / name) for name in "ab")
    starts = [[episode.get_observations()[0] for episode in data] for data in (a, b)]
    assert np.array_equal(*starts)  # equal seeds begin equal episodes
