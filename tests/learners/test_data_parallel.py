"""Data-parallel learning: two processes equal one process with the doubled batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributed, multiprocessing

from episode_learners import (
    BC,
    DQN,
    PPO,
    BCConfig,
    DQNConfig,
    MLPPolicy,
    MultiAgentAlgorithm,
    PPOConfig,
    QPolicy,
    data_parallel,
)
from episode_learners.algorithms.flat_optimizer import adam_optimizer
from episodes.errors import InvalidArgument, StateMismatch
from episodes.single_agent import SingleAgentEpisode

OBSERVATIONS, TWO = spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2)
EPISODES, LENGTH, UPDATES = 4, 6, 3  # in each process
NAMES = ("BC", "PPO", "DQN")


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


def episodes(part: int, update: int, module_id: str | None = None) -> list[SingleAgentEpisode]:
    rng = np.random.default_rng((part, update))
    return [
        SingleAgentEpisode.from_arrays(
            rng.normal(size=(LENGTH + 1, 3)).astype(np.float32),
            rng.integers(0, 2, LENGTH),
            rng.normal(size=LENGTH).astype(np.float32),
            terminated=True,
            module_id=module_id,
            extra_model_outputs={"action_logp": np.full(LENGTH, np.log(0.5), np.float32)},
        )
        for _ in range(EPISODES)
    ]


def process(rank: int, folder: str) -> None:
    """Learn in one of two processes, and write the weights, also after changes, and the errors."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    for name in NAMES:
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
    torch.save([changed(*case, rank) for case in CASES], f"{folder}/changes-{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the results of two processes."""
    path = tmp_path_factory.mktemp("processes")
    multiprocessing.spawn(process, (str(path),), nprocs=2)
    return path


def test_two_processes_equal_one_with_the_doubled_batch(folder: Path):
    for name in NAMES:
        algorithm = made(name, 2)
        for update in range(UPDATES):
            algorithm.update([*episodes(0, update), *episodes(1, update)])
        vectors = [torch.load(folder / f"{name}-{rank}.pt") for rank in range(2)]
        for ours, first, second in zip(algorithm.optimizers.values(), *vectors, strict=True):
            assert torch.equal(first, second)
            torch.testing.assert_close(first, ours.vector, rtol=0, atol=1e-6)
    for rank in range(2):
        before, after = (torch.load(folder / f"DQN-{rank}{end}.pt") for end in ("", "-after"))
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


# --- changes after data_parallel -------------------------------------------------------------------------------------

MODULES = ("a", "b")
Change = Callable[[Any], object]  # of one process's algorithm


def agents(*module_ids: str) -> MultiAgentAlgorithm:
    return MultiAgentAlgorithm({module_id: made("PPO", 1) for module_id in module_ids})


def learner(algorithm: Any) -> Any:
    """Return the algorithm that a change is about: module "b" of several."""
    return algorithm["b"] if isinstance(algorithm, MultiAgentAlgorithm) else algorithm


def replace_optimizer(algorithm: Any) -> None:
    ours = learner(algorithm)
    ours.optimizers["policy"] = adam_optimizer(ours.policy.parameters(), ours.config)


def load_state(algorithm: Any) -> None:
    other = agents(*MODULES) if isinstance(algorithm, MultiAgentAlgorithm) else made("PPO", 1)
    other.update(data(other, 0, 7))
    algorithm.load_state_dict(other.state_dict())


def freeze_parameters(algorithm: Any) -> None:
    next(learner(algorithm).policy.parameters()).requires_grad_(False)


def change_weights(algorithm: Any) -> None:
    with torch.no_grad():
        next(learner(algorithm).policy.parameters()).mul_(1.01)


def change_learning_rate(algorithm: Any) -> None:
    learner(algorithm).set_learning_rates({"policy": 0.01})


def replace_module(algorithm: Any) -> None:
    algorithm.remove("b")
    algorithm.add("b", made("PPO", 1))


def add_module(algorithm: Any) -> None:
    new = made("PPO", 1)
    with torch.no_grad():
        next(new.policy.parameters()).add_(distributed.get_rank())
    algorithm.add("c", new)


CHANGES: dict[str, Change] = {
    function.__name__: function
    for function in (replace_optimizer, load_state, freeze_parameters, change_weights, change_learning_rate)
} | {"learn_from_more_rows": lambda algorithm: vars(algorithm).update(repeats=2)}
CHANGES_OF_MODULES: dict[str, Change] = {
    "add_module": add_module,
    "add_acting_module": lambda algorithm: algorithm.add("d", made("PPO", 1).policy),
    "replace_module": replace_module,
    "remove_module": lambda algorithm: algorithm.remove("b"),
    "freeze_module": lambda algorithm: algorithm.freeze("b"),
    "learn_from_fewer_modules": lambda algorithm: vars(algorithm).update(fewer=True),
}
CASES = [
    (kind, change, where)
    for kind, changes in (("one policy", CHANGES), ("modules", CHANGES | CHANGES_OF_MODULES))
    for change in changes
    for where in ("both", "first", "second")
]


def data(algorithm: Any, rank: int, update: int) -> list[SingleAgentEpisode]:
    """Return the episodes of one process, for each trained module of `algorithm`."""
    if not isinstance(algorithm, MultiAgentAlgorithm):
        return episodes(rank, update) * getattr(algorithm, "repeats", 1)
    module_ids = algorithm.train_ids[: 1 if hasattr(algorithm, "fewer") else None]
    return [
        episode
        for module_id in module_ids
        for episode in episodes(rank, update, module_id) * (getattr(algorithm, "repeats", 1) if module_id == "b" else 1)
    ]


def weights_of(algorithm: Any) -> list[torch.Tensor]:
    return [value.clone() for value in algorithm.parameters()]


def changed(kind: str, change: str, where: str, rank: int) -> tuple[list[torch.Tensor], str]:
    """Return the weights of one process after a change and two updates, and the error. It changes no weights."""
    algorithm = made("PPO", 1) if kind == "one policy" else agents(*MODULES)
    data_parallel(algorithm)
    algorithm.update(data(algorithm, rank, 0))
    before = weights_of(algorithm)
    try:
        if where in ("both", ("first", "second")[rank]):
            (CHANGES | CHANGES_OF_MODULES)[change](algorithm)
            before = weights_of(algorithm)
        for update in (1, 2):
            algorithm.update(data(algorithm, rank, update))
    except StateMismatch as error:
        assert all(map(torch.equal, before, weights_of(algorithm)))
        return before, str(error)
    return weights_of(algorithm), ""


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_changed_copies_stay_equal_or_are_an_error_in_all_processes(case: tuple[str, str, str], folder: Path):
    results = [torch.load(folder / f"changes-{rank}.pt")[CASES.index(case)] for rank in range(2)]
    (first, first_error), (second, second_error) = results
    assert first_error == second_error
    if case[-1] == "both":
        assert not first_error
        assert all(map(torch.equal, first, second))
    else:
        assert "make the same changes" in first_error
