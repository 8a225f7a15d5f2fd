"""Updates of every algorithm: failures change nothing, losses are logged, extra columns and origins are kept."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from connectors.learner import AddNextObservations
from episode_learners import (
    BC,
    CQL,
    DQN,
    GRPO,
    IMPALA,
    PPO,
    SAC,
    Algorithm,
    BCConfig,
    ContinuousCQL,
    ContinuousCQLConfig,
    CQLConfig,
    DQNConfig,
    GRPOConfig,
    IMPALAConfig,
    MLPPolicy,
    PPOConfig,
    QPolicy,
    SACConfig,
    SACPolicy,
    linear_decay,
)
from episodes.errors import UnknownKey
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from tests.learners.weights import assert_same_weights, seeded

OBSERVATIONS, TWO, BOX = spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,))


def policy_of(kind: Any, actions: Any = TWO) -> Any:
    return kind(OBSERVATIONS, actions, hidden_sizes=(8,), generator=seeded())


MAKERS: dict[str, Callable[[], Algorithm]] = {
    "PPO": lambda: PPO(policy_of(MLPPolicy), PPOConfig(minibatch_size=16, num_epochs=2, entropy_coefficient=0.1)),
    "GRPO": lambda: GRPO(policy_of(MLPPolicy), GRPOConfig(group_size=2, minibatch_size=16, kl_coefficient=0.1)),
    "IMPALA": lambda: IMPALA(policy_of(MLPPolicy), IMPALAConfig(sequence_length=4, minibatch_size=16)),
    "BC": lambda: BC(policy_of(MLPPolicy), BCConfig(minibatch_size=16), scheduler=linear_decay(9)),
    "DQN": lambda: DQN(policy_of(QPolicy), DQNConfig(batch_size=16, target_every=2)),
    "CQL": lambda: CQL(policy_of(QPolicy), CQLConfig(batch_size=16, conservatism=5.0)),
    "SAC": lambda: SAC(policy_of(SACPolicy, BOX), SACConfig(batch_size=16, actor_learning_rate=1e-2)),
    "ContinuousCQL": lambda: ContinuousCQL(policy_of(SACPolicy, BOX), ContinuousCQLConfig(batch_size=16)),
}
each_algorithm = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def episodes(actions: Any, seed: int = 0) -> list[SingleAgentEpisode]:
    rng = np.random.default_rng(seed)
    return [
        SingleAgentEpisode.from_arrays(
            rng.normal(size=(13, 3)).astype(np.float32),
            rng.integers(0, 2, 12) if actions is TWO else rng.uniform(-1, 1, (12, 1)).astype(np.float32),
            rng.normal(size=12).astype(np.float32),
            terminated=True,
            id_=f"e{seed}-{i}",
            extra_model_outputs={"action_logp": np.full(12, np.log(0.5), np.float32)},
        )
        for i in range(4)
    ]


def update(algorithm: Algorithm, seed: int = 0) -> dict[str, float]:
    return algorithm.update(episodes(algorithm.policy.action_space, seed))


class Failure(Exception):
    """Error in the middle of an update."""


@each_algorithm
@pytest.mark.parametrize("error", [Failure, KeyboardInterrupt, torch.OutOfMemoryError])
def test_failed_update_changes_nothing(make: Callable[[], Algorithm], error: type[BaseException]) -> None:
    algorithm, twin = make(), make()
    assert update(algorithm) == update(twin)
    after_step = algorithm.after_step
    for failing_step in (0, 1, 2):
        steps = iter(range(100))

        def fail() -> None:
            if next(steps) == failing_step:  # noqa: B023
                raise error
            after_step()

        algorithm.after_step = fail  # type: ignore[method-assign]
        with pytest.raises(error):
            update(algorithm, 1)
        assert_same_weights(algorithm, twin)
    algorithm.after_step = after_step  # type: ignore[method-assign]
    assert algorithm.num_updates == 1
    assert update(algorithm, 2) == update(twin, 2)


@each_algorithm
def test_restored_state_gives_equal_updates(make: Callable[[], Algorithm]) -> None:
    algorithm, restored = make(), make()
    for seed in (0, 1):
        update(algorithm, seed)
    file = io.BytesIO()
    torch.save(algorithm.state_dict(), file)
    file.seek(0)
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert restored.num_updates == 2
    for seed in (2, 3):
        assert update(algorithm, seed) == update(restored, seed)
    assert_same_weights(algorithm, restored)


def refuse(*_: Any) -> None:
    raise AssertionError("the critic was called")


@pytest.mark.parametrize("name", ["BC", "GRPO"])
def test_algorithm_without_values_never_calls_the_critic(name: str) -> None:
    algorithm = MAKERS[name]()
    algorithm.policy.critic.register_forward_hook(refuse)
    assert all(map(math.isfinite, update(algorithm).values()))
    with pytest.raises(AssertionError, match="the critic was called"):
        algorithm.policy({"obs": torch.zeros(1, 3)})


@each_algorithm
def test_logged_losses_are_the_minimized_losses(make: Callable[[], Algorithm]) -> None:
    algorithm = make()
    minimized: dict[str, list[float]] = {}
    loss = algorithm.loss

    def recorded(minibatch: Any, optimizer: str) -> Any:
        value, measured = loss(minibatch, optimizer)
        name = "loss" if len(algorithm.optimizers) == 1 else f"{optimizer}_loss"
        minimized.setdefault(name, []).append(value.item())
        return value, measured

    algorithm.loss = recorded  # type: ignore[method-assign]
    metrics = update(algorithm)
    for name, values in minimized.items():
        assert metrics[name] == pytest.approx(np.mean(values), rel=1e-4), name
    if "conservative_gap" in metrics:
        config: Any = algorithm.config
        critics = 1 if "loss" in minimized else 2
        total = metrics["td_loss"] + critics * config.conservatism * metrics["conservative_gap"]
        assert metrics["loss" if critics == 1 else "critic_loss"] == pytest.approx(total, rel=1e-4)


class WithModel(PPO):
    """PPO with an auxiliary loss on the next observations."""

    extra_columns = ("new_obs",)

    def loss(self, minibatch: Any, optimizer: str = "policy") -> Any:
        loss, measured = super().loss(minibatch, optimizer)
        auxiliary = minibatch["new_obs"].square().mean() * self.policy.compute_values(minibatch).square().mean()
        return loss + auxiliary, {**measured, "auxiliary": auxiliary.detach()}


class Marked(DQN):
    """DQN whose loss reads an extra column of the buffer."""

    extra_columns = ("mark",)

    def loss(self, minibatch: Any, optimizer: str = "policy") -> Any:
        loss, measured = super().loss(minibatch, optimizer)
        return loss, {**measured, "mark": minibatch["mark"].mean()}


def test_extra_columns_of_a_pipeline_reach_the_loss() -> None:
    policy = policy_of(MLPPolicy)
    algorithm = WithModel(policy, PPOConfig(minibatch_size=16))
    algorithm.pipeline.insert_after("AddColumns", AddNextObservations())
    assert update(algorithm)["auxiliary"] > 0


def test_extra_columns_of_a_buffer_reach_the_loss() -> None:
    buffer = EpisodeReplayBuffer(100, seed=0)
    for episode in episodes(TWO):
        outputs = {"mark": np.full(12, 7, np.float32)}
        arrays = episode.get_observations(), episode.get_actions(), episode.get_rewards()
        buffer.add([SingleAgentEpisode.from_arrays(*arrays, terminated=True, extra_model_outputs=outputs)])
    assert Marked(policy_of(QPolicy), DQNConfig(batch_size=16)).update_from(buffer, 2)["mark"] == 7


def test_missing_extra_column_is_named() -> None:
    with pytest.raises(UnknownKey, match=r"WithModel: .*new_obs"):
        update(WithModel(policy_of(MLPPolicy)))


@each_algorithm
def test_minibatch_rows_are_traced_to_their_steps(make: Callable[[], Algorithm]) -> None:
    from episodes.inspect import explain_batch

    algorithm = make()
    arguments = episodes(algorithm.policy.action_space)
    by_id = {episode.id_: episode for episode in arguments}
    minibatch = next(iter(algorithm.minibatches(algorithm.preprocess(arguments))))
    origin: Any = minibatch.origin  # type: ignore[attr-defined]
    places = [(0,), (5,)] if origin.numbers.ndim == 1 else [(0, 0), (1, 2)]
    for place in places:
        step = origin[place]
        expected = by_id[step.id_].get_observations(step.t)
        np.testing.assert_array_equal(minibatch["obs"].reshape(*origin.numbers.shape, 3)[place].numpy(), expected)
    if origin.numbers.ndim == 1:
        assert origin[0].id_ in str(explain_batch(minibatch, 0))


def test_learning_rates_change_with_schedules_kept() -> None:
    algorithm = MAKERS["BC"]()
    for _ in range(3):
        update(algorithm)
    algorithm.set_learning_rates({"policy": 5e-4})
    assert algorithm.optimizers["policy"].learning_rate == pytest.approx(5e-4 * 6 / 9)
    update(algorithm)
    assert algorithm.optimizers["policy"].learning_rate == pytest.approx(5e-4 * 5 / 9)
    rates = MAKERS["SAC"]().optimizers
    assert [rates[name].learning_rate for name in ("critic", "actor", "temperature")] == [1e-3, 1e-2, 1e-3]


def test_frozen_critic_layer_stays_frozen() -> None:
    policy = policy_of(SACPolicy, BOX)
    policy.critics[0][0].requires_grad_(False)
    before = deepcopy(policy.critics[0][0].weight)
    update(SAC(policy, SACConfig(batch_size=16)))
    assert torch.equal(policy.critics[0][0].weight, before)
    assert not policy.critics[0][0].weight.requires_grad
    assert policy.critics[0][2].weight.requires_grad
