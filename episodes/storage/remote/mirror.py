"""Reading of remote data sets. Downloaded files are kept in a local cache directory.

When the data set is opened, the facts of all episodes are read: each shard's footer gives the positions of its record
batches, and only the row columns of these are downloaded, once. A shard is downloaded when an episode in it is first
read. The last used shards are kept, up to a number of bytes. Removed shards stay readable as long as they are mapped.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from episodes.errors import UnreadableData
from episodes.storage.arrow import as_unreadable_data, pyarrow
from episodes.storage.catalog import MADE, SEALED, Catalog, ShardFile
from episodes.storage.episode_rows import num_columns
from episodes.storage.files import local_path
from episodes.storage.header import Header
from episodes.storage.layout import Layout, StoredBatch
from episodes.storage.remote.remote_directory import RemoteDirectory
from episodes.storage.remote.uploaded import list_files
from episodes.storage.search import statistics
from episodes.storage.shards import ShardBatch, ShardRead, checked_name, data_set_of, read_shard

if TYPE_CHECKING:
    import pyarrow as pa

CACHE_BYTES = 1 << 33
_ROWS, _SCHEMA = ".rows", b"rl-episodes.schema"
_MANY = 16  # requests at a time
_BLOCK = 1 << 16  # bytes that are read at a time, of footers and rows


class Mirror:
    """Local cache of a remote data set, which holds all JSON files and the most recently used Arrow files.

    Args:
        url: of the data set.
        options: of the file system.
        cache: a directory, which processes may share; by default a folder of the user's cache directory.
        cache_bytes: size limit for the shards of this data set.
    """

    def __init__(self, url: str, options: dict[str, Any], cache: str | Path | None, cache_bytes: int) -> None:
        self.place = RemoteDirectory(url, options)
        self._root = cache
        root = local_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache" if cache is None else cache)
        name = hashlib.blake2b(f"{url}{sorted(options.items())}".encode(), digest_size=12).hexdigest()
        self.directory = root / "rl-episodes" / name if cache is None else root / name
        self._bytes = cache_bytes
        self._sizes: dict[str, int | None] = {}
        self._open: OrderedDict[str, dict[int, StoredBatch]] = OrderedDict()  # shards, the one used last at the end
        self._lock = RLock()

    def __reduce__(self) -> Any:
        return Mirror, (self.place.url, self.place.options, self._root, self._bytes)

    @property
    def path(self) -> str:
        """URL of the remote data set."""
        return self.place.url

    @property
    def is_remote(self) -> bool:
        return True

    def refresh(self) -> Catalog:
        """Download all JSON files and manifests, and return the catalog of the current Arrow files."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._sizes, uploaded = list_files(self.place)
        small = [name for name in self._sizes if name.endswith((".json", ".manifest"))]
        for file in self.directory.iterdir():
            if file.suffix in (".json", ".manifest") and file.name not in (*small, statistics.NAME):
                file.unlink(missing_ok=True)
        read = self._read_small if uploaded is None else uploaded.small.get
        with ThreadPoolExecutor(_MANY) as pool:
            for name, data in zip(small, pool.map(read, small), strict=True):
                if data is not None:
                    self._put(name, data)
        catalog = Catalog.of(self.directory, [*self._sizes])
        catalog.problems = [problem.replace(str(self.directory), self.place.url) for problem in catalog.problems]
        return catalog

    def has_new_commit(self, catalog: Catalog) -> bool:
        return False  # a listing of an object store is of one moment

    def read(self, files: Sequence[ShardFile], verify: bool) -> list[ShardRead | None]:
        """Download the episode metadata of each Arrow file, or if `verify` is True the whole files.

        The result has None for a missing file.
        """

        def read(file: ShardFile) -> ShardRead | None:
            """Return the metadata of a file's episodes, or None if the file does not exist. With `verify`, the file is
            downloaded.
            """
            try:
                return self._fetch(file) if verify else self._rows(file)
            except FileNotFoundError:
                return None

        with ThreadPoolExecutor(_MANY) as pool:
            return list(pool.map(read, files))

    def stored_batches(self, read: ShardRead, header: Header) -> list[StoredBatch]:
        """Return the record batches of an Arrow file as `StoredBatch` objects, whose arrays are downloaded when first
        read. Empty if not even the file's schema could be read.
        """
        if read.layout is None:
            return []
        size = self._sizes.get(read.file.path.name) or 0
        return [
            RemoteBatch(batch.batch, read.layout, header, self, read.file, number, size if not number else 0)
            for number, batch in enumerate(read.batches)
        ]

    def batch(self, file: ShardFile, number: int, header: Header) -> StoredBatch:
        """Return one record batch of an Arrow file by its index `number`. The file is downloaded
        if it is not in the cache.

        Raises:
            UnreadableData: the file no longer exists, is damaged, or lacks this batch.
        """
        with self._lock:
            batches = self._open.get(file.name)
            if batches is None:
                try:
                    read = self._fetch(file)
                except FileNotFoundError:
                    message = f"{self.place.url}: shard {file.name} is gone; open the data set again"
                    raise UnreadableData(message) from None
                if read.layout is None:
                    raise UnreadableData(f"{self.place.url}: shard {file.name} is damaged ({read.damage})")
                source, layout = f"{self.place.url}/{file.path.name}", read.layout
                stored = (StoredBatch(part.batch, layout, header, source, part.place) for part in read.batches)
                self._open[file.name] = batches = dict(enumerate(stored))
                self._make_room()
            self._open.move_to_end(file.name)
            if number not in batches:
                raise UnreadableData(f"{self.place.url}: shard {file.name} lacks batches that its footer lists")
            return batches[number]

    def _fetch(self, file: ShardFile) -> ShardRead:
        """Read an Arrow file from the cache. If it is not there, download it first.

        Raises:
            FileNotFoundError: the remote file was removed.
        """
        local, size = self.directory / file.path.name, self._sizes.get(file.path.name)
        try:
            if local.stat().st_size != size:
                raise FileNotFoundError
            os.utime(local)
        except FileNotFoundError:
            draft = local.with_name(f".{local.name}.{os.getpid()}.{os.urandom(4).hex()}")
            try:
                self.place.fetch(file.path.name, draft, size)
                os.replace(draft, local)
            finally:
                draft.unlink(missing_ok=True)
        return read_shard(ShardFile(file.name, file.order, local, file.num_episodes))

    def _make_room(self) -> None:
        """Delete the least recently used Arrow files from the cache until it does not exceed its size limit."""
        files = []
        for entry in os.scandir(self.directory):
            with suppress(FileNotFoundError):
                if entry.name.endswith((SEALED, MADE)) and not entry.name.startswith("."):
                    files.append((entry.stat().st_mtime_ns, entry.stat().st_size, Path(entry.path)))
        newest, total = next(reversed(self._open)), sum(size for _, size, _ in files)
        for _, size, file in sorted(files):
            name = file.name.partition(".")[0]
            if total <= self._bytes or name == newest:
                continue
            self._open.pop(name, None)
            file.unlink(missing_ok=True)
            total -= size

    def _rows(self, file: ShardFile) -> ShardRead:
        """Return the metadata of an Arrow file's episodes, from the cache or by reading that part of the remote file. A
        file that is unfinished or damaged is downloaded whole.
        """
        cached = self.directory / f"{file.path.name}.{self._sizes.get(file.path.name)}{_ROWS}"
        try:
            with suppress(FileNotFoundError, UnreadableData), as_unreadable_data(cached.name):
                return _decode_metadata(file, cached.read_bytes())
            place = self.place.path(file.path.name)
            with (
                self.place.reached(),
                self.place.system.open(place, "rb", block_size=_BLOCK, cache_type="readahead") as remote,
            ):
                data = _extract_metadata(pyarrow().PythonFile(remote, mode="r"))
            result = _decode_metadata(file, data)
        except (FileNotFoundError, pyarrow().ArrowException, UnreadableData, ValueError, KeyError):
            return self._fetch(file)  # unfinished or damaged: the stream of the shard shows the problem
        self._put(cached.name, data)
        return result

    def _read_small(self, name: str) -> bytes | None:
        """Download a small file, and return its bytes, or None if it does not exist."""
        with suppress(FileNotFoundError):
            return self.place.read(name)
        return None

    def _put(self, name: str, data: bytes) -> None:
        """Write a file to the cache directory, so that it appears when it is complete."""
        draft = self.directory / f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
        try:
            draft.write_bytes(data)
            os.replace(draft, self.directory / name)
        finally:
            draft.unlink(missing_ok=True)


