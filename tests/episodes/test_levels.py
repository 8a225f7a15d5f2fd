"""Values nested deeper than 64 levels are rejected by name, wherever they come in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from episodes import Batch, EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import ShapeMismatch
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


Nest = Callable[[Any, int], Any]
KINDS = [in_dicts, in_tuples, in_turns]


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
