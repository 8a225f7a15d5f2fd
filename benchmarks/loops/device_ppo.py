"""Plain training loop of PPO on a simulator in torch, whose data never leave its device. With torch only."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.loops.networks import flat, step

GAMMA, LAMBDA, CLIP, VALUE, MAX_NORM, RATE = 0.99, 0.95, 0.2, 0.5, 0.5, 3e-4


class DevicePPO:
    """PPO with `rows` steps of each environment per iteration. After a time limit, value targets bootstrap from the
    true last observation.

    Args:
        simulator: as `benchmarks.torch_robot.TorchRobot`.
        actor: network from the policy's observations to means.
        critic: network from the critic's observations to values.
        log_std: parameter, the log standard deviations of actions.
        rows: steps of each environment in an iteration, T.
        epochs: passes over them.
        num_minibatches: minibatches in a pass.
    """

    def __init__(
        self,
        simulator: Any,
        actor: nn.Module,
        critic: nn.Module,
        log_std: nn.Parameter,
        *,
        rows: int,
        epochs: int,
        num_minibatches: int,
    ) -> None:
        self.simulator, self.actor, self.critic, self.log_std = simulator, actor, critic, log_std
        self.rows, self.epochs, self.num_minibatches = rows, epochs, num_minibatches
        self.vector = flat([actor, critic, nn.ParameterList([log_std])])
        self.optimizer = torch.optim.Adam([self.vector], lr=RATE, eps=1e-5, fused=True)
        self.obs = simulator.reset()
        shape, like = (rows, simulator.num_envs), self.obs["critic"]
        self.critic_obs, self.last_obs = (like.new_zeros(*shape, like.shape[1]) for _ in range(2))
        self.policy_obs = like.new_zeros(*shape, self.obs["policy"].shape[1])
        self.actions = like.new_zeros(*shape, len(log_std))
        self.log_probs, self.values, self.rewards = (like.new_zeros(shape) for _ in range(3))
        self.ended, self.late = (like.new_zeros(shape, dtype=torch.bool) for _ in range(2))

    @torch.no_grad()
    def rollout(self) -> None:
        """Sample `rows` steps of each environment."""
        for t in range(self.rows):
            self.critic_obs[t], self.policy_obs[t] = self.obs["critic"], self.obs["policy"]
            mean = self.actor(self.policy_obs[t])
            actions = mean + self.log_std.exp() * torch.randn_like(mean)
            self.actions[t], self.log_probs[t] = actions, self._log_prob(mean, actions)
            self.values[t] = self.critic(self.critic_obs[t]).squeeze(-1)
            self.obs, self.rewards[t], self.ended[t], extras = self.simulator.step(actions)
            self.late[t], self.last_obs[t] = extras["time_outs"], extras["final_obs"]["critic"]

    def iterate(self) -> None:
        """Sample, and take the gradient steps."""
        self.rollout()
        returns, advantages = self._targets()
        columns = [
            column.flatten(0, 1)
            for column in (self.policy_obs, self.critic_obs, self.actions, self.log_probs, advantages, returns)
        ]
        count = self.rows * self.simulator.num_envs
        for _ in range(self.epochs):
            order = torch.randperm(count, device=self.rewards.device)
            for at in order.split(count // self.num_minibatches):
                policy_obs, critic_obs, actions, old, gain, targets = (column[at] for column in columns)
                ratio = (self._log_prob(self.actor(policy_obs), actions) - old).exp()
                policy_loss = -torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
                value_loss = functional.mse_loss(self.critic(critic_obs).squeeze(-1), targets)
                (policy_loss + VALUE * value_loss).backward()
                step(self.optimizer, self.vector, MAX_NORM)

    @torch.no_grad()
    def _targets(self) -> tuple[Tensor, Tensor]:
        """Return value targets [T, N], and standardized advantages (GAE) [T, N]."""
        newest = self.critic(self.obs["critic"]).squeeze(-1)
        following = torch.cat([self.values[1:], newest[None]]).masked_fill(self.ended, 0.0)
        rows = self.late.nonzero(as_tuple=True)
        following[rows] = self.critic(self.last_obs[rows]).squeeze(-1)
        delta = self.rewards + GAMMA * following - self.values
        gains, gain, goes_on = torch.empty_like(delta), torch.zeros_like(newest), 1.0 - self.ended.float()
        for t in reversed(range(self.rows)):
            gain = delta[t] + GAMMA * LAMBDA * goes_on[t] * gain
            gains[t] = gain
        return gains + self.values, (gains - gains.mean()) / (gains.std() + 1e-8)

    def _log_prob(self, mean: Tensor, actions: Tensor) -> Tensor:
        deviations = (actions - mean) * (-self.log_std).exp()
        return (-0.5 * deviations.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
