"""PPO of RLlib with `install` in this process: losses, connectors, callbacks, metrics, checkpoints, failures."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module import (
    AddObservationsFromEpisodesToBatch,
    FlattenObservations,
    MeanStdFilter,
    PrevActionsPrevRewards,
    WriteObservationsToEpisodes,
)
from ray.rllib.connectors.env_to_module.frame_stacking import FrameStackingEnvToModule
from ray.rllib.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
from ray.rllib.connectors.learner.frame_stacking import FrameStackingLearner
from ray.rllib.connectors.module_to_env import NormalizeAndClipActions
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.examples.envs.classes.action_mask_env import ActionMaskEnv
from ray.rllib.examples.rl_modules.classes.action_masking_rlm import ActionMaskingTorchRLModule
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

from episode_runners.rllib import install
from episode_runners.rllib.pipelines import connector_in
from episodes.converters import from_rllib
from episodes.errors import EpisodeError, InvalidArgument, StateMismatch
from tests.rllib.rllib_envs import SameObservations, Scripted, ScriptedAgents, multi_agent, ppo


def slow(value: Any) -> Any:
    """Return a parameter of a test that runs only with `-m slow`."""
    return pytest.param(value, marks=pytest.mark.slow)


def train(config: Any, num_iterations: int = 2) -> tuple[Any, dict[str, Any]]:
    """Return the algorithm of a config after some iterations, and its last result."""
    algorithm = config.build_algo()
    for _ in range(num_iterations):
        result = algorithm.train()
    return algorithm, result


# --- losses ------------------------------------------------------------------------------------------------------


def losses_and_gradients(learner: Any, episodes: list[Any]) -> tuple[dict[str, float], list[np.ndarray]]:
    """Return the loss of each module and all gradients, for one batch of all steps."""
    connector = learner._learner_connector
    columns = connector(rl_module=learner.module, batch={}, episodes=episodes, shared_data={}, metrics=learner.metrics)
    batch = MultiAgentBatch({name: SampleBatch(part) for name, part in columns.items()}, env_steps=1).policy_batches
    losses = learner.compute_losses(fwd_out=learner.module.forward_train(batch), batch=batch)
    gradients = learner.compute_gradients(losses)
    return {name: loss.item() for name, loss in losses.items()}, [value.numpy() for value in gradients.values()]


def masked() -> Any:
    """Return the config of RLlib's example module, whose `compute_values` moves the action mask in its batch."""
    module_spec = RLModuleSpec(module_class=ActionMaskingTorchRLModule, model_config={"head_fcnet_hiddens": [16]})
    env_config = {"action_space": spaces.Discrete(100), "observation_space": spaces.Box(-1.0, 1.0, (3,))}
    return ppo(ActionMaskEnv).environment(env_config=env_config).rl_module(rl_module_spec=module_spec, model_config={})


@pytest.mark.parametrize("kind", ["vector", slow("continuous"), slow("recurrent"), "masked", "agents"])
def test_ppo_loss_and_gradients_equal_rllibs(kind: str) -> None:
    config: Callable[[], Any] = {
        "vector": ppo,
        "continuous": lambda: ppo("Pendulum-v1"),
        "recurrent": lambda: ppo(use_lstm=True, lstm_cell_size=16, max_seq_len=7),
        "masked": masked,
        "agents": lambda: multi_agent(ppo()),
    }[kind]
    rllib_algorithm, ours = config().build_algo(), install(config()).build_algo()
    sampled = rllib_algorithm.env_runner.sample(num_timesteps=300) + rllib_algorithm.env_runner.sample(num_timesteps=60)
    learners = [algorithm.learner_group._learner for algorithm in (rllib_algorithm, ours)]
    learners[1].module.set_state(learners[0].module.get_state())
    episodes, _ = from_rllib(sampled, action_mapping="normalize")  # before RLlib's pipeline adds steps to its episodes
    loss, gradients = losses_and_gradients(learners[0], sampled)
    our_loss, our_gradients = losses_and_gradients(learners[1], episodes)
    assert our_loss == pytest.approx(loss, abs=1e-5)
    for gradient, expected in zip(our_gradients, gradients, strict=True):
        np.testing.assert_allclose(gradient, expected, atol=1e-5)


