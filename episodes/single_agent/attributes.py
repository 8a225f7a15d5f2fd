"""The attributes of an episode: properties over the fields of its facts and tracks, which never change themselves."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from episodes.errors import WrongType
from episodes.tracks import Track


def fact_of(name: str) -> Any:
    """A property over a field of the facts; setting it makes other facts."""

    def change(episode: Any, value: Any) -> None:
        episode.facts = episode.facts._replace(**{name: value})

    return property(attrgetter(f"_facts.{name}"), change)


def record_of(name: str, doc: str) -> property:
    """A property over the facts or the tracks; setting them ends the growing by `growth`."""

    def change(episode: Any, record: Any) -> None:
        episode.growth = None  # first: with other tracks, nobody may go on appending to what was there
        setattr(episode, name, record)

    return property(attrgetter(name), change, doc=doc)  # `attrgetter` reads without a call of Python: agents are many


def track_of(name: str) -> Any:
    """A property over a track; setting it makes other tracks, `WrongType` unless a track is given."""

    def change(episode: Any, track: Track) -> None:
        if not isinstance(track, Track):
            raise WrongType(
                f"{name} = a {type(track).__name__}: an episode's {name} are a track, such as another episode's; "
                f"set_{name}(new_data=...) changes the items"
            )
        episode.tracks = episode.tracks._replace(**{name: track})

    return property(attrgetter(f"_tracks.{name}"), change)
