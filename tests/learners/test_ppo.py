"""PPO on constructed packs: the loss, the direction of the gradient, minibatches, and the state of a run."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from connectors import Connector
from episode_learners import BC, IMPALA, PPO, LSTMPolicy, MLPPolicy, PPOConfig, linear_decay
from episode_learners.algorithms.explained_variance import explained_variance
from episode_learners.algorithms.ppo import ppo_loss, ppo_pipeline
from episode_runners import SingleAgentEnvRunner
from episodes.errors import InvalidArgument, UnknownKey
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from tests.learners.weights import assert_same_weights

OBSERVATIONS = spaces.Box(-1.0, 1.0, (2,))
TWO_ACTIONS = spaces.Discrete(2)


def policy(seed: int = 0, action_space: spaces.Space = TWO_ACTIONS) -> MLPPolicy:
    return MLPPolicy(OBSERVATIONS, action_space, hidden_sizes=(16,), generator=torch.Generator().manual_seed(seed))


def bandit_episodes(num: int = 8, length: int = 16, seed: int = 0) -> list[SingleAgentEpisode]:
    """Return episodes in which action 1 has reward 1 and action 0 has reward 0, chosen uniformly."""
    rng = np.random.default_rng(seed)
    episodes = []
    for i in range(num):
        actions = rng.integers(0, 2, length)
        episode = SingleAgentEpisode.from_arrays(
            rng.uniform(-1, 1, (length + 1, 2)).astype(np.float32),
            actions,
            actions.astype(np.float64),
            terminated=i % 2 == 0,
            truncated=i % 2 == 1,
            extra_model_outputs={"action_logp": np.full(length, np.log(0.5), np.float32)},
        )
        episodes.append(episode)
    return episodes


def test_update_with_list_equals_update_with_pack():
    learned = []
    for episodes in (bandit_episodes(), EpisodePack.from_episodes(bandit_episodes())):
        ppo = PPO(policy(), seed=1)
        metrics = ppo.update(episodes)
        assert set(metrics) >= {"policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "gradient_norm"}
        learned.append(ppo)
    assert_same_weights(*learned)


def test_update_does_not_change_episodes():
    episodes, untouched = bandit_episodes(), bandit_episodes()
    PPO(policy()).update(episodes)
    for episode, same in zip(episodes, untouched, strict=True):
        assert np.array_equal(episode.get_observations(), same.get_observations())
        assert np.array_equal(episode.get_rewards(), same.get_rewards())


def test_epoch_has_each_step_once():
    observations: list[torch.Tensor] = []

    class Watched(MLPPolicy):
        def forward(self, batch, explore=None):
            observations.append(batch["obs"])
            return super().forward(batch, explore)

    episodes = bandit_episodes(num=3, length=7)
    ppo = PPO(Watched(OBSERVATIONS, TWO_ACTIONS), PPOConfig(num_epochs=2, minibatch_size=10))
    ppo.update(episodes)
    expected = np.concatenate([episode.get_observations()[:-1] for episode in episodes])
    assert [len(obs) for obs in observations] == [10, 11] * 2
    orders = [torch.cat(observations[:2]).numpy(), torch.cat(observations[2:]).numpy()]
    for order in orders:
        assert np.array_equal(order[np.lexsort(order.T)], expected[np.lexsort(expected.T)])
    assert not np.array_equal(orders[0], orders[1])


def test_max_kl_ends_the_update_early():
    steps = []
    for max_kl in (None, 1e-9):
        ppo = PPO(policy(), PPOConfig(learning_rate=1e-2, num_epochs=10, minibatch_size=64, max_kl=max_kl))
        ppo.update(bandit_episodes())
        steps.append(float(ppo.optimizer.state_dict()["state"][0]["step"]))
    assert steps == [20.0, 2.0]


def test_linear_decay_lowers_learning_rate_to_zero():
    ppo = PPO(policy(), PPOConfig(learning_rate=0.4, num_epochs=1), scheduler=linear_decay(4))
    rates = [ppo.update(bandit_episodes(num=1))["learning_rate"] for _ in range(6)]
    assert rates == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.0, 0.0])


def test_restored_state_shares_no_memory():
    ppo, restored = PPO(policy()), PPO(policy())
    ppo.update(bandit_episodes(seed=1))
    restored.load_state_dict(ppo.state_dict())
    moments = ppo.optimizer.state_dict()["state"][0]["exp_avg"].clone()
    restored.update(bandit_episodes(seed=2))
    assert torch.equal(ppo.optimizer.state_dict()["state"][0]["exp_avg"], moments)


def test_padding_does_not_change_the_update():
    """A recurrent train batch with garbage in its padding gives the same weights as one with zeros there."""
    generator = torch.Generator().manual_seed(3)
    mask = torch.arange(5)[None] < torch.tensor([5, 2, 4])[:, None]  # [3, 5]
    zeros = {part: {name: torch.zeros(3, 8) for name in ("h", "c")} for part in ("actor", "critic")}

    def batch(padding: float) -> dict[str, object]:
        generator.manual_seed(3)
        columns = {
            "obs": torch.randn(3, 5, 2, generator=generator),
            "action_logp": -torch.rand(3, 5, generator=generator),
            "advantages": torch.randn(3, 5, generator=generator),
            "value_targets": torch.randn(3, 5, generator=generator),
        }
        for column in columns.values():
            column[~mask] = padding
        actions = torch.randint(0, 2, (3, 5), generator=generator) * mask
        return {**columns, "actions": actions, "loss_mask": mask, "state_in": zeros}

    learned = []
    for padding in (0.0, 1e3):
        recurrent = LSTMPolicy(OBSERVATIONS, TWO_ACTIONS, state_size=8, generator=torch.Generator().manual_seed(0))
        PPO(recurrent, PPOConfig(num_epochs=2, minibatch_size=10)).learn(batch(padding))
        learned.append(recurrent)
    assert_same_weights(*learned)


def test_batch_without_column_raises_with_advice():
    episode = SingleAgentEpisode.from_arrays(np.zeros((3, 2), np.float32), np.zeros(2, np.int64), np.ones(2))
    with pytest.raises(UnknownKey, match=r"action_logp.*explore=True"):
        PPO(policy()).update([episode])


def test_update_without_steps_raises():
    reset = SingleAgentEpisode.from_arrays(
        np.zeros((1, 2), np.float32),
        np.zeros(0, np.int64),
        np.zeros(0),
        extra_model_outputs={"action_logp": np.zeros(0, np.float32)},
    )
    with pytest.raises(InvalidArgument, match="no steps"):
        PPO(policy()).update([reset])


@pytest.mark.parametrize("standardize", [True, False])
def test_nan_reward_is_named_by_episode_and_changes_nothing(standardize):
    config = PPOConfig(minibatch_size=8, num_epochs=2, standardize_advantages=standardize)
    learner, twin = PPO(policy(), config), PPO(policy(), config)
    for algorithm in (learner, twin):
        algorithm.update(bandit_episodes(2))  # the optimizer has moments already
    episodes = bandit_episodes(2)
    episodes[1].set_rewards(new_data=[float("nan")], at_indices=[3])
    with pytest.raises(InvalidArgument, match=rf"the weights are as before.*\(episode {episodes[1].id_}, step 3\)"):
        learner.update(episodes)
    assert learner.update(bandit_episodes(3)) == twin.update(bandit_episodes(3))
    assert_same_weights(learner, twin)


def test_infinite_loss_of_finite_batch_names_no_row():
    learner = PPO(policy())
    with torch.no_grad():
        learner.policy.critic[0].weight.fill_(float("nan"))
    config = PPOConfig(gamma=0.0, lambda_=0.0)
    pipeline = ppo_pipeline(policy(), config)
    learner.pipeline = lambda rl_module, **arguments: pipeline(rl_module=policy(), **arguments)
    with pytest.raises(InvalidArgument, match="All columns of the batch are finite"):
        learner.update(bandit_episodes(2))


def test_value_clip_bounds_the_gain():
    learner = policy()
    outputs = {"action_dist_inputs": torch.zeros(4, 2), "vf_preds": torch.tensor([0.0, 1.0, 2.0, -3.0])}
    batch = {
        "actions": torch.zeros(4, dtype=torch.int64),
        "action_logp": torch.full((4,), 0.5).log(),
        "advantages": torch.zeros(4),
        "value_targets": torch.tensor([0.1, 5.0, 0.0, -1.0]),
        "vf_preds": torch.zeros(4),
    }
    _, measured = ppo_loss(learner.distribution, outputs, batch, PPOConfig(value_clip=0.2))
    expected = np.mean([0.1**2, 4.8**2, 2.0**2, 2.0**2])  # the worse of the value and the clipped value
    assert float(measured["value_loss"]) == pytest.approx(expected)


@pytest.mark.parametrize("kind", [MLPPolicy, LSTMPolicy])
def test_value_clip_is_around_old_values(kind):
    learner = PPO(kind(OBSERVATIONS, TWO_ACTIONS), PPOConfig(value_clip=0.1, max_seq_len=5, gamma=0.9))
    toy = TransformObservation(gym.make("CartPole-v1"), lambda observation: observation[:2].clip(-1, 1), OBSERVATIONS)
    with SingleAgentEnvRunner(lambda: toy, learner.policy, seed=0) as runner:
        done = runner.sample(num_timesteps=40)
    batch = learner.preprocess(done)
    with torch.no_grad():
        values = learner.policy(batch)["vf_preds"]
    mask = batch.get("loss_mask", torch.ones_like(values, dtype=torch.bool))
    torch.testing.assert_close(batch["vf_preds"][mask], values[mask])
    assert learner.update(done)["value_loss"] > 0


def test_episodes_of_other_spaces_are_rejected_by_name():
    more_actions, widened_dtype = spaces.Discrete(5), spaces.Box(-1.0, 1.0, (3,))
    for observation_space, done, message in (
        (OBSERVATIONS, more_actions, r"actions\[0\] is 4 .*, which is not in the policy's space Discrete\(2\)"),
        (widened_dtype, TWO_ACTIONS, r"observation_space Box\(-1.0, 1.0, \(3,\), float32\), the policy Box"),
    ):
        episode = SingleAgentEpisode.from_arrays(
            np.zeros((5, *observation_space.shape), np.float32),
            np.full(4, done.n - 1),
            np.zeros(4),
            terminated=True,
            extra_model_outputs={"action_logp": np.zeros(4, np.float32)},
            observation_space=observation_space,
            action_space=done,
        )
        for algorithm in (PPO(policy()), BC(policy())):
            with pytest.raises(InvalidArgument, match=message):
                algorithm.update([episode])


def test_added_column_reaches_the_policy_while_learning():
    class Halves(Connector):
        writes = ("half",)

        def __call__(self, *, batch, episodes, **kwargs):
            batch["half"] = np.full(episodes.num_steps, 0.5, np.float32)
            batch["note"] = ["said"] * episodes.num_steps
            return batch

        reads_tracks = True

    class Reading(MLPPolicy):
        def forward(self, batch, explore=None):
            assert set(batch) >= {"half", "obs"}
            assert not set(batch) & {"rewards", "terminateds", "vf_preds"}
            return super().forward({**batch, "obs": batch["obs"] * batch["half"][:, None]}, explore)

    learner = Reading(OBSERVATIONS, TWO_ACTIONS, hidden_sizes=(4,))
    config = PPOConfig(num_epochs=1)
    pipeline = ppo_pipeline(learner, config, pieces=[Halves()], observation_space=OBSERVATIONS)
    algorithm = PPO(learner, config, pipeline=pipeline)
    assert algorithm.update(bandit_episodes())["entropy"] > 0


# Explained variance

NUMBERS = st.floats(-100, 100, width=32)


@given(
    arrays.arrays(np.float64, (3, 5), elements=NUMBERS),
    arrays.arrays(np.float64, (3, 5), elements=NUMBERS),
    arrays.arrays(bool, (3, 5)).filter(np.any),
)
def test_explained_variance_masked_equals_numpy(values: np.ndarray, targets: np.ndarray, mask: np.ndarray) -> None:
    result = explained_variance(*map(torch.from_numpy, (values, targets, mask))).item()
    variance = targets[mask].var()
    if variance > 1e-6:
        assert result == pytest.approx(1 - (targets - values)[mask].var() / variance)


def test_explained_variance_constant_targets_is_nan() -> None:
    assert torch.isnan(explained_variance(torch.rand(4), torch.ones(4)))


@pytest.mark.parametrize("kind", [MLPPolicy, LSTMPolicy])
def test_ppo_update_reports_explained_variance(kind: type) -> None:
    """Check the metric with values from before the update, also with the padded rows of a recurrent policy."""
    ppo = PPO(kind(OBSERVATIONS, TWO_ACTIONS, hidden_sizes=(16,)), PPOConfig(max_seq_len=7))
    episodes = bandit_episodes()
    batch = ppo.preprocess(episodes)
    mask = batch["loss_mask"] if "loss_mask" in batch else torch.ones(len(batch["vf_preds"]), dtype=torch.bool)
    values, targets = (batch[name][mask].numpy() for name in ("vf_preds", "value_targets"))
    expected = 1 - (targets - values).var() / targets.var()
    assert ppo.update(episodes)["explained_variance"] == pytest.approx(expected, abs=1e-4)


def test_impala_update_reports_explained_variance() -> None:
    impala = IMPALA(policy())
    assert impala.update(bandit_episodes())["explained_variance"] < 1
