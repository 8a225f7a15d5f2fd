"""Callbacks in RLlib's style, passed to runners as hooks."""

from __future__ import annotations

import copy
from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from episode_runners import MultiAgentEnvRunner, RLlibCallback, SingleAgentEnvRunner
from episodes.errors import InvalidArgument
from episodes.replay import EpisodeReplayBuffer
from tests.moving.environments import Always, BoxCorridor, Duel, Meeting, Push

MODES = list(AutoresetMode)


class HeatMap(RLlibCallback):
    """Callback that counts the visits of each position, as an image of the environment."""

    def __init__(self, num_places):
        self.visits = np.zeros(num_places, int)

    def on_episode_start(self, *, episode, env_runner, metrics_logger, env, env_index, rl_module, **kwargs):
        self.visits[int(episode.get_observations(-1)[0])] += 1

    def on_episode_step(self, *, episode, env_runner, metrics_logger, env, env_index, rl_module, **kwargs):
        self.visits[int(episode.get_observations(-1)[0])] += 1

    def on_sample_end(self, *, env_runner, metrics_logger, samples, **kwargs):
        metrics_logger.log_value("most_visited", int(self.visits.argmax()), reduce="item")


class Videos(RLlibCallback):
    """Callback that renders each step, and keeps the frames of the best and the worst episode."""

    def __init__(self):
        self.frames = defaultdict(list)
        self.best = self.worst = (None, None)

    def on_episode_step(self, *, episode, env, env_index, **kwargs):
        self.frames[episode.id_].append(env.envs[env_index].unwrapped.render())

    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        episode_return, frames = episode.get_return(), self.frames.pop(episode.id_)
        video = np.stack(frames).transpose(0, 3, 1, 2)
        if self.best[0] is None or episode_return > self.best[0]:
            self.best = (episode_return, video)
        if self.worst[0] is None or episode_return < self.worst[0]:
            self.worst = (episode_return, video)
        metrics_logger.log_value("longest_video", len(video), reduce="max")


class Distance(RLlibCallback):
    """Callback that logs the largest distance of an episode from its start, kept in `custom_data`."""

    def on_episode_start(self, *, episode, **kwargs):
        episode.custom_data["farthest"] = 0.0

    def on_episode_step(self, *, episode, **kwargs):
        place = float(episode.get_observations(-1)[0])
        episode.custom_data["farthest"] = max(episode.custom_data["farthest"], abs(place))

    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        metrics_logger.log_value("farthest", episode.custom_data["farthest"], reduce="mean", window=10)


class ReturnsOfAgents(RLlibCallback):
    """Callback that logs the return of each agent of an episode, and the number of sampled env steps."""

    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        returns = {agent_id: agent_episode.get_return() for agent_id, agent_episode in episode.agent_episodes.items()}
        metrics_logger.log_dict(returns, key="agent_returns", window=100)

    def on_sample_end(self, *, metrics_logger, samples, **kwargs):
        steps = sum(episode.env_steps() for episode in samples)
        metrics_logger.log_value("lifetime_steps", steps, reduce="lifetime_sum")


class Curriculum(RLlibCallback):
    """Callback that lengthens the corridor after every two episodes that reached the end."""

    def __init__(self):
        self.num_reached = 0

    def on_environment_created(self, *, env_runner, metrics_logger, env, env_context, **kwargs):
        for each in env.envs:
            each.unwrapped.length = 3

    def on_episode_end(self, *, episode, env, env_index, **kwargs):
        self.num_reached += episode.is_terminated
        if self.num_reached == 2:
            self.num_reached = 0
            for each in env.envs:
                each.unwrapped.length += 1


class SelfPlay(RLlibCallback):
    """Callback that adds a frozen copy of the main module as a new opponent after enough wins."""

    def __init__(self, win_rate_threshold):
        super().__init__()
        self.win_rate_threshold = win_rate_threshold
        self.opponents = ["random"]

    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        main = 0 if episode.module_for(0) == "main" else 1
        metrics_logger.log_value("win_rate", float(episode.get_rewards(-1)[main] > 0), window=4)

    def on_sample_end(self, *, env_runner, metrics_logger, samples, rl_module, **kwargs):
        if metrics_logger.peek("win_rate") > self.win_rate_threshold:
            name = f"main_v{len(self.opponents)}"
            rl_module[name] = copy.deepcopy(rl_module["main"])
            self.opponents.append(name)
            metrics_logger.log_value("league_size", len(self.opponents), reduce="max")

    def opponent_of(self, episode):
        return self.opponents[-1]


