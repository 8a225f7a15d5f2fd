"""Functions for RLlib's settings of connectors that translate the user's pipelines into pipelines of this library."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from episode_runners.rllib.pipelines import (
    EnvToModuleInRLlib,
    ModuleToEnvInRLlib,
    MultiAgentEnvToModuleInRLlib,
    MultiAgentModuleToEnvInRLlib,
)
from episodes.errors import InvalidArgument

__all__ = ["TranslatedEnvToModule", "TranslatedFunction", "TranslatedModuleToEnv", "use_settings_of"]

# Attributes of RLlib's configs that `install` replaces.
REPLACED = (
    "env_runner_cls",
    "_env_to_module_connector",
    "add_default_connectors_to_env_to_module_pipeline",
    "_module_to_env_connector",
    "add_default_connectors_to_module_to_env_pipeline",
    "_learner_class",
)


class TranslatedFunction:
    """Base class of functions that create pipelines of this library from the user's RLlib connectors.

    Args:
        original: a copy of the config before its connectors were replaced.

    Attributes:
        setting: the attribute of RLlib's config that has the function.
    """

    setting: str

    def __init__(self, original: AlgorithmConfig) -> None:
        self.original = original

    @property
    def users_function(self) -> Any:
        """Function that the user has set, or None."""
        return vars(self.original)[self.setting]

    def use_settings_of(self, config: AlgorithmConfig) -> None:
        """Copy the settings of an RLlib config for later calls of this function. Settings that `install` replaces are
        not copied.
        """
        replaced = {name: vars(self.original)[name] for name in REPLACED}
        vars(self.original).update({**vars(config), **replaced})


class TranslatedEnvToModule(TranslatedFunction):
    """Function for the setting `env_to_module_connector` that translates the user's RLlib
    pipeline into one of this library.
    """

    setting = "_env_to_module_connector"

    def __call__(
        self,
        env: gym.Env | gym.vector.VectorEnv | None = None,
        spaces: dict[str, tuple[gym.Space, gym.Space]] | None = None,
        device: torch.device | str | None = None,
    ) -> Any:
        try:
            replaced = self.original.build_env_to_module_connector(env, spaces, device)
        except TypeError as error:
            raise InvalidArgument(
                f"install(config): RLlib cannot make its env_to_module_connector: {error}; give arguments that its "
                "connectors allow, such as a number for MeanStdFilter(clip_by_value=...), np.inf for no limit"
            ) from error
        if not self.original.is_multi_agent:
            return EnvToModuleInRLlib(replaced=replaced, device=device)
        connector = MultiAgentEnvToModuleInRLlib(replaced=replaced, device=device)
        connector.add_modules(self.original.policies)
        return connector


class TranslatedModuleToEnv(TranslatedFunction):
    """Function for the setting `module_to_env_connector` that translates the user's RLlib
    pipeline into one of this library.
    """

    setting = "_module_to_env_connector"

    def __call__(
        self,
        env: gym.Env | gym.vector.VectorEnv | None = None,
        spaces: Any = None,
    ) -> Any:
        original = self.original
        replaced = original.build_module_to_env_connector(env, spaces)
        options = {"normalize_actions": original.normalize_actions, "clip_actions": original.clip_actions}
        if not original.is_multi_agent:
            return ModuleToEnvInRLlib(replaced=replaced, options=options)
        connector = MultiAgentModuleToEnvInRLlib(replaced=replaced, options=options)
        connector.add_modules(original.policies)
        return connector


def use_settings_of(config: AlgorithmConfig) -> None:
    """Make the connector functions of an RLlib config use the current settings of this config.

    Evaluation and `add_module` change some settings of a config after `install`.

    Raises:
        InvalidArgument: a connector function was replaced after the algorithm was built.
    """
    for kind in (TranslatedEnvToModule, TranslatedModuleToEnv):
        function = vars(config)[kind.setting]
        if not isinstance(function, kind):
            raise InvalidArgument(
                f"install(config): {kind.setting.removeprefix('_')} was set in a copy of an algorithm's config; call "
                "install(config) with the copy, too"
            )
        function.use_settings_of(config)
