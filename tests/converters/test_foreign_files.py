"""Files of other libraries: endings, last observations, pickles and damage, for each format and each place."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import shutil
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from foreign import T, reading
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from episodes import SingleAgentEpisode
from episodes.converters import read, to_lerobot, transitions, write
from episodes.converters.tf_examples import features_of
from episodes.errors import EpisodeError, UnreadableData
from episodes.facts import Ending

NEW = ["npz", "imitation", "zarr", "zarr 3", "zarr zip", "rlds", "rlds array_record", "lerobot 2", "rllib-json"]
WITHOUT_LAST = {"zarr", "zarr 3", "zarr zip", "lerobot 2"}  # the observation after the last step is not stored


@pytest.mark.parametrize("name", NEW)
def test_values_endings_and_times_are_those_of_the_source(name: str, tmp_path: Path) -> None:
    episodes, _ = reading(foreign.FORMATS[name][0](tmp_path).value)
    for k, episode in enumerate(episodes):
        expected = foreign.episode(k)
        num = T - (name in WITHOUT_LAST and k != 0)
        observations = episode.get_observations()
        observations = observations["state"] if isinstance(observations, dict) else observations
        known = num if name in WITHOUT_LAST else T + 1
        assert observations[:known].tolist() == expected.get_observations()[:known].tolist()
        assert episode.get_actions().tolist() == expected.get_actions()[:num].tolist()
        assert episode.get_rewards().tolist() == expected.get_rewards()[:num].tolist()
        cut = name.startswith("zarr") and k == 1
        assert episode.facts.ending == (Ending.OPEN if cut else expected.facts.ending)


@pytest.mark.parametrize("name", NEW)
def test_converted_data_set_has_the_episodes_of_the_source(name: str, tmp_path: Path) -> None:
    source = foreign.FORMATS[name][0](tmp_path).value
    write(read(source)[0], tmp_path / "out", "episodes")
    for stored, episode in zip(read(tmp_path / "out")[0], read(source)[0], strict=True):
        assert (stored.id_, stored.facts.ending, stored.custom_data) == (
            episode.id_, episode.facts.ending, episode.custom_data
        )  # fmt: skip
        assert stored.get_rewards().tolist() == episode.get_rewards().tolist()
        assert stored.get_actions().tolist() == episode.get_actions().tolist()
        assert str(stored.get_infos()) == str(episode.get_infos())


def saved(path: Path, num: int = 6, observed: int | None = None, **arrays: Any) -> Path:
    """Write an NPZ archive with observations 0, 1, 2, ... and rewards."""
    columns = {"obs": np.arange(observed or num) * 1.0, "actions": np.zeros(num), "rewards": np.arange(num) * 1.0}
    columns |= {key: np.asarray(value) for key, value in arrays.items()}
    np.savez(path, **{key: value for key, value in columns.items() if value.shape != (0,)})  # type: ignore[arg-type]
    return path


ENDS = np.arange(6) % 3 == 2  # two episodes of three rows
TERMINATED, TRUNCATED, OPEN = Ending.TERMINATED, Ending.TRUNCATED, Ending.OPEN
MARKS: dict[str, tuple[dict[str, Any], list[Ending], str]] = {  # arrays, endings, and what the report names
    "terminals and timeouts": (
        {"terminals": ENDS & (np.arange(6) < 3), "timeouts": ENDS},
        [Ending.BOTH, TRUNCATED],
        "",
    ),
    "terminals alone": ({"terminals": ENDS}, [TERMINATED] * 2, "truncations"),
    "terminals without rewards": ({"terminals": ENDS, "rewards": []}, [TRUNCATED] * 2, "whether it terminated"),
    "dones alone": ({"dones": ENDS}, [TERMINATED] * 2, "truncations"),
    "dones and timeouts": ({"dones": ENDS, "timeouts": ENDS & (np.arange(6) > 3)}, [TERMINATED, TRUNCATED], ""),
    "dones and terminals": ({"dones": ENDS, "terminals": ENDS & (np.arange(6) < 3)}, [TERMINATED, TRUNCATED], ""),
    "masks and dones": ({"dones_float": ENDS * 1.0, "masks": 1.0 - (np.arange(6) == 2)}, [TERMINATED, TRUNCATED], ""),
    "masks and terminals": ({"terminals": ENDS, "masks": np.ones(6)}, [TRUNCATED] * 2, ""),
    "episode_starts": ({"episode_starts": np.roll(ENDS, 1)}, [OPEN] * 2, "endings"),
    "episode_ends": ({"episode_ends": [3, 6]}, [OPEN] * 2, "endings"),
    "traj_lengths": ({"traj_lengths": [3, 3]}, [OPEN] * 2, "endings"),
    "terminals and lengths": ({"terminals": np.arange(6) == 2, "traj_lengths": [3, 3]}, [TERMINATED, OPEN], ""),
    "nothing": ({}, [OPEN], "endings"),
}


@pytest.mark.parametrize("with_next", [True, False])
@pytest.mark.parametrize("marks", MARKS)
def test_endings_of_npz_are_those_of_its_marks(marks: str, with_next: bool, tmp_path: Path) -> None:
    arrays, endings, reported = MARKS[marks]
    if with_next:
        arrays = arrays | {"next_observations": np.arange(6) + 1.0}
    episodes, report = reading(saved(tmp_path / "x.npz", **arrays))
    assert [episode.facts.ending for episode in episodes] == endings
    first = [episode.get_observations(0) for episode in episodes]
    assert first == ([0, 3] if len(endings) == 2 else [0])
    about_endings = {"truncations", "whether it terminated", "endings"} & {loss.what for loss in report}
    assert about_endings == ({reported} if reported else set())


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a shorter array": ({"rewards": np.zeros(5)}, r"'obs' has 6 rows, 'rewards' has 5|'actions' has 6 rows"),
    "observations of another length": ({"obs": np.zeros(4)}, r"'obs' has 4 rows"),
    "ends beyond the steps": (
        {"episode_ends": [3, 7]},
        r"by 'episode_ends' the episodes have 7 steps, the arrays have 6",
    ),
    "ends before the last step": ({"episode_ends": [3, 5]}, r"have 5 steps, the arrays have 6"),
    "ends that descend": ({"episode_ends": [6, 3]}, r"'episode_ends' holds no ascending whole numbers"),
    "lengths with a fraction": ({"traj_lengths": [3.0, 3.0]}, r"'traj_lengths' holds no ascending whole numbers"),
    "flags of several agents": ({"dones": np.zeros((6, 2))}, r"'dones' has shape \(6, 2\); it has one number per step"),
    "text": ({"actions": np.array(["a"] * 6)}, r"'actions' holds text"),
    "Python objects": ({"actions": np.array([None] * 6)}, r"'actions'.* a pickle and may run code"),
}


@pytest.mark.parametrize("case", WRONG)
def test_npz_that_contradicts_itself_is_refused_by_name(case: str, tmp_path: Path) -> None:
    arrays, message = WRONG[case]
    with pytest.raises(UnreadableData, match=message):
        reading(saved(tmp_path / "x.npz", **arrays))


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    rows=st.integers(1, 8),
    dtype=st.sampled_from(["f4", "f8", "i8", "u1"]),
    shape=st.sampled_from([(), (2,), (3, 2)]),
    fortran=st.booleans(),
    last=st.booleans(),
)
def test_streamed_npz_equals_arrays_that_are_loaded(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    rows: int,
    dtype: str,
    shape: tuple[int, ...],
    fortran: bool,
    last: bool,
) -> None:
    num = sum(lengths)
    generator = np.random.default_rng(num)
    observations = generator.integers(0, 99, (num + last, *shape)).astype(dtype)
    ends = np.isin(np.arange(num), np.cumsum(lengths) - 1)
    path = tmp_path_factory.mktemp("npz") / "x.npz"
    given_array = np.asfortranarray(observations) if fortran else observations
    np.savez(path, observations=given_array, actions=np.arange(num), rewards=np.zeros(num), timeouts=ends)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transitions, "_BLOCK", 32 * rows)  # bytes that are read together
        episodes, _ = reading(path)
    expected = []
    for stop, length in zip(np.cumsum(lengths).tolist(), lengths, strict=True):
        until = stop + (last and stop == num)
        if until - (stop - length) > 1:
            expected.append(observations[stop - length : until])
    assert [episode.get_observations().tolist() for episode in episodes] == [array.tolist() for array in expected]
    assert all(episode.get_observations().dtype == dtype for episode in episodes)


def run_code() -> None:
    raise AssertionError("code of a pickle was run")


class Trap:
    def __reduce__(self) -> Any:
        return run_code, ()


def npz_with_a_pickle(path: Path) -> Path:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": (6,)})  # type: ignore[arg-type]
    import zipfile

    source = saved(path / "x.npz", actions=[])
    with zipfile.ZipFile(source, "a") as archive:
        archive.writestr("actions.npy", file.getvalue() + pickle.dumps(Trap()))
    return source


def zarr_with_a_pickle(path: Path, of: str = "data/action") -> Path:
    """Write a store whose metadata name the codec for pickles, and whose first chunk is one that runs code."""
    source = foreign.zarr(path).value
    metadata = source / of / ".zarray"
    document = json.loads(metadata.read_text()) | {"compressor": None, "filters": [{"id": "pickle", "protocol": 5}]}
    metadata.write_text(json.dumps(document))
    (source / of / "0").write_bytes(pickle.dumps(Trap()))
    return source


def imitation_with_objects(path: Path) -> Path:
    import datasets

    info = json.dumps({"py/reduce": [{"py/function": f"{__name__}.run_code"}, {"py/tuple": []}]})
    row = {"obs": [[[0.0], [1.0]]], "acts": [[0]], "rews": [[1.0]], "terminal": [True], "infos": [[info]]}
    datasets.Dataset.from_dict(row).save_to_disk(path / "x")
    return path / "x"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (npz_with_a_pickle, r"'actions'.* a pickle and may run code"),
        (zarr_with_a_pickle, r"'data/action' is stored as Python objects, a pickle"),
        (lambda path: zarr_with_a_pickle(path, "meta/episode_ends"), r"'meta/episode_ends' is stored as .* a pickle"),
    ],
    ids=["npz", "zarr", "zarr ends"],
)
def test_pickles_are_refused_and_run_no_code(make: Callable[[Path], Path], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableData, match=message):
        reading(make(tmp_path))


def test_objects_of_jsonpickle_are_reported_and_run_no_code(tmp_path: Path) -> None:
    (episode,), report = reading(imitation_with_objects(tmp_path))
    assert "py/reduce" in str(report)
    assert episode.get_infos() == [{}, {}]


def damaged(name: str, path: Path) -> tuple[Path, str]:
    """Return a source of which a part is missing, and words of the error."""
    source = foreign.FORMATS[name][0](path).value
    if name == "npz":
        data = bytearray(source.read_bytes())
        data[300] ^= 255
        source.write_bytes(data)
        return source, "damaged archive|no array of|not an array"
    if name == "imitation":
        (file,) = source.glob("*.arrow")
        file.write_bytes(file.read_bytes()[:-900])
        return source, file.name
    if name == "rlds":
        file = max(source.glob("*.tfrecord*"))
        file.write_bytes(file.read_bytes()[:-9])
        return source, "truncated or not TFRecord"
    if name == "rlds array_record":
        max(source.glob("*array_record*")).unlink()
        return source, "of the 2 files of the split 'train', 1 are missing, the first is 00001-of-00002"
    if name == "lerobot 2":
        (source / "data/chunk-000/episode_000001.parquet").unlink()
        return source, "episode_000001"
    ends = "zarr.json" if name == "zarr 3" else ".zarray"
    metadata = source / "data/action" / ends
    metadata.write_text(metadata.read_text()[:20])
    return source, "not a zarr store"


@pytest.mark.parametrize("name", ["npz", "imitation", "rlds", "rlds array_record", "lerobot 2", "zarr", "zarr 3"])
def test_damaged_source_raises_an_error_with_its_place(name: str, tmp_path: Path) -> None:
    source, words = damaged(name, tmp_path)
    with pytest.raises(UnreadableData, match=words):
        reading(source)


def test_missing_chunks_of_zarr_are_reported(tmp_path: Path) -> None:
    source = foreign.zarr(tmp_path).value
    (source / "data/state/1.0").unlink()
    _, report = reading(source)
    assert "data/state: 1 of its chunks are not stored" in str(report)


def png(array: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(array).save(file, "png")
    return file.getvalue()


def test_images_in_rlds_and_in_tables_of_lerobot_are_read(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (T + 1, 8, 9, 3)).astype(np.uint8)
    images = [png(image) for image in pixels]
    root = foreign.rlds(tmp_path).value
    document = json.loads((root / "features.json").read_text())
    steps = document["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    shape = {"dimensions": ["8", "9", "3"]}
    steps["observation"] = {"image": {"shape": shape, "dtype": "uint8", "encodingFormat": "png"}}
    (root / "features.json").write_text(json.dumps(document))
    record = foreign.example({"steps/observation": images, "steps/action": np.zeros(T + 1, np.int64)})
    for file in root.glob("*.tfrecord*"):
        file.write_bytes(struct.pack("<Q", len(record)) + bytes(4) + record + bytes(4))
    episode = reading(root)[0][0]
    assert np.array_equal(episode.get_observations(), pixels)

    robot = foreign.lerobot_2(tmp_path).value
    info = json.loads((robot / "meta/info.json").read_text())
    info["features"]["observation.image"] = {"dtype": "image", "shape": [3, 8, 9], "names": None}
    (robot / "meta/info.json").write_text(json.dumps(info))
    for file in (robot / "data").rglob("*.parquet"):
        table = pq.read_table(file)
        column = pa.array([{"bytes": image, "path": None} for image in images[:T]])
        pq.write_table(table.append_column("observation.image", column), file)
    episode = reading(robot)[0][0]
    assert np.array_equal(episode.get_observations()["image"][:T], pixels[:T])


def test_videos_of_lerobot_2_are_read(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (T + 1, 16, 16, 3)).astype(np.uint8)
    source = SingleAgentEpisode.from_arrays(images, np.zeros(T), np.zeros(T), terminated=True)
    with warnings.catch_warnings(action="ignore"):
        to_lerobot([source], tmp_path / "new", lossless=True)
    root = tmp_path / "new"
    (video,) = root.rglob("*.mp4")
    key = video.parent.parent.name
    info = json.loads((root / "meta/info.json").read_text()) | {"codebase_version": "v2.0", "chunks_size": 1000}
    del info["rl_episodes"]
    info["data_path"] = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    info["video_path"] = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    (root / "meta/info.json").write_text(json.dumps(info))
    place = root / f"videos/chunk-000/{key}/episode_000000.mp4"
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(video, place)
    (data,) = (root / "data").rglob("*.parquet")
    data.rename(data.parent / "episode_000000.parquet")
    (root / "meta/episodes.jsonl").write_text(json.dumps({"episode_index": 0, "tasks": ["a"], "length": T}))
    (episode,), _ = reading(root)
    assert np.array_equal(episode.get_observations()[:T], images[:T])


@given(
    ints=nps.arrays(np.int64, st.integers(0, 9)),
    floats=nps.arrays(np.float32, st.integers(0, 9), elements=st.floats(width=32, allow_nan=False)),
    texts=st.lists(st.binary(max_size=9), max_size=4),
)
def test_examples_of_tensorflow_are_read_as_they_were_written(
    ints: np.ndarray, floats: np.ndarray, texts: list[bytes]
) -> None:
    features = features_of(foreign.example({"i": ints, "f": floats, "b": texts, "ü": ints}))
    assert [*features] == ["i", "f", "b", "ü"]
    assert features["b"] == texts
    for name, array in (("i", ints), ("f", floats), ("ü", ints)):
        assert np.array_equal(features[name], array)
        assert features[name].dtype == array.dtype  # type: ignore[union-attr]


@given(st.binary(max_size=60), st.integers(0, 400))
def test_damaged_example_raises_or_returns_features(noise: bytes, at: int) -> None:
    record = bytearray(foreign.example({"i": np.arange(50) * 99, "b": [b"abc"] * 5}))
    record[at : at + len(noise)] = noise
    with contextlib.suppress(UnreadableData):
        features_of(bytes(record))


FUZZED = ["npz", "imitation", "zarr", "zarr zip", "rlds", "rllib-json", "lerobot 2"]


@pytest.mark.parametrize("name", FUZZED)
def test_changed_bytes_of_any_file_raise_by_name_or_are_read(name: str, tmp_path: Path) -> None:
    random, made = np.random.default_rng(0), tmp_path / "made"
    made.mkdir()
    source = foreign.FORMATS[name][0](made).value
    for number in range(25):
        copied = tmp_path / str(number) / source.name
        copied.parent.mkdir()
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copied)
        files = sorted(file for file in copied.rglob("*") if file.is_file()) or [copied]
        file = files[random.integers(len(files))]
        data = bytearray(file.read_bytes())
        start = int(random.integers(max(len(data), 1)))
        data[start : start + 5] = random.bytes(5) if number % 2 else b""
        file.write_bytes(data[: start if number % 3 == 0 else None])
        with contextlib.suppress(EpisodeError):
            reading(copied)
