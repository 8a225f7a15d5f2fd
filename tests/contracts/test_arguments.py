"""Constructors reject wrong arguments with an error that names the argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mpe2 import simple_spread_v3

import connectors
import connectors.env_to_module as env_to_module
import connectors.learner as learner
import connectors.module_to_env as module_to_env
from benchmarks.torch_cartpole import ACTION_SPACE as ACTIONS
from benchmarks.torch_cartpole import OBSERVATION_SPACE as OBSERVATIONS
from benchmarks.torch_cartpole import TorchCartPole
from connectors.env_to_module import MeanStdFilter
from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner, make_vector_env
from episode_runners.environments import EnvPoolVectorEnv, TorchVectorEnv
from episodes import VectorRecorder
from episodes.errors import EpisodeError, WrongType
from episodes.replay import (
    EpisodeReplayBuffer,
    MultiAgentEpisodeReplayBuffer,
    MultiAgentPrioritizedEpisodeReplayBuffer,
    PrioritizedEpisodeReplayBuffer,
)

SPACES = {"observation_spaces": {"m": OBSERVATIONS}, "action_spaces": {"m": ACTIONS}}
MAKERS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (connectors.ConnectorPipeline, {}),
    (connectors.env_to_module_pipeline, {}),
    (connectors.learner_pipeline, {}),
    (connectors.module_to_env_pipeline, {}),
    (env_to_module.EnvToModulePipeline, {}),
    (learner.LearnerPipeline, {}),
    (module_to_env.ModuleToEnvPipeline, {}),
    (learner.AddColumns, {}),
    (learner.AddPolicyVersions, {}),
    (learner.AddTimeDimensionAndZeroPad, {"max_seq_len": 3}),
    (learner.ComputeReturnsToGo, {}),
    (learner.GeneralizedAdvantageEstimation, {}),
    (learner.VTrace, {}),
    (module_to_env.GetActions, {}),
    (module_to_env.NormalizeAndClipActions, {}),
    (env_to_module.FlattenObservations, {}),
    (env_to_module.FrameStacking, {}),
    (env_to_module.PrevActionsPrevRewards, {}),
    (env_to_module.TransformerContext, {}),
    (MeanStdFilter, {}),
    (VectorRecorder, {"num_envs": 2, "autoreset_mode": "NextStep"}),
    (EpisodeReplayBuffer, {"capacity": 10}),
    (PrioritizedEpisodeReplayBuffer, {"capacity": 10}),
    (MultiAgentEpisodeReplayBuffer, {"capacity": 10}),
    (MultiAgentPrioritizedEpisodeReplayBuffer, {"capacity": 10}),
    (SingleAgentEnvRunner, {"env": "CartPole-v1"}),
    (make_vector_env, {"env": "CartPole-v1"}),
    (connectors.MultiAgentEnvToModule, {"modules": {}}),
    (connectors.MultiAgentLearner, {"modules": {}}),
    (connectors.MultiAgentModuleToEnv, {"modules": {}}),
    (connectors.multi_agent_env_to_module, SPACES),
    (connectors.multi_agent_learner, SPACES),
    (connectors.multi_agent_module_to_env, SPACES),
    (MultiAgentEnvRunner, {"env": simple_spread_v3.parallel_env}),
    (connectors.RolloutBuffer, {"num_envs": 2, "rollout_len": 3, "obs_dim": 4, "action_dim": 1, "device": "cpu"}),
    (EnvPoolVectorEnv, {"task": "CartPole-v1", "num_envs": 2}),
    (TorchVectorEnv, {"simulator": TorchCartPole(2), "observation_space": OBSERVATIONS, "action_space": ACTIONS}),
]
WRONG: dict[str, Any] = {
    "None": None,
    "text": "high",
    "-1": -1,
    "NaN": float("nan"),
    "[]": [],
    "object": object(),
    "1.5": 1.5,
}
SKIPPED = {"name", "policy"}  # whatever there is, or checked elsewhere
RIGHT = {  # arguments that make sense after all
    "None": {"clip_by_value", "reward_dtype", "dtype"},
    "text": {"path", "final_observations", "time_outs", "observation_key"},
    "-1": {"axis", "seed"},
    "[]": {
        "connectors",
        "input_columns",
        "pieces",
        "hooks",
        "extra_model_outputs",
        "agent_ids",
        "seed",
        "joint",
        "info_keys",
    },
    "1.5": {"alpha", "beta", "min_priority", "clip_by_value", "clip_rho", "clip_pg_rho"},
}


@pytest.mark.parametrize(("make", "arguments"), MAKERS, ids=lambda value: getattr(value, "__name__", ""))
def test_constructor_wrong_argument_raises(make, arguments):
    make(**arguments)
    for name, parameter in inspect.signature(make).parameters.items():
        if name in SKIPPED or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        for kind, value in WRONG.items():
            is_default = value is None and parameter.default is None
            if is_default or name in RIGHT.get(kind, ()):
                continue
            if not refuses(make, {**arguments, name: value}):
                pytest.fail(f"{make.__name__}({name}={value!r}) is taken without a word")


def refuses(make: Callable[..., Any], arguments: dict[str, Any]) -> bool:
    try:
        make(**arguments)
    except EpisodeError:
        return True
    return False


def test_hook_without_callback_raises():
    with pytest.raises(WrongType, match="none of the methods on_episode_start"):
        SingleAgentEnvRunner("CartPole-v1", hooks=[object()])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_priorities_accept_tensors_of_any_precision(dtype):
    buffer = PrioritizedEpisodeReplayBuffer(10, seed=0)
    with SingleAgentEnvRunner("CartPole-v1", seed=0) as runner:
        buffer.add(runner.sample(num_timesteps=4, random_actions=True))
    buffer.update_priorities([0, 1, 2], torch.tensor([1.0, 0.0, 0.5], dtype=dtype, requires_grad=True))
    assert set(buffer.sample(64).indices.tolist()) <= {0, 2, 3}
    with pytest.raises(WrongType, match="give a number for each step"):
        buffer.update_priorities([0], ["high"])
