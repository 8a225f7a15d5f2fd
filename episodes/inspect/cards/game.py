"""Notebook view of an episode of several agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from episodes.inspect import formatting, game_chart
from episodes.inspect.cards.card import Card, known
from episodes.inspect.cards.episode import episode_card
from episodes.inspect.cards.tables import left_out
from episodes.inspect.schema import with_spaces
from episodes.inspect.series import of_tracks

if TYPE_CHECKING:
    from episodes.multi_agent.episode import MultiAgentEpisode
    from episodes.multi_agent.timeline import Timeline

MOST_AGENTS = 12  # with a timeline
MOST_AGENT_CARDS, FEW_AGENT_CARDS = 4, 2  # of few and of many agents, whose timelines take more space
MANY_AGENTS = 7


def multi_agent_card(episode: MultiAgentEpisode) -> Card:
    """Return the notebook card of a `MultiAgentEpisode`: timelines, shared tracks, and a card for each agent."""
    agents, facts = episode.agents, episode.facts
    lines = list(agents.timelines.items())
    shown = lines[:MOST_AGENTS]
    most = MOST_AGENT_CARDS if len(lines) < MANY_AGENTS else FEW_AGENT_CARDS
    opened = lines[: len(lines) if len(lines) == most + 1 else most]
    apart: dict[Any, float] = {}  # rewards before an agent's first observation or after its end
    for _, agent, reward in agents.rewards_apart:
        apart[agent] = apart.get(agent, 0.0) + float(reward)
    begin, end = facts.t_started - episode.lookback, episode.env_t
    begin = min([begin, *(int(line.observation_times[0]) for _, line in shown)])  # a chunk keeps the newest observation
    tracks = _shared_tracks(shown, begin, end)
    parts = [
        _agent_card(agent, line, len(opened), apart.get(agent, 0.0), tracks is None and i == 0)
        for i, (agent, line) in enumerate(opened)
    ]
    waiting = [formatting.clipped(agent, 30) for agent, line in lines if line.phase == "waits"]
    pending = [f"{formatting.counted(len(waiting), 'action')} ({', '.join(waiting)})"] * bool(waiting)
    rewards = {agent: game_chart.pending_reward(line) for agent, line in lines}
    pending += [f"reward {_of_agent(reward, agent)}" for agent, reward in rewards.items() if reward]
    results = {
        agent: f"return {formatting.number(line.episode.get_return())}{_each_step(line)}"
        + (f" + {formatting.number(rewards[agent])} pending" if rewards[agent] else "")
        for agent, line in shown
    }
    return Card(
        type(episode).__name__,
        formatting.without_random_digits(formatting.clipped(facts.id_)),
        [
            formatting.counted(len(episode), "env step"),
            formatting.counted(len(lines), "agent"),
            f"return {formatting.number(episode.get_return())}",
        ],
        formatting.endings(facts.ending, agents.passed_on is not None),
        known(
            t_started=facts.t_started or None,
            lookback=episode.lookback or None,
            state=None if all(line.episode.tracks.is_finished for _, line in lines) else "growing (lists)",
            pending=", ".join(pending) or None,
            **{"return": _sum(episode, apart)},
            rewards_of_no_step=", ".join(_of_agent(value, agent) for agent, value in apart.items() if value) or None,
        ),
        chart=(game_chart.timelines(shown, begin, end, results) or Markup("")) + (tracks or Markup("")),
        parts=parts,
        notes=left_out([formatting.clipped(agent, 30) for agent, _ in lines[len(opened) :]], " agents"),
    )


def _shared_tracks(lines: Sequence[tuple[Any, Timeline]], begin: int, end: int) -> Markup | None:
    """Return a chart of the tracks that agents share, or None if no track has one number for each step."""
    tracks = [
        (agent, line, list(with_spaces(of_tracks(line.episode.tracks), facts.observation_space, facts.action_space)))
        for agent, line in lines
        for facts in [line.episode.facts]
    ]
    return game_chart.shared_tracks(tracks, begin, end)


def _sum(episode: MultiAgentEpisode, apart: Mapping[Any, float]) -> str | None:
    """Return how the return of the game adds up, or None if it is that of the agents' steps."""
    lines = episode.agents.timelines.values()
    more = {
        "pending": sum(map(game_chart.pending_reward, lines)),
        "of no step": sum(apart.values()),
    }
    terms = [
        f"{'-' if value < 0 else '+'} {formatting.number(abs(value))} {name}" for name, value in more.items() if value
    ]
    if not terms:
        return None
    own = formatting.number(sum(float(line.episode.get_return()) for line in lines))
    return " ".join([f"{formatting.number(episode.get_return())} = {own} in agents' steps", *terms])


def _each_step(line: Timeline) -> str:
    """Return the reward that each of several steps of an agent has, as text, empty if there is no such reward or 0."""
    rewards = np.asarray(line.episode.get_rewards(), np.float64)
    is_constant = len(rewards) > 1 and rewards[0] and (rewards == rewards[0]).all()
    return f" ({formatting.number(rewards[0])} each step)" if is_constant else ""


def _of_agent(reward: Any, agent: object) -> str:
    """Return a reward with the agent that got it, as text."""
    return f"{formatting.number(float(reward))} ({formatting.clipped(agent, 30)})"


def _agent_card(agent: object, line: Timeline, share: int, apart: float, is_open: bool) -> Card:
    """Return the card of one agent's episode in a game, which names what the episode does not have: pending items.

    Args:
        share: number of agents of the game with a card.
        apart: the sum of rewards before the agent's first observation or after its end.
        is_open: whether its tracks are shown at once.
    """
    card = episode_card(line.episode, share, is_open, formatting.clipped(agent, 40), line)
    headline = [*card.headline]
    if line.phase == "waits":
        headline[0] += " and a pending action"
    if reward := game_chart.pending_reward(line):
        headline[-1] += f" and a pending reward of {formatting.number(reward)}"
    if apart:
        headline[-1] += f" and a reward of no step of {formatting.number(apart)}"
    facts = [fact for fact in card.facts if fact.name not in ("agent", "of episode")]  # as in the title, and the game
    facts += known(unfinished=game_chart.pending_text(line) or None)
    return replace(card, headline=headline, facts=facts, span=f"{formatting.clipped(agent, 40)}'s steps")
