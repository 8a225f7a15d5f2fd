"""Command `episodes capture`: records agents that call a model server, as a data set."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from episodes.command.terminal import say, say_wrapped
from episodes.errors import InvalidArgument

if TYPE_CHECKING:
    from episodes.pack import EpisodePack
    from episodes.storage import EpisodeWriter
    from episodes.tokens import SessionRecorder


def capture(
    upstream: Annotated[str, typer.Option(metavar="URL", help="The model server: http://localhost:8000/v1.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The data set. Episodes are appended to it.")],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free one.")] = 0,
    group_size: Annotated[int, typer.Option(help="Number of sessions of a group, which is written as one.")] = 1,
    key_variable: Annotated[
        str, typer.Option(metavar="NAME", help="Environment variable with the API key of the server.")
    ] = "",
    temperature: Annotated[float | None, typer.Option(help="Replaces the temperature of all calls.")] = None,
    idle_timeout: Annotated[float, typer.Option(help="Seconds without a call that end a session.")] = 3600.0,
    whole_answers: Annotated[
        bool, typer.Option("--whole-answers", help="Ask the server for no streams, for SGLang.")
    ] = False,
) -> None:
    """Record the calls of agents as episodes, until Ctrl-C. Agents use the printed URL, and any name as API key: each
    name is a session. POST /sessions/NAME/end ends it. Ctrl-C ends open sessions as truncated.
    """
    from episodes.capture import CaptureProxy
    from episodes.storage import EpisodeWriter
    from episodes.tokens import SessionRecorder

    if key_variable and key_variable not in os.environ:
        raise InvalidArgument(f"--key-variable {key_variable}: there is no such environment variable; set it")
    recorder = SessionRecorder(group_size=group_size)
    proxy = CaptureProxy(
        upstream,
        recorder,
        port=port,
        upstream_key=os.environ[key_variable] if key_variable else None,
        overrides={} if temperature is None else {"temperature": temperature},
        begin_unknown=True,
        whole_answers=whole_answers,
        idle_timeout=idle_timeout,
    )
    with EpisodeWriter(out) as writer:
        with proxy:
            say(f"base URL {proxy.url()}, episodes go to {out}; stop with Ctrl-C")
            try:
                asyncio.run(_write_groups(recorder, writer))
            except (KeyboardInterrupt, asyncio.CancelledError):
                say("stopping")
        proxy.end_idle(0.0)
        _write(recorder.take(incomplete=True), writer)
    say(str(recorder.report()))
    if proxy.num_unrecorded:
        say_wrapped(
            f"{proxy.num_unrecorded} answers could not be recorded, the newest because {proxy.newest_problem}", err=True
        )
        raise typer.Exit(1)


async def _write_groups(recorder: SessionRecorder, writer: EpisodeWriter) -> None:
    """Write each group when it is complete, until SIGTERM or Ctrl-C cancels this task."""
    task = asyncio.current_task()
    if task is not None and hasattr(signal, "SIGTERM") and os.name == "posix":
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    while True:
        _write(await recorder.wait_for(1), writer)


def _write(pack: EpisodePack | None, writer: EpisodeWriter) -> None:
    if pack is not None:
        writer.add(pack)
        writer.flush()
        say(f"{len(pack)} episodes, {sum(map(len, pack))} turns")
