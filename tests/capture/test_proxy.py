"""The recording proxy at its borders: what servers and agents may do wrong, and control by HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import numpy as np
import pytest

from episodes.capture import CaptureProxy
from episodes.errors import EpisodeStateError, InvalidArgument, WrongType
from episodes.tokens import Session, SessionRecorder
from tests.capture.fake_server import HANG, FakeServer, decode

USER = [{"role": "user", "content": "hello there"}]
Test = Callable[[aiohttp.ClientSession, CaptureProxy], Awaitable[None]]


def run(test: Test, server: FakeServer, recorder: SessionRecorder | None = None, **options: Any) -> SessionRecorder:
    """Run a test with a server and a proxy."""
    recorder = SessionRecorder() if recorder is None else recorder

    async def main() -> None:
        async with server.serving() as upstream, aiohttp.ClientSession() as client:
            with CaptureProxy(upstream, recorder, **options) as proxy:
                await test(client, proxy)

    asyncio.run(main())
    return recorder


async def post(client: aiohttp.ClientSession, url: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Return the status and the JSON of a response, or the chunks of a stream."""
    async with client.post(url, json={} if body is None else body, headers=headers) as response:
        content = await response.read()
        if response.content_type != "text/event-stream":
            return response.status, json.loads(content)
        events = [event.removeprefix(b"data: ") for event in content.split(b"\n\n") if event]
        return response.status, [event.decode() if event == b"[DONE]" else json.loads(event) for event in events]


async def chat(client: aiohttp.ClientSession, proxy: CaptureProxy, session: Session, **more: Any) -> tuple[int, Any]:
    return await post(client, f"{proxy.url(session)}/chat/completions", {"model": "exact", "messages": USER, **more})


def error_of(answer: Any) -> str:
    """Return the message of an error, also as the last event of a stream."""
    return (answer[-1] if isinstance(answer, list) else answer)["error"]["message"]


# --- answers that cannot be recorded ----------------------------------------------------------------------------------


