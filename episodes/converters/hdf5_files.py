"""Reading of HDF5 files: errors by name, groups as nested dicts of arrays, and the episode of a group."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.converters.accounting import Account, StoredArrays, check_numbers, check_rows, plain
from episodes.converters.loss_report import LossReport
from episodes.converters.transitions import Transitions, without_next
from episodes.errors import EpisodeError, UnreadableData, needing
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

if TYPE_CHECKING:
    import h5py

_INFO_KINDS = "biufSOU"  # numpy kinds of arrays that can be infos: numbers and text


@contextmanager
def opened(path: Path, about: str) -> Iterator[Any]:
    """Return a context manager with the open HDF5 file at `path`.

    Args:
        path: the file.
        about: what it has to be, such as "a file of D4RL's layout", for errors.

    Raises:
        MissingExtra: h5py is not installed.
        FileNotFoundError: the file does not exist.
        UnreadableData: the file is not HDF5, or reading in the context fails.
    """
    with needing("minari", f"{about} needs h5py"):
        import h5py
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (FileNotFoundError, EpisodeError):
        raise
    except (OSError, KeyError, AttributeError, ValueError, TypeError, RuntimeError) as error:
        raise UnreadableData(f"{path}: not {about}: {error}") from error


def attributes_of(group: h5py.Group) -> dict[str, Any]:
    """Return the attributes of a group, and of all groups and arrays in it, by names such as "rewards.attrs/unit".

    Those of the group itself have names such as "attrs/version".
    """
    attributes = {f"attrs/{key}": value for key, value in group.attrs.items()}

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        attributes.update({f"{name}.attrs/{key}": value for key, value in item.attrs.items()})

    group.visititems(visit)
    return attributes


def own_custom_data(group: h5py.Group, *derived: str) -> dict[str, Any]:
    """Return the attributes of a group that holds one episode as plain values, except those named `derived`.

    Those of the group itself have their own names, and others names such as "rewards.attrs/unit".
    """
    attributes = {name.removeprefix("attrs/"): plain(value) for name, value in attributes_of(group).items()}
    return {name: value for name, value in attributes.items() if name not in derived and value is not None}


def tree_of(item: h5py.Group | h5py.Dataset) -> Any:
    """Return an array unchanged, and a group as nested dicts of arrays without empty groups."""
    if not isinstance(item, Mapping):
        return item
    parts = {key: tree_of(part) for key, part in item.items()}
    return {key: part for key, part in parts.items() if not isinstance(part, dict) or part}


def loaded(tree: StoredArrays, rows: slice = slice(None)) -> Any:
    """Return the rows of the arrays in a nested dict, in memory."""
    return nested.map_leaves(lambda array: array[rows], tree)


def infos_of(account: Account, group: Mapping[str, Any], num_rows: int | None = None) -> dict[str, Any]:
    """Return the arrays in a group that are numbers or text and were not read, as nested dicts, and mark them as read.

    Args:
        account: the group's account.
        group: the group.
        num_rows: only arrays with this number of rows are returned. None: all with rows.
    """
    found = {}
    for key, value in group.items():
        if account.has_read(key):
            continue
        if isinstance(value, Mapping):
            inner = infos_of(account.inside(key), value, num_rows)
            found |= {key: inner} if inner else {}
        elif value.dtype.kind in _INFO_KINDS and value.shape and num_rows in (None, value.shape[0]):
            found[key] = account[key]
    return found


def in_natural_order(names: Collection[str]) -> list[str]:
    """Return the names sorted with numbers by value, such as "demo_2" before "demo_10"."""
    return sorted(names, key=lambda name: [(int(part), "") if part.isdigit() else (-1, part) for part in _parts(name)])


def _parts(name: str) -> list[str]:
    return re.findall(r"[0-9]+|[^0-9]+", name)


def episodes_of_rows(
    where: str,
    columns: Mapping[str, Any],
    id_: tuple[str, str],
    report: LossReport,
    terminated: bool = False,
    infos: Mapping[str, Any] | None = None,
    custom_data: Mapping[str, Any] | None = None,
) -> Iterator[SingleAgentEpisode]:
    """Yield the episode with the given arrays of T rows. It is cut where a next observation is not the following one.

    Args:
        where: name of the source, for errors.
        columns: nested arrays by their names in the source: observations, actions, rewards, and optionally next
            observations, in this order. Rewards may be None: they are 0 then. Observations may have T + 1 rows if there
            are no next observations.
        id_: prefix and name, which make the id "PREFIX/NAME".
        report: gets what is lost.
        terminated: whether the last step terminated the episode.
        infos: nested arrays by key [T, ...], infos of the observation of their row.
        custom_data: the episode's custom data.

    Raises:
        UnreadableData: an array has no numbers, or another number of rows.
    """
    given = {name: data for name, data in columns.items() if data is not None}
    check_numbers(where, given)
    (name, observations), (acted, actions), (rewarded, rewards), *after = columns.items()
    num = nested.first_leaf(actions).shape[0]
    has_last = not after and all(leaf.shape[:1] == (num + 1,) for leaf in nested.leaves(observations))
    check_rows(where, {key: data for key, data in given.items() if not (has_last and key == name)}, num, acted)
    text = "/".join(id_)
    if rewards is None:
        report.add("rewards", "the source has none; they are 0", text)
        rewards = np.zeros(num)
    if rewards.size != num:
        raise UnreadableData(f"{where}: {rewarded!r} has shape {rewards.shape}; it has one number per step")
    if not num:
        report.add("the episode", "it has no steps", text)
        return
    observed, acts, rewards, notes = loaded((observations, actions, rewards, dict(infos or {})))
    rewards = rewards.reshape(-1)
    if after:
        ends = np.zeros(num, bool)
        ends[-1] = terminated
        next_observed = loaded(after[0][1])
        steps = Transitions(observed, next_observed, acts, rewards, ends, np.zeros(num, bool), names=[id_[1]] * num)
        steps.own_infos, steps.custom_data = notes, dict(custom_data or {})
        yield from steps.episodes(id_[0], report)
        return
    made = without_next(observed, acts, rewards, terminated, False, {}, report, text, notes)
    if made is not None:
        yield SingleAgentEpisode.from_arrays(**made, id_=text, custom_data=deepcopy(dict(custom_data or {})))
