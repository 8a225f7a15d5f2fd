"""Agents with the real `openai` client behind the proxy: what is recorded equals the log of the model server."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episodes import EpisodePack
from episodes.capture import CaptureProxy
from episodes.tokens import Session, SessionRecorder, token_batch
from tests.capture.fake_server import HANG, FakeServer

openai = pytest.importorskip("openai")

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
KINDS = ("exact", "agents", "compact", "think", "drift", "samples")
_KEYS = itertools.count()
Received = set[tuple[str, int]]


async def ask(client: Any, received: Received, stream: bool, **body: Any) -> list[dict[str, Any]]:
    """Call the model with the real client, note what arrived, and return a message for each choice."""
    if not stream:
        response = await client.chat.completions.create(**body)
        received.update((response.id, choice.index) for choice in response.choices)
        fields = {"role", "content", "tool_calls"}
        return [choice.message.model_dump(exclude_none=True, include=fields) for choice in response.choices]
    messages: dict[int, dict[str, Any]] = {}
    async with await client.chat.completions.create(**body, stream=True) as chunks:
        async for chunk in chunks:
            assert chunk.choices
            assert not chunk.model_extra
            for choice in chunk.choices:
                assert choice.logprobs is None
                assert not choice.model_extra
                message = messages.setdefault(choice.index, {"role": "assistant", "content": ""})
                message["content"] += choice.delta.content or ""
                if choice.delta.tool_calls:
                    message["tool_calls"] = [call.model_dump(exclude={"index"}) for call in choice.delta.tool_calls]
                if choice.finish_reason:
                    received.add((chunk.id, choice.index))
    return [messages[index] for index in sorted(messages)]


async def leave(client: Any, server: FakeServer, stream: bool, **body: Any) -> None:
    """Call the model, and leave before the end of its answer. The server must notice."""
    key = str(next(_KEYS))
    body["extra_headers"] = {HANG: key}
    task = asyncio.ensure_future(client.chat.completions.create(**body, stream=stream))
    if stream:
        chunks = await task
        await server.hanging[key].wait()
        await chunks.close()
    else:
        await server.hanging[key].wait()
        task.cancel()
    await server.aborted[key].wait()


async def play(client: Any, server: FakeServer, received: Received, rng: random.Random, kind: str, number: int) -> None:
    """Run one agent: a loop of tools that cancels calls, has sub-agents, and changes its history."""
    stream = bool(number // len(KINDS) % 2)
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "you are an agent " * 3},
        {"role": "user", "content": f"task {number}"},
    ]
    body: dict[str, Any] = {"model": f"{kind}4", "tools": TOOLS}
    for turn in range(8):
        if rng.random() < 0.3:
            await leave(client, server, stream, messages=history, **body)
        more = {"n": 3} if kind == "samples" else {}
        answers = await ask(client, received, stream, messages=history, **body, **more)
        message = answers[len(answers) // 2]
        history.append(message)
        for call in message.get("tool_calls") or ():
            answer = call["function"]["arguments"][:20]
            if kind == "agents":
                question = [{"role": "system", "content": "sub agent"}, {"role": "user", "content": answer}]
                subs = [ask(client, received, bool(k), messages=question, model="exact") for k in range(2)]
                answer = (await asyncio.gather(*subs))[0][0]["content"]
            history.append({"role": "tool", "tool_call_id": call["id"], "content": answer})
        if kind == "compact" and turn == 2:
            history[2:] = [{"role": "user", "content": "what was done so far"}]
        if not message.get("tool_calls"):
            break


def check_pack(pack: EpisodePack, server: FakeServer, received: Received) -> None:
    """Check contexts, samples and log-probabilities of all turns with the server's log."""
    seen: Counter[tuple[str, int]] = Counter()
    for episode in pack:
        context: list[int] = []
        for t in range(len(episode)):
            before, after = episode.get_infos(t), episode.get_infos(t + 1)
            context = context[: before.get("kept_tokens", len(context))] + episode.get_observations(t).tolist()
            entry, choice = server.log[after["response_id"]], after.get("choice", 0)
            assert context == entry.prompt
            assert episode.get_actions(t).tolist() == entry.choices[choice]
            logp = episode.get_extra_model_outputs("logp", t)
            np.testing.assert_array_equal(logp, np.float32(entry.logp[choice]))
            seen[after["response_id"], choice] += 1
            context += entry.choices[choice]
    assert set(seen.values()) == {1}
    assert set(seen) == received


@pytest.mark.parametrize("num", [12, pytest.param(64, marks=pytest.mark.slow)])
def test_concurrent_agents_are_recorded_exactly(num: int, tmp_path: Path) -> None:
    server, recorder, received = FakeServer(failures=0.1), SessionRecorder(group_size=4), set()

    async def run() -> None:
        async with server.serving() as upstream, openai.AsyncOpenAI(api_key="key", max_retries=20) as client:
            with CaptureProxy(upstream, recorder, upstream_key="secret", policy_version=3) as proxy:

                async def one(number: int) -> None:
                    with recorder.begin(f"s{number}", group=number // 4) as session:
                        agent = client.with_options(base_url=proxy.url(session))
                        rng = random.Random(number)
                        await play(agent, server, received, rng, KINDS[number % len(KINDS)], number)
                        session.reward(float(number % 3))

                await asyncio.gather(*map(one, range(num)))
                assert not proxy.num_unrecorded, proxy.newest_problem

    asyncio.run(run())
    pack = recorder.take()
    assert pack is not None
    assert len(pack) == num
    assert sorted(pack.returns().tolist()) == sorted(float(number % 3) for number in range(num))
    check_pack(pack, server, received)
    report = recorder.report()
    assert server.num_failed >= num // 4
    assert report.cancelled >= num // 4  # streams; whole answers that were cancelled have no tokens
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer secret"}
    causes = {"new prompt", "same prompt"}
    causes |= {"encoded again", "shortened sample", "rewritten history"} if num == 64 else set()
    assert causes <= report.branches.keys()
    batch = token_batch(pack)
    assert int(batch["loss_mask"].sum()) == sum(len(server.log[id_].choices[k]) for id_, k in received)
    assert set(batch["policy_version"][batch["loss_mask"]].tolist()) == {3}
    from episodes.storage import EpisodeDataset, EpisodeWriter

    with EpisodeWriter(tmp_path / "data") as writer:
        writer.add(pack)
    assert EpisodeDataset(tmp_path / "data").pack() == pack


@pytest.mark.parametrize("num", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_open_sessions(num: int) -> None:
    import aiohttp

    server, recorder = FakeServer(), SessionRecorder()

    async def run() -> None:
        async with server.serving() as upstream, aiohttp.ClientSession() as client:
            with CaptureProxy(upstream, recorder) as proxy:
                sessions = [recorder.begin(f"s{k}") for k in range(num)]
                gate = asyncio.Semaphore(50)

                async def call(session: Session) -> None:
                    body = {"model": "exact", "messages": [{"role": "user", "content": session.id_}]}
                    async with gate, client.post(f"{proxy.url(session)}/chat/completions", json=body) as response:
                        assert response.status == 200, await response.text()

                await asyncio.gather(*map(call, sessions))
                assert recorder.num_open == num
                for session in sessions:
                    session.end()

    asyncio.run(run())
    pack = recorder.take()
    assert pack is not None
    assert len(pack) == num
    check_pack(pack, server, {(id_, 0) for id_ in server.log})
