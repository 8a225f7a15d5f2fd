"""Ledgers: notes survive killed writers, and differences of two ledgers are found."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from connectors import learner_pipeline
from episodes import Batch, SingleAgentEpisode
from episodes.errors import InvalidArgument, UnreadableData, WrongType
from episodes.format_versions import LEDGER
from episodes.replay import EpisodeReplayBuffer
from episodes.storage.ledger import Ledger, difference
from episodes.storage.ledger.ledger_reader import LedgerReader
from episodes.storage.ledger.row_hashes import hash_of_arrays, hash_of_values, row_hashes


def rows(*numbers: int) -> dict[str, Any]:
    return {"obs": np.array(numbers, np.float32)[:, None]}


def noted(folder: Path, updates: list[tuple[int, str, list[int]]], every: int = 3) -> Path:
    with Ledger(folder, every=every) as ledger:
        for update, module, numbers in updates:
            ledger.note(update, rows(*numbers), module=module, weights=[np.array(numbers)])
    return folder


def stood(updates: list[tuple[int, str, list[int]]]) -> list[tuple[int, str, list[int]]]:
    """Return the updates that no later update replaces, by a slow search."""
    return [
        first
        for i, first in enumerate(updates)
        if not any(module == first[1] and update <= first[0] for update, module, _ in updates[i + 1 :])
    ]


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["", "b"]), st.lists(st.integers(0, 3), min_size=1))))
def test_reader_returns_notes_and_replaced_updates(
    tmp_path_factory: pytest.TempPathFactory, updates: list[tuple[int, str, list[int]]]
) -> None:
    folder = tmp_path_factory.mktemp("ledger") / "ledger"
    half = len(updates) // 2
    noted(folder, updates[:half])
    noted(folder, updates[half:])
    if not updates:
        with pytest.raises(UnreadableData, match="holds no ledger"):
            LedgerReader(folder)
        return
    expected = [(update, module, row_hashes(rows(*numbers)).tolist()) for update, module, numbers in stood(updates)]
    stored = LedgerReader(folder)
    assert [(update.update, update.module, update.content.tolist()) for update in stored] == expected
    assert [update.update for update in stored[:2]] == [update for update, _, _ in expected[:2]]


def test_truncated_ledger_reads_complete_batches(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", every=1)
    for update in range(8):
        ledger.note(update, rows(update))
    (file,) = (tmp_path / "ledger").glob("*.arrow*")
    data, counts = file.read_bytes(), []
    ledger.close()
    for size in range(len(data), 0, -97):
        (tmp_path / "cut").mkdir(exist_ok=True)
        (tmp_path / "cut" / file.name).write_bytes(data[:size])
        stored = LedgerReader(tmp_path / "cut")
        assert [update.update for update in stored] == list(range(len(stored)))
        counts.append(len(stored))
    assert counts == sorted(counts, reverse=True)
    assert (counts[0], counts[-1]) == (8, 0)


def test_changed_byte_in_ledger_raises(tmp_path: Path) -> None:
    (file,) = noted(tmp_path / "ledger", [(i, "", [i, i]) for i in range(9)]).glob("*.arrow")
    data = bytearray(file.read_bytes())
    whole = [(*update[:4], update.content.tolist()) for update in LedgerReader(tmp_path)]
    for at in range(0, len(data), 61):
        data[at] ^= 0x10
        file.write_bytes(data)
        data[at] ^= 0x10
        try:
            result = [(*update[:4], update.content.tolist()) for update in LedgerReader(tmp_path)]
        except UnreadableData:
            continue
        assert result == whole


def test_row_hashes_are_equal_only_for_equal_rows() -> None:
    generator = np.random.default_rng(0)
    columns = {
        "obs": {"image": generator.integers(0, 255, (5, 40, 40), np.uint8), "place": generator.random((5, 2))},
        "actions": np.arange(5),
        "half": generator.random(5).astype(np.float16),
        "odd": generator.random((5, 3))[:, ::2],
        "nothing": np.zeros((5, 0)),
        "words": np.array(["a"] * 5, object),
        "scalar": np.float64(1.0),
    }
    hashes = row_hashes(columns)
    assert len(set(hashes.tolist())) == 5
    assert np.array_equal(hashes, row_hashes(Batch({name: columns[name] for name in columns if name != "scalar"})))
    for name, place in (("actions", 3), ("half", 0), ("odd", (4, 1))):
        changed = columns | {name: columns[name].copy()}
        changed[name][place] += 1
        (row,) = np.flatnonzero(row_hashes(changed) != hashes)
        assert row == np.atleast_1d(place)[0]
    image = columns["obs"]["image"].copy()
    image[2, 39, 39] ^= 1
    assert np.flatnonzero(row_hashes(columns | {"obs": columns["obs"] | {"image": image}}) != hashes).tolist() == [2]
    tensors = {"a": torch.arange(4), "b": torch.rand(4, 2).to(torch.bfloat16), "c": torch.zeros(4, 0)}
    assert len(set(row_hashes(tensors).tolist())) == 4
    assert np.array_equal(row_hashes({"a": tensors["a"]}), row_hashes({"a": np.arange(4)}))
    assert row_hashes({}).shape == row_hashes({"a": np.zeros((0, 3))}).shape == (0,)


def chunk(id_: str, steps: int) -> SingleAgentEpisode:
    return SingleAgentEpisode.from_arrays(np.arange(steps + 1.0), np.arange(steps), np.ones(steps), id_=id_)


def test_note_records_steps_of_all_kinds_of_batches(tmp_path: Path) -> None:
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add([chunk("a", 4), chunk("b", 6)])
    batches = [buffer.sample(5), buffer.sample_sequences(3, 4, burn_in=2), learner_pipeline()(episodes=[chunk("c", 3)])]
    padded = learner_pipeline(max_seq_len=2)
    batches += [padded(episodes=[chunk("a", 3), chunk("d", 1)]), {"obs": np.zeros((2, 1))}]
    with Ledger(tmp_path) as ledger:
        for number, batch in enumerate(batches):
            ledger.note(number, batch)
    stored = LedgerReader(tmp_path)
    text = [[stored.ids[i] if i >= 0 else None for i in update.episode] for update in stored]
    times = [update.t.tolist() for update in stored]
    assert text[0] == batches[0].origin.ids.tolist()
    assert times[0] == batches[0].origin.t.tolist()
    firsts = [next(step for step in row if step is not None) for row in batches[1].origin.t.tolist()]
    assert times[1] == firsts
    assert (text[2], times[2]) == (["c"] * 3, [0, 1, 2])
    assert (text[3], times[3]) == (["a", "a", "d"], [0, 2, 0])
    assert text[4] == [None, None]


def test_difference_ignores_ids_but_not_episodes(tmp_path: Path) -> None:
    for folder, names in {"one": "abc", "renamed": "xyz", "other": "aba"}.items():
        pipeline = learner_pipeline()
        with Ledger(tmp_path / folder) as ledger:
            for update, name in enumerate(names):
                ledger.note(update, pipeline(episodes=[chunk(name, 3)]))
    assert difference(tmp_path / "one", tmp_path / "renamed") is None
    result = difference(tmp_path / "one", tmp_path / "other")
    assert result is not None
    assert (result.update, result.row, result.what) == (2, 0, "episode")
    assert "t=0 of episode c" in result.first
    assert "t=0 of episode a" in result.second


@pytest.mark.parametrize(
    ("updates", "difference_place"),
    [
        ([(1, "", [1, 2]), (2, "", [3, 4])], (3, None, "updates")),
        ([(1, "", [1, 2]), (2, "", [3, 4, 9]), (3, "", [5])], (2, 2, "rows")),
        ([(1, "", [1, 2]), (2, "", [3, 9]), (3, "", [5])], (2, 1, "content")),
        ([(1, "", [1, 2]), (2, "x", [3, 4]), (3, "", [5])], (2, None, "updates")),
    ],
)
def test_difference_names_the_first_difference(
    updates: Any, difference_place: tuple[int, int | None, str], tmp_path: Path
) -> None:
    whole = noted(tmp_path / "whole", [(1, "", [1, 2]), (2, "", [3, 4]), (3, "", [5])])
    result = difference(whole, noted(tmp_path / "other", updates))
    assert result is not None
    assert (result.update, result.row, result.what) == difference_place
    assert f"update {difference_place[0]}" in str(result)


def test_ledger_command_reports_by_exit_status_and_json(tmp_path: Path) -> None:
    testing = pytest.importorskip("typer.testing")
    from episodes.command.app import app

    run = testing.CliRunner().invoke
    first, second = noted(tmp_path / "one" / "ledger", [(1, "", [1])]), noted(tmp_path / "other", [(1, "", [2])])
    same = run(app, ["ledger", "diff", str(first), str(first.parent)])
    assert (same.exit_code, same.output) == (0, "the same in 1 updates\n")
    result = run(app, ["ledger", "diff", str(first), str(second), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.output)["what"] == "content"


def test_rejected_note_changes_nothing(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger", every=2) as ledger:
        ledger.note(1, rows(1))
        for update in ("2", 2.5, None, 2**70):
            with pytest.raises(WrongType, match="integer of 64 bits"):
                ledger.note(update, rows(2))  # type: ignore[arg-type]
        with pytest.raises(WrongType, match="give columns"):
            ledger.note(2, None)  # type: ignore[arg-type]
        episode = SingleAgentEpisode.from_arrays(np.arange(3.0)[:, None], [0, 1], [0.0, 1.0], id_="\ud800")
        ledger.note(np.int64(2), learner_pipeline()(episodes=[episode]), module="\ud800")
        for settings in (-1, 2**64, True, "lr", 0.5, [1]):
            with pytest.raises((InvalidArgument, WrongType), match=r"give (0 to|a dict)"):
                ledger.note(3, rows(3), settings=settings)  # type: ignore[arg-type]
    stored = LedgerReader(tmp_path / "ledger")
    assert [(update.update, update.module) for update in stored] == [(1, ""), (2, "\\ud800")]
    assert stored.ids == ["\\ud800"]


@given(st.data())
def test_rows_have_the_origin_of_their_batch(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Ids, agents and times are those of `Batch.origin`, for chunks that come again in later updates and files."""
    folder = tmp_path_factory.mktemp("origins")
    buffer, chunks = EpisodeReplayBuffer(100, seed=0), []
    for number, steps in enumerate(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))):
        agent = data.draw(st.sampled_from([None, 0, "a", "\ud800"]))
        chunks.append(chunk(data.draw(st.sampled_from(["\ud800", ""])) + str(number), steps))
        chunks[-1].agent_id = agent
    buffer.add(chunks)
    expected, every = [], data.draw(st.integers(1, 3))
    for part in range(2):
        with Ledger(folder, every=every) as ledger:
            for update in range(3):
                is_sampled = data.draw(st.booleans())
                batch: Any = buffer.sample(4) if is_sampled else learner_pipeline()(episodes=chunks[update:] or chunks)
                ledger.note(3 * part + update, batch, settings=update)
                origin = batch.origin
                expected.append((update, origin.ids.tolist(), origin.t.tolist(), origin.agent_ids.tolist()))
    stored = LedgerReader(folder)
    for update, (settings, ids, t, agents) in zip(stored, expected, strict=True):
        assert [stored.ids[i] for i in update.episode] == list(map(escaped, ids))
        assert (update.settings, update.t.tolist()) == (settings, t)
        stored_agents = [None] * len(t) if update.agents is None else update.agents.tolist()
        assert stored_agents == [None if agent is None else escaped(str(agent)) for agent in agents]


