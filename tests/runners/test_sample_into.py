"""`sample_into` writes the same steps into a replay buffer as `add` with the packs of `sample`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from connectors import env_to_module_pipeline
from connectors.env_to_module import FrameStacking
from episode_learners import LSTMPolicy, LSTMQPolicy, MLPPolicy, QPolicy
from episode_runners import SingleAgentEnvRunner
from episodes import VectorRecorder
from episodes.errors import EpisodeStateError, InvalidArgument, TrackMismatch, UnknownKey, WrongType
from episodes.replay import EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer
from episodes.replay.staged_steps import StagedSteps
from episodes.tracks import nested
from tests.moving.environments import Always

MODES = list(AutoresetMode)


class Walk(gym.Env):
    """Walk whose observations depend on all actions. Episodes have random lengths and endings."""

    observation_space = spaces.Box(-1e6, 1e6, (3,), np.float32)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 8))
        self.place = self.np_random.normal(size=3).astype(np.float32)
        return self.place, {"left": self.left}

    def step(self, action: int) -> Any:
        self.left -= 1
        self.place = self.place + np.float32([action, -action, 1])
        done, kind = self.left == 0, bool(self.np_random.integers(2))
        return self.place, float(self.place.sum()), done and kind, done and not kind, {"left": self.left}


def runner(mode: AutoresetMode, num_envs: int = 3, **options: Any) -> SingleAgentEnvRunner:
    envs = SyncVectorEnv([Walk for _ in range(num_envs)], autoreset_mode=mode)
    return SingleAgentEnvRunner(envs, options.pop("policy", None), seed=1, **options)


def flat(items: Any) -> list[Any]:
    return [leaf.tolist() for leaf in nested.leaves(items)]


def stored(buffer: EpisodeReplayBuffer) -> list[tuple[Any, ...]]:
    """Return the contents of a buffer without random ids and order."""
    return sorted(
        (
            episode.get_observations().tolist(),
            episode.get_actions().tolist(),
            episode.get_rewards().tolist(),
            [(key, flat(episode.get_extra_model_outputs(key))) for key in sorted(episode.extra_model_outputs)],
            [[(key, int(value)) for key, value in info.items()] for info in episode.infos],
            (episode.t_started, episode.is_terminated, episode.is_truncated),
        )
        for episode in buffer.iter_episodes()
    )


def pipeline_with_stacks(env: gym.Env) -> Any:
    return env_to_module_pipeline(env.observation_space, env.action_space, pieces=[FrameStacking(num_frames=2)])


@pytest.mark.parametrize("policy", ["none", "MLP", "LSTM", "MLP on frame stacks"])
@pytest.mark.parametrize("mode", MODES)
def test_sample_into_equals_adding_packs(mode: AutoresetMode, policy: str) -> None:
    def make() -> SingleAgentEnvRunner:
        torch.manual_seed(0)
        if policy == "none":
            return runner(mode)
        if policy == "LSTM":
            return runner(mode, policy=LSTMPolicy(Walk.observation_space, Walk.action_space))
        if policy == "MLP":
            return runner(mode, policy=MLPPolicy(Walk.observation_space, Walk.action_space))
        space = spaces.Box(-1e6, 1e6, (6,), np.float32)
        net = MLPPolicy(space, Walk.action_space)
        return runner(mode, policy=net, env_to_module=pipeline_with_stacks(Walk()))

    fed, added = EpisodeReplayBuffer(300, seed=0), EpisodeReplayBuffer(300, seed=0)
    feeds, adds = make(), make()
    random_actions = policy == "none"
    for num_timesteps in (1, 3, 20, 2, 50, 1, 7):
        pack = adds.sample(num_timesteps=num_timesteps, random_actions=random_actions)
        added.add(pack)
        options = {"random_actions": random_actions, "extra_model_outputs": list(pack.extra_model_outputs)}
        stats = feeds.sample_into(fed, num_timesteps=num_timesteps, **options)
        assert stored(fed) == stored(added)
        assert stats is feeds.stats
        assert stats.num_steps == adds.stats.num_steps >= num_timesteps
        assert sorted(stats.returns.tolist()) == pytest.approx(sorted(adds.stats.returns.tolist()))
        assert sorted(stats.lengths.tolist()) == sorted(adds.stats.lengths.tolist())
    assert feeds.num_steps == adds.num_steps
    assert feeds.num_episodes == adds.num_episodes > 5


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_sample_into_counts_equal_those_of_one_call(mode: AutoresetMode, num_envs: int) -> None:
    by_row, at_once = (runner(mode, num_envs, policy=Always(0)) for _ in range(2))
    buffer, rows = EpisodeReplayBuffer(500, seed=0), []
    for _ in range(90):
        num_before = len(buffer)
        rows.append(by_row.sample_into(buffer, num_timesteps=1))
        assert rows[-1].num_steps == len(buffer) - num_before > 0
    stats = at_once.sample_into(EpisodeReplayBuffer(500, seed=0), num_timesteps=len(buffer))
    assert stats.num_steps == len(buffer) == by_row.num_steps
    assert [x for row in rows for x in row.returns.tolist()] == stats.returns.tolist()
    assert [x for row in rows for x in row.lengths.tolist()] == stats.lengths.tolist()
    assert by_row.num_episodes == len(stats.lengths) > 5


@pytest.mark.parametrize("mode", MODES)
def test_sample_between_sample_into_starts_new_episodes(mode: AutoresetMode) -> None:
    env_runner = runner(mode)
    buffer, other_buffer = EpisodeReplayBuffer(500, seed=0), EpisodeReplayBuffer(500, seed=0)
    first = env_runner.sample_into(buffer, num_timesteps=20, random_actions=True).num_steps
    pack = env_runner.sample(num_timesteps=20, random_actions=True)
    assert pack.num_steps >= 20
    assert pack.t_started.max() > 0  # they go on from what went into the buffer
    second = env_runner.sample_into(buffer, num_timesteps=20, random_actions=True).num_steps
    third = env_runner.sample_into(other_buffer, num_timesteps=5, random_actions=True).num_steps
    assert (len(buffer), len(other_buffer)) == (first + second, third)
    for episode in [*buffer.iter_episodes(), *other_buffer.iter_episodes()]:
        episode.validate()
        assert episode.t_started == 0


def test_sample_into_cleared_or_restored_buffer_starts_anew() -> None:
    env_runner, buffer = runner(AutoresetMode.SAME_STEP), EpisodeReplayBuffer(100, seed=0)
    env_runner.sample_into(buffer, num_timesteps=20, random_actions=True)
    state = buffer.get_state()
    buffer.clear()
    assert env_runner.sample_into(buffer, num_timesteps=10, random_actions=True).num_steps == len(buffer)
    buffer.set_state(state)
    before = len(buffer)
    assert env_runner.sample_into(buffer, num_timesteps=10, random_actions=True).num_steps == len(buffer) - before
    assert all(episode.t_started == 0 for episode in buffer.iter_episodes())


def test_sample_into_may_start_with_random_actions() -> None:
    policy = MLPPolicy(Walk.observation_space, Walk.action_space)
    env_runner, buffer = runner(AutoresetMode.SAME_STEP, policy=policy), EpisodeReplayBuffer(100, seed=0)
    env_runner.sample_into(buffer, num_timesteps=10, random_actions=True)
    env_runner.sample_into(buffer, num_timesteps=10)
    env_runner.sample_into(buffer, num_timesteps=10, random_actions=True)
    assert len(buffer) == env_runner.num_steps >= 30
    assert next(buffer.iter_episodes()).observation_space == Walk.observation_space


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("keys", [(), ("action_dist_inputs",)])
def test_share_of_random_actions_is_epsilon(num_envs: int, keys: Any) -> None:
    calls = []

    class Asked(QPolicy):
        def q_values(self, batch: Any) -> torch.Tensor:
            calls.append(batch)
            values = torch.zeros(len(batch["obs"]), 4)
            values[:, 2] = 1.0
            return values

    policy = Asked(Walk.observation_space, Walk.action_space, hidden_sizes=(), epsilon=0.4)
    with runner(AutoresetMode.SAME_STEP, num_envs, policy=policy) as env_runner:
        buffer = EpisodeReplayBuffer(2000, seed=0)
        calls.clear()
        env_runner.sample_into(buffer, num_timesteps=2000, extra_model_outputs=keys)
        drawn = [buffer.flush_ring().track("actions")[:2000] == action for action in range(4)]
        assert [env_runner.mean() for env_runner in drawn] == pytest.approx([0.1, 0.1, 0.7, 0.1], abs=0.04)
        saves = num_envs == 1 and not keys
        assert len(calls) * num_envs == pytest.approx(1200 if saves else 2000, abs=120 if saves else 0)
        pack = env_runner.sample(num_timesteps=50)  # a pack has all outputs at every step
        assert len(pack.extra_model_outputs["action_logp"]) == len(pack.rewards)
        policy.epsilon = 0.0
        env_runner.sample_into(buffer, num_timesteps=100, extra_model_outputs=keys)
        assert (buffer.flush_ring().track("actions")[:100] == 2).all()


def test_policy_with_own_exploration_is_always_called() -> None:
    class Own(QPolicy):
        def epsilon_greedy(self, values: torch.Tensor) -> torch.Tensor:
            return super().epsilon_greedy(values)

    spaces_ = (Walk.observation_space, Walk.action_space)
    assert [policy(*spaces_, epsilon=0.3).random_action_probability for policy in (QPolicy, Own, LSTMQPolicy)] == [
        0.3,
        0.0,
        0.0,
    ]


def test_failed_sample_into_leaves_nothing_for_next_call() -> None:
    class Fails(Always):
        calls = 0

        def __call__(self, batch: Any, explore: bool | None = None) -> Any:
            self.calls += 1
            if self.calls == 7:
                raise ZeroDivisionError
            return super().__call__(batch)

    env_runner, buffer = runner(AutoresetMode.NEXT_STEP, policy=Fails(0)), EpisodeReplayBuffer(100, seed=0)
    with pytest.raises(ZeroDivisionError):
        env_runner.sample_into(buffer, num_timesteps=60)
    assert len(buffer) > 0
    assert env_runner.sample(num_timesteps=9).num_steps in range(9, 12)


def test_sample_into_stores_outputs_and_log_probs() -> None:
    policy = MLPPolicy(Walk.observation_space, Walk.action_space)
    buffer = EpisodeReplayBuffer(100, seed=0)
    env_runner, keys = runner(AutoresetMode.NEXT_STEP, policy=policy), ["action_dist_inputs", "action_logp"]
    env_runner.sample_into(buffer, num_timesteps=50, extra_model_outputs=keys)
    batch = buffer.sample(20, keys=["actions", "action_dist_inputs", "action_logp"])
    logits = batch.action_dist_inputs
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert batch.action_logp == pytest.approx(expected[np.arange(20), batch.actions], abs=1e-5)


def test_pack_with_more_outputs_than_buffer_is_added_with_the_stored_ones() -> None:
    sampling = runner(AutoresetMode.NEXT_STEP, policy=MLPPolicy(Walk.observation_space, Walk.action_space))
    buffer = EpisodeReplayBuffer(300)
    sampling.sample_into(buffer, num_timesteps=20)
    before, pack = stored(buffer), sampling.sample(num_timesteps=20)
    with pytest.raises(TrackMismatch, match=r"'action_logp'.*the buffer holds.*select them with keys="):
        buffer.add(pack, keys=["action_logp"])
    assert stored(buffer) == before
    num_before = len(buffer)
    buffer.add(pack)  # going on with the episodes that the runner fed
    assert len(buffer) == num_before + pack.num_steps


def test_sample_into_wrong_arguments_raise() -> None:
    env_runner = runner(AutoresetMode.NEXT_STEP, num_envs=8)
    with pytest.raises(InvalidArgument, match="at most half the buffer's capacity"):
        env_runner.sample_into(EpisodeReplayBuffer(10), num_timesteps=8, random_actions=True)
    with pytest.raises(InvalidArgument, match="at least 1"):
        env_runner.sample_into(EpisodeReplayBuffer(100), num_timesteps=0)
    for wrong in ("state_out", b"state_out", 3, [3], [["state_out"]]):
        with pytest.raises(WrongType, match="names of extra model outputs"):
            env_runner.sample_into(
                EpisodeReplayBuffer(100),
                num_timesteps=8,
                random_actions=True,
                extra_model_outputs=wrong,  # type: ignore[arg-type]
            )
    with pytest.raises(WrongType, match="cannot write into a MultiAgentEpisodeReplayBuffer"):
        env_runner.sample_into(
            MultiAgentEpisodeReplayBuffer(100),  # type: ignore[arg-type]
            num_timesteps=8,
            random_actions=True,
        )
    env_runner.close()
    with pytest.raises(EpisodeStateError, match="after close"):
        env_runner.sample_into(EpisodeReplayBuffer(100), num_timesteps=8)


class Counted(gym.Env):
    """Environment of endless episodes that counts its calls. The observation is the age of the episode."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Box(-2, 2, (1,), np.float32)
    calls = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        type(self).calls += 1
        self.age = 0
        return np.float32([0]), {}

    def step(self, action: Any) -> Any:
        type(self).calls += 1
        self.age += 1
        return np.float32([self.age]), 1.0, False, False, {}


