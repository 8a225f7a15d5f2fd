"""`PackSteps`: finds the episode and the time of each row of a train batch that was made from a pack."""

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
    """Source of `Batch.origin` for packs: maps the index of a step in the pack to its episode and time.

    A step's index counts the steps of all episodes of the pack, without lookbacks. The object does not keep the
    episodes alive.

    Args:
        pack: the pack of the episodes.
        episodes_of_pack: the episodes of which the pack was made, if they are not the pack.
    """

    def __init__(self, pack: EpisodePack, episodes_of_pack: Sequence[SingleAgentEpisode] | None = None) -> None:
        facts = pack.facts
        self._facts = facts if facts.custom_data is None else facts._replace(custom_data=None)
        self._lengths = pack.lengths
        whole = episodes_of_pack is None or episodes_of_pack is pack
        self._holders: Any = weakref.ref(pack) if whole else list(map(weakref.ref, episodes_of_pack or ()))

    @cached_property
    def _stops(self) -> np.ndarray:
        return self._lengths.cumsum()

    def __len__(self) -> int:
        return int(self._lengths.sum())

    def step(self, number: int) -> StepOrigin:
        """Return the origin (episode id, time, agent, module) of the pack's step with index `number`."""
        i = int(self._stops.searchsorted(number, "right"))
        started, length = int(self._facts.t_started[i]), int(self._lengths[i])
        key, t = self._key(i), started + number - int(self._stops[i]) + length
        ending = ENDINGS[int(self._facts.endings[i])]
        return StepOrigin(key.id_, t, key.agent_id, key.module_id, started, started + length, ending, str(self))

    def places(self, numbers: np.ndarray) -> StepLocations:
        """Return the episodes and times of the pack's steps with the indices `numbers` [n]."""
        episodes = self._stops.searchsorted(numbers, "right")
        distinct, episode_of_step = np.unique(episodes, return_inverse=True)
        begins = self._stops - self._lengths - self._facts.t_started
        return StepLocations([self._key(i) for i in distinct.tolist()], episode_of_step, numbers - begins[episodes])

    def _key(self, i: int) -> EpisodeKey:
        """Return the ids of the pack's episode with index `i`."""
        facts = self._facts
        agents, modules = facts.agent_ids, facts.module_ids
        return EpisodeKey(
            facts.ids.item(i), None if agents is None else agents.item(i), None if modules is None else modules.item(i)
        )

    def episode(self, number: int) -> SingleAgentEpisode:
        """Return the episode that contains the step with index `number`. The batch does not keep its episodes alive.

        Raises:
            EpisodeStateError: the episode or pack was freed.
        """
        i = int(self._stops.searchsorted(number, "right"))
        holder = self._holders[i]() if isinstance(self._holders, list) else self._holders and self._holders()
        if holder is None:
            raise EpisodeStateError(
                f"episode {self._facts.ids[i]} no longer exists: keep a reference to the episodes of a batch for as "
                "long as they are read through it"
            )
        return holder[i] if isinstance(holder, EpisodePack) else holder

    def __repr__(self) -> str:
        num, steps = len(self._lengths), len(self)
        return f"{num} episode{'s' * (num != 1)} with {steps} step{'s' * (steps != 1)}"

    def __deepcopy__(self, memo: dict[int, Any]) -> PackSteps:
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to pickle, without the weak references to episodes."""
        no_holders = [_nothing] * len(self._lengths)
        return {**self.__dict__, "_holders": no_holders}


def _nothing() -> None:
    return None
