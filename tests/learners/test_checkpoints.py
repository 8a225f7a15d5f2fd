"""Checkpoint files: which values they restore, and what happens with invalid content and interrupts."""

from __future__ import annotations

from pathlib import Path
from signal import Signals
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from episode_learners.trainers.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from episodes.errors import InvalidArgument, UnreadableData
from episodes.facts import Ending
from episodes.format_versions import CHECKPOINT
from tests.interrupts import Breaking


class _Point(NamedTuple):
    x: int


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": {"b": _Point(1)}}, "/a/b"),
        ({"a": [1, {2}]}, "/a/1"),
        ({"mask": np.ma.array([1, 2], mask=[True, False])}, "/mask"),
        ({"objects": np.array([None])}, "/objects"),
        ({_Point(1): 1}, "/_Point"),
        ({"signal": Signals.SIGINT}, "/signal"),
    ],
    ids=["namedtuple", "set", "masked array", "objects", "key", "enum"],
)
def test_save_checkpoint_names_place_of_unsupported_value(value: Any, place: str, tmp_path: Path):
    with pytest.raises(InvalidArgument, match=place):
        save_checkpoint(tmp_path / "x.pt", value)
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_restores_every_supported_value(tmp_path: Path):
    state = {
        "__array__": 1,
        "nested": {"__dict__": [np.arange(3)], "__array__": {"__array__": np.zeros((0, 2))}},
        ("agent", 1): [None, True, 1.5, "text", b"bytes", (1, (2,))],
        "scalars": [np.float64(0.5), np.int8(3), np.bool_(True), np.str_("x"), torch.Size([2, 3])],
        "arrays": [np.array(1.5), np.array(["a", "bc"]), np.zeros(2, [("x", "<i4")]), np.array(7, "M8[s]")],
        "tensor": torch.arange(3),
        "episodes": {"__ending__": [Ending.OPEN, Ending.BOTH], "__space__": Box(-1.0, 1.0, (2,))},
    }
    save_checkpoint(tmp_path / "x.pt", state)
    result = load_checkpoint(tmp_path / "x.pt")
    for part in (result, state):
        assert torch.equal(part.pop("tensor"), torch.arange(3))
    assert result.pop("scalars") == [0.5, 3, True, "x", (2, 3)]
    state.pop("scalars")
    np.testing.assert_equal(result, state)


@pytest.mark.parametrize(
    "content",
    [
        {"format": CHECKPOINT},
        {"format": True, "state": {}},
        {"format": "1", "state": {}},
        {"format": CHECKPOINT, "state": 7},
        {"format": CHECKPOINT, "state": {"a": {"__array__": 7}}},
        {"format": CHECKPOINT, "state": {"a": {"__array__": torch.zeros(3), "dtype": "no dtype", "shape": (3,)}}},
        {"format": CHECKPOINT, "state": {"a": {"__array__": torch.zeros(3), "dtype": "<f8", "shape": (1 << 40,)}}},
        {"format": CHECKPOINT, "state": {"a": {"__array__": torch.zeros(3), "dtype": "<f8", "shape": None}}},
        {"format": CHECKPOINT, "state": {"a": {"__ending__": 4}}},
        {"format": CHECKPOINT, "state": {"a": {"__space__": "nonsense"}}},
        {"format": CHECKPOINT, "state": {"a": {"__dict__": 7}}},
        {"format": CHECKPOINT, "state": {"a": {"__dict__": [1, 2]}}},
        [1, 2],
    ],
    ids=str,
)
def test_newest_checkpoint_skips_files_with_invalid_content(content: Any, tmp_path: Path):
    older, newer = tmp_path / "1.pt", tmp_path / "2.pt"
    save_checkpoint(older, {"at": 1})
    torch.save(content, newer)
    with pytest.raises(UnreadableData, match=r"2\.pt is not a"):
        load_checkpoint(newer)
    assert newest_checkpoint([older, newer]) == (older, {"at": 1})


def test_interrupted_save_checkpoint_raises_keyboard_interrupt(tmp_path: Path):
    path, places = tmp_path / "checkpoint.pt", iter(range(1, 10**6, 40))
    save_checkpoint(path, {"at": 0})
    state = {"weights": [torch.ones(1000) for _ in range(20)]}
    rooms = ("/episode_learners/trainers/checkpoint.py", "/torch/serialization.py")
    while Breaking(KeyboardInterrupt, next(places), rooms=rooms).run(lambda: save_checkpoint(path, state)):
        assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]
        assert load_checkpoint(path) == {"at": 0}
    assert next(places) > 200
    assert len(load_checkpoint(path)["weights"]) == 20
