"""Data sets elsewhere: uploaded whole or not at all, read through a bounded cache, footers once."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from reference_conversations import conversation
from typer.testing import CliRunner

from connectors.prefetch import Prefetch
from episodes import Batch, EpisodePack, Ragged, SingleAgentEpisode
from episodes.errors import InvalidArgument, TrackMismatch, UnreadableData
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter, compact, copy, upload
from episodes.storage.checksums import with_checksum
from episodes.storage.remote.remote_directory import RemoteDirectory
from episodes.storage.sampling import ChunkBatches
from episodes.tokens import token_batch


def episode(i: int, num: int | None = None) -> SingleAgentEpisode:
    num = i % 5 if num is None else num
    return SingleAgentEpisode.from_arrays(
        {"at": np.arange(4.0 * num + 4).reshape(-1, 4) + i, "frame": np.full((num + 1, 40, 40), i % 256, np.uint8)},
        np.arange(num),
        np.arange(num) + i / 8,
        infos=[{"n": t} for t in range(num + 1)],
        custom_data={"level": i},
        id_=f"e{i}",
    )


def made(path: Path, numbers: range = range(20), **options: Any) -> Path:
    """Write a data set of some shards."""
    with EpisodeWriter(path, shard_bytes=10_000, **options) as writer:
        for i in numbers:
            writer.add([episode(i)])
            writer.flush()
    return path


def ids(dataset: EpisodeDataset) -> list[str]:
    return dataset.metadata["id"].tolist()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Return fsspec's options for a real S3 server on this machine."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield {"endpoint_url": f"http://{host}:{port}", "key": "a", "secret": "b"}
    server.stop()


@pytest.fixture
def bucket(s3: dict[str, Any], request: pytest.FixtureRequest) -> str:
    """Return the URL of a bucket for this test."""
    name = f"bucket{zlib.crc32(request.node.name.encode())}"
    fsspec.filesystem("s3", **s3).mkdir(name)
    return f"s3://{name}/data"


def test_s3_data_set_equals_the_uploaded_one(tmp_path: Path, s3: dict[str, Any], bucket: str) -> None:
    local = EpisodeDataset(made(tmp_path / "data"))
    num_shards = len(list((tmp_path / "data").glob("*.arrow")))
    local.add_splits({"train": 0.5})
    assert num_shards > 3
    assert upload(tmp_path / "data", bucket, storage_options=s3) == num_shards
    assert upload(tmp_path / "data", bucket, storage_options=s3) == 0
    remote = EpisodeDataset(bucket, cache=tmp_path / "cache", storage_options=s3)
    assert ids(remote) == ids(local)
    assert remote.num_steps == local.num_steps
    assert remote.split("train").metadata["id"].tolist() == ids(local.split("train"))
    assert not list((tmp_path / "cache").rglob("*.arrow"))  # so far nothing but footers and rows
    assert remote[7].equals(episode(7).to_numpy())
    assert len(list((tmp_path / "cache").rglob("*.arrow"))) == 1
    assert remote.pack() == local.pack()
    assert ids(pickle.loads(pickle.dumps(remote[3:6]))) == ["e3", "e4", "e5"]
    query = 'select step, rewards from steps where "observations/at/1" > 20'
    assert remote.sql(query).table.equals(local.sql(query).table)
    batch, expected = (first.sampler(windows=(4, 2), seed=0).draw() for first in (remote, local))
    np.testing.assert_array_equal(batch["rewards"], expected["rewards"])
    EpisodeDataset(bucket, cache=tmp_path / "cache", storage_options=s3, verify=True)


def test_upload_again_sends_new_and_compacted_shards(tmp_path: Path, s3: dict[str, Any], bucket: str) -> None:
    data = made(tmp_path / "data")
    upload(data, bucket, storage_options=s3)
    early = EpisodeDataset(bucket, cache=tmp_path / "cache", storage_options=s3)
    view = early[2:9:3]
    made(data, range(20, 24))
    compact(data)
    assert upload(data, bucket, storage_options=s3) == 1
    late = EpisodeDataset(bucket, cache=tmp_path / "cache", storage_options=s3)
    assert ids(late) == [f"e{i}" for i in range(24)]
    assert all(result.equals(episode(i).to_numpy()) for i, result in enumerate(late))
    assert [first.id_ for first in pickle.loads(pickle.dumps(view))] == ["e2", "e5", "e8"]
    with pytest.raises(UnreadableData, match="is gone; open the data set again"):
        early[0]


FLAT = """
import json, re, sys
from pathlib import Path
import fsspec
import numpy as np
from episodes import EpisodePack
from episodes.storage import EpisodeWriter, upload

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10

