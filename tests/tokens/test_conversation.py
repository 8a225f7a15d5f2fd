"""Conversations: recording rules, rejected calls, and chunks of a partial rollout."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any

import numpy as np
import pytest
from conversations import OUTPUTS, Plain, conversations
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import EpisodePack
from episodes.errors import EpisodeStateError, InvalidArgument
from episodes.tokens import Conversation, token_batch


def begun(**arguments: object) -> Conversation:
    talk = Conversation("a", **arguments)  # type: ignore[arg-type]
    talk.begin([1, 2])
    return talk


def test_conversation_stores_the_tokens_after_the_common_prefix() -> None:
    talk = begun(outputs={})
    talk.turn([3, 4], prompt=[1, 2, 3, 9, 9])  # sampled token 4 was encoded differently
    talk.turn([5], prompt=[1, 2, 3, 9, 9, 5, 6])
    episode = talk.episode
    assert [episode.get_observations(t).tolist() for t in range(3)] == [[1, 2], [9, 9], [6]]
    assert episode.get_infos() == [{}, {"kept_tokens": 3}, {}]
    assert talk.context.tolist() == [1, 2, 3, 9, 9, 5, 6]


def test_unpickled_conversation_continues_and_its_context_is_a_copy() -> None:
    talk = begun(outputs={})
    for protocol in range(2, 6):
        talk = pickle.loads(pickle.dumps(talk, protocol))
        talk.turn([protocol] * protocol, [9])
        talk.context[:] = 0
    assert talk.context.tolist() == [1, 2, 2, 2, 9, 3, 3, 3, 9, 4, 4, 4, 4, 9, 5, 5, 5, 5, 5, 9]


@settings(max_examples=40)
@given(conversations())
def test_conversation_cut_chunks_join_to_the_whole(plain: Plain) -> None:
    whole, chunks = plain.record().episode, []
    talk = plain.record(as_prompts=True, after_turn=lambda talk: talk.is_done or chunks.append(talk.cut()))
    joined, *remaining = [*chunks, talk.episode]
    for chunk in remaining:
        joined.concat_episode(chunk)
    assert joined.to_numpy().get_observations() == whole.to_numpy().get_observations()
    assert joined.get_actions() == whole.get_actions()
    assert joined.get_infos() == whole.get_infos()


def test_conversation_cut_learns_each_turn_once() -> None:
    talk = begun()
    talk.turn([3], [4], 1.0, logp=[-1.0], policy_version=3)
    half = talk.cut()
    talk.turn([5, 6], [], 2.0, terminated=True, logp=[-2.0, -3.0], policy_version=4)
    batches = [token_batch(EpisodePack.from_episodes([chunk])) for chunk in (half, talk.episode)]
    assert [batch["labels"][batch["loss_mask"]].tolist() for batch in batches] == [[3], [5, 6]]
    assert batches[1]["input_ids"].tolist() == [1, 2, 3, 4, 5, 6]
    assert [batch["policy_version"].max() for batch in batches] == [3, 4]


def test_conversation_context_grows_over_many_turns() -> None:
    talk, tokens = begun(outputs={}), [1, 2]
    rng = np.random.default_rng(0)
    for _ in range(200):
        ids, reply = (rng.integers(0, 99, rng.integers(0, 9)).tolist() for _ in range(2))
        talk.turn(ids, reply)
        tokens += ids + reply
        if rng.random() < 0.3:
            assert talk.context.tolist() == tokens
    assert talk.context.tolist() == tokens


def finish(talk: Conversation, *turns: int) -> None:
    for k, token in enumerate(turns):
        talk.turn([token], logp=[-1.0], reward=float(token), terminated=k == len(turns) - 1)


@settings(max_examples=40)
@given(conversations())
def test_fork_learns_the_common_tokens_once(plain: Plain) -> None:
    talk = Plain(plain.prompt, plain.turns, "cut", has_outputs=False).record()
    expected = token_batch(EpisodePack.from_episodes([talk.episode]))["loss_mask"].sum()
    fork = talk.fork()
    assert fork.context.tolist() == talk.context.tolist()
    assert fork.episode.id_ != talk.episode.id_
    assert fork.episode.custom_data == {"forked_from": "a", "forked_at": len(plain.turns)}
    for k, one in enumerate((talk, fork)):
        one.turn([k, 7], terminated=True)
    assert talk.context.tolist()[-2:] == [0, 7]
    batch = token_batch(EpisodePack.from_episodes([talk.episode, fork.episode]))
    assert batch["loss_mask"].sum() == expected + 4
    last = batch["cu_seqlens"][-2]
    assert batch["input_ids"][last:].tolist() == fork.context.tolist()


def test_fork_keeps_outputs_and_dtype_and_takes_id_and_group() -> None:
    talk = begun(outputs={"logp": "f8", "entropy": "f4"}, dtype=np.uint16, group="g")
    talk.turn([3], logp=[-1.0], entropy=[0.5])
    fork = talk.fork("b", group=("g", 1))
    assert (fork.outputs, fork.context.dtype, fork.episode.id_) == (talk.outputs, np.uint16, "b")
    assert fork.episode.custom_data["group"] == ("g", 1)
    again = fork.fork()
    assert again.episode.custom_data == {"forked_from": "b", "forked_at": 0}
    talk.cut()
    assert talk.fork().episode.custom_data["forked_at"] == 1
    with pytest.raises(InvalidArgument, match="is this episode's id"):
        talk.fork("a")
    talk.turn([3], logp=[-1.0], entropy=[0.5], terminated=True)
    with pytest.raises(EpisodeStateError, match="a: fork after the end"):
        talk.fork()


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": deepcopy,
    "pickle": lambda talk: pickle.loads(pickle.dumps(talk)),
    "of its episode": lambda talk: _with_episode(talk, deepcopy(talk.episode)),
    "of its pickled episode": lambda talk: _with_episode(talk, pickle.loads(pickle.dumps(talk.episode))),
}


def _with_episode(talk: Conversation, episode: Any) -> Conversation:
    other = copy(talk)
    other.episode = episode
    return other


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("is_cut", [False, True])
def test_two_continued_copies_of_a_conversation_are_refused(way: str, is_cut: bool) -> None:
    talk = begun()
    talk.turn([3], [4], logp=[-1.0])
    if is_cut:
        talk.cut()
    other = COPIES[way](talk)
    finish(talk, 5)
    finish(other, 6)
    same, different = talk.episode, other.episode
    assert len(token_batch(EpisodePack.from_episodes([same, same]))["episodes"]) == 2  # sampled twice
    with pytest.raises(
        InvalidArgument, match=r"episode a is twice in the pack, with different turns.*Conversation.fork"
    ):
        token_batch(EpisodePack.from_episodes([same, different]))


@given(plain=conversations(), data=st.data())
def test_reply_and_end_after_the_turn_record_the_same(plain: Plain, data: st.DataObject) -> None:
    talk, context = Conversation("a", outputs=OUTPUTS, group=plain.group), list(plain.prompt)
    talk.begin(plain.prompt)
    for turn in plain.turns:
        values: dict[str, Any] = turn.values
        talk.turn(turn.ids, reward=turn.reward, **values)
        context = [*context, *turn.ids][: turn.keep] + turn.reply
        if turn.keep is None and data.draw(st.booleans()):
            talk.reply(turn.reply)
        else:
            talk.reply(prompt=context)
        assert talk.context.tolist() == context
    if plain.turns and plain.ending != "cut":
        talk.end(**{plain.ending: True})
    assert talk.episode.equals(plain.record().episode)


def test_reply_and_end_out_of_order_are_rejected() -> None:
    talk = Conversation("a", outputs={})
    with pytest.raises(EpisodeStateError, match="reply before begin"):
        talk.reply([1])
    talk.begin([1])
    for call in (lambda: talk.reply([1]), lambda: talk.end(truncated=True)):
        with pytest.raises(EpisodeStateError, match="call turn before"):
            call()
    talk.turn([2])
    for call in (
        lambda: talk.reply(),
        lambda: talk.reply([1], prompt=[1]),
        lambda: talk.end(),
        lambda: talk.reply([-1]),
    ):
        with pytest.raises(InvalidArgument):
            call()
    with pytest.raises(InvalidArgument, match="reply: prompt is empty"):
        talk.reply(prompt=[])
    talk.reply([3])
    with pytest.raises(EpisodeStateError, match="has a reply"):
        talk.reply([4])
    talk.end(truncated=True)
    for call in (lambda: talk.reply([1]), lambda: talk.end(truncated=True)):
        with pytest.raises(EpisodeStateError):
            call()
    assert (talk.context.tolist(), talk.episode.is_truncated) == ([1, 2, 3], True)


def test_branch_without_a_sampled_token_is_no_sequence() -> None:
    talk = Conversation("a", outputs={})
    talk.begin([1, 2])
    talk.turn([], prompt=[9, 8])
    talk.turn([5], terminated=True)
    pack = EpisodePack.from_episodes([talk.episode])
    batch = token_batch(pack, layout="padded", advantages=[1.0, 2.0])
    assert (batch["input_ids"].tolist(), batch["advantages"].tolist()) == ([[9, 8, 5]], [[0.0, 2.0, 0.0]])
