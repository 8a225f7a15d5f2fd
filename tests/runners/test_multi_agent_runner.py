"""MultiAgentEnvRunner with real PettingZoo environments, against PettingZoo's loops, and with dicts."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
import torch
from mpe2 import simple_spread_v3

from connectors import learner_pipeline, multi_agent_env_to_module
from connectors.env_to_module import ForEachAgent, MeanStdFilter
from episode_runners import MultiAgentEnvRunner
from episodes.errors import EpisodeStateError, InvalidArgument, UnknownKey, WrongType
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from tests.reference import numbered_agents
from tests.reference_multi_agent import plain

ZOMBIES = {"id": "butterfly/knights_archers_zombies_v11", "max_cycles": 150, "spawn_delay": 4}

few_zombies = partial(pettingzoo.make, "parallel", **ZOMBIES)
PARALLEL = {"simple_spread": simple_spread_v3.parallel_env, "knights_archers_zombies": few_zombies}
TURN_BASED = {
    "connect_four": partial(pettingzoo.make, "aec", "classic/connect_four_v3"),
    "leduc_holdem": partial(pettingzoo.make, "aec", "classic/leduc_holdem_v4"),
    "knights_archers_zombies": partial(pettingzoo.make, "aec", **ZOMBIES),
}


def whole_episode(make: Any, seed: int, chunk_size: int | None = None) -> MultiAgentEpisode:
    """Return the first episode with random actions, sampled at once or in chunks that are joined."""
    with MultiAgentEnvRunner(make, seed=seed, reward_dtype=None) as runner:  # as the loops have them
        if chunk_size is None:
            return runner.sample(num_episodes=1, random_actions=True)[0]
        episode = runner.sample(num_timesteps=chunk_size, random_actions=True)[0]
        while not episode.is_done:
            episode.concat_episode(runner.sample(num_timesteps=chunk_size, random_actions=True)[0])
    return episode


@pytest.mark.parametrize("make", PARALLEL.values(), ids=PARALLEL)
@pytest.mark.parametrize("chunk_size", [None, 7])
def test_parallel_environment_episode_equals_plain_loop(make, chunk_size):
    for seed in range(2):
        episode = whole_episode(make, seed, chunk_size)
        env = make()
        log = [env.reset(seed=seed)[0]]
        rewards, endings = [], {}
        for actions in episode.get_actions(return_list=True):
            observed, rewarded, terminations, truncations, _ = env.step(actions)
            log.append(observed)
            rewards.append(rewarded)
            endings |= {a: (terminations[a], truncations[a]) for a in observed if terminations[a] or truncations[a]}
        assert not env.agents
        assert plain(episode.get_observations(return_list=True)) == plain(log)
        assert plain(episode.get_rewards(return_list=True)) == plain(rewards)
        assert {a: (e.is_terminated, e.is_truncated) for a, e in episode.agent_episodes.items()} == endings
        assert episode.is_terminated == all(terminated for terminated, _ in endings.values())
        assert episode.is_truncated != episode.is_terminated
        lengths = {len(agent_episode) for agent_episode in episode.agent_episodes.values()}
        assert len(lengths) > 1 or make is not few_zombies  # there some agents die before the others


def test_equal_seeds_give_equal_episodes_and_other_ids():
    first, same, other_episode = (whole_episode(PARALLEL["simple_spread"], seed) for seed in (1, 1, 2))
    assert numbered_agents([first]) == numbered_agents([same])
    assert len({first.id_, same.id_, other_episode.id_}) == 3
    ids = [e.id_ for episode in (first, same) for e in episode.agent_episodes.values()]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("make", TURN_BASED.values(), ids=TURN_BASED)
@pytest.mark.parametrize("chunk_size", [None, 5])
def test_turn_based_environment_episode_equals_plain_loop(make, chunk_size):
    for seed in range(3):
        episode = whole_episode(make, seed, chunk_size)
        actions = iter(episode.get_actions(return_list=True))
        env = make()
        env.reset(seed=seed)
        turns = defaultdict(list)
        for agent in env.agent_iter():
            observation, reward, terminated, truncated, _ = env.last()
            turns[agent].append((plain(observation), float(reward), terminated, truncated))
            if terminated or truncated:
                env.step(None)
                continue
            (acting,) = step = next(actions)
            assert acting == agent
            env.step(step[agent])
        assert next(actions, None) is None
        assert episode.agent_ids == set(turns)
        for agent, agent_episode in episode.agent_episodes.items():
            observations, rewards, terminations, truncations = zip(*turns[agent], strict=True)
            assert rows(agent_episode) == list(observations)
            assert agent_episode.get_rewards().tolist() == list(rewards[1:])
            assert (agent_episode.is_terminated, agent_episode.is_truncated) == (terminations[-1], truncations[-1])
        assert episode.get_return() == sum(reward for agent_turns in turns.values() for _, reward, _, _ in agent_turns)


def rows(agent_episode: Any) -> list[Any]:
    """Return an agent's observations as a list of plain values."""
    return [plain(agent_episode.get_observations(i)) for i in range(len(agent_episode) + 1)]


