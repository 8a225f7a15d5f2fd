"""Random conversations: multi-turn episodes of tokens with prefix breaks, empty turns, masks, versions and cuts."""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes import SingleAgentEpisode

KINDS = {"observations": "i4", "actions": "i4", "logp": "f4", "learned": "?", "version": "i4"}


def conversation(seed: int, *, mean: int = 6, space: Any = None, infos: bool = True) -> SingleAgentEpisode:
    """Return a growing episode of 0 to 8 turns of random tokens.

    Args:
        seed: seed of all numbers, and the id.
        mean: mean number of tokens of a part.
        space: space of the observations and actions.
        infos: whether some turns break the prefix, which their infos say.
    """
    rng = np.random.default_rng(seed)
    episode = SingleAgentEpisode(f"c{seed}", ragged=KINDS, observation_space=space, action_space=space)
    if seed % 3 == 0:
        episode.custom_data["group"] = seed // 3
    num_turns, version = int(rng.integers(0, 9)), int(rng.integers(0, 5))

    def tokens() -> np.ndarray:
        length = 0 if rng.random() < 0.1 else int(rng.exponential(mean))
        return rng.integers(0, 100, length).astype(np.int32)

    episode.add_env_reset(tokens())
    for turn in range(num_turns):
        action = tokens()
        versions = np.full(len(action), version, np.int32)
        if rng.random() < 0.2:  # an update within the turn
            versions[len(action) // 2 :] = version = version + 1
        ends = turn == num_turns - 1
        episode.add_env_step(
            tokens() if not ends or rng.random() < 0.5 else [],
            action.tolist() if rng.random() < 0.2 else action,
            float(rng.integers(0, 3)),
            {"keep": int(rng.integers(0, 9))} if infos and rng.random() < 0.1 else None,
            terminated=ends and seed % 4 == 0,
            truncated=ends and seed % 4 == 1,
            policy_version=version if rng.random() < 0.5 else None,
            extra_model_outputs={
                "logp": -rng.random(len(action)).astype(np.float32),
                "learned": rng.random(len(action)) < 0.9,
                "version": versions,
            },
        )
    return episode
