"""Notebook view of an episode of several agents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from episodes.inspect import charts, formatting
from episodes.inspect.cards.card import Card, known
from episodes.inspect.cards.episode import episode_card
from episodes.inspect.cards.tables import left_out

if TYPE_CHECKING:
    from episodes.multi_agent.episode import MultiAgentEpisode
    from episodes.multi_agent.timeline import Timeline

MOST_AGENTS = 12  # with a timeline
MOST_AGENT_CARDS = 8


def multi_agent_card(episode: MultiAgentEpisode) -> Card:
    """Return the notebook card of a `MultiAgentEpisode`: timelines, and a card for the episode of each agent."""
    agents, facts = episode.agents, episode.facts
    lines = list(agents.timelines.items())
    shown = lines[:MOST_AGENTS]
    opened = lines[: len(lines) if len(lines) == MOST_AGENT_CARDS + 1 else MOST_AGENT_CARDS]
    apart: dict[Any, float] = {}  # rewards before an agent's first observation or after its end
    for _, agent, reward in agents.rewards_apart:
        apart[agent] = apart.get(agent, 0.0) + float(reward)
    parts = [_agent_card(agent, line, len(opened), apart.get(agent, 0.0)) for agent, line in opened]
    waiting = [formatting.clipped(agent, 30) for agent, line in lines if line.phase == "waits"]
    pending = [f"{formatting.counted(len(waiting), 'action')} ({', '.join(waiting)})"] * bool(waiting)
    pending += [f"reward {_of_agent(line.reward, agent)}" for agent, line in lines if _has_reward(line)]
    returns = episode.get_returns()
    results = {agent: f"return {formatting.number(returns[agent])}" for agent, _ in shown}
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
            rewards_of_no_step=", ".join(_of_agent(value, agent) for agent, value in apart.items() if value) or None,
        ),
        chart=charts.timelines(shown, facts.t_started - episode.lookback, episode.env_t, results),
        parts=parts,
        notes=left_out([formatting.clipped(agent, 30) for agent, _ in lines[len(opened) :]], " agents"),
    )


def _of_agent(reward: Any, agent: object) -> str:
    """Return a reward with the agent that got it, as text."""
    return f"{formatting.number(float(reward))} ({formatting.clipped(agent, 30)})"


def _has_reward(line: Timeline) -> bool:
    """Return whether an agent has a pending reward other than 0."""
    return line.reward is not None and float(line.reward) != 0


def _agent_card(agent: object, line: Timeline, share: int, apart: float) -> Card:
    """Return the card of one agent's episode in a game, which names what the episode does not have: pending items.

    Args:
        share: number of agents of the game with a card.
        apart: the sum of rewards before the agent's first observation or after its end.
    """
    card = episode_card(line.episode, share, False, formatting.clipped(agent, 40), line)
    headline = [*card.headline]
    if line.phase == "waits":
        headline[0] += " and a pending action"
    if _has_reward(line):
        headline[-1] += f" and a pending reward of {formatting.number(float(line.reward))}"
    if apart:
        headline[-1] += f" and a reward of no step of {formatting.number(apart)}"
    return replace(card, headline=headline)