class Countdown:
    """Environment in which agent i ends after `lives[i]` steps. Each step has reward 1."""

    def __init__(self, lives: tuple[int, ...] = (2, 5), time_limit: int | None = None) -> None:
        self.lives = {f"p{i}": life for i, life in enumerate(lives)}
        self.time_limit = time_limit
        self.observation_spaces = {a: gym.spaces.Box(0, 99, (2,), np.float32) for a in self.lives}
        self.action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._observed(self.lives), {}

    def _observed(self, agents):
        return {a: np.array([self.t, int(a[1:])], np.float32) for a in agents}

    def step(self, actions):
        self.t += 1
        assert set(actions) == {a for a, life in self.lives.items() if life >= self.t}
        ended = {a: self.lives[a] == self.t for a in actions}
        over = all(life <= self.t for life in self.lives.values())
        late = self.t == self.time_limit
        flags = ended | {"__all__": over}
        return self._observed(actions), dict.fromkeys(actions, 1.0), flags, {"__all__": late and not over}, {}


class Uniform:
    """Policy that records the rows of its calls."""

    def __init__(self, num_actions: int = 3) -> None:
        self.num_actions = num_actions
        self.asked: list[Any] = []

    def __call__(self, batch, explore=None):
        rows = len(batch["obs"])
        self.asked.append(batch["obs"].numpy().copy())
        values = batch["obs"][:, 0].clone()
        return {"action_dist_inputs": torch.zeros(rows, self.num_actions), "vf_preds": values}


class Counting(Uniform):
    """Recurrent policy whose state counts the steps of its agent."""

    def get_initial_state(self):
        return {"count": np.zeros(1, np.float32)}

    def __call__(self, batch, explore=None):
        rows = len(batch["obs"])
        count = batch["state_in"]["count"] + 1
        inputs = torch.zeros(rows, 1, self.num_actions)
        return {"action_dist_inputs": inputs, "state_out": {"count": count}, "seen": count[:, None, 0]}


class CountingFromSeven(Counting):
    """Recurrent policy whose initial state is not zero."""

    def get_initial_state(self):
        return {"count": np.full(1, 7, np.float32)}


def test_random_steps_may_alternate_with_recurrent_policy():
    policy = CountingFromSeven()
    runner = MultiAgentEnvRunner(lambda: Countdown((30, 40)), policy, num_envs=2, seed=0)
    runner.sample(num_timesteps=4, random_actions=True)
    policies_chunks = runner.sample(num_timesteps=4)
    for chunk in policies_chunks:
        for agent_episode in chunk.agent_episodes.values():
            before = agent_episode.get_extra_model_outputs("state_out", -1, neg_index_as_lookback=True)
            assert (agent_episode.lookback, before["count"].item()) == (1, 7)
            assert agent_episode.get_extra_model_outputs("seen").ravel().tolist() == [8, 9]
    batch = EpisodePack.from_episodes(
        [agent_episode for chunk in policies_chunks for agent_episode in chunk.agent_episodes.values()]
    )
    begun = learner_pipeline(gym.spaces.Box(0, 99, (2,)), gym.spaces.Discrete(3), policy=policy)(
        rl_module=policy, episodes=batch
    )
    assert begun["state_in"]["count"].ravel().tolist() == [7] * 4
    for chunk in runner.sample(num_timesteps=4, random_actions=True):
        assert all(
            not agent_episode.extra_model_outputs and agent_episode.lookback
            for agent_episode in chunk.agent_episodes.values()
        )
    assert runner.sample(num_timesteps=4)[0].agent_episodes["p0"].get_extra_model_outputs("seen")[0].item() == 8


