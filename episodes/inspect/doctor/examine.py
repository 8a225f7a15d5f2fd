"""`examine`: checks an environment, a data set or episodes, and returns the problems that it finds."""

from __future__ import annotations

import importlib
import inspect
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from episodes.errors import ContractViolation, InvalidArgument
from episodes.inspect.doctor import checks, env_checks
from episodes.inspect.doctor.finding import Finding, Findings, gather_findings
from episodes.inspect.doctor.rollouts import REPLAYED, Play
from episodes.inspect.doctor.scan import Scan
from episodes.inspect.doctor.trial import Trial, check_columns, digest, trials_of
from episodes.multi_agent import MultiAgentEpisode
from episodes.recorder.env_turns import EnvTurns
from episodes.single_agent import SingleAgentEpisode
from episodes.testing import check_vector_env

Episode = (SingleAgentEpisode, MultiAgentEpisode, Mapping)


def examine(subject: object, *, num_steps: int = 4000, seconds: float = 20.0, seed: int = 0) -> Findings:
    """Check an environment, a data set or episodes, and return the problems found in endings and data.

    An environment is stepped with random actions, several times with the same seed. It is not closed. All steps of data
    are read for cheap checks (finite numbers, bounds, gaps, duplicates), and the first `num_steps` for all checks.

    Args:
        subject: an environment (Gymnasium, Gymnasium's vector environments, both APIs of PettingZoo) or its name (a
            Gymnasium id, or `module:function`); a data set or its path; a pack, or episodes (also those of
            `episodes.converters.read`). Single-agent and multi-agent episodes are accepted, and mappings of columns
            (`observations` [T + 1, ...], `actions`, `rewards`, `terminations`, `truncations` [T], `infos`).
        num_steps: most steps to play, or to read for all checks.
        seconds: most seconds to play; further plays take less.

    Returns:
        A list of findings, empty if nothing is wrong. `num_steps` and `num_checked` of it count the steps.

    Raises:
        InvalidArgument: `subject` is none of these, or an unknown name.

    >>> examine("CartPole-v1", num_steps=300)
    []
    """
    if isinstance(subject, Path) or (isinstance(subject, str) and os.path.isdir(subject)):
        return _of_directory(subject, num_steps)
    if isinstance(subject, str):
        env = _make_env(subject)
        try:
            return examine(env, num_steps=num_steps, seconds=seconds, seed=seed)
        finally:
            env.close()
    if isinstance(subject, VectorEnv):
        return _of_vector_env(subject, num_steps, seed)
    is_instance = not isinstance(subject, type)
    if is_instance and callable(getattr(subject, "step", None)) and callable(getattr(subject, "reset", None)):
        return _of_env(subject, num_steps, seconds, seed)
    return _of_data(subject, num_steps)


def _of_directory(path: str | Path, num_steps: int) -> Findings:
    """Return the problems in the files of a data set and in the episodes that can be read."""
    from episodes.storage import EpisodeDataset, check

    problems = check(path).problems
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # damage is reported as a finding
        dataset = EpisodeDataset(path)
    problems = list(dict.fromkeys([*problems, *dataset.problems]))
    findings = _of_data(dataset, num_steps)
    findings[:0] = gather_findings("damage", [(None, None, problem) for problem in problems])
    return findings


def _of_data(subject: object, num_steps: int) -> Findings:
    """Return the problems in episodes. Cheap checks cover all steps, and all checks the first `num_steps`."""
    scan, trials = Scan(), list[Trial]()
    steps = 0
    try:
        for number, episode in enumerate(_episodes_of(subject)):
            scan.add(episode, number)
            if steps < num_steps:
                is_long = isinstance(episode, SingleAgentEpisode) and len(episode) > num_steps - steps
                for trial in trials_of(episode[: num_steps - steps] if is_long else episode, number):
                    steps += len(trial)
                    trials.append(trial)
    except OSError as error:
        scan.places["damage"] = [(None, None, f"episode {scan.num_episodes} cannot be read: {error}"[:300])]
    detailed = [finding for finding in _run_checks(trials) if finding.kind not in scan.places]
    return Findings([*scan.findings(), *detailed], scan.num_steps, min(steps, scan.num_steps), scan.num_episodes)


def _episodes_of(subject: object) -> Iterator[Any]:
    """Yield the episodes of a data set, a pack or a sequence, or the given single episode.

    Raises:
        InvalidArgument: the subject is not iterable, or has an item that is neither an episode nor a mapping of
            columns.
    """
    if isinstance(subject, Episode):
        subject = [subject]
    elif not isinstance(subject, Iterable):
        raise InvalidArgument(
            f"{subject if isinstance(subject, type) else type(subject)} can not be examined; give an environment, "
            "a data set, a pack or episodes"
        )
    for number, episode in enumerate(subject):
        if not isinstance(episode, Episode):
            raise InvalidArgument(f"item {number} is {type(episode).__name__}; give episodes, or mappings of columns")
        if isinstance(episode, Mapping):
            check_columns(episode)
        yield episode


