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
    episodes. Each token has an advantage."""
    rng, advantages = np.random.default_rng(seed), np.random.default_rng(seed + 100)
    recorder = TokenRecorder(group_size=3, outputs={"logp": "f8", "learned": "?", "advantage": "f8"})
    keys = ["a", "b", "a", ("a", 1)]
    for key in keys:
        for member in range(3):
            talk = recorder.begin(rng.integers(0, VOCABULARY, rng.integers(1, 4)), group=key)
            if member == 1 and rng.random() < 0.5:  # fails before it samples a token
                talk.turn([], truncated=True, logp=[], learned=[], advantage=[])
            for t in range(5):
                if talk.is_done:
                    break
                ids = rng.integers(0, VOCABULARY, rng.integers(1, 5))
                outputs = {"logp": rng.normal(-1.9, 0.4, len(ids)).clip(max=0), "learned": rng.random(len(ids)) < 0.8}
                outputs["advantage"] = advantages.normal(size=len(ids))
                begins_branch = rng.random() < 0.6
                prompt = np.append(talk.context[:1], rng.integers(0, VOCABULARY, 3))
                reply = {"prompt": prompt} if begins_branch else {"reply_ids": rng.integers(0, VOCABULARY, 2)}
                talk.turn(ids, reward=float(rng.normal()), terminated=t == 4 or rng.random() < 0.3, **reply, **outputs)
            recorder.end(talk)
    pack = recorder.take()
    assert pack is not None
    return pack


def expected_gradient(
    config: TokenGRPOConfig,
    logits: np.ndarray,
    episodes: list[SingleAgentEpisode],
    advantages: np.ndarray,
    *,
    weights: np.ndarray | None = None,
    trainer: np.ndarray | None = None,
) -> np.ndarray:
    """Return the gradient of the loss over these episodes, [V, V]: turn by turn, without any batch of tokens.

    Args:
        config: the settings.
        logits: the table.
        episodes: the episodes.
        advantages: one per episode. NaN: each token has the output "advantage".
        weights: weight of each episode. None: all have 1.
        trainer: the table before the update, for truncated importance sampling.
    """
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    before_update = None if trainer is None else trainer - np.log(np.exp(trainer).sum(1, keepdims=True))
    weights = np.ones(len(episodes)) if weights is None else weights
    # Of each episode: token before, token, difference to the old log-probability, correction, own advantage.
    tokens: list[list[tuple[int, int, float, float, float]]] = []
    for episode in episodes:
        context, learned = episode.get_observations(0).tolist(), []
        for t in range(len(episode)):
            outputs = [episode.get_extra_model_outputs(name, t).tolist() for name in ("logp", "learned", "advantage")]
            for token, old, is_learned, gain in zip(episode.get_actions(t).tolist(), *outputs, strict=True):
                if is_learned:
                    place, correction = (context[-1], token), 1.0
                    if before_update is not None:
                        correction = min(np.exp(before_update[place] - old), config.max_correction)
                        old = before_update[place]
                    learned.append((*place, log_probs[place] - old, correction, gain))
                context.append(token)
            keep = episode.get_infos(t + 1).get("kept_tokens")
            context = context[:keep] + episode.get_observations(t + 1).tolist()
        tokens.append(learned)
    num_tokens = sum(len(learned) * w for learned, w in zip(tokens, weights, strict=True))
    num_episodes = sum(bool(learned) * w for learned, w in zip(tokens, weights, strict=True))
    gradient = np.zeros_like(logits)
    for learned, advantage, w in zip(tokens, advantages, weights, strict=True):
        gains = [own if np.isnan(advantage) else advantage for *_, own in learned]
        corrections = [correction for *_, correction, _ in learned]
        differences = [difference for _, _, difference, _, _ in learned]
        for k, (before, token, difference, _, _) in enumerate(learned):
            weight = w / num_tokens if config.mean == "token" else w / (num_episodes * len(learned))
            if config.ratio == "token":
                slope = corrections[k] * _slope(np.exp(difference), gains[k], config)
            else:  # each token moves the ratio of all tokens a little
                ratio = np.exp(np.mean(differences))
                slopes = [c * _slope(ratio, gain, config) for c, gain in zip(corrections, gains, strict=True)]
                slope = np.mean(slopes)
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


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("max_tokens", [None, 90])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("mean", ["token", "sequence"])
@pytest.mark.parametrize("feature", ["correction", "token advantages", "weights", "all"])
def test_gradients_with_corrections_advantages_of_tokens_and_weights_equal_the_formula(
    feature: str, mean: Any, ratio: Any, max_tokens: int | None, layout: Any
) -> None:
    """The gradient is that of a second epoch: the table has changed since the update began."""
    pack, arguments = recorded(4), {}
    weights = np.random.default_rng(6).integers(0, 3, len(pack)).astype(float)
    if feature in ("token advantages", "all"):
        arguments["token_advantages"] = lambda pack: pack.extra_model_outputs["advantage"]
    if feature in ("weights", "all"):
        arguments["episode_weights"] = lambda pack: weights
    max_correction = 1.1 if feature in ("correction", "all") else None
    settings = {"mean": mean, "ratio": ratio, "layout": layout, "max_tokens": max_tokens}
    config = TokenGRPOConfig(scale=None, clip_high=0.3, max_correction=max_correction, **settings)
    algorithm = TokenGRPO(Table(), config, **arguments)
    batch = dict(algorithm.preprocess(pack))
    logits, before = algorithm.policy.model.logits, algorithm.policy.model.logits.detach().numpy().copy()
    if max_correction is not None:
        batch["trainer_logp"] = algorithm.trainer_log_probs(batch)
    with torch.no_grad():
        logits += torch.from_numpy(np.random.default_rng(7).normal(0, 0.2, logits.shape))
    measured = algorithm.backward(next(algorithm.minibatches(batch)))
    advantages = expected_advantages(pack.returns())
    expected = expected_gradient(
        config,
        logits.detach().numpy(),
        list(pack),
        np.full(len(pack), np.nan) if "token_advantages" in arguments else advantages,
        weights=weights if "episode_weights" in arguments else None,
        trainer=None if max_correction is None else before,
    )
    gradient = algorithm.optimizers["policy"].gradient.clone().numpy().reshape(expected.shape)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-6)
    assert abs(expected).max() > 1e-3
    assert ("truncated_fraction" in measured) == (max_correction is not None)


def test_correction_begins_at_the_weights_before_the_update() -> None:
    """Two epochs of one update use the same log-probabilities of the trainer, and an update begins with new ones."""
    pack, seen = recorded(4), []

    class Watched(TokenGRPO):
        def backward(self, minibatch: Any, optimizer: str = "policy", scale: float = 1.0) -> Any:
            seen.append((minibatch["trainer_logp"].clone(), self.policy.model.logits.detach().clone()))
            return super().backward(minibatch, optimizer, scale)

    algorithm = Watched(Table(), TokenGRPOConfig(num_epochs=2, max_correction=2.0, learning_rate=0.1, scale=None))
    first, second = algorithm.update(pack), algorithm.update(pack)
    assert torch.equal(seen[0][0], seen[1][0])
    assert not torch.equal(seen[0][1], seen[1][1])
    assert not torch.equal(seen[1][0], seen[2][0])
    mask, labels, ids = (algorithm.preprocess(pack)[name] for name in ("loss_mask", "labels", "input_ids"))
    for logp, table in (seen[0], seen[2]):
        expected = table.log_softmax(-1)[ids[mask].long(), labels[mask].long()]
        torch.testing.assert_close(logp[mask].double(), expected, rtol=0, atol=1e-6)
        assert not logp[~mask].any()
    assert {"sampler_kl", "truncated_fraction"} <= first.keys() & second.keys()
    assert first["sampler_kl"] > 0.01


@pytest.mark.parametrize("longer", ["skip", "cut"])
def test_long_sequences_are_left_out_of_an_update_and_counted(longer: Any) -> None:
    pack = recorded(0)
    lengths = np.diff(token_batch(pack)["cu_seqlens"])
    limit = int(np.median(lengths))
    algorithm = TokenGRPO(Table(), TokenGRPOConfig(max_length=limit, longer=longer, num_epochs=2))
    metrics = algorithm.update(pack)
    assert metrics["skipped_sequences"] + metrics["cut_sequences"] == (lengths > limit).sum()
    assert (metrics["cut_sequences"] > 0) == (longer == "cut")
    assert metrics["lost_tokens"] > 0
    before = algorithm.policy.model.logits.detach().clone()
    with pytest.raises(InvalidArgument, match=f"have more than {limit} tokens"):
        TokenGRPO(algorithm.policy.model, TokenGRPOConfig(max_length=limit)).update(pack)
    assert torch.equal(before, algorithm.policy.model.logits)


def test_images_reach_the_forward_function() -> None:
    recorder, seen = TokenRecorder(group_size=2), []
    for k in range(4):
        talk = recorder.begin([1, 2], infos={"images": [f"image {k}"]}, group=k // 2)
        talk.turn([3], terminated=True, reward=float(k % 2), logp=[-1.9])
        recorder.end(talk)
    pack = recorder.take()
    assert pack is not None

    def forward(model: Any, batch: Any) -> Any:
        seen.append(batch["images"].tolist())
        return model(batch)

    with pytest.raises(InvalidArgument, match="have 'images', which no column has"):
        TokenGRPO(Table(), TokenGRPOConfig(), forward=forward).update(pack)
    config = TokenGRPOConfig(num_minibatches=2, max_tokens=3, max_correction=2.0, kl_coefficient=0.1)
    TokenGRPO(Table(), config, forward=forward, infos=["images"]).update(pack)
    images = [[f"image {k}"] for k in range(4)]
    assert {str(part) for part in seen} == {str([image]) for image in images}


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
