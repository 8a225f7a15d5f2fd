"""Public reports that were tried as a new user would, from the documentation alone: each has the right value here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import nn

from connectors import Actor, env_to_module_pipeline
from connectors.env_to_module import FrameStacking, MeanStdFilter, NormalizeObservations
from episode_learners import BC, PPO, BCConfig, LSTMPolicy, MLPPolicy, PPOConfig
from episode_runners import SingleAgentEnvRunner, evaluate
from episode_runners.environments import TorchVectorEnv
from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode, gae
from episodes.errors import EpisodeError
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.storage import EpisodeDataset, RecordEpisodes
from episodes.tokens import TokenRecorder, token_batch


class Counting(gym.Env):
    """Environment whose observation is the number of steps. Its episodes have 3, 4, 5, 3, ... steps."""

    observation_space: Any = spaces.Box(0, 100, (1,), np.float32)
    action_space: Any = spaces.Discrete(2)
    number = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.length, self.number = 0, 3 + self.number % 3, self.number + 1
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, False, self.t == self.length, {}


class OwnMemory(nn.Module):
    """Recurrent policy of a user, which resets nothing itself. Its state is the number of its calls."""

    def get_initial_state(self) -> Any:
        return {"calls": np.zeros(1, np.float32)}

    def forward(self, batch: Any, explore: Any = None) -> Any:
        calls = batch["state_in"]["calls"] + 1
        return {"actions": torch.zeros(batch["obs"].shape[:2], dtype=torch.int64), "state_out": {"calls": calls}}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_own_recurrent_policy_begins_each_episode_anew(mode: Any) -> None:
    """pytorch-a2c-ppo-acktr: with a recurrent policy of their own, the state of an episode went into the next one."""
    env = gym.vector.SyncVectorEnv([Counting, Counting], autoreset_mode=mode)
    runner = SingleAgentEnvRunner(env, OwnMemory(), seed=0)
    for num in (7, 10, 11):
        for episode in runner.sample(num_timesteps=num):
            calls = episode.get_extra_model_outputs("state_out")["calls"][:, 0]
            assert calls.tolist() == (episode.get_observations()[:-1, 0] + 1).tolist()


@pytest.mark.parametrize(
    "space", [spaces.Discrete(3, start=5), spaces.MultiDiscrete([2, 11], start=[0, 25])], ids=["one", "several"]
)
def test_first_action_of_a_space_is_not_zero(space: Any) -> None:
    """Stable-Baselines3 and RLlib: actions of a space with `start` were sent without it, 0 to 10 and not 25 to 35."""
    sent = []

    class Env(Counting):
        action_space = space

        def step(self, action: Any) -> Any:
            sent.append(action)
            return super().step(action)

    policy = MLPPolicy(Env.observation_space, space)
    runner = SingleAgentEnvRunner(Env, policy, num_envs=2, seed=0)
    pack = runner.sample(num_timesteps=60)
    assert all(space.contains(np.asarray(action, space.dtype)) for action in sent)
    assert all(space.contains(np.asarray(action, space.dtype)) for action in pack.actions)
    assert np.isfinite(PPO(policy).update(pack)["loss"])
    runner.sample(num_timesteps=20, random_actions=True)
    assert all(space.contains(np.asarray(action, space.dtype)) for action in sent)


def test_simulator_without_the_last_observation_is_named() -> None:
    """MuJoCo Playground and Isaac Lab: the reset overwrote the last observation, and values were those of the reset."""

    class Simulator:
        num_envs = 2

        def reset(self) -> Any:
            self.t = torch.zeros(2, 1)
            return self.t.clone()

        def step(self, actions: Any) -> Any:
            self.t += 1
            ended = self.t[:, 0] >= 3
            self.t[ended] = 0.0
            return self.t.clone(), torch.ones(2), torch.zeros(2, dtype=torch.bool), ended, {}

    env = TorchVectorEnv(Simulator(), Counting.observation_space, Counting.action_space)
    runner = SingleAgentEnvRunner(env, MLPPolicy(Counting.observation_space, Counting.action_space))
    with pytest.raises(EpisodeError, match="final_obs"):
        runner.sample(num_timesteps=20)


class Camera(gym.Env):
    """Environment that draws into one frame, which shows its episode and step."""

    observation_space: Any = spaces.Dict(camera=spaces.Box(0, 255, (16, 16, 3), np.uint8), t=spaces.Box(0, 9, (1,)))
    action_space: Any = spaces.Box(-1, 1, (1,), np.float32)
    frame, number = np.zeros((16, 16, 3), np.uint8), 0

    def observed(self) -> Any:
        self.frame[:] = 50 * self.number + 10 * self.t
        return {"camera": self.frame, "t": np.full(1, self.t, np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.number = 0, self.number + 1
        return self.observed(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observed(), 1.0, self.t == 3, False, {}


def test_first_frame_is_not_of_the_episode_before(tmp_path: Path) -> None:
    """Isaac Lab Arena: after a conversion to LeRobot, each episode began with the last frame of the one before."""
    from episodes.converters import from_lerobot, to_lerobot

    with RecordEpisodes(Camera(), tmp_path / "data") as env:
        for _ in range(3):
            env.reset()
            while not env.step(np.zeros(1, np.float32))[2]:
                pass
    to_lerobot(EpisodeDataset(tmp_path / "data"), tmp_path / "robot", lossless=True)
    episodes, _ = from_lerobot(tmp_path / "robot")
    for number, episode in enumerate(episodes, 1):
        frames = episode.get_observations()["camera"]
        assert frames[:, 0, 0, 0].tolist() == [50 * number + 10 * t for t in range(len(frames))]
        assert (frames == frames[:, :1, :1, :1]).all()


def test_answers_in_the_prompt_are_not_learned() -> None:
    """NeMo RL: answers that were a part of the prompt's history were in the loss, as all answers of an assistant."""
    recorder = TokenRecorder(group_size=2)
    history = [1, 2, 90, 91, 3]  # 90 and 91 are an answer of another model
    for reward in (0.0, 1.0):
        talk = recorder.begin(history, group="g")
        talk.turn([90, 5], [4], logp=[-1.0, -2.0])
        talk.turn([6], [], reward, terminated=True, logp=[-3.0])
        recorder.end(talk)
    batch = token_batch(recorder.take())
    assert batch.labels[batch.loss_mask].tolist() == [90, 5, 6] * 2
    assert batch.action_logp[batch.loss_mask].tolist() == [-1.0, -2.0, -3.0] * 2


