"""`TracedArray`: a torch tensor with the interface of a numpy array, so that torch can trace numpy code.

numpy passes each operation to its arguments first (`__array_ufunc__`, `__array_function__`). A traced array does the
same operation on a torch tensor, with numpy's dtypes. Operations that need the numbers themselves, or have no form
here, raise `NotTraceable`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike
from torch import Tensor

from episodes.tracks import nested

__all__ = ["NotTraceable", "RowCount", "TracedArray", "as_tensors", "as_traced"]

Operand: TypeAlias = "TracedArray | np.ndarray | np.generic | Tensor | float | Sequence[Operand]"  # of a numpy function
Key: TypeAlias = "Index | tuple[Index, ...]"  # of `array[key]`
Index: TypeAlias = "int | slice | EllipsisType | list[int] | np.ndarray | TracedArray | None"
Size: TypeAlias = "int | torch.SymInt | RowCount"  # of an axis


class NotTraceable(TypeError):
    """Error raised if numpy code cannot be traced: it needs actual numbers, or uses an operation without a torch
    equivalent.
    """


_NUMPY_DTYPES = {torch.from_numpy(np.empty(0, char)).dtype: np.dtype(char) for char in "?bBhilefd"}


class TracedArray(NDArrayOperatorsMixin):
    """Torch tensor with the interface of a numpy array. numpy functions applied to it are executed by torch.

    In numpy, writing into a slice also changes the array that it was taken from. Here the two have separate tensors,
    and a common list of the arrays that wrote into their memory:

        x = TracedArray(...)    memory []     x has seen 0 writes
        y = x[:, :2]            memory []     y has seen 0 writes
        y[:] = 1                memory [y]    y has seen 1 write
        x.tensor                NotTraceable: x has seen 0 writes of 1

    Args:
        tensor: its values.
        taken_from: the array of which this one is a view, such as a slice or another shape.
        key: the index of a slice.
    """

    __slots__ = ("_key", "_memory", "_num_seen", "_tensor")
    __array_priority__ = 1000

    def __init__(self, tensor: Tensor, taken_from: object = None, key: Key = None) -> None:
        self._memory: list[TracedArray] = taken_from._memory if isinstance(taken_from, TracedArray) else []
        self._tensor, self._key, self._num_seen = tensor, key, len(self._memory)

    @property
    def tensor(self) -> Tensor:
        """Values of the array as a torch tensor. Assigning a tensor writes it into the array's memory.

        Raises:
            NotTraceable: the memory was written through another array, so that these values are outdated.
        """
        self.check_readable()
        return self._tensor

    @tensor.setter
    def tensor(self, tensor: Tensor) -> None:
        self._memory.append(self)
        self._tensor, self._num_seen = tensor, len(self._memory)

    def check_readable(self) -> None:
        """Raise `NotTraceable` if the memory was written through another array, so that the values are outdated."""
        if self._num_seen != len(self._memory):
            raise NotTraceable(
                "an array is read after a write into a slice or another shape of it; write into the array itself, as "
                "in x[:, :2] *= 0.5, or into a copy"
            )

    # --- operations of numpy -----------------------------------------------------------------------------------------

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *args: Operand, out: tuple[object, ...] | None = None, **kwargs: object
    ) -> Any:
        """Execute a numpy ufunc (or its reduction) by the equivalent torch function, with numpy's result dtype.

        Raises:
            NotTraceable: torch has no equivalent function.
        """
        if method == "reduce" and ufunc in _REDUCTIONS:
            return self.__array_function__(_REDUCTIONS[ufunc], (), args, {**kwargs, "out": out and out[0]})
        compute = _UFUNCS.get(ufunc.__name__)
        if method != "__call__" or compute is None or kwargs:
            raise NotTraceable(
                f"np.{ufunc.__name__}{'' if method == '__call__' else '.' + method} cannot be exported; use "
                "arithmetic, comparisons, np.where and other elementwise functions"
            )
        kinds = [a.dtype if hasattr(a, "dtype") else type(a) for a in map(_arrays_in, args)]
        *needed, result_dtype = ufunc.resolve_dtypes((*kinds, None))[: ufunc.nin + 1]
        tensors = [_tensor(a, dtype) for a, dtype in zip(args, needed, strict=True)]
        return _into(out and out[0], TracedArray(_cast(compute(*tensors), result_dtype)))

    def __array_function__(
        self, func: Callable[..., object], types: Collection[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Execute a numpy function, such as `np.concatenate`, by its traced form. Raise `NotTraceable` if it has
        none.
        """
        compute = _FUNCTIONS.get(func)
        if compute is None:
            raise NotTraceable(
                f"np.{func.__name__} cannot be exported; use arithmetic, comparisons, np.where, np.concatenate and "
                "other functions whose output shapes do not depend on the values"
            )
        options = dict(kwargs)
        out = options.pop("out", None)
        try:
            return _into(out, compute(*args, **options))
        except TypeError as error:
            if isinstance(error, NotTraceable) or "argument" not in str(error):
                raise
            raise NotTraceable(f"np.{func.__name__} with {sorted(options)} cannot be exported: {error}") from error

    # --- operations that need numbers --------------------------------------------------------------------------------

    def __array__(self, *args: object, **kwargs: object) -> Any:
        raise _needs_numbers("np.asarray, np.array or writing into an array of numbers")

    def __bool__(self) -> bool:
        raise _needs_numbers("`if`, `and` or bool()")

    def __int__(self) -> int:
        raise _needs_numbers("int()")

    def __float__(self) -> float:
        raise _needs_numbers("float()")

    def __index__(self) -> int:
        raise _needs_numbers("an index")

    def item(self, *args: object) -> Any:
        raise _needs_numbers(".item()")

    def tolist(self) -> Any:
        raise _needs_numbers(".tolist()")

    # --- the interface of an array -----------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[Any, ...]:
        """Shape of the array. The batch size is a `RowCount` while a graph for any batch size is traced."""
        return tuple(map(_size, self.tensor.shape))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.tensor.ndim

    @property
    def size(self) -> Any:
        """Number of elements."""
        return _size(self.tensor.numel())

    @property
    def dtype(self) -> np.dtype:
        """Data type of the array as a numpy dtype."""
        return _NUMPY_DTYPES[self.tensor.dtype]

    @property
    def T(self) -> TracedArray:
        """The array with the order of its axes reversed."""
        return TracedArray(self.tensor.permute(*reversed(range(self.ndim))), self)

    def __len__(self) -> int:
        size: Any = self.tensor.shape[0]
        if type(size) is not int:
            raise NotTraceable(
                "len() of a batch is not known; write x.shape[0] or reshape(-1, ...), or export with batch=1"
            )
        return size

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Key) -> TracedArray:
        key = key if isinstance(key, tuple) else (key,)
        tensor, positive = _without_negative_steps(self.tensor, key)
        tensor = tensor[tuple(map(_index, positive))]
        is_view = tensor.ndim and not any(isinstance(part, (TracedArray, np.ndarray, list)) for part in key)
        return TracedArray(tensor, *(self, key) if is_view else ())

    def __setitem__(self, key: Key, value: Operand) -> None:
        self._accept_writes(key, value)
        value = _tensor(value, self.dtype)
        if isinstance(key, TracedArray) and key.dtype == bool and key.ndim == self.ndim:
            self.tensor = torch.where(key.tensor, value, self.tensor)
            return
        changed = self.tensor.clone()
        keys = key if isinstance(key, tuple) else (key,)
        changed[tuple(map(_index, keys))] = value
        self.tensor = changed

    def _accept_writes(self, key: Key, value: object) -> None:
        """Keep this array readable after an in-place operation on the slice `self[key]`, if `value` is this slice.

        Python runs `x[key] += 1` as `y = x[key]; y += 1; x[key] = y`.
        """
        unseen = self._memory[self._num_seen :]
        is_slice = isinstance(value, TracedArray) and value._key == (key if isinstance(key, tuple) else (key,))
        if is_slice and all(writer is value for writer in unseen):
            self._num_seen = len(self._memory)

    def astype(self, dtype: DTypeLike, **options: object) -> TracedArray:
        """Return a copy of the array, converted to `dtype`."""
        tensor = _cast(self.tensor, np.dtype(dtype))
        return TracedArray(tensor, self if tensor is self.tensor and not options.get("copy", True) else None)

    def copy(self, *args: object) -> TracedArray:
        """Return a copy of the array."""
        return TracedArray(self.tensor)

    __copy__ = __deepcopy__ = copy

    def reshape(self, *shape: Size | Sequence[Size], **options: object) -> TracedArray:
        """Return the array with another shape."""
        return TracedArray(self.tensor.reshape(_sizes(shape)), self)

    def transpose(self, *axes: int | Sequence[int]) -> TracedArray:
        """Return the array with its axes in the given order, by default reversed."""
        order = _sizes(axes)
        return TracedArray(self.tensor.permute(*order), self) if order else self.T

    def __getattr__(self, name: str) -> Any:
        if name not in _METHODS:
            raise AttributeError(f"a traced array has no {name}")
        function = getattr(np, name)
        return lambda *args, **kwargs: function(self, *args, **kwargs)


