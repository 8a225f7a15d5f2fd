"""Checks that this library supports the algorithm, settings and Ray version of an RLlib config."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import ray
from ray.rllib.algorithms.appo import APPO
from ray.rllib.algorithms.dqn import DQN
from ray.rllib.algorithms.impala import IMPALA
from ray.rllib.algorithms.ppo import PPO
from ray.rllib.algorithms.sac import SAC

from episodes.errors import InvalidArgument

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

__all__ = ["TESTED_VERSIONS", "check_support"]

TESTED_VERSIONS = ("2.60",)
ALGORITHMS = (PPO, APPO, IMPALA, DQN, SAC)


def check_support(config: AlgorithmConfig) -> None:
    """Raise `InvalidArgument` if an RLlib config has an unsupported setting. Warn if Ray's version was not tested.

    Args:
        config: a config without this library's classes.
    """
    version = ".".join(ray.__version__.split(".")[:2])
    if version not in TESTED_VERSIONS:
        warnings.warn(
            f"install(config) was tested with Ray {', '.join(TESTED_VERSIONS)}, and this is Ray {ray.__version__}; "
            "compare a short run with uninstall(config)",
            stacklevel=4,
        )
    _check_algorithm(config.algo_class)
    if not (config.enable_rl_module_and_learner and config.enable_env_runner_and_connector_v2):
        raise InvalidArgument(
            "install(config): RLlib's old API stack is not supported; enable the new one with "
            "config.api_stack(enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)"
        )
    if config.env_runner_cls is not None:
        raise InvalidArgument(
            f"install(config): env_runner_cls={config.env_runner_cls.__name__} would be replaced; remove it with "
            "config.env_runners(env_runner_cls=None), and move its code to callbacks"
        )
    if config.output:
        raise InvalidArgument(
            f"install(config): offline_data(output={config.output!r}) would record nothing; write the samples of the "
            "callback on_sample_end with episodes.storage.EpisodeWriter, or record with uninstall(config)"
        )
    if config.is_multi_agent and config.count_steps_by != "env_steps":
        raise InvalidArgument(
            f"install(config): multi_agent(count_steps_by={config.count_steps_by!r}) is not supported; set "
            "count_steps_by='env_steps', and divide batch sizes by the number of agents per step"
        )
    for pipeline in ("env_to_module", "module_to_env"):
        if not getattr(config, f"add_default_connectors_to_{pipeline}_pipeline"):
            raise InvalidArgument(
                f"install(config): env_runners(add_default_connectors_to_{pipeline}_pipeline=False) is not supported; "
                f"leave it True, and add connectors with {pipeline}_connector"
            )
    if issubclass(config.algo_class or object, PPO) and not config.add_default_connectors_to_learner_pipeline:
        raise InvalidArgument(
            "install(config): training(add_default_connectors_to_learner_pipeline=False) is not supported for PPO; "
            "leave it True, and add connectors with learner_connector"
        )


def _check_algorithm(algorithm: type[Any] | None) -> None:
    """Raise `InvalidArgument` unless the algorithm is supported or is the user's subclass of a supported algorithm."""
    if algorithm in ALGORITHMS:
        return
    is_rllibs = algorithm is None or algorithm.__module__.startswith("ray.rllib.algorithms")
    if algorithm is None or is_rllibs or not issubclass(algorithm, ALGORITHMS):
        names = ", ".join(supported.__name__ for supported in ALGORITHMS)
        raise InvalidArgument(
            f"install(config): {getattr(algorithm, '__name__', algorithm)} is not supported; supported are {names}"
        )
