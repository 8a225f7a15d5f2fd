"""`Closeable`: what is closed where its `with` statement ends."""

from __future__ import annotations

from typing import Self

__all__ = ["Closeable"]


class Closeable:
    """Has a `close`, which may be called again; a `with` statement calls it, whatever happens."""

    def close(self) -> None:
        """Let go of what is held."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
