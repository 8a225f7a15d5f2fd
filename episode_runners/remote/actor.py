"""`RunnerActor`: Ray actor that contains a runner, receives weights with requests, and replies with episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from episode_runners.multi_agent import MultiAgentEnvRunner
from episode_runners.seeds import independent_seed
from episodes.errors import InvalidArgument

__all__ = ["RunnerSample"]

MakeRunner = Callable[[int, int], Any]


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """Arguments of `sample` for one remote runner."""

    num_timesteps: int | None
    num_episodes: int | None
    explore: bool
    random_actions: bool


@dataclass(frozen=True, slots=True)
class RunnerSample:
    """Result of one call of `sample` of one remote runner: its episodes, statistics and policy version.

    Attributes:
        index: index of the runner in its group.
        data: an `EpisodePack` or a list of `MultiAgentEpisode`s. Its arrays are read-only views of shared memory, which
            stays in use while any of them exists (`data.retained_nbytes`). Use `data.copied()` for data that is kept
            beyond the next sample. Replay buffers and batches copy anyway.
        stats: the runner's statistics of this call.
        policy_version: policy version of the weights that acted; None if the group was never given weights.
    """

    index: int
    data: Any
    stats: Any
    policy_version: int | None


@dataclass(frozen=True, slots=True)
class SampleReply:
    """Reply of a remote runner to a request: the sample, and the pipelines' statistics (None without statistics)."""

    sample: RunnerSample
    statistics: dict[Any, Any] | None


class RunnerActor:
    """Ray actor that contains one runner and samples on request."""

    def __init__(self, make_runner: MakeRunner, index: int, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.index, self.seed = index, seed
        self.runner = make_runner(index, seed)
        self.runner.worker_index = index + 1
        self.version: int | None = None
        self._has_sampled = False

    def sample(self, *arguments: Any) -> SampleReply:
        """Handle a sample request, and return the reply. Errors that cannot be pickled are raised as RuntimeError."""
        try:
            return self._sample(*arguments)
        except Exception as error:
            if _can_be_pickled(error):
                raise
            raise RuntimeError(f"{type(error).__qualname__}: {error}") from error

    def _sample(
        self,
        request: SampleRequest,
        weights: Mapping[str, Any] | None,
        version: int | None,
        merged: list[Any] | None,
        restored: dict[str, Any] | None,
        seed_number: int | None,
    ) -> SampleReply:
        """Set the given weights and statistics, sample as `request` specifies, and return the reply.

        Args:
            request: arguments of the runner's `sample`.
            weights: nested state dicts of arrays.
            version: policy version of the weights.
            merged: statistics of all runners, which every runner merges in the same way.
            restored: statistics of the runner that this one replaced; they are set as they are.
            seed_number: start new episodes first, with seeds from this number and the runner's own seed.
        """
        force_reset = False
        if (merged is not None or restored is not None) and not self._has_sampled:
            force_reset = self._create_module_pipelines()
        if seed_number is not None:
            self._make_reproducible(seed_number)
        if merged is not None:
            restored = self.runner.env_to_module.merge_states(merged)
        if restored is not None:
            self.runner.env_to_module.set_state(restored)
        if weights is not None:
            self._load(weights, version)
        data = self.runner.sample(**asdict(request), force_reset=force_reset)
        self._has_sampled = True
        return SampleReply(RunnerSample(self.index, data, self.runner.stats, self.version), self._statistics())

    def _make_reproducible(self, number: int) -> None:
        """Make the next results reproducible: seed torch and the runner by the runner's seed and `number`.

        The runner's count of steps is set to `number`, from which the runner derives seeds.
        """
        torch.manual_seed(independent_seed(self.seed, number))
        counts = {"seed": self.seed, self.runner.steps_counted: number}
        self.runner.set_state(self.runner.get_state() | counts)

    def _create_module_pipelines(self) -> bool:
        """Sample one step with a multi-agent runner, which creates the pipelines, and return True. Return False for a
        single-agent runner.
        """
        if not isinstance(self.runner, MultiAgentEnvRunner):
            return False
        update_stats, self.runner.update_stats = self.runner.update_stats, "always"  # the caller replaces them
        self.runner.sample(num_timesteps=1, explore=False)
        self.runner.update_stats = update_stats
        return True

    def _load(self, weights: Mapping[str, Any], version: int | None) -> None:
        """Load weights into the runner's policy or policies, and set their version.

        Raises:
            InvalidArgument: the runner has no such module.
        """
        policies = getattr(self.runner, "policies", None)
        if policies is None:
            _load_into(self.runner.policy, weights)
        else:
            for module_id, part in weights.items():
                if module_id not in policies:
                    raise InvalidArgument(f"weights of module {module_id!r}: the runner has {list(policies)}")
                _load_into(policies[module_id], part)
        self.version = version
        if hasattr(self.runner, "policy_version"):
            self.runner.policy_version = version

    def _statistics(self) -> dict[Any, Any] | None:
        """Return the statistics of the runner's pipeline, or None if it has none."""
        pipeline = self.runner.env_to_module
        if not hasattr(pipeline, "merge_states"):
            return None
        state = pipeline.get_state()
        return state if has_content(state) else None

    def merged(self, states: list[Any]) -> Any:
        """Merge the statistics of several runners' env-to-module pipelines, and return the result."""
        if not self._has_sampled:
            self._create_module_pipelines()
        return self.runner.env_to_module.merge_states(states)

    def close(self) -> None:
        """Close the contained runner."""
        self.runner.close()


def as_arrays(weights: object) -> Any:
    """Return the nested state dicts of policies with numpy arrays in place of
    tensors. bfloat16 tensors stay tensors.
    """
    if isinstance(weights, torch.nn.Module):
        weights = weights.state_dict()
    if isinstance(weights, Mapping):
        return {name: as_arrays(part) for name, part in weights.items()}
    if isinstance(weights, torch.Tensor):
        tensor = weights.detach().cpu()
        return tensor if tensor.dtype is torch.bfloat16 else tensor.numpy()
    return weights


def _as_tensors(weights: object) -> Any:
    """Return weights with arrays converted to new tensors."""
    if isinstance(weights, Mapping):
        return {name: _as_tensors(part) for name, part in weights.items()}
    return torch.tensor(weights, device="cpu") if isinstance(weights, np.ndarray) else weights


def _load_into(policy: Any, weights: Mapping[str, Any]) -> None:
    """Load weights into a policy. Raise `InvalidArgument` if it has no `load_state_dict`."""
    if not hasattr(policy, "load_state_dict"):
        raise InvalidArgument(f"set_weights: {type(policy).__name__} has no load_state_dict; define this method")
    policy.load_state_dict(_as_tensors(weights))


def has_content(state: object) -> bool:
    """Return False if a nested state consists only of empty dicts."""
    return any(map(has_content, state.values())) if isinstance(state, Mapping) else True


def _can_be_pickled(error: Exception) -> bool:
    """Return True if an error can be pickled and unpickled."""
    from ray.cloudpickle import cloudpickle

    try:
        return isinstance(cloudpickle.loads(cloudpickle.dumps(error)), Exception)
    except Exception:
        return False
