"""What a notebook shows of an object: its card as HTML and CSS, without a script."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from episodes.inspect import cards
from episodes.inspect.cards import Card

__all__ = [
    "batch",
    "dataset",
    "explanation",
    "multi_agent_episode",
    "multi_agent_replay",
    "pack",
    "replay",
    "rendered",
    "single_agent_episode",
]


@cache
def templates() -> Environment:
    """The templates; whatever a user gave is escaped."""
    return Environment(loader=PackageLoader("episodes.inspect"), autoescape=True, trim_blocks=True)


@cache
def style() -> Markup:
    """The style sheet of all cards, in few bytes."""
    text = files("episodes.inspect").joinpath("templates/style.css").read_text()
    return Markup(" ".join(text.split()))


def rendered(card: Card) -> str:
    """A card as HTML that stands anywhere in a page."""
    return templates().get_template("card.html").render(shown=card, style=style())


def single_agent_episode(episode: Any) -> str:
    """An episode: its rail, its tracks and its facts."""
    return rendered(cards.episode_card(episode))


def multi_agent_episode(episode: Any) -> str:
    """An episode of several agents: who acted when, and each agent's own episode."""
    return rendered(cards.multi_agent_card(episode))


def explanation(row: Any) -> str:
    """What is known of a row of a batch: words, and the episode behind it."""
    parts = [] if row.episode is None else [cards.episode_card(row.episode, is_open=False)]
    table = cards.Table((), row.lines, is_words=True)
    return rendered(Card("Row", str(row.row), [], table=table, parts=parts))


def pack(episodes: Any) -> str:
    """A pack: returns and endings of its episodes, and its columns."""
    return rendered(cards.pack_card(episodes))


def dataset(episodes: Any) -> str:
    """A data set: returns and endings of its episodes; no track is read."""
    return rendered(cards.dataset_card(episodes))


def batch(columns: Any) -> str:
    """A batch, or a train batch of a learner pipeline: its columns."""
    return rendered(cards.batch_card(columns, type(columns).__name__))


def replay(buffer: Any) -> str:
    """A replay buffer: how full it is, and its steps from the oldest to the newest."""
    return rendered(cards.replay_card(buffer))


def multi_agent_replay(buffer: Any) -> str:
    """A replay buffer of several modules: how full it is, and each module's steps."""
    return rendered(cards.multi_agent_replay_card(buffer))
