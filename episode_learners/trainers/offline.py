"""`OfflineTrainer`: learns from recorded episodes, without sampling new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from episode_learners.algorithms.algorithm import Algorithm
from episode_learners.algorithms.bc import BC
from episode_learners.algorithms.config_checks import count
from episode_learners.algorithms.replay_algorithm import ReplayAlgorithm
from episode_learners.multi_agent import MultiAgentAlgorithm, learners_of
from episode_learners.trainers.config import TrainerConfig
from episode_learners.trainers.stored_buffer import StoredBuffer
from episode_learners.trainers.trainer import Trainer
from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner
from episodes.errors import InvalidArgument
from episodes.replay import EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer
from episodes.storage.sampling import EpisodeBatches
from episodes.storage.sampling.sampler import Sampler

__all__ = ["OfflineConfig", "OfflineTrainer"]

_BUFFERS = (EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineConfig(TrainerConfig):
    """Settings of an offline training run (`OfflineTrainer`).

    Attributes:
        steps_per_epoch: Steps of the data in an epoch; gradient steps, if the algorithm learns from samples.
        episodes_per_update: Episodes of an update, for algorithms that learn from episodes.
        gradient_steps_per_update: Gradient steps of an update, for algorithms that learn from samples.
    """

    episodes_per_update: int = count(50)
    gradient_steps_per_update: int = count(10)


class OfflineTrainer(Trainer[OfflineConfig]):
    """Trainer for learning from recorded episodes. It goes through the episodes many times, or takes random samples of
    them.

    Args:
        algorithm: the algorithm to train.
        data: a list of episodes (of one agent or of several), a pack or a data set; for an algorithm that learns from
            samples a buffer, or a data set's sampler, `dataset.sampler(steps=...)`; for any algorithm, a sampler of
            complete episodes. A checkpoint stores the position of a sampler, and not the data.
        config: settings.
        runner: a runner of the algorithm's policy or policies, for tests.
        of_trainer: the other arguments of `Trainer`. Without `runner` and `evaluate_fn` there are no tests.

    Raises:
        InvalidArgument: the algorithm cannot learn from this kind of data.
    """

    def __init__(
        self,
        algorithm: Algorithm | MultiAgentAlgorithm,
        data: Sequence[Any] | EpisodeReplayBuffer | MultiAgentEpisodeReplayBuffer | Sampler,
        config: OfflineConfig | None = None,
        *,
        runner: SingleAgentEnvRunner | MultiAgentEnvRunner | None = None,
        **of_trainer: Any,
    ) -> None:
        super().__init__(algorithm, config or OfflineConfig(), **of_trainer)
        self.data, self.runner = data, runner
        self._at = 0  # index of the next episode
        is_sampled = isinstance(data, (*_BUFFERS, Sampler))
        if not is_sampled and (isinstance(data, Mapping) or not hasattr(data, "__getitem__")):
            raise InvalidArgument(
                f"data is a {type(data).__name__}: give a list of episodes, a pack, a data set, a sampler or a buffer"
            )
        several = isinstance(algorithm, MultiAgentAlgorithm)
        if is_sampled and several != isinstance(data, MultiAgentEpisodeReplayBuffer):
            raise InvalidArgument(
                f"{type(algorithm).__name__} with a {type(data).__name__}: a MultiAgentAlgorithm learns from a "
                "MultiAgentEpisodeReplayBuffer or from episodes, other algorithms do not"
            )
        learners = learners_of(algorithm).values()
        wrong = [type(learner).__name__ for learner in learners if not isinstance(learner, (BC, ReplayAlgorithm))]
        self._learns_from_samples = isinstance(data, _BUFFERS) or _samples_steps(data)
        if wrong and self._learns_from_samples:
            raise InvalidArgument(
                f"{wrong[0]} learns from episodes: give dataset.sampler(episodes=...), or the data set"
            )

    def _collect_and_update(self) -> None:
        """Update the policy once, from a sample of the recorded data or from the next episodes in order."""
        learner: Any = self.algorithm
        steps = self.config.gradient_steps_per_update
        if self._learns_from_samples:
            self.counts.num_steps += steps
            self._update(learner.update_from(self.data, steps), steps)
            return
        episodes = self.data.draw() if isinstance(self.data, Sampler) else self._next_with_steps()
        self.counts.num_steps += sum(len(episode) for episode in episodes)
        self._update(learner.update(episodes))

    def _next_with_steps(self) -> Sequence[Any]:
        """Return the next `episodes_per_update` recorded episodes. Groups of episodes without any step are skipped.

        Raises:
            InvalidArgument: no episode has a step.
        """
        data: Any = self.data
        for _ in range(-(-len(data) // self.config.episodes_per_update) + 1):
            start = self._at if self._at < len(data) else 0  # after the last episode, start again
            self._at = start + self.config.episodes_per_update
            episodes = data[start : self._at]
            if any(len(episode) for episode in episodes):
                return episodes
        raise InvalidArgument(f"OfflineTrainer: none of {len(data)} episodes has a step to learn from")

    def _stateful_parts(self) -> dict[str, Any]:
        """Return the objects whose states checkpoints store: the buffer, the sampler's position or the episode index,
        and the runner.
        """
        tested = {} if self.runner is None else {"runner": self.runner}
        if isinstance(self.data, _BUFFERS):
            return {"data": StoredBuffer(self.data), **tested}
        if isinstance(self.data, Sampler):
            position = SimpleNamespace(get_state=self.data.state_dict, set_state=self.data.load_state_dict)
            return {"data": position, **tested}
        return {"place": SimpleNamespace(get_state=lambda: self._at, set_state=partial(setattr, self, "_at")), **tested}


def _samples_steps(data: object) -> bool:
    """Return True if the data are a sampler of steps or sequences, and not of complete episodes."""
    return isinstance(data, Sampler) and not isinstance(data.what, EpisodeBatches)
