"""Conversion of token episodes (conversations with a language model) to lists of chat messages, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from episodes.converters.accounting import Account
from episodes.converters.loss_report import LossReport, report_dropped_facts
from episodes.converters.source_ids import own_or_made_ids
from episodes.errors import InvalidArgument
from episodes.single_agent import SingleAgentEpisode
from episodes.tokens import Conversation
from episodes.tokens.arguments import as_token_ids, token_kind
from episodes.tokens.names import GROUP_KEYS, KEPT_TOKENS, LOGP

__all__ = ["from_messages", "to_messages"]

ROLES = "roles"
"""Key of infos: pairs of a role and a number of tokens, the messages that an observation consists of."""
SAMPLED = "sampled"
"""Key of assistant messages. False for one that the model did not sample, such as an example in the prompt."""
_ASSISTANT = "assistant"
_ENDINGS = ("terminated", "truncated", None)
_KIND = token_kind(np.int32, "from_messages")
_FACTS = ("id_", "custom_data", "extra_model_outputs", "infos", "policy_versions")


def to_messages(
    episodes: Iterable[SingleAgentEpisode], *, decode: Callable[[list[int]], str] | None = None, strict: bool = False
) -> tuple[list[dict[str, Any]], LossReport]:
    """Convert episodes to conversations: lists of messages with token ids. Return these with a report of losses.

    A conversation is `{"id", "messages", "ending", "group"}`, with "group_id" and "group_size" if they are known. A
    message has "role", "token_ids" and, with `decode`, "content". Messages of the "assistant" also have "logprobs",
    "reward" and, if it is known, "policy_version", and further outputs under their names. If a message follows only the
    first tokens of the conversation, it has "kept_tokens". An observation is one message, "user" at the start and
    "tool" later, unless its info "roles" lists the role and the number of tokens of each message. An "assistant"
    message of an observation, such as an example in the prompt, has `"sampled": False`.

    Args:
        episodes: episodes of turns of tokens.
        decode: function that returns the text of token ids.
        strict: raise if something would be lost.

    Raises:
        InvalidArgument: an info "roles" is not a list of roles and counts that add up to the tokens of the observation.
        LostInConversion: with `strict`, something would be lost.
    """
    report, conversations = LossReport(), []
    for episode in episodes:
        report_dropped_facts(report, episode, "a list of messages", keeps=_FACTS)
        if set(episode.custom_data) - set(GROUP_KEYS):
            report.add("custom_data", "a list of messages has only the group", episode.id_)
        versions = episode.get_policy_versions().tolist()
        messages: list[dict[str, Any]] = []
        for t in range(len(episode) + 1):
            if t:
                message = {"role": _ASSISTANT, "token_ids": episode.get_actions(t - 1).tolist()}
                message["reward"] = float(episode.get_rewards(t - 1))
                message |= {
                    _key_of(key): episode.get_extra_model_outputs(key, t - 1).tolist()
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
        conversation |= {key: episode.custom_data[key] for key in GROUP_KEYS if key in episode.custom_data}
        conversations.append(conversation)
    return conversations, report.check(strict)


def _observed(ids: list[int], info: dict[str, Any], *, is_first: bool) -> list[dict[str, Any]]:
    """Return an observation as a list of chat messages, which is empty if there are no tokens and no info.

    Keys that a message stores in another form are removed from `info`.

    Args:
        is_first: whether it is the prompt, which becomes a message even if it is empty.

    Raises:
        InvalidArgument: the token counts of the recorded roles do not add up to the number of tokens.
    """
    roles = info.pop(ROLES, None)
    if roles is None:
        if not ids and not info and not is_first:
            return []
        roles = [["user" if is_first else "tool", len(ids)]]
    if not _are_roles(roles) or sum(num for _, num in roles) != len(ids):
        raise InvalidArgument(
            f"infos[{ROLES!r}]={roles!r}: the observation has {len(ids)} tokens; give pairs of a role and a count, and "
            "counts with this sum"
        )
    messages, start = [], 0
    for role, num in roles or [["tool", 0]]:
        message = {"role": role, "token_ids": ids[start : start + num]}
        messages.append(message | ({SAMPLED: False} if role == _ASSISTANT else {}))
        start += num
    if info:
        messages[0] |= {KEPT_TOKENS: info.pop(KEPT_TOKENS)} if KEPT_TOKENS in info else {}
        messages[0] |= {"info": info} if info else {}
    return messages


def _are_roles(roles: object) -> bool:
    """Return True if `roles` is a sequence of pairs of a str and an int of at least 0."""
    return isinstance(roles, (list, tuple)) and all(
        isinstance(pair, (list, tuple))
        and len(pair) == 2
        and isinstance(pair[0], str)
        and isinstance(pair[1], (int, np.integer))
        and pair[1] >= 0
        for pair in roles
    )


def from_messages(
    conversations: Iterable[Mapping[str, Any]],
    *,
    outputs: Mapping[str, Any] | None = None,
    prefix: str | None = None,
    strict: bool = False,
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Convert conversations, each a list of chat messages as from `to_messages`, to one episode per conversation.

    Returns these with a report of what was lost.

    A turn is an assistant message and the messages up to the next assistant message. An assistant message with
    `"sampled": False`, such as an example in the prompt, is a part of the observation. Tokens are read, not "content":
    the report names it, and other keys of messages such as "tool_calls". Other keys of a conversation, such as "tools",
    become custom data.

    Args:
        conversations: dicts with "messages", and "ending" ("terminated" by default). Each message has "role" and
            "token_ids", and assistant messages have "logprobs". Without an "id", the id of the conversation is
            "messages-DIGEST/INDEX", with a digest of all tokens.
        outputs: dtypes, by name, of the outputs of assistant messages; by default only "logp", from "logprobs".
        prefix: first part of the ids, "PREFIX/ID".
        strict: raise if something would be lost.

    Raises:
        InvalidArgument: a message has no role, token ids or outputs, a token id is negative, or the ending is unknown.
        ShapeMismatch: token ids are not int32 [L], or an output has another length.
        LostInConversion: with `strict`, something would be lost.
    """
    report, episodes = LossReport(), []
    conversations = list(conversations)
    ids = own_or_made_ids("messages", [c.get("id") for c in conversations], conversations, prefix, report)
    for id_, conversation in zip(ids, conversations, strict=True):
        kinds = {LOGP: "f4"} if outputs is None else outputs
        stored = Account(conversation)
        stored.skip("id")
        talk = Conversation(id_, outputs=kinds, group=stored.get("group"))
        last_ending = stored.get("ending", "terminated")
        if last_ending not in _ENDINGS:
            raise InvalidArgument(f"{id_}: ending={last_ending!r}; give one of {list(_ENDINGS)}")
        messages = [_checked(m, f"{id_}: message {i}", kinds) for i, m in enumerate(stored["messages"])]
        starts = [i for i, message in enumerate(messages) if _is_turn(message)]
        tokens, info = _observation(messages[: starts[0] if starts else None], is_first=True)
        talk.episode.add_env_reset(tokens, info)
        for i, start in enumerate(starts):
            stop = starts[i + 1] if i + 1 < len(starts) else len(messages)
            message, (tokens, info) = messages[start], _observation(messages[start + 1 : stop], is_first=False)
            ending = last_ending if i + 1 == len(starts) else None
            talk.episode.add_env_step(
                tokens,
                message["token_ids"],
                message.get("reward", 0.0),
                info,
                terminated=ending == "terminated",
                truncated=ending == "truncated",
                policy_version=message.get("policy_version"),
                extra_model_outputs={key: message[_key_of(key)] for key in kinds},
            )
        for message in messages:
            message.report_rest(report, id_, "an episode holds the tokens of a message")
        talk.episode.custom_data |= {key: deepcopy(stored[key]) for key, _ in list(stored.unread()) if key in stored}
        stored.report_rest(report, id_)
        episodes.append(talk.episode.to_numpy())
    return episodes, report.check(strict)


