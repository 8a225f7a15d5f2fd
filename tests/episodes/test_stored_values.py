"""What an episode stores does not change later: one table of all paths into an episode and all kinds of values."""

from __future__ import annotations

import copy
import pickle
import threading
from collections import ChainMap, OrderedDict, UserDict, deque
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner, make_vector_env
from episode_runners.serial_envs import checked_step
from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode, VectorRecorder
from episodes.errors import EpisodeStateError, ShapeMismatch, WrongType
from episodes.storage import EpisodeDataset, RecordEpisodes
from episodes.tracks import nested

STEPS = 4
DICT = spaces.Dict(x=spaces.Box(-99, 99, (2,), np.float64), y=spaces.Tuple([spaces.Box(-99, 99, (1,), np.float64)]))
ACTIONS = spaces.Box(-99, 99, (2,), np.float64)


class Reusing(gym.Env):
    """Environment that writes its observation, reward, info and the given action into the same objects at each step."""

    observation_space, action_space = DICT, ACTIONS

    def __init__(self) -> None:
        self.x, self.y, self.reward = np.zeros(2), np.zeros(1), np.zeros(())
        self.info: dict[str, Any] = {}
        self.observation = {"x": self.x, "y": (self.y,)}
        self.t = 0

    def reset(self, **options: Any) -> Any:
        self._write(0)
        return self.observation, self.info

    def _write(self, t: int) -> None:
        self.t = t
        self.x[:], self.y[:], self.reward[...] = t, -t, t
        self.info.setdefault("array", np.zeros(2))[:] = t
        self.info.setdefault("list", []).append(t)

    def step(self, action: Any) -> Any:
        self._write(self.t + 1)
        if isinstance(action, np.ndarray):
            action[:] = 77  # as environments that clip or scale in place
        return self.observation, self.reward, self.t == STEPS, False, self.info


def actions() -> list[np.ndarray]:
    return [np.full(2, t + 0.5) for t in range(STEPS)]


def check(episode: Any, own_actions: bool = True) -> None:
    """Compare an episode with the values that the environment returned at each time."""
    times = np.arange(STEPS + 1.0)
    assert len(episode) == STEPS
    observations = episode.get_observations()
    x = np.array(observations["x"] if isinstance(observations, dict) else [item["x"] for item in observations])
    y = np.array(observations["y"][0] if isinstance(observations, dict) else [item["y"][0] for item in observations])
    assert x[:, 0].tolist() == times.tolist()
    assert y[:, 0].tolist() == (-times).tolist()
    assert np.asarray(episode.get_rewards()).tolist() == times[1:].tolist()
    infos = episode.get_infos()
    assert [info["array"].tolist() for info in infos] == [[t, t] for t in times.tolist()]
    assert [list(info["list"])[-1] for info in infos] == list(range(STEPS + 1))
    stored = np.asarray(episode.get_actions())
    assert (stored.tolist() == [[t + 0.5] * 2 for t in range(STEPS)]) if own_actions else (stored != 77).all()


def by_hand(tmp_path: Path) -> Any:
    env, episode, action = Reusing(), SingleAgentEpisode(), np.zeros(2)
    episode.add_env_reset(*env.reset())
    for own_action in actions():
        action[:] = own_action
        observation, reward, done, _, info = env.step(None)
        episode.add_env_step(observation, action, reward, info, terminated=done)
    env.step(None)
    return episode


def by_hand_finalized(tmp_path: Path) -> Any:
    return by_hand(tmp_path).to_numpy()


def several_by_hand(tmp_path: Path) -> Any:
    env, episode, action = Reusing(), MultiAgentEpisode(), np.zeros(2)
    observation, info = env.reset()
    episode.add_env_reset(observations={"a": observation}, infos={"a": info})
    for own_action in actions():
        action[:] = own_action
        observation, reward, _, _, info = env.step(None)
        episode.add_env_step({"a": observation}, {"a": action}, {"a": reward}, {"a": info})
    env.step(None)
    action[:] = 9
    return episode.agent_episodes["a"]


