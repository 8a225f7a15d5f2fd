"""Connectors of RLlib that contain the pipelines of this library."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.connectors.connector_v2 import ConnectorV2

from connectors import env_to_module_pipeline, module_to_env_pipeline
from connectors.multi_agent_pipelines import MultiAgentEnvToModule, MultiAgentModuleToEnv
from episode_runners.rllib.shared_statistics import SHARED, SharedStatistics
from episode_runners.rllib.translation import DEFAULTS, is_joint, joint_pieces, module_pieces, users_connectors
from episodes.errors import EpisodeStateError, InvalidArgument, StateMismatch
from episodes.tracks.spaces import elementary_spaces

if TYPE_CHECKING:
    from ray.rllib.connectors.connector_pipeline_v2 import ConnectorPipelineV2

__all__ = [
    "EnvToModuleInRLlib",
    "ModuleToEnvInRLlib",
    "MultiAgentEnvToModuleInRLlib",
    "MultiAgentModuleToEnvInRLlib",
    "PipelineInRLlib",
    "check_restored_connectors",
    "connector_in",
]


class PipelineInRLlib(ConnectorV2):
    """RLlib connector that contains a pipeline of this library, for its spaces, state and checkpoints.

    RLlib does not call it: env runners sample with `pipeline`.

    Args:
        replaced: RLlib's pipeline, which is translated.
        device: device of the batches.
        options: options of the pipelines.

    Attributes:
        pipeline: the pipeline of this library.
    """

    pipeline: Any

    def __init__(
        self,
        *,
        replaced: Any,
        device: torch.device | str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.replaced, self.device, self.options = replaced, device, options or {}
        self.pipeline = self._make_pipeline(users_connectors(replaced))
        super().__init__(replaced.input_observation_space, replaced.input_action_space)

    def _make_pipeline(self, connectors: Sequence[Any]) -> Any:
        raise NotImplementedError

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> Any:
        return self.replaced.observation_space

    def recompute_output_action_space(self, input_observation_space: gym.Space, input_action_space: gym.Space) -> Any:
        return self.replaced.action_space

    def __call__(self, **arguments: object) -> Any:
        raise EpisodeStateError(
            f"{type(self).__name__} cannot be called with RLlib's episodes; use its `pipeline` with episodes of "
            "rl-episodes, or uninstall(config) before you build a pipeline for RLlib's episodes"
        )

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: object,
    ) -> dict[str, Any]:
        return self.pipeline.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self.pipeline.set_state(state)

    def reset_state(self) -> None:
        self.pipeline.reset_state()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Return one state that combines the states of remote env runners with the state of this pipeline."""
        return self.pipeline.merge_states([*states, self.pipeline.get_state()])

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), {"replaced": self.replaced, "device": self.device, "options": self.options}


class SharingPipelineInRLlib(PipelineInRLlib):
    """RLlib connector that contains a pipeline whose filters share their statistics with other env runners.

    Attributes:
        shared: the state of the pipeline.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.shared = SharedStatistics(self.pipeline)

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: object,
    ) -> dict[str, Any]:
        return self.shared.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self.shared.set_state(state)

    def reset_state(self) -> None:
        self.shared.reset_state()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        return self.shared.merge_states(states)


class EnvToModuleInRLlib(SharingPipelineInRLlib):
    """RLlib connector that contains an env-to-module pipeline of this library."""

    def _make_pipeline(self, connectors: Sequence[Any]) -> Any:
        check_not_joint(connectors)
        spaces = self.replaced.input_observation_space, self.replaced.input_action_space
        return env_to_module_pipeline(*spaces, pieces=module_pieces(connectors), device=self.device)


class ModuleToEnvInRLlib(PipelineInRLlib):
    """RLlib connector that contains a module-to-env pipeline of this library."""

    def _make_pipeline(self, connectors: Sequence[Any]) -> Any:
        check_module_to_env(self.replaced)
        spaces = self.replaced.input_observation_space, self.replaced.input_action_space
        return module_to_env_pipeline(*spaces, pieces=module_pieces(connectors), log_probs=False, **self.options)


class MultiAgentPipelineInRLlib(PipelineInRLlib):
    """RLlib connector that contains one pipeline of this library per module, created when the module appears."""

    def _make_module_pipeline(self) -> Any:
        raise NotImplementedError

    def add_modules(self, module_ids: Iterable[Any]) -> None:
        """Create the pipelines of those modules that have none."""
        for module_id in module_ids:
            if module_id not in self.pipeline.modules and module_id not in ("__joint__", SHARED):
                self.pipeline.modules[module_id] = self._make_module_pipeline()

    def set_state(self, state: dict[Any, Any]) -> None:
        """Restore the pipelines' states by module id. The pipelines of other modules keep their states."""
        self.add_modules(state)
        super().set_state({**self.pipeline.get_state(), **state})

    def merge_states(self, states: list[dict[Any, Any]]) -> dict[Any, Any]:
        for state in states:
            self.add_modules(state)
        return super().merge_states(states)


