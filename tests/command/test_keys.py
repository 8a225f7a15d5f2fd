"""`episodes keys DIR` makes keys that a receiver and its senders take."""

from __future__ import annotations

from pathlib import Path

import pytest

from episodes.transport import EpisodeReceiver

typer_testing = pytest.importorskip("typer.testing")


def test_keys_creates_keys_and_overwrites_none(tmp_path: Path) -> None:
    from episodes.command.app import app

    run = typer_testing.CliRunner().invoke
    result = run(app, ["keys", str(tmp_path)])
    assert result.exit_code == 0, result.output
    receivers, senders = map(Path, result.output.split())
    assert (senders / "receiver.key").exists()
    EpisodeReceiver(keys=receivers).close()
    assert run(app, ["keys", str(tmp_path)]).exit_code == 2
    assert run(app, ["keys", str(tmp_path), "--sender", "second"]).exit_code == 0