# --- connectors --------------------------------------------------------------------------------------------------


class Squares(SingleAgentObservationPreprocessor):
    """Images of 42 x 42 pixels and one channel."""

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> gym.Space:
        return spaces.Box(-np.inf, np.inf, (42, 42, 1), np.float32)

    def preprocess(self, observation: Any, episode: Any) -> np.ndarray:
        return np.resize(observation, (42, 42, 1)).astype(np.float32)


class HalfRewards(ConnectorV2):
    """Learner connector of a user that counts episodes."""

    num_episodes = 0

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            episode.set_rewards(new_data=0.5 * episode.get_rewards())
            HalfRewards.num_episodes += 1
        return batch


class LastReward(ConnectorV2):
    """Env-to-module connector of a user that adds a column."""

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            reward = episode.get_rewards(-1) if len(episode) else 0.0
            self.add_batch_item(batch, "last_reward", np.float32(reward), episode)
        return batch


PIECES: dict[str, list[Callable[[], Any]]] = {
    "MeanStdFilter": [MeanStdFilter],
    "Flatten, MeanStdFilter": [FlattenObservations, MeanStdFilter],
    "PrevActions, Flatten": [lambda: PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=3), FlattenObservations],
    "Squares, FrameStacking": [Squares, lambda: FrameStackingEnvToModule(num_frames=3)],
    "LastReward": [LastReward],
}


@pytest.mark.parametrize("name", ["PrevActions, Flatten", *[slow(name) for name in PIECES if "Prev" not in name]])
def test_env_to_module_connectors_are_translated(name: str) -> None:
    HalfRewards.num_episodes = 0
    config = install(ppo("FrozenLake-v1" if name.startswith("Flatten") else "CartPole-v1"))
    config.env_runners(env_to_module_connector=lambda env, spaces, device: [make() for make in PIECES[name]])
    config.training(learner_connector=lambda observed, actions: [HalfRewards()])
    if name == "Squares, FrameStacking":
        config.training(
            learner_connector=lambda observed, actions: [FrameStackingLearner(num_frames=3)],
            train_batch_size_per_learner=40,
            minibatch_size=20,
        )
    algorithm, result = train(config, 1)
    assert np.isfinite(result["learners"]["default_policy"]["total_loss"])
    assert HalfRewards.num_episodes or name == "Squares, FrameStacking"
    algorithm.stop()


class OtherActions(ConnectorV2):
    """Module-to-env connector of a user that changes the actions and adds a column."""

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, "age", np.float32(len(episode)), episode)
        self.foreach_batch_item_change_in_place(batch, "actions", lambda action, *ids: 1 - np.asarray(action))
        return batch


@pytest.mark.parametrize("agents", [False, True])
def test_module_to_env_connector_changes_actions_as_in_rllib(agents: bool) -> None:
    recorded = []
    for choose in (lambda config: config, install):
        Scripted.num_copies = 0
        config = choose(multi_agent(ppo(num_envs=1)) if agents else ppo(Scripted, num_envs=1))
        algorithm = config.env_runners(module_to_env_connector=lambda *_: OtherActions()).build_algo()
        episode = algorithm.env_runner.sample(num_timesteps=40, explore=False)[0]
        episode = episode.agent_episodes["b"] if agents else episode
        ages = np.asarray(episode.get_extra_model_outputs("age")).tolist()
        recorded.append((np.asarray(episode.get_actions()).tolist(), ages))
        algorithm.train()
        algorithm.stop()
    assert recorded[0] == recorded[1]


class Halves(SingleAgentObservationPreprocessor):
    """Half of each agent's observation. RLlib passes spaces by agent."""

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> gym.Space:
        return spaces.Dict({agent: spaces.Box(-9, 99, (2,), np.float32) for agent in input_observation_space})

    def preprocess(self, observation: Any, episode: Any) -> np.ndarray:
        return 0.5 * observation


