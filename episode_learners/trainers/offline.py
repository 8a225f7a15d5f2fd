"""`OfflineTrainer`: learns from data that are there already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from episode_learners.algorithms.algorithm import Algorithm
from episode_learners.algorithms.bc import BC
from episode_learners.algorithms.config_checks import check_numbers
from episode_learners.algorithms.replay_algorithm import ReplayAlgorithm
from episode_learners.trainers.stored_buffer import StoredBuffer
from episode_learners.trainers.trainer import Trainer, TrainerConfig
from episode_runners import Evaluation, SingleAgentEnvRunner, evaluate
from episodes.errors import InvalidArgument
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.sampling import EpisodeBatches, Sampler

__all__ = ["OfflineConfig", "OfflineTrainer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineConfig(TrainerConfig):
    """Settings of an offline run.

    Attributes:
        steps_per_epoch: Steps of the data in an epoch; gradient steps, if the algorithm learns from samples.
        episodes_per_update: Episodes of an update, for algorithms that learn from episodes.
        gradient_steps_per_update: Gradient steps of an update, for algorithms that learn from samples.
    """

    episodes_per_update: int = 50
    gradient_steps_per_update: int = 10

    def __post_init__(self) -> None:
        TrainerConfig.__post_init__(self)
        check_numbers(self, counts=("episodes_per_update", "gradient_steps_per_update"))


class OfflineTrainer(Trainer[OfflineConfig]):
    """Goes through episodes again and again, or draws from them, in a buffer or on disk.

    Args:
        data: a list of episodes, a pack or a data set; for an algorithm that learns from draws a buffer, or a data
            set's sampler, `dataset.sampler(steps=...)`; for any, a sampler of whole episodes. A checkpoint has where a
            sampler is, and not the data.
        runner: with the algorithm's policy; it is tested in environments as this one's.
        evaluate_fn: an `Evaluation` of the policy for (number of episodes, seed), where there is no runner; with
            neither it is not tested.
        of_trainer: the other arguments of `Trainer`.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        data: Sequence[SingleAgentEpisode] | EpisodeReplayBuffer | Sampler,
        config: OfflineConfig | None = None,
        *,
        runner: SingleAgentEnvRunner | None = None,
        evaluate_fn: Callable[[int, int], Evaluation] | None = None,
        **of_trainer: Any,
    ) -> None:
        super().__init__(algorithm, config or OfflineConfig(), **of_trainer)
        self.data, self.runner, self.evaluate_fn = data, runner, evaluate_fn
        self._at = 0  # the next episode
        is_drawn = isinstance(data, (EpisodeReplayBuffer, Sampler))
        if not is_drawn and (isinstance(data, Mapping) or not hasattr(data, "__getitem__")):
            raise InvalidArgument(
                f"data is a {type(data).__name__}: give a list of episodes, a pack, a data set, a sampler or a buffer"
            )
        gives_steps = isinstance(data, EpisodeReplayBuffer) or _gives_steps(data)
        if gives_steps and not isinstance(algorithm, (BC, ReplayAlgorithm)):
            raise InvalidArgument(
                f"{type(algorithm).__name__} learns from episodes: give dataset.sampler(episodes=...), or the data set"
            )

    def _collect_and_update(self) -> None:
        learner, steps = self.algorithm, self.config.gradient_steps_per_update
        if isinstance(self.data, EpisodeReplayBuffer) or _gives_steps(self.data):
            self.num_steps += steps
            self._update(learner.update_from(self.data, steps), steps)  # type: ignore[operator]
            return
        episodes = self.data.draw() if isinstance(self.data, Sampler) else self._next_with_steps()
        self.num_steps += sum(len(episode) for episode in episodes)
        self._update(learner.update(episodes))

    def _next_with_steps(self) -> Sequence[SingleAgentEpisode]:
        """The next episodes; where none of them has a step, those after them."""
        data: Any = self.data
        for _ in range(-(-len(data) // self.config.episodes_per_update) + 1):
            episodes = self._next_episodes(data)
            if any(len(episode) for episode in episodes):
                return episodes
        raise InvalidArgument(f"OfflineTrainer: none of {len(data)} episodes has a step to learn from")

    def _next_episodes(self, data: Any) -> Sequence[SingleAgentEpisode]:
        if self._at >= len(data):
            self._at = 0
        start, self._at = self._at, self._at + self.config.episodes_per_update
        return data[start : self._at]

    def test(self, seed: int) -> Evaluation | None:
        if self.runner is not None:
            return evaluate(self.runner, num_episodes=self.config.num_test_episodes, seed=seed)
        return None if self.evaluate_fn is None else self.evaluate_fn(self.config.num_test_episodes, seed)

    def _parts(self) -> Mapping[str, Any]:
        tested = {} if self.runner is None else {"runner": self.runner}
        if isinstance(self.data, EpisodeReplayBuffer):
            return {"data": StoredBuffer(self.data), **tested}
        if isinstance(self.data, Sampler):
            return {"data": _SamplerPlace(self.data), **tested}
        return {"place": _Place(self), **tested}


def _gives_steps(data: Any) -> bool:
    return isinstance(data, Sampler) and not isinstance(data.what, EpisodeBatches)


class _SamplerPlace:
    """Where a sampler is."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def get_state(self) -> dict[str, Any]:
        return self.sampler.state_dict()

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.sampler.load_state_dict(state)


class _Place:
    """Where a trainer is in its episodes, as something with a state."""

    def __init__(self, trainer: OfflineTrainer) -> None:
        self.trainer = trainer

    def get_state(self) -> int:
        return self.trainer._at

    def set_state(self, state: int) -> None:
        self.trainer._at = state
