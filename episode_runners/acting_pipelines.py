"""`ActingPipelines`: both pipelines of a single-agent runner, bound to its spaces and checked against its policy."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch

from connectors import env_to_module_pipeline, module_to_env_pipeline
from connectors.acting import Acted, EnvToModule, ModuleToEnv, check_pipeline, fingerprint_of
from connectors.fingerprint import check_fingerprint, check_spaces, check_statistics, stamp
from connectors.policy import Policy, check_interface, module_of
from episodes.columns import Columns
from episodes.tracks.validation import checked_flag

__all__ = ["ActingPipelines"]


class ActingPipelines:
    """Pipelines around a runner's policy: from observations to its batch, and from its outputs to actions.

    Args:
        env_to_module: pipeline from observations to the policy's batch. None: the default one.
        module_to_env: pipeline from the policy's outputs to actions. None: the default one.
        policy: the policy, or None.
        spaces: observation and action space of one environment.
        seed: seed of action sampling in the default pipeline.
        checks: whether a policy that was trained in other pipelines is rejected.

    Attributes:
        checks: the argument `checks`.
        inference: context in which the policy acts, without gradients. Made once, since that takes a microsecond.

    Raises:
        StateMismatch: the policy was trained in other pipelines, or the pipelines have other spaces.
        WrongType: the policy or a pipeline has a wrong type.
    """

    __slots__ = ("_fingerprint", "_shared_data", "checks", "env_to_module", "inference", "module_to_env")

    def __init__(
        self,
        env_to_module: EnvToModule | None,
        module_to_env: ModuleToEnv | None,
        policy: Policy | None,
        spaces: tuple[gym.Space, gym.Space],
        seed: int | None,
        checks: bool,
    ) -> None:
        if policy is not None:
            check_interface(policy, "SingleAgentEnvRunner")
        if env_to_module is None:
            env_to_module = env_to_module_pipeline(*spaces, device=module_of(policy).device)
        if module_to_env is None:
            module_to_env = module_to_env_pipeline(*spaces, seed=seed, log_probs=False)
        check_pipeline(env_to_module, EnvToModule, "env_to_module")
        check_pipeline(module_to_env, ModuleToEnv, "module_to_env")
        env_to_module.bind(*spaces)
        module_to_env.bind(*spaces)
        if policy is not None:
            env_to_module.bind_policy(policy)
            module_to_env.bind_policy(policy)
        self._fingerprint = fingerprint_of(env_to_module, module_to_env)
        self.checks = checked_flag("check_pipeline", checks)
        if checks:
            check_spaces(env_to_module, module_to_env, *spaces)
            check_fingerprint(policy, self._fingerprint)
        self.env_to_module, self.module_to_env = env_to_module, module_to_env
        self.inference = torch.inference_mode()
        self._shared_data: dict[str, Any] = {}  # of all connectors

    def begin(self, policy: Any, updates: bool) -> None:
        """Begin a call in which `policy` acts.

        If connectors with statistics learn in it (`updates`), the policy counts as trained in these pipelines.

        Raises:
            StateMismatch: the statistics do not learn, the policy is trained, and a filter has no statistics.
        """
        if updates:
            stamp(policy, self._fingerprint)
        elif self.checks:
            check_statistics(policy, self.env_to_module)

    def act(self, policy: Any, observations: Any, episodes: Any, explore: bool) -> Acted:
        """Return the policy's actions for the newest stored observations, those for the environments, and its other
        outputs.

        Args:
            policy: the policy.
            observations: the newest stored observations, [N, ...].
            episodes: the ongoing episodes [N].
            explore: whether actions are sampled.
        """
        shared_data = self._shared_data
        batch = self.env_to_module.see(policy, {Columns.OBS: observations}, episodes, explore, shared_data)
        outputs = policy(batch, explore=explore)
        return self.module_to_env.act(policy, outputs, episodes, explore, shared_data)
