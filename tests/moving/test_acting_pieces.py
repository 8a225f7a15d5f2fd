"""Env-to-module and module-to-env connectors in RLlib's style, in runners."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from connectors import ConnectorV2, env_to_module_pipeline, learner_pipeline, module_to_env_pipeline
from connectors.env_to_module import (
    AddObservationsFromEpisodesToBatch,
    FlattenObservations,
    FrameStackingEnvToModule,
    MeanStdFilter,
    PrevActionsPrevRewards,
)
from connectors.learner import FrameStackingLearner
from episode_learners import PPO, MLPPolicy, PPOConfig, ppo_pipeline
from episode_runners import SingleAgentEnvRunner
from episodes import Columns
from episodes.errors import InvalidArgument
from tests.moving.environments import Always, BoxCorridor, NestedCorridor, PictureCorridor, Push, PushAndSay

MODES = list(AutoresetMode)


# --- env to module ----------------------------------------------------------------------------------------------------


class AddLastReward(ConnectorV2):
    """Connector that adds a column with the last reward of each episode, 0 before the first step."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes):
            reward = sa_episode.get_rewards(-1, fill=0.0)
            self.add_batch_item(batch, "last_reward", np.float32(reward), sa_episode)
        return batch


class AddLastActions(ConnectorV2):
    """Connector that adds the last two actions as one-hot vectors, for acting and for learning."""

    def __init__(self, *args, as_learner_connector=False, **kwargs):
        super().__init__(*args, **kwargs)
        self.as_learner_connector = as_learner_connector

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            times = range(len(sa_episode)) if self.as_learner_connector else [len(sa_episode)]
            items = [
                np.ravel(
                    sa_episode.get_actions(slice(t - 2, t), neg_index_as_lookback=True, fill=0, one_hot_discrete=True)
                )
                for t in times
            ]
            self.add_n_batch_items(batch, "last_actions", np.stack(items), len(items), sa_episode)
        return batch


class OwnStacks(ConnectorV2):
    """Connector that replaces observations by stacks of two, which it builds itself."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes):
            stack = np.concatenate(sa_episode.get_observations([-2, -1], fill=0.0))
            self.add_batch_item(batch, Columns.OBS, item_to_add=stack, single_agent_episode=sa_episode)
        return batch


class NoisyObservations(ConnectorV2):
    """Connector that adds noise to the observations of the module. Recorded observations have no noise."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        if explore:
            self.foreach_batch_item_change_in_place(
                batch, Columns.OBS, lambda item, eps_id, agent_id, module_id: item + np.float32(0.25)
            )
        return batch


class AddActionMask(ConnectorV2):
    """Connector that adds the action mask of the infos as a column, and passes the mask on in `shared_data`."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, "action_mask", sa_episode.get_infos(-1)["action_mask"], sa_episode)
        shared_data["action_mask"] = batch["action_mask"]
        return batch


class TimeLeft(ConnectorV2):
    """Connector that replaces the observations by the remaining share of the time limit."""

    def __init__(self, *args, limit, **kwargs):
        self.limit = limit
        super().__init__(*args, **kwargs)

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(-np.inf, np.inf, (input_observation_space.shape[0] + 1,), np.float32)

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        left = [[1 - sa_episode.t / self.limit] for sa_episode in self.single_agent_episode_iterator(episodes)]
        batch[Columns.OBS] = np.concatenate([batch[Columns.OBS], np.array(left, np.float32)], axis=-1)
        return batch


# --- module to env ----------------------------------------------------------------------------------------------------


class MaskLogits(ConnectorV2):
    """Connector that lowers the logits of masked actions."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        mask = torch.as_tensor(shared_data["action_mask"].joined())
        batch[Columns.ACTION_DIST_INPUTS] = batch[Columns.ACTION_DIST_INPUTS].masked_fill(~mask, -1e9)
        return batch


class NoisyActions(ConnectorV2):
    """Connector that adds noise to continuous actions while exploring, within the bounds."""

    def __init__(self, *args, scale=0.5, seed=0, **kwargs):
        super().__init__(*args, **kwargs)
        self.scale, self.rng = scale, np.random.default_rng(seed)

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        if explore:
            self.foreach_batch_item_change_in_place(batch, Columns.ACTIONS, self._noisy)
        return batch

    def _noisy(self, action, eps_id, agent_id, module_id):
        return np.clip(action + self.scale * self.rng.normal(size=action.shape), -1, 1).astype(np.float32)


