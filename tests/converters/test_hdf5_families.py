"""HDF5 files of five families: random steps come back, and the report names what is unknown."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import foreign
import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import ROOT

from episodes import SingleAgentEpisode
from episodes.converters import read, transitions
from episodes.errors import UnreadableData
from episodes.facts.ending import Ending
from episodes.storage import EpisodeDataset


class Given(NamedTuple):
    """Steps of an episode: observations [T + 1, 2], actions [T], rewards [T], and the ending."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    ending: Ending


def given_episodes(lengths: list[int], endings: list[Ending]) -> list[Given]:
    """Return episodes in which each observation occurs once."""
    made, start = [], 0
    for length, ending in zip(lengths, endings, strict=True):
        rows = np.arange(start, start + length + 1, dtype=np.float32)
        made.append(Given(np.stack([rows, -rows], 1), rows[:-1].astype(int) % 7, rows[:-1] / 2, ending))
        start += length + 1
    return made


def known_part(one: Given, *, has_next: bool, marks_truncations: bool = True) -> Given | None:
    """Return what a file of the episode tells: without next observations, the last one is unknown."""
    ending = one.ending
    if ending is Ending.TRUNCATED and not marks_truncations:
        ending = Ending.OPEN
    if has_next:
        return one._replace(ending=ending)
    if ending is Ending.TERMINATED:
        repeated = np.concatenate([one.observations[:-1], one.observations[-2:-1]])
        return one._replace(observations=repeated, ending=ending)
    if len(one.rewards) == 1:
        return None
    return Given(one.observations[:-1], one.actions[:-1], one.rewards[:-1], ending)


def robomimic(path: Path, made: list[Given], has_next: bool) -> list[Given | None]:
    with h5py.File(path, "w") as file:
        for k, one in enumerate(made):
            demo = file.create_group(f"data/demo_{k}")
            demo["obs/x"], demo["actions"], demo["rewards"] = one.observations[:-1], one.actions, one.rewards
            if has_next:
                demo["next_obs/x"] = one.observations[1:]
            demo["dones"] = np.arange(len(one.rewards)) == len(one.rewards) - (one.ending is Ending.TERMINATED)
    return [known_part(one, has_next=has_next, marks_truncations=False) for one in made]


def robomimic_with_last(path: Path, made: list[Given], has_next: bool) -> list[Given | None]:
    """Write a file with one observation more than actions."""
    robomimic(path, made, False)
    with h5py.File(path, "a") as file:
        for k, one in enumerate(made):
            del file[f"data/demo_{k}/obs/x"]
            file[f"data/demo_{k}/obs/x"] = one.observations
    return [known_part(one, has_next=True, marks_truncations=False) for one in made]


def d3rlpy(path: Path, made: list[Given], has_next: bool) -> list[Given | None]:
    """Write a file of d3rlpy 2, or without `has_next` of d3rlpy 1."""
    with h5py.File(path, "w") as file:
        if not has_next:
            ends = np.concatenate([np.arange(len(one.rewards)) == len(one.rewards) - 1 for one in made])
            terminated = [one.ending is Ending.TERMINATED for one in made for _ in one.rewards]
            file["observations"] = np.concatenate([one.observations[:-1] for one in made])
            file["actions"] = np.concatenate([one.actions for one in made])
            file["rewards"] = np.concatenate([one.rewards for one in made])
            file["terminals"], file["episode_terminals"] = ends & terminated, ends
            cut = [one._replace(ending=Ending.TRUNCATED) if one.ending is Ending.OPEN else one for one in made]
            return [known_part(one, has_next=False) for one in cut]
        file["num_episodes"], file["version"] = len(made), "2.1"
        file["columns"] = np.array(["observations", "actions", "rewards", "terminated"], h5py.string_dtype())
        for k, one in enumerate(made):
            file[f"observations_{k}"], file[f"actions_{k}"] = one.observations[:-1], one.actions[:, None]
            file[f"rewards_{k}"], file[f"terminated_{k}"] = one.rewards[:, None], one.ending is Ending.TERMINATED
    return [known_part(one, has_next=False, marks_truncations=False) for one in made]


