"""Steps whose beginning is not stored: what is read before them is what acting saw, or they are not sampled.

The table: each way in which a beginning is missing, each kind of buffer, and each kind of reader.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from connectors.views.frame_stacking import FrameStacking
from connectors.views.previous_steps import PrevActionsPrevRewards
from connectors.views.transformer_context import TransformerContext
from connectors.views.view import Views
from episodes import SingleAgentEpisode
from episodes.errors import ChunkMismatch, EpisodeStateError, StepOutOfRange
from episodes.history import History
from episodes.multi_agent import MultiAgentEpisode
from episodes.replay import (
    EpisodeReplayBuffer,
    MultiAgentEpisodeReplayBuffer,
    MultiAgentPrioritizedEpisodeReplayBuffer,
    PrioritizedEpisodeReplayBuffer,
)
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.tokens import Conversation

BOX, DISCRETE = spaces.Box(-1000, 1000, (1,), np.float32), spaces.Discrete(50)
T = 30  # steps of the episode; observation t is t + 1, action t is t, reward t is t + 0.5
CHUNK = 12  # where the stored chunk begins


def whole(agent_id: Any = None) -> SingleAgentEpisode:
    return SingleAgentEpisode.from_arrays(
        np.arange(1.0, T + 2, dtype=np.float32)[:, None],
        np.arange(T),
        np.arange(0.5, T, dtype=np.float32),
        extra_model_outputs={"state_out": np.arange(10.0, 10 + T)[:, None]},
        infos=[{"n": t} for t in range(T + 1)],
        id_="e",
        agent_id=agent_id,
        truncated=True,
    )


def chunk(start: int, stop: int, lookback: int, agent_id: Any = None) -> SingleAgentEpisode:
    return whole(agent_id).window(start, stop, lookback, stop == T)


# --- ways in which a beginning is missing: the added chunks, the capacity, and the time of the first known step
WAYS: dict[str, tuple[Callable[[], list[list[SingleAgentEpisode]]], int, int]] = {
    "evicted by its own episode": (lambda: [[whole()]], 20, 10),
    "evicted by later chunks": (lambda: [[chunk(t, t + 3, min(t, 2))] for t in range(0, T, 3)], 20, 10),
    "chunk without lookback": (lambda: [[chunk(CHUNK, T, 0)]], 100, CHUNK),
    "chunk with lookback": (lambda: [[chunk(CHUNK, 20, 3)], [chunk(20, T, 2)]], 100, CHUNK - 3),
    "chunk with lookback from the reset": (lambda: [[chunk(2, 20, 2)], [chunk(20, T, 0)]], 100, 0),
    "chunk with lookback, in part evicted": (lambda: [[chunk(CHUNK, T, 3)], [other(5)]], 20, 15),
    "nothing is missing": (lambda: [[whole()]], 100, 0),
}


def other(length: int) -> SingleAgentEpisode:
    """Return another episode, whose observations are at least 500."""
    values = np.arange(500.0, 501 + length, dtype=np.float32)[:, None]
    state = {"state_out": np.zeros((length, 1))}
    return SingleAgentEpisode.from_arrays(
        values, np.zeros(length, int), np.zeros(length, np.float32), extra_model_outputs=state, id_="other"
    )


# --- kinds of buffers ----------------------------------------------------------------------------------------------


def plain(cls: Any, parts: list[list[SingleAgentEpisode]], capacity: int, path: Path) -> Any:
    buffer = cls(capacity, seed=0)
    for part in parts:
        buffer.add(part)
    return buffer


def mapped(cls: Any, parts: list[list[SingleAgentEpisode]], capacity: int, path: Path) -> Any:
    buffer = cls(capacity, seed=0, path=path / "ring")
    for part in parts:
        buffer.add(part)
    return buffer


def resumed(cls: Any, parts: list[list[SingleAgentEpisode]], capacity: int, path: Path) -> Any:
    buffer = mapped(cls, parts, capacity, path)
    buffer.flush()
    buffer.close()
    return cls(capacity, seed=0, path=path / "ring", resume=True)


def restored(cls: Any, parts: list[list[SingleAgentEpisode]], capacity: int, path: Path) -> Any:
    buffer = cls(capacity, seed=1)
    buffer.set_state(plain(cls, parts, capacity, path).get_state())
    return buffer


def from_dataset(cls: Any, parts: list[list[SingleAgentEpisode]], capacity: int, path: Path) -> Any:
    with EpisodeWriter(path / "data") as writer:
        for part in parts:
            writer.add(part)
    return cls.from_dataset(path / "data", capacity, seed=0)


def through_dataset(cls: Any, parts: list[list[SingleAgentEpisode]], capacity: int, path: Path) -> Any:
    plain(cls, parts, capacity, path).to_dataset(path / "data")
    return cls.from_dataset(EpisodeDataset(path / "data"), capacity, seed=0)


KINDS = [plain, mapped, resumed, restored, from_dataset, through_dataset]


# --- readers -------------------------------------------------------------------------------------------------------


def recent(history: History) -> dict[str, Any]:
    """A user's view: speed, which of the last four observations exist, the time, and the last reward."""
    last = history.observations(4)
    return {"last": last[..., 0] * history.observed(4), "t": history.t, "reward": history.rewards(3)}


