"""Notebook views of objects as HTML and CSS, without scripts."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from episodes.inspect.cards.batch import batch_card
from episodes.inspect.cards.card import Card, Table
from episodes.inspect.cards.dataset import dataset_card, games_card, schema_card
from episodes.inspect.cards.episode import episode_card
from episodes.inspect.cards.game import multi_agent_card
from episodes.inspect.cards.pack import pack_card
from episodes.inspect.cards.replay import multi_agent_replay_card, replay_card
from episodes.inspect.conversation import ConversationView, Decode, is_conversation, view_conversation

if TYPE_CHECKING:
    from episodes.batch.batch import Batch
    from episodes.batch.train_batch import TrainBatch
    from episodes.inspect.lineage import BatchLinks, Explanation
    from episodes.multi_agent.episode import MultiAgentEpisode
    from episodes.pack.pack import EpisodePack
    from episodes.replay.buffer import EpisodeReplayBuffer
    from episodes.replay.multi_agent_buffer import MultiAgentEpisodeReplayBuffer
    from episodes.single_agent.episode import SingleAgentEpisode
    from episodes.storage.dataset import EpisodeDataset
    from episodes.storage.games import GameDataset

__all__ = [
    "batch",
    "batch_links",
    "conversation",
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
    """Return the Jinja environment that holds the HTML templates. It escapes texts given by users."""
    return Environment(loader=PackageLoader("episodes.inspect"), autoescape=True, trim_blocks=True)


def template_file(name: str) -> Markup:
    """Return the text of a template file, such as a script, without HTML escaping."""
    source = templates().loader.get_source(templates(), name)[0]  # type: ignore[union-attr]
    return Markup(source)


@cache
def style() -> Markup:
    """Return the style sheet of all notebook views, without the spaces that it does not need."""
    text = files("episodes.inspect").joinpath("templates/style.css").read_text(encoding="utf-8")
    return Markup(re.sub(r" ?([{};,>]) ?|(:) ", r"\1\2", " ".join(text.split())))


def rendered(card: Card) -> str:
    """Render a `Card` (the content of a notebook view) as HTML with its style sheet."""
    return templates().get_template("card.html").render(shown=card, style=style())


def single_agent_episode(episode: SingleAgentEpisode, decode: Decode | None = None) -> str:
    """Return the HTML view of an episode: timeline, arrays and metadata. Conversations also show their turns. `decode`
    converts a list of token ids to text.
    """
    turns = conversation(view_conversation(episode, decode=decode)) if is_conversation(episode) else ""
    return rendered(episode_card(episode)) + turns


def conversation(view: ConversationView) -> str:
    """Return the HTML view of a conversation's turns, with tokens coloured by log-probability."""
    return templates().get_template("conversation.html").render(view=view, style=style())


def multi_agent_episode(episode: MultiAgentEpisode) -> str:
    """Return the HTML view of a multi-agent episode: timelines, and the episode of each agent."""
    return rendered(multi_agent_card(episode))


def explanation(row: Explanation) -> str:
    """Return HTML that explains one row of a batch: a table of facts about its step, and its episode."""
    parts = [] if row.episode is None else [episode_card(row.episode, is_open=False)]
    table = Table((), row.lines, is_words=True)
    return rendered(Card("Row", str(row.row), [], table=table, parts=parts))


def pack(episodes: EpisodePack) -> str:
    """Return the HTML view of an `EpisodePack`: returns and endings of the episodes, and the arrays."""
    return rendered(pack_card(episodes))


def dataset(episodes: EpisodeDataset) -> str:
    """Return the HTML view of a data set: its tracks, and returns and endings of the episodes."""
    return rendered(dataset_card(episodes))


def schema(dataset: EpisodeDataset | GameDataset) -> str:
    """Return the HTML table of a data set's tracks: path, shape, dtype, space, range and histogram."""
    return rendered(schema_card(dataset))


def games(dataset: GameDataset) -> str:
    """Return the HTML view of a data set of games: lengths, returns and endings, and the first game."""
    return rendered(games_card(dataset))


def games_page(dataset: GameDataset, most: int) -> str:
    """Return a complete HTML page of a data set of games, with a table of them and the first `most` games."""
    return page("games", rendered(games_card(dataset, most)))


def page(title: str, body: str) -> str:
    """Return a complete HTML page with a notebook view, given as HTML, in it."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><body>{body}</body></html>"
    )


def batch(columns: Batch | TrainBatch) -> str:
    """Return the HTML view of a `Batch` or `TrainBatch`: name, shape, statistics and picture of each column."""
    return rendered(batch_card(columns, type(columns).__name__))


def batch_links(links: BatchLinks) -> str:
    """Return the HTML view of a batch, in which rows link to their steps on the HTML page of a data set."""
    return rendered(batch_card(links.batch, type(links.batch).__name__, links))


def replay(buffer: EpisodeReplayBuffer) -> str:
    """Return the HTML view of a replay buffer: fill level, and steps from the oldest to the newest."""
    return rendered(replay_card(buffer))


def multi_agent_replay(buffer: MultiAgentEpisodeReplayBuffer) -> str:
    """Return the HTML view of a multi-agent replay buffer: fill level, and the steps of each module."""
    return rendered(multi_agent_replay_card(buffer))
