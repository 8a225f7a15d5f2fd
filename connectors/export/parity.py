"""`check_parity`: runs an actor and its exported file on the same observations, and compares their actions."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import ArrayLike

from connectors.actor import Actor
from connectors.export.actor_graph import Noise, parts_of_user
from connectors.export.serve import ServedPolicy
from connectors.module_to_env import GetActions
from connectors.policy import distribution_of
from connectors.ragged_checks import check_all_of_one_shape
from episodes.columns import Columns
from episodes.errors import InvalidArgument, NotExportable
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.spaces import empty_items

if TYPE_CHECKING:
    from connectors.actor import ActingState

__all__ = ["Parity", "check_parity"]

_NUM_ENVS = 2  # environments that the file acts in together; the actor acts in each alone
_EPISODE = 25  # steps of an episode of sampled observations, at most


@dataclass(frozen=True, slots=True)
class Parity:
    """Result of `check_parity`: the number of compared steps and the largest difference between actor and file.

    Attributes:
        num_steps: the number of compared steps.
        num_episodes: the number of episodes that these steps are of.
        num_ties: steps whose discrete actions differ, because the best choices are equal up to rounding.
        largest_difference: of distribution inputs and continuous actions, relative to their largest magnitude.
    """

    num_steps: int
    num_episodes: int
    num_ties: int
    largest_difference: float


Step = tuple[Any, float, bool]  # observation, reward of the last action, whether an episode begins


def check_parity(
    path: Path, actor: Actor, source: Source, *, num_steps: int, tolerance: float, explore: bool, seed: int
) -> Parity:
    """Run an actor and its exported file on the same observations for `num_steps` steps, and raise an error if their
    outputs differ.

    Args:
        source: where observations come from: see `export`.

    Raises:
        TrackMismatch: `source` is episodes with ragged tracks.
        NotExportable: the first step that differs by more than `tolerance`.
    """
    with _explained(actor):
        served = ServedPolicy(path, _NUM_ENVS)
    actor = _without_own_seed(actor)
    streams = [
        _make_stream(actor, source, np.random.default_rng([seed, env]), seed + env, env) for env in range(_NUM_ENVS)
    ]
    generator = np.random.default_rng(seed)
    compared = _Comparison(actor, tolerance)
    states: list[Any] = [None] * _NUM_ENVS
    actions: list[Any] = [None] * _NUM_ENVS
    num_episodes = 0
    for step in range(max(num_steps // _NUM_ENVS, 1)):
        steps = [stream.send(action) for stream, action in zip(streams, actions, strict=True)]
        first: Any = np.array([recorded[2] for recorded in steps])
        states = [None if begins else state for begins, state in zip(first, states, strict=True)]
        num_episodes += int(first.sum())
        noise = _noise_of(served, generator) if served.about["noise"] else None
        rewards = np.array([recorded[1] for recorded in steps], np.float32)
        observations = _stack_observations(actor, [recorded[0] for recorded in steps])
        with _explained(actor):
            file_actions = served(observations, rewards, first=first, noise=noise)
        for env, (observation, reward, _) in enumerate(steps):
            with Noise(None if noise is None else torch.from_numpy(noise[env : env + 1])):
                actions[env], states[env] = actor.act(observation, states[env], reward=reward, explore=explore)
            if not compared.add(step, env, states[env], actions[env], nested.take(file_actions, env), served.outputs):
                actions[env], states[env] = None, None  # after a tie both begin a new episode
    for stream in streams:
        stream.close()
    return Parity(compared.num_steps, num_episodes, compared.num_ties, compared.largest)


@contextmanager
def _explained(actor: Actor) -> Iterator[None]:
    """Context manager that converts errors of onnxruntime to `NotExportable`, with the names of the user's parts."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        raise NotExportable(
            f"onnxruntime cannot run the file: {error}. It has fewer operations for float64 and integers than for "
            f"float32: use astype(np.float32) before the operation. It may be in a part of yours; there is "
            f"{_suspects(actor)}"
        ) from error


def _suspects(actor: Actor) -> str:
    return ", ".join(parts_of_user(actor)) or "none of them: all parts are of this library"


