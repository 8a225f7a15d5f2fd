"""`check_connector`: check that a connector of yours keeps the rules of its pipeline."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch

from connectors.connector import Connector
from connectors.rewriting.rewriter import ObservationRewriter
from connectors.testing.bench import BENCHES, Bench, ConnectorRun, Samples
from connectors.testing.rewriters import check_rewriter, same_state
from episodes.columns import Columns
from episodes.data_types import NestedArrays
from episodes.errors import ContractViolation, InvalidArgument, WrongType, rejected_type
from episodes.pack import EpisodePack
from episodes.testing.contract import brief, differing_leaf, violation
from episodes.testing.row_format import check_item, item_of
from episodes.tracks import nested
from episodes.tracks.spaces import irregular_part, varying_shapes_error

if TYPE_CHECKING:
    from connectors.policy import Policy

__all__ = ["check_connector"]

_BOX, _CHOICE = gym.spaces.Box(-10, 10, (3,), np.float32), gym.spaces.Discrete(3)


def check_connector(
    piece: Connector,
    pipeline: str,
    *,
    observation_space: gym.Space = _BOX,
    action_space: gym.Space = _CHOICE,
    policy: Policy | None = None,
    before: Sequence[Connector] | None = None,
    rowwise: bool = True,
) -> None:
    """Check on sample data that a connector of yours keeps the rules of its pipeline. Only copies of it are run.

    The rules: It needs only the columns that it `reads`, and writes only those that it `writes`. It changes neither the
    episodes nor the given arrays. It returns a row per step (while acting: per environment), also for chunks of one or
    no step. A pack, a list of episodes and their halves have equal results. Its outputs are in its declared spaces. Its
    state can be restored in a copy, and it can be pickled.

    Args:
        piece: the connector.
        pipeline: "env_to_module", "module_to_env" or "learner".
        observation_space: space of the sampled observations.
        action_space: space of the sampled actions.
        policy: the `rl_module`, if the connector needs one.
        before: the connectors before it. By default those that add observations, next observations and columns of steps
            (learner), or that sample actions (module to env).
        rowwise: False if rows depend on each other or on chance, for example because of a normalization over the batch.

    Raises:
        ContractViolation: a rule is broken. The error has the expected and the actual value.
        WrongType: `piece` is not a connector.
        InvalidArgument: `pipeline` is not one of the three names.
        ShapeMismatch: a space has items of several shapes, of which the check can make no arrays.

    >>> from connectors import Connector
    >>> class ClipRewards(Connector):
    ...     reads = writes = ("rewards",)
    ...     def __call__(self, *, batch, episodes, **kwargs):
    ...         return {**batch, "rewards": batch["rewards"].clip(-1.0, 1.0), "clipped": batch["rewards"]}
    >>> check_connector(ClipRewards(), "learner")
    Traceback (most recent call last):
        ...
    episodes.errors.ContractViolation: ClipRewards: expected only the columns that it writes ('rewards'), found ...
    """
    if not isinstance(piece, Connector):
        raise WrongType(
            f"check_connector takes a Connector, not a {rejected_type(piece, Connector)}; a view: check_view"
        )
    if pipeline not in BENCHES:
        raise InvalidArgument(f"pipeline={pipeline!r}; there are {', '.join(map(repr, BENCHES))}")
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        if (part := irregular_part(space)) is not None:
            raise varying_shapes_error(name, part)
    bench = BENCHES[pipeline](observation_space, action_space, policy, before)
    _check_declarations(piece)
    if isinstance(piece, ObservationRewriter):
        check_rewriter(piece, bench, rowwise)
    _ConnectorCheck(piece, bench, rowwise).run()


def _check_declarations(piece: Connector) -> None:
    """Raise `ContractViolation` if the connector's `reads` or `writes` is not a tuple of column names."""
    for name in ("reads", "writes"):
        columns = getattr(piece, name)
        if isinstance(columns, str) or not all(isinstance(column, str) for column in columns):
            raise violation(piece.name, f"{name} to be a tuple of columns", repr(columns), f"write ({columns!r},)")