def sent(name, num):
    with EpisodeWriter(f"{root}/{name}", shard_bytes=1 << 22) as writer:
        for i in range(num):
            seen, steps = np.full((50_500, 8), i, float), np.arange(50_000.0)
            writer.add(EpisodePack(observations=seen, actions=steps, rewards=steps, lengths=np.full(500, 100)))
    return upload(f"{root}/{name}", f"{url}/{name}", storage_options=options)

root, url, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
sent("warm", 2)
before, most = anonymous(), 0
system = fsspec.filesystem("s3", **options)
put = type(system).put_file
def put_and_look(*args, **more):
    global most
    put(*args, **more)
    most = max(most, anonymous())
type(system).put_file = put_and_look
print(sent("data", int(sys.argv[4])), most - before)
"""


@pytest.mark.parametrize("num", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_upload_of_data_larger_than_memory(tmp_path: Path, s3: dict[str, Any], bucket: str, num: int) -> None:
    command = [sys.executable, "-c", FLAT, str(tmp_path), bucket, json.dumps(s3), str(num)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True)
    num_sent, megabytes = map(int, done.stdout.split())
    assert num_sent == num // 2  # shards of 8 MB
    assert megabytes < 24
    assert len(EpisodeDataset(f"{bucket}/data", cache=tmp_path / "cache", storage_options=s3)) == 500 * num


def observed_ids(url: str, cache: Path, **options: Any) -> list[str]:
    """Return the ids that a new reader sees, and [] if there is no data set yet. Every problem is an error."""
    try:
        return ids(EpisodeDataset(url, cache=cache, verify=True, **options))
    except UnreadableData as error:
        if "is not a data set" not in str(error):
            raise
        return []


class Killed(BaseException):
    """Simulated end of the process, which the library does not catch."""


def test_upload_killed_at_any_request_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, url = made(tmp_path / "data", range(6)), f"memory://{tmp_path.name}"
    known: list[list[str]] = [[]]
    system = fsspec.filesystem("memory")
    remaining = 0

    def counted(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            nonlocal remaining
            remaining -= 1
            if remaining < 0:
                raise Killed
            return function(*args, **options)

        return call

    for name in ("put_file", "pipe_file", "rm_file", "mv"):
        monkeypatch.setattr(system, name, counted(getattr(system, name)))
    for extra in (range(0), range(6, 9), None):
        if extra is None:
            compact(data)
        made(data, extra or range(0))
        known.append(ids(EpisodeDataset(data)))
        for kill in range(100):
            remaining = kill
            try:
                upload(data, url)
                break
            except Killed:
                pass
            cache = tmp_path / f"cache{len(known)}-{kill}"
            assert observed_ids(url, cache) in (known[-2], known[-1])
        assert ids(EpisodeDataset(url, cache=tmp_path / "cache")) == known[-1]
    assert not [name for name in RemoteDirectory(url).sizes() if name.endswith(".arrow")]  # all was compacted


KILLED_UPLOAD = """
import json, os, sys
from episodes.storage import upload
from episodes.storage.remote.remote_directory import RemoteDirectory
source, url, options, left = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
system = RemoteDirectory(url, options).system
def counted(name, function):
    def call(*args, **more):
        global left
        left -= 1
        if left < 0 and url.startswith("file://") and name in ("put_file", "pipe_file"):
            data = args[1] if name == "pipe_file" else open(args[0], "rb").read()
            open(args[0] if name == "pipe_file" else args[1], "wb").write(data[: len(data) // 2])
        if left < 0:
            os.kill(os.getpid(), 9)
        return function(*args, **more)
    return call
for name in ("put_file", "pipe_file", "rm_file", "mv"):
    setattr(system, name, counted(name, getattr(system, name)))
upload(source, url, storage_options=options)
"""


@pytest.mark.parametrize("protocol", ["file", "s3"])
@pytest.mark.parametrize(
    "kills", [(2, 7), pytest.param(range(15), marks=pytest.mark.slow)], ids=["2 kills", "15 kills"]
)
def test_killed_upload_shows_the_old_or_the_new_state(
    tmp_path: Path, s3: dict[str, Any], bucket: str, protocol: str, kills: Sequence[int]
) -> None:
    url, options = (f"s3://{bucket}/data", s3) if protocol == "s3" else (f"file://{tmp_path}/remote", {})
    data, read_options = made(tmp_path / "data", range(3)), {"storage_options": options}
    upload(data, url, **read_options)
    before, num = ids(EpisodeDataset(data)), 3
    for kill in kills:
        if kill % 5 == 4:
            compact(data)
        made(data, range(num, num + 3))
        num += 3
        after = ids(EpisodeDataset(data))
        words = [sys.executable, "-c", KILLED_UPLOAD, str(data), url, json.dumps(options), str(kill)]
        subprocess.run(words, check=False, timeout=120)
        observed = observed_ids(url, tmp_path / f"cache {kill}", **read_options)
        assert observed in (before, after)
        before = observed
    upload(data, url, **read_options)
    assert observed_ids(url, tmp_path / "cache", **read_options) == after


@pytest.mark.parametrize("kill", range(0, 12, 3))
def test_upload_to_a_target_of_an_earlier_version_stays_hidden_until_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill: int
) -> None:
    data, url = made(tmp_path / "data", range(3)), f"memory://{tmp_path.name}"
    upload(data, url)
    place = RemoteDirectory(url)
    place.remove("uploaded.json")  # earlier versions write none
    before = observed_ids(url, tmp_path / "cache")
    made(data, range(3, 6))
    remaining, system = kill, fsspec.filesystem("memory")

    def put(function: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal remaining
            remaining -= 1
            if remaining < 0:
                raise Killed
            return function(*args, **more)

        return call

    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        for name in ("put_file", "pipe_file", "mv"):
            patch.setattr(system, name, put(getattr(system, name)))
        upload(data, url)
    assert observed_ids(url, tmp_path / "cache2") in (before, ids(EpisodeDataset(data)))


def test_two_sources_of_one_data_set_hide_nothing_of_each_other(tmp_path: Path) -> None:
    first, url = made(tmp_path / "first", range(3)), f"memory://{tmp_path.name}"
    second = Path(shutil.copytree(first, tmp_path / "second"))
    made(first, range(3, 6))
    made(second, range(6, 9))
    upload(first, url)
    upload(second, url)
    assert set(observed_ids(url, tmp_path / "cache")) == {f"e{i}" for i in range(9)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"shards": [], "small": {}}',
        json.dumps(with_checksum({"shards": ["../x.arrow"], "small": {}})).encode(),
        json.dumps(with_checksum({"shards": [], "small": {"../../x.json": ""}})).encode(),
        json.dumps(with_checksum({"shards": [], "small": {".x.json": ""}})).encode(),
        json.dumps(with_checksum({"shards": [], "small": {"a.json": "?"}})).encode(),
        json.dumps(with_checksum({"shards": 3, "small": {"a.json": 3}})).encode(),
        json.dumps(with_checksum({"shards": [{}], "small": {}})).encode(),
    ],
)
def test_damaged_or_hostile_state_of_an_upload_is_named(tmp_path: Path, content: bytes) -> None:
    data, url = made(tmp_path / "data", range(3)), f"memory://{tmp_path.name}"
    upload(data, url)
    RemoteDirectory(url).write("uploaded.json", content)
    for call in (lambda: EpisodeDataset(url, cache=tmp_path / "cache"), lambda: upload(data, url)):
        with pytest.raises(UnreadableData, match=r"uploaded\.json.*remove this file"):
            call()
    RemoteDirectory(url).remove("uploaded.json")
    upload(data, url)
    assert observed_ids(url, tmp_path / "cache") == ["e0", "e1", "e2"]


def test_cache_is_bounded_and_read_data_stay_readable(tmp_path: Path) -> None:
    data, url = made(tmp_path / "data", range(40)), f"memory://{tmp_path.name}"
    upload(data, url)
    sizes = [file.stat().st_size for file in data.glob("*.arrow")]
    dataset = EpisodeDataset(url, cache=tmp_path / "cache", cache_bytes=3 * max(sizes))
    result = []
    for first in dataset:
        result.append(first)
        cached = [file.stat().st_size for file in (tmp_path / "cache").rglob("*.arrow")]
        assert sum(cached) <= 3 * max(sizes)
    assert len(sizes) > 6
    assert all(first.equals(episode(i).to_numpy()) for i, first in enumerate(result))
    assert dataset[0].equals(episode(0).to_numpy())


def test_opening_again_downloads_no_footers_or_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, url = made(tmp_path / "data"), f"memory://{tmp_path.name}"
    upload(data, url)
    system, opened = fsspec.filesystem("memory"), list[str]()
    real = system.open
    monkeypatch.setattr(
        system, "open", lambda path, *args, **options: opened.append(path) or real(path, *args, **options)
    )
    for _ in range(2):
        assert len(EpisodeDataset(url, cache=tmp_path / "cache")) == 20
    shards = [path for path in opened if path.endswith(".arrow")]
    assert len(shards) == len(set(shards)) == len(list(data.glob("*.arrow")))


def test_remote_damage_is_named(tmp_path: Path) -> None:
    data, url = made(tmp_path / "data"), f"memory://{tmp_path.name}"
    upload(data, url)
    name, second, *_ = sorted(name for name in RemoteDirectory(url).sizes() if name.endswith(".arrow"))
    whole = RemoteDirectory(url).read(name)
    RemoteDirectory(url).write(name, whole[: len(whole) // 2])
    RemoteDirectory(url).system.rm_file(RemoteDirectory(url).path(second))
    with (
        pytest.warns(UserWarning, match=f"{name.removesuffix('.arrow')} is damaged"),
        pytest.warns(UserWarning, match="is lost"),
    ):
        left = EpisodeDataset(url, cache=tmp_path / "cache")
    assert all(first.equals(episode(int(str(first.id_)[1:])).to_numpy()) for first in left)
    assert 10 < len(left) < 20
    with pytest.raises(UnreadableData, match=f"{url}: shard {second.removesuffix('.arrow')} is lost"):
        EpisodeDataset(url, cache=tmp_path / "cache", verify=True)


def test_http_data_set_is_read_and_errors_are_named(tmp_path: Path) -> None:
    failing: list[int] = []
    with served(made(tmp_path / "data"), failing) as url:
        dataset = EpisodeDataset(url, cache=tmp_path / "cache")
        failing.append(503)
        with pytest.raises(ConnectionError, match=r"http://127.*503"):
            EpisodeDataset(url, cache=tmp_path / "another")
        with pytest.raises(ConnectionError, match=r"http://127.*503"):
            list(dataset)
        failing[0] = 404
        with pytest.raises(UnreadableData, match="is gone; open the data set again"):
            list(dataset)
        failing.clear()
        assert all(result.equals(episode(i).to_numpy()) for i, result in enumerate(dataset))


@contextlib.contextmanager
def served(folder: Path, failing: Sequence[int] = ()) -> Iterator[str]:
    """Serve a folder over HTTP, and return its URL. Requests of shards fail with the first status of `failing`."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def send_head(self) -> Any:
            if failing and ".arrow" in self.path:
                return self.send_error(failing[0])
            return super().send_head()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("protocol", ["s3", "http"])
def test_remote_ragged_data_set_equals_the_local_one(
    tmp_path: Path, s3: dict[str, Any], bucket: str, protocol: str, compression: str
) -> None:
    talks = [talk for seed in range(60) if len(talk := conversation(seed, infos=False))]
    for start in range(0, len(talks), 20):  # a shard each
        with EpisodeWriter(tmp_path / "data", compression=compression) as writer:
            writer.add(talks[start : start + 20])
    local = EpisodeDataset(tmp_path / "data")
    with contextlib.ExitStack() as stack:
        if protocol == "s3":
            upload(tmp_path / "data", bucket, storage_options=s3)
            remote = EpisodeDataset(bucket, cache=tmp_path / "cache", storage_options=s3, verify=True)
        else:
            remote = EpisodeDataset(stack.enter_context(served(tmp_path / "data")), cache=tmp_path / "cache")
        assert remote[7].equals(local[7])
        assert remote.pack() == local.pack()
        assert all(result.equals(talk.to_numpy()) for result, talk in zip(remote, talks, strict=True))
        query = "select step from steps where len(actions) > 3"
        assert remote.sql(query, decode=True).table.equals(local.sql(query, decode=True).table)
        for options in ({"episodes": 8}, {"windows": ChunkBatches(8, 2)}):
            sampler, expected = (data.sampler(**options, seed=0) for data in (remote, local))
            with Prefetch(lambda sampler=sampler: token_columns(sampler.draw()), device="cpu") as batches:
                for _ in range(5):
                    batch, columns = next(batches), token_columns(expected.draw())
                    assert list(batch.keys()) == list(columns.keys())
                    assert all(np.array_equal(batch[name], column) for name, column in columns.items())


def token_columns(pack: EpisodePack) -> Batch:
    """Return the token batch of a pack whose prompts get a first token, since some are empty."""
    items = [np.append(np.int32(1), item) for item in pack.observations]
    return token_batch(pack.replace(observations=Ragged.from_lengths(np.concatenate(items), [*map(len, items)])))


def test_partial_download_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{tmp_path.name}"
    upload(made(tmp_path / "data"), url)
    dataset = EpisodeDataset(url, cache=tmp_path / "cache")
    whole = type(RemoteDirectory(url).system).get_file

    def half(self: Any, remote: str, local: str) -> None:
        whole(self, remote, local)
        os.truncate(local, os.path.getsize(local) // 2)

    with monkeypatch.context() as patched:
        patched.setattr(type(RemoteDirectory(url).system), "get_file", half)
        with pytest.raises(ConnectionError, match=r"\d+ of \d+ bytes came"):
            list(dataset)
    assert all(result.equals(episode(i).to_numpy()) for i, result in enumerate(dataset))


def test_upload_creates_directories(tmp_path: Path) -> None:
    target = tmp_path / "a b" / "ü%20"
    assert upload(made(tmp_path / "data"), target.as_uri()) > 0
    assert len(EpisodeDataset(target, verify=True)) == 20


def test_upload_to_another_data_set_raises(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}"
    upload(made(tmp_path / "data"), url)
    with EpisodeWriter(tmp_path / "other") as writer:
        writer.add([SingleAgentEpisode.from_arrays(np.zeros((2, 3)), [0], [0.0])])
    with pytest.raises(TrackMismatch):
        upload(tmp_path / "other", url)
    with pytest.raises(InvalidArgument, match="is another data set"):
        upload(made(tmp_path / "again"), url)
    compact(made(Path(shutil.copytree(tmp_path / "data", tmp_path / "second")), range(20, 40)))
    upload(tmp_path / "second", url)
    with pytest.raises(InvalidArgument, match="commit-000001"):
        upload(tmp_path / "data", url)
    with pytest.raises(UnreadableData, match="is not a data set"):
        EpisodeDataset("memory://nothing", cache=tmp_path / "cache")
    with pytest.raises(InvalidArgument, match="upload it again"):
        EpisodeDataset(url, cache=tmp_path / "cache").add_splits({"train": 0.5})
    with pytest.raises(InvalidArgument, match="nonsense"):
        EpisodeDataset("nonsense://data", cache=tmp_path / "cache")


def test_copy_command_works_in_both_directions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from episodes.command.app import app

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data, url = made(tmp_path / "data"), f"memory://{tmp_path.name}"

    def run(*words: object) -> str:
        result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
        return result.output.strip()

    assert run("copy", data, url, "--where", "length == 3") == "4 episodes copied"
    assert run("copy", url, tmp_path / "back") == "4 episodes copied"
    assert [first.id_ for first in EpisodeDataset(tmp_path / "back")] == ["e3", "e8", "e13", "e18"]
    assert "4 chunks" in repr(EpisodeDataset(url))
    with pytest.raises(InvalidArgument, match="exists already"):
        copy(data, url)
    assert run("upload", data, url + "/second").endswith("shards sent")
    assert "20" in run("info", url + "/second")


def test_remote_data_set_fills_buffer_and_report(tmp_path: Path) -> None:
    from episodes.inspect.html_report import write_report

    data, url = made(tmp_path / "data"), f"memory://{tmp_path.name}/of_poles"
    upload(data, url)
    dataset = EpisodeDataset(url, cache=tmp_path / "cache")
    assert len(EpisodeReplayBuffer.from_dataset(dataset, seed=0)) == dataset.num_steps
    html = write_report(dataset, tmp_path / "page.html").read_text()
    assert "Episodes of of_poles" in html
