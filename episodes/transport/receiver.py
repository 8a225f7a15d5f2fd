"""`EpisodeReceiver`: takes episodes from any number of senders, and gives weights back to them."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from episodes.errors import (
    EpisodeStateError,
    InvalidArgument,
    TrackMismatch,
    TransportTimeout,
    UnreadableData,
)
from episodes.facts.policy_versions import UNKNOWN, checked_version
from episodes.multi_agent import MultiAgentEpisode, unpack_agents
from episodes.pack import EpisodePack
from episodes.storage.track_schema import Fields, check_same
from episodes.tracks.validation import checked_count, checked_place
from episodes.transport import keys as curve
from episodes.transport.connections import PART_BYTES, Connection, ConnectionWatch
from episodes.transport.journal import Journal
from episodes.transport.messages import SIZE, Head, Kind, read_head
from episodes.transport.parts import Buffer
from episodes.transport.path_locks import lock_of_path
from episodes.transport.peers import Arrived, Incoming, Peer, Peers
from episodes.transport.sockets import MOST_BYTES, Endpoint, checked_address, deadline_of
from episodes.transport.weights import encoded_weights
from episodes.transport.wire import DAMAGES, MOST_SPACE_ITEMS, PackLayout, decoded, fields_wanted, id_of, layouts_of

Received = EpisodePack | list[MultiAgentEpisode]
_new: Any = tuple.__new__  # half the price of the class call

_MOST_STRANGERS = 4096
_MOST_AT_ALL = 1 << 30  # what ZeroMQ takes
_MOST_SCHEMAS = 1024
_MOST_SCHEMA_BYTES = 1 << 20
_MOST_ITEMS = MOST_SPACE_ITEMS  # of the spaces of all schemas together
_MOST_WORDS = 1000  # letters, on why one is refused
_MOST_SENT = 1 << 62  # messages of a sender
_ACKNOWLEDGE = 16  # messages at once, or whatever there is when nothing else comes, or after some time
_OWING_S = 0.02
_MOST_AHEAD = 256
_MOST_CONNECTIONS = 4096
_NOBLOCK = 1  # ZeroMQ's flag
_SLACK = 1 << 20  # bytes in the kernel and of small messages, in addition to the limit of a connection
_BIND_S = 5.0  # the port of a receiver that was killed is free again soon


@dataclass(frozen=True, slots=True)
class ReceiverStats:
    """What came so far."""

    received: int = 0  # messages that were given out
    episodes: int = 0
    steps: int = 0
    bytes: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # messages and handshakes that were not let in, by reason
    duplicates: int = 0  # messages that came once more, and were not given out again
    lost: int = 0  # messages that cannot come any more, or that were in hand when a process with a journal died
    senders: int = 0  # known now
    lag: float | None = None  # seconds from `send` to `recv` of the newest message, by both clocks
    age: int | None = None  # the newest message's oldest policy version: how many were published since


class EpisodeReceiver(Endpoint):
    """Receives what `EpisodeSender`s send: whole, in order for each sender.

    A message is *taken* when `recv` returns it. It is acknowledged at once, or with others while more of them wait
    here, and a sender sends again what was not acknowledged when its connection breaks. So when the receiver's process
    is killed, nothing is lost but what its user had in hand, and up to 16 messages of each sender come twice. With
    `journal=`, a file on the same machine that the next receiver is given too, none comes twice, and `stats.lost`
    counts what was in hand. No journal makes anything of what the user's code did with it: that is killed too.

    There is no thread: messages wait in the socket, and at the senders, until `recv` is called. Any number of threads
    may call it. Nothing is ever unpickled. Who sends what is not a pack, or anything without a key where there are
    keys, is refused and counted. Arrays are read-only, and views of what came.

    Args:
        address: where to listen; this machine alone, at a port that is free, unless another one is named.
        keys: a receiver's folder of `make_keys`: only senders whose keys are there are let in. Give one wherever the
            address can be reached by others.
        journal: a path, see above.
        like: a pack, or several; messages of packs with other tracks are refused, and their senders told so.
        max_message_bytes: the most that one array may have.
        most_waiting: messages of each sender that the socket holds beside those that are given out.

    Raises:
        MissingExtra: without pyzmq.
        InvalidArgument: an address that cannot be listened at, or a journal that another receiver uses.
        UnreadableData: no keys in the folder; a journal that is none.
    """

    def __init__(
        self,
        address: str = "tcp://127.0.0.1:*",
        *,
        keys: str | os.PathLike[str] | None = None,
        journal: str | os.PathLike[str] | None = None,
        like: EpisodePack | list[EpisodePack] | None = None,
        max_message_bytes: int = MOST_BYTES,
        most_waiting: int = 64,
    ) -> None:
        keys, journal = checked_place("keys", keys), checked_place("journal", journal)
        address = checked_address(address)
        most = checked_count("max_message_bytes", max_message_bytes)
        most_waiting = checked_count("most_waiting", most_waiting)
        self._like = fields_wanted(like)
        super().__init__()
        self._peers = Peers()
        self._most = most
        self._asked: OrderedDict[bytes, None] = OrderedDict()  # addresses of strangers, asked who they are
        self._watch = ConnectionWatch()
        self._connections: OrderedDict[bytes, Connection] = OrderedDict()  # by address
        self._layouts: OrderedDict[int, tuple[PackLayout, ...] | str] = OrderedDict()  # or why a schema is refused
        self._refused: Counter[str] = Counter()
        self._counts = Counter[str]()
        self._last: Head | None = None  # of the newest message
        self._lag: float | None = None
        self._in_hand: dict[int, list[bytes]] = {}  # whose messages a thread has
        self._waiting: deque[Arrived] = deque()  # messages that came, and were not taken
        self._taken: deque[Received] = deque()  # messages that were taken, until a call returns them
        self._owing: dict[bytes, Peer] = {}  # senders of what was taken, and not acknowledged
        self._owing_since = 0.0  # when the first of them was taken
        self._batch: list[Received] = []  # of a sample that is not complete
        self._num_steps = 0  # in it
        self._published: tuple[int, int, list[Buffer]] | None = None  # number, version, parts
        self._journal: Journal | None = None
        try:
            if journal is not None:
                self._journal = Journal(journal)
                self._sockets.closers.append(self._journal.close)
                self._counts["lost"] = self._journal.num_in_hand
            self._listen(address, keys, most, most_waiting)
        except BaseException:
            self.release()
            raise

    def _listen(self, address: str, keys: Any, max_message_bytes: int, most_waiting: int) -> None:
        zmq = self.zmq
        self._sockets.closers += lock_of_path(address)
        socket = self.open(zmq.ROUTER, max_message_bytes)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a peer that is gone is an error, and not silence
        socket.setsockopt(zmq.RCVHWM, min(most_waiting, _MOST_AT_ALL))
        if keys is not None:
            pair = curve.own_pair(keys)
            self._sockets.closers.append(curve.start_guard(self._sockets.context, keys).stop)
            socket.setsockopt_string(zmq.ZAP_DOMAIN, curve.DOMAIN)
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without the guard, no sender is let in
            socket.curve_server = True
            socket.curve_publickey, socket.curve_secretkey = pair
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_MONITOR_STOPPED
        events |= zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        monitor = self.monitor(events | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
        join = self._watch.start(zmq, monitor, max_message_bytes + max_message_bytes // 8 + _SLACK)
        self._sockets.closers.append(join)
        self._sockets.monitor = None  # the thread closes it
        self.poll_at(socket)
        deadline = time.monotonic() + _BIND_S
        while True:
            try:
                socket.bind(address)
                break
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE or time.monotonic() > deadline:
                    raise InvalidArgument(f"address {address!r}: {error}; give another one") from None
                time.sleep(0.02)
        self.address: str = socket.getsockopt_string(zmq.LAST_ENDPOINT)

    # --- receiving -------------------------------------------------------------------------------------------------

    def recv(self, timeout: float | None = 10.0) -> Received:
        """The next pack; a list of multi-agent episodes where such were sent.

        Raises:
            TransportTimeout: none came for so many seconds.
            EpisodeStateError: the receiver is closed.
        """
        deadline = deadline_of(timeout)
        while True:
            with self.lock(), self.busy(), self.section():
                self._release_returned()
                if not self._taken and (self._waiting or self._next(deadline)):
                    self._open(0)
                if self._taken:
                    return self._taken.popleft()
            if time.monotonic() >= deadline:
                raise TransportTimeout(f"nothing came within {timeout} s from {len(self._peers)} senders")
            self.pause()

    def sample(self, num_steps: int, *, max_age: int, timeout: float | None = 10.0) -> list[Received]:
        """Packs of at least so many steps, none of which is too old to learn from; publish the next version then.

        Nothing is thrown away for its age, which would be the long episodes more often than the short ones: everybody
        keeps step instead. Steps of a sender follow in the order of their versions. So the sample takes more, until the
        next version can be published and nothing that may still come will be older than `max_age`; who is faster
        meanwhile waits, by what `window` lets them send. Workers take newer weights between two samples or in the
        middle of one (`sender.latest_weights`), and send what they have sampled.

        One thread samples at a time. What was taken when the time is over is in the next sample.

        Args:
            num_steps: of all packs together.
            max_age: how many versions a step may be older than what was published last, at least 1.

        Raises:
            TransportTimeout: too few steps came, or one of the senders has sent nothing of newer versions.
            EpisodeStateError: nothing was published, or steps come without versions.
            InvalidArgument: no counts.
        """
        num_steps, max_age = checked_count("num_steps", num_steps), checked_count("max_age", max_age)
        deadline = deadline_of(timeout)
        while True:
            with self.lock(), self.busy(), self.section():
                if self._published is None:
                    raise EpisodeStateError("sample(max_age=...): nothing was published; publish(weights, 0) first")
                if not self._batch:
                    self._release_returned()
                newest = self._published[1]
                behind = self._gather(num_steps, newest - max_age, deadline)
                if behind is None:
                    self._acknowledge_all()  # the caller learns from them now, and its next call comes late
                    batch, self._batch, self._num_steps = self._batch, [], 0
                    return batch
            if time.monotonic() >= deadline:
                raise TransportTimeout(f"after {timeout} s: {behind}")
            self.pause()

    def __iter__(self) -> Iterator[Received]:
        """What comes, one after another, until the receiver is closed."""
        while not self.is_closed:
            try:
                yield self.recv(timeout=None)
            except EpisodeStateError:
                if self.is_closed:
                    return
                raise

    def _gather(self, num_steps: int, oldest: int, deadline: float) -> str | None:
        """Take more for a sample; None when it is complete, else what it lacks. It returns when nothing comes."""
        while True:
            behind = [peer for peer in self._peers.values() if UNKNOWN < peer.floor <= oldest]
            lacks_steps = self._num_steps < num_steps
            aging = next((left.peer for left in self._waiting if left.head.lowest <= oldest), None)
            if not (behind or lacks_steps or aging):
                return None
            place = self._place_of(aging) if lacks_steps or aging else None
            if place is None:
                if not self._next(deadline):
                    self._forget_gone(behind)
                    versions = [peer.floor for peer in behind]
                    return (
                        f"{self._num_steps} of {num_steps} steps came; senders that are behind sent version {versions}"
                    )
                continue
            lowest = self._waiting[place].head.lowest
            if lowest == UNKNOWN:
                raise EpisodeStateError(
                    "steps of no policy version came, so that their age is not known; runner.policy_version = version"
                )
            if lowest < oldest:
                self._refuse("too old")  # of a sender that acted before it had weights from here
                self._take(place)
            else:
                self._open(place, into_batch=True)

    def _place_of(self, peer: Peer | None) -> int | None:
        """Where the first message is that waits here; the first of one sender, where one is given."""
        return next((i for i, arrived in enumerate(self._waiting) if peer is None or arrived.peer is peer), None)

    def _forget_gone(self, peers: list[Peer]) -> None:
        """Wait no longer for senders that are not there any more."""
        for peer in peers:
            if not self._reply(peer.address, Head(Kind.HELLO, 1).packed()):  # which says nothing
                peer.floor = UNKNOWN

    def _next(self, deadline: float) -> bool:
        """Let the next message wait here; False where none comes for a moment, so that others may have the lock."""
        if not self.has_message():
            self._acknowledge_all()
            self.wait(deadline)
        while (message := self._recv_message()) is not None:
            if self._handle_message(message):
                return True
            if time.monotonic() >= deadline:
                break
        return False

    def _peek(self) -> None:
        """See a message of packs, if one waits and none was seen; what else waits is heeded, but no flood of it."""
        for _ in range(_MOST_AHEAD):
            if self._waiting or (message := self._recv_message()) is None:
                return
            self._handle_message(message)

    def _recv_message(self) -> Incoming | None:
        """Receive a message. Return None if there is none: to catch pyzmq's exception is cheaper than to ask before."""
        try:
            address = self.socket.recv(_NOBLOCK)
        except self.zmq.Again:
            return None
        parts: list[Any] = []
        frame = self.recv_frame(parts)
        connection = self._connections.get(address)
        if connection is None or connection.is_closed:
            connection = self._connect(address, frame)
        while frame.more:
            frame = self.recv_frame(parts)
        return _new(Incoming, (address, parts, sum(map(len, parts)), connection))

    def _connect(self, address: bytes, frame: Any) -> Connection:
        """Return the connection that a frame came from, and register it by its address."""
        try:
            connection = self._watch.connections.get(frame.get(self.zmq.SRCFD))
        except self.zmq.ZMQError:  # an empty part has no source
            connection = None
        if connection is None:  # the watching thread has not seen it yet
            return Connection()
        if len(self._connections) >= _MOST_CONNECTIONS:
            gone = [key for key, one in self._connections.items() if one.is_closed]
            for key in gone or [next(iter(self._connections))]:
                del self._connections[key]
        self._connections[address] = connection
        return connection

    def _handle_message(self, message: Incoming) -> bool:
        """Handle a message. Return True if it holds packs, which are queued then."""
        is_queued = self._queue_packs(message)
        if not is_queued:
            message.connection.done += message.nbytes + PART_BYTES * len(message.parts)
        return is_queued

    def _queue_packs(self, message: Incoming) -> bool:
        """Queue a message of packs, and handle one of any other kind. Return True if it was queued."""
        address, parts, *_ = message
        head = read_head(parts[0]) if parts else "no header"
        if isinstance(head, str) or head.num_parts != len(parts):
            self._refuse(head if isinstance(head, str) else "no header")
        elif head.kind == Kind.DATA or head.kind == Kind.MULTI_AGENT:
            return self._in_order(message, head)
        elif head.kind == Kind.HELLO:
            self._meet(address, head)
        elif head.kind == Kind.SCHEMA:
            self._learn(address, head, bytes(parts[0][SIZE:]))
        elif head.kind == Kind.GOT and head.sender in self._peers:
            self._peers[head.sender].is_reading = False
            self._share_weights(self._peers[head.sender])
        else:
            self._refuse("unknown kind")
        return False

    def _refuse(self, reason: str) -> None:
        self._refused[reason] += 1

    def _meet(self, address: bytes, head: Head) -> None:
        """Know a sender, and which message of it comes next."""
        peer = self._peers.get(head.sender)
        if head.number > _MOST_SENT:
            self._refuse("no header")
            return
        if peer is None:
            place = self._journal.place(head.sender) if self._journal else None
            first = place.taken if place else self._peers.place(head.sender, head.number)
            peer = self._peers[head.sender] = Peer(address, first)
            self._put_aside(self._peers.oldest_idle())
        elif head.schema < peer.connection:
            return  # it was on its way when the connection broke that the sender had before
        peer.connection = head.schema
        peer.address, peer.asked, peer.is_reading, peer.weights = address, b"", False, -1
        if head.number > peer.next:  # what lies between was never sent, or given up
            self._counts["lost"] += head.number - peer.next
            peer.next = head.number
        self._asked.pop(address, None)
        self._acknowledge(peer)
        self._share_weights(peer)

    def _put_aside(self, sender: bytes | None) -> None:
        """Keep but the place of a sender, which is told before what was taken."""
        if sender is not None:
            self._acknowledge(self._peers[sender])
            self._owing.pop(sender, None)
            self._peers.archive(sender)

    def _learn(self, address: bytes, head: Head, schema: bytes) -> None:
        """Know a schema, or why it is refused."""
        if head.schema in self._layouts:
            return
        if len(schema) > _MOST_SCHEMA_BYTES or id_of(schema) != head.schema:
            self._refuse("broken schema")
            return
        try:
            layouts = layouts_of(schema)
            self._layouts[head.schema] = self._schema_mismatch(layouts) or layouts
        except UnreadableData as error:
            self._refuse("broken schema")
            self._layouts[head.schema] = str(error)[:_MOST_WORDS]
        while len(self._layouts) > _MOST_SCHEMAS or (len(self._layouts) > 1 and self._num_space_items() > _MOST_ITEMS):
            self._layouts.popitem(last=False)

    def _num_space_items(self) -> int:
        """Return the number of items of the spaces of all known schemas."""
        return sum(
            layout.num_space_items for known in self._layouts.values() if not isinstance(known, str) for layout in known
        )

    def _schema_mismatch(self, layouts: tuple[PackLayout, ...]) -> str:
        """Words on why packs of these layouts are not wanted; none where they are."""
        for layout in layouts if self._like else ():
            misfits = [_difference(wanted, layout.fields) for wanted in self._like]
            if all(misfits):
                return misfits[0]
        return ""

    def _in_order(self, message: Incoming, head: Head) -> bool:
        """Queue a message of packs, if it is the next one of its sender. Return True if it was queued."""
        address, parts, nbytes, connection = message
        peer = self._peers.get(head.sender)
        if peer is not None and address != peer.address:
            self._ask(address, peer)  # its hello may be the message that an interrupted call has lost
        number = head.number - peer.num_waiting if peer is not None else 0
        if peer is None or head.schema not in self._layouts or (number > peer.next and not peer.has_dropped):
            self._ask(address, peer)
            return False
        if number < peer.next:
            self._counts["duplicates"] += 1
            self._schedule_acknowledgement(head.sender, peer)
            return False
        if peer.has_dropped:
            self._refuse("more than max_message_bytes unacknowledged")
            return False
        if nbytes > self._most:
            self._refuse("larger than max_message_bytes")
            parts, nbytes = [], 0  # taken in its turn without a result, so that it is not sent again
        elif connection.waiting + nbytes > self._most:
            self._refuse("more than max_message_bytes unacknowledged")
            peer.has_dropped = True  # its sender is asked for it when all messages before it are taken
            return False
        self._peers.move_to_end(head.sender)
        if head.highest > peer.floor:
            peer.floor = head.highest
        peer.num_waiting += 1
        connection.waiting += nbytes
        self._waiting.append(_new(Arrived, (peer, head, parts, nbytes, connection)))
        return True

    def _open(self, place: int, *, into_batch: bool = False) -> None:
        """Take the message at this place, and keep what it holds for who asked; nothing where it is refused."""
        peer, head, parts, nbytes, _ = self._waiting[place]
        layouts = self._layouts.get(head.schema, "the receiver forgot this schema for others; send it again")
        if isinstance(layouts, str):
            self._refuse("schema")
            self._reply(peer.address, Head(Kind.REFUSED, 1, schema=head.schema).packed() + layouts.encode())
            self._take(place)
            return
        if not parts:
            self._take(place)
            return
        try:
            packs = decoded(layouts, parts, SIZE)
            found = unpack_agents(packs) if head.kind == Kind.MULTI_AGENT else packs[0]
        except DAMAGES:
            self._refuse("broken message")
            self._take(place)
            return
        self._count(head, packs, nbytes - SIZE)
        self._take(place, found, into_batch)

    def _count(self, head: Head, packs: list[EpisodePack], nbytes: int) -> None:
        self._last, self._lag = head, time.time() - head.time
        counts = self._counts
        counts["received"] += 1
        counts["bytes"] += nbytes
        for pack in packs:
            lengths = pack.lengths.tolist()  # most have few episodes
            counts["episodes"] += len(lengths)
            counts["steps"] += sum(lengths)

    # --- who has what ------------------------------------------------------------------------------------------------

    def _take(self, place: int, found: Received | None = None, into_batch: bool = False) -> None:
        """The message at this place is taken from now on; what it holds, if not refused, is in its user's hand."""
        peer, head, parts, nbytes, connection = self._waiting[place]
        steps = _steps_of(found) if into_batch and found is not None else 0
        del self._waiting[place]
        peer.num_waiting -= 1
        peer.next += 1
        connection.waiting -= nbytes
        connection.done += nbytes + PART_BYTES * len(parts)
        if found is not None:
            self._num_steps += steps
            (self._batch if into_batch else self._taken).append(found)
            peer.in_hand += 1
            self._in_hand.setdefault(threading.get_ident(), []).append(head.sender)
        self._note(head.sender, peer)
        self._schedule_acknowledgement(head.sender, peer)
        self._peek()
        if not self._waiting or time.monotonic() - self._owing_since > _OWING_S:
            self._acknowledge_all()
        elif peer.num_unacknowledged >= _ACKNOWLEDGE:
            self._acknowledge(peer)
        if peer.has_dropped and not peer.num_waiting:
            peer.has_dropped, peer.asked = False, b""
            self._ask(peer.address, peer)

    def _note(self, sender: bytes, peer: Peer) -> None:
        """Write down how far a sender has come."""
        if self._journal is not None:
            self._journal.note(sender, peer.next, peer.next - peer.in_hand)

    def _schedule_acknowledgement(self, sender: bytes, peer: Peer) -> None:
        """A message of the sender is to be acknowledged."""
        if not self._owing:
            self._owing_since = time.monotonic()
        peer.num_unacknowledged += 1
        self._owing[sender] = peer

    def _release_returned(self) -> None:
        """This thread has done with what it was given."""
        senders = self._in_hand.get(threading.get_ident())
        while senders:
            peer = self._peers[senders[-1]]
            peer.in_hand -= 1
            self._note(senders.pop(), peer)

    def _acknowledge(self, peer: Peer) -> None:
        peer.num_unacknowledged = 0
        if peer.next:
            self._reply(peer.address, Head(Kind.TAKEN, 1, number=peer.next - 1).packed())

    def _acknowledge_all(self) -> None:
        for peer in self._owing.values():
            if peer.num_unacknowledged:
                self._acknowledge(peer)
        self._owing.clear()

    def _ask(self, address: bytes, peer: Peer | None) -> None:
        """Ask, once, who somebody is, and for what did not come."""
        if peer is None:
            self._refuse("unknown sender")
            if address in self._asked:
                return
            self._asked[address] = None
            if len(self._asked) > _MOST_STRANGERS:
                self._asked.popitem(last=False)
            peer = Peer(address, 0)
        elif peer.asked == address:
            return
        peer.asked = address
        self._reply(address, Head(Kind.WHO, 1).packed())

    def _reply(self, address: bytes, *parts: Buffer) -> bool:
        """Tell a sender; False where it is gone. One that reads nothing is not waited for."""
        try:
            self.put(address, parts)
        except self.zmq.Again:
            return True
        except self.zmq.ZMQError as error:
            if error.errno != self.zmq.EHOSTUNREACH:
                raise
            return False
        return True

    # --- weights -----------------------------------------------------------------------------------------------------

    def publish(self, weights: Any, version: int) -> None:
        """Give nested arrays to all senders, and to those that come later; only the newest ones matter.

        A sender that has not read the last ones gets the newest when it has. That, as everything, happens in `recv`.

        Raises:
            WrongType: arrays of objects.
            InvalidArgument: a version that is no number, 0 or more, or an array of more than `max_message_bytes`.
        """
        told, parts = checked_version(version), encoded_weights(weights)
        nbytes = SIZE + sum(map(len, parts))
        if told == UNKNOWN or nbytes > self._most:
            why = f"{nbytes} bytes; at most max_message_bytes={self._most}" if told != UNKNOWN else "give a version"
            raise InvalidArgument(f"publish(version={version!r}): {why}")
        with self.lock(), self.busy(), self.section():
            self._peek()  # at who has read the last ones
            number = self._published[0] + 1 if self._published else 0
            self._published = number, told, parts
            for peer in list(self._peers.values()):
                self._share_weights(peer)

    def _share_weights(self, peer: Peer) -> None:
        if self._published is None or peer.is_reading or peer.weights == self._published[0]:
            return
        number, version, parts = self._published
        if peer.floor == UNKNOWN:
            peer.floor = version  # it will act with these
        peer.weights, peer.is_reading = number, True
        head = Head(Kind.WEIGHTS, len(parts), number=number, lowest=version)
        self._reply(peer.address, head.packed() + parts[0], *parts[1:])

    # --- what there is -----------------------------------------------------------------------------------------------

    @property
    def stats(self) -> ReceiverStats:
        """What came so far."""
        last, age = self._last, None
        if last is not None and last.lowest != UNKNOWN and self._published is not None:
            age = self._published[1] - last.lowest
        refused = dict(self._refused)
        if self._watch.num_failed_handshakes:
            refused["handshake"] = self._watch.num_failed_handshakes
        return ReceiverStats(**self._counts, refused=refused, senders=len(self._peers), lag=self._lag, age=age)

    def close(self) -> None:
        """Acknowledge what was taken, and close everything. Twice is once; `for` loops over this receiver end."""
        if self.is_over:
            return
        with self.lock(), self.busy():
            if not self.is_closed:
                with self.section():
                    self._release_returned()
                    self._acknowledge_all()
                    self.socket.linger = 200  # ms, for the acknowledgements
            self.release()

    def mend(self) -> None:
        """Drop all messages that were not taken, and ask all senders to send them again."""
        self.end_parts()
        for arrived in self._waiting:
            arrived.connection.done += arrived.nbytes
        for connection in self._connections.values():
            connection.waiting = 0
        self._waiting.clear()
        for sender, peer in list(self._peers.items()):
            peer.num_waiting, peer.has_dropped, peer.asked = 0, False, b""
            self._note(sender, peer)
            self._ask(peer.address, peer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _steps_of(found: Received) -> int:
    """The steps of a pack; of multi-agent episodes, those of their environments."""
    return found.num_steps if isinstance(found, EpisodePack) else sum(map(len, found))


def _difference(wanted: Fields, given: Fields) -> str:
    """Words on the first track that differs; none where all are the same."""
    try:
        check_same(wanted, given, "receiver")
    except TrackMismatch as error:
        return str(error)
    return ""
