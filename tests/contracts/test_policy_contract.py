"""Every policy of the library passes `check_policy`, and broken policies fail."""

from __future__ import annotations

from collections.abc import Mapping
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


class Sound(MLPPolicy):
    """A valid small policy, the base of broken ones."""

    def __init__(self) -> None:
        super().__init__(BOX, ACTIONS, hidden_sizes=(4,))
        self.calls = 0

    def inputs(self, batch: Mapping[str, Any], explore: bool | None = None) -> torch.Tensor:
        return super().forward(batch, explore)["action_dist_inputs"]


class SoundMemory(LSTMPolicy):
    def __init__(self) -> None:
        super().__init__(BOX, ACTIONS, hidden_sizes=(4,), state_size=4)


class WritesToObservations(Sound):
    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        batch["obs"].mul_(2.0)
        return super().forward(batch, explore)


class AddsAColumn(Sound):
    def compute_values(self, batch: Any) -> torch.Tensor:
        batch["features"] = batch["obs"]
        return super().compute_values(batch)


class WritesToItsState(SoundMemory):
    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        outputs = super().forward(batch, explore)
        batch["state_in"]["actor"]["h"].zero_().add_(5.0)
        return outputs


class MixesRows(Sound):
    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        inputs = self.inputs(batch, explore)
        return {"action_dist_inputs": inputs + batch["obs"].mean()}


class MixesValues(Sound):
    def compute_values(self, batch: Any) -> torch.Tensor:
        values = super().compute_values(batch)
        return values - values.mean()


class Counts(Sound):
    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        self.calls += 1
        return {"action_dist_inputs": self.inputs(batch, explore) + self.calls}


class Explores(Sound):
    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        return {"action_dist_inputs": self.inputs(batch, explore) * (0.1 if explore else 1.0)}


class ForgetsItsState(SoundMemory):
    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        zeros = {name: {"h": state["h"] * 0, "c": state["c"] * 0} for name, state in batch["state_in"].items()}
        return super().forward({**batch, "state_in": zeros}, explore)


class SaysNoState(SoundMemory):
    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        return {"action_dist_inputs": super().forward(batch, explore)["action_dist_inputs"]}


class StateOfAnotherShape(SoundMemory):
    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        outputs = super().forward(batch, explore)
        state = outputs["state_out"]["actor"]
        return {**outputs, "state_out": {**outputs["state_out"], "actor": {**state, "h": state["h"][:, None]}}}


class WideHead(Sound):
    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        return {"action_dist_inputs": self.inputs(batch, explore).repeat(1, 2)}


class LosesRows(Sound):
    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        return {**super().forward(batch, explore), "features": batch["obs"][:1]}


class GivesNaN(Sound):
    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        return {"action_dist_inputs": self.inputs(batch, explore) / 0 * 0}


class ValuesWithAnAxis(Sound):
    def compute_values(self, batch: Any) -> torch.Tensor:
        return super().compute_values(batch)[:, None]


class ReadsAnotherColumn(Sound):
    def compute_values(self, batch: Any) -> torch.Tensor:
        return batch["attention_mask"].sum(-1)


class WorthOfOthers(QPolicy):
    """Policy with Q-values that depend on other rows while learning."""

    def __init__(self) -> None:
        super().__init__(BOX, ACTIONS, hidden_sizes=(4,))

    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        outputs = super().forward(batch, explore)
        return outputs if explore is not None else {"q_values": outputs["q_values"] - outputs["q_values"].mean()}


class GreedyOfOthers(QPolicy):
    """Policy with Q-values that depend on other rows while acting."""

    def __init__(self) -> None:
        super().__init__(BOX, ACTIONS, hidden_sizes=(4,))

    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        outputs = super().forward(batch, explore)
        if explore is False:
            outputs["action_dist_inputs"] = outputs["action_dist_inputs"] + batch["obs"].mean()
        return outputs


class WorthOfNoMemory(LSTMQPolicy):
    """Recurrent policy that drops its state while learning."""

    def __init__(self) -> None:
        super().__init__(BOX, ACTIONS, hidden_sizes=(4,), state_size=4)

    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        outputs = super().forward(batch, explore)
        return outputs if explore is not None else {**outputs, "q_values": outputs["q_values"].flip(1)}


class SaysNothing(Sound):
    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        return {} if explore is None else super().forward(batch, explore)


class GivesATuple(Sound):
    def forward(self, batch: Any, explore: bool | None = None) -> Any:
        return (self.inputs(batch, explore),)


class GivesNoActions(Sound):
    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        return {"logits": self.inputs(batch, explore)}


class ForcesToExplore(nn.Module):
    """Policy without a default for `explore`."""

    def forward(self, batch: Any, *, explore: bool) -> dict[str, Any]:
        return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 3)}


class OtherObservations(MLPPolicy):
    def __init__(self) -> None:
        super().__init__(spaces.Box(-1.0, 1.0, (5,), np.float32), ACTIONS)


MUTANTS = [
    (WritesToObservations, r"column obs\): expected a batch that is as it was, found another one; write to a copy"),
    (AddsAColumn, r"call compute_values\(batch\), column \['features'\]\): expected a batch that is as it was"),
    (WritesToItsState, r"column state_in/actor/h\): expected a batch that is as it was"),
    (MixesRows, r"call policy\(batch\), column action_dist_inputs, row 0\): expected what it is in a larger batch"),
    (MixesValues, r"call compute_values\(batch\), column values, row 0\): expected what it is in a larger batch"),
    (Counts, r"column action_dist_inputs, row 0\): expected the same as in the call before"),
    (Explores, r"call policy\(batch\), column action_dist_inputs, row 0\): expected what it said when it acted"),
    (ForgetsItsState, r"column .*, row 0\): expected what it is step by step"),
    (
        SaysNoState,
        r"expected a state_out, found none; get_initial_state\(\) returns a state",
    ),
    (StateOfAnotherShape, r"expected state_out .*the next step's state_in is this step's state_out"),
    (WideHead, r"expected action_dist_inputs \[1, 3\], as Categorical takes, found float32 \[1, 6\]"),
    (WorthOfOthers, r"call policy\(batch\), column q_values, row 0\): expected what it is in a larger batch"),
    (GreedyOfOthers, r"explore=False\), column action_dist_inputs, row 0\): expected what it is in a larger batch"),
    (WorthOfNoMemory, r"call policy\(batch\), column q_values, row 0\): expected what it is step by step"),
    (SaysNothing, r"call policy\(batch\)\): expected what is learned from, found \[\]"),
    (LosesRows, r"expected features \[2, ...\], found float32 \[1, 3\]"),
    (GivesNaN, r"expected numbers, found NaN in action_dist_inputs"),
    (ValuesWithAnAxis, r"call compute_values\(batch\)\): expected values \[1\], found float32 \[1, 1\]"),
    (ReadsAnotherColumn, r"expected columns \['obs'\] to do, found KeyError 'attention_mask'"),
    (GivesATuple, r"expected a dict of columns, found \("),
    (GivesNoActions, r"expected 'actions' or 'action_dist_inputs', found \['logits'\]"),
    (ForcesToExplore, r"call policy\(batch\)\): expected a call with .* to work, found TypeError"),
    (OtherObservations, r"expected a call with {'obs': float32 \[1, 3\]} to work, found RuntimeError: mat1 and mat2"),
]


@pytest.mark.parametrize(("make", "message"), MUTANTS, ids=lambda part: getattr(part, "__name__", ""))
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
