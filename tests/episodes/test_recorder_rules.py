"""Ongoing episodes of a recorder, rejected calls, and costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from episodes import VectorRecorder
from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch, StepOutOfRange, TrackMismatch, WrongType
from episodes.replay import EpisodeReplayBuffer
from episodes.tracks import nested

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
BOX = spaces.Box(-100, 100, (2,), np.float32)


def recorder_of(num_envs: int = 2, mode: AutoresetMode = NEXT, lookback: int = 0) -> VectorRecorder:
    recorder = VectorRecorder(num_envs, BOX, spaces.Discrete(9), autoreset_mode=mode, len_lookback_buffer=lookback)
    recorder.reset(row_of(0, num_envs), {})
    return recorder


def row_of(number: float, num_envs: int = 2) -> np.ndarray:
    """Return observations [N, 2]: the number, and the environment."""
    return np.stack([np.full(num_envs, number), np.arange(num_envs)], -1).astype(np.float32)


def step(recorder: VectorRecorder, number: int, done: tuple[int, ...] = (), infos: Any = None, **extra: Any) -> None:
    num_envs = recorder.num_envs
    ended = np.isin(np.arange(num_envs), done)
    actions, rewards = np.full(num_envs, number), np.full(num_envs, float(number))
    recorder.step(row_of(number, num_envs), actions, rewards, ended, ~ended & False, infos or {}, extra or None)


# --- rows of both recorders ---------------------------------------------------------------------------------------


@pytest.fixture(params=["packs", "replay"])
def open_recorder(request: pytest.FixtureRequest) -> Callable[..., tuple[Any, Callable[[], Any]]]:
    """Return a function that creates a recorder of two environments, and a function that returns its episodes."""

    def create(mode: AutoresetMode = NEXT, **options: Any) -> tuple[Any, Callable[[], Any]]:
        if request.param == "packs":
            recorder = VectorRecorder(2, autoreset_mode=mode, **options)
            return recorder, recorder.take
        buffer = EpisodeReplayBuffer(100, seed=0)
        return buffer.recorder(2, autoreset_mode=mode, **options), lambda: list(buffer.iter_episodes())

    return create


def numbers_of(episodes: Any) -> list[list[float]]:
    """Return the numbers of the rows of each episode's observations."""
    return [episode.get_observations()[:, 0].tolist() for episode in episodes]


def masked(row: np.ndarray) -> np.ndarray:
    return np.ma.masked_array(row, mask=np.arange(row.size).reshape(row.shape) == 0)


FITS = {"observations": row_of(2), "actions": np.zeros(2, int), "rewards": np.zeros(2)}
FITS |= {"terminateds": np.zeros(2, bool), "truncateds": np.zeros(2, bool)}
WRONG_ROWS: list[dict[str, Any]] = [
    {"observations": np.zeros((2, 3))},
    {"observations": np.zeros((1, 2))},
    {"observations": {"a": row_of(0)}},
    {"observations": np.array([[1, 2], [3, None]], object)},
    {"actions": (np.zeros(2), np.zeros(3))},
    {"rewards": np.zeros((2, 1))},
    {"rewards": np.zeros(3)},
    {"rewards": 1.0},
    {"terminateds": np.zeros(1, bool)},
    {"terminateds": np.array(["False", "False"])},
    {"truncateds": np.zeros(3, bool)},
    {"infos": 7},
    {"extra_model_outputs": {"logp": np.zeros(3)}},
    *({name: masked(FITS[name])} for name in ("observations", "actions", "rewards", "terminateds")),
]


@pytest.mark.parametrize("wrong", WRONG_ROWS, ids=repr)
@pytest.mark.parametrize("num_steps", [0, 1])
def test_row_that_does_not_fit_raises_and_fixes_no_shapes(open_recorder, num_steps, wrong):
    recorder, episodes = open_recorder(len_lookback_buffer=1)
    recorder.reset(row_of(0))
    for _ in range(num_steps):
        step(recorder, 1)
    new_shape = {} if num_steps else {"actions": np.zeros((2, 5))}
    with pytest.raises((ShapeMismatch, TrackMismatch, WrongType), match=rf"{next(iter(wrong))}|logp"):
        recorder.step(**FITS | new_shape | wrong)
    step(recorder, 3)
    assert numbers_of(result := episodes()) == [[0, 1, 3] if num_steps else [0, 3]] * 2
    assert result[0].get_actions().shape == (num_steps + 1,)


@pytest.mark.parametrize(
    ("infos", "error", "message"),
    [
        ({1: np.ones(2)}, WrongType, "infos has the key 1, a int; .* give '1'"),
        ({"a": {"b": {(1, 2): np.ones(2)}}}, WrongType, r"infos\['a/b'\] has the key \(1, 2\), a tuple"),
        ({"log": {"x": np.zeros(3)}}, TrackMismatch, r"infos\['log/x'\] is an array \[3\] of 2 environments"),
    ],
)
def test_infos_that_do_not_fit_raise(open_recorder, infos, error, message):
    recorder, episodes = open_recorder()
    recorder.reset(row_of(0))
    with pytest.raises(error, match=message):
        step(recorder, 1, infos={"fine": np.ones(2), **infos})
    step(recorder, 2, infos={"fine": np.arange(2)})
    assert [list(episode.get_infos()) for episode in episodes()] == [[{}, {"fine": 0}], [{}, {"fine": 1}]]


