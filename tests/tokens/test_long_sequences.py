"""`limit_sequences` against batches of episodes that are cut by hand: tokens, labels and counts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from episodes import EpisodePack
from episodes.batch import Batch
from episodes.errors import InvalidArgument, TrackMismatch
from episodes.tokens import Conversation, SessionRecorder, check_token_batch, limit_sequences, token_batch
from tests.tokens.conversations import conversations

LAYOUTS = ["packed", "padded"]


def rows_of(batch: Any) -> list[dict[str, list]]:
    """Return the columns of each sequence of a batch, without padding."""
    rows = []
    names = [name for name in batch.keys() if name not in ("cu_seqlens", "max_seqlen", "episodes", "attention_mask")]  # noqa: SIM118
    columns = {name: np.asarray(batch[name]) for name in names}
    if "cu_seqlens" in batch.keys():  # noqa: SIM118
        bounds = np.asarray(batch["cu_seqlens"]).tolist()
        spans: list[Any] = [slice(a, b) for a, b in itertools.pairwise(bounds)]
    else:
        spans = [(k, slice(None, int(num))) for k, num in enumerate(np.asarray(batch["attention_mask"]).sum(1))]
    for k, span in enumerate(spans):
        rows.append({name: column[span].tolist() for name, column in columns.items()})
        rows[-1]["episode"] = [int(batch["episodes"][k])]
    return rows


def cut_by_hand(row: dict[str, list], length: int) -> dict[str, list]:
    cut = {name: values if name == "episode" else values[:length] for name, values in row.items()}
    if len(row["input_ids"]) > length:
        for name in set(cut) - {"input_ids", "position_ids", "episode"}:
            cut[name][-1] = -100 if name == "labels" else False if name == "loss_mask" else 0
    return cut


@pytest.mark.parametrize("is_tensor", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@given(plains=st.lists(conversations(), min_size=1, max_size=4), length=st.integers(1, 14), data=st.data())
def test_limited_batches_equal_rows_cut_by_hand(
    plains: list, length: int, data: st.DataObject, layout: Any, is_tensor: bool
) -> None:
    pack = EpisodePack.from_episodes([plain.record(f"e{k}").episode for k, plain in enumerate(plains)])
    weights = np.arange(1, len(pack) + 1)
    batch = token_batch(pack, layout=layout, episode_advantages=weights + 0.5, episode_weights=weights)
    before = rows_of(batch)
    given_batch = batch.to_torch() if is_tensor else batch
    longer = data.draw(st.sampled_from(["skip", "cut"]))
    if longer == "skip":
        expected = [row for row in before if len(row["input_ids"]) <= length]
    else:
        cut = [(row, cut_by_hand(row, length)) for row in before]
        expected = [new for row, new in cut if len(row["input_ids"]) <= length or any(new["loss_mask"])]
    if before and not expected:
        with pytest.raises(InvalidArgument, match="so none is left"):
            limit_sequences(given_batch, length, longer=longer)
        return
    limited, report = limit_sequences(given_batch, length, longer=longer)
    assert rows_of(limited) == expected
    assert rows_of(batch) == before  # not changed
    lengths = [len(row["input_ids"]) for row in before]
    learned = [sum(map(bool, row["loss_mask"])) for row in before]
    assert report.longest == max(lengths, default=0)
    assert report.num_skipped == len(before) - len(expected)
    assert report.num_cut == (0 if longer == "skip" else sum(n > length for n in lengths) - report.num_skipped)
    assert report.num_tokens - report.num_lost_tokens == sum(sum(map(bool, row["loss_mask"])) for row in expected)
    assert (report.num_sequences, report.num_tokens) == (len(before), sum(learned))
    left = {row["episode"][0] for row in expected}
    assert report.num_lost_episodes == len({row["episode"][0] for row in before} - left)
    assert bool(report) == any(n > length for n in lengths)
    if any(n > length for n in lengths):
        with pytest.raises(InvalidArgument, match=f"have more than {length} tokens, the longest {max(lengths)}"):
            limit_sequences(given_batch, length)
    else:
        assert rows_of(limit_sequences(given_batch, length)[0]) == before


def test_a_cut_batch_passes_the_check_of_token_batches() -> None:
    """The last position that remains has no label: its next token is not in the batch."""
    table = np.random.default_rng(0).normal(size=(10, 10))
    log_probs = table - np.log(np.exp(table).sum(1, keepdims=True))
    talks = [Conversation(f"e{k}") for k in range(3)]
    for k, talk in enumerate(talks):
        talk.begin([1, 2])
        ids = [3, 4, 5, 6][: k + 2]
        logp = [log_probs[a, b] for a, b in zip([2, *ids], ids, strict=False)]
        talk.turn(ids, terminated=True, logp=logp)
    for layout in LAYOUTS:
        batch = token_batch(EpisodePack.from_episodes([talk.episode for talk in talks]), layout=layout)  # type: ignore[arg-type]
        limited, report = limit_sequences(batch, 4, longer="cut")
        check_token_batch(lambda batch: table[batch["input_ids"]], limited).raise_if_wrong()
        assert (report.num_cut, report.num_lost_tokens) == (2, 3)
        assert str(report) == (
            "0 sequences skipped and 2 cut of 3, to 4 tokens (longest: 6); without 3 of 9 learned tokens, and without "
            "0 episodes"
        )


@pytest.mark.parametrize(
    ("length", "longer", "text"),
    [(0, "cut", "max_length"), (2.5, "cut", "max_length"), (4, "drop", "give 'error', 'skip' or 'cut'")],
)
def test_limits_that_are_no_limits_are_refused(length: Any, longer: Any, text: str) -> None:
    talk = Conversation("a", outputs={})
    talk.begin([1])
    talk.turn([2], terminated=True)
    with pytest.raises(InvalidArgument, match=text):
        limit_sequences(token_batch(EpisodePack.from_episodes([talk.episode])), length, longer=longer)


# --- images ---------------------------------------------------------------------------------------------------------


def with_images(id_: str = "a", branch: list[int] | None = None) -> Any:
    """Return a conversation with images in its prompt and in a tool's answer, and maybe a branch."""
    talk = Conversation(id_, outputs={})
    talk.begin([1, 50, 2], {"images": ["cat", "dog"]})
    talk.turn([3], [51, 4], infos={"images": "chart", "seed": 5})
    talk.turn([5], [6])
    if branch is not None:
        talk.turn([7], prompt=[*branch, 9])
    talk.turn([8], terminated=True)
    return talk.episode


