"""Measurements of rows: each algorithm measures every row that it learned from, and learns the same as without."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import episode_runners as runners
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
    GRPOConfig,
    IMPALAConfig,
    LSTMPolicy,
    LSTMQPolicy,
    MLPPolicy,
    PPOConfig,
    QPolicy,
    R2D2Config,
    SACConfig,
    SACPolicy,
)
from episode_learners.algorithms.algorithm import Algorithm
from episodes import SingleAgentEpisode
from episodes.errors import InvalidArgument, ShapeMismatch, StepOutOfRange, UnknownKey
from episodes.inspect import explain_update
from episodes.replay import EpisodeReplayBuffer
from episodes.storage.ledger import Ledger, LedgerReader

CART, PENDULUM = "CartPole-v1", "Pendulum-v1"
SMALL: dict[str, Any] = {"hidden_sizes": (8,)}


def policy_of(kind: Callable[..., Any], env_id: str, **options: Any) -> Any:
    env = gym.make(env_id)
    return kind(env.observation_space, env.action_space, generator=torch.Generator().manual_seed(0), **options)


EPOCHS: dict[str, Any] = {"num_epochs": 2, "minibatch_size": 32}
ON_POLICY: dict[str, Callable[[], Algorithm]] = {
    "ppo": lambda: PPO(policy_of(MLPPolicy, CART, **SMALL), PPOConfig(**EPOCHS)),
    "ppo with all clips": lambda: PPO(
        policy_of(MLPPolicy, CART, **SMALL), PPOConfig(**EPOCHS, clip=0.01, dual_clip=2.0, value_clip=0.1)
    ),
    "ppo of boxes": lambda: PPO(policy_of(MLPPolicy, PENDULUM, **SMALL), PPOConfig(**EPOCHS)),
    "recurrent ppo": lambda: PPO(policy_of(LSTMPolicy, CART), PPOConfig(**EPOCHS, max_seq_len=7)),
    "grpo": lambda: GRPO(policy_of(MLPPolicy, CART, **SMALL), GRPOConfig(**EPOCHS, group_size=2)),
    "grpo of episodes": lambda: GRPO(policy_of(MLPPolicy, CART, **SMALL), GRPOConfig(**EPOCHS, mean="episode")),
    "impala": lambda: IMPALA(policy_of(MLPPolicy, CART, **SMALL), IMPALAConfig()),
    "bc": lambda: BC(policy_of(MLPPolicy, CART, **SMALL), BCConfig()),
    "recurrent bc": lambda: BC(policy_of(LSTMPolicy, CART), BCConfig()),
}
OFF_POLICY: dict[str, Callable[[], Algorithm]] = {
    "dqn": lambda: DQN(policy_of(QPolicy, CART), DQNConfig(batch_size=32)),
    "dqn of n steps": lambda: DQN(policy_of(QPolicy, CART), DQNConfig(batch_size=32, n_step=3)),
    "cql": lambda: CQL(policy_of(QPolicy, CART), CQLConfig(batch_size=32)),
    "sac": lambda: SAC(policy_of(SACPolicy, PENDULUM), SACConfig(batch_size=32)),
    "continuous cql": lambda: ContinuousCQL(policy_of(SACPolicy, PENDULUM), ContinuousCQLConfig(batch_size=32)),
    "r2d2": lambda: R2D2(policy_of(LSTMQPolicy, CART), R2D2Config(batch_size=8, sequence_length=6, burn_in=2)),
}
MEASURED = {
    "ppo": {
        "loss",
        "advantage",
        "ratio",
        "first_ratio",
        "first_gradient_step",
        "clipped",
        "first_value",
        "value_target",
    },
    "grpo": {"loss", "advantage", "ratio", "first_ratio", "first_gradient_step", "clipped"},
    "impala": {
        "loss",
        "advantage",
        "ratio",
        "first_ratio",
        "first_gradient_step",
        "clipped",
        "first_value",
        "value_target",
    },
    "bc": {"loss", "log_prob"},
    "dqn": {"loss", "first_value", "value_target"},
}


def pack_of(algorithm: Algorithm, num_timesteps: int = 120, seed: int = 0) -> Any:
    env_id = CART if isinstance(algorithm.policy.action_space, gym.spaces.Discrete) else PENDULUM
    runner = runners.SingleAgentEnvRunner(gym.make_vec(env_id, 2), algorithm.actor or algorithm.policy, seed=seed)
    amount = {"num_episodes": 8} if isinstance(algorithm, GRPO) else {"num_timesteps": num_timesteps}
    return runner.sample(**amount)


def updated(name: str, measures: bool, witness: Callable[[Any], object] | None = None) -> Algorithm:
    """Return the algorithm after an update from its own episodes or samples."""
    algorithm = (ON_POLICY | OFF_POLICY)[name]()
    algorithm.measures_rows, algorithm.witness = measures, witness
    torch.manual_seed(0)
    if name in ON_POLICY:
        algorithm.update(pack_of(algorithm))
        return algorithm
    buffer = EpisodeReplayBuffer(1000, seed=0)
    env_id = PENDULUM if name in ("sac", "continuous cql") else CART
    runner = runners.SingleAgentEnvRunner(gym.make_vec(env_id, 2), algorithm.policy, seed=0)
    outputs = algorithm.stored_outputs
    runner.sample_into(buffer, num_timesteps=200, **({"extra_model_outputs": outputs} if outputs else {}))
    algorithm.update_from(buffer, num_steps=3)  # type: ignore[operator]
    return algorithm


@pytest.mark.parametrize("name", [*ON_POLICY, *OFF_POLICY])
def test_algorithm_measures_each_learned_step(name: str) -> None:
    batches: list[Any] = []
    algorithm, plain = updated(name, True, batches.append), updated(name, False)
    for key, weights in plain.policy.state_dict().items():
        torch.testing.assert_close(algorithm.policy.state_dict()[key], weights, rtol=0, atol=0)
    assert plain.row_measurements == {}
    (batch,) = batches
    measured = algorithm.row_measurements
    expected = next((MEASURED[kind] for kind in MEASURED if kind in name.split()), MEASURED["dqn"])
    assert set(measured) - {"n_step"} == expected
    mask = batch.get("loss_mask")
    learned = np.ones(len(batch["actions"]), bool) if mask is None else mask.numpy().astype(bool)
    for column in measured.values():
        assert column.dtype == np.float32
        assert (np.isfinite(column) == learned).all()
    assert (measured["loss"][learned] >= 0).all()
    for key, column in {"advantage": "advantages", "value_target": "value_targets"}.items():
        if column in batch:
            np.testing.assert_allclose(measured[key][learned], batch[column].numpy()[learned], rtol=1e-6)


def test_losses_of_rows_sum_to_the_loss() -> None:
    for config in (
        PPOConfig(num_epochs=1, minibatch_size=1000),
        PPOConfig(num_epochs=1, minibatch_size=1000, clip=0.5),
    ):
        algorithm = PPO(policy_of(MLPPolicy, CART, **SMALL), config)
        algorithm.measures_rows = True
        metrics = algorithm.update(pack_of(algorithm))
        rows = algorithm.row_measurements
        np.testing.assert_allclose(rows["first_ratio"], 1, atol=1e-5)
        errors = (rows["first_value"] - rows["value_target"]) ** 2
        np.testing.assert_allclose(errors.mean(), metrics["value_loss"], rtol=1e-5)
        reference = np.abs(rows["advantage"] * rows["ratio"]) + config.value_coefficient * errors
        np.testing.assert_allclose(rows["loss"], reference, rtol=1e-4)


def test_failed_update_stores_no_measurements() -> None:
    algorithm = PPO(policy_of(MLPPolicy, CART, **SMALL), PPOConfig(**EPOCHS))
    algorithm.measures_rows = True
    pack = pack_of(algorithm)
    algorithm.update(pack)
    before = {name: column.copy() for name, column in algorithm.row_measurements.items()}
    bad = pack.replace(rewards=np.full(len(pack.rewards), np.nan, np.float32))
    with pytest.raises(InvalidArgument):
        algorithm.update(bad)
    assert all((algorithm.row_measurements[name] == column).all() for name, column in before.items())
    algorithm.update(pack)  # measures again


def explained(name: str, folder: Path, **options: Any) -> Any:
    """Return the explanation of one update that an algorithm learned from its own episodes, and these."""
    algorithm = ON_POLICY[name]()
    algorithm.measures_rows = True
    pack = pack_of(algorithm)
    with Ledger(folder) as ledger:
        algorithm.witness = lambda batch: ledger.note(1, batch, measured=algorithm.row_measurements)
        algorithm.update(pack)
    return explain_update(folder, 1, episodes=pack, **options), pack


@pytest.mark.parametrize("name", list(ON_POLICY))
def test_explanation_has_each_step_of_the_episodes_once(name: str, tmp_path: Path) -> None:
    explanation, pack = explained(name, tmp_path)
    steps = {(episode.id_, episode.t_started + t) for episode in pack for t in range(len(episode))}
    assert {(step.id_, step.t) for step in explanation} == steps
    assert len(explanation) == len(steps)
    shares = explanation.columns["share"]
    assert (np.diff(shares) <= 0).all()
    assert shares.sum() == pytest.approx(1)
    assert set(explanation.columns["times_learned"].tolist()) == {1}
    for row in (0, len(explanation) // 2, -1):
        step = explanation[row]
        episode = next(e for e in pack if e.id_ == step.id_ and e.t_started <= step.t < e.t_started + len(e))
        np.testing.assert_array_equal(step.observation, episode.get_observations(step.t - episode.t_started))
        assert step.rewards.tolist() == [episode.get_rewards(step.t - episode.t_started)]
        assert step.realised_return(1.0) == pytest.approx(sum(episode.get_rewards()[step.t - episode.t_started :]))
    by_episode = explanation.by("episode")
    assert sum(row["steps"] for row in by_episode) == len(steps)
    assert sum(row["share"] for row in by_episode) == pytest.approx(1)


def test_recurrent_rows_are_steps_of_their_time(tmp_path: Path) -> None:
    """The value target of each step is the one that GAE computes for its episode and time."""
    explanation, pack = explained("recurrent ppo", tmp_path)
    rewards_to_go = {(step.id_, step.t): step.measurements["value_target"] for step in explanation}
    plain = PPO(policy_of(LSTMPolicy, CART), PPOConfig(**EPOCHS, max_seq_len=1000))
    batch = plain.preprocess(pack)
    numbers, origin = batch.origin.numbers, batch.origin
    for row, column in zip(*np.nonzero(numbers >= 0), strict=True):
        step = origin[row, column]
        assert rewards_to_go[step.id_, step.t] == pytest.approx(float(batch["value_targets"][row, column]), abs=1e-4)


def test_n_step_samples_have_their_windows(tmp_path: Path) -> None:
    path = SingleAgentEpisode.from_arrays(
        np.arange(36, dtype=np.float32).reshape(9, 4), np.zeros(8, int), np.arange(8.0), id_="path", terminated=True
    )
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add(path)
    algorithm = DQN(policy_of(QPolicy, CART), DQNConfig(batch_size=32, n_step=3))
    algorithm.measures_rows = True
    with Ledger(tmp_path) as ledger:
        algorithm.witness = lambda batch: ledger.note(algorithm.num_updates, batch, measured=algorithm.row_measurements)
        for _ in range(2):
            algorithm.update_from(buffer)
    explanation = explain_update(tmp_path, 2, episodes=[path])
    assert [step.stop for step in explanation] == [min(step.t + 3, 8) for step in explanation]
    assert all(step.rewards.tolist() == list(range(step.t, step.stop)) for step in explanation)
    counts = sum(np.bincount(update.t, minlength=8) for update in LedgerReader(tmp_path))
    assert [step.times_learned for step in explanation] == [counts[step.t] for step in explanation]


def test_bad_requests_are_refused_by_name(tmp_path: Path) -> None:
    with Ledger(tmp_path / "measured") as ledger:
        for bad in (np.ones(3), np.ones((4, 2, 2)), np.float32(1)):
            with pytest.raises(ShapeMismatch, match="measured"):
                ledger.note(1, {"obs": np.zeros(4)}, measured={"loss": bad})
        with pytest.raises(ShapeMismatch, match="equal shapes"):
            ledger.note(1, {"obs": np.zeros(4)}, measured={"loss": np.ones((4, 2)), "ratio": np.ones((4, 3))})
        for module in ("a", "b"):
            ledger.note(1, {"obs": np.zeros(4)}, measured={"loss": np.arange(4)}, module=module)
        ledger.note(2, {"obs": np.zeros(4)}, module="a")
    with pytest.raises(InvalidArgument, match="'a', 'b' learned"):
        explain_update(tmp_path / "measured", 1)
    with pytest.raises(InvalidArgument, match="not measured; train with"):
        explain_update(tmp_path / "measured", 2)
    with pytest.raises(InvalidArgument, match="no update of it"):
        explain_update(tmp_path / "measured", 1, module="c")
    with pytest.raises(StepOutOfRange, match="updates 1 to 2"):
        explain_update(tmp_path / "measured", 3)
    explanation = explain_update(tmp_path / "measured", -1, module="b")
    assert explanation[0].share == 0.5
    with pytest.raises(InvalidArgument, match="episodes="):
        _ = explanation[0].observation
    with pytest.raises(StepOutOfRange):
        _ = explanation[4]
    with pytest.raises(UnknownKey):
        explanation.by("colour")


def test_command_explains_a_run(tmp_path: Path) -> None:
    testing = pytest.importorskip("typer.testing")
    from episodes.command.app import app

    run = testing.CliRunner().invoke
    config = tmp_path / "short.toml"
    config.write_text(
        'algo = "ppo"\nenv = "CartPole-v1"\nnum_envs = 2\n[algorithm]\nnum_epochs = 1\n'
        "[trainer]\nsteps_per_collect = 64\nsteps_per_epoch = 128\nmax_epochs = 1\nnum_test_episodes = 1\n"
    )
    folder = tmp_path / "run"
    trained = run(app, ["train", "--config", str(config), "--explain", "--quiet", "--logdir", str(folder)])
    assert trained.exit_code == 0, trained.output
    explanation = explain_update(folder, 2)
    result = run(app, ["explain", str(folder), "2", "--json", "--limit", "3"])
    rows = json.loads(result.output)
    assert [row["t"] for row in rows] == [step.t for step in explanation[:3]]
    assert [row["share"] for row in rows] == [step.share for step in explanation[:3]]
    for arguments in ([], ["--by", "episode"], ["--by", "agent"], ["--limit", "0"]):
        result = run(app, ["explain", str(folder), *arguments])
        assert result.exit_code == 0, result.output
    page = tmp_path / "update.html"
    assert run(app, ["explain", str(folder), "--html", str(page), "--page", "http://x/"]).exit_code == 0
    drawn = page.read_text()
    assert drawn.split('<section id="steps">')[1].count("http://x/#id=") == len(explanation)
    assert [step.id_ in drawn for step in explanation] == [True] * len(explanation)
    refused = run(app, ["explain", str(folder), "3"])
    assert refused.exit_code != 0


def test_agents_of_a_game_are_told_apart(tmp_path: Path) -> None:
    """Rows of several agents at the same time of one game are different steps, with their own observations."""
    episodes = [
        SingleAgentEpisode.from_arrays(
            np.full((4, 4), number, np.float32),
            np.zeros(3, int),
            np.ones(3),
            extra_model_outputs={"action_logp": np.full(3, -0.7, np.float32)},
            id_="game",
            agent_id=agent,
            terminated=True,
        )
        for number, agent in enumerate(("a", "b"))
    ]
    algorithm = PPO(policy_of(MLPPolicy, CART, **SMALL), PPOConfig(**EPOCHS))
    algorithm.measures_rows = True
    with Ledger(tmp_path) as ledger:
        algorithm.witness = lambda batch: ledger.note(algorithm.num_updates, batch, measured=algorithm.row_measurements)
        for _ in range(2):
            algorithm.update(episodes)
    explanation = explain_update(tmp_path, 2, episodes=episodes)
    assert len(explanation) == 6
    for step in explanation:
        assert step.times_learned == 2
        assert step.observation.tolist() == [float("ab".index(step.agent_id))] * 4
    assert {row["agent"]: row["steps"] for row in explanation.by("agent")} == {"a": 3, "b": 3}
