"""Every policy of the library passes `check_policy`, and broken policies fail."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import episode_learners
from connectors.env_to_module import (
    FlattenObservations,
    FrameStacking,
    PrevActionsPrevRewards,
    TransformerContext,
    time_steps,
)
from connectors.testing import check_policy
from connectors.views.view import Views
from episode_learners import LSTMPolicy, LSTMQPolicy, MLPPolicy, QPolicy
from episode_learners.networks import Autoregressive
from episodes.errors import ContractViolation
from episodes.tracks.nested import map_leaves

BOX, ACTIONS = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(3, start=1)
FORCE = spaces.Box(-1.0, 1.0, (2,), np.float32)
CHOICES = spaces.MultiDiscrete([2, 3])
MASKED = spaces.Dict({"observation": BOX, "action_mask": spaces.Box(0, 1, (3,), np.int8)})

ACTION_SPACES = [
    ACTIONS,
    FORCE,
    CHOICES,
    spaces.MultiBinary(2),
    spaces.Dict({"move": spaces.Box(-1.0, 1.0, (1,), np.float32), "jump": spaces.Discrete(2)}),
]
OBSERVATION_SPACES = [BOX, spaces.Box(0, 255, (4, 4, 1), np.uint8), spaces.Box(-1.0, 1.0, (), np.float32)]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


SHIPPED: dict[str, list[dict[str, Any]]] = {  # by class: what it is made and checked with
    "EncoderPolicy": [{}, {"observation_space": MASKED}],
    "GRUPolicy": [{}, {"observation_space": MASKED}],
    "LSTMPolicy": [{}, {"action_space": CHOICES, "distribution": Autoregressive(CHOICES, 4, generator=seeded())}],
    "LSTMQPolicy": [{}, {"dueling": True}, {"observation_space": MASKED}],
    "MLPPolicy": [{}, {"action_space": FORCE}],
    "QPolicy": [{}, {"dueling": True}, {"observation_space": MASKED}, {"epsilon": 0.0}],
    "SACPolicy": [{"action_space": FORCE}],
    "TransformerPolicy": [{"views": [TransformerContext(k=3)]}],
}
BASES = {"Policy", "RecurrentPolicy"}


@pytest.mark.parametrize("name", sorted({name for name in episode_learners.__all__ if name.endswith("Policy")} - BASES))
def test_every_policy_is_checked(name: str) -> None:
    for case in SHIPPED[name]:
        options = {"observation_space": BOX, "action_space": ACTIONS, "views": [], **case}
        observation_space, acts, views = (options.pop(key) for key in ("observation_space", "action_space", "views"))
        policy = getattr(episode_learners, name)(
            Views(views, observation_space, acts).observation_space, acts, generator=seeded(), **options
        )
        interface = ["compute_values"] if hasattr(policy, "compute_values") else []
        check_policy(policy, observation_space, acts, views=views, interface=interface, tolerance=1e-3)


@pytest.mark.parametrize("observation_space", OBSERVATION_SPACES, ids=["vector", "image", "number"])
@pytest.mark.parametrize("action_space", ACTION_SPACES, ids=str)
@pytest.mark.parametrize("make", [MLPPolicy, LSTMPolicy])
def test_policy_passes_check_policy(make: Any, action_space: spaces.Space, observation_space: spaces.Space) -> None:
    policy = make(observation_space, action_space, generator=seeded())
    check_policy(policy, observation_space, action_space, interface=["compute_values"])


@pytest.mark.parametrize("make", [MLPPolicy, LSTMPolicy])
def test_policy_behind_views_passes_check_policy(make: Any) -> None:
    chain = [PrevActionsPrevRewards(), FlattenObservations(), FrameStacking(num_frames=3), time_steps]
    observation_space = Views(chain, BOX, ACTIONS).observation_space
    policy = make(observation_space, ACTIONS, generator=seeded())
    check_policy(policy, BOX, ACTIONS, views=chain)


def test_callable_policy_passes_and_module_keeps_mode() -> None:
    check_policy(lambda batch, explore=None: {"actions": np.ones(len(batch["obs"]))}, BOX, ACTIONS)
    policy = MLPPolicy(BOX, ACTIONS)
    policy.critic.eval()
    check_policy(policy, BOX, ACTIONS)
    assert policy.training
    assert policy.actor.training
    assert not policy.critic.training


def test_masked_actions_pass_check_policy() -> None:
    class Masked(MLPPolicy):
        def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
            outputs = super().forward(batch, explore)
            outputs["action_dist_inputs"][:, 0] = -torch.inf
            return outputs

    check_policy(Masked(BOX, ACTIONS), BOX, ACTIONS)


# --- policies that break it ----------------------------------------------------------------------------------------


class OtherObservations(MLPPolicy):
    def __init__(self) -> None:
        super().__init__(spaces.Box(-1.0, 1.0, (5,), np.float32), ACTIONS)


class ForcesToExplore(nn.Module):
    """Policy without a default for `explore`."""

    def forward(self, batch: Any, *, explore: bool) -> dict[str, Any]:
        return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 3)}


def broken(
    base: type,
    after: Callable[..., Any] = lambda batch, outputs: outputs,
    *,
    before: Callable[[Any], Any] = lambda batch: batch,
    method: str = "forward",
    explore: tuple[Any, ...] = (None, True, False),
) -> type:
    """Return a small policy class whose method gets another batch, and for some values of `explore` returns others."""

    def initialize(self: Any) -> None:
        state = {"state_size": 4} if "LSTM" in base.__name__ else {}
        base.__init__(self, BOX, ACTIONS, hidden_sizes=(4,), **state)  # type: ignore[misc]

    def call(self: Any, batch: Any, explore_now: Any = None, **options: Any) -> Any:
        batch, mode = before(batch), options.get("explore", explore_now)
        outputs = getattr(base, method)(self, batch, **({"explore": mode} if method == "forward" else {}))
        return after(batch, outputs) if mode in explore else outputs

    return type("Broken", (base,), {"__init__": initialize, method: call})


def inputs(change: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return a function that replaces the outputs by changed parameters of the action distribution."""
    return lambda batch, outputs: {"action_dist_inputs": change(outputs["action_dist_inputs"], batch["obs"])}


