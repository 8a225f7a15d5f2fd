"""HTTP proxy between agents and a model server that records all calls of the agents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from episodes.capture.calls import ForwardedCall, error_response, orjson
from episodes.capture.control import Control
from episodes.capture.messages import ENDPOINTS
from episodes.capture.state import CaptureState
from episodes.closeable import Closeable
from episodes.errors import EpisodeError, EpisodeStateError, UnknownKey, needing
from episodes.tokens import Session, SessionRecorder

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from aiohttp.web import Application, Request, StreamResponse

_MOST_BYTES = 1 << 28  # of a request


class CaptureProxy(Closeable):
    """HTTP proxy between agents and an OpenAI-compatible model server (vLLM, SGLang) that records all calls.

    Agents need only another base URL: `url(session)`, or the proxy's `url()` and the id of the session as API key or as
    header `X-Session-Id`. The proxy forwards `/v1/chat/completions` and `/v1/completions`, streamed or not, asks the
    server for token ids and log-probabilities, and removes them from the answer unless the agent asked for them. A
    sample is recorded before the agent receives the end of its answer. If it cannot be recorded, the agent receives an
    error in place of the answer. If the agent leaves, the call to the server is cancelled. Errors of the server pass
    unchanged, so that clients retry as usual.

    Use it as a context manager. It runs in a thread of its own, so agents may block their own thread or event loop.

    Sessions can be controlled in Python (`recorder.begin`, `session.reward`, `session.end`) or by HTTP: `POST
    /sessions` with `id`, `group`, `infos`; `GET /sessions/ID`; `POST /sessions/ID/reward` with `reward`, `call` or
    `response_id`; `POST /sessions/ID/end` with `reward`, `truncated`; `POST /sessions/ID/fail` with `reason`; `POST
    /policy_version` with `version`; `GET /report`. All fields are optional, except `reward` and `version`.

    There is no authentication. The proxy listens on this machine only, unless `host` is given, and refuses requests
    that a web page sends.

    Args:
        upstream: base URL of the model server, such as "http://localhost:8000/v1".
        recorder: recorder of the sessions. Its outputs may be "logp", "version" and "token_rewards".
        host: address to listen on.
        port: port to listen on; 0 for any free one.
        upstream_key: API key for the model server. The keys of agents are not forwarded.
        overrides: fields that replace those of all requests, such as `{"temperature": 1.0}`.
        policy_version: version of the policy that the server has. It may be set later, at any time.
        begin_unknown: whether a call with an unknown id begins a session with this id. Otherwise it is refused.
        whole_answers: ask the server for whole answers, also if an agent asks for a stream. SGLang returns token ids of
            chat completions only in whole answers.
        call_timeout: seconds after which a call to the server is cancelled; None for no limit.
        idle_timeout: seconds after which a session without calls is ended as truncated, or fails if the agent received
            no sample; None for no limit.

    Attributes:
        host: address that it listens on.
        port: port that it listens on.

    Raises:
        MissingExtra: aiohttp or orjson is not installed.
        InvalidArgument: the URL is not one of http, overrides contain fields that the proxy sets, the recorder has
            other outputs or the output "version" without a `policy_version`, or a timeout is not positive.
        WrongType: `recorder` is not a `SessionRecorder`, or `overrides` is not a dict.
    """

    def __init__(
        self,
        upstream: str,
        recorder: SessionRecorder,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        upstream_key: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        policy_version: int | None = None,
        begin_unknown: bool = False,
        whole_answers: bool = False,
        call_timeout: float | None = 3600.0,
        idle_timeout: float | None = None,
    ) -> None:
        with needing("capture", "CaptureProxy needs aiohttp and orjson"):
            import aiohttp  # noqa: F401
        orjson()
        self._state = CaptureState(
            upstream,
            recorder,
            upstream_key,
            overrides,
            policy_version,
            begin_unknown,
            whole_answers,
            call_timeout,
            idle_timeout,
        )
        self.host, self.port = host, port
        self._client: ClientSession | None = None
        self._thread: Thread | None = None
        self._stop: Callable[[], object] | None = None

    @property
    def recorder(self) -> SessionRecorder:
        """The recorder of the sessions."""
        return self._state.recorder

    @property
    def num_running(self) -> int:
        """Number of calls that are running now."""
        return self._state.num_running

    @property
    def num_unrecorded(self) -> int:
        """Number of answers that could not be recorded. Agents received an error in place of them."""
        return self._state.num_unrecorded

    @property
    def newest_problem(self) -> str:
        """Why the newest answer that could not be recorded could not, or ""."""
        return self._state.newest_problem

    @property
    def policy_version(self) -> int | None:
        """Version of the policy that the model server has, or None if it is not known."""
        return self._state.policy_version

    @policy_version.setter
    def policy_version(self, version: int | None) -> None:
        self._state.policy_version = version

    # --- lifetime ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Begin to listen. `port` is the port then.

        Raises:
            EpisodeStateError: it has started before.
            OSError: the address is in use or not allowed.
        """
        if self._thread is not None:
            raise EpisodeStateError("CaptureProxy.start: it has started before; create another one")
        is_ready, errors = Event(), []
        self._thread = Thread(target=lambda: asyncio.run(self._serve(is_ready, errors)), daemon=True)
        self._thread.start()
        is_ready.wait()
        if errors:
            self._thread.join()
            raise errors[0]

    def close(self) -> None:
        """Stop listening, and cancel all running calls. Sessions stay as they are. It may be called again."""
        if self._stop is not None and self._thread is not None:
            self._stop()
            self._thread.join()
            self._stop = None

    async def _serve(self, is_ready: Event, errors: list[BaseException]) -> None:
        from aiohttp import web

        runner = web.AppRunner(
            self._app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.5, handle_signals=False
        )
        try:
            await runner.setup()
            await web.TCPSite(runner, self.host, self.port).start()
            self.port = runner.addresses[0][1]
            loop, is_stopped = asyncio.get_running_loop(), asyncio.Event()
            self._stop = lambda: loop.call_soon_threadsafe(is_stopped.set)
            is_ready.set()
            while not is_stopped.is_set():
                idle = self._state.idle_timeout
                try:
                    await asyncio.wait_for(is_stopped.wait(), idle and idle / 4)
                except TimeoutError:
                    self.end_idle(idle or 0.0)
        except BaseException as error:
            errors.append(error)
        finally:
            await runner.cleanup()
            is_ready.set()

    def _app(self) -> Application:
        from aiohttp import web

        app = web.Application(client_max_size=_MOST_BYTES, middlewares=[web.middleware(_checked)])
        for prefix in ("/sessions/{session}", ""):
            for endpoint in ENDPOINTS:
                app.router.add_post(f"{prefix}/v1/{endpoint}", self._forwarder(endpoint))
            app.router.add_get(f"{prefix}/v1/models", self._models)
            app.router.add_route("*", f"{prefix}/v1/{{path:.*}}", _not_recorded)
        Control(self._state, self.url).add_routes(app)
        app.cleanup_ctx.append(self._clients)
        return app

    async def _clients(self, app: Application) -> AsyncIterator[None]:
        from aiohttp import ClientSession, ClientTimeout, TCPConnector

        timeout = ClientTimeout(total=None, sock_connect=60.0)
        async with ClientSession(connector=TCPConnector(limit=0), timeout=timeout) as self._client:
            yield

    # --- sessions ----------------------------------------------------------------------------------------------------

    def url(self, session: Session | None = None) -> str:
        """Return the base URL for the client of an agent, which ends with "/v1".

        Args:
            session: session of the agent. None: the agent's API key is the id of its session.

        Raises:
            EpisodeStateError: the proxy has not started.
        """
        if self._thread is None:
            raise EpisodeStateError(
                "CaptureProxy.url: it has not started; use it as a context manager, or call start()"
            )
        host = f"[{self.host}]" if ":" in self.host else self.host
        path = "" if session is None else f"/sessions/{quote(session.id_, safe='')}"
        return f"http://{host}:{self.port}{path}/v1"

    def end_idle(self, seconds: float) -> list[str]:
        """End all sessions that had no call for `seconds`, and return their ids.

        A session whose agent received a sample is truncated, and any other fails. Sessions that the proxy has not seen
        yet are left alone.
        """
        return self._state.end_idle(seconds)

    # --- handlers ----------------------------------------------------------------------------------------------------

    def _forwarder(self, endpoint: str) -> Callable[[Request], Awaitable[StreamResponse]]:
        async def forward(request: Request) -> StreamResponse:
            bearer = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
            id_ = request.match_info.get("session") or request.headers.get("X-Session-Id") or bearer
            try:
                session = self._state.open_session(id_)
            except EpisodeStateError as error:
                return error_response(410, str(error))  # clients repeat calls after a 409
            traffic = self._state.note_session(session)
            traffic.num_running += 1
            try:
                return await ForwardedCall(self._state, session, request, endpoint).run(self._http_client)
            finally:
                traffic.num_running -= 1
                traffic.newest = time.monotonic()

        return forward

    @property
    def _http_client(self) -> ClientSession:
        if self._client is None:
            raise EpisodeStateError("CaptureProxy: it is not running; use it as a context manager")
        return self._client

    async def _models(self, request: Request) -> StreamResponse:
        from aiohttp import ClientError, web

        headers = self._state.key_header()
        try:
            async with self._http_client.get(f"{self._state.upstream}/models", headers=headers) as answer:
                body = await answer.read()
                return web.Response(body=body, status=answer.status, content_type=answer.content_type)
        except ClientError as error:
            return error_response(502, f"the model server failed: {error!r}", "upstream_error")

    def __repr__(self) -> str:
        state = "" if self._thread is None else f" at {self.url()}"
        problems = f", {self.num_unrecorded} answers not recorded" if self.num_unrecorded else ""
        return f"CaptureProxy({self._state.upstream}{state}, {self.recorder.num_open} open sessions{problems})"


async def _checked(request: Request, handler: Callable[[Request], Awaitable[StreamResponse]]) -> StreamResponse:
    """Return the response of a handler. Errors of this library become responses, and web pages are refused."""
    if "Origin" in request.headers:
        return error_response(403, "requests of web pages are refused; call the proxy from a program")
    try:
        return await handler(request)
    except UnknownKey as error:
        return error_response(404, str(error))
    except EpisodeStateError as error:
        return error_response(409, str(error))
    except EpisodeError as error:
        return error_response(400, str(error))


async def _not_recorded(request: Request) -> StreamResponse:
    allowed = ", ".join(f"POST /v1/{endpoint}" for endpoint in ENDPOINTS)
    return error_response(404, f"{request.method} {request.path} is not recorded; use {allowed} or GET /v1/models")
