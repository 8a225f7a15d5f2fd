"""Simulator of a robot in torch with observations for a policy and for a critic, and a policy with these two inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from episode_learners import Policy
from episodes.columns import Columns

NUM_CRITIC, NUM_POLICY, NUM_ACTIONS = 60, 48, 12
HIDDEN = (128, 128, 128)


def box(size: int) -> gym.spaces.Box:
    """Return the unbounded space of float32 vectors of a size."""
    return gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)


OBSERVATION_SPACE = gym.spaces.Dict(critic=box(NUM_CRITIC), policy=box(NUM_POLICY))
ACTION_SPACE = box(NUM_ACTIONS)


class TorchRobot:
    """Vectorized linear system in torch with time limits and same-step autoreset. The policy sees a noisy part of the
    state, and the critic the state.
    """

    def __init__(self, num_envs: int, device: Any = "cpu", limit: int = 100) -> None:
        self.num_envs, self.device, self.limit = num_envs, torch.device(device), limit
        self.generator = torch.Generator(device).manual_seed(0)
        self.gains = self._normal(NUM_ACTIONS, NUM_CRITIC) * 0.1
        self.state = self._normal(num_envs, NUM_CRITIC)
        self.ages = torch.randint(limit, (num_envs,), generator=self.generator, device=device)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device)

    def observe(self) -> dict[str, Tensor]:
        """Return the observations of the current state."""
        noise = 0.1 * self._normal(self.num_envs, NUM_POLICY)
        return {"critic": self.state, "policy": self.state[:, :NUM_POLICY] + noise}

    def reset(self) -> dict[str, Tensor]:
        """Reset all environments, and return observations."""
        self.state = self._normal(self.num_envs, NUM_CRITIC)
        return self.observe()

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, dict[str, Any]]:
        """Step all environments, and reset the ones that end. Return observations, rewards, flags of endings, and
        extras with time-outs and the observations before the resets.
        """
        self.state = 0.97 * self.state + actions.tanh() @ self.gains + 0.05 * self._normal(self.num_envs, NUM_CRITIC)
        self.ages = self.ages + 1
        rewards = 1.0 - self.state[:, :NUM_ACTIONS].square().mean(1)
        fell = self.state[:, 0].abs() > 3.0
        late = (self.ages >= self.limit) & ~fell
        ended = fell | late
        final = self.observe()
        self.state = torch.where(ended[:, None], self._normal(self.num_envs, NUM_CRITIC), self.state)
        self.ages = self.ages.masked_fill(ended, 0)
        return self.observe(), rewards, ended, {"time_outs": late, "final_obs": final}


def perceptron(num_in: int, num_out: int) -> nn.Sequential:
    """Return a perceptron with three hidden layers of 128 and ELUs."""
    layers: list[nn.Module] = []
    for size in HIDDEN:
        layers += [nn.Linear(num_in, size), nn.ELU()]
        num_in = size
    return nn.Sequential(*layers, nn.Linear(num_in, num_out))


class RobotPolicy(Policy):
    """Actor-critic policy over vectors [N, 108] that begin with the critic's observation and end with the policy's."""

    def __init__(self) -> None:
        super().__init__(box(NUM_CRITIC + NUM_POLICY), ACTION_SPACE)
        self.actor, self.critic = perceptron(NUM_POLICY, NUM_ACTIONS), perceptron(NUM_CRITIC, 1)
        self.log_std = nn.Parameter(torch.zeros(NUM_ACTIONS))

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        mean = self.actor(batch[Columns.OBS][:, NUM_CRITIC:])
        outputs = {Columns.ACTION_DIST_INPUTS: torch.cat([mean, self.log_std.expand_as(mean)], -1)}
        if explore is None:
            outputs[Columns.VF_PREDS] = self.compute_values(batch)
        return outputs

    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        return self.critic(batch[Columns.OBS][:, :NUM_CRITIC]).squeeze(-1)
