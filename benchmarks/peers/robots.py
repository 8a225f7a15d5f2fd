"""Workload of rsl_rl's PPO, configured as its documentation shows, on the same simulator as this library's."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from benchmarks.device import finish
from benchmarks.figure import Timed
from benchmarks.torch_robot import HIDDEN, NUM_ACTIONS, TorchRobot


def ppo_iteration(simulator: TorchRobot, *, rows: int, epochs: int, num_minibatches: int) -> Timed:
    """Time an iteration of rsl_rl's PPO: `rows` steps of each environment, and `epochs` passes over them."""
    from rsl_rl.env import VecEnv
    from rsl_rl.runners import OnPolicyRunner
    from tensordict import TensorDict

    class Adapted(VecEnv):
        """The simulator in rsl_rl's interface."""

        num_envs, num_actions, max_episode_length = simulator.num_envs, NUM_ACTIONS, simulator.limit
        device, cfg, episode_length_buf = simulator.device, {}, simulator.ages
        observations: Any = simulator.reset()

        def get_observations(self) -> TensorDict:
            return TensorDict(self.observations, batch_size=[self.num_envs], device=self.device)

        def step(self, actions: Any) -> Any:
            self.observations, rewards, ended, extras = simulator.step(actions)
            return self.get_observations(), rewards, ended, {"time_outs": extras["time_outs"]}

    model = {"class_name": "MLPModel", "hidden_dims": list(HIDDEN), "activation": "elu"}
    settings = {
        "obs_groups": {"actor": ["policy"], "critic": ["critic"]},
        "num_steps_per_env": rows,
        "save_interval": 10**9,
        "algorithm": {
            "class_name": "PPO",
            "schedule": "fixed",
            "learning_rate": 3e-4,
            "num_learning_epochs": epochs,
            "num_mini_batches": num_minibatches,
            "entropy_coef": 0.0,
            "value_loss_coef": 0.5,
            "use_clipped_value_loss": False,
            "max_grad_norm": 0.5,
        },
        "actor": {**model, "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}},
        "critic": model,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        runner = OnPolicyRunner(Adapted(), settings, log_dir=None, device=str(simulator.device))

    def run() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            runner.learn(1)
        finish(simulator.device)

    return Timed(run)
