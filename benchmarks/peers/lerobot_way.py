"""Sampling in the way of LeRobot: frames are read by number from a `datasets.Dataset`, and collated by a `DataLoader`.

It is written from the documentation of `LeRobotDataset`, without the package. A data set of layout v3 is a Hugging Face
table in torch's format with one row per frame. An item is a row. With `delta_timestamps`, each named key also has the
rows at these times relative to the item, selected and stacked. Times outside of the episode get the nearest row of the
episode, which `<key>_is_pad` marks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class FramesByNumber:
    """Map-style data set that returns frames of files in LeRobot's layout by frame number.

    Args:
        path: folder of the data set.
        cache: folder of the cache of `datasets`.
        deltas: for each key the relative numbers of the frames to return with an item: `delta_timestamps` times fps.
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
        """Return the frame number `index` as a dict of tensors, with the relative frames of each key in `deltas`
        stacked.
        """
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
    """Return an endless iterator over collated batches of `size` random frames."""
    from torch.utils.data import DataLoader, RandomSampler

    sampler = RandomSampler(frames, replacement=True, num_samples=1 << 40)
    return iter(DataLoader(frames, size, sampler=sampler))  # type: ignore[arg-type]
