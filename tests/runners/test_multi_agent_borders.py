"""Preprocessors, hooks, interrupts and failing environments of users in `MultiAgentEnvRunner`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pettingzoo
import pytest
import torch
from gymnasium import spaces

from connectors import multi_agent_env_to_module, multi_agent_learner
from connectors.env_to_module import MeanStdFilter, MultiAgentObservationPreprocessor, ObservationPreprocessor
from episode_runners import MultiAgentEnvRunner, evaluate
from episodes.errors import InvalidArgument, WrongType
from episodes.multi_agent import MultiAgentEpisode

AGENTS = ("p0", "p1")
ACTIONS = spaces.Discrete(3)
PLACE = spaces.Box(-99, 99, (1,), np.float32)


class Meeting:
    """Agents observe the time plus 100 per agent. p1 skips every second step. The episode ends at time 4."""

    observation_spaces = dict.fromkeys(AGENTS, PLACE)
    action_space = ACTIONS
    closed = 0

    def __init__(self, length: int = 4, fails_at: int | None = None) -> None:
        self.length, self.fails_at = length, fails_at

    def _observed(self) -> dict[str, np.ndarray]:
        present = ["p0"] if self.t % 2 and self.t < self.length else AGENTS
        return {agent: np.array([self.t + 100 * AGENTS.index(agent)], np.float32) for agent in present}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return self._observed(), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        if self.t == self.fails_at:
            raise RuntimeError("the environment broke")
        observations = self._observed()
        over = self.t == self.length
        return observations, dict.fromkeys(AGENTS, 0.1 * self.t), {"__all__": over}, {"__all__": False}, {}

    def close(self) -> None:
        Meeting.closed += 1


class Numbered:
    """Policy whose actions count its rows, modulo 3."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        rows = len(batch["obs"])
        self.asked += rows
        return {"actions": torch.arange(self.asked - rows, self.asked) % 3}


class Twice(ObservationPreprocessor):
    """Preprocessor that repeats each observation, and so changes its shape."""

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        return spaces.Box(-99, 99, (2,), np.float32)

    def preprocess(self, observation: Any, episode: Any) -> Any:
        return np.repeat(observation, 2)


@pytest.mark.parametrize("calls", [[100], [3, 4, 5, 9]])
def test_preprocessor_may_change_shapes_across_chunks(calls: list[int]) -> None:
    pipelines = multi_agent_env_to_module({"default_policy": PLACE}, {"default_policy": ACTIONS}, pieces=[Twice()])
    runner = MultiAgentEnvRunner(partial(Meeting, 9), Numbered(), env_to_module=pipelines)
    chunks = [chunk for num_timesteps in calls for chunk in runner.sample(num_timesteps=num_timesteps)]
    for chunk in chunks:
        for agent_episode in chunk.agent_episodes.values():
            observations = agent_episode.get_observations()
            assert observations.shape == (len(agent_episode) + 1, 2)
            assert np.array_equal(observations[:, 0], observations[:, 1])
            assert agent_episode.observation_space.shape == (2,)


def test_agent_truncated_within_step_repeats_observation() -> None:
    class Cut(Meeting):
        def step(self, actions: Any) -> Any:
            observations, rewards, _, _, infos = super().step(actions)
            return observations, rewards, {}, {"__all__": self.t == 3}, infos

    pipelines = multi_agent_env_to_module({"default_policy": PLACE}, {"default_policy": ACTIONS}, pieces=[Twice()])
    runner = MultiAgentEnvRunner(Cut, Numbered(), env_to_module=pipelines, missing_final_observation="repeat")
    (episode,) = runner.sample(num_episodes=1)
    assert episode.agent_episodes["p1"].get_observations().tolist() == [[100, 100], [102, 102], [102, 102]]


class Centered(MultiAgentObservationPreprocessor):
    """Preprocessor that appends to each observation the mean of all observations of the env step."""

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        return spaces.Dict(dict.fromkeys(input_observation_space.spaces, spaces.Box(-999, 999, (2,), np.float32)))

    def preprocess(self, observations: Any, episode: Any) -> Any:
        if episode is not None:
            assert isinstance(episode, MultiAgentEpisode)
            assert episode.get_observations(-1).keys() == observations.keys()
        mean = np.mean(list(observations.values()), axis=0)
        return {agent: np.concatenate([agent_episode, mean]) for agent, agent_episode in observations.items()}


