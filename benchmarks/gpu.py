"""Benchmarks on a device: rollouts of a torch simulator, PPO, train batches, copies, and token sequences.

`python -m benchmarks.gpu [--device cpu] [--small] [--minutes 8] [--json FILE]` runs the tests marked `gpu`, then all
benchmarks, prints tables, and writes JSON. On the CPU it checks the script: the required ratios are those of a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import table
from benchmarks.batches import our_batch
from benchmarks.connectors import recurrent_batch
from benchmarks.data import Steps, train_steps
from benchmarks.device import finish, usable_device
from benchmarks.figure import Counted, Figure, NotHere, Side, Size, Timed, at_least, at_most, limit
from benchmarks.idle_process import hush, settle_allocator
from benchmarks.measure import Effort, Row, failure_row, measure
from benchmarks.operations import count_operations
from benchmarks.peers import RLLIB, RSL_RL, pipelines, robots

ENVS, ROWS, EPOCHS, MINIBATCHES = 4096, 24, 5, 4
FRAMES, FRAME = 4096, (84, 84)
STEPS = 64_000  # of a train batch
SEQUENCES, LENGTH, VOCABULARY, WIDTH = 64, 256, 4096, 256  # of token episodes
EFFORT, SMALL_EFFORT = Effort(rounds=7, seconds=0.02), Effort(rounds=3, seconds=0.0)
SMALL = Size(most=64)


# --- PPO on a simulator ---------------------------------------------------------------------------------------------


def our_ppo(size: Size, device: str) -> tuple[Any, Any]:
    """Return functions that sample a rollout of the robot, and that sample and learn from it."""
    from benchmarks.torch_robot import ACTION_SPACE, OBSERVATION_SPACE, RobotPolicy, TorchRobot
    from connectors import RolloutBuffer
    from episode_learners import PPO, PPOConfig
    from episode_runners.environments import TorchVectorEnv, fill_rollout

    simulator = TorchRobot(size(ENVS), usable_device(device))
    env, policy = TorchVectorEnv(simulator, OBSERVATION_SPACE, ACTION_SPACE), RobotPolicy().to(device)
    width = policy.observation_space.shape[0]
    rows, num_actions = size(ROWS), ACTION_SPACE.shape[0]
    buffer = RolloutBuffer(simulator.num_envs, rows, width, num_actions, device)
    minibatch_size = simulator.num_envs * rows // MINIBATCHES
    ppo = PPO(policy, PPOConfig(num_epochs=EPOCHS, minibatch_size=minibatch_size))

    def sample() -> None:
        fill_rollout(env, policy, buffer.start_rollout())
        buffer.discard()
        finish(device)

    def iterate() -> None:
        buffer.add(fill_rollout(env, policy, buffer.start_rollout()))
        ppo.update_from_rollout(buffer.get(flatten=False))
        finish(device)

    return sample, iterate


def bare_ppo(size: Size, device: str) -> tuple[Any, Any]:
    """Return functions of a plain loop that sample a rollout of the robot, and that sample and learn from it."""
    from benchmarks.loops.device_ppo import DevicePPO
    from benchmarks.torch_robot import RobotPolicy, TorchRobot

    simulator, policy = TorchRobot(size(ENVS), usable_device(device)), RobotPolicy().to(device)
    loop = DevicePPO(
        simulator,
        policy.actor,
        policy.critic,
        policy.log_std,
        rows=size(ROWS),
        epochs=EPOCHS,
        num_minibatches=MINIBATCHES,
    )

    def sample() -> None:
        loop.rollout()
        finish(device)

    def iterate() -> None:
        loop.iterate()
        finish(device)

    return sample, iterate


def our_rollout(size: Size, device: str) -> Timed:
    """Time `fill_rollout`: 24 steps of 4,096 environments."""
    return Timed(our_ppo(size, device)[0])


def bare_rollout(size: Size, device: str) -> Timed:
    """Time the rollout of the plain loop."""
    return Timed(bare_ppo(size, device)[0])


def our_iteration(size: Size, device: str) -> Timed:
    """Time a rollout, and PPO's five epochs of four minibatches on it."""
    return Timed(our_ppo(size, device)[1])


