"""Calls RLlib's callbacks from the runners of this library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.rllib.callbacks.callbacks import RLlibCallback

from episode_runners.callbacks import CallbackHook
from episode_runners.callbacks import RLlibCallback as OurCallback
from episode_runners.rllib.episode_counts import EpisodeCounts

if TYPE_CHECKING:
    from episode_runners.rllib.env_runners import EpisodesRunner

__all__ = ["hooks_of"]

_EVENTS = {
    "on_episode_start": ("on_episode_created", "on_episode_start"),
    "on_episode_step": ("on_episode_step",),
    "on_episode_end": ("on_episode_end",),
}


def hooks_of(env_runner: EpisodesRunner, callbacks: list[Any], counts: EpisodeCounts) -> list[CallbackHook]:
    """Return a list with the runner hook that calls an RLlib env runner's callbacks,
    or [] if no callback handles episodes.

    Args:
        env_runner: the env runner of RLlib.
        callbacks: its callback objects. Callback functions are read from its config.
        counts: store of the earlier chunks of episodes.
    """
    handled = {event for events in _EVENTS.values() for event in events if _calls(env_runner, callbacks, event)}
    if not handled:
        return []
    counts.keeps_chunks = "on_episode_end" in handled
    return [EventHook(env_runner, EventCaller(env_runner, callbacks, counts), handled)]


def _calls(env_runner: EpisodesRunner, callbacks: list[Any], event: str) -> list[Any]:
    """Return all callback methods and functions of an RLlib env runner that handle an event."""
    methods = [
        getattr(callback, event)
        for callback in callbacks
        if getattr(type(callback), event) is not getattr(RLlibCallback, event)
    ]
    functions = getattr(env_runner.config, f"callbacks_{event}", None) or []
    return methods + (list(functions) if isinstance(functions, list | tuple) else [functions])


class EventHook(CallbackHook):
    """Runner hook that calls RLlib's callbacks, with RLlib's env runner and this library's episodes.

    Args:
        env_runner: the env runner of RLlib.
        callback: caller of its callbacks.
        handled: names of the events that a callback handles.
    """

    def __init__(self, env_runner: EpisodesRunner, callback: EventCaller, handled: set[str]) -> None:
        self._env_runner, self._handled = env_runner, handled
        super().__init__(callback)

    def _overrides(self, name: str) -> bool:
        return any(event in self._handled for event in _EVENTS.get(name, ()))

    def _arguments(self, runner: object) -> dict[str, Any]:
        """Return the arguments that all of RLlib's callbacks on episodes have."""
        env_runner = self._env_runner
        return {
            "env_runner": env_runner,
            "metrics_logger": env_runner.metrics,
            "env": env_runner.env,
            "rl_module": env_runner.module,
        }


class EventCaller(OurCallback):
    """Callback that passes each event to all callbacks of an RLlib env runner.

    Args:
        env_runner: the env runner of RLlib.
        callbacks: its callback objects.
        counts: store of the earlier chunks of episodes.
    """

    def __init__(self, env_runner: EpisodesRunner, callbacks: list[Any], counts: EpisodeCounts) -> None:
        self._env_runner, self._callbacks, self._counts = env_runner, callbacks, counts

    def on_episode_start(self, **arguments: object) -> None:
        for event in _EVENTS["on_episode_start"]:
            self._call(event, arguments)

    def on_episode_step(self, **arguments: object) -> None:
        self._call("on_episode_step", arguments)

    def on_episode_end(self, **arguments: Any) -> None:
        chunks = self._counts.chunks_before(arguments["episode"].id_)
        self._call("on_episode_end", {**arguments, "prev_episode_chunks": chunks})

    def _call(self, event: str, arguments: dict[str, Any]) -> None:
        for call in _calls(self._env_runner, self._callbacks, event):
            call(**arguments)
