"""The strategies draw valid data of all kinds, which the library's classes accept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode, VectorRecorder
from episodes.replay import EpisodeReplayBuffer
from episodes.testing import strategies
from episodes.testing.strategies import EnvEpisode, MultiAgentHistory, VectorRows
from episodes.tracks import nested
from episodes.tracks.infos.infos import same_info


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")  # of a space that samples numbers, not arrays
@given(data=st.data())
def test_items_strategy_draws_items_of_space(data: st.DataObject) -> None:
    space = data.draw(strategies.spaces(text=True))
    assert space.contains(data.draw(strategies.items(space, arrange=False)))
    item = data.draw(strategies.items(space))
    assert nested.equal(item, data.draw(strategies.arrangements(item)))


@pytest.mark.parametrize(
    ("drawn", "kind"),
    [
        (strategies.spaces(), lambda space: isinstance(space, gym.spaces.Dict) and len(space.spaces) > 1),
        (strategies.spaces(), lambda space: isinstance(space, gym.spaces.Tuple)),
        (strategies.spaces(), lambda space: space.dtype == np.float16),
        (strategies.spaces(text=True), lambda space: isinstance(space, gym.spaces.Text)),
        (strategies.episodes(), lambda episode: not len(episode)),
        (strategies.episodes(), lambda episode: len(episode) == 1 and episode.lookback and episode.is_numpy),
        (strategies.episodes(), lambda episode: episode.is_terminated and episode.is_truncated),
        (strategies.episodes(), lambda episode: any(episode.get_infos()) and not episode.is_numpy),
        (strategies.episodes(), lambda episode: "state_out" in episode.extra_model_outputs),
        (strategies.packs(), lambda pack: len(pack) > 2 and pack.num_steps and not pack.lengths[0]),
        (strategies.multi_agent_histories(), lambda history: history.cuts and history.whole().is_done),
        (strategies.multi_agent_histories(), lambda history: len(history.whole().agent_ids) > 1),
        (strategies.vector_rows(), lambda rows: sum(episode.is_done for episode in rows.episodes) > 2),
        (strategies.vector_rows(), lambda rows: "final_obs" in rows.rows[0].infos if rows.rows else False),
    ],
)
def test_strategies_draw_every_kind(drawn: st.SearchStrategy[Any], kind: Callable[[Any], Any]) -> None:
    quickly = settings(max_examples=2000, database=None, phases=[Phase.generate])
    find(drawn, lambda value: bool(kind(value)), settings=quickly)


@given(data=st.data(), finalized=st.booleans(), ended=st.booleans())
def test_episodes_strategy_follows_arguments(data: st.DataObject, finalized: bool, ended: bool) -> None:
    space = gym.spaces.Discrete(3)
    episode = data.draw(
        strategies.episodes(
            action_space=space, finalized=finalized, ended=ended, min_steps=1, max_steps=2, with_spaces=True
        )
    )
    assert (episode.is_numpy, episode.is_done, episode.action_space) == (finalized, ended, space)
    assert 1 <= len(episode) <= 2
    episode.validate()


@given(pack=strategies.packs(extra_outputs=["action_logp"], max_lookback=0))
def test_packs_strategy_draws_packs(pack: EpisodePack) -> None:
    assert isinstance(pack, EpisodePack)
    assert all(isinstance(episode, SingleAgentEpisode) for episode in pack)
    assert list(pack[0].extra_model_outputs) == ["action_logp"]


@given(history=strategies.multi_agent_histories(), lookback=st.integers(0, 4))
def test_history_chunks_join_to_whole(history: MultiAgentHistory, lookback: int) -> None:
    whole, chunks = history.whole(id_="game"), history.chunks(lookback, id_="game")
    assert isinstance(whole, MultiAgentEpisode)
    assert len(chunks) == len(history.cuts) + 1
    for later in chunks[1:]:
        chunks[0].concat_episode(later)
    assert chunks[0].equals(whole)


def assert_is_the_episode(chunks: list[SingleAgentEpisode], episode: EnvEpisode) -> None:
    """Assert that the chunks, concatenated, equal the episode."""
    at = 0
    for chunk in chunks:
        assert chunk.t_started == at
        first, stop = at - chunk.lookback, at + len(chunk)
        assert nested.equal(chunk.observations.data, nested.stack(episode.observations[first : stop + 1]))
        assert same_info(list(chunk.infos), episode.infos[first : stop + 1])
        if stop > first:
            assert nested.equal(chunk.actions.data, nested.stack(episode.actions[first:stop]))
            assert chunk.rewards.data.tolist() == episode.rewards[first:stop]
            assert chunk.extra_model_outputs["vf"].data.tolist() == episode.outputs[first:stop]
        at = stop
    assert at == len(episode.rewards)
    assert [chunk.is_done for chunk in chunks[:-1]] == [False] * (len(chunks) - 1)
    assert (chunks[-1].is_terminated, chunks[-1].is_truncated) == (episode.terminated, episode.truncated)


ROWS = strategies.vector_rows() | strategies.vector_rows(autoreset_mode=AutoresetMode.NEXT_STEP, flags_on_resets=True)


@given(rows=ROWS, lookback=st.integers(0, 3), takes=st.sets(st.integers(1, 12), max_size=3))
def test_recorder_finds_episodes_of_vector_rows(rows: VectorRows, lookback: int, takes: set[int]) -> None:
    recorder = VectorRecorder(
        rows.num_envs,
        rows.observation_space,
        rows.action_space,
        autoreset_mode=rows.autoreset_mode,
        len_lookback_buffer=lookback,
    )
    chunks: dict[str, list[SingleAgentEpisode]] = {}
    envs: dict[str, int] = {}
    bounds = sorted({0, len(rows.rows), *(take for take in takes if take < len(rows.rows))})
    for start, stop in pairwise(bounds):
        rows.record(recorder, slice(start, stop))
        num_steps, pack = recorder.count_steps(), recorder.take()
        assert (pack.num_steps, recorder.count_steps()) == (num_steps, 0)
        for env, chunk in zip(recorder.taken_envs.tolist(), pack, strict=True):
            chunks.setdefault(chunk.id_, []).append(chunk)
            envs[chunk.id_] = env
    result = sorted(((envs[id_], parts) for id_, parts in chunks.items()), key=lambda item: item[0])
    expected = sorted((e for e in rows.episodes if e.rewards), key=lambda episode: episode.env)
    assert [env for env, _ in result] == [episode.env for episode in expected]
    for (_, parts), episode in zip(result, expected, strict=True):
        assert_is_the_episode(parts, episode)


@given(rows=ROWS)
def test_replay_recorder_finds_episodes_of_vector_recorder(rows: VectorRows) -> None:
    buffer = EpisodeReplayBuffer(1000)
    spaces = {"observation_space": rows.observation_space, "action_space": rows.action_space}
    packs = VectorRecorder(rows.num_envs, autoreset_mode=rows.autoreset_mode, **spaces)
    for recorder in (packs, buffer.recorder(rows.num_envs, autoreset_mode=rows.autoreset_mode, **spaces)):
        rows.record(recorder)
    remaining = list(packs.take())
    for stored in buffer.iter_episodes():
        equal = [e for e in remaining if e.tracks == stored.tracks and e.ending == stored.ending]
        assert equal
        remaining.remove(equal[0])
    assert not remaining


@given(rows=strategies.vector_rows(autoreset_mode=AutoresetMode.NEXT_STEP, flags_on_resets=True))
def test_reset_row_flags_end_no_episode(rows: VectorRows) -> None:
    done = [row.terminateds | row.truncateds for row in rows.rows]
    endings = sum(episode.is_done for episode in rows.episodes)
    assert sum(map(np.count_nonzero, done)) >= endings


def test_strategies_without_hypothesis_name_extra() -> None:
    script = "import sys; sys.modules['hypothesis'] = None\nimport episodes.testing\nimport episodes.testing.strategies"
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root, check=False)
    assert "pip install '.[testing]'" in run.stderr
