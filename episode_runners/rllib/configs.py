"""Changes of RLlib's `AlgorithmConfig` that make its algorithm use this library."""

from __future__ import annotations

from functools import cache
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.utils import force_list

from episode_runners.rllib.connector_functions import TranslatedEnvToModule, TranslatedFunction, TranslatedModuleToEnv
from episode_runners.rllib.env_runners import EpisodesEnvRunner, EpisodesMultiAgentEnvRunner, EpisodesRunner
from episode_runners.rllib.evaluation import TrainingStatistics
from episode_runners.rllib.learners import learner_class_with_episodes, learner_class_without_episodes
from episode_runners.rllib.support import check_support
from episodes.errors import InvalidArgument, WrongType

__all__ = ["install_in", "uninstall_from"]


def install_in(config: AlgorithmConfig) -> None:
    """Change the class of an RLlib config, so that its algorithm samples and learns with this library.

    Raises:
        WrongType: the object is not a config of RLlib.
        InvalidArgument: the config is frozen, or has settings that are not supported.
    """
    if not isinstance(config, AlgorithmConfig):
        raise WrongType(f"install({config!r}): give an AlgorithmConfig of RLlib, such as PPOConfig()")
    if isinstance(config, InstalledConfig):
        return
    _check_not_frozen(config, "install")
    uninstall_from(config)  # a copy of an algorithm's config
    check_support(config)
    _set_class(config, _installed_class(type(config)))


def uninstall_from(config: AlgorithmConfig) -> None:
    """Restore the class that an RLlib config had before `install_in`.

    Raises:
        InvalidArgument: an algorithm was built with this config object, which RLlib has frozen.
    """
    if isinstance(config, InstalledConfig):
        _set_class(config, type(config).original)
    elif issubclass(getattr(config, "env_runner_cls", None) or object, EpisodesRunner):
        _check_not_frozen(config, "uninstall")
        _restore_settings(config)


def _check_not_frozen(config: AlgorithmConfig, call: str) -> None:
    """Raise `InvalidArgument` if an algorithm was built with `config`, which therefore cannot change.

    Args:
        call: name of the calling function, for the error.
    """
    if vars(config).get("_is_frozen"):
        raise InvalidArgument(
            f"{call}(config): an algorithm was built with this config, which cannot change any more; "
            f"{call} a copy: {call}(config.copy(copy_frozen=False))"
        )


class InstalledConfig:
    """Base class that marks the config classes created by `install_in`."""

    __slots__ = ()
    original: type[AlgorithmConfig]  # the class before `install`


def _resolved(config: AlgorithmConfig) -> Any:
    """Return a copy of an installed config that has RLlib's original class,
    and the runner and connectors of this library.
    """
    copy = config.copy(copy_frozen=False)
    _resolve(copy)
    return copy


def _resolve(config: AlgorithmConfig) -> None:
    """Restore RLlib's original class of an installed config, and set its runner and connectors to classes of this
    library.
    """
    uninstall_from(config)
    check_support(config)
    original = config.copy(copy_frozen=False)
    config.env_runners(
        env_runner_cls=EpisodesMultiAgentEnvRunner if config.is_multi_agent else EpisodesEnvRunner,
        env_to_module_connector=TranslatedEnvToModule(original),
        add_default_connectors_to_env_to_module_pipeline=False,
        module_to_env_connector=TranslatedModuleToEnv(original),
        add_default_connectors_to_module_to_env_pipeline=False,
    )
    config.learners(learner_class=learner_class_with_episodes(config.learner_class))
    config.callbacks(on_evaluate_start=[TrainingStatistics(), *force_list(config.callbacks_on_evaluate_start)])


def _restore_settings(config: AlgorithmConfig) -> None:
    """Restore RLlib's classes and the user's connectors in a config that `_resolve` has changed."""
    config.env_runners(
        env_runner_cls=None,
        add_default_connectors_to_env_to_module_pipeline=True,
        add_default_connectors_to_module_to_env_pipeline=True,
    )
    for name in ("_env_to_module_connector", "_module_to_env_connector"):
        function = vars(config)[name]
        if isinstance(function, TranslatedFunction):
            vars(config)[name] = function.users_function
    config.learners(learner_class=learner_class_without_episodes(config.learner_class))
    users = [f for f in force_list(config.callbacks_on_evaluate_start) if not isinstance(f, TrainingStatistics)]
    config.callbacks(on_evaluate_start=users or None)


@cache
def _installed_class(original: type[AlgorithmConfig]) -> type[Any]:
    """Return the subclass of RLlib's config class `original` that `install_in` gives to a config.

    Its configs keep all settings as the user makes them. The classes and connectors of this library are set when RLlib
    freezes a config, or reads it.
    """

    class Installed(original, InstalledConfig):  # type: ignore[misc, valid-type]
        """Config of RLlib that is changed to use this library as soon as RLlib freezes or reads it."""

        def freeze(self) -> None:
            _resolve(self)
            self.freeze()

        def to_dict(self) -> dict[str, Any]:
            return _resolved(self).to_dict()

        def build_learner(self, *args: Any, **arguments: Any) -> Any:
            return _resolved(self).build_learner(*args, **arguments)

        def build_learner_group(self, *args: Any, **arguments: Any) -> Any:
            return _resolved(self).build_learner_group(*args, **arguments)

        def __reduce__(self) -> Any:
            return _unpickled, (original, vars(self))

    Installed.original = original
    Installed.__name__ = Installed.__qualname__ = f"Installed{original.__name__}"
    return Installed


def _unpickled(original: type[AlgorithmConfig], attributes: dict[str, Any]) -> Any:
    """Return a config of the installed class from its pickled attributes."""
    config = object.__new__(_installed_class(original))
    vars(config).update(attributes)
    return config


def _set_class(config: AlgorithmConfig, kind: type[Any]) -> None:
    object.__setattr__(config, "__class__", kind)
