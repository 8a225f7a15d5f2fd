"""`StreamedArray`: an array in an archive of numpy, which is read once, in order, without loading it completely."""

from __future__ import annotations

import math
import tokenize
from typing import IO

import numpy as np

from episodes.errors import UnreadableData


class StreamedArray:
    """Array in an open file of numpy's format `.npy`. Its rows are read in order.

    Args:
        name: name of the array with its file, for errors.
        file: the file, at its beginning. It may be compressed.

    Raises:
        UnreadableData: the file is damaged, or the array has Python objects, which are a pickle.

    >>> import io
    >>> file = io.BytesIO()
    >>> np.save(file, np.arange(6).reshape(3, 2))
    >>> array = StreamedArray("x", io.BytesIO(file.getvalue()))
    >>> array.shape, array[0:2].tolist(), array[2:3].tolist()
    ((3, 2), [[0, 1], [2, 3]], [[4, 5]])
    """

    __slots__ = ("_file", "_name", "_next", "_whole", "dtype", "shape")

    def __init__(self, name: str, file: IO[bytes]) -> None:
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        try:
            version = np.lib.format.read_magic(file)  # type: ignore[arg-type]
            if version not in read:
                raise UnreadableData(
                    f"{name}: version {version} of numpy's format; 1.0 and 2.0 are read; save it again"
                )
            shape, is_fortran, dtype = read[version](file)  # type: ignore[arg-type]
        except (ValueError, TypeError, SyntaxError, tokenize.TokenError) as error:  # the last ones: of its text
            raise UnreadableData(f"{name}: not an array of numpy: {error}; write or download it again") from error
        if dtype.hasobject:
            raise UnreadableData(
                f"{name}: an array of Python objects, which is a pickle and may run code; it is never opened here. "
                "Load it yourself, and save its numbers as an array"
            )
        self._name, self._file, self._next = name, file, 0
        self._whole: np.ndarray | None = None
        self.shape, self.dtype = tuple(shape), dtype
        if is_fortran and len(shape) > 1:  # its rows are not contiguous
            self._whole = self._read(shape[::-1]).transpose()

    @property
    def nbytes(self) -> int:
        """Number of bytes of the array."""
        return self.dtype.itemsize * math.prod(self.shape)

    def _read(self, shape: tuple[int, ...]) -> np.ndarray:
        size = self.dtype.itemsize * math.prod(shape)
        data = self._file.read(size)
        if len(data) != size:
            raise UnreadableData(f"{self._name}: the array ends too early; write or download it again")
        return np.frombuffer(data, self.dtype).reshape(shape)

    def __getitem__(self, rows: slice | tuple[()]) -> np.ndarray:
        """Return the rows of a slice that begins where the previous one ended, or with `[()]` all rows."""
        if self._whole is not None:
            return self._whole[rows]
        if isinstance(rows, tuple):
            return self._read(self.shape)
        start, stop, _ = rows.indices(self.shape[0])
        if start != self._next:
            raise IndexError(f"{self._name}: rows from {start} on; the next row is {self._next}")
        self._next = stop
        return self._read((stop - start, *self.shape[1:]))
