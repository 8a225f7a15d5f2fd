"""Factories of the properties through which an episode's metadata and time series are read and replaced."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from episodes.errors import EpisodeStateError, WrongType
from episodes.tracks import Track

if TYPE_CHECKING:
    from episodes.facts.facts import EpisodeFacts
    from episodes.tracks.tracks import Tracks


class FixedData(dict[str, Any]):
    """Custom data of an episode of a pack: a dict that cannot be changed. Copies and pickles of it are plain dicts."""

    def _refuse(self, *args: object, **kwargs: object) -> Any:
        raise EpisodeStateError(
            f"custom_data of an episode of a pack: {_COPY_FIRST}, or make pack.replace(custom_data=[...])"
        )

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


_COPY_FIRST = (
    "a change would not reach its steps; change a copy, episode = copy.copy(pack[i]), and make a pack of the copies "
    "with EpisodePack.from_episodes"
)


def check_is_not_of_pack(episode: Any) -> None:
    """Raise `EpisodeStateError` if the episode is a view of a pack, so that a setter would not change the pack."""
    if episode.is_of_pack:
        raise EpisodeStateError(f"episode {episode.id_}: it is a view of a pack or recorder: {_COPY_FIRST}")


def fact_of(name: str, doc: str, check: Callable[[str, Any, int], Any] | None = None) -> Any:
    """Return a readable and writable property for the metadata field `name` of an episode, such as its id.

    Args:
        check: function of the name, a new value and the number of steps that returns the value to set.
    """

    def change(episode: Any, value: object) -> None:
        value = value if check is None else check(name, value, len(episode))
        episode.facts = episode.facts._replace(**{name: value})

    return property(attrgetter(f"_facts.{name}"), change, doc=doc)


def record_of(name: str, doc: str) -> property:
    """Return a property for the metadata, the time series or the custom data of an episode. Setting it clears cached
    lists, and raises `EpisodeStateError` for an episode of a pack.
    """

    def change(episode: Any, record: EpisodeFacts | Tracks) -> None:
        """Replace the metadata or time series of the episode, and clear the cached lists."""
        check_is_not_of_pack(episode)
        episode.growth = None  # before the change, since its lists belong to the old tracks
        setattr(episode, name, record)

    return property(attrgetter(name), change, doc=doc)  # `attrgetter` reads without a Python call


def track_of(name: str, doc: str) -> Any:
    """Return a property for the time series `name` of an episode, such as `actions`. Assigning anything but a
    `Track` raises `WrongType`.
    """

    def change(episode: Any, track: Track) -> None:
        """Replace a time series of the episode. Raise `WrongType` unless `track` is a `Track`."""
        if not isinstance(track, Track):
            raise WrongType(
                f"{name} = a {type(track).__name__}: give a track, such as {name} of another episode; "
                f"set_{name}(new_data=...) changes the items"
            )
        episode.tracks = episode.tracks._replace(**{name: track})

    return property(attrgetter(f"_tracks.{name}"), change, doc=doc)
