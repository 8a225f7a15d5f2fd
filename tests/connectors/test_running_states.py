"""Pieces with a running state, in all orders in which packs come: the statistics equal those of each step once.

Rows of the table are pieces, columns are orders. Pieces without a state return the same batch in every order.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from connectors import Actor, learner_pipeline
from connectors.env_to_module import (
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    NormalizeObservations,
    PrevActionsPrevRewards,
)
from connectors.learner import (
    ComputeReturnsToGo,
    GeneralizedAdvantageEstimation,
    HindsightRelabel,
    LearnerPipeline,
    NormalizeRewards,
    VTrace,
)
from episode_learners import PPO, LSTMPolicy, MLPPolicy
from episode_runners import SingleAgentEnvRunner, evaluate
from episodes.pack import EpisodePack

ENV = gym.make("CartPole-v1")
SPACES: tuple[Any, Any] = ENV.observation_space, ENV.action_space
GAMMA = 0.9


def runners_of(actor: Actor) -> list[SingleAgentEnvRunner]:
    return [SingleAgentEnvRunner("CartPole-v1", actor, num_envs=2, seed=seed, len_lookback_buffer=3) for seed in (1, 2)]


def packs_of(runners: list[SingleAgentEnvRunner]) -> list[EpisodePack]:
    """Return packs of two runners in turn, with episodes that continue over several packs, and several rewards."""
    packs = [runner.sample(num_timesteps=16) for _ in range(4) for runner in runners]
    rng = np.random.default_rng(0)
    values = {id_: rng.normal(1, 3, 500).astype(np.float32) for pack in packs for id_ in pack.ids.tolist()}
    changed = []
    for pack in packs:
        rewards = np.array(pack.rewards, np.float32)
        for i, id_ in enumerate(pack.ids.tolist()):
            first, stop = pack.offsets[i], pack.offsets[i + 1]
            start = pack.t_started[i] - pack.lookbacks[i]
            rewards[first:stop] = values[id_][start : start + stop - first]
        changed.append(pack.replace(rewards=rewards))
    return changed


def merged(packs: list[EpisodePack]) -> list[EpisodePack]:
    """Return packs concatenated in pairs, as `sample_async` of a group returns packs of several runners."""
    return [EpisodePack.concat(packs[i : i + 2]) for i in range(0, len(packs), 2)]


def shuffled(packs: list[EpisodePack]) -> list[EpisodePack]:
    return [packs[i] for i in np.random.default_rng(5).permutation(len(packs))]


ORDERS: dict[str, Callable[[list[EpisodePack]], list[EpisodePack]]] = {
    "in turn": lambda packs: packs,
    "one runner after the other": lambda packs: [*packs[::2], *packs[1::2]],
    "backwards": lambda packs: packs[::-1],
    "shuffled": shuffled,
    "each twice": lambda packs: [pack for pack in packs for _ in range(2)],
    "all again": lambda packs: [*packs, *packs],
    "merged": merged,
    "merged backwards": lambda packs: merged(packs[::-1]),
    "all at once": lambda packs: [EpisodePack.concat(packs)],
    "each chunk alone": lambda packs: [EpisodePack.from_episodes([chunk]) for pack in packs for chunk in pack],
}

ACTOR = Actor(MLPPolicy, *SPACES)
PACKS = packs_of(runners_of(ACTOR))


def step_rewards(packs: list[EpisodePack]) -> dict[Any, np.ndarray]:
    """Return the rewards of each episode's steps in order, each step once."""
    found: dict[Any, dict[int, float]] = {}
    for chunk in itertools.chain.from_iterable(packs):
        steps = found.setdefault(chunk.id_, {})
        steps |= {chunk.t_started + i: float(r) for i, r in enumerate(chunk.get_rewards())}
    return {id_: np.array([steps[t] for t in sorted(steps)]) for id_, steps in found.items()}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("keeps", ["one object", "checkpoints", "copies"])
def test_reward_statistics_count_each_step_once(order: str, keeps: str):
    pipeline = learner_pipeline(*SPACES, pieces=[NormalizeRewards(gamma=GAMMA, clip=None)])
    for pack in ORDERS[order](PACKS):
        pipeline(episodes=pack)
        if keeps == "checkpoints":
            state = pipeline.get_state()
            pipeline = learner_pipeline(*SPACES, pieces=[NormalizeRewards(gamma=GAMMA, clip=None)])
            pipeline.set_state(state)
        elif keeps == "copies":
            pipeline = copy.deepcopy(pipeline)
    returns = []
    for rewards in step_rewards(PACKS).values():
        total = 0.0
        for reward in rewards:
            total = GAMMA * total + reward
            returns.append(total)
    state = pipeline.get_state()["NormalizeRewards"]
    assert state["count"] + sum(r[5]["count"] for r in state["ranges"] if r[5]) == len(returns)
    expected = PACKS[0].rewards[PACKS[0].step_rows()] / np.std(returns)
    np.testing.assert_allclose(np.asarray(pipeline(episodes=PACKS[0])["rewards"]), expected, rtol=1e-4)


