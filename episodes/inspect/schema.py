"""Schema of a data set: path, shape, dtype, space, range and histogram of each track, from a few of its episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.inspect.formatting import number
from episodes.inspect.series import Series, of_tracks
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.tracks import nested
from episodes.tracks.space_kinds import SpaceKind, bounds_of, exact_kind_of

if TYPE_CHECKING:
    from episodes.storage.dataset import EpisodeDataset
    from episodes.storage.games import GameDataset

MOST_EPISODES = 8  # that are read
MOST_OF_SPACE = 60  # characters
MOST_BOUNDS = 8  # numbers of an item whose bounds are listed


@dataclass(frozen=True)
class TrackSchema:
    """Facts about one track of a data set.

    Attributes:
        series: the items of all episodes that were read, without an order in time.
        space: the space of the items as text, "" if it is unknown.
        owner: the agent whose track it is, "" in data sets of single agents.
        is_outside: whether a number that was read is outside of the bounds of the space.
    """

    series: Series
    space: str = ""
    owner: str = ""
    is_outside: bool = False

    @property
    def remarks(self) -> list[str]:
        """Notes on missing values, NaN, infinities, sampling and numbers outside of the space, as texts."""
        return ["outside of the space"] * self.is_outside + self.series.remarks

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
    """Return the tracks of a data set of episodes or of games. At most 8 episodes, evenly spaced, are read."""
    num = len(dataset)
    chosen = np.unique(np.linspace(0, num - 1, min(num, MOST_EPISODES)).astype(np.intp)).tolist() if num else []
    episodes = [dataset[i] for i in chosen]
    tracks = [track for owner, own in _by_owner(episodes).items() for track in _of_episodes(owner, own)]
    return Schema(tuple(tracks), len(chosen), num)


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
        space = spaces.get(series.label.split("/")[0], {}).get(nested.unescape(series.label))
        yield TrackSchema(series, "" if space is None else space_text(space), owner, _is_outside(series, space))


def _is_outside(series: Series, space: Any) -> bool:
    """Return True if a number of a time series is outside of the bounds of its space."""
    bounds = None if space is None or not series.is_numeric or series.ragged is not None else bounds_of(space)
    if bounds is None or np.shape(bounds[0]) != series.shape[1:]:
        return False
    low, _, high = series.ranges
    with np.errstate(invalid="ignore"):
        return bool((low < np.reshape(bounds[0], -1)).any() or (high > np.reshape(bounds[1], -1)).any())


def _spaces(path: str, space: object) -> Iterator[tuple[str, object]]:
    """Yield the path and each space in a nested space."""
    parts: Any = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        for name, part in parts.items():
            yield from _spaces(f"{path}/{name}", part)
    elif isinstance(parts, (tuple, list)):
        for i, part in enumerate(parts):
            yield from _spaces(f"{path}/{i}", part)
    else:
        yield path, space


def spaces_text(space: object) -> str:
    """Return a nested space as text: the path and the text of each of its parts."""
    parts = dict(_spaces("", space))
    if set(parts) == {""}:
        return space_text(space)
    return ", ".join(f"{path[1:]}: {space_text(part)}" for path, part in parts.items())


def space_text(space: Any) -> str:
    """Return a space as short text. A `Box` is its bounds, since its shape and dtype are in other columns: those of
    each number of an item if there are at most 8, or else the lowest and the highest.

    >>> from gymnasium import spaces
    >>> space_text(spaces.Box(np.array([-1, -np.inf]), np.array([1, 2.5]), dtype=np.float64))
    'Box [-1 … 1, -∞ … 2.5]'
    """
    if exact_kind_of(space) is SpaceKind.BOX:
        bounds = [f"{number(low)} … {number(high)}" for low, high in zip(space.low.flat, space.high.flat, strict=True)]
        if len(set(bounds)) == 1:
            return f"Box {bounds[0]}"
        if len(bounds) <= MOST_BOUNDS:
            return f"Box [{', '.join(bounds)}]"
        low, high = float(np.min(space.low)), float(np.max(space.high))
        return f"Box, other bounds for each number, within {number(low)} … {number(high)}"
    text = repr(space)
    return text if len(text) <= MOST_OF_SPACE else f"{text[: MOST_OF_SPACE - 1]}…"