class _ConnectorCheck:
    """Checks of one connector: each runs copies of the connector on sample data and examines the results."""

    def __init__(self, piece: Connector, bench: Bench, rowwise: bool) -> None:
        self.piece, self.bench, self.rowwise = piece, bench, rowwise

    def run(self) -> None:
        """Run all checks. The first broken rule raises a `ContractViolation`."""
        samples = self.bench.samples()
        recorded = self.recorded_run(samples)
        self.check_given(recorded, samples)
        self.check_columns(recorded)
        self.check_rows(recorded, self.bench.num_rows(samples), "of the samples")
        self.check_spaces(recorded)
        self.check_reads()
        self.check_lone_samples()
        self.check_other_forms(recorded)
        self.check_state(recorded)
        if self.rowwise:
            self.check_halves(recorded)

    def broken(self, expected: str, result: str, advice: str = "", **location: object) -> ContractViolation:
        return violation(self.piece.name, expected, result, advice, **location)

    def recorded_run(
        self, samples: Samples, piece: Connector | None = None, only: Iterable[str] | None = None, of: str = ""
    ) -> ConnectorRun:
        """Run a copy of the connector, or `piece` itself if given, on samples, and return its recorded input and output
        batches.

        Raises:
            ContractViolation: the connector raised an error.
        """
        try:
            return self.bench.run(copy.deepcopy(self.piece) if piece is None else piece, samples, only)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            if "read-only" in str(error):
                advice = "make a new array: batch['x'] = batch['x'] * 2"
                raise self.broken("arrays it is given to be left as they are", failure, advice) from error
            raise self.broken(f"a batch {of or 'of the samples'}", failure) from error

    # --- columns ---------------------------------------------------------------------------------------------

    def check_columns(self, recorded: ConnectorRun) -> None:
        """Check that the connector declares all columns that it added or changed in `writes`."""
        writes = ", ".join(map(repr, self.piece.writes)) or "none"
        new = [name for name in recorded.out if name not in recorded.given and name not in self.piece.writes]
        if new:
            raise self.broken(
                f"only the columns that it writes ({writes})", f"also {new[0]!r}", f"name {new[0]!r} in its writes"
            )
        for name in recorded.given.keys() & recorded.columns.keys() - set(self.piece.writes):
            before, after = recorded.given[name], recorded.columns[name]
            if _same_shapes(before, after) and not _equal(before, after):
                raise self.broken(
                    f"only the columns that it writes ({writes}) to change",
                    f"that {name!r} changed",
                    f"name {name!r} in its writes",
                )

    def check_given(self, recorded: ConnectorRun, samples: Samples) -> None:
        """Check that the connector changed neither the arrays of its input batch nor the episodes."""
        for name, column in recorded.given.items():
            if not _equal(column, recorded.given_after[name]):
                raise self.broken(
                    f"the array of {name!r} that it was given to be left as it is",
                    "that it was written to",
                    f"make a new one: batch[{name!r}] = ...",
                )
        for sample, untouched in zip(samples, self.bench.samples(), strict=True):
            if isinstance(self.piece, ObservationRewriter) or not hasattr(sample, "equals"):
                return
            if not sample.equals(untouched) or sample.custom_data != untouched.custom_data:
                raise self.broken(
                    "the caller's episodes to be left as they are",
                    f"that {sample.id_} is another one now",
                    "write to the batch, or shape rewards in the learner pipeline",
                )

    def check_rows(self, recorded: ConnectorRun, num_rows: int, of: str) -> None:
        """Check that the columns that the connector wrote have one row per step, or are padded sequences with a
        mask.
        """
        mask = recorded.columns.get(Columns.LOSS_MASK)
        expected_rows = num_rows if mask is None else len(mask)
        if mask is not None and mask.sum() != num_rows:
            raise self.broken(f"a loss_mask over {num_rows} real steps {of}", f"{int(mask.sum())}")
        for name in self.piece.writes:
            for path, leaf in nested.flatten(recorded.columns.get(name), name).items():
                if isinstance(leaf, (np.ndarray, list)) and (not np.ndim(leaf) or len(leaf) != expected_rows):
                    raise self.broken(f"{expected_rows} rows of {path!r} {of}, one a real step", brief(leaf))

    def check_spaces(self, recorded: ConnectorRun) -> None:
        """Check that the observations and actions that the connector wrote are in the spaces that it declares."""
        piece = copy.deepcopy(self.piece)
        piece.set_input_spaces(self.bench.observation_space, self.bench.action_space)
        spaces = {
            Columns.OBS: piece.observation_space,
            Columns.ACTIONS: piece.action_space,
            Columns.ACTIONS_FOR_ENV: self.bench.action_space,
        }
        for name, space in spaces.items():
            column = recorded.columns.get(name) if name in self.piece.writes else None
            if column is None or space is None or Columns.LOSS_MASK in recorded.columns:
                continue
            for row in range(len(column) if isinstance(column, list) else len(nested.first_leaf(column))):
                item = column[row] if isinstance(column, list) else item_of(space, column, row)
                check_item(space, item, f"{name} that go out", self.broken, row=row)

    def check_reads(self) -> None:
        """Check that the connector works if the batch has only the columns declared in its `reads`."""
        reads = tuple(dict.fromkeys((*self.piece.reads, *self.bench.input_columns)))
        recorded = self.recorded_run(
            self.bench.samples(), only=reads, of=f"with no other columns than it reads {reads}"
        )
        self.check_columns(recorded)

    def check_lone_samples(self) -> None:
        """Check that the connector works on single samples, such as an episode of one step or without steps."""
        for i, sample in enumerate(self.bench.samples()):
            of = f"of one sample ({sample if hasattr(sample, 'id_') else f'row {i}'})"
            self.check_rows(self.recorded_run([sample], of=of), self.bench.num_rows([sample]), of)

    def check_other_forms(self, recorded: ConnectorRun) -> None:
        """Check that the connector has the same result in a second run.

        In a learner pipeline, the result for finalized episodes, as a list and as a pack, must be the same, too.
        """
        forms = {"of the same samples again": self.bench.samples()}
        if self.bench.name == "learner":
            finalized = [episode.to_numpy() for episode in self.bench.samples()]
            forms |= {"of finalized episodes": finalized, "of a pack of them": EpisodePack.from_episodes(finalized)}
        for of, samples in forms.items():
            self.check_same(recorded.columns, self.recorded_run(samples, of=of).columns, of)

    def check_halves(self, recorded: ConnectorRun) -> None:
        """Check that the results for two halves of the samples, joined, equal the result for all samples."""
        samples = self.bench.samples()
        cut = len(samples) // 2
        parts = [self.recorded_run(half, of="of half the samples").columns for half in (samples[:cut], samples[cut:])]
        columns = {name: [part[name] for part in parts] for name in recorded.columns if all(name in p for p in parts)}
        joined = {
            name: [*halves[0], *halves[1]] if isinstance(halves[0], list) else nested.concatenate(halves)
            for name, halves in columns.items()
            if all(_has_rows(half) for half in halves)
        }
        whole = {name: recorded.columns[name] for name in joined}
        self.check_same(whole, joined, "of both halves joined", "a row's company counts; if it must: rowwise=False")

    def check_same(self, whole: dict[str, Any], batch: dict[str, Any], of: str, advice: str = "") -> None:
        """Raise `ContractViolation` if a column of the batch `whole` is missing in the second batch or has other
        values.
        """
        for name, column in whole.items():
            if name not in batch or not _equal(column, batch[name]):
                leaf = differing_leaf(column, batch.get(name)) if name in batch else None
                raise self.broken(
                    f"the same {name!r} {of} as of the list of samples",
                    "none" if name not in batch else f"another one{f' at {leaf}' if leaf else ''}",
                    advice,
                )

    # --- state -----------------------------------------------------------------------------------------------

    def check_state(self, recorded: ConnectorRun) -> None:
        """Check that the connector and its state can be pickled, restored in a copy, and merged."""
        used = copy.deepcopy(self.piece)
        self.recorded_run(self.bench.samples(), used)
        state = used.get_state()
        if not isinstance(state, dict):
            raise self.broken("get_state() to give a dict", brief(state))
        for label, value in (("piece", used), ("state", state)):
            try:
                _pickle_and_load(value, type(self.piece))
            except Exception as error:
                raise self.broken(
                    f"a {label} that pickles", f"{type(error).__name__}: {error}", "leave it out in __getstate__"
                ) from error
        state_before = copy.deepcopy(state)
        answer = self.recorded_run(self.bench.samples(), _pickle_and_load(used, type(self.piece)))
        merged = used.merge_states([copy.deepcopy(state)])
        for origin, loaded_state in {"get_state()": state, "merge_states([state])": merged}.items():
            restored_piece = self.restored(loaded_state, origin)
            self.check_same(
                answer.columns,
                self.recorded_run(self.bench.samples(), restored_piece).columns,
                f"after set_state of {origin}",
            )
        self.restored(used.merge_states([copy.deepcopy(state) for _ in range(2)]), "merge_states of two")
        self.recorded_run(self.bench.samples(), used)
        if not same_state(state_before, state):
            raise self.broken("a state that shares no memory with the piece", "that a later call changed it", "copy it")

    def restored(self, state: dict[str, Any], origin: str) -> Connector:
        """Return a copy of the connector with the given state. Raise `ContractViolation` if `set_state` fails."""
        restored_piece = copy.deepcopy(self.piece)
        try:
            restored_piece.set_state(copy.deepcopy(state))
        except Exception as error:
            raise self.broken(f"set_state to take what {origin} gave", f"{type(error).__name__}: {error}") from error
        return restored_piece


