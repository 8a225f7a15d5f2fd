"""`Batch`: named columns of arrays or tensors with a common first axis. Columns may be nested.

>>> batch = Batch(obs={"camera": np.zeros((4, 8, 8)), "joints": np.ones((4, 2))}, rewards=np.arange(4.0))
>>> batch
Batch(4 rows: obs/camera float64 [4, 8, 8], obs/joints float64 [4, 2], rewards float64 [4])
>>> batch[1:3].obs.joints.shape, batch["rewards"][-1]
((2, 2), np.float64(3.0))
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from episodes.batch import leaves as batch_leaves
from episodes.batch.origin import LazyOrigin, Origin, concat_origins, select_rows
from episodes.batch.train_batch import TrainBatch, origin_of
from episodes.batch.views import check_view
from episodes.errors import InvalidArgument, StepOutOfRange, TrackMismatch, UnknownKey, WrongType
from episodes.tracks import nested
from episodes.tracks.levels import DEEPEST, too_deep
from episodes.tracks.notebook_repr import notebook_repr

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from episodes.data_types import Index

__all__ = ["Batch"]

View = TypeVar("View")

Operand: TypeAlias = "Batch | Mapping[str, Any] | ArrayLike"
"""The other side of an arithmetic operator: columns of the same names, or a value for all."""


class Batch:
    """Named columns [B, ...] of arrays or tensors. `batch[i]` is a row, `batch["rewards"]` or `batch.rewards` a column.

    Leaves are numpy arrays or torch tensors. They are shared with the given ones, never copied, and other values become
    arrays. A dict inside a batch is read as a `Batch` of the same memory; tuples stay tuples. Lengths are checked by
    `len`, rows, `cat` and `split`, which raise `TrackMismatch` if they differ.

    Rows are selected by an int (a batch of items), a slice (views), an integer array or a mask (copies). Iterating
    yields rows. `keys()` and `items()` give columns.

    Args:
        columns: columns by name, or a batch.
        more: further columns by name.

    Raises:
        WrongType: a name is not a str, also in nested columns.
        UnknownKey: `batch[key]` of a column that does not exist.
    """

    __slots__ = ("_columns", "_lazy_origin")
    __hash__ = None  # type: ignore[assignment]
    _columns: dict[str, Any]
    _lazy_origin: LazyOrigin | None
    _repr_html_ = notebook_repr("episodes.inspect.html", "batch")

    def __init__(self, columns: Mapping[str, Any] | Batch | None = None, /, **more: object) -> None:
        lazy_origin = None
        if columns is not None:
            lazy_origin = columns._lazy_origin if isinstance(columns, Batch) else getattr(columns, "lazy_origin", None)
            more = {**(columns._columns if isinstance(columns, Batch) else columns), **more}
        object.__setattr__(self, "_columns", _adopt(more, "", DEEPEST + 1))
        object.__setattr__(self, "_lazy_origin", lazy_origin)

    @classmethod
    def _of(cls, columns: dict[str, Any], lazy_origin: LazyOrigin | None = None) -> Batch:
        """Create a batch around a dict of valid columns, without a copy. `lazy_origin` is `None` if the episodes and
        steps of its rows are unknown.
        """
        batch = cls.__new__(cls)
        object.__setattr__(batch, "_columns", columns)
        object.__setattr__(batch, "_lazy_origin", lazy_origin)
        return batch

    @property
    def origin(self) -> Origin:
        """Origin of the rows: the episode and step of each. Known for samples of replay buffers and for train batches.

        Raises:
            EpisodeStateError: the origin is unknown.
        """
        return origin_of(self._lazy_origin, self._columns)

    def with_columns(self, columns: Mapping[str, Any]) -> Batch:
        """Return a batch with other columns for the same rows. The rows keep their origin (episode and step)."""
        return self._of(_adopt(columns, "", DEEPEST + 1), self._lazy_origin)

    # Columns

    def __getattr__(self, name: str) -> Any:
        try:
            return _shown(self._columns[name])
        except KeyError:
            raise AttributeError(f"no column {name!r}; there are {self._names()}", name=name, obj=self) from None

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(type(self), name):
            raise InvalidArgument(
                f"{name!r} is a batch's own attribute; write batch[{name!r}] = ... to have such a column"
            )
        self._columns[name] = _adopt(value, name)

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __getitem__(self, index: str | Index) -> Any:
        if isinstance(index, str):
            if index not in self._columns:
                raise UnknownKey(f"no column {index!r}; there are {self._names()}")
            return _shown(self._columns[index])
        return self._rows(index)

    def __setitem__(self, index: str | Index, value: object) -> None:
        if isinstance(index, str):
            self._columns[index] = _adopt(value, index)
        else:
            self._set_rows(index, value)

    def __delitem__(self, name: str) -> None:
        if name not in self._columns:
            raise UnknownKey(f"no column {name!r}; there are {self._names()}")
        del self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def keys(self) -> KeysView[str]:
        """Return the names of the columns."""
        return self._columns.keys()

    def items(self) -> ItemsView[str, Any]:
        """Return pairs of name and column."""
        return {name: _shown(value) for name, value in self._columns.items()}.items()

    def get(self, name: str, default: object = None) -> Any:
        """Return the column `name`, or the default if there is no such column."""
        return _shown(self._columns[name]) if name in self._columns else default

    def update(self, columns: Mapping[str, Any] | Batch | None = None, /, **more: object) -> None:
        """Add columns to this batch in place, replacing columns of the same names."""
        self._columns.update(Batch(columns, **more)._columns)

    def _names(self) -> str:
        return ", ".join(map(repr, self._columns)) or "none"

    # Rows

    def __len__(self) -> int:
        lengths = {leaf.shape[0] if leaf.ndim else None for leaf in nested.leaves(self._columns)}
        if len(lengths) > 1 or None in lengths:
            flat = nested.flatten(self._columns).items()
            rows = [f"{p!r} has {leaf.shape[0]} rows" if leaf.ndim else f"{p!r} is a single item" for p, leaf in flat]
            raise TrackMismatch(f"this batch has no common length: {', '.join(rows)}")
        return lengths.pop() or 0 if lengths else 0

    def __iter__(self) -> Iterator[Batch]:
        return (self._rows(i) for i in range(len(self)))

    def _rows(self, index: Index) -> Batch:
        """Return a batch of the selected rows, with their origin. Whether its arrays are views depends on `index`, as
        in numpy.

        Raises:
            StepOutOfRange: `index` is an int, and there is no such row.
            WrongType: `index` is a tuple.
        """
        length = len(self)
        if isinstance(index, (int, np.integer)) and not -length <= index < length:
            raise StepOutOfRange(f"row {index}: this batch has {length} rows")
        if isinstance(index, tuple):
            raise WrongType(f"rows {index!r}: give one index for the rows; index the columns for more axes")
        columns = nested.map_leaves(lambda leaf: batch_leaves.take(leaf, index), self._columns)
        return self._of(columns, select_rows(self._lazy_origin, index))

    def _set_rows(self, index: Index, rows: object) -> None:
        """Write rows into the columns in place, after a check of all columns. The origin of the rows becomes
        unknown.

        Raises:
            WrongType: `rows` is not a batch or dict.
            TrackMismatch: `rows` have other columns than this batch.
        """
        if not isinstance(rows, (Batch, Mapping)):
            raise WrongType(
                f"rows are set from a batch or a dict with the same columns, not from a {type(rows).__name__}"
            )
        new_leaves = nested.flatten(_same_columns([self, Batch(rows)], "setting rows")[1])
        targets, parts = nested.flatten(self._columns), nested.flatten(self._rows(index)._columns)
        for path, target in targets.items():
            batch_leaves.check_assignable(target, parts[path], new_leaves[path], path)
        for path, target in targets.items():
            batch_leaves.put(target, index, new_leaves[path])
        object.__setattr__(self, "_lazy_origin", None)

    def split(
        self,
        size: int,
        *,
        shuffle: bool = False,
        generator: np.random.Generator | None = None,
        merge_last: bool = False,
    ) -> Iterator[Batch]:
        """Yield minibatches of `size` rows: consecutive rows (as views), or with `shuffle` rows in random order (as
        copies).

        The last part may be smaller. With `merge_last` it is joined with the previous part.

        Args:
            generator: random generator of the order. None for a new one with a random seed.

        Raises:
            InvalidArgument: `size` is less than 1.
        """
        if size < 1:
            raise InvalidArgument(f"split({size}): parts need at least one row")
        length = len(self)
        order = (generator or np.random.default_rng()).permutation(length) if shuffle else None
        starts = list(range(0, length, size))
        if merge_last and len(starts) > 1 and length % size:
            starts.pop()
        for start, stop in pairwise([*starts, length]):
            yield self._rows(slice(start, stop) if order is None else order[start:stop])

    # Joining

    @classmethod
    def stack(
        cls, batches: Sequence[Batch | Mapping[str, Any]], *, fill: float | str | bool | np.generic | None = None
    ) -> Batch:
        """Stack batches into a single batch, column by column along a new first axis.

        Args:
            batches: batches of the same columns and shapes.
            fill: value for columns that some batches lack. Without it, a missing column raises `TrackMismatch`.
        """
        return cls._join(batches, "stack", fill)

    @classmethod
    def cat(
        cls, batches: Sequence[Batch | Mapping[str, Any]], *, fill: float | str | bool | np.generic | None = None
    ) -> Batch:
        """Concatenate batches to a single batch, column by column along the first axis.

        See `stack` for `fill`.
        """
        return cls._join(batches, "cat", fill)

    @classmethod
    def _join(
        cls, batches: Sequence[Batch | Mapping[str, Any]], mode: str, fill: float | str | bool | np.generic | None
    ) -> Batch:
        """Join batches along the rows (`mode` "cat") or along a new first axis ("stack").

        Args:
            fill: value of columns that some of the batches lack. None to raise an error instead.

        Raises:
            InvalidArgument: there are no batches.
            TrackMismatch: `fill` is None, and a batch lacks a column of another one.
        """
        if not batches:
            raise InvalidArgument(f"{mode}: there are no batches to join")
        parts = [batch if isinstance(batch, Batch) else Batch(batch) for batch in batches]
        lengths = [len(part) for part in parts] if mode == "cat" else [0] * len(parts)
        columns = [part._columns for part in parts]
        if fill is not None:
            columns = _filled(columns, [(length,) if mode == "cat" else () for length in lengths], fill, mode)
        columns = _same_columns([cls._of(c) for c in columns], mode)
        flat = [nested.flatten(c) for c in columns]
        leaves = [batch_leaves.join([columns_of_one[path] for columns_of_one in flat], path, mode) for path in flat[0]]
        lazy_origin = concat_origins(
            [part._lazy_origin for part in parts], np.concatenate if mode == "cat" else np.stack
        )
        return cls._of(nested.unflatten_like(columns[0], leaves), lazy_origin)

    # Arithmetic: column by column, paired by name

    def __add__(self, other: Operand) -> Batch:
        return self._combine(other, "+", lambda a, b: a + b)

    def __sub__(self, other: Operand) -> Batch:
        return self._combine(other, "-", lambda a, b: a - b)

    def __mul__(self, other: Operand) -> Batch:
        return self._combine(other, "*", lambda a, b: a * b)

    def __truediv__(self, other: Operand) -> Batch:
        return self._combine(other, "/", lambda a, b: a / b)

    def _combine(self, operand: Operand, sign: str, fn: Callable[[Any, Any], Any]) -> Batch:
        """Apply a binary operator to each column and the operand, which is a batch with the same columns, or a value
        for all.
        """
        if not isinstance(operand, (Batch, Mapping)):
            return self._map(lambda leaf: fn(leaf, operand))
        columns = _same_columns([self, Batch(operand)], f"batch {sign} batch")
        return self._of(nested.map_leaves(fn, *columns))

    def __eq__(self, other: object) -> bool:
        """Return True if both batches have the same columns with equal values. NaN equals NaN."""
        if not isinstance(other, Batch):
            return NotImplemented
        return nested.equal(self.to_numpy()._columns, other.to_numpy()._columns)

    # Missing values

    def isnull(self) -> Batch:
        """Return a batch of bool columns of the same shapes, True where a value is NaN or None."""
        return self._map(batch_leaves.nulls)

    def hasnull(self) -> bool:
        """Return True if any value is NaN or None."""
        return any(bool(batch_leaves.nulls(leaf).any()) for leaf in nested.leaves(self._columns))

    def dropnull(self) -> Batch:
        """Return the batch without the rows that have a NaN or None in any column."""
        bad = np.zeros(len(self), bool)
        for leaf in nested.leaves(self._columns):
            missing = batch_leaves.as_numpy(batch_leaves.nulls(leaf))
            bad |= missing.any(tuple(range(1, missing.ndim)))
        return self._rows(np.flatnonzero(~bad))

    # Other forms

    def to_numpy(self) -> Batch:
        """Return the batch with tensors converted to numpy arrays. CPU tensors share their memory."""
        return self._map(batch_leaves.as_numpy)

    def to_torch(self, dtype: object = None, device: object = None) -> Batch:
        """Return the batch with arrays converted to torch tensors of the given dtype on the given device.

        Args:
            dtype: dtype of the floating-point leaves. Integers and booleans keep theirs.
            device: device of the tensors. On the CPU, writable arrays are shared if their dtype stays.

        Raises:
            WrongType: a leaf holds strings or objects.
        """
        import torch

        def convert(leaf: Any, path: str) -> Any:
            """Return a column as a tensor.

            A writeable array and a CPU tensor of the same dtype share memory. `dtype` applies to floats only.

            Raises:
                WrongType: the column is not numeric.
            """
            if batch_leaves.torch_of(leaf) is None:
                leaf = np.asarray(leaf)
                if leaf.dtype.kind not in "biufc":
                    raise WrongType(f"{path!r} holds {leaf.dtype}, which no tensor can; take that column out first")
                leaf = torch.from_numpy(leaf if leaf.flags.writeable else leaf.copy())
            return leaf.to(device=device, dtype=dtype if leaf.is_floating_point() else None)

        flat = nested.flatten(self._columns)
        return self._of(
            nested.unflatten_like(self._columns, [convert(leaf, path) for path, leaf in flat.items()]),
            self._lazy_origin,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the columns as nested dicts. The outermost is a `TrainBatch`, which keeps the rows' origin."""
        columns = self._columns.items()
        copied = {k: v if type(v) is np.ndarray else nested.map_leaves(lambda leaf: leaf, v) for k, v in columns}
        return TrainBatch(copied, self._lazy_origin)

    def require(self, view: type[View]) -> View:
        """Check that this batch has the columns of the Protocol `view`. Return it, typed as `view` for type checkers.

        Raises:
            TrackMismatch: names the columns that the view needs and the batch lacks.
        """
        check_view(self._columns, view)
        return self  # type: ignore[return-value]

    def _map(self, fn: Callable[[Any], Any]) -> Batch:
        """Apply `fn` to each column, and return a batch of the results with the same origin."""
        return self._of(nested.map_leaves(fn, self._columns), self._lazy_origin)

    def __repr__(self) -> str:
        flat = nested.flatten(self._columns)
        columns = ", ".join(f"{path} {batch_leaves.describe(leaf)}" for path, leaf in flat.items())
        try:
            rows = f"{len(self)} rows"
        except TrackMismatch:
            rows = "no common length"
        return f"Batch({rows}{': ' if columns else ''}{columns})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, (self._columns if self._lazy_origin is None else TrainBatch(self._columns, self._lazy_origin),)