def overwrite_state(batch: Any, outputs: Any) -> Any:
    batch["state_in"]["actor"]["h"].zero_().add_(5.0)
    return outputs


def with_wide_state(batch: Any, outputs: Any) -> Any:
    state = outputs["state_out"]["actor"]
    return {**outputs, "state_out": {**outputs["state_out"], "actor": {**state, "h": state["h"][:, None]}}}


def without_state(batch: Any) -> Any:
    return {**batch, "state_in": map_leaves(torch.zeros_like, batch["state_in"])}


calls = itertools.count(1)
MUTANTS: dict[str, tuple[type, str]] = {
    "writes to observations": (
        broken(MLPPolicy, before=lambda batch: {**batch, "obs": batch["obs"].mul_(2.0)}),
        r"column obs\): expected a batch that is as it was, found another one; write to a copy",
    ),
    "adds a column": (
        broken(MLPPolicy, before=lambda batch: batch.update(features=batch["obs"]) or batch, method="compute_values"),
        r"call compute_values\(batch\), column \['features'\]\): expected a batch that is as it was",
    ),
    "writes to its state": (
        broken(LSTMPolicy, overwrite_state),
        r"column state_in/actor/h\): expected a batch that is as it was",
    ),
    "mixes rows": (
        broken(MLPPolicy, inputs(lambda x, obs: x + obs.mean())),
        r"call policy\(batch\), column action_dist_inputs, row 0\): expected what it is in a larger batch",
    ),
    "mixes values": (
        broken(MLPPolicy, lambda batch, values: values - values.mean(), method="compute_values"),
        r"call compute_values\(batch\), column values, row 0\): expected what it is in a larger batch",
    ),
    "counts": (
        broken(MLPPolicy, inputs(lambda x, obs: x + next(calls))),
        r"column action_dist_inputs, row 0\): expected the same as in the call before",
    ),
    "explores": (
        broken(MLPPolicy, inputs(lambda x, obs: x * 0.1), explore=(True,)),
        r"call policy\(batch\), column action_dist_inputs, row 0\): expected what it said when it acted",
    ),
    "forgets its state": (
        broken(LSTMPolicy, before=without_state),
        r"column .*, row 0\): expected what it is step by step",
    ),
    "says no state": (
        broken(LSTMPolicy, inputs(lambda x, obs: x)),
        r"expected a state_out, found none; get_initial_state\(\) returns a state",
    ),
    "state of another shape": (
        broken(LSTMPolicy, with_wide_state),
        r"expected state_out .*the next step's state_in is this step's state_out",
    ),
    "wide head": (
        broken(MLPPolicy, inputs(lambda x, obs: x.repeat(1, 2))),
        r"expected action_dist_inputs \[1, 3\], as Categorical takes, found float32 \[1, 6\]",
    ),
    "Q-values of other rows while learning": (
        broken(QPolicy, lambda _, outputs: {"q_values": outputs["q_values"].cumsum(0)}, explore=(None,)),
        r"call policy\(batch\), column q_values, row 0\): expected what it is in a larger batch",
    ),
    "Q-values of other rows while acting": (
        broken(QPolicy, inputs(lambda x, obs: x + obs.mean()), explore=(False,)),
        r"explore=False\), column action_dist_inputs, row 0\): expected what it is in a larger batch",
    ),
    "Q-values without state": (
        broken(LSTMQPolicy, lambda _, outputs: {**outputs, "q_values": outputs["q_values"].flip(1)}, explore=(None,)),
        r"call policy\(batch\), column q_values, row 0\): expected what it is step by step",
    ),
    "says nothing": (
        broken(MLPPolicy, lambda batch, outputs: {}, explore=(None,)),
        r"call policy\(batch\)\): expected what is learned from, found \[\]",
    ),
    "loses rows": (
        broken(MLPPolicy, lambda batch, outputs: {**outputs, "features": batch["obs"][:1]}),
        r"expected features \[2, ...\], found float32 \[1, 3\]",
    ),
    "gives NaN": (
        broken(MLPPolicy, inputs(lambda x, obs: x / 0 * 0)),
        r"expected numbers, found NaN in action_dist_inputs",
    ),
    "values with an axis": (
        broken(MLPPolicy, lambda batch, values: values[:, None], method="compute_values"),
        r"call compute_values\(batch\)\): expected values \[1\], found float32 \[1, 1\]",
    ),
    "reads another column": (
        broken(MLPPolicy, before=lambda batch: batch["attention_mask"], method="compute_values"),
        r"expected columns \['obs'\] to do, found KeyError 'attention_mask'",
    ),
    "gives a tuple": (
        broken(MLPPolicy, lambda batch, outputs: (outputs["action_dist_inputs"],)),
        r"expected a dict of columns, found \(",
    ),
    "gives no actions": (
        broken(MLPPolicy, lambda batch, outputs: {"logits": outputs["action_dist_inputs"]}),
        r"expected 'actions' or 'action_dist_inputs', found \['logits'\]",
    ),
    "forces to explore": (ForcesToExplore, r"call policy\(batch\)\): expected a call with .* to work, found TypeError"),
    "other observations": (
        OtherObservations,
        r"expected a call with {'obs': float32 \[1, 3\]} to work, found RuntimeError: mat1 and mat2",
    ),
}


@pytest.mark.parametrize(("make", "message"), MUTANTS.values(), ids=MUTANTS)
def test_broken_policy_fails_check_policy(make: Any, message: str) -> None:
    with pytest.raises(ContractViolation, match=message) as caught:
        check_policy(make(), BOX, ACTIONS)
    assert str(caught.value).startswith(make.__name__)


def test_policy_with_missing_method_raises() -> None:
    with pytest.raises(
        ContractViolation, match=r"expected a policy, found .*function has no compute_values, no device"
    ):
        check_policy(lambda batch, explore=None: {}, BOX, ACTIONS, interface=["compute_values", "device", "__call__"])
    with pytest.raises(ContractViolation, match=r"object .*cannot be called"):
        check_policy(object(), BOX, ACTIONS)


def test_check_policy_leaves_torch_generator() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    check_policy(lambda batch, explore=None: {"actions": torch.rand(len(batch["obs"]))}, BOX, ACTIONS)
    assert torch.equal(torch.rand(2), expected)
