"""`Draw`: interface to the steps that a store sampled. Replay rings and files implement it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np

from episodes.columns import Columns
from episodes.draws.windows import WindowLayout
from episodes.history import History, HistorySpaces

OF_LAST = frozenset((Columns.NEXT_OBS, Columns.TERMINATEDS, Columns.TRUNCATEDS))
"""Stored columns of the last step of an n-step transition. Other stored columns are of the sampled step."""


class Step(Enum):
    """One of the two steps of an n-step transition to which columns belong.

    steps              0  1  2  3  4  5       with n_step=3, from the sampled step 1
    SAMPLED               ^                   "obs", "actions" and most other columns
    LAST                        ^             "new_obs", "terminateds", "truncateds" and infos
    """

    SAMPLED = "sampled"
    LAST = "last"


class Draw(ABC):
    """Sampled steps of a store: single steps [n], n-step transitions [n], or windows [B, W] of which some are padding.

    `shape` below is [n] or [B, W]. Padding is 0, "" or None in every column. Except for stored columns, whatever a draw
    of n-step transitions returns is of the sampled steps.
    """

    @abstractmethod
    def stored(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return those of the columns `keys` that the store holds as arrays: tracks, flags and observations.

        The columns `OF_LAST` of n-step transitions are of their last steps, the others are of the sampled steps.
        """

    @abstractmethod
    def single_steps(self) -> tuple[Draw, Draw]:
        """Return the sampled steps and the last steps of n-step transitions as two draws of single steps. Both are this
        draw if it is not of n-step transitions.
        """

    @abstractmethod
    def times(self) -> np.ndarray:
        """Return the time of each step in its episode, int [*shape]."""

    @abstractmethod
    def is_first(self) -> np.ndarray:
        """Return whether each step is the first one of its episode (t = 0), bool [*shape]."""

    @abstractmethod
    def versions(self) -> np.ndarray:
        """Return the version of the policy that acted at each step, int64 [*shape]. Unknown ones and padding are -1."""

    @abstractmethod
    def facts(self, name: str) -> np.ndarray:
        """Return "eps_id", "agent_id" or "module_id" of each step's episode, [*shape]. Padding is None."""

    @abstractmethod
    def infos(self) -> np.ndarray:
        """Return the info dicts that came with the observations after the steps, objects [*shape]. Padding is {}."""

    @abstractmethod
    def info_columns(self) -> dict[str, np.ndarray]:
        """Return the same infos as an array [*shape, ...] per key path. "_<path>" is its mask of infos with the key."""

    @abstractmethod
    def history(self, before: bool, after: bool, spaces: HistorySpaces, lookback: int | None) -> tuple[History, int]:
        """Return the observations before the steps if `before` is True, followed by those after the last steps if
        `after` is True, as one history. Return also how many of them are before the steps.
        """

    @abstractmethod
    def arrange(self, values: np.ndarray) -> np.ndarray:
        """Return values of one half of the result of `history` as a column [*shape, ...]."""


class StepsDraw(Draw):
    """Sampled steps or n-step transitions [n].

    Positions are a store's own numbers of steps, such as indices into a ring.

    Attributes:
        slots: positions of the sampled steps, [n].
        last: positions of the last steps of n-step transitions, [n], or the same object as `slots`.
    """

    slots: np.ndarray
    last: np.ndarray

    @property
    @abstractmethod
    def rewards_are_finite(self) -> bool:
        """Whether all rewards of the store are known to be finite."""

    @abstractmethod
    def path(self, num_steps: int) -> list[np.ndarray]:
        """Return the positions [n] of the sampled steps, and of at most `num_steps` - 1 steps after them.

        A path stays at the last step of its episode. The list is shorter if all paths have reached theirs.
        """

    @abstractmethod
    def num_between(self, positions: np.ndarray, later: np.ndarray) -> np.ndarray:
        """Return by how many steps the positions `later` [n] are after `positions` [n]."""

    @abstractmethod
    def reward_reader(self) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function that returns the rewards at positions [n] as a new float array."""


class WindowsDraw(Draw):
    """Sampled windows of steps [B, W].

    Attributes:
        layout: which of the steps exist.
    """

    layout: WindowLayout

    @abstractmethod
    def history_at(self, column: int) -> History:
        """Return the observations before the steps in one column of the windows as a history of length B.

        If the column is padding on the left, the observation has no steps before it.
        """
