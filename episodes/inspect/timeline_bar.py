"""Bar above the plots of an episode that shows its lookback, reset observation and ending."""

from __future__ import annotations

from markupsafe import Markup

from episodes.facts.ending import Ending
from episodes.inspect.colours import ENDINGS, colour
from episodes.inspect.sparklines import Axis

_BAR = f'stroke="{ENDINGS["truncated"]}" stroke-width="3"/>'
_TRUNCATED = f'<path class="ep-truncated" d="M-4 2V18M1 2V18" {_BAR}'
_TERMINATED = f'<rect class="ep-terminated" x="-6" y="4" width="12" height="12" rx="2" fill="{ENDINGS["terminated"]}"/>'
ENDS = {
    Ending.TERMINATED: _TERMINATED,
    Ending.TRUNCATED: _TRUNCATED,
    Ending.BOTH: _TERMINATED + f'<path class="ep-truncated" d="M-10 1V19" {_BAR}',
    Ending.OPEN: '<path d="M-6 4L2 10L-6 16" fill="none" stroke="currentColor" stroke-width="2"/>',
}
"""Mark at the last observation: a square (terminated), two bars (truncated), both, or an arrow (ongoing or cut)."""


def rail(axis: Axis, begins_at: int, ending: Ending) -> Markup:
    """Return an SVG bar with the timeline of an episode: lookback, reset observation, steps and ending.

    Args:
        begins_at: the env step of the observation at position 0 of the axis. The reset observation is at env step 0.
    """
    span = max(axis.span, 1)
    before, end = 100 * axis.lookback / span, 100 if axis.span else 0
    parts = [f'<line class="ep-line" x1="{before:.2f}%" x2="{end}%" y1="10" y2="10" stroke="currentColor"/>']
    if axis.lookback:
        parts.append(
            f'<rect class="ep-before" width="{before:.2f}%" height="20" fill="#888" fill-opacity=".12"/>'
            f'<line x1="0" x2="{before:.2f}%" y1="10" y2="10" stroke="currentColor" stroke-dasharray="3 3"/>'
            f'<line x1="{before:.2f}%" x2="{before:.2f}%" y1="0" y2="20" stroke="currentColor"/>'
        )
    if begins_at > 0:
        parts.append('<path d="M5 4L-1 10L5 16" fill="none" stroke="currentColor" stroke-width="2"/>')
    elif -begins_at <= axis.span:
        place = 100 * -begins_at / span if axis.span else 0
        parts.append(
            f'<circle class="ep-reset" cx="{place:.2f}%" cy="10" r="5" fill="none" stroke="{colour("observations")}" '
            'stroke-width="2"/>'
        )
    mark = "100%" if axis.span else "20"  # beside the reset observation where there is no step
    if axis.span or ending.is_done:
        parts.append(f'<svg x="{mark}" overflow="visible">{ENDS[ending]}</svg>')
    return Markup(f'<svg class="ep-rail" width="480" height="20" overflow="visible" role="img">{"".join(parts)}</svg>')
