"""Plain training loop of PPO on CartPole-v1, with numpy, torch and Gymnasium only."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn
from torch.nn import functional

from benchmarks.loops.networks import flat, perceptron, step

GAMMA, LAMBDA, CLIP, VALUE, MAX_NORM, RATE = 0.98, 0.9, 0.2, 0.5, 0.5, 2e-3


def learning(
    num_envs: int, rows: int, epochs: int, minibatch: int, seed: int = 0, actor: nn.Module | None = None
) -> Iterator[int]:
    """Train PPO: in each update, sample `rows` vector steps and learn for `epochs` epochs. Yield the number of
    environment steps after each update.

    The environments use same-step autoreset. After a termination, the value target bootstraps from 0, and at a time
    limit from the value of the true last observation.
    """
    torch.manual_seed(seed)
    envs = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    actor = perceptron((4, 64, 64, 2), nn.Tanh) if actor is None else actor
    critic = perceptron((4, 64, 64, 1), nn.Tanh)
    vector = flat([actor, critic])
    optimizer = torch.optim.Adam([vector], lr=RATE, eps=1e-5, fused=True)
    obs = np.zeros((rows + 1, num_envs, 4), np.float32)
    logits = torch.zeros(rows, num_envs, 2)
    actions = np.zeros((rows, num_envs), np.int64)
    rewards, bootstrap = np.zeros((2, rows, num_envs), np.float32)
    ended = np.zeros((rows, num_envs), bool)
    obs[0] = envs.reset(seed=seed)[0]
    steps = 0
    while True:
        lasts = []  # (row, environment, true last observation) of episodes that a time limit stopped
        for row in range(rows):
            with torch.inference_mode():
                out = actor(torch.from_numpy(obs[row]))
                action = (out - torch.empty_like(out).exponential_().log_()).argmax(-1).numpy()
            new_obs, reward, terminated, truncated, info = envs.step(action)
            logits[row], actions[row], rewards[row], obs[row + 1] = out, action, reward, new_obs
            ended[row] = terminated | truncated
            lasts += [(row, env, info["final_obs"][env]) for env in np.flatnonzero(truncated & ~terminated)]
        steps += rows * num_envs
        with torch.no_grad():
            values = critic(torch.from_numpy(obs.reshape(-1, 4))).view(rows + 1, num_envs).numpy()
            bootstrap[:] = np.where(ended, 0.0, values[1:])
            for row, env, last in lasts:
                bootstrap[row, env] = critic(torch.from_numpy(last)).item()
            taken_actions = torch.from_numpy(actions.reshape(-1, 1))
            old = logits.log_softmax(-1).view(-1, 2).gather(-1, taken_actions).squeeze(-1)
        delta = rewards + GAMMA * bootstrap - values[:-1]
        gains, following = np.zeros_like(delta), np.zeros(num_envs, np.float32)
        for row in reversed(range(rows)):
            following = delta[row] + GAMMA * LAMBDA * np.where(ended[row], 0.0, following)
            gains[row] = following
        targets = torch.from_numpy((gains + values[:-1]).reshape(-1))
        advantages = torch.from_numpy(gains.reshape(-1))
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        flat_obs = torch.from_numpy(obs[:-1].reshape(-1, 4))
        for _ in range(epochs):
            for at in torch.randperm(rows * num_envs).split(minibatch):
                x, gain = flat_obs[at], advantages[at]
                ratio = (actor(x).log_softmax(-1).gather(-1, taken_actions[at]).squeeze(-1) - old[at]).exp()
                policy_loss = -torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
                (policy_loss + VALUE * functional.mse_loss(critic(x).squeeze(-1), targets[at])).backward()
                step(optimizer, vector, MAX_NORM)
        obs[0] = obs[-1]
        yield steps
