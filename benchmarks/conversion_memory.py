"""Peak memory of conversions of large files: `python -m benchmarks.conversion_memory [--mb 1000] [FORMAT ...]`.

Each file is written, read by another process, and deleted. "own" is the memory of that process alone. "peak" includes
parts of mapped files, which the operating system can drop.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

LENGTH, WIDTH, ACTIONS = 1_000, 250, 6  # steps of an episode, numbers of an observation and of an action
_READ = """
import sys, time
from episodes.converters import read, write
from benchmarks.conversion_memory import watched
episodes, _ = read(sys.argv[1])
with watched() as peaks:
    if len(sys.argv) > 2:
        write(episodes, sys.argv[2], "episodes")
    else:
        for _ in episodes: pass
print(*peaks())
"""


class watched:
    """Context manager that samples the memory of this process. Its value is a function to the peaks in MB: own, all."""

    def __enter__(self) -> Callable[[], tuple[float, float]]:
        import threading

        self._most, self._is_over = 0.0, threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()
        return lambda: (self._most, status("VmHWM"))

    def _sample(self) -> None:
        while not self._is_over.wait(0.005):
            self._most = max(self._most, status("RssAnon"))

    def __exit__(self, *_: object) -> None:
        self._is_over.set()


def status(key: str) -> float:
    """Return a value of /proc/self/status in MB."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key + ":")]
    return int(line.split()[1]) / 1000


