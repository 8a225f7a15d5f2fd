"""The names under which curves are shown: those that dashboards of Tianshou's users have."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["curves_of"]

_SCOPES = {"train": "training"}
_STEPS = {"train": "env_step", "test": "env_step", "update": "update_step"}
_NAMES = {
    "mean_return": "returns_stat/mean",
    "std_return": "returns_stat/std",
    "min_return": "returns_stat/min",
    "max_return": "returns_stat/max",
    "mean_length": "lens_stat/mean",
    "num_episodes": "n_collected_episodes",
    "num_steps": "n_collected_steps",
    "seconds": "collect_time",
    "steps_per_second": "collect_speed",
}


def curves_of(scope: str, metrics: Mapping[str, float], step: int) -> dict[str, float]:
    """The metrics of a scope by the names of their curves, and the step as a curve of its own.

    >>> curves_of("test", {"mean_return": 9.5}, 100)
    {'test/env_step': 100, 'test/returns_stat/mean': 9.5}
    """
    shown = _SCOPES.get(scope, scope)
    steps = {f"{shown}/{_STEPS[scope]}": step} if scope in _STEPS else {}
    return {**steps, **{f"{shown}/{_NAMES.get(name, name)}": value for name, value in metrics.items()}}