def reference(t: np.ndarray, k: int) -> np.ndarray:
    """Return the observations [n, k] up to time `t` [n]: zeros before the reset."""
    return np.maximum(t[:, None] + np.arange(2 - k, 2), 0.0)


def check_stack(batch: Any, t: np.ndarray, prefix: str) -> None:
    assert batch[f"{prefix}obs"].tolist() == reference(t, 4).tolist()


def check_user_view(batch: Any, t: np.ndarray, prefix: str) -> None:
    assert batch[f"{prefix}last"].tolist() == reference(t, 4).tolist()
    assert batch[f"{prefix}t"].tolist() == t.tolist()
    steps = t[:, None] + np.arange(-3, 0)
    assert batch[f"{prefix}reward"].tolist() == np.where(steps >= 0, steps + 0.5, 0).tolist()


def check_transformer(batch: Any, t: np.ndarray, prefix: str) -> None:
    assert batch[f"{prefix}obs"][..., 0].tolist() == reference(t, 3).tolist()
    assert (batch[f"{prefix}attention_mask"] == (reference(t, 3) > 0)).all()
    check_actions(batch[f"{prefix}past_actions"], t, 3)


def check_previous(batch: Any, t: np.ndarray, prefix: str) -> None:
    columns = batch[f"{prefix}obs"]
    check_actions(columns["prev_n_actions"].reshape(len(t), 2, -1), t, 2)
    steps = t[:, None] + np.arange(-3, 0)
    assert columns["prev_n_rewards"].tolist() == np.where(steps >= 0, steps + 0.5, 0).tolist()


def check_actions(one_hot: np.ndarray, t: np.ndarray, k: int) -> None:
    steps = t[:, None] + np.arange(-k, 0)
    assert one_hot.any(-1).tolist() == (steps >= 0).tolist()
    assert (one_hot.argmax(-1) == np.maximum(steps, 0)).all()


VIEWS: dict[str, tuple[Any, int, Callable[..., None]]] = {
    "FrameStacking": (FrameStacking(num_frames=4).see, 3, check_stack),
    "user view": (recent, 3, check_user_view),
    "TransformerContext": (TransformerContext(k=3), 3, check_transformer),
    "PrevActionsPrevRewards": (PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=3).see, 3, check_previous),
}


def bound(name: str) -> Views:
    return Views([VIEWS[name][0]], BOX, DISCRETE)


def known_from(way: str) -> tuple[int, int]:
    """Return the times of the first stored and of the first known step."""
    begin = WAYS[way][2]
    first = {"chunk with lookback": CHUNK, "chunk with lookback from the reset": 2}.get(way, begin)
    return first, begin


def complete_times(way: str, reach: int) -> set[int]:
    first, begin = known_from(way)
    return {t for t in range(first, T) if begin == 0 or t - begin >= reach}


def filled(way: str, kind: Any, cls: Any, path: Path) -> Any:
    parts, capacity, _ = WAYS[way]
    return kind(cls, parts(), capacity, path)


