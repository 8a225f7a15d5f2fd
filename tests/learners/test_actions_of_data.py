"""Actions of offline data that are not the policy's are named, by each algorithm, and nothing is learned from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from episode_learners import (
    BC,
    CQL,
    DQN,
    GRPO,
    IMPALA,
    PPO,
    SAC,
    BCConfig,
    ContinuousCQL,
    CQLConfig,
    DQNConfig,
    GRPOConfig,
    LSTMPolicy,
    MLPPolicy,
    QPolicy,
    SACPolicy,
)
from episode_learners.algorithms.action_checks import check_actions
from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import InvalidArgument
from episodes.replay import EpisodeReplayBuffer

T = 8
OBS = spaces.Box(-1, 1, (3,), np.float32)
SPACES = {
    "discrete": spaces.Discrete(3),
    "started": spaces.Discrete(3, start=5),
    "multi_discrete": spaces.MultiDiscrete([3, 2]),
    "multi_binary": spaces.MultiBinary(2),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "dict": spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2,), np.float32)}),
}
ints, floats = np.zeros(T, np.int64), np.zeros((T, 2), np.float32)
GOOD = {
    "discrete": [ints, ints + 2, ints.astype(np.float64), ints.astype(bool)],
    "started": [ints + 5, ints + 7],
    "multi_discrete": [np.tile([2, 1], (T, 1)), floats],
    "multi_binary": [floats.astype(np.int8) + 1, floats.astype(bool)],
    "box": [floats, floats.astype(np.int64)],
    "dict": [{"a": ints, "b": floats}],
}
_LATE = np.array([0] * (T - 1) + [3])
BAD: dict[str, list[tuple[Any, str]]] = {
    "discrete": [
        (_LATE, r"is 3 "),
        (ints - 1, r"is -1 "),
        (ints + 0.5, r"is 0.5 "),
        (ints + np.nan, r"is nan "),
        (ints[:, None], "have shape"),
        (floats, "have shape"),
        (np.array(["up"] * T), "actions are a ndarray"),
        ({"a": ints}, "actions are a dict"),
    ],
    "started": [(ints, r"is 0 "), (ints + 8, r"is 8 ")],
    "multi_discrete": [
        (np.tile([0, 2], (T, 1)), r"is \[0, 2\]"),
        (np.tile([-1, 0], (T, 1)), r"is \[-1, 0\]"),
        (floats[:, :1], "have shape"),
        (ints, "have shape"),
    ],
    "multi_binary": [(floats + 2, r"is \[2.0, 2.0\]"), (floats + 0.5, "is"), (floats[:, :1], "have shape")],
    "box": [
        (floats[:, :1], "have shape"),
        (floats[:, 0], "have shape"),
        (np.zeros((T, 3), np.float32), "have shape"),
        (floats.astype(bool), r"\[False, False\]"),
        ({"a": floats}, "actions are a dict"),
    ],
    "dict": [
        ({"a": ints + 3, "b": floats}, r"actions\['a'\]\[.*\] is 3 "),
        ({"a": ints}, "have no 'b'"),
        ({"a": ints, "b": floats[:, :1]}, r"actions\['b'\] have shape"),
        (ints, "actions are a"),
    ],
}


def episode_of(actions: Any) -> SingleAgentEpisode:
    observations = np.linspace(-1, 1, 3 * (T + 1), dtype=np.float32).reshape(T + 1, 3)
    return SingleAgentEpisode.from_arrays(
        observations,
        actions,
        np.ones(T, np.float32),
        terminated=True,
        extra_model_outputs={"action_logp": np.zeros(T, np.float32)},
    )


EVERY, Q, CONTINUOUS = (*SPACES,), ("discrete", "started"), ("box",)
ALGORITHMS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "BC": (lambda space: BC(MLPPolicy(OBS, space), BCConfig(num_epochs=1)), EVERY),
    "BC recurrent": (lambda space: BC(LSTMPolicy(OBS, space), BCConfig(num_epochs=1, max_seq_len=5)), EVERY),
    "PPO": (lambda space: PPO(MLPPolicy(OBS, space)), EVERY),
    "GRPO": (lambda space: GRPO(MLPPolicy(OBS, space), GRPOConfig(group_size=2)), EVERY),
    "IMPALA": (lambda space: IMPALA(MLPPolicy(OBS, space)), EVERY),
    "DQN": (lambda space: DQN(QPolicy(OBS, space), DQNConfig(batch_size=64)), Q),
    "CQL": (lambda space: CQL(QPolicy(OBS, space), CQLConfig(batch_size=64)), Q),
    "SAC": (lambda space: SAC(SACPolicy(OBS, space)), CONTINUOUS),
    "ContinuousCQL": (lambda space: ContinuousCQL(SACPolicy(OBS, space)), CONTINUOUS),
}
PAIRS = [(name, kind) for name, (_, kinds) in ALGORITHMS.items() for kind in kinds]


def check_refused(algorithm: Any, update: Callable[[], Any], message: str) -> None:
    before = {name: value.clone() for name, value in algorithm.policy.named_parameters()}
    with pytest.raises(InvalidArgument, match=message) as caught:
        update()
    assert str(caught.value).startswith(f"{type(algorithm).__name__}: ")
    assert all(torch.equal(value, before[name]) for name, value in algorithm.policy.named_parameters())
    assert algorithm.num_updates == 0


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_actions_of_episodes(name: str, kind: str) -> None:
    make, space = ALGORITHMS[name][0], SPACES[kind]
    algorithm = make(space)
    for actions, message in BAD[kind]:
        pack = EpisodePack.from_episodes([episode_of(actions)] * 2)
        check_refused(algorithm, lambda pack=pack: algorithm.update(pack), message)
    for actions in GOOD[kind]:
        make(space).update(EpisodePack.from_episodes([episode_of(actions)] * 2))


@pytest.mark.parametrize(("name", "kind"), [pair for pair in PAIRS if pair[0] not in ("PPO", "GRPO", "IMPALA")])
def test_actions_of_samples(name: str, kind: str) -> None:
    make, space = ALGORITHMS[name][0], SPACES[kind]
    algorithm = make(space)
    for actions, message in BAD[kind]:
        buffer = EpisodeReplayBuffer(100, seed=0)
        buffer.add(episode_of(actions))
        check_refused(algorithm, lambda buffer=buffer: algorithm.update_from(buffer), message)
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add(episode_of(GOOD[kind][0]))
    assert make(space).update_from(buffer)


CHOICES = st.one_of(
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 4), st.integers(-3, 3)),
    st.builds(lambda n, start: spaces.MultiDiscrete([n, 2], start=[start, 0]), st.integers(1, 4), st.integers(-3, 3)),
    st.builds(spaces.MultiBinary, st.integers(1, 3)),
)


@given(data=st.data(), space=CHOICES, num=st.integers(0, 5), is_padded=st.booleans())
def test_actions_are_accepted_as_the_space_contains_them(data: Any, space: Any, num: int, is_padded: bool) -> None:
    values = st.integers(-4, 6) | st.sampled_from([0.5, np.nan, 1.0])
    some = data.draw(st.lists(st.lists(values, min_size=3, max_size=3), min_size=num, max_size=num))
    size = int(np.prod(space.shape))
    actions = np.array(some).reshape(num, 3)[:, :size].reshape(num, *space.shape)
    batch: dict[str, Any] = {"actions": actions}
    if is_padded:
        mask = np.array([data.draw(st.booleans()) for _ in range(num)], bool)
        batch, actions = {"actions": actions[:, None], "loss_mask": mask[:, None]}, actions[mask]
    is_right = [bool((row % 1 == 0).all()) and space.contains(row.astype(space.dtype)) for row in actions]
    try:
        check_actions(batch, space, "BC", str)
    except InvalidArgument:
        assert not all(is_right)
    else:
        assert all(is_right)
