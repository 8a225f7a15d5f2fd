"""`episodes capture` as a process: agents call it, it is stopped by a signal, and the data set has all sessions."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import aiohttp

from episodes.storage import EpisodeDataset
from tests.capture.fake_server import FakeServer
from tests.code_rules import ROOT
from tests.command.running import assert_fails


def test_command_writes_ended_and_open_sessions(tmp_path: Path) -> None:
    stops = [signal.SIGINT, signal.SIGTERM]

    async def check_both() -> None:
        await asyncio.gather(*(check_command(tmp_path / stop.name, stop) for stop in stops))

    asyncio.run(check_both())


async def check_command(out: Path, stop: signal.Signals) -> None:
    """Check the command with two agents, until a signal stops it."""
    server = FakeServer()

    async def run() -> str:
        async with server.serving() as upstream, aiohttp.ClientSession() as client:
            words = ["capture", "--upstream", upstream, "--out", str(out), "--temperature", "0.5"]
            program = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "episodes", *words), stdout=asyncio.subprocess.PIPE, cwd=ROOT
            )
            assert program.stdout is not None
            url = (await program.stdout.readline()).split()[2].decode().strip(",")
            for key in ("a", "a", "b"):
                body = {"model": "exact", "messages": [{"role": "user", "content": key}], "temperature": 2.0}
                headers = {"Authorization": f"Bearer {key}"}
                async with client.post(f"{url}/chat/completions", json=body, headers=headers) as response:
                    assert response.status == 200
            async with client.post(f"{url[:-3]}/sessions/a/end", json={"reward": 2.0}) as response:
                assert response.status == 200
            assert b"1 episodes, 2 turns" in await program.stdout.readline()
            program.send_signal(stop)
            output = await program.stdout.read()
            assert await program.wait() == 0
            return output.decode()

    output = await run()
    assert "2 sessions (0 failed), 3 calls" in output
    assert {body["temperature"] for body in server.requests} == {0.5}
    ended, still_open = EpisodeDataset(out)
    assert (ended.id_, len(ended), ended.get_return(), ended.is_terminated) == ("a", 2, 2.0, True)
    assert (still_open.id_, len(still_open), still_open.is_truncated) == ("b", 1, True)
    assert ended.get_infos(1)["sampling"] == {"model": "exact", "temperature": 0.5}


def test_command_rejects_wrong_arguments(tmp_path: Path) -> None:
    words = ("capture", "--out", tmp_path / "data", "--upstream")
    assert_fails("give a base URL", *words, "localhost:8000")
    assert_fails("no such environment variable", *words, "http://localhost", "--key-variable", "NOT_THERE")
    assert not (tmp_path / "data").exists()
