"""Evaluation inside RLlib acts on the filter statistics of training."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from episode_runners.rllib.pipelines import connector_in
from episodes.errors import StateMismatch

if TYPE_CHECKING:
    from episode_runners.rllib.pipelines import SharingPipelineInRLlib

__all__ = ["TrainingStatistics"]


class TrainingStatistics:
    """RLlib callback `on_evaluate_start` that gives the connectors of the env runners that evaluate the statistics of
    training.

    RLlib sends states only to remote env runners, and only states that the local one has received, which lack the
    newest iteration. Filters do not learn in an evaluation.
    """

    def __call__(self, *, algorithm: Any, **kwargs: object) -> None:
        """Send the statistics of training to all env runners that evaluate.

        Raises:
            StateMismatch: training has no statistics for the filters.
        """
        connector = _training_connector(algorithm)
        if connector is None or not connector.shared.has_filters:
            return
        state = _training_state(algorithm, connector)
        if not connector.shared.statistics(state):
            raise StateMismatch(
                "evaluate(): training has no statistics for the filters of the env-to-module pipeline, because it has "
                "sampled nothing; call train() first, or restore a checkpoint"
            )
        if algorithm.eval_env_runner_group is not None:
            algorithm.eval_env_runner_group.foreach_env_runner(
                lambda runner: runner.env_to_module_connector.set_state(state)
            )
        elif not algorithm.config.custom_evaluation_function:
            connector.set_state(state)
            algorithm.env_runner.evaluates_next = True


def _training_connector(algorithm: Any) -> Any:
    """Return the env-to-module connector of this library that merges the statistics of training, or None."""
    runner = algorithm.env_runner
    if runner is not None:
        return runner.env_to_module_connector
    pipeline = algorithm.env_to_module_connector
    return None if pipeline is None else connector_in(pipeline)


def _training_state(algorithm: Any, connector: SharingPipelineInRLlib) -> dict[Any, Any]:
    """Return the state of the training's env-to-module pipeline with the newest statistics.

    An evaluation in parallel to training uses the statistics that the local env runner has. If it has none, it waits
    for the first ones of remote env runners.
    """
    group, config = algorithm.env_runner_group, algorithm.config
    is_parallel = config.evaluation_parallel_to_training
    state = connector.shared.merged_state([])
    if is_parallel and connector.shared.statistics(state):
        return state
    give_up = time.monotonic() + (config.evaluation_sample_timeout_s if is_parallel else 0.0)
    while True:
        if group.num_healthy_remote_workers():
            states = group.foreach_env_runner(
                lambda runner: runner.env_to_module_connector.get_state(),
                local_env_runner=False,
                timeout_seconds=config.sync_filters_on_rollout_workers_timeout_s,
            )
            state = connector.shared.merged_state(states)
        if connector.shared.statistics(state) or time.monotonic() > give_up:
            return state
        time.sleep(0.02)
        state = connector.shared.merged_state([])
