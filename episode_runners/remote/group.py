"""`RayRunnerGroup`: many runners that sample in parallel processes."""

from __future__ import annotations

import logging
import math
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
import torch

from episode_runners.remote.actor import (
    MakeRunner,
    RunnerActor,
    RunnerSample,
    SampleReply,
    SampleRequest,
    as_arrays,
    has_content,
)
from episode_runners.remote.ray_session import RaySession
from episode_runners.runner import check_counts, quotas
from episodes.closeable import Closeable
from episodes.errors import EpisodeStateError, RunnerLost
from episodes.tracks.validation import checked_count, checked_number

__all__ = ["RayRunnerGroup", "RunnerReplacement"]

_MOST_DEATHS = 2  # of one runner without a sample between them
_CLOSING_S = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunnerReplacement:
    """Record of a remote runner that was replaced, and why.

    Attributes:
        index: index of the runner in its group.
        reason: why the previous runner was replaced.
    """

    index: int
    reason: str


@dataclass(slots=True)
class _Request:
    """Pending request of a remote runner, with Ray's reference to its reply."""

    ref: Any
    request: SampleRequest
    since: float  # time at which the actor could start it


@dataclass(slots=True)
class _Worker:
    """A remote runner, with its pending requests and the versions of the weights and statistics it was sent last."""

    index: int
    actor: Any
    starting: Any = None  # Ray's reference to the start of a replacement, until it has started
    statistics: Any = None  # its newest statistics since the last merge
    needs_statistics: bool = False  # it is new or has failed: the next request restores its statistics
    num_weights: int = 0  # number of the weights that it was sent last
    num_merges: int = 0  # number of the merged statistics that it was sent last
    num_restarts: int = 0  # number of the start of new episodes that it was sent last
    num_samples: int = 0  # since the last merge
    num_deaths: int = 0  # deaths of actors with this index since the last sample
    pending: deque[_Request] = field(default_factory=deque)

    def send_all_again(self) -> None:
        """Send weights, statistics and the number for new episodes again with the next request."""
        self.needs_statistics, self.num_weights, self.num_merges, self.num_restarts = True, 0, 0, 0


@dataclass(slots=True)
class _Announcement:
    """Value that is sent to each runner with its next request, unless the runner has it, and its number.

    The number counts how often the value was replaced.
    """

    value: Any = None
    number: int = 0

    def replace(self, value: object) -> None:
        """Replace the value."""
        self.value = value
        self.number += 1

    def since(self, number: int) -> Any:
        """Return the value, or None if its number is `number`: the runner has it already."""
        return None if number == self.number else self.value


