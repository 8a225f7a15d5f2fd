"""Each recorded step has the policy version that was in use, whenever the version changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from connectors import learner_pipeline
from connectors.learner import AddPolicyVersions
from episode_runners import Hook, MultiAgentEnvRunner, SingleAgentEnvRunner
from episodes import EpisodePack
from episodes.errors import EpisodeStateError, InvalidArgument
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer


class Versioned:
    """Policy that outputs its version with each action."""

    version = 0

    def __call__(self, batch: dict[str, Any], *, explore: bool) -> dict[str, Any]:
        num = len(batch["obs"])
        return {"actions": np.arange(num) % 2, "version": np.full(num, self.version)}


class Updates(Hook):
    """Hook that changes the policy in the middle of a sample."""

    def __init__(self, policies: dict[str, Versioned], seed: int) -> None:
        self.policies, self.rng = policies, np.random.default_rng(seed)

    def on_step(self, runner: Any) -> None:
        if self.rng.random() < 0.3:
            update(runner, self.policies)


def update(runner: Any, policies: dict[str, Versioned]) -> None:
    """Give each policy a newer version, of several policies each by another step."""
    for step, policy in enumerate(policies.values(), 1):
        policy.version += step
    versions = {name: policy.version for name, policy in policies.items()}
    runner.policy_version = versions if isinstance(runner, MultiAgentEnvRunner) else versions["one"]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_step_has_the_version_of_its_policy(mode: AutoresetMode) -> None:
    policy = Versioned()
    hook = Updates({"one": policy}, 0)
    with SingleAgentEnvRunner(
        "CartPole-v1", policy, num_envs=3, hooks=[hook], seed=0, autoreset_mode=mode, len_lookback_buffer=2
    ) as runner:
        runner.policy_version = 0
        packs = []
        for _ in range(6):
            packs.append(runner.sample(num_timesteps=30))
            update(runner, {"one": policy})
        packs.append(runner.sample(num_episodes=4))
        joined = EpisodePack.concat(packs)
    for pack in (*packs, joined):
        made = pack.extra_model_outputs["version"][pack.step_rows()]
        assert pack.get_policy_versions().tolist() == made.tolist()
        for episode in pack:
            assert episode.get_policy_versions().tolist() == episode.get_extra_model_outputs("version").tolist()
            if len(episode):
                made = episode.get_extra_model_outputs("version")
                assert episode.policy_versions == (made.min(), made.max())
    assert joined.get_policy_versions().max() > 20


def test_random_actions_have_no_policy_version() -> None:
    with SingleAgentEnvRunner("CartPole-v1", Versioned(), num_envs=2, seed=0) as runner:
        assert runner.policy_version is None
        assert runner.sample(num_timesteps=10).policy_versions is None
        runner.policy_version = 7
        assert runner.sample(num_timesteps=10, random_actions=True).policy_versions is None
        assert (runner.sample(num_timesteps=10).get_policy_versions() == 7).all()
        with pytest.raises(InvalidArgument, match="policy_version=-3"):
            runner.policy_version = -3
        assert (runner.sample(num_timesteps=10).get_policy_versions() == 7).all()


class InTurns:
    """Two agents that act in turns, and get their observations after the other agent's action."""

    possible_agents = ("a", "b")
    observation_spaces = {agent: spaces.Box(-1, 1, (2,)) for agent in possible_agents}
    action_spaces = {agent: spaces.Discrete(2) for agent in possible_agents}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.t = 0
        return {"a": np.zeros(2, np.float32)}, {}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.t += 1
        agent, over = self.possible_agents[self.t % 2], self.t == 9
        observations = dict.fromkeys(self.possible_agents if over else [agent], np.zeros(2, np.float32))
        return observations, dict.fromkeys(observations, 1.0), {"__all__": over}, {"__all__": False}, {}


