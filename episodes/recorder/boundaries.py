"""Episode boundaries in vector environments: which environments stepped, ended or were reset in each row.

A row is one vector step.

Row r is the result of one `step` of a vector environment. The table is for an episode that ends in it:

    mode       row r                                                      row r + 1
    NEXT_STEP  a step, its observation is the last one                    a reset and no step: its action was ignored,
                                                                          its reward and flags mean nothing
    SAME_STEP  a step, its observation is the next episode's first one,   a step
               the last one is in infos["final_obs"]
    DISABLED   a step, its observation is the last one                    comes only after `reset`, which replaces the
                                                                          observation by the first one
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from episodes.errors import EpisodeStateError, InvalidArgument, TrackMismatch
from episodes.tracks import nested
from episodes.tracks.infos.dicts import as_object_array
from episodes.tracks.spaces import as_rows, stacked
from episodes.tracks.validation import checked_count

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from episodes.data_types import Space

_NONE = np.zeros(0, np.intp)


class Row(NamedTuple):
    """Indices of the environments that stepped, were reset, ended and began an episode in one vector step."""

    stepped: np.ndarray  # the row is a step of these environments
    reset: np.ndarray  # the row is a reset of all others
    ended: np.ndarray  # an episode ended with this step
    begun: np.ndarray  # the row's observation is the first one of the next episode


class Rows(NamedTuple):
    """Masks [K, N] of the environments that stepped and that ended, for K vector steps of N environments."""

    stepped: np.ndarray  # bool [K, N], the row is a step and no reset
    ended: np.ndarray  # bool [K, N], an episode ended with the row


class Boundaries:
    """State machine that finds steps, resets and endings of N environments, for all three autoreset modes.

    No Python code runs per environment. Classifying one row takes about 3 us. Recorders that only store rows classify
    many at a time.

    Attributes:
        mode: the autoreset mode.
        last_lies_apart: whether last observations of episodes are not in the rows (same-step autoreset).
        waiting: environments [k] whose episode has ended or was cut, and whose next one has not begun: their next row
            is a reset (next-step autoreset), or `reset` must come before it (disabled).
        num_rows: number of rows so far.
        num_steps: number of steps so far over all environments, without resets.

    Args:
        num_envs: number of environments N.
        mode: the autoreset mode, or its name.

    Raises:
        InvalidArgument: `num_envs` is not a count, or `mode` is unknown.
    """

    def __init__(self, num_envs: int, mode: AutoresetMode | str) -> None:
        self.num_envs = checked_count("num_envs", num_envs)
        self.mode = checked_mode(mode)
        self.last_lies_apart = self.mode is AutoresetMode.SAME_STEP
        self.waiting = _NONE
        self.num_rows = self.num_steps = 0
        self._first_rows = np.zeros(num_envs, np.int64)  # row at which each episode began; never changed in place
        self._plain = Row(np.arange(num_envs), _NONE, _NONE, _NONE)  # most rows: all step, and no episode ends

    @property
    def ages(self) -> np.ndarray:
        """Number of steps in each environment's episode, int [N]. An ended episode counts until the reset."""
        return self.num_rows - self._first_rows

    def copy(self) -> Boundaries:
        """Return an independent copy of this state machine."""
        copy = Boundaries.__new__(Boundaries)
        copy.__dict__.update(self.__dict__)
        return copy

    def resume(self, ages: np.ndarray, waiting: np.ndarray = _NONE) -> None:
        """Continue ongoing episodes of `ages` [N] steps, while the environments `waiting` must be reset first."""
        self.waiting = waiting
        self._first_rows = self.num_rows - np.asarray(ages, np.int64)

    def reset(self, mask: np.ndarray) -> None:
        """Start new episodes in the environments selected by the mask, bool [N]."""
        self.waiting = self.waiting[~mask[self.waiting]]
        self._begin(mask, self.num_rows)

    def cut(self, envs: np.ndarray) -> None:
        """Cut the ongoing episodes of the environments `envs` [k]: their next row is a reset and no step.

        Raises:
            EpisodeStateError: the autoreset mode has no rows that are resets.
        """
        if self.mode is not AutoresetMode.NEXT_STEP:
            raise EpisodeStateError(
                f"cut with {self.mode}: only next-step autoreset has rows that are resets; call reset"
            )
        self.waiting = np.union1d(self.waiting, envs).astype(np.intp)

    def _begin(self, envs: np.ndarray, rows: ArrayLike) -> None:
        """Set the vector step at which new episodes of the environments `envs` begin."""
        first_rows = self._first_rows.copy()
        first_rows[envs] = rows
        self._first_rows = first_rows

    def checked_mask(self, mask: ArrayLike | None) -> np.ndarray:
        """Return the mask of the environments that were reset as bool [N]. None means that all were reset.

        Raises:
            InvalidArgument: the mask is no bool array [N].
        """
        if mask is None:
            return np.ones(self.num_envs, bool)
        try:
            mask = np.asarray(mask)
        except ValueError as error:
            raise InvalidArgument(f"reset_mask={mask!r}: {error}; give bool ({self.num_envs},)") from None
        if mask.dtype != bool or mask.shape != (self.num_envs,):
            raise InvalidArgument(f"reset_mask is {mask.dtype} {mask.shape}; give bool ({self.num_envs},)")
        return mask

    # --- row by row ----------------------------------------------------------------------------------------------

    def check_step_may_come(self) -> None:
        """Raise `EpisodeStateError` if an environment must be reset before the next step.

        This is possible with disabled autoreset only.
        """
        if len(self.waiting) and self.mode is AutoresetMode.DISABLED:
            raise EpisodeStateError(
                f"step, but episodes of environments {self.waiting.tolist()} have ended and autoreset is disabled; "
                "reset them and call reset(observations, infos, reset_mask)"
            )

    def classify(self, terminateds: np.ndarray, truncateds: np.ndarray) -> Row:
        """Return which environments stepped, were reset and ended in one vector step, from its ending flags. The flags
        of environments whose row is a reset are ignored.

        `commit` records the result. `classify_rows` does the same for several vector steps.
        """
        reset, done = self.waiting, terminateds | truncateds
        if not len(reset):
            if not np.count_nonzero(done):
                return self._plain
            stepped = self._plain.stepped
        else:
            done[reset] = False
            is_step = np.ones(self.num_envs, bool)
            is_step[reset] = False
            stepped = is_step.nonzero()[0]
        ended = done.nonzero()[0]
        return Row(stepped, reset, ended, ended if self.last_lies_apart else reset)

    def commit(self, row: Row) -> None:
        """Update the state with one vector step that `classify` has classified."""
        if row is not self._plain:
            self._begin(row.begun, self.num_rows + 1)
            self.waiting = _NONE if self.last_lies_apart else row.ended
        self.num_rows += 1
        self.num_steps += len(row.stepped)

    def commit_steps(self, num_rows: int) -> None:
        """Update the state with `num_rows` vector steps in which all environments stepped and none ended."""
        self.num_rows += num_rows
        self.num_steps += num_rows * self.num_envs

    # --- many rows at once ---------------------------------------------------------------------------------------

    def classify_rows(self, dones: np.ndarray) -> Rows:
        """Return which environments stepped and ended in each of K vector steps, given done flags, bool [K, N].

        >>> rows = Boundaries(1, "NextStep").classify_rows(np.array([[0], [1], [1], [0]], bool))
        >>> rows.stepped[:, 0].tolist(), rows.ended[:, 0].tolist()
        ([True, True, False, True], [False, True, False, False])
        """
        if self.mode is AutoresetMode.NEXT_STEP:
            return self._with_reset_rows(dones)
        return Rows(np.ones_like(dones), dones)

    def last_row(self, rows: Rows) -> Row:
        """Return which environments stepped, ended and began an episode in the last of the classified vector steps."""
        stepped, ended = rows.stepped[-1], rows.ended[-1].nonzero()[0]
        reset = (~stepped).nonzero()[0]
        return Row(stepped.nonzero()[0], reset, ended, ended if self.last_lies_apart else reset)

    def commit_rows(self, rows: Rows) -> None:
        """Update the state with several vector steps that `classify_rows` has classified."""
        num_rows = len(rows.ended)
        if not num_rows:
            return
        begins = (rows.ended if self.last_lies_apart else ~rows.stepped).reshape(-1).nonzero()[0]
        at, envs = np.divmod(begins, self.num_envs)
        self._begin(envs, self.num_rows + 1 + at)  # for several beginnings in an environment, the last one counts
        self.waiting = _NONE if self.last_lies_apart else rows.ended[-1].nonzero()[0]
        self.num_rows += num_rows
        self.num_steps += int(np.count_nonzero(rows.stepped))

    def _with_reset_rows(self, dones: np.ndarray) -> Rows:
        """Classify vector steps under next-step autoreset, where the row after an ending is a reset."""
        steps, ends = np.ones_like(dones), dones
        np.logical_not(dones[:-1], out=steps[1:])
        steps[:1, self.waiting] = False
        if np.count_nonzero(dones > steps):  # flags on reset rows: every second of consecutive flags is a reset's
            number = np.arange(len(dones))[:, None]
            unflagged = np.maximum.accumulate(np.where(dones, -1, number), axis=0)  # the last row without a flag, or -1
            before = number - unflagged - 1 + (~steps[0] & (unflagged < 0))  # flags and resets right before this row
            ends = dones & (before % 2 == 0)
            np.logical_not(ends[:-1], out=steps[1:])
        return Rows(steps, ends)


