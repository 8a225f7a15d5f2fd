"""The learner's input of a step equals the policy's input when it took the step, for all cuts of episodes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from connectors import env_to_module as acting
from connectors import env_to_module_pipeline, learner_pipeline
from episode_runners.single_agent import SingleAgentEnvRunner

OBSERVATIONS, ACTIONS = spaces.Box(-1e6, 1e6, (2,), np.float32), spaces.Discrete(3, start=1)


class Numbered(gym.Env):
    """Environment with unique observations: the environment's number and a count."""

    observation_space, action_space = OBSERVATIONS, ACTIONS

    def __init__(self, number: int) -> None:
        self.number, self.shown, self.left = number, 0, 0

    def _show(self) -> np.ndarray:
        self.shown += 1
        return np.array([self.number, self.shown], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.left = 1 + (self.shown * 7 + self.number) % 5
        return self._show(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        ended = self.left == 0
        is_odd = self.shown % 2 == 0
        return self._show(), float(self.shown), ended and is_odd, ended and not is_odd, {}


class Watching:
    """Recurrent policy that records its inputs and states by the newest observation."""

    def __init__(self) -> None:
        self.saw: dict[tuple[float, ...], tuple[Any, float]] = {}

    def get_initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.zeros(1, np.float32)}

    def __call__(self, batch: dict[str, Any], explore: bool | None = None) -> dict[str, Any]:
        memory = batch["state_in"]["h"]
        for env, row in enumerate(newest(batch["obs"])[:, 0]):
            observed = {name: part[env, 0].clone() for name, part in batch["obs"].items()}
            self.saw[tuple(row.tolist())] = observed, float(memory[env, 0])
        state = {"h": 0.5 * memory + newest(batch["obs"])[:, 0, 1:]}
        return {"action_dist_inputs": torch.zeros(len(memory), 1, 3), "state_out": state}


def newest(observations: dict[str, torch.Tensor]) -> torch.Tensor:
    return observations["_orig_obs"][..., -2:]


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("num_timesteps", [4, 9, 50])
def test_learner_sees_the_policy_inputs(mode: AutoresetMode, num_timesteps: int) -> None:
    policy = Watching()
    options = {"n_prev_actions": 2, "n_prev_rewards": 1}
    pieces = [acting.FrameStacking(num_frames=3), acting.PrevActionsPrevRewards(**options)]
    envs = gym.vector.SyncVectorEnv([lambda i=i: Numbered(i) for i in range(3)], autoreset_mode=mode)
    to_module = env_to_module_pipeline(OBSERVATIONS, ACTIONS, pieces=pieces, policy=policy)
    runner = SingleAgentEnvRunner(envs, policy, env_to_module=to_module)
    second_pipeline = learner_pipeline(
        OBSERVATIONS,
        ACTIONS,
        pieces=[acting.FrameStacking(num_frames=3), acting.PrevActionsPrevRewards(**options)],
        next_observations=True,
        policy=policy,
        max_seq_len=2,
    )
    num_steps = 0
    for _ in range(4):
        pack = runner.sample(num_timesteps=num_timesteps)
        batch = second_pipeline(rl_module=policy, episodes=pack)
        mask = batch["loss_mask"]
        num_steps += int(mask.sum())
        for i, length in enumerate(batch["seq_lens"].tolist()):
            for t in range(length):
                row = {name: part[i, t] for name, part in batch["obs"].items()}
                observed, memory = policy.saw[tuple(newest(row).tolist())]
                assert all(torch.equal(row[name], observed[name]) for name in row)
                assert t or batch["state_in"]["h"][i].item() == memory
        known = [(env, t) for env, t in mask.nonzero().tolist()]
        after = [{name: part[env, t] for name, part in batch["new_obs"].items()} for env, t in known]
        seen_after = [(row, policy.saw.get(tuple(newest(row).tolist()))) for row in after]
        compared = [
            all(torch.equal(row[name], observed[0][name]) for name in row) for row, observed in seen_after if observed
        ]
        assert all(compared)
        assert compared
    assert num_steps >= 4 * num_timesteps
