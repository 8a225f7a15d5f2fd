"""Multi-agent benchmarks: growing, reading and slicing of episodes, and sampling of CartPole with four agents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.data import ACTION_SPACE, OBSERVATION_SPACE
from benchmarks.figure import Figure, Side, Size, Timed, at_least, at_most
from benchmarks.peers import RLLIB, multi_agent_cartpole

AGENTS = (2, 10)
PERIOD = 100
Read = Callable[[Any], Callable[[], object]]  # from an episode to the call that is timed


@dataclass(frozen=True, slots=True)
class Game:
    """Data of a multi-agent episode: observations of the reset, and observations, actions, rewards and infos of each
    env step.
    """

    agents: list[str]
    first: dict[str, Any]  # observations of the reset
    steps: list[tuple[dict[str, Any], ...]]  # per env step: observations, actions, rewards, infos

    @property
    def num_agent_steps(self) -> int:
        """Number of agent steps: the sum of the actions of all env steps."""
        return sum(len(actions) for _, actions, _, _ in self.steps)


def all_step(num_agents: int, num_steps: int) -> Game:
    """Return a game in which every agent acts in every env step. The data repeat after 100 steps."""
    names = [f"agent_{i}" for i in range(num_agents)]
    rows = np.random.default_rng(0).standard_normal((PERIOD, num_agents, 4), np.float32)
    actions, rewards = dict.fromkeys(names, 1), dict.fromkeys(names, 0.5)
    steps = [(dict(zip(names, row, strict=True)), actions, rewards, {}) for row in rows]
    return Game(names, steps[-1][0], list(islice(cycle(steps), num_steps)))


def in_turns(num_agents: int, num_steps: int) -> Game:
    """Return a game in which one agent acts in each env step, in turns, and the next agent gets the observation."""
    names = [f"agent_{i}" for i in range(num_agents)]
    rows = np.random.default_rng(0).standard_normal((PERIOD, 4), np.float32)
    turns = [(names[t % num_agents], names[(t + 1) % num_agents]) for t in range(PERIOD)]
    steps = [({after: row}, {now: 1}, {now: 0.5}, {}) for row, (now, after) in zip(rows, turns, strict=True)]
    return Game(names, {names[0]: rows[0]}, list(islice(cycle(steps), num_steps)))


def our_class() -> Callable[..., Any]:
    """Return this library's `MultiAgentEpisode`."""
    from episodes.multi_agent import MultiAgentEpisode

    return MultiAgentEpisode


def rllib_class() -> Callable[..., Any]:
    """Return RLlib's `MultiAgentEpisode`."""
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

    return MultiAgentEpisode


def grower(episode_class: Callable[..., Any], game: Game) -> Callable[[], Any]:
    """Return a function that creates a new multi-agent episode and adds all steps of the game."""
    observation_space = gym.spaces.Dict(dict.fromkeys(game.agents, OBSERVATION_SPACE))
    action_space = gym.spaces.Dict(dict.fromkeys(game.agents, ACTION_SPACE))

    def grow() -> Any:
        """Create an episode, add all steps, and return the episode."""
        episode = episode_class(observation_space=observation_space, action_space=action_space)
        episode.add_env_reset(observations=game.first)
        add = episode.add_env_step
        for step in game.steps:
            add(*step)
        return episode

    return grow


def growing(library: Callable[[], Any], make_game: Callable[[int, int], Game], num_agents: int, num_steps: int) -> Side:
    """Return a benchmark side that grows a multi-agent episode, per agent step."""

    def prepare(size: Size) -> Timed:
        game = make_game(num_agents, size(num_steps))
        return Timed(grower(library(), game), game.num_agent_steps)

    return side(library, prepare)


def reading(library: Callable[[], Any], read: Read, num_agents: int, *, finalized: bool) -> Side:
    """Return a benchmark side that reads from a multi-agent episode of 100 env steps, in which every agent acts in
    every step.
    """

    def prepare(size: Size) -> Timed:
        episode = grower(library(), all_step(num_agents, 100))()
        if finalized:
            episode.to_numpy()
        return Timed(read(episode))

    return side(library, prepare)