SEEN = spaces.Box(-999, 999, (2,), np.float32)


@pytest.mark.parametrize("num_timesteps", [4, 3])
def test_joint_preprocessor_sees_all_agents(num_timesteps: int) -> None:
    mapping = lambda agent_id, episode: agent_id  # noqa: E731
    observation_spaces, actions = dict.fromkeys(AGENTS, SEEN), dict.fromkeys(AGENTS, ACTIONS)
    policies = {agent: Numbered() for agent in AGENTS}
    pipelines = multi_agent_env_to_module(observation_spaces, actions, joint=[Centered()])
    acting = MultiAgentEnvRunner(
        Meeting, policies, env_to_module=pipelines, agent_to_module_mapping_fn=mapping, num_envs=2, seed=0
    )
    raw = MultiAgentEnvRunner(
        Meeting, {a: Numbered() for a in AGENTS}, agent_to_module_mapping_fn=mapping, num_envs=2, seed=0
    )
    learner = multi_agent_learner(observation_spaces, actions)
    joint = multi_agent_learner(observation_spaces, actions, joint=[Centered()])
    for _ in range(4):
        chunks, raw_chunks = acting.sample(num_timesteps=num_timesteps), raw.sample(num_timesteps=num_timesteps)
        stored, rewritten = learner(episodes=chunks), joint(episodes=raw_chunks)
        for agent_id in AGENTS:
            assert torch.equal(stored[agent_id]["obs"], rewritten[agent_id]["obs"])
    (first, *_) = acting.sample(num_episodes=2)
    assert first.agent_episodes["p0"].get_observations().tolist() == [[0, 50], [1, 1], [2, 52], [3, 3], [4, 54]]
    assert first.agent_episodes["p1"].get_observations().tolist() == [[100, 50], [102, 52], [104, 54]]
    assert first.agent_episodes["p1"].observation_space == SEEN


