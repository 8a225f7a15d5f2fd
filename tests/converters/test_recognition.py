"""Recognition of files by their contents: all formats under any name, and an error with cause and remedy for others."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from samples import some

from episodes.converters import read, write
from episodes.converters.formats import FORMATS, count_episodes, recognize
from episodes.errors import InvalidArgument, UnreadableData
from episodes.storage import EpisodeDataset


def d4rl(folder: Path) -> Path:
    return foreign.d4rl(folder).value


def steps(folder: Path) -> Path:
    write([some()], folder / "steps", "parquet")
    return next((folder / "steps").glob("*.parquet"))


def npz(folder: Path) -> Path:
    np.savez(folder / "x.npz", a=np.zeros(9), b=np.zeros(9))
    return folder / "x.npz"


def lines(folder: Path) -> Path:
    (folder / "x.jsonl").write_text('{"obs": 1, "act": 2}\n' * 3)
    return folder / "x.jsonl"


def part(make: Callable[[Path], Path], share: float) -> Callable[[Path], Path]:
    """Return a function that makes a file, and truncates it to a share of its size."""

    def truncated(folder: Path) -> Path:
        path = make(folder)
        os.truncate(path, int(path.stat().st_size * share))
        return path

    return truncated


def file(name: str, content: bytes) -> Callable[[Path], Path]:
    def written(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return written


def foreign_table(folder: Path) -> Path:
    pq.write_table(pa.table({"price": [1.0], "city": ["a"]}), folder / "x.parquet")
    return folder / "x.parquet"


def folder_of(make: Callable[[Path], Any], name: str = "inner") -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        inner = folder / "outer" / name
        inner.mkdir(parents=True)
        make(inner)
        return folder / "outer"

    return made


def link(folder: Path) -> Path:
    (folder / "link").symlink_to("nowhere.h5")
    return folder / "link"


def loop(folder: Path) -> Path:
    (folder / "loop").symlink_to("loop")
    return folder / "loop"


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def own(folder: Path) -> Path:
    write([some()], folder / "data", "episodes")
    return folder / "data"


PNG = b"\x89PNG\r\n\x1a\n" + bytes(99)
WRONG: dict[str, tuple[Callable[[Path], Path], str, str]] = {  # the file, and words for the cause and the remedy
    "missing": (lambda folder: folder / "no/x.h5", "does not exist", "the last folder that exists is"),
    "a broken link": (link, "a link to nowhere.h5, which does not exist", "mend the link"),
    "unreadable": (loop, "cannot be read: Too many levels of symbolic links", "check the disk"),
    "a pipe": (pipe, "neither a file nor a folder", "give the path of a file"),
    "zero bytes": (file("x.parquet", b""), "is empty, 0 bytes", "download it again"),
    "HDF5 without its end": (part(d4rl, 0.5), "truncated: it ends after", "download it again"),
    "HDF5 of a few bytes": (part(d4rl, 0.001), "truncated: it ends after 94 of", "download it again"),
    "Parquet without its end": (part(steps, 0.9), "truncated: after", "download it again"),
    "Parquet of a few bytes": (part(steps, 0.002), "truncated: after", "download it again"),
    "NPZ without its end": (part(npz, 0.7), "truncated: after", "download it again"),
    "lines of JSON without an end": (part(lines, 0.9), "truncated: line 3 stops", "download it again"),
    "a picture": (file("x.png", PNG), "it is a picture", "give the file with the steps"),
    "a picture as HDF5": (file("x.h5", PNG), "it is a picture", "give the file with the steps"),
    "a pickle": (file("x.pkl", pickle.dumps([1])), "it is a pickle", "load it, and pass its arrays"),
    "compressed": (file("x.csv.xz", b"\xfd7zXZ\0\0"), "compressed by xz", "decompress it first"),
    "unknown bytes": (file("x.bin", bytes(range(256))), "bytes of an unknown kind", "load it yourself"),
    "text": (file("README", b"Data of robots.\n"), "text, which no format reads", "load it yourself"),
    "a foreign table": (foreign_table, "a Parquet table with the columns 'price', 'city'", "--episode"),
    "an empty folder": (folder_of(lambda folder: None), "an empty folder", "give the folder of a data set"),
    "a folder of pictures": (folder_of(file("1.png", PNG)), "a folder with the files 'inner/1.png'", "give the folder"),
    "a folder above a data set": (
        lambda path: own(path).parent,
        "which no format reads",
        "'data' in it is of the format",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_file_error_names_cause_and_remedy(name: str, tmp_path: Path) -> None:
    make, cause, remedy = WRONG[name]
    path = make(tmp_path)
    for given in (path, str(path), f"file://{path}"):
        with pytest.raises(UnreadableData) as caught:
            read(given)
        assert str(path) in str(caught.value)
        assert cause in str(caught.value)
        assert remedy in str(caught.value)


@pytest.mark.parametrize("name", ["missing", "zero bytes", "HDF5 without its end", "a picture", "a foreign table"])
@pytest.mark.parametrize("format", sorted(set(FORMATS) - {"minari"}))
def test_wrong_file_of_a_named_format_names_the_cause(name: str, format: str, tmp_path: Path) -> None:
    make, cause, _ = WRONG[name]
    with pytest.raises(UnreadableData) as caught:
        read(make(tmp_path), format)
    assert cause in str(caught.value)


def test_error_of_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*arguments: Any, **options: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    path = lines(tmp_path)
    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(UnreadableData, match="this user may not read it; change its permissions"):
        read(path)


def test_folder_and_file_in_place_of_each_other(tmp_path: Path) -> None:
    file, data = d4rl(tmp_path), own(tmp_path)
    with pytest.raises(
        UnreadableData, match=r"a folder with the files .* not HDF5 of D4RL; it is of the format 'episod"
    ):
        read(data, "d4rl")
    with pytest.raises(
        UnreadableData, match=r"HDF5 with the arrays .* not data sets of this library; it is of the form"
    ):
        read(file, "episodes")
    with pytest.raises(UnreadableData, match=r"'data' in it is of the format 'episodes'; give .*/data"):
        read(tmp_path)


FILES = {
    name: foreign.FORMATS[name][0]
    for name in (
        "d4rl", "robomimic", "aloha", "d3rlpy", "tianshou file", "minari", "minari arrow", "lerobot", "lerobot 2",
        "own parquet", "npz", "imitation", "zarr", "zarr 3 zip", "rlds", "rlds array_record", "rllib-json",
    )
}  # fmt: skip
UNCOUNTED = {"d4rl", "tianshou file", "npz", "imitation", "zarr", "zarr 3 zip", "rllib-json"}


@pytest.mark.parametrize("name", FILES)
def test_recognition_does_not_depend_on_the_name(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    path, format = Path(FILES[name](folder).value), {"own parquet": "parquet"}.get(name, name.partition(" ")[0])
    before = [episode.id_ for episode in read(path)[0]]
    renamed = tmp_path / "other.txt"
    shutil.move(path, renamed)
    assert recognize(renamed).name == format
    assert count_episodes(renamed) == (None if name in UNCOUNTED else len(before))
    assert [episode.id_ for episode in read(renamed)[0]] == before


def test_table_of_json_with_a_column_value_is_no_batch_of_rllib(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"obs": 1.0, "action": 0, "value": 3.0}\n' * 3)
    assert recognize(tmp_path / "x.jsonl").name == "table"


def test_option_that_a_format_does_not_have_raises(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="has no option 'speed'; it has none"):
        read(own(tmp_path), speed=3)


def test_home_and_file_urls_are_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for number, target in enumerate(["~/a b", f"file://{tmp_path}/c%20d"]):
        for format in ("parquet", "episodes", "rllib", "lerobot"):
            write([some()], f"{target}/{format}", format)
            episodes, _ = read(f"{target}/{format}")
            assert [len(episode) for episode in episodes] == [len(some())], (number, format)
        assert len(EpisodeDataset(target.replace("%20", " ") + "/episodes")) == 1
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["a b", "c d"]
