"""`Hook`: what happens beside the sampling."""

from __future__ import annotations

from typing import Any

from episodes.single_agent import SingleAgentEpisode

__all__ = ["Hook"]


class Hook:
    """Called by a runner while it samples. Override what you need; the rest costs nothing."""

    def on_step(self, runner: Any) -> None:
        """After each recorded vector step. The ongoing episodes are `runner.episodes`."""

    def on_episode_end(self, runner: Any, episode: SingleAgentEpisode) -> None:
        """After the step that ended an episode: its chunk since the last `sample`, its true last observation in it."""


def calls_of(hooks: Any, name: str) -> tuple[Any, ...]:
    """The hooks' methods of that name that do something."""
    methods = [getattr(hook, name, None) for hook in hooks]
    empty = getattr(Hook, name)
    return tuple(method for method in methods if method and getattr(method, "__func__", method) is not empty)
