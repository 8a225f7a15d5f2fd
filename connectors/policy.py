"""Interface of policies, and `Module`, which supplies defaults for members that a policy lacks.

A policy is any callable. Everything else is optional. Only this module reads attributes of policies.

>>> import torch
>>> class Stateless:
...     def __call__(self, batch, explore=None):
...         return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 2)}
>>> module = module_of(Stateless())
>>> module.initial_state(), module.device, module.distribution
({}, device(type='cpu'), None)
>>> module.compute_values({"obs": torch.zeros(1, 3)})
Traceback (most recent call last):
    ...
episodes.errors.InvalidArgument: values are needed from Stateless, which has no compute_values(batch); add ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Signature, signature
from typing import Any, Protocol

import torch
from gymnasium import Space

from connectors.distributions import ActionDistribution, distribution_for
from episodes.columns import Columns
from episodes.errors import InvalidArgument, WrongType

__all__ = [
    "Module",
    "Policy",
    "check_interface",
    "distribution_of",
    "module_of",
    "random_action_probability_of",
    "seen_columns",
]


class Policy(Protocol):
    """Interface of policies: callables from a dict of input columns to a dict of outputs. All other members are
    optional.

    These members are optional:

    ============================ =====================================================================================
    `get_initial_state()`        the state at an episode's start, nested arrays without a batch axis. It is empty for a
                                 policy that is not recurrent (the default). For a recurrent policy, columns have a time
                                 axis, [B, T, ...]; the batch has "state_in" [B, ...], and the outputs have "state_out"
                                 [B, ...].
    `compute_values(batch)`      values [B] (recurrent: [B, T]) of the batch's observations. Advantages need it.
    `device`                     the device of batches; by default that of the first parameter, or the CPU.
    `distribution`               the `ActionDistribution` for "action_dist_inputs"; by default that of the action space
                                 (`distribution_for`).
    `random_action_probability`  probability of a uniformly random action while exploring, 0 by default. Otherwise the
                                 action is the most likely one. A runner of one environment that stores no other outputs
                                 does not call the policy for a random action.
    ============================ =====================================================================================

    Algorithms need a `torch.nn.Module` such as `episode_learners.Policy`, which has all of them.
    """

    def __call__(self, batch: Mapping[str, Any], explore: bool | None = None) -> Mapping[str, Any]:
        """Return the policy's outputs for a batch: "actions" [B, ...], or "action_dist_inputs" [B, num_inputs] to
        sample actions from, and any other outputs.

        Other outputs are recorded. A policy must not write to the batch.

        Args:
            batch: the columns of the env-to-module or learner pipeline; "obs" [B, ...] is one of them.
            explore: a bool while acting, None while learning. While learning, an algorithm may need other outputs (DQN:
                the Q-values of all actions).
        """
        ...


class Module:
    """Wrapper of a policy that supplies default values for all optional members that the policy lacks.

    Nothing is cached, so the policy may move to another device or change its initial state.
    """

    __slots__ = ("policy",)

    def __init__(self, policy: Policy | None) -> None:
        self.policy: Any = policy  # its optional members are read by name

    def initial_state(self) -> dict[str, Any]:
        """Return the policy's recurrent state at the start of an episode, without a batch axis. It is an empty dict if
        the policy is not recurrent.
        """
        get = getattr(self.policy, "get_initial_state", None)
        return {} if get is None else get() or {}

    @property
    def is_recurrent(self) -> bool:
        """Whether the policy has a recurrent state. Its batches then have a time axis and "state_in"."""
        return bool(self.initial_state())

    @property
    def has_values(self) -> bool:
        """Whether the policy has a value function (`compute_values`)."""
        return hasattr(self.policy, "compute_values")

    def compute_values(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return the policy's value estimates for the batch's observations: [B], or [B, T] for a recurrent policy.

        Raises:
            InvalidArgument: the policy has no value function.
        """
        if not hasattr(self.policy, "compute_values"):
            policy_name = "rl_module=None" if self.policy is None else type(self.policy).__name__
            raise InvalidArgument(
                f"values are needed from {policy_name}, which has no compute_values(batch); add this method, and call "
                "the learner pipeline with rl_module=policy"
            )
        return self.policy.compute_values(batch)

    @property
    def device(self) -> torch.device:
        """Device on which the policy takes its batches: its `device`, or else the device of its first parameter, or
        else the CPU.
        """
        device = getattr(self.policy, "device", None)
        if device is not None:
            return torch.device(device)
        parameters = getattr(self.policy, "parameters", None)
        first = None if parameters is None else next(iter(parameters()), None)
        return _CPU if first is None else first.device

    @property
    def distribution(self) -> ActionDistribution | None:
        """Action distribution of the policy, or None if it uses the default distribution of its action space."""
        return distribution_of(self.policy)


