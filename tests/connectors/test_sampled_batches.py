"""A data set's sampler behind torch's loader returns the same batches for any number of workers."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from connectors.sampled_batches import SampledBatches, sampled_loader
from episodes import EpisodePack
from episodes.storage import EpisodeDataset, EpisodeWriter

WHATS: list[dict[str, Any]] = [{"steps": 7}, {"windows": (5, 4)}]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> EpisodeDataset:
    path, lengths = tmp_path_factory.mktemp("data"), np.arange(1, 9)
    pack = EpisodePack(
        observations=np.arange(44.0), actions=np.arange(36), rewards=np.zeros(36, np.float32), lengths=lengths
    )
    with EpisodeWriter(path) as writer:
        writer.add(pack)
    return EpisodeDataset(path)


@pytest.mark.parametrize(
    ("num_workers", "options"),
    [(0, {}), (2, {}), pytest.param(1, {"multiprocessing_context": "spawn"}, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("sampling", WHATS, ids=str)
def test_workers_give_the_batches_of_the_sampler_in_its_order(
    dataset: EpisodeDataset, sampling: dict[str, Any], num_workers: int, options: dict[str, Any]
) -> None:
    sampler, inline = (dataset.sampler(**sampling, seed=0) for _ in range(2))
    inline.draw(), sampler.draw()
    state = sampler.state_dict()
    result = list(sampled_loader(sampler, num_workers, **options))
    expected_batches = list(inline)
    assert len(result) == len(expected_batches)
    for batch, expected_batch in zip(result, expected_batches, strict=True):
        assert all(isinstance(column, torch.Tensor) for column in batch.to_dict().values())
        assert batch.obs.dtype == torch.float32
        assert {k: v.tolist() for k, v in batch.items()} == {k: v.tolist() for k, v in expected_batch.items()}
        assert batch.origin.ids.tolist() == expected_batch.origin.ids.tolist()
    assert sampler.state_dict() == inline.state_dict() != state


def test_spawned_worker_opens_files_itself(dataset: EpisodeDataset) -> None:
    batches = SampledBatches(dataset.sampler(steps=7, seed=0))
    sent = pickle.dumps(batches)
    assert len(sent) < 4000
    restored_batches = [batch.obs.tolist() for batch in pickle.loads(sent)]
    assert restored_batches == [batch.obs.tolist() for batch in dataset.sampler(steps=7, seed=0)]


def test_abandoned_loader_advances_sampler_by_batches_taken(dataset: EpisodeDataset) -> None:
    sampler, inline = (dataset.sampler(steps=5, seed=0) for _ in range(2))
    for number, _ in enumerate(sampled_loader(sampler, 0)):
        inline.draw()
        if number == 2:
            break
    assert sampler.state_dict() == {**inline.state_dict(), "position": 15}
    assert [b.indices.tolist() for b in sampled_loader(sampler)] == [b.indices.tolist() for b in inline]


def test_collate_runs_in_the_sampling_process(dataset: EpisodeDataset) -> None:
    sampler = dataset.sampler(steps=12, order="stored", collate=summed)
    assert list(sampled_loader(sampler, 1)) == [66.0, 210.0, 354.0]


def summed(batch: Any) -> float:
    return float(batch.actions.sum())
