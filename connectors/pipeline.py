"""`ConnectorPipeline`: connectors that are called in order, each with the batch that the previous one returned.

A pipeline is a connector too. Its connectors have unique names, which also identify their states. When a pipeline is
built or changed, it checks that each connector finds the columns it reads, and it recomputes all spaces.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym

from connectors.connector import ColumnDict, Connector
from connectors.trace import Trace
from connectors.wiring import check_wiring, name_connectors
from episodes.errors import StateMismatch, UnknownKey, WrongType
from episodes.tracks.notebook_repr import notebook_repr
from episodes.tracks.validation import checked_items, checked_space, reading_state

if TYPE_CHECKING:
    from connectors.policy import Policy
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["ConnectorPipeline"]


class ConnectorPipeline(Connector):
    """Sequence of connectors (steps that transform a batch), called in order, each with the batch that the previous one
    returned.

    Args:
        input_observation_space: space of the observations before the first connector.
        input_action_space: space of the actions before the first connector.
        connectors: the connectors in order.
        input_columns: columns that the caller puts into the batch, in addition to those of the class.
        name: name of the pipeline; by default the name of its class.

    Raises:
        UnwiredPipeline: a connector reads a column that is no input column, and no earlier connector writes it.
        InvalidArgument: a connector or a name occurs twice.
        WrongType: an item is not a connector, or a space is not a Gymnasium space.
    """

    input_columns: tuple[str, ...] = ()
    _repr_html_ = notebook_repr("connectors.notebook_cards", "pipeline")

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        connectors: Iterable[Connector] = (),
        input_columns: Iterable[str] = (),
        name: str | None = None,
    ) -> None:
        self.input_columns = (
            *type(self).input_columns,
            *checked_items("input_columns", input_columns, "names of columns"),
        )
        self.trace: Trace | None = None  # of the last call with trace=True
        self._pieces: dict[str, Connector] = {}
        self._stages: dict[str, Connector] = {}  # what a call runs, by name: here the pieces
        self._row_stages: tuple[Connector, ...] = ()  # what `on_rows` runs
        self._input_observation_space = checked_space("input_observation_space", input_observation_space)
        self._input_action_space = checked_space("input_action_space", input_action_space)
        self._name = name
        self._rewire(name_connectors(connectors))

    def __call__(
        self,
        *,
        rl_module: Policy | None = None,
        batch: ColumnDict | None = None,
        episodes: Any = (),
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: object = None,
        trace: bool = False,
        **kwargs: Any,
    ) -> ColumnDict:
        """Call all connectors in order, and return the batch that the last one returned.

        Args:
            rl_module: the policy.
            batch: columns to start from. The dict is not changed.
            episodes: the episodes.
            explore: whether actions are sampled; None while learning.
            shared_data: a dict that all connectors share; by default a new one.
            metrics: a metrics logger, or None.
            trace: record the input and output of each connector in `self.trace`.
            kwargs: further arguments for all connectors.

        Raises:
            WrongType: a connector returned something else than a batch.
        """
        self.trace = Trace() if trace else self.trace
        shared_data = {} if shared_data is None else shared_data
        context = {"rl_module": rl_module, "explore": explore, "shared_data": shared_data, "metrics": metrics, **kwargs}
        batch = {} if batch is None else dict(batch)  # not `batch or {}`: a `Batch` or TensorDict has no truth value
        return self._run(batch, episodes, self.trace if trace else None, context)

    def on_rows(
        self,
        rl_module: Policy | None,
        batch: ColumnDict,
        episodes: Sequence[SingleAgentEpisode],
        explore: bool | None,
        shared_data: dict[str, Any],
        **kwargs: Any,
    ) -> ColumnDict:
        """Call the connectors on a batch of complete arrays [N, ...], and return the final batch. This is faster than
        calling the pipeline.

        A runner calls this once per vector step. Leading connectors that do not change complete arrays are
        skipped, and the given dict may be changed.

        Raises:
            WrongType: a connector returned something else than a batch.
        """
        context = {"rl_module": rl_module, "explore": explore, "shared_data": shared_data, "metrics": None, **kwargs}
        for stage in self._row_stages:
            batch = stage(batch=batch, episodes=episodes, **context)
            if type(batch) is not dict:
                batch = checked_batch(batch, stage.name)
        return batch

    def _run(
        self, batch: ColumnDict, episodes: Sequence[SingleAgentEpisode], trace: Trace | None, context: dict[str, Any]
    ) -> ColumnDict:
        """Run all stages with the arguments in `context`, record the calls in `trace` if it is given, and return the
        final batch.
        """
        for name, stage in self._stages.items():
            call = stage if trace is None else trace.watcher(name, stage)
            batch = call(batch=batch, episodes=episodes, **context)
            if type(batch) is not dict:
                batch = checked_batch(batch, name)
        return batch

    # Pieces

    @property
    def connectors(self) -> tuple[Connector, ...]:
        """Connectors of the pipeline, in order."""
        return tuple(self._pieces.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the connectors, in order."""
        return tuple(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def __iter__(self) -> Iterator[Connector]:
        return iter(self._pieces.values())

    def __contains__(self, name_or_class: str | type[Connector]) -> bool:
        return self._find(name_or_class) is not None

    def __getitem__(self, name_or_class: str | type[Connector]) -> Any:
        """Return the connector with this name, or the first connector of this class.

        Raises:
            UnknownKey: no connector matches.
        """
        return self._pieces[self._key(name_or_class)]

    def __repr__(self) -> str:
        return f"{self.name}({' > '.join(self._pieces)})"

    def prepend(self, connector: Connector) -> None:
        """Insert a connector at the beginning of the pipeline.

        Raises:
            UnwiredPipeline: a connector would lack a column that it reads. Nothing is changed.
            InvalidArgument: the pipeline has the connector already, or another one with the name it was given.
            WrongType: the argument is not a connector.
        """
        self._insert(0, connector)

    def append(self, connector: Connector) -> None:
        """Insert a connector at the end of the pipeline.

        Raises:
            UnwiredPipeline: a connector would lack a column that it reads. Nothing is changed.
            InvalidArgument: the pipeline has the connector already, or another one with the name it was given.
            WrongType: the argument is not a connector.
        """
        self._insert(len(self._pieces), connector)

    def insert_before(self, name_or_class: str | type[Connector], connector: Connector) -> None:
        """Insert a connector before the connector with a given name or class.

        Raises:
            UnknownKey: no connector matches.
            UnwiredPipeline: a connector would lack a column that it reads. Nothing is changed.
            InvalidArgument: the pipeline has the connector already, or another one with the name it was given.
            WrongType: the argument is not a connector.
        """
        self._insert(self.names.index(self._key(name_or_class)), connector)

    def insert_after(self, name_or_class: str | type[Connector], connector: Connector) -> None:
        """Insert a connector after the connector with a given name or class.

        Raises:
            UnknownKey: no connector matches.
            UnwiredPipeline: a connector would lack a column that it reads. Nothing is changed.
            InvalidArgument: the pipeline has the connector already, or another one with the name it was given.
            WrongType: the argument is not a connector.
        """
        self._insert(self.names.index(self._key(name_or_class)) + 1, connector)

    def remove(self, name_or_class: str | type[Connector]) -> Connector:
        """Remove and return the connector with a given name or class.

        Raises:
            UnknownKey: no connector matches.
            UnwiredPipeline: another connector reads a column that this one writes. Nothing is changed.
        """
        key = self._key(name_or_class)
        removed = self._pieces[key]
        self._rewire({name: piece for name, piece in self._pieces.items() if name != key})
        return removed

    def _insert(self, position: int, connector: Connector) -> None:
        """Insert a connector at index `position`. If it does not fit, keep the pipeline unchanged and raise."""
        items = list(self._pieces.items())
        new = name_connectors([connector], beside=self._pieces).items()
        self._rewire(dict([*items[:position], *new, *items[position:]]))

    def _rewire(self, pieces: dict[str, Connector]) -> None:
        """Replace all connectors of the pipeline. If their columns or spaces do not fit each other, keep the old ones
        and raise.
        """
        before = self._pieces
        try:
            self._set_pieces(pieces)
            check_wiring(pieces, self._columns_given())
        except Exception:
            self._set_pieces(before)
            raise

    def _columns_given(self) -> tuple[str, ...]:
        """Return the names of the columns that connectors can read without a connector that writes them."""
        return self.input_columns

    def _set_pieces(self, pieces: dict[str, Connector]) -> None:
        """Store the pipeline's connectors, and recompute the pipeline's columns, lookback and spaces."""
        self._pieces = pieces
        self.writes = tuple(dict.fromkeys(column for piece in pieces.values() for column in piece.writes))
        self.lookback = max((piece.lookback for piece in pieces.values()), default=0)
        self.set_input_spaces(self._input_observation_space, self._input_action_space)

    def _find(self, name_or_class: str | type[Connector]) -> str | None:
        """Return the name of the connector with this name, or of the first one of this class, or None."""
        if isinstance(name_or_class, str):
            return name_or_class if name_or_class in self._pieces else None
        return next((name for name, piece in self._pieces.items() if isinstance(piece, name_or_class)), None)

    def _key(self, name_or_class: str | type[Connector]) -> str:
        """Return the name of the connector with this name, or of the first one of this class. Raise `UnknownKey` if no
        connector matches.
        """
        key = self._find(name_or_class)
        if key is None:
            key_name = name_or_class if isinstance(name_or_class, str) else name_or_class.__name__
            raise UnknownKey(f"{self.name} has no piece {key_name!r}; it has {', '.join(self._pieces) or 'none'}")
        return key

    # Spaces

    def set_input_spaces(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Set the pipeline's input spaces, and recompute the spaces of each connector from the output spaces of the
        previous connector.
        """
        self._input_observation_space, self._input_action_space = observation_space, action_space
        self._observation_space, self._action_space = chain_spaces(
            self._pieces.values(), observation_space, action_space
        )
        self._set_stages(self._pieces)

    def bind(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Set the pipeline's input spaces, unless it has input spaces already."""
        if self._input_observation_space is None and self._input_action_space is None:
            self.set_input_spaces(observation_space, action_space)

    def _set_stages(self, stages: dict[str, Connector]) -> None:
        """Store what a call runs, by name and in order, and what `on_rows` runs: all stages except the leading ones
        that do not change complete arrays.

        `on_rows` runs all stages after the first one that changes arrays, because it may leave incomplete columns.
        `ModuleToEnvPipeline` leaves out every stage that does not change complete arrays. `EnvToModulePipeline` gives
        copies of the ongoing episodes to stages that read single episodes.
        """
        self._stages = stages
        self._row_stages = tuple(dropwhile(lambda stage: not stage.changes_rows, stages.values()))

    @property
    def fingerprint(self) -> list[Any]:
        """Names and settings of all connectors as plain values, with which two pipelines can be compared."""
        return [[name, piece.settings] for name, piece in self._pieces.items()]

    # State

    @property
    def empty_filters(self) -> list[str]:
        """Names of the connectors that learn statistics, such as `MeanStdFilter`, but have not seen any data."""
        return [name for name, piece in self._pieces.items() if piece.is_empty_filter]

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: object,
    ) -> dict[str, Any]:
        """Return the states of the connectors by name, for a checkpoint. Empty states are left out."""
        states = {name: piece.get_state() for name, piece in self._pieces.items()}
        return {name: state for name, state in states.items() if state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the states of the connectors that `get_state` returned.

        Raises:
            StateMismatch: the state is malformed, or of a pipeline with other connectors. Nothing is changed.
        """
        before = self.get_state()
        with reading_state(type(self)):
            state = dict(state.items())
        unknown = [name for name in state if name not in self._pieces]
        missing = [name for name in before if name not in state]
        if unknown or missing:
            raise StateMismatch(
                f"{self.name}.set_state: the state has {', '.join(state) or 'nothing'}, the pieces with a state are "
                f"{', '.join(before) or 'none'}; give a state of a pipeline with the same pieces"
            )
        set_states(self._pieces, state, before)

    def reset_state(self) -> None:
        """Reset the states of all connectors, for example learned statistics."""
        for piece in self._pieces.values():
            piece.reset_state()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Return one state that combines the states of several copies of this pipeline, connector by connector.

        Raises:
            UnknownKey: a state contains a connector that this pipeline lacks.
        """
        names = dict.fromkeys(name for state in states for name in state)
        return {
            name: self._pieces[self._key(name)].merge_states([state[name] for state in states if name in state])
            for name in names
        }


def set_states(pieces: Mapping[Any, Any], states: Mapping[Any, Any], before: Mapping[Any, Any]) -> None:
    """Set the state of each connector in `pieces` by name. If one fails, set the states `before` again and raise the
    error.
    """
    try:
        for name, state in states.items():
            pieces[name].set_state(state)
    except BaseException:
        for name in states.keys() & before.keys():
            pieces[name].set_state(before[name])
        raise


def chain_spaces(
    pieces: Iterable[Connector], observation_space: gym.Space | None, action_space: gym.Space | None
) -> tuple[Any, Any]:
    """Set the input spaces of each connector to the output spaces of the previous one, and return the last output
    spaces.
    """
    for piece in pieces:
        piece.set_input_spaces(observation_space, action_space)
        observation_space = None if observation_space is None else piece.observation_space
        action_space = piece.action_space
    return observation_space, action_space


def checked_batch(returned: object, name: str) -> ColumnDict:
    """Return the value that the connector `name` returned, after a check that it is a batch (a mutable mapping).

    Raises:
        WrongType: it is something else.
    """
    if not isinstance(returned, MutableMapping):
        kind = "None" if returned is None else f"a {type(returned).__name__}"
        raise WrongType(f"{name} returned {kind}, not a batch; end its __call__ with `return batch`")
    return cast(ColumnDict, returned)
