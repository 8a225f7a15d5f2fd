"""Record the calls of agents that run elsewhere, and return each session of an agent as one episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch, UnknownKey, WrongType
from episodes.facts.facts import random_ids
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tokens.arguments import (
    as_token_ids,
    check_group,
    check_infos,
    checked_outputs,
    finite_reward,
    output_kinds,
    token_kind,
)
from episodes.tokens.conversation import Conversation
from episodes.tokens.lineages import Call, Lineages, divergence
from episodes.tokens.member_groups import MemberGroups
from episodes.tokens.names import CALL, FINISH_REASON, GROUP, IMAGES, RESPONSE_ID, TOKEN_REWARDS, VERSION
from episodes.tokens.token_tree import TokenTree
from episodes.tracks.ragged import RaggedKind
from episodes.tracks.validation import checked_count, checked_flag

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

__all__ = ["Session", "SessionRecorder", "SessionReport"]

_MOST_TEXT = 200  # characters of an error that are kept
_NO_COPY = "calls may come from other threads and agents while a copy is made; end or fail the sessions first"


@dataclass(frozen=True)
class SessionReport:
    """Numbers of calls and lineages of sessions. A sum of reports is the report of all their sessions.

    A lineage is a chain of calls, each of which continues the tokens of the one before. `token_batch` makes one
    sequence of each lineage, so few lineages per call are cheap. `branches` counts why lineages after the first one of
    a session began:

    - "same prompt": another sample for the prompt of an earlier call, such as a retry or n > 1.
    - "same history": an earlier call has several continuations, such as parallel calls.
    - "new prompt": the prompt differs from the first prompts of all lineages, as that of a sub-agent does.
    - "encoded again": the prompt has other tokens near the end of a sample, which a template or tokenizer changed.
    - "shortened sample": tokens of a sample are missing in the prompt, such as its reasoning.
    - "rewritten history": the prompt differs from earlier tokens in another way, for example after a compaction.

    The last three are estimates from the tokens at the first difference.

    Attributes:
        sessions: number of sessions.
        failed: number of sessions that failed. Their calls do not become an episode.
        calls: number of calls.
        undelivered: number of samples that the agent did not receive, without cancelled ones.
        cancelled: number of calls that the agent cancelled.
        lineages: number of lineages of delivered samples.
        sampled_tokens: number of tokens of delivered samples.
        branches: number of lineages by the reason why they began.
    """

    sessions: int = 0
    failed: int = 0
    calls: int = 0
    undelivered: int = 0
    cancelled: int = 0
    lineages: int = 0
    sampled_tokens: int = 0
    branches: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: SessionReport) -> SessionReport:
        names = ("sessions", "failed", "calls", "undelivered", "cancelled", "lineages", "sampled_tokens")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return SessionReport(**sums, branches=dict(Counter(self.branches) + Counter(other.branches)))

    def __str__(self) -> str:
        lines = [
            f"{self.sessions} sessions ({self.failed} failed), {self.calls} calls ({self.undelivered} undelivered, "
            f"{self.cancelled} cancelled)",
            f"{self.sampled_tokens} sampled tokens in {self.lineages} lineages",
        ]
        return "\n".join([*lines, *(f"  {num:5} began by: {cause}" for cause, num in sorted(self.branches.items()))])


def _refuse_images(infos: Mapping[str, Any], where: str) -> None:
    """Raise `InvalidArgument` if infos have images. Infos of a call belong to the observation after its sample, which
    may be that of another lineage."""
    if IMAGES in infos:
        raise InvalidArgument(
            f"{where}: infos[{IMAGES!r}], and a session has no place for the images of a prompt; record the "
            "conversation with Conversation.turn(..., infos=...), or store them under another key"
        )


class Session:
    """One session of an agent: its calls of a model, which become one episode. `SessionRecorder.begin` returns it.

    Use it as a context manager: the session ends after the block, or fails if the block raises.

    All methods may be called from several threads.

    Attributes:
        id_: id of the session and of its episode.
        custom_data: custom data of the episode. It has the group, if there is one.
    """

    def __init__(self, recorder: SessionRecorder, id_: str, group: Hashable, infos: dict[str, Any] | None) -> None:
        self.id_ = id_
        self.custom_data: dict[str, Any] = {} if group is None else {GROUP: group}
        self._recorder, self._infos = recorder, infos
        self._tree = TokenTree(recorder.dtype)
        self._calls: list[Call] = []
        self._reward = 0.0
        self._state = "open"  # then "ended" or "failed", and "taken"
        self._truncated = False
        self._lock = RLock()

    @property
    def group(self) -> Hashable:
        """Key of the session's group, or None."""
        return self.custom_data.get(GROUP)

    @property
    def is_open(self) -> bool:
        """Whether the session has neither ended nor failed."""
        return self._state == "open"

    @property
    def calls(self) -> tuple[Call, ...]:
        """All recorded calls, in the order of arrival, also those that the agent did not receive."""
        with self._lock:
            return tuple(self._calls)

    def add(
        self,
        prompt_ids: ArrayLike,
        ids: ArrayLike,
        *,
        version: int | None = None,
        response_id: str | None = None,
        finish_reason: str | None = None,
        infos: dict[str, Any] | None = None,
        delivered: bool = True,
        cancelled: bool = False,
        **outputs: ArrayLike,
    ) -> int:
        """Record one call of the model: its whole prompt and what was sampled. Return the number of the call, from 0.

        Calls may arrive in any order. In the episode, a call continues the call whose prompt and sample together are
        the longest beginning of this prompt, compared as token ids. A rejected call changes nothing.

        Args:
            prompt_ids: the whole prompt, token ids [L], at least one.
            ids: the sampled token ids [K].
            version: version of the policy that sampled. If it changed within the sample, give a list of K versions,
                and declare the output "version".
            response_id: the server's id of the response, stored in infos as "response_id".
            finish_reason: why the sample ended, stored in infos as "finish_reason".
            infos: info of the observation after the turn. It gets "call", the number of the call.
            delivered: whether the agent received the whole sample. Samples that it did not receive are left out of the
                episode, unless a later prompt contains them or `mark_delivered` is called.
            cancelled: whether the agent left before the end of the sample, which then is not delivered.
            outputs: for each declared output, one value for each token in `ids`.

        Raises:
            EpisodeStateError: the session has ended or failed.
            WrongType: token ids or values are not a list, array or tensor that numpy can read.
            ShapeMismatch: tokens are not integers [L], or an output has another length than `ids`.
            TrackMismatch: an output is missing, or was not declared.
            InvalidArgument: the prompt is empty, a token id is negative, a log-probability cannot be one of a sampled
                token, the version is not an int of at least 0, or `infos` has a key that this method sets.
        """
        recorder = self._recorder
        prompt = as_token_ids(prompt_ids, recorder.kind, lambda: self._label("add: prompt_ids"))
        if not len(prompt):
            raise InvalidArgument(f"{self._label('add')}: the prompt is empty; give all token ids of the prompt")
        tokens = as_token_ids(ids, recorder.kind, lambda: self._label("add: ids"))
        if VERSION in recorder.kinds and VERSION not in outputs and version is not None:
            versions = np.asarray(version)
            outputs[VERSION] = versions if versions.ndim else np.full(len(tokens), versions)
            version = None
        if TOKEN_REWARDS in recorder.kinds and TOKEN_REWARDS not in outputs:
            outputs[TOKEN_REWARDS] = np.zeros(len(tokens))
        values = checked_outputs(outputs, recorder.kinds, len(tokens), lambda: self._label("add"), "SessionRecorder")
        if version is not None:
            self._check_version(version)
        infos = self._checked_infos(infos, response_id, finish_reason)
        is_cancelled = checked_flag(self._label("add: cancelled"), cancelled)
        is_delivered = checked_flag(self._label("add: delivered"), delivered) and not is_cancelled
        with self._lock:
            self._check_open("add")
            known = self._tree.find(prompt)
            cause = divergence(self._calls, known, prompt)
            number = len(self._calls)
            reward = self._sum_of(values[TOKEN_REWARDS], "add") if TOKEN_REWARDS in values else 0.0
            self._finite_sum("add", reward, self._reward)
            prompt_end = self._tree.insert(known, prompt[known.length :], 2 * number)
            end = self._tree.insert(prompt_end, tokens, 2 * number + 1)
            values = {name: column.copy() for name, column in values.items()}
            call = Call(number, prompt_end, end, values, version, {**infos, CALL: number}, cause, reward)
            call.is_cancelled, call.is_delivered = is_cancelled, is_delivered
            self._calls.append(call)
            return number

    def mark_delivered(self, call: int | str) -> None:
        """Record that the agent received the whole sample of a call, given as its number or response id.

        Raises:
            EpisodeStateError: the session has ended.
            UnknownKey: there is no such call.
            InvalidArgument: several calls have the response id.
        """
        self._mark(call, True, "mark_delivered")

    def mark_cancelled(self, call: int | str) -> None:
        """Record that the agent left before it received the whole sample of a call, given as its number or response id.

        Raises:
            EpisodeStateError: the session has ended.
            UnknownKey: there is no such call.
            InvalidArgument: several calls have the response id.
        """
        self._mark(call, False, "mark_cancelled")

    def _mark(self, call: int | str, is_delivered: bool, method: str) -> None:
        """Record that a call of an open session was delivered, or else cancelled, for the public `method`."""
        with self._lock:
            self._check_open(method)
            found = self._call(call, method)
            found.is_delivered, found.is_cancelled = is_delivered, not is_delivered

    def reward(self, reward: ArrayLike, call: int | str | None = None) -> None:
        """Add a reward to the session, to a call, or to the tokens of a call. It may come after the end of the session,
        until its episode is taken from the recorder.

        Rewards are added up. A reward of the session belongs to the last step of its episode.

        Args:
            reward: a finite number; or one number for each sampled token of a call, if the output "token_rewards" is
                declared. Their sum is the reward of the turn.
            call: number or response id of the call. None: the whole session.

        Raises:
            EpisodeStateError: the session failed, its episode was taken, or the agent did not receive the call's
                sample, which then is not in the episode.
            UnknownKey: there is no such call.
            InvalidArgument: the reward, or the sum of the rewards so far, is not finite; or several calls have the
                response id.
            ShapeMismatch: the reward is neither a number nor one number per token.
            TrackMismatch: rewards of tokens are given, and the output "token_rewards" is not declared.
        """
        with self._recorder.lock, self._lock:
            if self._state in ("failed", "taken"):
                raise EpisodeStateError(
                    f"{self._label('reward')}: the session {self._why_closed()}; give rewards before take()"
                )
            if call is None:
                self._reward = self._session_reward(reward, "reward")
                return
            found = self._call(call, "reward")
            if not found.is_delivered and found not in Lineages(self._calls).delivered:
                raise EpisodeStateError(
                    f"{self._label('reward')}: the agent did not receive the sample of call {found.number}, so it is "
                    "not in the episode; call mark_delivered if it did, or reward the session"
                )
            values = self._checked_token_rewards(reward, found) if np.ndim(reward) else None
            label = partial(self._label, "reward")
            added = finite_reward(reward, label) if values is None else self._sum_of(values, "reward")
            total = self._finite_sum("reward", found.reward, added)
            self._finite_sum("reward", total, self._reward)
            if values is not None:
                found.outputs[TOKEN_REWARDS] = self._finite_sum("reward", found.outputs[TOKEN_REWARDS], values)
            found.reward = total

    def end(self, *, truncated: bool = False, reward: float = 0.0) -> None:
        """End the session, and add it to its group. Later calls are refused.

        Args:
            truncated: True if it was ended from outside, for example by a time limit. Otherwise it terminated.
            reward: reward of the session, in addition to earlier ones.

        Raises:
            EpisodeStateError: it has ended or failed before, or the agent received no sample.
            WrongType: `truncated` is not a bool.
        """
        finite_reward(reward, lambda: self._label("end"))
        truncated = checked_flag(self._label("end: truncated"), truncated)
        with self._recorder.lock, self._lock:
            self._check_open("end")
            if not Lineages(self._calls).delivered:
                raise EpisodeStateError(
                    f"{self._label('end')}: the agent received no sample of {len(self._calls)} calls, so there is no "
                    "episode; use fail(), which counts the session"
                )
            total = self._session_reward(reward, "end")
            self._truncated, self._state, self._reward = truncated, "ended", total
            self._recorder._end(self)

    def fail(self, reason: str = "fail()") -> None:
        """End the session without an episode, for example because the agent crashed. Its group needs another session.

        Use `end(truncated=True)` to learn from its calls anyway.

        Raises:
            EpisodeStateError: it has ended or failed before.
        """
        with self._recorder.lock, self._lock:
            self._check_open("fail")
            self._state = "failed"
            self._recorder._fail(self, str(reason)[:_MOST_TEXT])

    def report(self) -> SessionReport:
        """Return how many calls and lineages the session has, and why lineages began."""
        with self._lock:
            lineages = Lineages(self._calls)
            kept = lineages.delivered
            cancelled = sum(call.is_cancelled and call not in kept for call in self._calls)
            return SessionReport(
                1,
                int(self._state == "failed"),
                len(self._calls),
                len(self._calls) - len(kept) - cancelled,
                cancelled,
                len(lineages.chains),
                sum(call.num_sampled for call in kept),
                lineages.causes(),
            )

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.is_open:
            return
        try:
            if error is None:
                self.end()
        except EpisodeStateError as problem:
            self.fail(repr(problem))
            raise
        if error is not None:
            self.fail(repr(error))

    def __repr__(self) -> str:
        group = "" if self.group is None else f", group {self.group!r}"
        return f"Session({self.id_}: {len(self._calls)} calls, {self._state}{group})"

    def __getstate__(self) -> dict[str, Any]:
        if self.is_open:
            raise EpisodeStateError(f"{self._label('pickle')}: {_NO_COPY}")
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=RLock())

    def episode(self) -> SingleAgentEpisode:
        """Return the ended session as an episode, lineage after lineage. The newest call is the last step.

        `SessionRecorder.take` returns it with its group.

        Raises:
            EpisodeStateError: the session has not ended, or failed.
        """
        if self._state not in ("ended", "taken"):
            raise EpisodeStateError(f"{self._label('episode')}: the session is {self._state}; call end() before")
        recorder = self._recorder
        calls = [call for chain in Lineages(self._calls).chains for call in chain]
        talk = Conversation(self.id_, outputs=recorder.kinds, dtype=recorder.dtype)
        talk.begin(calls[0].prompt_ids, self._infos)
        for call, after in zip(calls, [*calls[1:], None], strict=True):
            follows = {} if after is None else {"prompt": after.prompt_ids}
            if after is not None and after.parent is call:
                follows = {"reply_ids": after.prompt_end.tokens(call.end.length)}
            talk.turn(
                call.ids,
                reward=call.reward + (self._reward if after is None else 0.0),
                infos=dict(call.infos),
                terminated=after is None and not self._truncated,
                truncated=after is None and self._truncated,
                policy_version=call.version,
                **follows,
                **call.outputs,
            )
        talk.episode.to_numpy()
        talk.episode.custom_data |= self.custom_data
        return talk.episode

    # --- checks ------------------------------------------------------------------------------------------------------

    def _label(self, call: str) -> str:
        return f"session {self.id_}: {call}"

    def _why_closed(self) -> str:
        return {"ended": "has ended", "failed": "has failed", "taken": "has ended, and its episode was taken"}[
            self._state
        ]

    def _check_open(self, call: str) -> None:
        if self._state != "open":
            raise EpisodeStateError(
                f"{self._label(call)}: the session {self._why_closed()}; begin another session for later calls"
            )

    def _check_version(self, version: ArrayLike) -> None:
        if np.ndim(version):
            raise InvalidArgument(
                f"{self._label('add')}: a version per token needs SessionRecorder(outputs={{..., {VERSION!r}: 'i4'}}); "
                "declare it, or give one int"
            )
        checked_count(self._label("add: version"), version, at_least=0)

    def _checked_infos(
        self, infos: dict[str, Any] | None, response_id: str | None, finish_reason: str | None
    ) -> dict[str, Any]:
        """Return the infos of a call, with the response id and the finish reason."""
        if infos is not None:
            check_infos(infos, lambda: self._label("add"))
            _refuse_images(infos, self._label("add"))
        infos = infos or {}
        given = {RESPONSE_ID: response_id, FINISH_REASON: finish_reason}
        for key in infos:
            if key == CALL or given.get(key) is not None:
                raise InvalidArgument(f"{self._label('add')}: infos[{key!r}] is set by add; give another key")
        return {**infos, **{key: value for key, value in given.items() if value is not None}}

    def _checked_token_rewards(self, reward: ArrayLike, call: Call) -> np.ndarray:
        """Return rewards of the sampled tokens of a call, [K]."""
        label = self._label("reward")
        if TOKEN_REWARDS not in call.outputs:
            raise InvalidArgument(
                f"{label}: rewards of tokens need SessionRecorder(outputs={{..., {TOKEN_REWARDS!r}: 'f4'}}); declare "
                "it, or give one number"
            )
        kind = self._recorder.kinds[TOKEN_REWARDS]
        if np.shape(reward) != (call.num_sampled,):
            raise ShapeMismatch(
                f"{label}: rewards of shape {list(np.shape(reward))} for {call.num_sampled} sampled tokens; give one "
                "for each"
            )
        try:
            with np.errstate(over="ignore"):  # infinite numbers are refused below
                values = np.asarray(reward, kind.dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise WrongType(f"{label}: rewards that are no numbers of {kind.dtype} ({error}); give floats") from None
        if not np.isfinite(values).all():
            raise InvalidArgument(f"{label}: {values.tolist()[:8]}; give finite numbers of {kind.dtype}")
        return values

    def _session_reward(self, reward: object, call: str) -> float:
        """Return the reward of the session with a further reward, for the public method `call`."""
        total = self._finite_sum(call, self._reward, finite_reward(reward, lambda: self._label(call)))
        for other in self._calls:  # any of them may be the last step, which gets it
            self._finite_sum(call, total, other.reward)
        return total

    def _sum_of(self, values: np.ndarray, call: str) -> float:
        """Return the sum of rewards of tokens for the public method `call`."""
        with np.errstate(over="ignore"):
            return self._finite_sum(call, float(values.sum()), 0.0)

    def _finite_sum(self, call: str, a: Any, b: Any) -> Any:
        """Return `a + b`, two numbers or two arrays, for the public method `call`. Raise `InvalidArgument` if it
        overflows.
        """
        with np.errstate(over="ignore"):
            total = a + b
        if not np.isfinite(total).all():
            raise InvalidArgument(
                f"{self._label(call)}: the sum of its rewards is {total}, which is not finite; give smaller numbers"
            )
        return total

    def _call(self, call: object, method: str) -> Call:
        """Return the call with a number or a response id."""
        if isinstance(call, str):
            found = [other for other in self._calls if other.infos.get(RESPONSE_ID) == call]
            if len(found) > 1:
                raise InvalidArgument(
                    f"{self._label(method)}: calls {[other.number for other in found]} have response id {call!r}; give "
                    "the number that add returned"
                )
            if found:
                return found[0]
        elif isinstance(call, (int, np.integer)) and not isinstance(call, bool) and 0 <= call < len(self._calls):
            return self._calls[call]
        raise UnknownKey(
            f"{self._label(method)}: call={call!r}; give a number from 0 to {len(self._calls) - 1}, as add returned "
            "it, or a response id"
        )


class SessionRecorder:
    """Recorder of agents that you do not own: sessions of calls to a model, returned as one episode each, in groups.

    A session is the run of one agent, with all its sub-agents, retries and rewritten histories. Each call is a whole
    prompt and what was sampled. In the episode, calls that continue each other are stored one after another, as one
    lineage. A lineage whose beginning differs from the one before is a branch (info "kept_tokens"), as in
    `Conversation`. `token_batch` makes one sequence of each lineage, and learns from each sample once.

    `take()` returns complete groups of sessions, as `TokenRecorder` does. Sessions and recorder may be used from
    several threads. A recorder without open sessions can be pickled and deep-copied, with the groups that were not
    taken.

    Args:
        group_size: number of ended sessions in a complete group. A session that fails does not count: its group needs
            another one.
        outputs: dtypes, by name, of values that each sampled token has. `Session.add` takes them as keyword arguments.
            By default only `logp`, as float32.
        dtype: integer dtype of the tokens.

    Raises:
        InvalidArgument: the group size is not an int of at least 1, or see `Conversation`.
        WrongType: `outputs` is not a dict of dtypes.

    >>> recorder = SessionRecorder(outputs={})
    >>> with recorder.begin("a") as session:
    ...     call = session.add([1, 2], [3])
    ...     call = session.add([9], [8])  # a sub-agent
    ...     call = session.add([1, 2, 3, 4], [5])
    ...     session.reward(1.0)
    >>> episode = recorder.take()[0]
    >>> episode, [ids.tolist() for ids in episode.get_actions()]
    (SingleAgentEpisode(a: 3 steps, return 1, terminated), [[8], [3], [5]])
    """

    def __init__(
        self, *, group_size: int = 1, outputs: Mapping[str, Any] | None = None, dtype: DTypeLike = np.int32
    ) -> None:
        self.group_size = checked_count("group_size", group_size)
        self.kinds: dict[str, RaggedKind] = output_kinds(outputs, "SessionRecorder")
        self.kind = token_kind(dtype, "SessionRecorder")
        self._sessions: dict[str, Session] = {}  # all that are open, or ended and not taken
        self._groups: MemberGroups[Session] = MemberGroups(self.group_size, self._set_taken)
        self._closed = SessionReport()  # of all sessions that have ended or failed
        self._newest_failure = ""

    @property
    def lock(self) -> RLock:
        """Lock of the sessions' ends and of the groups."""
        return self._groups.lock

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the tokens."""
        return self.kind.dtype

    def begin(self, id_: str | None = None, *, group: Hashable = None, infos: dict[str, Any] | None = None) -> Session:
        """Return a new session. It needs no prompt: a session that fails before its first call is counted.

        Args:
            id_: id of the session and its episode, by default a random one.
            group: key of the group, such as the index of the task. None: the session is a group of its own.
            infos: info of the first prompt in the episode.

        Raises:
            InvalidArgument: a session with this id is open, or has ended and was not taken.
            WrongType: the id is not a str, the group is not hashable, or infos are not a dict.
        """
        check_group(group, "SessionRecorder.begin")
        if infos is not None:
            check_infos(infos, lambda: "SessionRecorder.begin")
            _refuse_images(infos, "SessionRecorder.begin")
        id_ = random_ids(1).item() if id_ is None else id_
        if not isinstance(id_, str):
            raise WrongType(f"SessionRecorder.begin: id_={id_!r}; give a str, or None for a random id")
        with self.lock:
            if id_ in self._sessions:
                raise InvalidArgument(
                    f"SessionRecorder.begin: there is a session {id_!r}, which has not been taken; give another id_"
                )
            session = self._sessions[id_] = Session(self, id_, group, dict(infos) if infos else None)
            return session

    def get(self, id_: str) -> Session | None:
        """Return the session with an id, or None if there is none, it failed, or its episode was taken."""
        return self._sessions.get(id_)

    def _end(self, session: Session) -> None:
        self._closed += session.report()
        self._groups.add(session)

    def _fail(self, session: Session, reason: str) -> None:
        self._closed += session.report()
        self._newest_failure = reason
        self._groups.note_failure(session.group)
        del self._sessions[session.id_]

    def _set_taken(self, session: Session) -> None:
        session._state = "taken"
        del self._sessions[session.id_]

    @property
    def open_sessions(self) -> list[Session]:
        """Sessions that have neither ended nor failed, in the order of their beginning."""
        with self.lock:
            return [session for session in self._sessions.values() if session.is_open]

    @property
    def num_open(self) -> int:
        """Number of sessions that have neither ended nor failed."""
        return len(self.open_sessions)

    @property
    def num_complete(self) -> int:
        """Number of complete groups that are ready for `take`."""
        return len(self._groups.complete)

    def missing(self) -> dict[Hashable, int]:
        """Return a dict from each incomplete group to the number of sessions that it still needs.

        A group is incomplete from its first session that ended or failed, until it is complete or `drop_group` is
        called.
        """
        return self._groups.missing()

    def drop_group(self, group: Hashable) -> int:
        """Discard the ended sessions of an incomplete group, and return their number.

        Raises:
            WrongType: the group is not hashable.
        """
        check_group(group, "SessionRecorder.drop_group")
        with self.lock:
            sessions = self._groups.drop(group)
            for session in sessions:
                self._set_taken(session)
            return len(sessions)

    def take(self, num_groups: int | None = None, *, incomplete: bool = False) -> EpisodePack | None:
        """Remove complete groups from the recorder and return their sessions as one pack of episodes, earliest group
        first, or None if no group is complete.

        Args:
            num_groups: the largest number of groups; None for all.
            incomplete: also take groups that lack sessions, if none of their sessions is open. The size of such a group
                is the number of its sessions that ended.

        Raises:
            InvalidArgument: `num_groups` is not an int of at least 1.
            WrongType: `incomplete` is not a bool.
        """
        with self.lock:
            if checked_flag("SessionRecorder.take: incomplete", incomplete):
                self._groups.complete_all(session.group for session in self.open_sessions)
            return self._groups.take(num_groups, Session.episode)

    async def wait_for(self, num_groups: int) -> EpisodePack:
        """Wait until `num_groups` groups are complete, and then remove them from the recorder and return them as one
        pack. Sessions may end in other threads.

        Raises:
            InvalidArgument: `num_groups` is not an int of at least 1.
        """
        return await self._groups.wait_for(num_groups, Session.episode)

    def report(self) -> SessionReport:
        """Return the sum of the reports of all sessions since the recorder was created, open ones included."""
        with self.lock:
            return sum((session.report() for session in self.open_sessions), self._closed)

    def __getstate__(self) -> dict[str, Any]:
        with self.lock:
            if self.open_sessions:
                names = ", ".join(session.id_ for session in self.open_sessions[:3])
                raise EpisodeStateError(
                    f"SessionRecorder: pickle: {self.num_open} sessions are open ({names}); {_NO_COPY}"
                )
            return {**self.__dict__, "_sessions": dict(self._sessions)}

    def __repr__(self) -> str:
        failed = f", {self._closed.failed} failed, the newest by {self._newest_failure}" if self._closed.failed else ""
        groups = f"{len(self.missing())} incomplete groups, {self.num_complete} complete"
        return f"SessionRecorder({self.num_open} open, {groups}{failed})"