class Levels(ConnectorV2):
    """Connector from discrete actions of a module to continuous actions of the environment."""

    def __init__(self, *args, levels=(-1.0, 0.0, 1.0), **kwargs):
        self.levels = np.array(levels, np.float32)
        super().__init__(*args, **kwargs)

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        batch[Columns.ACTIONS_FOR_ENV] = self.levels[np.asarray(batch[Columns.ACTIONS])][:, None]
        return batch


class StickyActions(ConnectorV2):
    """Connector that repeats the previous action of the episode at every second step."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        actions = [
            sa_episode.get_actions(-1) if sa_episode.t % 2 else action
            for sa_episode, action in self.single_agent_episode_iterator(
                episodes, zip_with_batch_column=batch[Columns.ACTIONS]
            )
        ]
        batch[Columns.ACTIONS] = np.stack(actions)
        return batch


class EpsilonGreedy(ConnectorV2):
    """Connector that selects actions by Q-values with random actions while exploring, in place of `GetActions`."""

    def __init__(self, *args, epsilon=0.5, seed=0, **kwargs):
        super().__init__(*args, **kwargs)
        self.epsilon, self.rng = epsilon, np.random.default_rng(seed)

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        values = batch.pop("q_values").numpy()
        actions = values.argmax(-1)
        if explore:
            chance = self.rng.random(len(actions)) < self.epsilon
            actions = np.where(chance, self.rng.integers(values.shape[-1], size=len(actions)), actions)
        batch[Columns.ACTIONS] = actions
        return batch


class LoudWords(ConnectorV2):
    """Connector that changes one part of nested actions: the word becomes the next louder word."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        def louder(action, eps_id, agent_id, module_id):
            return {**action, "word": np.minimum(action["word"] + 1, 2)}

        self.foreach_batch_item_change_in_place(batch, Columns.ACTIONS, louder)
        return batch


# --- and what they do -------------------------------------------------------------------------------------------------


def runner_of(env: Any, policy: Any, pieces: Any = (), to_env: Any = None, **options: Any) -> SingleAgentEnvRunner:
    environment = env()
    pipeline = env_to_module_pipeline(environment.observation_space, environment.action_space, pieces=pieces)
    return SingleAgentEnvRunner(
        env, policy, num_envs=2, env_to_module=pipeline, module_to_env=to_env, seed=0, **options
    )


@pytest.mark.parametrize("mode", MODES)
def test_last_reward_is_a_column_for_the_policy(mode):
    policy = Always(1)
    runner = runner_of(BoxCorridor, policy, [AddLastReward()], autoreset_mode=mode, len_lookback_buffer=1)
    runner.sample(num_timesteps=8)
    runner.sample(num_timesteps=8)
    for batch in policy.seen:
        starts = batch["obs"][:, 0] == 0
        assert (batch["last_reward"][starts] == 0).all()
        assert (batch["last_reward"][~starts] != 0).all()


def test_last_actions_are_equal_in_acting_and_learning():
    policy = Recording()
    runner = runner_of(BoxCorridor, policy, [AddLastActions()], len_lookback_buffer=2)
    to_learner = learner_pipeline(pieces=[AddLastActions(as_learner_connector=True)])
    for _ in range(4):
        pack = runner.sample(num_timesteps=7)
        batch = to_learner(episodes=pack)
        observed = [episode.get_extra_model_outputs("seen") for episode in pack]
        assert (batch["last_actions"].numpy() == np.concatenate(observed)).all()


class Recording:
    """Policy that sometimes goes left, and outputs the last actions of its input."""

    def __call__(self, batch, explore=None):
        actions = (batch["obs"][:, 0] % 3 != 2).long() | (torch.rand(len(batch["obs"])) < 0.5)
        return {"actions": actions, "seen": batch["last_actions"].clone()}


