"""Inputs of views, chains of views, and errors for invalid views when they are bound."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from numbered_envs import Numbered
from own_views import joint
from reference_connectors import WholeEpisode, whole_episodes

from connectors import learner_pipeline
from connectors.env_to_module import (
    FlattenObservations,
    FrameStacking,
    PrevActionsPrevRewards,
    TransformerContext,
    time_steps,
)
from connectors.testing import check_view
from connectors.views.view import Views
from episodes.errors import ContractViolation, InvalidArgument, ShapeMismatch, WrongType
from episodes.history import History, HistorySpaces
from episodes.pack import EpisodePack, PackHistory
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import EpisodesHistory, SingleAgentEpisode

BOX, ACTIONS = spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(3)
SPACES = HistorySpaces(BOX, ACTIONS)


# --- histories ---------------------------------------------------------------------------------------------------


def expected_windows(episode: WholeEpisode, first: int, g: int, k: int) -> dict[str, Any]:
    """Return the expected windows at observation g, of an episode whose chunk begins at step `first`, item by item."""
    zero = np.zeros(2, np.float32)
    observation_times, done = range(g - k + 1, g + 1), range(g - k, g)
    one_hot = np.eye(3, dtype=np.float32)
    return {
        "observations": np.array([episode.observations[i] if i >= first else zero for i in observation_times]),
        "observed": np.array([i >= first for i in observation_times]),
        "actions": np.array([episode.actions[i] if i >= first else 0 for i in done]),
        "flat_actions": np.array([one_hot[episode.actions[i]] if i >= first else np.zeros(3) for i in done]),
        "rewards": np.array([episode.rewards[i] if i >= first else 0.0 for i in done], np.float32),
        "logp": np.array([-float(i) if i >= first else 0.0 for i in done]),
        "stepped": np.array([i >= first for i in done]),
        "t": np.array(g),
    }


def windows(history: History, k: int) -> dict[str, Any]:
    return {
        "observations": history.observations(k),
        "observed": history.observed(k),
        "actions": history.actions(k),
        "flat_actions": history.flat_actions(k),
        "rewards": history.rewards(k),
        "logp": history.extra("action_logp", k, like=0.0),
        "stepped": history.stepped(k),
        "t": history.t,
    }


def assert_rows(history: History, k: int, places: list[tuple[WholeEpisode, int, int]]) -> None:
    result = windows(history, k)
    assert len(history) == len(places)
    for row, (episode, first, g) in enumerate(places):
        for name, value in expected_windows(episode, first, g, k).items():
            assert np.array_equal(result[name][row], value), (name, row)
    assert np.array_equal(history.observations(), history.observations(k)[:, -1])


@given(whole_episodes(), st.integers(1, 4), st.integers(1, 3))
def test_windows_have_items_before_each_observation(episodes: list[WholeEpisode], k: int, around: int) -> None:
    chunks = [
        (e, max(start - e.lookback, 0), span, chunk)
        for e in episodes
        for span, chunk in zip(e.spans, e.chunks(), strict=True)
        for start in span[:1]
    ]
    pack = EpisodePack.from_episodes(
        [chunk.to_numpy() for *_, chunk in chunks if len(chunk)]
        or [SingleAgentEpisode.from_arrays(np.zeros((1, 2)), [], [])]
    )
    stepped = [(e, first, g) for e, first, (start, end), chunk in chunks if len(chunk) for g in range(start, end + 1)]
    if stepped:
        history = PackHistory(pack, pack.all_observation_rows(), SPACES)
        assert_rows(history, k, stepped)
        inner = [(e, first, max(g - back, first)) for e, first, g in stepped for back in range(around - 1, -1, -1)]
        assert_rows(history.window(around), k, inner)
    newest = [(e, first, end) for e, first, (_, end), _ in chunks]
    grown = EpisodesHistory([chunk for *_, chunk in chunks], SPACES)
    assert_rows(grown, k, newest)
    inner = [(e, first, max(g - back, first)) for e, first, g in newest for back in range(around - 1, -1, -1)]
    assert_rows(grown.window(around), k, inner)


def test_episode_of_row_ends_with_its_observation() -> None:
    episode = SingleAgentEpisode.from_arrays(np.arange(8.0).reshape(4, 2), [0, 1, 2], [1.0, 2.0, 3.0], id_="E")
    history = PackHistory(EpisodePack.from_episodes([episode]), np.array([2, 0]), SPACES)
    assert [(len(history.episode(i)), history.episode(i).id_) for i in range(2)] == [(2, "E"), (0, "E")]
    assert history.episode(0).get_actions(-1) == 1


# --- views -------------------------------------------------------------------------------------------------------


def test_lookback_of_a_chain_is_found() -> None:
    chains = [
        ([], 0),
        ([time_steps], 0),
        ([FrameStacking(num_frames=3)], 2),
        (
            [
                PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=2),
                FlattenObservations(),
                FrameStacking(num_frames=3),
            ],
            4,
        ),
        ([FrameStacking(num_frames=3), PrevActionsPrevRewards(), FlattenObservations()], 2),
    ]
    for chain, lookback in chains:
        assert Views(chain, BOX, ACTIONS).lookback == lookback


def test_columns_spaces_and_bounds_of_views_are_found() -> None:
    views = Views([FrameStacking(num_frames=2), TransformerContext(k=3), time_steps], BOX, ACTIONS)
    assert views.columns == ("obs", "attention_mask", "past_actions", "t")
    assert views.spaces["attention_mask"] == spaces.MultiBinary((3,))
    assert views.spaces["past_actions"].shape == (3, 3)
    assert views.observation_space == spaces.Box(-np.inf, np.inf, (3, 4), np.float32)
    assert Views([FrameStacking(num_frames=2)], BOX, ACTIONS).observation_space == spaces.Box(-9, 9, (4,), np.float32)
    assert Views([time_steps], BOX, ACTIONS).observation_space == BOX


def test_binding_views_does_not_sample_given_spaces() -> None:
    ours, reference_space = spaces.Discrete(1000, seed=3), spaces.Discrete(1000, seed=3)
    Views([PrevActionsPrevRewards()], BOX, ours)
    assert ours.sample() == reference_space.sample()


def test_bound_views_survive_pickling() -> None:
    views = pickle.loads(pickle.dumps(Views([FrameStacking(num_frames=2), PrevActionsPrevRewards()], BOX, ACTIONS)))
    assert (views.lookback, repr(views)) == (1, "Views(FrameStacking > PrevActionsPrevRewards)")


# --- views that are wrong ----------------------------------------------------------------------------------------


def batch_mixing(history: History) -> dict[str, Any]:
    observations = history.observations()
    return {"obs": observations - observations.mean(0)}


def batch_sized(history: History) -> dict[str, Any]:
    return {"share": np.full(len(history), 1 / len(history), np.float32)}


class Counting:
    """View with a state."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, history: History) -> dict[str, Any]:
        self.calls += 1
        return {"calls": np.full(len(history), self.calls)}


