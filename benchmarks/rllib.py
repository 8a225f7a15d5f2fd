"""Benchmarks of RLlib's PPO with `install(config)`, in CPU seconds, compared with RLlib's PPO alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.figure import Figure, Side, Size, Timed, at_most, cpu_seconds
from benchmarks.peers import RLLIB

NUM_ENVS, STEPS, MINIBATCH, EPOCHS = 8, 2000, 250, 6


def algorithm(kind: str, installed: bool, num_steps: int) -> Any:
    """Return RLlib's PPO after two training iterations, with or without `install`, on "CartPole", with "two agents" or
    with an "LSTM".
    """
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

    from episode_runners.rllib import install

    recurrent: dict[str, Any] = {"use_lstm": True, "lstm_cell_size": 32, "max_seq_len": 20} if kind == "LSTM" else {}
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS)
        .training(train_batch_size_per_learner=num_steps, minibatch_size=min(MINIBATCH, num_steps), num_epochs=EPOCHS)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[32], vf_share_layers=True, **recurrent))
        .debugging(seed=0, log_level="ERROR")
    )
    if kind == "two agents":
        config.environment(MultiAgentCartPole, env_config={"num_agents": 2}).multi_agent(
            policies={"p0", "p1"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: f"p{agent_id}"
        )
    made = (install(config) if installed else config).build_algo()
    for _ in range(2):
        made.train()
    return made


def sampling(size: Size, *, kind: str, installed: bool) -> Timed:
    """Time one `sample` of RLlib's env runner, per env step."""
    count = size(STEPS)
    runner = algorithm(kind, installed, count).env_runner
    return Timed(lambda: runner.sample(num_timesteps=count), count, clock=cpu_seconds)


def learner_pipeline(size: Size, *, kind: str, installed: bool) -> Timed:
    """Time the conversion of the episodes of one `sample` to a train batch, per step.

    RLlib's pipeline changes episodes, so each call gets copies, which are made outside of the timed part.
    """
    import copy

    count = size(STEPS)
    made = algorithm(kind, installed, count)
    learner, episodes = made.learner_group._learner, made.env_runner.sample(num_timesteps=count)

    def run(copies: list[Any]) -> object:
        connector, module = learner._learner_connector, learner.module
        return connector(rl_module=module, batch={}, episodes=copies, shared_data={}, metrics=learner.metrics)

    return Timed(run, count, fresh=lambda: copy.deepcopy(episodes), clock=cpu_seconds)


def training(size: Size, *, kind: str, installed: bool) -> Timed:
    """Time one `train()` of RLlib's algorithm, per env step."""
    count = size(STEPS)
    return Timed(algorithm(kind, installed, count).train, count, clock=cpu_seconds)


def figure(name: str, prepare: Callable[..., Timed], kind: str, limit: float) -> Figure:
    """Return a benchmark that requires the CPU time with `install` to be at most `limit` times the CPU time of RLlib
    alone.
    """
    ours, rllib_side = (partial(prepare, kind=kind, installed=installed) for installed in (True, False))
    return Figure(
        f"rllib/{name}, {kind}",
        Side("installed", ours, RLLIB),
        Side("RLlib", rllib_side, RLLIB),
        at_most(limit),
        "steps/s",
    )


FIGURES = (
    figure("sample", sampling, "CartPole", 0.30),
    figure("sample", sampling, "two agents", 0.40),
    figure("sample", sampling, "LSTM", 0.60),
    figure("learner pipeline", learner_pipeline, "CartPole", 0.5),
    figure("learner pipeline", learner_pipeline, "two agents", 0.5),
    figure("learner pipeline", learner_pipeline, "LSTM", 0.5),
    figure("train()", training, "CartPole", 0.55),
    figure("train()", training, "two agents", 0.55),
    figure("train()", training, "LSTM", 0.55),
)
