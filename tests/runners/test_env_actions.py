"""Episodes store the policy's actions, and return the actions that were sent to the environment."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from connectors import Actor, Connector, env_to_module_pipeline, module_to_env_pipeline
from connectors.multi_agent_pipelines import multi_agent_module_to_env
from episode_learners import MLPPolicy, SACPolicy
from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner
from episodes import EpisodePack, PolicyBox, SingleAgentEpisode, pack_agents
from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter, space_json
from episodes.tracks import nested
from episodes.tracks.policy_box import env_space_of, policy_space_of
from tests.agents_together import Together

WIDE = spaces.Box(np.array([-3, 0, -np.inf], np.float32), np.array([3, 10, 1], np.float32))
SPACES = {
    "box": spaces.Box(-3, 3, (2,), np.float32),
    "several bounds": WIDE,
    "doubles": spaces.Box(-3, 3, (2,), np.float64),
    "integers": spaces.Box(-4, 9, (2,), np.int64),
    "dict": spaces.Dict(move=WIDE, jump=spaces.Discrete(3), turn=spaces.Tuple([spaces.Box(0, 1, (1,))])),
}
MAPPINGS = {"normalize": {}, "clip": {"normalize_actions": False, "clip_actions": True}}


class Walk(gym.Env):
    """Environment whose observation is the running sum of its actions. Actions outside the space are errors."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def __init__(self, action_space: spaces.Space) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=2)
        self.left = int(self.np_random.integers(5, 40))
        return self.state.copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        total = sum(float(np.sum(leaf)) for leaf in nested.leaves(action))
        self.state = 0.9 * self.state + [total, np.tanh(total)]
        self.left -= 1
        return self.state.copy(), total, self.left == 0, False, {}


class Levels(Connector):
    """Connector that computes the environment's actions."""

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        batch["actions_for_env"] = nested.map_leaves(lambda leaf: np.sign(leaf).astype(leaf.dtype), batch["actions"])
        return batch


def replayed(episode: SingleAgentEpisode, space: spaces.Space) -> list[Any]:
    """Return the observations of a new environment that starts at the episode's state and gets its actions."""
    env = Walk(space)
    env.reset(seed=0)
    env.state = np.asarray(episode.get_observations(0), np.float64)
    actions = episode.get_env_actions()
    return [env.step(nested.take(actions, t))[0] for t in range(len(episode))]


def items_of(batch: Any) -> list[Any]:
    return [nested.take(batch, i) for i in range(len(nested.first_leaf(batch)))]


def standard_normal(batch: Any, explore: bool) -> dict[str, Any]:
    return {"actions": torch.randn(len(batch["obs"]), 2)}


def walks(
    space: Any, *, seed: int = 1, num_timesteps: int = 200, random_actions: bool = False, **acting: Any
) -> EpisodePack:
    kind = SACPolicy if acting.pop("squashes", False) else MLPPolicy
    policy: Any = standard_normal if space is SPACES["integers"] else kind(Walk.observation_space, space)
    pipeline = module_to_env_pipeline(Walk.observation_space, space, policy=policy, **acting)
    runner = SingleAgentEnvRunner(lambda: Walk(space), policy, num_envs=3, module_to_env=pipeline, seed=seed)
    assert runner.module_to_env is pipeline
    return runner.sample(num_timesteps=num_timesteps, random_actions=random_actions)


@pytest.mark.parametrize("random_actions", [False, True], ids=["policy", "random"])
@pytest.mark.parametrize(
    ("space", "acting"),
    [
        *((space, acting) for space in SPACES.values() for acting in MAPPINGS.values()),
        (SPACES["box"], {"pieces": [Levels()]}),
        (SPACES["box"], {"squashes": True}),
    ],
    ids=[*(f"{name}-{mapping}" for name in SPACES for mapping in MAPPINGS), "box-recorded", "box-squashed"],
)
def test_env_actions_replayed_reproduce_the_observations(space: Any, acting: Any, random_actions: bool) -> None:
    pack = walks(space, random_actions=random_actions, **acting)
    assert pack.env_action_space == space
    for episode in pack:
        assert all(episode.action_space.contains(item) for item in items_of(episode.get_actions()))
        assert all(space.contains(item) for item in items_of(episode.get_env_actions()))
        np.testing.assert_allclose(replayed(episode, space), episode.get_observations()[1:], atol=1e-5)