def bare_iteration(size: Size, device: str) -> Timed:
    """Time the same iteration of the plain loop."""
    return Timed(bare_ppo(size, device)[1])


def rsl_rl_iteration(size: Size, device: str) -> Timed:
    """Time the same iteration of rsl_rl."""
    from benchmarks.torch_robot import TorchRobot

    simulator = TorchRobot(size(ENVS), usable_device(device))
    return robots.ppo_iteration(simulator, rows=size(ROWS), epochs=EPOCHS, num_minibatches=MINIBATCHES)


def waits_of_rollout(size: Size, device: str) -> Counted:
    """Count the operations of a rollout for which the host waits."""
    sample, _ = our_ppo(size, device)
    sample()
    return Counted(count_operations(sample).num_waits)


# --- copies ---------------------------------------------------------------------------------------------------------


def columns(rows: int) -> dict[str, np.ndarray]:
    """Return the columns of a random train batch with `rows` frames [84, 84] as observations."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.integers(0, 256, (rows, *FRAME), np.uint8),
        "actions": rng.integers(0, 6, rows),
        "action_dist_inputs": rng.standard_normal((rows, 6), np.float32),
        **{key: rng.standard_normal(rows, np.float32) for key in ("rewards", "action_logp", "advantages")},
    }


def staged_copy(size: Size, device: str) -> Timed:
    """Time copying a train batch to the device with `NumpyToTensor`, per byte."""
    from connectors import NumpyToTensor

    piece = NumpyToTensor(device=usable_device(device))
    batch = columns(size(FRAMES))

    def run() -> None:
        piece(batch=dict(batch))
        finish(device)

    return Timed(run, sum(column.nbytes for column in batch.values()))


def pinned_copy(size: Size, device: str) -> Timed:
    """Time copying the same number of bytes from ordinary memory to a pinned buffer and then to the device, per
    byte. On the CPU the buffer is not pinned.
    """
    place = usable_device(device)
    num_bytes = sum(column.nbytes for column in columns(size(FRAMES)).values())
    source = torch.zeros(num_bytes, dtype=torch.uint8)
    pinned = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=place.type == "cuda")
    target = torch.empty(num_bytes, dtype=torch.uint8, device=place)

    def run() -> None:
        pinned.copy_(source)
        target.copy_(pinned, non_blocking=True)
        finish(device)

    return Timed(run, num_bytes)


def update_alone(size: Size, device: str) -> Timed:
    """Time gradient steps of PPO on a train batch that is on the device."""
    return Timed(_update(size, device))


def update_beside_copy(size: Size, device: str) -> Timed:
    """Time the same gradient steps while `Prefetch` copies the next batch of frames."""
    from connectors.prefetch import Prefetch
    from episodes import Batch

    update, batch = _update(size, device), Batch(columns(size(FRAMES) // 4))
    batches = Prefetch(lambda: batch, device=device, depth=1)

    def run() -> None:
        next(batches)
        update()

    return Timed(run)


def _update(size: Size, device: str) -> Any:
    """Return a function that takes gradient steps on random columns on the device."""
    from benchmarks.torch_robot import RobotPolicy
    from episode_learners import PPO, PPOConfig

    policy, count = RobotPolicy().to(usable_device(device)), size(ENVS) * size(ROWS)
    ppo = PPO(policy, PPOConfig(num_epochs=EPOCHS, minibatch_size=count // MINIBATCHES))
    num_obs, num_actions = policy.observation_space.shape[0], policy.action_space.shape[0]  # type: ignore[index]
    batch = {
        "obs": torch.randn(count, num_obs, device=device),
        "actions": torch.randn(count, num_actions, device=device),
        **{name: torch.randn(count, device=device) for name in ("action_logp", "advantages", "value_targets")},
    }

    def update() -> None:
        ppo.learn(batch)
        finish(device)

    return update


# --- train batches --------------------------------------------------------------------------------------------------


def many_steps(size: Size) -> list[Steps]:
    """Return the data of 600 episodes with 64,000 steps in total. The last episode has not ended."""
    return train_steps(size(STEPS), size(600) if size.most is None else 3, ("action_dist_inputs", "action_logp"))


def our_train_batch(size: Size, device: str, *, recurrent: bool = False) -> Timed:
    """Time this library's train batch of 64,000 steps with advantages, with tensors on the device."""
    place = usable_device(device)
    if recurrent:
        return recurrent_batch(size, make_steps=many_steps, device=place)
    return our_batch(size, packed=False, gae=True, make_steps=many_steps, device=place)