def test_preprocessor_changes_the_observations_of_each_agent() -> None:
    config = install(multi_agent(ppo())).env_runners(env_to_module_connector=lambda *args: Halves())
    algorithm, _ = train(config, 1)
    (episode, *_) = algorithm.env_runner.sample(num_timesteps=30)
    np.testing.assert_array_equal(episode.agent_episodes["a"].get_observations()[:4, 0] % 1, [0.0, 0.5, 0.0, 0.5])
    assert algorithm.get_module("p").observation_space == spaces.Box(-9, 99, (2,), np.float32)


def test_connector_without_translation_raises() -> None:
    config = install(ppo()).env_runners(env_to_module_connector=lambda *args: WriteObservationsToEpisodes())
    with pytest.raises(InvalidArgument, match="RLlib's connector WriteObservationsToEpisodes has no translation"):
        config.build_algo()


class OwnFilter(MeanStdFilter):
    """Connector of a user that inherits the methods of RLlib's."""


UNSUPPORTED: dict[str, tuple[str, Callable[[], Any]]] = {
    "OwnFilter inherits __call__ of RLlib's connector MeanStdFilter": ("env_to_module_connector", OwnFilter),
    "MeanStdFilter is made for several agents": (
        "env_to_module_connector",
        lambda: MeanStdFilter(multi_agent=True),
    ),
    "module_to_env_connector returns NormalizeAndClipActions, which is added automatically": (
        "module_to_env_connector",
        lambda: NormalizeAndClipActions(normalize_actions=False, clip_actions=True),
    ),
}


@pytest.mark.parametrize("message", UNSUPPORTED)
def test_unsupported_connector_raises_when_the_algorithm_is_built(message: str) -> None:
    setting, make = UNSUPPORTED[message]
    config = install(ppo()).env_runners(**{setting: lambda *args: make()})
    with pytest.raises(InvalidArgument, match=message):
        config.build_algo()


class StartsAtOne(Scripted):
    """The scripted environment with actions 1 and 2."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.action_space = spaces.Tuple([spaces.Discrete(2, start=1)])


def test_action_space_with_a_start_raises_when_the_algorithm_is_built() -> None:
    with pytest.raises(InvalidArgument, match=r"action space Discrete\(2, start=1\) does not start at 0"):
        install(ppo(StartsAtOne)).build_algo()


class Scaled(ConnectorV2):
    """Env-to-module connector of a user that multiplies the observations by a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        self.foreach_batch_item_change_in_place(batch, "obs", lambda item, *ids: self.factor * np.asarray(item))
        return batch


def test_connectors_of_one_class_change_observations_as_in_rllib() -> None:
    outputs = []
    for choose in (lambda config: config, install):
        Scripted.num_copies = 0
        make = lambda *_: [AddObservationsFromEpisodesToBatch(), Scaled(2.0), Scaled(3.0)]  # noqa: E731
        algorithm = choose(ppo(Scripted)).env_runners(env_to_module_connector=make).build_algo()
        episode = algorithm.env_runner.sample(num_timesteps=20)[0]
        outputs.append(np.asarray(episode.get_extra_model_outputs("action_dist_inputs")))
        algorithm.train()
        algorithm.stop()
    np.testing.assert_allclose(outputs[1], outputs[0], atol=1e-6)


class Ranged(Scripted):
    """The scripted environment with actions between 2 and 6. It records them by its name."""

    taken: dict[str, list[float]] = {}

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.action_space, self.name = spaces.Box(2.0, 6.0, (1,)), (config or {}).get("name", "train")

    def step(self, action: Any) -> Any:
        self.taken.setdefault(self.name, []).append(float(action[0]))
        return super().step(action)


def test_evaluation_has_its_settings_of_actions() -> None:
    Ranged.taken = {}
    other = {"normalize_actions": False, "clip_actions": False, "env_config": {"name": "evaluation"}}
    config = install(ppo(Ranged)).evaluation(evaluation_interval=1, evaluation_config=other)
    algorithm, _ = train(config, 1)
    algorithm.stop()
    assert 2.0 <= min(Ranged.taken["train"]) <= max(Ranged.taken["train"]) <= 6.0
    assert min(Ranged.taken["evaluation"]) < 2.0


