"""Invalid outputs of policies and rewriters: missing actions, observations outside the space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from connectors import env_to_module_pipeline, learner_pipeline, module_to_env_pipeline
from connectors.distributions import distribution_for
from connectors.env_to_module import ObservationPreprocessor
from episode_runners import SingleAgentEnvRunner
from episodes import EpisodePack
from episodes.errors import InvalidArgument, ShapeMismatch

INF, NAN = float("inf"), float("nan")
BOX = spaces.Box(-1.0, 1.0, (1,))
SPACES: dict[str, gym.Space] = {
    "a choice": spaces.Discrete(2),
    "two choices": spaces.MultiDiscrete([2, 3]),
    "bits": spaces.MultiBinary(2),
    "a number": BOX,
    "both": spaces.Dict({"choice": spaces.Discrete(2), "number": BOX}),
}
WRONG = [
    ("a choice", [INF, 0.0], "inf"),
    ("a choice", [INF, -INF], "inf"),
    ("a choice", [-INF, -INF], "-inf"),
    ("a choice", [NAN, -INF], "NaN"),
    ("two choices", [0.0, 0.0, -INF, -INF, -INF], "-inf"),
    ("two choices", [0.0, -INF, 0.0, INF, 0.0], "inf"),
    ("bits", [INF, 0.0], "inf"),
    ("a number", [-INF, 0.0], "-inf"),
    ("a number", [0.0, INF], "inf"),
    ("both", [-INF, -INF, 0.0, 0.0], "-inf"),
    ("both", [0.0, -INF, NAN, 0.0], "NaN"),
]
RIGHT = [
    ("a choice", [-INF, 0.0]),
    ("a choice", [1e30, -1e30]),
    ("two choices", [-INF, 0.0, -INF, -INF, 2.0]),
    ("a number", [1e30, -5.0]),
    ("both", [-INF, 0.0, 0.0, 0.0]),
]


class Saying:
    """Policy that outputs the given distribution inputs for the last environment, and zeros for the others."""

    def __init__(self, last: list[float]) -> None:
        self.last = torch.tensor(last)

    def __call__(self, batch: dict[str, Any], explore: bool = True) -> dict[str, Any]:
        rows = torch.zeros(len(batch["obs"]), len(self.last))
        rows[-1] = self.last
        return {"action_dist_inputs": rows}


class WithDistribution(Saying):
    def __init__(self, last: list[float], space: gym.Space) -> None:
        super().__init__(last)
        self.distribution = distribution_for(space)


def acted(policy: Saying, space: gym.Space, explore: bool, seed: int | None) -> Any:
    pipeline = module_to_env_pipeline(action_space=space, seed=seed, log_probs=False, normalize_actions=False)
    return pipeline.act(policy, policy({"obs": np.zeros(3)}, explore), [None] * 3, explore, {})


@pytest.mark.parametrize("has_own", [False, True])
@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize(("name", "last", "problem"), WRONG)
def test_row_without_possible_action_is_named_with_policy(name, last, problem, explore, has_own):
    policy = WithDistribution(last, SPACES[name]) if has_own else Saying(last)
    words = rf"policy {type(policy).__name__}'s output .* has {problem} in row 2, for environment 2 \(1 of 3"
    with pytest.raises(InvalidArgument, match=words):
        acted(policy, SPACES[name], explore, seed=0)


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize(("name", "last"), RIGHT)
def test_masked_choices_and_huge_numbers_are_drawn_from(name, last, explore):
    actions, _, _ = acted(Saying(last), SPACES[name], explore, seed=None)
    last_action = {key: rows[2] for key, rows in actions.items()} if isinstance(actions, dict) else actions[2]
    choice = last_action["choice"] if isinstance(last_action, dict) else last_action
    if name in ("a choice", "both"):
        assert choice == (1 if last[0] == -INF else 0)


def test_agent_without_possible_action_is_named():
    from episodes import SingleAgentEpisode

    episodes = [SingleAgentEpisode(agent_id=agent_id, module_id="m") for agent_id in "abc"]
    pipeline = module_to_env_pipeline(action_space=SPACES["a choice"])
    with pytest.raises(InvalidArgument, match="agent 'c'"):
        pipeline.act(None, Saying([-INF, -INF])({"obs": np.zeros(3)}), episodes, True, {})


def test_infinite_action_of_policy_is_rejected():
    pipeline = module_to_env_pipeline(action_space=BOX)
    with pytest.raises(InvalidArgument, match="policy's output 'actions' has inf in row 1"):
        pipeline.act(None, {"actions": np.array([[0.0], [INF]], np.float32)}, [None] * 2, True, {})


# --- rewriters ---------------------------------------------------------------------------------------------------


class Longer(ObservationPreprocessor):
    def preprocess(self, observation: Any, episode: Any) -> Any:
        return np.concatenate([observation, [1.0]]).astype(np.float32)


class Fewer(ObservationPreprocessor):
    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        return observations[:1]


class Named(ObservationPreprocessor):
    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        return {"camera": observations}


REWRITERS = [
    (Longer(), r"Longer.*have shape \[2, 5\].*Box.*\(4,\).*recompute_output_observation_space"),
    (Fewer(), r"Fewer.*have shape \[1, 4\].*2 rows"),
    (Named(), r"Named.*a dict with keys \['camera'\]"),
]


@pytest.mark.parametrize(("piece", "words"), REWRITERS, ids=lambda value: type(value).__name__)
def test_rewriter_with_rows_of_other_space_is_named_at_first_run(piece, words):
    pipeline = env_to_module_pipeline(pieces=[piece])
    runner = SingleAgentEnvRunner("CartPole-v1", num_envs=2, env_to_module=pipeline, seed=0)
    with runner, pytest.raises(ShapeMismatch, match=words):
        runner.sample(num_timesteps=4, random_actions=True)


@pytest.mark.parametrize(("piece", "words"), REWRITERS, ids=lambda value: type(value).__name__)
def test_rewriter_with_rows_of_other_space_is_named_in_learner(piece, words):
    space = spaces.Box(-9.0, 9.0, (4,))
    pack = EpisodePack(
        observations=np.zeros((2, 4), np.float32), actions=np.zeros(1, int), rewards=np.zeros(1), lengths=[1]
    )
    with pytest.raises(ShapeMismatch, match=words):
        learner_pipeline(space, spaces.Discrete(2), pieces=[piece])(episodes=pack)


def test_rows_are_checked_again_after_spaces_change():
    pipeline = env_to_module_pipeline(spaces.Box(-9.0, 9.0, (5,)), spaces.Discrete(2), pieces=[Fewer()])
    pipeline.rewrite(np.zeros((1, 5), np.float32))
    pipeline.set_input_spaces(spaces.Box(-9.0, 9.0, (4,)), spaces.Discrete(2))
    with pytest.raises(ShapeMismatch, match="Fewer"):
        pipeline.rewrite(np.zeros((1, 5), np.float32))
