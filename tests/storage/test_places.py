"""Places of files: "~", `file://` URLs and paths that `pathlib` made of URLs, in every function that takes a path."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from connectors.actor import Actor
from episode_learners import MLPPolicy
from episode_learners.loggers import CSVLogger, TensorBoardLogger
from episodes import SingleAgentEpisode
from episodes.command.opening import data_path, data_path_or_same, local
from episodes.converters import read, write
from episodes.errors import InvalidArgument
from episodes.inspect import video, write_card
from episodes.inspect.html_report import write_report
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter, check, compact, copy, merge, seal, upload
from episodes.storage.files import local_path
from episodes.transport import make_keys

Place = Any  # a path in one of its spellings


def episode(n: int = 0) -> SingleAgentEpisode:
    frames = np.zeros((3, 16, 16, 3), np.uint8)
    return SingleAgentEpisode.from_arrays({"frame": frames}, [0, 1], [1.0, 1.0], terminated=True, id_=f"e{n}")


def data_set(path: Path) -> Path:
    with EpisodeWriter(path) as writer:
        writer.add([episode()])
    return path


def actor() -> Actor:
    return Actor(MLPPolicy, spaces.Box(-1, 1, (2,)), spaces.Discrete(2))


def written(place: Place) -> None:
    with EpisodeWriter(place) as writer:
        writer.add([episode()])


def table(place: Place) -> None:
    write([SingleAgentEpisode.from_arrays(np.zeros(2), [0], [1.0])], place, "parquet")


def logged(logger: CSVLogger) -> None:
    logger.write("train", {"loss": 1.0}, 0)
    logger.close()


WRITERS: dict[str, Callable[[Place, Path], object]] = {
    "EpisodeWriter": lambda place, data: written(place),
    "copy": lambda place, data: copy(data, place),
    "merge": lambda place, data: merge(place, data),
    "upload": lambda place, data: upload(data, place),
    "write parquet": lambda place, data: table(place),
    "write episodes": lambda place, data: write([episode()], place, "episodes"),
    "write_report": lambda place, data: write_report(EpisodeDataset(data), place),
    "video": lambda place, data: video(episode(), f"{place}.gif"),
    "Selection.save": lambda place, data: EpisodeDataset(data).sql("select * from episodes").save(place),
    "Actor.save": lambda place, data: actor().save(place),
    "EpisodeReplayBuffer": lambda place, data: EpisodeReplayBuffer(100, path=place).close(),
    "to_dataset": lambda place, data: EpisodeReplayBuffer.from_dataset(EpisodeDataset(data)).to_dataset(place),
    "make_keys": lambda place, data: make_keys(place),
    "CSVLogger": lambda place, data: logged(CSVLogger(place)),
    "TensorBoardLogger": lambda place, data: TensorBoardLogger(place).close(),
}
READERS: dict[str, Callable[[Place], object]] = {
    "EpisodeDataset": EpisodeDataset,
    "check": check,
    "compact": compact,
    "seal": seal,
    "read": lambda place: next(read(place)[0]),
    "copy": lambda place: copy(place, local_path(place).with_name("copied")),
    "merge": lambda place: merge(local_path(place).with_name("merged"), place),
    "upload": lambda place: upload(place, f"memory://{local_path(place)}"),
    "write_card": write_card,
    "data_path": data_path,
    "data_path_or_same": data_path_or_same,
    "argument of a command": lambda place: EpisodeDataset(local(str(place))),
}
SPELLINGS: dict[str, Callable[[Path], Place]] = {
    "home": lambda path: f"~/{path.name}",
    "home as a path": lambda path: Path("~") / path.name,
    "URL": lambda path: f"file://{path}",
    "URL with host": lambda path: f"file://localhost{path}",
    "URL of home": lambda path: f"file://~/{path.name}",
    "URL as a path": lambda path: Path(f"file://{path}"),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home directory, in another folder than the working directory, which stays empty."""
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", WRITERS)
def test_files_are_written_where_the_spelling_means(name: str, spelling: str, home: Path, tmp_path: Path) -> None:
    WRITERS[name](SPELLINGS[spelling](home / "made"), data_set(tmp_path / "data"))
    assert [path.name.removesuffix(".gif") for path in home.iterdir() if path.suffix != ".lock"] == ["made"]
    assert os.listdir() == []


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", READERS)
def test_files_are_read_where_the_spelling_means(name: str, spelling: str, home: Path) -> None:
    place = SPELLINGS[spelling](data_set(home / "data"))
    READERS[name](str(place) if name in ("data_path", "data_path_or_same") else place)
    assert os.listdir() == []


@pytest.mark.parametrize("name", WRITERS)
def test_url_that_pathlib_shortened_is_an_error(name: str, home: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="give the URL as text"):
        WRITERS[name](Path("s3://bucket/made"), data_set(tmp_path / "data"))
    assert os.listdir() == []


@given(st.lists(st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1), min_size=1, max_size=3))
def test_url_of_any_path_is_that_path(parts: list[str]) -> None:
    path = Path("/", *(part for part in parts if part not in (".", "..")))
    assert local_path(path) == local_path(str(path)) == local_path(path.as_uri()) == path
    relative = Path(*path.parts[1:])
    if not relative.parts or relative.parts[0].startswith("~"):
        return
    if re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.:-]+:", relative.parts[0]) and len(relative.parts) > 1:
        with contextlib.suppress(InvalidArgument):  # it looks like a URL
            assert local_path(relative) == relative
    else:
        assert local_path(relative) == relative
