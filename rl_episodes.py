"""Check of the packages of rl-episodes: a user's own package of the same name may take the place of one.

Python searches the folder of the script, or the current folder, before installed packages. This module has a name that
users do not give, so each package imports it before the others.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

__all__ = ["check_packages"]

_HOME = Path(__file__).resolve().parent


def check_packages(*names: str) -> None:
    """Raise `ImportError` unless the packages `names` are those beside this file. They are located, not imported."""
    for name in names:
        places = _places(name)
        if _HOME / name not in places:
            found = places[0] if places else "nothing"
            raise ImportError(
                f"import {name}: Python finds {found} in place of the package {_HOME / name} of rl-episodes; rename "
                "yours, or move it out of the folder of the script and the current folder"
            )


def _places(name: str) -> list[Path]:
    """Return the folders of a package, or the file of a module, as Python finds it; [] if there is none."""
    spec = find_spec(name)
    if spec is None:
        return []
    return [Path(place).resolve() for place in spec.submodule_search_locations or [str(spec.origin)]]
