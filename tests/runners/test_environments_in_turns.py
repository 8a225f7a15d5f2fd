"""One environment object in several hands: whoever uses it after another begins a new episode, or gets an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo.utils import parallel_to_aec
from pettingzoo.utils.env import ParallelEnv

from episode_learners import MLPPolicy
from episode_runners import Hook, MultiAgentEnvRunner, SingleAgentEnvRunner, evaluate
from episodes import MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import EpisodeStateError
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, RecordEpisodes
from episodes.testing import check_vector_env

LENGTH = 7  # steps of an episode


class Count(gym.Env):
    """Environment whose observations are the number of resets so far, and the number of steps since the last one."""

    observation_space, action_space = spaces.Box(0, 1e6, (2,)), spaces.Discrete(2)
    resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.resets, self.t = self.resets + 1, 0
        return self._row(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._row(), float(self.t), False, self.t == LENGTH, {}

    def _row(self) -> np.ndarray:
        return np.array([self.resets, self.t], np.float32)


class OneAgent(ParallelEnv):
    """`Count` as an environment of one agent, "a"."""

    metadata: dict[str, Any] = {"name": "one", "is_parallelizable": True}
    possible_agents = ["a"]
    render_mode = None

    def __init__(self, env: Count) -> None:
        self.env = env
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space:
        return self.env.observation_space

    def action_space(self, agent: str) -> spaces.Space:
        return self.env.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        observation, infos = self.env.reset(seed=seed)
        self.agents = ["a"]
        return {"a": observation}, {"a": infos}

    def step(self, actions: dict[str, Any]) -> Any:
        row = self.env.step(actions["a"])
        self.agents = [] if row[3] else ["a"]
        return tuple({"a": part} for part in row)


POLICY = MLPPolicy(Count.observation_space, Count.action_space)


class Sampling:
    """User that samples 3 steps in each turn."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.recorded: list[SingleAgentEpisode] = []

    def turn(self) -> None:
        for episode in self.runner.sample(num_timesteps=3, random_actions=True):
            self.recorded.append(episode.agent_episodes["a"] if isinstance(episode, MultiAgentEpisode) else episode)

    def episodes(self) -> list[SingleAgentEpisode]:
        return self.recorded


class SamplingInto(Sampling):
    """User that samples 3 steps into a buffer in each turn."""

    buffer: EpisodeReplayBuffer | None = None

    def turn(self) -> None:
        self.buffer = self.buffer or EpisodeReplayBuffer(1000)
        self.runner.sample_into(self.buffer, num_timesteps=3, random_actions=True)

    def episodes(self) -> list[SingleAgentEpisode]:
        return list(self.buffer.iter_episodes()) if self.buffer else []


class Recording:
    """User that steps a recording wrapper by hand, 3 steps in each turn. It resets after endings and errors."""

    def __init__(self, env: Any, path: Path) -> None:
        self.env, self.path = RecordEpisodes(env, path), path
        self.ended = True

    def turn(self) -> None:
        for _ in range(3):
            if self.ended:
                self.env.reset()
            try:
                *_, truncated, _ = self.env.step(self.env.action_space.sample())
                self.ended = bool(np.all(truncated))
            except EpisodeStateError:
                self.ended = True

    def episodes(self) -> list[SingleAgentEpisode]:
        self.env.close()
        return list(EpisodeDataset(self.path))


