"""`Run`: an algorithm, an environment and all numbers, out of one table: a file, a preset or the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from connectors import Connector, env_to_module_pipeline
from connectors.env_to_module import FlattenObservations
from episodes.errors import InvalidArgument, UnknownKey
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from learners.algorithms import (
    DQN,
    IMPALA,
    PPO,
    R2D2,
    SAC,
    Algorithm,
    DQNConfig,
    IMPALAConfig,
    PPOConfig,
    R2D2Config,
    SACConfig,
    linear_decay,
)
from learners.policies import LSTMPolicy, LSTMQPolicy, MLPPolicy, Policy, QPolicy, SACPolicy
from learners.trainers import OffPolicyConfig, OffPolicyTrainer, OnPolicyConfig, OnPolicyTrainer, Trainer
from runners import SingleAgentEnvRunner, make_vector_env

__all__ = ["ALGORITHMS", "Run", "presets"]

SETTINGS = Path(__file__).parent / "settings"


@dataclass(frozen=True, slots=True)
class _Kind:
    """What an algorithm's name stands for."""

    policy: Callable[..., Policy]
    algorithm: Callable[..., Algorithm]
    config: Callable[..., Any]
    trainer: type[OnPolicyConfig] | type[OffPolicyConfig]


ALGORITHMS: dict[str, _Kind] = {
    "ppo": _Kind(MLPPolicy, PPO, PPOConfig, OnPolicyConfig),
    "recurrent-ppo": _Kind(LSTMPolicy, PPO, PPOConfig, OnPolicyConfig),
    "impala": _Kind(MLPPolicy, IMPALA, IMPALAConfig, OnPolicyConfig),
    "dqn": _Kind(QPolicy, DQN, DQNConfig, OffPolicyConfig),
    "r2d2": _Kind(LSTMQPolicy, R2D2, R2D2Config, OffPolicyConfig),
    "sac": _Kind(SACPolicy, SAC, SACConfig, OffPolicyConfig),
}


@dataclass(kw_only=True)
class Run:
    """Everything that a run is made of; `make()` gives its trainer.

    Attributes:
        policy, algorithm, trainer, buffer: the arguments of what they name, by name.
        decay_over: updates in which the learning rate comes down to 0; None: it stays.
    """

    algo: str
    env: str
    seed: int = 0
    num_envs: int = 8
    device: str = "cpu"
    decay_over: int | None = None
    policy: dict[str, Any] = field(default_factory=dict)
    algorithm: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    buffer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.algo not in ALGORITHMS:
            raise UnknownKey(f"no algorithm {self.algo!r}; there are {', '.join(ALGORITHMS)}")

    @classmethod
    def of_table(cls, table: Mapping[str, Any], where: str = "the settings") -> Run:
        """A run of nested settings, as a file has them.

        Raises:
            UnknownKey: a setting that there is not.
            InvalidArgument: the algorithm or the environment is missing.
        """
        names = [one.name for one in fields(cls)]
        unknown = set(table) - set(names)
        if unknown:
            raise UnknownKey(f"{where} has {', '.join(sorted(unknown))}; there are {', '.join(names)}")
        missing = {"algo", "env"} - set(table)
        if missing:
            raise InvalidArgument(f"{where} lacks {', '.join(sorted(missing))}")
        return cls(**table)

    @classmethod
    def of_file(cls, path: str | Path) -> Run:
        """A run of a TOML file."""
        return cls.of_table(tomllib.loads(Path(path).read_text()), str(path))

    @classmethod
    def of_preset(cls, algo: str, env: str) -> Run:
        """The run whose numbers are known to work, where there is one; else one of default numbers."""
        path = presets().get((algo, env))
        return cls(algo=algo, env=env) if path is None else cls.of_file(path)

    def make(self, **of_trainer: Any) -> Trainer[Any]:
        """The trainer, ready to run.

        Args:
            of_trainer: arguments of `Trainer` such as `logger`, `folder`, `stop_fn`.
        """
        kind = ALGORITHMS[self.algo]
        env = make_vector_env(self.env, self.num_envs)
        spaces = (env.single_observation_space, env.single_action_space)
        pipeline = env_to_module_pipeline(*spaces, pieces=flattening(spaces[0]), device=self.device)
        generator = torch.Generator().manual_seed(self.seed)
        policy = kind.policy(pipeline.observation_space, spaces[1], generator=generator, **self._policy_arguments())
        policy = policy.to(self.device)
        pipeline = env_to_module_pipeline(*spaces, pieces=flattening(spaces[0]), policy=policy, device=self.device)
        scheduler = None if self.decay_over is None else linear_decay(self.decay_over)
        algorithm = kind.algorithm(policy, kind.config(**self.algorithm), scheduler=scheduler, seed=self.seed)
        runner = SingleAgentEnvRunner(env, policy, env_to_module=pipeline, seed=self.seed)
        config = kind.trainer(**self.trainer)
        if isinstance(config, OnPolicyConfig):
            return OnPolicyTrainer(algorithm, runner, config, **of_trainer)
        return OffPolicyTrainer(algorithm, runner, self._buffer(), config, **of_trainer)  # type: ignore[arg-type]

    def _policy_arguments(self) -> dict[str, Any]:
        given = dict(self.policy)
        if "activation" in given:
            given["activation"] = getattr(torch.nn, given["activation"])
        return given

    def _buffer(self) -> EpisodeReplayBuffer:
        numbers = {"capacity": 50_000, **self.buffer}
        kind = PrioritizedEpisodeReplayBuffer if numbers.pop("prioritized", False) else EpisodeReplayBuffer
        return kind(numbers.pop("capacity"), seed=self.seed, **numbers)


def presets() -> dict[tuple[str, str], Path]:
    """The files of settings that are known to work, by algorithm and environment."""
    found = {}
    for path in sorted(SETTINGS.glob("*.toml")):
        table = tomllib.loads(path.read_text())
        found[table["algo"], table["env"]] = path
    return found


def flattening(space: gym.Space | None) -> list[Connector]:
    """What makes observations ready for a perceptron: nothing where they are arrays of floats already."""
    is_ready = isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating) and len(space.shape) == 1
    return [] if is_ready else [FlattenObservations()]