def _shown(value: object) -> Any:
    """Convert nested columns in `value` to `Batch` objects that share their memory. Return arrays unchanged."""
    if isinstance(value, dict):
        return Batch._of(value)
    if isinstance(value, tuple):
        return nested.rebuild(value, [_shown(item) for item in value])
    return value


def _adopt(value: object, path: str, levels: int = DEEPEST) -> Any:
    """Convert a column to the form that a batch stores: dicts are copied, arrays are shared.

    Raises:
        ShapeMismatch: the column is nested too deeply.
        WrongType: a dict has a key that is not a str.
    """
    if isinstance(value, Batch):
        value = value._columns
    if not levels and isinstance(value, (Mapping, tuple)):
        raise too_deep(f"the column {path.partition('/')[0]!r}")
    if isinstance(value, (dict, Mapping)):
        if not set(map(type, value)) <= {str}:
            raise WrongType(f"{path or 'this batch'} has the keys {list(value)}: columns are named by strings")
        return {
            key: item if type(item) is np.ndarray else _adopt(item, f"{path}/{key}" if path else key, levels - 1)
            for key, item in value.items()
        }
    if isinstance(value, tuple):
        return nested.rebuild(value, [_adopt(item, f"{path}/{i}", levels - 1) for i, item in enumerate(value)])
    return batch_leaves.as_leaf(value, path)


