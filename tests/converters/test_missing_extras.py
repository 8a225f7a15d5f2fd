"""Errors for missing packages name the purpose, the package and the install command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from samples import some

from episode_learners.loggers import TensorBoardLogger, WandbLogger
from episode_runners import RayRunnerGroup
from episodes import SingleAgentEpisode, converters, inspect
from episodes.errors import MissingExtra
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage import arrow as arrow_files
from episodes.storage.search import query
from episodes.transport import EpisodeReceiver

Call = Callable[[Path], Any]


def images() -> SingleAgentEpisode:
    space = spaces.Box(0, 255, (16, 16, 3), np.uint8)
    return SingleAgentEpisode.from_arrays(
        np.zeros((3, *space.shape), np.uint8), [0, 0], [1.0, 1.0], observation_space=space
    )


def stored(path: Path) -> EpisodeDataset:
    return EpisodeDataset(path / "data", verify=True)


def polars_of_result(path: Path) -> Any:
    return stored(path).sql("select step from steps").to_polars()


def runners(path: Path) -> RayRunnerGroup:
    return RayRunnerGroup(lambda: None, 1)  # type: ignore[arg-type,return-value]


EPISODES = [some()]
# The package, what needs it, the extra (or the package) to install, and the call.
CASES: dict[str, tuple[str, str, str, Call]] = {
    "EpisodeWriter": ("pyarrow", "episodes on disk", "[arrow]", lambda path: EpisodeWriter(path / "a")),
    "EpisodeDataset": ("pyarrow", "episodes on disk", "[arrow]", stored),
    "sums": ("xxhash", "sums", "[arrow]", stored),
    "url": ("fsspec", "memory://a", "[remote]", lambda _: EpisodeDataset("memory://a")),
    "url of a kind": ("gcsfs", "gcs://a/b: Please install gcsfs", "[s3]", lambda _: EpisodeDataset("gcs://a/b")),
    "sql": ("duckdb", "SQL", "[sql]", lambda path: stored(path).sql("select 1")),
    "table.to_pandas": ("pandas", "pandas", "[pandas]", lambda path: stored(path).metadata.to_pandas()),
    "table.to_polars": ("polars", "polars", "[polars]", lambda path: stored(path).metadata.to_polars()),
    "found.to_polars": ("polars", "polars", "[polars]", polars_of_result),
    "to_parquet": ("pyarrow", "pyarrow", "[arrow]", lambda path: converters.to_parquet(EPISODES, path / "a")),
    "from_parquet": ("pyarrow", "pyarrow", "[arrow]", lambda path: converters.from_parquet(path / "steps")),
    "to_pandas": ("pandas", "DataFrame", "[pandas]", lambda _: converters.to_pandas(EPISODES)),
    "to_huggingface": ("datasets", "Hugging Face", "[huggingface]", lambda _: converters.to_huggingface(EPISODES)),
    "to_ray_data": ("ray", "Ray Data", "[ray,arrow]", lambda _: converters.to_ray_data(EPISODES)),
    "to_lerobot": ("av", "videos", "[video]", lambda path: converters.to_lerobot([images()], path / "a")),
    "to_rllib": ("ray", "RLlib's episodes", "[rllib]", lambda _: converters.to_rllib(EPISODES)),
    "to_rllib_parquet": (
        "pyarrow",
        "pyarrow",
        "[arrow]",
        lambda path: converters.to_rllib_parquet(EPISODES, path / "a"),
    ),
    "to_minari": ("minari", "Minari data", "[minari]", lambda _: converters.to_minari(EPISODES, "some/lost-v0")),
    "from_minari": ("minari", "Minari data", "[minari]", lambda path: converters.from_minari(path)),
    "from_d4rl": ("h5py", "D4RL's layout needs h5py", "[minari]", lambda path: converters.from_d4rl(path / "a.hdf5")),
    "to_tensordict": ("tensordict", "a TensorDict", "[tensordict]", lambda _: converters.to_tensordict(EPISODES)),
    "to_sb3": ("stable_baselines3", "a buffer of SB3", "stable-baselines3", lambda _: converters.to_sb3(EPISODES)),
    "to_tianshou": ("tianshou", "a buffer of Tianshou", "tianshou", lambda _: converters.to_tianshou(EPISODES)),
    "EpisodeReceiver": ("zmq", "receivers", "[zmq]", lambda _: EpisodeReceiver("tcp://127.0.0.1:*")),
    "RayRunnerGroup": ("ray", "runners in actors", "[ray]", runners),
    "plot_returns": ("matplotlib", "a plot", "[plot]", lambda _: inspect.plot_returns(EPISODES)),
    "video": ("imageio", "a video", "[video]", lambda path: inspect.video(images(), path / "a.mp4")),
    "WandbLogger": ("wandb", "WandbLogger", "[wandb]", WandbLogger),
    "TensorBoardLogger": ("torch.utils.tensorboard", "TensorBoardLogger", "[tensorboard]", TensorBoardLogger),
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
        writer.add(EPISODES)
    converters.to_parquet(EPISODES, tmp_path / "steps")
    hidden(package)
    with pytest.raises(MissingExtra) as caught:
        ask(tmp_path)
    message = str(caught.value)
    assert purpose in message
    assert "pip install " + (f"'.{install}'" if install.startswith("[") else install) in message
    assert not [left for left in tmp_path.iterdir() if "draft" in left.name]