def _make_env(name: str) -> Any:
    """Create an environment from a Gymnasium id, or from "module:function", a function without required arguments.

    Raises:
        InvalidArgument: there is no such environment, or the function requires arguments.
    """
    module, _, attribute = name.partition(":")
    try:
        make = getattr(importlib.import_module(module), attribute, None) if module and attribute else None
        if not callable(make):
            return gym.make(name, disable_env_checker=True)
        inspect.signature(make).bind()
    except (ImportError, TypeError, ValueError, gym.error.Error) as error:
        raise InvalidArgument(
            f"{name}: neither the path of a data set nor an environment ({error}); give a Gymnasium id, or "
            "module:function (in a folder of PYTHONPATH) for a function that makes an environment"
        ) from error
    return make()


def _run_checks(trials: list[Trial]) -> Iterator[Finding]:
    """Yield the findings of all checks of recorded episodes. Episodes without an observation are left out."""
    trials = [trial for trial in trials if trial.observations]
    for check in checks.ALL:
        yield from check(trials) if trials else ()


def _of_env(env: Any, num_steps: int, seconds: float, seed: int) -> Findings:
    """Run an environment in a turn of its own. See `_run_env`."""
    turns = EnvTurns([env])
    turns.begin()
    try:
        return _run_env(env, num_steps, seconds, seed)
    finally:
        turns.end()


def _run_env(env: Any, num_steps: int, seconds: float, seed: int) -> Findings:
    """Run an environment with random actions, at most `num_steps` and about `seconds`, and return the problems found,
    one of each kind and track.

    If the environment has no basic fault, the rollout is repeated to check the seed.
    """
    with env_checks.watched_layers(env) as notes:
        play = Play(env, num_steps, seconds).run(seed)
    findings = [*play.findings(), *gather_findings("steps_after_end", [(None, None, note) for note in notes])]
    findings += [*_run_checks(play.trials), *env_checks.never_ends(env, play, seconds / 4)]
    if not play.places.keys() & {"error", "step_result"}:
        second_run = Play(env, min(len(play.acted), REPLAYED), seconds, play.acted).run(seed)
        differences = list(gather_findings("seed", _differences(play.trials, second_run.trials)))
        findings += differences
        if not differences and isinstance(env, gym.Env):
            findings += env_checks.ignored_actions(env, play.trials, seed, seconds)
            findings += env_checks.reseeding_resets(env, seed)
    if any(finding.kind == "no_reset" for finding in findings):  # without a reset a seed has no effect
        findings = [finding for finding in findings if finding.kind != "seed"]
    first_ones = list({(finding.kind, finding.track): finding for finding in reversed(findings)}.values())[::-1]
    return Findings(first_ones, len(play.acted), len(play.acted), len(play.trials))


def _differences(first: list[Trial], second_run: list[Trial]) -> Iterator[tuple[Any, int, str]]:
    """Yield the first difference between two rollouts with the same seed and actions."""
    for trial, two in zip(first, second_run, strict=False):
        for step, (a, b) in enumerate(zip(trial.seen, two.seen, strict=False)):
            if a != b:
                yield trial.id_, step, "the same seed and actions led to another observation"
                return
        for step, (a, b) in enumerate(zip(trial.rewards, two.rewards, strict=False)):
            if digest(a) != digest(b):
                yield trial.id_, step, f"the same seed and actions led to reward {a!r} and {b!r}"[:200]
                return


def _of_vector_env(env: VectorEnv, num_steps: int, seed: int) -> Findings:
    """Run a vector environment with random actions, and return the problems found.

    It is not a problem that no episode ends, unless the environment ran long enough.
    """
    rows = max(50, min(num_steps // max(env.num_envs, 1), 500))
    findings = []
    try:
        check_vector_env(env, num_steps=rows, seed=seed)
    except ContractViolation as error:
        findings = [Finding.of("autoreset", str(error))]
    except InvalidArgument as error:  # no episode ended
        if rows * env.num_envs >= env_checks.FEWEST_STEPS and rows > env_checks.time_limit_of(env):
            findings = [Finding.of("never_ends", str(error))]
    except Exception as error:  # environments are code of users, which may raise anything
        findings = [Finding.of("error", f"{type(error).__name__}: {error}"[:300])]
    return Findings(findings, rows * env.num_envs, rows * env.num_envs, 0)
