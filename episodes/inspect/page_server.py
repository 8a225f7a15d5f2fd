"""`PageServer`: the page of a data set on loopback, which follows the writers of the data set."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from episodes.errors import EpisodeError
from episodes.inspect.html_report import episode_data, index_of, live_page, overview
from episodes.inspect.page_messages import encode
from episodes.storage import EpisodeDataset

LOOPBACK = "127.0.0.1"
BINARY = "application/octet-stream"
KEPT_VERSIONS = 8  # of which the ids are stored, so that clients get the new rows only


class PageServer(ThreadingHTTPServer):
    """The server of one data set: `serve_forever()` until `shutdown()`. It answers requests of this machine only.

    Args:
        path: the data set.
        port: 0 for a free port.
    """

    daemon_threads = True

    def __init__(self, path: str | Path, port: int = 0) -> None:
        self.path = Path(path)
        self._lock = Lock()
        self._files: Any = None
        self._rows: dict[int, list[Any]] = {}  # by version: id, start and length of each row
        self.version = 0
        self.dataset = EpisodeDataset(self.path)
        super().__init__((LOOPBACK, port), _RequestHandler)

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    def newest(self) -> tuple[int, EpisodeDataset]:
        """Return the data set as it is now, and a version that changes with it."""
        with self._lock:
            try:
                files = sorted((file.name, file.stat().st_size) for file in self.path.iterdir() if file.is_file())
                if files != self._files:
                    self.dataset, self._files = EpisodeDataset(self.path), files
                    self.version += 1
            except (OSError, EpisodeError):  # a file was removed meanwhile: the next call reads the new ones
                self._files = None
            return self.version, self.dataset

    def rows(self, known: int | None) -> bytes | None:
        """Return the rows that are newer than the version `known`, or None if there are none."""
        version, dataset = self.newest()
        if known == version:
            return None
        with self._lock:
            if version not in self._rows:
                table = dataset.metadata
                columns = (table[name].tolist() for name in ("id", "t_started", "length"))
                self._rows[version] = list(zip(*columns, strict=True))
                for old in sorted(self._rows)[:-KEPT_VERSIONS]:
                    del self._rows[old]
            before = self._rows.get(known, []) if known is not None else []
            is_continued = self._rows[version][: len(before)] == before
        message = overview(dataset, len(before) if is_continued else 0)
        return encode(message | {"version": version})


class _RequestHandler(BaseHTTPRequestHandler):
    server: PageServer  # type: ignore[assignment]

    def do_GET(self) -> None:
        """Send the page, its new rows, or an episode."""
        if self.headers.get("Host", "").rsplit(":", 1)[0] not in (LOOPBACK, "localhost"):
            self._send(403, "text/plain", b"only requests of this machine are answered")  # another name of this address
            return
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        if url.path == "/":
            self._send(200, "text/html; charset=utf-8", live_page(self.server.newest()[1]).encode())
        elif url.path == "/rows":
            text = query.get("version", "")
            message = self.server.rows(int(text) if text.isdecimal() else None)
            self._send(204 if message is None else 200, BINARY, message or b"")
        elif url.path == "/episode":
            self._send_episode(query)
        else:
            self._send(404, "text/plain", b"no such address")

    def _send_episode(self, query: dict[str, str]) -> None:
        """Send the episode with the id, start and agent of the query."""
        try:
            key = query["id"], int(query["t"]), query.get("agent", ""), int(query.get("nth", 0))
            window = (int(query["from"]), int(query["to"])) if "from" in query else None
        except (KeyError, ValueError):
            self._send(400, "text/plain", b"give id and t, and agent and nth if there are several")
            return
        _, dataset = self.server.newest()
        index = index_of(dataset, *key)
        if index is None:
            self._send(404, "text/plain", b"this episode is not in the data set any more")
            return
        try:
            self._send(200, BINARY, encode(episode_data(dataset[index], window)))
        except (OSError, EpisodeError) as error:  # its shard was replaced meanwhile
            self._send(404, "text/plain", str(error).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the page sends a request each second."""
