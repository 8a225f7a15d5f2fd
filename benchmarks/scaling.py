"""Simulation of distributed training with 10, 100 and 1,000 workers, with costs that are measured on one machine.

    python -m benchmarks.scaling            measures, simulates, and prints both
    python -m benchmarks.scaling --frames   the same for observations of 84 x 84 bytes

Workers sample and send packs. A worker waits while `window` of its packs are on their way. The learner receives packs,
updates when a batch is complete, and publishes weights to all workers. All work of the learner's process adds up,
because Python runs one thread at a time. Bytes pass one network link and one thread of ZeroMQ. Relays, if there are
any, receive the packs of their workers, join them, and pass weights on, so that the learner is connected to the relays
only.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import numpy as np
import torch

from benchmarks.idle_process import hush


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs: CPU seconds of each kind of work, and the network's bandwidth and delay."""

    step: float  # sampling one step, in a worker
    take: float  # taking one message, and
    take_byte: float  # each byte of it, in the process that receives
    carry_byte: float  # each byte, in ZeroMQ's thread
    update: float  # learning from one step
    weights: float  # giving weights to one receiver of them
    link: float = 10e9 / 8  # bytes a second: ten gigabits
    delay: float = 1e-3  # seconds on the way


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a simulation: number of workers and relays, and sizes of messages and batches."""

    workers: int
    relays: int = 0
    steps_per_message: int = 1024
    bytes_per_step: float = 21.0
    batch: int = 4096  # steps of an update
    joined: int = 16  # messages that a relay makes one of
    window: int = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a simulation: steps per second, and the shares of time in which workers, learner and network were
    busy.
    """

    steps_per_second: float  # that were learned from
    sampling: float  # the share of their time that workers sampled
    taking: float  # shares of the learner's time
    updating: float
    publishing: float
    link: float  # the busier of the link and of ZeroMQ's thread
    age: float  # how many versions a step was old, on average


