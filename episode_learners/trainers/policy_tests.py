"""Tests of the policies of a training run, in the runner's environments or in others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from episode_runners import MultiAgentEnvRunner, evaluate
from episode_runners.evaluation import Evaluation
from episodes.errors import InvalidArgument

if TYPE_CHECKING:
    from episode_runners.remote.group_runner import GroupRunner
    from episode_runners.single_agent import SingleAgentEnvRunner

__all__ = ["PolicyTests", "evaluate_elsewhere"]


class PolicyTests:
    """Tests of the policies of a training run: how they are made, the last one, and the policies of the best one.

    Args:
        env: an environment for tests, as `evaluate` takes it, instead of the runner's.
        evaluate_fn: function of the number of episodes and a seed that returns the `Evaluation` of a test, instead of
            episodes of the runner's policy.

    Attributes:
        last: Result of the last test of this process, or None.
        best: State of the policies that had the best test of the run, or None.

    Raises:
        InvalidArgument: both arguments are given.
    """

    def __init__(self, env: object = None, evaluate_fn: Callable[[int, int], Evaluation] | None = None) -> None:
        if env is not None and evaluate_fn is not None:
            raise InvalidArgument("test_env and evaluate_fn exclude each other: give one of them")
        self.env, self.evaluate_fn = env, evaluate_fn
        self.last: Evaluation | None = None
        self.best: dict[str, Any] | None = None

    def evaluate(
        self,
        runner: SingleAgentEnvRunner | MultiAgentEnvRunner | GroupRunner | None,
        num_episodes: int,
        seed: int,
    ) -> Evaluation | None:
        """Evaluate the policies of a runner on `num_episodes` complete episodes, and return their statistics. Return
        None if there is no environment.
        """
        if self.evaluate_fn is not None:
            return self.evaluate_fn(num_episodes, seed)
        if runner is None:
            return None
        if self.env is not None:
            return evaluate_elsewhere(runner, self.env, num_episodes, seed)
        return evaluate(runner, num_episodes=num_episodes, seed=seed)


def evaluate_elsewhere(
    runner: SingleAgentEnvRunner | MultiAgentEnvRunner | GroupRunner,
    env: Any,
    num_episodes: int,
    seed: int,
    num_envs: int | None = None,
) -> Evaluation:
    """Evaluate the policies of a runner, with their pipelines, in another environment `env`, and return the statistics
    of the episodes.

    Args:
        runner: the runner.
        env: the environment, as `evaluate` takes it.
        num_episodes: number of complete episodes.
        seed: seed of the episodes.
        num_envs: number of parallel environments; by default that of the runner.
    """
    options: Any = {"num_episodes": num_episodes, "seed": seed, "num_envs": num_envs or runner.num_envs}
    if isinstance(runner, MultiAgentEnvRunner):
        acting, mapping_fn = {**(runner.policies or {}), **runner.actors}, runner.agent_to_module_mapping_fn
        return evaluate(env, acting, agent_to_module_mapping_fn=mapping_fn, **options)
    return evaluate(env, runner.actor, **options)