def without(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that removes fields from a payload and its choices."""

    def damage(payload: dict[str, Any]) -> dict[str, Any]:
        payload = {name: value for name, value in payload.items() if name not in names}
        payload["choices"] = [
            {name: value for name, value in choice.items() if name not in names} for choice in payload["choices"]
        ]
        return payload

    return damage


def with_fewer_logprobs(payload: dict[str, Any]) -> dict[str, Any]:
    for choice in payload["choices"]:
        if (choice.get("logprobs") or {}).get("content"):
            choice["logprobs"]["content"].pop()
    return payload


def with_swallowed_tokens(payload: dict[str, Any]) -> dict[str, Any]:
    """Drop tokens with their log-probabilities, as tool parsers of some servers do."""
    for choice in payload["choices"]:
        if choice.get("token_ids"):
            choice["token_ids"] = choice["token_ids"][1:]
            choice["logprobs"]["content"] = choice["logprobs"]["content"][1:]
    return payload


def with_first_logprob(value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def damage(payload: dict[str, Any]) -> dict[str, Any]:
        for choice in payload["choices"]:
            if (choice.get("logprobs") or {}).get("content"):
                choice["logprobs"]["content"][0]["logprob"] = value
        return payload

    return damage


def with_other_types(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that sets fields of a payload, and of its choices if they have them."""

    def damage(payload: dict[str, Any]) -> dict[str, Any]:
        choices = [
            {**choice, **{name: value for name, value in fields.items() if name in choice}}
            for choice in payload["choices"]
        ]
        return {**payload, "choices": choices, **{name: value for name, value in fields.items() if name in payload}}

    return damage


DAMAGES = {
    "no prompt_token_ids": without("prompt_token_ids"),
    "no token_ids": without("token_ids"),
    "values of the output 'logp' are missing": without("logprobs"),
    "log-probabilities for": with_fewer_logprobs,
    "the server counted": with_swallowed_tokens,
    "logp has -9999": with_first_logprob(-9999.0),
    "logp has dtype": with_first_logprob("high"),
    "a choice has index 'a'": with_other_types(index="a"),
    "'str' object has no attribute 'get'": with_other_types(usage="many"),
    "prompt_ids is a str": with_other_types(prompt_token_ids="text"),
    "'int' object is not iterable": with_other_types(token_ids=5),
    "string indices must be integers": with_other_types(logprobs={"content": "high"}),
    "KeyError('type')": with_other_types(finish_reason={"reason": "stop"}),
    "'int' object": with_other_types(choices=5),
    "choices[0] is a str": with_other_types(choices="stop"),
}


@pytest.mark.parametrize(("stream", "whole_answers"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("message", DAMAGES)
def test_answer_that_cannot_be_recorded_is_an_error_for_the_agent(
    message: str, stream: bool, whole_answers: bool
) -> None:
    async def test(client: aiohttp.ClientSession, proxy: CaptureProxy) -> None:
        session = proxy.recorder.begin("a")
        status, answer = await chat(client, proxy, session, stream=stream)
        assert status == (200 if stream and not whole_answers else 502)
        assert message in error_of(answer)
        assert not isinstance(answer, list) or not any(
            choice.get("finish_reason") for chunk in answer for choice in chunk.get("choices", ())
        )
        assert not any(call.is_delivered for call in session.calls)
        assert proxy.num_unrecorded == 1
        assert message in proxy.newest_problem
        with pytest.raises(EpisodeStateError, match="received no sample"):
            session.end()

    run(test, FakeServer(damage=DAMAGES[message]), whole_answers=whole_answers)


def test_message_that_cannot_become_a_stream_is_not_recorded_as_delivered() -> None:
    async def test(client: aiohttp.ClientSession, proxy: CaptureProxy) -> None:
        session = proxy.recorder.begin("a")
        status, answer = await chat(client, proxy, session, stream=True)
        assert status == 502
        assert "a choice has the message 5" in error_of(answer)
        assert (session.calls, proxy.num_unrecorded) == ((), 1)

    run(test, FakeServer(damage=with_other_types(message=5)), whole_answers=True)


@pytest.mark.parametrize("stream", [False, True])
def test_answer_of_which_one_choice_cannot_be_recorded_is_not_delivered(stream: bool) -> None:
    def damage(payload: dict[str, Any]) -> dict[str, Any]:
        damaged = [choice for choice in payload["choices"] if choice["index"] == 1]
        with_first_logprob(-9999.0)({"choices": damaged})
        return payload

    async def test(client: aiohttp.ClientSession, proxy: CaptureProxy) -> None:
        session = proxy.recorder.begin("a")
        _, answer = await chat(client, proxy, session, stream=stream, n=3)
        assert "logp has -9999" in error_of(answer)
        report = session.report()
        assert (report.sampled_tokens, report.cancelled, proxy.num_unrecorded) == (0, 0, 1)

    run(test, FakeServer(damage=damage))


@pytest.mark.parametrize("is_whole", [False, True])
def test_stream_that_breaks_off_is_an_error_for_the_agent(is_whole: bool) -> None:
    """A raw server sends one of two choices, and then closes the connection with or without an end of its answer."""
    chunk = {"id": "r", "prompt_token_ids": [1], "choices": [{"index": 0, "finish_reason": "stop", "token_ids": [2]}]}
    chunk["choices"][0]["logprobs"] = {"content": [{"logprob": -1.0}]}  # type: ignore[index]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        data = b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n" + (b"0\r\n\r\n" if is_whole else b""))
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with server, aiohttp.ClientSession() as client:
            with CaptureProxy(url, SessionRecorder()) as proxy:
                session = proxy.recorder.begin("a")
                status, chunks = await chat(client, proxy, session, stream=True, n=2)
                assert (status, len(chunks)) == (200, 1)
                assert "the stream of the model server" in error_of(chunks)
                assert [call.is_delivered for call in session.calls] == [False]

    asyncio.run(main())


def of_parts(kind: str, role: str = "user") -> dict[str, Any]:
    return {
        "messages": [*USER, {"role": role, "content": [{"type": "text", "text": "look"}, {"type": kind, kind: {}}]}]
    }


REFUSED: dict[str, dict[str, Any]] = {
    "echo=": {"echo": 3},
    "use_beam_search=": {"use_beam_search": 3},
    "best_of=": {"best_of": 3},
    "stream_options=5": {"stream_options": 5},
    "part of type 'image_url'": of_parts("image_url"),
    "part of type 'input_audio'": of_parts("input_audio"),
    "part of type 'video_url'": of_parts("video_url", "tool"),
    "part of type 'file'": of_parts("file", "system"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_request_that_is_no_plain_sample_of_tokens_is_refused(reason: str) -> None:
    server = FakeServer()

    async def test(client: aiohttp.ClientSession, proxy: CaptureProxy) -> None:
        status, answer = await chat(client, proxy, proxy.recorder.begin("a"), **REFUSED[reason])
        assert status == 400
        assert reason in error_of(answer)

    run(test, server)
    assert not server.requests


def test_session_that_ends_during_a_call_refuses_its_answer() -> None:
    server = FakeServer()

    async def test(client: aiohttp.ClientSession, proxy: CaptureProxy) -> None:
        session = proxy.recorder.begin("a")
        await chat(client, proxy, session)
        server.damage = lambda payload: session.end() or payload
        status, answer = await chat(client, proxy, session)
        assert (status, proxy.num_unrecorded) == (410, 0)
        assert "has ended" in error_of(answer)
        server.damage = None
        status, answer = await chat(client, proxy, session)
        assert status == 410
        assert "not open" in error_of(answer)

    pack = run(test, server).take()
    assert pack is not None
    assert [len(episode) for episode in pack] == [1]


def test_call_that_takes_too_long_is_cancelled() -> None:
    server = FakeServer()

    async def test(client: aiohttp.ClientSession, proxy: CaptureProxy) -> None:
        session = proxy.recorder.begin("a")
        url, body = f"{proxy.url(session)}/chat/completions", {"model": "exact", "messages": USER}
        assert (await post(client, url, body, **{HANG: "w"}))[0] == 504
        for seconds in (0.2, 2.0, 20.0):  # enough for the first words of the answer, which decide its status
            proxy._state.call_timeout = seconds
            status, chunks = await post(client, url, {**body, "stream": True}, **{HANG: "s"})
            if status == 200:
                break
        assert status == 200
        assert "took more than" in error_of(chunks)
        await asyncio.gather(server.aborted["w"].wait(), server.aborted["s"].wait())
        assert not any(call.is_delivered for call in session.calls)

    run(test, server, call_timeout=0.2)


@pytest.mark.parametrize("whole_answers", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_agent_that_leaves_after_any_byte_loses_and_doubles_nothing(stream: bool, whole_answers: bool) -> None:
    """An agent reads some bytes of an answer, leaves, and asks again. Both samples are the server's, each once."""
    server, asked_again = FakeServer(), {}
    cuts = [0, 1, 40, *range(100, 600, 50), *range(600, 2400, 200)]

    async def leave(proxy: CaptureProxy, session: Session, num_bytes: int) -> None:
        reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
        body = json.dumps({"model": "think", "messages": USER, "stream": stream, "n": 2}).encode()
        path = f"/sessions/{session.id_}/v1/chat/completions"
        writer.write(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        with contextlib.suppress(asyncio.IncompleteReadError):  # an answer with fewer bytes, whose connection stays
            await (reader.readexactly(num_bytes) if num_bytes <= 600 else reader.read(num_bytes))
        writer.close()
        await writer.wait_closed()

    async def test(client: aiohttp.ClientSession, proxy: CaptureProxy) -> None:
        for cut in cuts:
            with proxy.recorder.begin(str(cut)) as session:
                await leave(proxy, session, cut)
                status, answer = await chat(client, proxy, session, stream=stream)
                assert status == 200
                asked_again[session.id_] = (answer[0] if stream else answer)["id"]
        while proxy.num_running:
            await asyncio.sleep(0)
        assert not proxy.num_unrecorded
        assert proxy.recorder.report().calls > len(cuts)

    pack = run(test, server, whole_answers=whole_answers).take()
    assert pack is not None
    assert len(pack) == len(cuts)
    for episode in pack:
        learned = [
            (info["response_id"], info.get("choice", 0)) for info in map(episode.get_infos, range(1, len(episode) + 1))
        ]
        assert len(set(learned)) == len(learned)
        for t, (id_, choice) in enumerate(learned):
            assert episode.get_actions(t).tolist() == server.log[id_].choices[choice]
            logp = np.array(server.log[id_].logp[choice], np.float32)
            np.testing.assert_array_equal(episode.get_extra_model_outputs("logp", t), logp)
        assert (asked_again[episode.id_], 0) in learned


def test_upstream_that_is_away_is_an_error_that_clients_repeat() -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as client:
            with CaptureProxy("http://127.0.0.1:9/v1", SessionRecorder()) as proxy:
                status, answer = await chat(client, proxy, proxy.recorder.begin("a"))
                assert status == 502
                assert "the model server failed" in error_of(answer)

    asyncio.run(main())


# --- what agents ask for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole_answers", [False, True])
def test_agent_receives_the_fields_that_it_asked_for(whole_answers: bool) -> None:
    server, flags = FakeServer(), (False, True)

    async def test(client: aiohttp.ClientSession, proxy: CaptureProxy) -> None:
        for asked in itertools.product(flags, flags, flags, flags, flags):
            await check_fields(client, proxy, server, *asked)
        assert any(body["stream"] for body in server.requests) != whole_answers

    run(test, server, whole_answers=whole_answers)


async def check_fields(
    client: aiohttp.ClientSession,
    proxy: CaptureProxy,
    server: FakeServer,
    stream: bool,
    asks_ids: bool,
    asks_logp: bool,
    asks_usage: bool,
    is_chat: bool,
) -> None:
    """Check the answer to a request with some fields, and what is recorded of it."""
    body: dict[str, Any] = {"model": "exact", "stream": stream, "n": 2}
    body |= {"messages": USER} if is_chat else {"prompt": "hello"}
    body |= {"return_token_ids": True} if asks_ids else {}
    body |= {"logprobs": True if is_chat else 0} if asks_logp else {}
    body |= {"stream_options": {"include_usage": True}} if asks_usage and stream else {}
    with proxy.recorder.begin() as session:
        endpoint = "chat/completions" if is_chat else "completions"
        status, answer = await post(client, f"{proxy.url(session)}/{endpoint}", body)
    assert status == 200
    assert not stream or answer[-1] == "[DONE]"
    payloads = answer[:-1] if stream else [answer]
    (id_,) = {payload["id"] for payload in payloads}
    entry, choices = server.log[id_], [choice for payload in payloads for choice in payload["choices"]]
    for index, ids in enumerate(entry.choices):
        parts = [choice for choice in choices if choice["index"] == index]
        assert [token for part in parts for token in part.get("token_ids", ())] == (ids if asks_ids else [])
        assert any(part.get("logprobs") for part in parts) == asks_logp
        texts = [(part.get("delta") or part.get("message"))["content"] if is_chat else part["text"] for part in parts]
        assert "".join(text or "" for text in texts) == decode(ids[:-1])
        assert sum(part.get("finish_reason") == "stop" for part in parts) == 1
    assert any("usage" in payload for payload in payloads) == (asks_usage or not stream)
    for call, ids, logp in zip(session.calls, entry.choices, entry.logp, strict=True):
        assert (call.prompt_ids.tolist(), call.ids.tolist()) == (entry.prompt, ids)
        np.testing.assert_array_equal(call.outputs["logp"], np.array(logp, np.float32))


def test_agent_that_stops_reading_at_the_finish_reason_has_the_sample() -> None:
    server = FakeServer()

    async def test(client: aiohttp.ClientSession, proxy: CaptureProxy) -> None:
        session = proxy.recorder.begin("a")
        body = {"model": "exact", "messages": USER, "stream": True}
        async with client.post(f"{proxy.url(session)}/chat/completions", json=body) as response:
            async for line in response.content:
                if b'"stop"' in line:
                    break
        session.end()

    pack = run(test, server).take()
    assert pack is not None
    assert pack[0].get_actions(0).tolist() == next(iter(server.log.values())).choices[0]


@pytest.mark.parametrize("declares", [False, True])
def test_version_that_changes_within_a_stream(declares: bool) -> None:
    server = FakeServer()
    outputs = {"logp": "f4", "version": "i4"} if declares else None

    async def test(client: aiohttp.ClientSession, proxy: CaptureProxy) -> None:
        session = proxy.recorder.begin("a")
        body = {"model": "think", "messages": USER, "stream": True}
        async with client.post(f"{proxy.url(session)}/chat/completions", json=body, headers={HANG: "a"}) as response:
            while b"<think>" not in await response.content.readline():
                pass
            await server.hanging["a"].wait()
            proxy.policy_version = 5
            server.released["a"].set()
            await response.read()
        await chat(client, proxy, session)
        first, second = session.calls
        assert (first.version, second.version) == ((None, None) if declares else (4, 5))
        if declares:
            versions = first.outputs["version"].tolist()
            assert versions == sorted(versions)
            assert (versions[0], versions[-1]) == (4, 5)
            assert set(second.outputs["version"].tolist()) == {5}

    run(test, server, SessionRecorder(outputs=outputs), policy_version=4)


# --- sessions and control ---------------------------------------------------------------------------------------------


def test_sessions_by_http_only() -> None:
    async def test(client: aiohttp.ClientSession, proxy: CaptureProxy) -> None:
        root = proxy.url()[:-3]
        _, given = await post(client, f"{root}/sessions", {"id": "a/b c", "group": "g", "infos": {"task": 3}})
        body = {"model": "exact", "messages": USER}
        _, first = await post(client, f"{given['base_url']}/chat/completions", body)
        by_key = {"Authorization": f"Bearer {given['api_key']}"}
        assert (await post(client, f"{proxy.url()}/chat/completions", body, **by_key))[0] == 200
        by_header = {"X-Session-Id": given["id"], "Authorization": "Bearer other"}
        assert (await post(client, f"{proxy.url()}/completions", {"model": "exact", "prompt": "x"}, **by_header))[
            0
        ] == 200
        session = given["base_url"][:-3]
        assert await post(client, f"{session}/reward", {"reward": 0.25, "response_id": first["id"]}) == (200, {})
        assert await post(client, f"{session}/reward", {"reward": 0.5, "call": 1}) == (200, {})
        async with client.get(session) as response:
            shown = await response.json()
        assert [call["call"] for call in shown["calls"]] == [0, 1, 2]
        assert (await post(client, f"{root}/policy_version", {"version": 7}))[0] == 200
        assert await post(client, f"{session}/end", {"reward": 2.0, "truncated": True}) == (200, {})
        async with client.get(f"{root}/report") as response:
            assert (await response.json())["calls"] == 3
        async with client.get(f"{proxy.url()}/models") as response:
            assert (await response.json())["data"][0]["id"] == "tools"

    pack = run(test, FakeServer()).take()
    assert pack is not None
    assert (pack.returns().tolist(), pack[0].is_truncated, pack[0].get_infos(0)["task"]) == ([2.75], True, 3)
    assert pack[0].custom_data["group"] == "g"


WRONG = {
    "/sessions": ({"name": "x"}, 400, "unknown field 'name'"),
    "/sessions/a/reward": ({}, 400, "no field 'reward'"),
    "/sessions/a/reward?": ({"reward": float(2**70), "call": 9}, 404, "call=9"),
    "/sessions/none/end": ({}, 404, "there is none"),
    "/sessions/a/end": ({}, 409, "received no sample"),
    "/sessions/a/end?": ([1], 400, "not a JSON object"),
    "/policy_version": ({"version": -1}, 400, "policy_version"),
    "/sessions/a/v1/responses": ({}, 404, "is not recorded; use POST /v1/chat/completions"),
    "/sessions/a/v1/chat/completions": ([1], 400, "send a JSON object"),
    "/v1/completions": ({}, 410, "is not open"),
}


@pytest.mark.parametrize("path", WRONG)
def test_wrong_requests_are_errors_by_name(path: str) -> None:
    body, status, message = WRONG[path]

    async def test(client: aiohttp.ClientSession, proxy: CaptureProxy) -> None:
        session = proxy.recorder.begin("a")
        answer = await post(client, proxy.url()[:-3] + path, body)
        assert answer[0] == status
        assert message in error_of(answer[1])
        assert (session.is_open, session.calls) == (True, ())

    run(test, FakeServer())


def test_requests_of_web_pages_are_refused() -> None:
    async def test(client: aiohttp.ClientSession, proxy: CaptureProxy) -> None:
        status, _ = await post(client, proxy.url()[:-3] + "/sessions", {}, Origin="http://evil.example")
        assert (status, proxy.recorder.num_open) == (403, 0)

    run(test, FakeServer())


def test_unknown_ids_begin_sessions_once() -> None:
    async def test(client: aiohttp.ClientSession, proxy: CaptureProxy) -> None:
        url, body = f"{proxy.url()}/chat/completions", {"model": "exact", "messages": USER}
        key = {"Authorization": "Bearer agent 1"}
        assert (await post(client, url, body, **key))[0] == 200
        assert proxy.end_idle(3600.0) == []
        while proxy.num_running:  # it counts down after the last byte
            await asyncio.sleep(0)
        assert proxy.end_idle(0.0) == ["agent 1"]
        proxy.recorder.take()
        assert (await post(client, url, body, **key))[0] == 410
        proxy.end_idle(0.0)
        assert (await post(client, url, body, **key))[0] == 410
        assert (await post(client, url, body))[0] == 410

    run(test, FakeServer(), begin_unknown=True)


def test_idle_sessions_end_or_fail() -> None:
    recorder = SessionRecorder()

    async def test(client: aiohttp.ClientSession, proxy: CaptureProxy) -> None:
        await post(client, proxy.url()[:-3] + "/sessions", {"id": "empty"})
        await chat(client, proxy, recorder.begin("a"))
        assert sorted((await recorder.wait_for(1)).ids) == ["a"]

    run(test, FakeServer(), recorder, idle_timeout=0.05)
    assert recorder.num_open == 0
    assert recorder.report().failed == 1


def test_constructor_rejects_wrong_arguments() -> None:
    recorder = SessionRecorder()
    url = "http://localhost/v1"
    with pytest.raises(InvalidArgument, match="give a base URL"):
        CaptureProxy("localhost", recorder)
    with pytest.raises(WrongType, match="give a SessionRecorder"):
        CaptureProxy(url, {})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="'stream', which the proxy sets"):
        CaptureProxy(url, recorder, overrides={"stream": True})
    with pytest.raises(InvalidArgument, match="'value', which servers do not return"):
        CaptureProxy(url, SessionRecorder(outputs={"value": "f4"}))
    with pytest.raises(InvalidArgument, match="policy_version=None"):
        CaptureProxy(url, SessionRecorder(outputs={"version": "i4"}))
    with pytest.raises(InvalidArgument, match="call_timeout=0"):
        CaptureProxy(url, recorder, call_timeout=0)
    proxy = CaptureProxy(url, recorder)
    with pytest.raises(EpisodeStateError, match="has not started"):
        proxy.url()
    with proxy, pytest.raises(EpisodeStateError, match="started before"):
        proxy.start()
    proxy.close()
    taken = CaptureProxy(url, recorder, host="203.0.113.1")  # no address of this machine
    with pytest.raises(OSError, match="203"):
        taken.start()
