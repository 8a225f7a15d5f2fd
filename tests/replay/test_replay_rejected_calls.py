"""A call that raises an error leaves a buffer or recorder as it was, in any state and with any wrong arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import VectorRecorder
from episodes.errors import EpisodeError
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.replay import (
    EpisodeReplayBuffer,
    MultiAgentEpisodeReplayBuffer,
    MultiAgentPrioritizedEpisodeReplayBuffer,
    PrioritizedEpisodeReplayBuffer,
)
from episodes.single_agent import SingleAgentEpisode

N = 2
WRONG: list[Any] = [
    None,
    -1,
    0,
    2**70,
    1.5,
    float("nan"),
    True,
    "text",
    b"bytes",
    object(),
    [],
    {},
    ["obs", "nothing"],
    [[1], [2, 3]],
    (3, 1),
    {"obs": 1},
    np.array([0.5, 1.5]),
    np.array([True, False]),
    np.array([10**12, 3]),
    np.array(["a", "b"]),
    np.array([None, 3], object),
    np.zeros((3, 5)),
    np.zeros(N, complex),
    np.zeros((N, 0)),
    np.full(N, 2**63, np.uint64),
]


def chunk(id_: str, t_started: int, length: int, **options: Any) -> SingleAgentEpisode:
    values = t_started + np.arange(length + 1.0)
    return SingleAgentEpisode.from_arrays(
        values,
        np.arange(length),
        values[1:],
        id_=id_,
        t_started=t_started,
        infos=[{"seen": float(value)} for value in values],
        policy_versions=np.full(length, 2**40),
        extra_model_outputs={"logp": values[:-1]},
        **options,
    )


def rejected_episodes() -> list[Any]:
    """Return episodes that the filled buffers below must reject, alone or after valid episodes."""
    valid, narrow = chunk("new", 0, 3), SingleAgentEpisode.from_arrays(np.zeros((3, 2)), [0, 1], [1.0, 1.0])
    return [
        chunk("a", 9, 2),
        chunk("ended", 4, 2),
        narrow,
        [valid, narrow],
        [valid, chunk("new", 5, 2)],
        [valid, 3],
        EpisodePack.from_episodes([valid, chunk("a", 0, 2)]),
        SingleAgentEpisode.from_arrays(np.arange(3.0), [0, 1], [1.0, 1.0], id_="without outputs"),
    ]


def digest(value: Any) -> str:
    """Return a hash of a state: dicts, lists, arrays and plain values."""
    hasher = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, dict):
            hasher.update(b"{")
            for key, item in part.items():
                add(key)
                add(item)
        elif isinstance(part, (list, tuple)):
            hasher.update(b"[")
            for item in part:
                add(item)
        elif isinstance(part, np.ndarray) and part.dtype != object:
            hasher.update(f"{part.dtype}{part.shape}".encode() + part.tobytes())
        elif isinstance(part, (int, float, str, bytes, bool, type(None), np.generic)):
            hasher.update(repr(part).encode())
        else:
            hasher.update(repr(list(part) if hasattr(part, "__len__") else type(part)).encode())

    add(value)
    return hasher.hexdigest()


def changed(draw: Any, valid: dict[str, Any], wrong_values: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the arguments with one or two wrong values."""
    names = draw(st.lists(st.sampled_from(sorted(valid)), min_size=1, max_size=2, unique=True))
    return {
        name: draw(st.sampled_from([*WRONG, *wrong_values.get(name, [])])) if name in names else value
        for name, value in valid.items()
    }


def check_rejected(call: Callable[[], Any], state: Callable[[], Any]) -> bool:
    """Call, and compare the states if it raises. Return False if it does not raise."""
    before = state()
    try:
        call()
    except EpisodeError:
        assert state() == before
        return True
    return False


# --- buffers of one agent -----------------------------------------------------------------------------------------

