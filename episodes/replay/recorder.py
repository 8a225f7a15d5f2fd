"""`ReplayRecorder`: the rows of a vector environment go straight into a replay buffer, with no pack in between.

It follows the same three autoreset modes as `VectorRecorder`. A vector step is one block of the linked ring: a chunk
of one step per environment, each continuing its episode. Python work is done per episode that begins, never per step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from episodes import nested
from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch
from episodes.infos import EmptyInfos, Infos, VectorInfos
from episodes.recorder import checked_mode, final_observations_of
from episodes.replay.linked_ring import ACTIONS, REWARDS, TERMINATEDS, TRUNCATEDS, Block, LinkedRing
from episodes.replay.table import NONE, EpisodeFacts

_NOTHING: dict[str, Any] = {}


class ReplayRecorder:
    """Writes what `num_envs` environments do into a buffer; made by `EpisodeReplayBuffer.recorder`.

    `reset` and `step` take what those of `VectorRecorder` take. Other episodes may be added to the buffer meanwhile.
    A call that raises leaves the buffer's steps as they were. After `clear` or `set_state` of the buffer, `reset`.
    """

    def __init__(self, ring: LinkedRing, num_envs: int, autoreset_mode: AutoresetMode | str) -> None:
        if num_envs < 1 or 2 * num_envs > ring.capacity:
            raise InvalidArgument(
                f"num_envs={num_envs}: give at least 1, and at most half the buffer's capacity of {ring.capacity} steps"
            )
        self.num_envs = num_envs
        self.autoreset_mode = checked_mode(autoreset_mode)
        self._resets_same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        self._ring = ring
        self._all = np.arange(num_envs)
        self._row, self._t, self._entry = np.zeros((3, num_envs), np.int64)
        self._last = np.full(num_envs, NONE, np.int64)  # number of the episode's newest step
        self._waiting = np.zeros(num_envs, bool)  # ended, not reset yet
        self._num_waiting = 0
        self._num_fresh = num_envs  # episodes without a step
        self._generation = 0  # of the ring, at the last reset of all
        self._seen = NONE  # the ring's head of rows when this recorder last wrote

    def reset(
        self, observations: Any, infos: dict[str, Any] | None = None, reset_mask: np.ndarray | None = None
    ) -> None:
        """Begin new episodes with the observations [N, ...], in all environments or in those of the bool mask [N].

        An episode that was going on there stops as a cut chunk.
        """
        ring, observations = self._ring, self._observed(observations)
        envs = self._all if reset_mask is None else np.flatnonzero(self._checked_mask(reset_mask))
        ring.prepare_observations(observations)
        ring.make_room(0, len(envs))
        self._row[envs] = ring.rows_head + np.arange(len(envs))
        ring.append_rows(observations, None if reset_mask is None else envs, len(envs), _infos([infos or {}], envs))
        self._last[envs] = NONE
        self._t[envs] = 0
        self._num_fresh = int((self._last == NONE).sum())
        self._waiting[envs] = False
        self._num_waiting = int(self._waiting.sum())
        self._generation, self._seen = ring.generation, NONE

    def _checked_mask(self, reset_mask: np.ndarray) -> np.ndarray:
        mask = np.asarray(reset_mask)
        if mask.dtype != bool or mask.shape != (self.num_envs,):
            raise InvalidArgument(f"reset_mask is {mask.dtype} {mask.shape}; give bool ({self.num_envs},)")
        if self._generation != self._ring.generation and not mask.all():
            raise EpisodeStateError("the first reset must be of every environment; leave reset_mask out")
        return mask

    def step(
        self,
        observations: Any,
        actions: Any,
        rewards: Any,
        terminateds: np.ndarray,
        truncateds: np.ndarray,
        infos: dict[str, Any] | None = None,
        extra_model_outputs: Mapping[str, Any] | None = None,
        *,
        final_observations: Any = None,
    ) -> None:
        """Store a vector step: what `step` of the environment returned, [N, ...] each, and the actions it got."""
        live, infos = self._live(), infos or _NOTHING
        observations = self._observed(observations)
        tracks = self._tracks(actions, rewards, terminateds, truncateds, extra_model_outputs or _NOTHING)
        ended = self._ended(tracks)
        if not (len(ended) and self._resets_same_step):
            self._make_room(observations, tracks, len(live), self.num_envs)
            numbers = self._write(observations, tracks, live, _infos([infos], self._all))
            self._go_on(live, numbers, ended)
        else:
            finals = final_observations_of(infos, ended) if final_observations is None else final_observations
            self._step_and_reset(observations, tracks, ended, infos, finals)
        self._seen = self._ring.rows_head

    def _tracks(
        self, actions: Any, rewards: Any, terminateds: Any, truncateds: Any, extras: Mapping[str, Any]
    ) -> dict[str, Any]:
        tracks = {ACTIONS: actions, REWARDS: rewards, TERMINATEDS: terminateds, TRUNCATEDS: truncateds, **extras}
        for name, items in tracks.items():
            if type(items) is not np.ndarray:
                tracks[name] = items = nested.map_leaves(np.asarray, items)
            if len(nested.first_leaf(items)) != self.num_envs:
                shape = nested.first_leaf(items).shape
                raise ShapeMismatch(f"{name} have shape {shape}; give [{self.num_envs}, ...], a row per environment")
        return tracks

    def _observed(self, observations: Any) -> Any:
        if type(observations) is not np.ndarray:
            observations = nested.map_leaves(np.asarray, observations)
        if len(nested.first_leaf(observations)) != self.num_envs:
            shape = nested.first_leaf(observations).shape
            raise ShapeMismatch(f"observations have shape {shape}; give [{self.num_envs}, ...], a row per environment")
        return observations

    def _live(self) -> np.ndarray:
        """The environments whose row is a step."""
        if self._generation != self._ring.generation:
            raise EpisodeStateError("step before the reset; call reset(observations, infos) first")
        if not self._num_waiting:
            return self._all
        if self.autoreset_mode is AutoresetMode.DISABLED:
            raise EpisodeStateError(
                f"step, but the episodes of environments {np.flatnonzero(self._waiting).tolist()} have ended and "
                "autoreset is disabled; reset them and call reset(observations, infos, reset_mask)"
            )
        return (~self._waiting).nonzero()[0]

    def _ended(self, tracks: dict[str, Any]) -> np.ndarray:
        done = tracks[TERMINATEDS] | tracks[TRUNCATEDS]
        if self._num_waiting:
            done &= ~self._waiting
        return done.nonzero()[0]

    def _make_room(self, observations: Any, tracks: dict[str, Any], num_steps: int, num_rows: int) -> None:
        ring = self._ring
        ring.prepare(observations, tracks)
        if self._seen != ring.rows_head:
            self._check_still_there(num_steps, num_rows)
        ring.make_room(num_steps, num_rows)

    def _check_still_there(self, num_steps: int, num_rows: int) -> None:
        """Somebody else wrote: see that what the ongoing episodes go on from was not evicted."""
        ring = self._ring
        gap = ring.rows_head - int(self._row.min())
        going_on = self._last[self._last != NONE]
        evicted = len(going_on) and going_on.min() < ring.head + num_steps - ring.capacity
        if evicted or gap > ring.num_rows:
            raise EpisodeStateError(
                "so many steps were added between two vector steps that the ongoing episodes are no longer there; "
                "call reset, or add fewer at a time"
            )
        ring.window = max(ring.window, gap + num_rows, 4 * self.num_envs)

    def _write(self, observations: Any, tracks: dict[str, Any], live: np.ndarray, infos: Infos) -> np.ndarray:
        """Append one block; the numbers [k] of the new steps."""
        ring, everyone = self._ring, len(live) == self.num_envs
        numbers = np.arange(ring.head, ring.head + len(live))
        next_row = self._all + ring.rows_head
        if self._num_fresh:
            self._open(live, numbers)
        pick = (lambda column: column) if everyone else (lambda column: column.take(live))
        block = Block(
            observations=observations,
            observation_rows=None,
            num_rows=self.num_envs,
            tracks=tracks,
            step_rows=None if everyone else live,
            row=pick(self._row),
            next_row=pick(next_row),
            previous=pick(self._last),
            entry=pick(self._entry),
            t=pick(self._t),
            infos=infos,
        )
        ring.append(block)
        self._row = next_row
        return numbers

    def _open(self, live: np.ndarray, numbers: np.ndarray) -> None:
        """Give the episodes that have their first step now an entry in the table."""
        fresh = (self._last.take(live) == NONE).nonzero()[0]
        envs = live[fresh]
        facts = [EpisodeFacts(os.urandom(16).hex()) for _ in range(len(envs))]
        self._entry[envs] = self._ring.table.open(facts, numbers[fresh] % self._ring.capacity)
        self._last[envs] = numbers[fresh]

    def _go_on(self, live: np.ndarray, numbers: np.ndarray, ended: np.ndarray) -> None:
        """Remember where each episode is; those in `ended` are over."""
        table, everyone = self._ring.table, len(live) == self.num_envs
        if everyone:
            self._last = numbers
            self._t += 1
            table.extend(self._entry, numbers, self._row, self._t)
        else:
            self._last[live] = numbers
            self._t[live] += 1
            table.extend(self._entry.take(live), numbers, self._row.take(live), self._t.take(live))
        self._num_fresh = self._num_waiting
        if self._num_waiting:
            self._waiting[:] = False
            self._num_waiting = 0
        if len(ended):
            table.ended[self._entry[ended]] = True
            self._last[ended] = NONE
            self._t[ended] = 0
            self._waiting[ended] = True
            self._num_waiting = len(ended)

    def _step_and_reset(
        self, observations: Any, tracks: dict[str, Any], ended: np.ndarray, infos: dict[str, Any], finals: Any
    ) -> None:
        """A step after which the ended episodes' rows hold the next episodes' first observations: store both."""
        ring, finals = self._ring, nested.map_leaves(np.asarray, finals)
        ring.observations.check(finals)
        if len(nested.first_leaf(finals)) != len(ended):
            raise ShapeMismatch(f"{len(nested.first_leaf(finals))} final observations for {len(ended)} endings")
        self._make_room(observations, tracks, self.num_envs, self.num_envs + len(ended))
        which = np.zeros(self.num_envs, np.int64)
        which[ended] = 1
        row_infos = _infos([infos, infos.get("final_info") or {}], self._all, which)
        numbers = self._write(observations, tracks, self._all, row_infos)
        ring.observations.overwrite(self._row[ended], finals)
        self._go_on(self._all, numbers, ended)
        self._row[ended] = ring.rows_head + np.arange(len(ended))
        ring.append_rows(observations, ended, len(ended), _infos([infos], ended))
        self._waiting[ended] = False
        self._num_fresh, self._num_waiting = len(ended), 0


def _infos(vector_infos: list[dict[str, Any]], envs: np.ndarray, which: np.ndarray | None = None) -> Infos:
    """The infos of the environments [k], each out of one of the vector infos (the first when not said)."""
    if not any(vector_infos):
        return EmptyInfos(len(envs))
    return VectorInfos(vector_infos, np.zeros(len(envs), np.int64) if which is None else which, envs)
