"""Sessions of calls against plain lists of calls: contexts, samples, lineages, rewards, groups."""

from __future__ import annotations

import asyncio
import copy
import pickle
import tracemalloc
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes import SingleAgentEpisode
from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch, TrackMismatch, UnknownKey, WrongType
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.tokens import Session, SessionRecorder, check_token_batch, group_numbers, token_batch


@dataclass(frozen=True)
class PlainCall:
    """One call as plain values."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    delivered: bool = True

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.ids


def logp_of(call: PlainCall) -> list[float]:
    """Return log-probabilities that depend on the token, its position and the token before it."""
    tokens = call.tokens
    return [-((7 * tokens[i] + 3 * tokens[i - 1] + i) % 64) / 64 for i in range(len(call.prompt), len(tokens))]


@st.composite
def histories(draw: st.DrawFn) -> list[PlainCall]:
    """Return calls of one session: continuations, sub-agents, retries, rewritten histories and lost samples."""
    top = draw(st.sampled_from([1, 3, 1000]))
    tokens = lambda low, high: draw(st.lists(st.integers(0, top), min_size=low, max_size=high))  # noqa: E731
    calls: list[PlainCall] = []
    for _ in range(draw(st.integers(1, 10))):
        kind = draw(st.sampled_from(["continue"] * 4 + ["new", "retry", "rewrite"])) if calls else "new"
        before = list(draw(st.sampled_from(calls[-4:])).tokens) if calls else []
        prompt = {
            "continue": lambda before=before: before + tokens(0, 3),
            "new": lambda: tokens(1, 5),
            "retry": lambda: list(draw(st.sampled_from(calls)).prompt),
            "rewrite": lambda before=before: before[: draw(st.integers(0, len(before)))] + tokens(1, 4),
        }[kind]()
        calls.append(PlainCall(tuple(prompt), tuple(tokens(0, 4)), draw(st.sampled_from([True] * 4 + [False]))))
        if draw(st.integers(0, 5)) == 0:  # an interrupted answer to the same prompt
            calls.append(PlainCall(calls[-1].prompt, calls[-1].ids[: draw(st.integers(0, 3))], delivered=False))
    return calls


def recorded(calls: list[PlainCall], recorder: SessionRecorder, **arguments: Any) -> Session:
    session = recorder.begin(**arguments)
    for call in calls:
        session.add(call.prompt, call.ids, logp=logp_of(call), delivered=call.delivered)
    return session


def parent_of(calls: list[PlainCall], k: int) -> int | None:
    """Return the number of the call that call `k` continues: that with the most tokens, then a delivered one, then one
    that arrived before, then the newest. Undelivered beginnings of delivered samples are left out."""
    keys = []
    for j, call in enumerate(calls):
        is_beginning = calls[k].prompt[: len(call.tokens)] == call.tokens
        others = [other.ids for other in calls if other.delivered and other.prompt == call.prompt]
        if not call.delivered and any(ids[: len(call.ids)] == call.ids for ids in others):
            continue
        if j != k and is_beginning and (len(call.tokens) < len(calls[k].tokens) or j < k):
            keys.append((len(call.tokens), call.delivered, j < k, j))
    return max(keys)[-1] if keys else None


def turns_of(episode: SingleAgentEpisode) -> list[tuple[tuple[int, ...], tuple[int, ...], list[float]]]:
    """Return for each turn the context before it, the sample and the log-probabilities, by reading the episode."""
    turns, context = [], []
    for t in range(len(episode)):
        kept = episode.get_infos(t).get("kept_tokens", len(context))
        context = context[:kept] + episode.get_observations(t).tolist()
        ids = episode.get_actions(t).tolist()
        turns.append((tuple(context), tuple(ids), episode.get_extra_model_outputs("logp", t).tolist()))
        context = context + ids
    return turns


@given(st.data())
def test_session_episode_has_each_sample_once_after_its_prompt(data: st.DataObject) -> None:
    calls = data.draw(histories())
    recorder = SessionRecorder()
    session = recorded(calls, recorder, id_="s")
    parents = {parent_of(calls, k) for k in range(len(calls))}
    kept = {k for k, call in enumerate(calls) if call.delivered or k in parents}
    report = session.report()
    assert (report.calls, report.undelivered) == (len(calls), len(calls) - len(kept))
    if not kept:
        with pytest.raises(EpisodeStateError, match="received no sample"):
            session.end()
        session.fail()
        return
    session.end(reward=1.0)
    pack = recorder.take()
    assert pack is not None
    turns = turns_of(pack[0])
    numbers = [pack[0].get_infos(t + 1)["call"] for t in range(len(turns))]
    assert sorted(numbers) == sorted(kept)
    for number, (prompt, ids, logp) in zip(numbers, turns, strict=True):
        assert (prompt, ids, logp) == (calls[number].prompt, calls[number].ids, logp_of(calls[number]))
    pairs = [(calls[i], calls[j]) for i in range(len(calls)) for j in range(i + 1, len(calls))]
    if not any(first.prompt[: len(second.tokens)] == second.tokens for first, second in pairs):
        assert max(numbers) == numbers[-1]  # parents arrived before their children
    batch = token_batch(pack)
    assert batch["loss_mask"].sum() == sum(len(ids) for _, ids, _ in turns) == report.sampled_tokens
    assert report.lineages - 1 == sum(report.branches.values())
    assert len(batch["cu_seqlens"]) - 1 <= report.lineages
    if len({call.tokens for call in calls}) == len(calls) and all(call.ids for call in calls):
        other = recorded(data.draw(st.permutations(calls)), recorder, id_="s")  # another order of arrival
        other.end(reward=1.0)
        assert sorted(turns_of(other.episode())) == sorted(turns)
        assert other.report().lineages == report.lineages


TABLE = np.random.default_rng(0).normal(size=(97, 200))
TABLE -= np.log(np.exp(TABLE).sum(1, keepdims=True))
THINK, ANSWER, TOOL = [50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61], [70, 71, 72], [80, 81]
FIRST = [1, 2, 3, 4]
SAMPLE = THINK + ANSWER
# Calls of each kind of history, the number of lineages, and why they began.
HISTORIES: dict[str, tuple[list[tuple[list[int], list[int]]], int, dict[str, int]]] = {
    "appended": ([(FIRST, SAMPLE), (FIRST + SAMPLE + TOOL, ANSWER)], 1, {}),
    "retry": ([(FIRST, SAMPLE), (FIRST, ANSWER), (FIRST, THINK)], 3, {"same prompt": 2}),
    "parallel calls": (
        [(FIRST, SAMPLE), (FIRST + SAMPLE + TOOL, ANSWER), (FIRST + SAMPLE + TOOL + [9], THINK)],
        2,
        {"same history": 1},
    ),
    "sub-agent": (
        [(FIRST, SAMPLE), ([1, 90], ANSWER), ([1, 90, *ANSWER, 5], THINK), (FIRST + SAMPLE + TOOL, ANSWER)],
        2,
        {"new prompt": 1},
    ),
    "compaction": (
        [
            (FIRST, ANSWER),
            (FIRST + ANSWER + TOOL + [30, 31, 32], ANSWER),
            (FIRST + ANSWER + TOOL + [30, 99, 98], ANSWER),
        ],
        2,
        {"same history": 1},
    ),
    "dropped thinking": (
        [(FIRST, SAMPLE), (FIRST + ANSWER + TOOL, SAMPLE), (FIRST + ANSWER + TOOL + ANSWER + TOOL, ANSWER)],
        3,
        {"shortened sample": 2},
    ),
    "drift": ([(FIRST, SAMPLE), (FIRST + SAMPLE[:-2] + [120, 72] + TOOL, ANSWER)], 2, {"encoded again": 1}),
    "rewritten": (
        [(FIRST, THINK), (FIRST + THINK[:2] + [130] * 30 + TOOL, ANSWER)],
        2,
        {"rewritten history": 1},
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_session_of_each_history_passes_the_check_and_names_its_branches(name: str) -> None:
    calls, num_lineages, branches = HISTORIES[name]
    recorder = SessionRecorder()
    with recorder.begin() as session:
        for prompt, ids in calls:
            tokens = np.array(prompt + ids)
            at = np.arange(len(prompt), len(tokens))
            session.add(prompt, ids, logp=TABLE[(31 * tokens[at - 1] + at - 1) % 97, tokens[at]])
    report = session.report()
    assert (report.lineages, report.branches) == (num_lineages, branches)
    pack = recorder.take()
    assert pack is not None
    batch = token_batch(pack)
    assert len(batch["cu_seqlens"]) - 1 == num_lineages
    model = lambda batch: TABLE[(31 * batch["input_ids"].astype(int) + batch["position_ids"]) % 97]  # noqa: E731
    assert check_token_batch(model, batch)
    for column in ("action_logp", "loss_mask", "labels"):
        shifted = token_batch(pack)
        shifted[column] = np.roll(shifted[column], 1)
        assert not check_token_batch(model, shifted), column


def test_alternating_agents_are_two_sequences_of_thirty_tokens() -> None:
    recorder = SessionRecorder(outputs={})
    with recorder.begin() as session:
        contexts = [[1, 2, 3], [9, 8, 7]]
        for k in range(12):
            context = contexts[k % 2]
            session.add(context, [10 + k])
            contexts[k % 2] = [*context, 10 + k, 5] if k < 10 else [*context, 10 + k]
    pack = recorder.take()
    assert pack is not None
    batch = token_batch(pack)
    assert (len(batch["cu_seqlens"]) - 1, len(batch["input_ids"])) == (2, 2 * (3 + 6 + 5))
    assert session.report().branches == {"new prompt": 1}


def test_sessions_are_equal_after_data_set_and_message(tmp_path: Path) -> None:
    from episodes.transport.wire import Schemas, decoded, encoded, layouts_of

    recorder = SessionRecorder(group_size=2, outputs={"logp": "f4", "version": "i4", "token_rewards": "f4"})
    for k in range(4):
        with recorder.begin(f"s{k}", group=k // 2, infos={"task": k}) as session:
            for prompt, ids in HISTORIES["dropped thinking"][0]:
                call = session.add(
                    prompt, ids, logp=[-0.5] * len(ids), version=k, response_id=f"r{k}", finish_reason="stop"
                )
                session.reward(np.arange(len(ids)), call)
            session.reward(1.0)
    pack = recorder.take()
    assert pack is not None
    with EpisodeWriter(tmp_path / "data") as writer:
        writer.add(pack)
    assert EpisodeDataset(tmp_path / "data").pack() == pack
    message = encoded([pack], Schemas())
    assert decoded(layouts_of(message.schema), [bytes(part) for part in message.parts()])[0] == pack
    assert group_numbers(pack).tolist() == [0, 0, 1, 1]
    episode = pack[1]
    assert episode.get_infos(0) == {"task": 1}
    infos = [{key: value for key, value in episode.get_infos(t).items() if key != "kept_tokens"} for t in range(1, 4)]
    assert infos == [{"response_id": "r1", "finish_reason": "stop", "call": k} for k in range(3)]
    expected = [np.arange(len(ids)).sum() for _, ids in HISTORIES["dropped thinking"][0]]
    assert episode.get_rewards().tolist() == [*expected[:-1], expected[-1] + 1.0]
    assert episode.get_extra_model_outputs("token_rewards", 0).tolist() == list(range(len(SAMPLE)))
    assert episode.get_extra_model_outputs("version", 0).tolist() == [1] * len(SAMPLE)


def test_groups_count_sessions_and_failed_ones_and_may_be_taken_incomplete() -> None:
    recorder = SessionRecorder(group_size=3, outputs={})

    async def play(k: int) -> None:
        with recorder.begin(f"s{k}", group="g") as session:
            if k == 1:
                raise RuntimeError("before the first call")
            await asyncio.sleep(0)
            session.add([1], [2, k])
            session.add([7], [8])

    async def main() -> None:
        await asyncio.gather(*map(play, range(3)), return_exceptions=True)

    asyncio.run(main())
    assert (recorder.take(), recorder.missing(), recorder.report().failed) == (None, {"g": 1}, 1)
    assert "the newest by RuntimeError('before the first call')" in repr(recorder)
    late = recorder.begin(group="g")
    assert recorder.take(incomplete=True) is None  # a session of the group is open
    late.fail()
    for session_id in ("s0", "s2"):
        with pytest.raises(InvalidArgument, match="has not been taken"):
            recorder.begin(session_id)
    pack = recorder.take(incomplete=True)
    assert pack is not None
    assert (len(pack), recorder.missing()) == (2, {})
    assert [data["group_size"] for data in pack.custom_data or []] == [2, 2]
    assert group_numbers(pack).tolist() == [0, 0]


def test_reward_may_come_until_the_episode_is_taken() -> None:
    recorder = SessionRecorder(outputs={})
    session = recorder.begin()
    session.add([1], [2], response_id="a")
    session.add([1, 2, 3], [4], response_id="b")
    session.end(truncated=True, reward=0.25)
    session.reward(0.5, "a")
    session.reward(1.0)
    pack = recorder.take()
    assert pack is not None
    assert pack[0].get_rewards().tolist() == [0.5, 1.25]
    assert pack[0].is_truncated
    with pytest.raises(EpisodeStateError, match="was taken; give rewards before"):
        session.reward(1.0)


def test_undelivered_samples_are_kept_apart_until_a_prompt_contains_them() -> None:
    recorder = SessionRecorder(outputs={})
    session = recorder.begin()
    session.add([1], [2], delivered=False)
    session.add([1], [3, 3], cancelled=True)
    session.add([1], [4], delivered=False)
    session.add([1, 2, 9], [5], delivered=False)
    report = session.report()
    assert (report.calls, report.undelivered, report.cancelled, report.lineages) == (4, 2, 1, 1)
    session.mark_delivered(3)
    assert session.report().undelivered == 1
    with pytest.raises(EpisodeStateError, match="did not receive the sample of call 2"):
        session.reward(1.0, 2)
    session.reward(1.0, 0)  # call 3 contains it
    session.end()
    assert [ids.tolist() for ids in session.episode().get_actions()] == [[2], [5]]
    assert [call.ids.tolist() for call in session.calls] == [[2], [3, 3], [4], [5]]


@pytest.mark.parametrize("rest", [[12, 90], [99, 90]])  # a prompt with the sample, and one that encodes its end again
@pytest.mark.parametrize("arguments", [{"cancelled": True}, {"delivered": False}])
@pytest.mark.parametrize("is_first", [False, True])
def test_interrupted_beginning_of_a_delivered_sample_is_not_learned(
    rest: list[int], arguments: dict[str, Any], is_first: bool
) -> None:
    recorder = SessionRecorder(outputs={})
    calls: list[tuple[list[int], dict[str, Any]]] = [([10, 11], arguments), ([10, 11, 12], {})]
    with recorder.begin() as session:
        for ids, state in calls if is_first else calls[::-1]:
            session.add([1, 2], ids, **state)
        session.add([1, 2, 10, 11, *rest], [13])
    assert session.report().sampled_tokens == 4
    assert [ids.tolist() for ids in recorder.take()[0].get_actions()] == [[10, 11, 12], [13]]  # type: ignore[index]


@pytest.mark.parametrize(
    ("act", "error", "match"),
    [
        (lambda s: s.add([], [1], logp=[0.0]), InvalidArgument, "the prompt is empty"),
        (lambda s: s.add("text", [1], logp=[0.0]), WrongType, "encode text"),
        (lambda s: s.add([1], [1, 2], logp=[0.0]), ShapeMismatch, "length of 1 for 2 sampled"),
        (lambda s: s.add([1], [1], logp=[-9999.0]), InvalidArgument, "at least -1000"),
        (lambda s: s.add([1], [1]), TrackMismatch, "values of the output 'logp' are missing"),
        (lambda s: s.add([1], [1], logp=[0.0], version=[1]), InvalidArgument, "a version per token needs"),
        (lambda s: s.add([1], [1], logp=[0.0], version=-1), InvalidArgument, "version"),
        (lambda s: s.add([1], [1], logp=[0.0], infos={"call": 1}), InvalidArgument, "is set by add"),
        (lambda s: s.add([1], [1], logp=[0.0], delivered="yes"), WrongType, "delivered"),
        (lambda s: s.reward(1.0, 7), UnknownKey, "give a number from 0 to 1"),
        (lambda s: s.reward(1.0, "twice"), InvalidArgument, "calls \\[0, 1\\] have response id"),
        (lambda s: s.reward(float("nan")), InvalidArgument, "finite"),
        (lambda s: s.reward([1.0], 0), InvalidArgument, "rewards of tokens need"),
        (lambda s: s.end(truncated=3), WrongType, "truncated"),
        (lambda s: s.episode(), EpisodeStateError, "call end"),
    ],
)
def test_rejected_call_of_a_session_changes_nothing(
    act: Callable[[Session], object], error: type[Exception], match: str
) -> None:
    session = SessionRecorder().begin()
    for ids in ([2], [3]):
        session.add([1], ids, logp=[0.0], response_id="twice")
    before = (session.report(), [(call.prompt_ids.tolist(), call.ids.tolist()) for call in session.calls])
    with pytest.raises(error, match=match):
        act(session)
    assert before == (session.report(), [(call.prompt_ids.tolist(), call.ids.tolist()) for call in session.calls])
    session.end()
    assert session.episode().get_rewards().tolist() == [0.0, 0.0]


HUGE = 1.5e308
REJECTED_REWARDS: dict[str, Any] = {
    "sum of tokens": (lambda s: s.reward([3e38, 3e38], 0), InvalidArgument, "not finite; give smaller"),
    "token": (lambda s: s.reward([1e39, 0.0], 0), InvalidArgument, "give finite numbers of float32"),
    "token with an earlier one": (
        lambda s: s.reward([-3e38, 3e38], 0),
        InvalidArgument,
        "not finite; give smaller",
    ),  # [-3e38, 0] is there
    "huge token": (lambda s: s.reward([10**400, 0], 0), WrongType, "no numbers of float32"),
    "text": (lambda s: s.reward(["a", "b"], 0), WrongType, "no numbers of float32"),
    "nan": (lambda s: s.reward([1.0, np.nan], 0), InvalidArgument, "finite"),
    "length": (lambda s: s.reward([1.0], 0), ShapeMismatch, "one for each"),
    "call twice": (lambda s: s.reward(HUGE, 1), InvalidArgument, "not finite; give smaller"),
    "session and call": (
        lambda s: s.reward(HUGE),
        InvalidArgument,
        "not finite; give smaller",
    ),  # call 1 has it already
    "end and call": (lambda s: s.end(reward=HUGE), InvalidArgument, "not finite; give smaller"),
    "new call": (lambda s: s.add([1], [2, 3], token_rewards=[3e38, 3e38]), InvalidArgument, "not finite; give smaller"),
    "huge session": (lambda s: s.reward(10**400), WrongType, "more than 64 bits; give a float"),
    "huge call": (lambda s: s.reward(10**400, 0), WrongType, "more than 64 bits; give a float"),
    "huge end": (lambda s: s.end(reward=10**400), WrongType, "more than 64 bits; give a float"),
}


@pytest.mark.parametrize(("act", "error", "match"), REJECTED_REWARDS.values(), ids=REJECTED_REWARDS)
def test_rejected_reward_changes_nothing(act: Callable[[Session], object], error: type[Exception], match: str) -> None:
    session = SessionRecorder(outputs={"token_rewards": "f4"}).begin()
    session.add([1], [2, 3])
    session.reward([-3e38, 0.0], 0)
    session.add([1, 2, 3], [4])
    session.reward(HUGE, 1)
    with warnings.catch_warnings(action="error"), pytest.raises(error, match=match):
        act(session)
    session.end()
    episode, low = session.episode(), float(np.float32(-3e38))
    assert [row.tolist() for row in episode.get_extra_model_outputs("token_rewards")] == [[low, 0.0], [0.0]]
    assert episode.get_rewards().tolist() == [low, HUGE]


def test_a_thousand_open_sessions_take_calls_from_threads_in_fifteen_bytes_a_token() -> None:
    rng = np.random.default_rng(0)
    recorder = SessionRecorder()
    sessions = [recorder.begin(f"s{k}", group=k // 4) for k in range(1000)]
    prompts = [rng.integers(0, 50_000, 200).astype(np.int32) for _ in sessions]
    samples = rng.integers(0, 50_000, (4, 200)).astype(np.int32)
    logp = np.full(200, -0.5, np.float32)

    def play(k: int) -> None:
        context = prompts[k]
        for ids in samples:
            sessions[k].add(context, ids, logp=logp)
            context = np.concatenate([context, ids, ids[:100]])

    tracemalloc.start()
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(play, range(1000)))
        num_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    num_tokens = 1000 * (200 + 4 * 200 + 3 * 100)
    assert num_bytes / num_tokens <= 15
    assert recorder.num_open == 1000
    report = recorder.report()
    assert (report.calls, report.lineages, report.sampled_tokens) == (4000, 1000, 800_000)


def test_wait_for_returns_when_sessions_end_in_another_thread() -> None:
    recorder = SessionRecorder(group_size=2, outputs={})

    def play(k: int) -> None:
        with recorder.begin(group="g") as session:
            session.add([1], [k])

    async def main() -> int:
        waiting = asyncio.create_task(recorder.wait_for(1))
        await asyncio.sleep(0)
        await asyncio.gather(*(asyncio.to_thread(play, k) for k in range(2)))
        return len(await waiting)

    assert asyncio.run(main()) == 2


def test_session_is_found_by_id_until_it_is_taken_or_fails() -> None:
    recorder = SessionRecorder(outputs={})
    session, other = recorder.begin("a"), recorder.begin("b")
    assert (recorder.get("a"), recorder.get("b"), recorder.get("c")) == (session, other, None)
    other.fail()
    assert recorder.get("b") is None
    kept, left = session.add([1], [2]), session.add([1], [3], response_id="r")
    session.mark_cancelled("r")
    assert [call.is_cancelled for call in session.calls] == [False, True]
    session.end()
    with pytest.raises(EpisodeStateError, match="mark_cancelled: the session has ended"):
        session.mark_cancelled(kept)
    assert recorder.get("a") is session
    assert [ids.tolist() for ids in recorder.take()[0].get_actions()] == [[2]]  # type: ignore[index]
    assert (recorder.get("a"), left) == (None, 1)


COPIES = [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("which", ["recorder", "session"])
def test_open_sessions_are_not_copied(copied: Callable[[Any], Any], which: str) -> None:
    recorder = SessionRecorder(outputs={})
    session = recorder.begin("a")
    session.add([1], [2])
    with pytest.raises(EpisodeStateError, match=r"pickle: .*end or fail the sessions first"):
        copied(recorder if which == "recorder" else session)
    session.end(reward=1.0)
    assert recorder.take()[0].get_return() == 1.0


@pytest.mark.parametrize("copied", COPIES)
def test_recorder_without_open_sessions_goes_on_as_a_copy(copied: Callable[[Any], Any]) -> None:
    recorder = SessionRecorder(group_size=2, outputs={})
    for reward in (1.0, 2.0, 3.0):
        with recorder.begin(group="g") as session:
            session.add([1], [2])
            session.reward(reward)
    other = copied(recorder)
    for each in (recorder, other):
        with each.begin("last", group="g") as session:
            session.add([1], [2])
        assert [pack.get_return() for pack in each.take()] == [1.0, 2.0, 3.0, 0.0]
        assert each.num_open == 0
