"""`SampledBatches`: batches that are sampled from episode files, as an iterable torch data set for a `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from connectors.tensors import NumpyToTensor
from episodes.batch import Batch
from episodes.columns import Columns
from episodes.storage.sampling import StepBatches
from episodes.storage.sampling.sampler import Sampler

__all__ = ["SampledBatches", "sampled_loader"]


class SampledBatches(IterableDataset[Any]):
    """Iterable torch data set that yields the remaining batches of a sampler's epoch, with numeric columns as tensors.

    In a `DataLoader` with W workers, worker w yields every W-th batch from the w-th on. The loader reads the workers in
    turn, so it yields the batches of the sampler in order, for any number of workers. Each worker opens the files
    itself.

    A copy of the sampler is used, so the position of the sampler does not change. `sampled_loader` advances it.

    Args:
        sampler: the sampler of a data set.
    """

    def __init__(self, sampler: Sampler) -> None:
        super().__init__()
        self.sampler = sampler
        self._to_tensors = NumpyToTensor()

    def __iter__(self) -> Iterator[Any]:
        """Yield the remaining batches of the sampler's epoch as tensors, in a `DataLoader` worker only this worker's
        share.
        """
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        sampler = self.sampler.copy()
        left = sampler.num_left
        for number in range(left):
            if number % step == first:
                yield self._as_tensors(sampler.draw())
            else:
                sampler.skip()

    def _as_tensors(self, batch: object) -> Any:
        """Return a batch with its numeric columns as tensors. Values that are not a `Batch` stay unchanged."""
        if not isinstance(batch, Batch):
            return batch
        return batch.with_columns(self._to_tensors.to_tensors(batch.to_dict()))

    def __len__(self) -> int:
        return self.sampler.num_left


def sampled_loader(sampler: Sampler, num_workers: int = 0, **of_loader: Any) -> Iterator[Any]:
    """Yield the remaining batches of a sampler's epoch as tensors, sampled in worker processes by torch's `DataLoader`.

    The sampler advances with each batch that is yielded. Its `state_dict` is therefore the position of the learner,
    even if the workers are ahead.

        for batch in sampled_loader(sampler, num_workers=4):
            learn(batch)

    Args:
        sampler: the sampler of a data set.
        num_workers: number of worker processes; 0 samples in this process.
        of_loader: other arguments of torch's `DataLoader`, such as `multiprocessing_context="spawn"`.
    """
    loader: Any = DataLoader(SampledBatches(sampler), batch_size=None, num_workers=num_workers, **of_loader)
    for batch in loader:
        sampler.skip()
        sampler.num_sampled += _num_learned(sampler, batch)
        yield sampler.with_origin(batch) if isinstance(batch, Batch) else batch


def _num_learned(sampler: Sampler, batch: object) -> int:
    """Return the number of steps in a batch that count in the loss, without padding and context steps."""
    if not isinstance(batch, Batch):
        return getattr(batch, "num_steps", 0)
    if isinstance(sampler.what, StepBatches):
        return len(batch)
    return int(batch[Columns.LOSS_MASK].sum()) if Columns.LOSS_MASK in batch.keys() else 0  # noqa: SIM118
