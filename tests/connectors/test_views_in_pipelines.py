"""Views in pipelines: their order, the effect of other connectors, and the inputs of policies and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numbered_envs import Numbered

from connectors import (
    Connector,
    env_to_module_pipeline,
    learner_pipeline,
    multi_agent_env_to_module,
    multi_agent_learner,
)
from connectors.env_to_module import (
    FlattenObservations,
    FrameStacking,
    OneHotAgentId,
    PrevActionsPrevRewards,
    TransformerContext,
    time_steps,
)
from connectors.learner import (
    AddColumns,
    AddInfos,
    AddNextObservations,
    AddTimeDimensionAndZeroPad,
    GeneralizedAdvantageEstimation,
    VTrace,
)
from episode_learners import LSTMPolicy, MLPPolicy
from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner
from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import InvalidArgument

BOX, ACTIONS = spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(2)
PACK = EpisodePack.from_episodes(
    [
        SingleAgentEpisode.from_arrays(np.arange(4, dtype=np.float32)[:, None], [0, 1, 1], [1.0, 2.0, 3.0]),
        SingleAgentEpisode.from_arrays(np.arange(5, 7, dtype=np.float32)[:, None], [0], [4.0], terminated=True),
    ]
)


class HundredTimes(Connector):
    """Connector that multiplies rewards by 100."""

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            episode.set_rewards(new_data=100 * np.asarray(episode.get_rewards()))
        return batch


@pytest.mark.parametrize("first", ["view", "shaping"])
def test_shaped_rewards_do_not_change_previous_rewards(first: str) -> None:
    pieces = [PrevActionsPrevRewards(), HundredTimes()]
    pipeline = learner_pipeline(
        BOX, ACTIONS, pieces=pieces if first == "view" else pieces[::-1], next_observations=True
    )
    batch = pipeline(episodes=PACK)
    assert batch["rewards"].tolist() == [100, 200, 300, 400]
    assert batch["obs"]["prev_n_rewards"].tolist() == [[0], [1], [2], [0]]
    assert batch["new_obs"]["prev_n_rewards"].tolist() == [[1], [2], [3], [4]]


def test_view_after_observations_computes_all_columns() -> None:
    pipeline = learner_pipeline(BOX, ACTIONS, next_observations=True)
    pipeline.insert_after("AddObservations", FrameStacking(num_frames=2))
    pipeline.append(time_steps)
    assert pipeline.names[:3] == ("FrameStacking", "time_steps", "AddObservations")
    batch = pipeline(episodes=PACK)
    assert batch["obs"].tolist() == [[0, 0], [0, 1], [1, 2], [0, 5]]
    assert batch["new_obs"].tolist() == [[0, 1], [1, 2], [2, 3], [5, 6]]
    assert batch["t"].tolist() == [0, 1, 2, 0]
    assert batch["new_t"].tolist() == [1, 2, 3, 1]


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4])
def test_padding_among_connectors_pads_later_columns(place: int) -> None:
    pieces: list[Any] = [AddNextObservations(), AddColumns(), AddInfos(at="new_obs"), TransformerContext(k=2)]
    pieces.insert(place, AddTimeDimensionAndZeroPad(max_seq_len=2))
    batch = learner_pipeline(BOX, ACTIONS, pieces=pieces)(episodes=PACK)
    expected = learner_pipeline(
        BOX, ACTIONS, pieces=[AddInfos(at="new_obs"), TransformerContext(k=2)], next_observations=True, max_seq_len=2
    )(episodes=PACK)
    assert batch.keys() == expected.keys()
    for name, column in expected.items():
        same = batch[name].tolist() == column.tolist()
        assert same, name


class Attentive(torch.nn.Module):
    """Policy that reads the mask and the past actions, also for its values."""

    def __init__(self, num_columns: int = 4) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(num_columns, 2)

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        inputs = torch.cat([batch["obs"], batch["past_actions"], batch["attention_mask"].float()[..., None]], -1)
        return {"action_dist_inputs": self.layer(inputs).sum(1)}

    def compute_values(self, batch: Mapping[str, Any]) -> torch.Tensor:
        return self(batch)["action_dist_inputs"].sum(-1)


@pytest.mark.parametrize("returns", [GeneralizedAdvantageEstimation, VTrace])
@pytest.mark.parametrize("max_seq_len", [None, 2])
def test_view_columns_reach_values_and_importance_ratios(returns: type, max_seq_len: int | None) -> None:
    module = Attentive()
    pack = PACK.replace(extra_model_outputs={"action_logp": np.zeros(4, np.float32)})
    pipeline = learner_pipeline(
        BOX, ACTIONS, pieces=[TransformerContext(k=2)], returns=returns(), policy=module, max_seq_len=max_seq_len
    )
    if max_seq_len is None:
        batch = pipeline(rl_module=module, episodes=pack)
        assert torch.isfinite(batch["advantages"]).all()
        assert batch["attention_mask"].tolist() == [[False, True], [True, True], [True, True], [False, True]]
    else:
        padded = learner_pipeline(BOX, ACTIONS, pieces=[TransformerContext(k=2)], max_seq_len=2)(episodes=pack)
        assert padded["attention_mask"].shape == (3, 2, 2)
        assert not padded["attention_mask"][1, 1].any()


def test_policy_that_does_not_fit_views_raises_at_construction() -> None:
    gae = GeneralizedAdvantageEstimation()
    with pytest.raises(InvalidArgument, match=r"Attentive.compute_values reads column 'past_actions', which no view"):
        learner_pipeline(BOX, ACTIONS, pieces=[time_steps], returns=gae, policy=Attentive())
    with pytest.raises(InvalidArgument, match=r"Attentive.forward does not fit .* {'obs': \[2, 3, 1\],"):
        env_to_module_pipeline(BOX, ACTIONS, pieces=[TransformerContext(k=3)], policy=Attentive(num_columns=7))


def test_policy_check_uses_no_random_numbers() -> None:
    class Noisy(Attentive):
        def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
            return {"action_dist_inputs": super().forward(batch)["action_dist_inputs"] + torch.rand(1)}

    policy, before = Noisy(), torch.get_rng_state()
    env_to_module_pipeline(BOX, ACTIONS, pieces=[TransformerContext(k=3)], policy=policy)
    assert torch.equal(before, torch.get_rng_state())
    assert policy.training


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("make", [MLPPolicy, LSTMPolicy])
@pytest.mark.parametrize("num_timesteps", [4, 9, 50])
def test_learner_computes_the_log_probabilities_of_acting(mode: AutoresetMode, make: Any, num_timesteps: int) -> None:
    envs = gym.vector.SyncVectorEnv([lambda i=i: Numbered(i) for i in range(3)], autoreset_mode=mode)
    torch.manual_seed(0)
    box = envs.single_observation_space
    pieces = [PrevActionsPrevRewards(n_prev_actions=2), FlattenObservations(), FrameStacking(num_frames=3)]
    pipeline = env_to_module_pipeline(box, envs.single_action_space, pieces=pieces)
    assert pipeline.observation_space.shape == (3 * (2 + 2 * 3 + 1),)
    assert pipeline.recorded_observation_space == box
    policy = make(pipeline.observation_space, envs.single_action_space)
    runner = SingleAgentEnvRunner(envs, policy, env_to_module=pipeline, seed=0)
    returns = GeneralizedAdvantageEstimation()
    max_seq_len = 2 if make is LSTMPolicy else None
    learner = learner_pipeline(views=pipeline.views, returns=returns, policy=policy, max_seq_len=max_seq_len)
    for _ in range(4):
        batch = learner(rl_module=policy, episodes=runner.sample(num_timesteps=num_timesteps))
        inputs, actions, logp = policy(batch)["action_dist_inputs"].detach(), batch["actions"], batch["action_logp"]
        if max_seq_len is not None:
            inputs, actions, logp = (column[batch["loss_mask"]] for column in (inputs, actions, logp))
        assert len(logp) >= num_timesteps
        torch.testing.assert_close(policy.distribution.log_prob(inputs, actions), logp, rtol=0, atol=1e-6)


def test_episodes_store_observations_flattened_before_views() -> None:
    space = spaces.Dict({"a": spaces.Box(0, 1, (2,), np.float32), "b": spaces.Discrete(3)})
    pieces = [FlattenObservations(), PrevActionsPrevRewards(), FlattenObservations()]
    pipeline = env_to_module_pipeline(space, ACTIONS, pieces=pieces)
    assert pipeline.names[:3] == ("FlattenObservations", "PrevActionsPrevRewards", "FlattenObservations_2")
    assert pipeline.recorded_observation_space.shape == (5,)
    assert pipeline.observation_space.shape == (5 + 2 + 1,)


def test_bound_views_belong_to_one_space() -> None:
    views = env_to_module_pipeline(BOX, ACTIONS, pieces=[FrameStacking(num_frames=2)]).views
    assert learner_pipeline(views=views)(episodes=PACK)["obs"].shape == (4, 2)
    unbound = learner_pipeline(pieces=[FrameStacking(num_frames=2)])  # its views are bound to each pack
    assert unbound(episodes=PACK)["obs"].shape == (4, 2)
    with pytest.raises(InvalidArgument, match="the views are bound to Box"):
        learner_pipeline(spaces.Discrete(3), views=views)
    with pytest.raises(InvalidArgument, match="FrameStacking is another view"):
        learner_pipeline(views=views, pieces=[FrameStacking(num_frames=2)])


class Relay:
    """Two agents that sometimes take turns, with unique observations."""

    def __init__(self) -> None:
        self.observation_spaces = {agent: spaces.Box(-1e6, 1e6, (2,), np.float32) for agent in ("left", "right")}
        self.action_spaces = {agent: spaces.Discrete(3) for agent in self.observation_spaces}
        self.t = self.shown = 0

    def _show(self) -> dict[str, np.ndarray]:
        self.shown += 1
        agents = ("left", "right") if self.t % 3 else ("left",)
        return {agent: np.array([number, self.shown], np.float32) for number, agent in enumerate(agents)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.t = 1
        return self._show(), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.t += 1
        over = self.t == 9
        observations = (
            self._show() if not over else {agent: np.full(2, self.shown, np.float32) for agent in ("left", "right")}
        )
        return observations, dict.fromkeys(actions, float(self.t)), {"__all__": over}, {"__all__": False}, {}


class Remembering(torch.nn.Module):
    """Policy that records its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.saw: dict[tuple[float, ...], Any] = {}

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        if explore is not None:
            for row, agent in zip(batch["obs"], batch["agent_id"], strict=True):
                self.saw[tuple(row.tolist())] = agent
        return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 3)}


def test_agents_of_one_module_learn_from_their_inputs() -> None:
    def pieces() -> list[Any]:
        return [
            OneHotAgentId(["left", "right"]),
            PrevActionsPrevRewards(n_prev_actions=2),
            FlattenObservations(),
            FrameStacking(num_frames=2),
        ]

    env, policy, options = Relay(), Remembering(), {"pieces": pieces}
    box, actions = {"default_policy": env.observation_spaces["left"]}, {"default_policy": spaces.Discrete(3)}
    acting = multi_agent_env_to_module(box, actions, **options)
    runner = MultiAgentEnvRunner(env, policy, env_to_module=acting, seed=0)
    views = acting["default_policy"].views
    second_pipeline = multi_agent_learner(box, actions, views={"default_policy": views})
    num_rows = 0
    for _ in range(6):
        batch = second_pipeline(episodes=runner.sample(num_timesteps=5))["default_policy"]
        num_rows += len(batch["obs"])
        for row, agent in zip(batch["obs"], batch["agent_id"], strict=True):
            assert torch.equal(policy.saw[tuple(row.tolist())], agent)
    assert views.lookback == 3
    assert num_rows > 30
