"""Configurations: wrong values raise an error that names the field, and docstrings explain all fields."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest

from episode_learners import (
    BCConfig,
    ContinuousCQLConfig,
    CQLConfig,
    DQNConfig,
    GRPOConfig,
    IMPALAConfig,
    PPOConfig,
    R2D2Config,
    SACConfig,
    TokenGRPOConfig,
)
from episode_learners.trainers import OfflineConfig, OffPolicyConfig, OnPolicyConfig
from episodes.errors import InvalidArgument

CONFIGS = (PPOConfig, GRPOConfig, IMPALAConfig, BCConfig, DQNConfig, CQLConfig, R2D2Config, SACConfig)
CONFIGS += (ContinuousCQLConfig, TokenGRPOConfig, OnPolicyConfig, OffPolicyConfig, OfflineConfig)


@pytest.mark.parametrize("kind", CONFIGS)
def test_each_field_is_explained_and_rejects_other_types(kind: Any) -> None:
    for field in fields(kind):
        assert kind.__doc__.count(f"\n    {field.name}: ") == 1, field.name
        if field.name == "target_entropy":  # any number
            continue
        for wrong in ("nonsense", float("nan"), float("inf"), -0.5, [1], np.ones(2)):
            with pytest.raises(InvalidArgument, match=f"{kind.__name__}: {field.name} is .* it must be "):
                kind(**{field.name: wrong})


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (PPOConfig, {"num_epochs": True}),
        (PPOConfig, {"num_epochs": 0}),
        (PPOConfig, {"gamma": 1.1}),
        (PPOConfig, {"dual_clip": 1.0}),
        (PPOConfig, {"standardize_advantages": 1}),
        (IMPALAConfig, {"clip_rho": 0.0}),
        (DQNConfig, {"batch_size": 2.5}),
        (DQNConfig, {"epsilon_end": 0.5, "epsilon_start": 0.1}),
        (R2D2Config, {"n_step": 9, "sequence_length": 8}),
        (R2D2Config, {"burn_in": -1}),
        (SACConfig, {"target_entropy": -1.0, "temperature": 0.2}),
        (GRPOConfig, {"mean": None}),
    ],
    ids=str,
)
def test_invalid_values_raise(kind: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"{kind.__name__}: {next(iter(wrong))}"):
        kind(**wrong)


def test_bounds_and_none_are_accepted() -> None:
    assert PPOConfig(gamma=0.0, lambda_=1, num_epochs=1, value_coefficient=0, max_gradient_norm=None).lambda_ == 1
    assert (GRPOConfig(scale=None).scale, R2D2Config(burn_in=0).burn_in) == (None, 0)


def test_subclass_with_another_default_keeps_the_rule() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(PPOConfig):
        gamma: float = 0.5
        mine: int = dataclasses.field(default=1, metadata={"rule": "of the user"})

    assert (Mine().gamma, Mine().mine) == (0.5, 1)
    with pytest.raises(InvalidArgument, match="Mine: gamma is 2"):
        Mine(gamma=2)
