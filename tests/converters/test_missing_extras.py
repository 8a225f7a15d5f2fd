"""Errors for missing packages name the purpose, the package and the install command."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from episode_learners.loggers import TensorBoardLogger, WandbLogger
from episode_runners import RayRunnerGroup
from episodes import SingleAgentEpisode, converters, inspect
from episodes.errors import MissingExtra
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage import arrow as arrow_files
from episodes.storage.search import query
from episodes.transport import EpisodeReceiver

Call = Callable[[Path], Any]


def some(*, image: bool = False) -> list[SingleAgentEpisode]:
    observations = np.zeros((3, 16, 16, 3), np.uint8) if image else np.zeros((3, 2), np.float32)
    space = spaces.Box(0, 255, observations.shape[1:], np.uint8) if image else spaces.Box(-1, 1, (2,))
    known = {"observation_space": space, "action_space": spaces.Discrete(2), "terminated": True}
    return [SingleAgentEpisode.from_arrays(observations, np.zeros(2, int), np.ones(2), **known)]


def stored(path: Path) -> EpisodeDataset:
    return EpisodeDataset(path / "data", verify=True)


CASES: dict[str, tuple[str, str, str, Call]] = {
    "EpisodeWriter": ("pyarrow", "episodes on disk", "rl-episodes[arrow]", lambda path: EpisodeWriter(path / "a")),
    "EpisodeDataset": ("pyarrow", "episodes on disk", "rl-episodes[arrow]", stored),
    "sums": ("xxhash", "sums", "rl-episodes[arrow]", stored),
    "url": ("fsspec", "memory://a", "rl-episodes[remote]", lambda path: EpisodeDataset("memory://a")),
    "url of a kind": (
        "gcsfs",
        "gcs://a/b: Please install gcsfs",
        "rl-episodes[s3]",
        lambda path: EpisodeDataset("gcs://a/b"),
    ),
    "sql": ("duckdb", "SQL", "rl-episodes[sql]", lambda path: stored(path).sql("select 1")),
    "table.to_pandas": ("pandas", "pandas", "rl-episodes[pandas]", lambda path: stored(path).metadata.to_pandas()),
    "table.to_polars": ("polars", "polars", "rl-episodes[polars]", lambda path: stored(path).metadata.to_polars()),
    "found.to_polars": (
        "polars",
        "polars",
        "rl-episodes[polars]",
        lambda path: stored(path).sql("select step from steps").to_polars(),
    ),
    "to_parquet": ("pyarrow", "pyarrow", "rl-episodes[arrow]", lambda path: converters.to_parquet(some(), path / "a")),
    "from_parquet": ("pyarrow", "pyarrow", "rl-episodes[arrow]", lambda path: converters.from_parquet(path / "steps")),
    "to_pandas": ("pandas", "DataFrame", "rl-episodes[pandas]", lambda path: converters.to_pandas(some())),
    "to_huggingface": (
        "datasets",
        "Dataset of Hugging Face",
        "rl-episodes[huggingface]",
        lambda path: converters.to_huggingface(some()),
    ),
    "to_ray_data": ("ray", "Ray Data", "rl-episodes[ray,arrow]", lambda path: converters.to_ray_data(some())),
    "to_lerobot": (
        "av",
        "videos",
        "rl-episodes[video]",
        lambda path: converters.to_lerobot(some(image=True), path / "a"),
    ),
    "to_rllib": ("ray", "RLlib's episodes", "rl-episodes[rllib]", lambda path: converters.to_rllib(some())),
    "to_rllib_parquet": (
        "pyarrow",
        "pyarrow",
        "rl-episodes[arrow]",
        lambda path: converters.to_rllib_parquet(some(), path / "a"),
    ),
    "to_minari": (
        "minari",
        "Minari data",
        "rl-episodes[minari]",
        lambda path: converters.to_minari(some(), "some/lost-v0"),
    ),
    "from_minari": ("minari", "Minari data", "rl-episodes[minari]", lambda path: converters.from_minari(path)),
    "from_d4rl": ("h5py", "D4RL's files", "rl-episodes[minari]", lambda path: converters.from_d4rl(path / "a.hdf5")),
    "to_tensordict": (
        "tensordict",
        "a TensorDict",
        "rl-episodes[tensordict]",
        lambda path: converters.to_tensordict(some()),
    ),
    "to_sb3": ("stable_baselines3", "a buffer of SB3", "stable-baselines3", lambda path: converters.to_sb3(some())),
    "to_tianshou": ("tianshou", "a buffer of Tianshou", "tianshou", lambda path: converters.to_tianshou(some())),
    "EpisodeReceiver": ("zmq", "receivers", "rl-episodes[zmq]", lambda path: EpisodeReceiver("tcp://127.0.0.1:*")),
    "RayRunnerGroup": (
        "ray",
        "runners in actors",
        "rl-episodes[ray]",
        lambda path: RayRunnerGroup(lambda: None, 1),  # type: ignore[arg-type,return-value],
    ),
    "plot_returns": ("matplotlib", "a plot", "rl-episodes[plot]", lambda path: inspect.plot_returns(some())),
    "video": (
        "imageio",
        "a video",
        "rl-episodes[video]",
        lambda path: inspect.video(some(image=True)[0], path / "a.mp4"),
    ),
    "WandbLogger": ("wandb", "WandbLogger", "rl-episodes[wandb]", WandbLogger),
    "TensorBoardLogger": (
        "torch.utils.tensorboard",
        "TensorBoardLogger",
        "rl-episodes[tensorboard]",
        TensorBoardLogger,
    ),
}


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Yield a function that hides a package until the end of the test."""
    remembered = (arrow_files.pyarrow, query.duckdb, query.database)

    def hide(package: str) -> None:
        loaded = [name for name in sys.modules if name.startswith(f"{package}.")]  # by other tests
        for name in [package, *loaded]:
            monkeypatch.setitem(sys.modules, name, None)
        for function in remembered:
            function.cache_clear()

    yield hide
    for function in remembered:
        function.cache_clear()


@pytest.mark.parametrize("case", CASES)
def test_call_without_package_raises_with_install_command(
    case: str, tmp_path: Path, hidden: Callable[[str], None]
) -> None:
    package, purpose, install, ask = CASES[case]
    with EpisodeWriter(tmp_path / "data") as writer:
        writer.add(some())
    converters.to_parquet(some(), tmp_path / "steps")
    hidden(package)
    with pytest.raises(MissingExtra) as caught:
        ask(tmp_path)
    message = str(caught.value)
    assert purpose in message
    assert re.search(rf"pip install '?{re.escape(install)}", message), message
    assert not [left for left in tmp_path.iterdir() if "draft" in left.name]
