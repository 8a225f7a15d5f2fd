"""Fingerprints of pipelines: settings as plain values, to check that a policy acts with the pipelines of its training.

A runner writes the fingerprint of its pipelines to the attribute `pipeline_fingerprint` of a `torch.nn.Module` that it
samples with for learning. The `state_dict()` of an `episode_learners.Policy` contains it. A runner with other pipelines
then rejects the policy. A fingerprint has the space that the policy sees, the action space, and the settings of all
connectors. It does not have their statistics.

Functions and classes among the settings are identified by their names. Lambdas and nested functions have no unique
name. They are identified by their position and their code: names, constants, operators, defaults, and the plain values
that they close over. This is the same in each process. Another Python version may compile a comprehension differently.

Episodes store the rewriters and views of the pipeline that acted, as the text of `describe_acting_pipeline`, so that a
learner in another process can compare them with its actor.
"""

from __future__ import annotations

import dis
import json
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from enum import Enum
from functools import partial
from inspect import signature
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from episodes.errors import StateMismatch, UnreadableData
from episodes.tracks.space_kinds import is_box, is_dict, is_nested, parts_of

if TYPE_CHECKING:
    from connectors.acting import EnvToModule, ModuleToEnv
    from connectors.policy import Policy

__all__ = [
    "JOINT",
    "acting_parts",
    "check_acting_pipelines",
    "check_fingerprint",
    "check_spaces",
    "check_statistics",
    "check_views",
    "describe_acting_pipeline",
    "describe_space",
    "settings_of",
    "stamp",
    "stamped",
]

ATTRIBUTE = "pipeline_fingerprint"
JOINT = "joint_preprocessors"  # of all agents: `MultiAgentEnvToModule(..., joint=[...])`
_COMPARED = ("observations", "actions", "env_to_module", "module_to_env", JOINT)

_NO_SETTINGS = frozenset({"input_observation_space", "input_action_space", "name", "seed", "device"})
_STABLE = (type(None), bool, int, float, complex, str, bytes, np.generic, np.ndarray, Enum, spaces.Space)
_MANY = 32  # arrays with more numbers are described by their shapes


def settings_of(made: object) -> dict[str, Any]:
    """Return the constructor arguments of an object by name, as plain values. Only arguments stored as attributes are
    included.
    """
    if isinstance(made, partial):
        return {"function": _plain(made.func), "arguments": _plain([*made.args, dict(made.keywords)])}
    if isinstance(made, FunctionType):
        return {"function": _plain(made)} if "<" in made.__qualname__ else {}
    held = getattr(made, "__dict__", {})
    places = {name: name if name in held else f"_{name}" for name in signature(type(made).__init__).parameters}
    return {name: _plain(held[place]) for name, place in places.items() if place in held and name not in _NO_SETTINGS}