def tianshou(path: Path, made: list[Given], has_next: bool) -> list[Given | None]:
    """Write a ring of one environment, or without `has_next` two rings, which may be full.

    The reference is a list per ring of which the last items stay.
    """
    num, size = 1 if has_next else 2, max(3, sum(len(one.rewards) for one in made) * 2 // 3)
    rings: list[list[Any]] = [[] for _ in range(num)]
    for k, one in enumerate(made):
        for t in range(len(one.rewards)):
            ends = t == len(one.rewards) - 1
            step = one.observations[t], one.observations[t + 1], one.actions[t], one.rewards[t]
            flags = ends and one.ending is Ending.TERMINATED, ends and one.ending is Ending.TRUNCATED
            rings[k % num].append((*step, *flags))
    observed = num * size, *made[0].observations.shape[1:]
    columns: dict[str, Any] = {key: np.zeros(observed, made[0].observations.dtype) for key in ("obs", "obs_next")}
    columns |= {"act": np.zeros(num * size, int), "rew": np.zeros(num * size)}
    columns |= {"terminated": np.zeros(num * size, bool), "truncated": np.zeros(num * size, bool)}
    for k, ring in enumerate(rings):
        for number, step in enumerate(ring):
            row = k * size + number % size
            for name, value in zip(("obs", "obs_next", "act", "rew", "terminated", "truncated"), step, strict=True):
                columns[name][row] = value
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file[f"_meta/{name}"] = column
        if num == 1:
            file.attrs.update(_size=min(size, len(rings[0])), _insertion_idx=len(rings[0]) % size, maxsize=size)
        else:
            file["_offset"] = np.arange(num) * size
            file["_lengths"] = [min(size, len(ring)) for ring in rings]
            file["last_index"] = [k * size + (len(ring) - 1) % size for k, ring in enumerate(rings)]
            file.attrs.update(_size=0, _insertion_idx=0, maxsize=num * size)
    expected: list[Given | None] = []
    for ring in rings:
        parts: list[list[Any]] = [[]]
        for before, step in zip([None, *ring[-size:]], ring[-size:], strict=False):
            if before is not None and (before[4] or before[5] or (before[1] != step[0]).any()):
                parts.append([])
            parts[-1].append(step)
        for part in filter(None, parts):
            ending = Ending.TERMINATED if part[-1][4] else Ending.TRUNCATED if part[-1][5] else Ending.OPEN
            arrays = [np.array([step[i] for step in part]) for i in (0, 2, 3)]
            expected.append(Given(np.concatenate([arrays[0], [part[-1][1]]]), arrays[1], arrays[2], ending))
    return expected


def aloha(path: Path, made: list[Given], has_next: bool) -> list[Given | None]:
    path.mkdir()
    for k, one in enumerate(made):
        with h5py.File(path / f"episode_{k}.hdf5", "w") as file:
            file["observations/qpos"], file["action"] = one.observations[: len(one.rewards) + has_next], one.actions
    unknown = [one._replace(rewards=np.zeros(len(one.rewards)), ending=Ending.OPEN) for one in made]
    return [known_part(one, has_next=has_next) for one in unknown]


def d4rl(path: Path, made: list[Given], has_next: bool) -> list[Given | None]:
    with h5py.File(path, "w") as file:
        file["observations"] = np.concatenate([one.observations[:-1] for one in made])
        file["actions"] = np.concatenate([one.actions for one in made])
        file["rewards"] = np.concatenate([one.rewards for one in made])
        last = [(one.ending, t == len(one.rewards) - 1) for one in made for t in range(len(one.rewards))]
        file["terminals"] = [ends and ending is Ending.TERMINATED for ending, ends in last]
        file["timeouts"] = [ends and ending is not Ending.TERMINATED for ending, ends in last]
        if has_next:
            file["next_observations"] = np.concatenate([one.observations[1:] for one in made])
    cut = [one._replace(ending=Ending.TRUNCATED) if one.ending is Ending.OPEN else one for one in made]
    return [known_part(one, has_next=has_next) for one in cut]


WRITERS: dict[str, Callable[[Path, list[Given], bool], list[Given | None]]] = {
    "robomimic": robomimic,
    "robomimic with a last observation": robomimic_with_last,
    "aloha": aloha,
    "d3rlpy": d3rlpy,
    "tianshou": tianshou,
    "d4rl": d4rl,
}


def contents(episode: SingleAgentEpisode) -> list[Any]:
    observations = episode.get_observations()
    while isinstance(observations, dict):
        (observations,) = observations.values()
    arrays = observations, episode.get_actions(), episode.get_rewards()
    return [*(array.tolist() for array in arrays), episode.facts.ending]


@pytest.mark.parametrize("name", WRITERS)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    data=st.data(),
    has_next=st.booleans(),
    block=st.sampled_from([1, 100, 1 << 20]),
)
def test_random_steps_come_back(
    name: str, lengths: list[int], data: st.DataObject, has_next: bool, block: int, tmp_path_factory: Any
) -> None:
    kinds = st.sampled_from([Ending.TERMINATED, Ending.TRUNCATED, Ending.OPEN])
    made = given_episodes(lengths, data.draw(st.lists(kinds, min_size=len(lengths), max_size=len(lengths))))
    path = tmp_path_factory.mktemp("files") / "x"
    expected = [one for one in WRITERS[name](path, made, has_next) if one is not None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transitions, "_BLOCK", block)  # bytes that are read together
        episodes, report = read(path)
        found = list(episodes)
    assert [contents(episode) for episode in found] == [
        [one.observations.tolist(), one.actions.tolist(), one.rewards.tolist(), one.ending] for one in expected
    ]
    assert len({episode.id_ for episode in found}) == len(found)
    whole = sum(len(one.rewards) for one in made), {one.ending for one in made}
    restored = sum(len(episode) for episode in found), {episode.facts.ending for episode in found}
    assert whole == restored or name == "d4rl" or report  # the report says what is not there


