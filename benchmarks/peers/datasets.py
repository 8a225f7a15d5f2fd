"""Workloads of Minari: data sets written from the same arrays as this library's data sets, and read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import ACTION_SPACE, OBSERVATION_SPACE, Steps
from benchmarks.figure import Timed


def minari_buffers(data: list[Steps]) -> list[Any]:
    """Convert episodes to Minari's `EpisodeBuffer` objects, which its collector creates."""
    from minari.data_collector import EpisodeBuffer

    buffers = []
    for number, steps in enumerate(data):
        ends = np.zeros(len(steps), bool)
        ends[-1] = steps.terminated
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations=list(steps.observations),
                actions=list(steps.actions),
                rewards=list(steps.rewards),
                terminations=list(ends),
                truncations=[False] * len(steps),
                infos={},
            )
        )
    return buffers


def minari_dataset(data: list[Steps], root: Path) -> Any:
    """Write episodes to a new Minari data set in the default format, and return the data set."""
    import minari

    os.environ["MINARI_DATASETS_PATH"] = str(root)
    return minari.create_dataset_from_buffers(
        f"bench/{os.urandom(8).hex()}-v0",
        buffer=minari_buffers(data),
        observation_space=OBSERVATION_SPACE,
        action_space=ACTION_SPACE,
        algorithm_name="none",
        author="nobody",
        author_email="none",
        code_permalink="none",
    )


def minari_writing(data: list[Steps], root: Path) -> Timed:
    """Time writing episodes to a new Minari data set."""
    return Timed(lambda: minari_dataset(data, root))


def minari_reading(data: list[Steps], root: Path) -> Timed:
    """Time reading the observations of every episode of a Minari data set."""
    dataset = minari_dataset(data, root)
    return Timed(lambda: [episode.observations for episode in dataset.iterate_episodes()])


def minari_slice(data: list[Steps], root: Path, rows: int) -> Timed:
    """Time reading the first `rows` observations of one episode of a Minari data set."""
    dataset = minari_dataset(data, root)
    middle = len(data) // 2
    return Timed(lambda: dataset[middle].observations[:rows])
