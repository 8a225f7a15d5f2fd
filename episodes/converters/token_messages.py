"""Conversion of token episodes (conversations with a language model) to lists of chat messages, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from episodes.converters.loss_report import LossReport, report_dropped_facts
from episodes.errors import InvalidArgument
from episodes.single_agent import SingleAgentEpisode
from episodes.tokens import Conversation
from episodes.tokens.names import GROUP, KEPT_TOKENS, LOGP

__all__ = ["from_messages", "to_messages"]

ROLES = "roles"
"""Key of infos: pairs of a role and a number of tokens, the messages that an observation consists of."""
_ASSISTANT = "assistant"
_FACTS = ("id_", "custom_data", "extra_model_outputs", "infos", "policy_versions")


def to_messages(
    episodes: Iterable[SingleAgentEpisode], *, decode: Callable[[list[int]], str] | None = None, strict: bool = False
) -> tuple[list[dict[str, Any]], LossReport]:
    """Convert episodes to conversations: lists of messages with token ids. Return these with a report of losses.

    A conversation is `{"id", "messages", "ending", "group"}`. A message has "role", "token_ids" and, with `decode`,
    "content". Messages of the "assistant" also have "logprobs", "reward" and, if it is known, "policy_version", and
    further outputs under their names. If a message follows only the first tokens of the conversation, it has
    "kept_tokens". An observation is one message, "user" at the start and "tool" later, unless its info "roles" lists
    the role and the number of tokens of each message.

    Args:
        episodes: episodes of turns of tokens.
        decode: function that returns the text of token ids.
        strict: raise if something would be lost.

    Raises:
        InvalidArgument: the counts of an info "roles" do not add up to the tokens of the observation.
        LostInConversion: with `strict`, something would be lost.
    """
    report, conversations = LossReport(), []
    for episode in episodes:
        report_dropped_facts(report, episode, "a list of messages", keeps=_FACTS)
        if set(episode.custom_data) - {GROUP}:
            report.add("custom_data", "a list of messages has only the group", episode.id_)
        versions = episode.get_policy_versions().tolist()
        messages: list[dict[str, Any]] = []
        for t in range(len(episode) + 1):
            if t:
                message = {"role": _ASSISTANT, "token_ids": episode.get_actions(t - 1).tolist()}
                message["reward"] = float(episode.get_rewards(t - 1))
                message |= {
                    "logprobs" if key == LOGP else key: episode.get_extra_model_outputs(key, t - 1).tolist()
                    for key in episode.extra_model_outputs
                }
                if versions[t - 1] >= 0:
                    message["policy_version"] = versions[t - 1]
                messages.append(message)
            messages += _observed(episode.get_observations(t).tolist(), dict(episode.get_infos(t)), is_first=t == 0)
        if decode is not None:
            messages = [{**message, "content": decode(message["token_ids"])} for message in messages]
        ending = "terminated" if episode.is_terminated else "truncated" if episode.is_truncated else None
        conversation = {"id": episode.id_, "messages": messages, "ending": ending}
        if GROUP in episode.custom_data:
            conversation["group"] = episode.custom_data[GROUP]
        conversations.append(conversation)
    return conversations, report.check(strict)


def _observed(ids: list[int], info: dict[str, Any], *, is_first: bool) -> list[dict[str, Any]]:
    """Return an observation as a list of chat messages, empty if there are no tokens and no info."""
    roles = info.pop(ROLES, None)
    if roles is None:
        if not ids and not info and not is_first:
            return []
        roles = [["user" if is_first else "tool", len(ids)]]
    if sum(num for _, num in roles) != len(ids):
        raise InvalidArgument(
            f"infos[{ROLES!r}]={roles}: the observation has {len(ids)} tokens; give counts with this sum"
        )
    messages, start = [], 0
    for role, num in roles:
        messages.append({"role": role, "token_ids": ids[start : start + num]})
        start += num
    if info:
        messages[0] |= {KEPT_TOKENS: info.pop(KEPT_TOKENS)} if KEPT_TOKENS in info else {}
        messages[0] |= {"info": info} if info else {}
    return messages


def from_messages(
    conversations: Iterable[Mapping[str, Any]], *, outputs: Mapping[str, Any] | None = None
) -> list[SingleAgentEpisode]:
    """Convert conversations, each a list of chat messages as from `to_messages`, to one episode per conversation.

    A turn is an assistant message and the messages up to the next assistant message. "content" is not read.

    Args:
        conversations: dicts with "messages", and "ending" ("terminated" by default). Each message has "role" and
            "token_ids", and assistant messages have "logprobs".
        outputs: dtypes, by name, of the outputs of assistant messages; by default only "logp", from "logprobs".

    Raises:
        InvalidArgument: a message has no token ids.
    """
    episodes = []
    for k, conversation in enumerate(conversations):
        kinds = {LOGP: "f4"} if outputs is None else outputs
        talk = Conversation(conversation.get("id", f"messages/{k}"), outputs=kinds, group=conversation.get("group"))
        messages = conversation["messages"]
        without = [i for i, message in enumerate(messages) if "token_ids" not in message]
        if without:
            raise InvalidArgument(
                f"{talk.episode.id_}: message {without[0]} has no token_ids; tokens cannot be recovered from text"
            )
        starts = [i for i, message in enumerate(messages) if message["role"] == _ASSISTANT]
        ids, info = _observation(messages[: starts[0] if starts else None], is_first=True)
        talk.episode.add_env_reset(ids, info)
        for i, start in enumerate(starts):
            stop = starts[i + 1] if i + 1 < len(starts) else len(messages)
            message, (ids, info) = messages[start], _observation(messages[start + 1 : stop], is_first=False)
            ending = conversation.get("ending", "terminated") if i + 1 == len(starts) else None
            talk.episode.add_env_step(
                ids,
                message["token_ids"],
                message.get("reward", 0.0),
                info,
                terminated=ending == "terminated",
                truncated=ending == "truncated",
                policy_version=message.get("policy_version"),
                extra_model_outputs={key: message["logprobs" if key == LOGP else key] for key in kinds},
            )
        episodes.append(talk.episode.to_numpy())
    return episodes


def _observation(messages: Sequence[Mapping[str, Any]], *, is_first: bool) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the token ids and the info dict of the observation that these chat messages form."""
    ids = np.array([token for message in messages for token in message["token_ids"]], np.int32)
    info: dict[str, Any] = {}
    for message in messages[:1]:
        info |= message.get("info", {})
        info |= {KEPT_TOKENS: message[KEPT_TOKENS]} if KEPT_TOKENS in message else {}
    roles = [[message["role"], len(message["token_ids"])] for message in messages]
    if [role for role, _ in roles] not in ([], ["user" if is_first else "tool"]):
        info[ROLES] = roles
    return ids, info