def checked_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Return the `AutoresetMode` given as a member or by name. Raise `InvalidArgument` for other values."""
    try:
        return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
    except ValueError:
        known = ", ".join(repr(known.value) for known in AutoresetMode)
        raise InvalidArgument(f"autoreset mode {mode!r} is not known; there are {known}") from None


def infos_at_ends(infos: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the infos of a same-step autoreset into infos of last observations and infos of reset observations.

    Gymnasium's vector wrapper `RecordEpisodeStatistics` stores the statistics of ended episodes next to the infos of
    reset observations. They are moved to the infos of last observations, unless "final_info" has the key "episode" too.
    """
    last, statistics_of_episode = dict(infos.get("final_info") or {}), infos.get("episode")
    if (
        "episode" in last
        or "_episode" not in infos
        or not isinstance(statistics_of_episode, Mapping)
        or not statistics_of_episode.keys() >= {"r", "l"}
    ):
        return last, dict(infos)
    statistics = {"episode": statistics_of_episode, "_episode": infos["_episode"]}
    return last | statistics, {key: value for key, value in infos.items() if key not in statistics}


def final_observations_of(infos: Mapping[str, Any], envs: np.ndarray, space: Space | None = None) -> Any:
    """Return the last observations [k, ...] of the ended environments `envs` from `infos["final_obs"]`.

    Args:
        infos: vector info. `infos["final_obs"]` is an object array with None for other environments, or (nested) arrays
            [N, ...].
        envs: environments whose episodes ended, int [k].
        space: space of one environment's observations, or None.

    Raises:
        TrackMismatch: an observation is missing.
    """
    final = infos.get("final_obs")
    if final is None:
        raise TrackMismatch(
            f"environments {envs.tolist()} ended with same-step autoreset, and infos has no 'final_obs' (it has "
            f"{list(infos)}): their last observations are lost; pass final_observations, or another autoreset_mode"
        )
    if isinstance(final, list) and any(item is None for item in final):
        final = as_object_array(final)
    if not isinstance(final, np.ndarray) or final.dtype != object:
        rows = nested.map_leaves(np.asarray, as_rows(final, space))
        _check_rows(nested.first_leaf(rows), envs)
        return nested.take(rows, envs)
    _check_rows(final, envs)
    items = [final[env] for env in envs.tolist()]
    missing = [env for env, item in zip(envs.tolist(), items, strict=True) if item is None]
    if missing:
        raise TrackMismatch(f"environments {missing} ended, and infos['final_obs'] has None for them")
    return stacked(items, space)


def _check_rows(final: np.ndarray, envs: np.ndarray) -> None:
    """Raise `TrackMismatch` if `final` lacks rows for some of the environments `envs`, which ended."""
    if len(final) <= envs[-1]:
        raise TrackMismatch(
            f"environments {envs.tolist()} ended, and infos['final_obs'] has {len(final)} rows; give one for each "
            "environment"
        )
