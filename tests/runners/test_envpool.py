"""EnvPool with its adapter in a runner: flags at a time limit, seeds, shapes and infos."""

from __future__ import annotations

from typing import Any

import envpool
import numpy as np
import pytest

from episode_learners import MLPPolicy
from episode_runners import SingleAgentEnvRunner, evaluate
from episode_runners.environments import EnvPoolVectorEnv
from episodes.errors import EpisodeStateError, InvalidArgument, MissingExtra, ShapeMismatch, UnknownKey
from tests.reference import numbered

pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered")  # of bare pools
THREAD = {"num_threads": 1}


def cartpole(num_envs: int = 8, **kwargs: Any) -> EnvPoolVectorEnv:
    return EnvPoolVectorEnv("CartPole-v1", num_envs, **{"seed": 0, "pool_kwargs": THREAD, **kwargs})


def runner_of(env: EnvPoolVectorEnv, seed: int = 0) -> SingleAgentEnvRunner:
    policy = MLPPolicy(env.single_observation_space, env.single_action_space)
    return SingleAgentEnvRunner(env, policy, seed=seed)


def has_fallen(observation: np.ndarray) -> bool:
    return bool(abs(observation[0]) > 2.4 or abs(observation[2]) > 12 * np.pi / 180)


@pytest.mark.parametrize("limit", [1, 9, 12])
def test_envpool_termination_at_time_limit_is_both(limit: int) -> None:
    pack = SingleAgentEnvRunner(cartpole(64, max_episode_steps=limit), seed=0).sample(
        num_timesteps=64 * 60, random_actions=True
    )
    ended = [episode for episode in pack if episode.is_done]
    assert all(episode.is_terminated == has_fallen(episode.get_observations(-1)) for episode in ended)
    assert all(episode.is_truncated == (len(episode) == limit) for episode in ended)
    assert any(episode.is_terminated and episode.is_truncated for episode in ended) == (limit > 1)
    assert all(len(episode) <= limit for episode in pack)


def test_envpool_episodes_equal_plain_loop() -> None:
    env = cartpole(4)
    rows: list[Any] = []
    step = env.step
    env.step = lambda actions: rows.append(actions.copy()) or step(actions)  # type: ignore[method-assign,func-returns-value]
    pack = runner_of(env).sample(num_timesteps=400)
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=4, seed=0, num_threads=1)
    infos = [[[first]] for first in pool.reset()[0]]  # of each environment: observations, episode after episode
    ended = np.zeros(4, bool)
    for actions in rows:
        observations, _, terminateds, truncateds, _ = pool.step(actions)
        for env_told, observation, begins in zip(infos, observations, ended, strict=True):
            env_told.append([observation]) if begins else env_told[-1].append(observation)
        ended = terminateds | truncateds
    expected = [np.stack(row) for rows in infos for row in rows if len(row) > 1]
    assert [e.get_observations().tolist() for e in pack] == [row.tolist() for row in expected]


def test_envpool_episodes_depend_on_the_seed() -> None:
    first, same, other_sample = (
        runner_of(cartpole(seed=None), seed).sample(num_timesteps=200, random_actions=True) for seed in (1, 1, 2)
    )
    assert np.array_equal(first.observations, same.observations)
    assert not np.array_equal(first.observations[:8], other_sample.observations[:8])


def test_envpool_pong_has_requested_infos() -> None:
    env = EnvPoolVectorEnv("Pong-v5", 2, max_episode_steps=8, info_keys=("lives",), pool_kwargs=THREAD)
    with SingleAgentEnvRunner(env, seed=0) as runner:
        pack = runner.sample(num_timesteps=40, random_actions=True)
    assert pack.observations.shape[1:] == (4, 84, 84)
    assert pack.observations.dtype == np.uint8
    assert [len(episode) for episode in pack if episode.is_truncated] == [8] * 4
    assert list(pack[0].get_infos(3)) == ["lives"]


def test_envpool_resets_environments_at_limit_together() -> None:
    env = cartpole(3, max_episode_steps=2)
    env.reset()
    for _ in range(2):
        row = env.step(np.zeros(3, np.int64))
    assert row[3].all()
    observations, rewards, terminateds, truncateds, _ = env.step(np.zeros(3, np.int64))
    assert not any(column.any() for column in (rewards, terminateds, truncateds))
    assert np.abs(observations).max() <= 0.05  # as CartPole begins


@pytest.mark.parametrize("actions", [np.zeros(9, int), np.zeros((8, 1), int), 0])
def test_envpool_actions_of_other_shape_raise(actions: Any) -> None:
    env = cartpole()
    env.reset()
    with pytest.raises(ShapeMismatch, match=r"CartPole-v1: actions have shape .* give \(8,\)"):
        env.step(actions)


def test_envpool_unsupported_options_raise() -> None:
    with pytest.raises(EpisodeStateError, match="reset"):
        cartpole().step(np.zeros(8, int))
    with pytest.raises(InvalidArgument, match="EnvPool cannot make 'NoSuchTask-v0'"):
        EnvPoolVectorEnv("NoSuchTask-v0", 2)
    with pytest.raises(InvalidArgument, match="batch_size"):
        cartpole(pool_kwargs={"batch_size": 4})
    with pytest.raises(InvalidArgument, match="at least 1"):
        cartpole(max_episode_steps=0)
    with pytest.raises(InvalidArgument, match="one int"):
        cartpole().reset(seed=list(range(8)))
    with pytest.raises(UnknownKey, match=r"no info 'speed'; it has .*elapsed_step"):
        cartpole(info_keys=("speed",)).reset()


def test_missing_envpool_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "envpool", None)
    with pytest.raises(MissingExtra, match="install the extra 'envpool'"):
        cartpole()


def test_bare_envpool_names_the_adapter() -> None:
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=2, seed=0, num_threads=1)
    with pytest.raises(InvalidArgument, match=r"EnvPoolVectorEnv\(task, num_envs\)"):
        SingleAgentEnvRunner(pool)
    pool.close()


def test_evaluate_makes_equal_envpool() -> None:
    runner = SingleAgentEnvRunner(cartpole(max_episode_steps=7, pool_kwargs={"num_threads": 1}), Under())
    result = evaluate(runner, num_episodes=6, seed=0)
    assert isinstance(runner.for_evaluation(3).env, EnvPoolVectorEnv)
    assert result.lengths.tolist() == [7] * 6
    assert numbered(evaluate(runner, num_episodes=6, seed=0).episodes) == numbered(result.episodes)


class Under:
    """Policy that pushes the cart under the pole, which stays upright for more than seven steps."""

    def __call__(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        return {"actions": (batch["obs"][:, 2] > 0).long()}
