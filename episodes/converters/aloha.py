"""Import of episodes from HDF5 files of ALOHA and ACT: one episode per file."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.converters.accounting import Account
from episodes.converters.contents import Contents
from episodes.converters.format import OTHER_KIND, Format, Recognition, needs
from episodes.converters.hdf5_files import (
    episodes_of_rows,
    in_natural_order,
    infos_of,
    opened,
    own_custom_data,
    tree_of,
)
from episodes.converters.loss_report import LossReport
from episodes.converters.source_ids import prefix_of_files
from episodes.errors import UnreadableData, needing
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.files import local_path
from episodes.tracks import nested

if TYPE_CHECKING:
    import h5py

_NEEDED = ("action", "observations/qpos")
_FILE = re.compile(r"[^/]+\.(hdf5|h5)")
_PICTURES = (b"\xff\xd8\xff", b"\x89PNG")


def aloha_episodes(path: str | Path, report: LossReport, prefix: str | None = None) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of an HDF5 file of ALOHA, or of a folder of such files in the order of their numbers.

    Ids are "aloha-DIGEST/0" and so on. Observations are dicts with the keys of "observations", such as "qpos" and
    "images". Compressed images (JPEG or PNG) are decompressed. The source has neither rewards nor endings: rewards are
    0, and episodes are cut. Their last step has no next observation and is lost. Other arrays with a row per step, such
    as "base_action", are infos of the observation of their row. Attributes and other small values of a file are its
    episode's custom data.

    Args:
        path: the file or folder.
        report: gets what is lost.
        prefix: first part of the ids, instead of the digest.

    Raises:
        MissingExtra: h5py is not installed, or Pillow for compressed images.
        UnreadableData: a file does not have this layout, or arrays have different numbers of rows or no numbers.
    """
    path = local_path(path)
    files = [path / name for name in _files_in(path, report)] if path.is_dir() else [path]
    made = prefix_of_files("aloha", files, prefix)
    for number, file in enumerate(files):
        with opened(file, "a file of ALOHA's layout") as stored:
            custom_data = own_custom_data(stored) | ({"file": file.name} if path.is_dir() else {})
            yield from _episodes_of(stored, str(file), (made, str(number)), custom_data, report)


def _files_in(folder: Path, report: LossReport) -> list[str]:
    """Return the names of the HDF5 files in a folder, and report other files."""
    names = in_natural_order([file.name for file in folder.iterdir()])
    for name in names:
        if not _FILE.fullmatch(name):
            report.add(name, "it is not read", folder.name)
    return [name for name in names if _FILE.fullmatch(name)]


def _episodes_of(
    file: h5py.Group, where: str, id_: tuple[str, str], custom_data: dict[str, Any], report: LossReport
) -> Iterator[SingleAgentEpisode]:
    """Yield the episode of an open file."""
    stored, text = Account(file), "/".join(id_)
    actions, observations = stored["action"], tree_of(stored["observations"])
    if not isinstance(observations, dict) or "qpos" not in observations:
        raise UnreadableData(f"{where}: not a file of ALOHA's layout: no 'observations/qpos'")
    num = actions.shape[0]
    if "images" in observations:
        images = nested.map_leaves(_decompressed, observations["images"])
        if any(x is not y for x, y in zip(*map(nested.leaves, (images, observations["images"])), strict=True)):
            stored.skip("compress_len")
        observations["images"] = images
    report.add("endings", "the source marks none; the episode counts as cut", text)
    columns = {"observations": observations, "action": actions, "rewards": stored.get("rewards")}
    infos = infos_of(stored, file, num)
    custom_data = custom_data | stored.kept()
    stored.report_rest(report, text)
    yield from episodes_of_rows(where, columns, id_, report, False, infos, custom_data)


def _decompressed(images: np.ndarray | h5py.Dataset) -> Any:
    """Return compressed images as an array [T, height, width, channels], and any other array unchanged.

    Compressed images are bytes: rows of uint8 filled up with zeros, or items of different lengths.
    """
    if not images.shape or not images.shape[0]:
        return images
    first = images[0]
    if len(images.shape) != (2 if images.dtype == np.uint8 else 1) or not _bytes_of(first).startswith(_PICTURES):
        return images
    with needing("video", "compressed images of ALOHA need Pillow"):
        from PIL import Image
    return np.stack([np.asarray(Image.open(io.BytesIO(_bytes_of(item)))) for item in images])


def _bytes_of(item: object) -> bytes:
    return item.tobytes() if isinstance(item, (np.ndarray, np.generic)) else item if isinstance(item, bytes) else b""


def _recognize(contents: Contents) -> Recognition:
    if contents.kind == "hdf5":
        return needs(contents, "hdf5", _NEEDED)
    if contents.kind != "directory":
        return OTHER_KIND
    file = next((name for name in contents.names if _FILE.fullmatch(name)), None)
    return OTHER_KIND if file is None else needs(Contents(contents.path / file), "hdf5", _NEEDED)


def _count(contents: Contents) -> int | None:
    return 1 if contents.kind == "hdf5" else sum(bool(_FILE.fullmatch(name.name)) for name in contents.path.iterdir())


FORMAT = Format("aloha", "HDF5 of ALOHA and ACT", _recognize, aloha_episodes, count=_count)
