"""Rewriters among joint preprocessors: each agent's observations pass through a separate copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from connectors import (
    MultiAgentEnvToModule,
    env_to_module_pipeline,
    multi_agent_env_to_module,
    multi_agent_learner,
)
from connectors.env_to_module import FlattenObservations, ForEachAgent, FrameStacking, MeanStdFilter
from episode_runners import MultiAgentEnvRunner, evaluate
from episodes import EpisodePack
from episodes.errors import InvalidArgument, WrongType
from episodes.tracks import nested
from tests.reference import numbered

ACTIONS = spaces.Discrete(2)
SEEN = {
    "walker": spaces.Dict(place=spaces.Box(-99, 99, (2, 2), np.float32), gear=spaces.Discrete(3)),
    "flyer": spaces.Box(-999, 999, (3,), np.float32),
}
FLAT = {"walker": spaces.flatten_space(SEEN["walker"]), "flyer": SEEN["flyer"]}


class Meeting:
    """Environment with a walker at every env step and a flyer at every second env step. It ends at time 6."""

    observation_spaces = SEEN
    action_space = ACTIONS

    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)

    def observed(self) -> dict[str, Any]:
        place = self.rng.normal(3, 7, (2, 2)).astype(np.float32)
        walker = {"place": place, "gear": np.int64(self.rng.integers(3))}
        flyer = self.rng.normal([100, 0, -5], [30, 1, 2]).astype(np.float32)
        return {"walker": walker, "flyer": flyer} if self.t % 2 == 0 else {"walker": walker}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return self.observed(), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        return self.observed(), dict.fromkeys(SEEN, 1.0), {"__all__": self.t == 6}, {"__all__": False}, {}


def left(batch: Any, explore: bool | None = None) -> dict[str, Any]:
    return {"actions": torch.zeros(len(nested.first_leaf(batch["obs"]))).long()}


def runner_of(observation_spaces: Any, *joint: Any) -> MultiAgentEnvRunner:
    pipelines = multi_agent_env_to_module(observation_spaces, dict.fromkeys(observation_spaces, ACTIONS), joint=joint)
    mapping = lambda agent_id, episode: agent_id  # noqa: E731
    policies = dict.fromkeys(SEEN, left)
    return MultiAgentEnvRunner(Meeting, policies, env_to_module=pipelines, agent_to_module_mapping_fn=mapping, seed=0)


def raw() -> MultiAgentEnvRunner:
    """Return the same agents' observations without any connector."""
    return MultiAgentEnvRunner(
        Meeting, dict.fromkeys(SEEN, left), agent_to_module_mapping_fn=lambda agent_id, episode: agent_id, seed=0
    )


@pytest.mark.parametrize("agent_ids", [None, ["walker"], ["flyer"], [], ("walker", "flyer", "nobody")])
@pytest.mark.parametrize("num_timesteps", [4, 12])
def test_named_agents_are_flattened_and_others_unchanged(agent_ids: Any, num_timesteps: int) -> None:
    chosen = set(SEEN if agent_ids is None else agent_ids)
    observation_spaces = {agent: (FLAT if agent in chosen else SEEN)[agent] for agent in SEEN}
    found_all = runner_of(observation_spaces, FlattenObservations(multi_agent=True, agent_ids=agent_ids))
    given_all = raw()
    for _ in range(3):
        chunks = (runner.sample(num_timesteps=num_timesteps) for runner in (found_all, given_all))
        for rewritten, raw_episode in zip(*chunks, strict=True):
            for agent_id, space in SEEN.items():
                rewritten_agent, raw_agent = (episode.agent_episodes[agent_id] for episode in (rewritten, raw_episode))
                assert (rewritten_agent.observation_space, len(rewritten_agent)) == (
                    observation_spaces[agent_id],
                    len(raw_agent),
                )
                for t in range(len(raw_agent) + 1):
                    expected = raw_agent.get_observations(t)
                    expected = spaces.flatten(space, expected) if agent_id in chosen else expected
                    assert nested.equal(rewritten_agent.get_observations(t), expected)


def slowly_filtered(observations: list[np.ndarray]) -> list[np.ndarray]:
    """Return each observation normalized by the mean and deviation of the observations so far."""
    rows = np.array(observations, np.float64)
    filtered = []
    for t in range(1, len(rows) + 1):
        deviation = rows[:t].std(0, ddof=1) if t > 1 else np.ones_like(rows[0])
        filtered.append(np.clip((rows[t - 1] - rows[:t].mean(0)) / (deviation + 1e-8), -10, 10))
    return filtered


