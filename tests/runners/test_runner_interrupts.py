"""Ctrl-C while a runner samples: the first waits for the end of the vector step, the second does not."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from connectors import multi_agent_env_to_module
from connectors.env_to_module import MeanStdFilter
from episode_runners import Hook, MultiAgentEnvRunner, SingleAgentEnvRunner
from episode_runners.interrupts import DeferredInterrupt
from episodes.errors import StateMismatch
from episodes.replay import EpisodeReplayBuffer
from tests.interrupts import Breaking
from tests.moving.environments import Always, BoxCorridor
from tests.runners.test_multi_agent_borders import ACTIONS, AGENTS, PLACE, Meeting, Numbered

PLACES = ["reset", "step", "policy", "hook"]
COUNTS = [{"num_timesteps": 20}, {"num_episodes": 4}]


class CtrlC:
    """Function that sends SIGINT to this process `times` times at the n-th call."""

    def __init__(self) -> None:
        self.left, self.times = -1, 1

    def arm(self, calls: int, times: int) -> None:
        self.left, self.times = calls, times

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)


class Corridor(BoxCorridor):
    """Corridor that calls `at_reset` and `at_step`."""

    at_reset: Callable[[], None]
    at_step: Callable[[], None]
    num_steps = 0

    def reset(self, **options: Any) -> Any:
        type(self).at_reset()
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        row = super().step(action)
        Corridor.num_steps += 1
        type(self).at_step()
        return row


class AtStep(Hook):
    """Hook that calls a function after each vector step."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def on_step(self, runner: Any) -> None:
        self.call()


def runner_with(place: str, ctrl_c: CtrlC, **options: Any) -> SingleAgentEnvRunner:
    """Return a runner that sampled once, and in which `ctrl_c` is called at one of several places."""

    def nothing() -> None:
        """Do nothing."""

    Corridor.at_reset = staticmethod(ctrl_c if place == "reset" else nothing)
    Corridor.at_step = staticmethod(ctrl_c if place == "step" else nothing)
    plain = Always(1)

    def policy(batch: Any, explore: bool) -> Any:
        (ctrl_c if place == "policy" else nothing)()
        return plain(batch, explore=explore)

    hook = AtStep(ctrl_c if place == "hook" else nothing)
    runner = SingleAgentEnvRunner(partial(Corridor, 4), policy, num_envs=2, hooks=[hook], seed=0, **options)
    runner.sample(num_timesteps=6)
    return runner


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("counts", COUNTS, ids=["steps", "episodes"])
@pytest.mark.parametrize("place", PLACES)
def test_first_interrupt_waits_for_the_end_of_the_step(place: str, counts: Any, calls: int) -> None:
    ctrl_c = CtrlC()
    runner = runner_with(place, ctrl_c)
    if place == "reset" and calls == 3 and "num_timesteps" in counts:
        counts = {**counts, "force_reset": True}
    Corridor.num_steps = 0
    ctrl_c.arm(calls, times=1)
    with pytest.raises(KeyboardInterrupt):
        runner.sample(**counts)
    pack = runner.take()
    assert pack.num_steps == Corridor.num_steps < 20
    starts = {episode.id_: (episode.t, episode.get_observations(-1)) for episode in pack if not episode.is_done}
    later = runner.sample(num_timesteps=4)
    if "num_timesteps" in counts:  # episodes continue
        for episode in later:
            if episode.t_started and episode.id_ in starts:
                assert episode.t_started == starts[episode.id_][0]
                assert np.array_equal(episode.get_observations(0), starts[episode.id_][1])
        assert starts.keys() <= set(later.ids)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("place", PLACES)
def test_second_interrupt_raises_at_once_and_loses_one_step(place: str) -> None:
    ctrl_c = CtrlC()
    runner = runner_with(place, ctrl_c)
    Corridor.num_steps = 0
    ctrl_c.arm(2, times=2)
    with pytest.raises(KeyboardInterrupt):
        runner.sample(num_timesteps=20, force_reset=place == "reset")
    assert Corridor.num_steps - runner.take().num_steps in range(3)
    assert runner.sample(num_timesteps=20).num_steps >= 20
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_no_interrupt_leaves_its_delay_behind() -> None:
    """Wherever two presses of Ctrl-C come together in the code that delays the first, Python's handler is back."""

    def work() -> None:
        interrupts = DeferredInterrupt()
        with interrupts:
            pass
        interrupts.raise_pending()

    place, is_interrupted = 0, True
    while is_interrupted:
        place += 1
        breaking = Breaking(
            KeyboardInterrupt, place, rooms=("/episode_runners/interrupts.py",), where_signals_come=True
        )
        is_interrupted = breaking.run(work)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, place
    assert place > 5


