"""Import of episodes from HDF5 files of robomimic, and of MimicGen, LIBERO, RoboCasa and Isaac Lab."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.converters.accounting import SOURCE, Account, StoredArrays, check_numbers
from episodes.converters.contents import Contents
from episodes.converters.format import OTHER_KIND, YES, Format, Recognition
from episodes.converters.hdf5_files import (
    attributes_of,
    episodes_of_rows,
    in_natural_order,
    infos_of,
    opened,
    own_custom_data,
    tree_of,
)
from episodes.converters.loss_report import LossReport
from episodes.converters.source_ids import prefix_of_files
from episodes.errors import UnreadableData
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.files import local_path
from episodes.tracks import nested

if TYPE_CHECKING:
    import h5py

_NO_OBS = (
    "no 'obs' in its demonstrations; extract them from the states first, with robomimic's dataset_states_to_obs.py"
)


def robomimic_episodes(path: str | Path, report: LossReport, prefix: str | None = None) -> Iterator[SingleAgentEpisode]:
    """Yield an episode for each demonstration in an HDF5 file of robomimic, in the order of their numbers.

    Ids are "robomimic-DIGEST/demo_0" and so on. Observations are dicts with the keys of "obs". The last observation is
    that of "next_obs". Without it, a terminated episode repeats its last observation, and any other episode loses its
    last step. An episode terminates if "dones" is set at its last step. Other arrays with a row per step, such as
    "states", are infos of the observation of their row. Attributes of a demonstration are its custom data, and
    `custom_data["masks"]` has the names of the filters that list it. `custom_data["source"]` has the attributes of the
    data, such as "env_args".

    Args:
        path: the file.
        report: gets what is lost.
        prefix: first part of the ids, instead of the digest.

    Raises:
        MissingExtra: h5py is not installed.
        UnreadableData: the file does not have this layout, a demonstration has no observations, or arrays have
            different numbers of rows or no numbers.
    """
    path = local_path(path)
    with opened(path, "a file of robomimic's layout") as file:
        made = prefix_of_files("robomimic", [path], prefix)
        data, masks = file["data"], _masks_of(file, report, path.name)
        source = _shared_values(file, report, path.name)
        for name in in_natural_order(data):
            if not _is_demo(data[name]):
                report.add(f"data/{name}", "it is no demonstration: it has no actions", path.name)
                continue
            custom_data = own_custom_data(data[name], "num_samples") | ({SOURCE: source} if source else {})
            custom_data |= {"masks": masks.pop(name)} if name in masks else {}
            yield from _episodes_of(data[name], f"{path}: {name}", (made, name), custom_data, report)
        for name, of in masks.items():
            report.add(f"mask/{of[0]}", f"it lists {name!r}, which is not there", path.name)


def _masks_of(file: Mapping[str, Any], report: LossReport, where: str) -> dict[str, list[str]]:
    """Return the names of the filters of each demonstration, by its name."""
    masks: dict[str, list[str]] = {}
    for key, names in file.get("mask", {}).items():
        if isinstance(names, Mapping) or names.dtype.kind not in "SO" or len(names.shape) != 1:
            report.add(f"mask/{key}", "it is not a list of demonstrations", where)
            continue
        for name in names[()]:
            masks.setdefault(name.decode() if isinstance(name, bytes) else str(name), []).append(key)
    return masks


def _shared_values(file: Any, report: LossReport, where: str) -> dict[str, Any]:
    """Return values of the whole file that are small enough for the custom data of each episode."""
    attributes = {f"attrs/{key}": value for key, value in file.attrs.items()} | dict(file["data"].attrs)
    if "mask" in file:
        attributes |= {f"mask.{key}": value for key, value in attributes_of(file["mask"]).items()}
    accounts = Account(attributes), Account(file)
    accounts[0].skip("total")
    accounts[1].skip("data", "mask")
    kept = accounts[0].kept() | accounts[1].kept()
    for account in accounts:
        account.report_rest(report, where, "it is too large for custom data of each episode")
    return kept


def _episodes_of(
    demo: h5py.Group, where: str, id_: tuple[str, str], custom_data: dict[str, Any], report: LossReport
) -> Iterator[SingleAgentEpisode]:
    """Yield the episode of a demonstration."""
    stored = Account(demo)
    observations = tree_of(stored["obs"]) if "obs" in stored else {}
    if isinstance(observations, dict) and not observations:
        raise UnreadableData(f"{where}: {_NO_OBS}")
    columns = {"obs": observations, "actions": stored["actions"], "rewards": stored.get("rewards")}
    if "next_obs" in stored:
        columns["next_obs"] = tree_of(stored["next_obs"])
        _check_keys(observations, columns["next_obs"], where)
    num = columns["actions"].shape[0]
    dones = np.zeros(num, bool)
    if "dones" in stored:
        check_numbers(where, {"dones": stored["dones"]})
        if stored["dones"].shape not in ((num,), (num, 1)):
            raise UnreadableData(f"{where}: 'dones' has shape {stored['dones'].shape}, 'actions' has {num} rows")
        dones = stored["dones"][()].reshape(-1).astype(bool)
        report.add("truncations", "'dones' mark none; an episode without it at its end is cut", "/".join(id_))
    else:
        report.add("endings", "the source marks none; the episode counts as cut", "/".join(id_))
    infos = infos_of(stored, demo, num)
    if dones[:-1].any():
        infos["dones"] = np.concatenate([[False], dones[:-1]])  # as an info of the observation after the step
        reason = "they are set before its last step, and an episode ends once; they are infos"
        report.add("dones", reason, "/".join(id_))
    custom_data = custom_data | stored.kept()
    stored.report_rest(report, "/".join(id_))
    yield from episodes_of_rows(where, columns, id_, report, bool(num and dones[-1]), infos, custom_data)


def _check_keys(observations: StoredArrays, after: StoredArrays, where: str) -> None:
    """Raise `UnreadableData` if observations and next observations have different keys."""
    if nested.flatten(observations).keys() != nested.flatten(after).keys():
        raise UnreadableData(f"{where}: 'obs' and 'next_obs' have different keys; give both the same, or delete one")


def _demos(contents: Contents) -> list[str]:
    return [name for name in contents.names if re.fullmatch("data/[^/]+/actions", name)]


def _recognize(contents: Contents) -> Recognition:
    if contents.kind != "hdf5":
        return OTHER_KIND
    demos = _demos(contents)
    if not demos:
        return Recognition(False, "no 'data/demo_0/actions'")
    has_obs = any(name.removesuffix("actions") + "obs" in contents.names for name in demos)
    return YES if has_obs else Recognition(False, _NO_OBS)


def _count(contents: Contents) -> int | None:
    with opened(contents.path, "a file of robomimic's layout") as file:
        return sum(map(_is_demo, file["data"].values()))


def _is_demo(item: object) -> bool:
    return isinstance(item, Mapping) and "actions" in item


FORMAT = Format(
    "robomimic", "HDF5 of robomimic, MimicGen, LIBERO and Isaac Lab", _recognize, robomimic_episodes, count=_count
)