def test_saved_policy_has_its_normalization(tmp_path: Path) -> None:
    """CleanRL: a model was saved without the statistics of its observations, and failed when it was evaluated."""
    actor = Actor(MLPPolicy, *_cart_pole(), pieces=[NormalizeObservations()])
    runner = SingleAgentEnvRunner("CartPole-v1", actor, seed=0)
    runner.sample(num_timesteps=200)
    runner.actor.save(tmp_path / "cart_pole.actor")
    loaded = Actor.load(tmp_path / "cart_pole.actor", MLPPolicy)
    trained, restored = (evaluate("CartPole-v1", actor, num_episodes=3, seed=0) for actor in (runner.actor, loaded))
    assert trained.returns.tolist() == restored.returns.tolist()
    logits = [each.episodes.extra_model_outputs["action_dist_inputs"].tolist() for each in (trained, restored)]
    assert logits[0] == logits[1]


def _cart_pole() -> tuple[Any, Any]:
    env = gym.make("CartPole-v1")
    return env.observation_space, env.action_space


@pytest.mark.parametrize("kind", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
@pytest.mark.parametrize("n_step", [1, 3])
def test_each_stored_step_is_sampled_and_no_other(kind: Callable[..., Any], n_step: int) -> None:
    """RLHive and Tensorforce: the valid indices around the write position were off by one, with a wrong next state."""
    buffer = kind(12, seed=0)
    for number in range(5):
        times = np.arange(5.0) + 10 * number
        ending = {"terminated": number % 2 == 0}
        buffer.add(SingleAgentEpisode.from_arrays(times[:, None], np.zeros(4, int), times[1:], **ending))
    batch = buffer.sample(600, n_step=n_step, gamma=1.0)
    seen = {}
    for obs, new_obs, reward, steps, ended in zip(
        batch.obs[:, 0], batch.new_obs[:, 0], batch.rewards, batch.n_step, batch.terminateds, strict=True
    ):
        seen[float(obs)] = float(new_obs), float(reward), int(steps), bool(ended)
    expected = {}
    for number in (2, 3, 4):  # the newest 12 steps
        for t in range(4):
            steps = min(n_step, 4 - t)
            reward = sum(10 * number + t + k + 1 for k in range(steps))
            ended = number % 2 == 0 and t + steps == 4
            expected[10.0 * number + t] = 10.0 * number + t + steps, float(reward), steps, ended
    assert seen == expected


def test_recurrent_ppo_sees_the_states_that_acted() -> None:
    """CleanRL and sb3-contrib: a rollout begins inside of an episode, and a user asked which state its learner has."""
    torch.manual_seed(0)
    policy = LSTMPolicy(Counting.observation_space, Counting.action_space)
    runner = SingleAgentEnvRunner(Counting, policy, num_envs=2, seed=0)
    ppo = PPO(policy, PPOConfig(num_epochs=1))
    for num in (5, 9, 8):
        batch = ppo.preprocess(runner.sample(num_timesteps=num))
        with torch.no_grad():
            outputs = policy(batch)
        mask = batch["loss_mask"]
        log_probs = policy.distribution.log_prob(outputs["action_dist_inputs"], batch["actions"])
        torch.testing.assert_close(log_probs[mask], batch["action_logp"][mask], rtol=1e-4, atol=1e-5)


def test_dead_agent_is_reported_as_dead_again() -> None:
    """CAGE Challenge with PettingZoo: agents that had died were flagged as terminated again in each later step."""
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0.0, "b": 0.0})
    episode.add_env_step({"a": 1.0, "b": 1.0}, {"a": 0, "b": 0}, {"a": 1.0, "b": 1.0}, terminateds={"a": True})
    episode.add_env_step({"b": 2.0}, {"b": 0}, {"b": 1.0}, terminateds={"a": True, "b": False})
    assert [len(episode.agent_episodes[agent]) for agent in "ab"] == [1, 2]
    assert [episode.agent_episodes[agent].is_terminated for agent in "ab"] == [True, False]
    assert not episode.is_done
    with pytest.raises(EpisodeError, match="an observation after its end"):
        episode.add_env_step({"a": 3.0, "b": 3.0}, {"b": 0}, {"b": 1.0})