def test_pending_action_has_the_version_that_acted() -> None:
    policies, module_of = {"m": Versioned(), "n": Versioned()}, {"a": "m", "b": "n"}
    options: Any = {"agent_to_module_mapping_fn": lambda agent, episode: module_of[agent]}
    with MultiAgentEnvRunner(InTurns, policies, num_envs=2, hooks=[Updates(policies, 1)], **options) as runner:
        runner.policy_version = 0
        chunks = []
        for _ in range(12):
            chunks += runner.sample(num_timesteps=6)
            update(runner, policies)
        with pytest.raises(InvalidArgument, match=r"policy_version=1\.5"):
            runner.policy_version = {"m": 1.5}
    agent_episodes = [agent_episode for chunk in chunks for agent_episode in chunk.agent_episodes.values()]
    for agent_episode in agent_episodes:
        made = np.asarray(agent_episode.get_extra_model_outputs("version"))
        assert agent_episode.get_policy_versions().tolist() == made.tolist()
    assert sum(map(len, agent_episodes)) > 60


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_replay_samples_have_policy_versions(mode: AutoresetMode, num_envs: int) -> None:
    policy = Versioned()
    hook = Updates({"one": policy}, 0)
    buffer = EpisodeReplayBuffer(150, seed=0)
    with SingleAgentEnvRunner(
        "CartPole-v1", policy, num_envs=num_envs, hooks=[hook], seed=0, autoreset_mode=mode
    ) as runner:
        runner.policy_version = 0
        for size in (40, 3, 1, 90, 2, 60):
            runner.sample_into(buffer, num_timesteps=size, extra_model_outputs=["version"])
            update(runner, {"one": policy})
            drawn = buffer.sample(64, keys=["version", "policy_version"])
            assert drawn["policy_version"].tolist() == drawn["version"].tolist()
        windows = buffer.sample_sequences(8, 5, keys=["version", "policy_version"])
        real = windows["loss_mask"].astype(bool)
        assert windows["policy_version"][real].tolist() == windows["version"][real].tolist()
        assert (windows["policy_version"][~real] == -1).all()
        pack = runner.sample(num_timesteps=20)
    buffer.add(pack)
    restored = EpisodeReplayBuffer(150, seed=0)
    restored.set_state(buffer.get_state())
    for each_buffer in (buffer, restored):
        for episode in each_buffer.iter_episodes():
            assert episode.get_policy_versions().tolist() == episode.get_extra_model_outputs("version").tolist()
        for stored in each_buffer.iter_packs():
            assert stored.get_policy_versions().tolist() == stored.extra_model_outputs["version"].tolist()


@pytest.mark.parametrize("kind", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
def test_max_age_samples_recent_steps_uniformly(kind: Any) -> None:
    buffer, policy = kind(300, seed=0), Versioned()
    with SingleAgentEnvRunner("CartPole-v1", policy, num_envs=2, seed=0) as runner:
        with pytest.raises(EpisodeStateError, match="nothing is stored"):
            buffer.sample(4, max_age=1)
        runner.sample_into(buffer, num_timesteps=20)
        with pytest.raises(EpisodeStateError, match="no stored step is of version 0 or newer"):
            buffer.sample(4, max_age=1)
        for version in range(5):
            runner.policy_version = version
            runner.sample_into(buffer, num_timesteps=50)
    for max_age in (0, 1, 3):
        drawn = buffer.sample(4000, keys=["policy_version"], max_age=max_age)
        oldest = 4 - max_age
        assert drawn["policy_version"].min() == oldest
        counts = np.bincount(drawn["policy_version"])[oldest:]
        assert counts.max() < 1.3 * counts.min()
    for wrong in (-1, 1.5):
        with pytest.raises(InvalidArgument, match="max_age="):
            buffer.sample(4, max_age=wrong)


def test_learner_batch_has_policy_versions_and_ages() -> None:
    policy = Versioned()
    with SingleAgentEnvRunner("CartPole-v1", policy, num_envs=2, seed=0) as runner:
        packs = [runner.sample(num_timesteps=10)]
        for _ in range(3):
            update(runner, {"one": policy})
            packs.append(runner.sample(num_timesteps=30))
    pack = EpisodePack.concat(packs)
    batch = learner_pipeline(pieces=[AddPolicyVersions(newest=lambda: 5)])(episodes=pack)
    made = np.where(pack.get_policy_versions() < 0, -1, pack.extra_model_outputs["version"][pack.step_rows()])
    assert batch["policy_version"].tolist() == made.tolist()
    assert batch["policy_age"].tolist() == np.where(made < 0, -1, 5 - made).tolist()
    assert set(made) == {-1, 1, 2, 3}
