"""Every row of a batch equals the step that its origin names."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from connectors import learner_pipeline, multi_agent_learner
from connectors.env_to_module import FrameStacking
from connectors.prefetch import Prefetch
from episode_learners.algorithms.minibatches import rows_of, shuffled
from episodes import Batch, EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.batch.origin import Origin
from episodes.errors import EpisodeStateError, StepOutOfRange, WrongType
from episodes.replay import EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer

OBSERVATIONS, ACTIONS = spaces.Box(-1e6, 1e6, (2,), np.float32), spaces.Discrete(100)
GAMMA = 0.9


def chunk(number: int, steps: int, lookback: int = 0, ended: str = "", **facts: Any) -> SingleAgentEpisode:
    """Return a chunk that begins at t=lookback. All observations, actions and rewards are different."""
    times = np.arange(lookback + steps + 1)
    observations = np.stack([np.full(len(times), number), times], 1).astype(np.float32)
    facts = {"id_": f"episode {number}", "t_started": lookback, "len_lookback_buffer": lookback, **facts}
    return SingleAgentEpisode(
        observations=list(observations),
        actions=list(times[:-1]),
        rewards=list(times[:-1] + 100.0 * number),
        terminated=ended == "terminated",
        truncated=ended == "truncated",
        **facts,
    ).to_numpy()


shapes = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 3), st.sampled_from(["", "terminated", "truncated"])),
    min_size=1,
    max_size=5,
)
chunks = shapes.map(lambda them: [chunk(i, *own) for i, own in enumerate(them)])


def assert_read_again(batch: Any, width: int = 1) -> int:
    """Check each row that has an origin, and return the number of checked rows. Others are padding or context."""
    origin: Origin = batch.origin
    observations, actions, rewards = (np.asarray(batch[name]) for name in ("obs", "actions", "rewards"))
    assert origin.numbers.shape == actions.shape
    assert origin.numbers.dtype == np.int64
    for row, number in np.ndenumerate(origin.numbers):
        if number < 0:
            assert origin[row] is None
            continue
        step, episode = origin[row], origin.episode(row)
        k = step.t - episode.t_started
        assert (episode.id_, episode.t_started, step.agent_id) == (step.id_, step.t_started, episode.agent_id)
        assert episode.t_started + len(episode) == step.t_stop
        window = [episode.get_observations(k - j, neg_index_as_lookback=True, fill=0) for j in range(width)]
        assert np.array_equal(observations[row], np.concatenate(window[::-1]))
        assert actions[row] == episode.get_actions(k)
        if "n_step" not in batch:
            assert rewards[row] == episode.get_rewards(k)
    return int((origin.numbers >= 0).sum())


def num_steps(episodes: Any) -> int:
    return sum(map(len, episodes))


@given(chunks, st.booleans(), st.sampled_from([None, 1, 2, 4]), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_origin_of_learner_row_and_of_sample_through_views(
    episodes: list[SingleAgentEpisode], packed: bool, length: int | None, frames: int, seed: int
) -> None:
    pieces = [FrameStacking(num_frames=frames)]
    pipeline = learner_pipeline(OBSERVATIONS, ACTIONS, pieces=pieces, max_seq_len=length)
    source = EpisodePack.from_episodes(episodes) if packed else episodes
    batch = pipeline(episodes=source)
    assert assert_read_again(batch, frames) == num_steps(episodes)
    if length is not None:
        assert np.array_equal(batch.origin.numbers >= 0, np.asarray(batch["loss_mask"]))
    buffer = EpisodeReplayBuffer(50, seed=seed)
    buffer.add(episodes)
    if len(buffer):
        assert assert_read_again(buffer.sample(6, views=pipeline.draw_views()), frames) == 6


@given(chunks, st.integers(0, 2**32 - 1))
def test_minibatches_know_where_their_rows_came_from(episodes: list[SingleAgentEpisode], seed: int) -> None:
    batch = learner_pipeline(OBSERVATIONS, ACTIONS)(episodes=episodes)
    total, generator = num_steps(episodes), torch.Generator().manual_seed(seed)
    parts = list(shuffled(batch, 3, generator)) if total else []
    assert sum(map(assert_read_again, parts)) == total
    numbers = [number for part in parts for number in part.origin.numbers.tolist()]
    assert sorted(numbers) == list(range(total))
    assert sum(map(assert_read_again, Batch(batch).split(2, shuffle=True))) == total
    assert assert_read_again(rows_of(batch, batch["actions"] >= 2)) == int((batch["actions"] >= 2).sum())


@given(chunks, st.integers(1, 3), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_origin_of_sampled_row(episodes: list[SingleAgentEpisode], n: int, capacity: int, seed: int) -> None:
    for buffer in (EpisodeReplayBuffer(capacity, seed=seed), PrioritizedEpisodeReplayBuffer(capacity, seed=seed)):
        buffer.add(episodes)
        if not len(buffer):
            continue
        batch = buffer.sample(9, n_step=n, gamma=GAMMA)
        assert assert_read_again(batch) == 9
        for i in range(9):
            step, episode = batch.origin[i], batch.origin.episode(i)
            first, stop = step.t - episode.t_started, step.t - episode.t_started + int(batch.n_step[i])
            rewards = np.asarray(episode.get_rewards(slice(first, stop)))
            assert batch.rewards[i] == pytest.approx(rewards @ GAMMA ** np.arange(len(rewards)))
            assert np.array_equal(batch.new_obs[i], episode.get_observations(stop))
        assert assert_read_again(Batch.cat([part[::-1] for part in batch.split(4)])) == 9
        try:
            sequences = buffer.sample_sequences(4, 3, burn_in=1)
        except EpisodeStateError:  # no stored step has a step before it
            continue
        assert assert_read_again(sequences) == int((sequences.origin.numbers >= 0).sum()) >= 4
        assert buffer.at(np.array([-1, buffer.flush_ring().head - 1])).origin[0] is None


@given(shapes, shapes)
def test_rows_of_several_modules_are_found_again(low: list[Any], high: list[Any]) -> None:
    episodes = [
        chunk(i, *lengths, agent_id=f"{module} {i}", module_id=module)
        for module, them in (("low", low), ("high", high))
        for i, lengths in enumerate(them)
    ]
    both = dict.fromkeys(("low", "high"))
    pipeline = multi_agent_learner(dict.fromkeys(both, OBSERVATIONS), dict.fromkeys(both, ACTIONS))
    batches = pipeline(episodes=episodes)
    assert sum(map(assert_read_again, batches.values())) == num_steps(episodes)
    assert all(set(batch.origin.module_ids) <= {module} for module, batch in batches.items())


def test_agents_of_a_multi_agent_episode_are_named() -> None:
    episode = MultiAgentEpisode("both", agent_module_ids={"a": "own", "b": "own"})
    episode.add_env_reset(observations={"a": np.zeros(2, np.float32), "b": np.ones(2, np.float32)})
    episode.add_env_step({"a": np.ones(2, np.float32)}, {"a": 1, "b": 2}, {"a": 1.0}, terminateds={"a": True})
    episode.add_env_step({"b": np.zeros(2, np.float32)}, {}, {"b": 3.0}, terminateds={"__all__": True})
    pipeline = multi_agent_learner({"own": OBSERVATIONS}, {"own": ACTIONS})
    batch = pipeline(episodes=[episode])["own"]
    assert assert_read_again(batch) == 2
    assert set(batch.origin.agent_ids) == {"a", "b"}


def test_rows_of_several_sources_are_joined_with_their_origins() -> None:
    buffer = EpisodeReplayBuffer(50, seed=0)
    buffer.add([chunk(0, 5)])
    other_buffer = EpisodeReplayBuffer(50, seed=1)
    other_buffer.add([chunk(1, 9, ended="terminated")])
    batch = Batch.cat([buffer.sample(3), other_buffer.sample(4), buffer.sample(2)])
    assert assert_read_again(batch) == 9
    assert list(batch.origin.ids) == ["episode 0"] * 3 + ["episode 1"] * 4 + ["episode 0"] * 2


def test_origin_of_deleted_episode_raises() -> None:
    from episodes.inspect import explain_batch

    pack = EpisodePack.from_episodes([chunk(0, 3), chunk(1, 2)])
    batch = learner_pipeline(OBSERVATIONS, ACTIONS)(episodes=pack)
    assert batch.origin.episode(4).id_ == "episode 1"
    del pack
    assert batch.origin[4].t == 1
    with pytest.raises(EpisodeStateError, match="episode 1 no longer exists"):
        batch.origin.episode(4)
    assert "not stored any more" in str(explain_batch(batch, 4))


def test_origin_of_evicted_step_raises() -> None:
    from episodes.inspect import explain_batch

    buffer = EpisodeReplayBuffer(4, seed=0)
    buffer.add([chunk(0, 4, ended="terminated")])
    batch = buffer.sample(3)
    buffer.add([chunk(1, 4)])
    with pytest.raises(EpisodeStateError, match="is evicted: the replay buffer holds steps 4"):
        batch.origin.episode(0)
    assert list(batch.origin.ids) == [None] * 3
    assert "is evicted" in str(explain_batch(batch, 0))


def test_origin_after_set_state_raises() -> None:
    buffer = EpisodeReplayBuffer(9, seed=0)
    buffer.add([chunk(0, 4)])
    state = buffer.get_state()
    batch = buffer.sample(2)
    buffer.set_state(state)
    with pytest.raises(EpisodeStateError, match="another state"):
        batch.origin.episode(0)
    assert assert_read_again(buffer.sample(2)) == 2


def test_origin_is_copied_and_its_numbers_are_pickled() -> None:
    episodes, buffer = [chunk(0, 3)], EpisodeReplayBuffer(9, seed=0)
    buffer.add(episodes)
    for batch in (buffer.sample(2), Batch(learner_pipeline(OBSERVATIONS, ACTIONS)(episodes=episodes)).to_numpy()):
        for same in (copy.copy(batch), copy.deepcopy(batch), batch.to_torch()):
            assert assert_read_again(same.to_numpy()) == len(batch)
        away = pickle.loads(pickle.dumps(batch))
        assert np.array_equal(away.origin.numbers, batch.origin.numbers)
        with pytest.raises(EpisodeStateError, match=r"no longer exists"):
            away.origin.episode(0)


def test_prefetched_draws_have_origins() -> None:
    buffer = EpisodeReplayBuffer(9, seed=0)
    buffer.add([chunk(0, 3)])
    with Prefetch.of(buffer, 4, device="cpu") as batches:
        assert assert_read_again(next(batches)) == 4


def test_rows_that_are_set_or_made_of_columns_have_no_origin() -> None:
    buffer = EpisodeReplayBuffer(9, seed=0)
    buffer.add([chunk(0, 3)])
    batch = buffer.sample(3)
    batch[0] = batch[1]
    for unknown in (batch, Batch(obs=np.zeros(3))):
        with pytest.raises(EpisodeStateError, match="the origin of these rows is unknown"):
            _ = unknown.origin


def test_columns_that_were_shortened_by_hand_have_no_origin() -> None:
    buffer = EpisodeReplayBuffer(20, seed=0)
    buffer.add(chunk(1, 5))
    for batch in (learner_pipeline()(episodes=[chunk(0, 5)]), buffer.sample(5)):
        assert len(batch.origin) == 5
        for name in list(batch.keys()):
            batch[name] = batch[name][:2]
        with pytest.raises(EpisodeStateError, match="they were 5, and no column has as many"):
            _ = batch.origin


def test_invalid_row_and_unknown_origin_raise() -> None:
    from episodes.inspect import explain_batch

    batch = learner_pipeline()(episodes=[chunk(0, 5)])
    with pytest.raises(StepOutOfRange, match="rows of shape"):
        batch.origin.episode(5)
    for unknown in (dict(batch), None, chunk(0, 5)):
        with pytest.raises(EpisodeStateError, match="is unknown"):
            explain_batch(unknown, 0)
    with pytest.raises(WrongType, match="one row of a batch"):
        explain_batch(Batch(batch)[0], 0)


def test_row_is_explained_as_text_and_html() -> None:
    from episodes.inspect import explain_batch

    buffer = EpisodeReplayBuffer(50, seed=0)
    buffer.add([chunk(7, 9, ended="truncated", agent_id="<script>")])
    last = str(explain_batch(buffer.at(np.array([8]), n_step=3), 0))
    for words in ("episode 7", "t=8", "8 steps before", "the value at t=9, times gamma ** 1 (truncated there)"):
        assert words in last
    middle = explain_batch(buffer.at(np.array([2]), n_step=3), -1)
    assert "rewards of t=2 … 4, then the value at t=5, times gamma ** 3" in str(middle)
    assert "<script" not in middle._repr_html_()
    assert "episode 7" in middle._repr_html_()
    with pytest.raises(StepOutOfRange, match="row 3"):
        explain_batch(buffer.sample(3), 3)
    with pytest.raises(WrongType, match="number of a row"):
        explain_batch(buffer.sample(3), "0")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ended", "words"),
    [("", "cut, and continues"), ("terminated", "the value after it is 0"), ("truncated", "the value at t=7 is added")],
)
def test_row_of_sequences_is_explained(ended: str, words: str) -> None:
    from episodes.inspect import explain_batch

    episodes = [chunk(0, 5, 2, ended)]
    text = str(explain_batch(learner_pipeline(OBSERVATIONS, ACTIONS, max_seq_len=3)(episodes=episodes), 1))
    for part in (words, "t=5 … 6 in columns 0 … 1 of 3", "1 column of zeros", "t=2 … 7", "5 steps before it"):
        assert part in text


# --- what outlives eviction -------------------------------------------------------------------------------------------


@given(chunks, st.integers(1, 12), st.integers(1, 40), st.booleans(), st.integers(0, 2**32 - 1))
def test_lineage_names_evicted_steps(
    episodes: list[SingleAgentEpisode], capacity: int, lineage: int, moves: bool, seed: int
) -> None:
    buffer = EpisodeReplayBuffer(capacity, seed=seed, lineage=lineage)
    drawn, times = [], []
    for n, episode in enumerate([*episodes, chunk(9, 2, agent_id="a")]):
        buffer.add([episode])
        if len(buffer):
            drawn.append(buffer.sample(3))
            times.append([list(zip(drawn[-1].origin.ids, drawn[-1].origin.t, strict=True)), buffer.num_added])
        if moves and n == 1:
            buffer.clear()
    for batch, (were, _) in zip(drawn, times, strict=True):
        for row, (number, was) in enumerate(zip(batch.origin.numbers.tolist(), were, strict=True)):
            is_known = number >= buffer.flush_ring().head - lineage or number >= buffer.flush_ring().tail
            assert (batch.origin.ids[row], batch.origin.t[row]) == (was if is_known else (None, None))
            if number < buffer.flush_ring().tail:
                words = f"step t={was[1]} of episode {was[0]} is evicted" if is_known else f"step {number} is evicted"
                with pytest.raises(EpisodeStateError, match=words):
                    batch.origin.episode(row)


def test_lineage_is_restored_from_state_copy_and_files(tmp_path: Any) -> None:
    buffer = EpisodeReplayBuffer(4, seed=0, path=tmp_path, lineage=20)
    buffer.add([chunk(0, 2, ended="terminated"), chunk(1, 4, agent_id="x")])
    buffer.flush()
    state = buffer.get_state()
    buffer.close()
    resumed = EpisodeReplayBuffer(4, seed=0, path=tmp_path, resume=True, lineage=20)
    restored = EpisodeReplayBuffer(4, seed=0, lineage=20)
    restored.set_state(state)
    for copied in (restored, copy.deepcopy(restored), pickle.loads(pickle.dumps(restored)), resumed):
        batch = copied.sample(5)
        copied.add([chunk(2, 4)])
        assert set(batch.origin.ids) == {"episode 1"}
        assert set(batch.origin.agent_ids) == {"x"}
        assert batch.origin.t.tolist() == np.asarray(batch.obs)[:, 1].tolist()
    resumed.close()


def test_lineage_drops_names_beyond_its_size() -> None:
    buffer = EpisodeReplayBuffer(10, lineage=50)
    for n in range(1100):
        buffer.add([chunk(n, 1)])
    first = buffer.at(buffer.flush_ring().head - 1 - np.arange(3))
    buffer.add([chunk(-1, 10)])
    assert list(first.origin.ids) == [f"episode {n}" for n in (1099, 1098, 1097)]
    assert len(pickle.dumps(buffer.flush_ring().log)) < 20_000


# --- memories, views and agents in replay -----------------------------------------------------------------------------


class Remembering:
    """Recurrent policy that remembers the previous observation."""

    def get_initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.zeros(2, np.float32)}

    def __call__(self, batch: dict[str, Any], explore: bool | None = None) -> dict[str, Any]:
        raise NotImplementedError


def remembered(episode: SingleAgentEpisode) -> SingleAgentEpisode:
    """Return the steps as a new episode, with the last observation as the recurrent state after each step."""
    states = {"state_out": {"h": np.asarray(episode.get_observations(slice(0, len(episode)))).reshape(-1, 2)}}
    return SingleAgentEpisode.from_arrays(
        episode.get_observations(),
        episode.get_actions(),
        episode.get_rewards(),
        extra_model_outputs=states,
        id_=episode.id_,
        terminated=episode.is_terminated,
        truncated=episode.is_truncated,
    )


def assert_states(batch: Any) -> None:
    """Check the recurrent state at the start of each row: the observation of the step before."""
    for row, numbers in enumerate(batch.origin.numbers):
        (first, *_) = np.flatnonzero(numbers >= 0)
        step, episode = batch.origin[row, first], batch.origin.episode(row)
        k = step.t - episode.t_started
        before = episode.get_observations(k - 1) if k else np.zeros(2)
        assert np.array_equal(np.asarray(batch["state_in"]["h"])[row], before)


@given(chunks, st.integers(1, 4))
def test_origin_of_recurrent_row_with_its_state(episodes: list[SingleAgentEpisode], length: int) -> None:
    given_ones = [remembered(episode) for episode in episodes]
    pipeline = learner_pipeline(OBSERVATIONS, ACTIONS, policy=Remembering(), max_seq_len=length)
    batch = pipeline(rl_module=Remembering(), episodes=given_ones)
    assert assert_read_again(batch) == num_steps(episodes)
    assert_states(batch)
    buffer = EpisodeReplayBuffer(50, seed=length)
    buffer.add(given_ones)
    if len(buffer):
        drawn = buffer.sample_sequences(5, length)
        assert assert_read_again(drawn) >= 5
        assert_states(drawn)


@given(shapes, shapes, st.integers(0, 2**32 - 1))
def test_draws_of_several_modules_are_found_again(low: list[Any], high: list[Any], seed: int) -> None:
    buffer = MultiAgentEpisodeReplayBuffer(200, seed=seed)
    for n, (low_values, yours) in enumerate(zip(low, high, strict=False)):
        agents = {"a": max(low_values[0], 1), "b": max(yours[0], 1)}
        episode = MultiAgentEpisode(f"episode {n}", agent_module_ids={"a": "low", "b": "high"})
        observations = {agent: np.float32([n, 0]) for agent in agents}
        episode.add_env_reset(observations=observations)
        for t in range(max(agents.values())):
            acting = {agent: t for agent, steps in agents.items() if t < steps}
            observations = {agent: np.float32([n, t + 1]) for agent in acting}
            ended = {agent: True for agent, steps in agents.items() if t == steps - 1}
            episode.add_env_step(observations, acting, {agent: float(t) for agent in acting}, terminateds=ended)
        buffer.add([episode])
    for module, batch in buffer.sample(8).items():
        assert assert_read_again(batch) == len(batch)
        assert set(batch.origin.module_ids) == {module}
        assert set(batch.origin.agent_ids) == {{"low": "a", "high": "b"}[module]}
