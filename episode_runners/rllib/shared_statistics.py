"""Filter statistics that several env runners share. Each observation counts once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from connectors.moments import Moments
from connectors.rewriting.mean_std_filter import merge_statistics
from episodes.tracks import nested

if TYPE_CHECKING:
    from connectors.multi_agent_pipelines import MultiAgentPipeline
    from connectors.pipeline import ConnectorPipeline

__all__ = ["SHARED", "SharedStatistics"]

SHARED = "__shared__"  # key in the states of a pipeline

Statistics = dict[tuple[Any, ...], Moments]  # by keys of the filter in its pipeline's state, and path of the leaf


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

    def __init__(self, pipeline: ConnectorPipeline | MultiAgentPipeline) -> None:
        self.pipeline = pipeline
        self.is_local = False
        self._checkpoint_id = ""  # differs after each restored checkpoint
        self._runner_id = uuid4().hex
        self._num_states = 0  # number of states that were sent
        self._sampled: Statistics = {}  # of a remote runner: its observations before the last `set_state`
        self._base: Statistics = {}  # of the local runner: a restored checkpoint, and its own observations
        self._received: dict[str, dict[str, Any]] = {}  # of the local runner: newest data by remote runner

    def get_state(self) -> dict[Any, Any]:
        """Return the pipeline's state. The key `SHARED` has the data that `merge_states` of the local runner needs."""
        state = self.pipeline.get_state()
        shared: dict[str, Any] = {"checkpoint_id": self._checkpoint_id}
        if not self.is_local:
            self._num_states += 1
            sampled = merge_statistics([self._sampled, _statistics(state, "own")])
            shared |= {"runner_id": self._runner_id, "number": self._num_states, "sampled": sampled}
        return {**state, SHARED: shared}

    def set_state(self, state: dict[Any, Any]) -> None:
        """Set the state of a checkpoint, or the merged state of the local runner.

        After a merged state, the next states of a remote runner still contain all its observations.
        """
        before, (state, shared) = self.pipeline.get_state(), _split(state)
        if self.is_local:
            self.pipeline.set_state(state)
            if not nested.equal(dict(_filters(state)), dict(_filters(before))):
                self._restart(_statistics(state, "synced"))
            return
        self.pipeline.set_state(_with_statistics(state, _statistics(state, "synced", "own")))
        checkpoint_id = shared.get("checkpoint_id", "")
        is_merged = checkpoint_id == self._checkpoint_id
        self._sampled = merge_statistics([self._sampled, _statistics(before, "own")]) if is_merged else {}
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
        local = self.pipeline.get_state()
        merged = self.merged_state(states)
        self._received = self._newest(states)
        self._base = merge_statistics([self._base, _statistics(local, "own")])
        self.pipeline.set_state(_with_statistics(local, _statistics(merged, "synced")))
        return merged

    def merged_state(self, states: list[dict[Any, Any]]) -> dict[Any, Any]:
        """Return the state that `merge_states` would return, without a change of any state."""
        local = self.pipeline.get_state()
        merged = self.pipeline.merge_states([*(_split(state)[0] for state in states), local])
        received = [shared["sampled"] for shared in self._newest(states).values()]
        total = merge_statistics([self._base, _statistics(local, "own"), *received])
        return {**_with_statistics(merged, total), SHARED: {"checkpoint_id": self._checkpoint_id}}

    def _newest(self, states: list[dict[Any, Any]]) -> dict[str, dict[str, Any]]:
        """Return the newest data of each remote runner, by its id, among `states` and the data received before."""
        newest = dict(self._received)
        for _, shared in map(_split, states):
            known = newest.get(shared.get("runner_id", ""), {"number": 0})
            if shared.get("checkpoint_id") == self._checkpoint_id and shared.get("number", 0) > known["number"]:
                newest[shared["runner_id"]] = shared
        return newest

    @property
    def has_filters(self) -> bool:
        """Whether the pipeline has connectors that learn statistics, such as `MeanStdFilter`."""
        return bool(self.statistics(self.pipeline.get_state()) or self.pipeline.empty_filters)

    @staticmethod
    def statistics(state: dict[Any, Any]) -> Statistics:
        """Return the statistics of the filters in a state, by their place in it. Empty filters have none."""
        found = _statistics(_split(state)[0], "synced", "own")
        return {path: known for path, known in found.items() if known.count}

    def _restart(self, base: Statistics) -> None:
        """Continue with the statistics `base`. States that remote runners sent earlier are ignored."""
        self._base, self._received, self._checkpoint_id = base, {}, uuid4().hex


def _is_filter(state: object) -> bool:
    """Return True if `state` is the state of a `MeanStdFilter`."""
    return isinstance(state, dict) and state.keys() == {"synced", "own"}


def _filters(state: dict[Any, Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield the path and the state of each filter in a nested state, whose own path is `path`."""
    for key, part in state.items():
        if _is_filter(part):
            yield (*path, key), part
        elif isinstance(part, dict):
            yield from _filters(part, (*path, key))


def _statistics(state: dict[Any, Any], *kinds: str) -> Statistics:
    """Return the statistics of the filters in a state: the "synced" ones, the "own" ones, or the sum of both."""
    parts = (
        {
            (*path, leaf): Moments.from_state(known)
            for path, part in _filters(state)
            for leaf, known in part[kind].items()
        }
        for kind in kinds
    )
    return merge_statistics(list(parts))


def _with_statistics(state: dict[Any, Any], statistics: Statistics) -> dict[Any, Any]:
    """Return a copy of a state whose filters have `statistics`, as synchronized ones, in place of their own."""
    changed = _without_statistics(state)
    for (*path, leaf), known in statistics.items():
        part = changed
        for key in path:
            part = part.setdefault(key, {})
        part.setdefault("own", {})
        part.setdefault("synced", {})[leaf] = known.get_state()
    return changed


def _without_statistics(state: object) -> Any:
    """Return a copy of a nested state with empty filters."""
    if _is_filter(state):
        return {"synced": {}, "own": {}}
    return {key: _without_statistics(part) for key, part in state.items()} if isinstance(state, dict) else state


def _split(state: dict[Any, Any]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Return a pipeline's state without the key `SHARED`, and the data under this key."""
    return {key: part for key, part in state.items() if key != SHARED}, state.get(SHARED, {})