LSTM = Actor(LSTMPolicy, *SPACES)
STATELESS: dict[str, tuple[Any, Callable[[Any], LearnerPipeline]]] = {
    "GeneralizedAdvantageEstimation": (
        ACTOR,
        lambda a: learner_pipeline(*SPACES, returns=GeneralizedAdvantageEstimation(), policy=a.policy),
    ),
    "VTrace": (ACTOR, lambda a: learner_pipeline(*SPACES, returns=VTrace(), policy=a.policy)),
    "ComputeReturnsToGo": (ACTOR, lambda _: learner_pipeline(*SPACES, returns=ComputeReturnsToGo(allow_cut=True))),
    "FrameStacking": (ACTOR, lambda _: learner_pipeline(*SPACES, pieces=[FrameStacking(num_frames=3)])),
    "PrevActionsPrevRewards": (
        ACTOR,
        lambda _: learner_pipeline(
            *SPACES, pieces=[PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=2), FlattenObservations()]
        ),
    ),
    "recurrent states": (LSTM, lambda a: learner_pipeline(*SPACES, policy=a.policy, max_seq_len=5)),
}


@pytest.mark.parametrize("piece", STATELESS)
def test_pieces_without_a_state_return_one_batch_for_a_pack_in_every_order(piece: str):
    actor, make = STATELESS[piece]
    packs = PACKS if actor is ACTOR else packs_of(runners_of(actor))
    module = None if piece in ("FrameStacking", "PrevActionsPrevRewards") else actor.policy
    alone = [make(actor)(rl_module=module, episodes=pack) for pack in packs]
    for order in ("in turn", "backwards", "shuffled", "each twice"):
        pipeline = make(actor)
        for pack in ORDERS[order](packs):
            batch = pipeline(rl_module=module, episodes=pack)
            expected = alone[next(i for i, known in enumerate(packs) if known is pack)]
            assert batch.keys() == expected.keys()
            for name in {"obs", "rewards", "advantages", "value_targets", "returns_to_go"} & batch.keys():
                np.testing.assert_allclose(batch[name], expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("piece", [MeanStdFilter, NormalizeObservations])
@pytest.mark.parametrize("between", ["nothing", "evaluation", "learning", "learning twice", "greedy sample"])
def test_observation_statistics_come_from_sampling_alone(piece: Any, between: str):
    """Statistics count the observations that runners recorded, whatever reads packs in between."""
    actor = Actor(MLPPolicy, *SPACES, pieces=[piece()])
    first, second = runners_of(actor)
    learner = learner_pipeline(observation_space=actor.recorded_observation_space, views=actor.views)
    counts = []
    for runner in (first, second, first):
        before = _count(actor)
        pack = runner.sample(num_timesteps=16)
        counts.append(_count(actor) - before)
        if between == "evaluation":
            evaluate(runner, num_episodes=1, seed=0)
        elif between.startswith("learning"):
            for _ in range(1 + between.endswith("twice")):
                learner(episodes=pack)
        elif between == "greedy sample":
            runner.sample(num_timesteps=4, explore=False)
        assert _count(actor) - before == counts[-1]
    assert all(count >= 16 for count in counts)


def _count(actor: Actor) -> int:
    state = next(iter(actor.env_to_module.get_state().values()))
    return sum(part.get("", {}).get("count", 0) for part in (state["synced"], state["own"]))


@pytest.mark.parametrize("seen_again", [False, True])
def test_ppo_with_normalized_rewards_may_see_a_pack_before_its_update(seen_again: bool):
    actor = Actor(MLPPolicy, *SPACES)
    pieces = [NormalizeRewards(gamma=GAMMA)]
    ppo = PPO(
        actor,
        pipeline=learner_pipeline(
            *SPACES, pieces=pieces, returns=GeneralizedAdvantageEstimation(), policy=actor.policy
        ),
    )
    for pack in PACKS[:4]:
        if seen_again:
            ppo.preprocess(pack)
        ppo.update(pack)
    state = ppo.pipeline.get_state()["NormalizeRewards"]
    assert state["count"] == sum(pack.num_steps for pack in PACKS[:4])


def test_relabelling_continues_its_random_numbers_from_a_state():
    first, second = (HindsightRelabel(compute_reward=lambda *_: 0.0, seed=3) for _ in range(2))
    first._generator.random(5)
    second.set_state(copy.deepcopy(first.get_state()))
    assert first._generator.random() == second._generator.random()
