"""Filter statistics that several env runners share. Each observation counts once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from episodes.tracks import nested

__all__ = ["SHARED", "SharedStatistics"]

SHARED = "__shared__"  # key in the states of a pipeline


class SharedStatistics:
    """State of a pipeline whose filters share their statistics with other env runners.

    Remote env runners send their states to the local one, which sends the merged state back. IMPALA and APPO do so
    while the remote runners sample. States can be late or sent twice, and a merged state can lack the newest
    observations of the runner that receives it. Therefore a remote runner sends the statistics of all its observations
    since the last restored checkpoint, and the local runner uses the newest state of each runner.

    Args:
        pipeline: the pipeline of this library.

    Attributes:
        is_local: whether the env runner is the local one, which merges states.
    """

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self.is_local = False
        self._checkpoint_id = ""  # differs after each restored checkpoint
        self._runner_id = uuid4().hex
        self._num_states = 0  # number of states that were sent
        self._sampled: dict[Any, Any] = {}  # of a remote runner: its observations before the last `set_state`
        self._base: dict[Any, Any] = {}  # of the local runner: a restored checkpoint, and its own observations
        self._received: dict[str, dict[str, Any]] = {}  # of the local runner: newest data by remote runner

    def get_state(self) -> dict[Any, Any]:
        """Return the pipeline's state. The key `SHARED` has the data that `merge_states` of the local runner needs."""
        state = self.pipeline.get_state()
        shared: dict[str, Any] = {"checkpoint_id": self._checkpoint_id}
        if not self.is_local:
            self._num_states += 1
            sampled = self._sum(self._sampled, _unsynced(state))
            shared |= {"runner_id": self._runner_id, "number": self._num_states, "sampled": sampled}
        return {**state, SHARED: shared}

    def set_state(self, state: dict[Any, Any]) -> None:
        """Set the state of a checkpoint, or the merged state of the local runner.

        After a merged state, the next states of a remote runner still contain all its observations.
        """
        before, (state, shared) = self.pipeline.get_state(), _split(state)
        if self.is_local:
            self.pipeline.set_state(state)
            if not nested.equal(_filters(state), _filters(before)):
                self._restart(_synced(state))
            return
        self.pipeline.set_state(_replace(state, _as_synced(self._sum(_synced(state), _unsynced(state)))))
        checkpoint_id = shared.get("checkpoint_id", "")
        is_merged = checkpoint_id == self._checkpoint_id
        self._sampled = self._sum(self._sampled, _unsynced(before)) if is_merged else {}
        self._checkpoint_id = checkpoint_id

    def reset_state(self) -> None:
        """Discard all statistics."""
        self.pipeline.reset_state()
        self._sampled = {}
        if self.is_local:
            self._restart({})

    def merge_states(self, states: list[dict[Any, Any]]) -> dict[Any, Any]:
        """Add the statistics of remote runners to the pipeline's statistics, and return the merged state.

        The merged state is also set in the pipeline, because IMPALA and APPO do not set it. States from before a
        checkpoint was restored are ignored.
        """
        local, pairs = self.pipeline.get_state(), [_split(state) for state in states]
        merged = self.pipeline.merge_states([*(state for state, _ in pairs), local])
        for _, shared in pairs:
            known = self._received.get(shared.get("runner_id", ""), {"number": 0})
            if shared.get("checkpoint_id") == self._checkpoint_id and shared.get("number", 0) > known["number"]:
                self._received[shared["runner_id"]] = shared
        self._base = self._sum(self._base, _unsynced(local))
        total = self._sum(self._base, *(shared["sampled"] for shared in self._received.values()))
        self.pipeline.set_state(_replace(local, _as_synced(total)))
        merged = _replace(_without_filters(merged), _as_synced(total))
        return {**merged, SHARED: {"checkpoint_id": self._checkpoint_id}}

    def _restart(self, base: dict[Any, Any]) -> None:
        """Continue with the statistics `base`. States that remote runners sent earlier are ignored."""
        self._base, self._received, self._checkpoint_id = base, {}, uuid4().hex

    def _sum(self, *parts: dict[Any, Any]) -> dict[Any, Any]:
        """Return the sum of statistics of different observations, as filter states under the key "own"."""
        return _synced(self.pipeline.merge_states(list(parts)))


def _is_filter(state: Any) -> bool:
    """Return True if `state` is the state of a `MeanStdFilter`."""
    return isinstance(state, dict) and state.keys() == {"synced", "own"}


def _map_filters(state: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[Any, Any]:
    """Return the states of the filters in a nested state, each changed by `change`. Other states are left out."""
    changed = {}
    for key, part in state.items():
        if isinstance(part, dict):
            changed[key] = change(part) if _is_filter(part) else _map_filters(part, change)
    return {key: part for key, part in changed.items() if part}


def _without_filters(state: dict[Any, Any]) -> dict[Any, Any]:
    """Return a nested state without the states of its filters."""
    parts = {key: part for key, part in state.items() if not _is_filter(part)}
    return {key: _without_filters(part) if isinstance(part, dict) else part for key, part in parts.items()}


def _filters(state: dict[Any, Any]) -> dict[Any, Any]:
    """Return the states of the filters in a state, without other states."""
    return _map_filters(state, dict)


def _synced(state: dict[Any, Any]) -> dict[Any, Any]:
    """Return filter states that contain the synchronized statistics of a state, under the key "own"."""
    return _map_filters(state, lambda known: {"synced": {}, "own": known["synced"]})


def _unsynced(state: dict[Any, Any]) -> dict[Any, Any]:
    """Return filter states that contain the unsynchronized statistics of a state, under the key "own"."""
    return _map_filters(state, lambda known: {"synced": {}, "own": known["own"]})


def _as_synced(total: dict[Any, Any]) -> dict[Any, Any]:
    """Return filter states in which the statistics under "own" are moved to "synced"."""
    return _map_filters(total, lambda known: {"synced": known["own"], "own": {}})


def _replace(state: dict[Any, Any], filters: dict[Any, Any]) -> dict[Any, Any]:
    """Return a nested state with the states of its filters replaced by the states in `filters`."""
    replaced = dict(state)
    for key, part in filters.items():
        is_group = isinstance(state.get(key), dict) and not _is_filter(part)
        replaced[key] = _replace(state[key], part) if is_group else part
    return replaced


def _split(state: dict[Any, Any]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Return a pipeline's state without the key `SHARED`, and the data under this key."""
    return {key: part for key, part in state.items() if key != SHARED}, state.get(SHARED, {})
