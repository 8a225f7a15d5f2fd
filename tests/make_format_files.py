"""Small files of every format that the library writes: `python -m tests.make_format_files`.

It writes the files of this version to one archive in tests/data/formats. Archives of other versions are never written
again: tests read them with every later version. `development-1` and `development-2` are of versions before the first
release, written by this file with the names that these versions had.
"""

from __future__ import annotations

import json
import pickle
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgpack
import numpy as np
import torch
from gymnasium import spaces

from episodes import __version__
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import EpisodeWriter

FORMATS = Path(__file__).parent / "data" / "formats"
SPACES = (spaces.Box(-10, 10, (4,), np.float32), spaces.Discrete(2))
CAPACITY = 32  # of replay buffers, in steps


def episodes() -> list[SingleAgentEpisode]:
    """Return the episodes of all files: one that terminated, and one that was cut."""
    made = []
    for number, length in enumerate((5, 3)):
        observations = np.arange(4 * (length + 1), dtype=np.float32).reshape(-1, 4) / 8 + number
        made.append(
            SingleAgentEpisode.from_arrays(
                observations,
                np.arange(length) % 2,
                np.arange(length) - 1.5,
                extra_model_outputs={"logp": np.arange(length, dtype=np.float32)},
                id_=f"e{number}",
                observation_space=SPACES[0],
                action_space=SPACES[1],
                terminated=not number,
            )
        )
    return made


def pack() -> EpisodePack:
    return EpisodePack.from_episodes(episodes())


def game() -> MultiAgentEpisode:
    episode = MultiAgentEpisode("game")
    episode.add_env_reset(observations={"a": 0.0, "b": 1.0})
    for t in range(3):
        episode.add_env_step({"a": t + 1.0, "b": t + 2.0}, {"a": t, "b": -t}, {"a": 0.5, "b": 1.0})
    return episode


def talk() -> SingleAgentEpisode:
    """Return an episode whose items have different lengths."""
    episode = SingleAgentEpisode(id_="talk", ragged={"observations": np.int64, "actions": np.int64})
    episode.add_env_reset(np.array([1, 2, 3]))
    episode.add_env_step(np.array([4]), np.array([7, 8]), 0.0)
    episode.add_env_step(np.array([5, 6]), np.array([9]), 1.0, terminated=True)
    return episode.to_numpy()


def buffer(path: Path | None = None) -> EpisodeReplayBuffer:
    """Return a replay buffer that holds `episodes()`, and has a state."""
    made = EpisodeReplayBuffer(CAPACITY, seed=0, path=path)
    made.add(episodes())
    made.sample(4)
    return made


def trainer(kind: str, folder: Path | None) -> Any:
    """Return a trainer of two updates ("ppo", with a table and a ledger, or "dqn", with a replay buffer)."""
    from episode_learners import DQN, PPO, DQNConfig, MLPPolicy, PPOConfig, QPolicy
    from episode_learners.loggers import CSVLogger
    from episode_learners.trainers import OffPolicyConfig, OffPolicyTrainer, OnPolicyConfig, OnPolicyTrainer
    from episode_runners import SingleAgentEnvRunner

    space = (spaces.Box(-10, 10, (4,)), spaces.Discrete(2))
    numbers: dict[str, Any] = {"max_epochs": 1, "steps_per_epoch": 16, "num_test_episodes": 0, "steps_per_collect": 8}
    numbers |= {"checkpoint_every": 1, "shows_progress": False}
    generator = torch.Generator().manual_seed(0)
    if kind == "ppo":
        policy = MLPPolicy(*space, hidden_sizes=(4,), generator=generator)
        runner = SingleAgentEnvRunner("CartPole-v1", policy, num_envs=2, seed=0)
        options: dict[str, Any] = {} if folder is None else {"logger": CSVLogger(folder), "ledger": folder / "ledger"}
        algorithm = PPO(policy, PPOConfig(minibatch_size=8, num_epochs=1), seed=0)
        return OnPolicyTrainer(algorithm, runner, OnPolicyConfig(**numbers), folder=folder, **options)
    policy = QPolicy(*space, hidden_sizes=(4,), generator=generator)
    runner = SingleAgentEnvRunner("CartPole-v1", policy, num_envs=2, seed=0)
    config = OffPolicyConfig(warmup_steps=8, **numbers)
    dqn = DQN(policy, DQNConfig(batch_size=4), seed=0)
    return OffPolicyTrainer(dqn, runner, EpisodeReplayBuffer(CAPACITY, seed=0), config, folder=folder)


