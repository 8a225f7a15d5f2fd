"""Conversions to and from files: restored episodes are equal or losses are reported, and writes are atomic."""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import law
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from samples import run_python, some

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode, unpack_agents
from episodes.converters import (
    formats,
    from_lerobot,
    from_parquet,
    from_rllib_parquet,
    read,
    to_huggingface,
    to_lerobot,
    to_minari,
    to_pandas,
    to_parquet,
    to_rllib_parquet,
    to_sb3,
    write,
)
from episodes.converters.loss_report import LossReport
from episodes.converters.ray_data import complete_table, parts_of
from episodes.errors import InvalidArgument, LostInConversion, TrackMismatch, UnreadableData, WrongType
from episodes.inspect import examine
from episodes.storage import EpisodeDataset
from episodes.testing.strategies import spaces as drawn_spaces


@pytest.mark.parametrize("name", ["parquet", "rllib", "lerobot"])
@settings(max_examples=10, phases=[Phase.generate])
@given(data=st.data())
def test_file_round_trip_of_random_episodes_reports_every_difference(name: str, data: st.DataObject) -> None:
    text = name != "rllib" and data.draw(st.booleans())
    observations, actions = data.draw(drawn_spaces(text=text)), data.draw(drawn_spaces())
    original_episodes = data.draw(law.episode_lists(observations, actions))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        if name == "lerobot" and not any(map(len, original_episodes)):
            with pytest.raises(InvalidArgument, match="no episodes with a step"):
                write(original_episodes, path, name)
            return
        lost = write(iter(original_episodes), path, name)
        if not any(path.rglob("*.parquet")):
            assert not law.convertible_episodes(original_episodes, lost)
            return
        episodes, second_report = read(path)
        back = list(episodes)
        lost.join(second_report)
    law.check_round_trip(original_episodes, back, lost)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def images(shape: tuple[int, ...], steps: int = 4) -> SingleAgentEpisode:
    rng = np.random.default_rng(0)
    observations = {"camera": rng.integers(0, 256, (steps + 1, *shape), np.uint8), "joints": rng.random((steps + 1, 3))}
    infos = [{"t": t, "when": "late"} if t % 2 else {} for t in range(steps + 1)]
    return SingleAgentEpisode.from_arrays(
        observations, rng.random((steps, 2)), np.ones(steps), infos=infos, truncated=True
    )


