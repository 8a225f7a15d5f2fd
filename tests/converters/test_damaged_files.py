"""Damaged files of each format: episodes or an error by name, and never another error or a crash."""

from __future__ import annotations

from pathlib import Path

import foreign
import numpy as np
import pytest

from episodes.converters import read
from episodes.converters.formats import count_episodes
from episodes.errors import EpisodeError, UnreadableData

OBJECTS = {"d3rlpy buffer", "sb3", "tianshou", "tensordict", "trl", "skyrl", "prime-rl", "verl", "messages"}
OF_FILES = [name for name in foreign.FORMATS if name not in OBJECTS]


@pytest.fixture(autouse=True)
def _temporary_minari_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def damage(data: bytes, rng: np.random.Generator) -> bytes:
    """Return the bytes of a file, cut at a random place, or with random bits or a block of them changed."""
    changed = np.frombuffer(data, np.uint8).copy()
    kind, at = rng.integers(3), int(rng.integers(len(data)))
    if kind == 0:
        return data[:at]
    if kind == 1:
        changed[at : at + 64] = 0
    else:
        places = rng.integers(len(data), size=int(rng.choice([1, 20])))
        changed[places] ^= (1 << rng.integers(8, size=len(places))).astype(np.uint8)
    return changed.tobytes()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OF_FILES)
def test_damaged_file_has_episodes_or_an_error_by_name(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(len(name))
    source = Path(foreign.FORMATS[name][0](tmp_path).value)
    files = [file for file in sorted(source.rglob("*")) if file.is_file()] if source.is_dir() else [source]
    num_errors = 0
    for _ in range(25):
        file = files[rng.integers(len(files))]
        data = file.read_bytes()
        file.write_bytes(damage(data, rng))
        try:
            count_episodes(source)
            list(read(source)[0])
        except EpisodeError:
            num_errors += 1
        file.write_bytes(data)
    assert num_errors
    assert list(read(source)[0])


@pytest.mark.parametrize("words", ["{", "{}", '{"total_steps": 1}', "\xff"])
def test_damaged_metadata_of_minari_raises(words: str, tmp_path: Path) -> None:
    source = foreign.minari(tmp_path).value
    (source / "data/metadata.json").write_bytes(words.encode("latin-1"))
    with pytest.raises(UnreadableData, match=r"metadata\.json|cannot be read as|which no format reads"):
        list(read(source)[0])
