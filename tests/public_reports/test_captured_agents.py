"""Public reports of users who record agents through gateways and servers: vLLM, SGLang, litellm, rLLM, verifiers,
agent-lightning, CooperBench. Each test has what the person did, and asserts the right value here."""

from __future__ import annotations

from typing import Any

import pytest

from episodes.errors import InvalidArgument, ShapeMismatch
from episodes.tokens import SessionRecorder, read_record, read_response, read_stream, token_batch


def chunk(ids: list[int], index: int = 0, reason: str | None = None, **more: Any) -> dict[str, Any]:
    logprobs = {"content": [{"token": "x", "logprob": -0.5} for _ in ids]}
    return {"choices": [{"index": index, "token_ids": ids, "logprobs": logprobs, "finish_reason": reason}], **more}


def test_stream_whose_tool_parser_swallowed_ids_is_refused() -> None:
    """vLLM: a user streamed a tool call with return_token_ids, and the ids of the call's marks were missing."""
    chunks = [chunk([], prompt_token_ids=[1]), chunk([7, 8], reason="tool_calls")]
    assert read_stream(chunks)[0].ids == [7, 8]
    with pytest.raises(InvalidArgument, match="2 sampled token ids, and the server counted 9 tokens"):
        read_stream([*chunks, {"choices": [], "usage": {"completion_tokens": 9}}])


def test_usage_of_zero_is_not_a_count() -> None:
    """litellm: a user streamed completions through the proxy, and the usage was zero."""
    chunks = [chunk([7], prompt_token_ids=[1], reason="stop"), {"choices": [], "usage": {"completion_tokens": 0}}]
    assert read_stream(chunks)[0].ids == [7]


def test_ids_that_litellm_moved_are_found() -> None:
    """CooperBench: all 816 calls seemed to have no token ids, because litellm had moved them."""
    choice = {"finish_reason": "stop", "provider_specific_fields": {"token_ids": [5, 6]}}
    (sample,) = read_response({"id": "r", "prompt_token_ids": [1], "choices": [choice]})
    assert (sample.ids, sample.logp) == ([5, 6], None)


def test_stream_without_ids_is_an_error_and_not_an_empty_sample() -> None:
    """agent-lightning: with streams, its proxy recorded no token ids, and users found empty training data later."""
    chunks = [{"prompt_token_ids": [1], "choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}]
    with pytest.raises(InvalidArgument, match="no token_ids; ask a vLLM or SGLang server"):
        read_stream(chunks)


def test_response_without_prompt_ids_is_an_error_and_not_an_empty_prompt() -> None:
    """verifiers: sampled ids without prompt ids became a turn with an empty prompt."""
    with pytest.raises(InvalidArgument, match="no prompt_token_ids"):
        read_response({"choices": [{"token_ids": [5], "finish_reason": "stop"}]})


def test_choices_of_a_stream_are_not_mixed() -> None:
    """rLLM's gateway: a stream with n=2 was recorded as one sample with the ids of both choices."""
    chunks = [chunk([], prompt_token_ids=[1]), chunk([2]), chunk([8], 1), chunk([3], reason="stop")]
    first, second = read_stream([*chunks, chunk([9], 1, "length")])
    assert (first.ids, first.finish_reason) == ([2, 3], "stop")
    assert (second.ids, second.finish_reason) == ([8, 9], "length")
    with SessionRecorder().begin("a") as session:
        numbers = [session.add(**sample.as_call()) for sample in (first, second)]
    assert [session.calls[number].infos.get("choice", 0) for number in numbers] == [0, 1]


def test_sub_agents_in_one_session_do_not_cost_a_row_per_call() -> None:
    """rLLM: an agent and a sub-agent alternated in one session, and each call became a training row."""
    recorder, main, sub = SessionRecorder(), [1], [9]
    with recorder.begin("a") as session:
        for token in range(20, 26):
            for history in (main, sub):
                record = {"prompt_token_ids": list(history), "completion_token_ids": [token], "logprobs": [-0.1]}
                session.add(**read_record(record)[0].as_call())
                history += [token, 5]
    pack = recorder.take()
    assert pack is not None
    assert len(token_batch(pack)["cu_seqlens"]) - 1 == 2


def test_lists_of_other_lengths_are_refused() -> None:
    """rLLM: log-probabilities and ids of a record differed in length, and all of its tokens were masked in silence."""
    record = {"trace_id": "t", "prompt_token_ids": [1], "completion_token_ids": [2, 3], "logprobs": [-0.1]}
    with pytest.raises(ShapeMismatch, match="record t: 1 log-probabilities for 2 sampled token ids"):
        read_record(record)


def test_tokens_of_sglang_come_from_its_meta_information() -> None:
    """SGLang: its chat answers had texts and log-probabilities and no ids, so users called /generate for them."""
    meta = {"id": "g", "finish_reason": {"type": "length"}, "output_token_logprobs": [[-0.1, 5, "a"], [-0.2, 6, "b"]]}
    (sample,) = read_response({"text": "ab", "meta_info": meta}, prompt_ids=[1, 2])
    assert (sample.prompt_ids, sample.ids, sample.logp, sample.finish_reason) == (
        [1, 2],
        [5, 6],
        [-0.1, -0.2],
        "length",
    )