class League(RLlibCallback):
    """Callback that keeps a table of wins, and selects the opponent against which the main module lost most."""

    def __init__(self, members):
        self.members = members
        self.games = defaultdict(int)
        self.lost = defaultdict(int)

    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        modules = {agent_id: episode.module_for(agent_id) for agent_id in episode.agent_ids}
        rewards = {agent_id: agent_episode.get_return() for agent_id, agent_episode in episode.agent_episodes.items()}
        main = next(agent_id for agent_id, module_id in modules.items() if module_id == "main")
        opponent = modules[1 - main]
        self.games[opponent] += 1
        self.lost[opponent] += rewards[main] < 0
        metrics_logger.log_value(("lost_to", opponent), float(rewards[main] < 0), window=20)

    def opponent(self):
        unplayed = [member for member in self.members if not self.games[member]]
        return unplayed[0] if unplayed else max(self.members, key=lambda m: self.lost[m] / self.games[m])


def runner_of(env: Any, callback: Any, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **options: Any) -> Any:
    policy = Always(1 if env is not Push else np.ones(1, np.float32))
    return SingleAgentEnvRunner(env, policy, num_envs=2, autoreset_mode=mode, hooks=[callback], seed=0, **options)


@pytest.mark.parametrize("mode", MODES)
def test_heat_map_counts_every_observation_once(mode):
    heat_map = HeatMap(5)
    runner = runner_of(BoxCorridor, heat_map, mode)
    packs = [runner.sample(num_timesteps=count) for count in (7, 12, 30)]
    places = [row for pack in packs for episode in pack for row in episode.get_observations(slice(1, None)).ravel()]
    starts = [row for pack in packs for episode in pack if not episode.t_started for row in episode.get_observations(0)]
    waiting = heat_map.visits.sum() - len(places) - len(starts)  # just reset, without a step in any pack
    assert (heat_map.visits - np.bincount(np.array(places + starts, int))).tolist() == [waiting, 0, 0, 0, 0]
    assert 0 <= waiting <= 2
    assert runner.metrics()["most_visited"] == heat_map.visits.argmax()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_videos_of_best_and_worst_episode_are_stored(mode):
    videos = Videos()
    runner = runner_of(BoxCorridor, videos, mode)
    pack = runner.sample(num_episodes=4)
    assert len(videos.best[1]) == len(pack[0]) == 4
    assert videos.best[1].shape[1:] == (3, 2, 5)
    assert (videos.best[1][:, 0, 0] > 0).argmax(-1).tolist() == [1, 2, 3, 4]
    assert videos.best[0] == pytest.approx(pack[0].get_return(), abs=1e-6)
    assert not videos.frames
    assert runner.metrics()["longest_video"] == 4


@pytest.mark.parametrize("callback", [Distance, Distance()])  # RLlib is given the class
def test_custom_data_of_callback_is_in_sampled_episodes(callback):
    runner = runner_of(Push, callback)
    pack = runner.sample(num_episodes=4)
    assert [episode.custom_data["farthest"] for episode in pack] == [6, 6, 6, 6]
    assert runner.metrics_logger.peek("farthest") == 6


class Notes(RLlibCallback):
    """Callback that writes into the custom data of sampled episodes, and logs through RLlib's names."""

    def on_episode_step(self, *, episode, env_runner, **kwargs):
        assert env_runner.config == {"bonus": 2}
        assert env_runner.worker_index == 0
        assert env_runner.module is kwargs["rl_module"]
        env_runner.seen = env_runner.num_envs

    def on_sample_end(self, *, env_runner, metrics_logger, samples, **kwargs):
        assert isinstance(samples, list)
        for number, episode in enumerate(samples):
            episode.custom_data["number"] = number
        assert env_runner.metrics is metrics_logger
        env_runner.metrics.log_value("num_samples", len(samples), reduce="sum")


def test_custom_data_written_at_on_sample_end_arrives():
    notes = Notes()
    notes.config = {"bonus": 2}
    runner = runner_of(Push, notes)
    pack = runner.sample(num_episodes=4)
    assert [episode.custom_data for episode in pack] == [{"number": i} for i in range(4)]
    assert runner.metrics()["num_samples"] == 4
    assert runner.seen == 2
    runner.sample_into(EpisodeReplayBuffer(100), num_timesteps=8)
    assert runner.metrics()["num_samples"] == 4


def test_other_writes_at_on_sample_end_raise():
    class Shapes(RLlibCallback):
        def on_sample_end(self, *, samples, **kwargs):
            samples[0].set_rewards(new_data=[0.0] * len(samples[0]))

    with pytest.raises(InvalidArgument, match="write only into the dict custom_data"):
        runner_of(Push, Shapes()).sample(num_episodes=1)


