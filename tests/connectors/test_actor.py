"""An `Actor` acts on single observations exactly as a runner with one environment."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from mpe2 import simple_spread_v3

from connectors import Actor, MultiAgentEnvToModule, compute_action, env_to_module_pipeline
from connectors.env_to_module import (
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    MultiAgentObservationPreprocessor,
    ObservationPreprocessor,
    PrevActionsPrevRewards,
    TransformerContext,
    time_steps,
)
from episode_learners import LSTMPolicy, MLPPolicy
from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner, evaluate
from episodes.errors import InvalidArgument, NotExportable, StateMismatch, WrongType
from episodes.tracks import nested

SEED, NUM_STEPS = 3, 12
NUMBERS = spaces.Box(-5.0, 5.0, (3,), np.float32)
NESTED = spaces.Dict(
    {"go": spaces.Discrete(3, start=-1), "how": spaces.Tuple([spaces.Box(0.0, 4.0, (2,), np.float32)])}
)


class Drift(gym.Env):
    """Environment whose observations depend on all earlier actions."""

    observation_space = NUMBERS

    def __init__(self, action_space: gym.Space) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.place = 0, self.np_random.normal(size=3).astype(np.float32)
        return self.place.copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        moved = np.resize(np.asarray(spaces.flatten(self.action_space, action)), 3)
        self.place = np.tanh(self.place[::-1] + moved + self.np_random.normal(size=3)).astype(np.float32)
        self.t += 1
        return self.place.copy(), float(self.place.sum()), False, self.t == NUM_STEPS, {}


class Doubled(ObservationPreprocessor):
    """Preprocessor that appends observation * t, so that the stored shape differs from the environment's."""

    def preprocess(self, observation: Any, episode: Any) -> Any:
        return np.concatenate([observation, observation * (0 if episode is None else episode.t)])

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> gym.Space:
        return spaces.Box(-np.inf, np.inf, (6,), np.float32)


class Reader(MLPPolicy):
    """Policy that reads all columns of a context of past steps."""

    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        parts = (
            batch["obs"].flatten(1),
            batch["past_actions"].flatten(1),
            batch["attention_mask"],
            batch["t"][:, None],
        )
        return {"action_dist_inputs": torch.cat(parts, 1)[:, : self.distribution.num_inputs]}


DISCRETE, BOX = spaces.Discrete(3), spaces.Box(-2.0, 6.0, (2,), np.float32)
KINDS = {
    "a perceptron": (MLPPolicy, [], DISCRETE),
    "a perceptron, continuous": (MLPPolicy, [], BOX),
    "a perceptron, nested actions": (MLPPolicy, [], NESTED),
    "a memory": (LSTMPolicy, [], DISCRETE),
    "a memory, nested actions": (LSTMPolicy, [], NESTED),
    "stacked frames": (MLPPolicy, [FrameStacking(num_frames=3)], BOX),
    "stacks of stacks": (MLPPolicy, [FrameStacking(num_frames=2), FrameStacking(num_frames=3)], DISCRETE),
    "previous steps": (MLPPolicy, [PrevActionsPrevRewards(n_prev_actions=2), FlattenObservations()], NESTED),
    "a memory of previous steps": (LSTMPolicy, [PrevActionsPrevRewards(), FlattenObservations()], BOX),
    "a context and the time": (Reader, [TransformerContext(k=4), time_steps], BOX),
    "a filter": (MLPPolicy, [MeanStdFilter()], BOX),
    "a preprocessor of another shape": (MLPPolicy, [Doubled()], DISCRETE),
    "a preprocessor behind stacks": (LSTMPolicy, [Doubled(), FrameStacking(num_frames=2)], BOX),
}


def made(kind: Any, observation_space: Any, action_space: gym.Space) -> Any:
    """Return a policy with random weights, whose actions depend on the observation."""
    policy = kind(observation_space, action_space)
    generator = torch.Generator().manual_seed(1)
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5, generator=generator)
    return policy


