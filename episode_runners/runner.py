"""`EnvRunner`: base class of the single-agent and multi-agent runner, with hooks, counts, state and closing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

import numpy as np

from connectors.editable_episodes import EditableEpisodes
from connectors.pipeline import set_states
from episode_runners.callbacks import as_hook, check_unwritten
from episode_runners.env_use import EnvUse
from episode_runners.metrics_logger import MetricsLogger
from episodes.closeable import Closeable
from episodes.errors import InvalidArgument, StateMismatch, WrongType
from episodes.recorder.ongoing import OngoingEpisodes
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.validation import checked_count, checked_flag, checked_items, checked_seed, reading_state

if TYPE_CHECKING:
    from episode_runners.multi_agent import MultiAgentEnvRunner
    from episode_runners.single_agent import SingleAgentEnvRunner
    from episode_runners.stats import CollectStats
    from episodes.multi_agent import MultiAgentEpisode
    from episodes.pack import EpisodePack

__all__ = ["Hook"]


Runner: TypeAlias = "SingleAgentEnvRunner | MultiAgentEnvRunner"
Sampled: TypeAlias = "EpisodePack | list[MultiAgentEpisode] | CollectStats"  # what a runner's `sample` methods return


class Hook:
    """Base class for hooks: objects with methods that a runner calls at certain events while it samples.

    Override the methods you need; others cost nothing. Writes to an episode's `custom_data` are kept and returned with
    the samples. Other writes to episodes raise, because they would be lost: use an `ObservationPreprocessor` to change
    what is recorded, and a connector of the learner pipeline to shape rewards. A hook must not sample with its own
    runner: `evaluate(runner)` has separate environments.
    """

    def on_episode_start(self, runner: Runner, env: int, episode: SingleAgentEpisode | MultiAgentEpisode) -> None:
        """Handle the start of an episode, after the reset of environment `env`. `episode` has no step yet."""

    def on_step(self, runner: Runner) -> None:
        """Handle one vector step.
        `runner.episodes` are the episodes with this step, one per environment, also if they ended.

        Episodes of environments that were reset in this step (next-step autoreset) have no step yet.
        """

    def on_episode_end(self, runner: Runner, env: int, episode: SingleAgentEpisode | MultiAgentEpisode) -> None:
        """Handle the end of an episode of environment `env`. `episode` contains its true last observation.

        An episode that goes into a pack is the chunk since the last `sample`.
        """

    def on_sample_end(self, runner: Runner, sampled: Sampled) -> Any:
        """Handle the episodes that `sample` returns, or the statistics that `sample_into` returns.

        Returns:
            None, or the object that `sample` returns instead, for example `sampled.replace(custom_data=[...])`.
        """


class ShownEpisodes(EditableEpisodes):
    """Sequence of the episodes that hooks see in `on_step`, one per environment.
    Hooks may write to their `custom_data`.
    """

    def __init__(self, ongoing: OngoingEpisodes, ended: Callable[[], Mapping[int, SingleAgentEpisode]]) -> None:
        super().__init__(_AsStepped(ongoing, ended))
        self.ongoing = ongoing

    @property
    def ages(self) -> np.ndarray:
        return self.ongoing.ages

    def recent(self, track: str, num_items: int) -> tuple[Any, np.ndarray]:
        return self.ongoing.recent(track, num_items)


class _AsStepped(Sequence[Any]):
    """Sequence of one episode per environment: the episode that ended in the last step, or else the ongoing one."""

    def __init__(self, ongoing: OngoingEpisodes, ended: Callable[[], Mapping[int, SingleAgentEpisode]]) -> None:
        self._ongoing = ongoing
        self._find_ended = ended

    @cached_property
    def _ended(self) -> Mapping[int, SingleAgentEpisode]:
        return self._find_ended()

    def __len__(self) -> int:
        return len(self._ongoing)

    def __getitem__(self, env: int | slice) -> Any:
        if isinstance(env, slice):
            shown = self._ongoing[:]
            for ended, episode in self._ended.items():
                shown[ended] = episode
            return shown[env]
        return self._ended[env] if env in self._ended else self._ongoing[env]


class HookMethods:
    """Methods of a runner's hooks by event, without methods that a hook lacks or inherits from `Hook`.

    Args:
        hooks: the hooks of the runner.

    Attributes:
        shown: the episodes that the methods `on_step` see while they run, else None.
    """

    __slots__ = ("_hooks", "follow_steps", "on_episode_end", "on_episode_start", "on_sample_end", "on_step", "shown")

    def __init__(self, hooks: Iterable[object]) -> None:
        self._hooks: list[object] = []
        self.shown: ShownEpisodes | None = None
        self.add(*hooks)

    def add(self, *hooks: object) -> None:
        """Add hooks, whose methods are called after those of the other hooks."""
        self._hooks += hooks
        self.on_episode_start = _methods(self._hooks, "on_episode_start")
        self.on_step = _methods(self._hooks, "on_step")
        self.on_episode_end = _methods(self._hooks, "on_episode_end")
        self.on_sample_end = _methods(self._hooks, "on_sample_end")
        self.follow_steps = bool(self.on_episode_start or self.on_step or self.on_episode_end)

    def call_on_step(self, runner: object, shown: ShownEpisodes) -> None:
        """Call the `on_step` method of all hooks. During the calls, `runner.episodes` is `shown`.

        Raises:
            InvalidArgument: a hook changed something other than `custom_data`.
        """
        self.shown = shown
        try:
            for call in self.on_step:
                call(runner)
        finally:
            self.shown = None
        check_unwritten(shown)

    def call_on_sample_end(self, runner: object, sampled: Sampled) -> Any:
        """Call the `on_sample_end` method of all hooks with the sample. Return the sample, or the last object that a
        hook returned instead.

        Raises:
            WrongType: a hook returned an object of another type.
        """
        for call in self.on_sample_end:
            replaced = call(runner, sampled)
            if replaced is None:
                continue
            if type(replaced) is not type(sampled):
                raise WrongType(
                    f"a hook's on_sample_end returned a {type(replaced).__name__}; return None, or a "
                    f"{type(sampled).__name__} that sample is to return"
                )
            sampled = replaced
        return sampled


def _methods(hooks: Iterable[object], name: str) -> tuple[Any, ...]:
    """Return the bound methods `name` of the hooks, without hooks that lack the method or inherit it from `Hook`."""
    methods = [getattr(hook, name, None) for hook in hooks]
    empty = getattr(Hook, name)
    return tuple(method for method in methods if method and getattr(method, "__func__", method) is not empty)


class EnvRunner(Closeable):
    """Base class of runners, with hooks, step and episode counts, metrics, state and closing.

    Attributes:
        stats: statistics of the last call of `sample`.
        num_episodes: number of episodes that ended in all calls.
        metrics_logger: logger for hooks and callbacks; `metrics()` returns its numbers too.
        worker_index: 1 or more for a runner of a `RayRunnerGroup`, 0 for any other.
    """

    steps_counted: ClassVar[str] = "num_steps"  # name of the step count in metrics and states
    stats: Any
    _pipelines: Any
    _use: EnvUse

    def __init__(self, hooks: Sequence[Any], seed: int | None, update_stats: bool | Literal["always"]) -> None:
        self.seed = checked_seed(seed)
        self.update_stats = update_stats if update_stats == "always" else checked_flag("update_stats", update_stats)
        self._policy_version: Any = None
        self.num_episodes = 0
        self._num_steps = 0
        self.metrics_logger = MetricsLogger()
        self.worker_index = 0
        self._hooks = HookMethods(map(as_hook, checked_items("hooks", hooks, "hooks")))

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        raise NotImplementedError

    def _updates_if(self, explore: bool) -> bool:
        """Return True if connectors with statistics learn in a call of `sample` with this `explore`."""
        return self.update_stats == "always" or (explore and bool(self.update_stats))

    def add_hook(self, hook: object) -> None:
        """Add a hook, whose methods later steps call after those of the other hooks.

        Args:
            hook: an object with methods of `Hook`, or a callback (`RLlibCallback`).
        """
        self._hooks.add(as_hook(hook))

    @property
    def policy_version(self) -> Any:
        """Version number, at least 0, of the policy that acts from now on. None if the version is unknown.

        Each recorded step stores it, except steps with random actions; `get_policy_versions` of episodes and packs
        returns it. Set the next version when the policy's weights change: between two samples, or in a hook's
        `on_step`.
        """
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: Any) -> None:
        raise NotImplementedError

    def metrics(self) -> dict[str, Any]:
        """Return numbers to log: statistics of the last `sample`, total counts, and values that hooks have logged."""
        total = {f"{self.steps_counted}_total": self._num_steps, "num_episodes_total": self.num_episodes}
        return self.stats.as_dict() | total | self.metrics_logger.peek()

    def for_evaluation(
        self, num_envs: int | None = None, *, seed: int | None = None, hooks: Sequence[Any] = ()
    ) -> Self:
        """Return a new runner with the same policy, other environments, and copies of the pipelines.

        The environments are created in the same way as this runner's environments. Statistics of the copied pipelines
        do not change. `evaluate` uses this method. Other callers must close the new runner.

        Args:
            num_envs: number of environments; this runner's number by default.
            seed: seed of the new runner.
            hooks: hooks of the new runner.

        Raises:
            InvalidArgument: the environments were given as objects, from which no other environments can be created.
        """
        raise NotImplementedError

    # --- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the runner's state for a checkpoint: pipeline statistics,
        counts and the seed, without environments.
        """
        return {
            "env_to_module": self._pipelines.env_to_module.get_state(),
            "module_to_env": self._pipelines.module_to_env.get_state(),
            "seed": self.seed,
            self.steps_counted: self._num_steps,
            "num_episodes": self.num_episodes,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned.
        The next `sample` starts new episodes, with seeds derived from the state.

        Raises:
            StateMismatch: the state belongs to another kind of object. The runner is unchanged.
        """
        missing = [name for name in self.get_state() if not isinstance(state, Mapping) or name not in state]
        if missing:
            raise StateMismatch(
                f"{type(self).__name__}.set_state: a state without {missing}; give a state of get_state"
            )
        both = self._pipelines
        pipelines = {"env_to_module": both.env_to_module, "module_to_env": both.module_to_env}
        before = {name: pipeline.get_state() for name, pipeline in pipelines.items()}
        with reading_state(type(self)):
            seed = checked_seed(state["seed"])
            counts = [checked_count(name, state[name], 0) for name in (self.steps_counted, "num_episodes")]
            sequence = None if seed is None else np.random.SeedSequence((seed, counts[0]))
            set_states(pipelines, {name: state[name] for name in pipelines}, before)
        self._use.needs_reset = True
        if sequence is not None:
            self._reseed(sequence)
        self.seed, (self._num_steps, self.num_episodes) = seed, counts

    def _reseed(self, sequence: np.random.SeedSequence) -> None:
        """Derive new seeds for the next resets and random actions from a seed sequence."""
        raise NotImplementedError

    # --- closing ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the environments. Further calls do nothing."""
        self._use.close(self._close)

    def _close(self) -> None:
        raise NotImplementedError


def copy_pipeline(pipeline: object) -> Any:
    """Return a deep copy of a pipeline, including its state. For None, return None.

    Raises:
        InvalidArgument: a connector cannot be copied.
    """
    try:
        return deepcopy(pipeline)
    except Exception as error:
        raise InvalidArgument(
            f"{pipeline!r} cannot be copied for an evaluation: {error}; add a __deepcopy__ to "
            "the connector that cannot be copied"
        ) from error


def call_hooks(calls: Sequence[Any], runner: Runner, envs: np.ndarray, episodes: Sequence[SingleAgentEpisode]) -> None:
    """Call hook methods for each of k environments with the runner, the environment's index, and its episode.

    Args:
        calls: the methods of the hooks.
        runner: the runner.
        envs: indices of the environments, int [k].
        episodes: the k episodes.

    Raises:
        InvalidArgument: a hook changed something other than `custom_data`.
    """
    shown = EditableEpisodes(episodes)
    for env, episode in zip(envs.tolist(), shown, strict=True):
        for call in calls:
            call(runner, env, episode)
    check_unwritten(shown)


def quotas(num_episodes: int, num_envs: int, turn: int = 0) -> tuple[np.ndarray, int]:
    """Divide a number of episodes over N environments.

    Return the counts [N], and the argument `turn` for the next call, which begins where this one has stopped.

    Args:
        num_episodes: number of episodes of all environments together.
        num_envs: number of environments.
        turn: the first environment that contributes one more than others, if the division leaves a remainder.

    >>> quotas(5, 3, turn=2)
    (array([2, 1, 2]), 1)
    """
    each, remainder = divmod(num_episodes, num_envs)
    counts = np.full(num_envs, each)
    counts[(turn + np.arange(remainder)) % num_envs] += 1
    return counts, (turn + remainder) % num_envs


def check_counts(num_timesteps: int | None, num_episodes: int | None) -> None:
    """Raise `InvalidArgument` unless exactly one of the counts is given, and it is an int of at least 1."""
    if (num_timesteps is None) == (num_episodes is None):
        raise InvalidArgument(
            f"sample(num_timesteps={num_timesteps}, num_episodes={num_episodes}): give exactly one of the two"
        )
    name = "sample: num_" + ("episodes" if num_timesteps is None else "timesteps")
    checked_count(name, num_episodes if num_timesteps is None else num_timesteps)


def check_flags(explore: bool, random_actions: bool, force_reset: bool) -> None:
    """Raise `WrongType` unless all three arguments of `sample` are bools."""
    checked_flag("sample: explore", explore)
    checked_flag("sample: random_actions", random_actions)
    checked_flag("sample: force_reset", force_reset)
