"""The data set and the episode that a command reads, from its words."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from episodes.command.opening import data_path
from episodes.errors import EpisodeError, InvalidArgument

if TYPE_CHECKING:
    from episodes.multi_agent import MultiAgentEpisode
    from episodes.storage import EpisodeDataset, GameDataset

GAME = "multi_agent_episode_id"


def opened(directory: str) -> Any:
    """Open a data set as `EpisodeDataset`, or as `GameDataset` if its agents are of several kinds."""
    from episodes.storage.games import open_dataset

    return open_dataset(data_path(directory))


def is_of_games(dataset: object) -> bool:
    """Return True if the items of a data set are games."""
    from episodes.storage import GameDataset

    return isinstance(dataset, GameDataset)


def counted_episodes(dataset: EpisodeDataset | GameDataset) -> str:
    """Return the number of episodes or games of a data set with its noun."""
    from episodes.inspect.formatting import counted

    return counted(len(dataset), "game" if is_of_games(dataset) else "episode")


def no_episodes(directory: object) -> str:
    """Return that a data set is empty, and how to fill it."""
    return f"{directory}: no episodes; add some with episodes record, episodes convert or EpisodeWriter"


def chosen_episode(dataset: EpisodeDataset | GameDataset, text: str) -> Any:
    """Return the episode that `text` names as in `position_of_episode`. If it names none, return the game with this id,
    or the only game whose id begins so.

    Raises:
        InvalidArgument: the data set is empty, or `text` fits no episode and no game, or several.
    """
    game = named_game(dataset, text)
    return dataset[position_of_episode(dataset, text)] if game is None else _game(dataset, game)


def named_game(dataset: Any, text: str) -> str | None:
    """Return the id of the game that `text` names in a data set of agents' episodes, or None if it names an episode or
    nothing.
    """
    if is_of_games(dataset):
        return None
    ids = _ids(dataset)
    games = {str(id_) for id_ in dataset.metadata[GAME].tolist() if id_ is not None}
    if _exact(ids, text) is not None:
        return None
    if text in games:
        return text
    begun = [id_ for id_ in games if id_.startswith(text)]
    is_of_several = len({id_ for id_ in ids if id_.startswith(text)}) > 1
    return begun[0] if len(begun) == 1 and is_of_several else None


def _game(dataset: Any, id_: str) -> MultiAgentEpisode:
    """Return the game with an id from a data set of agents' episodes. Raise `InvalidArgument` if it is not whole."""
    from episodes.storage import GameDataset

    reason = "not all of its agents are stored"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            games = GameDataset(dataset.path)
        ids = _ids(games)
        if id_ in ids:
            return games[ids.index(id_)]
    except EpisodeError as error:  # episodes of no game, or a remote data set
        reason = str(error)
    places = [str(n) for n, game in enumerate(dataset.metadata[GAME].tolist()) if str(game) == id_]
    raise InvalidArgument(
        f"--episode {id_}: the game cannot be shown as a whole: {reason}; give one of its agents' episodes: "
        f"{', '.join(places)}"
    )


def _ids(dataset: EpisodeDataset | GameDataset) -> list[str]:
    return [str(id_) for id_ in dataset.metadata["id"].tolist()]


def _exact(ids: list[str], text: str) -> int | None:
    """Return the position that `text` names as an id or as an index, or None."""
    if text in ids:
        return ids.index(text)
    if text.removeprefix("-").isdecimal() and -len(ids) <= int(text) < len(ids):
        return int(text)
    return None


def position_of_episode(dataset: EpisodeDataset | GameDataset, text: str) -> int:
    """Return the index of the episode that `text` names by its id, its index, or the beginning of its id.

    Raises:
        InvalidArgument: the data set is empty, or `text` fits no episode or several.
    """
    ids = _ids(dataset)
    if not ids:
        raise InvalidArgument(no_episodes(dataset.path))
    if (position := _exact(ids, text)) is not None:
        return position
    matches = [n for n, id_ in enumerate(ids) if id_.startswith(text)]
    if len({ids[n] for n in matches}) == 1:
        return matches[0]
    if matches:
        begun = f"{len(matches):,} of {counted_episodes(dataset)} have an id that begins so; give more of the id"
    else:
        begun = (
            f"there are {counted_episodes(dataset)}, 0 to {len(ids) - 1:,}, and no id begins with {text}; give an id"
        )
    raise InvalidArgument(f"--episode {text}: {begun}, or an index (episodes ls lists both)")
