"""Hypothesis strategy that generates vector environment steps in all autoreset modes, and their episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from hypothesis import strategies as st

from episodes.testing.strategies.items import ItemSource, spaces
from episodes.testing.strategies.single_agent import ENDINGS
from episodes.tracks import nested

if TYPE_CHECKING:
    from episodes.data_types import Item
    from episodes.recorder.vector_recorder import VectorRecorder


@dataclass
class EnvEpisode:
    """Generated episode of one environment: a list of T + 1 observations, lists of T actions, rewards and so on."""

    env: int
    observations: list[Any]
    infos: list[dict[str, Any]]
    actions: list[Any] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    outputs: list[float] = field(default_factory=list)  # the extra model output "vf"
    terminated: bool = False
    truncated: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated


@dataclass(frozen=True)
class VectorRow:
    """Actions and generated results of one vector step. In `DISABLED` mode, it includes the reset that follows."""

    actions: Any  # nested arrays [N, ...]
    observations: Any  # nested arrays [N, ...]
    rewards: np.ndarray  # [N]
    terminateds: np.ndarray  # [N] bool
    truncateds: np.ndarray  # [N] bool
    infos: dict[str, Any]
    outputs: np.ndarray  # [N]
    reset: tuple[Any, dict[str, Any], np.ndarray] | None = None  # observations [N, ...], infos, mask [N]


@dataclass(frozen=True)
class VectorRows:
    """Generated results of a vector environment from its reset on, and the episodes that these form.

    next step     o0 -a0-> o1 -a1-> o2 END -(ignored)-> o0' -a0-> ...
    same step     o0 -a0-> o1 -a1-> o0'                (o2 in infos["final_obs"])
    disabled      o0 -a0-> o1 -a1-> o2 END, reset(mask) o0' -a0-> ...
    """

    autoreset_mode: AutoresetMode
    num_envs: int
    observation_space: gym.Space  # of one environment
    action_space: gym.Space
    observations: Any  # of the reset: nested arrays [N, ...]
    infos: dict[str, Any]
    rows: Sequence[VectorRow]
    episodes: Sequence[EnvEpisode]  # in the order of their resets; an episode without a step is there too

    def record(self, recorder: VectorRecorder, rows: slice = slice(None)) -> None:
        """Record the slice `rows` of the steps with a recorder, including the reset if the slice starts at 0."""
        if not rows.start:
            recorder.reset(self.observations, self.infos)
        for row in self.rows[rows]:
            recorder.step(
                row.observations,
                row.actions,
                row.rewards,
                row.terminateds,
                row.truncateds,
                row.infos,
                {"vf": row.outputs},
            )
            if row.reset is not None:
                recorder.reset(*row.reset)


@st.composite
def vector_rows(
    draw: st.DrawFn,
    *,
    autoreset_mode: AutoresetMode | None = None,
    observation_space: gym.Space | None = None,
    action_space: gym.Space | None = None,
    max_envs: int = 3,
    max_rows: int = 12,
    flags_on_resets: bool = False,
) -> VectorRows:
    """Generate steps of a vector environment in any autoreset mode, with consecutive endings and masked infos.

    Args:
        autoreset_mode: one of the three modes, by default any.
        observation_space: space of one environment's observations, by default any.
        action_space: space of one environment's actions, by default any.
        max_envs: maximal number of environments.
        max_rows: maximal number of rows.
        flags_on_resets: True if in next-step mode the row of a reset may repeat the flags of the ending, as some
            environments do. A reset row is not a step, whatever its flags.
    """
    writer = _RowWriter(
        mode=autoreset_mode or draw(st.sampled_from(list(AutoresetMode))),
        num_envs=draw(st.integers(1, max_envs)),
        observed=draw(spaces()) if observation_space is None else observation_space,
        one_action_space=draw(spaces()) if action_space is None else action_space,
        seed=draw(st.integers(0, 2**16)),
        ending_rate=draw(st.sampled_from([0.2, 0.0, 0.5, 1.0])),
        dense_finals=draw(st.booleans()),
        has_infos=draw(st.booleans()),
        reward_dtype=draw(st.sampled_from([np.float32, np.float64])),
        flags_on_resets=flags_on_resets and draw(st.booleans()),
    )
    return writer.write(draw(st.integers(0, max_rows)))


@dataclass
class _RowWriter:
    """Simulated vector environment that generates random results one step at a time."""

    mode: AutoresetMode
    num_envs: int
    observed: gym.Space
    one_action_space: gym.Space
    seed: int
    ending_rate: float
    dense_finals: bool
    has_infos: bool
    reward_dtype: Any
    flags_on_resets: bool

    def write(self, num_rows: int) -> VectorRows:
        """Generate `num_rows` vector steps after a reset, and the episodes that they consist of. The same seed repeats
        them.
        """
        self.rng = np.random.default_rng(self.seed)
        self.observations = ItemSource(self.observed, self.seed, arrange=False)
        self.actions = ItemSource(self.one_action_space, self.seed + 1, arrange=False)
        self.count = 0
        self.going: list[EnvEpisode] = []
        self.finished: list[EnvEpisode] = []
        for env in range(self.num_envs):
            self.going.append(self.begun(env))
        first = self.stacked([episode.observations[-1] for episode in self.going])
        infos = self.vector_info({env: episode.infos[-1] for env, episode in enumerate(self.going)})
        rows = [self.row() for _ in range(num_rows)]
        return VectorRows(
            self.mode,
            self.num_envs,
            self.observed,
            self.one_action_space,
            first,
            infos,
            rows,
            [*self.finished, *self.going],
        )

    def begun(self, env: int) -> EnvEpisode:
        return EnvEpisode(env, [self.observations.next()], [self.info()])

    def info(self) -> dict[str, Any]:
        """Return a random info dict of one environment, with one or two numbers and sometimes a nested dict."""
        if not self.has_infos:
            return {}
        self.count += 1
        info: dict[str, Any] = {"count": self.count}
        if self.rng.random() < 0.7:
            info["half"] = self.count / 2
        if self.rng.random() < 0.3:
            info["inner"] = {"word": f"word {self.count}"}
        return info

    def vector_info(self, infos: dict[int, dict[str, Any]]) -> dict[str, Any]:
        """Combine the environments' info dicts as vector environments do: arrays by key, and masks under `_key`."""
        out: dict[str, Any] = {}
        for env, info in infos.items():
            for key, value in info.items():
                if isinstance(value, dict):
                    column: Any = self.vector_info({e: i[key] for e, i in infos.items() if key in i})
                elif key in out:
                    column = out[key]
                else:
                    column = np.zeros(self.num_envs, object if isinstance(value, str) else type(value))
                if not isinstance(value, dict):
                    column[env] = value
                out[key] = column
                out.setdefault(f"_{key}", np.zeros(self.num_envs, bool))[env] = True
        return out

    def stacked(self, items: list[Any]) -> Any:
        return nested.stack(items)

    def row(self) -> VectorRow:
        """Generate one vector step: a step of each environment, or its reset with next-step autoreset."""
        actions = [self.actions.next() for _ in range(self.num_envs)]
        outputs = self.rng.integers(0, 99, self.num_envs) / 4
        resting = [self.mode is AutoresetMode.NEXT_STEP and episode.is_done for episode in self.going]
        ended_before = list(self.going)
        for env in range(self.num_envs):
            if resting[env]:
                self.finished.append(self.going[env])
                self.going[env] = self.begun(env)
            else:
                self.step(self.going[env], actions[env], outputs[env])
        flags = [
            (e.terminated, e.truncated) if not rests else (False, False)
            for e, rests in zip(self.going, resting, strict=True)
        ]
        if self.flags_on_resets:
            flags = [
                (b.terminated, b.truncated) if rests else flag
                for b, rests, flag in zip(ended_before, resting, flags, strict=True)
            ]
        rewards = [0.0 if rests else e.rewards[-1] for e, rests in zip(self.going, resting, strict=True)]
        shown, infos, reset = self.after_endings()
        return VectorRow(
            self.stacked(actions),
            self.stacked(shown),
            np.array(rewards, self.reward_dtype),
            np.array([terminated for terminated, _ in flags]),
            np.array([truncated for _, truncated in flags]),
            infos,
            outputs,
            reset,
        )

    def step(self, episode: EnvEpisode, action: Item, output: float) -> None:
        """Add a step to an episode, which may end with this step."""
        episode.actions.append(action)
        episode.outputs.append(output)
        episode.rewards.append(self.rng.integers(-8, 9) / 4)
        episode.observations.append(self.observations.next())
        episode.infos.append(self.info())
        if self.rng.random() < self.ending_rate:
            episode.terminated, episode.truncated = ENDINGS[1 + self.rng.integers(3)]

    def after_endings(self) -> tuple[list[Any], dict[str, Any], Any]:
        """Apply the autoreset mode to ended episodes. Return observations, infos and the reset that follows."""
        ended = [env for env, episode in enumerate(self.going) if episode.is_done]
        lasts = list(self.going)
        if self.mode is not AutoresetMode.NEXT_STEP:
            for env in ended:
                self.finished.append(self.going[env])
                self.going[env] = self.begun(env)
        begun = [episode.observations[-1] for episode in self.going]
        infos = self.vector_info({env: episode.infos[-1] for env, episode in enumerate(self.going)})
        if self.mode is AutoresetMode.NEXT_STEP or not ended:
            return begun, infos, None
        if self.mode is AutoresetMode.SAME_STEP:
            return begun, infos | self.finals(lasts, ended), None
        mask = np.isin(np.arange(self.num_envs), ended)
        reset_info = self.vector_info({env: self.going[env].infos[-1] for env in ended})
        step_info = self.vector_info({env: episode.infos[-1] for env, episode in enumerate(lasts)})
        return [episode.observations[-1] for episode in lasts], step_info, (self.stacked(begun), reset_info, mask)

    def finals(self, lasts: list[EnvEpisode], ended: list[int]) -> dict[str, Any]:
        """Return the infos on the last observations of ended environments (same-step autoreset), in Gymnasium's form.

        Args:
            lasts: the episode of each environment.
            ended: environments whose episode ended.
        """
        mask = np.isin(np.arange(self.num_envs), ended)
        if self.dense_finals:
            final_obs = self.stacked([episode.observations[-1] for episode in lasts])
        else:
            final_obs = np.full(self.num_envs, None, object)
            for env in ended:
                final_obs[env] = lasts[env].observations[-1]
        final_info = self.vector_info({env: lasts[env].infos[-1] for env in ended})
        return {"final_obs": final_obs, "_final_obs": mask, "final_info": final_info, "_final_info": mask}
