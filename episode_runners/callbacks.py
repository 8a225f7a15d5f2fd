"""`RLlibCallback`: base class for callbacks with the method names and arguments of RLlib."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from connectors.editable_episodes import EditableEpisodes
from episodes.errors import InvalidArgument, WrongType
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack

if TYPE_CHECKING:
    from episode_runners.runner import Runner, Sampled
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["RLlibCallback", "as_hook"]


class RLlibCallback:
    """Base class for callbacks written for RLlib. Pass them to a runner as `hooks`, and override the methods you need.

    All arguments are passed by name: `episode`, `env_runner` (a `CallbackRunner`), `metrics_logger` (the runner's),
    `env` (its `envs[env_index]` is the environment, if environments live in this process), `env_index`, and `rl_module`
    (the runner's policy, or policies by module id). The episode is the chunk since the last `sample`. Only its
    `custom_data` may be written to.

    `on_algorithm_init`, `on_train_result`, `on_evaluate_start` and `on_evaluate_end` are called by a trainer of
    `episode_learners` that has the same object among its `hooks`. Without a trainer, call them in your own loop.

    Attributes:
        config: the value of `env_runner.config`, for callbacks that read settings from that attribute.
    """

    config: Any = None

    def on_environment_created(self, **arguments: Any) -> None:
        """Handle the creation of the environments. A runner calls this method once, before its first episode starts.

        Args:
            arguments: `env_runner`, `metrics_logger`, `env` and `env_context`.
        """

    def on_episode_start(self, **arguments: Any) -> None:
        """Handle the start of an episode, after the reset. The episode has no step yet."""

    def on_episode_step(self, **arguments: Any) -> None:
        """Handle one step of one environment. `episode` contains the step already."""

    def on_episode_end(self, **arguments: Any) -> None:
        """Handle the end of an episode."""

    def on_sample_end(self, **arguments: Any) -> None:
        """Handle the end of a call of the runner's `sample`.

        Args:
            arguments: `env_runner`, `metrics_logger`, and `samples`, the list of the returned episodes, whose
                `custom_data` may be written to. After `sample_into` the list is empty.
        """

    def on_algorithm_init(self, **arguments: Any) -> None:
        """Handle the start of training, before the first sample.

        Args:
            arguments: `algorithm` and `metrics_logger`. A trainer's `algorithm` has `get_module`, `add_module`,
                `remove_module`, `set_state` (of weights), `env_runner`, `env_runner_group.foreach_env_runner`, `config`
                (of this callback), `metrics` and `iteration`.
        """

    def on_train_result(self, **arguments: Any) -> None:
        """Handle the metrics after an update of the policy.

        Args:
            arguments: `algorithm`, `metrics_logger`, and `result`: a dict with "training_iteration",
                "num_env_steps_sampled_lifetime", "env_runners" (the runner's metrics) and "learners" (metrics by
                module). A trainer logs the numbers that are added to it.
        """

    def on_evaluate_start(self, **arguments: Any) -> None:
        """Handle the start of an evaluation of the policy. The arguments are `algorithm` and `metrics_logger`."""

    def on_evaluate_end(self, **arguments: Any) -> None:
        """Handle the end of an evaluation of the policy.
        The arguments are `algorithm`, `metrics_logger` and `evaluation_metrics`.
        """


class CallbackRunner:
    """Wrapper of a runner that is passed to RLlib callbacks as `env_runner`.
    It adds the attributes of RLlib's env runners.

    Args:
        runner: the runner. Other attributes are read from it and set on it.
        callback: the callback with the `config`.
    """

    def __init__(self, runner: Runner, callback: RLlibCallback) -> None:
        vars(self).update(runner=runner, callback=callback)

    @property
    def config(self) -> Any:
        """Configuration for callbacks: the `config` attribute of the `RLlibCallback`."""
        return self.callback.config

    @property
    def metrics(self) -> Any:
        """Metrics logger of the runner, under RLlib's attribute name."""
        return self.runner.metrics_logger

    @property
    def module(self) -> Any:
        """Policy of a single-agent runner, or the policies of a multi-agent runner by module id."""
        return getattr(self.runner, "policies", None) or getattr(self.runner, "policy", None)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["runner"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.runner, name, value)


class CallbackHook:
    """Adapter that lets a runner call the methods of an `RLlibCallback` as hooks.

    The adapter has only the hook methods that the callback overrides, so that other events cost nothing.
    """

    def __init__(self, callback: RLlibCallback) -> None:
        self.callback = callback
        self._last_steps: dict[int, tuple[Any, int]] = {}  # by environment: id and time of the last reported step
        self._is_known = False  # `on_environment_created` was called
        for name in ("on_episode_start", "on_episode_end", "on_sample_end"):
            if self._overrides(name):
                setattr(self, name, getattr(self, f"_call_{name[3:]}"))
        if self._overrides("on_episode_step"):
            self.on_step = self._call_episode_steps
        if self._overrides("on_environment_created"):
            self.on_episode_start = self._call_episode_start

    def _overrides(self, name: str) -> bool:
        """Return True if the user's callback class overrides the method, so that it must be called."""
        return getattr(type(self.callback), name) is not getattr(RLlibCallback, name)

    def _call_episode_start(self, runner: Runner, env: int, episode: SingleAgentEpisode | MultiAgentEpisode) -> None:
        """Call `on_episode_start`, and before the first episode `on_environment_created`."""
        if not self._is_known:
            self._is_known = True
            self.callback.on_environment_created(env_context={}, **self._arguments(runner))
        self.callback.on_episode_start(episode=episode, env_index=env, **self._arguments(runner))

    def _call_episode_steps(self, runner: Runner) -> None:
        """Call `on_episode_step` for each ongoing episode that has a step more than at the last call."""
        for env, episode in enumerate(runner.episodes):
            now = episode.id_, episode.env_t if isinstance(episode, MultiAgentEpisode) else episode.t
            if now[1] and self._last_steps.get(env) != now:  # not a reset, and not reported before
                self._last_steps[env] = now
                self.callback.on_episode_step(episode=episode, env_index=env, **self._arguments(runner))

    def _call_episode_end(self, runner: Runner, env: int, episode: SingleAgentEpisode | MultiAgentEpisode) -> None:
        self.callback.on_episode_end(episode=episode, env_index=env, prev_episode_chunks=[], **self._arguments(runner))

    def _call_sample_end(self, runner: Runner, sampled: Sampled) -> EpisodePack | None:
        """Call the callback's `on_sample_end` with the sampled episodes, and return a pack with the written
        `custom_data`.

        Returns:
            The pack with the `custom_data`. None if no episode has `custom_data`, or if `sampled` is not a pack.
        """
        if not isinstance(sampled, EpisodePack):
            samples = sampled if isinstance(sampled, list) else []
            self.callback.on_sample_end(samples=samples, **self._arguments(runner))
            return None
        editable = EditableEpisodes(sampled)
        samples = list(editable)
        self.callback.on_sample_end(samples=samples, **self._arguments(runner))
        check_unwritten(editable)
        custom_data = [episode.custom_data for episode in samples]
        return sampled.replace(custom_data=custom_data) if any(custom_data) else None

    def _arguments(self, runner: Any) -> dict[str, Any]:
        """Return the keyword arguments that RLlib passes to callbacks: `env_runner`,
        `metrics_logger`, `env` and `rl_module`.
        """
        env = getattr(runner, "env", None)
        if env is None:
            env = SimpleNamespace(envs=[each.env for each in runner.envs])
        env_runner = CallbackRunner(runner, self.callback)
        return {
            "env_runner": env_runner,
            "metrics_logger": runner.metrics_logger,
            "env": env,
            "rl_module": env_runner.module,
        }


def check_unwritten(episodes: EditableEpisodes) -> None:
    """Raise `InvalidArgument` if a hook changed anything in the episodes other than their `custom_data`."""
    if episodes.changed:
        raise InvalidArgument(
            "a hook changed an episode that is being recorded, and this change would be lost; write only into the dict "
            "custom_data, without replacing the dict. To change what is stored, use an ObservationPreprocessor; to "
            "shape rewards, use a connector of the learner pipeline"
        )


def as_hook(hook: object) -> Any:
    """Return a runner hook that calls an RLlib callback (an object or class).
    An object that is a hook already is returned unchanged.

    Raises:
        WrongType: `hook` is another class, or an object without any method of `Hook`.
    """
    if isinstance(hook, type) and issubclass(hook, RLlibCallback):
        hook = hook()
    if isinstance(hook, type):
        raise WrongType(f"hooks are objects, and {hook.__name__} is a class: give {hook.__name__}()")
    if isinstance(hook, RLlibCallback):
        return CallbackHook(hook)
    if not any(callable(getattr(hook, name, None)) for name in _CALLS):
        raise WrongType(f"hooks: {hook!r} has none of the methods {', '.join(_CALLS)}; give an object that has one")
    return hook


_CALLS = ("on_episode_start", "on_step", "on_episode_end", "on_sample_end")
