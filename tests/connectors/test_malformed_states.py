"""A malformed state raises an error by name in every connector that has a state, and changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from connectors import env_to_module_pipeline, learner_pipeline, module_to_env_pipeline
from connectors.env_to_module import ForEachAgent, MeanStdFilter, NormalizeObservations
from connectors.learner import EpisodesToRolloutBuffer, HindsightRelabel, NormalizeRewards
from connectors.module_to_env import GetActions
from connectors.rollout.buffer import RolloutBuffer
from episodes.errors import InvalidArgument, StateMismatch

SPACES: tuple[Any, Any] = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)


def for_each_agent() -> ForEachAgent:
    piece = ForEachAgent(MeanStdFilter)
    piece.set_input_spaces(*SPACES)
    piece.rewriter_of("a").rewrite(np.ones((2, 3), np.float32))
    return piece


def rollout_buffer() -> EpisodesToRolloutBuffer:
    return EpisodesToRolloutBuffer(buffer=RolloutBuffer(2, 3, 3, 1, "cpu"))


PIECES: dict[str, Callable[[], Any]] = {
    "MeanStdFilter": lambda: MeanStdFilter(*SPACES),
    "NormalizeObservations": lambda: NormalizeObservations(*SPACES),
    "ForEachAgent": for_each_agent,
    "GetActions": lambda: GetActions(*SPACES, seed=0),
    "HindsightRelabel": lambda: HindsightRelabel(compute_reward=lambda *goals: 0.0, seed=0),
    "NormalizeRewards": NormalizeRewards,
    "EpisodesToRolloutBuffer": rollout_buffer,
    "env to module": lambda: env_to_module_pipeline(*SPACES, pieces=[MeanStdFilter()]),
    "module to env": lambda: module_to_env_pipeline(*SPACES, seed=0),
    "learner": lambda: learner_pipeline(*SPACES, pieces=[NormalizeRewards()]),
}
MALFORMED: list[Any] = [None, 3, "state", ["state"], [], {"other": 1}, object()]


def broken(state: Any) -> list[Any]:
    """Return states with a wrong value in place of one of the values."""
    return [
        {**state, name: wrong} for name in state if state[name] is not None for wrong in (object(), ["a", "b", "c"])
    ]


def equal(first: Any, second: Any) -> bool:
    return repr(first) == repr(second)


@pytest.mark.parametrize("piece", PIECES)
def test_malformed_state_is_an_error_by_name_and_changes_nothing(piece: str) -> None:
    connector = PIECES[piece]()
    before = copy.deepcopy(connector.get_state())
    for state in [*MALFORMED, *broken(before)]:
        with pytest.raises((StateMismatch, InvalidArgument)):
            connector.set_state(state)
        assert equal(connector.get_state(), before), state
    connector.set_state(before)
    assert equal(connector.get_state(), before)