def wrapper(tmp_path: Path) -> Any:
    env = RecordEpisodes(Reusing(), tmp_path / "data")
    env.reset()
    for action in actions():
        env.step(action)
    env.close()
    return EpisodeDataset(tmp_path / "data")[0]


def recorder(tmp_path: Path) -> Any:
    env, recorder = Reusing(), VectorRecorder(1, autoreset_mode="NextStep")
    action, done = np.zeros((1, 2)), np.zeros(1, bool)

    def rows(observation: Any) -> Any:
        return {"x": observation["x"][None], "y": (observation["y"][0][None],)}

    observation, info = env.reset()
    recorder.reset(rows(observation), {"array": info["array"][None], "list": [list(info["list"])]})
    for own_action in actions():
        action[:] = own_action
        observation, reward, done[0], _, info = env.step(None)
        infos = {"array": info["array"][None], "list": [info["list"]]}
        recorder.step(rows(observation), action, reward[None], done, np.zeros(1, bool), infos)
    env.step(None)
    return recorder.take()[0]


def runner(mode: str, kind: str = "sync") -> Callable[[Path], Any]:
    def record(tmp_path: Path) -> Any:
        env = make_vector_env(Reusing, 2, autoreset_mode=mode, vectorization=kind)
        sampler = SingleAgentEnvRunner(env, seed=0)
        pack = sampler.sample(num_episodes=2, random_actions=True)
        sampler.close()
        return pack[0]

    return record


class OneAgent:
    """Environment with one agent, which reuses the objects of `Reusing`."""

    possible_agents = agents = ["a"]

    def __init__(self) -> None:
        self.env = Reusing()
        self.observation_spaces, self.action_spaces = {"a": DICT}, {"a": ACTIONS}

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        observation, info = self.env.reset()
        return {"a": observation}, {"a": info}

    def step(self, actions: Any) -> Any:
        observation, reward, done, truncated, info = self.env.step(actions["a"])
        return {"a": observation}, {"a": reward}, {"a": done}, {"a": truncated}, {"a": info}


def several_runner(tmp_path: Path) -> Any:
    sampler = MultiAgentEnvRunner(OneAgent, seed=0)
    return sampler.sample(num_episodes=1, random_actions=True)[0].agent_episodes["a"]


PATHS: dict[str, tuple[Callable[[Path], Any], bool]] = {
    "add_env_step": (by_hand, True),
    "add_env_step, finalized": (by_hand_finalized, True),
    "MultiAgentEpisode": (several_by_hand, True),
    "RecordEpisodes": (wrapper, True),
    "VectorRecorder": (recorder, True),
    **{f"runner, {mode}": (runner(mode), False) for mode in ("NextStep", "SameStep", "Disabled")},
    "runner, async, SameStep": (runner("SameStep", "async"), False),
    "MultiAgentEnvRunner": (several_runner, False),
}


@pytest.mark.parametrize("path", PATHS)
def test_reused_objects_of_environment_and_policy_are_copied(path: str, tmp_path: Path) -> None:
    record, own_actions = PATHS[path]
    check(record(tmp_path), own_actions)


VALUES: dict[str, Callable[[], Any]] = {
    "array": lambda: np.zeros(2),
    "read-only view of a buffer": lambda: np.broadcast_to(np.zeros(1), (2,)),
    "dict": lambda: {"a": np.zeros(2), "b": (np.zeros(1),)},
    "list": lambda: [0.0, 0.0],
    "tensor": lambda: torch.zeros(2),
    "scalar array": lambda: np.zeros(()),
}


def spoil(value: Any) -> None:
    """Overwrite all numbers of a value in place."""
    if isinstance(value, dict):
        list(map(spoil, value.values()))
    elif isinstance(value, tuple):
        list(map(spoil, value))
    elif isinstance(value, np.ndarray):
        owner = value if value.base is None else value.base
        owner.setflags(write=True)
        owner[...] = 9
    else:
        value[0] = value[1] = 9.0


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers(part)]
    return (
        [number for part in value for number in numbers(part)] if isinstance(value, tuple) else np.ravel(value).tolist()
    )


