"""Interrupts of replay buffers, by Ctrl-C or for lack of memory: the buffer stays usable."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.replay import EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer
from episodes.replay.replay_recorder import ReplayRecorder
from episodes.single_agent import SingleAgentEpisode
from tests.interrupts import Breaking

NUM_ENVS = 3
CAPACITY = 24


def episode(number: int, length: int, t_started: int = 0, *, ends: bool = True) -> SingleAgentEpisode:
    values = 1000.0 * number + t_started + np.arange(length + 1.0)
    return SingleAgentEpisode.from_arrays(
        values, values[:-1], values[1:], id_=f"e{number}", t_started=t_started, terminated=ends
    )


def stored(buffer: EpisodeReplayBuffer) -> tuple[Any, ...]:
    """Return the visible contents of a buffer, without the order of episodes and random ids."""
    episodes = sorted(
        (e.t_started, e.get_observations().tolist(), e.get_actions().tolist(), e.is_terminated, e.is_truncated)
        for e in buffer.iter_episodes()
    )
    if not len(buffer):
        return buffer.num_added, episodes
    drawn = buffer.at(np.arange(buffer.flush_ring().tail, buffer.flush_ring().head), n_step=2)
    columns = [drawn[name].tolist() for name in ("obs", "new_obs", "actions", "rewards", "terminateds", "truncateds")]
    return buffer.num_added, episodes, columns


class Scene:
    """A filled buffer, a call that is interrupted, and later calls."""

    def __init__(self, kind: str) -> None:
        self.buffer = EpisodeReplayBuffer(CAPACITY, seed=0)
        self.kind, self.time = kind, 0
        self.recorder: ReplayRecorder | None = None
        self.buffer.add([episode(1, 5), episode(2, 4, ends=False)])
        if kind in ("NextStep", "SameStep", "Disabled", "reset"):
            self.recorder = self.buffer.recorder(NUM_ENVS, autoreset_mode="NextStep" if kind == "reset" else kind)
            self.recorder.reset(self.row())
            for _ in range(4):
                self.step()
        elif kind != "first":
            self.buffer.add([episode(number, 4) for number in range(3, 7)])
        else:
            self.buffer.clear()

    def row(self) -> np.ndarray:
        return 100.0 * np.arange(NUM_ENVS) + self.time

    def step(self) -> None:
        """Make a vector step. In every third one an environment's episode ends."""
        assert self.recorder is not None
        ended = np.arange(NUM_ENVS) == self.time % 7
        mode, self.time = self.recorder.autoreset_mode.value, self.time + 1
        row, infos = self.row(), {}
        if mode == "SameStep" and ended.any():
            infos = {"final_obs": row + 0.5, "_final_obs": ended}
        self.recorder.step(row, row - 1, row, ended, np.zeros(NUM_ENVS, bool), infos)
        if mode == "Disabled" and ended.any():
            self.recorder.reset(row + 0.25, reset_mask=ended)

    def call(self) -> None:
        if self.kind == "episodes":
            self.buffer.add([episode(2, 3, 4), episode(7, 2), episode(8, 4)])
        elif self.kind == "pack":
            self.buffer.add(EpisodePack.from_episodes([episode(2, 3, 4), episode(7, 2), episode(8, 6, ends=False)]))
        elif self.kind == "first":
            self.buffer.add([episode(2, 3, 4)])
        elif self.kind == "reset":
            self.time += 50
            assert self.recorder is not None
            self.recorder.reset(self.row())
        else:
            self.step()
            len(self.buffer)  # lays them down

    def go_on(self) -> None:
        if self.recorder is None:
            self.buffer.add([episode(number, 3) for number in range(20, 24)])
        else:
            for _ in range(5):
                self.step()


KINDS = ["episodes", "pack", "first", "NextStep", "SameStep", "reset"]


