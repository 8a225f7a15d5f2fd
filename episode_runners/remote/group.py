"""`RayRunnerGroup`: many runners, each in an actor of Ray."""

from __future__ import annotations

import logging
import math
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np

from episode_runners.closeable import Closeable
from episode_runners.remote.actor import (
    Asked,
    MakeRunner,
    RunnerActor,
    RunnerSample,
    SampleReply,
    as_arrays,
    has_content,
)
from episode_runners.remote.ray_session import RaySession
from episode_runners.runner import check_counts
from episodes.errors import EpisodeStateError, RunnerLost
from episodes.tracks.validation import checked_count, checked_number

__all__ = ["RayRunnerGroup", "RunnerReplacement"]

_MOST_DEATHS = 2  # of one runner without a sample in between
_CLOSING_S = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunnerReplacement:
    """A runner that came in the place of another."""

    index: int
    reason: str


@dataclass(slots=True)
class _Request:
    ref: Any
    asked: Asked
    since: float  # when the actor could begin with it


@dataclass(slots=True)
class _Worker:
    """What the group knows of an actor."""

    index: int
    generation: int
    actor: Any
    statistics: Any = None  # the last it told of, since all were merged
    is_behind: bool = False  # it is new in its place, or failed: it gets them back with the next request
    num_weights: int = 0  # how many times weights had been set when it was last given some
    num_merges: int = 0  # likewise of merged statistics
    num_begins: int = 0  # likewise of numbers that new episodes follow from
    num_answers: int = 0  # since its statistics were merged
    num_deaths: int = 0  # in its place, since the last sample
    pending: deque[_Request] = field(default_factory=deque)


