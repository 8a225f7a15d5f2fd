"""What is recorded fits its space, or is refused by name: one table of all paths into an episode and all misfits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st

from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner, make_vector_env
from episode_runners.random_actions import sample_random_action
from episode_runners.serial_envs import checked_reset, checked_step
from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode, VectorRecorder
from episodes.errors import EpisodeError, InvalidArgument, ShapeMismatch, TrackMismatch, WrongType
from episodes.storage import RecordEpisodes
from episodes.tracks.policy_box import PolicyBox, bounded_parts

IMAGE = spaces.Box(0, 255, (2, 2), np.uint8)
PAIR = spaces.Box(-9, 9, (2,), np.float32)
PICTURES = spaces.Dict(image=IMAGE, at=spaces.Tuple([spaces.Discrete(3)]))

MISFITS: dict[str, tuple[spaces.Space, Any]] = {
    "image in 0..1": (IMAGE, np.full((2, 2), 0.5, np.float32)),
    "image of -1.0": (IMAGE, np.full((2, 2), -1.0)),
    "image of 300": (IMAGE, np.full((2, 2), 300)),
    "image of uint16": (IMAGE, np.full((2, 2), 300, np.uint16)),
    "NaN in an image": (IMAGE, np.full((2, 2), np.nan)),
    "shape (1, 2)": (PAIR, np.zeros((1, 2), np.float32)),
    "shape (3,)": (PAIR, np.zeros(3, np.float32)),
    "one number": (PAIR, 0.5),
    "1e300 in float32": (PAIR, np.full(2, 1e300)),
    "complex": (PAIR, np.full(2, 1j)),
    "text": (PAIR, np.array(["a", "b"])),
    "Discrete 1.5": (spaces.Discrete(3), 1.5),
    "Discrete of shape (1,)": (spaces.Discrete(3), np.array([1])),
    "MultiDiscrete 0.5": (spaces.MultiDiscrete([2, 2]), np.array([0.5, 0.0])),
    "MultiBinary 2": (spaces.MultiBinary(2), np.array([300, 0])),
    "no dict": (PICTURES, np.zeros((2, 2), np.uint8)),
    "a number for a Dict": (PICTURES, np.array(1.0)),
    "a number for a Tuple": (spaces.Tuple([spaces.Discrete(3)]), np.array(1.0)),
    "missing key": (PICTURES, {"image": np.zeros((2, 2), np.uint8)}),
    "nested image": (PICTURES, {"image": np.full((2, 2), 0.5), "at": (1,)}),
    "nested Discrete": (PICTURES, {"image": np.zeros((2, 2), np.uint8), "at": (0.5,)}),
}


class Returning(gym.Env):
    """Environment that returns `item` from `reset`, or only from `step`."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space, item: Any, at_reset: bool) -> None:
        self.observation_space, self.item = space, item
        self.good = space.sample()
        self.first = item if at_reset else self.good

    def reset(self, **options: Any) -> Any:
        return self.first, {}

    def step(self, action: Any) -> Any:
        return self.item, 1.0, False, False, {}


def by_hand(space: Any, item: Any, at_reset: bool, tmp_path: Path) -> None:
    env, episode = Returning(space, item, at_reset), SingleAgentEpisode(observation_space=space)
    episode.add_env_reset(env.reset()[0])
    episode.add_env_step(item, 0, 1.0)
    episode.to_numpy()


def several_by_hand(space: Any, item: Any, at_reset: bool, tmp_path: Path) -> None:
    env, episode = Returning(space, item, at_reset), MultiAgentEpisode(observation_space={"a": space})
    episode.add_env_reset(observations={"a": env.reset()[0]})
    episode.add_env_step({"a": item}, {"a": 0}, {"a": 1.0})
    episode.to_numpy()


def wrapper(space: Any, item: Any, at_reset: bool, tmp_path: Path) -> None:
    env = RecordEpisodes(Returning(space, item, at_reset), tmp_path / "data")
    env.reset()
    env.step(0)
    env.close()