class RowCount:
    """Placeholder for the batch size, which is unknown while tracing. It supports sums, products and use in
    `reshape`.
    """

    __slots__ = ("size",)

    def __init__(self, size: int | torch.SymInt) -> None:
        self.size = size

    def __mul__(self, other: Size) -> RowCount:
        return RowCount(self.size * _symbol(other))

    def __add__(self, other: Size) -> RowCount:
        return RowCount(self.size + _symbol(other))

    def __floordiv__(self, other: Size) -> RowCount:
        return RowCount(self.size // _symbol(other))

    __rmul__, __radd__ = __mul__, __add__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RowCount):
            return bool(self.size == other.size)
        raise _needs_rows()

    def _raise(self, *args: object) -> Any:
        raise _needs_rows()

    __hash__ = None  # type: ignore[assignment]
    __index__ = __int__ = __float__ = __bool__ = _raise
    __lt__ = __gt__ = __le__ = __ge__ = __sub__ = __rsub__ = __truediv__ = __rtruediv__ = _raise

    def __repr__(self) -> str:
        return "the number of rows"


def as_traced(value: Any) -> Any:
    """Return nested torch tensors with each tensor wrapped in a `TracedArray`."""
    return nested.map_leaves(TracedArray, value)


def as_tensors(value: Any) -> Any:
    """Return nested `TracedArray`s, numpy arrays and numbers with each leaf converted to a torch tensor."""
    return nested.map_leaves(_tensor, value)


