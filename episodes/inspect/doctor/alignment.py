"""Check for rewards that are shifted by one step, by predicting rewards from observations and actions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from episodes.inspect.doctor.finding import Finding
from episodes.inspect.doctor.trial import Trial, numbers_of

FEWEST_STEPS, FEWEST_EPISODES = 200, 8
MOST_STEPS = 3000
MOST_INPUTS = 80  # numbers of (observation, action, next observation)
NUM_FEATURES = 256
GOOD_FIT = 0.9  # share of the variance of rewards that a prediction explains
RATIO = 5.0  # of squared errors


def shifted_rewards(trials: list[Trial]) -> Iterator[Finding]:
    """Find rewards that are stored one step too early or too late.

    A reward r_t is predicted from (o_t, a_t, o_t+1). There is a shift if the same prediction fits r_t+1 or r_t-1 much
    better, or if it fits all rewards but those of first steps.
    """
    # rewards of one of several agents follow from the actions of the others too
    trials = [trial for trial in trials if len(trial) >= 3 and trial.agent is None and _is_complete(trial)]
    steps = sum(map(len, trials))
    rewards = [np.asarray(trial.rewards, np.float64) for trial in trials]
    if steps < FEWEST_STEPS or len(trials) < 2 or not all(np.isfinite(of_trial).all() for of_trial in rewards):
        return
    if _only_first_is_zero(rewards):
        text = f"the first reward of all {len(trials)} episodes is 0, and no other one"
        yield Finding.of("reward_shift", text, trials[0].id_, 0, len(trials))
        return
    inputs = [_inputs(trial) for trial in trials]
    widths = {of_trial.shape[1] for of_trial in inputs}
    if len(widths) > 1 or not 0 < max(widths) <= MOST_INPUTS:
        return
    fits = {
        "aligned": _fit([x[1:-1] for x in inputs], [r[1:-1] for r in rewards]),
        "late": _fit([x[1:-1] for x in inputs], [r[2:] for r in rewards]),
        "early": _fit([x[1:-1] for x in inputs], [r[:-2] for r in rewards]),
    }
    best = max(fits, key=lambda name: fits[name])
    if best != "aligned" and fits[best] >= GOOD_FIT and 1 - fits["aligned"] >= RATIO * (1 - fits[best]):
        source = {"late": "before", "early": "after"}[best]
        text = (
            f"rewards follow from the step {source} them ({fits[best]:.0%} of their variance), not from their own "
            f"({max(fits['aligned'], 0):.0%})"
        )
        yield Finding.of("reward_shift", text, trials[0].id_, None, steps)
    elif fits["aligned"] >= GOOD_FIT and len(trials) >= FEWEST_EPISODES:
        yield from _odd_first_rewards(trials, inputs, rewards)


def _is_complete(trial: Trial) -> bool:
    """Return True if the episode has T + 1 numeric observations, T actions and T scalar rewards."""
    lengths = len(trial.numbers) == len(trial) + 1 and len(trial.actions) == len(trial)
    return lengths and all(np.ndim(r) == 0 and isinstance(r, (int, float, np.number, np.bool_)) for r in trial.rewards)


def _only_first_is_zero(rewards: list[np.ndarray]) -> bool:
    """Return True if each episode's first reward is 0 and all others are the same number, and there are enough
    episodes.
    """
    later = np.concatenate([of_trial[1:] for of_trial in rewards])
    return len(rewards) >= FEWEST_EPISODES and not any(r[0] for r in rewards) and np.ptp(later) == 0 != later[0]


def _inputs(trial: Trial) -> np.ndarray:
    """Return the inputs of the reward prediction: observation, action and next observation of each step, [T, d].

    d is 0 if the shapes differ between steps, or if an observation is not finite.
    """
    actions = [numbers_of(action) for action in trial.actions]
    if any(len({numbers.shape for numbers in items}) > 1 for items in (actions, trial.numbers)):
        return np.zeros((len(trial), 0))
    observations = np.array(trial.numbers)
    if not np.isfinite(observations).all():
        return np.zeros((len(trial), 0))
    return np.concatenate([observations[:-1], np.array(actions), observations[1:]], 1)


def _features(inputs: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return features [n, k] of inputs [n, d] for a regression: linear, squared and random Fourier features."""
    x = (inputs - mean) / scale
    random = np.random.default_rng(0)
    waves = random.normal(size=(x.shape[1], NUM_FEATURES)) / np.sqrt(x.shape[1])
    return np.concatenate([np.ones((len(x), 1)), x, x**2, np.cos(x @ waves + random.uniform(0, 6.3, NUM_FEATURES))], 1)


def _solve(inputs: np.ndarray, rewards: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fit a ridge regression of the rewards. Return mean and scale of the inputs, and the weights of the features."""
    mean, scale = inputs.mean(0), inputs.std(0)
    scale[scale < 1e-9] = 1.0
    features = _features(inputs, mean, scale)
    penalty = 1e-6 * len(features) * np.eye(features.shape[1])
    return mean, scale, np.linalg.solve(features.T @ features + penalty, features.T @ rewards)


def _fit(inputs: list[np.ndarray], rewards: list[np.ndarray]) -> float:
    """Return the explained variance of rewards on half of the episodes, predicted after a fit to the other half."""
    parts = [(np.concatenate(inputs[k::2])[:MOST_STEPS], np.concatenate(rewards[k::2])[:MOST_STEPS]) for k in (0, 1)]
    (x, y), (x_test, y_test) = parts
    if min(len(x), len(x_test)) < FEWEST_STEPS // 4 or y.std() == 0 or y_test.std() == 0:
        return 0.0
    mean, scale, weights = _solve(x, y)
    return float(1 - np.mean((_features(x_test, mean, scale) @ weights - y_test) ** 2) / y_test.var())


def _odd_first_rewards(trials: list[Trial], inputs: list[np.ndarray], rewards: list[np.ndarray]) -> Iterator[Finding]:
    """Find episodes whose first reward is predicted badly, although later rewards are predicted well."""
    train = (np.concatenate([items[1:] for items in arrays[::2]])[:MOST_STEPS] for arrays in (inputs, rewards))
    mean, scale, weights = _solve(*train)

    def error(x: list[np.ndarray], r: list[np.ndarray]) -> float:
        """Return the median absolute error of the predictions for the inputs `x` with rewards `r`."""
        return float(np.median(np.abs(_features(np.concatenate(x), mean, scale) @ weights - np.concatenate(r))))

    test = range(1, len(trials), 2)
    first = error([inputs[i][:1] for i in test], [rewards[i][:1] for i in test])
    second = error([inputs[i][1:2] for i in test], [rewards[i][1:2] for i in test])
    spread = float(np.concatenate(rewards).std())
    if first > 10 * second and first > 0.25 * spread:
        text = f"later rewards follow from their steps (error {second:.3g}), the first one does not (error {first:.3g})"
        yield Finding.of("reward_shift", text, trials[0].id_, 0, len(trials))
