"""Values nested deeper than 64 levels are rejected by name, wherever they come in."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from connectors.connector import Connector
from episodes import Batch, EpisodePack, MultiAgentEpisode, SingleAgentEpisode, VectorRecorder
from episodes.errors import EpisodeError, ShapeMismatch, StateMismatch
from episodes.replay import EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer
from episodes.storage import EpisodeWriter
from episodes.tracks.levels import DEEPEST


def in_dicts(leaf: Any, levels: int) -> Any:
    for _ in range(levels):
        leaf = {"a": leaf}
    return leaf


def in_tuples(leaf: Any, levels: int) -> Any:
    for _ in range(levels):
        leaf = (leaf,)
    return leaf


def in_turns(leaf: Any, levels: int) -> Any:
    for i in range(levels):
        leaf = (leaf,) if i % 2 else {"a": leaf}
    return leaf


def in_lists(leaf: Any, levels: int) -> Any:
    for _ in range(levels):
        leaf = [leaf]
    return leaf


Nest = Callable[[Any, int], Any]
KINDS = [in_dicts, in_tuples, in_turns]
KINDS_AND_LISTS = [*KINDS, in_lists]


def from_arrays(**changed: Any) -> EpisodePack:
    arrays: dict[str, Any] = {"observations": np.zeros(3), "actions": np.zeros(2), "rewards": np.zeros(2)}
    return EpisodePack.from_episodes([SingleAgentEpisode.from_arrays(**(arrays | changed), id_="a")])


def grown(item: Any, name: str, at: int = 0, copy: bool = True) -> EpisodePack:
    """Return a pack of an episode whose values `name` are `item` from step `at` on, 0 before."""
    episode = SingleAgentEpisode()
    values: dict[str, Any] = {"observations": 0.0, "actions": 0.0, "infos": {}, "outputs": 0.0}
    if at == 0:
        values[name] = item
    episode.add_env_reset(values["observations"], values["infos"], copy=copy)
    for t in range(2):
        if t == at:
            values[name] = item
        episode.add_env_step(
            values["observations"],
            values["actions"],
            1.0,
            values["infos"],
            extra_model_outputs={"x": values["outputs"]},
            terminated=t == 1,
            copy=copy,
        )
    return EpisodePack.from_episodes([episode.to_numpy()])


def custom(item: Any) -> EpisodePack:
    episode = SingleAgentEpisode.from_arrays(np.zeros(3), np.zeros(2), np.zeros(2), terminated=True)
    episode.custom_data["x"] = item
    return EpisodePack.from_episodes([episode])


def set_column(item: Any) -> Batch:
    batch = Batch(y=np.zeros(2))
    batch["x"] = item
    return batch


def agents(item: Any) -> Any:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"one": item})
    episode.add_env_step(
        observations={"one": item}, actions={"one": 0}, rewards={"one": 1.0}, terminateds={"__all__": True}
    )
    return episode.to_numpy()


def of_kind(is_finalized: bool, num_agents: int) -> tuple[Any, Callable[[Any], Any]]:
    """Return an episode of two steps, and a function that gives an agent's values the form of its setters."""
    if num_agents == 1:
        single = SingleAgentEpisode.from_arrays(np.zeros(3), np.zeros(2), np.zeros(2), id_="a")
        single.set_extra_model_outputs(key="x", new_data=np.zeros(2))
        return single if is_finalized else single.as_growing(), lambda values: values
    several = MultiAgentEpisode()
    several.add_env_reset(observations={"one": 0.0})
    for _ in range(2):
        several.add_env_step(
            observations={"one": 0.0},
            actions={"one": 0.0},
            rewards={"one": 1.0},
            extra_model_outputs={"one": {"x": 0.0}},
        )
    return several.to_numpy() if is_finalized else several, lambda values: {"one": values}


SETTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "observation": ("set_observations", {"at_indices": 0}),
    "observations": ("set_observations", {}),
    "action": ("set_actions", {"at_indices": 0}),
    "actions": ("set_actions", {}),
    "output": ("set_extra_model_outputs", {"key": "x", "at_indices": 0}),
    "new output": ("set_extra_model_outputs", {"key": "new"}),
}


