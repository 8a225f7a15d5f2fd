"""The simulation of many workers: what it must give where the answer is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scaling import Clock, Costs, Plan, Server, simulate

FREE = Costs(step=1e-4, take=1e-9, take_byte=0, carry_byte=0, update=1e-9, weights=1e-9, delay=1e-6)


def test_workers_that_nothing_holds_up_sample_all_the_time() -> None:
    out = simulate(Plan(8), FREE, 10.0)
    assert out.steps_per_second == pytest.approx(8 / 1e-4, rel=0.02)
    assert out.sampling == pytest.approx(1, abs=0.02)
    assert out.taking + out.updating + out.publishing < 0.01


def test_slow_learner_is_always_busy_and_workers_wait() -> None:
    out = simulate(Plan(8), replace(FREE, update=1e-4), 20.0)
    assert out.steps_per_second == pytest.approx(1e4, rel=0.05)
    assert out.updating > 0.95
    assert out.sampling == pytest.approx(1 / 8, rel=0.2)


def test_relays_reduce_costs_of_messages_and_weights() -> None:
    costs = replace(FREE, take=1e-3, weights=1e-3)
    alone, helped = (simulate(Plan(100, relays=relays), costs, 5.0) for relays in (0, 10))
    assert alone.taking + alone.publishing > 0.95
    assert helped.steps_per_second > 3 * alone.steps_per_second


def test_narrow_link_is_saturated() -> None:
    out = simulate(Plan(20, bytes_per_step=1000), replace(FREE, link=1e7), 5.0)
    assert out.link > 0.95
    assert out.steps_per_second == pytest.approx(1e4, rel=0.1)


def test_server_does_one_task_at_a_time_urgent_first() -> None:
    clock, done = Clock(), []
    server = Server(clock)
    for name, is_urgent in (("a", False), ("b", False), ("c", True)):
        server.ask("work", 1.0, lambda name=name: done.append((name, clock.now)), is_urgent)
    clock.run(2.5)
    assert done == [("a", 1.0), ("c", 2.0)]
    assert server.busy == {"work": 2.0}
