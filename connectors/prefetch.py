"""`Prefetch`: batches of a replay buffer, drawn and moved to the device by a thread while the learner computes."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch

from connectors.tensors import NumpyToTensor
from episodes import Batch
from episodes.errors import EpisodeStateError, InvalidArgument
from episodes.tracks import nested

__all__ = ["Prefetch"]

_INDICES = "indices"


class Prefetch(Iterator[Batch]):
    """An endless iterator over the batches that `draw` gives; use it as a context manager, or close it.

    A thread calls `draw`, up to `depth` batches ahead, so a batch may have been drawn before the newest steps were
    added and the newest priorities set. Those may be set meanwhile, by any thread: each call of a buffer holds its
    lock. What `draw` raises is raised where the batch is asked for, and is the end.

        with Prefetch.of(buffer, 256, device="cuda", n_step=3) as batches:
            for batch in itertools.islice(batches, 10_000):
                errors = learn(batch)
                buffer.update_priorities(batch.indices, errors)

    Args:
        draw: gives a `Batch`.
        device: numeric columns become tensors there, as `NumpyToTensor` makes them; for CUDA by one copy from
            page-locked memory, on a stream of its own. `indices` stay numpy's, for `update_priorities`. With None,
            nothing is moved.
        depth: so many batches are kept ready, at least 1.
    """

    def __init__(self, draw: Callable[[], Batch], *, device: str | torch.device | None = None, depth: int = 2) -> None:
        if type(depth) is not int or depth < 1:
            raise InvalidArgument(f"depth={depth!r}: give an int, at least 1")
        move = None if device is None else _Mover(torch.device(device))
        self._ready = _Ready(depth)
        # The thread knows nothing of this object, which may be forgotten without being closed.
        self._thread = threading.Thread(target=_fill, args=(self._ready, draw, move), name="prefetch", daemon=True)
        self._forget = weakref.finalize(self, self._ready.stop)
        self._thread.start()

    @classmethod
    def of(
        cls, buffer: Any, n: int, *, device: str | torch.device | None = None, depth: int = 2, **options: Any
    ) -> Self:
        """Prefetched draws of `n` transitions: `buffer.sample(n, **options)`, again and again.

        It is not a method of the buffer, since what lies in `episodes` never imports torch.
        """
        return cls(lambda: buffer.sample(n, **options), device=device, depth=depth)

    def __next__(self) -> Batch:
        """The next batch, as soon as it is there."""
        batch, arrived = self._ready.take()
        if arrived is not None:
            arrived(batch)
        return batch

    def close(self) -> None:
        """Stop the thread, and wait until it has; batches that are ready are dropped. Closing again does nothing."""
        self._forget()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Ready:
    """Batches that wait, at most `depth`; or the error that ended them."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._changed = threading.Condition()
        self._batches: deque[tuple[Batch, Callable[[Batch], None] | None]] = deque()
        self._error: BaseException | None = None
        self._stopped = False

    def wait_for_room(self) -> bool:
        """Wait until a batch is wanted; False when none is, ever again."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._batches) < self._depth)
            return not self._stopped

    def put(self, batch: Batch, arrived: Callable[[Batch], None] | None) -> None:
        with self._changed:
            if not self._stopped:
                self._batches.append((batch, arrived))
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def take(self) -> tuple[Batch, Callable[[Batch], None] | None]:
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._error or self._stopped)
            if self._stopped:
                raise EpisodeStateError("the batches were closed; make another Prefetch")
            if not self._batches and self._error is not None:
                raise self._error
            self._changed.notify_all()
            return self._batches.popleft()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._batches.clear()
            self._changed.notify_all()


def _fill(ready: _Ready, draw: Callable[[], Batch], move: _Mover | None) -> None:
    """The thread: draw, move, put, until nobody wants more."""
    try:
        while ready.wait_for_room():
            batch = draw()
            ready.put(*((batch, None) if move is None else move(batch)))
    except BaseException as error:
        ready.fail(error)


class _Mover:
    """Moves batches to a device; on CUDA on a stream of its own, beside what the learner computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._to_tensors = NumpyToTensor(device=device).to_tensors
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, batch: Batch) -> tuple[Batch, Callable[[Batch], None] | None]:
        """The moved batch, and what its taker has to do first."""
        columns = dict(batch.items())
        indices = {name: columns.pop(name) for name in (_INDICES,) if name in columns}
        if self._stream is None:
            return batch.with_columns({**self._to_tensors(columns), **indices}), None
        with torch.cuda.stream(self._stream):
            moved = self._to_tensors(columns)
            copied = torch.cuda.Event()
            copied.record()
        return batch.with_columns({**moved, **indices}), lambda taken: self._hand_over(taken, copied)

    def _hand_over(self, batch: Batch, copied: Any) -> None:
        """Let the taker's stream wait for the copy; its memory is given back only when that stream is through."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(copied)
        for leaf in nested.leaves(dict(batch.items())):
            if isinstance(leaf, torch.Tensor):
                leaf.record_stream(stream)
