"""`PageServer`: local web server for the page of a data set or of training runs, which follows file changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from episodes.errors import EpisodeError, InvalidArgument
from episodes.inspect.conversation import Decode
from episodes.inspect.doctor.examine import examine
from episodes.inspect.formatting import clipped, page_id
from episodes.inspect.html_report import episode_data, findings_data, index_of, live_page, open_for_page, overview
from episodes.inspect.learned_tracks import LearnedTracks
from episodes.inspect.page_messages import encode
from episodes.inspect.run_findings_page import LiveFindings
from episodes.inspect.training_page import RunFiles, TrainingFiles, file_sizes, is_run, training_page
from episodes.inspect.update_page import update_page
from episodes.inspect.update_tables import page_of
from episodes.storage.files import local_path
from episodes.storage.header import NAME as DATASET_FILE
from episodes.tokens.names import GROUP, GROUP_ID

if TYPE_CHECKING:
    import socket

    from episodes.storage import EpisodeDataset, GameDataset

LOOPBACK = "127.0.0.1"
HTML, BINARY, TEXT = "text/html; charset=utf-8", "application/octet-stream", "text/plain"
Answer = tuple[int, str, bytes]  # status, content type, body
NOT_FOUND: Answer = (404, TEXT, b"no such address")
MOST_OF_ERROR = 1000  # characters
_NUMBER = re.compile("-?[0-9]{1,18}")  # in a request
MOST_CONNECTIONS = 64  # at a time, each of which has a thread
IDLE_S = 10.0  # after which a connection that sends nothing is closed
GROUP_COLUMNS = tuple(f"custom_data/{key}" for key in (GROUP_ID, GROUP))  # the first one that a table has
KEPT_VERSIONS = 8  # of which the ids are stored, so that clients get the new rows only


class LiveDataset:
    """Data set on a live web page, which is reopened whenever its files change.

    Args:
        path: the data set.
        decode: function from a list of token ids to text.
        run: name of the training run that the episodes belong to, whose page the title names and links to.
        learned: function that returns what the updates of the run measured at its episodes.
        status: function that returns the status of the run, such as "running" or "finished"; "" if it is unknown.

    Attributes:
        version: changes with the files and the status.
    """

    def __init__(
        self,
        path: Path,
        decode: Decode | None = None,
        run: str | None = None,
        learned: Callable[[], LearnedTracks] | None = None,
        status: Callable[[], str] | None = None,
    ) -> None:
        self.path, self.decode, self.run, self._learned, self._status = path, decode, run, learned, status
        self.status: str | None = None
        self.version = 0
        self._measurements: LearnedTracks | None = None  # of version `version`
        self.dataset = open_for_page(path)
        self._lock = Lock()
        self._files: Any = None
        self._rows: dict[int, list[Any]] = {}  # by version: id, start, length and measurements of each row

    def newest(self) -> tuple[int, EpisodeDataset | GameDataset]:
        """Return a version number and the data set, after reopening it if its files have changed."""
        with self._lock:
            try:
                files = file_sizes(self.path)
                before, self.status = self.status, None if self._status is None else self._status()
                self.version += before != self.status
                if files != self._files:
                    self.dataset, self._files = open_for_page(self.path), files
                    self.version += 1
                learned = None if self._learned is None else self._learned()
                if learned is not self._measurements:
                    self._measurements = learned
                    self.version += 1
            except (OSError, EpisodeError):  # a file was removed meanwhile: the next call reads the new ones
                self._files = None
            return self.version, self.dataset

    def rows(self, known: int | None) -> bytes | None:
        """Encode the metadata rows added since version `known`, or return None if `known` is the newest version.

        The message contains all rows if earlier rows changed, or if version `known` is no longer cached.
        """
        version, dataset = self.newest()
        if known == version:
            return None
        with self._lock:
            table, learned = dataset.metadata, self._measurements
            measured = {} if learned is None else learned.columns(list(map(str, table["id"])))
            if version not in self._rows:
                columns = [table[name].tolist() for name in ("id", "t_started", "length")]
                columns += [[(name, None if x != x else x) for x in measured[name].tolist()] for name in measured]
                self._rows[version] = list(zip(*columns, strict=True))
                for old in sorted(self._rows)[:-KEPT_VERSIONS]:
                    del self._rows[old]
            before = self._rows.get(known, []) if known is not None else []
            is_continued = self._rows[version][: len(before)] == before
        message = overview(dataset, len(before) if is_continued else 0, measured)
        return encode(message | {"version": version, "status": self.status})

    def answer(self, path: str, query: dict[str, str]) -> Answer:
        """Return the HTTP response to a request: the page, new table rows, an episode, or problems found.

        An unknown address gives status 404.
        """
        if path == "":
            return 200, HTML, live_page(self.newest()[1], self.run).encode()
        if path == "rows":
            message = self.rows(_version(query))
            return 204 if message is None else 200, BINARY, message or b""
        if path == "episode":
            return self._episode(query)
        if path == "findings":
            return 200, BINARY, encode(findings_data(examine(self.newest()[1])))
        return NOT_FOUND

    def _episode(self, query: dict[str, str]) -> Answer:
        """Return the HTTP response with the one episode whose id, start and agent the query names."""
        try:
            key = query["id"], _number(query["t"]), query.get("agent", ""), _number(query.get("nth", "0"))
            window = (_number(query["from"]), _number(query["to"])) if "from" in query else None
        except (KeyError, InvalidArgument):
            return 400, TEXT, b"give id and t, and agent and nth if there are several"
        _, dataset = self.newest()
        index = index_of(dataset, *key)
        if index is None:
            return 404, TEXT, b"this episode is not in the data set any more"
        try:
            episode = dataset[index]
            learned = None if self._learned is None else self._learned()
            facts = {} if learned is None else self._facts_of_group(learned, dataset.metadata, index)
            return 200, BINARY, encode(episode_data(episode, window, decode=self.decode, learned=learned) | facts)
        except (OSError, EpisodeError) as error:  # its shard was replaced meanwhile
            return 404, TEXT, str(error).encode()

    @staticmethod
    def _facts_of_group(learned: LearnedTracks, table: Mapping[str, Any], index: int) -> dict[str, Any]:
        """Return the advantages of the episodes of an episode's group, by the ids of the page."""
        groups = next((table[name] for name in GROUP_COLUMNS if name in table), None)
        if groups is None:
            return {}
        ids = [str(id_) for id_, group in zip(table["id"], groups, strict=True) if group == groups[index]]
        return {"advantages": {page_id(key): value for key, value in learned.advantages(ids).items()}}