@pytest.mark.parametrize(
    ("name", "ending", "reported"),
    [
        ("robomimic", Ending.TERMINATED, "truncations"),
        ("robomimic", Ending.TRUNCATED, "truncations"),
        ("aloha", Ending.TRUNCATED, "endings"),
        ("d3rlpy", Ending.TRUNCATED, "truncations"),
    ],
)
def test_report_names_endings_that_no_file_of_the_format_marks(
    name: str, ending: Ending, reported: str, tmp_path: Path
) -> None:
    WRITERS[name](tmp_path / "x", given_episodes([3], [ending]), True)
    episodes, report = read(tmp_path / "x")
    assert len(list(episodes)) == 1
    assert reported in {loss.what for loss in report}


def test_full_ring_of_tianshou_reports_overwritten_steps(tmp_path: Path) -> None:
    WRITERS["tianshou"](tmp_path / "x", given_episodes([9, 9], [Ending.TERMINATED] * 2), True)
    episodes, report = read(tmp_path / "x", prefix="p")
    assert [episode.id_ for episode in episodes] == ["p/0", "p/1"]
    assert ("the first steps", "p/0") in {(loss.what, loss.first) for loss in report}


def test_robomimic_success_before_the_end_is_an_info(tmp_path: Path) -> None:
    WRITERS["robomimic"](tmp_path / "x", given_episodes([4], [Ending.TERMINATED]), True)
    with h5py.File(tmp_path / "x", "a") as file:
        file["data/demo_0/dones"][1:] = True
    (episode,), report = read(tmp_path / "x")
    assert len(episode) == 4
    assert episode.is_terminated
    assert [info.get("dones") for info in episode.get_infos()] == [False, False, True, True, None]
    assert "dones" in {loss.what for loss in report}


def test_robomimic_next_observation_of_another_step_cuts_and_reports(tmp_path: Path) -> None:
    WRITERS["robomimic"](tmp_path / "x", given_episodes([4], [Ending.TERMINATED]), True)
    with h5py.File(tmp_path / "x", "a") as file:
        file["data/demo_0/next_obs/x"][1] = 99
    episodes, report = read(tmp_path / "x", prefix="p")
    assert [(episode.id_, len(episode)) for episode in episodes] == [("p/demo_0", 2), ("p/demo_0/1", 2)]
    assert "what lies between two steps" in {loss.what for loss in report}