def _needs_numbers(operation: str) -> NotTraceable:
    return NotTraceable(f"{operation} needs the numbers themselves; use np.where or other array operations")


def _needs_rows() -> NotTraceable:
    """Return the error for code that needs the number of rows, which is not known while tracing."""
    return NotTraceable(
        "the number of rows is not known; write np.ones_like(x[:, :1]) or reshape(-1, ...), or export with batch=1"
    )


def _size(size: int | torch.SymInt) -> Any:
    return size if type(size) is int else RowCount(size)


def _symbol(size: Size) -> Any:
    return size.size if isinstance(size, RowCount) else size


def _arrays_in(value: Operand) -> Any:
    return np.asarray(value) if isinstance(value, (list, tuple)) else value


def _tensor(value: Operand, dtype: np.dtype | None = None) -> Tensor:
    """Return an array, number or `TracedArray` as a tensor, converted to the numpy dtype `dtype` if it is given."""
    if isinstance(value, TracedArray):
        value = value.tensor
    elif not isinstance(value, Tensor):
        value = torch.from_numpy(
            np.array(value) if dtype is None or isinstance(value, np.ndarray) else np.array(value, dtype)
        )
    return value if dtype is None else _cast(value, dtype)


def _cast(tensor: Tensor, dtype: np.dtype) -> Tensor:
    """Return a tensor in a numpy dtype: the tensor itself if it has this dtype."""
    target = torch.from_numpy(np.empty(0, dtype)).dtype
    return tensor if tensor.dtype is target else tensor.to(target)


