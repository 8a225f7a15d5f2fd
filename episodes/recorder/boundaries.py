"""Where episodes end and begin in the rows of N environments: the one home of the three autoreset modes.

Row r is what `step` of a vector environment returned; an episode of environment n ends there (its flag is set):

    mode       row r                                                      row r + 1
    NEXT_STEP  a step; its observation is the last one                    a reset and no step: its action was ignored,
                                                                          its reward and flags mean nothing
    SAME_STEP  a step; its observation is the next episode's first one,   a step
               the last one lies apart, in infos["final_obs"]
    DISABLED   a step; its observation is the last one                    comes only after `reset`, which puts the
                                                                          first observation in its place
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from episodes.errors import EpisodeStateError, InvalidArgument, TrackMismatch
from episodes.tracks import nested
from episodes.tracks.infos.dicts import objects
from episodes.tracks.spaces import as_rows, stacked
from episodes.tracks.validation import checked_count

_NONE = np.zeros(0, np.intp)


class Row(NamedTuple):
    """What a row of N environments is to each of them: environments, int [k], ascending."""

    stepped: np.ndarray  # the row is a step of theirs
    reset: np.ndarray  # the row is their reset, and no step: all others
    ended: np.ndarray  # their episode ended with this step
    begun: np.ndarray  # the row's observation is the first one of their next episode


class Rows(NamedTuple):
    """What K rows of N environments are."""

    stepped: np.ndarray  # bool [K, N], the row is a step, and no reset
    ended: np.ndarray  # bool [K, N], an episode ended with it


class Boundaries:
    """Follows N environments, a row at a time (`classify`, `commit`) or many at once (`classify_rows`, `commit_rows`).

    Nothing is done per environment. Who must know each row as it comes (which environments stepped, whose last
    observation lies apart) looks at each, 3 us; who only keeps rows asks about many of them at a time.

    Attributes:
        mode: the autoreset mode.
        last_lies_apart: the rows do not hold the last observations of episodes that end (same-step autoreset).
        waiting: environments [k] whose episode ended and whose next one has not begun: their next row is a reset
            (next-step autoreset), or `reset` must come before it (disabled).
        num_rows: so far.
        num_steps: of all environments so far, resets not counted.
    """

    def __init__(self, num_envs: int, mode: AutoresetMode | str) -> None:
        self.num_envs = checked_count("num_envs", num_envs)
        self.mode = checked_mode(mode)
        self.last_lies_apart = self.mode is AutoresetMode.SAME_STEP
        self.waiting = _NONE
        self.num_rows = self.num_steps = 0
        self._first_rows = np.zeros(num_envs, np.int64)  # rows so far when the episode began; replaced, never changed
        self._plain = Row(np.arange(num_envs), _NONE, _NONE, _NONE)  # a step of all, where nothing ends: most rows

    @property
    def ages(self) -> np.ndarray:
        """Steps so far [N] of the episodes; one that ended counts until its reset."""
        return self.num_rows - self._first_rows

    def copy(self) -> Boundaries:
        """A machine of its own that goes on from here."""
        other = Boundaries.__new__(Boundaries)
        other.__dict__.update(self.__dict__)
        return other

    def resume(self, ages: np.ndarray, waiting: np.ndarray = _NONE) -> None:
        """Follow episodes of these ages [N], those of the environments `waiting` [k] having ended."""
        self.waiting = waiting
        self._first_rows = self.num_rows - np.asarray(ages, np.int64)

    def reset(self, mask: np.ndarray) -> None:
        """New episodes begin in the environments of the mask, bool [N]."""
        self.waiting = self.waiting[~mask[self.waiting]]
        self._begin(mask, self.num_rows)

    def _begin(self, envs: np.ndarray, rows: Any) -> None:
        """The next rows [k] of the environments (a mask, or [k]) are the first ones of episodes."""
        first_rows = self._first_rows.copy()
        first_rows[envs] = rows
        self._first_rows = first_rows

    def checked_mask(self, mask: Any) -> np.ndarray:
        """The environments of a reset, bool [N]; all of them for None."""
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
        """Raise `EpisodeStateError` where environments must be reset first (disabled autoreset)."""
        if len(self.waiting) and self.mode is AutoresetMode.DISABLED:
            raise EpisodeStateError(
                f"step, but episodes of environments {self.waiting.tolist()} have ended and autoreset is disabled; "
                "reset them and call reset(observations, infos, reset_mask)"
            )

    def classify(self, terminateds: np.ndarray, truncateds: np.ndarray) -> Row:
        """What a row with these flags, bool [N], is. Nothing is remembered until `commit`, so that a row may fail."""
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
        """The row was recorded."""
        num_steps = self.num_steps + len(row.stepped)
        if row is not self._plain:
            self._begin(row.begun, self.num_rows + 1)
            self.waiting = _NONE if self.last_lies_apart else row.ended
        self.num_rows += 1  # no call since `waiting`, so that an interrupt leaves all or nothing
        self.num_steps = num_steps

    def commit_steps(self, num_rows: int) -> None:
        """So many rows were recorded that are steps of all, and in which nothing ended."""
        num_steps = self.num_steps + num_rows * self.num_envs
        self.num_rows += num_rows
        self.num_steps = num_steps

    # --- many rows at once ---------------------------------------------------------------------------------------

    def classify_rows(self, dones: np.ndarray) -> Rows:
        """What the rows with these flags, bool [K, N], are. Nothing is remembered until `commit_rows`.

        >>> rows = Boundaries(1, "NextStep").classify_rows(np.array([[0], [1], [1], [0]], bool))
        >>> rows.stepped[:, 0].tolist(), rows.ended[:, 0].tolist()
        ([True, True, False, True], [False, True, False, False])
        """
        if self.mode is AutoresetMode.NEXT_STEP:
            return self._with_reset_rows(dones)
        return Rows(np.ones_like(dones), dones)

    def last_row(self, rows: Rows) -> Row:
        """What the last one of the rows is, as `classify` would have said."""
        stepped, ended = rows.stepped[-1], rows.ended[-1].nonzero()[0]
        reset = (~stepped).nonzero()[0]
        return Row(stepped.nonzero()[0], reset, ended, ended if self.last_lies_apart else reset)

    def commit_rows(self, rows: Rows) -> None:
        """The rows were recorded."""
        num_rows = len(rows.ended)
        if not num_rows:
            return
        begins = (rows.ended if self.last_lies_apart else ~rows.stepped).reshape(-1).nonzero()[0]
        at = begins // self.num_envs
        envs = begins - at * self.num_envs  # `divmod` takes twice the time
        self._begin(envs, self.num_rows + 1 + at)  # of several rows where episodes begin the last one stays
        waiting = _NONE if self.last_lies_apart else rows.ended[-1].nonzero()[0]
        num_steps = self.num_steps + rows.stepped.size - (0 if self.last_lies_apart else len(begins))
        self.num_rows += num_rows  # no call from here on, so that an interrupt leaves all or nothing
        self.num_steps, self.waiting = num_steps, waiting

    def _with_reset_rows(self, dones: np.ndarray) -> Rows:
        """Steps and ends of next-step autoreset, where the row after an ending is a reset whatever its flag says."""
        steps, ends = np.ones_like(dones), dones
        np.logical_not(dones[:-1], out=steps[1:])
        steps[:1, self.waiting] = False
        if np.count_nonzero(dones > steps):  # flags on reset rows, rare: of flags in a row each second is a reset's
            number = np.arange(len(dones))[:, None]
            unflagged = np.maximum.accumulate(np.where(dones, -1, number), axis=0)  # the last row without a flag; -1
            before = number - unflagged - 1 + (~steps[0] & (unflagged < 0))  # flags and resets right before this row
            ends = dones & (before % 2 == 0)
            np.logical_not(ends[:-1], out=steps[1:])
        return Rows(steps, ends)


def checked_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """The autoreset mode itself; `InvalidArgument` lists the known ones."""
    try:
        return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
    except ValueError:
        known = ", ".join(repr(known.value) for known in AutoresetMode)
        raise InvalidArgument(f"autoreset mode {mode!r} is not known; there are {known}") from None


def infos_at_ends(infos: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The infos of the last observations of ended episodes, and those of the row: a vector info of same-step autoreset.

    The statistics that Gymnasium's vector `RecordEpisodeStatistics` writes are those of the episodes that ended, though
    they stand beside the infos of the next ones. Environments that give an "episode" themselves have it in both.
    """
    last, told = dict(infos.get("final_info") or {}), infos.get("episode")
    if "episode" in last or "_episode" not in infos or not isinstance(told, Mapping) or not told.keys() >= {"r", "l"}:
        return last, dict(infos)
    statistics = {"episode": told, "_episode": infos["_episode"]}
    return last | statistics, {key: value for key, value in infos.items() if key not in statistics}


