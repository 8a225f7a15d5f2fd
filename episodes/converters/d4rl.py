"""Import of episodes from HDF5 files in D4RL's layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from episodes.converters.loss_report import LossReport
from episodes.converters.transitions import Transitions, without_next
from episodes.errors import EpisodeError, UnreadableData, needing
from episodes.single_agent import SingleAgentEpisode

_READ = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
_ROWS = 8192  # rows that are read together, extended to the end of an episode


def from_d4rl(
    path: str | Path,
    *,
    observation_space: spaces.Space | None = None,
    action_space: spaces.Space | None = None,
    strict: bool = False,
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Return the episodes of an HDF5 file in D4RL's layout, and a report of what was lost.

    Their ids are "FILE/0", "FILE/1" and so on.

    If the file has no "next_observations", the observation after an episode's last step is unknown: a terminated
    episode repeats its last observation, and any other episode loses its last step.

    Args:
        path: the file.
        observation_space: the environment's observation space, which files do not store.
        action_space: the environment's action space. Actions of D4RL are the environment's.
        strict: raise if something would be lost.

    Raises:
        MissingExtra: h5py is not installed.
        UnreadableData: the file is not HDF5, or lacks arrays of D4RL.
        LostInConversion: with `strict`, something would be lost.
    """
    report = LossReport()
    episodes = list(d4rl_episodes(path, report))
    for episode in episodes:
        episode.observation_space, episode.action_space = observation_space, action_space
    return episodes, report.check(strict)


def d4rl_episodes(path: str | Path, report: LossReport) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of an HDF5 file in D4RL's layout, and add losses to `report`.

    Raises:
        UnreadableData: the file is not HDF5, or does not have D4RL's layout.
        FileNotFoundError: the file does not exist.
    """
    with needing("minari", "D4RL's files need h5py"):
        import h5py
    try:
        with h5py.File(path, "r") as file:
            yield from _episodes(file, Path(path).stem, report)
    except (FileNotFoundError, EpisodeError):
        raise
    except (OSError, KeyError, AttributeError, ValueError, TypeError) as error:
        raise UnreadableData(f"{path}: not a file of D4RL's layout: {error}") from error


def _episodes(file: Any, name: str, report: LossReport) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of an open HDF5 file in D4RL's layout, which is read in blocks of about `_ROWS` steps.

    The last row of the file ends an episode even without a flag. Entries for which an episode has no place are noted in
    `report`.
    """
    terminated = file["terminals"][()].reshape(-1).astype(bool)
    truncated = file["timeouts"][()].reshape(-1).astype(bool) if "timeouts" in file else np.zeros_like(terminated)
    for key in sorted(file.keys() - set(_READ)):
        report.add(repr(key), "an episode has no place for it", name)
    if not len(terminated):
        return
    ends = terminated | truncated
    ends[-1] = True
    stops = np.flatnonzero(ends) + 1
    number = start = 0
    while start < len(ends):
        stop = int(stops[min(np.searchsorted(stops, start + _ROWS), len(stops) - 1)])
        rows = slice(start, stop)
        for episode in _of_rows(file, rows, terminated[rows], truncated[rows], name, number, report):
            yield episode
            number += 1
        start = stop


def _of_rows(
    file: Any, rows: slice, terminated: np.ndarray, truncated: np.ndarray, name: str, number: int, report: LossReport
) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes stored in the rows `rows` of the file, of which the last row ends an episode.

    Their ids begin with `name` and are numbered from `number` on.
    """
    observations, actions, rewards = (file[key][rows] for key in ("observations", "actions", "rewards"))
    rewards = rewards.reshape(-1)
    if "next_observations" in file:
        steps = Transitions(
            observations, file["next_observations"][rows], actions, rewards, terminated, truncated, first_row=rows.start
        )
        yield from steps.episodes(name, report, number)
        return
    ends = terminated | truncated
    ends[-1] = True
    stops = np.flatnonzero(ends) + 1
    for a, b in zip([0, *stops[:-1].tolist()], stops.tolist(), strict=True):
        flags = bool(terminated[b - 1]), bool(truncated[b - 1])
        made = without_next(
            observations[a:b], actions[a:b], rewards[a:b], *flags, {}, report, f"row {rows.start + b - 1}"
        )
        if made is not None:
            yield SingleAgentEpisode.from_arrays(**made, id_=f"{name}/{number}")
            number += 1
