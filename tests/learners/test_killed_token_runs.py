"""`TokenGRPO` in a process that is killed continues from its checkpoint exactly like an uninterrupted run.

The child process is `python -m tests.learners.test_killed_token_runs FOLDER`. It imports everything once and forks for
each run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from episode_learners import TokenGRPO, TokenGRPOConfig, linear_decay
from episode_learners.trainers import checkpoint
from episode_learners.trainers.checkpoint import load_checkpoint, save_checkpoint
from examples.tool_call import GROUP_SIZE, NUM_KEYS, Question, Transformer, play

ROOT = Path(__file__).parents[2]
UPDATES = 5
PLACES = ("update", "checkpoint")  # where a run is killed
KILLED_IN = 4  # the update in which a run is killed; the newest checkpoint is the one after the update before it


class _KilledTokenGRPO(TokenGRPO):
    """`TokenGRPO` that kills its process between two gradient steps of an update."""

    num_calls = 0

    def backward(self, *args: Any, **options: Any) -> Any:
        if self.num_updates == KILLED_IN - 1:
            self.num_calls += 1
            if self.num_calls == 3:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().backward(*args, **options)


class _KillsInFsync:
    """Replacement of the module `os` whose `fsync` halves the file and kills the process."""

    def fsync(self, descriptor: int) -> None:
        os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)


def run(path: Path | None, place: str = "") -> tuple[TokenGRPO, list[dict[str, float]], int]:
    """Train, from the checkpoint `path` if it exists. Return the algorithm, the metrics of each update of this process
    and the number of updates in the checkpoint that was read."""
    torch.set_num_threads(1)
    has_checkpoint = path is not None and path.exists()
    torch.manual_seed(has_checkpoint)  # other first weights, which the checkpoint replaces
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    config = TokenGRPOConfig(learning_rate=1e-3, num_epochs=2, num_minibatches=2, layout="padded", kl_coefficient=0.03)
    model = Transformer(width=16)
    cls = _KilledTokenGRPO if place == "update" else TokenGRPO
    algorithm = cls(model, config, reference=deepcopy(model), scheduler=linear_decay(2 * UPDATES), seed=0)
    first = 0
    if path is not None and has_checkpoint:
        state = load_checkpoint(path)
        algorithm.load_state_dict(state["algorithm"])
        rng.bit_generator.state = state["rng"]
        generator.set_state(state["generator"])
        first = algorithm.num_updates
    metrics = []
    for update in range(first, UPDATES):
        asked = [Question(*rng.integers(0, NUM_KEYS, 2).tolist()) for _ in range(4)]
        questions = [(group, question) for group, question in enumerate(asked) for _ in range(GROUP_SIZE)]
        pack, _ = play(algorithm.policy.model, questions, generator, version=update)
        metrics.append(algorithm.update(pack))
        if path is not None:
            if place == "checkpoint" and algorithm.num_updates == KILLED_IN:
                checkpoint.os = _KillsInFsync()  # type: ignore[attr-defined]
            state = {"rng": rng.bit_generator.state, "generator": generator.get_state()}
            save_checkpoint(path, {"algorithm": algorithm.state_dict(), **state})
    return algorithm, metrics, first


def test_killed_token_grpo_resumes_to_the_weights_of_an_uninterrupted_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.learners.test_killed_token_runs", str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    num_threads = torch.get_num_threads()
    try:
        whole, metrics, _ = run(None)
        killed = [run(tmp_path / f"{place}.pt") for place in PLACES]
    finally:
        torch.set_num_threads(num_threads)
    assert len({values["loss"] for values in metrics}) == UPDATES
    for resumed, later_metrics, first in killed:
        assert first == KILLED_IN - 1
        assert later_metrics == metrics[first:]
        assert all(map(torch.equal, whole.parameters(), resumed.parameters()))


if __name__ == "__main__":
    torch.optim.SGD([torch.zeros(1)])  # torch imports modules for its first optimizer: here, and not in each child
    for place in PLACES:
        child = os.fork()
        if not child:
            run(Path(sys.argv[1]) / f"{place}.pt", place)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, (place, status)