class RayRunnerGroup(Closeable):
    """Samples with many runners at once, single- or multi-agent ones, each in an actor of Ray.

    What runners sample comes through shared memory, read in place. Weights are put there once, whoever many read them,
    and reach each runner with its next request. Where the runners' env-to-module pipelines learn from observations (a
    `MeanStdFilter`), all go on with what all have seen.

    A runner whose process died is replaced by one with the weights and with the statistics that it last told of.
    Errors of a runner are raised here as they were raised there. What other runners have sampled meanwhile is in the
    next sample.

    Args:
        make_runner: `make_runner(index, seed)`, called in the actor; each runner has a seed of its own.
        num_runners: how many.
        seed: from which the runners' seeds follow.
        slow_after_s: `sample` does not wait longer than so for the rest, once one has answered; what slow ones sample
            is in a later sample. None: it waits for all.
        lost_after_s: a runner that is at one request for longer is replaced.
        merge_every: after how many samples of a runner `sample_async` merges what pipelines have learned. For that it
            waits until no request is under way.
        num_cpus_each: what Ray reserves for each runner, where it is there for others too.
        address: of a cluster to be joined. By default Ray is started here by `start_ray`, unless it runs already; what
            groups have started ends with the last of them that is closed.

    Raises:
        MissingExtra: Ray is not installed.
        RunnerLost: a runner cannot be made.
        InvalidArgument: no such numbers.
    """

    def __init__(
        self,
        make_runner: MakeRunner,
        num_runners: int,
        *,
        seed: int = 0,
        slow_after_s: float | None = None,
        lost_after_s: float = 600.0,
        merge_every: int = 10,
        num_cpus_each: float = 1,
        address: str | None = None,
    ) -> None:
        num_runners = checked_count("num_runners", num_runners)
        num_cpus_each = checked_number("num_cpus_each", num_cpus_each, low=0, high=1e6)
        self.make_runner, self.seed = make_runner, seed
        self.slow_after_s = None if slow_after_s is None else checked_number("slow_after_s", slow_after_s, low=0)
        self.lost_after_s = checked_number("lost_after_s", lost_after_s, low=0)
        self.merge_every = checked_count("merge_every", merge_every)
        self.policy_version: int | None = None
        self.replacements: list[RunnerReplacement] = []  # all there were
        self._workers: list[_Worker] = []
        self._found: list[RunnerSample] = []  # that nobody has got
        self._weights: Any = None  # a reference
        self._num_weights = 0
        self._merged: Any = None  # a reference to the statistics that everyone merges
        self._num_merges = 0
        self._anew: int | None = None  # the number that new episodes follow from
        self._num_begins = 0
        self._left: list[Any] = []  # statistics of runners that are no more
        self._generations: dict[int, int] = {}
        self._hold = RaySession(math.ceil(num_runners * num_cpus_each) + 1, address)
        self._ray = self._hold.ray
        self._finalizer = weakref.finalize(self, _release_dropped, self._hold, self._workers)
        each = 0 if self._hold.is_for_groups_alone else num_cpus_each
        self._actor_class = self._ray.remote(num_cpus=each, max_restarts=0, max_task_retries=0)(RunnerActor)
        self._closed = False
        try:
            self.resize(num_runners)
        except BaseException:
            self.close()
            raise

    @property
    def num_runners(self) -> int:
        """How many there are."""
        return len(self._workers)

    # --- sampling ------------------------------------------------------------------------------------------------

    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool = True,
        random_actions: bool = False,
    ) -> list[RunnerSample]:
        """A sample of each runner, in their order; of fewer where some are slow (see `slow_after_s`).

        Args:
            num_timesteps, num_episodes: of all runners together, divided evenly; otherwise as a runner's `sample`.
            explore, random_actions: as a runner's.

        Raises:
            InvalidArgument: neither count, both, or one below 1; or what a runner raised.
            RunnerLost: a runner dies again and again.
            EpisodeStateError: the group is closed, or Ray was shut down.
        """
        check_counts(num_timesteps, num_episodes)
        self._check_open()
        asked = _split_request(num_timesteps, num_episodes, self.num_runners, explore, random_actions)
        for worker in self._workers:
            worker.pending = deque(one for one in worker.pending if _goes_with(one.asked, explore, random_actions))
        self._merge_if_idle(at_least=1)
        for worker, own in zip(self._workers, asked, strict=False):
            if not worker.pending:
                self._ask(worker, own)
        waiting = [worker for worker in self._workers if worker.pending]
        until = math.inf if self.slow_after_s is None else monotonic() + self.slow_after_s
        failure = None
        while waiting:
            answered = self._first_of(waiting, until if self._found else math.inf)
            if answered is None:
                break
            again = answered.pending[0].asked
            try:
                was_there = self._fetch(answered)
            except Exception as error:  # the others go on, and their samples are kept
                failure, was_there = failure or error, True
            if was_there:
                waiting.remove(answered)
            else:
                self._ask(answered, again)
        if failure is not None:
            raise failure
        found, self._found = self._found, []
        return sorted(found, key=lambda sample: sample.index)

    def sample_async(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool = True,
        random_actions: bool = False,
        in_flight: int = 2,
    ) -> Iterator[RunnerSample]:
        """Samples without an end, each as soon as it is there; nobody waits for a slow runner.

        Args:
            num_timesteps, num_episodes: of each sample.
            explore, random_actions: as a runner's.
            in_flight: requests that each runner has at a time. With 2 it never waits for this process; weights that
                are set reach it one sample later.

        Errors: those of `sample`. Runners can be added and taken away between two samples.
        """
        check_counts(num_timesteps, num_episodes)
        in_flight = checked_count("in_flight", in_flight)
        return self._endless(Asked(num_timesteps, num_episodes, explore, random_actions), in_flight)

    def _endless(self, asked: Asked, in_flight: int) -> Iterator[RunnerSample]:
        while True:
            self._check_open()
            self._merge_if_idle(at_least=self.merge_every)
            if not self._is_merge_due(self.merge_every):
                for worker in self._workers:
                    while len(worker.pending) < in_flight:
                        self._ask(worker, asked)
            if not self._found:
                answered = self._first_of([worker for worker in self._workers if worker.pending], math.inf)
                if answered is not None:
                    self._fetch(answered)
            while self._found:
                yield self._found.pop(0)

    def _ask(self, worker: _Worker, asked: Asked) -> None:
        """Send a request, with the weights and statistics that the runner does not have yet."""
        restored = worker.statistics if worker.is_behind else None
        has_weights, has_merged = worker.num_weights == self._num_weights, worker.num_merges == self._num_merges
        ref = worker.actor.sample.remote(
            asked,
            None if has_weights else self._weights,
            self.policy_version,
            None if has_merged or restored is not None else self._merged,
            restored,
            None if worker.num_begins == self._num_begins else self._anew,
        )
        worker.num_begins = self._num_begins
        worker.num_weights, worker.num_merges, worker.is_behind = self._num_weights, self._num_merges, False
        worker.pending.append(_Request(ref, asked, monotonic()))

    def _first_of(self, workers: Sequence[_Worker], until: float) -> _Worker | None:
        """The worker that answers first, or is lost; those that wait for the longest come first. None at `until`."""
        heads = {one.pending[0].ref: one for one in sorted(workers, key=lambda one: one.pending[0].since)}
        oldest = next(iter(heads.values()))
        lost_at = oldest.pending[0].since + self.lost_after_s
        first = min(until, lost_at)
        timeout = None if math.isinf(first) else max(0.0, first - monotonic())
        ready, _ = self._ray.wait(list(heads), num_returns=1, timeout=timeout)
        if ready:
            return heads[ready[0]]
        if lost_at <= until:
            self._ray.kill(oldest.actor, no_restart=True)  # so that its request fails
            return oldest
        return None

    def _fetch(self, worker: _Worker) -> bool:
        """Keep what the worker has sampled; False where it died, and another is in its place that was asked nothing."""
        errors = self._ray.exceptions
        request = worker.pending[0]
        try:
            answer: SampleReply = self._ray.get(request.ref)
        except (errors.RayActorError, errors.ObjectLostError) as error:
            taken_s = monotonic() - request.since
            was_slow = taken_s > self.lost_after_s
            self._replace(worker, f"at one request for {taken_s:.0f} s" if was_slow else str(error), error)
            return False
        except Exception as error:  # of the runner, also one that cannot be unpickled here
            worker.pending.popleft()
            worker.is_behind, worker.num_weights, worker.num_merges, worker.num_begins = True, 0, 0, 0
            cause = getattr(error, "cause", None)
            raise (cause if isinstance(cause, Exception) else error) from error
        worker.pending.popleft()
        if worker.pending:
            worker.pending[0].since = monotonic()
        worker.num_deaths, worker.statistics = 0, answer.statistics
        worker.num_answers += 1
        self._found.append(answer.sample)
        return True

    # --- weights and statistics ----------------------------------------------------------------------------------

    def set_weights(self, weights: Any, version: int | None = None) -> None:
        """Give all runners these weights, each with its next request.

        Args:
            weights: a policy that is a `torch.nn.Module`, or its state dict; of several modules, `{module_id: either}`.
            version: that samples tell of; one more than the last by default.
        """
        self._check_open()
        self._weights = self._ray.put(as_arrays(weights))
        self._num_weights += 1
        self.policy_version = (-1 if self.policy_version is None else self.policy_version) + 1
        if version is not None:
            self.policy_version = version

    def statistics(self) -> Any:
        """What the env-to-module pipelines of all runners have learned, as a state for `env_to_module.set_state`; None
        where they learn nothing. It waits for the requests that are under way."""
        self._check_open()
        while going := [worker for worker in self._workers if worker.pending]:
            answered = self._first_of(going, math.inf)
            if answered is not None:
                self._fetch(answered)
        self._merge_if_idle(at_least=1)
        return None if self._merged is None else self._merged_by(self._workers[0])

    def _merged_by(self, worker: _Worker) -> Any:
        """One state out of those that everyone merges, made by this worker or by who comes in its place."""
        errors = self._ray.exceptions
        while True:
            try:
                return self._ray.get(worker.actor.merged.remote(self._merged), timeout=self.lost_after_s)
            except (errors.RayActorError, errors.ObjectLostError, errors.GetTimeoutError) as error:
                self._replace(worker, str(error), error)

    def begin_anew(self, number: int, statistics: Any = None) -> None:
        """Let all runners begin new episodes with their next request, seeded by this number and their own seeds.

        So is torch's generator, with which they draw actions, unless their `module_to_env` has a seed of its own. What
        they were asked for and have not delivered yet is dropped.

        Args:
            statistics: what all their pipelines know then, as `statistics` gives it; None: what each does.
        """
        self._check_open()
        has_learned = (
            any(one.pending or one.statistics is not None for one in self._workers) or self._merged is not None
        )
        self._found = []
        for worker in self._workers:
            worker.pending.clear()
        self._anew = number
        self._num_begins += 1
        if statistics is not None and (has_learned or has_content(statistics)):
            self._told([statistics])

    def _is_merge_due(self, at_least: int) -> bool:
        has_new = any(one.num_answers >= at_least and one.statistics is not None for one in self._workers)
        return has_new or (at_least == 1 and bool(self._left))

    def _merge_if_idle(self, at_least: int) -> None:
        """Let all runners merge what each has learned, with their next request.

        None may be under way: states are joined exactly where all were last given the same one.
        """
        if any(worker.pending for worker in self._workers) or not self._is_merge_due(at_least):
            return
        self._told([*self._left, *(one.statistics for one in self._workers if one.statistics is not None)])

    def _told(self, known: list[Any]) -> None:
        """Let all merge these states with their next request."""
        self._merged = self._ray.put(known)
        self._num_merges += 1
        self._left = []
        for worker in self._workers:
            worker.statistics, worker.num_answers = None, 0

    # --- runners that come and go --------------------------------------------------------------------------------

    def resize(self, num_runners: int) -> None:
        """Have so many runners from now on: new ones begin with the weights and statistics of the others; the last go,
        with what they have not delivered yet.

        Raises:
            RunnerLost: a new one cannot be made.
        """
        num_runners = checked_count("num_runners", num_runners)
        self._check_open()
        gone = self._workers[num_runners:]
        del self._workers[num_runners:]
        self._left += [worker.statistics for worker in gone if worker.statistics is not None]
        self._end(gone)
        new = [self._started(index) for index in range(len(self._workers), num_runners)]
        limit = None if math.isinf(self.lost_after_s) else self.lost_after_s
        try:
            self._ray.get([worker.actor.__ray_ready__.remote() for worker in new], timeout=limit)
        except self._ray.exceptions.GetTimeoutError as error:
            self._end(new)
            has, free = (
                told.get("CPU", 0) for told in (self._ray.cluster_resources(), self._ray.available_resources())
            )
            raise RunnerLost(
                f"{len(new)} runners did not start within {self.lost_after_s:g} s; Ray has {has:g} CPUs, {free:g} "
                "of them free: give it more, or reserve less with num_cpus_each="
            ) from error
        except self._ray.exceptions.RayActorError as error:
            self._end(new)
            raise RunnerLost(f"make_runner failed: {error}") from error
        self._workers += new

    def _started(self, index: int) -> _Worker:
        generation = self._generations[index] = self._generations.get(index, -1) + 1
        sequence = np.random.SeedSequence(self.seed, spawn_key=(index, generation))
        seed = int(sequence.generate_state(1)[0] >> 1)
        return _Worker(index, generation, self._actor_class.remote(self.make_runner, index, seed))

    def _replace(self, worker: _Worker, reason: str, error: Exception) -> None:
        """Put a new actor in the worker's place, which will get its statistics and the weights."""
        self._ray.kill(worker.actor, no_restart=True)
        worker.num_deaths += 1
        worker.pending.clear()
        if worker.num_deaths > _MOST_DEATHS:
            worker.num_deaths = 0
            raise RunnerLost(
                f"runner {worker.index} died {_MOST_DEATHS + 1} times without a sample: {reason}"
            ) from error
        new = self._started(worker.index)
        worker.generation, worker.actor = new.generation, new.actor
        worker.is_behind, worker.num_weights, worker.num_merges, worker.num_begins = True, 0, 0, 0
        self.replacements.append(RunnerReplacement(worker.index, reason))
        _log.warning("runner %d is replaced: %s", worker.index, reason)

    def _end(self, workers: Sequence[_Worker]) -> None:
        refs = [worker.actor.close.remote() for worker in workers]
        if refs:
            self._ray.wait(refs, num_returns=len(refs), timeout=_CLOSING_S)
        for worker in workers:
            worker.pending.clear()
            self._ray.kill(worker.actor, no_restart=True)

    # --- closing -------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise EpisodeStateError("the group of runners is closed; make a new one")
        if not self._hold.is_there:
            raise EpisodeStateError("Ray was shut down, and the runners of this group with it; make a new group")

    def close(self) -> None:
        """Close the runners and end their processes; Ray too, where this is the last group of those that started it.

        It may be called again.
        """
        if self._closed:
            return
        self._closed = True
        workers = self._workers[:]
        self._workers.clear()
        self._weights = self._merged = None
        try:
            if self._hold.is_there:
                self._end(workers)
        finally:
            self._hold.end()

    def __repr__(self) -> str:
        return f"RayRunnerGroup({self.num_runners} runners, {len(self.replacements)} replaced)"


def _release_dropped(hold: RaySession, workers: list[_Worker]) -> None:
    """End the actors of a group that was garbage-collected, or is open when the process ends."""
    if hold.is_ended:
        return
    try:
        if hold.is_there:
            for worker in workers:
                hold.ray.kill(worker.actor, no_restart=True)
    finally:
        hold.end()
    warnings.warn("a RayRunnerGroup was dropped without close(); it is closed now", ResourceWarning, stacklevel=2)


def _goes_with(asked: Asked, explore: bool, random_actions: bool) -> bool:
    return asked.explore == explore and asked.random_actions == random_actions


def _split_request(
    num_timesteps: int | None, num_episodes: int | None, num_runners: int, explore: bool, random_actions: bool
) -> list[Asked]:
    """What each runner is asked for; nothing of the last ones where there are more runners than there is to sample."""
    total = num_episodes if num_timesteps is None else num_timesteps
    each, more = divmod(total or 0, num_runners)
    counts = [each + (index < more) for index in range(num_runners)]
    return [
        Asked(count, None, explore, random_actions)
        if num_episodes is None
        else Asked(None, count, explore, random_actions)
        for count in counts
        if count
    ]
