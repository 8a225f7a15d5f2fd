"""Replay buffers against a slow list of transitions, for random programs of additions and samples."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from episodes.batch import Batch
from episodes.errors import EpisodeStateError
from episodes.pack import EpisodePack
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from tests.reference_replay import LastObservations, ReferenceReplay, Transition

GAMMA = 0.9
KINDS = {
    "a number": np.zeros((), np.float64),
    "12 bytes": np.zeros(3, np.float32),
    "16 bytes": np.zeros((2, 4), np.uint16),
    "more than a record holds twice": np.zeros(8, np.float32),
}
"""What observations are like: small ones stand in the records of their steps."""


def shown(observations: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Return the numbers [...] of observations [..., ...] of a kind, which have the same number everywhere."""
    flat = observations.reshape(*observations.shape[: observations.ndim - kind.ndim], -1)
    assert (flat == flat[..., :1]).all()
    assert observations.dtype == kind.dtype
    return flat[..., 0]


def info_of(stacked: float, has_infos: bool) -> dict[str, float]:
    return {"seen": stacked} if has_infos else {}


def chunk_of(steps: list[Transition], kind: np.ndarray, has_infos: bool, lookback: int = 0) -> SingleAgentEpisode:
    """Return the steps as a chunk with observations of a kind. The first `lookback` steps are its lookback."""
    observations = [steps[0].obs, *(s.new_obs for s in steps)]
    return SingleAgentEpisode(
        steps[0].id_,
        observations=[np.full_like(kind, x) for x in observations],
        infos=[info_of(x, has_infos) for x in observations],
        actions=[s.action for s in steps],
        rewards=[s.reward for s in steps],
        extra_model_outputs={"vf_preds": [2 * s.obs for s in steps]},
        terminated=steps[-1].terminated,
        truncated=steps[-1].truncated,
        t_started=steps[lookback].t,
        len_lookback_buffer=lookback,
        agent_id=f"agent of {steps[0].id_}",
    )


