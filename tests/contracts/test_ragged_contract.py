"""Each public call that takes episodes works with ragged tracks, or rejects them by name and changes nothing."""

from __future__ import annotations

import copy
import importlib
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

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
def given(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
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
        data=path / "data",
        buffer=buffer,
        space=space,
        tmp=path,
    )


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


CALLS: dict[str, Callable[[Any], Any]] = {
    "SingleAgentEpisode.get_data_dict": lambda given: given.episode.get_data_dict(),
    "SingleAgentEpisode.get_env_actions": lambda given: given.episode.get_env_actions(),
    "SingleAgentEpisode.one_hot": lambda given: given.episode.get_actions(one_hot_discrete=True),
    "SingleAgentEpisode.one_hot growing": lambda given: given.growing.get_observations(one_hot_discrete=True),
    "SingleAgentEpisode.with_env_actions": lambda given: given.episode.with_env_actions(),
    "SingleAgentEpisode.with_policy_actions": lambda given: SingleAgentEpisode.of(
        given.episode.facts._replace(action_space=given.space), given.episode.tracks, {}
    ).with_policy_actions(),
    "SingleAgentEpisode.array": lambda given: np.asarray(given.episode.actions),
    "SingleAgentEpisode.array growing": lambda given: np.asarray(given.growing.actions),
    "SingleAgentEpisode.repr": lambda given: (repr(given.episode), repr(given.growing), given.growing._repr_html_()),
    "SingleAgentEpisode.new output": lambda given: copy.deepcopy(given.episode).set_extra_model_outputs(
        key="new", new_data=[0.0] * (given.episode.lookback + len(given.episode))
    ),
    "EpisodePack.replace": lambda given: given.pack.replace(extra_model_outputs={}),
    "EpisodePack.replace actions": lambda given: given.pack.replace(actions=np.zeros(len(given.pack.rewards))),
    "EpisodePack.move_starts": lambda given: given.pack.move_starts(np.ones(len(given.pack), int)),
    "EpisodePack.get_env_actions": lambda given: given.pack.get_env_actions(),
    "EpisodePack.with_policy_actions": lambda given: given.pack.replace(action_space=given.space).with_policy_actions(),
    "EpisodePack.repr": lambda given: (repr(given.pack), given.pack._repr_html_(), given.pack.retained_nbytes),
    "Batch": lambda given: Batch({"actions": given.pack.actions, "rewards": given.pack.rewards})[:3],
    "pack_agents": lambda given: unpack_agents(pack_agents([_multi_agent(given)])),
    "MultiAgentEpisode.repr": lambda given: (repr(_multi_agent(given)), _multi_agent(given)._repr_html_()),
    "VectorRecorder": _recorded,
    "converters.to_huggingface": _converter("to_huggingface"),
    "converters.to_lerobot": _converter("to_lerobot", lambda given: given.tmp / "lerobot"),
    "converters.to_minari": _converter("to_minari", "ragged/test-v0"),
    "converters.to_pandas": _converter("to_pandas"),
    "converters.to_parquet": _converter("to_parquet", lambda given: given.tmp / "parquet"),
    "converters.to_ray_data": _converter("to_ray_data"),
    "converters.to_rllib": _converter("to_rllib"),
    "converters.to_rllib of agents": lambda given: importlib.import_module("episodes.converters").to_rllib(
        [_multi_agent(given)]
    ),
    "converters.to_rllib_parquet": _converter("to_rllib_parquet", lambda given: given.tmp / "rllib"),
    "converters.to_sb3": _converter("to_sb3"),
    "converters.to_tensordict": _converter("to_tensordict"),
    "converters.to_tianshou": _converter("to_tianshou"),
    "converters.write": lambda given: importlib.import_module("episodes.converters").write(
        given.episodes, given.tmp / "written", "episodes"
    ),
    "inspect.compare_episodes": _inspect("compare_episodes", lambda given: given.episodes[1]),
    "inspect.examine": _inspect("examine", of="pack"),
    "inspect.examine data set": _inspect("examine", of="dataset"),
    "inspect.frames": _inspect("frames"),
    "inspect.plot_episode": _inspect("plot_episode"),
    "inspect.plot_episodes": _inspect("plot_episodes", of="episodes"),
    "inspect.plot_returns": _inspect("plot_returns", of="pack"),
    "inspect.video": _inspect("video", lambda given: given.tmp / "x.gif"),
    "replay.sample": _sampled("sample", n=4),
    "replay.sample rewards": _sampled("sample", n=4, keys=["rewards"], n_step=2),
    "replay.sample_sequences": _sampled("sample_sequences", batch_size=2, length=3),
    "replay.sample_episodes": _sampled("sample_episodes", n=4),
    "replay.sample_chunks": _sampled("sample_chunks", n=4),
    "replay.repr": lambda given: (repr(given.buffer), given.buffer._repr_html_(), given.buffer.nbytes),
    "replay.pickle": lambda given: pickle.loads(pickle.dumps(given.buffer)),
    "replay.prioritized": _prioritized,
    "storage.check": _storage("check", lambda given: given.data),
    "storage.copy": _storage("copy", lambda given: given.data, lambda given: given.tmp / "copy"),
    "storage.add_track": _storage("add_track", lambda given: given.data, "more", Ragged([1], [0, 1])),
    "storage.metadata": lambda given: (repr(given.dataset), given.dataset.metadata, given.dataset._repr_html_()),
    "storage.statistics": lambda given: given.dataset.statistics(),
    "storage.sql": lambda given: given.dataset.sql("select step from steps where len(actions) > 2"),
    "storage.sql of a value": lambda given: given.dataset.step_table().table(["actions/0"]),
    "sampling.steps": _drawn(steps=4),
    "sampling.windows": _drawn(windows=(4, 2)),
    "sampling.episodes": _drawn(episodes=4),
    "transport": _accumulated,
    "connectors.learner_pipeline": _learned,
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_with_ragged_tracks_work_or_reject_them_by_name(name: str, given: Any) -> None:
    before, rejection = copy.deepcopy(given.episode), "ragged"
    try:
        CALLS[name](given)
    except EpisodeError as error:
        rejection = str(error).lower()
    assert any(word in rejection for word in ("ragged", "no images")), rejection
    assert given.episode.equals(before)
