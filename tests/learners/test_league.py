"""Leagues: snapshots, opponents, ratings, the payoff matrix, and their state."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from episode_learners import PPO, EncoderPolicy, League, MultiAgentAlgorithm, PPOConfig
from episode_learners.run import Run
from episode_learners.trainers import OnPolicyConfig, OnPolicyTrainer
from episode_runners import MultiAgentEnvRunner, evaluate
from episodes.errors import EpisodeError, InvalidArgument
from tests.learners.games import TicTacToe

GAMES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("abc"), st.sampled_from([0.0, 0.5, 1.0])).filter(
        lambda game: game[0] != game[1]
    ),
    max_size=30,
)


@given(GAMES)
def test_ratings_and_payoffs_equal_slow_formulas(games: list[tuple[str, str, float]]):
    league = League(["a"], ["b"], elo_step=16.0)
    ratings: dict[str, float] = {}
    for player, opponent, points in games:
        league.add_result(player, opponent, points)
        before = {name: ratings.get(name, 1000.0) for name in (player, opponent)}
        ratings |= {name: before[name] for name in before}
        for name, second_name, scored in ((player, opponent, points), (opponent, player, 1 - points)):
            ratings[name] += 16.0 * (scored - 1 / (1 + 10 ** ((before[second_name] - before[name]) / 400)))
    assert league.ratings == pytest.approx(ratings)
    names, matrix = league.payoff_matrix()
    for i, name in enumerate(names):
        for j, second_name in enumerate(names):
            scores = [p for a, b, p in games if (a, b) == (name, second_name)]
            scores += [1 - p for a, b, p in games if (b, a) == (name, second_name)]
            assert matrix[i, j] == pytest.approx(np.mean(scores)) if scores else np.isnan(matrix[i, j])


def ppo(seed: int = 0, **numbers: Any) -> PPO:
    game = TicTacToe()
    spaces = game.observation_spaces["x"], game.action_spaces["x"]
    policy = EncoderPolicy(*spaces, hidden_sizes=(64, 64), generator=torch.Generator().manual_seed(seed))
    return PPO(
        policy, PPOConfig(**{"num_epochs": 2, "minibatch_size": 64, "learning_rate": 3e-3, **numbers}), seed=seed
    )


def trainer(
    seed: int = 0, rule: Any = "prioritized", config: Any = None, numbers: Any = None, **options: Any
) -> OnPolicyTrainer:
    settings = numbers or {}
    league = League(["main"], ["one", "two"], rule=rule, every=2, seed=seed)
    algorithm = MultiAgentAlgorithm(
        {name: ppo(seed + i, **settings) for i, name in enumerate(("main", "one", "two"))}, train=["main"]
    )
    runner = MultiAgentEnvRunner(
        TicTacToe,
        algorithm.policies,
        num_envs=4,
        agent_to_module_mapping_fn=league.mapping_fn(TicTacToe.possible_agents),
        seed=seed,
    )
    lengths = {"steps_per_epoch": 120, "steps_per_collect": 60, "num_test_episodes": 2, "shows_progress": False}
    hooks = [league, *options.pop("hooks", ())]
    return OnPolicyTrainer(algorithm, runner, OnPolicyConfig(**{**lengths, **(config or {})}), hooks=hooks, **options)


@pytest.mark.parametrize("rule", ["latest", "uniform", "prioritized"])
def test_opponents_play_as_snapshots_and_results_are_counted(rule: str):
    run = trainer(rule=rule, config={"max_epochs": 4})
    league = run.hooks[0]
    run.run()
    assert list(league.snapshots) == ["main-1", "main-2", "main-3", "main-4"]
    for module_id, player in league.players.items():
        weights = run.algorithm[module_id].policy.state_dict()
        for name, value in league.snapshots[player].items():
            assert not isinstance(value, torch.Tensor) or torch.equal(value, weights[name])
    if rule == "latest":
        assert set(league.players.values()) == {"main-4"}
    names, matrix = league.payoff_matrix()
    assert set(names) <= {"main", *league.snapshots}
    games = sum(games for (player, _), (_, games) in league.results.items() if player == "main")
    assert games > 20
    scores = matrix + matrix.T
    assert np.allclose(scores[~np.isnan(scores)], 1.0)
    assert not torch.equal(run.algorithm.optimizers["main/policy"].vector, ppo(0).optimizers["policy"].vector)


def test_wrong_rules_and_trained_opponents_are_refused():
    with pytest.raises(InvalidArgument, match="rule is 'best'"):
        League(["main"], ["one"], rule="best")  # type: ignore[arg-type]
    run = trainer()
    run.algorithm.unfreeze("one")
    with pytest.raises(InvalidArgument, match=r"\['one'\] are trained"):
        run.step()


RUN = """
algo = "multi-agent"
env = "tests.learners.games:TicTacToe"
num_envs = 4
[league]
learners = ["main"]
opponents = ["one", "two"]
every = 5
[modules.main]
algo = "ppo"
policy = { network = "encoder", hidden_sizes = [64, 64] }
[modules.main.algorithm]
learning_rate = 2e-3
num_epochs = 4
minibatch_size = 128
entropy_coefficient = 0.01
[modules.one]
algo = "ppo"
policy = { network = "encoder", hidden_sizes = [64, 64] }
[modules.two]
algo = "ppo"
policy = { network = "encoder", hidden_sizes = [64, 64] }
[trainer]
max_epochs = 30
steps_per_epoch = 4_000
steps_per_collect = 2_000
num_test_episodes = 0
"""


def run_of(**changes: Any) -> Run:
    return Run.of_table(tomllib.loads(RUN) | changes)


def test_league_of_settings_is_part_of_the_run(tmp_path: Path):
    short = {"max_epochs": 2, "steps_per_epoch": 40, "steps_per_collect": 20, "num_test_episodes": 0}
    run = run_of(trainer={**short, "shows_progress": False, "checkpoint_every": 1})
    made = run.make(folder=tmp_path)
    assert made.algorithm.train_ids == ("main",)
    made.run()
    resumed = run.make(folder=tmp_path)
    assert resumed.resume()
    assert resumed.hooks[0].ratings == made.hooks[0].ratings
    assert list(resumed.hooks[0].snapshots) == ["main-1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"league": {"learners": ["main"]}}, "it needs learners and opponents"),
        (
            {"league": {"learners": ["main"], "opponents": ["one"], "size": 3}},
            r"\[league\] has learners, opponents, size",
        ),
        ({"league": {"learners": ["main"], "opponents": ["one"]}}, "differ in two"),
        ({"agents": {"*": "main"}}, "leave one out"),
    ],
)
def test_wrong_settings_of_a_league_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(EpisodeError, match=message):
        run_of(**changes).make()


class Uniform(EncoderPolicy):
    """Policy that chooses legal actions with equal probabilities, also if `explore` is False."""

    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        outputs = super().forward(batch, explore)
        logits = outputs["action_dist_inputs"]
        legal = torch.where(logits < -1e30, logits, torch.zeros_like(logits))
        noise = -torch.empty_like(legal).exponential_().log()  # Gumbel: the likeliest action is then a random one
        return {**outputs, "action_dist_inputs": legal + noise}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tic_tac_toe_is_learned_by_self_play(seed: int, tmp_path: Path):
    """Train until 0.85 points per game against a random player, over both sides."""
    from episode_learners.__main__ import main

    config, folder = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(RUN)
    assert main(["train", "--config", str(config), "--seed", str(seed), "--logdir", str(folder), "--quiet"]) == 0
    trained = run_of(seed=seed, trainer=tomllib.loads(RUN)["trainer"] | {"checkpoint_every": 1}).make(folder=folder)
    assert trained.resume()
    game = TicTacToe()
    uniform = Uniform(game.observation_spaces["x"], game.action_spaces["x"], hidden_sizes=(4,))
    points = []
    for side in ("x", "o"):
        evaluation = evaluate(
            TicTacToe,
            {"main": trained.runner.actors["main"], "random": uniform},
            agent_to_module_mapping_fn=lambda agent, episode, side=side: "main" if agent == side else "random",
            num_episodes=100,
            num_envs=20,
            seed=1,
        )
        points += [0.5 + 0.5 * np.sign(value) for value in evaluation.agent_returns[side]]
    print(f"tic-tac-toe, seed {seed}: {np.mean(points):.3f} points per game after {trained.num_steps} steps")
    assert np.mean(points) >= 0.85