@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_are_a_column_or_refused(layout: Any) -> None:
    pack = EpisodePack.from_episodes([with_images("a"), with_images("b", [1, 50, 2, 3])])
    with pytest.raises(InvalidArgument, match=r"infos of episode a have 'images', which no column has; give infos="):
        token_batch(pack, layout=layout)
    assert "images" not in token_batch(pack, layout=layout, infos=[]).keys()  # noqa: SIM118
    batch = token_batch(pack, layout=layout, infos=["images", "seed"])
    all_images = ["cat", "dog", "chart"]
    assert batch["images"].tolist() == [all_images, all_images, ["cat", "dog"]]  # the branch begins before the chart
    assert batch["seed"].tolist() == [[5], [5], []]
    with pytest.raises(TrackMismatch, match=r"infos\['labels'\] would replace"):
        token_batch(pack, layout=layout, infos=["labels"])
    limited, _ = limit_sequences(batch, 7, longer="skip")
    assert limited["images"].tolist() == [["cat", "dog"]]
    with pytest.raises(InvalidArgument, match="longer='cut' with the columns"):
        limit_sequences(batch, 7, longer="cut")
    assert check_token_batch(
        lambda batch: np.zeros((*batch["input_ids"].shape, 60)) * len(batch["images"]),
        Batch({**dict(batch.items()), "action_logp": np.full(batch["input_ids"].shape, -np.log(60))}),
    )