LOGP, DIST = "action_logp", "action_dist_inputs"
CONTENTS: dict[str, tuple[str, ...] | None] = {"new": None, "without outputs": (), "with": (LOGP,), "cleared": (LOGP,)}
NAMES: list[list[str] | None] = [None, [], [LOGP], [LOGP, LOGP], [DIST, LOGP], ["nope"], [LOGP, "nope"]]


@pytest.mark.parametrize("continues", [True, False])
@pytest.mark.parametrize("acts", ["policy", "random"])
@pytest.mark.parametrize("contents", CONTENTS)
def test_names_of_outputs_are_checked_before_a_step(contents: str, acts: str, continues: bool) -> None:
    stored = CONTENTS[contents]
    for names in NAMES:
        env_runner = SingleAgentEnvRunner(Counted, MLPPolicy(Counted.observation_space, Counted.action_space), seed=0)
        buffer = EpisodeReplayBuffer(100)
        if stored is not None:
            env_runner.sample_into(buffer, num_timesteps=5, extra_model_outputs=stored)
        if contents == "cleared":
            buffer.clear()
        if not continues:
            env_runner.sample_into(EpisodeReplayBuffer(100), num_timesteps=5)
        length, before = len(buffer), Counted.calls
        keys = set(stored or () if names is None else names)
        wanted: Any = None
        if acts == "random" and keys:
            wanted = UnknownKey
        elif stored is not None and keys != set(stored):
            wanted = TrackMismatch
        elif not keys <= {LOGP, DIST}:
            wanted = UnknownKey
        options: Any = {"num_timesteps": 3, "random_actions": acts == "random", "extra_model_outputs": names}
        if wanted is None:
            env_runner.sample_into(buffer, **options)
            assert set(buffer.extra_model_outputs) == keys
            assert len(buffer) == length + 3
            continue
        with pytest.raises(wanted):
            env_runner.sample_into(buffer, **options)
        assert Counted.calls - before == (stored is None and acts == "policy")  # the reset before the policy's output
        assert len(buffer) == length
        if contents == "with" and continues:
            env_runner.sample_into(buffer, num_timesteps=2)
            (episode,) = buffer.iter_episodes()
            assert episode.get_observations()[:, 0].tolist() == list(range(8))  # the rejected call cut nothing


