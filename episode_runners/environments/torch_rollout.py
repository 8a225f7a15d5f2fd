"""`fill_rollout`: samples steps from a torch simulator without leaving its device."""

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
    """Sample T steps of a policy in each of N environments, and write them to `rollout` [N, T + 1], which is returned.

    Episodes continue from call to call. The first call resets the environments. Rows are copied on the device. The host
    waits for the device once per step, to see if episodes ended. Values of last observations are computed too.
    `rollout_to_episodes` converts the rollout to episodes, with `BlockEdge(num_envs, "SameStep")`.

    Args:
        env: the vector environment of the simulator.
        policy: a policy with a distribution, and with outputs "action_dist_inputs" and "vf_preds" for `{"obs": [N,
            D]}`. It cannot be recurrent.
        rollout: the rollout to fill, from `RolloutBuffer.start_rollout`.
        to_simulator: function from the policy's actions to the simulator's, for example to clip them.

    Raises:
        InvalidArgument: the rollout has another number of environments, or the policy has no distribution.
    """
    if rollout.shape[0] != env.num_envs:
        raise InvalidArgument(
            f"the rollout has {rollout.shape[0]} environments, {env} has {env.num_envs}; give one with {env.num_envs}"
        )
    distribution, final = distribution_of(policy), final_observations(rollout)
    columns: Any = rollout
    if distribution is None:
        raise InvalidArgument(
            f"{type(policy).__name__} has no distribution; define this attribute, an ActionDistribution"
        )
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
                observations = env.last_observations(extras, envs)
                final.append(t, envs, columns["obs"][envs, t] if observations is None else observations)
        columns["obs"][:, last] = env.observations
        columns["value"][:, last] = policy.compute_values({Columns.OBS: columns["obs"][:, last]})
        if len(final):
            final.set_value(policy.compute_values({Columns.OBS: final.obs}))
    return rollout
