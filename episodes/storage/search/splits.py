"""Splits of a data set into named parts, such as training and test set. New episodes never change
the split of earlier ones.

A split by share is a rule on ids: each episode has a number in [0, 1), a hash of its id and a seed. So episodes that
are written later are assigned too, and none moves. All chunks of an episode, and all agents of a multi-agent episode,
have one number, so no tested episode is trained on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from episodes.errors import InvalidArgument, UnknownKey, UnreadableData
from episodes.format_versions import checked_integer
from episodes.storage.checksums import verify_json, with_checksum
from episodes.storage.files import put, read_file

NAME = "splits.json"

Split = dict[str, Any]  # {"from", "to", "seed"} or {"ids"}


def read_splits(directory: Path) -> dict[str, Split]:
    """Read the definitions of a data set's splits, as a dict by split name, which is empty without splits. Raise
    `UnreadableData` if the file is damaged.
    """
    try:
        data = read_file(directory / NAME)
    except FileNotFoundError:
        return {}
    splits = verify_json(data, str(directory / NAME))
    for name, split in splits.items():
        _check_split(split, f"{directory / NAME}: split {name!r}")
    return splits


def _check_split(split: object, source: str) -> None:
    """Raise `UnreadableData` unless `split` is a list of ids, or a part of [0, 1] and a seed."""
    parts: Split = split if isinstance(split, dict) else {}
    begin, end, ids = parts.get("from", -1), parts.get("to", -1), parts.get("ids")
    if isinstance(ids, list) and all(isinstance(id_, str) for id_ in ids):
        return
    if type(begin) not in (int, float) or type(end) not in (int, float) or not 0 <= begin < end <= 1:
        raise UnreadableData(f"{source} is {split!r}: neither a list of ids nor a part of 0 to 1")
    checked_integer(parts.get("seed"), f"{source}: the seed", None)


def put_splits(directory: Path, splits: Mapping[str, Split]) -> None:
    """Write the definitions of a data set's splits (training set, test set, ...) to the file `splits.json`."""
    put(directory / NAME, json.dumps(with_checksum(dict(splits))) + "\n")


def parse_splits(shares: Mapping[str, float | Iterable[Any]], seed: int) -> dict[str, Split]:
    """Convert a user's definition of splits to its stored form. A split is a share of the episodes, or a list of ids.

    >>> parse_splits({"train": 0.75, "test": 0.25}, seed=0)["test"]
    {'from': 0.75, 'to': 1.0, 'seed': 0}

    Raises:
        InvalidArgument: shares that add up to more than 1, a share of at most 0, or no names.
    """
    begin, splits = 0.0, dict[str, Split]()
    for name, share in shares.items():
        if not isinstance(name, str) or not name or name == "sum":
            raise InvalidArgument(f"{name!r} is no name of a split")
        if not isinstance(share, Real):
            splits[name] = {"ids": _checked_ids(name, share)}
            continue
        part = float(share)
        end = begin + part
        if not 0 < part <= 1 or end > 1 + 1e-9:
            raise InvalidArgument(f"shares {dict(shares)}: give numbers above 0 whose sum is at most 1")
        end = 1.0 if end > 1 - 1e-9 else end
        splits[name] = {"from": begin, "to": end, "seed": int(seed)}
        begin = end
    if not splits:
        raise InvalidArgument("a split needs a name: give {'train': 0.8, 'test': 0.2}")
    return splits


def _checked_ids(name: str, ids: object) -> list[str]:
    """Return the episode ids of a split as a sorted list of strings. Raise `InvalidArgument` if
    `ids` is not a collection."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise InvalidArgument(f"split {name!r}: {ids!r} is not a share or a list of ids; give 0.2, or ['3f2a', ...]")
    return sorted({str(id_) for id_ in ids})


def split_mask(name: str, splits: Mapping[str, Split], table: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a mask of the episodes that belong to the split `name`, bool [n], for a metadata table with n rows.

    Raises:
        UnknownKey: there is no such split; the message lists all splits.
    """
    if name not in splits:
        names = ", ".join(splits) or "none"
        raise UnknownKey(f"no split {name!r}; there are: {names}")
    split, ids = splits[name], _ids_for_splits(table)
    if "ids" in split:
        known = set(split["ids"])
        return np.array(
            [
                whole_id in known or str(episode_id) in known
                for whole_id, episode_id in zip(ids, table["id"], strict=True)
            ],
            bool,
        )
    drawn = np.array([_hash_to_share(id_, split["seed"]) for id_ in ids], np.float64)
    return (drawn >= split["from"]) & (drawn < split["to"])


def _ids_for_splits(table: Mapping[str, np.ndarray]) -> list[str]:
    """Return for each row of a metadata table the id by which the row is assigned to a split: the multi-agent episode's
    id, or else the episode's."""
    return [
        str(id_ if all_ is None else all_)
        for id_, all_ in zip(table["id"], table["multi_agent_episode_id"], strict=True)
    ]


def _hash_to_share(id_: str, seed: int) -> float:
    """Return a number in [0, 1) that is computed from an episode id and a seed by hashing, and so never changes."""
    digest = hashlib.blake2b(f"{seed}/{id_}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / (1 << 53)
