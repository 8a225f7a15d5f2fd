"""Entry point of `python -m episodes`, which runs the `episodes` command."""

from __future__ import annotations

from episodes.command import main

if __name__ == "__main__":
    main()
