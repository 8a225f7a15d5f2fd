"""`SampledBatches`: a data set's sampler as what torch's `DataLoader` takes, with workers that share its batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from connectors.tensors import NumpyToTensor
from episodes.batch import Batch
from episodes.storage.sampling import Sampler

__all__ = ["SampledBatches", "sampled_loader"]


class SampledBatches(IterableDataset[Any]):
    """The batches of what is left of a sampler's epoch, numeric columns as tensors.

    In a worker, those whose turn it is: of W workers, worker w has every W-th batch from the w-th on. A `DataLoader`
    asks them in turn, so its batches are those of the sampler, in its order, with any number of workers. Workers by
    fork and by spawn open the files themselves.

    A copy of the sampler draws, so the sampler itself does not move; `sampled_loader` counts what came.
    """

    def __init__(self, sampler: Sampler) -> None:
        super().__init__()
        self.sampler = sampler
        self._to_tensors = NumpyToTensor()

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        sampler = self.sampler.copy()
        left = sampler.num_left
        for number in range(left):
            if number % step == first:
                yield self._moved(sampler.draw())
            else:
                sampler.skip()

    def _moved(self, batch: Any) -> Any:
        if not isinstance(batch, Batch):
            return batch
        return batch.with_columns(self._to_tensors.to_tensors(batch.to_dict()))

    def __len__(self) -> int:
        return self.sampler.num_left


def sampled_loader(sampler: Sampler, num_workers: int = 0, **of_loader: Any) -> Iterator[Any]:
    """The batches that are left of a sampler's epoch, drawn by workers and handed over as tensors.

    The sampler moves on with each batch that is taken, so its `state_dict` says what was learned from, whatever the
    workers have drawn ahead.

        for batch in sampled_loader(sampler, num_workers=4):
            learn(batch)

    Args:
        of_loader: other arguments of torch's `DataLoader`, such as `multiprocessing_context="spawn"`.
    """
    loader: Any = DataLoader(SampledBatches(sampler), batch_size=None, num_workers=num_workers, **of_loader)
    for batch in loader:
        sampler.skip()
        yield sampler.with_origin(batch) if isinstance(batch, Batch) else batch
