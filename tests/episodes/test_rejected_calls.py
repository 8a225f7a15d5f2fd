"""A rejected call raises an error of this library and changes nothing, for all public methods of both episodes."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import EpisodeError
from episodes.tracks.infos.infos import same_info

BOX, CHOICES = spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(5)
ODD: list[Any] = [None, "text", -1, 7, 1.5, float("nan"), 2**70, True, [], {}, object()]
ODD += [np.zeros((3, 3)), [0.0, [1.0]], {"a": object()}, np.ma.masked_array([1.0], [True])]
INDICES: list[Any] = [None, 0, -1, -2, 1, 99, [0, 1], [], [0, 99], np.array([1])]
INDICES += [slice(0, 2), slice(-3, None), slice("a", 2), slice(0, 1, 0)]


def observation(value: float = 0.0) -> np.ndarray:
    return np.full(2, value, np.float32)


# --- one agent ---------------------------------------------------------------------------------------------------


def single(phase: str) -> SingleAgentEpisode:
    """Return an episode in one of the phases that it can be in."""
    episode = SingleAgentEpisode("e", observation_space=BOX, action_space=CHOICES)
    if phase == "new":
        return episode
    episode.add_env_reset(observation(), {"t": 0})
    for t in range(1, 4):
        ends = phase == "terminated" and t == 3
        outputs = {"vf": float(t), "state": np.full(2, t)}
        episode.add_env_step(observation(t), t, 1.0, {"t": t}, terminated=ends, extra_model_outputs=outputs)
    if phase == "cut":
        episode.cut()
    successor = episode.cut(2) if phase == "continued" else episode
    return successor.to_numpy() if phase == "finalized" else successor


def following(episode: Any) -> Any:
    """Return a chunk that may follow the episode."""
    try:
        later = copy.deepcopy(episode).cut(1)
    except EpisodeError:
        return single("new")
    if isinstance(later, SingleAgentEpisode) and later.is_reset:
        later.add_env_step(observation(9), 4, 2.0, extra_model_outputs={"vf": 4.0, "state": np.zeros(2)})
    return later


OUTPUTS: list[Any] = [*({"vf": 0.5, "state": np.zeros(n)} for n in (2, 3)), {"vf": 0.5}, {"t": 1.0}, None]
SINGLE: dict[str, list[Any]] = {
    "observation": [observation(), observation(), np.zeros(3), [0.0, 1.0]],
    "infos": [None, {}, {"k": 1}],
    "action": [0, 1, np.int64(2), np.zeros(2)],
    "reward": [0.0, 1, np.float32(2), np.zeros(2)],
    "terminated": [False, True],
    "truncated": [False, True],
    "extra_model_outputs": OUTPUTS,
    "policy_version": [None, 3, -2],
    "copy": [True, False],
    "len_lookback_buffer": [0, 2, 99],
    "mapping": ["normalize", "clip", "none"],
    "slice_": [slice(0, 2), slice(None), slice(-2, None)],
    "key": ["vf", "state", "new", "rewards"],
    "indices": INDICES,
    "at_indices": INDICES,
    "neg_index_as_lookback": [False, True],
    "fill": [None, 0, 1.5, "a"],
    "one_hot_discrete": [False, True],
    "new_data": [[0.0, 1.0, 2.0], np.ones(3), np.ones((3, 2)), [0.5], 0.5, [observation()], ["a", "b", "c"]],
    "num_steps": [0, 1],
}
NOT_PUBLIC = {"from_state", "from_arrays", "of", "end", "growing", "create_extra_tracks", "finish", "window", "extend"}
NOT_PUBLIC |= {"joined_tracks", "check_follows", "finalized_tracks", "as_growing", "module_for"}
NOT_PUBLIC |= {"begin", "of_pack", "with_custom_data"}


def methods_of(cls: type) -> dict[str, list[str]]:
    """Return the arguments of each public method by the name of the method."""
    methods = inspect.getmembers(cls, lambda member: inspect.isfunction(member))
    public = {name: call for name, call in methods if name not in NOT_PUBLIC and not name.startswith("_")}
    return {name: [*inspect.signature(call).parameters][1:] for name, call in public.items()}


def snapshot(episode: Any) -> Any:
    """Return everything in an episode but seconds and cached modules, as plain values."""
    state = {name: value for name, value in episode.get_state().items() if name not in ("duration_s", "modules")}
    for agent in state.get("agents", {}).values():
        agent["episode"].pop("duration_s")
    return [state, episode._began is None]


def check_call(episode: Any, name: str, arguments: dict[str, Any]) -> None:
    """Call a method. If it raises, the error is one of the library's, and the episode is as it was."""
    before = copy.deepcopy(snapshot(episode))
    try:
        getattr(episode, name)(**arguments)
    except EpisodeError:
        after = snapshot(episode)
        assert same_info(before, after), f"{name}({arguments}) was rejected and changed the episode"
        assert copy.deepcopy(episode).equals(episode)