class Clock:
    """Event queue of the simulation, which calls functions at simulated times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, happens: Callable[[], None]) -> None:
        """Schedule the call of `happens` at `seconds` from the current simulated time."""
        heapq.heappush(self._events, (self.now + seconds, next(self._order), happens))

    def run(self, until: float) -> None:
        """Run all events in order of time, until the simulated time `until`."""
        while self._events and self._events[0][0] <= until:
            self.now, _, happens = heapq.heappop(self._events)
            happens()


@dataclass(slots=True)
class Server:
    """Simulated process that does one task at a time, in order of arrival. Urgent tasks are done first."""

    clock: Clock
    busy: dict[str, float] = field(default_factory=dict)  # seconds by kind of work
    waiting: deque[tuple[str, float, Callable[[], None]]] = field(default_factory=deque)
    is_busy: bool = False

    def ask(self, kind: str, seconds: float, then: Callable[[], None], is_urgent: bool = False) -> None:
        """Add a task of `seconds` to the queue. When it is done, `then` is called."""
        (self.waiting.appendleft if is_urgent else self.waiting.append)((kind, seconds, then))
        if not self.is_busy:
            self._begin()

    def _begin(self) -> None:
        """Begin the first task of the queue."""
        kind, seconds, then = self.waiting.popleft()
        self.is_busy = True
        self.clock.after(seconds, lambda: self._end(kind, seconds, then))

    def _end(self, kind: str, seconds: float, then: Callable[[], None]) -> None:
        """Record the time of the finished task, call its function `then`, and begin the next task."""
        self.is_busy = False
        self.busy[kind] = self.busy.get(kind, 0.0) + seconds
        then()
        if self.waiting and not self.is_busy:
            self._begin()


class Simulation:
    """Simulation of workers that sample, relays that join messages, and a learner, as a sequence of events."""

    def __init__(self, plan: Plan, costs: Costs, seed: int = 0) -> None:
        self.plan, self.costs = plan, costs
        self.clock = Clock()
        self.learner, self.link, self.thread = (Server(self.clock) for _ in range(3))
        self.relays = [Server(self.clock) for _ in range(plan.relays)]
        self.gathered: list[list[tuple[int, int]]] = [[] for _ in self.relays]  # (worker, version) of each message
        self.rng = np.random.default_rng(seed)
        self.version = 0
        self.known = np.zeros(plan.workers, np.int64)  # the version that each worker has
        self.on_the_way = np.zeros(plan.workers, np.int64)
        self.waiting: set[int] = set()  # workers whose window is full
        self.sampled_s = 0.0
        self.batch: list[int] = []  # versions of the messages that were taken
        self.learned = self.ages = 0.0
        for worker in range(plan.workers):
            self.clock.after(float(self.rng.uniform(0, self._sampling_s())), lambda worker=worker: self._sample(worker))

    def _sampling_s(self) -> float:
        """Return the seconds in which a worker samples one message, with a random deviation of up to 10 %."""
        return self.plan.steps_per_message * self.costs.step * float(self.rng.uniform(0.9, 1.1))

    def _sample(self, worker: int) -> None:
        """Let a worker sample a message. If too many of its messages are on their way, the worker waits."""
        if self.on_the_way[worker] >= self.plan.window:
            self.waiting.add(worker)  # until one is taken
            return
        seconds, version = self._sampling_s(), int(self.known[worker])
        self.sampled_s += seconds
        self.clock.after(seconds, lambda: self._send(worker, version))

    def _send(self, worker: int, version: int) -> None:
        """Send a sampled message of a worker to its relay or to the learner, and let the worker sample its next
        message.
        """
        self.on_the_way[worker] += 1
        self._sample(worker)
        if not self.relays:
            self._to_learner([(worker, version)])
            return
        place = worker % len(self.relays)
        self.relays[place].ask("taking", self._taking_s(1), lambda: self._gather(place, worker, version))

    def _taking_s(self, num: int) -> float:
        """Return the seconds in which a process receives a message that joins `num` messages of workers."""
        return self.costs.take + num * self._nbytes() * self.costs.take_byte

    def _nbytes(self) -> float:
        """Return the bytes of one message of a worker."""
        return self.plan.steps_per_message * self.plan.bytes_per_step

    def _gather(self, place: int, worker: int, version: int) -> None:
        """Store a message in the relay number `place`. The relay sends its messages to the learner when it has `joined`
        of them.
        """
        self.gathered[place].append((worker, version))
        if len(self.gathered[place]) == self.plan.joined:
            message, self.gathered[place] = self.gathered[place], []
            self._to_learner(message)

    def _to_learner(self, message: list[tuple[int, int]]) -> None:
        """Carry a message over the network link and through ZeroMQ's thread to the learner."""
        nbytes = len(message) * self._nbytes()
        carry = lambda: self.thread.ask("carrying", nbytes * self.costs.carry_byte, arrive)  # noqa: E731
        arrive = lambda: self.learner.ask("taking", self._taking_s(len(message)), after_recv)  # noqa: E731
        after_recv = lambda: self._receive(message)  # noqa: E731
        self.link.ask("carrying", nbytes / self.costs.link, lambda: self.clock.after(self.costs.delay, carry))

    def _receive(self, message: list[tuple[int, int]]) -> None:
        """Add a received message to the learner's batch, and let its workers continue. If the batch is complete, the
        learner updates.
        """
        for worker, version in message:
            self.on_the_way[worker] -= 1
            self.batch.append(version)
            if worker in self.waiting:
                self.waiting.remove(worker)
                self._sample(worker)
        steps = len(self.batch) * self.plan.steps_per_message
        if steps >= self.plan.batch:
            versions, self.batch = self.batch, []
            self.learner.ask(
                "updating", steps * self.costs.update, lambda: self._finish_update(versions), is_urgent=True
            )

    def _finish_update(self, versions: list[int]) -> None:
        """Count the steps of an update and the ages of their policy versions, and publish the new version."""
        self.learned += len(versions) * self.plan.steps_per_message
        self.ages += sum(self.version - version for version in versions) * self.plan.steps_per_message
        self.version += 1
        version, peers = self.version, len(self.relays) or self.plan.workers
        self.learner.ask(
            "publishing", peers * self.costs.weights, lambda: self._finish_publishing(version), is_urgent=True
        )

    def _finish_publishing(self, version: int) -> None:
        """Send the new version to all workers, directly or through the relays."""
        if not self.relays:
            self.clock.after(self.costs.delay, lambda: self._set_version(slice(None), version))
        for place, relay in enumerate(self.relays):
            workers = slice(place, None, len(self.relays))
            seconds = len(range(*workers.indices(self.plan.workers))) * self.costs.weights
            arrived = partial(self._set_version, workers, version)
            arrive = partial(self.clock.after, 2 * self.costs.delay, arrived)
            relay.ask("publishing", seconds, arrive, is_urgent=True)

    def _set_version(self, workers: slice, version: int) -> None:
        """Set the policy version of workers that have received new weights."""
        self.known[workers] = np.maximum(self.known[workers], version)


def simulate(plan: Plan, costs: Costs, seconds: float = 20.0) -> Outcome:
    """Run a simulation for `seconds` of simulated time, and return the result."""
    simulation = Simulation(plan, costs)
    simulation.clock.run(seconds)
    busy = simulation.learner.busy
    shares = (busy.get(kind, 0.0) / seconds for kind in ("taking", "updating", "publishing"))
    carried = max(simulation.link.busy.get("carrying", 0.0), simulation.thread.busy.get("carrying", 0.0))
    return Outcome(
        simulation.learned / seconds,
        min(simulation.sampled_s / seconds / plan.workers, 1.0),
        *shares,
        carried / seconds,
        simulation.ages / max(simulation.learned, 1.0),
    )


# --- what it costs here ---


def measure_costs(with_frames: bool = False, rounds: int = 7) -> Costs:
    """Measure all costs on this machine in CPU seconds, and return the lowest of several rounds."""
    least = lambda work: min(work() for _ in range(rounds))  # noqa: E731
    step, update = learning_costs()
    (small, few), (large, many) = (moving_costs(num, with_frames) for num in ((1, 8) if with_frames else (16, 1024)))
    taking, taking_large = (least(lambda cost=cost: cost()[0]) for cost in (small, large))
    carrying = least(lambda: large()[1])
    take_byte = max(taking_large - taking, 0.0) / (many - few)
    return Costs(
        step=least(step),
        take=max(taking - few * take_byte, 1e-7),
        take_byte=take_byte,
        carry_byte=carrying / many,
        update=least(update),
        weights=least(weights_cost()),
    )


