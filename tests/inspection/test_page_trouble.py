"""The page server with wrong requests, damaged files and idle connections: it answers each request."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes.errors import UnreadableData
from episodes.inspect import page_server, training_page
from episodes.inspect.page_server import LOOPBACK, MOST_CONNECTIONS, PageServer
from episodes.inspect.training_page import CSVFile, TrainingFiles
from episodes.storage.ledger import Ledger, ledger_reader
from tests.inspection.data import write
from tests.inspection.test_page import plain, served

NUMBERS = ("5" * 5000, "-" + "9" * 5000, "-1", "1e3", "\u0661", "\u00b2", "", "nan", "0x1", " 1", "1_0", str(1 << 80))
PLACES = {
    "version of rows": "rows?version={}",
    "version of runs": "runs?version={}",
    "start": "episode?id=first&t={}",
    "nth": "episode?id=first&t=0&nth={}",
    "window": "episode?id=first&t=0&from={}&to=3",
    "end of the window": "episode?id=first&t=0&from=0&to={}",
    "number of a run": "episodes/{}/episodes/rows",
    "start of an episode of a run": "episodes/0/episodes/episode?id=first&t={}",
}


def answer(port: int, path: str) -> tuple[int, bytes]:
    """Return status and body of the answer to a request, whose path is sent as it is."""
    with socket.create_connection((LOOPBACK, port), timeout=60) as connection, connection.makefile("rb") as reply:
        connection.sendall(b"GET /" + path.encode() + b" HTTP/1.0\r\nHost: localhost\r\n\r\n")
        whole = reply.read()
    head, _, body = whole.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), body


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the data set `data` and the run `run`, which has a data set."""
    folder = tmp_path_factory.mktemp("trouble")
    for name in ("data", "run/episodes"):
        write(folder / name, [plain([1.0, 2.0], id_="first"), plain([3.0], id_="second")])
    (folder / "run" / "train.csv").write_text("step,mean_return\n1,2\n2,3\n")
    (folder / "run" / "run.json").write_text(json.dumps({"configuration": {"algo": "ppo", "env": "CartPole-v1"}}))
    return folder


@pytest.fixture(scope="module")
def ports(folder: Path) -> Iterator[dict[str, int]]:
    """Return the ports of servers of a data set and of a run."""
    with served(folder / "data") as data, served(folder / "run") as run:
        yield {"data": data.server_port, "run": run.server_port}


@pytest.mark.parametrize("source", ["data", "run"])
@pytest.mark.parametrize("path", PLACES.values(), ids=PLACES.keys())
def test_numbers_of_a_request_are_checked(ports: dict[str, int], path: str, source: str) -> None:
    for number in NUMBERS:
        status, body = answer(ports[source], path.format(number))
        assert status in (200, 204, 400, 404), body
    assert answer(ports[source], "")[0] == 200


def test_negative_nth_is_no_episode(ports: dict[str, int]) -> None:
    assert answer(ports["data"], "episode?id=first&t=0&nth=0")[0] == 200
    assert answer(ports["data"], "episode?id=first&t=0&nth=-1")[0] == 404


@settings(max_examples=60)
@given(
    st.sampled_from(["data", "run"]),
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n "), max_size=60),
        st.tuples(
            st.sampled_from(
                ["rows", "episode", "runs", "findings", "episodes/0/episodes/episode", "episodes/0/..", "//[", ".."]
            ),
            st.lists(st.tuples(st.sampled_from(["id", "t", "nth", "agent", "from", "to", "version"]), st.integers())),
        ).map(lambda parts: f"{parts[0]}?" + "&".join(f"{name}={value}" for name, value in parts[1])),
    ),
)
def test_each_request_is_answered(ports: dict[str, int], source: str, path: str) -> None:
    status, body = answer(ports[source], path)
    assert status in (200, 204, 400, 404) or (status == 500 and b"ValueError" in body and "[" in path)


def damaged(content: bytes, draw: Any) -> bytes:
    """Return a file's content with some bytes replaced, cut or repeated."""
    kind = draw(st.sampled_from(["bytes", "cut", "twice", "other"]))
    at = draw(st.integers(0, len(content)))
    if kind == "bytes":
        return content[:at] + draw(st.binary(max_size=20)) + content[at + 3 :]
    if kind == "cut":
        return content[:at]
    return content + content if kind == "twice" else draw(st.binary(max_size=200))