def as_rows(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: as_rows(part) for key, part in item.items()}
    return tuple(map(as_rows, item)) if isinstance(item, tuple) else np.asarray(item)[None]


def recorder(space: Any, item: Any, at_reset: bool, tmp_path: Path) -> None:
    env, recorder, no = Returning(space, item, at_reset), VectorRecorder(1, space, autoreset_mode="NextStep"), [False]
    recorder.reset(as_rows(env.reset()[0]))
    recorder.step(as_rows(item), [0], [1.0], np.array(no), np.array(no))


def runner(space: Any, item: Any, at_reset: bool, tmp_path: Path) -> None:
    env = make_vector_env(lambda: Returning(space, item, at_reset), 2)
    with pytest.raises((ShapeMismatch, TrackMismatch)):
        SingleAgentEnvRunner(env, seed=0).sample(num_timesteps=2, random_actions=True)
    alone = make_vector_env(lambda: Returning(space, item, at_reset), 1)
    SingleAgentEnvRunner(alone, seed=0).sample(num_timesteps=2, random_actions=True)


def worker(space: Any, item: Any, at_reset: bool, tmp_path: Path) -> None:
    """Run what a process of an asynchronous vector environment runs before it writes to shared memory."""
    env = Returning(space, item, at_reset)
    checked_reset(env.reset(), space)
    checked_step(env.step(0), space)


class OneAgent:
    """Environment of one agent with the observations of `Returning`."""

    possible_agents = agents = ["a"]

    def __init__(self, env: Returning) -> None:
        self.env = env
        self.observation_spaces, self.action_spaces = {"a": env.observation_space}, {"a": env.action_space}

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        return {"a": self.env.reset()[0]}, {}

    def step(self, actions: Any) -> Any:
        return {"a": self.env.item}, {"a": 1.0}, {"a": False}, {"a": False}, {}


def several_runner(space: Any, item: Any, at_reset: bool, tmp_path: Path) -> None:
    env = OneAgent(Returning(space, item, at_reset))
    MultiAgentEnvRunner(lambda: env, seed=0).sample(num_timesteps=2, random_actions=True)


def arrays(space: Any, item: Any, at_reset: bool, tmp_path: Path) -> None:
    items = [item, item] if at_reset else [space.sample(), item]
    SingleAgentEpisode(observations=items, actions=[0], rewards=[1.0], observation_space=space).to_numpy()


PATHS: dict[str, Callable[..., None]] = {
    "add_env_step": by_hand,
    "MultiAgentEpisode": several_by_hand,
    "RecordEpisodes": wrapper,
    "VectorRecorder": recorder,
    "runner, sync": runner,
    "runner, async": worker,
    "MultiAgentEnvRunner": several_runner,
    "constructor": arrays,
}


