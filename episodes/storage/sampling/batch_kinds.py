"""What a sampler draws: steps, windows of steps, or whole episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from episodes.batch.sampling_checks import check_counts, check_n_step
from episodes.errors import InvalidArgument
from episodes.returns.checks import check_fraction
from episodes.storage.sampling.stored_history import BoundViews
from episodes.storage.sampling.time_windows import Moments


@dataclass(frozen=True, slots=True)
class StepBatches:
    """Batches of single transitions, columns [n, ...], as `EpisodeReplayBuffer.sample` gives them.

    Attributes:
        size: n.
        n_step: rewards are discounted sums of up to so many steps, see there; with `(1, 5)`, each row draws its own.
        keys: which columns: "obs", "new_obs", "actions", "rewards", "terminateds", "truncateds" (the default), the
            extra model outputs, "infos", "t", "is_first", "eps_id", "agent_id" and "module_id".
        views: what the module sees of the observations, such as `runner.env_to_module.views`.
        include_infos: the infos that came with `new_obs`, as dicts, or as "columns".
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
    """Batches of windows [t - left, t + length), columns [B, W, ...], W = lookback + burn_in + length.

    See `EpisodeReplayBuffer.sample_sequences`. A window never leaves its chunk; its left columns show the chunk's
    lookback where it has one.
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


def columns_asked_for(what: StepBatches | WindowBatches) -> dict[str, Any]:
    """Which columns batches have, as arguments of a draw."""
    return {"keys": what.keys, "views": what.views, "include_infos": what.include_infos}


@dataclass(frozen=True, slots=True)
class EpisodeBatches:
    """Batches of whole episodes: packs."""

    size: int

    def __post_init__(self) -> None:
        check_counts(episodes=self.size)


Kind = StepBatches | WindowBatches | Moments | EpisodeBatches


def kind_of(
    steps: int | StepBatches | None,
    windows: tuple[int, int] | WindowBatches | Moments | None,
    episodes: int | EpisodeBatches | None,
) -> Kind:
    """The one that is given."""
    if sum(one is not None for one in (steps, windows, episodes)) != 1:
        raise InvalidArgument(
            f"steps={steps}, windows={windows}, episodes={episodes}: give one of them, such as steps=256, "
            "windows=(64, 32) or episodes=50"
        )
    if steps is not None:
        return steps if isinstance(steps, StepBatches) else StepBatches(steps)
    if episodes is not None:
        return episodes if isinstance(episodes, EpisodeBatches) else EpisodeBatches(episodes)
    if isinstance(windows, (WindowBatches, Moments)):
        return windows
    if not isinstance(windows, tuple) or len(windows) != 2:
        raise InvalidArgument(f"windows={windows!r}: give how many and how long, such as (64, 32), or Windows(64, 32)")
    return WindowBatches(*windows)
