"""Checks of recorded episodes. Each function yields the problems for which it finds enough evidence."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from episodes.inspect.doctor.alignment import shifted_rewards
from episodes.inspect.doctor.finding import Finding, Place, gather_findings, not_finite_counts
from episodes.inspect.doctor.trial import Trial, array_of, digest, exceeds_bounds
from episodes.tracks import nested
from episodes.tracks.ragged import RaggedKind
from episodes.tracks.space_kinds import SpaceKind, bounds_of, contains, kind_of, parts_of

if TYPE_CHECKING:
    from episodes.data_types import Space
    from episodes.tracks.ragged_items import Kinds

Trials = list[Trial]
CLOCK = re.compile(r"(^|_|/)(t|time|time_?step|steps?|clock|tick|frame|elapsed(_steps)?)$", re.IGNORECASE)

# --- items ------------------------------------------------------------------------------------------------------------


def not_finite(trials: Trials) -> Iterator[Finding]:
    """Find NaN and infinite numbers in observations, actions and rewards."""
    yield from gather_findings("not_finite", _not_finite(trials))


def _not_finite(trials: Trials) -> Iterator[Place]:
    """Yield the place of each array with a NaN or an infinity, among observations, rewards and actions."""
    for trial in trials:
        for name, items in (("observation", trial.observations), ("reward", trial.rewards), ("action", trial.actions)):
            for step, item in enumerate(items):
                for path, leaf in nested.flatten({name: item}).items():
                    if counts := not_finite_counts(array_of(leaf)):
                        yield trial.id_, step, counts, path


def space_mismatches(trials: Trials) -> Iterator[Finding]:
    """Find observations outside their space, or with another dtype or shape than the space or the first observation."""
    places_of: dict[str, list[Place]] = {"dtype": [], "shape": [], "outside_space": []}
    firsts: dict[Any, Any] = {}  # by agent
    for trial in trials:
        first = firsts.setdefault(trial.agent, trial.observations[0])
        space = _like(first, trial.ragged) if trial.observation_space is None else trial.observation_space
        for step, item in enumerate(trial.observations):
            for kind, words, path in _space_mismatches(space, item, "observation"):
                places_of[kind].append((trial.id_, step, words, path))
    for kind, places in places_of.items():
        yield from gather_findings(kind, places)


def _like(item: object, ragged: Kinds | None) -> Any:
    """Return a space that contains items like `item`: an unbounded Box for numeric arrays, or a space of any value.

    Args:
        item: the item.
        ragged: `RaggedKind` of the item or of its ragged parts. Episodes check the dtype and the shape of these.
    """
    if isinstance(ragged, RaggedKind):
        return spaces.Space()  # contains anything
    kinds = ragged or {}
    if isinstance(item, dict):
        return spaces.Dict({str(key): _like(value, kinds.get(key)) for key, value in item.items()})
    if isinstance(item, tuple):
        return spaces.Tuple([_like(value, kinds.get(i)) for i, value in enumerate(item)])
    array = array_of(item)
    if array.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, array.shape, array.dtype.type)
    if array.dtype.kind in "iu" and array.ndim:
        bounds = np.iinfo(array.dtype)
        return spaces.Box(bounds.min, bounds.max, array.shape, array.dtype.type)
    return spaces.Space()  # contains anything


def _space_mismatches(space: Any, item: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield (problem kind, evidence, path) for each array of the nested item that does not fit its space."""
    kind = kind_of(space)
    if kind.is_nested:
        parts = parts_of(space)
        keys = list(item) if isinstance(item, dict) else list(range(len(item))) if isinstance(item, tuple) else []
        if set(parts) != set(keys):
            yield "outside_space", f"{path} has {keys}, and its space {list(parts)}"[:200], path
            return
        for key, part in parts.items():
            yield from _space_mismatches(part, item[key], f"{path}/{key}")
    elif kind is SpaceKind.BOX:
        yield from _box_mismatches(space, item, path)
    elif kind is SpaceKind.SEQUENCE and isinstance(item, np.ndarray):  # an item of a ragged track
        for value in item:
            yield from _space_mismatches(space.feature_space, value, path)
    elif type(space) is not spaces.Space and not contains(space, item):
        yield "outside_space", f"{path} is {item!r}, and its space {space}"[:200], path