def all_of(episode: Any) -> tuple[Any, ...]:
    """Return the data of a chunk without its id, lookback included."""
    back = slice(-episode.lookback, len(episode))
    tracks = [getter(back, neg_index_as_lookback=True) for getter in (episode.get_actions, episode.get_rewards)]
    observations = episode.get_observations(slice(-episode.lookback, len(episode) + 1), neg_index_as_lookback=True)
    infos = [sorted((key, float(value)) for key, value in info.items()) for info in episode.infos]
    ending = (episode.t_started, episode.lookback, episode.is_terminated, episode.is_truncated)
    return (*(track.tolist() for track in (observations, *tracks)), infos, *ending)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55])
@pytest.mark.parametrize("lookback", [0, 2])
@pytest.mark.parametrize("mode", MODES)
def test_pack_recorder_continues_episodes_of_replay_recorder(mode: AutoresetMode, lookback: int, num_rows: int) -> None:
    envs, rng = SyncVectorEnv([Walk for _ in range(4)], autoreset_mode=mode), np.random.default_rng(num_rows)
    saw_all, goes_on = (VectorRecorder(4, autoreset_mode=mode, len_lookback_buffer=lookback) for _ in range(2))
    buffer = EpisodeReplayBuffer(100, seed=0)
    straight = buffer.recorder(4, autoreset_mode=mode, len_lookback_buffer=lookback)
    recorders: list[Any] = [saw_all, straight]
    observations, infos = envs.reset(seed=3)
    for recorder in recorders:
        recorder.reset(observations, infos)

    def play(count: int) -> None:
        for _ in range(count):
            actions = rng.integers(0, 4, 4)
            row = envs.step(actions)
            for recorder in recorders:
                recorder.step(row[0], actions, *row[1:])
            done = row[2] | row[3]
            if mode is AutoresetMode.DISABLED and done.any():
                observations, infos = envs.reset(options={"reset_mask": done})
                for recorder in recorders:
                    recorder.reset(observations, infos, done)

    play(num_rows)
    assert straight.ages.tolist() == saw_all.ages.tolist()
    assert straight.count_steps() == saw_all.count_steps()
    ids = [episode.id_ for episode in straight.episodes] if num_rows % 2 else []
    saw_all.take()
    straight.hand_over_to(goes_on)
    assert not straight.is_reset
    recorders[1] = goes_on
    assert goes_on.ages.tolist() == saw_all.ages.tolist()
    assert goes_on.count_steps() == 0
    going_on = goes_on.ages > 0
    play(1)
    going_on &= goes_on.ages > 1
    if ids:
        assert [e.id_ for e, on in zip(goes_on.episodes, going_on, strict=True) if on] == [
            id_ for id_, on in zip(ids, going_on, strict=True) if on
        ]
    play(9)
    assert goes_on.count_steps() == saw_all.count_steps()
    assert [all_of(e) for e in goes_on.take()] == [all_of(e) for e in saw_all.take()]


