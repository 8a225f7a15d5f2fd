"""`Finding`: a problem in episodes or an environment, with evidence, harm to training, and advice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_SHOWN = 5  # findings of one kind in a text
Place = tuple[Any, ...]
"""Episode id (None before the first), step, evidence, and the track if one is to blame. The evidence is a text, or how
many numbers of each kind a track has that are not finite."""

KINDS = {  # kind -> what it does to targets, what to do
    "time_limit_terminates": (
        "the last value counts as zero though the episode would have gone on: every target before it is too low",
        "return truncated=True at a time limit, and terminated=False",
    ),
    "end_truncates": (
        "the value after a true end is added to the targets: the agent expects rewards that never come",
        "return terminated=True where the task itself ends",
    ),
    "lost_final_observation": (
        "the value of an unrelated first state stands in for the last one wherever an episode is truncated",
        "return the true last observation with the ending, and the first one of the next episode from reset alone",
    ),
    "ignored_action": (
        "a step that no action caused, from the end of one episode to the start of the next, is learned from",
        "drop the rows after an ending (next-step autoreset), or record with `VectorRecorder`",
    ),
    "no_reset": (
        "episodes begin where the one before ended, so an ending changes nothing that a value could know",
        "let reset put the environment back to a first state",
    ),
    "late_observation": (
        "each action is paired with the observation before it: values learn what happens one step earlier",
        "return the observation that the action led to",
    ),
    "missing_last_observation": (
        "there is no state to bootstrap from: the last value is that of another state",
        "keep T + 1 observations for T steps, the last one being what the last action led to",
    ),
    "dtype": (
        "batches change their dtype or are cast again and again, and memory is twice what it was planned to be",
        "return arrays of the dtype of the observation space",
    ),
    "shape": ("items cannot be stacked into a batch, or are broadcast to a wrong one", "return one shape, the space's"),
    "outside_space": (
        "networks and scaling that were made for the space see what they were not made for",
        "clip the observation, or state the true bounds and keys in the space",
    ),
    "not_finite": (
        "one such number makes the loss, and after one update all weights, NaN",
        "find where it comes from; end the episode before it, or leave the episode out",
    ),
    "probability_above_1": (
        "ratios of probabilities, and so the loss, are wrong at these tokens",
        "compute log-probabilities as the log_softmax of the logits in float32, at the ids that were sampled",
    ),
    "reward_type": (
        "rewards that are no single numbers are broadcast, or fail, where returns are summed",
        "return a float",
    ),
    "flag_type": ("an ending may be read as none, or none as an ending", "return bool for terminated and truncated"),
    "clock_jump": (
        "steps are missing or stand in a wrong order: n-step targets span what did not follow on each other",
        "find the steps that were dropped; keep each chunk's t_started",
    ),
    "seed": (
        "runs cannot be repeated, and comparisons of two settings are comparisons of noise",
        "draw from self.np_random alone, and hand reset's seed to super().reset(seed=seed)",
    ),
    "info_type": (
        "an info becomes no column: it is slow to read, or lost, on disk",
        "give each key one type, and leave it out where there is nothing to tell",
    ),
    "constant_observations": (
        "a value can only learn the mean over all states",
        "look at the sensor, the wrapper or the buffer that observations come from",
    ),
    "reused_buffer": (
        "stored observations change after they were stored: old steps show newer states",
        "return a copy of the observation",
    ),
    "writes_actions": ("the stored action is not the one that was chosen", "copy the action before changing it"),
    "step_result": (
        "termination and truncation cannot be told apart, or the reset's infos are missing",
        "return (observation, info) from reset and (observation, reward, terminated, truncated, info) from step",
    ),
    "error": ("the episode is lost where it is raised", "make the environment work with any action of its space"),
    "dead_agent_acts": (
        "steps after the end of an agent are learned from as if it lived",
        "take the agent out of `agents` when its terminated or truncated is True",
    ),
    "reward_after_end": (
        "rewards that no action of the episode earned are lost, or counted for another episode",
        "pay everything with the step that ends",
    ),
    "unknown_agent": ("no policy is mapped to it, and no space is known", "name each agent in `possible_agents`"),
    "missing_observation": ("its action cannot be chosen, and its episode has a hole", "observe each agent that acts"),
    "autoreset": (
        "steps, resets and last observations are taken for each other at every ending",
        "keep the rules of the autoreset mode; `episodes.testing.check_vector_env` tells more",
    ),
    "never_ends": (
        "no value is ever anchored by an ending, and episodes fill the memory",
        "wrap it in `gymnasium.wrappers.TimeLimit`, or examine more steps if random actions rarely end it",
    ),
    "reward_shift": (
        "each action is credited with the reward of another step, and the last or the first reward is lost",
        "return the reward of an action from the same call of step, also in wrappers that buffer rewards",
    ),
    "steps_after_end": (
        "steps after the ending are part of the last observation and reward: values learn of what cannot happen",
        "stop repeating an action as soon as terminated or truncated is True",
    ),
    "both_flags": (
        "truncated episodes count as terminated: the last value counts as zero at time limits too",
        "return terminated only for ends of the task, and truncated only for limits from outside",
    ),
    "ignored_actions": (
        "no policy is better than another, and learned differences are noise",
        "look for a wrapper or adapter that drops the action",
    ),
    "action_outside_space": (
        "the policy never chose that action: its probability, and every ratio of PPO, is wrong",
        "store the action as the policy chose it, in the units of the action space",
    ),
    "damage": (
        "episodes are missing from every mean, and an episode may stop where its file does",
        "run `episodes check DIR`; with --repair it keeps what can be read",
    ),
    "duplicate_episode": (
        "the same steps count twice in every mean, and are in the test set too",
        "keep one of each (`episodes.storage.copy` with a condition)",
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Problem in episodes or an environment, with its first occurrence, its harm to training, and advice."""

    kind: str
    evidence: str
    episode: Any  # id of the episode, None if it concerns all
    step: int | None  # of the episode; 0 is the reset for observations and infos
    times: int  # number of places
    harm: str  # effect on training
    advice: str
    track: str = ""  # path of the track, such as "observation/camera", "" if no single track is to blame

    @classmethod
    def of(
        cls,
        kind: str,
        evidence: str,
        episode: object = None,
        step: int | None = None,
        times: int = 1,
        track: str = "",
    ) -> Finding:
        """Create a finding of the given kind. Its texts on harm and advice come from a table of kinds.

        Args:
            episode: id of the episode, or its index; None if unknown.
            times: how often the problem occurred.
            track: path of the track, "" for none.
        """
        return cls(kind, evidence, episode, step, times, *KINDS[kind], track)

    def __str__(self) -> str:
        return f"{self.kind}: {self.place_text}\n{self._help}"

    @property
    def place_text(self) -> str:
        """The first place, what is wrong there, and how often it is."""
        location = [f"episode {self.episode}"] * (self.episode is not None) + [f"step {self.step}"] * (
            self.step is not None
        )
        times = f" ({self.times:,} times)" if self.times > 1 else ""
        place = f"{', '.join(location)}: " if location else ""
        return f"{place}{self.evidence}{times}"

    @property
    def _help(self) -> str:
        return f"  harm: {self.harm}\n  do: {self.advice}"


