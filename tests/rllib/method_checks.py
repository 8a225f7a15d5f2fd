"""Methods of an `Algorithm` with `install`: each works, or raises an error that says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec

from episode_runners.rllib import install
from tests.rllib.rllib_envs import Scripted, ScriptedAgents, multi_agent, ppo


def make(agents: bool) -> Any:
    """Return an algorithm with one agent and module, or with two."""
    config = multi_agent(ppo(), ScriptedAgents) if agents else ppo(Scripted)
    config.training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
    config.evaluation(evaluation_num_env_runners=0, evaluation_duration=4)
    return install(config).build_algo()


@pytest.fixture(scope="module", params=[False, True], ids=["one agent", "two agents"])
def algorithm(request: pytest.FixtureRequest) -> Iterator[Any]:
    algorithm = make(request.param)
    algorithm.train()
    yield algorithm
    algorithm.stop()


def weights_of(algorithm: Any) -> np.ndarray:
    """Return a copy of all weights of the learner."""
    state = algorithm.learner_group.get_weights()
    return np.concatenate([np.ravel(array) for name in sorted(state) for array in state[name].values()])


def steps_of(algorithm: Any) -> tuple[int, float]:
    """Return the number of iterations and of steps of a result of `train`."""
    result = algorithm.train()
    return result["training_iteration"], result["num_env_steps_sampled_lifetime"]


def check_that_training_is_undone(algorithm: Any, undo: Callable[[], Any]) -> None:
    """Check that `undo` restores weights and counts from before an iteration, and that the next one counts on."""
    before, iterations = weights_of(algorithm), algorithm.training_iteration
    trained = steps_of(algorithm)
    assert (weights_of(algorithm) != before).any()
    undo()
    np.testing.assert_array_equal(weights_of(algorithm), before)
    assert algorithm.training_iteration == iterations
    again = steps_of(algorithm)
    assert again[0] == trained[0] == iterations + 1
    assert abs(again[1] - trained[1]) <= 8  # as many steps, to a vector step of 4


def train(algorithm: Any, path: str) -> None:
    iterations, steps = steps_of(algorithm)
    next_iterations, next_steps = steps_of(algorithm)
    assert next_iterations == iterations + 1
    assert 100 <= next_steps - steps <= 104


def evaluate(algorithm: Any, path: str) -> None:
    before = weights_of(algorithm)
    assert algorithm.evaluate()["env_runners"]["num_episodes"] == 4
    np.testing.assert_array_equal(weights_of(algorithm), before)


def save_and_restore(algorithm: Any, path: str) -> None:
    saved = algorithm.save(path)
    check_that_training_is_undone(algorithm, lambda: algorithm.restore(saved))


def save_to_path_and_restore_from_path(algorithm: Any, path: str) -> None:
    algorithm.save_to_path(path)
    check_that_training_is_undone(algorithm, lambda: algorithm.restore_from_path(path))


def get_state_and_set_state(algorithm: Any, path: str) -> None:
    """RLlib's learners ignore weights that are not newer than theirs, so another algorithm gets the state."""
    other = make(algorithm.config.is_multi_agent)
    other.set_state(algorithm.get_state())
    np.testing.assert_array_equal(weights_of(other), weights_of(algorithm))
    (iterations, steps), (expected_iterations, expected_steps) = steps_of(other), steps_of(algorithm)
    assert iterations == expected_iterations
    assert abs(steps - expected_steps) <= 8
    other.stop()


def get_module(algorithm: Any, path: str) -> None:
    module_id = "q" if algorithm.config.is_multi_agent else "default_policy"
    module = algorithm.get_module(module_id)
    assert isinstance(module, RLModule)
    for name, array in algorithm.learner_group.get_weights()[module_id].items():
        if name in module.get_state():
            np.testing.assert_array_equal(module.get_state()[name], array)


def add_module_and_remove_module(algorithm: Any, path: str) -> None:
    if not algorithm.config.is_multi_agent:
        with pytest.raises(RuntimeError, match="Can't add a new RLModule to a single-agent setup"):
            algorithm.add_module("r", RLModuleSpec.from_module(algorithm.get_module()))
        with pytest.raises(KeyError, match="Module with module_id r not found"):
            algorithm.remove_module("r")
        algorithm.train()
        return
    spec = RLModuleSpec.from_module(algorithm.get_module("q"))
    algorithm.add_module("r", spec, new_agent_to_module_mapping_fn=lambda agent_id, episode, **kwargs: "r")
    assert algorithm.get_module("r") is not None
    algorithm.train()
    assert algorithm.train()["env_runners"]["num_module_steps_sampled"]["r"] > 0
    algorithm.remove_module("r", new_agent_to_module_mapping_fn=lambda agent_id, episode, **kwargs: "p")
    algorithm.train()
    counts = algorithm.train()["env_runners"]["num_module_steps_sampled"]
    assert counts["p"] > 100
    assert not counts.get("r", 0) > 0  # nan in RLlib's metrics
    assert algorithm.evaluate()["env_runners"]["num_episodes"] == 4


CASES = (
    train,
    evaluate,
    save_and_restore,
    save_to_path_and_restore_from_path,
    get_state_and_set_state,
    get_module,
    add_module_and_remove_module,
)


@pytest.mark.parametrize("case", CASES)
def test_method_works_or_raises_by_name(algorithm: Any, case: Callable[[Any, str], None], tmp_path: Any) -> None:
    case(algorithm, str(tmp_path))


@pytest.mark.parametrize("agents", [False, True])
def test_stop_closes_the_environments_and_may_be_repeated(agents: bool) -> None:
    algorithm = make(agents)
    closed: list[int] = []
    env = algorithm.env_runner.env
    close = env.close
    env.close = lambda *arguments, **options: (closed.append(1), close(*arguments, **options))
    algorithm.stop()
    algorithm.stop()
    assert closed
