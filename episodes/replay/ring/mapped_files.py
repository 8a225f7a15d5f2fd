"""`MappedFiles`: directory of a replay buffer's memory-mapped arrays, locked while the buffer uses it.

lock            locked by the buffer that uses the directory
ring_1.npy ...  the arrays, of full size from the beginning
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import warnings
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from episodes.errors import EpisodeStateError, InvalidArgument, UnreadableData
from episodes.storage.files import left_if_open
from episodes.storage.ownership import Owner

_ARRAY_NAME = re.compile(r"ring_[1-9][0-9]{0,17}\.npy", re.ASCII)
REGULAR = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Flags of `os.open` for regular files: no symbolic link is followed, a pipe does not wait, no line ends change."""
_LARGEST_HEADER = 4096  # bytes; numpy writes 128 for arrays of plain numbers
_CHUNK = 1 << 20  # bytes that are written at once where the system cannot reserve space


class MappedFiles:
    """Directory of memory-mapped `.npy` files with a lock that excludes other replay buffers.

    The directory stays locked until `close`. A forked process neither writes nor reads: its parent's steps would change
    while it reads them. An object that is dropped without `close` releases the lock, with a
    `ResourceWarning`.

    Args:
        folder: the directory. It is created if it does not exist.

    Raises:
        InvalidArgument: another buffer, of this or another process, uses the directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: list[str] = []
        """Names of the files in use, oldest first."""
        self._num_files = 0
        self._reopened: list[str] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.owner = Owner(
            f"the replay buffer with files in {folder}",
            folder / "lock",
            refusal=f"path={str(folder)!r}: another replay buffer uses these files; close() it, or give another path",
            remedy="sample in that process, and send the batches",
        )
        self.owner.claim()

    def close(self) -> None:
        """Release the lock on the directory. Existing arrays stay readable, but no new array can be created."""
        self.owner.release()

    def __del__(self) -> None:
        owner = getattr(self, "owner", None)
        if owner is not None and owner.is_active:
            self.close()
            text = f"a replay buffer with files in {self.folder} was dropped without close()"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def expect(self, names: Sequence[str]) -> None:
        """Make the next calls of `array` reopen the existing files `names`, in this order, instead of creating files.

        Raises:
            UnreadableData: a name is not that of an array file, or occurs twice.
        """
        for name in names:
            if not isinstance(name, str) or not _ARRAY_NAME.fullmatch(name):
                raise UnreadableData(f"{self.folder}: the state names the file {name!r}, which is no array of a buffer")
        if len(set(names)) < len(names):
            raise UnreadableData(f"{self.folder}: the state names a file twice")
        self._reopened = list(names)

    def finish_expected(self) -> None:
        """Make `array` create new files again. Raise `UnreadableData` if some file of `expect` was not reopened."""
        left, self._reopened = self._reopened, None
        if left:
            raise UnreadableData(f"{self.folder}: the state names {len(left)} files that the buffer has no arrays for")

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Create a file and return a memory-mapped array of it, or reopen the next file that `expect` announced.

        Raises:
            OSError: the file cannot be created, for example because the disk is full.
            UnreadableData: an existing file does not hold such an array.
            EpisodeStateError: the directory was closed.
            InvalidArgument: there is a file of this name that was not announced.
        """
        self.owner.check()
        if not self.owner.is_active:
            raise EpisodeStateError(f"the replay buffer of {self.folder} is closed; open another one")
        if self._reopened is None:
            return self._created(shape, dtype)
        if not self._reopened:
            raise UnreadableData(f"{self.folder}: the state names fewer files than the buffer has arrays")
        name = self._reopened.pop(0)
        array = _mapped(self.folder / name, shape, dtype)
        self._num_files = max(self._num_files, int(name[len("ring_") : -len(".npy")]))
        self.names.append(name)
        return array

    def _created(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Create the next file with disk space for an array of zeros, and return the array. If this fails, the file is
        removed.

        Raises:
            InvalidArgument: there is a file of this name.
        """
        self._num_files += 1
        file = self.folder / f"ring_{self._num_files}.npy"
        header = _header(shape, dtype)
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | REGULAR, 0o666)
        except FileExistsError:
            raise InvalidArgument(
                f"{file} exists: another buffer may use it; give a separate directory, or resume=True"
            ) from None
        try:
            try:
                _reserve(descriptor, len(header) + dtype.itemsize * math.prod(shape))
                _write_at(descriptor, header, 0)
            finally:
                os.close(descriptor)
            array = _mapped(file, shape, dtype)
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        self.names.append(file.name)
        return array

    def remove(self, names: Iterable[str]) -> None:
        """Delete the files `names`. Arrays mapped from these files stay readable."""
        for name in list(names):
            with left_if_open():  # the next buffer of this directory removes it
                (self.folder / name).unlink(missing_ok=True)
            if name in self.names:
                self.names.remove(name)

    def remove_all_but(self, names: Iterable[str]) -> None:
        """Delete all array files in use except `names`. Nothing is deleted while existing files are being reopened."""
        if self._reopened is None:
            self.remove(set(self.names).difference(names))

    def remove_unused(self) -> None:
        """Delete array files in the directory that the buffer does not use, such as files of a killed process."""
        for file in self.folder.iterdir():
            if _ARRAY_NAME.fullmatch(file.name) and file.name not in self.names:
                with left_if_open():
                    file.unlink(missing_ok=True)


def file_name_of(array: np.ndarray) -> str | None:
    """Return the name of the file that an array or its base is mapped from, or None for arrays in memory."""
    base: Any = array
    while base is not None and not (isinstance(base, np.memmap) and base.filename is not None):
        base = getattr(base, "base", None)
    return None if base is None else Path(str(base.filename)).name


def _header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """Return the header of an `.npy` file of this shape and dtype."""
    stream = BytesIO()
    entries = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, entries)
    return stream.getvalue()


def _reserve(descriptor: int, size: int) -> None:
    """Allocate disk space for a whole file, so that later writes to the mapped array cannot fail on a full disk."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except (AttributeError, OSError) as error:  # macOS has no such call, and some file systems refuse it
        if getattr(error, "errno", errno.EOPNOTSUPP) not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        for start in range(0, size, _CHUNK):
            _write_at(descriptor, bytes(min(_CHUNK, size - start)), start)


def _write_at(descriptor: int, data: bytes, start: int) -> None:
    """Write bytes to an open file at byte `start`."""
    os.lseek(descriptor, start, os.SEEK_SET)  # Windows has no `os.pwrite`
    os.write(descriptor, data)


def _mapped(file: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Memory-map an existing `.npy` file, after checking that it holds an array of this shape and dtype.

    Reading a map beyond the end of its file would end the process. Symbolic links are not followed.

    Raises:
        UnreadableData: the file cannot be opened, or is damaged, or holds another array.
    """
    try:
        descriptor = os.open(file, os.O_RDWR | REGULAR)
    except OSError as error:
        raise UnreadableData(f"{file} cannot be opened: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise UnreadableData(f"{file} is no regular file")
    with os.fdopen(descriptor, "r+b") as stream:
        try:
            stored_shape, fortran_order, stored_dtype = _read_header(stream)
        except Exception as error:  # numpy raises errors of many classes for damaged headers
            raise UnreadableData(f"{file} is not an array that a buffer wrote: {error}") from None
        offset = stream.tell()
        if stored_shape != shape or stored_dtype != dtype or fortran_order:
            raise UnreadableData(f"{file} holds {stored_dtype} {list(stored_shape)}, not {dtype} {list(shape)}")
        size = offset + dtype.itemsize * math.prod(shape)
        if status.st_size != size:
            raise UnreadableData(f"{file} has {status.st_size} bytes, not {size}: it was cut or extended")
    return np.asarray(np.memmap(file, dtype, "r+", offset, shape))


def _read_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read shape, Fortran order and dtype from an `.npy` file. Raise `ValueError` if it is not of version 1.0."""
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise ValueError(f"a .npy file of version {version}")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=_LARGEST_HEADER)
    return shape, fortran_order, dtype
