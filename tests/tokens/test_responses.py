"""Readers of responses and records: recorded payloads of servers and gateways, and damaged ones."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes.errors import EpisodeError, InvalidArgument, ShapeMismatch, WrongType
from episodes.tokens import ResponseReader, Sample, SessionRecorder, read_record, read_response, read_stream

PROMPT, IDS, LOGP = [151644, 872, 198], [9707, 0, 151645], [-0.1201, -1.5, -0.0009]


def content(logp: list[float]) -> dict[str, Any]:
    """Return log-probabilities in the form of chat completions."""
    return {"content": [{"token": "x", "logprob": p, "bytes": [120], "top_logprobs": []} for p in logp]}


VLLM_CHAT = {
    "id": "chatcmpl-7",
    "object": "chat.completion",
    "created": 1760000000,
    "model": "Qwen/Qwen3-0.6B",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello!", "refusal": None, "tool_calls": []},
            "logprobs": content(LOGP),
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": IDS,
        }
    ],
    "usage": {"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3, "prompt_tokens_details": None},
    "prompt_logprobs": None,
    "prompt_token_ids": PROMPT,
}
COMPLETION_LOGPROBS = {
    "text_offset": [0, 5, 6],
    "token_logprobs": LOGP,
    "tokens": ["a", "b", "c"],
    "top_logprobs": None,
}
VLLM_COMPLETION = {
    "id": "cmpl-7",
    "object": "text_completion",
    "choices": [
        {
            "index": 0,
            "text": "Hello!",
            "logprobs": COMPLETION_LOGPROBS,
            "finish_reason": "stop",
            "token_ids": IDS,
            "prompt_token_ids": PROMPT,
        }
    ],
    "usage": {"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3},
}
SGLANG_CHAT = {  # with return_token_ids
    "id": "a1",
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello!"},
            "logprobs": content(LOGP),
            "finish_reason": "stop",
            "matched_stop": 151645,
            "prompt_token_ids": PROMPT,
            "token_ids": IDS,
        }
    ],
    "usage": {"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3},
}
META = {
    "id": "b2",
    "finish_reason": {"type": "stop", "matched": 151645},
    "prompt_tokens": 3,
    "completion_tokens": 3,
    "output_token_logprobs": [[p, i, None] for p, i in zip(LOGP, IDS, strict=True)],
}
SGLANG_META = {  # with return_meta_info
    "id": "b2",
    "prompt_token_ids": PROMPT,
    "choices": [{"index": 0, "message": {}, "finish_reason": "stop", "meta_info": META}],
}
SGLANG_GENERATE = {"text": "Hello!", "output_ids": IDS, "meta_info": META}
LITELLM = {  # fields that OpenAI does not have are moved
    "id": "chatcmpl-7",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello!"},
            "logprobs": content(LOGP),
            "finish_reason": "stop",
            "provider_specific_fields": {"token_ids": IDS, "stop_reason": None},
        }
    ],
    "prompt_token_ids": PROMPT,
    "usage": {"completion_tokens": 3},
}
RLLM = {
    "trace_id": "t3",
    "session_id": "s",
    "model": "m",
    "messages": [],
    "prompt_token_ids": PROMPT,
    "completion_token_ids": IDS,
    "logprobs": LOGP,
    "finish_reason": "stop",
}
NEMO_GYM = {"id": "m4", "prompt_token_ids": PROMPT, "generation_token_ids": IDS, "generation_log_probs": LOGP}
TOKENS = {"prompt_ids": PROMPT, "prompt_mask": [0] * 3, "completion_ids": IDS, "completion_mask": [1] * 3}
VERIFIERS = {"prompt": [], "completion": [], "tokens": {**TOKENS, "completion_logprobs": LOGP}, "reward": None}
TRL = {"prompt_ids": PROMPT, "completion_ids": IDS, "logprobs": LOGP}

WHOLE = {
    "vLLM chat": (VLLM_CHAT, "chatcmpl-7"),
    "vLLM completion": (VLLM_COMPLETION, "cmpl-7"),
    "SGLang chat": (SGLANG_CHAT, "a1"),
    "SGLang meta_info": (SGLANG_META, "b2"),
    "litellm": (LITELLM, "chatcmpl-7"),
}
RECORDS = {
    **WHOLE,
    "litellm log": ({"id": "log", "response": LITELLM}, "chatcmpl-7"),
    "rLLM": (RLLM, "t3"),
    "rLLM SDK": ({"trace_id": "t", "output": LITELLM}, "chatcmpl-7"),
    "NeMo Gym": (NEMO_GYM, "m4"),
    "verifiers": (VERIFIERS, None),
    "TRL": (TRL, None),
}


@pytest.mark.parametrize("form", RECORDS)
def test_record_has_the_tokens_of_its_call(form: str) -> None:
    record, id_ = RECORDS[form]
    (sample,) = read_record(record)
    assert (sample.prompt_ids, sample.ids, sample.logp, sample.response_id) == (PROMPT, IDS, LOGP, id_)
    assert sample.finish_reason == (None if form in ("NeMo Gym", "verifiers", "TRL") else "stop")
    if form in WHOLE:
        assert read_response(record) == [sample]
    with SessionRecorder().begin() as session:
        session.add(**sample.as_call())
    assert session.episode().get_actions(0).tolist() == IDS


def test_generate_needs_the_prompt() -> None:
    with pytest.raises(InvalidArgument, match="no prompt_token_ids"):
        read_response(SGLANG_GENERATE)
    (sample,) = read_response(SGLANG_GENERATE, PROMPT)
    assert (sample.ids, sample.logp, sample.finish_reason) == (IDS, LOGP, "stop")
    assert [sample.choice for sample in read_response([SGLANG_GENERATE] * 3, PROMPT)] == [0, 1, 2]


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all lists of one value per sampled token in a payload."""
    if isinstance(value, list) and len(value) == 3 and value != PROMPT and value != [0] * 3:
        return [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in items for found in paths(item, (*path, key))]