@pytest.mark.filterwarnings("ignore:.*damaged:UserWarning", "ignore:.*lost:UserWarning")
@settings(max_examples=60)
@given(st.data())
def test_damaged_files_end_no_page(folder: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    source = tmp_path_factory.mktemp("damaged")
    shutil.copytree(folder / "run", source / "bad")
    shutil.copytree(folder / "run", source / "good")
    file = data.draw(st.sampled_from(sorted(path for path in (source / "bad").rglob("*") if path.is_file())))
    runs, before = page_server.LiveRuns([source / "bad", source / "good"]), file.read_bytes()
    is_open = data.draw(st.booleans())
    if is_open:
        runs.answer("runs", {})
    file.write_bytes(damaged(before, data.draw))
    message = runs.files.message(None)
    assert message is not None
    assert [message["runs"][1]["steps"], *message["runs"][1]["metrics"]] == [2, "train/mean_return"]
    assert runs.answer("runs", {})[0] == 200
    shutil.rmtree(source)


TABLES = {
    "short rows": (b"step,a,b\n1,2\n2\n3,4,5\n", 3, ""),
    "long rows": (b"step,a\n1,2,3,4\n", 1, ""),
    "the same name twice": (b"step,a,a\n1,2,3\n", 1, ""),
    "an empty first line": (b"\nstep,a\n1,2\n", 1, ""),
    "steps that are no numbers": (b"step,a\nx,2\nnan,3\ninf,4\n", 0, ""),
    "a huge step": (b"step,a\n1e300,2\n", int(1e300), ""),
    "sums beyond float64": (b"step,a\n" + b"1,1.7e308\n" * 2000, 1, ""),
    "digits without end": (b"step,a\n" + b"7" * 6000 + b",1\n", 0, ""),
    "zero bytes": (b"step,a\n\0,\0\n", 0, ""),
    "a field without end": (b'step,a\n1,"' + b"x" * 200_000 + b"\n", 0, "field larger than field limit"),
    "no text": (bytes(range(256)) + b"\n", 0, "new-line character"),
    "a directory": (None, 0, "directory"),
}
DESCRIPTIONS = {
    "other JSON": b"[1, 2]",
    "no JSON": b"{",
    "no UTF-8": b"\xff\xfe",
    "deep": b'{"configuration":' * 100_000,
    "digits without end": b'{"configuration": {"seed": ' + b"7" * 6000 + b"}}",
    "lone surrogates": b'{"configuration": {"algo": "\\ud800"}}',
    "infinity": b'{"configuration": {"seed": Infinity, "env": NaN}}',
    "pairs": b'{"configuration": [[1, 2]]}',
    "nested": b'{"configuration": {"algo": {"a": [1]}, "env": [], "seed": null}}',
}


@pytest.mark.parametrize(("content", "steps", "problem"), TABLES.values(), ids=TABLES.keys())
def test_wrong_table_of_a_run_is_named_and_others_are_shown(
    folder: Path, tmp_path: Path, content: bytes | None, steps: int, problem: str
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "run.json").write_text("{}")
    if content is None:
        (bad / "train.csv").mkdir()
    else:
        (bad / "train.csv").write_bytes(content)
    runs = page_server.LiveRuns([bad, folder / "run"])
    assert runs.answer("runs", {})[0] == 200
    message = runs.files.message(None)
    assert message is not None
    assert message["runs"][0]["steps"] == steps
    assert problem in message["runs"][0]["problem"]
    assert bool(problem) == bool(message["runs"][0]["problem"])
    assert message["runs"][1]["steps"] == 2
    assert runs.files.message(message["version"]) is None  # a problem is noted once


@pytest.mark.parametrize("content", DESCRIPTIONS.values(), ids=DESCRIPTIONS.keys())
def test_wrong_description_of_a_run_hides_no_curve(folder: Path, tmp_path: Path, content: bytes) -> None:
    shutil.copytree(folder / "run", tmp_path / "bad")
    (tmp_path / "bad" / "run.json").write_bytes(content)
    runs = page_server.LiveRuns([tmp_path / "bad", folder / "run"])
    assert runs.answer("runs", {})[0] == 200
    message = TrainingFiles([tmp_path / "bad"]).message(None)
    assert message is not None
    assert "train/mean_return" in message["runs"][0]["metrics"]


NUMBERS_OF_TABLE = st.lists(st.integers(0, 10**9), max_size=4)


@given(st.lists(NUMBERS_OF_TABLE, min_size=1, max_size=4), st.booleans())
def test_replaced_table_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, versions: list[list[int]], is_new_file: bool
) -> None:
    """Also if it is longer than before, and has the same inode."""
    file = CSVFile(tmp_path_factory.mktemp("table") / "train.csv")
    file.path.write_bytes(b'step,a\n1,"' + b"x" * 200_000 + b"\n")
    assert file.read()
    assert not file.read()
    before: Any = None
    for numbers in versions:
        if is_new_file:
            file.path.unlink()
        file.path.write_text("step,a\n" + "".join(f"{n},{n}\n" for n in numbers))
        steps = list(map(float, numbers))
        assert file.read() >= (before not in (None, steps))
        assert (file.problem, file.columns) == ("", {"step": steps, "a": steps})
        before = steps
    assert not file.read()


