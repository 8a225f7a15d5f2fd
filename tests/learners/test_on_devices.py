"""Every policy, distribution, algorithm and pipeline with tensors on another device than the CPU.

Without a GPU the device is torch's "meta", which has shapes and no values. There an operation fails if it needs a
value on the host, or mixes tensors of two devices. So this finds hidden waits and copies on any machine. With a GPU,
results also equal those of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from connectors import distribution_for, env_to_module_pipeline, learner_pipeline
from connectors.env_to_module import (
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    NormalizeObservations,
    PrevActionsPrevRewards,
    TransformerContext,
)
from connectors.learner import GeneralizedAdvantageEstimation
from episode_learners import (
    BC,
    CQL,
    DQN,
    GRPO,
    IMPALA,
    PPO,
    R2D2,
    SAC,
    BCConfig,
    ContinuousCQL,
    ContinuousCQLConfig,
    CQLConfig,
    DQNConfig,
    EncoderPolicy,
    GRPOConfig,
    GRUPolicy,
    IMPALAConfig,
    LSTMPolicy,
    LSTMQPolicy,
    MLPPolicy,
    PPOConfig,
    QPolicy,
    R2D2Config,
    SACConfig,
    SACPolicy,
    TransformerPolicy,
)
from episode_runners import SingleAgentEnvRunner
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.tracks import nested

DEVICES = ["meta", pytest.param("cuda", marks=pytest.mark.gpu)]
CART = gym.make("CartPole-v1")
PENDULUM = gym.make("Pendulum-v1")
VALUES = {"rtol": 1e-4, "atol": 1e-4}  # of float32 sums in another order


def moved(values: Any, device: str) -> Any:
    return nested.map_leaves(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, values)


def check_alike(result: Any, expected: Any, device: str) -> None:
    """Check tensors on a device: places, shapes and dtypes, and values unless the device has none."""
    pairs = list(zip(nested.leaves(result), nested.leaves(expected), strict=True))
    assert pairs
    for tensor, reference in pairs:
        assert tensor.device.type == device
        assert (tensor.shape, tensor.dtype) == (reference.shape, reference.dtype)
        if device != "meta":
            torch.testing.assert_close(tensor.cpu(), reference, **VALUES)


# --- distributions --------------------------------------------------------------------------------------------------

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)
SPACES = {
    "Discrete": gym.spaces.Discrete(4, start=2),
    "MultiDiscrete": gym.spaces.MultiDiscrete([2, 3]),
    "MultiBinary": gym.spaces.MultiBinary(3),
    "Box": BOX,
    "Dict": gym.spaces.Dict(a=gym.spaces.Discrete(3), b=BOX),
}
DISTRIBUTIONS = {name: (lambda space=space: distribution_for(space)) for name, space in SPACES.items()}
DISTRIBUTIONS["squashed Box"] = lambda: distribution_for(BOX, squashed=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_distribution_stays_on_device(make: Callable[[], Any], device: str) -> None:
    distribution = make()
    inputs = torch.randn(7, distribution.num_inputs, generator=torch.Generator().manual_seed(0))
    actions, there = distribution.sample(inputs), inputs.to(device)
    sampled = distribution.sample(there)
    pairs = zip(nested.leaves(sampled), nested.leaves(actions), strict=True)
    assert all((a.device.type, a.shape, a.dtype) == (device, b.shape, b.dtype) for a, b in pairs)
    check_alike(distribution.mode(there), distribution.mode(inputs), device)
    check_alike(distribution.log_prob(there, moved(actions, device)), distribution.log_prob(inputs, actions), device)
    if device == "meta" or "squashed" not in type(distribution).__name__.lower():  # whose entropy is sampled
        check_alike(distribution.entropy(there), distribution.entropy(inputs), device)


# --- policies and algorithms ----------------------------------------------------------------------------------------


def of(env: gym.Env, policy: Any, **options: Any) -> Any:
    return policy(env.observation_space, env.action_space, **options)


ON_POLICY: dict[str, Any] = {
    "PPO": (PPO, PPOConfig(minibatch_size=32), MLPPolicy, CART),
    "PPO of a Box": (PPO, PPOConfig(minibatch_size=32, value_clip=0.2, dual_clip=3.0), MLPPolicy, PENDULUM),
    "PPO with an encoder": (PPO, PPOConfig(minibatch_size=32), EncoderPolicy, CART),
    "GRPO": (GRPO, GRPOConfig(group_size=2), MLPPolicy, CART),
    "IMPALA": (IMPALA, IMPALAConfig(), MLPPolicy, CART),
    "BC": (BC, BCConfig(), MLPPolicy, CART),
}
OFF_POLICY: dict[str, Any] = {
    "DQN": (DQN, DQNConfig(batch_size=16), QPolicy, CART, EpisodeReplayBuffer),
    "DQN with priorities": (DQN, DQNConfig(batch_size=16), QPolicy, CART, PrioritizedEpisodeReplayBuffer),
    "CQL": (CQL, CQLConfig(batch_size=16), QPolicy, CART, EpisodeReplayBuffer),
    "R2D2": (R2D2, R2D2Config(batch_size=8), LSTMQPolicy, CART, EpisodeReplayBuffer),
    "SAC": (SAC, SACConfig(batch_size=16), SACPolicy, PENDULUM, EpisodeReplayBuffer),
    "CQL of a Box": (ContinuousCQL, ContinuousCQLConfig(batch_size=16), SACPolicy, PENDULUM, EpisodeReplayBuffer),
}


def sampled(env: gym.Env, policy: Any, **counts: Any) -> Any:
    with SingleAgentEnvRunner(env.spec.id, policy, num_envs=2, seed=0) as runner:
        return runner.sample(**counts)


def minibatch_of(name: str) -> tuple[Any, Any]:
    """Return an algorithm, and a minibatch of it."""
    if name in ON_POLICY:
        kind, config, policy, env = ON_POLICY[name]
        algorithm = kind(of(env, policy), config)
        counts = {"num_episodes": 4} if kind is GRPO else {"num_timesteps": 64}
        batch = algorithm.preprocess(sampled(env, algorithm.policy, **counts))
    else:
        kind, config, policy, env, buffer = OFF_POLICY[name]
        algorithm, replay = kind(of(env, policy), config), buffer(500, seed=0)
        with SingleAgentEnvRunner(env.spec.id, algorithm.policy, num_envs=2, seed=0) as runner:
            keys = ("state_out",) if kind is R2D2 else None
            runner.sample_into(replay, num_timesteps=300, extra_model_outputs=keys)
        batch = algorithm._batch_of_samples(algorithm.draw(replay, config.batch_size))
    return algorithm, next(iter(algorithm.minibatches(batch)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [*ON_POLICY, *OFF_POLICY])
def test_loss_stays_on_device(name: str, device: str) -> None:
    algorithm, minibatch = minibatch_of(name)
    twin = deepcopy(algorithm).to(device)
    if device == "meta" and isinstance(twin, SAC):
        twin._action_generator = lambda: None  # type: ignore[method-assign]  # there is none on this device
    for optimizer in algorithm.optimizers:
        torch.manual_seed(0)
        loss, measured = algorithm.loss(minibatch, optimizer)
        other, other_measured = twin.loss(moved(minibatch, device), optimizer)
        assert (other.device.type, other.shape) == (device, ())
        assert all(not value.is_cpu for value in other_measured.values() if isinstance(value, torch.Tensor))
        assert other_measured.keys() == measured.keys()
        if device != "meta" and not isinstance(algorithm, SAC):  # which samples actions
            torch.testing.assert_close(other.cpu(), loss, **VALUES)
        other.backward()


POLICIES: dict[str, Any] = {
    "MLP": (MLPPolicy, {}),
    "encoder": (EncoderPolicy, {}),
    "LSTM": (LSTMPolicy, {"state_size": 8}),
    "GRU": (GRUPolicy, {"state_size": 8}),
    "Q": (QPolicy, {}),
    "LSTM Q": (LSTMQPolicy, {"state_size": 8}),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("explore", [None, False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_policy_stays_on_device(name: str, explore: bool | None, device: str) -> None:
    kind, options = POLICIES[name]
    policy = of(CART, kind, hidden_sizes=(8,), **options)
    obs = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    batch: dict[str, Any] = {"obs": obs}
    state = policy.get_initial_state()
    if state:
        state = nested.map_leaves(lambda leaf: torch.zeros(3, *np.shape(leaf)), state)
        batch = {"obs": obs[:, None].expand(3, 5, 4), "state_in": state}
    with torch.no_grad():
        expected = policy(batch, explore=explore)
        result = deepcopy(policy).to(device)(moved(batch, device), explore=explore)
    if "Q" in name and explore:  # epsilon is random
        expected, result = ({k: v for k, v in outputs.items() if k != "actions"} for outputs in (expected, result))
    check_alike(result, expected, device)


# --- pipelines ------------------------------------------------------------------------------------------------------

PIECES: dict[str, Callable[[], list[Any]]] = {
    "none": list,
    "flat": lambda: [FlattenObservations()],
    "stack": lambda: [FrameStacking(num_frames=3)],
    "previous": lambda: [PrevActionsPrevRewards(n_prev_actions=2)],
    "normalized": lambda: [NormalizeObservations()],
    "filter": lambda: [MeanStdFilter()],
    "context": lambda: [TransformerContext(k=3)],
    "filter and stack": lambda: [MeanStdFilter(), FrameStacking(num_frames=3)],
}


def seen(name: str) -> tuple[Any, Any, Any]:
    """Return a pipeline with the pieces, a policy if its input is one array, and a pack."""
    seeing = env_to_module_pipeline(CART.observation_space, CART.action_space, pieces=PIECES[name]())
    has_array = isinstance(seeing.observation_space, gym.spaces.Box) and name not in ("previous", "context")
    policy = MLPPolicy(seeing.observation_space, CART.action_space) if has_array else None
    with SingleAgentEnvRunner("CartPole-v1", policy, num_envs=2, env_to_module=seeing, seed=0) as runner:
        return seeing, policy, runner.sample(num_timesteps=64, random_actions=policy is None)


def learned_batch(seeing: Any, pack: Any, policy: Any, returns: Any, device: str) -> Any:
    spaces = (seeing.recorded_observation_space, CART.action_space)
    pipeline = learner_pipeline(*spaces, views=seeing.views, returns=returns, device=device)
    return pipeline(rl_module=policy, batch={}, episodes=pack)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PIECES)
def test_pipelines_put_equal_columns_on_device(name: str, device: str) -> None:
    seeing, policy, pack = seen(name)
    kinds = [None] if policy is None else [None, GeneralizedAdvantageEstimation(gamma=0.9, lambda_=0.8)]
    for returns in kinds:
        columns, there = (learned_batch(seeing, pack, policy, returns, place) for place in ("cpu", device))
        tensors = {name: column for name, column in columns.items() if name != "episodes"}
        assert there.keys() == columns.keys()
        assert len(tensors) >= 3
        check_alike({name: there[name] for name in tensors}, tensors, device)


@pytest.mark.parametrize("device", DEVICES)
def test_transformer_policy_stays_on_device(device: str) -> None:
    seeing, _, pack = seen("context")
    policy = TransformerPolicy(seeing.observation_space, CART.action_space, size=8)
    batch = learned_batch(seeing, pack, None, None, "cpu")
    with torch.no_grad():
        expected = policy(batch)
        check_alike(deepcopy(policy).to(device)(moved(batch, device)), expected, device)
