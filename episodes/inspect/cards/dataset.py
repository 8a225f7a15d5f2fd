"""Notebook views of data sets: tracks, episodes or games."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from episodes.errors import TrackMismatch
from episodes.inspect import charts, formatting
from episodes.inspect.cards.card import HISTOGRAMS, Card, Row, Table, excerpt, known, space_facts
from episodes.inspect.cards.game import multi_agent_card
from episodes.inspect.cards.rows import rows_of
from episodes.inspect.cards.tables import best_and_worst, episodes_table
from episodes.inspect.conversation import ConversationView, is_conversation, view_conversation
from episodes.inspect.schema import Schema, TrackSchema, described, read_schema
from episodes.inspect.series import mean_of
from episodes.storage.remote.remote_directory import is_remote

if TYPE_CHECKING:
    from episodes.storage.dataset import EpisodeDataset
    from episodes.storage.games import GameDataset

MOST_OF_COMMAND = 300  # characters
MOST_TRACKS = 6  # that are shown at once, and those with defects
MOST_AGENTS = 8  # whose mean returns are facts
MOST_MESSAGES, MOST_TOKENS = 6, 32  # of the first conversation, and of each of its messages


def dataset_card(dataset: EpisodeDataset) -> Card:
    """Return the notebook card of an `EpisodeDataset`: its tracks, and a chart and a table of its episodes.

    The metadata and a few episodes are read.
    """
    schema = read_schema(dataset)
    rows, notes = _schema_rows(schema)
    rows, folded = _without_folded(rows)
    table, defects = dataset.metadata, schema.defective_episodes()
    returns, terminated, truncated = table["return"], table["terminated"], table["truncated"]
    spec = dataset.env_spec
    unread = sum(dataset.unread.values())
    return Card(
        type(dataset).__name__,
        formatting.clipped(dataset.path),
        [
            formatting.counted(len(dataset), "episode"),
            formatting.counted(dataset.num_steps, "step"),
            *_averages(returns, table["length"]),
            formatting.size(dataset.nbytes),
        ],
        facts=[
            *known(environment=getattr(spec, "id", spec), metadata=excerpt(dataset.user_metadata)),
            *space_facts(dataset.observation_space, dataset.action_space),
            *known(
                recovered=f"{dataset.recovered} episodes of files that no writer has finished"
                if dataset.recovered
                else None,
                unread=f"{unread} bytes" if unread else None,
            ),
        ],
        chart=_episodes_chart(table["id"], returns, table["length"], terminated, truncated),
        table=_folded(
            episodes_table(
                table["id"], table["length"], returns, terminated, truncated, table["t_started"], defects=defects
            )
        ),
        talk=_conversation(dataset, next(iter(defects), 0)),
        caption=HISTOGRAMS,
        extent=schema.extent,
        sample=schema.sample,
        rows=rows,
        folded=folded,
        notes=[*notes, *_onward(dataset, defects)],
    )


def games_card(dataset: GameDataset, most: int = 1) -> Card:
    """Return the notebook card of a `GameDataset`: its tracks, chart and table of games, and the first `most` games.

    A single game is the first one with defects, if there is one.
    """
    schema = read_schema(dataset, merges_agents=True)
    table, defects = dataset.metadata, schema.defective_episodes()
    tracks = _tracks_card(schema)
    rows, folded = _without_folded(tracks.rows)
    spec = dataset.env_spec
    ended = table["return"], table["terminated"], table["truncated"]
    named = [_kind(kind) for kind in dataset.kinds]
    kinds = dict(named)
    if len(named) > 1:
        kinds = {f"kind {n}": f"{agents}: {facts}" for n, (agents, facts) in enumerate(named)}
    listed = episodes_table(table["id"], table["length"], *ended, table["t_started"], table["agents"], most, defects)
    begin = next(iter(defects), 0) if most == 1 else 0
    parts = [
        replace(multi_agent_card(dataset[n]), is_open=n == 0 < most - 1)
        for n in range(begin, min(len(dataset), begin + most))
    ]
    return Card(
        type(dataset).__name__,
        formatting.clipped(dataset.path),
        [
            formatting.counted(len(dataset), "game"),
            formatting.counted(int(table["length"].sum()), "env step"),
            *_averages(table["return"], table["length"]),
            *([] if len(kinds) < 2 else [formatting.counted(len(kinds), "kind")]),
            formatting.size(sum(kind.nbytes for kind in dataset.kinds)),
        ],
        facts=known(
            environment=getattr(spec, "id", spec),
            metadata=excerpt(dataset.user_metadata),
            incomplete=f"{dataset.incomplete} games without all of their agents" if dataset.incomplete else None,
            **kinds,
            mean_return_by_agent=_returns_by_agent(dataset),
        ),
        chart=_episodes_chart(table["id"], ended[0], table["length"], *ended[1:], noun="game"),
        table=listed if most > 1 else _folded(listed),
        caption=tracks.caption,
        extent=tracks.extent,
        sample=schema.sample,
        tracks=tracks.parts,
        parts=parts,
        rows=rows,
        folded=folded,
        notes=[*tracks.notes, *_onward(dataset, defects)],
    )


def _conversation(dataset: EpisodeDataset, index: int) -> ConversationView | None:
    """Return the first messages of a conversation of a data set, with their first tokens. None for other episodes."""
    episode = dataset[index] if len(dataset) else None
    if episode is None or not is_conversation(episode):
        return None
    view = view_conversation(episode, max_tokens=MOST_TOKENS)
    more = max(len(view.messages) - MOST_MESSAGES, 0)
    return replace(view, messages=view.messages[:MOST_MESSAGES], num_left=view.num_left + more)


def _returns_by_agent(dataset: GameDataset) -> str | None:
    """Return the mean return of each agent over its games as text, or None of one agent, of more than 8, and of agents
    whose episodes are of several kinds.
    """
    agents = [*dict.fromkeys(agent for game in dataset.metadata["agents"] for agent in game)]
    if not 1 < len(agents) <= MOST_AGENTS:
        return None
    means = []
    for agent in agents:
        try:
            returns = dataset.agent(agent).metadata["return"]
        except TrackMismatch:
            return None
        finite = returns[np.isfinite(returns)]
        means.append(f"{formatting.clipped(agent, 20)} {formatting.number(mean_of(finite)) if len(finite) else 'NaN'}")
    return ", ".join(means)


def _onward(dataset: EpisodeDataset | GameDataset, defects: Iterable[int]) -> list[Markup]:
    """Return a line with the commands that show more of a data set in a local folder, or an empty list.

    The episode of the command is the first with defects, or else the worst, or else the first one. It is given by its
    id, since a data set can be a part of the folder.
    """
    path = str(dataset.path)
    if is_remote(path) or not path.isprintable() or len(path) > MOST_OF_COMMAND:
        return []
    folder = shlex.quote(f"./{path}" if path.startswith("-") else path)
    commands = [f"episodes watch {folder}"]
    ids, marks = dataset.metadata["id"], best_and_worst(dataset.metadata["return"])
    if len(ids):
        chosen = next(iter([*defects, *(i for i, mark in marks.items() if mark.startswith("worst"))]), 0)
        id_ = str(ids[chosen])
        if id_.isprintable() and 0 < len(id_) <= MOST_OF_COMMAND:
            commands.append(f"episodes show {folder} --episode={shlex.quote(id_)}")
    return [Markup("see more: ") + Markup(" · ").join(Markup("<code>{}</code>").format(each) for each in commands)]


def _folded(table: Table) -> Table:
    """Return a table of episodes, which is shown when opened if it leaves episodes out."""
    return replace(table, is_folded=bool(table.note))


def _without_folded(rows: Sequence[Row]) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return the first rows and those with defects, and the other ones, which are shown when opened."""
    folded = [row for row in rows[MOST_TRACKS:] if not row.defects]
    if len(folded) < 2:
        return rows, ()
    return [row for i, row in enumerate(rows) if i < MOST_TRACKS or row.defects], folded


