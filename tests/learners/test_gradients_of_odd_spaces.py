"""Gradients with actions and observations of many types against torch's distributions, step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Normal

from connectors import distribution_for
from episode_learners import BC, GRPO, PPO, BCConfig, EncoderPolicy, GRPOConfig, PPOConfig
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.nested import map_leaves
from episodes.tracks.policy_box import policy_space_of
from tests.learners.test_gradients import assert_gradient, doubles

LOW, HIGH = np.array([-3.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32)
MASKED = spaces.Dict({"obs": spaces.Box(-1, 1, (3,)), "action_mask": spaces.MultiBinary(3)})
OBSERVATIONS = {
    "float64": spaces.Box(-1, 1, (3,), np.float64),
    "images": spaces.Box(0, 255, (36, 36, 1), np.uint8),
    "nested": spaces.Dict({"a": spaces.Box(0, 255, (3,), np.uint8), "b": spaces.Discrete(3, start=-1)}),
    "masked": MASKED,
}
ACTIONS = {
    "choices": spaces.MultiDiscrete([2, 3], start=[4, -1]),
    "a table of choices": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "bits": spaces.MultiBinary(3),
    "numbers": spaces.Box(LOW, HIGH),
    "squashed": spaces.Box(LOW, HIGH),
    "nested": spaces.Dict(
        {"z": spaces.Discrete(2, start=5), "a": spaces.Tuple((spaces.Box(LOW, HIGH), spaces.MultiDiscrete([2, 2])))}
    ),
}
PAIRS = [(seen, "choices") for seen in ("images", "nested")] + [("float64", done) for done in ACTIONS]
PAIRS += [("masked", "legal ones")]


def slow_log_prob(space: spaces.Space, inputs: Tensor, action: Any, is_squashed: bool) -> Tensor:
    """Return the log-probability of one action for inputs [num_inputs]."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        keys = list(space.spaces) if isinstance(space, spaces.Dict) else range(len(space.spaces))
        total, at = torch.zeros((), dtype=torch.float64), 0
        for key in keys:
            size = distribution_for(space[key]).num_inputs
            total = total + slow_log_prob(space[key], inputs[at : at + size], action[key], is_squashed)
            at += size
        return total
    if isinstance(space, spaces.Discrete):
        return Categorical(logits=inputs).log_prob(torch.tensor(int(action) - int(space.start)))
    if isinstance(space, spaces.MultiDiscrete):
        counts, begins = space.nvec.ravel().tolist(), np.asarray(space.start).ravel()
        parts = zip(inputs.split(counts), np.ravel(action) - begins, strict=True)
        return torch.stack(
            [Categorical(logits=logits).log_prob(torch.tensor(int(part))) for logits, part in parts]
        ).sum()
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(logits=inputs).log_prob(torch.tensor(action, dtype=torch.float64)).sum()
    mean, log_std = inputs.chunk(2)
    chosen = torch.tensor(np.ravel(action), dtype=torch.float64)
    if not is_squashed:
        return Normal(mean, log_std.exp()).log_prob(chosen).sum()
    return (Normal(mean, log_std.exp()).log_prob(chosen.atanh()) - torch.log(1 - chosen**2)).sum()


def action_of(space: spaces.Space, is_squashed: bool) -> Any:
    """Convert an action to its stored form: Box actions in units of the network, in [-1, 1]."""
    if isinstance(space, spaces.Dict):
        return {key: action_of(part, is_squashed) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(action_of(part, is_squashed) for part in space.spaces)
    item = space.sample()
    return np.tanh(item / 4).astype(np.float32) if isinstance(space, spaces.Box) else item


def sampled(observation_space: spaces.Space, done: spaces.Space, is_squashed: bool) -> list[SingleAgentEpisode]:
    """Return whole episodes, most with a single step, with NaN in their infos."""
    made, rng = [], np.random.default_rng(5)
    for place, length in enumerate((1, 1, 3, 1)):
        observation_space.seed(place)
        done.seed(place)
        episode = SingleAgentEpisode(
            observation_space=observation_space, action_space=policy_space_of(done, "normalize")
        )
        episode.add_env_reset(observation_space.sample(), {"noise": math.nan})
        for t in range(length):
            action = action_of(done, is_squashed)
            observation = episode.get_observations(-1)
            if isinstance(observation, Mapping) and "action_mask" in observation:
                observation["action_mask"][int(action)] = 1
                episode.set_observations(new_data=observation, at_indices=-1)
            episode.add_env_step(
                observation_space.sample(),
                action,
                float(rng.normal()),
                {"noise": math.nan},
                terminated=t == length - 1 and place % 2 == 0,
                truncated=t == length - 1 and place % 2 == 1,
                extra_model_outputs={"action_logp": np.float32(-1.0)},
            )
        made.append(episode.to_numpy())
    return made


def one_step(episode: SingleAgentEpisode, t: int) -> dict[str, Any]:
    """Return the policy's input for one observation, in float32."""
    row = map_leaves(lambda leaf: torch.tensor(leaf)[None], episode.get_observations(t))
    return {"obs": map_leaves(lambda leaf: leaf.float().double() if leaf.is_floating_point() else leaf, row)}


@pytest.mark.parametrize(("observation_kind", "done"), PAIRS)
@pytest.mark.parametrize("kind", [PPO, GRPO, BC], ids=lambda kind: kind.__name__)
def test_gradient_of_batch_equals_mean_over_steps_in_any_space(kind: Any, observation_kind: str, done: str) -> None:
    observations = OBSERVATIONS[observation_kind]
    actions = spaces.Discrete(3) if done == "legal ones" else ACTIONS[done]
    squashed = done == "squashed"
    distribution = distribution_for(actions, squashed=True) if squashed else None
    generator = torch.Generator().manual_seed(1)
    policy: Any = EncoderPolicy(
        observations,
        actions,
        hidden_sizes=(6,),
        generator=generator,
        **({"distribution": distribution} if squashed else {}),
    )
    configs: dict[Any, Any] = {
        PPO: PPOConfig(clip=0.3, standardize_advantages=False),
        GRPO: GRPOConfig(group_size=2, clip=0.3),
        BC: BCConfig(entropy_coefficient=0.0),
    }
    algorithm = kind(policy, configs[kind])
    episodes = sampled(observations, actions, squashed)
    batch = doubles(algorithm.preprocess(episodes))
    policy.double()
    losses, row = [], 0
    for episode in episodes:
        for t in range(len(episode)):
            outputs = policy(one_step(episode, t))
            logp = slow_log_prob(actions, outputs["action_dist_inputs"][0], episode.get_actions(t), squashed)
            if kind is BC:
                losses.append(-logp)
            else:
                gain, ratio = batch["advantages"][row], (logp - batch["action_logp"][row]).exp()
                losses.append(-torch.min(ratio * gain, ratio.clamp(0.7, 1.3) * gain))
            if kind is PPO:
                losses[-1] = losses[-1] + 0.5 * (outputs["vf_preds"][0] - batch["value_targets"][row]) ** 2
            row += 1
    assert row == 6
    assert_gradient(algorithm, batch, torch.stack(losses).mean())
