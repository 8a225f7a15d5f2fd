"""Names of logged curves, which are the same as in Tianshou's dashboards."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["curves_of"]

_SCOPES = {"train": "training"}
_STEP_CURVE = "env_step"  # over which all curves are drawn, one of its own in each scope but "info"
_CURVE_NAMES = {
    "mean_return": "returns_stat/mean",
    "std_return": "returns_stat/std",
    "min_return": "returns_stat/min",
    "max_return": "returns_stat/max",
    "mean_length": "lens_stat/mean",
    "std_length": "lens_stat/std",
    "min_length": "lens_stat/min",
    "max_length": "lens_stat/max",
    "num_updates": "update_step",
    "num_episodes": "n_collected_episodes",
    "num_steps": "n_collected_steps",
    "seconds": "collect_time",
    "steps_per_second": "collect_speed",
}


def curves_of(scope: str, metrics: Mapping[str, float], step: int) -> dict[str, float]:
    """Return the metrics of a scope, such as "train", under the names of curves in TensorBoard and W&B, together with
    the curve of environment steps.

    >>> curves_of("test", {"mean_return": 9.5}, 100)
    {'test/env_step': 100, 'test/returns_stat/mean': 9.5}
    """
    shown = _SCOPES.get(scope, scope)
    steps = {} if scope == "info" else {f"{shown}/{_STEP_CURVE}": step}
    return {**steps, **{f"{shown}/{_CURVE_NAMES.get(name, name)}": value for name, value in metrics.items()}}