@pytest.mark.parametrize("acting", [{}, {"pieces": [Levels()]}], ids=["normalized", "recorded"])
def test_env_actions_travel_with_episodes_and_packs(acting: Any, tmp_path: Path) -> None:
    from episodes.transport import wire

    pack = walks(SPACES["box"], num_timesteps=60, **acting)
    sent = {episode.id_: episode.get_env_actions() for episode in pack}

    def check(episodes: Any, start: int = 0) -> None:
        for episode in episodes:
            assert episode.env_action_space == SPACES["box"]
            first = episode.t_started
            expected = sent[episode.id_][first : first + len(episode)]
            np.testing.assert_array_equal(episode.get_env_actions(), expected)
            assert len(expected)

    whole = max(pack, key=len)
    growing = SingleAgentEpisode.from_state(whole.get_state())
    growing.to_numpy()
    grown = SingleAgentEpisode(id_=whole.id_, action_space=whole.action_space)
    grown.add_env_reset(whole.get_observations(0))
    for t in range(6):
        outputs = {key: track.get(t) for key, track in whole.extra_model_outputs.items()}
        step = whole.get_observations(t + 1), whole.get_actions(t), whole.get_rewards(t)
        grown.add_env_step(*step, extra_model_outputs=outputs)
        if t == 2:
            head, grown = grown, grown.cut(2)
    assert np.array_equal(grown.get_env_actions(-1), sent[whole.id_][5])
    assert np.array_equal(grown.get_env_actions([-1, -2], neg_index_as_lookback=True), sent[whole.id_][[2, 1]])
    check([head, grown, growing, whole[1:5], pickle.loads(pickle.dumps(whole))])
    head.concat_episode(grown)
    check(
        [
            head,
            *pickle.loads(pickle.dumps(pack, 5)),
            *pack[:1],
            *pack.select([0]),
            *EpisodePack.concat([pack[:2], pack[2:]]),
        ]
    )
    np.testing.assert_array_equal(EpisodePack.from_episodes([whole]).get_env_actions(), sent[whole.id_])
    message = wire.encoded([pack], wire.Schemas())
    check(wire.decoded(wire.layouts_of(message.schema), message.parts())[0])
    with EpisodeWriter(tmp_path / "data") as writer:
        writer.add(pack)
    dataset = EpisodeDataset(tmp_path / "data")
    assert dataset.action_space == pack.action_space
    check(dataset)
    buffer = EpisodeReplayBuffer(200)
    buffer.add(pack)
    check(buffer.iter_episodes())
    restored = EpisodeReplayBuffer(200)
    restored.set_state(buffer.get_state())
    check(restored.iter_packs().__next__())
    with pytest.raises(Exception, match="action_space"):
        buffer.add(walks(SPACES["box"], seed=2, num_timesteps=6, **MAPPINGS["clip"]))


@pytest.mark.parametrize("random_actions", [False, True], ids=["policy", "random"])
@pytest.mark.parametrize("mapping", [*MAPPINGS, "recorded"])
def test_env_actions_of_several_agents_are_those_that_were_sent(mapping: str, random_actions: bool) -> None:
    policies = {"default_policy": MLPPolicy(Walk.observation_space, SPACES["box"])}
    pieces = [Levels()] if mapping == "recorded" else []
    spaces_of_module = {"default_policy": Walk.observation_space}, {"default_policy": SPACES["box"]}
    acting = multi_agent_module_to_env(*spaces_of_module, pieces=pieces, **MAPPINGS.get(mapping, {}))
    env: Any = walkers()
    runner = MultiAgentEnvRunner(lambda: env, policies, module_to_env=acting, seed=0)
    chunks = [*runner.sample(num_timesteps=30, random_actions=random_actions), *runner.sample(num_timesteps=20)]
    sent = {agent: np.array(walk.sent) for agent, walk in env.envs.items()}
    for chunk in chunks:
        for agent, actions in chunk.get_env_actions().items():
            first = chunk.env_t_started
            np.testing.assert_array_equal(actions, sent[agent][first : first + len(actions)])
        plain = chunk.with_env_actions()
        assert plain.action_space == dict.fromkeys("ab", SPACES["box"])
        for agent, actions in plain.get_actions().items():
            np.testing.assert_array_equal(actions, chunk.get_env_actions()[agent])
        for pack in pack_agents([chunk]):
            assert np.array_equal(pack.get_env_actions(), pack.with_env_actions().actions)


SMALL_INTEGERS = {
    "int32": spaces.Discrete(3, start=2, dtype=np.int32),
    "uint8": spaces.Discrete(3, dtype=np.uint8),
    "several": spaces.MultiDiscrete([2, 3], dtype=np.int32, start=[-1, 1]),
    "bits": spaces.MultiBinary(2),
    "parts": spaces.Dict(a=spaces.Discrete(2, dtype=np.int16), b=spaces.Tuple([spaces.Box(-2, 2, (1,))])),
}


