"""Requirements of pipelines, runners and algorithms on a policy, and defaults for missing attributes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from connectors import (
    Connector,
    ConnectorPipeline,
    distribution_for,
    env_to_module_pipeline,
    learner_pipeline,
    module_to_env_pipeline,
)
from connectors.distributions import Categorical
from connectors.learner import GeneralizedAdvantageEstimation, VTrace
from connectors.module_to_env import GetActions
from connectors.policy import module_of
from episode_learners import PPO, MLPPolicy
from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner
from episodes import SingleAgentEpisode
from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch, WrongType

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)


class Uniform:
    """Policy with the smallest possible interface."""

    def __call__(self, batch: dict[str, Any], explore: bool | None = None) -> dict[str, Any]:
        return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 2)}


class RLlibStyle(Uniform):
    """Policy that reports with methods, as in RLlib, that it has no recurrent state."""

    def is_stateful(self) -> bool:
        return False

    def get_initial_state(self) -> dict[str, Any]:
        return {}

    def compute_values(self, batch: dict[str, Any]) -> torch.Tensor:
        return batch["obs"].sum(-1)


class Sharp(Categorical):
    """Categorical distribution whose logits are multiplied by ten."""

    def log_prob(self, inputs: torch.Tensor, actions: Any) -> torch.Tensor:
        return super().log_prob(10 * inputs, actions)

    def mode(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.argmin(-1)


class WithDistribution(RLlibStyle):
    distribution = Sharp(2)

    def __call__(self, batch: dict[str, Any], explore: bool | None = None) -> dict[str, Any]:
        return {"action_dist_inputs": torch.tensor([[0.0, 1.0]]).repeat(len(batch["obs"]), 1)}


def an_episode(**extra: Any) -> SingleAgentEpisode:
    return SingleAgentEpisode.from_arrays(
        np.ones((4, 3), np.float32), [0, 1, 0], np.ones(3), extra_model_outputs=extra or None
    )


def test_policy_with_is_stateful_false_is_not_recurrent() -> None:
    policy = RLlibStyle()
    assert not module_of(policy).is_recurrent
    assert not module_of(None).is_recurrent
    assert "AddStates" not in env_to_module_pipeline(BOX, spaces.Discrete(2), policy=policy)
    assert "RemoveTimeDimension" not in module_to_env_pipeline(BOX, spaces.Discrete(2), policy=policy)
    returns = GeneralizedAdvantageEstimation()
    pipeline = learner_pipeline(BOX, spaces.Discrete(2), returns=returns, policy=policy)
    assert pipeline(rl_module=policy, episodes=[an_episode()])["advantages"].shape == (3,)
    assert SingleAgentEnvRunner("CartPole-v1", policy, num_envs=2).sample(num_timesteps=4).num_steps == 4


def test_batches_go_where_a_policys_parameters_are() -> None:
    assert module_of(torch.nn.Linear(1, 1, device="meta")).device == torch.device("meta")
    assert module_of(lambda batch, explore=None: {}).device == torch.device("cpu")
    placed = type("Placed", (Uniform,), {"device": "meta"})()
    assert module_of(placed).device == torch.device("meta")


def test_actions_are_sampled_from_policy_distribution() -> None:
    policy, inputs = WithDistribution(), torch.tensor([[0.0, 1.0], [3.0, 1.0]])
    pipeline = module_to_env_pipeline(action_space=spaces.Discrete(2))
    result = pipeline(rl_module=policy, batch={"action_dist_inputs": inputs}, episodes=[0, 0], explore=False)
    assert result["actions"].tolist() == [0, 1]
    expected = policy.distribution.log_prob(inputs, torch.tensor([0, 1]))
    assert result["action_logp"].tolist() == [0, 0]  # the policy that acted was deterministic
    late = GetActions(None, spaces.Discrete(2), log_probs=False)
    np.testing.assert_allclose(
        late.log_probs({"action_dist_inputs": inputs.numpy()}, result["actions"], policy), expected
    )
    assert isinstance(late.distribution_of(Uniform()), type(distribution_for(spaces.Discrete(2))))


def test_v_trace_ratios_use_policy_distribution() -> None:
    policy = WithDistribution()
    inputs, actions = torch.tensor([[0.0, 1.0]] * 3), torch.tensor([0, 1, 0])
    on_policy = policy.distribution.log_prob(inputs, actions).numpy()
    pipeline = learner_pipeline(BOX, spaces.Discrete(2), returns=VTrace(gamma=0.9))
    batch = pipeline(rl_module=policy, episodes=[an_episode(action_logp=on_policy)])
    expected = learner_pipeline(
        BOX, spaces.Discrete(2), returns=GeneralizedAdvantageEstimation(gamma=0.9, lambda_=1.0)
    )(rl_module=policy, episodes=[an_episode()])
    torch.testing.assert_close(batch["value_targets"], expected["value_targets"])


def test_v_trace_without_a_policy_raises() -> None:
    pipeline = learner_pipeline(BOX, spaces.Discrete(2), returns=VTrace())
    with pytest.raises(InvalidArgument, match=r"VTrace needs the policy; .* with rl_module=policy"):
        pipeline(episodes=[an_episode(action_logp=np.zeros(3))])


def test_head_of_wrong_width_raises() -> None:
    pipeline = module_to_env_pipeline(action_space=spaces.Discrete(2))
    with pytest.raises(ShapeMismatch, match=r"has shape \[3, 4\]; Categorical takes 2 inputs for an action"):
        pipeline(batch={"action_dist_inputs": torch.zeros(3, 4)}, episodes=[0] * 3)


def test_missing_policy_members_are_named_by_constructors() -> None:
    with pytest.raises(WrongType, match="SingleAgentEnvRunner: a policy is called as policy"):
        SingleAgentEnvRunner("CartPole-v1", object())  # type: ignore[arg-type]
    with pytest.raises(WrongType, match="MultiAgentEnvRunner: a policy is called as policy"):
        MultiAgentEnvRunner(object(), {"a": 3})
    with pytest.raises(InvalidArgument, match=r"PPO needs .*; Uniform has no parameters"):
        PPO(Uniform())  # type: ignore[arg-type]


def test_unusable_pipeline_is_rejected_by_runner_constructor() -> None:
    with pytest.raises(WrongType, match=r"env_to_module=ConnectorPipeline: a runner needs .*, which has no .* rewrite"):
        SingleAgentEnvRunner("CartPole-v1", Uniform(), env_to_module=ConnectorPipeline())  # type: ignore[arg-type]
    with pytest.raises(WrongType, match=r"module_to_env=ConnectorPipeline: a runner needs .*, which has no .* act"):
        SingleAgentEnvRunner("CartPole-v1", Uniform(), module_to_env=ConnectorPipeline())  # type: ignore[arg-type]


def test_hooks_of_a_policys_layers_are_called_while_sampling() -> None:
    env = gym.make("CartPole-v1")
    policy = MLPPolicy(env.observation_space, env.action_space)
    calls: list[str] = []
    for name in ("actor", "actor.0"):
        policy.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    runner = SingleAgentEnvRunner("CartPole-v1", policy, num_envs=2)  # which has tried the policy on samples
    calls.clear()
    runner.sample(num_timesteps=2)
    assert calls == ["actor.0", "actor"]


def test_half_precision_outputs_are_recorded_as_float32() -> None:
    class Half(MLPPolicy):
        def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
            outputs = super().forward(batch, explore)
            return {name: column.bfloat16() for name, column in outputs.items()} | {"seen": batch["obs"].bfloat16()}

    env = gym.make("CartPole-v1")
    pack = SingleAgentEnvRunner("CartPole-v1", Half(env.observation_space, env.action_space), num_envs=2).sample(
        num_timesteps=10
    )
    assert {array.dtype for array in pack.extra_model_outputs.values()} == {np.dtype(np.float32)}
    batch = learner_pipeline(returns=VTrace())(rl_module=Half(env.observation_space, env.action_space), episodes=pack)
    assert batch["advantages"].dtype == torch.float32


def test_policy_that_writes_to_state_keeps_recorded_states() -> None:
    class Counting:
        """Recurrent policy that counts steps and overwrites its input state."""

        def get_initial_state(self) -> dict[str, Any]:
            return {"h": np.zeros(1, np.float32)}

        def __call__(self, batch: dict[str, Any], explore: bool | None = None) -> dict[str, Any]:
            state = batch["state_in"]["h"]
            outputs = {"action_dist_inputs": torch.zeros(len(state), 1, 2), "state_out": {"h": state + 1}}
            state.fill_(-7)
            return outputs

    runner = SingleAgentEnvRunner("CartPole-v1", Counting(), num_envs=3, seed=1)
    for episode in [*runner.sample(num_timesteps=60), *runner.sample(num_timesteps=60)]:
        states = episode.get_extra_model_outputs("state_out")["h"][:, 0]
        assert states.tolist() == [episode.t_started + t + 1 for t in range(len(episode))]


def test_connector_that_adds_rows_to_observations_raises() -> None:
    class Twice(Connector):
        def __call__(self, *, batch: dict[str, Any], episodes: Any, **kwargs: Any) -> dict[str, Any]:
            for episode in self.single_agent_episode_iterator(episodes):
                self.add_batch_item(batch, "obs", episode.get_observations(-1), episode)
            return batch

    runner = SingleAgentEnvRunner("CartPole-v1", Uniform(), num_envs=2, env_to_module=env_to_module_pipeline())

    runner.env_to_module.insert_after("AddObservations", Twice())  # type: ignore[attr-defined]
    with pytest.raises(TrackMismatch, match="column 'obs' has 4 rows for 2 episodes: add_batch_item appends"):
        runner.sample(num_timesteps=2)