def test_policies_are_called_once_for_acting_agents():
    policy = Uniform()
    runner = MultiAgentEnvRunner(Countdown, policy, num_envs=3, seed=0)
    runner.sample(num_episodes=3)
    assert [len(rows) for rows in policy.asked] == [6, 6, 3, 3, 3]


def test_outputs_of_each_module_are_recorded():
    policies = {"even": Uniform(), "odd": Uniform()}
    mapping = lambda agent, episode: "odd" if int(agent[1:]) % 2 else "even"  # noqa: E731
    env = lambda: Countdown((4, 3, 2, 1))  # noqa: E731
    runner = MultiAgentEnvRunner(env, policies, num_envs=2, agent_to_module_mapping_fn=mapping, seed=0)
    episodes = runner.sample(num_episodes=2)
    assert {int(row[1]) for rows in policies["even"].asked for row in rows} == {0, 2}
    for episode in episodes:
        assert {a: episode.module_for(a) for a in episode.agent_ids} == {
            "p0": "even",
            "p1": "odd",
            "p2": "even",
            "p3": "odd",
        }
        for agent_episode in episode.agent_episodes.values():
            np.testing.assert_array_equal(
                agent_episode.get_extra_model_outputs("vf_preds"), agent_episode.get_observations()[:-1, 0]
            )
            assert agent_episode.get_extra_model_outputs("action_logp") == pytest.approx(
                np.full(len(agent_episode), -np.log(3)), abs=1e-5
            )
    assert runner.stats.module_steps == {"even": 12, "odd": 8}
    assert runner.stats.module_returns == {"even": [4, 2, 4, 2], "odd": [3, 1, 3, 1]}
    assert runner.stats.agent_returns == {"p0": [4, 4], "p1": [3, 3], "p2": [2, 2], "p3": [1, 1]}
    assert runner.metrics()["mean_return/agent/p1"] == 3


def test_time_limit_truncates_every_ongoing_agent():
    runner = MultiAgentEnvRunner(lambda: Countdown((2, 9, 9), time_limit=4), Uniform(), seed=0)
    (episode,) = runner.sample(num_episodes=1)
    assert episode.is_truncated
    assert not episode.is_terminated
    assert episode.get_truncateds() == {"p0": False, "p1": True, "p2": True, "__all__": True}
    assert episode.get_terminateds() == {"p0": True, "p1": False, "p2": False, "__all__": False}


def test_chunks_continue_and_statistics_are_of_whole_episodes():
    runner = MultiAgentEnvRunner(lambda: Countdown((3, 7)), Uniform(), num_envs=2, seed=0)
    chunks = runner.sample(num_timesteps=8)
    assert [len(chunk) for chunk in chunks] == [4, 4]
    assert runner.stats.num_episodes == 0
    later = runner.sample(num_timesteps=8)
    assert runner.stats.num_episodes == 2
    np.testing.assert_array_equal(runner.stats.returns, [10, 10])
    np.testing.assert_array_equal(runner.stats.lengths, [7, 7])
    for chunk in chunks:
        (follower,) = [later_chunk for later_chunk in later if later_chunk.id_ == chunk.id_]
        chunk.concat_episode(follower)
        assert chunk.get_return() == 10
        assert chunk.is_terminated
    assert runner.num_env_steps == 16
    episodes = runner.sample(num_episodes=5)
    assert len(episodes) == 5
    assert all(episode.is_done and episode.is_numpy for episode in episodes)


def test_recurrent_state_is_per_agent_and_survives_cuts():
    runner = MultiAgentEnvRunner(lambda: Countdown((9, 4)), Counting(), num_envs=2, seed=0)
    counts = defaultdict(list)
    for _ in range(9):
        for chunk in runner.sample(num_timesteps=2):
            for agent, agent_episode in chunk.agent_episodes.items():
                counts[chunk.id_, agent] += agent_episode.get_extra_model_outputs("seen").reshape(-1).tolist()
    assert sorted(counts.values()) == [[1, 2, 3, 4]] * 2 + [[1, 2, 3, 4, 5, 6, 7, 8, 9]] * 2