def _plain(value: object) -> Any:
    """Return a value as JSON types (numbers, strings, lists, dicts). Unsupported objects become their name."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, np.generic)):
        number = value.item() if isinstance(value, np.generic) else value
        return number if number == number else "nan"  # NaN is not equal to itself
    if isinstance(value, np.ndarray):
        return _plain(value.tolist()) if value.size <= _MANY else f"array {value.shape} {value.dtype}"
    if isinstance(value, (bytes, complex)):
        return repr(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Set):
        return sorted(map(_plain, value), key=repr)
    if isinstance(value, partial):
        return settings_of(value)
    if isinstance(value, spaces.Space):
        return describe_space(value)
    if isinstance(value, FunctionType) and "<" in value.__qualname__:
        return f"{value.__qualname__}: {_describe_code(value)}"
    return _named(value)


def _describe_code(function: FunctionType) -> str:
    """Return text that identifies a function by its code, for functions without a unique name. It is equal in all
    processes.
    """
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # the cell is empty
            held.append(cell.cell_contents)
    values = [_plain(value) if _has_stable_value(value) else _named(value) for value in held]
    return " ".join(_words(function.__code__)) + (f" with {values}" if values else "")


def _has_stable_value(value: object) -> bool:
    """Return True if `value` can be described by text: it is immutable, a numpy array, a space, or a tuple or set of
    these.
    """
    return isinstance(value, _STABLE) or (isinstance(value, (tuple, frozenset)) and all(map(_has_stable_value, value)))


def _named(value: object) -> str:
    return getattr(value, "__qualname__", type(value).__name__)


def _words(code: CodeType) -> Iterator[str]:
    """Yield the names, constants and operators in the bytecode `code`, in order."""
    for step in dis.get_instructions(code):
        if isinstance(step.argval, CodeType):
            yield from _words(step.argval)
        elif step.opname.startswith(("BINARY_OP", "COMPARE_OP", "IS_OP", "CONTAINS_OP")):
            yield f"{step.opname[:2].lower()}{step.argrepr or step.argval}"
        elif step.opname.startswith("UNARY"):
            yield step.opname
        elif "_IF_" in step.opname:  # `and`, `or`, `if`, `for`
            yield "if " + step.opname.partition("_IF_")[2]
        elif step.opname.startswith(("LOAD", "RETURN_CONST")) and step.argval is not None:
            read = step.argval if step.opname.startswith("LOAD_FAST") and type(step.argval) is tuple else [step.argval]
            yield from (str(_plain(name)) if _has_stable_value(name) else repr(name) for name in read)


def describe_space(space: spaces.Space | None, *, bounds: bool = False) -> str:
    """Return a space as text, for comparison. The bounds of Boxes are included only with `bounds=True`."""
    if is_box(space) and not bounds:
        return f"Box({space.shape}, {space.dtype})"
    if not is_nested(space):
        return str(space)
    parts = {key: describe_space(part, bounds=bounds) for key, part in parts_of(space).items()}
    if is_dict(space):
        return "Dict(" + ", ".join(f"{key}: {part}" for key, part in parts.items()) + ")"
    return "Tuple(" + ", ".join(parts.values()) + ")"


def stamp(policy: Policy | None, fingerprint: dict[str, Any] | None) -> None:
    """Store a pipeline fingerprint as an attribute of the policy. Policies that are not torch modules are ignored."""
    if getattr(policy, ATTRIBUTE, None) is not fingerprint and isinstance(policy, torch.nn.Module):
        setattr(policy, ATTRIBUTE, fingerprint)


def stamped(policy: Policy | None) -> dict[str, Any] | None:
    """Return the pipeline fingerprint that `stamp` stored in the policy, or None."""
    return getattr(policy, ATTRIBUTE, None)


def check_fingerprint(
    policy: Policy | None, pipeline_stamp: Mapping[str, Any], policy_stamp: Mapping[str, Any] | None = None
) -> None:
    """Raise `StateMismatch` if the policy was trained with pipelines whose fingerprint differs from `pipeline_stamp`.

    Args:
        policy: the policy.
        pipeline_stamp: the fingerprint of the pipelines in which it is used.
        policy_stamp: the fingerprint of its training, if the policy does not have it itself.

    Raises:
        StateMismatch: the fingerprints differ. The error names the differences.
    """
    policy_stamp = stamped(policy) if policy_stamp is None else policy_stamp
    if policy_stamp is None or not (
        differences := [
            text
            for key in pipeline_stamp
            if key in _COMPARED
            for text in _differences(key, policy_stamp, pipeline_stamp)
        ]
    ):
        return
    raise StateMismatch(
        f"{type(policy).__name__} was trained in other pipelines: {'; '.join(differences)}. Build the pipelines as "
        "they were (and restore their state), or pass check_pipeline=False to use the policy in these"
    )


def _differences(key: str, policy_stamp: Mapping[str, Any], pipeline_stamp: Mapping[str, Any]) -> list[str]:
    """Return texts that describe how the fingerprints of the policy and of the pipelines differ in the entry `key`. The
    list is empty if they are equal.
    """
    before, now = policy_stamp.get(key, [] if key == JOINT else None), pipeline_stamp[key]
    if before == now:
        return []
    if not isinstance(now, list) or not isinstance(before, list):
        return [f"the {key} were {before}, here {now}"]
    known, current = dict(before), dict(now)
    differences = [
        f"{key} had {_made(name, known[name])}, which is missing here" for name in known if name not in current
    ]
    differences += [
        f"{key} has {_made(name, current[name])}, which was not there" for name in current if name not in known
    ]
    differences += [
        f"{key} had {_made(name, known[name])}, here {_made(name, current[name])}"
        for name in known
        if name in current and known[name] != current[name]
    ]
    return differences or [f"{key} had the connectors in the order {' > '.join(known)}, here {' > '.join(current)}"]


def _made(name: str, settings: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in settings.items())})"


def check_spaces(
    env_to_module: EnvToModule,
    module_to_env: ModuleToEnv,
    observation_space: gym.Space | None,
    action_space: gym.Space | None,
) -> None:
    """Raise `StateMismatch` if a space of the pipelines differs from the environment's space.

    Bounds of observations may differ.

    Args:
        env_to_module: pipeline from observations to a policy's batch.
        module_to_env: pipeline from a policy's outputs to actions.
        observation_space: space of the environment's observations.
        action_space: space of the environment's actions.

    Raises:
        StateMismatch: a space differs.
    """
    observations = getattr(env_to_module, "input_observation_space", None)
    for name, known, space, bounds in (
        ("observations", observations, observation_space, False),
        ("actions", module_to_env.input_action_space, action_space, True),
    ):
        texts = [describe_space(each_space, bounds=bounds) for each_space in (known, space)]
        if known is not None and texts[0] != texts[1]:
            raise StateMismatch(
                f"the pipelines were made for {name} {texts[0]}, and the environment has {texts[1]}; make an actor for "
                "the spaces of this environment"
            )


def check_views(policy: Policy | None, views: list[Any]) -> None:
    """Raise `StateMismatch` if the policy's inputs were computed by other views while acting than in this learner
    (`views`).

    Args:
        views: [name, settings] of each view of the learner.

    Raises:
        StateMismatch: the views or their settings differ.
    """
    trained_in = getattr(policy, ATTRIBUTE, None)
    acting_views = None if trained_in is None else trained_in.get("views")
    if acting_views is None or acting_views == views:
        return
    raise StateMismatch(
        f"{type(policy).__name__} acted through {_in_words(acting_views)}, and this learner uses "
        f"{_in_words(views)}: give the algorithm the actor instead of the policy, such as PPO(runner.actor), or create "
        "the learner pipeline with views=actor.views"
    )


def acting_parts(env_to_module: object) -> dict[str, list[Any]]:
    """Return the names and settings of the pipeline's rewriters and views, which determine the policy's observations,
    as plain values.
    """
    rewriters = getattr(env_to_module, "rewriters", {})
    return {
        "rewriters": [[name, piece.settings] for name, piece in rewriters.items()],
        "views": getattr(env_to_module, "view_settings", []),
    }


def describe_acting_pipeline(env_to_module: object) -> str:
    """Return the settings of the pipeline's rewriters and views as one line of JSON, which is stored with each
    episode.
    """
    return json.dumps({kind: parts for kind, parts in acting_parts(env_to_module).items() if parts})


def check_acting_pipelines(texts: Iterable[str | None], own_parts: Mapping[str, list[Any]], learner: str) -> None:
    """Raise `StateMismatch` if episodes were recorded with other rewriters or views than `own_parts`.

    Args:
        texts: acting pipelines of the episodes; None if unknown, which is not checked.
        own_parts: the learner's "rewriters" and "views", as in `acting_parts`. A missing kind is not compared.
        learner: name of the learner, for the error.

    Raises:
        StateMismatch: the rewriters or views, or their settings, differ.
        UnreadableData: a text is not JSON in the form of `describe_acting_pipeline`.
    """
    for line in dict.fromkeys(line for text in set(texts) - {None} for line in (text or "").splitlines()):
        recorded = _parsed(line)
        for kind, parts in own_parts.items():
            before = recorded[kind]
            if before != json.loads(json.dumps(parts)):  # as JSON represents them
                raise StateMismatch(
                    f"the policy that recorded the episodes acted through {_in_words(before, kind)}, and {learner} "
                    f"uses {_in_words(parts, kind)}: give {learner} an actor with the same pieces as the actor that "
                    "sampled"
                )


def _parsed(line: str) -> dict[str, list[Any]]:
    """Return the rewriters and views, each as [name, settings], in a line that `describe_acting_pipeline` returned.

    Raises:
        UnreadableData: the line is not such JSON.
    """
    try:
        parts = json.loads(line)
        return {kind: [[str(name), dict(settings)] for name, settings in parts.get(kind, ())] for kind in _PARTS}
    except (ValueError, TypeError, AttributeError) as error:
        raise UnreadableData(f"acting_pipeline={line!r:.200}: {error}; expected rewriters and views as JSON") from None


_PARTS = ("rewriters", "views")


def _in_words(parts: list[Any], kind: str = "views") -> str:
    return f"the {kind} " + ", ".join(_made(*part) for part in parts) if parts else f"no {kind}"


def check_statistics(policy: Policy | None, env_to_module: object) -> None:
    """Raise `StateMismatch` if a trained policy would act with a normalization filter that has not seen any
    observation.

    Raises:
        StateMismatch: the policy was trained, and a filter has no statistics.
    """
    empty = getattr(env_to_module, "empty_filters", ())
    if stamped(policy) is not None and empty:
        raise StateMismatch(
            f"{type(policy).__name__} was trained with the statistics of {', '.join(empty)}, which has seen no "
            "observation in this pipeline: restore its state (Actor.load, or pipeline.set_state), or use the runner's "
            "pipeline"
        )