class RayRunnerGroup(Closeable):
    """Group of equal runners that sample in parallel processes of Ray.

    Samples are read in place from shared memory. Weights are stored there once for all runners, and reach each runner
    with its next request. If the env-to-module pipelines have statistics (`MeanStdFilter`), they are merged, so that
    all runners continue with the observations of all.

    A runner whose process died is replaced by one with the same weights and the last known statistics. Errors of a
    runner are raised here with their type and message. Samples of other runners that arrive meanwhile are part of the
    next sample.

    Close a group, or use it in a `with` statement. A group that is dropped without `close` ends its actors with a
    `ResourceWarning`.

    Args:
        make_runner: called in the actor as `make_runner(index, seed)`. Each runner has its own seed.
        num_runners: number of runners.
        seed: seed from which the runners' seeds are derived.
        slow_after_s: seconds that `sample` waits for the other runners after the first reply; samples of slower runners
            are part of a later sample. None waits for all.
        lost_after_s: seconds without a reply after which a runner is replaced.
        start_within_s: seconds within which a runner must start. If the first ones take longer, this is an error
            (`RunnerLost`). A replacement that takes longer is replaced again.
        merge_every: number of samples of a runner after which `sample_async` merges the pipelines' statistics. It waits
            until no request is pending.
        num_cpus_each: CPUs that Ray reserves for each runner, if others use Ray too.
        address: address of a cluster to join. By default, Ray is started on this machine by `start_ray`, unless it runs
            already; it ends when the last group that uses it is closed.

    Raises:
        MissingExtra: Ray is not installed.
        RunnerLost: a runner cannot be created.
        InvalidArgument: a number is invalid.
    """

    def __init__(
        self,
        make_runner: MakeRunner,
        num_runners: int,
        *,
        seed: int = 0,
        slow_after_s: float | None = None,
        lost_after_s: float = 600.0,
        start_within_s: float = 600.0,
        merge_every: int = 10,
        num_cpus_each: float = 1,
        address: str | None = None,
    ) -> None:
        num_runners = checked_count("num_runners", num_runners)
        num_cpus_each = checked_number("num_cpus_each", num_cpus_each, low=0, high=1e6)
        self.make_runner, self.seed = make_runner, seed
        self.slow_after_s = None if slow_after_s is None else checked_number("slow_after_s", slow_after_s, low=0)
        self.lost_after_s = checked_number("lost_after_s", lost_after_s, low=0)
        self.start_within_s = checked_number("start_within_s", start_within_s, low=0)
        self.merge_every = checked_count("merge_every", merge_every)
        self.policy_version: int | None = None
        self.replacements: list[RunnerReplacement] = []
        self._workers: list[_Worker] = []
        self._ready_samples: list[RunnerSample] = []  # not returned yet
        self._weights = _Announcement()  # Ray's reference to the weights
        self._merged = _Announcement()  # Ray's reference to the statistics that all runners merge
        self._episode_seed = _Announcement()  # number of the last `restart_episodes`
        self._removed_statistics: list[Any] = []  # of removed runners, until the next merge
        self._generations: dict[int, int] = {}
        self._session = RaySession(math.ceil(num_runners * num_cpus_each) + 1, address)
        self._ray = self._session.ray
        weakref.finalize(self, _release_dropped, self._session, self._workers)
        each = 0 if self._session.is_for_groups_alone else num_cpus_each
        self._actor_class = self._ray.remote(num_cpus=each, max_restarts=0, max_task_retries=0)(RunnerActor)
        self._closed = False
        try:
            self.resize(num_runners)
        except BaseException:
            self.close()
            raise

    @property
    def num_runners(self) -> int:
        """Number of runners in the group."""
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
        """Let all runners sample at the same time, and return their samples in the order of the runners.

        Args:
            num_timesteps, num_episodes: steps or episodes of all runners together, divided evenly. Exactly one is
                given.
            explore, random_actions: as in a runner's `sample`.

        Raises:
            InvalidArgument: not exactly one count is given, or it is below 1; or a runner raised it.
            RunnerLost: a runner died several times without a sample.
            EpisodeStateError: the group is closed, or Ray was shut down.

        Samples of runners that are slower than `slow_after_s` are returned by a later call.
        """
        check_counts(num_timesteps, num_episodes)
        self._check_open()
        counts, _ = quotas(num_timesteps or num_episodes or 0, self.num_runners)
        for worker in self._workers:
            worker.pending = deque(
                pending
                for pending in worker.pending
                if (pending.request.explore, pending.request.random_actions) == (explore, random_actions)
            )
        self._merge_if_idle(at_least=1)
        for worker, count in zip(self._workers, counts.tolist(), strict=True):
            if count and not worker.pending:
                steps, episodes = (count, None) if num_episodes is None else (None, count)
                self._send_request(worker, SampleRequest(steps, episodes, explore, random_actions))
        waiting = [worker for worker in self._workers if worker.pending]
        until = math.inf if self.slow_after_s is None else monotonic() + self.slow_after_s
        failure = None
        while waiting:
            answered = self._wait_for_first(waiting, until if self._ready_samples else math.inf)
            if answered is None:
                break
            last_request = answered.pending[0].request
            try:
                was_there = self._fetch(answered)
            except Exception as error:  # other runners continue, and their samples are kept
                failure, was_there = failure or error, True
            if was_there:
                waiting.remove(answered)
            else:
                self._send_request(answered, last_request)
        if failure is not None:
            raise failure
        samples, self._ready_samples = self._ready_samples, []
        return sorted(samples, key=lambda sample: sample.index)

    def sample_async(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool = True,
        random_actions: bool = False,
        in_flight: int = 2,
    ) -> Iterator[RunnerSample]:
        """Return an endless iterator of samples. Each sample is yielded as soon as its runner has finished it.

        Runners can be added and removed between two samples. Errors are those of `sample`.

        Args:
            num_timesteps, num_episodes: steps or episodes of each sample. Exactly one is given.
            explore, random_actions: as in a runner's `sample`.
            in_flight: pending requests of each runner. With 2, runners never wait for this process, and new weights
                reach them one sample later.
        """
        check_counts(num_timesteps, num_episodes)
        in_flight = checked_count("in_flight", in_flight)
        return self._iterate(SampleRequest(num_timesteps, num_episodes, explore, random_actions), in_flight)

    def _iterate(self, request: SampleRequest, in_flight: int) -> Iterator[RunnerSample]:
        """Yield samples for `sample_async`: keep `in_flight` requests pending per runner,
        and merge statistics when it is due.
        """
        while True:
            self._check_open()
            self._merge_if_idle(at_least=self.merge_every)
            if not self._is_merge_due(self.merge_every):
                for worker in self._workers:
                    while len(worker.pending) < in_flight:
                        self._send_request(worker, request)
            if not self._ready_samples:
                answered = self._wait_for_first([worker for worker in self._workers if worker.pending], math.inf)
                if answered is not None:
                    self._fetch(answered)
            while self._ready_samples:
                yield self._ready_samples.pop(0)

    def _send_request(self, worker: _Worker, request: SampleRequest) -> None:
        """Send a sample request to a worker, together with weights and statistics that are new to the worker."""
        restored = worker.statistics if worker.needs_statistics else None
        weights, merged, seed = self._weights, self._merged, self._episode_seed
        ref = worker.actor.sample.remote(
            request,
            weights.since(worker.num_weights),
            self.policy_version,
            None if restored is not None else merged.since(worker.num_merges),
            restored,
            seed.since(worker.num_restarts),
        )
        worker.num_restarts = seed.number
        worker.num_weights, worker.num_merges, worker.needs_statistics = weights.number, merged.number, False
        worker.pending.append(_Request(ref, request, monotonic()))

    def _wait_for_first(self, workers: Sequence[_Worker], until: float) -> _Worker | None:
        """Wait until a worker replies or dies, and return the worker. Return None if that takes until the time `until`.

        If several have replied, the worker with the longest waiting request is returned. A worker whose request
        waits for longer than `lost_after_s` after its start is killed and returned.
        """
        while True:
            heads = {worker.pending[0].ref: worker for worker in sorted(workers, key=self._lost_at)}
            starting = {worker.starting: worker for worker in workers if worker.starting is not None}
            oldest = next(iter(heads.values()))
            lost_at = self._lost_at(oldest)
            first = min(until, lost_at)
            timeout = None if math.isinf(first) else max(0.0, first - monotonic())
            ready, _ = self._ray.wait([*starting, *heads], num_returns=1, timeout=timeout)
            if not (ready and ready[0] in starting):
                break
            started = starting[ready[0]]
            started.starting, started.pending[0].since = None, monotonic()
        is_lost = monotonic() >= lost_at or (not ready and lost_at <= until)
        if is_lost and oldest.pending[0].ref not in ready:  # the oldest comes first of those that are ready
            self._ray.kill(oldest.actor, no_restart=True)  # its request fails then
            return oldest
        return heads[ready[0]] if ready else None

    def _lost_at(self, worker: _Worker) -> float:
        """Return the time at which a worker with a request is lost. The time in which it starts has its own limit."""
        limit = self.lost_after_s if worker.starting is None else self.start_within_s
        return worker.pending[0].since + limit

    def _fetch(self, worker: _Worker) -> bool:
        """Store the sample from a worker's reply. Return False if the worker has died and was replaced instead.

        Raises:
            RunnerLost: the worker died too often.
            Exception: the error that the runner raised.
        """
        errors = self._ray.exceptions
        request = worker.pending[0]
        try:
            answer: SampleReply = self._ray.get(request.ref)
        except (errors.RayActorError, errors.ObjectLostError) as error:
            taken_s = monotonic() - request.since
            was_slow = monotonic() >= self._lost_at(worker)
            self._replace(worker, f"pending for {taken_s:.0f} s" if was_slow else str(error), error)
            return False
        except Exception as error:  # raised by the runner
            worker.pending.popleft()
            worker.send_all_again()
            cause = getattr(error, "cause", None)
            raise (cause if isinstance(cause, Exception) else error) from error
        worker.pending.popleft()
        if worker.pending:
            worker.pending[0].since = monotonic()
        worker.num_deaths, worker.statistics = 0, answer.statistics
        worker.num_samples += 1
        self._ready_samples.append(answer.sample)
        return True

    # --- weights and statistics ----------------------------------------------------------------------------------

    def set_weights(self, weights: torch.nn.Module | Mapping[str, Any], version: int | None = None) -> None:
        """Set the policy weights of all runners. Each runner receives them with its next request.

        Args:
            weights: a policy (`torch.nn.Module`) or its state dict; for several modules, `{module_id: either}`.
            version: policy version of the samples; by default one more than the previous version.
        """
        self._check_open()
        self._weights.replace(self._ray.put(as_arrays(weights)))
        if version is None:
            version = 0 if self.policy_version is None else self.policy_version + 1
        self.policy_version = version

    def statistics(self) -> Any:
        """Return the merged statistics of all runners' env-to-module pipelines, for `env_to_module.set_state`.

        It waits for pending requests.

        Returns:
            None if no connector has statistics.
        """
        self._check_open()
        while going := [worker for worker in self._workers if worker.pending]:
            answered = self._wait_for_first(going, math.inf)
            if answered is not None:
                self._fetch(answered)
        self._merge_if_idle(at_least=1)
        return None if self._merged.value is None else self._merged_by(self._workers[0])

    def _merged_by(self, worker: _Worker) -> Any:
        """Let a worker merge the statistics of all runners, and return the result.
        If the worker dies, its replacement merges.
        """
        errors = self._ray.exceptions
        while True:
            try:
                return self._ray.get(worker.actor.merged.remote(self._merged.value), timeout=self.lost_after_s)
            except (errors.RayActorError, errors.ObjectLostError, errors.GetTimeoutError) as error:
                self._replace(worker, str(error), error)

    def restart_episodes(self, number: int, statistics: dict[str, Any] | None = None) -> None:
        """Make all runners start new episodes, with seeds derived from `number` and each runner's own seed.

        Torch's generator in the actors, from which actions are sampled, is seeded too, unless `module_to_env` has its
        own seed. Samples that were requested and not returned yet are dropped.

        Args:
            number: any integer, such as the number of steps so far.
            statistics: statistics for all pipelines, as `statistics` returns them; None leaves them.
        """
        self._check_open()
        has_learned = self._merged.value is not None or any(
            worker.pending or worker.statistics is not None for worker in self._workers
        )
        self._ready_samples = []
        for worker in self._workers:
            worker.pending.clear()
        self._episode_seed.replace(number)
        if statistics is not None and (has_learned or has_content(statistics)):
            self._schedule_merge([statistics])

    def _is_merge_due(self, at_least: int) -> bool:
        has_new = any(worker.num_samples >= at_least and worker.statistics is not None for worker in self._workers)
        return has_new or (at_least == 1 and bool(self._removed_statistics))

    def _merge_if_idle(self, at_least: int) -> None:
        """Merge the runners' statistics if no request is pending and enough samples have arrived.

        Enough are `at_least` samples of one runner since the last merge.

        The result is exact only if all runners last received the same statistics. Therefore no request may be pending.
        """
        if any(worker.pending for worker in self._workers) or not self._is_merge_due(at_least):
            return
        newest = [worker.statistics for worker in self._workers if worker.statistics is not None]
        self._schedule_merge([*self._removed_statistics, *newest])

    def _schedule_merge(self, known: list[Any]) -> None:
        """Send the statistics `known` of all runners to every runner with its next request. Each runner merges them."""
        self._merged.replace(self._ray.put(known))
        self._removed_statistics = []
        for worker in self._workers:
            worker.statistics, worker.num_samples = None, 0

    # --- adding, removing and replacing runners --------------------------------------------------------------------

    def resize(self, num_runners: int) -> None:
        """Change the number of runners. Runners are added or removed at the end of the group.

        Args:
            num_runners: number of runners from now on. Pending samples of removed runners are dropped.

        Raises:
            RunnerLost: a runner cannot be created.
            InvalidArgument: `num_runners` is below 1.

        New runners receive the group's weights and merged statistics with their first request.
        """
        num_runners = checked_count("num_runners", num_runners)
        self._check_open()
        removed = self._workers[num_runners:]
        del self._workers[num_runners:]
        self._removed_statistics += [worker.statistics for worker in removed if worker.statistics is not None]
        self._end(removed)
        new = [_Worker(index, self._start_actor(index)) for index in range(len(self._workers), num_runners)]
        limit = None if math.isinf(self.start_within_s) else self.start_within_s
        try:
            self._ray.get([worker.actor.__ray_ready__.remote() for worker in new], timeout=limit)
        except self._ray.exceptions.GetTimeoutError as error:
            self._end(new)
            has, free = self._ray.cluster_resources().get("CPU", 0), self._ray.available_resources().get("CPU", 0)
            raise RunnerLost(
                f"{len(new)} runners did not start within {self.start_within_s:g} s; Ray has {has:g} CPUs, {free:g} "
                "of them free; start Ray with more CPUs, reserve fewer with num_cpus_each=, or raise start_within_s= "
                "if make_runner or this machine is slow"
            ) from error
        except self._ray.exceptions.RayActorError as error:
            self._end(new)
            cause = str(error).rstrip().rpartition("\n")[2]  # the last line of the traceback in the actor
            raise RunnerLost(f"make_runner failed: {cause}\n{error}") from error
        self._workers += new

    def _start_actor(self, index: int) -> Any:
        """Start an actor with the runner `index`, which has another seed than earlier actors with this index."""
        generation = self._generations[index] = self._generations.get(index, -1) + 1
        sequence = np.random.SeedSequence(self.seed, spawn_key=(index, generation))
        return self._actor_class.remote(self.make_runner, index, int(sequence.generate_state(1)[0] >> 1))

    def _replace(self, worker: _Worker, reason: str, error: Exception) -> None:
        """Replace a worker's process by a new one, which receives statistics and weights with its next request.

        Raises:
            RunnerLost: the worker died too often without a sample between.
        """
        self._ray.kill(worker.actor, no_restart=True)
        worker.num_deaths += 1
        worker.pending.clear()
        if worker.num_deaths > _MOST_DEATHS:
            worker.num_deaths = 0
            raise RunnerLost(
                f"runner {worker.index} died {_MOST_DEATHS + 1} times without a sample: {reason}"
            ) from error
        worker.actor = self._start_actor(worker.index)
        worker.starting = worker.actor.__ray_ready__.remote()
        worker.send_all_again()
        self.replacements.append(RunnerReplacement(worker.index, reason))
        _log.warning("runner %d is replaced: %s", worker.index, reason)

    def _end(self, workers: Sequence[_Worker]) -> None:
        """Close the runners of workers, and kill their processes after at most `_CLOSING_S` seconds."""
        refs = [worker.actor.close.remote() for worker in workers]
        if refs:
            self._ray.wait(refs, num_returns=len(refs), timeout=_CLOSING_S)
        for worker in workers:
            worker.pending.clear()
            self._ray.kill(worker.actor, no_restart=True)

    # --- closing -------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise EpisodeStateError("the group of runners is closed; create a new group")
        if not self._session.is_there:
            raise EpisodeStateError("Ray was shut down, and the runners of this group with it; make a new group")

    def close(self) -> None:
        """Close all runners and end their processes. Further calls do nothing.

        Ray is shut down with the last group, if groups have started it.
        """
        if self._closed:
            return
        self._closed = True
        workers = self._workers[:]
        self._workers.clear()
        self._weights.value = self._merged.value = None
        try:
            if self._session.is_there:
                self._end(workers)
        finally:
            self._session.end()

    def __repr__(self) -> str:
        return f"RayRunnerGroup({self.num_runners} runners, {len(self.replacements)} replaced)"


def _release_dropped(session: RaySession, workers: list[_Worker]) -> None:
    """End the processes of a group that was not closed, when it is garbage-collected or Python ends."""
    if session.is_ended:
        return
    try:
        if session.is_there:
            for worker in workers:
                session.ray.kill(worker.actor, no_restart=True)
    finally:
        session.end()
    warnings.warn("a RayRunnerGroup was dropped without close(); it is closed now", ResourceWarning, stacklevel=2)