@pytest.mark.parametrize("slot", ["observation", "reset observation", "action", "output", "info", "set", "new output"])
@pytest.mark.parametrize("kind", VALUES)
def test_values_of_each_kind_are_copied(kind: str, slot: str) -> None:
    value, episode = VALUES[kind](), SingleAgentEpisode()
    episode.add_env_reset(value if slot == "reset observation" else VALUES[kind]())
    action, info = value if slot == "action" else VALUES[kind](), {"key": value} if slot == "info" else {}
    outputs = {"out": value if slot == "output" else VALUES[kind]()}
    observation = value if slot == "observation" else VALUES[kind]()
    episode.add_env_step(observation, action, 0.0, info, extra_model_outputs=outputs)
    if slot == "set":
        episode.set_observations(new_data=value, at_indices=-1)
    if slot == "new output":
        episode.set_extra_model_outputs(key="new", new_data=[value])
    spoil(value)
    stored = {
        "info": lambda: episode.get_infos(-1)["key"],
        "action": lambda: episode.get_actions(0),
        "output": lambda: episode.get_extra_model_outputs("out", 0),
        "new output": lambda: episode.get_extra_model_outputs("new", 0) if slot == "new output" else 0.0,
        "reset observation": lambda: episode.get_observations(0),
    }.get(slot, lambda: episode.get_observations(-1))
    assert set(numbers(stored())) == {0.0}


def test_add_env_step_without_copy_stores_the_given_objects() -> None:
    items, info = [np.zeros(2), np.ones(2)], {"a": 1}
    episode = SingleAgentEpisode()
    episode.add_env_reset(items[0], copy=False)
    episode.add_env_step(items[1], items[0], 1.0, info, copy=False)
    assert episode.get_observations(-1) is items[1]
    assert episode.get_infos(-1) is info


def test_empty_info_that_grows_later_is_copied() -> None:
    episode, info = SingleAgentEpisode(), dict[str, Any]()
    episode.add_env_reset(0, info)
    episode.add_env_step(1, 0, 1.0, info)
    info["late"] = 1
    assert episode.get_infos() == [{}, {}]


@pytest.mark.parametrize(
    "reward",
    [np.array(1.5), np.array(2, np.int8), torch.tensor(1.5), np.float32(1.5)],
    ids=lambda r: f"{type(r).__name__} {r.dtype}",
)
def test_reward_becomes_a_number_at_once(reward: Any) -> None:
    single, several = SingleAgentEpisode(), MultiAgentEpisode()
    single.add_env_reset(0)
    single.add_env_step(1, 0, reward)
    several.add_env_reset(observations={"a": 0})
    several.add_env_step({}, {"a": 0}, {"a": reward})
    several.add_env_step({"a": 1}, {}, {"a": reward})
    for stored, expected in ((single, 1), (several.agent_episodes["a"], 2)):
        assert isinstance(stored.get_rewards(0), np.generic)
        assert stored.get_rewards(0) == float(reward) * expected


@pytest.mark.parametrize(
    ("reward", "advice"),
    [(np.ones(1), r"\.item\(\)"), (np.ones(3), "such as their sum"), ([1.0, 2.0], "their sum")],
    ids=["one", "three", "list"],
)
def test_reward_array_is_refused_with_fitting_advice(reward: Any, advice: str) -> None:
    class Paying(Reusing):
        def step(self, action: Any) -> Any:
            observation, _, *others = super().step(action)
            return (observation, reward, *others)

    episode = SingleAgentEpisode()
    episode.add_env_reset(0)
    with pytest.raises(ShapeMismatch, match=advice):
        episode.add_env_step(1, 0, reward)
    env, alone = make_vector_env(Paying, 1), Paying()
    env.reset(seed=0), alone.reset(seed=0)
    with pytest.raises(ShapeMismatch, match=f"the reward has shape .*{advice}"):
        env.step(env.action_space.sample())
    with pytest.raises(ShapeMismatch, match=f"the reward has shape .*{advice}"):
        checked_step(alone.step(alone.action_space.sample()), alone.observation_space)