def _into(out: object, result: Any) -> Any:
    """Return the result of a numpy function, copied into the array `out` if the caller passed numpy's argument
    `out`.

    Raises:
        NotTraceable: `out` is a numpy array.
    """
    if out is None:
        return result
    if not isinstance(out, TracedArray):
        raise NotTraceable("out= is an array of numbers; leave it out, so that the function creates an array")
    tensor = _cast(result.tensor, out.dtype)
    out.tensor = tensor.expand_as(out.tensor) if _is_smaller(tensor, out.tensor) else tensor
    return out


def _is_smaller(tensor: Tensor, other: Tensor) -> bool:
    """Return True if `tensor` must be broadcast to have the shape of `other`."""
    if tensor.ndim != other.ndim:
        return True
    ones = [(type(size) is int and size == 1) for size in tensor.shape]
    return any(one and not (type(size) is int and size == 1) for one, size in zip(ones, other.shape, strict=True))


def _sizes(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Return the sizes passed to an array method as one tuple. They may be separate arguments or a single tuple."""
    return tuple(map(_symbol, shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape))


def _index(key: Key) -> Any:
    """Return an index with arrays replaced by tensors. Raise `NotTraceable` for a traced bool mask."""
    if isinstance(key, TracedArray):
        if key.dtype == bool:
            raise NotTraceable("an index by a bool mask: the number of rows depends on the values; use np.where")
        return key.tensor.long()
    return torch.from_numpy(np.asarray(key)) if isinstance(key, (np.ndarray, list)) else key


def _without_negative_steps(tensor: Tensor, key: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
    """Return a tensor and key equivalent to `tensor[key]`, with reversing slices `[::-1]` replaced by flipped axes.

    Raises:
        NotTraceable: a step is negative, but the slice is not `[::-1]`, or None or ... is in the same key.
    """
    if not any(isinstance(part, slice) and part.step is not None and part.step < 0 for part in key):
        return tensor, key
    if any(part is None or part is Ellipsis for part in key):
        raise NotTraceable("a negative step next to None or ... in an index; use np.flip")
    parts = []
    for axis, part in enumerate(key):
        if isinstance(part, slice) and part.step is not None and part.step < 0:
            if part != slice(None, None, -1):
                raise NotTraceable("a negative step that is not [::-1]; use np.flip and a slice")
            tensor, part = tensor.flip(axis), slice(None)
        parts.append(part)
    return tensor, tuple(parts)


# --- operations ------------------------------------------------------------------------------------------------------


def _is_negative(x: Tensor) -> Tensor:
    """Return True for negative numbers, which include -0.0."""
    return (x < 0) | ((x == 0) & (1 / x < 0))


def _ignoring_nan(compute: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    result = compute(x, y)
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, result)) if x.is_floating_point() else result


def _log_of_sum(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """Return the logarithm of b^x + b^y, where `scale` is the natural logarithm of b. The larger power is factored out,
    so that it cannot overflow.
    """
    large, difference = torch.maximum(x, y), torch.where(x == y, torch.zeros_like(x - y), x - y)  # inf - inf is NaN
    return large + (difference.abs() * -scale).exp().log1p() / scale


def _arctan2(y: Tensor, x: Tensor) -> Tensor:
    """Return the angle of the point (x, y), in the half plane of the sign of y. Zeros have signs too."""
    sign = torch.where(_is_negative(y), -torch.ones_like(y), torch.ones_like(y))
    angle = (y / torch.where(x == 0, torch.ones_like(x), x)).arctan()
    angle = torch.where(x == 0, torch.where((y == 0) | y.isnan(), y, sign * (math.pi / 2)), angle)
    return torch.where(_is_negative(x) & ((x != 0) | (y == 0)), angle + sign * math.pi, angle)


def _of_floats(compute: Callable[..., Tensor], of_integers: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x: compute(x) if x.is_floating_point() else of_integers(x)


def _hypot(x: Tensor, y: Tensor) -> Tensor:
    """Return the square root of x^2 + y^2. The larger number is factored out, so that its square cannot overflow."""
    large, small = torch.maximum(x.abs(), y.abs()), torch.minimum(x.abs(), y.abs())
    ratio = torch.where((large > 0) & large.isfinite(), small / large, torch.zeros_like(small))
    return large * (ratio.square() + 1).sqrt()


_SAME_NAMES = (
    "add subtract multiply true_divide negative positive absolute sqrt exp exp2 expm1 log log2 log10 log1p "
    "sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh maximum "
    "minimum greater greater_equal less less_equal not_equal logical_and logical_or logical_not logical_xor "
    "bitwise_and bitwise_or bitwise_xor float_power reciprocal deg2rad rad2deg "
    "floor_divide remainder fmod matmul"
)
_OTHER_NAMES = {"equal": "eq", "power": "pow", "invert": "bitwise_not", "fabs": "abs", "clip": "clamp"}
_OTHER_NAMES |= {"divide": "true_divide"}
_UFUNCS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in _SAME_NAMES.split()},
    **{name: getattr(torch, other) for name, other in _OTHER_NAMES.items()},
    "sign": lambda x: torch.where(x.isnan(), x, torch.sign(x)) if x.is_floating_point() else torch.sign(x),
    # torch's own functions have no form in ONNX, or in onnxruntime for integers
    **{name: _of_floats(getattr(torch, name), lambda x: x) for name in ("floor", "ceil", "trunc")},
    "rint": _of_floats(torch.round, lambda x: x),
    "isfinite": _of_floats(torch.isfinite, lambda x: torch.ones_like(x, dtype=torch.bool)),
    "isnan": _of_floats(torch.isnan, lambda x: torch.zeros_like(x, dtype=torch.bool)),
    "isinf": _of_floats(torch.isinf, lambda x: torch.zeros_like(x, dtype=torch.bool)),
    "square": lambda x: x * x,
    "hypot": _hypot,
    "fmax": lambda x, y: _ignoring_nan(torch.maximum, x, y),
    "fmin": lambda x, y: _ignoring_nan(torch.minimum, x, y),
    "copysign": lambda x, y: torch.where(_is_negative(y), -x.abs(), x.abs()),
    # in ONNX, torch's own functions overflow, and differ for zeros
    "logaddexp": lambda x, y: _log_of_sum(x, y, 1.0),
    "logaddexp2": lambda x, y: _log_of_sum(x, y, math.log(2)),
    "arctan2": _arctan2,
}


def _joined(parts: Sequence[Any]) -> list[Tensor]:
    """Return arrays as a list of tensors with a common dtype, as concatenation needs."""
    parts = list(map(_arrays_in, parts))
    common = np.result_type(*[part.dtype if hasattr(part, "dtype") else part for part in parts])
    return [_tensor(part, common) for part in parts]


def _concatenate(arrays: Sequence[Operand], axis: int | None = 0) -> TracedArray:
    parts = _joined(arrays)
    return TracedArray(torch.cat([part.reshape(-1) for part in parts]) if axis is None else torch.cat(parts, axis))


def _stack(arrays: Sequence[Operand], axis: int = 0) -> TracedArray:
    return TracedArray(torch.stack(_joined(arrays), axis))


def _where(condition: Operand, *choices: Operand) -> TracedArray:
    """Compute `np.where` with three arguments. With one argument, raise `NotTraceable`."""
    if not choices:
        raise NotTraceable(
            "np.where with one argument: its number of rows depends on the values; give it three arguments"
        )
    kinds = [choice.dtype if hasattr(choice, "dtype") else choice for choice in map(_arrays_in, choices)]
    common = np.result_type(*kinds)
    return TracedArray(torch.where(_tensor(condition).bool(), *(_tensor(choice, common) for choice in choices)))


def _filled(value: float) -> Callable[..., TracedArray]:
    """Return a function like `np.zeros_like` that fills with `value`."""

    def like(a: Operand, fill_value: float = value, dtype: DTypeLike | None = None) -> TracedArray:
        tensor = _tensor(a) if dtype is None else _cast(_tensor(a), np.dtype(dtype))
        return TracedArray(torch.full_like(tensor, fill_value))

    return like


def _axes(tensor: Tensor, axis: int | tuple[int, ...] | None) -> tuple[int, ...]:
    return tuple(range(tensor.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)


def _reduction(compute: Callable[..., Tensor], dtype_of: Callable[[np.dtype], Any]) -> Callable[..., TracedArray]:
    """Return the traced form of a numpy reduction such as `np.sum`, given `compute(tensor, axes, keepdims)`. `dtype_of`
    returns the dtype in which numpy reduces a dtype.
    """

    def reduce(
        a: Operand,
        axis: int | tuple[int, ...] | None = None,
        dtype: DTypeLike | None = None,
        keepdims: bool = False,
        **options: Any,
    ) -> TracedArray:
        tensor = _tensor(a)
        target = dtype_of(_NUMPY_DTYPES[tensor.dtype]) if dtype is None else np.dtype(dtype)
        return TracedArray(compute(_cast(tensor, target), _axes(tensor, axis), keepdims, **options))

    return reduce


def _as_sum(dtype: np.dtype) -> Any:
    return np.int64 if dtype.kind in "bi" and dtype.itemsize < 8 else dtype


def _as_mean(dtype: np.dtype) -> Any:
    return dtype if dtype.kind == "f" else np.float64


def _same(dtype: np.dtype) -> Any:
    return dtype


def _variance(tensor: Tensor, axes: tuple[int, ...], keepdims: bool, ddof: int = 0) -> Tensor:
    return tensor.var(axes, correction=ddof, keepdim=keepdims)


def _deviation(tensor: Tensor, axes: tuple[int, ...], keepdims: bool, ddof: int = 0) -> Tensor:
    return tensor.std(axes, correction=ddof, keepdim=keepdims)


def _product(tensor: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """Compute the product over several axes."""
    for axis in sorted((axis % tensor.ndim for axis in axes), reverse=True):
        tensor = tensor.prod(axis, keepdim=keepdims)
    return tensor


def _position(compute: Callable[..., Tensor]) -> Callable[..., TracedArray]:
    """Return a function like `np.argmax` that applies the torch function `compute`."""

    def position(a: Operand, axis: int | None = None, *, keepdims: bool = False) -> TracedArray:
        tensor = _tensor(a)
        return TracedArray(compute(tensor.to(torch.uint8) if tensor.dtype is torch.bool else tensor, axis, keepdims))

    return position


def _norm(
    x: Operand, ord: object = None, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> TracedArray:
    """Compute the 2-norm `np.linalg.norm`. For another `ord`, or several axes, raise `NotTraceable`."""
    tensor = _tensor(x)
    tensor = _cast(tensor, np.dtype(_as_mean(_NUMPY_DTYPES[tensor.dtype])))
    if ord not in (None, 2) or (isinstance(axis, tuple) and len(axis) > 1):
        raise NotTraceable(
            f"np.linalg.norm with ord={ord!r} and axis={axis!r} cannot be exported; compute it from squares and sums"
        )
    return TracedArray(tensor.square().sum(_axes(tensor, axis), keepdim=keepdims).sqrt())


def _dot(a: Any, b: Any) -> Any:
    if np.ndim(a) == 0 or np.ndim(b) == 0:
        return np.multiply(a, b)
    if np.ndim(b) > 2:
        raise NotTraceable("np.dot with an array of 3 or more axes cannot be exported; use np.einsum")
    return np.matmul(a, b)


def _diff(a: Operand, n: int = 1, axis: int = -1) -> TracedArray:
    return TracedArray(torch.diff(_tensor(a), n=n, dim=axis))


def _expand_dims(a: Operand, axis: int | tuple[int, ...] | list[int]) -> TracedArray:
    tensor = _tensor(a)
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    for place in sorted(place % (tensor.ndim + len(axes)) for place in axes):
        tensor = tensor.unsqueeze(place)
    return TracedArray(tensor, a)


def _squeeze(a: Operand, axis: int | tuple[int, ...] | None = None) -> TracedArray:
    """Compute `np.squeeze`. Without `axis`, raise `NotTraceable`, because a batch of one row would be removed."""
    if axis is None:
        raise NotTraceable("np.squeeze without axis would remove a batch of one; name the axis")
    return TracedArray(_tensor(a).squeeze(axis), a)


def _take(a: Operand, indices: Operand, axis: int | None = None, mode: str = "raise") -> TracedArray:
    """Compute `np.take` on a traced array. Negative indices count from the end."""
    tensor, index = _tensor(a), _tensor(indices).long()
    if axis is None:
        tensor, axis = tensor.reshape(-1), 0
    index = torch.where(index < 0, index + tensor.shape[axis], index)
    shape = (*tensor.shape[:axis], *index.shape, *tensor.shape[axis % tensor.ndim + 1 :])
    return TracedArray(tensor.index_select(axis, index.reshape(-1)).reshape(shape))


def _clip(a: Any, a_min: Any = None, a_max: Any = None) -> Any:
    result = a if a_min is None else np.maximum(a, a_min)
    return result if a_max is None else np.minimum(result, a_max)


def _round(a: Operand, decimals: int = 0) -> Any:
    tensor = _tensor(a)
    if decimals >= 0 and not tensor.is_floating_point():
        return TracedArray(tensor * 1)
    if not decimals:
        return TracedArray(tensor.round())
    if not tensor.is_floating_point():
        raise NotTraceable("np.round of integers to tens cannot be exported; convert them to floats before")
    scale = 10.0 ** abs(decimals)
    if decimals < 0:
        return TracedArray((tensor / scale).round() * scale)
    return TracedArray((tensor * scale).round() / scale)


def _repeat(a: Operand, repeats: int, axis: int | None = None) -> TracedArray:
    tensor = _tensor(a)
    return TracedArray(
        tensor.reshape(-1).repeat_interleave(repeats) if axis is None else tensor.repeat_interleave(repeats, axis)
    )


def _einsum(subscripts: str, *operands: Operand) -> TracedArray:
    return TracedArray(torch.einsum(subscripts, *_joined(operands)))


def _split(ary: Operand, indices_or_sections: int | Sequence[int] | np.ndarray, axis: int = 0) -> list[TracedArray]:
    tensor = _tensor(ary)
    if isinstance(indices_or_sections, int):
        return [TracedArray(part, ary) for part in tensor.chunk(indices_or_sections, axis)]
    parts = torch.tensor_split(tensor, list(map(int, indices_or_sections)), axis)
    return [TracedArray(part, ary) for part in parts]


def _digitize(x: Operand | None, bins: ArrayLike, right: bool = False) -> TracedArray:
    """Compute `np.digitize` on a traced array, for ascending bins. For descending bins, raise `NotTraceable`."""
    edges = np.asarray(bins)
    if len(edges) > 1 and not (np.diff(edges) >= 0).all():
        raise NotTraceable("np.digitize with descending bins cannot be exported; use ascending bins")
    values, edges = np.asarray(0) if x is None else x, _tensor(edges)
    tensor = _tensor(values)
    common = _cast(tensor, np.dtype(np.result_type(_NUMPY_DTYPES[tensor.dtype], np.asarray(bins).dtype)))
    edges = edges.to(common.dtype)
    below = common[..., None] <= edges if right else common[..., None] < edges
    return TracedArray((~below).sum(-1))  # NaN is in the last bin


def _nan_to_num(
    x: Operand, copy: bool = True, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> TracedArray:
    return TracedArray(torch.nan_to_num(_tensor(x), nan, posinf, neginf))


def _wrapped(method: str) -> Callable[..., TracedArray]:
    """Return the traced form of a numpy function that returns a view, such as `np.transpose`.

    `method` is the name of the equivalent method of torch tensors.
    """
    return lambda a, *args, **kwargs: TracedArray(getattr(_tensor(a), method)(*args, **kwargs), a)


_SUM = _reduction(lambda tensor, axes, keepdims: tensor.sum(axes, keepdim=keepdims), _as_sum)
_MAX = _reduction(lambda tensor, axes, keepdims: tensor.amax(axes, keepdim=keepdims), _same)
_MIN = _reduction(lambda tensor, axes, keepdims: tensor.amin(axes, keepdim=keepdims), _same)
_ANY = _reduction(lambda tensor, axes, keepdims: tensor.bool().any(axes, keepdim=keepdims), _same)
_ALL = _reduction(lambda tensor, axes, keepdims: tensor.bool().all(axes, keepdim=keepdims), _same)
_PROD = _reduction(_product, _as_sum)
_REDUCTIONS = {np.add: np.sum, np.maximum: np.max, np.minimum: np.min, np.multiply: np.prod}
_REDUCTIONS |= {np.logical_or: np.any, np.logical_and: np.all}
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.concatenate: _concatenate,
    np.stack: _stack,
    np.hstack: lambda tup: _concatenate(tup, 0 if getattr(tup[0], "ndim", 1) == 1 else 1),
    np.where: _where,
    np.zeros_like: _filled(0),
    np.ones_like: _filled(1),
    np.empty_like: _filled(0),
    np.full_like: _filled(0),
    np.sum: _SUM,
    np.mean: _reduction(lambda tensor, axes, keepdims: tensor.mean(axes, keepdim=keepdims), _as_mean),
    np.max: _MAX,
    np.amax: _MAX,
    np.min: _MIN,
    np.amin: _MIN,
    np.any: _ANY,
    np.all: _ALL,
    np.prod: _PROD,
    np.var: _reduction(_variance, _as_mean),
    np.std: _reduction(_deviation, _as_mean),
    np.argmax: _position(lambda tensor, axis, keepdims: tensor.argmax(axis, keepdims)),
    np.argmin: _position(lambda tensor, axis, keepdims: tensor.argmin(axis, keepdims)),
    np.cumsum: lambda a, axis=None: TracedArray(
        _tensor(a).reshape(-1).cumsum(0) if axis is None else _tensor(a).cumsum(axis)
    ),
    np.linalg.norm: _norm,
    np.diff: _diff,
    np.reshape: lambda a, shape: TracedArray(_tensor(a).reshape(_sizes((shape,))), a),
    np.ravel: lambda a: TracedArray(_tensor(a).reshape(-1), a),
    np.expand_dims: _expand_dims,
    np.squeeze: _squeeze,
    np.transpose: lambda a, axes=None: TracedArray(_tensor(a), a).transpose(*(axes or ())),
    np.swapaxes: _wrapped("swapaxes"),
    np.moveaxis: _wrapped("movedim"),
    np.broadcast_to: lambda array, shape: TracedArray(_tensor(array).expand(_sizes((shape,))), array),
    np.clip: _clip,
    np.take: _take,
    np.take_along_axis: lambda arr, indices, axis=-1: TracedArray(_tensor(arr).gather(axis, _tensor(indices).long())),
    np.einsum: _einsum,
    np.dot: _dot,
    np.round: _round,
    np.around: _round,
    np.repeat: _repeat,
    np.tile: lambda A, reps: TracedArray(_tensor(A).tile(_sizes((reps,)))),
    np.flip: lambda m, axis=None: TracedArray(_tensor(m).flip(_axes(_tensor(m), axis)), m),
    np.roll: lambda a, shift, axis: TracedArray(_tensor(a).roll(shift, axis)),
    np.split: _split,
    np.digitize: _digitize,
    np.nan_to_num: _nan_to_num,
    np.sort: lambda a, axis=-1: TracedArray(_tensor(a).sort(axis).values),
    np.copy: lambda a: TracedArray(_tensor(a)),
    np.ndim: lambda a: a.ndim,
    np.shape: lambda a: a.shape,
    np.count_nonzero: lambda a, axis=None: TracedArray((_tensor(a) != 0).sum(_axes(_tensor(a), axis))),
}
_METHODS = (
    *("sum", "mean", "max", "min", "any", "all", "prod", "var", "std", "argmax", "argmin", "cumsum"),
    *("ravel", "squeeze", "swapaxes", "clip", "take", "dot", "round", "repeat"),
)
