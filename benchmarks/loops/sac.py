"""Plain training loop of SAC on Pendulum-v1, with numpy, torch and Gymnasium only."""

from __future__ import annotations

import math
from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.loops.networks import flat, perceptron, step

CAPACITY, GAMMA, TAU, RATE = 50_000, 0.98, 0.01, 1e-3


def learning(hidden: int, batch: int, warmup: int = 500, seed: int = 0) -> Iterator[int]:
    """Train SAC in one environment with one gradient step per environment step. Yield the number of environment steps
    after each update.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env = gym.make("Pendulum-v1")
    actor = perceptron((3, hidden, hidden, 2), nn.ReLU)
    critics, targets = ([perceptron((4, hidden, hidden, 1), nn.ReLU) for _ in range(2)] for _ in range(2))
    actor_vector, critic_vector, target_vector = flat([actor]), flat(critics), flat(targets)
    target_vector.copy_(critic_vector)
    temperature = torch.zeros(1, requires_grad=True)
    temperature.grad = torch.zeros(1)
    vectors = (actor_vector, critic_vector, temperature)
    optimizers = [torch.optim.Adam([vector], lr=RATE, fused=True) for vector in vectors]
    obs, new_obs = np.zeros((2, CAPACITY, 3), np.float32)
    actions = np.zeros((CAPACITY, 1), np.float32)
    rewards, continues = np.zeros((2, CAPACITY), np.float32)
    observation, steps = env.reset(seed=seed)[0], 0
    while True:
        if steps < warmup:
            action = rng.uniform(-1.0, 1.0, 1).astype(np.float32)
        else:
            with torch.inference_mode():
                action = _sample_actions(actor(torch.from_numpy(observation)))[0].numpy()
        next_observation, reward, terminated, truncated, _ = env.step(action * 2.0)
        at = steps % CAPACITY
        obs[at], new_obs[at], actions[at], rewards[at], continues[at] = (
            observation,
            next_observation,
            action,
            reward,
            not terminated,
        )
        observation = env.reset()[0] if terminated or truncated else next_observation
        steps += 1
        if steps < warmup:
            continue
        rows = rng.integers(min(steps, CAPACITY), size=batch)
        x, y, a = (torch.from_numpy(column[rows]) for column in (obs, new_obs, actions))
        alpha = temperature.detach().exp()
        with torch.no_grad():
            next_actions, density = _sample_actions(actor(y))
            pair = torch.cat([y, next_actions], -1)
            value = torch.min(*(critic(pair).squeeze(1) for critic in targets)) - alpha * density
            target_values = torch.from_numpy(rewards[rows]) + GAMMA * torch.from_numpy(continues[rows]) * value
        pair = torch.cat([x, a], -1)
        sum(functional.mse_loss(critic(pair).squeeze(1), target_values) for critic in critics).backward()
        step(optimizers[1], critic_vector)
        drawn, density = _sample_actions(actor(x))
        pair = torch.cat([x, drawn], -1)
        for critic in critics:
            critic.requires_grad_(False)
        gain = torch.min(*(critic(pair).squeeze(1) for critic in critics))
        for critic in critics:
            critic.requires_grad_(True)
        (alpha * density - gain).mean().backward()
        step(optimizers[0], actor_vector)
        (-temperature * (density.detach().mean() - 1.0)).sum().backward()
        step(optimizers[2], temperature)
        target_vector.lerp_(critic_vector, TAU)
        yield steps


def _sample_actions(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Sample actions in [-1, 1] from a squashed Gaussian, given the actor's outputs, and return the actions and their
    log-densities.
    """
    mean, log_std = outputs.chunk(2, -1)
    log_std = log_std.clamp(-20.0, 2.0)
    noise = torch.randn_like(mean)
    raw = mean + log_std.exp() * noise
    density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    return raw.tanh(), (density - 2.0 * (math.log(2.0) - raw - functional.softplus(-2.0 * raw))).sum(-1)