CALLS: dict[str, dict[str, Any]] = {
    "add": {"episodes": None, "keys": None},
    "recorder": {
        "num_envs": 2,
        "autoreset_mode": "NextStep",
        "observation_space": None,
        "action_space": None,
        "len_lookback_buffer": 1,
        "keys": ["logp"],
    },
    "sample": {
        "n": 3,
        "n_step": 2,
        "gamma": 0.9,
        "keys": ["obs", "t"],
        "include_infos": True,
        "max_age": 3,
    },
    "at": {"indices": np.array([1]), "n_step": 2, "gamma": 0.9, "keys": ["obs"], "include_infos": "columns"},
    "sample_sequences": {
        "batch_size": 2,
        "length": 3,
        "burn_in": 1,
        "lookback": 1,
        "boundary": "pad",
        "period": 2,
        "keys": ["obs"],
        "include_infos": False,
    },
    "sample_episodes": {"n": 2},
    "iter_packs": {"num_steps": 3},
    "set_state": {"state": {}},
}
PRIORITIZED_CALLS = CALLS | {
    "update_priorities": {"indices": np.array([1, 2]), "priorities": np.array([1.0, 2.0])},
    "priorities": {"indices": np.array([1])},
    "set_beta": {"beta": 0.3},
}


def broken_states(state: dict[str, Any]) -> list[Any]:
    """Return malformed states: a part is missing, or of another kind."""
    broken: list[Any] = [{key: value for key, value in state.items() if key != name} for name in state]
    for name in state:
        broken += [{**state, name: wrong} for wrong in (None, 3, {}, [], "x")]
    for name in state.get("ring", {}):
        broken += [{**state, "ring": {**state["ring"], name: wrong}} for wrong in (None, "x", {}, [3])]
    return broken


