"""Runners act on whole rows with the same results as connectors that are called in sequence."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from connectors import Connector, env_to_module_pipeline, module_to_env_pipeline
from connectors.distributions import Categorical, distribution_for
from connectors.module_to_env import GetActions, TensorToNumpy
from connectors.module_to_env.pipeline import ModuleToEnvPipeline
from episode_runners import SingleAgentEnvRunner
from episodes import Columns, EpisodePack
from episodes.tracks import nested

ACTION_SPACES = [
    spaces.Discrete(4),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([3, 2]),
    spaces.Box(-2.0, 0.5, (2,), np.float32),
    spaces.Dict({"turn": spaces.Discrete(3), "push": spaces.Box(-1.0, 1.0, (2,), np.float32)}),
    spaces.Tuple((spaces.Discrete(2, start=5), spaces.MultiBinary(3))),
]
LAYOUTS = ["float32", "float64", "columns", "backwards", "read-only", "torch", "same array"]


class Odd(gym.vector.VectorEnv):
    """Environment with observations (environment, episode, step, last action) in an unusual memory layout."""

    def __init__(self, num_envs: int, action_space: gym.Space, layout: str = "float32", length: int = 5) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs, self.layout, self.length = num_envs, layout, length
        dtype = np.float64 if layout == "float64" else np.float32
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (4,), dtype)
        self.single_action_space = action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self.state, self.shown = np.zeros((num_envs, 4)), np.zeros((num_envs, 4), np.float32)
        self.done = np.zeros(num_envs, bool)

    def _observed(self) -> Any:
        state = self.state.astype(self.single_observation_space.dtype)
        if self.layout == "columns":
            return np.asfortranarray(state)
        if self.layout == "backwards":
            return state[:, ::-1].copy()[:, ::-1]
        if self.layout == "same array":
            self.shown[:] = state
            return self.shown
        state.flags.writeable = self.layout != "read-only"
        return torch.tensor(state).numpy() if self.layout == "torch" else state

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.state[:, 0] = np.arange(self.num_envs)
        self.state[:, 1] += 1
        self.state[:, 2:] = 0
        self.done = np.zeros(self.num_envs, bool)
        return self._observed(), {"age": self.state[:, 2].copy()}

    def step(self, actions: Any) -> Any:
        leaves = [
            np.asarray(leaf, np.float64).reshape(self.num_envs, -1).sum(axis=1) for leaf in nested.leaves(actions)
        ]
        self.state[:, 1] += self.done
        self.state[:, 2] = np.where(self.done, 0, self.state[:, 2] + 1)
        self.state[:, 3] = np.where(self.done, 0, sum(leaves))
        self.done = ~self.done & (self.state[:, 2] >= self.length + np.arange(self.num_envs))
        rewards = self.state[:, 3] * 0.5
        return self._observed(), rewards, self.done.copy(), np.zeros_like(self.done), {"age": self.state[:, 2].copy()}


class Marked(Categorical):
    """Connector that selects actions: the last action in half of the steps."""

    def sample(self, inputs: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        drawn = super().sample(inputs, generator)
        return torch.where(drawn % 2 == 0, drawn, torch.full_like(drawn, self.start + self.num_inputs - 1))


def patched(space: spaces.Discrete) -> Categorical:
    distribution = Categorical(int(space.n), int(space.start))
    distribution.sample = lambda inputs, generator=None: distribution.mode(-inputs)
    return distribution


class Spoiler:
    """Policy that reuses its output arrays, keeps its inputs, and overwrites the inputs one call later."""

    def __init__(self, space: gym.Space, rng: np.random.Generator) -> None:
        weights = torch.Generator().manual_seed(int(rng.integers(1000)))
        self.own = [distribution_for(space)]
        if isinstance(space, spaces.Discrete):
            start = int(space.start)
            self.own += [Categorical(int(space.n), start), Marked(int(space.n), start), patched(space)]
        self.weights = torch.randn(4, self.own[0].num_inputs, generator=weights) * 0.3
        self.dtype = torch.float64 if rng.random() < 0.2 else torch.float32
        self.outputs: Any = None
        self.kept: list[Any] = []
        self.calls, self.switches = 0, int(rng.integers(1, 6))
        self.fixed = self.own[int(rng.integers(len(self.own)))]
        self.in_between = bool(rng.random() < 0.4)
        self.adds = bool(rng.random() < 0.5)
        self.is_recurrent = bool(rng.random() < 0.3)

    @property
    def distribution(self) -> Any:
        return self.own[self.calls // self.switches % len(self.own)] if self.in_between else self.fixed

    def get_initial_state(self) -> dict[str, Any]:
        return {"h": np.full(2, 0.5, np.float32)} if self.is_recurrent else {}

    def __call__(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        self.calls += 1
        for column in self.kept:
            column.fill_(77)
        observations = batch["obs"].float().sin()
        logits = (observations @ self.weights).to(self.dtype)
        if self.outputs is None:
            self.outputs = torch.empty_like(logits)
        self.outputs.copy_(logits)
        outputs: dict[str, Any] = {"action_dist_inputs": self.outputs}
        self.kept = [batch["obs"]] if torch.is_tensor(batch["obs"]) and not self.is_recurrent else []
        if self.adds:
            outputs["vf_preds"] = observations.sum(-1)
        if self.is_recurrent:
            outputs["state_out"] = {"h": batch["state_in"]["h"] * 0.5 + observations[:, 0, :2]}
        return outputs


class OneByOne(GetActions):
    """Reference implementation of `GetActions` after its documentation."""

    def __init__(self, *, seed: int, **kwargs: Any) -> None:
        super().__init__(seed=seed, **kwargs)
        self.stream = np.random.default_rng(seed)

    def __call__(self, *, rl_module: Any = None, batch: Any, explore: bool | None = None, **kwargs: Any) -> Any:
        if "actions" not in batch:
            inputs = batch["action_dist_inputs"]
            distribution = self.distribution_of(rl_module)
            if explore is False:
                actions = distribution.mode(inputs)
            elif (
                type(distribution) is Categorical
                and "sample" not in vars(distribution)
                and inputs.dtype == torch.float32
            ):
                times = self.stream.standard_exponential(tuple(inputs.shape), np.float32)
                actions = (inputs - torch.from_numpy(np.log(times))).argmax(-1) + distribution.start
            else:
                actions = distribution.sample(inputs, self._generator_for(inputs))
            batch["actions"] = actions
            if self.adds_log_probs:
                log_probs = distribution.log_prob(inputs, actions)
                batch["action_logp"] = torch.zeros_like(log_probs) if explore is False else log_probs
        return batch


class ToNumpy(TensorToNumpy):
    """Reference conversion to numpy, called by names."""

    def __call__(self, **kwargs: Any) -> Any:
        return super().__call__(**kwargs)


class Nothing(Connector):
    """Connector of a user without any effect."""

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        return dict(batch)


class Scaled(Connector):
    """Connector that doubles the logits, which may be tensors or arrays."""

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        if "actions" not in batch:
            batch["action_dist_inputs"] = batch["action_dist_inputs"] * 2
        return batch


class Spoils(Connector):
    """Connector that overwrites an output that it has added, always the same array."""

    column = np.zeros(0)

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        if len(self.column) != len(episodes):
            self.column = np.zeros(len(episodes))
        self.column += 1
        return {**batch, "number": self.column}


def as_called_one_by_one(pipeline: ModuleToEnvPipeline, seed: int, log_probs: bool) -> ModuleToEnvPipeline:
    swapped = {
        GetActions: lambda: OneByOne(seed=seed, log_probs=log_probs, name="GetActions"),
        TensorToNumpy: lambda: ToNumpy(name="TensorToNumpy"),
    }
    pieces = [swapped.get(type(piece), lambda piece=piece: piece)() for piece in pipeline.connectors]
    return ModuleToEnvPipeline(None, pipeline.input_action_space, connectors=pieces)


def programs(seed: int, fast: bool) -> tuple[list[EpisodePack], list[bool], Spoiler]:
    """Return the samples of a random program, and whether each explored.

    Pipelines are the normal ones (`fast`), or their connectors are called in sequence.
    """
    rng = np.random.default_rng(seed)
    space = ACTION_SPACES[int(rng.integers(len(ACTION_SPACES)))] if rng.random() < 0.5 else ACTION_SPACES[seed % 2]
    env = Odd(int(rng.integers(1, 5)), space, str(rng.choice(LAYOUTS)))
    policy = Spoiler(space, rng)
    log_probs = policy.in_between or bool(rng.random() < 0.3)
    clips = bool(rng.random() < 0.5)
    pipeline = module_to_env_pipeline(
        None, space, policy=policy, seed=seed, log_probs=log_probs, normalize_actions=not clips, clip_actions=clips
    )
    if not fast:
        pipeline = as_called_one_by_one(pipeline, seed, log_probs)
    sees = env_to_module_pipeline(env.single_observation_space, space, policy=policy)
    if not fast:
        sees.prepend(Nothing())
    runner = SingleAgentEnvRunner(env, policy, env_to_module=sees, module_to_env=pipeline, seed=seed)
    packs, put_in, explored = [], [], []
    for number in range(int(rng.integers(2, 5))):
        if put_in and rng.random() < 0.4:
            pipeline.remove(put_in.pop(int(rng.integers(len(put_in)))))
        if rng.random() < 0.6:
            names = [name for name in pipeline.names if name != "RemoveTimeDimension"]
            anywhere = names[int(rng.integers(len(names)))]
            kind = [Nothing, Scaled, Spoils][int(rng.integers(3))]
            if kind is not Scaled or anywhere == "GetActions":
                pipeline.insert_before(anywhere, kind(name=f"own {number}"))
                put_in.append(f"own {number}")
        if number == 1 and rng.random() < 0.3:
            pipeline.remove("UnbatchItems")
        count = int(rng.integers(1, 40))
        explore = bool(rng.random() < 0.7)
        packs.append(runner.sample(num_timesteps=count, explore=explore))
        explored.append(explore)
    return packs, explored, policy


def columns_of(pack: EpisodePack, numbers: dict[str, int]) -> list[Any]:
    """Return all columns of a pack. `numbers` has a number for each id of earlier packs, since ids are random."""
    tracks = (pack.observations, pack.actions, pack.rewards, dict(sorted(pack.extra_model_outputs.items())))
    leaves = [leaf for track in tracks for leaf in nested.leaves(track)]
    ids = np.array([numbers.setdefault(id_, len(numbers)) for id_ in pack.ids])
    ages = [info["age"] for info in pack.infos.take(np.arange(len(pack.infos)))]
    return [*leaves, pack.lengths, pack.lookbacks, pack.t_started, pack.terminated, ids, np.array(ages)]


@pytest.mark.parametrize("first", range(30, 60, 15))
def test_random_pipelines_sample_equal_episodes_fast_and_slow(first: int) -> None:
    for seed in range(first, first + 15):
        packs, all_explored, policy = programs(seed, fast=True)
        expected, _, _ = programs(seed, fast=False)
        numbers: tuple[dict[str, int], dict[str, int]] = {}, {}
        for pack, expected_pack, explored in zip(packs, expected, all_explored, strict=True):
            assert sorted(pack.extra_model_outputs) == sorted(expected_pack.extra_model_outputs), seed
            both = columns_of(pack, numbers[0]), columns_of(expected_pack, numbers[1])
            for column, same in zip(*both, strict=True):
                assert column.dtype == same.dtype, seed
                np.testing.assert_array_equal(column, same, err_msg=f"seed {seed}")
            if not policy.in_between:
                inputs = torch.tensor(pack.extra_model_outputs[Columns.ACTION_DIST_INPUTS])
                actions = nested.map_leaves(lambda leaf: torch.tensor(np.array(leaf)), pack.actions)
                log_probs = policy.fixed.log_prob(inputs, actions).numpy()
                got = pack.extra_model_outputs[Columns.ACTION_LOGP]
                steps = [
                    at
                    for length, before in zip(pack.lengths, pack.lookbacks, strict=True)
                    for at in [False] * before + [True] * length
                ]  # a lookback may be from before an edit
                if not explored:  # the policy that acted was deterministic
                    log_probs = np.zeros_like(log_probs)
                np.testing.assert_allclose(log_probs[steps], got[steps], rtol=1e-5, atol=1e-5, err_msg=f"seed {seed}")