@pytest.mark.parametrize("at_reset", [True, False], ids=["reset", "step"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("misfit", MISFITS)
def test_observation_that_does_not_fit_is_refused(misfit: str, path: str, at_reset: bool, tmp_path: Path) -> None:
    space, item = MISFITS[misfit]
    with pytest.raises(EpisodeError) as raised:
        PATHS[path](space, item, at_reset, tmp_path)
    assert isinstance(raised.value, (ShapeMismatch, TrackMismatch, WrongType))


def test_async_environment_refuses_an_image_of_floats() -> None:
    space, item = MISFITS["image in 0..1"]
    env = make_vector_env(lambda: Returning(space, item, False), 2, vectorization="async")
    env.reset(seed=0)
    try:
        with pytest.raises(ShapeMismatch, match=r"float32; the space has uint8, which cannot"):
            env.step(np.zeros(2, int))
    finally:
        env.close()


FITTING: dict[str, tuple[spaces.Space, Any]] = {
    "int64 image": (IMAGE, np.full((2, 2), 255)),
    "float image of whole numbers": (IMAGE, np.full((2, 2), 7.0)),
    "float64 under float32": (PAIR, np.full(2, 0.1)),
    "list": (PAIR, [0.5, 1.0]),
    "infinite": (PAIR, np.array([np.inf, np.nan])),
    "Discrete of numpy": (spaces.Discrete(3), np.int8(2)),
    "Discrete as array": (spaces.Discrete(3), np.array(2)),
    "list under Tuple": (PICTURES, {"image": np.zeros((2, 2), np.uint8), "at": [1]}),
}


@pytest.mark.parametrize("path", [name for name in PATHS if name != "runner, sync"])
@pytest.mark.parametrize("name", FITTING)
def test_observation_that_fits_after_a_lossless_cast_is_accepted(name: str, path: str, tmp_path: Path) -> None:
    space, item = FITTING[name]
    for at_reset in (True, False):
        if path != "VectorRecorder" or not isinstance(item, list | dict):
            PATHS[path](space, item, at_reset, tmp_path / str(at_reset))


@pytest.mark.parametrize("space", [spaces.Discrete(3), PAIR], ids=["Discrete", "Box"])
def test_first_action_that_does_not_fit_is_refused(space: spaces.Space) -> None:
    episode = SingleAgentEpisode(action_space=space)
    episode.add_env_reset(0)
    with pytest.raises(ShapeMismatch, match="actions have shape"):
        episode.add_env_step(1, np.zeros((1, 2), np.float32), 1.0)
    several = MultiAgentEpisode(action_space={"a": space})
    several.add_env_reset(observations={"a": 0})
    several.add_env_step({"a": 1}, {"a": np.zeros((1, 2), np.float32)}, {"a": 1.0})
    with pytest.raises(ShapeMismatch, match="actions have shape"):
        several.to_numpy()
    with pytest.raises(ShapeMismatch, match="observations have shape"):
        SingleAgentEpisode.from_arrays(np.zeros((2, 1, 2)), [0], [1.0], observation_space=PAIR)
    with pytest.raises(ShapeMismatch, match="observations have shape"):
        EpisodePack(
            observations=np.zeros((2, 1, 2)), actions=[0], rewards=np.ones(1), lengths=[1], observation_space=PAIR
        )


@pytest.mark.parametrize("flag", [None, "no", "", np.ones(2, bool), 0.5, [True]], ids=repr)
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_flag_that_is_no_bool_is_refused(flag: Any, name: str, tmp_path: Path) -> None:
    class Flagging(Returning):
        def step(self, action: Any) -> Any:
            flags = [flag if name == kind else False for kind in ("terminated", "truncated")]
            return (self.item, 1.0, *flags, {})

    def make() -> gym.Env:
        return Flagging(PAIR, np.zeros(2, np.float32), True)

    with pytest.raises(WrongType):
        checked_step(make().step(0), PAIR)
    for env in (make_vector_env(make, 2), RecordEpisodes(make(), tmp_path)):
        env.reset(seed=0)
        with pytest.raises((WrongType, InvalidArgument)):
            env.step(env.action_space.sample())


# --- last observations -----------------------------------------------------------------------------------------------

LEAVES = {
    "int8": st.integers(-128, 127).map(np.int8),
    "uint8": st.integers(0, 255).map(np.uint8),
    "int16": st.integers(-(2**15), 2**15 - 1).map(np.int16),
    "int64": st.integers(-(2**40), 2**40).map(np.int64),
    "float32": st.floats(-1e3, 1e3, width=32).map(np.float32),
    "float64": st.floats(-1e300, 1e300).map(np.float64),
    "bool": st.booleans().map(np.bool_),
}
TEXT = {f"U{n}": st.text("abc", min_size=n, max_size=n).map(np.str_) for n in (1, 3, 5)}


@st.composite
def histories(draw: st.DrawFn) -> list[list[Any]]:
    """Draw for 1 or 2 environments the (nested) observations of 4 rows, and the last observations of row 2."""
    leaves = draw(st.sampled_from([LEAVES, TEXT]))
    is_nested, num_envs = draw(st.booleans()), draw(st.integers(1, 2))
    rows = []
    for _ in range(5):
        value = leaves[draw(st.sampled_from(sorted(leaves)))]  # the dtype may differ from row to row
        row = [draw(value) for _ in range(num_envs)]
        rows.append([{"x": item, "y": (item,)} for item in row] if is_nested else row)
    return rows


def stacked(items: list[Any]) -> Any:
    if isinstance(items[0], dict):
        column = np.array([item["x"] for item in items])
        return {"x": column, "y": (column,)}
    return np.array(items)


@settings(max_examples=150)
@example(rows=[[np.int8(5)]] * 4 + [[np.int64(300)]], mode="SameStep", as_info=False)  # wider than all rows
@example(rows=[[np.int8(5)]] * 4 + [[np.float64(2.5)]], mode="SameStep", as_info=True)
@given(rows=histories(), mode=st.sampled_from(["NextStep", "SameStep", "Disabled"]), as_info=st.booleans())
def test_recorder_without_space_returns_what_went_in(rows: list[list[Any]], mode: str, as_info: bool) -> None:
    *seen, last = rows
    num_envs = len(last)
    recorder = VectorRecorder(num_envs, autoreset_mode=mode)
    yes, no = np.ones(num_envs, bool), np.zeros(num_envs, bool)
    recorder.reset(stacked(seen[0]))
    recorder.step(stacked(seen[1]), np.zeros(num_envs), np.zeros(num_envs), no, no)
    if mode == "SameStep":
        final = np.fromiter(last, object, num_envs) if as_info else stacked(last)
        recorder.step(
            stacked(seen[2]), np.zeros(num_envs), np.ones(num_envs), yes, no, {"final_obs": final, "_final_obs": yes}
        )
    else:
        recorder.step(stacked(last), np.zeros(num_envs), np.ones(num_envs), yes, no)
        if mode == "Disabled":
            recorder.reset(stacked(seen[2]))
        else:
            recorder.step(stacked(seen[2]), np.zeros(num_envs), np.ones(num_envs), no, no)
    recorder.step(stacked(seen[3]), np.zeros(num_envs), np.zeros(num_envs), no, no)
    expected = [[seen[0], seen[1], last], [seen[2], seen[3]]]
    pack = recorder.take()
    for env in range(num_envs):
        for number, episode in enumerate(pack[2 * env : 2 * env + 2]):
            for t, row in enumerate(expected[number]):
                item, stored = row[env], episode.get_observations(t)
                pairs = (
                    [(item["x"], stored["x"]), (item["y"][0], stored["y"][0])]
                    if isinstance(item, dict)
                    else [(item, stored)]
                )
                for value, kept in pairs:
                    assert kept == (np.float32(value) if kept.dtype == np.float32 else value)


def test_random_actions_of_a_multi_discrete_space_obey_its_mask() -> None:
    class Masked(gym.Env):
        action_space = spaces.MultiDiscrete([3, 2])
        observation_space = spaces.Dict(action_mask=spaces.MultiBinary(5), x=spaces.Discrete(2))
        mask = np.array([0, 0, 1, 1, 0], np.int8)

        def reset(self, **options: Any) -> Any:
            return {"action_mask": self.mask, "x": 0}, {}

        def step(self, action: Any) -> Any:
            return {"action_mask": self.mask, "x": 1}, 1.0, False, False, {}

    pack = SingleAgentEnvRunner(Masked, num_envs=3, seed=0).sample(num_timesteps=60, random_actions=True)
    assert (pack.actions == [2, 0]).all()

    class Agents(OneAgent):
        def __init__(self) -> None:
            self.env: Any = Masked()
            self.env.item = self.env.reset()[0]
            self.observation_spaces, self.action_spaces = (
                {"a": Masked.observation_space},
                {"a": Masked.action_space},
            )

    episodes = MultiAgentEnvRunner(Agents, seed=0).sample(num_timesteps=20, random_actions=True)
    assert all((episode.agent_episodes["a"].get_actions() == [2, 0]).all() for episode in episodes)


@given(data=st.data())
@settings(max_examples=60)
def test_random_action_is_legal_for_every_space_with_a_mask(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    parts = [data.draw(st.lists(st.booleans(), min_size=n, max_size=n)) for n in counts]
    legal = [[i for i in range(n) if mask[i]] or list(range(n)) for n, mask in zip(counts, parts, strict=True)]
    several, flat = spaces.MultiDiscrete(counts), np.concatenate(parts)
    assert all(a in ok for a, ok in zip(sample_random_action(several, {"action_mask": flat}), legal, strict=True))
    alone = spaces.Discrete(counts[0])
    assert sample_random_action(alone, None, {"action_mask": parts[0]}) in legal[0]
    both = spaces.Dict(a=alone, b=several, c=PAIR)
    action = sample_random_action(both, {"action_mask": {"a": parts[0], "b": flat}})
    assert action["a"] in legal[0]
    assert all(a in ok for a, ok in zip(action["b"], legal, strict=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_largest_floats_count_as_unbounded(dtype: Any) -> None:
    largest = np.finfo(dtype).max
    space = spaces.Box(np.array([-largest, -1], dtype), np.array([largest, 1], dtype), dtype=dtype)
    assert [mask.tolist() for mask in bounded_parts(space)] == [[False, True], [False, True]]
    policy_space = PolicyBox(space, "normalize")
    assert policy_space.to_env(np.array([[0.5, 0.5]], dtype)).tolist() == [[0.5, 0.5]]
    sampled = np.array([sample_random_action(space) for _ in range(20)])
    assert np.abs(sampled).max() < 100


@pytest.mark.parametrize("start", [-1, 2**63, 2**63 - 2, 1.5, "3"], ids=repr)
def test_start_outside_of_int64_is_refused(start: Any) -> None:
    lists: dict[str, Any] = {
        "observations": [0] * 4,
        "actions": [0] * 3,
        "rewards": [0.0] * 3,
        "len_lookback_buffer": 0,
    }
    arrays: Any = np.zeros(4), np.zeros(3), np.zeros(3)
    episode = SingleAgentEpisode.from_arrays(*arrays)
    columns: dict[str, Any] = {"observations": arrays[0], "actions": arrays[1], "rewards": arrays[2], "lengths": [3]}
    by_agent: dict[str, Any] = {
        name: [{"a": x} for x in lists[name]] for name in ("observations", "actions", "rewards")
    }
    for call in (
        lambda: SingleAgentEpisode(**lists, t_started=start),
        lambda: SingleAgentEpisode.from_arrays(*arrays, t_started=start),
        lambda: setattr(episode, "t_started", start),
        lambda: MultiAgentEpisode(**by_agent, env_t_started=start, len_lookback_buffer=0),
        lambda: MultiAgentEpisode(**by_agent, agent_t_started={"a": start}, len_lookback_buffer=0),
        lambda: EpisodePack(**columns, t_started=[start]),
        lambda: EpisodePack(**columns).replace(t_started=[start]),
    ):
        with pytest.raises(InvalidArgument):
            call()
    assert episode.t_started == 0
    assert EpisodePack(**columns, t_started=[2**63 - 4])[0].t == 2**63 - 1


@pytest.mark.parametrize(
    "space", [spaces.Sequence(PAIR), spaces.Graph(PAIR, None), spaces.OneOf([PAIR, IMAGE])], ids=repr
)
def test_wrapper_refuses_items_without_a_common_shape_at_once(space: spaces.Space, tmp_path: Path) -> None:
    with pytest.raises(ShapeMismatch, match=r"SingleAgentEpisode\(ragged=.*ragged\.md"):
        RecordEpisodes(Returning(spaces.Dict(a=space), None, True), tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_agent_that_comes_back_is_told_to_take_a_new_id() -> None:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0, "b": 0})
    episode.add_env_step({"a": 1, "b": 1}, {"a": 0, "b": 0}, {"a": 1.0, "b": 1.0}, terminateds={"a": True})
    later = episode.cut()
    later.add_env_step({"b": 2}, {"b": 0}, {"b": 1.0})
    departed = later.cut()
    for chunk in (later.cut(), departed):
        with pytest.raises(InvalidArgument, match="give an agent that comes back a new id"):
            chunk.add_env_step({"a": 3, "b": 3}, {"b": 0}, {"b": 1.0})
