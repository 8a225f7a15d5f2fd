"""Settings of all tests: derandomized properties, one torch thread, and the selection of tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.leftovers import is_watched, left_since, there_is

settings.register_profile(  # a busy machine fails nothing
    "usual",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("usual"), max_examples=15)  # while one writes
settings.register_profile("thorough", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))

torch.set_num_threads(1)
# One process runs many tests, and some import ray before another calls `start_ray`, which raises an error then.
# Programs in fresh processes start without the variable (test_fresh_processes.py), and
# test_ray_is_started_before_it_is_imported checks that `start_ray` sets it in time.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts background processes so
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail if a watched test leaves a thread, process, listening socket or shared memory."""
    before = there_is() if is_watched(request.path) else None
    yield
    assert before is None or not left_since(before)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked gpu on a machine without a GPU, and tests marked slow unless `-m` selects slow tests.

    Tests of a group come first, since pytest-xdist then gives the whole group to one worker, which starts shared
    resources such as Ray once.
    """
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
    left_out = set() if torch.cuda.is_available() else {"gpu"}
    if not config.getoption("markexpr"):
        left_out.add("slow")
    dropped = [item for item in items if any(item.get_closest_marker(mark) for mark in left_out)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if not any(item.get_closest_marker(mark) for mark in left_out)]
