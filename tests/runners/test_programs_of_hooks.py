"""Random programs of hooks that read, write and fail: their data arrive, and no recorded step is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from episode_runners import Hook, MultiAgentEnvRunner, SingleAgentEnvRunner
from episodes.errors import InvalidArgument
from episodes.multi_agent import MultiAgentEpisode
from episodes.replay import EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer
from tests.agents_together import Together

Place = tuple[int, int, int, int]  # environment, its episode, the time before a step, agent
Log = dict[Place, int]  # the action of each step that an environment made

PLACE = spaces.Box(-1e6, 1e6, (3,), np.float32)
ACTIONS = spaces.Discrete(5)


class Logged(gym.Env):
    """Environment that observes its number, episode and time, and logs its steps.

    Args:
        length: function from the number of the episode to its number of steps.
    """

    observation_space, action_space = PLACE, ACTIONS

    def __init__(self, number: int, log: Log, length: Callable[[int], int], agent: int = 0) -> None:
        self.number, self.log, self.length, self.agent, self.episode, self.t = number, log, length, agent, 0, 0

    def _seen(self) -> np.ndarray:
        return np.array([self.number, self.episode, self.t], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.t = self.episode + 1, 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.log[self.number, self.episode, self.t, self.agent] = int(action)
        self.t += 1
        over = self.t == self.length(self.episode)
        return self._seen(), float(self.t), over and self.episode % 2 == 0, over and self.episode % 2 == 1, {}


def logged(number: int, log: Log) -> Logged:
    """Return an environment with episodes of 1 to 6 steps."""
    return Logged(number, log, lambda episode: 1 + (episode * 5 + number) % 6)


def logged_pair(number: int, log: Log) -> Together:
    """Return an environment of two agents, of which the second ends after two steps, and the first after 3 to 6."""
    return Together(
        {0: Logged(number, log, lambda episode: 3 + (episode + number) % 4), 1: Logged(number, log, lambda _: 2, 1)}
    )


class Broken(Exception):
    """Error raised by hooks of a program."""


def end_of(chunk: Any) -> int:
    """Return the number of steps of the episode until the end of the chunk."""
    return chunk.env_t if isinstance(chunk, MultiAgentEpisode) else chunk.t


class Program(Hook):
    """Hook that reads, writes to custom data, writes invalid data, or fails, as its program says.

    Attributes:
        account: by id, what the custom data of each episode should be now.
        as_sampled: by id and end, what it was when a chunk was sampled first.
        marks: by id and start, what was written to chunks of several agents when they were sampled.
        started, ended: how often that was told of each id.
    """

    def __init__(self, rng: np.random.Generator, trouble: float, refused: bool) -> None:
        self.rng, self.trouble, self.refused = rng, trouble, refused
        self.account: dict[str, dict[str, Any]] = {}
        self.kept: dict[str, dict[str, Any]] = {}
        self.as_sampled: dict[tuple[str, int], dict[str, Any]] = {}
        self.marks: dict[tuple[str, int], int] = {}
        self.started: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.num_steps = self.num_written = 0

    def on_episode_start(self, runner: Any, env: int, episode: Any) -> None:
        self.started[episode.id_] += 1
        assert len(episode) == 0
        self._acts_on(episode)

    def on_step(self, runner: Any) -> None:
        self.num_steps += 1
        for episode in runner.episodes:
            for agent_episode in getattr(episode, "agent_episodes", {}).values():
                agent_episode.custom_data["t"] = agent_episode.t
        for episode in runner.episodes:
            if self.rng.random() < 0.6:
                self._acts_on(episode)

    def on_episode_end(self, runner: Any, env: int, episode: Any) -> None:
        self.ended[episode.id_] += 1
        assert episode.is_done
        self._acts_on(episode)

    def on_sample_end(self, runner: Any, sampled: Any) -> None:
        if isinstance(sampled, Sequence):  # no statistics
            for chunk in sampled:
                self.as_sampled.setdefault((chunk.id_, end_of(chunk)), deepcopy(self.account.get(chunk.id_, {})))
        if isinstance(sampled, list):  # of chunks themselves
            for chunk in sampled:
                self.num_written += 1
                chunk.custom_data["sampled"] = self.marks[chunk.id_, chunk.env_t_started] = self.num_written
        self._may_fail()

    def _acts_on(self, episode: Any) -> None:
        """Compare the custom data with the expected data, and write the same value to both."""
        messages = self.account.setdefault(episode.id_, {})
        kept = episode.custom_data
        if isinstance(episode, MultiAgentEpisode):  # whose dict a hook may keep
            kept = self.kept.setdefault(episode.id_, kept)
        assert episode.custom_data == kept == messages
        self.num_written += 1
        kind, number = self.rng.integers(5), self.num_written
        for data in (kept, messages):
            if kind == 0:
                data["newest"] = number
            elif kind == 1:
                data[f"own {number}"] = {"number": number, "text": str(number)}
            elif kind == 2:
                data.setdefault("list", []).append(number)
            elif kind == 3 and data:
                data.pop(next(iter(data)))
        self._may_fail()
        if self.refused and self.rng.random() < self.trouble and len(episode):
            episode.set_rewards(new_data=-1.0, at_indices=-1)

    def _may_fail(self) -> None:
        if self.rng.random() < self.trouble:
            raise KeyboardInterrupt if self.num_written % 3 == 0 else Broken

    def check_data(self, chunk: Any, begins: int) -> None:
        """Check that sampled episodes have the custom data that was written before."""
        now = self.account.get(chunk.id_, {})
        expected = dict(self.as_sampled.get((chunk.id_, end_of(chunk)), now))
        if (chunk.id_, begins) in self.marks:
            expected["sampled"] = self.marks[chunk.id_, begins]
        assert chunk.custom_data == expected


def places(agent_episode: Any, agent: int) -> list[tuple[Place, int]]:
    """Return the steps of an episode with their actions, and check that no step is missing."""
    observations, actions = agent_episode.get_observations().astype(int).tolist(), agent_episode.get_actions().tolist()
    assert [t for *_, t in observations] == list(
        range(agent_episode.t_started, agent_episode.t_started + len(agent_episode) + 1)
    )
    assert len({(number, episode) for number, episode, _ in observations}) == 1
    assert agent_episode.get_rewards().tolist() == [float(t) for *_, t in observations[1:]]
    return [((*place, agent), action) for place, action in zip(map(tuple, observations[:-1]), actions, strict=True)]


def rounds(rng: np.random.Generator, sample: Callable[[int], None], rescue: Callable[[], Any]) -> bool:
    """Call `sample` several times, and `rescue` after some failures. Return True if a call failed."""
    failed = False
    for _ in range(8):
        try:
            sample(int(rng.integers(1, 16)))
        except (Broken, KeyboardInterrupt, InvalidArgument):  # the latter: what was written would have been lost
            failed = True
            if rng.random() < 0.5:
                rescue()
    return failed


def program(seed: int, refused: bool) -> tuple[np.random.Generator, Program, dict[str, Any]]:
    """Draw a program of hook actions, of which a third has no failures, and options of its runner."""
    hook = Program(np.random.default_rng(seed + 1000), (0.0, 0.01, 0.04)[seed % 3], refused)
    return np.random.default_rng(seed), hook, {"hooks": [hook], "returns_interrupted": bool(seed % 2), "seed": seed}


class Received:
    """Function that checks and keeps sampled chunks."""

    def __init__(self, hook: Program, log: Log) -> None:
        self.hook, self.log = hook, log
        self.steps: list[tuple[Place, int]] = []
        self.chunks: list[tuple[Any, dict[str, Any]]] = []  # and what custom data they came with

    def __call__(self, sampled: Any) -> None:
        for chunk in sampled:
            several = isinstance(chunk, MultiAgentEpisode)
            for agent, agent_episode in chunk.agent_episodes.items() if several else [(0, chunk)]:
                self.steps.extend(places(agent_episode, agent))
                assert not several or self.hook.trouble or agent_episode.custom_data == {"t": agent_episode.t}
            self.hook.check_data(chunk, chunk.env_t_started if several else chunk.t_started)
            self.chunks.append((chunk, deepcopy(chunk.custom_data)))

    def check(self, failed: bool) -> None:
        """Check that all steps came once, and that each start and end was told once, or at most once after failures."""
        assert len(self.steps) == len(self.log)
        assert dict(self.steps) == self.log
        assert all(chunk.custom_data == as_it_came for chunk, as_it_came in self.chunks)
        done = {chunk.id_ for chunk, _ in self.chunks if chunk.is_done}
        hook = self.hook
        assert all(number == 1 for number in [*hook.started.values(), *hook.ended.values()])
        assert set(hook.ended) <= done
        assert failed or (set(hook.ended) == done and len(self.log) > 8)
        assert hook.num_written > 8


@pytest.mark.parametrize("seed", range(9))
@pytest.mark.parametrize("into_buffer", [False, True])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_hook_programs_lose_no_step(mode: AutoresetMode, into_buffer: bool, seed: int) -> None:
    log: Log = {}
    rng, hook, options = program(seed, refused=True)
    envs = SyncVectorEnv([lambda i=i: logged(i, log) for i in range(1 + seed % 4)], autoreset_mode=mode)
    runner, buffer, receive = SingleAgentEnvRunner(envs, **options), EpisodeReplayBuffer(10_000), Received(hook, log)

    def sample(num: int) -> None:
        if into_buffer:
            runner.sample_into(buffer, num_timesteps=num, random_actions=True)
        else:
            pack = runner.sample(num_timesteps=num, random_actions=True)
            assert pack.num_steps < num + envs.num_envs or runner.returns_interrupted
            receive(pack)

    failed = rounds(rng, sample, lambda: into_buffer or receive(runner.take()))
    receive(buffer.iter_episodes() if into_buffer else runner.take())
    receive.check(failed)
    assert failed or hook.num_steps >= len(log) / envs.num_envs


@pytest.mark.parametrize("seed", range(9))
@pytest.mark.parametrize("into_buffer", [False, True])
def test_multi_agent_hook_programs_lose_no_step(into_buffer: bool, seed: int) -> None:
    log: Log = {}
    numbers = iter(range(99))
    rng, hook, options = program(seed, refused=False)
    runner = MultiAgentEnvRunner(lambda: logged_pair(next(numbers), log), num_envs=1 + seed % 3, **options)
    buffer, receive = MultiAgentEpisodeReplayBuffer(10_000), Received(hook, log)

    def keep(sampled: Any) -> None:
        receive(sampled)
        if into_buffer:
            buffer.add(sampled)

    def sample(num: int) -> None:
        chunks = runner.sample(num_timesteps=num, random_actions=True)
        assert sum(map(len, chunks)) < num + runner.num_envs or runner.returns_interrupted
        keep(chunks)

    failed = rounds(rng, sample, lambda: keep(runner.take()))
    keep(runner.take())
    receive.check(failed)
    assert not into_buffer or sum(map(len, buffer.modules.values())) == len(log)
