"""One number for one thing: counts, returns and log-probabilities agree in all places."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv
from typer.testing import CliRunner

from connectors.learner.generalized_advantage_estimation import standardized
from episode_learners import (
    BC,
    CQL,
    DQN,
    IMPALA,
    PPO,
    R2D2,
    SAC,
    BCConfig,
    CQLConfig,
    DQNConfig,
    LSTMPolicy,
    LSTMQPolicy,
    MLPPolicy,
    PPOConfig,
    QPolicy,
    R2D2Config,
    SACConfig,
    SACPolicy,
)
from episode_learners.algorithms.minibatches import shuffled
from episode_learners.episode_history import EpisodeHistory
from episode_runners import Hook, MultiAgentEnvRunner, SingleAgentEnvRunner, evaluate
from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode, gae
from episodes.errors import EpisodeStateError
from episodes.replay import EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer
from episodes.returns import discounted_returns, n_step_returns, vtrace
from episodes.storage import EpisodeDataset, EpisodeWriter

CARTPOLE, PENDULUM = gym.make("CartPole-v1"), gym.make("Pendulum-v1")
OF_REPLAY: dict[str, tuple[Any, Any, Any]] = {
    "BC": (BC, MLPPolicy, BCConfig(num_epochs=3, minibatch_size=8)),
    "BC, recurrent": (BC, LSTMPolicy, BCConfig(num_epochs=3, minibatch_size=4, max_seq_len=5)),
    "DQN": (DQN, QPolicy, DQNConfig(batch_size=8)),
    "CQL": (CQL, QPolicy, CQLConfig(batch_size=8)),
    "R2D2": (R2D2, LSTMQPolicy, R2D2Config(batch_size=4)),
    "SAC": (SAC, SACPolicy, SACConfig(batch_size=8)),
}


def runner_for(make_policy: Any, **options: Any) -> SingleAgentEnvRunner:
    env, name = (PENDULUM, "Pendulum-v1") if make_policy is SACPolicy else (CARTPOLE, "CartPole-v1")
    policy = make_policy(env.observation_space, env.action_space)
    return SingleAgentEnvRunner(name, policy, num_envs=2, seed=0, **options)


@pytest.mark.parametrize("num_steps", [1, 5])
@pytest.mark.parametrize("name", OF_REPLAY)
def test_update_from_takes_the_promised_number_of_gradient_steps(name: str, num_steps: int, monkeypatch: Any):
    make, make_policy, config = OF_REPLAY[name]
    runner = runner_for(make_policy)
    algorithm, buffer = make(runner.policy, config), EpisodeReplayBuffer(1000, seed=0)
    runner.sample_into(buffer, num_timesteps=400, extra_model_outputs=algorithm.stored_outputs)
    steps = []
    monkeypatch.setattr(algorithm, "after_step", lambda: steps.append(1))
    algorithm.update_from(buffer, num_steps)
    assert len(steps) == num_steps
    if make is BC:  # episodes still make `num_epochs` passes
        assert len(list(algorithm.minibatches(algorithm.preprocess(runner.sample(num_timesteps=16))))) % 3 == 0


@pytest.mark.parametrize("device", ["meta"])
@pytest.mark.parametrize("algorithm", [PPO, IMPALA, BC, DQN, SAC])
def test_learning_and_sampling_do_not_depend_on_the_default_device(device: str, algorithm: Any):
    make_policy = {DQN: QPolicy, SAC: SACPolicy}.get(algorithm, MLPPolicy)
    runner = runner_for(make_policy)
    learner: Any = algorithm(runner.policy)
    buffer = EpisodeReplayBuffer(500, seed=0)
    unseeded = SingleAgentEnvRunner(runner_for(make_policy).env, runner.policy)
    torch.set_default_device(device)
    try:
        unseeded.sample(num_timesteps=10)
        pack = runner.sample(num_timesteps=80)
        if algorithm in (DQN, SAC):
            buffer.add(pack)
            learner.update_from(buffer, 2)
        else:
            learner.update(pack)
    finally:
        torch.set_default_device(None)


def test_returns_do_not_depend_on_error_settings_of_numpy():
    rewards, values, ends = np.ones(3000, np.float32), np.ones(3001, np.float32), ([True], [False])
    packed = {"gamma": 0.1, "offsets": [0, 3000]}
    calls = {
        "discounted": lambda: discounted_returns(rewards, *ends, **packed),
        "gae": lambda: gae(rewards, values, *ends, lambda_=0.1, **packed),
        "n_step": lambda: n_step_returns(rewards, values, *ends, n_step=2000, **packed),
        "vtrace": lambda: vtrace(rewards, values, *ends, np.ones(3000, np.float32), **packed),
    }
    for name, call in calls.items():
        expected = call()
        with np.errstate(all="raise"):
            for a, b in zip(np.atleast_2d(call()), np.atleast_2d(expected), strict=True):
                assert np.array_equal(a, b), name


@pytest.mark.parametrize("num_rows", [1, 2, 128, 129, 193])
def test_minibatches_and_advantages_of_few_rows_are_finite(num_rows: int):
    assert np.isfinite(standardized(np.full(num_rows, 3.0))).all()
    batch = {"advantages": torch.arange(float(num_rows))}
    sizes = [len(part["advantages"]) for part in shuffled(batch, 128, torch.Generator())]
    assert sum(sizes) == num_rows
    assert num_rows == 1 or min(sizes) > 1
    runner = runner_for(MLPPolicy)
    one = runner.sample(num_episodes=1)[0][:1]
    metrics = PPO(runner.policy, PPOConfig(num_epochs=2)).update([one])
    assert all(np.isfinite(value) for name, value in metrics.items() if name != "explained_variance")
    assert all(bool(parameter.isfinite().all()) for parameter in runner.policy.parameters())


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_updates_without_gradients_are_refused_by_name(context: Any):
    runner = runner_for(MLPPolicy)
    pack = runner.sample(num_timesteps=16)
    ppo = PPO(runner.policy)
    before = [parameter.clone() for parameter in runner.policy.parameters()]
    with context(), pytest.raises(EpisodeStateError, match=r"PPO: an update inside torch\.no_grad"):
        ppo.update(pack)
    assert all(map(torch.equal, before, runner.policy.parameters()))
    ppo.update(pack)


@pytest.mark.parametrize("first", ["add", "sample_into"])
def test_samples_can_be_added_beside_sampling_into_a_buffer(first: str):
    runner, buffer = runner_for(MLPPolicy), EpisodeReplayBuffer(500, seed=0)
    if first == "sample_into":
        runner.sample_into(buffer, num_timesteps=20)
        buffer.add(runner.sample(num_timesteps=20, force_reset=True))
        assert buffer.extra_model_outputs == ()
    else:
        buffer.add(runner.sample(num_timesteps=20))
        runner.sample_into(buffer, num_timesteps=20)
        assert set(buffer.extra_model_outputs) == {"action_dist_inputs", "action_logp"}
    runner.sample_into(buffer, num_timesteps=20)
    assert len(buffer) >= 40


@pytest.mark.parametrize("make_policy", [MLPPolicy, SACPolicy])
@pytest.mark.parametrize("into", ["pack", "buffer", "evaluation"])
def test_the_most_likely_actions_have_log_probability_0(make_policy: Any, into: str):
    runner = runner_for(make_policy)
    if into == "evaluation":
        log_probs = evaluate(runner, num_episodes=2, seed=0).episodes.extra_model_outputs["action_logp"]
    elif into == "pack":
        log_probs = runner.sample(num_timesteps=40, explore=False).extra_model_outputs["action_logp"]
    else:
        buffer = EpisodeReplayBuffer(500, seed=0)
        runner.sample_into(buffer, num_timesteps=40, explore=False, extra_model_outputs=["action_logp"])
        log_probs = buffer.sample(20, keys=["action_logp"])["action_logp"]
    assert len(log_probs)
    assert not np.any(log_probs)


def test_lookbacks_repeat_the_log_probabilities_of_earlier_chunks():
    runner = runner_for(MLPPolicy, len_lookback_buffer=7)
    flags = np.random.default_rng(0).random(30) < 0.5
    ends: dict[Any, np.ndarray] = {}
    for explore in flags.tolist():
        for chunk in runner.sample(num_timesteps=6, explore=explore):
            whole = chunk.get_extra_model_outputs(
                "action_logp", slice(-chunk.lookback, None), neg_index_as_lookback=True
            )
            whole = np.asarray(whole)
            known = ends.get(chunk.id_, np.zeros(0))
            repeated = known[len(known) - chunk.lookback :]
            np.testing.assert_allclose(whole[: chunk.lookback], repeated, rtol=1e-6)  # of batches of another size
            assert (whole[chunk.lookback :] == 0).all() != explore or not len(chunk)
            ends[chunk.id_] = np.concatenate([known, whole[chunk.lookback :]])
    assert flags.any()
    assert not flags.all()


class RewardsApart(ParallelEnv):
    """Parallel environment that pays an agent after its end, and another one that is never observed."""

    possible_agents = ["a", "b", "c"]
    metadata = {"name": "apart"}

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-9, 9, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.t = ["a", "b"], 0
        return {name: np.zeros(1, np.float32) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.t += 1
        observed, done = list(self.agents), self.t == 5
        ended = {name: (name == "b" and self.t == 2) or done for name in observed}
        self.agents = [name for name in observed if not ended[name]]
        rewards = {"a": 1.0, "b": 10.0, "c": 100.0}
        observations = {name: np.full(1, self.t, np.float32) for name in observed}
        return observations, rewards, ended, dict.fromkeys(observed, False), {name: {} for name in observed}


@pytest.mark.parametrize("into", ["episodes", "buffer", "evaluation"])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_the_most_likely_actions_of_several_agents_have_log_probability_0(num_envs: int, into: str):
    policies = {name: MLPPolicy(spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(2)) for name in "ab"}
    mapping: Any = lambda agent_id, *_: "a" if agent_id == "a" else "b"  # noqa: E731
    runner = MultiAgentEnvRunner(RewardsApart, policies, agent_to_module_mapping_fn=mapping, num_envs=num_envs, seed=0)

    def log_probs(explore: bool) -> dict[str, np.ndarray]:
        if into == "buffer":
            buffer = MultiAgentEpisodeReplayBuffer(500, seed=0)
            buffer.add(runner.sample(num_timesteps=20, explore=explore))
            return {name: part["action_logp"] for name, part in buffer.sample(20, keys=["action_logp"]).items()}
        episodes = runner.sample(num_timesteps=20, explore=explore)
        if into == "evaluation":
            episodes = evaluate(runner, num_episodes=2, explore=explore, seed=0).episodes
        agents = [agent for episode in episodes for agent in episode.agent_episodes.values()]
        return {
            name: np.concatenate([a.get_extra_model_outputs("action_logp") for a in agents if a.module_id == name])
            for name in policies
        }

    for explore in (False, True, False):
        for values in log_probs(explore).values():
            assert len(values)
            assert (values < 0).all() if explore else (values == 0).all()


@pytest.mark.parametrize("num_timesteps", [None, 2, 3])
def test_all_rewards_of_the_environment_count_in_every_return(num_timesteps: int | None):
    """Rewards after an agent's end, and of an agent that is never observed: 5 * 1 + 5 * 10 + 5 * 100."""
    policy = MLPPolicy(spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(2))
    runner = MultiAgentEnvRunner(RewardsApart, {"p": policy}, agent_to_module_mapping_fn=lambda *_: "p", seed=0)
    returns: list[float] = []
    chunks: dict[Any, float] = {}
    while len(returns) < 2:
        count = {"num_episodes": 2} if num_timesteps is None else {"num_timesteps": num_timesteps}
        for chunk in runner.sample(**count):
            chunks[chunk.id_] = chunks.get(chunk.id_, 0.0) + chunk.get_return()
            assert chunk.get_return() == sum(chunk.get_returns().values())
            assert chunk.get_return(include_pending=False) == chunk.get_return(include_hanging_rewards=False)
        returns += runner.stats.returns.tolist()
    assert set(returns) == {555.0}
    assert list(chunks.values())[:2] == [555.0, 555.0]
    result = evaluate(runner, num_episodes=2, seed=1)
    assert [episode.get_return() for episode in result.episodes] == result.returns.tolist() == [555.0, 555.0]
    assert result.episodes[0].get_return(include_pending=False) == 25.0


