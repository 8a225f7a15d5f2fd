"""`check_connector` accepts valid connectors, and names the fault of each broken one."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from connectors import Connector
from connectors.env_to_module import MeanStdFilter, ObservationPreprocessor
from connectors.learner import AddTimeDimensionAndZeroPad
from connectors.testing import check_connector
from episodes.errors import ContractViolation, InvalidArgument, WrongType

Batch = dict[str, Any]


class Scale(Connector):
    """Valid connector with a state: rewards times the number of calls so far with a learned number."""

    reads = ("rewards",)
    writes = ("rewards", "scaled")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.factor = np.ones(1)

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        batch["rewards"] = batch["rewards"] * self.factor
        batch["scaled"] = np.full(len(batch["rewards"]), self.factor[0])
        return batch

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"factor": self.factor.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        self.factor = state["factor"]


class WritesOthers(Scale):
    def __call__(self, **kwargs: Any) -> Batch:
        return super().__call__(**kwargs) | {"extra": kwargs["batch"]["rewards"]}


class ChangesOthers(Scale):
    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        return batch | {"actions": batch["actions"] * 0} if "actions" in batch else batch


class ReadsOthers(Scale):
    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        return batch | {"scaled": batch["actions"] * 1.0}


class WritesInPlace(Scale):
    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        batch["rewards"][:] = 0
        return batch


class WritesIntoObservations(Scale):
    reads = ("new_obs",)

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        observations = batch["new_obs"]
        observations.setflags(write=True)
        observations += 1
        return batch


class DropsRows(Scale):
    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        return batch | {"scaled": batch["rewards"][:-1]}


class ScalarColumn(Scale):
    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        return batch | {"scaled": np.array(3.0)}


class NeedsTwoSteps(Scale):
    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        return batch | {"scaled": np.gradient(batch["rewards"]) * 0}


class BreaksOnNoStep(Scale):
    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        return batch | {"scaled": batch["rewards"] / batch["rewards"].max()}


class MixesRows(Scale):
    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        return batch | {"scaled": batch["rewards"] - (batch["rewards"].mean() if len(batch["rewards"]) else 0.0)}


class Counts(Scale):
    def __call__(self, **kwargs: Any) -> Batch:
        self.factor = self.factor + 1
        return super().__call__(**kwargs)

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


class CannotRestore(Scale):
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"factors": self.factor.copy()}


class SharesItsState(Scale):
    def __call__(self, **kwargs: Any) -> Batch:
        answer = super().__call__(**kwargs)
        self.factor += 1
        return answer

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"factor": self.factor}


class CannotMerge(Scale):
    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        return {"factor": np.zeros(1)}


class CannotPickle(Scale):
    def __call__(self, **kwargs: Any) -> Batch:
        self.hook = lambda: None
        return super().__call__(**kwargs)


class ReturnsNone(Scale):
    def __call__(self, **kwargs: Any) -> Batch:
        return None  # type: ignore[return-value]


class Chance(Scale):
    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        return batch | {"scaled": np.random.random(len(batch["rewards"]))}  # noqa: NPY002


class TellsListsFromPacks(Scale):
    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        rewards = [np.asarray(episode.get_rewards(), float) for episode in episodes]
        return batch | {"scaled": np.concatenate(rewards) + self.factor - len(type(episodes).__name__) * 0}


class Colon(Scale):
    reads = "rewards"  # type: ignore[assignment]


BROKEN = {
    WritesOthers: r"only the columns that it writes \('rewards', 'scaled'\), found also 'extra'; name 'extra'",
    ChangesOthers: r"only the columns that it writes .* to change, found that 'actions' changed",
    ReadsOthers: r"no other columns than it reads \('rewards',\), found KeyError: 'actions'",
    WritesInPlace: r"the array of 'rewards' that it was given to be left as it is, found that it was written to",
    WritesIntoObservations: r"the array of 'new_obs' that it was|arrays it is given to be left.*read-only",
    DropsRows: r"expected 13 rows of 'scaled' of the samples, one a real step, found float64 \[12\]",
    ScalarColumn: r"13 rows of 'scaled' of the samples.*found float64 3",
    NeedsTwoSteps: r"of one sample \(SingleAgentEpisode\(sample1: 1 step.*found ValueError",
    BreaksOnNoStep: r"of one sample \(SingleAgentEpisode\(sample2: 0 steps.*found ValueError",
    MixesRows: r"the same 'scaled' of both halves joined.*rowwise=False",
    CannotRestore: r"set_state to take what get_state\(\) gave, found KeyError: 'factor'",
    Counts: r"the same 'rewards' after set_state of get_state\(\) as",
    SharesItsState: r"a state that shares no memory with the piece",
    CannotMerge: r"the same 'rewards' after set_state of merge_states\(\[state\]\)",
    CannotPickle: r"a piece that pickles, found .*leave it out in __getstate__",
    ReturnsNone: r"found WrongType: ReturnsNone returned None",
    Chance: r"the same 'scaled' of the same samples again",
    Colon: r"reads to be a tuple of columns, found 'rewards'; write \('rewards',\)",
}


def test_check_connector_accepts_valid_connector() -> None:
    check_connector(Scale(), "learner")
    check_connector(MixesRows(), "learner", rowwise=False)
    check_connector(TellsListsFromPacks(), "learner")


@pytest.mark.parametrize("broken", BROKEN, ids=lambda kind: kind.__name__)
def test_check_connector_rejects_broken_connector(broken: type[Connector]) -> None:
    with pytest.raises(ContractViolation, match=f"^{broken.__name__}: expected .*{BROKEN[broken]}|{BROKEN[broken]}"):
        check_connector(broken(), "learner")


class Halve(ObservationPreprocessor):
    """Valid preprocessor."""

    def preprocess(self, observation: Any, episode: Any) -> Any:
        return observation / 2


class OtherShape(Halve):
    def preprocess(self, observation: Any, episode: Any) -> Any:
        return observation[:2]


class OutOfBounds(Halve):
    def preprocess(self, observation: Any, episode: Any) -> Any:
        return observation * 100


class WritesRows(Halve):
    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        observations *= 0.5
        return observations


class MixesObservations(Halve):
    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        return (observations - observations.mean(axis=0)) / 2


class LearnsAlways(MeanStdFilter):
    def rewrite(self, observations: Any, episodes: Any = None, update: bool = True) -> Any:
        return super().rewrite(observations, episodes, True)


class ForgetsItself(MeanStdFilter):
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (OtherShape, r"row 0\): expected rewritten observations inside Box\(-10.0, 10.0, \(3,\), float32\)"),
        (OutOfBounds, r"rewritten observations inside Box.*widen the space"),
        (WritesRows, r"the rows that it gets to be unchanged|read-only"),
        (MixesObservations, r"rewritten observations inside|the same observations in a pack|both halves"),
        (LearnsAlways, r"learn nothing from rows with update=False"),
        (ForgetsItself, r"the same rows from a copy with its state, found different rows"),
    ],
)
@pytest.mark.parametrize("pipeline", ["env_to_module", "learner"])
def test_check_connector_rejects_broken_rewriter(broken: type[Connector], message: str, pipeline: str) -> None:
    check_connector(Halve(), pipeline)
    with pytest.raises(ContractViolation, match=message):
        check_connector(broken(), pipeline)


class Shifted(Connector):
    """Connector that adds one to actions, which leaves their space."""

    reads = writes = ("actions",)

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        return batch | {"actions": batch["actions"] + 1}


class SeesOthers(Connector):
    """Connector whose column depends on all environments."""

    reads, writes = ("actions",), ("crowd",)

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        return batch | {"crowd": np.full(len(batch["actions"]), batch["actions"].sum())}


def test_check_connector_runs_module_to_env_on_outputs() -> None:
    with pytest.raises(ContractViolation, match=r"row \d\): expected actions that go out inside MultiDiscrete"):
        check_connector(Shifted(), "module_to_env", action_space=gym.spaces.MultiDiscrete([3, 2]))
    check_connector(SeesOthers(), "module_to_env", rowwise=False)
    with pytest.raises(ContractViolation, match="the same 'crowd' of both halves joined"):
        check_connector(SeesOthers(), "module_to_env")


def test_check_connector_of_other_object_raises() -> None:
    with pytest.raises(WrongType, match="takes a Connector, not a function; a view: check_view"):
        check_connector(lambda history: {}, "learner")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="there are 'learner', 'env_to_module', 'module_to_env'"):
        check_connector(AddTimeDimensionAndZeroPad(), "acting")
