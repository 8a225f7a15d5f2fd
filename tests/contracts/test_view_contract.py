"""Every view of the library, and two of a user, give equal columns for all kinds of histories."""

from __future__ import annotations

from typing import Any

import pytest
from numbered_envs import Goals, Numbered, Pixels
from own_views import attention, joint

from connectors import env_to_module
from connectors.env_to_module import (
    FlattenObservations,
    FrameStacking,
    NormalizeObservations,
    OneHotAgentId,
    PrevActionsPrevRewards,
    TransformerContext,
    time_steps,
)
from connectors.testing import check_view
from episodes.tracks import nested

CHAINS: dict[str, list[Any]] = {
    "frames": [FrameStacking(num_frames=3)],
    "frames of frames": [FrameStacking(num_frames=2), FrameStacking(num_frames=2)],
    "previous": [PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=1)],
    "flat": [PrevActionsPrevRewards(), FlattenObservations(), FrameStacking(num_frames=3)],
    "agents": [OneHotAgentId(["left", None])],
    "times": [time_steps],
    "context": [TransformerContext(k=5), time_steps],
    "context of frames": [FrameStacking(num_frames=2), TransformerContext(k=3)],
}
PUBLIC = [getattr(env_to_module, name) for name in env_to_module.__all__]
VIEWS = {kind for kind in PUBLIC if isinstance(kind, type) and kind.__module__.startswith("connectors.views.")}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("make_env", [Numbered, Pixels])
def test_view_is_equal_for_all_histories(chain: list[Any], make_env: type) -> None:
    check_view(chain, make_env)


@pytest.mark.parametrize(("view", "make_env"), [(attention, Numbered), (joint, Goals)])
def test_user_view_is_equal_for_all_histories(view: Any, make_env: type) -> None:
    check_view(view, make_env)


@pytest.mark.parametrize("make_env", [Numbered, Pixels])
def test_normalizing_view_is_equal_for_all_histories(make_env: type) -> None:
    env = make_env()
    view = NormalizeObservations(env.observation_space, env.action_space)
    view.learn(nested.stack([env.observation_space.sample() for _ in range(5)]))
    check_view([view, FrameStacking(num_frames=2)], make_env)


def test_every_view_is_checked() -> None:
    assert len(VIEWS) == 6
    assert {type(part) for chain in CHAINS.values() for part in chain} | {NormalizeObservations} >= VIEWS
