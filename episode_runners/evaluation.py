"""`evaluate`: measures the returns of a policy in whole episodes, without learning from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from connectors.actor import Actor
from connectors.policy import module_of
from episode_runners.dropped_envs import makes_envs
from episode_runners.multi_agent import MultiAgentEnvRunner
from episode_runners.multi_agent_stats import mean_returns
from episode_runners.remote.group_runner import GroupRunner
from episode_runners.runner import EnvRunner, copy_pipeline
from episode_runners.seeds import independent_seed
from episode_runners.single_agent import SingleAgentEnvRunner
from episode_runners.stats import spread_of
from episodes.data_types import ModuleID
from episodes.errors import InvalidArgument
from episodes.tracks.validation import checked_count, checked_seed

if TYPE_CHECKING:
    from connectors.policy import Policy

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of `evaluate`: whole episodes of a policy, with the return and length of each.

    Attributes:
        episodes: an `EpisodePack`, or a list of `MultiAgentEpisode`s.
        returns: undiscounted returns, float [n]; with several agents, summed over them.
        lengths: steps of the episodes, int [n]; with several agents, env steps.
        seconds: duration of the evaluation.
        agent_returns: with several agents, the returns of each agent.
        module_returns: with several agents, the returns of the agents of each module.
    """

    episodes: Any
    returns: np.ndarray
    lengths: np.ndarray
    seconds: float
    agent_returns: Mapping[Any, Sequence[float]] = field(default_factory=dict)
    module_returns: Mapping[Any, Sequence[float]] = field(default_factory=dict)

    @property
    def num_episodes(self) -> int:
        """Number of evaluated episodes."""
        return len(self.returns)

    @property
    def mean_return(self) -> float:
        """Mean of the episodes' returns."""
        return float(self.returns.mean())

    @property
    def std_return(self) -> float:
        """Standard deviation of the returns (divided by n, not n - 1).
        Divide by sqrt(n) for the standard error of the mean.
        """
        return float(self.returns.std())

    @property
    def mean_length(self) -> float:
        """Mean number of steps of the episodes."""
        return float(self.lengths.mean())

    def as_dict(self) -> dict[str, float]:
        """Return the statistics as a dict of numbers for a logger."""
        numbers = {
            "num_episodes": float(self.num_episodes),
            **spread_of("return", self.returns),
            **spread_of("length", self.lengths),
            "seconds": self.seconds,
        }
        return numbers | mean_returns(self.agent_returns, self.module_returns)

    def __repr__(self) -> str:
        spread = f"{self.mean_return:g} +- {self.std_return:g}"
        return f"Evaluation({self.num_episodes} episodes, return {spread}, length {self.mean_length:g})"