@pytest.mark.parametrize("view", [batch_mixing, batch_sized, Counting()])
def test_view_with_dependent_rows_is_rejected_when_bound(view: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"view (batch_mixing|batch_sized|Counting): rows of column .* depend"):
        Views([view], BOX, ACTIONS)


def in_place(history: History) -> dict[str, Any]:
    observations = history.observations()
    observations *= 2
    return {"obs": observations}


def misspelt(history: History) -> dict[str, Any]:
    return {"obs": history.observation(3)}  # type: ignore[attr-defined]


def too_few_rows(history: History) -> dict[str, Any]:
    return {"obs": history.observations()[:1]}


class WrongSpace:
    def spaces(self, input_spaces: HistorySpaces) -> dict[str, gym.Space]:
        return {"obs": spaces.Discrete(3)}

    def __call__(self, history: History) -> dict[str, Any]:
        return {"obs": history.observations()}


@pytest.mark.parametrize(
    ("view", "error", "message"),
    [
        (in_place, WrongType, "view in_place fails on samples of the spaces: ValueError: .*read-only"),
        (misspelt, WrongType, "view misspelt fails on samples of the spaces: AttributeError: .*'observation'"),
        (too_few_rows, ShapeMismatch, r"view too_few_rows: column 'obs' has \[1\] rows for 3 observations"),
        (WrongSpace(), ShapeMismatch, "view WrongSpace: column 'obs' .* declares the space Discrete"),
    ],
)
def test_invalid_view_raises_when_bound(view: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        Views([view], BOX, ACTIONS)


def test_views_without_needed_spaces_raise() -> None:
    with pytest.raises(InvalidArgument, match="give the pipeline the observation_space"):
        Views([time_steps, joint], None, ACTIONS)
    with pytest.raises(InvalidArgument, match="previous actions need the action space"):
        Views([PrevActionsPrevRewards()], BOX, None)


class LongerNowAndThen:
    """View that looks further back for some observations."""

    def __call__(self, history: History) -> dict[str, Any]:
        k = 3 if (history.observations()[:, 1] == 11).any() else 2
        return {"obs": history.observations(k)[:, -1]}


def test_view_with_larger_lookback_than_on_samples_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match=r"observations\(3\) goes 2 steps back; .* no more than 1"):
        check_view(LongerNowAndThen(), Numbered)


