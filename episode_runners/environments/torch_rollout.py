"""`fill_rollout`: samples steps from a torch simulator without leaving its device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from connectors.policy import distribution_of, module_of
from connectors.rollout.buffer import final_observations
from episode_runners.environments.torch_simulator import TorchVectorEnv, outside_inference
from episodes.columns import Columns
from episodes.errors import InvalidArgument, ShapeMismatch
from episodes.tracks.space_kinds import is_box, rejected_space
from episodes.tracks.spaces import elementary_spaces

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
    waits for the device once per call, to find the episodes that ended. Values of last observations are computed too.
    `rollout_to_episodes` converts the rollout to episodes, with `BlockEdge(num_envs, "SameStep")`.

    Observations of several parts, a Dict for example, are stored as one vector [D] per row: the flattened parts in the
    order of the observation space, as of `FlattenObservations`. The policy sees these vectors.

    Args:
        env: the vector environment of the simulator. Its observations are Boxes, or nested Boxes.
        policy: a policy with a distribution, and with outputs "action_dist_inputs" and "vf_preds" for `{"obs": [N,
            D]}`. It cannot be recurrent.
        rollout: the rollout to fill, from `RolloutBuffer.start_rollout`.
        to_simulator: function from the policy's actions to the simulator's, for example to clip them.

    Raises:
        InvalidArgument: the rollout has another number of environments or is on another device, the policy is
            recurrent or has no distribution, or the observation space has parts that are no Boxes.
        ShapeMismatch: the observations, actions, rewards or flags do not have the shape of their column.
        TrackMismatch: an episode ended without last observations. The rollout has been filled until then.
    """
    if rollout.shape[0] != env.num_envs:
        raise InvalidArgument(
            f"the rollout has {rollout.shape[0]} environments, {env} has {env.num_envs}; give one with {env.num_envs}"
        )
    distribution, final, flat = distribution_of(policy), final_observations(rollout), _FlatWriter(env)
    if distribution is None:
        raise InvalidArgument(
            f"{type(policy).__name__} has no distribution; define this attribute, an ActionDistribution"
        )
    if module_of(policy).is_recurrent:
        raise InvalidArgument(
            f"fill_rollout: {type(policy).__name__} is recurrent, and a rollout stores no states; sample with a runner"
        )
    if env.observations is None:
        env.reset()
    if env.device != rollout["obs"].device:
        raise InvalidArgument(
            f"fill_rollout: the rollout is on {rollout['obs'].device}, {env} on {env.device}; give the RolloutBuffer "
            "the simulator's device"
        )
    last = rollout.shape[1] - 1
    columns: dict[str, Any] = {name: rollout[name] for name in _COLUMNS}
    last_obs = torch.empty_like(columns["obs"][:, :last])  # of each row, as if all episodes ended there
    lost: dict[int, dict[str, Any]] = {}  # extras of rows without last observations
    with outside_inference():
        for t in range(last):
            obs = columns["obs"][:, t]
            flat.write(env.observations, obs)
            outputs = policy({Columns.OBS: obs})
            inputs = outputs[Columns.ACTION_DIST_INPUTS]
            actions = distribution.sample(inputs)
            log_probs = distribution.log_prob(inputs, actions)
            values = outputs[Columns.VF_PREDS]
            acted = {"action": actions.reshape(env.num_envs, -1), "sample_log_prob": log_probs, "value": values}
            _put(columns, t, acted)  # before the step: a simulator may clip the actions in place
            row = env.step_tensors(actions if to_simulator is None else to_simulator(actions))
            _, rewards, terminateds, truncateds, extras = row
            _put(columns, t, {"reward": rewards, "terminated": terminateds, "truncated": truncateds})
            before_reset = env.all_last_observations(extras)
            if before_reset is None:
                lost[t] = extras
                last_obs[:, t] = obs
            else:
                flat.write(before_reset, last_obs[:, t])
        columns["done"][:, :last] = columns["terminated"][:, :last] | columns["truncated"][:, :last]
        flat.write(env.observations, columns["obs"][:, last])
        _put(columns, last, {"value": policy.compute_values({Columns.OBS: columns["obs"][:, last]})})
        envs, steps = columns["done"][:, :last].nonzero(as_tuple=True)  # the host waits here
        if lost and env.missing_final_observation != "repeat":
            for t in lost.keys() & set(steps.tolist()):
                env.check_may_repeat(lost[t])
        if len(steps):
            final.append_rows(envs * (last + 1) + steps, last_obs[envs, steps])
            final.set_value(policy.compute_values({Columns.OBS: final.obs}))
    return rollout


_COLUMNS = ("obs", "action", "sample_log_prob", "value", "reward", "terminated", "truncated", "done")


def _put(columns: dict[str, Tensor], t: int, row: dict[str, Tensor]) -> None:
    """Write the values [N, ...] of row `t` into their columns [N, T + 1, ...].

    Raises:
        ShapeMismatch: values have another shape, which torch would perhaps broadcast.
    """
    for name, values in row.items():
        place = columns[name][:, t]
        if values.shape != place.shape:
            raise _shape_error(name, list(values.shape), place)
        place.copy_(values)


def _shape_error(name: str, shape: list[int], place: Tensor) -> ShapeMismatch:
    """Return the error for values of a row that do not have the shape of their place in the rollout."""
    return ShapeMismatch(
        f"fill_rollout: {name} of a row is {shape}, and the rollout has {list(place.shape)}; give the RolloutBuffer "
        "the sizes of flat observations and actions, and let the simulator and the policy return rewards, flags and "
        "values [N]"
    )


class _FlatWriter:
    """Writer of observations [N, ...] of an environment's space as vectors [N, D].

    Raises:
        InvalidArgument: the space has parts that are no Boxes.
    """

    def __init__(self, env: TorchVectorEnv) -> None:
        self._paths: list[tuple[Any, ...]] = []
        for path, space in elementary_spaces(env.single_observation_space):
            if not is_box(space):
                advice = f"let the simulator of {env} return Boxes, or sample with a runner"
                raise rejected_space("fill_rollout", space, "a Box", advice)
            self._paths.append(path)

    def write(self, observations: Any, place: Tensor) -> None:
        """Write the parts of `observations`, flattened, next to each other into `place` [N, D].

        Raises:
            ShapeMismatch: the vectors have another shape.
        """
        parts = []
        for path in self._paths:
            part = observations
            for key in path:
                part = part[key]
            parts.append(part if part.ndim == 2 else part.reshape(part.shape[:1].numel(), -1))
        shape = [len(parts[0]), sum(part.shape[1] for part in parts)]
        if shape != list(place.shape):
            raise _shape_error("obs", shape, place)
        if len(parts) == 1:
            place.copy_(parts[0])
        else:
            torch.cat(parts, 1, out=place)
