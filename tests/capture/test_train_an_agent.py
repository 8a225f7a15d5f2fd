"""The guide "Train an agent you do not own" with the real Agents SDK, the proxy and a fake server."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.fake_server import FakeServer

PAGE = Path(__file__).parents[2] / "docs/how_to/train_an_agent.md"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of packages that are not this library's
def test_guide_records_and_trains_an_agent_of_the_agents_sdk() -> None:
    pytest.importorskip("agents", reason="the guide needs openai-agents")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    server, started, stopping, urls = FakeServer(), Event(), Event(), []

    async def serve() -> None:
        async with server.serving() as url:
            urls.append(url)
            started.set()
            await asyncio.get_running_loop().run_in_executor(None, stopping.wait)

    thread = Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(30)
    network, updates, printed = nn.Embedding(2000, 2000), [], []
    before = network.weight.detach().clone()
    names: dict[str, Any] = {
        "MODEL": "tools1",
        "SERVER": urls[0],
        "QUESTIONS": [("where", "a"), ("when", "b")],
        "NUM_UPDATES": 2,
        "network": network,
        "forward": lambda model, batch: model(batch["input_ids"]),
        "send_weights": lambda network, server: updates.append(server),
        "print": printed.append,
        "__name__": "guide",
    }
    try:
        exec(code, names)
    finally:
        stopping.set()
        thread.join()
    assert len(updates) == 2
    recorder = names["recorder"]
    assert recorder.report().sessions == 16
    assert recorder.report().failed == 0
    assert recorder.report().calls == 32  # a call of the tool and an answer
    assert len(server.log) == 32
    assert len(printed) == 2
    assert all({"sampler_kl", "skipped_sequences", "loss"} <= metrics.keys() for metrics in printed)
    assert not torch.equal(before, network.weight)
