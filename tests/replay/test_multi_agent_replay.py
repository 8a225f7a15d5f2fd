"""Multi-agent replay buffers against a plain log: samples of one env step, and samples of one module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes.errors import (
    ChunkMismatch,
    EpisodeStateError,
    InvalidArgument,
    StateMismatch,
    StepOutOfRange,
    UnknownKey,
)
from episodes.multi_agent import MultiAgentEpisode
from episodes.replay import (
    MultiAgentEpisodeReplayBuffer,
    MultiAgentPrioritizedEpisodeReplayBuffer,
    SamplesPerInsert,
)
from tests.reference_replay import LastObservations, chi_square_deviation

AGENTS = ("a0", "a1", "b0")

Step = tuple[float, int, float, float]  # observation, action, reward, next observation


def module_of(agent_id: Any, episode: Any) -> str:
    return agent_id[0]


@dataclass
class Game:
    """A random game, in which agents act when they like, and a log of what they did."""

    id_: str
    rng: np.random.Generator
    log: dict[tuple[int, str], Step] = field(default_factory=dict)  # by the env step of the action, and the agent
    waiting: dict[str, tuple[int, float, int]] = field(default_factory=dict)  # since when, on what, with which action
    shown: dict[str, float] = field(default_factory=dict)
    t: int = 0

    def __post_init__(self) -> None:
        self.episode = MultiAgentEpisode(self.id_, agent_to_module_mapping_fn=module_of)
        self.shown = {agent: self.next_number() for agent in AGENTS if agent == "a0" or self.rng.random() < 0.7}
        self.episode.add_env_reset(observations=dict(self.shown))

    def next_number(self) -> float:
        return float(self.rng.integers(1 << 50))

    def play(self) -> None:
        """Play one env step."""
        acts = {a: int(self.rng.integers(9)) for a in self.shown if a not in self.waiting and self.rng.random() < 0.7}
        for agent, action in acts.items():
            self.waiting[agent] = (self.t, self.shown[agent], action)
        observed = {a: self.next_number() for a in self.waiting if self.rng.random() < 0.7}
        rewards = {a: float(self.rng.integers(5)) for a in observed}
        for agent, observation in observed.items():
            since, before, action = self.waiting.pop(agent)
            self.log[since, agent] = (before, action, rewards[agent], observation)
        self.shown |= observed
        self.episode.add_env_step(observed, acts, rewards)
        self.t += 1


def as_step(batch: Any, i: int) -> Step:
    return (float(batch.obs[i]), int(batch.actions[i]), float(batch.rewards[i]), float(batch.new_obs[i]))


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), cut_every=st.integers(1, 9), num_games=st.integers(1, 3))
def test_sample_synchronized_returns_one_env_step_per_row(seed: int, cut_every: int, num_games: int) -> None:
    rng = np.random.default_rng(seed)
    games = [Game(f"game {number}", rng) for number in range(num_games)]
    buffer = MultiAgentEpisodeReplayBuffer(1000, seed=seed)
    for t in range(25):
        for game in games:
            game.play()
            if t % cut_every == cut_every - 1:
                successor = game.episode.cut()
                buffer.add(game.episode)
                game.episode = successor
    added = [(t, agent, step) for game in games for (t, agent), step in game.log.items()]
    drawn = buffer.sample_synchronized(200) if any(len(m) for m in buffer.modules.values()) else {}
    steps_of = {step[0]: (game.id_, t, agent) for game in games for (t, agent), step in game.log.items()}
    for i in range(200 if drawn else 0):
        result = {agent: as_step(batch, i) for agent, batch in drawn.items() if batch.loss_mask[i]}
        places = {steps_of[step[0]][:2] for step in result.values()}
        assert len(places) == 1
        game = next(game for game in games if game.id_ == next(iter(places))[0])
        t = next(iter(places))[1]
        complete = {agent: game.log[t, agent] for agent in AGENTS if (t, agent) in game.log}
        complete = {agent: step for agent, step in complete.items() if is_added(game, step)}
        assert result == complete
    assert sum(len(m) for m in buffer.modules.values()) == sum(is_added_anywhere(games, step) for _, _, step in added)


def is_added(game: Game, step: Step) -> bool:
    """Whether the step completed before the chunk that still grows."""
    agents = game.episode.agent_episodes.values()
    return not any(
        step[0] in agent_episode.get_observations(slice(0, len(agent_episode)))
        for agent_episode in agents
        if len(agent_episode)
    )


def is_added_anywhere(games: list[Game], step: Step) -> bool:
    return all(is_added(game, step) for game in games)


def play_games(id_: str, length: int, *, start: float = 0.0, num_agents: int = 2) -> MultiAgentEpisode:
    """Return episodes in which agents "a0", "a1", ... act at every env step. Observations are start + 1000 * agent +
    t.
    """
    episode = MultiAgentEpisode(id_, agent_to_module_mapping_fn=module_of)
    see = lambda t: {f"a{k}": start + 1000.0 * k + t for k in range(num_agents)}  # noqa: E731
    episode.add_env_reset(observations=see(0))
    for t in range(length):
        ends = {"__all__": t == length - 1}
        actions = dict.fromkeys(see(0), t)
        episode.add_env_step(see(t + 1), actions, dict.fromkeys(see(0), 1.0), terminateds=ends)
    return episode


def test_sample_synchronized_is_uniform_after_evictions() -> None:
    buffer = MultiAgentEpisodeReplayBuffer(50, seed=0)
    for number in range(11):
        buffer.add(play_games(str(number), 7, start=10.0 * number))
    assert len(buffer) == 50
    drawn = np.concatenate([buffer.sample_synchronized(1000, keys=["obs"])["a0"].obs for _ in range(100)])
    values, counts = np.unique(drawn, return_counts=True)
    assert len(values) == 50
    assert chi_square_deviation(counts) < 3
    assert values.min() == 36


def test_multi_agent_sample_is_uniform_over_agents_of_module() -> None:
    buffer = MultiAgentEpisodeReplayBuffer(50, seed=0)
    buffer.add([play_games(str(number), 5, start=10.0 * number) for number in range(4)])
    drawn = np.concatenate([buffer.sample(1000, keys=["obs"])["a"].obs for _ in range(100)])
    counts = np.unique(drawn, return_counts=True)[1]
    assert len(counts) == 40
    assert chi_square_deviation(counts) < 3


def test_sample_synchronized_skips_partly_evicted_env_steps() -> None:
    buffer = MultiAgentEpisodeReplayBuffer(10, seed=0)
    buffer.add(play_games("two", 5))
    buffer.add(play_games("four", 5, start=100.0, num_agents=4))
    batches = buffer.sample_synchronized(500, keys=["obs", "t"])
    assert set(batches["a0"].obs.tolist()) == {4, 100, 101, 102, 103, 104}
    assert batches["a1"].loss_mask.all()
    assert np.array_equal(batches["a2"].loss_mask, batches["a0"].obs >= 100)


def test_sample_synchronized_skips_step_of_evicted_env_step() -> None:
    buffer = MultiAgentEpisodeReplayBuffer(32, seed=0)
    episode = MultiAgentEpisode("long wait", agent_to_module_mapping_fn=module_of)
    episode.add_env_reset(observations={"a0": 0.0, "b0": 1000.0})
    for t in range(33):
        observed = {"b0": 1001.0 + t} | ({"a0": 1.0} if t == 32 else {})
        episode.add_env_step(observed, {"b0": t} | ({"a0": 7} if t == 0 else {}), dict.fromkeys(observed, 1.0))
        if t != 0:
            successor = episode.cut()
            buffer.add(episode)
            episode = successor
    assert buffer.sample(1)["a"].actions.tolist() == [7]
    batches = buffer.sample_synchronized(300)
    assert set(batches["b0"].actions.tolist()) == set(range(1, 33))
    assert not batches["a0"].loss_mask.any()


def test_sample_synchronized_pads_agents_without_action() -> None:
    episode = MultiAgentEpisode("turns", agent_to_module_mapping_fn=module_of)
    episode.add_env_reset(observations={"a0": 1.0})
    for t in range(6):
        mover, restored = ("a0", "b0") if t % 2 == 0 else ("b0", "a0")
        episode.add_env_step({restored: t + 2.0}, {mover: t}, {restored: 1.0} if t else {})
    buffer = MultiAgentEpisodeReplayBuffer(100, seed=0)
    buffer.add(episode)
    batches = buffer.sample_synchronized(
        200, n_step=2, gamma=1.0, views={"a": LastObservations(2), "b": LastObservations(2)}
    )
    first, second = batches["a0"], batches["b0"]
    assert np.array_equal(first.loss_mask, ~second.loss_mask)
    assert (first.actions[first.loss_mask] % 2 == 0).all()
    assert (second.actions[second.loss_mask] % 2 == 1).all()
    assert not first.obs[~first.loss_mask].any()
    assert (first.indices[~first.loss_mask] == -1).all()
    assert first.obs.shape == (200, 2)
    assert set(first.rewards[first.loss_mask].tolist()) == {1.0, 2.0}


def test_sample_synchronized_of_modules_returns_their_agents() -> None:
    rng = np.random.default_rng(3)
    game = Game("g", rng)
    for _ in range(40):
        game.play()
    buffer = MultiAgentEpisodeReplayBuffer(100, seed=0)
    buffer.add(game.episode)
    assert set(buffer.sample(4)) == {"a", "b"}
    assert set(buffer.sample(4, module_ids=["b"])) == {"b"}
    assert set(buffer.sample_synchronized(4, module_ids=["a"])) == {"a0", "a1"}
    with pytest.raises(UnknownKey, match=r"no module 'c'.*\['a', 'b'\]"):
        buffer.sample(4, module_ids=["c"])
    with pytest.raises(UnknownKey, match="no module 'c'"):
        buffer.sample_synchronized(4, module_ids=["c"])


def test_multi_agent_buffer_empty_or_out_of_order_raises() -> None:
    buffer = MultiAgentEpisodeReplayBuffer(100, seed=0)
    for draw in (buffer.sample, buffer.sample_synchronized):
        with pytest.raises(EpisodeStateError, match="nothing is stored"):
            draw(1)
    buffer.add(play_games("x", 3))
    with pytest.raises(ChunkMismatch, match="ended at t=3"):
        buffer.add(_again(play_games("x", 3), buffer))
    assert len(buffer) == 3
    with pytest.raises(InvalidArgument, match="at least 1"):
        MultiAgentEpisodeReplayBuffer(0)


def _again(episode: MultiAgentEpisode, buffer: MultiAgentEpisodeReplayBuffer) -> MultiAgentEpisode:
    """Return the episode with the agent episode ids that the buffer has stored."""
    stored = {e.agent_id: e.id_ for e in buffer.modules["a"].iter_episodes()}
    for agent_id, agent_episode in episode.agent_episodes.items():
        agent_episode.id_ = stored[agent_id]
    return episode


def test_multi_agent_set_state_continues_bit_for_bit() -> None:
    buffer, restored = MultiAgentEpisodeReplayBuffer(30, seed=0), MultiAgentEpisodeReplayBuffer(30, seed=9)
    game = Game("g", np.random.default_rng(1))
    for round_ in range(6):
        for _ in range(12):
            game.play()
        successor = game.episode.cut()
        buffer.add(game.episode)
        if round_ > 2:
            restored.add(game.episode)
        game.episode = successor
        if round_ == 2:
            restored.set_state(buffer.get_state())
        if round_ >= 2:
            first, second = buffer.sample_synchronized(20), restored.sample_synchronized(20)
            assert all(np.array_equal(v, second[a][k]) for a, batch in first.items() for k, v in batch.items())
            assert np.array_equal(buffer.sample(9)["a"].indices, restored.sample(9)["a"].indices)
    with pytest.raises(InvalidArgument, match="capacity=30"):
        MultiAgentEpisodeReplayBuffer(31).set_state(buffer.get_state())
    buffer.clear()
    assert len(buffer) == 0


def test_module_buffer_at_returns_steps() -> None:
    buffer = MultiAgentEpisodeReplayBuffer(10, seed=0)
    buffer.add([play_games(str(number), 6, start=10.0 * number, num_agents=1) for number in range(3)])
    batch = buffer.modules["a"].at(np.array([17, -1, 12]))
    assert (batch.obs.tolist(), batch.indices.tolist()) == ([25.0, 0.0, 20.0], [17, -1, 12])
    for evicted in (7, 18):
        with pytest.raises(StepOutOfRange, match=rf"step {evicted}: .* 8\.\.17"):
            buffer.modules["a"].at(np.array([evicted]))


@pytest.mark.parametrize("chunk", [1, 3, 40, 200])
def test_multi_agent_sample_never_returns_evicted_steps(chunk: int) -> None:
    buffer = MultiAgentEpisodeReplayBuffer(100, seed=0)
    episode = MultiAgentEpisode("long", agent_to_module_mapping_fn=lambda agent_id, _: agent_id[0])
    agents = ("a0", "a1", "b0")
    episode.add_env_reset(observations=dict.fromkeys(agents, 0.0))
    for t in range(200):
        episode.add_env_step(dict.fromkeys(agents, t + 1.0), dict.fromkeys(agents, t), dict.fromkeys(agents, 1.0))
        if t % chunk == chunk - 1 or t == 199:
            successor = episode.cut()
            buffer.add(episode)
            episode = successor
            oldest = max(t + 1 - len(buffer), 0)
            for batch in buffer.sample(400).values():
                assert batch.actions.min() >= oldest
    assert len(buffer) == 100
    assert [len(agent_episode) for agent_episode in buffer.modules.values()] == [200, 100]
    assert set(buffer.sample(4000)["a"].actions.tolist()) == set(range(100, 200))
    together = buffer.sample_synchronized(2000, keys=["actions"])
    assert all(batch.loss_mask.all() for batch in together.values())
    assert set(together["a0"].actions.tolist()) == set(range(100, 200))
    assert together["a0"].actions.tolist() == together["b0"].actions.tolist()
    drawn = buffer.modules["a"].sample_sequences(500, 4, burn_in=3)
    assert drawn.actions[drawn.loss_mask].min() >= 100
    copy = MultiAgentEpisodeReplayBuffer(100)
    copy.set_state(buffer.get_state())
    assert copy.sample(50)["b"].actions.tolist() == buffer.sample(50)["b"].actions.tolist()


def test_multi_agent_prioritized_samples_modules_by_priority() -> None:
    buffer = MultiAgentPrioritizedEpisodeReplayBuffer(50, alpha=1.0, beta=1.0, seed=0)
    episode = MultiAgentEpisode("one", agent_to_module_mapping_fn=module_of)
    episode.add_env_reset(observations={"a0": 0.0, "b0": 100.0})
    for t in range(8):
        episode.add_env_step({"a0": t + 1.0, "b0": t + 101.0}, {"a0": t, "b0": t}, {"a0": 1.0, "b0": 1.0})
    buffer.add(episode)
    indices = {"a": np.arange(8), "b": np.arange(8)}
    buffer.update_priorities(indices, {"a": np.arange(8) + 1.0, "b": 8.0 - np.arange(8)})
    drawn = buffer.sample(20_000, keys=["actions"])
    rising = np.arange(8) + 1.0
    for module_id, expected in (("a", rising), ("b", rising[::-1])):
        batch = drawn[module_id]
        assert chi_square_deviation(np.bincount(batch.actions, minlength=8), expected) < 3
        assert np.allclose(batch.weights, expected[batch.actions].min() / expected[batch.actions])
    restored = MultiAgentPrioritizedEpisodeReplayBuffer(50)
    restored.set_state(buffer.get_state())
    copy = restored.sample(9)
    assert all(np.array_equal(batch.indices, copy[m].indices) for m, batch in buffer.sample(9).items())
    assert set(buffer.sample_synchronized(30)) == {"a0", "b0"}
    buffer.set_beta(0.0)
    assert set(buffer.sample(9)["a"].weights) == {1.0}


def test_multi_agent_update_priorities_with_other_modules_raises() -> None:
    buffer = MultiAgentPrioritizedEpisodeReplayBuffer(50, seed=0)
    buffer.add(play_games("x", 3))
    with pytest.raises(UnknownKey, match=r"indices of modules \['a'\], priorities of \['b'\]"):
        buffer.update_priorities({"a": np.arange(2)}, {"b": np.ones(2)})
    with pytest.raises(UnknownKey, match="no module 'b'"):
        buffer.update_priorities({"b": np.arange(2)}, {"b": np.ones(2)})
    with pytest.raises(InvalidArgument, match="alpha"):
        MultiAgentPrioritizedEpisodeReplayBuffer(50, alpha=-1.0)
    with pytest.raises(InvalidArgument, match="beta"):
        buffer.set_beta(-1.0)
    plain = MultiAgentEpisodeReplayBuffer(50)
    plain.add(play_games("x", 3))
    with pytest.raises(StateMismatch, match="without priorities"):
        buffer.set_state(plain.get_state())


def test_multi_agent_buffer_counts_env_steps() -> None:
    buffer = MultiAgentEpisodeReplayBuffer(20, seed=0, limit=SamplesPerInsert(2, min_size=10))
    assert not buffer.may_sample()
    buffer.add([play_games(str(number), 5, start=10.0 * number) for number in range(6)])
    assert (buffer.num_added, buffer.num_evicted, len(buffer)) == (30, 10, 20)
    assert buffer.may_sample(40)
    assert not buffer.may_sample(41)
    buffer.sample(10)
    buffer.sample_synchronized(5)
    assert (buffer.num_sampled, buffer.modules["a"].num_sampled) == (15, 15)
    assert "30 added, 10 evicted, 15 sampled: 0.5 per insert" in repr(buffer)


def test_agents_may_change_their_modules_between_episodes() -> None:
    """Check that each module has exactly the steps of the agents for which it acted."""
    buffer, sides = (
        MultiAgentEpisodeReplayBuffer(100, seed=0),
        (("main", "other"), ("other", "main"), ("main", "third")),
    )
    expected: dict[str, set[float]] = {"main": set(), "other": set(), "third": set()}
    for number, modules in enumerate(sides):
        episode = MultiAgentEpisode(
            f"game {number}", agent_to_module_mapping_fn=lambda agent, _, modules=modules: modules[int(agent[1])]
        )
        observe = lambda t, number=number: {f"a{k}": 100.0 * number + 10.0 * k + t for k in range(2)}  # noqa: E731
        episode.add_env_reset(observations=observe(0))
        for t in range(5):
            episode.add_env_step(observe(t + 1), {"a0": 0, "a1": 1}, {"a0": 0.0, "a1": 0.0})
            for k in range(2):
                expected[modules[k]].add(100.0 * number + 10.0 * k + t)
        buffer.add(episode)
    assert buffer.agent_ids == ["a0", "a1"]
    restored = MultiAgentEpisodeReplayBuffer(100, seed=1)
    restored.set_state(buffer.get_state())
    for each_buffer in (buffer, restored):
        drawn = each_buffer.sample(300)
        assert {module_id: set(batch.obs.tolist()) for module_id, batch in drawn.items()} == expected
        with pytest.raises(InvalidArgument, match="one module of each agent"):
            each_buffer.sample_synchronized(10)
        together = each_buffer.sample_synchronized(200, module_ids=["third"])["a1"]
        assert set(together.obs[together.loss_mask].tolist()) == expected["third"]
    ring = MultiAgentEpisodeReplayBuffer(6, seed=0)
    for number, modules in enumerate(sides[:2]):
        episode = MultiAgentEpisode(
            f"game {number}", agent_to_module_mapping_fn=lambda agent, _, modules=modules: modules[int(agent[1])]
        )
        episode.add_env_reset(observations={"a0": 0.0, "a1": 0.0})
        for t in range(5):
            episode.add_env_step({"a0": t + 1.0, "a1": t + 1.0}, {"a0": 0, "a1": 1}, {"a0": 0.0, "a1": 0.0})
        ring.add(episode)
    assert len(ring) == 6
    assert {module_id: len(each_buffer) for module_id, each_buffer in ring.modules.items()} == {"main": 6, "other": 6}


@pytest.mark.parametrize("maker", [MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer])
@pytest.mark.parametrize("call", ["sample", "sample_synchronized"])
def test_error_in_a_later_module_leaves_the_generator_where_it_was(maker: Any, call: str) -> None:
    class Failing:
        """View of which only the columns fail, which are computed last."""

        lookback = 0
        names = ("obs",)

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("a view fails")

    buffer = maker(100, seed=0)
    buffer.add([play_games("g", 20)])
    before, counts = buffer.get_state(), [each.num_sampled for each in buffer.modules.values()]
    with pytest.raises(RuntimeError, match="a view fails"):
        getattr(buffer, call)(4, views={[*buffer.modules][-1]: Failing()})
    assert buffer.get_state()["generator"] == before["generator"]
    assert [each.num_sampled for each in buffer.modules.values()] == counts
