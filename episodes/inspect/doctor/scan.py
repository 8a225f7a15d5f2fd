"""Cheap checks of all steps of a data set: NaN and infinities, bounds of spaces, gaps and duplicates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from episodes.inspect.conversation import is_conversation
from episodes.inspect.doctor.finding import Finding, Place, gather_findings, not_finite_counts
from episodes.inspect.doctor.trial import array_of, digest, exceeds_bounds
from episodes.multi_agent import MultiAgentEpisode
from episodes.single_agent import SingleAgentEpisode
from episodes.tokens.arguments import MOST_LOGP
from episodes.tokens.names import LOGP, TRAINER_LOGP
from episodes.tracks import nested
from episodes.tracks.ragged import Ragged
from episodes.tracks.space_kinds import SpaceKind, bounds_of, kind_of, parts_of

if TYPE_CHECKING:
    from episodes.data_types import Space

FEWEST_STEPS = 5  # of an episode that can be a duplicate
MOST_PLACES = 1000  # outside the space, of one track of an episode


@dataclass
class Scan:
    """Checker of one episode after another that collects NaN, infinities, values outside spaces, gaps, duplicates."""

    num_episodes: int = 0
    num_steps: int = 0
    num_ended: int = 0
    places: dict[str, list[Place]] = field(default_factory=dict)
    _stops: dict[Any, int] = field(default_factory=dict)  # step at which the last chunk of an episode stops
    _hashes: dict[bytes, Any] = field(default_factory=dict)

    def add(self, episode: SingleAgentEpisode | MultiAgentEpisode | Mapping[str, Any], number: int) -> None:
        """Check one episode and record its problems."""
        if isinstance(episode, MultiAgentEpisode):
            for agent_episode in episode.agent_episodes.values():
                self.add(agent_episode, number)
            return
        self.num_episodes += 1
        if isinstance(episode, SingleAgentEpisode):
            self._add_episode(episode)
        elif isinstance(episode, Mapping):
            self._add_columns(episode, number)

    def findings(self) -> list[Finding]:
        """Return the recorded problems as one finding per kind."""
        return [finding for kind, places in self.places.items() for finding in gather_findings(kind, places)]

    def _add_episode(self, episode: SingleAgentEpisode) -> None:
        """Check an episode (or chunk) of a data set, and record its problems.

        A gap or an overlap is recorded if the episode does not continue at the end of the chunk before it with
        the same id and agent.
        """
        self.num_steps += len(episode)
        self.num_ended += episode.is_done
        key, started = (episode.id_, episode.agent_id), episode.t_started
        stop = self._stops.get(key, started)
        if stop != started:
            text = f"the chunk begins at step {started}, the one before it stops at {stop}"
            self._note("clock_jump", episode.id_, 0, text)
        self._stops[key] = started + len(episode)
        if not episode.is_reset:
            return
        columns = {"observation": episode.get_observations()}
        if len(episode):
            columns |= {"action": episode.get_actions(), "reward": episode.get_rewards()}
        self._add_arrays(columns, episode.id_, len(episode))
        self._check_log_probs(episode)
        self._check_bounds("observation", columns["observation"], episode.observation_space, episode.id_)
        if "action" in columns:
            self._check_bounds("action", columns["action"], episode.action_space, episode.id_)

    def _add_columns(self, columns: Mapping[str, Any], number: int) -> None:
        """Check an episode that is given as a mapping of columns. Its id is `columns["id"]`, or else `number`."""
        self.num_steps += len(columns["rewards"])
        flags = [
            columns[name] for name in ("terminations", "truncations", "terminated", "truncated") if name in columns
        ]
        self.num_ended += any(bool(np.any(flag)) for flag in flags)
        names = {"observation": "observations", "action": "actions", "reward": "rewards"}
        extra_columns = {name: columns[column] for name, column in names.items() if column in columns}
        self._add_arrays(extra_columns, columns.get("id", number), len(columns["rewards"]))

    def _note(self, kind: str, id_: object, step: int | None, evidence: object, track: str = "") -> None:
        """Record the place of a problem, its evidence as in `Place`, and the track if one is to blame."""
        self.places.setdefault(kind, []).append((id_, step, evidence, track))

    def _add_arrays(self, columns: dict[str, Any], id_: object, num_steps: int) -> None:
        """Record NaN and infinities in an episode's arrays, and whether an earlier episode has equal arrays."""
        sums = hashlib.blake2b(digest_size=16)
        for path, leaf in nested.flatten(columns).items():
            array, lengths = _numbers(leaf)
            if array.dtype == object:
                sums.update(b"".join(map(digest, leaf)) if isinstance(leaf, list) else repr(leaf).encode())
                continue
            if lengths is not None:
                sums.update(lengths.tobytes())
            sums.update(np.ascontiguousarray(array).tobytes())
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                rows = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(1)) if array.ndim else [0]
                for i in rows:
                    row = array[i] if array.ndim else array
                    step = i if lengths is None else lengths.cumsum().searchsorted(i, "right")
                    self._note("not_finite", id_, int(step), not_finite_counts(row), path)
        if num_steps >= FEWEST_STEPS and _varies(columns["observation"]):
            first = self._hashes.setdefault(sums.digest(), id_)
            if first is not id_:
                self._note("duplicate_episode", id_, None, f"every number equals that of episode {first}")

    def _check_log_probs(self, episode: SingleAgentEpisode) -> None:
        """Note log-probabilities of tokens that are greater than 0 by more than rounding."""
        names = [name for name in (LOGP, TRAINER_LOGP) if name in episode.tracks.extra] if len(episode) else []
        for name in names if is_conversation(episode) else ():
            numbers, lengths = _numbers(episode.get_extra_model_outputs(name))
            if lengths is None or numbers.ndim != 1 or numbers.dtype.kind != "f":
                continue
            for i in np.flatnonzero(numbers > MOST_LOGP)[:MOST_PLACES].tolist():
                step = int(lengths.cumsum().searchsorted(i, "right"))
                self._note("probability_above_1", episode.id_, step, f"{name} is {numbers[i]:.4g}, at most 0", name)

    def _check_bounds(self, name: str, items: object, space: Space | None, id_: object) -> None:
        """Note items outside the bounds of their space, at most `MOST_PLACES` per episode."""
        kind = "action_outside_space" if name == "action" else "outside_space"
        for place in islice(outside_bounds(items, space, name), MOST_PLACES):
            label = f"{place.path}{list(place.indices)}" if place.indices else place.path
            self._note(kind, id_, place.step, f"{label} is {place.number:.7g}, {place.bounds}", place.path)