def act_by_hand(policy: Any, env: gym.Env) -> tuple[list[Any], np.ndarray]:
    actions, rewards = [], [0.0]
    (observation, _), state, ended = env.reset(seed=SEED), None, False
    while not ended:
        action, state = compute_action(policy, observation, state, reward=rewards[-1])
        observation, reward, terminated, truncated, _ = env.step(action)
        actions.append(action)
        rewards.append(float(reward))
        ended = terminated or truncated
    return actions, np.array(rewards[1:], np.float32)


@pytest.mark.parametrize(("kind", "pieces", "action_space"), KINDS.values(), ids=KINDS)
def test_actor_acts_greedily_as_a_runner(kind: Any, pieces: Any, action_space: gym.Space) -> None:
    actor = Actor(partial(made, kind), NUMBERS, action_space, pieces=pieces)
    runner = SingleAgentEnvRunner(lambda: Drift(action_space), actor, seed=SEED)
    if "MeanStdFilter" in actor.env_to_module:
        actor.env_to_module.rewrite(np.random.default_rng(0).normal(2, 3, (20, 3)).astype(np.float32))
    statistics = actor.env_to_module.get_state()
    episode = runner.sample(num_episodes=1, explore=False)[0]
    actions, rewards = act_by_hand(actor, Drift(action_space))
    assert np.array_equal(rewards, episode.get_rewards())
    for sent, recorded in zip(
        nested.leaves(nested.stack(actions)), nested.leaves(episode.get_env_actions()), strict=True
    ):
        np.testing.assert_allclose(sent, recorded, atol=1e-6)
    assert nested.equal(actor.env_to_module.get_state(), statistics)


def test_actor_of_a_policy_alone_has_default_pipelines() -> None:
    policy = made(LSTMPolicy, NUMBERS, BOX)
    episode = SingleAgentEnvRunner(lambda: Drift(BOX), policy, seed=SEED).sample(num_episodes=1, explore=False)[0]
    assert np.array_equal(act_by_hand(policy, Drift(BOX))[1], episode.get_rewards())
    assert np.array_equal(act_by_hand(Actor(policy), Drift(BOX))[1], episode.get_rewards())
    pipeline = env_to_module_pipeline(NUMBERS, BOX, pieces=[FrameStacking(num_frames=2)])
    policy = made(LSTMPolicy, pipeline.observation_space, BOX)  # a bare pipeline gets the connectors of its states
    runner = SingleAgentEnvRunner(lambda: Drift(BOX), policy, env_to_module=pipeline, seed=SEED)
    rewards = runner.sample(num_episodes=1, explore=False)[0].get_rewards()
    assert np.array_equal(act_by_hand(runner.actor, Drift(BOX))[1], rewards)


def test_actor_makes_the_policy_for_the_space_that_it_sees() -> None:
    pieces = [MeanStdFilter(), FrameStacking(num_frames=4)]
    actor = Actor(LSTMPolicy, NUMBERS, DISCRETE, pieces=pieces)
    assert actor.policy.observation_space == actor.env_to_module.observation_space != NUMBERS
    by_hand = env_to_module_pipeline(NUMBERS, DISCRETE, pieces=[MeanStdFilter(), FrameStacking(num_frames=4)])
    assert Actor(actor.policy, env_to_module=by_hand).fingerprint == actor.fingerprint
    with pytest.raises(InvalidArgument, match=r"LSTMPolicy.*does not fit"):
        Actor(LSTMPolicy(NUMBERS, DISCRETE), NUMBERS, DISCRETE, pieces=[FrameStacking(num_frames=4)])
    with pytest.raises(InvalidArgument, match="observation_space and action_space"):
        Actor(LSTMPolicy, pieces=pieces)
    with pytest.raises(WrongType, match="cannot be called"):
        Actor(3)
    with pytest.raises(WrongType, match="pieces= is one MeanStdFilter; give a list"):
        Actor(LSTMPolicy, NUMBERS, DISCRETE, pieces=MeanStdFilter())  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="act: the state is 3; give None"):
        actor.act(np.zeros(3), 3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="pieces= and env_to_module="):
        Actor(actor.policy, pieces=pieces, env_to_module=by_hand)


