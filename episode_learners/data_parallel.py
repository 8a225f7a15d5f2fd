"""Data-parallel learning: several processes train copies of one policy, and average their gradients before each
step.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import distributed

from episode_learners.algorithms.algorithm import Algorithm
from episode_learners.algorithms.ppo import PPO
from episode_learners.multi_agent import MultiAgentAlgorithm, learners_of
from episodes.errors import InvalidArgument

__all__ = ["data_parallel"]


def data_parallel(algorithm: Algorithm | MultiAgentAlgorithm, group: distributed.ProcessGroup | None = None) -> None:
    """Make `algorithm` average its gradients with the gradients of its copies in other processes before each step, so
    that all processes train one policy.

    Each optimizer needs one all-reduce of its flat gradient per step. All copies get the weights of the first process.
    Every process must take the same number of gradient steps: give each update the same number of steps, and the same
    minibatch size. If gradients are not finite in one process, the update is rolled back in all of them.

    Args:
        algorithm: the algorithm of this process.
        group: the process group of `torch.distributed`; by default all processes.

    Raises:
        InvalidArgument: the process group is not initialized, or PPO's `max_kl` could end the update of one process
            earlier than those of others.
    """
    if not distributed.is_available() or not distributed.is_initialized():
        raise InvalidArgument("data_parallel: call torch.distributed.init_process_group first")
    for learner in learners_of(algorithm).values():
        if isinstance(learner, PPO) and learner.config.max_kl is not None:
            raise InvalidArgument("data_parallel: PPO's max_kl may end an update early in one process; set it to None")
    with torch.no_grad():
        for tensor in [*algorithm.parameters(), *algorithm.buffers()]:
            distributed.broadcast(tensor, src=0, group=group)
    size = distributed.get_world_size(group)
    for optimizer in algorithm.optimizers.values():
        optimizer.reduce = partial(_average, size=size, group=group)


def _average(gradient: torch.Tensor, size: int, group: distributed.ProcessGroup | None) -> None:
    """Replace a gradient tensor, in place, by its mean over all processes of `group`."""
    distributed.all_reduce(gradient, group=group)
    gradient.div_(size)