def test_robomimic_masks_attributes_and_order(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x", "w") as file:
        for k in range(12):
            file[f"data/demo_{k}/obs/x"], file[f"data/demo_{k}/actions"] = np.full(3, k), np.zeros((3, 1))
            file[f"data/demo_{k}"].attrs["success"] = k % 2 == 0
        file["data"].attrs["env_args"] = '{"env_name": "Lift"}'
        file["mask/train"] = np.array([b"demo_2", b"demo_10"])
        file["mask/valid"] = np.array([b"demo_2"])
    episodes, report = read(tmp_path / "x")
    found = list(episodes)
    assert [episode.get_observations(0)["x"] for episode in found] == list(range(12))
    assert [episode.custom_data.get("masks") for episode in found[:3]] == [None, None, ["train", "valid"]]
    assert found[10].custom_data == {
        "masks": ["train"],
        "success": True,
        "source": {"env_args": '{"env_name": "Lift"}'},
    }
    assert {loss.what for loss in report} == {"endings", "rewards", "the last step"}


def test_aloha_images_are_those_that_were_compressed(tmp_path: Path) -> None:
    episodes, _ = read(foreign.aloha(tmp_path).value)
    images = [episode.get_observations()["images"]["cam_high"] for episode in episodes]
    assert [(array.shape, array.dtype, *np.unique(array)) for array in images] == [
        ((foreign.T, 8, 8, 3), np.uint8, k * 100) for k in range(2)
    ]


def numbered_folder(path: Path) -> Path:
    WRITERS["aloha"](path, given_episodes([2] * 12, [Ending.OPEN] * 12), True)
    return path


def test_aloha_folder_is_read_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    episodes, _ = read(numbered_folder(tmp_path / "folder"))
    assert [episode.custom_data["file"] for episode in episodes] == [f"episode_{k}.hdf5" for k in range(12)]


def without(name: str, *groups: str) -> Callable[[Path], Path]:
    def made(path: Path) -> Path:
        source = foreign.FORMATS[name][0](path).value
        with h5py.File(source, "a") as file:
            for group in groups:
                del file[group]
        return source

    return made


def another_file_in_the_folder(path: Path) -> Path:
    with h5py.File(numbered_folder(path / "folder") / "zzz.hdf5", "w") as file:
        file["x"] = 1
    return path / "folder"


WRONG: dict[str, tuple[Callable[[Path], Path], str]] = {
    "robomimic without observations": (
        without("robomimic", *(f"data/demo_{k}/obs" for k in range(2))), "extract them from the states first"
    ),
    "robomimic with one demonstration without observations": (
        without("robomimic", "data/demo_1/obs"), "demo_1: no 'obs'.*extract them"
    ),
    "d3rlpy with fewer episodes": (without("d3rlpy", "actions_1"), "no 'actions_1', but 'num_episodes' is 2"),
    "Tianshou without next observations": (without("tianshou file", "_meta/obs_next"), "ignore_obs_next=True"),
    "Tianshou without endings": (
        without("tianshou file", *(f"_meta/{name}" for name in ("done", "terminated", "truncated"))),
        "no '_meta/terminated' and no '_meta/done'",
    ),
    "a file of another kind in a folder of ALOHA": (another_file_in_the_folder, "zzz.hdf5: not a file of ALOHA"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_file_is_refused_by_name(name: str, tmp_path: Path) -> None:
    make, message = WRONG[name]
    path = make(tmp_path)
    with pytest.raises(UnreadableData, match=message):
        list(read(path)[0])


def test_pickled_observations_are_not_opened(tmp_path: Path) -> None:
    source = foreign.tianshou_file(tmp_path).value
    with h5py.File(source, "a") as file:
        file["_meta/obs"].attrs["__data_type__"] = "pickled_ndarray"
    with pytest.raises(UnreadableData, match="'_meta/obs' holds pickled objects, which are not opened"):
        list(read(source)[0])


def test_pickled_info_of_tianshou_is_reported_even_with_as_many_bytes_as_rows(tmp_path: Path) -> None:
    source = foreign.tianshou_file(tmp_path).value
    with h5py.File(source, "a") as file:
        file["_meta/info/deep/text"] = np.zeros(len(file["_meta/rew"]), np.int8)
        file["_meta/info/deep/text"].attrs["__data_type__"] = "pickled_ndarray"
    episodes, report = read(source)
    assert {key for episode in episodes for info in episode.get_infos() for key in info} == {"planted_info"}
    assert "_meta/info/deep/text" in {loss.what for loss in report}


def test_nested_infos_of_next_observations_leave_the_first_info_empty(tmp_path: Path) -> None:
    source = foreign.tianshou_file(tmp_path).value
    with h5py.File(source, "a") as file:
        file["_meta/info/deep/x"] = np.arange(len(file["_meta/rew"]))
    episodes, _ = read(source)
    assert [[info.get("deep") for info in episode.get_infos()] for episode in episodes] == [
        [None, *({"x": row} for row in range(k * foreign.T, (k + 1) * foreign.T))] for k in range(2)
    ]


def test_many_episodes_of_d3rlpy_are_recognized(tmp_path: Path) -> None:
    WRITERS["d3rlpy"](tmp_path / "x", given_episodes([1] * 200, [Ending.TERMINATED] * 200), True)
    assert len(list(read(tmp_path / "x")[0])) == 200


CONVERT = """
import re, sys
from episodes.converters import read, write
write(read(sys.argv[1])[0], sys.argv[2], "episodes")
(peak,) = re.findall("VmHWM:[^0-9]*([0-9]+) kB", open("/proc/self/status").read())
print(int(peak) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["robomimic", "aloha", "d3rlpy", "tianshou", "d4rl"])
def test_conversion_of_a_large_file_needs_little_memory(name: str, tmp_path: Path) -> None:
    """Convert about 400 MB, or 800 MB with next observations, in episodes of 1 MB."""
    noise, num = np.random.default_rng(0).integers(0, 255, (501, 2000)).astype(np.uint8), 400
    made = [Given(noise, np.zeros(500), np.zeros(500), Ending.TERMINATED) for _ in range(num)]
    WRITERS[name](tmp_path / "x", made, True)
    command = [sys.executable, "-c", CONVERT, tmp_path / "x", tmp_path / "out"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(EpisodeDataset(tmp_path / "out")) > num // 2
    assert int(done.stdout) <= 300, done.stdout
