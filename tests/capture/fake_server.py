"""A model server with a chat template that speaks vLLM's format, samples at random, and logs what it sampled."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

END, THINK, THOUGHT, CALL, CALLED = range(1, 6)
_MARKS = {"<think>": THINK, "</think>": THOUGHT, "<call>": CALL, "</call>": CALLED}
_ROLES = {"system": 6, "user": 7, "assistant": 8, "tool": 9}
_TEXT, _PAIR = 100, 1000  # first ids of single letters and of pairs
HANG = "X-Hang"  # header of requests whose answer stops in the middle until the client leaves


def encode(text: str, *, pairs: bool = True) -> list[int]:
    """Return token ids of a text: pairs of small letters are one token, unless `pairs` is False."""
    ids = []
    for piece in re.findall(r"</?think>|</?call>|[a-z]{1,2}|.", text, re.DOTALL):
        if piece in _MARKS:
            ids.append(_MARKS[piece])
        elif len(piece) == 2 and pairs:
            ids.append(_PAIR + 26 * (ord(piece[0]) - 97) + ord(piece[1]) - 97)
        else:
            ids += [_TEXT + ord(letter) for letter in piece]
    return ids


def decode(ids: list[int]) -> str:
    names = {id_: mark for mark, id_ in _MARKS.items()}
    texts = []
    for id_ in ids:
        if id_ >= _PAIR:
            texts.append(chr(97 + (id_ - _PAIR) // 26) + chr(97 + (id_ - _PAIR) % 26))
        else:
            texts.append(chr(id_ - _TEXT) if id_ >= _TEXT else names.get(id_, ""))
    return "".join(texts)


def render(messages: list[dict[str, Any]]) -> list[int]:
    """Return the prompt of a chat. The template drops the thinking of earlier turns."""
    ids = []
    for message in messages:
        text = re.sub("<think>.*?</think>", "", message.get("content") or "")
        for call in message.get("tool_calls") or ():
            text += f"<call>{call['function']['arguments']}</call>"
        ids += [_ROLES[message["role"]], *encode(text), END]
    return [*ids, _ROLES["assistant"]]


@dataclass
class Entry:
    """What the server sampled for one request."""

    prompt: list[int]
    choices: list[list[int]]
    logp: list[list[float]]
    is_streamed: bool


@dataclass
class FakeServer:
    """The server. The name of the model says how it answers: "drift", "think", and "tools3" for three calls of tools.

    Attributes:
        failures: part of the requests that fail with HTTP 503.
        log: what was sampled, by response id.
        requests: bodies of all requests.
        hanging: events by the value of the header X-Hang, set when the answer hangs.
        aborted: such events, set when the client has left.
        released: such events; an answer continues when its event is set.
        damage: function that changes payloads before they are sent, to imitate broken servers.
    """

    seed: int = 0
    failures: float = 0.0
    log: dict[str, Entry] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    num_failed: int = 0
    hanging: dict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    aborted: dict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    released: dict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    damage: Any = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve in the running event loop, and yield the base URL."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/v1/models", self.models)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "tools", "object": "model"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await self._answer(request, body, [render(body["messages"])], "chat.completion")

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = body["prompt"]
        prompts = prompt if isinstance(prompt, list) and isinstance(prompt[0], (list, str)) else [prompt]
        prompts = [encode(item) if isinstance(item, str) else item for item in prompts]
        return await self._answer(request, body, prompts, "text_completion")

    def _sample(self, body: dict[str, Any]) -> list[int]:
        model, rng = body["model"], self.random
        word = "".join(rng.choice("abcdef ") for _ in range(rng.randint(3, 30)))
        used = sum(message["role"] == "tool" for message in body.get("messages", ()))
        wanted = int(re.search(r"\d*$", model).group() or 0)  # type: ignore[union-attr]
        thought = [THINK, *encode(f"hm {word}"), THOUGHT] if "think" in model else []
        tool = (body.get("tools") or [{"function": {}}])[0]["function"]
        name = next(iter((tool.get("parameters") or {}).get("properties") or ["text"]))
        text = json.dumps({name: word}) if used < wanted else f"{word}."
        ids = encode(text)
        if "drift" in model:  # the template encodes the last letters in another way
            ids = encode(text[:-4]) + encode(text[-4:], pairs=False)
        return [*thought, *([CALL, *ids, CALLED] if used < wanted else ids), END]

    async def _answer(
        self, request: web.Request, body: dict[str, Any], prompts: list[list[int]], kind: str
    ) -> web.StreamResponse:
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        if self.random.random() < self.failures:
            self.num_failed += 1
            headers = {"retry-after-ms": "1"}
            return web.json_response({"error": {"message": "overloaded"}}, status=503, headers=headers)
        id_ = f"{kind}-{len(self.requests)}"
        prompts = [prompt for prompt in prompts for _ in range(body.get("n") or 1)]
        choices = [self._sample(body) for _ in prompts]
        logp = [[-round(3 * self.random.random(), 4) for _ in ids] for ids in choices]
        entry = self.log[id_] = Entry(prompts[0], choices, logp, bool(body.get("stream")))
        is_chat = kind == "chat.completion"
        try:
            if body.get("stream"):
                return await self._stream(request, body, id_, entry, prompts, is_chat)
            if HANG in request.headers:
                await self._hang(request.headers[HANG])
        except (asyncio.CancelledError, ConnectionError):
            self.aborted[request.headers.get(HANG, "")].set()
            raise
        payload = self._whole(body, id_, entry, prompts, is_chat)
        return web.json_response(self.damage(payload) if self.damage else payload)

    async def _hang(self, key: str) -> None:
        self.hanging[key].set()
        await self.released[key].wait()

    def _logprobs(self, body: dict[str, Any], ids: list[int], logp: list[float], is_chat: bool) -> Any:
        if body.get("logprobs") is None or body["logprobs"] is False:
            return None
        if is_chat:
            entries = zip(ids, logp, strict=True)
            return {
                "content": [{"token": decode([i]), "logprob": p, "bytes": [], "top_logprobs": []} for i, p in entries]
            }
        return {
            "tokens": [decode([id_]) for id_ in ids],
            "token_logprobs": logp,
            "text_offset": [],
            "top_logprobs": None,
        }

    def _usage(self, entry: Entry) -> dict[str, int]:
        num = sum(map(len, entry.choices))
        return {"prompt_tokens": len(entry.prompt), "completion_tokens": num, "total_tokens": len(entry.prompt) + num}

    def _message(self, ids: list[int], id_: str) -> dict[str, Any]:
        text = decode([token for token in ids if token != END])
        calls = [
            {"id": f"{id_}-{k}", "type": "function", "function": {"name": "look", "arguments": arguments}}
            for k, arguments in enumerate(re.findall("<call>(.*?)</call>", text))
        ]
        message: dict[str, Any] = {"role": "assistant", "content": re.sub("<call>.*?</call>", "", text) or None}
        return {**message, "tool_calls": calls} if calls else message

    def _whole(
        self, body: dict[str, Any], id_: str, entry: Entry, prompts: list[list[int]], is_chat: bool
    ) -> dict[str, Any]:
        wants_ids, choices = body.get("return_token_ids"), []
        for k, (ids, logp) in enumerate(zip(entry.choices, entry.logp, strict=True)):
            message = self._message(ids, id_)
            choice = {"index": k, "logprobs": self._logprobs(body, ids, logp, is_chat)}
            choice["finish_reason"] = "tool_calls" if message.get("tool_calls") else "stop"
            choice |= {"message": message} if is_chat else {"text": decode(ids[:-1])}
            if wants_ids:
                choice |= {"token_ids": ids} | ({} if is_chat else {"prompt_token_ids": prompts[k]})
            choices.append(choice)
        kind = "chat.completion" if is_chat else "text_completion"
        payload = {"id": id_, "object": kind, "created": 0, "model": body["model"], "choices": choices}
        payload["usage"] = self._usage(entry)
        return payload | ({"prompt_token_ids": prompts[0]} if wants_ids and is_chat else {})

    async def _stream(
        self,
        request: web.Request,
        body: dict[str, Any],
        id_: str,
        entry: Entry,
        prompts: list[list[int]],
        is_chat: bool,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        base = {"id": id_, "object": kind, "created": 0, "model": body["model"]}
        wants_ids = body.get("return_token_ids")

        async def send(choices: list[Any], **more: Any) -> None:
            payload = {**base, "choices": choices, **more}
            payload = self.damage(payload) if self.damage else payload
            data = b"data: " + json.dumps(payload).encode() + b"\n\n"
            cut = self.random.randint(0, len(data))
            await response.write(data[:cut])  # events do not end where packets end
            await response.write(data[cut:])

        if is_chat:
            first = [{"index": k, "delta": {"role": "assistant", "content": ""}} for k in range(len(prompts))]
            await send(first, **({"prompt_token_ids": prompts[0]} if wants_ids else {}))
        rests = [(k, 0) for k in range(len(prompts))]
        num_sent = 0
        while rests:
            k, at = rests.pop(self.random.randrange(len(rests)))  # choices alternate at random
            ids, logp = entry.choices[k], entry.logp[k]
            end = min(at + self.random.randint(1, 5), len(ids))
            message = self._message(ids, id_)
            choice: dict[str, Any] = {"index": k, "finish_reason": None}
            choice["logprobs"] = self._logprobs(body, ids[at:end], logp[at:end], is_chat)
            if wants_ids:
                choice["token_ids"] = ids[at:end]
                if at == 0 and not is_chat:
                    choice["prompt_token_ids"] = prompts[k]
            is_last = end == len(ids)
            if is_last:
                choice["finish_reason"] = "tool_calls" if message.get("tool_calls") else "stop"
            if is_chat and is_last and message.get("tool_calls"):
                calls = [{**call, "index": index} for index, call in enumerate(message["tool_calls"])]
                choice["delta"] = {"tool_calls": calls}
            elif is_chat:
                shown = [] if message.get("tool_calls") else [token for token in ids[at:end] if token != END]
                choice["delta"] = {"content": decode(shown)}
            else:
                choice["text"] = decode([token for token in ids[at:end] if token != END])
            if not is_last:
                rests.append((k, end))
            elif HANG in request.headers:
                await self._hang(request.headers[HANG])
            await send([choice])
            num_sent += 1
        if (body.get("stream_options") or {}).get("include_usage"):
            await send([], usage=self._usage(entry))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response