def parts(num: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield the arrays of `num` episodes."""
    rng = np.random.default_rng(0)
    for _ in range(num):
        observations = rng.random((LENGTH + 1, WIDTH), np.float32)
        ends = np.arange(LENGTH) == LENGTH - 1
        arrays = {"whole": observations, "obs": observations[:-1], "next": observations[1:]}
        yield arrays | {"actions": rng.random((LENGTH, ACTIONS)), "rewards": rng.random(LENGTH), "ends": ends}


def own_episodes(num: int) -> Iterator[Any]:
    """Yield episodes of this library."""
    from gymnasium import spaces

    from episodes import SingleAgentEpisode

    known: dict[str, Any] = {
        "observation_space": spaces.Box(0, 1, (WIDTH,), np.float32),
        "action_space": spaces.Box(0, 1, (ACTIONS,), np.float64),
    }
    for number, part in enumerate(parts(num)):
        arrays = part["whole"], part["actions"], part["rewards"]
        yield SingleAgentEpisode.from_arrays(*arrays, terminated=True, id_=f"e{number}", **known)


def by_write(format: str, **options: Any) -> Callable[[Path, int], Path]:
    """Return a function that writes a data set with this library."""

    def written(folder: Path, num: int) -> Path:
        from episodes.converters import write

        write(own_episodes(num), folder / "data", format, **options)
        return folder / "data"

    return written


def minari(folder: Path, num: int) -> Path:
    """Write a data set of Minari."""
    from episodes.converters import write

    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    write(own_episodes(num), "some/large-v0", "minari")
    return folder / "some/large-v0"


def flat_hdf5(folder: Path, num: int) -> Path:
    """Write a file in D4RL's layout."""
    import h5py

    names = {"observations": "obs", "actions": "actions", "rewards": "rewards", "terminals": "ends", "timeouts": "ends"}
    with h5py.File(folder / "data.hdf5", "w") as file:
        for number, part in enumerate(parts(num)):
            for name, key in names.items():
                rows = part[key] if name != "timeouts" else np.zeros(LENGTH, bool)
                if not number:
                    file.create_dataset(name, (num * LENGTH, *rows.shape[1:]), rows.dtype)
                array: Any = file[name]
                array[number * LENGTH : (number + 1) * LENGTH] = rows
    return folder / "data.hdf5"


def tianshou(folder: Path, num: int) -> Path:
    """Write a buffer of Tianshou."""
    import h5py

    names = {"obs": "obs", "obs_next": "next", "act": "actions", "rew": "rewards", "terminated": "ends"}
    names |= {"truncated": "ends", "done": "ends"}
    total = num * LENGTH // 2  # observations are stored twice
    with h5py.File(folder / "data.hdf5", "w") as file:
        meta = file.create_group("_meta")
        for number, part in enumerate(parts(num // 2)):
            for name, key in names.items():
                rows = part[key] if name != "truncated" else np.zeros(LENGTH, bool)
                if not number:
                    meta.create_dataset(name, (total, *rows.shape[1:]), rows.dtype)
                    meta[name].attrs["__data_type__"] = "ndarray"
                array: Any = meta[name]
                array[number * LENGTH : (number + 1) * LENGTH] = rows
        file.attrs.update(_size=total, _insertion_idx=0, maxsize=total, stack_num=1)
        file["_indices"], file["last_index"] = np.arange(total), [total - 1]
        file.create_group("options").attrs["ignore_obs_next"] = False
    return folder / "data.hdf5"


def robomimic(folder: Path, num: int) -> Path:
    """Write a file of robomimic."""
    import h5py

    with h5py.File(folder / "data.hdf5", "w") as file:
        for number, part in enumerate(parts(num)):
            demo = file.create_group(f"data/demo_{number}")
            demo["obs/state"], demo["actions"], demo["rewards"] = part["obs"], part["actions"], part["rewards"]
            demo["dones"], demo.attrs["num_samples"] = part["ends"].astype(int), LENGTH
        file["data"].attrs.update(total=num * LENGTH, env_args="{}")
    return folder / "data.hdf5"


def aloha(folder: Path, num: int) -> Path:
    """Write a folder of ALOHA."""
    import h5py

    for number, part in enumerate(parts(num)):
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            file["observations/qpos"], file["action"] = part["obs"], part["actions"]
            file.attrs["sim"] = True
    return folder


def d3rlpy(folder: Path, num: int) -> Path:
    """Write a buffer of d3rlpy."""
    import h5py

    with h5py.File(folder / "data.h5", "w") as file:
        names = ["observations", "actions", "rewards", "terminated"]
        file["version"], file["num_episodes"] = "2.1", num
        file["columns"] = np.array(names, h5py.string_dtype())
        for number, part in enumerate(parts(num)):
            file[f"observations_{number}"], file[f"actions_{number}"] = part["obs"], part["actions"]
            file[f"rewards_{number}"], file[f"terminated_{number}"] = part["rewards"][:, None], True
    return folder / "data.h5"


def npz(folder: Path, num: int) -> Path:
    """Write an archive of numpy."""
    whole = list(parts(num))
    names = {"observations": "obs", "actions": "actions", "rewards": "rewards", "terminals": "ends"}
    arrays = {name: np.concatenate([part[key] for part in whole]) for name, key in names.items()}
    np.savez(folder / "data.npz", **arrays)  # type: ignore[arg-type]
    return folder / "data.npz"


def zarr(folder: Path, num: int) -> Path:
    """Write a store of diffusion policy."""
    import zarr as library

    root = library.open_group(str(folder / "data.zarr"), mode="w", zarr_format=2)
    data = root.create_group("data")
    for name, key in {"state": "obs", "action": "actions"}.items():
        width = WIDTH if key == "obs" else ACTIONS
        array = data.create_array(name, shape=(num * LENGTH, width), chunks=(161, width), dtype="float32")
        for number, part in enumerate(parts(num)):
            array[number * LENGTH : (number + 1) * LENGTH] = part[key].astype(np.float32)
    root.create_group("meta").create_array("episode_ends", data=np.arange(1, num + 1) * LENGTH)
    return folder / "data.zarr"


def rlds(folder: Path, num: int) -> Path:
    """Write a folder of TensorFlow Datasets, whose records are encoded here."""

    def varint(value: int) -> bytes:
        low = value & 127
        return bytes([low]) if value < 128 else bytes([low | 128]) + varint(value >> 7)

    def field(number: int, data: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(data)) + data

    def feature(values: np.ndarray) -> bytes:
        if values.dtype.kind == "f":
            return field(2, field(1, values.astype("<f4").tobytes()))
        return field(3, field(1, values.astype(np.uint8).tobytes()))

    kinds = {"observation": ("float32", [WIDTH]), "action": ("float32", [ACTIONS]), "reward": ("float32", [])}
    kinds |= dict.fromkeys(("is_first", "is_last", "is_terminal"), ("bool", []))
    tensors = {
        name: {
            "pythonClassName": "tensorflow_datasets.core.features.tensor_feature.Tensor",
            "tensor": {"shape": {"dimensions": list(map(str, shape))}, "dtype": dtype, "encoding": "none"},
        }
        for name, (dtype, shape) in kinds.items()
    }
    steps = {
        "pythonClassName": "tensorflow_datasets.core.features.dataset_feature.Dataset",
        "sequence": {"feature": features_dict(tensors)},
    }
    root = folder / "data/1.0.0"
    root.mkdir(parents=True)
    (root / "features.json").write_text(json.dumps(features_dict({"steps": steps})))
    shards = {"splits": [{"name": "train", "shardLengths": [str(num)]}]}
    (root / "dataset_info.json").write_text(json.dumps(shards))
    with (root / "data-train.tfrecord-00000-of-00001").open("wb") as file:
        for part in parts(num):
            columns = {"observation": part["obs"], "action": part["actions"], "reward": part["rewards"]}
            columns |= {"is_first": part["ends"][::-1], "is_last": part["ends"], "is_terminal": part["ends"]}
            pairs = [field(1, field(1, f"steps/{name}".encode()) + field(2, feature(v))) for name, v in columns.items()]
            record = field(1, b"".join(pairs))
            file.write(struct.pack("<Q", len(record)) + bytes(4) + record + bytes(4))
    return root


def features_dict(inner: dict[str, Any]) -> dict[str, Any]:
    """Return a dict of features as in features.json."""
    name = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
    return {"pythonClassName": name, "featuresDict": {"features": inner}}


def imitation(folder: Path, num: int) -> Path:
    """Write a folder of imitation."""
    import datasets

    def rows() -> Iterator[dict[str, Any]]:
        for part in parts(num):
            row = {"obs": part["whole"], "acts": part["actions"], "rews": part["rewards"], "terminal": True}
            yield row | {"infos": ["{}"] * LENGTH}

    with warnings.catch_warnings(action="ignore"):
        data = datasets.Dataset.from_generator(rows, cache_dir=str(folder / "cache"), writer_batch_size=10)
        data.save_to_disk(folder / "data")
    return folder / "data"


def tables(num: int, *, narrow: bool) -> Iterator[Any]:
    """Yield Arrow tables of steps. Narrow tables have five numbers a row."""
    import pyarrow as pa

    for number, part in enumerate(parts(num)):
        obs = part["obs"].astype(np.float32)
        columns: dict[str, Any] = {"episode": np.full(LENGTH, number), "t": np.arange(LENGTH)}
        if narrow:
            columns |= {f"obs_{k}": obs[:, k] for k in range(5)} | {"action": part["actions"][:, 0]}
        else:
            columns["obs"] = pa.FixedSizeListArray.from_arrays(obs.reshape(-1), WIDTH)
            columns["action"] = pa.FixedSizeListArray.from_arrays(part["actions"].reshape(-1), ACTIONS)
        yield pa.table(columns | {"reward": part["rewards"], "terminated": part["ends"]})


def parquet_table(folder: Path, num: int) -> Path:
    """Write a table of steps in Parquet."""
    import pyarrow.parquet as pq

    first = next(tables(1, narrow=False))
    with pq.ParquetWriter(folder / "data.parquet", first.schema) as file:
        for table in tables(num, narrow=False):
            file.write_table(table)
    return folder / "data.parquet"


def arrow_table(folder: Path, num: int) -> Path:
    """Write a table of steps in Arrow's format of files."""
    import pyarrow as pa

    first = next(tables(1, narrow=False))
    with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_file(file, first.schema) as writer:
        for table in tables(num, narrow=False):
            writer.write_table(table)
    return folder / "data.arrow"


def csv(folder: Path, num: int) -> Path:
    """Write a table of steps as text: an episode of narrow rows has about 110 bytes a row, so there are nine times
    as many.
    """
    import pyarrow as pa
    from pyarrow.csv import CSVWriter

    first = next(tables(1, narrow=True))
    with pa.OSFile(str(folder / "data.csv"), "wb") as file, CSVWriter(file, first.schema) as writer:
        for table in tables(num * 9, narrow=True):
            writer.write_table(table)
    return folder / "data.csv"


def jsonl(folder: Path, num: int) -> Path:
    """Write a table of steps as lines of JSON, with about 5 kB a row."""
    with (folder / "data.jsonl").open("w") as file:
        for table in tables(max(1, num // 5), narrow=False):
            file.writelines(json.dumps(row) + "\n" for row in table.to_pylist())
    return folder / "data.jsonl"


def rllib_json(folder: Path, num: int) -> Path:
    """Write RLlib's batches as lines of JSON."""
    with (folder / "data.json").open("w") as file:
        for number, part in enumerate(parts(max(1, num // 11))):
            batch: dict[str, Any] = {"type": "SampleBatch", "obs": part["obs"].tolist()}
            batch |= {"actions": part["actions"].tolist(), "rewards": part["rewards"].tolist()}
            batch |= {"new_obs": part["next"].tolist(), "t": list(range(LENGTH))}
            batch |= {"terminateds": part["ends"].tolist(), "eps_id": [number] * LENGTH}
            file.write(json.dumps(batch) + "\n")
    return folder / "data.json"


FORMATS: dict[str, Callable[[Path, int], Path]] = {
    "episodes": by_write("episodes"),
    "parquet": by_write("parquet"),
    "lerobot": by_write("lerobot", fps=10),
    "rllib": by_write("rllib"),
    "minari": minari,
    "robomimic": robomimic,
    "aloha": aloha,
    "d3rlpy": d3rlpy,
    "tianshou": tianshou,
    "d4rl": flat_hdf5,
    "imitation": imitation,
    "rlds": rlds,
    "npz": npz,
    "zarr": zarr,
    "rllib-json": rllib_json,
    "table (Parquet)": parquet_table,
    "table (Arrow)": arrow_table,
    "table (CSV)": csv,
    "table (lines of JSON)": jsonl,
}


def main() -> None:
    """Print a line per format: size of the file, peak memory and time of the conversion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1000, help="about the size of each file")
    parser.add_argument("formats", nargs="*", help=", ".join(FORMATS))
    given = parser.parse_args()
    print("| format | file, MB | own peak, MB | peak with mapped files, MB | s |\n|---|---|---|---|---|")
    for name in given.formats or FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "source"
            place.mkdir()
            path = FORMATS[name](place, max(2, given.mb * 1000 // LENGTH))
            files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
            size = sum(file.stat().st_size for file in files) / 1e6
            start = time.perf_counter()
            arguments = [sys.executable, "-c", _READ, str(path), f"{folder}/out"]
            done = subprocess.run(arguments, capture_output=True, text=True, check=False)
            spent = time.perf_counter() - start
            peaks = " | ".join(f"{float(peak):.0f}" for peak in done.stdout.split()) or f"{done.stderr[-400:]} |"
            print(f"| {name} | {size:.0f} | {peaks} | {spent:.0f} |", flush=True)


if __name__ == "__main__":
    main()