def _averages(returns: np.ndarray, lengths: np.ndarray) -> list[str]:
    """Return the mean return and the mean length of episodes as texts, with the lowest and the highest. If they are
    equal in each episode, they are one text.
    """
    texts, facts = [], {"return": returns, "length": lengths}
    if len(returns) and np.array_equal(returns, lengths):
        facts = {"return = length": lengths}
    for name, values in facts.items():
        finite = np.asarray(values, np.float64)
        finite = finite[np.isfinite(finite)]
        if len(finite):
            low, mean, high = map(formatting.number, (finite.min(), mean_of(finite), finite.max()))
            texts.append(f"mean {name} {mean}" + (f" ({low} … {high})" if low != high else ""))
    return texts


def _episodes_chart(
    ids: np.ndarray,
    returns: np.ndarray,
    lengths: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    noun: str = "episode",
) -> Markup:
    """Return the chart of the returns of episodes, and that of their lengths if it shows more than the returns."""
    above = charts.returns(returns, terminated, truncated, noun, ids, lengths) or Markup("")
    below = charts.lengths(lengths, returns, terminated, truncated, noun, ids)
    return Markup('<div class="ep-charts">{}{}</div>').format(above, below) if below else above


def _kind(kind: EpisodeDataset) -> tuple[str, str]:
    """Return the number of agents, and agents, size and spaces of the data set of one kind of agents."""
    names = [*dict.fromkeys(map(str, kind.metadata["agent_id"].tolist()))]
    agents = formatting.clipped(", ".join(names), 80)
    spaces = [
        formatting.clipped(described(each)) for each in (kind.observation_space, kind.action_space) if each is not None
    ]
    facts = agents, formatting.counted(kind.num_steps, "agent step"), " → ".join(spaces)
    return formatting.counted(len(names), "agent"), " · ".join(filter(None, facts))


