"""Workloads of replay buffers of other libraries, which store the same transitions as this library's buffer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np

from benchmarks.data import ACTION_SPACE, OBSERVATION_SPACE, Steps, rllib_episode
from benchmarks.figure import Size, Timed
from benchmarks.recording import vector_steps
from benchmarks.transitions import (
    BATCH,
    PRIORITY_ALPHA,
    PRIORITY_BETA,
    STORED,
    Transitions,
    stored_episodes,
    transitions,
)


def cpprb_columns() -> dict[str, Any]:
    """Return cpprb's definitions of the columns of a transition."""
    flag = {"dtype": np.bool_}
    return {
        "obs": {"shape": 4},
        "act": {"dtype": np.int64},
        "rew": {},
        "next_obs": {"shape": 4},
        "done": flag,
        "truncated": flag,
    }


def cpprb_arguments(data: Transitions) -> dict[str, Any]:
    """Return the transitions as keyword arguments of cpprb's `add`."""
    return {
        "obs": data.obs,
        "act": data.actions,
        "rew": data.rewards,
        "next_obs": data.new_obs,
        "done": data.terminateds,
        "truncated": data.truncateds,
    }


def cpprb_uniform(size: Size) -> Timed:
    """Time sampling from cpprb's `ReplayBuffer`."""
    import cpprb

    data = transitions(size(STORED))
    buffer = cpprb.ReplayBuffer(len(data.obs), cpprb_columns())
    buffer.add(**cpprb_arguments(data))
    return Timed(lambda: buffer.sample(BATCH))


def cpprb_prioritized(size: Size, *, update: bool) -> Timed:
    """Time sampling from cpprb's `PrioritizedReplayBuffer`, optionally with an update of the sampled priorities."""
    import cpprb

    data = transitions(size(STORED))
    buffer = cpprb.PrioritizedReplayBuffer(len(data.obs), cpprb_columns(), alpha=PRIORITY_ALPHA)
    buffer.add(**cpprb_arguments(data), priorities=data.priorities)

    def run() -> None:
        drawn = buffer.sample(BATCH, beta=PRIORITY_BETA)
        if update:
            buffer.update_priorities(drawn["indexes"], data.new_priorities)

    return Timed(run)


def cpprb_adding(size: Size, num_envs: int) -> Timed:
    """Time adding one vector step to a full `ReplayBuffer` of cpprb, per environment step."""
    import cpprb

    count = size(num_envs)
    buffer = cpprb.ReplayBuffer(2 * size(STORED), cpprb_columns())
    names = ("obs", "next_obs", "act", "rew", "done", "truncated")
    rows = [dict(zip(names, row, strict=True)) for row in vector_steps(count)]
    return into_full(lambda row: buffer.add(**row), rows, count, size)


