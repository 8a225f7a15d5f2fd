"""Runners as context managers."""

from __future__ import annotations

from typing import Self


class Closing:
    """Closes itself at the end of a `with` block."""

    def close(self) -> None:
        """Close the environments; may be called again."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