@pytest.mark.parametrize("fails_in", ["hook", "environment", "nothing"])
@pytest.mark.parametrize("explore", [False, True])
def test_log_probabilities_of_a_failed_call_are_those_of_a_call_that_succeeds(fails_in: str, explore: bool):
    class Failing(Hook):
        def on_sample_end(self, runner: Any, sampled: Any) -> Any:
            raise ZeroDivisionError

    class Breaking(gym.Wrapper):
        def step(self, action: Any) -> Any:
            if len(steps) == 11:
                raise ZeroDivisionError
            steps.append(1)
            return self.env.step(action)

    steps: list[int] = []
    make = (lambda: Breaking(gym.make("CartPole-v1"))) if fails_in == "environment" else "CartPole-v1"
    env = gym.make("CartPole-v1")
    policy = MLPPolicy(env.observation_space, env.action_space)
    hooks = [Failing()] if fails_in == "hook" else []
    runner = SingleAgentEnvRunner(make, policy, num_envs=2, seed=0, hooks=hooks)
    if fails_in == "nothing":
        pack = runner.sample(num_timesteps=12, explore=explore)
    else:
        with pytest.raises(ZeroDivisionError):
            runner.sample(num_timesteps=12, explore=explore)
        pack = runner.take()
    log_probs = pack.extra_model_outputs["action_logp"]
    assert len(log_probs) >= 10
    assert (log_probs < 0).all() if explore else (log_probs == 0).all()


