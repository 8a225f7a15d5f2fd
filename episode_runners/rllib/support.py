"""Checks of configs: which algorithms, settings and versions of Ray are supported."""

from __future__ import annotations

import warnings
from typing import Any

import ray
from ray.rllib.algorithms.ppo.ppo_learner import PPOLearner

from episodes.errors import InvalidArgument

__all__ = ["TESTED_VERSIONS", "check_support"]

TESTED_VERSIONS = ("2.60",)


def check_support(config: Any) -> None:
    """Raise `InvalidArgument` if the config has a setting that is not supported. Warn if Ray has an untested version.

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
    algorithm = getattr(config.algo_class, "__name__", None)
    if not issubclass(config.learner_class, PPOLearner):
        raise InvalidArgument(f"install(config): {algorithm} is not supported; supported is PPO")
    if config.env_runner_cls is not None:
        raise InvalidArgument(
            f"install(config): env_runner_cls={config.env_runner_cls.__name__} would be replaced; remove it with "
            "config.env_runners(env_runner_cls=None), and move its code to callbacks"
        )
    if config.is_multi_agent:
        raise InvalidArgument("install(config): several agents are not supported yet")
    if config.num_learners > 1 or config.num_aggregator_actors_per_learner:
        raise InvalidArgument("install(config): several learners and aggregator actors are not supported yet")
