"""CartPole with four agents, and RLlib's runner and PPO for this environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from benchmarks.data import ACTION_SPACE, OBSERVATION_SPACE
from benchmarks.figure import Counted, Size, Timed, cpu_seconds

AGENTS = tuple(f"agent_{i}" for i in range(4))
FIVE = tuple[dict[str, Any], ...]


class MultiAgentCartPole:
    """Environment with four independent CartPoles, one per agent. An agent ends when its pole falls, and the last agent
    ends the episode.
    """

    def __init__(self) -> None:
        self.poles = {agent: gym.make("CartPole-v1") for agent in AGENTS}
        self.agents: list[str] = []
        self.possible_agents = list(AGENTS)
        self.observation_spaces = dict.fromkeys(AGENTS, OBSERVATION_SPACE)
        self.action_spaces = dict.fromkeys(AGENTS, ACTION_SPACE)

    def observation_space(self, agent: str) -> gym.Space:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gym.Space:
        return self.action_spaces[agent]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reset all CartPoles, and return the first observations and infos by agent."""
        self.agents = list(AGENTS)
        seeds = {agent: None if seed is None else seed + i for i, agent in enumerate(AGENTS)}
        results = {agent: pole.reset(seed=seeds[agent]) for agent, pole in self.poles.items()}
        return {agent: result[0] for agent, result in results.items()}, {agent: {} for agent in AGENTS}

    def step(self, actions: dict[str, Any]) -> FIVE:
        """Step the CartPole of each agent in `actions`, and return observations, rewards, terminateds, truncateds and
        infos by agent.
        """
        results = {agent: self.poles[agent].step(int(action)) for agent, action in actions.items()}
        observations, rewards, terminateds, truncateds, infos = (
            {agent: result[i] for agent, result in results.items()} for i in range(5)
        )
        self.agents = [agent for agent in self.agents if not (terminateds[agent] or truncateds[agent])]
        over = not self.agents
        terminateds["__all__"] = over and all(terminateds.values())
        truncateds["__all__"] = over and not terminateds["__all__"]
        return observations, rewards, terminateds, truncateds, infos

    def close(self) -> None:
        for pole in self.poles.values():
            pole.close()


def rllib_sampling(size: Size) -> Timed:
    """Time sampling by RLlib's `MultiAgentEnvRunner` with one module for all agents, per env step."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner

    config = (
        PPOConfig()
        .environment(rllib_environment())
        .env_runners(num_env_runners=0, num_envs_per_env_runner=1, rollout_fragment_length=500)
        .multi_agent(policies={"shared"}, policy_mapping_fn=lambda agent, episode, **kwargs: "shared")
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
    )
    runner = MultiAgentEnvRunner(config=config)
    count = size(500)
    return Timed(lambda: runner.sample(num_timesteps=count), count)


def rllib_environment() -> type:
    """Return the environment as a subclass of RLlib's `MultiAgentEnv`."""
    from ray.rllib.env.multi_agent_env import MultiAgentEnv

    base: Any = MultiAgentEnv

    class RLlibCartPole(base):
        """`MultiAgentCartPole` as an RLlib environment."""

        def __init__(self, config: Any = None) -> None:
            super().__init__()
            self.inner = MultiAgentCartPole()
            self.agents = self.possible_agents = list(AGENTS)
            self.observation_spaces = self.inner.observation_spaces
            self.action_spaces = self.inner.action_spaces

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
            return self.inner.reset(seed=seed, options=options)

        def step(self, actions: dict[str, Any]) -> FIVE:
            return self.inner.step(actions)

    return RLlibCartPole


def rllib_learning(size: Size, steps: int, epochs: int, minibatch: int) -> Counted:
    """Measure the CPU seconds of RLlib's multi-agent PPO per agent step, with one module for all agents."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    config = (
        PPOConfig()
        .environment(rllib_environment())
        .env_runners(num_env_runners=0, num_envs_per_env_runner=1)
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=size(steps), num_epochs=epochs, minibatch_size=minibatch)
        .multi_agent(policies={"shared"}, policy_mapping_fn=lambda agent, episode, **kwargs: "shared")
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
    )
    algorithm = config.build_algo()
    algorithm.train()
    began = cpu_seconds()
    result = algorithm.train()
    spent = cpu_seconds() - began
    algorithm.stop()
    return Counted(spent / sum(result["env_runners"]["num_agent_steps_sampled"].values()))
