"""`EpisodeSender`: episodes, chunks and packs to a receiver in another process, or on another machine."""

from __future__ import annotations

import os
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from episodes.errors import InvalidArgument, NotAdmitted, TrackMismatch, TransportTimeout, UnreadableData, WrongType
from episodes.facts.policy_versions import UNKNOWN
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.validation import checked_count, checked_number, checked_place
from episodes.transport import keys as curve
from episodes.transport.messages import SIZE, Head, Kind, read_head
from episodes.transport.send_queue import Waiting
from episodes.transport.sendable import Sendable, finished, packed
from episodes.transport.sockets import MOST_BYTES, Endpoint, checked_address, deadline_of
from episodes.transport.weights import Weights, decoded_weights
from episodes.transport.wire import Message, Schemas, encoded, encoded_as_one

_EVENTS, _POLLIN = 15, 1  # ZeroMQ's numbers of `zmq.EVENTS` and `zmq.POLLIN`
_CONNECT_S = 5.0  # that the first message waits for a connection
_LOOK_S = 0.0002  # between two looks at what the receiver says: each asks the system, which costs as much as a pack
_new: Any = tuple.__new__  # half the price of the class call
_ENCODED = {False: encoded, True: encoded_as_one}


@dataclass(frozen=True, slots=True)
class SenderStats:
    """What a sender did so far."""

    sent: int = 0  # messages; a message is a pack, or several small episodes or packs as one
    episodes: int = 0
    bytes: int = 0
    taken: int = 0  # messages that the receiver's user has
    resent: int = 0  # messages that went once more, since the connection was lost before they were taken
    refused: int = 0  # messages of a schema that the receiver does not want
    connections: int = 0


class _Outgoing(NamedTuple):
    """A message that fits into the limits, and was not sent yet."""

    kind: Kind
    packs: list[EpisodePack]
    as_one: bool  # they arrive as one pack
    nbytes: int
    message: Message


class _Sent(NamedTuple):
    """A message that was not acknowledged yet.

    It is encoded again if it has to be sent again. To keep its bytes would make each message use new memory, which
    costs as much as everything else about a small one.
    """

    kind: Kind
    packs: Sequence[EpisodePack]
    as_one: bool  # they arrive as one pack
    time: float
    nbytes: int


