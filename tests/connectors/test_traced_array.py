"""numpy functions return the same numbers and dtypes for traced arrays as for arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from connectors.export.traced_array import NotTraceable, TracedArray

A = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
ARRAYS = [A, A.astype(np.float64), (A * 4).astype(np.int64), (A * 4).astype(np.int32), (A * 4).astype(np.int8), A > 0]
WEIGHTS = (0.9 ** np.arange(4)).astype(np.float32)

IDIOMS: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: (x + 1) * 2 - x * np.float32(0.5),
    "reversed": lambda x: 1 - 2 * (3 + x),
    "division": lambda x: x / 3,
    "division by an array": lambda x: x / np.arange(1, 6),
    "floor": lambda x: (x + 10) // 3 + (x + 10) % 3,
    "power": lambda x: (x * 1) ** 2 + np.power(x * 1.0, 3),
    "negative": lambda x: -(x + 0),
    "in place": lambda x: _in_place(x * 1.0),
    "compare": lambda x: (x > 0) & (x <= 1) | ~(x == 2),
    "abs sign sqrt": lambda x: np.abs(x + 0) * np.sign(x + 0) + np.sqrt(np.square(x + 0.0)),
    "trigonometry": lambda x: np.sin(x) + np.cos(x) + np.tanh(x) + np.arctan2(x, 2.0) + np.hypot(x, 1.0),
    "exp and log": lambda x: np.exp(x * 0.1) + np.log1p(np.square(x * 1.0)) + np.expm1(x * 0.1),
    "rounding": lambda x: np.floor(x * 1.5) + np.ceil(x * 1.5) + np.rint(x * 1.5) + np.trunc(x * 1.5),
    "round": lambda x: np.round(x * 1.0, 1),
    "minimum and maximum": lambda x: np.maximum(np.minimum(x, 1), -1),
    "fmax and copysign": lambda x: np.fmax(x * 1.0, 0.5) + np.fmin(x * 1.0, 0.5) + np.copysign(2.0, x * 1.0 + 0.1),
    "clip": lambda x: np.clip(x * 1.0, -1, 1),
    "where": lambda x: np.where(x > 0, x, 0),
    "where of floats": lambda x: np.where(x > 0, x, 0.5),
    "nan": lambda x: np.nan_to_num(np.where(x > 1, np.nan, x * 1.0)),
    "finite": lambda x: np.isfinite(x * 1.0) & ~np.isnan(x * 1.0),
    "concatenate": lambda x: np.concatenate([x, np.ones((3, 4, 1), np.float32)], axis=-1),
    "concatenate flat": lambda x: np.concatenate([x, x], axis=None),
    "stack": lambda x: np.stack([x, x * 2], axis=1),
    "hstack": lambda x: np.hstack([x, x]),
    "sum": lambda x: x.sum(),
    "sum of an axis": lambda x: np.sum(x, axis=1, keepdims=True),
    "sum of axes": lambda x: x.sum(axis=(0, 2)),
    "mean": lambda x: x.mean(axis=-1),
    "mean of all": np.mean,
    "max and min": lambda x: x.max(axis=1) * 1 + x.min(1) * 1,
    "any and all": lambda x: (x > 0).any(axis=1) & (x > -9).all(axis=1),
    "prod": lambda x: np.prod(x * 1.0, axis=2),
    "std": lambda x: x.std(axis=1),
    "var": lambda x: np.var(x, axis=0, ddof=1),
    "argmax": lambda x: x.argmax(-1) + np.argmin(x, axis=-1),
    "cumsum": lambda x: np.cumsum(x * 1.0, axis=1),
    "norm": lambda x: np.linalg.norm(x * 1.0, axis=-1),
    "diff": lambda x: np.diff(x * 1, axis=1),
    "reshape": lambda x: x.reshape(3, -1),
    "reshape of a tuple": lambda x: x.reshape((x.shape[0], 20)),
    "ravel": lambda x: x.ravel(),
    "transpose": lambda x: x.transpose(0, 2, 1),
    "T": lambda x: x.T,
    "swapaxes": lambda x: np.swapaxes(x, 1, 2),
    "moveaxis": lambda x: np.moveaxis(x, 0, -1),
    "expand_dims": lambda x: np.expand_dims(x, 1),
    "new axis": lambda x: x[:, None, ..., 0],
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "broadcast_to": lambda x: np.broadcast_to(x[:, :1], (3, 4, 5)),
    "slices": lambda x: x[:, 1:3, ::2],
    "negative step": lambda x: x[:, ::-1] * 1,
    "index": lambda x: x[:, -1, 2],
    "index array": lambda x: x[:, [0, 2]] * np.arange(1, 3)[:, None],
    "take": lambda x: np.take(x, [0, -1], axis=2),
    "take_along_axis": lambda x: np.take_along_axis(x, x.argmax(-1)[..., None], axis=-1),
    "einsum": lambda x: np.einsum("bkd,k->bd", x * np.float32(1), WEIGHTS),
    "matmul": lambda x: (x * np.float32(1)) @ np.ones((5, 2), np.float32),
    "repeat and tile": lambda x: np.tile(np.repeat(x, 2, axis=1), (1, 1, 2)),
    "flip and roll": lambda x: np.roll(np.flip(x, axis=1), 1, axis=2),
    "split": lambda x: np.split(x, 2, axis=1)[1] * 1,
    "digitize": lambda x: np.digitize(x * 1.0, [-1.0, 0.0, 1.0]),
    "sort": lambda x: np.sort(x, axis=-1),
    "one-hot": lambda x: (np.floor(x * 1.0)[..., None] == np.arange(4)).astype(np.float32),
    "zeros_like": lambda x: np.zeros_like(x) + np.ones_like(x, dtype=np.float32) + np.full_like(x, 1),
    "astype": lambda x: x.astype(np.float32) + x.astype("int64"),
    "masked write": lambda x: _masked(x * 1),
    "write": lambda x: _written(x * 1),
    "scalar types": lambda x: x * x.dtype.type(1) if x.dtype != bool else x,
    "reduce": lambda x: np.add.reduce(x * 1.0, axis=1),
    "count": lambda x: np.count_nonzero(x, axis=1),
    "round to tens": lambda x: np.round(x * 10.0, -1),
    "round of integers": lambda x: np.round(x, 1) + np.rint(x) + np.floor(x),
    "out of another shape": lambda x: np.add(x[:, :, :1], 1, out=np.zeros_like(x)),
    "negative axes": lambda x: np.expand_dims(x, (-1, -2)),
    "dot": lambda x: np.dot(x * 1.0, np.ones((5, 2))),
    "write through a slice of an array": lambda x: _written_through(x * 1),
    "slice that is written and kept": lambda x: _kept(x * 1),
}


def _in_place(x: Any) -> Any:
    x += 1
    x *= 2
    np.clip(x, -1, 1, out=x)
    return x


def _masked(x: Any) -> Any:
    x[x < 0] = 0
    return x


def _written(x: Any) -> Any:
    x[:, 0] = x[:, 1]
    x[:, 2, :2] = 1
    return x


def _written_through(x: Any) -> Any:
    x[:, 0] += x[:, 1]
    x[:, 1:] *= 2
    x[0] *= 3
    return x


def _kept(x: Any) -> Any:
    y = x[:, 1:]
    y[:, 0] = 1
    y *= 2
    return y


@pytest.mark.parametrize("idiom", IDIOMS)
def test_idiom_on_traced_array_equals_numpy(idiom: str) -> None:
    for array in ARRAYS:
        try:
            expected = IDIOMS[idiom](array.copy())
        except TypeError:  # numpy does not know it for this dtype, such as the difference of flags
            continue
        result = IDIOMS[idiom](TracedArray(torch.from_numpy(array.copy())))
        assert result.dtype == expected.dtype, array.dtype
        assert result.shape == expected.shape
        np.testing.assert_allclose(result.tensor.numpy(), expected, rtol=1e-5, atol=1e-6)


EXTREME = np.array([0.0, -0.0, 1.0, -1.0, 2.5, 255.5, 1e30, -1e30, 1e-30, np.inf, -np.inf, np.nan], np.float32)
OF_EXTREMES: dict[str, Callable[[Any], Any]] = {
    "sign": np.sign,
    "hypot": lambda x: np.hypot(x, 3),
    "hypot of two": lambda x: np.hypot(x, x[::-1]),
    "arctan2": lambda x: np.arctan2(x, -2.5) + np.arctan2(3, x),
    "arctan2 of zero": lambda x: np.arctan2(x * 0, x),
    "logaddexp": lambda x: np.logaddexp(x, 3),
    "logaddexp of two": lambda x: np.logaddexp(x, x),
    "logaddexp2": lambda x: np.logaddexp2(x, -2.5),
    "copysign": lambda x: np.copysign(2.0, x),
    "digitize": lambda x: np.digitize(x, [-1, 0, 2]),
    "digitize right": lambda x: np.digitize(x, [-1, 0, 2], right=True),
    "maximum": lambda x: np.maximum(x, 0),
    "fmax": lambda x: np.fmax(x, 0),
    "clip": lambda x: np.clip(x, -2, 2),
    "floor": np.floor,
    "sort": np.sort,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "compare": lambda x: (x > 0) | ~(x <= 1),
    "nan_to_num": np.nan_to_num,
}


@pytest.mark.parametrize("idiom", OF_EXTREMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_idiom_equals_numpy_for_zeros_of_both_signs_infinities_and_nan(idiom: str, dtype: Any) -> None:
    array = EXTREME.astype(dtype)
    with np.errstate(all="ignore"):
        expected = OF_EXTREMES[idiom](array)
    result = OF_EXTREMES[idiom](TracedArray(torch.from_numpy(array.copy())))
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result.tensor.numpy(), expected, rtol=1e-5)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda x: x[:, 1:],
    "slice of a slice": lambda x: x[:, 1:][..., :2],
    "reversed": lambda x: x[:, ::-1],
    "row": lambda x: x[0],
    "reshape": lambda x: x.reshape(-1),
    "np.reshape": lambda x: np.reshape(x, (3, 20)),
    "ravel": lambda x: x.ravel(),
    "T": lambda x: x.T,
    "transpose": lambda x: np.transpose(x, (0, 2, 1)),
    "swapaxes": lambda x: x.swapaxes(1, 2),
    "moveaxis": lambda x: np.moveaxis(x, 0, -1),
    "expand_dims": lambda x: np.expand_dims(x, 0),
    "squeeze": lambda x: np.squeeze(x[:, :1], 1),
    "split": lambda x: np.split(x, 2, axis=1)[1],
    "flip": lambda x: np.flip(x, 1),
    "astype without a copy": lambda x: x.astype(x.dtype, copy=False),
    "item of a loop": lambda x: next(iter(x)),
}
WRITES: dict[str, Callable[[Any], Any]] = {
    "item": lambda x: x.__setitem__(0, 1),
    "mask": lambda x: x.__setitem__(x > 1000, 1),
    "in place": lambda x: x.__imul__(2),
    "out": lambda x: np.clip(x, -1, 1, out=x),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("write", WRITES)
def test_array_is_not_read_after_a_write_into_a_view_of_it(view: str, write: str) -> None:
    array = TracedArray(torch.from_numpy(A * 1))
    assert np.shares_memory(A, VIEWS[view](A))
    part = VIEWS[view](array)
    WRITES[write](part)
    assert (part * 1).ndim
    with pytest.raises(NotTraceable, match="after a write into a slice"):
        array * 1


@pytest.mark.parametrize("view", VIEWS)
def test_view_is_not_read_after_a_write_into_its_array(view: str) -> None:
    array = TracedArray(torch.from_numpy(A * 1))
    part = VIEWS[view](array)
    array[:, 0] = 2
    with pytest.raises(NotTraceable, match="after a write into a slice"):
        part * 1


def test_slice_written_to_another_place_is_not_a_write_through_it() -> None:
    array = TracedArray(torch.from_numpy(A * 1))
    part = array[:, 0]
    part += 1
    with pytest.raises(NotTraceable, match="after a write into a slice"):
        array[:, 1] = part


REJECTED: dict[str, Callable[[Any], Any]] = {
    "if": lambda x: 1 if x[0, 0, 0] > 0 else 2,
    "int": lambda x: int(x[0, 0, 0]),
    "float": lambda x: float(x[0, 0, 0]),
    "item": lambda x: x[0, 0, 0].item(),
    "tolist": lambda x: x.tolist(),
    "asarray": np.asarray,
    "np.array": lambda x: np.array([x[0, 0, 0], 1.0]),
    "index into an array": lambda x: np.eye(9)[x[0, 0, 0]],
    "write into an array": lambda x: np.zeros(5).__setitem__(slice(None), x[0, 0]),
    "mask as an index": lambda x: x[x > 0],
    "nonzero": np.nonzero,
    "where with one argument": lambda x: np.where(x > 0),
    "unknown function": lambda x: np.fft.fft(x),
    "write into a slice of a slice": lambda x: _twice_sliced(x * 1.0) * 1,
    "unknown ufunc": lambda x: np.cbrt(x),
    "accumulate": lambda x: np.add.accumulate(x),
    "dot of three axes": lambda x: np.dot(x, np.ones((2, 5, 3))),
    "round of integers to tens": lambda x: np.round(x.astype(np.int64), -1),
    "unknown option": lambda x: np.sum(x, axis=0, where=np.ones((3, 4, 5), bool)),
}


def _twice_sliced(x: Any) -> Any:
    x[:, 1:][:, :2] *= 2
    return x


@pytest.mark.parametrize("idiom", REJECTED)
def test_idiom_that_needs_numbers_is_rejected(idiom: str) -> None:
    with pytest.raises((NotTraceable, AttributeError)):
        REJECTED[idiom](TracedArray(torch.from_numpy(A)))
