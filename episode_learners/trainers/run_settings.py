"""Comparison of a resumed run's settings with the settings in its checkpoint."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from episode_learners.algorithms.algorithm import Algorithm
from episode_learners.multi_agent import MultiAgentAlgorithm, learners_of
from episode_runners import GroupRunner, MultiAgentEnvRunner
from episodes.data_types import ModuleID
from episodes.errors import StateMismatch, UnknownKey
from episodes.storage.ledger.row_hashes import hash_of_values

if TYPE_CHECKING:
    from episode_learners.trainers.config import TrainerConfig
    from episode_runners.single_agent import SingleAgentEnvRunner

__all__ = ["FREE", "SettingsHashes", "changed_settings", "settings_of"]

FREE = ("trainer.max_epochs", "trainer.shows_progress")  # may always change
_FIXED = ("trainer", "algorithm", "policy")  # may never change; all others may if they are allowed to


def settings_of(
    trainer_config: TrainerConfig,
    algorithm: Algorithm | MultiAgentAlgorithm,
    runner: SingleAgentEnvRunner | MultiAgentEnvRunner | GroupRunner | None,
) -> dict[str, Any]:
    """Return the settings of a training run by name, as plain values, to compare them with a checkpoint's settings.
    Names of a module's settings end with "/<module>".
    """
    settings: dict[str, Any] = {"algorithm": type(algorithm).__name__}
    settings |= {f"trainer.{name}": str(value) for name, value in asdict(trainer_config).items()}
    for module_id, learner in learners_of(algorithm).items():
        suffix = "" if learner is algorithm else f"/{module_id}"
        policy, config = learner.policy, getattr(learner, "config", None)
        settings[f"algorithm{suffix}"] = type(learner).__name__
        settings[f"policy{suffix}"] = f"{policy!r} {type(policy.distribution).__name__}"
        settings |= {f"algorithm.{name}{suffix}": str(value) for name, value in _fields_of(config).items()}
    if runner is not None:
        settings |= {"environment": _environment_name(runner), "num_envs": runner.num_envs}
    return settings


class SettingsHashes:
    """Hashes of a run's settings and of the current learning rates, for a ledger.

    Settings are read again after `clear`, or if the trainer has another configuration, algorithm, runner, policy or
    algorithm's configuration than before. Learning rates are read at each call.
    """

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._settings: dict[str, Any] = {}
        self._hashes: dict[ModuleID, tuple[dict[str, float], int]] = {}  # by module: learning rates, and their hash

    def clear(self) -> None:
        """Read all settings again at the next call of `of`."""
        self._parts, self._settings, self._hashes = [], {}, {}

    def of(self, module_id: ModuleID, learner: Algorithm, parts: list[Any], read: Callable[[], dict[str, Any]]) -> int:
        """Return the hash of the settings of a run, and of the learning rates of the module `module_id`.

        Args:
            module_id: id of the module.
            learner: the algorithm of the module.
            parts: the objects that have the settings.
            read: function that returns the settings.
        """
        if len(parts) != len(self._parts) or any(map(operator.is_not, parts, self._parts)):
            self.clear()
            self._parts = parts
            self._settings = {name: value for name, value in read().items() if name not in FREE}
        rates = {name: optimizer.learning_rate for name, optimizer in learner.optimizers.items()}
        known = self._hashes.get(module_id)
        if known is None or known[0] != rates:
            known = self._hashes[module_id] = rates, hash_of_values({**self._settings, "rates": rates})
        return known[1]


def changed_settings(
    path: Path, stored: Mapping[str, Any], settings: Mapping[str, Any], allowed: set[str]
) -> list[str]:
    """Return the names of the settings that differ between a checkpoint (`stored`) and the current run, after a check
    that each may change.

    Raises:
        StateMismatch: a setting differs that is not in `allowed`, or that may never change.
        UnknownKey: `allowed` has a name that is not a setting, or that may never change.
    """
    may_change = [name for name in settings if name.split("/")[0] not in _FIXED]
    unknown = allowed.difference(may_change)
    if unknown:
        raise UnknownKey(f"allow={sorted(unknown)}: the settings that may change are {', '.join(may_change)}")
    changed = [name for name, value in settings.items() if name not in FREE and stored.get(name) != value]
    for name in changed:
        if name not in allowed:
            advice = "" if name not in may_change else f", or resume(allow=[{name!r}])"
            raise StateMismatch(
                f"{path} has {name} {stored.get(name)!r}, this trainer has {settings[name]!r}: resume with the "
                f"settings that the run was begun with{advice}"
            )
    return changed


def _fields_of(config: object) -> dict[str, Any]:
    """Return the fields of an algorithm's configuration as a dict. The configuration is a dataclass, a mapping, another
    object, or None.
    """
    if is_dataclass(config) and not isinstance(config, type):
        return asdict(config)
    return dict(config) if isinstance(config, Mapping) else dict(getattr(config, "__dict__", {}))


def _environment_name(runner: SingleAgentEnvRunner | MultiAgentEnvRunner | GroupRunner) -> str:
    """Return a string that identifies a runner's environment: its id and arguments, or its spaces if it has no spec."""
    if isinstance(runner, MultiAgentEnvRunner):
        env = runner.envs[0]
        return str(getattr(env, "name", type(env).__name__))
    env = (runner.local if isinstance(runner, GroupRunner) else runner).env
    parts = getattr(env.unwrapped, "envs", [])
    spec = env.spec or (parts[0].spec if parts else None)
    if spec is None:
        return f"{env.single_observation_space}, {env.single_action_space}"
    arguments = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}  # no setting of a run
    return f"{spec.id} {arguments}" if arguments else spec.id