def actor() -> Any:
    """Return an actor with weights that do not depend on the version of torch."""
    from connectors import Actor
    from connectors.env_to_module import MeanStdFilter
    from episode_learners import MLPPolicy
    from episode_runners import SingleAgentEnvRunner

    made = Actor(partial(MLPPolicy, hidden_sizes=(4,)), *SPACES, pieces=[MeanStdFilter()])
    with torch.no_grad():
        for weights in made.policy.parameters():
            weights.copy_(torch.linspace(-1, 1, weights.numel()).reshape(weights.shape))
    runner = SingleAgentEnvRunner("CartPole-v1", made, num_envs=1, seed=0)
    runner.sample(num_timesteps=16)  # statistics of the filter
    runner.close()
    return made


def write_data_sets(folder: Path) -> None:
    with EpisodeWriter(folder / "data_set", env_spec="CartPole-v1", metadata={"who": "me"}) as writer:
        writer.add(pack())


def write_ragged_data_set(folder: Path) -> None:
    with EpisodeWriter(folder / "data_set_ragged") as writer:
        writer.add(EpisodePack.from_episodes([talk()]))


def write_runs(folder: Path) -> None:
    for kind in ("ppo", "dqn"):
        run = trainer(kind, folder / kind)
        run.run()
        run.logger.describe({"configuration": {"kind": kind}})
        run.logger.close()


def write_actor(folder: Path) -> None:
    """Write an actor, the same actor as an exported model, and its actions for the observations of `pack`."""
    from connectors.export import export

    made = actor()
    made.save(folder / "policy.actor")
    export(made, folder / "policy.onnx")
    (folder / "serve.py").unlink(missing_ok=True)
    acted = [int(made.act(row, explore=False)[0]) for row in pack().observations]
    (folder / "acted.json").write_text(json.dumps(acted))


def write_replay(folder: Path) -> None:
    with buffer(folder / "replay") as made:
        made.flush()
    (folder / "replay" / "lock").unlink()


def write_journal(folder: Path) -> None:
    from episodes.transport.journal import Journal

    journal = Journal(folder / "journal")
    journal.note(b"sender01", 7, 6)
    journal.close()


def write_message(folder: Path) -> None:
    from episodes.transport.messages import Head, MessageKind
    from episodes.transport.wire import Schemas, encoded

    message = encoded([pack()], Schemas())
    head = Head(MessageKind.DATA, 1 + len(message.large), b"sender01", 3, message.schema_id).packed()
    parts = [bytes(part) for part in message.parts(head)]
    (folder / "message.msgpack").write_bytes(msgpack.packb([message.schema, parts]) or b"")


def write_pickles(folder: Path) -> None:
    for name, value in PICKLED.items():
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(value(), 5))


PICKLED: dict[str, Callable[[], Any]] = {
    "episode": lambda: episodes()[0],
    "growing_episode": lambda: episodes()[1].cut(),
    "pack": pack,
    "multi_agent_episode": game,
    "replay_buffer": buffer,
    "batch": lambda: buffer().sample(4),
}
WRITERS = (
    *(write_data_sets, write_ragged_data_set, write_runs, write_actor, write_replay, write_journal),
    *(write_message, write_pickles),
)


def main() -> None:
    with TemporaryDirectory() as name, tarfile.open(FORMATS / f"{__version__}.tar.xz", "w:xz") as archive:
        folder = Path(name)
        for write in WRITERS:
            write(folder)
        for file in sorted(folder.iterdir()):
            archive.add(file, file.name, filter=_without_owner)


def _without_owner(file: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the name of the user and the time from an entry of an archive."""
    file.uname = file.gname = ""
    file.uid = file.gid = file.mtime = 0
    return file


if __name__ == "__main__":
    main()
