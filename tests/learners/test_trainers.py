"""Trainers: order of operations, and equality of resumed and uninterrupted runs."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from connectors import ObservationRewriter, env_to_module_pipeline, learner_pipeline
from connectors.env_to_module import MeanStdFilter
from episode_learners import (
    BC,
    CQL,
    DQN,
    GRPO,
    PPO,
    SAC,
    BCConfig,
    DQNConfig,
    LSTMPolicy,
    MLPPolicy,
    PPOConfig,
    QPolicy,
    SACConfig,
    SACPolicy,
)
from episode_learners.loggers import CSVLogger, MultiLogger, TensorBoardLogger
from episode_learners.trainers import (
    OfflineConfig,
    OfflineTrainer,
    OffPolicyConfig,
    OffPolicyTrainer,
    OnPolicyConfig,
    OnPolicyTrainer,
    VideoHook,
)
from episode_learners.trainers.checkpoint import load_checkpoint, save_checkpoint
from episode_learners.trainers.trainer import Trainer
from episode_runners import SingleAgentEnvRunner, evaluate
from episodes.errors import InvalidArgument, StateMismatch, UnknownKey, UnreadableData
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.tracks.infos.infos import same_info
from tests.learners.weights import assert_same_weights, seeded

CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
SHORT: dict[str, Any] = {"num_test_episodes": 2, "shows_progress": False, "steps_per_epoch": 64}


def spaces_of(env_id: str) -> tuple[gym.Space, gym.Space]:
    env = gym.make(env_id)
    return env.observation_space, env.action_space


def ppo_trainer(
    seed: int = 0,
    config: dict[str, Any] | None = None,
    kind: Any = MLPPolicy,
    numbers: dict[str, Any] | None = None,
    env: str = CARTPOLE,
    num_envs: int = 2,
    **options: Any,
) -> Trainer:
    policy = kind(*spaces_of(CARTPOLE), hidden_sizes=(8,), generator=seeded(seed))
    algorithm = PPO(policy, PPOConfig(num_epochs=2, minibatch_size=32, **(numbers or {})), seed=seed)
    runner = SingleAgentEnvRunner(env, policy, num_envs=num_envs, seed=seed)
    settings = OnPolicyConfig(**{**SHORT, "steps_per_collect": 32, **(config or {})})
    return OnPolicyTrainer(algorithm, runner, settings, **options)


def dqn_trainer(seed: int = 0, config: dict[str, Any] | None = None, **options: Any) -> Trainer:
    policy = QPolicy(*spaces_of(CARTPOLE), hidden_sizes=(8,), generator=seeded(seed))
    algorithm = DQN(policy, DQNConfig(batch_size=16, target_every=5, epsilon_steps=100), seed=seed)
    runner = SingleAgentEnvRunner(CARTPOLE, policy, num_envs=2, seed=seed)
    buffer = PrioritizedEpisodeReplayBuffer(200, seed=seed)
    numbers = {**SHORT, "warmup_steps": 20, "gradient_steps_per_collect": 2, **(config or {})}
    return OffPolicyTrainer(algorithm, runner, buffer, OffPolicyConfig(**numbers), **options)


def sac_trainer(seed: int = 0, config: dict[str, Any] | None = None, **options: Any) -> Trainer:
    policy = SACPolicy(*spaces_of(PENDULUM), hidden_sizes=(8,), generator=seeded(seed))
    algorithm = SAC(policy, SACConfig(batch_size=16), seed=seed)
    runner = SingleAgentEnvRunner(PENDULUM, policy, num_envs=2, seed=seed)
    numbers = {**SHORT, "warmup_steps": 20, "steps_per_collect": 4, **(config or {})}
    return OffPolicyTrainer(
        algorithm, runner, EpisodeReplayBuffer(100, seed=seed), OffPolicyConfig(**numbers), **options
    )


class Notes:
    """Hook that records its calls."""

    def __init__(self) -> None:
        self.updates: list[dict[str, float]] = []
        self.told: list[str] = []

    def on_update(self, trainer, metrics):
        self.updates.append(metrics)
        self.told.append("update")

    def on_test(self, trainer, evaluation):
        self.told.append("test")

    def on_epoch(self, trainer):
        self.told.append("epoch")


MAKERS = {
    "PPO": ppo_trainer,
    "recurrent PPO": partial(ppo_trainer, kind=LSTMPolicy),
    "DQN": dqn_trainer,
    "SAC": sac_trainer,
}


@pytest.mark.parametrize("make", [ppo_trainer, dqn_trainer], ids=["PPO", "DQN"])
def test_curves_of_killed_run_have_each_row_once(make, tmp_path: Path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    whole, killed = tmp_path / "whole", tmp_path / "killed"

    class Copies:
        """Hook that keeps a copy of the files after the first update behind a checkpoint."""

        def on_update(self, trainer, metrics):
            if trainer.num_epochs == 2 and not killed.exists():
                shutil.copytree(whole, killed)

    for folder, hooks in ((whole, [Copies()]), (killed, [])):
        logger = MultiLogger([CSVLogger(folder), TensorBoardLogger(folder)])
        trainer = make(config={"max_epochs": 3, "checkpoint_every": 1}, folder=folder, logger=logger, hooks=hooks)
        assert trainer.resume() == (folder == killed)
        trainer.run()
        logger.close()
    steps = {}
    for folder in (whole, killed):
        curves = accumulators.EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        for scope, name in {
            "train": "training/env_step",
            "update": "update/env_step",
            "test": "test/env_step",
        }.items():
            rows = [int(row["step"]) for row in CSVLogger(folder).rows(scope)]
            assert rows == steps.setdefault(scope, rows)
            assert rows == [event.step for event in curves.Scalars(name)]
            assert len(set(rows)) == len(rows)
        updates = [int(row["num_updates"]) for row in CSVLogger(folder).rows("update")]
        assert updates == [event.value for event in curves.Scalars("update/update_step")]
        assert updates[-1] == trainer.num_updates
        assert updates == sorted(set(updates))


def test_on_collect_sees_steps_of_its_collection(tmp_path: Path):
    with CSVLogger(tmp_path) as logger:
        trainer = ppo_trainer(config={"max_epochs": 2}, logger=logger)
        trainer.run()
        rows = logger.rows("train")
        counted = np.cumsum([int(row["num_steps"]) for row in rows]).tolist()
        assert [int(row["step"]) for row in rows] == counted
        assert [int(row["step"]) for row in logger.rows("update")] == counted
    assert counted[-1] == trainer.num_steps


def test_hook_that_raises_loses_no_row(tmp_path: Path):
    class Breaks:
        def on_test(self, trainer, evaluation):
            raise ZeroDivisionError

    trainer = ppo_trainer(hooks=[Breaks()], logger=CSVLogger(tmp_path))
    with pytest.raises(ZeroDivisionError):
        trainer.run()
    for scope in ("train", "update", "test"):
        assert (tmp_path / f"{scope}.csv").read_text().count("\n") == 1 + (1 if scope == "test" else 2)
    trainer.logger.close()


def test_epoch_calls_hooks_in_order(tmp_path: Path):
    notes, best = Notes(), []
    with CSVLogger(tmp_path) as logger:
        trainer = ppo_trainer(config={"max_epochs": 2}, hooks=[notes], logger=logger, save_best_fn=best.append)
        result = trainer.run()
        assert [64 <= int(row["step"]) < 70 * epoch for epoch, row in enumerate(logger.rows("test"), 1)] == [True] * 2
        assert {"policy_loss", "step"} <= set(logger.rows("update")[0])
        assert len(logger.rows("train")) == 4
    assert notes.told == ["update", "update", "test", "epoch"] * 2
    assert (result.num_epochs, result.num_updates, result.stopped_by) == (2, 4, "max_epochs")
    assert best[0] is trainer.algorithm
    assert result.best_score >= result.last_test.mean_return


def test_stop_fn_ends_run_with_its_test():
    epochs = []
    result = ppo_trainer(config={"max_epochs": 5}, stop_fn=lambda score: epochs.append(score) or len(epochs) == 2).run()
    assert (result.num_epochs, result.stopped_by) == (2, "stop_fn")
    assert max(epochs) == result.best_score


def test_interrupted_run_continues_with_next_call():
    class Presses:
        def on_update(self, trainer, metrics):
            if trainer.num_updates == 3:
                raise KeyboardInterrupt

    trainer = ppo_trainer(config={"max_epochs": 3}, hooks=[Presses()])
    assert trainer.run().stopped_by == "interrupt"
    assert trainer.run().stopped_by == "max_epochs"
    assert trainer.num_epochs == 3


def test_offline_trainer_repeats_the_episodes():
    policy = MLPPolicy(*spaces_of(CARTPOLE), hidden_sizes=(8,), generator=seeded(0))
    with SingleAgentEnvRunner(CARTPOLE, policy, num_envs=2, seed=0) as runner:
        data = list(runner.sample(num_episodes=7))
    recorded: list[int] = []

    class Watched(BC):
        def update(self, episodes):
            recorded.append(len(episodes))
            return super().update(episodes)

    config = OfflineConfig(**{**SHORT, "steps_per_epoch": sum(map(len, data)), "max_epochs": 2}, episodes_per_update=3)
    result = OfflineTrainer(
        Watched(policy, BCConfig()),
        data,
        config,
        evaluate_fn=lambda num, seed: evaluate(CARTPOLE, policy, num_episodes=num, seed=seed),
    ).run()
    assert recorded == [3, 3, 1] * 2
    assert result.last_test.num_episodes == 2


def test_offline_trainer_takes_buffer_only_for_replay(tmp_path: Path):
    policy = MLPPolicy(*spaces_of(CARTPOLE), hidden_sizes=(8,), generator=seeded(0))
    buffer = EpisodeReplayBuffer(500, seed=0)
    with SingleAgentEnvRunner(CARTPOLE, policy, seed=0) as runner:
        runner.sample_into(buffer, num_timesteps=100)
    config = OfflineConfig(**SHORT | {"steps_per_epoch": 20, "max_epochs": 2})
    assert OfflineTrainer(BC(policy, BCConfig(minibatch_size=16)), buffer, config).run().num_updates == 40
    for steps in (buffer, recorded(tmp_path).sampler(steps=4)):
        with pytest.raises(InvalidArgument, match="PPO learns from episodes"):
            OfflineTrainer(PPO(policy), steps, config)


def recorded(path: Path) -> EpisodeDataset:
    policy = QPolicy(*spaces_of(CARTPOLE), generator=seeded(0))
    with SingleAgentEnvRunner(CARTPOLE, policy, seed=0) as runner, EpisodeWriter(path) as writer:
        writer.add(runner.sample(num_episodes=12, random_actions=True))
    return EpisodeDataset(path)


OFFLINE: dict[str, tuple[Any, Any, Any]] = {  # algorithm, policy and data of a seed
    "bc of steps": (BC, MLPPolicy, lambda dataset, seed: dataset.sampler(steps=16, seed=seed)),
    "bc of episodes": (BC, MLPPolicy, lambda dataset, seed: dataset.sampler(episodes=5, seed=seed)),
    "recurrent bc of steps": (BC, LSTMPolicy, lambda dataset, seed: dataset.sampler(steps=4, seed=seed)),
    "recurrent bc of all": (BC, LSTMPolicy, lambda dataset, seed: dataset),
    "cql of steps": (CQL, QPolicy, lambda dataset, seed: dataset.sampler(steps=16, seed=seed)),
    "dqn of a buffer": (DQN, QPolicy, lambda dataset, seed: EpisodeReplayBuffer.from_dataset(dataset, seed=seed)),
}


@pytest.mark.parametrize(("kind", "policy_kind", "data_of"), OFFLINE.values(), ids=OFFLINE)
def test_offline_trainer_resumes(kind: Any, policy_kind: Any, data_of: Any, tmp_path: Path):
    dataset = recorded(tmp_path / "data")

    def trainer(folder: str, seed: int, max_epochs: int) -> OfflineTrainer:
        policy = policy_kind(*spaces_of(CARTPOLE), hidden_sizes=(8,), generator=seeded(seed))
        config = OfflineConfig(**SHORT | {"steps_per_epoch": 20, "max_epochs": max_epochs, "checkpoint_every": 1})
        return OfflineTrainer(kind(policy, seed=seed), data_of(dataset, seed), config, folder=tmp_path / folder)

    trainer("a", 0, 1).run()
    resumed, straight = trainer("a", 5, 2), trainer("b", 0, 2)
    assert resumed.resume()
    resumed.run()
    straight.run()
    assert_same_weights(straight.algorithm, resumed.algorithm)


def test_bc_from_disk_equals_bc_from_memory(tmp_path: Path):
    dataset = recorded(tmp_path)
    buffer = EpisodeReplayBuffer.from_dataset(dataset, seed=0)
    drawn = dataset.sampler(steps=1, order="drawn", seed=0)
    numbers = drawn.sample(128).indices
    buffer._draw = lambda n, period=None: (numbers, np.ones(n, np.float32))  # type: ignore[method-assign]
    vectors = []
    for draws in (buffer, dataset.sampler(steps=1, order="drawn", seed=0)):
        policy = MLPPolicy(*spaces_of(CARTPOLE), hidden_sizes=(8,), generator=seeded(0))
        pipeline = learner_pipeline(*spaces_of(CARTPOLE), pieces=[Doubled()], policy=policy)
        learner = BC(policy, BCConfig(minibatch_size=64), pipeline=pipeline)
        learner.update_from(draws, 2)
        vectors.append(learner.optimizers["policy"].vector)
    assert torch.equal(*vectors)


class Doubled(ObservationRewriter):
    def rewrite(self, observations: Any, episodes: Any = None, update: bool = True) -> Any:
        return observations * 2


def test_resume_skips_damaged_and_foreign_checkpoints(tmp_path: Path):
    trainer = ppo_trainer(config={"max_epochs": 2, "checkpoint_every": 1}, folder=tmp_path)
    trainer.run()
    newest, older = sorted(tmp_path.glob("checkpoint-*.pt"), reverse=True)
    whole = newest.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"nonsense" * 100, whole[:1000] + bytes(64) + whole[1064:]):
        newest.write_bytes(damaged)
        resumed = ppo_trainer(config={"checkpoint_every": 1}, folder=tmp_path)
        with pytest.raises(UnreadableData, match=newest.name):
            resumed.load(newest)
        assert resumed.resume()
        assert resumed.num_epochs == 1
    with pytest.raises(StateMismatch, match=r"trainer 'OnPolicyTrainer'.*'OffPolicyTrainer'"):
        dqn_trainer(config={"checkpoint_every": 1}, folder=tmp_path).load(older)
    comparing = ppo_trainer(config={"checkpoint_every": 1}, folder=tmp_path)
    comparing.algorithm = GRPO(comparing.algorithm.policy)
    with pytest.raises(StateMismatch, match="algorithm 'PPO', this trainer has 'GRPO'"):
        comparing.load(older)
    other_trainer = ppo_trainer(config={"checkpoint_every": 1}, folder=tmp_path)
    other_trainer.algorithm.config = PPOConfig(num_epochs=2, minibatch_size=32, gamma=0.5)
    with pytest.raises(StateMismatch, match=r"algorithm\.gamma '0\.99', this trainer has '0\.5'"):
        other_trainer.load(older)
    torch.save({"format": 99}, newest)
    with pytest.raises(StateMismatch, match="format 99"):
        ppo_trainer(config={"checkpoint_every": 1}, folder=tmp_path).load(newest)
    with pytest.raises(StateMismatch, match="format 99"):  # and not an older one in its place
        ppo_trainer(config={"checkpoint_every": 1}, folder=tmp_path).resume()
    assert not ppo_trainer(folder=tmp_path / "empty").resume()
    for path in (newest, older):
        path.write_bytes(b"")
    with pytest.raises(UnreadableData, match=newest.name):
        ppo_trainer(config={"checkpoint_every": 1}, folder=tmp_path).resume()


def test_checkpoint_with_flipped_bit_is_equal_or_rejected(tmp_path: Path):
    path, damaged = tmp_path / "sound.pt", tmp_path / "damaged.pt"
    save_checkpoint(path, {"numbers": np.arange(5.0), "weights": torch.ones(3), "name": "x"})
    whole = path.read_bytes()
    for at in range(0, len(whole), 11):
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        try:
            result = load_checkpoint(damaged)
        except (UnreadableData, StateMismatch):
            continue
        assert result["numbers"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert (result["weights"].tolist(), result["name"]) == ([1.0, 1.0, 1.0], "x")


def test_failed_checkpoint_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    sound = tmp_path / "checkpoint.pt"
    save_checkpoint(sound, {"at": 1})
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(sound, {"at": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]
    assert load_checkpoint(sound) == {"at": 1}


def test_checkpoint_of_other_pipelines_names_the_connector(tmp_path: Path):
    ppo_trainer(config={"max_epochs": 1, "checkpoint_every": 1}, folder=tmp_path).run()
    other_trainer = ppo_trainer(folder=tmp_path)
    spaces = spaces_of(CARTPOLE)
    pipeline = env_to_module_pipeline(*spaces, pieces=[MeanStdFilter()])
    other_trainer.runner = SingleAgentEnvRunner(
        CARTPOLE, other_trainer.algorithm.policy, num_envs=2, env_to_module=pipeline
    )
    with pytest.raises(StateMismatch, match="MeanStdFilter"):
        other_trainer.resume()
    assert other_trainer.num_epochs == 0


def test_new_run_in_used_folder_raises(tmp_path: Path):
    config = {"max_epochs": 1, "checkpoint_every": 1}
    ppo_trainer(config=config, folder=tmp_path).run()
    with pytest.raises(InvalidArgument, match="resume"):
        ppo_trainer(config=config, folder=tmp_path).run()


def test_progress_prints_a_line_per_epoch(capsys):
    ppo_trainer(config={"max_epochs": 3, "shows_progress": True}).run()
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    for word in ("steps", "return ", "test ", "loss "):
        assert word in lines[-1], lines


def test_stop_by_hook_counts_the_epoch():
    class Stops:
        def on_collect(self, trainer, pack):
            assert pack.num_steps >= 32

        def on_update(self, trainer, metrics):
            trainer.stop()

    result = ppo_trainer(config={"max_epochs": 3}, hooks=[Stops()]).run()
    assert (result.num_epochs, result.num_updates, result.stopped_by) == (1, 1, "stop_fn")


class Talks(gym.Wrapper):
    """Environment with infos of all types at every observation."""

    def reset(self, **options: Any) -> Any:
        observation, _ = self.env.reset(**options)
        return observation, {"seed": "none"}

    def step(self, action: Any) -> Any:
        *step, _ = self.env.step(action)
        return (*step, {"speed": 0.5, "log": {"words": ["a", 1]}, **({"rare": np.arange(3)} if action else {})})


def test_buffer_with_infos_is_part_of_checkpoint(tmp_path: Path):
    def trainer(seed: int, max_epochs: int, folder: str) -> Any:
        made: Any = dqn_trainer(seed, {"max_epochs": max_epochs, "checkpoint_every": 1}, folder=tmp_path / folder)
        policy = made.algorithm.policy
        made.runner = SingleAgentEnvRunner(lambda: Talks(gym.make(CARTPOLE)), policy, num_envs=2, seed=seed)
        return made

    straight = trainer(0, 2, "a")
    straight.run()
    trainer(0, 1, "b").run()
    resumed = trainer(5, 2, "b")
    assert resumed.resume()
    resumed.run()
    assert_same_weights(straight.algorithm, resumed.algorithm)
    draws = [each_trainer.buffer.sample(64, include_infos=True) for each_trainer in (straight, resumed)]
    assert [same_info(*both) for both in zip(draws[0].infos, draws[1].infos, strict=True)] == [True] * 64
    assert {"rare", "speed"} <= set().union(*draws[0].infos)


def test_wrong_trainer_arguments_raise():
    policies = [MLPPolicy(*spaces_of(CARTPOLE)) for _ in range(2)]
    wrong = {
        "another MLPPolicy": lambda: OnPolicyTrainer(PPO(policies[0]), SingleAgentEnvRunner(CARTPOLE, policies[1])),
        "no policy": lambda: OnPolicyTrainer(PPO(policies[0]), SingleAgentEnvRunner(CARTPOLE)),
        "num_test_episodes is 0": lambda: ppo_trainer(config={"num_test_episodes": 0}, stop_fn=lambda score: True),
        "no folder": lambda: ppo_trainer(config={"checkpoint_every": 1}),
    }
    for message, make in wrong.items():
        with pytest.raises(InvalidArgument, match=message):
            make()


@pytest.mark.parametrize("max_steps", [1, 2, 5])
def test_offline_trainer_skips_episodes_without_steps(max_steps: int):
    policy = MLPPolicy(*spaces_of(CARTPOLE), hidden_sizes=(8,))
    observations = np.zeros((4, 4), np.float32)
    empty = SingleAgentEpisode.from_arrays(observations[:1], np.zeros(0, int), np.zeros(0))
    episode = SingleAgentEpisode.from_arrays(observations, np.zeros(3, int), np.zeros(3), terminated=True)
    config = OfflineConfig(**{**SHORT, "num_test_episodes": 0, "max_epochs": 1}, episodes_per_update=max_steps)
    result = OfflineTrainer(BC(policy), [empty, empty, episode, empty, empty], config).run()
    assert result.num_steps == 3 * result.num_updates == 66
    for nothing in ([], [empty] * 3):
        with pytest.raises(InvalidArgument, match=f"none of {len(nothing)} episodes has a step"):
            OfflineTrainer(BC(policy), nothing, config).run()


@pytest.mark.parametrize("unusual", [iter(()), {"a": 1}, 3], ids=["an iterator", "a dict", "a number"])
def test_offline_trainer_rejects_other_data(unusual: Any):
    with pytest.raises(InvalidArgument, match="give a list of episodes, a pack, a data set"):
        OfflineTrainer(BC(MLPPolicy(*spaces_of(CARTPOLE), hidden_sizes=(8,))), unusual)


class Starts:
    """Hook that records the first observations of all test episodes."""

    def __init__(self) -> None:
        self.starts: list[tuple[float, ...]] = []

    def on_test(self, trainer: Any, evaluation: Any) -> None:
        self.starts += [tuple(episode.get_observations(0).tolist()) for episode in evaluation.episodes]


def test_epochs_have_different_test_episodes():
    hook = Starts()
    ppo_trainer(config={"max_epochs": 4, "num_test_episodes": 5}, hooks=[hook]).run()
    assert len(set(hook.starts)) == len(hook.starts) == 20


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "trainer.steps_per_collect": ({"steps_per_collect": 16}, {}),
    "trainer.num_test_episodes": ({"num_test_episodes": 3}, {}),
    "algorithm.learning_rate": ({}, {"numbers": {"learning_rate": 1e-5}}),
    "algorithm.clip": ({}, {"numbers": {"clip": 0.1}}),
    "num_envs": ({}, {"num_envs": 3}),
    "environment": ({}, {"env": "CartPole-v0"}),
}


@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize("name", CHANGES)
def test_resume_with_changed_setting_needs_allow(name: str, tmp_path: Path):
    ppo_trainer(config={"max_epochs": 1, "checkpoint_every": 1}, folder=tmp_path).run()
    config, options = CHANGES[name]
    changed = partial(
        ppo_trainer, config={"max_epochs": 2, "checkpoint_every": 1, **config}, folder=tmp_path, **options
    )
    with pytest.raises(StateMismatch, match=f"has {name} .*resume\\(allow=\\['{name}'\\]\\)"):
        changed().resume()
    trainer = changed()
    assert trainer.resume(allow=[name])
    trainer.run()
    assert trainer.num_epochs == 2
    if name == "algorithm.learning_rate":
        assert trainer.algorithm.optimizers["policy"].learning_rate == 1e-5
    other_trainer = changed()
    other_trainer.algorithm.policy.actor[1] = torch.nn.ReLU()
    with pytest.raises(StateMismatch, match="has policy "):
        other_trainer.resume(allow=[name])


def test_allow_with_unknown_or_fixed_names_raises(tmp_path: Path):
    ppo_trainer(config={"max_epochs": 1, "checkpoint_every": 1}, folder=tmp_path).run()
    for name in ("learning_rate", "policy"):
        with pytest.raises(UnknownKey, match=name):
            ppo_trainer(folder=tmp_path).resume(allow=[name])


@pytest.mark.parametrize("several", [False, True])
def test_logger_intervals_survive_a_resume(several: bool, tmp_path: Path):
    def logged(folder: Path, epochs: list[int]) -> list[str]:
        for max_epochs in epochs:
            with CSVLogger(folder, intervals={"update": 100}) as table:
                logger = MultiLogger([table]) if several else table
                config = {"max_epochs": max_epochs, "checkpoint_every": 1, "steps_per_collect": 32}
                trainer = ppo_trainer(config=config, folder=folder, logger=logger)
                trainer.resume()
                trainer.run()
        return [row["step"] for row in table.rows("update")]

    assert logged(tmp_path / "a", [5]) == logged(tmp_path / "b", [1, 2, 3, 4, 5])


def test_tests_run_every_n_steps_in_another_environment(tmp_path: Path):
    config = {"max_epochs": 2, "steps_per_epoch": 128, "test_every": 50, "checkpoint_every": 1}
    with CSVLogger(tmp_path) as logger:
        trainer = ppo_trainer(
            config=config, test_env=lambda: gym.make(CARTPOLE, max_episode_steps=5), logger=logger, folder=tmp_path
        )
        trainer.run()
        rows = logger.rows("test")
    steps = [int(row["step"]) for row in rows]
    assert len(steps) == trainer.num_steps // 50 == trainer.num_tests
    assert all(float(row["mean_return"]) <= 5 for row in rows)
    assert len({row["mean_length"] for row in rows}) == 1


def test_video_hook_writes_a_video_of_every_second_test(tmp_path: Path):
    pytest.importorskip("imageio")
    pytest.importorskip("pygame")
    hook = VideoHook(lambda: gym.make(CARTPOLE, render_mode="rgb_array"), tmp_path, every=2, max_frames=6)
    trainer = ppo_trainer(config={"max_epochs": 3}, hooks=[hook])
    trainer.run()
    assert [path.suffix for path in hook.paths] == [".mp4"]
    assert [path.stat().st_size > 0 for path in sorted(tmp_path.iterdir())] == [True]


class Returns:
    """Hook that records the returns of all episodes that ended."""

    def __init__(self) -> None:
        self.newest: list[np.ndarray] = []

    def on_collect(self, trainer: Any, episodes: Any) -> None:
        self.newest.append(trainer.runner.stats.returns)


def test_logged_return_is_the_mean_of_the_newest_100_episodes_also_when_resumed(tmp_path: Path):
    returns, config = Returns(), {"checkpoint_every": 1, "steps_per_collect": 400, "steps_per_epoch": 2000}
    with CSVLogger(tmp_path) as logger:
        options = {"folder": tmp_path, "logger": logger, "hooks": [returns]}
        assert ppo_trainer(config={**config, "max_epochs": 1}, **options).run().num_epochs == 1
        trainer = ppo_trainer(config={**config, "max_epochs": 3}, **options)
        assert trainer.resume()
        trainer.run()
        rows, updates = logger.rows("train"), logger.rows("update")
    assert len(rows) == len(returns.newest)
    for n, row in enumerate(rows):
        assert float(row["mean_return_100"]) == pytest.approx(np.concatenate(returns.newest[: n + 1])[-100:].mean())
    assert sum(map(len, returns.newest)) > 200
    seconds = [float(row["run_seconds"]) for row in updates]
    assert seconds == sorted(seconds)  # without a step back at the resume
    assert 0 < seconds[0] < seconds[-1] < trainer.seconds
