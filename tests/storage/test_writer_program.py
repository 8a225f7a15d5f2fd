"""A writer in any state is unchanged by any rejected call: random programs of calls, with and without wrong ones."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import EpisodeError
from episodes.storage import EpisodeDataset, EpisodeWriter


def episode(i: int, **changes: Any) -> SingleAgentEpisode:
    steps = i % 4 + 1
    arguments = {"observations": np.arange(steps + 1.0), "actions": np.arange(steps), "rewards": np.ones(steps)}
    return SingleAgentEpisode.from_arrays(**(arguments | {"id_": f"e{i}"} | changes))


def growing(i: int) -> SingleAgentEpisode:
    chunk = SingleAgentEpisode(id_=f"g{i}")
    chunk.add_env_reset(0.5)
    for t in range(i % 3 + 1):
        chunk.add_env_step(t + 1.0, t, 1.0)
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
BAD: dict[str, Callable[[int], Any]] = {
    "shape": lambda i: [episode(i), episode(i, observations=np.zeros((i % 4 + 2, 3)))],
    "dtype": lambda i: [episode(i, rewards=np.ones(i % 4 + 1, np.float32))],
    "output": lambda i: [episode(i, extra_model_outputs={"v": np.zeros(i % 4 + 1)})],
    "space": lambda i: [episode(i, action_space=spaces.Discrete(9))],
    "custom": lambda i: [episode(i, custom_data={"a": object()})],
    "info": lambda i: [episode(i, infos=[{"n": object()}] * (i % 4 + 2))],
    "surrogate": lambda i: [episode(i, id_="\ud800")],
    "number": lambda i: 5,
    "numbers": lambda i: [episode(i), 5],
    "nothing": lambda i: None,
    "text": lambda i: "abc",
    "kinds": lambda i: [episode(i), MultiAgentEpisode()],
}
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(sorted(GOOD))),
        st.tuples(st.just("reject"), st.sampled_from(sorted(BAD))),
        st.tuples(st.just("flush"), st.just("")),
    ),
    min_size=1,
    max_size=12,
)


def state(writer: EpisodeWriter, path: Path) -> tuple[str, dict[str, int]]:
    """Return the visible state of a writer: its representation, and the sizes of the files."""
    files = {file.name: file.stat().st_size for file in path.iterdir()} if path.exists() else {}
    return repr(writer), files


@settings(max_examples=60, deadline=None)
@given(CALLS)
def test_writer_is_unchanged_by_rejected_calls(calls: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as cleanup:
        path, expected = Path(folder) / "data", list[SingleAgentEpisode]()
        writer = EpisodeWriter(path, action_space=spaces.Discrete(7))
        cleanup.callback(writer.close)
        for i, (kind, name) in enumerate(calls):
            if kind == "flush":
                writer.flush()
            elif kind == "add":
                added = GOOD[name](i)
                writer.add(added)
                expected += [added] if isinstance(added, SingleAgentEpisode) else list(added)
            elif expected or name not in ("shape", "dtype", "output"):  # the first episodes may be of any kind
                before = state(writer, path)
                with pytest.raises(EpisodeError):
                    writer.add(BAD[name](i))
                assert state(writer, path) == before
        writer.close()
        before = state(writer, path)
        for call in (lambda: writer.add(episode(0)), writer.flush):
            with pytest.raises(EpisodeError, match="is closed"):
                call()
        writer.close()
        assert state(writer, path) == before
        dataset = EpisodeDataset(path, verify=True)
        assert [result.id_ for result in dataset] == [first.id_ for first in expected]
        for result, first in zip(dataset, expected, strict=True):
            np.testing.assert_array_equal(result.get_observations(), first.get_observations())
            assert dict(result.custom_data) == dict(first.custom_data)
