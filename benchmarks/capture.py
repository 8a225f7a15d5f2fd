"""Benchmarks of the recording proxy: a call through it, compared with a call through a proxy that only copies bytes."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Any

import numpy as np

from benchmarks.figure import Figure, Side, Size, Timed, at_most, cpu_seconds

PROMPT, SAMPLED = 2000, 500  # tokens
CALLS = 5


def answers(num_prompt: int, num_ids: int) -> dict[tuple[bool, bool], list[bytes]]:
    """Return the parts of a server's answer, with and without token ids and log-probabilities, whole and streamed."""
    rng = np.random.default_rng(0)
    prompt, ids = rng.integers(0, 150_000, num_prompt).tolist(), rng.integers(0, 150_000, num_ids).tolist()
    usage = {"usage": {"prompt_tokens": num_prompt, "completion_tokens": num_ids}}
    parts = {}
    for has_ids in (False, True):
        entry = {"token": " word", "logprob": -0.123456789, "bytes": [32, 119, 111, 114, 100], "top_logprobs": []}
        base: dict[str, Any] = {"id": "chatcmpl-1", "created": 1, "model": "m"}
        first = {**base, **({"prompt_token_ids": prompt} if has_ids else {})}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        choice["message"] = {"role": "assistant", "content": " word" * num_ids}
        if has_ids:
            choice |= {"logprobs": {"content": [entry] * num_ids}, "token_ids": ids}
        parts[has_ids, False] = [json.dumps({**first, "choices": [choice], **usage}).encode()]
        chunks = [{**first, "choices": [{"index": 0, "delta": {"role": "assistant"}}]}]
        for k, id_ in enumerate(ids):
            choice = {"index": 0, "delta": {"content": " word"}, "finish_reason": "stop" if k + 1 == num_ids else None}
            if has_ids:
                choice |= {"logprobs": {"content": [entry]}, "token_ids": [id_]}
            chunks.append({**base, "choices": [choice]})
        events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
        parts[has_ids, True] = [*events, b"data: [DONE]\n\n"]
    return parts


class Loop:
    """Event loop in a thread, with a model server, a proxy that copies bytes, and a client."""

    def __init__(self) -> None:
        self.loop, self.parts = asyncio.new_event_loop(), answers(PROMPT, SAMPLED)
        Thread(target=self.loop.run_forever, daemon=True).start()
        self.server, self.copier = self.wait(self._serve(self._answer)), self.wait(self._serve(self._copy))
        self.client = self.wait(self._new_client())

    def wait(self, work: Any) -> Any:
        """Run a coroutine in the loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def call(self, url: str, stream: bool, num: int, **more: Any) -> None:
        """Make `num` calls, one after another."""
        body = {"model": "m", "messages": [{"role": "user", "content": "word " * PROMPT}], "stream": stream, **more}
        data = json.dumps(body).encode()
        for _ in range(num):
            async with self.client.post(f"{url}/chat/completions", data=data) as response:
                await response.read()

    async def _new_client(self) -> Any:
        from aiohttp import ClientSession

        return ClientSession()

    async def _serve(self, handler: Callable[[Any], Any]) -> str:
        from aiohttp import web

        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", handler)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    async def _answer(self, request: Any) -> Any:
        from aiohttp import web

        body = json.loads(await request.read())
        kind = "text/event-stream" if body["stream"] else "application/json"
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        for part in self.parts[bool(body.get("return_token_ids")), body["stream"]]:
            await response.write(part)
        await response.write_eof()
        return response

    async def _copy(self, request: Any) -> Any:
        from aiohttp import web

        async with self.client.post(f"{self.server}/chat/completions", data=await request.read()) as answer:
            response = web.StreamResponse(headers={"Content-Type": answer.headers["Content-Type"]})
            await response.prepare(request)
            async for data in answer.content.iter_any():
                await response.write(data)
            await response.write_eof()
            return response


def recorded(size: Size, stream: bool) -> Timed:
    """Time a call of 2,000 prompt tokens and 500 sampled ones with client, recording proxy and server, in CPU seconds
    of the process."""
    from episodes.capture import CaptureProxy
    from episodes.tokens import SessionRecorder

    loop, recorder, num = Loop(), SessionRecorder(), size(CALLS)
    proxy = CaptureProxy(loop.server, recorder)
    proxy.start()

    def run() -> None:
        session = recorder.begin()
        loop.wait(loop.call(proxy.url(session), stream, num))
        session.end()
        recorder.take()

    weakref.finalize(run, proxy.close)
    return Timed(run, num, clock=cpu_seconds)


def copied(size: Size, stream: bool, **more: Any) -> Timed:
    """Time the same call through a proxy that copies bytes. By default the server returns neither token ids nor
    log-probabilities.
    """
    loop, num = Loop(), size(CALLS)
    return Timed(lambda: loop.wait(loop.call(loop.copier, stream, num, **more)), num, clock=cpu_seconds)


FIGURES = tuple(
    Figure(
        f"capture/{name} of 500 tokens{of}",
        Side("recorded", partial(recorded, stream=stream)),
        Side("bytes copied", partial(copied, stream=stream, **more)),
        at_most(2.5),
        "ms",
    )
    for name, stream in (("answer", False), ("stream", True))
    for of, more in (("", {}), (", ids copied too", {"return_token_ids": True}))
)
