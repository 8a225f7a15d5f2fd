"""Several agents and modules in all three pipelines: which rows each module acts on and learns from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from connectors import (
    AgentToModuleMapping,
    Connector,
    learner_pipeline,
    multi_agent_env_to_module,
    multi_agent_learner,
    multi_agent_module_to_env,
)
from connectors.env_to_module import ForEachAgent, MeanStdFilter
from connectors.learner import GeneralizedAdvantageEstimation
from connectors.module_to_env import ModuleToAgentUnmapping
from episodes.errors import InvalidArgument, StateMismatch, TrackMismatch, UnknownKey
from episodes.multi_agent import MultiAgentEpisode
from episodes.single_agent import SingleAgentEpisode

OBSERVATION_SPACES = {"low": spaces.Box(-99, 99, (2,), np.float32), "high": spaces.Box(-99, 99, (3,), np.float32)}
ACTION_SPACES = {"low": spaces.Discrete(2), "high": spaces.Box(-2.0, 2.0, (1,), np.float32)}
MODULES = {"a": "low", "b": "low", "c": "high"}


def item(agent: str, t: int) -> np.ndarray:
    size = OBSERVATION_SPACES[MODULES[agent]].shape[0]
    return np.array([ord(agent), t, 0][:size], np.float32)


def action(agent: str, t: int):
    return t % 2 if MODULES[agent] == "low" else np.array([t / 10], np.float32)


def episode(num_steps: int = 4, outputs: bool = False) -> MultiAgentEpisode:
    """Return an episode in which a always steps, b skips every second env step, and c has env steps 1 to 3."""
    grown = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, _: MODULES[agent])
    grown.add_env_reset(observations={"a": item("a", 0), "b": item("b", 0)})
    for t in range(1, num_steps + 1):
        acting = grown.get_agents_to_act()
        observed = ["a", *(["b"] if t % 2 == 0 else []), *(["c"] if t <= 3 else [])]
        extra = {x: {"vf": np.float32(t)} for x in acting} if outputs else None
        grown.add_env_step(
            {x: item(x, t) for x in observed},
            {x: action(x, t) for x in acting},
            {x: float(t) for x in "abc" if x in grown.agent_ids and not grown.agent_episodes[x].is_done},
            terminateds={"c": True} if t == 3 else None,
            extra_model_outputs=extra,
        )
    return grown


class LinearPolicy:
    """Policy whose values are ten times the env step, the second part of the observation."""

    def compute_values(self, batch):
        return batch["obs"][:, 1] * 10


class NeitherTrueNorFalse(dict):
    """Dict without a truth value, as TensorDicts are."""

    def __bool__(self):
        raise RuntimeError("no truth value")


class RecurrentPolicy(LinearPolicy):
    def get_initial_state(self):
        return {"h": np.full(2, -1.0, np.float32)}


def test_acting_agents_of_one_module_share_a_batch():
    episodes = [episode(2), episode(3), episode(1)]
    shared = {}
    pipeline = multi_agent_env_to_module(OBSERVATION_SPACES, ACTION_SPACES)
    batch = pipeline(episodes=episodes, shared_data=shared)
    owners = {m: [(seat.place, seat.agent_id) for seat in seats] for m, seats in shared["seats"].items()}
    assert owners == {"low": [(0, "a"), (0, "b"), (1, "a"), (2, "a")], "high": [(0, "c"), (2, "c")]}
    expected = [item("a", 2), item("b", 2), item("a", 3), item("a", 1)]
    torch.testing.assert_close(batch["low"]["obs"], torch.tensor(np.array(expected)))
    torch.testing.assert_close(batch["high"]["obs"], torch.tensor(np.array([item("c", 2), item("c", 1)])))


def test_no_agent_that_must_act_is_no_batch():
    done = episode(2)
    done.add_env_step({}, {}, {}, terminateds={"__all__": True})
    assert AgentToModuleMapping.rows_by_module([done]) == {}
    pipeline = multi_agent_env_to_module(OBSERVATION_SPACES, ACTION_SPACES)
    assert pipeline(episodes=[done]) == {}


def test_rows_go_back_to_the_agents_of_their_environments():
    episodes, shared = [episode(2), episode(3)], {}
    batch = multi_agent_env_to_module(OBSERVATION_SPACES, ACTION_SPACES)(episodes=episodes, shared_data=shared)
    outputs = {
        "low": NeitherTrueNorFalse(actions=torch.tensor([0, 1, 1]), vf_preds=torch.tensor([0.1, 0.2, 0.3])),
        "high": {"actions": torch.tensor([[0.5]]), "state_out": {"h": torch.tensor([[7.0, 8.0]])}},
    }
    assert {m: len(columns["obs"]) for m, columns in batch.items()} == {"low": 3, "high": 1}
    pipeline = multi_agent_module_to_env(OBSERVATION_SPACES, ACTION_SPACES)
    result = pipeline(batch=outputs, episodes=episodes, shared_data=shared)
    assert result["actions"] == [{"a": 0, "b": 1, "c": pytest.approx(0.5)}, {"a": 1}]
    assert result["actions_for_env"][0]["c"] == pytest.approx(1.0)  # spread over the bounds of its own space
    assert result["extra_model_outputs"][1] == {"a": {"vf_preds": pytest.approx(0.3)}}
    assert result["extra_model_outputs"][0]["c"]["state_out"]["h"].tolist() == [7.0, 8.0]


def test_output_with_missing_rows_names_the_module():
    episodes, shared = [episode(2)], {}
    AgentToModuleMapping()(batch={}, episodes=episodes, shared_data=shared)
    batch = {"low": {"actions": np.zeros(1)}, "high": {"actions": np.zeros(1)}}
    with pytest.raises(TrackMismatch, match="module 'low': its output 'actions' has 1 rows for 2 agents"):
        ModuleToAgentUnmapping()(batch=batch, episodes=episodes, shared_data=shared)


def test_output_rows_without_agents_raise():
    pipeline = multi_agent_module_to_env(OBSERVATION_SPACES, ACTION_SPACES)
    with pytest.raises(UnknownKey, match="pass the same shared_data to both pipelines"):
        pipeline(batch={"low": {"actions": np.zeros(1)}}, episodes=[episode(2)])


def test_each_module_learns_like_a_single_pipeline_from_its_agents_episodes():
    episodes, policies = (
        [episode(4, outputs=True), episode(3, outputs=True)],
        dict.fromkeys(MODULES.values(), LinearPolicy()),
    )
    returns = lambda: GeneralizedAdvantageEstimation(gamma=0.9, lambda_=0.8)  # noqa: E731
    batches = multi_agent_learner(OBSERVATION_SPACES, ACTION_SPACES, returns=returns, next_observations=True)(
        rl_module=policies, episodes=episodes
    )
    for module_id, batch in batches.items():
        agents = [e for whole in episodes for e in whole.agent_episodes.values() if e.module_id == module_id and len(e)]
        spaces_of_module = OBSERVATION_SPACES[module_id], ACTION_SPACES[module_id]
        alone = learner_pipeline(*spaces_of_module, returns=returns(), next_observations=True)
        expected = alone(rl_module=policies[module_id], episodes=agents)
        assert batch.keys() == expected.keys()
        assert all(torch.equal(batch[name], expected[name]) for name in expected)
    assert batches["high"]["terminateds"].tolist() == [False, True] * 2


def test_recurrent_modules_get_padded_rows_and_agent_states():
    policies = {"low": RecurrentPolicy(), "high": LinearPolicy()}
    grown = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, _: MODULES[agent])
    grown.add_env_reset(observations={x: item(x, 0) for x in "abc"})
    for t in range(1, 5):
        state = lambda agent, t=t: {"h": np.array([ord(agent), t], np.float32)}  # noqa: E731
        grown.add_env_step(
            {x: item(x, t) for x in "abc"},
            {x: action(x, t) for x in "abc"},
            dict.fromkeys("abc", 1.0),
            extra_model_outputs={x: {"state_out": state(x)} for x in "ab"},
        )
    acting = multi_agent_env_to_module(OBSERVATION_SPACES, ACTION_SPACES, policies=policies)
    batch = acting(rl_module=policies, episodes=[grown])
    assert batch["low"]["state_in"]["h"].tolist() == [[ord("a"), 4], [ord("b"), 4]]
    assert batch["low"]["obs"].shape == (2, 1, 2)
    assert "state_in" not in batch["high"]
    learner = multi_agent_learner(OBSERVATION_SPACES, ACTION_SPACES, policies=policies, max_seq_len=None)
    batch = learner(rl_module=policies, episodes=[grown])
    assert batch["high"]["obs"].shape == (4, 3)
    assert batch["low"]["seq_lens"].tolist() == [4, 4]
    assert batch["low"]["state_in"]["h"].tolist() == [[-1, -1], [-1, -1]]
    later = grown.slice(slice(2, None), len_lookback_buffer=1)
    batch = learner(rl_module=policies, episodes=[later])
    assert batch["low"]["state_in"]["h"].tolist() == [[ord("a"), 2], [ord("b"), 2]]


def test_single_agent_connector_works_for_each_module():
    class ScaleRewards(Connector):
        def __call__(self, *, rl_module=None, batch, episodes, **kwargs):
            for agent_episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
                agent_episode.set_rewards(new_data=np.array(agent_episode.get_rewards()) * 2)
            return batch

    whole = episode(4)
    before = whole.get_rewards()
    pipeline = multi_agent_learner(OBSERVATION_SPACES, ACTION_SPACES, pieces=lambda: [ScaleRewards()])
    batch = pipeline(episodes=[whole])
    assert batch["high"]["rewards"].tolist() == [2 * r for r in whole.agent_episodes["c"].get_rewards()]
    assert whole.get_rewards() == before


def test_states_are_saved_and_merged_by_module_and_agent():
    build = lambda: multi_agent_env_to_module(  # noqa: E731
        OBSERVATION_SPACES, ACTION_SPACES, pieces=lambda: [ForEachAgent(MeanStdFilter)]
    )
    owners = {agent: SingleAgentEpisode(agent_id=agent) for agent in "abc"}
    first, second, together = build(), build(), build()
    for t in range(6):
        for agent in "abc":
            row = item(agent, t)[None]
            for pipeline in (second if t % 2 else first, together):
                pipeline[MODULES[agent]].rewrite(row, [owners[agent]])
    merged = build()
    merged.set_state(together.merge_states([first.get_state(), second.get_state()]))
    for agent in "abc":
        left, right = (p[MODULES[agent]]["ForEachAgent"].rewriter_of(agent) for p in (merged, together))
        rows = np.array([item(agent, 9)])
        np.testing.assert_allclose(left.rewrite(rows, update=False), right.rewrite(rows, update=False), rtol=1e-6)
    before = merged.get_state()
    with pytest.raises(StateMismatch, match="the modules"):
        merged.set_state({"low": {}})
    assert repr(merged.get_state()) == repr(before)
    merged.reset_state()
    assert merged["low"]["ForEachAgent"].rewriters == {}
    with pytest.raises(UnknownKey, match="no module 'middle'"):
        merged["middle"]


def test_agent_observations_are_filtered_once_also_in_packs():
    rewriter = ForEachAgent(MeanStdFilter, OBSERVATION_SPACES["low"], ACTION_SPACES["low"])
    owners = [SingleAgentEpisode(agent_id=agent) for agent in "abab"]
    rows = np.array([[0, 1], [10, 1], [2, 1], [30, 1]], np.float32)
    alone = {agent: MeanStdFilter(OBSERVATION_SPACES["low"], ACTION_SPACES["low"]) for agent in "ab"}
    expected = np.empty((4, 2), np.float32)
    expected[[0, 2]] = alone["a"].rewrite(rows[[0, 2]])
    expected[[1, 3]] = alone["b"].rewrite(rows[[1, 3]])
    np.testing.assert_allclose(rewriter.rewrite(rows, owners), expected)
    with pytest.raises(InvalidArgument, match="give episodes="):
        rewriter.rewrite(rows)
    pack = AgentToModuleMapping.packs([episode(4)])["low"]
    rewritten = rewriter.rewritten_pack(pack)
    for before, after in zip(pack, rewritten, strict=True):
        alone_one = alone[before.agent_id].rewrite(before.get_observations(), update=False)
        np.testing.assert_allclose(after.get_observations(), alone_one)


def test_iterator_yields_stepped_agents_or_all_agents() -> None:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0, "b": 0})
    episode.add_env_step({"a": 1}, {"a": 0, "b": 1}, {"a": 1.0})  # b waits for its next observation
    assert [agent_episode.agent_id for agent_episode in Connector.single_agent_episode_iterator([episode])] == ["a"]
    every = Connector.single_agent_episode_iterator([episode], agents_that_stepped_only=False)
    assert [agent_episode.agent_id for agent_episode in every] == ["a", "b"]
