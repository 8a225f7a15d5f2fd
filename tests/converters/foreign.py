"""Sources of other libraries, each made by the format's own library or as its documentation says, with extra values.

`FORMATS` is the table of all readers. Each source stores values that no converter knows, under names that contain
`PLANTED`, or values that contain it.
"""

from __future__ import annotations

import io
import json
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium import spaces

from episodes import SingleAgentEpisode, converters
from episodes.converters import to_lerobot, to_messages, to_parquet, to_prime_rl, to_skyrl, to_trl, to_verl
from episodes.tokens import Conversation
from episodes.tracks import nested

BOX, ACTIONS = spaces.Box(-99, 99, (2,)), spaces.Discrete(9)
T = 4  # steps of each episode, of which there are two


class Source(NamedTuple):
    """A source of two episodes.

    Attributes:
        value: the argument of the reader.
        planted: names, or text values, that are in the episodes or in the report.
    """

    value: Any
    planted: list[str]


def steps(scale: float = 1.0) -> dict[str, np.ndarray]:
    """Return the columns of two episodes of T steps: the first one terminates, and the second one is truncated."""
    rows = np.arange(2 * T)
    observations = np.stack([rows + rows // T, np.full(2 * T, scale)], axis=1).astype(np.float32)
    after = observations + np.array([1, 0], np.float32)
    flags = rows == T - 1, rows == 2 * T - 1
    columns = {"observations": observations, "next": after, "actions": rows % 9, "rewards": rows.astype(np.float32)}
    return columns | {"terminated": flags[0], "truncated": flags[1], "episode": rows // T, "t": rows % T}


def d4rl(path: Path, scale: float = 1.0) -> Source:
    import h5py

    columns = steps(scale)
    with h5py.File(path / "steps.hdf5", "w") as file:
        for key, name in {
            "observations": "observations", "next_observations": "next", "actions": "actions", "rewards": "rewards",
            "terminals": "terminated", "timeouts": "truncated",
        }.items():  # fmt: skip
            file[key] = columns[name]
        file["infos/planted_info"] = np.arange(2 * T)
        file["infos/deep/planted_deep"] = np.arange(2 * T)
        file["planted_column"] = np.arange(2 * T)
        file["metadata/planted_metadata"] = "planted_text"
        file["metadata/planted_large"] = np.zeros(9999)
        file.attrs["planted_attribute"] = 1
        file["actions"].attrs["planted_unit"] = "N"
        file["infos"].attrs["planted_of_group"] = "N"
    planted = ["info", "deep", "column", "metadata", "text", "large", "attribute", "unit", "of_group"]
    return Source(path / "steps.hdf5", [f"planted_{name}" for name in planted])


def robomimic(path: Path, scale: float = 1.0) -> Source:
    import h5py

    columns = steps(scale)
    with h5py.File(path / "demo.hdf5", "w") as file:
        for k in range(2):
            demo, rows = file.create_group(f"data/demo_{k}"), slice(k * T, (k + 1) * T)
            for key in ("obs", "next_obs"):
                demo[f"{key}/state"] = columns["observations" if key == "obs" else "next"][rows]
            demo["actions"], demo["rewards"] = columns["actions"][rows, None], columns["rewards"][rows]
            demo["dones"], demo["states"] = columns["terminated"][rows].astype(int), np.zeros((T, 5))
            demo.attrs.update(num_samples=T, model_file="<planted_model/>" + " " * 9999)
            demo["datagen_info/planted_column"], demo["src_demo_inds"] = np.arange(T), [7, 7]
            demo["planted_large"], demo["obs/state"].attrs["planted_unit"] = np.zeros(9999), "m"
            demo["initial_state/planted_pose"] = np.zeros((1, 7))
        data = file["data"]
        data.attrs.update(total=2 * T, env_args=json.dumps({"env_name": "planted_env"}), planted_attribute=1)
        data["planted_other"] = np.zeros(3)
        file["mask/planted_train"] = np.array(["demo_0", "demo_1"], h5py.string_dtype())
        file["mask/planted_valid"] = np.array([b"demo_1", b"planted_demo"])
        file["mask"].attrs["planted_of_mask"], file.attrs["planted_of_file"] = 1, 2
        file["planted_value"] = "planted_text"
    names = ["model", "column", "large", "unit", "pose", "env", "attribute", "other", "train", "valid", "demo"]
    names += ["of_mask", "of_file", "value", "text"]
    return Source(path / "demo.hdf5", [*(f"planted_{name}" for name in names), "states", "src_demo_inds"])


def aloha(path: Path, scale: float = 1.0) -> Source:
    """Write a folder of two files. The second one has compressed images."""
    import h5py
    from PIL import Image

    columns = steps(scale)
    for k in range(2):
        rows = slice(k * T, (k + 1) * T)
        with h5py.File(path / f"episode_{k}.hdf5", "w") as file:
            file["observations/qpos"], file["action"] = columns["observations"][rows], columns["actions"][rows, None]
            file["observations/effort"], file["base_action"] = np.zeros((T, 3)), np.zeros((T, 2))
            images = np.full((T, 8, 8, 3), k * 100, np.uint8)
            if k:
                encoded = []
                for image in images:
                    Image.fromarray(image).save(stream := io.BytesIO(), "JPEG")
                    encoded.append(np.frombuffer(stream.getvalue(), np.uint8))
                file["compress_len"] = np.array([[len(one) for one in encoded]])
                images = np.stack([np.pad(one, (0, 700 - len(one))) for one in encoded])
            file["observations/images/cam_high"] = images
            file.attrs.update(sim=False, compress=bool(k), planted_attribute=1)
            file["action"].attrs["planted_unit"] = "rad"
            file["planted_instruction"], file["planted_large"] = "planted_text", np.zeros(9999)
    (path / "planted_file.txt").write_text("x")
    names = ["attribute", "unit", "instruction", "text", "large", "file"]
    return Source(path, [*(f"planted_{name}" for name in names), "base_action", "compress", "episode_1.hdf5"])


def d3rlpy(path: Path, scale: float = 1.0) -> Source:
    """Write a file in the layout of d3rlpy 2.8."""
    import h5py

    columns = steps(scale)
    with h5py.File(path / "buffer.h5", "w") as file:
        file["version"], file["num_episodes"] = "2.1", 2
        names = ["observations", "actions", "rewards", "terminated", "planted_column", "planted_score"]
        file["columns"] = np.array(names, h5py.string_dtype())
        for k in range(2):
            rows = slice(k * T, (k + 1) * T)
            file[f"observations_{k}"], file[f"actions_{k}"] = (
                columns["observations"][rows], columns["actions"][rows, None]
            )  # fmt: skip
            file[f"rewards_{k}"], file[f"terminated_{k}"] = columns["rewards"][rows, None], k == 0
            file[f"planted_column_{k}"], file[f"planted_score_{k}"] = np.arange(T), 0.5
        file["planted_large"], file["actions_1"].attrs["planted_unit"] = np.zeros(9999), "N"
        file.attrs["planted_attribute"], file["planted_value"] = 1, "planted_text"
    names = ["column", "score", "large", "unit", "attribute", "value", "text"]
    return Source(path / "buffer.h5", [f"planted_{name}" for name in names])


def d3rlpy_buffer(path: Path, scale: float = 1.0) -> Source:
    """Return an object with the public attributes of d3rlpy's `ReplayBuffer` and `Episode`."""
    columns, episodes = steps(scale), []
    for k in range(2):
        rows = slice(k * T, (k + 1) * T)
        arrays = {"observations": columns["observations"][rows], "actions": columns["actions"][rows, None]}
        arrays |= {"rewards": columns["rewards"][rows, None], "terminated": k == 0}
        episodes.append(SimpleNamespace(**arrays, transition_count=T - (k == 1)))
    return Source(SimpleNamespace(episodes=episodes, transition_count=2 * T - 1), [])


def tianshou_file(path: Path, scale: float = 1.0) -> Source:
    """Write a file in the layout of Tianshou 2.0: a `ReplayBuffer` with some room left."""
    import h5py

    columns = steps(scale)
    names = {"obs": "observations", "obs_next": "next", "act": "actions", "rew": "rewards"}
    names |= {"terminated": "terminated", "truncated": "truncated"}
    with h5py.File(path / "buffer.hdf5", "w") as file:
        meta = file.create_group("_meta")
        for key, name in names.items():
            meta[key] = np.concatenate([columns[name], np.zeros((3, *columns[name].shape[1:]), columns[name].dtype)])
        meta["done"], meta["info/planted_info"] = meta["terminated"][()] | meta["truncated"][()], np.zeros(2 * T + 3)
        meta["policy/planted_policy"], meta["planted_column"] = np.zeros((2, 2 * T + 3)).tolist()
        meta["planted_pickle"] = np.zeros(9, np.int8)
        for key, array in [*meta.items(), *meta["info"].items()]:
            array.attrs["__data_type__"] = "pickled_ndarray" if "pickle" in key else "ndarray"
        file.attrs.update(_size=2 * T, _insertion_idx=2 * T, maxsize=2 * T + 3, stack_num=4, planted_attribute=1)
        file["_indices"], file["last_index"] = np.arange(2 * T + 3), [2 * T - 1]
        file["_random_state"], file["planted_large"] = np.zeros(5000, np.int8), np.zeros(9999)
        file["_random_state"].attrs["__data_type__"] = "RandomState"
        file.create_group("options").attrs["ignore_obs_next"] = False
    names = ["info", "policy", "column", "pickle", "attribute", "large"]
    return Source(path / "buffer.hdf5", [*(f"planted_{name}" for name in names), "_random_state", "stack_num"])


def by_read(source: Any, **options: Any) -> tuple[list[Any], Any]:
    """Return all episodes of `read` and the report."""
    episodes, report = converters.read(source, **options)
    return list(episodes), report


def minari(path: Path, scale: float = 1.0, format: str = "hdf5") -> Source:
    import minari as library

    columns, buffers = steps(scale), []
    for k in range(2):
        rows = slice(k * T, (k + 1) * T)
        whole = np.concatenate([columns["observations"][rows], columns["next"][rows][-1:]])
        ends = {"terminations": columns["terminated"][rows], "truncations": columns["truncated"][rows]}
        infos: dict[str, Any] = {"planted_info": np.arange(T + 1)[:, None]}
        infos["deep"] = {"planted_deep": np.arange(T + 1)[:, None]}
        if format == "hdf5":  # Minari cannot read text and scalars of its Arrow files
            infos["deep"]["text"] = [f"planted_text{i}" for i in range(T + 1)]
        arrays = {"observations": whole, "actions": columns["actions"][rows], "rewards": columns["rewards"][rows]}
        options = {"planted_option": k}
        buffers.append(library.data_collector.EpisodeBuffer(seed=k, options=options, **arrays, **ends, infos=infos))
    about = {"author": "planted_author", "description": "planted_words", "algorithm_name": "planted_algorithm"}
    known = {"observation_space": BOX, "action_space": ACTIONS, "data_format": format}
    with warnings.catch_warnings(action="ignore"):
        dataset = library.create_dataset_from_buffers(
            f"some/{path.name.replace('_', '-')}-v0", buffers, **known, **about
        )
    dataset.storage.update_metadata({"planted_key": 3})
    dataset.storage.update_episode_metadata([{"planted_about": 5}], [1])
    place = Path(dataset.storage.data_path)
    (place / "planted_file.txt").write_text("x")
    if format == "hdf5":
        import h5py

        with h5py.File(place / "main_data.hdf5", "a") as file:
            file["episode_1/planted_array"] = np.zeros(T)
            file["planted_group/x"] = 1
    names = ["info", "deep", "option", "author", "words", "algorithm", "key", "about", "file"]
    names += ["array", "group", "text3"] if format == "hdf5" else []
    return Source(place.parent, [f"planted_{name}" for name in names])


def rllib_steps(path: Path, scale: float = 1.0) -> Source:
    columns = steps(scale)
    names = {"obs": "observations", "new_obs": "next", "actions": "actions", "rewards": "rewards"}
    names |= {"terminateds": "terminated", "truncateds": "truncated", "t": "t"}
    data: dict[str, Any] = {key: list(columns[name]) for key, name in names.items()}
    data |= {"eps_id": [f"planted_id{k}" for k in columns["episode"]], "planted_column": np.zeros(2 * T)}
    pq.write_table(pa.table(data), path / "steps.parquet", row_group_size=3)
    return Source(path / "steps.parquet", ["planted_id0", "planted_id1", "planted_column"])


def own_parquet(path: Path, scale: float = 1.0) -> Source:
    to_parquet([episode(k, scale, infos=[{"planted_info": 1}] * (T + 1)) for k in range(2)], path / "own")
    (file,) = (path / "own").glob("*.parquet")
    pq.write_table(pq.read_table(file).append_column("planted_column", pa.array([1] * 2 * T)), file)
    return Source(path / "own", ["planted_info", "planted_column", "planted_id1"])


def episode(k: int, scale: float = 1.0, **options: Any) -> SingleAgentEpisode:
    """Return the episode `k` of `steps` as an episode of this library."""
    columns, rows = steps(scale), slice(k * T, (k + 1) * T)
    observations = np.concatenate([columns["observations"][rows], columns["next"][rows][-1:]])
    flags = {"terminated": k == 0, "truncated": k == 1}
    arrays = observations, columns["actions"][rows], columns["rewards"][rows]
    return SingleAgentEpisode.from_arrays(*arrays, **flags, id_=f"planted_id{k}", **options)


def lerobot(path: Path, scale: float = 1.0) -> Source:
    """Write data in LeRobot's layout v3, with two tasks in the second episode."""
    root = path / "robot"
    to_lerobot([episode(k, scale, custom_data={"task": f"planted_task{k}"}) for k in range(2)], root, fps=17)
    info = json.loads((root / "meta/info.json").read_text())
    del info["rl_episodes"]
    info |= {"robot_type": "planted_robot", "planted_key": {"planted_inner": "planted_value"}}
    info["features"]["observation.state"] |= {"names": ["planted_x", "y"], "planted_unit": "m"}
    info["features"]["planted_feature"] = {"dtype": "float32", "shape": [1], "names": None}
    info["features"]["next.planted_success"] = {"dtype": "bool", "shape": [1], "names": None}
    (root / "meta/info.json").write_text(json.dumps(info))
    (root / "planted_file.md").write_text("x")
    file = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file).replace_schema_metadata(None)
    tasks = table["task_index"].to_pylist()
    tasks[-1] = 0
    table = table.set_column(table.column_names.index("task_index"), "task_index", pa.array(tasks))
    for name in ("planted_feature", "next.planted_success", "planted_column"):
        table = table.append_column(name, pa.array(np.zeros(2 * T, np.float32)))
    times = np.arange(2 * T, dtype=np.float32) + np.float32(0.123)
    table = table.set_column(table.column_names.index("timestamp"), "timestamp", pa.array(times))
    pq.write_table(table, file)
    metas = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(metas).replace_schema_metadata(None)
    table = table.drop_columns(["rl_episodes"]).append_column("planted_meta", pa.array(["planted_of_episode", "b"]))
    pq.write_table(table, metas)
    names = [
        "robot",
        "key",
        "inner",
        "value",
        "x",
        "unit",
        "feature",
        "success",
        "file",
        "column",
        "meta",
        "of_episode",
    ]
    planted = [f"planted_{name}" for name in [*names, "task0", "task1"]]
    return Source(root, [*planted, "'fps': 17", "0.123", "meta/stats.json"])


def lerobot_2(path: Path, scale: float = 1.0) -> Source:
    """Write data in LeRobot's layout v2.1: a file per episode, and lines of JSON as metadata."""
    source = lerobot(path, scale)
    root: Path = source.value
    metas = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    keys = ("episode_index", "length", "tasks", "planted_meta")
    lines = [json.dumps({key: meta[key] for key in keys if key in meta}) for meta in metas]
    (root / "meta/episodes.jsonl").write_text("\n".join(lines) + "\n")
    tasks = pq.read_table(root / "meta/tasks.parquet").to_pylist()
    rows = [{"task_index": row.pop("task_index"), "task": next(iter(row.values()))} for row in tasks]
    (root / "meta/tasks.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    table = pq.read_table(root / "data/chunk-000/file-000.parquet")
    for name in ("meta/episodes/chunk-000/file-000.parquet", "meta/tasks.parquet", "data/chunk-000/file-000.parquet"):
        (root / name).unlink()
    for k in range(2):
        pq.write_table(table.slice(k * T, T), root / f"data/chunk-000/episode_{k:06d}.parquet")
    info = json.loads((root / "meta/info.json").read_text()) | {"codebase_version": "v2.1", "chunks_size": 1000}
    info["data_path"] = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    info["video_path"] = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    (root / "meta/info.json").write_text(json.dumps(info))
    return source


def sb3(path: Path, scale: float = 1.0, **options: Any) -> Source:
    from stable_baselines3.common.buffers import ReplayBuffer

    columns, buffer = steps(scale), ReplayBuffer(2 * T, BOX, ACTIONS, "cpu", n_envs=1, **options)
    for i in range(2 * T):
        infos = [{"TimeLimit.truncated": bool(columns["truncated"][i])}]
        row = (columns[name][i : i + 1] for name in ("observations", "next", "actions", "rewards"))
        buffer.add(*row, columns["terminated"][i : i + 1] | columns["truncated"][i : i + 1], infos)
    buffer.planted_array = np.zeros((2 * T, 1))  # type: ignore[attr-defined]
    return Source(buffer, ["planted_array"])


def tianshou(path: Path, scale: float = 1.0) -> Source:
    columns = steps(scale)
    arrays = {"obs": "observations", "obs_next": "next", "act": "actions", "rew": "rewards"}
    arrays |= {"terminated": "terminated", "truncated": "truncated"}
    buffer = SimpleNamespace(**{key: columns[name] for key, name in arrays.items()}, maxsize=2 * T)
    buffer.done = buffer.terminated | buffer.truncated
    buffer.info, buffer.policy = {"planted_info": np.arange(2 * T)}, {"planted_policy": np.zeros(2 * T)}
    buffer.planted_column = np.zeros(2 * T)
    buffer.sample_indices = lambda size: np.arange(2 * T)
    return Source(buffer, ["planted_info", "policy", "planted_column"])


def tensordict(path: Path, scale: float = 1.0) -> Source:
    import torch
    from tensordict import TensorDict

    columns = {name: torch.tensor(column) for name, column in steps(scale).items()}
    ends = columns["terminated"], columns["truncated"]
    following = {"observation": columns["next"], "reward": columns["rewards"], "planted_next": columns["t"]}
    following |= {"terminated": ends[0], "truncated": ends[1], "done": ends[0] | ends[1]}
    rows = {"observation": columns["observations"], "action": columns["actions"], "next": following}
    rows |= {
        "collector": {"traj_ids": columns["episode"], "planted_id": columns["episode"]},
        "step_count": columns["t"],
    }
    rows |= {"planted_output": columns["t"], "nested": {"planted_inner": columns["t"]}, "done": columns["t"] == 2}
    names = ["planted_next", "planted_id", "planted_output", "planted_inner", "done", "step_count"]
    return Source(TensorDict(rows, batch_size=[2 * T]), names)


def talks(scale: float = 1.0) -> list[SingleAgentEpisode]:
    """Return two conversations of one turn."""
    result = []
    for k in range(2):
        talk = Conversation(f"planted_id{k}", group="planted_group")
        talk.begin([1, 2, int(scale)])
        talk.turn([3, 4], reward=float(k), terminated=True, logp=[-1.0, -2.0])
        result.append(talk.episode.to_numpy())
    return result


def trl(path: Path, scale: float = 1.0) -> Source:
    columns, _ = to_trl(talks(scale))
    return Source(columns | {"planted_column": [1, 2]}, ["planted_column", "planted_id1", "planted_group"])


def skyrl(path: Path, scale: float = 1.0) -> Source:
    output, _ = to_skyrl(talks(scale))
    output |= {"planted_column": [1, 2], "rollout_metrics": {"planted_metric": 1}}
    output["stop_reasons"] = ["stop", "planted_reason"]
    return Source(output, ["planted_column", "planted_metric", "planted_id1", "planted_group", "planted_reason"])


def prime_rl(path: Path, scale: float = 1.0) -> Source:
    rows, _ = to_prime_rl(talks(scale), episode_advantages=[0.5, 1])
    rows[1]["planted_key"] = 1
    return Source(rows, ["planted_key", "planted_id1", "planted_group", "advantage"])


def verl(path: Path, scale: float = 1.0) -> Source:
    data, _ = to_verl(talks(scale))
    data["batch"] |= {"planted_values": np.zeros((2, 2))}
    data["non_tensor_batch"] |= {"planted_names": np.array(["a", "b"])}
    return Source(data, ["planted_values", "planted_names", "planted_id1", "planted_group"])


def messages(path: Path, scale: float = 1.0) -> Source:
    conversations, _ = to_messages(talks(scale), decode=str)
    conversations[1] |= {"tools": [{"name": "planted_tool"}], "planted_key": 1}
    conversations[1]["messages"][1] |= {"tool_calls": [{"name": "f"}], "planted_call": 1, "info": {"planted_late": 1}}
    conversations[1]["messages"][0] |= {"planted_note": 1, "info": {"planted_info": 1}}
    names = ["tool", "key", "call", "note", "info", "id1", "group"]
    return Source(conversations, [*(f"planted_{name}" for name in names), "tool_calls", "content", "messages['info']"])


def npz(path: Path, scale: float = 1.0) -> Source:
    columns = steps(scale)
    names = {"observations": "observations", "next_observations": "next", "actions": "actions", "rewards": "rewards"}
    arrays = {key: columns[name] for key, name in {**names, "terminals": "terminated", "timeouts": "truncated"}.items()}
    extra = {
        "planted_info": np.arange(2 * T),
        "planted_text": np.array("planted_words"),
        "planted_large": np.zeros(9999),
    }
    objects = {"planted_objects": np.array([{}], object)}
    np.savez_compressed(path / "steps.npz", **arrays, **extra, **objects)  # type: ignore[arg-type]
    return Source(path / "steps.npz", [*extra, *objects, "planted_words"])


def imitation(path: Path, scale: float = 1.0) -> Source:
    """Write two trajectories with the columns of imitation, in the layout of `datasets`."""
    import datasets

    columns, rows = steps(scale), []
    for k in range(2):
        part = slice(k * T, (k + 1) * T)
        whole = np.concatenate([columns["observations"][part], columns["next"][part][-1:]])
        infos = [
            {"planted_info": t, "deep": {"planted_object": {"py/tuple": [1]}, "planted_deep": 1}} for t in range(T)
        ]
        infos[-1] |= {"TimeLimit.truncated": k == 1}
        row = {"obs": whole, "acts": columns["actions"][part], "rews": columns["rewards"][part], "terminal": True}
        rows.append(row | {"infos": [json.dumps(info) for info in infos], "planted_column": 1})
    data = datasets.Dataset.from_dict({key: [row[key] for row in rows] for key in rows[0]})
    data.info.description = "planted_words"
    data.save_to_disk(path / "folder")
    (path / "folder/planted_file.txt").write_text("x")
    return Source(path / "folder", ["planted_info", "planted_deep", "planted_object", "planted_column", "planted_file"])


def rllib_json(path: Path, scale: float = 1.0) -> Source:
    """Write lines of RLlib's batches, of which the first one ends within an episode."""
    columns = steps(scale)
    names = {"obs": "observations", "new_obs": "next", "actions": "actions", "rewards": "rewards", "t": "t"}
    names |= {"terminateds": "terminated", "truncateds": "truncated"}
    lines = []
    for part in (slice(0, 3), slice(3, 6), slice(6, 8)):
        batch: dict[str, Any] = {key: columns[name][part].tolist() for key, name in names.items()}
        num = len(batch["t"])
        batch |= {"type": "SampleBatch", "eps_id": [99 + int(k) for k in columns["episode"][part]]}
        batch |= {"planted_output": [0.5] * num, "planted_packed": "BCJNGGhAgA", "unroll_id": [7] * num}
        lines.append(json.dumps(batch))
    (path / "output.json").write_text("\n".join(lines) + "\n")
    return Source(path / "output.json", ["planted_output", "planted_packed", "unroll_id", "/99", "/100"])


def zarr(path: Path, scale: float = 1.0, version: int = 2, zipped: bool = False) -> Source:
    """Write a store in the layout of diffusion policy."""
    import zarr as library

    columns, place = steps(scale), path / ("store.zip" if zipped else "store.zarr")
    store: Any = library.storage.ZipStore(place, mode="w") if zipped else str(place)
    with warnings.catch_warnings(action="ignore"):
        root = library.open_group(store, mode="w", zarr_format=version, attributes={"planted_attribute": 1})
        data, meta = root.create_group("data"), root.create_group("meta")
        arrays = {"state": columns["observations"], "planted_camera": np.ones((2 * T, 4, 4, 3), np.uint8)}
        arrays |= {"action": columns["actions"], "reward": columns["rewards"], "done": columns["terminated"]}
        for name, array in arrays.items():
            data.create_array(name, data=array, chunks=(3, *array.shape[1:]), config={"write_empty_chunks": True})
        meta.create_array("episode_ends", data=np.array([T, 2 * T]))
        meta.create_array("planted_scale", data=np.array([3]))
        meta.create_array("planted_large", data=np.zeros(9999))
        data["action"].attrs["planted_unit"] = "N"
    if zipped:
        store.close()
    return Source(place, [f"planted_{name}" for name in ("attribute", "scale", "large", "unit")])


def rlds(path: Path, scale: float = 1.0, kind: str = "tfrecord") -> Source:
    """Write a folder of TensorFlow Datasets in the layout of RLDS: an Example per episode, and the features as JSON."""
    columns, root = steps(scale), path / "data/1.0.0"
    root.mkdir(parents=True)
    kinds = {
        "steps/observation/state": ("float32", [2]), "steps/observation/planted_text": ("string", []),
        "steps/action": ("int64", []), "steps/reward": ("float32", []), "steps/is_first": ("bool", []),
        "steps/is_last": ("bool", []), "steps/is_terminal": ("bool", []), "steps/planted_info": ("uint8", [2, 2]),
        "steps/planted_ragged": ("float32", [-1]), "planted_of_episode/planted_number": ("int64", []),
    }  # fmt: skip
    records = []
    for k in range(2):
        part = slice(k * T, (k + 1) * T)
        whole = np.concatenate([columns["observations"][part], columns["next"][part][-1:]])
        records.append(example({
            "steps/observation/state": whole, "steps/observation/planted_text": [b"planted_words"] * (T + 1),
            "steps/action": np.append(columns["actions"][part], 0),
            "steps/reward": np.append(columns["rewards"][part], np.float32(5)), "steps/is_first": np.arange(T + 1) == 0,
            "steps/is_last": np.arange(T + 1) == T, "steps/is_terminal": (np.arange(T + 1) == T) & (k == 0),
            "steps/planted_info": np.full((T + 1, 2, 2), 200), "planted_of_episode/planted_number": np.array([-3]),
            "planted_column": [b"x"],
        }))  # fmt: skip
    (root / "features.json").write_text(json.dumps(features(kinds)))
    shards = {"splits": [{"name": "train", "shardLengths": ["1", "1"]}], "planted_key": "planted_value"}
    (root / "dataset_info.json").write_text(json.dumps(shards))
    (root / "planted_file.txt").write_text("x")
    for number, record in enumerate(records):
        place = root / f"data-train.{kind}-{number:05d}-of-00002"
        if kind == "tfrecord":
            place.write_bytes(struct.pack("<Q", len(record)) + bytes(4) + record + bytes(4))
        else:
            from array_record.python.array_record_module import ArrayRecordWriter

            writer = ArrayRecordWriter(str(place), "group_size:1")
            writer.write(record)
            writer.close()
    names = ["text", "words", "info", "ragged", "of_episode", "number", "column", "key", "value", "file"]
    return Source(root, [*(f"planted_{name}" for name in names), "train", "the reward of the last row"])


def features(kinds: dict[str, tuple[str, list[int]]]) -> dict[str, Any]:
    """Return the content of a features.json with tensors of these dtypes and shapes, by path."""
    tree: dict[str, Any] = {}
    for path, (dtype, shape) in kinds.items():
        *parents, name = path.split("/")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        dimensions = {"dimensions": [str(size) for size in shape]} if shape else {}
        place[name] = {"class": {"tensor": {"shape": dimensions, "dtype": dtype, "encoding": "none"}}}

    def document(node: dict[str, Any], name: str = "") -> dict[str, Any]:
        if "class" in node:
            return node["class"] | {"pythonClassName": "tensor_feature.Tensor"}
        inner = {"featuresDict": {"features": {key: document(part, key) for key, part in node.items()}}}
        return {"sequence": {"feature": inner}} if name == "steps" else inner

    return document(tree)


def example(values: dict[str, Any]) -> bytes:
    """Return a message `tf.train.Example` of arrays of floats and ints, and lists of bytes."""

    def varint(number: int) -> bytes:
        data = bytearray()
        number &= 2**64 - 1
        while number > 127:
            data.append(number & 127 | 128)
            number >>= 7
        return bytes([*data, number])

    def field(number: int, data: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(data)) + data

    entries = b""
    for name, value in values.items():
        if isinstance(value, list):
            feature = field(1, b"".join(field(1, part) for part in value))
        elif value.dtype.kind == "f":
            feature = field(2, field(1, value.astype("<f4").tobytes()))
        else:
            feature = field(3, field(1, b"".join(varint(int(number)) for number in value.reshape(-1))))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def reading(path: Path, **options: Any) -> tuple[list[SingleAgentEpisode], Any]:
    """Return the episodes and the report of `read`."""
    episodes, report = converters.read(path, **options)
    return list(episodes), report


FORMATS: dict[str, tuple[Callable[..., Source], Callable[..., Any]]] = {
    "d4rl": (d4rl, converters.from_d4rl),
    "robomimic": (robomimic, by_read),
    "aloha": (aloha, by_read),
    "d3rlpy": (d3rlpy, by_read),
    "tianshou file": (tianshou_file, by_read),
    "minari": (minari, converters.from_minari),
    "minari arrow": (lambda *given: minari(*given, format="arrow"), converters.from_minari),
    "rllib steps": (rllib_steps, converters.from_rllib_parquet),
    "own parquet": (own_parquet, converters.from_parquet),
    "lerobot": (lerobot, converters.from_lerobot),
    "lerobot 2": (lerobot_2, converters.from_lerobot),
    "sb3": (sb3, converters.from_sb3),
    "tianshou": (tianshou, converters.from_tianshou),
    "tensordict": (tensordict, converters.from_tensordict),
    "trl": (trl, converters.from_trl),
    "skyrl": (skyrl, converters.from_skyrl),
    "prime-rl": (prime_rl, converters.from_prime_rl),
    "verl": (verl, converters.from_verl),
    "messages": (messages, converters.from_messages),
    "d3rlpy buffer": (d3rlpy_buffer, reading),
    "npz": (npz, reading),
    "imitation": (imitation, reading),
    "zarr": (zarr, reading),
    "zarr 3": (lambda *given: zarr(*given, version=3), reading),
    "zarr zip": (lambda *given: zarr(*given, zipped=True), reading),
    "zarr 3 zip": (lambda *given: zarr(*given, version=3, zipped=True), reading),
    "rlds": (rlds, reading),
    "rllib-json": (rllib_json, reading),
    "rlds array_record": (lambda *given: rlds(*given, kind="array_record"), reading),
}
STORE_IDS = {"own parquet", "trl", "skyrl", "prime-rl", "verl", "messages"}  # which keep the ids of the source


def texts_of(episodes: list[SingleAgentEpisode]) -> Iterator[str]:
    """Yield text with all names and values that episodes hold besides their arrays."""
    for one in episodes:
        yield str(
            [
                one.id_,
                one.custom_data,
                one.get_infos(),
                [*nested.flatten({key: one.get_extra_model_outputs(key) for key in one.extra_model_outputs})],
            ]
        )