def final_observations_of(infos: Mapping[str, Any], envs: np.ndarray, space: Any = None) -> Any:
    """The true last observations, nested arrays [k, ...], of the k environments, out of a vector info.

    `infos["final_obs"]` is an object array with holes, or dense: (nested) arrays [N, ...].

    Args:
        space: of one environment's observations, as far as it is known.
    """
    given = infos.get("final_obs")
    if given is None:
        raise TrackMismatch(
            f"environments {envs.tolist()} ended with same-step autoreset, and infos has no 'final_obs' (it has "
            f"{list(infos)}): their last observations are lost; pass final_observations, or another autoreset_mode"
        )
    if isinstance(given, list) and any(item is None for item in given):
        given = objects(given)
    if not isinstance(given, np.ndarray) or given.dtype != object:
        rows = nested.map_leaves(np.asarray, as_rows(given, space))
        _check_rows(nested.first_leaf(rows), envs)
        return nested.take(rows, envs)
    _check_rows(given, envs)
    items = [given[env] for env in envs.tolist()]
    missing = [env for env, item in zip(envs.tolist(), items, strict=True) if item is None]
    if missing:
        raise TrackMismatch(f"environments {missing} ended, and infos['final_obs'] has None for them")
    return stacked(items, space)


def _check_rows(given: np.ndarray, envs: np.ndarray) -> None:
    if len(given) <= envs[-1]:
        raise TrackMismatch(
            f"environments {envs.tolist()} ended, and infos['final_obs'] has {len(given)} rows; give one for each "
            "environment"
        )
