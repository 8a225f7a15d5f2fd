"""Forwarding of one call of an agent to the model server, and its recording."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from episodes.capture.messages import (
    DONE,
    EventSplitter,
    as_chunks,
    check_request,
    sampling_of,
    upstream_request,
    without_unasked,
)
from episodes.capture.state import CaptureState
from episodes.errors import EpisodeError, EpisodeStateError, WrongType, needing
from episodes.tokens import ResponseReader, Sample, Session
from episodes.tokens.names import LOGP, SAMPLING, VERSION

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession
    from aiohttp.web import Request, StreamResponse

_HOP_HEADERS = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "trailers"),
        *("transfer-encoding", "upgrade", "host", "content-length", "content-encoding", "accept-encoding"),
        *("content-type", "date", "server"),
    }
)
_AGENT_HEADERS = frozenset({"authorization", "x-session-id", "cookie"})
EVENT_STREAM = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}


def orjson() -> Any:
    """Return the module orjson.

    Raises:
        MissingExtra: it is not installed.
    """
    with needing("capture", "CaptureProxy needs aiohttp and orjson"):
        import orjson

    return orjson


def error_response(status: int, message: str, kind: str = "invalid_request_error") -> Any:
    """Return a response with an error in the form that clients of OpenAI's interface read."""
    from aiohttp import web

    body = orjson().dumps(error_body(message, kind))
    return web.Response(body=body, status=status, content_type="application/json")


