"""Each question about the kind of a space, for each kind in each nesting, equals a reference that tests classes.

The spaces are of Gymnasium's classes, and of classes that users derive from them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from connectors.distributions import distribution_for
from connectors.env_to_module import FlattenObservations
from connectors.fingerprint import describe_space
from connectors.module_to_env import ListifyForVectorEnv
from connectors.views.frame_stacking import stacked_space
from episode_learners.networks.autoregressive import Autoregressive
from episode_learners.networks.context import step_space
from episode_learners.networks.encoders import encoder_for
from episode_learners.networks.layers import flat_size
from episode_learners.policies.q_policies import QPolicy
from episode_learners.policies.soft_actor_critic import SACPolicy
from episode_runners import SingleAgentEnvRunner
from episode_runners.random_actions import sample_random_action
from episodes import VectorRecorder
from episodes.errors import InvalidArgument, WrongType
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import space_json
from episodes.testing.row_format import item_of
from episodes.tracks.fitting import space_mismatches
from episodes.tracks.flattening import Flattener, flat_space_of
from episodes.tracks.policy_box import policy_space_of, without_huge_bounds
from episodes.tracks.space_kinds import (
    bounds_of,
    choices_of,
    exact_kind_of,
    is_box,
    is_dict,
    is_nested,
    joined_parts,
    kind_of,
    map_items,
    map_space,
    parts_of,
)
from episodes.tracks.spaces import (
    as_item,
    as_rows,
    dtypes_of,
    elementary_spaces,
    empty_items,
    has_text,
    irregular_part,
    keys_of,
    one_hot,
    stacked,
    varying_shapes_error,
)

ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
IRREGULAR = (spaces.Sequence, spaces.Graph, spaces.OneOf)
CLASSES = (*ARRAYS, spaces.Text, spaces.Dict, spaces.Tuple, *IRREGULAR)
CHOICE = spaces.Discrete(3, start=2)


class OwnSpace(spaces.Space):
    """Space of a user that is of none of Gymnasium's kinds: strings of a fixed number of letters."""

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "ab"

    def contains(self, x: Any) -> bool:
        return x == "ab"


ARGUMENTS: dict[type, tuple[tuple[Any, ...], dict[str, Any]]] = {
    spaces.Box: ((np.array([-1, -3], np.float32), np.array([2, np.inf], np.float32)), {}),
    spaces.Discrete: ((4,), {"start": -1}),
    spaces.MultiDiscrete: (([[2, 3], [1, 4]],), {"start": [[0, 5], [-2, 0]]}),
    spaces.MultiBinary: (((2, 2),), {}),
    spaces.Text: ((3,), {"min_length": 3}),
    spaces.Dict: (({"x": spaces.Box(0, 255, (2,), np.uint8), "y": CHOICE},), {}),
    spaces.Tuple: (([CHOICE, spaces.Text(2)],), {}),
    spaces.Sequence: ((spaces.Discrete(2),), {}),
    spaces.Graph: ((spaces.Box(-1, 1, (2,)), None), {}),
    spaces.OneOf: (([spaces.Discrete(2), spaces.Box(-1, 1, (2,))],), {}),
    OwnSpace: ((), {}),
}
BARE = {
    **{cls.__name__: cls for cls in ARGUMENTS},
    **{f"Own{cls.__name__}": type(f"Own{cls.__name__}", (cls,), {}) for cls in CLASSES},
}
NESTINGS: dict[str, Callable[[gym.Space], gym.Space]] = {
    "itself": lambda part: part,
    "Dict": lambda part: spaces.Dict(a=part, b=CHOICE),
    "Tuple": lambda part: spaces.Tuple([part, CHOICE]),
    "OwnDict": lambda part: BARE["OwnDict"]({"a": part}),
    "OwnTuple": lambda part: BARE["OwnTuple"]([part]),
    "Dict of Tuple": lambda part: spaces.Dict(a=spaces.Tuple([part, part]), b=CHOICE),
    "Tuple of Dict": lambda part: spaces.Tuple([spaces.Dict(a=part), part]),
}


