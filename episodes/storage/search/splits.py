"""Named parts of a data set, such as a training set and a test set, which are stable when the data set grows.

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

from episodes.errors import InvalidArgument, UnknownKey
from episodes.storage.checksums import verify_json, with_checksum
from episodes.storage.files import put, read_file

NAME = "splits.json"

Split = dict[str, Any]  # {"from", "to", "seed"} or {"ids"}


def read_splits(directory: Path) -> dict[str, Split]:
    """Return the definitions of a data set's splits by name. Raise `UnreadableData` if the file is damaged."""
    try:
        data = read_file(directory / NAME)
    except FileNotFoundError:
        return {}
    return verify_json(data, str(directory / NAME))


def put_splits(directory: Path, splits: Mapping[str, Split]) -> None:
    """Write the definitions of all splits (training set, test set, ...) of a data set to `splits.json`."""
    put(directory / NAME, json.dumps(with_checksum(dict(splits))) + "\n")


def parse_splits(shares: Mapping[str, float | Iterable[Any]], seed: int) -> dict[str, Split]:
    """Convert split definitions of a user, shares of the episodes or lists of ids by split name, to their stored form.

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
            splits[name] = {"ids": _ids(name, share)}
            continue
        part = float(share)
        end = begin + part
        if not 0 < part <= 1 or end > 1 + 1e-9:
            raise InvalidArgument(f"shares {dict(shares)}: give numbers above 0 whose sum is at most 1")
        end = 1.0 if end > 1 - 1e-9 else end
        splits[name] = {"from": begin, "to": end, "seed": int(seed)}
        begin = end
    if not splits:
        raise InvalidArgument("there is no split without a name: give {'train': 0.8, 'test': 0.2}")
    return splits


def _ids(name: str, ids: Any) -> list[str]:
    """Return a split's episode ids as sorted strings. Raise `InvalidArgument` if they are no collection."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise InvalidArgument(f"split {name!r}: {ids!r} is no share and no list of ids; give 0.2, or ['3f2a', ...]")
    return sorted({str(id_) for id_ in ids})


def split_mask(name: str, splits: Mapping[str, Split], table: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return which episodes of a metadata table belong to the split `name`, bool [n].

    Raises:
        UnknownKey: there is no such split; the message lists all splits.
    """
    if name not in splits:
        names = ", ".join(splits) or "none"
        raise UnknownKey(f"no split {name!r}; there are: {names}")
    split, ids = splits[name], _whole_ids(table)
    if "ids" in split:
        known = set(split["ids"])
        return np.array(
            [
                whole_id in known or str(episode_id) in known
                for whole_id, episode_id in zip(ids, table["id"], strict=True)
            ],
            bool,
        )
    drawn = np.array([_draw(id_, split["seed"]) for id_ in ids], np.float64)
    return (drawn >= split["from"]) & (drawn < split["to"])


def _whole_ids(table: Mapping[str, np.ndarray]) -> list[str]:
    """Return for each chunk the id of its multi-agent episode, or of its episode if there is only one agent."""
    return [
        str(id_ if all_ is None else all_)
        for id_, all_ in zip(table["id"], table["multi_agent_episode_id"], strict=True)
    ]


def _draw(id_: str, seed: int) -> float:
    """Return a number in [0, 1) that depends only on an episode id and a seed, by hashing both."""
    digest = hashlib.blake2b(f"{seed}/{id_}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / (1 << 53)