PAGES = ("", "runs", "findings", "updates/0/1", "episodes/0/training/", "episodes/0/training/rows")
CHANGES = {
    "a file of the ledger is finished": ledger_reader,
    "a draft is removed": training_page,
}


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("listed_by", CHANGES.values(), ids=CHANGES)
def test_files_that_disappear_while_they_are_listed_are_no_error(
    tmp_path: Path, page: str, listed_by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, draft = tmp_path / "run", tmp_path / "run" / "training" / "draft"
    write(run / "training", [plain([1.0, 2.0], id_="first")])
    (run / "train.csv").write_text("step,mean_return\n1,2\n")
    ledger = Ledger(run / "ledger", every=1)
    for update in (1, 2):
        ledger.note(update, {"obs": np.arange(4.0)}, measured={"loss": np.arange(4)})
    draft.write_bytes(b"1")
    list_files, stat = ledger_reader._files, Path.stat

    def files_of_ledger(path: Path) -> Any:
        files = list_files(path)
        ledger.close()
        return files

    def seen_once(path: Path, **options: Any) -> Any:
        status = stat(path, **options)
        if path == draft:
            path.unlink()
        return status

    if listed_by is ledger_reader:
        monkeypatch.setattr(ledger_reader, "_files", files_of_ledger)
    else:
        monkeypatch.setattr(Path, "stat", seen_once)
    with ledger:
        status, _, body = page_server.LiveRuns([run]).answer(page, {})
    assert (status, b"disappear while" in body, b"No such file" in body) == (200, False, False)


def test_ledger_whose_files_disappear_again_and_again_is_an_error_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = ledger_reader.ShardFile("a", "a.arrow", tmp_path / "a.arrow")
    monkeypatch.setattr(ledger_reader, "_files", lambda path: [missing])
    with pytest.raises(UnreadableData, match="files disappear while they are read"):
        ledger_reader.LedgerReader(tmp_path)


@pytest.mark.parametrize("page", ["", "rows", "episode?id=first&t=0", "findings"])
def test_page_of_a_damaged_data_set_names_the_file(folder: Path, tmp_path: Path, page: str) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    (tmp_path / "run" / "episodes" / "episodes.json").write_text("{")
    with served(tmp_path / "run") as server:
        status, body = answer(server.server_port, f"episodes/0/episodes/{page}")
    assert (status, b"episodes.json is not JSON" in body) == (404, True)


@pytest.mark.parametrize("num", [20, 200])
def test_idle_connections_hold_few_threads(
    folder: Path, num: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = threading.active_count()
    with served(folder / "data") as server, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection((LOOPBACK, server.server_port))) for _ in range(num)]
        for connection in idle[MOST_CONNECTIONS:]:
            connection.settimeout(60)
            assert connection.recv(1) == b""  # it was closed
        assert threading.active_count() <= before + MOST_CONNECTIONS + 1
        for connection in idle:
            connection.close()
    monkeypatch.setattr(page_server._RequestHandler, "timeout", 0.01)
    with served(folder / "data") as server, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection((LOOPBACK, server.server_port))) for _ in range(num)]
        for connection in idle:
            connection.settimeout(60)
            assert connection.recv(1) == b""  # also those that had a thread
        monkeypatch.setattr(page_server._RequestHandler, "timeout", 60)
        assert answer(server.server_port, "")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_answer_that_nobody_reads_prints_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with served(folder / "data") as server:
        for _ in range(5):
            with socket.create_connection((LOOPBACK, server.server_port)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset at close
                connection.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert answer(server.server_port, "")[0] == 200
        assert isinstance(server, PageServer)
    assert capfd.readouterr() == ("", "")