def into_full(add: Callable[[Any], object], rows: list[Any], count: int, size: Size) -> Timed:
    """Fill a buffer with vector steps, and time adding one more vector step of `count` environments, per environment
    step.
    """
    endless_rows = cycle(rows)
    for _ in range(2 * size(STORED) // count + 1):
        add(next(endless_rows))
    return Timed(lambda: add(next(endless_rows)), count)


def tianshou_uniform(size: Size) -> Timed:
    """Time sampling from Tianshou's `ReplayBuffer` for one environment, which is its fastest buffer."""
    from tianshou.data import ReplayBuffer

    data = transitions(size(STORED))
    buffer = ReplayBuffer.from_data(
        obs=data.obs,  # type: ignore[arg-type]
        act=data.actions,  # type: ignore[arg-type]
        rew=data.rewards,  # type: ignore[arg-type]
        terminated=data.terminateds,  # type: ignore[arg-type]
        truncated=data.truncateds,  # type: ignore[arg-type]
        done=data.terminateds | data.truncateds,  # type: ignore[arg-type]
        obs_next=data.new_obs,  # type: ignore[arg-type]
    )
    return Timed(lambda: buffer.sample(BATCH))


def tianshou_prioritized(size: Size, *, update: bool) -> Timed:
    """Time sampling from Tianshou's `PrioritizedReplayBuffer`, optionally with an update of the sampled priorities."""
    from tianshou.data import Batch, PrioritizedReplayBuffer

    data = transitions(size(STORED))
    buffer: Any = PrioritizedReplayBuffer(len(data.obs), alpha=PRIORITY_ALPHA, beta=PRIORITY_BETA)
    for i in range(len(data.obs)):
        buffer.add(
            Batch(
                obs=data.obs[i],
                act=data.actions[i],
                rew=data.rewards[i],
                terminated=data.terminateds[i],
                truncated=data.truncateds[i],
                obs_next=data.new_obs[i],
                info=Batch(),
            )
        )
    buffer.update_weight(np.arange(len(data.obs)), data.priorities)

    def run() -> None:
        _, indices = buffer.sample(BATCH)
        if update:
            buffer.update_weight(indices, data.new_priorities)

    return Timed(run)


def sb3_uniform(size: Size) -> Timed:
    """Time sampling from Stable-Baselines3's `ReplayBuffer`, which returns tensors."""
    from stable_baselines3.common.buffers import ReplayBuffer

    data = transitions(size(STORED))
    buffer = ReplayBuffer(len(data.obs), OBSERVATION_SPACE, ACTION_SPACE, device="cpu")
    for i in range(len(data.obs)):
        row = slice(i, i + 1)
        buffer.add(data.obs[row], data.new_obs[row], data.actions[row], data.rewards[row], data.terminateds[row], [{}])
    return Timed(lambda: buffer.sample(BATCH))


def tianshou_adding(size: Size, num_envs: int) -> Timed:
    """Time adding one vector step to a full `VectorReplayBuffer` of Tianshou, per environment step."""
    from tianshou.data import Batch, VectorReplayBuffer

    count = size(num_envs)
    buffer: Any = VectorReplayBuffer(2 * size(STORED), count)
    names = ("obs", "obs_next", "act", "rew", "terminated", "truncated")
    rows = [Batch(**dict(zip(names, row, strict=True)), info=Batch()) for row in vector_steps(count)]
    return into_full(lambda row: buffer.add(row), rows, count, size)


def sb3_adding(size: Size, num_envs: int) -> Timed:
    """Time adding one vector step to a full `ReplayBuffer` of Stable-Baselines3, per environment step."""
    from stable_baselines3.common.buffers import ReplayBuffer

    count = size(num_envs)
    spaces = (OBSERVATION_SPACE, ACTION_SPACE)
    buffer = ReplayBuffer(2 * size(STORED), *spaces, device="cpu", n_envs=count)
    infos: list[dict[str, Any]] = [{} for _ in range(count)]
    rows = [(*row[:4], row[4] | row[5], infos) for row in vector_steps(count)]
    return into_full(lambda row: buffer.add(*row), rows, count, size)


def torchrl_data(data: Transitions) -> Any:
    """Return transitions as a TensorDict in TorchRL's layout."""
    return torchrl_entries(data.obs, data.new_obs, data.actions, data.rewards, data.terminateds, data.truncateds)


def torchrl_entries(
    obs: np.ndarray,
    new_obs: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray,
    terminateds: np.ndarray,
    truncateds: np.ndarray,
) -> Any:
    """Return the arrays of transitions as a TensorDict in TorchRL's layout."""
    import torch
    from tensordict import TensorDict

    entries: dict[Any, Any] = {
        "observation": obs,
        "action": actions,
        ("next", "observation"): new_obs,
        ("next", "reward"): rewards,
        ("next", "done"): terminateds | truncateds,
        ("next", "terminated"): terminateds,
        ("next", "truncated"): truncateds,
    }
    tensors = {key: torch.from_numpy(values) for key, values in entries.items()}
    return TensorDict(tensors, batch_size=[len(obs)])  # type: ignore[arg-type]


def torchrl_uniform(size: Size) -> Timed:
    """Time sampling from TorchRL's `ReplayBuffer` over a `LazyTensorStorage`, which is its fastest buffer."""
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    data = transitions(size(STORED))
    buffer = ReplayBuffer(storage=LazyTensorStorage(len(data.obs)), batch_size=BATCH)
    buffer.extend(torchrl_data(data))
    return Timed(lambda: buffer.sample())


def torchrl_adding(size: Size, num_envs: int) -> Timed:
    """Time adding the TensorDict of one vector step to a full `ReplayBuffer` of TorchRL, per environment step."""
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    count = size(num_envs)
    buffer = ReplayBuffer(storage=LazyTensorStorage(2 * size(STORED)), batch_size=BATCH)
    rows = [torchrl_entries(*row) for row in vector_steps(count)]
    return into_full(buffer.extend, rows, count, size)


def torchrl_sequences(size: Size, batch_size: int, length: int) -> Timed:
    """Time sampling of sequences with TorchRL's `SliceSampler`, which is given the ends of episodes."""
    from torchrl.data import LazyTensorStorage, ReplayBuffer, SliceSampler

    data = transitions(size(STORED))
    sampler = SliceSampler(slice_len=length, end_key=("next", "done"), strict_length=False)
    storage = LazyTensorStorage(len(data.obs))
    buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=batch_size * length)
    buffer.extend(torchrl_data(data))
    return Timed(lambda: buffer.sample())


def rllib_uniform(size: Size) -> Timed:
    """Time sampling of single steps from RLlib's `EpisodeReplayBuffer`, as sequences of one step, which is its fastest
    way.
    """
    buffer = rllib_buffer(stored_episodes(size(STORED)))
    return Timed(lambda: buffer.sample(batch_size_B=BATCH, batch_length_T=1))


def rllib_sequences(size: Size, batch_size: int, length: int) -> Timed:
    """Time sampling of sequences from RLlib's `EpisodeReplayBuffer`."""
    buffer = rllib_buffer(stored_episodes(size(STORED)))
    return Timed(lambda: buffer.sample(batch_size_B=batch_size, batch_length_T=length))


def rllib_buffer(episodes: list[Steps]) -> Any:
    """Return RLlib's `EpisodeReplayBuffer` filled with the episodes."""
    from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer

    buffer = EpisodeReplayBuffer(capacity=sum(map(len, episodes)))
    buffer.add([rllib_episode(steps) for steps in episodes])
    return buffer
