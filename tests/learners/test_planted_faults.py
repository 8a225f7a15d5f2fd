"""Faults of a training run that do not raise errors, and the views that show each of them.

| fault | view |
|---|---|
| rewards shifted by one step | `explain_update`: the steps with the largest loss are first steps, not last ones |
| a filter forgotten at acting | `by("episode")`: "ratio_distance" of all; `explain_episode`: "logp_difference" |
| advantages of one agent with the wrong sign | `by("agent")`: "advantage_agreement" is negative |
| a time limit stored as a termination | `value_calibration`: "last_value" of terminated episodes; the doctor |
| a stale policy in one of four workers | `by("episode")`: "ratio_distance" of the worker's episodes |
| a wrong token in a chat template | `by("turn")`: "logp_distance" of the turns after it |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import episode_runners as runners
from connectors import compare_policies, explain_episode
from episode_learners import PPO, MLPPolicy, PPOConfig, TokenGRPO, TokenGRPOConfig, ppo_pipeline
from episode_learners.algorithms.algorithm import Algorithm
from episodes import SingleAgentEpisode
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack
from episodes.storage.ledger import Ledger
from episodes.tokens import Conversation
from tests.learners.test_token_grpo import Recurrent

ENV = gym.make("CartPole-v1")
CONFIG = PPOConfig(num_epochs=1, minibatch_size=4096, standardize_advantages=False)


def policy_of(seed: int = 0) -> MLPPolicy:
    """Return a policy whose action probabilities depend clearly on the observations."""
    generator = torch.Generator().manual_seed(seed)
    policy = MLPPolicy(ENV.observation_space, ENV.action_space, hidden_sizes=(8,), generator=generator)
    with torch.no_grad():
        for name, weights in policy.named_parameters():
            if "value" not in name and "vf" not in name:
                weights.mul_(12.0 if weights.ndim > 1 else 1.0)
    return policy


def sampled(policy: MLPPolicy, seed: int = 0, num_episodes: int = 6) -> list[SingleAgentEpisode]:
    with runners.SingleAgentEnvRunner("CartPole-v1", policy, num_envs=2, seed=seed) as runner:
        return list(runner.sample(num_episodes=num_episodes))


def explanation_of(algorithm: Algorithm, episodes: Any, folder: Path) -> Any:
    """Return the explanation of one update from the episodes."""
    from episodes.inspect import explain_update

    algorithm.measures_rows = True
    with Ledger(folder) as ledger:
        algorithm.witness = lambda batch: ledger.note(1, batch, measured=algorithm.row_measurements)
        algorithm.update(episodes)
    return explain_update(folder, 1, episodes=episodes)


def rewarded(id_: str, rewards: np.ndarray, **facts: Any) -> SingleAgentEpisode:
    observations = np.random.default_rng(len(id_)).normal(size=(len(rewards) + 1, 4)).astype(np.float32)
    actions = np.arange(len(rewards)) % 2
    outputs = {"action_logp": np.full(len(rewards), np.log(0.5), np.float32)}
    arrays = (observations, actions, rewards.astype(np.float32))
    return SingleAgentEpisode.from_arrays(
        *arrays, extra_model_outputs=outputs, id_=id_, **(facts or {"terminated": True})
    )


@pytest.mark.parametrize("is_shifted", [False, True])
def test_shifted_rewards_show_at_the_steps_with_the_largest_loss(is_shifted: bool, tmp_path: Path) -> None:
    """A reward of 50 is given at the end; shifted by one step, it arrives after the next reset."""
    rewards = np.zeros((6, 12))
    rewards[:, 0 if is_shifted else -1] = 50.0
    episodes = [rewarded(f"e{i}" + "x" * i, row) for i, row in enumerate(rewards)]
    columns = explanation_of(PPO(policy_of(), CONFIG), EpisodePack.from_episodes(episodes), tmp_path).columns
    shares = np.bincount(columns["t"], columns["share"])
    assert shares.argmax() == (0 if is_shifted else 11)


def test_filter_forgotten_at_acting_shows_in_all_ratios(tmp_path: Path) -> None:
    policy = policy_of()
    right = sampled(policy)
    filtered = []
    for episode in right:
        arrays = episode.get_observations() * np.float32(5), episode.get_actions(), episode.get_rewards()
        facts = {"id_": episode.id_, "terminated": episode.is_terminated, "truncated": episode.is_truncated}
        outputs = {"action_logp": episode.get_extra_model_outputs("action_logp")}
        filtered.append(SingleAgentEpisode.from_arrays(*arrays, extra_model_outputs=outputs, **facts))
    pipeline = ppo_pipeline(policy, CONFIG)
    for episodes, is_wrong in ((right, False), (filtered, True)):
        for episode in episodes:
            difference = explain_episode(episode, pipeline, policy).get_extra_model_outputs("learner")[
                "logp_difference"
            ]
            assert (np.abs(difference).max() > 1e-3) == is_wrong
        rows = explanation_of(PPO(policy_of(), CONFIG), episodes, tmp_path / str(is_wrong)).by("episode")
        assert all((row["ratio_distance"] > 1e-4) == is_wrong for row in rows)


def test_stale_worker_shows_in_its_episodes(tmp_path: Path) -> None:
    now, before = policy_of(0), policy_of(1)
    workers = [sampled(before if i == 2 else now, seed=i, num_episodes=3) for i in range(4)]
    stale = {episode.id_ for episode in workers[2]}
    rows = explanation_of(PPO(now, CONFIG), [e for worker in workers for e in worker], tmp_path).by("episode")
    assert {row["episode"] for row in rows if row["ratio_distance"] > 0.01} == stale


class WrongSign(PPO):
    """PPO that turns the sign of the advantages of agent "b"."""

    def preprocess(self, episodes: Any) -> dict[str, Any]:
        batch = super().preprocess(episodes)
        is_b = torch.tensor((batch.origin.agent_ids == "b").astype(bool))  # type: ignore[attr-defined]
        batch["advantages"] = torch.where(is_b, -batch["advantages"], batch["advantages"])
        return batch


@pytest.mark.parametrize("kind", [PPO, WrongSign])
def test_wrong_sign_of_one_agent_shows_by_agent(kind: type[PPO], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    episodes = [rewarded("game", rng.normal(size=20), agent_id=agent, terminated=True) for agent in ("a", "b", "c")]
    explanation = explanation_of(kind(policy_of(), CONFIG), EpisodePack.from_episodes(episodes), tmp_path)
    agreement = {row["agent"]: round(row["advantage_agreement"], 3) for row in explanation.by("agent")}
    assert agreement == {"a": 1, "b": -1 if kind is WrongSign else 1, "c": 1}
    assert {step.agent_id for step in explanation} == {"a", "b", "c"}


@pytest.mark.parametrize("is_terminated", [False, True])
def test_time_limit_as_termination_shows_in_calibration(is_terminated: bool) -> None:
    """Reward 1 per step for ever, stopped after 40 steps; the critic has learned the true value of endless episodes."""
    from episodes.inspect import value_calibration

    gamma, steps = 0.9, 40
    episodes = []
    for i in range(8):
        made = rewarded(f"e{i}", np.ones(steps), terminated=is_terminated, truncated=not is_terminated)
        facts = {"terminated": is_terminated, "truncated": not is_terminated, "id_": made.id_}
        outputs = {"values": np.full(steps, 1 / (1 - gamma))}
        arrays = made.get_observations(), made.get_actions(), made.get_rewards()
        episodes.append(SingleAgentEpisode.from_arrays(*arrays, extra_model_outputs=outputs, **facts))
    curve = value_calibration(episodes, values="values", gamma=gamma, num_bins=4)
    assert {part.ending for part in curve} == {"terminated" if is_terminated else "truncated"}
    assert sum(part.num_steps for part in curve) == 8 * steps
    errors = np.array([part.value - part.bootstrapped for part in curve])
    assert (np.abs(errors).max() > 1) == is_terminated


def test_calibration_equals_slow_sums() -> None:
    from episodes.inspect import value_calibration

    rng = np.random.default_rng(0)
    episodes, expected = [], []
    for i, facts in enumerate(({"terminated": True}, {"truncated": True}, {"id_": "cut"})):
        length = 5 + i
        values, rewards = rng.normal(size=length), rng.normal(size=length)
        arrays = np.arange(length + 1.0), np.zeros(length, int), rewards
        episodes.append(SingleAgentEpisode.from_arrays(*arrays, extra_model_outputs={"v": values}, **facts))
        ending = ("terminated", "truncated", "cut")[i]
        for t in range(length):
            realised = sum(0.8 ** (u - t) * rewards[u] for u in range(t, length))
            ends = [*rewards[:-1], rewards[-1] if i == 0 else values[-1]]
            later = sum(0.8 ** (u - t) * ends[u] for u in range(t, length))
            expected.append((ending, 1, values[t], realised, later, values[-1]))
    curve = value_calibration(episodes, values="v", gamma=0.8, num_bins=100)
    assert [part[:2] for part in sorted(curve)] == [row[:2] for row in sorted(expected)]
    np.testing.assert_allclose([part[2:] for part in sorted(curve)], [row[2:] for row in sorted(expected)])
    for bad in ({"gamma": 2.0}, {"num_bins": 0}, {"values": "w"}):
        with pytest.raises(InvalidArgument, match="value_calibration"):
            value_calibration(episodes, **({"values": "v"} | bad))


def test_policies_disagree_where_their_probabilities_differ() -> None:
    policies = [policy_of(i) for i in range(3)]
    episode = sampled(policies[0], num_episodes=1)[0]
    pipeline = ppo_pipeline(policies[0], CONFIG)
    distances = compare_policies(episode, pipeline, policies)
    with torch.no_grad():
        observations = torch.tensor(episode.get_observations()[:-1])
        each = [policy({"obs": observations})["action_dist_inputs"].softmax(-1)[:, 0].numpy() for policy in policies]
    np.testing.assert_allclose(distances, np.max(each, 0) - np.min(each, 0), atol=1e-6)
    assert compare_policies(episode, pipeline, [policies[0]] * 2).max() == 0
    with pytest.raises(InvalidArgument, match="at least two"):
        compare_policies(episode, pipeline, policies[:1])


@pytest.mark.parametrize("is_wrong", [False, True])
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_wrong_token_of_a_template_shows_in_the_turns_after_it(is_wrong: bool, layout: Any, tmp_path: Path) -> None:
    """The sampler saw token 3 between two turns, and the recorded conversation has token 4 there."""
    model = Recurrent()
    talks = []
    for k in range(2):
        talk = Conversation(f"e{k}", outputs={"logp": "f4"}, group=0)
        talk.begin([1, 2])
        context = [1, 2]
        for turn in range(2):
            ids = [5, 6, 7]
            with torch.no_grad():
                log_probs = model.logits(torch.tensor(context + ids)).log_softmax(-1)
            logp = [float(log_probs[len(context) + i - 1, token]) for i, token in enumerate(ids)]
            recorded = [4 if is_wrong else 3, 2]
            talk.turn(ids, reply_ids=recorded, reward=float(k), terminated=turn == 1, logp=np.array(logp, "f4"))
            context += [*ids, 3, 2]
        talks.append(talk.episode)
    algorithm = TokenGRPO(model, TokenGRPOConfig(layout=layout, group_size=2))
    explanation = explanation_of(algorithm, EpisodePack.from_episodes(talks), tmp_path)
    distances = {(row["episode"], row["t"]): row["logp_distance"] for row in explanation.by("turn")}
    assert set(distances) == {(f"e{k}", t) for k in range(2) for t in range(2)}
    for (_, t), distance in distances.items():
        assert (distance > 1e-3) == (is_wrong and t == 1)
    for step in explanation:
        assert step.token_id == 5 + step.token
        assert (abs(step.measurements["first_logp_difference"]) > 1e-4) == (is_wrong and step.t == 1)
