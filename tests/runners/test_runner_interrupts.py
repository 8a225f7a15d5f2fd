"""Runners of several agents that are interrupted at any moment go on, and lose at most the step in the middle."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from connectors import multi_agent_env_to_module
from connectors.env_to_module import MeanStdFilter
from episode_runners import MultiAgentEnvRunner
from episodes.errors import StateMismatch
from episodes.multi_agent import MultiAgentEpisode
from tests.interrupts import Breaking
from tests.runners.test_multi_agent_borders import ACTIONS, AGENTS, PLACE, Meeting, Numbered

ROOMS = ("/episodes/", "/episode_runners/", "/connectors/")
NUM_ENVS = 2


class Counted(Meeting):
    """It counts what was made, stepped and closed, over all copies."""

    num_steps = 0
    closed_ones: set[int] = set()

    def step(self, actions: Any) -> Any:
        row = super().step(actions)
        Counted.num_steps += 1
        return row

    def close(self) -> None:
        Counted.closed_ones.add(id(self))


def by_agent(agent_id: Any, episode: Any) -> Any:
    return agent_id


def made(**options: Any) -> MultiAgentEnvRunner:
    """A runner in the middle of its first episodes."""
    policies = {agent: Numbered() for agent in AGENTS}
    make = partial(Counted, 6)
    runner = MultiAgentEnvRunner(
        make, policies, agent_to_module_mapping_fn=by_agent, num_envs=NUM_ENVS, seed=0, **options
    )
    runner.sample(num_timesteps=8)
    Counted.num_steps, Counted.closed_ones = 0, set()
    return runner


def num_steps_of(chunks: list[MultiAgentEpisode]) -> int:
    """The env steps of chunks, every one of which is what the environment gave."""
    for chunk in chunks:
        chunk.validate()
        for agent_id, own in chunk.agent_episodes.items():
            expected = chunk.clocks(agent_id)[0] + 100 * AGENTS.index(agent_id)
            assert np.ravel(own.get_observations()).tolist() == expected[-len(own) - 1 :].tolist()
            assert len(own.get_rewards()) == len(own.get_actions()) == len(own)
    return sum(map(len, chunks))


def moments(work: Callable[[], Any], num: int) -> list[int]:
    """So many moments out of those at which a signal may come, the first and the last among them."""
    counting = Breaking(KeyboardInterrupt, -1, rooms=ROOMS, where_signals_come=True)
    counting.run(work)
    return np.linspace(1, counting.num_seen, num).astype(int).tolist()


def is_interrupted(work: Callable[[], Any], at: int) -> bool:
    return Breaking(KeyboardInterrupt, at, rooms=ROOMS, where_signals_come=True).run(work)


@pytest.mark.parametrize("asked", [{"num_timesteps": 10}, {"num_episodes": 2}], ids=["steps", "episodes"])
def test_a_runner_of_several_agents_that_is_interrupted_goes_on_and_has_all_steps_but_the_newest(asked: Any) -> None:
    for at in moments(partial(made().sample, **asked), 30):
        runner = made()
        assert is_interrupted(partial(runner.sample, **asked), at)
        assert 0 <= Counted.num_steps - num_steps_of(runner.take()) <= NUM_ENVS, at
        assert num_steps_of(runner.sample(num_timesteps=6)) == 6, at
        assert runner.take() == [], at


def filtered() -> MultiAgentEnvRunner:
    modules = dict.fromkeys(AGENTS, PLACE), dict.fromkeys(AGENTS, ACTIONS)
    return made(env_to_module=multi_agent_env_to_module(*modules, pieces=lambda: [MeanStdFilter()]))


def test_a_state_of_several_modules_is_restored_whole_or_not_at_all() -> None:
    source = filtered()
    source.sample(num_timesteps=20)
    state = source.get_state()
    runner = filtered()
    before = repr(runner.get_state())
    outcomes = set()
    for at in moments(partial(runner.set_state, state), 20):
        runner = filtered()
        assert is_interrupted(partial(runner.set_state, state), at)
        found = repr(runner.get_state())
        outcomes.add(found == before)
        assert found in (before, repr(state)), at
        runner.set_state(state)
        assert repr(runner.get_state()) == repr(state)
    assert True in outcomes


def test_what_is_no_state_of_a_runner_leaves_it_as_it_was() -> None:
    runner = filtered()
    before = runner.get_state()
    for missing in before:
        wrong = {name: value for name, value in before.items() if name != missing}
        with pytest.raises(StateMismatch, match=f"a state without .'{missing}'"):
            runner.set_state(wrong)
    with pytest.raises(StateMismatch):
        runner.set_state({**before, "num_env_steps": 99, "env_to_module": {}})
    assert repr(runner.get_state()) == repr(before)


def test_closing_goes_on_where_it_was_interrupted() -> None:
    for at in moments(made().close, 12):
        runner = made()
        is_interrupted(runner.close, at)
        runner.close()
        assert len(Counted.closed_ones) == NUM_ENVS, at
        assert num_steps_of(runner.take()) == 0