def packed() -> EpisodePack:
    arrays = np.arange(4.0), np.arange(3.0), np.ones(3)
    episode = SingleAgentEpisode.from_arrays(
        *arrays, extra_model_outputs={"vf": np.zeros(3)}, custom_data={"a": 1}, id_="e"
    )
    return EpisodePack.from_episodes([episode])


def later() -> SingleAgentEpisode:
    """Return the chunk that follows the episode of `packed`."""
    outputs = {"vf": np.zeros(1)}
    return SingleAgentEpisode.from_arrays([3.0, 4.0], [0.0], [1.0], id_="e", t_started=3, extra_model_outputs=outputs)


SETTERS: dict[str, Callable[[Any], Any]] = {
    "set_observations": lambda e: e.set_observations(new_data=np.ones(4)),
    "set_actions": lambda e: e.set_actions(new_data=5.0, at_indices=0),
    "set_rewards": lambda e: e.set_rewards(new_data=[5.0, 6.0, 7.0]),
    "set_extra_model_outputs": lambda e: e.set_extra_model_outputs(key="vf", new_data=np.ones(3)),
    "set_extra_model_outputs, new": lambda e: e.set_extra_model_outputs(key="new", new_data=np.ones(3)),
    "observations": lambda e: setattr(e, "observations", e.observations),
    "actions": lambda e: setattr(e, "actions", e.actions),
    "rewards": lambda e: setattr(e, "rewards", e.rewards),
    "extra_model_outputs": lambda e: setattr(e, "extra_model_outputs", {}),
    "tracks": lambda e: setattr(e, "tracks", e.tracks),
    "facts": lambda e: setattr(e, "facts", e.facts),
    "policy_versions": lambda e: setattr(e, "policy_versions", 3),
    "custom_data": lambda e: setattr(e, "custom_data", {}),
    "custom_data[...]": lambda e: e.custom_data.__setitem__("a", 2),
    "custom_data.update": lambda e: e.custom_data.update(a=2),
    "custom_data.pop": lambda e: e.custom_data.pop("a"),
    "concat_episode": lambda e: e.concat_episode(later()),
    **{
        name: lambda e, name=name, value=value: setattr(e, name, value)
        for name, value in {
            "id_": "other",
            "t_started": 3,
            "ending": SingleAgentEpisode().ending,
            "agent_id": "a",
            "module_id": "m",
            "multi_agent_episode_id": "g",
            "acting_pipeline": "[]",
            "observation_space": None,
            "action_space": None,
            "is_terminated": True,
            "is_truncated": True,
        }.items()
    },
}


@pytest.mark.parametrize("setter", SETTERS)
@pytest.mark.parametrize(
    "read",
    [lambda pack: pack[0], lambda pack: next(iter(pack)), lambda pack: pack[:1][-1]],
    ids=["[0]", "iterated", "of slice"],
)
def test_setter_on_episode_of_pack_raises_and_works_on_a_copy(setter: str, read: Callable[..., Any]) -> None:
    pack = packed()
    episode = read(pack)
    with pytest.raises(EpisodeStateError, match=r"copy\.copy\(pack\[i\]\)"):
        SETTERS[setter](episode)
    assert pack == packed()
    assert episode.equals(packed()[0])
    for duplicate in (copy.copy(episode), copy.deepcopy(episode), pickle.loads(pickle.dumps(episode)), episode[:]):
        assert duplicate.equals(episode)
        assert type(duplicate.custom_data) is dict
        SETTERS[setter](duplicate)
    assert pack == packed()


