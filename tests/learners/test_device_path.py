"""Device use of updates: few operations, no waits between gradient steps, no memory leaks.

Where there is no GPU the same runs on the CPU, but for what only a GPU has: streams and graphs.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.loops import ppo as bare_ppo
from benchmarks.operations import count_operations
from benchmarks.torch_cartpole import ACTION_SPACE, OBSERVATION_SPACE, TorchCartPole
from connectors import RolloutBuffer, env_to_module_pipeline, rollout_to_episodes
from connectors.rollout.fragments import BlockEdge
from connectors.tensors import NumpyToTensor
from episode_learners import (
    DQN,
    GRPO,
    PPO,
    SAC,
    DQNConfig,
    FlatOptimizer,
    GRPOConfig,
    LSTMPolicy,
    MLPPolicy,
    PPOConfig,
    QPolicy,
    SACConfig,
    SACPolicy,
)
from episode_runners import SingleAgentEnvRunner
from episode_runners.environments import TorchVectorEnv, fill_rollout
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SPACES = (OBSERVATION_SPACE, ACTION_SPACE)


def perceptron(device: str = "cpu", space: gym.Space = ACTION_SPACE) -> MLPPolicy:
    return MLPPolicy(OBSERVATION_SPACE, space, generator=torch.Generator().manual_seed(0)).to(device)


def sampled(policy: Any, num_steps: int = 256, **counts: Any) -> Any:
    seeing = env_to_module_pipeline(*SPACES, policy=policy, device=policy.device)
    with SingleAgentEnvRunner("CartPole-v1", policy, num_envs=2, env_to_module=seeing, seed=0) as runner:
        return runner.sample(**counts) if counts else runner.sample(num_timesteps=num_steps)


def ppo_minibatch_operations(num_epochs: int) -> int:
    """Count the operations of all epochs over 256 steps with minibatches of 128."""
    algorithm = PPO(perceptron(), PPOConfig(num_epochs=num_epochs, minibatch_size=128))
    batch = algorithm.preprocess(sampled(algorithm.policy))
    algorithm.learn(batch)
    return count_operations(lambda: algorithm.learn(batch)).total


def bare_minibatch_operations(num_epochs: int) -> int:
    loop = bare_ppo.learning(2, 128, num_epochs, 128)
    next(loop)
    return count_operations(lambda: next(loop)).total


def test_ppo_minibatch_operations_are_near_those_of_bare_loop():
    ours, bare = (of(3) - of(2) for of in (ppo_minibatch_operations, bare_minibatch_operations))
    assert ours <= 1.2 * bare, (ours, bare)  # with the metrics, of which a bare loop has none


def replay_of(env_id: str) -> EpisodeReplayBuffer:
    buffer = EpisodeReplayBuffer(500, seed=0)
    with SingleAgentEnvRunner(env_id, num_envs=2, seed=0) as runner:
        runner.sample_into(buffer, num_timesteps=100, random_actions=True)
    return buffer


def on_policy(algorithm: Any, **counts: Any) -> Any:
    batch = algorithm.preprocess(sampled(algorithm.policy, **counts))
    return lambda: algorithm.learn(batch)


def from_replay(algorithm: Any, env_id: str) -> Any:
    buffer = replay_of(env_id)
    return lambda: algorithm.update_from(buffer, 5)


def recurrent() -> PPO:
    policy = LSTMPolicy(*SPACES, hidden_sizes=(8,), state_size=8)
    return PPO(policy, PPOConfig(num_epochs=2, minibatch_size=64))


def sac() -> SAC:
    env = gym.make("Pendulum-v1")
    policy = SACPolicy(env.observation_space, env.action_space, hidden_sizes=(8,))
    return SAC(policy, SACConfig(batch_size=16))


UPDATES = {
    "PPO": (lambda: on_policy(PPO(perceptron(), PPOConfig(num_epochs=2, minibatch_size=64))), 0),
    "GRPO": (lambda: on_policy(GRPO(perceptron(), GRPOConfig(minibatch_size=32)), num_episodes=8), 0),
    "DQN": (lambda: from_replay(DQN(QPolicy(*SPACES), DQNConfig(batch_size=16, target_every=2)), "CartPole-v1"), 0),
    "SAC": (lambda: from_replay(sac(), "Pendulum-v1"), 0),
    # how many real steps there are is read once, and where they lie once a minibatch: 256 steps in two epochs of four
    "recurrent PPO": (lambda: on_policy(recurrent()), 1 + 2 * 4),
}


@pytest.mark.parametrize(("make", "num_waits"), UPDATES.values(), ids=UPDATES)
def test_host_does_not_wait_for_minibatches(monkeypatch: pytest.MonkeyPatch, make: Any, num_waits: int) -> None:
    monkeypatch.setattr(FlatOptimizer, "knows_norm_before_step", False)  # the CPU looks at norms, at no cost
    run = make()
    run()
    assert count_operations(run).num_waits <= num_waits


# --- blocks of a simulator ------------------------------------------------------------------------------------------


def block(policy: Any, device: str, num_envs: int = 8, length: int = 32) -> Any:
    env = TorchVectorEnv(TorchCartPole(num_envs, device, limit=20), OBSERVATION_SPACE, ACTION_SPACE)
    buffer = RolloutBuffer(num_envs, length, 4, 1, device)
    with torch.no_grad():
        buffer.add(fill_rollout(env, policy, buffer.start_rollout()))
    return buffer.get(flatten=False)


@pytest.mark.parametrize("device", DEVICES)
def test_ppo_of_rollout_equals_ppo_of_episodes(device: str) -> None:
    policy = perceptron(device)
    rollout = block(policy, device)
    config = PPOConfig(num_epochs=1, minibatch_size=10_000)
    direct, by_episodes = PPO(deepcopy(policy), config), PPO(deepcopy(policy), config)
    batch = direct.rollout_batch(rollout)
    assert all(column.device.type == device for column in batch.values())
    episodes = EpisodePack.from_episodes(rollout_to_episodes(rollout, BlockEdge(8, "SameStep")))
    episodes = episodes.replace(actions=episodes.actions[:, 0].astype(np.int64))
    expected = by_episodes.preprocess(episodes)
    for name in ("advantages", "value_targets", "action_logp"):
        ours, reference = (columns_[name].cpu().sort().values for columns_ in (batch, expected))
        torch.testing.assert_close(ours, reference, rtol=1e-3, atol=1e-4)
    metrics, other_metrics = direct.update_from_rollout(rollout), by_episodes.update(episodes)
    assert metrics["value_loss"] == pytest.approx(other_metrics["value_loss"], rel=1e-3)
    vectors = [columns_.optimizers["policy"].vector for columns_ in (direct, by_episodes)]
    torch.testing.assert_close(*vectors, rtol=0, atol=1e-3)


def test_rollout_of_other_spaces_is_rejected() -> None:
    rollout = block(perceptron(), "cpu")
    with pytest.raises(InvalidArgument, match="is recurrent"):
        recurrent().update_from_rollout(rollout)


def first_sequences(rollout: Any) -> list[SingleAgentEpisode]:
    """Return the first steps of each environment of a block."""
    result = []
    for env in range(len(rollout)):
        ends = rollout["terminated"][env] | rollout["truncated"][env]
        num_steps = int(ends.nonzero()[0]) + 1
        rows = {name: rollout[name][env].cpu().numpy() for name in ("obs", "action", "reward", "sample_log_prob")}
        result.append(
            SingleAgentEpisode(
                observations=rows["obs"][: num_steps + 1],  # that of the row after an ending is another episode's
                actions=rows["action"][:num_steps, 0].astype(np.int64),
                rewards=rows["reward"][:num_steps],
                extra_model_outputs={"action_logp": rows["sample_log_prob"][:num_steps]},
                terminated=bool(rollout["terminated"][env, num_steps - 1]),
                truncated=bool(rollout["truncated"][env, num_steps - 1]),
                observation_space=OBSERVATION_SPACE,
                action_space=ACTION_SPACE,
                len_lookback_buffer=0,
            )
        )
    return result


@pytest.mark.parametrize("scale", ["group", "batch", None])
@pytest.mark.parametrize("device", DEVICES)
def test_grpo_of_rollout_equals_grpo_of_episodes(device: str, scale: Any) -> None:
    policy = perceptron(device)
    rollout = block(policy, device)
    rollout["reward"][:] = torch.linspace(-1.0, 2.0, rollout["reward"].numel(), device=device).view(rollout.shape)
    config = GRPOConfig(num_epochs=1, minibatch_size=10_000, group_size=4, scale=scale)
    direct, by_episodes = GRPO(deepcopy(policy), config), GRPO(deepcopy(policy), config)
    episodes = first_sequences(rollout)
    batch, expected = direct.rollout_batch(rollout), by_episodes.preprocess(episodes)
    assert all(column.device.type == device for column in batch.values())
    assert rollout["seq_mask"].sum() == sum(map(len, episodes)) < rollout["valid"].sum()
    for env, episode in enumerate(episodes):
        returns = rollout["seq_return"][env].tolist()
        assert returns == pytest.approx([episode.get_return()] * len(episode) + [0.0] * (33 - len(episode)), abs=1e-5)
    for name in ("obs", "actions", "action_logp", "advantages"):
        torch.testing.assert_close(batch[name], expected[name], rtol=1e-5, atol=1e-5)
    metrics, other_metrics = direct.update_from_rollout(rollout), by_episodes.update(episodes)
    assert metrics["policy_loss"] == pytest.approx(other_metrics["policy_loss"], abs=1e-5)
    vectors = [algorithm.optimizers["policy"].vector for algorithm in (direct, by_episodes)]
    torch.testing.assert_close(*vectors, rtol=0, atol=1e-3)


def test_grpo_of_incomplete_rollout_raises() -> None:
    algorithm = GRPO(perceptron(), GRPOConfig(group_size=4))
    rollout = block(algorithm.policy, "cpu", length=4)
    rollout["terminated"][:, 1], rollout["done"][:, 1] = True, True
    rollout["terminated"][5], rollout["truncated"][5], rollout["done"][5] = False, False, False
    with pytest.raises(InvalidArgument, match="environment 5 has neither terminated nor been truncated"):
        algorithm.update_from_rollout(rollout)
    with pytest.raises(InvalidArgument, match="8 episodes; give a multiple"):
        GRPO(perceptron(), GRPOConfig(group_size=3)).update_from_rollout(block(algorithm.policy, "cpu"))
    with pytest.raises(InvalidArgument, match="group_of takes episodes"):
        GRPO(perceptron(), group_of=id).update_from_rollout(rollout)


# --- what may happen to a device in a run -----------------------------------------------------------------------------


class InPlace(MLPPolicy):
    """Policy that changes its input in place between forward and backward."""

    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        outputs = super().forward({**batch, "obs": batch["obs"] * 1.0}, explore)
        if explore is None:
            batch["obs"].mul_(1.0)  # in place, on a column that lies beside the others
        return outputs


@pytest.mark.parametrize("device", DEVICES)
def test_in_place_column_work_allows_backward(device: str) -> None:
    policy = InPlace(*SPACES, generator=torch.Generator().manual_seed(0)).to(device)
    plain = perceptron(device)
    algorithms = [PPO(each_policy, PPOConfig(num_epochs=1, minibatch_size=64)) for each_policy in (policy, plain)]
    pack = sampled(plain)
    metrics = [algorithm.update(pack) for algorithm in algorithms]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_half_precision_samples_are_learned_from(device: str) -> None:
    policy = perceptron(device)

    def acting(batch: Any, explore: bool | None = None) -> Any:
        with torch.autocast(device, torch.bfloat16):
            return {name: value.float() for name, value in policy(batch, explore=explore).items()}

    seeing = env_to_module_pipeline(*SPACES, device=device)
    with SingleAgentEnvRunner("CartPole-v1", acting, num_envs=2, env_to_module=seeing, seed=0) as runner:  # type: ignore[arg-type]
        pack = runner.sample(num_timesteps=128)
    algorithm = PPO(policy, PPOConfig(num_epochs=1, minibatch_size=1_000))
    metrics = algorithm.update(pack)
    assert 0 <= metrics["kl"] < 1e-2
    assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_algorithm_moved_to_device_moves_batches(device: str) -> None:
    algorithm = PPO(perceptron(), PPOConfig(num_epochs=1))
    pack = sampled(algorithm.policy)
    algorithm.update(pack)
    algorithm.to(device)
    assert algorithm.pipeline[NumpyToTensor].device.type == device
    if device == "cuda":
        algorithm.update(pack)
        assert algorithm.optimizers["policy"].vector.device.type == device
        algorithm.to("cpu")
        algorithm.update(pack)


@pytest.mark.gpu
def test_update_on_another_stream_is_equal() -> None:
    results = []
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        algorithm = PPO(perceptron("cuda"), PPOConfig(num_epochs=2, minibatch_size=64))
        pack = sampled(perceptron())
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            algorithm.update(pack)
        torch.cuda.current_stream().wait_stream(stream)
        results.append(algorithm.optimizers["policy"].vector.clone())
    torch.testing.assert_close(*results)


@pytest.mark.gpu
def test_gradient_step_is_captured_in_cuda_graph() -> None:
    algorithm = PPO(perceptron("cuda"), PPOConfig(num_epochs=1, minibatch_size=64))
    algorithm.optimizers["policy"].optimizer.param_groups[0]["capturable"] = True
    batch = algorithm.preprocess(sampled(perceptron()))
    minibatch = next(iter(algorithm.minibatches(batch)))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # what has to be allocated is allocated
            algorithm.backward(minibatch, "policy")
            algorithm.step("policy")
    torch.cuda.current_stream().wait_stream(stream)
    graph, before = torch.cuda.CUDAGraph(), algorithm.optimizers["policy"].vector.clone()
    with torch.cuda.graph(graph):
        algorithm.backward(minibatch, "policy")
        algorithm.step("policy")
    graph.replay()
    torch.cuda.synchronize()
    assert isinstance(algorithm.policy, nn.Module)
    assert not torch.equal(before, algorithm.optimizers["policy"].vector)
