"""What both runners have: how much to sample, hooks, counts, state, and closing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from connectors.editable_episodes import EditableEpisodes
from connectors.pipeline import set_states
from episode_runners.callbacks import as_hook, check_unwritten
from episode_runners.closeable import Closeable
from episode_runners.interrupts import DeferredInterrupt
from episode_runners.metrics_logger import MetricsLogger
from episodes.errors import EpisodeStateError, InvalidArgument, StateMismatch, WrongType
from episodes.recorder import OngoingEpisodes
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.validation import checked_count, checked_flag, checked_items, checked_seed

__all__ = ["Hook"]


class Hook:
    """Called by a runner while it samples, in this order. Override what you need; the rest costs nothing.

    What a hook writes to an episode's `custom_data` stays with the episode and arrives in what is sampled. Other writes
    have nowhere to go, and raise: an `ObservationPreprocessor` changes what is recorded, learner pieces shape rewards.
    A hook does not sample with its own runner: `evaluate(runner)` has environments of its own.
    """

    def on_episode_start(self, runner: Any, env: int, episode: Any) -> None:
        """After the reset of an environment: its new episode, without a step."""

    def on_step(self, runner: Any) -> None:
        """After each vector step. `runner.episodes` are those that the step belongs to, also where it was their last.

        Those of environments that were reset with it (next-step autoreset) have no step yet.
        """

    def on_episode_end(self, runner: Any, env: int, episode: Any) -> None:
        """After the step that ended an environment's episode: what there is of it, with its true last observation.

        Of an episode that goes into a pack, that is its chunk since the last `sample`.
        """

    def on_sample_end(self, runner: Any, sampled: Any) -> Any:
        """After a call of `sample`, with what it returns; or of `sample_into`, with its statistics.

        A hook may return what `sample` is to return instead, `sampled.replace(custom_data=[...])` for example.
        """


class ShownEpisodes(Sequence[Any]):
    """The episodes that hooks see at a vector step: ongoing ones, and those that ended with it."""

    def __init__(self, ongoing: OngoingEpisodes, ended: Callable[[], Mapping[int, SingleAgentEpisode]]) -> None:
        self.ongoing = ongoing
        self.kept = EditableEpisodes(_AsStepped(ongoing, ended))

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, env: Any) -> Any:
        return self.kept[env]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.kept)

    @property
    def ages(self) -> np.ndarray:
        """See `OngoingEpisodes.ages`."""
        return self.ongoing.ages

    def recent(self, track: str, num_items: int) -> tuple[Any, np.ndarray]:
        """See `OngoingEpisodes.recent`."""
        return self.ongoing.recent(track, num_items)


class _AsStepped(Sequence[Any]):
    """An episode for each environment, where some have ended and the next has begun already."""

    def __init__(self, ongoing: OngoingEpisodes, ended: Callable[[], Mapping[int, SingleAgentEpisode]]) -> None:
        self._ongoing = ongoing
        self._find_ended = ended

    @cached_property
    def _ended(self) -> Mapping[int, SingleAgentEpisode]:
        return self._find_ended()

    def __len__(self) -> int:
        return len(self._ongoing)

    def __getitem__(self, env: Any) -> Any:
        if isinstance(env, slice):
            shown = self._ongoing[:]
            for ended, episode in self._ended.items():
                shown[ended] = episode
            return shown[env]
        return self._ended[env] if env in self._ended else self._ongoing[env]


def calls_of(hooks: Any, name: str) -> tuple[Any, ...]:
    """The hooks' methods of that name that do something."""
    methods = [getattr(hook, name, None) for hook in hooks]
    empty = getattr(Hook, name)
    return tuple(method for method in methods if method and getattr(method, "__func__", method) is not empty)


