"""`check_token_batch` names the cause of each mistake that a pipeline can make."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from episodes import Batch, EpisodePack
from episodes.errors import ContractViolation, InvalidArgument, ShapeMismatch
from episodes.tokens import Conversation, check_token_batch, token_batch

VOCABULARY = 11


def logits_after(tokens: Any) -> np.ndarray:
    """Return logits [V] that depend on all tokens so far."""
    seed = [int(token) for token in tokens]
    return np.random.default_rng(seed).normal(size=VOCABULARY)


def log_probs_after(tokens: Any) -> np.ndarray:
    logits = logits_after(tokens)
    return logits - np.log(np.exp(logits).sum())


def model(batch: Any) -> np.ndarray:
    """Return logits of a packed or padded batch."""
    ids = np.asarray(batch["input_ids"])
    if ids.ndim == 1:
        bounds = np.asarray(batch["cu_seqlens"]).tolist()
        starts = [max(bound for bound in bounds if bound <= i) for i in range(len(ids))]
        return np.array([logits_after(ids[start : i + 1]) for i, start in enumerate(starts)])
    return np.array([[logits_after(row[: i + 1]) for i in range(len(row))] for row in ids])


def played(seed: int = 0, num: int = 6) -> EpisodePack:
    rng = np.random.default_rng(seed)
    episodes = []
    for k in range(num):
        talk = Conversation(f"e{k}")
        talk.begin(rng.integers(0, VOCABULARY, 3))
        for t in range(3):
            ids, logp = [], []
            for _ in range(4):
                log_probs = log_probs_after([*talk.context, *ids])
                ids.append(int(rng.integers(VOCABULARY)))
                logp.append(log_probs[ids[-1]])
            talk.turn(ids, rng.integers(0, VOCABULARY, 2), logp=logp, terminated=t == 2)
        episodes.append(talk.episode)
    return EpisodePack.from_episodes(episodes)


def right() -> dict[str, Any]:
    return dict(token_batch(played()).items())


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("convert", [Batch, Batch.to_torch, Batch.to_dict], ids=["batch", "torch", "dict"])
def test_check_token_batch_of_right_batch_finds_nothing(layout: Any, convert: Any) -> None:
    batch = convert(token_batch(played(), layout=layout))
    result = check_token_batch(model, batch, tolerance=1e-5)
    assert result
    assert result.num_tokens == 6 * 12
    assert result.max_difference < 1e-6
    assert result.raise_if_wrong() is result
    as_tensor = check_token_batch(lambda b: torch.from_numpy(model(b)).to(torch.float32), batch, tolerance=1e-4)
    assert as_tensor


def mistakes() -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Return for each mistake the columns that replace those of a right batch, and parts of the expected problems."""
    batch = right()
    ids, starts, mask = batch["input_ids"], batch["cu_seqlens"][:-1], batch["loss_mask"]
    late, wide, beyond = np.roll(mask, 1), mask.copy(), mask.copy()
    wide[starts], beyond[starts[1] - 1] = True, True  # a token of each prompt; the last token of a sequence
    prompts, reply = ids.copy(), ids.copy()
    prompts[starts] = (ids[starts] + 1) % VOCABULARY
    reply[starts[2] + 8] = (ids[starts[2] + 8] + 1) % VOCABULARY
    labels = {"late": np.where(late, ids, -100), "wide": np.where(wide, np.append(ids[1:], 0), -100)}
    logp = {shift: np.roll(batch["action_logp"], shift) for shift in (-1, 1)}
    return {
        "unshifted labels": (
            {"labels": labels["late"], "loss_mask": late, "action_logp": logp[1]},
            ["labels are not shifted", "those of the position before them"],
        ),
        "values shifted left": ({"action_logp": logp[-1]}, ["those of the position after them"]),
        "wide mask": (
            {"labels": labels["wide"], "loss_mask": wide},
            ["the mask includes tokens that were not sampled, first at sequence 0, position 0"],
        ),
        "other prompts": ({"input_ids": prompts}, ["from the first sampled token on: another prompt"]),
        "other reply": (
            {"input_ids": reply},
            ["first at sequence 2, position 8", "tokens before it changed after sampling"],
        ),
        "label beyond the end": (
            {"labels": np.where(beyond & ~mask, 3, batch["labels"]), "loss_mask": beyond},
            ["the label is not the next token at 1 of 73 learned positions, first at sequence 0"],
        ),
    }


@pytest.mark.parametrize("mistake", mistakes())
def test_check_token_batch_names_the_cause(mistake: str) -> None:
    columns, texts = mistakes()[mistake]
    result = check_token_batch(model, right() | columns)
    assert not result
    assert all(text in str(result) for text in texts), result
    with pytest.raises(ContractViolation, match="problem"):
        result.raise_if_wrong()


def crossing_model(batch: Any) -> np.ndarray:
    """Return logits that depend on all tokens before, of other sequences and padding too."""
    ids = np.asarray(batch["input_ids"])
    flat = ids.reshape(-1)
    return np.array([logits_after(flat[: i + 1]) for i in range(len(flat))]).reshape(*ids.shape, VOCABULARY)


@pytest.mark.parametrize("convert", [Batch, Batch.to_torch, Batch.to_dict], ids=["batch", "torch", "dict"])
@pytest.mark.parametrize(
    ("layout", "text"),
    [("packed", "attention crosses packed sequences.*position_ids"), ("padded", "attention reaches padding or other")],
)
def test_check_token_batch_names_attention_across_sequences(layout: Any, text: str, convert: Any) -> None:
    batch = convert(token_batch(played(), layout=layout))
    (problem,) = check_token_batch(crossing_model, batch).problems
    assert "60 of 72 log-probabilities differ" in problem
    assert "in 5 of 6 sequences, and sequence 1 alone agrees" in problem
    assert re.search(text, problem)
    one = token_batch(played(num=1), layout=layout)
    assert check_token_batch(crossing_model, one)
    assert check_token_batch(model, batch)


def test_check_token_batch_of_other_weights_does_not_name_attention() -> None:
    batch = right()
    (problem,) = check_token_batch(lambda batch: model(batch)[:, ::-1], batch).problems
    assert "another prompt" in problem
    with_other = {**batch, "step": np.array(3), "text": "a"}  # columns that are not of tokens
    assert len(check_token_batch(crossing_model, with_other).problems) == 1


def test_check_token_batch_rejects_missing_columns_and_wrong_logits() -> None:
    with pytest.raises(InvalidArgument, match=r"has no \['action_logp'\]"):
        check_token_batch(model, {k: v for k, v in right().items() if k != "action_logp"})
    with pytest.raises(ShapeMismatch, match="logits of shape"):
        check_token_batch(lambda batch: np.zeros((3, 4)), right())


def test_check_token_batch_of_empty_batch_finds_nothing() -> None:
    empty = dict(token_batch(played()[:0]).items()) | {"action_logp": np.zeros(0)}
    assert check_token_batch(lambda batch: np.zeros((0, VOCABULARY)), empty)
