"""The commands on the page about inspection run and have the stated exit statuses."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
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


def check_watch(words: list[str]) -> None:
    """Start `episodes watch`, read the curves of its page, and stop it with Ctrl-C."""
    command = [sys.executable, "-m", "episodes", *words, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}runs") as answer:
            message = answer.read()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=300)
    assert (process.returncode, output, errors) == (0, "stopped\n", "")
    runs = json.loads(message[4 : 4 + int.from_bytes(message[:4], "little")])["meta"]["runs"]
    assert [run["name"] for run in runs] == [Path(word).name for word in words[1:]]
    expected = {"train/mean_return", "test/mean_return", "train/steps_per_second", "update/explained_variance"}
    assert all(expected | {"update/kl", "update/value_loss"} <= set(run["metrics"]) for run in runs)


def test_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [EntryPoint(name, "episode_learners.__main__:main", plugins.GROUP) for name in plugins.HELP]
    monkeypatch.setattr(plugins, "entry_points", lambda group: entries)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.toml").write_text(SHORT)
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) >= 16
    for line in commands:
        command, _, comment = line.removeprefix("$ ").partition("  # ")
        name, *words = shlex.split(command)
        assert name == "episodes"
        if words[0] == "watch":
            check_watch(words)
            continue
        result = CliRunner().invoke(app, words)
        expected = int(comment.removeprefix("exit status ")) if comment else 0
        assert result.exit_code == expected, (line, result.output, result.exception)
    assert (tmp_path / "data.html").exists()
    a, b = (EpisodeDataset(tmp_path / "played" / name) for name in "ab")
    starts = [[episode.get_observations()[0] for episode in data] for data in (a, b)]
    assert np.array_equal(*starts)  # equal seeds begin equal episodes
