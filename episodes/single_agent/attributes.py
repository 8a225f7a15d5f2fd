"""Factories of the properties through which an episode's metadata and time series are read and replaced."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from episodes.errors import WrongType
from episodes.tracks import Track


def fact_of(name: str, doc: str) -> Any:
    """Return a readable and writable property for the metadata field `name` of an episode, such as its id."""

    def change(episode: Any, value: Any) -> None:
        episode.facts = episode.facts._replace(**{name: value})

    return property(attrgetter(f"_facts.{name}"), change, doc=doc)


def record_of(name: str, doc: str) -> property:
    """Return a property for all metadata or all time series of an episode. Setting the property clears cached lists."""

    def change(episode: Any, record: Any) -> None:
        """Replace the metadata or time series of the episode, and clear the cached lists."""
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