class MultiAgentEnvToModuleInRLlib(MultiAgentPipelineInRLlib, SharingPipelineInRLlib):
    """RLlib connector that contains an env-to-module pipeline of this library per module."""

    def _make_pipeline(self, connectors: Sequence[Any]) -> Any:
        return MultiAgentEnvToModule({}, joint=joint_pieces(connectors))

    def _make_module_pipeline(self) -> Any:
        pieces = module_pieces(users_connectors(self.replaced), by_agent=True)
        return env_to_module_pipeline(pieces=pieces, device=self.device)


class MultiAgentModuleToEnvInRLlib(MultiAgentPipelineInRLlib):
    """RLlib connector that contains a module-to-env pipeline of this library per module."""

    def _make_pipeline(self, connectors: Sequence[Any]) -> Any:
        check_module_to_env(self.replaced)
        return MultiAgentModuleToEnv({})

    def _make_module_pipeline(self) -> Any:
        return module_to_env_pipeline(pieces=module_pieces(users_connectors(self.replaced)), **self.options)


def check_not_joint(connectors: Iterable[Any]) -> None:
    """Raise `InvalidArgument` if a connector for several agents is in the pipeline of a single agent."""
    for connector in connectors:
        if is_joint(connector):
            raise InvalidArgument(
                f"install(config): {type(connector).__name__} is made for several agents, and the config has one; "
                "remove multi_agent= or agent_ids=, or derive it from SingleAgentObservationPreprocessor"
            )


def check_module_to_env(replaced: ConnectorPipelineV2) -> None:
    """Check that RLlib's module-to-env pipeline can be replaced.

    Raises:
        InvalidArgument: the user has added a connector that RLlib adds automatically, or the action space has a
            `start`, which the action distributions and losses of RLlib ignore.
    """
    names = [type(connector).__name__ for connector in replaced.connectors]
    for name in DEFAULTS:
        if names.count(name) > 1:
            raise InvalidArgument(
                f"install(config): module_to_env_connector returns {name}, which is added automatically, too; remove "
                "it, and use config.env_runners(normalize_actions=..., clip_actions=...)"
            )
    for _, space in elementary_spaces(replaced.input_action_space):
        if np.any(getattr(space, "start", 0)):
            raise InvalidArgument(
                f"install(config): the action space {space} does not start at 0, as RLlib's losses require; subtract "
                "the start with gymnasium.wrappers.TransformAction"
            )


def connector_in(connectors: Any) -> Any:
    """Return the `PipelineInRLlib` among the connectors of an RLlib pipeline.

    Raises:
        StateMismatch: there is none.
    """
    for connector in connectors.connectors:
        if isinstance(connector, PipelineInRLlib):
            return connector
    raise StateMismatch(f"{type(connectors).__name__} was created without install(config); build the algorithm with it")


def check_restored_connectors(connectors: ConnectorPipelineV2 | None, names: Iterable[str] | None) -> None:
    """Check that a checkpoint with connector states has a state of the `PipelineInRLlib` that is restored.

    RLlib skips connectors that are not in a checkpoint. Without this check, a checkpoint of RLlib's own connectors
    leaves the filters empty.

    Args:
        connectors: RLlib's pipeline that is restored, or None if there is none.
        names: names of the connectors in the checkpoint, or None if it contains no connectors.

    Raises:
        StateMismatch: the checkpoint has states of connectors, and none of the `PipelineInRLlib`.
    """
    names = list(names or ())
    if connectors is None or not names:
        return
    expected = type(connector_in(connectors)).__name__
    if expected not in names:
        raise StateMismatch(
            f"the checkpoint has states of {names}, and none of {expected}: it was written without install(config). "
            "Restore it with an algorithm whose config is not installed"
        )
