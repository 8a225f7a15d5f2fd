"""Conversion of rollouts to episodes and back is exact, for every autoreset mode."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors import RolloutBuffer, rollout_to_episodes
from connectors.learner.episodes_to_rollout_buffer import EpisodesToRolloutBuffer
from connectors.learner.pipeline import LearnerPipeline
from connectors.rollout.buffer import add_advantages
from connectors.rollout.episodes import BlockEdge, episodes_to_rollout
from episodes import EpisodePack, SingleAgentEpisode, VectorRecorder
from episodes.errors import ChunkMismatch, InvalidArgument, ShapeMismatch, TrackMismatch
from episodes.returns import gae

MODES = list(AutoresetMode)
modes = st.sampled_from(MODES)
SPACE = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


def value_of(observations):
    """Return a value for each observation, by an arbitrary function."""
    return np.sin(observations[..., 0] * 13 + observations[..., 1]).astype(np.float32)


class ScriptedVectorEnv:
    """Environments with unique observations (environment, count), whose episodes end at random."""

    def __init__(self, num_envs: int, mode: AutoresetMode, seed: int, ending_rate: float) -> None:
        self.num_envs, self.mode, self.ending_rate = num_envs, mode, ending_rate
        self.rng = np.random.default_rng(seed)
        self.count = 0
        self.waiting = np.zeros(num_envs, bool)
        self.steps_taken = 0

    def observe(self) -> np.ndarray:
        self.count += 1
        return np.stack([np.arange(self.num_envs), np.full(self.num_envs, self.count)], 1).astype(np.float32)

    def step(self):
        """Return actions, logps, rewards, both flags, the next observations, and the observations of the next step."""
        actions, logps, rewards = self.rng.normal(size=(3, self.num_envs)).astype(np.float32)
        terminateds, truncateds = self.rng.random((2, self.num_envs)) < self.ending_rate
        skipped = self.waiting
        self.steps_taken += int((~skipped).sum())
        rewards = np.where(skipped, np.float32(0), rewards)
        terminateds, truncateds = terminateds & ~skipped, truncateds & ~skipped
        led_to = self.observe()
        done = terminateds | truncateds
        self.waiting = done if self.mode is AutoresetMode.NEXT_STEP else np.zeros_like(done)
        starts_from = (
            led_to if self.mode is AutoresetMode.NEXT_STEP else np.where(done[:, None], self.observe(), led_to)
        )
        return actions[:, None], logps, rewards, terminateds, truncateds, led_to, starts_from


class Simulation:
    """Scripted environment, recorded by a recorder and by a writer of rollouts."""

    def __init__(self, num_envs: int, num_rows: int, mode: AutoresetMode, seed: int, ending_rate: float = 0.3) -> None:
        self.env = ScriptedVectorEnv(num_envs, mode, seed, ending_rate)
        self.buffer = RolloutBuffer(num_envs, num_rows, 2, 1, "cpu")
        self.recorder = VectorRecorder(num_envs, SPACE, gym.spaces.Box(-9, 9, (1,), np.float32), autoreset_mode=mode)
        self.obs = self.env.observe()
        self.recorder.reset(self.obs, {})

    def block(self):
        """Return the next block as (pack of the recorder, rollout written row by row)."""
        rollout = self.buffer.start_rollout()
        for t in range(self.buffer.rollout_len):
            self.write_row(rollout, t)
        rollout["obs"][:, -1] = torch.from_numpy(self.obs)
        rollout["value"].copy_(torch.from_numpy(value_of(rollout["obs"].numpy())))
        rollout["final"].set_value(torch.from_numpy(value_of(rollout["final"].obs.numpy())))
        self.buffer.add(rollout)
        self.buffer.get(flatten=False)
        return self.recorder.take(), rollout

    def write_row(self, rollout, t):
        valid = ~self.env.waiting
        before = self.obs
        actions, logps, rewards, terminateds, truncateds, led_to, self.obs = self.env.step()
        done = terminateds | truncateds
        row = {"obs": before, "action": actions, "sample_log_prob": logps, "reward": rewards, "valid": valid}
        row |= {"terminated": terminateds, "truncated": truncateds, "done": done}
        for name, column in row.items():
            rollout[name][:, t] = torch.from_numpy(column)
        extras = {"action_logp": logps, "vf_preds": value_of(before)}
        record = (actions, rewards, terminateds, truncateds, {}, extras)
        if self.env.mode is AutoresetMode.NEXT_STEP:
            self.recorder.step(led_to, *record)
            return
        if done.any():
            rollout["final"].append(t, torch.from_numpy(done), torch.from_numpy(led_to[done]))
        if self.env.mode is AutoresetMode.SAME_STEP:
            self.recorder.step(self.obs, *record, final_observations=led_to[done])
        else:
            self.recorder.step(led_to, *record)
            if done.any():
                self.recorder.reset(self.obs, {}, done)


def columns_of(rollout):
    names = ("obs", "action", "sample_log_prob", "value", "reward", "terminated", "truncated", "done", "valid")
    return {name: rollout[name].clone() for name in names}


def all_values(pack):
    return value_of(pack.observations)


def check_same_chunks(result, expected):
    """Check that all chunks are equal, except for their ids."""
    assert len(result) == len(expected)
    for a, b in zip(result, expected, strict=True):
        assert a.t_started == b.t_started
        assert (a.is_terminated, a.is_truncated) == (b.is_terminated, b.is_truncated)
        np.testing.assert_array_equal(a.get_observations(), b.get_observations())
        np.testing.assert_array_equal(a.get_actions(), b.get_actions())
        np.testing.assert_array_equal(a.get_rewards(), b.get_rewards())
        for key in ("action_logp", "vf_preds"):
            np.testing.assert_array_equal(a.get_extra_model_outputs(key), b.get_extra_model_outputs(key))


sizes = {"num_envs": st.integers(1, 4), "num_rows": st.integers(1, 9), "seed": st.integers(0, 999)}


@given(mode=modes, rate=st.sampled_from([0.05, 0.4, 0.9]), blocks=st.integers(1, 4), **sizes)
@settings(max_examples=150)
def test_recorded_episodes_fill_simulator_rows(mode, rate, blocks, num_envs, num_rows, seed):
    simulation = Simulation(num_envs, num_rows, mode, seed, rate)
    edge, target = BlockEdge(num_envs, mode), RolloutBuffer(num_envs, num_rows, 2, 1, "cpu")
    for _ in range(blocks):
        pack, written = simulation.block()
        filled = episodes_to_rollout(pack, target.start_rollout(), edge, all_values(pack))
        valid = written["valid"]
        for name in ("valid", "terminated", "truncated", "done"):
            assert torch.equal(filled[name], written[name]), name
        for name in ("obs", "action", "sample_log_prob", "value", "reward"):
            assert torch.equal(filled[name][valid], written[name][valid]), name
        advantages = [add_advantages(rollout, gamma=0.9, lambda_=0.8) for rollout in (filled, written)]
        torch.testing.assert_close(advantages[0]["advantage"], advantages[1]["advantage"])
        torch.testing.assert_close(advantages[0]["return"], advantages[1]["return"])
        target.discard()


@given(mode=modes, rate=st.sampled_from([0.05, 0.4, 0.9]), blocks=st.integers(1, 4), **sizes)
@settings(max_examples=150)
def test_simulator_rollouts_become_recorded_episodes(mode, rate, blocks, num_envs, num_rows, seed):
    simulation = Simulation(num_envs, num_rows, mode, seed, rate)
    edge = BlockEdge(num_envs, mode)
    whole: dict[str, SingleAgentEpisode] = {}
    ids: dict[str, str] = {}
    for _ in range(blocks):
        pack, rollout = simulation.block()
        chunks = rollout_to_episodes(rollout, edge, observation_space=SPACE)
        check_same_chunks([chunk for chunk in chunks if len(chunk)], list(pack))
        for chunk, recorded in zip((c for c in chunks if len(c)), pack, strict=True):
            assert ids.setdefault(recorded.id_, chunk.id_) == chunk.id_
        for chunk in chunks:
            if chunk.id_ in whole:
                whole[chunk.id_].concat_episode(chunk)
            else:
                assert chunk.t_started == 0
                whole[chunk.id_] = copy.copy(chunk)
    assert sum(map(len, whole.values())) == simulation.env.steps_taken


class Critic:
    """Value function with a different value for each observation."""

    def compute_values(self, batch):
        return torch.from_numpy(value_of(batch["obs"].numpy()))


def learner(num_envs, num_rows, mode, **options):
    """Return a pipeline that writes episodes into a rollout, and the connector."""
    buffer = RolloutBuffer(num_envs, num_rows, 2, 1, "cpu")
    piece = EpisodesToRolloutBuffer(buffer=buffer, autoreset_mode=mode, **options)
    return LearnerPipeline(connectors=[piece])


@given(mode=modes, rate=st.sampled_from([0.05, 0.4, 0.9]), blocks=st.integers(1, 4), **sizes)
@settings(max_examples=150)
def test_rollouts_of_episodes_have_their_advantages_and_convert_back(mode, rate, blocks, num_envs, num_rows, seed):
    simulation, edge = Simulation(num_envs, num_rows, mode, seed, rate), BlockEdge(num_envs, mode)
    pipeline = learner(num_envs, num_rows, mode, gamma=0.97, lambda_=0.9)
    for _ in range(blocks):
        pack, _ = simulation.block()
        rollout = pipeline(rl_module=Critic(), episodes=pack)["rollout"]
        offsets = np.concatenate([[0], np.cumsum(pack.lengths)])
        flags = pack.terminated, pack.truncated
        expected = gae(pack.rewards, all_values(pack), *flags, gamma=0.97, lambda_=0.9, offsets=offsets)
        for name, column in zip(("advantage", "return"), expected, strict=True):
            np.testing.assert_allclose(rollout[name][rollout["valid"]].numpy(), column, rtol=1e-4, atol=1e-5)
        assert rollout_to_episodes(rollout, edge) == pack


def test_recorded_values_are_used_without_a_value_function():
    pack, _ = Simulation(1, 9, AutoresetMode.SAME_STEP, seed=0, ending_rate=0).block()
    rollout = learner(1, 9, "SameStep")(episodes=pack)["rollout"]
    assert rollout["value"][0].tolist() == [*pack.extra_model_outputs["vf_preds"], 0]


def test_rollout_is_written_after_an_error_and_from_a_restored_state():
    simulation = Simulation(2, 4, AutoresetMode.NEXT_STEP, seed=0)
    first, second = learner(2, 4, "NextStep"), learner(2, 4, "NextStep")
    pack, _ = simulation.block()
    with pytest.raises(ShapeMismatch, match="does not fit"):
        first(rl_module=Critic(), episodes=[*pack, *pack])
    assert first(rl_module=Critic(), episodes=pack)["rollout"]["valid"].sum() == pack.num_steps
    second.set_state(first.get_state())
    pack, _ = simulation.block()
    rollouts = [pipeline(rl_module=Critic(), episodes=pack)["rollout"] for pipeline in (first, second)]
    assert torch.equal(rollouts[0]["obs"], rollouts[1]["obs"])
    second.reset_state()
    assert not any(second.get_state()["EpisodesToRolloutBuffer"]["ids"])


def episode(length, *, start=0, obs=2, **extra):
    rows = np.arange(start, start + length + 1, dtype=np.float32)
    arguments = {
        "observations": np.repeat(rows[:, None], obs, 1),
        "actions": rows[:-1, None],
        "rewards": rows[:-1],
    }
    return SingleAgentEpisode.from_arrays(**arguments | extra)


def fill(episodes, num_envs=2, num_rows=4, obs=2, mode="SameStep", **options):
    buffer = RolloutBuffer(num_envs, num_rows, obs, 1, "cpu")
    return episodes_to_rollout(episodes, buffer.start_rollout(), BlockEdge(num_envs, mode), **options)


def test_rows_that_no_episode_fills_are_not_valid():
    rollout = fill([episode(3, terminated=True), episode(2), episode(1, truncated=True)], num_envs=3)
    assert rollout["valid"][:, :4].tolist() == [[True] * 3 + [False], [True] * 3 + [False], [False] * 4]
    assert rollout["done"][:2, :4].tolist() == [[False, False, True, False], [False, True, True, False]]
    assert rollout["final"].rows.tolist() == [5 + 1]
    assert rollout["obs"][0, :, 0].tolist() == [0, 1, 2, 3, 0]


def test_cut_chunk_before_another_bootstraps_correctly():
    chunks = [episode(2), episode(2, start=10, terminated=True)]
    values = np.array([0, 0, 7, 0, 0, 0], np.float32)
    rollout = add_advantages(fill(chunks, num_envs=1, values=values), gamma=1.0, lambda_=1.0)
    assert rollout["return"][0].tolist() == [0 + 1 + 7, 1 + 7, 10 + 11, 11, 0]


def test_changed_columns_appear_in_episodes():
    rollout = fill([episode(3, terminated=True)], num_envs=1, num_rows=3)
    rollout["reward"][0, 1] = 100
    rollout["obs"][0, 3] = -1
    rollout["terminated"][0, 2] = False
    result = rollout_to_episodes(rollout, BlockEdge(1, "SameStep"))[0]
    assert result.get_rewards().tolist() == [0, 100, 2]
    assert result.get_observations(-1).tolist() == [-1, -1]
    assert not result.is_terminated


def test_facts_and_outputs_are_restored():
    made = SingleAgentEpisode(
        "an id",
        observations=[3, 1, 2, 0, 1],
        observation_space=gym.spaces.Discrete(4),
        actions=[[1, 0], [0, 1], [1, 1], [0, 0]],
        action_space=gym.spaces.MultiDiscrete([2, 2]),
        rewards=[0.5, 1.5, 2.5, 3.5],
        infos=[{"lap": i} for i in range(5)],
        extra_model_outputs={"state": [np.ones(3) * i for i in range(4)], "action_logp": np.float32([-1, -2, -3, -4])},
        len_lookback_buffer=1,
        t_started=7,
        truncated=True,
        agent_id="walker",
    )
    made.custom_data["seed"] = 5
    made.to_numpy()
    buffer = RolloutBuffer(1, 5, 1, 2, "cpu")
    rollout = episodes_to_rollout([made], buffer.start_rollout(), BlockEdge(1, "NextStep"))
    assert rollout["obs"][0, :4, 0].tolist() == [1, 2, 0, 1]
    assert rollout["sample_log_prob"][0, :3].tolist() == [-2, -3, -4]
    result = rollout_to_episodes(rollout, BlockEdge(1, "NextStep"))[0]
    assert result.equals(made)
    assert result.get_rewards().dtype == made.get_rewards().dtype
    assert result.get_infos(0) == {"lap": 1}
    rollout["reward"][0, 0] = 9
    result = rollout_to_episodes(rollout, BlockEdge(1, "NextStep"))[0]
    assert result.get_rewards([-1, 0], neg_index_as_lookback=True).tolist() == [0.5, 9.0]


def test_episode_reset_in_last_slot_is_a_chunk_without_steps():
    buffer, edge = RolloutBuffer(1, 2, 2, 1, "cpu"), BlockEdge(1, "SameStep")
    rollout = buffer.start_rollout()
    rollout["truncated"][0, 1] = rollout["done"][0, 1] = True
    rollout["obs"][0] = torch.tensor([[0.0, 0], [1, 0], [5, 0]])
    rollout["final"].append(1, torch.tensor([0]), torch.tensor([[2.0, 0]]))
    first = rollout_to_episodes(rollout, edge)
    assert [len(chunk) for chunk in first] == [2, 0]
    assert first[0].get_observations()[:, 0].tolist() == [0, 1, 2]
    assert first[1].get_observations()[:, 0].tolist() == [5]
    buffer.discard()
    rollout = buffer.start_rollout()
    rollout["obs"][0] = torch.tensor([[5.0, 0], [6, 0], [7, 0]])
    second = rollout_to_episodes(rollout, edge)
    assert second[0].id_ == first[1].id_
    assert second[0].id_ != first[0].id_
    assert second[0].t_started == 0
    third = rollout_to_episodes(rollout, edge)
    assert (third[0].id_, third[0].t_started) == (second[0].id_, 2)


def test_chunks_without_steps_keep_their_observation():
    chunks = [episode(0, start=5), episode(1, terminated=True), episode(0, start=7), episode(1, start=8)]
    rollout = fill(chunks, num_envs=1)
    assert rollout_to_episodes(rollout, BlockEdge(1, "SameStep")) == EpisodePack.from_episodes(chunks)


def test_only_newest_chunk_continues_in_next_block():
    edge, buffer = BlockEdge(2, "SameStep"), RolloutBuffer(2, 4, 2, 1, "cpu")
    chunks = [episode(2, id_="cut"), episode(2, id_="ended", terminated=True), episode(3, id_="goes on")]
    episodes_to_rollout(chunks, buffer.start_rollout(), edge)
    assert edge.ids.tolist() == ["", "goes on"]
    assert edge.steps.tolist() == [0, 3]


def test_missing_last_observation_raises_after_time_limit():
    rollout = RolloutBuffer(1, 3, 2, 1, "cpu").start_rollout()
    rollout["obs"][0, :, 0] = torch.arange(4.0)
    rollout["terminated"][0, 1] = True
    chunks = rollout_to_episodes(rollout, BlockEdge(1, "SameStep"))
    assert [chunk.get_observations()[:, 0].tolist() for chunk in chunks] == [[0, 1, 1], [2, 3]]
    rollout["terminated"][0, 1], rollout["truncated"][0, 1] = False, True
    with pytest.raises(TrackMismatch, match="environment 0 stopped at step 1 without a termination"):
        rollout_to_episodes(rollout, BlockEdge(1, "SameStep"))


def test_valid_row_in_place_of_reset_raises():
    rollout = RolloutBuffer(1, 3, 2, 1, "cpu").start_rollout()
    rollout["terminated"][0, 1] = True
    with pytest.raises(InvalidArgument, match="environment 0, row 2 is valid, but with next-step autoreset"):
        rollout_to_episodes(rollout, BlockEdge(1, "NextStep"))


@pytest.mark.parametrize(
    ("episodes", "options", "error", "message"),
    [
        ([episode(5)], {}, ShapeMismatch, "chunk 0 of 1, 5 steps, does not fit"),
        ([episode(3)] * 3, {}, ShapeMismatch, "chunk 2 of 3, 3 steps, does not fit"),
        ([episode(3, obs=3)], {}, ShapeMismatch, r"observations have 3 numbers \[3\], the rollout 2"),
        ([episode(2, actions=np.ones((2, 3)))], {}, ShapeMismatch, "actions have 3 numbers"),
        ([episode(1, observations={"a": np.ones((2, 2))})], {}, TrackMismatch, "observations are a dict with keys"),
        ([episode(1, actions=np.array([[2**24 + 1]]))], {}, InvalidArgument, "values that float32, .* cannot hold"),
        ([episode(1, rewards=np.array([1e39]))], {}, InvalidArgument, "rewards are float64 with values that float32"),
        ([episode(2)], {"values": [0.0, 0.0, 1e39]}, InvalidArgument, "values are float64 with values that float32"),
        ([episode(2)], {"values": np.ones(2)}, ShapeMismatch, r"values \[2\] of 3 observations"),
        ([episode(1)], {"edge": BlockEdge(3, "SameStep")}, InvalidArgument, "2 environments with a BlockEdge of 3"),
    ],
)
def test_episodes_that_do_not_fit_are_named(episodes, options, error, message):
    edge = options.pop("edge", BlockEdge(2, "SameStep"))
    rollout = RolloutBuffer(2, 4, 2, 1, "cpu").start_rollout()
    before = columns_of(rollout)
    with pytest.raises(error, match=message):
        episodes_to_rollout(episodes, rollout, edge, **options)
    assert all(torch.equal(column, before[name]) for name, column in columns_of(rollout).items())
    assert not any(edge.ids)


def test_chunk_that_does_not_follow_last_block_raises():
    edge, buffer = BlockEdge(2, "SameStep"), RolloutBuffer(2, 4, 2, 1, "cpu")
    first = [episode(4, id_="a"), episode(4, id_="b")]
    episodes_to_rollout(first, buffer.start_rollout(), edge)
    buffer.discard()
    rollout = buffer.start_rollout()
    with pytest.raises(ChunkMismatch, match="starts at step 3; the block before stopped at 4"):
        episodes_to_rollout([episode(4, id_="a", t_started=3)], rollout, edge)
    with pytest.raises(ChunkMismatch, match="comes after chunks of environment 1"):
        episodes_to_rollout([episode(1, id_="b", t_started=4), episode(1, id_="a", t_started=4)], rollout, edge)
    episodes_to_rollout([episode(1, id_="b", t_started=4)], rollout, edge)
    assert rollout["valid"].sum(1).tolist() == [0, 1]


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_rollout_on_cuda_converts_both_ways(mode):
    simulation = Simulation(4, 16, mode, seed=0)
    forth, back, buffer = BlockEdge(4, mode), BlockEdge(4, mode), RolloutBuffer(4, 16, 2, 1, "cuda")
    for _ in range(3):
        pack, written = simulation.block()
        rollout = episodes_to_rollout(pack, buffer.start_rollout(), forth, all_values(pack))
        add_advantages(rollout, gamma=0.9, lambda_=0.8)
        add_advantages(written, gamma=0.9, lambda_=0.8)
        torch.testing.assert_close(rollout["advantage"].cpu(), written["advantage"])
        assert rollout_to_episodes(rollout, back) == pack
        buffer.discard()


def test_packs_and_lists_of_episodes_fill_the_same_rollout():
    chunks = [episode(2, terminated=True), episode(4, start=9)]
    rollouts = [fill(source) for source in (chunks, EpisodePack.from_episodes(chunks))]
    first, second = map(columns_of, rollouts)
    assert all(torch.equal(column, second[name]) for name, column in first.items())
