"""Pickled spaces of packs and episodes, without the state of their random generators."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
from gymnasium import spaces

from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode


class Own(spaces.Discrete):
    """Space class of a user. Packs with such a space are pickled in another way."""


NESTED = spaces.Dict({"a": spaces.Tuple((spaces.Discrete(9), spaces.Discrete(9))), "b": spaces.Box(0, 1, (2,))})
SPACES: dict[str, Callable[[], spaces.Space]] = {
    "plain": lambda: spaces.Discrete(10**6),
    "nested": lambda: copy.deepcopy(NESTED),
    "a user's own": lambda: Own(10**6),
    "in a user's own": lambda: spaces.Dict({"a": Own(10**6), "b": spaces.Discrete(10**6)}),
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "protocol 5": lambda pack: pickle.loads(pickle.dumps(pack, 5)),
    "protocol 4": lambda pack: pickle.loads(pickle.dumps(pack, 4)),
    "a copy": copy.copy,
    "a deep copy": copy.deepcopy,
}


def pack_of(space: spaces.Space) -> EpisodePack:
    episode = SingleAgentEpisode("e", action_space=space)
    episode.add_env_reset(0.0)
    for t in range(2):
        episode.add_env_step(t + 1.0, space.sample(), 1.0)
    return EpisodePack.from_episodes([episode])


def states(space: Any) -> list[Any]:
    """Return the seeded generators of a space and of the spaces inside."""
    parts = getattr(space, "spaces", ())
    parts = parts.values() if isinstance(parts, dict) else parts
    return [space._np_random, *(state for part in parts for state in states(part))]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SPACES)
def test_pickled_space_has_no_random_state(kind: str, way: str) -> None:
    space, twin = SPACES[kind](), SPACES[kind]()
    for seed in (1, 2):
        space.seed(seed)
        twin.seed(seed)
        pack = pack_of(space)
        pack_of(twin)
        present = WAYS[way](pack)
        assert present == pack
        assert present.action_space == space
        assert type(present.action_space) is type(space)
        assert set(states(present.action_space)) == {None}
        assert str(pack_of(space).actions) == str(pack_of(twin).actions)  # it draws on as it would have


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SPACES)
def test_seeded_spaces_pickle_to_equal_bytes(kind: str, way: str) -> None:
    recorded = []
    for seed in (1, 2):
        space = SPACES[kind]()
        space.seed(seed)
        single = SingleAgentEpisode("e", observations=[0, 1], actions=[0], rewards=[1.0], action_space=space)
        several = MultiAgentEpisode("g", observations=[{"a": 0}], action_space={"a": space})
        copies = [WAYS[way](episode) for episode in (single, several)]
        assert [copies[0].equals(single), copies[1].equals(several)] == [True, True]
        recorded.append([pickle.dumps(current.facts) for current in copies])
        if way != "a copy":
            current = copies[1].agent_episodes["a"].action_space
            assert current is copies[1].action_space["a"]  # one object, as it was
            assert set(states(current)) == {None}
    assert recorded[0] == recorded[1]


def test_reseeded_space_pickles_without_random_state() -> None:
    space = spaces.Discrete(10**6)
    first = pickle.dumps(pack_of(space), 5)
    space.seed(3)
    assert pickle.dumps(pack_of(space).action_space) != pickle.dumps(spaces.Discrete(10**6))
    repeated = pickle.loads(first), pickle.loads(pickle.dumps(pack_of(space), 5))
    assert [states(pack.action_space) for pack in repeated] == [[None], [None]]
    assert repeated[0].action_space is repeated[1].action_space  # so what joins packs need not compare them
    assert repeated[0].action_space is not space


def test_user_space_inside_other_space_pickles() -> None:
    class Local(spaces.Discrete):
        """A space that cannot be imported, so that a pickler calls Python code."""

    for space, items in (
        (spaces.Sequence(Local(3)), [0.0, 1.0]),
        (spaces.Tuple((spaces.OneOf((Local(2),)),)), [(0.0,), (1.0,)]),
        (spaces.Dict({"a": Local(2)}), [{"a": 0}, {"a": 1}]),
    ):
        episode = SingleAgentEpisode("e", observations=items, actions=[0], rewards=[1.0])
        episode.observation_space = space
        pack = EpisodePack.from_episodes([episode])
        assert pickle.loads(cloudpickle.dumps(pack, protocol=5)).observation_space == space