class EpisodeSender(Endpoint):
    """Sends episodes to an `EpisodeReceiver`, in order, and again whatever was not taken when a connection broke.

    A pack is a message of its own. Finished episodes that come one by one wait as copies until there are `coalesce`
    bytes of them or the oldest waited for `max_delay` seconds, for a message costs what a hundred small episodes cost.
    With `join`, small packs wait for each other too, while others are on their way, and arrive as one pack.
    There is no thread: what waits goes with the next call, or `flush`. All calls may come from several threads.

    Arrays of a pack that is sent on are not copied, so what they are views of must not change until it was taken.

    Raises:
        MissingExtra: without pyzmq.
        InvalidArgument: an address that there cannot be, or no such numbers; `WrongType`: what is none, or no path.
        UnreadableData: no keys in the folder.

    Args:
        address: the receiver's, such as "tcp://127.0.0.1:5555".
        window: how many messages may be on their way; `send` then waits for the receiver's user (back-pressure).
        keys: a sender's folder of `make_keys`: the connection is encrypted, and both sides prove who they are.
        coalesce: bytes of small episodes to send together; 0: each by itself.
        join: bytes of small packs to send as one pack, where a quarter of them is still small; 0: each by itself, and
            so `recv` gives each as it was sent.
        max_delay: seconds that a small episode or pack waits for others, at the most and while there are calls.
        max_message_bytes: the most that a track of a pack may have; the receiver's own limit.

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
        self._window, most = checked_count("window", window), checked_count("max_message_bytes", max_message_bytes)
        coalesce, join = checked_count("coalesce", coalesce, at_least=0), checked_count("join", join, at_least=0)
        max_delay = checked_number("max_delay", max_delay, low=0)
        self.address = checked_address(address)
        self._keys, self._most = checked_place("keys", keys), most
        super().__init__()
        self._id = os.urandom(8)
        self._next = self._never_put = 0  # numbers of messages: of the next one, of the first that no socket had yet
        self._unacked: OrderedDict[int, _Sent] = OrderedDict()
        self._unacked_bytes = 0
        self._told: set[int] = set()  # schemas that this connection knows
        self._schemas = Schemas()
        self._coalesce, self._join = coalesce, join
        self._waiting = Waiting(coalesce, min(join, most // 4), max_delay, self._schemas)
        self._refusals: dict[int, str] = {}
        self._weights: Weights | None = None
        self._is_connected = self._is_new = False  # the receiver was greeted; it is there, and was not
        self._failed_handshakes = 0
        self._next_look = 0.0  # when it is time for one
        self._counts = Counter[str]()
        try:
            self._connect()
        except BaseException:
            self.release()
            raise

    # --- sending ---------------------------------------------------------------------------------------------------

    def send(self, episodes: Sendable, timeout: float | None = 10.0) -> None:
        """Send a pack, an episode, or a list of episodes (multi-agent ones too), as soon as the window has room.

        Raises:
            TransportTimeout: the receiver took nothing for so many seconds; nothing of these was sent.
            NotAdmitted: the receiver does not accept our keys, or there are none.
            TrackMismatch: the receiver refused what was sent before: it wants another schema.
            WrongType: no episodes, or values that cannot travel.
        """
        deadline = deadline_of(timeout)
        connect_by = min(deadline, time.monotonic() + _CONNECT_S)
        may_queue = self._join > 0 and isinstance(episodes, EpisodePack)
        if self._coalesce and isinstance(episodes, SingleAgentEpisode):
            episodes, may_queue = finished(episodes), True
        outgoing: _Outgoing | None = None
        while True:
            now = time.monotonic()
            with self.lock(), self.busy(), self.section():
                self._poll_if_due()
                if self._refusals:
                    self._raise_refusals()
                # Without a connection, the first message would stay here until the next call: there is no thread.
                awaits_connection = now < connect_by and not self._is_connected and not self._unacked
                if may_queue and self._keep(episodes, awaits_connection):
                    return
                if outgoing is None:  # before anything else is sent: `episodes` may be invalid
                    kind, groups = packed(episodes)
                    if not groups:
                        return
                    outgoing = self._encode(kind, groups[0], as_one=False)
                is_next = not awaits_connection and self._send_waiting()
                if is_next and ((may_queue and self._keep(episodes)) or self._commit(outgoing)):
                    return
                if now >= deadline:
                    raise self._too_late()
                is_idle = not self.wait(deadline)
                self._poll()
            if is_idle:
                self.pause()

    def flush(self, timeout: float | None = 10.0) -> None:
        """Wait until everything was taken. Errors are those of `send`; what was not taken is kept, and sent again."""
        deadline = deadline_of(timeout)
        while True:
            now = time.monotonic()
            with self.lock(), self.busy(), self.section():
                if self._send_waiting() and not self._unacked:
                    self._raise_refusals()
                    return
                if now >= deadline:
                    raise self._too_late()
                is_idle = not self.wait(deadline)
                self._poll()
            if is_idle:
                self.pause()

    def latest_weights(self, timeout: float | None = 0.0) -> Weights | None:
        """The weights that the receiver published last, once a connection; None where none come within the time."""
        deadline = deadline_of(timeout)
        while True:
            now = time.monotonic()
            with self.lock(), self.busy(), self.section():
                self._poll()
                if timeout != 0 or self._waiting.is_late:
                    self._send_waiting()  # the receiver may need these steps before it publishes
                if self._weights is not None or now >= deadline:
                    weights, self._weights = self._weights, None
                    return weights
                is_idle = not self.wait(deadline)
            if is_idle:
                self.pause()

    @property
    def stats(self) -> SenderStats:
        """What was done so far."""
        return SenderStats(**self._counts)

    def _keep(self, one: Sendable, awaits_connection: bool = False) -> bool:
        """Add a small episode or pack to the queue, and send the queue if it is time. Return True if it was added."""
        waiting = self._waiting
        if awaits_connection and isinstance(one, EpisodePack):
            return False  # the first pack is not queued: it is sent at once
        if waiting.is_full and not awaits_connection:
            self._send_waiting()
        if waiting.is_full or not waiting.take(one):
            return False
        if waiting.is_due(is_idle=not self._unacked) and not awaits_connection:
            self._send_waiting()
        return True

    def _send_waiting(self) -> bool:
        """Send the queue, as far as the window has room. Return True if the queue is empty then."""
        waiting = self._waiting
        while waiting:
            if len(self._unacked) >= self._window:
                return False
            packs = waiting.together()
            try:
                outgoing = self._encode(Kind.DATA, packs, as_one=len(packs) > 1)
            except (InvalidArgument, WrongType):
                if waiting.halve():
                    continue  # what cannot be sent as one message is sent in parts
                waiting.clear()  # no later call could send it either
                raise
            if not self._commit(outgoing, waiting):
                return False
        return True

    def _encode(self, kind: Kind, packs: list[EpisodePack], *, as_one: bool) -> _Outgoing:
        """Encode a message. Raise `InvalidArgument` if it is larger than `max_message_bytes`."""
        message = _ENCODED[as_one](packs, self._schemas)
        nbytes = SIZE + message.nbytes
        if nbytes > self._most:
            raise InvalidArgument(
                f"a message of {nbytes} bytes; at most max_message_bytes={self._most}: send fewer steps"
            )
        return _new(_Outgoing, (kind, packs, as_one, nbytes, message))

    def _commit(self, outgoing: _Outgoing, waiting: Waiting | None = None) -> bool:
        """Send a message if the window has room, and remove it from the queue `waiting`. Return True if it was sent."""
        kind, packs, as_one, nbytes, message = outgoing
        unacked = self._unacked
        if unacked and (len(unacked) >= self._window or self._unacked_bytes + nbytes > self._most):
            return False
        number, sent = self._next, _new(_Sent, (kind, packs, as_one, time.time(), nbytes))
        if waiting is not None:
            waiting.clear()
        unacked[number] = sent
        self._unacked_bytes += nbytes
        self._next = number + 1
        self._post(number, sent, message)  # otherwise it is sent after the hello, as all that is unacknowledged
        counts = self._counts
        counts["sent"] += 1
        counts["episodes"] += len(packs[0]) if len(packs) == 1 else sum(map(len, packs))
        counts["bytes"] += nbytes - SIZE
        return True

    def _post(self, number: int, sent: _Sent, message: Message) -> None:
        """Give a message to the socket, if it is connected."""
        if not self._is_connected:
            return
        schema, schema_id, _, large, _, versions = message
        low, high = versions or (UNKNOWN, UNKNOWN)
        head = _new(Head, (sent.kind, 1 + len(large), self._id, number, schema_id, sent.time, low, high))
        frames = message.parts(head.packed())
        if schema_id not in self._told:
            self._tell(schema, schema_id)
        if self._put(frames):
            if number < self._never_put:
                self._counts["resent"] += 1
            else:
                self._never_put = number + 1

    def _tell(self, schema: bytes, schema_id: int) -> None:
        """Let the receiver know a schema."""
        if self._put([Head(Kind.SCHEMA, 1, self._id, 0, schema_id).packed() + schema]):
            self._told.add(schema_id)

    def _put(self, frames: list[Any]) -> bool:
        """Hand a message to the socket; False while nobody is there, whom it will be sent when somebody is."""
        try:
            self.put(None, frames)
        except self.zmq.Again:
            return False
        return True

    # --- the connection ----------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """A new socket; what was not taken goes again once it is connected."""
        self._sockets.close_socket()
        zmq = self.zmq
        socket = self.open(zmq.DEALER, self._most)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for a receiver that is not there
        socket.setsockopt(zmq.SNDHWM, 0)  # the window is the bound
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        if self._keys is not None:
            socket.curve_publickey, socket.curve_secretkey = curve.own_pair(self._keys)
            socket.curve_serverkey = curve.public_key(self._keys, curve.RECEIVER)
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        events |= zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        self._monitor = self.monitor(events)
        self.poll_at(socket, self._monitor)
        try:
            socket.connect(self.address)
        except zmq.ZMQError as error:
            raise InvalidArgument(
                f"address {self.address!r}: {error}; give one such as 'tcp://127.0.0.1:5555'"
            ) from None
        self._told.clear()
        self._is_connected = self._is_new = False

    def mend(self) -> None:
        self._connect()

    def _too_late(self) -> Exception:
        waiting = f"{len(self._unacked)} messages wait for the receiver at {self.address}"
        if self._counts["connections"]:
            return TransportTimeout(f"{waiting}, which takes nothing; it takes when recv() is called")
        if self._failed_handshakes:
            return NotAdmitted(f"{waiting}, which breaks off every handshake: give both sides keys= of one make_keys")
        return TransportTimeout(f"{waiting}, where nobody answers")

    def _poll_if_due(self) -> None:
        """Look, if it is time, and there is something to see."""
        now = time.monotonic()
        if not self._is_connected or now >= self._next_look:
            self._next_look = now + _LOOK_S
            if not self._is_connected or self.has_message():
                self._poll()

    def _poll(self) -> None:
        """Heed what the receiver says, and what happened to the connection."""
        zmq = self.zmq
        while self._monitor.getsockopt(_EVENTS) & _POLLIN:
            event = int.from_bytes(self._monitor.recv_multipart()[0][:2], "little")
            self._is_connected, self._is_new = False, event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if self._is_new:
                self._counts["connections"] += 1
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise NotAdmitted(f"the receiver at {self.address} does not know our key; give keys= it was told of")
            else:
                self._failed_handshakes += 1
        if self._is_new:
            self._send_hello()
        while self.has_message():
            parts: list[Any] = []
            while self.recv_frame(parts).more:
                pass
            self._handle_message(parts)

    def _handle_message(self, parts: list[Any]) -> None:
        head = read_head(parts[0])
        if isinstance(head, str):
            return
        if head.kind == Kind.TAKEN:
            while self._unacked and next(iter(self._unacked)) <= head.number:
                _, sent = self._unacked.popitem(last=False)
                self._unacked_bytes -= sent.nbytes
                self._counts["taken"] += 1
        elif head.kind == Kind.WHO:
            self._send_hello()
        elif head.kind == Kind.REFUSED:
            self._refusals[head.schema] = bytes(parts[0][SIZE:]).decode(errors="replace")
            self._counts["refused"] += 1
        elif head.kind == Kind.WEIGHTS:
            self._take_weights(head, parts)

    def _take_weights(self, head: Head, parts: list[Any]) -> None:
        try:
            self._weights = decoded_weights(head.lowest, parts, SIZE)
        except UnreadableData:
            return
        self._put([Head(Kind.GOT, 1, self._id, head.number).packed()])

    def _send_hello(self) -> None:
        """Say who we are, and send again what was not taken."""
        self._told.clear()
        first, connection = next(iter(self._unacked), self._next), self._counts["connections"]
        if not self._put([Head(Kind.HELLO, 1, self._id, first, connection).packed()]):
            return  # the socket does not know yet what its monitor told: another time
        self._is_connected, self._is_new = True, False
        for number, sent in list(self._unacked.items()):
            self._post(number, sent, _ENCODED[sent.as_one](sent.packs, self._schemas))

    def _raise_refusals(self) -> None:
        if self._refusals:
            _, words = self._refusals.popitem()
            raise TrackMismatch(f"the receiver at {self.address} refused what was sent: {words}")

    # --- closing -----------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = 10.0) -> None:
        """Send what waits, wait until all was taken, and close everything, whatever happens. Twice is once.

        Raises:
            TransportTimeout, NotAdmitted, TrackMismatch: something was not taken; it is lost.
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