class RemoteBatch(StoredBatch):
    """Record batch of episodes in remote storage. Its metadata are in memory, and its arrays are
    downloaded when first read."""

    def __init__(
        self,
        rows: pa.RecordBatch,
        layout: Layout,
        header: Header,
        mirror: Mirror,
        file: ShardFile,
        number: int,
        size: int,
    ) -> None:
        super().__init__(rows, layout, header, f"{mirror.place.url}/{file.path.name}", b"")
        self._mirror, self._file, self._number, self._size = mirror, file, number, size

    @property
    def nbytes(self) -> int:
        return self._size  # of the shard, told by its first batch

    @property
    def here(self) -> StoredBatch:
        """The same record batch on this machine. Its file is downloaded if it is not in the cache."""
        return self._mirror.batch(self._file, self._number, self._header)

    @property
    def whole(self) -> Any:  # type: ignore[reportIncompatibleVariableOverride]
        return self.here.whole

    @property
    def compressed(self) -> Any:  # type: ignore[reportIncompatibleVariableOverride]
        return self.here.compressed


def _extract_metadata(source: pa.NativeFile) -> bytes:
    """Copy the episode metadata columns of an Arrow file, without its arrays, and return them as the
    bytes of an Arrow stream."""
    ipc = pyarrow().ipc
    schema = ipc.open_file(source).schema
    fields = list(range(num_columns(schema.names)))
    reader = ipc.open_file(source, options=ipc.IpcReadOptions(included_fields=fields))
    metadata = {_SCHEMA: base64.b64encode(schema.serialize().to_pybytes())}
    sink = pyarrow().BufferOutputStream()
    with ipc.new_stream(sink, pyarrow().schema([schema.field(i) for i in fields], metadata)) as writer:
        for number in range(reader.num_record_batches):
            writer.write_batch(reader.get_batch(number).replace_schema_metadata(metadata))
    return sink.getvalue().to_pybytes()


def _decode_metadata(file: ShardFile, data: bytes) -> ShardRead:
    """Decode the episode metadata of an Arrow file from bytes that `_extract_metadata` returned.

    Raises:
        UnreadableData: the bytes are of another Arrow file, or lack episodes.
    """
    arrow, read = pyarrow(), ShardRead(file)
    reader = arrow.ipc.open_stream(data)
    whole = arrow.BufferReader(base64.b64decode(reader.schema.metadata[_SCHEMA]))
    read.schema = arrow.ipc.read_schema(whole)
    read.layout = Layout.from_schema(read.schema)
    if checked_name(read.schema) != file.name:
        raise UnreadableData(f"it is not shard {file.name}")
    read.data_set = data_set_of(read.schema)
    read.batches = [ShardBatch(batch, b"", "", b"") for batch in reader]
    if read.num_episodes < file.num_episodes:
        raise UnreadableData("it has fewer episodes than its writer wrote")
    return read
