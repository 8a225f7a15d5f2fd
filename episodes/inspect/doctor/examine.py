"""`examine`: what is played or read, and the checks that are looked for in it."""

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
from episodes.inspect.doctor import checks
from episodes.inspect.doctor.finding import Finding, gathered
from episodes.inspect.doctor.rollouts import REPLAYED, Play
from episodes.inspect.doctor.trial import Trial, array_of, digest, trials_of
from episodes.multi_agent import MultiAgentEpisode
from episodes.single_agent import SingleAgentEpisode
from episodes.testing import check_vector_env


def examine(subject: Any, *, num_steps: int = 4000, seconds: float = 20.0, seed: int = 0) -> list[Finding]:
    """What is wrong with the endings and the data of an environment, a data set or episodes; empty where nothing is.

    An environment is played with random actions, twice under one seed. It is left open, and in some state.

    Args:
        subject: an environment (Gymnasium, its vector environments, PettingZoo of both kinds) or its name (a
            Gymnasium id, or `module:function` that makes one); the path of a data set or the data set; a pack, or
            episodes (which `episodes.converters.read` makes of other libraries' data), single-agent, multi-agent, or
            mappings of columns (`observations` [T + 1, ...], `actions`, `rewards`, `terminations`, `truncations` [T],
            `infos`).
        num_steps: how many are played or read, at most.
        seconds: how long it is played, at most; a second play takes less.

    Raises:
        InvalidArgument: something else; an unknown name.

    >>> examine("CartPole-v1", num_steps=300)
    []
    """
    if isinstance(subject, Path) or (isinstance(subject, str) and os.path.isdir(subject)):
        from episodes.storage import EpisodeDataset

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # what it would say is found
            dataset = EpisodeDataset(subject)
        damage = [Finding.of("damage", problem) for problem in dataset.problems]
        return [*damage, *examine(dataset, num_steps=num_steps, seed=seed)]
    if isinstance(subject, str):
        made = _made(subject)
        try:
            return examine(made, num_steps=num_steps, seconds=seconds, seed=seed)
        finally:
            made.close()
    if isinstance(subject, VectorEnv):
        return _of_vector_env(subject, num_steps, seed)
    is_made = not isinstance(subject, type)
    if is_made and callable(getattr(subject, "step", None)) and callable(getattr(subject, "reset", None)):
        return _of_env(subject, num_steps, seconds, seed)
    trials = list(_read(subject, num_steps))
    return [*_signs(trials), *gathered("duplicate_episode", _duplicates(trials))]


def _made(name: str) -> Any:
    """The environment of this name."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None) if module and attribute else None
        if not callable(found):
            return gym.make(name, disable_env_checker=True)
        inspect.signature(found).bind()
    except (ImportError, TypeError, ValueError, gym.error.Error) as error:
        raise InvalidArgument(
            f"{name}: neither the path of a data set nor an environment ({error}); give a Gymnasium id, or "
            "module:function for a function that makes an environment"
        ) from error
    return found()


def _signs(trials: list[Trial]) -> Iterator[Finding]:
    trials = [trial for trial in trials if trial.observations]
    for sign in checks.ALL:
        yield from sign(trials) if trials else ()


def _of_env(env: Any, num_steps: int, seconds: float, seed: int) -> list[Finding]:
    play = Play(env, num_steps, seconds).run(seed)
    found = [*play.findings(), *_signs(play.trials)]
    if not play.places.keys() & {"error", "step_result"}:
        again = Play(env, min(len(play.acted), REPLAYED), seconds, play.acted).run(seed)
        found += gathered("seed", _differences(play.trials, again.trials))
    kinds = {finding.kind: finding for finding in reversed(found)}  # the first of each kind
    if "no_reset" in kinds:
        kinds.pop("seed", None)  # without a reset nothing is seeded: one finding says both
    return [finding for finding in found if kinds.get(finding.kind) is finding]


def _differences(first: list[Trial], again: list[Trial]) -> Iterator[tuple[Any, int, str]]:
    """Where two plays of the same seed and actions are not the same."""
    for one, two in zip(first, again, strict=False):
        for step, (a, b) in enumerate(zip(one.seen, two.seen, strict=False)):
            if a != b:
                yield one.id_, step, "the same seed and actions led to another observation"
                return
        for step, (a, b) in enumerate(zip(one.rewards, two.rewards, strict=False)):
            if digest(a) != digest(b):
                yield one.id_, step, f"the same seed and actions led to reward {a!r} and {b!r}"[:200]
                return


def _of_vector_env(env: VectorEnv, num_steps: int, seed: int) -> list[Finding]:
    try:
        check_vector_env(env, num_steps=max(50, min(num_steps // max(env.num_envs, 1), 500)), seed=seed)
    except ContractViolation as error:
        return [Finding.of("autoreset", str(error))]
    except InvalidArgument:  # no episode ended, so nothing is known
        pass
    except Exception as error:  # of an environment that is somebody else's
        return [Finding.of("error", f"{type(error).__name__}: {error}"[:300])]
    return []


def _read(subject: Any, num_steps: int) -> Iterator[Trial]:
    """The trials of episodes, until there are enough steps."""
    one = isinstance(subject, (SingleAgentEpisode, MultiAgentEpisode, Mapping))
    if not one and not isinstance(subject, Iterable):
        raise InvalidArgument(
            f"{subject if isinstance(subject, type) else type(subject)} can not be examined; give an environment, "
            "a data set, a pack or episodes"
        )
    steps = 0
    for number, episode in enumerate([subject] if one else subject):
        if not isinstance(episode, (SingleAgentEpisode, MultiAgentEpisode, Mapping)):
            raise InvalidArgument(f"item {number} is {type(episode).__name__}; give episodes, or mappings of columns")
        if isinstance(episode, SingleAgentEpisode) and len(episode) > num_steps - steps:
            episode = episode[: num_steps - steps]  # a chunk that is cut
        for trial in trials_of(episode, number):
            steps += len(trial)
            yield trial
        if steps >= num_steps:
            return


def _duplicates(trials: list[Trial]) -> Iterator[tuple[Any, None, str]]:
    """Episodes of some steps that were there before, number for number."""
    known: dict[bytes, Any] = {}
    for trial in trials:
        whole = digest((*trial.seen, *trial.actions, *map(array_of, trial.rewards)))
        if len(trial) >= 5 and len(set(trial.seen)) > 2 and whole in known:
            yield trial.id_, None, f"every number is that of episode {known[whole]}"
        known.setdefault(whole, trial.id_)