def rllib_train_batch(size: Size, device: str, *, recurrent: bool = False) -> Timed:
    """Time RLlib's train batch of the same episodes."""
    place = usable_device(device)
    return pipelines.train_batch(size, make_steps=many_steps, gae=True, lstm=recurrent, device=place)


# --- tokens ---------------------------------------------------------------------------------------------------------


class SmallTransformer(nn.Module):
    """Causal transformer with two layers over packed sequences of one length [S * L], in bfloat16."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.embedding, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(length, WIDTH)
        layer = partial(nn.TransformerEncoderLayer, WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.ModuleList(layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.to(torch.bfloat16)

    def forward(self, batch: Any) -> Tensor:
        ids = batch["input_ids"].long().view(-1, self.length)
        hidden = self.embedding(ids) + self.positions.weight
        mask = torch.ones(self.length, self.length, dtype=torch.bool, device=ids.device).triu(1)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden).flatten(0, 1)


def token_episodes(size: Size) -> Any:
    """Return a pack of conversations of one turn, all of one length."""
    from episodes import EpisodePack
    from episodes.tokens import Conversation

    rng, talks, length = np.random.default_rng(0), [], size(LENGTH)
    for k in range(8 * max(size(SEQUENCES) // 8, 1)):
        talk = Conversation(f"e{k}", outputs={"logp": "f4"}, group=k // 8)
        talk.begin(rng.integers(0, VOCABULARY, length // 4))
        ids = rng.integers(0, VOCABULARY, length - length // 4)
        logp = np.full(len(ids), -np.log(VOCABULARY), np.float32)
        talk.turn(ids, (), float(rng.random()), terminated=True, logp=logp)
        talks.append(talk.episode)
    return EpisodePack.from_episodes(talks)


def our_token_step(size: Size, device: str) -> Timed:
    """Time a gradient step of `TokenGRPO` on a packed batch that is on the device."""
    from episode_learners import TokenGRPO, TokenGRPOConfig

    algorithm = TokenGRPO(SmallTransformer(size(LENGTH)).to(usable_device(device)), TokenGRPOConfig())
    batch = algorithm.preprocess(token_episodes(size))

    def run() -> None:
        algorithm.learn(batch)
        finish(device)

    return Timed(run)


def plain_token_step(size: Size, device: str) -> Timed:
    """Time the same step, written with torch only: forward pass, clipped loss, backward pass, Adam."""
    from episode_learners import TokenGRPO, TokenGRPOConfig

    model = SmallTransformer(size(LENGTH)).to(usable_device(device))
    batch = TokenGRPO(model, TokenGRPOConfig()).preprocess(token_episodes(size))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6, fused=True)
    mask = batch["loss_mask"].bool()

    def run() -> None:
        logits = model(batch)[mask].float()
        log_probs = -functional.cross_entropy(logits, batch["labels"][mask].long(), reduction="none")
        ratio, gain = (log_probs - batch["action_logp"][mask]).exp(), batch["advantages"][mask]
        loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        finish(device)

    return Timed(run)


# --- all of them ----------------------------------------------------------------------------------------------------


def figures(device: str) -> tuple[Figure, ...]:
    """Return all benchmarks on a device, "cuda" or "cpu"."""

    def side(name: str, prepare: Any, *needs: str, **options: Any) -> Side:
        return Side(name, partial(prepare, device=device, **options), needs)

    batch, rllib = partial(side, "ours", our_train_batch), partial(side, "RLlib", rllib_train_batch, *RLLIB)
    iteration = side("ours", our_iteration)
    return (
        Figure("gpu/PPO rsl_rl", iteration, side("rsl_rl", rsl_rl_iteration, *RSL_RL), at_most(0.9), "ms"),
        Figure("gpu/PPO bare loop", iteration, side("bare loop", bare_iteration), at_most(1.15), "ms"),
        Figure("gpu/rollout", side("ours", our_rollout), side("bare loop", bare_rollout), at_most(1.1), "ms"),
        Figure("gpu/waits of a rollout", side("ours", waits_of_rollout), limit("limit", 1), at_most(1), "operations"),
        Figure("gpu/copy", side("ours", staged_copy), side("pinned copy", pinned_copy), at_least(0.9), "GB/s"),
        Figure(
            "gpu/update beside a copy",
            side("ours", update_beside_copy),
            side("update alone", update_alone),
            at_most(1.05),
            "ms",
        ),
        Figure("gpu/train batch", batch(), rllib(), at_least(20), "ms"),
        Figure("gpu/recurrent train batch", batch(recurrent=True), rllib(recurrent=True), at_least(20), "ms"),
        Figure("gpu/TokenGRPO", side("ours", our_token_step), side("torch", plain_token_step), at_most(1.1), "ms"),
    )


FIGURES = figures("cuda")


def main(arguments: list[str] | None = None) -> int:
    """Run the tests marked `gpu` and all benchmarks on a device, print the results and write them as JSON. Return 1 if
    a test or a benchmark failed, 2 if the device is not here, else 0.
    """
    options = parse_arguments(arguments)
    try:
        place = usable_device(options.device)
    except NotHere as reason:
        print(f"{reason}: --device cpu checks the script", file=sys.stderr)
        return 2
    deadline = time.monotonic() + 60 * options.minutes
    on_gpu = place.type == "cuda"
    tests = run_gpu_tests(60 * options.minutes / 2) if on_gpu else "tests marked gpu need a GPU"
    print(tests, flush=True)
    hush()
    settle_allocator()
    if not on_gpu:
        torch.set_num_threads(1)
    size, effort = (SMALL, SMALL_EFFORT) if options.small else (Size(), EFFORT)
    rows = run_figures(figures(options.device), size, effort, deadline)
    name = torch.cuda.get_device_name(place) if on_gpu else "CPU"
    document = {
        "device": name,
        "small": options.small,
        "tests": tests,
        "machine": table.machine(),
        "rows": [table.as_json(row) for row in rows],
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(document, indent=2) + "\n")
    print(f"{name}: written to {options.json}")
    failed = any(row.ours is None and "Error" in row.note for row in rows)
    return int(failed or (on_gpu and not tests.startswith("passed")))


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Return the parsed command-line arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda (the default), cuda:1, or cpu to check the script")
    parser.add_argument("--small", action="store_true", help="small sizes and three rounds, to check the script")
    parser.add_argument("--minutes", type=float, default=8.0, help="time for all; rows that are left over say so")
    parser.add_argument("--json", type=Path, default=Path("build/gpu.json"), metavar="FILE", help="where to write")
    return parser.parse_args(arguments)


def run_gpu_tests(seconds: float) -> str:
    """Run the tests marked `gpu` in a process of its own, and return how they went, beginning with "passed" if all
    did.
    """
    marked = [str(path) for path in sorted(Path("tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *marked]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"tests marked gpu: not done after {seconds:.0f} s"
    lines = answer.stdout.strip().splitlines() or [answer.stderr.strip()]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    verdict = "passed" if answer.returncode == 0 else "not passed"
    return "\n".join([f"{verdict}: {lines[-1]}", *failed])


def run_figures(chosen: tuple[Figure, ...], size: Size, effort: Effort, deadline: float) -> list[Row]:
    """Measure benchmarks one after another, print each result, and return all. After `deadline`, a reading of
    `time.monotonic`, rows have a note instead.
    """
    width = table.name_width(chosen)
    print(table.header(width), flush=True)
    rows = []
    for figure in chosen:
        try:
            late = time.monotonic() > deadline
            row = Row(figure, note="no time left") if late else measure(figure, effort, size)
        except Exception as error:
            row = failure_row(figure, error)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        rows.append(row)
        print(table.format_row(row, width), flush=True)
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