def evaluate(
    env: Any,
    policy: Policy | Actor | Mapping[ModuleID, Policy | Actor] | None = None,
    *,
    num_episodes: int = 10,
    num_envs: int | None = None,
    explore: bool = False,
    seed: int | None = None,
    hooks: Sequence[Any] = (),
    agent_to_module_mapping_fn: Callable[[Any, Any], Any] | None = None,
    check_pipeline: bool = True,
) -> Evaluation:
    """Run a policy for `num_episodes` whole episodes, and return them with their returns. The policy does not change.

    The pipelines are copies with their current state, whose statistics do not change. A `torch.nn.Module` is in
    evaluation mode meanwhile. Torch's global random state does not change. Each environment contributes its first
    episodes, however long they are. Taking the first episodes that end in any environment would favour short episodes.

    Args:
        env: a runner, or any environment argument of a runner (an id, a callable, an environment). A runner's policy
            and pipelines are evaluated in new environments, created like the runner's environments. Later changes of
            the runner's environments, such as `runner.env.set_attr`, do not reach them. An environment object is used
            directly and left open. `reset(options=)` is not passed on: use a wrapper.
        policy: an actor, or a policy that acts through the default pipelines. With several agents a mapping
            `{module_id: policy or actor}`. None if `env` is a runner.
        num_episodes: exact number of episodes.
        num_envs: number of environments, at most `num_episodes`; by default the runner's number, or 1.
        explore: sample actions as in training, instead of taking the most likely ones.
        seed: the same seed gives the same episodes, and other seeds give independent ones, also `seed + 1`. The
            environments get `independent_seed(seed)`, since Gymnasium seeds environment i with the seed plus i.
        hooks: hooks or callbacks for the evaluation.
        agent_to_module_mapping_fn: with several agents, as in `MultiAgentEnvRunner`.
        check_pipeline: reject a policy that was trained in other pipelines. Not used if `env` is a runner.

    Raises:
        StateMismatch: the policy was trained in other pipelines, or with filters that have no statistics here.
        InvalidArgument: `env` is a runner whose environments cannot be created again, or both a runner and a policy are
            given, or neither a runner nor a policy.

    >>> from episode_learners import MLPPolicy
    >>> import gymnasium as gym
    >>> env = gym.make("CartPole-v1")
    >>> result = evaluate("CartPole-v1", MLPPolicy(env.observation_space, env.action_space), num_episodes=4, seed=0)
    >>> result.num_episodes, result.returns.tolist() == result.lengths.tolist()  # one point a step
    (4, True)
    """
    num_episodes = checked_count("num_episodes", num_episodes)
    seed = checked_seed(seed)
    seed = None if seed is None else independent_seed(seed)
    if isinstance(env, (EnvRunner, GroupRunner)):
        if not all(argument is None for argument in (policy, agent_to_module_mapping_fn)):
            raise InvalidArgument(
                "evaluate(runner) uses the policy and pipelines of the runner; to use others, give an environment "
                "instead of the runner"
            )
        runner = env.for_evaluation(min(num_envs or env.num_envs, num_episodes), seed=seed, hooks=hooks)
        return _run_evaluation(runner, num_episodes, explore, closes=True)
    options = {
        "num_envs": None if num_envs is None else min(num_envs, num_episodes),
        "hooks": hooks,
        "seed": seed,
        "update_stats": False,
        "check_pipeline": check_pipeline,
    }
    if isinstance(policy, Mapping):
        acting: Any = {module_id: _with_copied_pipelines(module_policy) for module_id, module_policy in policy.items()}
    else:
        acting = _with_copied_pipelines(policy)
    if isinstance(policy, Mapping) or agent_to_module_mapping_fn is not None:
        runner = MultiAgentEnvRunner(env, acting, agent_to_module_mapping_fn=agent_to_module_mapping_fn, **options)
    else:
        runner = SingleAgentEnvRunner(env, acting, **options)
    return _run_evaluation(runner, num_episodes, explore, closes=isinstance(env, str) or makes_envs(env))


def _with_copied_pipelines(policy: Policy | Actor | None) -> Any:
    """Return an actor with the same policy and copied pipelines, whose statistics can change separately.
    Plain policies stay unchanged.
    """
    if not isinstance(policy, Actor):
        return policy
    return Actor.of_parts(policy.policy, copy_pipeline(policy.env_to_module), copy_pipeline(policy.module_to_env))


def _run_evaluation(runner: Any, num_episodes: int, explore: bool, *, closes: bool) -> Evaluation:
    """Sample `num_episodes` whole episodes with the runner's policies in evaluation mode,
    and return them as an `Evaluation`.

    Args:
        runner: a single-agent or multi-agent runner.
        num_episodes: number of episodes.
        explore: whether actions are sampled as in training.
        closes: whether the runner is closed afterwards.
    """
    several = isinstance(runner, MultiAgentEnvRunner)
    try:
        with _evaluation_mode(list((runner.policies or {}).values()) if several else [runner.policy]):
            episodes = runner.sample(num_episodes=num_episodes, explore=explore)
    finally:
        if closes:
            runner.close()
    if not several:
        return Evaluation(episodes, episodes.returns(), episodes.lengths, runner.stats.seconds)
    returns = np.array([episode.get_return() for episode in episodes])
    lengths = np.array([len(episode) for episode in episodes])
    stats = runner.stats
    return Evaluation(episodes, returns, lengths, stats.seconds, stats.agent_returns, stats.module_returns)


@contextmanager
def _evaluation_mode(policies: Sequence[Any]) -> Iterator[None]:
    """Context manager that sets policies to evaluation mode,
    and restores their mode and torch's random state at its end.
    """
    modules = [part for policy in policies if isinstance(policy, torch.nn.Module) for part in policy.modules()]
    were_training = [module.training for module in modules]
    devices = {module_of(policy).device for policy in policies}
    try:
        with torch.random.fork_rng([device for device in devices if device.type == "cuda"]):
            for module in modules:
                module.training = False
            yield
    finally:
        for module, was_training in zip(modules, were_training, strict=True):
            module.training = was_training
