"""Off-policy algorithms: policies, checks of arguments, states, and learning."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from episode_learners import (
    CQL,
    DQN,
    GRPO,
    IMPALA,
    R2D2,
    SAC,
    ContinuousCQL,
    DQNConfig,
    GRPOConfig,
    LSTMPolicy,
    LSTMQPolicy,
    MLPPolicy,
    QPolicy,
    R2D2Config,
    SACConfig,
    SACPolicy,
)
from episode_runners import SingleAgentEnvRunner, evaluate
from episodes.errors import InvalidArgument, StateMismatch
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.policy_box import policy_space_of
from tests.learners.test_networks_learn import Masked
from tests.learners.weights import assert_same_weights, seeded

OBSERVATIONS = spaces.Box(-1.0, 1.0, (2,))
TWO = spaces.Discrete(2)
BOX = spaces.Box(-3.0, 1.0, (1,))
OF_POLICY = policy_space_of(BOX, "normalize")


def dqn(seed: int = 0, dueling: bool = False, **numbers: Any) -> DQN:
    policy = QPolicy(OBSERVATIONS, TWO, hidden_sizes=(16,), dueling=dueling, generator=seeded(seed))
    return DQN(policy, DQNConfig(**{"batch_size": 32, "gamma": 0.5, "target_every": 10, **numbers}), seed=seed)


def sac(seed: int = 0, **numbers: Any) -> SAC:
    policy = SACPolicy(OBSERVATIONS, BOX, hidden_sizes=(16, 16), generator=seeded(seed))
    return SAC(policy, SACConfig(**{"batch_size": 64, "gamma": 0.5, **numbers}), seed=seed)


def episodes(continuous: bool = False, seed: int = 0, num: int = 20) -> list[SingleAgentEpisode]:
    """Return episodes in which the observation's first number decides the action with reward 1."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(num):
        obs = rng.uniform(-1, 1, (11, 2)).astype(np.float32)
        if continuous:
            actions = rng.uniform(-1, 1, (10, 1)).astype(np.float32)
            rewards = -((actions[:, 0] - obs[:-1, 0]) ** 2)
        else:
            actions = rng.integers(0, 2, 10)
            rewards = (actions == (obs[:-1, 0] > 0)).astype(np.float32)
        flags = {"terminated": i % 2 == 0, "truncated": i % 2 == 1}
        space = OF_POLICY if continuous else TWO
        made.append(SingleAgentEpisode.from_arrays(obs, actions, rewards, action_space=space, **flags))
    return made


def filled(buffer: EpisodeReplayBuffer, **of_episodes: Any) -> EpisodeReplayBuffer:
    buffer.add(episodes(**of_episodes))
    return buffer


def right_choices(policy: QPolicy) -> float:
    obs = torch.rand(500, 2, generator=seeded(7)) * 2 - 1
    return float(((policy.q_values({"obs": obs}).argmax(-1) == 1) == (obs[:, 0] > 0)).float().mean())


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        (EpisodeReplayBuffer, {"n_step": 3, "double": False}),
        (PrioritizedEpisodeReplayBuffer, {}),
        (PrioritizedEpisodeReplayBuffer, {"dueling": True}),
    ],
)
def test_dqn_update_from_buffer_learns_q_values(kind, numbers):
    algorithm = dqn(learning_rate=5e-3, **numbers)
    buffer = filled(kind(1000, seed=0))
    for _ in range(75):
        metrics = algorithm.update_from(buffer, num_steps=4)
    assert right_choices(algorithm.policy) > 0.93
    assert algorithm.num_gradient_steps == 300
    assert set(metrics) >= {"loss", "q_value", "td_error", "gradient_norm", "learning_rate"}


def test_update_from_prioritized_buffer_sets_td_errors():
    algorithm, buffer = dqn(), filled(PrioritizedEpisodeReplayBuffer(1000, seed=0, alpha=1.0))
    before = buffer.priorities(np.arange(200))
    algorithm.update_from(buffer, num_steps=3)
    after = buffer.priorities(np.arange(200))
    changed = after != before
    assert 20 < changed.sum() <= 96
    assert len(set(after[changed].tolist())) > 10