def test_every_setter_is_in_the_table() -> None:
    properties = {
        name
        for cls in SingleAgentEpisode.__mro__
        for name, member in vars(cls).items()
        if isinstance(member, property) and member.fset is not None
    }
    methods = {name for name in dir(SingleAgentEpisode) if name.startswith("set_")}
    assert properties | methods <= SETTERS.keys()


class Landmark:
    """An object of a user, with an array that changes."""

    def __init__(self, at: np.ndarray) -> None:
        self.at = at


# --- kinds of values, in observations and in infos: what makes one of an array, and how its first number is read
KINDS: dict[str, tuple[Callable[[np.ndarray], Any], Callable[[Any], Any]]] = {
    "UserDict": (lambda array: UserDict(a=array), lambda item: item["a"][0]),
    "mapping proxy": (lambda array: MappingProxyType({"a": array}), lambda item: item["a"][0]),
    "ChainMap in a dict": (lambda array: {"c": ChainMap({"a": array})}, lambda item: item["c"]["a"][0]),
    "OrderedDict": (lambda array: OrderedDict(a=array), lambda item: item["a"][0]),
    "memoryview": (memoryview, lambda item: item[0]),
    "tuple of a mapping": (lambda array: (UserDict(a=array),), lambda item: item[0]["a"][0]),
}
OBJECTS: dict[str, tuple[Callable[[np.ndarray], Any], Callable[[Any], Any]]] = {
    "object": (Landmark, lambda item: item.at[0]),
    "list of objects": (lambda array: [Landmark(array)], lambda item: item[0].at[0]),
    "deque": (lambda array: deque([array]), lambda item: item[0][0]),
}


PLACES = [
    *[(kind, place) for kind in KINDS for place in ("observation", "info", "agent's info", "extra model output")],
    *[(kind, place) for kind in OBJECTS for place in ("info", "agent's info")],
]


@pytest.mark.parametrize(("kind", "place"), PLACES)
def test_values_of_all_kinds_are_copied(kind: str, place: str) -> None:
    make, read = (KINDS | OBJECTS)[kind]
    array = np.zeros(2)
    episode, several = SingleAgentEpisode(), MultiAgentEpisode()
    observation = make(array) if place == "observation" else 0
    episode.add_env_reset(observation, {"value": make(array)})
    several.add_env_reset(observations={"a": 0}, infos={"a": {"value": make(array)}})
    for t in range(1, 4):
        array[:] = t
        item = make(array)
        extra = {"value": item} if place == "extra model output" else None
        observation = item if place == "observation" else 0
        episode.add_env_step(observation, 0, 1.0, {"value": item}, extra_model_outputs=extra)
        several.add_env_step({"a": 0}, {"a": 0}, {"a": 1.0}, {"a": {"value": item}})
    array[:] = 9
    if place == "observation":
        assert [read(stored) for stored in episode.get_observations()] == [0, 1, 2, 3]
        (column,) = nested.leaves(episode.to_numpy().get_observations())
        assert column[:, 0].tolist() == [0, 1, 2, 3]
    elif place == "extra model output":
        assert [read(stored) for stored in episode.get_extra_model_outputs("value")] == [1, 2, 3]
    else:
        recorded = episode if place == "info" else several.agent_episodes["a"]
        assert [read(info["value"]) for info in recorded.get_infos()] == [0, 1, 2, 3]


def test_mappings_that_are_not_copied_are_refused_when_they_are_stacked() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(UserDict(a=np.zeros(2)), copy=False)
    episode.add_env_step(UserDict(a=np.ones(2)), 0, 1.0, copy=False)
    with pytest.raises(WrongType, match="item 0 is a UserDict; give dicts"):
        episode.to_numpy()


def test_objects_that_cannot_be_copied_are_kept() -> None:
    lock, episode = threading.Lock(), SingleAgentEpisode()
    episode.add_env_reset(0, {"lock": lock})
    assert episode.get_infos(0)["lock"] is lock
