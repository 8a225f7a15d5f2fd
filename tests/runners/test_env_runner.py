"""The runner returns complete episodes of real environments, for all ways of cutting, resetting and counting."""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from connectors import ObservationRewriter, env_to_module_pipeline, learner_pipeline
from connectors.env_to_module import FlattenObservations, MeanStdFilter, ObservationPreprocessor
from episode_learners import MLPPolicy
from episode_runners import Hook, SingleAgentEnvRunner
from episode_runners.process_envs import ProcessVectorEnv
from episodes.errors import EnvironmentLost, EpisodeStateError, InvalidArgument, ShapeMismatch, WrongType
from episodes.pack import EpisodePack
from episodes.replay import EpisodeReplayBuffer
from episodes.tracks import nested
from tests.moving.environments import Always
from tests.reference import numbered

MODES = list(AutoresetMode)


class Counter(gym.Env):
    """Environment whose observations count the steps of all episodes, which have one length and ending."""

    observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = spaces.Box(-2, 2, (1,), np.float32)

    def __init__(self, length: int = 3, truncates: bool = False) -> None:
        self.length, self.truncates = length, truncates
        self.episode = self.t = 0

    def _observation(self) -> np.ndarray:
        return np.array([self.episode, self.t], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        assert self.t < self.length
        self.t += 1
        done = self.t == self.length
        return self._observation(), float(self.t), done and not self.truncates, done and self.truncates, {"t": self.t}


class Halves:
    """Policy whose action is half of the observation's second number."""

    def __call__(self, batch: dict[str, Any], explore: bool | None = None) -> dict[str, Any]:
        assert not torch.is_grad_enabled()
        obs = batch["obs"]
        return {
            "actions": torch.tanh(obs[:, 1:] / 2),
            "seen": obs.clone(),
            "explored": torch.full((len(obs),), explore),
        }


class CountingFromSeven:
    """Recurrent policy whose state counts its steps from 7 on, and which records its input states."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def get_initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.full(1, 7, np.float32)}

    def __call__(self, batch: dict[str, Any], explore: bool | None = None) -> dict[str, Any]:
        state = batch["state_in"]["h"]
        self.seen.append(state.ravel().tolist())
        return {"action_dist_inputs": torch.zeros(len(state), 1, 2), "state_out": {"h": state + 1}}


def counters(*lengths: int, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **options: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda n=n: Counter(n, **options) for n in lengths], autoreset_mode=mode)


def check_steps(pack: EpisodePack) -> None:
    """Check that the policy of each step had the observation before it, and that the next one is a step later."""
    for episode in pack:
        observations = episode.get_observations()
        np.testing.assert_array_equal(observations[:, 1], episode.t_started + np.arange(len(episode) + 1))
        assert len(set(observations[:, 0])) == 1
        np.testing.assert_array_equal(episode.get_extra_model_outputs("seen"), observations[:-1])
        np.testing.assert_array_equal(episode.get_rewards(), observations[1:, 1])


@pytest.mark.parametrize("mode", MODES)
def test_recorded_action_belongs_to_its_observation(mode):
    runner = SingleAgentEnvRunner(counters(3, 5, 1, mode=mode), Halves(), seed=1)
    for count in (1, 7, 20, 1):
        pack = runner.sample(num_timesteps=count)
        assert count <= pack.num_steps < count + 3
        check_steps(pack)


@pytest.mark.parametrize("mode", MODES)
def test_sample_episodes_does_not_favour_short_ones(mode):
    runner = SingleAgentEnvRunner(counters(2, 20, mode=mode), Halves())
    pack = runner.sample(num_episodes=10)
    assert sorted(pack.lengths.tolist()) == [2] * 5 + [20] * 5
    assert (pack.terminated & (pack.t_started == 0)).all()
    check_steps(pack)
    assert sorted(runner.sample(num_episodes=3).lengths.tolist()) == [2, 2, 20]
    assert sorted(runner.sample(num_episodes=3).lengths.tolist()) == [2, 20, 20]
    assert [runner.sample(num_episodes=1).lengths.tolist() for _ in range(4)] == [[2], [20], [2], [20]]


def test_sample_episodes_after_steps_is_exact():
    runner = SingleAgentEnvRunner(counters(4, 6), Halves())
    runner.sample(num_timesteps=5)
    pack = runner.sample(num_episodes=1)
    assert len(pack) == 1
    assert (pack[0].t_started, len(pack[0])) == (0, 4)
    later = runner.sample(num_timesteps=5)
    check_steps(later)
    assert not later.t_started.any()


@pytest.mark.parametrize("mode", MODES)
def test_statistics_are_of_whole_episodes(mode):
    runner = SingleAgentEnvRunner(counters(7, 11, mode=mode), Halves())
    returns, lengths = [], []
    for _ in range(30):
        runner.sample(num_timesteps=3)
        returns += runner.stats.returns.tolist()
        lengths += runner.stats.lengths.tolist()
    assert set(zip(lengths, returns, strict=True)) == {(7, 28.0), (11, 66.0)}
    assert runner.num_episodes == len(lengths) > 6
    assert runner.stats.steps_per_second > 0
    assert runner.metrics()["num_steps_total"] == runner.num_steps >= 90


def test_reset_within_an_episode_cuts_it():
    runner = SingleAgentEnvRunner(counters(50), Halves())
    cut = runner.sample(num_timesteps=5)[0]
    chunk_after_reset = runner.sample(num_timesteps=5, force_reset=True)[0]
    assert not cut.is_done
    assert chunk_after_reset.id_ != cut.id_
    assert chunk_after_reset.t_started == 0
    assert chunk_after_reset.get_observations(0)[0] == cut.get_observations(0)[0] + 1
    assert runner.stats.num_episodes == 0


def test_policy_outputs_may_start_after_random_actions():
    runner = SingleAgentEnvRunner(counters(50), Halves(), len_lookback_buffer=3)
    runner.sample(num_timesteps=5, random_actions=True)
    pack = runner.sample(num_timesteps=5)
    check_steps(pack)
    assert pack.lookbacks.tolist() == [3]
    assert not any(output[:3].any() for output in pack.extra_model_outputs.values())  # none are known of back then


def test_learner_starts_with_initial_state_after_random_steps():
    policy = CountingFromSeven()
    runner = SingleAgentEnvRunner("CartPole-v1", policy, num_envs=2, seed=0)
    runner.sample(num_timesteps=8, random_actions=True)
    pack = runner.sample(num_timesteps=8)
    assert pack.lookbacks.tolist() == [1, 1]
    assert policy.seen[0] == [7, 7]
    batch = learner_pipeline(runner.env.single_observation_space, runner.env.single_action_space, policy=policy)(
        rl_module=policy, episodes=pack
    )
    assert batch["state_in"]["h"].flatten().tolist() == [7, 7]
    repeated_sample = runner.sample(num_timesteps=8)
    assert repeated_sample.extra_model_outputs["state_out"]["h"][0].item() == 11  # the lookback of steps that had one


def test_explore_reaches_the_policy():
    runner = SingleAgentEnvRunner(counters(50), Halves())
    assert not runner.sample(num_timesteps=3, explore=False)[0].get_extra_model_outputs("explored").any()
    assert runner.sample(num_timesteps=3)[0].get_extra_model_outputs("explored").all()


@pytest.mark.parametrize("num_envs", [1, 3])
def test_equal_seeds_give_equal_samples(num_envs):
    def sampled(seed: int) -> EpisodePack:
        env = gym.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="sync")
        generator = torch.Generator().manual_seed(7)
        policy = MLPPolicy(env.single_observation_space, env.single_action_space, generator=generator)
        runner = SingleAgentEnvRunner(env, policy, seed=seed)
        packs = [runner.sample(num_timesteps=30, random_actions=True), runner.sample(num_timesteps=60)]
        return EpisodePack.concat([pack.replace(extra_model_outputs={}) for pack in packs])

    first, same, other_sample = sampled(1), sampled(1), sampled(2)
    for path, track in first.tracks.items():
        np.testing.assert_array_equal(track, same.tracks[path])
    assert not np.array_equal(first.observations, other_sample.observations)
    assert not set(first.ids) & (set(same.ids) | set(other_sample.ids))


class Ends(Hook):
    """Hook that records the ids of ended episodes, and writes the age of each episode to its custom data."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def on_step(self, runner: Any) -> None:
        for episode in runner.episodes:
            episode.custom_data["age"] = episode.t

    def on_episode_end(self, runner: Any, env: int, episode: Any) -> None:
        self.ids.append(episode.id_)


@pytest.mark.parametrize("mode", MODES)
def test_ending_order_is_the_order_of_hook_calls(mode):
    hook = Ends()
    runner = SingleAgentEnvRunner(counters(3, 4, mode=mode), Halves(), hooks=[hook])
    for counts in ({"num_timesteps": 41}, {"num_timesteps": 40}, {"num_episodes": 12}):
        hook.ids.clear()
        pack = runner.sample(**counts)
        ended = [pack[int(i)].id_ for i in runner.ending_order if pack[int(i)].is_done]
        assert ended == [id_ for id_ in hook.ids if id_ in pack.ids]
        assert len(ended) == counts.get("num_episodes", len(ended)) > 5


def test_custom_data_of_hooks_continues_from_buffer_to_pack():
    runner, buffer = SingleAgentEnvRunner(counters(50), Halves(), hooks=[Ends()]), EpisodeReplayBuffer(100)
    runner.sample_into(buffer, num_timesteps=5)
    chunk = runner.sample(num_timesteps=5)[0]
    stored = next(buffer.iter_episodes())
    assert (stored.id_, stored.custom_data) == (chunk.id_, {"age": 5})
    assert (chunk.t_started, chunk.custom_data) == (5, {"age": 10})


class Doubled(ObservationRewriter):
    """Rewriter that doubles observations, and counts the rewritten rows."""

    rows = 0

    def rewrite(self, observations: Any, episodes: Any = None, update: bool = True) -> Any:
        self.rows += len(observations)
        return observations * 2


@pytest.mark.parametrize("mode", MODES)
def test_each_observation_is_rewritten_once(mode):
    env = counters(3, 5, mode=mode)
    doubled = Doubled()
    pipeline = env_to_module_pipeline(env.single_observation_space, env.single_action_space, pieces=[doubled])
    runner = SingleAgentEnvRunner(env, Halves(), env_to_module=pipeline)
    packs = [runner.sample(num_timesteps=7) for _ in range(3)]
    for episode in (episode for pack in packs for episode in pack):
        np.testing.assert_array_equal(
            episode.get_observations()[:, 1] / 2, episode.t_started + np.arange(len(episode) + 1)
        )
        np.testing.assert_array_equal(episode.get_extra_model_outputs("seen"), episode.get_observations(slice(0, -1)))
    whole = {episode.id_: episode.t for pack in packs for episode in pack}
    waiting = np.flatnonzero(runner.episodes.ages == 0)  # those that were just reset are in no pack
    assert doubled.rows == sum(steps + 1 for steps in whole.values()) + len(waiting)


def test_runner_state_has_filter_statistics():
    def make() -> SingleAgentEnvRunner:
        env = counters(3, 5)
        pipeline = env_to_module_pipeline(
            env.single_observation_space, env.single_action_space, pieces=[MeanStdFilter()]
        )
        return SingleAgentEnvRunner(env, Halves(), env_to_module=pipeline, seed=4)

    first, second = make(), make()
    first.sample(num_timesteps=20)
    second.set_state(first.get_state())
    assert second.num_steps == first.num_steps
    assert nested.equal(second.get_state()["env_to_module"], first.get_state()["env_to_module"])
    first.set_state(first.get_state())
    a, b = first.sample(num_timesteps=10), second.sample(num_timesteps=10)
    np.testing.assert_array_equal(a.observations[:, 1], b.observations[:, 1])


def test_runner_state_has_quota_turn_and_seed():
    first, second = (SingleAgentEnvRunner(counters(2, 2, 2), Halves(), seed=seed) for seed in (3, 8))
    first.sample(num_episodes=4)
    second.set_state(first.get_state())
    assert (second.seed, second.get_state()["turn"]) == (3, 1)
    assert second.sample(num_episodes=1).observations[0, 1] == 0
    assert second.get_state()["turn"] == 2
    first.set_state(second.get_state())
    second.set_state(second.get_state())
    assert (first.seed, first.num_steps) == (second.seed, second.num_steps) == (3, first.num_steps)


@pytest.mark.parametrize("random_actions", [False, True])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_state_from_before_the_first_sample_restores_the_seed(env_id: str, random_actions: bool) -> None:
    env = gym.make(env_id)
    policy = MLPPolicy(env.observation_space, env.action_space)
    runners = [SingleAgentEnvRunner(env_id, policy, num_envs=2, seed=seed) for seed in (0, 5)]
    state = runners[0].get_state()
    packs = []
    for runner in runners:
        runner.set_state(state)
        packs.append([numbered(runner.sample(num_timesteps=40, random_actions=random_actions)) for _ in range(2)])
    assert packs[0] == packs[1]


@pytest.mark.parametrize("env", ["CartPole-v1", CartPoleVectorEnv])
def test_rewards_are_float32_by_default(env):
    made = lambda: env if isinstance(env, str) else env(2)  # noqa: E731
    runner = SingleAgentEnvRunner(made())
    assert runner.sample(num_timesteps=9, random_actions=True).rewards.dtype == np.float32
    buffer = EpisodeReplayBuffer(99)
    for vectorized in ("CartPole-v1", CartPoleVectorEnv(2)):  # either goes into the other's buffer
        SingleAgentEnvRunner(vectorized).sample_into(buffer, num_timesteps=9, random_actions=True)
    assert buffer.sample(3)["rewards"].dtype == np.float32
    doubles = SingleAgentEnvRunner(made(), reward_dtype=np.float64)
    assert doubles.sample(num_timesteps=9, random_actions=True).rewards.dtype == np.float64


class Masked(gym.Env):
    """Environment in which one of three actions is legal, another one after each step."""

    observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "t": spaces.Box(0, 99, (1,), np.float32)})
    action_space = spaces.Discrete(3, start=1)

    def _observation(self) -> dict[str, Any]:
        mask = np.zeros(3, np.int8)
        mask[self.t % 3] = 1
        return {"action_mask": mask, "t": np.array([self.t], np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = int(self.np_random.integers(3))
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        legal = action == 1 + self.t % 3
        self.t += 1
        return self._observation(), float(legal), self.t > 8, False, {}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("flattened", [False, True])
def test_random_actions_respect_action_masks(mode, flattened):
    env = SyncVectorEnv([Masked] * 3, autoreset_mode=mode)
    spaces_ = (env.single_observation_space, env.single_action_space)
    pieces = [FlattenObservations()] if flattened else []
    runner = SingleAgentEnvRunner(env, env_to_module=env_to_module_pipeline(*spaces_, pieces=pieces), seed=1)
    for _ in range(2):
        pack = runner.sample(num_timesteps=60, random_actions=True)
        assert (pack.rewards == 1).all()


class Kills(Hook):
    """Hook that kills the process of the first environment at a step."""

    def __init__(self, step: int) -> None:
        self.missing = step

    def on_step(self, runner: Any) -> None:
        self.missing -= 1
        if not self.missing:
            process = runner.env.processes[0]
            process.kill()
            process.join()


class Dies(Counter):
    """Environment whose process ends in the middle of a step."""

    def step(self, action: Any) -> Any:
        if self.episode == 2 and self.t == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.parametrize(("env", "hooks", "num_steps"), [("CartPole-v1", [Kills(5)], 10), (Dies, [], 8)])
def test_killed_environment_process_leaves_recorded_steps(env, hooks, num_steps):
    runner = SingleAgentEnvRunner(env, num_envs=2, vectorization="async", hooks=hooks)
    with pytest.raises(EnvironmentLost, match=r"environment 0 .*SIGKILL"):
        runner.sample(num_timesteps=100, random_actions=True)
    processes = runner.env.processes
    runner.close()
    assert not any(process.is_alive() for process in processes)
    assert runner.take().num_steps == num_steps


class WholeNumbers(gym.Env):
    """Environment whose actions are integers from 0 to 5."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Box(0, 5, (2,), np.int64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), float(self.action_space.contains(action)), False, False, {}


def test_fractions_for_integer_box_are_recorded_unchanged():
    policy = lambda batch, explore: {"actions": np.full((len(batch["obs"]), 2), 0.3, np.float32)}  # noqa: E731
    runner = SingleAgentEnvRunner(WholeNumbers, policy, num_envs=2)
    pack = runner.sample(num_timesteps=6)
    assert pack.actions.dtype == np.float32
    assert np.allclose(pack.actions, 0.3)
    assert pack.rewards.tolist() == [1.0] * 6  # the environment got whole numbers within its bounds
    assert runner.sample(num_timesteps=6, random_actions=True).rewards.tolist() == [1.0] * 6


def test_autoreset_mode_is_that_of_the_environment():
    env = CartPoleVectorEnv(2)
    env.metadata = {**env.metadata, "autoreset_mode": "Sometimes"}
    with pytest.raises(InvalidArgument, match="'Sometimes' is not known; there are 'NextStep'"):
        SingleAgentEnvRunner(env, Halves())
    env.metadata = {}
    with pytest.raises(InvalidArgument, match="pass autoreset_mode"):
        SingleAgentEnvRunner(env, Halves())
    runner = SingleAgentEnvRunner(env, autoreset_mode="NextStep")
    assert runner.sample(num_timesteps=50, random_actions=True).num_steps >= 50
    same, disabled = counters(3, mode=AutoresetMode.SAME_STEP), counters(3, mode=AutoresetMode.DISABLED)
    assert SingleAgentEnvRunner(same).autoreset_mode is AutoresetMode.SAME_STEP  # several may share one metadata dict
    assert SingleAgentEnvRunner(disabled).autoreset_mode is AutoresetMode.DISABLED


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("NoSuchPole-v1", {}, "NoSuchPole-v1"),
        ("no_such_module:CartPole-v1", {}, "no_such_module"),
        (7, {}, "int"),
        (lambda: 7, {}, "int"),
        (counters(2, 2), {"num_envs": 3}, "num_envs"),
        (counters(2, 2), {"autoreset_mode": "SameStep"}, "autoreset_mode"),
        ("CartPole-v1", {"len_lookback_buffer": -1}, "len_lookback_buffer"),
        ("CartPole-v1", {"len_lookback_buffer": 0.5}, "len_lookback_buffer"),
        ("CartPole-v1", {"vectorization": "sideways"}, "vectorization"),
        (gym.make("CartPole-v1"), {"vectorization": "async"}, "with a single environment"),
        ("MountainCar-v0", {"vectorization": "vector_entry_point"}, "vector"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_constructor_argument_is_named(env, options, message):
    with pytest.raises((InvalidArgument, WrongType), match=message):
        SingleAgentEnvRunner(env, **options)


class Sayings(gym.Env):
    """Environment with episodes of 3 steps, whose observation at time t is item t of `items`."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: gym.Space, items: list[Any]) -> None:
        self.observation_space, self.items, self.t = space, items, 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.items[0], {}

    def step(self, action):
        self.t += 1
        return self.items[self.t], 1.0, self.t == 3, False, {}


class Lengths(ObservationPreprocessor):
    """Preprocessor that returns the length of an item."""

    def preprocess(self, observation, episode):
        return np.array([len(observation)], np.float32)

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return spaces.Box(0, 9, (1,))


SAYINGS = [
    (spaces.Text(4), ["a", "long", "be", "c"]),
    (spaces.Dict(say=spaces.Text(4), at=spaces.Discrete(9)), [{"say": s, "at": i} for i, s in enumerate("abcd")]),
    (
        spaces.OneOf([spaces.Discrete(5), spaces.Box(-1, 1, (2,))]),
        [(0, np.int64(1)), (1, np.ones(2, np.float32)), (0, np.int64(3)), (1, np.zeros(2, np.float32))],
    ),
    (spaces.Sequence(spaces.Discrete(3)), [(0, 1), (), (2,), (0, 0, 0)]),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("space", "items"), SAYINGS)
def test_texts_choices_and_sequences_become_arrays_in_each_mode(mode, space, items):
    has_lengths = isinstance(space, spaces.Sequence)
    piece = Lengths() if has_lengths else FlattenObservations()
    pipeline = env_to_module_pipeline(space, spaces.Discrete(2), pieces=[piece])
    runner = SingleAgentEnvRunner(
        lambda: Sayings(space, items), Always(0), num_envs=2, env_to_module=pipeline, autoreset_mode=mode
    )
    flat = np.array([[len(item)] if has_lengths else spaces.flatten(space, item) for item in items], np.float32)
    for episode in runner.sample(num_episodes=3):
        np.testing.assert_array_equal(episode.get_observations(), flat)
    runner.sample_into(buffer := EpisodeReplayBuffer(100, seed=0), num_timesteps=6)
    np.testing.assert_array_equal(buffer.sample_episodes(1)[0].get_observations(), flat)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("space", "items"),
    [
        (spaces.Sequence(spaces.Discrete(3)), [(0, 1), (), (2,), (0, 0, 0)]),
        (spaces.Sequence(spaces.Discrete(3), stack=True), [np.zeros(t, int) for t in range(4)]),
        (spaces.Graph(spaces.Discrete(3), None), [spaces.GraphInstance(np.zeros(2, int), None, None)] * 4),
        (spaces.OneOf([spaces.Discrete(3), spaces.Discrete(2)]), [(0, 2), (1, 0), (0, 1), (1, 1)]),
    ],
)
def test_items_of_other_shapes_raise_with_advice(mode, space, items):
    runner = SingleAgentEnvRunner(lambda: Sayings(space, items), num_envs=2, autoreset_mode=mode)
    with pytest.raises(
        ShapeMismatch,
        match=r"observations: items of a (Sequence|Graph|OneOf) space .* (ObservationPreproc|FlattenObs).*"
        r"SingleAgentEpisode\(ragged=.*ragged\.md",
    ):
        runner.sample(num_timesteps=8, random_actions=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_runner_makes_environments_from_ids_and_functions(mode, vectorization):
    with SingleAgentEnvRunner(
        "CartPole-v1", num_envs=2, seed=0, vectorization=vectorization, autoreset_mode=mode
    ) as runner:
        assert isinstance(runner.env, ProcessVectorEnv if vectorization == "async" else SyncVectorEnv)
        pack = runner.sample(num_timesteps=100, random_actions=True)
        ended = pack.terminated
        assert ended.sum() >= 2
        for episode in (pack[int(i)] for i in np.flatnonzero(ended)):
            x, _, angle, _ = episode.get_observations(-1)
            assert abs(x) > 2.4 or abs(angle) > 0.2  # the true last observation
            assert np.abs(episode.get_observations(0)).max() <= 0.05
    with pytest.raises(EpisodeStateError, match="close"):
        runner.sample(num_timesteps=1)


def test_environment_id_may_use_its_vector_entry_point():
    runner = SingleAgentEnvRunner("CartPole-v1", num_envs=64, vectorization="vector_entry_point", seed=0)
    assert isinstance(runner.env.unwrapped, CartPoleVectorEnv)
    pack = runner.sample(num_timesteps=6400, random_actions=True)
    np.testing.assert_array_equal(pack.rewards, 1)
    assert runner.stats.returns.tolist() == runner.stats.lengths.tolist()


def test_environment_id_may_name_its_module() -> None:
    with SingleAgentEnvRunner("episode_learners.environments:CartPoleWithoutVelocities-v1", seed=0) as runner:
        pack = runner.sample(num_timesteps=4, random_actions=True)
    assert pack.observations.shape[1:] == (2,)
