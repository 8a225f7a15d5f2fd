"""Import of episodes from HDF5 files in D4RL's layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium import spaces

from episodes.converters.accounting import SOURCE, Account
from episodes.converters.flat_steps import FlatSteps
from episodes.converters.format import Format, needs
from episodes.converters.hdf5_files import attributes_of, infos_of, opened
from episodes.converters.loss_report import LossReport
from episodes.converters.source_ids import prefix_of_files
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.files import local_path

if TYPE_CHECKING:
    import h5py

_NEEDED = ("observations", "actions", "rewards", "terminals")
_OPTIONAL = ("timeouts", "next_observations", "episode_terminals")
_ROLES = {"terminals": "terminated", "timeouts": "truncated", "episode_terminals": "done"}


def from_d4rl(
    path: str | Path,
    *,
    observation_space: spaces.Space | None = None,
    action_space: spaces.Space | None = None,
    prefix: str | None = None,
    strict: bool = False,
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Return the episodes of an HDF5 file in D4RL's layout, and a report of what was lost.

    Their ids are "d4rl-DIGEST/0", "d4rl-DIGEST/1" and so on, with a digest of the file's content.

    If the file has no "next_observations", the observation after an episode's last step is unknown: a terminated
    episode repeats its last observation, and any other episode loses its last step. If there is one observation more
    than steps, it is the one after the last step of the file. Arrays below "infos" are the infos of the observation of
    their row. Attributes and other values of the whole file are `custom_data["source"]`.

    Args:
        path: the file.
        observation_space: the environment's observation space, which files do not store.
        action_space: the environment's action space. Actions of D4RL are the environment's.
        prefix: first part of the ids, instead of the digest.
        strict: raise if something would be lost.

    Raises:
        MissingExtra: h5py is not installed.
        UnreadableData: the file is not HDF5, or lacks arrays of D4RL, or they have different numbers of rows, or are
            not numbers.
        LostInConversion: with `strict`, something would be lost.
    """
    report = LossReport()
    episodes = list(d4rl_episodes(path, report, prefix))
    for episode in episodes:
        episode.observation_space, episode.action_space = observation_space, action_space
    return episodes, report.check(strict)


def d4rl_episodes(path: str | Path, report: LossReport, prefix: str | None = None) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of an HDF5 file in D4RL's layout, and add losses to `report`.

    Raises:
        UnreadableData: the file is not HDF5, or does not have D4RL's layout.
        FileNotFoundError: the file does not exist.
    """
    path = local_path(path)
    with opened(path, "a file of D4RL's layout") as file:
        yield from _of_file(file, path, report, prefix)


def _of_file(file: h5py.Group, path: Path, report: LossReport, prefix: str | None) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of an open HDF5 file in D4RL's layout. Values that are not read are noted in `report`."""
    stored = Account(file)
    columns = {_ROLES.get(key, key): stored[key] for key in (*_NEEDED, *_OPTIONAL) if key in stored or key in _NEEDED}
    infos = infos_of(stored.inside("infos"), stored["infos"]) if "infos" in stored else {}
    custom_data: dict[str, Any] = {}
    steps = FlatSteps(str(path), columns, {role: key for key, role in _ROLES.items()}, infos, report, custom_data)
    if "timeouts" not in stored and "episode_terminals" not in stored:
        reason = "the file has no 'timeouts', so steps before and after a time limit may be in one episode"
        report.add("truncations", reason, path.name)
    attributes = Account(attributes_of(file))
    if kept := attributes.kept() | stored.kept():
        custom_data[SOURCE] = kept
    for account in (stored, attributes):
        account.report_rest(report, path.name)
    terminated = steps.flags("terminated")
    truncated = steps.flags("truncated") | (steps.flags("done") & ~terminated)
    yield from steps.episodes(prefix_of_files("d4rl", [path], prefix), terminated, truncated)


FORMAT = Format("d4rl", "HDF5 of D4RL", lambda contents: needs(contents, "hdf5", _NEEDED), d4rl_episodes)