def side(library: Callable[[], Any], prepare: Callable[[Size], Timed]) -> Side:
    """Return a benchmark side named after the library of the episode class, "ours" or "RLlib"."""
    return Side("RLlib", prepare, RLLIB) if library is rllib_class else Side("ours", prepare)


def sub_episode_reader(episode: Any) -> Callable[[], object]:
    """Return a function that takes a sub-episode of 40 env steps from an episode."""
    return partial(episode.__getitem__, slice(20, 60))


def newest_observations_reader(episode: Any) -> Callable[[], object]:
    """Return a function that reads the newest observations of all agents."""
    return partial(episode.get_observations, -1)


def rewards_reader(episode: Any) -> Callable[[], object]:
    """Return a function that reads all rewards of all agents."""
    return episode.get_rewards


def reading_figure(name: str, num_agents: int, read: Read, times: float) -> Figure:
    """Return a benchmark that compares one kind of read with RLlib. The newest observations are read from a growing
    episode, other data from a finalized one.
    """
    ours, rllib = (
        reading(library, read, num_agents, finalized=read is not newest_observations_reader)
        for library in (our_class, rllib_class)
    )
    return Figure(f"multi_agent/{name}, {num_agents} agents", ours, rllib, at_least(times), "us")


def growing_figure(name: str, game: Callable[[int, int], Game], num_agents: int, times: float) -> Figure:
    """Return a benchmark that compares growing an episode of 1,000 env steps with RLlib."""
    ours, rllib = (growing(library, game, num_agents, 1000) for library in (our_class, rllib_class))
    return Figure(f"multi_agent/{name}, {num_agents} agents", ours, rllib, at_least(times), "us")


def flat_figure(name: str, game: Callable[[int, int], Game], num_agents: int) -> Figure:
    """Return a benchmark that compares the cost of a step in a long episode (10,000 env steps) with the cost in a short
    episode (100).
    """
    short = Side("ours, 100 steps", growing(our_class, game, num_agents, 100).prepare)
    return Figure(f"multi_agent/{name}", growing(our_class, game, num_agents, 10_000), short, at_most(1.3), "us")


def sampling(size: Size) -> Timed:
    """Time sampling of CartPole with four agents that share a policy by this library's runner, per env step."""
    from episode_learners import MLPPolicy
    from episode_runners.multi_agent import MultiAgentEnvRunner

    policy = MLPPolicy(OBSERVATION_SPACE, ACTION_SPACE)
    runner = MultiAgentEnvRunner(
        multi_agent_cartpole.MultiAgentCartPole,
        {"shared": policy},
        agent_to_module_mapping_fn=lambda agent, episode: "shared",
    )
    count = size(500)
    return Timed(lambda: runner.sample(num_timesteps=count), count)


SAMPLING = Side("ours", sampling)
RLLIB_SAMPLING = Side("RLlib", multi_agent_cartpole.rllib_sampling, RLLIB)

FIGURES = (
    *(growing_figure("step, all step", all_step, num_agents, 4) for num_agents in AGENTS),
    growing_figure("step, in turns", in_turns, 10, 10),
    flat_figure("step, 10,000 env steps, all step", all_step, 2),
    flat_figure("step, 10,000 env steps, in turns", in_turns, 10),
    *(reading_figure("[20:60]", num_agents, sub_episode_reader, 50) for num_agents in AGENTS),
    *(reading_figure("get_observations(-1)", num_agents, newest_observations_reader, 3) for num_agents in AGENTS),
    *(reading_figure("get_rewards()", num_agents, rewards_reader, 10) for num_agents in AGENTS),
    Figure("multi_agent/sampling, 4 agents", SAMPLING, RLLIB_SAMPLING, at_least(3), "steps/s"),
)
