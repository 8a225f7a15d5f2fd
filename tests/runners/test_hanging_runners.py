"""Groups of runners replace a runner that does not reply, whatever the other runners and the caller do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import pytest

from episode_runners import RayRunnerGroup
from episode_runners.remote import group as group_module
from tests.runners.in_process_ray import InProcessRay
from tests.runners.test_statistics_of_groups import Hold, make_runner


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayRunnerGroup]:
    """Group whose first runner hangs, while another one replies at once. Each look at the clock takes a second."""
    clock = count()
    monkeypatch.setattr(group_module, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(group_module, "RaySession", Hold)
    monkeypatch.setattr(Hold, "ray", InProcessRay(lambda working: working - 1, _nothing, _nothing))
    with RayRunnerGroup(make_runner, 2, lost_after_s=30.0) as group:
        yield group


def _nothing(_: Any) -> None:
    return None


def test_hanging_runner_is_replaced_while_another_one_replies(group: RayRunnerGroup) -> None:
    samples = group.sample_async(num_timesteps=2)
    assert len(list(islice(samples, 20))) == 20
    assert [replacement.index for replacement in group.replacements] == [0]
    assert "pending for 3" in group.replacements[0].reason
