"""The watch over what tests leave behind sees what there is, and that it is gone."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
import threading
from multiprocessing.shared_memory import SharedMemory

import pytest

from tests.code_rules import ROOT
from tests.leftovers import left_since, there_is


def test_left_since_lists_every_kind_of_resource() -> None:
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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep memory by rules of their own")
def test_freed_message_memory_is_reused() -> None:
    code = """
from collections import deque
from resource import RUSAGE_SELF, getrusage
from episodes.transport.sockets import keep_freed_memory

def fresh_pages(num):
    before, kept = getrusage(RUSAGE_SELF).ru_minflt, deque(maxlen=6)
    for _ in range(num):
        kept.append(b"".join([bytes(1000)] * 1000))
    return getrusage(RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
fresh_pages(20)
print(fresh_pages(100))
"""
    metadata = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(metadata.stdout) < 100  # less than one for a message of 245 pages