class Cancelling(gym.Env):
    """Environment whose rewards, 1e8, 1, -1e8, have the sum 1 in float64 and 0 in float32."""

    observation_space, action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), (1e8, 1.0, -1e8)[self.t - 1], self.t == 3, False, {}


def growing_of(episode: SingleAgentEpisode) -> SingleAgentEpisode:
    """Return an episode with the same steps in lists."""
    growing = SingleAgentEpisode()
    growing.add_env_reset(np.zeros(1, np.float32))
    for reward in episode.get_rewards():
        growing.add_env_step(np.zeros(1, np.float32), 0, reward)
    return growing


def several_of(episode: SingleAgentEpisode) -> MultiAgentEpisode:
    """Return a multi-agent episode with one agent, which has the same rewards."""
    several = MultiAgentEpisode()
    several.add_env_reset(observations={"a": np.zeros(1, np.float32)})
    for reward in episode.get_rewards():
        several.add_env_step({"a": np.zeros(1, np.float32)}, {"a": 0}, {"a": reward})
    return several


def history_of(pack: EpisodePack) -> EpisodeHistory:
    history = EpisodeHistory()
    history.add(pack)
    return history


def printed(*words: object) -> Any:
    """Return the JSON that a command prints."""
    from episodes.command.app import app

    return json.loads(CliRunner().invoke(app, [*map(str, words), "--json"]).output)


