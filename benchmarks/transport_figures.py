"""Benchmarks of sending episodes between two processes: this library, bare ZeroMQ, echo, and pipes with pickled
episodes.
"""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.figure import Counted, Figure, Side, Size, Timed, at_least, at_most, cpu_seconds, limit
from benchmarks.peers import ECHO

STEPS, WINDOW = 64, 64
JOIN, JOIN_MORE = 1 << 20, 4 << 20  # bytes: 33 packs of 16 go as one, and the receiver wakes up for each; or 134
PATIENCE_S = 300.0  # a process may be long in starting
SMALL, LARGE = (4,), (84, 84)  # items of 1.3 kB episodes, and of 450 kB ones

Sender = Callable[[Any, Any, int, int], None]  # of a pipe that says "go", an address, messages, episodes in each


def pack(num: int, large: bool, beside: str = "") -> Any:
    """Return a pack of `num` episodes of 64 steps, with small vectors or large frames as observations. `beside` adds
    "versions" or "infos".
    """
    from episodes import EpisodePack

    item, dtype = (LARGE, np.uint8) if large else (SMALL, np.float32)
    infos = [{"speed": 0.5 * row, "row": row, "is_far": row > 9} for row in range(num * (STEPS + 1))]
    return EpisodePack(
        observations=np.zeros((num * (STEPS + 1), *item), dtype),
        actions=np.zeros(num * STEPS, np.int64),
        rewards=np.zeros(num * STEPS, np.float32),
        lengths=np.full(num, STEPS),
        infos=infos if beside == "infos" else None,
        policy_versions=np.full(num, 7) if beside == "versions" else None,
    )


def parts_of(num: int, large: bool) -> list[bytes]:
    """Return the parts of the message that this library sends for a pack."""
    from episodes.transport.wire import Schemas, encoded

    return [*map(bytes, encoded([pack(num, large)], Schemas()).parts(bytes(64)))]