@pytest.mark.parametrize("mode", MODES)
def test_replay_recorder_episodes_equal_pack_recorder_episodes(mode: AutoresetMode) -> None:
    envs, rng = SyncVectorEnv([Walk for _ in range(3)], autoreset_mode=mode), np.random.default_rng(0)
    buffer = EpisodeReplayBuffer(500, seed=0)
    packs, straight = VectorRecorder(3, autoreset_mode=mode), buffer.recorder(3, autoreset_mode=mode, keys=())
    observations, infos = envs.reset(seed=1)
    episode_ids: dict[tuple[int, int], str] = {}
    for recorder in (packs, straight):
        recorder.reset(observations, infos)
        recorder.episodes.recent("observations", 3)  # what is asked for once is kept
    for _ in range(60):
        actions, state = rng.integers(0, 4, 3), {"state": rng.random((3, 2))}
        row = envs.step(actions)
        done = row[2] | row[3]
        for recorder in (packs, straight):
            recorder.step(row[0], actions, *row[1:], state)
        assert [all_of(e) for e in straight.ended_episodes()] == [all_of(e) for e in packs.ended()]
        for result, expected in zip(straight.newest, packs.newest, strict=True):
            assert result.tolist() == expected.tolist()
        if mode is AutoresetMode.DISABLED and done.any():
            observations, infos = envs.reset(options={"reset_mask": done})
            for recorder in (packs, straight):
                recorder.reset(observations, infos, done)
        assert [all_of(e) for e in straight.episodes] == [all_of(e) for e in packs.episodes]
        for track, k in (("observations", 1), ("observations", 3), ("actions", 2), ("state", 1)):
            result, valid = straight.episodes.recent(track, k)
            expected, expected_valid = packs.episodes.recent(track, k)
            if valid.any():
                assert (result.tolist(), valid.tolist()) == (expected.tolist(), expected_valid.tolist())
        starts = np.flatnonzero(straight.ages == 0)
        episode_ids |= {(env, len(episode_ids)): straight.episodes[env].id_ for env in starts.tolist()}
        assert all(straight.episodes[env].id_ == straight.episodes[env].id_ for env in range(3))
    assert {e.id_ for e in buffer.iter_episodes()} >= set(list(episode_ids.values())[:-3])


