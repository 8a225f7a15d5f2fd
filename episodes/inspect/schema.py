"""Schema of a data set: path, shape, dtype, space, range and histogram of each track, of a few or all episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.inspect.formatting import clipped, counted, number
from episodes.inspect.series import Series, of_tracks, space_text
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.storage.games import GameDataset
from episodes.storage.remote.remote_directory import is_remote
from episodes.tracks import nested
from episodes.tracks.ragged import LENGTH
from episodes.tracks.space_kinds import SpaceKind, exact_kind_of, is_dict, is_nested, parts_of

if TYPE_CHECKING:
    from episodes.multi_agent.timeline import Timeline
    from episodes.single_agent import SingleAgentEpisode
    from episodes.storage.dataset import EpisodeDataset

FEWEST_READ = 8  # episodes of a large data set, even if they are larger
MOST_SPACED = 200  # episodes that are read of a larger data set
MOST_READ = 1000  # episodes of a data set that is read as a whole
MOST_OF_REPR = 1000  # characters of a space of another kind
MOST_BYTES = 1 << 26  # of the decoded tracks of these episodes


@dataclass(frozen=True)
class TrackSchema:
    """Facts about one track of a data set.

    Attributes:
        series: the items of all episodes that were read, without an order in time.
        place: function that names the episode and the time of the item with an index.
        episodes_of: function that returns the indices of the episodes of items [k], int64 [k]. It is -1 after the last.
        owner: the agent whose track it is, "" in data sets of single agents.
    """

    series: Series
    place: Callable[[int], str]
    episodes_of: Callable[[np.ndarray], np.ndarray]
    owner: str = ""

    @property
    def defects(self) -> str:
        """Counts and first places of numbers that are not finite or outside of the space, "" if there are none."""
        return self.series.defects_text(self.place)

    def defective_episodes(self) -> Iterator[tuple[int, str]]:
        """Yield the index of each episode with a number that is not finite or outside of its space, and which it is."""
        for kind, is_wrong in self.series.wrong_numbers():
            episodes = self.episodes_of(self.series.items[is_wrong.any(1)])
            yield from ((index, kind) for index in np.unique(episodes).tolist())

    @property
    def num_empty_ends(self) -> int:
        """Number of items of length 0 if each is the last of its episode, and 0 otherwise."""
        if self.series.ragged is None:
            return 0
        empty = np.flatnonzero(self.series.ragged.lengths == 0)
        is_last = self.episodes_of(empty) != self.episodes_of(empty + 1)
        return len(empty) if is_last.all() else 0

    @property
    def space(self) -> str:
        """The space of the items as text, "" if it is unknown."""
        return self.series.space_text

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
    """Tracks of a data set, described from `num_read` of its episodes or games."""

    tracks: tuple[TrackSchema, ...]
    num_read: int
    num_episodes: int
    noun: str = "episode"  # or "game"
    num_agents: int = 0  # whose tracks are described together

    def defective_episodes(self) -> dict[int, str]:
        """Return the indices of the episodes with numbers that are not finite or outside of their space, in order, with
        the kinds of these numbers, such as "NaN, outside of its space".
        """
        kinds: dict[int, dict[str, None]] = {}
        for track in self.tracks:
            for index, kind in track.defective_episodes():
                kinds.setdefault(index, {})[kind] = None
        return {index: ", ".join(kinds[index]) for index in sorted(kinds)}

    @property
    def extent(self) -> str:
        """Number of the episodes or games that were read, as text."""
        agents = f"{counted(self.num_agents, 'agent')} in " if self.num_agents else ""
        if not self.sample:
            return f"of {agents}{'all ' * (self.num_read > 1)}{counted(self.num_episodes, self.noun)}"
        return f"of {agents}{self.sample}, evenly spaced"

    @property
    def sample(self) -> str:
        """Number of the episodes or games that were read as text, empty if all were read."""
        is_whole = self.num_read == self.num_episodes
        return "" if is_whole else f"{self.num_read:,} of {counted(self.num_episodes, self.noun)}"


def read_schema(dataset: EpisodeDataset | GameDataset, merges_agents: bool = False) -> Schema:
    """Return the tracks of a data set of episodes or of games.

    All episodes are read if they are at most 1,000 and their decoded tracks take at most 64 MiB. Otherwise those that
    are read are evenly spaced: as many as take 64 MiB, but at least 8 and at most 200. Of a remote data set, 8 are
    read.

    Args:
        merges_agents: describe the tracks of all agents of games together if their paths, shapes, dtypes and spaces are
            equal.
    """
    num = len(dataset)
    most = _num_read(dataset)
    chosen = np.unique(np.linspace(0, num - 1, min(num, most)).astype(np.intp)).tolist() if num else []
    noun = "game" if hasattr(dataset, "kinds") else "episode"
    by_owner = _by_owner({i: dataset[i] for i in chosen})
    by_agent = [
        list(_of_episodes(owner, [(i, f"{noun} {i}", episode) for i, episode in own.items()]))
        for owner, own in by_owner.items()
    ]
    kinds = {
        tuple((each.series.label, each.item_shape, each.series.dtype, each.space) for each in own) for own in by_agent
    }
    if merges_agents and len(by_agent) > 1 and len(kinds) == 1:
        together = [
            (i, f"{noun} {i}, {owner}", episode) for owner, own in by_owner.items() for i, episode in own.items()
        ]
        return Schema(tuple(_of_episodes("", together)), len(chosen), num, noun, len(by_agent))
    return Schema(tuple(track for own in by_agent for track in own), len(chosen), num, noun)


def _num_read(dataset: EpisodeDataset | GameDataset) -> int:
    """Return of how many episodes or games of a data set the statistics are."""
    num = len(dataset)
    if num <= FEWEST_READ or is_remote(dataset.path):
        return FEWEST_READ
    size = 1.0
    for kind in dataset.kinds if isinstance(dataset, GameDataset) else (dataset,):
        fields = kind.stored_header.tracks.values()
        size += sum(abs(prod(field.shape)) * np.dtype(field.dtype).itemsize for field in fields) * kind.num_steps
        size += kind.nbytes if any(LENGTH in field.shape for field in fields) else 0
    if num <= MOST_READ and size <= MOST_BYTES:
        return num
    return min(max(int(MOST_BYTES * num / size), FEWEST_READ), MOST_SPACED)


def _by_owner(episodes: Mapping[int, Any]) -> dict[str, dict[int, Any]]:
    """Return the episodes of single agents by the name of the agent, or by "" if they are of no game, and by index."""
    by_owner: dict[str, dict[int, Any]] = {}
    for index, episode in episodes.items():
        if isinstance(episode, MultiAgentEpisode):
            for agent, line in episode.agents.timelines.items():
                by_owner.setdefault(str(agent), {})[index] = line.episode
        else:
            by_owner.setdefault("", {})[index] = episode
    return by_owner


def _of_episodes(owner: str, episodes: Sequence[tuple[int, str, Any]]) -> Iterator[TrackSchema]:
    """Yield the tracks of episodes with equal tracks, given with their indices and names."""
    indices, names, parts = zip(*episodes, strict=True)
    pack = EpisodePack.from_episodes(list(parts))
    place, numbers = place_in_pack(pack, names), np.array([*indices, -1])
    for series in with_spaces(of_tracks(pack.columns), pack.observation_space, pack.action_space):
        rows = partial(_rows_in_pack, pack, series)
        yield TrackSchema(series, partial(place, series), lambda items, rows=rows: numbers[rows(items)], owner)


def with_spaces(series: Iterable[Series], observation_space: object, action_space: object) -> Iterator[Series]:
    """Yield each series of an episode or pack with the space of its items, if that is known."""
    spaces: dict[str, Any] = {}
    for name, space in (("observations", observation_space), ("actions", action_space)):
        spaces |= dict(_leaves(name, space))
    for each in series:
        space = spaces.get(nested.unescape(each.label))
        yield each if space is None else replace(each, space=space)


def _leaves(path: str, space: object) -> Iterator[tuple[str, object]]:
    """Yield the path and the space of each leaf of a nested space."""
    parts: Any = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        for name, part in parts.items():
            yield from _leaves(f"{path}/{name}", part)
    elif isinstance(parts, (tuple, list)):
        for i, part in enumerate(parts):
            yield from _leaves(f"{path}/{i}", part)
    else:
        yield path, space


def spaces_text(space: object) -> str:
    """Return a nested space as text: the path and the text of each of its parts."""
    parts = dict(_leaves("", space))
    if set(parts) == {""}:
        return space_text(space)
    return ", ".join(f"{path[1:]}: {space_text(part)}" for path, part in parts.items())


def described(space: Any) -> str | None:
    """Return a space as short text with its shape, dtype and bounds. None is returned for None.

    >>> from gymnasium import spaces
    >>> described(spaces.Dict(camera=spaces.Box(0, 255, (84, 84, 3), np.uint8), gripper=spaces.Discrete(2)))
    'Dict(camera: Box(84, 84, 3) uint8 0 to 255, gripper: Discrete(2))'
    """
    if is_nested(space):
        names = parts_of(space).items()
        parts = (f"{name}: {described(part)}" if is_dict(space) else str(described(part)) for name, part in names)
        return f"{type(space).__name__}({', '.join(parts)})"
    if exact_kind_of(space) is not SpaceKind.BOX:
        return None if space is None else clipped(space, MOST_OF_REPR)
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    ends = "without numbers"
    if len(low):
        is_common = bool((low == low[0]).all() and (high == high[0]).all())
        ends = f"{number(low[0])} to {number(high[0])}" if is_common else "bounds by component"
    return f"Box{space.shape} {space.dtype} {ends}"


def place_in_episode(episode: SingleAgentEpisode, line: Timeline | None = None) -> Callable[[Series, int], str]:
    """Return a function that names the place of an item of an episode's series: its time, and its env step if the
    episode is that of an agent with the timeline `line`.
    """
    begin = episode.t_started - episode.tracks.lookback

    def place(series: Series, index: int) -> str:
        times = () if line is None else line.observation_times if series.more else line.action_times
        return f"t={begin + index}" + (f", env step {times[index]}" if index < len(times) else "")

    return place


def place_in_pack(pack: EpisodePack, names: Sequence[str]) -> Callable[[Series, int], str]:
    """Return a function that names the place of an item of a pack's series: its episode and its time.

    `names` are those of the episodes, such as "episode 3".
    """

    def place(series: Series, index: int) -> str:
        k = int(_rows_in_pack(pack, series, np.array(index)))
        begin = int(_ends_in_pack(pack, series)[k] - pack.lookbacks[k] - pack.lengths[k] - series.more)
        return f"{names[k]}, t={index - begin + int(pack.t_started[k] - pack.lookbacks[k])}"

    return place


def _ends_in_pack(pack: EpisodePack, series: Series) -> np.ndarray:
    """Return the index after the last item of each episode in a pack's series, int64 [episodes]."""
    return np.cumsum(pack.lookbacks + pack.lengths + series.more)


def _rows_in_pack(pack: EpisodePack, series: Series, items: np.ndarray) -> np.ndarray:
    """Return the rows of the episodes of items [k] of a pack's series, int64 [k]."""
    return np.searchsorted(_ends_in_pack(pack, series), items, "right")