def test_returns_of_agents_and_lifetime_sums_are_logged():
    runner = MultiAgentEnvRunner(Meeting, Always(1), num_envs=2, hooks=[ReturnsOfAgents()], seed=0)
    for _ in range(2):
        episodes = runner.sample(num_episodes=2)
    means = runner.metrics()["agent_returns"]
    assert means == {agent: episodes[0].agent_episodes[agent].get_return() for agent in "ab"}
    assert runner.metrics_logger.reduce()["lifetime_steps"] == runner.num_env_steps == 16
    runner.sample(num_episodes=1)
    assert runner.metrics()["lifetime_steps"] == 20


def test_curriculum_changes_environments_between_episodes():
    runner = runner_of(BoxCorridor, Curriculum())
    lengths = [len(episode) for episode in runner.sample(num_timesteps=40) if episode.is_terminated]
    assert sorted(set(lengths))[:3] == [2, 3, 4]


@pytest.mark.parametrize("main_first", [True, False])
def test_self_play_adds_copies_of_the_main_module_as_opponents(main_first):
    callback = SelfPlay(win_rate_threshold=0.9)
    policies = {"main": Always(5), "random": Always(2)}

    def mapping(agent_id, episode):
        return "main" if agent_id == (0 if main_first else 1) else callback.opponent_of(episode)

    runner = MultiAgentEnvRunner(Duel, policies, agent_to_module_mapping_fn=mapping, hooks=[callback], seed=0)
    runner.sample(num_episodes=4)
    assert callback.opponents == ["random", "main_v1"]
    assert runner.metrics()["win_rate"] == 1
    policies["main"].action = 7  # it has learned something
    against_itself = runner.sample(num_episodes=4)
    opponent = 1 if main_first else 0
    assert {episode.module_for(opponent) for episode in against_itself} == {"main_v1"}
    assert against_itself[0].get_actions(-1)[opponent] == 5  # the copy has not
    assert callback.opponents[-1] == "main_v2"


def test_league_selects_opponents_that_beat_the_main_module():
    league = League(["weak", "strong"])
    policies = {"main": Always(5), "weak": Always(2), "strong": Always(8)}
    mapping = lambda agent_id, episode: "main" if agent_id == 0 else league.opponent()  # noqa: E731
    runner = MultiAgentEnvRunner(Duel, policies, agent_to_module_mapping_fn=mapping, hooks=[league], seed=0)
    for _ in range(4):
        runner.sample(num_episodes=1)
    assert dict(league.games) == {"weak": 1, "strong": 3}
    assert runner.metrics()["lost_to"] == {"weak": 0, "strong": 1}


class Diary(RLlibCallback):
    """Callback that records its calls in order."""

    def __init__(self):
        self.told = []

    def on_environment_created(self, *, env_context, **kwargs):
        self.told.append("environments")

    def on_episode_start(self, *, episode, env_index, **kwargs):
        self.told.append(("start", env_index, len(episode)))

    def on_episode_step(self, *, episode, env_index, **kwargs):
        self.told.append(("step", env_index, episode.t))

    def on_episode_end(self, *, episode, env_index, **kwargs):
        self.told.append(("end", env_index, episode.t))


@pytest.mark.parametrize("into_buffer", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_callbacks_get_every_step_once_and_in_order(mode, into_buffer):
    diary = Diary()
    runner = runner_of(lambda: BoxCorridor(length=3), diary, mode)
    sample = partial(runner.sample_into, EpisodeReplayBuffer(99)) if into_buffer else runner.sample
    sample(num_timesteps=3)
    sample(num_timesteps=6)
    assert diary.told[0] == "environments"
    assert diary.told.count("environments") == 1
    for env in (0, 1):
        recorded = [(event, t) for event, at, t in diary.told[1:] if at == env]
        once = [("start", 0), ("step", 1), ("step", 2), ("end", 2)]
        assert recorded == (once * len(recorded))[: len(recorded)]
        assert len(recorded) > len(once)


def test_callbacks_of_turn_based_agents_get_steps_once():
    steps = []

    class Steps(RLlibCallback):
        def on_episode_step(self, *, episode, env_index, env, rl_module, **kwargs):
            assert env.envs[env_index].t == episode.env_t
            assert "default_policy" in rl_module
            steps.append((env_index, episode.env_t))

    runner = MultiAgentEnvRunner(Meeting, Always(1), num_envs=2, hooks=[Steps()], seed=0)
    runner.sample(num_episodes=3)  # two of the first, one of the second
    assert sorted(steps) == [(0, t) for t in (1, 1, 2, 2, 3, 3, 4, 4)] + [(1, t) for t in (1, 2, 3, 4)]
