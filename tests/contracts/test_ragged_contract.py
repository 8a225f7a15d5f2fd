"""Each public name of tests/public_api.txt works with ragged tracks, or rejects them by name and changes nothing."""

from __future__ import annotations

import copy
import importlib
import pickle
import re
from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import Phase, find, settings
from reference_conversations import conversation

import connectors
import episode_learners
import episode_runners
import episodes
from connectors import env_to_module, learner, testing
from episodes import (
    Batch,
    EpisodePack,
    MultiAgentEpisode,
    Ragged,
    SingleAgentEpisode,
    VectorRecorder,
    command,
    converters,
    inspect,
    pack_agents,
    replay,
    storage,
    tokens,
    transport,
    unpack_agents,
)
from episodes.errors import EpisodeError
from episodes.storage import EpisodeDataset, EpisodeWriter, GameDataset, ledger, sampling
from episodes.testing import check_vector_env
from tests.episodes.test_held_memory import sent

BOX, CHOICES, FORCE = spaces.Box(-1, 1, (3,)), spaces.Discrete(3), spaces.Box(-1, 1, (2,))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return ragged episodes, a pack, a data set and a buffer."""
    path = tmp_path_factory.mktemp("ragged")
    episodes = [talk.to_numpy() for seed in range(20) if len(talk := conversation(seed, infos=False)) > 1]
    with EpisodeWriter(path / "data") as writer:
        writer.add(episodes)
    buffer = replay.EpisodeReplayBuffer(1000, seed=0)
    buffer.add(episodes)
    return SimpleNamespace(
        episode=episodes[0],
        episodes=episodes,
        pack=EpisodePack.from_episodes(episodes),
        growing=conversation(3),
        dataset=EpisodeDataset(path / "data"),
        path=path / "data",
        buffer=buffer,
        talks=EpisodePack.from_episodes([_talk(seed).episode for seed in range(4)]),
        game=_game(),
        space=spaces.Sequence(spaces.Discrete(100), stack=True),
        tmp=path,
    )


def _talk(seed: int) -> Any:
    talk = tokens.Conversation(f"t{seed}", outputs={"logp": "f4", "learned": "?"}, group=seed // 4)
    talk.begin([1, 2, seed])
    for t, tool in enumerate([[5], []]):
        logp = np.full(t + seed % 2, -1.0, np.float32)
        talk.turn(np.full(len(logp), 7), tool, float(seed % 3), terminated=t == 1, logp=logp, learned=logp < 0)
    return talk


def _game() -> MultiAgentEpisode:
    game = MultiAgentEpisode(ragged={"a": {"observations": "i4", "actions": "i4"}})
    game.add_env_reset(observations={"a": [1, 2]})
    game.add_env_step({"a": [3]}, {"a": [4, 5]}, {"a": 1.0}, terminateds={"__all__": True})
    return game


def _prioritized(data: Any) -> Any:
    buffer = replay.PrioritizedEpisodeReplayBuffer(1000, seed=0)
    buffer.add(data.pack)
    buffer.update_priorities(np.arange(3), np.ones(3))
    return buffer.sample_chunks(4), buffer.sample(4)


def _written(data: Any, name: str) -> Any:
    with EpisodeWriter(data.tmp / name) as writer:
        writer.add(data.pack)
    return data.tmp / name


def _mapped(data: Any) -> None:
    with replay.EpisodeReplayBuffer(1000, path=data.tmp / "ring") as buffer:
        buffer.add(data.pack)


def _public(name: str) -> Any:
    module, _, leaf = name.rpartition(".")
    return getattr(importlib.import_module(module), leaf)


def _learned(*pieces: Any) -> Callable[[Any], Any]:
    """Return a call of a learner pipeline of the given connectors or their classes."""
    return _piped(learner.LearnerPipeline, pieces, lambda data: data.episodes)


def _acted(*pieces: Any, growing: bool = False) -> Callable[[Any], Any]:
    """Return a call of an env-to-module pipeline of the given connectors or their classes."""
    given = lambda data: [copy.deepcopy(data.growing)] if growing else data.episodes  # noqa: E731
    return _piped(env_to_module.EnvToModulePipeline, pieces, given)


def _piped(kind: Any, pieces: Any, episodes_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(data: Any) -> Any:
        pipeline = kind(connectors=[piece() if isinstance(piece, type) else piece for piece in pieces])
        return pipeline(batch={}, episodes=episodes_of(data), rl_module=_mlp())

    return call


def _of_space(name: str, *args: Any) -> Callable[[Any], Any]:
    """Return a call of a public name with the space of ragged items, and then `args`."""
    return lambda data: _public(name)(data.space, *args)


def _mlp() -> Any:
    return episode_learners.MLPPolicy(BOX, CHOICES)


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


def _wrapped(data: Any) -> Any:
    env = storage.RecordEpisodes(_RaggedEnv(), data.tmp / "wrapped")
    env.reset()
    for length in range(1, 6):
        env.step(np.arange(length))
    env.close()


def _algorithm(name: str, policy: str = "MLPPolicy", actions: Any = CHOICES) -> Any:
    return getattr(episode_learners, name)(getattr(episode_learners, policy)(BOX, actions))


def _replayed(name: str, policy: str, actions: Any = CHOICES) -> Callable[[Any], Any]:
    return lambda data: _algorithm(name, policy, actions).update_from(data.buffer)


def _from_tokens(name: str) -> Callable[[Any], Any]:
    """Return a call of the converter `to_name`, and of `from_name` with its result."""
    to, read = getattr(converters, f"to_{name}"), getattr(converters, f"from_{name}")
    return lambda data: read(to(list(data.talks))[0])


class _Logits(torch.nn.Embedding):
    """Language model whose logits depend on the token alone."""

    def __init__(self) -> None:
        super().__init__(100, 100)

    def forward(self, batch: Any) -> Any:
        return super().forward(batch["input_ids"].long())


def _sent(data: Any) -> Any:
    with transport.EpisodeReceiver() as receiver, transport.EpisodeSender(receiver.address) as sender:
        sender.send(data.pack)
        received = receiver.recv(timeout=60)
    assert received == data.pack


RETURNS: dict[str, dict[str, Any]] = {
    "discounted_returns": {},
    "gae": {"values": np.zeros(3), "lambda_": 0.95},
    "n_step_returns": {"values": np.zeros(3), "n_step": 2},
    "vtrace": {"values": np.zeros(3), "ratios": np.ones(3)},
}


def _returns(name: str, **options: Any) -> Callable[[Any], Any]:
    flags = {"terminateds": np.zeros(3, bool), "truncateds": np.zeros(3, bool), "gamma": 0.9}
    return lambda data: getattr(episodes, name)(data.pack.actions[:3], **flags, **options)


def _recorded_tokens(data: Any) -> Any:
    recorder = tokens.TokenRecorder()
    talk = recorder.begin([1, 2])
    talk.turn([3], logp=[-1.0], terminated=True)
    recorder.end(talk)
    return recorder.take()


def _generated(name: str) -> Callable[[Any], Any]:
    strategy = _public(f"episodes.testing.strategies.{name}")
    one = settings(max_examples=1, phases=[Phase.generate])
    return lambda data: find(strategy(ragged=True), lambda made: True, settings=one)


def _rewards(data: Any) -> Any:
    return data.dataset.sampler(windows=sampling.WindowBatches(4, 2, keys=["rewards"])).draw()


def _logged(data: Any) -> Any:
    with ledger.Ledger(data.tmp / "ledger") as log:
        log.note(0, Batch({"actions": data.pack.actions}))


def _shown(data: Any) -> Any:
    with mock.patch("sys.argv", ["episodes", "show", str(data.path)]), pytest.raises(SystemExit) as stopped:
        command.main()
    assert not stopped.value.code


def _valued(episode: SingleAgentEpisode) -> SingleAgentEpisode:
    """Return a copy of an episode with values of zero."""
    episode = copy.deepcopy(episode)
    episode.set_extra_model_outputs(key="v", new_data=[0.0] * (episode.lookback + len(episode)))
    return episode


def _games(data: Any) -> Path:
    """Write a data set of games, and return its path."""
    path = data.path.parent / "games"
    with EpisodeWriter(path, several_kinds=True) as writer:
        writer.add([data.game])
    return path


def _normalizing() -> env_to_module.NormalizeObservations:
    """Return a view with statistics."""
    view = env_to_module.NormalizeObservations(BOX, CHOICES)
    view.learn(np.stack([BOX.sample() for _ in range(3)]))
    return view


def _viewed(piece: Any) -> Callable[[Any], Any]:
    """Return a call of a learner pipeline for ragged spaces with the view `piece`."""
    return lambda data: connectors.learner_pipeline(data.space, data.space, pieces=[piece])(
        batch={}, episodes=data.episodes
    )


def _of_agents(**options: Any) -> Callable[[Any], Any]:
    def call(data: Any) -> Any:
        by_module = {"default_policy": data.space}
        return connectors.multi_agent_env_to_module(by_module, by_module, **options)(batch={}, episodes=[data.game])

    return call


COLUMNS = (learner.AddObservations, learner.AddColumns)
LONG_ACTIONS = "select step from steps where len(actions) > 2"
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
    "episodes.SingleAgentEpisode.repr": lambda data: (repr(data.episode), repr(data.growing)),
    "episodes.SingleAgentEpisode.html": lambda data: data.growing._repr_html_(),
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
    "episodes.Ragged": lambda data: data.pack.actions[1:3],
    "episodes.RaggedKind": lambda data: data.pack.actions.kind,
    "episodes.pack_agents": lambda data: pack_agents([data.game]),
    "episodes.unpack_agents": lambda data: unpack_agents(pack_agents([data.game])),
    "episodes.MultiAgentEpisode.repr": lambda data: (repr(data.game), data.game._repr_html_()),
    "episodes.VectorRecorder": lambda data: VectorRecorder(1, autoreset_mode="NextStep").reset(
        data.episode.get_observations(slice(0, 1))
    ),
    "episodes.storage.EpisodeDataset command line": _shown,
    **{f"episodes.{name}": _returns(name, **options) for name, options in RETURNS.items()},
    # Other formats.
    **{
        f"episodes.converters.to_{name}": lambda data, name=name: getattr(converters, f"to_{name}")(data.episodes)
        for name in ("huggingface", "pandas", "ray_data", "rllib", "sb3", "tensordict", "tianshou")
    },
    **{
        f"episodes.converters.{to}": lambda data, to=to: getattr(converters, to)(data.episodes, data.tmp / to)
        for to in ("to_lerobot", "to_parquet", "to_rllib_parquet")
    },
    **{
        f"episodes.converters.{way}_{name}": _from_tokens(name)
        for name in ("messages", "trl", "verl", "skyrl", "prime_rl")
        for way in ("to", "from")
    },
    "episodes.converters.to_minari": lambda data: converters.to_minari(data.episodes, "ragged/test-v0"),
    "episodes.converters.to_rllib of agents": lambda data: converters.to_rllib([data.game]),
    "episodes.converters.from_rllib": lambda data: converters.from_rllib(converters.to_rllib(data.episodes)[0]),
    "episodes.converters.write": lambda data: converters.write(data.episodes, data.tmp / "written", "episodes"),
    "episodes.converters.read": lambda data: list(converters.read(data.path)[0]),
    # Inspection.
    "episodes.inspect.compare_episodes": lambda data: inspect.compare_episodes(data.episode, data.episodes[1]),
    "episodes.inspect.examine": lambda data: inspect.examine(data.pack),
    "episodes.inspect.examine data set": lambda data: inspect.examine(data.dataset),
    "episodes.inspect.explain_batch": lambda data: inspect.explain_batch(_rewards(data), 0),
    "episodes.inspect.frames": lambda data: inspect.frames(data.episode),
    "episodes.inspect.link_batch": lambda data: inspect.link_batch(_rewards(data), data.tmp / "page.html"),
    "episodes.inspect.plot_episode": lambda data: inspect.plot_episode(data.episode),
    "episodes.inspect.plot_episodes": lambda data: inspect.plot_episodes(data.episodes),
    "episodes.inspect.plot_returns": lambda data: inspect.plot_returns(data.pack),
    "episodes.inspect.video": lambda data: inspect.video(data.episode, data.tmp / "x.gif"),
    "episodes.inspect.view_conversation": lambda data: inspect.view_conversation(data.episode),
    # Replay.
    "episodes.replay.EpisodeReplayBuffer.sample": lambda data: data.buffer.sample(4),
    "episodes.replay.EpisodeReplayBuffer.sample rewards": lambda data: data.buffer.sample(
        4, keys=["rewards"], n_step=2
    ),
    "episodes.replay.EpisodeReplayBuffer.sample_sequences": lambda data: data.buffer.sample_sequences(2, 3),
    "episodes.replay.EpisodeReplayBuffer.sample_episodes": lambda data: data.buffer.sample_episodes(4),
    "episodes.replay.EpisodeReplayBuffer.sample_chunks": lambda data: data.buffer.sample_chunks(4),
    "episodes.replay.EpisodeReplayBuffer.repr": lambda data: (repr(data.buffer), data.buffer.nbytes),
    "episodes.replay.EpisodeReplayBuffer.html": lambda data: data.buffer._repr_html_(),
    "episodes.replay.EpisodeReplayBuffer.pickle": lambda data: pickle.loads(pickle.dumps(data.buffer)),
    "episodes.replay.EpisodeReplayBuffer.path": _mapped,
    "episodes.replay.EpisodeReplayBuffer recorder": lambda data: (
        replay.EpisodeReplayBuffer(100).recorder(2, autoreset_mode="NextStep").reset(data.pack.observations[:2])
    ),
    "episodes.replay.PrioritizedEpisodeReplayBuffer": _prioritized,
    **{
        f"episodes.replay.{name}": lambda data, name=name: getattr(replay, name)(100).add(data.game)
        for name in ("MultiAgentEpisodeReplayBuffer", "MultiAgentPrioritizedEpisodeReplayBuffer")
    },
    # Data sets.
    "episodes.storage.EpisodeWriter": lambda data: _written(data, "again"),
    "episodes.storage.add_track": lambda data: storage.add_track(data.path, "more", Ragged([1], [0, 1])),
    "episodes.storage.check": lambda data: storage.check(data.path),
    "episodes.storage.compact": lambda data: storage.compact(_written(data, "compacted")),
    "episodes.storage.copy": lambda data: storage.copy(data.path, data.tmp / "copy"),
    "episodes.storage.merge": lambda data: storage.merge(data.tmp / "merged", data.path),
    "episodes.storage.seal": lambda data: storage.seal(_written(data, "sealed")),
    "episodes.storage.upload": lambda data: storage.upload(data.path, "memory://ragged-contract"),
    "episodes.storage.ledger.Ledger": _logged,
    "episodes.storage.EpisodeDataset.metadata": lambda data: (repr(data.dataset), data.dataset.metadata),
    "episodes.storage.EpisodeDataset.html": lambda data: data.dataset._repr_html_(),
    "episodes.storage.EpisodeDataset.metadata t_started": lambda data: data.dataset.metadata["t_started"],
    "episodes.storage.EpisodeDataset.statistics": lambda data: data.dataset.statistics(),
    "episodes.storage.EpisodeDataset.sql": lambda data: data.dataset.sql(LONG_ACTIONS),
    "episodes.storage.EpisodeDataset.sql windows": lambda data: data.dataset.sql(LONG_ACTIONS).windows(1, 1),
    "episodes.storage.EpisodeDataset.step_table": lambda data: data.dataset.step_table().table(["actions/0"]),
    "episodes.storage.EpisodeDataset.sampler": lambda data: data.dataset.sampler(windows=(4, 2)).sample_sequences(2, 3),
    **{
        f"episodes.storage.sampling.{name}": lambda data, options=options: data.dataset.sampler(**options).draw()
        for name, options in {
            "StepBatches": {"steps": 4},
            "WindowBatches": {"windows": (4, 2)},
            "EpisodeBatches": {"episodes": 4},
            "ChunkBatches": {"windows": sampling.ChunkBatches(4, 2)},
            "TimeWindows": {"windows": sampling.TimeWindows(4, {"observations": [-1.0, 0.0]}, fps=1.0)},
            "TimeWindows rewards": {"windows": sampling.TimeWindows(4, {"rewards": [-1.0, 0.0]}, fps=1.0)},
        }.items()
    },
    # Messages and tokens.
    "episodes.transport.EpisodeSender message": lambda data: sent(data.pack),
    "episodes.transport.EpisodeReceiver": _sent,
    "episodes.transport.TrajectoryAccumulator": lambda data: transport.TrajectoryAccumulator(
        {"actions": data.pack.actions}
    ),
    "episodes.tokens.token_batch": lambda data: tokens.token_batch(data.talks),
    "episodes.tokens.check_token_batch": lambda data: tokens.check_token_batch(
        lambda batch: torch.zeros(len(batch["input_ids"]), 100), tokens.token_batch(data.talks)
    ),
    "episodes.tokens.token_minibatches": lambda data: list(
        tokens.token_minibatches(tokens.token_batch(data.talks), 100)
    ),
    "episodes.tokens.limit_sequences": lambda data: tokens.limit_sequences(
        tokens.token_batch(data.talks), 8, longer="cut"
    ),
    "episodes.tokens.group_numbers": lambda data: tokens.group_numbers(data.talks),
    "episodes.tokens.Conversation": lambda data: _talk(0).episode.to_numpy(),
    "episodes.tokens.TokenRecorder": _recorded_tokens,
    # Learner pipelines.
    "connectors.learner_pipeline": lambda data: connectors.learner_pipeline()(batch={}, episodes=data.episodes),
    "connectors.learner_pipeline spaces": lambda data: connectors.learner_pipeline(BOX, CHOICES)(
        batch={}, episodes=data.episodes
    ),
    "connectors.multi_agent_learner": lambda data: connectors.multi_agent_learner(
        {"default_policy": BOX}, {"default_policy": CHOICES}
    )(batch={}, episodes=[data.game]),
    "connectors.explain_episode": lambda data: connectors.explain_episode(
        data.episode, connectors.learner_pipeline(BOX, CHOICES), _mlp()
    ),
    "connectors.compare_policies": lambda data: connectors.compare_policies(
        data.episode, connectors.learner_pipeline(BOX, CHOICES), {"a": _mlp(), "b": _mlp()}
    ),
    "episodes.inspect.value_calibration": lambda data: inspect.value_calibration(
        list(map(_valued, data.episodes)), values="v"
    ),
    "episodes.inspect.write_card": lambda data: inspect.write_card(data.path),
    "episodes.storage.GameDataset": lambda data: list(GameDataset(_games(data))),
    "connectors.ConnectorPipeline": lambda data: connectors.ConnectorPipeline(connectors=[connectors.NumpyToTensor()])(
        batch={"obs": data.pack.observations}, episodes=data.episodes
    ),
    **{
        f"connectors.learner.{name}": _learned(getattr(learner, name))
        for name in ("AddColumns", "AddObservations", "FrameStackingLearner", "NormalizeRewards")
    },
    "connectors.learner.ComputeReturnsToGo": _learned(partial(learner.ComputeReturnsToGo, allow_cut=True)),
    "connectors.learner.ComputeReturnsToGo after columns": _learned(
        *COLUMNS, partial(learner.ComputeReturnsToGo, allow_cut=True)
    ),
    "connectors.learner.AddInfos": _learned(*COLUMNS, partial(learner.AddInfos, at="obs")),
    **{
        f"connectors.learner.{name} after columns": _learned(*COLUMNS, getattr(learner, name))
        for name in (
            "AddInfosFromEpisodesToTrainBatch",
            "AddNextObservations",
            "AddPolicyVersions",
            "AddTimeDimensionAndZeroPad",
            "GeneralizedAdvantageEstimation",
        )
    },
    "connectors.NumpyToTensor learner": _learned(*COLUMNS, connectors.NumpyToTensor),
    "connectors.learner.AddStates": _learned(*COLUMNS, learner.AddTimeDimensionAndZeroPad, learner.AddStates),
    "connectors.learner.HindsightRelabel": _learned(
        *COLUMNS, learner.AddNextObservations, learner.HindsightRelabel(compute_reward=lambda *_: 0.0)
    ),
    "connectors.learner.LearnerPipeline": _learned(*COLUMNS),
    "connectors.learner.TokenColumns": lambda data: learner.LearnerPipeline(connectors=[learner.TokenColumns()])(
        batch={}, episodes=data.talks
    ),
    "connectors.learner.VTrace": lambda data: _algorithm("IMPALA").preprocess(data.episodes),
    "connectors.learner.EpisodesToRolloutBuffer": lambda data: connectors.ConnectorPipeline(
        connectors=[
            learner.EpisodesToRolloutBuffer(buffer=connectors.RolloutBuffer(len(data.episodes), 40, 3, 1, "cpu"))
        ]
    )(batch={}, episodes=data.pack, rl_module=_mlp()),
    "connectors.env_to_module.FrameStacking space": _viewed(env_to_module.FrameStacking(num_frames=2)),
    "connectors.env_to_module.OneHotAgentId": _viewed(env_to_module.OneHotAgentId(["a"])),
    "connectors.env_to_module.NormalizeObservations": _viewed(_normalizing()),
    "connectors.env_to_module.TransformerContext": _viewed(env_to_module.TransformerContext(3)),
    "connectors.env_to_module.time_steps": _viewed(env_to_module.time_steps),
    # Env-to-module pipelines.
    "connectors.env_to_module_pipeline": lambda data: connectors.env_to_module_pipeline()(
        batch={}, episodes=data.episodes
    ),
    "connectors.env_to_module_pipeline spaces": lambda data: connectors.env_to_module_pipeline(BOX, CHOICES)(
        batch={}, episodes=data.episodes
    ),
    "connectors.multi_agent_env_to_module": _of_agents(),
    "connectors.env_to_module.MultiAgentObservationPreprocessor": _of_agents(
        joint=[env_to_module.MultiAgentObservationPreprocessor()]
    ),
    **{
        f"connectors.env_to_module.{name}": _acted(getattr(env_to_module, name))
        for name in ("AddObservations", "AddStates", "FrameStacking")
    },
    "connectors.env_to_module.AddTimeDimension": _acted(env_to_module.AddObservations, env_to_module.AddTimeDimension),
    "connectors.env_to_module.FrameStacking rows": _acted(env_to_module.AddObservations, env_to_module.FrameStacking),
    "connectors.env_to_module.PrevActionsPrevRewards": _acted(
        env_to_module.AddObservations, env_to_module.PrevActionsPrevRewards
    ),
    **{
        f"connectors.{name}": _acted(env_to_module.AddObservations, getattr(connectors, name))
        for name in ("AgentToModuleMapping", "BatchItems", "NumpyToTensor")
    },
    **{
        f"connectors.env_to_module.{name}": _acted(
            getattr(env_to_module, name), env_to_module.AddObservations, growing=True
        )
        for name in ("FlattenObservations", "MeanStdFilter", "ObservationPreprocessor")
    },
    "connectors.ObservationRewriter": _acted(env_to_module.ObservationPreprocessor, growing=True),
    "connectors.env_to_module.ForEachAgent": _acted(
        env_to_module.ForEachAgent(make=env_to_module.FlattenObservations), growing=True
    ),
    "connectors.env_to_module.EnvToModulePipeline": _acted(env_to_module.AddObservations, growing=True),
    # Spaces of ragged items, in place of the items.
    "connectors.Actor": lambda data: connectors.Actor(episode_learners.MLPPolicy, data.space, CHOICES),
    "connectors.distribution_for": _of_space("connectors.distribution_for"),
    "connectors.export.export": lambda data: connectors.export.export(
        connectors.Actor(_mlp(), BOX, CHOICES), data.tmp / "x.onnx", check_on=data.episodes
    ),
    "connectors.testing.check_connector": lambda data: testing.check_connector(
        env_to_module.AddObservations(), "env_to_module", observation_space=data.space
    ),
    "connectors.testing.check_policy": lambda data: testing.check_policy(_mlp(), data.space, CHOICES),
    "connectors.testing.check_view": lambda data: testing.check_view(env_to_module.time_steps, _RaggedEnv),
    "episode_learners.networks.Autoregressive": _of_space("episode_learners.networks.Autoregressive"),
    "episode_learners.networks.ContextEncoder": _of_space("episode_learners.networks.ContextEncoder", 3),
    "episode_learners.networks.encoder_for": _of_space("episode_learners.networks.encoder_for"),
    "episode_learners.SACPolicy": _of_space("episode_learners.SACPolicy", FORCE),
    **{
        f"episode_learners.{name}Policy": _of_space(f"episode_learners.{name}Policy", CHOICES)
        for name in ("Encoder", "GRU", "LSTM", "LSTMQ", "MLP", "Q", "Transformer")
    },
    # Algorithms.
    **{
        f"episode_learners.{name}": lambda data, name=name: _algorithm(name).update(data.episodes)
        for name in ("BC", "IMPALA", "PPO")
    },
    "episode_learners.GRPO": lambda data: _algorithm("GRPO").update(data.talks),
    "episode_learners.TokenGRPO": lambda data: episode_learners.TokenGRPO(_Logits()).update(data.talks),
    "episode_learners.BC buffer": _replayed("BC", "MLPPolicy"),
    "episode_learners.BC data set": lambda data: _algorithm("BC").update_from(data.dataset.sampler(steps=4)),
    "episode_learners.DQN": _replayed("DQN", "QPolicy"),
    "episode_learners.CQL": _replayed("CQL", "QPolicy"),
    "episode_learners.R2D2": _replayed("R2D2", "LSTMQPolicy"),
    "episode_learners.SAC": _replayed("SAC", "SACPolicy", FORCE),
    "episode_learners.ContinuousCQL": _replayed("ContinuousCQL", "SACPolicy", FORCE),
    "episode_learners.MultiAgentAlgorithm": lambda data: episode_learners.MultiAgentAlgorithm(
        {"default_policy": _algorithm("PPO")}
    ).update([data.game]),
    "episode_learners.trainers.OfflineTrainer": lambda data: episode_learners.trainers.OfflineTrainer(
        _algorithm("BC"), data.episodes
    ).run(),
    "episode_learners.ppo_pipeline": lambda data: episode_learners.ppo_pipeline(_mlp(), episode_learners.PPOConfig())(
        batch={}, episodes=data.episodes, rl_module=_mlp()
    ),
    # Environments with ragged observations, and generated episodes.
    "episode_runners.SingleAgentEnvRunner": lambda data: episode_runners.SingleAgentEnvRunner(
        _RaggedEnv, num_envs=2
    ).sample(num_timesteps=8, random_actions=True),
    "episode_runners.MultiAgentEnvRunner": lambda data: episode_runners.MultiAgentEnvRunner(
        _RaggedGame, {"default_policy": _mlp()}, num_envs=2
    ).sample(num_timesteps=8, random_actions=True),
    "episode_runners.evaluate": lambda data: episode_runners.evaluate(_RaggedEnv, _mlp(), num_episodes=2),
    "episode_runners.make_vector_env": lambda data: episode_runners.make_vector_env(_RaggedEnv, 2).reset(),
    "episodes.testing.check_vector_env": lambda data: check_vector_env(
        episode_runners.make_vector_env(_RaggedEnv, 2), num_steps=20
    ),
    "episodes.storage.RecordEpisodes": _wrapped,
    **{f"episodes.testing.strategies.{name}": _generated(name) for name in ("episodes", "lists_of_episodes", "packs")},
}

# Names that cannot receive a track (patterns of names), by reason.
WITHOUT_TRACKS: dict[str, set[str]] = {
    "constants, names of columns, and errors": {"episodes.Columns", "episodes.DEFAULT_*", "episodes.facts.Ending"},
    "base classes and interfaces, whose subclasses are called": {
        "connectors.ActionDistribution",
        "connectors.Connector",
        "connectors.ConnectorPipelineV2",
        "connectors.ConnectorV2",
        "connectors.Policy",
        "connectors.env_to_module.SingleAgentObservationPreprocessor",
        "episode_learners.Algorithm",
        "episode_learners.Policy",
        "episode_runners.Hook",
    },
    "results, which calls of other names return": {
        "episodes.tokens.LengthReport",
        "episodes.tokens.SessionReport",
        "episodes.storage.ledger.LedgerReader",
        "episodes.transport.Weights",
    },
    "calls of servers, whose values are lists of token ids": {
        "episodes.capture.CaptureProxy",
        "episodes.tokens.ResponseReader",
        "episodes.tokens.Sample",
        "episodes.tokens.Session",
        "episodes.tokens.SessionRecorder",
        "episodes.tokens.read_*",
    },
    "settings": {
        "episode_learners.*Config",
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
        "connectors.module_to_env.*",
        "connectors.module_to_env_pipeline",
        "connectors.multi_agent_module_to_env",
    },
    "networks, their parameters, features and optimizers": {
        "episode_learners.FlatOptimizer",
        "episode_learners.TargetNetwork",
        "episode_learners.data_parallel",
        "episode_learners.linear_decay",
        "episode_learners.networks.*Memory",
    },
    "loggers and metrics": {"episode_learners.loggers.*", "episode_runners.MetricsLogger"},
    "made of a runner or an algorithm, which reject ragged tracks": {
        "connectors.MultiAgentEnvToModule",
        "connectors.MultiAgentLearner",
        "episode_learners.League",
        "episode_learners.trainers.EpisodeKeeper",
        "episode_learners.trainers.FrameRecorder",
        "episode_learners.trainers.O*PolicyTrainer",
        "episode_learners.trainers.VideoHook",
        "episode_runners.GroupRunner",
        "episode_runners.R*",
        "episode_runners.rllib.*",
        "episode_runners.start_ray",
    },
    "simulators, whose observations are tensors or arrays": {"episode_runners.environments.*VectorEnv"},
    "formats without ragged data, whose writers reject them": {
        f"episodes.converters.from_{name}"
        for name in ("d4rl", "lerobot", "minari", "parquet", "rllib_parquet", "sb3", "tensordict", "tianshou")
    },
    "tables with a value, or a list of one length, in each row": {"episodes.converters.from_table"},
    "files and folders of runs": {"episodes.inspect.explain_update", "episodes.inspect.examine_run"},
    "strategies of other data": {
        f"episodes.testing.strategies.{name}"
        for name in ("infos", "items", "multi_agent_histories", "spaces", "vector_rows")
    },
    "single observations, which are compared with the space": {"connectors.compute_action"},
    "files and keys": {"episodes.storage.ledger.difference", "episodes.transport.make_keys"},
}


def _name_of(call: str) -> str:
    """Return the public name that a call is about, such as "episodes.EpisodePack" of "episodes.EpisodePack.replace"."""
    parts = call.partition(" ")[0]
    while parts and parts not in NAMES:
        parts = parts.rpartition(".")[0]
    return parts


_LINES = (Path(__file__).parents[1] / "public_api.txt").read_text().splitlines()
_ALL = {line.partition("(")[0].partition(" ")[0] for line in _LINES}
NAMES = {name for name in _ALL if name.rpartition(".")[0] not in _ALL}  # without members of classes


def test_each_public_name_is_called_with_a_ragged_track_or_cannot_receive_one() -> None:
    called = {_name_of(call) for call in CALLS}
    assert "" not in called, [call for call in CALLS if not _name_of(call)]
    excluded = set()
    for pattern in set().union(*WITHOUT_TRACKS.values()):
        names = {name for name in NAMES if fnmatch(name, pattern)}
        assert names, pattern
        assert not names & called
        excluded |= names
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
