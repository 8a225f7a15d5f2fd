"""Measurements of tokens: each token that `TokenGRPO` learned from, beside formulas for one token at a time."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors import NumpyToTensor
from connectors.learner import LearnerPipeline, TokenColumns
from connectors.pipeline import ConnectorPipeline
from episode_learners import TokenGRPO, TokenGRPOConfig
from episodes import EpisodePack
from episodes.errors import InvalidArgument
from episodes.storage.ledger import Ledger
from episodes.tokens import token_batch
from tests.learners.test_token_grpo import Recurrent, pack_of, recorded

CONFIGS = st.fixed_dictionaries(
    {
        "layout": st.sampled_from(["packed", "padded"]),
        "mean": st.sampled_from(["token", "sequence"]),
        "ratio": st.sampled_from(["token", "sequence"]),
        "num_epochs": st.integers(1, 2),
        "num_minibatches": st.integers(1, 3),
        "max_tokens": st.sampled_from([None, 60]),
        "max_correction": st.sampled_from([None, 1.2]),
        "kl_coefficient": st.sampled_from([0.0, 0.5]),
        "clip_low": st.just(0.1),
        "learning_rate": st.just(0.01),
    }
)


def updated(config: TokenGRPOConfig, pack: EpisodePack, folder: str | None = None, num_updates: int = 1) -> TokenGRPO:
    """Return the algorithm after an update, whose metrics are its attribute `metrics`.

    Args:
        config: settings of the algorithm.
        pack: episodes.
        folder: ledger, to which the update is written `num_updates` times. None: tokens are not measured.
        num_updates: see `folder`.
    """
    algorithm = TokenGRPO(Recurrent(), config, reference=Recurrent(1))
    batches: list[Any] = []
    algorithm.measures_rows, algorithm.witness = folder is not None, batches.append
    algorithm.metrics = algorithm.update(pack)  # type: ignore[assignment]
    if folder is not None:
        with Ledger(folder) as ledger:
            for number in range(num_updates):
                ledger.note(number, batches[0], measured=algorithm.row_measurements)
    return algorithm


def explained(config: TokenGRPOConfig, pack: EpisodePack, num_updates: int = 1) -> tuple[Any, TokenGRPO]:
    """Return the explanation of the last of several equal updates, and the algorithm."""
    from episodes.inspect import explain_update

    with tempfile.TemporaryDirectory() as folder:
        algorithm = updated(config, pack, folder, num_updates)
        return explain_update(folder, num_updates - 1, episodes=pack), algorithm


@settings(max_examples=7, deadline=None)
@given(CONFIGS, st.integers(0, 99))
def test_explanation_has_each_learned_token_once(options: dict[str, Any], seed: int) -> None:
    config, pack = TokenGRPOConfig(**options, group_size=4), pack_of(recorded(4, seed))
    explanation, algorithm = explained(config, pack, num_updates=2)
    plain = updated(config, pack)
    assert plain.metrics == algorithm.metrics
    for name, weights in plain.policy.state_dict().items():
        torch.testing.assert_close(algorithm.policy.state_dict()[name], weights, rtol=0, atol=0)
    learned = {}
    for episode in pack:
        for t in range(len(episode)):
            tokens, outputs = episode.get_actions(t), episode.get_extra_model_outputs("learned", t)
            for k in np.flatnonzero(outputs).tolist():
                learned[episode.id_, t, k] = int(tokens[k])
    assert {(step.id_, step.t, step.token): step.token_id for step in explanation} == learned
    assert len(explanation) == len(learned)
    assert {step.times_learned for step in explanation} <= {2}
    assert np.isclose(sum(step.share for step in explanation), 1) or not learned
    gains = dict(zip(pack.ids.tolist(), algorithm.episode_advantages(pack).tolist(), strict=True))
    for step in explanation:
        assert np.isclose(step.measurements["advantage"], gains[step.id_], rtol=1e-5)


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("max_correction", [None, 1.2])
@pytest.mark.parametrize("mean", ["token", "sequence"])
def test_measurements_equal_formulas(layout: Any, mean: Any, max_correction: float | None) -> None:
    """One gradient step with all tokens: the model is that before the update."""
    pack = pack_of(recorded(4, 3))
    options: dict[str, Any] = {"mean": mean, "max_correction": max_correction, "layout": layout}
    config = TokenGRPOConfig(**options, group_size=4, kl_coefficient=0.5)
    explanation, algorithm = explained(config, pack)
    model = TokenGRPO(Recurrent(), config, reference=Recurrent(1))
    before = model.trainer_log_probs(batch := model.preprocess(pack))
    model.policy.model.load_state_dict(Recurrent(1).state_dict())
    reference = model.trainer_log_probs(batch)
    numbers, (num_learned, of_episodes) = batch.origin.numbers, _counts(pack)  # type: ignore[attr-defined]
    place = {}
    for index in np.ndindex(*numbers.shape):
        place.setdefault(int(numbers[index]), []).append(index)  # the tokens of a turn are in order
    first = dict(zip(pack.ids.tolist(), pack.offsets.tolist(), strict=False))
    total = 0.0
    for step in explanation:
        index = place[first[step.id_] + step.t][step.token]
        sampler, trainer, of_reference = (float(x[index]) for x in (batch["action_logp"], before, reference))
        advantage = step.measurements["advantage"]
        base = sampler if max_correction is None else trainer
        ratio = np.exp(trainer - base)
        objective = min(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        weight = 1.0 if max_correction is None else min(np.exp(trainer - sampler), max_correction)
        kl = np.exp(of_reference - trainer) - 1 - (of_reference - trainer)
        divisor = num_learned if mean == "token" else of_episodes[step.id_] * len(of_episodes)
        expected = (abs(objective * weight) + 0.5 * kl) / divisor
        np.testing.assert_allclose(step.measurements["loss"], expected, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(step.measurements["ratio"], ratio, rtol=1e-4)
        np.testing.assert_allclose(step.measurements["first_logp_difference"], sampler - trainer, atol=1e-5)
        assert step.measurements["clipped"] == (objective != ratio * advantage)
        total += step.measurements["clipped"] / divisor
    assert np.isclose(total, algorithm.metrics["clip_fraction"], atol=1e-5)


def _counts(pack: EpisodePack) -> tuple[int, dict[str, int]]:
    """Return the number of learned tokens of a pack, and of each episode that has some."""
    counts = {e.id_: sum(int(np.sum(x)) for x in e.get_extra_model_outputs("learned")) for e in pack}
    return sum(counts.values()), {id_: count for id_, count in counts.items() if count}


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("path", ["token_batch", "pipeline", "learner pipeline", "algorithm"])
def test_origin_of_a_token_batch_is_the_turn_of_each_token(layout: Any, path: str) -> None:
    for seed in range(4):
        pack = pack_of(recorded(4, seed))
        columns = [TokenColumns(layout=layout), NumpyToTensor()]
        batch: Any
        if path == "token_batch":
            batch = token_batch(pack, layout=layout)
        elif path == "pipeline":
            batch = ConnectorPipeline(connectors=columns)(batch={}, episodes=pack)
        elif path == "learner pipeline":
            batch = LearnerPipeline(connectors=columns)(batch={}, episodes=pack)
        else:
            batch = TokenGRPO(Recurrent(), TokenGRPOConfig(layout=layout, group_size=4)).preprocess(pack)
        labels, mask = (np.asarray(batch[name]) for name in ("labels", "loss_mask"))
        origin, learned = batch.origin, []
        assert origin.numbers.shape == mask.shape
        for index in np.argwhere(mask):
            place = origin[tuple(index)]
            learned.append((place.id_, place.t, int(labels[tuple(index)])))
            assert origin.episode(tuple(index)).id_ == place.id_
        expected = [
            (episode.id_, t, int(token))
            for episode in pack
            for t in range(len(episode))
            for token in episode.get_actions(t)[np.asarray(episode.get_extra_model_outputs("learned", t)) != 0]
        ]
        assert sorted(learned) == sorted(expected)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_tokens_that_were_cut_off_are_not_explained(layout: Any) -> None:
    pack = pack_of(recorded(4, 3))
    config = TokenGRPOConfig(layout=layout, group_size=4, max_length=6, longer="cut")
    explanation, algorithm = explained(config, pack)
    assert len(explanation) == _counts(pack)[0] - algorithm.metrics["lost_tokens"] > 0
    for step in explanation:
        assert np.isfinite(list(step.measurements.values())).all()


def test_steps_have_no_tokens() -> None:
    from tests.learners.test_explain_update import explained as of_steps

    with tempfile.TemporaryDirectory() as folder:
        explanation, _ = of_steps("bc", folder)  # type: ignore[arg-type]
    assert explanation[0].token is None
    with pytest.raises(InvalidArgument, match="not from tokens"):
        _ = explanation[0].token_id
