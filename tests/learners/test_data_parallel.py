"""Data-parallel learning: two processes equal one process with the doubled batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributed, multiprocessing

from episode_learners import BC, DQN, PPO, BCConfig, DQNConfig, MLPPolicy, PPOConfig, QPolicy, data_parallel
from episodes.errors import InvalidArgument
from episodes.single_agent import SingleAgentEpisode

OBSERVATIONS, TWO = spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2)
EPISODES, LENGTH, UPDATES = 4, 6, 3  # in each process


def made(name: str, share: int) -> Any:
    """Return an algorithm whose minibatch is a whole batch of `share` processes. All have the same weights."""
    options: dict[str, Any] = {"hidden_sizes": (8,), "generator": torch.Generator().manual_seed(0)}
    size = EPISODES * LENGTH * share
    if name == "BC":
        return BC(MLPPolicy(OBSERVATIONS, TWO, **options), BCConfig(minibatch_size=size, max_gradient_norm=0.1))
    if name == "PPO":
        config = PPOConfig(minibatch_size=size, num_epochs=2, standardize_advantages=False)
        return PPO(MLPPolicy(OBSERVATIONS, TWO, **options), config)
    return DQN(QPolicy(OBSERVATIONS, TWO, **options), DQNConfig(batch_size=size, target_every=2))


def episodes(part: int, update: int) -> list[SingleAgentEpisode]:
    rng = np.random.default_rng((part, update))
    return [
        SingleAgentEpisode.from_arrays(
            rng.normal(size=(LENGTH + 1, 3)).astype(np.float32),
            rng.integers(0, 2, LENGTH),
            rng.normal(size=LENGTH).astype(np.float32),
            terminated=True,
            extra_model_outputs={"action_logp": np.full(LENGTH, np.log(0.5), np.float32)},
        )
        for _ in range(EPISODES)
    ]


def process(rank: int, names: list[str], folder: str) -> None:
    """Learn in one of two processes, and write the weights."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    for name in names:
        algorithm = made(name, 1)
        with torch.no_grad():
            for parameter in algorithm.parameters():
                parameter.add_(rank)  # the first process's weights must arrive in the second
        data_parallel(algorithm)
        for update in range(UPDATES):
            algorithm.update(episodes(rank, update))
        torch.save([optimizer.vector for optimizer in algorithm.optimizers.values()], f"{folder}/{name}-{rank}.pt")
        broken = episodes(rank, UPDATES)
        if rank == 1:
            broken[0] = broken[0].slice(slice(None))
            broken[0].set_rewards(new_data=[float("nan")], at_indices=[0])
        if name == "DQN":  # all processes roll back if one of them has a loss that is not finite
            with pytest.raises(InvalidArgument, match="not finite"):
                algorithm.update(broken)
            torch.save(
                [optimizer.vector for optimizer in algorithm.optimizers.values()], f"{folder}/{name}-{rank}-after.pt"
            )
    distributed.destroy_process_group()


def test_two_processes_equal_one_with_the_doubled_batch(tmp_path: Path):
    names = ["BC", "PPO", "DQN"]
    multiprocessing.spawn(process, (names, str(tmp_path)), nprocs=2)
    for name in names:
        algorithm = made(name, 2)
        for update in range(UPDATES):
            algorithm.update([*episodes(0, update), *episodes(1, update)])
        vectors = [torch.load(tmp_path / f"{name}-{rank}.pt") for rank in range(2)]
        for ours, first, second in zip(algorithm.optimizers.values(), *vectors, strict=True):
            assert torch.equal(first, second)
            torch.testing.assert_close(first, ours.vector, rtol=0, atol=1e-6)
    for rank in range(2):
        before, after = (torch.load(tmp_path / f"DQN-{rank}{end}.pt") for end in ("", "-after"))
        assert all(map(torch.equal, before, after))


def test_data_parallel_needs_a_process_group_and_no_max_kl(tmp_path: Path):
    with pytest.raises(InvalidArgument, match="init_process_group"):
        data_parallel(made("BC", 1))
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        with pytest.raises(InvalidArgument, match="max_kl"):
            data_parallel(PPO(MLPPolicy(OBSERVATIONS, TWO), PPOConfig(max_kl=0.1)))
    finally:
        distributed.destroy_process_group()
