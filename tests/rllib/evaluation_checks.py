"""Evaluation inside RLlib acts on the filter statistics of training."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from ray.rllib.connectors.learner import AddNextObservationsFromEpisodesToTrainBatch

from episode_runners.rllib import install, uninstall
from episodes.errors import StateMismatch
from tests.rllib.rllib_envs import Scripted, ScriptedAgents, filtered, moments_of, multi_agent, ppo


def received(episodes: Any, agents: bool) -> dict[Any, np.ndarray]:
    """Return the observations that policies received in episodes, by agent."""
    if not agents:
        return {None: np.concatenate([episode.get_observations() for episode in episodes])}
    names = {agent_id for episode in episodes for agent_id in episode.agent_episodes}
    return {
        name: np.concatenate([episode.agent_episodes[name].get_observations() for episode in episodes])
        for name in names
    }


KINDS = ("PPO", "DQN", "SAC", "IMPALA")
FLAGS = list(product((False, True), repeat=3))
SOME = {(KINDS[i % 3], *flags) for i, flags in enumerate(FLAGS)}  # all flags, and each kind with each single flag


@pytest.mark.parametrize(
    ("kind", "agents", "explore", "separate"),
    [
        pytest.param(*case, marks=() if case in SOME else pytest.mark.slow)
        for case in ((k, *f) for k in KINDS for f in FLAGS)
    ],
)
def test_evaluation_acts_on_statistics_of_training(kind: str, agents: bool, explore: bool, separate: bool) -> None:
    config = filtered(kind, agents).env_runners(explore=explore)
    if separate:
        config.evaluation(evaluation_interval=100, evaluation_num_env_runners=0)
    config.evaluation(evaluation_duration=2, evaluation_config={"explore": False})
    sampled: list[Any] = []
    algorithm = config.build_algo()
    with pytest.raises(StateMismatch, match="training has no statistics"):
        algorithm.evaluate()
    algorithm.train()
    runner = algorithm.eval_env_runner if separate else algorithm.env_runner
    before, original = moments_of(algorithm.env_runner), runner.sample
    runner.sample = lambda **arguments: sampled.extend(original(**arguments)) or sampled
    algorithm.evaluate()
    runner.sample = original
    assert before
    assert all(known.count >= 20 for known in before.values())
    for moments in (moments_of(runner), moments_of(algorithm.env_runner)):
        assert moments.keys() == before.keys()
        assert all(moments[path].equals(before[path]) for path in before)
    for name, rows in received(sampled, agents).items():
        (known,) = [known for path, known in before.items() if name is None or name in path]
        raw = rows * known.deviation() + known.mean
        assert np.allclose(raw, np.rint(raw), atol=1e-3)
        assert rows.std() > 0.1
        assert abs(rows.mean()) < 1
    algorithm.train()
    assert all(moments_of(algorithm.env_runner)[path].count > before[path].count for path in before)
    algorithm.stop()


def test_callbacks_of_the_user_stay() -> None:
    calls: list[str] = []
    config = install(ppo().callbacks(on_evaluate_start=lambda **_: calls.append("user")))
    config.evaluation(evaluation_num_env_runners=0, evaluation_duration=1)
    algorithm = config.build_algo()
    algorithm.evaluate()
    algorithm.stop()
    assert calls == ["user"]
    copy = algorithm.config.copy(copy_frozen=False)
    uninstall(copy)
    assert len(copy.callbacks_on_evaluate_start) == 1


def test_connector_of_next_observations_is_translated() -> None:
    config = install(ppo(Scripted)).training(
        learner_connector=lambda *_: AddNextObservationsFromEpisodesToTrainBatch(), minibatch_size=None
    )
    algorithm = config.build_algo()
    learner, episodes = algorithm.learner_group._learner, algorithm.env_runner.sample(num_timesteps=40)
    batch = learner._learner_connector(rl_module=learner.module, batch={}, episodes=episodes, shared_data={})
    expected = np.concatenate([episode.get_observations()[1:] for episode in episodes])
    assert np.array_equal(batch["default_policy"]["new_obs"].numpy(), expected)
    algorithm.stop()


def test_env_runner_that_is_made_again_has_other_episode_ids() -> None:
    ids: list[str] = []
    for _ in range(2):
        runner = install(ppo(Scripted)).build_algo().env_runner
        ids += [episode.id_ for episode in runner.sample(num_episodes=8)]
    assert len(set(ids)) == len(ids) == 16


@pytest.mark.parametrize("agents", [False, True])
def test_most_likely_actions_have_log_probability_0(agents: bool) -> None:
    algorithm = install(multi_agent(ppo(), ScriptedAgents) if agents else ppo(Scripted)).build_algo()
    for episode in algorithm.env_runner.sample(num_timesteps=20, explore=False):
        for part in episode.agent_episodes.values() if agents else [episode]:
            log_probs = part.get_extra_model_outputs("action_logp")
            assert len(log_probs) == len(part)
            assert not np.any(log_probs)
    algorithm.stop()
