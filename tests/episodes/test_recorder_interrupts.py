"""Interrupts of a `VectorRecorder`, by Ctrl-C or for lack of memory: an interrupted call can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from episodes import VectorRecorder
from episodes.pack import EpisodePack
from tests.interrupts import Breaking

N = 3
ROOMS = ("/episodes/recorder/", "/episodes/pack/", "/episodes/tracks/", "/episodes/facts/")


class Scene:
    """A recorder and its calls in order. Every row is unique by its time."""

    def __init__(self, mode: str) -> None:
        self.recorder = VectorRecorder(N, autoreset_mode=mode, len_lookback_buffer=2)
        self.mode, self.time = mode, 0
        self.packs: list[EpisodePack] = []

    def works(self) -> list[Callable[[], None]]:
        """Return steps with the resets that they need, and takes."""
        works: list[Callable[[], None]] = [self.reset]
        for at in range(1, 46):
            works.append(self.step)
            if at % 11 == 0:
                works.append(self.look)
            if at % 7 == 0:
                works.append(self.take)
            if at % 13 == 0:
                works.append(self.reset)
        return [*works, self.take]

    def row(self) -> dict[str, np.ndarray]:
        return {"x": 100.0 * np.arange(N) + self.time, "y": np.full((N, 2), self.time)}

    def newest(self) -> int:
        return int(self.recorder.episodes.recent("observations", 1)[0]["x"][0, 0])

    def infos(self) -> dict[str, Any]:
        mask = np.arange(N) % 2 == self.time % 2
        return {"t": np.full(N, self.time), "_t": mask} if self.time % 5 else {}

    def reset(self) -> None:
        self.time += 1
        self.recorder.reset(self.row(), {"reset": np.full(N, self.time)})

    def step(self) -> None:
        """Make a vector step. In every third one an environment's episode ends."""
        ended, self.time = np.arange(N) == self.time % 7, self.time + 1
        row, infos = self.row(), self.infos()
        if self.mode == "SameStep" and ended.any():
            infos |= {"final_obs": {key: value + 500 for key, value in row.items()}, "_final_obs": ended}
            infos |= {"final_info": {"last": np.full(N, self.time), "_last": ended}, "_final_info": ended}
        actions = np.full(N, self.time)
        self.recorder.step(row, actions, actions - 0.5, ended, np.zeros(N, bool), infos, {"out": actions * 2.0})
        if self.mode == "Disabled" and ended.any():
            self.recorder.reset({key: value + 1000 for key, value in row.items()}, reset_mask=ended)

    def look(self) -> None:
        """Read ongoing episodes, and write to their custom data."""
        for env in range(N):
            self.recorder.ongoing(env).custom_data["looked"] = self.time
        self.recorder.ended_episodes()

    def take(self) -> None:
        self.packs.append(self.recorder.take())


def contents_of(packs: list[EpisodePack]) -> list[Any]:
    """Return the contents of packs without random ids, and numbers for chunks with the same id."""
    numbers: dict[str, int] = {}
    return [
        (
            numbers.setdefault(episode.id_, len(numbers)),
            episode.t_started,
            episode.get_observations()["x"].tolist(),
            episode.get_observations(slice(-2, 0), neg_index_as_lookback=True, fill=-1)["y"].tolist(),
            episode.get_actions().tolist(),
            episode.get_rewards().tolist(),
            episode.get_extra_model_outputs("out").tolist(),
            episode.get_infos(),
            (episode.is_terminated, episode.is_truncated, episode.custom_data),
        )
        for pack in packs
        for episode in pack
    ]


def run_interrupted(scene: Scene, work: Callable[[], None], breaking: Breaking) -> None:
    """Interrupt a call, and repeat it if it had no effect."""
    time, num_packs = scene.time, len(scene.packs)
    if not breaking.run(work):
        return
    if work == scene.take:
        assert len(scene.packs) == num_packs
        work()
    elif work == scene.look:
        work()
    elif not scene.recorder.count_steps() and work == scene.reset and scene.time == 1:
        scene.time = 0
        work()
    elif work == scene.step and scene.mode == "Disabled" and scene.newest() % 100 == scene.time:
        ended = np.arange(N) == time % 7  # the step is there; whether its reset is, nobody knows: it may come again
        if ended.any():
            reset_row = {key: value + 1000 for key, value in scene.row().items()}
            scene.recorder.reset(reset_row, reset_mask=ended)
    elif work == scene.reset or scene.newest() % 100 != scene.time:
        scene.time = time
        work()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_interrupted_recorder_calls_can_be_repeated(mode: str) -> None:
    whole = Scene(mode)
    for work in whole.works():
        work()
    expected = contents_of(whole.packs)
    rng = np.random.default_rng(0)
    for trial in range(10):
        scene = Scene(mode)
        for work in scene.works():
            at = int(rng.integers(1, 420 if work == scene.take else 120))
            later_breaks = rng.integers(1, 20, int(rng.integers(0, 2))).tolist()
            breaking = Breaking(KeyboardInterrupt, at, *later_breaks, rooms=ROOMS, where_signals_come=True)
            run_interrupted(scene, work, breaking)
        assert contents_of(scene.packs) == expected, trial