@pytest.mark.parametrize("shape", [(16, 24, 3), (3, 24, 16), (17, 19, 1)])
def test_lerobot_lossless_videos_are_exact_and_lossy_videos_report_error(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    original_episodes = [images(shape, 4), images(shape, 6), images(shape, 1)]
    assert not to_lerobot(original_episodes, tmp_path / "exact", lossless=True, strict=True)
    back, _ = from_lerobot(tmp_path / "exact", strict=True)
    assert [original.equals(restored) for original, restored in zip(original_episodes, back, strict=True)] == [True] * 3
    lost = to_lerobot(original_episodes, tmp_path / "rough")
    assert [loss.what for loss in lost] == ["observation.images.camera"]
    assert "of 255" in str(lost)
    rough, _ = from_lerobot(tmp_path / "rough")
    for original, restored in zip(original_episodes, rough, strict=True):
        assert np.array_equal(original.get_observations()["joints"], restored.get_observations()["joints"])
        assert original.get_observations()["camera"].shape == restored.get_observations()["camera"].shape
    with pytest.raises(LostInConversion, match="crf 23"):
        to_lerobot(original_episodes, tmp_path / "none", strict=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exact", "rough"]


def test_ids_of_foreign_lerobot_data_are_of_their_videos(tmp_path: Path) -> None:
    to_lerobot([images((16, 24, 3))], tmp_path / "x", lossless=True)
    info = json.loads((tmp_path / "x/meta/info.json").read_text())
    del info["rl_episodes"]
    (tmp_path / "x/meta/info.json").write_text(json.dumps(info))
    first, again = (from_lerobot(tmp_path / "x")[0][0] for _ in range(2))
    (video,) = (tmp_path / "x/videos").rglob("*.mp4")
    with video.open("ab") as file:
        file.write((8).to_bytes(4, "big") + b"free")  # an empty box of MP4, which players skip
    changed = from_lerobot(tmp_path / "x")[0][0]
    assert first.id_ == again.id_ != changed.id_
    assert len(first) == len(changed) == 3  # the observation after the last step is not in the videos


def test_to_lerobot_writes_documented_layout(tmp_path: Path) -> None:
    original_episodes = [some(5, "a", custom_data={"task": "push"}), some(3, "b")]
    to_lerobot(original_episodes, tmp_path / "x", fps=10, task="pull")
    info = json.loads((tmp_path / "x/meta/info.json").read_text())
    assert (info["codebase_version"], info["total_episodes"], info["total_frames"], info["fps"]) == ("v3.0", 2, 8, 10)
    data = pq.read_table(tmp_path / "x" / info["data_path"].format(chunk_index=0, file_index=0))
    assert set(data.column_names) == set(info["features"])
    assert data["index"].to_pylist() == list(range(8))
    assert data["frame_index"].to_pylist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert data["next.done"].to_pylist() == [False] * 4 + [True] + [False] * 2 + [True]
    assert data["timestamp"].to_pylist()[:3] == pytest.approx([0, 0.1, 0.2])
    metas = pq.read_table(tmp_path / "x/meta/episodes").to_pylist()
    assert [(m["dataset_from_index"], m["dataset_to_index"], m["tasks"]) for m in metas] == [
        (0, 5, ["push"]), (5, 8, ["pull"])
    ]  # fmt: skip
    tasks = pq.read_table(tmp_path / "x/meta/tasks.parquet").to_pandas()
    assert tasks.index.tolist() == ["push", "pull"]
    stats = json.loads((tmp_path / "x/meta/stats.json").read_text())["observation.state"]
    whole = np.concatenate([episode.get_observations(slice(0, len(episode))) for episode in original_episodes])
    assert stats["count"] == [8]
    for name in ("mean", "std", "min", "max"):
        np.testing.assert_allclose(stats[name], getattr(whole, name)(0))


def test_from_lerobot_of_foreign_data_reports_lost_last_step(tmp_path: Path) -> None:
    to_lerobot([some(4), some(2, "b", terminated=False, truncated=True)], tmp_path / "x", task="push")
    info = json.loads((tmp_path / "x/meta/info.json").read_text())
    del info["rl_episodes"]
    (tmp_path / "x/meta/info.json").write_text(json.dumps(info))
    back, report = from_lerobot(tmp_path / "x", prefix="robot")
    assert [(e.id_, len(e), e.is_terminated, e.is_truncated) for e in back] == [
        ("robot/0", 4, True, False), ("robot/1", 1, False, True)
    ]  # fmt: skip
    assert {loss.what for loss in report} == {"the last observation", "the last step", "meta/stats.json"}
    assert back[0].custom_data == {"task": "push", "source": {"fps": 30}}
    assert [info["timestamp"] for info in back[1].get_infos()] == [np.float32(0), np.float32(1 / 30)]


def test_to_pandas_and_huggingface_have_one_row_per_step(tmp_path: Path) -> None:
    infos = [{"speed": 0.5, "word": "x"}, {}, {"speed": 1.5}, {"speed": 2.5}]
    original_episodes = [some(3, infos=infos), some(2, "b", terminated=False, policy_versions=7)]
    frame, lost = to_pandas(original_episodes)
    assert not lost
    assert len(frame) == 5
    assert frame.groupby("episode_id").rewards.sum().to_dict() == {"a": 0.75, "b": 0.25}
    assert frame["infos/speed"].tolist()[0] == 0.5
    assert frame["infos/word"].tolist()[0] == "x"
    assert frame["last_infos/speed"].dropna().tolist() == [2.5]
    assert frame["policy_version"].dropna().tolist() == [7, 7]
    rows, _ = to_huggingface(original_episodes)
    assert rows[0]["observations"] == [0.0, 1.0]
    assert rows.num_rows == 5
    with pytest.raises(InvalidArgument, match="no episodes with a step"):
        to_pandas([some(0)])


def test_ray_data_parts_have_bounded_size_and_complete_steps(tmp_path: Path) -> None:
    lengths = [3, 1, 4, 40, 2, 2, 9]
    original_episodes = [images((2, 3), steps) for steps in lengths]
    write(original_episodes, tmp_path / "x", "episodes")
    dataset = EpisodeDataset(tmp_path / "x")
    assert parts_of(dataset, 1) == [(i, i + 1) for i in range(7)]
    assert parts_of(dataset, 1 << 30) == [(0, 7)]
    step = 6 + 3 * 8 + 2 * 8 + 8
    assert parts_of(dataset, 10 * step) == [(0, 4), (4, 5), (5, 7)]  # which begin at steps 0, 48 and 50
    assert parts_of(dataset[:0], 1) == []
    for episode in original_episodes:
        report = LossReport()
        rows = complete_table(EpisodePack.from_episodes([episode]), report)
        assert not report
        for key, items in episode.get_observations().items():
            for name, part in (("observations", items[:-1]), ("next_observations", items[1:])):
                assert np.array_equal(rows[f"{name}/{key}"].combine_chunks().to_numpy_ndarray(), part)
        infos = episode.get_infos()
        assert rows["infos/t"].to_pylist() == [info.get("t") for info in infos[:-1]]
        assert rows["next_infos/when"].to_pylist() == [info.get("when") for info in infos[1:]]


def test_write_of_multi_agent_episode_can_be_unpacked(tmp_path: Path) -> None:
    game = MultiAgentEpisode(id_="game")
    game.add_env_reset(observations={"w": np.zeros(2)})
    game.add_env_step({"b": np.ones(2)}, {"w": 1}, {})
    game.add_env_step({"w": np.ones(2)}, {"b": 0}, {"w": 0.5})
    game.to_numpy()
    waits = {"the episode"}  # of the agent that waits for its first step
    for name, left_out in {"parquet": waits, "lerobot": waits, "rllib": set(), "episodes": set()}.items():
        lost = write([game], tmp_path / name, name)
        assert {loss.what for loss in lost} == left_out, name
        episodes, second_report = read(tmp_path / name)
        agent_episodes = list(episodes)
        assert not second_report
        if not left_out:
            assert unpack_agents([EpisodePack.from_episodes([agent_episode]) for agent_episode in agent_episodes])[
                0
            ].equals(game)


def test_from_rllib_parquet_reads_rows_of_steps(tmp_path: Path) -> None:
    observations = np.arange(14, dtype=np.float32).reshape(7, 2)
    ids = ["a"] * 3 + ["b"] * 4
    table = pa.table(
        {
            "obs": list(observations), "new_obs": list(observations + 2),
            "actions": np.arange(7), "rewards": np.ones(7),
            "terminateds": [False, False, True] + [False] * 4, "truncateds": [False] * 7, "eps_id": ids,
            "t": [0, 1, 2, 0, 1, 2, 3], "vf_preds": np.ones(7),
        }
    )  # fmt: skip
    pq.write_table(table, tmp_path / "steps.parquet", row_group_size=2)
    back, report = from_rllib_parquet(tmp_path, prefix="steps")
    assert [(e.id_, len(e), e.is_terminated) for e in back] == [("steps/a", 3, True), ("steps/b", 4, False)]
    assert back[1].get_observations(-1).tolist() == [14, 15]
    assert [loss.what for loss in report] == ["'vf_preds'"]


@pytest.mark.parametrize("name", ["parquet", "rllib", "lerobot"])
def test_file_round_trip_keeps_byte_order_text_and_infos_of_all_types(tmp_path: Path, name: str) -> None:
    extra, swapped = {"b": np.arange(3, dtype=">i2")}, np.arange(4.0, dtype=">f4")
    extra |= {} if name == "rllib" else {"word": np.array(["a", "bb", "ä"])}
    episodes = [
        SingleAgentEpisode.from_arrays(swapped, np.arange(3), np.ones(3), extra_model_outputs=extra, infos=infos)
        for infos in (None, [{"n": i} for i in range(4)], [{"n": "x"}] * 4)
    ]
    assert not write(episodes, tmp_path / "x", name)
    back = list(read(tmp_path / "x")[0])
    assert (back[0].get_observations().dtype, back[0].get_extra_model_outputs("b").dtype) == (">f4", ">i2")
    assert all(original.equals(restored) for original, restored in zip(episodes, back, strict=True))


@pytest.mark.parametrize("convert", [to_lerobot, to_minari, to_sb3])
def test_format_with_one_space_reports_episode_of_other_space(convert: Any, tmp_path: Path, home: Path) -> None:
    episodes = [some(), some(id_="b", observation_space=spaces.Box(-5, 5, (2,)))]
    target = {to_lerobot: [tmp_path / "x"], to_minari: ["some/spaces-v0"]}.get(convert, [])
    made = convert(episodes, *target)
    (loss,) = (loss for loss in (made[1] if isinstance(made, tuple) else made) if loss.what == "observation_space")
    assert (loss.num_episodes, loss.first) == (1, "b")


def test_to_rllib_parquet_reports_tuples_and_numpy_strings(tmp_path: Path) -> None:
    infos = [{"t": (1, [2, (3,)]), "s": np.str_("x"), "l": [1]}] * 4
    lost = to_rllib_parquet([some(infos=infos, custom_data={"d": {"t": ()}})], tmp_path / "x")
    expected = {"infos['t']", "infos['s']", "custom_data['d']['t']"}
    assert {loss.what for loss in lost} == {f"the type of {path}" for path in expected}
    (back,) = from_rllib_parquet(tmp_path / "x")[0]
    assert back.get_infos(0) == {"t": [1, [2, [3]]], "s": "x", "l": [1]}


@pytest.mark.parametrize("name", ["parquet", "rllib"])
def test_read_of_damaged_parquet_raises_or_returns_equal_episodes(tmp_path: Path, name: str) -> None:
    episodes = [some(steps, id_=f"e{steps}", infos=[{"n": t} for t in range(steps + 1)]) for steps in range(1, 9)]
    write(episodes, tmp_path / "x", name)
    (file,) = (tmp_path / "x").rglob("*.parquet")
    whole = file.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")  # names, types and metadata: no page, no checksum
    for at in (*range(5, footer, footer // 30), *range(footer, len(whole), 17)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            restored = list(read(file, name)[0])
        except UnreadableData:
            continue
        assert all(a.equals(b) for a, b in zip(restored, episodes, strict=True)), at
    file.write_bytes(b"x")
    with pytest.raises(UnreadableData, match=r"part-00000\.parquet: text, not "):
        list(read(file, name)[0])


CHANGES: dict[str, tuple[Any, str | None]] = {  # of a file that to_parquet wrote; words of the error, or None
    "a column is added": (lambda table: table.append_column("new", pa.array(np.arange(len(table)))), None),
    "metadata are added": (lambda table: table.replace_schema_metadata({**table.schema.metadata, b"x": b"y"}), None),
    "rows are in another order": (lambda table: table.take(list(range(len(table)))[::-1]), None),
    "a column is left out": (lambda table: table.drop_columns(["terminated"]), "'terminated' of its columns is not as"),
    "a column has another name": (
        lambda table: table.rename_columns(
            [name.replace("terminated", "ended") for name in table.column_names]
        ).replace_schema_metadata(table.schema.metadata),
        "'terminated' of its columns is not as",
    ),
    "a column has another type": (
        lambda table: table.set_column(
            table.column_names.index("rewards"), "rewards", table["rewards"].cast(pa.float32())
        ),
        "'rewards' of its columns is not as it was written; if you changed it on purpose",
    ),
    "the description is another": (
        lambda table: table.replace_schema_metadata({**table.schema.metadata, b"rl-episodes-steps": b"{}"}),
        "'rl-episodes-steps' of its metadata is not as it was written",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_parquet_whose_columns_were_changed_is_read_or_named(change: str, tmp_path: Path) -> None:
    made = [some(steps, id_=f"e{steps}") for steps in (2, 3)]
    to_parquet(made, tmp_path / "x")
    file = tmp_path / "x" / "part-00000.parquet"
    make, words = CHANGES[change]
    pq.write_table(make(pq.read_table(file)), file)
    if words is not None:
        with pytest.raises(UnreadableData, match=words):
            from_parquet(tmp_path / "x")
    else:
        back, report = from_parquet(tmp_path / "x")
        assert all(a.equals(b) for a, b in zip(sorted(back, key=len), made, strict=True))
        assert bool(report) == (change == "a column is added")


def test_from_rllib_parquet_with_pickle_raises(tmp_path: Path) -> None:
    import msgpack

    evil = {b"nd": True, b"type": [["", "|O"]], b"kind": b"O", b"shape": [1], b"data": b"\x80\x02."}
    pq.write_table(pa.table({"item": [msgpack.packb({"observations": evil})]}), tmp_path / "x.parquet")
    with pytest.raises(UnreadableData, match="pickle"):
        from_rllib_parquet(tmp_path)


def test_conversion_of_invalid_input_raises_and_leaves_no_files(tmp_path: Path) -> None:
    new, foreign = tmp_path / "x", tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"x": [1]}), foreign)
    (tmp_path / "there").mkdir()
    lossy, in_infos = some(custom_data={"set": {1}}), some(infos=[{"set": {1}}] * 4)
    imaginary = SingleAgentEpisode.from_arrays(np.zeros(3, complex), [1, 2], [0.0, 0.0])
    calls: list[tuple[Any, type[Exception], str]] = [
        (lambda: to_parquet([lossy], new, strict=True), LostInConversion, r"custom_data\['set'\]"),
        (lambda: to_rllib_parquet([lossy], new, strict=True), LostInConversion, r"custom_data\['set'\]"),
        (lambda: to_parquet([in_infos], new, strict=True), LostInConversion, "infos/set: .* the first is a"),
        (lambda: to_lerobot([some(), images((16, 16, 3))], new), TrackMismatch, "write a data set for each kind"),
        (lambda: to_parquet([imaginary], new), WrongType, "complex"),
        (lambda: write([some()], new, "csv"), InvalidArgument, "known formats: episodes, lerobot"),
        (lambda: write([some()], new, "d4rl"), InvalidArgument, "can be read, not written"),
        (lambda: read(tmp_path / "there"), UnreadableData, "an empty folder, which no format reads"),
        (lambda: read(3), InvalidArgument, "cannot be read"),
        (lambda: from_parquet(foreign), UnreadableData, "only what to_parquet wrote"),
        (lambda: from_rllib_parquet(foreign), UnreadableData, "not a Parquet file of RLlib"),
    ]
    for name in ("parquet", "rllib", "lerobot", "episodes"):
        there = partial(write, [some()], tmp_path / "there", name)
        calls.append((there, InvalidArgument, "exists already"))
    for call, error, text in calls:
        with pytest.raises(error, match=text):
            call()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign.parquet", "there"]


@pytest.mark.parametrize("options", [*({"format": name} for name in formats.FORMATS), {"episode": "id"}], ids=str)
@pytest.mark.parametrize("source", [None, 3, {"a": 1}, [1], b"file", some(1)], ids=lambda value: type(value).__name__)
def test_read_of_object_with_options_of_files_raises(source: object, options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match=rf"read\({type(source).__name__}\): {next(iter(options))}= is for files"):
        read(source, **options)


def test_examine_reads_converted_data(home: Path) -> None:
    nan = [some(20, f"n{i}", terminated=False, truncated=True) for i in range(3)]
    for episode in nan:
        episode.set_observations(new_data=np.full((21, 2), np.nan, np.float32))
    to_parquet(nan, home / "steps")
    dataset, _ = to_minari(nan, "some/nan-v0")
    expected = {finding.kind for finding in examine(nan)}
    assert expected
    for subject in (home / "steps", home / "some/nan-v0", dataset, to_sb3(nan)[0]):
        assert expected & {finding.kind for finding in examine(read(subject)[0])}, subject
    sound = [some(20, f"e{i}", terminated=False, truncated=True) for i in range(3)]
    assert examine(read(to_minari(sound, "some/fine-v0")[0])[0]) == examine(sound)


FLAT = """
import re, sys
from pathlib import Path
import numpy as np
from gymnasium import spaces
from episodes import SingleAgentEpisode
from episodes.converters import read, write
BOX = spaces.Box(0, 2000, (1000,))

def anonymous():
    return int(re.search(r"Anonymous: +(\\d+)", Path("/proc/self/smaps_rollup").read_text())[1]) / 1024

def made(num):
    for i in range(num):
        seen = np.full((101, 1000), i, np.float32)
        known = {"observation_space": BOX, "action_space": spaces.Discrete(2), "terminated": True}
        yield SingleAgentEpisode.from_arrays(seen, np.zeros(100, int), np.ones(100), id_=str(i), **known)

def watched(episodes, peaks):
    for i, episode in enumerate(episodes):
        if i % 20 == 0:
            peaks.append(anonymous())
        yield episode

root, num, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
write(made(40), f"{root}/warm", names[0])  # what is imported, and what allocators keep
list(read(f"{root}/warm", names[0])[0])
source, form = f"{root}/first", "episodes"
write(made(num), source, form)
for name in names:
    before, peaks = anonymous(), []
    target = f"some/flat-v{names.index(name)}" if name == "minari" else f"{root}/{name}"
    write(watched(read(source, form)[0], peaks), target, name)
    source, form = target, name
    print(name, round(max(peaks) - before), "MB")
    assert max(peaks) - before < 64, (name, peaks, before)
assert sum(1 for _ in read(source, form)[0]) == num
"""


@pytest.mark.parametrize(
    ("num", "names"),
    [
        (200, ["parquet", "episodes"]),  # 80 MB each
        pytest.param(1200, ["parquet", "rllib", "lerobot", "minari", "episodes"], marks=pytest.mark.slow),  # 480 MB
    ],
)
def test_data_are_converted_in_less_memory_than_they_have(num: int, names: list[str], tmp_path: Path) -> None:
    run_python("-c", FLAT, tmp_path, num, *names, MINARI_DATASETS_PATH=str(tmp_path / "minari"))
