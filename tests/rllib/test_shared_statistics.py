"""Filter statistics of env runners whose states arrive late, twice, out of order or from before a checkpoint."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors import env_to_module_pipeline
from connectors.env_to_module import MeanStdFilter
from connectors.moments import Moments
from connectors.multi_agent_pipelines import MultiAgentEnvToModule
from episode_runners.rllib.shared_statistics import SharedStatistics

OPERATIONS = ("sample", "sample", "send", "send", "merge", "merge", "receive", "receive", "replace", "save", "restore")


class SimulatedRunner:
    """State of an env runner, and the numbers that its filter has observed."""

    def __init__(self, joint: bool) -> None:
        pieces = env_to_module_pipeline(pieces=[] if joint else [MeanStdFilter()])
        by_agent = [MeanStdFilter(multi_agent=True)] if joint else []
        self.pipeline = MultiAgentEnvToModule({"module": pieces}, joint=by_agent)
        self.shared = SharedStatistics(self.pipeline)
        self.observed: set[float] = set()  # since the last restored checkpoint
        self.restores = 0

    def sample(self, number: float) -> None:
        """Observe a number. In a joint filter it is of one of two agents."""
        row = np.array([[number]])
        if len(self.pipeline.joint):
            rewriters = self.pipeline.joint["MeanStdFilter"]
            rewriters.rewriter_of(("a", "b")[int(number) % 2]).rewrite(row)
        else:
            self.pipeline["module"]["MeanStdFilter"].rewrite(row)
        self.observed.add(number)


@dataclass
class Simulation:
    """Remote env runners, a local one, and the messages between them."""

    joint: bool
    runners: list[SimulatedRunner] = field(init=False)
    sent: list[tuple[dict[Any, Any], set[float], int]] = field(default_factory=list)
    saved: tuple[dict[Any, Any], set[float]] = ({}, set())
    num_samples: int = 0
    restores: int = 0

    def __post_init__(self) -> None:
        self.runners = [SimulatedRunner(self.joint) for _ in range(3)]
        self.local = SimulatedRunner(self.joint)
        self.local.shared.is_local = True
        self.save(0, 0)
        self.merged = self.local.shared.merge_states([])

    def sample(self, index: int, number: int) -> None:
        self.num_samples += 1
        self.runners[index].sample(float(self.num_samples * (1 + number % 3)) + self.num_samples / 1000)

    def send(self, index: int, number: int) -> None:
        runner = self.runners[index]
        self.sent.append((pickle.loads(pickle.dumps(runner.shared.get_state())), set(runner.observed), runner.restores))

    def merge(self, index: int, number: int) -> None:
        """Merge one or two of the latest messages, which may have been merged before."""
        messages = [self.sent[-1 - at % len(self.sent)] for at in (number, number // 3)] if self.sent else []
        self.merged = self.local.shared.merge_states([copy.deepcopy(state) for state, _, _ in messages])
        for _, observed, restores in messages:
            self.local.observed |= observed if restores == self.restores else set()

    def receive(self, index: int, number: int) -> None:
        runner = self.runners[index]
        runner.shared.set_state(self.merged)
        assert moments_of(runner.pipeline.get_state()).count == len(self.local.observed)
        if runner.restores != self.restores:
            runner.observed, runner.restores = set(), self.restores

    def replace(self, index: int, number: int) -> None:
        self.runners[index] = SimulatedRunner(self.joint)
        self.receive(index, number)

    def save(self, index: int, number: int) -> None:
        self.saved = self.local.shared.get_state(), set(self.local.observed)

    def restore(self, index: int, number: int) -> None:
        if self.saved[1] == self.local.observed:
            return
        self.local.shared.set_state(self.saved[0])
        self.local.observed, self.restores = set(self.saved[1]), self.restores + 1
        self.merged = self.local.shared.merge_states([])


def moments_of(state: dict[Any, Any]) -> Moments:
    """Return the moments of all observations in a state."""
    filters = state.get("__joint__", state["module"]).get("MeanStdFilter", {})
    parts = filters["agents"].values() if "agents" in filters else [filters]
    total = Moments.empty((1,))
    for part in parts:
        for known in (*part.get("synced", {}).values(), *part.get("own", {}).values()):
            total = total.merge(Moments.from_state(known))
    return total


@pytest.mark.parametrize("joint", [False, True])
@settings(max_examples=100)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 2), st.integers(0, 20)), min_size=20, max_size=60
    )
)
def test_local_filter_counts_each_received_observation_once(joint: bool, steps: list[tuple[str, int, int]]) -> None:
    simulation = Simulation(joint)
    for operation, index, number in steps:
        getattr(simulation, operation)(index, number)
        known = moments_of(simulation.local.pipeline.get_state())
        observed = np.array(sorted(simulation.local.observed))
        assert known.count == len(observed)
        if len(observed):
            np.testing.assert_allclose(known.mean, observed.mean(), rtol=1e-9)
            np.testing.assert_allclose(known.squares, ((observed - observed.mean()) ** 2).sum(), rtol=1e-7, atol=1e-7)
