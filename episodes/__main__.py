"""`python -m episodes`: the `episodes` command."""

from __future__ import annotations

from episodes.command import main

if __name__ == "__main__":
    main()
