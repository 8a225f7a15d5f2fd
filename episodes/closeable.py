"""`Closeable`: base class of objects with `close`, for use in `with` statements."""

from __future__ import annotations

from typing import Self

__all__ = ["Closeable"]


class Closeable:
    """Base class of objects with a `close` method, for use in `with` statements. `close` may be called repeatedly."""

    def close(self) -> None:
        """Release all resources."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
