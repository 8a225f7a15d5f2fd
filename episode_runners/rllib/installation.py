"""`install` and `uninstall`: switch an RLlib config to this library and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from episodes.errors import needing

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

__all__ = ["install", "uninstall"]

C = TypeVar("C", bound="AlgorithmConfig")


def install(config: C) -> C:
    """Make the algorithm of an RLlib config sample with this library, and return the config. PPO learns with it, too.

    The config, its algorithm, Tune, callbacks, connectors and checkpoints are used as before. `install` may be called
    before or after other settings are made. PPO samples and makes train batches with this library. APPO, IMPALA, DQN
    and SAC sample with it, and learn with RLlib's pipelines and replay buffers.

    Args:
        config: an `AlgorithmConfig` of RLlib.

    Raises:
        MissingExtra: RLlib is not installed.
        WrongType: the object is not an `AlgorithmConfig`.
        InvalidArgument: the config is frozen, or has a setting that is not supported. Settings that are made later are
            checked when the algorithm is built.
    """
    with needing("rllib", "install(config) needs RLlib"):
        from episode_runners.rllib.configs import install_in
    install_in(config)
    return config


def uninstall(config: C) -> C:
    """Undo `install`, so that RLlib's own classes sample and learn, and return the config.

    Settings that were made after `install` are kept. A config that is not installed stays as it is.

    Args:
        config: an `AlgorithmConfig` of RLlib.

    Raises:
        MissingExtra: RLlib is not installed.
        InvalidArgument: an algorithm was built with this config object, which RLlib has frozen.
    """
    with needing("rllib", "uninstall(config) needs RLlib"):
        from episode_runners.rllib.configs import uninstall_from
    uninstall_from(config)
    return config
