"""What happens in the actor: a runner that gets weights and statistics with each request, and answers with a sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from episode_runners.multi_agent import MultiAgentEnvRunner
from episodes.errors import InvalidArgument

__all__ = ["RunnerSample"]

MakeRunner = Callable[[int, int], Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of a runner's `sample`."""

    num_timesteps: int | None
    num_episodes: int | None
    explore: bool
    random_actions: bool


@dataclass(frozen=True, slots=True)
class RunnerSample:
    """What one runner has sampled in one call.

    Attributes:
        index: of the runner in its group.
        data: what its `sample` gave, an `EpisodePack` or a list of `MultiAgentEpisode`s. Its arrays are read-only and
            lie in shared memory, which stays in use while any of them is held (`data.retained_nbytes`): what is kept
            beyond the next sample is better `data.copied()`. Replay buffers and batches copy by themselves.
        stats: of that call.
        policy_version: of the weights that acted; None where the group was never given any.
    """

    index: int
    data: Any
    stats: Any
    policy_version: int | None


@dataclass(frozen=True, slots=True)
class SampleReply:
    """A sample, and what the pieces of the runner's env-to-module pipeline have learned; None where none learns."""

    sample: RunnerSample
    statistics: dict[Any, Any] | None


class RunnerActor:
    """The class of the actors: one runner."""

    def __init__(self, make_runner: MakeRunner, index: int, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.index, self.seed = index, seed
        self.runner = make_runner(index, seed)
        self.runner.worker_index = index + 1
        self.version: int | None = None
        self._has_sampled = False

    def sample(self, *arguments: Any) -> SampleReply:
        """Sample as `_sample` does. An error that cannot be unpickled is raised as a RuntimeError with its message."""
        try:
            return self._sample(*arguments)
        except Exception as error:
            if _can_be_pickled(error):
                raise
            raise RuntimeError(f"{type(error).__qualname__}: {error}") from error

    def _sample(
        self,
        asked: Asked,
        weights: Any,
        version: int | None,
        merged: list[Any] | None,
        restored: Any,
        anew: int | None,
    ) -> SampleReply:
        """Sample with these weights and statistics, where they are given.

        Args:
            anew: begin new episodes first, whose seeds follow from this number and the runner's own.
            merged: statistics of all runners, of which everyone makes the same one.
            restored: of the runner in whose place this one came, as they are.
        """
        force_reset = False
        if (merged is not None or restored is not None) and not self._has_sampled:
            force_reset = self._meet_modules()
        if anew is not None:
            self._begin_anew(anew)
        if merged is not None:
            restored = self.runner.env_to_module.merge_states(merged)
        if restored is not None:
            self.runner.env_to_module.set_state(restored)
        if weights is not None:
            self._load(weights, version)
        data = self.runner.sample(
            num_timesteps=asked.num_timesteps,
            num_episodes=asked.num_episodes,
            explore=asked.explore,
            random_actions=asked.random_actions,
            force_reset=force_reset,
        )
        self._has_sampled = True
        return SampleReply(RunnerSample(self.index, data, self.runner.stats, self.version), self._statistics())

    def _begin_anew(self, number: int) -> None:
        torch.manual_seed(int(np.random.SeedSequence((self.seed, number)).generate_state(1)[0]))
        counts = {"seed": self.seed, self.runner.steps_counted: number}
        self.runner.set_state(self.runner.get_state() | counts)

    def _meet_modules(self) -> bool:
        """Let a multi-agent runner make the pipelines of its modules, which it does at its first step."""
        if not isinstance(self.runner, MultiAgentEnvRunner):
            return False
        self.runner.sample(num_timesteps=1, explore=False)
        return True

    def _load(self, weights: Any, version: int | None) -> None:
        policies = getattr(self.runner, "policies", None)
        if policies is None:
            _load(self.runner.policy, weights)
        else:
            for module_id, own in weights.items():
                if module_id not in policies:
                    raise InvalidArgument(f"weights of module {module_id!r}: the runner has {list(policies)}")
                _load(policies[module_id], own)
        self.version = version
        if hasattr(self.runner, "policy_version"):
            self.runner.policy_version = version

    def _statistics(self) -> dict[Any, Any] | None:
        pipeline = self.runner.env_to_module
        if not hasattr(pipeline, "merge_states"):
            return None
        state = pipeline.get_state()
        return state if has_content(state) else None

    def merged(self, states: list[Any]) -> Any:
        """One state of the env-to-module pipeline out of those of several runners."""
        if not self._has_sampled:
            self._meet_modules()
        return self.runner.env_to_module.merge_states(states)

    def close(self) -> None:
        """Close the runner."""
        self.runner.close()


def as_arrays(weights: Any) -> Any:
    """State dicts, nested ones too, with an array for each tensor that numpy has a dtype for; modules as theirs."""
    if isinstance(weights, torch.nn.Module):
        weights = weights.state_dict()
    if isinstance(weights, Mapping):
        return {name: as_arrays(own) for name, own in weights.items()}
    if isinstance(weights, torch.Tensor):
        tensor = weights.detach().cpu()
        return tensor if tensor.dtype is torch.bfloat16 else tensor.numpy()
    return weights


def _as_tensors(weights: Any) -> Any:
    if isinstance(weights, Mapping):
        return {name: _as_tensors(own) for name, own in weights.items()}
    return torch.tensor(weights) if isinstance(weights, np.ndarray) else weights


def _load(policy: Any, weights: Any) -> None:
    if not hasattr(policy, "load_state_dict"):
        raise InvalidArgument(f"set_weights: {type(policy).__name__} has no load_state_dict; give it one")
    policy.load_state_dict(_as_tensors(weights))


def has_content(state: Any) -> bool:
    """False for dicts of nothing but empty ones."""
    return any(map(has_content, state.values())) if isinstance(state, Mapping) else True


def _can_be_pickled(error: Exception) -> bool:
    """Return True if the caller of an actor can unpickle the error."""
    from ray.cloudpickle import cloudpickle

    try:
        return isinstance(cloudpickle.loads(cloudpickle.dumps(error)), Exception)
    except Exception:
        return False
