"""Behavior cloning from data in other formats: the clone does what the expert did, in the environment's units."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from connectors import module_to_env_pipeline
from episode_learners import BC, SAC, BCConfig, MLPPolicy, SACPolicy
from episode_runners import SingleAgentEnvRunner, evaluate
from episodes import EpisodePack
from episodes.converters import (
    from_lerobot,
    from_minari,
    from_rllib,
    from_sb3,
    to_lerobot,
    to_minari,
    to_rllib,
    to_sb3,
)
from episodes.errors import InvalidArgument, LostInConversion
from episodes.replay import EpisodeReplayBuffer


class Follow(gym.Env):
    """Environment whose best action is 2.9 times the observation, in Box(-3, 3). The best return is 20."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-3, 3, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t = 0
        return self._next(), {}

    def _next(self) -> np.ndarray:
        self.seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.seen

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        reward = 1 - float(np.mean((action / 2.9 - self.seen) ** 2)) * 3
        self.t += 1
        return self._next(), reward, False, self.t == 20, {}


def expert(batch: Any, explore: bool) -> dict[str, Any]:
    return {"actions": torch.as_tensor(batch["obs"]) * (2.9 / 3)}


def recorded() -> EpisodePack:
    return SingleAgentEnvRunner(Follow, expert, num_envs=4, seed=0).sample(num_episodes=60)


def through_lerobot(pack: EpisodePack, path: Path) -> Any:
    to_lerobot(pack, path / "lerobot")
    return from_lerobot(path / "lerobot")[0]


NORMALIZED = {"action_mapping": "normalize"}
WAYS: dict[str, Callable[[EpisodePack, Path], Any]] = {
    "own": lambda pack, path: pack,
    "environment actions": lambda pack, path: pack.with_env_actions(),
    "SB3": lambda pack, path: from_sb3(to_sb3(pack)[0])[0],
    "SB3 normalized": lambda pack, path: from_sb3(to_sb3(pack, **NORMALIZED)[0], **NORMALIZED)[0],
    "Minari": lambda pack, path: from_minari(to_minari(pack, "follow/expert-v0")[0])[0],
    "LeRobot": through_lerobot,
    "RLlib": lambda pack, path: from_rllib(to_rllib(pack)[0])[0],
    "RLlib normalized": lambda pack, path: from_rllib(to_rllib(pack, **NORMALIZED)[0], **NORMALIZED)[0],
}
SLOW = ("Minari", "LeRobot", "RLlib", "RLlib normalized")


@pytest.mark.parametrize(
    "way", [pytest.param(way, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, way in WAYS.items()]
)
def test_bc_clones_an_expert_from_any_format(way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    pack = recorded()
    best = float(pack.returns().mean())
    assert best == pytest.approx(20, abs=1e-3)
    policy = MLPPolicy(
        Follow.observation_space, Follow.action_space, hidden_sizes=(32,), generator=torch.Generator().manual_seed(0)
    )
    BC(policy, BCConfig(learning_rate=5e-3, num_epochs=25, minibatch_size=64)).update(way(pack, tmp_path))
    assert evaluate(Follow, policy, num_episodes=20, seed=1).mean_return > 0.95 * best


def test_converters_report_that_they_write_env_actions(tmp_path: Path) -> None:
    pack = recorded()[:2]
    report = to_lerobot(pack, tmp_path / "lerobot")
    assert "the environment's actions are written" in str(report)
    with pytest.raises(LostInConversion, match="policy's own actions"):
        to_rllib(pack, strict=True)
    assert not to_rllib(pack.with_env_actions())[1].losses


def test_algorithms_reject_actions_of_other_units() -> None:
    clip = module_to_env_pipeline(
        Follow.observation_space, Follow.action_space, normalize_actions=False, clip_actions=True
    )
    clipped = SingleAgentEnvRunner(Follow, expert, module_to_env=clip, seed=0).sample(num_episodes=2)
    policy = SACPolicy(Follow.observation_space, Follow.action_space)
    for algorithm in (SAC(policy), BC(MLPPolicy(Follow.observation_space, Follow.action_space))):
        with pytest.raises(InvalidArgument, match="mapping clip"):
            algorithm.update(clipped)
        with pytest.raises(InvalidArgument, match="no action_space"):
            algorithm.update(clipped.replace(action_space=None))
        algorithm.update(clipped.with_policy_actions("normalize"))
        algorithm.update(clipped.with_env_actions())
        buffer = EpisodeReplayBuffer(100)
        buffer.add(clipped.with_env_actions())
        with pytest.raises(InvalidArgument, match="stored actions are the environment's"):
            algorithm.update_from(buffer)
    with pytest.raises(InvalidArgument, match="action_mapping"):
        BCConfig(action_mapping="squash")