def _stack_observations(actor: Actor, observations: list[Any]) -> Any:
    """Return observations as a batch. Raise `InvalidArgument` that names `check_on` if the environment or the episodes
    do not fit the actor.
    """
    space = actor.observation_space
    expected = nested.map_leaves(np.shape, nested.take(empty_items(space, 1), 0))
    for observation in observations:
        try:
            actual = nested.map_leaves(np.shape, observation)
        except (TypeError, ValueError):
            actual = None
        if actual != expected:
            raise InvalidArgument(
                f"export: check_on has the observation {nested.describe(observation)}, and the actor reads {space}; "
                "give the actor's own environment, or episodes of it"
            )
    return nested.stack(observations)


class _Comparison:
    """Step-by-step comparison of the outputs of an actor and its file. The first difference raises an error."""

    def __init__(self, actor: Actor, tolerance: float) -> None:
        self.actor, self.tolerance = actor, tolerance
        self.num_steps, self.num_ties, self.largest = 0, 0, 0.0
        self._scale = 1.0

    def add(
        self, step: int, env: int, state: ActingState, action: object, file_action: object, outputs: dict[str, Any]
    ) -> bool:
        """Compare the actor's and the file's outputs in one step, and raise an error if they differ.

        Args:
            step, env: indices of the step and of the stream of episodes, for errors.
            state: the actor's state after the step, with its outputs.
            file_action: the file's action.
            outputs: the file's outputs.

        Raises:
            NotExportable: an output differs.
        """
        self.num_steps += 1
        inputs, file_inputs = state.outputs.get(Columns.ACTION_DIST_INPUTS), outputs.get(Columns.ACTION_DIST_INPUTS)
        if inputs is not None and file_inputs is not None:
            self._check(step, env, "action_dist_inputs", inputs, file_inputs[env])
        for path, (expected, actual) in _pairs(action, file_action).items():
            if expected.dtype.kind == "f":
                self._check(step, env, path, expected, actual)
            elif not np.array_equal(expected, actual):
                if inputs is None or file_inputs is None or not self._is_tie(inputs, expected, actual):
                    self._fail(step, env, path, expected, actual)
                self.num_ties += 1
                return False
        return True

    def _check(self, step: int, env: int, name: str, expected: object, actual: object) -> None:
        """Raise `NotExportable` if two outputs differ by more than `tolerance` times the largest magnitude so far."""
        expected, actual = np.asarray(expected, np.float64), np.asarray(actual, np.float64)
        finite = np.isfinite(expected)
        same_shape = expected.shape == actual.shape
        if not same_shape or not np.array_equal(expected[~finite], actual[~finite], equal_nan=True):
            self._fail(step, env, name, expected, actual)
        self._scale = max(self._scale, float(np.abs(expected[finite]).max(initial=0.0)))
        difference = float(np.abs(expected[finite] - actual[finite]).max(initial=0.0))
        self.largest = max(self.largest, difference / self._scale)
        if not difference <= self.tolerance * self._scale:
            self._fail(step, env, name, expected, actual)

    def _is_tie(self, inputs: ArrayLike, expected: object, actual: object) -> bool:
        """Return True if the two actions have nearly equal log-probabilities, so that rounding decided between them."""
        distribution: Any = distribution_of(self.actor.policy, self.actor.action_space)
        tensor = torch.as_tensor(np.asarray(inputs))[None].double()
        try:
            values = [
                float(distribution.log_prob(tensor, torch.as_tensor(np.asarray(choice))[None]))
                for choice in (expected, actual)
            ]
        except (RuntimeError, TypeError, IndexError):
            return False
        return abs(values[0] - values[1]) <= 10 * self.tolerance * self._scale

    def _fail(self, step: int, env: int, name: str, expected: object, actual: object) -> None:
        """Raise `NotExportable` with the expected and the actual value, and with the user's parts that may be the
        cause.
        """
        raise NotExportable(
            f"the file does not act as the actor: at step {step} of episode stream {env}, {name} is "
            f"{np.asarray(actual).tolist()} instead of {np.asarray(expected).tolist()}. A part of yours may keep a "
            f"state, read episodes, or write into a slice of an array; there is "
            f"{_suspects(self.actor)}"
        )