class ReplayMachine(RuleBasedStateMachine):
    @initialize(
        capacity=st.integers(1, 40), seed=st.integers(0, 5), kind=st.sampled_from(list(KINDS)), has_infos=st.booleans()
    )
    def begin(self, capacity: int, seed: int, kind: str, has_infos: bool) -> None:
        self.kind, self.has_infos = KINDS[kind], has_infos
        self.buffer = EpisodeReplayBuffer(capacity, seed=seed)
        self.reference = ReferenceReplay(capacity)
        self.history: dict[str, list[Transition]] = {}  # of the episodes that go on
        self.count = 0

    def grow(self, id_: str, length: int, ending: str) -> list[Transition]:
        """Return the next steps of an episode as transitions."""
        history = self.history.setdefault(id_, [])
        obs = history[-1].new_obs if history else self.next_number()
        steps = []
        for _ in range(length):
            new_obs = self.next_number()
            steps.append(Transition(id_, len(history) + len(steps), obs, self.count % 7, self.count / 8, new_obs))
            obs = new_obs
        steps[-1].terminated, steps[-1].truncated = ending == "terminated", ending == "truncated"
        history += steps
        if ending != "cut":
            del self.history[id_]
        return steps

    def next_number(self) -> float:
        self.count += 1
        return float(self.count)

    def new_id(self) -> str:
        self.count += 1
        return f"episode {self.count}"

    @rule(data=st.data(), num=st.integers(1, 6), as_pack=st.booleans())
    def add(self, data: st.DataObject, num: int, as_pack: bool) -> None:
        chunks = []
        for _ in range(num):
            id_ = data.draw(st.sampled_from([*self.history, ""])) or self.new_id()
            past = list(self.history.get(id_, []))
            steps = self.grow(
                id_, data.draw(st.integers(1, 12)), data.draw(st.sampled_from(["cut", "terminated", "truncated"]))
            )
            lookback = data.draw(st.integers(0, min(3, len(past))))
            chunks.append(chunk_of([*past[len(past) - lookback :], *steps], self.kind, self.has_infos, lookback))
            self.reference.add_chunk(steps, past[len(past) - lookback :])
        self.buffer.add(EpisodePack.from_episodes(chunks) if as_pack else chunks)

    @rule(data=st.data())
    @precondition(lambda self: len(self.history) > 1)
    def add_one_step_to_each(self, data: st.DataObject) -> None:
        ids = data.draw(st.permutations(list(self.history)))
        chunks = []
        for id_ in ids:
            chunks.append(chunk_of(steps := self.grow(id_, 1, "cut"), self.kind, self.has_infos))
            self.reference.add_chunk(steps)
        self.buffer.add(chunks)

    @rule()
    def restore(self) -> None:
        state = self.buffer.get_state()
        restored = EpisodeReplayBuffer(self.buffer.capacity, seed=99)
        restored.set_state(state)
        if len(self.buffer):
            first, second = self.buffer.sample(5, n_step=3), restored.sample(5, n_step=3)
            assert all(np.array_equal(first[key], second[key]) for key, _ in first.items())
            restored.set_state(state)
            self.buffer.sample(1)
        self.buffer = restored

    @invariant()
    def has_the_newest_steps(self) -> None:
        assert len(self.buffer) == len(self.reference.alive())
        assert self.buffer.num_episodes == len(self.reference.episodes())
        assert self.buffer.num_added == len(self.reference.steps)

    def drawn(self, indices: np.ndarray) -> list[Transition]:
        assert indices.min() >= self.reference.tail
        return [self.reference.steps[i] for i in indices.tolist()]

    @rule(least=st.integers(1, 5), extra=st.integers(-1, 3), stack=st.integers(1, 4))
    @precondition(lambda self: len(self.buffer) > 0)
    def sample(self, least: int, extra: int, stack: int) -> None:
        keys = ["obs", "new_obs", "actions", "rewards", "terminateds", "truncateds", "vf_preds", "t", "eps_id", "infos"]
        options = {
            "n_step": least if extra < 0 else (least, least + extra),
            "gamma": GAMMA,
            "views": LastObservations(stack) if stack > 1 else None,
            "keys": [*keys, "agent_id", "is_first"],
        }
        try:
            batch = self.buffer.sample(20, **options)
        except EpisodeStateError:
            assert not any(self.reference.is_complete(s, stack - 1, certain=True) for s in self.reference.alive())
            return
        batch["obs"], batch["new_obs"] = shown(batch.obs, self.kind), shown(batch.new_obs, self.kind)
        for i, step in enumerate(self.drawn(batch.indices)):
            path = self.reference.forward(step, least + max(extra, 0))
            assert min(least, len(path)) <= batch.n_step[i] <= len(path)
            path = path[: batch.n_step[i]] if extra > 0 else path
            assert self.reference.is_complete(step, stack - 1)
            assert batch.is_first[i] == (step.t == 0)
            stacked = self.reference.stack(step, stack, after=False), self.reference.stack(path[-1], stack, after=True)
            assert np.array_equal(batch.obs[i], stacked[0] if stack > 1 else step.obs)
            assert np.array_equal(batch.new_obs[i], stacked[1] if stack > 1 else path[-1].new_obs)
            assert batch.actions[i] == step.action
            assert np.isclose(batch.rewards[i], sum(s.reward * GAMMA**k for k, s in enumerate(path)))
            assert (batch.terminateds[i], batch.truncateds[i]) == (path[-1].terminated, path[-1].truncated)
            assert (batch.n_step[i], batch.vf_preds[i]) == (len(path), 2 * step.obs)
            assert (batch.t[i], batch.eps_id[i]) == (step.t, step.id_)
            assert batch.infos[i] == info_of(path[-1].new_obs, self.has_infos)
            assert batch.agent_id[i] == f"agent of {step.id_}"

    @rule(
        length=st.integers(1, 15),
        burn_in=st.integers(0, 4),
        lookback=st.integers(0, 4),
        boundary=st.sampled_from(["pad", "stop"]),
        period=st.one_of(st.none(), st.integers(1, 5)),
    )
    @precondition(lambda self: len(self.buffer) > 0)
    def sample_sequences(self, length: int, burn_in: int, lookback: int, boundary: str, period: int | None) -> None:
        begins = [step for step in self.reference.alive() if step.t % (period or 1) == 0]
        if boundary == "stop" or not begins:
            period = None
        options = {"burn_in": burn_in, "lookback": lookback, "boundary": boundary, "period": period}
        left = lookback + burn_in
        try:
            batch = self.buffer.sample_sequences(6, length, **options)
        except EpisodeStateError:
            assert not any(self.reference.is_complete(s, left, certain=True) for s in begins or self.reference.alive())
            return
        batch["obs"], batch["new_obs"] = shown(batch.obs, self.kind), shown(batch.new_obs, self.kind)
        for i in range(6):
            learned = np.flatnonzero(batch.loss_mask[i])
            assert np.array_equal(learned, np.arange(learned[0], learned[-1] + 1))
            first = self.drawn(batch.indices[i, learned[:1]])[0]
            onward = self.reference.forward(first, length)
            assert self.reference.is_complete(first, left)
            before = self.reference.backward(first, 10**6)
            if boundary == "stop" and len(onward) < length:
                assert not before or not self.reference.is_complete(before[-1], left, certain=True)
            known = self.reference.known_before(first)
            stacked = known[max(len(known) - left, 0) :]
            self.check_row(batch[i], [*stacked, *onward], left - len(stacked), len(known) - len(before))
            assert learned.tolist() == list(range(left, left + len(onward)))
            assert batch.seq_lens[i] == burn_in + len(onward)
            is_whole = (stacked[0] if stacked else first).t == 0
            assert np.flatnonzero(batch.is_first[i]).tolist() == [left - len(stacked)] * is_whole
            assert boundary != "pad" or period is None or first.t % period == 0

    def check_row(self, row: Batch, steps: list[Transition], start: int, num_context: int) -> None:
        """Check the columns of a sequence from `start` on. Its first steps may be of a lookback, and have no index."""
        width = len(row.rewards)
        stop = start + len(steps)
        columns = np.arange(start, stop)
        assert row.obs[columns].tolist() == [s.obs for s in steps]
        assert row.new_obs[columns].tolist() == [s.new_obs for s in steps]
        assert row.actions[columns].tolist() == [s.action for s in steps]
        assert row.rewards[columns].tolist() == [s.reward for s in steps]
        assert row.terminateds[columns].tolist() == [s.terminated for s in steps]
        assert row.truncateds[columns].tolist() == [s.truncated for s in steps]
        is_stored = row.indices[columns] >= 0
        assert is_stored[num_context:].all()
        assert self.drawn(row.indices[columns][is_stored]) == [
            s for s, has in zip(steps, is_stored, strict=True) if has
        ]
        padding = np.setdiff1d(np.arange(width), columns)
        assert not row.obs[padding].any()
        assert not row.rewards[padding].any()
        assert not row.terminateds[padding].any()
        assert (row.indices[padding] == -1).all()

    @rule()
    @precondition(lambda self: len(self.buffer) > 0)
    def read_episodes(self) -> None:
        stored = self.reference.episodes()
        stored_episodes = list(self.buffer.iter_episodes())
        assert {episode.id_ for episode in stored_episodes} == set(stored)
        assert [episode.id_ for episode in stored_episodes] == list(stored)
        packs = list(self.buffer.iter_packs(num_steps=7))
        assert all(pack.num_steps <= 7 or len(pack) == 1 for pack in packs)
        assert all(a.equals(b) for a, b in zip(stored_episodes, (e for pack in packs for e in pack), strict=True))
        for episode in [*stored_episodes, *self.buffer.sample_episodes(3)]:
            steps = stored[episode.id_]
            episode.validate()
            assert shown(episode.get_observations(), self.kind).tolist() == [steps[0].obs, *(s.new_obs for s in steps)]
            assert episode.get_actions().tolist() == [s.action for s in steps]
            assert episode.get_rewards().tolist() == [s.reward for s in steps]
            assert episode.get_extra_model_outputs("vf_preds").tolist() == [2 * s.obs for s in steps]
            stacked = [steps[0].obs, *(s.new_obs for s in steps)]
            assert list(episode.get_infos()) == [info_of(x, self.has_infos) for x in stacked]
            assert episode.t_started == steps[0].t
            assert (episode.is_terminated, episode.is_truncated) == (steps[-1].terminated, steps[-1].truncated)
            assert episode.agent_id == f"agent of {episode.id_}"


TestReplayMachine = ReplayMachine.TestCase
TestReplayMachine.settings = settings(max_examples=150, stateful_step_count=30)
