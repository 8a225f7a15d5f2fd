"""Dtypes and numbers of dimensions: what an episode accepts, each place stores and returns, or refuses by name."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import EpisodeError, ShapeMismatch, WrongType
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter

STEPS = 2
KINDS: dict[str, Callable[[int], np.ndarray]] = {
    "strings of any width": lambda n: np.array(["a"] * n, np.dtypes.StringDType()),
    "arrays of strings of any width": lambda n: np.array([["a"]] * n, np.dtypes.StringDType()),
    "63 dimensions": lambda n: np.zeros((n, *(1,) * 63)),
    "33 dimensions": lambda n: np.zeros((n, *(1,) * 33)),
    "32 dimensions": lambda n: np.zeros((n, *(1,) * 32)),
    "structures": lambda n: np.zeros(n, [("a", "f4")]),
    "bytes without meaning": lambda n: np.zeros(n, "V4"),
    "times": lambda n: np.zeros(n, "M8[s]"),
    "durations": lambda n: np.zeros(n, "m8[s]"),
    "long floats": lambda n: np.zeros(n, np.longdouble),
    "long complex": lambda n: np.zeros(n, np.clongdouble),
    "half floats": lambda n: np.zeros(n, np.float16),
    "complex": lambda n: np.zeros(n, np.complex64),
    "bytes": lambda n: np.array([b"a"] * n),
    "text": lambda n: np.array(["a"] * n),
    "flags": lambda n: np.zeros(n, bool),
}
REFUSED = {"strings of any width", "arrays of strings of any width", "63 dimensions", "33 dimensions"}
TRACKS = ("observations", "actions", "extra_model_outputs")


def values_of(kind: str, track: str) -> tuple[Any, Any, dict[str, Any]]:
    """Return observations, actions and extra outputs, of which one track is of the kind."""
    make = KINDS[kind]
    observations = make(STEPS + 1) if track == "observations" else np.arange(STEPS + 1.0)
    actions = make(STEPS) if track == "actions" else np.zeros(STEPS, np.int64)
    return observations, actions, {"x": make(STEPS)} if track == "extra_model_outputs" else {}


def from_arrays(kind: str, track: str) -> SingleAgentEpisode:
    observations, actions, outputs = values_of(kind, track)
    return SingleAgentEpisode.from_arrays(
        observations, actions, np.ones(STEPS), extra_model_outputs=outputs or None, id_="e"
    )


def grown(kind: str, track: str) -> SingleAgentEpisode:
    observations, actions, outputs = values_of(kind, track)
    episode = SingleAgentEpisode(id_="e")
    episode.add_env_reset(observations[0])
    for t in range(STEPS):
        episode.add_env_step(
            observations[t + 1],
            actions[t],
            1.0,
            extra_model_outputs={key: column[t] for key, column in outputs.items()},
        )
    return episode.to_numpy()


def written(episode: SingleAgentEpisode, path: Path) -> EpisodeDataset:
    with EpisodeWriter(path) as writer:
        writer.add([episode])
    return EpisodeDataset(path)


def replayed(episode: SingleAgentEpisode, path: Path | None = None) -> None:
    buffer = EpisodeReplayBuffer(10, seed=0, **({} if path is None else {"path": path}))
    try:
        buffer.add(episode)
        buffer.sample(4)
    finally:
        buffer.close()


def as_parquet(episode: SingleAgentEpisode, path: Path) -> None:
    from episodes.converters import write

    write([episode], path, "parquet")


PLACES: dict[str, Callable[[SingleAgentEpisode, Path], Any]] = {
    "pack": lambda episode, path: EpisodePack.from_episodes([episode, episode])[0],
    "pickle": lambda episode, path: pickle.loads(pickle.dumps(episode)),
    "disk": lambda episode, path: written(episode, path)[0],
    "SQL": lambda episode, path: (written(episode, path).sql("select * from steps"), None)[1],
    "replay": lambda episode, path: replayed(episode),
    "mapped replay": lambda episode, path: replayed(episode, path),
    "Parquet": as_parquet,
}


@pytest.mark.parametrize("track", TRACKS)
@pytest.mark.parametrize("make", [from_arrays, grown])
@pytest.mark.parametrize("kind", KINDS)
def test_each_place_returns_what_was_accepted_or_refuses_it_by_name(
    kind: str, make: Callable[[str, str], SingleAgentEpisode], track: str, tmp_path: Path
) -> None:
    is_text = make is grown and kind == "strings of any width"  # its items are of type str
    if kind in REFUSED and not is_text:
        with pytest.raises((ShapeMismatch, WrongType), match=r"fixed width|dimensions"):
            make(kind, track)
        return
    episode = make(kind, track)
    for n, (place, use) in enumerate(PLACES.items()):
        try:
            result = use(episode, tmp_path / str(n))
        except EpisodeError:
            assert place in ("disk", "SQL", "mapped replay", "Parquet")
        else:
            assert result is None or result.equals(episode)
