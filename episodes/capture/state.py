"""What a proxy knows: the model server, the recorder, and the traffic of the sessions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from episodes.errors import EpisodeStateError, InvalidArgument, WrongType
from episodes.tokens import Session, SessionRecorder
from episodes.tokens.names import LOGP, TOKEN_REWARDS, VERSION
from episodes.tracks.validation import checked_count

_OUTPUTS = (LOGP, VERSION, TOKEN_REWARDS)
_FIXED = ("stream", "logprobs", "return_token_ids", "stream_options")


@dataclass
class Traffic:
    """Calls of one session: how many are running, and when the newest began or ended, in seconds."""

    num_running: int
    newest: float


class CaptureState:
    """Settings of a proxy, its recorder, and the sessions that it has seen. The arguments are those of `CaptureProxy`.

    Attributes:
        num_unrecorded: number of answers that could not be recorded.
        newest_problem: why the newest of them could not be recorded.
    """

    def __init__(
        self,
        upstream: str,
        recorder: SessionRecorder,
        upstream_key: str | None,
        overrides: Mapping[str, Any] | None,
        policy_version: int | None,
        begin_unknown: bool,
        whole_answers: bool,
        call_timeout: float | None,
        idle_timeout: float | None,
    ) -> None:
        _check_arguments(upstream, recorder, overrides, call_timeout, idle_timeout)
        self.upstream, self.recorder, self.upstream_key = upstream.rstrip("/"), recorder, upstream_key
        self.overrides = dict(overrides or {})
        self.begin_unknown, self.whole_answers = begin_unknown, whole_answers
        self.call_timeout, self.idle_timeout = call_timeout, idle_timeout
        self.num_unrecorded, self.newest_problem = 0, ""
        self.policy_version = policy_version
        self._traffic: dict[str, Traffic] = {}
        self._known_ids: set[str] = set()  # also of sessions that have ended, which a late call must not begin again

    @property
    def policy_version(self) -> int | None:
        """Version of the policy that the model server has, or None if it is not known."""
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: int | None) -> None:
        if version is not None:
            checked_count("CaptureProxy: policy_version", version, at_least=0)
        elif VERSION in self.recorder.kinds:
            raise InvalidArgument(
                f"CaptureProxy: policy_version=None, and the recorder has the output {VERSION!r}; give an int"
            )
        self._policy_version = version

    @property
    def num_running(self) -> int:
        """Number of calls that are running now."""
        return sum(traffic.num_running for traffic in list(self._traffic.values()))

    def key_header(self) -> dict[str, str]:
        """Return the header with the key of the model server, or {} without a key."""
        return {} if self.upstream_key is None else {"Authorization": f"Bearer {self.upstream_key}"}

    def note_unrecorded(self, problem: str) -> None:
        """Count an answer that could not be recorded."""
        self.num_unrecorded, self.newest_problem = self.num_unrecorded + 1, problem

    def note_session(self, session: Session) -> Traffic:
        """Return the traffic of a session, whose time without calls counts from now on."""
        self._known_ids.add(session.id_)
        return self._traffic.setdefault(session.id_, Traffic(0, time.monotonic()))

    def open_session(self, id_: str) -> Session:
        """Return the open session with an id. With `begin_unknown`, an id that was never seen begins one.

        Raises:
            EpisodeStateError: there is no such session, or it is not open.
        """
        session = self.recorder.get(id_)
        if session is None and id_ and self.begin_unknown and id_ not in self._known_ids:
            session = self.recorder.begin(id_)
        if session is None or not session.is_open:
            raise EpisodeStateError(
                f"session {id_!r} is not open; begin it, and use the URL of the session, or its id as API key or as "
                "header X-Session-Id"
            )
        return session

    def end_idle(self, seconds: float) -> list[str]:
        """End all sessions that had no call for `seconds`, and return their ids."""
        now, ended = time.monotonic(), []
        for id_, traffic in list(self._traffic.items()):
            session = self.recorder.get(id_)
            if session is None or not session.is_open:
                del self._traffic[id_]
            elif not traffic.num_running and now - traffic.newest >= seconds:
                try:
                    session.end(truncated=True)
                except EpisodeStateError:  # without a sample, or it has ended in another thread
                    if session.is_open:
                        session.fail(f"no call for {seconds} s")
                ended.append(id_)
        return ended


def _check_arguments(
    upstream: object, recorder: object, overrides: object, call_timeout: float | None, idle_timeout: float | None
) -> None:
    if not isinstance(recorder, SessionRecorder):
        raise WrongType(f"CaptureProxy: recorder is a {type(recorder).__name__}; give a SessionRecorder")
    if not isinstance(upstream, str) or not upstream.startswith(("http://", "https://")):
        raise InvalidArgument(f"CaptureProxy: upstream={upstream!r}; give a base URL, such as http://localhost:8000/v1")
    unknown = [name for name in recorder.kinds if name not in _OUTPUTS]
    if unknown:
        raise InvalidArgument(
            f"CaptureProxy: the recorder has the output {unknown[0]!r}, which servers do not return; allowed are "
            f"{list(_OUTPUTS)}"
        )
    if not isinstance(overrides, Mapping | None):
        raise WrongType(f"CaptureProxy: overrides={overrides!r}; give a dict of request fields, or None")
    fixed = [name for name in _FIXED if name in (overrides or {})]
    if fixed:
        raise InvalidArgument(f"CaptureProxy: overrides has {fixed[0]!r}, which the proxy sets; remove it")
    for name, seconds in (("call_timeout", call_timeout), ("idle_timeout", idle_timeout)):
        if seconds is not None and not seconds > 0:
            raise InvalidArgument(f"CaptureProxy: {name}={seconds!r}; give seconds, more than 0, or None")