@pytest.mark.parametrize("setter", SETTERS)
@pytest.mark.parametrize("is_finalized", [False, True])
@pytest.mark.parametrize("num_agents", [1, 2])
@pytest.mark.parametrize("kind", KINDS_AND_LISTS, ids=lambda kind: kind.__name__)
def test_setters_reject_deep_values_and_change_nothing(
    kind: Nest, num_agents: int, is_finalized: bool, setter: str
) -> None:
    episode, given = of_kind(is_finalized, num_agents)
    before = deepcopy(episode)
    name, arguments = SETTERS[setter]
    num_items = 3 if name == "set_observations" else 2
    for levels in (DEEPEST + 1, 500, 5000):
        item = kind(0.0, levels)
        with pytest.raises(ShapeMismatch, match="nested deeper than 64 levels"):
            getattr(episode, name)(
                new_data=given(item if "at_indices" in arguments else [item] * num_items), **arguments
            )
    assert episode.equals(before)


def recorded(item: Any = 0.0, info: Any = None) -> VectorRecorder:
    recorder = VectorRecorder(2, autoreset_mode="NextStep")
    recorder.reset(item, info or {})
    return recorder


def pack_of(**changed: Any) -> EpisodePack:
    arrays: dict[str, Any] = {"observations": np.zeros(3), "actions": np.zeros(2), "rewards": np.zeros(2)}
    return EpisodePack(lengths=[2], **(arrays | changed))


def publish(weights: Any) -> None:
    from episodes.transport import EpisodeReceiver

    with EpisodeReceiver() as receiver:
        receiver.publish(weights, 1)


OTHERS: dict[str, Callable[[Any], Any]] = {
    "observations of a pack": lambda item: pack_of(observations=item),
    "outputs of a pack": lambda item: pack_of(extra_model_outputs={"x": item}),
    "infos of a pack": lambda item: pack_of(infos=[{"x": item}] * 3),
    "custom data of a pack": lambda item: pack_of(custom_data=[{"x": item}]),
    "replaced observations": lambda item: pack_of().replace(observations=item),
    "rows of a recorder": lambda item: recorded(item),
    "infos of a recorder": lambda item: recorded(np.zeros(2), {"x": item}),
    "weights": publish,
    "one row of a column": lambda item: Connector.add_batch_item({}, "x", item),
    "rows of a column": lambda item: Connector.add_n_batch_items({}, "x", item, 1),
    "metadata of a data set": lambda item: EpisodeWriter(tempfile.gettempdir() + "/unused", metadata={"x": item}),
}


