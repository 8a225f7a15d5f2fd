"""Sampling in LeRobot's manner: items by number from a `datasets.Dataset`, collated by a `DataLoader`.

Written from what LeRobot documents of its `LeRobotDataset`, without the package: a data set of its layout v3 is a table
of Hugging Face, a row a frame, in torch's format. An item is a row. With `delta_timestamps`, each key that they name
has the rows at these times around it as well, selected and stacked, those out of the episode being the nearest one and
told by `<key>_is_pad`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class FramesByNumber:
    """Items of a data set in LeRobot's layout by frame number.

    Args:
        deltas: by key the frames around an item, as numbers: `delta_timestamps` times fps.
    """

    def __init__(self, path: Path, cache: Path, deltas: Mapping[str, Sequence[int]]) -> None:
        import datasets

        datasets.disable_progress_bars()
        files = [str(file) for file in sorted((path / "data").rglob("*.parquet"))]
        self._frames: Any = datasets.Dataset.from_parquet(files, cache_dir=str(cache)).with_format("torch")  # type: ignore[attr-defined]
        episodes = np.asarray(self._frames.with_format("numpy")["episode_index"][:])
        self._starts = np.searchsorted(episodes, np.arange(episodes[-1] + 1)).tolist()
        self._stops = [*self._starts[1:], len(episodes)]
        self._deltas = deltas

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: int) -> dict[str, Any]:
        import torch

        item = self._frames[index]
        episode = int(item["episode_index"])
        first, last = self._starts[episode], self._stops[episode] - 1
        for key, deltas in self._deltas.items():
            numbers = [index + delta for delta in deltas]
            rows = [min(max(number, first), last) for number in numbers]
            item[key] = torch.stack([*self._frames.select(rows)[key]])
            item[f"{key}_is_pad"] = torch.tensor([number != row for number, row in zip(numbers, rows, strict=True)])
        return item


def batches(frames: FramesByNumber, size: int) -> Any:
    """Return an endless iterator over batches of `size` random items, collated in this process."""
    from torch.utils.data import DataLoader, RandomSampler

    sampler = RandomSampler(frames, replacement=True, num_samples=1 << 40)
    return iter(DataLoader(frames, size, sampler=sampler))  # type: ignore[arg-type]