def _checked(message: Mapping[str, Any], label: str, outputs: Iterable[str]) -> Account:
    """Return the account of a message, with its token ids as an array.

    Raises:
        InvalidArgument: the role, the token ids or an output are missing, or a token id is negative.
        ShapeMismatch: the token ids are not int32 [L].
    """
    if "role" not in message:
        raise InvalidArgument(f"{label} has no role; give one, such as 'user' or 'assistant'")
    if "token_ids" not in message:
        raise InvalidArgument(f"{label} has no token_ids; tokens cannot be recovered from text")
    is_turn = message["role"] == _ASSISTANT and message.get(SAMPLED, True)
    missing = [_key_of(name) for name in outputs if _key_of(name) not in message] if is_turn else []
    if missing:
        raise InvalidArgument(
            f"{label} of the assistant has no {missing[0]!r}; give one value per token, or declare the outputs that "
            f"there are with outputs=, or mark a message of the prompt with {SAMPLED!r}: False"
        )
    ids = as_token_ids(message["token_ids"], _KIND, lambda: f"{label}: token_ids")
    return Account({**message, "token_ids": ids}, "messages[{!r}]")


def _is_turn(message: Account) -> bool:
    return message["role"] == _ASSISTANT and message.get(SAMPLED, True)


def _key_of(output: str) -> str:
    """Return the key under which a chat message stores the extra model output `output`."""
    return "logprobs" if output == LOGP else output


def _observation(messages: Sequence[Account], *, is_first: bool) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the token ids and the info dict of the observation that these chat messages form.

    The info records the roles unless there is a single message of the usual role: "user" for the first observation,
    else "tool".
    """
    ids = np.concatenate([np.zeros(0, np.int32), *(message["token_ids"] for message in messages)])
    info: dict[str, Any] = {}
    for message in messages[:1]:
        info |= message.get("info", {})
        info |= {KEPT_TOKENS: message[KEPT_TOKENS]} if KEPT_TOKENS in message else {}
    roles = [[message["role"], len(message["token_ids"])] for message in messages]
    if [role for role, _ in roles] not in ([], ["user" if is_first else "tool"]):
        info[ROLES] = roles
    return ids, info
