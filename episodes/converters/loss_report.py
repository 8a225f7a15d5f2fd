"""`LossReport`: what information a conversion lost, with reasons and affected episodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from episodes.data_types import Space
from episodes.errors import LostInConversion
from episodes.facts.facts import FACTS, EpisodeFacts, FactKind
from episodes.single_agent import SingleAgentEpisode

_NOTHING = EpisodeFacts(None)  # all other facts have their defaults


@dataclass(frozen=True, slots=True)
class Loss:
    """Information of one kind that a conversion lost, with the reason and the number of affected episodes.

    Attributes:
        what: what was lost.
        why: the reason.
        num_episodes: number of episodes that lost it.
        first: id of the first of these episodes, or its position in the source.
    """

    what: str
    why: str
    num_episodes: int
    first: Any

    def __str__(self) -> str:
        return f"{self.what}: {self.why} ({self.num_episodes} episodes, the first is {self.first})"


@dataclass(slots=True)
class LossReport:
    """Report of what information a conversion lost. It is falsy if nothing was lost.

    It has one `Loss` per kind, so it is small for any number of episodes.

    >>> report = LossReport()
    >>> report.add("rewards", "the other side has none", "a")
    >>> report.add("rewards", "the other side has none", "b")
    >>> print(report)
    rewards: the other side has none (2 episodes, the first is a)
    """

    _where: dict[tuple[str, str], list[Any]] = field(default_factory=dict)

    def add(self, item: str, reason: str, episode_id: object) -> None:
        """Record that some information (`item`) of an episode was lost, and why. Each episode counts once.

        Args:
            item: what was lost.
            reason: the reason.
            episode_id: id of the episode, or its position in the source.
        """
        count = self._where.setdefault((item, reason), [0, episode_id, None])
        count[0] += count[0] == 0 or count[2] != episode_id
        count[2] = episode_id

    def join(self, report: LossReport) -> None:
        """Add all losses of another report to this report."""
        for key, (num, first, last) in report._where.items():
            known = self._where.setdefault(key, [0, first, None])
            known[0], known[2] = known[0] + num, last

    @property
    def losses(self) -> list[Loss]:
        """List of the recorded losses, in order of first occurrence."""
        return [Loss(item, reason, num, first) for (item, reason), (num, first, _) in self._where.items()]

    def check(self, strict: bool) -> LossReport:
        """Raise `LostInConversion` if `strict` is True and something was lost. Otherwise return this report.

        Raises:
            LostInConversion: `strict` is True and something was lost. The error lists the losses.
        """
        if strict and self._where:
            raise LostInConversion(f"data would be lost:\n{self}\nconvert with strict=False to leave this out")
        return self

    def __iter__(self) -> Iterator[Loss]:
        return iter(self.losses)

    def __len__(self) -> int:
        return len(self._where)

    def __str__(self) -> str:
        return "\n".join(map(str, self.losses)) or "nothing was lost"


def keep_supported(value: Any, lost: Callable[[str], None], holds: Callable[[Any], bool], path: str = "") -> Any:
    """Return nested dicts without the values that a format cannot store. `lost` is called with the path of each.

    Args:
        value: the value, a nested dict or any other.
        lost: called with the path of each value that is left out.
        holds: returns True if the format supports a value.
        path: the path of `value`.

    >>> keep_supported({"a": 1, "b": {"c": set(), "d": 2}}, print, lambda value: "set" not in str(value))
    ['b']['c']
    {'a': 1, 'b': {'d': 2}}
    """
    if holds(value):
        return value
    supported = {}
    for key, part in value.items():
        part_path = f"{path}[{key!r}]"
        if not holds({key: None}) or not (holds(part) or isinstance(part, dict)):
            lost(part_path)
        else:
            supported[key] = keep_supported(part, lost, holds, part_path)
    return supported


def having_steps(episodes: Iterable[SingleAgentEpisode], name: str, report: LossReport) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes that have a step, and report the others as lost. `name` is the format, for the message."""
    for episode in episodes:
        if len(episode):
            yield episode
        else:
            report.add("the episode", f"{name} has no episodes without a step", episode.id_)


def report_other_spaces(report: LossReport, episode: SingleAgentEpisode, name: str, **spaces: Space | None) -> None:
    """Report spaces of an episode that differ from the spaces that the format stores for the whole data set.

    Args:
        report: gets what is lost.
        episode: the episode.
        name: the format, for the message.
        spaces: the stored spaces, by attribute of the episode.
    """
    for attribute, space in spaces.items():
        space_of_episode = getattr(episode, attribute)
        if space_of_episode is not None and space_of_episode is not space and space_of_episode != space:
            report.add(attribute, f"{name} has one for all episodes", episode.id_)


def is_known_pipeline(text: str | None) -> bool:
    """Return True if the text `acting_pipeline` of an episode names a rewriter or view. "{}" names none."""
    return text not in (None, "{}")


def dropped_facts(facts: EpisodeFacts, keeps: Collection[str]) -> list[str]:
    """Return the names of the facts of an episode that a format without a place for them loses.

    A fact with its default value is not lost. The ending is not among them: formats have flags for it.

    Args:
        facts: the episode's facts.
        keeps: names of facts that the format stores.

    >>> dropped_facts(EpisodeFacts("a", t_started=3, agent_id="left"), keeps=["id_", "agent_id"])
    ['t_started']
    """
    lost = [
        name
        for name, kind in FACTS.items()
        if kind is not FactKind.ENDING and name not in keeps and getattr(facts, name) != getattr(_NOTHING, name)
    ]
    return [name for name in lost if name != "acting_pipeline" or is_known_pipeline(facts.acting_pipeline)]


def report_dropped_facts(
    report: LossReport, episode: SingleAgentEpisode, name: str, keeps: Collection[str] = ()
) -> None:
    """Report the metadata of an episode that the format cannot store. `keeps` names what it can store.

    Args:
        report: gets what is lost.
        episode: the episode.
        name: the format, for the message.
        keeps: names of facts, "lookback", "custom_data", "extra_model_outputs", "infos", "both_endings",
            "observation_space" and "action_space".
    """
    reason = f"{name} has no place for it"
    dropped = dropped_facts(episode.facts, keeps)
    dropped += ["lookback"] * bool(episode.lookback) + ["custom_data"] * bool(episode.custom_data)
    dropped += ["infos"] * any(map(bool, episode.get_infos())) if "infos" not in keeps else []
    dropped += ["both_endings"] * (episode.is_terminated and episode.is_truncated)
    dropped += [name for name in ("observation_space", "action_space") if getattr(episode, name) is not None]
    for dropped_fact in dropped:
        if dropped_fact not in keeps:
            report.add(dropped_fact, reason, episode.id_)
    if "extra_model_outputs" not in keeps:
        for key in episode.extra_model_outputs:
            report.add(f"extra_model_outputs[{key!r}]", reason, episode.id_)
