"""Public reports of users who train language agents with TRL, verl, OpenRLHF, SkyRL, RAGEN, SLiME, open-instruct and
transformers. Each test has what the person did, and asserts the right value here."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from episode_learners import TokenGRPO, TokenGRPOConfig
from episodes import EpisodePack
from episodes.errors import InvalidArgument, ShapeMismatch
from episodes.tokens import Conversation, TokenRecorder, check_token_batch, group_numbers, token_batch
from episodes.tokens.minibatches import select_sequences

VOCABULARY, EOS = 12, 0


class Causal(nn.Module):
    """A causal model with the interface of transformers: positions that begin at 0 again divide a row, unless there is
    a cache."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embed, self.position = nn.Embedding(VOCABULARY, 8), nn.Embedding(128, 8)
            self.query, self.head = nn.Linear(8, 8), nn.Linear(8, VOCABULARY)

    def forward(
        self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None, use_cache: bool = True
    ) -> Any:
        num = input_ids.shape[1]
        positions = torch.arange(num)[None] if position_ids is None else position_ids
        is_seen = torch.ones(num, num, dtype=torch.bool).tril()[None]
        if position_ids is not None and attention_mask is None and not use_cache:
            parts = (position_ids.diff(dim=1, prepend=position_ids[:, :1] - 1) != 1).cumsum(1)
            is_seen = is_seen & (parts[:, :, None] == parts[:, None])
        if attention_mask is not None:
            is_seen = is_seen & (attention_mask[:, None].bool() | torch.eye(num, dtype=torch.bool))
        hidden = self.embed(input_ids.long()) + self.position(positions.long())
        weights = (self.query(hidden) @ hidden.mT).masked_fill(~is_seen, -torch.inf).softmax(-1)
        return self.head(hidden + weights @ hidden)


def packed(model: nn.Module, batch: Any) -> Any:
    ids, positions = batch["input_ids"][None], batch["position_ids"][None]
    return getattr(output := model(input_ids=ids, position_ids=positions, use_cache=False), "logits", output)[0]


def padded(model: nn.Module, batch: Any) -> Any:
    output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    return getattr(output, "logits", output)


FORWARDS = {"packed": packed, "padded": padded}


def llama() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=VOCABULARY, **sizes))


@torch.no_grad()
def sampled(model: Any, context: Any, num: int, rng: np.random.Generator) -> tuple[list[int], list[float]]:
    ids, logp = [], []
    for _ in range(num):
        output = model(input_ids=torch.tensor([[*context, *ids]]))
        log_probs = getattr(output, "logits", output)[0, -1].log_softmax(-1)
        ids.append(int(rng.integers(VOCABULARY)))
        logp.append(float(log_probs[ids[-1]]))
    return ids, logp


