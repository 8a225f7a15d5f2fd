"""`explain_episode` against formulas, for feed-forward and recurrent policies, whole episodes and chunks."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from connectors import explain_episode, learner_pipeline
from episode_learners import LSTMPolicy, MLPPolicy, PPOConfig, ppo_pipeline
from episode_runners import SingleAgentEnvRunner
from episodes import SingleAgentEpisode
from episodes.errors import InvalidArgument

ENV = gym.make("CartPole-v1")


def episode(**facts: Any) -> SingleAgentEpisode:
    """Return an episode of random actions, which is terminated, cut or truncated."""
    with SingleAgentEnvRunner("CartPole-v1", num_envs=1, seed=3) as runner:
        recorded = runner.sample(num_episodes=1, random_actions=True)[0]
    arrays = recorded.get_observations(), recorded.get_actions(), recorded.get_rewards()
    spaces = {"observation_space": ENV.observation_space, "action_space": ENV.action_space}
    return SingleAgentEpisode.from_arrays(*arrays, **(facts or {"terminated": True}), **spaces)


def tracks_of(explained: SingleAgentEpisode) -> dict[str, np.ndarray]:
    return explained.get_extra_model_outputs("learner")


@pytest.mark.parametrize("facts", [{"terminated": True}, {"truncated": True}, {"id_": "cut"}], ids=str)
def test_explain_episode_values_and_td_errors_equal_formulas(facts: dict[str, Any]) -> None:
    torch.manual_seed(0)
    policy = MLPPolicy(ENV.observation_space, ENV.action_space, hidden_sizes=(8,))
    source = episode(**facts)
    pipeline = ppo_pipeline(policy, PPOConfig(gamma=0.9, lambda_=0.8))
    names = pipeline.names
    tracks = tracks_of(explain_episode(source, pipeline, policy))
    assert pipeline.names == names
    with torch.no_grad():
        values = policy.compute_values({"obs": torch.tensor(source.get_observations())}).numpy().astype(float)
        inputs = policy({"obs": torch.tensor(source.get_observations()[:-1])})["action_dist_inputs"]
    next_values = values[1:].copy()
    next_values[-1] *= not source.is_terminated
    td_errors = source.get_rewards() + 0.9 * next_values - values[:-1]
    advantages = np.zeros(len(source))
    later = 0.0
    for t in reversed(range(len(source))):
        advantages[t] = later = td_errors[t] + 0.9 * 0.8 * later
    np.testing.assert_allclose(tracks["values"], values[:-1], rtol=1e-5)
    np.testing.assert_allclose(tracks["td_errors"], td_errors, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tracks["advantages"], advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tracks["value_targets"], advantages + values[:-1], rtol=1e-4)
    probabilities = inputs.softmax(-1).numpy()
    np.testing.assert_allclose(tracks["action_probs"], probabilities, rtol=1e-4)
    np.testing.assert_allclose(
        tracks["action_prob"], probabilities[np.arange(len(source)), source.get_actions()], rtol=1e-4
    )


def test_explain_episode_of_a_chunk_has_nan_in_its_lookback() -> None:
    policy = MLPPolicy(ENV.observation_space, ENV.action_space, hidden_sizes=(8,))
    whole = episode()
    chunk = whole.slice(slice(4, None), len_lookback_buffer=2)
    explained = explain_episode(chunk, ppo_pipeline(policy, PPOConfig()), policy)
    assert (explained.id_, explained.t_started, len(explained)) == (chunk.id_, 4, len(chunk))
    assert np.isnan(explained.tracks.extra["learner"].data["values"][:2]).all()
    of_whole = tracks_of(explain_episode(whole, ppo_pipeline(policy, PPOConfig()), policy))
    np.testing.assert_allclose(tracks_of(explained)["values"], of_whole["values"][4:], rtol=1e-5)


def test_explain_episode_of_a_recurrent_policy_has_all_steps() -> None:
    torch.manual_seed(0)
    policy = LSTMPolicy(ENV.observation_space, ENV.action_space, hidden_sizes=(8,), state_size=4)
    source = episode()
    tracks = tracks_of(explain_episode(source, ppo_pipeline(policy, PPOConfig()), policy))
    assert {len(track) for track in tracks.values()} == {len(source)}
    assert ((tracks["action_prob"] > 0) & (tracks["action_prob"] < 1)).all()


def test_explain_episode_without_values_has_rewards_to_go() -> None:
    class Uniform:
        def __call__(self, batch: Any, explore: bool | None = None) -> Any:
            return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 2)}

    source = episode()
    tracks = tracks_of(explain_episode(source, learner_pipeline(), Uniform(), gamma=1.0))
    np.testing.assert_allclose(tracks["rewards_to_go"], np.arange(len(source), 0, -1))
    np.testing.assert_allclose(tracks["action_prob"], 0.5)
    assert "values" not in tracks


def test_explained_episode_is_drawn_by_every_view() -> None:
    policy = MLPPolicy(ENV.observation_space, ENV.action_space, hidden_sizes=(8,))
    explained = explain_episode(episode(), ppo_pipeline(policy, PPOConfig()), policy)
    assert "learner/advantages" in explained._repr_html_()


def test_explain_episode_without_steps_is_rejected() -> None:
    empty = SingleAgentEpisode.from_arrays(np.zeros((1, 4)), np.zeros(0, int), np.zeros(0))
    with pytest.raises(InvalidArgument, match="no steps"):
        explain_episode(empty, learner_pipeline(), None)
