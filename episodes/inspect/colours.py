"""Colours of plots and pages: one for each kind of time series, such as rewards, one for each ending, and one for
defects, which no other thing has.
"""

from __future__ import annotations

HUES = {
    "observations": (0x25, 0x63, 0xEB),
    "infos": (0x64, 0x74, 0x8B),
    "actions": (0x16, 0xA3, 0x4A),
    "rewards": (0xD9, 0x77, 0x06),
    "extra": (0x93, 0x33, 0xEA),
}
"""The colour of each kind of track, in all pictures, plots and pages."""

ENDINGS = {"terminated": "#0f766e", "truncated": "#b45309", "cut": "#64748b", "ongoing": "#64748b"}
"""The colour of each ending."""

DEFECT = "#dc2626"
"""The colour of NaN, infinities and errors, and of nothing else."""


def colour(hue: str) -> str:
    """Return the CSS colour of a kind of time series. `hue` names the kind, such as "rewards"."""
    return "#{:02x}{:02x}{:02x}".format(*HUES[hue])
