"""Plain training loop of double DQN on CartPole-v1, with numpy, torch and Gymnasium only."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.loops.networks import flat, perceptron, step

CAPACITY, COPY_EVERY, EPSILON_STEPS, EPSILON = 50_000, 500, 10_000, 0.05
GAMMA, RATE, MAX_NORM = 0.99, 1e-3, 10.0


def learning(every: int, batch: int, warmup: int = 500, seed: int = 0) -> Iterator[int]:
    """Train double DQN in one environment with a gradient step every `every` steps. Yield the number of environment
    steps after each update.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env = gym.make("CartPole-v1")
    online, target = perceptron((4, 64, 64, 2), nn.ReLU), perceptron((4, 64, 64, 2), nn.ReLU)
    vector, target_vector = flat([online]), flat([target])
    target_vector.copy_(vector)
    optimizer = torch.optim.Adam([vector], lr=RATE, fused=True)
    obs, new_obs = np.zeros((2, CAPACITY, 4), np.float32)
    actions, rewards = np.zeros(CAPACITY, np.int64), np.zeros(CAPACITY, np.float32)
    continues = np.zeros(CAPACITY, np.float32)
    observation, steps, updates = env.reset(seed=seed)[0], 0, 0
    while True:
        if steps < warmup or rng.random() < max(EPSILON, 1.0 - steps / EPSILON_STEPS * (1.0 - EPSILON)):
            action = int(rng.integers(2))
        else:
            with torch.inference_mode():
                action = int(online(torch.from_numpy(observation)).argmax())
        next_observation, reward, terminated, truncated, _ = env.step(action)
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
        if steps < warmup or steps % every:
            continue
        rows = rng.integers(min(steps, CAPACITY), size=batch)
        x, y = torch.from_numpy(obs[rows]), torch.from_numpy(new_obs[rows])
        with torch.no_grad():
            best = target(y).gather(1, online(y).argmax(1, keepdim=True)).squeeze(1)
            target_values = torch.from_numpy(rewards[rows]) + GAMMA * torch.from_numpy(continues[rows]) * best
        values = online(x).gather(1, torch.from_numpy(actions[rows])[:, None]).squeeze(1)
        functional.smooth_l1_loss(values, target_values).backward()
        step(optimizer, vector, MAX_NORM)
        updates += 1
        if updates % COPY_EVERY == 0:
            target_vector.copy_(vector)
        yield steps
