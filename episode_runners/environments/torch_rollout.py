"""`fill_rollout`: a rollout of a simulator that lives in torch, which never leaves its device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from connectors.policy import distribution_of
from connectors.rollout.buffer import final_observations
from episode_runners.environments.torch_simulator import TorchVectorEnv, outside_inference
from episodes.columns import Columns
from episodes.errors import InvalidArgument

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["fill_rollout"]


def fill_rollout(
    env: TorchVectorEnv,
    policy: Any,
    rollout: TensorDict,
    *,
    to_simulator: Callable[[Tensor], Tensor] | None = None,
) -> TensorDict:
    """The rollout [N, T + 1] of `RolloutBuffer.start_rollout`, filled with T steps; values of last observations too.

    Episodes go on from call to call; the first one resets the environments. Rows are copied on the device, and the host
    waits for it once a step, to see whether episodes ended. `rollout_to_episodes` makes episodes of it afterwards, with
    an edge of `BlockEdge(num_envs, "SameStep")`.

    Args:
        policy: with a distribution, "action_dist_inputs" and "vf_preds" of `{"obs": [N, D]}`; without a memory.
        to_simulator: from the policy's actions to the simulator's, brought into bounds for example.

    Raises:
        InvalidArgument: a rollout of another number of environments, or a policy without a distribution.
    """
    if rollout.shape[0] != env.num_envs:
        raise InvalidArgument(f"a rollout of {rollout.shape[0]} environments for {env}")
    distribution, final = distribution_of(policy), final_observations(rollout)
    columns: Any = rollout  # of tensors
    if distribution is None:
        raise InvalidArgument(f"{type(policy).__name__} has no distribution to sample its actions from")
    if env.observations is None:
        env.reset()
    last = rollout.shape[1] - 1
    with outside_inference():
        for t in range(last):
            columns["obs"][:, t] = env.observations
            outputs = policy({Columns.OBS: columns["obs"][:, t]})
            inputs = outputs[Columns.ACTION_DIST_INPUTS]
            actions = distribution.sample(inputs)
            columns["action"][:, t] = actions.reshape(env.num_envs, -1)
            columns["sample_log_prob"][:, t] = distribution.log_prob(inputs, actions)
            columns["value"][:, t] = outputs[Columns.VF_PREDS]
            row = env.step_tensors(actions if to_simulator is None else to_simulator(actions))
            _, columns["reward"][:, t], terminated, truncated, extras = row
            done = terminated | truncated
            columns["terminated"][:, t], columns["truncated"][:, t], columns["done"][:, t] = terminated, truncated, done
            if done.any():
                envs = done.nonzero().squeeze(1)
                seen = env.last_observations(extras, envs)
                final.append(t, envs, columns["obs"][envs, t] if seen is None else seen)
        columns["obs"][:, last] = env.observations
        columns["value"][:, last] = policy.compute_values({Columns.OBS: columns["obs"][:, last]})
        if len(final):
            final.set_value(policy.compute_values({Columns.OBS: final.obs}))
    return rollout