def test_trained_policy_with_empty_filter_is_rejected() -> None:
    actor = Actor(partial(made, MLPPolicy), NUMBERS, BOX, pieces=[MeanStdFilter()])
    with pytest.raises(StateMismatch, match="MeanStdFilter has seen no observation"):
        actor.act(np.zeros(3))
    SingleAgentEnvRunner(lambda: Drift(BOX), actor).sample(num_timesteps=20)
    empty = Actor(actor.policy, NUMBERS, BOX, pieces=[MeanStdFilter()])
    for act in (
        lambda: empty.act(np.zeros(3)),
        lambda: compute_action(empty, np.zeros(3)),
        lambda: evaluate(lambda: Drift(BOX), empty, num_episodes=1),
        lambda: evaluate(SingleAgentEnvRunner(lambda: Drift(BOX), empty), num_episodes=1),
        lambda: SingleAgentEnvRunner(lambda: Drift(BOX), empty).sample(num_timesteps=2, explore=False),
    ):
        with pytest.raises(StateMismatch, match=r"MeanStdFilter.* has seen no observation"):
            act()
    empty.env_to_module.set_state(actor.env_to_module.get_state())
    assert np.array_equal(empty.act(np.zeros(3))[0], actor.act(np.zeros(3))[0])
    evaluate(lambda: Drift(BOX), empty, num_episodes=1)


def test_episode_may_branch_from_any_state() -> None:
    policy, observations = made(LSTMPolicy, NUMBERS, BOX), np.random.default_rng(0).normal(size=(4, 3))
    _, state = compute_action(policy, observations[0])
    later, second, repeated = (compute_action(policy, observations[i], state)[1].action for i in (1, 2, 1))
    assert np.array_equal(later, repeated)
    assert not np.array_equal(later, second)
    assert state.episode.t == 0


def test_exploring_draws_by_torchs_random_numbers() -> None:
    policy = made(MLPPolicy, NUMBERS, NESTED)
    torch.manual_seed(0)
    draws = [compute_action(policy, np.zeros(3), explore=True)[0] for _ in range(20)]
    assert len({draw["go"] for draw in draws}) > 1
    assert all(NESTED.contains(draw) for draw in draws)
    torch.manual_seed(0)
    assert nested.equal(compute_action(policy, np.zeros(3), explore=True)[0], draws[0])


def test_policy_trained_in_other_pipelines_is_rejected() -> None:
    actor = Actor(partial(made, MLPPolicy), NUMBERS, DISCRETE, pieces=[FrameStacking(num_frames=2)])
    SingleAgentEnvRunner(lambda: Drift(DISCRETE), actor).sample(num_timesteps=1)
    with pytest.raises(StateMismatch, match="FrameStacking"):
        compute_action(actor.policy, np.zeros(3))
    _, state = actor.act(np.zeros(3))
    with pytest.raises(InvalidArgument, match="another actor"):
        Actor(actor.policy, NUMBERS, DISCRETE, pieces=[FrameStacking(num_frames=2)]).act(np.zeros(3), state)


def test_callable_policy_needs_spaces() -> None:
    def always_one(batch: Any, explore: bool | None = None) -> dict[str, Any]:
        return {"actions": torch.ones(len(batch["obs"]), dtype=torch.int64)}

    with pytest.raises(InvalidArgument, match="observation_space"):
        compute_action(always_one, np.zeros(3))
    assert compute_action(Actor(always_one, NUMBERS, DISCRETE), np.zeros(3))[0] == 1


def test_observation_of_other_shape_is_rejected() -> None:
    for observation in (np.zeros(4), np.zeros((2, 3)), {"place": np.zeros(3)}, None):
        with pytest.raises(InvalidArgument, match=r"act: the observation .* is not in Box"):
            compute_action(made(MLPPolicy, NUMBERS, DISCRETE), observation)