CLASSES = [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_all_readers_read_what_acting_saw(way: str, kind: Any, tmp_path: Path) -> None:
    for cls in CLASSES:
        folder = tmp_path / cls.__name__
        folder.mkdir()
        with filled(way, kind, cls, folder) as buffer:
            for view in VIEWS:
                check_views(buffer, way, view)
            for boundary in ("pad", "stop"):
                for burn_in in (0, 2):
                    check_sequences(buffer, way, boundary, burn_in)


def check_views(buffer: EpisodeReplayBuffer, way: str, view: str) -> None:
    views, (_, reach, check) = bound(view), VIEWS[view]
    assert views.lookback == reach
    for n_step in (1, 3):
        batch = buffer.sample(300, views=views, n_step=n_step, keys=["obs", "new_obs", "t", "eps_id"])
        mine = batch.eps_id == "e"
        assert {*batch.t[mine].tolist()} == complete_times(way, reach)
        check(batch[mine], batch.t[mine], "")
        check(batch[mine], batch.t[mine] + batch.n_step[mine], "new_")
    size = len(buffer)
    assert {*buffer.sample(300, keys=["t"]).indices.tolist()} <= {*range(buffer.num_added - size, buffer.num_added)}


def check_sequences(buffer: EpisodeReplayBuffer, way: str, boundary: str, burn_in: int) -> None:
    keys = ["obs", "t", "is_first", "eps_id", "actions", "rewards", "infos"]
    batch = buffer.sample_sequences(300, 4, burn_in=burn_in, boundary=boundary, keys=keys)
    rows = np.flatnonzero(batch.eps_id[:, burn_in] == "e")
    t = batch.t[rows, burn_in]
    complete = complete_times(way, burn_in + 1)
    assert {*t.tolist()} <= complete
    if boundary == "pad":
        assert {*t.tolist()} == complete
    before = t - burn_in - 1
    assert batch.state_in[rows, 0].tolist() == np.where(before >= 0, before + 10, 0).tolist()
    times = t[:, None] + np.arange(-burn_in, 4)
    there = (times >= 0) & (times < T)
    assert (batch.t[rows] == np.where(there, times, 0)).all()
    assert (batch.obs[rows, :, 0] == np.where(there, times + 1, 0)).all()
    assert (batch.actions[rows] == np.where(there, times, 0)).all()
    assert (batch.is_first[rows] == (times == 0)).all()
    assert [info.get("n") for info in batch.infos[rows].ravel()] == [
        i + 1 if real else None for i, real in zip(times.ravel().tolist(), there.ravel().tolist(), strict=True)
    ]
    in_buffer = there & (times >= known_from(way)[0])
    assert ((batch.indices[rows] >= 0) == in_buffer).all()
    assert not (batch.loss_mask[rows] & ~in_buffer).any()


@pytest.mark.parametrize("way", WAYS)
def test_at_refuses_rows_whose_beginning_is_missing(way: str, tmp_path: Path) -> None:
    view = "FrameStacking"
    buffer, views = filled(way, plain, EpisodeReplayBuffer, tmp_path), bound(view)
    everything = buffer.at(np.arange(buffer.num_added - len(buffer), buffer.num_added), keys=["t", "eps_id"])
    for index, t, id_ in zip(everything.indices, everything.t, everything.eps_id, strict=True):
        if id_ == "other" or int(t) in complete_times(way, VIEWS[view][1]):
            buffer.at([index], views=views)
        else:
            with pytest.raises(StepOutOfRange, match="lookback of at least 3 steps"):
                buffer.at([index], views=views)


@pytest.mark.parametrize("cls", CLASSES)
def test_nothing_complete_is_an_error_by_name(cls: Any) -> None:
    buffer = cls(100, seed=0)
    buffer.add(chunk(10, 12, 1))
    state = buffer.generator.bit_generator.state
    with pytest.raises(EpisodeStateError, match=r"none has the 3 steps before it.*lookback of at least 3 steps"):
        buffer.sample(4, views=bound("FrameStacking"))
    assert buffer.generator.bit_generator.state == state
    assert buffer.num_sampled == 0
    buffer.add(chunk(12, 13, 0))
    assert {*buffer.sample(9, views=bound("FrameStacking")).indices.tolist()} == {2}


class Unlimited:
    """A view that looks back without a limit."""

    given = Views([], BOX, DISCRETE).given
    lookback = None

    def __call__(self, history: History) -> dict[str, Any]:
        return {"depth": history.depth}


@pytest.mark.parametrize("way", WAYS)
def test_unlimited_views_need_the_whole_episode(way: str, tmp_path: Path) -> None:
    buffer = filled(way, plain, EpisodeReplayBuffer, tmp_path)
    if known_from(way)[1] and "in part" not in way:
        with pytest.raises(EpisodeStateError, match="none has all steps before it"):
            buffer.sample(9, views=Unlimited())
    else:
        batch = buffer.sample(50, views=Unlimited(), keys=["obs", "t"])
        assert (batch.depth == batch.t).all()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_recorded_episodes_that_lost_their_beginning(mode: AutoresetMode) -> None:
    buffer = EpisodeReplayBuffer(20, seed=0)
    recorder = buffer.recorder(2, autoreset_mode=mode, observation_space=BOX, action_space=DISCRETE)
    recorder.reset(np.ones((2, 1), np.float32))
    zero, false = np.zeros(2), np.zeros(2, bool)
    for t in range(25):
        recorder.step(np.full((2, 1), t + 2, np.float32), np.full(2, t), zero, false, false)
    batch = buffer.sample(200, views=bound("FrameStacking"), keys=["obs", "new_obs", "t"])
    assert {*batch.t.tolist()} == {*range(18, 25)}
    check_stack(batch, batch.t, "")


@pytest.mark.parametrize("cls", [MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer])
@pytest.mark.parametrize("way", ["evicted", "chunk with lookback", "chunk without lookback", "restored"])
def test_agents_whose_beginning_is_missing(cls: Any, way: str) -> None:
    episode = MultiAgentEpisode(
        observation_space=spaces.Dict({"a": BOX, "b": BOX}), action_space=spaces.Dict({"a": DISCRETE, "b": DISCRETE})
    )
    at = [{agent: np.array([t + 1], np.float32) for agent in "ab"} for t in range(T + 1)]
    episode.add_env_reset(observations=at[0])
    for t in range(T):
        both = {"a": t, "b": t}
        episode.add_env_step(observations=at[t + 1], actions=both, rewards={"a": t + 0.5, "b": t + 0.5})
    episode.finalize()
    buffer = cls(20 if way == "evicted" else 100, seed=0)
    begin = {"evicted": 10, "chunk without lookback": CHUNK}.get(way, CHUNK - 2)
    for part in (
        [episode[t : t + 5] for t in range(0, T, 5)]
        if way == "evicted"
        else [episode.slice(slice(CHUNK, T), len_lookback_buffer=0 if "without" in way else 2)]
    ):
        buffer.add(part)
    if way == "restored":
        state, buffer = buffer.get_state(), cls(100, seed=0)
        buffer.set_state(state)
    (module,) = buffer.modules
    options = {"views": {module: bound("FrameStacking")}, "keys": ["obs", "new_obs", "t"]}
    (batch,) = buffer.sample(200, **options).values()
    assert {*batch.t.tolist()} == {*range(begin + 3, T)}
    check_stack(batch, batch.t, "")
    for batch in buffer.sample_synchronized(200, **options).values():
        assert {*batch.t.tolist()} == {*range(begin + 3, T)}
        check_stack(batch, batch.t, "")


def test_weights_after_replaced_samples_belong_to_one_batch() -> None:
    buffer = PrioritizedEpisodeReplayBuffer(20, alpha=1.0, beta=1.0, seed=0)
    buffer.add(whole())
    buffer.update_priorities(np.arange(10, 30), np.arange(1.0, 21.0))
    batch = buffer.sample(100, views=bound("FrameStacking"))
    shares = buffer.priorities(batch.indices)
    np.testing.assert_allclose(batch.weights, shares.min() / shares, rtol=1e-6)


def test_episodes_and_packs_hold_the_lookback() -> None:
    buffer = plain(EpisodeReplayBuffer, WAYS["chunk with lookback"][0](), 100, Path())
    (pack,) = buffer.iter_packs()
    for episode in (*buffer.sample_episodes(2), *buffer.iter_episodes(), *pack, *buffer.sample_chunks(3, None).pack):
        assert episode.lookback == 3
        assert episode.t_started == CHUNK
        assert episode.get_observations(slice(-3, 0), neg_index_as_lookback=True)[:, 0].tolist() == [10, 11, 12]
        assert episode.get_observations()[:, 0].tolist() == [*range(CHUNK + 1, T + 2)]


# --- samples own their arrays ----------------------------------------------------------------------------------------

SAMPLES: dict[str, Callable[[EpisodeReplayBuffer], list[Any]]] = {
    "sample_episodes": lambda b: b.sample_episodes(3),
    "iter_episodes": lambda b: [*b.iter_episodes()],
    "iter_packs": lambda b: [*b.iter_packs()],
    "sample_chunks": lambda b: [b.sample_chunks(3, 4).pack, b.sample_chunks(1, None).pack],
    "origin": lambda b: [b.sample(1).origin.episode(0)],
    "sample": lambda b: [b.sample(4, keys=["obs", "state_out", "infos"])],
    "sample_sequences": lambda b: [b.sample_sequences(2, 3)],
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_samples_do_not_change_when_steps_are_added(sample: str) -> None:
    buffer = EpisodeReplayBuffer(20, seed=0)
    buffer.add(whole().window(0, 15, 0, False))
    samples = SAMPLES[sample](buffer)
    before = [repr([np.array(leaf) for leaf in leaves(each)]) for each in samples]
    for i in range(20):
        buffer.add([renamed(i)])
    assert [repr([np.array(leaf) for leaf in leaves(each)]) for each in samples] == before


def renamed(i: int) -> SingleAgentEpisode:
    episode = other(5 + i % 3)
    episode.id_ = f"o{i}"
    return episode


def leaves(sample: Any) -> list[np.ndarray]:
    """Return all arrays of an episode, a pack or a batch."""
    if hasattr(sample, "to_dict"):
        return [*sample.to_dict().values()]
    return (
        [sample.observations.data, sample.actions.data, sample.rewards.data]
        if isinstance(sample, SingleAgentEpisode)
        else [sample.observations, sample.actions, sample.rewards]
    )


def test_iterations_leave_out_what_is_evicted_meanwhile() -> None:
    for iterate in ("iter_episodes", "iter_packs"):
        buffer = EpisodeReplayBuffer(20, seed=0)
        for i in range(4):
            buffer.add([renamed(i)])
        iterator = getattr(buffer, iterate)(*((1,) if iterate == "iter_packs" else ()))
        first = next(iterator)
        assert (first.id_ if iterate == "iter_episodes" else first.ids[0]) == "o0" or len(buffer) == 20
        buffer.add([whole().window(0, 18, 0, False)])
        for part in iterator:
            for episode in [part] if iterate == "iter_episodes" else part:
                values = episode.get_observations()[:, 0]
                assert (np.diff(values) == 1).all()
        buffer.clear()
        iterator = getattr(buffer, iterate)()
        assert list(iterator) == []


def test_ragged_chunk_that_begins_later_is_told_to_begin_at_0() -> None:
    talk = Conversation()
    talk.begin([1, 2, 3])
    for k in range(3):
        talk.turn([7] * (k + 1), [8], logp=[-0.1] * (k + 1))
    talk.turn([5], reward=1.0, terminated=True, logp=[-0.1])
    episode = talk.episode
    part = episode[2:]
    for capacity in (3, 1000):
        buffer = EpisodeReplayBuffer(capacity, seed=0)
        with pytest.raises(ChunkMismatch, match="from t=0 on"):
            buffer.add(part)


def changed(track: str, at: int) -> SingleAgentEpisode:
    """Return a chunk from t=12 on with a lookback of 4 steps, whose item at `at` is another one than in `whole`."""
    tracks = {"observations": np.arange(1.0, T + 2, dtype=np.float32)[:, None], "actions": np.arange(T)}
    tracks[track][at] += 7
    other = SingleAgentEpisode.from_arrays(
        tracks["observations"],
        tracks["actions"],
        np.arange(0.5, T, dtype=np.float32),
        extra_model_outputs={"state_out": np.arange(10.0, 10 + T)[:, None]},
        infos=[{"n": t} for t in range(T + 1)],
        id_="e",
        truncated=True,
    )
    return other.window(12, T, 4, True)


@pytest.mark.parametrize("way", ["one after another", "in one call", "in a data set", "after smaller chunks"])
@pytest.mark.parametrize("track", ["observations", "actions"])
@pytest.mark.parametrize("at", [8, 10, 11])
def test_chunk_whose_lookback_differs_is_of_another_episode(way: str, track: str, at: int, tmp_path: Path) -> None:
    def add(part: SingleAgentEpisode) -> EpisodeReplayBuffer:
        parts = [[chunk(0, 12, 0)], [part]]
        if way == "after smaller chunks":
            parts = [[chunk(t, t + 3, min(t, 5))] for t in range(0, 12, 3)] + [[part]]
        if way == "in one call":
            parts = [parts[0] + parts[1]]
        if way == "in a data set":
            return from_dataset(EpisodeReplayBuffer, parts, 100, tmp_path)
        return plain(EpisodeReplayBuffer, parts, 100, tmp_path)

    with pytest.raises(ChunkMismatch, match="does not continue the steps before it"):
        add(changed(track, at))


@pytest.mark.parametrize(("track", "at"), [("observations", 7), ("actions", 7), ("actions", 12)])
def test_what_is_outside_of_a_lookback_is_not_compared(track: str, at: int) -> None:
    buffer = plain(EpisodeReplayBuffer, [[chunk(0, 12, 0)], [changed(track, at)]], 100, Path())
    assert len(buffer) == T
    buffer = plain(EpisodeReplayBuffer, [[chunk(0, 12, 0)], [changed(track, at)]], 5, Path())
    assert len(buffer) == 5