@pytest.mark.parametrize(
    ("infos", "argument"),
    [
        ({"final_obs": row_of(77), "_final_obs": np.array([False, True])}, {}),
        ({"final_obs": np.array([None, row_of(77)[1]], object)}, {}),
        ({"final_obs": [None, row_of(77)[1]]}, {}),
        ({}, {"final_observations": row_of(77)[1:]}),
    ],
)
def test_final_observations_in_any_form_end_episodes(open_recorder, infos, argument):
    recorder, episodes = open_recorder(SAME)
    recorder.reset(row_of(0))
    recorder.step(**FITS | {"terminateds": np.array([False, True])}, infos=infos, **argument)
    assert [e.get_observations().tolist() for e in episodes()] == [[[0, 0], [2, 0]], [[0, 1], [77, 1]]]


@pytest.mark.parametrize(
    "infos",
    [{}, *({"final_obs": final} for final in (row_of(7, 1), np.full(1, None), np.full(2, None), [np.zeros(2)]))],
)
def test_missing_final_observations_raise(open_recorder, infos):
    recorder, episodes = open_recorder(SAME)
    recorder.reset(row_of(0))
    with pytest.raises(TrackMismatch, match="final_obs"):
        step(recorder, 1, done=(1,), infos=infos)
    step(recorder, 2)
    assert numbers_of(episodes()) == [[0, 2]] * 2


def test_disabled_autoreset_needs_reset(open_recorder):
    recorder, episodes = open_recorder(DISABLED)
    recorder.reset(row_of(0))
    step(recorder, 1, done=(1,))
    with pytest.raises(EpisodeStateError, match=r"environments \[1\] have ended"):
        step(recorder, 2)
    recorder.reset(row_of(5), {}, np.array([False, True]))
    step(recorder, 2)
    assert sorted(numbers_of(episodes())) == [[0, 1], [0, 1, 2], [5, 2]]


def test_step_before_reset_raises(open_recorder):
    recorder, episodes = open_recorder()
    with pytest.raises(EpisodeStateError, match="before the reset"):
        step(recorder, 1)
    with pytest.raises(EpisodeStateError, match="every environment"):
        recorder.reset(row_of(0), {}, np.array([True, False]))
    if isinstance(recorder, VectorRecorder):
        with pytest.raises(EpisodeStateError, match="before the reset"):
            recorder.take()
    recorder.reset(row_of(0))
    step(recorder, 1)
    assert numbers_of(episodes()) == [[0, 1]] * 2


def test_reset_that_does_not_fit_changes_nothing(open_recorder):
    recorder, episodes = open_recorder()
    recorder.reset(row_of(0))
    step(recorder, 1)
    with pytest.raises(ShapeMismatch):
        recorder.reset(np.zeros((2, 5)))
    for mask in (np.array([1, 0]), np.ones(3, bool)):
        with pytest.raises(InvalidArgument, match="reset_mask"):
            recorder.reset(row_of(9), {}, mask)
    step(recorder, 2)
    assert numbers_of(episodes()) == [[0, 1, 2]] * 2


def test_extra_outputs_that_start_late_or_stop_early_raise(open_recorder):
    recorder, episodes = open_recorder()
    recorder.reset(row_of(0))
    step(recorder, 1, logp=np.zeros(2))
    for wrong in ({"value": np.zeros(2)}, {"logp": np.zeros(2), "value": np.zeros(2)}, {}):
        with pytest.raises(TrackMismatch, match=r"value|logp"):
            step(recorder, 2, **wrong)
    step(recorder, 2, logp=np.ones(2))
    assert episodes()[0].get_extra_model_outputs("logp").tolist() == [0, 1]


def test_rows_are_cast_to_spaces_and_copied(open_recorder):
    recorder, episodes = open_recorder(observation_space=BOX, action_space=spaces.Discrete(9))
    observations, rewards, speeds = row_of(0).astype(np.float64), np.zeros(2), np.zeros(2)
    recorder.reset(observations)
    for number in (1, 2):
        observations[:, 0], rewards[:], speeds[:] = number, number, number
        recorder.step(observations, [number] * 2, rewards, [False] * 2, np.zeros(2, int), {"speed": speeds})
    with pytest.raises((ShapeMismatch, TrackMismatch), match="actions"):
        recorder.step(**FITS | {"actions": np.array([0.5, 1.0])})
    observations[:] = rewards[:] = speeds[:] = 99
    for episode in episodes():
        assert (episode.get_observations().dtype, episode.get_actions().dtype) == (np.float32, np.int64)
        assert episode.observation_space is BOX
        assert (episode.get_observations()[:, 0].tolist(), episode.get_rewards().tolist()) == ([0, 1, 2], [1, 2])
        assert list(episode.get_infos()) == [{}, {"speed": 1}, {"speed": 2}]