USED = ("token_ids", "content", "token_logprobs", "output_token_logprobs", "completion_token_ids", "logprobs")
USED += ("generation_token_ids", "generation_log_probs", "completion_ids", "completion_logprobs", "completion_mask")


@pytest.mark.parametrize("change", ["one less", "one more"])
@pytest.mark.parametrize("form", RECORDS)
def test_lists_of_other_lengths_are_errors(form: str, change: str) -> None:
    record = RECORDS[form][0]
    used = [path for path in paths(record) if path[-1] in USED]
    assert used
    for path in used:
        damaged = deepcopy(record)
        values: Any = damaged
        for key in path:
            values = values[key]
        if change == "one less":
            values.pop()
        else:
            values.append(deepcopy(values[-1]))
        if form == "SGLang meta_info":  # ids and log-probabilities are pairs, and there is no usage
            assert len(read_record(damaged)[0].ids) != 3
            continue
        with pytest.raises(EpisodeError, match=r"log-probabilities for|the server counted|completion_mask"):
            read_record(damaged)


def test_missing_fields_are_errors_by_name() -> None:
    for damaged, message in [
        ({**VLLM_CHAT, "prompt_token_ids": None}, "response chatcmpl-7: it has no prompt_token_ids"),
        ({**VLLM_CHAT, "choices": [{**VLLM_CHAT["choices"][0], "token_ids": None}]}, "it has no token_ids"),
        ({**VLLM_CHAT, "choices": []}, "no choices"),
        ({"prompt_ids": [1]}, "a record with keys"),
        ({**VERIFIERS, "tokens": {**VERIFIERS["tokens"], "completion_mask": [1, 0, 1]}}, "completion_mask has zeros"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            read_record(damaged)
    meta = {**META, "output_token_logprobs": [[-1.0, 5, None]] * 3}
    with pytest.raises(ShapeMismatch, match="other tokens"):
        read_response({**SGLANG_GENERATE, "meta_info": meta}, PROMPT)
    with pytest.raises(WrongType, match="read_record: record is a str"):
        read_record("{}")  # type: ignore[arg-type]
    with pytest.raises(WrongType, match=r"choices\[0\] is a int"):
        read_response({"choices": [3]})
    response = {**VLLM_CHAT, "choices": [{**VLLM_CHAT["choices"][0], "logprobs": None}]}
    assert read_response(response)[0].logp is None


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[Sample]]:
    """Draw the chunks of a stream in any order of choices, and the samples that they are parts of."""
    part_of_choice = st.lists(st.tuples(st.integers(0, 9), st.floats(-9, 0)), max_size=2)
    choices = draw(st.lists(st.lists(part_of_choice, min_size=1, max_size=3), min_size=1, max_size=3))
    is_chat = draw(st.booleans())
    first = {"choices": [{"index": k, "delta": {"role": "assistant"}} for k in range(len(choices))]}
    chunks: list[dict[str, Any]] = [{**first, "prompt_token_ids": PROMPT}] if is_chat else []
    order = draw(st.permutations([k for k, parts in enumerate(choices) for _ in parts]))
    num_read, versions = [0] * len(choices), [[] for _ in choices]
    for number, k in enumerate(order):
        part = choices[k][num_read[k]]
        choice: dict[str, Any] = {"index": k, "finish_reason": None, "token_ids": [i for i, _ in part]}
        logp = [p for _, p in part]
        choice["logprobs"] = content(logp) if is_chat else {"token_logprobs": logp}
        if not is_chat and not num_read[k]:
            choice["prompt_token_ids"] = PROMPT
        num_read[k] += 1
        if num_read[k] == len(choices[k]):
            choice["finish_reason"] = "length"
        versions[k] += [number // 2] * len(part)
        chunks.append({"id": "r", "choices": [choice], "version": number // 2})
    choices = [[token for part in parts for token in part] for parts in choices]
    chunks.append({"id": "r", "choices": [], "usage": {"completion_tokens": sum(map(len, choices))}})
    samples = [
        Sample(PROMPT, [i for i, _ in sampled], [p for _, p in sampled], "r", "length", k, versions[k] or None)
        for k, sampled in enumerate(choices)
    ]
    return chunks, samples


@given(streams())
def test_streams_are_read_in_any_order_of_choices(drawn: tuple[list[dict[str, Any]], list[Sample]]) -> None:
    chunks, samples = drawn
    reader = ResponseReader()
    for number, chunk in enumerate(chunks):
        reader.read(chunk, chunk.get("version"))
        for part in reader.partial_samples():
            whole = samples[part.choice]
            assert (part.ids, part.logp) == (whole.ids[: len(part.ids)], whole.logp[: len(part.ids)])  # type: ignore
        assert reader.is_finished or number < len(chunks) - 2
    assert reader.samples() == samples
    assert [sample.ids for sample in read_stream(chunks)] == [sample.ids for sample in samples]
    if any(sample.ids for sample in samples):
        with pytest.raises(InvalidArgument, match="the server counted 99"):
            read_stream([*chunks, {"choices": [], "usage": {"completion_tokens": 99}}])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a payload."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in items for found in ((*path, key), *places(item, (*path, key)))]


JUNK = [None, 5, -1, 1.5, "x", "", [], {}, [None], ["a"], [{}], [[1]], {"a": 1}, float("nan"), 2**70]


@pytest.mark.parametrize("form", [*RECORDS, "SGLang generate"])
def test_fields_of_other_types_are_errors_by_name(form: str) -> None:
    record = SGLANG_GENERATE if form == "SGLang generate" else RECORDS[form][0]
    for path in places(record):
        for junk in JUNK:
            damaged = deepcopy(record)
            owner: Any = damaged
            for key in path[:-1]:
                owner = owner[key]
            owner[path[-1]] = junk
            try:
                samples = read_response(damaged, PROMPT) if form == "SGLang generate" else read_record(damaged)
                with SessionRecorder().begin() as session:
                    for sample in samples:
                        session.add(**sample.as_call())
            except EpisodeError:
                continue
            (call,) = session.calls  # the field is not read, or it is a valid token, log-probability or name
            assert call.num_sampled == 3 or "output_token_logprobs" in path
            assert len(call.prompt_ids) == 3


@pytest.mark.parametrize("name", ["token_ids", "logprobs"])
def test_interrupted_stream_is_read_until_its_lists_differ(name: str) -> None:
    reader = ResponseReader()
    reader.read({"prompt_token_ids": PROMPT, "choices": []})
    for number in range(4):
        choice = {"index": 0, "token_ids": [number], "logprobs": content([-float(number)])}
        reader.read({"choices": [{**choice, name: None} if number == 2 else choice]})
    (sample,) = reader.partial_samples()
    assert (sample.ids, sample.logp) == ([0, 1], [0.0, -1.0])


def test_choices_that_would_be_mixed_are_errors() -> None:
    whole = VLLM_CHAT["choices"][0]
    for other in (whole, {**whole, "token_ids": [4]}):
        with pytest.raises(InvalidArgument, match="response chatcmpl-7: two choices have index 0"):
            read_response({**VLLM_CHAT, "choices": [whole, other], "usage": None})
    with pytest.raises(InvalidArgument, match="3 token ids after its end"):
        read_stream([VLLM_CHAT, VLLM_CHAT])
    ended = {"choices": [{"index": 0, "token_ids": [], "logprobs": None, "finish_reason": "stop"}]}
    assert read_stream([VLLM_CHAT, ended])[0].ids == IDS
    assert [
        sample.ids for sample in read_response({**VLLM_CHAT, "choices": [whole, {**whole, "index": 1}], "usage": {}})
    ] == [IDS, IDS]
