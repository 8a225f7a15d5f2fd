"""Schema of a data set: path, shape, dtype, space, range and histogram of each track, from a few of its episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.inspect.series import Series, of_tracks
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.storage.games import GameDataset
from episodes.storage.remote.remote_directory import is_remote
from episodes.tracks import nested
from episodes.tracks.space_kinds import SpaceKind, exact_kind_of

if TYPE_CHECKING:
    from episodes.storage.dataset import EpisodeDataset

MOST_EPISODES = 8  # that are read of a larger data set
MOST_READ = 1000  # episodes of a data set that is read as a whole
MOST_BYTES = 8_000_000  # of its tracks
MOST_OF_SPACE = 60  # characters


@dataclass(frozen=True)
class TrackSchema:
    """Facts about one track of a data set.

    Attributes:
        series: the items of all episodes that were read, without an order in time.
        space: the space of the items as text, "" if it is unknown.
        owner: the agent whose track it is, "" in data sets of single agents.
    """

    series: Series
    space: str = ""
    owner: str = ""

    @property
    def path(self) -> str:
        """Path of the track, which begins with the agent in a data set of games."""
        return "/".join(filter(None, (self.owner, nested.unescape(self.series.label))))

    @property
    def item_shape(self) -> str:
        """Shape of one item as text, such as "[4]", "[]" or "[ragged]"."""
        return replace(self.series, total=0).shape_text.replace("[0, ", "[").replace("[0]", "[]")


@dataclass(frozen=True)
class Schema:
    """Tracks of a data set, described from `num_read` of its episodes."""

    tracks: tuple[TrackSchema, ...]
    num_read: int
    num_episodes: int

    @property
    def extent(self) -> str:
        """Number of the episodes that were read, as text."""
        if self.num_read == self.num_episodes:
            return "of all episodes"
        return f"ranges of {self.num_read:,} of {self.num_episodes:,} episodes"


def read_schema(dataset: EpisodeDataset | GameDataset) -> Schema:
    """Return the tracks of a data set of episodes or of games.

    All episodes are read if they are at most 1,000 with at most 8 MB of numbers, otherwise 8 of them, evenly spaced.
    """
    num = len(dataset)
    most = num if _is_small(dataset) else MOST_EPISODES
    chosen = np.unique(np.linspace(0, num - 1, min(num, most)).astype(np.intp)).tolist() if num else []
    episodes = [dataset[i] for i in chosen]
    tracks = [track for owner, own in _by_owner(episodes).items() for track in _of_episodes(owner, own)]
    return Schema(tuple(tracks), len(chosen), num)


def _is_small(dataset: EpisodeDataset | GameDataset) -> bool:
    """Return True if a data set of this machine is small enough to be read as a whole."""
    if is_remote(dataset.path) or not 0 < len(dataset) <= MOST_READ:
        return False
    nbytes = 0
    for kind in dataset.kinds if isinstance(dataset, GameDataset) else (dataset,):
        fields = kind.stored_header.tracks.values()
        per_step = sum(np.dtype(field.dtype).itemsize * abs(prod(field.shape)) for field in fields)
        nbytes += max(per_step * kind.num_steps, kind.nbytes)
    return nbytes <= MOST_BYTES


def _by_owner(episodes: list[Any]) -> dict[str, list[Any]]:
    """Return the episodes of single agents by the name of the agent, or by "" if they are of no game."""
    by_owner: dict[str, list[Any]] = {}
    for episode in episodes:
        if isinstance(episode, MultiAgentEpisode):
            for agent, line in episode.agents.timelines.items():
                by_owner.setdefault(str(agent), []).append(line.episode)
        else:
            by_owner.setdefault("", []).append(episode)
    return by_owner


def _of_episodes(owner: str, episodes: list[Any]) -> Iterator[TrackSchema]:
    """Yield the tracks of episodes with equal tracks."""
    pack = EpisodePack.from_episodes(episodes)
    spaces = {
        name: dict(_spaces(name, space))
        for name, space in (("observations", pack.observation_space), ("actions", pack.action_space))
        if space is not None
    }
    for series in of_tracks(pack.columns):
        space = spaces.get(series.label.split("/")[0], {}).get(nested.unescape(series.label), "")
        yield TrackSchema(series, space, owner)


def _spaces(path: str, space: object) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each space in a nested space."""
    parts: Any = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        for name, part in parts.items():
            yield from _spaces(f"{path}/{name}", part)
    elif isinstance(parts, (tuple, list)):
        for i, part in enumerate(parts):
            yield from _spaces(f"{path}/{i}", part)
    else:
        yield path, _space_text(space)


def _space_text(space: Any) -> str:
    """Return a space as short text. A `Box` is its bounds, since its shape and dtype are in other columns."""
    if exact_kind_of(space) is SpaceKind.BOX:
        low, high = float(np.min(space.low)), float(np.max(space.high))
        same = bool((space.low == low).all() and (space.high == high).all())
        return f"Box {low:.4g} … {high:.4g}{'' if same else ' (of all numbers)'}"
    text = repr(space)
    return text if len(text) <= MOST_OF_SPACE else f"{text[: MOST_OF_SPACE - 1]}…"