def _pairs(expected: object, actual: object) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the expected and the actual array of each leaf of an action, by path."""
    flat, actual_leaves = nested.flatten(expected, "action"), nested.flatten(actual, "action")
    return {path: (np.asarray(flat[path]), np.asarray(actual_leaves[path])) for path in flat}


def _without_own_seed(actor: Actor) -> Actor:
    """Return a copy of the actor without seeds, so that it samples with torch's global generator, which `Noise`
    replaces.
    """
    copy = actor.copy_pipelines()
    for piece in copy.module_to_env.connectors:
        if isinstance(piece, GetActions):
            piece.unseed()
    return copy


def _noise_of(served: ServedPolicy, generator: np.random.Generator) -> np.ndarray:
    """Return one row of sampled noise per environment, float32 [_NUM_ENVS, D], of the kinds that the file's metadata
    lists. D is 0 if the file samples nothing.
    """
    draws = {"exponential": generator.standard_exponential, "normal": generator.standard_normal}
    parts = [draws.get(kind, generator.random)((_NUM_ENVS, size), np.float32) for kind, size in served.about["noise"]]
    return np.concatenate(parts, 1) if parts else np.zeros((_NUM_ENVS, 0), np.float32)


# --- where observations come from ------------------------------------------------------------------------------------


def _make_stream(actor: Actor, source: Source, generator: np.random.Generator, seed: int, env: int) -> Any:
    """Return a generator of steps from `source`: an environment, recorded episodes, or random samples. It is sent the
    actions.
    """
    if source is None:
        stream = _random_steps(actor.observation_space, generator)
    elif isinstance(source, (str, gym.Env)) or callable(source):
        stream = _env_steps(
            gym.make(source) if isinstance(source, str) else source() if callable(source) else source, seed
        )
    else:
        episodes = list(source) if isinstance(source, Iterable) else []
        if not episodes:
            raise InvalidArgument(
                f"export: check_on is {nested.describe(source)}; give an environment's id, a function that makes an "
                "environment, or at least one recorded episode"
            )
        check_all_of_one_shape(source, "export(check_on=)")
        stream = _recorded_steps(episodes[env::_NUM_ENVS] or episodes)
    return _StepStream(stream)


class _StepStream:
    """Wrapper of a generator that allows `send` as the first call, where Python requires `next`."""

    def __init__(self, stream: Generator[Step, Any, None]) -> None:
        self._stream, self._is_started = stream, False

    def send(self, action: object) -> Step:
        """Send an action to the generator, and return the next step. The first call starts the generator and ignores
        `action`.
        """
        if not self._is_started:
            self._is_started = True
            return next(self._stream)
        return self._stream.send(action)

    def close(self) -> None:
        self._stream.close()


def _random_steps(space: Any, generator: np.random.Generator) -> Generator[Step, Any, None]:
    """Yield random observations and rewards as steps of episodes of random length.

    Each step is (observation, reward of the last action, whether an episode begins). If None is sent, a new episode
    begins.
    """
    space.seed(int(generator.integers(2**31)))
    while True:
        for t in range(int(generator.integers(1, _EPISODE + 1))):
            action = yield space.sample(), 0.0 if not t else float(np.float32(generator.normal())), t == 0
            if action is None:
                break


def _env_steps(env: gym.Env, seed: int) -> Generator[Step, Any, None]:
    """Yield the steps of an environment, which executes the actions that are sent to this generator.

    Each step is (observation, reward of the last action, whether an episode begins). If None is sent, the
    environment is reset and a new episode begins.
    """
    try:
        observation, _ = env.reset(seed=seed)
        reward, begins = 0.0, True
        while True:
            action = yield observation, float(reward), begins
            if action is None:
                (observation, _), reward, begins = env.reset(), 0.0, True
                continue
            observation, reward, terminated, truncated, _ = env.step(action)
            begins = terminated or truncated
            if begins:
                (observation, _), reward = env.reset(), 0.0
    finally:
        env.close()


def _recorded_steps(episodes: Sequence[SingleAgentEpisode]) -> Generator[Step, Any, None]:
    """Yield the observations and rewards of recorded episodes as steps, in an endless loop. Actions that are sent are
    ignored, but None skips the rest of the episode.
    """
    while True:
        for episode in episodes:
            rewards = np.asarray(episode.get_rewards(), np.float32)
            for t in range(len(episode) + 1):
                action = yield episode.get_observations(t), float(rewards[t - 1]) if t else 0.0, t == 0
                if action is None:
                    break


Source = str | Callable[[], gym.Env] | Sequence[SingleAgentEpisode] | None