def test_behavior_cloning_of_several_choices_acts_with_all_of_them() -> None:
    """imitation: BC from transitions with MultiDiscrete actions gave a policy that acted with a single number."""
    space = spaces.MultiDiscrete([2, 7, 3])
    obs = np.linspace(0, 1, 41, dtype=np.float32)[:, None]
    actions = np.tile([1, 6, 2], (40, 1))
    box = spaces.Box(0, 1, (1,), np.float32)
    data = SingleAgentEpisode.from_arrays(obs, actions, np.zeros(40), observation_space=box, action_space=space)
    policy = MLPPolicy(box, space)
    for _ in range(3):
        BC(policy, BCConfig(learning_rate=0.02, num_epochs=40, minibatch_size=20)).update([data])

    class Env(Counting):
        observation_space, action_space = box, space

        def step(self, action: Any) -> Any:
            return np.ones(1, np.float32), float(np.array_equal(action, [1, 6, 2])), True, False, {}

    assert evaluate(Env, policy, num_episodes=4, seed=0).mean_return == 1.0


def test_advantages_of_a_cut_rollout_use_the_value_after_it() -> None:
    """Tianshou: the last step of a collected part was taken as the end of its episode in GAE."""
    rewards, values = np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, 20.0, 30.0, 40.0, 50.0])
    whole = SingleAgentEpisode.from_arrays(np.arange(5.0)[:, None], np.zeros(4, int), rewards, terminated=True)
    first, second = whole.slice(slice(0, 2)), whole.slice(slice(2, None))
    assert not first.is_done
    pack = EpisodePack.from_episodes([first, second])
    advantages, targets = gae(
        pack.rewards,
        np.concatenate([values[:3], values[2:]]),
        pack.terminated,
        pack.truncated,
        gamma=0.5,
        lambda_=1.0,
        offsets=pack.offsets,
    )
    by_hand = [1 + 0.5 * (2 + 0.5 * 30), 2 + 0.5 * 30, 3 + 0.5 * 4, 4.0]
    assert np.allclose(targets, by_hand)
    assert np.allclose(advantages, np.array(by_hand) - values[:4])


def test_stack_of_a_normalized_observation_begins_with_the_reset() -> None:
    """Stable-Baselines3: VecFrameStack over VecNormalize had frames of the episode before, after a reset."""
    pieces = [MeanStdFilter(), FrameStacking(num_frames=3)]
    pipeline = env_to_module_pipeline(Counting.observation_space, Counting.action_space, pieces=pieces)
    seen = []

    class Watching(nn.Module):
        def forward(self, batch: Any, explore: Any = None) -> Any:
            seen.append(batch["obs"].clone())
            return {"actions": torch.zeros(len(batch["obs"]), dtype=torch.int64)}

    runner = SingleAgentEnvRunner(Counting, Watching(), env_to_module=pipeline, num_envs=1, seed=0)
    pack = runner.sample(num_episodes=3)
    stored = [episode.get_observations()[:, 0] for episode in pack]
    expected = [
        [0.0] * max(0, 2 - t) + observations[max(0, t - 2) : t + 1].tolist()
        for observations in stored
        for t in range(len(observations))
    ]
    rows = torch.cat(seen).reshape(-1, 3).tolist()
    assert np.allclose(rows[1 - len(expected) :], expected[:-1])  # without an action on the very last observation
