"""Concurrent conversations: counts are exact, groups are complete, and failures stay alone."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable

import psutil
import pytest

from episodes.errors import EpisodeStateError
from episodes.tokens import TokenRecorder, group_numbers


class ToolFailed(Exception):
    pass


async def play(recorder: TokenRecorder, group: int, rng: random.Random, fail: float, wait: float) -> None:
    """Play one conversation; it fails with probability `fail` in each turn."""
    async with recorder.conversation([1, group % 1000], group=group) as talk:
        for t in range(num_turns := rng.randint(1, 4)):
            await asyncio.sleep(rng.random() * wait)
            if rng.random() < fail:
                raise ToolFailed
            reply = [7] * rng.randint(0, 3)
            talk.turn([5, t], reply, 1.0, terminated=t == num_turns - 1, logp=[-1.0, -float(t)])


async def run(num_groups: int, group_size: int, *, at_once: int, fail: float, wait: float) -> Counter:
    """Play `num_groups` groups with failures and cancellations until each is complete, and return counts."""
    rng, counts = random.Random(0), Counter()
    recorder = TokenRecorder(group_size=group_size)
    todo = [group for group in range(num_groups) for _ in range(group_size)]
    rng.shuffle(todo)
    running: dict[asyncio.Task, int] = {}
    counter: Counter = Counter()
    while todo or running:
        while todo and len(running) < at_once:
            group = todo.pop()
            running[asyncio.create_task(play(recorder, group, rng, fail, wait))] = group
            counts["begun"] += 1
        if rng.random() < 0.3:
            rng.choice(list(running)).cancel()
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            group = running.pop(task)
            if task.cancelled() or task.exception() is not None:
                assert task.cancelled() or isinstance(task.exception(), ToolFailed)
                counts["failed"] += 1
                todo.append(group)
            else:
                counts["ended"] += 1
        assert recorder.num_open <= len(running)
        pack = recorder.take()
        if pack is not None:
            groups = [data["group"] for data in pack.custom_data or []]
            runs = [groups[i : i + group_size] for i in range(0, len(groups), group_size)]
            assert all(len(set(members)) == 1 for members in runs)
            assert (pack.returns() == pack.lengths).all()
            counter.update(groups)
    assert counter == Counter(dict.fromkeys(range(num_groups), group_size))
    assert counts["ended"] == num_groups * group_size == counts["begun"] - counts["failed"]
    assert (recorder.num_open, recorder.num_complete, recorder.missing()) == (0, 0, {})
    return counts


@pytest.mark.parametrize(
    ("num_groups", "at_once", "wait"),
    [(60, 100, 0.001), pytest.param(1000, 1000, 0.2, marks=pytest.mark.slow)],
)
def test_token_recorder_of_concurrent_conversations_returns_complete_groups(
    num_groups: int, at_once: int, wait: float
) -> None:
    counts = asyncio.run(run(num_groups, 4, at_once=at_once, fail=0.05, wait=wait))
    assert counts["failed"] > num_groups / 6


async def play_rounds(recorder: TokenRecorder, first: int, num_groups: int, at_once: int) -> None:
    """Play groups of four with failures, and drop the incomplete ones."""
    rng = random.Random(first)
    for start in range(first, first + num_groups, at_once):
        groups = range(start, min(start + at_once, first + num_groups))
        tasks = [play(recorder, group, rng, 0.02, 0.0) for group in groups for _ in range(4)]
        await asyncio.gather(*tasks, return_exceptions=True)
        recorder.take()
        for group in recorder.missing():
            recorder.drop_group(group)


def growth(measure: Callable[[], int], num_before: int, num_groups: int, at_once: int) -> int:
    """Return how much `measure()` grows while groups are played, after `num_before` other groups."""

    async def main() -> int:
        recorder = TokenRecorder(group_size=4)
        await play_rounds(recorder, 0, num_before, at_once)
        gc.collect()
        before = measure()
        await play_rounds(recorder, num_before, num_groups, at_once)
        gc.collect()
        return measure() - before

    return asyncio.run(main())


def test_token_recorder_of_many_conversations_holds_flat_memory() -> None:
    tracemalloc.start()
    try:
        assert growth(lambda: tracemalloc.get_traced_memory()[0], 50, 150, 25) < 60_000  # bytes
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_token_recorder_of_fifty_thousand_conversations_holds_flat_memory() -> None:
    process = psutil.Process()
    assert growth(lambda: process.memory_info().rss, 500, 12_000, 250) < 10_000_000  # 200 bytes per conversation


def test_token_recorder_wait_for_returns_the_number_of_groups() -> None:
    recorder = TokenRecorder(group_size=2, outputs={})

    async def main() -> None:
        async def play_one(group: int) -> None:
            async with recorder.conversation([1], group=group) as talk:
                await asyncio.sleep(0)
                talk.turn([2], terminated=True)

        waiting = [asyncio.create_task(recorder.wait_for(num)) for num in (2, 1)]
        await asyncio.gather(*(play_one(k % 3) for k in range(6)))
        packs = await asyncio.gather(*waiting)
        assert sorted(map(len, packs)) == [2, 4]
        abandoned = asyncio.create_task(recorder.wait_for(1))
        await asyncio.sleep(0)
        abandoned.cancel()
        await asyncio.gather(abandoned, return_exceptions=True)

    asyncio.run(main())
    asyncio.run(main())  # another event loop
    assert recorder.num_complete == 0


def test_token_recorder_take_leaves_later_groups() -> None:
    recorder = TokenRecorder(outputs={})
    for k in range(3):
        talk = recorder.begin([k])
        talk.turn([k], terminated=True)
        recorder.end(talk)
    first, remaining = recorder.take(1), recorder.take()
    assert first is not None
    assert remaining is not None
    assert (len(first), len(remaining), recorder.take()) == (1, 2, None)


def test_token_recorder_takes_the_ended_members_of_a_group_with_a_failed_one() -> None:
    recorder = TokenRecorder(group_size=4, outputs={})
    talks = [recorder.begin([1], group="g") for _ in range(4)]
    for talk in talks[:3]:
        talk.turn([2], terminated=True)
        recorder.end(talk)
    assert recorder.take(incomplete=True) is None  # one is open
    recorder.drop(talks[3])
    assert (recorder.take(), recorder.missing()) == (None, {"g": 1})
    pack = recorder.take(incomplete=True)
    assert pack is not None
    assert (len(pack), group_numbers(pack).tolist(), recorder.missing()) == (3, [0, 0, 0], {})


def test_token_recorder_of_failed_group_lacks_all_its_conversations() -> None:
    recorder = TokenRecorder(group_size=2, outputs={})

    async def fail(number: int) -> None:
        async with recorder.conversation([1], group="g") as talk:
            talk.turn([number])
            raise ToolFailed(number)

    async def unfinished() -> None:
        async with recorder.conversation([1], group="g"):
            pass

    async def main() -> list:
        return await asyncio.gather(fail(0), fail(1), unfinished(), return_exceptions=True)

    errors = asyncio.run(main())
    assert [type(error) for error in errors] == [ToolFailed, ToolFailed, EpisodeStateError]
    assert (recorder.take(), recorder.missing(), recorder.num_dropped, recorder.num_open) == (None, {"g": 2}, 3, 0)
    assert "3 dropped, the newest by EpisodeStateError('TokenRecorder.end: episode" in repr(recorder)
    assert recorder.drop_group("g") == 0
    assert recorder.missing() == {}


def test_token_recorder_block_may_end_or_drop_its_conversation() -> None:
    recorder = TokenRecorder(outputs={})

    async def main() -> None:
        async with recorder.conversation([1]) as talk:
            recorder.drop(talk)
        async with recorder.conversation([1]) as talk:
            talk.turn([2], truncated=True)
            recorder.end(talk)

    asyncio.run(main())
    assert (recorder.num_open, recorder.num_complete, recorder.num_dropped) == (0, 1, 1)
