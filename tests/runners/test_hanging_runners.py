"""Groups of runners replace a runner that does not reply, whatever the other runners and the caller do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import pytest

from episode_runners import RayRunnerGroup
from episode_runners.remote import group as group_module
from tests.runners.in_process_ray import InProcessRay, _Ref
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


def test_start_of_a_replacement_is_no_time_without_a_reply(group: RayRunnerGroup) -> None:
    samples = group.sample_async(num_timesteps=2)
    while not group.replacements:
        next(samples)
    group._workers[0].starting = _Ref()  # the replacement takes long to start
    Hold.ray.choose = lambda working: 0  # the other one, which is lost earlier
    assert len(list(islice(samples, 100))) == 100  # each takes a second
    assert len(group.replacements) == 1