def _box_mismatches(space: spaces.Box, item: object, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield kind, text and path of each way in which an item does not fit a Box: shape, dtype or bounds.

    A small rounding error beyond a bound is ignored. After another shape, nothing else is checked.
    """
    array = array_of(item)
    if array.shape != space.shape:
        yield "shape", f"{path} has shape {array.shape}, and its space {space.shape}", path
        return
    if array.dtype != space.dtype:
        yield "dtype", f"{path} is {array.dtype}, and its space {space.dtype}", path
    if array.dtype.kind not in "biuf":
        return
    outside = exceeds_bounds(array, space.low, space.high)
    if outside.any():
        at = tuple(int(i) for i in np.argwhere(outside)[0])
        yield (
            "outside_space",
            f"{path}{list(at)} is {array[at]:.7g}, bounds {space.low[at]:.7g} to {space.high[at]:.7g}",
            path,
        )


def reward_types(trials: Trials) -> Iterator[Finding]:
    """Find rewards that are not single numbers, such as None or arrays."""
    places = [
        (trial.id_, step, f"reward {reward!r} is {type(reward).__name__}"[:200])
        for trial in trials
        for step, reward in enumerate(trial.rewards)
        if reward is None or array_of(reward).ndim or array_of(reward).dtype.kind not in "biuf"
    ]
    yield from gather_findings("reward_type", places)


def info_types(trials: Trials) -> Iterator[Finding]:
    """Find keys of info dicts whose values have different types at different steps."""
    known: dict[Any, str] = {}
    places: list[Place] = []
    for trial in trials:
        for step, info in enumerate(trial.infos):
            for key, value in info.items() if isinstance(info, dict) else ():
                value_type = _type_of(value)
                if value is not None and known.setdefault(key, value_type) != value_type:
                    places.append((trial.id_, step, f"info {key!r} is {value_type}, and was {known[key]} before"))
    yield from gather_findings("info_type", places)


def _type_of(value: object) -> str:
    """Describe the type of a value in words, such as "a number" or "an array of 2 dimensions"."""
    if isinstance(value, (bool, np.bool_)):
        return "a bool"
    array = np.asarray(value) if isinstance(value, (int, float, np.generic, np.ndarray)) else None
    if array is not None and array.dtype.kind in "biuf":
        return "a number" if array.ndim == 0 else f"an array of {array.ndim} dimensions"
    return type(value).__name__


def clocks(trials: Trials) -> Iterator[Finding]:
    """Find step counters in infos or observations that jump instead of changing by their usual amount."""
    series: dict[tuple[int, str], list[float]] = {}
    for n, trial in enumerate(trials):
        for pair in zip(trial.observations, trial.infos, strict=False):
            for key, value in _clock_values(pair):
                series.setdefault((n, key), []).append(value)
    steps = {place: np.diff(values) for place, values in series.items() if len(values) == len(trials[place[0]].seen)}
    places: list[Place] = []
    for key in dict.fromkeys(key for _, key in steps):
        rates = Counter(float(x) for place, values in steps.items() if place[1] == key for x in values[:-1])
        rate, times = rates.most_common(1)[0] if rates else (0.0, 0)
        if not rate or times < 0.8 * rates.total() or times < 20:
            continue
        for (n, name), values in steps.items():
            at = np.flatnonzero(~np.isclose(values[:-1], rate)) if name == key else ()
            places += [(trials[n].id_, int(i) + 1, f"{key} goes on by {values[i]:g}, not {rate:g}") for i in at]
    yield from gather_findings("clock_jump", places)


def _clock_values(pair: tuple[Any, Any]) -> Iterator[tuple[str, float]]:
    """Yield name and value of each number in an observation and its info whose key suggests a time."""
    for name, nest in zip(("observation", "info"), pair, strict=True):
        for key, value in nest.items() if isinstance(nest, dict) else ():
            array = array_of(value) if CLOCK.search(str(key)) else np.empty(0)
            if array.size == 1 and array.dtype.kind in "iuf":
                yield f"{name} {key!r}", float(array.reshape(-1)[0])


# --- endings ----------------------------------------------------------------------------------------------------------


def time_limits(trials: Trials) -> Iterator[Finding]:
    """Find episodes that a time limit truncated but that are flagged as terminated."""
    done = [trial for trial in trials if trial.is_done and len(trial)]
    for trial in done:
        is_limit = trial.infos[-1].get("TimeLimit.truncated") if isinstance(trial.infos[-1], dict) else None
        if is_limit and not trial.truncated:
            words = "terminated, though infos['TimeLimit.truncated'] is True"
            yield Finding.of("time_limit_terminates", words, trial.id_, len(trial))
            return
    for trials_of_agent in _by_agent(done):
        lengths = [trial.t_started + len(trial) for trial in trials_of_agent]
        longest = max(lengths)
        at = [trial for trial, length in zip(trials_of_agent, lengths, strict=True) if length == longest]
        other_lengths = Counter(length for length in lengths if length != longest)
        crowded = len(at) >= max(4, 0.1 * len(lengths)) and len(at) > 2 * max(other_lengths.values(), default=0)
        is_limit = longest >= 10 and crowded and not any(trial.truncated for trial in at)
        if is_limit and not _observes_time(trials_of_agent):
            words = f"{len(at)} of {len(lengths)} episodes end by termination after exactly {longest} steps, none later"
            yield Finding.of("time_limit_terminates", words, at[0].id_, len(at[0]), len(at))
            return


def _observes_time(trials: Trials) -> bool:
    """Return True if a number in the observations depends on the step only, so that the agent observes the time."""
    some = [trial for trial in trials if len(trial) >= 5][:8]
    shapes = {numbers.shape for trial in some for numbers in trial.numbers}
    if len(some) < 3 or len(shapes) > 1:
        return False
    steps = min(len(trial.numbers) for trial in some)
    numbers = np.array([trial.numbers[:steps] for trial in some])  # [episodes, steps, d]
    equal = np.ptp(numbers, axis=0).max(0) <= 1e-6 * np.maximum(np.abs(numbers).max((0, 1)), 1e-9)
    change = np.diff(numbers[0], axis=0)
    return bool((equal & ((change > 0).all(0) | (change < 0).all(0))).any())


def truncations_without_terminations(trials: Trials) -> Iterator[Finding]:
    """Find agents whose episodes are all truncated although they seem to end because the task ends."""
    for group in _by_agent([trial for trial in trials if trial.is_done]):
        lengths = Counter(len(trial) for trial in group)
        max_count = max(lengths.values())
        if (
            len(group) < 8
            or max_count > 0.5 * len(group)
            or any(trial.terminated for trial in group)
            or not _ends_are_special(group)
        ):
            continue
        words = f"{len(group)} episodes are truncated at {len(lengths)} lengths ({min(lengths)} to {max(lengths)})"
        yield Finding.of("end_truncates", f"{words}, none terminates", group[0].id_, len(group[0]), len(group))
        return


def _ends_are_special(trials: Trials) -> bool:
    """Return True if 90 % of episodes end with a reward or observation unlike any before, as if the task ended.

    A last observation differs if a number is outside the range of the earlier observations. Numbers that change by the
    same amount with each step, such as a remaining budget, do not count.
    """
    is_enough = 0.9 * len(trials)
    inner_rewards = {digest(reward) for trial in trials for reward in trial.rewards[:-1]}
    if sum(digest(trial.rewards[-1]) not in inner_rewards for trial in trials) >= is_enough and len(inner_rewards) < 50:
        return True
    if len({numbers.shape for trial in trials for numbers in trial.numbers}) > 1 or not trials[0].numbers[0].size:
        return False
    inner, last = (
        np.concatenate([np.array(trial.numbers)[part] for trial in trials]) for part in (slice(-1), slice(-1, None))
    )
    is_clock = np.all([np.ptp(np.diff(np.array(trial.numbers), axis=0), axis=0) < 1e-9 for trial in trials], 0)
    outside = ((last < inner.min(0)) | (last > inner.max(0)))[:, ~is_clock].any(1)
    return bool(outside.sum() >= is_enough)


def both_flags(trials: Trials) -> Iterator[Finding]:
    """Find environments in which all ended episodes (at least 5) are both terminated and truncated."""
    done = [trial for trial in trials if trial.is_done and len(trial)]
    if len(done) >= 5 and all(trial.terminated and trial.truncated for trial in done):
        text = f"all {len(done)} episodes are terminated and truncated at once"
        yield Finding.of("both_flags", text, done[0].id_, len(done[0]), len(done))


def limits_without_reset(trials: Trials) -> Iterator[Finding]:
    """Find time limits whose counter is not reset, so that all episodes but the first have one step."""
    for group in _by_agent(trials):
        lengths = [len(trial) for trial in group if trial.is_done]
        if len(lengths) >= 6 and lengths[0] >= 5 and max(lengths[1:]) == 1:
            text = f"the first episode has {lengths[0]} steps, and the {len(lengths) - 1} after it one step each"
            yield Finding.of("no_reset", text, group[1].id_, 1, len(lengths) - 1)


def _by_agent(trials: Trials) -> list[Trials]:
    """Return the episodes grouped by agent."""
    agents: dict[Any, Trials] = {}
    for trial in trials:
        agents.setdefault(trial.agent, []).append(trial)
    return list(agents.values())


def lengths_of_tracks(trials: Trials) -> Iterator[Finding]:
    """Find episodes of T steps that have another number of observations than T + 1."""
    short = [trial for trial in trials if len(trial) and len(trial.seen) != len(trial) + 1]
    yield from gather_findings(
        "missing_last_observation",
        [(trial.id_, None, f"{len(trial.seen)} observations and {len(trial)} rewards") for trial in short],
    )


def steps_after_the_end(trials: Trials) -> Iterator[Finding]:
    """Find episodes with steps after the step that is flagged as the end."""
    places: list[Place] = []
    for trial in trials:
        if trial.ended_at is not None and trial.ended_at < len(trial):
            words = f"it ended at step {trial.ended_at}, and {len(trial) - trial.ended_at} steps come after"
            places.append((trial.id_, trial.ended_at, words))
    yield from gather_findings("ignored_action", places)


def first_and_last(trials: Trials) -> Iterator[Finding]:
    """Find repeated first observations, and last observations that are repeated or all zeros."""
    for group in _by_agent([trial for trial in trials if len(trial.seen) >= 4]):
        inner = [a == b for trial in group for a, b in zip(trial.seen[1:-2], trial.seen[2:-1], strict=True)]
        if len(group) < 5 or np.mean(inner) > 0.2:
            continue
        is_alone = group[0].agent is None  # one of several may see positions alone, which speeds change a step later
        if is_alone and all(trial.seen[0] == trial.seen[1] for trial in group):
            words = "the first step of every episode shows the observation of the reset again"
            yield Finding.of("late_observation", words, group[0].id_, 1, len(group))
        done = [trial for trial in group if trial.is_done]
        repeated = [trial for trial in done if trial.seen[-1] == trial.seen[-2] and not _is_empty(trial)]
        blank = [trial for trial in done if trial.numbers[-1].size and not trial.numbers[-1].any()]
        for which, words in ((repeated, "that before it"), (blank, "all zeros")):
            if len(which) >= 5 and len(which) >= 0.9 * len(done) and (which is repeated or not _blanks(group)):
                words = f"the last observation of {len(which)} of {len(done)} episodes is {words}"
                yield Finding.of("missing_last_observation", words, which[0].id_, len(which[0]), len(which))


def _is_empty(trial: Trial) -> bool:
    """Return True if the last observation is ragged and empty, as the one after the last turn of a conversation."""
    return isinstance(trial.ragged, RaggedKind) and not trial.numbers[-1].size


def _blanks(trials: Trials) -> bool:
    """Return True if some observation other than the last one is all zeros."""
    return any(not numbers.any() for trial in trials for numbers in trial.numbers[:-1])


def swapped_boundary_observations(trials: Trials) -> Iterator[Finding]:
    """Find last observations of episodes that are really the reset observations of the next episodes."""
    for group in _by_agent([trial for trial in trials if trial.is_done and len(trial) >= 2]):
        if len(group) < 5 or len({numbers.shape for trial in group for numbers in trial.numbers}) > 1:
            continue
        for compare, by_box in ((_among_firsts, False), (_within_firsts, True)):
            ends, inside = compare(group)
            if ends.mean() >= 0.9 and inside <= 0.2:
                yield from _boundary_findings(group, int(ends.sum()), by_box)
                break


def _among_firsts(trials: Trials) -> tuple[np.ndarray, float]:
    """Return which last observations equal the first observation of the next episode, bool [n - 1].

    The second result is the share of inner observations that equal the first observation of an episode.
    """
    firsts = {trial.seen[0] for trial in trials}
    followed = [a.seen[-1] == b.seen[0] for a, b in itertools.pairwise(trials)]
    inner = [observation in firsts for trial in trials for observation in trial.seen[2:-1]]
    return np.array(followed), float(np.mean(inner)) if inner else 1.0


def _within_firsts(trials: Trials) -> tuple[np.ndarray, float]:
    """Return which last observations lie within the range of all first observations, bool [n].

    The second result is the share of inner observations in this range.
    """
    firsts = np.array([trial.numbers[0] for trial in trials])
    if len(firsts) < 8 or not firsts.shape[1] or len({trial.seen[-1] for trial in trials}) == 1:
        return np.zeros(1), 1.0
    margin = 0.25 * np.ptp(firsts, axis=0)
    low, high = firsts.min(0) - margin, firsts.max(0) + margin
    inner = [((low <= numbers) & (numbers <= high)).all() for trial in trials for numbers in trial.numbers[2:-1]]
    last = np.array([trial.numbers[-1] for trial in trials])
    return ((low <= last) & (last <= high)).all(1), float(np.mean(inner)) if inner else 1.0


def _boundary_findings(trials: Trials, times: int, by_box: bool) -> Iterator[Finding]:
    """Yield the likely cause of reset observations at episode ends, judged by jumps between observations."""
    jumps = [[float(np.abs(b - a).max(initial=0.0)) for a, b in itertools.pairwise(t.numbers)] for t in trials]
    usual = 2.0 * float(np.median([x for group in jumps for x in (group[1:-1] or group)]))
    first, last = (float(np.median([group[i] for group in jumps])) for i in (0, -1))
    trial = trials[0]
    if last > usual and last >= first:
        words = f"{times} of {len(trials)} episodes end with an observation of a reset; it lies {last:.3g} from the one"
        yield Finding.of("lost_final_observation", f"{words} before it", trial.id_, len(trial), times)
    elif by_box:
        return
    elif first > usual and not any(group.rewards[0] for group in trials[1:]):
        words = f"{times} episodes begin where the one before ended, and jump by {first:.3g} for reward 0"
        yield Finding.of("ignored_action", words, trials[1].id_, 0, times)
    elif len({trial.seen[0] for trial in trials}) >= 3:  # else a task may end where it always begins
        words = f"{times} episodes begin with the last observation of the one before"
        yield Finding.of("no_reset", words, trials[1].id_, 0, times)


# --- all of them ------------------------------------------------------------------------------------------------------


def constants(trials: Trials) -> Iterator[Finding]:
    """Find observations that never change although their space has more than one item."""
    for group in _by_agent(trials):
        space, num = group[0].observation_space, sum(len(trial) for trial in group)
        if num < 50 or len({observation for trial in group for observation in trial.seen}) > 1 or _has_one_item(space):
            continue
        words = f"all observations of {num} steps are equal"
        yield Finding.of("constant_observations", words, group[0].id_, 0, num)
        return


def _has_one_item(space: Space | None) -> bool:
    """Return True if an array space contains a single item, and False for other spaces."""
    bounds = bounds_of(space)
    return bounds is not None and bool((bounds.low == bounds.high).all())


ALL: tuple[Callable[[Trials], Iterator[Finding]], ...] = (
    not_finite,
    space_mismatches,
    reward_types,
    info_types,
    clocks,
    time_limits,
    truncations_without_terminations,
    both_flags,
    limits_without_reset,
    lengths_of_tracks,
    steps_after_the_end,
    first_and_last,
    swapped_boundary_observations,
    constants,
    shifted_rewards,
)