def test_images_of_an_observation_that_is_partly_repeated_are_refused() -> None:
    pack = EpisodePack.from_episodes([with_images("a", [1, 50])])
    for infos in (["images"], None):
        with pytest.raises(InvalidArgument, match="episode a: a later prompt repeats only a part of an observation"):
            token_batch(pack, infos=infos)
    assert len(token_batch(pack, infos=["seed"])["seed"]) == 2


def test_images_of_sessions_are_refused() -> None:
    recorder = SessionRecorder(outputs={})
    with pytest.raises(InvalidArgument, match="a session has no place for the images"):
        recorder.begin("a", infos={"images": []})
    session = recorder.begin("a")
    with pytest.raises(InvalidArgument, match="session a: add: infos"):
        session.add([1], [2], infos={"images": ["cat"]})
    assert not session.calls


# --- advantages of tokens, weights of episodes ----------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@given(plains=st.lists(conversations(), min_size=1, max_size=4))
def test_values_of_tokens_and_episodes_are_placed_like_an_output(plains: list, layout: Any) -> None:
    pack = EpisodePack.from_episodes([plain.record(f"e{k}").episode for k, plain in enumerate(plains)])
    weights = np.arange(1.0, len(pack) + 1)
    batch = token_batch(
        pack, layout=layout, token_advantages=pack.extra_model_outputs["value"], episode_weights=weights
    )
    assert batch["advantages"].tolist() == batch["value"].tolist()
    of_episodes = token_batch(pack, layout=layout, episode_advantages=weights)["advantages"]
    assert batch["weights"].tolist() == of_episodes.tolist()
    flat = token_batch(pack, layout=layout, token_advantages=pack.extra_model_outputs["value"].flat.tolist())
    assert flat["advantages"].tolist() == batch["value"].tolist()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"token_advantages": [1.0]}, r"token_advantages has shape \[1\]; give one for each of 2 sampled tokens"),
        ({"token_advantages": [1.0, np.nan]}, r"token_advantages\[1\] is nan"),
        ({"token_advantages": [1.0, 2.0], "episode_advantages": [1.0]}, "only one of advantages"),
        ({"episode_weights": [-1.0]}, "give numbers of at least 0 that are not all 0"),
        ({"episode_weights": [0.0]}, "give numbers of at least 0 that are not all 0"),
        ({"episode_weights": [np.inf]}, r"episode_weights\[0\] is inf"),
        ({"episode_weights": ["a"]}, "episode_weights is a list; give numbers"),
    ],
)
def test_wrong_values_of_tokens_and_episodes_are_refused(arguments: dict, text: str) -> None:
    talk = Conversation("a", outputs={})
    talk.begin([1])
    talk.turn([2, 3], terminated=True)
    with pytest.raises(ValueError, match=text) if "list" not in text else pytest.raises(TypeError, match=text):
        token_batch(EpisodePack.from_episodes([talk.episode]), **arguments)


def test_advantages_of_a_track_with_other_lengths_are_refused() -> None:
    talks = []
    for k in range(2):
        talk = Conversation(f"e{k}", outputs={"value": "f4"})
        talk.begin([1])
        talk.turn([2, 3][: k + 1], terminated=True, value=[0.5, 0.5][: k + 1])
        talks.append(EpisodePack.from_episodes([talk.episode]))
    with pytest.raises(ValueError, match="a ragged track with other lengths than the actions"):
        token_batch(talks[0], token_advantages=talks[1].extra_model_outputs["value"])
    assert torch.equal(
        token_batch(talks[1], token_advantages=[1, 2]).to_torch()["advantages"], torch.tensor([1.0, 2.0, 0.0])
    )