def arguments_of(data: st.DataObject, names: list[str], usual: dict[str, list[Any]], episode: Any) -> dict[str, Any]:
    arguments = {}
    for name in names:
        values = [following(episode)] if name in ("other", "episode") else usual[name]
        is_invalid = name not in FLAGS and data.draw(st.integers(0, 6)) == 0
        arguments[name] = copy.copy(data.draw(st.sampled_from(ODD if is_invalid else values)))
    return arguments


FLAGS = {"neg_index_as_lookback", "one_hot_discrete", "env_steps", "return_list"}  # only their truth counts
FLAGS |= {"include_pending", "include_hanging_rewards"}
PHASES = ["new", "growing", "terminated", "cut", "continued", "finalized"]


@pytest.mark.parametrize("name", methods_of(SingleAgentEpisode))
@settings(max_examples=40)
@given(st.sampled_from(PHASES), st.data())
def test_single_agent_episode_rejected_call_changes_nothing(name: str, phase: str, data: st.DataObject) -> None:
    episode = single(phase)
    check_call(episode, name, arguments_of(data, methods_of(SingleAgentEpisode)[name], SINGLE, episode))


# --- several agents ------------------------------------------------------------------------------------------------


def several(phase: str) -> MultiAgentEpisode:
    """Return an episode of three agents: one acts at each step, one in turns and is pending, one is not there yet."""
    agents = ("a", "b", "c")
    episode = MultiAgentEpisode(
        "e", observation_space=dict.fromkeys(agents, BOX), action_space=dict.fromkeys(agents, CHOICES)
    )
    if phase == "new":
        return episode
    outputs = {"vf": 0.5, "state": np.zeros(2)}
    episode.add_env_reset(observations={"a": observation(), "b": observation()}, infos={"a": {"t": 0}})
    episode.add_env_step({"a": observation(1)}, {"a": 1, "b": 2}, {"a": 1.0}, extra_model_outputs={"a": outputs})
    last = {"a": observation(2), "b": observation(2)}
    episode.add_env_step(last, {"a": 1}, {"a": 1.0, "b": 0.5}, {"b": {}}, extra_model_outputs={"a": outputs})
    if phase == "terminated":
        step = {"a": observation(3), "b": observation(3)}, {"a": 0, "b": 1}, {"a": 0.5, "b": 0.5}
        episode.add_env_step(*step, terminateds={"__all__": True}, extra_model_outputs={"a": outputs})
        return episode
    episode.add_env_step({"a": observation(3)}, {"a": 1, "b": 1}, {"a": 1.0}, extra_model_outputs={"a": outputs})
    if phase == "cut":
        episode.cut()
    successor = episode.cut(2) if phase == "continued" else episode
    return successor.to_numpy() if phase == "finalized" else successor


def of_agents(*values: Any) -> list[Any]:
    """Return dicts from agent to each of the values, for several sets of agents."""
    agents = [("a",), ("a", "b"), ("b",), ("c",), ("a", "b", "c"), ("nobody",), ()]
    return [dict.fromkeys(names, value) for names in agents for value in values]


FLAGS_OF_AGENTS = [None, *of_agents(False, True), {"__all__": True}, {"__all__": "no"}, {"a": 3}]
SEVERAL: dict[str, list[Any]] = SINGLE | {
    "observations": of_agents(observation(), observation(), np.zeros(3), [0.0, 1.0]),
    "actions": of_agents(1, 1, np.zeros(2)),
    "rewards": of_agents(0.5, 0.5, np.zeros(2), None),
    "infos": [None, *of_agents({}, {"k": 1}, 3), {"__common__": {}}],
    "terminateds": FLAGS_OF_AGENTS,
    "truncateds": FLAGS_OF_AGENTS,
    "extra_model_outputs": [None, *of_agents(*OUTPUTS)],
    "agent_ids": [None, ["a"], ("a", "b"), "a", ["nobody"]],
    "agent_id": ["a", "b", "c", "nobody"],
    "new_data": of_agents([0.0, 1.0, 2.0], [0.0, 1.0], np.ones(2), np.ones((3, 2)), 0.5),
    "env_steps": [True, False],
    "return_list": [False, True],
    "include_pending": [False, True],
    "include_hanging_rewards": [False, True],
}


@pytest.mark.parametrize("name", methods_of(MultiAgentEpisode))
@settings(max_examples=40)
@given(st.sampled_from(PHASES), st.data())
def test_multi_agent_episode_rejected_call_changes_nothing(name: str, phase: str, data: st.DataObject) -> None:
    episode = several(phase)
    check_call(episode, name, arguments_of(data, methods_of(MultiAgentEpisode)[name], SEVERAL, episode))
