"""Recorders of vector environments, compared to the same environments stepped separately."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import VectorRecorder
from episodes.tracks import nested

SPACES = {
    "box": spaces.Box(-10, 1000, (3,), np.float32),
    "discrete": spaces.Discrete(1000),
    "dict": spaces.Dict(
        {"z": spaces.Box(0, 255, (2, 2), np.uint8), "a": spaces.Tuple((spaces.Discrete(1000), spaces.Box(0, 1e6, ())))}
    ),
    "tuple": spaces.Tuple((spaces.Box(-10, 1000, (2,), np.float64), spaces.MultiBinary(3))),
}
ACTION_SPACES = {
    "discrete": spaces.Discrete(4),
    "dict": spaces.Dict({"move": spaces.Discrete(3), "force": spaces.Box(-1, 1, (2,), np.float32)}),
}


def observation_of(kind: str, number: int) -> Any:
    """Return an observation of the space that is unique for its number."""
    if kind == "box":
        return np.array([number, number + 0.5, -1], np.float32)
    if kind == "discrete":
        return np.int64(number % 1000)
    if kind == "dict":
        return {"z": np.full((2, 2), number % 256, np.uint8), "a": (np.int64(number % 1000), np.float32(number))}
    return (np.array([number, -number % 7], np.float64), np.array([number & 1, number & 2, 0], bool).astype(np.int8))


class Script(gym.Env):
    """An environment whose episodes have scripted lengths and endings, and whose observations are all different."""

    def __init__(
        self, index: int, kind: str = "box", action_kind: str = "discrete", lengths: tuple[int, ...] = (3, 1, 5)
    ):
        self.observation_space = SPACES[kind]
        self.action_space = ACTION_SPACES[action_kind]
        self.kind, self.index, self.lengths = kind, index, lengths
        self.episode = -1
        self.count = index * 100

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episode += 1
        self.t = 0
        self.count += 1
        return observation_of(self.kind, self.count), {"episode": self.episode}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.count += 1
        number = self.episode + self.index
        done = self.t >= self.lengths[number % len(self.lengths)]
        info: dict[str, Any] = {"t": self.t}
        if self.t % 2:
            info |= {"name": f"step {self.t}", "inner": {"half": self.t / 2}}
        terminated = done and number % 3 != 1
        return observation_of(self.kind, self.count), self.count / 4, terminated, done and number % 3 != 0, info


class Reference:
    """Single environment with lists of all results by episode, as the expected data of a recorder."""

    def __init__(self, env: gym.Env) -> None:
        self.env = env
        self.episodes: list[dict[str, Any]] = []
        self.reset()

    def reset(self) -> None:
        observation, info = self.env.reset()
        new = {"observations": [observation], "infos": [info], "actions": [], "rewards": [], "extra": []}
        self.episodes.append(new | {"terminated": False, "truncated": False})

    def step(self, action: Any, extra: float) -> None:
        observation, reward, terminated, truncated, info = self.env.step(action)
        episode = self.episodes[-1]
        values = (observation, info, action, reward, extra)
        for name, value in zip(("observations", "infos", "actions", "rewards", "extra"), values, strict=True):
            episode[name].append(value)
        episode |= {"terminated": terminated, "truncated": truncated}

    @property
    def is_done(self) -> bool:
        return self.episodes[-1]["terminated"] or self.episodes[-1]["truncated"]


class Both:
    """Recorder of a vector environment, and the same environments stepped separately for comparison."""

    def __init__(self, num_envs: int, mode: AutoresetMode, lookback: int, kind: str = "box", **script: Any) -> None:
        self.mode = mode
        self.makers = [lambda i=i: Script(i, kind, **script) for i in range(num_envs)]
        self.env = SyncVectorEnv(self.makers, autoreset_mode=mode, copy=False)
        self.recorder = VectorRecorder(
            num_envs,
            self.env.single_observation_space,
            self.env.single_action_space,
            autoreset_mode=mode,
            len_lookback_buffer=lookback,
        )
        self.env.action_space.seed(3)
        self.recorder.reset(*self.env.reset())
        self.alone = [Reference(make()) for make in self.makers]
        self.packs: list[Any] = []
        self.unstarted: dict[int, str] = {}  # environment -> id of its episode without a step at the last take
        self.row = self.num_ended = 0

    def step(self) -> None:
        actions = self.env.action_space.sample()
        extra = np.arange(self.env.num_envs) + self.row / 8
        waiting = [reference.is_done for reference in self.alone]
        self.recorder.step(*self._stepped(actions), {"logp": extra})
        self.num_ended = 0
        for env, reference in enumerate(self.alone):
            if waiting[env] and self.mode is AutoresetMode.NEXT_STEP:
                reference.reset()
                continue
            reference.step(nested.take(actions, env), extra[env])
            self.num_ended += reference.is_done
            if reference.is_done and self.mode is not AutoresetMode.NEXT_STEP:
                reference.reset()
        self.row += 1
        if self.mode is AutoresetMode.DISABLED:
            self._reset_done()

    def _stepped(self, actions: Any) -> Any:
        observations, rewards, terminateds, truncateds, infos = self.env.step(actions)
        self.done = terminateds | truncateds
        return observations, actions, rewards, terminateds, truncateds, infos

    def _reset_done(self) -> None:
        if self.done.any():
            self.recorder.reset(*self.env.reset(options={"reset_mask": self.done.copy()}), self.done)

    def reset(self, mask: np.ndarray | None = None) -> None:
        options = None if mask is None else {"reset_mask": mask}
        self.recorder.reset(*self.env.reset(options=options), mask)
        for env, reference in enumerate(self.alone):
            if mask is None or mask[env]:
                reference.reset()
                self.unstarted.pop(env, None)

    def take(self) -> None:
        """Take a pack, which has the ongoing and the just ended episodes as they were read before."""
        recorder, episodes = self.recorder, self.recorder.episodes
        ongoing = episodes[:]
        for env, episode in enumerate(ongoing):
            assert episode.equals(episodes[env])
            assert episode.custom_data is episodes[env - len(episodes)].custom_data
            episode.custom_data.setdefault("read", episode.id_)
            if len(episode) and not episode.is_done:
                assert nested.equal(episode.get_observations(-1), self.alone[env].episodes[-1]["observations"][-1])
        ended = [*recorder.ended(), *recorder.ended_episodes()] if self.row else []
        pack = recorder.take()
        chunks = {chunk.id_: chunk for chunk in pack}
        assert len(ended) == 2 * self.num_ended
        for episode in [*ongoing, *ended]:
            if len(episode):  # an ongoing episode has all stored steps as lookback
                part = episode.slice(slice(None), len_lookback_buffer=recorder.len_lookback_buffer)
                assert part.equals(chunks[episode.id_])
        assert all(chunk.custom_data == {"read": chunk.id_} for chunk in pack if chunk.t_started)
        read_before, self.unstarted = self.unstarted, {e: o.id_ for e, o in enumerate(ongoing) if not len(o)}
        assert all(id_ in chunks or self.unstarted.get(env) == id_ for env, id_ in read_before.items())
        self.packs.append(pack)
        self.num_ended = 0

    def check_recent(self, k: int) -> None:
        """Check the newest `k` items of the ongoing episodes. Items from before their start are zeros."""
        currents = [alone.episodes[-1] for alone in self.alone]
        for name in ("observations", "actions", "rewards"):
            values, valid = self.recorder.episodes.recent(name, k)
            lengths = [min(k, len(current[name])) for current in currents]
            assert valid.tolist() == [[i >= k - length for length in lengths] for i in range(k)]
            assert values is not None or not any(lengths)
            assert not any(leaf[~valid].any() for leaf in nested.leaves(values) if values is not None)
            for env, (current, length) in enumerate(zip(currents, lengths, strict=True)):
                if length:
                    newest = nested.map_leaves(lambda leaf, env=env, n=length: leaf[k - n :, env], values)
                    assert nested.equal(newest, nested.stack(current[name][-length:]))
        assert self.recorder.episodes.ages.tolist() == [len(current["rewards"]) for current in currents]

    def check(self) -> None:
        """Check that each recorded chunk equals its part of the expected episode, and that no part is missing."""
        chunks: dict[str, list[Any]] = {}
        for pack in self.packs:
            for chunk in pack:
                assert len(chunk) or chunk.is_done
                chunks.setdefault(chunk.id_, []).append(chunk)
        expected = [episode for alone in self.alone for episode in alone.episodes if episode["rewards"]]
        chunks_of_env = sorted(chunks.values(), key=lambda parts: self._place(parts[0]))
        assert len(chunks_of_env) == len(expected)
        for parts, episode in zip(chunks_of_env, expected, strict=True):
            check_parts(parts, episode, self.recorder.len_lookback_buffer)

    def _place(self, chunk: Any) -> tuple[int, int]:
        for env, alone in enumerate(self.alone):
            for number, episode in enumerate(alone.episodes):
                if nested.equal(chunk.get_observations(0), episode["observations"][chunk.t_started]):
                    return env, number
        raise AssertionError(f"{chunk} is of no episode")


def check_parts(parts: list[Any], episode: dict[str, Any], lookback: int) -> None:
    at = 0
    for chunk in parts:
        assert chunk.t_started == at
        assert chunk.is_numpy
        first, stop = at - chunk.lookback, at + len(chunk)
        assert chunk.lookback == min(at, lookback)
        assert nested.equal(chunk.observations.data, nested.stack(episode["observations"][first : stop + 1]))
        assert nested.equal(chunk.actions.data, nested.stack(episode["actions"][first:stop]))
        np.testing.assert_array_equal(chunk.rewards.data, episode["rewards"][first:stop])
        np.testing.assert_array_equal(chunk.extra_model_outputs["logp"].data, episode["extra"][first:stop])
        assert chunk.infos == episode["infos"][first : stop + 1]
        at = stop
    last = parts[-1]
    assert at == len(episode["rewards"])
    assert (last.is_terminated, last.is_truncated) == (episode["terminated"], episode["truncated"])
    assert not any(chunk.is_done for chunk in parts[:-1])


MODES = list(AutoresetMode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", SPACES)
def test_recorder_equals_stepping_envs_one_by_one(mode, kind):
    both = Both(3, mode, lookback=1, kind=kind, action_kind="dict")
    for row in range(75):  # more than the first capacity
        both.step()
        if row % 40 == 39:
            both.take()
    both.take()
    both.check()


WORK = st.lists(
    st.one_of(st.just("step"), st.just("step"), st.just("step"), st.just("take"), st.just("reset"), st.integers(1, 6)),
    max_size=40,
)


@given(
    work=WORK,
    mode=st.sampled_from(MODES),
    num_envs=st.integers(1, 3),
    lookback=st.integers(0, 4),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    kind=st.sampled_from(list(SPACES)),
    num_recent=st.integers(0, 4),
)
@settings(max_examples=150)
def test_recorder_equals_reference_in_any_order(work, mode, num_envs, lookback, lengths, kind, num_recent):
    both = Both(num_envs, mode, lookback, kind, lengths=tuple(lengths))
    for call in ["", *work]:
        if call in ("step", "take", "reset"):
            getattr(both, call)()
        elif call:
            mask = (call >> np.arange(num_envs)) & 1 > 0
            if mask.any():
                both.reset(mask)
        if num_recent:
            both.check_recent(num_recent)
    both.take()
    both.check()
