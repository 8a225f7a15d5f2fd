"""Notebook view of a pack of episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from episodes.inspect import charts, formatting
from episodes.inspect.cards.card import HISTOGRAMS, Card, space_facts
from episodes.inspect.cards.rows import rows_of
from episodes.inspect.cards.tables import episodes_table
from episodes.inspect.schema import place_in_pack, with_spaces
from episodes.inspect.series import of_tracks
from episodes.inspect.sparklines import Axis

if TYPE_CHECKING:
    from episodes.pack.pack import EpisodePack

MOST_BESIDE = 10  # episodes of a pack that are drawn side by side


def pack_card(pack: EpisodePack) -> Card:
    """Return the notebook card of an `EpisodePack`: chart and table of its episodes, and its arrays."""
    sizes = pack.lookbacks + pack.lengths
    is_long = len(pack) > MOST_BESIDE
    axis = None if is_long else Axis(max(int(pack.observation_offsets[-1]), 1), 0, np.cumsum(sizes + 1)[:-1])
    series = with_spaces(of_tracks(pack.columns), pack.observation_space, pack.action_space)
    rows, notes = rows_of(list(series), axis, where=place_in_pack(pack, [f"episode {i}" for i in range(len(pack))]))
    return Card(
        type(pack).__name__,
        "",
        [
            formatting.counted(len(pack), "episode"),
            formatting.counted(pack.num_steps, "step"),
            formatting.size(pack.nbytes),
        ],
        facts=space_facts(pack.observation_space, pack.action_space),
        caption=HISTOGRAMS if is_long else "the episodes side by side" if len(pack) > 1 else "",
        rows=rows,
        chart=charts.returns(pack.returns(), pack.terminated, pack.truncated, ids=pack.ids, lengths=pack.lengths),
        table=episodes_table(pack.ids, pack.lengths, pack.returns(), pack.terminated, pack.truncated, pack.t_started),
        notes=notes,
    )
