"""A slow reference of returns and advantages: one episode in plain Python, step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st


@dataclass
class PlainEpisode:
    """T rewards and ratios, T + 1 values, and the ending."""

    rewards: list[float]
    values: list[float]
    ratios: list[float]
    terminated: bool
    truncated: bool

    def value_after(self, t: int) -> float:
        """Return the value of the observation after step t, 0 after a termination."""
        if self.terminated and t == len(self.rewards) - 1:
            return 0.0
        return self.values[t + 1]


def plain_gae(episode: PlainEpisode, gamma: float, lambda_: float) -> tuple[list[float], list[float]]:
    advantages, advantage = [], 0.0
    for t in reversed(range(len(episode.rewards))):
        error = episode.rewards[t] + gamma * episode.value_after(t) - episode.values[t]
        advantage = error + gamma * lambda_ * advantage
        advantages.insert(0, advantage)
    return advantages, [a + v for a, v in zip(advantages, episode.values, strict=False)]


def plain_discounted_returns(episode: PlainEpisode, gamma: float, bootstrap: bool) -> list[float]:
    returns, later = [], episode.value_after(len(episode.rewards) - 1) if bootstrap and episode.rewards else 0.0
    for reward in reversed(episode.rewards):
        later = reward + gamma * later
        returns.insert(0, later)
    return returns


def plain_n_step_returns(episode: PlainEpisode, gamma: float, n_step: int) -> tuple[list[float], list[int]]:
    targets, counts = [], []
    for t in range(len(episode.rewards)):
        count = min(n_step, len(episode.rewards) - t)
        rewards = math.fsum(gamma**k * episode.rewards[t + k] for k in range(count))
        targets.append(rewards + gamma**count * episode.value_after(t + count - 1))
        counts.append(count)
    return targets, counts


def plain_vtrace(
    episode: PlainEpisode, gamma: float, lambda_: float, clip_rho: float, clip_pg_rho: float
) -> tuple[list[float], list[float]]:
    length = len(episode.rewards)
    targets, advantages = [0.0] * length, [0.0] * length
    for t in reversed(range(length)):
        last = t == length - 1
        rho, trace = min(episode.ratios[t], clip_rho), lambda_ * min(episode.ratios[t], 1.0)
        error = rho * (episode.rewards[t] + gamma * episode.value_after(t) - episode.values[t])
        later = 0.0 if last else gamma * trace * (targets[t + 1] - episode.values[t + 1])
        targets[t] = episode.values[t] + error + later
        target_after = episode.value_after(t) if last else targets[t + 1]
        pg_rho = min(episode.ratios[t], clip_pg_rho)
        advantages[t] = pg_rho * (episode.rewards[t] + gamma * target_after - episode.values[t])
    return advantages, targets


@st.composite
def plain_episodes(draw: st.DrawFn, min_length: int = 1, max_length: int = 300) -> PlainEpisode:
    length = draw(st.one_of(st.integers(min_length, 8), st.integers(min_length, max_length)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    numbers = rng.normal(size=(2, length + 1)) * 10.0
    return PlainEpisode(
        rewards=numbers[0, 1:].tolist(),
        values=numbers[1].tolist(),
        ratios=np.exp(rng.normal(size=length)).tolist(),
        terminated=draw(st.booleans()),
        truncated=draw(st.booleans()),
    )


@dataclass
class Poison:
    """A non-finite number for one step of one episode."""

    track: str  # rewards, values or ratios
    number: float
    at: float  # where among all steps, in [0, 1)

    def packed(self, episodes: list[PlainEpisode]) -> None:
        """Store the number in a step of one of the episodes."""
        episode = max(episodes, key=lambda e: len(e.rewards))
        getattr(episode, self.track)[int(self.at * len(episode.rewards))] = self.number

    def columns(self, made: Columns) -> None:
        """Store the number in a row of a column, and in the episode of that row."""
        start, column, piece = made.pieces[int(self.at * len(made.pieces))]
        t = int(self.at * len(piece.rewards))
        getattr(piece, self.track)[t] = self.number
        getattr(made, self.track)[start + t, column] = self.number


poisons = st.builds(
    Poison,
    st.sampled_from(["rewards", "values", "ratios"]),
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.floats(0, 1, exclude_max=True),
)


def assert_contained(result: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Assert equality for all finite numbers of the reference, and non-finite numbers elsewhere."""
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(result), finite, err_msg=name)
    np.testing.assert_allclose(result[finite], expected[finite], rtol=1e-6, atol=1e-6, err_msg=name)


fractions = st.one_of(st.sampled_from([0.0, 1.0, 0.99, 0.95]), st.floats(0.0, 1.0, allow_nan=False))


def packed(episodes: list[PlainEpisode]) -> dict[str, np.ndarray]:
    """Return the episodes as the packed arguments of `episodes.returns`."""
    return {
        "rewards": np.array([r for e in episodes for r in e.rewards]),
        "values": np.array([v for e in episodes for v in e.values]),
        "terminateds": np.array([e.terminated for e in episodes], bool),
        "truncateds": np.array([e.truncated for e in episodes], bool),
        "offsets": np.cumsum([0, *(len(e.rewards) for e in episodes)]),
    }


@dataclass
class Columns:
    """Episodes in the layout [T, N] of a vector environment with same-step autoreset."""

    rewards: np.ndarray  # [T, N]
    values: np.ndarray  # [T + 1, N]
    terminateds: np.ndarray  # [T, N]
    truncateds: np.ndarray  # [T, N]
    ratios: np.ndarray  # [T, N]
    final_values: np.ndarray  # [T, N], NaN where nothing was truncated
    pieces: list[tuple[int, int, PlainEpisode]]  # (first row, column, episode)

    def arguments(self) -> dict[str, np.ndarray]:
        names = ("rewards", "values", "terminateds", "truncateds", "final_values")
        return {name: getattr(self, name) for name in names}


def columns(rng: np.random.Generator, num_rows: int, num_columns: int, ending_rate: float) -> Columns:
    """Return random columns with episodes that end at any row, in any way."""
    shape = (num_rows, num_columns)
    rewards, ratios = rng.normal(size=shape), np.exp(rng.normal(size=shape))
    values, lasts = rng.normal(size=(num_rows + 1, num_columns)), rng.normal(size=shape)
    terminateds, truncateds = rng.random((2, *shape)) < ending_rate
    finals = np.where(truncateds, lasts, np.nan)
    pieces = []
    for n in range(num_columns):
        start = 0
        for t in range(num_rows):
            ended = bool(terminateds[t, n] or truncateds[t, n])
            if not ended and t < num_rows - 1:
                continue
            rows = slice(start, t + 1)
            last = finals[t, n] if truncateds[t, n] else values[t + 1, n]
            piece = PlainEpisode(
                rewards=rewards[rows, n].tolist(),
                values=[*values[rows, n].tolist(), float(last)],
                ratios=ratios[rows, n].tolist(),
                terminated=bool(terminateds[t, n]),
                truncated=bool(truncateds[t, n]),
            )
            pieces.append((start, n, piece))
            start = t + 1
    return Columns(rewards, values, terminateds, truncateds, ratios, finals, pieces)