# --- recorders of packs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("looked_at", [False, True])
def test_custom_data_stays_with_taken_episode(looked_at):
    recorder = recorder_of()
    step(recorder, 1)
    recorder.ongoing(0).custom_data["mine"] = 1
    before = recorder.take()
    if looked_at:
        recorder.ongoing(1)
    recorder.reset(row_of(5))
    assert recorder.ongoing(0).custom_data == {}
    step(recorder, 6)
    assert [episode.custom_data for episode in before] == [{"mine": 1}, {}]
    assert [episode.custom_data for episode in recorder.take()] == [{}, {}]


def test_failed_step_keeps_previous_outputs():
    recorder = recorder_of(lookback=1)
    step(recorder, 1, logp=np.ones(2))
    recorder.take()
    for wrong in (7, {"speed": np.zeros(3)}):
        with pytest.raises((WrongType, TrackMismatch)):
            step(recorder, 2, infos=wrong, value=np.zeros((2, 3)))
    step(recorder, 2, logp=np.ones(2))
    assert recorder.take().extra_model_outputs["logp"].tolist() == [1, 1, 1, 1]  # the lookback's, not zeros


@pytest.mark.parametrize("observations", [np.zeros((2, 0)), {"a": {}, "b": np.zeros((2, 0, 3))}])
@pytest.mark.parametrize("mode", [NEXT, SAME])
def test_observations_of_size_zero_are_recorded(observations, mode):
    recorder = VectorRecorder(2, autoreset_mode=mode, len_lookback_buffer=1)
    recorder.reset(observations)
    finals = {"final_observations": observations} if mode is SAME else {}
    for done in (False, True, False):
        flags = np.full(2, done), np.zeros(2, bool)
        recorder.step(observations, np.zeros(2, int), np.zeros(2), *flags, {}, **(finals if done else {}))
    pack = recorder.take()
    assert pack.num_steps == (6 if mode is SAME else 4)
    assert nested.same_structure(pack[0].get_observations(-1), observations)


@pytest.mark.parametrize("observations", [{}, (), {"a": {}}])
def test_reset_without_arrays_raises(observations):
    for recorder in (VectorRecorder(2, autoreset_mode=NEXT), EpisodeReplayBuffer(9).recorder(2, autoreset_mode=NEXT)):
        with pytest.raises(ShapeMismatch, match="no array"):
            recorder.reset(observations)


@pytest.mark.parametrize(("first", "then"), [([1.5, 2.5], ["a", "b"]), (["a", "b"], [1, 2]), ([1, 2], ["3", "4"])])
def test_numbers_and_strings_are_not_converted(first, then):
    recorder = recorder_of()
    step(recorder, 1, text=np.array(first))
    with pytest.raises(ShapeMismatch, match=r"'text'\]: a row has dtype .*, its track .*; give items of one kind"):
        step(recorder, 2, text=np.array(then))
    with pytest.raises(ShapeMismatch, match="actions: a row has dtype <U1, its track int64"):
        recorder.step(
            row_of(2), np.array(["3", "4"]), np.ones(2), *np.zeros((2, 2), bool), {}, {"text": np.array(first)}
        )
    step(recorder, 3, text=np.array(first))
    assert recorder.take()[0].get_extra_model_outputs("text").tolist() == [first[0]] * 2


def test_infos_are_columns_unless_all_are_empty():
    recorder = recorder_of()
    step(recorder, 1)
    assert not recorder.take().infos.columns
    step(recorder, 2, infos={"x": np.array([5, 6]), "_x": np.array([True, False])})
    infos = recorder.take().infos
    assert infos.columns
    assert list(infos) == [{}, {"x": 5}, {}, {}]


# --- the ongoing episodes ----------------------------------------------------------------------------------------


def test_recent_of_unknown_output_is_none():
    recorder = recorder_of()
    assert recorder.episodes.recent("actions", 1)[0] is None
    rows, valid = recorder.episodes.recent("state_out", 2)
    assert rows is None
    assert valid.tolist() == [[False, False], [False, False]]
    with pytest.raises(InvalidArgument, match="at least 1"):
        recorder.episodes.recent("actions", 0)
    with pytest.raises(StepOutOfRange, match=r"environments 0\.\.1"):
        recorder.episodes[2]


def test_new_output_after_take_is_zero_in_lookback():
    recorder = recorder_of(2, lookback=2)
    for t in (1, 2, 3):
        step(recorder, t)
    recorder.take()
    step(recorder, 4, logp=np.full(2, 5.0))
    rows, valid = recorder.episodes.recent("logp", 2)
    assert (rows[:, 0].tolist(), valid[:, 0].tolist()) == ([0, 5], [False, True])
    chunk = recorder.take()[0]
    assert chunk.get_observations(slice(-2, 2), neg_index_as_lookback=True)[:, 0].tolist() == [1, 2, 3, 4]
    assert chunk.get_extra_model_outputs("logp", slice(-2, 1), neg_index_as_lookback=True).tolist() == [0, 0, 5]
