"""Writer of episodes to a data set directory. Several processes may write at the same time."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from episodes.closeable import Closeable
from episodes.errors import EpisodeStateError, InvalidArgument, TrackMismatch, UnreadableData, WrongType, rejected_type
from episodes.multi_agent import MultiAgentEpisode, pack_agents
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import info_schema
from episodes.storage.arrow import pyarrow
from episodes.storage.catalog import Manifest
from episodes.storage.files import local_path, sync
from episodes.storage.handing_on import Queued
from episodes.storage.header import KINDS, Header, begun_with_one_kind, create_or_load_header, read_header
from episodes.storage.header import NAME as HEADER
from episodes.storage.known_chunks import KnownChunks, NewChunks
from episodes.storage.layout import Layout
from episodes.storage.ownership import Owner
from episodes.storage.shards import ShardWriter, writer_name
from episodes.storage.small_episodes import SmallEpisodes
from episodes.storage.track_schema import (
    COMPRESSIONS,
    Fields,
    assemble,
    fields_of,
    is_flat,
    is_observed,
    observation_fields,
    pack_columns,
    structure_of,
    with_common_text_width,
)
from episodes.tracks import nested
from episodes.tracks.validation import checked_mapping

if TYPE_CHECKING:
    import pyarrow as pa

SMALL_BYTES = 1 << 20  # smaller additions are copied and queued, to be written together
COMMIT_BYTES = 1 << 22  # queued bytes that trigger a write


class _Waiting(NamedTuple):
    """Episodes that a writer has accepted and not written yet. Small episodes are newer than the record batches.

    Attributes:
        last: the chunks of the addition that was queued or written last.
    """

    small: SmallEpisodes
    batches: tuple[Any, ...] = ()  # of the current schema; they own their memory
    nbytes: int = 0  # of the batches
    last: NewChunks | None = None


class _Addition(NamedTuple):
    """Pack of episodes converted to an Arrow record batch, with its schema, ready to be queued or written.

    Attributes:
        new: its chunks, for `KnownChunks`.
    """

    header: Header
    layout: Layout
    schema: Any
    batch: Any
    nbytes: int
    is_small: bool  # it may be queued
    new: NewChunks | None = None


class EpisodeWriter(Closeable):
    """Writer that adds episodes to a data set directory, which `EpisodeDataset` reads.

    The directory is created with the first episodes, or by `close`. An existing data set is appended to. Several
    writers, in several processes and threads, may write to one data set at a time. `flush` makes added episodes survive
    a killed process. A writer that is dropped without `close` loses only episodes that were not flushed, with a
    `ResourceWarning`. The files are described in docs/format.md.

    Args:
        path: the directory.
        observation_space: space of all observations; None for that of the first episodes.
        action_space: space of all actions; None for that of the first episodes.
        env_spec: an `EnvSpec` (`env.spec`), the id of an environment, or None.
        metadata: facts about the data set that msgpack can encode. Those of the data set's first writer are stored.
        compression: "auto" compresses tracks of uint8 items of at least 1 kB (images) with zstd, "zstd" all tracks, and
            "none" no track.
        shard_bytes: size at which a new file is started.
        several_kinds: create a data set for games whose agents differ in spaces or tracks, which `GameDataset` reads.
            Such a data set is also created if the first games have agents of several kinds.

    Attributes:
        path: the directory.

    Raises:
        MissingExtra: pyarrow is not installed.
        InvalidArgument: the existing data set has other spaces, another `env_spec` or other metadata, or an option is
            invalid.
        UnreadableData: the existing data set has a newer format version, or its header is damaged.
        WrongType: the `env_spec` or `metadata` cannot be written, or `metadata` is not a dict.

    >>> import tempfile, numpy as np
    >>> from episodes.storage import EpisodeDataset
    >>> episode = SingleAgentEpisode.from_arrays(np.arange(4.0), [0, 1, 0], [1.0, 1.0, 1.0], terminated=True)
    >>> with tempfile.TemporaryDirectory() as path:
    ...     with EpisodeWriter(path) as writer:
    ...         writer.add([episode])
    ...     EpisodeDataset(path)[0].equals(episode)
    True
    """

    _closed = True  # until the constructor has succeeded

    def __init__(
        self,
        path: str | Path,
        *,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
        env_spec: EnvSpec | str | None = None,
        metadata: dict[str, Any] | None = None,
        compression: str = "auto",
        shard_bytes: int = 1 << 28,
        several_kinds: bool = False,
    ) -> None:
        pyarrow()
        if compression not in COMPRESSIONS:
            raise InvalidArgument(f"compression={compression!r}: give one of {', '.join(map(repr, COMPRESSIONS))}")
        if shard_bytes < 1:
            raise InvalidArgument(f"shard_bytes={shard_bytes}: give at least 1")
        self.path = local_path(path)
        self._compression, self._shard_bytes = compression, shard_bytes
        metadata = checked_mapping("metadata", metadata or {}, "of facts by name")
        header = Header(observation_space, action_space, env_spec, metadata)
        if observation_space is not None or action_space is not None or env_spec is not None or metadata:
            header.to_json()  # raise errors of values that cannot be written now
        existing = read_header(self.path, kinds=True)
        if existing is not None:
            existing.check_given(header)
        if several_kinds and (observation_space is not None or action_space is not None):
            raise InvalidArgument("several_kinds=True: each kind of agent has its own spaces; leave out the spaces")
        if several_kinds and existing is not None and not existing.has_kinds:
            raise InvalidArgument(f"several_kinds=True: {self.path} began with one kind; give another path")
        self._header, self._is_there = existing or header, existing is not None
        self._num_shards = 0
        self._owner = Owner("this writer", remedy="create a writer for the same path in each process")
        self._owner.claim()
        self._shard: ShardWriter | None = None
        self._manifest: Any = None  # a `Manifest`, from the first shard on
        self._untold: ShardWriter | None = None  # the manifest could not be written for this shard
        self._lock = threading.RLock()
        self._kind: tuple[Layout, Any] = Layout(None, {}, {}), None  # of the current file, with its Arrow schema
        self._queued = Queued(_Waiting(SmallEpisodes()))
        self._known = KnownChunks(self.path if self._is_there else None)
        self._noted: NewChunks | None = None  # the last addition that is among the known chunks
        self._kinds: _KindWriters | None = None  # of a data set of several kinds of agents
        if several_kinds or self._header.has_kinds:
            self._kinds = self._kind_writers()
        self._closed = False

    def add(
        self,
        episodes: SingleAgentEpisode | MultiAgentEpisode | Sequence[SingleAgentEpisode] | Sequence[MultiAgentEpisode],
    ) -> None:
        """Add episodes to the data set: a pack, an episode (or a chunk of one), or a list of episodes.

        They are copied or written, so they may be changed afterwards. Large ones are written at once, small ones
        together with others; `flush` writes them now. Agents of multi-agent episodes are added as separate episodes;
        `GameDataset` reads the multi-agent episodes. If their agents differ in spaces or tracks, the data set has a
        data set for each kind of agent.

        Args:
            episodes: what to add. A rejected call changes nothing.

        Raises:
            TrackMismatch: a track differs from the data set's in its key, shape or dtype; the message names it. Or the
                agents are of several kinds, and the data set began with one kind.
            InvalidArgument: the spaces differ from the data set's.
            ChunkMismatch: the data set has these steps of the id already, or its ending. Episodes that another writer
                adds after this one's first `add` are not compared; `check` finds them.
            WrongType: no episodes, or values that a file cannot hold; the message names the track or key.
            EpisodeStateError: the writer is closed, or belongs to another process.
            UnreadableData: the directory was moved, removed or replaced.
            OSError: for example a full disk. Small episodes stay queued for the next flush; a large pack is not
                written. Games of several kinds of agents stay queued, and the next call writes them.
        """
        self._check_usable()
        some: Any = [episodes] if isinstance(episodes, (SingleAgentEpisode, MultiAgentEpisode)) else episodes
        if type(some) is not list and (isinstance(some, str) or not isinstance(some, Sequence)):
            kind = rejected_type(some, SingleAgentEpisode, MultiAgentEpisode, EpisodePack)
            raise WrongType(f"add({some!r}), a {kind}: give an episode, a list of episodes, or a pack")
        if len(some):
            with self._lock:
                try:
                    self._add_some(some)
                except BaseException:
                    self._note_added()  # an interrupted call may have added them
                    raise

    def _note_added(self) -> None:
        """Remember the chunks that were queued or written last."""
        state = self._queued.state
        self._known.note_queue(state.small)
        if state.last is not None and state.last is not self._noted:
            self._known.add(state.last)
            self._noted = state.last

    def _add_some(self, episodes: Any) -> None:
        """Add episodes or a pack to the data set. Small episodes are queued until they fill a record batch."""
        if self._closed:
            self._check_usable()
        if isinstance(episodes, EpisodePack) or {*map(type, episodes)} != {SingleAgentEpisode}:
            episodes = self._packed(episodes)
        if self._kinds is not None:
            self._add_to_kinds(self._kinds, episodes)
            return
        if type(episodes) is _Kinds:
            if len(episodes) > 1:
                self._begin_kinds(episodes)
                return
            episodes = episodes[0]
        small = self._queued.state.small
        new = self._known.check(episodes, small)
        if small.take(episodes, SMALL_BYTES):
            self._known.add(new)
            if small.nbytes >= SMALL_BYTES:
                self._pack_small()
            return
        pack: Any = self._packed(episodes)
        new = new if new.spans is not None else self._known.check(pack, small)
        self._carry_out(self._prepare(pack)._replace(new=new))
        self._queued.state.small.accept_like(episodes)

    # --- several kinds of agents -------------------------------------------------------------------------------

    def _kind_writers(self) -> _KindWriters:
        """Return the writers of the kinds of agents, which write with the options of this writer."""
        options = {"compression": self._compression, "shard_bytes": self._shard_bytes}
        facts = {"env_spec": self._header.env_spec, "metadata": self._header.metadata}
        return _KindWriters(self.path, lambda path: EpisodeWriter(path, **options, **facts))

    def _begin_kinds(self, packs: _Kinds) -> None:
        """Make the data set one of several kinds of agents, and add the packs.

        Raises:
            TrackMismatch: it began with one kind.
        """
        header, queue = self._header, self._queued.state
        if header.tracks or header.observation_space is not None or header.action_space is not None or queue.batches:
            raise TrackMismatch(begun_with_one_kind(self.path))
        self._kinds = self._kind_writers()
        try:
            self._add_to_kinds(self._kinds, packs)
        except BaseException:
            existing = read_header(self.path, kinds=True)
            if existing is None or not existing.has_kinds:
                self._kinds = None  # a rejected call changes nothing
            raise

    def _add_to_kinds(self, kinds: _KindWriters, packs: object) -> None:
        """Add packs of agents of several kinds. A rejected call changes nothing.

        Raises:
            WrongType: these are not packs of multi-agent episodes.
        """
        if type(packs) is not _Kinds:
            raise WrongType(f"add: {self.path} has agents of several kinds; give multi-agent episodes")
        plan = kinds.plan(packs)
        if not self._header.has_kinds:
            self._put_header(replace(self._header, has_kinds=True))
        kinds.carry_out(packs, plan)

    def _fits(self, pack: EpisodePack) -> bool:
        """Return True if the spaces and tracks of a pack fit into the data set."""
        try:
            header, pack, _ = self._check_fit(pack)
            self._structure(pack, header)
        except (TrackMismatch, InvalidArgument):
            return False
        return True

    def _planned(self, pack: EpisodePack) -> _Addition:
        """Prepare the addition of a pack, without any change to the writer, for `_carry_out`.

        Raises:
            TrackMismatch, InvalidArgument, ChunkMismatch, WrongType: as `add`.
        """
        return self._prepare(pack)._replace(new=self._known.check(pack, self._queued.state.small))

    def _carry_out(self, addition: _Addition) -> None:
        """Add what `_planned` returned. It is queued or written. What an interrupted call added is not added again."""
        if addition.new is not None and self._queued.state.last is addition.new:
            self._note_added()
            return
        self._put_header(addition.header)
        self._pack_small()
        self._queue_or_write(addition, new=addition.new)

    def _prepare(self, pack: EpisodePack) -> _Addition:
        """Convert a pack to an Arrow record batch that fits into the data set, without any change to the writer."""
        header, pack, tracks = self._check_fit(pack)
        current, schema = self._kind
        pack, tracks = with_common_text_width(pack, tracks, current.tracks)
        columns = info_schema.written_columns(pack.infos)
        layout = Layout(self._structure(pack, header), tracks, info_schema.combine_fields(current.infos, columns))
        if layout == current:
            layout = current
        else:
            schema = layout.schema()
        is_small = pack.nbytes < SMALL_BYTES
        batch = layout.batch(schema, pack, columns, copies=is_small)
        return _Addition(header, layout, schema, batch, pack.nbytes, is_small)

    def flush(self, *, fsync: bool = False) -> None:
        """Write all queued episodes to disk, so that they survive the end of this process.

        Args:
            fsync: also wait until the disk has them (milliseconds), so that they survive a crash of the machine.

        Raises:
            EpisodeStateError: the writer is closed, or belongs to another process.
            UnreadableData: the directory was moved, removed or replaced.
            OSError: for example a full disk. The episodes stay queued.
        """
        self._check_usable()
        with self._lock:
            if self._kinds is not None:
                self._kinds.flush(fsync=fsync)
            self._check_file()
            self._pack_small()
            self._commit()
            if fsync and self._is_there:
                sync(self.path / HEADER)
                if self._shard is not None:
                    self._shard.sync()
                    self._record_in_manifest(self._shard, is_open=True, fsync=True)

    def close(self) -> None:
        """Write all queued episodes, finish the current file, and close the writer. Later calls have no effect.

        Raises:
            UnreadableData: the directory was moved, removed or replaced.
            OSError: for example a full disk. Call it again once there is space.
            InvalidArgument, TrackMismatch: queued episodes no longer fit the data set, to which another process wrote.
        """
        with self._lock:
            if self._closed:
                return
            self.flush()
            if not self._is_there:
                self._put_header(replace(self._header, has_kinds=self._kinds is not None))
            if self._kinds is not None:
                self._kinds.close()
            self._seal()
            if self._untold is not None:
                self._record_in_manifest(self._untold, is_open=False)
            self._closed = True
            self._release()

    def __del__(self) -> None:
        if self._closed or not self._owner.is_active:
            return
        waiting = self._queued.state
        num = len(waiting.small) + sum(batch.num_rows for batch in waiting.batches)
        if num or self._shard is not None:
            lost = f": {num} episodes that were not flushed are lost" if num else ""
            warnings.warn(
                f"EpisodeWriter({str(self.path)!r}) was not closed{lost}", ResourceWarning, stacklevel=2, source=self
            )
        self._release()

    def _release(self) -> None:
        """Unlock the manifest, which shows other processes that this writer has ended."""
        if self._manifest is not None:
            self._manifest.release()

    def __repr__(self) -> str:
        if self._closed:
            return f"EpisodeWriter({str(self.path)!r}, closed)"
        waiting = self._queued.state
        nbytes = waiting.nbytes + waiting.small.nbytes + (self._kinds.nbytes if self._kinds is not None else 0)
        return f"EpisodeWriter({str(self.path)!r}, {nbytes} bytes waiting)"

    # --- what fits ---------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        """Raise `EpisodeStateError` if the writer is closed, or was created in another process."""
        if self._closed:
            raise EpisodeStateError(f"the writer of {self.path} is closed; make another EpisodeWriter to append")
        self._owner.check()

    def _packed(self, episodes: Sequence[Any]) -> EpisodePack | _Kinds:
        """Return single-agent episodes as one pack, and multi-agent episodes as one pack for each kind of agent."""
        if not isinstance(episodes, EpisodePack) and isinstance(episodes[0], MultiAgentEpisode):
            return _Kinds(pack_agents(episodes))
        return EpisodePack.from_episodes(episodes)

    def _check_fit(self, pack: EpisodePack) -> tuple[Header, EpisodePack, Fields]:
        """Validate that a pack fits into the data set. Return the data set's new header, the pack to write, and the
        schemas of its arrays.

        Raises:
            TrackMismatch, InvalidArgument: the pack does not fit into the data set.
        """
        tracks, has_steps = fields_of(pack, self._compression), bool(pack.offsets[-1])
        self._header.check_tracks(tracks, has_steps)
        header = self._with_spaces(pack)
        if header.knows_steps:
            if not has_steps:
                pack = _without_steps(pack, header)
                tracks = fields_of(pack, self._compression)
            return header, pack, tracks
        if has_steps:
            return replace(header, tracks=tracks, structure=structure_of(pack_columns(pack))), pack, tracks
        return replace(header, tracks=observation_fields(tracks)), pack, tracks

    def _structure(self, pack: EpisodePack, header: Header) -> Any:
        """Return the nesting of a pack's arrays as JSON. If its dict keys only have another order,
        return the stored nesting.

        Raises:
            TrackMismatch: the arrays are nested otherwise.
        """
        if header.knows_steps and not self._header.knows_steps:
            return header.structure  # of this pack
        layout, _ = self._kind
        if is_flat(pack) and pack.tracks.keys() == layout.tracks.keys() and layout.is_flat:
            return layout.structure
        structure, stored = structure_of(pack_columns(pack)), self._header.structure
        if stored is None or structure == stored:
            return structure
        if not nested.same_structure(assemble(structure, pack.tracks), assemble(stored, pack.tracks)):
            raise TrackMismatch(f"data set: tracks are nested as {stored}, those given as {structure}")
        return stored

    def _with_spaces(self, pack: EpisodePack) -> Header:
        """Return the header with the pack's spaces, if the data set has no episodes and no spaces yet.

        Raises:
            InvalidArgument: the pack has a space that differs from the data set's.
        """
        changed = {}
        for name in ("observation_space", "action_space"):
            stored, new = getattr(self._header, name), getattr(pack, name)
            if new is None or new is stored or new == stored:
                continue
            if stored is not None or self._header.tracks:
                raise InvalidArgument(
                    f"{name}: the data set has {stored}, the given episodes have {new}; write them to a separate "
                    "data set"
                )
            changed[name] = new
        return replace(self._header, **changed) if changed else self._header

    # --- files -------------------------------------------------------------------------------------------------

    def _put_header(self, header: Header) -> None:
        """Write the file `episodes.json` if it is missing, or if `header` has array schemas that the file lacks.

        Raises:
            InvalidArgument, TrackMismatch: another writer has written a header that differs.
        """
        if not self._is_there or header.tracks != self._header.tracks:
            self._header, self._is_there = create_or_load_header(self.path, header), True

    def _start_file_if_needed(self, addition: _Addition) -> None:
        """Finish the current file if the new record batch has another schema, because each file has one schema."""
        if addition.layout != self._kind[0]:
            self._commit()
            self._seal()
            self._kind = addition.layout, addition.schema

    def _pack_small(self) -> None:
        """Convert all queued small episodes to one record batch, and queue or write this batch."""
        small = self._queued.state.small
        pack = small.pack()
        if pack is not None:
            addition = self._prepare(pack)
            self._put_header(addition.header)
            self._known.note_queue(small)
            self._queue_or_write(addition, small.emptied())

    def _queue_or_write(
        self, addition: _Addition, small: SmallEpisodes | None = None, new: NewChunks | None = None
    ) -> None:
        """Queue a small record batch. Write a large one at once, after the queued ones.

        Args:
            addition: has the batch.
            small: the queue of small episodes from then on; None for the current one.
            new: its chunks, as far as they are not known yet.
        """
        self._start_file_if_needed(addition)
        if not addition.is_small:
            self._commit()
        waiting = self._queued.state
        small = waiting.small if small is None else small
        batches, nbytes = (*waiting.batches, addition.batch), waiting.nbytes + addition.nbytes
        if addition.is_small:
            self._queued.replace(_Waiting(small, batches, nbytes, new))
        else:
            self._write(addition.batch, _Waiting(small, last=new))
        if new is not None:
            self._note_added()
        if addition.is_small and nbytes >= COMMIT_BYTES:
            self._commit()

    def _commit(self) -> None:
        """Write all queued record batches to the file as one batch. If that fails, they stay queued."""
        small, batches, _, last = self._queued.state
        if not batches:
            return
        if len(batches) == 1:
            self._write(batches[0], _Waiting(small, last=last))
        else:
            joined = pyarrow().Table.from_batches(batches, self._kind[1]).combine_chunks()
            self._write(joined.to_batches()[0], _Waiting(small, last=last))

    def _write(self, batch: pa.RecordBatch, after: _Waiting) -> None:
        """Write a record batch to the current shard, or to a new shard if there is none. A full shard is finished.

        If an error occurs, nothing more is written to the shard, and the next batch starts another.

        Args:
            batch: to be written.
            after: the queue once the file has the batch.
        """
        self._check_file()
        if self._shard is None:
            self._check_directory()
            if self._manifest is None:
                self._manifest = Manifest(writer_name(self.path), data_set=self._header.id)
            name = f"{self._manifest.writer}-{self._num_shards:05d}"
            self._num_shards += 1
            self._shard = ShardWriter(self.path, name, self._kind[1], data_set=self._header.id)
        shard, number = self._shard, self._shard.num_batches

        def is_written() -> bool:
            """Return True if the file has the batch after an interrupt. The next batch starts another file."""
            shard.recount()
            self._shard = None
            self._record_in_manifest(shard, is_open=False)
            return shard.num_batches > number

        self._queued.hand_on(after, lambda: shard.write(batch), is_written)
        if number == 0:
            self._record_in_manifest(shard, is_open=True)
        if shard.nbytes >= self._shard_bytes:
            self._seal()

    def _check_file(self) -> None:
        """Raise `UnreadableData` if the current Arrow file is not there any more. The next write begins a new file."""
        if self._shard is not None and not self._shard.path.exists():
            self._seal()

    def _check_directory(self) -> None:
        """Raise `UnreadableData` if the directory was moved, removed or replaced since this writer was created."""
        header = read_header(self.path)
        if header is None or header.id != self._header.id:
            raise UnreadableData(
                f"{self.path} is not the data set that this writer wrote to: it was moved, removed or replaced; "
                "episodes that were flushed are in the moved directory"
            )

    def _seal(self) -> None:
        """Finish the current Arrow file. If that fails, the file stays readable as an unfinished file."""
        shard, self._shard = self._shard, None
        if shard is not None:
            try:
                shard.seal()
            finally:
                self._record_in_manifest(shard, is_open=False)

    def _record_in_manifest(self, shard: ShardWriter, *, is_open: bool, fsync: bool = False) -> None:
        """Record in the manifest whether an Arrow file is open, and its number of episodes.
        If that fails, `close` tries again."""
        try:
            if self._manifest.is_damaged:
                self._check_directory()
            self._manifest.record(self.path, shard.name, is_open=is_open, episodes=shard.num_episodes, fsync=fsync)
            self._untold = None
        except OSError:
            self._untold = shard


class _KindWriters:
    """Writers of the data sets `kinds/0`, `kinds/1`, ..., which are created when a new kind of agent is added.

    The kind of a pack is the first number whose data set it fits into. Several processes agree on the numbers, since
    the header of a data set is created by one of them.

    Args:
        path: directory of the data set of games.
        make: function from a directory to its writer.
    """

    def __init__(self, path: Path, make: Callable[[Path], EpisodeWriter]) -> None:
        self._path, self._make = path, make
        self._writers: list[EpisodeWriter] = []
        self._left: list[tuple[int, _Addition]] = []  # of the current call of `carry_out`, or of an interrupted one

    def plan(self, packs: Sequence[EpisodePack]) -> list[tuple[int, _Addition]]:
        """Prepare the addition of a pack for each kind, without any change to the directory.

        Raises:
            ChunkMismatch, WrongType: as `EpisodeWriter.add`.
        """
        self.finish()
        plan: list[tuple[int, _Addition]] = []
        for pack in packs:
            kind = self._kind_of(pack, {kind for kind, _ in plan})
            plan.append((kind, self._writers[kind]._planned(pack)))
        return plan

    def _kind_of(self, pack: EpisodePack, taken: Collection[int] = ()) -> int:
        """Return the first kind that the pack fits into, but none of `taken` that has no header yet."""
        kind = 0
        while True:
            if kind == len(self._writers):
                self._writers.append(self._make(self._path / KINDS / str(kind)))
            writer = self._writers[kind]
            if writer._fits(pack) and (writer._is_there or kind not in taken):
                return kind
            kind += 1

    def carry_out(self, packs: Sequence[EpisodePack], plan: list[tuple[int, _Addition]]) -> None:
        """Add packs with the result of `plan`. New kinds get a directory."""
        self._left = [self._with_header(pack, *part) for pack, part in zip(packs, plan, strict=True)]
        self.finish()

    def finish(self) -> None:
        """Add what an interrupted call of `carry_out` left, so that no game lacks an agent."""
        while self._left:
            kind, addition = self._left[0]
            self._writers[kind]._carry_out(addition)
            self._left = self._left[1:]

    def _with_header(self, pack: EpisodePack, kind: int, addition: _Addition) -> tuple[int, _Addition]:
        """Write the header of a kind, and return the addition. If the pack fits into a kind that was begun after the
        call of `plan`, or another process has begun another kind with this number, return a new addition.
        """
        while True:
            if not self._writers[kind]._is_there:
                first = self._kind_of(pack)
                if first != kind:
                    kind, addition = first, self._writers[first]._planned(pack)
            try:
                self._writers[kind]._put_header(addition.header)
                return kind, addition
            except (InvalidArgument, TrackMismatch):
                self._writers[kind] = self._make(self._path / KINDS / str(kind))
                kind = self._kind_of(pack)
                addition = self._writers[kind]._planned(pack)

    def flush(self, *, fsync: bool) -> None:
        """Write all queued episodes to disk."""
        self.finish()
        for writer in self._writers:
            writer.flush(fsync=fsync)

    def close(self) -> None:
        """Write all queued episodes, and close the writers. A kind without a header has no episodes."""
        self.finish()
        for writer in self._writers:
            if writer._is_there:
                writer.close()

    @property
    def nbytes(self) -> int:
        """Number of queued bytes."""
        states = [writer._queued.state for writer in self._writers]
        return sum(state.nbytes + state.small.nbytes for state in states)


class _Kinds(list[EpisodePack]):
    """Packs of the agents of multi-agent episodes, one for each kind of agent."""


def _without_steps(pack: EpisodePack, header: Header) -> EpisodePack:
    """Return a pack of episodes without steps, to which empty arrays of actions, rewards
    and extra outputs are added."""
    empty = {path: field.empty() for path, field in header.tracks.items() if not is_observed(path)}
    columns = assemble(header.structure, pack.tracks | empty)
    return pack.replace(**{name: columns[name] for name in ("actions", "rewards", "extra_model_outputs")})
