"""`EpisodeKeeper`: stores the worst, the best and a random episode of a training run at regular times."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from episode_learners.episode_history import join_chunks
from episode_learners.trainers.frame_recorder import FRAME, FrameRecorder, add_frames, check_renders
from episode_learners.trainers.off_policy import OffPolicyTrainer
from episode_learners.trainers.on_policy import OnPolicyTrainer
from episode_runners import GroupRunner
from episode_runners.stats import CollectStats
from episodes.errors import InvalidArgument
from episodes.multi_agent import MultiAgentEpisode
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import EpisodeWriter
from episodes.tracks.validation import checked_flag

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

    from episode_learners.trainers.trainer import Trainer

__all__ = ["EpisodeKeeper"]

_MOST_PAUSE = 64  # samples without a further chunk, after which an episode counts as dropped by its runner
_KINDS = ("worst", "best", "random")

Chunks = list[SingleAgentEpisode] | list[MultiAgentEpisode]


class EpisodeKeeper:
    """Trainer hook that adds the worst, the best and a random episode of the training to a data set at regular times.

    Each time is `3600 / per_hour` seconds after the one before, and the episodes are those that ended in between. An
    episode has in `custom_data` why it was kept ("kept_as", such as "worst" or "best, random") and the environment
    steps of the run at the end of its sample ("num_steps"). Call `close` after the run, or use the hook as a context
    manager, to write the episodes since the last time.

    It works with an `OnPolicyTrainer` or `OffPolicyTrainer`. Games of several agents are compared by the sum of all
    agents' rewards. An extra model output is stored if all chunks of the episode have it. Random actions, as in the
    warmup, have none. From the replay buffer of one agent, episodes are copied only after samples with an episode to
    keep. Episodes of which the buffer dropped a part before the end of the sample are not kept.

    With `frames`, the environments are made with `render_mode="rgb_array"`, and each step is rendered. A kept episode
    has a PNG file of each observation in its infos, "rendered_frame". Other frames are dropped when their episode ends.
    Remote runners need a `FrameRecorder(sends=True)` among their hooks.

    Args:
        folder: the data set, which is created or continued.
        per_hour: times per hour.
        max_steps: longer episodes are not kept.
        seed: seed of the random choices.
        env_spec: see `EpisodeWriter`.
        frames: keep rendered frames of the episodes.
        clock: function that returns a time in seconds.

    Raises:
        InvalidArgument: `per_hour` is not a positive number; in a run: the trainer samples nothing, or the environments
            render no images.
    """

    def __init__(
        self,
        folder: str | Path,
        per_hour: float = 5.0,
        *,
        max_steps: int = 10_000,
        seed: int = 0,
        env_spec: EnvSpec | str | None = None,
        frames: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not (isfinite(per_hour) and per_hour > 0):
            raise InvalidArgument(f"EpisodeKeeper: per_hour is {per_hour}; give a positive number of times per hour")
        self.folder, self.interval, self.max_steps = Path(folder), 3600.0 / per_hour, max_steps
        self._env_spec, self._clock = env_spec, clock
        self._recorder = FrameRecorder(max_steps) if checked_flag("frames", frames) else None
        self._has_warned = False
        self._generator = np.random.default_rng(seed)
        self._unfinished: dict[str, tuple[Chunks, int]] = {}  # chunks, and the sample that had the last one
        self._chosen: dict[str, tuple[float, int, Chunks]] = {}  # by kind: return, steps of the run, chunks
        self._num_ended = self._num_samples = 0  # episodes since the last time; samples
        self._due = clock() + self.interval

    def on_start(self, trainer: Trainer[Any]) -> None:
        """Check the trainer, and add the hooks that frames and a replay buffer need to its runner.

        The trainer calls this method before its first step.
        """
        self.check(trainer)
        runner: Any = trainer.runner  # type: ignore[attr-defined]
        if self._recorder is not None and not isinstance(runner, GroupRunner):
            runner.add_hook(self._recorder)
        if isinstance(trainer, OffPolicyTrainer) and isinstance(trainer.buffer, EpisodeReplayBuffer):
            trainer.runner.add_hook(_SampledEpisodes(self, trainer))

    def check(self, trainer: Trainer[Any]) -> None:
        """Raise `InvalidArgument` if a trainer samples no episodes, or its environments render no images and frames are
        kept.
        """
        check_keeps(trainer)
        if self._recorder is not None:
            check_renders(trainer.runner)  # type: ignore[attr-defined]

    def on_collect(self, trainer: Trainer[Any], episodes: Iterable[SingleAgentEpisode | MultiAgentEpisode]) -> None:
        """Consider the episodes that ended in a sample, and write the chosen ones if it is time."""
        self._num_samples += 1
        for chunk in episodes:
            sent = chunk.custom_data.get(FRAME)
            if sent is not None and self._recorder is not None:
                self._recorder.ended[chunk.id_] = dict(zip(sent["times"], sent["files"], strict=True))
            chunks: Any = [*self._unfinished.pop(chunk.id_, ([], 0))[0], chunk]
            if not chunk.is_done:
                self._unfinished[chunk.id_] = chunks, self._num_samples
            elif chunks[0].facts.t_started == 0 and sum(map(len, chunks)) <= self.max_steps:
                total = float(sum(chunk.get_return() for chunk in chunks))
                self._consider(total, trainer.num_steps, lambda chunks=chunks: chunks)
        oldest = self._num_samples - _MOST_PAUSE
        self._unfinished = {id_: kept for id_, kept in self._unfinished.items() if kept[1] > oldest}
        self._write_if_due()

    def consider_sample(self, stats: CollectStats, buffer: EpisodeReplayBuffer, num_steps: int) -> None:
        """Consider the episodes that ended in a sample into a replay buffer, and write the chosen ones if it is time.

        Args:
            stats: statistics of the sample.
            buffer: the buffer.
            num_steps: environment steps of the run.
        """
        ended: list[SingleAgentEpisode] | None = None  # those of the sample, as far as they are stored
        for i, (total, length) in enumerate(zip(stats.returns.tolist(), stats.lengths.tolist(), strict=True)):

            def load(back: int = stats.num_episodes - i, length: int = length) -> Chunks:
                """Return the episode, or nothing if the buffer dropped steps of it."""
                nonlocal ended
                ended = buffer.newest_ended(stats.num_episodes) if ended is None else ended
                is_whole = back <= len(ended) and ended[-back].t_started == 0 and len(ended[-back]) == length
                return [ended[-back]] if is_whole else []

            if length <= self.max_steps:
                self._consider(total, num_steps, load)
        self._write_if_due()

    def _write_if_due(self) -> None:
        """Drop the frames of episodes that are not kept, and write the chosen ones if it is time."""
        if self._recorder is not None:
            kept = {chunks[-1].id_ for _, _, chunks in self._chosen.values()}
            ended = self._recorder.ended
            self._recorder.ended = {id_: ended[id_] for id_ in kept if id_ in ended}
        if self._clock() >= self._due:
            self.write()

    def _consider(self, total: float, num_steps: int, load: Callable[[], Chunks]) -> None:
        """Choose a complete episode if it is worse or better than all since the last time, or by chance. NaN is worse
        than any number.

        Args:
            total: return of the episode.
            num_steps: environment steps of the run.
            load: function that returns the chunks of the episode, or an empty list if they are not stored any more.
        """
        score = -np.inf if np.isnan(total) else total
        self._num_ended += 1
        kinds = []
        if "worst" not in self._chosen or score < self._chosen["worst"][0]:
            kinds.append("worst")
        if "best" not in self._chosen or score > self._chosen["best"][0]:
            kinds.append("best")
        if self._generator.integers(self._num_ended) == 0:  # each episode is chosen with the same probability
            kinds.append("random")
        chunks = load() if kinds else []
        if chunks:
            self._chosen |= dict.fromkeys(kinds, (score, num_steps, chunks))
        elif kinds:
            self._num_ended -= 1

    def write(self) -> None:
        """Write the episodes chosen since the last time, if there are any, and begin the next interval.

        If the write fails or is interrupted, the episodes of this interval may be lost, and later calls work.
        """
        self._due = self._clock() + self.interval
        kinds: dict[int, list[str]] = {}
        for kind in (kind for kind in _KINDS if kind in self._chosen):
            kinds.setdefault(id(self._chosen[kind][2]), []).append(kind)
        episodes = []
        for names in kinds.values():
            _, num_steps, chunks = self._chosen[names[0]]
            episode = join_chunks(_with_common_outputs(chunks))
            self._add_frames(episode)
            parts = episode.agent_episodes.values() if isinstance(episode, MultiAgentEpisode) else ()
            for part in (episode, *parts):  # the rows of a data set are agents
                part.custom_data.pop(FRAME, None)  # they are infos now
                part.custom_data |= {"kept_as": ", ".join(names), "num_steps": num_steps}
            episodes.append(episode)
        self._chosen, self._num_ended = {}, 0  # an interrupted write may have written them: they are not written again
        if episodes:
            with EpisodeWriter(self.folder, env_spec=self._env_spec) as writer:
                writer.add(episodes)

    def _add_frames(self, episode: SingleAgentEpisode | MultiAgentEpisode) -> None:
        """Add the recorded frames to an episode, and warn once if there are none."""
        if self._recorder is None:
            return
        frames = self._recorder.ended.get(episode.id_, {})
        add_frames(episode, frames)
        if not (frames or self._has_warned):
            self._has_warned = True
            warnings.warn(
                f"frames: no frame of episode {episode.id_} was recorded, so it is kept without frames; runners in "
                "other processes need FrameRecorder(sends=True) among their hooks",
                stacklevel=2,
            )

    def close(self) -> None:
        """Write the episodes chosen since the last time."""
        self.write()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def check_keeps(trainer: Trainer[Any]) -> None:
    """Raise `InvalidArgument` if a trainer does not sample episodes."""
    if not isinstance(trainer, (OnPolicyTrainer, OffPolicyTrainer)):
        raise InvalidArgument(
            f"keeping episodes of the training: {type(trainer).__name__} of {type(trainer.algorithm).__name__} samples "
            "no episodes; leave it out, and record episodes of the trained policy (episodes play)"
        )


class _SampledEpisodes:
    """Hook of a runner that passes samples into a replay buffer on to a keeper.

    Args:
        keeper: the keeper.
        trainer: the trainer of the run.
    """

    def __init__(self, keeper: EpisodeKeeper, trainer: OffPolicyTrainer) -> None:
        self._keeper, self._trainer = keeper, trainer

    def on_sample_end(self, runner: object, sampled: object) -> None:
        """Pass a sample on to the keeper, unless it is not in the buffer."""
        buffer = self._trainer.buffer
        if isinstance(sampled, CollectStats) and isinstance(buffer, EpisodeReplayBuffer):
            self._keeper.consider_sample(sampled, buffer, self._trainer.num_steps + sampled.num_steps)


def _with_common_outputs(chunks: Chunks) -> list[Any]:
    """Return chunks of one episode with those extra model outputs that all of them have. The given ones stay as they
    are."""
    parts: Any = [chunk.slice(slice(None)) for chunk in chunks]
    by_agent: dict[Any, list[SingleAgentEpisode]] = {}
    for part in parts:
        agents = part.agent_episodes if isinstance(part, MultiAgentEpisode) else {None: part}
        for agent_id, episode in agents.items():
            by_agent.setdefault(agent_id, []).append(episode)
    for episodes in by_agent.values():
        common = set.intersection(*(set(episode.extra_model_outputs) for episode in episodes))
        for episode in episodes:
            outputs = episode.extra_model_outputs
            episode.extra_model_outputs = {name: outputs[name] for name in outputs if name in common}
    return parts
