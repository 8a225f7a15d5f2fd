"""Token batches equal sequences that are built one token at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conversations import Plain, PlainSequence, conversations, plain_sequences
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch
from episodes.tokens import Conversation, check_token_batch, token_batch, token_minibatches
from episodes.tokens.minibatches import select_sequences, sequence_lengths
from episodes.tokens.sequences import TokenSequences

IGNORED = -100


def expected_columns(plains: list[Plain], sequences: list[PlainSequence], first_turns: list[int]) -> list[dict]:
    """Return the columns of each sequence, one position at a time. The advantage of a turn is 10 i + t + 1."""
    columns = []
    for sequence in sequences:
        turns = plains[sequence.episode].turns[first_turns[sequence.episode] :]
        rows: list[dict[str, Any]] = []
        for position, token in enumerate(sequence.tokens):
            source = sequence.sources[position + 1] if position + 1 < len(sequence.tokens) else None
            turn, k = (turns[source[0]], source[1]) if source else (None, 0)
            is_learned = turn is not None and turn.values["learned"][k]
            row = {"input_ids": token, "loss_mask": is_learned, "position_ids": position}
            row["labels"] = turn.ids[k] if turn is not None and is_learned else IGNORED
            row["advantages"] = 10 * sequence.episode + source[0] + 1 if source else 0
            for column, output in (("action_logp", "logp"), ("policy_version", "version"), ("value", "value")):
                row[column] = turn.values[output][k] if turn else 0
            rows.append(row)
        columns.append({name: [row[name] for row in rows] for name in rows[0]})
    return columns


def check_batches(pack: EpisodePack, plains: list[Plain], first_turns: list[int], with_last: bool) -> None:
    sequences = [
        sequence for i, plain in enumerate(plains) for sequence in plain_sequences(plain, i, first_turns[i], with_last)
    ]
    expected = expected_columns(plains, sequences, first_turns)
    counts = [len(plain.turns) - first for plain, first in zip(plains, first_turns, strict=True)]
    advantages = [10 * i + t + 1 for i, count in enumerate(counts) for t in range(count)]
    arguments: dict[str, Any] = {"advantages": advantages, "with_last_observation": with_last}
    packed = token_batch(pack, **arguments)
    padded = token_batch(pack, layout="padded", pad_id=99, **arguments)
    assert packed["episodes"].tolist() == padded["episodes"].tolist() == [s.episode for s in sequences]
    assert np.diff(packed["cu_seqlens"]).tolist() == [len(s.tokens) for s in sequences]
    assert padded["attention_mask"].sum(1).tolist() == [len(s.tokens) for s in sequences]
    fills = {"input_ids": 99, "labels": IGNORED}
    for k, columns in enumerate(expected):
        span = slice(*packed["cu_seqlens"][k : k + 2])
        for name, values in columns.items():
            assert packed[name][span].tolist() == values, name
            row = padded[name][k].tolist()
            assert row == values + [fills.get(name, 0)] * (len(row) - len(values)), name


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("breaks", [True, False])
@settings(max_examples=30)
@given(data=st.data(), with_last=st.booleans())
def test_token_batch_of_conversations_equals_plain_sequences(
    is_whole: bool, breaks: bool, data: st.DataObject, with_last: bool
) -> None:
    plains = data.draw(st.lists(conversations(breaks=breaks), min_size=1, max_size=4))
    chunks, first_turns = [], []
    for i, plain in enumerate(plains):
        first = 0 if is_whole else data.draw(st.integers(0, len(plain.turns)))
        episode = plain.record(f"e{i}").episode
        chunks.append(episode if is_whole else episode.to_numpy().slice(slice(first, None), len_lookback_buffer=first))
        first_turns.append(first)
    check_batches(EpisodePack.from_episodes(chunks), plains, first_turns, with_last)


@settings(max_examples=40)
@given(st.lists(conversations(), min_size=1, max_size=4))
def test_conversation_by_prompts_equals_by_replies(plains: list[Plain]) -> None:
    for plain in plains:
        by_reply, by_prompt = plain.record().episode, plain.record(as_prompts=True).episode
        assert by_reply.to_numpy().equals(by_prompt.to_numpy())
        tokens = sum(map(len, [plain.prompt, *(turn.ids for turn in plain.turns)]))
        stored = sum(len(by_reply.get_observations(t)) for t in range(len(plain.turns) + 1))
        assert tokens + sum(len(turn.reply) for turn in plain.turns) >= stored  # each token is stored at most once


@settings(max_examples=40)
@given(st.lists(conversations(), min_size=1, max_size=5), st.integers(1, 60), st.booleans(), st.booleans())
def test_token_minibatches_hold_each_sequence_once(
    plains: list[Plain], budget: int, is_packed: bool, is_shuffled: bool
) -> None:
    pack = EpisodePack.from_episodes([p.record(f"e{i}").episode for i, p in enumerate(plains)])
    batch = token_batch(pack, layout="packed" if is_packed else "padded", episode_advantages=np.ones(len(pack)))
    lengths = sequence_lengths(batch)
    rng = np.random.default_rng(0) if is_shuffled else None
    if lengths.max(initial=0) > budget:
        with pytest.raises(InvalidArgument, match="give a larger budget"):
            list(token_minibatches(batch, budget, rng=rng))
        return
    parts = list(token_minibatches(batch, budget, rng=rng))
    assert all(part["input_ids"].size <= budget for part in parts)
    rows = [row for part in parts for row in single_sequences(part)]
    assert sorted(map(str, rows)) == sorted(map(str, single_sequences(batch)))
    if is_packed and not is_shuffled:
        assert rows == single_sequences(batch)


def single_sequences(batch: Any) -> list[dict[str, list]]:
    """Return the columns of each sequence without padding."""
    lengths = sequence_lengths(batch)
    rows = []
    for k, length in enumerate(lengths.tolist()):
        sequence = select_sequences(batch, [k])
        columns = {name: column for name, column in sequence.items() if name not in ("cu_seqlens", "max_seqlen")}
        assert sequence["input_ids"].size == length
        rows.append({name: column.reshape(-1).tolist() for name, column in columns.items()})
    return rows


def small_pack() -> EpisodePack:
    talk = Conversation("a")
    talk.begin([1, 2])
    talk.turn([3], [4], logp=[-1.0], policy_version=7)
    talk.turn([5, 6], terminated=True, logp=[-2.0, -3.0])
    return EpisodePack.from_episodes([talk.episode])


def test_token_batch_gives_each_turn_its_version_and_advantage() -> None:
    batch = token_batch(small_pack(), episode_advantages=[0.5])
    assert batch["policy_version"].tolist() == [0, 7, 0, 7, 7, 0]
    assert batch["advantages"].tolist() == [0, 0.5, 0, 0.5, 0.5, 0]
    dtypes = dict.fromkeys(("input_ids", "labels", "position_ids", "cu_seqlens", "max_seqlen"), "int32")
    dtypes |= {"loss_mask": "bool", "advantages": "float32", "action_logp": "float32"}
    dtypes |= {"policy_version": "int64", "episodes": "int64"}
    assert {name: str(column.dtype) for name, column in batch.items()} == dtypes


def test_token_batch_of_unsigned_tokens_has_signed_labels() -> None:
    talk = Conversation("a", dtype=np.uint16, outputs={})
    talk.begin([65535])
    talk.turn([65534], terminated=True)
    batch = token_batch(EpisodePack.from_episodes([talk.episode]))
    assert batch["labels"].tolist() == [65534, IGNORED]


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("name", ["input_ids", "labels", "position_ids", "attention_mask", "cu_seqlens", "episodes"])
def test_outputs_with_the_name_of_a_column_are_rejected(name: str, layout: Any) -> None:
    for outputs in ([name], ["logp", "action_logp"]):
        talk = Conversation("a", outputs=dict.fromkeys(outputs, "f4"))
        talk.begin([1])
        talk.turn([2], terminated=True, **{name: [-1.0] for name in outputs})  # type: ignore[arg-type]
        pack = EpisodePack.from_episodes([talk.episode])
        with pytest.raises(TrackMismatch, match=f"output '{outputs[-1]}' would replace"):
            token_batch(pack, layout=layout)
        assert token_batch(pack, layout=layout, outputs=outputs[:-1])["labels"].max() == 2


def test_sequences_padded_on_the_left_are_rejected() -> None:
    batch = token_batch(small_pack(), layout="padded", pad_to=20)
    flipped = {name: column[:, ::-1] if column.ndim == 2 else column for name, column in batch.items()}
    calls = (
        lambda: sequence_lengths(flipped),
        lambda: select_sequences(flipped, [0]),
        lambda: next(token_minibatches(flipped, 100)),
        lambda: check_token_batch(lambda batch: np.zeros((*batch["input_ids"].shape, 9)), flipped),
    )
    for call in calls:
        with pytest.raises(ShapeMismatch, match="padded on the right"):
            call()


def recorded(observed: str = "i4", acted: str = "i4", prompt: Any = (1, 2), info: Any = None) -> SingleAgentEpisode:
    """Return an episode of two turns with token arrays of these dtypes. An empty dtype means fixed shapes."""
    kinds = {name: dtype for name, dtype in (("observations", observed), ("actions", acted)) if dtype}
    episode, dtype = SingleAgentEpisode("a", ragged=kinds), observed or float
    episode.add_env_reset(np.array(prompt, dtype))
    for turn_info in (info, {}):
        episode.add_env_step(np.ones(1, dtype), [1] if acted else 0, 0.0, turn_info)
    return episode


NO_INTEGERS = "token ids are integers of one dtype"


@pytest.mark.parametrize(
    ("episode", "error", "text"),
    [
        (recorded("", "", prompt=[1]), TrackMismatch, "observations are not ragged tokens"),
        (recorded()[1:], InvalidArgument, "starts at t=1 and has a lookback of 0"),
        (recorded(prompt=[]), InvalidArgument, "episode a: a sequence begins with a sampled token"),
        (recorded(info={"kept_tokens": 4}), ShapeMismatch, "at t=1 is larger than the 3 tokens before"),
        *((recorded(*dtypes), TrackMismatch, NO_INTEGERS) for dtypes in (("f4", "i4"), ("i4", "f4"), ("?", "?"))),
        *((recorded(*dtypes), TrackMismatch, NO_INTEGERS) for dtypes in (("c8", "c8"), ("i8", "u8"))),
    ],
)
def test_token_sequences_reject_other_episodes(episode: SingleAgentEpisode, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        TokenSequences(EpisodePack.from_episodes([episode]))
