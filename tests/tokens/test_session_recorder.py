"""Sessions of calls against plain lists of calls: contexts, samples, lineages, rewards, groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import EpisodeStateError
from episodes.tokens import Session, SessionRecorder, token_batch


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
    return calls


def recorded(calls: list[PlainCall], recorder: SessionRecorder, **arguments: Any) -> Session:
    session = recorder.begin(**arguments)
    for call in calls:
        session.add(call.prompt, call.ids, logp=logp_of(call), delivered=call.delivered)
    return session


def parent_of(calls: list[PlainCall], k: int) -> int | None:
    """Return the number of the call that call `k` continues: that with the most tokens, then a delivered one, then one
    that arrived before, then the newest."""
    keys = []
    for j, call in enumerate(calls):
        is_beginning = calls[k].prompt[: len(call.tokens)] == call.tokens
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