class LiveRuns:
    """Training runs on a live web page, whose files are read again when they change."""

    def __init__(self, paths: Sequence[Path], decode: Decode | None = None) -> None:
        self.files, self._decode = TrainingFiles(paths), decode
        self._lock = Lock()
        self._datasets: dict[Path, LiveDataset] = {}
        self._findings = LiveFindings([run.path for run in self.files.runs])

    def answer(self, path: str, query: dict[str, str]) -> Answer:
        """Return the HTTP response to a request: the page, its curves, what stands out, an explained update, or the
        episodes of a run.

        An unknown address gives status 404.
        """
        if path == "":
            return 200, HTML, training_page([run.path for run in self.files.runs]).encode()
        if path == "runs":
            with self._lock:
                message = self.files.message(_version(query))
            return 204 if message is None else 200, BINARY, encode(message) if message else b""
        if path == "findings":
            return 200, HTML, self._findings.html().encode()
        name, _, agent_path = path.partition("/")
        number, _, agent_path = agent_path.partition("/")
        dataset_name, _, agent_path = agent_path.partition("/")
        runs = {str(i): run for i, run in enumerate(self.files.runs)}
        if name == "updates" and number in runs and not agent_path:
            return self._update(number, runs[number].path, dataset_name, query.get("module"))
        if name != "episodes" or number not in runs:
            return NOT_FOUND
        learned = partial(self._findings.learned, int(number))
        dataset = self._dataset(runs[number], unquote(dataset_name), learned)
        return NOT_FOUND if dataset is None else dataset.answer(agent_path, query)

    def _update(self, number: str, run: Path, update: str, module: str | None) -> Answer:
        """Return the HTTP response with the page that explains an update of a run."""
        try:
            found = self._findings.of_run(int(number))
            address = partial("../../episodes/{}/{}/".format, number)
            page = update_page(run, _number(update), module, address, "../../", found, self._decode)
        except EpisodeError as error:  # no such update, or a damaged ledger
            back = '<nav><a href="../../">← the run</a></nav>'
            text = f"<p>{escape(clipped(error, MOST_OF_ERROR))}</p>"
            return 404, HTML, page_of("No such update", text, nav=back).encode()
        return 200, HTML, page.encode()

    def _dataset(self, run: RunFiles, name: str, learned: Callable[[], LearnedTracks]) -> LiveDataset | None:
        """Return a data set of episodes of the run, opened at the first call, or None if the run has none."""
        path = run.dataset_paths().get(name)
        if path is None:
            return None
        with self._lock:
            if path not in self._datasets:
                self._datasets[path] = LiveDataset(path, self._decode, run.path.name, learned, run.status)
            return self._datasets[path]


