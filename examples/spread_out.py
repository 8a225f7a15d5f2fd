"""Two agents learn to cover two landmarks, with one shared policy or with separate policies.

    python examples/spread_out.py            # one policy
    python examples/spread_out.py --separate # two

The environment is `simple_spread` of PettingZoo's particle world (`pip install mpe2`). Its reward is the negative sum
of the distances from the landmarks to their nearest agents, with a penalty for collisions. Random actions have a mean
return of about -44 per episode. Both variants reach about -28.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np
import torch
from mpe2 import simple_spread_v3
from tqdm import tqdm

from episode_learners import PPO, MLPPolicy, MultiAgentAlgorithm, PPOConfig, linear_decay
from episode_runners import MultiAgentEnvRunner
from episodes.multi_agent import MultiAgentEpisode

NUM_ENVS = 8
STEPS_PER_UPDATE = 1000  # summed over all environments: 5 episodes in each
CONFIG = PPOConfig(learning_rate=2e-3, gamma=0.95, lambda_=0.9, num_epochs=8, minibatch_size=256)


def make_env():
    """Create an environment with two agents, two landmarks and 25 steps per episode."""
    return simple_spread_v3.parallel_env(N=2, max_cycles=25)


def module_of(separate: bool) -> Callable[[str, MultiAgentEpisode], str]:
    """Return the function that maps agents to modules: one module per agent if `separate`, else one for all."""
    return lambda agent_id, episode: agent_id if separate else "shared"


def learner_for(runner_env, separate: bool, num_steps: int, seed: int) -> MultiAgentAlgorithm:
    """Create a multi-agent algorithm with one PPO per module."""
    agents = runner_env.possible_agents if separate else runner_env.possible_agents[:1]
    algorithms = {}
    for i, agent in enumerate(agents):
        generator = torch.Generator().manual_seed(seed + i)
        policy = MLPPolicy(runner_env.observation_space(agent), runner_env.action_space(agent), generator=generator)
        schedule = linear_decay(num_steps // STEPS_PER_UPDATE)
        algorithms[agent if separate else "shared"] = PPO(policy, CONFIG, scheduler=schedule, seed=seed + i)
    return MultiAgentAlgorithm(algorithms)


def train(*, separate: bool, num_steps: int = 40_000, seed: int = 0) -> list[float]:
    """Train, and return the mean return of the sampled episodes for each update, summed over both agents."""
    learner = learner_for(make_env(), separate, num_steps, seed)
    runner = MultiAgentEnvRunner(
        make_env, learner.policies, num_envs=NUM_ENVS, agent_to_module_mapping_fn=module_of(separate), seed=seed
    )
    means = []
    with tqdm(total=num_steps, unit=" steps", unit_scale=True) as bar:
        while runner.num_env_steps < num_steps:
            episodes = runner.sample(num_timesteps=STEPS_PER_UPDATE)
            learner.update(episodes)
            means.append(float(np.mean(runner.stats.returns)))
            bar.set_postfix_str(f"return {means[-1]:.1f}", refresh=False)
            bar.update(runner.stats.num_env_steps)
    return means


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print the mean return of the first and of the last updates."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--separate", action="store_true", help="use a separate policy for each agent")
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    means = train(separate=chosen.separate, num_steps=chosen.steps, seed=chosen.seed)
    print(f"mean return of an episode: {means[0]:.1f} at first, {np.mean(means[-5:]):.1f} at last")


if __name__ == "__main__":
    main()
