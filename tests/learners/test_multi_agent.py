"""Algorithms of several modules: which steps each module learns from, and the state of all modules."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from connectors import AgentToModuleMapping
from episode_learners import DQN, PPO, MLPPolicy, MultiAgentAlgorithm, PPOConfig, QPolicy, linear_decay
from episodes.errors import InvalidArgument, UnknownKey
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode

OBSERVATIONS = {"a": spaces.Box(-1.0, 1.0, (2,)), "b": spaces.Box(-1.0, 1.0, (3,))}
ACTIONS = {"a": spaces.Discrete(2), "b": spaces.Discrete(4)}


def game(num_steps: int, agents: tuple[str, ...] = ("a", "b"), seed: int = 0, **kwargs) -> MultiAgentEpisode:
    """Return an episode in which all agents act at every step, in different spaces, and are truncated at the end."""
    rng = np.random.default_rng(seed)

    def observed() -> dict[str, np.ndarray]:
        return {agent: rng.uniform(-1, 1, OBSERVATIONS[agent[0]].shape).astype(np.float32) for agent in agents}

    episode = MultiAgentEpisode(**kwargs)
    episode.add_env_reset(observations=observed())
    for t in range(num_steps):
        actions = {agent: int(rng.integers(ACTIONS[agent[0]].n)) for agent in agents}
        episode.add_env_step(
            observed(),
            actions,
            {agent: float(actions[agent] == 1) for agent in agents},
            truncateds={"__all__": t == num_steps - 1},
            extra_model_outputs={agent: {"action_logp": np.float32(-np.log(ACTIONS[agent[0]].n))} for agent in agents},
        )
    return episode


def algorithm(modules: tuple[str, ...] = ("a", "b"), **kwargs) -> MultiAgentAlgorithm:
    algorithms = {}
    for seed, module_id in enumerate(modules):
        generator = torch.Generator().manual_seed(seed)
        policy = MLPPolicy(OBSERVATIONS[module_id], ACTIONS[module_id], hidden_sizes=(8,), generator=generator)
        algorithms[module_id] = PPO(policy, PPOConfig(learning_rate=1e-2, gamma=0.0, lambda_=0.0))
    return MultiAgentAlgorithm(algorithms, **kwargs)


def weights(module: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def own_module(agent_id: str, episode: MultiAgentEpisode) -> str:
    return agent_id[0]


def test_update_with_pack_equals_update_with_episodes():
    rng = np.random.default_rng(0)
    agents = [
        SingleAgentEpisode.from_arrays(
            rng.uniform(-1, 1, (21, 2)).astype(np.float32),
            rng.integers(0, 2, 20),
            rng.normal(size=20),
            truncated=True,
            module_id=module_id,
            extra_model_outputs={"action_logp": np.full(20, np.log(0.5), np.float32)},
        )
        for module_id in ("x", "y", "x")
    ]

    def learned(episodes):
        policies = {name: MLPPolicy(OBSERVATIONS["a"], ACTIONS["a"], generator=torch.Generator()) for name in "xy"}
        learner = MultiAgentAlgorithm({name: PPO(policy) for name, policy in policies.items()})
        learner.update(episodes)
        return weights(learner)

    assert all(map(torch.equal, learned(agents), learned(EpisodePack.from_episodes(agents))))


def test_update_trains_modules_with_steps_that_are_not_frozen():
    both, only_a, only_b = (
        [game(20, agents, agent_to_module_mapping_fn=own_module)] for agents in (("a", "b"), ("a",), ("b",))
    )
    assert list(algorithm().update(both)) == ["a", "b"]
    assert list(algorithm().update(only_a)) == ["a"]
    assert list(algorithm(train=["b"]).update(both)) == ["b"]
    without_b = algorithm(("a",), train=["a"])
    assert list(without_b.update(both)) == ["a"]
    assert without_b.update(only_b) == {}


def test_update_without_complete_steps_changes_nothing():
    learner, waiting = algorithm(), game(0)
    before = weights(learner)
    waiting.add_env_step({}, {"a": 1, "b": 0}, {})
    assert learner.update([waiting]) == {}
    assert all(map(torch.equal, before, weights(learner)))


def test_failed_update_of_a_module_undoes_all_modules():
    def made():
        policies = {name: MLPPolicy(OBSERVATIONS["a"], ACTIONS["a"], generator=torch.Generator()) for name in "xyz"}
        kinds = {"x": PPO, "y": DQN, "z": PPO}
        q_policy = QPolicy(OBSERVATIONS["a"], ACTIONS["a"], generator=torch.Generator())
        return MultiAgentAlgorithm(
            {
                name: kinds[name](q_policy if name == "y" else policies[name], scheduler=linear_decay(5))
                for name in kinds
            }
        )

    def sampled(last_reward):
        rng = np.random.default_rng(0)
        arrays = rng.uniform(-1, 1, (21, 2)).astype(np.float32), rng.integers(0, 2, 20)
        outputs = {"extra_model_outputs": {"action_logp": np.full(20, np.log(0.5), np.float32)}, "truncated": True}
        rewards = {name: np.ones(20) for name in "xyz"} | {"z": np.full(20, last_reward)}
        return [SingleAgentEpisode.from_arrays(*arrays, rewards[name], module_id=name, **outputs) for name in rewards]

    learner, expected_learner = made(), made()
    for trained in (learner, expected_learner):
        trained.update(sampled(1.0))
    with pytest.raises(InvalidArgument, match="not finite") as caught:
        learner.update(sampled(np.nan))
    assert caught.value.__notes__ == ["module 'z'"]
    assert learner.update(sampled(2.0)) == expected_learner.update(sampled(2.0))
    assert all(map(torch.equal, weights(learner), weights(expected_learner)))
    assert [learner[name].num_updates for name in "xyz"] == [2, 2, 2]


def test_episodes_without_module_ids_train_the_default_module():
    episode = SingleAgentEpisode.from_arrays(np.zeros((3, 2), np.float32), np.zeros(2, np.int64), np.ones(2))
    assert list(AgentToModuleMapping.packs([episode])) == ["default_policy"]
    assert list(AgentToModuleMapping.packs(EpisodePack.from_episodes([episode]))) == ["default_policy"]


def test_module_without_algorithm_is_named():
    with pytest.raises(UnknownKey, match="'b' acted"):
        algorithm(("a",)).update([game(5, agent_to_module_mapping_fn=own_module)])
    with pytest.raises(UnknownKey, match="the modules are a"):
        algorithm(("a",), train=["c"])


def test_update_without_episodes_raises():
    with pytest.raises(InvalidArgument, match="no episodes"):
        algorithm().update([])


def test_module_ids_may_be_dotted_numbers_or_torch_names():
    ids = ("team.red", "pop", 7, "", "a%2E", "a.")
    policies = {module_id: MLPPolicy(OBSERVATIONS["a"], ACTIONS["a"], hidden_sizes=(8,)) for module_id in ids}
    learner = MultiAgentAlgorithm(
        {module_id: PPO(policy) for module_id, policy in policies.items()}, train=["team.red", 7]
    )
    assert learner.policies == policies
    assert learner[7].policy is policies[7]
    reordered = MultiAgentAlgorithm({module_id: PPO(deepcopy(policy)) for module_id, policy in policies.items()})
    reordered.load_state_dict(learner.state_dict())
    assert torch.equal(weights(reordered)[0], weights(learner)[0])
    with pytest.raises(UnknownKey, match=r"team\.red, pop, 7"):
        MultiAgentAlgorithm({module_id: PPO(policy) for module_id, policy in policies.items()}, train=["blue"])