def error_body(message: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": None, "param": None}}


class ForwardedCall:
    """One request of an agent: forwards it, records the answer, and then sends the end of the answer to the agent.

    Args:
        state: state of the proxy.
        session: session to record in.
        request: request of the agent.
        endpoint: "chat/completions" or "completions".
    """

    def __init__(self, state: CaptureState, session: Session, request: Request, endpoint: str) -> None:
        self._state, self._session, self._request, self._endpoint = state, session, request, endpoint
        self._kinds = state.recorder.kinds
        self._reader = ResponseReader()
        self._asked: dict[str, Any] = {}
        self._infos: dict[str, Any] = {}
        self._numbers: list[int] = []  # of recorded calls
        self._is_refused = False  # the answer cannot be recorded
        self._is_held = False  # all choices of a stream have ended
        self._is_done = False  # the server has sent the end of a stream
        self._json = orjson()
        self._response: StreamResponse | None = None  # a stream that has begun

    async def run(self, client: ClientSession) -> StreamResponse:
        """Return the response to the agent, which has been sent if the agent asked for a stream.

        Raises:
            WrongType, InvalidArgument: the request cannot be recorded.
        """
        import aiohttp

        try:
            self._asked = self._json.loads(await self._request.read())
        except ValueError:
            raise WrongType(f"/v1/{self._endpoint}: the body is not JSON; send a JSON object") from None
        check_request(self._asked, self._endpoint)
        state = self._state
        body = upstream_request(
            self._asked,
            self._endpoint,
            state.overrides,
            with_logp=LOGP in self._kinds,
            whole_answers=state.whole_answers,
        )
        check_request(body, self._endpoint)
        self._infos = {SAMPLING: sampling_of(body)}
        try:
            async with (
                asyncio.timeout(state.call_timeout),
                client.post(
                    f"{state.upstream}/{self._endpoint}", data=self._json.dumps(body), headers=self._headers()
                ) as answer,
            ):
                if answer.status != 200:
                    return await _as_is(answer)
                if body.get("stream") and answer.content_type == "text/event-stream":
                    return await self._stream(answer)
                return await self._whole(answer)
        except TimeoutError:
            message = f"the model server took more than {state.call_timeout} s"
            if self._response is None:
                return error_response(504, message, "timeout")
            await self._response.write(_error_event(message))
            await self._response.write_eof()
            return self._response
        except aiohttp.ClientError as error:
            return error_response(502, f"the model server failed: {error!r}", "upstream_error")

    def _headers(self) -> dict[str, str]:
        """Return the headers of the request to the server."""
        skipped = _HOP_HEADERS | _AGENT_HEADERS
        headers = {name: value for name, value in self._request.headers.items() if name.lower() not in skipped}
        headers["Content-Type"] = "application/json"
        return {**headers, **self._state.key_header()}

    # --- whole answers -----------------------------------------------------------------------------------------------

    async def _whole(self, answer: ClientResponse) -> StreamResponse:
        from aiohttp import web

        version = self._state.policy_version  # of the oldest tokens, if weights change during the call
        received = await answer.read()
        try:
            payload = self._json.loads(received)
            self._reader.read(payload, version)
            content = self._shown_whole(payload)
            self._record()
        except (ValueError, EpisodeError) as error:
            status = 410 if isinstance(error, EpisodeStateError) else 502
            return error_response(status, self._refusal(error), "recording_error")
        is_stream = self._asked.get("stream")
        headers = EVENT_STREAM if is_stream else {"Content-Type": "application/json", **_passed_headers(answer)}
        response = web.Response(body=content, headers=headers)
        try:
            await response.prepare(self._request)
            await response.write_eof()
        except (asyncio.CancelledError, ConnectionError):
            self._cancel()
            raise
        return response

    def _shown_whole(self, payload: dict[str, Any]) -> bytes:
        """Return the body of the response to the agent, given the server's whole answer."""
        if not self._asked.get("stream"):
            return self._json.dumps(without_unasked(payload, self._asked))
        chunks = [without_unasked(chunk, self._asked) for chunk in as_chunks(payload, self._asked)]
        lines = [b"data: " + self._json.dumps(chunk) + b"\n\n" for chunk in chunks if chunk is not None]
        return b"".join([*lines, DONE])

    # --- streams -----------------------------------------------------------------------------------------------------

    async def _stream(self, answer: ClientResponse) -> StreamResponse:
        """Forward a stream. Chunks that end a choice are held back until the answer is recorded."""
        import aiohttp
        from aiohttp import web

        response = web.StreamResponse(headers={**EVENT_STREAM, **_passed_headers(answer)})
        events, held = EventSplitter(), []
        try:
            await response.prepare(self._request)
            self._response = response
            async for received in answer.content.iter_any():
                shown = self._shown(events.split(received), held)
                if shown:
                    await response.write(shown)
            shown = self._shown(events.last(), held)
            if self._is_done and self._reader.is_finished:
                try:
                    self._record()
                except EpisodeError as error:
                    held = [_error_event(self._refusal(error))]
            else:
                held = [_error_event(self._interruption("it ended before the answer did"))]
            await response.write(shown + b"".join(held))
            await response.write_eof()
        except (asyncio.CancelledError, ConnectionError):
            self._cancel()
            raise
        except (ValueError, EpisodeError, aiohttp.ClientError) as error:
            await response.write(_error_event(self._interruption(str(error))))
            await response.write_eof()
        return response

    def _shown(self, events: Iterable[tuple[bytes, bytes | None]], held: list[bytes]) -> bytes:
        """Read events, and return the bytes that the agent may have now. Later ones are appended to `held`."""
        shown = []
        for event, data in events:
            ends_choice = False
            if data == b"[DONE]":
                self._is_done = True
            elif data is not None:
                payload = self._json.loads(data)
                self._reader.read(payload, self._state.policy_version)
                stripped = without_unasked(payload, self._asked)
                event = b"" if stripped is None else b"data: " + self._json.dumps(stripped) + b"\n\n"
                ends_choice = any(choice.get("finish_reason") for choice in payload.get("choices") or ())
                self._is_held = self._is_held or (ends_choice and self._reader.is_finished)
            (held if ends_choice or self._is_held or self._is_done else shown).append(event)
        return b"".join(shown)

    # --- recording ---------------------------------------------------------------------------------------------------

    def _record(self) -> None:
        """Add all samples of the answer to the session. They count as delivered before the agent has them, because the
        agent may end its session right after. If one of them cannot be recorded, none counts as delivered.
        """
        self._add(self._reader.samples())
        for number in self._numbers:
            self._session.mark_delivered(number)

    def _add(self, samples: Sequence[Sample], *, cancelled: bool = False) -> None:
        for sample in samples:
            number = self._session.add(**self._call_of(sample), delivered=False, cancelled=cancelled)
            self._numbers.append(number)

    def _call_of(self, sample: Sample) -> dict[str, Any]:
        call = sample.as_call()
        call["infos"] = {**self._infos, **call.get("infos", {})}
        if LOGP not in self._kinds:
            call.pop("logp", None)
        versions: Any = sample.versions
        if versions is not None and VERSION not in self._kinds:
            versions = min(versions)
        elif versions is None:
            versions = self._state.policy_version
        return {**call, "version": versions}

    def _record_partial(self, *, cancelled: bool = False) -> None:
        """Record what has arrived of an answer that the agent did not get. What cannot be recorded is counted."""
        if self._numbers or self._is_refused:
            return
        samples = self._reader.partial_samples()
        if LOGP in self._kinds:
            samples = [sample for sample in samples if sample.logp is not None]
        try:
            self._add(samples, cancelled=cancelled)
        except EpisodeError as error:
            self._refusal(error)

    def _refusal(self, error: Exception) -> str:
        """Return the message for an agent whose answer could not be recorded, and count the answer, unless the reason
        is that the session has ended.
        """
        self._is_refused = True
        if isinstance(error, EpisodeStateError):
            return str(error)
        self._state.note_unrecorded(str(error))
        return f"the answer cannot be recorded: {error}"

    def _interruption(self, reason: str) -> str:
        """Record what has arrived of a stream that broke off, count it, and return the message for the agent."""
        message = f"the stream of the model server failed: {reason}"
        self._record_partial()
        if not self._is_refused:
            self._state.note_unrecorded(message)
        return message

    def _cancel(self) -> None:
        """Record that the agent left before the end of the answer. After the session's end nothing changes."""
        self._record_partial(cancelled=True)
        try:
            for number in self._numbers:
                self._session.mark_cancelled(number)
        except EpisodeStateError:
            return


async def _as_is(answer: ClientResponse) -> StreamResponse:
    """Return an error of the server unchanged, also its headers, from which clients take when to retry."""
    from aiohttp import web

    body = await answer.read()
    kind = answer.headers.get("Content-Type", "application/json")
    return web.Response(body=body, status=answer.status, headers={"Content-Type": kind, **_passed_headers(answer)})


def _passed_headers(answer: ClientResponse) -> dict[str, str]:
    headers: Mapping[str, str] = answer.headers
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_HEADERS | {"cache-control"}}


def _error_event(message: str) -> bytes:
    return b"data: " + orjson().dumps(error_body(message, "recording_error")) + b"\n\n"
