"""`ResumePoint`: files from which a new process resumes a memory-mapped replay buffer.

    state.msgpack   the state at the last `save`, with a checksum
    tail            8 bytes: the number of the oldest step that is whole; written before steps are overwritten
    moved.msgpack   since that state, the observations moved to a larger file: its name, and the rows of the steps

The files are safe against a killed process, not against a machine that loses power.
"""

from __future__ import annotations

import hashlib
import os
import stat
from binascii import crc_hqx
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from episodes.errors import EpisodeError, InvalidArgument, UnreadableData
from episodes.format_versions import REPLAY_FILES, check_magic
from episodes.replay.ring.mapped_files import REGULAR, MappedFiles
from episodes.tracks.infos import msgpack_codec

_STATE, _TAIL, _MOVED = "state.msgpack", "tail", "moved.msgpack"
_KIND = b"rl-episodes replay "  # and the version of the format
_MAGIC = b"%s%d\n" % (_KIND, REPLAY_FILES)
_REMEDY = "write its episodes with to_dataset in the version that made it, and read that with from_dataset here"
_DIGEST_BYTES = 16
_TAIL_BITS = 48


class ResumePoint:
    """Saved state of a memory-mapped replay ring, which stays usable while the ring overwrites old steps."""

    def __init__(self, files: MappedFiles) -> None:
        self.files = files
        self._tail: np.ndarray | None = None  # None: no state was saved yet
        self._digest = b""  # of the saved state

    def before_write(self, tail: int) -> None:
        """Record on disk that steps with indices below `tail` may be overwritten from now on."""
        if self._tail is not None:
            self._tail[0] = _with_check(tail)

    def before_move(self, names: list[str], numbers: dict[str, int], rows: list[np.ndarray]) -> None:
        """Record on disk that the observations moved to the larger files `names`, and their new positions.

        Args:
            numbers: numbers of the ring that change, by name.
            rows: the new `row` and `next_row` links of the first steps.
        """
        if self._tail is not None:
            moved = {"of": self._digest, "files": names, "numbers": numbers, "rows": rows}
            write_document(self.files.folder / _MOVED, moved)

    def save(self, state: dict[str, Any], tail: int) -> None:
        """Save the state of the ring, without its mapped arrays, to disk. After an error the old state remains valid.

        Raises:
            WrongType: msgpack cannot hold a value. The message names it.
        """
        if self._tail is None:
            (self.files.folder / _TAIL).write_bytes(_with_check(tail).to_bytes(8, "little"))
        self._digest = write_document(self.files.folder / _STATE, state)
        (self.files.folder / _MOVED).unlink(missing_ok=True)
        if self._tail is None:
            self._tail = self._mapped_tail()

    def check_absent(self) -> None:
        """Raise `InvalidArgument` if a state is saved, which that of a new ring would replace."""
        if os.path.lexists(self.files.folder / _STATE):
            raise InvalidArgument(
                f"path={str(self.files.folder)!r}: a replay buffer has saved its steps there, a directory without such "
                "files is allowed; give resume=True to continue with them, or another path"
            )

    def forget(self) -> None:
        """Delete the saved state, so that the ring cannot be resumed."""
        (self.files.folder / _STATE).unlink(missing_ok=True)
        self._tail = None

    def load(self, restore: Callable[[dict[str, Any], int], None]) -> bool:
        """Call `restore(state, tail)` with the state saved on disk and the index of the oldest step.

        Returns False if no state is saved, else True.

        Raises:
            UnreadableData: a file is damaged, or `restore` failed because of its content.
        """
        file = self.files.folder / _STATE
        if not os.path.lexists(file):
            return False
        self._digest, state = read_document(file)
        tail = self._mapped_tail()
        word = int(tail[0])
        number = word & ((1 << _TAIL_BITS) - 1)
        if word != _with_check(number):
            raise UnreadableData(f"{self.files.folder / _TAIL} is damaged: its checksum is another one")
        try:
            state = self._with_moved(state)
            restore(state, number)
        except (EpisodeError, OSError, MemoryError):
            raise
        except Exception as error:
            raise UnreadableData(f"{file} does not hold the state of a replay buffer: {error!r}") from error
        self._tail = tail
        return True

    def _with_moved(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a saved state with the file names and numbers that were saved after it, when observations moved to
        larger files.

        They are ignored if they belong to another state.
        """
        file = self.files.folder / _MOVED
        if not os.path.lexists(file):
            return state
        moved = read_document(file)[1]
        if moved["of"] != self._digest:  # of a state that was replaced since
            return state
        names, files = moved["files"], state["files"]
        numbers = state["numbers"] | moved["numbers"]
        numbers["lost_rows"] = min(numbers["lost_rows"], numbers["rows_head"])  # all saved rows may be lost since
        return {**state, "numbers": numbers, "files": [*names, *files[len(names) :]], "rows": moved["rows"]}

    def _mapped_tail(self) -> np.ndarray:
        """Memory-map the file with the index of the oldest whole step. Raise `UnreadableData` if its size is wrong."""
        file = self.files.folder / _TAIL
        if len(_bytes_of(file)) != 8:
            raise UnreadableData(f"{file} is damaged: it does not have 8 bytes")
        return np.asarray(np.memmap(file, "<u8", "r+", shape=(1,)))


def _with_check(tail: int) -> int:
    """Pack a step index and its 16-bit checksum into one 64-bit integer, which is written atomically."""
    return tail | crc_hqx(tail.to_bytes(_TAIL_BITS // 8, "little"), 0x1D0F) << _TAIL_BITS


def write_document(file: Path, content: dict[str, Any]) -> bytes:
    """Write a dict with a checksum to a file in one atomic step, and return the checksum.

    Raises:
        WrongType: msgpack cannot hold a value. The message names it.
    """
    document = msgpack_codec.encode(content, "buffer")
    digest = _digest_of(document)
    new = file.with_name(file.name + ".new")
    try:
        new.write_bytes(_MAGIC + digest + document)
        os.replace(new, file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return digest


def read_document(file: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the checksum and the content of a file of `write_document`. Raise `UnreadableData` if it is damaged.

    Raises:
        UnreadableData: the file is damaged, or something else.
    """
    data = _bytes_of(file)
    start = len(_MAGIC) + _DIGEST_BYTES
    digest, document = data[len(_MAGIC) : start], data[start:]
    if data[: len(_MAGIC)] != _MAGIC:
        check_magic(data, _KIND, REPLAY_FILES, str(file), _REMEDY)
        raise UnreadableData(f"{file} is not the state of a replay buffer of a released version")
    if _digest_of(document) != digest:
        raise UnreadableData(f"{file} is damaged: its checksum is another one")
    try:
        content = msgpack_codec.decode(document)
    except UnreadableData as error:
        raise UnreadableData(f"{file}: {error}") from None
    if not isinstance(content, dict):
        raise UnreadableData(f"{file} does not hold the state of a replay buffer")
    return digest, content


def _digest_of(document: bytes) -> bytes:
    return hashlib.blake2b(document, digest_size=_DIGEST_BYTES).digest()


def _bytes_of(file: Path) -> bytes:
    """Return the content of a regular file. Raise `UnreadableData` for symbolic links and pipes."""
    try:
        descriptor = os.open(file, os.O_RDONLY | REGULAR)
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableData(f"{file} is no regular file")
            return stream.read()
    except OSError as error:
        raise UnreadableData(f"{file} cannot be read: {error.strerror}") from None
