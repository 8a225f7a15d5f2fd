"""Views of conversations: all tokens in order, escaped, with notes, as text and as HTML."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_html import Checked

from episodes import RaggedKind, SingleAgentEpisode
from episodes.errors import InvalidArgument, TrackMismatch
from episodes.inspect import view_conversation
from episodes.inspect.html import single_agent_episode
from episodes.inspect.html_report import episode_data
from episodes.tokens import Conversation


def talk(outputs: bool = True) -> Conversation:
    talk = Conversation("a", outputs={"logp": "f4", "learned": "?", "version": "i4"} if outputs else {})
    talk.begin([1, 2])
    values = {"logp": [-0.5, -3.0], "learned": [True, False], "version": [3, 4]} if outputs else {}
    talk.turn([3, 4], [5], 0.5, policy_version=4, **values)
    values = {"logp": [-9.0], "learned": [True], "version": [4]} if outputs else {}
    talk.turn([6], prompt=[1, 2, 3, 8], **values)
    talk.turn([], terminated=True, **{key: [] for key in values})
    return talk


def words(ids: list[int]) -> str:
    return "".join(f"<w{id_}>" for id_ in ids)


@pytest.mark.parametrize("finalized", [False, True])
def test_conversation_view_as_text_lists_messages_with_notes(finalized: bool) -> None:
    episode = talk().episode
    if finalized:
        episode.to_numpy()
    lines = str(view_conversation(episode, advantages=[1, 2, 3])).splitlines()
    assert lines[0] == "a: 3 turns, 3 sampled tokens (2 learned from), 4 other tokens, return 0.5, terminated"
    assert lines[1:] == [
        *("prompt, turn 0:", "  1 2"),
        *("model, turn 0 (reward 0.5, advantage 1, version 4, 1 of 2 tokens left out of the loss):", "  3 4"),
        *("reply, turn 1:", "  5"),
        *("model, turn 1 (reward 0, advantage 2, version 4):", "  6"),
        *("reply, turn 2 (after the first 3 tokens):", "  8"),
        "model, turn 2 (reward 0, advantage 3, version 4):",
    ]
    assert "<w3><w4>" in str(view_conversation(episode, decode=words))


def test_conversation_view_as_html_escapes_dims_and_heats_tokens() -> None:
    html = view_conversation(talk().episode, decode=words)._repr_html_()
    page = Checked(html)
    assert "<w3>" in page.words
    assert "<w3>" not in html
    tokens = re.findall(r'<span class="(ep-token[^"]*)"([^>]*)>', html)
    assert [cls for cls, _ in tokens] == ["ep-token"] * 3 + ["ep-token ep-dim"] + ["ep-token"] * 3
    alphas = [float(m.group(1)) if (m := re.search(r"many\), ([\d.]+)", attributes)) else 0 for _, attributes in tokens]
    assert alphas == pytest.approx([0, 0, 0.217, 0.532, 0, 0.75, 0], abs=1e-3)
    assert 'title="4, log-probability -3, version 4, left out of the loss"' in html
    assert "background of sampled tokens: log-probability, 0 -6 and below" in " ".join(page.words.split())
    plain = view_conversation(talk(outputs=False).episode)._repr_html_()
    assert "background of" not in plain
    assert "no log-probabilities were recorded" in plain


def test_conversation_view_shows_no_outputs_that_are_no_numbers_per_token() -> None:
    values = {"logp": np.zeros((2, 2)), "learned": {"part": [True]}}
    kinds = {"observations": "i4", "actions": "i4", "logp": RaggedKind("f4", (2,)), "learned": {"part": "?"}}  # type: ignore[arg-type]
    episode = SingleAgentEpisode("a", ragged=kinds)
    episode.add_env_reset([1])
    episode.add_env_step([], [3, 4], 0.0, extra_model_outputs=values)
    assert str(view_conversation(episode)).splitlines()[3:5] == ["model, turn 0 (reward 0):", "  3 4"]


def test_conversation_view_is_part_of_the_view_of_an_episode() -> None:
    page = Checked(single_agent_episode(talk(outputs=False).episode))
    assert "model 0" in page.words
    fixed = SingleAgentEpisode("f")
    fixed.add_env_reset(np.zeros(2))
    assert "ep-talk ep-" not in single_agent_episode(fixed)
    assert episode_data(fixed.to_numpy())["conversation"] == []
    with pytest.raises(TrackMismatch, match="are no ragged tokens"):
        view_conversation(fixed)
    with pytest.raises(TrackMismatch, match="are no ragged tokens"):
        view_conversation(SingleAgentEpisode("empty"))


def test_views_of_an_episode_show_text_with_decode() -> None:
    episode = talk().episode.to_numpy()
    assert "<w3>" in Checked(single_agent_episode(episode, words)).words
    assert episode_data(episode, decode=words)["conversation"][0]["texts"][2] == "<w3>"


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        ({1: "one"}.__getitem__, r"decode\(\[1\]\) raised TypeError"),
        (bytes, r"decode\(\[1\]\) returned b'\\x01'; it must"),
    ],
)
def test_conversation_view_with_wrong_decode_raises(decode: Callable, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        view_conversation(talk().episode, decode=decode)


def test_conversation_view_of_long_episodes_is_small() -> None:
    long = Conversation("a", outputs={"logp": "f4"})
    long.begin(np.arange(100_000))
    for _ in range(300):
        long.turn(np.arange(50), np.arange(20), logp=np.full(50, -1.0))
    view = view_conversation(long.episode.to_numpy())
    assert len(view.messages) == 200
    assert "401 more messages" in str(view)
    assert "99600 more tokens" in str(view)
    assert len(view._repr_html_()) < 1_500_000


@given(st.text(max_size=30))
def test_characters_of_several_tokens_are_whole_on_the_last_one(text: str) -> None:
    ids = list(text.encode("utf-8", "replace"))
    whole = Conversation("a", outputs={})
    whole.begin([0, *ids])
    message = view_conversation(whole.episode, decode=lambda ids: bytes(ids).decode("utf-8", "replace")).messages[0]
    characters = text.encode("utf-8", "replace").decode()
    expected = [part for one in characters for part in (*[None] * (len(one.encode()) - 1), one)]
    assert message.texts == ["\0", *expected]
    assert [token.text for token in message.tokens(None)] == ["\0", *(part or "" for part in expected)]


def test_part_of_a_character_at_the_end_of_a_message_stays_marked() -> None:
    cut = Conversation("a", outputs={})
    cut.begin([65, 226, 130])
    message = view_conversation(cut.episode, decode=lambda ids: bytes(ids).decode("utf-8", "replace")).messages[0]
    assert message.texts == ["A", "\ufffd", "\ufffd"]


def test_title_of_a_token_has_the_log_probability_of_the_trainer_too() -> None:
    talk = Conversation("a", outputs={"logp": "f4", "trainer_logp": "f4"})
    talk.begin([1])
    talk.turn([2], logp=[-0.5], trainer_logp=[-0.75])
    view = view_conversation(talk.episode)
    [token] = view.messages[1].tokens(view.quantity)
    assert token.title == "log-probability -0.5, trainer's log-probability -0.75, sampler minus trainer 0.25"
    assert view.messages[1].notes[-1] == "sampler and trainer: mean |Δ log-probability| 0.25"
