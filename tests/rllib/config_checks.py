"""`install` and `uninstall` of configs, and a run of PPO in this process."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import ray
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner as RLlibSingleAgentEnvRunner

from episode_runners.rllib import install, uninstall
from episodes import SingleAgentEpisode
from episodes.errors import InvalidArgument, WrongType


def small(config: PPOConfig) -> PPOConfig:
    """Return the config with the settings of a small, seeded run in this process."""
    return (
        config.environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=4)
        .training(train_batch_size_per_learner=1000, minibatch_size=250, num_epochs=6, lr=3e-3, vf_loss_coeff=0.01)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[32], vf_share_layers=True))
        .debugging(seed=0)
    )


def settings_of(config: Any) -> dict[str, str]:
    """Return the settings by name, without the policies, which have no equality."""
    return {name: repr(value) for name, value in vars(config).items() if name != "policies"}


@pytest.mark.parametrize("first", [True, False])
def test_install_before_or_after_other_settings_trains(first: bool) -> None:
    config = small(install(PPOConfig())) if first else install(small(PPOConfig()))
    algorithm = config.build_algo()
    try:
        returns = [algorithm.train()["env_runners"]["episode_return_mean"]]
        while max(returns) <= 3 * returns[0] and len(returns) < 8:
            returns.append(algorithm.train()["env_runners"]["episode_return_mean"])
        episodes = algorithm.env_runner.sample(num_timesteps=20)
    finally:
        algorithm.stop()
    assert all(type(episode) is SingleAgentEpisode for episode in episodes)
    assert max(returns) > 3 * returns[0]


def test_uninstall_restores_the_config() -> None:
    config = small(PPOConfig())
    before = settings_of(config)
    assert uninstall(install(install(config))) is config
    assert type(config) is PPOConfig
    assert settings_of(config) == before
    algorithm = config.build_algo()
    assert type(algorithm.env_runner) is RLlibSingleAgentEnvRunner
    algorithm.stop()


class OwnLearner(PPOTorchLearner):
    """Learner of a user."""


@pytest.mark.parametrize("learner_class", [PPOTorchLearner, OwnLearner])
def test_copy_of_a_built_config_is_installed_again_and_uninstalled(learner_class: Any) -> None:
    connector = lambda *args: MeanStdFilter()  # noqa: E731
    config = small(PPOConfig()).env_runners(env_to_module_connector=connector).learners(learner_class=learner_class)
    before = settings_of(config)
    install(config).freeze()  # as RLlib does when it builds an algorithm
    again = install(config.copy(copy_frozen=False))
    assert again.to_dict()["env_runner_cls"].__name__ == "EpisodesEnvRunner"
    for built in (config, again):
        copied = uninstall(built.copy(copy_frozen=False))
        assert type(copied) is PPOConfig
        assert settings_of(copied) == before


def test_connector_that_is_set_in_a_copy_of_a_built_config_needs_install() -> None:
    config = install(small(PPOConfig()))
    config.freeze()
    changed = config.copy(copy_frozen=False).env_runners(env_to_module_connector=lambda *args: MeanStdFilter())
    with pytest.raises(InvalidArgument, match="env_to_module_connector was set in a copy of an algorithm's config"):
        changed.build_algo()
    algorithm = install(changed).build_algo()
    assert "MeanStdFilter" in algorithm.env_runner._env_to_module.get_state()["EnvToModuleInRLlib"]
    algorithm.stop()


def test_filter_that_rllib_cannot_make_is_named() -> None:
    connector = lambda *args: MeanStdFilter(clip_by_value=None)  # noqa: E731
    config = install(small(PPOConfig()).env_runners(env_to_module_connector=connector))
    with pytest.raises(InvalidArgument, match=r"np\.inf for no limit"):
        config.build_algo()


def test_filter_without_limit() -> None:
    connector = lambda *args: MeanStdFilter(clip_by_value=np.inf)  # noqa: E731
    algorithm = install(small(PPOConfig()).env_runners(env_to_module_connector=connector)).build_algo()
    assert algorithm.train()
    algorithm.stop()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config))])
def test_copies_of_installed_configs_are_installed(copied: Any) -> None:
    config = copied(install(small(PPOConfig())))
    assert isinstance(config, PPOConfig)
    assert config.to_dict()["env_runner_cls"].__name__ == "EpisodesEnvRunner"
    assert PPOConfig().update_from_dict(config.to_dict()).lr == 3e-3
    assert uninstall(config).env_runner_cls is None


def test_install_of_unsupported_settings_raises() -> None:
    with pytest.raises(WrongType, match="give an AlgorithmConfig"):
        install(PPO)
    with pytest.raises(InvalidArgument, match="BC is not supported; supported are PPO, APPO"):
        install(BCConfig())
    old = PPOConfig().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    with pytest.raises(InvalidArgument, match="RLlib's old API stack is not supported; enable the new one"):
        install(old)
    with pytest.raises(InvalidArgument, match="env_runner_cls=SingleAgentEnvRunner would be replaced"):
        install(PPOConfig().env_runners(env_runner_cls=RLlibSingleAgentEnvRunner))
    with pytest.raises(InvalidArgument, match=r"offline_data\(output='/tmp/x'\) would record nothing"):
        install(PPOConfig().offline_data(output="/tmp/x"))
    agents = {"policies": {"p"}, "policy_mapping_fn": lambda *_, **__: "p", "count_steps_by": "agent_steps"}
    with pytest.raises(InvalidArgument, match="count_steps_by='agent_steps'"):
        install(PPOConfig().multi_agent(**agents))
    with pytest.raises(InvalidArgument, match="add_default_connectors_to_learner_pipeline=False"):
        install(PPOConfig().training(add_default_connectors_to_learner_pipeline=False))
    for setting in (
        "add_default_connectors_to_env_to_module_pipeline",
        "add_default_connectors_to_module_to_env_pipeline",
    ):
        with pytest.raises(InvalidArgument, match=setting):
            install(PPOConfig().env_runners(**{setting: False}))
    later = install(small(PPOConfig())).env_runners(env_runner_cls=RLlibSingleAgentEnvRunner)
    with pytest.raises(InvalidArgument, match="env_runner_cls=SingleAgentEnvRunner would be replaced"):
        later.build_algo()


def test_install_in_the_config_of_an_algorithm_raises() -> None:
    config = small(PPOConfig())
    config.freeze()
    with pytest.raises(InvalidArgument, match=r"install\(config.copy\(copy_frozen=False\)\)"):
        install(config)


def test_untested_version_of_ray_gives_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.99.1")
    with pytest.warns(UserWarning, match="was tested with Ray 2.60, and this is Ray 2.99.1"):
        install(PPOConfig())
