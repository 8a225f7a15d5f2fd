"""`LossReport`: what a converter could not keep, why, and where."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from episodes.errors import LostInConversion
from episodes.single_agent import SingleAgentEpisode


@dataclass(frozen=True, slots=True)
class Loss:
    """One thing that could not be kept, of all the episodes that had it."""

    what: str
    why: str
    num_episodes: int
    first: Any  # the id of the first of the episodes, or its number in the source

    def __str__(self) -> str:
        return f"{self.what}: {self.why} ({self.num_episodes} episodes, the first is {self.first})"


@dataclass(slots=True)
class LossReport:
    """What was lost, one `Loss` for each kind of thing; false when nothing was. Small, however many episodes there are.

    >>> report = LossReport()
    >>> report.add("rewards", "the other side has none", "a")
    >>> report.add("rewards", "the other side has none", "b")
    >>> print(report)
    rewards: the other side has none (2 episodes, the first is a)
    """

    _where: dict[tuple[str, str], list[Any]] = field(default_factory=dict)

    def add(self, what: str, why: str, where: Any) -> None:
        """Note that an episode lost something; again for the same one, it counts once."""
        count = self._where.setdefault((what, why), [0, where, None])
        count[0] += count[0] == 0 or count[2] != where
        count[2] = where

    def join(self, other: LossReport) -> None:
        """Take the losses of another report too."""
        for what, (num, first, last) in other._where.items():
            known = self._where.setdefault(what, [0, first, None])
            known[0], known[2] = known[0] + num, last

    @property
    def losses(self) -> list[Loss]:
        """One of a kind, in the order in which they were met."""
        return [Loss(what, why, num, first) for (what, why), (num, first, _) in self._where.items()]

    def check(self, strict: bool) -> LossReport:
        """Itself; with `strict`, `LostInConversion` with the list unless nothing was lost."""
        if strict and self._where:
            raise LostInConversion(f"not all can be kept:\n{self}\nconvert with strict=False to leave this out")
        return self

    def __iter__(self) -> Iterator[Loss]:
        return iter(self.losses)

    def __len__(self) -> int:
        return len(self._where)

    def __str__(self) -> str:
        return "\n".join(map(str, self.losses)) or "nothing was lost"


def kept(value: Any, lost: Callable[[str], None], holds: Callable[[Any], bool], path: str = "") -> Any:
    """What a format holds of nested dicts; `lost` is told the path of each value that it does not.

    >>> kept({"a": 1, "b": {"c": set(), "d": 2}}, print, lambda value: "set" not in str(value))
    ['b']['c']
    {'a': 1, 'b': {'d': 2}}
    """
    if holds(value):
        return value
    found = {}
    for key, part in value.items():
        where = f"{path}[{key!r}]"
        if not holds({key: None}) or not (holds(part) or isinstance(part, dict)):
            lost(where)
        else:
            found[key] = kept(part, lost, holds, where)
    return found


def tell_other_spaces(report: LossReport, episode: SingleAgentEpisode, name: str, **spaces: Any) -> None:
    """Note spaces of an episode that are not those which the format of this name keeps for all episodes."""
    for which, space in spaces.items():
        own = getattr(episode, which)
        if own is not None and own is not space and own != space:
            report.add(which, f"{name} has one for all episodes", episode.id_)


FACTS = ("t_started", "agent_id", "module_id", "multi_agent_episode_id", "policy_versions")


def report_dropped_facts(
    report: LossReport, episode: SingleAgentEpisode, name: str, keeps: Collection[str] = ()
) -> None:
    """Note what the format of this name has no place for, unless it is one of `keeps`.

    Names: those of `FACTS`, "id_", "lookback", "custom_data", "extra_model_outputs", "infos", "both_endings",
    "observation_space" and "action_space".
    """
    why = f"{name} has no place for it"
    there = [fact for fact in FACTS[1:] if getattr(episode, fact) is not None]
    there += ["t_started"] * (episode.t_started > 0)
    there += ["id_"] + ["lookback"] * bool(episode.lookback) + ["custom_data"] * bool(episode.custom_data)
    there += ["infos"] * any(map(bool, episode.get_infos())) if "infos" not in keeps else []
    there += ["both_endings"] * (episode.is_terminated and episode.is_truncated)
    there += [name for name in ("observation_space", "action_space") if getattr(episode, name) is not None]
    for what in there:
        if what not in keeps:
            report.add(what, why, episode.id_)
    if "extra_model_outputs" not in keeps:
        for key in episode.extra_model_outputs:
            report.add(f"extra_model_outputs[{key!r}]", why, episode.id_)
