"""Learner batches equal batches that are built step by step, for all ways of cutting episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from reference_connectors import Accumulator, Sum, WholeEpisode, advantages, whole_episodes

from connectors import learner_pipeline
from connectors.env_to_module import FrameStacking, PrevActionsPrevRewards
from connectors.learner import (
    AddColumns,
    AddInfos,
    AddInfosFromEpisodesToTrainBatch,
    ComputeReturnsToGo,
    GeneralizedAdvantageEstimation,
)
from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch, UnknownKey
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage.sampling import StepBatches

GAMMA, LAMBDA = 0.9, 0.7
OBSERVATIONS, ACTIONS = spaces.Box(0, 9, (2,), np.float32), spaces.Discrete(3)


def given_as(episodes: list[WholeEpisode], form: str) -> list[SingleAgentEpisode] | EpisodePack:
    chunks = [chunk for episode in episodes for chunk in episode.chunks()]
    if form == "growing" or not any(map(len, chunks)):
        return chunks
    chunks = [chunk.to_numpy() for chunk in chunks if len(chunk) or form == "finalized"]
    return EpisodePack.from_episodes(chunks) if form == "pack" else chunks


def steps(episodes: list[WholeEpisode]) -> Iterator[tuple[WholeEpisode, int, bool]]:
    """Return (episode, step, is last step of its episode) for all steps, chunk after chunk."""
    for episode in episodes:
        for span in episode.spans:
            for g in range(*span):
                yield episode, g, g == len(episode.actions) - 1


def column(episodes: list[WholeEpisode], value: Callable[[WholeEpisode, int], object], dtype: type) -> np.ndarray:
    return np.array([value(episode, g) for episode, g, _ in steps(episodes)], dtype)


forms = st.sampled_from(["growing", "finalized", "pack"])


@given(whole_episodes(), forms)
def test_feed_forward_batch_equals_reference(episodes: list[WholeEpisode], form: str) -> None:
    returns = GeneralizedAdvantageEstimation(gamma=GAMMA, lambda_=LAMBDA, minibatch_size=3)
    pipeline = learner_pipeline(OBSERVATIONS, ACTIONS, returns=returns, next_observations=True)
    batch = pipeline(rl_module=Sum(), episodes=given_as(episodes, form))
    num_steps = sum(len(episode.actions) for episode in episodes)
    assert all(len(values) == num_steps for values in batch.values())
    if not num_steps:
        return
    assert np.array_equal(batch["obs"], column(episodes, lambda e, g: e.observations[g], np.float32))
    assert np.array_equal(batch["new_obs"], column(episodes, lambda e, g: e.observations[g + 1], np.float32))
    assert np.array_equal(batch["actions"], column(episodes, lambda e, g: e.actions[g], np.int64))
    assert np.array_equal(batch["rewards"], column(episodes, lambda e, g: e.rewards[g], np.float32))
    assert np.array_equal(batch["action_logp"], column(episodes, lambda e, g: -g, np.float32))
    assert batch["terminateds"].tolist() == [last and e.terminated for e, _, last in steps(episodes)]
    assert batch["truncateds"].tolist() == [last and e.truncated for e, _, last in steps(episodes)]
    values = [[float(o.sum()) for o in e.observations] for e in episodes]
    expected = [
        a for e, v in zip(episodes, values, strict=True) for s in e.spans for a in advantages(e, s, v, GAMMA, LAMBDA)
    ]
    np.testing.assert_allclose(batch["advantages"], expected, rtol=1e-4, atol=1e-4)
    targets = [v[g] for e, v in zip(episodes, values, strict=True) for s in e.spans for g in range(*s)]
    np.testing.assert_allclose(batch["value_targets"], np.add(expected, targets), rtol=1e-4, atol=1e-4)


@given(whole_episodes(shape=(3, 2, 1), min_lookback=2), forms, st.integers(1, 3))
def test_frame_stacked_batch_equals_reference(episodes: list[WholeEpisode], form: str, num_frames: int) -> None:
    pipeline = learner_pipeline(
        spaces.Box(0, 9, (3, 2, 1), np.float32),
        ACTIONS,
        pieces=[FrameStacking(num_frames=num_frames)],
        returns=GeneralizedAdvantageEstimation(gamma=GAMMA, lambda_=LAMBDA, minibatch_size=4),
        next_observations=True,
    )
    batch = pipeline(rl_module=Sum(), episodes=given_as(episodes, form))
    if not any(len(episode.actions) for episode in episodes):
        return
    assert np.array_equal(batch["obs"], column(episodes, lambda e, g: e.stack(g, num_frames), np.float32))
    assert np.array_equal(batch["new_obs"], column(episodes, lambda e, g: e.stack(g + 1, num_frames), np.float32))
    assert pipeline.observation_space.shape == (3, 2, num_frames)
    expected = []
    for e in episodes:
        values = [float(e.stack(g, num_frames).sum()) for g in range(len(e.observations))]
        expected += [a for span in e.spans for a in advantages(e, span, values, GAMMA, LAMBDA)]
    np.testing.assert_allclose(batch["advantages"], expected, rtol=1e-4, atol=1e-3)


@given(whole_episodes(min_lookback=1), forms, st.sampled_from([1, 2, 3, 5, 20]))
def test_recurrent_batch_equals_reference(episodes: list[WholeEpisode], form: str, max_seq_len: int) -> None:
    returns = GeneralizedAdvantageEstimation(gamma=GAMMA, lambda_=LAMBDA, minibatch_size=4)
    pipeline = learner_pipeline(OBSERVATIONS, ACTIONS, returns=returns, policy=Accumulator(), max_seq_len=max_seq_len)
    batch = pipeline(rl_module=Accumulator(), episodes=given_as(episodes, form))
    rows = []
    for e in episodes:
        values = [float(state[0]) for state in e.states]
        for start, end in e.spans:
            expected = advantages(e, (start, end), values, GAMMA, LAMBDA)
            firsts = range(start, end, max_seq_len)
            rows += [(e, first, min(first + max_seq_len, end), expected[first - start :]) for first in firsts]
    assert len(batch["obs"]) == len(batch["state_in"]["h"]) == len(rows)
    assert batch["seq_lens"].tolist() == [end - first for _, first, end, _ in rows]
    for i, (e, first, end, expected) in enumerate(rows):
        length = end - first
        assert batch["loss_mask"][i].tolist() == [True] * length + [False] * (max_seq_len - length)
        assert np.array_equal(batch["obs"][i, :length], e.observations[first:end])
        assert batch["actions"][i, :length].tolist() == e.actions[first:end]
        assert not batch["obs"][i, length:].any()
        assert not batch["advantages"][i, length:].any()
        assert batch["state_in"]["h"][i].tolist() == (e.states[first - 1].tolist() if first else [0.0])
        np.testing.assert_allclose(batch["advantages"][i, :length], expected[:length], rtol=1e-4, atol=1e-4)


@given(whole_episodes(min_lookback=2), forms, st.integers(1, 2))
def test_previous_actions_and_rewards_precede_observations(episodes: list[WholeEpisode], form: str, num: int) -> None:
    piece = PrevActionsPrevRewards(n_prev_actions=num, n_prev_rewards=num)
    pipeline = learner_pipeline(OBSERVATIONS, ACTIONS, pieces=[piece], next_observations=True)
    batch = pipeline(episodes=given_as(episodes, form))
    if not any(len(episode.actions) for episode in episodes):
        return
    for name, shift in (("obs", 0), ("new_obs", 1)):
        previous = [e.previous(g + shift, num, 3) for e, g, _ in steps(episodes)]
        assert np.array_equal(batch[name]["prev_n_actions"], [actions for actions, _ in previous])
        assert np.array_equal(batch[name]["prev_n_rewards"], [rewards for _, rewards in previous])
        expected = column(episodes, lambda e, g, shift=shift: e.observations[g + shift], np.float32)
        assert np.array_equal(batch[name]["_orig_obs"], expected)


def test_returns_to_go_stop_at_the_end_of_each_chunk_if_cuts_are_allowed() -> None:
    episodes = [
        SingleAgentEpisode.from_arrays(np.zeros((3, 1)), [0, 0], [1.0, 2.0], terminated=True),
        SingleAgentEpisode.from_arrays(np.zeros((2, 1)), [0], [5.0]),
    ]
    batch = learner_pipeline(returns=ComputeReturnsToGo(gamma=0.5, allow_cut=True))(episodes=episodes)
    assert batch["returns_to_go"].tolist() == [2.0, 2.0, 5.0]
    padded = learner_pipeline(returns=ComputeReturnsToGo(gamma=0.5, allow_cut=True), max_seq_len=2)(episodes=episodes)
    assert padded["returns_to_go"].tolist() == [[2.0, 2.0], [5.0, 0.0]]


def test_returns_to_go_reject_chunks_that_were_cut() -> None:
    whole, cut, empty = (
        SingleAgentEpisode.from_arrays(np.zeros((n + 1, 1)), [0] * n, [1.0] * n, id_=id_, truncated=ends)
        for id_, n, ends in (("whole", 3, True), ("cut", 2, False), ("empty", 0, False))
    )
    pipeline = learner_pipeline(returns=ComputeReturnsToGo(gamma=0.5))
    assert pipeline(episodes=[whole, empty])["returns_to_go"].tolist() == [1.75, 1.5, 1.0]
    with pytest.raises(InvalidArgument, match=r"episode cut is a chunk that was cut.*num_episodes=.*allow_cut=True"):
        pipeline(episodes=[empty, whole, cut])


INFO_NAMES = {"obs": "obs_infos", "new_obs": "infos"}


@pytest.mark.parametrize("at", ["obs", "new_obs"])
def test_infos_have_one_meaning_in_pipelines_replay_and_files(at: str, tmp_path: Path) -> None:
    infos = [{"step": i} for i in range(4)]
    episode = SingleAgentEpisode.from_arrays(np.zeros((4, 1)), [0, 1, 2], [1.0, 2.0, 3.0], infos=infos)
    expected = infos[:3] if at == "obs" else infos[1:]
    pipeline = learner_pipeline(pieces=[AddInfos(at=at)])
    name = INFO_NAMES[at]
    assert list(pipeline(episodes=[episode])[name]) == expected
    padded = learner_pipeline(pieces=[AddInfos(at=at)], max_seq_len=4)(episodes=[episode])
    assert padded[name].tolist() == [[*expected, {}]]
    buffer = EpisodeReplayBuffer(10, seed=0)
    buffer.add(episode)
    with EpisodeWriter(tmp_path) as writer:
        writer.add(episode)
    sampler = EpisodeDataset(tmp_path).sampler(steps=StepBatches(9, include_infos=True), seed=0)
    for batch in (buffer.sample(9, include_infos=True), sampler.draw()):
        stored = pipeline(episodes=[episode])["infos"] if at == "new_obs" else None
        assert stored is None or [stored[int(action)] for action in batch.actions] == list(batch.infos)


def test_infos_without_a_place_are_refused_and_those_of_rllib_come_before_the_step() -> None:
    with pytest.raises(InvalidArgument, match='at is missing; give at="new_obs"'):
        AddInfos()
    infos = [{"step": i} for i in range(3)]
    episode = SingleAgentEpisode.from_arrays(np.zeros((3, 1)), [0, 0], [1.0, 2.0], infos=infos)
    batch = learner_pipeline(pieces=[AddInfosFromEpisodesToTrainBatch()])(episodes=[episode])
    assert list(batch["infos"]) == infos[:2]


def test_advantages_are_standardized_on_request_over_real_steps() -> None:
    episodes = [
        SingleAgentEpisode.from_arrays(np.ones((n + 1, 2), np.float32), [0] * n, np.arange(n) * 1.0) for n in (5, 2)
    ]
    plain = learner_pipeline(returns=GeneralizedAdvantageEstimation())(rl_module=Sum(), episodes=episodes)
    assert abs(float(plain["advantages"].mean())) > 0.1
    returns = GeneralizedAdvantageEstimation(normalize=True)
    padded = learner_pipeline(returns=returns, max_seq_len=4, policy=Accumulator())
    batch = padded(rl_module=Accumulator(), episodes=episodes)
    real = batch["advantages"][batch["loss_mask"]]
    assert len(real) == 7
    assert abs(float(real.mean())) < 1e-5
    assert float(real.std(correction=0)) == pytest.approx(1.0, abs=1e-4)


def test_values_are_computed_in_minibatches_without_gradients() -> None:
    class Watched(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))
            self.sizes: list[int] = []

        def compute_values(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            assert not torch.is_grad_enabled()
            self.sizes.append(len(batch["obs"]))
            return batch["obs"] @ self.weight

    module = Watched()
    episode = SingleAgentEpisode.from_arrays(np.ones((11, 2), np.float32), [0] * 10, np.ones(10))
    pipeline = learner_pipeline(returns=GeneralizedAdvantageEstimation(minibatch_size=4))
    batch = pipeline(rl_module=module, episodes=[episode])
    assert module.sizes == [4, 4, 3]
    assert not batch["advantages"].requires_grad


def test_module_with_missing_values_raises() -> None:
    class First(Sum):
        def compute_values(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return super().compute_values(batch)[:1]

    episode = SingleAgentEpisode.from_arrays(np.ones((3, 2), np.float32), [0, 0], [1.0, 1.0])
    pipeline = learner_pipeline(returns=GeneralizedAdvantageEstimation())
    with pytest.raises(InvalidArgument, match=r"rl_module=None, which has no compute_values"):
        pipeline(episodes=[episode])
    with pytest.raises(ShapeMismatch, match=r"compute_values gave \[1\] for \[3\] observations"):
        pipeline(rl_module=First(), episodes=[episode])


def test_building_batch_leaves_episodes_unchanged() -> None:
    growing = SingleAgentEpisode()
    growing.add_env_reset(np.zeros(2, np.float32))
    growing.add_env_step(np.ones(2, np.float32), 1, 1.0)
    before = growing.get_state()
    pipeline = learner_pipeline(returns=GeneralizedAdvantageEstimation())
    pipeline(rl_module=Sum(), episodes=[growing])
    assert not growing.is_numpy
    assert not growing.is_done
    assert len(growing) == 1
    assert SingleAgentEpisode.from_state(before).equals(growing)


def test_nested_observations_and_actions_keep_their_structure() -> None:
    observations = {"camera": np.arange(16, dtype=np.uint8).reshape(4, 2, 2), "joints": (np.arange(4.0), np.arange(4))}
    actions = (np.array([0, 1, 2]), {"grip": np.array([[0.5], [1.5], [2.5]], np.float32)})
    pack = EpisodePack(
        observations=observations, actions=actions, rewards=np.zeros(3), lengths=[2], lookbacks=[1], t_started=[1]
    )
    flat = learner_pipeline(next_observations=True)(episodes=pack)
    assert flat["obs"]["camera"].tolist() == observations["camera"][1:3].tolist()
    assert flat["new_obs"]["joints"][1].tolist() == [2, 3]
    assert flat["actions"][1]["grip"].tolist() == [[1.5], [2.5]]
    padded = learner_pipeline(max_seq_len=3)(episodes=pack)
    assert padded["obs"]["camera"].shape == (1, 3, 2, 2)
    assert padded["actions"][0].tolist() == [[1, 2, 0]]
    assert padded["obs"]["joints"][0].dtype == torch.float32


@pytest.mark.parametrize("max_seq_len", [None, 3])
def test_no_episodes_make_a_batch_without_rows(max_seq_len: int | None) -> None:
    episode = SingleAgentEpisode.from_arrays(np.zeros((2, 2), np.float32), [0], [1.0])
    pipeline = learner_pipeline(
        OBSERVATIONS,
        ACTIONS,
        pieces=[FrameStacking(num_frames=2), PrevActionsPrevRewards()],
        returns=GeneralizedAdvantageEstimation(normalize=True),
        policy=Accumulator() if max_seq_len else None,
        max_seq_len=max_seq_len,
    )
    batch = pipeline(rl_module=Accumulator(), episodes=EpisodePack.from_episodes([episode])[:0])
    assert all(len(column) == 0 for name, column in batch.items() if name not in ("obs", "state_in"))
    assert batch["obs"]["_orig_obs"].shape[0] == 0
    with pytest.raises(InvalidArgument, match="at least one episode"):
        pipeline(rl_module=Accumulator(), episodes=[])


def test_all_or_selected_extra_model_outputs_are_added() -> None:
    extra = {"vf_preds": np.ones(2), "state_out": np.ones((2, 3)), "mine": np.ones((2, 1))}
    episode = SingleAgentEpisode.from_arrays(np.zeros((3, 1)), [0, 0], [0.0, 0.0], extra_model_outputs=extra)
    added = AddColumns()(batch={}, episodes=EpisodePack.from_episodes([episode]))
    assert set(added) == {"actions", "rewards", "terminateds", "truncateds", "vf_preds", "mine"}
    chosen = AddColumns(extra_model_outputs=["mine"])(batch={}, episodes=EpisodePack.from_episodes([episode]))
    assert set(chosen) == {"actions", "rewards", "terminateds", "truncateds", "mine"}
    with pytest.raises(UnknownKey, match=r"no extra model output 'logp'; they have .*'mine'"):
        AddColumns(extra_model_outputs=["logp"])(batch={}, episodes=EpisodePack.from_episodes([episode]))


def test_column_with_wrong_number_of_rows_is_not_padded() -> None:
    episode = SingleAgentEpisode.from_arrays(np.zeros((3, 1)), [0, 0], [0.0, 0.0])
    with pytest.raises(TrackMismatch, match="column 'mine' has 3 rows for 2 steps"):
        learner_pipeline(max_seq_len=2)(batch={"mine": np.zeros(3)}, episodes=[episode])
    with pytest.raises(InvalidArgument, match="max_seq_len=0"):
        learner_pipeline(max_seq_len=0)


def test_chunk_without_lookback_for_frames_raises() -> None:
    chunk = SingleAgentEpisode(
        "x", observations=[np.zeros(1)] * 2, actions=[0], rewards=[0.0], len_lookback_buffer=0, t_started=9
    )
    for piece in (FrameStacking(num_frames=3), PrevActionsPrevRewards(n_prev_actions=2)):
        pipeline = learner_pipeline(spaces.Box(0, 1, (1,)), ACTIONS, pieces=[piece])
        with pytest.raises(InvalidArgument, match=r"episode x that starts at t=9 has a lookback of 0.*=2"):
            pipeline(episodes=[chunk])


def test_states_of_a_chunk_without_a_lookback_are_not_guessed() -> None:
    chunk = SingleAgentEpisode(
        "x",
        observations=[np.zeros(1)] * 2,
        actions=[0],
        rewards=[0.0],
        extra_model_outputs={"state_out": [{"h": np.ones(1)}]},
        len_lookback_buffer=0,
        t_started=9,
    )
    with pytest.raises(InvalidArgument, match=r"t=9 has no lookback.*len_lookback_buffer=1"):
        learner_pipeline(policy=Accumulator())(rl_module=Accumulator(), episodes=[chunk])


def test_rows_without_recorded_states_start_with_initial_state() -> None:
    episode = SingleAgentEpisode.from_arrays(np.ones((4, 2), np.float32), [0] * 3, np.ones(3))
    batch = learner_pipeline(policy=Accumulator(), max_seq_len=2)(rl_module=Accumulator(), episodes=[episode])
    assert batch["state_in"]["h"].tolist() == [[0.0], [0.0]]
