"""Record many conversations at once, and return complete groups of conversations, such as
several answers to one prompt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import EpisodeStateError, WrongType
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tokens.arguments import check_group, output_kinds, token_kind
from episodes.tokens.conversation import Conversation
from episodes.tokens.member_groups import MemberGroups
from episodes.tokens.names import GROUP
from episodes.tracks.validation import checked_count, checked_flag

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

__all__ = ["TokenRecorder"]

_MOST_TEXT = 200  # characters of an error that are kept


class TokenRecorder:
    """Recorder of many simultaneous conversations, which returns them in groups, such as the answers to one prompt.

    Conversations of a group, such as several answers to one prompt, are returned together: `take()` returns a pack of
    complete groups, in the order of their completion. A conversation that fails or is cancelled is dropped. It does
    not affect any other conversation, and its group then needs another one (`begin` with the same group).

    A complete group gets a random id, which its episodes store in `custom_data["group_id"]`, next to the key
    ("group") and the number of its episodes ("group_size"). `group_numbers` and `TokenGRPO` read it, so a key may be
    used again, also by other recorders.

        async def play(prompt, group):
            async with recorder.conversation(prompt, group=group) as talk:
                while not talk.is_done:
                    ids, logp = await engine(talk.context)
                    reply, reward, done = await tool(ids)
                    talk.turn(ids, reply, reward, terminated=done, logp=logp)

    Use a recorder in the thread of one event loop, or without asyncio: `begin`, `end` and `drop` do not wait.

    A recorder can be pickled and deep-copied with its open conversations, which are `open_conversations` of the copy.
    The copy continues in place of the original. Tasks that wait in `wait_for` stay with the original.

    Args:
        group_size: number of conversations in a complete group. If more of a group end, the next `group_size` of them
            are another group.
        outputs: dtypes, by name, of values that each sampled token has, as in `Conversation`.
        dtype: integer dtype of the tokens.

    Raises:
        InvalidArgument: the group size is not an int of at least 1, or see `Conversation`.
        WrongType: `outputs` is not a dict of dtypes.

    >>> recorder = TokenRecorder(group_size=2, outputs={})
    >>> talks = [recorder.begin([1, 2], group="prompt 1") for _ in range(2)]
    >>> for reward, talk in enumerate(talks):
    ...     talk.turn([3], reward=reward, terminated=True)
    ...     recorder.end(talk)
    >>> recorder.take().returns().tolist()
    [0.0, 1.0]
    """

    def __init__(
        self, *, group_size: int = 1, outputs: Mapping[str, Any] | None = None, dtype: DTypeLike = np.int32
    ) -> None:
        self.group_size = checked_count("group_size", group_size)
        self._outputs, self._dtype = output_kinds(outputs, "TokenRecorder"), token_kind(dtype, "TokenRecorder").dtype
        self._open: dict[Conversation, None] = {}  # the keys, in the order of their beginning
        self._groups: MemberGroups[SingleAgentEpisode] = MemberGroups(self.group_size)
        self._num_dropped = 0
        self._newest_failure = ""

    # --- conversations -----------------------------------------------------------------------------------------------

    def begin(
        self, prompt: ArrayLike, *, group: Hashable = None, id_: str | None = None, infos: dict[str, Any] | None = None
    ) -> Conversation:
        """Return a new conversation that starts with the token ids `prompt`.

        Args:
            prompt: token ids [L].
            group: the group. None: the conversation is a group of its own, of any `group_size`.
            id_: id of the episode, by default a random one.
            infos: info of the prompt.

        Raises:
            WrongType: the prompt is not a list of ints, or the group is not hashable.
        """
        check_group(group, "TokenRecorder.begin")
        talk = Conversation(id_, group=group, outputs=self._outputs, dtype=self._dtype)
        talk.begin(prompt, infos)
        self._open[talk] = None
        return talk

    def end(self, talk: Conversation) -> None:
        """Add an ended conversation to its group. A group is complete when it has `group_size` conversations.

        Raises:
            EpisodeStateError: it has not ended, or is not open in this recorder.
            WrongType: it is not a conversation.
        """
        self._check_open(talk, "end")
        episode = talk.episode
        if not episode.is_done:
            raise EpisodeStateError(
                f"TokenRecorder.end: episode {episode.id_} has not ended; set terminated or truncated in its last "
                "turn, or drop it"
            )
        episode.to_numpy()
        del self._open[talk]
        self._groups.add(episode)

    def drop(self, talk: Conversation) -> None:
        """Discard a conversation, for example because a tool failed. Its group then needs another
        conversation to become complete.

        Raises:
            EpisodeStateError: it is not an open conversation of this recorder.
            WrongType: it is not a conversation.
        """
        self._check_open(talk, "drop")
        self._drop(talk, "drop()")

    def _drop(self, talk: Conversation, reason: str) -> None:
        """Discard an open conversation, and record that its group is incomplete. Do nothing if it is closed already.

        Args:
            reason: text on why, for later errors.
        """
        if talk not in self._open:
            return  # ended or dropped before
        del self._open[talk]
        self._num_dropped, self._newest_failure = self._num_dropped + 1, reason
        self._groups.note_failure(talk.episode.custom_data.get(GROUP))

    @asynccontextmanager
    async def conversation(
        self, prompt: ArrayLike, *, group: Hashable = None, id_: str | None = None, infos: dict[str, Any] | None = None
    ) -> AsyncIterator[Conversation]:
        """Return an async context manager of a new conversation, which is ended with `end` after the block, or dropped
        if the block raises an error.

        A block may call `end` or `drop` itself.

        Args:
            prompt: token ids [L].
            group: the group.
            id_: id of the episode.
            infos: info of the prompt.

        Raises:
            EpisodeStateError: the block completes without an end of the conversation, which is then dropped.
        """
        talk = self.begin(prompt, group=group, id_=id_, infos=infos)
        try:
            yield talk
            if talk in self._open:
                self.end(talk)
        except BaseException as error:
            self._drop(talk, repr(error)[:_MOST_TEXT])
            raise

    def drop_group(self, group: Hashable) -> int:
        """Discard the ended conversations of an incomplete group, and return their number.

        Raises:
            WrongType: the group is not hashable.
        """
        check_group(group, "TokenRecorder.drop_group")
        return len(self._groups.drop(group))

    def _check_open(self, talk: Conversation, call: str) -> None:
        """Raise an error unless `talk` is an open conversation of this recorder.

        Args:
            call: name of the method, for errors.

        Raises:
            WrongType: it is not a `Conversation`.
            EpisodeStateError: it was ended or dropped, or is of another recorder.
        """
        if not isinstance(talk, Conversation):
            raise WrongType(f"TokenRecorder.{call}: talk is a {type(talk).__name__}; give the Conversation of begin()")
        if talk not in self._open:
            raise EpisodeStateError(
                f"TokenRecorder.{call}: talk={talk!r} is not open in this recorder: it was ended or dropped before (as "
                "`async with recorder.conversation(...)` does), or is another recorder's"
            )

    # --- what is recorded --------------------------------------------------------------------------------------------

    @property
    def open_conversations(self) -> list[Conversation]:
        """Conversations that have begun and neither ended nor been dropped, in the order of their beginning."""
        return list(self._open)

    @property
    def num_open(self) -> int:
        """Number of conversations that have begun and neither ended nor been dropped."""
        return len(self._open)

    @property
    def num_complete(self) -> int:
        """Number of complete groups that are ready for `take`."""
        return len(self._groups.complete)

    @property
    def num_dropped(self) -> int:
        """Number of conversations that failed, were cancelled or dropped."""
        return self._num_dropped

    def missing(self) -> dict[Hashable, int]:
        """Return a dict from each incomplete group to the number of conversations that the group still needs.

        A group is incomplete from its first conversation that ended or was dropped, until it is complete or
        `drop_group` is called.
        """
        return self._groups.missing()

    def take(self, num_groups: int | None = None, *, incomplete: bool = False) -> EpisodePack | None:
        """Remove complete groups from the recorder and return them as one pack, earliest group first,
        or None if no group is complete.

        If it is None unexpectedly, `print(recorder)` shows how many conversations were dropped, and the newest error.

        Args:
            num_groups: the largest number of groups; None for all.
            incomplete: also take groups that lack conversations, if none of their conversations is open. The size of
                such a group is the number of its conversations that ended.

        Raises:
            InvalidArgument: `num_groups` is not an int of at least 1.
            WrongType: `incomplete` is not a bool.
        """
        if checked_flag("TokenRecorder.take: incomplete", incomplete):
            self._groups.complete_all(talk.episode.custom_data.get(GROUP) for talk in self._open)
        return self._groups.take(num_groups, _itself)

    async def wait_for(self, num_groups: int) -> EpisodePack:
        """Wait until `num_groups` groups are complete, and then remove them from the recorder
        and return them as one pack.

        Raises:
            InvalidArgument: `num_groups` is not an int of at least 1.
        """
        return await self._groups.wait_for(num_groups, _itself)

    def __repr__(self) -> str:
        groups = f"{len(self.missing())} incomplete groups, {self.num_complete} complete"
        dropped = f", {self._num_dropped} dropped, the newest by {self._newest_failure}" if self._num_dropped else ""
        return f"TokenRecorder({self.num_open} open, {groups}{dropped})"


def _itself(episode: SingleAgentEpisode) -> SingleAgentEpisode:
    return episode
