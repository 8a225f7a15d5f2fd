"""Benchmark of data-parallel PPO: gradient steps in one process, and in two processes with half of the minibatch
each.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from benchmarks.figure import Counted, Figure, Side, Size, at_least

NUM_OBSERVATIONS, HIDDEN = 64, (960, 960)  # 2 million weights in two networks
MINIBATCHES = (512, 2048)
STEPS = 12  # in one measurement


def gradient_steps(size: Size, num_processes: int, minibatch: int) -> Counted:
    """Measure the CPU seconds of a PPO gradient step in each of `num_processes` processes, which share a minibatch
    equally.
    """
    from torch import multiprocessing

    with TemporaryDirectory() as folder:
        arguments = (num_processes, minibatch // num_processes, size(STEPS), folder)
        multiprocessing.spawn(learn, arguments, nprocs=num_processes)
        seconds = [float((Path(folder) / str(rank)).read_text()) for rank in range(num_processes)]
    return Counted(max(seconds))


def learn(rank: int, num_processes: int, num_rows: int, num_steps: int, folder: str) -> None:
    """Take PPO gradient steps in the process number `rank`, and write the median of their CPU seconds to a file in
    `folder`.
    """
    import torch
    from gymnasium import spaces
    from torch import distributed

    from episode_learners import PPO, MLPPolicy, data_parallel

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    observations = spaces.Box(-1.0, 1.0, (NUM_OBSERVATIONS,))
    ppo = PPO(MLPPolicy(observations, spaces.Discrete(4), hidden_sizes=HIDDEN))
    if num_processes > 1:
        address = f"file://{folder}/meeting"
        distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=num_processes)
        data_parallel(ppo)
    batch: dict[str, Any] = {name: torch.randn(num_rows) for name in ("advantages", "value_targets")}
    batch |= {"obs": torch.randn(num_rows, NUM_OBSERVATIONS), "actions": torch.randint(4, (num_rows,))}
    batch["action_logp"] = torch.full((num_rows,), -1.4)
    times = []
    for _ in range(num_steps + 2):
        began = process_time()
        ppo.backward(batch, "policy")
        ppo.step("policy")
        times.append(process_time() - began)
    (Path(folder) / str(rank)).write_text(str(sorted(times[2:])[num_steps // 2]))
    if num_processes > 1:
        distributed.destroy_process_group()


FIGURES = tuple(
    Figure(
        f"data parallel/2 million weights, minibatch {minibatch}",
        Side("two processes", partial(gradient_steps, num_processes=2, minibatch=minibatch)),
        Side("one process", partial(gradient_steps, num_processes=1, minibatch=minibatch)),
        at_least(1.5),
        "ms",
    )
    for minibatch in MINIBATCHES
)