class Remembering:
    """View that remembers the largest number of all its inputs."""

    def __init__(self) -> None:
        self.largest = 1e5

    def __call__(self, history: History) -> dict[str, Any]:
        observations = history.observations()
        self.largest = max(self.largest, float(observations.max(initial=0)))
        return {"obs": observations / np.float32(self.largest)}


class Sharing:
    """View that divides by the number of rows, which small samples do not show."""

    def __call__(self, history: History) -> dict[str, Any]:
        return {"obs": history.observations() / np.float32(max(len(history), 3))}


@pytest.mark.parametrize("make_view", [Remembering, Sharing])
def test_check_view_finds_errors_that_samples_miss(make_view: type) -> None:
    Views([make_view()], spaces.Box(0, 1, (2,), np.float32), ACTIONS)
    with pytest.raises(ContractViolation, match=rf"Views\({make_view.__name__}\) .*column obs, row \d+.*rows differ"):
        check_view(make_view(), Loud)


class Loud(Numbered):
    """Environment whose observations are 1e5 times as large as in `Numbered`."""

    def _show(self) -> np.ndarray:
        return super()._show() * np.float32(1e5)


@pytest.mark.parametrize(
    "read",
    [
        lambda history: history.depth,
        lambda history: history.observed(1)[:, 0] & (history.depth == 0),
        lambda history: history.window(2).depth[::2],
    ],
    ids=["alone", "with observed", "in a window"],
)
@pytest.mark.parametrize("first", [[], [FrameStacking(num_frames=2).see]], ids=["first", "second"])
def test_views_do_not_read_how_many_steps_happen_to_be_stored(read: Any, first: list[Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"history.depth .* reads history.t"):
        Views([*first, lambda history: {"value": read(history)}], BOX, ACTIONS)


@pytest.mark.parametrize(("method", "k", "lookback"), [("observed", 4, 3), ("stepped", 4, 4)])
@pytest.mark.parametrize("first", [[], [FrameStacking(num_frames=2).see]], ids=["first", "second"])
def test_what_a_view_asks_about_the_past_counts_as_its_lookback(
    method: str, k: int, lookback: int, first: list[Any]
) -> None:
    """All sources agree: the reset is as far away in a buffer, in a chunk and in a whole episode."""
    views = Views([*first, lambda history: {"exists": getattr(history, method)(k)}], BOX, ACTIONS)
    assert views.lookback == lookback
    observations = np.arange(42, dtype=np.float32).reshape(21, 2)
    whole = SingleAgentEpisode.from_arrays(observations, np.zeros(20, int), np.ones(20), id_="e")
    buffer = EpisodeReplayBuffer(10, seed=0)
    buffer.add(whole)
    t = np.arange(20)[:, None] - np.arange(k)[::-1]
    expected = t >= (0 if method == "observed" else 1)
    sampled = buffer.sample(200, views=views, keys=["obs", "t"])
    assert set(sampled.t.tolist()) == {*range(10 + lookback, 20)}
    assert (sampled.exists == expected[sampled.t]).all()
    pipeline = learner_pipeline(BOX, ACTIONS, views=views)
    for start in (0, 2, 12):
        pack = EpisodePack.from_episodes([whole.window(start, 20, min(start, lookback), False)])
        assert (np.asarray(pipeline(episodes=pack)["exists"]) == expected[start:]).all()