def test_chunk_lookback_includes_waiting_agents():
    class InTurns(Countdown):
        def step(self, actions):
            self.t += 1
            (acting,) = actions
            observed = self._observed(["p0" if acting == "p1" else "p1"])
            over = {"__all__": self.t == 12}
            return observed, {acting: 1.0}, over, {}, {}

        def reset(self, *, seed=None, options=None):
            super().reset()
            return self._observed(["p0"]), {}

    for size in (1, 2, 3, 5):
        runner = MultiAgentEnvRunner(InTurns, Counting(), seed=0)
        for _ in range(12 // size):
            (chunk,) = runner.sample(num_timesteps=size)[:1]
            for agent_episode in chunk.agent_episodes.values():
                if agent_episode.t_started and len(agent_episode):
                    before = agent_episode.get_extra_model_outputs("seen", -1, neg_index_as_lookback=True)
                    assert before == agent_episode.t_started


def test_module_filter_may_be_per_agent():
    spaces = ({"default_policy": gym.spaces.Box(0, 99, (2,), np.float32)}, {"default_policy": gym.spaces.Discrete(3)})
    pipeline = multi_agent_env_to_module(*spaces, pieces=lambda: [ForEachAgent(MeanStdFilter)])
    runner = MultiAgentEnvRunner(lambda: Countdown((9, 4)), Uniform(), env_to_module=pipeline, seed=0)
    (episode,) = runner.sample(num_episodes=1)
    filters = pipeline["default_policy"]["ForEachAgent"].rewriters
    assert set(filters) == {"p0", "p1"}
    for agent, filter_ in filters.items():
        times = np.arange(len(episode.agent_episodes[agent]) + 1)
        raw = np.stack([times, np.full_like(times, int(agent[1:]))], axis=1)
        alone = MeanStdFilter(spaces[0]["default_policy"], spaces[1]["default_policy"])
        expected = np.concatenate([alone.rewrite(row[None].astype(np.float32)) for row in raw])
        np.testing.assert_allclose(episode.get_observations(agent_ids=agent)[agent], expected, rtol=1e-6)
        assert plain(filter_.get_state()) == plain(alone.get_state())
    state = runner.get_state()
    other_runner = MultiAgentEnvRunner(
        Countdown,
        Uniform(),
        env_to_module=multi_agent_env_to_module(*spaces, pieces=lambda: [ForEachAgent(MeanStdFilter)]),
    )
    other_runner.set_state(state)
    assert plain(other_runner.get_state()["env_to_module"]) == plain(state["env_to_module"])


@pytest.mark.parametrize("random_actions", [False, True])
def test_state_from_before_the_first_sample_restores_the_seed(random_actions: bool) -> None:
    runners = [MultiAgentEnvRunner(Countdown, Uniform(), num_envs=2, seed=seed) for seed in (0, 5)]
    state = runners[0].get_state()
    chunks = []
    for runner in runners:
        runner.set_state(state)
        chunks.append(runner.sample(num_timesteps=30, random_actions=random_actions))
    assert numbered_agents(chunks[0]) == numbered_agents(chunks[1])


def test_modules_draw_different_actions_with_one_seed() -> None:
    policies = {"p": Uniform(5), "q": Uniform(5)}
    mapping: Any = lambda agent_id, episode: "p" if agent_id == "agent_0" else "q"  # noqa: E731
    make: Any = partial(simple_spread_v3.parallel_env, N=2, max_cycles=25)
    runner = MultiAgentEnvRunner(make, policies, num_envs=4, agent_to_module_mapping_fn=mapping, seed=0)
    agents = [episode.agent_episodes for episode in runner.sample(num_timesteps=400)]
    actions = [np.concatenate([by_agent[name].get_actions() for by_agent in agents]) for name in agents[0]]
    assert 0.1 < np.mean(actions[0] == actions[1]) < 0.3  # five actions each


def test_wrong_calls_raise_with_advice():
    runner = MultiAgentEnvRunner(Countdown, seed=0)
    with pytest.raises(InvalidArgument, match="exactly one"):
        runner.sample(num_timesteps=1, num_episodes=1)
    with pytest.raises(InvalidArgument, match="no policies"):
        runner.sample(num_timesteps=1)
    with pytest.raises(InvalidArgument, match="callable"):
        MultiAgentEnvRunner(Countdown(), num_envs=2)
    with pytest.raises(WrongType, match="not a multi-agent environment"):
        MultiAgentEnvRunner(3)
    with pytest.raises(UnknownKey, match="mapped to module 'nobody'"):
        MultiAgentEnvRunner(
            Countdown, {"one": Uniform()}, agent_to_module_mapping_fn=lambda agent, episode: "nobody"
        ).sample(num_timesteps=1)
    runner.close()
    with pytest.raises(EpisodeStateError, match="close"):
        runner.sample(num_timesteps=1, random_actions=True)
