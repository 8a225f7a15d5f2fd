"""A policy that was trained in some pipelines is rejected in others, with the names of the differences."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from functools import partial
from types import FunctionType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from mpe2 import simple_spread_v3

from connectors import Actor, env_to_module_pipeline, module_to_env_pipeline, multi_agent_env_to_module
from connectors.env_to_module import FrameStacking, MeanStdFilter, ObservationPreprocessor
from connectors.fingerprint import check_fingerprint, settings_of
from episode_learners import MLPPolicy
from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner, evaluate
from episodes.errors import InvalidArgument, StateMismatch

CARTPOLE = gym.make("CartPole-v1")
SPACES: Any = (CARTPOLE.observation_space, CARTPOLE.action_space)


def pipeline(*pieces: Any) -> Any:
    return env_to_module_pipeline(*SPACES, pieces=pieces)


def trained_in(*pieces: Any, sampled: bool = True, **options: Any) -> MLPPolicy:
    """Return a policy with which a runner has sampled."""
    made = pipeline(*pieces)
    policy = MLPPolicy(made.observation_space, SPACES[1])
    runner = SingleAgentEnvRunner("CartPole-v1", policy, env_to_module=made, **options)
    if sampled:
        runner.sample(num_timesteps=4)
    return policy


class Scale(ObservationPreprocessor):
    def __init__(self, by: float = 2.0) -> None:
        super().__init__()
        self.by, self.num_seen = by, 0

    def preprocess(self, observation: Any, episode: Any) -> Any:
        self.num_seen += 1
        return (observation * self.by).astype(np.float32)


@pytest.mark.parametrize(
    ("then", "now", "message"),
    [
        ([MeanStdFilter()], [], r"env_to_module had MeanStdFilter\(.*\), which is missing here"),
        ([], [MeanStdFilter()], r"env_to_module has MeanStdFilter\(.*clip_by_value=10.0.*\), which was not there"),
        ([Scale(2.0)], [Scale(3.0)], r"env_to_module had Scale\(by=2.0\), here Scale\(by=3.0\)"),
        ([Scale(), MeanStdFilter()], [MeanStdFilter(), Scale()], ".*order Scale > MeanStdFilter > .*, here MeanStd"),
    ],
    ids=["missing", "new", "other settings", "another order"],
)
def test_policy_in_other_pipelines_is_rejected(then: Any, now: Any, message: str) -> None:
    policy = trained_in(*then)
    with pytest.raises(
        StateMismatch, match=f"MLPPolicy was trained in other pipelines: {message}.*check_pipeline=False"
    ):
        SingleAgentEnvRunner("CartPole-v1", policy, env_to_module=pipeline(*now))
    with pytest.raises(StateMismatch, match="was trained in other pipelines"):
        evaluate("CartPole-v1", Actor(policy, env_to_module=pipeline(*now)))


def test_check_pipeline_false_stamps_new_pipelines() -> None:
    policy = trained_in(Scale())
    runner = SingleAgentEnvRunner("CartPole-v1", policy, check_pipeline=False)
    evaluate("CartPole-v1", policy, num_episodes=1, check_pipeline=False)
    with pytest.raises(StateMismatch):
        SingleAgentEnvRunner("CartPole-v1", policy)
    runner.sample(num_timesteps=2)
    SingleAgentEnvRunner("CartPole-v1", policy)
    policy.pipeline_fingerprint = None  # and this is how it forgets
    SingleAgentEnvRunner("CartPole-v1", policy, env_to_module=pipeline(Scale()))


def test_irrelevant_settings_may_differ() -> None:
    policy = trained_in(MeanStdFilter(), Scale(), seed=3)
    like = pipeline(MeanStdFilter(update_stats=False), Scale())
    actions = module_to_env_pipeline(*SPACES, seed=7, log_probs=True)
    SingleAgentEnvRunner("CartPole-v1", policy, num_envs=3, env_to_module=like, module_to_env=actions, seed=8)


def test_policy_without_training_has_no_fingerprint() -> None:
    for use in ({"random_actions": True}, {"explore": False}):
        policy = trained_in(Scale(), sampled=False)
        SingleAgentEnvRunner("CartPole-v1", policy, env_to_module=pipeline(Scale())).sample(num_timesteps=2, **use)
        evaluate("CartPole-v1", Actor(policy, env_to_module=pipeline(Scale())), num_episodes=1, explore=True)
        assert policy.pipeline_fingerprint is None


def test_other_action_units_are_rejected() -> None:
    made = gym.make("Pendulum-v1")
    policy = MLPPolicy(made.observation_space, made.action_space)
    SingleAgentEnvRunner("Pendulum-v1", policy).sample(num_timesteps=2)
    clipped = module_to_env_pipeline(made.observation_space, made.action_space, normalize_actions=False)
    with pytest.raises(StateMismatch, match=r"module_to_env had NormalizeAndClipActions.normalize_actions=True"):
        SingleAgentEnvRunner("Pendulum-v1", policy, module_to_env=clipped)


def test_fingerprint_survives_state_dict_copy_and_pickle(tmp_path: Any) -> None:
    policy = trained_in(Scale(), FrameStacking(num_frames=2))
    torch.save(policy.state_dict(), tmp_path / "policy.pt")
    loaded = trained_in(Scale(), FrameStacking(num_frames=2), sampled=False)
    keys = loaded.state_dict().keys()
    loaded.load_state_dict(torch.load(tmp_path / "policy.pt", weights_only=True))
    for copied in (loaded, copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert copied.pipeline_fingerprint == policy.pipeline_fingerprint is not None
        assert copied.state_dict().keys() == keys == policy.state_dict().keys()
        with pytest.raises(StateMismatch, match=r"Scale\(by=2.0\), which is missing here"):
            SingleAgentEnvRunner("CartPole-v1", copied, env_to_module=pipeline(FrameStacking(num_frames=2)))
    old = {name: weights.clone() for name, weights in policy.state_dict().items()}  # as others save them
    loaded_policy = trained_in(FrameStacking(num_frames=2), sampled=False)
    loaded_policy.load_state_dict(old)
    assert loaded_policy.pipeline_fingerprint is None


def test_fingerprints_are_checked_per_module() -> None:
    make = partial(simple_spread_v3.parallel_env, N=2, max_cycles=3)
    env = make()
    arguments = env.observation_space("agent_0"), env.action_space("agent_0")
    policies = {"agent_0": MLPPolicy(*arguments), "agent_1": MLPPolicy(*arguments)}
    mapping = lambda agent_id, episode: agent_id  # noqa: E731
    runner = MultiAgentEnvRunner(make, policies, agent_to_module_mapping_fn=mapping)
    runner.sample(num_timesteps=2)
    runner.sample(num_timesteps=2)
    evaluate(runner, num_episodes=1)
    kinds = ({"agent_1": arguments[0]}, {"agent_1": arguments[1]})
    filtered = multi_agent_env_to_module(*kinds, pieces=lambda: [MeanStdFilter()])
    other_runner = MultiAgentEnvRunner(make, policies, agent_to_module_mapping_fn=mapping, env_to_module=filtered)
    with pytest.raises(StateMismatch, match="has MeanStdFilter"):
        other_runner.sample(num_timesteps=1)


@pytest.mark.parametrize("arguments", ["a ready pipeline", "the default one"])
def test_policy_of_other_input_space_is_rejected_by_runner(arguments: str) -> None:
    policy = MLPPolicy(spaces.Box(-1, 1, (7,), np.float32), SPACES[1])
    made = pipeline(MeanStdFilter()) if arguments == "a ready pipeline" else None
    with pytest.raises(InvalidArgument, match=r"MLPPolicy.forward does not fit what the module sees"):
        SingleAgentEnvRunner("CartPole-v1", policy, env_to_module=made)


def test_settings_are_plain_constructor_values() -> None:
    class Made:
        def __init__(self, number: Any, function: Any, array: Any, forgotten: int, seed: int) -> None:
            self.number, self.function, self.array, self.seed, self.count = number, function, array, seed, 0

    made = Made(np.float32(0.5), np.tanh, np.arange(3), 1, 2)
    assert settings_of(made) == {"number": 0.5, "function": "tanh", "array": [0, 1, 2]}
    assert settings_of(partial(max, 3, key=len)) == {"function": "max", "arguments": [3, {"key": "len"}]}
    assert settings_of(Made({"a": (1, None)}, Made, np.zeros((9, 9)), 1, 2)) == {
        "number": {"a": [1, None]},
        "function": Made.__qualname__,
        "array": "array (9, 9) float64",
    }


def scaled(by: float) -> Any:
    return lambda x: x * by


def named(by: float) -> Any:
    def scale(x: Any, factor: float = by) -> Any:
        return x * factor

    return scale


LAMBDAS: dict[str, tuple[Any, Any]] = {
    "constants": (lambda x: x * 2.0, lambda x: x * 3.0),
    "operators": (lambda x: x + 1, lambda x: x - 1),
    "comparisons": (lambda x: x < 1, lambda x: x > 1),
    "names": (lambda x: np.sin(x), lambda x: np.cos(x)),
    "arguments": (lambda x, y: x - y, lambda x, y: y - x),
    "closures": (scaled(2.0), scaled(3.0)),
    "defaults": (named(2.0), named(3.0)),
    "arrays": (scaled(np.ones(2)), scaled(np.zeros(2))),  # type: ignore[arg-type]
    "tuples": (scaled((1, 2.0)), scaled((1, 3.0))),  # type: ignore[arg-type]
    "and, or": (lambda x, y: x and y, lambda x, y: x or y),
    "if": (lambda x: 1 if x else 2, lambda x: 1 if not x else 2),
    "if None": (lambda x: 1 if x is None else 2, lambda x: 1 if x is not None else 2),
    "partials": (partial(max, 2), partial(max, 3)),
    "inside": (lambda x: [y + 1 for y in x], lambda x: [y + 2 for y in x]),
}


class Mapped(ObservationPreprocessor):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def preprocess(self, observation: Any, episode: Any) -> Any:
        return observation


@pytest.mark.parametrize(("left", "right"), LAMBDAS.values(), ids=LAMBDAS)
def test_lambdas_are_compared_by_their_code(left: Any, right: Any) -> None:
    messages = settings_of(Mapped(left))["function"]
    assert messages != settings_of(Mapped(right))["function"]
    if isinstance(left, partial):
        return
    copied = FunctionType(left.__code__, left.__globals__, "x", left.__defaults__, left.__closure__)
    copied.__qualname__ = left.__qualname__
    assert settings_of(Mapped(copied))["function"] == messages
    assert " at 0x" not in messages


def test_functions_are_compared_by_name_and_closure() -> None:
    assert settings_of(Mapped(trained_in))["function"] == "trained_in"
    itself: dict[str, Any] = {}
    itself["f"] = scaled(itself)  # type: ignore[arg-type]
    assert settings_of(Mapped(itself["f"]))["function"].endswith("with ['dict']")


def one_of(*words: str) -> Any:
    return {"function": lambda x: scaled(2.0)(x) in {"left", "right", ("up", 1), "down"}, "words": set(words)}


def test_lambda_settings_are_equal_in_another_process() -> None:
    words = ("a", "b", "c", "d")
    messages = [settings_of(Mapped(function))["function"] for function in (scaled(2.0), one_of(*words))]
    program = (
        "from tests.runners.test_fingerprints import Mapped, one_of, scaled, settings_of\n"
        f"print([settings_of(Mapped(function))['function'] for function in (scaled(2.0), one_of(*{words}))])"
    )
    command, env = [sys.executable, "-c", program], os.environ | {"PYTHONHASHSEED": "1"}  # sets have another order
    present = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=env)
    assert present.stdout.strip() == str(messages)


def test_nan_settings_are_equal_in_another_process() -> None:
    for setting in (float("nan"), np.float32("nan"), np.array([1.0, np.nan]), {"fill": [float("nan")]}):
        policy = trained_in(Scale(setting), sampled=False)
        fingerprint = {"pieces": [["Scale", settings_of(Scale(setting))]]}
        check_fingerprint(policy, fingerprint, pickle.loads(pickle.dumps(fingerprint)))
