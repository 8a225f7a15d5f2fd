"""Data sets on hubs: folders behind fsspec, which `upload` or another program filled."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from torch.utils.data import DataLoader

from connectors.sampled_batches import sampled_loader
from episodes import SingleAgentEpisode
from episodes.errors import WrongType
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter, copy, upload
from episodes.storage.remote.remote_directory import RemoteDirectory, is_remote


def data_set(path: Path, numbers: range = range(4)) -> Path:
    with EpisodeWriter(path) as writer:
        for n in numbers:
            writer.add([SingleAgentEpisode.from_arrays(np.arange(4.0), [0, 1, 0], [1.0, n, 0.0], id_=f"e{n}")])
    return path


class Hub(DirFileSystem):
    """File system with directories below a folder of this machine, at "hub://NAME"."""

    protocol = "hub"
    root: ClassVar[Path]
    written: ClassVar[list[str]] = []

    def __init__(self, **options: Any) -> None:
        super().__init__(path=str(self.root), fs=LocalFileSystem(auto_mkdir=True))

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.partition("://")[2] if "://" in path else path

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        self.written.append(path)
        super().pipe_file(path, value, **options)

    def put_file(self, lpath: str, rpath: str, *args: Any, **options: Any) -> None:
        self.written.append(rpath)
        super().put_file(lpath, rpath, *args, **options)


class Commits(Hub):
    """File system in which each written file is a commit, as at Hugging Face's."""

    protocol = "hf"


@pytest.fixture(params=[Hub, Commits])
def hub(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of an empty data set."""
    kind = request.param
    before = fsspec.get_filesystem_class("hf")
    Hub.root, Hub.written = tmp_path / "hub", []
    fsspec.register_implementation(kind.protocol, kind, clobber=True)
    kind.clear_instance_cache()
    yield f"{kind.protocol}://datasets/me/walks"
    fsspec.register_implementation("hf", before, clobber=True)


def test_upload_read_and_upload_again(hub: str, tmp_path: Path) -> None:
    from episodes.inspect import write_card

    path = data_set(tmp_path / "data")
    card = write_card(path, url=hub)
    assert upload(path, hub) == 1
    stored = EpisodeDataset(hub, cache=tmp_path / "cache")
    assert stored.pack() == EpisodeDataset(path).pack()
    assert (Hub.root / "datasets/me/walks/README.md").read_text() == card.read_text()
    names = [name.rpartition("/")[2] for name in Hub.written]
    assert len(names) == len(set(names))
    assert any(name.endswith(".draft") for name in names) == (not hub.startswith("hf"))
    Hub.written.clear()
    assert upload(path, hub) == 0
    data_set(path, range(4, 6))
    assert upload(path, hub) == 1
    assert [one.id_ for one in EpisodeDataset(hub, cache=tmp_path / "cache")] == [f"e{n}" for n in range(6)]
    assert copy(hub, tmp_path / "back") == 6


def test_folder_that_another_program_copied(hub: str, tmp_path: Path) -> None:
    path = data_set(tmp_path / "data")
    shutil.copytree(path, Hub.root / "datasets/me/walks")
    for name in ("README.md", ".gitattributes", "notes.txt"):
        (Hub.root / "datasets/me/walks" / name).write_text("text")
    assert EpisodeDataset(hub, cache=tmp_path / "cache").pack() == EpisodeDataset(path).pack()


def test_chained_url_is_remote(hub: str, tmp_path: Path) -> None:
    path = data_set(tmp_path / "data")
    upload(path, hub)
    url = f"simplecache::{hub}"
    assert is_remote(url)
    assert len(EpisodeDataset(url, cache=tmp_path / "cache")) == 4


def test_file_url_is_read_in_place(tmp_path: Path) -> None:
    path = data_set(tmp_path / "data")
    dataset = EpisodeDataset(f"file://{path}", cache=tmp_path / "cache")
    assert dataset.path == path
    assert not (tmp_path / "cache").exists()
    assert not is_remote(f"file://{path}")


def test_file_url_of_an_upload_shows_whole_uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, url = data_set(tmp_path / "data"), f"file://{tmp_path}/there"
    upload(path, url)
    data_set(path, range(4, 6))
    with monkeypatch.context() as patch:
        patch.setattr(RemoteDirectory, "write", lambda *_: pytest.fail("stop"))
        with pytest.raises(pytest.fail.Exception):
            upload(path, url)
    assert is_remote(url)
    assert len(EpisodeDataset(url, cache=tmp_path / "cache")) == 4


@pytest.mark.parametrize(("batch_size", "num_workers"), [(None, 0), (2, 1)])
@pytest.mark.parametrize(("kind", "advice"), [("sampler", "sampled_loader"), ("buffer", r"sample\(\)")])
def test_loader_of_what_has_no_items_names_the_remedy(
    kind: str, advice: str, num_workers: int, batch_size: int | None, tmp_path: Path
) -> None:
    dataset = EpisodeDataset(data_set(tmp_path / "data"))
    source: Any = dataset.sampler(steps=2) if kind == "sampler" else EpisodeReplayBuffer.from_dataset(dataset)
    with pytest.raises(WrongType, match=advice):
        next(iter(DataLoader(source, batch_size=batch_size, num_workers=num_workers)))
    if kind == "sampler":
        assert len([*sampled_loader(source)]) == 6
