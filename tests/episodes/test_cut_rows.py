"""Recorders whose environments are replaced at any row: equal to a reference that keeps one list per environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st

from episodes.errors import EpisodeStateError
from episodes.recorder.vector_recorder import VectorRecorder
from episodes.replay import EpisodeReplayBuffer

NUM_ENVS = 3
FLAGS = st.lists(
    st.sampled_from([0, 0, 0, 1, 2, 3]), min_size=NUM_ENVS, max_size=NUM_ENVS
)  # 1: ends, 2: fails, 3: both
PROGRAMS = st.lists(st.tuples(FLAGS, st.booleans()), min_size=1, max_size=25)  # events of each row, and a take after it


class Reference:
    """Episodes of N environments as lists. An observation is 1000 * number of the episode + step."""

    def __init__(self) -> None:
        self.num_episodes = 0
        self.going = [self.new() for _ in range(NUM_ENVS)]
        self.waits = [False] * NUM_ENVS
        self.episodes: list[tuple[list[int], bool]] = []  # observations, whether it terminated

    def new(self) -> list[int]:
        self.num_episodes += 1
        return [1000 * self.num_episodes]

    def row(self, events: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the observations [N], flags [N] and failed environments [k] of a vector step."""
        flags, failed = np.zeros(NUM_ENVS, bool), []
        for env, event in enumerate(events):
            if event >= 2:
                failed.append(env)
            if self.waits[env] or event >= 2:
                if not self.waits[env]:
                    self.end(env, terminated=False)
                self.going[env], self.waits[env] = self.new(), False
                continue
            self.going[env].append(self.going[env][-1] + 1)
            if event == 1:
                flags[env] = self.waits[env] = True
                self.end(env, terminated=True)
        return np.array([episode[-1] for episode in self.going], np.float32), flags, np.array(failed, int)

    def end(self, env: int, terminated: bool) -> None:
        if len(self.going[env]) > 1:
            self.episodes.append((self.going[env], terminated))

    def all(self) -> list[tuple[list[int], bool]]:
        """Return all episodes with a step, those that go on included."""
        for env in range(NUM_ENVS):
            if not self.waits[env]:
                self.end(env, terminated=False)
        return sorted(self.episodes)


def play(program: list[Any], recorder: Any, take: Any) -> Reference:
    reference = Reference()
    recorder.reset(np.array([episode[-1] for episode in reference.going], np.float32))
    for events, takes in program:
        observations, flags, failed = reference.row(events)
        if len(failed):
            recorder.cut(failed)
        recorder.step(observations, np.zeros(NUM_ENVS), np.ones(NUM_ENVS), flags, np.zeros(NUM_ENVS, bool))
        if takes:
            take()
    return reference


@given(PROGRAMS)
def test_packs_of_failing_environments_equal_the_reference(program: list[Any]) -> None:
    recorder = VectorRecorder(NUM_ENVS, autoreset_mode="NextStep")
    chunks: list[Any] = []
    reference = play(program, recorder, lambda: chunks.extend(recorder.take()))
    chunks.extend(recorder.take())
    joined: dict[str, tuple[list[int], bool]] = {}
    for chunk in chunks:
        before, _ = joined.get(chunk.id_, ([], False))
        assert chunk.t_started == max(len(before) - 1, 0)
        joined[chunk.id_] = (before[:-1] + chunk.get_observations().astype(int).tolist(), chunk.is_terminated)
        assert not chunk.is_truncated
    assert sorted(joined.values()) == reference.all()
    assert recorder.count_steps() == 0


@given(PROGRAMS)
def test_replay_of_failing_environments_equals_the_reference(program: list[Any]) -> None:
    buffer = EpisodeReplayBuffer(200, seed=0)
    recorder = buffer.recorder(NUM_ENVS, autoreset_mode="NextStep")
    reference = play(program, recorder, lambda: len(buffer))
    stored = sorted((e.get_observations().astype(int).tolist(), e.is_terminated) for e in buffer.iter_episodes())
    assert stored == reference.all()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_cut_needs_rows_that_are_resets(mode: AutoresetMode) -> None:
    buffer = EpisodeReplayBuffer(20)
    for recorder in (VectorRecorder(2, autoreset_mode=mode), buffer.recorder(2, autoreset_mode=mode)):
        recorder.reset(np.zeros(2))
        with pytest.raises(EpisodeStateError, match="only next-step autoreset"):
            recorder.cut(np.array([0]))
