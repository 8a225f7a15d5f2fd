"""Converters account for every value: it is in the episodes, or the report names it, or an error does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from foreign import FORMATS, STORE_IDS, T

from episodes import SingleAgentEpisode
from episodes.converters import from_d4rl, from_lerobot, from_rllib_parquet, from_trl, read
from episodes.errors import InvalidArgument, TrackMismatch, UnreadableData, WrongType


@pytest.fixture(autouse=True)
def _temporary_minari_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


HDF5 = {  # the file below the source, and the group of an episode
    "d4rl": ("", "/"),
    "robomimic": ("", "data/demo_1"),
    "aloha": ("episode_1.hdf5", "/"),
    "d3rlpy": ("", "/"),
    "tianshou file": ("", "_meta"),
    "minari": ("data/main_data.hdf5", "episode_1"),
}


def made(name: str, path: Path, scale: float = 1.0) -> foreign.Source:
    path.mkdir(exist_ok=True)
    return FORMATS[name][0](path, scale)


@pytest.mark.parametrize("name", FORMATS)
def test_every_planted_value_is_in_the_episodes_or_in_the_report(name: str, tmp_path: Path) -> None:
    source = made(name, tmp_path / "source")
    episodes, report = FORMATS[name][1](source.value)
    assert len(episodes) == 2
    text = " ".join([*foreign.texts_of(episodes), str(report)])
    assert [planted for planted in source.planted if planted not in text] == []


@pytest.mark.parametrize("name", FORMATS)
def test_ids_are_equal_for_one_source_and_differ_for_two(name: str, tmp_path: Path) -> None:
    convert = FORMATS[name][1]
    first, other = made(name, tmp_path / "first").value, made(name, tmp_path / "other", 2.0).value
    ids, ids_of_other = ([episode.id_ for episode in convert(source)[0]] for source in (first, other))
    assert [episode.id_ for episode in convert(first)[0]] == ids
    assert len({*ids}) == 2
    if name not in STORE_IDS:
        assert not {*ids} & {*ids_of_other}
    prefixed = [[episode.id_ for episode in convert(first, prefix=prefix)[0]] for prefix in ("run 1", "run 2")]
    assert len({*prefixed[0], *prefixed[1]}) == 4
    assert all(id_.startswith("run 1/") for id_ in prefixed[0])


@pytest.mark.parametrize("name", [*HDF5, "rllib steps", "own parquet", "lerobot", "sb3", "tensordict"])
def test_read_takes_a_prefix(name: str, tmp_path: Path) -> None:
    source = made(name, tmp_path / "source").value
    assert all(episode.id_.startswith("run/") for episode in read(source, prefix="run")[0])
    with pytest.raises(InvalidArgument, match="prefix=''"):
        read(source, prefix="")
    with pytest.raises(WrongType, match="prefix=3"):
        read(source, prefix=3)  # type: ignore[arg-type]


def test_ids_of_a_copied_file_are_those_of_the_file(tmp_path: Path) -> None:
    source = made("d4rl", tmp_path / "source").value
    copied = tmp_path / "other name.hdf5"
    copied.write_bytes(source.read_bytes())
    assert [e.id_ for e in from_d4rl(copied)[0]] == [e.id_ for e in from_d4rl(source)[0]]


def contents(episodes: list[SingleAgentEpisode]) -> list[Any]:
    """Return what the steps of each episode are, sorted by the first reward."""
    rows = [
        [e.get_rewards().tolist(), e.t_started, e.get_observations().tolist(), e.get_actions().tolist(), e.facts.ending]
        for e in episodes
    ]
    return sorted(rows, key=lambda row: row[0])


TABLES = ["rllib steps", "own parquet", "lerobot", "tensordict"]  # sources with columns of ids and times
ORDERS = {
    "shuffled": np.random.default_rng(0).permutation(2 * T),
    "interleaved": np.arange(2 * T).reshape(2, T).T.reshape(-1),
    "reversed": np.arange(2 * T)[::-1].copy(),
    "the second episode first": np.roll(np.arange(2 * T), T),
    "shuffled within episodes": np.concatenate([[2, 0, 3, 1], [5, 4, 7, 6]]),
    "a hole": np.array([0, 1, 2, 3, 4, 6, 7]),
    "without the first row of an episode": np.array([0, 1, 2, 3, 5, 6, 7]),
    "without the last row of an episode": np.array([0, 1, 2, 4, 5, 6, 7]),
    "a row twice": np.array([0, 1, 1, 2, 3, 4, 5, 6, 7]),
}
REFUSED = {  # by name; in all other cases the rows are sorted, or an episode is cut and the report says so
    ("own parquet", "a hole"), ("own parquet", "without the last row of an episode"), ("own parquet", "a row twice"),
    ("rllib steps", "a row twice"), ("tensordict", "a row twice"),
    *(("lerobot", order) for order in ORDERS if order != "shuffled within episodes"),
}  # fmt: skip
UNSEEN = {  # the rest of the rows is an episode that the source could have stored
    ("rllib steps", "without the last row of an episode"), ("tensordict", "without the last row of an episode"),
    ("own parquet", "without the first row of an episode"),
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", TABLES)
def test_rows_in_another_order_are_sorted_or_cut_or_refused(name: str, order: str, tmp_path: Path) -> None:
    source, convert = made(name, tmp_path / "source").value, FORMATS[name][1]
    expected, lost = convert(source)
    if name == "tensordict":
        source = source[ORDERS[order]]
    else:
        (file,) = (
            [source] if source.is_file() else [*(source / "data").rglob("*.parquet")] or [*source.glob("*.parquet")]
        )
        pq.write_table(pq.read_table(file).take(ORDERS[order]), file, row_group_size=3)
    if (name, order) in REFUSED:
        with pytest.raises(UnreadableData, match=r"two rows|repeated|other episodes|rows of episode 1 are not there"):
            convert(source)
        return
    restored, report = convert(source)
    if len(ORDERS[order]) == 2 * T:
        assert contents(restored) == contents(expected)
        assert {loss.what for loss in report} == {loss.what for loss in lost}
        return
    steps_of = {(step[0][0], *step[1]) for row in contents(expected) for step in zip(row[2], row[2][1:], strict=False)}
    restored_steps = [step for row in contents(restored) for step in zip(row[2], row[2][1:], strict=False)]
    assert len(restored_steps) == 2 * T - 1
    assert all((a[0], *b) in steps_of for a, b in restored_steps)  # no transition that never happened
    new = {loss.what for loss in report} - {loss.what for loss in lost}
    assert new or (name, order) in UNSEEN


ARRAYS = {
    "robomimic": ["obs/state", "next_obs/state", "actions", "rewards", "dones"],
    "aloha": ["observations/qpos", "observations/effort", "action"],
    "d3rlpy": ["actions_1", "rewards_1"],
    "tianshou file": ["obs", "obs_next", "act", "rew", "terminated", "truncated", "done"],
    "d4rl": ["observations", "next_observations", "actions", "rewards", "terminals", "timeouts", "infos/planted_info"],
    "tianshou": ["obs", "obs_next", "act", "rew", "terminated", "truncated"],
    "trl": ["prompt_ids", "completion_ids", "logprobs", "env_mask", "reward", "episode_id", "group"],
    "skyrl": ["prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs", "rewards", "stop_reasons"],
    "minari": ["actions", "rewards", "infos/planted_info"],
}


def with_array(name: str, source: Any, array: str, change: Callable[[Any], Any]) -> Any:
    """Return a source in which one array is changed."""
    if name in HDF5:
        import h5py

        inner, group = HDF5[name]
        with h5py.File(source / inner, "a") as file:
            place = file[group]
            values = change(place[array][()])
            del place[array]
            place[array] = values
    elif name == "tianshou":
        setattr(source, array, np.array(change(getattr(source, array))))
    else:
        source[array] = change(source[array])
    return source


@pytest.mark.parametrize("change", [lambda x: x[:-1], lambda x: [*x, x[-1]]], ids=["shorter", "longer"])
@pytest.mark.parametrize(("name", "array"), [(name, array) for name in ARRAYS for array in ARRAYS[name]])
def test_array_of_another_length_is_named(name: str, array: str, change: Any, tmp_path: Path) -> None:
    source = with_array(name, made(name, tmp_path / "source").value, array, change)
    others = (
        "rew|terminals|completions|infos" if array in ("rew", "terminals", "completion_ids", "response_ids") else array
    )
    if name == "minari" and array != "infos/planted_info":
        others = "actions|rewards|steps"
    elif array == "action" and len(change([1, 2])) == 1:
        return  # the observation after the last step is known
    elif name == "minari" and len(change([1, 2])) == 1:
        return  # T infos are those of the observations after each step
    with pytest.raises((UnreadableData, TrackMismatch), match=others):
        FORMATS[name][1](source)


def test_d4rl_observation_after_the_last_step_is_kept(tmp_path: Path) -> None:
    source = made("d4rl", tmp_path / "source").value
    with_array("d4rl", source, "observations", lambda x: [*x, x[-1] + 7])
    import h5py

    with h5py.File(source, "a") as file:
        del file["next_observations"]
    episodes, report = from_d4rl(source)
    assert [len(episode) for episode in episodes] == [T, T]
    assert (episodes[1].get_observations(-1) - episodes[1].get_observations(-2)).tolist() == [7, 7]
    assert {(loss.what, loss.num_episodes) for loss in report if "obs" in loss.what} == {("the last observation", 1)}


def without_marks(name: str, path: Path) -> tuple[Any, list[str]]:
    """Return a source that does not mark all endings, and the names in the report."""
    if name == "sb3":
        return foreign.sb3(path, handle_timeout_termination=False).value, ["truncations"]
    source = made(name, path / "source").value
    if name in HDF5:
        import h5py

        inner, group = HDF5[name]
        missing, expected = {
            "d4rl": (["timeouts"], ["truncations"]),
            "robomimic": (["dones"], ["endings"]),
            "tianshou file": (["terminated", "truncated"], ["truncations"]),
        }[name]
        with h5py.File(source / inner, "a") as file:
            for array in missing:
                del file[group][array]
        return source, expected
    if name == "lerobot":
        (file,) = (source / "data").rglob("*.parquet")
        flags = ["next.done", "next.terminated", "next.truncated"]
        pq.write_table(pq.read_table(file).drop_columns(flags), file)
        return source, ["endings"]
    if name == "tensordict":
        del source["next", "terminated"], source["next", "truncated"]
        return source, ["whether it terminated"]
    del source["stop_reasons"]
    return source, ["truncation"]


@pytest.mark.parametrize("name", ["d4rl", "robomimic", "tianshou file", "sb3", "lerobot", "tensordict", "skyrl"])
def test_report_names_endings_that_the_source_does_not_mark(name: str, tmp_path: Path) -> None:
    source, expected = without_marks(name, tmp_path)
    _, marked = FORMATS[name][1](made(name, tmp_path / "marked").value)
    _, report = FORMATS[name][1](source)
    assert {loss.what for loss in report} - {loss.what for loss in marked} >= {*expected}


def as_text(values: Any) -> Any:
    return [b"BCJNGGhAgA"] * len(values)


def text_in(name: str, path: Path, array: str) -> Any:
    source = made(name, path / "source").value
    if name in HDF5:
        return with_array(name, source, array, as_text)
    if name == "tianshou":
        setattr(source, array, np.array(as_text(source.rew), object))
        return source
    (file,) = [source] if source.is_file() else (source / "data").rglob("*.parquet")
    table = pq.read_table(file)
    index, column = table.column_names.index(array), pa.array([text.decode() for text in as_text(table)])
    pq.write_table(table.set_column(index, array, column), file)
    return source


@pytest.mark.parametrize(
    ("name", "array"),
    [
        *(
            (name, array)
            for name in ("d4rl", "tianshou", "robomimic", "aloha", "d3rlpy", "tianshou file")
            for array in ARRAYS[name]
            if "planted" not in array
        ),
        *(("rllib steps", array) for array in ("obs", "new_obs", "actions", "rewards", "terminateds")),
        *(("lerobot", array) for array in ("observation.state", "action", "next.reward", "planted_feature")),
        *(("minari", array) for array in ("observations", "actions", "rewards")),
    ],
)
def test_text_in_place_of_numbers_is_refused_by_name(name: str, array: str, tmp_path: Path) -> None:
    source = text_in(name, tmp_path, array)
    with pytest.raises(UnreadableData, match=f"{array}.* holds text|{array}.*Python objects|compress_columns"):
        FORMATS[name][1](source)


def test_compressed_observations_of_rllib_are_refused_with_the_setting(tmp_path: Path) -> None:
    with pytest.raises(UnreadableData, match=r"'obs' holds text.*output_compress_columns"):
        from_rllib_parquet(text_in("rllib steps", tmp_path, "obs"))


def test_lerobot_keeps_metadata_times_and_all_tasks(tmp_path: Path) -> None:
    episodes, _ = from_lerobot(made("lerobot", tmp_path / "source").value)
    source = episodes[0].custom_data["source"]
    assert (source["fps"], source["robot_type"], source["names"]["observation.state"]) == (
        17, "planted_robot", ["planted_x", "y"]
    )  # fmt: skip
    assert episodes[0].custom_data["task"] == "planted_task0"
    assert episodes[1].custom_data["tasks"] == ["planted_task1", "planted_task0"]
    assert [info["task"] for info in episodes[1].get_infos()] == ["planted_task1"] * (T - 1) + ["planted_task0"]
    assert [info["timestamp"] for info in episodes[1].get_infos()] == pytest.approx(np.arange(T, 2 * T) + 0.123)
    source["fps"] = 0
    assert episodes[1].custom_data["source"]["fps"] == 17


def test_rows_of_one_id_become_episodes_with_ids_of_their_own() -> None:
    columns = {"prompt_ids": [[1]] * 3, "completion_ids": [[2]] * 3, "logprobs": [[-1.0]] * 3, "reward": [0.0] * 3}
    episodes, report = from_trl(columns | {"episode_id": ["a", "a", "a/1"]})
    assert len({episode.id_ for episode in episodes}) == 3
    assert [loss.what for loss in report] == ["id_"]


def test_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made("rllib steps", tmp_path / "source")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(list(read("~/source/steps.parquet")[0])) == 2