def test_joint_preprocessor_runs_first_and_has_state() -> None:
    class Counting(Centered):
        count = 0

        def preprocess(self, observations: Any, episode: Any) -> Any:
            self.count += 1
            return super().preprocess(observations, episode)

        def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            return {"count": self.count}

        def set_state(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    def runner() -> MultiAgentEnvRunner:
        spaces = ({"default_policy": SEEN}, {"default_policy": ACTIONS})
        pipelines = multi_agent_env_to_module(*spaces, pieces=lambda: [MeanStdFilter()], joint=[Counting()])
        return MultiAgentEnvRunner(Meeting, Numbered(), env_to_module=pipelines, seed=0)

    first, second = runner(), runner()
    first.sample(num_episodes=2)
    state = first.get_state()
    assert state["env_to_module"]["__joint__"] == {"Counting": {"count": 10}}
    second.set_state(state)
    assert str(second.get_state()) == str(state)
    evaluate(first, num_episodes=1)
    assert str(first.get_state()) == str(state)


def test_joint_preprocessor_rewrites_newest_observations_once() -> None:
    episode, piece = MultiAgentEpisode(), Centered()
    episode.add_env_reset(observations={"a": np.array([1.0]), "b": np.array([3.0])})
    for _ in range(2):
        piece(batch={}, episodes=[episode])
    assert episode.agent_episodes["a"].get_observations(-1).tolist() == [1.0, 2.0]


GIVES = {"none": lambda observations: {}, "a list": list, "more": lambda observations: {**observations, "p9": 1}}


@pytest.mark.parametrize("wrong", GIVES.values(), ids=GIVES)
def test_joint_preprocessor_with_other_agents_raises(wrong: Any) -> None:
    class Wrong(MultiAgentObservationPreprocessor):
        def preprocess(self, observations: Any, episode: Any) -> Any:
            return wrong(observations)

    pipelines = multi_agent_env_to_module({"default_policy": PLACE}, {"default_policy": ACTIONS}, joint=[Wrong()])
    runner = MultiAgentEnvRunner(Meeting, Numbered(), env_to_module=pipelines)
    with pytest.raises(InvalidArgument, match=r"Wrong.preprocess got observations of \['p0', 'p1'\] and returned"):
        runner.sample(num_timesteps=1)
    assert not runner.take()


def test_joint_preprocessor_of_agent_episodes_raises() -> None:
    (episode,) = MultiAgentEnvRunner(Meeting, Numbered()).sample(num_episodes=1)
    learner = multi_agent_learner({"default_policy": SEEN}, {"default_policy": ACTIONS}, joint=[Centered()])
    with pytest.raises(InvalidArgument, match="reads the observations of all agents at once"):
        learner(episodes=list(episode.agent_episodes.values()))


def test_agent_rewards_are_float32_by_default() -> None:
    for dtype, result in ((np.float32, np.float32), (None, np.float64), (np.float64, np.float64)):
        runner = MultiAgentEnvRunner(Meeting, Numbered(), reward_dtype=dtype, len_lookback_buffer=2)
        for chunk in [*runner.sample(num_timesteps=3), *runner.sample(num_timesteps=3)]:
            for agent_episode in chunk.agent_episodes.values():
                assert agent_episode.get_rewards().dtype == result
    assert MultiAgentEnvRunner(Meeting, Numbered()).sample(num_episodes=1)[0].get_return() == pytest.approx(2.0)


def test_broken_environment_leaves_whole_steps() -> None:
    made = iter([Meeting(9), Meeting(9, fails_at=3), Meeting(9)])
    runner = MultiAgentEnvRunner(lambda: next(made), Numbered(), num_envs=3)
    with pytest.raises(RuntimeError, match="the environment broke"):
        runner.sample(num_timesteps=500)
    assert [len(chunk) for chunk in runner.take()] == [2, 2, 2]
    runner.close()

    class StaysOpen(Meeting):
        def close(self) -> None:
            raise OSError("it does not close")

    Meeting.closed = 0
    made = iter([Meeting(), StaysOpen(), Meeting()])
    runner = MultiAgentEnvRunner(lambda: next(made), Numbered(), num_envs=3)
    with pytest.raises(OSError, match="it does not close"):
        runner.close()
    assert Meeting.closed == 2
    runner.close()


def test_failing_preprocessor_leaves_no_half_rewritten_rows() -> None:
    class Fails(Twice):
        asked = 0

        def preprocess(self, observation: Any, episode: Any) -> Any:
            self.asked += 1
            if self.asked == 6:
                raise RuntimeError("no")
            return super().preprocess(observation, episode)

    pipelines = multi_agent_env_to_module({"default_policy": PLACE}, {"default_policy": ACTIONS}, pieces=[Fails()])
    runner = MultiAgentEnvRunner(partial(Meeting, 9), Numbered(), env_to_module=pipelines)
    with pytest.raises(RuntimeError, match="no"):
        runner.sample(num_timesteps=500)
    (left,) = runner.take()
    assert len(left) == 2
    assert left.agent_episodes["p0"].get_observations().tolist() == [[0, 0], [1, 1], [2, 2]]


class Putting(Numbered):
    """Recurrent policy that outputs its inputs, and counts its steps in the state."""

    def get_initial_state(self) -> dict[str, Any]:
        return {"count": np.full(1, 7, np.float32)}

    def __call__(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        rows = len(batch["obs"])
        outputs = {"seen": batch["obs"][..., 0]} | ({"explored": torch.ones(rows, 1)} if explore else {})
        count = batch["state_in"]["count"] + 1
        return {"actions": torch.zeros(rows, 1).int(), "state_out": {"count": count}, **outputs}


class FirstLegal:
    """Policy that takes Connect Four's first legal column, and outputs its input."""

    def __call__(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        obs = batch["obs"]
        return {"actions": obs["action_mask"].argmax(1), "seen": obs["observation"].float().mean((1, 2, 3))}


@pytest.mark.parametrize("lookback", [0, 2])
@pytest.mark.parametrize(
    ("make", "policy"),
    [(partial(Meeting, 9), Putting), (partial(pettingzoo.make, "aec", "classic/connect_four_v3"), FirstLegal)],
    ids=["resting", "turns"],
)
def test_agent_with_pending_action_may_be_cut_anywhere(make: Any, policy: Any, lookback: int) -> None:
    runner = MultiAgentEnvRunner(make, policy(), seed=0, len_lookback_buffer=lookback)
    own_steps = 0
    for num_timesteps in (1, 3, 2, 1, 1, 2, 5):
        for kind in ({"random_actions": True}, {}, {"explore": False}):
            for chunk in runner.sample(num_timesteps=num_timesteps, **kind):
                chunk.validate()
                for agent_episode in chunk.agent_episodes.values():
                    for t in range(len(agent_episode)):
                        outputs = {
                            key: agent_episode.get_extra_model_outputs(key, t)
                            for key in agent_episode.extra_model_outputs
                        }
                        own_steps += bool(outputs)
                        if policy is Putting and outputs and outputs["state_out"]["count"] != 7:  # the policy's own
                            assert outputs["seen"] in (agent_episode.get_observations(t)[0], 0)
    assert own_steps


def test_outputs_of_pending_action_survive_a_cut() -> None:
    runner = MultiAgentEnvRunner(partial(Meeting, 9), Putting(), seed=0)
    runner.sample(num_timesteps=1)  # p1 has acted, and waits
    chunk = runner.sample(num_timesteps=3, explore=False)[0].agent_episodes["p1"]
    assert chunk.get_extra_model_outputs("state_out")["count"].ravel().tolist() == [8, 9]
    assert set(chunk.extra_model_outputs) == {"seen", "state_out"}


GOOD = ({"p0": np.zeros(1, np.float32)}, {"p0": 1.0}, {"__all__": False}, {"__all__": False}, {})
ODD_STEPS = {
    "four": (GOOD[:4], "returned 4 items; return .observations, rewards, terminateds, truncateds, infos."),
    "nothing": (None, "returned a NoneType"),
    "a reward for all": ((GOOD[0], 1.0, *GOOD[2:]), "rewards are a float; give a dict by agent"),
    "a flag for all": ((*GOOD[:2], False, *GOOD[3:]), "terminateds are a bool"),
    "no flags": ((*GOOD[:3], None, GOOD[4]), "truncateds are a NoneType"),
}


@pytest.mark.parametrize(("arguments", "message"), ODD_STEPS.values(), ids=ODD_STEPS)
def test_malformed_multi_agent_step_names_environment_and_step(arguments: Any, message: str) -> None:
    class Odd(Meeting):
        def step(self, actions: Any) -> Any:
            step = super().step(actions)
            return arguments if self.t == 3 else step

    runner = MultiAgentEnvRunner(Odd, num_envs=2, seed=0)
    with pytest.raises(WrongType, match=rf"\.step:? {message}") as caught:
        runner.sample(num_timesteps=30, random_actions=True)
    assert caught.value.__notes__ == ["environment 0, env step 3 of its episode"]
    assert [len(chunk) for chunk in runner.take()] == [2, 2]


@pytest.mark.parametrize("arguments", [{"p0": 0}, None, ([0], {})])
def test_malformed_multi_agent_reset_is_named(arguments: Any) -> None:
    class Odd(Meeting):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return arguments

    with pytest.raises(WrongType, match=r"\.reset(:| returned)"):
        MultiAgentEnvRunner(Odd, seed=0).sample(num_timesteps=30, random_actions=True)


def test_reused_observations_and_infos_are_recorded_as_copies() -> None:
    class Reusing(Meeting):
        def reset(self, **options: Any) -> Any:
            self.rows = {agent: np.zeros(1, np.float32) for agent in AGENTS}
            self.told: Any = {"p0": {"t": 0, "seen": [0], "at": np.zeros(1)}}
            return super().reset(**options)[0], self.told

        def step(self, actions: Any) -> Any:
            step = super().step(actions)
            self.told["p0"]["t"] = self.told["p0"]["at"][0] = self.t
            self.told["p0"]["seen"].append(self.t)
            return *step[:4], self.told

        def _observed(self) -> dict[str, np.ndarray]:
            for agent, row in super()._observed().items():
                self.rows[agent][:] = row
            return self.rows

    with MultiAgentEnvRunner(Reusing) as runner:
        (episode,) = runner.sample(num_episodes=1, random_actions=True)
    assert episode.get_observations(agent_ids="p0")["p0"][:, 0].tolist() == [0, 1, 2, 3, 4]
    infos = episode.get_infos()["p0"]
    assert [(info["t"], info["seen"], info["at"].tolist()) for info in infos] == [
        (t, list(range(t + 1)), [t]) for t in range(5)
    ]
