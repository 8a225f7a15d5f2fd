"""Read-only sequence of the multi-agent episodes of a data set, whose agents may be of several kinds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
from gymnasium.envs.registration import EnvSpec

from episodes.data_types import AgentID, Indices, ModuleID
from episodes.errors import InvalidArgument, TrackMismatch, UnknownKey, UnreadableData
from episodes.facts.ending import ENDINGS
from episodes.multi_agent import MultiAgentEpisode
from episodes.multi_agent.packing import KEY, episode_of, games_of, is_whole, taken_apart
from episodes.storage.dataset import EpisodeDataset, Table
from episodes.storage.episode_rows import EpisodeRows
from episodes.storage.files import local_path
from episodes.storage.header import read_header
from episodes.storage.kinds import directories_of
from episodes.storage.remote.remote_directory import is_remote
from episodes.storage.search.episode_table import CUSTOM, ENDING_WORDS, EpisodeTable
from episodes.tracks.notebook_repr import notebook_repr
from episodes.tracks.selection import position_of, positions_of

_Game = dict[int, tuple[int, int]]  # by the place of an agent: kind, row


class GameDataset(Sequence[MultiAgentEpisode]):
    """Read-only sequence of the games (multi-agent episodes) in a data set.

    `EpisodeWriter` writes games. If their agents differ in spaces or tracks, each kind of agent has an ordinary data
    set, and `kinds` are these data sets: they are sampled, searched and learned from like all others. `agent` and
    `module` return the episodes of one agent or module. Slices and `select` return data sets of some games.

    A game without all of its agents is left out with a `UserWarning`: its writer is at work, or was killed.

    Args:
        path: the directory.
        mmap: map the files, as `EpisodeDataset` does.

    Attributes:
        path: the directory.
        kinds: data sets with the episodes of single agents, one for each kind of agent.
        incomplete: number of games that were left out, since agents are missing.
        problems: texts of the warnings.

    Raises:
        UnreadableData: there is no data set, or its format version is newer.
        TrackMismatch: the data set has other episodes than those of multi-agent episodes.
        InvalidArgument: the data set is remote.

    >>> import tempfile, numpy as np
    >>> from episodes.storage import EpisodeWriter
    >>> game = MultiAgentEpisode()
    >>> game.add_env_reset(observations={"car": np.zeros(4), "light": np.array([1, 0])})
    >>> observations, actions = {"car": np.ones(4), "light": np.array([0, 1])}, {"car": 0.5, "light": 1}
    >>> game.add_env_step(observations, actions, {"car": 1.0, "light": 0.0})
    >>> path = tempfile.mkdtemp()
    >>> with EpisodeWriter(path) as writer:
    ...     writer.add([game])
    >>> dataset = GameDataset(path)
    >>> len(dataset), len(dataset.kinds), dataset[0].equals(game.to_numpy())
    (1, 2, True)
    >>> dataset.agent("light").pack().observations
    array([[1, 0],
           [0, 1]])
    """

    _repr_html_ = notebook_repr("episodes.inspect.html", "games")

    def __init__(self, path: str | Path, *, mmap: bool = True) -> None:
        if is_remote(path):
            raise InvalidArgument(f"GameDataset({str(path)!r}): games are read from a directory; download it first")
        self.path = local_path(path)
        self._header = read_header(self.path, kinds=True)
        if self._header is None:
            raise UnreadableData(f"{self.path} is not a data set; EpisodeWriter(path) creates one")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # they are among the problems
            self.kinds = tuple(EpisodeDataset(directory, mmap=mmap) for directory in directories_of(self.path))
        self._records = [_records_of(kind) for kind in self.kinds]
        ids = [kind.metadata["multi_agent_episode_id"].tolist() for kind in self.kinds]
        games = games_of([list(zip(*rows, strict=True)) for rows in zip(ids, self._records, strict=True)])
        self._games: list[_Game] = [game for game in games if is_whole(game, self._num_agents(game))]
        self.incomplete = len(games) - len(self._games)
        problems = [problem for kind in self.kinds for problem in kind.problems]
        if self.incomplete:
            problems.append(
                f"{self.path}: {self.incomplete} games are left out, since not all of their agents were written; "
                "their writer is at work, or was killed (copy writes the other games to a new data set)"
            )
        for problem in problems:
            warnings.warn(problem, stacklevel=2)
        self.problems = tuple(problems)

    def _num_agents(self, game: _Game) -> int | None:
        """Return the number of agents that a game had when it was written, or None if that is unknown."""
        return None if 0 not in game else self._first(game)["episode"]["num_agents"]

    def _first(self, game: _Game) -> dict[str, Any]:
        """Return the stored record of a game's first agent, which has the data of the game."""
        kind, row = game[0]
        return self._records[kind][row]

    # --- sequence ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._games)

    @overload
    def __getitem__(self, index: int) -> MultiAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> GameDataset: ...
    def __getitem__(self, index: int | slice) -> MultiAgentEpisode | GameDataset:
        """Return the game at `index`, or for a slice a data set of the selected games.

        Raises:
            WrongType: the index is no int and no slice.
            StepOutOfRange: there is no such game.
        """
        if isinstance(index, slice):
            return self._view(self._games[index])
        game = self._games[position_of(index, len(self), "dataset", "select takes arrays", "games")]
        return episode_of({place: taken_apart(self.kinds[kind][row]) for place, (kind, row) in game.items()})

    def __iter__(self) -> Iterator[MultiAgentEpisode]:
        return map(self.__getitem__, range(len(self)))

    def select(self, which: Callable[[Table], Indices] | Indices) -> Self:
        """Return a data set of selected games. `which` is a function of the metadata table, a mask, or indices.

        Raises:
            StepOutOfRange: there is no such game.
            WrongType: neither ints nor bools.
        """
        indices = which(self.metadata) if callable(which) else which
        numbers = positions_of(indices, len(self), "dataset.select", "games")
        return self._view([self._games[number] for number in numbers.tolist()])

    def _view(self, games: list[_Game]) -> Self:
        view = self.__new__(type(self))
        shared = {name: value for name, value in vars(self).items() if name != "metadata"}
        vars(view).update(shared, _games=games)
        return view

    # --- episodes of single agents -----------------------------------------------------------------------------

    def agent(self, agent_id: AgentID) -> EpisodeDataset:
        """Return the episodes of one agent, as a part of the data set of its kind.

        Raises:
            UnknownKey: no game has the agent; the message lists the agents.
            TrackMismatch: the agent's episodes are of several kinds.
        """
        return self._of("agent_id", agent_id)

    def module(self, module_id: ModuleID) -> EpisodeDataset:
        """Return the episodes of the agents that a module acted for, as a part of the data set of their kind.

        Raises:
            UnknownKey: no game has the module; the message lists the modules.
            TrackMismatch: the module's episodes are of several kinds.
        """
        return self._of("module_id", module_id)

    def _of(self, column: str, value: object) -> EpisodeDataset:
        """Return the episodes with this value in a column of the metadata."""
        rows: dict[int, list[int]] = {}
        known: dict[Any, None] = {}
        columns = [kind.metadata[column] for kind in self.kinds]
        for game in self._games:
            for kind, row in game.values():
                known[columns[kind][row]] = None
                if columns[kind][row] == value:
                    rows.setdefault(kind, []).append(row)
        name = column.removesuffix("_id")
        if not rows:
            raise UnknownKey(f"no {name} {value!r}; there are {', '.join(map(repr, known))}")
        if len(rows) > 1:
            places = ", ".join(f"kinds[{kind}]" for kind in sorted(rows))
            raise TrackMismatch(
                f"{name} {value!r}: its episodes are of several kinds, in {places}; select from each of these data sets"
            )
        [(kind, picked)] = rows.items()
        return self.kinds[kind].select(sorted(picked))

    # --- what is there -----------------------------------------------------------------------------------------

    @cached_property
    def metadata(self) -> EpisodeTable:
        """Table of metadata with one row per game, or per chunk of a game that was cut, and columns [n].

        - `id`: of the game.
        - `t_started`: env step at which the chunk begins.
        - `length`: number of env steps.
        - `num_agents`: number of agents that the game has had.
        - `agents`: their ids, as a tuple.
        - `return`: sum of the rewards of all agents, of complete steps.
        - `terminated`, `truncated`: of the whole game. `ending` is this in words.
        - `custom_data/KEY`: as in `EpisodeDataset.metadata`.
        """
        records = list(map(self._first, self._games))
        facts = [record["episode"] for record in records]
        custom_data: Any = [fact["custom_data"] for fact in facts]
        endings = [ENDINGS[fact["ending"]] for fact in facts]
        returns = [kind.metadata["return"] for kind in self.kinds]
        agent_ids = [kind.metadata["agent_id"] for kind in self.kinds]
        agents = [tuple(agent_ids[kind][row] for _, (kind, row) in sorted(game.items())) for game in self._games]
        columns = {
            "id": _objects([fact["id_"] for fact in facts]),
            "t_started": np.array([record["env_t_started"] for record in records], np.int64),
            "length": np.array([self._length(n, record) for n, record in enumerate(records)], np.int64),
            "num_agents": np.array([fact["num_agents"] for fact in facts], np.int64),
            "agents": _objects(agents),
            "return": np.array([sum(returns[kind][row] for kind, row in game.values()) for game in self._games], float),
            "terminated": np.array([ending.is_terminated for ending in endings], bool),
            "truncated": np.array([ending.is_truncated for ending in endings], bool),
            "ending": ENDING_WORDS[np.array([fact["ending"] for fact in facts], np.int64)],
        }
        return EpisodeTable(columns, {CUSTOM: lambda: custom_data})

    def _length(self, index: int, record: dict[str, Any]) -> int:
        """Return the number of env steps of a game. Records of earlier versions lack it."""
        num_steps = record.get("num_steps")
        return len(self[index]) if num_steps is None else num_steps

    @property
    def has_kinds(self) -> bool:
        """Whether the data set has a data set for each kind of agent. Otherwise it is an ordinary data set."""
        return self._header is not None and self._header.has_kinds

    @property
    def env_spec(self) -> EnvSpec | str | None:
        """Gymnasium `EnvSpec` of the environment, or only its id, or None if unknown."""
        return self._header.env_spec if self._header is not None else None

    @property
    def user_metadata(self) -> dict[str, Any]:
        """Metadata that the user gave to `EpisodeWriter(metadata=...)`."""
        return self._header.metadata if self._header is not None else {}

    def __repr__(self) -> str:
        table = self.metadata
        agents = int(table["num_agents"].max()) if len(self) else 0
        parts = f"{len(self)} games, {int(table['length'].sum())} env steps, up to {agents} agents, "
        left_out = f", {self.incomplete} incomplete" if self.incomplete else ""
        return f"GameDataset({str(self.path)!r}: {parts}{len(self.kinds)} kinds{left_out})"


def open_dataset(path: str | Path) -> EpisodeDataset | GameDataset:
    """Open a data set: as games if its agents are of several kinds, else as episodes."""
    if not is_remote(path):
        header = read_header(local_path(path), kinds=True)
        if header is not None and header.has_kinds:
            return GameDataset(path)
    return EpisodeDataset(path)


def _objects(values: list[Any]) -> np.ndarray:
    """Return an array of Python objects. Tuples stay tuples."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _records_of(kind: EpisodeDataset) -> list[dict[str, Any]]:
    """Return the record of each agent's episode, which says to which game it belongs.

    Raises:
        TrackMismatch: an episode does not belong to a multi-agent episode.
    """
    stored = kind.stored_batches()[0]
    rows = EpisodeRows.joined([batch.batch for batch in stored])
    records = [(data or {}).get(KEY) for data in rows.custom_data_of(slice(None))]
    if len(records) != len(kind) or any(record is None for record in records):
        raise TrackMismatch(f"{kind.path} has episodes of single agents; EpisodeDataset(path) reads them")
    return records  # type: ignore[return-value]