@pytest.mark.parametrize("mode", MODES)
def test_items_added_as_observations_reach_the_module(mode):
    policy = Always(1)
    runner = runner_of(BoxCorridor, policy, [OwnStacks()], autoreset_mode=mode, len_lookback_buffer=1)
    packs = [runner.sample(num_timesteps=6) for _ in range(3)]
    assert packs[0].observations.shape[1:] == (1,)
    for batch in policy.seen:
        before, now = batch["obs"].T
        assert (before == (now - 1).clamp(min=0)).all()


@pytest.mark.parametrize("explore", [True, False])
def test_noise_on_module_input_is_not_recorded(explore):
    policy = Always(1)
    runner = runner_of(BoxCorridor, policy)
    runner.env_to_module.insert_after(AddObservationsFromEpisodesToBatch, NoisyObservations())
    pack = runner.sample(num_episodes=2, explore=explore)
    assert (pack.observations % 1 == 0).all()
    assert (policy.seen[0]["obs"] == (0.25 if explore else 0)).all()


def test_connector_replaces_module_input():
    policy = Always(1)
    runner = runner_of(BoxCorridor, policy, [TimeLeft(limit=20)])
    assert runner.env_to_module.observation_space.shape == (2,)
    pack = runner.sample(num_episodes=2)
    assert pack.observations.shape[1:] == (1,)
    np.testing.assert_allclose(policy.seen[2]["obs"], [[2, 0.9]] * 2)


class Uniform:
    """Policy with logits of zero for two actions."""

    def __call__(self, batch, explore=None):
        assert batch["action_mask"].dtype == torch.bool
        return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 2)}


def test_masked_actions_are_never_taken():
    corridor = BoxCorridor()
    to_env = module_to_env_pipeline(corridor.observation_space, corridor.action_space, seed=0)
    to_env.prepend(MaskLogits())
    runner = runner_of(BoxCorridor, Uniform(), [AddActionMask()], to_env)
    pack = runner.sample(num_timesteps=200)
    at_the_wall = pack.observations[pack.observation_rows()][:, 0] == 0
    assert (pack.actions[at_the_wall] == 1).all()
    assert (pack.actions[~at_the_wall] == 0).any()


def test_noise_on_actions_is_recorded_with_them():
    space = Push().action_space
    runner = runner_of(
        Push, Always(np.zeros(1, np.float32)), to_env=module_to_env_pipeline(None, space, pieces=[NoisyActions()])
    )
    explored, greedy = runner.sample(num_episodes=2), runner.sample(num_episodes=2, explore=False)
    assert np.ptp(explored.actions) > 0.5
    assert not greedy.actions.any()
    for episode in explored:
        np.testing.assert_allclose(np.diff(episode.get_observations()[:, 0]), episode.get_actions()[:, 0], atol=1e-6)


def test_column_added_after_the_policy_is_recorded():
    runner = runner_of(BoxCorridor, Always(1), to_env=module_to_env_pipeline(pieces=[AddLastReward()]))
    for episode in runner.sample(num_timesteps=40):
        expected = [0.0, *episode.get_rewards()[:-1].tolist()]
        assert episode.get_extra_model_outputs("last_reward").tolist() == expected


