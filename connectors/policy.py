"""What pipelines, runners and learners ask of a policy. This is the only place where it is looked at.

A policy is anything that can be called; what else it may have is optional, and `Module` fills in what is not there.

>>> import torch
>>> class Forgetful:
...     def __call__(self, batch, explore=None):
...         return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 2)}
>>> module = module_of(Forgetful())
>>> module.initial_state(), module.device, module.distribution
({}, device(type='cpu'), None)
>>> module.compute_values({"obs": torch.zeros(1, 3)})
Traceback (most recent call last):
    ...
episodes.errors.InvalidArgument: values are asked of Forgetful, which has no compute_values(batch); give it one, ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from connectors.distributions import ActionDistribution
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
    """A batch of columns in, a dict of columns out. Only the call is required.

    What else a policy may have, and what holds where it does not:

    ======================== =========================================================================================
    `get_initial_state()`    the state at an episode's start, nested arrays without a batch axis; empty (and that is the
                             default) for a policy without a memory. With one, columns have a time axis, [B, T, ...];
                             the batch has "state_in" [B, ...], and the outputs "state_out" [B, ...].
    `compute_values(batch)`  values [B] (with a memory [B, T]) of the batch's observations; asked for by advantages.
    `device`                 where the batch is to be; by default where the first parameter is, or the CPU.
    `distribution`           the `ActionDistribution` that "action_dist_inputs" describe; by default the one for the
                             action space (`distribution_for`).
    `random_action_probability`  probability of a uniformly random action while exploring, 0..1 and by
                             default 0; else it is the likeliest one, as without exploring. A runner of one environment
                             that stores no other outputs does not ask the policy for such an action.
    ======================== =========================================================================================

    Algorithms ask more, since they train it: a `torch.nn.Module` such as `episode_learners.Policy` has all of it.
    """

    def __call__(self, batch: Mapping[str, Any], explore: bool | None = None) -> Mapping[str, Any]:
        """The outputs: "actions" [B, ...], or "action_dist_inputs" [B, num_inputs] to sample from, and any others.

        What is put out beside the actions is recorded. The batch belongs to the caller: nothing is written to it.

        Args:
            batch: the columns that the env-to-module pipeline or the learner pipeline makes, "obs" [B, ...] above all.
            explore: a bool while acting; None while learning, where an algorithm may ask for more outputs, or for
                others instead (DQN: what each action is worth).
        """
        ...


class Module:
    """A policy with everything that may be asked of one; what it lacks is filled in, or an error that says so.

    Nothing is kept of the policy's answers: it may move to another device, or change its initial state.
    """

    __slots__ = ("policy",)

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def initial_state(self) -> dict[str, Any]:
        """The state at an episode's start, nested arrays without a batch axis; empty for a policy without a memory."""
        get = getattr(self.policy, "get_initial_state", None)
        return {} if get is None else get() or {}

    @property
    def is_recurrent(self) -> bool:
        """True for a policy with an initial state: its batches have a time axis and "state_in"."""
        return bool(self.initial_state())

    @property
    def has_values(self) -> bool:
        """True for a policy with a value function."""
        return hasattr(self.policy, "compute_values")

    def compute_values(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Values [B], or [B, T] of a policy with a memory, of the batch's observations.

        Raises:
            InvalidArgument: the policy has no value function.
        """
        if not self.has_values:
            who = "rl_module=None" if self.policy is None else type(self.policy).__name__
            raise InvalidArgument(
                f"values are asked of {who}, which has no compute_values(batch); "
                "give it one, and call the learner pipeline with rl_module=policy"
            )
        return self.policy.compute_values(batch)

    @property
    def device(self) -> torch.device:
        """Where batches for the policy are to be: its `device`, its first parameter's, or the CPU."""
        own = getattr(self.policy, "device", None)
        if own is not None:
            return torch.device(own)
        parameters = getattr(self.policy, "parameters", None)
        first = None if parameters is None else next(iter(parameters()), None)
        return _CPU if first is None else first.device

    @property
    def distribution(self) -> ActionDistribution | None:
        """The policy's own distribution over actions; None where it is the action space's."""
        return distribution_of(self.policy)


def distribution_of(policy: Any) -> ActionDistribution | None:
    """`module_of(policy).distribution`, for where it is read at every step."""
    return getattr(policy, "distribution", None)


def random_action_probability_of(policy: Any) -> float:
    """How often exploring is an action drawn evenly; 0 for a policy that does not say so."""
    return getattr(policy, "random_action_probability", 0.0)


def module_of(policy: Any) -> Module:
    """The policy with defaults for what it does not have; for None, defaults only."""
    return Module(policy)


def seen_columns(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a train batch that a policy may read: all but what came of the steps and of earlier policies."""
    return {name: column for name, column in batch.items() if name not in _UNSEEN}


_CPU = torch.device("cpu")
_UNSEEN = frozenset(
    {
        *(Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.NEXT_OBS, Columns.INFOS),
        *(Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP, Columns.VF_PREDS, Columns.STATE_OUT),
    }
)


def check_interface(policy: Any, asked_by: str, names: Sequence[str] = ()) -> None:
    """Raise unless the policy can be called and has these attributes and methods.

    Raises:
        WrongType: it cannot be called, or is a class.
        InvalidArgument: something is missing; the error names all of it.
    """
    if isinstance(policy, type):
        raise WrongType(
            f"{asked_by}: {policy.__name__} is a class, and a policy is an object: give {policy.__name__}(...)"
        )
    if not callable(policy):
        raise WrongType(
            f"{asked_by}: a policy is called as policy(batch, explore=...) and answers with a dict of columns; "
            f"{policy!r} cannot be called"
        )
    missing = ", no ".join(name for name in names if not hasattr(policy, name))
    if missing:
        raise InvalidArgument(
            f"{asked_by} asks {', '.join(names)} of its policy; {type(policy).__name__} has no {missing}: "
            "derive it from episode_learners.Policy, or add what is missing (connectors.Policy says what each is)"
        )