def distribution_of(policy: Policy | None, action_space: Space | None = None) -> ActionDistribution | None:
    """Return the policy's action distribution (its attribute `distribution`), or else the default one of the action
    space. Without `action_space`, the result is None for a policy without a distribution.

    Raises:
        InvalidArgument: there is no default distribution for the action space.
    """
    distribution = getattr(policy, "distribution", None)
    return distribution if distribution is not None or action_space is None else distribution_for(action_space)


def random_action_probability_of(policy: Policy | None) -> float:
    """Return the probability with which the policy takes a uniformly random action while exploring. It is 0 by
    default.
    """
    return getattr(policy, "random_action_probability", 0.0)


def module_of(policy: Policy | None) -> Module:
    """Wrap a policy in a `Module`, which supplies default values for all members that the policy lacks.
    `module_of(None)` has only defaults.
    """
    return Module(policy)


def seen_columns(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a train batch that a policy may read: all except rewards, endings, next observations, infos
    and recorded outputs.
    """
    return {name: column for name, column in batch.items() if name not in _UNSEEN}


_CPU = torch.device("cpu")
_UNSEEN = frozenset(
    {
        *(Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.NEXT_OBS, Columns.INFOS),
        *(Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP, Columns.VF_PREDS, Columns.STATE_OUT),
    }
)


def check_interface(policy: object, user: str, names: Sequence[str] = ()) -> None:
    """Check that a policy can be called as `policy(batch, explore=...)` and has the attributes and methods in `names`.

    Args:
        policy: the policy.
        user: name of the caller that needs the policy, for the error.
        names: names of the attributes and methods that it must have.

    Raises:
        WrongType: the policy cannot be called as `policy(batch, explore=...)`, or it is a class.
        InvalidArgument: attributes are missing. The error names all of them.
    """
    if isinstance(policy, type):
        raise WrongType(f"{user}: {policy.__name__} is a class; a policy is an object: give {policy.__name__}(...)")
    if not callable(policy):
        raise WrongType(
            f"{user}: a policy is called as policy(batch, explore=...) and returns a dict of columns; "
            f"{policy!r} cannot be called"
        )
    arguments = _arguments_of(policy)
    if arguments is not None and not _can_take_batches(arguments):
        name = getattr(policy, "__name__", type(policy).__name__)
        raise WrongType(
            f"{user}: a policy is called as policy(batch, explore=...), but {name} takes {arguments}; if it is a "
            f"function that makes a policy, give functools.partial({name}) to the actor"
        )
    missing = ", no ".join(name for name in names if not hasattr(policy, name))
    if missing:
        raise InvalidArgument(
            f"{user} needs {', '.join(names)} of its policy; {type(policy).__name__} has no {missing}: derive it "
            "from episode_learners.Policy, or add these members (connectors.Policy documents each)"
        )


def _arguments_of(policy: Callable[..., Any]) -> Signature | None:
    """Return the signature of a callable policy, or None if Python cannot determine the signature."""
    try:
        return signature(policy)
    except (TypeError, ValueError):
        return None


def _can_take_batches(arguments: Signature) -> bool:
    """Return True if a callable with this signature can be called as `policy(batch, explore=...)`."""
    try:
        arguments.bind({}, explore=True)
    except TypeError:
        return False
    return True
