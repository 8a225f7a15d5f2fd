"""Invalid outputs of policies and connectors cause clear errors or no harm, and no recorded step is lost."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from connectors import Connector, env_to_module_pipeline
from episode_runners import SingleAgentEnvRunner
from episodes.errors import EpisodeError, InvalidArgument

N = 3


def logits() -> torch.Tensor:
    return torch.zeros(N, 2)


WEIGHT = torch.nn.Parameter(torch.ones(1))
WRONG = {
    "a tensor without data": ({"x": torch.ones(N, device="meta")}, "output 'x' cannot be an array"),
    "a sparse tensor": ({"x": torch.ones(N, 2).to_sparse()}, "output 'x' cannot be an array"),
    "a row too many": ({"x": torch.ones(N + 1)}, r"extra_model_outputs\['x'\]: a row has shape \(4,\)"),
    "no rows": ({"x": 1.0}, r"extra_model_outputs\['x'\]: a row has shape \(\)"),
    "None": ({"x": None}, r"extra_model_outputs\['x'\]: a row holds NoneType"),
    "objects": ({"x": [{}] * N}, r"extra_model_outputs\['x'\]: a row holds"),
    "a key that is no string": ({5: torch.ones(N)}, "extra model output 5: the keys of a policy's outputs are strings"),
    "actions with an axis more": ({"actions": torch.zeros(N, 1).long()}, r"actions have shape \[3, 1\].*Discrete\(2\)"),
    "actions of floats": ({"actions": torch.zeros(N)}, "actions are float32"),
    "one action for all": ({"actions": 0}, r"actions have shape \[\]"),
    "actions of too few": ({"actions": torch.zeros(2).long()}, "2 rows for 3 episodes"),
    "no actions": ({"actions": None}, "returned no 'actions'"),
    "no dict": (torch.zeros(N), "the policy returned a Tensor; return a dict with 'actions'"),
    "logits with an axis more": ({"action_dist_inputs": torch.zeros(N, 1, 2)}, r"actions have shape \[3, 1\]"),
    "logits by name": ({"action_dist_inputs": {"a": logits()}}, "'action_dist_inputs' is a dict"),
    "logits that are NaN": ({"action_dist_inputs": logits() + torch.nan}, "NaN in row 0, for environment 0"),
    "logits of another width": ({"action_dist_inputs": torch.zeros(N, 5)}, "takes 2 inputs for an action"),
}


@pytest.mark.parametrize(("outputs", "message"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("good_calls", [0, 4])
def test_invalid_output_is_named_and_loses_no_step(outputs: Any, message: str, good_calls: int) -> None:
    calls, has_x = 0, isinstance(outputs, dict) and "x" in outputs

    def policy(batch: Any, explore: bool | None = None) -> Any:
        nonlocal calls
        calls += 1
        right = {"action_dist_inputs": logits(), **({"x": torch.ones(N)} if has_x else {})}
        if calls <= good_calls:
            return right
        return {**right, **outputs} if isinstance(outputs, dict) else outputs

    runner = SingleAgentEnvRunner("CartPole-v1", policy, num_envs=N, seed=0)
    with pytest.raises(Exception if good_calls else EpisodeError, match=None if good_calls else message):
        runner.sample(num_timesteps=60)
    if good_calls:
        assert runner.take().num_steps == N * good_calls
    runner.policy = lambda batch, explore=None: {"action_dist_inputs": logits()}
    assert runner.sample(num_timesteps=30).num_steps >= 30


BOX = gym.spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (BOX, torch.zeros(2 * N + 1)),
        (BOX, torch.zeros(N, 3)),
        (BOX, torch.zeros(N, 1, 5)),
        (gym.spaces.Dict(arm=gym.spaces.Box(-np.inf, np.inf, (2,))), torch.zeros(N, 2)),
    ],
)
def test_actions_of_other_shape_raise_before_step(space: gym.Space, actions: Any) -> None:
    env = gym.make_vec("Pendulum-v1", N)
    env.single_action_space = space
    runner = SingleAgentEnvRunner(env, lambda batch, explore=None: {"actions": actions})
    with pytest.raises(EpisodeError, match="actions"):
        runner.sample(num_timesteps=1)
    assert runner.take().num_steps == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float16])
def test_outputs_with_gradients_are_recorded(dtype: torch.dtype) -> None:
    def policy(batch: Any, explore: bool | None = None) -> Any:
        with torch.inference_mode(False), torch.enable_grad():
            return {"action_dist_inputs": logits() * WEIGHT, "x": (torch.ones(N, 2) * WEIGHT).to(dtype)}

    outputs = SingleAgentEnvRunner("CartPole-v1", policy, num_envs=N).sample(num_timesteps=9).extra_model_outputs
    assert outputs["x"].tolist() == np.ones((9, 2)).tolist()


def test_connector_changing_shape_while_acting_raises() -> None:
    class WritesBack(Connector):
        def __call__(self, *, batch: dict[str, Any], episodes: Any, **kwargs: Any) -> dict[str, Any]:
            for episode in self.single_agent_episode_iterator(episodes):
                episode.set_observations(new_data=np.zeros(9, np.float32), at_indices=-1)
            return batch

    env = gym.make("CartPole-v1")
    pipeline = env_to_module_pipeline(env.observation_space, env.action_space, pieces=[WritesBack()])
    runner = SingleAgentEnvRunner("CartPole-v1", lambda batch, explore=None: {}, env_to_module=pipeline)
    with pytest.raises(InvalidArgument, match=r"WritesBack: .*derive the piece from ObservationPreprocessor"):
        runner.sample(num_timesteps=1)
