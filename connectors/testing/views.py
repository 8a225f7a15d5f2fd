"""`check_view`: check that a view computes the same policy inputs while acting, while learning and in replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from connectors.sequences import Sequences
from connectors.views.view import View, Views
from episodes.batch import Batch
from episodes.pack import EpisodePack, PackHistory
from episodes.recorder.recorder_history import RecorderHistory
from episodes.recorder.vector_recorder import VectorRecorder
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import EpisodesHistory, SingleAgentEpisode
from episodes.testing.contract import brief, violation
from episodes.tracks import nested

if TYPE_CHECKING:
    from episodes.tracks import Track

__all__ = ["check_view"]

_OBS, _NEXT_OBS = "obs", "new_obs"

Columns = dict[str, Any]


def check_view(
    views: View | Iterable[View],
    make_env: Callable[[], gym.Env],
    *,
    num_envs: int = 3,
    num_steps: int = 60,
    take_every: int = 7,
    seed: int = 0,
) -> None:
    """Check in environments that views compute the same inputs for an observation while acting, while learning and in
    replay.

    Random actions are taken in a vector environment, in each of the three autoreset modes, and cut into chunks every
    few steps. The columns of each observation while acting are compared with those while learning: among the T + 1 of
    its chunk, as the next observation of a step, in padded sequences, in replay, and in an episode that grows step by
    step.

    Args:
        views: a view, or several in order.
        make_env: function that returns one environment; episodes of 5 to 20 steps test most.
        num_envs: number of environments.
        num_steps: number of vector steps.
        take_every: number of vector steps in a chunk.
        seed: seed of the environments and actions.

    Raises:
        ContractViolation: a column differs. The error names the column, the first row and the place.
        EpisodeError: the views cannot be bound, see `Views`.
    """
    chain = [views] if callable(views) else list(views)
    for mode in AutoresetMode:
        env = SyncVectorEnv([make_env] * num_envs, autoreset_mode=mode)
        bound = Views(chain, env.single_observation_space, env.single_action_space)
        play = _RandomPlay(env, bound, mode, seed)
        comparison = _Comparison(bound, mode)
        for _ in range(num_steps // take_every):
            acting_columns, pack = play.chunk(take_every)
            comparison.check_chunk(acting_columns, pack)
        env.close()


class _RandomPlay:
    """Random play in a vector environment: it records episodes, and what the views compute before each step."""

    def __init__(self, env: SyncVectorEnv, views: Views, mode: AutoresetMode, seed: int) -> None:
        self.env, self.views, self.mode = env, views, mode
        self._spaces = (env.single_observation_space, env.single_action_space)
        self._recorder = VectorRecorder(
            env.num_envs, *self._spaces, autoreset_mode=mode, len_lookback_buffer=views.lookback
        )
        env.action_space.seed(seed)
        self._recorder.reset(*env.reset(seed=seed))
        self._waiting = np.zeros(env.num_envs, bool)  # rows whose action is ignored

    def chunk(self, num_steps: int) -> tuple[Columns, EpisodePack]:
        """Take `num_steps` random vector steps. Return the views' columns before each step, [B, ...], and the recorded
        episodes.

        Both are ordered by environment.
        """
        rows: list[list[Columns]] = [[] for _ in range(self.env.num_envs)]
        for _ in range(num_steps):
            history = RecorderHistory(self._recorder.episodes, self.views.given, self.views.lookback)
            columns = nested.map_leaves(np.array, self.views(history))
            for i in np.flatnonzero(~self._waiting).tolist():
                rows[i].append(nested.take(columns, slice(i, i + 1)))
            self._step()
        pack = self._recorder.take()
        return nested.concatenate([columns for of_env in rows for columns in of_env]), pack

    def _step(self) -> None:
        """Take and record one random vector step, and reset ended environments if the autoreset mode is off."""
        actions = self.env.action_space.sample()
        observations, rewards, terminateds, truncateds, infos = self.env.step(actions)
        self._recorder.step(observations, actions, rewards, terminateds, truncateds, infos)
        done = (terminateds | truncateds) & ~self._waiting
        self._waiting = done if self.mode is AutoresetMode.NEXT_STEP else np.zeros_like(done)
        if self.mode is AutoresetMode.DISABLED and done.any():
            observations, infos = self.env.reset(options={"reset_mask": done.copy()})
            self._recorder.reset(observations, infos, done)


class _Comparison:
    """Comparison of what views compute for the same observations while acting, while learning and in replay."""

    def __init__(self, views: Views, mode: AutoresetMode) -> None:
        self._views, self._mode = views, mode

    def check_chunk(self, acting_columns: Columns, pack: EpisodePack) -> None:
        """Check that the views compute equal columns when the policy acts and when it learns from the recorded steps.

        Args:
            acting_columns: what the views computed for each step of `pack`, in order, while it was recorded.
            pack: the recorded steps. The views compute their columns from it as for a learner's steps, values, next
                observations and padded sequences, from a replay buffer, and from episodes that grow step by step.

        Raises:
            ContractViolation: two of the columns differ.
        """
        observed, after = pack.observation_rows(), pack.observation_rows(shift=1)
        learned = self._compute(pack, observed)
        self._check_equal("learning", learned, acting_columns)
        values = self._compute(pack, slice(None))
        self._check_equal("values", nested.take(values, observed), learned)
        self._check_equal("next observations", self._compute(pack, after), nested.take(values, after))
        sequences = Sequences.of(pack.lengths, 4)
        firsts = pack.observation_offsets[sequences.episodes] + pack.lookbacks[sequences.episodes] + sequences.starts
        padded = firsts[:, None] + np.minimum(np.arange(4), sequences.lengths[:, None] - 1)
        self._check_equal(
            "padded sequences", nested.take(self._compute(pack, padded.ravel()), sequences.mask.ravel()), learned
        )
        self._check_replay(pack)
        for i in range(len(pack)):
            self._check_equal(
                "growing by hand", self._compute_growing(pack, i), self._compute(pack, _rows_of_chunk(pack, i))
            )

    def _check_replay(self, pack: EpisodePack) -> None:
        """Check that the views compute the same in a replay buffer as for the pack. Only whole episodes are checked."""
        whole = np.flatnonzero((pack.t_started == 0) & (pack.lengths > 0))
        if not len(whole):
            return
        episodes = pack.select(whole)
        buffer = EpisodeReplayBuffer(episodes.num_steps, seed=0)
        buffer.add(episodes)
        drawn = buffer.at(np.arange(episodes.num_steps), views=self._views, keys=[_OBS, _NEXT_OBS])
        for label, prefix, shift in (("replay", "", 0), ("replay, next observations", "new_", 1)):
            sampled = {name: drawn[f"{prefix}{name}"] for name in self._views.columns}
            sampled = nested.map_leaves(np.asarray, {name: _as_nested(column) for name, column in sampled.items()})
            self._check_equal(label, sampled, self._compute(episodes, episodes.observation_rows(shift)))

    def _compute(self, pack: EpisodePack, rows: np.ndarray | slice) -> Columns:
        return self._views(PackHistory(pack, rows, self._views.given, self._views.lookback))

    def _compute_growing(self, pack: EpisodePack, i: int) -> Columns:
        """Return what the views compute for chunk `i` of the pack while it grows step by step."""
        chunk = pack[i]
        growing = SingleAgentEpisode(
            chunk.id_,
            observations=_items(chunk.observations, 1),
            actions=_items(chunk.actions, 0),
            rewards=_items(chunk.rewards, 0),
            t_started=chunk.t_started,
            len_lookback_buffer=chunk.lookback,
        )
        batches = [self._newest(growing)]
        for t in range(len(chunk)):
            growing.add_env_step(chunk.get_observations(t + 1), chunk.get_actions(t), chunk.get_rewards(t))
            batches.append(self._newest(growing))
        return nested.concatenate(batches)

    def _newest(self, episode: SingleAgentEpisode) -> Columns:
        """Return the columns of an episode's newest observation, computed from the episode alone."""
        history = EpisodesHistory([episode], self._views.given, self._views.lookback)
        return nested.map_leaves(np.array, self._views(history))

    def _check_equal(self, label: str, result: Columns, expected: Columns) -> None:
        """Raise `ContractViolation` if two sets of columns differ. NaN equals NaN."""
        place = {"where": label, "autoreset": self._mode.value}
        leaves, expected_leaves = nested.flatten(result), nested.flatten(expected)
        if leaves.keys() != expected_leaves.keys():
            raise violation(repr(self._views), f"the columns {list(expected_leaves)}", str(list(leaves)), **place)
        for name, column in leaves.items():
            expected_column = expected_leaves[name]
            if column.shape != expected_column.shape or column.dtype != expected_column.dtype:
                raise violation(repr(self._views), brief(expected_column), brief(column), column=name, **place)
            same = (column == expected_column) | ((column != column) & (expected_column != expected_column))
            rows = np.flatnonzero(~same.reshape(len(same), -1).all(1)) if same.size else np.zeros(0, int)
            if len(rows):
                row = int(rows[0])
                advice = f"{len(rows)} of {len(column)} rows differ: a view is a function of each row's history alone"
                expected_row, found_row = str(expected_column[row].tolist()), str(column[row].tolist())
                raise violation(repr(self._views), expected_row, found_row, advice, column=name, row=row, **place)


def _as_nested(column: object) -> Any:
    """Return a column of a `Batch`, which may be a `Batch` itself, as nested arrays."""
    return column.to_dict() if isinstance(column, Batch) else column


def _rows_of_chunk(pack: EpisodePack, i: int) -> np.ndarray:
    """Return the indices in the pack of the T + 1 observations of chunk i, without its lookback."""
    return np.arange(pack.observation_offsets[i] + pack.lookbacks[i], pack.observation_offsets[i + 1])


def _items(track: Track, stop: int) -> list[Any]:
    """Return the items of a track (one kind of an episode's data) as a list, from the start of its lookback to step
    `stop`.
    """
    return [track.get(i, neg_index_as_lookback=True) for i in range(-track.lookback, stop)]
