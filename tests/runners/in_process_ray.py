"""A stand-in for Ray in which actors are objects of this process, and die or fail when a test says so."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

__all__ = ["InProcessRay"]


class ActorDied(Exception):
    """What a request of a dead actor raises."""


class TaskFailed(Exception):
    """What a request raises that failed in its actor."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class TimedOut(Exception):
    """Never raised: actors answer at once."""


class _Errors:
    RayActorError, ObjectLostError, RayTaskError, GetTimeoutError = ActorDied, ActorDied, TaskFailed, TimedOut


class _Ref:
    """A value, or an error, once it is there."""

    def __init__(self, actor: Actor | None = None) -> None:
        self.actor, self.is_done, self.value = actor, False, b""
        self.error: Exception | None = None
        self.note: Any = None

    def finish(self, value: Any) -> _Ref:
        """Hold a copy of the value from now on."""
        self.is_done, self.value = True, pickle.dumps(value)
        return self


class Actor:
    """An object behind a queue of requests; `note` is what is noted of each request that has not failed."""

    def __init__(self, made: Any, note: Callable[[Any], Any]) -> None:
        self.made, self.note, self.is_alive = made, note, True
        self.queue: deque[tuple[_Ref, Callable[[], Any]]] = deque()

    def __getattr__(self, name: str) -> Any:
        return _Method(self, name)

    def run_next(self) -> None:
        """Work on the oldest request."""
        ref, call = self.queue.popleft()
        try:
            ref.finish(call())
            ref.note = self.note(self.made)
        except Exception as error:
            ref.is_done, ref.error = True, TaskFailed(pickle.loads(pickle.dumps(error)))
            self.note(self.made)

    def die(self) -> None:
        """Answer nothing any more."""
        self.is_alive = False
        for ref, _ in self.queue:
            ref.is_done, ref.error = True, ActorDied("it was killed")
        self.queue.clear()


class _Method:
    def __init__(self, actor: Actor, name: str) -> None:
        self.actor, self.name = actor, name

    def remote(self, *arguments: Any) -> _Ref:
        """Put a request into the queue."""
        ref = _Ref(self.actor)
        if not self.actor.is_alive:
            ref.is_done, ref.error = True, ActorDied("it is dead")
        elif self.name == "__ray_ready__":
            ref.finish(True)
        else:
            given = [one.value if isinstance(one, _Ref) else pickle.dumps(one) for one in arguments]
            self.actor.queue.append(
                (ref, lambda: getattr(self.actor.made, self.name)(*(pickle.loads(one) for one in given)))
            )
        return ref


class _ActorClass:
    def __init__(self, note: Callable[[Any], Any], kind: type) -> None:
        self.note, self.kind = note, kind

    def remote(self, *arguments: Any) -> Actor:
        """An actor of the class."""
        return Actor(self.kind(*arguments), self.note)


class InProcessRay:
    """The part of the module `ray` that groups of runners use.

    Args:
        choose: which of so many actors that have work does some next.
        note: what is noted of an actor's object after a request.
        answered: is told what was noted of a request whose answer somebody gets.
    """

    exceptions = _Errors

    def __init__(
        self, choose: Callable[[int], int], note: Callable[[Any], Any], answered: Callable[[Any], None]
    ) -> None:
        self.choose, self.note, self.answered = choose, note, answered

    def remote(self, **options: Any) -> Callable[[type], Any]:
        """What makes a class one of actors."""
        return partial(_ActorClass, self.note)

    def put(self, value: Any) -> _Ref:
        """The value, kept as it is now."""
        return _Ref().finish(value)

    def wait(
        self, refs: Sequence[_Ref], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[_Ref], list[_Ref]]:
        """So many that are there; actors work, in any order, until they are."""
        while len(done := [ref for ref in refs if ref.is_done]) < num_returns:
            working = [ref.actor for ref in refs if not ref.is_done and ref.actor is not None]
            working[self.choose(len(working))].run_next()
        return done[:num_returns], [ref for ref in refs if ref not in done[:num_returns]]

    def get(self, refs: Any, timeout: float | None = None) -> Any:
        """The value, or those of a list; or the error."""
        if isinstance(refs, list):
            return [self.get(ref) for ref in refs]
        self.wait([refs])
        if refs.error is not None:
            raise refs.error
        if refs.note is not None:
            self.answered(refs.note)
        return pickle.loads(refs.value)

    def kill(self, actor: Actor, no_restart: bool = True) -> None:
        """End an actor: whoever waits for its answers gets an error."""
        actor.die()
