"""An episode may end after the last step of its last chunk: other agents play on until the game ends.

The chunk that says so has no steps. Every place that reads the steps has the ending at the last step, as if the episode
had never been cut.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes.columns import Columns
from episodes.multi_agent import MultiAgentEpisode
from episodes.replay import (
    EpisodeReplayBuffer,
    MultiAgentEpisodeReplayBuffer,
    MultiAgentPrioritizedEpisodeReplayBuffer,
    PrioritizedEpisodeReplayBuffer,
)
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import EpisodeDataset, EpisodeWriter

T = 3
ENDINGS = {"terminated": (True, False), "truncated": (False, True), "both": (True, True)}


def chunk(start: int, stop: int, flags: tuple[bool, bool] = (False, False)) -> SingleAgentEpisode:
    return SingleAgentEpisode(
        id_="x",
        observations=[float(t) for t in range(start, stop + 1)],
        actions=list(range(start, stop)),
        rewards=[1.0] * (stop - start),
        t_started=start,
        terminated=flags[0],
        truncated=flags[1],
        len_lookback_buffer=0,
    ).to_numpy()


def written(chunks: list[SingleAgentEpisode], path: Path) -> EpisodeDataset:
    for each in chunks:
        with EpisodeWriter(path) as writer:
            writer.add(each)
    return EpisodeDataset(path)


def replayed(buffer: EpisodeReplayBuffer) -> Any:
    return buffer.at(np.arange(T))


def added_in_turn(cls: type) -> Callable[..., Any]:
    def read(chunks: list[SingleAgentEpisode], path: Path) -> Any:
        buffer = cls(8)
        for each in chunks:
            buffer.add(each)
        return replayed(buffer)

    return read


def added_at_once(chunks: list[SingleAgentEpisode], path: Path) -> Any:
    buffer = EpisodeReplayBuffer(8)
    buffer.add(chunks)
    return replayed(buffer)


def mapped(chunks: list[SingleAgentEpisode], path: Path) -> Any:
    with EpisodeReplayBuffer(8, path=path) as buffer:
        for each in chunks:
            buffer.add(each)
        buffer.flush()
    with EpisodeReplayBuffer(8, path=path, resume=True) as buffer:
        return replayed(buffer)


def restored(chunks: list[SingleAgentEpisode], path: Path) -> Any:
    buffer = EpisodeReplayBuffer(8)
    for each in chunks:
        state = buffer.get_state()
        buffer = EpisodeReplayBuffer(8)
        buffer.set_state(state)
        buffer.add(each)
    return replayed(buffer)


def from_dataset(chunks: list[SingleAgentEpisode], path: Path) -> Any:
    return replayed(EpisodeReplayBuffer.from_dataset(written(chunks, path), 8))


def steps_of_dataset(chunks: list[SingleAgentEpisode], path: Path) -> Any:
    return written(chunks, path).sampler(steps=1).at(np.arange(T))


def reversed_dataset(chunks: list[SingleAgentEpisode], path: Path) -> Any:
    data = written(chunks, path)
    sampler = data.select(np.arange(len(data))[::-1]).sampler(steps=1)
    batch = sampler.at(np.arange(T))
    order = np.argsort(batch[Columns.OBS])
    return {name: batch[name][order] for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS)}


def longest(sequences: Any) -> Any:
    """Return the columns of a sequence that begins at t=0."""
    (row, *_) = np.flatnonzero(sequences[Columns.LOSS_MASK].sum(1) == T)
    return {name: sequences[name][row] for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS)}


def windows_of_dataset(chunks: list[SingleAgentEpisode], path: Path) -> Any:
    return longest(written(chunks, path).sampler(steps=1).sample_sequences(T, T))


def sequences_of_replay(chunks: list[SingleAgentEpisode], path: Path) -> Any:
    buffer = EpisodeReplayBuffer(8, seed=0)
    for each in chunks:
        buffer.add(each)
    return longest(buffer.sample_sequences(16, T))


WAYS: dict[str, Callable[[list[SingleAgentEpisode], Path], Any]] = {
    "replay, in turn": added_in_turn(EpisodeReplayBuffer),
    "prioritized replay": added_in_turn(PrioritizedEpisodeReplayBuffer),
    "replay, at once": added_at_once,
    "mapped replay": mapped,
    "restored replay": restored,
    "replay of a data set": from_dataset,
    "steps of a data set": steps_of_dataset,
    "sequences of replay": sequences_of_replay,
    "windows of a data set": windows_of_dataset,
    "steps of a data set in another order": reversed_dataset,
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("cuts", [(T,), (1, T), (1, 2, T)], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_late_ending_is_at_the_last_step(way: str, cuts: tuple[int, ...], ending: str, tmp_path: Path) -> None:
    flags = ENDINGS[ending]
    parts = [chunk(a, b) for a, b in zip((0, *cuts), cuts, strict=False)]
    batch = WAYS[way]([*parts, chunk(T, T, flags), chunk(T, T, flags)], tmp_path / "files")
    assert batch[Columns.TERMINATEDS].tolist() == [False] * (T - 1) + [flags[0]]
    assert batch[Columns.TRUNCATEDS].tolist() == [False] * (T - 1) + [flags[1]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("start", [0, 1, T + 1])
def test_chunk_without_steps_at_another_time_ends_nothing(way: str, start: int, tmp_path: Path) -> None:
    batch = WAYS[way]([chunk(0, T), chunk(start, start, (True, False))], tmp_path / "files")
    assert not np.logical_or(batch[Columns.TERMINATEDS], batch[Columns.TRUNCATEDS]).any()


def random_game(draw: st.DrawFn) -> list[MultiAgentEpisode]:
    """Return the chunks of a game in which an agent may see more than it acts."""
    agents = ("a", "b", "c")
    game = MultiAgentEpisode(id_="game")
    game.add_env_reset(observations=dict.fromkeys(agents, 0.0))
    chunks, length = [], draw(st.integers(1, 6))
    for t in range(length):
        acting = draw(st.sets(st.sampled_from(agents), min_size=1))
        waiting = {agent: t + 1.0 for agent in agents if agent in acting}
        game.add_env_step(
            waiting,
            dict.fromkeys(acting, t),
            dict.fromkeys(acting, 1.0),
            terminateds={"__all__": t == length - 1 and draw(st.booleans())},
            truncateds={"__all__": t == length - 1},
        )
        if t < length - 1 and draw(st.booleans()):
            chunks, game = [*chunks, game], game.cut(draw(st.integers(0, 2)))
    return [*chunks, game]


@pytest.mark.parametrize("cls", [MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer])
@given(data=st.data())
def test_games_that_were_cut_have_the_endings_of_whole_games(cls: type, data: st.DataObject) -> None:
    chunks = data.draw(st.composite(random_game)())
    whole = MultiAgentEpisode.from_state(chunks[0].get_state())
    for each in chunks[1:]:
        whole.concat_episode(each)
    cut, uncut = cls(data.draw(st.sampled_from([16, 400]))), {}
    for each in chunks:
        cut.add(each)
    for agent, episode in whole.agent_episodes.items():
        for t, observation in enumerate(episode.get_observations()[:-1]):
            is_last = t == len(episode) - 1
            uncut[agent, float(observation)] = (is_last and episode.is_terminated, is_last and episode.is_truncated)
    (buffer,) = cut.modules.values()
    keys = [Columns.OBS, Columns.AGENT_ID, Columns.TERMINATEDS, Columns.TRUNCATEDS]
    batch = buffer.at(np.arange(buffer.flush_ring().head), keys=keys)
    found = {(a, float(o)): (bool(x), bool(y)) for o, a, x, y in zip(*(batch[key] for key in keys), strict=True)}
    assert found == uncut
