"""Conversations: recording rules, rejected calls, and chunks of a partial rollout."""

from __future__ import annotations

import pickle

import numpy as np
from conversations import Plain, conversations
from hypothesis import given, settings

from episodes import EpisodePack
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