def test_epsilon_greedy_actions_have_exact_log_probabilities():
    policy = QPolicy(OBSERVATIONS, spaces.Discrete(4, start=1), epsilon=0.4, generator=seeded())
    obs = torch.rand(3, 2)
    best = policy.q_values({"obs": obs}).argmax(-1)
    inputs = policy({"obs": obs}, explore=True)["action_dist_inputs"]
    expected = torch.full((3, 4), 0.1).scatter_(1, best[:, None], 0.7)
    torch.testing.assert_close(inputs.exp(), expected)
    drawn = policy.distribution.sample(inputs[:1].expand(20_000, -1), seeded())
    assert float((drawn - 1 == best[0]).float().mean()) == pytest.approx(0.7, abs=0.02)
    for epsilon, likeliest in ((0.0, 1.0), (1.0, 0.25)):
        policy.epsilon = epsilon
        inputs = policy({"obs": obs}, explore=True)["action_dist_inputs"]
        assert torch.allclose(inputs.exp().amax(-1), torch.tensor(likeliest))
    greedy = policy({"obs": obs}, explore=False)["action_dist_inputs"]
    assert torch.equal(policy.distribution.mode(greedy) - 1, best)


def test_explore_after_lowers_epsilon_linearly():
    algorithm = dqn(epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=100)
    shares = []
    for steps in (0, 50, 100, 1000):
        algorithm.explore_after(steps)
        shares.append(algorithm.policy.epsilon)
    assert shares == pytest.approx([0.9, 0.5, 0.1, 0.1])


def test_dqn_target_is_copied_every_target_every_steps():
    algorithm, buffer = dqn(target_every=3), filled(EpisodeReplayBuffer(1000, seed=0))
    target, copied = algorithm.targets["policy"].module, []
    for _ in range(6):
        algorithm.update_from(buffer)
        copied.append(torch.equal(target.head.weight, algorithm.policy.head.weight))
    assert copied == [False, False, True] * 2


def test_sac_with_fixed_temperature_has_no_optimizer_of_it():
    algorithm = sac(temperature=0.2)
    before = float(algorithm.log_temperature.detach().exp())
    algorithm.update_from(filled(EpisodeReplayBuffer(1000, seed=0), continuous=True))
    assert set(algorithm.optimizers) == {"critic", "actor"}
    assert float(algorithm.log_temperature.detach().exp()) == pytest.approx(before) == pytest.approx(0.2)


def test_sac_actions_cover_the_bounds_of_the_space():
    env = gym.make_vec("Pendulum-v1", 2, vectorization_mode="sync")
    policy = SACPolicy(env.single_observation_space, env.single_action_space, generator=seeded())
    with torch.no_grad():
        policy.actor[-1].bias.fill_(3.0)
    with SingleAgentEnvRunner(env, policy, seed=0) as runner:
        pack = runner.sample(num_timesteps=20, explore=False)
    assert np.allclose(pack.actions, np.tanh(3.0), atol=1e-2)  # the policy's own, in -1..1


