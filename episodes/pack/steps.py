"""`PackSteps`: the steps of a pack, or of a list of episodes, as numbers: what a train batch's origin asks."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from episodes.batch import StepOrigin
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
        self._there: Any = weakref.ref(pack) if whole else [weakref.ref(episode) for episode in given or ()]

    @cached_property
    def _stops(self) -> np.ndarray:
        return self._lengths.cumsum()

    def __len__(self) -> int:
        return int(self._lengths.sum())

    def step(self, number: int) -> StepOrigin:
        """The step with this number."""
        i = int(self._stops.searchsorted(number, "right"))
        facts = self._facts
        started, length = int(facts.t_started[i]), int(self._lengths[i])
        return StepOrigin(
            facts.ids.item(i),
            started + number - int(self._stops[i]) + length,
            None if facts.agent_ids is None else facts.agent_ids.item(i),
            None if facts.module_ids is None else facts.module_ids.item(i),
            started,
            started + length,
            ENDINGS[int(facts.endings[i])],
            str(self),
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
        return f"{len(self._lengths)} episodes with {len(self)} steps"

    def __deepcopy__(self, memo: Any) -> PackSteps:
        return self

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: all but the episodes."""
        gone = [_nothing] * len(self._lengths)
        return {**self.__dict__, "_there": gone}


def _nothing() -> None:
    return None
