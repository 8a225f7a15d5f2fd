"""`Prefetch`: a thread that samples batches and moves them to the device while the learner computes."""

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
    """Endless iterator over batches from `draw`, which a thread prepares in advance. Close it, or use it in a `with`.

    A thread calls `draw` up to `depth` batches ahead. A batch may thus be older than the newest steps and priorities.
    Other threads may add steps and set priorities meanwhile, because each call of a buffer is atomic. An error in
    `draw` is raised by the next call that needs a batch, and ends the iteration.

        with Prefetch.of(buffer, 256, device="cuda", n_step=3) as batches:
            for batch in itertools.islice(batches, 10_000):
                errors = learn(batch)
                buffer.update_priorities(batch.indices, errors)

    Args:
        draw: function that returns a `Batch`.
        device: the device for numeric columns, which become tensors as in `NumpyToTensor`. For CUDA they are copied
            once from page-locked memory, on a separate stream. `indices` stay numpy arrays. None moves nothing.
        depth: number of batches that are kept ready, at least 1.
    """

    def __init__(self, draw: Callable[[], Batch], *, device: str | torch.device | None = None, depth: int = 2) -> None:
        if type(depth) is not int or depth < 1:
            raise InvalidArgument(f"depth={depth!r}: give an int, at least 1")
        move = None if device is None else _Mover(torch.device(device))
        self._ready = _Ready(depth)
        # The thread holds no reference to this object, so that an unclosed iterator can be garbage-collected.
        self._thread = threading.Thread(target=_fill, args=(self._ready, draw, move), name="prefetch", daemon=True)
        self._forget = weakref.finalize(self, self._ready.stop)
        self._thread.start()

    @classmethod
    def of(
        cls, buffer: Any, n: int, *, device: str | torch.device | None = None, depth: int = 2, **options: Any
    ) -> Self:
        """Return an iterator over batches of `n` transitions, `buffer.sample(n, **options)`.

        It is not a method of the buffer, because `episodes` does not import torch.
        """
        return cls(lambda: buffer.sample(n, **options), device=device, depth=depth)

    def __next__(self) -> Batch:
        """Return the next batch. Block until it is ready."""
        batch, arrived = self._ready.take()
        if arrived is not None:
            arrived(batch)
        return batch

    def close(self) -> None:
        """Stop the thread and drop the prepared batches. Closing twice is allowed."""
        self._forget()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Ready:
    """Thread-safe queue of at most `depth` prepared batches, or the error that ended their preparation."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._changed = threading.Condition()
        self._batches: deque[tuple[Batch, Callable[[Batch], None] | None]] = deque()
        self._error: BaseException | None = None
        self._stopped = False

    def wait_for_room(self) -> bool:
        """Block until the queue has space. Return False if it was stopped meanwhile."""
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
    """Sample batches, move them to the device and enqueue them, until the queue is stopped. The thread runs this."""
    try:
        while ready.wait_for_room():
            batch = draw()
            ready.put(*((batch, None) if move is None else move(batch)))
    except BaseException as error:
        ready.fail(error)


class _Mover:
    """Function that copies batches to a device, on CUDA in a separate stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._to_tensors = NumpyToTensor(device=device).to_tensors
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, batch: Batch) -> tuple[Batch, Callable[[Batch], None] | None]:
        """Return the batch on the device, and a function to call before use, or None on the CPU."""
        columns = dict(batch.items())
        indices = {name: columns.pop(name) for name in (_INDICES,) if name in columns}
        if self._stream is None:
            return batch.with_columns({**self._to_tensors(columns), **indices}), None
        with torch.cuda.stream(self._stream):
            moved = self._to_tensors(columns)
            copied = torch.cuda.Event()
            copied.record()
        return batch.with_columns({**moved, **indices}), lambda moved_batch: self._hand_over(moved_batch, copied)

    def _hand_over(self, batch: Batch, copied: Any) -> None:
        """Make the current stream wait for the copy, and keep the memory while that stream uses the batch."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(copied)
        for leaf in nested.leaves(dict(batch.items())):
            if isinstance(leaf, torch.Tensor):
                leaf.record_stream(stream)
