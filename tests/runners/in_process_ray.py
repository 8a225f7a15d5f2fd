"""Replacement for Ray with actors in this process, which a test can kill or let fail."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

__all__ = ["InProcessRay"]


class ActorDied(Exception):
    """Raised by requests of a dead actor."""


class TaskFailed(Exception):
    """Raised by requests that failed in the actor."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class TimedOut(Exception):
    """Never raised, because actors reply at once."""


class _Errors:
    RayActorError, ObjectLostError, RayTaskError, GetTimeoutError = ActorDied, ActorDied, TaskFailed, TimedOut


class _Ref:
    """Value or error of a request."""

    def __init__(self, actor: Actor | None = None) -> None:
        self.actor, self.is_done, self.value = actor, False, b""
        self.error: Exception | None = None
        self.note: Any = None

    def finish(self, value: Any) -> _Ref:
        """Store a copy of the value."""
        self.is_done, self.value = True, pickle.dumps(value)
        return self


class Actor:
    """Object with a queue of requests. `note` is called with the object after each request."""

    def __init__(self, made: Any, note: Callable[[Any], Any]) -> None:
        self.made, self.note, self.is_alive = made, note, True
        self.queue: deque[tuple[_Ref, Callable[[], Any]]] = deque()

    def __getattr__(self, name: str) -> Any:
        return _Method(self, name)

    def run_next(self) -> None:
        """Run the oldest request."""
        ref, call = self.queue.popleft()
        try:
            ref.finish(call())
            ref.note = self.note(self.made)
        except Exception as error:
            ref.is_done, ref.error = True, TaskFailed(pickle.loads(pickle.dumps(error)))
            self.note(self.made)

    def die(self) -> None:
        """Fail all present and later requests."""
        self.is_alive = False
        for ref, _ in self.queue:
            ref.is_done, ref.error = True, ActorDied("it was killed")
        self.queue.clear()


class _Method:
    def __init__(self, actor: Actor, name: str) -> None:
        self.actor, self.name = actor, name

    def remote(self, *arguments: Any) -> _Ref:
        """Add a request to the queue."""
        ref = _Ref(self.actor)
        if not self.actor.is_alive:
            ref.is_done, ref.error = True, ActorDied("it is dead")
        elif self.name == "__ray_ready__":
            ref.finish(True)
        else:
            expected = [value.value if isinstance(value, _Ref) else pickle.dumps(value) for value in arguments]
            self.actor.queue.append(
                (ref, lambda: getattr(self.actor.made, self.name)(*(pickle.loads(value) for value in expected)))
            )
        return ref


class _ActorClass:
    def __init__(self, note: Callable[[Any], Any], kind: type) -> None:
        self.note, self.kind = note, kind

    def remote(self, *arguments: Any) -> Actor:
        """Return an actor of the class."""
        return Actor(self.kind(*arguments), self.note)


class InProcessRay:
    """The part of the module `ray` that groups of runners use.

    Args:
        choose: returns which of `n` actors with requests runs next.
        note: returns a value for an actor's object after a request.
        answered: called with the noted value of a request when its result is read.
    """

    exceptions = _Errors

    def __init__(
        self, choose: Callable[[int], int], note: Callable[[Any], Any], answered: Callable[[Any], None]
    ) -> None:
        self.choose, self.note, self.answered = choose, note, answered

    def remote(self, **options: Any) -> Callable[[type], Any]:
        """Return a decorator for actor classes."""
        return partial(_ActorClass, self.note)

    def put(self, value: Any) -> _Ref:
        """Store a copy of the value."""
        return _Ref().finish(value)

    def wait(
        self, refs: Sequence[_Ref], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[_Ref], list[_Ref]]:
        """Run actors in any order until `num_returns` requests are done."""
        while len(done := [ref for ref in refs if ref.is_done]) < num_returns:
            working = [ref.actor for ref in refs if not ref.is_done and ref.actor is not None]
            working[self.choose(len(working))].run_next()
        return done[:num_returns], [ref for ref in refs if ref not in done[:num_returns]]

    def get(self, refs: Any, timeout: float | None = None) -> Any:
        """Return the value of a request, or of each in a list. Raise its error."""
        if isinstance(refs, list):
            return [self.get(ref) for ref in refs]
        self.wait([refs])
        if refs.error is not None:
            raise refs.error
        if refs.note is not None:
            self.answered(refs.note)
        return pickle.loads(refs.value)

    def kill(self, actor: Actor, no_restart: bool = True) -> None:
        """End an actor, so that its requests fail."""
        actor.die()
