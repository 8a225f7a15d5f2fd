"""The same small data in every library's form."""

from __future__ import annotations

from typing import Any

import numpy as np


def episode(
    length: int, *, start: float = 0.0, id_: str = "a", terminated: bool = False, truncated: bool = True
) -> Any:
    """Ours: observations count up from `start`."""
    from episodes import SingleAgentEpisode

    return SingleAgentEpisode.from_arrays(
        np.arange(length + 1, dtype=np.float32)[:, None] + start,
        np.zeros(length, np.int64),
        np.ones(length, np.float32),
        terminated=terminated,
        truncated=truncated,
        id_=id_,
    )


def rllib_episode(length: int, start: float = 0.0, id_: str = "a") -> Any:
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    return SingleAgentEpisode(
        id_=id_,
        observations=[np.array([start + t], np.float32) for t in range(length + 1)],
        actions=[0] * length,
        rewards=[1.0] * length,
        infos=[{}] * (length + 1),
        truncated=True,
        len_lookback_buffer=0,
    )


def tianshou_row(obs: float, new_obs: float, truncated: bool = False) -> Any:
    from tianshou.data import Batch

    return Batch(
        obs=np.array([obs]),
        act=0,
        rew=1.0,
        terminated=False,
        truncated=truncated,
        obs_next=np.array([new_obs]),
        info=Batch(),
    )


def tianshou_vector_row(t: int, num_envs: int) -> Any:
    from tianshou.data import Batch

    no = np.zeros(num_envs, bool)
    obs = np.full((num_envs, 1), float(t))
    return Batch(
        obs=obs,
        act=np.zeros(num_envs, int),
        rew=np.ones(num_envs),
        terminated=no,
        truncated=no,
        obs_next=obs + 1,
        info=Batch(),
    )


def sb3_buffer(kind: Any, size: int, num_envs: int = 1, **options: Any) -> Any:
    from gymnasium import spaces

    box = spaces.Box(-1e6, 1e6, (1,), np.float32)
    return kind(size, box, spaces.Discrete(2), device="cpu", n_envs=num_envs, **options)


def sb3_add(buffer: Any, obs: float, new_obs: float, truncated: bool = False) -> None:
    as_row = lambda value: np.array([[value]], np.float32)  # noqa: E731
    infos = [{"TimeLimit.truncated": truncated}]
    buffer.add(as_row(obs), as_row(new_obs), np.zeros((1, 1)), np.ones(1), np.array([truncated]), infos)


def torchrl_rows(length: int, start: float = 0.0) -> Any:
    """An episode whose observations count up from `start`."""
    import torch
    from tensordict import TensorDict

    obs = start + torch.arange(length)
    done = torch.arange(length) == length - 1
    entries: dict[Any, Any] = {
        "observation": obs,
        ("next", "observation"): obs + 1,
        ("next", "reward"): torch.ones_like(obs),
        ("next", "done"): done,
        ("next", "truncated"): done,
        ("next", "terminated"): torch.zeros_like(done),
    }
    return TensorDict(entries, batch_size=[length])  # type: ignore[arg-type]


def cpprb_columns() -> dict[str, Any]:
    return {"obs": {"shape": 1}, "act": {"dtype": np.int64}, "rew": {}, "next_obs": {"shape": 1}, "done": {}}


def cpprb_fill(buffer: Any, length: int, start: float = 0.0) -> None:
    for t in range(length):
        buffer.add(obs=start + t, act=0, rew=1.0, next_obs=start + t + 1, done=float(t == length - 1))
    buffer.on_episode_end()
