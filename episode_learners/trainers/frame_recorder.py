"""`FrameRecorder`: records a rendered frame of each observation while a runner samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from episode_runners import GroupRunner, MultiAgentEnvRunner, SingleAgentEnvRunner
from episodes.errors import InvalidArgument
from episodes.multi_agent import MultiAgentEpisode
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.infos import Infos
from episodes.tracks.infos.info_column import TypedColumn
from episodes.tracks.track import InfoTrack

__all__ = ["FrameRecorder", "add_frames", "check_renders"]

FRAME = (
    "rendered_frame"  # the info of a kept episode, and the custom data of an episode that comes from another process
)
_MOST_HEIGHT = 160  # pixels

Episode = SingleAgentEpisode | MultiAgentEpisode
Frames = dict[int, bytes]  # PNG files by the time of their observation


class FrameRecorder:
    """Runner hook that records a frame of each observation, as a PNG file of at most 160 pixels of height.

    It calls `render` of the runner's environments, which are made with `render_mode="rgb_array"`. `EpisodeKeeper` adds
    it to the runner. Runners in other processes are made with `FrameRecorder(sends=True)` among their hooks. In
    same-step autoreset mode the last observation of an episode has no frame, since its environment is reset already.

    Args:
        max_steps: frames of later observations of an episode are not recorded.
        sends: add the frames to the `custom_data` of the episode's last chunk, instead of to `ended`.

    Attributes:
        ended: Frames of ended episodes by id, until the keeper drops them: PNG files by the time of the observation.

    Raises:
        InvalidArgument: in a run: the first frame is no image.
    """

    def __init__(self, max_steps: int = 10_000, *, sends: bool = False) -> None:
        self.max_steps, self.sends = max_steps, sends
        self.ended: dict[str, Frames] = {}
        self._running: dict[int, tuple[str, Frames]] = {}  # id and frames of the episode of each environment
        self._images: dict[int, tuple[Any, Any]] = {}  # newest image of each environment, and of which observation
        self._has_frames = self._has_warned = False

    def on_episode_start(self, runner: Any, env: int, episode: Episode) -> None:
        """Record the frame of the first observation."""
        self._record(env, episode, self._image_of(runner, env, episode, [env]))

    def on_step(self, runner: Any) -> None:
        """Record a frame of each environment that has a new observation."""
        hides_last = isinstance(runner, SingleAgentEnvRunner) and runner.autoreset_mode is AutoresetMode.SAME_STEP
        due = {
            env: episode
            for env, episode in enumerate(runner.episodes)
            if not (hides_last and episode.is_done) and self._lacks(env, episode)
        }
        for env, episode in due.items():
            self._record(env, episode, self._image_of(runner, env, episode, list(due)))

    def _image_of(self, runner: Any, env: int, episode: Episode, due: Sequence[int]) -> Any:
        """Return an image of an environment at its newest observation, which is rendered with those of the environments
        `due`, unless it was rendered with those of others.
        """
        place = _place_of(episode)
        if self._images.get(env, (None, None))[0] != place:
            episodes = runner.episodes
            images = _render(runner, due)
            self._images = {other: (_place_of(episodes[other]), image) for other, image in images.items()}
            self._images[env] = place, images[env]
        return self._images[env][1]

    def on_episode_end(self, runner: object, env: int, episode: Episode) -> None:
        """Move the frames of the episode to `ended`, or into its `custom_data`."""
        id_, frames = self._running.pop(env, ("", {}))
        if id_ == episode.id_ and self.sends:
            episode.custom_data[FRAME] = {"times": list(frames), "files": list(frames.values())}
        elif id_ == episode.id_:
            self.ended[id_] = frames

    def _lacks(self, env: int, episode: Episode) -> bool:
        """Return True if the newest observation of an environment has no frame yet, and should have one."""
        id_, frames = self._running.get(env, ("", {}))
        time = _time_of(episode)
        return time <= self.max_steps and not (id_ == episode.id_ and time in frames)

    def _record(self, env: int, episode: Episode, image: Any) -> None:
        """Store an image of an environment as the frame of its newest observation."""
        if self._running.get(env, ("",))[0] != episode.id_:
            self._running[env] = episode.id_, {}
        file = _as_png(image)
        if file is not None:
            self._has_frames = True
            self._running[env][1][_time_of(episode)] = file
        elif not self._has_frames:
            raise _no_image(image)
        elif not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"frames: render of environment {env} returned {_described(image)} at t = {_time_of(episode)} of "
                f"episode {episode.id_}, no image; observations without an image are kept without a frame",
                stacklevel=2,
            )


def check_renders(runner: SingleAgentEnvRunner | MultiAgentEnvRunner | GroupRunner) -> None:
    """Render a frame of a new environment that is made like those of a runner.

    Environments that cannot be made again are rendered for the first time when they are first reset.

    Raises:
        InvalidArgument: the environment renders no images.
    """
    try:
        probe = runner.for_evaluation(1, seed=0)
    except InvalidArgument:
        return
    with probe:
        first: Any = probe.envs[0] if isinstance(probe, MultiAgentEnvRunner) else probe.env
        first.reset(seed=0)
        image = _render(probe, [0])[0]
    if _as_png(image) is None:
        raise _no_image(image)


def add_frames(episode: Episode, frames: Frames) -> None:
    """Add frames to a finalized episode, as the info "rendered_frame" of their observations.

    In a game, each frame is an info of one agent that observed at its time.

    Args:
        episode: the episode.
        frames: PNG files by the time of the observation.
    """
    if isinstance(episode, SingleAgentEpisode):
        begin = episode.t_started - episode.tracks.lookback
        _add_infos(episode, {time - begin: file for time, file in frames.items()})
        return
    left = dict(frames)
    for line in episode.agents.timelines.values():
        rows = {row: left.pop(time) for row, time in enumerate(line.observation_times) if time in left}
        _add_infos(line.episode, rows)


def _add_infos(episode: SingleAgentEpisode, files: Mapping[int, bytes]) -> None:
    """Add files to the infos of an episode, by their row."""
    tracks = episode.tracks
    infos = tracks.infos.finalize().data.whole()
    values = np.full(len(infos), None)
    for row, file in files.items():
        if 0 <= row < len(values):
            values[row] = file
    present = np.array([value is not None for value in values], bool)
    if present.any():
        others = {path: column for path, column in infos.columns.items() if path.split("/")[0] != FRAME}
        columns = {**others, FRAME: TypedColumn(values, None if present.all() else present, False)}
        episode.tracks = tracks._replace(infos=InfoTrack(Infos(columns, len(infos)), tracks.lookback))


def _render(runner: Any, envs: Sequence[int]) -> dict[int, Any]:
    """Return what `render` of the environments `envs` returns, by environment. Environments of a vector environment are
    rendered together.

    Raises:
        InvalidArgument: `render` raises an error.
    """
    try:
        if isinstance(runner, MultiAgentEnvRunner):
            return {env: runner.envs[env].render() for env in envs}
        images = runner.env.render() if envs else ()
    except Exception as error:
        raise InvalidArgument(
            f"frames: render of the environments failed ({type(error).__name__}: {error}); {_ADVICE}"
        ) from error
    is_each = isinstance(images, Iterable) and len(images := list(images)) == runner.num_envs
    return dict(enumerate(images)) if is_each else dict.fromkeys(range(runner.num_envs))


_ADVICE = "make them with render_mode='rgb_array', or keep episodes without frames"


def _no_image(image: object) -> InvalidArgument:
    """Return the error for environments whose `render` returned something else than an image."""
    return InvalidArgument(
        f"frames: render of the environments returned {_described(image)}; it must return an image, uint8 [H, W, 3]; "
        f"{_ADVICE}"
    )


def _described(image: object) -> str:
    shape = f" {image.dtype} {list(image.shape)}" if isinstance(image, np.ndarray) else ""
    return "None" if image is None else f"a {type(image).__name__}{shape}"


def _as_png(image: object) -> bytes | None:
    """Return an image as a PNG file of at most 160 pixels of height, or None if it is no image."""
    from episodes.inspect.png import png

    if not (isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.size):
        return None
    if image.shape[2] not in (1, 3, 4):
        return None
    step = -(-image.shape[0] // _MOST_HEIGHT)
    return png(image[::step, ::step])


def _time_of(episode: Episode) -> int:
    """Return the time of an episode's newest observation."""
    return episode.env_t if isinstance(episode, MultiAgentEpisode) else episode.t


def _place_of(episode: Episode) -> tuple[str, int]:
    """Return the id of an episode and the time of its newest observation."""
    return episode.id_, _time_of(episode)
