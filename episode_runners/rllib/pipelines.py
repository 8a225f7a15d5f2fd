"""Pipelines of this library as connectors of RLlib."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from ray.rllib.connectors.connector_v2 import ConnectorV2

from connectors import env_to_module_pipeline, module_to_env_pipeline
from episode_runners.rllib.translation import acting_pieces
from episodes.errors import EpisodeStateError

__all__ = ["EnvToModuleInRLlib", "ModuleToEnvInRLlib", "make_env_to_module", "make_module_to_env", "pipeline_in"]


class PipelineInRLlib(ConnectorV2):
    """Pipeline of this library as a connector, for RLlib's spaces, states, checkpoints and merging of filters.

    RLlib does not call it: env runners sample with `pipeline`.

    Args:
        replaced: RLlib's pipeline, from which `pipeline` was translated.
        pipeline: the pipeline of this library.
    """

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        replaced: Any,
        pipeline: Any,
        **kwargs: Any,
    ) -> None:
        self.replaced, self.pipeline = replaced, pipeline
        super().__init__(input_observation_space, input_action_space, **kwargs)

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        return self.replaced.observation_space

    def recompute_output_action_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        return self.replaced.action_space

    def __call__(self, **arguments: Any) -> Any:
        raise EpisodeStateError(
            f"{type(self).__name__} cannot be called with RLlib's episodes; use its `pipeline` with episodes of "
            "rl-episodes, or uninstall(config) before you build a pipeline for RLlib's episodes"
        )

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        return self.pipeline.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self.pipeline.set_state(state)

    def reset_state(self) -> None:
        self.pipeline.reset_state()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        return self.pipeline.merge_states(states)

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        spaces = self.input_observation_space, self.input_action_space
        return spaces, {"replaced": self.replaced, "pipeline": self.pipeline}


class EnvToModuleInRLlib(PipelineInRLlib):
    """Env-to-module pipeline of this library as a connector of RLlib."""


class ModuleToEnvInRLlib(PipelineInRLlib):
    """Module-to-env pipeline of this library as a connector of RLlib."""


def make_env_to_module(replaced: Any, device: Any) -> EnvToModuleInRLlib:
    """Return the translation of RLlib's env-to-module pipeline `replaced`."""
    spaces = replaced.input_observation_space, replaced.input_action_space
    pipeline = env_to_module_pipeline(*spaces, pieces=acting_pieces(replaced), device=device)
    return EnvToModuleInRLlib(*spaces, replaced=replaced, pipeline=pipeline)


def make_module_to_env(replaced: Any, config: Any) -> ModuleToEnvInRLlib:
    """Return the translation of RLlib's module-to-env pipeline `replaced`."""
    spaces = replaced.input_observation_space, replaced.input_action_space
    pipeline = module_to_env_pipeline(
        *spaces,
        pieces=acting_pieces(replaced),
        normalize_actions=config.normalize_actions,
        clip_actions=config.clip_actions,
        log_probs=False,
    )
    return ModuleToEnvInRLlib(*spaces, replaced=replaced, pipeline=pipeline)


def pipeline_in(connectors: Any, kind: type[PipelineInRLlib]) -> Any:
    """Return the pipeline of this library that RLlib's pipeline `connectors` contains."""
    return next(connector.pipeline for connector in connectors.connectors if isinstance(connector, kind))
