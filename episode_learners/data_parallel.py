"""Data-parallel learning: several processes train copies of one policy, and average their gradients before each
step.
"""

from __future__ import annotations

from torch import distributed

from episode_learners.algorithms.algorithm import Algorithm
from episode_learners.algorithms.learning_processes import LearningProcesses
from episode_learners.multi_agent import MultiAgentAlgorithm, learners_of
from episodes.errors import InvalidArgument

__all__ = ["data_parallel"]


def data_parallel(algorithm: Algorithm | MultiAgentAlgorithm, group: distributed.ProcessGroup | None = None) -> None:
    """Make `algorithm` average its gradients with the gradients of its copies in other processes before each step, so
    that all processes train one policy.

    Each optimizer needs one all-reduce of its flat gradient per step. All copies get the weights of the first process.
    Every process must take the same number of gradient steps: give each update the same number of steps, and the same
    minibatch size. If gradients are not finite in one process, the update is rolled back in all of them.

    Modules and optimizers that are added later join the others. Make each change (a module, an optimizer, a loaded
    state, frozen parameters, a learning rate) in all processes. Copies that differ raise `StateMismatch` at the next
    update, in all processes and before anything changes. Call `data_parallel` again to copy the weights and the state
    of the optimizers of the first process to the others.

    Args:
        algorithm: the algorithm of this process.
        group: the process group of `torch.distributed`; by default all processes.

    Raises:
        InvalidArgument: the process group is not initialized, or PPO's `max_kl` could end the update of one process
            earlier than those of others.
        StateMismatch: the algorithms of the processes have other modules or optimizers.
    """
    if not distributed.is_available() or not distributed.is_initialized():
        raise InvalidArgument("data_parallel: call torch.distributed.init_process_group first")
    processes = LearningProcesses(group)
    learners = learners_of(algorithm)
    processes.join(f"begin data_parallel with modules {list(learners)}", list(learners.values()))
    if isinstance(algorithm, MultiAgentAlgorithm):
        algorithm.processes = processes
