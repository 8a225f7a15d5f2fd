"""`PackSteps`: the steps of a pack, or of a list of episodes, as numbers: what a train batch's origin asks."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from episodes.batch.origin import EpisodeKey, StepLocations, StepOrigin
from episodes.errors import EpisodeStateError
from episodes.facts.ending import ENDINGS
from episodes.pack.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode

__all__ = ["PackSteps"]


class PackSteps:
    """Steps by number: the r-th of all real steps, episode after episode. The episodes are not kept alive.

    Args:
        pack: of the episodes.
        given: what the pack was made of, where that is something else.
    """

    def __init__(self, pack: EpisodePack, given: Sequence[SingleAgentEpisode] | None = None) -> None:
        facts = pack.facts
        self._facts = facts if facts.custom_data is None else facts._replace(custom_data=None)
        self._lengths = pack.lengths
        whole = given is None or given is pack
        self._there: Any = weakref.ref(pack) if whole else list(map(weakref.ref, given or ()))

    @cached_property
    def _stops(self) -> np.ndarray:
        return self._lengths.cumsum()

    def __len__(self) -> int:
        return int(self._lengths.sum())

    def step(self, number: int) -> StepOrigin:
        """The step with this number."""
        i = int(self._stops.searchsorted(number, "right"))
        started, length = int(self._facts.t_started[i]), int(self._lengths[i])
        whose, t = self._whose(i), started + number - int(self._stops[i]) + length
        ending = ENDINGS[int(self._facts.endings[i])]
        return StepOrigin(whose.id_, t, whose.agent_id, whose.module_id, started, started + length, ending, str(self))

    def places(self, numbers: np.ndarray) -> StepLocations:
        """Episodes and times of the steps with these numbers [n]."""
        episodes = self._stops.searchsorted(numbers, "right")
        distinct, which = np.unique(episodes, return_inverse=True)
        begins = self._stops - self._lengths - self._facts.t_started
        return StepLocations([self._whose(i) for i in distinct.tolist()], which, numbers - begins[episodes])

    def _whose(self, i: int) -> EpisodeKey:
        facts = self._facts
        agents, modules = facts.agent_ids, facts.module_ids
        return EpisodeKey(
            facts.ids.item(i), None if agents is None else agents.item(i), None if modules is None else modules.item(i)
        )

    def episode(self, number: int) -> SingleAgentEpisode:
        """The episode or chunk of the step; `EpisodeStateError` when nobody holds it any more."""
        i = int(self._stops.searchsorted(number, "right"))
        held = self._there[i]() if isinstance(self._there, list) else self._there and self._there()
        if held is None:
            raise EpisodeStateError(
                f"episode {self._facts.ids[i]} is gone: keep the episodes that a batch is made of as long as they are "
                "to be looked at"
            )
        return held[i] if isinstance(held, EpisodePack) else held

    def __repr__(self) -> str:
        num, steps = len(self._lengths), len(self)
        return f"{num} episode{'s' * (num != 1)} with {steps} step{'s' * (steps != 1)}"

    def __deepcopy__(self, memo: Any) -> PackSteps:
        return self

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: all but the episodes."""
        gone = [_nothing] * len(self._lengths)
        return {**self.__dict__, "_there": gone}


def _nothing() -> None:
    return None