# --- ids --------------------------------------------------------------------------------------------------------------


def ids_in(buffer: EpisodeReplayBuffer) -> list[str]:
    return [episode.id_ for episode in buffer.iter_episodes()]


def test_ids_of_runs_that_continue_from_one_state_differ() -> None:
    buffer = EpisodeReplayBuffer(300)
    first, resumed = (runner(AutoresetMode.NEXT_STEP, policy=Always(0)) for _ in range(2))
    with first, resumed:
        first.sample_into(buffer, num_timesteps=60)
        before, state = ids_in(buffer), (first.get_state(), buffer.get_state())
        later = []
        for run, copy in ((first, buffer), (resumed, EpisodeReplayBuffer(300))):
            run.set_state(state[0])
            copy.set_state(state[1])
            run.sample_into(copy, num_timesteps=60)
            assert ids_in(copy)[: len(before)] == before
            later += ids_in(copy)[len(before) :]
    assert len({*before, *later}) == len(before) + len(later) > 20


def test_small_calls_of_sample_into_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    build = StagedSteps.build_addition

    def counting(self: StagedSteps, *arguments: Any) -> Any:
        written.append(len(self.rows))
        return build(self, *arguments)

    sampler, buffer = runner(AutoresetMode.NEXT_STEP), EpisodeReplayBuffer(10_000, seed=0)
    monkeypatch.setattr(StagedSteps, "build_addition", counting)
    for _ in range(20):
        sampler.sample_into(buffer, num_timesteps=3, random_actions=True)
        assert buffer.extra_model_outputs == ()
    assert written == []
    assert len(buffer) >= 3 * 20
    assert len(written) == 1
