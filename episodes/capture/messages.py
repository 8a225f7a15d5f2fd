"""Requests, responses and streams of OpenAI's HTTP interface, as pure functions on decoded JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from episodes.errors import InvalidArgument, WrongType

CHAT, COMPLETIONS = "chat/completions", "completions"
ENDPOINTS = (CHAT, COMPLETIONS)
DONE = b"data: [DONE]\n\n"

_HIDDEN = ("prompt_token_ids", "token_ids", "meta_info")
_SAMPLING = (
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "max_tokens",
    "max_completion_tokens",
    "seed",
)
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal", "thinking")
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_REFUSED = {
    "echo": "the sample would contain the prompt",
    "use_beam_search": "beams are not samples of the policy",
    "best_of": "the best of several answers is not a sample of the policy; use n",
}


def check_request(body: object, endpoint: str) -> None:
    """Raise an error if the answer to a request could not be recorded.

    Raises:
        WrongType: the body or its `stream_options` are not a dict.
        InvalidArgument: it asks for `echo`, `best_of` or a beam search, or a message has an image or another part that
            is no text.
    """
    if not isinstance(body, dict):
        raise WrongType(f"/v1/{endpoint}: the body is a {type(body).__name__}; send a JSON object")
    for name, reason in _REFUSED.items():
        value = body.get(name)
        if value not in (None, False) and not (name == "best_of" and value == 1):
            raise InvalidArgument(f"/v1/{endpoint}: {name}={value!r} is not recorded, because {reason}")
    options = body.get("stream_options")
    if not isinstance(options, dict | None):
        raise WrongType(f"/v1/{endpoint}: stream_options={options!r}; send a JSON object")
    messages = body.get("messages")
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        parts = message.get("content") if isinstance(message, dict) else None
        for part in parts if isinstance(parts, list) else ():
            kind = part.get("type", "text") if isinstance(part, dict) else "text"
            if kind not in _TEXT_PARTS:
                raise InvalidArgument(
                    f"/v1/{endpoint}: messages[{number}] has a part of type {kind!r}, and an episode of a session has "
                    f"only tokens; send {list(_TEXT_PARTS)}, or record with Conversation.turn, which takes images"
                )


def upstream_request(
    asked: Mapping[str, Any], endpoint: str, overrides: Mapping[str, Any], *, with_logp: bool, whole_answers: bool
) -> dict[str, Any]:
    """Return the request for the server: what the agent asked for, with token ids, log-probabilities and usage.

    Args:
        asked: body of the agent's request.
        endpoint: "chat/completions" or "completions".
        overrides: fields that replace those of the agent.
        with_logp: whether to ask for log-probabilities.
        whole_answers: whether to ask for a whole answer, also if the agent asked for a stream.
    """
    body = {**asked, **overrides, "return_token_ids": True}
    if with_logp:
        is_chat = endpoint == CHAT
        body["logprobs"] = True if is_chat else 1 if body.get("logprobs") is None else body["logprobs"]
    if body.get("stream") and whole_answers:
        body["stream"] = False
        body.pop("stream_options", None)
    elif body.get("stream"):
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
    return body


def sampling_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters of a request, those that are numbers or text."""
    return {name: body[name] for name in _SAMPLING if isinstance(body.get(name), (int, float, str))}


def without_unasked(payload: dict[str, Any], asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a response or chunk without the fields that only the recording needs, or None for a chunk of usage that
    the agent did not ask for.
    """
    hides_ids = not asked.get("return_token_ids")
    hides_logp = asked.get("logprobs") is None or asked["logprobs"] is False
    choices = payload.get("choices") or []
    if asked.get("stream") and "usage" in payload and not (asked.get("stream_options") or {}).get("include_usage"):
        if not choices:
            return None
        payload = {key: value for key, value in payload.items() if key != "usage"}
    if hides_ids:
        payload = {key: value for key, value in payload.items() if key not in _HIDDEN}
    shown = []
    for choice in choices:
        if hides_ids:
            choice = {key: value for key, value in choice.items() if key not in _HIDDEN}
        if hides_logp and choice.get("logprobs") is not None:
            choice = {**choice, "logprobs": None}
        shown.append(choice)
    if "choices" in payload:
        payload["choices"] = shown
    return payload


def as_chunks(payload: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a whole response as the chunks of a stream, one for each choice, and one with usage if the agent asked for
    it.

    Raises:
        WrongType: a message or one of its calls of tools is not a dict.
    """
    is_chat = payload.get("object") != "text_completion"
    base = {key: value for key, value in payload.items() if key not in ("choices", "usage")}
    if is_chat:
        base["object"] = "chat.completion.chunk"
    for choice in payload.get("choices") or ():
        chunk = {key: value for key, value in choice.items() if key != "message"}
        if is_chat:
            try:
                delta = dict(choice.get("message") or {})
                if delta.get("tool_calls"):
                    delta["tool_calls"] = [{**call, "index": index} for index, call in enumerate(delta["tool_calls"])]
            except (TypeError, ValueError) as error:
                raise WrongType(f"a choice has the message {choice['message']!r}; give a JSON object") from error
            chunk["delta"] = delta
        yield {**base, "choices": [chunk]}
    if (asked.get("stream_options") or {}).get("include_usage") and payload.get("usage"):
        yield {**base, "choices": [], "usage": payload["usage"]}


class EventSplitter:
    r"""Splitter of the bytes of a stream of server-sent events into events.

    >>> events = EventSplitter()
    >>> list(events.split(b"data: {}\r\n\r\n: ping\n\nda"))
    [(b'data: {}\r\n\r\n', b'{}'), (b': ping\n\n', None)]
    >>> list(events.split(b"ta: [DONE]\n\n"))
    [(b'data: [DONE]\n\n', b'[DONE]')]
    """

    def __init__(self) -> None:
        self._rest = b""

    def split(self, received: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield each event that is complete now: its bytes, and its data, or None for an event without data."""
        buffer, start = self._rest + received, 0
        for end in _EVENT_END.finditer(buffer):
            event, start = buffer[start : end.end()], end.end()
            yield event, _data_of(event)
        self._rest = buffer[start:]

    def last(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the event at the end of the stream that no empty line follows, if there is one."""
        event, self._rest = self._rest, b""
        if event:
            yield event, _data_of(event)


def _data_of(event: bytes) -> bytes | None:
    """Return the data of an event, or None if it has no data."""
    lines = event.strip().split(b"\n")
    data = [line[5:].strip() for line in lines if line.startswith(b"data:")]
    return b"\n".join(data) if data else None
