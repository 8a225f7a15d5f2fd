"""`serve`: the page of a data set on loopback, which follows the writers that are at work."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from episodes.errors import EpisodeError
from episodes.inspect.html_report import episode_data, index_of, overview, page
from episodes.storage import EpisodeDataset

LOOPBACK = "127.0.0.1"


class PageServer(ThreadingHTTPServer):
    """The server of one data set: `serve_forever()` until `shutdown()`. Nobody but this machine is answered.

    Args:
        path: of the data set.
        port: 0 for one that is free.
    """

    daemon_threads = True

    def __init__(self, path: str | Path, port: int = 0) -> None:
        self.path = Path(path)
        self._lock = Lock()
        self._seen: Any = None
        self.version = 0
        self.dataset = EpisodeDataset(self.path)
        super().__init__((LOOPBACK, port), _Answers)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    def newest(self) -> tuple[int, EpisodeDataset]:
        """The data set as it is now, and a number that changes with it."""
        with self._lock:
            try:
                seen = sorted((file.name, file.stat().st_size) for file in self.path.iterdir() if file.is_file())
                if seen != self._seen:
                    self.dataset, self._seen = EpisodeDataset(self.path), seen
                    self.version += 1
            except (OSError, EpisodeError):  # a file went away while it was looked at: the next call finds the others
                self._seen = None
            return self.version, self.dataset


class _Answers(BaseHTTPRequestHandler):
    server: PageServer  # type: ignore[assignment]

    def do_GET(self) -> None:
        """The page, its rows where they are newer than those that it has, or an episode."""
        if self.headers.get("Host", "").rsplit(":", 1)[0] not in (LOOPBACK, "localhost"):
            self._send(403, "text/plain", b"only this machine is answered")  # another site's name that leads here
            return
        asked = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(asked.query, keep_blank_values=True).items()}
        version, dataset = self.server.newest()
        if asked.path == "/":
            self._send(200, "text/html; charset=utf-8", page(dataset, None).encode())
        elif asked.path == "/rows":
            if query.get("version") == str(version):
                self._send(204, "application/json", b"")
            else:
                self._send_json(200, {"version": version, **overview(dataset)})
        elif asked.path == "/episode":
            self._send_episode(dataset, query)
        else:
            self._send(404, "text/plain", b"no such address")

    def _send_episode(self, dataset: EpisodeDataset, query: dict[str, str]) -> None:
        """Send the episode with the id, start and agent of the query."""
        try:
            key = query["id"], int(query["t"]), query.get("agent", ""), int(query.get("nth", 0))
        except (KeyError, ValueError):
            self._send(400, "text/plain", b"give id and t, and agent and nth if there are several")
            return
        index = index_of(dataset, *key)
        if index is None:
            self._send(404, "text/plain", b"this episode is not in the data set any more")
        else:
            self._send_json(200, episode_data(dataset[index]))

    def _send_json(self, status: int, value: Any) -> None:
        self._send(status, "application/json", json.dumps(value, allow_nan=False).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what is asked each second need not be printed."""
