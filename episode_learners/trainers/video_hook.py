"""`VideoHook`: records a video of the policy after tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from episode_learners.trainers.policy_tests import evaluate_elsewhere
from episode_runners.seeds import independent_seed
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.files import local_path

if TYPE_CHECKING:
    from episode_learners.trainers.trainer import Trainer

__all__ = ["VideoHook"]


class VideoHook:
    """Trainer hook that records one episode of the current policy as a video, after each `every`-th test. It needs the
    extra `video`.

    With several agents, all policies of the runner act.

    Args:
        make_env: function that makes the environment with `render_mode="rgb_array"`, such as
            `lambda: gym.make("CartPole-v1", render_mode="rgb_array")`.
        folder: the folder of the videos, which are named by the step: "step-000005120.mp4".
        every: tests between two videos.
        fps: frames per second.
        max_frames: frames of a video at most.
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        folder: str | Path,
        *,
        every: int = 1,
        fps: float = 30.0,
        max_frames: int = 1_000,
    ) -> None:
        self.make_env, self.folder = make_env, local_path(folder)
        self.every, self.fps, self.max_frames = every, fps, max_frames
        self.paths: list[Path] = []

    def on_test(self, trainer: Trainer[Any], evaluation: object) -> None:
        """Record a new episode of the policy as a video file, after each `every`-th test. The trainer calls this hook
        after all tests.
        """
        if trainer.num_tests % self.every:
            return
        from episodes.inspect import video

        frames: list[np.ndarray] = []
        seed = independent_seed(trainer.config.test_seed, trainer.num_tests)
        evaluate_elsewhere(
            trainer.runner, partial(self._make_filmed_env, frames), num_episodes=1, seed=seed, num_envs=1
        )
        count = len(frames) - 1
        filmed = SingleAgentEpisode.from_arrays(np.stack(frames), np.zeros(count, np.int64), np.zeros(count))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.paths.append(video(filmed, self.folder / f"step-{trainer.num_steps:09d}.mp4", fps=self.fps))

    def _make_filmed_env(self, frames: list[np.ndarray]) -> Any:
        """Return a new environment that also renders a frame at each reset and step, and appends it to the list
        `frames`.
        """
        env = self.make_env()

        def record_frame_after(call: Callable[..., Any]) -> Callable[..., Any]:
            """Return a function that calls `call`, and then appends a rendered frame to `frames`."""

            def call_and_film(*arguments: object, **options: object) -> Any:
                """Call the environment's method, and append a rendered frame unless there are `max_frames`."""
                returned = call(*arguments, **options)
                if len(frames) < self.max_frames:
                    frames.append(np.asarray(env.render(), np.uint8))
                return returned

            return call_and_film

        env.reset, env.step = record_frame_after(env.reset), record_frame_after(env.step)
        return env
