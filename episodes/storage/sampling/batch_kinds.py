"""Options for what a batch sampled from disk contains: steps, windows of steps, chunks of
episodes, or whole episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from episodes.batch.sampling_checks import check_counts, check_n_step
from episodes.errors import InvalidArgument
from episodes.history import BoundViews
from episodes.returns.checks import check_fraction
from episodes.storage.sampling.time_windows import TimeWindows


@dataclass(frozen=True, slots=True)
class StepBatches:
    """Options for batches of single transitions, with the same columns [n, ...] as
    `EpisodeReplayBuffer.sample` returns.

    Attributes:
        size: number n of transitions.
        n_step: number of steps whose discounted rewards are summed. `(1, 5)` samples a number for each row.
        gamma: discount factor.
        keys: columns among "obs", "new_obs", "actions", "rewards", "terminateds", "truncateds" (these are the default),
            the extra model outputs, "infos", "t", "policy_version", "is_first", "eps_id", "agent_id" and "module_id".
        views: views of the observations that replace "obs" and "new_obs", such as `runner.env_to_module.views`.
        include_infos: adds the infos that came with `new_obs`: True for dicts, "columns" for arrays.

    Raises:
        InvalidArgument: `size`, `n_step` or `gamma` is invalid.
    """

    size: int
    n_step: int | tuple[int, int] = 1
    gamma: float = 0.99
    keys: Sequence[str] | None = None
    views: BoundViews | None = None
    include_infos: bool | Literal["columns"] = False

    def __post_init__(self) -> None:
        check_counts(steps=self.size)
        check_n_step(self.n_step)
        check_fraction("gamma", self.gamma)


@dataclass(frozen=True, slots=True)
class WindowBatches:
    """Options for batches of B windows of W = lookback + burn_in + length successive steps, with columns [B, W, ...].

    Columns are those of `EpisodeReplayBuffer.sample_sequences`. A window stays within its episode. If an episode's
    first chunk has a lookback, columns on the left show it.

    Attributes:
        size: number B of windows.
        length: number of steps to learn from.
        lookback: number of columns on the left for context.
        burn_in: number of columns after these, to warm up a recurrent state.
        keys, views, include_infos: see `StepBatches`.

    Raises:
        InvalidArgument: `size`, `length`, `lookback` or `burn_in` is invalid.
    """

    size: int
    length: int
    lookback: int = 0
    burn_in: int = 0
    keys: Sequence[str] | None = None
    views: BoundViews | None = None
    include_infos: bool | Literal["columns"] = False

    def __post_init__(self) -> None:
        check_counts(windows=self.size, length=self.length)
        check_counts(0, lookback=self.lookback, burn_in=self.burn_in)


@dataclass(frozen=True, slots=True)
class EpisodeBatches:
    """Options for batches of whole episodes, which are returned as packs.

    Attributes:
        size: number of episodes.

    Raises:
        InvalidArgument: `size` is invalid.
    """

    size: int

    def __post_init__(self) -> None:
        check_counts(episodes=self.size)


@dataclass(frozen=True, slots=True)
class ChunkBatches:
    """Options for batches of parts of episodes, which are returned as packs.
    They may have ragged arrays, unlike windows.

    Each sampled step begins a chunk of `length` steps, or fewer at the end of its episode.

    Attributes:
        size: number of chunks.
        length: number of steps of each chunk.
        lookback: maximal number of steps before a chunk that the chunk holds as lookback; None for all.

    Raises:
        InvalidArgument: `size`, `length` or `lookback` is invalid.
    """

    size: int
    length: int = 1
    lookback: int | None = None

    def __post_init__(self) -> None:
        check_counts(chunks=self.size, length=self.length)
        if self.lookback is not None:
            check_counts(0, lookback=self.lookback)


Kind = StepBatches | WindowBatches | ChunkBatches | TimeWindows | EpisodeBatches


def kind_of(
    steps: int | StepBatches | None,
    windows: tuple[int, int] | WindowBatches | ChunkBatches | TimeWindows | None,
    episodes: int | EpisodeBatches | None,
) -> Kind:
    """Return the batch options that the one given argument (steps, windows or episodes) means. Raise `InvalidArgument`
    unless exactly one is given."""
    if sum(option is not None for option in (steps, windows, episodes)) != 1:
        raise InvalidArgument(
            f"steps={steps}, windows={windows}, episodes={episodes}: give one of them, such as steps=256, "
            "windows=(64, 32) or episodes=50"
        )
    if steps is not None:
        return steps if isinstance(steps, StepBatches) else StepBatches(steps)
    if episodes is not None:
        return episodes if isinstance(episodes, EpisodeBatches) else EpisodeBatches(episodes)
    if isinstance(windows, (WindowBatches, ChunkBatches, TimeWindows)):
        return windows
    if not isinstance(windows, tuple) or len(windows) != 2:
        raise InvalidArgument(f"windows={windows!r}: give how many and how long, such as (64, 32), or Windows(64, 32)")
    return WindowBatches(*windows)