class Findings(list[Finding]):
    """Sequence of all problems found in an environment or in data, with the number of steps examined.

    Attributes:
        num_steps: steps that were played, or read for cheap checks.
        num_checked: steps of them that all checks examined.
        num_episodes: episodes that were played or read.
    """

    def __init__(self, findings: Iterable[Finding], num_steps: int, num_checked: int, num_episodes: int) -> None:
        super().__init__(findings)
        self.num_steps, self.num_checked, self.num_episodes = num_steps, num_checked, num_episodes

    @property
    def extent(self) -> str:
        """Number of examined steps, as text."""
        detail = "" if self.num_checked == self.num_steps else f", the first {self.num_checked:,} of them in detail"
        return f"{self.num_steps:,} steps{detail}"

    def by_kind(self) -> dict[str, str]:
        """Return a text for each kind of findings: at most 5 of them, and once their harm and what to do."""
        groups: dict[str, list[Finding]] = {}
        for finding in self:
            groups.setdefault(finding.kind, []).append(finding)
        return {kind: _text_of(group) for kind, group in groups.items()}


def _text_of(group: list[Finding]) -> str:
    """Return the text on findings of one kind."""
    first = group[0]
    if len(group) == 1:
        return str(first)
    lines = [f"{first.kind}: {len(group):,} findings", *(f"  {each.place_text}" for each in group[:MOST_SHOWN])]
    lines += [f"  and {len(group) - MOST_SHOWN:,} more (--json lists all)"] * (len(group) > MOST_SHOWN)
    return "\n".join([*lines, first._help])


def gather_findings(kind: str, places: Iterable[Place]) -> Iterator[Finding]:
    """Yield a finding of the given kind for each track of `places`, with the first place and the number of places."""
    of_tracks: dict[str, list[Place]] = {}
    for place in places:
        of_tracks.setdefault("".join(place[3:]), []).append(place)
    for track, group in of_tracks.items():
        episode, step, evidence = group[0][:3]
        if isinstance(evidence, Counter):
            counts = [place[2] for place in group]
            total = sum(counts, Counter())
            evidence = f"{track} has {' and '.join(evidence)}"
            evidence += f"; in all {', '.join(f'{total[name]:,} {name}' for name in total)}" if len(total) > 1 else ""
        yield Finding.of(kind, evidence, episode, step, len(group), track)


def not_finite_counts(array: np.ndarray) -> Counter[str]:
    """Return how many numbers of an array are NaN, inf and -inf, without those that it does not have."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return Counter()
    counts = {"NaN": np.isnan(array), "inf": array == np.inf, "-inf": array == -np.inf}
    return +Counter({name: int(np.sum(found)) for name, found in counts.items()})
