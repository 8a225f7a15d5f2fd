"""Properties for an episode's immutable metadata and time series: setting one replaces the whole record."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from episodes.errors import WrongType
from episodes.tracks import Track


def fact_of(name: str, doc: str) -> Any:
    """Return a property for one metadata field of an episode, such as its id. It can be read and set."""

    def change(episode: Any, value: Any) -> None:
        episode.facts = episode.facts._replace(**{name: value})

    return property(attrgetter(f"_facts.{name}"), change, doc=doc)


def record_of(name: str, doc: str) -> property:
    """Return a property for an episode's metadata or time series as a whole. Setting it discards cached lists."""

    def change(episode: Any, record: Any) -> None:
        episode.growth = None  # before the change, since its lists belong to the old tracks
        setattr(episode, name, record)

    return property(attrgetter(name), change, doc=doc)  # `attrgetter` reads without a Python call


def track_of(name: str, doc: str) -> Any:
    """Return a property for one time series of an episode, such as `actions`. It cannot be set to another type."""

    def change(episode: Any, track: Track) -> None:
        if not isinstance(track, Track):
            raise WrongType(
                f"{name} = a {type(track).__name__}: give a track, such as that of another episode; "
                f"set_{name}(new_data=...) changes the items"
            )
        episode.tracks = episode.tracks._replace(**{name: track})

    return property(attrgetter(f"_tracks.{name}"), change, doc=doc)
