"""Functions that give trainers the same access to a single algorithm and to a `MultiAgentAlgorithm`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connectors.acting import fingerprint_of
from connectors.actor import Actor
from connectors.fingerprint import check_fingerprint, stamp, stamped
from episode_learners.algorithms.algorithm import Algorithm
from episode_learners.multi_agent import MultiAgentAlgorithm, learners_of
from episode_learners.policies.policy import Policy
from episode_runners import MultiAgentEnvRunner
from episode_runners.multi_agent_stats import MultiAgentCollectStats
from episode_runners.stats import CollectStats
from episodes.data_types import ModuleID
from episodes.errors import StateMismatch

if TYPE_CHECKING:
    from episode_runners.remote.group_runner import GroupRunner
    from episode_runners.single_agent import SingleAgentEnvRunner

__all__ = [
    "fingerprints_of",
    "flat_metrics",
    "match_modules",
    "modules_of",
    "num_steps_of",
    "policies_of",
    "restore_fingerprints",
]


def policies_of(algorithm: Algorithm | MultiAgentAlgorithm) -> dict[Hashable, Policy]:
    """Return a dict with the policy of each module. The policy of a single algorithm has the key
    `DEFAULT_MODULE_ID`.
    """
    return {module_id: learner.policy for module_id, learner in learners_of(algorithm).items()}


def flat_metrics(metrics: Mapping[Any, Any]) -> dict[str, float]:
    """Flatten metrics of several modules to one dict with the names "<metric>/module/<module>". Metrics of a single
    algorithm keep their names.

    >>> flat_metrics({"a": {"loss": 1.0}, "b": {"loss": 2.0}})
    {'loss/module/a': 1.0, 'loss/module/b': 2.0}
    """
    flat: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            flat |= {f"{metric}/module/{name}": number for metric, number in value.items()}
        else:
            flat[name] = value
    return flat


def modules_of(algorithm: Algorithm | MultiAgentAlgorithm) -> list[Any]:
    """Return a list of [module id, whether the module is trained], for checkpoints. The list is empty for a single
    algorithm.
    """
    if not isinstance(algorithm, MultiAgentAlgorithm):
        return []
    return [[module_id, module_id in algorithm.train_ids] for module_id in algorithm.module_ids]


def match_modules(
    algorithm: Algorithm | MultiAgentAlgorithm,
    modules: Sequence[Any],
    module_fn: Callable[[Any], Algorithm | Policy | Actor] | None,
    path: Path,
) -> None:
    """Add and remove modules of `algorithm` until it has the modules of a checkpoint. `module_fn` creates missing
    modules.

    Raises:
        StateMismatch: a module is missing, and there is no `module_fn`.

    Args:
        algorithm: the algorithm. A single algorithm is not changed.
        modules: the modules in the checkpoint, as `modules_of` returns them.
        module_fn: function of a module id that returns an algorithm, policy or actor.
        path: the checkpoint, for errors.
    """
    if not isinstance(algorithm, MultiAgentAlgorithm):
        return
    stored = dict(modules)
    missing = [module_id for module_id in stored if module_id not in algorithm.module_ids]
    if missing and module_fn is None:
        raise StateMismatch(
            f"{path} has modules {missing}, which were added during the run: give the trainer module_fn, which makes "
            "the algorithm of a module"
        )
    for module_id in missing:
        algorithm.add(module_id, module_fn(module_id))  # type: ignore[misc]
    for module_id in set(algorithm.module_ids) - set(stored):
        algorithm.remove(module_id)
    algorithm.train_ids = tuple(module_id for module_id, is_trained in stored.items() if is_trained)


def fingerprints_of(algorithm: Algorithm | MultiAgentAlgorithm) -> list[Any]:
    """Return a list of [module id, fingerprint of the pipelines of the policy's training], for checkpoints."""
    return [[module_id, stamped(learner.policy)] for module_id, learner in learners_of(algorithm).items()]


def restore_fingerprints(
    algorithm: Algorithm | MultiAgentAlgorithm,
    fingerprints: Iterable[tuple[ModuleID, dict[str, Any] | None]],
    runner: SingleAgentEnvRunner | MultiAgentEnvRunner | GroupRunner | None,
) -> None:
    """Set the pipeline fingerprint of each policy (a record of the pipelines it was trained with) to the fingerprint in
    a checkpoint.

    Raises:
        StateMismatch: the runner has other pipelines. A `MultiAgentEnvRunner` checks its pipelines when agents come.
    """
    learners = learners_of(algorithm)
    for module_id, fingerprint in fingerprints:
        policy = learners[module_id].policy
        if runner is not None and not isinstance(runner, MultiAgentEnvRunner):
            check_fingerprint(policy, fingerprint_of(runner.env_to_module, runner.module_to_env), fingerprint)
        stamp(policy, fingerprint)


def num_steps_of(stats: CollectStats | MultiAgentCollectStats) -> int:
    """Return the number of environment steps of a sample, given its single-agent or multi-agent statistics."""
    return stats.num_env_steps if isinstance(stats, MultiAgentCollectStats) else stats.num_steps
