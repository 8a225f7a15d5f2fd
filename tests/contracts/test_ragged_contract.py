"""Each public name of tests/public_api.txt works with ragged tracks, or rejects them by name and changes nothing."""

from __future__ import annotations

import copy
import importlib
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from reference_conversations import conversation

from episodes import (
    Batch,
    EpisodePack,
    MultiAgentEpisode,
    Ragged,
    SingleAgentEpisode,
    pack_agents,
    unpack_agents,
)
from episodes.errors import EpisodeError
from episodes.storage import EpisodeDataset, EpisodeWriter

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return ragged episodes, a pack, a data set and a buffer."""
    from episodes.replay import EpisodeReplayBuffer

    path = tmp_path_factory.mktemp("ragged")
    episodes = [talk.to_numpy() for seed in range(20) if len(talk := conversation(seed, infos=False)) > 1]
    with EpisodeWriter(path / "data") as writer:
        writer.add(episodes)
    buffer = EpisodeReplayBuffer(1000, seed=0)
    buffer.add(episodes)
    space = spaces.Sequence(spaces.Discrete(100), stack=True)
    return SimpleNamespace(
        episode=episodes[0],
        episodes=episodes,
        pack=EpisodePack.from_episodes(episodes),
        growing=conversation(3),
        dataset=EpisodeDataset(path / "data"),
        path=path / "data",
        buffer=buffer,
        talks=EpisodePack.from_episodes([_talk(seed).episode for seed in range(4)]),
        space=space,
        tmp=path,
    )


def _talk(seed: int) -> Any:
    from episodes.tokens import Conversation

    talk = Conversation(f"t{seed}", outputs={"logp": "f4", "learned": "?"}, group=seed // 4)
    talk.begin([1, 2, seed])
    for t, tool in enumerate([[5], []]):
        logp = np.full(t + seed % 2, -1.0, np.float32)
        talk.turn(np.full(len(logp), 7), tool, float(seed % 3), terminated=t == 1, logp=logp, learned=logp < 0)
    return talk


def _multi_agent(data: Any) -> MultiAgentEpisode:
    game = MultiAgentEpisode(ragged={"a": {"observations": "i4", "actions": "i4"}})
    game.add_env_reset(observations={"a": [1, 2]})
    game.add_env_step({"a": [3]}, {"a": [4, 5]}, {"a": 1.0}, terminateds={"__all__": True})
    return game


def _converter(name: str, *args: Any, **options: Any) -> Callable[[Any], Any]:
    def call(data: Any) -> Any:
        from episodes import converters

        filled = [arg(data) if callable(arg) else arg for arg in args]
        return getattr(converters, name)(data.episodes, *filled, **options)

    return call


def _inspect(name: str, *args: Any, of: str = "episode") -> Callable[[Any], Any]:
    def call(data: Any) -> Any:
        from episodes import inspect

        filled = [arg(data) if callable(arg) else arg for arg in args]
        return getattr(inspect, name)(getattr(data, of), *filled)

    return call


def _storage(name: str, *args: Any) -> Callable[[Any], Any]:
    def call(data: Any) -> Any:
        from episodes import storage

        filled = [arg(data) if callable(arg) else arg for arg in args]
        return getattr(storage, name)(*filled)

    return call


def _accumulated(data: Any) -> Any:
    from episodes.transport.wire import Schemas, decoded, encoded, layouts_of

    message = encoded([data.pack], Schemas())
    return decoded(layouts_of(message.schema), [bytes(part) for part in message.parts()])


def _learned(data: Any) -> Any:
    from connectors import learner_pipeline

    return learner_pipeline()(batch={}, episodes=data.episodes)


def _sampled(name: str, **options: Any) -> Callable[[Any], Any]:
    return lambda data: getattr(data.buffer, name)(**options)


def _prioritized(data: Any) -> Any:
    from episodes.replay import PrioritizedEpisodeReplayBuffer

    buffer = PrioritizedEpisodeReplayBuffer(1000, seed=0)
    buffer.add(data.pack)
    buffer.update_priorities(np.arange(3), np.ones(3))
    return buffer.sample_chunks(4), buffer.sample(4)


def _drawn(**options: Any) -> Callable[[Any], Any]:
    return lambda data: data.dataset.sampler(**options).draw()


def _recorded(data: Any) -> Any:
    from episodes import VectorRecorder

    recorder = VectorRecorder(1, autoreset_mode="NextStep")
    recorder.reset(data.episode.get_observations(slice(0, 1)))
    return recorder


def _written(data: Any, name: str) -> Any:
    with EpisodeWriter(data.tmp / name) as writer:
        writer.add(data.pack)
    return data.tmp / name


def _mapped(data: Any) -> None:
    from episodes.replay import EpisodeReplayBuffer

    with EpisodeReplayBuffer(1000, path=data.tmp / "ring") as buffer:
        buffer.add(data.pack)


def _multi_agent_buffer(name: str, data: Any) -> None:
    from episodes import replay

    getattr(replay, name)(100).add(_multi_agent(data))


def _tokens(name: str) -> Callable[[Any], Any]:
    def call(data: Any) -> Any:
        from episodes import tokens

        return getattr(tokens, name)(data.talks)

    return call


def _public(name: str) -> Any:
    module, _, leaf = name.rpartition(".")
    return getattr(importlib.import_module(module), leaf)


def _piece(name: str, *before: str, pipeline: str = "learner.LearnerPipeline", **options: Any) -> Callable[[Any], Any]:
    """Return a call of a pipeline of the connectors `before` and then the connector `name`."""

    def call(data: Any) -> Any:
        pieces = [_public(f"connectors.{part}")() for part in before]
        made = _public(f"connectors.{pipeline}")(connectors=[*pieces, _public(f"connectors.{name}")(**options)])
        return made(batch={}, episodes=data.episodes, rl_module=_policy("MLPPolicy")(data))

    return call


def _acted(name: str, *after: str, **options: Any) -> Callable[[Any], Any]:
    """Return a call of an env-to-module pipeline of one connector, data a growing episode."""

    def call(data: Any) -> Any:
        pieces = [_public(f"connectors.{part}")(**(options if part == name else {})) for part in (name, *after)]
        pipeline = _public("connectors.env_to_module.EnvToModulePipeline")(connectors=pieces)
        return pipeline(batch={}, episodes=[copy.deepcopy(data.growing)])

    return call


def _of_space(name: str, *args: Any, **options: Any) -> Callable[[Any], Any]:
    """Return a call of a public name with the space of ragged items, and then `args`."""
    return lambda data: _public(name)(data.space, *args, **options)


def _policy(name: str, **options: Any) -> Callable[[Any], Any]:
    return lambda data: _public(f"episode_learners.{name}")(*_fixed(), **options)


class _RaggedEnv(gym.Env):
    """Environment with observations and actions of random lengths."""

    def __init__(self) -> None:
        self.observation_space = self.action_space = spaces.Sequence(spaces.Discrete(9), stack=True)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.arange(3), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.arange(self.t), 1.0, self.t == 5, False, {}


class _RaggedGame:
    """Environment of one agent with observations of several lengths, like those of PettingZoo."""

    possible_agents: ClassVar = ["a"]

    def __init__(self) -> None:
        self.agents, self._env = ["a"], _RaggedEnv()

    def observation_space(self, agent: str) -> Any:
        return self._env.observation_space

    action_space = observation_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = ["a"]
        return {"a": self._env.reset()[0]}, {"a": {}}

    def step(self, actions: Any) -> Any:
        observation, reward, terminated, truncated, info = self._env.step(actions["a"])
        self.agents = [] if terminated else ["a"]
        return {"a": observation}, {"a": reward}, {"a": terminated}, {"a": truncated}, {"a": info}


def _sampled_by_runner(data: Any) -> Any:
    return _public("episode_runners.SingleAgentEnvRunner")(_RaggedEnv, num_envs=2).sample(num_timesteps=8)


def _wrapped(data: Any) -> Any:
    env = _public("episodes.storage.RecordEpisodes")(_RaggedEnv(), data.tmp / "wrapped")
    env.reset()
    for length in range(1, 6):
        env.step(np.arange(length))
    env.close()


def _fixed() -> tuple[Any, Any]:
    return spaces.Box(-1, 1, (3,)), spaces.Discrete(3)


def _algorithm(name: str, policy: str = "MLPPolicy", actions: Any = None) -> Any:
    box, discrete = _fixed()
    return _public(f"episode_learners.{name}")(_public(f"episode_learners.{policy}")(box, actions or discrete))


def _updated(name: str) -> Callable[[Any], Any]:
    return lambda data: _algorithm(name).update(data.episodes)


def _replayed(name: str, policy: str, actions: Any = None) -> Callable[[Any], Any]:
    return lambda data: _algorithm(name, policy, actions).update_from(data.buffer)


def _from_tokens(to: str, read: str) -> Callable[[Any], Any]:
    """Return a call of a converter and of the reader of its result."""

    def call(data: Any) -> Any:
        rows, _ = _public(f"episodes.converters.{to}")(list(data.talks))
        return _public(f"episodes.converters.{read}")(rows)

    return call


def _with_batch(name: str, *args: Any) -> Callable[[Any], Any]:
    def call(data: Any) -> Any:
        batch = _public("episodes.tokens.token_batch")(data.talks)
        made = _public(f"episodes.tokens.{name}")(batch, *args)
        return list(made) if isinstance(made, Iterator) else made

    return call


def _checked_tokens(data: Any) -> Any:
    import torch

    batch = _public("episodes.tokens.token_batch")(data.talks)
    return _public("episodes.tokens.check_token_batch")(lambda b: torch.zeros(len(b["input_ids"]), 100), batch)


def _token_grpo(data: Any) -> Any:
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = nn.Embedding(100, 100)

        def forward(self, batch: Any) -> Any:
            return self.logits(batch["input_ids"].long())

    return _public("episode_learners.TokenGRPO")(Model()).update(data.talks)


def _offline(data: Any) -> Any:
    return _public("episode_learners.trainers.OfflineTrainer")(_algorithm("BC"), data.episodes).run()


def _sent(data: Any) -> Any:
    with (
        _public("episodes.transport.EpisodeReceiver")() as receiver,
        _public("episodes.transport.EpisodeSender")(receiver.address) as sender,
    ):
        sender.send(data.pack)
        received = receiver.recv(timeout=10)
    assert received == data.pack


def _game_batch(data: Any) -> Any:
    box, discrete = _fixed()
    pipeline = _public("connectors.multi_agent_learner")({"default_policy": box}, {"default_policy": discrete})
    return pipeline(batch={}, episodes=[_multi_agent(data)])


def _recorded_into_ring(data: Any) -> Any:
    buffer = _public("episodes.replay.EpisodeReplayBuffer")(100)
    return buffer.recorder(2, autoreset_mode="NextStep").reset(data.pack.observations[:2])


RETURNS: dict[str, dict[str, Any]] = {
    "discounted_returns": {},
    "gae": {"values": np.zeros(3), "lambda_": 0.95},
    "n_step_returns": {"values": np.zeros(3), "n_step": 2},
    "vtrace": {"values": np.zeros(3), "ratios": np.ones(3)},
}


def _returns(name: str, **options: Any) -> Callable[[Any], Any]:
    flags = {"terminateds": np.zeros(3, bool), "truncateds": np.zeros(3, bool), "gamma": 0.9}
    return lambda data: _public(f"episodes.{name}")(data.pack.actions[:3], **flags, **options)


def _recorded_tokens(data: Any) -> Any:
    recorder = _public("episodes.tokens.TokenRecorder")()
    talk = recorder.begin([1, 2])
    talk.turn([3], logp=[-1.0], terminated=True)
    recorder.end(talk)
    return recorder.take()


def _generated(name: str) -> Callable[[Any], Any]:
    from hypothesis import Phase, find, settings

    strategy = _public(f"episodes.testing.strategies.{name}")
    one = settings(max_examples=1, phases=[Phase.generate])
    return lambda data: find(strategy(ragged=True), lambda made: True, settings=one)


def _window_of_rewards(data: Any) -> Any:
    windows = _public("episodes.storage.sampling.WindowBatches")(4, 2, keys=["rewards"])
    return data.dataset.sampler(windows=windows).draw()


def _logged(data: Any) -> Any:
    with _public("episodes.storage.ledger.Ledger")(data.tmp / "ledger") as ledger:
        ledger.note(0, _public("episodes.Batch")({"actions": data.pack.actions}))


def _shown(data: Any) -> Any:
    with mock.patch("sys.argv", ["episodes", "show", str(data.path)]), pytest.raises(SystemExit) as stopped:
        _public("episodes.command.main")()
    assert not stopped.value.code


LEARNER = ("learner.AddObservations", "learner.AddColumns")
ENV = "env_to_module.EnvToModulePipeline"
CALLS: dict[str, Callable[[Any], Any]] = {
    "episodes.SingleAgentEpisode.get_data_dict": lambda data: data.episode.get_data_dict(),
    "episodes.SingleAgentEpisode.get_env_actions": lambda data: data.episode.get_env_actions(),
    "episodes.SingleAgentEpisode.one_hot": lambda data: data.episode.get_actions(one_hot_discrete=True),
    "episodes.SingleAgentEpisode.one_hot growing": lambda data: data.growing.get_observations(one_hot_discrete=True),
    "episodes.SingleAgentEpisode.with_env_actions": lambda data: data.episode.with_env_actions(),
    "episodes.SingleAgentEpisode.with_policy_actions": lambda data: SingleAgentEpisode.of(
        data.episode.facts._replace(action_space=data.space), data.episode.tracks, {}
    ).with_policy_actions(),
    "episodes.SingleAgentEpisode.array": lambda data: np.asarray(data.episode.actions),
    "episodes.SingleAgentEpisode.array growing": lambda data: np.asarray(data.growing.actions),
    "episodes.SingleAgentEpisode.repr": lambda data: (
        repr(data.episode),
        repr(data.growing),
        data.growing._repr_html_(),
    ),
    "episodes.SingleAgentEpisode.new output": lambda data: copy.deepcopy(data.episode).set_extra_model_outputs(
        key="new", new_data=[0.0] * (data.episode.lookback + len(data.episode))
    ),
    "episodes.EpisodePack.replace": lambda data: data.pack.replace(extra_model_outputs={}),
    "episodes.EpisodePack.replace actions": lambda data: data.pack.replace(actions=np.zeros(len(data.pack.rewards))),
    "episodes.EpisodePack.move_starts": lambda data: data.pack.move_starts(np.ones(len(data.pack), int)),
    "episodes.EpisodePack.get_env_actions": lambda data: data.pack.get_env_actions(),
    "episodes.EpisodePack.with_policy_actions": lambda data: data.pack.replace(
        action_space=data.space
    ).with_policy_actions(),
    "episodes.EpisodePack.repr": lambda data: (repr(data.pack), data.pack._repr_html_(), data.pack.retained_nbytes),
    "episodes.Batch": lambda data: Batch({"actions": data.pack.actions, "rewards": data.pack.rewards})[:3],
    "episodes.pack_agents": lambda data: unpack_agents(pack_agents([_multi_agent(data)])),
    "episodes.MultiAgentEpisode.repr": lambda data: (repr(_multi_agent(data)), _multi_agent(data)._repr_html_()),
    "episodes.VectorRecorder": _recorded,
    "episodes.converters.to_huggingface": _converter("to_huggingface"),
    "episodes.converters.to_lerobot": _converter("to_lerobot", lambda data: data.tmp / "lerobot"),
    "episodes.converters.to_minari": _converter("to_minari", "ragged/test-v0"),
    "episodes.converters.to_pandas": _converter("to_pandas"),
    "episodes.converters.to_parquet": _converter("to_parquet", lambda data: data.tmp / "parquet"),
    "episodes.converters.to_ray_data": _converter("to_ray_data"),
    "episodes.converters.to_rllib": _converter("to_rllib"),
    "episodes.converters.to_rllib of agents": lambda data: importlib.import_module("episodes.converters").to_rllib(
        [_multi_agent(data)]
    ),
    "episodes.converters.to_rllib_parquet": _converter("to_rllib_parquet", lambda data: data.tmp / "rllib"),
    "episodes.converters.to_sb3": _converter("to_sb3"),
    "episodes.converters.to_tensordict": _converter("to_tensordict"),
    "episodes.converters.to_tianshou": _converter("to_tianshou"),
    "episodes.converters.write": lambda data: importlib.import_module("episodes.converters").write(
        data.episodes, data.tmp / "written", "episodes"
    ),
    "episodes.inspect.compare_episodes": _inspect("compare_episodes", lambda data: data.episodes[1]),
    "episodes.inspect.examine": _inspect("examine", of="pack"),
    "episodes.inspect.examine data set": _inspect("examine", of="dataset"),
    "episodes.inspect.frames": _inspect("frames"),
    "episodes.inspect.plot_episode": _inspect("plot_episode"),
    "episodes.inspect.plot_episodes": _inspect("plot_episodes", of="episodes"),
    "episodes.inspect.plot_returns": _inspect("plot_returns", of="pack"),
    "episodes.inspect.video": _inspect("video", lambda data: data.tmp / "x.gif"),
    "episodes.replay.EpisodeReplayBuffer.sample": _sampled("sample", n=4),
    "episodes.replay.EpisodeReplayBuffer.sample rewards": _sampled("sample", n=4, keys=["rewards"], n_step=2),
    "episodes.replay.EpisodeReplayBuffer.sample_sequences": _sampled("sample_sequences", batch_size=2, length=3),
    "episodes.replay.EpisodeReplayBuffer.sample_episodes": _sampled("sample_episodes", n=4),
    "episodes.replay.EpisodeReplayBuffer.sample_chunks": _sampled("sample_chunks", n=4),
    "episodes.replay.EpisodeReplayBuffer.repr": lambda data: (
        repr(data.buffer),
        data.buffer._repr_html_(),
        data.buffer.nbytes,
    ),
    "episodes.replay.EpisodeReplayBuffer.pickle": lambda data: pickle.loads(pickle.dumps(data.buffer)),
    "episodes.replay.PrioritizedEpisodeReplayBuffer": _prioritized,
    "episodes.storage.check": _storage("check", lambda data: data.path),
    "episodes.storage.copy": _storage("copy", lambda data: data.path, lambda data: data.tmp / "copy"),
    "episodes.storage.add_track": _storage("add_track", lambda data: data.path, "more", Ragged([1], [0, 1])),
    "episodes.storage.EpisodeDataset.metadata": lambda data: (
        repr(data.dataset),
        data.dataset.metadata,
        data.dataset._repr_html_(),
    ),
    "episodes.storage.EpisodeDataset.statistics": lambda data: data.dataset.statistics(),
    "episodes.storage.EpisodeDataset.sql": lambda data: data.dataset.sql(
        "select step from steps where len(actions) > 2"
    ),
    "episodes.storage.EpisodeDataset.step_table": lambda data: data.dataset.step_table().table(["actions/0"]),
    "episodes.storage.sampling.StepBatches": _drawn(steps=4),
    "episodes.storage.sampling.WindowBatches": _drawn(windows=(4, 2)),
    "episodes.storage.sampling.EpisodeBatches": _drawn(episodes=4),
    "episodes.transport.EpisodeSender message": _accumulated,
    "connectors.learner_pipeline": _learned,
    "episodes.unpack_agents": lambda data: unpack_agents(pack_agents([_multi_agent(data)])),
    "episodes.Ragged": lambda data: data.pack.actions[1:3],
    "episodes.RaggedKind": lambda data: data.pack.actions.kind,
    "episodes.replay.MultiAgentEpisodeReplayBuffer": lambda data: _multi_agent_buffer(
        "MultiAgentEpisodeReplayBuffer", data
    ),
    "episodes.replay.MultiAgentPrioritizedEpisodeReplayBuffer": lambda data: _multi_agent_buffer(
        "MultiAgentPrioritizedEpisodeReplayBuffer", data
    ),
    "episodes.replay.EpisodeReplayBuffer.path": _mapped,
    "episodes.storage.EpisodeWriter": lambda data: _written(data, "again"),
    "episodes.storage.merge": _storage("merge", lambda data: data.tmp / "merged", lambda data: data.path),
    "episodes.storage.compact": lambda data: importlib.import_module("episodes.storage").compact(
        _written(data, "compacted")
    ),
    "episodes.storage.seal": lambda data: importlib.import_module("episodes.storage").seal(_written(data, "sealed")),
    "episodes.storage.upload": _storage("upload", lambda data: data.path, "memory://ragged-contract"),
    "episodes.storage.sampling.ChunkBatches": lambda data: data.dataset.sampler(
        windows=importlib.import_module("episodes.storage.sampling").ChunkBatches(4, 2)
    ).draw(),
    "episodes.inspect.view_conversation": _inspect("view_conversation"),
    "episodes.tokens.token_batch": _tokens("token_batch"),
    "connectors.learner.AddObservations": _piece("learner.AddObservations"),
    "connectors.learner.AddColumns": _piece("learner.AddColumns"),
    "connectors.learner.AddInfos": _piece("learner.AddInfos", *LEARNER),
    "connectors.learner.AddNextObservations": _piece("learner.AddNextObservations", *LEARNER),
    "connectors.learner.AddPolicyVersions": _piece("learner.AddPolicyVersions", *LEARNER),
    "connectors.learner.AddStates": _piece("learner.AddStates", *LEARNER, "learner.AddTimeDimensionAndZeroPad"),
    "connectors.learner.AddTimeDimensionAndZeroPad": _piece("learner.AddTimeDimensionAndZeroPad", *LEARNER),
    "connectors.learner.ComputeReturnsToGo": _piece("learner.ComputeReturnsToGo"),
    "connectors.learner.ComputeReturnsToGo columns": _piece("learner.ComputeReturnsToGo", *LEARNER),
    "connectors.learner.FrameStackingLearner": _piece("learner.FrameStackingLearner"),
    "connectors.learner.GeneralizedAdvantageEstimation": _piece("learner.GeneralizedAdvantageEstimation", *LEARNER),
    "connectors.learner.HindsightRelabel": _piece(
        "learner.HindsightRelabel", *LEARNER, "learner.AddNextObservations", compute_reward=lambda *_: 0.0
    ),
    "connectors.learner.LearnerPipeline": _piece("learner.AddColumns", "learner.AddObservations"),
    "connectors.learner.NormalizeRewards": _piece("learner.NormalizeRewards"),
    "connectors.learner.TokenColumns": lambda data: _public("connectors.learner.LearnerPipeline")(
        connectors=[_public("connectors.learner.TokenColumns")()]
    )(batch={}, episodes=data.talks),
    "connectors.learner.VTrace": lambda data: _algorithm("IMPALA").preprocess(data.episodes),
    "connectors.learner_pipeline spaces": lambda data: _public("connectors.learner_pipeline")(*_fixed())(
        batch={}, episodes=data.episodes
    ),
    "connectors.multi_agent_learner": _game_batch,
    "connectors.env_to_module.AddObservations": _piece("env_to_module.AddObservations", pipeline=ENV),
    "connectors.env_to_module.AddStates": _piece("env_to_module.AddStates", pipeline=ENV),
    "connectors.env_to_module.FlattenObservations": _acted(
        "env_to_module.FlattenObservations", "env_to_module.AddObservations"
    ),
    "connectors.env_to_module.FrameStacking": _piece("env_to_module.FrameStacking", pipeline=ENV),
    "connectors.env_to_module.FrameStacking rows": _piece(
        "env_to_module.FrameStacking", "env_to_module.AddObservations", pipeline=ENV
    ),
    "connectors.env_to_module.MeanStdFilter": _acted("env_to_module.MeanStdFilter", "env_to_module.AddObservations"),
    "connectors.env_to_module.PrevActionsPrevRewards": _piece(
        "env_to_module.PrevActionsPrevRewards", "env_to_module.AddObservations", pipeline=ENV
    ),
    "connectors.env_to_module.AddTimeDimension": _piece(
        "env_to_module.AddTimeDimension", "env_to_module.AddObservations", pipeline=ENV
    ),
    "connectors.env_to_module.TransformerContext": lambda data: _public("connectors.learner_pipeline")(
        data.space, data.space, pieces=[_public("connectors.env_to_module.TransformerContext")(3)]
    )(batch={}, episodes=data.episodes),
    "connectors.BatchItems": _piece("BatchItems", "env_to_module.AddObservations", pipeline=ENV),
    "connectors.AgentToModuleMapping": _piece("AgentToModuleMapping", "env_to_module.AddObservations", pipeline=ENV),
    "connectors.NumpyToTensor": _piece("NumpyToTensor", "env_to_module.AddObservations", pipeline=ENV),
    "connectors.NumpyToTensor learner": _piece("NumpyToTensor", *LEARNER),
    "connectors.env_to_module_pipeline": lambda data: _public("connectors.env_to_module_pipeline")()(
        batch={}, episodes=data.episodes
    ),
    "connectors.env_to_module_pipeline spaces": lambda data: _public("connectors.env_to_module_pipeline")(*_fixed())(
        batch={}, episodes=data.episodes
    ),
    "connectors.explain_episode": lambda data: _public("connectors.explain_episode")(
        data.episode, _public("connectors.learner_pipeline")(*_fixed()), _algorithm("BC").policy
    ),
    "connectors.export.export": lambda data: _public("connectors.export.export")(
        _public("connectors.Actor")(_algorithm("BC").policy, *_fixed()), data.tmp / "x.onnx", check_on=data.episodes
    ),
    "episode_learners.BC": _updated("BC"),
    "episode_learners.PPO": _updated("PPO"),
    "episode_learners.GRPO": lambda data: _algorithm("GRPO").update(data.talks),
    "episode_learners.IMPALA": _updated("IMPALA"),
    "episode_learners.BC buffer": lambda data: _algorithm("BC").update_from(data.buffer),
    "episode_learners.BC data set": lambda data: _algorithm("BC").update_from(data.dataset.sampler(steps=4)),
    "episode_learners.DQN": _replayed("DQN", "QPolicy"),
    "episode_learners.CQL": _replayed("CQL", "QPolicy"),
    "episode_learners.SAC": _replayed("SAC", "SACPolicy", spaces.Box(-1, 1, (2,))),
    "episode_learners.ContinuousCQL": _replayed("ContinuousCQL", "SACPolicy", spaces.Box(-1, 1, (2,))),
    "episode_learners.R2D2": _replayed("R2D2", "LSTMQPolicy"),
    "episode_learners.TokenGRPO": _token_grpo,
    "episode_learners.MultiAgentAlgorithm": lambda data: _public("episode_learners.MultiAgentAlgorithm")(
        {"default_policy": _algorithm("PPO")}
    ).update([_multi_agent(data)]),
    "episode_learners.trainers.OfflineTrainer": _offline,
    "episode_learners.ppo_pipeline": lambda data: _public("episode_learners.ppo_pipeline")(
        _algorithm("PPO").policy, _public("episode_learners.PPOConfig")()
    )(batch={}, episodes=data.episodes, rl_module=_policy("MLPPolicy")(data)),
    "episodes.converters.from_messages": _from_tokens("to_messages", "from_messages"),
    "episodes.converters.to_messages": _from_tokens("to_messages", "from_messages"),
    "episodes.converters.from_trl": _from_tokens("to_trl", "from_trl"),
    "episodes.converters.to_trl": _from_tokens("to_trl", "from_trl"),
    "episodes.converters.from_verl": _from_tokens("to_verl", "from_verl"),
    "episodes.converters.to_verl": _from_tokens("to_verl", "from_verl"),
    "episodes.converters.from_skyrl": _from_tokens("to_skyrl", "from_skyrl"),
    "episodes.converters.to_skyrl": _from_tokens("to_skyrl", "from_skyrl"),
    "episodes.converters.from_prime_rl": _from_tokens("to_prime_rl", "from_prime_rl"),
    "episodes.converters.to_prime_rl": _from_tokens("to_prime_rl", "from_prime_rl"),
    "episodes.converters.from_rllib": lambda data: _public("episodes.converters.from_rllib")(
        _public("episodes.converters.to_rllib")(data.episodes)[0]
    ),
    "episodes.converters.read": lambda data: list(_public("episodes.converters.read")(data.path)[0]),
    "episodes.inspect.explain_batch": lambda data: _public("episodes.inspect.explain_batch")(
        _window_of_rewards(data), 0
    ),
    "episodes.inspect.link_batch": lambda data: _public("episodes.inspect.link_batch")(
        _window_of_rewards(data), data.tmp / "page.html"
    ),
    "episodes.storage.EpisodeDataset.sql windows": lambda data: data.dataset.sql(
        "select step from steps where len(actions) > 2"
    ).windows(1, 1),
    "episodes.storage.EpisodeDataset.metadata t_started": lambda data: data.dataset.metadata["t_started"],
    "episodes.storage.EpisodeDataset.sampler": lambda data: data.dataset.sampler(windows=(4, 2)).sample_sequences(2, 3),
    "episodes.storage.sampling.TimeWindows": lambda data: data.dataset.sampler(
        windows=_public("episodes.storage.sampling.TimeWindows")(4, {"observations": [-1.0, 0.0]}, fps=1.0)
    ).draw(),
    "episodes.storage.sampling.TimeWindows rewards": lambda data: data.dataset.sampler(
        windows=_public("episodes.storage.sampling.TimeWindows")(4, {"rewards": [-1.0, 0.0]}, fps=1.0)
    ).draw(),
    "episodes.tokens.check_token_batch": _checked_tokens,
    "episodes.tokens.token_minibatches": _with_batch("token_minibatches", 100),
    "episodes.tokens.Conversation": lambda data: _talk(0).episode.to_numpy(),
    "episodes.transport.EpisodeReceiver": _sent,
    "episodes.transport.TrajectoryAccumulator": lambda data: _public("episodes.transport.TrajectoryAccumulator")(
        {"actions": data.pack.actions}
    ),
    "episodes.Batch of actions": lambda data: _public("episodes.Batch")({"actions": data.pack.actions}),
    # Spaces of ragged items, in place of the items.
    "connectors.Actor": lambda data: _public("connectors.Actor")(
        _public("episode_learners.MLPPolicy"), data.space, spaces.Discrete(3)
    ),
    "connectors.distribution_for": _of_space("connectors.distribution_for"),
    "connectors.env_to_module.FrameStacking space": lambda data: _public("connectors.learner_pipeline")(
        data.space, data.space, pieces=[_public("connectors.env_to_module.FrameStacking")(num_frames=2)]
    )(batch={}, episodes=data.episodes),
    "connectors.testing.check_connector": lambda data: _public("connectors.testing.check_connector")(
        _public("connectors.env_to_module.AddObservations")(), "env_to_module", observation_space=data.space
    ),
    "connectors.testing.check_policy": lambda data: _public("connectors.testing.check_policy")(
        _policy("MLPPolicy")(data), data.space, spaces.Discrete(3)
    ),
    "connectors.testing.check_view": lambda data: _public("connectors.testing.check_view")(
        _public("connectors.env_to_module.time_steps"), _RaggedEnv
    ),
    "episode_learners.networks.Autoregressive": _of_space("episode_learners.networks.Autoregressive"),
    "episode_learners.networks.ContextEncoder": _of_space("episode_learners.networks.ContextEncoder", 3),
    "episode_learners.networks.encoder_for": _of_space("episode_learners.networks.encoder_for"),
    **{
        f"episode_learners.{name}": _of_space(f"episode_learners.{name}", spaces.Discrete(3))
        for name in (
            "EncoderPolicy",
            "GRUPolicy",
            "LSTMPolicy",
            "LSTMQPolicy",
            "MLPPolicy",
            "QPolicy",
            "TransformerPolicy",
        )
    },
    "episode_learners.SACPolicy": _of_space("episode_learners.SACPolicy", spaces.Box(-1, 1, (2,))),
    # Episodes that grow, and batches of them.
    "connectors.ConnectorPipeline": lambda data: _public("connectors.ConnectorPipeline")(
        connectors=[_public("connectors.NumpyToTensor")()]
    )(batch={"obs": data.pack.observations}, episodes=data.episodes),
    "connectors.ObservationRewriter": _acted("env_to_module.ObservationPreprocessor"),
    "connectors.env_to_module.ObservationPreprocessor": _acted("env_to_module.ObservationPreprocessor"),
    "connectors.env_to_module.ForEachAgent": _acted(
        "env_to_module.ForEachAgent", make=lambda: _public("connectors.env_to_module.FlattenObservations")()
    ),
    "connectors.env_to_module.MultiAgentObservationPreprocessor": lambda data: _public(
        "connectors.multi_agent_env_to_module"
    )(
        {"default_policy": data.space},
        {"default_policy": data.space},
        joint=[_public("connectors.env_to_module.MultiAgentObservationPreprocessor")()],
    )(batch={}, episodes=[_multi_agent(data)]),
    "connectors.multi_agent_env_to_module": lambda data: _public("connectors.multi_agent_env_to_module")(
        {"default_policy": data.space}, {"default_policy": data.space}
    )(batch={}, episodes=[_multi_agent(data)]),
    "connectors.env_to_module.OneHotAgentId": lambda data: _public("connectors.learner_pipeline")(
        pieces=[_public("connectors.env_to_module.OneHotAgentId")(["a"])]
    )(batch={}, episodes=data.episodes),
    "connectors.env_to_module.EnvToModulePipeline": _acted("env_to_module.AddObservations"),
    "connectors.learner.EpisodesToRolloutBuffer": lambda data: _public("connectors.ConnectorPipeline")(
        connectors=[
            _public("connectors.learner.EpisodesToRolloutBuffer")(
                buffer=_public("connectors.RolloutBuffer")(len(data.episodes), 40, 3, 1, "cpu")
            )
        ]
    )(batch={}, episodes=data.pack, rl_module=_policy("MLPPolicy")(data)),
    "connectors.env_to_module.time_steps": lambda data: _public("connectors.learner_pipeline")(
        data.space, data.space, pieces=[_public("connectors.env_to_module.time_steps")]
    )(batch={}, episodes=data.episodes),
    # Environments with ragged observations.
    "episode_runners.SingleAgentEnvRunner": _sampled_by_runner,
    "episode_runners.MultiAgentEnvRunner": lambda data: _public("episode_runners.MultiAgentEnvRunner")(
        _RaggedGame, {"default_policy": _policy("MLPPolicy")(data)}, num_envs=2
    ).sample(num_timesteps=8, random_actions=True),
    "episode_runners.evaluate": lambda data: _public("episode_runners.evaluate")(_RaggedEnv, num_episodes=2),
    "episode_runners.make_vector_env": lambda data: _public("episode_runners.make_vector_env")(_RaggedEnv, 2).reset(),
    "episodes.testing.check_vector_env": lambda data: _public("episodes.testing.check_vector_env")(
        _public("episode_runners.make_vector_env")(_RaggedEnv, 2), num_steps=20
    ),
    "episodes.storage.RecordEpisodes": _wrapped,
    "episodes.replay.EpisodeReplayBuffer recorder": _recorded_into_ring,
    # Arrays of steps.
    **{f"episodes.{name}": _returns(name, **options) for name, options in RETURNS.items()},
    "episodes.tokens.TokenRecorder": _recorded_tokens,
    "episodes.testing.strategies.episodes": _generated("episodes"),
    "episodes.testing.strategies.lists_of_episodes": _generated("lists_of_episodes"),
    "episodes.testing.strategies.packs": _generated("packs"),
    "episodes.storage.ledger.Ledger": _logged,
    "episodes.storage.EpisodeDataset command line": _shown,
}

# Names that cannot receive a track, by reason.
WITHOUT_TRACKS: dict[str, set[str]] = {
    "constants, names of columns, and errors": {
        "episodes.Columns",
        "episodes.DEFAULT_AGENT_ID",
        "episodes.DEFAULT_MODULE_ID",
        "episodes.facts.Ending",
    },
    "base classes and interfaces, whose subclasses are called": {
        "connectors.ActionDistribution",
        "connectors.Connector",
        "connectors.ConnectorPipelineV2",
        "connectors.ConnectorV2",
        "connectors.Policy",
        "connectors.env_to_module.SingleAgentObservationPreprocessor",
        "episode_learners.Algorithm",
        "episode_learners.Policy",
        "episode_learners.loggers.Logger",
        "episode_runners.Hook",
    },
    "results, which calls of other names return": {
        "episodes.storage.ledger.LedgerReader",
        "episodes.transport.Weights",
    },
    "settings": {
        "episode_learners.BCConfig",
        "episode_learners.CQLConfig",
        "episode_learners.ContinuousCQLConfig",
        "episode_learners.DQNConfig",
        "episode_learners.GRPOConfig",
        "episode_learners.IMPALAConfig",
        "episode_learners.PPOConfig",
        "episode_learners.R2D2Config",
        "episode_learners.SACConfig",
        "episode_learners.TokenGRPOConfig",
        "episode_learners.trainers.OffPolicyConfig",
        "episode_learners.trainers.OfflineConfig",
        "episode_learners.trainers.OnPolicyConfig",
        "episode_learners.trainers.RLModuleSpec",
        "episodes.PolicyBox",
        "episodes.replay.SamplesPerInsert",
    },
    "rollouts, which have tensors of one shape": {
        "connectors.BlockEdge",
        "connectors.RolloutBuffer",
        "connectors.add_advantages",
        "connectors.iterate_minibatches",
        "connectors.rollout_to_episodes",
        "episode_runners.environments.fill_rollout",
    },
    "outputs of policies, which are tensors": {
        "connectors.MultiAgentModuleToEnv",
        "connectors.module_to_env.GetActions",
        "connectors.module_to_env.ListifyDataForVectorEnv",
        "connectors.module_to_env.ListifyForVectorEnv",
        "connectors.module_to_env.ModuleToAgentUnmapping",
        "connectors.module_to_env.ModuleToEnvPipeline",
        "connectors.module_to_env.NormalizeAndClipActions",
        "connectors.module_to_env.RemoveSingleTsTimeRankFromBatch",
        "connectors.module_to_env.RemoveTimeDimension",
        "connectors.module_to_env.TensorToNumpy",
        "connectors.module_to_env.UnBatchToIndividualItems",
        "connectors.module_to_env.UnbatchItems",
        "connectors.module_to_env_pipeline",
        "connectors.multi_agent_module_to_env",
    },
    "networks, their parameters, features and optimizers": {
        "episode_learners.FlatOptimizer",
        "episode_learners.TargetNetwork",
        "episode_learners.data_parallel",
        "episode_learners.linear_decay",
        "episode_learners.networks.GRUMemory",
        "episode_learners.networks.LSTMMemory",
    },
    "loggers and metrics": {
        "episode_learners.loggers.CSVLogger",
        "episode_learners.loggers.MultiLogger",
        "episode_learners.loggers.TensorBoardLogger",
        "episode_learners.loggers.WandbLogger",
        "episode_runners.MetricsLogger",
    },
    "made of a runner or an algorithm, which reject ragged tracks": {
        "connectors.MultiAgentEnvToModule",
        "connectors.MultiAgentLearner",
        "episode_learners.League",
        "episode_learners.trainers.OffPolicyTrainer",
        "episode_learners.trainers.OnPolicyTrainer",
        "episode_learners.trainers.VideoHook",
        "episode_runners.GroupRunner",
        "episode_runners.RLlibCallback",
        "episode_runners.RayRunnerGroup",
        "episode_runners.RecordSamples",
        "episode_runners.rllib.install",
        "episode_runners.rllib.uninstall",
        "episode_runners.start_ray",
    },
    "simulators, whose observations are tensors or arrays": {
        "episode_runners.environments.EnvPoolVectorEnv",
        "episode_runners.environments.TorchVectorEnv",
    },
    "formats without ragged data, whose writers reject them": {
        "episodes.converters.from_d4rl",
        "episodes.converters.from_lerobot",
        "episodes.converters.from_minari",
        "episodes.converters.from_parquet",
        "episodes.converters.from_rllib_parquet",
        "episodes.converters.from_sb3",
        "episodes.converters.from_tensordict",
        "episodes.converters.from_tianshou",
    },
    "strategies of other data": {
        "episodes.testing.strategies.infos",
        "episodes.testing.strategies.items",
        "episodes.testing.strategies.multi_agent_histories",
        "episodes.testing.strategies.spaces",
        "episodes.testing.strategies.vector_rows",
    },
    "single observations, which are compared with the space": {
        "connectors.compute_action",
    },
    "files and keys": {
        "episodes.storage.ledger.difference",
        "episodes.transport.make_keys",
    },
}


def _name_of(call: str) -> str:
    """Return the public name that a call is about, such as "episodes.EpisodePack" of "episodes.EpisodePack.replace"."""
    parts = call.partition(" ")[0]
    while parts and parts not in NAMES:
        parts = parts.rpartition(".")[0]
    return parts


NAMES = set((Path(__file__).parents[1] / "public_api.txt").read_text().split())


def test_each_public_name_is_called_with_a_ragged_track_or_cannot_receive_one() -> None:
    called, excluded = {_name_of(call) for call in CALLS}, set().union(*WITHOUT_TRACKS.values())
    assert "" not in called, [call for call in CALLS if not _name_of(call)]
    assert not excluded - NAMES
    assert not excluded & called
    covered = {id(_public(name)) for name in called | excluded}  # an alias is covered with its name
    assert [name for name in sorted(NAMES) if id(_public(name)) not in covered] == []


@pytest.mark.parametrize("name", CALLS)
def test_calls_with_ragged_tracks_work_or_reject_them_by_name(name: str, data: Any) -> None:
    before, rejection = copy.deepcopy(data.episode), None
    try:
        CALLS[name](data)
    except EpisodeError as error:
        rejection = str(error)
    assert rejection is None or re.search(r"ragged|Sequence\b|no images 'observations'", rejection, re.IGNORECASE), (
        rejection
    )
    assert data.episode.equals(before)