class Passing:
    """User that leaves nothing behind."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.turn = call

    def episodes(self) -> list[SingleAgentEpisode]:
        return []


class SamplingRecorded(Sampling):
    """User that samples from a recorded environment."""

    def __init__(self, env: Any, path: Path) -> None:
        self.env, self.path = RecordEpisodes(env, path), path
        super().__init__(SingleAgentEnvRunner(self.env))

    def episodes(self) -> list[SingleAgentEpisode]:
        self.env.close()
        return [*self.recorded, *EpisodeDataset(self.path)]


# Everything in this library that steps an environment object of the user, by hand or in a call.
def examined(env: Any, path: Path) -> Passing:
    from episodes.inspect import examine

    return Passing(lambda: examine(env, num_steps=20))


USERS: dict[str, Callable[[Any, Path], Any]] = {
    "runner": lambda env, path: Sampling(SingleAgentEnvRunner(env)),
    "runner of a wrapper": lambda env, path: Sampling(SingleAgentEnvRunner(gym.wrappers.TimeLimit(env, 5))),
    "runner of a callable": lambda env, path: Sampling(SingleAgentEnvRunner(lambda: env)),
    "runner with restarts": lambda env, path: Sampling(SingleAgentEnvRunner(lambda: env, restart_failed=True)),
    "runner of vector envs": lambda env, path: Sampling(SingleAgentEnvRunner(SyncVectorEnv([lambda: env, Count]))),
    "runner that records": SamplingRecorded,
    "replay": lambda env, path: SamplingInto(SingleAgentEnvRunner(env)),
    "agents": lambda env, path: Sampling(MultiAgentEnvRunner(OneAgent(env))),
    "agents in turn": lambda env, path: Sampling(MultiAgentEnvRunner(parallel_to_aec(OneAgent(env)))),
    "recorder": Recording,
    "vector recorder": lambda env, path: Recording(SyncVectorEnv([lambda: env]), path),
    "evaluate": lambda env, path: Passing(lambda: evaluate(env, POLICY, num_episodes=1)),
    "examine": examined,
    "check_vector_env": lambda env, path: Passing(
        lambda: check_vector_env(SyncVectorEnv([lambda: env]), num_steps=9, reproducible=False)
    ),
}


def check(users: Iterable[Any]) -> None:
    """Check that each recorded episode has observations of one episode of the environment, without a gap."""
    for user in users:
        newest: dict[Any, Any] = {}
        for episode in user.episodes():
            rows = episode.get_observations()
            resets, times = rows.T
            assert np.all(resets == resets[0])
            assert times.tolist() == list(range(int(times[0]), int(times[0]) + len(rows)))
            assert times[0] == episode.t_started
            assert episode.get_rewards().tolist() == times[1:].tolist()
            assert np.array_equal(newest.get(episode.id_, rows[0]), rows[0])
            newest[episode.id_] = rows[-1]


@pytest.mark.parametrize("second", USERS)
@pytest.mark.parametrize("first", USERS)
def test_two_users_of_one_environment(first: str, second: str, tmp_path: Path) -> None:
    env = Count()
    users = [USERS[name](env, tmp_path / str(i)) for i, name in enumerate((first, second))]
    for user in users * 2:
        user.turn()
    check(users)


@given(st.lists(st.sampled_from(list(USERS)), min_size=2, max_size=4), st.lists(st.integers(0, 3), max_size=12))
def test_programs_of_several_users(names: list[str], order: list[int]) -> None:
    with TemporaryDirectory() as path:
        env = Count()
        users = [USERS[name](env, Path(path, str(i))) for i, name in enumerate(names)]
        for i in order:
            users[i % len(users)].turn()
        check(users)


@pytest.mark.parametrize("wraps", [False, True], ids=["", "recorded"])
@pytest.mark.parametrize("user", [name for name in USERS if name not in ("evaluate", "examine", "check_vector_env")])
def test_nobody_begins_within_the_turn_of_another(user: str, wraps: bool, tmp_path: Path) -> None:
    """A hook that evaluates in the environment of its own runner gets an error, and changes nothing."""
    errors = []
    env = Count()
    outer = RecordEpisodes(env, tmp_path / "outer") if wraps else env

    class Using(Hook):
        def on_step(self, runner: Any) -> None:
            with pytest.raises(EpisodeStateError, match="this environment object is in use") as raised:
                inner.turn()
            errors.append(raised)

    inner = USERS[user](env, tmp_path / "inner")
    runner = Sampling(SingleAgentEnvRunner(outer, hooks=[Using()]))
    runner.turn()
    runner.turn()
    assert len(errors) == 6
    check([runner])
    outer.close()


def test_an_error_names_what_to_do(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    recorder = RecordEpisodes(env, tmp_path)
    recorder.reset(seed=0)
    evaluate(env, MLPPolicy(env.observation_space, env.action_space), num_episodes=1)
    with pytest.raises(EpisodeStateError, match=r"reset or stepped by a runner.*call reset\(\)"):
        recorder.step(0)
    recorder.reset()
    recorder.step(0)
    recorder.close()
    assert len(EpisodeDataset(tmp_path)) == 1


def test_environments_of_others_do_not_matter() -> None:
    """A runner continues its episodes if only other objects of the same class are used."""
    runner, other = Sampling(SingleAgentEnvRunner(Count())), Sampling(SingleAgentEnvRunner(Count()))
    for user in [runner, other] * 3:
        user.turn()
    assert len({episode.id_ for episode in runner.recorded}) == 2  # 9 of the 7 and more steps
    check([runner, other])
