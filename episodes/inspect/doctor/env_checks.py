"""Checks that run an environment: seeding, effect of actions, and wrappers that step after an episode's end."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np

from episodes.inspect.doctor.finding import Finding
from episodes.inspect.doctor.rollouts import Play
from episodes.inspect.doctor.trial import Trial, digest

NUM_RESETS = 5
COMPARED_STEPS = 100
FEWEST_STEPS, MORE_STEPS = 2000, 100_000  # without an ending, for `never_ends`


@contextmanager
def watched_layers(env: object) -> Iterator[list[str]]:
    """Context manager that lists, as texts, the calls of `step` after an episode's end in wrappers of `env`.

    The methods `step` and `reset` of each layer are replaced by recording ones, and restored at the end.
    """
    notes: list[str] = []
    layers = []
    layer = getattr(env, "env", None)
    while layer is not None and hasattr(layer, "step") and len(layers) < 50:
        layers.append(layer)
        layer = getattr(layer, "env", None)
    watched = [layer for layer in layers if _watch(layer, notes)]
    try:
        yield notes
    finally:
        for layer in watched:
            del layer.step, layer.reset


def _watch(layer: Any, notes: list[str]) -> bool:
    """Wrap `step` and `reset` of one layer of an environment, to note steps after the end. Return False on failure."""
    step, reset = layer.step, layer.reset
    name, is_ended = type(layer).__name__, False

    def recording_step(*args: Any, **kwargs: Any) -> Any:
        """Call `step`, and add a text to `notes` if the episode has ended before."""
        nonlocal is_ended
        if is_ended:
            notes.append(f"a wrapper steps {name} after its ending")
        answer = step(*args, **kwargs)
        if isinstance(answer, tuple) and len(answer) == 5:
            is_ended = bool(np.any(answer[2])) or bool(np.any(answer[3]))
        return answer

    def recording_reset(*args: Any, **kwargs: Any) -> Any:
        """Call `reset`, after which the episode has not ended."""
        nonlocal is_ended
        is_ended = False
        return reset(*args, **kwargs)

    try:
        layer.step, layer.reset = recording_step, recording_reset
    except AttributeError:
        return False
    return True


def time_limit_of(env: object) -> int:
    """Return the time limit of an environment, 0 if it has none."""
    return getattr(getattr(env, "spec", None), "max_episode_steps", None) or 0


def never_ends(env: object, play: Play, seconds: float) -> Iterator[Finding]:
    """Find environments in which no episode ended during the test, unless their time limit is longer.

    Gymnasium environments are stepped on for `seconds` or `MORE_STEPS`, because random actions may end them rarely.
    """
    limit = time_limit_of(env)
    num_steps = len(play.acted) // max(len(getattr(env, "possible_agents", ())), 1)
    if num_steps < FEWEST_STEPS or num_steps <= limit or any(trial.is_done for trial in play.trials):
        return
    until = perf_counter() + seconds
    while isinstance(env, gym.Env) and num_steps < MORE_STEPS and perf_counter() < until:
        num_steps += 1
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if np.any(terminated) or np.any(truncated):
            return
    yield Finding.of("never_ends", f"no episode ended in {num_steps:,} steps of random actions")


def reseeding_resets(env: Any, seed: int) -> Iterator[Finding]:
    """Find environments in which every reset without a seed starts the same episode again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seeded = {digest(env.reset(seed=seed + k)[0]) for k in range(NUM_RESETS)}
        unseeded = {digest(env.reset()[0]) for _ in range(NUM_RESETS)}
    if len(unseeded) == 1 and len(seeded) >= NUM_RESETS - 1:
        yield Finding.of("seed", f"{NUM_RESETS} resets without a seed gave the same observation")


def ignored_actions(env: Any, first: list[Trial], seed: int, seconds: float) -> Iterator[Finding]:
    """Find environments whose observations and rewards do not depend on the actions."""
    steps = min(sum(map(len, first)), COMPARED_STEPS)
    actions = [action for trial in first for action in trial.actions][:steps]
    if steps < COMPARED_STEPS // 2 or len({digest(action) for action in actions}) < 2:
        return
    reversed_result = Play(env, steps, seconds, actions[::-1]).run(seed)
    if reversed_result.places.keys() & {"error", "step_result"}:
        return
    columns = [_seen_and_rewards(trials, steps) for trials in (first, reversed_result.trials)]
    if columns[0] == columns[1]:
        yield Finding.of("ignored_actions", f"{steps} other actions led to the same observations and rewards")


def _seen_and_rewards(trials: list[Trial], steps: int) -> list[bytes]:
    """Return hashes of the observations and rewards of the first `steps` steps, in order."""
    items: list[bytes] = []
    for trial in trials:
        items += [trial.seen[0]]
        items += [
            observation + digest(reward) for observation, reward in zip(trial.seen[1:], trial.rewards, strict=False)
        ]
    return items[:steps]
