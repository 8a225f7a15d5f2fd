"""Turns at an environment: which runner or wrapper may continue the episode that is going on in it.

An environment object has one state. If a runner samples from it, and then another runner steps it, the state is no
longer the one that the first runner has seen last. An episode of the first runner must not continue there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

from gymnasium.vector import SyncVectorEnv

from episodes.errors import EpisodeStateError

__all__ = ["EnvTurns"]

_MOST_LAYERS = 50  # of wrappers around one environment


class EnvTurns:
    """Turns of one user of environments, which is a runner, a recording wrapper or a check.

    A user loses its episodes when another one begins a turn at an environment that both hold, in whatever wrappers.
    Calls of `reset` and `step` by hand are not noticed.

    A wrapper that records takes its turns inside those of a runner whose environment it is:

        user A, a runner     begin ----------------------------- end
        user R, a wrapper          begin - end   resume - end           R continues, and A too
        user B, a runner                                            begin --- end   then A and R have lost

    Args:
        envs: the environments, with their wrappers.
        is_wrapper: whether the user is the only environment in `envs`, and may have turns inside those of others.
    """

    def __init__(self, envs: Sequence[Any], *, is_wrapper: bool = False) -> None:
        self._envs, self._is_wrapper = envs, is_wrapper
        self._innermost: list[Any] = []  # kept, so that their ids stay theirs
        self._is_mine = False
        self._has_lost = False
        self._in_use = False
        self._around: EnvTurns | None = None  # of the user within whose turn this one began

    def begin(self) -> bool:
        """Begin a turn, in which the environments are reset or stepped until `end`.

        Return True if nobody else has begun one since the last turn. False: the environments must be reset.

        Raises:
            EpisodeStateError: another user is in its turn. Nothing has changed.
        """
        if self._is_mine and (self._around is None or self._around._in_use):
            self._in_use = True
            return True
        if not self._innermost:
            self._innermost = [env for env in _layers(self._envs) if not list(_below(env))]
        others = {id(turns): turns for env in self._innermost if (turns := _newest.get(id(env))) not in (None, self)}
        around = next((turns for turns in others.values() if turns._in_use and turns._contains(self)), None)
        losing = [turns for other in others.values() for turns in other._chain() if other is not around]
        if any(turns._in_use for turns in losing):
            raise EpisodeStateError(
                "this environment object is in use by a runner or wrapper that is sampling or stepping (a hook, a "
                "policy or another thread began here); use another environment object"
            )
        for turns in losing:
            turns._is_mine, turns._has_lost = False, True
        _newest.update((id(env), self) for env in self._innermost)
        self._is_mine, self._has_lost, self._in_use, self._around = True, False, True, around
        return False

    def resume(self) -> None:
        """Begin a turn that continues the episodes.

        Raises:
            EpisodeStateError: another user has had a turn in between, or is in its turn.
        """
        if self._has_lost:
            raise EpisodeStateError(
                "step: this environment object was reset or stepped by a runner, a wrapper or a check since the last "
                "step, and the episode cannot continue; call reset(), or give each its own environment"
            )
        self.begin()

    def end(self) -> None:
        """End the turn."""
        self._in_use = False

    def _contains(self, inner: EnvTurns) -> bool:
        """Return True if another user is a wrapper inside the environments of this user."""
        return inner._is_wrapper and any(layer is inner._envs[0] for layer in _layers(self._envs))

    def _chain(self) -> Iterator[EnvTurns]:
        """Yield this user, and those within whose turns it began."""
        turns: EnvTurns | None = self
        while turns is not None:
            yield turns
            turns = turns._around


_newest: WeakValueDictionary[int, EnvTurns] = WeakValueDictionary()  # the last user of an environment, by its id


def _layers(envs: Sequence[Any]) -> Iterator[Any]:
    """Yield the environments, and everything that they wrap."""
    for _ in range(_MOST_LAYERS):
        yield from envs
        envs = [inner for env in envs for inner in _below(env)]


def _below(env: object) -> Iterator[Any]:
    """Yield what `env` wraps: environments of a `SyncVectorEnv`, or one, or none."""
    if isinstance(env, SyncVectorEnv):
        yield from env.envs
        return
    for name in ("env", "unwrapped"):
        inner = getattr(env, name, None)
        if inner is not env and not isinstance(inner, type) and hasattr(inner, "step") and hasattr(inner, "reset"):
            yield inner
            return
