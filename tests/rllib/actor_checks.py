"""RLlib with `install` and Ray actors: remote env runners, several learners, Tune, killed runners, other algorithms."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import ray
from ray import tune
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter

from episode_runners.rllib import install
from tests.rllib.rllib_envs import (
    Scripted,
    ScriptedAgents,
    SlowCartPole,
    counts_of,
    filter_state,
    filtered,
    log_distance,
    moments_of,
    multi_agent,
    observations_of,
    ppo,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def ray_session() -> Iterator[None]:
    ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    yield
    ray.shutdown()


def lifetime_steps(config: Any, num_iterations: int = 3) -> list[float]:
    """Return the number of sampled steps after each iteration of a config."""
    algorithm = config.build_algo()
    results = [algorithm.train() for _ in range(num_iterations)]
    algorithm.stop()
    for result in results:
        for module_id, metrics in result["learners"].items():
            assert module_id == "__all_modules__" or np.isfinite(metrics["total_loss"])
    return [result["num_env_steps_sampled_lifetime"] for result in results]


def test_remote_runners_merge_filters() -> None:
    config = install(ppo()).env_runners(num_env_runners=2, env_to_module_connector=lambda *args: MeanStdFilter())
    algorithm = config.build_algo()
    for _ in range(2):
        algorithm.train()
    states = algorithm.env_runner_group.foreach_env_runner(lambda runner: repr(filter_state(runner)))
    assert len(set(states)) == 1
    assert "'count': 8" in states[0]
    algorithm.stop()


@pytest.mark.parametrize("kind", [IMPALAConfig, APPOConfig])
@pytest.mark.parametrize("agents", [False, True])
def test_asynchronous_runners_share_filters(kind: Any, agents: bool, tmp_path: Any) -> None:
    config = multi_agent(kind()) if agents else kind().environment("CartPole-v1")
    config.env_runners(num_env_runners=2, num_envs_per_env_runner=2, rollout_fragment_length=20)
    config.env_runners(env_to_module_connector=lambda *args: MeanStdFilter(multi_agent=agents))
    config.training(train_batch_size_per_learner=80).fault_tolerance(restart_failed_env_runners=True)
    config.reporting(min_sample_timesteps_per_iteration=400, min_time_s_per_iteration=0)
    algorithm = install(config).build_algo()
    group = algorithm.env_runner_group
    counts = []
    for _ in range(4):
        algorithm.train()
        local, *remote = counts_of(algorithm)
        sampled = sum(group.foreach_env_runner(observations_of, local_env_runner=False))
        assert 0 < sampled - local <= 1000  # of samples that the local runner has not received yet
        assert all(count > 0 for count in remote)
        counts.append(local)
    assert counts == sorted(set(counts))
    algorithm.save_to_path(tmp_path)
    group.foreach_env_runner(lambda runner: os._exit(1), remote_worker_ids=[1], local_env_runner=False)
    for _ in range(6):
        algorithm.train()
    assert all(count >= counts[-1] for count in counts_of(algorithm))
    algorithm.stop()
    restored = Algorithm.from_checkpoint(tmp_path)
    assert counts_of(restored) == [counts[-1]] * 3
    for _ in range(2):
        restored.train()
    assert counts_of(restored)[0] > counts[-1]
    restored.stop()


@pytest.mark.parametrize("evaluation", ["local", "remote", "parallel"])
@pytest.mark.parametrize("agents", [False, True])
@pytest.mark.parametrize("kind", ["PPO", "DQN", "SAC", "IMPALA"])
def test_evaluation_acts_on_statistics_of_remote_training(kind: str, agents: bool, evaluation: str) -> None:
    config = filtered(kind, agents).env_runners(num_env_runners=1).callbacks(on_episode_end=log_distance)
    config.evaluation(evaluation_interval=1, evaluation_num_env_runners=int(evaluation != "local"))
    config.evaluation(evaluation_duration=2, evaluation_config={"explore": False})
    config.evaluation(evaluation_parallel_to_training=evaluation == "parallel")
    algorithm = config.build_algo()
    counts = []
    for _ in range(2):
        result = algorithm.train()["evaluation"]["env_runners"]
        assert result["num_episodes"] >= 2
        assert result["distance"] < 1e-3
        counts.append(result["num_observed"])
    assert 0 < counts[0] <= counts[1]  # equal in parallel to training: the first evaluation waits for statistics
    if evaluation != "parallel" and kind != "IMPALA":  # whose runners sample all the time
        (trained,) = algorithm.env_runner_group.foreach_env_runner(moments_of, local_env_runner=False)
        for known in algorithm.eval_env_runner_group.foreach_env_runner(moments_of):
            assert known.keys() == trained.keys()
            assert all(known[path].equals(trained[path]) for path in known)
    algorithm.stop()


@pytest.mark.parametrize("agents", [False, True])
def test_two_learners_train(agents: bool) -> None:
    config = install(multi_agent(ppo()) if agents else ppo())
    config.env_runners(num_env_runners=1).learners(num_learners=2)
    steps = lifetime_steps(config)
    assert 2400 <= steps[-1] <= 2430


def test_one_remote_learner_trains_a_recurrent_module() -> None:
    assert lifetime_steps(install(ppo(use_lstm=True, max_seq_len=10)).learners(num_learners=1))[-1] >= 1200


def test_killed_runner_is_replaced_and_no_step_counts_twice() -> None:
    config = install(ppo(SlowCartPole)).env_runners(num_env_runners=2).fault_tolerance(restart_failed_env_runners=True)
    algorithm = config.build_algo()
    algorithm.train()
    group = algorithm.env_runner_group
    before = algorithm.train()["num_env_steps_sampled_lifetime"]
    kill = lambda runner: threading.Timer(0.3, os._exit, [1]).start()  # noqa: E731
    group.foreach_env_runner(kill, remote_worker_ids=[1], local_env_runner=False)
    steps = [before]
    for _ in range(5):
        result = algorithm.train()
        steps.append(result["num_env_steps_sampled_lifetime"])
        assert result["env_runners"]["num_env_steps_sampled"] == steps[-1] - steps[-2]
    assert all(400 <= interval <= 420 for interval in np.diff(steps))
    algorithm.stop()


@pytest.mark.parametrize("agents", [False, True])
def test_environment_that_raises_every_200_steps_keeps_samples_of_others(agents: bool) -> None:
    env = ScriptedAgents if agents else Scripted
    config = multi_agent(ppo(), env) if agents else ppo(env)
    config.environment(env, env_config={"raises_every": 200}).fault_tolerance(restart_failed_sub_environments=True)
    steps = lifetime_steps(install(config), 20)
    assert 20 * 400 <= steps[-1] <= 20 * 404


def test_tune_runs_an_installed_config(tmp_path: Any) -> None:
    config = install(ppo()).training(lr=tune.grid_search([1e-3, 1e-4]))
    checkpoints = tune.CheckpointConfig(checkpoint_at_end=True)
    run = tune.RunConfig(
        stop={"training_iteration": 2}, verbose=0, storage_path=str(tmp_path), checkpoint_config=checkpoints
    )
    results = tune.Tuner("PPO", param_space=config, run_config=run).fit()
    assert not results.errors
    algorithm = Algorithm.from_checkpoint(results[0].checkpoint.path)
    assert type(algorithm.env_runner).__name__ == "EpisodesEnvRunner"
    algorithm.train()
    algorithm.stop()


def test_evaluation_in_parallel_to_training() -> None:
    config = install(ppo()).evaluation(
        evaluation_interval=1, evaluation_num_env_runners=1, evaluation_parallel_to_training=True
    )
    algorithm = config.build_algo()
    assert algorithm.train()["evaluation"]["env_runners"]["num_episodes"] > 0
    algorithm.stop()


OTHERS: dict[str, Callable[[], Any]] = {
    "DQN": lambda: DQNConfig().environment("CartPole-v1").training(num_steps_sampled_before_learning_starts=100),
    "SAC": lambda: SACConfig().environment("Pendulum-v1").training(num_steps_sampled_before_learning_starts=100),
    "IMPALA": lambda: IMPALAConfig().environment("CartPole-v1").env_runners(num_env_runners=1),
    "APPO": lambda: APPOConfig().environment("CartPole-v1").env_runners(num_env_runners=1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_algorithms_train_with_sampled_episodes(name: str) -> None:
    config = install(OTHERS[name]()).reporting(min_sample_timesteps_per_iteration=200, min_time_s_per_iteration=1)
    algorithm = config.env_runners(num_envs_per_env_runner=2).build_algo()
    for _ in range(30):
        result = algorithm.train()
        if result.get("learners", {}).get("default_policy"):
            break
    assert np.isfinite(result["learners"]["default_policy"]["total_loss"])
    algorithm.stop()
