"""Algorithms reject episodes that were recorded with other rewriters or views, wherever the episodes come from."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from mpe2 import simple_spread_v3

from connectors import Actor
from connectors.env_to_module import FrameStacking, MeanStdFilter, ObservationPreprocessor
from connectors.fingerprint import describe_acting_pipeline
from connectors.sections import as_piece
from episode_learners import BC, DQN, GRPO, IMPALA, PPO, MLPPolicy, MultiAgentAlgorithm, QPolicy
from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner
from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import StateMismatch, UnreadableData, WrongType
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter

CARTPOLE = gym.make("CartPole-v1")
SPACES: Any = (CARTPOLE.observation_space, CARTPOLE.action_space)


def scaled(history: Any) -> dict[str, Any]:
    """Return the observations multiplied by 100."""
    return {"obs": history.observations() * np.float32(100)}


class Halved(ObservationPreprocessor):
    """Rewriter that divides observations."""

    def preprocess(self, observation: Any, episode: Any) -> Any:
        return observation / np.float32(2)


def actor(*pieces: Any, policy: Any = MLPPolicy) -> Actor:
    return Actor(policy, *SPACES, pieces=list(pieces))


def sampled(*pieces: Any, num_episodes: int = 8) -> EpisodePack:
    return SingleAgentEnvRunner("CartPole-v1", actor(*pieces), num_envs=2, seed=0).sample(num_episodes=num_episodes)


def through_pickle(pack: EpisodePack, path: Path) -> Any:
    return pickle.loads(pickle.dumps(pack))


def through_disk(pack: EpisodePack, path: Path) -> Any:
    with EpisodeWriter(path) as writer:
        writer.add(pack)
    return EpisodeDataset(path).pack()


def through_wire(pack: EpisodePack, path: Path) -> Any:
    from episodes.transport import wire

    message = wire.encoded([pack], wire.Schemas())
    return wire.decoded(wire.layouts_of(message.schema), message.parts())[0]


def through_replay(pack: EpisodePack, path: Path) -> Any:
    buffer, restored = EpisodeReplayBuffer(10_000, seed=0), EpisodeReplayBuffer(10_000, seed=0)
    buffer.add(pack)
    restored.set_state(pickle.loads(pickle.dumps(buffer.get_state())))
    return [episode for part in restored.iter_packs() for episode in part]


def through_states(pack: EpisodePack, path: Path) -> Any:
    return [SingleAgentEpisode.from_state(episode.get_state()) for episode in pack]


@pytest.mark.parametrize("way", [through_pickle, through_disk, through_wire, through_replay, through_states])
@pytest.mark.parametrize("algorithm", [PPO, GRPO, IMPALA])
def test_on_policy_update_with_other_pieces_is_rejected_by_name(way: Any, algorithm: Any, tmp_path: Path) -> None:
    episodes = way(sampled(MeanStdFilter(), scaled), tmp_path)
    rejected = {
        r"acted through the views scaled\(\).*uses no views": [MeanStdFilter()],
        r"the views scaled\(\).*uses the views FrameStacking\(num_frames=2": [
            MeanStdFilter(),
            FrameStacking(num_frames=2),
        ],
        r"the rewriters MeanStdFilter\(.*\), and \w+ uses no rewriters": [scaled],
        r"MeanStdFilter\(.*clip_by_value=10.0.*uses the rewriters MeanStdFilter\(.*clip_by_value=5.0": [
            MeanStdFilter(clip_by_value=5.0),
            scaled,
        ],
    }
    for message, pieces in rejected.items():
        learner = algorithm(actor(*pieces))
        before = {name: value.clone() for name, value in learner.policy.state_dict().items()}
        with pytest.raises(StateMismatch, match=message):
            learner.update(episodes)
        assert all((value == before[name]).all() for name, value in learner.policy.state_dict().items())
    algorithm(actor(MeanStdFilter(), scaled)).preprocess(episodes)


def test_off_policy_update_compares_rewriters_only() -> None:
    pack = sampled(Halved(), scaled)
    for algorithm, policy in ((DQN, QPolicy), (BC, MLPPolicy)):
        algorithm(actor(Halved(), policy=policy)).update(pack)
        with pytest.raises(StateMismatch, match=r"the rewriters Halved\(\)"):
            algorithm(actor(scaled, policy=policy)).update(pack)


def in_buffer(pack: EpisodePack, path: Path) -> Any:
    buffer = EpisodeReplayBuffer(10_000, seed=0)
    buffer.add(pack)
    return buffer


def in_restored_buffer(pack: EpisodePack, path: Path) -> Any:
    buffer = EpisodeReplayBuffer(10_000, seed=0)
    buffer.set_state(pickle.loads(pickle.dumps(in_buffer(pack, path).get_state())))
    return buffer


def in_data_set(pack: EpisodePack, path: Path) -> Any:
    through_disk(pack, path)
    return EpisodeDataset(path).sampler(steps=8, order="drawn", seed=0)


@pytest.mark.parametrize("store", [in_buffer, in_restored_buffer, in_data_set])
@pytest.mark.parametrize(("algorithm", "policy"), [(DQN, QPolicy), (BC, MLPPolicy)])
def test_update_from_stored_episodes_compares_rewriters(
    store: Any, algorithm: Any, policy: Any, tmp_path: Path
) -> None:
    stored = store(sampled(Halved(), scaled), tmp_path)
    for pieces in ([Halved(), scaled], [Halved()]):
        algorithm(actor(*pieces, policy=policy)).update_from(stored)
    algorithm(policy(*SPACES)).update_from(stored)
    learner, before = algorithm(actor(scaled, policy=policy)), stored.num_sampled
    with pytest.raises(StateMismatch, match=r"the rewriters Halved\(\), and \w+ uses no rewriters"):
        learner.update_from(stored)
    assert stored.num_sampled == before


def test_buffer_lists_the_pipelines_of_stored_episodes_only() -> None:
    buffer = EpisodeReplayBuffer(100, seed=0)
    assert buffer.acting_pipelines() == set()
    runners = [SingleAgentEnvRunner("CartPole-v1", actor(*pieces), seed=0) for pieces in ([scaled], [Halved()])]
    expected = set()
    for runner in (*runners, runners[0]):
        by_hand = SingleAgentEpisode.from_arrays(np.zeros((3, 4), np.float32), [0, 1], [1.0, 1.0])
        buffer.add(by_hand)
        assert buffer.acting_pipelines() == expected | {None}
        runner.sample_into(buffer, num_timesteps=20)
        expected.add(runner.env_to_module.acting_pipeline)
        assert buffer.acting_pipelines() == expected | {None}
    pack = runners[1].sample(num_timesteps=100)
    buffer.add(pack, keys=[])
    assert buffer.acting_pipelines() == {runners[1].env_to_module.acting_pipeline}
    runners[0].sample_into(buffer, num_timesteps=200)
    assert buffer.acting_pipelines() == {runners[0].env_to_module.acting_pipeline}
    buffer.clear()
    assert buffer.acting_pipelines() == set()


def test_views_inserted_between_samples_are_stored() -> None:
    shared = actor()
    runner, buffer = SingleAgentEnvRunner("CartPole-v1", shared, seed=0, check_pipeline=False), EpisodeReplayBuffer(500)
    for pieces in ([], [scaled]):
        for piece in pieces:
            shared.env_to_module.prepend(as_piece(piece))
        text = describe_acting_pipeline(actor(*pieces).env_to_module)
        assert set(runner.sample(num_timesteps=20).acting_pipelines.tolist()) == {text}
        assert set(runner.sample(num_timesteps=20, random_actions=True).acting_pipelines.tolist()) == {text}
        runner.sample_into(buffer, num_timesteps=20)
        assert [*buffer.iter_episodes()][-1].acting_pipeline == text
        buffer.clear()


def test_replay_recorder_stores_pipeline_of_each_runner() -> None:
    buffer = EpisodeReplayBuffer(2_000, seed=0)
    runners = [SingleAgentEnvRunner("CartPole-v1", actor(*pieces), seed=0) for pieces in ([], [scaled], [Halved()])]
    recorded: dict[str, str] = {}
    for turn in (0, 1, 1, 2, 0, 1):
        runner = runners[turn]
        runner.sample_into(buffer, num_timesteps=60)
        text = runner.sample(num_timesteps=30).acting_pipelines[0]
        known = {episode.id_: episode.acting_pipeline for episode in buffer.iter_episodes()}
        recorded = {id_: recorded.get(id_, text) for id_ in known}
        assert known == recorded
        restored = EpisodeReplayBuffer(2_000, seed=1)
        restored.set_state(pickle.loads(pickle.dumps(buffer.get_state())))
        assert {episode.id_: episode.acting_pipeline for episode in restored.iter_episodes()} == known
    assert len(set(recorded.values())) == 3


def test_multi_agent_chunks_store_pipeline_of_each_module() -> None:
    env = simple_spread_v3.parallel_env(N=2, max_cycles=6)
    spaces: Any = env.observation_space("agent_0"), env.action_space("agent_0")
    policies = {name: Actor(MLPPolicy, *spaces, pieces=pieces) for name, pieces in (("a", [scaled]), ("b", [Halved()]))}
    runner = MultiAgentEnvRunner(
        lambda: simple_spread_v3.parallel_env(N=2, max_cycles=6),
        policies,
        agent_to_module_mapping_fn=lambda agent_id, episode: "a" if agent_id == "agent_0" else "b",
        seed=0,
    )
    for chunk in [*runner.sample(num_timesteps=4), *runner.sample(num_timesteps=8)]:
        for agent in chunk.agent_episodes.values():
            assert agent.acting_pipeline == describe_acting_pipeline(policies[agent.module_id].env_to_module)
    learner = MultiAgentAlgorithm({name: PPO(Actor(MLPPolicy, *spaces, pieces=[scaled])) for name in "ab"})
    with pytest.raises(StateMismatch, match=r"the rewriters Halved\(\)"):
        learner.update(runner.sample(num_timesteps=8))


def test_joined_chunks_of_two_pipelines_are_rejected_by_both() -> None:
    first = copy.copy(sampled(scaled, num_episodes=1)[0])
    unknown = first.facts._replace(acting_pipeline=None, t_started=len(first))
    assert first.facts.followed_by(unknown).acting_pipeline == first.acting_pipeline
    joined = first.facts.followed_by(unknown._replace(acting_pipeline="{}")).acting_pipeline
    assert joined == f"{first.acting_pipeline}\n{{}}"
    first.acting_pipeline = joined
    for pieces in ([], [scaled]):
        with pytest.raises(StateMismatch, match="acted through"):
            PPO(actor(*pieces)).update([first])


@pytest.mark.parametrize("text", [3, b"{}", "\ud800", ["{}"]])
def test_acting_pipeline_that_files_cannot_hold_is_rejected(text: Any, tmp_path: Path) -> None:
    from episodes.transport import EpisodeReceiver, EpisodeSender

    episodes = [copy.copy(episode) for episode in sampled(num_episodes=3)]
    episodes[1].acting_pipeline = text
    with EpisodeWriter(tmp_path) as writer, EpisodeReceiver() as receiver, EpisodeSender(receiver.address) as sender:
        for store in (writer.add, sender.send, EpisodePack.from_episodes):
            store([episodes[0]])
            with pytest.raises(WrongType, match="acting_pipeline="):
                store([episodes[1]])
            store([episodes[2]])
        received = [receiver.recv(60) for _ in range(2)]
        sender.close(timeout=0)
    expected = [episodes[0].id_, episodes[2].id_]
    assert [id_ for pack in received if pack is not None for id_ in pack.ids.tolist()] == expected
    assert [episode.id_ for episode in EpisodeDataset(tmp_path)] == expected


@pytest.mark.parametrize("text", ["nonsense", "[]", "3", '{"views": 3}', '{"views": [["a"]]}', '{"views": [["a", 3]]}'])
def test_damaged_acting_pipeline_is_rejected(text: str) -> None:
    episode = copy.copy(sampled(num_episodes=1)[0])
    episode.acting_pipeline = text
    with pytest.raises(UnreadableData, match="acting_pipeline="):
        PPO(actor()).update([episode])