def bare_space(name: str) -> Any:
    cls = BARE[name]
    args, options = next(arguments for base, arguments in ARGUMENTS.items() if issubclass(cls, base))
    return cls(*args, **options)


ALL: dict[str, Any] = {
    f"{name} in {nesting}": make(bare_space(name)) for name in BARE for nesting, make in NESTINGS.items()
}
LEAVES: dict[str, Any] = {name: bare_space(name) for name in BARE}


# --- the reference ----------------------------------------------------------------------------------------------------


def parts(space: Any) -> dict[Any, Any]:
    if isinstance(space, spaces.Dict):
        return {key: space.spaces[key] for key in space.spaces}
    return {i: space.spaces[i] for i in range(len(space.spaces))} if isinstance(space, spaces.Tuple) else {}


def has_parts(space: Any) -> bool:
    return isinstance(space, (spaces.Dict, spaces.Tuple))


def leaf_spaces(space: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    if not has_parts(space):
        return [(path, space)]
    return [leaf for key, part in parts(space).items() for leaf in leaf_spaces(part, (*path, key))]


def mapped(function: Callable[[Any, Any], Any], space: Any, items: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: mapped(function, part, items[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(mapped(function, part, item) for part, item in zip(space.spaces, items, strict=True))
    return function(space, items)


def like(space: Any, function: Callable[[Any], Any]) -> Any:
    """Return `function(leaf space)` in dicts and tuples like the items of the space."""
    if isinstance(space, spaces.Dict):
        return {key: like(part, function) for key, part in space.spaces.items()}
    return tuple(like(part, function) for part in space.spaces) if isinstance(space, spaces.Tuple) else function(space)


def stack_leaves(space: Any, items: list[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: stack_leaves(part, [item[key] for item in items]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stack_leaves(part, [item[i] for item in items]) for i, part in enumerate(space.spaces))
    if isinstance(space, IRREGULAR):
        column = np.empty(len(items), object)
        column[:] = items
        return column
    return np.array(items)


def bounds(space: Any) -> tuple[Any, Any] | None:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return (np.zeros(space.shape), np.ones(space.shape)) if isinstance(space, spaces.MultiBinary) else None


def one_hot_leaf(space: Any, value: Any) -> Any:
    """Return the one-hot vector of one item, which Gymnasium's `flatten` makes too."""
    return spaces.flatten(space, value) if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)) else value


def text_of(space: Any) -> str:
    if isinstance(space, spaces.Dict):
        return "Dict(" + ", ".join(f"{key}: {text_of(part)}" for key, part in parts(space).items()) + ")"
    if isinstance(space, spaces.Tuple):
        return "Tuple(" + ", ".join(map(text_of, space.spaces)) + ")"
    return f"Box({space.shape}, {space.dtype})" if isinstance(space, spaces.Box) else str(space)


def samples(space: Any, num: int = 3) -> list[Any]:
    space.seed(3)
    return [space.sample() for _ in range(num)]


def same(a: Any, b: Any) -> bool:
    """Return True if nested values have the same structure and the same leaves: arrays, graphs, strings or spaces."""
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, gym.Space):
        return bool(a == b)
    if isinstance(a, np.ndarray) and a.dtype == object:
        return b.dtype == object and same(list(a), list(b))
    return bool(np.array_equal(a, b))


def writable(space: Any) -> bool:
    """Return True if the space and its parts are of classes of Gymnasium that data sets store."""
    stored = type(space) in (*ARRAYS, spaces.Text, spaces.Dict, spaces.Tuple, spaces.Sequence)
    return stored and all(map(writable, parts(space).values()))


# --- questions to the table -------------------------------------------------------------------------------------------

QUESTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "class": (
        lambda s: kind_of(s).label,
        lambda s: next((cls.__name__ for cls in CLASSES if isinstance(s, cls)), "Space"),
    ),
    "exact class": (
        lambda s: exact_kind_of(s).label,
        lambda s: type(s).__name__ if type(s) in CLASSES else "Space",
    ),
    "nested": (is_nested, has_parts),
    "dict": (is_dict, lambda s: isinstance(s, spaces.Dict)),
    "box": (is_box, lambda s: isinstance(s, spaces.Box)),
    "array": (lambda s: kind_of(s).is_array, lambda s: isinstance(s, ARRAYS)),
    "irregular": (lambda s: kind_of(s).is_irregular, lambda s: isinstance(s, IRREGULAR)),
    "choices": (
        lambda s: kind_of(s).has_choices,
        lambda s: isinstance(s, (spaces.Discrete, spaces.MultiDiscrete)),
    ),
    "parts": (lambda s: list(parts_of(s).items()), lambda s: list(parts(s).items())),
    "leaves": (lambda s: list(elementary_spaces(s)), leaf_spaces),
    "structure": (
        lambda s: joined_parts(s, parts_of(s)) if is_nested(s) else None,
        lambda s: (
            {k: k for k in s.spaces}
            if isinstance(s, spaces.Dict)
            else tuple(range(len(s.spaces)))
            if isinstance(s, spaces.Tuple)
            else None
        ),
    ),
    "keys": (
        lambda s: sorted(keys_of(s)),
        lambda s: sorted(
            [key for part in parts(s).values() for key in QUESTIONS["keys"][1](part)]
            + (list(s.spaces) if isinstance(s, spaces.Dict) else [])
        ),
    ),
    "dtypes": (
        dtypes_of,
        lambda s: (
            like(s, lambda leaf: leaf.dtype) if all(isinstance(leaf, ARRAYS) for _, leaf in leaf_spaces(s)) else None
        ),
    ),
    "empty items": (
        lambda s: empty_items(s, 2),
        lambda s: like(
            s,
            lambda leaf: np.zeros((2, *leaf.shape), leaf.dtype) if isinstance(leaf, ARRAYS) else np.zeros(2, "f4"),
        ),
    ),
    "irregular part": (
        irregular_part,
        lambda s: next(
            (
                ("".join(f"/{key}" for key in path), leaf)
                for path, leaf in leaf_spaces(s)
                if isinstance(leaf, IRREGULAR)
            ),
            None,
        ),
    ),
    "stacked": (lambda s: stacked(samples(s), s), lambda s: stack_leaves(s, samples(s))),
    "rows": (
        lambda s: as_rows(mapped(lambda _, rows: list(rows), s, stack_leaves(s, samples(s))), s),
        lambda s: mapped(
            lambda leaf, rows: rows if isinstance(leaf, (*IRREGULAR, spaces.Text)) else list(rows),
            s,
            stack_leaves(s, samples(s)),
        ),
    ),
    "item": (lambda s: as_item(samples(s)[0], s), lambda s: samples(s)[0]),
    "item of rows": (
        lambda s: item_of(s, stack_leaves(s, samples(s)), 1),
        lambda s: mapped(lambda _, rows: rows[1], s, stack_leaves(s, samples(s))),
    ),
    "mapped items": (
        lambda s: map_items(lambda item, leaf: (item, leaf), samples(s)[0], s),
        lambda s: mapped(lambda leaf, item: (item, leaf), s, samples(s)[0]),
    ),
    "one-hot": (lambda s: one_hot(samples(s)[0], s), lambda s: mapped(one_hot_leaf, s, samples(s)[0])),
    "text": (describe_space, text_of),
    "has text": (has_text, lambda s: any(isinstance(leaf, spaces.Text) for _, leaf in leaf_spaces(s))),
    "actions for env": (
        lambda s: ListifyForVectorEnv(input_action_space=s).changes_rows,
        lambda s: not all(isinstance(leaf, ARRAYS) for _, leaf in leaf_spaces(s)),
    ),
    "policy's parts": (
        lambda s: [getattr(leaf, "mapping", None) for _, leaf in leaf_spaces(policy_space_of(s, "clip"))],
        lambda s: ["clip" if isinstance(leaf, spaces.Box) else None for _, leaf in leaf_spaces(s)],
    ),
    "mismatches": (lambda s: list(space_mismatches(s, samples(s)[0], "item")), lambda s: []),
    "random action": (lambda s: s.contains(sample_random_action(s)), lambda s: True),
    "huge bounds": (without_huge_bounds, lambda s: s),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_equal_reference(question: str) -> None:
    ask, reference = QUESTIONS[question]
    for name, space in ALL.items():
        assert same(ask(space), reference(space)), name


@pytest.mark.parametrize("space", LEAVES.values(), ids=LEAVES)
def test_bounds_and_choices_are_those_of_the_items(space: Any) -> None:
    found, expected = bounds_of(space), bounds(space)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found.low.shape == found.high.shape == space.shape
        assert same(tuple(found), tuple(map(np.asarray, expected)))
    if kind_of(space).has_choices:
        firsts, counts = choices_of(space)
        assert firsts.dtype == counts.dtype == np.int64
        assert counts.sum() == spaces.flatdim(space)
        assert (firsts == space.start).all()


@pytest.mark.parametrize("name", BARE)
def test_change_of_a_space_changes_the_leaves_alone(name: str) -> None:
    for make in NESTINGS.values():
        space = make(bare_space(name))
        assert map_space(lambda leaf: leaf, space) is space
        if not has_parts(space):
            continue
        changed = map_space(lambda leaf: spaces.Discrete(9), space)
        assert [path for path, _ in leaf_spaces(changed)] == [path for path, _ in leaf_spaces(space)]
        assert all(leaf == spaces.Discrete(9) for _, leaf in leaf_spaces(changed))


@pytest.mark.parametrize("name", BARE)
def test_space_is_written_if_its_classes_are_known(name: str) -> None:
    for make in NESTINGS.values():
        space = make(bare_space(name))
        if writable(space):
            read = space_json.from_json(space_json.to_json(space, "space"))
            assert read == space
            assert type(read) is type(space)
        else:
            with pytest.raises(WrongType, match="cannot be written to disk"):
                space_json.to_json(space, "space")


@pytest.mark.parametrize("name", [name for name in BARE if name != "OwnSpace"])  # which Gymnasium does not flatten
def test_flat_vectors_are_those_of_gymnasium(name: str) -> None:
    for make in NESTINGS.values():
        space = make(bare_space(name))
        items = samples(space)
        rows = stack_leaves(space, items)
        if space.is_np_flattenable:
            assert same(Flattener(space)(rows), np.stack([spaces.flatten(space, item) for item in items]))
        elif not has_parts(space):
            assert len(Flattener(space)(rows)) == len(items)


@pytest.mark.parametrize("name", [name for name, cls in BARE.items() if issubclass(cls, ARRAYS)])
def test_doctor_finds_numbers_outside_of_each_array(name: str) -> None:
    from episodes.inspect.doctor.scan import outside_bounds

    for make in NESTINGS.values():
        space = make(bare_space(name))
        rows = stack_leaves(space, samples(space))
        assert not list(outside_bounds(rows, space, "items"))
        low = mapped(lambda leaf, array: np.full(array.shape, -99), space, rows)
        found = {each.path for each in outside_bounds(low, space, "items")}
        assert found == {"/".join(map(str, ("items", *path))) for path, _ in leaf_spaces(space)}


# --- what the other layers do for a kind ------------------------------------------------------------------------------

NUMBERS = spaces.Box(-1, 1, (2,), np.float32)
TAKES: dict[str, tuple[Callable[[Any], Any], tuple[type, ...]]] = {
    "distribution": (distribution_for, (*ARRAYS, spaces.Dict)),
    "encoder": (encoder_for, (*ARRAYS, spaces.Dict)),
    "autoregressive": (Autoregressive, (spaces.MultiDiscrete, spaces.Dict)),
    "frames": (lambda space: stacked_space(space, 2, -1), (spaces.Box, spaces.Dict)),
    "context": (step_space, (spaces.Box, spaces.Dict)),
    "perceptron": (flat_size, (spaces.Box,)),
    "Q": (lambda space: QPolicy(NUMBERS, space), (spaces.Discrete,)),
    "SAC": (lambda space: SACPolicy(NUMBERS, space), (spaces.Box,)),
}


def of_floats(space: Any) -> Any:
    """Return a space of the same class whose numbers are floats with finite bounds."""
    if isinstance(space, spaces.Dict):
        return type(space)(x=NUMBERS)
    return type(space)(-1, 1, (2,), np.float32) if isinstance(space, spaces.Box) else space


@pytest.mark.parametrize("user", TAKES)
def test_kind_is_taken_or_rejected_in_the_same_words(user: str) -> None:
    take, kinds = TAKES[user]
    for space in map(of_floats, LEAVES.values()):
        if isinstance(space, kinds):
            assert take(space) is not None
        else:
            with pytest.raises(InvalidArgument, match=r"(?s)^\w+: the space .* is given, .* is allowed; "):
                take(space)


@pytest.mark.parametrize("name", LEAVES)
def test_advice_names_a_connector_that_helps(name: str) -> None:
    space = LEAVES[name]
    if isinstance(space, spaces.Box):
        return
    with pytest.raises(InvalidArgument) as caught:
        flat_size(space)
    flat = not isinstance(space, OwnSpace) and isinstance(spaces.flatten_space(space), spaces.Box)
    assert ("put FlattenObservations into" in str(caught.value)) == flat
    if isinstance(space, IRREGULAR):
        advice = {track: str(varying_shapes_error(track, ("", space))) for track in ("observations", "actions")}
        assert ("FlattenObservations" in advice["observations"]) == flat
        assert "wrapper of the environment" in advice["actions"]
        assert "Observation" not in advice["actions"]


EMPTY = {
    "dict": spaces.Dict({}),
    "tuple": spaces.Tuple(()),
    "dict in a dict": spaces.Dict(a=spaces.Dict({}), b=spaces.Box(0, 1, (1,))),
    "tuple in a tuple": spaces.Tuple((spaces.Tuple(()), spaces.Discrete(2))),
    "beside a graph": spaces.Dict(a=spaces.Tuple(()), g=spaces.Graph(spaces.Box(0, 1, (2,)), None)),
}


@pytest.mark.parametrize("flatten", [flat_space_of, FlattenObservations])
@pytest.mark.parametrize("name", EMPTY)
def test_empty_parts_are_not_flattened(name: str, flatten: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"flattening: the space .* is given, .*; leave the empty parts out"):
        flatten(EMPTY[name])


NO_ARRAY = {
    "dict": spaces.Dict({}),
    "tuple": spaces.Tuple(()),
    "nested": spaces.Dict(a=spaces.Tuple([spaces.Dict({}), spaces.Tuple(())])),
}
RECORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "runner": lambda seen, action: SingleAgentEnvRunner(partial(OfSpaces, seen, action)),
    "packs": lambda seen, action: VectorRecorder(2, seen, action, autoreset_mode="NextStep"),
    "buffer": lambda seen, action: EpisodeReplayBuffer(9).recorder(
        2, autoreset_mode="NextStep", observation_space=seen, action_space=action
    ),
}


class OfSpaces(gym.Env):
    """Environment with the given spaces."""

    def __init__(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space


@pytest.mark.parametrize("track", ["observation_space", "action_space"])
@pytest.mark.parametrize("recorder", RECORDERS)
def test_space_without_arrays_is_named_before_a_row(recorder: str, track: str) -> None:
    for space in NO_ARRAY.values():
        given = {"observation_space": NUMBERS, "action_space": CHOICE} | {track: space}
        with pytest.raises(InvalidArgument, match=f"{track}: the space .* is given, a space whose items hold an array"):
            RECORDERS[recorder](*given.values())
        with pytest.raises(InvalidArgument, match="wrap the environment so that its actions"):
            distribution_for(space)