def _same_columns(batches: Sequence[Batch], call: str) -> list[dict[str, Any]]:
    """Return the column dicts of several batches. Raise `TrackMismatch` unless all batches have the same columns.

    `call` is the beginning of the error message.
    """
    first = nested.flatten(batches[0]._columns).keys()
    for i, batch in enumerate(batches):
        paths = nested.flatten(batch._columns).keys()
        if paths != first:
            missing = ", ".join(f"batch {i} lacks {path!r}" for path in first if path not in paths)
            extra = ", ".join(f"batch 0 lacks {path!r}" for path in paths if path not in first)
            raise TrackMismatch(
                f"{call}: {'; '.join(filter(None, (missing, extra)))}; stack and cat take fill= to fill it"
            )
    return [batch._columns for batch in batches]


def _filled(
    columns: list[dict[str, Any]],
    leading: list[tuple[int, ...]],
    fill: float | str | bool | np.generic,
    mode: str,
    prefix: str = "",
) -> list[dict[str, Any]]:
    """Return the column dicts of several batches, with missing columns added and filled with `fill`.

    Args:
        leading: leading axes of the new columns, such as the number of rows, for each batch.
        prefix: path of the columns in the batches, with a slash at its end.
    """
    cut = 1 if mode == "cat" else 0
    complete: list[dict[str, Any]] = [{} for _ in columns]
    for name in dict.fromkeys(name for columns_of_one in columns for name in columns_of_one):
        path = f"{prefix}{name}"
        like = next(columns_of_one[name] for columns_of_one in columns if name in columns_of_one)
        if isinstance(like, dict):
            inner = _filled(
                [columns_of_one.get(name, {}) for columns_of_one in columns], leading, fill, mode, f"{path}/"
            )
            for columns_of_one, values in zip(complete, inner, strict=True):
                columns_of_one[name] = values
            continue
        for columns_of_one, columns_of_batch, rows in zip(complete, columns, leading, strict=True):
            columns_of_one[name] = (
                columns_of_batch[name]
                if name in columns_of_batch
                else nested.map_leaves(
                    lambda leaf, rows=rows, path=path: batch_leaves.filled(
                        leaf, (*rows, *leaf.shape[cut:]), fill, path
                    ),
                    like,
                )
            )
    return complete


batch_of = Batch._of
