"""How vector environments begin again after an ending, and where their infos keep the last observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from episodes.errors import InvalidArgument, TrackMismatch
from episodes.tracks import nested


def checked_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """The autoreset mode itself; `InvalidArgument` lists the known ones."""
    try:
        return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
    except ValueError:
        known = ", ".join(repr(known.value) for known in AutoresetMode)
        raise InvalidArgument(f"autoreset mode {mode!r} is not known; there are {known}") from None


def final_observations_of(infos: Mapping[str, Any], envs: np.ndarray) -> Any:
    """The true last observations, nested arrays [k, ...], of the k environments, out of a vector info.

    `infos["final_obs"]` is an object array with holes, or dense: (nested) arrays [N, ...].
    """
    given = infos.get("final_obs")
    if given is None:
        raise TrackMismatch(
            f"environments {envs.tolist()} ended with same-step autoreset, and infos has no 'final_obs' (it has "
            f"{list(infos)}): their last observations are lost; pass final_observations, or another autoreset_mode"
        )
    if not isinstance(given, np.ndarray) or given.dtype != object:
        return nested.take(nested.map_leaves(np.asarray, given), envs)
    items = [given[env] for env in envs.tolist()]
    missing = [env for env, item in zip(envs.tolist(), items, strict=True) if item is None]
    if missing:
        raise TrackMismatch(f"environments {missing} ended, and infos['final_obs'] has None for them")
    return nested.stack(items)
