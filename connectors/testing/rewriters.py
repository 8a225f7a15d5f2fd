"""Additional checks of `check_connector` for observation rewriters: connectors that change observations before storage
in episodes.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from connectors.rewriting.rewriter import ObservationRewriter
from connectors.testing.bench import Bench, as_arrays
from episodes.data_types import NestedArrays
from episodes.errors import StateMismatch
from episodes.pack import EpisodePack
from episodes.testing.contract import brief, violation
from episodes.testing.row_format import check_item, item_of
from episodes.tracks import nested


def check_rewriter(piece: ObservationRewriter, bench: Bench, rowwise: bool) -> None:
    """Check on sample data that an observation rewriter is consistent and its results are in the declared space.

    The rules: It does not change its inputs, and learns statistics only if `update` is true. A copy with its state
    returns the same, and a pack gives the same result as rows. If `rowwise`, rows do not depend on each other.

    Raises:
        ContractViolation: a rule is broken.
    """
    episodes = list(bench.samples())
    first = episodes[0]
    piece = copy.deepcopy(piece)
    piece.set_input_spaces(first.observation_space, first.action_space)
    rows = nested.stack([episode.get_observations(-1) for episode in episodes])
    check = _RewriterCheck(piece, episodes, rows)
    check.check_rows()
    check.check_state()
    check.check_pack()
    if rowwise:
        check.check_halves()


class _RewriterCheck:
    """Checks of one observation rewriter: each runs the rewriter on sample observations and examines the results."""

    def __init__(self, piece: ObservationRewriter, episodes: list[Any], rows: NestedArrays) -> None:
        self.piece, self.episodes, self.rows = piece, episodes, rows

    def broken(self, expected: str, result: str, advice: str = "", **location: object) -> Exception:
        return violation(self.piece.name, expected, result, advice, **location)

    def rewritten(self, update: bool, first: int = 0, stop: int | None = None) -> Any:
        """Return a copy of the sample observations from index `first` to `stop`, rewritten by the connector."""
        part = slice(first, stop)
        return as_arrays(self.piece.rewrite(nested.take(self.rows, part), self.episodes[part], update))

    def check_rows(self) -> None:
        """Check that rewritten observations are in the declared space, one per input, and that the inputs stay
        unchanged.
        """
        rows_before = as_arrays(self.rows)
        rows = self.rewritten(update=True)
        if not nested.equal(rows_before, self.rows):
            raise self.broken("the rows that it gets to be unchanged", "changed rows", "return new arrays")
        space = self.piece.observation_space
        lengths = {len(leaf) if np.ndim(leaf) else None for leaf in nested.leaves(rows)}
        if lengths != {len(self.episodes)}:
            raise self.broken(f"{len(self.episodes)} rewritten rows", brief(rows))
        dtypes = {path: leaf.dtype for path, leaf in nested.flatten(rows, "observations").items()}
        for row in range(len(self.episodes)):
            item = nested.take(rows, row)
            try:
                check_item(space, item_of(space, rows, row), "rewritten observations", self.broken, row=row)  # type: ignore[arg-type]
            except (KeyError, IndexError, TypeError, ValueError):
                raise self.broken(
                    f"rewritten observations of {space}",
                    brief(item),
                    f"override recompute_output_observation_space ({dtypes})",
                    row=row,
                ) from None

    def check_state(self) -> None:
        """Check that `update=False` learns nothing, and that a copy of the rewriter with its state gives equal
        results.
        """
        before = copy.deepcopy(self.piece.get_state())
        rows = self.rewritten(update=False)
        if not same_state(before, self.piece.get_state()):
            raise self.broken("to learn nothing from rows with update=False", "another state")
        twin = copy.deepcopy(self.piece)
        twin.reset_state()
        twin.set_state(before)
        try:
            is_restored = nested.equal(as_arrays(twin.rewrite(self.rows, self.episodes, False)), rows)
        except StateMismatch:  # it has no statistics
            is_restored = False
        if not is_restored:
            raise self.broken(
                "the same rows from a copy with its state",
                "different rows",
                "put everything that affects the result into it",
            )

    def check_pack(self) -> None:
        """Check that a pack of episodes is rewritten like single observations, and that the given pack stays
        unchanged.
        """
        pack = EpisodePack.from_episodes(self.episodes)
        observations_before = as_arrays(pack.observations)
        rewritten = self.piece.rewritten_pack(pack)
        if not nested.equal(observations_before, pack.observations):
            raise self.broken("the pack to be unchanged", "changed observations")
        ends = pack.observation_offsets[1:] - 1
        if not nested.equal(nested.take(rewritten.observations, ends), self.rewritten(update=False)):
            raise self.broken("the same observations in a pack as in rows", "different observations")

    def check_halves(self) -> None:
        """Check that a rewritten observation does not depend on the other observations of the batch."""
        whole, cut = self.rewritten(update=False), len(self.episodes) // 2
        halves = [self.rewritten(False, 0, cut), self.rewritten(False, cut)]
        if not nested.equal(whole, nested.concatenate(halves)):
            raise self.broken(
                "the same rows of both halves as of the whole", "different rows", "if this is intended: rowwise=False"
            )


def same_state(a: Any, b: Any) -> bool:
    """Return True if two connector states, nested dicts and lists of arrays, are equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_state(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_state, a, b))
    return nested.equal(a, b)
