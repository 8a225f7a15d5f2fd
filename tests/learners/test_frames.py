"""Rendered frames of the episodes that `EpisodeKeeper(frames=True)` and `episodes train --keep-frames` store.

The environments paint their name, the number of the episode and the time, which their observations also have.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from episode_learners.run import Run
from episode_learners.trainers import EpisodeKeeper, FrameRecorder
from episode_learners.trainers.frame_recorder import _as_png, add_frames, check_renders
from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner
from episodes import SingleAgentEpisode
from episodes.errors import InvalidArgument
from episodes.inspect.html_report import episode_data
from episodes.inspect.png import data_uri, png
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, GameDataset


def picture(facts: Any) -> np.ndarray:
    """Return the image [4, 5, 3] of an observation (name, number of the episode, time)."""
    return np.broadcast_to(np.asarray(facts, np.uint8), (4, 5, 3)).copy()


class Painted(gym.Env):
    """Environment whose episodes have 3 to 7 steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space = gym.spaces.Box(0, 255, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, name: int = 0, render_mode: str | None = "rgb_array") -> None:
        self.name, self.render_mode, self.number = name, render_mode, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.number, self.t = self.number + 1, 0
        return self._facts(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._facts(), 1.0, self.t == 3 + (self.number * 7 + self.name) % 5, False, {"own": self.t}

    def _facts(self) -> np.ndarray:
        return np.array([self.name, self.number, self.t], np.float32)

    def render(self) -> Any:
        return picture(self._facts())


class Game:
    """Game of two agents, who act at the same time (`turns` = 1) or one after the other (`turns` = 2)."""

    possible_agents = ("a", "b")

    def __init__(self, turns: int = 1, render_mode: str | None = "rgb_array") -> None:
        self.turns, self.number = turns, 0
        self.observation_spaces = dict.fromkeys(self.possible_agents, Painted.observation_space)
        self.action_spaces = dict.fromkeys(self.possible_agents, Painted.action_space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.number, self.t = self.number + 1, 0
        return self._observations(), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        rewards = dict.fromkeys(actions, 1.0)
        over = self.t == 4 + self.number % 3
        return self._observations(over), rewards, {"__all__": over}, {"__all__": False}, {}

    def _observations(self, over: bool = False) -> dict[str, np.ndarray]:
        facts = np.array([9, self.number, self.t], np.float32)
        turn = self.possible_agents if over or self.turns == 1 else self.possible_agents[self.t % 2 :][:1]
        return {agent: facts.copy() for agent in turn}

    def render(self) -> Any:
        return picture([9, self.number, self.t])


MAKERS = [partial(Painted, name) for name in range(3)]
VECTORS: dict[str, Callable[[], Any]] = {
    "sync": lambda: SingleAgentEnvRunner(Painted, num_envs=3),
    "sync that restarts": lambda: SingleAgentEnvRunner(Painted, num_envs=3, restart_failed=True),
    "async": lambda: SingleAgentEnvRunner(Painted, num_envs=3, vectorization="async"),
    "same-step": lambda: SingleAgentEnvRunner(Painted, num_envs=3, autoreset_mode="SameStep"),
    "disabled": lambda: SingleAgentEnvRunner(Painted, num_envs=3, autoreset_mode="Disabled"),
    "Gymnasium's sync": lambda: SingleAgentEnvRunner(SyncVectorEnv(MAKERS, autoreset_mode=AutoresetMode.NEXT_STEP)),
    "Gymnasium's same-step": lambda: SingleAgentEnvRunner(
        SyncVectorEnv(MAKERS, autoreset_mode=AutoresetMode.SAME_STEP)
    ),
    "Gymnasium's disabled": lambda: SingleAgentEnvRunner(SyncVectorEnv(MAKERS, autoreset_mode=AutoresetMode.DISABLED)),
    "Gymnasium's async": lambda: SingleAgentEnvRunner(AsyncVectorEnv(MAKERS)),
}
GAMES: dict[str, Callable[[], Any]] = {
    f"{turns} turns, {kind}": partial(MultiAgentEnvRunner, partial(Game, turns), None, num_envs=2, vectorization=kind)
    for turns in (1, 2)
    for kind in ("sync", "async")
}


def sample_steps(runner: Any) -> None:
    for _ in range(9):
        runner.sample(num_timesteps=7, random_actions=True)


def sample_episodes(runner: Any) -> None:
    for _ in range(3):
        runner.sample(num_episodes=4, random_actions=True)


def sample_into(runner: Any) -> None:
    buffer = EpisodeReplayBuffer(20)  # drops what it has while episodes go on
    for _ in range(9):
        runner.sample_into(buffer, num_timesteps=7, random_actions=True)


def mixed(runner: Any) -> None:
    sample_into(runner)
    sample_steps(runner)


def in_turns(runner: Any) -> None:
    """Hand episodes of a buffer over to packs after each number of rows, also right after a reset."""
    for rows in range(3, 9):
        runner.sample_into(EpisodeReplayBuffer(100), num_timesteps=3 * rows, random_actions=True)
        runner.sample(num_timesteps=24, random_actions=True)


def restarting(runner: Any) -> None:
    """Reset all environments at each call, some of which have just been reset when the call before ends."""
    for n in range(1, 8):
        runner.sample(num_episodes=n, random_actions=True)
        runner.sample(num_timesteps=7, random_actions=True, force_reset=True)


WAYS = (sample_steps, sample_episodes, restarting)


class Seen:
    """Hook that notes the facts of the last observation of each episode."""

    def __init__(self) -> None:
        self.ended: dict[str, np.ndarray] = {}

    def on_episode_end(self, runner: Any, env: int, episode: Any) -> None:
        part = episode if isinstance(episode, SingleAgentEpisode) else episode.agent_episodes["a"]
        self.ended[episode.id_] = part.get_observations(-1)


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *((kind, way) for kind in VECTORS for way in (*WAYS, sample_into, mixed, in_turns)),
        *((kind, way) for kind in GAMES for way in WAYS),
    ],
)
def test_each_observation_has_its_frame(kind: str, way: Callable[[Any], None]) -> None:
    recorder, seen = FrameRecorder(), Seen()
    with {**VECTORS, **GAMES}[kind]() as runner:
        runner.add_hook(recorder)
        runner.add_hook(seen)
        way(runner)
    assert len(seen.ended) >= 6
    assert recorder.ended.keys() == seen.ended.keys()
    for id_, (name, number, last) in seen.ended.items():
        times = range(int(last) + ("same-step" not in kind))
        assert recorder.ended[id_] == {t: png(picture([name, number, t])) for t in times}


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_training_with_frames_learns_the_same(algo: str, tmp_path: Path) -> None:
    kept = list[list[Any]]()
    (tmp_path / "run.toml").write_text(RUNS[algo])
    for frames in (False, True):
        run = Run.of_file(tmp_path / "run.toml")
        run.renders = frames
        run.trainer["shows_progress"] = False
        trainer: Any = run.make()
        folder = tmp_path / str(frames)
        with trainer.runner, EpisodeKeeper(folder, frames=frames, clock=lambda: 0.0) as keeper:
            trainer.hooks.append(keeper)
            trainer.run()
        kept.append(list(EpisodeDataset(folder)))
        weights = [value.clone() for value in trainer.algorithm.policy.parameters()]
        kept[-1].append(weights)
    for plain, filmed in zip(kept[0][:-1], kept[1][:-1], strict=True):
        np.testing.assert_array_equal(plain.get_observations(), filmed.get_observations())
        assert plain.custom_data == filmed.custom_data
        assert all("rendered_frame" not in info for info in plain.get_infos())
        assert len({info["rendered_frame"] for info in filmed.get_infos()}) > 1
    assert all(bool((a == b).all()) for a, b in zip(kept[0][-1], kept[1][-1], strict=True))


