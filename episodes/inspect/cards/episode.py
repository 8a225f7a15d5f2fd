"""Notebook view of one agent's episode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from episodes.inspect import formatting
from episodes.inspect.cards.card import Card, excerpt, known, space_facts
from episodes.inspect.cards.rows import rows_of
from episodes.inspect.scales import end_ticks
from episodes.inspect.schema import place_in_episode, with_spaces
from episodes.inspect.series import of_tracks
from episodes.inspect.sparklines import Axis
from episodes.inspect.timeline_bar import rail

if TYPE_CHECKING:
    from episodes.multi_agent.timeline import Timeline
    from episodes.single_agent.episode import SingleAgentEpisode

ROOM_OF_NAMES = 0.45  # of an axis, of the names before its first numbers


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
        rail(axis, begin, facts.ending) + _env_steps(line, axis) if tracks.observations.total else None,
        rows=rows,
        notes=notes,
        is_open=is_open,
    )


def _env_steps(line: Timeline | None, axis: Axis) -> Markup:
    """Return an axis with the steps of an agent and the env steps of its observations, empty if it has none."""
    if line is None or not len(line.observation_times):
        return Markup("")
    begin = line.episode.t_started - axis.lookback
    words = ""
    for step in end_ticks(begin, begin + axis.span):
        share = (step - begin) / max(axis.span, 1)
        if 0 < share < ROOM_OF_NAMES:
            continue
        anchor = "" if 0 < share < 1 else f' text-anchor="{"end" if share else "start"}"'
        env_step = int(line.observation_times[step - begin])
        for y, name, value in ((10, "agent's step", step), (22, "env step", env_step)):
            text = f"{value:,}" if share else f"{name} {value:,}"
            words += f'<text x="{100 * share:.4g}%" y="{y}"{anchor}>{text}</text>'
    return Markup(
        f'<svg class="ep-rail ep-steps" width="480" height="26" text-anchor="middle" role="img">{words}</svg>'
    )
