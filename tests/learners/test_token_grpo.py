"""`TokenGRPO` against formulas in float64, one token at a time, and on a task with a tool."""

from __future__ import annotations

import itertools
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from connectors import NumpyToTensor
from connectors.learner import LearnerPipeline, TokenColumns
from connectors.prefetch import Prefetch
from episode_learners import TokenGRPO, TokenGRPOConfig, linear_decay
from episodes import EpisodePack
from episodes.errors import InvalidArgument, ShapeMismatch, UnknownKey, WrongType
from episodes.tokens import Conversation, SessionRecorder, check_token_batch, token_batch
from examples.tool_call import VOCABULARY, Question, Transformer, play, train


class Recurrent(nn.Module):
    """A model whose logits depend on all tokens so far: a small GRU, sequence by sequence."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(VOCABULARY, 5)
            self.cell = nn.GRU(5, 6, batch_first=True)
            self.head = nn.Linear(6, VOCABULARY)

    def logits(self, tokens: Tensor) -> Tensor:
        return self.head(self.cell(self.embedding(tokens.long()[None]))[0])[0]

    def forward(self, batch: Any) -> Tensor:
        ids = batch["input_ids"]
        if ids.ndim == 2:
            return torch.stack([self.logits(row) for row in ids])
        bounds = batch["cu_seqlens"].tolist()
        parts = [self.logits(ids[a:b]) for a, b in itertools.pairwise(bounds)]
        return torch.cat(parts)


def recorded(num: int = 8, seed: int = 0, group_size: int = 4) -> list[Conversation]:
    """Return conversations with branches, empty turns, masked tokens and random log-probabilities."""
    rng = np.random.default_rng(seed)
    talks = []
    for k in range(num):
        talk = Conversation(f"e{k}", outputs={"logp": "f4", "learned": "?"}, group=k // group_size)
        talk.begin(rng.integers(0, VOCABULARY, 3))
        num_turns = int(rng.integers(1, 4))
        for t in range(num_turns):
            ids = rng.integers(0, VOCABULARY, rng.integers(0 if t else 1, 4))
            outputs = {"logp": rng.normal(-2.4, 0.3, len(ids)), "learned": rng.random(len(ids)) < 0.8}
            prompt = np.append(talk.context[: rng.integers(2, 4)], rng.integers(0, VOCABULARY, 2))
            arguments = {"prompt": prompt} if rng.random() < 0.3 else {"reply_ids": rng.integers(0, VOCABULARY, 2)}
            outputs = {name: np.asarray(values, "f4" if name == "logp" else bool) for name, values in outputs.items()}
            talk.turn(ids, reward=float(rng.normal()), terminated=t == num_turns - 1, **arguments, **outputs)
        talks.append(talk)
    return talks


def pack_of(talks: list[Conversation]) -> EpisodePack:
    return EpisodePack.from_episodes([talk.episode for talk in talks])


def slow_loss(config: TokenGRPOConfig, model: Recurrent, reference: Recurrent, talks: list[Conversation]) -> Tensor:
    """Return the loss by going through the turns of each conversation, token by token."""
    returns = np.array([float(np.sum(talk.episode.get_rewards())) for talk in talks])
    groups = [talk.episode.custom_data["group"] for talk in talks]
    gains, centered = [], []
    for k, total in enumerate(returns):
        members = [r for r, group in zip(returns, groups, strict=True) if group == groups[k]]
        other_returns = [r for j, r in enumerate(returns) if groups[j] == groups[k] and j != k]
        baselines = {"group": np.mean(members), "batch": np.mean(returns), "leave_one_out": np.mean(other_returns)}
        gain = total - baselines[config.baseline]
        centered.append(gain)
        gains.append(gain / (np.std(members) + 1e-8) if config.scale == "group" else gain)
    if config.scale == "batch":
        gains = [gain / (np.std(centered) + 1e-8) for gain in gains]
    # Log-probability, recorded one, gain and reference of each token of an episode.
    episodes: list[list[tuple[Tensor, float, float, Tensor]]] = []
    for talk, gain in zip(talks, gains, strict=True):
        context: list[int] = talk.episode.get_observations(0).tolist()
        episodes.append([])
        for t in range(len(talk.episode)):
            for k, token in enumerate(talk.episode.get_actions(t).tolist()):
                if talk.episode.get_extra_model_outputs("learned", t)[k]:
                    log_prob = model.logits(torch.tensor(context))[-1].log_softmax(-1)[token]
                    with torch.no_grad():
                        fixed = reference.logits(torch.tensor(context))[-1].log_softmax(-1)[token]
                    old = float(talk.episode.get_extra_model_outputs("logp", t)[k])
                    episodes[-1].append((log_prob, old, gain, fixed))
                context.append(token)
            kept_tokens = talk.episode.get_infos(t + 1).get("kept_tokens")
            if kept_tokens is not None:
                context = context[:kept_tokens]
            context += talk.episode.get_observations(t + 1).tolist()
    losses: list[list[Tensor]] = []
    for tokens in filter(None, episodes):
        log_ratios = [new - old for new, old, _, _ in tokens]
        losses.append([])
        for (new, _, gain, fixed), log_ratio in zip(tokens, log_ratios, strict=True):
            exponent = torch.stack(log_ratios).mean() if config.ratio == "sequence" else log_ratio
            ratio = exponent.exp()
            surrogate = torch.min(ratio * gain, ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * gain)
            kl = (fixed - new).exp() - 1 - (fixed - new)
            losses[-1].append(-surrogate + config.kl_coefficient * kl)
    if config.mean == "token":
        return torch.stack([loss for row in losses for loss in row]).mean()
    return torch.stack([torch.stack(row).mean() for row in losses]).mean()


def gradient_of(algorithm: TokenGRPO, pack: EpisodePack) -> Tensor:
    """Return the gradient of the first minibatch, with advantages and recorded log-probabilities in float64."""
    batch = dict(algorithm.preprocess(pack))
    exact = token_batch(
        pack, layout=algorithm.config.layout, episode_advantages=np.zeros(len(pack))
    )  # only for its shape: float32 columns are replaced
    assert batch["advantages"].shape == exact["advantages"].shape
    batch["action_logp"] = batch["action_logp"].double()
    of_sequences = torch.from_numpy(algorithm.episode_advantages(pack))[batch["episodes"]]
    if algorithm.config.layout == "padded":
        spread = of_sequences[:, None].expand(batch["advantages"].shape)
    else:
        spread = of_sequences.repeat_interleave(batch["cu_seqlens"].diff().long())
    torch.testing.assert_close(
        batch["advantages"][batch["loss_mask"]].double(), spread[batch["loss_mask"]], rtol=1e-6, atol=1e-6
    )
    batch["advantages"] = spread.clone()
    algorithm.backward(next(algorithm.minibatches(batch)))
    gradient = algorithm.optimizers["policy"].gradient.clone()
    algorithm.optimizers["policy"].zero_grad()
    return gradient


SETTINGS = [
    {"baseline": "group", "scale": "group", "mean": "token", "ratio": "token"},
    {"baseline": "batch", "scale": None, "mean": "sequence", "ratio": "token", "clip_high": 0.28},
    {"baseline": "leave_one_out", "scale": None, "mean": "sequence", "ratio": "sequence", "clip_low": 0.01},
    {"baseline": "group", "scale": "batch", "mean": "token", "ratio": "sequence", "kl_coefficient": 0.3},
]


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("max_tokens", [None, 40])
@pytest.mark.parametrize("settings", SETTINGS, ids=["group", "batch", "leave_one_out", "kl"])
def test_token_grpo_gradient_equals_slow_formula(settings: dict, max_tokens: int | None, layout: Any) -> None:
    model, reference, talks = Recurrent().double(), Recurrent(seed=1).double(), recorded()
    config = TokenGRPOConfig(layout=layout, max_tokens=max_tokens, **settings)
    slow_loss(config, model, reference, talks).backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])  # type: ignore[union-attr]
    algorithm = TokenGRPO(Recurrent().double(), config, reference=reference)
    gradient = gradient_of(algorithm, pack_of(talks))
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-9)
    assert expected.abs().max() > 1e-3


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_token_grpo_gradient_of_sessions_equals_formula_over_calls(layout: Any) -> None:
    rng = np.random.default_rng(3)
    recorder = SessionRecorder(group_size=3)
    sampled: dict[str, list[tuple[list[int], list[int], list[float]]]] = {}  # calls of the sessions that ended
    returns: dict[str, float] = {}
    groups: dict[tuple[int, int], list[str]] = {}
    tokens = lambda num: rng.integers(0, VOCABULARY, num).tolist()  # noqa: E731
    for epoch in range(2):  # the same prompts, in new groups
        for question in range(2):
            while len(groups.get((epoch, question), [])) < 3:
                id_, calls = f"{epoch}.{question}.{rng.integers(10**9)}", []
                session = recorder.begin(id_, group=question)
                prompt = [question + 1, 2, 3]
                for k in range(5):
                    ids = tokens(rng.integers(1, 4))
                    logp = rng.normal(-2.4, 0.3, len(ids)).astype(np.float32).tolist()
                    is_delivered = k == 0 or rng.random() < 0.8
                    session.add(prompt, ids, logp=logp, delivered=is_delivered)
                    calls += [(prompt, ids, logp)] if is_delivered else []
                    before = calls[rng.integers(len(calls))]
                    rewritten = before[0][: rng.integers(1, len(before[0]) + 1)]
                    prompt = rewritten + tokens(2) if rng.random() < 0.4 else before[0] + before[1] + tokens(2)
                if rng.random() < 0.3:
                    session.fail()
                    continue
                returns[id_] = float(rng.normal())
                session.reward(returns[id_] - 0.5, 0)
                session.end(reward=0.5)
                sampled[id_] = calls
                groups.setdefault((epoch, question), []).append(id_)
    config = TokenGRPOConfig(layout=layout, baseline="group", scale=None, mean="token")
    model, losses = Recurrent().double(), []
    for members in groups.values():
        for id_ in members:
            gain = returns[id_] - np.mean([returns[other] for other in members])
            for prompt, ids, logp in sampled[id_]:
                log_probs = model.logits(torch.tensor(prompt + ids)).log_softmax(-1)
                for k, token in enumerate(ids):
                    ratio = (log_probs[len(prompt) + k - 1, token] - logp[k]).exp()
                    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
                    losses.append(-torch.min(ratio * gain, clipped * gain))
    torch.stack(losses).mean().backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])  # type: ignore[union-attr]
    pack = recorder.take()
    assert pack is not None
    assert sum(recorder.report().branches.values()) > 5
    assert recorder.report().failed > 0
    gradient = gradient_of(TokenGRPO(Recurrent().double(), config), pack)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6)
    assert expected.abs().max() > 1e-3


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_token_grpo_minibatches_use_each_token_once_per_epoch(layout: Any) -> None:
    config = TokenGRPOConfig(layout=layout, num_epochs=2, num_minibatches=3)
    algorithm = TokenGRPO(Recurrent(), config)
    batch = algorithm.preprocess(pack_of(recorded()))
    labels = [part["labels"][part["loss_mask"]] for part in algorithm.minibatches(batch)]
    assert len(labels) == 6
    expected = torch.cat([batch["labels"][batch["loss_mask"]]] * 2)
    assert torch.equal(torch.cat(labels).sort()[0], expected.sort()[0])


def test_token_grpo_failed_update_restores_the_weights() -> None:
    algorithm = TokenGRPO(Recurrent(), TokenGRPOConfig(learning_rate=1e-2, num_minibatches=2))
    talks = recorded()
    episode = talks[3].episode
    logp = np.full(len(episode.get_actions(0)), -500.0)  # a ratio of exp(500)
    episode.set_extra_model_outputs(key="logp", new_data=[logp], at_indices=[0])
    before = [parameter.clone() for parameter in algorithm.parameters()]
    with pytest.raises(InvalidArgument, match="is not finite; the weights are as before"):
        algorithm.update(pack_of(talks))
    assert all(torch.equal(a, b) for a, b in zip(before, algorithm.parameters(), strict=True))
    assert algorithm.num_updates == 0


def test_token_grpo_restored_state_gives_equal_updates() -> None:
    config = TokenGRPOConfig(learning_rate=1e-2, num_epochs=2, num_minibatches=2, kl_coefficient=0.03)
    first, second = (TokenGRPO(Recurrent(i), config, scheduler=linear_decay(5), seed=i) for i in range(2))
    first.update(pack_of(recorded()))
    second.load_state_dict(deepcopy(first.state_dict()))
    for seed in (1, 2):
        assert first.update(pack_of(recorded(seed=seed))) == second.update(pack_of(recorded(seed=seed)))
    assert all(map(torch.equal, first.parameters(), second.parameters()))


def test_token_grpo_rejects_chunks_and_episodes_without_log_probs_or_groups() -> None:
    algorithm = TokenGRPO(Recurrent(), TokenGRPOConfig(group_size=3))
    pack = pack_of(recorded())
    with pytest.raises(InvalidArgument, match="is a chunk: join its chunks"):
        algorithm.update(pack.replace(terminated=np.zeros(len(pack), bool)))
    with pytest.raises(ShapeMismatch, match=r"logits of shape \[\d+, 13\] for tokens of shape \[\d+\]"):
        TokenGRPO(Recurrent(), forward=lambda model, batch: model(batch)[1:]).update(pack)
    with pytest.raises(WrongType, match=r"not a Conversation; give its \.episode"):
        algorithm.update(recorded())
    with pytest.raises(InvalidArgument, match="8 episodes without groups"):
        algorithm.update(pack.replace(custom_data=None))
    with pytest.raises(UnknownKey, match="no output 'logp'"):
        algorithm.update(pack.replace(extra_model_outputs={}))


def test_token_grpo_accepts_forward_functions_and_output_objects() -> None:
    class Outputs:
        def __init__(self, logits: Tensor) -> None:
            self.logits = logits

    pack, config = pack_of(recorded()), TokenGRPOConfig(layout="padded")
    plain = TokenGRPO(Recurrent(), config)
    wrapped = TokenGRPO(Recurrent(), config, forward=lambda model, batch: Outputs(model(batch)))
    assert plain.update(pack) == wrapped.update(pack)


def test_token_columns_run_in_the_learner_pipeline_and_in_prefetch() -> None:
    pack = pack_of(recorded())
    pipeline = LearnerPipeline(connectors=[TokenColumns(layout="padded"), NumpyToTensor()])
    batch = pipeline(batch={}, episodes=pack)
    expected = token_batch(pack, layout="padded")
    for name, column in expected.items():
        assert np.array_equal(batch[name], column), name
    with Prefetch(lambda: token_batch(pack), device="cpu") as batches:
        first = next(batches)
    assert torch.equal(first["labels"], torch.from_numpy(token_batch(pack)["labels"]))


def questions(num: int, size: int) -> list[tuple[int, Question]]:
    rng = np.random.default_rng(0)
    sampled_questions = [Question(*rng.integers(0, 4, 2).tolist()) for _ in range(num)]
    return [(group, question) for group, question in enumerate(sampled_questions) for _ in range(size)]


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_check_token_batch_of_a_transformer_finds_nothing(layout: Any) -> None:
    model = Transformer()
    pack, _ = play(model, questions(4, 8), torch.Generator().manual_seed(0))
    result = check_token_batch(model, token_batch(pack, layout=layout).to_torch(), tolerance=1e-5)
    assert result.raise_if_wrong().num_tokens > 50


def test_token_grpo_improves_the_return_of_tool_calls() -> None:
    returns = [pack.returns().mean() for _, pack, _ in train(seed=0, num_updates=12)]
    assert np.mean(returns[-2:]) > np.mean(returns[:2]) + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_token_grpo_solves_tool_calls_within_300_updates(seed: int) -> None:
    shares: list[float] = []
    for _, _, share in train(seed, 300):
        shares.append(share)
        if np.mean(shares[-10:]) >= 0.95:
            break
    assert np.mean(shares[-10:]) >= 0.95