class Unsteady(Painted):
    """Environment whose pictures change their size, and are `wrong` at the times `at`."""

    def __init__(self, wrong: Callable[[int], Any] = lambda t: None, at: tuple[int, ...] = (1, 3)) -> None:
        super().__init__()
        self.wrong, self.at = wrong, at

    def render(self) -> Any:
        if self.t in self.at:
            return self.wrong(self.t)
        return np.full((8 + self.t, 9 - self.t, 3), self.t, np.uint8)


WRONG = {
    "None": lambda t: None,
    "text": lambda t: "a frame",
    "floats": lambda t: np.zeros((8, 8, 3)),
    "grey": lambda t: np.zeros((8, 8), np.uint8),
    "five channels": lambda t: np.zeros((8, 8, 5), np.uint8),
    "nothing": lambda t: np.zeros((0, 8, 3), np.uint8),
    "a list of frames": lambda t: [np.zeros((8, 8, 3), np.uint8)],
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_image_is_an_error_at_first_and_a_gap_later(wrong: Callable[[int], Any]) -> None:
    with SingleAgentEnvRunner(partial(Unsteady, wrong, (0,)), num_envs=2) as runner:
        with pytest.raises(InvalidArgument, match=r"frames: render .* returned .*render_mode='rgb_array'"):
            check_renders(runner)
        runner.add_hook(FrameRecorder())
        with pytest.raises(InvalidArgument, match=r"frames: render .* returned .*render_mode='rgb_array'"):
            runner.sample(num_timesteps=1, random_actions=True)
    recorder = FrameRecorder()
    with SingleAgentEnvRunner(partial(Unsteady, wrong), num_envs=2, hooks=[recorder]) as runner:
        check_renders(runner)
        with pytest.warns(
            UserWarning, match="no image; observations without an image are kept without a frame"
        ) as seen:
            episodes = runner.sample(num_episodes=6, random_actions=True)
    assert len(seen) == 1
    for episode in map(copy, episodes):
        files = recorder.ended[episode.id_]
        times = [t for t in range(len(episode) + 1) if t not in (1, 3)]
        assert files == {t: png(np.full((8 + t, 9 - t, 3), t, np.uint8)) for t in times}
        add_frames(episode, files)
        infos = episode.get_infos()
        assert [t for t, info in enumerate(infos) if "rendered_frame" in info] == times
        assert [info.get("own", 0) for info in infos] == list(range(len(infos)))
        (camera,) = episode_data(episode)["cameras"]
        assert (camera["at"].tolist(), camera["images"]) == (times, [data_uri(files[t]) for t in times])


def test_frames_of_a_real_environment(tmp_path: Path) -> None:
    run = Run.of_table({"algo": "ppo", "env": "CartPole-v1", "num_envs": 2, "renders": True, "trainer": TRAINER})
    trainer = run.make()
    with trainer.runner, EpisodeKeeper(tmp_path, frames=True, clock=lambda: 0.0) as keeper:
        keeper.on_start(trainer)
        keeper.on_collect(trainer, trainer.runner.sample(num_timesteps=60))
    with gym.make("CartPole-v1", render_mode="rgb_array") as env:
        for episode in EpisodeDataset(tmp_path):
            env.reset()
            game: Any = env.unwrapped
            for info, state in zip(episode.get_infos(), episode.get_observations(), strict=True):
                game.state = state.astype(np.float64)
                assert info["rendered_frame"] == _as_png(env.render())


def test_render_that_raises_is_an_error_by_name() -> None:
    def fail(t: int) -> Any:
        raise OSError("no display")

    with (
        SingleAgentEnvRunner(partial(Unsteady, fail, (0,)), hooks=[FrameRecorder()]) as runner,
        pytest.raises(InvalidArgument, match=r"failed \(OSError: no display\); make them with render_mode"),
    ):
        runner.sample(num_timesteps=1, random_actions=True)


@given(st.integers(1, 700), st.integers(1, 300), st.sampled_from([1, 3, 4]))
def test_frame_is_at_most_160_pixels_high(height: int, width: int, channels: int) -> None:
    rows = np.arange(height)[:, None, None] % 251
    image = np.broadcast_to(rows, (height, width, channels)).astype(np.uint8)
    file = _as_png(image)
    assert file is not None
    shown = np.array([int.from_bytes(file[16:20]), int.from_bytes(file[20:24])])  # width, height
    assert shown[1] <= 160
    step = -(-height // 160)
    assert file == png(image[::step, ::step])


def test_recorder_holds_running_episodes_and_those_that_are_kept(tmp_path: Path) -> None:
    run = Run.of_table({"algo": "ppo", "env": PAINTED, "num_envs": 3, "renders": True, "trainer": TRAINER})
    trainer = run.make()
    sizes = list[int]()
    with trainer.runner, EpisodeKeeper(tmp_path, frames=True, max_steps=5, clock=lambda: 0.0) as keeper:
        recorder: Any = keeper._recorder

        class Watch:
            def on_update(self, trainer: Any, metrics: Any) -> None:
                sizes.append(len(recorder.ended))
                assert len(recorder._running) <= 3
                assert all(len(files) <= 6 for _, files in recorder._running.values())

        trainer.hooks += [keeper, Watch()]
        trainer.run()
    assert len(sizes) == 8
    assert max(sizes) <= 3
    check_kept(list(EpisodeDataset(tmp_path)))


TRAINER = {"max_epochs": 2, "steps_per_epoch": 160, "steps_per_collect": 40, "num_test_episodes": 1} | {
    "shows_progress": False
}
PAINTED = "tests.learners.test_frames:Painted-v0"
REGISTERED: dict[str, Any] = {
    "Painted-v0": Painted,
    "Unpainted-v0": lambda: Painted(),
    "Blank-v0": lambda render_mode: Unsteady(at=(0,)),
}
for env_id in REGISTERED.keys() - gym.registry.keys():
    gym.register(env_id, REGISTERED[env_id], disable_env_checker=True)


def check_kept(kept: list[Any]) -> None:
    """Check that each observation of kept episodes has its picture."""
    assert len(kept) >= 2
    for episode in kept:
        files = [info["rendered_frame"] for info in episode.get_infos()]
        assert files == [png(picture(facts)) for facts in episode.get_observations()]
        assert "rendered_frame" not in episode.custom_data


CONFIG = """
algo = "{algo}"
env = "{env}"
num_envs = 2
[trainer]
max_epochs = 2
steps_per_epoch = 80
steps_per_collect = 40
num_test_episodes = 1
{more}
"""
MODULES = 'warmup_steps = 20\n[modules.all]\nalgo = "{algo}"\npolicy = {{hidden_sizes = [8]}}'
RUNS = {
    "ppo": CONFIG.format(algo="ppo", env=PAINTED, more=""),
    "dqn": CONFIG.format(algo="dqn", env=PAINTED, more="warmup_steps = 20"),
    "game, ppo": CONFIG.format(algo="multi-agent", env=f"{__name__}:Game", more=MODULES.format(algo="ppo")[18:]),
    "game, dqn": CONFIG.format(algo="multi-agent", env=f"{__name__}:Game", more=MODULES.format(algo="dqn")),
}


@pytest.mark.parametrize("kind", RUNS)
def test_train_keeps_frames_and_resumes(kind: str, tmp_path: Path) -> None:
    from episode_learners.__main__ import main

    (tmp_path / "run.toml").write_text(RUNS[kind])
    run, words = tmp_path / "run", ["--quiet", "--keep-episodes", "5/h", "--keep-frames"]
    assert main(["train", "--config", str(tmp_path / "run.toml"), "--logdir", str(run), "--epochs", "1", *words]) == 0
    assert main(["train", "--resume", str(run), "--epochs", "2", *words]) == 0
    assert main(["evaluate", str(run), "--episodes", "2"]) == 0
    assert main(["train", "--resume", str(run), "--epochs", "3", "--quiet"]) == 0
    if not kind.startswith("game"):
        check_kept(list(EpisodeDataset(run / "training")))
        return
    for game in GameDataset(run / "training"):
        found: dict[int, bytes] = {}
        for line in game.agents.timelines.values():
            infos = line.episode.get_infos()
            new = {t: i["rendered_frame"] for t, i in zip(line.observation_times, infos, strict=True) if i}
            assert not new.keys() & found.keys()
            found |= new
        facts = game.agent_episodes["a"].get_observations()
        assert found == {t: png(picture(row)) for t, row in enumerate(facts)}
        shown = {
            int(t): uri for c in episode_data(game)["cameras"] for t, uri in zip(c["at"], c["images"], strict=True)
        }
        assert shown == {t: data_uri(file) for t, file in found.items()}


@pytest.mark.parametrize(
    ("text", "words", "error"),
    [
        (RUNS["ppo"], ["--keep-frames"], "--keep-frames without --keep-episodes"),
        (RUNS["ppo"].replace("Painted", "Unpainted"), [], "cannot be made with render_mode"),
        (RUNS["ppo"].replace("Painted", "Blank"), [], "frames: render of the environments returned None"),
        (RUNS["game, ppo"].replace("test_frames:Game", "games:Targets"), [], "cannot be made with render_mode"),
    ],
)
def test_what_cannot_be_rendered_is_refused_before_the_training(
    text: str, words: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from episode_learners.__main__ import main

    (tmp_path / "run.toml").write_text(text)
    words = words or ["--keep-frames", "--keep-episodes", "5/h"]
    with pytest.raises(SystemExit):
        main(["train", "--config", str(tmp_path / "run.toml"), "--logdir", str(tmp_path / "run"), "--quiet", *words])
    assert error in capsys.readouterr().err
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.xdist_group("ray")
@pytest.mark.slow
def test_frames_come_from_remote_runners(tmp_path: Path) -> None:
    run = Run.of_table({"algo": "ppo", "env": PAINTED, "num_runners": 2, "renders": True, "trainer": TRAINER})
    trainer = run.make()
    with trainer.runner, EpisodeKeeper(tmp_path, frames=True, clock=lambda: 0.0) as keeper:
        trainer.hooks.append(keeper)
        trainer.run()
    check_kept(list(EpisodeDataset(tmp_path)))


def test_frames_are_sent_with_the_last_chunk_and_missing_ones_are_told(tmp_path: Path) -> None:
    trainer = Run.of_table({"algo": "ppo", "env": PAINTED, "renders": True, "trainer": TRAINER}).make()
    for hooks, is_told in (([FrameRecorder(sends=True)], False), ([], True)):
        folder = tmp_path / str(is_told)
        keeper = EpisodeKeeper(folder, frames=True, clock=lambda: 0.0)
        with trainer.runner, SingleAgentEnvRunner(Painted, num_envs=2, hooks=hooks) as other:
            for _ in range(9):
                pack = pickle.loads(pickle.dumps(other.sample(num_timesteps=5, random_actions=True)))
                keeper.on_collect(trainer, pack)
        if is_told:
            with pytest.warns(UserWarning, match=r"kept without frames.*FrameRecorder\(sends=True\)") as told:
                keeper.close()
            assert len(told) == 1
        else:
            keeper.close()
            check_kept(list(EpisodeDataset(folder)))