def test_function_that_makes_a_policy_is_not_a_policy() -> None:
    def make(observation_space: Any, action_space: Any) -> MLPPolicy:
        return MLPPolicy(observation_space, action_space)

    with pytest.raises(WrongType, match=r"make takes \(observation_space.*functools.partial\(make\)"):
        Actor(make, NUMBERS, DISCRETE)  # type: ignore[arg-type]
    assert isinstance(Actor(partial(make), NUMBERS, DISCRETE).policy, MLPPolicy)


def test_policy_of_other_actions_is_rejected() -> None:
    policy = MLPPolicy(NUMBERS, DISCRETE)
    for space in (BOX, spaces.Discrete(3, start=1), spaces.Discrete(4)):
        with pytest.raises(InvalidArgument, match="was created for actions"):
            Actor(policy, NUMBERS, space)


def test_runner_rejects_an_actor_of_other_spaces() -> None:
    actor = Actor(MLPPolicy, NUMBERS, BOX)
    for space in (DISCRETE, spaces.Box(-2.0, 5.0, (2,), np.float32)):
        with pytest.raises(StateMismatch, match="pipelines were made for actions Box"):
            SingleAgentEnvRunner(lambda space=space: Drift(space), actor)
    with pytest.raises(
        StateMismatch, match=r"observations Box\(\(3,\), float32\), and the environment has Box\(\(4,\)"
    ):
        evaluate("CartPole-v1", Actor(MLPPolicy, NUMBERS, spaces.Discrete(2)))


class Centered(MultiAgentObservationPreprocessor):
    def preprocess(self, observations: Any, episode: Any) -> Any:
        center = np.mean(list(observations.values()), 0)
        return {agent: (one - center).astype(np.float32) for agent, one in observations.items()}


def test_module_trained_with_joint_preprocessor_needs_it(tmp_path: Path) -> None:
    from connectors.export import export

    make_env = partial(simple_spread_v3.parallel_env, N=2, max_cycles=5)
    env = make_env()
    of_agent = env.observation_space("agent_0"), env.action_space("agent_0")
    options: dict[str, Any] = {"agent_to_module_mapping_fn": lambda agent_id, episode: "all"}
    pipelines = MultiAgentEnvToModule({"all": env_to_module_pipeline(*of_agent)}, joint=[Centered()])
    runner = MultiAgentEnvRunner(make_env, {"all": MLPPolicy(*of_agent)}, env_to_module=pipelines, seed=0, **options)
    runner.sample(num_episodes=1)
    actor = runner.actors["all"]
    for act in (
        lambda: actor.act(of_agent[0].sample()),
        lambda: evaluate(make_env, runner.actors, num_episodes=1, **options),
        lambda: Actor(actor.policy).act(of_agent[0].sample()),
    ):
        with pytest.raises(StateMismatch, match=r"joint_preprocessors had Centered\(\), which is missing here"):
            act()
    with pytest.raises(NotExportable, match="connector Centered reads the observations of all agents"):
        export(actor, tmp_path / "policy.onnx")
    assert evaluate(runner, num_episodes=1).returns.shape == (1,)


def test_actor_may_be_added_to_the_policies_of_a_runner() -> None:
    make_env = partial(simple_spread_v3.parallel_env, N=2, max_cycles=5)
    env = make_env()
    of_agent = env.observation_space("agent_0"), env.action_space("agent_0")
    runner = MultiAgentEnvRunner(make_env, {"old": Actor(MLPPolicy, *of_agent)}, seed=0)
    runner.agent_to_module_mapping_fn = lambda agent_id, episode: "old"
    runner.sample(num_episodes=1)
    added = Actor(LSTMPolicy, *of_agent, pieces=[MeanStdFilter(), FrameStacking(num_frames=2)])
    runner.policies["new"] = added
    runner.agent_to_module_mapping_fn = lambda agent_id, episode: "new" if agent_id == "agent_1" else "old"
    (episode,) = runner.sample(num_episodes=1)
    assert episode.module_for("agent_1") == "new"
    assert runner.policies["new"] is added.policy
    assert not added.env_to_module.empty_filters