def recorded(model: Any, num: int = 6) -> EpisodePack:
    """Record conversations of two turns, in groups of two."""
    rng, recorder = np.random.default_rng(0), TokenRecorder(group_size=2)
    for k in range(num):
        talk = recorder.begin(rng.integers(0, VOCABULARY, 2 + k), group=k // 2)
        for t in range(2):
            ids, logp = sampled(model, talk.context, 3, rng)
            talk.turn(ids, rng.integers(0, VOCABULARY, 2), float(rng.random()), logp=logp, terminated=t == 1)
        recorder.end(talk)
    pack = recorder.take()
    assert pack is not None
    return pack


# --- attention, padding and positions -------------------------------------------------------------------------------


@pytest.mark.parametrize("make_model", [Causal, llama])
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_packed_sequences_of_a_transformers_model_do_not_attend_to_each_other(make_model: Any, layout: Any) -> None:
    """transformers, LLaMA-Factory: users packed samples, and each attended to the samples before it; loss was lower."""
    model = make_model()
    batch = token_batch(recorded(model), layout=layout).to_torch()
    forward = FORWARDS[layout]
    check_token_batch(lambda batch: forward(model, batch).detach(), batch).raise_if_wrong()
    losses = [
        TokenGRPO(deepcopy(model), TokenGRPOConfig(layout=name), forward=FORWARDS[name]).update(recorded(model))  # type: ignore[arg-type]
        for name in FORWARDS
    ]
    assert losses[0]["gradient_norm"] == pytest.approx(losses[1]["gradient_norm"], rel=1e-4)


@pytest.mark.parametrize("arguments", [{}, {"position_ids": True}], ids=["no positions", "with a cache"])
@pytest.mark.parametrize("make_model", [Causal, llama])
def test_check_names_packing_without_positions_or_with_a_cache(make_model: Any, arguments: dict) -> None:
    """ms-swift, nanoVLM: "does packing block attention between samples?" It did not without the right arguments."""
    model = make_model()
    batch = token_batch(recorded(model)).to_torch()

    def wrong(batch: Any) -> Any:
        positions = {name: batch[name][None] for name in arguments}
        output = model(input_ids=batch["input_ids"][None], **positions)
        return getattr(output, "logits", output)[0].detach()

    (problem,) = check_token_batch(wrong, batch).problems
    assert "attention crosses packed sequences" in problem


def test_position_ids_begin_at_zero_in_each_sequence() -> None:
    """nanoVLM, verl: positions counted on over the samples of a row, or over the padding on the left."""
    from episodes.converters import to_verl

    pack = recorded(Causal(), 4)
    lengths = np.diff(token_batch(pack)["cu_seqlens"])
    assert token_batch(pack)["position_ids"].tolist() == [i for length in lengths for i in range(length)]
    rows, _ = to_verl(pack)
    attention, positions = rows["batch"]["attention_mask"], rows["batch"]["position_ids"]
    for mask, row in zip(attention, positions, strict=True):
        assert row[mask.astype(bool)].tolist() == list(range(mask.sum()))


def test_rows_padded_on_the_left_are_refused() -> None:
    """TRL: rows were padded on the other side than the loss expected, and prompts became completions."""
    batch = dict(token_batch(recorded(Causal()), layout="padded").items())
    batch["attention_mask"] = batch["attention_mask"][:, ::-1]
    with pytest.raises(ShapeMismatch, match="padding before tokens"):
        check_token_batch(lambda batch: np.zeros((*batch["input_ids"].shape, VOCABULARY)), batch)


# --- masks and labels -----------------------------------------------------------------------------------------------


def talk_of(
    *turns: tuple[list[int], list[int]],
    reward: float = 1.0,
    id_: str = "a",
    group: Any = None,
    prompt: Any = (1, 2),
    logp: float = -0.5,
) -> Any:
    talk = Conversation(id_, group=group)
    talk.begin(prompt)
    for k, (ids, reply) in enumerate(turns):
        is_last = k == len(turns) - 1
        talk.turn(ids, reply, reward * is_last, terminated=is_last, logp=[logp] * len(ids))
    return talk.episode


def test_first_sampled_token_is_learned_and_the_loss_mask_is_shifted_once() -> None:
    """verl (SFT on several turns): the mask was one position late, so no first token of an answer was learned."""
    batch = token_batch(EpisodePack.from_episodes([talk_of(([5, 6], [8]), ([7], []))]))
    assert batch["loss_mask"].tolist() == [False, True, True, False, True, False]
    assert batch["labels"].tolist() == [-100, 5, 6, -100, 7, -100]


def test_mask_is_of_actions_and_not_of_states() -> None:
    """RAGEN: the mask was inverted, so that the environment's tokens were learned and not the model's."""
    batch = token_batch(EpisodePack.from_episodes([talk_of(([5, 6], [8, 8, 8]), ([7], [9]))]))
    assert sorted(batch["labels"][batch["loss_mask"]].tolist()) == [5, 6, 7]


def test_end_of_sequence_is_learned_if_pad_and_eos_are_one_token() -> None:
    """TRL, transformers: pad_token = eos_token masked the EOS token, and the model never learned to stop."""
    from episodes.converters import from_verl, to_verl

    pack = EpisodePack.from_episodes([talk_of(([5, EOS], []), id_="a"), talk_of(([5, 6, 6, EOS], []), id_="b")])
    batch = token_batch(pack, layout="padded", pad_id=EOS)
    assert (batch["labels"] == EOS).sum() == 2
    assert batch["attention_mask"].sum(1).tolist() == [4, 6]
    for restored, episode in zip(from_verl(to_verl(pack, pad_id=EOS)[0])[0], pack, strict=True):
        assert restored.get_actions(-1).tolist() == episode.get_actions(-1).tolist()


def test_sampled_tokens_are_learned_if_the_template_encodes_them_differently() -> None:
    """verl, SkyRL: the answer was decoded and encoded again, and the trainer learned tokens that were never sampled."""
    talk = Conversation("a")
    talk.begin([1, 2])
    talk.turn([5, 6], prompt=[1, 2, 11, 8], logp=[-0.5, -0.6])  # 5, 6 is 11 after encoding again
    talk.turn([7], terminated=True, logp=[-0.7])
    batch = token_batch(EpisodePack.from_episodes([talk.episode]))
    assert batch["labels"][batch["loss_mask"]].tolist() == [5, 6, 7]
    assert batch["action_logp"][batch["loss_mask"]].tolist() == pytest.approx([-0.5, -0.6, -0.7])


def test_context_and_tool_tokens_have_a_log_probability_of_zero_and_do_not_count() -> None:
    """Flash-RL, verl: log-probabilities of masked tokens were 1, and ratios of e^-1 entered the loss."""
    pack = EpisodePack.from_episodes([talk_of(([5, 6], [8, 8, 8]), ([7], []), group=1)])
    batch = token_batch(pack)
    assert not batch["action_logp"][~batch["loss_mask"]].any()
    model = nn.Embedding(VOCABULARY, VOCABULARY)
    nn.init.zeros_(model.weight)
    algorithm = TokenGRPO(model, TokenGRPOConfig(), forward=lambda model, batch: model(batch["input_ids"]))
    difference = -np.log(VOCABULARY) + 0.5  # of each of the three sampled tokens
    assert algorithm.update(pack)["kl"] == pytest.approx(np.exp(difference) - 1 - difference, rel=1e-5)


# --- log-probabilities ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-np.inf, -9999.0, np.nan])
def test_log_probabilities_that_engines_return_for_masked_tokens_are_refused(value: float) -> None:
    """vLLM, SkyRL: -inf, or -9999 in its place, and NaN came from the engine, and the ratio of the token exploded."""
    talk = Conversation("a")
    talk.begin([1])
    with pytest.raises(InvalidArgument, match=r"a: turn: logp has .* at index 2"):
        talk.turn([5, 6, 7], logp=[-0.5, -0.6, value])
    talk.turn([5], logp=[-0.5])  # the rejected call changed nothing
    assert len(talk.episode) == 1


def test_a_missing_or_additional_log_probability_is_refused() -> None:
    """vime (vLLM with SLiME): missing log-probabilities were filled with 0, which is a probability of 1."""
    talk = Conversation("a")
    talk.begin([1])
    for logp in ([-0.5], [-0.5, -0.5, -0.5]):
        with pytest.raises(ShapeMismatch, match="for 2 sampled ids"):
            talk.turn([5, 6], logp=logp)


# --- groups ---------------------------------------------------------------------------------------------------------


def with_returns(*returns: float, group: Any = "prompt", recorder: TokenRecorder | None = None) -> EpisodePack:
    recorder = recorder or TokenRecorder(group_size=len(returns))
    for value in returns:
        talk = recorder.begin([1, 2], group=group)
        talk.turn([5], reward=value, terminated=True, logp=[-0.5])
        recorder.end(talk)
    pack = recorder.take()
    assert pack is not None
    return pack


def grpo(**settings: Any) -> TokenGRPO:
    model = nn.Embedding(VOCABULARY, VOCABULARY)
    return TokenGRPO(model, TokenGRPOConfig(**settings), forward=lambda model, batch: model(batch["input_ids"]))


def test_the_same_prompt_twice_in_a_batch_is_two_groups() -> None:
    """verl, flow_grpo: rows were grouped by the text of their prompt, so a prompt that came twice was one group."""
    from episodes.converters import to_verl

    pack = EpisodePack.concat([with_returns(0, 1), with_returns(10, 12)])
    assert grpo(scale=None).episode_advantages(pack).tolist() == [-0.5, 0.5, -1.0, 1.0]
    uid = to_verl(pack)[0]["non_tensor_batch"]["uid"]
    assert (uid[0] == uid[1], uid[2] == uid[3], uid[0] == uid[2]) == (True, True, False)


def test_advantages_are_of_groups_and_not_of_the_batch() -> None:
    """grpo-flat, Search-R1: mean and deviation were those of the whole batch, with all its prompts."""
    pack = EpisodePack.concat([with_returns(0, 1, group="easy"), with_returns(10, 14, group="hard")])
    assert grpo(scale="group").episode_advantages(pack) == pytest.approx([-1, 1, -1, 1])


def test_a_group_that_is_split_across_batches_is_refused() -> None:
    """OpenRLHF, TRL: a batch held only a part of a group, and the baseline was the mean of this part."""
    pack = with_returns(0, 1, 2, 3)
    with pytest.raises(InvalidArgument, match="has 4 episodes, and 2 of them are in the pack"):
        grpo().update(pack[:2])


def test_a_group_of_one_and_a_group_of_equal_returns_have_no_advantage() -> None:
    """verl, NeMo: the deviation of a single sample was NaN, and that of equal rewards 0, so advantages were NaN."""
    pack = EpisodePack.concat([with_returns(3.0, group="one"), with_returns(0.1, 0.1, 0.1)])
    for baseline in ("group", "leave_one_out"):
        for scale in ("group", None):
            advantages = grpo(baseline=baseline, scale=scale).episode_advantages(pack)
            assert advantages == pytest.approx(np.zeros(4), abs=1e-6)


def test_groups_that_complete_in_another_order_stay_together() -> None:
    """TRL, SkyRL: asynchronous rollouts came in the order in which they ended, and rows of two prompts were mixed."""
    recorder = TokenRecorder(group_size=2)
    talks = [(recorder.begin([k], group=k), k) for k in (1, 2, 1, 2)]
    for i in (0, 1, 3, 2):
        talk, k = talks[i]
        talk.turn([5], reward=10.0 * k + i, terminated=True, logp=[-0.5])
        recorder.end(talk)
    pack = recorder.take()
    assert pack is not None
    shuffled = pack.select([3, 0, 2, 1])
    assert group_numbers(shuffled).tolist() == [0, 1, 0, 1]
    assert pack.returns().tolist() == [21.0, 23.0, 10.0, 12.0]
    assert grpo(scale=None).episode_advantages(shuffled).tolist() == [1.0, -1.0, -1.0, 1.0]


# --- means ----------------------------------------------------------------------------------------------------------


def gradient(algorithm: TokenGRPO, pack: EpisodePack) -> torch.Tensor:
    batch = algorithm.preprocess(pack)
    algorithm.backward(next(algorithm.minibatches(batch)))
    return algorithm.optimizers["policy"].gradient.clone()


@pytest.mark.parametrize("mean", ["token", "sequence"])
def test_gradient_accumulation_does_not_change_the_mean(mean: Any) -> None:
    """TRL, transformers, open-instruct: the loss was averaged per micro-batch, so tokens of small ones weighed more."""
    pack, gradients = recorded(Causal()), []
    for max_tokens in (None, 30, 20):
        algorithm = TokenGRPO(
            Causal(), TokenGRPOConfig(mean=mean, layout="padded", max_tokens=max_tokens), forward=padded
        )
        gradients.append(gradient(algorithm, pack))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(gradients[2], gradients[0], rtol=0, atol=1e-6)


def test_long_answers_weigh_as_documented() -> None:
    """TRL, Dr. GRPO: the mean per sequence favours long wrong answers. Tokens weigh 1/10, or 1/2 and 1/18 here."""
    uniform = -np.log(VOCABULARY)
    short = talk_of(([5], []), reward=0.0, id_="a", group=1, prompt=[1, 3], logp=uniform)
    pack = EpisodePack.from_episodes([short, talk_of(([6] * 9, []), reward=1.0, id_="b", group=1, logp=uniform)])
    for mean, weights in (("token", (1 / 10, 1 / 10)), ("sequence", (1 / 2, 1 / 18))):
        algorithm = grpo(mean=mean, scale=None)
        nn.init.zeros_(algorithm.policy.model.weight)
        slopes = gradient(algorithm, pack).reshape(VOCABULARY, VOCABULARY)
        change = 0.5 * (1 - 1 / VOCABULARY)  # advantages are -0.5 and 0.5
        assert slopes[3, 5] == pytest.approx(weights[0] * change, rel=1e-5)
        assert slopes[2, 6] == pytest.approx(-weights[1] * change, rel=1e-5)
        assert slopes[6, 6] == pytest.approx(-8 * weights[1] * change, rel=1e-5)


def test_an_episode_with_rewritten_history_weighs_as_one() -> None:
    """SLiME (several turns): each rewritten context was a sample of its own, and counted as one in the mean."""
    from episodes.converters import to_trl

    talks = []
    for k, is_rewritten in enumerate((True, False)):
        talk = Conversation(f"e{k}", group=1)
        talk.begin([1, 2])
        for t in range(4):
            reply = {"prompt": [1, 2]} if is_rewritten else {"reply_ids": [2]}
            talk.turn([5 + k], reward=float(k), terminated=t == 3, logp=[-2.4], **reply)
        talks.append(talk.episode)
    pack = EpisodePack.from_episodes(talks)
    assert np.bincount(token_batch(pack)["episodes"]).tolist() == [4, 1]
    algorithm = grpo(mean="sequence", scale=None)
    nn.init.zeros_(algorithm.policy.model.weight)
    slopes = gradient(algorithm, pack).reshape(VOCABULARY, VOCABULARY)[2]
    assert slopes[5] == pytest.approx(-float(slopes[6]), rel=1e-6)  # four votes to four, and not to one
    assert slopes[6] < 0
    rows = to_trl(pack)[1]
    assert "TRL gets 5 rows for 2 episodes" in str(rows)


def test_minibatches_hold_all_sequences_of_an_episode() -> None:
    """verl, SkyRL (step-wise training): sequences of one trajectory were in different minibatches."""
    talk = Conversation("a", group=1)
    talk.begin([1, 2])
    for t in range(6):
        talk.turn([5], prompt=[1, 2], reward=1.0, terminated=t == 5, logp=[-0.5])
    others = [talk_of(([6], []), id_=f"e{k}", group=1) for k in range(3)]
    algorithm = grpo(num_minibatches=2)
    batch = algorithm.preprocess(EpisodePack.from_episodes([talk.episode, *others]))
    owners = [set(part["episodes"].tolist()) for part in algorithm.minibatches(batch)]
    assert [len(part) for part in owners] == [2, 2]
    assert owners[0] | owners[1] == {0, 1, 2, 3}
    assert len(select_sequences(batch, [0])["episodes"]) == 1
