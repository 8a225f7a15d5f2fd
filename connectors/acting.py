"""What a runner asks of its two pipelines: from observations to the policy's batch, and from its outputs to actions.

`EnvToModulePipeline` and `ModuleToEnvPipeline` are such pipelines; a runner looks at nothing else of them.
"""

from __future__ import annotations

from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from connectors.connector import ColumnDict
from connectors.fingerprint import describe_space
from episodes.errors import WrongType
from episodes.pack import EpisodePack

__all__ = ["Acted", "EnvToModule", "ModuleToEnv", "check_pipeline", "fingerprint_of"]

Acted = tuple[Any, Any, dict[str, Any]]  # actions as the policy made them, as the environment takes them, all the rest


class EnvToModule(Protocol):
    """From the newest observations to what the policy sees of them."""

    @property
    def recorded_observation_space(self) -> gym.Space | None:
        """The space of the observations that `rewrite` gives, which are recorded."""
        ...

    @property
    def observation_space(self) -> gym.Space:
        """The space of the observations that the policy sees, once the pipeline is bound."""
        ...

    @property
    def fingerprint(self) -> list[Any]:
        """What a policy that was trained in this pipeline relies on: [name, settings] of each piece."""
        ...

    def bind_policy(self, policy: Any) -> None:
        """Add what a recurrent policy needs, and raise if the policy cannot read what this pipeline makes."""
        ...

    @property
    def lookback(self) -> int:
        """How many items from before its first step a chunk must bring along, to be learned from as it was acted."""
        ...

    @property
    def rewrites(self) -> bool:
        """False where `rewrite` gives back what it gets."""
        ...

    def bind(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Take one environment's spaces, where the pipeline was built without any."""
        ...

    def rewrite(self, observations: Any, episodes: Any = None, update: bool = True) -> Any:
        """The observations [N, ...] as they are recorded; called once for each."""
        ...

    def see(
        self, rl_module: Any, batch: ColumnDict, episodes: Any, explore: bool, shared_data: dict[str, Any]
    ) -> ColumnDict:
        """The policy's batch out of one with the newest recorded observations, "obs" [N, ...]."""
        ...

    def get_state(self) -> dict[str, Any]:
        """What the pieces have learned from data."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` gave."""
        ...


class ModuleToEnv(Protocol):
    """Pipeline from the policy's outputs to actions."""

    @property
    def input_action_space(self) -> gym.Space | None:
        """The environment's action space."""
        ...

    @property
    def fingerprint(self) -> list[Any]:
        """What a policy that was trained in this pipeline relies on: [name, settings] of each piece."""
        ...

    @property
    def records_env_actions(self) -> bool:
        """Whether `act` returns the environment's actions as the output "actions_for_env" too."""
        ...

    def bind(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Take one environment's spaces, where the pipeline was built without any."""
        ...

    def bind_policy(self, policy: Any) -> None:
        """Add what a recurrent policy needs."""
        ...

    def policy_action_space(self, space: gym.Space) -> gym.Space:
        """Return the space of the recorded actions for an environment's action space (see `episodes.PolicyBox`)."""
        ...

    def act(self, policy: Any, outputs: Any, episodes: Any, explore: bool, shared_data: dict[str, Any]) -> Acted:
        """The actions [N, ...] as the policy made them, as the environment takes them, and its other outputs."""
        ...

    def log_probs(self, policy: Any, outputs: dict[str, Any], actions: Any) -> np.ndarray | None:
        """The "action_logp" [n] of recorded actions [n, ...]; None where `act` gave them, or nothing says them."""
        ...

    def with_log_probs(self, policy: Any, pack: EpisodePack) -> EpisodePack:
        """The pack with "action_logp" of all its steps; the pack itself where `act` gave them, or nothing says them."""
        ...

    def get_state(self) -> dict[str, Any]:
        """What the pieces have learned from data."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` gave."""
        ...


def fingerprint_of(env_to_module: EnvToModule, module_to_env: ModuleToEnv) -> dict[str, Any]:
    """What a policy relies on that is trained in these pipelines; see `connectors.fingerprint`."""
    return {
        "observations": describe_space(env_to_module.observation_space),
        "actions": describe_space(module_to_env.input_action_space, bounds=True),
        "env_to_module": env_to_module.fingerprint,
        "module_to_env": module_to_env.fingerprint,
        "views": getattr(env_to_module, "view_settings", []),
    }


def check_pipeline(pipeline: Any, protocol: type, argument: str) -> None:
    """Raise `WrongType` unless the pipeline has all that the protocol asks; the error names what is missing."""
    asked = [name for name in vars(protocol) if not name.startswith("_")]
    missing = [name for name in asked if not hasattr(type(pipeline), name) and not hasattr(pipeline, name)]
    if missing:
        raise WrongType(
            f"{argument}={type(pipeline).__name__}: a runner asks {', '.join(asked)} of this pipeline, which has no "
            f"{', no '.join(missing)}; build it with {argument}_pipeline"
        )
