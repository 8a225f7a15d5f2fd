"""Train batches built step by step, with plain loops over whole episodes that were never cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from episodes import SingleAgentEpisode

DECAY = 0.5  # of the memory of `Accumulator`


@dataclass
class WholeEpisode:
    """An episode as it happened, and where it was cut into chunks."""

    id_: str
    observations: list[np.ndarray]  # T + 1
    actions: list[int]
    rewards: list[float]
    terminated: bool
    truncated: bool
    cuts: list[int]  # steps at which a chunk begins, the first one 0
    lookback: int
    states: list[np.ndarray] = field(default_factory=list)  # T + 1: the memory after each observation

    def __post_init__(self) -> None:
        memory = np.zeros(1, np.float32)
        for observation in self.observations:
            memory = (DECAY * memory + observation.sum()).astype(np.float32)
            self.states.append(memory)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(first step, end) of each chunk."""
        return list(zip(self.cuts, [*self.cuts[1:], len(self.actions)], strict=True))

    def chunks(self) -> list[SingleAgentEpisode]:
        """Return the chunks of the episode as growing `SingleAgentEpisode` objects."""
        chunks = []
        for start, end in self.spans:
            first = max(start - self.lookback, 0)
            is_last = end == len(self.actions) and (start, end) == self.spans[-1]
            chunk = SingleAgentEpisode(
                self.id_,
                observations=self.observations[first : end + 1],
                actions=self.actions[first:end],
                rewards=self.rewards[first:end],
                extra_model_outputs={
                    "action_logp": [-float(g) for g in range(first, end)],
                    "state_out": [{"h": self.states[g]} for g in range(first, end)],
                },
                len_lookback_buffer=start - first,
                t_started=start,
                terminated=self.terminated and is_last,
                truncated=self.truncated and is_last,
            )
            chunks.append(chunk)
        return chunks

    def stack(self, step: int, num_frames: int) -> np.ndarray:
        """Return the last frames at an observation, joined along the last axis, with zeros before the start."""
        frames = [
            self.observations[g] if g >= 0 else 0 * self.observations[0] for g in range(step - num_frames + 1, step + 1)
        ]
        return np.concatenate(frames, axis=-1)

    def previous(self, step: int, num: int, num_actions: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the one-hot actions and the rewards before an observation, with zeros before the start."""
        actions, rewards = [], []
        for g in range(step - num, step):
            one_hot = np.zeros(num_actions, np.float32)
            if g >= 0:
                one_hot[self.actions[g]] = 1
            actions.append(one_hot)
            rewards.append(self.rewards[g] if g >= 0 else 0.0)
        return np.concatenate(actions), np.array(rewards, np.float32)


@st.composite
def whole_episodes(draw: st.DrawFn, shape: tuple[int, ...] = (2,), min_lookback: int = 0) -> list[WholeEpisode]:
    """Draw one to four episodes, of which some are cut into chunks and some have no steps."""
    episodes = []
    for number in range(draw(st.integers(1, 4))):
        length = draw(st.integers(0, 11))
        cuts = sorted({0, *draw(st.lists(st.integers(0, max(length - 1, 0)), max_size=3))})
        rng = np.random.default_rng([number, length])
        terminated, truncated = draw(st.sampled_from([(False, False), (True, False), (False, True), (True, True)]))
        episodes.append(
            WholeEpisode(
                id_=f"episode {number}",
                observations=[rng.integers(0, 9, shape).astype(np.float32) for _ in range(length + 1)],
                actions=rng.integers(0, 3, length).tolist(),
                rewards=rng.normal(size=length).tolist(),
                terminated=terminated,
                truncated=truncated,
                cuts=cuts,
                lookback=draw(st.integers(min_lookback, min_lookback + 3)),
            )
        )
    return episodes


class Accumulator:
    """Recurrent module whose state is a decaying sum of its observations. Its value is the state."""

    def get_initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.zeros(1, np.float32)}

    def compute_values(self, batch: dict[str, Any]) -> torch.Tensor:
        memory, values = batch["state_in"]["h"][:, 0], []
        for t in range(batch["obs"].shape[1]):
            memory = DECAY * memory + batch["obs"][:, t].flatten(1).sum(-1)
            values.append(memory)
        return torch.stack(values, 1)


class Sum:
    """Module whose value is the sum of the observation."""

    def compute_values(self, batch: dict[str, Any]) -> torch.Tensor:
        return batch["obs"].flatten(1).sum(-1)


class Leaning(Sum):
    """Policy that takes the larger of two actions more often for larger observations."""

    def __call__(self, batch: dict[str, Any], explore: bool | None = None) -> dict[str, torch.Tensor]:
        assert not torch.is_grad_enabled()
        logit = batch["obs"].sum(-1, keepdim=True)
        return {"action_dist_inputs": torch.cat([-logit, logit], -1)}


class Remembering(Leaning, Accumulator):
    """The policy `Leaning` with a recurrent state that only its values use."""

    compute_values = Accumulator.compute_values


def advantages(episode: WholeEpisode, span: tuple[int, int], values: list[float], gamma: float, lambda_: float) -> list:
    """Return the generalized advantages of a chunk by a backward loop. `values` are those of the whole episode."""
    start, end = span
    is_last = span == episode.spans[-1]
    sums, later = [], 0.0
    for g in reversed(range(start, end)):
        terminal = episode.terminated and is_last and g == end - 1
        error = episode.rewards[g] + gamma * (0.0 if terminal else values[g + 1]) - values[g]
        later = error + gamma * lambda_ * later
        sums.append(later)
    return sums[::-1]