class EnvRunner(Closeable):
    """What a runner of any kind has beside its environments: counts of all calls, hooks, state, closing.

    Attributes:
        stats: of the last call of `sample`.
        num_episodes: that ended in all calls.
        metrics_logger: for numbers of hooks and callbacks; `metrics()` returns them too.
        worker_index: 1 or more for a runner of a `RayRunnerGroup`, 0 for any other.
    """

    steps_counted: ClassVar[str] = "num_steps"  # how the steps of all calls are named in metrics and states
    num_envs: int
    env_to_module: Any
    module_to_env: Any
    stats: Any

    def __init__(self, hooks: Sequence[Any], seed: int | None, update_stats: bool) -> None:
        self.seed = checked_seed(seed)
        self.update_stats = checked_flag("update_stats", update_stats)
        self._policy_version: Any = None
        self._updates = update_stats  # in this call of sample
        self.num_episodes = 0
        self._num_steps = 0
        self.metrics_logger = MetricsLogger()
        self.worker_index = 0
        hooks = [as_hook(hook) for hook in checked_items("hooks", hooks, "hooks")]
        self._on_episode_start = calls_of(hooks, "on_episode_start")
        self._on_step = calls_of(hooks, "on_step")
        self._on_episode_end = calls_of(hooks, "on_episode_end")
        self._on_sample_end = calls_of(hooks, "on_sample_end")
        self._has_hooks = bool(self._on_episode_start or self._on_step or self._on_episode_end)
        self._shown: ShownEpisodes | None = None  # while hooks look
        self._needs_reset = True
        self._closed = False  # for those who sample
        self._is_shut = False  # the environments are closed
        self._is_sampling = False
        self._interrupts = DeferredInterrupt()
        self._keep_env: Callable[[], Any] = lambda: None  # cancels the closing of environments of a dropped runner

    def _show(self, shown: ShownEpisodes) -> None:
        """Let hooks see the step of these episodes."""
        self._shown = shown
        try:
            for call in self._on_step:
                call(self)
        finally:
            self._shown = None
        check_unwritten(shown.kept)

    def _tell_end_of_sample(self, sampled: Any) -> Any:
        """Call hooks with what `sample` returns. Return it, or what a hook returned in its place."""
        for call in self._on_sample_end:
            replaced = call(self, sampled)
            if replaced is None:
                continue
            if type(replaced) is not type(sampled):
                raise WrongType(
                    f"a hook's on_sample_end returned a {type(replaced).__name__}; return None, or a "
                    f"{type(sampled).__name__} that sample is to return"
                )
            sampled = replaced
        return sampled

    @property
    def policy_version(self) -> Any:
        """The number of the policy that acts from now on, 0 or more; None: not told.

        Each step that is recorded carries it (`get_policy_versions` of episodes and packs), but for random actions.
        Say the next one where the policy's weights change: between two samples, or in a hook's `on_step`.
        """
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: Any) -> None:
        raise NotImplementedError

    def _check_may_sample(self) -> None:
        """Raise `EpisodeStateError` unless the runner is open and does not sample already."""
        if self._closed:
            raise EpisodeStateError("sample after close(); make a new runner")
        self._check_not_sampling("sample")

    def _check_not_sampling(self, call: str) -> None:
        if self._is_sampling:
            raise EpisodeStateError(
                f"{call} while this runner samples: a hook, a policy or an environment called it; call it when sample "
                "has returned, or evaluate(runner), which has environments of its own"
            )

    def metrics(self) -> dict[str, Any]:
        """The numbers of the last call of `sample`, the steps and episodes of all calls, and what hooks have logged."""
        total = {f"{self.steps_counted}_total": self._num_steps, "num_episodes_total": self.num_episodes}
        return self.stats.as_dict() | total | self.metrics_logger.peek()

    def for_evaluation(
        self, num_envs: int | None = None, *, seed: int | None = None, hooks: Sequence[Any] = ()
    ) -> Self:
        """A runner of the same policy that learns nothing: environments of its own, made as this one's were, and copies
        of the pipelines as they are now. `evaluate` uses it; who keeps it closes it.

        Raises:
            InvalidArgument: the environments were given as objects that do not say how to make others.
        """
        raise NotImplementedError

    # --- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """The pipelines' states, the counts and the seed. Environments cannot be saved: see `set_state`."""
        return {
            "env_to_module": self.env_to_module.get_state(),
            "module_to_env": self.module_to_env.get_state(),
            "seed": self.seed,
            self.steps_counted: self._num_steps,
            "num_episodes": self.num_episodes,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` gave. The next `sample` begins new episodes, seeded by the seed and the steps.

        Raises:
            StateMismatch: the state of something else; the runner stays as it was.
        """
        missing = [name for name in self.get_state() if name not in state]
        if missing:
            raise StateMismatch(f"{type(self).__name__}.set_state: a state without {missing}; give what get_state gave")
        self._needs_reset = True
        pipelines: dict[str, Any] = {"env_to_module": self.env_to_module, "module_to_env": self.module_to_env}
        seed, num_steps = state["seed"], state[self.steps_counted]
        before = {name: pipeline.get_state() for name, pipeline in pipelines.items()}
        set_states(pipelines, {name: state[name] for name in pipelines}, before)
        try:
            if seed is not None:
                self._reseed(np.random.SeedSequence((seed, num_steps)))
        except BaseException:
            set_states(pipelines, before, before)
            raise
        self.seed, self._num_steps, self.num_episodes = seed, num_steps, state["num_episodes"]  # no call in between

    def _reseed(self, sequence: np.random.SeedSequence) -> None:
        """Seed the next resets."""
        raise NotImplementedError

    # --- closing ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the environments; may be called again, and goes on where it was interrupted."""
        self._closed = True
        if not self._is_shut:
            try:
                self._close()
            except Exception:
                self._is_shut = True
                raise
            self._is_shut = True

    def _close(self) -> None:
        raise NotImplementedError


def copied(pipeline: Any) -> Any:
    """A deep copy of a pipeline, with its state; None of None.

    Raises:
        InvalidArgument: one of its pieces cannot be copied.
    """
    try:
        return deepcopy(pipeline)
    except Exception as error:
        raise InvalidArgument(
            f"{pipeline!r} cannot be copied for an evaluation: {error}; give the piece that cannot a __deepcopy__"
        ) from error


def tell(calls: Sequence[Any], runner: Any, envs: np.ndarray, episodes: Sequence[SingleAgentEpisode]) -> None:
    """Call hooks with each of the environments [k] and its episode."""
    shown = EditableEpisodes(episodes)
    for env, episode in zip(envs.tolist(), shown, strict=True):
        for call in calls:
            call(runner, env, episode)
    check_unwritten(shown)


def quotas(num_episodes: int, num_envs: int, turn: int) -> tuple[np.ndarray, int]:
    """How many episodes [N] each environment contributes, and whose turn it is then to give one more.

    >>> quotas(5, 3, turn=2)
    (array([2, 1, 2]), 1)
    """
    each, more = divmod(num_episodes, num_envs)
    found = np.full(num_envs, each)
    found[(turn + np.arange(more)) % num_envs] += 1
    return found, (turn + more) % num_envs


def check_counts(num_timesteps: int | None, num_episodes: int | None) -> None:
    """Raise `InvalidArgument` unless exactly one of the two is given, and is an int of at least 1."""
    if (num_timesteps is None) == (num_episodes is None):
        raise InvalidArgument(
            f"sample(num_timesteps={num_timesteps}, num_episodes={num_episodes}): give exactly one of the two"
        )
    name = "sample: num_" + ("episodes" if num_timesteps is None else "timesteps")
    checked_count(name, num_episodes if num_timesteps is None else num_timesteps)