def _schema_rows(schema: Schema) -> tuple[list[Row], list[str]]:
    """Return a row for each track of a data set, with its shape, dtype, space, range and histogram, and remarks."""
    places = {id(track.series): track.place for track in schema.tracks}
    rows, notes = rows_of([track.series for track in schema.tracks], None, where=lambda s, i: places[id(s)](i))
    rows = [
        replace(
            row,
            label=formatting.clipped(track.path),
            owner=formatting.clipped(track.owner),
            meta=" · ".join(filter(None, (f"{track.item_shape} {track.series.dtype}", track.space))),
            note=", ".join(filter(None, (row.note, _empty_ends(track)))),
        )
        for row in rows
        for track in [schema.tracks[row.index]]
    ]
    return rows, notes


def _empty_ends(track: TrackSchema) -> str:
    """Return a note on observations of length 0 that end episodes, or "" if there are none or others are empty."""
    num = track.num_empty_ends if track.series.hue == "observations" and track.series.has_common_mean else 0
    return f"length 0 ends {formatting.counted(num, 'episode')}: nothing follows the last turn" if num else ""


def schema_card(dataset: EpisodeDataset | GameDataset) -> Card:
    """Return a card with the tracks of a data set. Agents of games have a part each, unless their tracks are equal."""
    return _tracks_card(read_schema(dataset, merges_agents=True))


def _tracks_card(schema: Schema) -> Card:
    """Return a card with the tracks of a schema."""
    rows, notes = _schema_rows(schema)
    common = Card("tracks", "", (), rows=rows, notes=notes, caption=HISTOGRAMS, extent=schema.extent)
    by_agent: dict[str, list[Row]] = {}
    for row in rows:
        by_agent.setdefault(row.owner, []).append(row)
    if len(by_agent) > 1:
        parts = [
            replace(common, kind="tracks of", name=agent, rows=own, notes=(), is_open=number == 0)
            for number, (agent, own) in enumerate(by_agent.items())
        ]
        common = replace(common, rows=(), parts=[_with_count(part) for part in parts], caption="")
    return common if common.parts else _with_count(common)


def _with_count(card: Card) -> Card:
    return replace(card, headline=[formatting.counted(len(card.rows), "track")])