def learning_costs() -> tuple[Callable[[], float], Callable[[], float]]:
    """Return two functions that measure the CPU seconds per step on CartPole: of sampling, and of learning with PPO."""
    from benchmarks.sampling import new_policy, our_runner
    from episode_learners import PPO

    policy = new_policy()
    runner, algorithm = our_runner(8, policy), PPO(policy)
    pack = runner.sample(num_timesteps=2048)

    def update() -> float:
        start = time.process_time()
        algorithm.update(pack)
        return (time.process_time() - start) / pack.num_steps

    def step() -> float:
        start = time.process_time()
        return runner.sample(num_timesteps=2048).num_steps and (time.process_time() - start) / 2048

    return step, update


def moving_costs(num: int, with_frames: bool) -> tuple[Callable[[], tuple[float, float]], int]:
    """Return a function that measures the CPU seconds per message of `recv` and of ZeroMQ's thread, and the bytes of a
    message with `num` episodes.
    """
    from benchmarks.transport_figures import pack
    from episodes.transport import EpisodeReceiver, EpisodeSender

    episodes = pack(num, with_frames)
    receiver = EpisodeReceiver()
    sender = EpisodeSender(receiver.address)

    def move(messages: int = 32) -> tuple[float, float]:
        """Send and receive messages, and return the CPU seconds per message of `recv` and of ZeroMQ's thread."""
        recv_s, start, thread_start = 0.0, time.process_time(), time.thread_time()
        for _ in range(messages):
            sender.send(episodes, 60)
            before = time.thread_time()
            receiver.recv(60)
            recv_s += time.thread_time() - before
        process_s, thread_s = time.process_time() - start, time.thread_time() - thread_start
        return recv_s / messages, (process_s - thread_s) / 2 / messages  # one thread sends, the other receives

    move()
    return move, episodes.nbytes


def weights_cost() -> Callable[[], float]:
    """Return a function that measures the CPU seconds of publishing the weights of a small network to one sender."""
    from benchmarks.sampling import new_policy
    from benchmarks.transport_figures import pack
    from episodes.transport import EpisodeReceiver, EpisodeSender

    weights = {name: value.numpy() for name, value in new_policy().state_dict().items()}
    receiver = EpisodeReceiver()
    senders = [EpisodeSender(receiver.address) for _ in range(8)]
    for sender in senders:
        sender.send(pack(1, False), 60)
    for _ in senders:
        receiver.recv(60)
    version = itertools.count()

    def publish() -> float:
        """Publish the weights to all senders, and return the CPU seconds per sender."""
        start = time.thread_time()
        receiver.publish(weights, next(version))
        spent = time.thread_time() - start
        for sender in senders:
            sender.latest_weights(60)
            sender.send(pack(1, False), 60)
        for _ in senders:
            receiver.recv(60)
        return spent / len(senders)

    return publish


# --- what is printed ---


PLANS = {  # by workers: without and with relays
    10: (Plan(10),),
    100: (Plan(100), Plan(100, relays=2)),
    1000: (Plan(1000), Plan(1000, relays=20), Plan(1000, relays=20, batch=65_536)),
}


def simulate_plans(costs: Costs, bytes_per_step: float, seconds: float = 20.0) -> list[list[str]]:
    """Simulate all settings, each with the measured learner and with a learner that is 100 times as fast, and return
    the rows of the table.
    """
    table_rows = []
    for plan in itertools.chain(*PLANS.values()):
        sized_plan = replace(plan, bytes_per_step=bytes_per_step)
        for name, used, lasting in (
            ("measured", costs, seconds),
            ("100 times as fast", replace(costs, update=costs.update / 100), seconds / 10),
        ):
            out = simulate(sized_plan, used, lasting)
            shares = (out.sampling, out.taking, out.updating, out.publishing, out.link)
            settings = [str(plan.workers), str(plan.relays), f"{plan.batch:,}", name]
            speed, percents = f"{out.steps_per_second:,.0f}", [f"{share:.0%}" for share in shares]
            table_rows.append([*settings, speed, *percents, f"{out.age:.1f}"])
    return table_rows


HEADER = ["workers", "relays", "batch", "learner", "steps/s"]
HEADER += ["sampling", "taking", "updating", "publishing", "link", "age"]


def main() -> None:
    """Measure the costs on this machine, simulate all settings, and print both."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--frames", action="store_true", help="observations of 84 x 84 bytes")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    hush()
    costs = measure_costs(chosen.frames)
    for name, value in asdict(costs).items():
        print(f"{name:12} {value:.3g}")
    print(" | ".join(HEADER))
    for row in simulate_plans(costs, 7085.0 if chosen.frames else 30.0):
        print(" | ".join(row))


if __name__ == "__main__":
    main()
