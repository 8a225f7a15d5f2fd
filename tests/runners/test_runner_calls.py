"""Impossible calls of a runner raise an error at once, and recorded steps are kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from mpe2 import simple_spread_v3

from episode_runners import Hook, MultiAgentEnvRunner, SingleAgentEnvRunner, evaluate
from episodes.errors import EpisodeStateError, InvalidArgument, StateMismatch, UnknownKey, WrongType
from episodes.replay import EpisodeReplayBuffer
from tests.moving.environments import Always
from tests.reference import numbered, numbered_agents

HOOKS = ("on_episode_start", "on_step", "on_episode_end", "on_sample_end")


class Calling(Hook):
    """Hook that calls a function with the arguments of one of its methods, a single time."""

    def __init__(self, name: str, call: Any) -> None:
        self.call = call
        setattr(self, name, self.told)

    def told(self, runner: Any, *arguments: Any) -> None:
        call, self.call = self.call, lambda runner, *arguments: None
        call(runner, *arguments)


def cartpoles(**arguments: Any) -> SingleAgentEnvRunner:
    return SingleAgentEnvRunner("CartPole-v1", num_envs=2, seed=0, **arguments)


def spread(**arguments: Any) -> MultiAgentEnvRunner:
    return MultiAgentEnvRunner(simple_spread_v3.parallel_env, seed=0, **arguments)


CALLS = {
    "sample": lambda runner, *_: runner.sample(num_timesteps=4, random_actions=True),
    "sample_into": lambda runner, *_: runner.sample_into(EpisodeReplayBuffer(9), num_timesteps=4, random_actions=True),
    "take": lambda runner, *_: runner.take(),
}


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize(
    ("make", "call"), [*((cartpoles, call) for call in CALLS), (spread, "sample"), (spread, "take")]
)
def test_hook_sampling_with_its_runner_raises(make: Any, call: str, name: str) -> None:
    runner = make(hooks=[Calling(name, CALLS[call])])
    with pytest.raises(EpisodeStateError, match=r"while this runner samples: a hook.*evaluate\(runner\)"):
        runner.sample(num_timesteps=60, random_actions=True)
    assert (sum(map(len, runner.take())) > 0) == (name != "on_episode_start")  # then there was no step yet
    assert sum(map(len, runner.sample(num_timesteps=10, random_actions=True))) >= 10


def test_hook_may_evaluate() -> None:
    result: list[Any] = []
    hook = Calling("on_step", lambda runner, *_: result.append(evaluate(runner, num_episodes=2, seed=0)))
    policy = Always(0)
    first, second = (cartpoles(policy=policy, hooks=hooks).sample(num_timesteps=8) for hooks in ([hook], []))
    assert numbered(first) == numbered(second)
    assert result[0].num_episodes == 2


NO_POLICY = InvalidArgument, "give polic"
REJECTED: dict[str, tuple[dict[str, Any], tuple[Any, str]]] = {
    "no policy": ({"num_timesteps": 3}, NO_POLICY),
    "no policy, with a reset": ({"num_timesteps": 3, "force_reset": True}, NO_POLICY),
    "no policy, greedy": ({"num_timesteps": 3, "explore": False}, NO_POLICY),
    "no policy, episodes": ({"num_episodes": 1}, NO_POLICY),
    "both counts": ({"num_timesteps": 3, "num_episodes": 1}, (InvalidArgument, "exactly one")),
    "no steps": ({"num_timesteps": 0, "random_actions": True}, (InvalidArgument, "num_timesteps=0")),
    **{
        flag: ({"num_timesteps": 3, "random_actions": True, flag: "no"}, (WrongType, f"{flag}='no': give True or"))
        for flag in ("explore", "random_actions", "force_reset")
    },
}
OUTPUTS: dict[str, tuple[dict[str, Any], tuple[Any, str]]] = {
    "names as text": ({"random_actions": True, "extra_model_outputs": "action_logp"}, (WrongType, "in a list")),
    "no buffer": ({"random_actions": True, "explore": False, "buffer": []}, (WrongType, "cannot write into a list")),
}


PAIRS = [
    *((kind, call) for call in REJECTED for kind in ("sample", "sample of agents")),
    *(
        (kind, call)
        for call in [*REJECTED, *OUTPUTS]
        if call not in ("no policy, episodes", "both counts")
        for kind in ("sample_into", "sample_into another buffer")
    ),
]


@pytest.mark.parametrize(("kind", "call"), PAIRS)
def test_rejected_call_changes_nothing(kind: str, call: str) -> None:
    """Ongoing episodes continue as if the call had not been made."""
    options, (error, words) = (REJECTED | OUTPUTS)[call]

    def run(rejects: bool) -> Any:
        runner: Any = spread() if kind == "sample of agents" else cartpoles(len_lookback_buffer=2)
        buffer = EpisodeReplayBuffer(100, seed=0)
        into = {"buffer": buffer} if kind.startswith("sample_into") else {}
        other = {"buffer": EpisodeReplayBuffer(100)} if kind.endswith("another buffer") else into
        sample = runner.sample_into if into else runner.sample
        valid = into | {"num_timesteps": 14, "random_actions": True}
        sample(**valid)
        if rejects:
            with pytest.raises(error, match=words):
                sample(**({"num_timesteps": 3, **other} if into else {}) | options)
        result = sample(**valid)
        packs = list(buffer.iter_packs()) if into else result
        return numbered_agents(packs) if kind == "sample of agents" else numbered(packs[0] if into else packs)

    assert run(True) == run(False)


WRITES = {
    "custom_data": lambda episode: setattr(episode, "custom_data", {"a": 1}),
    "id": lambda episode: setattr(episode, "id_", "mine"),
    "flag": lambda episode: setattr(episode, "is_terminated", not episode.is_terminated),
    "observations": lambda episode: episode.set_observations(new_data=np.zeros(4, np.float32), at_indices=-1),
}


@pytest.mark.parametrize("into_replay", [False, True])
@pytest.mark.parametrize("name", HOOKS[:3])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_hook_writing_to_lost_data_raises(write: Any, name: str, into_replay: bool) -> None:
    hook = Calling(name, lambda runner, *arguments: write(arguments[-1] if arguments else runner.episodes[0]))
    runner = cartpoles(hooks=[hook])
    run = partial(runner.sample_into, EpisodeReplayBuffer(99)) if into_replay else runner.sample
    with pytest.raises(InvalidArgument, match="write only into the dict custom_data, without replacing the dict"):
        run(num_timesteps=60, random_actions=True)


@pytest.mark.parametrize("seed", [-1, 1.5, "a", [3]])
@pytest.mark.parametrize("kind", [SingleAgentEnvRunner, MultiAgentEnvRunner])
def test_runner_with_invalid_seed_raises(kind: Any, seed: Any) -> None:
    env = "CartPole-v1" if kind is SingleAgentEnvRunner else simple_spread_v3.parallel_env
    with pytest.raises(InvalidArgument, match=r"seed=.*: give an int of at least 0"):
        kind(env, seed=seed)


@pytest.mark.parametrize("seed", [np.int64(3), np.uint8(3)])
def test_runner_with_numpy_seed_equals_int_seed(seed: Any) -> None:
    packs = [
        SingleAgentEnvRunner("CartPole-v1", seed=s).sample(num_timesteps=9, random_actions=True) for s in (3, seed)
    ]
    assert numbered(packs[0]) == numbered(packs[1])
    runners = [MultiAgentEnvRunner(simple_spread_v3.parallel_env, seed=s) for s in (3, seed)]
    first, second = (numbered_agents(runner.sample(num_timesteps=3, random_actions=True)) for runner in runners)
    assert first == second


def test_invalid_counts_raise() -> None:
    for counts in ({}, {"num_timesteps": 5, "num_episodes": 5}):
        with pytest.raises(InvalidArgument, match="give exactly one of the two"):
            cartpoles().sample(**counts, random_actions=True)  # type: ignore[arg-type]
    for wrong in (True, 0, 2.0, "3"):
        with pytest.raises(InvalidArgument, match=r"num_timesteps=.*: give an int of at least 1"):
            cartpoles().sample(num_timesteps=wrong, random_actions=True)  # type: ignore[arg-type]
    for num_envs in (1.5, 0):
        with pytest.raises(InvalidArgument, match="num_envs"):
            SingleAgentEnvRunner("CartPole-v1", num_envs=num_envs)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="num_envs"):
            MultiAgentEnvRunner(simple_spread_v3.parallel_env, num_envs=num_envs)  # type: ignore[arg-type]


def test_class_as_policy_or_hook_is_named() -> None:
    with pytest.raises(WrongType, match=r"Always is a class; a policy is an object: give Always\(...\)"):
        cartpoles(policy=Always)
    with pytest.raises(WrongType, match=r"Calling is a class: give Calling\(\)"):
        cartpoles(hooks=[Calling])


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_flags_in_lists_end_episodes(mode: AutoresetMode) -> None:
    runner = cartpoles(autoreset_mode=mode)
    expected = cartpoles(autoreset_mode=mode).sample(num_timesteps=80, random_actions=True)
    step = runner.env.step

    def with_lists(actions: Any) -> Any:
        observations, rewards, terminateds, truncateds, infos = step(actions)
        return observations, rewards.tolist(), terminateds.tolist(), truncateds.tolist(), infos

    runner.env.step = with_lists  # type: ignore[method-assign]
    assert numbered(runner.sample(num_timesteps=80, random_actions=True)) == numbered(expected)


STATES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "nothing": lambda state: None,
    "text": lambda state: "x",
    "list": lambda state: list(state),
    "empty": lambda state: {},
    "no pipeline": lambda state: {name: value for name, value in state.items() if name != "env_to_module"},
    "pipeline is a list": lambda state: state | {"module_to_env": [1]},
    "pipeline of other pieces": lambda state: state | {"env_to_module": {"other": {"a": 1}}},
    "seed is text": lambda state: state | {"seed": "x"},
    "steps are text": lambda state: {name: "x" if name.endswith("steps") else value for name, value in state.items()},
    "episodes below 0": lambda state: state | {"num_episodes": -1},
}
MALFORMED = [*((cartpoles, name) for name in STATES), *((spread, name) for name in STATES)]


@pytest.mark.parametrize(("make", "name"), MALFORMED)
def test_rejected_state_changes_nothing(make: Any, name: str) -> None:
    def run(rejects: bool) -> Any:
        runner = make()
        runner.sample(num_timesteps=14, random_actions=True)
        if rejects:
            with pytest.raises((StateMismatch, InvalidArgument, UnknownKey)):
                runner.set_state(STATES[name](runner.get_state()))
        packs = runner.sample(num_timesteps=14, random_actions=True)
        return (numbered_agents if make is spread else numbered)(packs), runner.get_state()

    assert run(True) == run(False)