def _pickle_and_load(value: object, kind: type) -> Any:
    """Return a pickled and unpickled copy of a value. The class `kind` is passed by reference, because it may be a
    local class.
    """

    class Writer(pickle.Pickler):
        """Pickler that writes a short reference for the class `kind`, instead of its import path."""

        def persistent_id(self, obj: object) -> str | None:
            return "class" if obj is kind else None

    class Reader(pickle.Unpickler):
        """Unpickler that replaces the reference that `Writer` wrote by the class `kind`."""

        def persistent_load(self, pid: object) -> Any:
            return kind

    file = io.BytesIO()
    Writer(file).dump(value)
    return Reader(io.BytesIO(file.getvalue())).load()


def _has_rows(column: NestedArrays) -> bool:
    return all(isinstance(leaf, (np.ndarray, list)) and np.ndim(leaf) for leaf in nested.leaves(column))


def _same_shapes(a: object, b: object) -> bool:
    """Return True if two columns have the same nested structure and shapes."""
    shapes = [{path: np.shape(leaf) for path, leaf in nested.flatten(column).items()} for column in (a, b)]
    return shapes[0] == shapes[1]


def _equal(a: object, b: object) -> bool:
    """Return True if two nested values are equal, arrays of floats within float32 rounding."""
    if not nested.same_structure(a, b):
        return False
    return all(map(_equal_leaves, nested.leaves(a), nested.leaves(b)))


def _equal_leaves(a: Any, b: Any) -> bool:
    """Return True if two values are equal, floats up to rounding. Objects without `__eq__` count as equal."""
    a, b = (leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf for leaf in (a, b))
    if not isinstance(a, np.ndarray) or a.dtype.kind not in "fc":
        return nested.equal(a, b) if isinstance(a, np.ndarray) else bool(a == b) or type(a).__eq__ is object.__eq__
    return a.shape == np.shape(b) and np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
