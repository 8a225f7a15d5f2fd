"""Index arithmetic for rollouts [N, T + 1]: which rows belong to which part of an episode.

A *fragment* is a run of rows of one environment that belong to one chunk. Its last observation is in the slot after its
last row, unless the next fragment starts there. Then it is stored separately, in `rollout["final"]`.

A rollout of T = 5 steps of one environment, in which episode a ends at row 2 (a*) and episode b continues:

    slot                   0  1  2  3  4  5
    next-step autoreset    a  a  a* r  b  |     slot 3: last observation of a; row 3 is a reset and no step
    same-step autoreset    a  a  a* b  b  |     slot 3: first observation of b; the last one of a is in "final"
    fragments              a: rows 0..2, b: row 4 (next step), or rows 3..4 (same step); slot 5: last observation of b
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from episodes.errors import ChunkMismatch, InvalidArgument, ShapeMismatch
from episodes.facts.facts import random_ids
from episodes.pack import EpisodePack
from episodes.recorder.boundaries import Boundaries
from episodes.tracks.indexing import ranges


class BlockEdge:
    """State of N environments between two rollouts: which episodes are unfinished and continue in the next rollout.

    Each conversion of a rollout updates it.

    Args:
        num_envs: number N of environments.
        autoreset_mode: the environments' autoreset mode.

    Attributes:
        ids: ids of the continuing episodes, object [N]; "" for none.
        boundaries: state of the autoreset boundaries after the converted rows.

    >>> BlockEdge(2, "SameStep")
    BlockEdge(2 environments, SameStep, 0 episodes going on)
    """

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode | str) -> None:
        self.boundaries = Boundaries(num_envs, autoreset_mode)
        self.num_envs = num_envs
        self.autoreset_mode = self.boundaries.mode
        self.ids = np.full(num_envs, "", object)

    def __repr__(self) -> str:
        going_on = np.count_nonzero(self.ids != "")
        return f"BlockEdge({self.num_envs} environments, {self.autoreset_mode.value}, {going_on} episodes going on)"

    @property
    def steps(self) -> np.ndarray:
        """Number of steps that the unfinished episode of each environment has so far, [N]."""
        return self.boundaries.ages

    @property
    def resets(self) -> np.ndarray:
        """Whether the first row of each environment in the next rollout is a reset instead of a step, bool [N]."""
        resets = np.zeros(self.num_envs, bool)
        resets[self.boundaries.waiting] = True
        return resets

    @property
    def resets_next_step(self) -> bool:
        """Whether the row after the end of an episode is a reset (next-step autoreset)."""
        return self.autoreset_mode is AutoresetMode.NEXT_STEP

    def advance(self, fragments: Fragments, ended: np.ndarray) -> None:
        """Update this state to the end of a rollout. `ended`, bool [F], is True for parts of episodes whose episode is
        over.
        """
        newest = np.ones(len(fragments), bool)
        newest[:-1] = fragments.envs[1:] != fragments.envs[:-1]
        over, goes_on = newest & ended, newest & ~ended
        self.ids[:] = ""
        self.ids[fragments.envs[goes_on]] = fragments.ids[goes_on]
        steps = np.zeros(self.num_envs, np.int64)
        steps[fragments.envs[goes_on]] = (fragments.t_started + fragments.lengths)[goes_on]
        at_the_end = fragments.first_rows + fragments.lengths == fragments.num_rows
        waiting = fragments.envs[over & at_the_end & self.resets_next_step]
        self.boundaries.resume(steps, waiting)

    def get_state(self) -> dict[str, Any]:
        """Return the unfinished episodes as a dict for a checkpoint: ids, numbers of steps, and pending resets."""
        return {"ids": self.ids.tolist(), "steps": self.steps, "resets": self.resets}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the unfinished episodes that `get_state` returned."""
        ids, steps, resets = list(state["ids"]), np.asarray(state["steps"], np.int64), np.asarray(state["resets"], bool)
        if not len(ids) == len(steps) == len(resets) == self.num_envs:
            raise ValueError(f"{len(ids)} ids, {len(steps)} numbers of steps, {len(resets)} resets")
        self.ids[:] = ids
        self.boundaries.resume(steps, np.flatnonzero(resets))


@dataclass(frozen=True, slots=True)
class Fragments:
    """Positions of F parts of episodes in a rollout [N, T + 1]. Each part has consecutive rows of one environment."""

    envs: np.ndarray  # [F] int
    first_rows: np.ndarray  # [F] int
    lengths: np.ndarray  # [F] int; 0: one observation and no step
    ids: np.ndarray  # [F] of the episodes
    t_started: np.ndarray  # [F] int
    num_rows: int  # T
    source: EpisodePack | None = None  # the chunks, where the rollout was made of them

    def __len__(self) -> int:
        return len(self.envs)

    @property
    def starts(self) -> np.ndarray:
        """Flat index env * (T + 1) + t of the first row of each part of an episode, [F]."""
        return self.envs * (self.num_rows + 1) + self.first_rows

    def step_rows(self) -> np.ndarray:
        """Return the flat index env * (T + 1) + t, in a rollout, of each of the S steps in all parts of
        episodes, [S].
        """
        return ranges(self.starts, self.lengths)

    def observation_rows(self) -> np.ndarray:
        """Return the flat index, in a rollout, of the row of each observation, [S + F]. A part of T steps has T + 1."""
        return ranges(self.starts, self.lengths + 1)

    def ends(self) -> np.ndarray:
        """Return the flat index, in a rollout, of the last step of each part of an episode, [F].

        A part without steps has the index of the row before its first row.
        """
        return self.starts + self.lengths - 1

    def last_observations(self) -> np.ndarray:
        """Return the index of each part's last observation among the S + F observations of all parts, [F]."""
        return np.cumsum(self.lengths + 1) - 1

    def shares_last_slot(self) -> np.ndarray:
        """Return which parts of episodes have their last observation in the row where the next part begins,
        bool [F].
        """
        slots = self.starts + self.lengths
        shares_last_slot = np.zeros(len(self), bool)
        shares_last_slot[:-1] = slots[:-1] == self.starts[1:]
        return shares_last_slot


