"""Returns and advantages use the rewards and endings of the batch, after changes by other connectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from reference_connectors import Leaning, Remembering
from reference_returns import PlainEpisode, plain_vtrace

from connectors import Connector, learner_pipeline
from connectors.learner import ComputeReturnsToGo, GeneralizedAdvantageEstimation, VTrace
from episodes import SingleAgentEpisode
from episodes.errors import InvalidArgument
from episodes.returns import gae

ACTIONS = spaces.Discrete(2, start=3)


class ClipRewards(Connector):
    """Connector that clips rewards to [-1, 1]."""

    reads = writes = ("rewards",)

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        batch["rewards"] = np.clip(batch["rewards"], -1, 1)
        return batch


class LivesLost(Connector):
    """Connector that makes steps with a reward below -2 terminal."""

    reads = writes = ("terminateds",)

    def __init__(self, column: str = "terminateds") -> None:
        super().__init__()
        self.column = column

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        batch[self.column] = batch[self.column] | (batch["rewards"] < -2)
        return batch


class DoubledInEpisodes(Connector):
    def __call__(self, *, batch: dict[str, Any], episodes: Any, **kwargs: Any) -> dict[str, Any]:
        for episode in self.single_agent_episode_iterator(episodes):
            episode.set_rewards(new_data=2 * episode.get_rewards())
        return batch


def collected(length: int, seed: int = 0, rewards: Any = None, **ending: bool) -> SingleAgentEpisode:
    rng = np.random.default_rng(seed)
    return SingleAgentEpisode.from_arrays(
        rng.normal(size=(length + 1, 2)).astype(np.float32) / 4,
        rng.integers(3, 5, length),
        3 * rng.normal(size=length) if rewards is None else rewards,
        extra_model_outputs={"action_logp": np.full(length, np.log(0.5), np.float32)},
        action_space=ACTIONS,
        **ending,
    )


def pieces_of_returns() -> list[Connector]:
    return [GeneralizedAdvantageEstimation(gamma=0.9), VTrace(gamma=0.9), ComputeReturnsToGo(gamma=0.9, allow_cut=True)]


@pytest.mark.parametrize("policy", [Leaning(), Remembering()], ids=["rows", "padded rows"])
@pytest.mark.parametrize("piece", pieces_of_returns(), ids=str)
def test_clipped_rewards_change_returns(piece: Connector, policy: Any) -> None:
    loud = [collected(7, 1, terminated=True), collected(4, 2)]
    clipped = [
        collected(7, 1, np.clip(loud[0].get_rewards(), -1, 1), terminated=True),
        collected(4, 2, np.clip(loud[1].get_rewards(), -1, 1)),
    ]
    pipeline = learner_pipeline(action_space=ACTIONS, returns=piece, policy=policy)
    expected = pipeline(rl_module=policy, episodes=clipped)
    before = pipeline(rl_module=policy, episodes=loud)
    pipeline.insert_after("AddColumns", ClipRewards())
    result = pipeline(rl_module=policy, episodes=loud)
    for column in piece.writes:
        torch.testing.assert_close(result[column], expected[column])
        assert not torch.allclose(before[column], expected[column])


@pytest.mark.parametrize("piece", pieces_of_returns(), ids=str)
def test_ending_within_episode_ends_its_returns(piece: Connector) -> None:
    policy, rewards = Leaning(), np.array([1.0, -3.0, 2.0, 0.5, -4.0, 1.0])
    whole = collected(6, 3, rewards, truncated=True)
    pieces = [collected(0), *(whole[first:last] for first, last in ((0, 2), (2, 5), (5, 6)))]
    for part in pieces[1:3]:
        part.is_terminated = True
    pipeline = learner_pipeline(action_space=ACTIONS, returns=piece)
    expected = pipeline(rl_module=policy, episodes=pieces)
    pipeline.insert_after("AddColumns", LivesLost())
    result = pipeline(rl_module=policy, episodes=[collected(0), whole])
    for column in piece.writes:
        torch.testing.assert_close(result[column], expected[column])


@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5), seed=st.integers(0, 99), terminal=st.booleans())
def test_advantages_with_any_endings_equal_a_loop(lengths: list[int], seed: int, terminal: bool) -> None:
    episodes = [collected(length, seed + i, truncated=i % 2 == 0) for i, length in enumerate(lengths)]
    returns = GeneralizedAdvantageEstimation(gamma=0.9, lambda_=0.8)
    pipeline = learner_pipeline(action_space=ACTIONS, returns=returns)
    pipeline.insert_after("AddColumns", LivesLost("terminateds" if terminal else "truncateds"))
    result = pipeline(rl_module=Leaning(), episodes=episodes)["advantages"]
    expected: list[float] = []
    for episode in episodes:
        values, rewards = episode.get_observations().sum(-1), episode.get_rewards()
        later, sums = 0.0, []
        for t in reversed(range(len(episode))):
            ends = rewards[t] < -2
            bootstrap = 0.0 if ends and terminal else values[t + 1]
            later = rewards[t] + 0.9 * bootstrap - values[t] + (0.0 if ends else 0.9 * 0.8 * later)
            sums.append(later)
        expected += sums[::-1]
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_batch_without_columns_uses_episode_rewards() -> None:
    episode = collected(5, 4, terminated=True)
    piece = GeneralizedAdvantageEstimation(gamma=0.9, lambda_=0.8)
    pipeline = learner_pipeline(action_space=ACTIONS, returns=piece)
    pipeline.remove("AddColumns")
    values = episode.get_observations().sum(-1)
    ending = {"terminateds": np.array([True]), "truncateds": np.array([False]), "offsets": np.array([0, 5])}
    expected, _ = gae(episode.get_rewards(), values, **ending, gamma=0.9, lambda_=0.8)
    result = pipeline(rl_module=Leaning(), episodes=[episode])["advantages"]
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5)


def test_rewards_set_after_their_column_are_rejected() -> None:
    pipeline = learner_pipeline(action_space=ACTIONS, returns=ComputeReturnsToGo(allow_cut=True))
    pipeline.insert_after("AddColumns", DoubledInEpisodes())
    with pytest.raises(InvalidArgument, match="put DoubledInEpisodes before AddColumns"):
        pipeline(episodes=[collected(3)])
    early = learner_pipeline(
        action_space=ACTIONS, returns=ComputeReturnsToGo(allow_cut=True), pieces=[DoubledInEpisodes()]
    )
    plain = learner_pipeline(action_space=ACTIONS, returns=ComputeReturnsToGo(allow_cut=True))
    result, before = (pipeline(episodes=[collected(3)])["returns_to_go"] for pipeline in (early, plain))
    torch.testing.assert_close(result, 2 * before)


# --- V-trace against a plain reference, for episodes that an older policy collected


def plain_v_trace(episode: SingleAgentEpisode, values: list[float]) -> tuple[list[float], list[float]]:
    """Return (advantages, targets) of the plain reference implementation."""
    sums = episode.get_observations().sum(-1).astype(np.float64)[:-1]
    logits = np.where(episode.get_actions() == 4, sums, -sums)
    ratios = 1 / (1 + np.exp(-2 * logits)) / 0.5
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
    plain = [plain_v_trace(episode, episode.get_observations().sum(-1).tolist()) for episode in EPISODES]
    check(batch["advantages"], batch["value_targets"], list(zip(*plain, strict=True)))


def test_v_trace_of_padded_rows_is_that_of_each_episode() -> None:
    piece = VTrace(gamma=0.9, lambda_=0.8, clip_rho=1.1, clip_pg_rho=1.2, minibatch_size=6)
    pipeline = learner_pipeline(returns=piece, policy=Remembering(), max_seq_len=3)
    batch = pipeline(rl_module=Remembering(), episodes=[with_states(episode) for episode in EPISODES])
    plain = [plain_v_trace(episode, memories(episode)) for episode in EPISODES]
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
