"""Environments that fail at a given step in a given way, and the runners in which they do."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner

LENGTH = 5
SPACE = gym.spaces.Box(-1e9, 1e9, (2,), np.float32)


def raises(note: Path) -> None:
    raise ZeroDivisionError("motor on fire")


def raises_a_class_of_its_own(note: Path) -> None:
    class Unpicklable(Exception):
        pass

    raise Unpicklable("motor on fire")


def dies(note: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exits(note: Path) -> None:
    sys.exit(3)


def crashes(note: Path) -> None:
    os._exit(4)


def hangs(note: Path) -> None:
    """Wait for ever, after the clock of this process was told."""
    with note.open("a") as file:
        file.write(f"{os.getpid()}\n")
    signal.pause()


def stops(note: Path) -> None:
    with note.open("a") as file:
        file.write(f"{os.getpid()}\n")
    os.kill(os.getpid(), signal.SIGSTOP)


def returns_rubbish(note: Path) -> Any:
    return None


FAULTS: dict[str, Callable[[Path], Any]] = {
    fault.__name__: fault
    for fault in (raises, raises_a_class_of_its_own, dies, exits, crashes, hangs, stops, returns_rubbish)
}
IN_PROCESS = ("raises", "raises_a_class_of_its_own", "returns_rubbish")  # the others would end or stop the tests


class Faulty(gym.Env):
    """Environment with episodes of `LENGTH` steps, that fails once if it was seeded with 1.

    An observation is (number of the episode and of its environment, step).

    Args:
        fault: how it fails.
        at: step at which it fails in its second episode; 0 is the reset.
        note: file to which it adds the number of its process when it begins to hang.
        always: fail in each first episode instead, whatever the seed.
    """

    observation_space, action_space = SPACE, gym.spaces.Discrete(2)

    def __init__(self, fault: str, at: int, note: Path, always: bool = False) -> None:
        self.fault, self.at, self.note, self.always = FAULTS[fault], at, note, always
        self.episode, self.first_seed = 0, None

    def _may_fail(self) -> Any:
        """Return what is returned by a step that does not fail, or fail."""
        is_place = self.always or (self.episode == 2 and self.first_seed == 1)
        return self.fault(self.note) if is_place and self.t == self.at else ()

    def _seen(self) -> np.ndarray:
        return np.array([self.number, self.t], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.first_seed = seed if self.first_seed is None else self.first_seed
        self.episode += 1
        self.t, self.number = 0, int(self.np_random.integers(10**6))
        return None if self._may_fail() is None else (self._seen(), {})

    def step(self, action: Any) -> Any:
        self.t += 1
        row = (self._seen(), float(self.t), self.t == LENGTH, False, {})
        return None if self._may_fail() is None else row


class FaultyTogether:
    """The same for two agents, with dicts by agent."""

    possible_agents = ["a", "b"]
    observation_spaces = dict.fromkeys("ab", SPACE)
    action_spaces = {agent: gym.spaces.Discrete(2) for agent in "ab"}

    def __init__(self, *args: Any) -> None:
        self.env = Faulty(*args)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        result = self.env.reset(seed=seed)
        return result and (dict.fromkeys("ab", result[0]), {})

    def step(self, actions: Any) -> Any:
        row = self.env.step(0)
        return row and tuple(dict.fromkeys("ab", part) for part in row)


def single(vectorization: str) -> Callable[..., SingleAgentEnvRunner]:
    return lambda make, **options: SingleAgentEnvRunner(
        lambda: make(Faulty), num_envs=2, vectorization=vectorization, seed=0, **options
    )


def several(vectorization: str) -> Callable[..., MultiAgentEnvRunner]:
    return lambda make, **options: MultiAgentEnvRunner(
        lambda: make(FaultyTogether), num_envs=2, vectorization=vectorization, seed=0, **options
    )


RUNNERS: dict[str, Callable[..., Any]] = {
    "sync": single("sync"),
    "async": single("async"),
    "several agents": several("sync"),
    "several agents, async": several("async"),
}


def of_one_agent(sampled: Any) -> list[Any]:
    """Return the sampled episodes of one agent."""
    return [getattr(episode, "agent_episodes", {"a": episode})["a"] for episode in sampled]
