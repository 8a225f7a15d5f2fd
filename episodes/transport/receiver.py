"""Receiver of episodes from any number of senders, which can also send weights to all senders.

The life of a message of packs, from the sender's `send` to its acknowledgement:

    sender                               receiver
    send()     unacknowledged ────────►  ZeroMQ's queue
                     │                   │  recv() or sample() of any thread: `_next`, `_queue_if_next`
                     │                   ▼
                     │                   queued (`_queue`): the next message of its sender, in order
                     │                   │  `_decode_and_take` decodes it, `_take` journals it
                     │                   ▼
                     ◄── TAKEN ───────── taken: `recv` returns it
               removed                   │  the same thread calls again: `_release_returned` journals that
                                         ▼
                                         done

A message that is not acknowledged is sent again after a new connection, or when the receiver sends WHO. The receiver
drops messages with a number that it has taken already.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from episodes.errors import EpisodeStateError, InvalidArgument, TransportTimeout
from episodes.facts.policy_versions import UNKNOWN, checked_version
from episodes.multi_agent import unpack_agents
from episodes.pack import EpisodePack
from episodes.tracks.validation import checked_count, checked_place
from episodes.transport import keys as curve
from episodes.transport.connections import PART_BYTES, Connection, ConnectionWatch
from episodes.transport.journal import Journal
from episodes.transport.known_schemas import KnownSchemas
from episodes.transport.messages import SIZE, Head, MessageKind, read_head
from episodes.transport.parts import Buffer
from episodes.transport.path_locks import lock_of_path
from episodes.transport.peers import Arrived, Incoming, Peer, Peers, Received, Taken, Unacknowledged
from episodes.transport.receiver_stats import ReceivedCounts, ReceiverStats
from episodes.transport.sockets import MOST_BYTES, Endpoint, checked_address, deadline_of
from episodes.transport.taken_messages import TakenMessages, steps_of
from episodes.transport.weights import encoded_weights
from episodes.transport.wire import DAMAGES, decoded

if TYPE_CHECKING:
    import zmq

_MOST_STRANGERS = 4096
_MOST_AT_ALL = 1 << 30  # ZeroMQ's limit
_MOST_SENT = 1 << 62  # messages of a sender
_ACKNOWLEDGE = 16  # messages at once, or all if no other message is queued, or some are late
_MOST_AHEAD = 256
_NOBLOCK = 1  # ZeroMQ's flag
_LINGER_MS = 5000  # limit of the time for the last acknowledgements and weights
_DELIVERY_S = 0.001  # between two looks at whether they have arrived
_UNANSWERED_MS = 30_000  # a sender whose machine does not confirm what was sent to it is gone
_SLACK = 1 << 20  # bytes in the kernel and of small messages, in addition to the limit of a connection
_BIND_S = 5.0  # the system frees the port of a killed receiver a moment later


class EpisodeReceiver(Endpoint):
    """Receiver of episodes from any number of `EpisodeSender`s. The messages of each sender
    arrive in the order of sending.

    A message is acknowledged when `recv` returns it, or with later messages while more are queued. A sender sends
    unacknowledged messages again when its connection breaks. So if the receiver's process is killed, only the messages
    that `recv` had just returned are lost, and up to 16 messages of each sender are received twice. With `journal=`, a
    file on the same machine that the next receiver is given too, no message is received twice, and `stats.lost` counts
    the messages that the killed process had just returned.

    Messages stay in the socket and at the senders until `recv` is called. Any number of threads may call it. If a call
    is interrupted, for example by Ctrl-C, the next call returns the messages that it had taken. Only an interrupt in
    the last instructions of a call loses what the call returns. Nothing is ever unpickled. A message that is not a
    valid pack, and a sender without a key if there are keys, is rejected and counted in `stats.refused`. Arrays are
    read-only views of the received bytes.

    A thread closes TCP connections that make this process hold more than `max_message_bytes`, for example with a
    message that never ends. For `ipc://` addresses the system does not count these bytes.

    Args:
        address: where to listen; by default at a free port of 127.0.0.1, which only this machine reaches.
        keys: a receiver's folder of `make_keys`: only senders with keys from it are admitted. Needed wherever others
            can reach the address.
        journal: path of the journal, see above.
        like: a pack, or several; packs with other tracks are rejected, and their senders raise `TrackMismatch`.
        max_message_bytes: limit of the bytes of one message, and of all queued messages of one connection.
        max_queued_messages: limit of the messages of one connection in ZeroMQ's queue.

    Raises:
        MissingExtra: pyzmq is not installed.
        InvalidArgument: the address cannot be used, or another receiver uses the address or the journal.
        UnreadableData: the folder has no keys or an invalid one, or the journal is damaged.
        WrongType: an argument has another type.

    >>> with EpisodeReceiver() as receiver:
    ...     receiver.address.startswith("tcp://127.0.0.1:")
    True
    """

    def __init__(
        self,
        address: str = "tcp://127.0.0.1:*",
        *,
        keys: str | os.PathLike[str] | None = None,
        journal: str | os.PathLike[str] | None = None,
        like: EpisodePack | list[EpisodePack] | None = None,
        max_message_bytes: int = MOST_BYTES,
        max_queued_messages: int = 64,
    ) -> None:
        keys, journal = checked_place("keys", keys), checked_place("journal", journal)
        address = checked_address(address)
        limit = checked_count("max_message_bytes", max_message_bytes)
        max_queued_messages = checked_count("max_queued_messages", max_queued_messages)
        schemas = KnownSchemas(like)
        super().__init__()
        self._peers = Peers()
        self._most = limit
        self._requested: OrderedDict[bytes, None] = OrderedDict()  # addresses of unknown senders that were sent WHO
        self._watch = ConnectionWatch()
        self._schemas, self._counts, self._taken = schemas, ReceivedCounts(), TakenMessages()
        self._queue: deque[Arrived] = deque()  # messages that came, and were not taken
        self._unacknowledged = Unacknowledged()
        self._published: tuple[int, int, list[Buffer]] | None = None  # number, version, parts
        self._journal: Journal | None = None
        try:
            if journal is not None:
                self._journal = Journal(journal)
                self._sockets.closers.append(self._journal.close)
                self._counts.num_lost = self._journal.num_in_use
            self._listen(address, keys, limit, max_queued_messages)
        except BaseException:
            self.release()
            raise

    def _listen(
        self, address: str, keys: str | os.PathLike[str] | None, max_message_bytes: int, max_queued_messages: int
    ) -> None:
        """Bind the socket, and start the threads that check keys and watch connections. `address` becomes the bound
        address.

        Raises:
            InvalidArgument: the address is invalid, or still in use after some retries.
        """
        zmq = self.zmq
        self._sockets.closers += lock_of_path(address)
        socket = self.open(zmq.ROUTER, max_message_bytes)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a peer that is gone is an error, and not silence
        socket.setsockopt(zmq.TCP_MAXRT, _UNANSWERED_MS)
        socket.setsockopt(zmq.RCVHWM, min(max_queued_messages, _MOST_AT_ALL))
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
        self.set_polled(socket)
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
        """Wait for the next message, and return its content: a pack of episodes, or a list of multi-agent episodes.

        Args:
            timeout: seconds to wait; None waits without a limit, 0 returns only what has arrived.

        Raises:
            TransportTimeout: nothing arrived in time.
            EpisodeStateError: the receiver is closed.
            InvalidArgument: `timeout` is not a number.
        """
        deadline = deadline_of(timeout)
        while True:
            with self.lock(), self.busy(), self.section():
                self._release_returned()
                taken = self._taken
                if not taken.waiting and (self._queue or self._next(deadline)):
                    self._decode_and_take(0)
                if taken.waiting:
                    return taken.return_first()
            if time.monotonic() >= deadline:
                raise TransportTimeout(
                    f"nothing came within {timeout} s from {len(self._peers)} senders; small episodes wait in their "
                    "queues until flush() or a later call of each sender"
                )
            self.pause()

    def sample(self, num_steps: int, *, max_age: int, timeout: float | None = 10.0) -> list[Received]:
        """Wait for packs with at least `num_steps` steps in total, and return these packs. Each step's policy is at
        most `max_age` versions older than the newest published version.

        No data is dropped for its age, because that would drop long episodes more often than short ones. Instead, the
        call takes messages until no step that any sender may still send will be older than `max_age` after the next
        version is published. It waits for slow senders, and fast senders block when their `window` is full. The
        versions of a sender's steps only increase, so the newest version that it has sent is its promise. Senders read
        newer weights with `latest_weights` between two samples, or in the middle of one, and send what they have
        sampled.

        One thread may sample at a time. Packs that were taken before a timeout are part of the next sample.

        Args:
            num_steps: steps of all packs together.
            max_age: how many versions a step may be older than the newest published version, at least 1.
            timeout: seconds to wait; None waits without a limit.

        Returns:
            Packs, or lists of multi-agent episodes, in the order in which they were taken.

        Raises:
            TransportTimeout: too few steps arrived, or a sender has not sent newer versions.
            EpisodeStateError: nothing was published yet, or received steps have no policy version.
            InvalidArgument: `num_steps` or `max_age` is not a positive int.
        """
        num_steps, max_age = checked_count("num_steps", num_steps), checked_count("max_age", max_age)
        deadline = deadline_of(timeout)
        while True:
            with self.lock(), self.busy(), self.section():
                if self._published is None:
                    raise EpisodeStateError("sample(max_age=...): nothing was published; publish(weights, 0) first")
                self._release_returned()
                newest = self._published[1]
                missing = self._collect(num_steps, newest - max_age, deadline)
                if missing is None:
                    self._acknowledge_all()  # the caller learns from them now, and its next call comes late
                    return self._taken.return_batch()
            if time.monotonic() >= deadline:
                raise TransportTimeout(f"after {timeout} s: {missing}")
            self.pause()

    def __iter__(self) -> Iterator[Received]:
        """Yield the received packs (or lists of multi-agent episodes) until the receiver is closed."""
        while not self.is_closed:
            try:
                yield self.recv(timeout=None)
            except EpisodeStateError:
                if self.is_closed:
                    return
                raise

    def _collect(self, num_steps: int, oldest: int, deadline: float) -> str | None:
        """Decode messages until `sample` has enough steps. If no further message arrives,
        return a text on what is missing, else None.

        Args:
            oldest: version that is too old after the next version was published.

        Raises:
            EpisodeStateError: steps have no policy version.
        """
        while True:
            late = [peer for peer in self._peers.values() if UNKNOWN < peer.lowest_version <= oldest]
            lacks_steps = self._taken.num_steps < num_steps
            aging = next((left.peer for left in self._queue if left.head.lowest <= oldest), None)
            if not (late or lacks_steps or aging):
                return None
            index = self._index_of(aging) if lacks_steps or aging else None
            if index is None:
                if not self._next(deadline):
                    self._forget_gone(late)
                    versions = [peer.lowest_version for peer in late]
                    steps = f"{self._taken.num_steps} of {num_steps} steps"
                    return f"{steps} came; senders that are behind sent version {versions}"
                continue
            lowest = self._queue[index].head.lowest
            if lowest == UNKNOWN:
                raise EpisodeStateError(
                    "received steps without a policy version; set runner.policy_version in the worker before it samples"
                )
            if lowest < oldest:
                self._counts.refuse("too old")  # sampled before the sender had any published weights
                self._take(index)
            else:
                self._decode_and_take(index, into_batch=True)

    def _index_of(self, peer: Peer | None) -> int | None:
        """Return the queue index of the oldest message from `peer` (None: from any sender),
        or None if no such message is queued."""
        return next((i for i, arrived in enumerate(self._queue) if peer is None or arrived.peer is peer), None)

    def _forget_gone(self, peers: list[Peer]) -> None:
        """Stop waiting, in `sample`, for newer policy versions from those senders in `peers` that have disconnected."""
        for peer in peers:
            if not self._reply(peer.address, Head(MessageKind.HELLO, 1).packed()):  # senders ignore it
                peer.lowest_version = UNKNOWN

    def _next(self, deadline: float) -> bool:
        """Wait up to 0.1 s for messages, and process them until one is queued. Return True if one was."""
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
        """Process messages that have already arrived, without waiting, until one is queued or 256 were read."""
        for _ in range(_MOST_AHEAD):
            if self._queue or (message := self._recv_message()) is None:
                return
            self._handle_message(message)

    def _recv_message(self) -> Incoming | None:
        """Read the next message from the socket without waiting, or return None if no message has arrived.

        Catching pyzmq's exception is cheaper than polling.
        """
        try:
            address = self.socket.recv(_NOBLOCK)
        except self.zmq.Again:
            return None
        parts: list[Any] = []
        frame = self.recv_frame(parts)
        connection = self._watch.by_address.get(address)
        if connection is None or connection.is_closed:
            connection = self._connection_of(address, frame)
        while frame.more:
            frame = self.recv_frame(parts)
        return Incoming(address, parts, sum(map(len, parts)), connection)

    def _connection_of(self, address: bytes, frame: zmq.Frame) -> Connection:
        """Return the TCP connection through which a message part (ZeroMQ frame) came, and store it as the connection of
        the sender's address."""
        try:
            descriptor = frame.get(self.zmq.SRCFD)
        except self.zmq.ZMQError:  # an empty part has no source
            return Connection()
        return self._watch.connection_of(address, descriptor)

    def _handle_message(self, message: Incoming) -> bool:
        """Process one message, and add its bytes to the connection's count unless it is queued for decoding.
        Return True if it is queued."""
        is_queued = self._queue_packs(message)
        if not is_queued:
            message.count_bytes()
        return is_queued

    def _queue_packs(self, message: Incoming) -> bool:
        """Process one message according to its kind. Return True if it contains packs of episodes
        and was queued for decoding."""
        address, parts, *_ = message
        head = read_head(parts[0]) if parts else "no header"
        if isinstance(head, str) or head.num_parts != len(parts):
            self._counts.refuse(head if isinstance(head, str) else "no header")
        elif head.kind == MessageKind.DATA or head.kind == MessageKind.MULTI_AGENT:
            return self._queue_if_next(message, head)
        elif head.kind == MessageKind.HELLO:
            self._register_sender(address, head)
        elif head.kind == MessageKind.SCHEMA:
            if head.schema not in self._schemas and not self._schemas.register(head.schema, bytes(parts[0][SIZE:])):
                self._counts.refuse("broken schema")
        elif head.kind == MessageKind.GOT and head.sender in self._peers:
            self._peers[head.sender].has_unconfirmed_weights = False
            self._share_weights(self._peers[head.sender])
        else:
            self._counts.refuse("unknown kind")
        return False

    def _register_sender(self, address: bytes, head: Head) -> None:
        """Process the HELLO message of a sender: register the sender, acknowledge the messages taken from
        it, and send it the weights."""
        peer = self._peers.get(head.sender)
        if head.number > _MOST_SENT:
            self._counts.refuse("no header")
            return
        if peer is None:
            progress = self._journal.progress_of(head.sender) if self._journal else None
            first = progress.num_taken if progress else self._peers.next_number(head.sender, head.number)
            peer = self._peers[head.sender] = Peer(address, first)
            self._archive(self._peers.oldest_idle())
        elif head.schema < peer.connection:
            return  # sent on an earlier connection
        peer.connection = head.schema
        peer.address, peer.who_address, peer.has_unconfirmed_weights, peer.weights = address, b"", False, -1
        if head.number > peer.next:  # the messages between were never sent, or given up
            num_lost, peer.next = head.number - peer.next, head.number
            self._counts.num_lost += num_lost
        self._requested.pop(address, None)
        self._acknowledge(peer)
        self._share_weights(peer)

    def _archive(self, sender: bytes | None) -> None:
        """Acknowledge all messages of an idle sender, and discard its state except for the
        number of its next message."""
        if sender is not None:
            self._acknowledge(self._peers[sender])
            self._unacknowledged.pop(sender, None)
            self._peers.archive(sender)

    def _queue_if_next(self, message: Incoming, head: Head) -> bool:
        """Queue a message with packs if it is the next one in its sender's order, and return True if it was queued."""
        address, parts, nbytes, connection = message
        peer = self._peers.get(head.sender)
        if peer is not None and address != peer.address:
            self._request_hello(address, peer)  # its hello may be the message that an interrupted call has lost
        number = head.number - peer.num_waiting if peer is not None else 0
        if peer is None or head.schema not in self._schemas or (number > peer.next and not peer.has_dropped):
            self._request_hello(address, peer)
            return False
        if number < peer.next:
            self._counts.num_duplicates += 1
            self._unacknowledged.schedule(head.sender, peer)
            return False
        if peer.has_dropped:
            self._counts.refuse("more than max_message_bytes unacknowledged")
            return False
        if nbytes > self._most:
            self._counts.refuse("larger than max_message_bytes")
            parts, nbytes = [], 0  # taken in its turn without a result, so that it is not sent again
        elif connection.waiting + nbytes > self._most:
            self._counts.refuse("more than max_message_bytes unacknowledged")
            peer.has_dropped = True  # its sender is asked for it when all messages before it are taken
            return False
        self._peers.move_to_end(head.sender)
        if head.highest > peer.lowest_version:
            peer.lowest_version = head.highest
        peer.num_waiting += 1
        connection.waiting += nbytes
        self._queue.append(Arrived(peer, head, parts, nbytes, connection))
        return True

    def _decode_and_take(self, index: int, *, into_batch: bool = False) -> None:
        """Decode the queued message at `index`, and return its packs from the current call of the user, unless the
        message is rejected.

        With `into_batch`, the packs become part of the batch that `sample` collects.
        """
        peer, head, parts, nbytes, _ = self._queue[index]
        layouts = self._schemas.get(head.schema, "the receiver dropped this schema for newer ones; send it again")
        if isinstance(layouts, str):
            self._counts.refuse("schema")
            self._reply(peer.address, Head(MessageKind.REFUSED, 1, schema=head.schema).packed() + layouts.encode())
            self._take(index)
            return
        if not parts:
            self._take(index)
            return
        try:
            packs = decoded(layouts, parts, SIZE)
            result = unpack_agents(packs) if head.kind == MessageKind.MULTI_AGENT else packs[0]
        except DAMAGES:
            self._counts.refuse("broken message")
            self._take(index)
            return
        self._counts.add(head, packs, nbytes - SIZE)
        self._take(index, result, into_batch)

    # --- taking and acknowledging --------------------------------------------------------------------------------

    def _take(self, index: int, result: Received | None = None, into_batch: bool = False) -> None:
        """Remove the message at `index` from the queue, count it, and schedule its acknowledgement to the sender.

        Args:
            result: the result for the caller, or None if the message was rejected.
            into_batch: keep the result for `sample`, not for `recv`.
        """
        peer, head, parts, nbytes, connection = self._queue[index]
        steps = steps_of(result) if into_batch and result is not None else 0
        number = peer.next
        connection.done += nbytes + PART_BYTES * len(parts)  # a number that is too large is corrected
        del self._queue[index]
        if result is not None:
            taken, message = self._taken, Taken(peer, head.sender, number, result)
            (taken.batch if into_batch else taken.waiting).append(message)  # from here on it is taken: see `mend`
            taken.num_steps += steps
            peer.num_in_use += 1
        peer.next = number + 1
        peer.num_waiting -= 1
        connection.waiting -= nbytes
        self._journal_progress(head.sender, peer)
        self._unacknowledged.schedule(head.sender, peer)
        self._peek()
        if not self._queue or self._unacknowledged.is_late():
            self._acknowledge_all()
        elif peer.num_unacknowledged >= _ACKNOWLEDGE:
            self._acknowledge(peer)
        if peer.has_dropped and not peer.num_waiting:
            peer.has_dropped, peer.who_address = False, b""
            self._request_hello(peer.address, peer)

    def settle(self) -> None:
        """Remove the messages that the last call has returned."""
        self._taken.settle()

    def _journal_progress(self, sender: bytes, peer: Peer) -> None:
        """Write the message counts of a sender to the receiver's journal file, if a journal is used."""
        if self._journal is not None:
            self._journal.note(sender, peer.next, peer.next - peer.num_in_use)

    def _release_returned(self) -> None:
        """Count the messages that this thread's previous call returned as finished, and write this to the journal."""
        messages = self._taken.in_use.get(threading.get_ident())
        while messages:
            peer, sender, *_ = messages[-1]
            peer.num_in_use -= 1
            messages.pop()
            self._journal_progress(sender, peer)

    def _acknowledge(self, peer: Peer) -> None:
        peer.num_unacknowledged = 0
        if peer.next:
            self._reply(peer.address, Head(MessageKind.TAKEN, 1, number=peer.next - 1).packed())

    def _acknowledge_all(self) -> None:
        for peer in self._unacknowledged.values():
            if peer.num_unacknowledged:
                self._acknowledge(peer)
        self._unacknowledged.clear()

    def _request_hello(self, address: bytes, peer: Peer | None) -> None:
        """Ask the sender at `address`, only once, to introduce itself and to send its unacknowledged messages again."""
        if peer is None:
            self._counts.refuse("unknown sender")
            if address in self._requested:
                return
            self._requested[address] = None
            if len(self._requested) > _MOST_STRANGERS:
                self._requested.popitem(last=False)
            peer = Peer(address, 0)
        elif peer.who_address == address:
            return
        peer.who_address = address
        self._reply(address, Head(MessageKind.WHO, 1).packed())

    def _reply(self, address: bytes, *parts: Buffer) -> bool:
        """Send a message to the sender at `address`. Return False if that sender is not connected.

        The message is dropped if the sender reads nothing.
        """
        try:
            self.put(address, parts)
        except self.zmq.Again:
            return True
        except self.zmq.ZMQError as error:
            if error.errno != self.zmq.EHOSTUNREACH:
                raise
            return False
        if (connection := self._watch.by_address.get(address)) is not None:
            connection.sent += sum(map(len, parts))
        return True

    # --- weights -----------------------------------------------------------------------------------------------------

    def publish(self, weights: object, version: int) -> None:
        """Send network weights to all current senders and to senders that connect later.
        Only the newest weights are sent.

        A sender that has not read its previous weights yet gets the newest after reading them, during `recv`.

        Args:
            weights: nested dicts and tuples of arrays, CPU tensors, or lists of numbers, which become arrays. They are
                copied.
            version: their policy version, at least 0.

        Raises:
            WrongType: an array has objects.
            ShapeMismatch: the weights are nested too deeply, or a list has items of several shapes.
            InvalidArgument: `version` is not an int of at least 0, or the weights have more than `max_message_bytes`.
            EpisodeStateError: the receiver is closed.
        """
        checked, parts = checked_version(version), encoded_weights(weights)
        nbytes = SIZE + sum(map(len, parts))
        if checked == UNKNOWN:
            raise InvalidArgument(f"publish(version={version!r}): give a version")
        if nbytes > self._most:
            raise InvalidArgument(
                f"publish(version={version!r}): {nbytes} bytes; at most max_message_bytes={self._most}"
            )
        with self.lock(), self.busy(), self.section():
            self._peek()  # senders confirm the previous weights
            number = self._published[0] + 1 if self._published else 0
            self._published = number, checked, parts
            for peer in list(self._peers.values()):
                self._share_weights(peer)

    def _share_weights(self, peer: Peer) -> None:
        """Send the published weights to a sender, unless it has them, or has not confirmed the weights that were sent
        before.
        """
        if self._published is None or peer.has_unconfirmed_weights or peer.weights == self._published[0]:
            return
        number, version, parts = self._published
        if peer.lowest_version == UNKNOWN:
            peer.lowest_version = version  # the sender acts with these weights next
        peer.weights, peer.has_unconfirmed_weights = number, True
        head = Head(MessageKind.WEIGHTS, len(parts), number=number, lowest=version)
        self._reply(peer.address, head.packed() + parts[0], *parts[1:])

    # --- statistics and closing ----------------------------------------------------------------------------------

    @property
    def stats(self) -> ReceiverStats:
        """Statistics of the messages since the receiver was created. They remain available after `close`."""
        return self._counts.stats(
            num_senders=len(self._peers),
            num_failed_handshakes=self._watch.num_failed_handshakes,
            newest_version=None if self._published is None else self._published[1],
        )

    def close(self) -> None:
        """Acknowledge all taken messages, send the newest weights to the senders that lack them, and close the socket.
        Later calls have no effect.

        Acknowledgements and weights are sent for at most 5 seconds each, which is only needed for senders whose
        machines take nothing. Messages that come meanwhile are not taken: their senders send them to the next receiver.
        Loops over this receiver end.
        """
        if self.is_over:
            return
        with self.lock(), self.busy():
            if not self.is_closed:
                with self.section():
                    self._release_returned()
                    self._acknowledge_all()
                    for peer in self._peers.values():  # also senders that have not read the weights before these
                        peer.has_unconfirmed_weights = False
                        self._share_weights(peer)
                    self._deliver()
                    self.socket.linger = _LINGER_MS
            self.release()

    def _deliver(self) -> None:
        """Wait until the machines of all senders have what was sent to them, and drop what they send meanwhile.

        ZeroMQ reads nothing more from a socket that is closed. The system resets a TCP connection that is closed with
        bytes that nobody has read, and then drops what the other side has not taken from it yet.
        """
        deadline = time.monotonic() + _LINGER_MS / 1000
        connections = list(self._watch.by_address.values())
        while time.monotonic() < deadline and not all(connection.is_delivered() for connection in connections):
            for _ in range(_MOST_AHEAD):
                if (message := self._recv_message()) is None:
                    break
                message.count_bytes()
            self.wait(time.monotonic() + _DELIVERY_S)

    def mend(self) -> None:
        """Recover from an interrupted call: drop queued messages, and ask all senders to send them again.

        A message is taken once it is among the taken ones or in the batch. The counts follow from that.
        """
        self.end_parts()
        self._taken.mend()
        for arrived in self._queue:
            arrived.connection.done += arrived.nbytes
        for connection in self._watch.by_address.values():
            connection.waiting = 0
        self._queue.clear()
        in_use = self._taken.count_by_sender()
        for sender, peer in list(self._peers.items()):
            peer.num_waiting, peer.has_dropped, peer.who_address = 0, False, b""
            peer.num_in_use = in_use[sender]
            self._journal_progress(sender, peer)
            self._request_hello(peer.address, peer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
