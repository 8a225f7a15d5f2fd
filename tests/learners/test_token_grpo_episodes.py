"""`TokenGRPO` counts episodes: gradients equal a formula over episodes in numpy, with any number of branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from episode_learners import TokenGRPO, TokenGRPOConfig
from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import InvalidArgument, UnknownKey
from episodes.tokens import TokenRecorder, token_batch

VOCABULARY = 7


class Table(nn.Module):
    """A model that is a table of logits [V, V] of the token after each token."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.from_numpy(np.random.default_rng(5).normal(size=(VOCABULARY, VOCABULARY))))

    def forward(self, batch: Any) -> torch.Tensor:
        return self.logits[batch["input_ids"].long()]


def recorded(seed: int) -> EpisodePack:
    """Record groups of which two have one key, with branches, empty turns, masked tokens, failures and short
    episodes."""
    rng = np.random.default_rng(seed)
    recorder = TokenRecorder(group_size=3, outputs={"logp": "f8", "learned": "?"})
    keys = ["a", "b", "a", ("a", 1)]
    for key in keys:
        for member in range(3):
            talk = recorder.begin(rng.integers(0, VOCABULARY, rng.integers(1, 4)), group=key)
            if member == 1 and rng.random() < 0.5:  # fails before it samples a token
                talk.turn([], truncated=True, logp=[], learned=[])
            for t in range(5):
                if talk.is_done:
                    break
                ids = rng.integers(0, VOCABULARY, rng.integers(1, 5))
                outputs = {"logp": rng.normal(-1.9, 0.4, len(ids)).clip(max=0), "learned": rng.random(len(ids)) < 0.8}
                begins_branch = rng.random() < 0.6
                prompt = np.append(talk.context[:1], rng.integers(0, VOCABULARY, 3))
                reply = {"prompt": prompt} if begins_branch else {"reply_ids": rng.integers(0, VOCABULARY, 2)}
                talk.turn(ids, reward=float(rng.normal()), terminated=t == 4 or rng.random() < 0.3, **reply, **outputs)
            recorder.end(talk)
    pack = recorder.take()
    assert pack is not None
    return pack


def expected_gradient(
    config: TokenGRPOConfig, logits: np.ndarray, episodes: list[SingleAgentEpisode], advantages: np.ndarray
) -> np.ndarray:
    """Return the gradient of the loss over these episodes, [V, V]: turn by turn, without any batch of tokens."""
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    tokens: list[list[tuple[int, int, float]]] = []  # of each episode: token before, token, difference to recorded one
    for episode in episodes:
        context, learned = episode.get_observations(0).tolist(), []
        for t in range(len(episode)):
            outputs = [episode.get_extra_model_outputs(name, t).tolist() for name in ("logp", "learned")]
            for token, old, is_learned in zip(episode.get_actions(t).tolist(), *outputs, strict=True):
                if is_learned:
                    learned.append((context[-1], token, log_probs[context[-1], token] - old))
                context.append(token)
            keep = episode.get_infos(t + 1).get("kept_tokens")
            context = context[:keep] + episode.get_observations(t + 1).tolist()
        tokens.append(learned)
    num_tokens, num_episodes = sum(map(len, tokens)), sum(map(bool, tokens))
    gradient = np.zeros_like(logits)
    for learned, advantage in zip(tokens, advantages, strict=True):
        for before, token, difference in learned:
            weight = 1 / num_tokens if config.mean == "token" else 1 / (num_episodes * len(learned))
            if config.ratio == "token":
                slope = _slope(np.exp(difference), advantage, config)
            else:  # each token moves the ratio of all tokens a little
                slope = _slope(np.exp(np.mean([d for _, _, d in learned])), advantage, config)
            change = -np.exp(log_probs[before])
            change[token] += 1
            gradient[before] -= weight * slope * change
    return gradient


def _slope(ratio: float, advantage: float, config: TokenGRPOConfig) -> float:
    """Return the derivative of the clipped objective with respect to the logarithm of the ratio."""
    is_clipped = ratio > 1 + config.clip_high if advantage > 0 else ratio < 1 - config.clip_low
    return 0.0 if is_clipped else ratio * advantage