def test_each_agent_has_separate_statistics() -> None:
    runner = runner_of(FLAT, FlattenObservations(agent_ids=["walker"]), MeanStdFilter(multi_agent=True))
    rewritten_chunks, raw_chunks = runner.sample(num_episodes=3), raw().sample(num_episodes=3)
    for agent_id, space in SEEN.items():
        rewritten_rows = np.concatenate([e.agent_episodes[agent_id].get_observations() for e in rewritten_chunks])
        raw_agents = [e.agent_episodes[agent_id] for e in raw_chunks]
        flat = [
            spaces.flatten(space, raw_agent.get_observations(t))
            for raw_agent in raw_agents
            for t in range(len(raw_agent) + 1)
        ]
        np.testing.assert_allclose(rewritten_rows, slowly_filtered(flat), rtol=1e-4, atol=1e-4)
        known = runner.get_state()["env_to_module"]["__joint__"]["MeanStdFilter"]["agents"][agent_id]
        assert known["own"][""]["count"] == len(flat)


def test_agent_statistics_are_saved_and_fixed_in_evaluation() -> None:
    joint = (FlattenObservations(agent_ids=["walker"]), MeanStdFilter(multi_agent=True))
    runner, second_runner = runner_of(FLAT, *joint), runner_of(FLAT, *joint)
    runner.sample(num_episodes=2)
    state = runner.get_state()
    evaluate(runner, num_episodes=1)
    runner.sample(num_episodes=1, explore=False)
    assert str(runner.get_state()["env_to_module"]) == str(state["env_to_module"])
    second_runner.set_state(state)
    assert str(second_runner.get_state()["env_to_module"]) == str(state["env_to_module"])
    second_runner.sample(num_episodes=1)
    merged = runner.env_to_module.merge_states([r.env_to_module.get_state() for r in (runner, runner)])
    counts = {a: s["synced"][""]["count"] for a, s in merged["__joint__"]["MeanStdFilter"]["agents"].items()}
    assert counts == {"walker": 28, "flyer": 16}
    runner.env_to_module.reset_state()
    assert runner.get_state()["env_to_module"]["__joint__"]["MeanStdFilter"]["agents"].keys() == SEEN.keys()


def test_learner_of_raw_episodes_equals_recorded_rewriting() -> None:
    observation_spaces = {"walker": FLAT["walker"], "flyer": SEEN["flyer"]}
    actions, pieces = dict.fromkeys(observation_spaces, ACTIONS), [FlattenObservations(agent_ids=["walker"])]
    acting = runner_of(observation_spaces, *pieces)
    stored = multi_agent_learner(observation_spaces, actions)(episodes=acting.sample(num_episodes=2))
    learner = multi_agent_learner(observation_spaces, actions, joint=pieces)
    raw_runner = raw()
    rewritten = learner(episodes=raw_runner.sample(num_episodes=2))
    for agent_id in SEEN:
        assert torch.equal(stored[agent_id]["obs"], rewritten[agent_id]["obs"])


def test_joint_connector_in_module_pipeline_is_rejected() -> None:
    box = SEEN["flyer"]
    with pytest.raises(InvalidArgument, match=r"give it as joint=\[...\]; in the pieces .* ForEachAgent"):
        env_to_module_pipeline(box, ACTIONS, pieces=[MeanStdFilter(multi_agent=True)])
    with pytest.raises(InvalidArgument, match=r"agent_ids=\['a'\].*: the agents of one module have one space"):
        env_to_module_pipeline(box, ACTIONS, pieces=[FlattenObservations(agent_ids=["a"])])


@pytest.mark.parametrize("piece", [FrameStacking(num_frames=2), len])
def test_joint_connector_without_rewrite_is_rejected(piece: Any) -> None:
    with pytest.raises(WrongType, match=r"joint=.*put others into the modules' pipelines"):
        MultiAgentEnvToModule({}, joint=[piece])


def test_for_each_agent_works_as_joint_connector() -> None:
    first, second = (
        runner_of(FLAT, FlattenObservations(), piece) for piece in (MeanStdFilter(), ForEachAgent(MeanStdFilter))
    )
    first_sample, second_sample = (runner.sample(num_episodes=2) for runner in (first, second))
    for first_episode, second_episode in zip(first_sample, second_sample, strict=True):
        for agent_id, agent_episode in first_episode.agent_episodes.items():
            other = numbered(EpisodePack.from_episodes([second_episode.agent_episodes[agent_id]]))
            assert numbered(EpisodePack.from_episodes([agent_episode])) == other