@pytest.mark.parametrize("levels", [500, 5000])
@pytest.mark.parametrize("kind", KINDS_AND_LISTS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("place", OTHERS)
def test_deep_values_are_rejected_in_other_places(place: str, kind: Nest, levels: int) -> None:
    with pytest.raises(EpisodeError, match=r"nested deeper than 64 levels|dtype object"):
        OTHERS[place](kind(np.zeros(2), levels))


@pytest.mark.parametrize(
    "use",
    [
        lambda value: pack_of()[0].get_observations(slice(0, 9), fill=value),
        lambda value: SingleAgentEpisode.from_arrays(np.zeros(3), np.zeros(2), np.zeros(2), terminated=value),
        lambda value: VectorRecorder(value, autoreset_mode="NextStep"),
        SingleAgentEpisode.from_state,
        MultiAgentEpisode.from_state,
        EpisodeReplayBuffer(9).set_state,
        MultiAgentEpisodeReplayBuffer(9).set_state,
        lambda value: SingleAgentEpisode.from_state({**pack_of()[0].get_state(), "custom_data": value}),
    ],
    ids=["fill", "flag", "count", "episode", "episode of agents", "buffer", "buffer of agents", "custom data"],
)
@pytest.mark.parametrize("kind", KINDS_AND_LISTS, ids=lambda kind: kind.__name__)
def test_deep_arguments_and_states_are_rejected_by_name(kind: Nest, use: Any) -> None:
    with pytest.raises(EpisodeError) as caught:
        use(kind(0.0, 5000))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("state", [{}, {"id_": "a"}, None, [1], 3, "text"])
@pytest.mark.parametrize("cls", [SingleAgentEpisode, MultiAgentEpisode])
def test_malformed_states_of_episodes_are_rejected_by_name(cls: Any, state: Any) -> None:
    with pytest.raises(StateMismatch, match=rf"no state of a {cls.__name__} \(.*\); give what get_state returned"):
        cls.from_state(state)


PLACES: dict[str, tuple[Callable[[Any], Any], int]] = {  # by name, with the levels that the place adds itself
    "observations of from_arrays": (lambda nest: from_arrays(observations=nest(np.zeros(3))), 0),
    "actions of from_arrays": (lambda nest: from_arrays(actions=nest(np.zeros(2))), 0),
    "outputs of from_arrays": (lambda nest: from_arrays(extra_model_outputs={"x": nest(np.zeros(2))}), 0),
    "infos of from_arrays": (lambda nest: from_arrays(infos=[{"x": nest(0)}] * 3), 1),
    "custom data of from_arrays": (lambda nest: from_arrays(custom_data={"x": nest(0)}), 1),
    "custom data": (lambda nest: custom(nest(0)), 1),
    "observations, grown": (lambda nest: grown(nest(0.0), "observations"), 0),
    "actions, grown": (lambda nest: grown(nest(0.0), "actions"), 0),
    "outputs, grown": (lambda nest: grown(nest(0.0), "outputs"), 0),
    "infos, grown": (lambda nest: grown({"x": nest(0)}, "infos"), 1),
    "observations, not copied": (lambda nest: grown(nest(0.0), "observations", copy=False), 0),
    "actions, not copied": (lambda nest: grown(nest(0.0), "actions", copy=False), 0),
    "outputs, not copied": (lambda nest: grown(nest(0.0), "outputs", copy=False), 0),
    "infos, not copied": (lambda nest: grown({"x": nest(0)}, "infos", copy=False), 1),
    "columns of Batch(...)": (lambda nest: Batch(x=nest(np.zeros(2))), 0),
    "a column that is set": (lambda nest: set_column(nest(np.zeros(2))), 0),
    "observations of agents": (lambda nest: agents(nest(0.0)), 1),
}

STORED_WHOLE = ("infos of from_arrays", "infos, not copied")
"""Places where tuples within dicts are values that are stored whole, with as many levels as Python can copy."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_deepest_values_are_stored_and_deeper_ones_are_rejected(place: str, kind: Nest) -> None:
    store, own = PLACES[place]
    store(lambda leaf: kind(leaf, DEEPEST - own))
    for levels in (500, 5000):
        with pytest.raises(ShapeMismatch, match="nested deeper than 64 levels"):
            store(lambda leaf, levels=levels: kind(leaf, levels))
    if place not in STORED_WHOLE or kind is in_dicts:
        with pytest.raises(ShapeMismatch, match="nested deeper than 64 levels"):
            store(lambda leaf: kind(leaf, DEEPEST - own + 1))


@pytest.mark.parametrize(
    ("name", "copy"),
    [
        ("observations", True),
        ("actions", True),
        ("outputs", True),
        ("infos", True),
        ("observations", False),
        ("actions", False),
    ],
)
def test_rejected_step_changes_nothing(name: str, copy: bool) -> None:
    episode = SingleAgentEpisode()
    values: dict[str, Any] = {"observations": 0.0, "actions": 0.0, "infos": {}, "outputs": 0.0}

    def step() -> None:
        outputs = {"x": values["outputs"]}
        episode.add_env_step(
            values["observations"], values["actions"], 1.0, values["infos"], extra_model_outputs=outputs, copy=copy
        )

    episode.add_env_reset(0.0)
    step()
    before = str({**episode.get_state(), "duration_s": 0})
    values[name] = in_dicts(0.0, 5000)
    with pytest.raises(ShapeMismatch):
        step()
    assert str({**episode.get_state(), "duration_s": 0}) == before


@pytest.mark.parametrize(("observation", "info"), [(in_dicts(0.0, 500), {}), (0.0, in_dicts(0.0, 500))])
def test_rejected_reset_changes_nothing(observation: Any, info: dict[str, Any]) -> None:
    episode = SingleAgentEpisode()
    with pytest.raises(ShapeMismatch):
        episode.add_env_reset(observation, info)
    assert not episode.is_reset
    episode.add_env_reset(np.zeros(2))
    assert episode.get_observations(-1).shape == (2,)