class Child:
    """Child process that sends a fixed number of messages after each call of `go`. It is killed when this object is
    deleted.
    """

    def __init__(self, work: Sender, *arguments: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, child_pipe = spawn.Pipe()
        process = spawn.Process(target=work, args=(child_pipe, *arguments), daemon=True)
        process.start()
        weakref.finalize(self, kill, process)

    def go(self) -> None:
        """Let the child process send its messages."""
        self.pipe.send("go")


def kill(process: Any) -> None:
    """Kill a process, and wait for its end."""
    process.kill()
    process.join()


def close_socket(socket: Any, context: Any) -> None:
    """Close a ZeroMQ socket and its context."""
    socket.close(0)
    context.term()


# --- ours ---


def send_ours(pipe: Any, address: str, count: int, join: int, *pack_arguments: Any) -> None:
    """Send packs with `EpisodeSender` each time the parent process writes to the pipe. This function runs in the child
    process.
    """
    from episodes.transport import EpisodeSender

    sender, episodes = EpisodeSender(address, window=WINDOW, join=join), pack(*pack_arguments)
    while pipe.recv():
        for _ in range(count):
            sender.send(episodes, PATIENCE_S)
        if join:
            sender.flush(PATIENCE_S)


def ours(size: Size, messages: int, num: int, large: bool, join: int = 0) -> Timed:
    """Time sending and receiving packs with `EpisodeSender` and `EpisodeReceiver`, per episode. `join` is the size up
    to which packs are joined.
    """
    from episodes.transport import EpisodeReceiver

    count, receiver = size(messages), EpisodeReceiver()
    child = Child(send_ours, receiver.address, count, join, num, large)
    weakref.finalize(child, receiver.close)

    def run() -> None:
        child.go()
        num_received = 0
        while num_received < count * num:
            num_received += len(receiver.recv(PATIENCE_S))

    run()
    return Timed(run, count * num)


def decoding(size: Size) -> Timed:
    """Time decoding a message that contains one small episode."""
    from episodes.transport.wire import Schemas, decoded, encoded, layouts_of

    message = encoded([pack(1, False)], Schemas())
    layouts, parts = layouts_of(message.schema), [bytes(part) for part in message.parts()]
    return Timed(lambda: decoded(layouts, parts), clock=cpu_seconds)


# --- the others ---


def send_bare(pipe: Any, address: str, count: int, num: int, large: bool) -> None:
    """Send the message parts of packs over a bare ZeroMQ socket, each time the parent process writes to the pipe. This
    function runs in the child process.
    """
    import zmq

    parts, socket, credit = parts_of(num, large), zmq.Context().socket(zmq.DEALER), WINDOW
    socket.connect(address)
    while pipe.recv():
        for _ in range(count):
            while credit == 0 or socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                credit += int(socket.recv())
            socket.send_multipart(parts, copy=not large)
            credit -= 1


def bare(size: Size, messages: int, num: int, large: bool) -> Timed:
    """Time sending and receiving the message parts of packs with ZeroMQ's sockets alone, without decoding, per
    episode.
    """
    import zmq

    count, context = size(messages), zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.rcvtimeo = int(1000 * PATIENCE_S)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    child = Child(send_bare, f"tcp://127.0.0.1:{port}", count, num, large)
    weakref.finalize(child, close_socket, socket, context)
    num_received = [0]

    def run() -> None:
        """Receive all messages of the child process, and acknowledge every 16th."""
        child.go()
        for _ in range(count):
            frames = socket.recv_multipart(copy=not large)
            num_received[0] += 1
            if num_received[0] % 16 == 0:
                socket.send_multipart([bytes(frames[0]), b"16"])

    run()
    return Timed(run, count * num)


def send_pickles(pipe: Any, count: int, num: int, large: bool) -> None:
    """Send each episode of a pack pickled through the pipe, each time the parent process writes to the pipe. This
    function runs in the child process.
    """
    episodes = list(pack(num, large))
    while pipe.recv():
        for _ in range(count):
            for episode in episodes:
                pipe.send(episode)


def pickles(size: Size, messages: int, num: int, large: bool) -> Timed:
    """Time a pipe with one pickled episode per message, per episode."""
    count = size(messages)
    child = Child(send_pickles, count, num, large)

    def run() -> None:
        child.go()
        for _ in range(count * num):
            child.pipe.recv()

    run()
    return Timed(run, count * num)


def send_echo(pipe: Any, port: int, count: int, num: int, large: bool) -> None:
    """Send the arrays of single episodes with echo's client, each time the parent process writes to the pipe. This
    function runs in the child process.
    """
    import echo

    data = dict(pack(1, large).tracks)
    client = echo.TcpClient("127.0.0.1", port, data, max_inflight_msgs=256)
    while pipe.recv():
        for _ in range(count * num):
            client.send(data)


def echo_server(size: Size, messages: int, num: int, large: bool) -> Timed:
    """Time echo's server, which receives single episodes and returns batches of 8, per episode."""
    import echo

    count, batch = size(messages), 8
    transport = echo.TcpTransport(0, num_threads=1)
    server = echo.Server(dict(pack(1, large).tracks), batch, transport, num_drainers=1, producer_queue_size=64)
    server.start()
    child = Child(send_echo, server.port, count, num, large)
    weakref.finalize(child, server.close)

    def run() -> None:
        child.go()
        for _ in range(count * num // batch):
            server.sample()

    run()
    return Timed(run, count * num)


@cache
def cpu_with(num: int, beside: str, rounds: int) -> dict[str, float]:
    """Measure the CPU seconds of sending and receiving an episode in one process, with and without the infos or
    versions that `beside` names.

    The result is the median over the ratios of many short rounds, in which both kinds alternate. The two parts of a
    round are milliseconds apart, so that other load on the machine affects both. Measures over distant rounds vary
    more: in four runs under load, the minimum over all rounds and the ratio of two medians were 1.03 to 1.11 and 1.01
    to 1.04, and this measure was 1.026 to 1.034.
    """
    from episodes.transport import EpisodeReceiver, EpisodeSender

    spent: dict[str, list[float]] = {"": [], beside: []}
    packs = {kind: pack(num, False, kind) for kind in spent}
    with EpisodeReceiver() as receiver, EpisodeSender(receiver.address, window=WINDOW) as sender:
        for i in range(2 * rounds):
            kind = ("", beside)[(i + 1) // 2 % 2]
            episodes, start = packs[kind], cpu_seconds()
            for _ in range(8):
                sender.send(episodes)
            for _ in range(8):
                receiver.recv(60)
            spent[kind].append((cpu_seconds() - start) / (8 * num))
    without = float(np.median(spent[""]))
    return {"": without, beside: without * float(np.median(np.divide(spent[beside], spent[""])))}


def cpu_of(num: int, beside: str, kind: str) -> Callable[[Size], Counted]:
    """Return the CPU seconds per episode that `cpu_with` measures, for packs of one kind."""
    return lambda size: Counted(cpu_with(num, beside, size(1000))[kind])


def figures(name: str, messages: int, num: int, large: bool, bars: dict[str, float], join: int = 0) -> list[Figure]:
    """Return benchmarks that compare sending packs with each peer in `bars`, with the required speedup."""
    options: dict[str, Any] = {"messages": messages, "num": num, "large": large}
    our_side = Side("ours", partial(ours, **options, join=join))
    peers = {
        "bare ZeroMQ": Side("bare ZeroMQ", partial(bare, **options)),
        "echo": Side("echo", partial(echo_server, **options), ECHO),
        "Pipe": Side("Pipe of pickles", partial(pickles, **options)),
    }
    return [Figure(f"moving/{name}, {peer}", our_side, peers[peer], at_least(bar), "us") for peer, bar in bars.items()]


def beside_figure(beside: str, times: float) -> Figure:
    """Return a benchmark of packs of 64 small episodes with infos or policy versions, compared with packs that have
    neither.
    """
    name = f"moving/1.3 kB in packs of 64 with {beside}"
    ours, without = (Side(side, cpu_of(64, beside, kind)) for side, kind in (("with", beside), ("without", "")))
    return Figure(name, ours, without, at_most(times), "us")


FIGURES = (
    *figures("1.3 kB in packs of 16", 64, 16, False, {"bare ZeroMQ": 1, "echo": 2, "Pipe": 5}),
    *figures("1.3 kB in packs of 16, joined", 256, 16, False, {"bare ZeroMQ": 1}, JOIN),
    *figures("1.3 kB in packs of 16, joined to 4 MiB", 256, 16, False, {"bare ZeroMQ": 1}, JOIN_MORE),
    *figures("1.3 kB in packs of 256", 64, 256, False, {"bare ZeroMQ": 1}),
    *figures("450 kB one by one", 64, 1, True, {"bare ZeroMQ": 0.5, "echo": 0.7}),
    beside_figure("infos", 2),
    beside_figure("versions", 1.02),
    Figure("moving/decode one 1.3 kB episode", Side("ours", decoding), limit("20 us of CPU", 20e-6), at_most(1), "us"),
)
