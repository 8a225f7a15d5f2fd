"""Sender of episodes, chunks and packs to a receiver in another process or on another machine."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from episodes.errors import InvalidArgument, NotAdmitted, TrackMismatch, TransportTimeout, UnreadableData, WrongType
from episodes.facts.policy_versions import UNKNOWN
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.validation import checked_count, checked_number, checked_place
from episodes.transport import keys as curve
from episodes.transport.messages import SIZE, Head, MessageKind, read_head
from episodes.transport.receiver_link import ReceiverLink
from episodes.transport.send_queue import SendQueue
from episodes.transport.send_window import Outgoing, SendWindow
from episodes.transport.sendable import Sendable, finished, packed
from episodes.transport.sockets import MOST_BYTES, Endpoint, checked_address, deadline_of
from episodes.transport.weights import Weights, decoded_weights
from episodes.transport.wire import Message, Schemas, encoded, encoded_as_one

_CONNECT_S = 5.0  # longest wait of the first message for a connection
_CONNECT_MS = 10_000  # limit of one attempt, so that a lost packet does not delay it by the minutes of TCP
_NEVER_MS = 1 << 29  # ZeroMQ itself does not connect again
_ENCODED = {False: encoded, True: encoded_as_one}


@dataclass(frozen=True, slots=True)
class SenderStats:
    """Statistics of an `EpisodeSender`: counts of messages sent, sent again and acknowledged since it was created.

    Attributes:
        sent: messages; a message is one pack, or several small episodes or packs that are sent together.
        episodes: episodes in these messages.
        bytes: size of these messages.
        taken: messages that the receiver has acknowledged.
        resent: messages that were sent again.
        refused: messages whose schema the receiver rejected.
        connections: connections so far.
    """

    sent: int = 0
    episodes: int = 0
    bytes: int = 0
    taken: int = 0
    resent: int = 0
    refused: int = 0
    connections: int = 0


class EpisodeSender(Endpoint):
    """Sender of episodes and packs to an `EpisodeReceiver`. Messages arrive in order, and are sent again
    until they are acknowledged.

    A pack is one message. Finished episodes that are sent one by one are copied into a queue, which is sent when it has
    `coalesce` bytes or its oldest episode is `max_delay` seconds old, because a message costs as much as a hundred
    small episodes. With `join`, small packs are queued too while other messages are unacknowledged, and arrive as one
    pack. There is no thread: the queue is sent by the next call, or by `flush`.

    All methods may be called from several threads. If `send` is interrupted, for example by Ctrl-C, its episodes are
    sent once or not at all, and earlier ones are sent once: the next call connects again, and sends what was not
    acknowledged. Arrays of a pack are not copied, so their memory must not be changed until the receiver has
    acknowledged the pack.

    Args:
        address: address of the receiver, such as "tcp://127.0.0.1:5555".
        window: limit of unacknowledged messages. `send` blocks while there are that many (back-pressure).
        keys: a sender's folder of `make_keys`: the connection is encrypted, and both sides prove their identity.
        coalesce: bytes of small episodes to send together; 0 sends each by itself.
        join: bytes of small packs to send as one pack; 0 sends each by itself, so that `recv` returns each as it was
            sent. A pack is small if it has at most a quarter of these bytes.
        max_delay: longest time in seconds that a small episode or pack stays in the queue, as long as there are calls.
        max_message_bytes: limit of the bytes of one message, and of all unacknowledged messages. Use the receiver's
            limit.

    Raises:
        MissingExtra: pyzmq is not installed.
        InvalidArgument: the address or a number is invalid.
        WrongType: `address` is not a str, or `keys` is not a path.
        UnreadableData: the folder has no keys or an invalid one.

    >>> from episodes.transport import EpisodeReceiver
    >>> import numpy as np
    >>> pack = EpisodePack(observations=np.zeros(3), actions=np.zeros(2), rewards=np.ones(2), lengths=[2])
    >>> with EpisodeReceiver() as receiver, EpisodeSender(receiver.address) as sender:
    ...     sender.send(pack)
    ...     receiver.recv() == pack
    True
    """

    def __init__(
        self,
        address: str,
        *,
        window: int = 32,
        keys: str | os.PathLike[str] | None = None,
        coalesce: int = 64 * 1024,
        join: int = 0,
        max_delay: float = 0.2,
        max_message_bytes: int = MOST_BYTES,
    ) -> None:
        window, limit = checked_count("window", window), checked_count("max_message_bytes", max_message_bytes)
        coalesce, join = checked_count("coalesce", coalesce, at_least=0), checked_count("join", join, at_least=0)
        max_delay = checked_number("max_delay", max_delay, low=0)
        self.address = checked_address(address)
        self._keys, self._most = checked_place("keys", keys), limit
        super().__init__()
        self._id = os.urandom(8)
        self._unacked, self._link = SendWindow(window, limit), ReceiverLink()
        self._schemas = Schemas()
        self._queue = SendQueue(coalesce, min(join, limit // 4), max_delay, self._schemas)
        self._refusals: dict[int, str] = {}
        self._weights: Weights | None = None
        self._counts = Counter[str]()
        try:
            self._connect()
        except BaseException:
            self.release()
            raise

    # --- sending ---------------------------------------------------------------------------------------------------

    def send(self, episodes: Sendable, timeout: float | None = 10.0) -> None:
        """Send a pack, an episode or a list of episodes. If too many earlier messages are unacknowledged,
        wait at most `timeout` seconds.

        Small episodes are queued, and the receiver gets them after a later call: `flush` sends them now.

        Args:
            episodes: a growing episode is sent as it is now, and may grow on.
            timeout: seconds to wait for room in the window; None waits without a limit.

        Raises:
            TransportTimeout: too many messages stayed unacknowledged, or there is no connection. Nothing was sent.
            NotAdmitted: the receiver does not accept the keys, or needs some.
            TrackMismatch: the receiver rejected the schema of an earlier message.
            WrongType: `episodes` are not episodes, or have values that cannot be encoded.
            InvalidArgument: the message has more than `max_message_bytes`.
            EpisodeStateError: the sender is closed.
        """
        deadline = deadline_of(timeout)
        connect_by = min(deadline, time.monotonic() + _CONNECT_S)
        may_queue = self._queue.takes_packs and isinstance(episodes, EpisodePack)
        if self._queue.takes_episodes and isinstance(episodes, SingleAgentEpisode):
            episodes, may_queue = finished(episodes), True
        outgoing: tuple[Outgoing, Message] | None = None
        while True:
            now = time.monotonic()
            with self.lock(), self.busy(), self.section():
                self._poll_if_due()
                if self._refusals:
                    self._raise_refusals()
                # Without a connection, the first message would stay here until the next call: there is no thread.
                awaits_connection = now < connect_by and not self._link.is_up and not self._unacked
                if may_queue and self._enqueue(episodes, awaits_connection):
                    return
                if outgoing is None:  # `episodes` are validated before the queue is sent
                    kind, groups = packed(episodes)
                    if not groups:
                        return
                    outgoing = self._encode(kind, groups[0], as_one=False)
                is_next = not awaits_connection and self._send_queue()
                if is_next and ((may_queue and self._enqueue(episodes)) or self._commit(*outgoing)):
                    return
                if now >= deadline:
                    raise self._too_late()
                is_idle = not self.wait(min(deadline, self._link.retry_at))
                self._poll()
            if is_idle:
                self.pause()

    def flush(self, timeout: float | None = 10.0) -> None:
        """Send all queued episodes, and wait until the receiver has acknowledged every message.

        Args:
            timeout: seconds to wait; None waits without a limit.

        Raises:
            TransportTimeout: not everything was acknowledged in time. It is kept, and sent again.
            NotAdmitted, TrackMismatch, EpisodeStateError: as in `send`.
            InvalidArgument: `timeout` is not a number.
        """
        deadline = deadline_of(timeout)
        while True:
            now = time.monotonic()
            with self.lock(), self.busy(), self.section():
                self._poll()
                if self._send_queue() and not self._unacked:
                    self._raise_refusals()
                    return
                if now >= deadline:
                    raise self._too_late()
                is_idle = not self.wait(min(deadline, self._link.retry_at))
            if is_idle:
                self.pause()

    def latest_weights(self, timeout: float | None = 0.0) -> Weights | None:
        """Return the newest network weights that the receiver has published, or None if no new ones arrive
        within `timeout` seconds.

        Args:
            timeout: seconds to wait; 0 returns only what has arrived.

        Returns:
            Each published version at most once per connection.

        Raises:
            NotAdmitted: the receiver does not accept the keys, or needs some.
            EpisodeStateError: the sender is closed.
            InvalidArgument: `timeout` is not a number.
        """
        deadline = deadline_of(timeout)
        while True:
            now = time.monotonic()
            with self.lock(), self.busy(), self.section():
                self._poll()
                if timeout != 0 or self._queue.is_late:
                    self._send_queue()  # the receiver may need these steps before it publishes weights
                if self._weights is not None or now >= deadline:
                    weights, self._weights = self._weights, None
                    return weights
                is_idle = not self.wait(min(deadline, self._link.retry_at))
            if is_idle:
                self.pause()

    @property
    def stats(self) -> SenderStats:
        """Statistics of the messages since the sender was created. They remain available after `close`."""
        num_sent = self._unacked.next  # each message has the next number
        connections, num_taken = self._link.num_connections, num_sent - len(self._unacked)
        return SenderStats(**self._counts, sent=num_sent, taken=num_taken, connections=connections)

    def _enqueue(self, episodes: Sendable, awaits_connection: bool = False) -> bool:
        """Add a small episode or pack to the queue, and send the queue if it is due. Return False if the item cannot be
        queued.

        While the sender `awaits_connection`, nothing is sent, and packs are not queued.
        """
        queue = self._queue
        if awaits_connection and isinstance(episodes, EpisodePack):
            return False  # the first pack is not queued: it is sent at once
        if queue.is_full and not awaits_connection:
            self._send_queue()
        if queue.is_full or not queue.take(episodes):
            return False
        if queue.is_due(is_idle=not self._unacked) and not awaits_connection:
            self._send_queue()
        return True

    def _send_queue(self) -> bool:
        """Send all queued episodes. Return False if some must stay queued, because too many
        messages are unacknowledged."""
        queue = self._queue
        while queue:
            if self._unacked.is_full:
                return False
            packs = queue.together(self._unacked.next)
            try:
                outgoing, message = self._encode(MessageKind.DATA, packs, as_one=len(packs) > 1)
            except (InvalidArgument, WrongType):
                if queue.halve():
                    continue  # send what cannot be one message as several
                queue.clear()  # a single episode that no later call could send either
                raise
            if not self._commit(outgoing, message, queue):
                return False
        return True

    def _encode(self, kind: MessageKind, packs: list[EpisodePack], *, as_one: bool) -> tuple[Outgoing, Message]:
        """Encode packs as one message. Raise `InvalidArgument` if it is larger than `max_message_bytes`."""
        message = _ENCODED[as_one](packs, self._schemas)
        nbytes = SIZE + message.nbytes
        if nbytes > self._most:
            raise InvalidArgument(
                f"a message of {nbytes} bytes; at most max_message_bytes={self._most}: send fewer steps"
            )
        return Outgoing(kind, packs, as_one, time.time(), nbytes), message

    def _commit(self, outgoing: Outgoing, message: Message, queue: SendQueue | None = None) -> bool:
        """Send an encoded message, and remove its packs from `queue`. Return False if too many
        messages are unacknowledged."""
        number = self._unacked.add(outgoing)  # from here on it is sent: see `mend`
        if number is None:
            return False
        if queue is not None:
            queue.clear()
        self._post(number, outgoing, message)  # otherwise it is sent after the hello, as all that is unacknowledged
        counts, packs = self._counts, outgoing.packs
        counts["episodes"] += len(packs[0]) if len(packs) == 1 else sum(map(len, packs))
        counts["bytes"] += outgoing.nbytes - SIZE
        return True

    def _post(self, number: int, sent: Outgoing, message: Message) -> None:
        """Pass a message to the socket if there is a connection. Otherwise it is sent after the next connection."""
        if not self._link.is_up:
            return
        schema, schema_id, _, large, _, versions = message
        low, high = versions or (UNKNOWN, UNKNOWN)
        head = Head(sent.kind, 1 + len(large), self._id, number, schema_id, sent.time, low, high)
        frames = message.parts(head.packed())
        if schema_id not in self._link.schemas:
            self._send_schema(schema, schema_id)
        if self._put(frames):
            if number < self._unacked.first_unput:
                self._counts["resent"] += 1
            else:
                self._unacked.first_unput = number + 1

    def _send_schema(self, schema: bytes, schema_id: int) -> None:
        """Send the schema (dtypes, shapes, spaces) of packs. If it was sent, record that this connection has it,
        because later messages refer to it by its id."""
        if self._put([Head(MessageKind.SCHEMA, 1, self._id, 0, schema_id).packed() + schema]):
            self._link.schemas.add(schema_id)

    def _put(self, frames: list[Any]) -> bool:
        """Pass the parts of a message to the socket. Return False if there is no connection.

        ZeroMQ drops what it has not sent when the connection ends, because the socket is closed then.
        """
        if not self._link.is_up:
            return False
        try:
            self.put(None, frames)
        except self.zmq.Again:
            return False
        return True

    # --- the connection ----------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Connect a new socket to the receiver. Once it is connected, unacknowledged messages are sent again.

        Each socket has one connection: ZeroMQ would send what is left in the socket to the next receiver, although the
        message was acknowledged since. With IMMEDIATE, it would drop what the receiver sent right before it closed.

        Raises:
            InvalidArgument: ZeroMQ does not accept the address.
        """
        self._sockets.close_socket()
        zmq = self.zmq
        socket = self.open(zmq.DEALER, self._most)
        socket.setsockopt(zmq.SNDHWM, 0)  # the window is the limit
        socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
        if self._keys is not None:
            socket.curve_publickey, socket.curve_secretkey = curve.own_pair(self._keys)
            socket.curve_serverkey = curve.public_key(self._keys, curve.RECEIVER)
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        events |= zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_CONNECT_RETRIED
        monitor = self.monitor(events)
        self.set_polled(socket, monitor)
        try:
            socket.connect(self.address)
        except zmq.ZMQError as error:
            raise InvalidArgument(
                f"address {self.address!r}: {error}; give one such as 'tcp://127.0.0.1:5555'"
            ) from None
        self._link.begin(monitor)

    def mend(self) -> None:
        """Complete what an interrupted call has begun with a message, and connect again.

        A message is sent once it is among the unacknowledged ones. The rest follows from that.
        """
        self._unacked.mend()
        self._queue.mend(self._unacked.next)
        self._connect()

    def _too_late(self) -> Exception:
        """Return the error for a timeout: `NotAdmitted` if all handshakes failed, else `TransportTimeout`."""
        unsent = f"{len(self._unacked)} messages are not acknowledged by the receiver at {self.address}"
        if self._link.num_connections:
            return TransportTimeout(f"{unsent}; it acknowledges messages when its recv() is called")
        if self._link.num_failed:
            return NotAdmitted(f"{unsent}, which rejects every handshake; give both sides keys= of one make_keys")
        return TransportTimeout(f"{unsent}, which does not answer; start a receiver there")

    def _poll_if_due(self) -> None:
        """Process messages from the receiver if the poll interval has passed or there is no connection."""
        link = self._link
        if link.is_poll_due() and (not link.is_up or self.has_message() or link.has_event()):
            self._poll()

    def _poll(self) -> None:
        """Process connection events and all messages that the receiver has sent, such as acknowledgements.

        Raises:
            NotAdmitted: the receiver rejects the sender's key.
        """
        is_new, error = self._handle_events()
        if is_new:
            self._send_hello()
        while self.has_message():  # also if the connection has ended
            parts: list[Any] = []
            while self.recv_frame(parts).more:
                pass
            self._handle_message(parts)
        if time.monotonic() >= self._link.retry_at:
            self._connect()
        if error is not None:
            raise error

    def _handle_events(self) -> tuple[bool, NotAdmitted | None]:
        """Process connection events: note when to connect again.

        Returns:
            Whether there is a new connection, and the error to raise if the receiver rejects the sender's key.
        """
        zmq, link, is_new, error = self.zmq, self._link, False, None
        while link.has_event():
            event = link.next_event()
            is_new = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if is_new:
                link.note_connected()
                continue
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                error = NotAdmitted(
                    f"the receiver at {self.address} does not admit this key; give keys= that its folder has"
                )
            link.note_ended(is_failure=event != zmq.EVENT_CONNECT_RETRIED)
        return is_new, error

    def _handle_message(self, parts: list[Any]) -> None:
        """Process a message of the receiver: an acknowledgement, a request for a hello, a refusal of a schema, or
        weights.
        """
        head = read_head(parts[0])
        if isinstance(head, str):
            return
        if head.kind == MessageKind.TAKEN:
            self._unacked.acknowledge(head.number)
        elif head.kind == MessageKind.WHO:
            self._send_hello()
        elif head.kind == MessageKind.REFUSED:
            self._refusals[head.schema] = bytes(parts[0][SIZE:]).decode(errors="replace")
            self._counts["refused"] += 1
        elif head.kind == MessageKind.WEIGHTS:
            self._take_weights(head, parts)

    def _take_weights(self, head: Head, parts: list[Any]) -> None:
        try:
            self._weights = decoded_weights(head.lowest, parts, SIZE)
        except UnreadableData:
            return
        self._put([Head(MessageKind.GOT, 1, self._id, head.number).packed()])

    def _send_hello(self) -> None:
        """Introduce this sender to the receiver by a HELLO message, and send all unacknowledged messages again."""
        self._link.schemas.clear()
        hello = Head(MessageKind.HELLO, 1, self._id, self._unacked.first, self._link.num_connections)
        self._put([hello.packed()])
        for number, sent in list(self._unacked.items()):
            self._post(number, sent, _ENCODED[sent.as_one](sent.packs, self._schemas))

    def _raise_refusals(self) -> None:
        if self._refusals:
            _, reason = self._refusals.popitem()
            raise TrackMismatch(f"the receiver at {self.address} rejected an earlier message: {reason}")

    # --- closing -----------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = 10.0) -> None:
        """Send the queue, wait for acknowledgements at most `timeout` seconds, and close the sender.
        It may be called again.

        Args:
            timeout: seconds to wait; 0 drops what is not acknowledged.

        Raises:
            TransportTimeout, NotAdmitted, TrackMismatch: something was not acknowledged, and is lost.
            InvalidArgument: `timeout` is not a number.
        """
        if self.is_over:
            return
        try:
            deadline_of(timeout)
            if timeout != 0 and not self.is_closed:
                self.flush(timeout)
        finally:
            with self.lock(), self.busy():
                self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(timeout=10.0 if kind is None else 0)