def escaped(text: str) -> str:
    return text.replace("\ud800", "\\ud800")


def test_ledger_is_thread_safe(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", every=3)

    def note(module: int) -> None:
        for update in range(50):
            ledger.note(update, rows(update, module), module=str(module))

    with ledger, ThreadPoolExecutor(4) as threads:
        list(threads.map(note, range(4)))
    text = [(update.module, update.update) for update in LedgerReader(tmp_path / "ledger")]
    assert sorted(text) == [(str(module), update) for module in range(4) for update in range(50)]


def test_reader_of_no_ledger_raises(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="every=0"):
        Ledger(tmp_path, every=0)
    from episodes.storage import EpisodeWriter

    with EpisodeWriter(tmp_path / "episodes") as writer:
        writer.add([chunk("a", 2)])
    with pytest.raises(UnreadableData, match="not of a ledger"):
        LedgerReader(tmp_path / "episodes")


FULL = """
import resource, signal, sys
from episodes.storage.ledger import Ledger
from tests.storage.test_ledger import rows

ledger = Ledger(sys.argv[1], every=1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ledger.note(0, rows(0))
for soft in (6000, resource.RLIM_INFINITY):
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))
    failed = 0
    for update in range(1, 10) if soft == 6000 else range(10, 13):
        try:
            ledger.note(update, rows(*range(100)))
        except OSError:
            failed += 1
    print(failed)
ledger.close()
"""


def test_full_disk_keeps_notes_until_there_is_space(tmp_path: Path) -> None:
    """A write that failed keeps all notes, and the ledger goes on once there is space."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "ledger")],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    failed, failed_later = map(int, done.stdout.split())
    assert failed > 0
    assert failed_later == 0, done.stderr
    assert [update.update for update in LedgerReader(tmp_path / "ledger")] == list(range(13))


@pytest.mark.parametrize(
    ("one", "other", "cause"),
    [
        ([(1, "", [1]), (2, "", [2])], [(1, "", [1]), (2, "", [3])], "inputs"),
        ([(1, "", [1]), (2, "", [2])], [(1, "", [1]), (2, "", [2, 2])], "sampling"),
        ([(1, "", [1]), (2, "", [2])], [(1, "", [1])], "sampling"),
    ],
)
def test_difference_has_a_cause_and_a_bar(one: Any, other: Any, cause: str, tmp_path: Path) -> None:
    first = difference(noted(tmp_path / "one", one), noted(tmp_path / "other", other))
    assert first is not None
    assert (first.cause, first.num_updates) == (cause, 2)
    assert first.bar(10) == f"[=====|....] equal before update 2 of 2, then other {cause}"


@given(st.data())
def test_measurements_and_agents_come_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("measured")
    floats = st.floats(width=32, allow_nan=False)
    expected = []
    with Ledger(folder, every=2) as ledger:
        for update in range(1, data.draw(st.integers(1, 4)) + 1):
            num_rows, width = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 3))
            names = data.draw(st.lists(st.text(max_size=3), unique=True, max_size=3))
            measured = {
                name: np.array(
                    data.draw(st.lists(floats, min_size=num_rows * width, max_size=num_rows * width)), np.float32
                ).reshape(num_rows, width)
                for name in names
            }
            ledger.note(update, {"obs": np.zeros((num_rows, 2))}, measured=measured)
            expected.append(measured)
    for update, measured in zip(LedgerReader(folder), expected, strict=True):
        wanted = measured if len(update.content) else {}
        assert list(update.measured) == list(wanted)
        assert all(np.array_equal(update.measured[name], column) for name, column in wanted.items())
        assert update.agents is None


HASHES = {2: ([0xD5F1669CB22951BC, 0xF636D56F7CABAD82], 0x7F1AC0E839955602, 0xAFB12348739E1894)}
"""Hashes of fixed rows, weights and settings, by version of the ledger's format.

If they change, equal runs of two versions of the library would seem to differ: then the new hashes are an entry of the
next version. Entries of older versions stay.
"""


def test_hashes_change_only_with_the_version_of_the_format() -> None:
    columns = {
        "obs": {
            "camera": np.arange(2 * 400, dtype=np.uint8).reshape(2, 400),
            "pair": (np.arange(4, dtype=np.float32).reshape(2, 2), np.array([True, False])),
        },
        "actions": np.array([3, -1]),
        "rewards": np.array([0.5, -2.0]),
        "indices": np.array([7, 8]),
        "infos": np.array([{"a": 1}, {}]),
        "state": np.zeros((2, 0)),
    }
    weights = hash_of_arrays([np.arange(3.0), np.ones((2, 2), np.float32)])
    settings = hash_of_values({"b": 1, "a": [0.5, None, "x"]})
    assert HASHES[LEDGER] == (row_hashes(columns).tolist(), weights, settings)