def test_discrete_module_acts_in_continuous_environment():
    to_env = module_to_env_pipeline(None, Push().action_space, pieces=[Levels()], normalize_actions=False)
    pack = runner_of(Push, Always(2), to_env=to_env).sample(num_episodes=2)
    assert (pack.actions == 2).all()
    assert pack[0].get_observations()[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_actions_stick_within_their_episode():
    class Counts:
        def __init__(self):
            self.calls = 0

        def __call__(self, batch, explore=None):
            self.calls += 1
            return {"actions": torch.full((len(batch["obs"]), 1), 0.1 * self.calls)}

    to_env = module_to_env_pipeline(None, Push().action_space, pieces=[StickyActions()])
    pack = runner_of(Push, Counts(), to_env=to_env).sample(num_episodes=2)
    np.testing.assert_allclose(pack[0].get_actions()[:, 0], [0.1, 0.1, 0.3, 0.3, 0.5, 0.5], rtol=1e-6)


def test_epsilon_greedy_connector_acts_on_q_values():
    class Values:
        def __call__(self, batch, explore=None):
            return {"q_values": torch.tensor([[0.0, 1.0]]).expand(len(batch["obs"]), 2)}

    corridor = BoxCorridor()
    to_env = module_to_env_pipeline(corridor.observation_space, corridor.action_space)
    to_env.prepend(EpsilonGreedy())
    runner = runner_of(BoxCorridor, Values(), to_env=to_env)
    assert runner.sample(num_episodes=2, explore=False).actions.all()
    assert 0.5 < runner.sample(num_timesteps=300).actions.mean() < 0.95


def test_connector_changes_a_part_of_nested_actions():
    class Says:
        def __call__(self, batch, explore=None):
            num = len(batch["obs"])
            return {"actions": {"far": torch.full((num, 1), 0.5), "word": torch.ones(num, dtype=torch.int64)}}

    to_env = module_to_env_pipeline(None, PushAndSay().action_space, pieces=[LoudWords()])
    pack = runner_of(PushAndSay, Says(), to_env=to_env).sample(num_episodes=2)
    assert (pack.actions["word"] == 2).all()
    assert pack[0].get_rewards(0) == 20.5


def test_built_in_views_have_rllib_names():
    policy = Always(1)
    runner = runner_of(PictureCorridor, policy, [FrameStackingEnvToModule(num_frames=3, multi_agent=False)])
    runner.sample(num_episodes=2)
    assert policy.seen[1]["obs"].shape == (2, 4, 5, 3)
    assert policy.seen[1]["obs"][0, 0].argmax(0).tolist() == [0, 0, 1]

    policy = Always(1)
    runner_of(BoxCorridor, policy, [PrevActionsPrevRewards(n_prev_actions=2, multi_agent=False)]).sample(num_episodes=2)
    assert policy.seen[1]["obs"]["prev_n_actions"].tolist() == [[0, 0, 0, 1]] * 2

    policy = Always(1)
    runner = runner_of(NestedCorridor, policy, [FlattenObservations(multi_agent=False)])
    pack = runner.sample(num_episodes=2)
    assert pack.observations.shape[1:] == policy.seen[0]["obs"].shape[1:] == (18,)


def test_filters_of_two_runners_are_merged():
    runners = [runner_of(BoxCorridor, Always(action), [MeanStdFilter()]) for action in (0, 1)]
    for runner in runners:
        runner.sample(num_timesteps=20)
    states = [runner.env_to_module.get_state() for runner in runners]
    merged = runners[0].env_to_module.merge_states(states)
    for runner in runners:
        runner.env_to_module.set_state(merged)
    counts = [state["MeanStdFilter"]["own"][""]["count"] for state in states]
    assert merged["MeanStdFilter"]["synced"][""]["count"] == sum(counts) > 40


def test_frame_stacks_in_both_pipelines_need_the_stored_space():
    env = gym.make("CartPole-v1")
    spaces_of_env = env.observation_space, env.action_space
    pipeline = env_to_module_pipeline(*spaces_of_env, pieces=[FrameStackingEnvToModule(num_frames=4)])
    policy = MLPPolicy(pipeline.observation_space, env.action_space)
    runner = SingleAgentEnvRunner("CartPole-v1", policy, env_to_module=pipeline, num_envs=2, seed=0)
    pack = runner.sample(num_timesteps=60)
    second_pipeline = learner_pipeline(*spaces_of_env, pieces=[FrameStackingLearner(num_frames=4)], policy=policy)
    shared = learner_pipeline(*spaces_of_env, views=pipeline.views, policy=policy)
    expected = PPO(runner.actor).preprocess(pack)["obs"]
    for learning in (second_pipeline, shared):
        assert torch.equal(PPO(policy, pipeline=learning).preprocess(pack)["obs"], expected)
    with pytest.raises(InvalidArgument, match="views= are bound already"):
        learner_pipeline(*spaces_of_env, views=pipeline.views, pieces=[FrameStackingLearner(num_frames=4)])(
            rl_module=policy, batch={}, episodes=pack
        )
    with pytest.raises(InvalidArgument, match="does not fit"):
        ppo_pipeline(policy, PPOConfig(), pieces=[FrameStackingLearner(num_frames=4)])(
            rl_module=policy, batch={}, episodes=pack
        )
