"""A writer in any state is unchanged by any rejected call: random programs of calls, with and without wrong ones."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import EpisodeError, EpisodeStateError, InvalidArgument, TrackMismatch, WrongType
from episodes.storage import EpisodeDataset, EpisodeWriter


def episode(i: int, **changes: Any) -> SingleAgentEpisode:
    steps = i % 4 + 1
    arguments: dict[str, Any] = {
        "observations": np.arange(steps + 1.0),
        "actions": np.arange(steps),
        "rewards": np.ones(steps),
        "extra_model_outputs": {"v": np.zeros(steps)},
    }
    return SingleAgentEpisode.from_arrays(**(arguments | {"id_": f"e{i}"} | changes))


def growing(i: int) -> SingleAgentEpisode:
    chunk = SingleAgentEpisode(id_=f"g{i}")
    chunk.add_env_reset(0.5)
    for t in range(i % 3 + 1):
        chunk.add_env_step(t + 1.0, t, 1.0, extra_model_outputs={"v": 0.0})
    return chunk


GOOD: dict[str, Callable[[int], Any]] = {
    "one": episode,
    "list": lambda i: [episode(i), episode(i + 1)],
    "growing": growing,
    "infos": lambda i: [episode(i, infos=[{"n": t} for t in range(i % 4 + 2)])],
    "custom": lambda i: [episode(i, custom_data={"a": i})],
    "pack": lambda i: EpisodePack.from_episodes([episode(i)]),
    "none": lambda i: [],
}


def game(*shapes: tuple[int, ...]) -> MultiAgentEpisode:
    made = MultiAgentEpisode()
    made.add_env_reset(observations={str(i): np.zeros(shape) for i, shape in enumerate(shapes)})
    return made


OTHER_TRACKS: dict[str, tuple[Callable[[int], Any], type[EpisodeError], str]] = {
    "shape": (
        lambda i: [episode(i, observations=np.zeros((i % 4 + 2, 3)))],
        TrackMismatch,
        r"'observations' is stored as float64 items of shape \[\], the given episodes have .* of shape \[3\]",
    ),
    "dtype": (
        lambda i: [episode(i, rewards=np.ones(i % 4 + 1, np.float32))],
        TrackMismatch,
        "'rewards' is stored as float64 items .* the given episodes have float32",
    ),
    "a track more": (
        lambda i: [episode(i, extra_model_outputs={"v": np.zeros(i % 4 + 1), "w": np.zeros(i % 4 + 1)})],
        TrackMismatch,
        "track 'extra_model_outputs/w' is not stored",
    ),
    "a track less": (
        lambda i: [episode(i, extra_model_outputs={})],
        TrackMismatch,
        "the given episodes have no track 'extra_model_outputs/v'",
    ),
    "nesting": (
        lambda i: [episode(i, observations=(np.arange(i % 4 + 2.0),))],
        TrackMismatch,
        "the given episodes have no track 'observations'",
    ),
}
BAD = OTHER_TRACKS | {
    "space": (
        lambda i: [episode(i, action_space=spaces.Discrete(9))],
        InvalidArgument,
        r"action_space: the data set has Discrete\(7\), the given episodes have Discrete\(9\)",
    ),
    "objects": (
        lambda i: [episode(i, actions=np.array([None] * (i % 4 + 1), object))],
        WrongType,
        "track 'actions' has dtype object",
    ),
    "custom": (
        lambda i: [episode(i, custom_data={"a": {"fn": len}})],
        WrongType,
        r"custom_data\['a'\]\['fn'\] cannot be written",
    ),
    "info": (
        lambda i: [episode(i, infos=[{"n": object()}] * (i % 4 + 2))],
        WrongType,
        r"infos\['n'\] cannot be written",
    ),
    "two shapes": (
        lambda i: [episode(i), episode(i, id_="b", observations=np.zeros((i % 4 + 2, 3)))],
        EpisodeError,
        "the episodes of a pack need the same shapes",
    ),
    "two dimensions": (
        lambda i: [episode(i), episode(i, id_="b", actions=np.zeros((i % 4 + 1, 3), int))],
        EpisodeError,
        "the episodes of a pack need the same shapes",
    ),
    "surrogate": (lambda i: [episode(i, id_="\ud800")], WrongType, "lone surrogate"),
    "number": (lambda i: 5, WrongType, r"add\(5\), a int: give an episode"),
    "numbers": (lambda i: [episode(i), 5], WrongType, "not a int"),
    "nothing": (lambda i: None, WrongType, "give an episode"),
    "text": (lambda i: "abc", WrongType, "give an episode"),
    "both kinds": (lambda i: [episode(i), MultiAgentEpisode()], WrongType, "MultiAgentEpisode"),
    "agents of several kinds": (lambda i: game((2,), (3,)), TrackMismatch, "of several kinds of tracks or spaces"),
    "never reset": (lambda i: SingleAgentEpisode(), EpisodeStateError, "no observation yet"),
}
CALLS = st.lists(st.sampled_from(["flush", *sorted(GOOD)]), max_size=6)


def state(writer: EpisodeWriter, path: Path) -> tuple[str, dict[str, int]]:
    """Return the visible state of a writer: its representation, and the sizes of the files."""
    files = {file.name: file.stat().st_size for file in path.iterdir()} if path.exists() else {}
    return repr(writer), files


@pytest.mark.parametrize("name", BAD)
@settings(max_examples=8, deadline=None)
@given(CALLS, CALLS)
def test_writer_is_unchanged_by_rejected_calls(name: str, before: list[str], after: list[str]) -> None:
    make, error, message = BAD[name]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as cleanup:
        path, expected = Path(folder) / "data", list[SingleAgentEpisode]()
        writer = EpisodeWriter(path, action_space=spaces.Discrete(7))
        cleanup.callback(writer.close)

        numbers = count(0, 3)  # ids are new

        def run(calls: list[str]) -> None:
            for i, call in zip(numbers, calls, strict=False):
                if call == "flush":
                    writer.flush()
                else:
                    added = GOOD[call](i)
                    writer.add(added)
                    expected.extend([added] if isinstance(added, SingleAgentEpisode) else added)

        run(["one", *before] if name in OTHER_TRACKS else before)  # the first episodes may have any tracks
        unchanged = state(writer, path)
        with pytest.raises(error, match=message):
            writer.add(make(len(before) + 1000))
        assert state(writer, path) == unchanged
        run(after)
        writer.close()
        unchanged = state(writer, path)
        for call in (lambda: writer.add(episode(0)), writer.flush):
            with pytest.raises(EpisodeError, match="is closed"):
                call()
        writer.close()
        assert state(writer, path) == unchanged
        dataset = EpisodeDataset(path, verify=True)
        assert [result.id_ for result in dataset] == [first.id_ for first in expected]
        for result, first in zip(dataset, expected, strict=True):
            np.testing.assert_array_equal(result.get_observations(), first.get_observations())
            assert dict(result.custom_data) == dict(first.custom_data)