@pytest.mark.parametrize("maker", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_rejected_call_leaves_buffer_unchanged(maker: Any, data: st.DataObject) -> None:
    draw = data.draw
    buffer = maker(
        12,
        seed=0,
        **({"unit": "sequence", "period": 2} if draw(st.booleans()) and maker is not EpisodeReplayBuffer else {}),
    )
    fill = draw(st.integers(0, 3))
    if fill:
        buffer.add([chunk("a", 0, 5), chunk("ended", 0, 4, terminated=True)][:fill])
    if fill == 3:
        buffer.add([chunk("b", 0, 9)])
        buffer.sample_sequences(3, 2)
    calls = CALLS if maker is EpisodeReplayBuffer else PRIORITIZED_CALLS
    name = draw(st.sampled_from(sorted(calls)))
    wrong_values: dict[str, list[Any]] = {"episodes": rejected_episodes(), "state": broken_states(buffer.get_state())}
    arguments = changed(draw, calls[name], wrong_values)
    check_rejected(lambda: getattr(buffer, name)(**arguments), lambda: digest(buffer.get_state()))
    buffer.clear()
    buffer.set_state(maker(12).get_state())
    buffer.close()


# --- recorders ------------------------------------------------------------------------------------------------------


def valid_row(t: int, mode: str, ends: bool) -> dict[str, Any]:
    row = {
        "observations": np.arange(N) + float(t),
        "actions": np.full(N, t),
        "rewards": np.ones(N),
        "terminateds": np.array([ends, False]),
        "truncateds": np.zeros(N, bool),
        "infos": {"speed": np.arange(N) * 1.0},
        "extra_model_outputs": {"logp": np.ones(N)},
        "final_observations": None,
    }
    if mode == "SameStep" and ends:
        row["final_observations"] = np.ones(1)
    return row


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("into_buffer", [False, True])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rejected_call_leaves_recorder_unchanged(into_buffer: bool, mode: str, data: st.DataObject) -> None:
    draw = data.draw
    num_valid = draw(st.integers(0, 4))
    wrong_at = draw(st.integers(0, num_valid))
    lookback = draw(st.integers(0, 2))
    ends = [draw(st.booleans()) for _ in range(num_valid)]
    reset_wrong, ends_wrong = draw(st.booleans()), draw(st.booleans())
    wrong_row = changed(draw, valid_row(9, mode, ends_wrong), {})
    wrong_reset = changed(draw, {"observations": np.zeros(N), "infos": {}, "reset_mask": np.array([True, False])}, {})

    def record(is_disturbed: bool) -> Any:
        """Return a hash of the recorded episodes. None if the wrong call was accepted."""
        buffer = EpisodeReplayBuffer(40, seed=0)
        recorder: Any
        if into_buffer:
            recorder = buffer.recorder(N, autoreset_mode=mode, len_lookback_buffer=lookback)
        else:
            recorder = VectorRecorder(N, autoreset_mode=mode, len_lookback_buffer=lookback)
        was_rejected = not is_disturbed

        def disturb() -> None:
            nonlocal was_rejected
            call = (lambda: recorder.reset(**wrong_reset)) if reset_wrong else (lambda: recorder.step(**wrong_row))
            try:
                call()
            except EpisodeError:
                was_rejected = True

        if is_disturbed and wrong_at == 0:
            disturb()
        recorder.reset(np.zeros(N))
        for t in range(num_valid):
            if mode == "Disabled" and t and ends[t - 1]:
                recorder.reset(np.full(N, -1.0), reset_mask=np.array([True, False]))
            if is_disturbed and wrong_at == t + 1:
                disturb()
            if not was_rejected and is_disturbed and wrong_at <= t + 1:
                return None
            recorder.step(**valid_row(t, mode, ends[t]))
        if not was_rejected:
            return None
        recorded = buffer.iter_episodes() if into_buffer else recorder.take()
        return digest([{**e.get_state(), "id_": ""} for e in recorded])

    disturbed = record(True)
    if disturbed is not None:
        assert disturbed == record(False)


# --- buffers of several agents ------------------------------------------------------------------------------------


def game(number: int, length: int, agents: tuple[str, ...] = ("a0", "a1", "b0"), shape: tuple[int, ...] = ()) -> Any:
    episode = MultiAgentEpisode(f"g{number}", agent_to_module_mapping_fn=lambda agent, _: agent[0])
    episode.add_env_reset(observations={agent: np.zeros(shape) for agent in agents})
    for t in range(length):
        observations = {agent: np.full(shape, t + 1.0) for agent in agents}
        episode.add_env_step(observations, dict.fromkeys(agents, t), dict.fromkeys(agents, 1.0))
    return episode


MULTI_AGENT_CALLS: dict[str, dict[str, Any]] = {
    "add": {"episodes": None},
    "sample": {"n": 2, "module_ids": ["a", "b"], "n_step": 2, "gamma": 0.9, "keys": ["obs"]},
    "sample_synchronized": {"n": 2, "module_ids": ["a"], "n_step": 2, "gamma": 0.9, "keys": ["obs"]},
    "set_state": {"state": {}},
}
MULTI_AGENT_PRIORITIZED_CALLS = MULTI_AGENT_CALLS | {
    "update_priorities": {
        "indices": {"a": np.array([1]), "b": np.array([2])},
        "priorities": {"a": np.array([5.0]), "b": np.array([7.0])},
    },
    "set_beta": {"beta": 0.3},
}


@pytest.mark.parametrize("maker", [MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rejected_call_leaves_multi_agent_buffer_unchanged(maker: Any, data: st.DataObject) -> None:
    draw = data.draw
    buffer = maker(20, seed=0)
    if draw(st.booleans()):
        buffer.add([game(1, 8), game(2, 5)])
    calls = MULTI_AGENT_CALLS if maker is MultiAgentEpisodeReplayBuffer else MULTI_AGENT_PRIORITIZED_CALLS
    name = draw(st.sampled_from(sorted(calls)))
    one_wrong = {"a": np.array([1]), "b": np.array([10**9])}
    wrong_values: dict[str, list[Any]] = {
        "episodes": [
            [game(3, 4), game(1, 4)],
            game(4, 3, shape=(2,)),
            [game(3, 4), game(4, 3, shape=(2,))],
            [game(3, 2), 5],
        ],
        "state": broken_states(buffer.get_state()),
        "module_ids": [["a", "c"], ["b", "c"], "a"],
        "keys": [["obs", "nothing"]],
        "indices": [one_wrong],
        "priorities": [{"a": np.array([1.0]), "b": np.array([-1.0])}],
    }
    arguments = changed(draw, calls[name], wrong_values)
    check_rejected(lambda: getattr(buffer, name)(**arguments), lambda: digest(buffer.get_state()))
    buffer.clear()