def test_handler_that_is_set_inside_stays() -> None:
    def handler(number: int, frame: Any) -> None:
        """Do nothing."""

    with DeferredInterrupt():
        signal.signal(signal.SIGINT, handler)
    try:
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("num_timesteps", [2, 20])
@pytest.mark.parametrize("place", PLACES[1:])
def test_sample_into_keeps_all_steps_before_the_interrupt(place: str, num_timesteps: int) -> None:
    ctrl_c, buffer = CtrlC(), EpisodeReplayBuffer(200)
    runner = runner_with(place, ctrl_c)
    runner.sample_into(buffer, num_timesteps=10)
    before, Corridor.num_steps = buffer.num_added, 0
    ctrl_c.arm(1, times=1)
    with pytest.raises(KeyboardInterrupt):
        runner.sample_into(buffer, num_timesteps=num_timesteps)
    assert Corridor.num_steps - (buffer.num_added - before) in range(3)
    runner.sample_into(buffer, num_timesteps=20)
    assert buffer.num_added >= before + 20
    buffer.sample(4)


def test_returns_interrupted_adds_steps_to_next_sample() -> None:
    ctrl_c = CtrlC()
    runner = runner_with("step", ctrl_c, returns_interrupted=True)
    ctrl_c.arm(5, times=1)
    with pytest.raises(KeyboardInterrupt):
        runner.sample(num_timesteps=20)
    pack = runner.sample(num_timesteps=8)
    assert pack.num_steps >= 12
    assert runner.metrics()["num_steps_total"] == 6 + pack.num_steps
    whole = [episode for episode in pack if episode.is_done]
    assert sum(runner.stats.lengths) == sum(episode.t for episode in whole)


def test_signal_handler_of_the_user_is_called_at_once() -> None:
    ctrl_c, calls = CtrlC(), []
    runner = runner_with("step", ctrl_c)
    ctrl_c.arm(1, times=2)
    before = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    try:
        assert runner.sample(num_timesteps=20).num_steps >= 20
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(calls) == 2


def test_runner_in_another_thread_samples() -> None:
    runner, packs = runner_with("nowhere", CtrlC()), []
    thread = threading.Thread(target=lambda: packs.append(runner.sample(num_timesteps=20)))
    thread.start()
    thread.join()
    assert packs[0].num_steps >= 20


# --- several agents ---------------------------------------------------------------------------------------------------


class Interrupting(Meeting):
    """Meeting that counts its steps, and calls `at_step` in each."""

    num_steps = 0
    at_step: Callable[[], None]

    def step(self, actions: Any) -> Any:
        row = super().step(actions)
        Interrupting.num_steps += 1
        type(self).at_step()
        return row


def several(ctrl_c: CtrlC, **options: Any) -> MultiAgentEnvRunner:
    """Return a runner in the middle of its first episodes."""
    Interrupting.at_step = staticmethod(ctrl_c)
    runner = MultiAgentEnvRunner(
        partial(Interrupting, 6),
        {agent: Numbered() for agent in AGENTS},
        agent_to_module_mapping_fn=lambda agent_id, episode: agent_id,
        num_envs=2,
        seed=0,
        **options,
    )
    runner.sample(num_timesteps=8)
    Interrupting.num_steps = 0
    return runner


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("calls", range(1, 8))
@pytest.mark.parametrize("counts", COUNTS, ids=["steps", "episodes"])
def test_interrupted_runner_of_several_agents_continues(counts: Any, calls: int, times: int) -> None:
    ctrl_c = CtrlC()
    runner = several(ctrl_c)
    ctrl_c.arm(calls, times)
    with pytest.raises(KeyboardInterrupt):
        runner.sample(**counts)
    chunks = runner.take()
    for chunk in chunks:
        chunk.validate()
    lost = Interrupting.num_steps - sum(map(len, chunks))
    assert lost == 0 if times == 1 else lost in range(3)
    assert sum(map(len, runner.sample(num_timesteps=6))) == 6
    assert runner.take() == []


def test_returns_interrupted_adds_chunks_of_several_agents_to_next_sample() -> None:
    ctrl_c = CtrlC()
    runner = several(ctrl_c, returns_interrupted=True)
    ctrl_c.arm(3, times=1)
    with pytest.raises(KeyboardInterrupt):
        runner.sample(num_timesteps=20)
    assert sum(map(len, runner.sample(num_timesteps=4))) == Interrupting.num_steps == 8
    assert runner.take() == []


def test_wrong_state_leaves_a_runner_as_it_was() -> None:
    modules = dict.fromkeys(AGENTS, PLACE), dict.fromkeys(AGENTS, ACTIONS)
    runner = several(CtrlC(), env_to_module=multi_agent_env_to_module(*modules, pieces=lambda: [MeanStdFilter()]))
    before = runner.get_state()
    for missing in before:
        wrong = {name: value for name, value in before.items() if name != missing}
        with pytest.raises(StateMismatch, match=f"a state without .'{missing}'"):
            runner.set_state(wrong)
    assert repr(runner.get_state()) == repr(before)
