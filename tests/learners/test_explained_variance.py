"""Explained variance of value functions, as a function and as a metric of updates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from episode_learners import IMPALA, PPO, LSTMPolicy, MLPPolicy, PPOConfig
from episode_learners.algorithms.explained_variance import explained_variance
from tests.learners.test_ppo import OBSERVATIONS, TWO_ACTIONS, bandit_episodes

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
    policy = kind(OBSERVATIONS, TWO_ACTIONS, hidden_sizes=(16,), generator=torch.Generator().manual_seed(0))
    ppo = PPO(policy, PPOConfig(max_seq_len=7))
    episodes = bandit_episodes()
    batch = ppo.preprocess(episodes)
    mask = batch["loss_mask"] if "loss_mask" in batch else torch.ones(len(batch["vf_preds"]), dtype=torch.bool)
    values, targets = (batch[name][mask].numpy() for name in ("vf_preds", "value_targets"))
    expected = 1 - (targets - values).var() / targets.var()
    assert ppo.update(episodes)["explained_variance"] == pytest.approx(expected, abs=1e-4)


def test_impala_update_reports_explained_variance() -> None:
    impala = IMPALA(MLPPolicy(OBSERVATIONS, TWO_ACTIONS, hidden_sizes=(16,)))
    assert impala.update(bandit_episodes())["explained_variance"] < 1