def _numbers(leaf: object) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the items of a column as one array. Items of different lengths are concatenated, and the second result is
    the number of rows of each, int64 [n], else None.
    """
    if type(leaf) is Ragged:
        return leaf.flat, leaf.lengths
    array = array_of(leaf)
    if array.dtype == object and isinstance(leaf, list):
        items = [array_of(item) for item in leaf]
        if all(item.ndim and item.dtype.kind in "biuf" and item.shape[1:] == items[0].shape[1:] for item in items):
            return np.concatenate(items), np.array([len(item) for item in items], np.int64)
    return array, None


class OutsideBounds(NamedTuple):
    """Number outside the bounds of its space: its value and position."""

    path: str  # of the leaf, such as "observation/speed"
    step: int
    indices: tuple[int, ...]  # in the item
    shape: tuple[int, ...]  # of the item
    number: Any
    bounds: str


def outside_bounds(items: object, space: Space | None, name: str) -> Iterator[OutsideBounds]:
    """Yield the numbers in a batch of items that lie outside the bounds of their array (sub)space.

    Leaves with another shape than their space are skipped. Other checks compare keys, dtypes and shapes.

    Args:
        items: nested arrays [n, ...].
        name: the first part of the paths.
    """
    for path, part, leaf in _leaves_with_spaces(space, items, name):
        array = array_of(leaf)
        if array.dtype.kind not in "biuf":
            continue
        bounds = bounds_of(part)
        if bounds is None or array.shape[1:] != part.shape:
            continue
        low, high = bounds
        if not array.size or (array.min() >= np.max(low) and array.max() <= np.min(high)):
            continue  # in little memory, as for images
        for at in np.argwhere(exceeds_bounds(array, low, high)):
            index = tuple(int(i) for i in at[1:])
            words = f"bounds {low[index]:.7g} to {high[index]:.7g}"
            yield OutsideBounds(path, int(at[0]), index, array.shape[1:], array[tuple(at)], words)


def _varies(observations: object) -> bool:
    """Return True if the first array of the observations takes more than two values in its first 64 items."""
    array = array_of(nested.first_leaf(observations))
    if array.dtype == object or array.ndim == 0:
        return True
    return len(np.unique(array.reshape(len(array), -1)[:64], axis=0)) > 2


def _leaves_with_spaces(space: Space | None, items: object, path: str) -> list[tuple[str, Any, Any]]:
    """Return the arrays in nested items as a list of (key path, space of the array, array)."""
    kind, parts = kind_of(space), parts_of(space)
    if kind is SpaceKind.DICT and isinstance(items, Mapping):
        pairs = [(key, part, items[key]) for key, part in parts.items() if key in items]
    elif kind is SpaceKind.TUPLE and isinstance(items, tuple):
        pairs = [(k, part, item) for (k, part), item in zip(parts.items(), items, strict=False)]
    else:
        return [] if isinstance(items, (Mapping, tuple)) else [(path, space, items)]
    return [leaf for key, part, item in pairs for leaf in _leaves_with_spaces(part, item, f"{path}/{key}")]