# --- callbacks and metrics ---------------------------------------------------------------------------------------


def test_modules_explore_independently_of_each_other() -> None:
    algorithm = install(multi_agent(ppo(), SameObservations)).build_algo()
    agents = [episode.agent_episodes for episode in algorithm.env_runner.sample(num_timesteps=400)]
    actions = [np.concatenate([by_agent[name].get_actions() for by_agent in agents]) for name in ("a", "b")]
    assert 0.35 < np.mean(actions[0] == actions[1]) < 0.65


# --- replay ------------------------------------------------------------------------------------------------------


def test_replay_buffer_of_dqn_has_the_episodes_of_rllib() -> None:
    stored = []
    for choose in (lambda config: config, install):
        Scripted.num_copies = 0
        config = DQNConfig().environment(Scripted).env_runners(num_env_runners=0, num_envs_per_env_runner=3)
        config.training(replay_buffer_config={"type": "PrioritizedEpisodeReplayBuffer", "capacity": 120})
        config.training(num_steps_sampled_before_learning_starts=100, train_batch_size_per_learner=8)
        config.reporting(min_sample_timesteps_per_iteration=50, min_time_s_per_iteration=0)
        algorithm, result = train(choose(config.debugging(seed=1)), 4)
        episodes = [
            (episode.t_started, episode.is_terminated, episode.get_observations().tolist(), list(episode.get_rewards()))
            for episode in algorithm.local_replay_buffer.episodes
        ]
        stored.append((result["num_env_steps_sampled_lifetime"], episodes))
        algorithm.stop()
    assert stored[0] == stored[1]
    assert len(stored[0][1]) > 10


# --- modules, checkpoints, failures ------------------------------------------------------------------------------


@pytest.mark.parametrize("agents", [slow(False), True])
def test_checkpoint_restores_filters_and_continues(agents: bool, tmp_path: Any) -> None:
    config = install(multi_agent(ppo()) if agents else ppo())
    config.env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter(multi_agent=agents))
    algorithm, _ = train(config)
    algorithm.save_to_path(tmp_path)
    state = connector_in(algorithm.env_runner._env_to_module).pipeline.get_state()
    untrained = config.build_algo().env_runner._env_to_module.get_state()  # as that of a new remote env runner
    restored = Algorithm.from_checkpoint(tmp_path)
    assert repr(connector_in(restored.env_runner._env_to_module).pipeline.get_state()) == repr(state)
    merged = restored.env_runner._env_to_module.merge_states([untrained, untrained])
    counts = re.findall(r"'count': (\d+)", repr(merged))
    assert counts == re.findall(r"'count': (\d+)", repr(state))
    assert counts
    assert repr(restored.learner_group.get_weights()) == repr(algorithm.learner_group.get_weights())
    assert restored.train()["num_env_steps_sampled_lifetime"] >= 1200
    algorithm.set_state(restored.get_state())
    algorithm.train()


def test_checkpoint_with_an_added_module_is_restored(tmp_path: Any) -> None:
    algorithm = install(multi_agent(ppo())).build_algo()
    spec = RLModuleSpec.from_module(algorithm.get_module("q"))
    algorithm.add_module("r", spec, new_agent_to_module_mapping_fn=lambda agent_id, episode, **kwargs: "r")
    algorithm.save_to_path(tmp_path)
    algorithm.stop()
    restored = Algorithm.from_checkpoint(tmp_path)
    assert restored.train()["env_runners"]["num_module_steps_sampled"].keys() == {"r"}
    restored.stop()


