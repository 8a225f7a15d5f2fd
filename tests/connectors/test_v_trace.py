"""V-trace of episodes that an older policy collected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from reference_connectors import Accumulator, Sum
from reference_returns import PlainEpisode, plain_vtrace

from connectors import learner_pipeline
from connectors.learner import VTrace
from episodes import SingleAgentEpisode
from episodes.errors import InvalidArgument

ACTIONS = spaces.Discrete(2)
OLD_LOGP = np.log(0.5)


class Leaning(Sum):
    """Policy that takes action 1 more often for larger observations."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        assert not torch.is_grad_enabled()
        logit = batch["obs"].sum(-1, keepdim=True)
        return {"action_dist_inputs": torch.cat([-logit, logit], -1)}


class Remembering(Leaning, Accumulator):
    """The policy `Leaning` with a recurrent state that only its values use."""

    compute_values = Accumulator.compute_values


def collected(length: int, seed: int, **ending: bool) -> SingleAgentEpisode:
    rng = np.random.default_rng(seed)
    return SingleAgentEpisode.from_arrays(
        rng.normal(size=(length + 1, 2)).astype(np.float32) / 4,
        rng.integers(0, 2, length),
        rng.normal(size=length),
        extra_model_outputs={"action_logp": np.full(length, OLD_LOGP, np.float32)},
        action_space=ACTIONS,
        **ending,
    )


def expected(episode: SingleAgentEpisode, values: list[float]) -> tuple[list[float], list[float]]:
    """Return (advantages, targets) of the plain reference implementation."""
    sums = episode.get_observations().sum(-1).astype(np.float64)[:-1]
    logits = np.where(episode.get_actions() == 1, sums, -sums)
    ratios = 1 / (1 + np.exp(-2 * logits)) / np.exp(OLD_LOGP)
    plain = PlainEpisode(
        rewards=episode.get_rewards().tolist(),
        values=values,
        ratios=ratios.tolist(),
        terminated=episode.is_terminated,
        truncated=episode.is_truncated,
    )
    return plain_vtrace(plain, 0.9, 0.8, 1.1, 1.2)


EPISODES = [collected(5, 1, terminated=True), collected(1, 2), collected(7, 3, truncated=True)]


@pytest.mark.parametrize("minibatch_size", [3, 8192])
def test_v_trace_of_a_batch_is_that_of_each_episode(minibatch_size: int) -> None:
    piece = VTrace(gamma=0.9, lambda_=0.8, clip_rho=1.1, clip_pg_rho=1.2, minibatch_size=minibatch_size)
    batch = learner_pipeline(returns=piece)(rl_module=Leaning(), episodes=EPISODES)
    plain = [expected(episode, episode.get_observations().sum(-1).tolist()) for episode in EPISODES]
    check(batch["advantages"], batch["value_targets"], list(zip(*plain, strict=True)))


def test_v_trace_of_padded_rows_is_that_of_each_episode() -> None:
    piece = VTrace(gamma=0.9, lambda_=0.8, clip_rho=1.1, clip_pg_rho=1.2, minibatch_size=6)
    pipeline = learner_pipeline(returns=piece, policy=Remembering(), max_seq_len=3)
    batch = pipeline(rl_module=Remembering(), episodes=[with_states(episode) for episode in EPISODES])
    plain = [expected(episode, memories(episode)) for episode in EPISODES]
    mask = batch["loss_mask"]
    check(batch["advantages"][mask], batch["value_targets"][mask], list(zip(*plain, strict=True)))


def check(advantages: torch.Tensor, targets: torch.Tensor, plain: list[Any]) -> None:
    for column, expected_column in zip((advantages, targets), plain, strict=True):
        np.testing.assert_allclose(column, np.concatenate(expected_column), rtol=1e-4, atol=1e-5)


def memories(episode: SingleAgentEpisode) -> list[float]:
    memory, values = 0.0, []
    for observation in episode.get_observations():
        memory = 0.5 * memory + float(observation.sum())
        values.append(memory)
    return values


def with_states(episode: SingleAgentEpisode) -> SingleAgentEpisode:
    changed = SingleAgentEpisode.from_state(episode.get_state())
    states = {"h": np.array(memories(episode)[:-1], np.float32)[:, None]}
    changed.set_extra_model_outputs(key="state_out", new_data=states)
    return changed


def test_v_trace_needs_an_action_space() -> None:
    episode = collected(2, 1)
    episode.action_space = None
    with pytest.raises(InvalidArgument, match="VTrace needs the action space"):
        learner_pipeline(returns=VTrace())(rl_module=Leaning(), episodes=[episode])