def expected_advantages(returns: np.ndarray) -> np.ndarray:
    """Return the advantages of successive groups of three, without a scale."""
    groups = returns.reshape(-1, 3)
    return (groups - groups.mean(1, keepdims=True)).reshape(-1)


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("num_minibatches", [1, 3])
@pytest.mark.parametrize("max_tokens", [None, 90])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("mean", ["token", "sequence"])
def test_gradients_equal_a_formula_over_episodes(
    mean: Any, ratio: Any, max_tokens: int | None, num_minibatches: int, layout: Any
) -> None:
    settings = {"mean": mean, "ratio": ratio, "layout": layout, "max_tokens": max_tokens}
    config = TokenGRPOConfig(num_minibatches=num_minibatches, scale=None, clip_high=0.3, **settings)
    algorithm = TokenGRPO(Table(), config)
    logits = algorithm.policy.model.logits.detach().numpy()
    for seed in range(3):
        pack = recorded(seed)
        advantages = expected_advantages(pack.returns())
        assert algorithm.episode_advantages(pack) == pytest.approx(advantages)
        batch = dict(algorithm.preprocess(pack))
        counts = np.bincount(batch["episodes"].numpy(), minlength=len(pack))
        assert counts.max() > 2  # branches
        seen: list[int] = []
        for minibatch in algorithm.minibatches(batch):
            indices = np.unique(minibatch["episodes"].numpy())
            seen += indices.tolist()
            algorithm.backward(minibatch)
            gradient = algorithm.optimizers["policy"].gradient.clone().numpy().reshape(logits.shape)
            algorithm.optimizers["policy"].zero_grad()
            expected = expected_gradient(config, logits, [pack[i] for i in indices], advantages[indices])
            np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-6)
            assert abs(expected).max() > 1e-3
        assert sorted(seen) == np.flatnonzero(counts).tolist()  # each episode once, whole


def test_weight_of_an_episode_does_not_depend_on_its_branches() -> None:
    """One episode keeps its context, and another has the same tokens in five branches."""
    packs = []
    for is_branched in (False, True):
        recorder = TokenRecorder(group_size=2, outputs={"logp": "f8"})
        for reward in (0.0, 1.0):
            talk = recorder.begin([1, 2], group="g")
            for k in range(5):
                prompt = {"prompt": [1, 2]} if is_branched and reward else {"reply_ids": [2]}
                talk.turn([3, 4], reward=reward * (k == 4), terminated=k == 4, logp=[-1.9, -1.9], **prompt)
            recorder.end(talk)
        packs.append(recorder.take())
    for mean in ("token", "sequence"):
        for ratio in ("token", "sequence"):
            gradients = []
            for pack in packs:
                algorithm = TokenGRPO(Table(), TokenGRPOConfig(mean=mean, ratio=ratio))  # type: ignore[arg-type]
                batch = dict(algorithm.preprocess(pack))
                algorithm.backward(next(algorithm.minibatches(batch)))
                gradients.append(algorithm.optimizers["policy"].gradient.clone())
            torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


def test_branches_of_an_episode_stay_in_one_forward_pass_if_their_ratio_is_one() -> None:
    pack = recorded(0)
    batch = token_batch(pack)
    totals = np.bincount(batch["episodes"], np.diff(batch["cu_seqlens"]))
    limit = int(totals.max()) - 1
    assert np.diff(batch["cu_seqlens"]).max() <= limit
    with pytest.raises(InvalidArgument, match=r"max_tokens=\d+: the sequences \[.*\] of an episode have \d+ tokens"):
        TokenGRPO(Table(), TokenGRPOConfig(ratio="sequence", max_tokens=limit)).update(pack)
    TokenGRPO(Table(), TokenGRPOConfig(mean="sequence", max_tokens=limit)).update(pack)


def test_batch_without_the_episodes_of_its_sequences_is_refused() -> None:
    algorithm = TokenGRPO(Table(), TokenGRPOConfig(mean="sequence"))
    batch = algorithm.preprocess(recorded(0))
    with pytest.raises(UnknownKey, match="the batch has no 'episodes'"):
        algorithm.learn({name: column for name, column in batch.items() if name != "episodes"})