class PageServer(ThreadingHTTPServer):
    """Local web server for the page of a data set or of training runs, reachable from this machine only.

    Call `serve_forever()`, and `shutdown()` in another thread. No request and no file ends it. It has at most 64
    connections at a time, closes further ones, and closes a connection that sends nothing for 10 seconds.

    Args:
        paths: a data set, or the folders of one or several runs.
        port: 0 for a free port.
        decode: function from a list of token ids to text, for conversations of language agents.

    Raises:
        InvalidArgument: a data set among several paths, or a folder of a run does not exist.
    """

    daemon_threads = True
    request_queue_size = 128  # connections that wait to be accepted; with 5, browsers wait a second for the next try

    def __init__(self, *paths: str | Path, port: int = 0, decode: Decode | None = None) -> None:
        folders = list(map(local_path, paths))
        is_data = [(folder / DATASET_FILE).exists() for folder in folders]
        if len(folders) > 1 and any(is_data):
            raise InvalidArgument("give one data set, or folders of runs: a page shows one data set, or several runs")
        if len(folders) == 1 and (is_data[0] or not is_run(folders[0])):
            self.source: LiveDataset | LiveRuns = LiveDataset(folders[0], decode)
        else:
            self.source = LiveRuns(folders, decode)
        self._room = BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((LOOPBACK, port), _RequestHandler)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Answer a connection in a thread of its own, or close it if there are `MOST_CONNECTIONS` already."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was started
            self._room.release()
            raise

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Answer a connection, and make room for another one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Print nothing for a connection that broke off."""

    @property
    def url(self) -> str:
        """Address at which browsers on this machine reach the page."""
        return f"http://{LOOPBACK}:{self.server_port}/"


def _version(query: dict[str, str]) -> int | None:
    """Return the version that the browser has, or None if the request names none."""
    try:
        return _number(query["version"])
    except (KeyError, InvalidArgument):
        return None


def _number(text: str) -> int:
    """Return the int that a request names. Raise `InvalidArgument` for other texts."""
    if not _NUMBER.fullmatch(text):
        raise InvalidArgument(f"{clipped(text)}: give an int of at most 18 digits")
    return int(text)


class _RequestHandler(BaseHTTPRequestHandler):
    """Handler of the HTTP requests of a `PageServer`. Requests under another host name than this machine's are
    rejected.
    """

    server: PageServer  # type: ignore[assignment]
    timeout = IDLE_S

    def do_GET(self) -> None:
        """Answer a GET request from the data set or the training runs that the server shows."""
        if self.headers.get("Host", "").rsplit(":", 1)[0] not in (LOOPBACK, "localhost"):
            self._send(403, TEXT, b"only requests of this machine are answered")  # another name of this address
            return
        try:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
            answer = self.server.source.answer(url.path.removeprefix("/"), query)
        except (OSError, EpisodeError) as error:  # the page asks again, and files may be whole by then
            answer = 404, TEXT, clipped(error, MOST_OF_ERROR).encode(errors="replace")
        except Exception as error:
            answer = 500, TEXT, clipped(f"{type(error).__name__}: {error}", MOST_OF_ERROR).encode()
        self._send(*answer)

    def _send(self, status: int, kind: str, body: bytes) -> None:
        """Send a response, which browsers must not cache."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing, since the page sends a request each second."""
