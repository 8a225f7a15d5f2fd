"""The merged statistics of many runners equal the statistics of one filter with all observations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st

from connectors import env_to_module_pipeline
from connectors.env_to_module import MeanStdFilter, NormalizeObservations
from episode_runners import RayRunnerGroup, SingleAgentEnvRunner
from episode_runners.remote import group as group_module
from tests.runners.in_process_ray import InProcessRay

OBSERVATIONS, ACTIONS = spaces.Box(-np.inf, np.inf, (2,), np.float64), spaces.Discrete(2)


class Walk(gym.Env):
    """Environment with observations of two very different scales, and episodes of seven steps."""

    observation_space, action_space = OBSERVATIONS, ACTIONS

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.seen(), {}

    def seen(self) -> np.ndarray:
        return self.np_random.normal((0.0, 1e4), (1e-3, 1.0))

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.seen(), 1.0, self.t == 7, False, {}


class RecordingFilter(MeanStdFilter):
    """Filter that records all rows that it learns from."""

    def _update_statistics(self, rows: dict[str, np.ndarray]) -> None:
        vars(self).setdefault("noted", []).extend(np.concatenate([leaf.copy() for leaf in rows.values()]))
        super()._update_statistics(rows)


class RecordingView(NormalizeObservations):
    """View that records all rows that it learns from."""

    def learn(self, observations: Any) -> None:
        vars(self).setdefault("noted", []).extend(observations.copy())
        super().learn(observations)


class NoAction(Exception):
    """Error class that cannot be unpickled, since its constructor needs an argument."""

    def __init__(self, noun: str, how_many: int) -> None:
        super().__init__(f"{how_many} {noun}")


class Even(torch.nn.Module):
    """Policy with equal logits, which raises an error if `fails` is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = torch.nn.Parameter(torch.zeros(()))

    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        if self.fails > 1:
            raise NoAction("actions", 0)
        if self.fails > 0:
            raise ValueError("no action")
        return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 2)}


def make_runner(index: int, seed: int, piece: Any = RecordingFilter) -> SingleAgentEnvRunner:
    seeing = env_to_module_pipeline(OBSERVATIONS, ACTIONS, pieces=[piece()])
    return SingleAgentEnvRunner(Walk, Even(), num_envs=2, seed=seed, env_to_module=seeing)


class Hold:
    """`RaySession` for `InProcessRay`."""

    is_for_groups_alone = is_there = True
    ray: Any = None

    def __init__(self, num_cpus: int, address: str | None) -> None:

        self.ray, self.is_ended = Hold.ray, False

    def end(self) -> None:
        self.is_ended = True


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Groups whose actors are in this process, and do not change torch's random state."""
    monkeypatch.setattr(group_module, "RaySession", Hold)
    with torch.random.fork_rng([]):
        yield


OPERATIONS = st.one_of(
    st.tuples(st.just("sample"), st.sampled_from([1, 3, 12])),  # of one step in all, only the first runner takes any
    st.tuples(st.just("look"), st.just(5)),  # without exploring nothing is learned
    st.tuples(st.just("stream"), st.integers(1, 5)),
    st.tuples(st.just("kill"), st.integers(0, 2)),
    st.tuples(st.just("resize"), st.integers(1, 3)),
    st.tuples(st.just("fail"), st.just(4)),
    st.tuples(st.just("merge"), st.just(0)),
    st.tuples(st.just("begin anew"), st.booleans()),  # with what is known, or with nothing, as before the first sample
)


class Sampled:
    """Group, and all observations that its runners have reported since the last reset."""

    def __init__(self, seed: int, piece: Any = RecordingFilter) -> None:
        rng, self.name = np.random.default_rng(seed), piece.__name__
        self.rows: list[np.ndarray] = []
        ray = InProcessRay(lambda count: int(rng.integers(count)), noted_by, self.rows.extend)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Hold, "ray", ray)
            self.group = RayRunnerGroup(partial(make_runner, piece=piece), 2, seed=seed, merge_every=2)
        self.group.set_weights(Even())

    def apply(self, operation: str, number: int) -> None:
        """Perform one operation with its argument."""
        group = self.group
        if operation == "sample":
            group.sample(num_timesteps=number)
        elif operation == "look":
            if self.rows:  # without statistics, a policy that was trained with a filter does not act for evaluation
                group.sample(num_timesteps=number, explore=False)
        elif operation == "stream":
            list(islice(group.sample_async(num_timesteps=2), number))
        elif operation == "kill":
            group._workers[number % group.num_runners].actor.die()
        elif operation == "resize":
            group.resize(number)
        elif operation == "fail":
            self.fail(number)
        elif operation == "merge":
            self.check()
        elif number:
            group.restart_episodes(7, group.statistics())
        else:
            group.restart_episodes(7, {self.name: MeanStdFilter().get_state()})
            self.rows.clear()

    def fail(self, num_timesteps: int) -> None:
        """Let all runners fail once, so that they return to the statistics of the request before."""
        failing = Even()
        torch.nn.init.ones_(failing.fails)
        if self.group.statistics() is None:
            return
        self.group.set_weights(failing)
        with pytest.raises(ValueError, match="no action"):
            self.group.sample(num_timesteps=num_timesteps)
        self.group.set_weights(Even())

    def check(self) -> None:
        """Assert that the merged statistics equal the statistics of one filter with all rows, up to rounding."""
        state = self.group.statistics()
        if not self.rows:
            assert state is None or state == {self.name: MeanStdFilter().get_state()}
            return
        (known,) = state.values()
        single = MeanStdFilter()
        single.rewrite(np.array(self.rows))
        (expected_values,) = single.get_state()["own"].values()
        result = known["synced"][""]
        assert not known["own"]
        assert result["count"] == expected_values["count"] == len(self.rows)
        np.testing.assert_allclose(result["mean"], expected_values["mean"], rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(result["squares"], expected_values["squares"], rtol=1e-9)


def noted_by(actor: Any) -> list[np.ndarray]:
    """Return the rows of an actor's filter since the last call."""
    (piece,) = [piece for piece in actor.runner.env_to_module if isinstance(piece, RecordingFilter | RecordingView)]
    return vars(piece).pop("noted", [])


@pytest.mark.parametrize("piece", [RecordingFilter, RecordingView])
@settings(max_examples=30)
@given(seed=st.integers(0, 9), operations=st.lists(OPERATIONS, max_size=10))
@example(
    seed=0, operations=[("stream", 1), ("kill", 0), ("resize", 1)]
)  # who is left knows nothing, and the others are gone
def test_merged_statistics_equal_those_of_one_filter(piece: Any, seed: int, operations: list[tuple[str, int]]) -> None:
    sampled = Sampled(seed, piece)
    with sampled.group:
        for operation, number in operations:
            sampled.apply(operation, number)
        sampled.check()
        sampled.group.sample(num_timesteps=8)
        sampled.check()


def test_unpicklable_error_keeps_its_message() -> None:
    group, failing = Sampled(0).group, Even()
    failing.fails.data.fill_(2.0)
    group.set_weights(failing)
    with pytest.raises(RuntimeError, match="NoAction: 0 actions"):
        group.sample(num_timesteps=4)
    group.set_weights(Even())
    assert [sample.index for sample in group.sample(num_timesteps=4)] == [0, 1]
    assert not group.replacements
    group.close()


def test_dropped_group_ends_its_actors_with_a_warning() -> None:
    sampled = Sampled(0)
    actors = [worker.actor for worker in sampled.group._workers]
    with pytest.warns(ResourceWarning, match="RayRunnerGroup was dropped without close"):
        del sampled
    assert not any(actor.is_alive for actor in actors)
