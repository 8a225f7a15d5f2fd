"""`evaluate`: how good a policy is, measured on whole episodes, and nothing learned from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from connectors.actor import Actor
from connectors.policy import module_of
from episode_runners.multi_agent import MultiAgentEnvRunner
from episode_runners.remote.group_runner import GroupRunner
from episode_runners.runner import EnvRunner, copied
from episode_runners.seeds import independent_seed
from episode_runners.single_agent import SingleAgentEnvRunner
from episode_runners.stats import spread_of
from episodes.errors import InvalidArgument
from episodes.tracks.validation import checked_count, checked_seed

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The whole episodes of an evaluation, with their returns and lengths in the same order."""

    episodes: Any  # an EpisodePack, or a list of MultiAgentEpisodes
    returns: np.ndarray  # [n] undiscounted; several agents' together
    lengths: np.ndarray  # [n] steps; with several agents, env steps
    seconds: float
    agent_returns: Mapping[Any, Sequence[float]] = field(default_factory=dict)  # with several agents, those of each
    module_returns: Mapping[Any, Sequence[float]] = field(default_factory=dict)  # likewise, of each module's agents

    @property
    def num_episodes(self) -> int:
        """How many episodes there are."""
        return len(self.returns)

    @property
    def mean_return(self) -> float:
        """The mean of the returns."""
        return float(self.returns.mean())

    @property
    def std_return(self) -> float:
        """The standard deviation of the returns (over n); the mean's own error is this over the root of n."""
        return float(self.returns.std())

    @property
    def mean_length(self) -> float:
        """The mean of the lengths."""
        return float(self.lengths.mean())

    def as_dict(self) -> dict[str, float]:
        """The numbers that a logger takes."""
        numbers = {
            "num_episodes": float(self.num_episodes),
            **spread_of("return", self.returns),
            **spread_of("length", self.lengths),
            "seconds": self.seconds,
        }
        for kind, returns in (("agent", self.agent_returns), ("module", self.module_returns)):
            numbers |= {f"mean_return/{kind}/{name}": float(np.mean(own)) for name, own in returns.items()}
        return numbers

    def __repr__(self) -> str:
        spread = f"{self.mean_return:g} +- {self.std_return:g}"
        return f"Evaluation({self.num_episodes} episodes, return {spread}, length {self.mean_length:g})"


def evaluate(
    env: Any,
    policy: Any = None,
    *,
    num_episodes: int = 10,
    num_envs: int | None = None,
    explore: bool = False,
    seed: int | None = None,
    hooks: Sequence[Any] = (),
    agent_to_module_mapping_fn: Callable[[Any, Any], Any] | None = None,
    check_pipeline: bool = True,
) -> Evaluation:
    """Whole episodes of a policy in environments of their own, and their returns; nothing is learned or changed.

    The pipelines are copies with the state that they have now, and their statistics do not change. A
    `torch.nn.Module` is in evaluation mode meanwhile; random numbers of torch that others
    draw stay the same. Each environment gives its share of the episodes, its first ones, however long they are: the
    first so many that end anywhere would be the short ones.

    Args:
        env: a runner, whose policy and pipelines are evaluated in environments made as its own were; or what a runner
            takes as environment. One that is given as an object is used itself and left open.
        policy: an actor, or a policy that acts through the default pipelines; with several agents a mapping
            `{module_id: policy or actor}`; None for a runner's.
        num_episodes: exactly so many.
        num_envs: how many environments; a runner's number, or 1, and at most `num_episodes`, where they are made here.
        explore: draw actions as in training, instead of the likeliest ones.
        seed: the same seed gives the same episodes, and other seeds give independent ones, also `seed + 1`. The
            environments get `independent_seed(seed)`, since Gymnasium seeds environment i with the seed plus i.
        hooks: see `Hook`; of the evaluation alone.
        agent_to_module_mapping_fn: as a runner takes it, with several agents.
        check_pipeline: refuse a policy that was trained in other pipelines.

    Raises:
        StateMismatch: the policy was trained in other pipelines, or its filter has no statistics.
        InvalidArgument: a runner whose environments cannot be made again, or a runner and something that it has.

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
        if not all(given is None for given in (policy, agent_to_module_mapping_fn)):
            raise InvalidArgument(
                "evaluate(runner) takes the runner's policy and pipelines: give an environment with other ones"
            )
        runner = env.for_evaluation(min(num_envs or env.num_envs, num_episodes), seed=seed, hooks=hooks)
        return _evaluated(runner, num_episodes, explore, closes=True)
    options = {
        "num_envs": None if num_envs is None else min(num_envs, num_episodes),
        "hooks": hooks,
        "seed": seed,
        "update_stats": False,
        "check_pipeline": check_pipeline,
    }
    if isinstance(policy, Mapping):
        policy = {module_id: _with_copied_pipelines(one) for module_id, one in policy.items()}
    else:
        policy = _with_copied_pipelines(policy)
    if isinstance(policy, Mapping) or agent_to_module_mapping_fn is not None:
        runner = MultiAgentEnvRunner(env, policy, agent_to_module_mapping_fn=agent_to_module_mapping_fn, **options)
    else:
        runner = SingleAgentEnvRunner(env, policy, **options)
    return _evaluated(runner, num_episodes, explore, closes=isinstance(env, (str, type)) or not hasattr(env, "step"))


def _with_copied_pipelines(policy: Any) -> Any:
    """Return the policy itself, or an actor with copies of the pipelines."""
    if not isinstance(policy, Actor):
        return policy
    return Actor.of_parts(policy.policy, copied(policy.env_to_module), copied(policy.module_to_env))


def _evaluated(runner: Any, num_episodes: int, explore: bool, *, closes: bool) -> Evaluation:
    several = isinstance(runner, MultiAgentEnvRunner)
    try:
        with _undisturbed(list((runner.policies or {}).values()) if several else [runner.policy]):
            episodes = runner.sample(num_episodes=num_episodes, explore=explore)
    finally:
        if closes:
            runner.close()
    if not several:
        return Evaluation(episodes, episodes.returns(), episodes.lengths, runner.stats.seconds)
    returns = np.array([episode.get_return(include_pending=True) for episode in episodes])
    lengths = np.array([len(episode) for episode in episodes])
    stats = runner.stats
    return Evaluation(episodes, returns, lengths, stats.seconds, stats.agent_returns, stats.module_returns)


@contextmanager
def _undisturbed(policies: Sequence[Any]) -> Iterator[None]:
    """Policies in evaluation mode, and afterwards in the mode that they were in; torch's random numbers likewise."""
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