@pytest.mark.parametrize("mapping", ["normalize", "clip", "none"])
@pytest.mark.parametrize("way", ["runner", "replay", "agents", "actor"])
@pytest.mark.parametrize("name", SMALL_INTEGERS)
def test_sent_integers_have_the_dtype_of_their_space(name: str, way: str, mapping: str) -> None:
    space, arguments = SMALL_INTEGERS[name], MAPPINGS.get(mapping, {"normalize_actions": False})
    if name == "parts" and mapping == "none":
        arguments = {**arguments, "clip_actions": True}  # a normal distribution leaves the bounds
    policy = MLPPolicy(Walk.observation_space, space)
    pipeline = module_to_env_pipeline(Walk.observation_space, space, policy=policy, **arguments)
    if way == "agents":
        modules = {"default_policy": Walk.observation_space}, {"default_policy": space}
        acting = multi_agent_module_to_env(*modules, **arguments)
        env: Any = Together({agent: Walk(space) for agent in "ab"})
        assert MultiAgentEnvRunner(lambda: env, policy, module_to_env=acting, seed=0).sample(num_timesteps=20)
    elif way == "actor":
        preprocessing = env_to_module_pipeline(Walk.observation_space, space)
        actor = Actor(policy, env_to_module=preprocessing, module_to_env=pipeline)
        assert all(space.contains(actor.act(np.zeros(2))[0]) for _ in range(5))
    else:
        runner = SingleAgentEnvRunner(lambda: Walk(space), policy, num_envs=2, module_to_env=pipeline, seed=0)
        if way == "runner":
            assert len(runner.sample(num_timesteps=20))
        else:
            runner.sample_into(EpisodeReplayBuffer(100), num_timesteps=20)


class Endless(Walk):
    """`Walk` that never ends, and records its actions."""

    def __init__(self, action_space: spaces.Space) -> None:
        super().__init__(action_space)
        self.sent: list[Any] = []

    def reset(self, **options: Any) -> Any:
        row = super().reset(**options)
        self.left = -1
        return row

    def step(self, action: Any) -> Any:
        self.sent.append(np.array(action))
        return super().step(action)


def walkers() -> Together:
    return Together({agent: Endless(SPACES["box"]) for agent in "ab"})


def test_random_actions_are_uniform_in_policy_units() -> None:
    policies = {"default_policy": MLPPolicy(Walk.observation_space, SPACES["box"])}
    (chunk,) = MultiAgentEnvRunner(walkers, policies, seed=0).sample(num_timesteps=200, random_actions=True)
    for actions in (walks(SPACES["box"], random_actions=True).actions, chunk.get_actions()["a"]):
        assert np.abs(actions).max() <= 1
        assert actions.std() == pytest.approx(1 / np.sqrt(3), abs=0.05)


def test_env_actions_of_hand_made_episodes_are_the_stored_ones() -> None:
    space = SPACES["box"]
    episode = SingleAgentEpisode.from_arrays(np.zeros((3, 1)), np.full((2, 2), 2.5), np.ones(2), action_space=space)
    assert episode.with_env_actions() is episode
    assert np.array_equal(episode.get_env_actions(), episode.get_actions())
    scaled = episode.with_policy_actions("normalize")
    assert scaled.action_space == PolicyBox(space, "normalize")
    np.testing.assert_allclose(scaled.get_actions(), 2.5 / 3, rtol=1e-6)
    np.testing.assert_allclose(scaled.get_env_actions(), 2.5, rtol=1e-6)
    assert scaled.with_policy_actions("normalize") is scaled
    with pytest.raises(InvalidArgument, match="no action_space"):
        SingleAgentEpisode.from_arrays(np.zeros(2), np.zeros((1, 2)), np.ones(1)).with_policy_actions()


def test_with_env_actions_drops_outputs_of_policy_actions() -> None:
    pack = walks(SPACES["dict"], num_timesteps=30)
    assert "action_logp" in pack.extra_model_outputs
    plain = pack.with_env_actions()
    assert plain.action_space == SPACES["dict"]
    assert not {"action_logp", "action_dist_inputs"} & plain.extra_model_outputs.keys()
    assert nested.equal(plain.actions, pack.get_env_actions())


def test_env_actions_that_were_not_recorded_raise() -> None:
    pack = walks(SPACES["box"], num_timesteps=30, pieces=[Levels()])
    outputs = {key: data for key, data in pack.extra_model_outputs.items() if key != "actions_for_env"}
    with pytest.raises(EpisodeStateError, match="sample_into"):
        pack.replace(extra_model_outputs=outputs).get_env_actions()


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_policy_space_differs_by_mapping_and_survives_json(space: Any) -> None:
    made = {mapping: policy_space_of(space, mapping) for mapping in ("normalize", "clip", "none", "recorded")}
    assert sum(left == right for left in made.values() for right in made.values()) == len(made)
    assert all(left != space for left in made.values())
    for left in made.values():
        assert space_json.from_json(space_json.to_json(left, "")) == left
        assert env_space_of(left) == space


@pytest.mark.parametrize("name", ["box", "dict"])
@pytest.mark.parametrize("kind", ["dict", "tuple", "array"])
def test_actions_nested_unlike_action_space_are_rejected_by_name(name: str, kind: str) -> None:
    wrong = {"dict": {"x": np.zeros((1, 3))}, "tuple": (np.zeros((1, 3)),), "array": np.zeros((1, 3))}[kind]
    for mapping in (*MAPPINGS.values(), {"normalize_actions": False}):
        runner = SingleAgentEnvRunner(
            lambda: Walk(SPACES[name]),
            policy=lambda batch, explore: {"actions": wrong},
            module_to_env=module_to_env_pipeline(None, SPACES[name], **mapping),
        )
        with pytest.raises(ShapeMismatch, match="the policy's actions"):
            runner.sample(num_timesteps=2)
