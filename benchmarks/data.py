"""Random episodes with the shapes of CartPole. Both sides of a benchmark use the same arrays."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from episodes import SingleAgentEpisode

OBSERVATION_SPACE = spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTION_SPACE = spaces.Discrete(2)
FRAME = (84, 84, 1)


@dataclass(frozen=True, slots=True)
class Steps:
    """Arrays of one episode: T + 1 observations, T actions, T rewards and extra outputs of a policy."""

    observations: np.ndarray  # [T + 1, ...]
    actions: np.ndarray  # [T]
    rewards: np.ndarray  # [T]
    extras: dict[str, Any]  # each [T, ...], or a dict of such
    terminated: bool = True
    states: dict[str, np.ndarray] = field(default_factory=dict)  # of a recurrent policy, after each step, [T, 64]

    def __len__(self) -> int:
        return len(self.actions)

    def with_states_as_extras(self, states: dict[str, np.ndarray] | None = None) -> Steps:
        """Return a copy of the episode with recurrent states (its own, or the given `states`) as the extra output
        `state_out`.
        """
        return replace(self, extras={**self.extras, "state_out": states or self.states})


def steps(length: int, seed: int = 0, *, extras: tuple[str, ...] = (), terminated: bool = True) -> Steps:
    """Return a random episode of `length` steps with the shapes of CartPole and the policy outputs named in
    `extras`.
    """
    rng = np.random.default_rng(seed)
    outputs = {
        "action_dist_inputs": rng.standard_normal((length, 2), np.float32),
        "action_logp": -rng.random(length, np.float32),
        "vf_preds": rng.standard_normal(length, np.float32),
    }
    return Steps(
        observations=rng.standard_normal((length + 1, 4), np.float32),
        actions=rng.integers(0, 2, length),
        rewards=np.ones(length, np.float32),
        extras={key: outputs[key] for key in extras},
        terminated=terminated,
        states={name: rng.standard_normal((length, 64), np.float32) for name in ("h", "c")},
    )


def train_steps(total: int, count: int, extras: tuple[str, ...]) -> list[Steps]:
    """Return `count` episodes of different lengths, with `total` steps together. The last episode has not ended."""
    rng = np.random.default_rng(7)
    shares = rng.multinomial(total - count, rng.dirichlet(np.full(count, 4.0))) + 1
    last = count - 1
    return [steps(int(n), i, extras=extras, terminated=i != last) for i, n in enumerate(shares)]


def our_episode(data: Steps, lookback: int = 0, **options: Any) -> SingleAgentEpisode:
    """Convert the arrays of an episode to a finalized episode of this library. The first `lookback` steps become its
    lookback.
    """
    from episodes import SingleAgentEpisode

    return SingleAgentEpisode(**rllib_arguments(data, lookback), **options).to_numpy()


def rllib_episode(data: Steps, lookback: int = 0, **options: Any) -> Any:
    """Convert the arrays of an episode to a finalized episode of RLlib. The first `lookback` steps become its
    lookback.
    """
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    return SingleAgentEpisode(**rllib_arguments(data, lookback), **options).to_numpy()


def rllib_arguments(data: Steps, lookback: int) -> dict[str, Any]:
    """Return the keyword arguments of `SingleAgentEpisode(...)` for an episode's arrays. They are the same in this
    library and in RLlib.
    """
    return {
        "observations": list(data.observations),
        "actions": list(data.actions),
        "rewards": list(data.rewards),
        "extra_model_outputs": {key: items(values) for key, values in data.extras.items()},
        "observation_space": OBSERVATION_SPACE,
        "action_space": ACTION_SPACE,
        "terminated": data.terminated,
        "len_lookback_buffer": lookback,
    }


def random_frames(count: int) -> np.ndarray:
    """Return `count` random frames [count, 84, 84, 1] of bytes."""
    return np.random.default_rng(0).integers(0, 256, (count, *FRAME), np.uint8)


def frame_episode(num_steps: int) -> SingleAgentEpisode:
    """Return an episode of `num_steps` steps with random frames as observations."""
    from episodes import SingleAgentEpisode

    arrays = random_frames(num_steps + 1), np.zeros(num_steps, np.int64), np.zeros(num_steps, np.float32)
    return SingleAgentEpisode.from_arrays(*arrays, observation_space=spaces.Box(0, 255, FRAME, np.uint8))


def items(values: Any) -> list[Any]:
    """Convert an array [T, ...] to a list of T items, or a dict of arrays to a list of T dicts."""
    if not isinstance(values, dict):
        return list(values)
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
