"""Random multi-agent histories, compared with one plain dict per env step."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import random
from typing import Any

import numpy as np
import pytest

from episodes.errors import StepOutOfRange
from episodes.multi_agent import MultiAgentEpisode
from tests.reference_multi_agent import History, ReferenceChunk, plain

AGENTS = ("a", "b", "c", "d")
WITH_OUTPUTS = ("a", "b")
GETTERS = ("observations", "infos", "actions", "rewards", "vf")


def observation(agent: str, t: int) -> np.ndarray:
    return np.array([AGENTS.index(agent), t], np.float32)


class World:
    """Random env steps that an environment could return, recorded in a plain history."""

    def __init__(self, rng: random.Random, repeats: bool, with_outputs: tuple[str, ...] = WITH_OUTPUTS) -> None:
        self.rng = rng
        self.with_outputs = with_outputs
        self.repeats = repeats
        self.history = History()

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def reset(self) -> dict[str, Any]:
        observations = {agent: observation(agent, 0) for agent in AGENTS if self.chance(0.5)}
        infos = {agent: {"i": 0} for agent in observations if self.chance(0.3)}
        if self.chance(0.3):
            infos["__common__"] = {"level": 1}
        self.history.add(observations, {}, {}, infos, {}, {})
        return {"observations": observations, "infos": infos}

    def step(self) -> dict[str, Any]:
        h, t = self.history, self.history.now + 1
        status = {agent: h.status(agent) for agent in AGENTS}
        actions = {a: t * 10 + AGENTS.index(a) for a in AGENTS if status[a] == "rests" and self.chance(0.7)}
        waiting = {a for a in AGENTS if status[a] == "waits" or a in actions}
        observations = {a: observation(a, t) for a in waiting if self.chance(0.6)}
        observations |= {a: observation(a, t) for a in AGENTS if status[a] == "absent" and self.chance(0.25)}
        terminateds, truncateds = self.flags(status, observations, waiting)
        ending = self.endings(status, observations, terminateds, truncateds)
        repeated = {a: h.observations[h.seen(a)[-1]][a] for a in ending if a in waiting and a not in observations}
        rewards = {a: self.rng.randrange(-4, 9) / 4 for a in AGENTS if self.chance(0.3)}
        for a in observations | repeated:
            if status[a] != "absent" and h.reward_between(a, h.seen(a)[-1], h.now) is None:
                rewards.setdefault(a, 0.25)
        infos = {a: {"i": t, f"k{t % 3}": a} for a in AGENTS if self.chance(0.2)}
        if self.chance(0.2):
            infos["__common__"] = {"level": t}
        extra = {a: {"vf": float(t)} for a in actions if a in self.with_outputs}
        h.add(observations | repeated, actions, rewards, infos, extra, ending)
        self.finish(terminateds, truncateds)
        step = {"observations": observations, "actions": actions, "rewards": rewards, "infos": infos}
        return step | {"terminateds": terminateds, "truncateds": truncateds, "extra_model_outputs": extra}

    def flags(self, status: dict, observations: dict, waiting: set) -> tuple[dict, dict]:
        """Return flags of some agents, or of all. No agent is truncated without a last observation that it needs."""
        terminateds: dict[str, bool] = {}
        truncateds: dict[str, bool] = {}
        for agent in AGENTS:
            needs_one = agent in waiting and agent not in observations and not self.repeats
            if self.chance(0.06):
                terminateds[agent] = True
            elif self.chance(0.06) and not needs_one:
                truncateds[agent] = True
        if self.chance(0.02):
            terminateds["__all__"] = True
        elif self.chance(0.04) and (self.repeats or not (waiting - observations.keys() - terminateds.keys())):
            truncateds["__all__"] = True
        elif self.chance(0.1):
            terminateds["__all__"] = False
        return terminateds, truncateds

    def endings(self, status: dict, observations: dict, terminateds: dict, truncateds: dict) -> dict:
        endings = {}
        for agent in AGENTS:
            current_value = terminateds.get(agent, False), truncateds.get(agent, False)
            over = terminateds.get("__all__", False), truncateds.get("__all__", False)
            present = status[agent] in ("rests", "waits") or agent in observations
            if status[agent] == "ended":
                continue
            if any(current_value):
                endings[agent] = current_value
            elif any(over) and present:
                endings[agent] = over
        return endings

    def finish(self, terminateds: dict, truncateds: dict) -> None:
        h = self.history
        known = [a for a in AGENTS if h.status(a) != "absent"]
        if "__all__" in terminateds or "__all__" in truncateds:
            h.terminated, h.truncated = terminateds.get("__all__", False), truncateds.get("__all__", False)
        elif h.endings[-1] and all(h.status(a) == "ended" for a in known):
            h.terminated = all(h.ending(a)[0] for a in known)
            h.truncated = not h.terminated

    def indices(self, size: int) -> Any:
        """Return random indices (int, slice, list or array), which may be out of range."""
        number = lambda: self.rng.randrange(-size - 3, size + 4)  # noqa: E731
        bound = lambda: self.rng.choice([None, number()])  # noqa: E731
        kinds = [
            lambda: None,
            number,
            lambda: np.int64(number()),
            lambda: slice(bound(), bound()),
            lambda: slice(bound(), bound(), self.rng.choice([1, 2, 3, -1, -2])),
            lambda: [number() for _ in range(self.rng.randrange(4))],
            lambda: [self.rng.randrange(max(size, 1)) for _ in range(3)],
        ]
        return self.rng.choice(kinds)()


def asked(episode: MultiAgentEpisode, name: str, *args: Any, **kwargs: Any) -> Any:
    getter = getattr(episode, f"get_{name}", None)
    try:
        answer = getter(*args, **kwargs) if getter else episode.get_extra_model_outputs(name, *args, **kwargs)
    except StepOutOfRange:
        return "out of range"
    return plain(answer)


def check_getters(episode: MultiAgentEpisode, chunk: ReferenceChunk, world: World) -> None:
    for name in GETTERS:
        if name == "vf" and not chunk.knows("vf"):
            continue
        indices, neg = world.indices(len(episode)), world.chance(0.3)
        expected = plain(chunk.by_env_step(name, indices, neg))
        assert asked(episode, name, indices, neg_index_as_lookback=neg) == expected, (name, indices, neg)
        expected = plain(chunk.by_agent_step(name, indices, neg))
        assert asked(episode, name, indices, env_steps=False, neg_index_as_lookback=neg) == expected, (name, indices)
        assert asked(episode, name, return_list=True) == plain(chunk.as_list(name)), name
        fill = {"no": "info"} if name == "infos" else -7.0 if name in ("rewards", "vf") else -7
        filled = asked(episode, name, indices, fill=fill, neg_index_as_lookback=neg)
        expected = chunk.by_env_step(name, indices, neg, fill=MISSING_ITEM if name == "observations" else fill)
        assert spread(filled) == spread(plain(expected)), (name, indices, neg)


MISSING_ITEM = [-7.0, -7.0]


def spread(answer: Any) -> Any:
    """Return the answer with fills of unknown shape as bare fills."""
    text = repr(answer)
    return text.replace("-7.0", "-7").replace("[-7, -7]", "-7") if "-7" in text else answer


def check_chunk(episode: MultiAgentEpisode, chunk: ReferenceChunk) -> None:
    h = chunk.history
    episode.validate()
    assert (episode.id_, len(episode)) == ("e", chunk.end - chunk.begin)
    assert (episode.env_t_started, episode.env_t, episode.lookback) == (chunk.begin, chunk.end, chunk.lookback)
    assert episode.agent_ids == set(chunk.agents())
    for pending in (False, True):
        returns = chunk.returns(pending)
        assert {a: r for a, r in episode.get_returns(pending).items() if r} == {a: r for a, r in returns.items() if r}
        assert episode.get_return(include_hanging_rewards=pending) == sum(returns.values())
    stepped = {agent for agent in chunk.agents() if chunk.end in h.seen(agent)}
    to_act = {agent for agent in stepped if chunk.status(agent) == "rests" and not episode.is_done}
    assert (episode.get_agents_that_stepped(), episode.get_agents_to_act()) == (stepped, to_act)
    for agent, current_value in episode.agent_episodes.items():
        expected = chunk.own_steps(agent)
        done, lookback = len(expected["actions"]) - expected["pending"], expected["lookback"]
        assert current_value.lookback == lookback
        assert current_value.t_started == episode.agent_t_started[agent] == expected["t_started"]
        assert plain(episode.env_times(agent)) == [expected["seen"], expected["acted"]]
        assert plain(current_value.get_observations()) == plain(expected["observations"][lookback:])
        assert plain(current_value.get_actions()) == expected["actions"][lookback:done]
        assert plain(current_value.get_rewards()) == expected["rewards"][lookback:done]
        assert list(current_value.get_infos()) == expected["infos"][lookback:]
        assert (current_value.is_terminated, current_value.is_truncated) == (
            expected["terminated"],
            expected["truncated"],
        )
    ends = chunk.end == h.now
    assert (episode.is_terminated, episode.is_truncated) == (ends and h.terminated, ends and h.truncated)
    for position, flags in enumerate((episode.get_terminateds(), episode.get_truncateds())):
        for agent in AGENTS:
            at = h.ended_at(agent)
            assert flags.get(agent, False) == (at is not None and at <= chunk.end and h.ending(agent)[position])


class Program:
    """Random multi-agent steps, recorded in lists, in an uncut episode, and in an episode that is cut and joined."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.world = rng, World(rng, repeats=rng.random() < 0.5)
        missing = "repeat" if self.world.repeats else "raise"
        self.whole = MultiAgentEpisode(id_="e", missing_final_observation=missing)
        self.chunks = [MultiAgentEpisode(id_="e", missing_final_observation=missing)]
        reset = self.world.reset()
        self.whole.add_env_reset(**reset)
        self.chunks[0].add_env_reset(**reset)

    def run(self) -> None:
        """Grow the episodes by up to 24 env steps, with cuts, joins and copies, and compare them at the end."""
        for _ in range(self.rng.randrange(1, 25)):
            step = self.world.step()
            self.whole.add_env_step(**copy.deepcopy(step))
            self.chunks[-1].add_env_step(**copy.deepcopy(step))
            if self.whole.is_done:
                break
            if self.world.chance(0.25):
                self.cut(lookback=self.rng.randrange(7))
            if self.world.chance(0.15) and len(self.chunks) > 1:
                self.rejoin()
            if self.world.chance(0.15):
                self.copy_last_chunk()
        self.check()
        while len(self.chunks) > 1:
            self.chunks[0].concat_episode(self.chunks.pop(1))
        assert self.chunks[0].equals(finished(self.whole) if self.chunks[0].is_numpy else self.whole)

    def cut(self, lookback: int) -> None:
        current = self.chunks[-1]
        self.chunks.append((current.to_numpy() if self.world.chance(0.3) else current).cut(lookback))

    def rejoin(self) -> None:
        """Join the last two chunks. A finalized result is cut, so that it can grow."""
        later = self.chunks.pop()
        self.chunks[-1].concat_episode(later)
        if self.chunks[-1].is_numpy:
            self.chunks.append(self.chunks[-1].cut(2))

    def copy_last_chunk(self) -> None:
        episode = self.chunks[-1]
        for copied in (MultiAgentEpisode.from_state(episode.get_state()), pickle.loads(pickle.dumps(episode))):
            assert copied.equals(episode)
            assert episode.equals(copied)
        self.chunks[-1] = copied

    def check(self) -> None:
        history, whole, last = self.world.history, self.whole, self.chunks[-1]
        self.check_all(whole, ReferenceChunk(history, 0, history.now, 0, True))
        total = sum(chunk.get_return(include_pending=True) for chunk in self.chunks)
        assert total == whole.get_return(include_pending=True)
        for chunk in self.chunks:
            begin, end = chunk.env_t_started, chunk.env_t
            reference = ReferenceChunk(history, begin, end, chunk.lookback, chunk is last)
            check_chunk(chunk, reference)
            part = whole.slice(slice(begin, end), len_lookback_buffer=chunk.lookback)
            check_chunk(part, dataclasses.replace(reference, is_last=end == whole.env_t))
        episode = finished(last) if self.world.chance(0.5) else last
        self.check_all(episode, reference)
        self.check_all(*self.random_part(episode, reference))

    def check_all(self, episode: MultiAgentEpisode, reference: ReferenceChunk) -> None:
        check_chunk(episode, reference)
        check_getters(episode, reference, self.world)

    def random_part(
        self, episode: MultiAgentEpisode, chunk: ReferenceChunk
    ) -> tuple[MultiAgentEpisode, ReferenceChunk]:
        start, stop = sorted(self.rng.randrange(len(episode) + 1) for _ in range(2))
        lookback = self.rng.randrange(5)
        part = episode.slice(slice(start, stop), len_lookback_buffer=lookback)
        begin, end, lookback = chunk.begin + start, chunk.begin + stop, min(lookback, start + chunk.lookback)
        return part, ReferenceChunk(chunk.history, begin, end, lookback, is_last=stop == len(episode))


def finished(episode: MultiAgentEpisode) -> MultiAgentEpisode:
    return MultiAgentEpisode.from_state(episode.get_state()).to_numpy()


@pytest.mark.parametrize("block", range(10))
def test_cut_and_joined_histories_equal_uncut_episode_and_lists(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        Program(random.Random(seed)).run()
