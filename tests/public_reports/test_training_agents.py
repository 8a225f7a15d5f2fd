"""Public reports of users who train agents with TRL, verl, agent-lightning, prime-rl, NeMo RL, SkyRL and ms-swift. Each
test has what the person did, and asserts the right value here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from episode_learners import TokenGRPO, TokenGRPOConfig
from episodes import EpisodePack
from episodes.errors import InvalidArgument, ShapeMismatch
from episodes.tokens import Conversation, SessionRecorder, TokenRecorder, limit_sequences, token_batch

VOCABULARY = 12


def grpo(**settings: Any) -> TokenGRPO:
    model = nn.Embedding(VOCABULARY, VOCABULARY)
    nn.init.zeros_(model.weight)
    return TokenGRPO(
        model, TokenGRPOConfig(scale=None, **settings), forward=lambda model, batch: model(batch["input_ids"])
    )


def group(*lengths: int, logp: float = -0.5) -> EpisodePack:
    """Return a group of episodes with answers of these lengths, and returns 0, 1, 2, ..."""
    recorder = TokenRecorder(group_size=len(lengths))
    for k, length in enumerate(lengths):
        talk = recorder.begin([1, 2], group="question")
        talk.turn([3] * length, reward=float(k), terminated=True, logp=[logp] * length)
        recorder.end(talk)
    pack = recorder.take()
    assert pack is not None
    return pack


def test_images_do_not_vanish_between_rollout_and_training() -> None:
    """agent-lightning: the trainer never got the images that the server saw, and nothing failed."""
    talk = Conversation("a", group=1)
    talk.begin([1, 2], {"images": ["photo"]})
    talk.turn([3], terminated=True, logp=[-0.5])
    with pytest.raises(InvalidArgument, match="have 'images', which no column has"):
        grpo(group_size=1).update(EpisodePack.from_episodes([talk.episode]))


def test_images_of_several_turns_stay_with_their_sequence() -> None:
    """TRL, verl (tools that return images): images were indexed by row, and features did not match the tokens."""
    talks = []
    for k in range(3):
        talk = Conversation(f"e{k}")
        talk.begin([1], {"images": [f"{k}.0"] * (k + 1)})
        talk.turn([2], [3], logp=[-1.0], infos={"images": f"{k}.1"} if k != 1 else None)
        talk.turn([4], terminated=True, logp=[-1.0])
        talks.append(talk.episode)
    batch = token_batch(EpisodePack.from_episodes(talks), infos=["images"])
    assert batch["images"].tolist() == [["0.0", "0.1"], ["1.0", "1.0"], ["2.0", "2.0", "2.0", "2.1"]]


def test_too_long_sequences_are_an_error_unless_a_choice_is_made() -> None:
    """verl (agent loop): the filter for long prompts was silently not applied, and batching failed later."""
    with pytest.raises(InvalidArgument, match="2 of 3 sequences have more than 5 tokens, the longest 8"):
        grpo(max_length=5).update(group(2, 4, 6))


def test_skipped_sequences_do_not_change_the_advantages_of_their_group() -> None:
    """prime-rl, rLLM: long sequences were filtered before baselines, which then were those of other groups."""
    batch = token_batch(pack := group(2, 4, 9), episode_advantages=grpo().episode_advantages(pack))
    limited, report = limit_sequences(batch, 6, longer="skip")
    assert np.unique(limited["advantages"]).tolist() == [-1.0, 0.0]  # of returns 0, 1, 2
    assert (report.num_skipped, report.num_lost_tokens, report.num_lost_episodes) == (1, 9, 1)


def test_truncated_answers_can_have_no_weight() -> None:
    """NeMo RL (overlong filtering): answers that a limit cut were learned from like wrong answers."""
    pack = group(2, 3)
    weights = np.array([1.0, 0.0])
    batch = token_batch(pack, episode_advantages=[1.0, -1.0], episode_weights=weights).to_torch().to_dict()
    for mean in ("token", "sequence"):
        algorithm = grpo(mean=mean)
        algorithm.backward(batch)
        gradient = algorithm.optimizers["policy"].gradient.clone()
        alone = token_batch(pack[:1], episode_advantages=[1.0]).to_torch().to_dict()
        algorithm.optimizers["policy"].zero_grad()
        algorithm.backward(alone)
        torch.testing.assert_close(gradient, algorithm.optimizers["policy"].gradient)


def test_server_log_probabilities_that_differ_do_not_clip_at_the_first_step() -> None:
    """verl, TRL: the server's probabilities differed from the trainer's, so the first step was clipped and biased."""
    pack = group(3, 3, logp=-np.log(VOCABULARY) - 1.0)  # the trainer's probability is e times as large
    assert grpo().update(pack)["clip_fraction"] == pytest.approx(0.5)
    corrected = grpo(max_correction=2.0).update(pack)
    assert (corrected["clip_fraction"], corrected["truncated_fraction"]) == (0.0, 1.0)
    assert corrected["kl"] == pytest.approx(0.0, abs=1e-6)
    assert corrected["sampler_kl"] == pytest.approx(np.e - 2, rel=1e-5)


def test_correction_is_capped_and_has_no_gradient_of_its_own() -> None:
    """prime-rl, ms-swift: a quotient without a bound, or with a gradient, made single tokens dominate."""
    gradients = []
    for logp, max_correction in ((-np.log(VOCABULARY) - 5.0, 2.0), (-np.log(VOCABULARY), None)):
        algorithm = grpo(max_correction=max_correction)
        batch = algorithm.preprocess(group(1, 1, logp=logp))
        if max_correction:
            batch["trainer_logp"] = algorithm.trainer_log_probs(batch)
        algorithm.backward(batch)
        gradients.append(algorithm.optimizers["policy"].gradient.clone())
    torch.testing.assert_close(gradients[0], 2.0 * gradients[1])


def test_rollout_function_returns_one_row_for_each_prompt() -> None:
    """TRL: a rollout function that returned more rows than prompts failed at the first step with an IndexError."""
    from episodes.converters import to_trl

    recorder = SessionRecorder(group_size=4)
    for k in range(4):
        with recorder.begin(f"e{k}", group="question") as session:
            for call in range(k + 1):  # each begins another history
                session.add([1, 5 + call], [3], logp=[-0.5])
            session.reward(float(k))
    columns, report = to_trl(recorder.take(), one_per_episode=True)  # type: ignore[arg-type]
    assert {name: len(column) for name, column in columns.items()} == dict.fromkeys(columns, 4)
    assert columns["reward"] == [0.0, 1.0, 2.0, 3.0]
    assert [loss.num_episodes for loss in report if loss.what == "branches"] == [3]


def test_rewards_of_turns_give_their_own_tokens_other_advantages() -> None:
    """atropos, hermes-agent (several turns): one advantage for all turns gave no credit to single ones."""
    recorder = SessionRecorder(outputs={"logp": "f4", "token_rewards": "f4"})
    with recorder.begin("a") as session:
        session.add([1], [3, 4], logp=[-0.5, -0.5])
        session.add([1, 3, 4, 2], [5], logp=[-0.5])
        session.reward([0.0, 1.0], 0)
        session.reward([-1.0], 1)
    pack = recorder.take()
    assert pack is not None
    batch = token_batch(pack, token_advantages=pack.extra_model_outputs["token_rewards"])
    assert batch["advantages"].tolist() == [0.0, 1.0, 0.0, -1.0, 0.0]
    with pytest.raises(ShapeMismatch, match="one for each of 3 sampled tokens"):
        token_batch(pack, token_advantages=[1.0, 2.0])


def test_a_failed_session_is_no_answer_with_reward_zero() -> None:
    """TRL (request for rollout sources): sessions with time-outs were fed as answers with a reward of 0."""
    recorder = SessionRecorder(group_size=3)
    for k in range(3):
        session = recorder.begin(f"e{k}", group="question")
        session.add([1], [3], logp=[-0.5])
        if k == 1:
            session.fail("time-out")
        else:
            session.end(reward=1.0 + k)
    assert recorder.missing() == {"question": 1}
    pack = recorder.take(incomplete=True)
    assert pack is not None
    assert grpo().episode_advantages(pack).tolist() == [-1.0, 1.0]
