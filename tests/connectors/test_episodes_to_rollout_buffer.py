"""Connector that writes episodes into a rollout buffer."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from connectors import RolloutBuffer, rollout_to_episodes
from connectors.learner.episodes_to_rollout_buffer import EpisodesToRolloutBuffer
from connectors.learner.pipeline import LearnerPipeline
from connectors.rollout.buffer import iterate_minibatches
from connectors.rollout.episodes import BlockEdge
from episodes import VectorRecorder
from episodes.errors import ShapeMismatch
from episodes.returns import gae

NUM_ENVS, NUM_ROWS = 3, 40


class Critic:
    """Value function with a different value for each observation."""

    def compute_values(self, batch):
        return batch["obs"].sum(-1)


class CartPoles:
    """CartPole with a short time limit, stepped and recorded in blocks."""

    def __init__(self, mode: AutoresetMode) -> None:
        make = lambda: gym.make("CartPole-v1", max_episode_steps=18)  # noqa: E731
        self.env = gym.vector.SyncVectorEnv([make] * NUM_ENVS, autoreset_mode=mode)
        self.mode = mode
        space, actions = self.env.single_observation_space, self.env.single_action_space
        self.recorder = VectorRecorder(NUM_ENVS, space, actions, autoreset_mode=mode)
        self.env.action_space.seed(0)
        self.recorder.reset(*self.env.reset(seed=0))

    def block(self):
        for _ in range(NUM_ROWS):
            actions = self.env.action_space.sample()
            observations, rewards, terminateds, truncateds, infos = self.env.step(actions)
            self.recorder.step(observations, actions, rewards, terminateds, truncateds, infos)
            done = terminateds | truncateds
            if self.mode is AutoresetMode.DISABLED and done.any():
                self.recorder.reset(*self.env.reset(options={"reset_mask": done}), done)
        return self.recorder.take()


def pipeline(mode, **options):
    buffer = RolloutBuffer(NUM_ENVS, NUM_ROWS, 4, 1, "cpu")
    return LearnerPipeline(connectors=[EpisodesToRolloutBuffer(buffer=buffer, autoreset_mode=mode, **options)])


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_real_environments_fill_a_rollout_block_after_block(mode):
    poles, learner, edge = CartPoles(mode), pipeline(mode, gamma=0.98, lambda_=0.9), BlockEdge(NUM_ENVS, mode)
    endings = []
    for _ in range(4):
        pack = poles.block()
        rollout = learner(rl_module=Critic(), episodes=pack)["rollout"]
        values = pack.observations.sum(-1)
        offsets = np.concatenate([[0], np.cumsum(pack.lengths)])
        expected = gae(pack.rewards, values, pack.terminated, pack.truncated, gamma=0.98, lambda_=0.9, offsets=offsets)
        valid = rollout["valid"]
        np.testing.assert_allclose(rollout["advantage"][valid].numpy(), expected[0], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(rollout["return"][valid].numpy(), expected[1], rtol=1e-4, atol=1e-4)
        resets = 0 if mode is not AutoresetMode.NEXT_STEP else NUM_ENVS * NUM_ROWS - pack.num_steps
        assert int((~valid[:, :-1]).sum()) == resets
        assert rollout_to_episodes(rollout, edge) == pack
        endings += [*zip(pack.terminated.tolist(), pack.truncated.tolist(), strict=True)]
    assert set(endings) >= {(True, False), (False, True), (False, False)}


def test_rollout_gives_minibatches_on_device():
    poles, learner = CartPoles(AutoresetMode.SAME_STEP), pipeline(AutoresetMode.SAME_STEP)
    rollout = learner(rl_module=Critic(), episodes=poles.block())["rollout"]
    parts = list(iterate_minibatches(rollout, 50, "cpu", torch.Generator().manual_seed(0)))
    assert sum(map(len, parts)) == NUM_ENVS * NUM_ROWS
    assert parts[0]["advantage"].shape == (50,)


def test_without_a_value_function_the_recorded_values_are_used():
    recorder = VectorRecorder(1, autoreset_mode="SameStep")
    recorder.reset(np.zeros((1, 4), np.float32))
    for t in range(NUM_ROWS):
        flags = np.zeros((2, 1), bool)
        extras = {"vf_preds": np.full(1, t, np.float32)}
        recorder.step(np.ones((1, 4), np.float32), np.zeros((1, 1)), np.zeros(1), *flags, {}, extras)
    buffer = RolloutBuffer(1, NUM_ROWS, 4, 1, "cpu")
    piece = EpisodesToRolloutBuffer(buffer=buffer, autoreset_mode="SameStep")
    rollout = LearnerPipeline(connectors=[piece])(episodes=recorder.take())["rollout"]
    assert rollout["value"][0].tolist() == [*range(NUM_ROWS), 0]


def test_buffer_accepts_next_rollout_after_error():
    poles, learner = CartPoles(AutoresetMode.SAME_STEP), pipeline(AutoresetMode.SAME_STEP)
    pack = poles.block()
    with pytest.raises(ShapeMismatch, match="does not fit"):
        learner(rl_module=Critic(), episodes=[*pack, *pack])
    assert learner(rl_module=Critic(), episodes=pack)["rollout"]["valid"].sum() == pack.num_steps


def test_state_contains_continuing_episodes():
    poles = CartPoles(AutoresetMode.NEXT_STEP)
    first, second = pipeline(AutoresetMode.NEXT_STEP), pipeline(AutoresetMode.NEXT_STEP)
    first(rl_module=Critic(), episodes=poles.block())
    second.set_state(first.get_state())
    pack = poles.block()
    rollouts = [learner(rl_module=Critic(), episodes=pack)["rollout"] for learner in (first, second)]
    assert torch.equal(rollouts[0]["obs"], rollouts[1]["obs"])
    second.reset_state()
    assert not second.get_state() or not any(second.get_state()["EpisodesToRolloutBuffer"]["ids"])
