"""Agents of real frameworks behind the proxy, many at once: the Agents SDK with an agent as a tool, and LangChain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from episodes.capture import CaptureProxy
from episodes.tokens import SessionRecorder
from tests.capture.fake_server import FakeServer
from tests.capture.test_agents_through_the_proxy import check_pack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # of packages that are not this library's
]
Play = Callable[[str, bool], Awaitable[str]]  # from the base URL, and whether to stream, to the last answer


def agents_sdk() -> Play:
    """Return a run of an agent that calls another agent as a tool."""
    agents = pytest.importorskip("agents", reason="needs openai-agents")
    openai = pytest.importorskip("openai")
    agents.set_tracing_disabled(True)

    async def play(url: str, stream: bool) -> str:
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            helper, model = (agents.OpenAIChatCompletionsModel(name, client) for name in ("think", "tools2"))
            tool = agents.Agent("helper", instructions="Help.", model=helper).as_tool("look", "ask the helper")
            agent = agents.Agent("assistant", instructions="Use the tool.", model=model, tools=[tool])
            if not stream:
                return (await agents.Runner.run(agent, "where")).final_output
            result = agents.Runner.run_streamed(agent, "where")
            async for _ in result.stream_events():
                pass
            return result.final_output

    return play


def langchain() -> Play:
    """Return a loop of a model and a tool that asks the model again, as a sub-agent does."""
    chats = pytest.importorskip("langchain_openai")
    messages = pytest.importorskip("langchain_core.messages")

    async def play(url: str, stream: bool) -> str:
        options = {"base_url": url, "api_key": "none", "streaming": stream}
        helper = chats.ChatOpenAI(model="think", **options)
        tool = {"name": "look", "description": "", "parameters": {"type": "object", "properties": {"text": {}}}}
        model = chats.ChatOpenAI(model="tools2", **options).bind_tools([{"type": "function", "function": tool}])
        history: list[Any] = [messages.SystemMessage("Use the tool."), messages.HumanMessage("where")]
        while True:
            history.append(await model.ainvoke(history))
            if not history[-1].tool_calls:
                return history[-1].content
            for call in history[-1].tool_calls:
                found = await helper.ainvoke([messages.HumanMessage(call["args"]["text"])])
                history.append(messages.ToolMessage(found.content, tool_call_id=call["id"]))

    return play


@pytest.mark.parametrize("framework", [agents_sdk, langchain])
def test_sixteen_runs_with_sub_agents_are_recorded_exactly(framework: Callable[[], Play]) -> None:
    play, server, recorder = framework(), FakeServer(), SessionRecorder(group_size=4)

    async def one(proxy: CaptureProxy, number: int) -> None:
        with recorder.begin(f"s{number}", group=number // 4) as session:
            answer = await play(proxy.url(session), bool(number % 2))
            session.reward(float(len(answer)))

    async def main() -> None:
        async with server.serving() as upstream:
            with CaptureProxy(upstream, recorder) as proxy:
                await asyncio.gather(*(one(proxy, number) for number in range(16)))
                assert not proxy.num_unrecorded, proxy.newest_problem

    asyncio.run(main())
    pack = recorder.take()
    assert pack is not None
    assert [len(episode) for episode in pack] == [5] * 16  # two calls of the tool, its two answers, and the last one
    check_pack(pack, server, {(id_, 0) for id_ in server.log})
    assert recorder.report().branches == {"new prompt": 16 * 2}
