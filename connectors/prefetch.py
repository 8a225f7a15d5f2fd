"""`Prefetch`: iterator over batches that a background thread samples and moves to the device in advance."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

import torch

from connectors.tensors import NumpyToTensor
from episodes import Batch
from episodes.closeable import Closeable
from episodes.errors import EpisodeStateError
from episodes.tracks import nested
from episodes.tracks.validation import checked_count

if TYPE_CHECKING:
    from episodes.replay import EpisodeReplayBuffer

__all__ = ["Prefetch"]

_INDICES = "indices"


class Prefetch(Iterator[Batch], Closeable):
    """Endless iterator over batches that a background thread samples and moves to the device in advance. Close it, or
    use it in a `with`.

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

    Raises:
        InvalidArgument: `depth` is not an int of at least 1.
    """

    def __init__(self, draw: Callable[[], Batch], *, device: str | torch.device | None = None, depth: int = 2) -> None:
        checked_count("depth", depth)
        move = None if device is None else _DeviceCopier(torch.device(device))
        self._queue = _BatchQueue(depth)
        # The thread holds no reference to this object, so that an unclosed iterator can be garbage-collected.
        self._thread = threading.Thread(
            target=_fill_queue, args=(self._queue, draw, move), name="prefetch", daemon=True
        )
        self._stop = weakref.finalize(self, self._queue.stop)
        self._thread.start()

    @classmethod
    def of(
        cls,
        buffer: EpisodeReplayBuffer,
        n: int,
        *,
        device: str | torch.device | None = None,
        depth: int = 2,
        **options: Any,
    ) -> Self:
        """Return an iterator over batches sampled from a replay buffer in advance, each `buffer.sample(n, **options)`.

        It is a function of this class, not of the buffer, because `episodes` does not import torch.

        Raises:
            InvalidArgument: `depth` is not an int of at least 1.
        """
        return cls(lambda: buffer.sample(n, **options), device=device, depth=depth)

    def __next__(self) -> Batch:
        """Return the next batch. Block until the thread has prepared it.

        An error that `draw` raised in the thread is raised here.

        Raises:
            EpisodeStateError: the iterator was closed.
        """
        batch, before_use = self._queue.take()
        if before_use is not None:
            before_use(batch)
        return batch

    def close(self) -> None:
        """Stop the background thread, and drop the batches that it has prepared. Closing twice is allowed."""
        self._stop()
        if threading.current_thread() is not self._thread:
            self._thread.join()


class _BatchQueue:
    """Thread-safe queue of at most `depth` prepared batches. It also passes an error of the background thread to the
    reader.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._changed = threading.Condition()
        self._batches: deque[tuple[Batch, Callable[[Batch], None] | None]] = deque()
        self._error: BaseException | None = None
        self._stopped = False

    def wait_for_room(self) -> bool:
        """Block until the queue has space for another batch. Return False if the queue was stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._batches) < self._depth)
            return not self._stopped

    def put(self, batch: Batch, before_use: Callable[[Batch], None] | None) -> None:
        """Append a batch, with the function to call before the batch is used. A stopped queue drops the batch."""
        with self._changed:
            if not self._stopped:
                self._batches.append((batch, before_use))
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Store the error that ended the background thread, which `take` raises later."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def take(self) -> tuple[Batch, Callable[[Batch], None] | None]:
        """Remove and return the oldest batch, with its function `before_use`. Block while the queue is empty.

        Raises:
            EpisodeStateError: the queue was stopped.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._error or self._stopped)
            if self._stopped:
                raise EpisodeStateError("the batches were closed; make another Prefetch")
            if not self._batches and self._error is not None:
                raise self._error
            self._changed.notify_all()
            return self._batches.popleft()

    def stop(self) -> None:
        """Stop the queue: drop its batches, and wake up all threads that wait for it."""
        with self._changed:
            self._stopped = True
            self._batches.clear()
            self._changed.notify_all()


def _fill_queue(queue: _BatchQueue, draw: Callable[[], Batch], move: _DeviceCopier | None) -> None:
    """Sample batches, move them to the device and append them to the queue until it is stopped. The background thread
    runs this.
    """
    try:
        while queue.wait_for_room():
            batch = draw()
            queue.put(*((batch, None) if move is None else move(batch)))
    except BaseException as error:
        queue.fail(error)


class _DeviceCopier:
    """Function that copies a batch to a device, on CUDA in a separate stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._to_tensors = NumpyToTensor(device=device).to_tensors
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, batch: Batch) -> tuple[Batch, Callable[[Batch], None] | None]:
        """Return the batch with tensors on the device, and the function to call before its use (None without CUDA)."""
        columns = dict(batch.items())
        indices = {name: columns.pop(name) for name in (_INDICES,) if name in columns}
        if self._stream is None:
            return batch.with_columns({**self._to_tensors(columns), **indices}), None
        with torch.cuda.stream(self._stream):
            moved = self._to_tensors(columns)
            copied = torch.cuda.Event()
            copied.record()
        return batch.with_columns({**moved, **indices}), lambda moved_batch: self._wait_for_copy(moved_batch, copied)

    def _wait_for_copy(self, batch: Batch, copied: torch.cuda.Event) -> None:
        """Make the current CUDA stream wait until the batch is copied, and keep the batch's memory while the stream
        uses the batch.
        """
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(copied)
        for leaf in nested.leaves(dict(batch.items())):
            if isinstance(leaf, torch.Tensor):
                leaf.record_stream(stream)
