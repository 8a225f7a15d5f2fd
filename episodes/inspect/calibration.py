"""`value_calibration`: values compared with the returns that followed, by the ending of the episodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from episodes.errors import InvalidArgument
from episodes.returns import discounted_returns

if TYPE_CHECKING:
    from episodes.single_agent.episode import SingleAgentEpisode

__all__ = ["CalibrationBin", "value_calibration"]


class CalibrationBin(NamedTuple):
    """Steps with similar values, of episodes with the same ending.

    Attributes:
        ending: "terminated", "truncated" or "cut".
        num_steps: number of steps.
        value: mean of their values.
        realised: mean of the discounted rewards that followed, up to the end of the chunk.
        bootstrapped: as `realised`, plus the discounted value of the last step instead of its reward, unless the
            episode terminated. A good critic has values close to it.
        last_value: mean value at the last steps of the chunks with these steps. After a termination it is close to the
            last reward. If it is not, states in which episodes terminate do not look like the end of the task, for
            example since a time limit is stored as a termination.
    """

    ending: str
    num_steps: int
    value: float
    realised: float
    bootstrapped: float
    last_value: float


def value_calibration(
    episodes: Iterable[Any], *, values: str = "learner/values", gamma: float = 0.99, num_bins: int = 10
) -> list[CalibrationBin]:
    """Compare values with the returns that followed, and return a calibration curve for each kind of ending.

    The bins of a curve have equal numbers of steps, sorted by value. If `value` is above `bootstrapped`, the critic
    expects too much there.

    Args:
        episodes: a data set, a pack or episodes, with the value of each step as an extra model output.
            `explain_episode` adds it as "learner/values".
        values: path of the extra model output, for example "vf_preds" of a runner.
        gamma: discount per step.
        num_bins: bins of each curve.

    Raises:
        InvalidArgument: `num_bins` is below 1, `gamma` is not in 0..1, or an episode does not have the values.
    """
    if num_bins < 1 or not 0 <= gamma <= 1:
        raise InvalidArgument(
            f"value_calibration: gamma={gamma}, num_bins={num_bins}; give gamma in 0..1 and at least one bin"
        )
    columns: dict[str, list[np.ndarray]] = {}
    for episode in episodes:
        if len(episode):
            ending, rows = _rows_of(episode, values, gamma)
            columns.setdefault(ending, []).append(rows)
    result = []
    for ending in sorted(columns):
        rows = np.concatenate(columns[ending])  # [n, 4]
        rows = rows[np.isfinite(rows).all(1)]
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        parts = np.array_split(rows, min(num_bins, len(rows))) if len(rows) else []
        result += [CalibrationBin(ending, len(part), *part.mean(0).tolist()) for part in parts]
    return result


def _rows_of(episode: SingleAgentEpisode, path: str, gamma: float) -> tuple[str, np.ndarray]:
    """Return the ending of an episode, and the value, realised and bootstrapped return and last value of each of its
    steps, float64 [T, 4].
    """
    key, *names = path.split("/")
    try:
        column: Any = episode.get_extra_model_outputs(key)
        for name in names:
            column = column[name]
    except (KeyError, IndexError):
        raise InvalidArgument(
            f"value_calibration: episode {episode.id_} has no extra model output {path!r}; record values, or add them "
            "by explain_episode"
        ) from None
    values, rewards = np.asarray(column, np.float64), np.asarray(episode.get_rewards(), np.float64)
    realised = discounted_returns(rewards, [True], [False], gamma=gamma, offsets=[0, len(rewards)])
    ending = "terminated" if episode.is_terminated else "truncated" if episode.is_truncated else "cut"
    bootstrapped = realised
    if ending != "terminated":
        later = gamma ** np.arange(len(rewards) - 1, -1, -1.0)
        bootstrapped = realised + later * (values[-1] - rewards[-1])
    return ending, np.stack([values, realised, bootstrapped, np.full_like(values, values[-1])], 1)
