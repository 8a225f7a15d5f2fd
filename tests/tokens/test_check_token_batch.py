"""`check_token_batch` names the cause of each mistake that a pipeline can make."""

from __future__ import annotations

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


def broken(**changed: Any) -> dict[str, Any]:
    return {**dict(token_batch(played()).items()), **changed}


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


def test_check_token_batch_of_unshifted_labels_names_them() -> None:
    right = broken()
    mask = np.roll(right["loss_mask"], 1)
    labels = np.where(mask, right["input_ids"], -100)
    batch = right | {"labels": labels, "loss_mask": mask, "action_logp": np.roll(right["action_logp"], 1)}
    result = check_token_batch(model, batch)
    assert not result
    assert "labels are not shifted" in result.problems[0]
    assert "those of the position before them" in result.problems[1]


def test_check_token_batch_of_log_probs_shifted_left_names_it() -> None:
    right = broken()
    result = check_token_batch(model, right | {"action_logp": np.roll(right["action_logp"], -1)})
    assert "those of the position after them" in str(result)


def test_check_token_batch_of_too_wide_mask_names_it() -> None:
    right = broken()
    mask = right["loss_mask"].copy()
    for end in right["cu_seqlens"][:-1]:
        mask[end] = True  # a token of the prompt
    labels = np.where(mask, np.append(right["input_ids"][1:], 0), -100)
    result = check_token_batch(model, right | {"loss_mask": mask, "labels": labels})
    assert "the mask includes tokens that were not sampled, first at sequence 0, position 0" in str(result)


def test_check_token_batch_of_other_prompt_names_the_template() -> None:
    right = broken()
    ids = right["input_ids"].copy()
    ids[right["cu_seqlens"][:-1]] = (ids[right["cu_seqlens"][:-1]] + 1) % VOCABULARY
    result = check_token_batch(model, right | {"input_ids": ids})
    assert "from the first sampled token on: another prompt" in str(result)


def test_check_token_batch_of_drifted_token_names_its_place() -> None:
    right = broken()
    ids = right["input_ids"].copy()
    ids[right["cu_seqlens"][2] + 8] = (ids[right["cu_seqlens"][2] + 8] + 1) % VOCABULARY  # a reply of sequence 2
    result = check_token_batch(model, right | {"input_ids": ids})
    assert "first at sequence 2, position 8" in str(result)
    assert "tokens before it changed after sampling" in str(result)


def test_check_token_batch_of_label_beyond_its_sequence_names_it() -> None:
    right = broken()
    labels, mask = right["labels"].copy(), right["loss_mask"].copy()
    labels[right["cu_seqlens"][1] - 1], mask[right["cu_seqlens"][1] - 1] = 3, True
    result = check_token_batch(model, right | {"labels": labels, "loss_mask": mask})
    assert "the label is not the next token at 1 of 73 learned positions, first at sequence 0" in str(result)
    with pytest.raises(ContractViolation, match="problem"):
        result.raise_if_wrong()


def test_check_token_batch_rejects_missing_columns_and_wrong_logits() -> None:
    with pytest.raises(InvalidArgument, match=r"has no \['action_logp'\]"):
        check_token_batch(model, {k: v for k, v in broken().items() if k != "action_logp"})
    with pytest.raises(ShapeMismatch, match="logits of shape"):
        check_token_batch(lambda batch: np.zeros((3, 4)), broken())


def test_check_token_batch_of_empty_batch_finds_nothing() -> None:
    empty = token_batch(played()[:0])
    assert check_token_batch(
        lambda batch: np.zeros((0, VOCABULARY)), dict(empty.items()) | {"action_logp": np.zeros(0)}
    )
