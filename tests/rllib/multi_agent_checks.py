"""APPO, IMPALA, DQN and SAC of RLlib with `install` and several agents."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from episode_runners.rllib import install
from tests.rllib.rllib_envs import ScriptedAgents, multi_agent

REPLAY = {"type": "MultiAgentPrioritizedEpisodeReplayBuffer", "capacity": 2000, "alpha": 0.6, "beta": 0.4}


class ContinuousAgents(ScriptedAgents):
    """The scripted agents with continuous actions."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.action_spaces = dict.fromkeys(self.agents, spaces.Box(-1, 1, (1,), np.float32))


@pytest.mark.parametrize("kind", [DQNConfig, SACConfig, IMPALAConfig, APPOConfig])
def test_algorithm_trains_the_modules_of_several_agents(kind: Any) -> None:
    config = multi_agent(kind(), ContinuousAgents if kind is SACConfig else ScriptedAgents)
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16])).debugging(seed=1).learners(num_learners=0)
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=2)
    config.reporting(min_sample_timesteps_per_iteration=40, min_time_s_per_iteration=0)
    if kind in (DQNConfig, SACConfig):
        config.training(num_steps_sampled_before_learning_starts=100, replay_buffer_config=REPLAY)
        config.training(train_batch_size_per_learner=8)
    else:
        config.training(train_batch_size_per_learner=40)
    algorithm = install(config).build_algo()
    before = deepcopy(algorithm.learner_group.get_weights())
    num_steps, num_iterations, trained = 0, 0, set()
    while num_iterations < 3 or (num_iterations < 30 and not {"p", "q"} <= trained):
        result = algorithm.train()
        num_iterations += 1
        trained |= {
            name for name, learned in result.get("learners", {}).items() if learned.get("num_module_steps_trained")
        }
        counts = result["env_runners"]
        num_steps += counts["num_env_steps_sampled"]
        assert counts["num_env_steps_sampled_lifetime"] == num_steps
        assert counts["num_module_steps_sampled_lifetime"]["p"] == num_steps  # agent "a" acts at each step
        assert 0.5 * num_steps <= counts["num_module_steps_sampled_lifetime"]["q"] <= 0.7 * num_steps
    assert 40 * num_iterations <= num_steps <= 110 * num_iterations
    assert {"p", "q"} <= trained
    for name, after in algorithm.learner_group.get_weights().items():
        assert any((after[key] != before[name][key]).any() for key in after)
    algorithm.stop()
