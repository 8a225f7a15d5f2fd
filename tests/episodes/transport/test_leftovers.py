"""The watch over what tests leave behind sees what there is, and that it is gone."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from multiprocessing.shared_memory import SharedMemory

from tests.leftovers import left_since, there_is


def test_threads_processes_listening_sockets_and_shared_memory_are_seen() -> None:
    before, end = there_is(), threading.Event()
    thread = threading.Thread(target=end.wait, name="waits")
    thread.start()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    listening = socket.create_server(("127.0.0.1", 0))
    memory = SharedMemory(create=True, size=4096)
    try:
        left = left_since(before, seconds=0.0)
        kinds = sorted({words.split()[0] for words in left})
        assert kinds == ["listening", "process", "shared", "thread"]
    finally:
        end.set()
        thread.join()
        child.communicate()
        listening.close()
        memory.close()
        memory.unlink()
    assert left_since(before) == []
