"""CartPole simulator in torch, which steps many environments at once on one device."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

OBSERVATION_SPACE = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTION_SPACE = gym.spaces.Discrete(2)


class TorchCartPole:
    """Vectorized CartPole in torch. Environments are reset in the step in which they end (same-step autoreset).

    `step` returns the same tensors and the same dict of extras every time, with new values. `extras["final_obs"]`
    has the observations before the resets, unless `gives_final` is False.
    """

    def __init__(self, num_envs: int, device: Any = "cpu", limit: int = 500, gives_final: bool = True) -> None:
        self.num_envs, self.device, self.limit, self.gives_final = num_envs, torch.device(device), limit, gives_final
        self.state = torch.zeros(num_envs, 4, device=device)
        self.ages = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.rewards = torch.ones(num_envs, device=device)
        self.extras: dict[str, Any] = {}
        self.generator = torch.Generator(device).manual_seed(0)

    def seed(self, seed: int) -> None:
        """Seed the random initial states."""
        self.generator.manual_seed(seed)

    def reset(self) -> tuple[Tensor, dict[str, Any]]:
        """Reset all environments, and return observations and extras."""
        self._reset(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        return self.state, self.extras

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step all environments, and reset the ones that end. Return observations, rewards, flags of endings, and
        extras.
        """
        x, speed, angle, turn = self.state.unbind(1)
        force = actions.float() * 20 - 10
        sine, cosine = angle.sin(), angle.cos()
        push = (force + 0.05 * turn**2 * sine) / 1.1
        bend = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        pull = push - 0.05 * bend * cosine / 1.1
        torch.stack(
            [x + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * turn, turn + 0.02 * bend], dim=1, out=self.state
        )
        self.ages += 1
        fell = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > math.radians(12))
        late = (self.ages >= self.limit) & ~fell
        self.extras["time_outs"] = late
        self.extras["log"] = {"height": self.state[:, 2].cos().mean(), "fell": fell.float().mean()}
        if self.gives_final:
            self.extras["final_obs"] = self.state.clone()
        self._reset(fell | late)
        return self.state, self.rewards, fell | late, self.extras

    def _reset(self, mask: Tensor) -> None:
        """Set the environments where `mask` is True to random initial states."""
        initial = torch.rand(self.num_envs, 4, generator=self.generator, device=self.device) * 0.1 - 0.05
        torch.where(mask[:, None], initial, self.state, out=self.state)
        self.ages.masked_fill_(mask, 0)
