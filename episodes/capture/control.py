"""HTTP interface of sessions: begin, rewards, ends and reports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from episodes.capture.calls import orjson
from episodes.capture.state import CaptureState
from episodes.errors import InvalidArgument, UnknownKey, WrongType
from episodes.tokens import Session
from episodes.tokens.names import CHOICE, RESPONSE_ID

if TYPE_CHECKING:
    from aiohttp.web import Application, Request, StreamResponse


class Control:
    """Routes of a proxy that begin, reward and end sessions.

    Args:
        state: state of the proxy.
        url: function from a session to the base URL of its agent.
    """

    def __init__(self, state: CaptureState, url: Callable[[Session], str]) -> None:
        self._state, self._url = state, url

    def add_routes(self, app: Application) -> None:
        """Add all routes to an application."""
        posts = {"/policy_version": self._version, "/sessions": self._begin}
        of_session = {"reward": self._reward, "end": self._end, "fail": self._fail}
        posts |= {f"/sessions/{{session}}/{name}": function for name, function in of_session.items()}
        for path, function in posts.items():
            app.router.add_post(path, _replying(function))
        app.router.add_get("/sessions/{session}", _replying(self._show))
        app.router.add_get("/report", _replying(self._report))

    def _session(self, request: Request) -> Session:
        id_ = request.match_info["session"]
        session = self._state.recorder.get(id_)
        if session is None:
            raise UnknownKey(f"session {id_!r}: there is none, it failed, or its episode was taken; begin a session")
        return session

    async def _begin(self, request: Request) -> dict[str, Any]:
        body = await _body(request, "id", "group", "infos")
        session = self._state.recorder.begin(body.get("id"), group=body.get("group"), infos=body.get("infos"))
        self._state.note_session(session)
        return {"id": session.id_, "base_url": self._url(session), "api_key": session.id_}

    async def _show(self, request: Request) -> dict[str, Any]:
        session = self._session(request)
        calls = [
            {
                "call": call.number,
                "response_id": call.infos.get(RESPONSE_ID),
                "choice": call.infos.get(CHOICE, 0),
                "prompt_tokens": call.prompt_end.length,
                "sampled_tokens": call.num_sampled,
                "delivered": call.is_delivered,
                "cancelled": call.is_cancelled,
            }
            for call in session.calls
        ]
        return {"id": session.id_, "open": session.is_open, "calls": calls}

    async def _reward(self, request: Request) -> dict[str, Any]:
        body = await _body(request, "reward", "call", "response_id", needs=("reward",))
        call = body.get("call", body.get("response_id"))
        self._session(request).reward(body["reward"], call)
        return {}

    async def _end(self, request: Request) -> dict[str, Any]:
        body = await _body(request, "reward", "truncated")
        self._session(request).end(truncated=body.get("truncated", False), reward=body.get("reward", 0.0))
        return {}

    async def _fail(self, request: Request) -> dict[str, Any]:
        body = await _body(request, "reason")
        self._session(request).fail(body.get("reason", "POST /fail"))
        return {}

    async def _version(self, request: Request) -> dict[str, Any]:
        body = await _body(request, "version", needs=("version",))
        self._state.policy_version = body["version"]
        return {}

    async def _report(self, request: Request) -> dict[str, Any]:
        report = asdict(self._state.recorder.report())
        return {**report, "unrecorded": self._state.num_unrecorded, "newest_problem": self._state.newest_problem}


def _replying(function: Callable[[Request], Awaitable[dict[str, Any]]]) -> Callable[[Request], Any]:
    async def reply(request: Request) -> StreamResponse:
        from aiohttp import web

        return web.Response(body=orjson().dumps(await function(request)), content_type="application/json")

    return reply


async def _body(request: Request, *names: str, needs: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the JSON object of a request, {} if the body is empty.

    Raises:
        WrongType: the body is not a JSON object.
        InvalidArgument: it has other fields, or lacks one.
    """
    content = await request.read()
    try:
        body = orjson().loads(content) if content else {}
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise WrongType(f"{request.path}: the body is not a JSON object; send one with {list(names)}")
    unknown = [name for name in body if name not in names]
    missing = [name for name in needs if name not in body]
    if unknown or missing:
        what = f"unknown field {unknown[0]!r}" if unknown else f"no field {missing[0]!r}"
        raise InvalidArgument(f"{request.path}: {what}; send {list(names)}")
    return body