@pytest.mark.parametrize("agents", [slow(False), True])
@pytest.mark.parametrize("filters", [False, True])
@pytest.mark.parametrize("from_path", [False, True])
def test_checkpoint_of_rllib_with_filters_raises(agents: bool, filters: bool, from_path: bool, tmp_path: Any) -> None:
    config = multi_agent(ppo(num_envs=2)) if agents else ppo(num_envs=2)
    if filters:
        config.env_runners(env_to_module_connector=lambda *_: [MeanStdFilter(multi_agent=agents)])
    plain, _ = train(config.copy(), 1)
    installed = install(config).build_algo()
    plain.save_to_path(tmp_path)
    restore = (lambda: installed.restore_from_path(tmp_path)) if from_path else (lambda: installed.set_state(state))
    state = plain.get_state()
    if filters:
        with pytest.raises(StateMismatch, match="written without install"):
            restore()
    else:
        restore()
        assert installed.training_iteration == 1


@pytest.mark.parametrize("agents", [slow(False), True])
def test_failing_environment_keeps_samples_of_all_environments(agents: bool) -> None:
    env = ScriptedAgents if agents else Scripted
    config = install(multi_agent(ppo(num_envs=3), env) if agents else ppo(env, num_envs=3))
    config.environment(env, env_config={"raises_every": 40}).fault_tolerance(restart_failed_sub_environments=True)
    algorithm = config.build_algo()
    for _ in range(2):
        episodes = algorithm.env_runner.sample(num_timesteps=400)
        steps = sum(map(len, episodes))
        assert 400 <= steps <= 403
        assert len({(episode.id_, getattr(episode, "t_started", 0)) for episode in episodes}) == len(episodes)
    counts = algorithm.env_runner.get_metrics()
    assert float(counts["num_env_steps_sampled_lifetime"].peek()) >= 800


@pytest.mark.parametrize("agents", [False, True])
def test_failing_environment_keeps_whole_episodes(agents: bool) -> None:
    env = ScriptedAgents if agents else Scripted
    config = install(multi_agent(ppo(num_envs=2), env) if agents else ppo(env, num_envs=2))
    config.environment(env, env_config={"raises_every": 40}).fault_tolerance(restart_failed_sub_environments=True)
    runner = config.build_algo().env_runner
    episodes = runner.sample(num_episodes=20)  # an environment raises before it has taken the steps of ten episodes
    assert len({episode.id_ for episode in episodes}) == len(episodes) == 20
    assert all(episode.is_terminated for episode in episodes)
    counts = runner.get_metrics()
    assert counts["num_episodes"].peek() == 20
    assert counts["num_env_steps_sampled"].peek() == sum(map(len, episodes))


@pytest.mark.parametrize("agents", [False, True])
@pytest.mark.parametrize("interrupts", [False, True])
def test_environment_is_restarted_until_its_first_reset_succeeds_or_an_interrupt(
    agents: bool, interrupts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[BaseException] = [ValueError("a failing reset")] * 5 + [KeyboardInterrupt()] * interrupts
    reset = Scripted.reset

    def reset_after_errors(env: Scripted, **arguments: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return reset(env, **arguments)

    monkeypatch.setattr(Scripted, "reset", reset_after_errors)
    config = multi_agent(ppo(num_envs=2)) if agents else ppo(Scripted, num_envs=2)
    config.environment(disable_env_checking=True)  # RLlib's check of several agents resets environments, too
    config.fault_tolerance(restart_failed_sub_environments=True)
    runner = install(config).build_algo().env_runner
    if interrupts:
        with pytest.raises(KeyboardInterrupt):
            runner.sample(num_timesteps=20)
    assert sum(map(len, runner.sample(num_timesteps=20))) >= 20
    assert not errors


def test_error_of_a_callback_is_not_taken_for_a_failed_environment() -> None:
    def fail(**arguments: Any) -> None:
        raise KeyError("of the callback")

    config = install(ppo()).callbacks(on_episode_end=fail).fault_tolerance(restart_failed_sub_environments=True)
    algorithm = config.build_algo()
    with pytest.raises(KeyError, match="of the callback"):
        algorithm.env_runner.sample(num_timesteps=200)


def test_pipeline_called_with_rllibs_episodes_raises() -> None:
    algorithm = install(ppo()).build_algo()
    with pytest.raises(EpisodeError, match="cannot be called with RLlib's episodes"):
        algorithm.env_runner._env_to_module(rl_module=None, episodes=[], explore=True)
