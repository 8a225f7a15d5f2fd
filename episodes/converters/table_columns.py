"""`TableColumns`: which columns of a table with one row per step are observations, actions, rewards and so on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from episodes.errors import InvalidArgument, UnreadableData, WrongType

_USUAL = {  # usual names, in lower case; the first one that a table has is used
    "episode": "episode_id episode episode_index eps_id run run_id trajectory trajectory_id traj traj_id rollout",
    "t": "t step timestep time_step step_id frame_index time timestamp timestamps",
    "observation": "observation observations obs state states observation.state",
    "next_observation": "next_observation next_observations next_obs new_obs next_state next_states",
    "action": "action actions act",
    "reward": "reward rewards rew next.reward",
    "terminated": "terminated terminateds terminal terminals termination terminations is_terminal next.terminated "
    "done dones next.done",
    "truncated": "truncated truncateds timeout timeouts truncation truncations next.truncated",
}
_PREFIXES = {  # beginnings of the names of columns with one number each
    "observation": ("observation", "obs", "state"),
    "next_observation": ("next_observation", "next_obs", "next_state"),
    "action": ("action", "act"),
}
_SEPARATORS = "_./["
_SEVERAL = frozenset(_PREFIXES)
OPTIONS = tuple(_USUAL)
"""Names of the options of `from_table` that name columns."""
BOTH_ENDINGS = frozenset({"done", "dones", "next.done"})
"""Usual names of flags that do not tell a termination from a truncation."""

Named = str | list[str] | dict[str, Any]

Choice: TypeAlias = "Sequence[str] | Mapping[str, Choice]"
"""A name or pattern of columns, several of them, or a dict of choices."""


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Names of the columns of a table with one row per step, by what they hold.

    Attributes:
        observation, next_observation, action: a column, a list of columns that are stacked, or a dict of such values.
        episode, t, reward, terminated, truncated: a column, or None.
    """

    observation: Named
    action: Named
    episode: str | None = None
    t: str | None = None
    reward: str | None = None
    terminated: str | None = None
    truncated: str | None = None
    next_observation: Named | None = None

    def used(self) -> list[str]:
        """Return the names of all columns in use, in order."""
        return list(dict.fromkeys(name for field in fields(self) for name in names_in(getattr(self, field.name))))

    def __str__(self) -> str:
        pairs = ((field.name, getattr(self, field.name)) for field in fields(self))
        return "; ".join(f"{name}: {_text(value)}" for name, value in pairs if value is not None)


def names_in(value: Named | None) -> Iterator[str]:
    """Yield the names of the columns in a value of `TableColumns`."""
    if isinstance(value, str):
        yield value
    elif value is not None:
        for part in value.values() if isinstance(value, dict) else value:
            yield from names_in(part)


def _text(value: Named) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: ({_text(part)})" for key, part in value.items())
    return value if isinstance(value, str) else ", ".join(value)


def choose_columns(names: Sequence[str], where: str, given: Mapping[str, Choice | None]) -> TableColumns:
    """Return which columns of a table are used: those that are given, and usual names for the others.

    Args:
        names: all columns.
        where: name of the table, for errors.
        given: columns by option. A column, several ("x,y", "obs_*", a list), or a dict of these.

    Raises:
        InvalidArgument: a given column does not exist, or is used twice.
        UnreadableData: there is no column of observations or actions.
    """
    chosen: dict[str, Any] = {}
    for option, value in given.items():
        if value is not None:
            chosen[option] = _resolve(value, names, option)
            if option not in _SEVERAL and not isinstance(chosen[option], str):
                raise InvalidArgument(f"{option}={value!r}: {len(chosen[option])} columns; name one column")
    taken: dict[str, str] = {}
    for option, value in chosen.items():
        for name in names_in(value):
            if taken.setdefault(name, option) != option:
                raise InvalidArgument(
                    f"the column {name!r} is {taken[name]}= and {option}=; give each column one meaning"
                )
    for option in OPTIONS:
        if option not in chosen:
            free = [name for name in names if name not in taken]
            if (usual := _usual(option, free)) is not None:
                chosen[option] = usual
                taken |= dict.fromkeys(names_in(usual), option)
    missing = [option for option in ("observation", "action") if option not in chosen]
    if missing:
        raise UnreadableData(
            f"{where}: its columns are {', '.join(map(repr, names)) or 'none'}, and none has a usual name for "
            f"{' and '.join(missing)}; name them ({missing[0]}=, --{missing[0]})"
        )
    return TableColumns(**chosen)


def _resolve(value: object, names: Sequence[str], option: str) -> Named:
    """Return the columns that `value` names."""
    if isinstance(value, Mapping):
        return {key: _resolve(part, names, option) for key, part in value.items()}
    if isinstance(value, str) and value in names:
        return value
    if isinstance(value, str):
        parts: Sequence[Any] = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, Sequence):
        parts = value
    else:
        raise WrongType(f"{option}={value!r}; give the name of a column, or a list of names")
    resolved: list[str] = []
    for part in parts:
        found = [part] if part in names else [name for name in names if "*" in part and fnmatchcase(name, part)]
        if not found:
            raise InvalidArgument(
                f"{option}={value!r}: no column {part!r}; the columns are {', '.join(map(repr, names))}"
            )
        resolved += found
    if not resolved:
        raise InvalidArgument(f"{option}={value!r} names no column; the columns are {', '.join(map(repr, names))}")
    if len(set(resolved)) < len(resolved):
        raise InvalidArgument(f"{option}={value!r} names a column twice")
    return resolved


def _usual(option: str, names: Sequence[str]) -> Named | None:
    """Return the columns that usually have this meaning, or None."""
    lower = {name.lower(): name for name in reversed(names)}
    for usual in _USUAL[option].split():
        if usual in lower:
            return lower[usual]
    for prefix in _PREFIXES.get(option, ()):
        found = [name for name in names if name.lower().startswith(prefix) and name[len(prefix) :][:1] in _SEPARATORS]
        if found := [name for name in found if len(name) > len(prefix)]:
            return found
    return None