def place_chunks(pack: EpisodePack, num_rows: int, edge: BlockEdge) -> Fragments:
    """Assign each chunk (part of an episode) in a pack to consecutive rows of one environment of a rollout.

    Environments are filled one after another. A chunk that continues an episode of the previous rollout stays in its
    environment. The chunks of a `VectorRecorder` therefore get the rows from which they came.

    Args:
        num_rows: rows per environment.
        edge: state of the environments after the previous rollout.

    Raises:
        ShapeMismatch: a chunk has more steps than there are rows, or there are too many chunks.
        ChunkMismatch: a chunk does not start where its episode stopped in the previous rollout, or chunks are not
            ordered by environment.
    """
    homes = {id_: env for env, id_ in enumerate(edge.ids.tolist()) if id_}
    begins = [*edge.resets.astype(int).tolist(), 0]
    gaps = ((pack.terminated | pack.truncated) & edge.resets_next_step).tolist()
    env, row, envs, rows = 0, begins[0], [], []
    for i, (length, id_) in enumerate(zip(pack.lengths.tolist(), pack.ids.tolist(), strict=True)):
        home = homes.pop(id_, None)
        if home is not None:
            _check_continuation(i, pack, home, edge, envs)
            env, row = home, begins[home]
        while home is None and env < edge.num_envs and row + length > num_rows:
            env, row = env + 1, begins[env + 1]
        if env >= edge.num_envs or row + length > num_rows:
            raise ShapeMismatch(
                f"chunk {i} of {len(pack)}, {length} steps, does not fit: the rollout has {edge.num_envs} environments "
                f"of {num_rows} rows; give fewer or shorter chunks (episode[a:b])"
            )
        envs.append(env)
        rows.append(row)
        row += max(length + gaps[i], 1)
    columns = np.array(envs, np.int64), np.array(rows, np.int64)
    return Fragments(*columns, pack.lengths, pack.ids.astype(object), pack.t_started, num_rows, pack)


def _check_continuation(i: int, pack: EpisodePack, home: int, edge: BlockEdge, envs: list[int]) -> None:
    """Raise `ChunkMismatch` if chunk `i` does not start where its episode stopped in the previous rollout, or is out of
    order.

    Args:
        home: environment of its episode in the previous rollout.
        envs: environments of the chunks before it.
    """
    chunk = f"chunk {i} of episode {pack.ids[i]}, which goes on in environment {home}"
    if envs and envs[-1] >= home:
        raise ChunkMismatch(f"{chunk}, comes after chunks of environment {envs[-1]}; chunks lie env after env")
    if pack.t_started[i] != edge.steps[home]:
        raise ChunkMismatch(
            f"{chunk}, starts at step {pack.t_started[i]}; the block before stopped at {edge.steps[home]}"
        )


def find_fragments(valid: np.ndarray, done: np.ndarray, edge: BlockEdge) -> Fragments:
    """Find the episodes in a rollout that a simulator filled, from the flags `valid` and `done` [N, T].

    New episodes get random ids. An episode that starts with the last observation of the rollout is a part without
    steps.

    Raises:
        InvalidArgument: a row is valid but is a reset in the autoreset mode, or `edge` has another number of
            environments.
    """
    num_rows = valid.shape[1]
    _check_resets(valid, done, edge)
    begins, stops = valid.copy(), valid & done
    begins[:, 1:] &= ~valid[:, :-1] | done[:, :-1]
    stops[:, :-1] |= valid[:, :-1] & ~valid[:, 1:]
    stops[:, -1] = valid[:, -1]
    envs, first_rows = np.nonzero(begins)
    lengths = np.nonzero(stops)[1] - first_rows + 1
    starting = np.flatnonzero(~valid[:, -1] if edge.resets_next_step else valid[:, -1] & done[:, -1])
    envs = np.concatenate([envs, starting])
    first_rows = np.concatenate([first_rows, np.full(len(starting), num_rows)])
    order = np.lexsort((first_rows, envs))
    envs, first_rows = envs[order], first_rows[order]
    lengths = np.concatenate([lengths, np.zeros(len(starting), np.int64)])[order]
    goes_on = (first_rows == 0) & (edge.ids[envs] != "")
    ids = np.where(goes_on, edge.ids[envs], random_ids(len(envs)).astype(object))
    return Fragments(envs, first_rows, lengths, ids, np.where(goes_on, edge.steps[envs], 0), num_rows)


def _check_resets(valid: np.ndarray, done: np.ndarray, edge: BlockEdge) -> None:
    """Raise `InvalidArgument` if a row is marked as a valid step although it is a reset in the autoreset mode."""
    if len(valid) != edge.num_envs:
        raise InvalidArgument(f"a rollout of {len(valid)} environments with a BlockEdge of {edge.num_envs}")
    wrong = valid & ~edge.boundaries.classify_rows((valid & done).T).stepped.T
    if wrong.any():
        env, row = np.argwhere(wrong)[0].tolist()
        raise InvalidArgument(
            f"environment {env}, row {row} is valid, but with next-step autoreset the row after an ending is a reset, "
            "not a transition"
        )