@pytest.mark.parametrize("num", [45, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_add_or_step_is_whole_or_absent(kind: str, error: type[BaseException], num: int) -> None:
    Scene(kind).call()  # what is remembered between calls is, from here on
    whole = Scene(kind)
    before = stored(whole.buffer)
    whole.call()
    after = stored(whole.buffer)
    whole.go_on()
    later = stored(whole.buffer)
    counting = Breaking(error, -1)
    counting.run(Scene(kind).call)
    rng, outcomes = np.random.default_rng(num - 45), []
    for at in rng.integers(1, counting.num_seen + 1, num).tolist():
        later_breaks = rng.integers(1, 200, int(rng.integers(0, 3))).tolist()
        scene = Scene(kind)
        time = scene.time
        assert Breaking(error, at, *later_breaks).run(scene.call)
        contents = stored(scene.buffer)
        assert contents in (before, after), (at, later_breaks)
        outcomes.append(contents == after)
        if kind == "reset" or not outcomes[-1]:  # a reset adds no step: nobody sees whether it came through
            scene.time = time
            scene.call()
        scene.go_on()
        assert stored(scene.buffer) == later, (at, later_breaks)
    assert before == after or len(set(outcomes)) == 2


@pytest.fixture
def without_collections() -> Iterator[None]:
    """Disable garbage collection, since Python drops an interrupt during `gc.callbacks`."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collections")
def test_buffer_stays_usable_after_300_signals() -> None:
    rng, num_broken, time = np.random.default_rng(1), 0, 0
    waiting = False  # for the interrupt
    buffer = EpisodeReplayBuffer(200, seed=0)
    recorder = buffer.recorder(NUM_ENVS, autoreset_mode="NextStep")
    number, none = 0, np.zeros(NUM_ENVS, bool)

    def interrupt(*_: Any) -> None:
        nonlocal waiting
        waiting = False
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        while num_broken < 300:
            try:
                waiting = True
                signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(2e-5, 2e-3)))
                recorder.reset(np.full(NUM_ENVS, float(time)))
                while waiting:
                    for _ in range(int(rng.integers(1, 9))):
                        row = np.full(NUM_ENVS, time + 1.0)
                        recorder.step(row, row - 1, row, none, none)
                        time += 1
                    number += 1
                    buffer.add([episode(1000 + number, int(rng.integers(1, 9)))])
                    buffer.sample(8)
                    recorder.reset(np.full(NUM_ENVS, float(time)))
            except KeyboardInterrupt:
                num_broken += 1
                time += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            if len(buffer):
                drawn = buffer.sample(200)
                assert np.array_equal(drawn.obs, drawn.actions)
                assert np.array_equal(drawn.obs + 1, drawn.new_obs)
                assert np.array_equal(drawn.new_obs, drawn.rewards)
                assert drawn.indices.min() >= buffer.num_added - len(buffer)
                assert sum(map(len, buffer.iter_episodes())) == len(buffer)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- several agents -------------------------------------------------------------------------------------------------


def game(number: int, length: int, t_started: int = 0) -> list[MultiAgentEpisode]:
    """Return the chunks, 5 env steps each, of an episode of three agents in two modules. Observations are unique."""
    episode = MultiAgentEpisode(f"g{number}", agent_to_module_mapping_fn=lambda agent, _: agent[0])
    row = {agent: 1000.0 * number + 100 * k for k, agent in enumerate(("a0", "a1", "b0"))}
    episode.add_env_reset(observations=row)
    chunks = []
    for t in range(length):
        acting = [agent for k, agent in enumerate(row) if (t + k) % 3]
        actions = {agent: row[agent] + t for agent in acting}
        observations = {agent: value + t + 1 for agent, value in row.items()}
        episode.add_env_step(observations, {**dict.fromkeys(row, -1.0), **actions}, dict.fromkeys(row, float(t)))
        if t % 5 == 4:
            chunks.append(episode)
            episode = episode.cut()
    return [*chunks, episode]


def visible_contents(buffer: MultiAgentEpisodeReplayBuffer) -> Any:
    """Return the visible contents of a multi-agent buffer, without the state of the generator."""
    state = buffer.get_state()
    rows = {agent: numbers.tolist() for agent, numbers in sorted(state["env_steps"]["numbers"].items())}
    modules = {module_id: stored(module_buffer) for module_id, module_buffer in sorted(buffer.modules.items())}
    return buffer.num_added, len(buffer), rows, modules, state["seats"], state["env_steps"]["chunks"]


def multi_agent_buffer(kind: str) -> MultiAgentEpisodeReplayBuffer:
    buffer = (
        MultiAgentPrioritizedEpisodeReplayBuffer(40) if kind == "prioritized" else MultiAgentEpisodeReplayBuffer(40)
    )
    if kind != "first":
        buffer.add([*game(1, 17), *game(2, 12)])
    return buffer


GAMES: dict[str, Callable[[MultiAgentEpisodeReplayBuffer], None]] = {
    "first": lambda buffer: buffer.add(game(3, 12)),
    "full": lambda buffer: buffer.add([*game(3, 12), *game(4, 9)]),
    "prioritized": lambda buffer: buffer.add([*game(3, 12), *game(4, 9)]),
}


@pytest.mark.parametrize("kind", GAMES)
def test_interrupted_multi_agent_add_is_whole_or_absent(kind: str) -> None:
    call, whole = GAMES[kind], multi_agent_buffer(kind)
    before = visible_contents(whole)
    call(whole)
    after = visible_contents(whole)
    whole.add(game(9, 14))
    later = visible_contents(whole)
    counting, buffer = Breaking(KeyboardInterrupt, -1), multi_agent_buffer(kind)
    counting.run(lambda: call(buffer))
    rng, outcomes = np.random.default_rng(0), []
    for at in rng.integers(1, counting.num_seen + 1, 14).tolist():
        later_breaks = rng.integers(1, 200, int(rng.integers(0, 3))).tolist()
        buffer = multi_agent_buffer(kind)
        assert Breaking(KeyboardInterrupt, at, *later_breaks).run(lambda: call(buffer))  # noqa: B023
        contents = visible_contents(buffer)
        assert contents in (before, after), (at, later_breaks)
        outcomes.append(contents == after)
        if not outcomes[-1]:
            call(buffer)
        buffer.add(game(9, 14))
        assert visible_contents(buffer) == later, (at, later_breaks)
    assert len(set(outcomes)) == 2
