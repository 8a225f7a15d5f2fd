"""Properties of pipelines for any connectors: wiring, names, state, spaces, traces."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from connectors import (
    Connector,
    ConnectorPipeline,
    env_to_module_pipeline,
    learner_pipeline,
    module_to_env_pipeline,
)
from connectors.env_to_module import FrameStacking, MeanStdFilter
from connectors.learner import (
    AddObservations,
    ComputeReturnsToGo,
    GeneralizedAdvantageEstimation,
    VTrace,
)
from episodes import Batch, SingleAgentEpisode
from episodes.errors import InvalidArgument, StateMismatch, UnknownKey, UnwiredPipeline, WrongType

AN_EPISODE = SingleAgentEpisode.from_arrays(np.zeros((3, 4), np.float32), [0, 1], [1.0, 2.0])


class Add(Connector):
    """Connector that writes a column with the number of its calls, which is its state."""

    def __init__(self, column: str = "calls", *, reads: tuple[str, ...] = (), name: str | None = None) -> None:
        super().__init__(name=name)
        self.reads, self.writes, self.column, self.calls = reads, (column,), column, 0

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        self.calls += 1
        batch[self.column] = np.array([self.calls])
        return batch

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"calls": self.calls}

    def set_state(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"] + 0

    def reset_state(self) -> None:
        self.calls = 0

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        return {"calls": sum(state["calls"] for state in states)}


def test_connectors_run_in_order_and_keep_callers_dict() -> None:
    arguments = {"x": np.zeros(1)}
    pipeline = ConnectorPipeline(connectors=[Add("a"), Add("b", reads=("a",))])
    assert list(pipeline(batch=arguments)) == ["x", "a", "b"]
    assert list(arguments) == ["x"]
    assert list(pipeline(batch=Batch(x=np.zeros((0, 2))))) == ["x", "a", "b"]  # such a batch is false


def test_read_of_missing_column_raises_at_construction() -> None:
    with pytest.raises(UnwiredPipeline, match=r"VTrace reads 'obs', which no piece before it writes"):
        ConnectorPipeline(connectors=[VTrace()])
    with pytest.raises(UnwiredPipeline, match="put it after Add"):
        ConnectorPipeline(connectors=[Add("b", reads=("a",), name="reader"), Add("a")])
    assert len(ConnectorPipeline(connectors=[Add(reads=("mask",))], input_columns=("mask",))) == 1


def test_removing_a_piece_that_others_need_changes_nothing() -> None:
    pipeline = ConnectorPipeline(connectors=[Add("a"), Add("b", reads=("a",), name="reader")])
    with pytest.raises(UnwiredPipeline):
        pipeline.remove("Add")
    assert pipeline.names == ("Add", "reader")


def test_connectors_are_inserted_at_their_position() -> None:
    pipeline = ConnectorPipeline(connectors=[Add("m", name="middle")])
    pipeline.prepend(Add("a", name="first"))
    pipeline.append(Add("z", name="last"))
    pipeline.insert_before("middle", Add("b", name="before"))
    pipeline.insert_after("middle", Add("c", name="after"))
    assert pipeline.names == ("first", "before", "middle", "after", "last")
    assert pipeline.remove("middle").name == "middle"
    assert "middle" not in pipeline
    assert pipeline[Add] is pipeline["first"]


@pytest.mark.parametrize("method", ["insert_before", "insert_after"])
def test_insert_next_to_unknown_name_lists_known_names(method: str) -> None:
    pipeline = ConnectorPipeline(connectors=[Add("a"), Add("b")])
    with pytest.raises(UnknownKey, match="no piece 'Sub'; it has Add, Add_2"):
        getattr(pipeline, method)("Sub", Add())
    with pytest.raises(UnknownKey, match="no piece 'AddObservations'"):
        pipeline.remove(AddObservations)
    assert pipeline.names == ("Add", "Add_2")


def test_connector_with_unsupported_space_is_rejected() -> None:
    pipeline = ConnectorPipeline(spaces.Discrete(3), spaces.Discrete(2), connectors=[Add("a")])
    with pytest.raises(InvalidArgument, match="cannot be joined"):
        pipeline.prepend(FrameStacking(num_frames=2))
    assert pipeline.names == ("Add",)
    assert pipeline.observation_space == spaces.Discrete(3)
    assert list(pipeline()) == ["a"]


def test_pipeline_accepts_only_connectors_and_each_once() -> None:
    piece = Add()
    with pytest.raises(InvalidArgument, match="Add is in the pipeline already"):
        ConnectorPipeline(connectors=[piece, piece])
    with pytest.raises(InvalidArgument, match="two pieces have the name 'mine'"):
        ConnectorPipeline(connectors=[Add(name="mine"), Add(name="mine")])
    with pytest.raises(WrongType, match="derive the class from Connector"):
        ConnectorPipeline(connectors=[lambda **_: None])  # type: ignore[list-item]


def test_filter_of_observations_is_rejected_after_the_policy() -> None:
    pipeline = module_to_env_pipeline(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
    before = pipeline.names
    for insert in (pipeline.prepend, pipeline.append):
        with pytest.raises(InvalidArgument, match="MeanStdFilter changes observations before"):
            insert(MeanStdFilter())
    assert pipeline.names == before


class Returning(Connector):
    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.given = returned

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> Any:
        return self.given


@pytest.mark.parametrize(("returned", "kind"), [(None, "None"), ([np.zeros(2)], "a list"), ("obs", "a str")])
def test_connector_that_returns_no_batch_is_named(returned: Any, kind: str) -> None:
    pipeline = ConnectorPipeline(connectors=[Returning(returned), Add()])
    for call in (
        lambda: pipeline(batch={}),
        lambda: pipeline(batch={}, trace=True),
        lambda: pipeline.on_rows(None, {}, (), True, {}),
        lambda: learner_pipeline(pieces=[Returning(returned)])(episodes=[AN_EPISODE]),
    ):
        with pytest.raises(WrongType, match=f"Returning returned {kind}, not a batch"):
            call()


def test_two_filters_have_separate_states() -> None:
    first_pipeline, two = (ConnectorPipeline(connectors=[Add("a"), Add("b")]) for _ in range(2))
    first_pipeline(batch={})
    first_pipeline["Add_2"](batch={})
    assert first_pipeline.get_state() == {"Add": {"calls": 1}, "Add_2": {"calls": 2}}
    two.set_state(first_pipeline.get_state())
    assert (two["Add"].calls, two["Add_2"].calls) == (1, 2)
    two.reset_state()
    assert (two["Add"].calls, two["Add_2"].calls) == (0, 0)


def test_states_are_merged_by_name_and_not_by_position() -> None:
    first = ConnectorPipeline(connectors=[AddObservations(), Add("a", name="count")])
    other_pipeline = ConnectorPipeline(connectors=[Add("a", name="count")])
    other_pipeline(batch={})
    first["count"].calls = 2
    assert first.merge_states([first.get_state(), other_pipeline.get_state()]) == {"count": {"calls": 3}}


def test_state_of_other_pipeline_raises_and_changes_nothing() -> None:
    pipeline = ConnectorPipeline(connectors=[Add("a"), Add("b", name="other")])
    with pytest.raises(StateMismatch, match="the pieces with a state are Add, other"):
        pipeline.set_state({"Add": {"calls": 5}})
    with pytest.raises(StateMismatch, match="the state has Add, Filter"):
        pipeline.set_state({"Add": {"calls": 5}, "Filter": {}})
    with pytest.raises(TypeError):
        pipeline.set_state({"Add": {"calls": 5}, "other": {"calls": "five"}})
    assert pipeline.get_state() == {"Add": {"calls": 0}, "other": {"calls": 0}}


class Wider(Connector):
    """Connector that appends a number to observations."""

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> gym.Space:
        return spaces.Box(0, 1, (input_observation_space.shape[0] + 1,))


def test_spaces_are_computed_in_order_and_after_changes() -> None:
    pipeline = ConnectorPipeline(spaces.Box(0, 1, (2,)), spaces.Discrete(2), connectors=[Wider(), Wider()])
    assert pipeline.observation_space.shape == (4,)
    assert pipeline.action_space == spaces.Discrete(2)
    pipeline.append(Wider())
    assert pipeline.observation_space.shape == (5,)
    assert pipeline["Wider_3"].input_observation_space.shape == (4,)
    pipeline.input_observation_space = spaces.Box(0, 1, (7,))
    assert pipeline.observation_space.shape == (10,)


def test_rewriters_come_before_views() -> None:
    pipeline = env_to_module_pipeline(spaces.Box(0, 1, (2,)), pieces=[FrameStacking(num_frames=2)])
    with pytest.raises(UnwiredPipeline, match=r"put MeanStdFilter before FrameStacking"):
        pipeline.append(MeanStdFilter())
    pipeline.append(FrameStacking(num_frames=3))  # a view of what the other one makes
    assert pipeline.observation_space.shape == (12,)
    assert pipeline.lookback == 3


def test_trace_has_input_and_output_of_each_connector() -> None:
    pipeline = learner_pipeline()
    batch = pipeline(episodes=[AN_EPISODE], trace=True)
    trace = pipeline.trace
    assert [piece.piece for piece in trace] == ["AddObservations", "AddColumns", "BatchItems", "NumpyToTensor"]
    assert trace[0].got == {}
    assert str(trace[0].gave["obs"]) == "numpy float32[2, 4]"
    assert str(trace[3].changed["rewards"]) == "torch float32[2]"
    assert all(piece.milliseconds > 0 for piece in trace)
    assert "AddColumns" in str(trace)
    assert set(batch) == set(trace[3].gave)


def test_trace_marks_columns_with_new_values() -> None:
    class Doubled(Connector):
        reads = writes = ("rewards",)

        def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
            batch["rewards"] = 2 * batch["rewards"]
            return batch

    class InPlace(Doubled):
        def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
            batch["rewards"] += 1
            return batch

    pipeline = learner_pipeline()
    pipeline.insert_after("AddColumns", InPlace())
    pipeline.insert_after("AddColumns", Doubled())
    pipeline(episodes=[AN_EPISODE], trace=True)
    pieces = {piece.piece: piece for piece in pipeline.trace}
    assert str(pieces["Doubled"]) == str(pieces["InPlace"]) == "rewards: new values"
    assert list(pieces["InPlace"].changed) == ["rewards"]
    assert str(pieces["BatchItems"]) == "(unchanged)"


@pytest.mark.parametrize("piece", [GeneralizedAdvantageEstimation, VTrace, ComputeReturnsToGo])
def test_discount_outside_0_to_1_is_rejected_by_constructor(piece: type) -> None:
    with pytest.raises(InvalidArgument, match=r"gamma=1\.5: it must lie in \[0, 1\]"):
        piece(gamma=1.5)


def test_pipelines_survive_pickling() -> None:
    space = spaces.Box(-1, 1, (3,), np.float32)
    policy = type("Stateful", (), {"get_initial_state": lambda self: {"h": np.zeros(4)}})()
    for build in (env_to_module_pipeline, module_to_env_pipeline, learner_pipeline):
        pipeline = build(space, space, policy=policy)
        assert pickle.loads(pickle.dumps(pipeline)).names == pipeline.names


def test_default_pipelines_keep_existing_columns() -> None:
    input_batch = {"obs": np.full((2, 1), 7.0), "rewards": np.full(2, 8.0), "terminateds": np.ones(2, bool)}
    batch = learner_pipeline()(batch=input_batch, episodes=[AN_EPISODE])
    assert batch["obs"].tolist() == [[7.0], [7.0]]
    assert batch["rewards"].tolist() == [8.0, 8.0]
    assert batch["terminateds"].tolist() == [True, True]
    assert batch["truncateds"].tolist() == [False, False]
