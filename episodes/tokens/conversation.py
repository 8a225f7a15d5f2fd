"""Record one conversation of a language agent as an episode, turn by turn."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import EpisodeStateError, InvalidArgument
from episodes.facts.ending import Ending
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
from episodes.tokens.names import FORKED_AT, FORKED_FROM, GROUP, KEPT_TOKENS
from episodes.tokens.token_tree import common_prefix
from episodes.tracks.track_access import with_items_set

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

__all__ = ["Conversation"]

_NONE = ()


class Conversation:
    """Recorder of one conversation of a language agent. Actions are sampled tokens, observations the new prompt tokens.

        prompt | sampled, reply | sampled, reply | sampled      tokens, each stored once
        obs 0    act 0    obs 1   act 1    obs 2   act 2, obs 3 (empty)

    `episode` is the recorded `SingleAgentEpisode`, and `context` the tokens so far. If a chat template changes earlier
    tokens, pass the whole next prompt (`prompt=`): the observation then stores only the tokens after the common
    prefix, and its info `kept_tokens` has the length of this prefix. The conversation is then a tree of tokens.

    A pickle or a deep copy keeps the id, and continues in place of the original. To continue a conversation in several
    ways, use `fork`: `token_batch` and data sets refuse two episodes of one id with different content.

    Args:
        id_: id of the episode, by default a random one.
        outputs: dtypes, by name, of values that each sampled token has. `turn` takes them as keyword arguments. By
            default only `logp`, as float32.
        dtype: integer dtype of the tokens.
        group: key of the episode's group, such as the index of its prompt, for advantages relative to the group. It is
            stored in the episode's custom data. Without a `TokenRecorder`, all episodes of a pack with an equal key are
            one group.

    Raises:
        InvalidArgument: `dtype` is not an integer dtype, or an output has the name of an argument of `turn`.
        WrongType: `outputs` is not a dict of dtypes, or the group is not hashable.

    >>> talk = Conversation("a")
    >>> talk.begin([1, 2, 3])
    >>> talk.turn([4, 5], [6], 0.5, logp=[-0.1, -0.2])
    >>> talk.turn([7], reward=1.0, terminated=True, logp=[-0.3])
    >>> talk.context.tolist(), talk.episode
    ([1, 2, 3, 4, 5, 6, 7], SingleAgentEpisode(a: 2 steps, return 1.5, terminated))
    """

    __slots__ = ("_buffer", "_kind", "_kinds", "_num", "_pending", "episode", "outputs")

    episode: SingleAgentEpisode  # the recorded episode, or the newest chunk after `cut`

    def __init__(
        self,
        id_: str | None = None,
        *,
        outputs: Mapping[str, Any] | None = None,
        dtype: DTypeLike = np.int32,
        group: Hashable = None,
    ) -> None:
        self._kind, self._kinds = token_kind(dtype, "Conversation"), output_kinds(outputs, "Conversation")
        check_group(group, "Conversation")
        self.outputs = tuple(self._kinds)
        kinds = {"observations": self._kind, "actions": self._kind, **self._kinds}
        self.episode = SingleAgentEpisode(id_, ragged=kinds)
        if group is not None:
            self.episode.custom_data[GROUP] = group
        self._buffer = np.empty(0, self._kind.dtype)
        self._num = 0  # tokens of the buffer
        self._pending: list[np.ndarray] = []  # tokens that are not in the buffer yet

    @property
    def context(self) -> np.ndarray:
        """All token ids of the conversation so far, [L], as a copy: the model's next input.

        Raises:
            EpisodeStateError: before `begin`.
        """
        self._check_begun("context")
        return self._tokens().copy()

    def _tokens(self) -> np.ndarray:
        """Return all tokens so far, as a view of the buffer."""
        if self._pending:
            self._fill_buffer()
        return self._buffer[: self._num]

    @property
    def is_done(self) -> bool:
        """Whether the conversation has ended, by termination or truncation."""
        return self.episode.is_done

    def begin(self, prompt: ArrayLike, infos: dict[str, Any] | None = None) -> None:
        """Start the conversation with the tokens of its first prompt.

        Args:
            prompt: token ids [L], at least one, as a list, array or tensor.
            infos: info of the prompt.

        Raises:
            EpisodeStateError: it has begun already.
            WrongType: the prompt is not a list of token ids, such as text or a dict.
            ShapeMismatch: the prompt has another shape or dtype.
            InvalidArgument: the prompt is empty, or has a negative id.
        """
        if self.episode.is_reset:
            raise EpisodeStateError(f"episode {self.episode.id_}: begin was called before; create a new Conversation")
        prompt = as_token_ids(prompt, self._kind, lambda: self._label("begin: prompt"))
        if not len(prompt):
            raise InvalidArgument(f"{self._label('begin')}: the prompt is empty; give at least one token id")
        if infos is not None:
            check_infos(infos, lambda: self._label("begin"))
        self.episode.add_env_reset(prompt, infos)
        self._pending.append(prompt)

    def turn(
        self,
        ids: ArrayLike,
        reply_ids: ArrayLike = _NONE,
        reward: float = 0.0,
        *,
        prompt: ArrayLike | None = None,
        infos: dict[str, Any] | None = None,
        terminated: bool = False,
        truncated: bool = False,
        policy_version: int | None = None,
        **outputs: ArrayLike,
    ) -> None:
        """Record one turn: the sampled tokens, and the tokens that the environment added. Arrays are not copied.

        A rejected call changes nothing.

        Args:
            ids: the sampled token ids [L].
            reply_ids: new tokens of the next prompt, such as a tool's answer. Empty by default.
            reward: reward of the turn.
            prompt: the whole next prompt, in place of `reply_ids`. Tokens that it shares with `context` from the start
                are not stored again.
            infos: info of the observation after the turn.
            terminated: True if the conversation ended in a terminal state.
            truncated: True if it was ended from outside, for example by a limit on tokens. If both flags are True, the
                ending is `Ending.BOTH`, and a value of 0 follows, as after a termination.
            policy_version: version of the policy that sampled the tokens. If it changed within the turn, declare the
                output "version" and give one for each token.
            outputs: for each name in `outputs` of the constructor, one value for each token in `ids`.

        Raises:
            EpisodeStateError: before `begin`, or after the end.
            WrongType: token ids or values are not a list, array or tensor that numpy can read.
            ShapeMismatch: tokens are not integers [L], or an output has another length than `ids`.
            TrackMismatch: an output is missing, or was not declared.
            InvalidArgument: a token id is negative, a log-probability is NaN, above 0.01 or below -1000 (such as
                -9999, which vLLM returns in place of -inf), the reward is not finite,
                the whole next prompt is empty, both `reply_ids` and `prompt` are given, or `infos` has the key
                "kept_tokens".
        """
        if self.episode.growth is None:
            self._check_begun("turn")
            self.episode.growing("turn")
        tokens = as_token_ids(ids, self._kind, lambda: self._label("turn: ids"))
        values = checked_outputs(outputs, self._kinds, len(tokens), lambda: self._label("turn"), "Conversation")
        finite_reward(reward, lambda: self._label("turn"))
        if infos is not None:
            check_infos(infos, lambda: self._label("turn"))
        if prompt is None:
            keep = -1
            reply = np.empty(0, self._kind.dtype) if reply_ids is _NONE else self._as_tokens(reply_ids, "reply_ids")
        else:
            if reply_ids is not _NONE:
                raise InvalidArgument(f"{self._label('turn')}: give reply_ids or prompt, not both")
            keep, reply, infos = self._split("turn", tokens, self._as_tokens(prompt, "prompt"), infos)
        self.episode.add_env_step(
            reply,
            tokens,
            reward,
            infos,
            terminated=terminated,
            truncated=truncated,
            policy_version=policy_version,
            extra_model_outputs=values,
        )
        self._pending.append(tokens)
        self._advance(keep, reply)

    def _split(
        self, call: str, tokens: np.ndarray, prompt: np.ndarray, infos: dict[str, Any] | None
    ) -> tuple[int, np.ndarray, dict[str, Any] | None]:
        """Split a turn's whole next prompt into the tokens that it shares with the conversation so far, and new
        tokens.

        Return the number of shared leading tokens (-1: all tokens so far), the new tokens, and the infos to record.

        Raises:
            InvalidArgument: the prompt is empty.
        """
        if not len(prompt):
            raise InvalidArgument(
                f"{self._label(call)}: prompt is empty; give the whole next prompt, or leave it out in the last turn"
            )
        so_far, num = self._tokens(), self._num + len(tokens)
        keep = common_prefix(so_far, prompt)
        if keep == len(so_far):
            keep += common_prefix(tokens, prompt[keep:])
        added = prompt[keep:].copy()  # a view would retain the whole prompt
        return (-1, added, infos) if keep == num else (keep, added, {**(infos or {}), KEPT_TOKENS: keep})

    def reply(self, reply_ids: ArrayLike = _NONE, *, prompt: ArrayLike | None = None) -> None:
        """Add the reply to the newest turn, if it was not known in `turn`, such as the answer of a slow tool.

        A rejected call changes nothing.

        Args:
            reply_ids: new tokens of the next prompt.
            prompt: the whole next prompt, in place of `reply_ids`.

        Raises:
            EpisodeStateError: before the first turn since a `cut`, after the end, or the turn has a reply already.
            WrongType, ShapeMismatch: tokens are not integers [L].
            InvalidArgument: a token id is negative, the prompt is empty, or not exactly one argument is given.
        """
        episode = self.episode
        self._check_begun("reply")
        episode.growing("reply")
        if not len(episode) or len(episode.get_observations(-1)) or KEPT_TOKENS in episode.get_infos(-1):
            raise EpisodeStateError(
                f"{self._label('reply')}: the newest turn has a reply, or there is none; call turn before"
            )
        if (reply_ids is _NONE) == (prompt is None):
            raise InvalidArgument(f"{self._label('reply')}: give reply_ids or prompt, and not both")
        if prompt is None:
            keep, reply, infos = -1, as_token_ids(reply_ids, self._kind, lambda: self._label("reply: reply_ids")), None
        else:
            whole = as_token_ids(prompt, self._kind, lambda: self._label("reply: prompt"))
            keep, reply, infos = self._split("reply", np.empty(0, self._kind.dtype), whole, episode.get_infos(-1))
        tracks = episode.tracks
        tracks = tracks.replaced(with_items_set(tracks.observations, [reply], [-1], False))
        episode.tracks = tracks if keep < 0 else tracks.replaced(with_items_set(tracks.infos, [infos], [-1], False))
        self._advance(keep, reply)

    def _advance(self, keep: int, reply: np.ndarray) -> None:
        """Append a reply to the tokens so far, of which the first `keep` stay (-1: all)."""
        if keep >= 0:
            self._fill_buffer()
            self._num = keep
        self._pending.append(reply)

    def end(self, *, terminated: bool = False, truncated: bool = False) -> None:
        """End the conversation after its newest turn, if the end was not known in `turn`, such as a time limit.

        Args:
            terminated: True if the conversation ended in a terminal state.
            truncated: True if it was ended from outside.

        Raises:
            EpisodeStateError: before the first turn since a `cut`, or after the end.
            InvalidArgument: no flag is True.
            WrongType: a flag is not a bool.
        """
        self._check_begun("end")
        self.episode.growing("end")
        ending = Ending.of(terminated, truncated)
        if not ending.is_done:
            raise InvalidArgument(f"{self._label('end')}: neither terminated nor truncated is True; set one of them")
        if not len(self.episode):
            raise EpisodeStateError(f"{self._label('end')}: there is no turn; call turn before")
        self.episode.end(ending)

    def cut(self) -> SingleAgentEpisode:
        """Return the turns since the last cut as an episode chunk to learn from. The conversation continues.

        `episode` is then the next chunk, with all earlier turns as its lookback, which are context for the model.

        Raises:
            EpisodeStateError: before `begin`, or after the end.
        """
        chunk = self.episode
        self._check_begun("cut")
        self.episode = chunk.cut(len_lookback_buffer=chunk.t)
        return chunk

    def fork(self, id_: str | None = None, *, group: Hashable = None) -> Conversation:
        """Return a new conversation that begins with the tokens so far (`context`) as its prompt. Both can continue.

        The fork is an episode of its own. It has the turns and rewards after the fork, and earlier sampled tokens are
        learned from once, in the episode in which they were sampled. Its custom data has the id of this episode
        ("forked_from") and the number of turns before the fork ("forked_at"). `recorder.begin(talk.context,
        group=...)` forks a conversation into a recorder.

        Args:
            id_: id of the new episode, by default a random one.
            group: key of the new episode's group. Returns of forks count from the fork on, so forks of one place can be
                a group.

        Raises:
            EpisodeStateError: before `begin`, or after the end.
            InvalidArgument: `id_` is the id of this episode.
            WrongType: the group is not hashable.
        """
        self._check_begun("fork")
        self.episode.growing("fork")
        check_group(group, self._label("fork"))
        if id_ == self.episode.id_:
            raise InvalidArgument(f"{self._label('fork')}: id_={id_!r} is this episode's id; give another, or None")
        fork = Conversation(id_, outputs=self._kinds, dtype=self._kind.dtype, group=group)
        fork.begin(self.context)
        fork.episode.custom_data |= {FORKED_FROM: self.episode.id_, FORKED_AT: self.episode.t}
        return fork

    # --- checks ------------------------------------------------------------------------------------------------------

    def _label(self, call: str) -> str:
        """Return the beginning of an error message, which names the episode and the method `call`."""
        return f"episode {self.episode.id_}: {call}"

    def _as_tokens(self, ids: ArrayLike, name: str) -> np.ndarray:
        return as_token_ids(ids, self._kind, lambda: self._label(f"turn: {name}"))

    def _check_begun(self, call: str) -> None:
        """Raise `EpisodeStateError` if `call` is used before `begin`."""
        if not self.episode.is_reset:
            raise EpisodeStateError(f"{self._label(call)} before begin(prompt)")

    def _fill_buffer(self) -> None:
        """Append the tokens recorded since the last call to the array of all tokens of the conversation."""
        num = self._num + sum(map(len, self._pending))
        if num > len(self._buffer):
            buffer = np.empty(max(num, 2 * len(self._buffer), 256), self._kind.dtype)
            buffer[: self._num] = self._buffer[: self._num]
            self._buffer = buffer
        start = self._num
        for tokens in self._pending:
            stop = start + len(tokens)
            self._buffer[start:stop] = tokens
            start = stop
        self._num = num
        self._pending.clear()

    def __repr__(self) -> str:
        return f"Conversation({self.episode!r})"