@pytest.mark.parametrize("kind", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
@pytest.mark.parametrize(
    ("make", "num_steps", "bad"),
    [
        (partial(dqn, target_every=3), 1, math.nan),
        (partial(dqn, target_every=3), 1, math.inf),  # the gradients of the errors are clipped to -1..1
        (partial(dqn, target_every=3), 2, math.nan),
        (sac, 3, math.nan),
    ],
    ids=["DQN NaN", "DQN infinite", "DQN in several steps", "SAC in several steps"],
)
def test_update_not_finite_changes_nothing(make: Any, num_steps: int, bad: float, kind: Any) -> None:
    algorithm, twin = make(), make()
    continuous = isinstance(algorithm, SAC)
    sound, same, rotten = (filled(kind(1000, seed=0), continuous=continuous) for _ in range(3))
    for obs, actions, rewards in map(_arrays, episodes(continuous)):
        spoiled = rewards + np.float32(bad)
        space = OF_POLICY if continuous else TWO
        rotten.add([SingleAgentEpisode.from_arrays(obs, actions, spoiled, terminated=True, action_space=space)])
    for _ in range(4):  # a copy to the target network is due with every third step
        assert algorithm.update_from(sound, num_steps) == twin.update_from(same, num_steps)
        with pytest.raises(
            InvalidArgument, match=r"the weights are as before.*rewards\[\d+\] \(episode .*, step \d+\)"
        ):
            algorithm.update_from(rotten, num_steps)
    assert_same_weights(algorithm, twin)


def test_sequence_with_nan_is_named_by_episode_and_step():
    algorithm = R2D2(LSTMQPolicy(OBSERVATIONS, TWO, hidden_sizes=(8,), state_size=8), R2D2Config(sequence_length=4))
    obs, actions, rewards = _arrays(episodes()[0])
    states = {name: np.zeros((10, 8), np.float32) for name in ("h", "c")}
    obs = np.where(np.arange(11)[:, None] == 6, np.float32(np.inf), obs)
    buffer, extra = EpisodeReplayBuffer(100, seed=0), {"state_out": states}
    buffer.add([SingleAgentEpisode.from_arrays(obs, actions, rewards, id_="odd", extra_model_outputs=extra)])
    with pytest.raises(InvalidArgument, match=r"R2D2: .*obs\[\d+, \d+\] \(episode odd, step 6\)"):
        algorithm.update_from(buffer)


@pytest.mark.parametrize("make", [dqn, sac])
def test_interrupted_update_leaves_no_gradients(make):
    algorithm = make()
    buffer = filled(EpisodeReplayBuffer(1000, seed=0), continuous=make is sac)

    class Presses(torch.nn.Module):
        def forward(self, features: Any) -> Any:
            if torch.is_grad_enabled() and len(pressed) < presses:
                pressed.append(True)
                raise KeyboardInterrupt
            return features

    last = algorithm.policy.critics[1] if make is sac else algorithm.policy.body
    last.append(Presses())
    for presses in (1, 2):  # in the first loss of an update; in the second, which is SAC's actor's
        pressed: list[bool] = [True] * (presses - 1)
        with pytest.raises(KeyboardInterrupt):
            algorithm.update_from(buffer, num_steps=2)
        assert not any(optimizer.gradient.any() for optimizer in algorithm.optimizers.values())
        assert all(parameter.requires_grad for parameter in algorithm.policy.parameters())


def _arrays(episode: SingleAgentEpisode) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return episode.get_observations(), episode.get_actions(), episode.get_rewards()


def test_state_of_another_algorithm_is_rejected_by_name():
    with pytest.raises((StateMismatch, RuntimeError)):
        dqn().load_state_dict(sac().state_dict())
    learned, fixed = sac(), sac(temperature=0.5)
    with pytest.raises(StateMismatch, match="temperature"):
        fixed.load_state_dict(learned.state_dict())


def test_continuous_cql_rejects_actions_out_of_bounds():
    wide = [
        SingleAgentEpisode.from_arrays(
            *(track * np.float32(2) for track in _arrays(episode)), terminated=True, action_space=OF_POLICY
        )
        for episode in episodes(continuous=True, num=3)
    ]
    algorithm = ContinuousCQL(SACPolicy(OBSERVATIONS, BOX))
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add(wide)
    for door, data in ((algorithm.update, wide), (algorithm.update_from, buffer)):
        with pytest.raises(InvalidArgument, match=r"an action of 1\.9.*-1\.\.1"):
            door(data)


def test_grpo_rejects_incomplete_episodes_and_groups():
    algorithm = GRPO(MLPPolicy(OBSERVATIONS, TWO), GRPOConfig(group_size=3))
    with pytest.raises(InvalidArgument, match="group_size, which is 3"):
        algorithm.update(with_log_probs(episodes(num=4)))
    cut = with_log_probs(episodes(num=3))
    cut[1].is_truncated = False
    with pytest.raises(InvalidArgument, match=f"{cut[1].id_} is a cut chunk"):
        algorithm.update(cut)
    by_length = GRPO(MLPPolicy(OBSERVATIONS, TWO), GRPOConfig(), group_of=len)
    assert by_length.update(with_log_probs(episodes(num=3)))["kl"] >= 0


def test_grpo_episode_without_steps_has_return_zero():
    nothing = SingleAgentEpisode.from_arrays(
        np.zeros((1, 2), np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32), terminated=True
    )
    group = with_log_probs([*episodes(num=1), nothing])
    batch = GRPO(MLPPolicy(OBSERVATIONS, TWO), GRPOConfig(group_size=2, scale=None)).preprocess(group)
    assert batch["advantages"].tolist() == [group[0].get_return() / 2] * 10


def with_log_probs(done: list[SingleAgentEpisode]) -> list[SingleAgentEpisode]:
    for episode in done:
        episode.set_extra_model_outputs(key="action_logp", new_data=np.full(len(episode), np.log(0.5), np.float32))
    return done


def test_r2d2_respects_the_action_mask():
    policy = LSTMQPolicy(
        Masked.observation_space, Masked.action_space, hidden_sizes=(32,), state_size=16, generator=seeded()
    )
    config = R2D2Config(learning_rate=5e-3, gamma=0.3, batch_size=32, sequence_length=4, burn_in=2, target_every=20)
    algorithm, buffer = R2D2(policy, config), PrioritizedEpisodeReplayBuffer(2000, seed=0, unit="sequence")
    policy.epsilon = 0.3
    env = gym.vector.SyncVectorEnv([Masked] * 8)  # refuses what is illegal
    with SingleAgentEnvRunner(env, policy, seed=0) as runner:
        for _ in range(10):
            runner.sample_into(buffer, num_timesteps=64, extra_model_outputs=algorithm.stored_outputs)
            metrics = algorithm.update_from(buffer, num_steps=4)
        assert evaluate(runner, num_episodes=16, seed=1).mean_return > 3.6
    assert all(math.isfinite(value) for value in metrics.values())


def test_r2d2_without_recorded_states_raises():
    algorithm = R2D2(LSTMQPolicy(OBSERVATIONS, TWO))
    with pytest.raises(InvalidArgument, match="extra_model_outputs"):
        algorithm.update_from(filled(EpisodeReplayBuffer(100, seed=0), num=5))
    with pytest.raises(InvalidArgument, match="LSTMQPolicy"):
        R2D2(QPolicy(OBSERVATIONS, TWO))


def test_algorithms_reject_policies_of_other_kinds():
    with pytest.raises(InvalidArgument, match="a Discrete action space is allowed"):
        QPolicy(OBSERVATIONS, BOX)
    with pytest.raises(InvalidArgument, match="allowed; give it finite bounds in each dimension, or take"):
        SACPolicy(OBSERVATIONS, spaces.Box(-np.inf, np.inf, (1,)))
    with pytest.raises(InvalidArgument, match="finite bounds is allowed; take a policy that has other actions"):
        SACPolicy(OBSERVATIONS, TWO)
    with pytest.raises(InvalidArgument, match="QPolicy"):
        DQN(MLPPolicy(OBSERVATIONS, TWO))


def test_algorithms_of_single_steps_reject_recurrent_policies():
    policy = LSTMQPolicy(OBSERVATIONS, TWO)
    for kind in (DQN, CQL):
        with pytest.raises(InvalidArgument, match=f"{kind.__name__} learns from single transitions.*R2D2"):
            kind(policy)
    for kind in (GRPO, IMPALA):
        with pytest.raises(InvalidArgument, match=f"{kind.__name__} cannot train recurrent policies"):
            kind(LSTMPolicy(OBSERVATIONS, TWO))


def test_update_with_episodes_rejects_n_step_and_sequences():
    with pytest.raises(InvalidArgument, match="n_step=3 needs a replay buffer"):
        dqn(n_step=3).update(episodes())
    with pytest.raises(InvalidArgument, match="R2D2 learns from sequences out of replay"):
        R2D2(LSTMQPolicy(OBSERVATIONS, TWO)).update(episodes())


@pytest.mark.parametrize("unit", ["sequence", "transition"])
def test_r2d2_priorities_are_those_of_sequences(unit: str):
    algorithm = R2D2(LSTMQPolicy(OBSERVATIONS, TWO, hidden_sizes=(8,), state_size=8), R2D2Config(batch_size=4))
    buffer = PrioritizedEpisodeReplayBuffer(1000, unit=unit, seed=0)
    states = {name: np.zeros((10, 8), np.float32) for name in ("h", "c")}
    for obs, actions, rewards in map(_arrays, episodes()):
        outputs = {"state_out": states}
        buffer.add(
            [SingleAgentEpisode.from_arrays(obs, actions, rewards, terminated=True, extra_model_outputs=outputs)]
        )
    if unit == "transition":
        with pytest.raises(InvalidArgument, match="unit='sequence'"):
            algorithm.update_from(buffer)
        return
    before = buffer.priorities(np.arange(200))
    algorithm.update_from(buffer, num_steps=2)
    assert 1 <= np.count_nonzero(buffer.priorities(np.arange(200)) != before) <= 8


def test_sac_with_scalar_action_and_one_layer_works():
    box = spaces.Box(-1.0, 1.0, ())
    for kind in (SAC, ContinuousCQL):
        algorithm: SAC = kind(SACPolicy(OBSERVATIONS, box, hidden_sizes=(), generator=seeded()))
        flat = [
            SingleAgentEpisode.from_arrays(obs, actions[:, 0], rewards, terminated=True)
            for obs, actions, rewards in map(_arrays, episodes(continuous=True))
        ]
        buffer = EpisodeReplayBuffer(1000, seed=0)
        buffer.add(flat)
        assert all(map(math.isfinite, algorithm.update_from(buffer, num_steps=2).values()))


def test_two_dimensional_multi_discrete_is_stored_silently():
    observation_space = spaces.MultiDiscrete(
        np.array([[2, 3], [2, 2]])
    )  # whose length, and so whose truth, Gymnasium warns of
    buffer = EpisodeReplayBuffer(100, seed=0)
    obs = np.ones((11, 2, 2), np.int64)
    buffer.add(
        [SingleAgentEpisode.from_arrays(obs, np.zeros(10, np.int64), np.zeros(10), observation_space=observation_space)]
    )
    buffer.recorder(2, autoreset_mode="NextStep", observation_space=observation_space, action_space=TWO)
    assert buffer.sample_episodes(1)[0].observation_space == observation_space