def returns_on_page(pack: EpisodePack) -> list[float]:
    from episodes.inspect.html_report import episode_data

    return [episode_data(episode)["return"] for episode in pack]


def returns_in_plot(pack: EpisodePack) -> list[float]:
    from episodes.inspect import plot_episodes

    return [line.get_ydata()[-1] for line in plot_episodes([*pack]).lines[::2]]


RETURNS: dict[str, Callable[[SingleAgentEnvRunner, EpisodePack, EpisodeDataset], Any]] = {  # of whole episodes
    "get_return": lambda runner, pack, dataset: [episode.get_return() for episode in (*pack, *dataset)],
    "get_return of lists": lambda runner, pack, dataset: [growing_of(episode).get_return() for episode in pack],
    "get_return of agents": lambda runner, pack, dataset: [several_of(episode).get_return() for episode in pack],
    "get_returns": lambda runner, pack, dataset: [several_of(episode).get_returns()["a"] for episode in pack],
    "pack": lambda runner, pack, dataset: [*pack.returns(), *dataset.pack().returns()],
    "CollectStats of sample": lambda runner, pack, dataset: runner.stats.returns,
    "CollectStats of sample_into": lambda runner, pack, dataset: (
        runner.sample_into(EpisodeReplayBuffer(100), num_timesteps=6).returns
    ),
    "evaluate": lambda runner, pack, dataset: evaluate(runner, num_episodes=2, seed=1).returns,
    "EpisodeHistory": lambda runner, pack, dataset: history_of(pack).returns,
    "metadata": lambda runner, pack, dataset: dataset.metadata["return"],
    "metadata of whole episodes": lambda runner, pack, dataset: dataset.metadata["episode_return"],
    "SQL of episodes": lambda runner, pack, dataset: dataset.sql('select "return" from episodes').table["return"],
    "SQL of steps": lambda runner, pack, dataset: dataset.sql(
        "select sum(rewards) as total from steps group by episode"
    ).table["total"],
    "episodes ls": lambda runner, pack, dataset: [row["return"] for row in printed("ls", dataset.path)],
    "episodes show": lambda runner, pack, dataset: [printed("show", dataset.path)["return"]],
    "page": lambda runner, pack, dataset: returns_on_page(pack),
    "plot": lambda runner, pack, dataset: returns_in_plot(pack),
}


@pytest.mark.parametrize("place", RETURNS)
def test_returns_are_sums_in_float64_everywhere(place: str, tmp_path: Path):
    policy = MLPPolicy(Cancelling.observation_space, Cancelling.action_space)
    runner = SingleAgentEnvRunner(Cancelling, policy, num_envs=2, seed=0)
    pack = runner.sample(num_episodes=2)
    assert pack.rewards.dtype == np.float32
    with EpisodeWriter(tmp_path / "data") as writer:
        writer.add(pack)
    returns = [float(value) for value in RETURNS[place](runner, pack, EpisodeDataset(tmp_path / "data"))]
    assert returns
    assert set(returns) == {1.0}
