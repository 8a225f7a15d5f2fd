"""Notebook view of one agent's episode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from episodes.inspect import formatting
from episodes.inspect.cards.card import Card, excerpt, known, space_facts
from episodes.inspect.cards.rows import rows_of
from episodes.inspect.schema import place_in_episode, with_spaces
from episodes.inspect.series import of_tracks
from episodes.inspect.sparklines import Axis
from episodes.inspect.timeline_bar import rail

if TYPE_CHECKING:
    from episodes.multi_agent.timeline import Timeline
    from episodes.single_agent.episode import SingleAgentEpisode


def episode_card(
    episode: SingleAgentEpisode,
    share: int = 1,
    is_open: bool = True,
    kind: str | None = None,
    line: Timeline | None = None,
) -> Card:
    """Return the notebook card of a `SingleAgentEpisode`: timeline, arrays and metadata.

    Args:
        share: number of cards of this kind in one view, which share the space.
        is_open: whether the table of arrays is shown at once.
        kind: title of the card, by default the name of the class.
        line: timeline of the agent in a multi-agent episode.
    """
    tracks, facts = episode.tracks, episode.facts
    lookback = tracks.lookback
    axis = Axis(max(tracks.observations.total - 1, 0), lookback)
    begin = facts.t_started - lookback
    series = with_spaces(of_tracks(tracks), facts.observation_space, facts.action_space)

    rows, notes = rows_of(list(series), axis, share, place_in_episode(episode, line))
    headline = [formatting.counted(len(episode), "step"), f"return {formatting.number(episode.get_return())}"]
    if facts.t_started:
        headline.insert(1, f"from t={facts.t_started}")
    return Card(
        kind or type(episode).__name__,
        formatting.without_random_digits(formatting.clipped(facts.id_)),
        headline,
        formatting.endings(facts.ending, tracks.is_finished),
        [
            *known(
                lookback=lookback or None,
                agent=facts.agent_id,
                module=facts.module_id,
                of_episode=facts.multi_agent_episode_id,
                policy_versions=facts.policy_versions and facts.policy_versions.bounds,
            ),
            *space_facts(facts.observation_space, facts.action_space),
            *known(
                custom_data=excerpt(episode.custom_data),
                state=None if tracks.is_finished else "growing (lists)",
            ),
        ],
        f"t = {facts.t_started} … {facts.t_started + len(episode)}",
        rail(axis, begin, facts.ending) + _env_steps(line) if tracks.observations.total else None,
        rows=rows,
        notes=notes,
        is_open=is_open,
    )


def _env_steps(line: Timeline | None) -> Markup:
    """Return an axis with the env steps of up to three evenly spaced observations of an agent, empty if it has none."""
    if line is None or not len(line.observation_times):
        return Markup("")
    num = len(line.observation_times)
    count = next(count for count in (3, 2, 1) if count == 1 or (num - 1) % (count - 1) == 0)
    times = [int(line.observation_times[i]) for i in np.linspace(0, num - 1, count).round().astype(int).tolist()]
    labels = "</span><span>".join(f"{time:,}" for time in times)
    return Markup(f'<div class="ep-ends"><span>env step {labels}</span></div>')
