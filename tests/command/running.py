"""Calls of the `episodes` command, and small data sets."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from episodes import SingleAgentEpisode
from episodes.storage import EpisodeWriter


def run(*words: object) -> tuple[int, str]:
    """Run a command, and return its exit status and output."""
    from episodes.command.app import app

    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


def output(*words: object) -> str:
    """Return the output of a command that must succeed."""
    status, text = run(*words)
    assert status == 0, text
    return text


def printed(*words: object) -> Any:
    """Return what a command prints with `--json`."""
    return json.loads(output(*words, "--json"))


def assert_fails(message: str, *words: object) -> None:
    """Check that a command prints an error with this text, and exits with status 2."""
    status, text = run(*words)
    assert status == 2
    assert message in " ".join(text.split())


def write(path: Path, episodes: Iterable[SingleAgentEpisode], **options: Any) -> Path:
    with EpisodeWriter(path, **options) as writer:
        writer.add(list(episodes))
    return path


def episode(rewards: Iterable[float], id_: str = "e", **options: Any) -> SingleAgentEpisode:
    """Return an episode of two numbers per observation, with these rewards."""
    rewards = np.array(rewards, float)
    observations = np.arange(2.0 * len(rewards) + 2).reshape(-1, 2)
    return SingleAgentEpisode.from_arrays(observations, np.arange(len(rewards)) % 2, rewards, id_=id_, **options)
